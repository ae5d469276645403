//! `local.oplog.rs`: the log as a read-only capped collection.
//!
//! Nothing is stored for it. Its documents are made from the log's entries when they are read, and
//! bounds on `ts` say where reading begins. It ends at the durable index, as change streams do.
//!
//! Invariant: between batches a cursor holds its position, and nothing of the log.

use super::log_tail::{LogFollower, LogTail, Wake};
use crate::op::OpCtx;
use crate::read::find::FindRequest;
use crate::read::step::built;
use bson::{Doc, DocBuf, Val, Writer, tag};
use changes::{EntryStamp, oplog_entry};
use errors::{Error, Result, bail, err};
use query::expr::Vars;
use query::filter::Filter;
use query::projection::Projection;
use std::sync::Arc;
use storage::{Entry, LogMark, LogReader, Record};

pub const OPLOG: &str = "local.oplog.rs";
/// The term when there is no replica set.
const TERM: i64 = 1;
/// No entry has more timestamps before its own.
const MOST_RESERVED: u64 = 64;
/// The number of entries that a backward scan reads at once: the first time, and at most.
const BACK: u64 = 16;
const MOST_BACK: u64 = 1 << 14;

enum Position {
    Forward(LogMark),
    /// Backward from an index, in runs of so many entries.
    Backward {
        below: u64,
        run: u64,
    },
}

pub struct OplogCursor {
    tail: Arc<LogTail>,
    filter: Filter,
    projection: Option<Projection>,
    vars: Arc<Vars>,
    position: Position,
    /// So many documents of the entry at the position were given, or passed over.
    within: usize,
    bounds: TimestampBounds,
    skip: u64,
    left: Option<u64>,
    /// The follower of a tailable, awaiting cursor.
    follower: Option<LogFollower>,
    tailable: bool,
    caught_up: bool,
}

/// Timestamps from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampBounds {
    pub low: u64,
    pub high: u64,
}

impl TimestampBounds {
    /// The bounds on `ts` from the top level of a filter.
    pub fn of(filter: Doc<'_>) -> TimestampBounds {
        let mut bounds = TimestampBounds {
            low: 0,
            high: u64::MAX,
        };
        bounds.narrow(filter);
        bounds
    }

    fn narrow(&mut self, filter: Doc<'_>) {
        for e in filter.iter() {
            match e.name {
                "ts" if e.val.tag == tag::TIMESTAMP => self.by("$eq", e.val),
                "ts" => {
                    let operators = e.val.as_doc().unwrap_or(Doc::EMPTY);
                    operators.iter().for_each(|o| self.by(o.name, o.val));
                }
                "$and" => {
                    let parts = e.val.as_array().unwrap_or(Doc::EMPTY).values();
                    parts
                        .filter_map(|v| v.as_doc())
                        .for_each(|d| self.narrow(d));
                }
                _ => {}
            }
        }
    }

    fn by(&mut self, operator: &str, v: Val<'_>) {
        let Some(ts) = v.as_timestamp().filter(|_| v.tag == tag::TIMESTAMP) else {
            return;
        };
        let (low, high) = match operator {
            "$eq" => (ts, ts),
            "$gte" => (ts, u64::MAX),
            "$gt" => (ts.saturating_add(1), u64::MAX),
            "$lte" => (0, ts),
            "$lt" => (0, ts.saturating_sub(1)),
            _ => return,
        };
        self.low = self.low.max(low);
        self.high = self.high.min(high);
    }
}

/// The documents of a log record.
fn documents(record: &Record<'_>) -> Result<Vec<DocBuf>> {
    let entry = Entry::decode(record.payload)
        .ok_or_else(|| Error::internal(format!("entry {} of the log is damaged", record.index)))?;
    let stamp = EntryStamp {
        ts: record.ts,
        term: record.term,
        wall_millis: record.wall_millis,
    };
    Ok(oplog_entry::documents(&stamp, &entry, TERM))
}

impl OplogCursor {
    /// `given`: the filter as the client wrote it. `backward`: newest first.
    pub fn open(
        tail: &Arc<LogTail>,
        given: Doc<'_>,
        req: FindRequest<'_>,
        backward: bool,
        tailable: bool,
        awaits: bool,
    ) -> Result<OplogCursor> {
        let bounds = TimestampBounds::of(given);
        let store = tail.store();
        let follower = awaits.then(|| tail.follow(""));
        let position = if backward {
            let below = match bounds.high.checked_add(1) {
                // The entry there may be a transaction whose first documents are before.
                Some(end) => store.seek_log(end)?.mark().index + 1,
                None => u64::MAX,
            };
            Position::Backward {
                below: below.min(store.durable_index() + 1),
                run: BACK,
            }
        } else {
            Position::Forward(store.seek_log(bounds.low)?.mark())
        };
        Ok(OplogCursor {
            tail: tail.clone(),
            filter: req.filter,
            projection: req.projection,
            vars: req.vars,
            position,
            within: 0,
            bounds,
            skip: req.skip,
            left: req.limit,
            follower,
            tailable,
            caught_up: false,
        })
    }

    /// Whether a tailable cursor that waits has nothing to read; `None` for one that does not wait.
    pub fn is_quiet(&self) -> Option<bool> {
        let follower = self.follower.as_ref()?;
        Some(self.caught_up && !follower.has_news())
    }

    /// Has `wake` called when it is quiet no longer; to be called before that is asked.
    pub fn on_news(&self, wake: Wake) {
        if let Some(follower) = &self.follower {
            follower.on_news(wake);
        }
    }

    /// Appends documents, within limits as [`crate::FindCursor::fill`]; true: there are no more.
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        if let Some(follower) = &self.follower {
            follower.take_news();
        }
        let mut batch = Batch {
            start: w.len(),
            left: max_docs,
            max_bytes,
            empty: true,
        };
        match self.position {
            Position::Forward(mark) => self.forward(ctx, w, &mut batch, mark),
            Position::Backward { .. } => self.backward(ctx, w, &mut batch),
        }
    }

    fn forward(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        batch: &mut Batch,
        mark: LogMark,
    ) -> Result<bool> {
        let store = self.tail.store().clone();
        let durable = store.durable_index();
        if mark.index < store.first_log_index() {
            bail!(
                CappedPositionLost,
                "CollectionScan died due to failure to restore tailable cursor position. Last seen record id: RecordId({})",
                mark.index
            );
        }
        self.caught_up = false;
        let mut reader: LogReader = store.read_log_at(mark)?;
        loop {
            let mark = reader.mark();
            self.position = Position::Forward(mark);
            if self.left == Some(0) {
                return Ok(true);
            }
            if mark.index > durable {
                self.caught_up = true;
                return Ok(!self.tailable);
            }
            ctx.check()?;
            let Some(record) = reader.next()? else {
                return Ok(!self.tailable);
            };
            // The first documents of a transaction are before its timestamp.
            let beyond = record.ts.saturating_sub(self.bounds.high);
            if beyond > MOST_RESERVED {
                return Ok(!self.tailable);
            }
            if !self.give_all(ctx, w, batch, &documents(&record)?)? {
                return Ok(false);
            }
            if beyond > 0 {
                return Ok(!self.tailable);
            }
        }
    }

    fn backward(&mut self, ctx: &mut OpCtx, w: &mut Writer, batch: &mut Batch) -> Result<bool> {
        let store = self.tail.store().clone();
        loop {
            let Position::Backward { below, run } = self.position else {
                return Ok(true);
            };
            let first = store.first_log_index();
            if below <= first || self.left == Some(0) {
                return Ok(true);
            }
            let from = below.saturating_sub(run).max(first);
            let mut reader = store.read_log(from)?;
            let mut marks = Vec::new();
            while reader.mark().index < below {
                ctx.check()?;
                marks.push(reader.mark());
                if reader.next()?.is_none() {
                    break;
                }
            }
            for mark in marks.into_iter().rev() {
                ctx.check()?;
                let mut reader = store.read_log_at(mark)?;
                let record = reader.next()?;
                let record = record.ok_or_else(|| err!(CappedPositionLost, "the log was cut"))?;
                if record.ts < self.bounds.low || self.left == Some(0) {
                    return Ok(true);
                }
                let mut documents = documents(&record)?;
                documents.reverse();
                if !self.give_all(ctx, w, batch, &documents)? {
                    return Ok(false);
                }
                self.position = Position::Backward {
                    below: mark.index,
                    run: (run * 4).min(MOST_BACK),
                };
            }
        }
    }

    /// Appends the documents of the entry at the position; false when one has to wait for the next batch.
    fn give_all(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        batch: &mut Batch,
        documents: &[DocBuf],
    ) -> Result<bool> {
        for doc in documents.get(self.within..).unwrap_or(&[]) {
            if self.left == Some(0) {
                break;
            }
            if !self.give(ctx, w, batch, doc)? {
                return Ok(false);
            }
            self.within += 1;
        }
        self.within = 0;
        Ok(true)
    }

    /// Appends a document if it matches; false when it has to wait for the next batch.
    fn give(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        batch: &mut Batch,
        doc: &DocBuf,
    ) -> Result<bool> {
        let doc = doc.as_doc();
        let vars = ctx.interruptible(&self.vars);
        if !self.filter.matches_with(doc, &vars)? {
            return Ok(true);
        }
        if batch.left == 0 {
            return Ok(false);
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(true);
        }
        let mut projected = Vec::new();
        let shaped = match &self.projection {
            None => doc,
            Some(p) => {
                p.apply(doc, None, &vars, &mut projected)?;
                built(&projected)
            }
        };
        if !batch.empty && w.len() - batch.start + shaped.len() + 16 > batch.max_bytes {
            return Ok(false);
        }
        w.push(shaped.as_val());
        batch.empty = false;
        batch.left -= 1;
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Ok(true)
    }
}

struct Batch {
    start: usize,
    left: u64,
    max_bytes: usize,
    empty: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_come_from_the_top_of_a_filter() {
        let at = |n: u32| format!(r#"{{"$timestamp":{{"t":{n},"i":0}}}}"#);
        let of = |text: String| {
            let bounds = TimestampBounds::of(bson::json::parse(&text).unwrap().as_doc());
            (bounds.low, bounds.high)
        };
        let (five, nine) = (5 << 32, 9 << 32);
        assert_eq!(of("{}".into()), (0, u64::MAX));
        assert_eq!(of(format!(r#"{{"ts":{}}}"#, at(5))), (five, five));
        assert_eq!(
            of(format!(r#"{{"ts":{{"$gt":{},"$lt":{}}}}}"#, at(5), at(9))),
            (five + 1, nine - 1)
        );
        assert_eq!(
            of(format!(
                r#"{{"$and":[{{"ts":{{"$gte":{}}}}},{{"ts":{{"$lte":{}}}}}]}}"#,
                at(5),
                at(9)
            )),
            (five, nine)
        );
        assert_eq!(of(r#"{"ts":{"$gt":5}}"#.into()), (0, u64::MAX));
    }
}
