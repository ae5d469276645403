//! Search indexes of collections that are on several shards: each shard has all definitions, and an
//! index of its own documents.
//!
//! ```text
//! create, update, drop    each shard, the first one first; the others make theirs under its ids
//! list                    rows of all shards, one for each id
//! $searchMeta             counts and buckets are summed
//! $search, $vectorSearch  merged by score, or in the order that is asked for (`pipeline_parts`)
//! ```
//! Invariant: an index that is listed as queryable is so on every shard.

use crate::reads::aggregate;
use crate::request::{RoutedCommand, own};
use crate::state::Router;
use crate::targeting::pipeline::stage_of;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::batch_of;
use cluster_view::reply::sound;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most buckets of a facet of strings: shards give as many, so that sums are right.
const MOST_BUCKETS: i32 = 1000;

/// The buckets of a facet of strings that says nothing of how many.
const BUCKETS: i64 = 10;

/// `createSearchIndexes`, `updateSearchIndex`, `dropSearchIndex`.
pub(crate) fn change(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Err(err!(NamespaceNotFound, "Collection '{ns}' does not exist.").into());
        };
        let table = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => {
                return router.send(command, placement, shard, &command.whole(), &[]);
            }
            Placement::Sharded(table) => table,
        };
        let drops = command.name == "dropSearchIndex";
        let (mut first, mut missing) = (None, None);
        let mut body = command.whole();
        for shard in table.shards() {
            let reply = router.cluster.send(placement, shard, body.as_doc(), &[])?;
            match sound(reply) {
                Ok(reply) => {
                    if first.is_none() {
                        body = under_ids(&body, &reply);
                    }
                    first.get_or_insert(reply);
                }
                // An earlier drop may have come no further than to some.
                Err(Failure::Client(e)) if drops && e.code == Code::IndexNotFound => {
                    missing = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        match (first, missing) {
            (Some(reply), _) => Ok(reply),
            (None, Some(e)) => Err(e.into()),
            (None, None) => Err(err!(InternalError, "a collection is on no shard").into()),
        }
    })
}

/// The command with the ids that a shard has given to what it made.
fn under_ids(body: &DocBuf, reply: &DocBuf) -> DocBuf {
    let Some(made) = reply.get("indexesCreated").and_then(Val::as_array) else {
        return body.clone();
    };
    let mut w = Writer::new();
    w.extend(body.as_doc()).open_array("pandoIds");
    let ids = made.values().filter_map(|v| v.as_doc()?.get("id"));
    ids.for_each(|id| {
        w.push(id);
    });
    w.close();
    w.finish()
}

/// `listSearchIndexes`: as the stage.
pub(crate) fn list(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut which = Writer::new();
    for name in ["name", "id"] {
        if let Some(v) = command.field(name) {
            which.val(name, v);
        }
    }
    let cursor = command.document("cursor").unwrap_or(Doc::EMPTY);
    let pipeline = bson::array![doc! {"$listSearchIndexes": which.finish()}];
    let body = doc! {
        "aggregate": command.collection(), "pipeline": pipeline, "cursor": cursor.to_buf(),
        "$db": command.db,
    };
    own(router, &body, aggregate::run)
}

/// Whether a stage tells of all documents of the collection together.
pub(crate) fn is_told_together(stage: Val<'_>) -> bool {
    stage_of(stage).is_some_and(|(name, _)| matches!(name, "$searchMeta" | "$listSearchIndexes"))
}

/// What the shards tell by such a stage, as one.
pub(crate) fn together(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    shards: &[Arc<str>],
    stage: Val<'_>,
) -> Outcome<(Vec<DocBuf>, Vec<DocBuf>)> {
    let Some((name, spec)) = stage_of(stage) else {
        return Ok(Default::default());
    };
    let spec = spec.as_doc().unwrap_or(Doc::EMPTY);
    let mut w = command.without(&["pipeline", "cursor"]);
    w.open_array("pipeline")
        .open_doc("")
        .doc(name, with_all_buckets(spec).as_doc())
        .close();
    w.close().open_doc("cursor").i64("batchSize", 1000).close();
    let each = w.finish();
    let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
    let replies = router.scatter(command, placement, &commands)?;
    let mut rows = Vec::new();
    for reply in &replies {
        if crate::reads::views::resolved_view(reply).is_some() {
            return Ok((Vec::new(), vec![reply.clone()]));
        }
        let reply = sound(reply.clone())?;
        rows.extend(batch_of(&reply).map(Doc::to_buf));
    }
    let merged = match name {
        "$searchMeta" => vec![sums(spec, &rows)],
        _ => listed(&rows),
    };
    Ok((merged, replies))
}

/// The metadata of a `$search` over all shards.
pub(crate) fn meta(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    shards: &[Arc<str>],
    stage: Val<'_>,
) -> Outcome<DocBuf> {
    let spec = stage_of(stage).and_then(|(_, spec)| spec.as_doc());
    let asked = doc! {"$searchMeta": spec.unwrap_or(Doc::EMPTY).to_buf()};
    let asked = asked.as_doc().as_val();
    let (rows, _) = together(router, command, placement, shards, asked)?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// The facets of a specification, by name.
fn facets(spec: Doc<'_>) -> Doc<'_> {
    let facets = spec
        .get("facet")
        .and_then(|v| v.as_doc()?.get("facets")?.as_doc());
    facets.unwrap_or(Doc::EMPTY)
}

/// The specification with as many buckets for each facet of strings as there may be.
fn with_all_buckets(spec: Doc<'_>) -> DocBuf {
    let all = facets(spec);
    let sound = |d: Doc<'_>| {
        let n = d.get("numBuckets").map(|v| v.to_i64_exact());
        n.is_none_or(|n| n.is_some_and(|n| (1..=i64::from(MOST_BUCKETS)).contains(&n)))
    };
    let mut w = Writer::new();
    for e in spec {
        let Some(facet) = e
            .val
            .as_doc()
            .filter(|_| e.name == "facet" && !all.is_empty())
        else {
            w.val(e.name, e.val);
            continue;
        };
        w.open_doc("facet");
        facet.iter().filter(|f| f.name != "facets").for_each(|f| {
            w.val(f.name, f.val);
        });
        w.open_doc("facets");
        for f in all {
            let of_strings = f
                .val
                .as_doc()
                .filter(|d| d.get("type").and_then(Val::as_str) == Some("string") && sound(*d));
            let Some(d) = of_strings else {
                w.val(f.name, f.val);
                continue;
            };
            w.open_doc(f.name);
            d.iter().filter(|e| e.name != "numBuckets").for_each(|e| {
                w.val(e.name, e.val);
            });
            w.i32("numBuckets", MOST_BUCKETS).close();
        }
        w.close().close();
    }
    w.finish()
}

/// Counts and buckets of several `{count, facet}`, summed.
fn sums(spec: Doc<'_>, rows: &[DocBuf]) -> DocBuf {
    let mut w = Writer::new();
    let counts: Vec<Doc<'_>> = rows
        .iter()
        .filter_map(|r| r.get("count")?.as_doc())
        .collect();
    w.open_doc("count");
    if let Some(name) = counts.iter().find_map(|c| Some(c.first()?.name)) {
        let numbers = counts.iter().filter_map(|c| c.get(name)?.to_i64_exact());
        w.i64(name, numbers.sum());
    }
    w.close();
    let all = facets(spec);
    if !all.is_empty() {
        w.open_doc("facet");
        for e in all {
            w.open_doc(e.name).open_array("buckets");
            for (id, n) in buckets(e.name, e.val.as_doc().unwrap_or(Doc::EMPTY), rows) {
                w.push(doc! {"_id": id, "count": n}.as_doc().as_val());
            }
            w.close().close();
        }
        w.close();
    }
    w.finish()
}

/// The buckets of one facet: in the order of the first shard that tells, those of strings by how many
/// they have.
fn buckets(name: &str, facet: Doc<'_>, rows: &[DocBuf]) -> Vec<(Value, i64)> {
    let mut out: Vec<(Value, i64)> = Vec::new();
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for row in rows {
        let told = row
            .get("facet")
            .and_then(|v| v.as_doc()?.get(name)?.as_doc()?.get("buckets")?.as_array());
        for b in told.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc) {
            let (Some(id), Some(n)) = (b.get("_id"), b.get("count").and_then(Val::to_i64_exact))
            else {
                continue;
            };
            let at = *places.entry(bson::key::of(id)).or_insert(out.len());
            match out.get_mut(at) {
                Some((_, sum)) => *sum += n,
                None => out.push((id.to_value(), n)),
            }
        }
    }
    if facet.get("type").and_then(Val::as_str) == Some("string") {
        let text = |v: &Value| v.as_val().as_str().unwrap_or("").to_string();
        out.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| text(&a.0).cmp(&text(&b.0))));
        let most = facet.get("numBuckets").and_then(Val::to_i64_exact);
        out.truncate(usize::try_from(most.unwrap_or(BUCKETS)).unwrap_or(0));
    }
    out
}

/// One row for each index, of those that shards tell.
fn listed(rows: &[DocBuf]) -> Vec<DocBuf> {
    let text = |d: &DocBuf, name: &str| {
        let v = d.get(name).and_then(Val::as_str);
        v.unwrap_or("").to_string()
    };
    let mut by_id: Vec<(String, Vec<&DocBuf>)> = Vec::new();
    for row in rows {
        let id = text(row, "id");
        match by_id.iter_mut().find(|(known, _)| *known == id) {
            Some((_, same)) => same.push(row),
            None => by_id.push((id, vec![row])),
        }
    }
    let merged = by_id.iter().filter_map(|(_, same)| {
        let first = same.first()?;
        let queryable = same
            .iter()
            .all(|r| r.get("queryable").is_some_and(Val::truthy));
        let total = |name: &str| -> i64 {
            let numbers = same.iter().filter_map(|r| r.get(name)?.to_i64_exact());
            numbers.sum()
        };
        let mut w = Writer::new();
        for e in first.as_doc() {
            match e.name {
                "status" => w.str("status", worst_of(same, "status")),
                "queryable" => w.bool("queryable", queryable),
                "numDocs" | "numIncompleteDocs" | "indexSize" => w.i64(e.name, total(e.name)),
                "synonymMappingStatus" => w.str(e.name, worst_of(same, e.name)),
                "synonymMappingStatusDetail" => w.val(e.name, worst_mappings(same).as_val()),
                "statusDetail" => {
                    w.open_array("statusDetail");
                    let details = same
                        .iter()
                        .filter_map(|r| r.get("statusDetail")?.as_array());
                    details.flat_map(|d| d.values()).for_each(|v| {
                        w.push(v);
                    });
                    w.close()
                }
                name => w.val(name, e.val),
            };
        }
        Some(w.finish())
    });
    merged.collect()
}

/// The worst of the statuses that rows tell of the same.
fn worst_of(rows: &[&DocBuf], name: &str) -> &'static str {
    let is = |row: &DocBuf, status: &str| row.get(name).and_then(Val::as_str) == Some(status);
    let mut all = ["FAILED", "BUILDING", "READY"].into_iter();
    let worst = all.find(|status| rows.iter().any(|row| is(row, status)));
    worst.unwrap_or("BUILDING")
}

/// Of each synonym mapping what the shard tells that fares worst with it.
fn worst_mappings(rows: &[&DocBuf]) -> Value {
    let rank = |d: Doc<'_>| match d.get("status").and_then(Val::as_str) {
        Some("FAILED") => 0,
        Some("BUILDING") => 1,
        _ => 2,
    };
    let mut worst: Vec<(&str, Doc<'_>)> = Vec::new();
    let lists = rows.iter().filter_map(|row| {
        let list = row.get("synonymMappingStatusDetail");
        list.and_then(Val::as_array)
    });
    for one in lists.flat_map(|list| list.values()).filter_map(Val::as_doc) {
        let Some((name, detail)) = one.first().and_then(|e| Some((e.name, e.val.as_doc()?))) else {
            continue;
        };
        match worst.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) if rank(detail) < rank(*known) => *known = detail,
            Some(_) => {}
            None => worst.push((name, detail)),
        }
    }
    let mut w = Writer::new_array();
    for (name, detail) in worst {
        w.open_doc("").doc(name, detail).close();
    }
    w.finish_array()
}
