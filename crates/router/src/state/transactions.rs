//! The last transaction of each session: its number, the shards that have joined it, how far its end
//! is.
//!
//! Invariant: one statement of a transaction joins a shard. What is remembered is bounded, and no user
//! takes the place of others.

use crate::request::RoutedCommand;
use auth::session_id::Lsid;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::upstream::with_fields;
use cluster_view::{Failure, Outcome};
use errors::err;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Sessions whose last transaction is remembered; beyond that, the user with the most sessions makes
/// room, in parts.
const MOST: usize = 100_000;
const PART: usize = 64;
pub(crate) const TRANSIENT: &str = "TransientTransactionError";

pub(crate) struct Participant {
    pub shard: Arc<str>,
    /// A statement has succeeded on it.
    pub joined: bool,
    pub wrote: bool,
    pub committed: bool,
}

#[derive(Default)]
pub(crate) struct Transaction {
    pub number: i64,
    pub read_concern: Option<DocBuf>,
    pub participants: Vec<Participant>,
    /// The shard that was written to first.
    pub recovery: Option<Arc<str>>,
    pub aborted: bool,
    /// Its commit was sent.
    pub ending: bool,
    /// A request is at work on its commit.
    pub busy: bool,
    /// The number of its last statement among all.
    pub used: u64,
}

/// The last transaction of each session.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<Remembered>);

/// Invariant: `many` counts the sessions of each user in `all`, and no user has none.
#[derive(Default)]
struct Remembered {
    all: HashMap<Session, Transaction>,
    /// By user.
    many: HashMap<[u8; 32], usize>,
    statements: u64,
}

/// A session's `id` and `uid`: both count for where it is kept, because clients choose them.
type Session = ([u8; 16], [u8; 32]);

impl Remembered {
    fn insert(&mut self, session: Session, new: Transaction, most: usize) {
        if let Some(known) = self.all.get_mut(&session) {
            *known = new;
            return;
        }
        if self.all.len() >= most {
            self.make_room(most / PART);
        }
        *self.many.entry(session.1).or_default() += 1;
        self.all.insert(session, new);
    }

    fn remove(&mut self, session: Session) {
        if self.all.remove(&session).is_none() {
            return;
        }
        let user = session.1;
        match self.many.get_mut(&user) {
            Some(many) if *many > 1 => *many -= 1,
            _ => {
                let many = self.many.remove(&user);
                assert_eq!(many, Some(1), "the sessions of each user are counted");
            }
        }
    }

    /// Forgets some sessions of the user with the most: first those that have ended, then the longest
    /// idle. It costs a look at all, for many that come after it.
    fn make_room(&mut self, some: usize) {
        let Some((user, _)) = self.many.iter().max_by_key(|(_, many)| **many) else {
            return;
        };
        let own = (self.all.iter()).filter(|(session, t)| session.1 == *user && !t.busy);
        let mut own: Vec<(bool, u64, Session)> = own
            .map(|(session, t)| (!t.aborted && !t.ending, t.used, *session))
            .collect();
        let some = some.max(1).min(own.len());
        if some < own.len() {
            own.select_nth_unstable(some);
        }
        for (.., session) in own.drain(..some) {
            self.remove(session);
        }
    }
}

/// The session and the number of a command.
fn session_of(command: &RoutedCommand<'_>) -> (Session, i64) {
    let lsid = command.generic.lsid.unwrap_or(Lsid::unowned([0; 16]));
    ((lsid.id, lsid.uid), command.txn_number())
}

pub(crate) fn unknown(number: i64) -> Failure {
    let e = err!(
        NoSuchTransaction,
        "the router knows of no transaction {number} that is in progress"
    );
    Failure::Client(e.with_label(TRANSIENT))
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
        let starts = command.generic.start_transaction;
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
                    read_concern: command.read_concern().map(Doc::to_buf),
                    used,
                    ..Transaction::default()
                };
                remembered.insert(session, new, MOST);
                Ok(())
            }
        }
    }

    /// Forgets the transaction of a session that ends with it.
    pub fn forget(&self, session: Lsid) {
        self.0.lock().remove((session.id, session.uid));
    }

    /// The statement as a shard has to get it.
    pub fn enlist(
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
    pub fn note(
        &self,
        command: &RoutedCommand<'_>,
        shard: &Arc<str>,
        reply: &DocBuf,
    ) -> Outcome<()> {
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
        noted.ok_or_else(|| unknown(command.txn_number()))
    }

    /// By which shard the outcome is known.
    pub fn recovery_shard(&self, command: &RoutedCommand<'_>) -> Option<Arc<str>> {
        self.change(command, |t| {
            let first = t.participants.first().map(|p| p.shard.clone());
            t.recovery.clone().or(first)
        })?
    }

    pub fn change<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn session(user: u8, n: u32) -> Session {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_be_bytes());
        (id, [user; 32])
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
            remembered.remove(session(1, n));
        }
        assert_eq!(remembered.many.len(), 1);
    }

    /// What a shard is sent: with `startTransaction` and the read concern, or as a later statement.
    #[test]
    fn a_shard_joins_with_its_first_statement() {
        use crate::targeting::testing::with_command;
        let all = Transactions::default();
        let lsid =
            r#""lsid":{"id":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}}"#;
        let statement = |more: &str| {
            format!(
                r#"{{"insert":"c",{lsid},"autocommit":false,"txnNumber":{{"$numberLong":"3"}}{more}}}"#
            )
        };
        let starts = r#","startTransaction":true,"readConcern":{"level":"majority"}"#;
        let body = doc! {"insert": "c", "startTransaction": true};
        let sent = |shard: &str| {
            with_command(&statement(""), |command| {
                let sent = all.enlist(command, &shard.into(), &body)?;
                Ok::<_, Failure>((
                    sent.as_doc().contains("startTransaction"),
                    sent.as_doc().contains("readConcern"),
                ))
            })
        };
        let wrote = |shard: &str| {
            with_command(&statement(""), |command| {
                all.note(command, &shard.into(), &doc! {"n": 1, "ok": 1.0})
            })
        };
        assert!(sent("s0").is_err(), "none has begun");
        with_command(&statement(""), |c| assert!(all.begin_statement(c).is_err()));
        with_command(&statement(starts), |c| all.begin_statement(c).unwrap());
        assert_eq!(sent("s0").unwrap(), (true, true));
        // It has not joined before it has answered.
        assert_eq!(sent("s0").unwrap(), (true, true));
        wrote("s0").unwrap();
        assert_eq!(sent("s0").unwrap(), (false, false));
        assert_eq!(sent("s1").unwrap(), (true, true));
        wrote("s1").unwrap();
        // The one that was written to first decides.
        let recovery = with_command(&statement(""), |c| all.recovery_shard(c));
        assert_eq!(recovery.as_deref(), Some("s0"));
        // The same begins once.
        let again = with_command(&statement(starts), |c| all.begin_statement(c));
        assert_eq!(again.unwrap_err().into_error().code.0, 117);
        with_command(&statement(""), |c| all.change(c, |t| t.ending = true));
        assert_eq!(sent("s0").unwrap_err().into_error().code.0, 256);
    }
}
