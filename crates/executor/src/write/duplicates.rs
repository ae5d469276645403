//! Duplicates that prevent an index from becoming unique: values with several records.

use crate::op::OpCtx;
use crate::records;
use bson::{Doc, Value, key};
use catalog::keyspace;
use catalog::{Collection, Index};
use errors::Result;
use storage::{Direction, View};

/// The most values that are reported, and the most records of each.
const MOST: usize = 100;

/// The `_id`s of the records that share a value, for each such value.
pub fn duplicates(ctx: &mut OpCtx, coll: &Collection, index: &Index) -> Result<Vec<Vec<Value>>> {
    ctx.need_worker()?;
    let view = ctx.engine.store.view();
    let end = keyspace::prefix_end(&index.prefix);
    let mut scan = view.scan(&index.prefix, &end, Direction::Forward);
    let mut out = Vec::new();
    let (mut value, mut sharing): (Vec<u8>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    while out.len() < MOST && scan.next()? {
        ctx.tick(1)?;
        let entry = records::own_part(scan.key());
        let mut len = 0;
        for f in &index.info.key.fields {
            let field = entry
                .get(len..)
                .and_then(|k| key::field_len(k, f.descending));
            len += field.ok_or_else(|| records::damaged_entry(index))?;
        }
        let (v, record) =
            (entry.split_at_checked(len)).ok_or_else(|| records::damaged_entry(index))?;
        if v != value.as_slice() {
            if sharing.len() > 1 {
                out.push(ids(&view, coll, &sharing)?);
            }
            sharing.clear();
            value.clear();
            value.extend_from_slice(v);
        }
        if sharing.len() < MOST {
            sharing.push(record.to_vec());
        }
    }
    if sharing.len() > 1 && out.len() < MOST {
        out.push(ids(&view, coll, &sharing)?);
    }
    Ok(out)
}

fn ids(view: &View, coll: &Collection, records: &[Vec<u8>]) -> Result<Vec<Value>> {
    let mut out = Vec::with_capacity(records.len());
    for r in records {
        if let Some(bytes) = view.get(&coll.record_key(r))?
            && let Some(id) = Doc::new(&bytes).and_then(|d| d.get("_id"))
        {
            out.push(id.to_value());
        }
    }
    Ok(out)
}
