//! What may be done on what.
//!
//! ```text
//! {db: "d", collection: "c"}    that collection, a system collection too
//! {db: "d", collection: ""}     the database, and all its collections but those of the system
//! {db: "",  collection: "c"}    collections of that name in all databases
//! {db: "",  collection: ""}     all databases but local and config, without collections of the system
//! {cluster: true}               the server itself
//! {anyResource: true}           all of these
//! {system_buckets: "c"}         what time-series collections keep their measurements in
//! ```

use crate::action::{Action, Actions};
use bson::{Doc, DocBuf, Writer, doc};
use errors::{Fallible, bail};
use foldhash::HashMap;
use std::collections::BTreeMap;

/// What a privilege is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    Cluster,
    Any,
    Collection {
        db: String,
        collection: String,
    },
    Database(String),
    CollectionOfAny(String),
    AnyNormal,
    /// Buckets of `collection` in `db`; either may be empty for all.
    Buckets {
        db: String,
        collection: String,
    },
}

/// Actions on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privilege {
    pub resource: Resource,
    pub actions: Actions,
}

/// What a command asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    Cluster,
    Database(&'a str),
    /// Database and collection.
    Collection(&'a str, &'a str),
    /// Databases that a client can name all at once.
    AnyNormal,
    Any,
}

impl Resource {
    pub fn parse(d: Doc<'_>) -> Fallible<Resource> {
        let d = crate::unique("resource", d)?;
        let text = |name: &str| d.get(name).and_then(|v| v.as_str());
        let is = |name: &str| d.get(name).is_some_and(|v| v.truthy());
        let owned = |s: &str| s.to_string();
        match (text("db"), text("collection"), text("system_buckets")) {
            _ if is("cluster") => Ok(Resource::Cluster),
            _ if is("anyResource") => Ok(Resource::Any),
            (db, None, Some(c)) => Ok(Resource::Buckets {
                db: owned(db.unwrap_or_default()),
                collection: owned(c),
            }),
            (Some(""), Some(""), None) => Ok(Resource::AnyNormal),
            (Some(""), Some(c), None) => Ok(Resource::CollectionOfAny(owned(c))),
            (Some(db), Some(""), None) => Ok(Resource::Database(owned(db))),
            (Some(db), Some(c), None) => Ok(Resource::Collection {
                db: owned(db),
                collection: owned(c),
            }),
            (Some(_), None, None) => bail!(
                BadValue,
                "resource must set 'db' and 'collection' both, 'cluster', or 'anyResource'"
            ),
            _ => bail!(
                BadValue,
                "resource pattern must have db and collection set or cluster set"
            ),
        }
    }

    pub fn document(&self) -> DocBuf {
        match self {
            Resource::Cluster => doc! { "cluster": true },
            Resource::Any => doc! { "anyResource": true },
            Resource::Collection { db, collection } => doc! { "db": db, "collection": collection },
            Resource::Database(db) => doc! { "db": db, "collection": "" },
            Resource::CollectionOfAny(c) => doc! { "db": "", "collection": c },
            Resource::AnyNormal => doc! { "db": "", "collection": "" },
            Resource::Buckets { db, collection } if db.is_empty() => {
                doc! { "system_buckets": collection }
            }
            Resource::Buckets { db, collection } => {
                doc! { "db": db, "system_buckets": collection }
            }
        }
    }

    /// The one database that it belongs to; `None` where only `admin` may speak of it.
    pub fn db(&self) -> Option<&str> {
        match self {
            Resource::Collection { db, .. } | Resource::Database(db) => Some(db),
            Resource::Buckets { db, .. } if !db.is_empty() => Some(db),
            _ => None,
        }
    }
}

impl Privilege {
    /// `{resource, actions}`, and the actions in it that do not exist.
    pub fn parse(d: Doc<'_>) -> Fallible<(Privilege, Vec<String>)> {
        let d = crate::unique("privileges", d)?;
        let Some(resource) = d.get("resource").and_then(|v| v.as_doc()) else {
            bail!(
                BadValue,
                "Missing expected field \"resource\" in a privilege"
            );
        };
        let Some(list) = d.get("actions").and_then(|v| v.as_array()) else {
            bail!(
                BadValue,
                "Missing expected field \"actions\" in a privilege"
            );
        };
        let (actions, unknown) = Actions::parse(list)?;
        let resource = Resource::parse(resource)?;
        Ok((Privilege { resource, actions }, unknown))
    }

    pub fn document(&self) -> DocBuf {
        let mut w = Writer::new();
        w.doc("resource", self.resource.document().as_doc());
        w.open_array("actions");
        for a in self.actions.iter() {
            w.push_value(a.name());
        }
        w.close();
        w.finish()
    }
}

/// All privileges of a user: asked once or more for every command, without allocation.
#[derive(Clone, Debug, Default)]
pub struct Privileges {
    any: Actions,
    any_normal: Actions,
    cluster: Actions,
    databases: HashMap<String, OfDatabase>,
    /// By name of the collection, in all databases.
    collections: HashMap<String, Actions>,
    buckets: HashMap<(String, String), Actions>,
}

#[derive(Clone, Debug, Default)]
struct OfDatabase {
    normal: Actions,
    collections: HashMap<String, Actions>,
}

/// Whether privileges on all collections of a database leave out this one.
pub fn is_system(db: &str, collection: &str) -> bool {
    collection.starts_with("system.") || db == "local" && collection.starts_with("replset.")
}

/// Databases that privileges on all databases leave out.
fn is_apart(db: &str) -> bool {
    matches!(db, "local" | "config")
}

impl Privileges {
    /// Those of `__system`, and of every client without authorization.
    pub fn all() -> Privileges {
        Privileges {
            any: Actions::ALL,
            ..Privileges::default()
        }
    }

    pub fn add(&mut self, p: &Privilege) {
        let place = match &p.resource {
            Resource::Cluster => &mut self.cluster,
            Resource::Any => &mut self.any,
            Resource::AnyNormal => &mut self.any_normal,
            Resource::Database(db) => &mut self.databases.entry(db.clone()).or_default().normal,
            Resource::Collection { db, collection } => {
                let of_db = self.databases.entry(db.clone()).or_default();
                of_db.collections.entry(collection.clone()).or_default()
            }
            Resource::CollectionOfAny(c) => self.collections.entry(c.clone()).or_default(),
            Resource::Buckets { db, collection } => {
                let key = (db.clone(), collection.clone());
                self.buckets.entry(key).or_default()
            }
        };
        *place = place.and(p.actions);
    }

    /// All that may be done on a target.
    pub fn on(&self, target: Target<'_>) -> Actions {
        let of_db = |db: &str| self.databases.get(db);
        match target {
            Target::Any => self.any,
            Target::Cluster => self.any.and(self.cluster),
            Target::AnyNormal => self.any.and(self.any_normal),
            Target::Database(db) => {
                let normal = of_db(db).map_or(Actions::NONE, |d| d.normal);
                let of_all = match is_apart(db) {
                    true => Actions::NONE,
                    false => self.any_normal,
                };
                self.any.and(of_all).and(normal)
            }
            Target::Collection(db, collection) => {
                let mut actions = self.any;
                if !is_system(db, collection) {
                    actions = actions.and(self.on(Target::Database(db)));
                } else if let Some(of) = collection.strip_prefix("system.buckets.") {
                    actions = actions.and(self.on_buckets(db, of));
                }
                if let Some(exact) = of_db(db).and_then(|d| d.collections.get(collection)) {
                    actions = actions.and(*exact);
                }
                match self.collections.get(collection) {
                    Some(named) => actions.and(*named),
                    None => actions,
                }
            }
        }
    }

    fn on_buckets(&self, db: &str, collection: &str) -> Actions {
        let pairs = [(db, collection), (db, ""), ("", collection), ("", "")];
        let of = |(db, c): (&str, &str)| self.buckets.get(&(db.to_string(), c.to_string()));
        (pairs.into_iter().filter_map(of)).fold(Actions::NONE, |all, some| all.and(*some))
    }

    #[inline]
    pub fn allows(&self, action: Action, target: Target<'_>) -> bool {
        self.any.has(action) || self.allows_as_usual(action, target) || self.on(target).has(action)
    }

    /// The short way for what most users may do with most collections; false says nothing.
    fn allows_as_usual(&self, action: Action, target: Target<'_>) -> bool {
        let Target::Collection(db, collection) = target else {
            return false;
        };
        !is_system(db, collection) && (self.databases.get(db)).is_some_and(|d| d.normal.has(action))
    }

    /// Whether anything at all is allowed on a database or its collections.
    pub fn touches(&self, db: &str) -> bool {
        !self.on(Target::Database(db)).is_empty()
            || (self.databases.get(db))
                .is_some_and(|d| d.collections.values().any(|a| !a.is_empty()))
    }

    /// All of them, one for each resource.
    pub fn list(&self) -> Vec<Privilege> {
        let mut all: BTreeMap<Resource, Actions> = BTreeMap::new();
        let mut put = |resource: Resource, actions: Actions| {
            if !actions.is_empty() {
                all.insert(resource, actions);
            }
        };
        put(Resource::Any, self.any);
        put(Resource::AnyNormal, self.any_normal);
        put(Resource::Cluster, self.cluster);
        for (c, actions) in &self.collections {
            put(Resource::CollectionOfAny(c.clone()), *actions);
        }
        for ((db, collection), actions) in &self.buckets {
            let (db, collection) = (db.clone(), collection.clone());
            put(Resource::Buckets { db, collection }, *actions);
        }
        for (db, of_db) in &self.databases {
            put(Resource::Database(db.clone()), of_db.normal);
            for (c, actions) in &of_db.collections {
                let (db, collection) = (db.clone(), c.clone());
                put(Resource::Collection { db, collection }, *actions);
            }
        }
        let privilege = |(resource, actions)| Privilege { resource, actions };
        all.into_iter().map(privilege).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(list: &[(Resource, Action)], action: Action, target: Target<'_>) -> bool {
        let mut all = Privileges::default();
        for (resource, action) in list {
            all.add(&Privilege {
                resource: resource.clone(),
                actions: Actions::of(&[*action]),
            });
        }
        all.allows(action, target)
    }

    fn on(db: &str, collection: &str) -> Resource {
        Resource::Collection {
            db: db.into(),
            collection: collection.into(),
        }
    }

    #[test]
    fn a_resource_covers_what_it_says() {
        use Action::Find;
        use Target::{Cluster, Collection, Database};
        let db = [(Resource::Database("d".into()), Find)];
        assert!(may(&db, Find, Collection("d", "c")) && may(&db, Find, Database("d")));
        assert!(!may(&db, Find, Collection("d", "system.users")));
        assert!(!may(&db, Find, Collection("e", "c")) && !may(&db, Find, Cluster));
        assert!(!may(&db, Action::Insert, Collection("d", "c")));
        let one = [(on("d", "system.js"), Find)];
        assert!(may(&one, Find, Collection("d", "system.js")) && !may(&one, Find, Database("d")));
        let normal = [(Resource::AnyNormal, Find)];
        assert!(may(&normal, Find, Collection("d", "c")) && may(&normal, Find, Database("d")));
        assert!(!may(&normal, Find, Collection("local", "oplog.rs")));
        assert!(!may(&normal, Find, Collection("config", "x")));
        assert!(!may(&normal, Find, Collection("d", "system.js")));
        let everywhere = [(Resource::CollectionOfAny("system.js".into()), Find)];
        assert!(may(&everywhere, Find, Collection("d", "system.js")));
        let any = [(Resource::Any, Find)];
        assert!(may(&any, Find, Cluster) && may(&any, Find, Collection("local", "system.x")));
        let buckets = Resource::Buckets {
            db: String::new(),
            collection: "c".into(),
        };
        let buckets = [(buckets, Find)];
        assert!(may(&buckets, Find, Collection("d", "system.buckets.c")));
        assert!(!may(&buckets, Find, Collection("d", "system.buckets.e")));
    }

    #[test]
    fn resources_come_back() {
        let all = [
            Resource::Cluster,
            Resource::Any,
            on("d", "c"),
            Resource::Database("d".into()),
            Resource::CollectionOfAny("c".into()),
            Resource::AnyNormal,
        ];
        for resource in all {
            let d = resource.document();
            assert_eq!(Resource::parse(d.as_doc()).unwrap(), resource);
        }
        for bad in [doc! {}, doc! { "db": "x" }, doc! { "collection": "x" }] {
            assert!(Resource::parse(bad.as_doc()).is_err());
        }
    }
}
