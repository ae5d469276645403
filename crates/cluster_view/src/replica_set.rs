//! A replica set behind the router: its members, what each is, and which of them a command goes to.
//!
//! Each member is asked by a thread of its own for its state: every [`LOOK`], and at once if a command
//! waits for a member, or one has failed. The answer has the cluster's time too, so the clock of a
//! router that reads and writes nothing goes on. While a command waits, a member answers as soon as
//! its state changes; one that is not reached is tried ever more rarely.
//!
//! Invariant: a command for the primary goes to the member that last reported itself as primary. A
//! cursor's commands go to the member that has it. A command that a server refused because it is no
//! primary has changed nothing, so it is sent again; one whose reply was lost only where a second run
//! does no harm.

use crate::metadata::time_in;
use crate::operation_time;

use crate::operation_time::end_of_step;
use crate::read_preference::{MemberKind, ReadMode, ReadPreference, Seen};
use crate::upstream;
use crate::upstream::{Connection, Upstream, Wait, error_of, message, time_is_over};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, ObjectId, Val, doc};
use errors::{Code, err};
use parking_lot::{Condvar, Mutex, RwLock};
use sharding::protocol;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long one reply is waited for when all members are told something.
const TOLD: Duration = Duration::from_millis(500);
/// How long a member is looked for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before a command is sent again.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a member is asked for its state.
const LOOK: Duration = Duration::from_secs(10);
/// The same while the cluster's time stands still: an idle set writes a no-op entry every ten seconds,
/// and may have been asked just before one.
const LOOK_FOR_TIME: Duration = Duration::from_secs(5);
/// The same where no primary is known. While a command waits the first look comes sooner, and each look
/// in vain makes the next pause longer, up to that.
const LOOK_FOR_PRIMARY: Duration = Duration::from_millis(500);
const LOOK_FOR_SOMEBODY: Duration = Duration::from_millis(20);
/// How long a member may take to answer `hello`; and the same while a reply is late.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const LATE_HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// A member that has not answered `hello` for this long is given up: its connections are closed.
const MISSED: Duration = Duration::from_secs(10);
/// After this time a reply is late; while one is, members are asked for their state this often.
pub const LATE: Duration = Duration::from_secs(1);
/// The most cursors whose member is remembered, before idle ones are forgotten.
const MOST_CURSORS: usize = 10_000;
const CURSOR_IDLE: Duration = Duration::from_secs(30 * 60);

/// The connection string of a host, with the router's credentials.
pub type ConnectionStrings = Arc<dyn Fn(&str) -> String + Send + Sync>;

pub struct ReplicaSet {
    /// `set/host:port,…`, as it was given.
    pub address: String,
    members: Arc<Members>,
    cursors: Mutex<HashMap<i64, Holder>>,
    /// The latest time that a member has told of.
    time: AtomicU64,
    /// The latest that a member of any set of the cluster has told of.
    pub cluster_time: Arc<AtomicU64>,
}

/// The member that has a cursor.
struct Holder {
    member: Arc<Member>,
    used: Instant,
}

pub struct Member {
    pub upstream: Upstream,
    seen: RwLock<Described>,
}

#[derive(Default)]
struct Described {
    seen: Seen,
    /// Of two that say that they are primary, the later elected one is.
    election: Option<ObjectId>,
    /// It was told that the member is not reached.
    told: bool,
    /// Since when it has not said what it is.
    missed: Option<Instant>,
    /// Why it is asked nothing.
    refused: Option<String>,
}

struct Members {
    access: ConnectionStrings,
    all: RwLock<Vec<Arc<Member>>>,
    looks: Mutex<Looks>,
    news: Condvar,
    waiting: AtomicUsize,
    /// That of the cluster.
    cluster_time: Arc<AtomicU64>,
}

#[derive(Default)]
struct Looks {
    /// How many looks at once were requested.
    asked: u64,
    /// When a reply was late.
    late: Option<Instant>,
    closed: bool,
}

/// What of a command decides where it goes.
pub struct ServerSelection<'m> {
    body: Doc<'m>,
    preference: ReadPreference,
    pub terms: Terms,
    /// `maxTimeMS`: no member, and no reply, is waited for longer.
    pub most: Option<Duration>,
}

/// What of a command decides what its reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The cursor that it is about.
    cursor: Option<i64>,
    /// A second run does no harm.
    repeatable: bool,
}

/// Commands that any member with the data can answer.
const READS: [&str; 12] = [
    "find",
    "aggregate",
    "count",
    "distinct",
    "explain",
    "listCollections",
    "listIndexes",
    "dbStats",
    "dbstats",
    "collStats",
    "collstats",
    "dataSize",
];

/// Whether the last stage writes: a merged result must not be merged twice.
fn is_written(stages: Doc<'_>) -> bool {
    let last = stages.values().last().and_then(|s| s.as_doc()?.first());
    last.is_some_and(|e| matches!(e.name, "$merge" | "$out"))
}

impl<'m> ServerSelection<'m> {
    /// Of a whole message.
    pub fn of(message: &'m [u8]) -> Outcome<ServerSelection<'m>> {
        let body = message.get(upstream::BODY_AT..).and_then(Doc::new);
        let body = body.unwrap_or(Doc::EMPTY);
        let first = body.first();
        let name = first.map_or("", |e| e.name);
        let (mut given, mut numbered, mut most) = (None, false, None);
        let (mut in_transaction, mut merges) = (false, false);
        for e in body.iter().skip(1) {
            match e.name {
                "$readPreference" => given = Some(e.val),
                "txnNumber" => numbered = true,
                "maxTimeMS" => most = e.val.to_i64_exact().filter(|ms| *ms > 0),
                "autocommit" => in_transaction = true,
                "mergeTarget" => merges = true,
                "pipeline" => merges |= e.val.as_array().is_some_and(is_written),
                _ => {}
            }
        }
        let reads = READS.contains(&name) && !in_transaction && !merges;
        let cursor = match name {
            "getMore" => first.and_then(|e| e.val.to_i64_exact()),
            "killCursors" => {
                let list = body.get("cursors").and_then(Val::as_array);
                list.and_then(|l| l.values().next()?.to_i64_exact())
            }
            _ => None,
        };
        Ok(ServerSelection {
            preference: match given.filter(|_| reads) {
                Some(given) => ReadPreference::parse(given)?,
                None => ReadPreference::PRIMARY,
            },
            terms: Terms {
                cursor,
                // One state of a time is kept, however often it is asked for.
                repeatable: reads || numbered && !in_transaction || name == "_pandoSnapshot",
            },
            // Of a getMore it is how long the server may wait for news.
            most: most
                .filter(|_| name != "getMore")
                .map(|ms| Duration::from_millis(ms.unsigned_abs())),
            body,
        })
    }

    fn after_cluster_time(&self) -> Option<u64> {
        let concern = self.body.get("readConcern")?.as_doc()?;
        concern.get("afterClusterTime")?.as_timestamp()
    }
}

impl ReplicaSet {
    pub fn new(address: &str, access: ConnectionStrings) -> ReplicaSet {
        ReplicaSet::of_cluster(address, access, Arc::default())
    }

    /// One of the sets of a cluster, which have one clock.
    pub fn of_cluster(
        address: &str,
        access: ConnectionStrings,
        cluster_time: Arc<AtomicU64>,
    ) -> ReplicaSet {
        let hosts = address.split_once('/').map_or(address, |(_, hosts)| hosts);
        let members = Arc::new(Members {
            access,
            all: RwLock::default(),
            looks: Mutex::default(),
            news: Condvar::new(),
            waiting: AtomicUsize::new(0),
            cluster_time: cluster_time.clone(),
        });
        for host in hosts.split(',').filter(|host| !host.is_empty()) {
            members.add(host);
        }
        ReplicaSet {
            address: address.into(),
            members,
            cursors: Mutex::default(),
            time: AtomicU64::new(0),
            cluster_time,
        }
    }

    /// The set's name, where the address gives one.
    pub fn name(&self) -> Option<&str> {
        self.address.split_once('/').map(|(name, _)| name)
    }

    /// Whether a primary is known, or comes to be within that time.
    pub fn has_primary_within(&self, patience: Duration) -> bool {
        let found = self.members.find(&ReadPreference::PRIMARY, patience);
        found.is_some()
    }

    /// The member that a command goes to.
    pub fn choose(&self, selection: &ServerSelection<'_>) -> Outcome<Arc<Member>> {
        self.choose_within(selection, PATIENCE)
    }

    fn choose_within(
        &self,
        selection: &ServerSelection<'_>,
        patience: Duration,
    ) -> Outcome<Arc<Member>> {
        if let Some(id) = selection.terms.cursor
            && let Some(holder) = self.cursors.lock().get_mut(&id)
        {
            holder.used = Instant::now();
            return Ok(holder.member.clone());
        }
        if selection.preference.mode != ReadMode::Primary
            && let Some(after) = selection.after_cluster_time()
        {
            self.reach(after);
        }
        let most = operation_time::at_most(selection.most.unwrap_or(patience));
        let most = Some(most).filter(|most| *most < patience);
        let found = self
            .members
            .find(&selection.preference, most.unwrap_or(patience));
        found.ok_or_else(|| match (most, self.members.refused()) {
            (_, Some(why)) => Failure::Client(err!(IncompatibleServerVersion, "{why}")),
            (Some(_), None) => time_is_over(),
            (None, None) => self.unsatisfied(&selection.preference),
        })
    }

    /// The same where nothing need be waited for: no cursor, and a member that is known.
    pub fn choose_now(&self, selection: &ServerSelection<'_>) -> Option<Arc<Member>> {
        let behind = || selection.after_cluster_time() > Some(self.time.load(Ordering::Relaxed));
        let by_another = selection.preference.mode != ReadMode::Primary;
        match selection.terms.cursor.is_some() || by_another && behind() {
            true => None,
            false => self.members.pick(&selection.preference),
        }
    }

    /// Has the set's log come to a time that another set has told of: nothing need be written in
    /// this one for that. Without a primary the member that is asked waits for it.
    fn reach(&self, time: u64) {
        if time <= self.time.load(Ordering::Relaxed) {
            return;
        }
        let at_least = bson::Value::timestamp(time);
        let ask = doc! {"_pandoTime": 1, "atLeast": at_least, "$db": "admin"};
        if let Ok(reply) = self.call_within(&message(ask.as_doc(), &[]), LOOK_FOR_PRIMARY)
            && error_of(reply.as_doc()).is_none()
        {
            self.time.fetch_max(time, Ordering::Relaxed);
        }
    }

    fn unsatisfied(&self, preference: &ReadPreference) -> Failure {
        let name = self.name().unwrap_or(&self.address);
        Failure::Client(err!(
            FailedToSatisfyReadPreference,
            "Could not find host matching read preference {} for set {name}",
            preference.shown()
        ))
    }

    /// Sends a message to a member that it is for and gives its reply, an error reply too.
    pub fn call(&self, message: &[u8]) -> Outcome<DocBuf> {
        self.call_within(message, PATIENCE)
    }

    /// The same, where a member is looked for no longer than that.
    pub fn call_within(&self, message: &[u8], patience: Duration) -> Outcome<DocBuf> {
        let selection = ServerSelection::of(message)?;
        self.call_by(message, &selection, patience, end_of_step(selection.most))
    }

    /// The same of what has begun before: `until` its own time is over.
    pub fn call_until(&self, message: &[u8], until: Option<Instant>) -> Outcome<DocBuf> {
        self.call_by(message, &ServerSelection::of(message)?, PATIENCE, until)
    }

    /// Sends a message to each member that is there, and waits a little for each reply. A member that
    /// does not get it, or refuses, is ignored.
    pub fn tell_all(&self, message: &[u8]) {
        let all = self.members.all.read().clone();
        let is_there = |m: &&Arc<Member>| {
            let seen = m.seen.read();
            seen.missed.is_none() && seen.refused.is_none()
        };
        for member in all.iter().filter(is_there) {
            let wait = Wait::to(Some(Instant::now() + TOLD), &|| ());
            if let Err(e) = member.upstream.call(message, &wait) {
                tracing::debug!(target: "SHARDING", host = member.upstream.host, error = %e, "A member was not told");
            }
        }
    }

    fn call_by(
        &self,
        message: &[u8],
        selection: &ServerSelection<'_>,
        patience: Duration,
        until: Option<Instant>,
    ) -> Outcome<DocBuf> {
        let began = Instant::now();
        // A wait for news is long on purpose, so it is never late.
        let late = || {
            if selection.terms.cursor.is_none() {
                self.is_late();
            }
        };
        let wait = Wait::to(until, &late);
        loop {
            let mut left = patience.saturating_sub(began.elapsed());
            if let Some(until) = until {
                left = left.min(until.saturating_duration_since(Instant::now()));
            }
            let over = |failure| match until.is_some_and(|until| until <= Instant::now()) {
                true => time_is_over(),
                false => failure,
            };
            let member = self.choose_within(selection, left).map_err(over)?;
            let reply = member.upstream.call(message, &wait);
            match self.judge(selection.terms, &member, reply) {
                Some(outcome) => return outcome,
                None if began.elapsed() > patience => {
                    return Err(self.unsatisfied(&selection.preference));
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// A reply is late: the set's primary is looked for again, and the member that has to reply is
    /// checked.
    pub fn is_late(&self) {
        let mut looks = self.members.looks.lock();
        if looks.late.is_none_or(|late| late.elapsed() >= LATE) {
            looks.late = Some(Instant::now());
            looks.asked += 1;
            self.members.news.notify_all();
        }
    }

    /// What a member's reply means. `None`: the command has to be sent again, to the member that it is
    /// for now.
    pub fn judge(
        &self,
        terms: Terms,
        member: &Arc<Member>,
        reply: Outcome<DocBuf>,
    ) -> Option<Outcome<DocBuf>> {
        match reply {
            Ok(reply) => {
                let failed = failed_by(reply.as_doc());
                let ended = failed.is_some_and(|code| is_of_election(code, terms.repeatable));
                if ended {
                    self.members.lose(member);
                }
                if ended && terms.cursor.is_none() {
                    return None;
                }
                self.note(terms, member, &reply);
                Some(Ok(reply))
            }
            // The operation's own time is over.
            Err(failure @ Failure::Client(_)) => Some(Err(failure)),
            Err(failure) => {
                self.members.lose(member);
                let again = match failure {
                    // Nothing was sent.
                    Failure::Unreachable(_) => true,
                    _ => terms.repeatable,
                };
                match again && terms.cursor.is_none() {
                    true => None,
                    false => Some(Err(failure)),
                }
            }
        }
    }

    /// Remembers the set's time and the cursor's member from a reply.
    fn note(&self, terms: Terms, member: &Arc<Member>, reply: &DocBuf) {
        if let Some(time) = reply.get("operationTime").and_then(Val::as_timestamp) {
            self.time.fetch_max(time, Ordering::Relaxed);
        }
        let id = crate::reply::cursor_id(reply);
        if terms.cursor == Some(id) && id != 0 {
            return;
        }
        if id == 0 && terms.cursor.is_none() {
            return;
        }
        let mut cursors = self.cursors.lock();
        if let Some(ended) = terms.cursor {
            cursors.remove(&ended);
        }
        if id != 0 {
            let now = Instant::now();
            if cursors.len() >= MOST_CURSORS {
                cursors.retain(|_, holder| now - holder.used < CURSOR_IDLE);
            }
            let member = member.clone();
            cursors.insert(id, Holder { member, used: now });
        }
    }
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        self.members.looks.lock().closed = true;
        self.members.news.notify_all();
    }
}

impl Members {
    /// A member more, which is asked what it is from now on.
    fn add(self: &Arc<Self>, host: &str) {
        let mut all = self.all.write();
        if all.iter().any(|m| m.upstream.host == host) {
            return;
        }
        let member = Arc::new(Member {
            upstream: Upstream::new(host, (self.access)(host)),
            seen: RwLock::default(),
        });
        all.push(member.clone());
        let members = self.clone();
        let spawned = std::thread::Builder::new()
            .name("member".into())
            .spawn(move || members.watch(&member));
        if let Err(e) = spawned {
            tracing::error!(target: "NETWORK", host, error = %e, "A member is not watched");
        }
    }

    /// Asks a member what it is until it, or the set, is not needed any more.
    fn watch(self: Arc<Self>, member: &Arc<Member>) {
        let (mut connection, mut news) = (None, None);
        let (mut asked, mut in_vain, mut time) = (0, 0, 0);
        loop {
            let version = self.look(member, &mut connection, news.take());
            let before = std::mem::replace(&mut time, self.cluster_time.load(Ordering::Relaxed));
            let mut looks = self.looks.lock();
            self.news.notify_all();
            let mut pause = self.pause(time > before);
            if self.waiting.load(Ordering::Relaxed) > 0 {
                pause = pause_after(in_vain);
                in_vain += 1;
                if let Some(version) = version {
                    news = Some((version, pause));
                    pause = LOOK_FOR_SOMEBODY;
                }
            } else {
                in_vain = 0;
            }
            let until = Instant::now() + pause;
            // Two looks do not follow each other at once, however often they are asked for.
            let earliest = Instant::now() + LOOK_FOR_SOMEBODY;
            while !looks.closed && self.has(member) && Instant::now() < until {
                let due = if looks.asked > asked { earliest } else { until };
                if Instant::now() >= due {
                    break;
                }
                self.news.wait_until(&mut looks, due);
            }
            if looks.closed || !self.has(member) {
                return;
            }
            if looks.asked > asked {
                // What it is has been forgotten, so it answers though it has not changed.
                news = None;
            }
            asked = looks.asked;
        }
    }

    fn pause(&self, time_goes_on: bool) -> Duration {
        match self.primary() {
            None => LOOK_FOR_PRIMARY,
            Some(_) if time_goes_on => LOOK,
            Some(_) => LOOK_FOR_TIME,
        }
    }

    fn has(&self, member: &Arc<Member>) -> bool {
        self.all.read().iter().any(|m| Arc::ptr_eq(m, member))
    }

    fn primary(&self) -> Option<Arc<Member>> {
        let all = self.all.read();
        let primary = |m: &&Arc<Member>| m.seen.read().seen.kind == MemberKind::Primary;
        all.iter().find(primary).cloned()
    }

    /// The version of what the member says it is. `news`: it answers when it is not what it was at
    /// that version, at the latest after that time.
    fn look(
        self: &Arc<Self>,
        member: &Arc<Member>,
        connection: &mut Option<Connection>,
        news: Option<(DocBuf, Duration)>,
    ) -> Option<DocBuf> {
        let began = Instant::now();
        let late = self.looks.lock().late;
        let limit = match late.is_some_and(|late| late.elapsed() < 2 * LATE) {
            true => LATE_HELLO_TIMEOUT,
            false => HELLO_TIMEOUT,
        };
        match member.upstream.hello(connection, news.as_ref(), limit) {
            Ok(hello) => {
                let at_once = news.is_none().then(|| began.elapsed());
                self.learn(member, hello.as_doc(), at_once);
                let version = hello.get("topologyVersion").and_then(Val::as_doc);
                version.map(Doc::to_buf)
            }
            Err(why) => {
                let missed = Some(self.miss(member));
                let mut described = member.seen.write();
                if !described.told {
                    tracing::warn!(target: "NETWORK", host = %member.upstream.host, error = %why, "A member is not reached");
                }
                *described = Described {
                    told: true,
                    missed,
                    ..Described::default()
                };
                None
            }
        }
    }

    /// A member does not answer. Its requests are given up if another member is primary, or if it does
    /// not answer for long. Since when it does not.
    fn miss(&self, member: &Arc<Member>) -> Instant {
        let missed = member.seen.read().missed.unwrap_or_else(Instant::now);
        let primary = self.primary();
        let has_other = primary.is_some_and(|primary| !Arc::ptr_eq(&primary, member));
        if has_other || missed.elapsed() >= MISSED {
            member.upstream.cut();
        }
        missed
    }

    /// Takes over what a member says of itself, and of the set. `took`: how long an answer took that
    /// was given at once.
    fn learn(self: &Arc<Self>, member: &Arc<Member>, hello: Doc<'_>, took: Option<Duration>) {
        let time = time_in(hello).unwrap_or(0);
        self.cluster_time.fetch_max(time, Ordering::Relaxed);
        let is = |field: &str| hello.get(field).is_some_and(Val::truthy);
        let refused = refusal(&member.upstream.host, hello);
        let kind = match () {
            _ if refused.is_some() => MemberKind::Other,
            _ if is("isWritablePrimary") => MemberKind::Primary,
            _ if is("secondary") && !is("hidden") => MemberKind::Secondary,
            _ => MemberKind::Other,
        };
        let last = hello.get("lastWrite").and_then(Val::as_doc);
        let election = hello.get("electionId").and_then(Val::as_oid);
        let before = member.seen.read().seen.round_trip;
        let seen = Seen {
            kind,
            tags: hello
                .get("tags")
                .and_then(Val::as_doc)
                .map_or_else(DocBuf::new, Doc::to_buf),
            // As drivers do: a fifth of the newest.
            round_trip: match took {
                Some(took) if before.is_zero() => took,
                Some(took) => before.mul_f64(0.8) + took.mul_f64(0.2),
                None => before,
            },
            at: now_millis(),
            last_write: last
                .and_then(|l| l.get("lastWriteDate")?.as_date())
                .unwrap_or(0),
        };
        {
            let mut described = member.seen.write();
            if let Some(why) = refused.as_ref().filter(|_| described.refused != refused) {
                tracing::error!(target: "NETWORK", host = %member.upstream.host, why, "A member is of another release");
            }
            *described = Described {
                seen,
                election,
                told: false,
                missed: None,
                refused,
            };
        }
        self.meet(member, hello, kind);
    }

    /// Members of which a member tells; a primary also says which are none any more, and that an
    /// earlier one is none.
    fn meet(self: &Arc<Self>, member: &Arc<Member>, hello: Doc<'_>, kind: MemberKind) {
        let list = |field: &str| hello.get(field).and_then(Val::as_array);
        let lists = [list("hosts"), list("passives")];
        let told: Vec<&str> = lists
            .iter()
            .flatten()
            .flat_map(|l| l.values().filter_map(Val::as_str))
            .collect();
        told.iter().for_each(|host| self.add(host));
        if kind != MemberKind::Primary || told.is_empty() {
            return;
        }
        let election = member.seen.read().election;
        let mut all = self.all.write();
        for other in all.iter().filter(|m| !Arc::ptr_eq(m, member)) {
            let mut described = other.seen.write();
            if described.missed.is_some() {
                other.upstream.cut();
            }
            if described.seen.kind == MemberKind::Primary && described.election <= election {
                *described = Described::default();
            }
        }
        // The name under which it was met may be one that the set does not know.
        let listed = |m: &Arc<Member>| told.contains(&m.upstream.host.as_str());
        if listed(member) {
            all.retain(listed);
        }
    }

    /// A member that was as is wanted is not, or is gone: all are asked anew.
    fn lose(&self, member: &Arc<Member>) {
        *member.seen.write() = Described::default();
        member.upstream.forget();
        self.hurry();
    }

    fn hurry(&self) {
        self.looks.lock().asked += 1;
        self.news.notify_all();
    }

    /// A member that may be asked; `None` where none comes to be known in time.
    fn find(&self, preference: &ReadPreference, patience: Duration) -> Option<Arc<Member>> {
        if let Some(found) = self.pick(preference) {
            return Some(found);
        }
        let until = Instant::now() + patience;
        if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            self.hurry();
        }
        let found = loop {
            let mut looks = self.looks.lock();
            // Under the lock: news after this wakes the wait up.
            if let Some(found) = self.pick(preference) {
                break Some(found);
            }
            if looks.closed || Instant::now() >= until || self.refused().is_some() {
                break None;
            }
            self.news.wait_until(&mut looks, until);
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Why no member can be asked, where all are of another release.
    fn refused(&self) -> Option<String> {
        let all = self.all.read();
        let mut why = all.iter().map(|m| m.seen.read().refused.clone());
        let first = why.next()??;
        why.all(|other| other.is_some()).then_some(first)
    }

    fn pick(&self, preference: &ReadPreference) -> Option<Arc<Member>> {
        if preference.mode == ReadMode::Primary {
            return self.primary();
        }
        let all = self.all.read();
        let seen: Vec<Seen> = all.iter().map(|m| m.seen.read().seen.clone()).collect();
        let chosen = preference.choose(&seen, LOOK);
        let at = match chosen.len() {
            0 => return None,
            n => chosen[rand::random::<u32>() as usize % n],
        };
        all.get(at).cloned()
    }
}

/// Why a server with this answer to `hello` is asked nothing.
fn refusal(host: &str, hello: Doc<'_>) -> Option<String> {
    match error_of(hello) {
        Some(e) if e.code == Code::IncompatibleServerVersion => {
            Some(format!("{host} says: {}", e.message))
        }
        // What else it says of itself it may say otherwise soon.
        Some(_) => None,
        None => {
            let theirs = hello.get(protocol::FIELD).and_then(Val::as_doc);
            protocol::disagreement(host, theirs)
        }
    }
}

/// Before the next look after so many in vain; not the same for all routers.
fn pause_after(in_vain: u32) -> Duration {
    let longer = LOOK_FOR_SOMEBODY.saturating_mul(1 << in_vain.min(8));
    longer
        .min(LOOK_FOR_PRIMARY)
        .mul_f64(rand::random_range(0.75..=1.0))
}

fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as i64)
}

/// The code of an error reply.
fn failed_by(reply: Doc<'_>) -> Option<Code> {
    match reply.get("ok").is_some_and(Val::truthy) {
        true => None,
        false => error_of(reply).map(|e| e.code),
    }
}

/// Whether an error says that the member is not what the command was for. One that was interrupted
/// may have written.
fn is_of_election(code: Code, repeatable: bool) -> bool {
    match code {
        Code::NotWritablePrimary | Code::NotPrimaryNoSecondaryOk | Code::NotPrimaryOrSecondary => {
            true
        }
        Code::PrimarySteppedDown
        | Code::InterruptedDueToReplStateChange
        | Code::InterruptedAtShutdown
        | Code::ShutdownInProgress => repeatable,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn a_set_of_another_release_is_asked_nothing() {
        let (set, member) = fake_set(7);
        member.primary.store(true, Ordering::Relaxed);
        let ping = doc! {"ping": 1, "$db": "admin"};
        let began = Instant::now();
        let Err(Failure::Client(e)) = set.call(&message(ping.as_doc(), &[])) else {
            panic!("it was asked");
        };
        assert_eq!(e.code, Code::IncompatibleServerVersion);
        assert!(
            e.message.contains("speaks versions 7 to 7"),
            "{}",
            e.message
        );
        assert!(began.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn who_waits_for_a_primary_asks_rarely_and_hears_of_it_at_once() {
        let (set, member) = fake_set(1);
        let waiting = set.clone();
        let waits = std::thread::spawn(move || {
            let ping = doc! {"ping": 1, "$db": "admin"};
            let reply = waiting.call(&message(ping.as_doc(), &[])).unwrap();
            (Instant::now(), reply)
        });
        std::thread::sleep(Duration::from_secs(3));
        let asked = member.hellos.load(Ordering::Relaxed);
        // Every 20 ms it would be 150 times.
        assert!((4..30).contains(&asked), "{asked}");
        let elected = Instant::now();
        member.primary.store(true, Ordering::Relaxed);
        let (heard, reply) = waits.join().unwrap();
        assert_eq!(reply, doc! {"ok": 1.0});
        let after = heard - elected;
        assert!(after < Duration::from_millis(250), "{after:?}");
    }

    #[test]
    fn the_clusters_time_is_heard_of_who_says_what_it_is() {
        let ((host, member), time) = (fake_member(1), Arc::<AtomicU64>::default());
        member.primary.store(true, Ordering::Relaxed);
        member.time.store(7 << 32, Ordering::Relaxed);
        let set = ReplicaSet::of_cluster(&format!("s/{host}"), access(), time.clone());
        let hears = |wanted: u64| {
            let until = Instant::now() + LOOK / 2;
            while time.load(Ordering::Relaxed) != wanted && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(time.load(Ordering::Relaxed), wanted);
        };
        hears(7 << 32);
        member.time.store(8 << 32, Ordering::Relaxed);
        set.members.hurry();
        hears(8 << 32);
        // It was asked for nothing but hello.
        assert_eq!(member.others.load(Ordering::Relaxed), 0);
        assert_eq!(set.members.pause(true), LOOK);
        assert_eq!(set.members.pause(false), LOOK_FOR_TIME);
    }

    fn ask(set: &ReplicaSet, command: DocBuf) -> Outcome<DocBuf> {
        set.call(&message_of(&command))
    }

    /// The process is there, and its kernel takes what comes.
    #[test]
    fn what_waits_for_a_stopped_primary_ends_in_its_time_or_goes_to_the_next() {
        let ((host, old), (other, new)) = (fake_member(1), fake_member(1));
        let set = Arc::new(ReplicaSet::new(&format!("s/{host},{other}"), access()));
        old.primary.store(true, Ordering::Relaxed);
        let find = || doc! {"find": "c", "$db": "d"};
        ask(&set, find()).unwrap();
        old.deaf.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let timed = doc! {"find": "c", "maxTimeMS": 300, "$db": "d"};
        let Err(Failure::Client(e)) = ask(&set, timed) else {
            panic!("it has been answered");
        };
        assert_eq!(e.code, Code::MaxTimeMSExpired);
        assert!(began.elapsed() < MISSED / 2);
        let insert = doc! {"insert": "c", "$db": "d"};
        let numbered = doc! {"insert": "c", "txnNumber": 1i64, "$db": "d"};
        let waits = [find(), numbered, insert].map(|command| {
            let set = set.clone();
            std::thread::spawn(move || ask(&set, command))
        });
        // All three are with the old primary.
        std::thread::sleep(Duration::from_millis(500));
        new.primary.store(true, Ordering::Relaxed);
        let [read, retried, once] = waits.map(|waits| waits.join().unwrap());
        assert!(read.is_ok() && retried.is_ok(), "{read:?} {retried:?}");
        assert!(matches!(once, Err(Failure::Lost(_))), "{once:?}");
        assert_eq!(new.others.load(Ordering::Relaxed), 2);
        old.deaf.store(false, Ordering::Relaxed);
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let first = pause_after(0);
        assert!(first <= LOOK_FOR_SOMEBODY && first >= LOOK_FOR_SOMEBODY.mul_f64(0.7));
        for n in 5..40 {
            let pause = pause_after(n);
            assert!(pause <= LOOK_FOR_PRIMARY && pause >= LOOK_FOR_PRIMARY.mul_f64(0.7));
        }
    }

    #[test]
    fn a_message_says_where_it_goes() {
        let secondary = || doc! {"mode": "secondary"};
        for (body, mode, cursor, repeatable) in [
            (
                doc! {"find": "c", "$readPreference": secondary()},
                ReadMode::Secondary,
                None,
                true,
            ),
            (
                doc! {"insert": "c", "$readPreference": secondary()},
                ReadMode::Primary,
                None,
                false,
            ),
            (
                doc! {"insert": "c", "txnNumber": 1i64},
                ReadMode::Primary,
                None,
                true,
            ),
            (
                doc! {"find": "c", "autocommit": false, "$readPreference": secondary()},
                ReadMode::Primary,
                None,
                false,
            ),
            (
                doc! {"aggregate": 1, "mergeTarget": "d.c", "$readPreference": secondary()},
                ReadMode::Primary,
                None,
                false,
            ),
            // What writes is not done twice.
            (
                doc! {
                    "aggregate": "c", "$readPreference": secondary(),
                    "pipeline": bson::array![doc! {"$match": doc! {}}, doc! {"$merge": "d"}],
                },
                ReadMode::Primary,
                None,
                false,
            ),
            (
                doc! {"getMore": 7i64, "collection": "c"},
                ReadMode::Primary,
                Some(7),
                false,
            ),
            (
                doc! {"killCursors": "c", "cursors": bson::array![8i64]},
                ReadMode::Primary,
                Some(8),
                false,
            ),
        ] {
            let sent = message(body.as_doc(), &[]);
            let asked = ServerSelection::of(&sent).unwrap();
            let terms = Terms { cursor, repeatable };
            assert_eq!(
                (asked.preference.mode, asked.terms),
                (mode, terms),
                "{body:?}"
            );
        }
    }
}
