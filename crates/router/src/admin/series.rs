//! Time series that become sharded: their buckets do ([`sharding::series`]).

use super::collections::{Wanted, check_collation, make_sharded, own_collation, reply};
use crate::request::RoutedCommand;
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::chunks::lock;
use cluster_view::collections::listed;
use cluster_view::collections::size_on;
use cluster_view::metadata::{Placement, run};
use cluster_view::routing::no_database;
use errors::{Error, err};
use mover::PendingMoves;
use sharding::{RoutingTable, Series, ShardKey, series};

fn is_series(listed: &DocBuf) -> bool {
    listed.get("type").and_then(Val::as_str) == Some("timeseries")
}

fn options_in(listed: &DocBuf) -> Doc<'_> {
    let options = listed.get("options").and_then(Val::as_doc);
    options.unwrap_or(Doc::EMPTY)
}

/// Shards a time series, or makes one and shards it; `None`: `ns` is another collection, and is not to
/// be one.
pub(super) fn shard(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    pattern: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let cluster = &router.cluster;
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    let given = command.document("timeseries");
    let primary = cluster.database(db)?.ok_or_else(|| no_database(db))?;
    let known = listed(cluster, &primary, ns)?;
    match &known {
        Some(known) if is_series(known) => {}
        Some(_) if given.is_some() => return Err(other_spec(ns).into()),
        None if given.is_some() => {}
        _ => return Ok(None),
    }
    if command.is("unique") {
        return Err(err!(
            InvalidOptions,
            "Unique indexes are not supported on time-series collections"
        )
        .into());
    }
    check_collation(command.own_collation())?;
    // The database stays where it is meanwhile.
    let database = lock(cluster, db)?;
    cluster.end_pending_moves_under(&database, db)?;
    let buckets = series::buckets_of(ns);
    let held = lock(cluster, &buckets)?;
    cluster.end_pending_moves_under(&held, &buckets)?;
    let primary = match cluster.refresh(&buckets)? {
        Some(Placement::Unsharded(unsharded)) => unsharded.shard,
        Some(Placement::Sharded(table)) => {
            check_same_key(&table, ns, pattern)?;
            return Ok(Some(reply(ns)));
        }
        None => return Err(no_database(db)),
    };
    let made = prepare(router, &primary, ns, given, pattern)?;
    let told = options_in(&made).get("timeseries").and_then(Val::as_doc);
    let told = told.ok_or_else(|| other_spec(ns))?;
    let key = ShardKey::parse(series::key_of_buckets(told, pattern)?.as_doc())?;
    let wanted = Wanted {
        key: &key,
        unique: false,
        collation: own_collation(options_in(&made), command.own_collation())?,
        series: Series::new(told, &key),
    };
    let empty = size_on(cluster, &primary, &buckets)?.1 == 0;
    make_sharded(router, command, held, &buckets, wanted, &primary, empty)?;
    cluster.forget(ns);
    Ok(Some(reply(ns)))
}

/// Of a time series that is sharded already: whether it is by this key.
fn check_same_key(table: &RoutingTable, ns: &str, pattern: Doc<'_>) -> Outcome<()> {
    let options = table.entry.series.as_ref();
    let options = options.map_or(Doc::EMPTY, Series::options);
    let wanted = series::key_of_buckets(options, pattern)?;
    if table.key().pattern() == wanted.as_doc() {
        return Ok(());
    }
    Err(err!(
        AlreadyInitialized,
        "sharding already enabled for collection {ns} with options {{ key: {}, unique: false }}",
        table.key().pattern()
    )
    .into())
}

fn other_spec(ns: &str) -> Error {
    Error::coded(
        5731500,
        format!("the 'timeseries' spec provided must match that of exists '{ns}' collection"),
    )
}

/// The time series on its shard, with an index for the shard key; as that lists it.
fn prepare(
    router: &Router,
    shard: &str,
    ns: &str,
    given: Option<Doc<'_>>,
    pattern: Doc<'_>,
) -> Outcome<DocBuf> {
    let cluster = &router.cluster;
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let set = cluster.shard(shard)?;
    let majority = doc! {"w": "majority"};
    let mut known = listed(cluster, shard, ns)?;
    if let (None, Some(given)) = (&known, given) {
        // An invalid key is refused before anything is made.
        series::key_of_buckets(given, pattern)?;
        let create = doc! {
            "create": collection, "timeseries": given, "writeConcern": &majority,
        };
        run(&set, db, create.as_doc())?;
        known = listed(cluster, shard, ns)?;
    }
    let known = known.filter(is_series).ok_or_else(|| other_spec(ns))?;
    let told = options_in(&known).get("timeseries").and_then(Val::as_doc);
    let told = told.unwrap_or(Doc::EMPTY);
    let differs = |d: Doc<'_>| d.iter().any(|e| told.get(e.name) != Some(e.val));
    if given.is_some_and(differs) {
        return Err(other_spec(ns).into());
    }
    series::key_of_buckets(told, pattern)?;
    let name: Vec<String> = pattern
        .iter()
        .map(|e| format!("{}_{}", e.name, e.val.as_str().unwrap_or("1")))
        .collect();
    let mut index = Writer::new();
    index.doc("key", pattern).str("name", &name.join("_"));
    index.value("collation", doc! {"locale": "simple"});
    let create = doc! {
        "createIndexes": collection,
        "indexes": bson::array![index.finish()],
        "writeConcern": majority,
    };
    run(&set, db, create.as_doc())?;
    Ok(known)
}
