//! `createIndexes`: builds them and answers when they are ready.

use super::changed;
use super::index_spec::{IndexSpec, MAX_INDEXES};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem};
use catalog::{Collection, NewIndex};
use errors::{Result, bail};
use front::idl;

idl::arguments! {
    struct Arguments<'a> {
        "indexes" => indexes: Option<Doc<'a>> = idl::array,
    }
    checked: "ignoreUnknownIndexOptions" => idl::safe_bool, "commitQuorum" => read_quorum;
    ignored: "v" | "isTimeseriesNamespace" | "returnOnStart";
}

fn read_quorum(_within: &str, e: Elem<'_>) -> Result<()> {
    check_quorum(e.val)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let a = Arguments::parse("createIndexes", cx.args.fields.iter().copied())?;
    let indexes = idl::required("createIndexes", "indexes", a.indexes)?;
    if indexes.is_empty() {
        bail!(BadValue, "Must specify at least one index to create");
    }
    check_target(&ns)?;
    check_hidden(&ns, indexes)?;
    let collation = cx.app.engine.catalog.collation_of(&ns);
    let specs = indexes
        .values()
        .map(|v| IndexSpec::parse(v, collation.as_ref()))
        .collect::<Result<Vec<_>>>()?;
    let catalog = &cx.app.engine.catalog;
    let pending = cx.op.transaction.as_ref();
    let pending = pending.and_then(|t| t.created(&ns).cloned());
    let existing = pending.or_else(|| catalog.get(&ns));
    let created = existing.is_none();
    if let Some(c) = &existing
        && let Some(series) = c.measurements().cloned()
    {
        return on_time_series(cx, &ns, &series, &specs);
    }
    let (mut before, mut new) = missing(&ns, existing.as_deref(), &specs)?;
    let names: Vec<&str> = specs.iter().map(IndexSpec::name).collect();
    if cx.op.transaction.is_none() && executor::build::await_builds(&mut cx.op, &ns, &names)? {
        // A build that has failed took its index with it.
        (before, new) = missing(&ns, catalog.get(&ns).as_deref(), &specs)?;
    }
    let n = new.len();
    if cx.op.transaction.is_some() {
        create_in_transaction(cx, &ns, &new)?;
    } else if n == 0 {
        catalog.get_or_create(&ns)?;
    } else {
        catalog.get_or_create(&ns)?;
        executor::build::create_indexes(&mut cx.op, &ns, &new)?;
    }
    cx.w.i32("numIndexesBefore", before as i32)
        .i32("numIndexesAfter", (before + n) as i32);
    cx.w.bool("createdCollectionAutomatically", created);
    if n == 0 {
        cx.w.str("note", "all indexes already exist");
    }
    if n > 0 || created {
        changed(cx);
    }
    Ok(Done::Reply)
}

fn check_hidden(ns: &str, indexes: Doc<'_>) -> Result<()> {
    let hidden = |v: bson::Val<'_>| v.as_doc()?.get("hidden").map(|h| h.truthy());
    if catalog::collection_of(ns).starts_with("system.")
        && indexes.values().any(|v| hidden(v) == Some(true))
    {
        bail!(BadValue, "Can't hide index on system collection");
    }
    Ok(())
}

/// The number of indexes that there are, and the indexes of `specs` that are to be made.
fn missing(
    ns: &str,
    existing: Option<&Collection>,
    specs: &[IndexSpec],
) -> Result<(usize, Vec<NewIndex>)> {
    let (before, new) = match existing {
        Some(c) if c.is_view() => bail!(
            CommandNotSupportedOnView,
            "Cannot create indexes on view '{ns}'"
        ),
        Some(c) => {
            let own = usize::from(c.option("clusteredIndex").is_none());
            (c.secondary().count() + own, wanted(specs, c.index_specs())?)
        }
        None => {
            let own = bson::doc! { "v": 2, "key": bson::doc! { "_id": 1 }, "name": "_id_" };
            (1, wanted(specs, vec![own])?)
        }
    };
    if before + new.len() > MAX_INDEXES {
        bail!(
            CannotCreateIndex,
            "add index fails, too many indexes for {ns}"
        );
    }
    Ok((before, new))
}

/// On a time series: the indexes are made on its buckets.
fn on_time_series(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    series: &::time_series::TimeSeriesOptions,
    specs: &[IndexSpec],
) -> Result<Done> {
    if cx.op.transaction.is_some() {
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot create new indexes on existing collection {ns} in a multi-document transaction."
        );
    }
    let below = ::time_series::buckets_of(ns);
    let names: Vec<&str> = specs.iter().map(IndexSpec::name).collect();
    executor::build::await_builds(&mut cx.op, &below, &names)?;
    let Some(buckets) = cx.app.engine.catalog.get(&below) else {
        bail!(NamespaceNotFound, "ns does not exist: {below}");
    };
    let new = super::time_series::new_indexes(&buckets, series, specs)?;
    let before = buckets.secondary().count() + usize::from(series.meta.is_some());
    if !new.is_empty() {
        executor::build::create_indexes(&mut cx.op, &below, &new)?;
        changed(cx);
    }
    cx.w.i32("numIndexesBefore", before as i32)
        .i32("numIndexesAfter", (before + new.len()) as i32)
        .bool("createdCollectionAutomatically", false);
    if new.is_empty() {
        cx.w.str("note", "all indexes already exist");
    }
    Ok(Done::Reply)
}

/// In a transaction indexes are made on collections that it has made itself and that are empty.
fn create_in_transaction(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    new: &[NewIndex],
) -> Result<()> {
    let existed = cx.app.engine.catalog.get(ns).is_some();
    let counted = !existed && !executor::has_records(&cx.op, ns)?;
    let Some(transaction) = &mut cx.op.transaction else {
        return Ok(());
    };
    if new.is_empty() && existed {
        return Ok(());
    }
    if !counted {
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot create new indexes on existing collection {ns} in a multi-document transaction."
        );
    }
    transaction.create(ns, DocBuf::new())?;
    if new.is_empty() {
        return Ok(());
    }
    transaction.create_indexes(ns, new)
}

/// Those that do not exist yet; an error when one conflicts with an existing one or with another.
fn wanted(specs: &[IndexSpec], mut existing: Vec<DocBuf>) -> Result<Vec<NewIndex>> {
    let mut new = Vec::new();
    for s in specs {
        if s.is_id() || s.exists_among(&existing)? {
            continue;
        }
        existing.push(s.spec.clone());
        new.push(NewIndex {
            spec: s.spec.clone(),
        });
    }
    Ok(new)
}

fn check_target(ns: &str) -> Result<()> {
    catalog::check_collection_name(ns)?;
    let coll = catalog::collection_of(ns);
    let allowed = [
        "system.js",
        "system.users",
        "system.roles",
        "system.version",
        "system.profile",
        "system.views",
    ];
    if coll.starts_with("system.")
        && !coll.starts_with("system.buckets.")
        && !allowed.contains(&coll)
    {
        bail!(InvalidNamespace, "Invalid system namespace: {ns}");
    }
    Ok(())
}

pub(super) fn check_quorum(v: bson::Val<'_>) -> Result<()> {
    if v.is_nullish() || v.is_number() {
        return Ok(());
    }
    match v.as_str() {
        Some("majority" | "votingMembers") => Ok(()),
        Some(other) => bail!(
            UnsatisfiableCommitQuorum,
            "No write concern mode named '{other}' found in replica set configuration"
        ),
        None => bail!(
            TypeMismatch,
            "commitQuorum has to be a number or a string, but found: {}",
            v.type_name()
        ),
    }
}
