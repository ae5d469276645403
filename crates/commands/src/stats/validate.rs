//! `validate`: reads every record and every index entry of a collection and compares the two.

use crate::cx::{Cx, Done};
use crate::idl;
use bson::{Doc, Writer};
use catalog::keyspace::{self, PREFIX};
use catalog::{Collection, Index, IndexState};
use errors::{Result, bail};
use executor::{OpCtx, ReadRequest, Rows};
use query::filter::Filter;
use query::index_keys::KeySet;
use std::sync::Arc;
use storage::{Direction, View};

/// Findings are listed up to this many of a kind.
const MAX_LISTED: usize = 100;

#[derive(Default)]
struct Findings {
    records: u64,
    invalid: u64,
    errors: Vec<String>,
    missing: Vec<String>,
    extra: Vec<String>,
}

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let at = "validate";
    let (mut full, mut background, mut metadata, mut repair, mut conformance) =
        (false, false, false, false, false);
    for e in cx.args.fields.clone() {
        match e.name {
            // Of the options, some are checked and some taken for what they are worth, as MongoDB does.
            "full" => full = e.val.truthy(),
            "background" => background = e.val.truthy(),
            "metadata" => metadata = e.val.truthy(),
            "checkBSONConformance" => conformance = e.val.truthy(),
            "repair" | "fixMultikey" => repair |= idl::safe_bool(at, e)?.unwrap_or(false),
            _ => {}
        }
    }
    let ns = cx.args.namespace()?;
    if background && (full || repair) {
        bail!(
            InvalidOptions,
            "Running the validate command with {{ background: true }} is not supported with {{ full: true }} or {{ repair: true }}"
        );
    }
    if metadata && (full || background || repair || conformance) {
        bail!(
            InvalidOptions,
            "Running the validate command with {{ metadata: true }} is not supported with other options"
        );
    }
    if repair && cx.app.config.topology.set_name().is_some() {
        bail!(
            InvalidOptions,
            "Running the validate command with {{ repair: true }} can only be performed in standalone mode."
        );
    }
    let (view, Some(coll)) = cx.op.view(&ns) else {
        bail!(
            NamespaceNotFound,
            "Collection '{ns}' does not exist to validate."
        );
    };
    if coll.is_view() {
        bail!(CommandNotSupportedOnView, "Cannot validate a view");
    }
    let mut f = Findings::default();
    let ready: Vec<Arc<Index>> = coll
        .indexes
        .iter()
        .filter(|i| i.state == IndexState::Ready)
        .cloned()
        .collect();
    let mut expected = vec![0u64; ready.len()];
    let mut found = vec![0u64; ready.len()];
    if !metadata {
        check_records(&mut cx.op, &view, &coll, &ready, &mut f, &mut expected)?;
        for (i, index) in ready.iter().enumerate() {
            found[i] = count_entries(&mut cx.op, &view, index)?;
            if found[i] > expected[i] {
                f.extra.push(format!(
                    "index '{}' holds {} entries that no record has",
                    index.name(),
                    found[i] - expected[i]
                ));
            }
        }
    }
    let valid = f.errors.is_empty() && f.missing.is_empty() && f.extra.is_empty();
    let w = &mut cx.w;
    w.str("ns", &ns).binary("uuid", 4, &coll.uuid);
    if !metadata {
        w.int("nInvalidDocuments", f.invalid as i64)
            .i32("nNonCompliantDocuments", 0)
            .int("nrecords", f.records as i64);
    }
    // Where records lie under their `_id`, they are its index.
    let own = i64::from(coll.capped.is_none());
    w.int("nIndexes", ready.len() as i64 + own);
    if !metadata {
        w.open_doc("keysPerIndex");
        if own > 0 {
            w.int("_id_", f.records as i64);
        }
        for (i, index) in ready.iter().enumerate() {
            w.int(index.name(), found[i] as i64);
        }
        w.close();
    }
    w.open_doc("indexDetails");
    for spec in coll.index_specs() {
        let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or("");
        w.open_doc(name)
            .bool("valid", true)
            .doc("spec", spec.as_doc())
            .close();
    }
    w.close()
        .bool("valid", valid)
        .bool("repaired", false)
        .str("repairMode", "None");
    w.open_array("warnings").close();
    list(w, "errors", &f.errors);
    list(w, "extraIndexEntries", &f.extra);
    list(w, "missingIndexEntries", &f.missing);
    w.open_array("corruptRecords").close();
    Ok(Done::Reply)
}

fn list(w: &mut Writer, name: &str, lines: &[String]) {
    w.open_array(name);
    for l in lines.iter().take(MAX_LISTED) {
        w.push_value(l.as_str());
    }
    w.close();
}

/// Every record: sound BSON, and with all its index entries.
fn check_records(
    op: &mut OpCtx<'_>,
    view: &View,
    coll: &Arc<Collection>,
    indexes: &[Arc<Index>],
    f: &mut Findings,
    expected: &mut [u64],
) -> Result<()> {
    let all = Filter::all();
    let mut rows = Rows::open(op, view.clone(), coll.clone(), &ReadRequest::new(&all))?;
    let mut keys = KeySet::new();
    while rows.next(op)? {
        f.records += 1;
        let doc = rows.doc();
        if let Err(e) = bson::validate(doc.as_bytes()) {
            f.invalid += 1;
            f.errors.push(format!("a document is malformed: {e:?}"));
            continue;
        }
        for (i, index) in indexes.iter().enumerate() {
            if !belongs(index, doc)? {
                continue;
            }
            index.info.key.extract(doc, index.info.sparse, &mut keys)?;
            expected[i] += keys.len() as u64;
            for (key, _) in keys.iter() {
                let mut entry = index.prefix.to_vec();
                entry.extend_from_slice(key);
                entry.extend_from_slice(rows.record_key());
                if view.get(&entry)?.is_none() {
                    let id = doc.get("_id").map(|v| v.to_string()).unwrap_or_default();
                    f.missing.push(format!(
                        "index '{}' lacks an entry of the document with _id {id}",
                        index.name()
                    ));
                }
            }
        }
    }
    Ok(())
}

fn belongs(index: &Index, doc: Doc<'_>) -> Result<bool> {
    match &index.info.partial {
        Some(f) => f.matches(doc),
        None => Ok(true),
    }
}

fn count_entries(op: &mut OpCtx<'_>, view: &View, index: &Index) -> Result<u64> {
    let mut scan = view.scan(
        &index.prefix,
        &keyspace::prefix_end(&index.prefix),
        Direction::Forward,
    );
    let mut n = 0;
    while scan.next()? {
        op.tick(1)?;
        debug_assert!(scan.key().len() >= PREFIX);
        n += 1;
    }
    Ok(n)
}
