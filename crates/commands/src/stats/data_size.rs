//! `dataSize`: how many bytes a collection's documents, or those of a range, take.

use super::sizes;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Writer};
use catalog::Collection;
use errors::{Result, bail};
use executor::{ReadRequest, RecordStream};
use front::{Args, idl};
use query::expr::ParseEnv;
use query::filter::Filter;
use std::time::Instant;

const AT: &str = "dataSize";

idl::arguments! {
    struct Arguments<'a> {
        "keyPattern" => key: Option<Doc<'a>> = idl::doc,
        "min" => min: Option<Doc<'a>> = idl::doc,
        "max" => max: Option<Doc<'a>> = idl::doc,
        "estimate" => estimate: bool = idl::flag,
        "maxSize" => most_bytes: Option<i64> = idl::int,
        "maxObjects" => most_docs: Option<i64> = idl::int,
    }
}

#[derive(Default)]
struct Size {
    bytes: i64,
    docs: i64,
    /// One of the limits ended the count.
    reached: bool,
}

/// `db.collection` from the first field.
fn namespace<'a>(args: &Args<'a>) -> Result<&'a str> {
    let Some(ns) = args.first.as_str() else {
        if args.first.is_nullish() {
            return Err(idl::missing(AT, AT));
        }
        return Err(idl::mismatch(AT, AT, args.first, &["string"]));
    };
    match ns.split_once('.') {
        Some((db, coll)) if !db.is_empty() && !coll.is_empty() => Ok(ns),
        _ => bail!(InvalidNamespace, "Invalid namespace specified '{ns}'"),
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let started = Instant::now();
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let ns = namespace(&cx.args)?;
    let size = match cx.app.engine.catalog.get(ns) {
        Some(coll) => measure(cx, &coll, &a)?,
        None => Size::default(),
    };
    write(&mut cx.w, &size, started, a.estimate);
    Ok(Done::Reply)
}

/// The reply about a collection that is not there.
pub fn write_absent(args: &Args<'_>, w: &mut Writer) -> Result<()> {
    let started = Instant::now();
    let a = Arguments::parse(AT, args.fields.iter().copied())?;
    namespace(args)?;
    write(w, &Size::default(), started, a.estimate);
    Ok(())
}

fn write(w: &mut Writer, size: &Size, started: Instant, estimate: bool) {
    w.i64("size", size.bytes).i64("numObjects", size.docs);
    if size.reached {
        w.bool("maxReached", true);
    }
    w.i64("millis", started.elapsed().as_millis() as i64)
        .bool("estimate", estimate);
}

/// The size of a collection, from its counters where they can tell it.
fn measure(cx: &mut CommandContext<'_, '_>, coll: &Collection, a: &Arguments<'_>) -> Result<Size> {
    let ns = &coll.ns;
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    if a.min.is_some() != a.max.is_some() {
        bail!(BadValue, "only one of min or max specified");
    }
    let unlimited = a.most_bytes.is_none() && a.most_docs.is_none();
    if a.min.is_none() && (unlimited || a.estimate) {
        let counted = sizes(&cx.app.engine, coll);
        return Ok(Size {
            bytes: counted.data as i64,
            docs: counted.count as i64,
            reached: false,
        });
    }
    cx.op.need_worker()?;
    check_index(coll, a.key.or(a.min))?;
    let range = range(a.key, a.min, a.max);
    let filter = Filter::parse(range.as_doc(), &ParseEnv::new())?;
    let (view, Some(coll)) = cx.op.view(ns) else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}")
    };
    let mut rows = RecordStream::open(&mut cx.op, view, coll, &ReadRequest::new(&filter))?;
    let mut size = Size::default();
    while !size.reached && rows.next(&mut cx.op)? {
        size.bytes += rows.doc().len() as i64;
        size.docs += 1;
        size.reached = a.most_bytes.is_some_and(|most| size.bytes > most)
            || a.most_docs.is_some_and(|most| size.docs > most);
    }
    Ok(size)
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
