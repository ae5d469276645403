//! The multi-document transaction of a session: begun, gone on with by one request at a time,
//! committed or aborted.
//!
//! ```text
//! none ─ start ─► in progress ─ commit ─► committed      (kept in the session's record, in the commit's own log entry)
//!                     ├─ abort, error, lifetime, a newer number ─► aborted
//!                     └─ prepare ─► prepared ─ decision ─► committed or aborted      (crate::two_phase)
//! ```
//!
//! A transaction ends when its primary is deposed: no other member knows of it.
//!
//! Invariant: a commit and the record that says so are one log entry, so a commit that is sent
//! again, also after a restart, is answered as the first one was.

use crate::Lsid;
use crate::session_table::{SessionGuard, SessionTable};
use errors::{Error, Result, bail, err};
use executor::{OpCtx, OpenTransaction, PinnedSnapshot, Transaction};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use storage::{Effect, OpSession};

/// Where the transaction of a session's newest number stands.
#[derive(Default)]
pub(crate) enum Phase {
    /// The number is that of a retryable write, or of nothing.
    #[default]
    None,
    InProgress(Box<Transaction>),
    /// A request runs a statement of it.
    Running,
    /// It has promised to commit: its stored entry decides, this only answers its session.
    Prepared,
    Committed,
    Aborted,
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Phase::None => "kNone",
            Phase::InProgress(_) | Phase::Running => "kInProgress",
            Phase::Prepared => "kPrepared",
            Phase::Committed => "kCommitted",
            Phase::Aborted => "kAbortedWithoutPrepare",
        }
    }
}

/// One request's hold on the transaction of its session.
pub struct TransactionHold {
    session: SessionGuard,
    /// How long a transaction may be open.
    lifetime: Duration,
}

/// Settles the state after a panic: the transaction went with the request.
impl Drop for TransactionHold {
    fn drop(&mut self) {
        let phase = &mut self.session.state().phase;
        if matches!(phase, Phase::Running) {
            *phase = Phase::Aborted;
        }
    }
}

fn aborted(number: i64) -> Error {
    err!(
        NoSuchTransaction,
        "Transaction with {{ txnNumber: {number} }} has been aborted."
    )
}

fn prepared(number: i64) -> Error {
    err!(
        PreparedTransactionInProgress,
        "Transaction with {{ txnNumber: {number} }} has been prepared: only its router may end it."
    )
}

fn committed(number: i64) -> Error {
    err!(
        TransactionCommitted,
        "Transaction with {{ txnNumber: {number} }} has been committed."
    )
}

impl SessionTable {
    /// Begins the transaction `number` of a session. What the session had in progress is aborted.
    /// `snapshot`: the state to read, when that is not the newest. `begins_again`: one whose first
    /// statement has failed may begin again under its number, as a router does whose statement a shard
    /// has refused after it had begun.
    pub fn start_transaction(
        &self,
        ctx: &OpCtx,
        lsid: Lsid,
        number: i64,
        snapshot: impl FnOnce() -> Result<Option<Arc<PinnedSnapshot>>>,
        lifetime: Duration,
        begins_again: bool,
    ) -> Result<TransactionHold> {
        self.pass_prepared(ctx, &lsid, number)?;
        let mut session = self.enter(ctx, lsid)?;
        let state = session.state();
        if number < state.txn {
            return Err(too_old(number, state.txn).into());
        }
        // The first statement of a transaction may have to be run again, on another thread.
        let again = number == state.txn && state.starting && state.has_open();
        if !again {
            let failed = begins_again && state.starting && matches!(state.phase, Phase::Aborted);
            let used = !failed && (!matches!(state.phase, Phase::None) || !state.is_fresh());
            if number == state.txn && used {
                bail!(
                    50911,
                    "Cannot start a transaction at given transaction number {number} a transaction with the same number is in state {}",
                    state.phase.name()
                );
            }
            let mut turn = None;
            if state.lost {
                ctx.need_worker()?;
                turn = ctx
                    .engine
                    .transactions
                    .conflict_queue
                    .wait(|| ctx.check())?;
                state.lost = false;
            }
            let snapshot = snapshot()?;
            state.clear(number);
            let mut begun = Transaction::begin(ctx.engine, snapshot, lsid, number);
            begun.hold_turn(turn);
            state.phase = Phase::InProgress(Box::new(begun));
            state.starting = true;
        }
        Ok(TransactionHold { session, lifetime })
    }

    /// Goes on with a transaction that is in progress.
    pub fn continue_transaction(
        &self,
        ctx: &OpCtx,
        lsid: Lsid,
        number: i64,
        lifetime: Duration,
    ) -> Result<TransactionHold> {
        let hold = self.find_transaction(ctx, lsid, number, lifetime)?;
        match hold.session.state_ref().phase {
            Phase::InProgress(_) => Ok(hold),
            Phase::Committed => Err(committed(number).into()),
            Phase::Aborted => Err(aborted(number).into()),
            Phase::Prepared => Err(prepared(number).into()),
            Phase::None | Phase::Running => Err(no_such(number, number).into()),
        }
    }

    /// The transaction that a commit or an abort names, whatever became of it.
    pub fn find_transaction(
        &self,
        ctx: &OpCtx,
        lsid: Lsid,
        number: i64,
        lifetime: Duration,
    ) -> Result<TransactionHold> {
        let mut session = self.enter(ctx, lsid)?;
        let state = session.state();
        if number < state.txn {
            return Err(too_old(number, state.txn).into());
        }
        if number > state.txn {
            return Err(no_such(number, state.txn).into());
        }
        if matches!(state.phase, Phase::Aborted) {
            state.starting = false;
        }
        if let Phase::InProgress(t) = &state.phase
            && t.description().started.elapsed() > lifetime
        {
            state.phase = Phase::Aborted;
        }
        Ok(TransactionHold { session, lifetime })
    }

    /// Aborts the transactions that no request is at work on: this member is primary no more. One
    /// that a request is at work on ends with its statement.
    pub fn abort_all(&self, open: &[Arc<OpenTransaction>]) {
        for description in open {
            if let Some(mut session) = self.try_enter(description.lsid)
                && session.state_ref().has_open()
            {
                session.state().phase = Phase::Aborted;
            }
        }
    }

    /// Aborts transactions that have been open for longer than their lifetime and that no request
    /// is at work on.
    pub fn abort_expired(&self, open: &[Arc<OpenTransaction>], lifetime: Duration) {
        for description in open.iter().filter(|t| t.started.elapsed() > lifetime) {
            let Some(mut session) = self.try_enter(description.lsid) else {
                continue;
            };
            let state = session.state();
            if let Phase::InProgress(t) = &state.phase
                && t.description().number == description.number
            {
                state.phase = Phase::Aborted;
            }
        }
    }
}

fn too_old(number: i64, newest: i64) -> Error {
    err!(
        TransactionTooOld,
        "Cannot start transaction with {{ txnNumber: {number} }} on session because a newer transaction with txnNumber {newest} has already started on this session."
    )
}

fn no_such(number: i64, newest: i64) -> Error {
    err!(
        NoSuchTransaction,
        "Given transaction number {number} does not match any in-progress transactions. The active transaction number is {newest}"
    )
}

impl TransactionHold {
    /// The transaction, for the request to run in; [`TransactionHold::give_back`] returns it.
    /// `None`: it has ended, and [`TransactionHold::check_committed`] tells how.
    pub fn take(&mut self) -> Option<Box<Transaction>> {
        let phase = &mut self.session.state().phase;
        match std::mem::replace(phase, Phase::Running) {
            Phase::InProgress(t) => {
                t.description().active.store(true, Relaxed);
                Some(t)
            }
            ended => {
                *phase = ended;
                None
            }
        }
    }

    /// After a statement: the transaction goes on with the next. `again`: the same statement is to
    /// be run again.
    pub fn give_back(&mut self, transaction: Box<Transaction>, again: bool) {
        let description = transaction.description();
        description.active.store(false, Relaxed);
        let expired = description.started.elapsed() > self.lifetime || transaction.is_overtaken();
        let state = self.session.state();
        assert!(
            matches!(state.phase, Phase::Running),
            "a transaction is given back by the request that took it"
        );
        state.starting &= again;
        state.phase = match expired {
            true => Phase::Aborted,
            false => Phase::InProgress(transaction),
        };
    }

    /// It is prepared: the decision alone ends it.
    pub fn set_prepared(&mut self) {
        let phase = &mut self.session.state().phase;
        assert!(
            matches!(phase, Phase::Running),
            "what is prepared was in progress"
        );
        *phase = Phase::Prepared;
    }

    /// Whether it is prepared; the error of one that is not.
    pub fn check_prepared(&self) -> Result<()> {
        match self.session.state_ref().phase {
            Phase::Prepared => Ok(()),
            _ => Err(self.ended().into()),
        }
    }

    pub fn abort(&mut self) {
        self.session.state().phase = Phase::Aborted;
    }

    /// Aborts it after a write conflict.
    pub fn abort_lost(&mut self) {
        self.abort();
        self.session.state().lost = true;
    }

    /// Whether it has been committed; the error of one that was not.
    pub fn check_committed(&self) -> Result<()> {
        let state = self.session.state_ref();
        match state.phase {
            Phase::Committed => Ok(()),
            Phase::Aborted => Err(aborted(state.txn).into()),
            Phase::Prepared => Err(prepared(state.txn).into()),
            _ => Err(no_such(state.txn, state.txn).into()),
        }
    }

    /// The error of aborting one that is no longer in progress.
    pub fn ended(&self) -> Error {
        let state = self.session.state_ref();
        match state.phase {
            Phase::Committed => committed(state.txn),
            Phase::Aborted => aborted(state.txn),
            Phase::Prepared => prepared(state.txn),
            _ => no_such(state.txn, state.txn),
        }
    }

    /// From here on it counts as committed: what the commit's log entry says of the session.
    pub fn record_commit(&mut self, now_millis: i64) -> (OpSession, Effect) {
        let phase = &mut self.session.state().phase;
        assert!(
            matches!(phase, Phase::Running),
            "what is committed was in progress"
        );
        *phase = Phase::Committed;
        self.session.commit_record(now_millis)
    }
}
