//! `dataSize`: how many bytes a collection's documents, or those of a range, take.

use super::sizes;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Writer};
use catalog::Collection;
use errors::{Result, bail};
use executor::{ReadRequest, RecordStream};
use query::expr::ParseEnv;
use query::filter::Filter;
use std::time::Instant;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at = "dataSize";
    let started = Instant::now();
    let (mut key, mut min, mut max, mut estimate, mut most_bytes, mut most_docs) =
        (None, None, None, false, i64::MAX, i64::MAX);
    for e in cx.args.fields.clone() {
        match e.name {
            "keyPattern" => key = idl::doc(at, e)?,
            "min" => min = idl::doc(at, e)?,
            "max" => max = idl::doc(at, e)?,
            "estimate" => estimate = idl::safe_bool(at, e)?.unwrap_or(false),
            "maxSize" => most_bytes = idl::int(at, e)?.unwrap_or(i64::MAX),
            "maxObjects" => most_docs = idl::int(at, e)?.unwrap_or(i64::MAX),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let Some(ns) = cx.args.first.as_str() else {
        if cx.args.first.is_nullish() {
            return Err(idl::missing(at, at));
        }
        return Err(idl::mismatch(at, at, cx.args.first, &["string"]));
    };
    if ns
        .split_once('.')
        .is_none_or(|(db, coll)| db.is_empty() || coll.is_empty())
    {
        bail!(InvalidNamespace, "Invalid namespace specified '{ns}'");
    }
    let (mut bytes, mut docs, mut reached) = (0i64, 0i64, false);
    if let Some(coll) = cx.app.engine.catalog.get(ns) {
        if coll.is_view() {
            bail!(
                CommandNotSupportedOnView,
                "Namespace {ns} is a view, not a collection"
            );
        }
        let s = sizes(&cx.app.engine, &coll);
        match (min, max) {
            (None, None) if most_bytes == i64::MAX && most_docs == i64::MAX || estimate => {
                (bytes, docs) = (s.data as i64, s.count as i64);
            }
            (None, Some(_)) | (Some(_), None) => {
                bail!(BadValue, "only one of min or max specified")
            }
            _ => {
                cx.op.need_worker()?;
                check_index(&coll, key.or(min))?;
                let range = range(key, min, max);
                let filter = Filter::parse(range.as_doc(), &ParseEnv::new())?;
                let (view, Some(coll)) = cx.op.view(ns) else {
                    bail!(NamespaceNotFound, "ns does not exist: {ns}")
                };
                let mut rows =
                    RecordStream::open(&mut cx.op, view, coll, &ReadRequest::new(&filter))?;
                while rows.next(&mut cx.op)? {
                    bytes += rows.doc().len() as i64;
                    docs += 1;
                    if bytes > most_bytes || docs > most_docs {
                        reached = true;
                        break;
                    }
                }
            }
        }
    }
    cx.w.i64("size", bytes).i64("numObjects", docs);
    if reached {
        cx.w.bool("maxReached", true);
    }
    cx.w.i64("millis", started.elapsed().as_millis() as i64)
        .bool("estimate", estimate);
    Ok(Done::Reply)
}

/// Fails when no index begins with the fields of the range.
fn check_index(coll: &Collection, key: Option<Doc<'_>>) -> Result<()> {
    let wanted: Vec<&str> = key.unwrap_or(Doc::EMPTY).iter().map(|e| e.name).collect();
    let serves = coll.index_specs().iter().any(|s| {
        let key = s.get("key").and_then(|v| v.as_doc()).unwrap_or(Doc::EMPTY);
        let names: Vec<&str> = key.iter().map(|e| e.name).collect();
        names.starts_with(&wanted)
    });
    if !serves {
        bail!(
            OperationFailed,
            "couldn't find valid index containing key pattern: {}",
            wanted.join(", ")
        );
    }
    Ok(())
}

/// `{key: {$gte: min, $lt: max}}` for the first field of the key pattern.
fn range(key: Option<Doc<'_>>, min: Option<Doc<'_>>, max: Option<Doc<'_>>) -> DocBuf {
    let name = key
        .and_then(|k| k.first())
        .or_else(|| min.and_then(|m| m.first()))
        .map_or("_id", |e| e.name);
    let mut w = Writer::new();
    if min.is_some() || max.is_some() {
        w.open_doc(name);
        for (op, bound) in [("$gte", min), ("$lt", max)] {
            if let Some(v) = bound.and_then(|b| b.get(name)) {
                w.val(op, v);
            }
        }
        w.close();
    }
    w.finish()
}
