//! `listIndexes`.

use super::listing;
use crate::request::{CommandContext, Done};
use bson::{DocBuf, Writer};
use catalog::{Collection, IndexState};
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let (mut batch_size, mut build_info, mut build_uuids) = (None, false, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "cursor" => batch_size = listing::batch_size("listIndexes", e)?,
            "includeBuildUUIDs" => build_uuids = idl::safe_bool("listIndexes", e)?.unwrap_or(false),
            "includeIndexBuildInfo" => {
                build_info = idl::safe_bool("listIndexes", e)?.unwrap_or(false)
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if build_info && build_uuids {
        bail!(
            InvalidOptions,
            "The includeBuildUUIDs flag and includeIndexBuildInfo flag cannot both be set to true"
        );
    }
    let Some(coll) = cx.app.engine.catalog.get(&ns) else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}");
    };
    if let Some(series) = coll.measurements() {
        let docs = super::time_series::indexes(&cx.app.engine.catalog, &coll, series);
        listing::reply(cx, &ns, docs, batch_size)?;
        return Ok(Done::Reply);
    }
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    let docs = match coll.name() {
        // MongoDB makes it without an index of `_id`.
        "system.profile" => Vec::new(),
        _ if coll.time_series.is_some() => coll.secondary().map(|i| i.spec.clone()).collect(),
        _ => specs(&coll, build_info),
    };
    listing::reply(cx, &ns, docs, batch_size)?;
    Ok(Done::Reply)
}

/// The indexes that are ready, `_id_` first; with `build_info` those being built too, each wrapped
/// in `spec`.
fn specs(coll: &Collection, build_info: bool) -> Vec<DocBuf> {
    let mut docs = Vec::new();
    for mut spec in coll.index_specs() {
        let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or("");
        let building = coll
            .index_named(name)
            .is_some_and(|i| i.state == IndexState::Building);
        if name == "_id_"
            && let Some(own) = coll.option("clusteredIndex").and_then(|v| v.as_doc())
        {
            let mut w = Writer::new();
            w.extend(own).bool("clustered", true);
            spec = w.finish();
        }
        if !build_info {
            if !building {
                docs.push(spec);
            }
            continue;
        }
        let mut w = Writer::new();
        w.doc("spec", spec.as_doc());
        if building {
            w.open_doc("indexBuildInfo").close();
        }
        docs.push(w.finish());
    }
    docs
}
