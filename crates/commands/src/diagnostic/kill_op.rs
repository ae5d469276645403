//! `killOp`.

use crate::request::{CommandContext, Done};
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
    if cx.app.operations.kill(id) {
        // It may be one that waits on no thread.
        cx.app.control.stir();
    }
    cx.w.str("info", "attempting to kill op");
    Ok(Done::Reply)
}
