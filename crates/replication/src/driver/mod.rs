//! The thread that drives a member over a real store: it takes what comes from peers, from the store
//! and from commands, and hands on what the member sends.
//!
//! ```text
//! commands, peers ─► Driver (a channel) ─► thread: Member ─► Transport
//! the store ─ appended, synced ─┘              └─► Status, read by all threads without waiting
//! ```
//!
//! Invariants:
//! - Only this thread touches the member.
//! - [`Status`] is the state after the last input. Waiters for a change of it are woken.
//! - Where the store takes writes (`PrimaryGate`), this member was the primary of the term that the log is in;
//!   a write that loses the race with a deposition is rolled back by the restart.

mod changes;
mod copying;
mod damage;
mod elections;
mod joining;
mod outbox;
mod room;
mod status;
mod store_log;
mod thread;

pub use elections::{ElectionCounts, Elections, Vote};
pub use joining::Admission;
pub use status::Status;
pub use store_log::{BeforeDdl, StoreLog};

use crate::config::Config;
use crate::initial_sync::receive::adopt;
use crate::initial_sync::source::Copies;
use crate::initial_sync::{InitialSyncProgress, Offer, ProgressReport, SyncSource};
use crate::log_view::FIRST_TERM;
use crate::member::OpTime;
use crate::state_file::{self, SavedState};
use bson::{Doc, DocBuf};
use errors::{Error, Fallible, err};
use outbox::{Outbox, Pace};
use parking_lot::{Condvar, Mutex, RwLock};
use raft::eraftpb::Message;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use storage::{Appended, Replicator, Store};
use thread::{BY_REQUEST, BY_TIMEOUT, Thread};

/// How often the thread looks at what changes with each message.
const LOOK: Duration = Duration::from_millis(100);

/// Brings messages to other members, in order, and may lose them. It must not block.
pub trait Transport: Send + Sync {
    /// The members that there are, by number, with `host:port`.
    fn peers(&self, set: &SetName, config: &Config, peers: &[(u64, String)]);
    fn send(&self, messages: Vec<Message>);
    /// What a member has said of itself last.
    fn report(&self, member: u64) -> Option<MemberReport>;
    /// Configurations by which other members do not know this one, since this was asked.
    fn without(&self) -> Vec<DocBuf>;
    /// Has the others told what the primary knows of all members, with the next messages.
    fn spread(&self, known: &[KnownMember]);
    /// Whether the server at `host:port` could be the member of this number in the set. An error that
    /// says otherwise is of it; HostUnreachable says nothing.
    fn joins(&self, set: &SetName, host: &str, member: u64) -> Fallible<()>;
    /// Whether the server at `host:port`, the member `to`, lets member `from` begin, which has nothing.
    fn admits(&self, set: &SetName, host: &str, to: u64, from: u64) -> Fallible<Admission>;
    /// Why a member does not take what it is sent, where it does not.
    fn trouble(&self, member: u64) -> Option<String>;
    /// Runs a command on the member at `host:port`, and gives its reply, an error reply too.
    fn ask(&self, host: &str, db: &str, command: Doc<'_>) -> Fallible<DocBuf>;
    /// A member that files are copied from, by its `host:port`. `member`: the member that copies.
    fn source(&self, host: &str, member: u64) -> Fallible<Box<dyn SyncSource>>;
}

/// What a member says of itself with each answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// The timestamp of the newest entry that it has applied: 0 for none.
    pub applied: u64,
    /// MongoDB's number of its state; 0 where it tells none.
    pub state: i32,
    pub release: Release,
}

/// The release of a member's program: major, minor, patch. All 0 where it tells none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release([u16; 3]);

impl Release {
    /// Of this program.
    pub fn own() -> Release {
        Release::parse(env!("CARGO_PKG_VERSION"))
    }

    /// Of `1.2.3`, or `1.2.3-more`; anything else is an unknown release.
    pub fn parse(text: &str) -> Release {
        let plain = text.split(['-', '+']).next().unwrap_or("");
        let numbers: Vec<u16> = plain.split('.').map_while(|n| n.parse().ok()).collect();
        Release(numbers.try_into().unwrap_or_default())
    }

    pub fn is_known(self) -> bool {
        self != Release::default()
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// What a primary knows of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownMember {
    pub id: u64,
    /// Of the last entry on its disk.
    pub durable: OpTime,
    pub report: MemberReport,
    /// It was heard of lately.
    pub is_heard: bool,
}

/// What members tell each other of the set with every message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetName {
    pub name: String,
    /// Tells sets of one name apart.
    pub id: [u8; 12],
    /// The member that founded it, by its number.
    pub founder: u64,
    /// The sender, by its number.
    pub from: u64,
}

/// With the index of the entry.
type Answer = Sender<Fallible<u64>>;

enum Input {
    Received(Vec<Message>),
    /// The store has appended entries: they are in the outbox.
    Appended,
    /// A write waits for entries that are held back.
    Asked,
    Synced,
    Begin(Box<SavedState>),
    /// A member that has nothing asks whether it may begin.
    Readmit(u64),
    Reconfigure(Box<Config>, Answer),
    /// Go on as the only voter of this configuration.
    ForceReconfig(Box<Config>, Answer),
    /// Stand for election, even if there is a primary.
    StepUp,
    /// Maintenance has begun or ended: whether it stands is to be looked at.
    Withhold,
    HandOver(u64),
    /// The successor, and the term of the request.
    HandOverNow(u64, u64),
    Freeze(Duration),
    StandDown,
    /// In which term that was asked for.
    StandDownNow(u64),
    /// The thread that copies files has ended.
    Copied(Fallible<Offer>),
    Stop,
}

/// The state that the driver's thread shares with its callers.
struct Shared {
    inputs: Sender<Input>,
    outbox: Outbox,
    /// Up to where the thread was told that the log is on disk.
    synced: AtomicU64,
    status: RwLock<Arc<Status>>,
    commit: AtomicU64,
    /// The term in which writes are taken; 0 where none are. Written by the thread.
    open: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
    /// Told after each change of role, primary, configuration or commit point.
    listeners: RwLock<Vec<Box<dyn Fn(Changed) + Send + Sync>>>,
    initial_sync: InitialSyncProgress,
    /// What the primary of this number has told of all members.
    board: Mutex<(u64, Arc<Vec<KnownMember>>)>,
    /// How many have asked for maintenance.
    maintenance: AtomicU64,
    /// Why this member takes no part in its set any more.
    left: OnceLock<String>,
    /// Documents that are rolled back are saved (`createRollbackDataFiles`).
    saves_rollbacks: AtomicBool,
    /// Whether damaged data files are replaced by those of the primary.
    repairs_itself: AtomicBool,
    joining: joining::Joining,
    /// Why the data files are damaged.
    damage: OnceLock<String>,
    stopping: AtomicBool,
}

/// What a listener is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Role, primary or configuration, or whether a primary takes writes. A new one does not yet.
    Topology,
    /// A new primary takes writes from now on.
    Opened,
    CommitPoint,
}

impl Shared {
    fn close(&self) {
        self.open.store(0, Ordering::Release);
    }

    /// A write waits for other members: no entry is held back from them.
    fn ask(&self) {
        if self.outbox.ask() {
            let _ = self.inputs.send(Input::Asked);
        }
    }

    /// Wakes the waiters for a change of the status.
    fn wake(&self) {
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) != 0
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// A member of a replica set, for the rest of the process.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    set_name: String,
    transport: Arc<dyn Transport>,
    before_ddl: Arc<OnceLock<BeforeDdl>>,
    copies: Arc<Copies>,
    not_begun: Arc<Mutex<Option<(Thread, Receiver<Input>, Option<SavedState>)>>>,
}

/// The store's side: asks whether it may write, and tells what it appended.
struct PrimaryGate(Arc<Shared>);

impl Replicator for PrimaryGate {
    fn term(&self) -> u64 {
        self.0.open.load(Ordering::Acquire)
    }

    fn appended(&self, entries: Vec<Appended>) {
        if self.0.outbox.put(entries) {
            let _ = self.0.inputs.send(Input::Appended);
        }
    }

    fn awaited(&self) {
        self.0.ask();
    }
}

impl Shared {
    fn new(inputs: Sender<Input>) -> Shared {
        Shared {
            inputs,
            outbox: Outbox::default(),
            synced: AtomicU64::new(0),
            status: RwLock::default(),
            commit: AtomicU64::new(0),
            open: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            listeners: RwLock::default(),
            initial_sync: InitialSyncProgress::default(),
            board: Mutex::default(),
            maintenance: AtomicU64::new(0),
            left: OnceLock::new(),
            saves_rollbacks: AtomicBool::new(true),
            repairs_itself: AtomicBool::new(true),
            joining: joining::Joining::default(),
            damage: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Has the store tell the thread what is durable.
    fn hear_of_syncs(self: &Arc<Self>, store: &Arc<Store>) {
        let synced = self.clone();
        let log = Arc::downgrade(store);
        store.on_durable(Box::new(move |durable| {
            let Some(log) = log.upgrade() else { return };
            // It is called after each move of the commit point too, and where a sync has failed.
            let before = synced.synced.swap(durable, Ordering::AcqRel);
            if before != durable || log.healthy().is_err() {
                let _ = synced.inputs.send(Input::Synced);
            }
        }));
    }
}

impl Driver {
    /// A member that `run` begins; until then the store takes no writes. `restart` ends the process
    /// and begins it anew; it does not return.
    pub fn new(
        store: &Arc<Store>,
        dir: PathBuf,
        set_name: String,
        transport: Arc<dyn Transport>,
        restart: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Fallible<Driver> {
        adopt(&dir)?;
        let state = state_file::load(&dir)?.filter(|s| s.id != 0);
        let base = state.as_ref().and_then(|s| s.base);
        let copies = Arc::new(Copies::new(store, &dir, base));
        let (inputs, received) = channel();
        let shared = Arc::new(Shared::new(inputs));
        if let Some(state) = &state {
            // A member is one of its set from the start, also before the thread has begun.
            *shared.status.write() = Arc::new(Status::of_start(state));
        }
        store.flush_gate().allow(0);
        store.replicate(Arc::new(PrimaryGate(shared.clone())))?;
        shared.hear_of_syncs(store);
        let before_ddl: Arc<OnceLock<BeforeDdl>> = Arc::default();
        let run = Thread {
            log: StoreLog {
                store: Arc::downgrade(store),
                readers: Arc::default(),
                shared: shared.clone(),
                dir,
                before_ddl: before_ddl.clone(),
            },
            shared: shared.clone(),
            member: None,
            transport: transport.clone(),
            restart,
            elected_at: None,
            asked_in: 0,
            asked_because: BY_REQUEST,
            hands_over_because: BY_REQUEST,
            elected_because: BY_TIMEOUT,
            elections: Elections::default(),
            yields: false,
            removed: false,
            looked: false,
            heard: HashMap::new(),
            set_name: set_name.clone(),
            copying: false,
            repairs: false,
            left_behind: None,
            next_copy: Instant::now(),
            closing: 0,
            reconciling: Arc::default(),
            pace: Pace::default(),
            preference: changes::Preference::default(),
            room: room::DiskRoom::default(),
            damaged: false,
        };
        Ok(Driver {
            shared,
            set_name,
            transport,
            before_ddl,
            copies,
            not_begun: Arc::new(Mutex::new(Some((run, received, state)))),
        })
    }

    /// Has `hook` called before entries of DDL are applied. To be said before [`Driver::run`].
    pub fn before_ddl(&self, hook: BeforeDdl) {
        let _ = self.before_ddl.set(hook);
    }

    /// Starts the thread, once.
    pub fn run(&self) -> Fallible<()> {
        let Some((thread, inputs, state)) = self.not_begun.lock().take() else {
            return Ok(());
        };
        std::thread::Builder::new()
            .name("replication".into())
            .spawn(move || thread.run(inputs, state))
            .map_err(|e| Error::internal(format!("cannot start a thread: {e}")))?;
        Ok(())
    }

    /// Whether damaged data files are replaced by those of the primary.
    pub fn repair_itself(&self, on: bool) {
        self.shared.repairs_itself.store(on, Ordering::Relaxed);
    }

    /// Whether documents that are rolled back are saved.
    pub fn save_rollbacks(&self, on: bool) {
        self.shared.saves_rollbacks.store(on, Ordering::Relaxed);
    }

    /// What other members copy from here.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// How far this member's own initial sync is, while it goes on.
    pub fn initial_sync(&self) -> Option<ProgressReport> {
        let goes_on = self.status().is_copying;
        goes_on.then(|| self.shared.initial_sync.report())
    }

    pub fn set_name(&self) -> &str {
        &self.set_name
    }

    pub fn status(&self) -> Arc<Status> {
        self.shared.status.read().clone()
    }

    /// The last index that a majority has on disk, as far as this member knows.
    pub fn commit_index(&self) -> u64 {
        self.shared.commit.load(Ordering::Acquire)
    }

    /// Whether this member takes writes.
    pub fn is_open(&self) -> bool {
        self.shared.is_open()
    }

    /// Whether it is primary, also one that takes no more writes and waits for a successor.
    pub fn is_leading(&self) -> bool {
        self.status().is_primary()
    }

    pub fn on_change(&self, listener: Box<dyn Fn(Changed) + Send + Sync>) {
        self.shared.listeners.write().push(listener);
    }

    /// Messages of a peer.
    pub fn receive(&self, messages: Vec<Message>) {
        let _ = self.shared.inputs.send(Input::Received(messages));
    }

    /// Begins a set, of which this is the first voter.
    pub fn found(&self, id: u64, config: Config) {
        self.begin(id, id, config, 0);
    }

    /// Begins a member's part in a set. `rejoins_until`: what it has to have before it votes.
    fn begin(&self, id: u64, founder: u64, config: Config, rejoins_until: u64) {
        let mut state = SavedState {
            id,
            founder,
            config: Some(config),
            rejoins_until,
            ..SavedState::default()
        };
        state.hard.term = FIRST_TERM;
        state.voters.voters = vec![founder];
        let _ = self.shared.inputs.send(Input::Begin(Box::new(state)));
    }

    /// On the primary: writes a new configuration, and returns when a majority has it.
    pub fn reconfigure(&self, config: Config, patience: Duration) -> Fallible<()> {
        let (until, version) = (Instant::now() + patience, config.version);
        let (answer, answered) = channel();
        let _ = self
            .shared
            .inputs
            .send(Input::Reconfigure(Box::new(config), answer));
        let late = || {
            err!(
                ExceededTimeLimit,
                "a majority of the members did not take the configuration in time"
            )
        };
        let index = answered.recv_timeout(patience).map_err(|_| late())??;
        let is_in_force = |s: &Status| {
            let config = s.config.as_ref();
            s.commit_index >= index && config.is_some_and(|c| c.version >= version)
        };
        match self.wait(until, is_in_force) {
            true => Ok(()),
            false => Err(late()),
        }
    }

    /// For a majority that is lost for good: this member becomes the primary of a configuration that no
    /// other member has to accept, and brings its other members in.
    pub fn force_reconfig(&self, config: Config, patience: Duration) -> Fallible<()> {
        let (until, (answer, answered)) = (Instant::now() + patience, channel());
        let force_reconfig = Input::ForceReconfig(Box::new(config.clone()), answer);
        let _ = self.shared.inputs.send(force_reconfig);
        let late = || err!(ExceededTimeLimit, "this member was not elected in time");
        answered.recv_timeout(patience).map_err(|_| late())??;
        match self.wait(until, |s| s.is_primary() && self.is_open()) {
            // The others learn of it by the log.
            true => self.reconfigure(config, patience),
            false => Err(late()),
        }
    }

    /// Takes no more writes, and has member `to` elected.
    pub fn hand_over(&self, to: u64) {
        let _ = self.shared.inputs.send(Input::HandOver(to));
    }

    /// Stands for election: a primary that there is takes no more writes and hands over. A second call
    /// does not begin it anew.
    pub fn step_up(&self) {
        let _ = self.shared.inputs.send(Input::StepUp);
    }

    /// Begins or ends one maintenance; while there is any, the member is not read and not elected.
    /// False where there is none to end.
    pub fn maintain(&self, on: bool) -> bool {
        let count = &self.shared.maintenance;
        let next = |n: u64| {
            if on {
                n.checked_add(1)
            } else {
                n.checked_sub(1)
            }
        };
        let changed = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        if changed.is_ok() {
            let withheld = count.load(Ordering::Acquire) > 0;
            let _ = self.shared.inputs.send(Input::Withhold);
            self.wait(Instant::now() + LOOK, |s| s.in_maintenance == withheld);
        }
        changed.is_ok()
    }

    /// What the primary of the set, a member of this number, tells of all members.
    pub fn learn(&self, primary: u64, known: Vec<KnownMember>) {
        *self.shared.board.lock() = (primary, Arc::new(known));
    }

    /// Why this member takes no part in its set any more, until it is started again.
    pub fn left(&self) -> Option<&str> {
        self.shared.left.get().map(String::as_str)
    }

    /// Whether the server at `host:port` could be the member of this number: see [`Transport::joins`].
    pub fn joins(&self, set: &SetName, host: &str, member: u64) -> Fallible<()> {
        self.transport.joins(set, host, member)
    }

    /// Runs a command on the primary, and gives its reply, an error reply too.
    pub fn ask_primary(&self, db: &str, command: Doc<'_>) -> Fallible<DocBuf> {
        let host = self.status().primary_host();
        let host = host.ok_or_else(|| err!(NotWritablePrimary, "not primary"))?;
        self.transport.ask(&host, db, command)
    }

    /// Does not stand for election for that long.
    pub fn freeze(&self, length: Duration) {
        let _ = self.shared.inputs.send(Input::Freeze(length));
    }

    /// Gives the primary's part up without a successor.
    pub fn stand_down(&self) {
        let _ = self.shared.inputs.send(Input::StandDown);
    }

    /// Why a member does not take what this one sends it, where it does not.
    pub fn trouble(&self, member: u64) -> Option<String> {
        self.transport.trouble(member)
    }

    /// What damage was found in the data files of this member.
    pub fn damage(&self) -> Option<&str> {
        self.shared.damage.get().map(String::as_str)
    }

    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = self.shared.inputs.send(Input::Stop);
    }

    /// Waits until `holds` of the status, for at most that long; whether it does.
    pub fn wait(&self, until: Instant, mut holds: impl FnMut(&Status) -> bool) -> bool {
        self.shared.ask();
        loop {
            let mut lock = self.shared.lock.lock();
            if holds(&self.status()) {
                return true;
            }
            if self.shared.changed.wait_until(&mut lock, until).timed_out() {
                drop(lock);
                return holds(&self.status());
            }
        }
    }
}
