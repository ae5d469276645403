//! `validate`: reads every record and every index entry of a collection and compares the two, both
//! ways.
//!
//! Each record must lie under the key of its `_id` and have every entry that its indexes want. An
//! index then holds as many entries as were found so, or it holds some that no record has; those
//! are looked for one by one and named.

use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Writer, key};
use catalog::keyspace::{self, PREFIX};
use catalog::{Collection, Index, IndexState};
use errors::{Error, Result, Stop, bail, err};
use executor::{OpCtx, ReadRequest, RecordStream};
use front::{Args, idl};
use query::filter::Filter;
use query::index_keys::KeySet;
use service::config::Topology;
use std::sync::Arc;
use storage::{Direction, View};

/// Findings are listed up to this many of a kind.
const MAX_LISTED: usize = 100;

#[derive(Default)]
struct Findings {
    records: u64,
    bytes: u64,
    invalid: u64,
    errors: Listed,
    warnings: Listed,
    missing: Listed,
    extra: Listed,
    /// Names of the indexes that do not agree with the records.
    broken: Vec<String>,
}

/// Lines of one kind: the first ones, and how many there are.
#[derive(Default)]
struct Listed {
    lines: Vec<String>,
    total: u64,
}

impl Listed {
    fn add(&mut self, line: impl FnOnce() -> String) {
        self.total += 1;
        if self.lines.len() < MAX_LISTED {
            self.lines.push(line());
        }
    }
}

impl Findings {
    fn broken(&mut self, index: &str) {
        if !self.broken.iter().any(|b| b == index) {
            self.broken.push(index.to_string());
        }
    }
}

/// What a client asks for. Of the options, some are checked and some taken for what they are
/// worth, as MongoDB does.
#[derive(Default)]
struct Options {
    full: bool,
    background: bool,
    metadata: bool,
    repair: bool,
    conformance: bool,
}

impl Options {
    fn parse(args: &Args<'_>) -> Result<Options> {
        let mut o = Options::default();
        for e in args.fields.iter().copied() {
            match e.name {
                "full" => o.full = e.val.truthy(),
                "background" => o.background = e.val.truthy(),
                "metadata" => o.metadata = e.val.truthy(),
                "checkBSONConformance" => o.conformance = e.val.truthy(),
                "repair" | "fixMultikey" => o.repair |= idl::flag("validate", e)?,
                _ => {}
            }
        }
        Ok(o)
    }

    fn check(&self, standalone: bool) -> Result<()> {
        if self.background && (self.full || self.repair) {
            bail!(
                InvalidOptions,
                "Running the validate command with {{ background: true }} is not supported with {{ full: true }} or {{ repair: true }}"
            );
        }
        if self.metadata && (self.full || self.background || self.repair || self.conformance) {
            bail!(
                InvalidOptions,
                "Running the validate command with {{ metadata: true }} is not supported with other options"
            );
        }
        if self.repair && !standalone {
            bail!(
                InvalidOptions,
                "Running the validate command with {{ repair: true }} can only be performed in standalone mode."
            );
        }
        Ok(())
    }
}

/// The collection, and the options. Whether it may be repaired depends on where it is.
fn arguments(args: &Args<'_>, topology: &Topology) -> Result<(String, Options)> {
    let options = Options::parse(args)?;
    let ns = args.namespace()?;
    options.check(topology.set_name().is_none())?;
    Ok((ns, options))
}

fn absent(ns: &str) -> Error {
    err!(
        NamespaceNotFound,
        "Collection '{ns}' does not exist to validate."
    )
}

/// Of a collection that is not there there is no reply.
pub fn check_absent(args: &Args<'_>, topology: &Topology) -> Result<()> {
    let (ns, _) = arguments(args, topology)?;
    Err(absent(&ns).into())
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, options) = arguments(&cx.args, &cx.app.config.topology)?;
    let started_at = cx.app.store.last_index();
    let (view, Some(coll)) = cx.op.view(&ns) else {
        return Err(absent(&ns).into());
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
    let mut entries = vec![0u64; ready.len()];
    if !options.metadata {
        let mut expected = vec![0u64; ready.len()];
        check_records(&mut cx.op, &view, &coll, &ready, &mut f, &mut expected)?;
        for ((index, found), expected) in ready.iter().zip(&mut entries).zip(expected) {
            *found = count_entries(&mut cx.op, &view, index)?;
            if *found != expected {
                extra_entries(&mut cx.op, &view, &coll, index, &mut f)?;
            }
        }
        if cx.app.store.last_index() == started_at {
            check_counts(cx, &coll, &mut f);
        }
    }
    let counted: Vec<(&str, u64)> = ready.iter().map(|i| i.name()).zip(entries).collect();
    write_report(&mut cx.w, &coll, &f, &counted, options.metadata);
    Ok(Done::Reply)
}

/// Writes the findings. `indexes`: the entries of each that is ready. `metadata`: only the catalog was
/// looked at.
fn write_report(
    w: &mut Writer,
    coll: &Collection,
    f: &Findings,
    indexes: &[(&str, u64)],
    metadata: bool,
) {
    w.str("ns", &coll.ns).binary("uuid", 4, &coll.uuid);
    if !metadata {
        w.int("nInvalidDocuments", f.invalid as i64)
            .i32("nNonCompliantDocuments", 0)
            .int("nrecords", f.records as i64);
    }
    // Where records lie under their `_id`, they are its index.
    let own = i64::from(!coll.is_numbered());
    w.int("nIndexes", indexes.len() as i64 + own);
    if !metadata {
        w.open_doc("keysPerIndex");
        if own > 0 {
            w.int("_id_", f.records as i64);
        }
        for (name, entries) in indexes {
            w.int(name, *entries as i64);
        }
        w.close();
    }
    w.open_doc("indexDetails");
    for spec in coll.index_specs() {
        let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or("");
        w.open_doc(name)
            .bool("valid", !f.broken.iter().any(|b| b == name))
            .doc("spec", spec.as_doc())
            .close();
    }
    let valid = f.errors.total == 0 && f.missing.total == 0 && f.extra.total == 0;
    w.close()
        .bool("valid", valid)
        .bool("repaired", false)
        .str("repairMode", "None");
    list(w, "warnings", &f.warnings);
    list(w, "errors", &f.errors);
    list(w, "extraIndexEntries", &f.extra);
    list(w, "missingIndexEntries", &f.missing);
    w.open_array("corruptRecords").close();
}

fn list(w: &mut Writer, name: &str, listed: &Listed) {
    w.open_array(name);
    for l in &listed.lines {
        w.push_value(l.as_str());
    }
    let more = listed.total - listed.lines.len() as u64;
    if more > 0 {
        w.push_value(format!("and {more} more").as_str());
    }
    w.close();
}

/// Every record: sound BSON, under the key of its `_id`, and with all its index entries.
fn check_records(
    op: &mut OpCtx<'_>,
    view: &View,
    coll: &Arc<Collection>,
    indexes: &[Arc<Index>],
    f: &mut Findings,
    expected: &mut [u64],
) -> Result<()> {
    let all = Filter::all();
    let mut rows = RecordStream::open(op, view.clone(), coll.clone(), &ReadRequest::new(&all))?;
    let mut keys = KeySet::new();
    loop {
        match rows.next(op) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(Stop::Failed(e)) if !e.is_interruption() => {
                f.errors
                    .add(|| format!("the records cannot be read to their end: {}", e.message));
                return Ok(());
            }
            Err(stop) => return Err(stop),
        }
        let (doc, record_key) = (rows.doc(), rows.record_key());
        let Some(id) = check_document(coll, doc, record_key, f) else {
            continue;
        };
        for (index, expected) in indexes.iter().zip(expected.iter_mut()) {
            if let Err(stop) = executor::keys_of(index, doc, &mut keys) {
                let e = stop.into_error();
                f.broken(index.name());
                f.errors.add(|| {
                    format!(
                        "index '{}' has no keys for the document with _id {id}: {}",
                        index.name(),
                        e.message
                    )
                });
                continue;
            }
            *expected += check_entries(view, index, &keys, record_key, id, f)?;
        }
    }
}

/// Counts and checks one document; its `_id`, if it is sound.
fn check_document<'d>(
    coll: &Collection,
    doc: Doc<'d>,
    record_key: &[u8],
    f: &mut Findings,
) -> Option<Val<'d>> {
    f.records += 1;
    f.bytes += doc.len() as u64;
    if let Err(e) = bson::validate(doc.as_bytes()) {
        f.invalid += 1;
        f.errors.add(|| format!("a document is malformed: {e:?}"));
        return None;
    }
    let Some(id) = doc.get("_id") else {
        f.invalid += 1;
        f.errors.add(|| "a document has no _id".into());
        return None;
    };
    let lies_under = coll.record_key(record_key);
    if !coll.is_numbered() && executor::record_key(coll, id) != lies_under {
        f.errors
            .add(|| format!("the document with _id {id} lies under the key of another _id"));
    }
    Some(id)
}

/// How many of a document's entries an index has; names those that it lacks.
fn check_entries(
    view: &View,
    index: &Index,
    keys: &KeySet,
    record_key: &[u8],
    id: Val<'_>,
    f: &mut Findings,
) -> Result<u64> {
    let mut there = 0;
    for (key, _) in keys.iter() {
        let entry = [&index.prefix[..], key, record_key].concat();
        if executor::has_entry(view, index, &entry)? {
            there += 1;
            continue;
        }
        f.broken(index.name());
        f.missing.add(|| {
            format!(
                "index '{}' lacks an entry of the document with _id {id}",
                index.name()
            )
        });
    }
    Ok(there)
}

/// Names the entries of an index that no record wants.
fn extra_entries(
    op: &mut OpCtx<'_>,
    view: &View,
    coll: &Arc<Collection>,
    index: &Arc<Index>,
    f: &mut Findings,
) -> Result<()> {
    let end = keyspace::prefix_end(&index.prefix);
    let mut scan = view.scan(&index.prefix, &end, Direction::Forward);
    let mut keys = KeySet::new();
    while scan.next()? {
        op.tick(1)?;
        let entry = scan.key().get(PREFIX..).unwrap_or(&[]);
        let Some(extra) = extra(view, coll, index, (entry, scan.value()), &mut keys)? else {
            continue;
        };
        let name = index.name();
        f.broken(name);
        f.extra.add(|| match extra {
            Extra::Damaged => format!("index '{name}' holds an entry that is damaged"),
            Extra::NoDocument => {
                format!("index '{name}' holds an entry of a document that is not there")
            }
            Extra::NotWanted(id) => format!(
                "index '{name}' holds an entry that the document with _id {id} does not want"
            ),
        });
    }
    Ok(())
}

/// Why an index should not have an entry.
pub(crate) enum Extra {
    Damaged,
    NoDocument,
    /// The document with this `_id` has other keys.
    NotWanted(String),
}

/// The fault of an index entry: its key behind the index's prefix, and its value.
pub(crate) fn extra(
    view: &View,
    coll: &Collection,
    index: &Index,
    (entry, value): (&[u8], &[u8]),
    keys: &mut KeySet,
) -> Result<Option<Extra>> {
    let mut at = Some(0);
    for field in &index.info.key.fields {
        at = at.and_then(|at| Some(at + key::field_len(entry.get(at..)?, field.descending)?));
    }
    let parts = at.and_then(|at| {
        let (record, _) = executor::key_and_types(index, entry, at, value).ok()?;
        Some((entry.get(..at)?, record))
    });
    let Some((index_key, record)) = parts else {
        return Ok(Some(Extra::Damaged));
    };
    let stored = view.get(&coll.record_key(record))?;
    let Some(doc) = stored.as_ref().and_then(|s| Doc::new(s)) else {
        return Ok(Some(Extra::NoDocument));
    };
    let wants =
        executor::keys_of(index, doc, keys).is_err() || keys.iter().any(|(k, _)| k == index_key);
    let id = || doc.get("_id").map(|v| v.to_string()).unwrap_or_default();
    Ok((!wants).then(|| Extra::NotWanted(id())))
}

/// The kept counts must be those of the records, if there were no writes since.
fn check_counts(cx: &CommandContext<'_, '_>, coll: &Collection, f: &mut Findings) {
    let (count, bytes) = cx.app.store.counts(coll.tablet);
    if (count, bytes) != (f.records, f.bytes) {
        let (records, found) = (f.records, f.bytes);
        f.warnings.add(|| {
            format!("{count} documents of {bytes} bytes are counted, {records} of {found} bytes are there")
        });
    }
}

fn count_entries(op: &mut OpCtx<'_>, view: &View, index: &Index) -> Result<u64> {
    let end = keyspace::prefix_end(&index.prefix);
    let mut scan = view.scan(&index.prefix, &end, Direction::Forward);
    let mut n = 0;
    while scan.next()? {
        op.tick(1)?;
        n += 1;
    }
    Ok(n)
}
