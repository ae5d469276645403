//! Zones: shards of a zone, and ranges that only they may have. The balancer keeps to them.

use super::{done, shards, table_of};
use crate::request::RoutedCommand;
use crate::state::Router;
use bson::{Doc, DocBuf, Val, doc};
use cluster_view::Outcome;
use cluster_view::chunks::{MetadataChange, lock};
use errors::err;
use mover::balancer;
use sharding::zones::{Zone, check};

fn text<'a>(command: &RoutedCommand<'a>, name: &str) -> &'a str {
    command
        .field(name)
        .and_then(Val::as_str)
        .unwrap_or_default()
}

/// Whether a shard is of a zone.
fn is_of(shard: &DocBuf, zone: &str) -> bool {
    let tags = shard.get("tags").and_then(Val::as_array);
    let mut tags = tags.unwrap_or(Doc::EMPTY).values();
    tags.any(|t| t.as_str() == Some(zone))
}

pub(super) fn add_shard(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let zone = text(command, "zone");
    shards::set(
        router,
        command.collection(),
        doc! {"$addToSet": doc! {"tags": zone}},
    )?;
    Ok(done())
}

pub(super) fn remove_shard(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let zone = text(command, "zone");
    let others = router.cluster.shards()?;
    let mut others = others
        .iter()
        .filter(|s| s.get("_id").and_then(Val::as_str) != Some(command.collection()));
    let used = router
        .cluster
        .read_config("tags", doc! {"tag": zone}.as_doc(), Doc::EMPTY)?;
    if !used.is_empty() && !others.any(|s| is_of(s, zone)) {
        return Err(err!(
            ZoneStillInUse,
            "cannot remove the shard {} from the zone {zone}: it is the last one, and the zone has ranges",
            command.collection()
        )
        .into());
    }
    shards::set(
        router,
        command.collection(),
        doc! {"$pull": doc! {"tags": zone}},
    )?;
    Ok(done())
}

/// Gives a range to a zone, or with `zone: null` to none.
pub(super) fn update_range(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let held = lock(&router.cluster, ns)?;
    let table = table_of(router, ns)?;
    let key = table.key();
    let (Some(min), Some(max)) = (command.document("min"), command.document("max")) else {
        return Err(err!(FailedToParse, "a zone's range has min and max").into());
    };
    let (min, max) = (key.whole_bound(min)?, key.whole_bound(max)?);
    let range = key.range(min.as_doc(), max.as_doc())?;
    let zone = command.field("zone").and_then(Val::as_str);
    if let Some(zone) = zone {
        let known = router.cluster.shards()?;
        if !known.iter().any(|s| is_of(s, zone)) {
            return Err(err!(ZoneNotFound, "zone {zone} does not exist").into());
        }
        let tags = router
            .cluster
            .read_config("tags", doc! {"ns": ns}.as_doc(), Doc::EMPTY)?;
        let zones: Result<Vec<Zone>, _> =
            tags.iter().map(|d| Zone::parse(d.as_doc(), key)).collect();
        check(&zones?, &range)?;
    }
    let filter = doc! {"ns": ns, "min": &min};
    let mut change = MetadataChange::begin(&held);
    change.remove("tags", filter.clone());
    if let Some(zone) = zone {
        let entry =
            doc! {"_id": bson::ObjectId::generate(), "ns": ns, "tag": zone, "min": min, "max": max};
        change.insert("tags", &[entry]);
    }
    change.commit()?;
    balancer::wake();
    Ok(done())
}
