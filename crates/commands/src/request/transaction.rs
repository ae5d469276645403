//! Statements of multi-document transactions (`txnNumber` with `autocommit: false`): which commands
//! may be one, the transaction that they run in, and the labels of their errors.
//!
//! Invariant: a statement that fails aborts its transaction, as in MongoDB; one that is to be run
//! again leaves it as it was.

use crate::Commands;
use crate::request::Call;
use crate::request::Done;
use crate::settings::parameters::{TRANSACTION_LIFETIME, TRANSACTION_LOCK_PATIENCE};
use bson::{Doc, Val};
use errors::{Code, Error, Result, Stop, bail};
use executor::{OpCtx, PinnedSnapshot, Savepoint, Transaction};
use front::Args;
use front::Specification;
use service::config::ClusterRole;
use session::{Lsid, TransactionHold};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const TRANSIENT: &str = "TransientTransactionError";
const RETRYABLE: &str = "RetryableWriteError";

/// Whether the request belongs to a multi-document transaction.
pub(crate) fn is_statement(args: &Args<'_>) -> bool {
    args.generic.autocommit == Some(false)
}

fn ends(command: &Specification) -> bool {
    matches!(
        command.name,
        "commitTransaction" | "abortTransaction" | "_pandoPrepare"
    )
}

/// What may be a statement, besides commit and abort.
const STATEMENTS: [&str; 12] = [
    "find",
    "insert",
    "update",
    "delete",
    "getMore",
    "findAndModify",
    "bulkWrite",
    "aggregate",
    "distinct",
    "killCursors",
    "create",
    "createIndexes",
];

/// Checks the arguments of a statement, and that the command may be one. A cluster's metadata
/// changes in transactions on its configuration set.
pub(crate) fn check_arguments(
    command: &Specification,
    args: &Args<'_>,
    role: ClusterRole,
) -> Result<()> {
    let g = &args.generic;
    if ends(command) {
        return Ok(());
    }
    let first = g.start_transaction && command.name == "killCursors";
    if first || !STATEMENTS.contains(&command.name) {
        if command.name == "count" {
            bail!(
                OperationNotSupportedInTransaction,
                "Cannot run 'count' in a multi-document transaction. Please see http://dochub.mongodb.org/core/transaction-count for a recommended alternative."
            );
        }
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot run '{}' in a multi-document transaction.",
            command.name
        );
    }
    let metadata = args.db == "config" && role == ClusterRole::Config;
    if matches!(args.db, "config" | "local") && !metadata {
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot run command against the '{}' database in a transaction.",
            args.db
        );
    }
    if args
        .first
        .as_str()
        .is_some_and(|coll| coll.starts_with("system.") && command.name != "killCursors")
    {
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot run command against the '{}.{}' namespace in a transaction.",
            args.db,
            args.first.as_str().unwrap_or_default()
        );
    }
    if g.write_concern.is_some() {
        bail!(
            InvalidOptions,
            "writeConcern is not allowed within a multi-statement transaction"
        );
    }
    check_read_concern(args)
}

/// Stages that a transaction cannot have, at any depth where they may stand.
const NO_STAGES: [&str; 12] = [
    "$out",
    "$merge",
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
    "$changeStream",
    "$listClusterCatalog",
    "$querySettings",
    "$unionWith",
];

/// Checks the stages of a pipeline that is to run in a transaction.
pub fn check_stages(pipeline: Val<'_>) -> Result<()> {
    let stages = pipeline.as_array().unwrap_or(Doc::EMPTY).values();
    let names = stages.filter_map(|s| Some(s.as_doc()?.first()?.name));
    for name in names {
        if NO_STAGES.contains(&name) {
            bail!(
                OperationNotSupportedInTransaction,
                "Operation not permitted in transaction :: caused by :: Stage not supported inside of a multi-document transaction: {name}"
            );
        }
    }
    Ok(())
}

fn check_read_concern(args: &Args<'_>) -> Result<()> {
    let Some(concern) = args.generic.read_concern.and_then(|v| v.as_doc()) else {
        return Ok(());
    };
    if !args.generic.start_transaction {
        // `afterClusterTime` alone is what drivers add by themselves.
        if concern.iter().next().is_some() {
            bail!(
                InvalidOptions,
                "Only the first command in a transaction may specify a readConcern"
            );
        }
        return Ok(());
    }
    match concern.get("level").and_then(|v| v.as_str()) {
        None | Some("local" | "majority" | "snapshot") => Ok(()),
        Some(_) => bail!(
            InvalidOptions,
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction"
        ),
    }
}

impl Commands {
    fn lifetime(&self) -> Duration {
        let seconds = self.parameters.int(TRANSACTION_LIFETIME);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// Takes the transaction that a request names, and runs the operation in it. `None`: it names
    /// none.
    pub(crate) fn enter_transaction(
        &self,
        call: &Call<'_, '_>,
        args: &Args<'_>,
        op: &mut OpCtx,
    ) -> Result<Option<TransactionStatement>> {
        let g = &args.generic;
        if !is_statement(args) {
            return Ok(None);
        }
        let (Some(lsid), Some(number)) = (g.lsid, g.txn_number) else {
            return Ok(None);
        };
        // A secondary does not say what became of one: it may not know yet.
        if self.replica.as_ref().is_some_and(|r| !r.is_open()) {
            return Err(super::retryable_errors::not_primary().into());
        }
        let lifetime = self.lifetime();
        if ends(call.command) {
            let hold = self
                .session_table
                .find_transaction(op, lsid, number, lifetime)?;
            let before = None;
            return Ok(Some(TransactionStatement {
                hold,
                lsid,
                number,
                before,
            }));
        }
        let mut hold = match g.start_transaction {
            true => {
                let patience = self.parameters.int(TRANSACTION_LOCK_PATIENCE);
                let patience = u64::try_from(patience).unwrap_or(u64::MAX);
                let all = &self.engine.transactions;
                all.lock_patience_millis.store(patience, Relaxed);
                let snapshot = || self.snapshot_of(args);
                let on_shard = self.config.role == ClusterRole::Shard;
                self.session_table
                    .start_transaction(op, lsid, number, snapshot, lifetime, on_shard)?
            }
            false => self
                .session_table
                .continue_transaction(op, lsid, number, lifetime)?,
        };
        let Some(transaction) = hold.take() else {
            return Err(hold.ended().into());
        };
        let before = Some(transaction.savepoint());
        op.join(transaction);
        Ok(Some(TransactionStatement {
            hold,
            lsid,
            number,
            before,
        }))
    }

    /// The state that `readConcern: {level: "snapshot", atClusterTime}` asks for.
    fn snapshot_of(&self, args: &Args<'_>) -> Result<Option<Arc<PinnedSnapshot>>> {
        let concern = args.generic.read_concern.and_then(|v| v.as_doc());
        let at = concern.and_then(|d: Doc<'_>| d.get("atClusterTime")?.as_timestamp());
        at.map(|ts| self.snapshots.at(&self.engine, ts)).transpose()
    }
}

/// A request's hold on its transaction.
pub struct TransactionStatement {
    pub hold: TransactionHold,
    pub lsid: Lsid,
    pub number: i64,
    /// The savepoint before the statement.
    before: Option<Savepoint>,
}

/// After a statement: returns its transaction to the session, or aborts it; returns whether it was
/// aborted.
pub(crate) fn leave(
    statement: &mut TransactionStatement,
    transaction: Option<Box<Transaction>>,
    done: &Result<Done>,
    reply: &[u8],
) -> bool {
    let Some(mut transaction) = transaction else {
        return false;
    };
    match done {
        Ok(_) if !has_write_errors(reply) => {
            statement.hold.give_back(transaction, false);
            false
        }
        Err(Stop::Suspended(_)) => {
            if let Some(before) = statement.before.take() {
                transaction.return_to(before);
            }
            statement.hold.give_back(transaction, true);
            false
        }
        Err(Stop::Failed(e)) if e.code == Code::WriteConflict => {
            drop(transaction);
            statement.hold.abort_lost();
            true
        }
        _ => {
            statement.hold.abort();
            true
        }
    }
}

/// Whether a reply reports failed writes: in `writeErrors`, or in the `nErrors` of bulkWrite.
fn has_write_errors(reply: &[u8]) -> bool {
    let reply = Doc::new(reply).unwrap_or(Doc::EMPTY);
    let failed = |n: Val<'_>| n.to_i64_exact().is_some_and(|n| n > 0);
    reply.contains("writeErrors") || reply.get("nErrors").is_some_and(failed)
}

/// Adds the label that MongoDB gives an error of a statement: drivers begin the whole transaction
/// again, or send the commit again.
pub(crate) fn with_label(mut e: Error, command: &Specification, args: &Args<'_>) -> Error {
    if !is_statement(args) {
        return e;
    }
    match label_of(e.code, command) {
        // A statement is never sent again alone, whatever the write below it has said.
        Some(TRANSIENT) => {
            e.labels.retain(|l| !matches!(*l, TRANSIENT | RETRYABLE));
            e.with_label(TRANSIENT)
        }
        Some(label) if e.labels.is_empty() => e.with_label(label),
        _ => e,
    }
}

/// Errors of a statement that end its transaction, and need not come again.
fn is_conflict(code: Code) -> bool {
    matches!(
        code,
        Code::WriteConflict
            | Code::LockTimeout
            | Code::PreparedTransactionInProgress
            | Code::SnapshotUnavailable
            | Code::SnapshotTooOld
            | Code::StaleChunkHistory
            | Code::MigrationConflict
            | Code::NoSuchTransaction
    )
}

/// Whether an error of a statement that is no commit has the label `TransientTransactionError`.
pub fn is_transient(code: Code) -> bool {
    is_conflict(code) || super::retryable_errors::retryable_code(code.0)
}

/// The label of an error with this code of a statement.
pub(crate) fn label_of(code: Code, command: &Specification) -> Option<&'static str> {
    let conflict = is_conflict(code);
    let retryable = super::retryable_errors::retryable_code(code.0);
    match (ends(command), conflict, retryable) {
        (_, true, _) | (false, _, true) => Some(TRANSIENT),
        (true, _, true) => Some(RETRYABLE),
        _ => None,
    }
}
