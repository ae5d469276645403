//! The outcomes of retryable writes on their way to another shard, with the documents that they were
//! about.
//!
//! Invariant: what a session has done here stays known. A record that comes in adds to it, and only
//! where it is of the newest transaction number or a newer one.

use super::{PAGE, SessionTable, State, key, page, prefix, record_of};
use crate::transaction::Phase;
use bson::{Doc, Writer};
use catalog::keyspace;
use errors::{Result, err};
use executor::OpCtx;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use storage::{Direction, Effect, Entry, Store};

/// Records of one hand-over, in bytes.
const MOST_BYTES: usize = 4 << 20;

impl SessionTable {
    /// Appends records to the open array of `w`, from behind `after` on, each as `{k, v}`. The key
    /// of the last, if there are more.
    pub fn hand_over(
        &self,
        store: &Store,
        after: Option<&[u8]>,
        w: &mut Writer,
    ) -> Result<Option<Vec<u8>>> {
        let prefix = prefix();
        let low = match after {
            Some(after) => [keyspace::join(&prefix, after).as_slice(), &[0]].concat(),
            None => prefix.to_vec(),
        };
        let view = store.view();
        let mut scan = view.scan(&low, &keyspace::prefix_end(&prefix), Direction::Forward);
        let start = w.len();
        while scan.next()? {
            let Some(name) = scan.key().get(prefix.len()..) else {
                continue;
            };
            let Some(record) = Doc::new(scan.value()) else {
                continue;
            };
            let mut one = Writer::new();
            one.binary("k", 0, name).doc("v", record);
            w.push(one.finish().as_doc().as_val());
            if w.len() - start > MOST_BYTES {
                return Ok(Some(name.to_vec()));
            }
        }
        Ok(None)
    }

    /// Takes records over that [`SessionTable::hand_over`] gave elsewhere.
    pub fn take_over(&self, ctx: &OpCtx, store: &Store, records: Doc<'_>) -> Result<()> {
        let mut sessions: BTreeMap<[u8; 16], BTreeMap<u32, Vec<u8>>> = BTreeMap::new();
        for d in records.values().filter_map(|v| v.as_doc()) {
            let parts = (|| {
                let name = d.get("k")?.as_binary()?.1;
                let whole = keyspace::join(&prefix(), name);
                let number = match name.get(16..)? {
                    [] => 0,
                    page => u32::from_be_bytes(page.try_into().ok()?),
                };
                Some((record_of(&whole)?, number, d.get("v")?.as_doc()?))
            })();
            let (record, number, v) =
                parts.ok_or_else(|| err!(FailedToParse, "{d} is no record of a session"))?;
            let pages = sessions.entry(record).or_default();
            pages.insert(number, v.as_bytes().to_vec());
        }
        for (record, pages) in sessions {
            let mut incoming = State::default();
            incoming.load(&record, |page| Ok(pages.get(&page).cloned()))?;
            self.merge(ctx, store, record, incoming)?;
        }
        Ok(())
    }

    fn merge(&self, ctx: &OpCtx, store: &Store, record: [u8; 16], incoming: State) -> Result<()> {
        let state = self.sessions.lock().entry(record).or_default().clone();
        let mut state = Mutex::lock_arc(&state);
        let epoch = state.refresh(ctx, &record)?;
        let older = incoming.txn < state.txn;
        if older || !matches!(incoming.phase, Phase::None) || state.has_open() {
            return Ok(());
        }
        if incoming.txn > state.txn {
            state.clear(incoming.txn);
        }
        let known = state.done.len();
        let mut added = false;
        for (first, done) in incoming.done {
            if state.executed(first).is_none() {
                state.done.insert(first, done);
                added = true;
            }
        }
        if !added {
            return Ok(());
        }
        assert!(
            state.txn == incoming.txn && state.done.len() > known,
            "what a session has done stays known"
        );
        let now = ctx.engine.now_millis();
        let all: Vec<_> = state.done.values().cloned().collect();
        let mut effects = Vec::new();
        let mut last = (0, Vec::new());
        for (number, part) in (0u32..).zip(all.chunks(PAGE)) {
            let bytes = page(state.txn, now, part.iter());
            effects.push(Effect::Put(key(&record, number), bytes));
            last = (number, part.iter().map(|d| d.first).collect());
        }
        (state.page, state.on_page) = last;
        state.used = now;
        store.propose_in(epoch, vec![Entry::noop(effects)])?;
        Ok(())
    }
}
