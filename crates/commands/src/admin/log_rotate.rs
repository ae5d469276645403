//! `logRotate`.

use crate::cx::{Cx, Done};
use errors::{Result, bail, err};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    if let Some(other) = cx.args.first.as_str()
        && other != "server"
        && other != "audit"
    {
        bail!(NoSuchKey, "Unknown log type '{other}' for logRotate");
    }
    service::logging::rotate(true).map_err(|e| err!(FileRenameFailed, "Failed to rotate the log: {e}"))?;
    Ok(Done::Reply)
}
