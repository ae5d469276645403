//! Retryable writes: the results of each session's newest transaction number, so that a retry does
//! nothing twice.
//!
//! The record of a session travels in the log entry of the write itself, so record and write are
//! there together or not at all, also after a restart. In memory it is known as soon as the write
//! is staged; should the commit fail, everything is forgotten and read again ([`SessionTable::forget`]).
//! It is read again, too, once another member may have written since (`storage::Epoch`): only a
//! primary's own writes are known here.
//!
//! A command of many statements writes its record page by page, so that a statement costs as much
//! at the end as in the beginning: a page that is full is not written again, and the next is read
//! only if the one before it is full.
//!
//! ```text
//! tablet 0 | space 3 | 0 | record id [16] [| page u32 BE, from 1 on]
//!     →  {txn: int64, date: date, done: [{i: first statement, c: count, n, m, u?: {v}, d?: image}]}
//!     or {txn: int64, date: date, state: "committed"}      (crate::transaction)
//!     or {txn: int64, date: date, state: "aborted", done: []}      (crate::two_phase)
//! ```
//! Pages of an older transaction number than the first page's are leftovers.

use crate::transaction::Phase;
use auth::session_id::NOBODY;
use bson::{Doc, Val, Value, Writer};
use catalog::keyspace::{self, SESSION_RECORD, SPACE_SESSION, SYSTEM_TABLET};
use errors::{Error, Result, Suspension, bail};
use executor::{Lsid, OpCtx, Retry, StmtResult};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use storage::{Direction, Effect, Entry, Epoch, OpSession, Store};

mod hand_over;

/// The key of a session's record: its id if it has no owner, else a digest of id and owner, which no
/// client can make collide with another's.
pub(crate) type RecordId = [u8; 16];

pub(crate) fn record_id(lsid: &Lsid) -> RecordId {
    if lsid.uid == NOBODY {
        return lsid.id;
    }
    let digest = Sha256::new_with_prefix(lsid.id)
        .chain_update(lsid.uid)
        .finalize();
    let mut id = RecordId::default();
    id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    id
}

/// Sessions kept in memory; beyond it the oldest are read from the store again when they come back.
const KEEP: usize = 50_000;
/// The number of results on a full page.
const PAGE: usize = 16;
/// Records deleted at a time.
const CHUNK: usize = 1000;

#[derive(Clone, Debug, Default)]
struct Done {
    first: i32,
    count: i32,
    result: StmtResult,
}

/// A session's state in memory.
#[derive(Default)]
pub(crate) struct State {
    /// When it was read; what it says holds in that epoch.
    loaded: Option<Epoch>,
    /// The newest transaction number.
    pub(crate) txn: i64,
    /// The multi-document transaction of that number, if it is one.
    pub(crate) phase: Phase,
    /// The first statement of the transaction has not ended yet.
    pub(crate) starting: bool,
    /// Its last transaction met a write conflict: the next one waits for its turn.
    pub(crate) lost: bool,
    /// By first statement; the ranges do not overlap.
    done: BTreeMap<i32, Done>,
    /// The page that is written now, and its first statements.
    page: u32,
    on_page: Vec<i32>,
    /// Milliseconds since 1970 of the last write.
    used: i64,
}

#[derive(Default)]
pub struct SessionTable {
    sessions: Mutex<HashMap<RecordId, Arc<Mutex<State>>>>,
}

/// One request's hold on a session: there is one at a time.
pub(crate) struct SessionGuard {
    lsid: Lsid,
    record: RecordId,
    state: ArcMutexGuard<RawMutex, State>,
}

impl SessionGuard {
    pub fn state(&mut self) -> &mut State {
        &mut self.state
    }

    pub fn state_ref(&self) -> &State {
        &self.state
    }

    /// The record of a session whose transaction can commit no more.
    pub fn abort_record(&mut self, now_millis: i64) -> Effect {
        self.state.used = now_millis;
        let mut w = Writer::with_capacity(64);
        w.i64("txn", self.state.txn)
            .date("date", now_millis)
            .str("state", ABORTED);
        w.open_array("done").close();
        Effect::Put(key(&self.record, 0), w.finish().into_vec())
    }

    /// The record of a session whose transaction commits.
    pub fn commit_record(&mut self, now_millis: i64) -> (OpSession, Effect) {
        self.state.used = now_millis;
        let mut w = Writer::with_capacity(64);
        w.i64("txn", self.state.txn)
            .date("date", now_millis)
            .str("state", COMMITTED);
        let session = OpSession {
            lsid: self.lsid.id,
            txn_number: self.state.txn,
            stmt_id: 0,
        };
        let effect = Effect::Put(key(&self.record, 0), w.finish().into_vec());
        (session, effect)
    }
}

/// What the record of a session says whose newest number is that of a committed transaction.
const COMMITTED: &str = "committed";
/// … of one that was given up, which must never commit.
const ABORTED: &str = "aborted";

/// One retryable command's hold on its session.
pub struct Retryable {
    lsid: Lsid,
    record: RecordId,
    state: ArcMutexGuard<RawMutex, State>,
    now_millis: i64,
}

fn prefix() -> keyspace::Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_SESSION, SESSION_RECORD)
}

fn key(record: &RecordId, page: u32) -> Vec<u8> {
    let mut key = keyspace::join(&prefix(), record);
    if page > 0 {
        key.extend_from_slice(&page.to_be_bytes());
    }
    key
}

/// The session of a record's key.
fn record_of(key: &[u8]) -> Option<RecordId> {
    key.get(prefix().len()..)?.first_chunk::<16>().copied()
}

impl State {
    /// Begins with a new number; a transaction in progress is aborted.
    pub(crate) fn clear(&mut self, txn: i64) {
        self.txn = txn;
        self.phase = Phase::None;
        self.starting = false;
        self.done.clear();
        self.page = 0;
        self.on_page.clear();
    }

    /// Reads the pages that there are of a session; `get` gives a page's bytes.
    fn load(
        &mut self,
        record_id: &RecordId,
        mut get: impl FnMut(u32) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        self.clear(-1);
        let damaged = |field: &str| damaged(record_id, field);
        for page in 0.. {
            let Some(bytes) = get(page)? else { break };
            let record = Doc::new(&bytes).ok_or_else(|| damaged("it is no document"))?;
            let txn = number(record, "txn").ok_or_else(|| damaged("txn"))?;
            if page == 0 {
                self.txn = txn;
                let ended = match record.get("state").and_then(|v| v.as_str()) {
                    Some(COMMITTED) => Some(Phase::Committed),
                    Some(ABORTED) => Some(Phase::Aborted),
                    _ => None,
                };
                if let Some(ended) = ended {
                    self.phase = ended;
                    break;
                }
            } else if txn != self.txn {
                break;
            }
            self.page = page;
            self.on_page.clear();
            for done in results(record).ok_or_else(|| damaged("done"))? {
                self.on_page.push(done.first);
                self.done.insert(done.first, done);
            }
            if self.on_page.len() < PAGE {
                break;
            }
        }
        Ok(())
    }

    /// Reads a session again that is not known in the current epoch; returns that.
    pub(crate) fn refresh(&mut self, ctx: &OpCtx, record: &RecordId) -> Result<Epoch> {
        // Taken before the record is read.
        let epoch = ctx.engine.store.epoch();
        if self.loaded != Some(epoch) {
            let latest = ctx.latest();
            self.load(record, |page| {
                Ok(latest.get(&key(record, page))?.map(|v| v.to_vec()))
            })?;
            self.loaded = Some(epoch);
        }
        Ok(epoch)
    }

    /// Whether a transaction is open.
    pub(crate) fn has_open(&self) -> bool {
        matches!(self.phase, Phase::InProgress(_) | Phase::Running)
    }

    /// Whether the newest number has done nothing.
    pub(crate) fn is_fresh(&self) -> bool {
        self.done.is_empty()
    }

    fn executed(&self, stmt_id: i32) -> Option<&Done> {
        let (_, d) = self.done.range(..=stmt_id).next_back()?;
        (stmt_id < d.first.saturating_add(d.count)).then_some(d)
    }

    /// Notes what a statement did, on the page that is written now.
    fn add(&mut self, id: i32, r: &StmtResult) {
        let plain = |r: &StmtResult| {
            r.n == 1 && r.n_modified == 0 && r.upserted.is_none() && r.image.is_none()
        };
        if self.executed(id).is_some() {
            return;
        }
        if plain(r)
            && let Some(last) = self.on_page.last()
            && let Some(d) = self.done.get_mut(last)
            && plain(&d.result)
            && d.first.checked_add(d.count) == Some(id)
        {
            d.count += 1;
            return;
        }
        self.on_page.push(id);
        self.done.insert(
            id,
            Done {
                first: id,
                count: 1,
                result: r.clone(),
            },
        );
    }
}

impl SessionTable {
    /// Takes hold of a session. On an event loop fails with an offload where another request has
    /// it.
    pub(crate) fn enter(&self, ctx: &OpCtx, lsid: Lsid) -> Result<SessionGuard> {
        let record = record_id(&lsid);
        let state = {
            let mut sessions = self.sessions.lock();
            if sessions.len() > KEEP {
                let now_millis = ctx.engine.now_millis();
                sessions.retain(|_, s| {
                    let state = s.try_lock();
                    state.is_none_or(|s| s.has_open() || now_millis - s.used < 60_000)
                });
            }
            sessions.entry(record).or_default().clone()
        };
        let mut state = if ctx.may_offload() {
            Mutex::try_lock_arc(&state).ok_or(Suspension::Worker)?
        } else {
            Mutex::lock_arc(&state)
        };
        assert!(
            !matches!(state.phase, Phase::Running),
            "a transaction runs under its session's guard"
        );
        state.refresh(ctx, &record)?;
        Ok(SessionGuard {
            lsid,
            record,
            state,
        })
    }

    /// Takes hold of a session that is in memory and that no request has.
    pub(crate) fn try_enter(&self, lsid: Lsid) -> Option<SessionGuard> {
        let record = record_id(&lsid);
        let state = self.sessions.lock().get(&record)?.clone();
        let state = Mutex::try_lock_arc(&state)?;
        Some(SessionGuard {
            lsid,
            record,
            state,
        })
    }

    /// Takes hold of a session for one retryable command. Fails when the session has gone on to a
    /// newer number.
    pub fn begin(&self, ctx: &OpCtx, lsid: Lsid, txn: i64, now_millis: i64) -> Result<Retryable> {
        self.pass_prepared(ctx, &lsid, txn)?;
        let SessionGuard {
            lsid,
            record,
            mut state,
        } = self.enter(ctx, lsid)?;
        state.used = now_millis;
        if txn < state.txn {
            bail!(
                TransactionTooOld,
                "Retryable write with txnNumber {txn} is prohibited on session {} because a newer retryable write with txnNumber {} has already started on this session.",
                bson::shell::val(Value::binary(4, &lsid.id).as_val()),
                state.txn
            );
        }
        if txn > state.txn {
            state.clear(txn);
        }
        if !matches!(state.phase, Phase::None) {
            bail!(
                50911,
                "Cannot start a retryable write at given transaction number {txn}: a transaction has the same number"
            );
        }
        Ok(Retryable {
            lsid,
            record,
            state,
            now_millis,
        })
    }

    /// After a failed commit: the writes in memory may not have happened. Transactions in progress stay:
    /// nothing is said to have come of them.
    pub fn forget(&self) {
        let in_progress = |s: &Arc<Mutex<State>>| s.try_lock().is_some_and(|s| s.has_open());
        self.sessions.lock().retain(|_, s| in_progress(s));
    }

    /// Deletes the records of sessions that have not written since `before` (milliseconds since
    /// 1970).
    pub fn delete_older(&self, store: &Store, before: i64) -> Result<usize> {
        let prefix = prefix();
        let view = store.view();
        let mut scan = view.scan(&prefix, &keyspace::prefix_end(&prefix), Direction::Forward);
        // One session at a time: its keys, and when it last wrote.
        let (mut record, mut keys, mut newest) = (None, Vec::new(), i64::MIN);
        let (mut old, mut held, mut n) = (Vec::new(), Vec::new(), 0);
        loop {
            let more = scan.next()?;
            let of = if more { record_of(scan.key()) } else { None };
            if of != record || !more {
                let keys = std::mem::take(&mut keys);
                if let Some(record) = record.filter(|_| newest < before)
                    && let Some(hold) = self.hold_idle(record, before)
                {
                    n += 1;
                    held.push((record, hold));
                    old.extend(keys.into_iter().map(Effect::Delete));
                }
                (record, newest) = (of, i64::MIN);
            }
            if !old.is_empty() && (!more || old.len() >= CHUNK) {
                let effects = std::mem::take(&mut old);
                store.propose(vec![Entry::noop(effects)])?;
                let mut sessions = self.sessions.lock();
                for (record, mut hold) in held.drain(..) {
                    hold.loaded = None;
                    // A waiting request has its own reference, and continues with this state.
                    if Arc::strong_count(ArcMutexGuard::mutex(&hold)) == 2 {
                        sessions.remove(&record);
                    }
                }
            }
            if !more {
                return Ok(n);
            }
            let date = Doc::new(scan.value()).and_then(|d| d.get("date")?.as_date());
            // A damaged record is kept, so that the damage can be examined.
            newest = newest.max(date.unwrap_or(i64::MAX));
            keys.push(scan.key().to_vec());
        }
    }

    /// Keeps a session from being used, if it has not been since `before`.
    fn hold_idle(&self, record: RecordId, before: i64) -> Option<ArcMutexGuard<RawMutex, State>> {
        let state = self.sessions.lock().entry(record).or_default().clone();
        let hold = Mutex::try_lock_arc(&state)?;
        (hold.used < before).then_some(hold)
    }

    pub fn active(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Forgets a session's state in memory.
    pub fn end(&self, lsid: &Lsid) {
        self.sessions.lock().remove(&record_id(lsid));
    }
}

impl Retryable {
    /// What the statement did when it ran before.
    pub fn executed(&self, stmt_id: i32) -> Option<&StmtResult> {
        self.state.executed(stmt_id).map(|d| &d.result)
    }

    /// The recorder for statements: `ids[at]` is the id of the statement at that position.
    pub fn statements<'a>(&'a mut self, ids: &'a [i32]) -> StatementRecorder<'a> {
        StatementRecorder { hold: self, ids }
    }

    fn write(&self) -> Vec<u8> {
        let State { on_page, done, .. } = &*self.state;
        let results = on_page.iter().filter_map(|first| done.get(first));
        page(self.state.txn, self.now_millis, results)
    }
}

/// A page of a session's record.
fn page<'a>(txn: i64, now_millis: i64, results: impl Iterator<Item = &'a Done>) -> Vec<u8> {
    let mut w = Writer::with_capacity(128);
    w.i64("txn", txn)
        .date("date", now_millis)
        .open_array("done");
    for d in results {
        w.open_doc("").i32("i", d.first).i32("c", d.count);
        w.i64("n", d.result.n as i64)
            .i64("m", d.result.n_modified as i64);
        if let Some(u) = &d.result.upserted {
            w.open_doc("u").val("v", u.as_val()).close();
        }
        if let Some(i) = &d.result.image {
            w.doc("d", i.as_doc());
        }
        w.close();
    }
    w.close();
    w.finish().into_vec()
}

fn number(d: Doc<'_>, name: &str) -> Option<i64> {
    d.get(name).and_then(|v| v.to_i64_exact())
}

/// A session's record that cannot be read: without it a statement could be done twice.
#[cold]
fn damaged(record: &RecordId, field: &str) -> Error {
    let session = u128::from_be_bytes(*record);
    Error::internal(format!(
        "the record of session {session:032x} is damaged ({field})"
    ))
}

/// The results in a record.
fn results(record: Doc<'_>) -> Option<Vec<Done>> {
    let result = |v: Val<'_>| {
        let d = v.as_doc()?;
        Some(Done {
            first: i32::try_from(number(d, "i")?).ok()?,
            count: i32::try_from(number(d, "c")?).ok()?,
            result: StmtResult {
                at: 0,
                n: number(d, "n")? as u64,
                n_modified: number(d, "m")? as u64,
                upserted: d
                    .get("u")
                    .and_then(|v| v.as_doc()?.get("v").map(|v| v.to_value())),
                image: d.get("d").and_then(|v| v.as_doc()).map(|d| d.to_buf()),
            },
        })
    };
    let done = record.get("done").and_then(|v| v.as_array())?;
    done.values().map(result).collect()
}

/// Records statements of one command.
pub struct StatementRecorder<'a> {
    hold: &'a mut Retryable,
    ids: &'a [i32],
}

impl Retry for StatementRecorder<'_> {
    fn record(&mut self, results: &[StmtResult]) -> (OpSession, Effect) {
        let state = &mut *self.hold.state;
        assert!(
            matches!(state.phase, Phase::None),
            "statements are recorded under the number of no transaction"
        );
        if state.on_page.len() >= PAGE {
            state.page += 1;
            state.on_page.clear();
        }
        let id_of = |r: &StmtResult| self.ids[r.at];
        for r in results {
            state.add(id_of(r), r);
        }
        let first_id = results.first().map_or(0, id_of);
        let session = OpSession {
            lsid: self.hold.lsid.id,
            txn_number: self.hold.state.txn,
            stmt_id: first_id,
        };
        (
            session,
            Effect::Put(
                key(&self.hold.record, self.hold.state.page),
                self.hold.write(),
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold() -> Retryable {
        let mut state = State {
            loaded: Some(Epoch::default()),
            ..State::default()
        };
        state.clear(7);
        Retryable {
            lsid: Lsid::unowned([9; 16]),
            record: [9; 16],
            state: Mutex::lock_arc(&Arc::new(Mutex::new(state))),
            now_millis: 1,
        }
    }

    /// An update that changed one document.
    fn updated(at: usize) -> StmtResult {
        StmtResult {
            at,
            n: 1,
            n_modified: 1,
            ..StmtResult::default()
        }
    }

    fn store(records: &mut BTreeMap<Vec<u8>, Vec<u8>>, effect: Effect) -> usize {
        let Effect::Put(key, value) = effect else {
            panic!("a record is put")
        };
        let bytes = key.len() + value.len();
        records.insert(key, value);
        bytes
    }

    #[test]
    fn a_record_is_its_owners() {
        let lsid = Lsid::unowned([5; 16]);
        assert_eq!(record_id(&lsid), [5; 16]);
        let owned = |uid| record_id(&Lsid { uid, ..lsid });
        assert_ne!(owned([1; 32]), [5; 16]);
        assert_ne!(owned([1; 32]), owned([2; 32]));
        assert_eq!(owned([1; 32]), owned([1; 32]));
    }

    #[test]
    fn a_statement_costs_as_much_late_as_early() {
        let (mut hold, mut records) = (hold(), BTreeMap::new());
        let ids: Vec<i32> = (0..2000).collect();
        let mut bytes = Vec::new();
        for at in 0..ids.len() {
            let (_, effect) = hold.statements(&ids).record(&[updated(at)]);
            bytes.push(store(&mut records, effect));
            // What a crash here would leave says exactly which were done.
            if at % 97 == 0 || at == 1999 {
                let mut again = State::default();
                again
                    .load(&hold.record, |page| {
                        Ok(records.get(&key(&hold.record, page)).cloned())
                    })
                    .unwrap();
                assert_eq!(again.txn, 7);
                let known = |id: &i32| again.executed(*id).is_some();
                assert_eq!(ids.iter().filter(|id| known(id)).count(), at + 1);
            }
        }
        let sum = |range: std::ops::Range<usize>| bytes[range].iter().sum::<usize>();
        assert!(
            sum(1600..2000) < sum(0..400) * 11 / 10,
            "{}",
            sum(1600..2000)
        );
        assert_eq!(records.len(), 2000 / PAGE);
    }

    #[test]
    fn pages_of_an_older_number_do_not_count() {
        let (mut hold, mut records) = (hold(), BTreeMap::new());
        let ids: Vec<i32> = (0..100).collect();
        for at in 0..ids.len() {
            let (_, effect) = hold.statements(&ids).record(&[updated(at)]);
            store(&mut records, effect);
        }
        hold.state.clear(8);
        let results: Vec<StmtResult> = (0..PAGE).map(updated).collect();
        let (_, effect) = hold.statements(&ids).record(&results);
        store(&mut records, effect);
        let mut again = State::default();
        again
            .load(&hold.record, |page| {
                Ok(records.get(&key(&hold.record, page)).cloned())
            })
            .unwrap();
        assert_eq!((again.txn, again.done.len()), (8, PAGE));
        // It goes on where the command stopped.
        hold.state = Mutex::lock_arc(&Arc::new(Mutex::new(again)));
        let (_, effect) = hold.statements(&ids).record(&[updated(PAGE)]);
        store(&mut records, effect);
        assert_eq!(hold.state.page, 1);
        assert!(hold.executed(PAGE as i32).is_some() && hold.executed(PAGE as i32 + 1).is_none());
    }

    #[test]
    fn records_that_were_deleted_cost_the_next_look_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(storage::StoreOptions::new(dir.path())).unwrap();
        let table = SessionTable::default();
        let put = |number: u32, used: i64| {
            let mut record = [0; 16];
            record[..4].copy_from_slice(&number.to_be_bytes());
            let doc = bson::doc! {"txn": 1i64, "date": Value::date(used)};
            Effect::Put(key(&record, 0), doc.as_doc().as_bytes().to_vec())
        };
        let records: Vec<Effect> = (0..6000)
            .map(|n| put(n, if n < 5990 { 1 } else { 1000 }))
            .collect();
        store.propose(vec![Entry::noop(records)]).unwrap();
        assert_eq!(table.delete_older(&store, 100).unwrap(), 5990);
        let look = || {
            let before = storage::hidden_keys::on_this_thread();
            assert_eq!(table.delete_older(&store, 100).unwrap(), 0);
            storage::hidden_keys::on_this_thread() - before
        };
        let begun = std::time::Instant::now();
        while look() > 200 {
            assert!(begun.elapsed().as_secs() < 20, "each look steps over them");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        // One that comes back is found.
        store
            .propose(vec![Entry::noop(vec![put(3000, 1)])])
            .unwrap();
        assert_eq!(table.delete_older(&store, 100).unwrap(), 1);
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let (mut hold, mut records) = (hold(), BTreeMap::new());
        let (_, effect) = hold.statements(&[0]).record(&[updated(0)]);
        store(&mut records, effect);
        let lsid = hold.record;
        let whole = records.remove(&key(&lsid, 0)).unwrap();
        let load = |bytes: Vec<u8>| {
            let mut state = State::default();
            state.load(&lsid, |page| Ok((page == 0).then(|| bytes.clone())))
        };
        load(whole.clone()).unwrap();
        for name in [&b"txn\0"[..], b"done\0", b"i\0", b"n\0"] {
            let at = whole.windows(name.len()).position(|w| w == name).unwrap();
            let mut bytes = whole.clone();
            bytes[at] = b'x';
            let said = load(bytes).unwrap_err().to_string();
            assert!(said.contains("of session 09090909"), "{said}");
        }
        let cut = whole[..whole.len() - 1].to_vec();
        assert!(
            load(cut)
                .unwrap_err()
                .into_error()
                .message
                .contains("is damaged")
        );
    }

    #[test]
    fn inserts_that_follow_each_other_are_one() {
        let mut hold = hold();
        let ids: Vec<i32> = (5..5000).collect();
        let plain = |at| StmtResult {
            n_modified: 0,
            ..updated(at)
        };
        for at in 0..4000 {
            hold.statements(&ids).record(&[plain(at)]);
        }
        assert_eq!((hold.state.done.len(), hold.state.page), (1, 0));
        assert!(hold.executed(4004).is_some() && hold.executed(4005).is_none());
        assert!(hold.executed(4).is_none());
    }
}
