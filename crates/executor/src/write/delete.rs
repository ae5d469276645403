//! Deleting documents: as updates do it, with a candidate, a latch, a second look.

use crate::op::{Held, OpCtx};
use crate::read::RecordStream;
use crate::read::request::ReadRequest;
use crate::records::{self, latch_hash};
use crate::write::insert::check_writable;
use crate::write::retry::{Retry, StmtResult};
use crate::write::update::lock_existing;
use bson::{Doc, DocBuf, Writer};
use catalog::Collection;
use errors::{Error, Result, bail};
use query::filter::Filter;
use query::index_keys::KeySet;
use query::sort::SortPattern;
use std::sync::Arc;
use storage::{Entry, Op};

const BATCH: usize = 256;
const ATTEMPTS: usize = 1000;

pub struct DeleteRequest<'a> {
    pub filter: &'a Filter,
    pub multi: bool,
    pub sort: Option<&'a SortPattern>,
    pub hint: Option<planner::Hint>,
    pub vars: Option<Arc<query::expr::Vars>>,
    /// Whether the deleted document is wanted (findAndModify).
    pub images: bool,
}

#[derive(Debug, Default)]
pub struct Deleted {
    pub n: u64,
    pub before: Option<DocBuf>,
}

/// Runs one delete statement. `at` is its position in the command.
pub fn delete(
    ctx: &mut OpCtx,
    ns: &str,
    req: &DeleteRequest,
    at: usize,
    mut retry: Option<&mut dyn Retry>,
) -> Result<Deleted> {
    ctx.flush_own();
    if req.multi {
        return delete_many(ctx, ns, req);
    }
    for _ in 0..ATTEMPTS {
        let Some((coll, lock)) = lock_existing(ctx, ns)? else {
            return Ok(Deleted::default());
        };
        let by_id = planner::id_lookup(req.filter).filter(|_| req.hint.is_none());
        let (key, sure) = match by_id {
            Some(id) if req.sort.is_none() => match records::locate(&ctx.latest(), &coll, id)? {
                // Where it had to be looked up, it may be another one by now.
                Some(key) => (key, !coll.is_numbered()),
                None => return Ok(Deleted::default()),
            },
            _ => {
                let read = ReadRequest {
                    sort: req.sort,
                    hint: req.hint.clone(),
                    limit: Some(1),
                    vars: req.vars.clone(),
                    ..ReadRequest::new(req.filter)
                };
                let (view, _) = ctx.view(ns);
                let mut rows = RecordStream::open(ctx, view, coll.clone(), &read)?;
                if !rows.next(ctx)? {
                    return Ok(Deleted::default());
                }
                (coll.record_key(rows.record_key()), false)
            }
        };
        ctx.tick(1)?;
        let latches = ctx.latch(&[latch_hash(&key)])?;
        let Some((entry, old)) = prepare(ctx, &coll, req, key)? else {
            if sure {
                return Ok(Deleted::default());
            }
            continue;
        };
        let mut entry = entry;
        let out = Deleted {
            n: 1,
            before: req.images.then_some(old),
        };
        if let Some(r) = retry.as_deref_mut() {
            let result = StmtResult {
                at,
                n: 1,
                image: out.before.clone(),
                ..Default::default()
            };
            let (session, effect) = r.record(&[result]);
            entry.session = Some(session);
            entry.effects.push(effect);
        }
        ctx.commit(vec![entry], Held { latches, lock })?;
        return Ok(out);
    }
    bail!(WriteConflict, "the delete conflicted with others too often")
}

/// The entry that deletes the latched record, and the document; `None` when it is gone or no longer matches.
fn prepare(
    ctx: &mut OpCtx,
    coll: &Arc<Collection>,
    req: &DeleteRequest,
    key: Vec<u8>,
) -> Result<Option<(Entry, DocBuf)>> {
    let Some(old) = ctx.latest().get(&key)? else {
        return Ok(None);
    };
    let doc = Doc::new(&old)
        .ok_or_else(|| Error::internal(format!("a record of {} is damaged", coll.ns)))?;
    if !crate::read::test(req.filter, doc, req.vars.as_deref())? {
        return Ok(None);
    }
    let mut effects = Vec::with_capacity(1 + coll.indexes.len());
    records::delete_effects(coll, key, doc, &mut KeySet::default(), &mut effects)?;
    let mut id = Writer::with_capacity(32);
    id.val("_id", records::id_of(doc)?);
    let mut entry = Entry::new(
        coll.ns.clone(),
        coll.uuid,
        Op::Delete {
            record_key: id.finish().into_vec(),
        },
        effects,
    );
    entry.count(coll.tablet, -1, -(doc.len() as i64));
    Ok(Some((
        entry,
        if req.images {
            doc.to_buf()
        } else {
            DocBuf::new()
        },
    )))
}

fn delete_many(ctx: &mut OpCtx, ns: &str, req: &DeleteRequest) -> Result<Deleted> {
    ctx.need_worker()?;
    let mut out = Deleted::default();
    let (view, Some(coll)) = ctx.view(ns) else {
        return Ok(out);
    };
    check_writable(&coll)?;
    let read = ReadRequest {
        hint: req.hint.clone(),
        vars: req.vars.clone(),
        ..ReadRequest::new(req.filter)
    };
    let mut rows = RecordStream::open(ctx, view, coll.clone(), &read)?;
    let unread = rows.tells_keys();
    let mut more = true;
    while more {
        let mut keys = Vec::with_capacity(BATCH);
        while keys.len() < BATCH {
            more = rows.next_key(ctx)?;
            if !more {
                break;
            }
            keys.push(coll.record_key(rows.record_key()));
        }
        if keys.is_empty() {
            break;
        }
        let Some((now, lock)) = lock_existing(ctx, ns)? else {
            break;
        };
        if now.uuid != coll.uuid {
            bail!(
                QueryPlanKilled,
                "collection dropped or replaced while it was deleted from"
            );
        }
        let hashes: Vec<u64> = keys.iter().map(|k| latch_hash(k)).collect();
        let latches = ctx.latch(&hashes)?;
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some((entry, _)) = prepare(ctx, &now, req, key)? {
                entries.push(entry);
            }
        }
        out.n += entries.len() as u64;
        if unread {
            ctx.examined.docs += entries.len() as u64;
        }
        ctx.commit(entries, Held { latches, lock })?;
    }
    Ok(out)
}
