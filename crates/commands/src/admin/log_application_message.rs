//! `logApplicationMessage`: a line of the audit log that an application writes. Without an audit log there is no
//! such command.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    if cx.app.security.audit.is_none() {
        bail!(CommandNotFound, "no such command: '{}'", cx.command.name);
    }
    // The line is written when the command has ended, as those of all others are.
    if cx.args.first.as_str().is_none() {
        bail!(
            TypeMismatch,
            "Argument to {} must be of type String, found {}",
            cx.command.name,
            cx.args.first.type_name()
        );
    }
    Ok(Done::Reply)
}
