//! Which values the fields of a key can have in the documents that a condition holds for: what a
//! router needs to know where they are.

use crate::bounds::{self, FieldKind};
use crate::interval::{Interval, intersect};
use crate::predicate::{clauses, collect};
use query::expr::Vars;
use query::filter::Node;
use query::path::FieldPath;

/// A field of a key that holds no arrays, as its value or as the value's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarField {
    pub path: FieldPath,
    pub hashed: bool,
}

/// For each field the values that it can have (a missing one counts as null) in documents that the
/// conjunction `root` holds for. What `$or` and its kin say is left out: the answer is complete, and
/// may be too wide.
pub fn field_values(root: &Node, fields: &[ScalarField], vars: &Vars) -> Vec<Vec<Interval>> {
    let predicates = collect(clauses(root), vars);
    fields
        .iter()
        .map(|field| {
            let kind = FieldKind {
                multikey: false,
                dotted: field.path.is_dotted(),
                indexed: field.path.has_index_part(),
                sparse: false,
                collation: None,
            };
            let about = predicates
                .iter()
                .filter(|p| *p.path == field.path && !p.element && !p.same_value);
            about.fold(vec![Interval::all()], |values, p| {
                let bounds = match field.hashed {
                    true => bounds::hashed(p, None),
                    false => bounds::of(p, kind),
                };
                bounds.map_or(values.clone(), |b| intersect(&values, &b.intervals))
            })
        })
        .collect()
}
