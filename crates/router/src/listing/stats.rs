//! `dbStats`, `collStats`, `dataSize`, and what is checked on all shards: `validate`, `validateDBMetadata`.

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::sound;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Adds up numbers of the same name.
pub(crate) fn sum(replies: &[(Arc<str>, DocBuf)], names: &[&str], w: &mut Writer) {
    for name in names {
        let values = replies.iter().filter_map(|(_, r)| r.get(name)?.to_f64());
        let total: f64 = values.sum();
        w.int(name, total as i64);
    }
}

pub(crate) fn db_stats(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut replies = Vec::new();
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let reply = set.call(&cluster_view::upstream::message(
            command.whole().as_doc(),
            &[],
        ))?;
        replies.push((Arc::from(shard), sound(reply)?));
    }
    let mut w = Writer::new();
    w.str("db", command.db);
    let names = [
        "collections",
        "views",
        "objects",
        "dataSize",
        "storageSize",
        "freeStorageSize",
        "indexes",
        "indexSize",
        "indexFreeStorageSize",
        "totalSize",
        "totalFreeStorageSize",
        "fsUsedSize",
        "fsTotalSize",
    ];
    w.open_doc("raw");
    for (shard, reply) in &replies {
        w.doc(shard, reply.as_doc());
    }
    w.close();
    for name in names {
        // Of the type that the shards have told, where they have told it.
        match replies.iter().find_map(|(_, r)| r.get(name)) {
            Some(v) if v.as_i64().is_some() => w.i64(name, total(&replies, name) as i64),
            Some(_) => w.f64(name, total(&replies, name)),
            None => &mut w,
        };
    }
    write_average(&mut w, &replies, "objects");
    write_scale(&mut w, &replies);
    Ok(finish(w, &[]))
}

fn total(replies: &[(Arc<str>, DocBuf)], name: &str) -> f64 {
    replies
        .iter()
        .filter_map(|(_, r)| r.get(name)?.to_f64())
        .sum()
}

/// Of averages, since sizes are divided by the scale, and cut off.
fn write_average(w: &mut Writer, replies: &[(Arc<str>, DocBuf)], count: &str) {
    let number = |r: &DocBuf, name: &str| r.get(name).and_then(Val::to_f64).unwrap_or(0.0);
    let bytes = replies
        .iter()
        .map(|(_, r)| number(r, "avgObjSize") * number(r, count));
    let documents = total(replies, count);
    let average = match documents > 0.0 {
        true => bytes.sum::<f64>() / documents,
        false => 0.0,
    };
    w.f64("avgObjSize", average);
}

/// By what the sizes are divided, as the shards say.
fn write_scale(w: &mut Writer, replies: &[(Arc<str>, DocBuf)]) {
    if let Some(scale) = replies.iter().find_map(|(_, r)| r.get("scaleFactor")) {
        w.val("scaleFactor", scale);
    }
}

/// What `collStats` tells of all shards together, beside sums.
fn write_merged_stats(w: &mut Writer, by_shard: &[(Arc<str>, DocBuf)]) {
    let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
    for (_, reply) in by_shard {
        let indexes = reply.get("indexSizes").and_then(Val::as_doc);
        for e in indexes.unwrap_or(Doc::EMPTY) {
            *sizes.entry(e.name).or_default() += e.val.to_f64().unwrap_or(0.0);
        }
    }
    w.open_doc("indexSizes");
    for (name, bytes) in sizes {
        w.int(name, bytes as i64);
    }
    w.close().bool("capped", false);
    write_average(w, by_shard, "count");
    write_scale(w, by_shard);
}

/// `collStats`, `dataSize`, `validate`.
pub(crate) fn of_collection(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let name = match command.name {
        "dataSize" | "datasize" => "dataSize",
        "validate" => "validate",
        _ => "collStats",
    };
    let ns = match name {
        "dataSize" => command.collection().to_string(),
        _ => command.namespace()?,
    };
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Ok(router.local.reply_about_nothing(&command.args()?)?);
        };
        let shards: Vec<Arc<str>> = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => vec![shard.clone()],
            Placement::Sharded(table) => table.shards().cloned().collect(),
        };
        let each = command.whole();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.cluster.scatter(placement, &commands)?;
        if let (Placement::Unsharded(Unsharded { shard, .. }), Some(reply)) =
            (placement, replies.first())
        {
            let mut w = Writer::new();
            w.extend(sound(reply.clone())?.as_doc());
            match name {
                "collStats" => w.bool("sharded", false).str("primary", shard),
                "validate" => w.open_doc("raw").doc(shard, reply.as_doc()).close(),
                _ => &mut w,
            };
            return Ok(w.finish());
        }
        let mut by_shard = Vec::new();
        for (shard, reply) in shards.iter().zip(replies) {
            by_shard.push((shard.clone(), sound(reply)?));
        }
        let chunks = match placement {
            Placement::Sharded(table) => table.len(),
            Placement::Unsharded(_) => 1,
        };
        Ok(of_shards(name, &ns, &by_shard, chunks))
    })
}

/// The reply that the shards' replies come to.
fn of_shards(name: &str, ns: &str, by_shard: &[(Arc<str>, DocBuf)], chunks: usize) -> DocBuf {
    let mut w = Writer::new();
    if name != "validate" {
        w.bool("sharded", true).str("ns", ns);
    }
    match name {
        "dataSize" => sum(by_shard, &["size", "numObjects", "millis"], &mut w),
        "validate" => {
            let valid = by_shard
                .iter()
                .all(|(_, r)| r.get("valid").is_some_and(Val::truthy));
            w.bool("valid", valid);
        }
        _ => {
            let names = [
                "count",
                "size",
                "storageSize",
                "totalIndexSize",
                "totalSize",
                "numOrphanDocs",
            ];
            sum(by_shard, &names, &mut w);
            write_merged_stats(&mut w, by_shard);
            let indexes = by_shard.first().and_then(|(_, r)| r.get("nindexes"));
            w.val("nindexes", indexes.unwrap_or(Val::NULL));
            w.i64("nchunks", chunks as i64);
        }
    }
    w.open_doc(if name == "validate" { "raw" } else { "shards" });
    for (shard, reply) in by_shard {
        w.doc(shard, reply.as_doc());
    }
    w.close();
    finish(w, &[])
}

/// What a version of the API does not allow of what the shards have.
pub(crate) fn validate_metadata(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ask = command.without(&["lsid", "$readPreference"]).finish();
    let mut seen = BTreeSet::new();
    let mut w = Writer::new();
    w.open_array("apiVersionErrors");
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let reply = sound(set.call(&cluster_view::upstream::message(ask.as_doc(), &[]))?)?;
        let found = reply.get("apiVersionErrors").and_then(Val::as_array);
        for e in found.unwrap_or(Doc::EMPTY).values() {
            // A sharded collection has its indexes on several.
            if seen.insert(e.as_doc().map(|d| d.to_buf().into_vec())) {
                w.push(e);
            }
        }
    }
    w.close();
    Ok(finish(w, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{json, shell};

    #[test]
    fn statistics_of_shards_become_one() {
        let one = r#"{"count":3,"size":30,"avgObjSize":10,"indexSizes":{"_id_":4,"a_1":2},"scaleFactor":1,"ok":1}"#;
        let two = r#"{"count":1,"size":50,"avgObjSize":50,"indexSizes":{"_id_":8},"ok":1}"#;
        let none = r#"{"count":0,"size":0,"ok":1}"#;
        for (shards, wanted) in [
            (
                &[one, two][..],
                "{ count: 4, size: 80, indexSizes: { _id_: 12, a_1: 2 }, capped: false, avgObjSize: 20.0, scaleFactor: 1 }",
            ),
            (
                &[two, none],
                "{ count: 1, size: 50, indexSizes: { _id_: 8 }, capped: false, avgObjSize: 50.0 }",
            ),
            (
                &[none],
                "{ count: 0, size: 0, indexSizes: {}, capped: false, avgObjSize: 0.0 }",
            ),
            (
                &[],
                "{ count: 0, size: 0, indexSizes: {}, capped: false, avgObjSize: 0.0 }",
            ),
        ] {
            let replies: Vec<(Arc<str>, DocBuf)> = shards
                .iter()
                .map(|r| ("s".into(), json::parse(r).unwrap()))
                .collect();
            let mut w = Writer::new();
            sum(&replies, &["count", "size"], &mut w);
            write_merged_stats(&mut w, &replies);
            assert_eq!(shell::doc(w.finish().as_doc()), wanted);
        }
    }
}
