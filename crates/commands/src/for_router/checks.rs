//! What a router checks of a client's command before it acts on it: what the command says of sessions,
//! transactions and concerns, as every server does, and the arguments of commands that no shard sees
//! as they came.

use crate::crud::{aggregate, explain};
use crate::ddl::drop_database;
use crate::dispatch::admission;
use crate::request::{check_generic, transaction};
use crate::sessions::transactions;
use bson::Val;
use errors::Result;
use front::Args;
use front::Specification;
use service::ServerConfig;

pub fn check(command: &Specification, args: &Args<'_>, config: &ServerConfig) -> Result<()> {
    admission::check_session(command, args, config)?;
    check_generic(command, args, &config.topology)?;
    if transaction::is_statement(args) {
        transaction::check_stages(args.field("pipeline").unwrap_or(Val::NULL))?;
    }
    match command.name {
        "aggregate" => aggregate::check(args),
        "explain" => explain::check(args),
        "dropDatabase" => drop_database::check(args),
        "commitTransaction" | "abortTransaction" => transactions::check_routed(args),
        _ => Ok(()),
    }
}
