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

pub(crate) mod client_concern;
pub(crate) mod snapshot;

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use crate::state::transactions::{Participant, TRANSIENT, Transaction, unknown};
use bson::{DocBuf, Val, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::upstream::{error_of, message, with_fields};
use cluster_view::{Failure, Outcome, write_concern};
use errors::{Code, Error, err};
use mover::TwoPhase;
use mover::two_phase::{Ended, Id};
use sharding::two_phase::{Coordinator, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a commit waits for an earlier attempt that is still in progress.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
/// Whether a reply says that a statement failed, and so that its shard has aborted.
pub(crate) fn failed(reply: &DocBuf) -> bool {
    let errors = reply.get("nErrors").and_then(Val::to_i64_exact);
    error_of(reply.as_doc()).is_some() || reply.get("writeErrors").is_some() || errors > Some(0)
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
    let number = command.txn_number();
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
        assert!(
            joined.clone().any(|p| p.wrote && p.shard == recovery),
            "the shard that decides was written to"
        );
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
    let number = command.txn_number();
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
        let number = command.txn_number();
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
        let number = command.txn_number();
        match ended.verdict {
            Verdict::Committed => {
                let mut w = Writer::new();
                if crate::transactions::client_concern::beyond_majority(command).is_some() {
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
            (None, None) => Ok(crate::request::done()),
        }
    }
}

fn two_phase_id(command: &RoutedCommand<'_>) -> Id {
    Id::new(command.session_document(), command.generic.txn_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::with_command;

    #[test]
    fn drivers_begin_again_where_that_helps() {
        for (command, code, labelled_so) in [
            (
                r#"{"find":"c","autocommit":false}"#,
                Code::WriteConflict,
                true,
            ),
            (
                r#"{"find":"c","autocommit":false}"#,
                Code::StaleConfig,
                true,
            ),
            (
                r#"{"find":"c","autocommit":false}"#,
                Code::StaleDbVersion,
                true,
            ),
            (
                r#"{"find":"c","autocommit":false}"#,
                Code::SnapshotTooOld,
                true,
            ),
            (r#"{"find":"c","autocommit":false}"#, Code::BadValue, false),
            (
                r#"{"find":"c","autocommit":false}"#,
                Code::DuplicateKey,
                false,
            ),
            // Not of a transaction.
            (r#"{"find":"c"}"#, Code::WriteConflict, false),
        ] {
            with_command(command, |command| {
                let failure = Failure::Client(Error::new(code, "no"));
                let e = labelled(command, failure).into_error();
                let has = e.labels.contains(&TRANSIENT);
                assert_eq!((has, e.code), (labelled_so, code), "{}", command.body);
            });
        }
    }

    #[test]
    fn a_failed_statement_is_known_by_its_reply() {
        for (reply, wanted) in [
            (doc! {"n": 1, "ok": 1.0}, false),
            (doc! {"ok": 0.0, "code": 2}, true),
            (
                doc! {"n": 1, "writeErrors": bson::array![doc! {"index": 0}], "ok": 1.0},
                true,
            ),
            (doc! {"nErrors": 1, "ok": 1.0}, true),
            (doc! {"nErrors": 0, "ok": 1.0}, false),
        ] {
            assert_eq!(failed(&reply), wanted, "{reply:?}");
        }
    }
}
