//! `renameCollection`: within a database or into another.

use super::changed;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let from = cx.args.first.as_str();
    let (mut to, mut drop_target, mut uuid, mut target_uuid) = (None, false, None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "to" => to = idl::string("renameCollection", e)?,
            "dropTarget" => match (e.val.as_bool(), e.val.as_binary()) {
                (Some(b), _) => drop_target = b,
                // The UUID that the target must have.
                (_, Some((4, id))) if id.len() == 16 => {
                    drop_target = true;
                    target_uuid = id.try_into().ok();
                }
                (_, Some(_)) => bail!(InvalidUUID, "dropTarget must be a bool or a UUID"),
                _ => {
                    return Err(idl::mismatch(
                        "renameCollection",
                        "dropTarget",
                        e.val,
                        &["bool", "binData"],
                    ));
                }
            },
            "stayTemp" => {
                idl::boolean("renameCollection", e)?;
            }
            "collectionUUID" => uuid = idl::uuid("renameCollection", e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let Some(from) = from else {
        if cx.args.first.is_nullish() {
            return Err(idl::missing("renameCollection", "renameCollection"));
        }
        return Err(idl::mismatch(
            "renameCollection",
            "renameCollection",
            cx.args.first,
            &["string"],
        ));
    };
    let to = idl::required("renameCollection", "to", to)?;
    check(from)?;
    check(to)?;
    let catalog = &cx.app.engine.catalog;
    if target_uuid.is_some() && catalog::db_of(from) != catalog::db_of(to) {
        bail!(
            InvalidOptions,
            "dropTarget cannot be a UUID when renaming across databases"
        );
    }
    super::create::check_uuid(catalog, to, target_uuid)?;
    let (from_db, to_db) = (catalog::db_of(from), catalog::db_of(to));
    if from_db != to_db && from_db.eq_ignore_ascii_case(to_db) {
        bail!(
            DatabaseDifferCase,
            "db already exists with different case already have: [{from_db}] trying to create [{to_db}]"
        );
    }
    let Some(source) = catalog.get(from) else {
        bail!(NamespaceNotFound, "Source collection {from} does not exist");
    };
    if source.is_view() {
        bail!(CommandNotSupportedOnView, "cannot rename view: {from}");
    }
    super::create::check_uuid(catalog, from, uuid)?;
    if catalog.get(to).is_some_and(|t| t.is_view()) {
        bail!(
            NamespaceExists,
            "a view already exists with that name: {to}"
        );
    }
    catalog.rename(from, to, drop_target)?;
    let counters = &cx.app.counters;
    counters.forget(from_db, Some(catalog::collection_of(from)));
    changed(cx);
    Ok(Done::Reply)
}

fn check(ns: &str) -> Result<()> {
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
