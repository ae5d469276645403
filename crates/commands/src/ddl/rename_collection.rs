//! `renameCollection`: within a database or into another.

use super::changed;
use crate::request::{CommandContext, Done};
use bson::Elem;
use catalog::Catalog;
use errors::{Result, bail};
use front::{Args, idl};

const AT: &str = "renameCollection";

idl::arguments! {
    struct Arguments<'a> {
        "to" => to: Option<&'a str> = idl::string,
        "dropTarget" => drop_target: DropTarget = read_drop_target,
        "collectionUUID" => uuid: Option<[u8; 16]> = idl::uuid,
    }
    checked: "stayTemp" => idl::boolean;
}

/// Whether the collection that has the new name goes, and the UUID that it must have then.
#[derive(Clone, Copy, Default)]
struct DropTarget {
    drop: bool,
    uuid: Option<[u8; 16]>,
}

fn read_drop_target(within: &str, e: Elem<'_>) -> Result<DropTarget> {
    match (e.val.as_bool(), e.val.as_binary()) {
        (Some(drop), _) => Ok(DropTarget { drop, uuid: None }),
        (_, Some((4, id))) if id.len() == 16 => Ok(DropTarget {
            drop: true,
            uuid: id.try_into().ok(),
        }),
        (_, Some(_)) => bail!(InvalidUUID, "dropTarget must be a bool or a UUID"),
        _ => Err(idl::mismatch(within, e.name, e.val, &["bool", "binData"])),
    }
}

/// The old name, from the first field.
fn source<'a>(args: &Args<'a>) -> Result<&'a str> {
    match args.first.as_str() {
        Some(from) => Ok(from),
        None if args.first.is_nullish() => Err(idl::missing(AT, AT)),
        None => Err(idl::mismatch(AT, AT, args.first, &["string"])),
    }
}

/// The old name, the new one, and the rest.
fn arguments<'a>(args: &Args<'a>) -> Result<(&'a str, &'a str, Arguments<'a>)> {
    let a = Arguments::parse(AT, args.fields.iter().copied())?;
    let from = source(args)?;
    let to = idl::required(AT, "to", a.to)?;
    check_name(from)?;
    check_name(to)?;
    if a.drop_target.uuid.is_some() && catalog::db_of(from) != catalog::db_of(to) {
        bail!(
            InvalidOptions,
            "dropTarget cannot be a UUID when renaming across databases"
        );
    }
    Ok((from, to, a))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (from, to, a) = arguments(&cx.args)?;
    let catalog = &cx.app.engine.catalog;
    check_collections(catalog, from, to, &a)?;
    catalog.rename(from, to, a.drop_target.drop, &|| cx.op.check())?;
    let counters = &cx.app.counters;
    counters.forget(catalog::db_of(from), Some(catalog::collection_of(from)));
    changed(cx);
    Ok(Done::Reply)
}

/// Checks what has the two names.
fn check_collections(catalog: &Catalog, from: &str, to: &str, a: &Arguments<'_>) -> Result<()> {
    super::create::check_uuid(catalog, to, a.drop_target.uuid)?;
    catalog.snapshot().check_database(to)?;
    let Some(source) = catalog.get(from) else {
        bail!(NamespaceNotFound, "Source collection {from} does not exist");
    };
    if source.is_view() {
        bail!(CommandNotSupportedOnView, "cannot rename view: {from}");
    }
    super::create::check_uuid(catalog, from, a.uuid)?;
    if catalog.get(to).is_some_and(|t| t.is_view()) {
        bail!(
            NamespaceExists,
            "a view already exists with that name: {to}"
        );
    }
    Ok(())
}

fn check_name(ns: &str) -> Result<()> {
    let Some((db, coll)) = ns.split_once('.') else {
        bail!(InvalidNamespace, "Invalid namespace specified '{ns}'")
    };
    if ns.contains('$') || ns.len() > 255 && !coll.is_empty() {
        bail!(IllegalOperation, "Invalid namespace to rename: {ns}");
    }
    catalog::check_db_name(db)?;
    catalog::check_collection_name(ns)?;
    if db == "local" && coll.starts_with("oplog.") {
        bail!(IllegalOperation, "cannot rename to or from the oplog: {ns}");
    }
    if coll.starts_with("system.") {
        bail!(
            IllegalOperation,
            "renaming system collections is not allowed: {ns}"
        );
    }
    Ok(())
}
