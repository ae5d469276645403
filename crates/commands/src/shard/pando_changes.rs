//! `_pandoChanges`: which documents of a collection the log says were touched, for whoever copies
//! them.
//!
//! ```text
//! {_pandoChanges: 1, ns}                    → {ids: [], upTo: <long>}     where the log ends
//! {_pandoChanges: 1, ns, after: <long>}     → {ids: [_id…], upTo, more: <bool>}
//! ```

use super::text;
use crate::request::{CommandContext, Done};
use bson::{Doc, Writer};
use changes::What;
use errors::Result;
use std::collections::HashSet;
use storage::Entry;

/// The ids of one reply, in bytes.
const MOST_BYTES: usize = 4 << 20;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let end = cx.app.store.last_index();
    let after = cx.args.field("after").and_then(|v| v.to_i64_exact());
    let mut ids = Writer::new_array();
    let (mut seen, mut up_to, mut more) = (HashSet::new(), end, false);
    if let Some(after) = after {
        let mut next = u64::try_from(after).unwrap_or(0) + 1;
        let mut reader = cx.app.store.read_log(next)?;
        while next <= end {
            cx.op.check()?;
            let Some(record) = reader.next()? else { break };
            next = record.index + 1;
            up_to = record.index;
            let Some(entry) = Entry::decode(record.payload) else {
                return Err(
                    errors::err!(DataCorruptionDetected, "an entry of the log is damaged").into(),
                );
            };
            for change in changes::changes(&entry).iter().filter(|c| c.ns == ns) {
                let doc = match change.what {
                    What::Insert(d) | What::Update(_, d) | What::Replace(d) | What::Delete(d) => d,
                    What::Ddl(_) => continue,
                };
                touched(doc, &mut seen, &mut ids);
            }
            if ids.len() > MOST_BYTES {
                more = next <= end;
                break;
            }
        }
    }
    cx.w.val("ids", ids.finish_array().as_val());
    cx.w.i64("upTo", up_to as i64).bool("more", more);
    Ok(Done::Reply)
}

fn touched(doc: Doc<'_>, seen: &mut HashSet<Vec<u8>>, ids: &mut Writer) {
    if let Some(id) = doc.get("_id")
        && seen.insert(bson::key::of(id))
    {
        ids.push(id);
    }
}
