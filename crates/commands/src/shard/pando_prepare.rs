//! `_pandoPrepare`: a shard promises to commit its part of a transaction, whatever happens to it.
//!
//! ```text
//! {_pandoPrepare: 1, lsid, txnNumber, autocommit: false, recoveryShard: <string>}
//! ```
//! From here on only `_pandoDecide` ends it. `recoveryShard` knows the outcome.

use super::text;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use session::two_phase::prepared_key;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let recovery_shard = text(cx, "recoveryShard")?;
    cx.op.pass_gate()?;
    let Some(statement) = &mut cx.transaction else {
        bail!(CommandFailed, "_pandoPrepare has to name a transaction");
    };
    let Some(transaction) = statement.hold.take() else {
        statement.hold.check_prepared()?;
        // What prepared it may not be on disk yet.
        cx.after_commit = true;
        return Ok(Done::Reply);
    };
    (cx.app.cursors).kill_transaction(statement.lsid, statement.number);
    let key = prepared_key(&statement.lsid, statement.number);
    cx.op
        .prepare_transaction(transaction, key, recovery_shard)?;
    statement.hold.set_prepared();
    Ok(Done::Reply)
}
