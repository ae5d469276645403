//! Transactions through the router: a shard joins one with the first statement that it gets of it,
//! and only one of them may be written to.
//!
//! ```text
//! statement ─► shard that has joined: as it is │ another: startTransaction, with the read concern
//! commit    ─► shards that were only read, one after another ─► the shard that was written to
//! abort     ─► all
//! ```
//!
//! Invariant: the commit of the shard that was written to is the commit. It is sent last, and once
//! it was sent nothing else is asked again; so a commit that comes again, also through another
//! router, is answered by what that shard has recorded. A statement that fails ends the transaction
//! on all of its shards.

use crate::metadata::Placement;
use crate::request::Command;
use crate::service_impl::Router;
use crate::upstream::{error_of, message, with_fields};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::{Code, Error, err};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Sessions whose last transaction is remembered.
const MOST: usize = 100_000;
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
    aborted: bool,
}

/// The last transaction of each session.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<HashMap<Vec<u8>, Transaction>>);

fn session_of(command: &Command<'_>) -> (Vec<u8>, i64) {
    let lsid = command.document("lsid").unwrap_or(Doc::EMPTY);
    let parts = ["id", "uid"]
        .iter()
        .filter_map(|f| lsid.get(f)?.as_binary());
    let id = parts.flat_map(|(_, bytes)| bytes).copied().collect();
    (id, command.int("txnNumber").unwrap_or(-1))
}

fn unknown(number: i64) -> Failure {
    let e = err!(
        NoSuchTransaction,
        "the router knows of no transaction {number} that is in progress"
    );
    Failure::Client(e.with_label(TRANSIENT))
}

fn refused(why: &str) -> Failure {
    Failure::Client(err!(OperationNotSupportedInTransaction, "{why}"))
}

/// Whether a reply says that a statement failed, and so that its shard has aborted.
fn failed(reply: &DocBuf) -> bool {
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
    pub fn begin_statement(&self, command: &Command<'_>) -> Outcome<()> {
        let (session, number) = session_of(command);
        let starts = command.is("startTransaction");
        let mut all = self.0.lock();
        if all.len() >= MOST && !all.contains_key(&session) {
            all.clear();
        }
        match all.get(&session) {
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
            Some(t) if !starts && t.number == number => Ok(()),
            _ if !starts => Err(unknown(number)),
            _ => {
                let new = Transaction {
                    number,
                    read_concern: command.document("readConcern").map(|d| d.to_buf()),
                    ..Transaction::default()
                };
                all.insert(session, new);
                Ok(())
            }
        }
    }

    /// The statement as a shard has to get it.
    fn enlist(&self, command: &Command<'_>, shard: &Arc<str>, body: &DocBuf) -> Outcome<DocBuf> {
        let (session, number) = session_of(command);
        let mut all = self.0.lock();
        let transaction = all.get_mut(&session).filter(|t| t.number == number);
        let Some(transaction) = transaction.filter(|t| !t.aborted) else {
            return Err(unknown(number));
        };
        let body = not_first(body);
        let found = transaction.participants.iter().find(|p| p.shard == *shard);
        if found.is_some_and(|p| p.joined) {
            return Ok(body);
        }
        if found.is_none() {
            let level = transaction
                .read_concern
                .as_ref()
                .and_then(|d| d.get("level"));
            if !transaction.participants.is_empty()
                && level.and_then(Val::as_str) == Some("snapshot")
            {
                return Err(refused(
                    "A transaction over several shards with readConcern snapshot is not supported",
                ));
            }
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

    /// Notes a shard's reply to a statement; fails where it is the second that was written to.
    fn note(&self, command: &Command<'_>, shard: &Arc<str>, reply: &DocBuf) -> Outcome<()> {
        let (session, number) = session_of(command);
        let mut all = self.0.lock();
        let transaction = all.get_mut(&session).filter(|t| t.number == number);
        let Some(transaction) = transaction else {
            return Err(unknown(number));
        };
        let own = transaction.participants.iter_mut();
        if let Some(p) = own.into_iter().find(|p| p.shard == *shard) {
            p.joined = true;
            p.wrote |= has_written(command.name, reply);
        }
        match transaction.participants.iter().filter(|p| p.wrote).count() {
            0 | 1 => Ok(()),
            _ => Err(refused(
                "A transaction that writes on several shards is not supported",
            )),
        }
    }

    /// By which shard the outcome is known.
    fn recovery_shard(&self, command: &Command<'_>) -> Option<Arc<str>> {
        let (session, number) = session_of(command);
        let all = self.0.lock();
        let transaction = all.get(&session).filter(|t| t.number == number)?;
        let mut own = transaction.participants.iter();
        let decides = own.find(|p| p.wrote).or(transaction.participants.first());
        decides.map(|p| p.shard.clone())
    }

    fn change<T>(
        &self,
        command: &Command<'_>,
        change: impl FnOnce(&mut Transaction) -> T,
    ) -> Option<T> {
        let (session, number) = session_of(command);
        let mut all = self.0.lock();
        let transaction = all.get_mut(&session).filter(|t| t.number == number)?;
        Some(change(transaction))
    }
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
        command: &Command<'_>,
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
        command: &Command<'_>,
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
        command: &Command<'_>,
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
                let mut e = failure.into_error();
                if matches!(e.code, Code::HostUnreachable | Code::StaleConfig) {
                    e.labels.clear();
                    e = e.with_label(TRANSIENT);
                }
                Err(e.into())
            }
        }
    }

    /// Aborts a transaction where it has begun. A shard that is not reached does so at the end of
    /// its lifetime.
    fn abort_all(&self, command: &Command<'_>) -> Vec<Outcome<DocBuf>> {
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
        set.call(&message(body.as_doc(), &[]))
    }
}

pub(crate) fn abort(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let replies = router.abort_all(command);
    match replies.into_iter().next_back() {
        Some(reply) => reply,
        None => Err(unknown(session_of(command).1)),
    }
}

pub(crate) fn commit(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let body = command.without(&["recoveryToken"]).finish();
    let transactions = &router.transactions;
    let known = transactions.change(command, |t| {
        // One that has not joined had no statement that counts.
        let open = t
            .participants
            .iter()
            .filter(|p| p.joined && !p.wrote && !p.committed);
        let readers: Vec<Arc<str>> = open.map(|p| p.shard.clone()).collect();
        let writer = t.participants.iter().find(|p| p.wrote);
        (t.aborted, readers, writer.map(|p| p.shard.clone()))
    });
    let Some((aborted, readers, writer)) = known else {
        // Another router has run it: the shard that was written to knows.
        let token = command.document("recoveryToken");
        return match token.and_then(|t| t.get("recoveryShardId")?.as_str()) {
            Some(shard) => router.end_on(shard, &body),
            None => Err(unknown(session_of(command).1)),
        };
    };
    if aborted {
        return Err(unknown(session_of(command).1));
    }
    let mut last = None;
    for shard in readers {
        let reply = router.end_on(&shard, &body);
        let ended = reply.as_ref().is_ok_and(|r| error_of(r.as_doc()).is_none());
        if !ended && last.is_none() && writer.is_none() {
            // It is all that there is: what the shard says is the outcome.
            return reply;
        }
        if !ended {
            router.abort_all(command);
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
        transactions.change(command, |t| {
            let own = t.participants.iter_mut();
            own.filter(|p| p.shard == shard)
                .for_each(|p| p.committed = true);
        });
        last = reply.ok();
    }
    match (writer, last) {
        (Some(writer), _) => router.end_on(&writer, &body),
        (None, Some(reply)) => Ok(reply),
        (None, None) => Ok(crate::admin::done()),
    }
}
