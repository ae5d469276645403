//! Access control of a router: users and roles lie on the configuration set, and the router checks each
//! command itself before it sends it on as a member of the cluster.
//!
//! Invariants: what a user may do at a router is never older than
//! `userCacheInvalidationIntervalSecs`, while the configuration set is reached; after a change through
//! this router it holds at once. That a user is not there only a primary says.

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use auth::Action::*;
use auth::Target;
use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::run;
use cluster_view::upstream::{error_of, message, with_fields};
use commands::{LoggedIn, UserDirectory};
use errors::{Fallible, err};
use front::specification;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a login waits for the configuration set.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where a user management command does not say it.
const MAJORITY_MILLIS: i64 = 60_000;

/// Fails where a command that only routers have is not for the database it was sent to.
pub(crate) fn check_database(command: &RoutedCommand<'_>) -> Outcome<()> {
    let anywhere = matches!(
        command.name,
        "isdbgrid" | "isDbGrid" | "checkMetadataConsistency"
    );
    if anywhere || command.db == "admin" || !is_routers_own(command.name) {
        return Ok(());
    }
    Err(err!(
        Unauthorized,
        "{} may only be run against the admin database.",
        command.name
    )
    .into())
}

/// Whether only routers have a command of that name.
fn is_routers_own(name: &str) -> bool {
    specification::lookup(name).is_some_and(|c| !c.is_of_servers())
}

/// The users and roles of the configuration set.
pub(crate) struct OnConfigurationSet(pub Arc<cluster_view::Cluster>);

impl OnConfigurationSet {
    fn first(&self, ns: &str, filter: DocBuf) -> Fallible<Option<DocBuf>> {
        let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
        let ask = |mode: &str| {
            let find = doc! {
                "find": collection, "filter": filter.clone(), "limit": 1, "singleBatch": true,
                "$db": db, "readConcern": doc! {"level": "majority"},
                "$readPreference": doc! {"mode": mode},
            };
            let asked = message(find.as_doc(), &[]);
            let reply = self.0.config.call_within(&asked, PATIENCE);
            let reply = reply.map_err(|failure| failure.into_error())?;
            match error_of(reply.as_doc()) {
                Some(e) => Err(e),
                None => Ok(cluster_view::reply::batch_of(&reply)
                    .next()
                    .map(Doc::to_buf)),
            }
        };
        // A secondary that has just started may be behind all that it has.
        ask("primary").or_else(|e| match ask("secondary") {
            Ok(Some(found)) => Ok(Some(found)),
            _ => Err(e),
        })
    }
}

impl UserDirectory for OnConfigurationSet {
    fn document(&self, ns: &str, id: &str) -> Fallible<Option<DocBuf>> {
        self.first(ns, doc! {"_id": id})
    }

    fn any(&self, ns: &str) -> Fallible<bool> {
        Ok(self.first(ns, doc! {})?.is_some())
    }
}

/// Changes and shows users and roles, on the configuration set.
pub(crate) fn on_users(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let shows = matches!(command.name, "usersInfo" | "rolesInfo");
    let generic = ["lsid", "writeConcern", "$readPreference", "readConcern"];
    let asked = command.without(&generic).finish();
    let asked = match shows {
        true => asked,
        false => {
            let concern = doc! {"w": "majority", "wtimeout": MAJORITY_MILLIS};
            with_fields(asked.as_doc(), doc! {"writeConcern": concern}.as_doc())
        }
    };
    let reply = router.cluster.config.call(&message(asked.as_doc(), &[]));
    if !shows {
        // Whatever the reply says, it may have been changed.
        router.local.forget_users();
    }
    reply
}

/// Forgets users and roles when the configuration set says that some have changed, for as long as the
/// router lives. Asks every `userCacheInvalidationIntervalSecs`.
pub(crate) fn watch_users(router: &Arc<Router>) -> std::io::Result<()> {
    let watched = Arc::downgrade(router);
    let work = move || {
        let mut known = None;
        while let Some(pause) = look_at_users(&watched, &mut known) {
            std::thread::sleep(pause);
        }
    };
    std::thread::Builder::new()
        .name("users".into())
        .spawn(work)
        .map(drop)
}

/// One look; how long until the next, `None` at the end.
fn look_at_users(router: &Weak<Router>, known: &mut Option<ObjectId>) -> Option<Duration> {
    let router = router.upgrade()?;
    let ask = doc! {"_getUserCacheGeneration": 1};
    match run(&router.cluster.config, "admin", ask.as_doc()) {
        Ok(reply) => {
            let now = reply.get("cacheGeneration").and_then(Val::as_oid);
            if now != *known {
                router.local.forget_users();
                *known = now;
            }
        }
        Err(e) => {
            tracing::warn!(target: "ACCESS", id = 20266, error = %e,
                "An error occurred while fetching current user cache generation from config servers");
        }
    }
    let seconds = router.local.user_cache_interval_secs();
    Some(Duration::from_secs(seconds))
}

/// Whether a user may do this; always true without access control.
pub(crate) fn may(user: Option<&LoggedIn>, action: auth::Action, target: Target<'_>) -> bool {
    user.is_none_or(|user| user.privileges.allows(action, target))
}

/// The documents of a list, of those that a user may see.
pub(crate) fn seen_databases<'d>(
    command: &RoutedCommand<'_>,
    names: impl Iterator<Item = &'d String>,
) -> Vec<&'d String> {
    let user = command.user.as_deref();
    let own = command.field("authorizedDatabases");
    let all = may(user, ListDatabases, Target::Cluster) && !own.is_some_and(Val::truthy);
    let shown = |db: &&String| all || user.is_none_or(|u| u.privileges.touches(db));
    names.filter(shown).collect()
}

/// Of a whole `listCollections`, those on which the user may do anything.
pub(crate) fn seen_collections(command: &RoutedCommand<'_>, ns: &str, all: &[DocBuf]) -> DocBuf {
    let user = command.user.as_deref();
    let mut w = Writer::new();
    w.open_doc("cursor")
        .i64("id", 0)
        .str("ns", ns)
        .open_array("firstBatch");
    for d in all {
        let name = d.get("name").and_then(Val::as_str).unwrap_or_default();
        let target = Target::Collection(command.db, name);
        if user.is_none_or(|u| !u.privileges.on(target).is_empty()) {
            w.push(d.as_doc().as_val());
        }
    }
    w.close().close();
    finish(w, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster_view::testing::{access, fake_set};
    use mover::Moving;
    use std::sync::atomic::Ordering;

    /// Otherwise a user that is there could not log in, and anybody could make the first one.
    #[test]
    fn a_secondary_does_not_say_that_there_is_no_user() {
        let (set, member) = fake_set(1);
        member.secondary.store(true, Ordering::Relaxed);
        let directory = OnConfigurationSet(Arc::new(cluster_view::Cluster::new(
            &set.address,
            access(),
            Box::<Moving>::default(),
        )));
        assert!(directory.any("admin.system.users").is_err());
        member.primary.store(true, Ordering::Relaxed);
        assert!(!directory.any("admin.system.users").unwrap());
    }
}
