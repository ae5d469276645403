//! The commands: `dbCheck` begins a check, `pandoCheckBatch` is what members say to each other.
//!
//! ```text
//! {dbCheck: <collection>, validateMode, secondaryIndex, start, end, …}     one collection
//! {dbCheck: 1, maxDocsPerBatch, …}                                         all of the database
//! {pandoCheckBatch: "result", batchId: <UUID>}                             {reads: <bool>, result: {…}}
//! {pandoCheckBatch: "done", batchId: <UUID>}
//! ```

use super::job::{self, DbCheckKind, Run};
use crate::request::{CommandContext, Done, concern};
use bson::{Doc, DocBuf, Elem, Writer};
use catalog::Collection;
use errors::{Error, Result, bail};
use front::idl;
use replication::config::Wanted;
use std::sync::Arc;
use std::time::Duration;
use storage::Uuid;

const AT: &str = "dbCheck";
const MODES: [&str; 3] = [
    "dataConsistency",
    "dataConsistencyAndMissingIndexKeysCheck",
    "extraIndexKeysCheck",
];
const BSON_MODES: [&str; 3] = ["kDefault", "kExtended", "kFull"];

idl::arguments! {
    struct Arguments<'a> {
        "start" => start: Option<Doc<'a>> = idl::doc,
        "end" => end: Option<Doc<'a>> = idl::doc,
        "maxCount" => most_docs: Option<i64> = idl::int,
        "maxSize" => most_bytes: Option<i64> = idl::int,
        "maxDocsPerBatch" => docs_of_batch: Option<i64> = docs_of_batch,
        "maxBatchTimeMillis" => time_of_batch: Option<i64> = time_of_batch,
        "snapshotRead" => snapshot: Option<bool> = idl::safe_bool,
        "batchWriteConcern" => concern: Option<Elem<'a>> = idl::element,
        "validateMode" => mode: Option<&'a str> = mode,
        "secondaryIndex" => index: Option<&'a str> = idl::string,
        "skipLookupForExtraKeys" => skips_lookup: bool = idl::flag,
        "bsonValidateMode" => bson_mode: Option<&'a str> = bson_mode,
    }
    ignored: "minKey" | "maxKey";
}

idl::arguments! {
    struct OfDatabase<'a> {
        "maxDocsPerBatch" => docs_of_batch: Option<i64> = docs_of_batch,
        "maxBatchTimeMillis" => time_of_batch: Option<i64> = time_of_batch,
        "snapshotRead" => snapshot: Option<bool> = idl::safe_bool,
        "batchWriteConcern" => concern: Option<Elem<'a>> = idl::element,
    }
}

fn between(e: Elem<'_>, least: i64, most: i64) -> Result<Option<i64>> {
    let v = idl::int(AT, e)?;
    match v {
        Some(v) if v < least => bail!(
            51024,
            "BSON field '{}' value must be >= {least}, actual value '{v}'",
            e.name
        ),
        Some(v) if v > most => bail!(
            51024,
            "BSON field '{}' value must be <= {most}, actual value '{v}'",
            e.name
        ),
        _ => Ok(v),
    }
}

fn docs_of_batch(_: &str, e: Elem<'_>) -> Result<Option<i64>> {
    between(e, 1, 10_000)
}

fn time_of_batch(_: &str, e: Elem<'_>) -> Result<Option<i64>> {
    between(e, 10, 20_000)
}

fn one_of<'a>(e: Elem<'a>, values: &[&str]) -> Result<Option<&'a str>> {
    let v = idl::string(AT, e)?;
    if let Some(v) = v.filter(|v| !values.contains(v)) {
        bail!(
            BadValue,
            "Enumeration value '{v}' for field '{AT}.{}' is not a valid value.",
            e.name
        );
    }
    Ok(v)
}

fn mode<'a>(_: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    one_of(e, &MODES)
}

fn bson_mode<'a>(_: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    one_of(e, &BSON_MODES)
}

/// `dbCheck`.
pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if cx.app.replica.as_ref().is_some_and(|r| !r.is_open()) {
        bail!(NotWritablePrimary, "not primary");
    }
    let run = match cx.args.first.as_str() {
        Some(name) => of_collection(cx, name)?,
        None if cx.args.first.is_number() => of_database(cx)?,
        None => return Err(idl::mismatch(AT, AT, cx.args.first, &["string"])),
    };
    let Some(checks) = cx.app.db_checks.get() else {
        bail!(CommandNotSupported, "there are no checks here");
    };
    checks.enqueue(run);
    Ok(Done::Reply)
}

impl Arguments<'_> {
    fn of_secondary_index(&self, mode: &str) -> DocBuf {
        let mut w = Writer::new();
        w.str("validateMode", mode)
            .str("secondaryIndex", self.index.unwrap_or(""))
            .bool("skipLookupForExtraKeys", self.skips_lookup)
            .str("bsonValidateMode", self.bson_mode.unwrap_or(BSON_MODES[0]));
        w.finish()
    }

    fn append_limits(&self, w: &mut Writer) {
        let (documents, time) = (self.docs_of_batch, self.time_of_batch);
        w.i64("maxDocsPerBatch", documents.unwrap_or(DOCS_OF_BATCH))
            .i64("maxBatchTimeMillis", time.unwrap_or(TIME_OF_BATCH))
            .i64("maxCount", self.most_docs.unwrap_or(i64::MAX))
            .i64("maxSize", self.most_bytes.unwrap_or(i64::MAX));
    }
}

/// Whether the other arguments go with the mode.
fn check_mode(mode: &str, a: &Arguments<'_>) -> Result<()> {
    match (mode, a.index) {
        ("extraIndexKeysCheck", None) => bail!(
            InvalidOptions,
            "When validateMode is set to extraIndexKeysCheck, the secondaryIndex parameter must be set."
        ),
        ("extraIndexKeysCheck", Some(_)) => Ok(()),
        (_, Some(_)) => bail!(
            InvalidOptions,
            "When validateMode is set to dataConsistency or dataConsistencyAndMissingIndexKeysCheck, the secondaryIndex parameter cannot be set."
        ),
        (_, None) if a.skips_lookup => bail!(
            InvalidOptions,
            "When validateMode is set to dataConsistency or dataConsistencyAndMissingIndexKeysCheck, the skipLookupForExtraKeys parameter cannot be set."
        ),
        _ => Ok(()),
    }
}

/// The collection, if members have it in common.
fn checkable(cx: &CommandContext<'_, '_>, name: &str, ns: &str) -> Result<Arc<Collection>> {
    let Some(coll) = cx.app.engine.catalog.get(ns) else {
        bail!(NamespaceNotFound, "Collection {name} not found");
    };
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "{name} is a view hence 'dbcheck' is not supported."
        );
    }
    if !is_replicated(&coll) {
        let why = format!("Cannot run dbCheck on {ns} because it is not replicated");
        return Err(Error::coded(40619, why).into());
    }
    Ok(coll)
}

fn of_collection(cx: &mut CommandContext<'_, '_>, name: &str) -> Result<Run> {
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let mode = a.mode.unwrap_or(MODES[0]);
    check_mode(mode, &a)?;
    let ns = format!("{}.{name}", cx.args.db);
    let coll = checkable(cx, name, &ns)?;
    if a.snapshot == Some(false) {
        bail!(6_769_500, "dbCheck no longer supports snapshotRead:false");
    }
    let parameters = a.of_secondary_index(mode);
    // An index's entries lie in the order of their keys, which a client cannot write: they are read whole.
    let bound = |d: Option<Doc<'_>>, open: bson::Val<'_>| {
        let given = d
            .filter(|_| a.index.is_none())
            .filter(|d| d.first().is_some_and(|e| e.val != open));
        given.map(|d| d.to_buf().into_vec())
    };
    let (from, to) = (
        bound(a.start, bson::Val::MIN_KEY),
        bound(a.end, bson::Val::MAX_KEY),
    );
    let mut description = Writer::new();
    description
        .str("dbcheck", &ns)
        .binary("uuid", 4, &coll.uuid)
        .doc("secondaryIndexCheckParameters", parameters.as_doc());
    let start = job::shown(from.as_deref(), a.index, false);
    let end = job::shown(to.as_deref(), a.index, true);
    description
        .doc("start", start.as_doc())
        .doc("end", end.as_doc());
    a.append_limits(&mut description);
    Ok(Run {
        targets: vec![(ns, coll.uuid)],
        kind: DbCheckKind {
            // Where documents lie under their `_id`, they are its index.
            index: a
                .index
                .filter(|i| *i != "_id_" || coll.is_numbered())
                .map(str::to_string),
            looks_up: !a.skips_lookup,
            with_indexes: mode == MODES[1],
        },
        from,
        to,
        most_docs: positive(a.most_docs),
        most_bytes: positive(a.most_bytes),
        docs_of_batch: a.docs_of_batch.unwrap_or(DOCS_OF_BATCH).unsigned_abs(),
        time_of_batch: Duration::from_millis(
            a.time_of_batch.unwrap_or(TIME_OF_BATCH).unsigned_abs(),
        ),
        waits_for: waits_for(cx, a.concern)?,
        parameters: Some(parameters),
        description: description.finish(),
    })
}

const DOCS_OF_BATCH: i64 = 5000;
const TIME_OF_BATCH: i64 = 1000;

fn positive(n: Option<i64>) -> u64 {
    n.map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0))
}

fn is_replicated(coll: &Collection) -> bool {
    !coll.ns.starts_with("local.") && coll.name() != "system.profile"
}

fn of_database(cx: &mut CommandContext<'_, '_>) -> Result<Run> {
    let a = OfDatabase::parse(AT, cx.args.fields.iter().copied())?;
    let db = cx.args.db;
    if db == "local" {
        bail!(InvalidNamespace, "Cannot run dbCheck on local database");
    }
    let snapshot = cx.app.engine.catalog.snapshot();
    let all: Vec<&Arc<Collection>> = snapshot.of_db(db).collect();
    if all.is_empty() {
        bail!(NamespaceNotFound, "Database {db} not found");
    }
    if a.snapshot == Some(false) {
        bail!(6_769_501, "dbCheck no longer supports snapshotRead:false");
    }
    let checked = all.iter().filter(|c| !c.is_view() && is_replicated(c));
    Ok(Run {
        targets: checked.map(|c| (c.ns.to_string(), c.uuid)).collect(),
        kind: DbCheckKind::default(),
        from: None,
        to: None,
        most_docs: u64::MAX,
        most_bytes: u64::MAX,
        docs_of_batch: a.docs_of_batch.unwrap_or(DOCS_OF_BATCH).unsigned_abs(),
        time_of_batch: Duration::from_millis(
            a.time_of_batch.unwrap_or(TIME_OF_BATCH).unsigned_abs(),
        ),
        waits_for: waits_for(cx, a.concern)?,
        parameters: None,
        description: job::of_database(db),
    })
}

/// Who must have a batch before the next one: a majority where nothing else is said.
fn waits_for(
    cx: &CommandContext<'_, '_>,
    given: Option<Elem<'_>>,
) -> Result<Option<(Wanted, Option<u64>)>> {
    let Some(given) = given.map(|e| e.val).filter(|v| !v.is_nullish()) else {
        return Ok(Some((Wanted::Majority, None)));
    };
    let mut asked = concern::write_concern(given, &cx.app.config.topology)?;
    let names_majority = |d: Doc<'_>| d.get("w").and_then(|w| w.as_str()) == Some("majority");
    concern::of_set(&mut asked, given, cx.app.replica.as_ref());
    match asked.members {
        None if given.as_doc().is_some_and(names_majority) => Ok(Some((Wanted::Majority, None))),
        members => Ok(members),
    }
}

/// `pandoCheckBatch`.
pub fn of_member(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "pandoCheckBatch";
    let id = cx.args.field("batchId").and_then(|v| v.as_binary());
    let name = idl::required(AT, "batchId", id.and_then(|(_, b)| Uuid::try_from(b).ok()))?;
    let Some(checks) = cx.app.db_checks.get() else {
        bail!(CommandNotSupported, "there are no checks here");
    };
    match cx.args.first.as_str() {
        Some("result") => {
            let outcome = checks.outcome(&name);
            cx.w.bool("reads", outcome.is_some());
            if let Some(Some(result)) = outcome {
                cx.w.doc("result", result.as_doc());
            }
            Ok(Done::Reply)
        }
        Some("done") => {
            checks.reported(&name);
            Ok(Done::Reply)
        }
        _ => bail!(BadValue, "{AT} wants \"result\" or \"done\""),
    }
}
