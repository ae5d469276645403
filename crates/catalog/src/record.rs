//! A collection's record in the store: BSON
//! `{ns, uuid, tablet, options, since, numbered, nextIndex, indexes: [{id, spec, multikey, building, since}]}`. `_id_` is not among them.

use crate::collection::{Collection, Index, IndexState};
use bson::{Doc, DocBuf, Writer};
use errors::{Error, Result};
use std::sync::Arc;

pub(crate) fn write(c: &Collection) -> DocBuf {
    let mut w = Writer::with_capacity(256);
    w.str("ns", &c.ns)
        .binary("uuid", 4, &c.uuid)
        .i64("tablet", c.tablet as i64);
    w.doc("options", c.options.as_doc())
        .i64("since", c.since_millis)
        .bool("numbered", c.is_numbered())
        .i64("nextIndex", i64::from(c.highest_index));
    w.open_array("indexes");
    for i in c.secondary() {
        w.open_doc("")
            .i64("id", i64::from(i.id))
            .doc("spec", i.spec.as_doc());
        w.i64("multikey", i.info.multikey as i64)
            .bool("building", i.state == IndexState::Building);
        w.i64("since", i.since_millis).close();
    }
    w.close();
    w.finish()
}

pub(crate) fn read(d: Doc<'_>) -> Result<Collection> {
    let bad = |what: &str| Error::internal(format!("catalog record is damaged ({what}): {d}"));
    let ns = d
        .get("ns")
        .and_then(|v| v.as_str())
        .ok_or_else(|| bad("ns"))?;
    let (_, uuid) = d
        .get("uuid")
        .and_then(|v| v.as_binary())
        .ok_or_else(|| bad("uuid"))?;
    let tablet = d
        .get("tablet")
        .and_then(|v| v.as_i64())
        .ok_or_else(|| bad("tablet"))?;
    let options = d
        .get("options")
        .and_then(|v| v.as_doc())
        .ok_or_else(|| bad("options"))?;
    let uuid = uuid.try_into().map_err(|_| bad("uuid"))?;
    let mut c = Collection::new(ns.into(), uuid, tablet as u64, options.to_buf())?;
    c.since_millis = d.get("since").and_then(|v| v.as_i64()).unwrap_or(0);
    if d.get("numbered").is_some_and(|v| v.truthy()) {
        c.number()?;
    }
    c.highest_index = d.get("nextIndex").and_then(|v| v.as_i64()).unwrap_or(0) as u32;
    for i in d
        .get("indexes")
        .and_then(|v| v.as_array())
        .ok_or_else(|| bad("indexes"))?
        .values()
    {
        let i = i.as_doc().ok_or_else(|| bad("index"))?;
        let id = i
            .get("id")
            .and_then(|v| v.as_i64())
            .ok_or_else(|| bad("index id"))? as u32;
        let spec = i
            .get("spec")
            .and_then(|v| v.as_doc())
            .ok_or_else(|| bad("index spec"))?;
        let multikey = i.get("multikey").and_then(|v| v.as_i64()).unwrap_or(0) as u64;
        let building = i.get("building").is_some_and(|v| v.truthy());
        let mut index = build_index(
            c.tablet,
            id,
            spec,
            if building {
                IndexState::Building
            } else {
                IndexState::Ready
            },
        )?;
        index.info.multikey = multikey;
        index.since_millis = i.get("since").and_then(|v| v.as_i64()).unwrap_or(0);
        c.indexes.push(Arc::new(index));
    }
    c.refresh();
    Ok(c)
}

/// An index from its (validated) specification.
pub(crate) fn build_index(tablet: u64, id: u32, spec: Doc<'_>, state: IndexState) -> Result<Index> {
    let flag = |n: &str| spec.get(n).is_some_and(|v| v.truthy());
    let pattern = query::index_keys::KeyPattern::of_spec(spec)?;
    let partial = match spec.get("partialFilterExpression").and_then(|v| v.as_doc()) {
        Some(d) => {
            let env = query::expr::ParseEnv::new().collated(pattern.collation().cloned());
            Some(Arc::new(query::filter::Filter::parse(d, &env)?))
        }
        None => None,
    };
    let zones = Arc::new(crate::zones::Zones::new(&pattern));
    Ok(Index {
        id,
        spec: spec.to_buf(),
        info: planner::IndexInfo {
            id,
            name: spec
                .get("name")
                .and_then(|v| v.as_str())
                .unwrap_or("")
                .to_string(),
            key: pattern,
            // New values are checked alike; `prepareUnique` only promises nothing of the old ones.
            unique: flag("unique") || flag("prepareUnique"),
            sparse: flag("sparse"),
            partial,
            hidden: flag("hidden"),
            multikey: 0,
            ready: state == IndexState::Ready,
        },
        state,
        prefix: Collection::index_prefix(tablet, id),
        accesses: Arc::default(),
        spread: Arc::default(),
        zones,
        since_millis: crate::collection::now_millis(),
    })
}
