//! A client's command at the door: what the table says of it, and its arguments, read once.

use crate::args::{Args, Generic};
use crate::specification::Specification;
use errors::Result;
use service::Request;

/// A command whose generic arguments are parsed.
pub struct ParsedCommand<'r> {
    pub specification: &'static Specification,
    pub args: Args<'r>,
}

impl<'r> ParsedCommand<'r> {
    /// Fails where an argument that all commands have is wrong.
    pub fn of(
        specification: &'static Specification,
        request: &Request<'r>,
    ) -> Result<ParsedCommand<'r>> {
        let args = Args::parse(specification.name, request.body, request.legacy_db)?;
        Ok(ParsedCommand {
            specification,
            args,
        })
    }

    /// What all commands have of it.
    pub fn common(&self) -> FromClient<'r> {
        FromClient {
            specification: self.specification,
            db: self.args.db,
            generic: self.args.generic,
        }
    }
}

/// What all commands have of a client's command.
#[derive(Clone, Copy)]
pub struct FromClient<'r> {
    pub specification: &'static Specification,
    pub db: &'r str,
    pub generic: Generic<'r>,
}

impl FromClient<'_> {
    /// Whether it is a statement of a transaction, or ends one.
    pub fn in_transaction(&self) -> bool {
        self.generic.autocommit == Some(false)
    }
}
