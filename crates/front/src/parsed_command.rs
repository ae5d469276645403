//! A client's command at the door: what the table says of it, and its arguments, read once.

use crate::args::{Args, Generic};
use crate::specification::Specification;
use bson::{Elem, Val};
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

    /// The command, for those who go on with it.
    pub fn from_client(&self) -> FromClient<'_> {
        FromClient {
            specification: self.specification,
            db: self.args.db,
            generic: self.args.generic,
            first: self.args.first,
            fields: &self.args.fields,
        }
    }
}

/// A client's command as it was parsed: what all commands have of it by name, and its own fields.
#[derive(Clone, Copy)]
pub struct FromClient<'r> {
    pub specification: &'static Specification,
    pub db: &'r str,
    pub generic: Generic<'r>,
    first: Val<'r>,
    fields: &'r [Elem<'r>],
}

impl<'r> FromClient<'r> {
    /// Its arguments, for the function of a command that takes them.
    pub fn args(&self) -> Args<'r> {
        Args {
            command: self.specification.name,
            first: self.first,
            db: self.db,
            fields: self.fields.into(),
            generic: self.generic,
        }
    }

    /// Whether it is a statement of a transaction, or ends one.
    pub fn in_transaction(&self) -> bool {
        self.generic.autocommit == Some(false)
    }
}
