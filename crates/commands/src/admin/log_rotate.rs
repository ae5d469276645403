//! `logRotate`.

use crate::request::{CommandContext, Done};
use errors::{Result, bail, err};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let first = cx.args.first;
    if !first.is_number() && !matches!(first.tag, bson::tag::BOOL | bson::tag::STRING) {
        return Err(front::idl::mismatch(
            "logRotate",
            "logRotate",
            first,
            &["number", "bool", "string"],
        ));
    }
    if let Some(other) = cx.args.first.as_str()
        && other != "server"
    {
        bail!(NoSuchKey, "Unknown log type '{other}' for logRotate");
    }
    service::logging::rotate()
        .map_err(|e| err!(FileRenameFailed, "Failed to rotate the log: {e}"))?;
    Ok(Done::Reply)
}
