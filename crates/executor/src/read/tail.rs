//! Tailable cursors: read a capped collection from its oldest record on, and continue as it grows.
//!
//! Between batches a cursor holds only the number of the last examined record; each batch continues
//! from there with a new snapshot. When that record has been removed, unseen records may have been
//! removed too: the cursor fails.

use crate::op::OpCtx;
use crate::read::find::{FindRequest, Shape};
use crate::read::index_scan::RecordScan;
use crate::records;
use bson::Writer;
use catalog::numbers::{sequence_key, sequence_of};
use catalog::{Collection, Tail};
use errors::{Error, Result, bail};
use query::expr::Vars;
use query::filter::Filter;
use std::sync::Arc;
use storage::View;

pub struct TailCursor {
    ns: String,
    uuid: [u8; 16],
    tail: Arc<Tail>,
    filter: Filter,
    filter_vars: Option<Arc<Vars>>,
    shape: Shape,
    /// The number of the last examined record; 0 before the first.
    position: u64,
    skip: u64,
    left: Option<u64>,
}

impl TailCursor {
    /// Opens a cursor on a capped collection; `None` when the collection is empty, since there is
    /// no position to continue from.
    pub fn open(
        view: &View,
        coll: &Arc<Collection>,
        req: FindRequest,
    ) -> Result<Option<TailCursor>> {
        let Some(capped) = &coll.capped else {
            bail!(
                BadValue,
                "error processing query: ns={} planner returned error: tailable cursor requested on non capped collection",
                coll.ns
            );
        };
        if !RecordScan::new(coll, &[], &[], false).next(view)? {
            return Ok(None);
        }
        Ok(Some(TailCursor {
            ns: coll.ns.to_string(),
            uuid: coll.uuid,
            tail: capped.tail.clone(),
            filter_vars: req.filter.wants_vars().then(|| req.vars.clone()),
            filter: req.filter,
            position: 0,
            skip: req.skip,
            left: req.limit,
            shape: Shape::new(req.projection, req.vars, req.show_record_id, req.return_key),
        }))
    }

    pub fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    /// Appends new records, within limits as [`crate::FindCursor::fill`].
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<()> {
        if self.left == Some(0) || max_docs == 0 {
            return Ok(());
        }
        let (view, coll) = ctx.view(&self.ns);
        let Some(coll) = coll.filter(|c| c.uuid == self.uuid) else {
            bail!(
                QueryPlanKilled,
                "collection dropped. UUID {}",
                bson::shell::val(bson::Value::binary(4, &self.uuid).as_val())
            );
        };
        if self.position > 0 && !view.exists(&coll.record_key(&sequence_key(self.position)))? {
            bail!(
                CappedPositionLost,
                "CollectionScan died due to failure to restore tailable cursor position. Last seen record id: RecordId({})",
                self.position
            );
        }
        let vars = self.filter_vars.as_ref().map(|v| ctx.interruptible(v));
        let low = sequence_key(self.position.saturating_add(1));
        let mut scan = RecordScan::new(&coll, &low, &[], false);
        let (start, mut n) = (w.len(), 0);
        while n < max_docs && self.left != Some(0) {
            ctx.tick(1)?;
            if !scan.next(&view)? {
                break;
            }
            let key = records::own_part(scan.key());
            let number = sequence_of(key)
                .ok_or_else(|| Error::internal("a record key of a capped collection is damaged"))?;
            let doc = records::stored(&coll, key, scan.value())?;
            if crate::read::step::test(&self.filter, doc, vars.as_deref())? {
                if self.skip > 0 {
                    self.skip -= 1;
                } else {
                    let shaped = self.shape.apply(&self.filter, doc, &coll, None, key)?;
                    let bytes = w.len() - start;
                    if (n > 0 && bytes + shaped.len() + 16 > max_bytes)
                        || !ctx.may_grow(bytes, shaped.len())?
                    {
                        return Ok(());
                    }
                    w.push(shaped.as_val());
                    n += 1;
                    if let Some(left) = &mut self.left {
                        *left -= 1;
                    }
                }
            }
            self.position = number;
        }
        Ok(())
    }
}
