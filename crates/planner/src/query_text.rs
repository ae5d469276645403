//! A query as MongoDB prints it into errors of its planner. Parse Server reads there which field lacks
//! a geospatial index.

use crate::plan::PlanRequest;
use bson::{Value, shell};
use query::arithmetic::convert::f64_to_short_string;
use query::filter::{Filter, NearTest, Node, Test};
use query::projection::Projection;
use query::sort::SortPattern;
use std::fmt::Write;

/// Of a filter's tree, in bytes: a message has to fit into a reply.
const LONGEST_TREE: usize = 64 << 10;

/// Namespace, limit, tree of the filter, sort and projection.
pub(crate) fn of(req: &PlanRequest<'_>) -> String {
    let mut out = format!("ns={}", req.ns);
    if let Some(limit) = req.limit {
        let _ = write!(out, " limit={limit}");
    }
    out.push_str("Tree: ");
    tree(req.filter.root(), 0, &mut out);
    if out.len() > LONGEST_TREE {
        let end = (0..=LONGEST_TREE).rev().find(|i| out.is_char_boundary(*i));
        out.truncate(end.unwrap_or(0));
        out.push_str("...\n");
    }
    let sort = req.sort.map(SortPattern::to_doc).unwrap_or_default();
    let fields = req.projection.map(Projection::to_doc).unwrap_or_default();
    let (sort, fields) = (shell::doc(sort.as_doc()), shell::doc(fields.as_doc()));
    let _ = writeln!(out, "Sort: {sort}\nProj: {fields}");
    if let Some(c) = req.filter.root().collation() {
        let _ = writeln!(out, "Collation: {}", shell::doc(c.spec()));
    }
    out
}

/// A line for each node, further in with each level; what orders the results comes last.
fn tree(node: &Node, depth: usize, out: &mut String) {
    out.push_str(&"    ".repeat(depth));
    let branches = match node {
        Node::And(c) => ("$and", c),
        Node::Or(c) => ("$or", c),
        Node::Nor(c) => ("$nor", c),
        leaf => {
            let _ = writeln!(out, "{}", line(leaf));
            return;
        }
    };
    let _ = writeln!(out, "{}", branches.0);
    let (near, others): (Vec<_>, Vec<_>) = branches.1.iter().partition(|n| is_near(n));
    for n in others.into_iter().chain(near) {
        tree(n, depth + 1, out);
    }
}

fn is_near(node: &Node) -> bool {
    matches!(
        node,
        Node::Pred {
            test: Test::Near(_),
            ..
        }
    )
}

fn line(node: &Node) -> String {
    let Node::Pred { path, test } = node else {
        return shell::doc(Filter::from_node(node.clone()).to_doc().as_doc());
    };
    let test = match test {
        Test::Collated(c) => &c.source,
        test => test,
    };
    let compared = |name: &str, v: &Value| format!("{path} {name} {}", shell::val(v.as_val()));
    match test {
        Test::Near(near) => near_line(path.as_str(), near),
        Test::Eq(v) => compared("$eq", v),
        Test::Lt(v) => compared("$lt", v),
        Test::Lte(v) => compared("$lte", v),
        Test::Gt(v) => compared("$gt", v),
        Test::Gte(v) => compared("$gte", v),
        _ => shell::doc(Filter::from_node(node.clone()).to_doc().as_doc()),
    }
}

fn near_line(path: &str, near: &NearTest) -> String {
    let on_sphere = near.source().contains("$nearSphere");
    // No greatest distance is the greatest number there.
    let max = match near.near.max {
        m if m.is_finite() => m,
        _ => f64::MAX,
    };
    format!(
        "GEONEAR  field={path} maxdist={} isNearSphere={}",
        f64_to_short_string(max),
        i32::from(on_sphere)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn a_search_for_what_is_near_names_its_field() {
        let text = |filter: &str| {
            let parsed = json::parse(filter).unwrap();
            let env = query::expr::ParseEnv::new().allow_where(true);
            let filter = Filter::parse(parsed.as_doc(), &env).unwrap();
            let mut out = String::new();
            tree(filter.root(), 0, &mut out);
            out
        };
        assert_eq!(
            text(r#"{"loc": {"$nearSphere": [1, 2], "$maxDistance": 0.00109756}}"#),
            "GEONEAR  field=loc maxdist=0.00109756 isNearSphere=1\n"
        );
        assert_eq!(
            text(r#"{"loc": {"$near": [1, 2]}, "a": {"$gt": 5}}"#),
            "$and\n    a $gt 5\n    GEONEAR  field=loc maxdist=1.79769e+308 isNearSphere=0\n"
        );
    }
}
