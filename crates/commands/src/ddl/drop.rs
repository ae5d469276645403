//! `drop`: a collection with its indexes.

use super::changed;
use crate::request::{CommandContext, Done};
use errors::{Code, Result, bail};
use front::{Args, idl};

/// The collection, and the UUID that it must have.
fn arguments(args: &Args<'_>) -> Result<(String, Option<[u8; 16]>)> {
    let ns = args.namespace()?;
    let mut uuid = None;
    for e in &args.fields {
        match e.name {
            "collectionUUID" => uuid = idl::uuid("drop", *e)?,
            "validateIndexes" => {}
            _ => return Err(args.unknown(*e)),
        }
    }
    check_droppable(&ns)?;
    Ok((ns, uuid))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, uuid) = arguments(&cx.args)?;
    let profiled = catalog::collection_of(&ns) == "system.profile"
        && cx.app.profiler.settings(cx.args.db).level > 0;
    if profiled {
        bail!(
            IllegalOperation,
            "turn off profiling before dropping system.profile collection"
        );
    }
    let engine = &cx.app.engine;
    super::create::check_uuid(&engine.catalog, &ns, uuid)?;
    let buckets = ::time_series::buckets_of(&ns);
    if engine.catalog.get(&buckets).is_some() {
        // They go once nothing interrupts any more.
        cx.op.wait_for_writers(&buckets)?;
    }
    match engine.catalog.drop_collection(&ns, &|| cx.op.check()) {
        Ok(c) => {
            if c.measurements().is_some() {
                drop_buckets(engine, &ns)?;
            }
            if !c.is_view() {
                cx.w.i32("nIndexesWas", c.secondary().count() as i32 + 1);
            }
            cx.w.str("ns", &ns);
            cx.app
                .counters
                .forget(catalog::db_of(&ns), Some(catalog::collection_of(&ns)));
            changed(cx);
        }
        // Since MongoDB 7 dropping a collection that does not exist succeeds.
        Err(e) if e.is(Code::NamespaceNotFound) => {}
        Err(e) => return Err(e),
    }
    Ok(Done::Reply)
}

/// The buckets of a time series that was dropped.
fn drop_buckets(engine: &executor::Engine, ns: &str) -> Result<()> {
    match engine
        .catalog
        .drop_collection(&::time_series::buckets_of(ns), &catalog::never_interrupted)
    {
        Err(e) if !e.is(Code::NamespaceNotFound) => Err(e),
        _ => Ok(()),
    }
}

fn check_droppable(ns: &str) -> Result<()> {
    if let "admin.system.version" | "local.oplog.rs" = ns {
        bail!(
            IllegalOperation,
            "can't drop live oplog while replicating or the system collection {ns}"
        );
    }
    Ok(())
}
