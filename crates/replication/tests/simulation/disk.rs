//! The disk of a simulated member, and the log that the member sees of it.

use bson::{Doc, doc};
use replication::member::MemberLog;
use replication::rollback;
use replication::state_file::SavedState;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::UNIX_EPOCH;
use storage::{Appended, Entry, Op, Record};

/// Collections of writes that were decided by nothing, and by what they saw.
const PLAIN: [u8; 16] = [1; 16];
const DECIDED: [u8; 16] = [2; 16];
/// What the key of a record begins with: its tablet, and that it is one.
const RECORD_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 9, 1];

/// A bug that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// The disk says that it has what it has not.
    SkippedSync,
    /// The vote is not written down.
    ForgottenVote,
    /// The engine has on disk what no majority had.
    EarlyFlush,
    /// A write is acknowledged one entry before the commit point has reached it.
    CountedEarly,
    /// A write that was decided in one term is appended in another.
    OldDecision,
    /// A deposed primary makes an entry behind those of its successor.
    LateWrite,
    /// The commit point is saved before the log holds the entries that it is of.
    SavedAhead,
    /// Rolled-back documents are saved without the first entry's.
    SavedShort,
    /// A member whose disk is new votes and answers at once.
    AsIfNothing,
    /// It votes as soon as it was let in.
    VotesTooSoon,
}

#[derive(Default)]
pub struct Disk {
    pub log: Vec<Appended>,
    pub synced: usize,
    pub really_synced: usize,
    pub state: SavedState,
    /// Up to where the engine is on disk.
    pub flushed: u64,
    pub applied: u64,
    /// What the engine holds: the payload of each entry that was applied, in order.
    pub engine: Vec<Vec<u8>>,
    pub term: u64,
    pub now: u64,
    pub wants_sync: bool,
    /// The term in which entries may be made; 0 where none may.
    pub open: u64,
    /// Entries that a thread has made while the member was at work: it hears of them afterwards.
    pub late: Vec<Appended>,
    /// Syncs never return until the next start.
    pub broken: bool,
    /// The next sync fails.
    pub fails: bool,
    /// The process dies with the next thing that it does.
    pub dying: bool,
    pub faulty: bool,
    /// Of a random number's own sequence.
    pub chances: u64,
    pub made: u64,
    pub planted: Option<Planted>,
    pub harsh: bool,
    /// The documents that were saved last, of entries that are to be cut.
    pub taken_back: BTreeMap<[u8; 16], Vec<u8>>,
    /// How often entries were cut.
    pub cut: u64,
}

/// The payload of a write; with `seen`, of one that was decided by what it saw.
pub fn payload(number: u64, seen: Option<u64>) -> Vec<u8> {
    let kind = if seen.is_some() { DECIDED } else { PLAIN };
    let key = [&RECORD_KEY[..], &number.to_be_bytes()].concat();
    let document = doc! {"_id": number as i64, "seen": seen.unwrap_or(number) as i64};
    let put = storage::Effect::Put(key, document.as_bytes().to_vec());
    Entry::new("sim.c".into(), kind, Op::Insert, vec![put]).to_bytes()
}

/// Number and what it saw, of a write that was decided by that.
pub fn decision(payload: &[u8]) -> Option<(u64, u64)> {
    let entry = Entry::decode(payload).filter(|e| e.uuid == DECIDED)?;
    let document = Doc::new(document_of(&entry)?)?;
    let number = |name: &str| Some(document.get(name)?.to_i64_exact()? as u64);
    Some((number("_id")?, number("seen")?))
}

/// The document that a write puts.
fn document_of(entry: &Entry) -> Option<&[u8]> {
    match entry.effects.first()? {
        storage::Effect::Put(_, document) => Some(document),
        _ => None,
    }
}

/// The documents of entries, by collection, as they are in rollback files.
fn documents(entries: &[Appended]) -> BTreeMap<[u8; 16], Vec<u8>> {
    let mut documents = BTreeMap::<_, Vec<u8>>::new();
    for entry in entries.iter().filter_map(|e| Entry::decode(&e.payload)) {
        if let Some(document) = document_of(&entry) {
            let of = documents.entry(entry.uuid).or_default();
            of.extend_from_slice(document);
        }
    }
    documents
}

/// Saves entries as a member does, and reads the files.
fn saved(entries: &[Appended]) -> BTreeMap<[u8; 16], Vec<u8>> {
    let memory = Path::new("/dev/shm");
    let dir = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .unwrap();
    let mut hand_out = |take: &mut dyn FnMut(Record<'_>) -> errors::Fallible<()>| {
        entries.iter().try_for_each(|e| take(record(e)))
    };
    let files = rollback::save(dir.path(), UNIX_EPOCH, &mut hand_out).unwrap();
    let read = files.iter().map(|file| {
        let of = file.path.parent().unwrap().file_name().unwrap();
        let digits = of.to_str().unwrap().replace('-', "");
        let uuid = u128::from_str_radix(&digits, 16).unwrap().to_be_bytes();
        (uuid, std::fs::read(&file.path).unwrap())
    });
    read.collect()
}

impl Disk {
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.chances ^= self.chances << 13;
        self.chances ^= self.chances >> 7;
        self.chances ^= self.chances << 17;
        self.chances.is_multiple_of(one_in)
    }

    /// As the store: an entry of the log's term, appended and applied.
    pub fn make(&mut self, payload: Vec<u8>) -> Appended {
        let last = self.log.last().map_or((0, 0), |e| (e.ts, e.term));
        let entry = Appended {
            index: self.log.len() as u64 + 1,
            ts: ((self.now / 1000) << 32 | 1).max(last.0 + 1),
            term: self.term.max(last.1),
            wall_millis: self.now as i64,
            payload,
        };
        self.log.push(entry.clone());
        self.applied = entry.index;
        self.engine.push(entry.payload.clone());
        entry
    }

    /// Another thread makes an entry in between, if it may.
    fn disturb(&mut self, at: &str) -> errors::Fallible<()> {
        if self.dying {
            return Err(errors::Error::internal(format!("dies at {at}")));
        }
        let term = self.term.max(self.log.last().map_or(0, |e| e.term));
        let may = self.open != 0 && (self.open == term || self.planted == Some(Planted::LateWrite));
        if self.faulty && may && self.chance(4) {
            self.made += 1;
            let number = 1 << 40 | self.state.id << 32 | self.made;
            let entry = self.make(payload(number, None));
            self.late.push(entry);
        }
        Ok(())
    }
}

#[derive(Clone, Default)]
pub struct SimLog(pub Rc<RefCell<Disk>>);

pub fn own(r: &Record<'_>) -> Appended {
    Appended {
        index: r.index,
        ts: r.ts,
        term: r.term,
        wall_millis: r.wall_millis,
        payload: r.payload.to_vec(),
    }
}

pub fn record(a: &Appended) -> Record<'_> {
    Record {
        index: a.index,
        ts: a.ts,
        term: a.term,
        wall_millis: a.wall_millis,
        payload: &a.payload,
    }
}

impl MemberLog for SimLog {
    fn first_index(&self) -> u64 {
        1
    }
    fn last_index(&self) -> u64 {
        self.0.borrow().log.len() as u64
    }
    fn last_ts(&self) -> u64 {
        self.0.borrow().log.last().map_or(0, |e| e.ts)
    }
    fn durable_index(&self) -> u64 {
        self.0.borrow().synced as u64
    }
    fn applied_index(&self) -> u64 {
        self.0.borrow().applied
    }
    fn read(
        &self,
        from: u64,
        to: u64,
        max: u64,
        take: &mut dyn FnMut(Record<'_>),
    ) -> errors::Fallible<()> {
        let disk = self.0.borrow();
        let mut bytes = 0;
        for e in &disk.log[from as usize - 1..(to as usize - 1).min(disk.log.len())] {
            bytes += e.payload.len() as u64;
            take(record(e));
            if bytes > max {
                break;
            }
        }
        Ok(())
    }
    fn append(&self, entries: &[Record<'_>]) -> errors::Fallible<()> {
        let mut disk = self.0.borrow_mut();
        if disk.dying {
            return Err(errors::Error::internal("dies before an append"));
        }
        for e in entries {
            assert_eq!(e.index, disk.log.len() as u64 + 1, "without a gap");
            assert!(
                disk.log
                    .last()
                    .is_none_or(|last| last.ts < e.ts && last.term <= e.term)
            );
            disk.log.push(own(e));
        }
        disk.disturb("append")
    }
    fn save_taken_back(&self, from: u64, to: u64) -> errors::Fallible<()> {
        let mut disk = self.0.borrow_mut();
        let short = u64::from(disk.planted == Some(Planted::SavedShort));
        let entries = &disk.log[(from + short) as usize - 1..to as usize - 1];
        disk.taken_back = saved(entries);
        disk.dying = disk.faulty && disk.harsh && disk.chance(10);
        Ok(())
    }
    fn truncate_after(&self, index: u64) -> errors::Fallible<bool> {
        let mut disk = self.0.borrow_mut();
        if disk.dying {
            return Err(errors::Error::internal("dies before a cut"));
        }
        assert!(disk.applied <= index, "nothing that is applied is cut");
        let cut = documents(&disk.log[index as usize..]);
        let saved = std::mem::take(&mut disk.taken_back);
        assert_eq!(saved, cut, "what is taken back is saved");
        disk.cut += 1;
        disk.log.truncate(index as usize);
        disk.synced = disk.synced.min(index as usize);
        disk.really_synced = disk.really_synced.min(index as usize);
        Ok(true)
    }
    fn apply(&self, entries: &[Record<'_>]) -> errors::Fallible<()> {
        let mut disk = self.0.borrow_mut();
        if disk.dying {
            return Err(errors::Error::internal("dies before it applies"));
        }
        for e in entries {
            assert_eq!(e.index, disk.applied + 1, "in order");
            disk.applied = e.index;
            disk.engine.push(e.payload.to_vec());
        }
        Ok(())
    }
    fn set_term(&self, term: u64) -> errors::Fallible<()> {
        self.0.borrow_mut().term = term;
        Ok(())
    }
    fn close(&self) -> errors::Fallible<()> {
        let mut disk = self.0.borrow_mut();
        if disk.planted != Some(Planted::LateWrite) {
            disk.disturb("close")?;
            disk.open = 0;
        }
        Ok(())
    }
    fn request_sync(&self) {
        self.0.borrow_mut().wants_sync = true;
    }
    fn save(&self, state: &SavedState) -> errors::Fallible<()> {
        let mut disk = self.0.borrow_mut();
        disk.disturb("save")?;
        let voted = disk.state.hard.vote;
        disk.state = state.clone();
        if disk.planted == Some(Planted::ForgottenVote) {
            disk.state.hard.vote = voted;
            disk.state.hard.term = disk.state.hard.term.min(2);
        }
        disk.dying = disk.faulty && disk.chance(200);
        Ok(())
    }
    fn now_millis(&self) -> u64 {
        self.0.borrow().now
    }
}
