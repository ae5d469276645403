//! distinct: the different values of a field among the documents that match.

use crate::op::OpCtx;
use crate::read::{ReadRequest, Rows};
use bson::{Value, key};
use errors::{Result, bail};
use query::path::{FieldPath, Leaf};
use std::collections::BTreeMap;

/// The values of `path` in order of comparison; arrays on the way and at the end are taken apart, as MongoDB does.
pub fn distinct(
    ctx: &mut OpCtx,
    ns: &str,
    path: &FieldPath,
    req: &ReadRequest,
) -> Result<Vec<Value>> {
    let (view, Some(coll)) = ctx.view(ns) else {
        return Ok(Vec::new());
    };
    let mut rows = Rows::open(ctx, view, coll, req)?;
    let mut found: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
    let mut bytes = 0;
    while rows.next(ctx)? {
        let mut scratch = Vec::new();
        path.visit(rows.doc(), Leaf::Whole, &mut |v, _| {
            let Some(v) = v else { return false };
            let mut add = |v: bson::Val<'_>| {
                scratch.clear();
                key::encode(v, false, &mut scratch, None);
                if !found.contains_key(&scratch) {
                    bytes += v.bytes.len() + 8;
                    found.insert(scratch.clone(), v.to_value());
                }
            };
            match v.as_array() {
                Some(a) => a.values().for_each(add),
                None => add(v),
            }
            false
        });
        if bytes > bson::MAX_DOC_BYTES {
            bail!(17217, "distinct too big, 16mb cap");
        }
    }
    Ok(found.into_values().collect())
}
