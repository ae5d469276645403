//! What an `$expr` demands of single fields: comparisons with values that no document changes,
//! which an index can look up.
//!
//! As in MongoDB these are `$eq`, `$lt`, `$lte`, `$gt` and `$gte` between a field and a value, also
//! under `$and`; and `$in` of a field and an array of values. They hold for values of all types, and
//! for a missing field as for something less than null.

use super::node::{Call, Node, Prepared, System};
use super::{EvalCtx, Expression, Vars};
use crate::collation::Collation;
use bson::{Doc, Val, Value, tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Eq,
    Lt,
    Lte,
    Gt,
    Gte,
    /// Equal to one of them.
    In,
}

/// A field's value must stand in that order to `value` for the expression to hold.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub path: String,
    pub order: Order,
    /// Neither an array nor undefined; of [`Order::In`] the array of such values.
    pub value: Value,
    pub collation: Option<Collation>,
}

impl Order {
    fn of(operator: &str) -> Option<Order> {
        Some(match operator {
            "$eq" => Order::Eq,
            "$lt" => Order::Lt,
            "$lte" => Order::Lte,
            "$gt" => Order::Gt,
            "$gte" => Order::Gte,
            _ => return None,
        })
    }

    /// The same with the operands exchanged.
    fn turned(self) -> Order {
        match self {
            Order::Eq => Order::Eq,
            Order::Lt => Order::Gt,
            Order::Lte => Order::Gte,
            Order::Gt => Order::Lt,
            Order::Gte => Order::Lte,
            Order::In => Order::In,
        }
    }
}

impl Expression {
    /// Comparisons that hold for every document for which the expression does, with `vars` as the
    /// variables' values.
    pub fn comparisons(&self, vars: &Vars) -> Vec<Comparison> {
        let mut out = Vec::new();
        gather(&self.node, vars, &mut out);
        out
    }

    /// The first `n` operands of an `$and` one by one, and the rest of it; `None` for any other
    /// expression, and if no rest would stay.
    pub(crate) fn divided(&self, n: usize) -> Option<(Vec<Expression>, Expression)> {
        let Node::Call(c) = &self.node else {
            return None;
        };
        if c.op.name != "$and" || n == 0 || n >= c.args.len() {
            return None;
        }
        let (first, rest) = c.args.split_at(n);
        let each = |node: &Node| Expression { node: node.clone() };
        let mut left = c.clone();
        left.args = rest.to_vec();
        let node = Node::Call(left);
        Some((first.iter().map(each).collect(), Expression { node }))
    }

    /// The operands of an `$or`.
    pub fn alternatives(&self) -> Option<Vec<Expression>> {
        let each = |node: &Node| Expression { node: node.clone() };
        match &self.node {
            Node::Call(c) if c.op.name == "$or" => Some(c.args.iter().map(each).collect()),
            _ => None,
        }
    }
}

impl Expression {
    /// Whether it is an `$or`, without a copy of what it consists of.
    pub fn has_alternatives(&self) -> bool {
        matches!(&self.node, Node::Call(c) if c.op.name == "$or")
    }
}

fn gather(node: &Node, vars: &Vars, out: &mut Vec<Comparison>) {
    let Node::Call(c) = node else { return };
    match (c.op.name, Order::of(c.op.name), c.args.as_slice()) {
        ("$in", _, [a, b]) => out.extend(compared(c, a, Order::In, b, vars)),
        ("$and", _, args) => args.iter().for_each(|n| gather(n, vars, out)),
        (_, Some(order), [a, b]) => out.extend(
            compared(c, a, order, b, vars).or_else(|| compared(c, b, order.turned(), a, vars)),
        ),
        _ => {}
    }
}

fn compared(c: &Call, field: &Node, order: Order, other: &Node, vars: &Vars) -> Option<Comparison> {
    let path = match field {
        Node::Path(p) => p,
        Node::System(System::Root, p) if !p.is_empty() => p,
        _ => return None,
    };
    if !is_fixed(other) {
        return None;
    }
    let value = other.eval(&EvalCtx::new(Doc::EMPTY, vars)).ok()?;
    let value = value.into_value()?;
    let plain = |v: Val<'_>| !matches!(v.tag, tag::ARRAY | tag::UNDEFINED);
    let looked_up = match (order, value.as_val().as_array()) {
        (Order::In, Some(list)) => list.values().all(plain),
        (Order::In, None) => false,
        _ => plain(value.as_val()),
    };
    looked_up.then(|| Comparison {
        path: path.to_string(),
        order,
        value,
        collation: match &c.prepared {
            Prepared::Collation(c) => Some(c.clone()),
            _ => None,
        },
    })
}

/// Whether the value is the same for every document.
fn is_fixed(node: &Node) -> bool {
    match node {
        Node::Const(_) | Node::Var(..) | Node::Absent => true,
        Node::System(s, _) => matches!(s, System::Now | System::ClusterTime),
        Node::Path(_) => false,
        Node::Doc(fields) => fields.iter().all(|(_, n)| is_fixed(n)),
        Node::Array(items) => items.iter().all(is_fixed),
        Node::Call(c) => c.op.foldable && c.args.iter().all(is_fixed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::ParseEnv;
    use bson::{json, shell};

    #[test]
    fn of_expressions() {
        let mut env = ParseEnv::new();
        env.define("v").unwrap();
        env.define("gone").unwrap();
        let mut vars = Vars::new(0);
        vars.set("v", Value::from(json::parse(r#"{"x":7,"l":[1]}"#).unwrap()));
        for (text, want) in [
            (r#"{"$eq":["$a",5]}"#, "a Eq 5"),
            (r#"{"$lt":[5,"$a.b"]}"#, "a.b Gt 5"),
            (r#"{"$gte":["$$ROOT.a","$$v.x"]}"#, "a Gte 7"),
            (r#"{"$lte":["$a",{"$add":["$$v.x",1]}]}"#, "a Lte 8"),
            (
                r#"{"$and":[{"$gt":["$a",1]},{"$ne":["$c",1]},{"$and":[{"$eq":["$b","x"]}]}]}"#,
                r#"a Gt 1, b Eq "x""#,
            ),
            (r#"{"$eq":["$a",null]}"#, "a Eq null"),
            // What depends on the document, on chance, or on nothing; arrays, which compare in
            // another way in filters.
            (r#"{"$eq":["$a","$b"]}"#, ""),
            (r#"{"$eq":["$a",{"$add":["$b",1]}]}"#, ""),
            (r#"{"$gt":["$a",{"$rand":{}}]}"#, ""),
            (r#"{"$eq":["$a","$$gone"]}"#, ""),
            (r#"{"$eq":["$a","$$v.l"]}"#, ""),
            (r#"{"$eq":["$a",[1]]}"#, ""),
            (r#"{"$eq":["$$ROOT",{"a":1}]}"#, ""),
            (r#"{"$or":[{"$eq":["$a",1]},{"$eq":["$b",1]}]}"#, ""),
            (r#"{"$not":[{"$eq":["$a",1]}]}"#, ""),
        ] {
            let doc = json::parse(text).unwrap();
            let e = Expression::parse(doc.as_doc().as_val(), &env).unwrap();
            let got: Vec<String> = e
                .comparisons(&vars)
                .iter()
                .map(|c| format!("{} {:?} {}", c.path, c.order, shell::val(c.value.as_val())))
                .collect();
            assert_eq!(got.join(", "), want, "{text}");
        }
    }
}
