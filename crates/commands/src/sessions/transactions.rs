//! `commitTransaction` and `abortTransaction`.

use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn commit(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    check(cx)?;
    // While the server is locked against writes, a commit waits as they do.
    cx.op.pass_gate()?;
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
    let (session, record) = statement.hold.record_commit(now_millis());
    let wrote = transaction.has_written();
    cx.op.commit_transaction(transaction, |entry| {
        entry.session = Some(session);
        entry.effects.push(record);
    })?;
    debug_assert!(!wrote || cx.op.has_written());
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

fn check(cx: &CommandContext<'_, '_>) -> Result<()> {
    // What a router wants back of a transaction over several shards.
    let known = |name: &str| name == "recoveryToken";
    if let Some(e) = cx.args.fields.iter().find(|e| !known(e.name)) {
        return Err(cx.args.unknown(*e));
    }
    if cx.app.config.topology.set_name().is_none() {
        bail!(
            IllegalOperation,
            "Transaction numbers are only allowed on a replica set member or mongos"
        );
    }
    Ok(())
}

fn not_in_transaction(cx: &CommandContext<'_, '_>) -> Result<Done> {
    bail!(
        CommandFailed,
        "{} must be run within a transaction",
        cx.command.name
    )
}
