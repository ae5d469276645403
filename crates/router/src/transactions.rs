//! Transactions through the router: a shard joins one with the first statement that it gets of it.
//!
//! ```text
//! statement ─► shard that has joined: as it is │ another: startTransaction, with the read concern
//! commit    ─► one shard written to at the most: those that were only read, then that one
//!           ─► several: in two phases (mover::two_phase)
//! abort     ─► all
//! ```
//!
//! Invariant: the shard that was written to first decides; replies name it to the client
//! (`recoveryToken`). Its commit is the commit, so one that comes again, also through another router,
//! is answered by what that shard has recorded. A statement that fails ends the transaction on all of
//! its shards.

use crate::request::{RoutedCommand, finish};
use crate::router::Router;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::upstream::{error_of, message, with_fields};
use cluster_view::{Failure, Outcome, write_concern};
use errors::{Code, Error, err};
use mover::TwoPhase;
use mover::two_phase::{Ended, Id};
use parking_lot::Mutex;
use sharding::two_phase::{Coordinator, Verdict};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sessions whose last transaction is remembered; beyond that, the user with the most sessions makes
/// room, in parts.
const MOST: usize = 100_000;
const PART: usize = 64;
/// How long a commit waits for an earlier attempt that is still in progress.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
const TRANSIENT: &str = "TransientTransactionError";

struct Participant {
    shard: Arc<str>,
    /// A statement has succeeded on it.
    joined: bool,
    wrote: bool,
    committed: bool,
}

#[derive(Default)]
struct Transaction {
    number: i64,
    read_concern: Option<DocBuf>,
    participants: Vec<Participant>,
    /// The shard that was written to first.
    recovery: Option<Arc<str>>,
    aborted: bool,
    /// Its commit was sent.
    ending: bool,
    /// A request is at work on its commit.
    busy: bool,
    /// The number of its last statement among all.
    used: u64,
}

/// The last transaction of each session.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<Remembered>);

/// Invariant: `many` counts the sessions of each user in `all`, and no user has none.
#[derive(Default)]
struct Remembered {
    all: HashMap<Vec<u8>, Transaction>,
    /// By user: what of a session's name follows its `id`.
    many: HashMap<Vec<u8>, usize>,
    statements: u64,
}

/// The bytes of `id` in a session's name.
const ID_BYTES: usize = 16;

fn user_of(session: &[u8]) -> &[u8] {
    session.get(ID_BYTES..).unwrap_or_default()
}

impl Remembered {
    fn insert(&mut self, session: Vec<u8>, new: Transaction, most: usize) {
        if let Some(known) = self.all.get_mut(&session) {
            *known = new;
            return;
        }
        if self.all.len() >= most {
            self.make_room(most / PART);
        }
        *self.many.entry(user_of(&session).to_vec()).or_default() += 1;
        self.all.insert(session, new);
    }

    fn remove(&mut self, session: &[u8]) {
        if self.all.remove(session).is_none() {
            return;
        }
        let user = user_of(session);
        match self.many.get_mut(user) {
            Some(many) if *many > 1 => *many -= 1,
            _ => drop(self.many.remove(user)),
        }
    }

    /// Forgets some sessions of the user with the most: first those that have ended, then the longest
    /// idle. It costs a look at all, for many that come after it.
    fn make_room(&mut self, some: usize) {
        let Some((user, _)) = self.many.iter().max_by_key(|(_, many)| **many) else {
            return;
        };
        let own = (self.all.iter()).filter(|(session, t)| user_of(session) == user && !t.busy);
        let mut own: Vec<(bool, u64, Vec<u8>)> = own
            .map(|(session, t)| (!t.aborted && !t.ending, t.used, session.clone()))
            .collect();
        let some = some.max(1).min(own.len());
        if some < own.len() {
            own.select_nth_unstable(some);
        }
        for (.., session) in own.drain(..some) {
            self.remove(&session);
        }
    }
}

/// What tells a session from others.
pub(crate) fn id_of(lsid: Doc<'_>) -> Vec<u8> {
    let parts = ["id", "uid"]
        .iter()
        .filter_map(|f| lsid.get(f)?.as_binary());
    parts.flat_map(|(_, bytes)| bytes).copied().collect()
}

fn session_of(command: &RoutedCommand<'_>) -> (Vec<u8>, i64) {
    let lsid = command.document("lsid").unwrap_or(Doc::EMPTY);
    (id_of(lsid), command.int("txnNumber").unwrap_or(-1))
}

fn unknown(number: i64) -> Failure {
    let e = err!(
        NoSuchTransaction,
        "the router knows of no transaction {number} that is in progress"
    );
    Failure::Client(e.with_label(TRANSIENT))
}

/// Whether a reply says that a statement failed, and so that its shard has aborted.
pub(crate) fn failed(reply: &DocBuf) -> bool {
    let errors = reply.get("nErrors").and_then(Val::to_i64_exact);
    error_of(reply.as_doc()).is_some() || reply.get("writeErrors").is_some() || errors > Some(0)
}

/// Whether a statement with this reply has written something.
fn has_written(command: &str, reply: &DocBuf) -> bool {
    let number = |d: Doc<'_>, name: &str| d.get(name).and_then(Val::to_i64_exact) > Some(0);
    match command {
        "insert" | "update" | "delete" => number(reply.as_doc(), "n"),
        "findAndModify" | "findandmodify" => {
            let last = reply.get("lastErrorObject").and_then(Val::as_doc);
            last.is_some_and(|last| number(last, "n"))
        }
        "find" | "aggregate" | "distinct" | "count" | "getMore" => false,
        _ => true,
    }
}

impl Transactions {
    /// A statement that comes from a client: the first begins its transaction.
    pub fn begin_statement(&self, command: &RoutedCommand<'_>) -> Outcome<()> {
        let (session, number) = session_of(command);
        let starts = command.is("startTransaction");
        let mut remembered = self.0.lock();
        remembered.statements += 1;
        let used = remembered.statements;
        let known = remembered.all.get_mut(&session);
        match known {
            Some(t) if starts && t.number == number && !t.participants.is_empty() => Err(err!(
                ConflictingOperationInProgress,
                "txnNumber {number} for the session has started already"
            )
            .into()),
            Some(t) if t.number > number => Err(err!(
                TransactionTooOld,
                "txnNumber {number} is less than last txnNumber {} seen in the session",
                t.number
            )
            .into()),
            Some(t) if !starts && t.number == number => {
                t.used = used;
                Ok(())
            }
            _ if !starts => Err(unknown(number)),
            _ => {
                let new = Transaction {
                    number,
                    read_concern: command.document("readConcern").map(|d| d.to_buf()),
                    used,
                    ..Transaction::default()
                };
                remembered.insert(session, new, MOST);
                Ok(())
            }
        }
    }

    /// Forgets the transaction of a session that ends with it.
    pub fn forget(&self, session: &[u8]) {
        self.0.lock().remove(session);
    }

    /// The statement as a shard has to get it.
    fn enlist(
        &self,
        command: &RoutedCommand<'_>,
        shard: &Arc<str>,
        body: &DocBuf,
    ) -> Outcome<DocBuf> {
        let (session, number) = session_of(command);
        let mut remembered = self.0.lock();
        let transaction = remembered.all.get_mut(&session);
        let transaction = transaction.filter(|t| t.number == number && !t.aborted);
        let Some(transaction) = transaction else {
            return Err(unknown(number));
        };
        if transaction.ending {
            return Err(err!(
                TransactionCommitted,
                "Transaction with {{ txnNumber: {number} }} has been committed."
            )
            .into());
        }
        let body = not_first(body);
        let found = transaction.participants.iter().find(|p| p.shard == *shard);
        if found.is_some_and(|p| p.joined) {
            return Ok(body);
        }
        if found.is_none() {
            transaction.participants.push(Participant {
                shard: shard.clone(),
                joined: false,
                wrote: false,
                committed: false,
            });
        }
        let body = with_fields(body.as_doc(), doc! {"startTransaction": true}.as_doc());
        Ok(match &transaction.read_concern {
            Some(concern) => with_fields(body.as_doc(), doc! {"readConcern": concern}.as_doc()),
            None => body,
        })
    }

    /// Notes a shard's reply to a statement.
    fn note(&self, command: &RoutedCommand<'_>, shard: &Arc<str>, reply: &DocBuf) -> Outcome<()> {
        let noted = self.change(command, |t| {
            let wrote = has_written(command.name, reply);
            if let Some(p) = t.participants.iter_mut().find(|p| p.shard == *shard) {
                p.joined = true;
                p.wrote |= wrote;
            }
            if wrote && t.recovery.is_none() {
                t.recovery = Some(shard.clone());
            }
        });
        noted.ok_or_else(|| unknown(session_of(command).1))
    }

    /// By which shard the outcome is known.
    fn recovery_shard(&self, command: &RoutedCommand<'_>) -> Option<Arc<str>> {
        self.change(command, |t| {
            let first = t.participants.first().map(|p| p.shard.clone());
            t.recovery.clone().or(first)
        })?
    }

    fn change<T>(
        &self,
        command: &RoutedCommand<'_>,
        change: impl FnOnce(&mut Transaction) -> T,
    ) -> Option<T> {
        let (session, number) = session_of(command);
        let mut remembered = self.0.lock();
        let transaction = remembered.all.get_mut(&session)?;
        (transaction.number == number).then(|| change(transaction))
    }
}

/// What a client is told of a statement that has failed: drivers begin a transaction again whose error
/// has the label.
pub(crate) fn labelled(command: &RoutedCommand<'_>, failure: Failure) -> Failure {
    if !command.in_transaction() || matches!(failure, Failure::NotYet(_)) {
        return failure;
    }
    let mut e = failure.into_error();
    let differ = matches!(e.code, Code::StaleConfig | Code::StaleDbVersion);
    if differ || commands::is_transient(e.code) {
        e.labels.clear();
        e = e.with_label(TRANSIENT);
    }
    e.into()
}

/// The statement without what only a shard's first one may have.
fn not_first(body: &DocBuf) -> DocBuf {
    let mut w = Writer::with_capacity(body.as_bytes().len());
    for e in body.as_doc() {
        if !matches!(e.name, "startTransaction" | "readConcern") {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}

impl Router {
    /// Sends a command to one shard; in a transaction, as a statement of it.
    pub(crate) fn send(
        &self,
        command: &RoutedCommand<'_>,
        placement: &Placement,
        shard: &Arc<str>,
        body: &DocBuf,
        sequences: &[wire::Sequence<'_>],
    ) -> Outcome<DocBuf> {
        if !command.in_transaction() {
            return self
                .cluster
                .send(placement, shard, body.as_doc(), sequences);
        }
        let body = self.transactions.enlist(command, shard, body)?;
        let reply = self
            .cluster
            .send(placement, shard, body.as_doc(), sequences)?;
        if !failed(&reply) {
            self.transactions.note(command, shard, &reply)?;
        }
        Ok(reply)
    }

    /// Sends commands to shards; in a transaction, as statements of it, one after another: what one
    /// shard has begun does not begin again where another is stale.
    pub(crate) fn scatter(
        &self,
        command: &RoutedCommand<'_>,
        placement: &Placement,
        commands: &[(Arc<str>, DocBuf)],
    ) -> Outcome<Vec<DocBuf>> {
        if !command.in_transaction() {
            return self.cluster.scatter(placement, commands);
        }
        let each = commands.iter();
        each.map(|(shard, body)| self.send(command, placement, shard, body, &[]))
            .collect()
    }

    /// What a statement's outcome means for its transaction, and what the client gets.
    pub(crate) fn after_statement(
        &self,
        command: &RoutedCommand<'_>,
        outcome: Outcome<DocBuf>,
    ) -> Outcome<DocBuf> {
        match outcome {
            Ok(reply) if !failed(&reply) => Ok(match self.transactions.recovery_shard(command) {
                Some(shard) => {
                    let token = doc! {"recoveryToken": doc! {"recoveryShardId": &*shard}};
                    with_fields(reply.as_doc(), token.as_doc())
                }
                None => reply,
            }),
            Ok(reply) => {
                self.abort_all(command);
                Ok(reply)
            }
            Err(failure) => {
                self.abort_all(command);
                Err(labelled(command, failure))
            }
        }
    }

    /// Aborts a transaction where it has begun. A shard that is not reached does so at the end of
    /// its lifetime.
    fn abort_all(&self, command: &RoutedCommand<'_>) -> Vec<Outcome<DocBuf>> {
        let shards = self.transactions.change(command, |t| {
            t.aborted = true;
            let own = t.participants.iter().map(|p| p.shard.clone());
            own.collect::<Vec<_>>()
        });
        let mut w = Writer::new();
        w.i32("abortTransaction", 1).bool("autocommit", false);
        for name in ["lsid", "txnNumber"] {
            if let Some(v) = command.field(name) {
                w.val(name, v);
            }
        }
        w.str("$db", "admin");
        let body = w.finish();
        let each = shards.unwrap_or_default().into_iter();
        each.map(|shard| self.end_on(&shard, &body)).collect()
    }

    fn end_on(&self, shard: &str, body: &DocBuf) -> Outcome<DocBuf> {
        let set = self.cluster.shard(shard)?;
        let reply = set.call(&message(body.as_doc(), &[]))?;
        self.cluster.note_time(reply.as_doc());
        Ok(reply)
    }
}

pub(crate) fn abort(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let number = session_of(command).1;
    let ending = router
        .transactions
        .change(command, |t| t.ending && !t.aborted);
    if ending == Some(true) {
        return Err(err!(
            TransactionCommitted,
            "Transaction with {{ txnNumber: {number} }} has been committed, or is about to be."
        )
        .into());
    }
    let replies = router.abort_all(command);
    match replies.into_iter().next_back() {
        Some(reply) => reply,
        None => Err(unknown(number)),
    }
}

/// What a commit has to do.
enum Plan {
    /// Those that were only read, and the shard that was written to.
    OnePhase {
        readers: Vec<Arc<str>>,
        writer: Option<Arc<str>>,
    },
    TwoPhase {
        recovery: Arc<str>,
        others: Vec<Arc<str>>,
        readers: Vec<Arc<str>>,
    },
    /// It was sent before, and the reply did not say what became of it, or was lost.
    Again {
        recovery: Arc<str>,
        others: Vec<Arc<str>>,
    },
    Aborted,
    /// Another request is at it.
    Wait,
}

impl Transaction {
    fn plan(&mut self) -> Plan {
        if self.aborted {
            return Plan::Aborted;
        }
        if self.busy {
            return Plan::Wait;
        }
        // One that has not joined had no statement that counts.
        let joined = self.participants.iter().filter(|p| p.joined);
        let shards = |which: &dyn Fn(&&Participant) -> bool| -> Vec<Arc<str>> {
            let found = joined.clone().filter(|p| which(p));
            found.map(|p| p.shard.clone()).collect()
        };
        let readers = shards(&|p| !p.wrote && !p.committed);
        let Some(recovery) = self.recovery.clone() else {
            return Plan::OnePhase {
                readers,
                writer: None,
            };
        };
        let others = shards(&|p| p.wrote && p.shard != recovery);
        if others.is_empty() {
            self.ending = true;
            return Plan::OnePhase {
                readers,
                writer: Some(recovery),
            };
        }
        let again = std::mem::replace(&mut self.ending, true);
        self.busy = true;
        match again {
            true => Plan::Again { recovery, others },
            false => Plan::TwoPhase {
                recovery,
                others,
                readers,
            },
        }
    }
}

pub(crate) fn commit(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    commit_with(router, command, None)
}

/// `executed`: the retryable statement in whose place the transaction is, which the deciding shard
/// records.
pub(crate) fn commit_with(
    router: &Router,
    command: &RoutedCommand<'_>,
    executed: Option<&DocBuf>,
) -> Outcome<DocBuf> {
    let number = session_of(command).1;
    let began = Instant::now();
    let plan = loop {
        let plan = router.transactions.change(command, Transaction::plan);
        match plan {
            None => return router.recover_by_token(command),
            Some(Plan::Wait) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Some(plan) => break plan,
        }
    };
    match plan {
        Plan::Aborted => Err(unknown(number)),
        Plan::OnePhase { readers, writer } => router.commit_one_phase(command, readers, writer),
        Plan::TwoPhase {
            recovery,
            others,
            readers,
        } => {
            let steps = Coordinator::commit(recovery.clone(), others, readers);
            router.commit_two_phase(command, &recovery, steps, executed)
        }
        Plan::Again { recovery, others } => {
            let steps = Coordinator::recover(recovery.clone(), others);
            router.commit_two_phase(command, &recovery, steps, executed)
        }
        Plan::Wait => Err(Failure::Lost(format!(
            "the commit of transaction {number} is under way"
        ))),
    }
}

impl Router {
    /// Another router has run it: the shard that decides knows what became of it. One that has not
    /// committed there never will, on any shard.
    fn recover_by_token(&self, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
        let number = session_of(command).1;
        let token = command.document("recoveryToken");
        let recovery = token.and_then(|t| t.get("recoveryShardId")?.as_str());
        let Some(recovery) = recovery.map(Arc::<str>::from) else {
            return Err(unknown(number));
        };
        self.cluster.shard(&recovery)?;
        let all = self.cluster.shard_names()?;
        let others = all.into_iter().map(Arc::from).collect();
        let steps = Coordinator::recover(recovery.clone(), others);
        let ended = self
            .cluster
            .end(&two_phase_id(command), &recovery, steps, None);
        if ended.past {
            return Err(err!(
                TransactionTooOld,
                "txnNumber {number} is less than the last that {recovery} has seen in the session"
            )
            .into());
        }
        self.end_reply(command, &recovery, ended)
    }

    fn commit_two_phase(
        &self,
        command: &RoutedCommand<'_>,
        recovery: &Arc<str>,
        steps: Coordinator,
        executed: Option<&DocBuf>,
    ) -> Outcome<DocBuf> {
        let ended = self
            .cluster
            .end(&two_phase_id(command), recovery, steps, executed);
        self.transactions.change(command, |t| {
            t.busy = false;
            t.aborted |= ended.verdict == Verdict::Aborted;
        });
        self.end_reply(command, recovery, ended)
    }

    /// What the client is told of the end of a transaction over several shards. A majority has it: a
    /// stricter write concern is awaited where the commit was decided.
    fn end_reply(
        &self,
        command: &RoutedCommand<'_>,
        recovery: &str,
        ended: Ended,
    ) -> Outcome<DocBuf> {
        let number = session_of(command).1;
        match ended.verdict {
            Verdict::Committed => {
                let mut w = Writer::new();
                if crate::client_concern::beyond_majority(command).is_some() {
                    let again = command.without(&["recoveryToken", "participants"]).finish();
                    let reply = self.end_on(recovery, &again)?;
                    write_concern::append(&mut w, &[write_concern::at_shard(reply, recovery)]);
                }
                Ok(finish(w, &ended.replies))
            }
            Verdict::Aborted => {
                let why = ended.why.map_or(String::new(), |why| format!(": {why}"));
                let e: Error = err!(NoSuchTransaction, "transaction {number} was aborted{why}");
                Err(e.with_label(TRANSIENT).into())
            }
            Verdict::Unknown => Err(Failure::Lost(format!(
                "it is not known whether transaction {number} has committed"
            ))),
        }
    }

    /// Commits what has been written to on one shard at the most, with the client's write concern.
    fn commit_one_phase(
        &self,
        command: &RoutedCommand<'_>,
        readers: Vec<Arc<str>>,
        writer: Option<Arc<str>>,
    ) -> Outcome<DocBuf> {
        let mut body = command.without(&["recoveryToken", "participants"]);
        self.cluster.say_time(&mut body);
        let body = body.finish();
        let mut last = None;
        for shard in readers {
            let reply = self.end_on(&shard, &body);
            let ended = reply.as_ref().is_ok_and(|r| error_of(r.as_doc()).is_none());
            if !ended && last.is_none() && writer.is_none() {
                // It is all that there is: what the shard says is the outcome.
                return reply;
            }
            if !ended {
                self.abort_all(command);
                let why = match reply {
                    Ok(reply) => error_of(reply.as_doc()).map_or(String::new(), |e| e.to_string()),
                    Err(failure) => failure.to_string(),
                };
                let e: Error = err!(
                    NoSuchTransaction,
                    "the transaction was aborted: its part on {shard} is gone: {why}"
                );
                return Err(e.with_label(TRANSIENT).into());
            }
            self.transactions.change(command, |t| {
                let own = t.participants.iter_mut();
                own.filter(|p| p.shard == shard)
                    .for_each(|p| p.committed = true);
            });
            last = reply.ok();
        }
        match (writer, last) {
            (Some(writer), _) => self.end_on(&writer, &body),
            (None, Some(reply)) => Ok(reply),
            (None, None) => Ok(crate::admin::done()),
        }
    }
}

fn two_phase_id(command: &RoutedCommand<'_>) -> Id {
    Id::new(command.document("lsid"), command.int("txnNumber"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(user: u8, n: u32) -> Vec<u8> {
        let mut name = vec![0; ID_BYTES];
        name[..4].copy_from_slice(&n.to_be_bytes());
        name.extend([user; 32]);
        name
    }

    fn used(used: u64) -> Transaction {
        let number = 1;
        Transaction {
            number,
            used,
            ..Transaction::default()
        }
    }

    /// A user beyond the limit loses transactions of its own, first those that have ended or are idle.
    #[test]
    fn one_user_does_not_end_what_others_have_begun() {
        let (most, mut remembered) = (640, Remembered::default());
        for n in 0..40 {
            remembered.insert(session(1, n), used(u64::from(n)), most);
        }
        let ended = Transaction {
            aborted: true,
            ..used(5000)
        };
        remembered.insert(session(2, 0), ended, most);
        let busy = Transaction {
            busy: true,
            ..used(41)
        };
        remembered.insert(session(2, 1), busy, most);
        for n in 2..5000 {
            remembered.insert(session(2, n), used(100 + u64::from(n)), most);
            assert!(remembered.all.len() <= most);
            assert_eq!(
                remembered.many.values().sum::<usize>(),
                remembered.all.len()
            );
        }
        let has = |user, n| remembered.all.contains_key(&session(user, n));
        assert!((0..40).all(|n| has(1, n)) && has(2, 1) && !has(2, 0));
        assert!((4500..5000).all(|n| has(2, n)) && !has(2, 2));
        for n in 0..40 {
            remembered.remove(&session(1, n));
        }
        assert_eq!(remembered.many.len(), 1);
    }
}
