//! The thread that drives a member over a real store: it takes what comes from peers, from the store
//! and from commands, and hands on what the member sends.
//!
//! ```text
//! commands, peers ─► Driver (a channel) ─► thread: Member ─► Transport
//! the store ─ appended, synced ─┘              └─► Status, read by everybody without waiting
//! ```
//!
//! Invariants:
//! - Only this thread touches the member.
//! - [`Status`] is what was true after the last input. Whoever waits for a change of it is woken.
//! - Where the store takes writes (`Gate`), this member was the primary of the term that the log is
//!   in; a write that loses the race with a deposition is taken back by the restart.

mod copying;
mod store_log;

pub use store_log::{BeforeDdl, StoreLog};

use crate::config::Config;
use crate::initial_sync::receive::adopt;
use crate::initial_sync::source::Copies;
use crate::initial_sync::{Offer, Progress, ProgressReport, Source};
use crate::log_view::{FIRST_TERM, VoterChange};
use crate::member::{ELECTION_TICKS, Member, MemberLog, MemberRole, News, OpTime, raft_id};
use crate::state_file::{self, State};
use errors::{Error, Fallible as Result, err};
use parking_lot::{Condvar, Mutex, RwLock};
use raft::eraftpb::{Message, MessageType};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use storage::{Appended, Entry, Op, Replicator, Store};

/// A tick, a tenth of the election timeout, where the configuration leaves MongoDB's default. That is
/// ten seconds: long for a set whose members stand side by side.
const TICK: Duration = Duration::from_millis(100);
const DEFAULT_ELECTION_TIMEOUT_MS: i64 = 10_000;
/// How often a primary looks at what the configuration asks for, and after how many such looks for a
/// member that should be primary in its place.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS_FOR_BETTER: u64 = 20;
/// Bounds of a tick that the configuration asks for.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
const LONGEST_TICK: Duration = Duration::from_secs(60);
/// The most inputs that are taken before the status is made known.
const BATCH: usize = 256;
/// So long a primary that writes waits for entries that take the commit point with them.
const TELL: Duration = Duration::from_millis(1);

/// Brings messages to other members, in order, and may lose them. It must not block.
pub trait Transport: Send + Sync {
    /// The members that there are, by number, with `host:port`.
    fn peers(&self, set: &SetName, config: &Config, peers: &[(u64, String)]);
    fn send(&self, messages: Vec<Message>);
    /// The timestamp of the newest entry that a member has said to have applied: 0 for none.
    fn applied(&self, member: u64) -> Option<u64>;
    /// A member that files are copied from, by its `host:port`. `member`: who copies.
    fn source(&self, host: &str, member: u64) -> Result<Box<dyn Source>>;
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

/// What everybody may know of the member at any time.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub role: MemberRole,
    pub term: u64,
    /// This member's number; 0 while it belongs to no set.
    pub id: u64,
    /// The primary's number; 0 where none is known.
    pub primary: u64,
    pub config: Option<Arc<Config>>,
    /// Those that vote now: a member that was added votes once it has caught up.
    pub voters: Vec<u64>,
    /// Those that have entries, and no vote.
    pub learners: Vec<u64>,
    /// This member copies the files of another.
    pub is_copying: bool,
    pub commit_index: u64,
    /// The last entry that readers of the log here may know of: of a delayed member, applied.
    pub shown_index: u64,
    /// On the primary: number, last index on disk, heard of lately.
    pub progress: Vec<(u64, u64, bool)>,
    /// When this member became primary.
    pub elected_at: Option<SystemTime>,
    /// Why it stood for election then, as MongoDB says it.
    pub elected_because: &'static str,
    /// Of the commit point.
    pub committed: OpTime,
    /// Of the last entry on this member's disk, as of the last look.
    pub durable: OpTime,
    /// On the primary, as of the last look: number, and the last entry on that member's disk.
    pub op_times: Vec<(u64, OpTime)>,
    /// As of the last look: number, and the timestamp of the newest entry that it has applied.
    pub applied: Vec<(u64, u64)>,
    /// As of the last look: number, and when a message of that member came last.
    pub heard: Vec<(u64, SystemTime)>,
    /// How often entries were taken back here.
    pub rollbacks: u64,
}

impl Status {
    /// The configured member with this number.
    pub fn member(&self, id: u64) -> Option<&crate::config::Member> {
        self.config
            .as_ref()?
            .members
            .iter()
            .find(|m| raft_id(m.id) == id)
    }

    pub fn is_primary(&self) -> bool {
        self.role == MemberRole::Primary
    }

    /// `host:port` of the primary.
    pub fn primary_host(&self) -> Option<String> {
        Some(self.member(self.primary)?.host.to_string())
    }
}

/// With the index of the entry.
type Answer = Sender<Result<u64>>;

enum Input {
    Received(Vec<Message>),
    Appended(Vec<Appended>),
    Synced,
    Begin(Box<State>),
    Reconfigure(Box<Config>, Answer),
    HandOver(u64),
    /// To whom, and in which term that was asked for.
    HandOverNow(u64, u64),
    Freeze(Duration),
    StandDown,
    /// In which term that was asked for.
    StandDownNow(u64),
    /// The thread that copies files has ended.
    Copied(Result<Offer>),
    Stop,
}

/// What the driver's thread and everybody else share.
struct Shared {
    inputs: Sender<Input>,
    status: RwLock<Arc<Status>>,
    commit: AtomicU64,
    /// The term in which writes are taken; 0 where none are. Written by the thread.
    open: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
    /// Told after each change of role, primary, configuration or commit point.
    listeners: RwLock<Vec<Box<dyn Fn(Changed) + Send + Sync>>>,
    initial_sync: Progress,
    /// Documents that are taken back are saved (`createRollbackDataFiles`).
    saves_rollbacks: AtomicBool,
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

    /// Whoever waits for a change of the status looks again.
    fn wake(&self) {
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) != 0
    }
}

/// A member of a replica set, for the rest of the process.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    set_name: String,
    before_ddl: Arc<OnceLock<BeforeDdl>>,
    copies: Arc<Copies>,
    not_begun: Arc<Mutex<Option<(Thread, Receiver<Input>, Option<State>)>>>,
}

/// The store's side: asks whether it may write, and tells what it appended.
struct Gate(Arc<Shared>);

impl Replicator for Gate {
    fn term(&self) -> u64 {
        self.0.open.load(Ordering::Acquire)
    }

    fn appended(&self, entries: Vec<Appended>) {
        let _ = self.0.inputs.send(Input::Appended(entries));
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
    ) -> Result<Driver> {
        adopt(&dir)?;
        let state = state_file::load(&dir)?.filter(|s| s.id != 0);
        let base = state.as_ref().and_then(|s| s.base);
        let copies = Arc::new(Copies::new(store, &dir, base));
        let (inputs, received) = channel();
        let shared = Arc::new(Shared {
            inputs,
            status: RwLock::default(),
            commit: AtomicU64::new(0),
            open: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            listeners: RwLock::default(),
            initial_sync: Progress::default(),
            saves_rollbacks: AtomicBool::new(true),
        });
        store.flush_gate().allow(0);
        store.replicate(Arc::new(Gate(shared.clone())))?;
        let synced = shared.clone();
        store.on_durable(Box::new(move |_| {
            let _ = synced.inputs.send(Input::Synced);
        }));
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
            transport,
            restart,
            elected_at: None,
            asked_in: 0,
            asked_because: BY_REQUEST,
            hands_over_because: BY_REQUEST,
            elected_because: BY_TIMEOUT,
            looked: false,
            heard: HashMap::new(),
            set_name: set_name.clone(),
            copying: false,
            left_behind: None,
            next_copy: Instant::now(),
            closing: 0,
            reconciling: Arc::default(),
        };
        Ok(Driver {
            shared,
            set_name,
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
    pub fn run(&self) -> Result<()> {
        let Some((thread, inputs, state)) = self.not_begun.lock().take() else {
            return Ok(());
        };
        std::thread::Builder::new()
            .name("replication".into())
            .spawn(move || thread.run(inputs, state))
            .map_err(|e| Error::internal(format!("cannot start a thread: {e}")))?;
        Ok(())
    }

    /// Whether documents that are taken back are saved.
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

    /// Begins a set (`found`) or a member's part in one.
    pub fn begin(&self, id: u64, founder: u64, config: Config) {
        let mut state = State {
            id,
            founder,
            config: Some(config),
            ..State::default()
        };
        state.hard.term = FIRST_TERM;
        state.voters.voters = vec![founder];
        let _ = self.shared.inputs.send(Input::Begin(Box::new(state)));
    }

    /// On the primary: writes a new configuration, and returns when a majority has it.
    pub fn reconfigure(&self, config: Config, patience: Duration) -> Result<()> {
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

    /// Takes no more writes, and has member `to` elected.
    pub fn hand_over(&self, to: u64) {
        let _ = self.shared.inputs.send(Input::HandOver(to));
    }

    /// Does not stand for election for that long.
    pub fn freeze(&self, length: Duration) {
        let _ = self.shared.inputs.send(Input::Freeze(length));
    }

    /// Gives the primary's part up without a successor.
    pub fn stand_down(&self) {
        let _ = self.shared.inputs.send(Input::StandDown);
    }

    pub fn stop(&self) {
        let _ = self.shared.inputs.send(Input::Stop);
    }

    /// Waits until `holds` of the status, for at most that long; whether it does.
    pub fn wait(&self, until: Instant, mut holds: impl FnMut(&Status) -> bool) -> bool {
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

/// Why members stand for election, in MongoDB's words: they hear of no primary; the primary asks them
/// to take over.
const BY_TIMEOUT: &str = "electionTimeout";
const BY_REQUEST: &str = "stepUpRequestSkipDryRun";
/// The primary asks, because this member has the higher priority.
const BY_PRIORITY: &str = "priorityTakeover";

/// The inputs that have come; neighbours of one kind become one, so that what they cause is sent in
/// one message.
fn gather(first: Input, inputs: &Receiver<Input>) -> Vec<Input> {
    let mut gathered = vec![first];
    for input in std::iter::from_fn(|| inputs.try_recv().ok()).take(BATCH) {
        match (gathered.last_mut(), input) {
            (Some(Input::Appended(all)), Input::Appended(more)) => all.extend(more),
            (Some(Input::Received(all)), Input::Received(more)) => all.extend(more),
            (Some(Input::Synced), Input::Synced) => {}
            (_, input) => gathered.push(input),
        }
    }
    gathered
}

/// Runs what waits for a group of the store on a thread of its own: a group may wait for memory
/// tables to be flushed, and those for the commit point that the driver's thread moves.
/// False where there is no thread to be had.
fn beside(name: &str, f: impl FnOnce() + Send + 'static) -> bool {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(f);
    if let Err(e) = &spawned {
        tracing::error!(target: "REPL", error = %e, "Cannot start a thread");
    }
    spawned.is_ok()
}

struct Thread {
    log: StoreLog,
    shared: Arc<Shared>,
    member: Option<Member<StoreLog>>,
    transport: Arc<dyn Transport>,
    restart: Box<dyn Fn(&str) + Send + Sync>,
    elected_at: Option<SystemTime>,
    /// The term in which the primary asked this member to take over.
    asked_in: u64,
    asked_because: &'static str,
    /// What a member is told that this one asks to take over.
    hands_over_because: &'static str,
    elected_because: &'static str,
    /// It is time for a status that tells what changes with each message.
    looked: bool,
    heard: HashMap<u64, SystemTime>,
    set_name: String,
    /// Files are copied.
    copying: bool,
    /// How often entries had been appended when the log was found not to reach back.
    left_behind: Option<u64>,
    /// Not before then is it tried again.
    next_copy: Instant,
    /// So many wishes to give the primary's part up wait for writes that were taken.
    closing: usize,
    /// A change of voters is being proposed.
    reconciling: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self, inputs: Receiver<Input>, state: Option<State>) {
        // Consensus that has lost its footing must not go on: a start reads what is on disk.
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.serve(&inputs, state)));
        let why = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e.into_message(),
            Err(_) => "the thread of the replica set panicked".to_string(),
        };
        self.shared.close();
        tracing::error!(target: "REPL", error = why.as_str(), "The member leaves its replica set");
        let status = Status::default();
        *self.shared.status.write() = Arc::new(status);
        self.tell(Changed::Topology);
    }

    fn serve(&mut self, inputs: &Receiver<Input>, state: Option<State>) -> Result<()> {
        if let Some(state) = state {
            self.begin(state)?;
        }
        let mut next_tick = Instant::now() + self.tick();
        let (mut next_look, mut looks) = (Instant::now() + LOOK, 0u64);
        let mut tell_at = None;
        loop {
            let wait = next_tick.min(next_look).min(tell_at.unwrap_or(next_look));
            let wait = wait.saturating_duration_since(Instant::now());
            match inputs.recv_timeout(wait) {
                Ok(first) => {
                    for input in gather(first, inputs) {
                        if !self.take(input)? {
                            return Ok(());
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            tell_at = self.tell_commit(tell_at)?;
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + self.tick();
                self.drive(Member::tick)?;
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                looks += 1;
                self.looked = true;
                self.reopen();
                self.reconcile()?;
                if looks.is_multiple_of(LOOKS_FOR_BETTER) {
                    self.prefer()?;
                }
            }
            self.publish();
        }
    }

    /// Tells the others of the commit point, unless entries are under way that will do so before `at`.
    /// Returns when to.
    fn tell_commit(&mut self, at: Option<Instant>) -> Result<Option<Instant>> {
        let Some(member) = self.member.as_ref().filter(|m| m.owes_commit()) else {
            return Ok(None);
        };
        let (now, at) = (Instant::now(), at.unwrap_or_else(|| Instant::now() + TELL));
        if now < at && !member.is_all_committed() {
            return Ok(Some(at));
        }
        self.drive(Member::tell_commit)?;
        Ok(None)
    }

    /// How long a tick is.
    fn tick(&self) -> Duration {
        let config = self.member.as_ref().and_then(Member::config);
        match config.map(|c| c.settings.election_timeout_ms) {
            None | Some(DEFAULT_ELECTION_TIMEOUT_MS) => TICK,
            Some(ms) => (Duration::from_millis(ms.unsigned_abs()) / ELECTION_TICKS as u32)
                .clamp(SHORTEST_TICK, LONGEST_TICK),
        }
    }

    /// False at the end.
    fn take(&mut self, input: Input) -> Result<bool> {
        match input {
            Input::Received(messages) => {
                let now = SystemTime::now();
                for message in &messages {
                    self.heard.insert(message.from, now);
                    if message.get_msg_type() == MessageType::MsgTimeoutNow {
                        self.asked_in = message.term;
                        self.asked_because = match *message.context == *BY_PRIORITY.as_bytes() {
                            true => BY_PRIORITY,
                            false => BY_REQUEST,
                        };
                    }
                }
                self.drive(|m| m.receive(messages))?;
            }
            Input::Appended(entries) => self.drive(|m| m.appended(entries))?,
            Input::Synced => self.drive(Member::synced)?,
            Input::Begin(state) => {
                if self.member.is_none() {
                    let founds = state.voters.voters == [state.id];
                    state_file::save(&self.log.dir, &state)?;
                    self.begin(*state)?;
                    if founds {
                        self.drive(Member::campaign)?;
                    }
                }
            }
            Input::Reconfigure(config, answer) => self.reconfigure(*config, answer),
            Input::HandOver(to) => {
                self.hands_over_because = BY_REQUEST;
                self.close_before(move |term| Input::HandOverNow(to, term));
            }
            Input::HandOverNow(to, term) => {
                self.closing = self.closing.saturating_sub(1);
                if self.is_of(term) {
                    self.drive(|m| m.hand_over(to))?;
                }
            }
            Input::Freeze(length) => {
                let tick = self.tick().as_millis();
                if let Some(member) = &mut self.member {
                    member.freeze(length.as_millis().div_ceil(tick) as u64);
                }
            }
            Input::StandDown => self.close_before(Input::StandDownNow),
            Input::StandDownNow(term) => {
                self.closing = self.closing.saturating_sub(1);
                if self.is_of(term) {
                    self.drive(Member::give_up)?;
                }
            }
            Input::Copied(outcome) => self.end_copy(outcome)?,
            Input::Stop => {
                self.shared.initial_sync.stop();
                if let Some(member) = &mut self.member {
                    member.save()?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes no more writes, and hands `then` of this term in behind those that were taken.
    fn close_before(&mut self, then: impl FnOnce(u64) -> Input) {
        self.shared.close();
        // Who is refused from now on shall hear the reason by `hello`.
        self.tell(Changed::Topology);
        let then = then(self.member.as_ref().map_or(0, Member::term));
        let (store, inputs) = (self.log.store(), self.shared.inputs.clone());
        let begun = beside("closing", move || {
            if let Ok(store) = store {
                store.between_groups();
            }
            let _ = inputs.send(then);
        });
        // Without a thread it stays primary.
        self.closing += usize::from(begun);
    }

    /// What was asked for in an earlier term is not done in a later one.
    fn is_of(&self, term: u64) -> bool {
        self.member.as_ref().is_some_and(|m| m.term() == term)
    }

    /// A primary whose successor was not elected takes writes again.
    fn reopen(&mut self) {
        let Some(member) = &self.member else { return };
        if member.role() == MemberRole::Primary
            && self.closing == 0
            && !member.is_handing_over()
            && self.shared.status.read().is_primary()
            && !self.shared.is_open()
        {
            self.shared.open.store(member.term(), Ordering::Release);
            self.tell(Changed::Topology);
        }
    }

    fn begin(&mut self, state: State) -> Result<()> {
        let chance = RandomState::new().hash_one(state.id);
        self.member = Some(Member::new(self.log.clone(), state, chance)?);
        self.introduce();
        Ok(())
    }

    fn drive(&mut self, f: impl FnOnce(&mut Member<StoreLog>) -> Result<News>) -> Result<()> {
        let Some(member) = &mut self.member else {
            return Ok(());
        };
        let mut news = f(member)?;
        if let Some(why) = &news.restart {
            self.shared.close();
            // Nothing is saved: the commit point may be that of entries which are not in the log.
            tracing::warn!(target: "REPL", reason = why.as_str(), "Starting again to take back writes that no majority had");
            (self.restart)(why);
            return Err(Error::internal("the process could not be started again"));
        }
        for message in &mut news.messages {
            if message.get_msg_type() == MessageType::MsgTimeoutNow {
                message.context = self.hands_over_because.as_bytes().to_vec().into();
            }
        }
        if !news.messages.is_empty() {
            self.transport.send(news.messages);
        }
        if let Some(primary) = news.invited_by {
            self.begin_copy(primary);
        }
        if news.changed {
            let member_role = self.member.as_ref().map(Member::role);
            let opens = member_role == Some(MemberRole::Primary);
            if !opens {
                self.shared.close();
            }
            self.introduce();
        }
        Ok(())
    }

    /// Tells the transport who there is.
    fn introduce(&mut self) {
        let Some(member) = &self.member else { return };
        let Some(config) = member.config() else {
            return;
        };
        let set = SetName {
            name: self.set_name.clone(),
            id: config.settings.replica_set_id.map_or([0; 12], |id| id.0),
            founder: member.founder(),
            from: member.id(),
        };
        let peers: Vec<_> = (config.members.iter())
            .filter(|m| raft_id(m.id) != member.id())
            .map(|m| (raft_id(m.id), m.host.to_string()))
            .collect();
        self.transport.peers(&set, config, &peers);
    }

    /// Writes an entry through the store, as any write, and hands its index to `then`.
    fn propose(
        &self,
        config: &Config,
        change: Option<VoterChange>,
        then: impl FnOnce(Result<u64>) + Send + 'static,
    ) -> bool {
        let op = Op::Membership {
            config: config.to_doc().as_bytes().to_vec(),
            change: change.map(VoterChange::to_bytes).unwrap_or_default(),
        };
        let entry = Entry::new("local.system.replset".into(), [0; 16], op, Vec::new());
        let store = self.log.store();
        beside("proposal", move || {
            then(store.and_then(|store| Ok(store.propose(vec![entry])?.index)));
        })
    }

    /// The next change of voters that the configuration asks for.
    fn reconcile(&mut self) -> Result<()> {
        let Some(member) = &self.member else {
            return Ok(());
        };
        let (Some(change), Some(config)) = (member.next_change(), member.config()) else {
            return Ok(());
        };
        if self.shared.is_open() && !self.reconciling.swap(true, Ordering::AcqRel) {
            let reconciling = self.reconciling.clone();
            // A write that is refused now is tried again with the next look.
            let begun = self.propose(config, Some(change), move |_| {
                reconciling.store(false, Ordering::Release);
            });
            if !begun {
                self.reconciling.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Hands the primary's part to a member of higher priority that has caught up.
    fn prefer(&mut self) -> Result<()> {
        let Some(member) = &self.member else {
            return Ok(());
        };
        if member.role() != MemberRole::Primary {
            return Ok(());
        }
        let Some(config) = member.config() else {
            return Ok(());
        };
        let own = (config.members.iter())
            .find(|m| raft_id(m.id) == member.id())
            .map_or(0.0, |m| m.priority);
        let better = (config.members.iter())
            .filter(|m| m.priority > own && member.lag(raft_id(m.id)) < 10)
            .filter(|m| member.voters().voters.contains(&raft_id(m.id)))
            .max_by(|a, b| a.priority.total_cmp(&b.priority));
        if let Some(better) = better.map(|m| raft_id(m.id)) {
            tracing::info!(target: "REPL", member = better - 1, "A member of higher priority takes over");
            self.hands_over_because = BY_PRIORITY;
            self.close_before(move |term| Input::HandOverNow(better, term));
        }
        Ok(())
    }

    fn reconfigure(&mut self, config: Config, answer: Answer) {
        match &self.member {
            Some(member) if member.role() == MemberRole::Primary => {
                self.propose(&config, None, move |outcome| {
                    let _ = answer.send(outcome);
                });
            }
            _ => {
                let _ = answer.send(Err(err!(NotWritablePrimary, "not primary")));
            }
        }
    }

    /// Notes since when, and why, this member is primary.
    fn note_election(&mut self) {
        let Some(member) = &self.member else { return };
        if member.role() != MemberRole::Primary {
            self.elected_at = None;
        } else if self.elected_at.is_none() {
            self.elected_at = Some(SystemTime::now());
            self.elected_because = match member.term() == self.asked_in + 1 {
                true => self.asked_because,
                false => BY_TIMEOUT,
            };
        }
    }

    /// What is true of the member now. What changes with each message is as it was `before`, unless
    /// it is time to look.
    fn status(&self, member: &Member<StoreLog>, before: &Status, looked: bool) -> Status {
        let role = member.role();
        let commit = member.commit_index();
        let config = match &before.config {
            Some(known) if Some(&**known) == member.config() => Some(known.clone()),
            _ => member.config().cloned().map(Arc::new),
        };
        let progress = match role {
            MemberRole::Primary => member.progress(),
            _ => Vec::new(),
        };
        let (durable, op_times, applied, heard) = match looked {
            false => (
                before.durable,
                before.op_times.clone(),
                before.applied.clone(),
                before.heard.clone(),
            ),
            true => {
                let at = |p: &(u64, u64, bool)| (p.0, member.op_time(p.1).unwrap_or_default());
                let durable = member.op_time(self.log.durable_index()).unwrap_or_default();
                let heard = self.heard.iter().map(|(id, at)| (*id, *at)).collect();
                let applied = |p: &(u64, u64, bool)| Some((p.0, self.transport.applied(p.0)?));
                let applied = progress.iter().filter_map(applied).collect();
                (durable, progress.iter().map(at).collect(), applied, heard)
            }
        };
        let committed = match before.commit_index == commit && before.committed.ts != 0 {
            true => before.committed,
            false => member.op_time(commit).unwrap_or(before.committed),
        };
        Status {
            role,
            term: member.term(),
            id: member.id(),
            primary: member.leader(),
            config,
            voters: member.voters().voters.clone(),
            learners: member.voters().learners.clone(),
            is_copying: self.left_behind == Some(member.appends()),
            commit_index: commit,
            shown_index: member.shown_index(),
            progress,
            elected_at: self.elected_at,
            elected_because: self.elected_because,
            committed,
            durable,
            op_times,
            applied,
            heard,
            rollbacks: member.rollbacks(),
        }
    }

    /// Makes known what is true now.
    fn publish(&mut self) {
        self.note_election();
        let looked = std::mem::take(&mut self.looked);
        let Some(member) = &self.member else { return };
        let before = self.shared.status.read().clone();
        let status = self.status(member, &before, looked);
        let (commit, shown) = (status.commit_index, status.shown_index);
        let topology = (before.role, before.term, before.primary, before.id)
            != (status.role, status.term, status.primary, status.id)
            || before.config != status.config
            || before.voters != status.voters
            || before.learners != status.learners
            || before.is_copying != status.is_copying
            || (before.commit_index == 0) != (commit == 0);
        let moved = before.shown_index != shown
            || before.commit_index != commit
            || before.progress != status.progress;
        if !topology && !moved {
            if looked {
                *self.shared.status.write() = Arc::new(status);
            }
            return;
        }
        if before.role != status.role {
            tracing::info!(target: "REPL", role = ?status.role, term = status.term, "The member's role has changed");
        }
        let opens = status.role == MemberRole::Primary
            && (before.role, before.term) != (MemberRole::Primary, status.term);
        let term = status.term;
        *self.shared.status.write() = Arc::new(status);
        self.shared.commit.store(commit, Ordering::Release);
        if let Ok(store) = self.log.store() {
            store.decided(shown.min(member.taken_index()));
        }
        self.shared.wake();
        if topology {
            self.tell(Changed::Topology);
        }
        if opens {
            self.shared.open.store(term, Ordering::Release);
            self.shared.wake();
            self.tell(Changed::Opened);
        }
        if moved {
            self.tell(Changed::CommitPoint);
        }
    }

    fn tell(&self, what: Changed) {
        for listener in self.shared.listeners.read().iter() {
            listener(what);
        }
    }
}
