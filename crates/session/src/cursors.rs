//! Open cursors: found by id, used by one request at a time, killed, timed out.
//!
//! Invariant: a cursor in use is not in the table, only its place is. Killing it sets a flag, which its
//! user sees at the next step and when returning it. A getMore that waits for news leaves its cursor in
//! the table: a kill has the getMore run again.
//!
//! The end of a session or of a transaction costs what it has of cursors, however many others there are.

use crate::Lsid;
use bson::{DocBuf, Writer};
use catalog::Tail;
use errors::{Result, bail, err};
use executor::{
    ChangeStream, FindCursor, OpCtx, OplogCursor, PinnedSnapshot, PipelineCursor, Share,
    TailCursor, Wake,
};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What an open cursor of a simple find, of a pipeline and of a stream of changes takes besides what it has of its command.
const FIND_BYTES: usize = 1 << 10;
const PIPELINE_BYTES: usize = 8 << 10;
const STREAM_BYTES: usize = 16 << 10;

/// The source of a cursor's batches.
pub trait Results: Send {
    /// Appends documents to the open array of `w`: at most `max_docs`, no more than fit into
    /// `max_bytes` (but always one). `true`: there are no more.
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool>;

    /// Whether a first `fill` that failed because it needed disk reads, or more time on an event
    /// loop, may be called again and then gives the same results: it has given none yet, and knows
    /// its position.
    fn can_go_on(&self) -> bool {
        false
    }

    /// From here on reads may go to the disk: the cursor continues on a worker.
    fn read_anywhere(&mut self) {}

    /// Between batches: releases what can be read again, or is long. Fails when there is no place
    /// to save it: then the cursor is unusable.
    fn release(&mut self, ctx: &mut OpCtx) -> Result<()>;

    /// About what it holds in memory besides its documents, in bytes.
    fn own_bytes(&self) -> usize {
        FIND_BYTES
    }

    /// For a cursor that waits for the log to grow: whether it has no news yet. A cheap check.
    fn is_quiet(&self) -> Option<bool> {
        None
    }

    /// Of such a cursor: has `wake` called, once, when there is something; to be called before
    /// [`Results::is_quiet`].
    fn on_news(&self, _wake: Wake) {}

    /// Of a change stream: `postBatchResumeToken`.
    fn resume_token(&self) -> Option<DocBuf> {
        None
    }
}

impl Results for OplogCursor {
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        OplogCursor::fill(self, ctx, w, max_docs, max_bytes)
    }

    /// It keeps nothing that could be had again.
    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        Ok(())
    }

    fn is_quiet(&self) -> Option<bool> {
        OplogCursor::is_quiet(self)
    }

    fn on_news(&self, wake: Wake) {
        OplogCursor::on_news(self, wake);
    }
}

impl Results for ChangeStream {
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        ChangeStream::fill(self, ctx, w, max_docs, max_bytes)
    }

    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        ChangeStream::release(self);
        Ok(())
    }

    fn own_bytes(&self) -> usize {
        STREAM_BYTES
    }

    fn is_quiet(&self) -> Option<bool> {
        Some(ChangeStream::is_quiet(self))
    }

    fn on_news(&self, wake: Wake) {
        ChangeStream::on_news(self, wake);
    }

    fn resume_token(&self) -> Option<DocBuf> {
        Some(self.token())
    }
}

impl Results for FindCursor {
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        FindCursor::fill(self, ctx, w, max_docs, max_bytes)
    }

    fn can_go_on(&self) -> bool {
        FindCursor::can_go_on(self)
    }

    fn read_anywhere(&mut self) {
        FindCursor::read_anywhere(self);
    }

    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        FindCursor::release(self);
        Ok(())
    }
}

impl Results for PipelineCursor {
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        PipelineCursor::fill(self, ctx, w, max_docs, max_bytes)
    }

    fn release(&mut self, ctx: &mut OpCtx) -> Result<()> {
        PipelineCursor::release(self, ctx)
    }

    fn own_bytes(&self) -> usize {
        PIPELINE_BYTES
    }
}

impl Results for TailCursor {
    /// There may always be more.
    fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        TailCursor::fill(self, ctx, w, max_docs, max_bytes).map(|()| false)
    }

    /// It keeps nothing that could be had again.
    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        Ok(())
    }
}

pub struct Cursor {
    pub id: i64,
    /// `db.collection`, as replies name it.
    pub ns: String,
    pub results: Box<dyn Results>,
    pub lsid: Option<Lsid>,
    /// The user that created it, if users are checked.
    pub owner: Option<String>,
    /// The multi-document transaction that it belongs to.
    pub txn_number: Option<i64>,
    pub no_timeout: bool,
    /// The command that made it, for currentOp.
    pub command: bson::DocBuf,
    /// The collection that must still be there, when there is one.
    pub uuid: Option<[u8; 16]>,
    /// `maxTimeMS` that is left for getMores without their own; `None` is no limit.
    pub time_left: Option<Duration>,
    /// What it reads, when that is not the newest state of its opening.
    pub snapshot: Option<Arc<PinnedSnapshot>>,
    /// Of an awaitData cursor: what a getMore that finds nothing waits for.
    pub awaits: Option<Arc<Tail>>,
    /// Until when the getMore that has to wait waits.
    pub await_until: Option<Instant>,
    pub killed: Arc<AtomicBool>,
    /// For itself, its command, and that command's parsed form.
    pub share: Share,
    created: Instant,
    used: Instant,
}

/// An idle cursor, for currentOp.
pub struct IdleCursor {
    pub id: i64,
    pub ns: String,
    pub lsid: Option<Lsid>,
    pub no_timeout: bool,
    pub command: bson::DocBuf,
    pub created: Instant,
    pub used: Instant,
}

impl Cursor {
    pub fn new(ns: &str, results: Box<dyn Results>) -> Cursor {
        Cursor {
            id: 0,
            ns: ns.to_string(),
            results,
            lsid: None,
            owner: None,
            txn_number: None,
            no_timeout: false,
            command: Default::default(),
            uuid: None,
            time_left: None,
            snapshot: None,
            awaits: None,
            await_until: None,
            killed: Arc::default(),
            share: Share::default(),
            created: Instant::now(),
            used: Instant::now(),
        }
    }

    fn session(&self) -> Option<(Lsid, Option<i64>)> {
        Some((self.lsid?, self.txn_number))
    }
}

enum Slot {
    Idle(Box<Cursor>),
    InUse {
        session: Option<(Lsid, Option<i64>)>,
        owner: Option<String>,
        killed: Arc<AtomicBool>,
        no_timeout: bool,
    },
}

impl Slot {
    /// Its session, and the transaction there.
    fn session(&self) -> Option<(Lsid, Option<i64>)> {
        match self {
            Slot::Idle(c) => c.session(),
            Slot::InUse { session, .. } => *session,
        }
    }

    /// It, while no request uses it.
    fn idle(&self) -> Option<&Cursor> {
        match self {
            Slot::Idle(c) => Some(c),
            Slot::InUse { .. } => None,
        }
    }
}

/// The cursors by their numbers.
///
/// Invariant: `of_sessions` has exactly those that have a session.
#[derive(Default)]
struct Slots {
    by_id: HashMap<i64, Slot>,
    of_sessions: BTreeSet<(Lsid, Option<i64>, i64)>,
}

impl Slots {
    fn add(&mut self, id: i64, cursor: Box<Cursor>) {
        let session = cursor.session();
        let before = self.by_id.insert(id, Slot::Idle(cursor));
        assert!(before.is_none(), "a new cursor has a number of its own");
        if let Some((lsid, txn_number)) = session {
            self.of_sessions.insert((lsid, txn_number, id));
        }
    }

    fn remove(&mut self, id: i64) -> Option<Slot> {
        let slot = self.by_id.remove(&id)?;
        if let Some((lsid, txn_number)) = slot.session() {
            let was = self.of_sessions.remove(&(lsid, txn_number, id));
            assert!(was, "the cursors of sessions are known");
        }
        Some(slot)
    }

    fn of_session(&self, lsid: Lsid) -> Vec<i64> {
        let last = (lsid, Some(i64::MAX), i64::MAX);
        let theirs = self.of_sessions.range((lsid, None, i64::MIN)..=last);
        theirs.map(|(_, _, id)| *id).collect()
    }

    fn of_transaction(&self, lsid: Lsid, number: i64) -> Vec<i64> {
        let theirs = (lsid, Some(number), i64::MIN)..=(lsid, Some(number), i64::MAX);
        self.of_sessions
            .range(theirs)
            .map(|(_, _, id)| *id)
            .collect()
    }
}

/// The figures for serverStatus.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorFigures {
    pub open: u64,
    pub pinned: u64,
    pub no_timeout: u64,
    pub timed_out: u64,
    pub opened: u64,
}

impl CursorFigures {
    fn and(self, other: CursorFigures) -> CursorFigures {
        CursorFigures {
            open: self.open + other.open,
            pinned: self.pinned + other.pinned,
            no_timeout: self.no_timeout + other.no_timeout,
            timed_out: self.timed_out + other.timed_out,
            opened: self.opened + other.opened,
        }
    }
}

/// Cursors of this process that have a table of their own: a router's, which go over its shards.
pub trait OtherCursors: Send + Sync {
    /// Ends all of a session.
    fn kill_session(&self, lsid: Lsid);
    /// Ends those that were idle for longer than `idle`.
    fn reap(&self, idle: Duration);
    fn figures(&self) -> CursorFigures;
}

#[derive(Default)]
pub struct Cursors {
    slots: Mutex<Slots>,
    others: OnceLock<Arc<dyn OtherCursors>>,
    timed_out: AtomicU64,
    opened: AtomicU64,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Cursors {
    /// What to call when a cursor was killed on which a request may be waiting. To be said once.
    pub fn on_kill_of_waiting(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
    }

    /// Has `others` end with their sessions and time, and be counted. To be said once.
    pub fn join(&self, others: Arc<dyn OtherCursors>) {
        let _ = self.others.set(others);
    }

    /// To be called without the table's lock.
    fn tell_waiting(&self, waited: bool) {
        if let Some(wake) = self.wake.get().filter(|_| waited) {
            wake();
        }
    }

    /// Registers a cursor and gives it an id.
    pub fn insert(&self, mut cursor: Cursor) -> i64 {
        let mut slots = self.slots.lock();
        let id = loop {
            let id = rand::random::<i64>() & i64::MAX;
            if id != 0 && !slots.by_id.contains_key(&id) {
                break id;
            }
        };
        cursor.id = id;
        cursor.used = Instant::now();
        slots.add(id, Box::new(cursor));
        self.opened.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Takes a cursor for one request, which must return it or drop it with [`Cursors::remove`].
    pub fn take(
        &self,
        id: i64,
        ns: &str,
        lsid: Option<Lsid>,
        txn_number: Option<i64>,
    ) -> Result<Box<Cursor>> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.by_id.get_mut(&id) else {
            bail!(CursorNotFound, "cursor id {id} not found")
        };
        let Slot::Idle(c) = slot else {
            bail!(CursorInUse, "cursor id {id} is already in use")
        };
        if c.ns != ns {
            bail!(
                Unauthorized,
                "Requested getMore on namespace '{ns}', but cursor belongs to a different namespace {}",
                c.ns
            );
        }
        match (c.lsid, lsid) {
            (None, Some(_)) => bail!(
                50738,
                "Cannot run getMore on cursor {id}, which was not created in a session, in session"
            ),
            (Some(_), None) => {
                bail!(
                    50737,
                    "Cannot run getMore on cursor {id}, which was created in a session, without an lsid"
                )
            }
            (a, b) if a != b => {
                bail!(
                    50738,
                    "Cannot run getMore on cursor {id}, which was created in another session"
                )
            }
            _ => {}
        }
        match (c.txn_number, txn_number) {
            (None, Some(n)) => bail!(
                50739,
                "Cannot run getMore on cursor {id}, which was not created in a transaction, in transaction {n}"
            ),
            (Some(n), None) => bail!(
                50740,
                "Cannot run getMore on cursor {id}, which was created in transaction {n}, without a txnNumber"
            ),
            (Some(a), Some(b)) if a != b => bail!(
                50741,
                "Cannot run getMore on cursor {id}, which was created in transaction {a}, in transaction {b}"
            ),
            _ => {}
        }
        let placeholder = Slot::InUse {
            session: c.session(),
            owner: c.owner.clone(),
            killed: c.killed.clone(),
            no_timeout: c.no_timeout,
        };
        match std::mem::replace(slot, placeholder) {
            Slot::Idle(c) => Ok(c),
            Slot::InUse { .. } => Err(err!(CursorInUse, "cursor id {id} is already in use").into()),
        }
    }

    /// The owner of a cursor; `None` if there is none of that id.
    pub fn owner(&self, id: i64) -> Option<Option<String>> {
        match self.slots.lock().by_id.get(&id)? {
            Slot::Idle(c) => Some(c.owner.clone()),
            Slot::InUse { owner, .. } => Some(owner.clone()),
        }
    }

    /// Returns a cursor; one that was killed meanwhile is dropped.
    pub fn give_back(&self, mut cursor: Box<Cursor>) {
        cursor.used = Instant::now();
        let mut slots = self.slots.lock();
        let place = slots.by_id.get_mut(&cursor.id);
        let place = place.filter(|p| matches!(p, Slot::InUse { .. }));
        let place = place.expect("a cursor in use has its place in the table");
        assert!(
            place.session() == cursor.session(),
            "a cursor's session stays the same"
        );
        if cursor.killed.load(Ordering::Relaxed) {
            slots.remove(cursor.id);
        } else {
            *place = Slot::Idle(cursor);
        }
    }

    /// Removes an exhausted cursor.
    pub fn remove(&self, id: i64) {
        self.slots.lock().remove(id);
    }

    /// Kills a cursor: `false` when there is none.
    pub fn kill(&self, id: i64) -> bool {
        let waited = self.end(id);
        self.tell_waiting(waited == Some(true));
        waited.is_some()
    }

    /// Ends the cursor of a client that is gone: no request waits on it any more.
    pub fn abandon(&self, id: i64) {
        self.end(id);
    }

    /// Ends a cursor; whether a request may be waiting on it, `None` where there is none.
    fn end(&self, id: i64) -> Option<bool> {
        let mut slots = self.slots.lock();
        let slot = slots.by_id.get(&id)?;
        if let Slot::InUse { killed, .. } = slot {
            killed.store(true, Ordering::Relaxed);
            return Some(true);
        }
        let gone = slots.remove(id);
        drop(slots);
        Some(matches!(gone, Some(Slot::Idle(c)) if c.await_until.is_some()))
    }

    /// Kills those cursors that `which` finds in the table; how many.
    fn kill_those(&self, which: impl FnOnce(&Slots) -> Vec<i64>) -> u64 {
        let mut waited = false;
        // They are dropped without the lock.
        let mut gone = Vec::new();
        let mut slots = self.slots.lock();
        let ids = which(&slots);
        for id in &ids {
            if let Some(Slot::InUse { killed, .. }) = slots.by_id.get(id) {
                killed.store(true, Ordering::Relaxed);
                waited = true;
            } else if let Some(Slot::Idle(c)) = slots.remove(*id) {
                waited |= c.await_until.is_some();
                gone.push(c);
            }
        }
        drop(slots);
        self.tell_waiting(waited);
        ids.len() as u64
    }

    /// Kills all cursors of a session.
    pub fn kill_session(&self, lsid: Lsid) {
        self.kill_those(|slots| slots.of_session(lsid));
        if let Some(others) = self.others.get() {
            others.kill_session(lsid);
        }
    }

    /// Kills the cursors of a transaction, which has ended; how many.
    pub fn kill_transaction(&self, lsid: Lsid, number: i64) -> u64 {
        self.kill_those(|slots| slots.of_transaction(lsid, number))
    }

    /// Drops cursors that were idle for longer than `idle`.
    pub fn reap(&self, idle: Duration) {
        let is_late = |c: &Cursor| !c.no_timeout && c.used.elapsed() > idle;
        let n = self.kill_those(|slots| {
            let idle = slots
                .by_id
                .iter()
                .filter(|(_, slot)| slot.idle().is_some_and(is_late));
            idle.map(|(id, _)| *id).collect()
        });
        self.timed_out.fetch_add(n, Ordering::Relaxed);
        if let Some(others) = self.others.get() {
            others.reap(idle);
        }
    }

    /// The idle cursors.
    pub fn idle(&self) -> Vec<IdleCursor> {
        let slots = self.slots.lock();
        let idle = slots.by_id.values().filter_map(|s| match s {
            Slot::Idle(c) => Some(IdleCursor {
                id: c.id,
                ns: c.ns.clone(),
                lsid: c.lsid,
                no_timeout: c.no_timeout,
                command: c.command.clone(),
                created: c.created,
                used: c.used,
            }),
            Slot::InUse { .. } => None,
        });
        idle.collect()
    }

    pub fn figures(&self) -> CursorFigures {
        let slots = self.slots.lock();
        let mut f = CursorFigures {
            open: slots.by_id.len() as u64,
            timed_out: self.timed_out.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
            ..CursorFigures::default()
        };
        for s in slots.by_id.values() {
            match s {
                Slot::Idle(c) => f.no_timeout += u64::from(c.no_timeout),
                Slot::InUse { no_timeout, .. } => {
                    f.pinned += 1;
                    f.no_timeout += u64::from(*no_timeout);
                }
            }
        }
        drop(slots);
        let others = self.others.get();
        others.map_or(f, |others| f.and(others.figures()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Results for Nothing {
        fn fill(&mut self, _: &mut OpCtx, _: &mut Writer, _: u64, _: usize) -> Result<bool> {
            Ok(true)
        }

        fn release(&mut self, _: &mut OpCtx) -> Result<()> {
            Ok(())
        }
    }

    fn opened(cursors: &Cursors, session: u8, txn_number: Option<i64>) -> i64 {
        let mut cursor = Cursor::new("d.c", Box::new(Nothing));
        cursor.lsid = Some(Lsid::unowned([session; 16]));
        cursor.txn_number = txn_number;
        cursors.insert(cursor)
    }

    fn is_open(cursors: &Cursors, id: i64) -> bool {
        cursors.owner(id).is_some()
    }

    #[test]
    fn a_session_ends_with_its_own_cursors() {
        let cursors = Cursors::default();
        let others = [opened(&cursors, 0, None), opened(&cursors, 2, None)];
        let without = cursors.insert(Cursor::new("d.c", Box::new(Nothing)));
        let own = [opened(&cursors, 1, None), opened(&cursors, 1, Some(7))];
        cursors.kill_session(Lsid::unowned([1; 16]));
        assert!(own.iter().all(|id| !is_open(&cursors, *id)));
        assert!(others.iter().all(|id| is_open(&cursors, *id)));
        assert!(is_open(&cursors, without));
        assert_eq!(cursors.slots.lock().of_sessions.len(), others.len());
    }

    #[test]
    fn a_transaction_ends_with_its_own_cursors() {
        let cursors = Cursors::default();
        let lsid = Lsid::unowned([1; 16]);
        let (old, new) = (opened(&cursors, 1, Some(1)), opened(&cursors, 1, Some(2)));
        let other = opened(&cursors, 2, Some(1));
        assert_eq!(cursors.kill_transaction(lsid, 1), 1);
        assert!(!is_open(&cursors, old));
        assert!(is_open(&cursors, new) && is_open(&cursors, other));
    }

    #[test]
    fn one_that_is_killed_while_it_is_used_does_not_come_back() {
        let cursors = Cursors::default();
        let lsid = Lsid::unowned([1; 16]);
        let id = opened(&cursors, 1, None);
        let used = cursors.take(id, "d.c", Some(lsid), None).unwrap();
        cursors.kill_session(lsid);
        cursors.give_back(used);
        assert!(!is_open(&cursors, id));
        assert!(cursors.slots.lock().of_sessions.is_empty());
    }
}
