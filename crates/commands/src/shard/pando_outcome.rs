//! `_pandoOutcome`: the shard that decides a transaction says what became of it. One that has not
//! committed is ended by the question, and never will.
//!
//! ```text
//! {_pandoOutcome: 1, session: {id, uid?}, number: <long>}
//!     → {committed: <bool>, participants: [<shard>…]}      those that may not have been told
//!     → {committed: false, past: true}      the session has gone on: no client waits for it any more
//! {_pandoOutcome: 1, session, number, told: true}          all others have been told
//! ```

use super::named_transaction;
use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use bson::Val;
use errors::Result;
use session::two_phase::{KnownOutcome, forget_decision};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (lsid, number) = named_transaction(cx)?;
    cx.op.pass_gate()?;
    // A decision is forgotten later than it took effect elsewhere.
    cx.app.hear_time(cx.request.body);
    if cx.args.field("told").is_some_and(Val::truthy) {
        forget_decision(&mut cx.op, &lsid, number)?;
        return Ok(Done::Reply);
    }
    let session_table = cx.app.session_table.clone();
    let resolved = session_table.resolve(&mut cx.op, lsid, number, now_millis())?;
    // The answer is final, so it has to be on disk.
    cx.after_commit = true;
    match resolved {
        KnownOutcome::Aborted => {
            cx.app.cursors.kill_transaction(lsid, number);
            cx.w.bool("committed", false);
        }
        KnownOutcome::Past => {
            cx.w.bool("committed", false).bool("past", true);
        }
        KnownOutcome::Committed(participants) => {
            cx.w.bool("committed", true).open_array("participants");
            for shard in &participants {
                cx.w.str("", shard);
            }
            cx.w.close();
        }
    }
    Ok(Done::Reply)
}
