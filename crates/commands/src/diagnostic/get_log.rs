//! `getLog`: the newest lines of the server's log.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let Some(name) = cx.args.first.as_str() else {
        if cx.args.first.is_nullish() {
            return Err(idl::missing("getLog", "getLog"));
        }
        return Err(idl::mismatch(
            "getLog",
            "getLog",
            cx.args.first,
            &["string"],
        ));
    };
    if name == "*" {
        cx.w.open_array("names")
            .push_value("global")
            .push_value("startupWarnings")
            .close();
        return Ok(Done::Reply);
    }
    let Some((lines, written)) = service::logging::lines(name) else {
        bail!(OperationFailed, "No log named '{name}'");
    };
    cx.w.int("totalLinesWritten", written as i64)
        .open_array("log");
    for l in &lines {
        cx.w.push_value(l.as_str());
    }
    cx.w.close();
    Ok(Done::Reply)
}
