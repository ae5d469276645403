//! `dropIndexes`, and its old name `deleteIndexes`: by name, names, key pattern, or all but `_id_`.

use super::changed;
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, shell, tag};
use catalog::Collection;
use errors::{Error, Result, bail, err};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut ns = cx.args.namespace()?;
    let mut index = None;
    let mut uuid = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "index" => index = Some(e.val),
            "collectionUUID" => uuid = idl::uuid("dropIndexes", e)?,
            "isTimeseriesNamespace" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let index = idl::required("dropIndexes", "index", index)?;
    check_type(index)?;
    let catalog = &cx.app.engine.catalog;
    super::create::check_uuid(catalog, &ns, uuid)?;
    let Some(mut coll) = catalog.get(&ns) else {
        bail!(NamespaceNotFound, "ns not found {ns}")
    };
    let mut own = match &coll.time_series {
        Some(series) => usize::from(series.meta.is_some()),
        None => usize::from(coll.option("clusteredIndex").is_none()),
    };
    let translated;
    let mut index = index;
    if let Some(series) = coll.measurements().cloned() {
        ns = ::time_series::buckets_of(&ns);
        let Some(buckets) = catalog.get(&ns) else {
            bail!(NamespaceNotFound, "ns not found {ns}")
        };
        translated = super::time_series::dropped(&series, &buckets, index);
        (index, own, coll) = (
            translated.as_val(),
            usize::from(series.meta.is_some()),
            buckets,
        );
    }
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Cannot drop indexes on view '{ns}'"
        );
    }
    let names = named(&coll, index)?;
    let (was, all) = (coll.secondary().count() + own, index.as_str() == Some("*"));
    for name in &names {
        let i = coll.index_named(name);
        if let Some(i) = i.filter(|i| i.state == catalog::IndexState::Building) {
            cx.app.engine.builds.abort(&coll.uuid, i.id);
        }
        catalog.drop_index(&ns, name, &|| cx.op.check())?;
    }
    cx.w.i32("nIndexesWas", was as i32);
    if all {
        cx.w.str("msg", "non-_id indexes dropped for collection");
    }
    if !names.is_empty() {
        changed(cx);
    }
    Ok(Done::Reply)
}

fn check_type(index: Val<'_>) -> Result<()> {
    let wrong = match index.tag {
        tag::STRING | tag::DOCUMENT => None,
        tag::ARRAY => index
            .as_array()
            .unwrap_or(Doc::EMPTY)
            .values()
            .find(|v| v.tag != tag::STRING),
        _ => Some(index),
    };
    match wrong {
        Some(v) => Err(idl::mismatch(
            "dropIndexes",
            "index",
            v,
            &["string", "object", "array"],
        )),
        None => Ok(()),
    }
}

/// The names of the indexes that are meant.
fn named(coll: &Collection, index: Val<'_>) -> Result<Vec<String>> {
    let by_name = |name: &str| -> Result<String> {
        if super::coll_mod::is_clustered_by(coll, name) {
            return Err(clustered().into());
        }
        if name == "_id_" {
            bail!(InvalidOptions, "cannot drop _id index");
        }
        match coll.index_named(name) {
            Some(_) => Ok(name.to_string()),
            None => bail!(IndexNotFound, "index not found with name [{name}]"),
        }
    };
    if let Some(name) = index.as_str() {
        if name == "*" {
            return Ok(coll.secondary().map(|i| i.name().to_string()).collect());
        }
        return Ok(vec![by_name(name)?]);
    }
    if let Some(names) = index.as_array() {
        if names.count() == 1 && names.get("0").and_then(|v| v.as_str()) == Some("*") {
            return Ok(coll.secondary().map(|i| i.name().to_string()).collect());
        }
        return names
            .values()
            .filter_map(|v| v.as_str())
            .map(by_name)
            .collect();
    }
    let key = index.as_doc().unwrap_or(Doc::EMPTY);
    if is_id(key) {
        if coll.option("clusteredIndex").is_some() {
            return Err(clustered().into());
        }
        bail!(InvalidOptions, "cannot drop _id index");
    }
    let matching: Vec<&str> = coll
        .secondary()
        .filter(|i| super::index_spec::same_key(i.info.key.as_doc(), key))
        .map(|i| i.name())
        .collect();
    match matching[..] {
        [] => bail!(
            IndexNotFound,
            "can't find index with key: {}",
            shell::doc(key)
        ),
        [one] => Ok(vec![one.to_string()]),
        _ => bail!(
            AmbiguousIndexKeyPattern,
            "{} indexes found for key: {}, identify by name instead. Conflicting indexes: {}",
            matching.len(),
            shell::doc(key),
            matching.join(", ")
        ),
    }
}

fn clustered() -> Error {
    err!(5979800, "It is illegal to drop the clusteredIndex")
}

fn is_id(key: Doc<'_>) -> bool {
    key.count() == 1 && key.get("_id").and_then(|v| v.to_i64_exact()) == Some(1)
}
