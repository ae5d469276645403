//! `splitVector`: where a collection, or a range of its shard key, would be cut into chunks of a size.
//! Tools ask for it to read a collection in parts of about the same length.

use super::sizes;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, order};
use catalog::Collection;
use errors::{Result, bail};
use executor::{FindCursor, FindRequest};
use front::idl;
use query::filter::Filter;
use query::sort::SortPattern;
use sharding::ShardKey;
use std::cmp::Ordering;

const AT: &str = "splitVector";

idl::arguments! {
    struct Arguments<'a> {
        "keyPattern" => key: Option<Doc<'a>> = idl::doc,
        "min" => min: Option<Doc<'a>> = idl::doc,
        "max" => max: Option<Doc<'a>> = idl::doc,
        "maxChunkSize" => megabytes: Option<i64> = idl::int,
        "maxChunkSizeBytes" => bytes: Option<i64> = idl::int,
        "maxSplitPoints" => most_points: Option<i64> = idl::int,
        "maxChunkObjects" => most_docs: Option<i64> = idl::int,
        "force" => force: bool = idl::flag,
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let ns = match cx.args.first.as_str() {
        Some(ns) if ns.contains('.') => ns,
        _ => bail!(
            InvalidNamespace,
            "splitVector needs the full name of a collection"
        ),
    };
    let key = ShardKey::parse(idl::required(AT, "keyPattern", a.key)?)?;
    if a.min.is_some() != a.max.is_some() {
        bail!(
            BadValue,
            "either provide both min and max or leave both empty"
        );
    }
    let points = match cx.app.engine.catalog.get(ns) {
        Some(coll) => split_points(cx, &coll, &key, &a)?,
        None => bail!(NamespaceNotFound, "ns not found"),
    };
    let w = cx.w.open_array("splitKeys");
    for point in &points {
        w.push(point.as_doc().as_val());
    }
    w.close();
    Ok(Done::Reply)
}

/// How many documents a chunk has; `None` where there is nothing to cut.
fn documents_of_chunk(
    cx: &CommandContext<'_, '_>,
    coll: &Collection,
    a: &Arguments<'_>,
) -> Result<Option<u64>> {
    let sizes = sizes(&cx.app.engine, coll);
    if a.force {
        return Ok(Some(sizes.count / 2));
    }
    let megabytes = a.megabytes.map(|mb| mb.saturating_mul(1 << 20));
    let most = match megabytes.or(a.bytes).filter(|n| *n > 0) {
        Some(most) => most.unsigned_abs(),
        None => bail!(
            InvalidOptions,
            "need to specify the desired max chunk size (maxChunkSize or maxChunkSizeBytes)"
        ),
    };
    if sizes.count == 0 || sizes.data < most {
        return Ok(None);
    }
    // As there: chunks of half the size, so that both can grow.
    let by_size = most / (2 * sizes.average().max(1));
    let by_count = a.most_docs.filter(|n| *n > 0).map(i64::unsigned_abs);
    Ok(Some(by_size.min(by_count.unwrap_or(u64::MAX)).max(1)))
}

fn split_points(
    cx: &mut CommandContext<'_, '_>,
    coll: &Collection,
    key: &ShardKey,
    a: &Arguments<'_>,
) -> Result<Vec<DocBuf>> {
    cx.op.need_worker()?;
    let specs = coll.index_specs();
    let serves = |spec: &DocBuf| {
        let of = spec.get("key").and_then(|v| v.as_doc());
        of.is_some_and(|of| key.is_prefix_of(of))
    };
    if !specs.iter().any(serves) {
        bail!(
            IndexNotFound,
            "couldn't find index over splitting key {}",
            key.pattern()
        );
    }
    let Some(each) = documents_of_chunk(cx, coll, a)? else {
        return Ok(Vec::new());
    };
    let most = match (a.force, a.most_points) {
        (true, _) => 1,
        (false, Some(most)) if most > 0 => most as usize,
        _ => usize::MAX,
    };
    let request = FindRequest {
        sort: Some(SortPattern::parse(key.pattern())?),
        ..FindRequest::new(Filter::all())
    };
    let mut points: Vec<DocBuf> = Vec::new();
    let Some(mut cursor) = FindCursor::open(&mut cx.op, &coll.ns, request)? else {
        return Ok(points);
    };
    let (mut count, mut first) = (0, None::<DocBuf>);
    while points.len() < most && cursor.next(&mut cx.op)? {
        let at = key.fields_of(cursor.doc()?)?;
        let before = |bound: Doc<'_>| order::compare_docs(at.as_doc(), bound) == Ordering::Less;
        if a.min.is_some_and(before) {
            continue;
        }
        if a.max.is_some_and(|max| !before(max)) {
            break;
        }
        count += 1;
        // A chunk does not begin where the one before does: equal keys lie together.
        let last = points.last().or(first.as_ref());
        if count > each && last.is_none_or(|last| *last != at) {
            points.push(at);
            count = 0;
        } else if first.is_none() {
            first = Some(at);
        }
    }
    Ok(points)
}
