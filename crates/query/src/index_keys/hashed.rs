//! The keys of hashed indexes: one for each document, with the hash in the place of one field's
//! value.

use super::{FieldKind, KeyField, KeySet, Multikey, Stop, walk};
use crate::expr::hash64;
use bson::{Doc, Val, Value};
use errors::{Result, bail};

/// Replaces the content of `out` by the key of `doc`. Arrays are refused anywhere on the paths, as
/// MongoDB does.
pub(super) fn extract(
    fields: &[KeyField],
    doc: Doc<'_>,
    sparse: bool,
    out: &mut KeySet,
) -> Result<Multikey> {
    out.clear();
    let start = out.begin();
    let mut found = false;
    for f in fields {
        let v = match walk(&f.path, doc, 0) {
            Stop::Leaf(v) => v,
            Stop::Array { .. } => {
                out.clear();
                bail!(
                    16766,
                    "Error: hashed indexes do not currently support array values. Found array at path: {}",
                    f.path
                );
            }
        };
        found |= v.is_some();
        match f.kind {
            FieldKind::Hashed => {
                let h = Value::from(hash64(out.folded(v.unwrap_or(Val::NULL)).as_val()));
                out.put_as_is(h.as_val(), f.descending);
            }
            _ => out.put(v, f.descending),
        }
    }
    if found || !sparse {
        out.end(start);
    } else {
        out.clear();
    }
    Ok(Multikey::default())
}
