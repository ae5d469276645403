//! The shape of a query: its operators and paths without the values. Queries of one shape share
//! index filters.

use super::{Filter, Node, Test};
use crate::collation::Collation;

impl Filter {
    /// Equal for queries that differ in values only, in whatever order their clauses stand.
    pub fn shape(&self) -> String {
        of(&self.root)
    }
}

impl Node {
    /// The collation of a comparison in it.
    pub fn collation(&self) -> Option<Collation> {
        let mut found = None;
        self.any(&mut |n| {
            if let Node::Pred {
                test: Test::Collated(c),
                ..
            } = n
            {
                found = Some(c.collation.clone());
            }
            found.is_some()
        });
        found
    }
}

fn all(name: &str, nodes: &[Node]) -> String {
    let mut parts: Vec<String> = nodes.iter().map(of).collect();
    parts.sort();
    format!("{name}({})", parts.join(","))
}

fn of(node: &Node) -> String {
    match node {
        Node::Const(b) => b.to_string(),
        Node::And(c) => all("and", c),
        Node::Or(c) => all("or", c),
        Node::Nor(c) => all("nor", c),
        Node::Not(n) => format!("not({})", of(n)),
        Node::Pred { path, test } => format!("{}:{path}", of_test(test.written())),
        Node::Expr(e) if e.as_where().is_some() => "where".to_string(),
        Node::Expr(_) => "expr".to_string(),
        Node::Sample(_) => "sample".to_string(),
        Node::Text(_) => "text".to_string(),
        Node::Schema(s) => format!("schema({})", s.source().as_doc()),
    }
}

fn of_test(test: &Test) -> String {
    match test {
        Test::ElemMatchObject(n) | Test::ElemMatchValue(n) => format!("elemMatch({})", of(n)),
        Test::Regex(r) => format!("regex/{}", r.options()),
        Test::Bits { test, .. } => test.name().to_string(),
        Test::Eq(_) => "eq".to_string(),
        Test::Lt(_) => "lt".to_string(),
        Test::Lte(_) => "lte".to_string(),
        Test::Gt(_) => "gt".to_string(),
        Test::Gte(_) => "gte".to_string(),
        Test::In(_) => "in".to_string(),
        Test::Exists => "exists".to_string(),
        Test::Type(_) => "type".to_string(),
        Test::Mod { .. } => "mod".to_string(),
        Test::Size(_) => "size".to_string(),
        Test::Collated(c) => of_test(&c.source),
        Test::Geo(g) => g.name().to_string(),
        Test::Near(_) => "near".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn values_do_not_count() {
        let shape = |s: &str| {
            let d = json::parse(s).unwrap();
            Filter::parse(d.as_doc(), &Default::default())
                .unwrap()
                .shape()
        };
        for (a, b, same) in [
            (r#"{"a":1}"#, r#"{"a":"x"}"#, true),
            (r#"{"a":1,"b":{"$gt":2}}"#, r#"{"b":{"$gt":3},"a":5}"#, true),
            (r#"{"a":1}"#, r#"{"b":1}"#, false),
            (r#"{"a":1}"#, r#"{"a":{"$gt":1}}"#, false),
            (r#"{"a":{"$in":[1,2]}}"#, r#"{"a":{"$in":[3,4,5]}}"#, true),
            (r#"{}"#, r#"{"a":1}"#, false),
        ] {
            assert_eq!(shape(a) == shape(b), same, "{a} {b}");
        }
    }
}
