//! `commitTransaction` and `abortTransaction`.
//!
//! `{commitTransaction: 1, …, participants: [<shard>…]}`: a router commits what this shard decides for
//! others, which have prepared their parts. The commit's entry names the shards of the decision.
//!
//! `executed: {session, number, statement, image?}`: the transaction is a router's, in the place of a
//! client's retryable statement, whose record is in the commit's entry too.

use crate::clock::now_millis;
use crate::request::{CommandContext, Done, transaction};
use crate::security::authorize;
use crate::shard::transaction_of;
use bson::{Doc, Val};
use errors::{Error, Result, bail, err};
use executor::{OpCtx, Retry, StmtResult};
use front::Args;
use service::config::ClusterRole;
use session::two_phase::decision;
use session::{Lsid, Retryable, SessionTable};
use storage::Effect;

pub fn commit(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    check(cx)?;
    if cx.app.config.role == ClusterRole::Shard && authorize::may_as_member(cx) {
        // A decision is later than what others have prepared for it.
        cx.app.hear_time(cx.request.body);
    }
    // While the server is locked against writes, a commit waits as they do.
    cx.op.pass_gate()?;
    let instead_of = match cx.args.field("executed").and_then(|v| v.as_doc()) {
        Some(d) => Some(Executed::parse(cx, d)?),
        None => None,
    };
    let Some(statement) = &mut cx.transaction else {
        return not_in_transaction(cx);
    };
    let Some(transaction) = statement.hold.take() else {
        statement.hold.check_committed()?;
        // The commit that came first may not be on disk yet.
        cx.after_commit = true;
        return Ok(Done::Reply);
    };
    (cx.app.cursors).kill_transaction(statement.lsid, statement.number);
    let now = now_millis();
    let instead = match instead_of {
        Some(of) => Some(executed(&cx.app.session_table, &cx.op, of, now)?),
        None => None,
    };
    let (_of_client, instead) = instead.unzip();
    let (session, record) = statement.hold.record_commit(now);
    let others = cx.args.field("participants").and_then(|v| v.as_array());
    let decision = others.map(|others| decision(&statement.lsid, statement.number, now, others));
    let wrote = transaction.has_written();
    cx.op.commit_transaction(transaction, |entry| {
        entry.session = Some(session);
        entry.effects.push(record);
        entry.effects.extend(decision);
        entry.effects.extend(instead);
    })?;
    assert!(
        !wrote || cx.op.has_written(),
        "what was written is committed"
    );
    Ok(Done::Reply)
}

pub fn abort(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    check(cx)?;
    let Some(statement) = &mut cx.transaction else {
        return not_in_transaction(cx);
    };
    let Some(transaction) = statement.hold.take() else {
        return Err(statement.hold.ended().into());
    };
    (cx.app.cursors).kill_transaction(statement.lsid, statement.number);
    drop(transaction);
    statement.hold.abort();
    Ok(Done::Reply)
}

/// A client's retryable statement in whose place a router's transaction is.
struct Executed {
    lsid: Lsid,
    number: i64,
    statement: i32,
    result: StmtResult,
}

impl Executed {
    fn parse(cx: &CommandContext<'_, '_>, d: Doc<'_>) -> Result<Executed> {
        let (lsid, number) = transaction_of(cx, d.get("session"), d.get("number"))?;
        let statement = d.get("statement").and_then(Val::to_i64_exact).unwrap_or(0);
        Ok(Executed {
            lsid,
            number,
            statement: i32::try_from(statement).unwrap_or(0),
            result: StmtResult {
                n: 1,
                n_modified: 1,
                image: d.get("image").and_then(Val::as_doc).map(|i| i.to_buf()),
                ..StmtResult::default()
            },
        })
    }
}

/// The record of the statement, with the hold on the client's session. Fails where it was executed
/// before.
fn executed(
    session_table: &SessionTable,
    op: &OpCtx<'_>,
    of: Executed,
    now_millis: i64,
) -> Result<(Retryable, Effect)> {
    let mut client = session_table.begin(op, of.lsid, of.number, now_millis)?;
    if client.executed(of.statement).is_some() {
        bail!(
            WriteConflict,
            "the statement was executed before, in another transaction"
        );
    }
    let ids = [of.statement];
    let (_, effect) = client.statements(&ids).record(&[of.result]);
    Ok((client, effect))
}

fn check(cx: &CommandContext<'_, '_>) -> Result<()> {
    check_fields(&cx.args, || authorize::may_as_member(cx))?;
    if cx.app.config.topology.set_name().is_none() {
        bail!(
            IllegalOperation,
            "Transaction numbers are only allowed on a replica set member or mongos"
        );
    }
    Ok(())
}

fn check_fields(args: &Args<'_>, of_router: impl Fn() -> bool) -> Result<()> {
    // What a router wants back of a transaction over several shards.
    let known = |name: &str| match name {
        "recoveryToken" => true,
        "participants" | "executed" => of_router(),
        _ => false,
    };
    match args.fields.iter().find(|e| !known(e.name)) {
        Some(e) => Err(args.unknown(*e)),
        None => Ok(()),
    }
}

/// Checks a client's `commitTransaction` or `abortTransaction` that a router has to answer.
pub fn check_routed(args: &Args<'_>) -> Result<()> {
    check_fields(args, || false)?;
    match transaction::is_statement(args) {
        true => Ok(()),
        false => Err(outside(args.command).into()),
    }
}

fn outside(command: &str) -> Error {
    err!(CommandFailed, "{command} must be run within a transaction")
}

fn not_in_transaction(cx: &CommandContext<'_, '_>) -> Result<Done> {
    Err(outside(cx.command.name).into())
}
