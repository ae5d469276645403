//! A collection's record in the store: BSON `{ns, uuid, tablet, options, since, numbered,
//! nextIndex, indexes: [{id, spec, multikey, building, since}], search: [{id, name, type, version,
//! definition}]}`. `_id_` is not among the indexes; `search` is there only where there are some.

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
    if let Some(search) = &c.search {
        w.open_array("search");
        search.iter().for_each(|d| {
            w.push(d.as_doc().as_val());
        });
        w.close();
    }
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
    // A collection without a bound would lose all of its records at the next insert.
    if c.capped.as_ref().is_some_and(|c| c.size_bytes == 0) {
        return Err(bad("options.size").into());
    }
    c.since_millis = number(d, "since").ok_or_else(|| bad("since"))?;
    if flag(d, "numbered").ok_or_else(|| bad("numbered"))? {
        c.number()?;
    }
    c.highest_index = number(d, "nextIndex")
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| bad("nextIndex"))?;
    for i in d
        .get("indexes")
        .and_then(|v| v.as_array())
        .ok_or_else(|| bad("indexes"))?
        .values()
    {
        let i = i.as_doc().ok_or_else(|| bad("index"))?;
        let id = number(i, "id")
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| bad("index id"))?;
        let spec = i
            .get("spec")
            .and_then(|v| v.as_doc())
            .ok_or_else(|| bad("index spec"))?;
        let multikey = number(i, "multikey").ok_or_else(|| bad("index multikey"))? as u64;
        let building = flag(i, "building").ok_or_else(|| bad("index building"))?;
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
        index.since_millis = number(i, "since").ok_or_else(|| bad("index since"))?;
        c.indexes.push(Arc::new(index));
    }
    if let Some(search) = d.get("search").and_then(|v| v.as_array()) {
        let specs = search.values().map(|v| Some(v.as_doc()?.to_buf()));
        let specs: Option<Vec<_>> = specs.collect();
        c.search = Some(specs.ok_or_else(|| bad("search"))?.into());
    }
    c.refresh();
    Ok(c)
}

fn number(d: Doc<'_>, name: &str) -> Option<i64> {
    d.get(name).and_then(|v| v.as_i64())
}

fn flag(d: Doc<'_>, name: &str) -> Option<bool> {
    d.get(name).and_then(|v| v.as_bool())
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
                .ok_or_else(|| Error::internal(format!("an index without a name: {spec}")))?
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
        zones,
        since_millis: crate::collection::now_millis(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn collection(options: DocBuf) -> Collection {
        let mut c = Collection::new("d.c".into(), [7; 16], 3, options).unwrap();
        let spec = doc! { "v": 2, "key": doc! { "a": 1 }, "name": "a_1" };
        let index = build_index(3, 1, spec.as_doc(), IndexState::Building).unwrap();
        c.indexes.push(Arc::new(index));
        c
    }

    #[test]
    fn a_record_without_one_of_its_fields_is_damaged() {
        let whole = write(&collection(DocBuf::new())).into_vec();
        let there = read(Doc::new(&whole).unwrap()).unwrap();
        assert_eq!(there.indexes[0].state, IndexState::Building);
        for name in [
            "ns",
            "uuid",
            "tablet",
            "options",
            "since",
            "numbered",
            "nextIndex",
            "indexes",
            "id",
            "spec",
            "multikey",
            "building",
        ] {
            let mut bytes = whole.clone();
            let field = [name.as_bytes(), b"\0"].concat();
            let at = bytes.windows(field.len()).position(|w| w == field);
            bytes[at.expect(name)] = b'x';
            let said = read(Doc::new(&bytes).unwrap()).map(|_| ()).unwrap_err();
            assert!(
                said.failure().unwrap().message.contains("damaged ("),
                "{name}: {said}"
            );
            assert!(
                said.failure().unwrap().message.contains(name),
                "{name}: {said}"
            );
        }
    }

    #[test]
    fn a_capped_collection_without_a_bound_is_damaged() {
        let c = collection(doc! { "capped": true, "size": 4096 });
        read(write(&c).as_doc()).unwrap();
        let c = collection(doc! { "capped": true });
        let said = read(write(&c).as_doc()).map(|_| ()).unwrap_err();
        assert!(
            said.failure().unwrap().message.contains("(options.size)"),
            "{said}"
        );
    }

    #[test]
    fn a_damaged_count_of_tablets_is_an_error() {
        let number = |d: DocBuf| crate::applied::next_tablet_of(d.as_bytes());
        assert_eq!(number(doc! { "nextTablet": 7i64 }).unwrap(), 7);
        let bad = [
            DocBuf::new(),
            doc! { "nextTablet": "x" },
            doc! { "nextTablet": -1i64 },
        ];
        for bad in bad {
            assert!(
                number(bad)
                    .unwrap_err()
                    .into_error()
                    .message
                    .contains("nextTablet")
            );
        }
    }
}
