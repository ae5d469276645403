//! Applying entries of a log to an engine without other writers: at the start, and for a restore.
//!
//! Invariant: entries come in their order, so the engine's state is always a prefix of the log, and says which.

use crate::batch::Batch;
use crate::counts::{Counts, Touched};
use crate::engine::Engine;
use crate::{Committed, Entry};
use errors::{Fallible, err};
use oplog::Record;

/// Entries are applied in batches of about this size.
const BATCH_BYTES: usize = 1 << 20;

pub(crate) struct Replay<'e> {
    engine: &'e Engine,
    counts: &'e Counts,
    batch: Batch,
    touched: Touched,
    last: Committed,
    /// There are entries in the batch.
    staged: bool,
}

impl<'e> Replay<'e> {
    pub fn new(engine: &'e Engine, counts: &'e Counts) -> Replay<'e> {
        Replay {
            engine,
            counts,
            batch: Batch::new(engine),
            touched: Touched::default(),
            last: Committed::default(),
            staged: false,
        }
    }

    pub fn entry(&mut self, record: &Record<'_>) -> Fallible<Entry> {
        let entry = Entry::decode(record.payload).ok_or_else(|| {
            // Its checksum was right: it was written by something else than this code.
            err!(
                UnsupportedFormat,
                "entry {} of the log has a form that this version does not know",
                record.index
            )
        })?;
        for plain in entry.plain() {
            self.batch.push_all(&plain.effects);
            if let Some(delta) = &plain.count {
                self.counts.touch(&mut self.touched, delta);
            }
        }
        self.last = Committed {
            index: record.index,
            ts: record.ts,
        };
        self.staged = true;
        if self.batch.len() > BATCH_BYTES {
            self.apply()?;
        }
        Ok(entry)
    }

    /// Applies the remaining entries.
    pub fn finish(mut self) -> Fallible<()> {
        match self.staged {
            true => self.apply(),
            false => Ok(()),
        }
    }

    fn apply(&mut self) -> Fallible<()> {
        self.touched.stage(&mut self.batch, self.last);
        self.batch.set_applied(self.last);
        self.engine.write(&self.batch)?;
        self.counts.publish(&self.touched);
        self.touched.clear();
        self.batch.clear(usize::MAX);
        self.staged = false;
        Ok(())
    }
}
