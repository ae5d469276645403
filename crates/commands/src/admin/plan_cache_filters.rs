//! `planCacheSetFilter`, `planCacheListFilters`, `planCacheClearFilters`: index filters;
//! `planCacheClear`: forgets which plans have won.

use crate::request::collation;
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Value, Writer};
use catalog::{Collection, IndexFilter, QueryShape};
use errors::{Error, Result, bail, err};
use front::Args;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;

/// The collection; `None` when there is none.
fn collection(cx: &CommandContext<'_, '_>) -> Result<Option<Arc<Collection>>> {
    let ns = cx.args.namespace()?;
    let coll = cx.app.engine.catalog.get(&ns);
    if let Some(c) = &coll
        && (c.is_view() || c.option("timeseries").is_some())
    {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    Ok(coll)
}

fn field<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Option<Val<'a>> {
    cx.args.field(name)
}

/// A document; an array passes for one.
fn document<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Result<Option<Doc<'a>>> {
    let Some(v) = field(cx, name) else {
        return Ok(None);
    };
    match v.as_container() {
        Some(d) => Ok(Some(d)),
        None => bail!(BadValue, "optional field {name} must be an object"),
    }
}

/// The shape that `query`, `sort`, `projection` and `collation` say; `None` without a query.
fn shape(cx: &CommandContext<'_, '_>, coll: &Collection) -> Result<Option<QueryShape>> {
    let query = document(cx, "query")?;
    let (sort, projection) = (document(cx, "sort")?, document(cx, "projection")?);
    let given = match field(cx, "collation") {
        None => None,
        Some(v) => match v.as_doc().filter(|d| !d.is_empty()) {
            Some(d) => collation::given(Some(d))?,
            None => bail!(
                BadValue,
                "optional field collation must be a non-empty object"
            ),
        },
    };
    let Some(query) = query else {
        if sort.is_some() || projection.is_some() || given.is_some() {
            bail!(
                BadValue,
                "sort, projection or collation provided without query"
            );
        }
        return Ok(None);
    };
    let collation = given.unwrap_or_else(|| coll.collation.clone());
    let env = ParseEnv::new().collated(collation.clone());
    let filter = Filter::parse(query, &env)?;
    let sort = sort.filter(|d| !d.is_empty());
    if let Some(s) = sort {
        SortPattern::parse(s)?;
    }
    let projection = projection.filter(|d| !d.is_empty());
    if let Some(p) = projection {
        Projection::parse(p, Some(&filter), &env)?;
    }
    Ok(Some(QueryShape::new(&filter, sort, projection, collation)))
}

/// The indexes that a filter leaves.
fn indexes(args: &Args<'_>) -> Result<Vec<Value>> {
    let Some(v) = args.field("indexes") else {
        bail!(BadValue, "required field indexes missing");
    };
    let Some(list) = v.as_array() else {
        bail!(BadValue, "required field indexes must be an array");
    };
    let mut indexes = Vec::new();
    for v in list.values() {
        match v.as_doc() {
            Some(d) if d.is_empty() => bail!(BadValue, "index specification cannot be empty"),
            Some(_) => {}
            None if v.as_str().is_some() => {}
            None => bail!(BadValue, "each item in indexes must be an object or string"),
        }
        indexes.push(v.to_value());
    }
    if indexes.is_empty() {
        bail!(
            BadValue,
            "required field indexes must contain at least one index"
        );
    }
    Ok(indexes)
}

fn no_collection() -> Error {
    err!(BadValue, "no such collection")
}

/// The reply about a collection that is not there, of whichever of the commands it is.
pub fn write_absent(args: &Args<'_>, w: &mut Writer) -> Result<()> {
    args.namespace()?;
    match args.command {
        "planCacheSetFilter" => {
            indexes(args)?;
            return Err(no_collection().into());
        }
        "planCacheListFilters" => list_of(w, None),
        _ => {}
    }
    Ok(())
}

pub fn set(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let coll = collection(cx)?;
    let indexes = indexes(&cx.args)?;
    let Some(coll) = coll else {
        return Err(no_collection().into());
    };
    let Some(shape) = shape(cx, &coll)? else {
        bail!(BadValue, "required field query missing");
    };
    let query = document(cx, "query")?.unwrap_or(Doc::EMPTY).to_buf();
    coll.index_filters.set(IndexFilter {
        shape,
        query,
        indexes,
    });
    Ok(Done::Reply)
}

pub fn list(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let coll = collection(cx)?;
    list_of(&mut cx.w, coll.as_deref());
    Ok(Done::Reply)
}

fn list_of(w: &mut Writer, coll: Option<&Collection>) {
    w.open_array("filters");
    for f in coll.map(|c| c.index_filters.list()).unwrap_or_default() {
        w.open_doc("")
            .doc("query", f.query.as_doc())
            .doc("sort", f.shape.sort.as_doc())
            .doc("projection", f.shape.projection.as_doc());
        if let Some(c) = &f.shape.collation {
            w.doc("collation", c.spec());
        }
        w.open_array("indexes");
        for i in &f.indexes {
            w.push(i.as_val());
        }
        w.close().close();
    }
    w.close();
}

pub fn clear_filters(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if let Some(coll) = collection(cx)? {
        let shape = shape(cx, &coll)?;
        coll.index_filters.clear(shape.as_ref());
    }
    Ok(Done::Reply)
}

pub fn clear(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if let Some(coll) = collection(cx)? {
        let shape = shape(cx, &coll)?;
        coll.plan_cache.clear(shape.as_ref());
    }
    Ok(Done::Reply)
}
