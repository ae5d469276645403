//! The checks of `create` and `collMod` on a validator; the check of its operators also serves filters
//! that run without a collection.

use bson::Doc;
use errors::{Result, bail};
use query::expr::ParseEnv;
use query::filter::Filter;

/// Fails when the collection may not have a validator, or not this one.
pub fn check(ns: &str, validator: Doc<'_>) -> Result<()> {
    let (db, coll) = (catalog::db_of(ns), catalog::collection_of(ns));
    if validator.is_empty() {
        return Ok(());
    }
    // The settings of a cluster have one.
    if matches!(db, "admin" | "config" | "local") && ns != "config.settings" {
        bail!(
            InvalidOptions,
            "Document validators are not allowed on collection {ns} in the {db} internal database"
        );
    }
    if coll.starts_with("system.") {
        bail!(
            InvalidOptions,
            "Document validators not allowed on system collection {ns}"
        );
    }
    check_operators(validator, 0)?;
    Filter::parse(validator, &ParseEnv::new()).map(|_| ())
}

/// Operators that need an index or a shell, and the nesting.
pub fn check_operators(d: Doc<'_>, depth: u32) -> Result<()> {
    if depth > 200 {
        bail!(Overflow, "exceeded the depth that a filter may have");
    }
    for e in d {
        match e.name {
            "$where" => bail!(BadValue, "$where is not allowed in this context"),
            "$text" => bail!(BadValue, "$text is not allowed in this context"),
            "$near" | "$nearSphere" | "$geoNear" => {
                bail!(5626500, "{} is not allowed in this context", e.name)
            }
            // What follows is not in the language of queries.
            "$expr" | "$jsonSchema" => {}
            _ => {
                if let Some(inner) = e.val.as_container() {
                    check_operators(inner, depth + 1)?;
                }
            }
        }
    }
    Ok(())
}
