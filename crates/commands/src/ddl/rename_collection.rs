//! `renameCollection`: within a database or into another.

use super::changed;
use crate::cx::{Cx, Done};
use crate::idl;
use errors::{Result, bail};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let from = cx.args.first.as_str();
    let (mut to, mut drop_target, mut uuid) = (None, false, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "to" => to = idl::string("renameCollection", e)?,
            // Also a UUID, from a time when collections were renamed by it.
            "dropTarget" if e.val.as_binary().is_some_and(|(t, _)| t == 4) => drop_target = true,
            "dropTarget" => drop_target = idl::safe_bool("renameCollection", e)?.unwrap_or(false),
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
        return Err(idl::mismatch("renameCollection", "renameCollection", cx.args.first, &["string"]));
    };
    let to = idl::required("renameCollection", "to", to)?;
    check(from)?;
    check(to)?;
    let catalog = &cx.app.engine.catalog;
    let Some(source) = catalog.get(from) else {
        bail!(NamespaceNotFound, "Source collection {from} does not exist");
    };
    if source.is_view() {
        bail!(CommandNotSupportedOnView, "cannot rename view: {from}");
    }
    super::create::check_uuid(catalog, from, uuid)?;
    if catalog.get(to).is_some_and(|t| t.is_view()) {
        bail!(NamespaceExists, "a view already exists with that name: {to}");
    }
    catalog.rename(from, to, drop_target)?;
    changed(cx);
    Ok(Done::Reply)
}

fn check(ns: &str) -> Result<()> {
    let Some((db, coll)) = ns.split_once('.') else { bail!(InvalidNamespace, "Invalid namespace specified '{ns}'") };
    catalog::check_db_name(db)?;
    catalog::check_collection_name(ns)?;
    if coll.starts_with("system.") {
        bail!(IllegalOperation, "renaming system collections is not allowed: {ns}");
    }
    Ok(())
}
