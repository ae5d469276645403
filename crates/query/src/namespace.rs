//! Names of databases and collections, checked as MongoDB checks them (manual: Naming
//! Restrictions).

use errors::{Result, bail};

/// The database of `db.collection`.
pub fn db_of(ns: &str) -> &str {
    ns.split_once('.').map_or(ns, |(db, _)| db)
}

/// The collection of `db.collection`.
pub fn collection_of(ns: &str) -> &str {
    ns.split_once('.').map_or("", |(_, c)| c)
}

pub fn check_db_name(db: &str) -> Result<()> {
    if db.is_empty()
        || db.len() > 63
        || db.contains(['/', '\\', '.', ' ', '"', '\0', '$']) && db != "$external"
    {
        bail!(InvalidNamespace, "Invalid database name: '{db}'");
    }
    Ok(())
}

/// Refuses names of system collections that there are none of, `system.buckets.…` aside.
pub fn check_system_name(ns: &str) -> Result<()> {
    let c = collection_of(ns);
    let Some(name) = c.strip_prefix("system.") else {
        return Ok(());
    };
    let known = [
        "js",
        "preimages",
        "profile",
        "roles",
        "sessions",
        "users",
        "version",
        "views",
    ];
    if !name.starts_with("buckets.") && !known.contains(&name) {
        bail!(InvalidNamespace, "Invalid system namespace: {ns}");
    }
    Ok(())
}

/// `ns` is `db.collection`; the database name was checked.
pub fn check_collection_name(ns: &str) -> Result<()> {
    let c = collection_of(ns);
    if c.is_empty() || c.starts_with('.') || c.contains('\0') || ns.len() > 255 {
        bail!(InvalidNamespace, "Invalid namespace specified '{ns}'");
    }
    if c.contains('$') && ns != "local.oplog.$main" {
        bail!(InvalidNamespace, "Invalid collection name: {c}");
    }
    Ok(())
}
