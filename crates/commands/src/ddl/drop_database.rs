//! `dropDatabase`.

use super::changed;
use crate::request::{CommandContext, Done};
use bson::Elem;
use errors::{Result, bail};
use front::Args;
use front::idl;

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    let first = Elem {
        name: "dropDatabase",
        val: args.first,
    };
    match idl::int("dropDatabase", first)? {
        Some(1) => {}
        Some(_) => bail!(5255100, "Have to pass 1 as db parameter"),
        None => return Err(idl::missing("dropDatabase", "dropDatabase")),
    }
    args.no_fields()
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    check(&cx.args)?;
    let db = cx.args.db;
    if matches!(db, "admin" | "config" | "local")
        && cx.app.config.topology.set_name().is_some()
        && db != "config"
    {
        bail!(
            IllegalOperation,
            "Dropping the '{db}' database is prohibited."
        );
    }
    let dropped = cx.app.engine.catalog.drop_database(db, &|| cx.op.check())?;
    if !dropped.is_empty() {
        cx.app.counters.forget(db, None);
        changed(cx);
    }
    Ok(Done::Reply)
}
