//! What a server has: collections with their options and indexes, views, and what must be made of them elsewhere.

use super::server::{Kind, NO_SUCH_NAMESPACE, Result, Server, command, number};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use std::collections::BTreeMap;

/// Which collections are meant; all if none is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection(pub Vec<String>);

impl Selection {
    pub fn has(&self, db: &str, coll: &str) -> bool {
        let named = |one: &String| match one.split_once('.') {
            None => one == db,
            Some((d, c)) => (d, c) == (db, coll),
        };
        is_users_database(db)
            && is_users_collection(coll)
            && (self.0.is_empty() || self.0.iter().any(named))
    }

    /// Whether anything of this database is meant.
    pub fn has_any_of(&self, db: &str) -> bool {
        let named = |one: &String| one.split('.').next() == Some(db);
        is_users_database(db) && (self.0.is_empty() || self.0.iter().any(named))
    }
}

fn is_users_database(db: &str) -> bool {
    !matches!(db, "admin" | "config" | "local" | "")
}

/// `system.js` holds functions of users; the others are made by the server itself.
fn is_users_collection(coll: &str) -> bool {
    coll == "system.js" || !coll.starts_with("system.")
}

/// A collection or a view.
pub(super) struct Namespace {
    pub db: String,
    pub coll: String,
    pub options: DocBuf,
    pub kind: NamespaceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceKind {
    Collection,
    /// Its documents come in the order in which they were written.
    Capped,
    TimeSeries,
    View,
}

impl Namespace {
    pub fn full(&self) -> String {
        format!("{}.{}", self.db, self.coll)
    }

    fn of(db: &str, listed: Doc<'_>) -> Option<Namespace> {
        let given = listed.get("options").and_then(Val::as_doc);
        let given = given.unwrap_or(Doc::EMPTY);
        let mut options = Writer::new();
        for e in given.iter().filter(|e| is_option(e.name)) {
            options.val(e.name, e.val);
        }
        let kind = match listed.get("type").and_then(Val::as_str) {
            Some("view") => NamespaceKind::View,
            Some("timeseries") => NamespaceKind::TimeSeries,
            _ if given.get("capped").is_some_and(Val::truthy) => NamespaceKind::Capped,
            _ => NamespaceKind::Collection,
        };
        Some(Namespace {
            db: db.to_string(),
            coll: listed.get("name")?.as_str()?.to_string(),
            options: options.finish(),
            kind,
        })
    }
}

/// Options that old releases list and none takes any more.
fn is_option(name: &str) -> bool {
    !matches!(
        name,
        "uuid" | "create" | "autoIndexId" | "temp" | "flags" | "storageEngine"
    )
}

/// All databases, collections and views that are meant; views last, since they stand on others.
pub(super) fn namespaces(server: &mut Server, only: &Selection) -> Result<Vec<Namespace>> {
    let listed = server.run("admin", &doc! { "listDatabases": 1, "nameOnly": true })?;
    let databases = listed.get("databases").and_then(Val::as_array);
    let mut found = Vec::new();
    for db in databases.unwrap_or(Doc::EMPTY).values() {
        let name = db.as_doc().and_then(|d| d.get("name"));
        let Some(db) = name.and_then(Val::as_str) else {
            continue;
        };
        if !only.has_any_of(db) {
            continue;
        }
        let all = server.list(db, &doc! { "listCollections": 1 })?;
        let each = all.iter().filter_map(|c| Namespace::of(db, c.as_doc()));
        found.extend(each.filter(|n| only.has(db, &n.coll)));
    }
    found.sort_by_key(|n| n.kind == NamespaceKind::View);
    Ok(found)
}

/// Bytes and documents of a collection, as far as the server says.
pub(super) fn size(server: &mut Server, ns: &Namespace) -> Result<(u64, u64)> {
    let stats = server.run(&ns.db, &command("collStats", &ns.coll, |_| {}))?;
    let of = |name| u64::try_from(number(stats.as_doc(), name)).unwrap_or_default();
    Ok((of("size"), of("count")))
}

/// The indexes of a collection by name, as `createIndexes` takes them. The one of `_id` comes with the collection.
pub(super) fn indexes(
    server: &mut Server,
    db: &str,
    coll: &str,
) -> Result<BTreeMap<String, DocBuf>> {
    let listed = match server.list(db, &command("listIndexes", coll, |_| {})) {
        Err(e) if e.is(NO_SUCH_NAMESPACE) => Vec::new(),
        listed => listed?,
    };
    let each = listed.iter().filter_map(|spec| index_spec(spec.as_doc()));
    Ok(each.collect())
}

/// A listed index without the fields of its release. `None`: of `_id`, or the order of a clustered
/// collection.
pub(super) fn index_spec(listed: Doc<'_>) -> Option<(String, DocBuf)> {
    let name = listed.get("name")?.as_str()?;
    let is_of_id = listed.get("key")?.as_doc()?.as_bytes() == doc! { "_id": 1 }.as_bytes();
    if name == "_id_" || is_of_id || listed.get("clustered").is_some_and(Val::truthy) {
        return None;
    }
    let mut spec = Writer::new();
    for e in listed {
        // Versions of indexes before 3.4, and where they were, mean nothing elsewhere.
        if !matches!(e.name, "v" | "ns" | "background" | "dropDups") {
            spec.val(e.name, e.val);
        }
    }
    Some((name.to_string(), spec.finish()))
}

/// The keys of sharded collections, by namespace; none of a server that is no router.
pub(super) fn shard_keys(
    server: &mut Server,
    kind: Kind,
) -> Result<BTreeMap<String, (DocBuf, bool)>> {
    if !kind.is_router {
        return Ok(BTreeMap::new());
    }
    let find = doc! { "find": "collections", "filter": doc! { "dropped": doc! { "$ne": true } } };
    let all = server.list("config", &find)?;
    let each = all.iter().filter_map(|d| {
        let key = d.get("key")?.as_doc()?.to_buf();
        let unique = d.get("unique").is_some_and(Val::truthy);
        Some((d.get("_id")?.as_str()?.to_string(), (key, unique)))
    });
    Ok(each.collect())
}

/// An array of documents as a value.
pub(super) fn array_of<'d>(documents: impl Iterator<Item = &'d DocBuf>) -> Value {
    let mut w = Writer::new_array();
    documents.for_each(|d| {
        w.push(d.as_doc().as_val());
    });
    w.finish_array()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant() {
        let all = Selection::default();
        assert!(all.has("shop", "orders") && all.has("shop", "system.js"));
        assert!(
            !all.has("shop", "system.views") && !all.has("admin", "x") && !all.has_any_of("local")
        );
        let some = Selection(vec!["shop".into(), "blog.posts".into()]);
        assert!(
            some.has("shop", "orders") && some.has("blog", "posts") && !some.has("blog", "users")
        );
        assert!(some.has_any_of("blog") && !some.has_any_of("blogs"));
    }

    #[test]
    fn specs_of_indexes() {
        let old = doc! { "v": 1, "key": doc! { "a": 1 }, "name": "a_1", "ns": "x.y", "background": true, "unique": true };
        let (name, spec) = index_spec(old.as_doc()).unwrap();
        let wanted = doc! { "key": doc! { "a": 1 }, "name": "a_1", "unique": true };
        assert_eq!((&*name, spec.as_bytes()), ("a_1", wanted.as_bytes()));
        assert!(
            index_spec(doc! { "v": 2, "key": doc! { "_id": 1 }, "name": "_id_" }.as_doc())
                .is_none()
        );
    }
}
