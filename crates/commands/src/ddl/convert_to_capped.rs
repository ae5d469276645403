//! `convertToCapped`: a capped collection in the place of an ordinary one.
//!
//! The documents are copied beside it, in natural order, while no write may come in between; then
//! the copy takes its place in one step. Indexes are not kept, as in MongoDB.

use super::{changed, create};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Writer};
use catalog::Collection;
use errors::{Code, Result, bail};
use executor::{OpCtx, ReadRequest, RecordStream};
use front::{Args, idl};
use query::filter::Filter;
use std::sync::Arc;

/// Copied in steps of so many documents or bytes.
const STEP_DOCS: usize = 500;
const STEP_BYTES: usize = 4 << 20;
/// MongoDB's copy bears the name of the source behind a prefix of this length, and must be a name
/// that is allowed.
const ASIDE_BYTES: usize = 25;
const MAX_NAMESPACE_BYTES: usize = 255;

/// The collection, and how large it may become.
fn arguments(args: &Args<'_>) -> Result<(String, i64)> {
    let ns = args.namespace()?;
    check_source(&ns)?;
    if ns.len() + ASIDE_BYTES > MAX_NAMESPACE_BYTES {
        bail!(InvalidNamespace, "Invalid namespace specified '{ns}'");
    }
    Ok((ns, size(args)?))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, size) = arguments(&cx.args)?;
    let engine = cx.app.engine.clone();
    let source = source(&engine.catalog, &ns)?;
    let aside = executor::temp_collections::of_convert_to_capped(cx.args.db);
    let frozen = source.freeze(&|| cx.op.check())?;
    let Some(source) = engine.catalog.get(&ns).filter(|c| c.uuid == source.uuid) else {
        bail!(NamespaceNotFound, "source collection {ns} does not exist");
    };
    engine.catalog.create(&aside, options(&source, size))?;
    let done = copy(&mut cx.op, &source, &aside)
        .and_then(|()| engine.catalog.replace(&aside, &ns, &frozen));
    if let Err(e) = done {
        let _ = engine
            .catalog
            .drop_collection(&aside, &catalog::never_interrupted);
        return Err(e);
    }
    cx.op.made.push(ns);
    changed(cx);
    Ok(Done::Reply)
}

/// Collections that cannot be turned into capped ones, by their names.
pub fn check_source(ns: &str) -> Result<()> {
    let name = catalog::collection_of(ns);
    if name.starts_with("system.buckets.") {
        bail!(
            IllegalOperation,
            "cannot make a capped collection of a time-series collection: {ns}"
        );
    }
    if name == "system.views" {
        bail!(BadValue, "cannot make a capped collection of {ns}");
    }
    Ok(())
}

/// The argument `size`.
pub fn size(args: &Args<'_>) -> Result<i64> {
    let given = args.field("size").filter(|v| v.is_number());
    let size = given.and_then(idl::whole).unwrap_or(0);
    if size <= 0 {
        bail!(
            InvalidOptions,
            "Capped collection size must be greater than zero"
        );
    }
    if size > create::MAX_CAPPED_BYTES {
        bail!(BadValue, "Capped collection size may not exceed 1 PB");
    }
    Ok(size)
}

/// The collection to copy.
pub fn source(catalog: &catalog::Catalog, ns: &str) -> Result<Arc<Collection>> {
    let Some(c) = catalog.get(ns) else {
        bail!(NamespaceNotFound, "source collection {ns} does not exist");
    };
    if c.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "cloneCollectionAsCapped not supported for views: {ns}"
        );
    }
    Ok(c)
}

/// The options of the copy: those of the source but for what makes it capped.
pub fn options(source: &Collection, size: i64) -> DocBuf {
    let mut w = Writer::new();
    create::capped(&mut w, size, None);
    let other = [
        "capped",
        "size",
        "max",
        "clusteredIndex",
        "expireAfterSeconds",
    ];
    for e in source.options.as_doc() {
        if !other.contains(&e.name) {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}

/// Copies all documents in natural order.
pub fn copy(op: &mut OpCtx<'_>, source: &Arc<Collection>, to: &str) -> Result<()> {
    // Stored documents are kept, whatever the validator says by now.
    op.bypass_validation = true;
    let all = Filter::all();
    let (view, _) = op.view(&source.ns);
    let mut rows = RecordStream::open(op, view, source.clone(), &ReadRequest::new(&all))?;
    let (mut step, mut bytes): (Vec<DocBuf>, usize) = (Vec::new(), 0);
    loop {
        let more = rows.next(op)?;
        if more {
            let doc = rows.doc();
            bytes += doc.len();
            step.push(doc.to_buf());
        }
        if !more || step.len() >= STEP_DOCS || bytes >= STEP_BYTES {
            let docs: Vec<Doc<'_>> = step.iter().map(|d| d.as_doc()).collect();
            let done = executor::insert(op, to, &docs, true, None)?;
            if let Some((_, e)) = done.errors.into_iter().next() {
                return Err(e.into());
            }
            step.clear();
            bytes = 0;
        }
        if !more {
            return Ok(());
        }
    }
}

/// Fails when there is something of that name already.
pub fn check_target(catalog: &catalog::Catalog, ns: &str) -> Result<()> {
    match catalog.get(ns) {
        None => Ok(()),
        Some(c) if c.is_view() => bail!(
            CommandNotSupportedOnView,
            "cloneCollectionAsCapped not supported for views: {ns}"
        ),
        Some(_) => Err(errors::Error::new(
            Code::NamespaceExists,
            format!("cloneCollectionAsCapped failed - destination collection {ns} already exists"),
        )
        .into()),
    }
}
