//! `killOp`.

use crate::request::{CommandContext, Done};
use crate::security::authorize;
use auth::{Action, Target};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut op = None;
    for e in cx.args.fields.iter().filter(|e| e.name == "op") {
        op = Some(e.val);
    }
    let Some(op) = op else {
        bail!(NoSuchKey, "Missing expected field \"op\"")
    };
    if !op.is_number() {
        bail!(
            TypeMismatch,
            "Expected field \"op\" to have numeric type, but found {}",
            op.type_name()
        );
    }
    let Some(id) = op.to_i64_exact() else {
        bail!(
            BadValue,
            "Expected field \"op\" to have a value exactly representable as a 64-bit integer, but found op: {op}"
        );
    };
    let Ok(id) = i32::try_from(id) else {
        bail!(
            26823,
            "invalid op : {id}. Op ID must be within the range of int32"
        )
    };
    let own = || {
        cx.app
            .operations
            .user(id)
            .is_none_or(|user| user == authorize::name(cx))
    };
    if !authorize::may(cx, Action::Killop, Target::Cluster) && !own() {
        bail!(
            Unauthorized,
            "not authorized on admin to execute command {{ killOp: 1, op: {id} }}"
        );
    }
    if cx.app.operations.kill(id) {
        // It may be one that waits on no thread.
        cx.app.control.stir();
    }
    cx.w.str("info", "attempting to kill op");
    Ok(Done::Reply)
}
