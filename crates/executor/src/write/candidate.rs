//! Candidates of a statement: keys of records that matched in a snapshot. The write decides again,
//! on the newest version, with the record latched.

use crate::op::OpCtx;
use crate::read::RecordStream;
use crate::read::request::ReadRequest;
use crate::records;
use crate::write::locked::{LockedCollection, check_writable};
use crate::write::record_write::{Decision, RecordWrite};
use bson::Doc;
use catalog::Collection;
use errors::{Result, bail};
use std::sync::Arc;

/// The number of records that a multi-document statement commits together.
const BATCH: usize = 128;

/// The key of one record that may match.
pub(crate) struct Candidate {
    /// The store's key of the record.
    pub key: Vec<u8>,
    /// No other record can match: when this one does not match, none does.
    pub only: bool,
}

impl Candidate {
    /// The first matching record in the requested order; `None` when there is none.
    pub fn first(
        ctx: &mut OpCtx,
        coll: &Arc<Collection>,
        read: &ReadRequest,
    ) -> Result<Option<Candidate>> {
        // By `_id`: only the newest version has to be read, with the latch held.
        if read.sort.is_none()
            && read.hint.is_none()
            && let Some(id) = planner::id_lookup(read.filter)
        {
            ctx.tick(1)?;
            // When the key was looked up by `_id`, another record may have that `_id` by the time
            // it is latched.
            let only = !coll.is_numbered();
            let key = records::locate(&ctx.latest(), coll, id)?;
            return Ok(key.map(|key| Candidate { key, only }));
        }
        let (view, _) = ctx.view(&coll.ns);
        let mut rows = RecordStream::open(ctx, view, coll.clone(), read)?;
        if !rows.next(ctx)? {
            return Ok(None);
        }
        let key = coll.record_key(rows.record_key());
        Ok(Some(Candidate { key, only: false }))
    }
}

/// The keys of all records that match in one snapshot, in batches.
pub(crate) struct CandidateBatches {
    coll: Arc<Collection>,
    rows: RecordStream,
    /// The keys of the last batch come from an index alone, so the write is the first to read the
    /// documents. What a race of plans has kept was read before.
    pub unread: bool,
    more: bool,
}

impl CandidateBatches {
    /// `None`: there is no collection.
    pub fn open(ctx: &mut OpCtx, ns: &str, read: &ReadRequest) -> Result<Option<CandidateBatches>> {
        let (view, Some(coll)) = ctx.view(ns) else {
            return Ok(None);
        };
        check_writable(&coll)?;
        let rows = RecordStream::open(ctx, view, coll.clone(), read)?;
        Ok(Some(CandidateBatches {
            unread: false,
            coll,
            rows,
            more: true,
        }))
    }

    /// The next keys; none at the end.
    pub fn next(&mut self, ctx: &mut OpCtx) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::with_capacity(BATCH);
        while self.more && keys.len() < BATCH {
            let unread = self.rows.tells_keys();
            if !keys.is_empty() && unread != self.unread {
                break;
            }
            self.unread = unread;
            self.more = self.rows.next_key(ctx)?;
            if self.more {
                keys.push(self.coll.record_key(self.rows.record_key()));
            }
        }
        Ok(keys)
    }

    /// Whether the collection has a unique index, in which two records of a batch may collide.
    pub fn has_unique(&self) -> bool {
        self.coll.indexes.iter().any(|i| i.info.unique)
    }

    /// Changes the records of a batch as `decide` says; returns how many matched and how many
    /// changed. `what` names the operation in the error when the collection was replaced.
    ///
    /// Not atomic as a whole: changes before an error stay, as in MongoDB.
    pub fn change<'u>(
        &self,
        ctx: &mut OpCtx,
        mut keys: &[Vec<u8>],
        what: &str,
        mut decide: impl FnMut(&OpCtx, &Collection, Doc<'_>) -> Result<Decision<'u>>,
    ) -> Result<(u64, u64)> {
        let (mut matched, mut changed) = (0, 0);
        while !keys.is_empty() {
            let Some(mut write) = self.write(ctx, keys, what)? else {
                break;
            };
            match write.change_each(ctx, keys, &mut decide) {
                Ok(None) => write.let_go(),
                Ok(Some(staged)) => {
                    write.commit_unrecorded(ctx)?;
                    matched += staged.matched;
                    changed += staged.changed;
                    keys = keys.split_at(staged.read).1;
                }
                Err(e) => {
                    write.commit_unrecorded(ctx)?;
                    return Err(e);
                }
            }
        }
        Ok((matched, changed))
    }

    /// A write of these records. `None`: the collection is gone.
    fn write(&self, ctx: &mut OpCtx, keys: &[Vec<u8>], what: &str) -> Result<Option<RecordWrite>> {
        let Some(target) = LockedCollection::existing(ctx, &self.coll.ns)? else {
            return Ok(None);
        };
        if target.coll.uuid != self.coll.uuid {
            bail!(
                QueryPlanKilled,
                "collection dropped or replaced while it was {what}"
            );
        }
        RecordWrite::of_records(ctx, target, keys).map(Some)
    }
}
