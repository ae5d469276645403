//! The buckets of a `$bucket`, out of the `$group` that it stands for: which of them a test of
//! `_id` lets pass, and what their documents have in common.

use super::super::Stage;
use crate::filter::{Node, Test};
use crate::path::FieldPath;
use bson::{Doc, Val, Value};

pub(super) struct Buckets {
    field: FieldPath,
    /// Each from the first to before the second; the first is its `_id`.
    bounds: Vec<(Value, Value)>,
    default: Option<Value>,
}

fn literal(v: Option<Val<'_>>) -> Option<Value> {
    Some(v?.as_doc()?.get("$literal")?.to_value())
}

impl Buckets {
    /// `None`: it is another group. Under a collation strings are in another order.
    pub fn of(stage: &Stage, collated: bool) -> Option<Buckets> {
        let spec = stage.spec.as_val().as_doc()?;
        let switch = spec.get("_id")?.as_doc()?.get("$switch")?.as_doc()?;
        let mut field: Option<FieldPath> = None;
        let mut bounds = Vec::new();
        for branch in switch.get("branches")?.as_array()?.values() {
            let branch = branch.as_doc()?;
            let (by, low, high) = range(branch.get("case")?.as_doc()?)?;
            let same = field.get_or_insert_with(|| by.clone());
            if *same != by || literal(branch.get("then"))? != low {
                return None;
            }
            bounds.push((low, high));
        }
        // For a value that is no number a filter finds only itself.
        let orders = |v: &Value| {
            let v = v.as_val();
            !v.is_nullish() && v.as_container().is_none() && !v.to_f64().is_some_and(f64::is_nan)
        };
        let plain = |(low, high): &(Value, Value)| orders(low) && orders(high);
        if collated || !bounds.iter().all(plain) {
            return None;
        }
        Some(Buckets {
            field: field?,
            bounds,
            default: literal(switch.get("default")),
        })
    }

    /// What documents of all buckets but the default have in common.
    #[cfg(test)]
    pub fn all(&self) -> Node {
        let ask = |test: Test| Node::Pred {
            path: self.field.clone(),
            test,
        };
        let each = self.bounds.iter().map(|(low, high)| {
            let (low, high) = (Test::Gte(low.clone()), Test::Lt(high.clone()));
            Node::And(vec![ask(low), ask(high)])
        });
        Node::Or(each.collect())
    }

    /// What documents of the buckets have in common whose `_id` passes a test; `None`: nothing.
    pub fn within(&self, test: &Test) -> Option<Node> {
        let passes = |v: &Value| test.matches(Some(v.as_val()));
        if self.default.as_ref().is_some_and(passes) {
            return None;
        }
        let ask = |test: Test| Node::Pred {
            path: self.field.clone(),
            test,
        };
        let passing = self.bounds.iter().filter(|(low, _)| passes(low));
        let each: Vec<Node> = passing
            .map(|(low, high)| {
                let (low, high) = (Test::Gte(low.clone()), Test::Lt(high.clone()));
                Node::And(vec![ask(low), ask(high)])
            })
            .collect();
        Some(match each.len() {
            0 => Node::Const(false),
            _ => Node::Or(each),
        })
    }
}

/// `{$and: [{$gte: ["$field", {$literal: low}]}, {$lt: ["$field", {$literal: high}]}]}`.
fn range(case: Doc<'_>) -> Option<(FieldPath, Value, Value)> {
    let both: Vec<Val<'_>> = case.get("$and")?.as_array()?.values().collect();
    let [low, high] = both.as_slice() else {
        return None;
    };
    let side = |v: Val<'_>, name: &str| -> Option<(FieldPath, Value)> {
        let operands: Vec<Val<'_>> = v.as_doc()?.get(name)?.as_array()?.values().collect();
        let [field, bound] = operands.as_slice() else {
            return None;
        };
        let path = field.as_str()?.strip_prefix('$')?;
        let plain = !path.starts_with('$') && !path.is_empty();
        plain.then_some((FieldPath::new(path), literal(Some(*bound))?))
    };
    let ((field, low), (same, high)) = (side(*low, "$gte")?, side(*high, "$lt")?);
    (field == same).then_some((field, low, high))
}
