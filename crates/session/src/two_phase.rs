//! Transactions over several shards: how one shard's part is ended by the decision, and how the shard
//! that decides remembers it.
//!
//! ```text
//! tablet 0 | space 3 | 1 | record of the session [16] | number u64 BE    prepared here: executor::prepared
//! tablet 0 | space 3 | 2 | record of the session [16] | number u64 BE    committed here, others are to be told
//!     → {lsid: {id, uid}, txnNumber, date, participants: [shard…]}
//! ```
//!
//! One shard decides: its commit is the commit, and is one entry with the decision, which stays until
//! all others have been told. Without a decision and without a record of a commit, the transaction has
//! not committed; a request for the outcome has that recorded first, so it never will.
//!
//! Invariant: after [`SessionTable::resolve`] has answered, no other answer is true.

use crate::Lsid;
use crate::session_table::{SessionTable, record_id};
use crate::transaction::Phase;
use bson::{Doc, Writer};
use catalog::keyspace::{self, SESSION_DECISION, SPACE_SESSION, SYSTEM_TABLET};
use errors::{Error, Result, bail, err};
use executor::{Held, OpCtx, prepared};
use sharding::two_phase::part::{self, Known};
use std::time::{Duration, Instant};
use storage::{Direction, Effect, Entry, OpSession, View};

/// How long a session waits for the transaction before its newest one to be decided.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// What became of a transaction on the shard that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownOutcome {
    /// With the shards that may not have been told.
    Committed(Vec<String>),
    /// It never commits.
    Aborted,
    /// The session has gone on to a newer number: it commits no more, and if it has, all others have
    /// been told.
    Past,
}

/// A decision that others are to be told of.
pub struct Decision {
    pub lsid: Lsid,
    pub number: i64,
    pub participants: Vec<String>,
}

fn behind(prefix: &keyspace::Prefix, lsid: &Lsid, number: i64) -> Vec<u8> {
    let mut key = keyspace::join(prefix, &record_id(lsid));
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The key of a transaction's prepared entry.
pub fn prepared_key(lsid: &Lsid, number: i64) -> Vec<u8> {
    behind(&prepared::prefix(), lsid, number)
}

fn decisions() -> keyspace::Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_SESSION, SESSION_DECISION)
}

/// What the commit's entry says of the others that have a part.
pub fn decision(lsid: &Lsid, number: i64, now_millis: i64, participants: Doc<'_>) -> Effect {
    let mut w = Writer::new();
    w.open_doc("lsid")
        .binary("id", 4, &lsid.id)
        .binary("uid", 0, &lsid.uid)
        .close();
    w.i64("txnNumber", number).date("date", now_millis);
    w.open_array("participants");
    for shard in participants.values() {
        w.push(shard);
    }
    w.close();
    Effect::Put(behind(&decisions(), lsid, number), w.finish().into_vec())
}

/// The shards that a stored decision is for; `None` where it is damaged: none is left out.
fn participants(d: Doc<'_>) -> Option<Vec<String>> {
    let names = d.get("participants")?.as_array()?.values();
    names.map(|v| v.as_str().map(str::to_string)).collect()
}

fn damaged() -> Error {
    err!(DataCorruptionDetected, "a stored decision is damaged")
}

/// All decisions that others are to be told of.
pub fn list_decisions(ctx: &OpCtx) -> Result<Vec<Decision>> {
    let prefix = decisions();
    let view = ctx.engine.store.view();
    let mut scan = view.scan(&prefix, &keyspace::prefix_end(&prefix), Direction::Forward);
    let mut out = Vec::new();
    while scan.next()? {
        let read = || {
            let d = Doc::new(scan.value())?;
            Some(Decision {
                lsid: prepared::session_of(d.get("lsid")?.as_doc()?)?,
                number: d.get("txnNumber")?.to_i64_exact()?,
                participants: participants(d)?,
            })
        };
        out.push(read().ok_or_else(damaged)?);
    }
    Ok(out)
}

/// Whether a state has the decision to commit a transaction over several shards.
pub fn has_decision(view: &View, lsid: &Lsid, number: i64) -> Result<bool> {
    view.exists(&behind(&decisions(), lsid, number))
}

/// Forgets a decision that all others have been told of.
pub fn forget_decision(ctx: &mut OpCtx, lsid: &Lsid, number: i64) -> Result<()> {
    let key = behind(&decisions(), lsid, number);
    if ctx.newest().get(&key)?.is_none() {
        return Ok(());
    }
    ctx.commit(
        vec![Entry::noop(vec![Effect::Delete(key)])],
        Held::default(),
    )
}

impl SessionTable {
    /// Before a session goes on to a newer number: waits until what it has prepared is decided.
    pub(crate) fn pass_prepared(&self, ctx: &OpCtx, lsid: &Lsid, number: i64) -> Result<()> {
        let all = &ctx.engine.prepared;
        if all.is_empty() {
            return Ok(());
        }
        let own = keyspace::join(&prepared::prefix(), &record_id(lsid));
        let older = |key: &[u8], t: &executor::PreparedTransaction| {
            t.number < number && key.starts_with(&own)
        };
        let began = Instant::now();
        if all.wait(Duration::ZERO, older) {
            return Ok(());
        }
        ctx.need_worker()?;
        while !all.wait(LOOK, older) {
            ctx.check()?;
            if began.elapsed() > PATIENCE {
                bail!(
                    PreparedTransactionInProgress,
                    "an earlier transaction of the session is prepared and not decided yet"
                );
            }
        }
        Ok(())
    }

    /// Commits or aborts this shard's part, as was decided. If it is not prepared, an abort ends a
    /// transaction in progress, and a commit has been made before. Whether it was prepared.
    pub fn decide(
        &self,
        ctx: &mut OpCtx,
        lsid: Lsid,
        number: i64,
        commits: bool,
        now_millis: i64,
    ) -> Result<bool> {
        let mut session = self.enter(ctx, lsid)?;
        let key = prepared_key(&lsid, number);
        let was_prepared = executor::decide(ctx, &key, commits, |entry| {
            entry.session = Some(OpSession {
                lsid: lsid.id,
                txn_number: number,
                stmt_id: 0,
            });
            // A session that has gone on keeps what it says of the newer number.
            let state = session.state();
            if state.txn > number {
                return;
            }
            if state.txn < number {
                state.clear(number);
            }
            state.phase = Phase::Committed;
            entry.effects.push(session.commit_record(now_millis).1);
        })?;
        let state = session.state();
        let open = matches!(state.phase, Phase::Prepared | Phase::InProgress(_));
        if !commits && state.txn == number && open {
            state.phase = Phase::Aborted;
        }
        Ok(was_prepared)
    }

    /// What became of a transaction that this shard decides. One that has not committed is ended, and
    /// that it never will is recorded.
    pub fn resolve(
        &self,
        ctx: &mut OpCtx,
        lsid: Lsid,
        number: i64,
        now_millis: i64,
    ) -> Result<KnownOutcome> {
        let mut session = self.enter(ctx, lsid)?;
        let key = behind(&decisions(), &lsid, number);
        if let Some(stored) = ctx.newest().get(&key)? {
            let shards = Doc::new(&stored)
                .and_then(participants)
                .ok_or_else(damaged)?;
            return Ok(KnownOutcome::Committed(shards));
        }
        let state = session.state();
        let phase = match &state.phase {
            Phase::Committed => part::Phase::Committed,
            Phase::Prepared => part::Phase::Prepared,
            Phase::None if !state.is_fresh() => part::Phase::Written,
            Phase::None | Phase::InProgress(_) | Phase::Running => part::Phase::Open,
            Phase::Aborted => part::Phase::Aborted,
        };
        match part::outcome(false, number, state.txn, phase) {
            Known::Committed => return Ok(KnownOutcome::Committed(Vec::new())),
            Known::Past => return Ok(KnownOutcome::Past),
            Known::Aborted => return Ok(KnownOutcome::Aborted),
            Known::Another => bail!(
                PreparedTransactionInProgress,
                "another shard decides this transaction"
            ),
            Known::Ends => {}
        }
        if number > state.txn {
            state.clear(number);
        }
        let state = session.state();
        assert!(
            state.txn == number && !matches!(state.phase, Phase::Committed | Phase::Prepared),
            "what is recorded as aborted has neither committed nor promised to"
        );
        state.phase = Phase::Aborted;
        let record = session.abort_record(now_millis);
        ctx.commit(vec![Entry::noop(vec![record])], Held::default())?;
        Ok(KnownOutcome::Aborted)
    }
}
