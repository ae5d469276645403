//! `pando check DIR`: reads everything in a data directory, while no server has it open, and reports
//! damage.
//!
//! The log's checksums, the checksum of every block of every data file, every record's BSON, every record against its index
//! entries and every entry against its record, counts and catalog. One pass over the data: records and indexes are compared by
//! sums over hashes of the entries that there must be and those that there are; where the sums differ, a second pass names them.
//!
//! Exit codes: 0 when all is sound, 1 when something is damaged, 100 when the directory cannot be opened at all.

use crate::progress::ProgressLine;
use bson::{Doc, Val};
use catalog::keyspace::{
    self, PREFIX, SPACE_ID, SPACE_INDEX, SPACE_META, SPACE_RECORD, SYSTEM_TABLET,
};
use catalog::{Collection, Index, IndexState, Snapshot};
use errors::Result;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use storage::{Offline, Unreadable};

const HELP: &str = "\
Reads a data directory that no server has open, and says what is damaged. Nothing is changed.

Usage: pando check DIR [--encryptionKeyFile FILE]

Exit codes: 0 all is sound, 1 something is damaged, 100 the directory cannot be opened.
";
/// Findings of one kind that are named in each collection; the others are counted.
const NAMED: usize = 10;

pub fn main(args: &[OsString]) -> ExitCode {
    let dir = match args {
        [help] if help == "--help" || help == "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [dir] if !dir.to_string_lossy().starts_with('-') => Path::new(dir),
        _ => {
            eprintln!("pando: check wants a data directory (see pando check --help)");
            return ExitCode::from(2);
        }
    };
    let offline = match Offline::open(dir) {
        Ok(offline) => offline,
        Err(e) => {
            eprintln!("pando: cannot open {}: {}", dir.display(), e.message);
            let other = matches!(
                e.code,
                errors::Code::DBPathInUse
                    | errors::Code::IncompatibleServerVersion
                    | errors::Code::BadValue
            );
            if !other && dir.is_dir() {
                eprintln!(
                    "pando salvage {} OUT may save what can still be read.",
                    dir.display()
                );
            }
            return ExitCode::from(100);
        }
    };
    let mut report = Report::default();
    check(&offline, &mut report);
    match report.faults {
        0 => {
            println!("No damage was found.");
            ExitCode::SUCCESS
        }
        n => {
            println!(
                "{n} {} found. pando salvage {} OUT saves what can be read.",
                if n == 1 { "fault was" } else { "faults were" },
                dir.display()
            );
            ExitCode::from(1)
        }
    }
}

#[derive(Default)]
struct Report {
    faults: u64,
}

impl Report {
    fn fault(&mut self, what: impl std::fmt::Display) {
        self.faults += 1;
        println!("DAMAGED    {what}");
    }

    fn fine(&self, about: &str, what: impl std::fmt::Display) {
        println!("{about:<10} {what}");
    }
}

fn check(offline: &Offline, report: &mut Report) {
    if let Err(e) = offline.stamp() {
        report.fault(e.into_message());
    }
    check_log(offline, report);
    match offline.files() {
        Ok(files) => {
            let bytes: u64 = files.iter().map(|f| f.1).sum();
            let progress = ProgressLine::of_bytes("reading files", bytes);
            let mut damaged = Vec::new();
            for (name, bytes) in &files {
                damaged.extend(offline.verify_file(name).err());
                progress.add(*bytes);
            }
            drop(progress);
            if damaged.is_empty() {
                let (n, mb) = (files.len(), bytes >> 20);
                report.fine("engine", format!("{n} files, {mb} MB, every block read"));
            }
            for e in damaged {
                report.fault(e.into_message());
            }
        }
        Err(e) => report.fault(e.into_message()),
    }
    let catalog = match Snapshot::read(&offline.view()) {
        Ok(catalog) => catalog,
        Err(e) => {
            report.fault(format!("the catalog: {}", e.into_error().message));
            // Whose data is damaged cannot be told, where it lies can.
            match offline.scan(&[], &[], |_, _| Ok(())) {
                Ok(gaps) => name_gaps(&Snapshot::default(), &gaps, report),
                Err(e) => report.fault(e.into_error().into_message()),
            }
            return;
        }
    };
    match Snapshot::doubled_names(&offline.view()) {
        Ok(names) => (names.iter())
            .for_each(|ns| report.fault(format!("several collections have the name {ns}"))),
        Err(e) => report.fault(e.into_error().into_message()),
    }
    let progress = ProgressLine::of_time("comparing records and indexes");
    let mut pass = Pass::new(&catalog, report);
    let whole = offline.scan(&[], &[], |key, value| {
        pass.pair(key, value);
        Ok(())
    });
    drop(progress);
    let tallies = pass.tallies;
    match whole {
        Ok(gaps) if gaps.is_empty() => compare(offline, &catalog, tallies, report),
        Ok(gaps) => {
            name_gaps(&catalog, &gaps, report);
            println!(
                "           Records and indexes were not compared, since part of them cannot be read."
            );
        }
        Err(e) => report.fault(e.into_error().into_message()),
    }
}

fn name_gaps(catalog: &Snapshot, gaps: &[Unreadable], report: &mut Report) {
    for gap in gaps {
        let place = place(catalog, &gap.after);
        report.fault(format!(
            "{place} cannot be read in part: {}",
            gap.why.message
        ));
    }
}

fn check_log(offline: &Offline, report: &mut Report) {
    match offline.read_log(|_, _| {}) {
        Ok(log) => {
            let torn = match log.torn_bytes {
                0 => String::new(),
                n => format!("; the last {n} bytes are a torn tail, which the next start drops"),
            };
            report.fine(
                "log",
                format!(
                    "{} segments, {} MB, entries {} to {}{torn}",
                    log.segments,
                    log.bytes >> 20,
                    log.first_index,
                    log.last_index
                ),
            );
            for fault in log.faults {
                report.fault(fault.into_message());
            }
        }
        Err(e) => report.fault(e.into_message()),
    }
}

/// How many of something there are, and a sum over their hashes that does not depend on their order.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    hashes: u128,
}

impl Sum {
    fn add(&mut self, key: &[u8]) {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            key.hash(&mut hasher);
            u128::from(hasher.finish())
        };
        self.count += 1;
        self.hashes = self.hashes.wrapping_add(hash(0) << 64 | hash(1));
    }
}

/// What one tablet holds.
#[derive(Default)]
struct Tally {
    records: u64,
    bytes: u64,
    /// By the index's number: the entries that there must be, and those that there are.
    entries: BTreeMap<u32, (Sum, Sum)>,
}

struct Pass<'a> {
    by_tablet: HashMap<u64, &'a Arc<Collection>>,
    tallies: HashMap<u64, Tally>,
    report: &'a mut Report,
}

impl<'a> Pass<'a> {
    fn new(catalog: &'a Snapshot, report: &'a mut Report) -> Pass<'a> {
        let mut by_tablet: HashMap<u64, &Arc<Collection>> = HashMap::new();
        for coll in catalog.all() {
            if let Some(other) = by_tablet.insert(coll.tablet, coll)
                && !coll.is_view()
                && !other.is_view()
            {
                report.fault(format!("{} and {} lie in one place", coll.ns, other.ns));
            }
        }
        Pass {
            by_tablet,
            tallies: HashMap::new(),
            report,
        }
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) {
        let Some((tablet, space, id)) = split(key) else {
            return self
                .report
                .fault(format!("a key of {} bytes is none of ours", key.len()));
        };
        if tablet == SYSTEM_TABLET {
            return;
        }
        let Some(coll) = self.by_tablet.get(&tablet).copied() else {
            // Said once for each tablet.
            if !self.tallies.contains_key(&tablet) {
                self.report
                    .fault(format!("data of tablet {tablet}, which no collection has"));
            }
            self.tallies.entry(tablet).or_default();
            return;
        };
        let tally = self.tallies.entry(tablet).or_default();
        match space {
            SPACE_RECORD => {
                tally.records += 1;
                tally.bytes += value.len() as u64;
                if let Err(why) = record(coll, key, value, tally) {
                    self.report.fault(format!("a record of {}: {why}", coll.ns));
                }
            }
            SPACE_INDEX | SPACE_ID if coll.index(id).is_some_and(|i| i.prefix[8] == space) => {
                let index = coll.index(id).map(|i| executor::identity(i, key, value));
                let sum = &mut tally.entries.entry(id).or_default().1;
                index.iter().for_each(|entry| sum.add(entry));
            }
            SPACE_INDEX | SPACE_ID if tally.entries.insert(id, Default::default()).is_none() => {
                let ns = &coll.ns;
                let what = format!("entries of index {id} of {ns}, which it does not have");
                self.report.fault(what);
            }
            _ => {}
        }
    }
}

fn split(key: &[u8]) -> Option<(u64, u8, u32)> {
    Some((
        u64::from_be_bytes(key.get(..8)?.try_into().ok()?),
        *key.get(8)?,
        u32::from_be_bytes(key.get(9..PREFIX)?.try_into().ok()?),
    ))
}

/// Checks a record by itself, and adds the entries that it must have.
fn record(coll: &Collection, key: &[u8], value: &[u8], tally: &mut Tally) -> Result<(), String> {
    let doc = bson::validate(value).map_err(|e| format!("its BSON is malformed: {e:?}"))?;
    let id = doc.get("_id").ok_or("it has no _id")?;
    // Otherwise they lie in the order in which they came.
    if !coll.is_numbered() && executor::record_key(coll, id) != key {
        return Err(format!(
            "it lies under a key that is not that of its _id {id}"
        ));
    }
    for index in ready(coll) {
        let entries =
            executor::entries_of(index, doc, key.get(PREFIX..).unwrap_or(&[])).map_err(|e| {
                format!(
                    "the one with _id {id} fits index {} not: {}",
                    index.name(),
                    e.into_error().message
                )
            })?;
        let sum = &mut tally.entries.entry(index.id).or_default().0;
        entries.iter().for_each(|entry| sum.add(entry));
    }
    Ok(())
}

/// An index that is being built is not whole, and need not be.
fn ready(coll: &Collection) -> impl Iterator<Item = &Arc<Index>> {
    coll.indexes.iter().filter(|i| i.state == IndexState::Ready)
}

fn compare(
    offline: &Offline,
    catalog: &Snapshot,
    mut tallies: HashMap<u64, Tally>,
    report: &mut Report,
) {
    for coll in catalog.all().filter(|c| !c.is_view()) {
        let before = report.faults;
        let tally = tallies.remove(&coll.tablet).unwrap_or_default();
        match offline.counts(coll.tablet) {
            Ok((records, bytes))
                if records == tally.records as i64 && bytes == tally.bytes as i64 => {}
            Ok((records, bytes)) => report.fault(format!(
                "{} holds {} records of {} bytes; its count says {records} of {bytes}",
                coll.ns, tally.records, tally.bytes
            )),
            Err(e) => report.fault(e.into_message()),
        }
        for index in ready(coll) {
            let (must, are) = tally.entries.get(&index.id).copied().unwrap_or_default();
            if must != are {
                name_differences(offline, coll, index, report);
            }
        }
        if report.faults == before {
            let indexes = coll.index_specs().len();
            let what = format!("{}: {} records, {indexes} indexes", coll.ns, tally.records);
            report.fine("sound", what);
        }
    }
}

/// Names entries that are missing, and entries that no record has.
fn name_differences(offline: &Offline, coll: &Collection, index: &Arc<Index>, report: &mut Report) {
    let (mut missing, mut extra) = (Vec::new(), Vec::new());
    let records = find_missing(offline, coll, index, &mut missing);
    let entries = find_extra(offline, coll, index, &mut extra);
    for e in [records.err(), entries.err()].into_iter().flatten() {
        report.fault(e.into_error().into_message());
    }
    let (ns, name) = (&coll.ns, index.name());
    for (ids, what) in [
        (&missing, "lacks an entry of the record"),
        (&extra, "has an entry that is not that of its record"),
    ] {
        for id in ids.iter().take(NAMED) {
            report.fault(format!("{ns}: the index {name} {what} {id}"));
        }
        if ids.len() > NAMED {
            report.fault(format!(
                "{ns}: the index {name} {what} ({} more)",
                ids.len() - NAMED
            ));
        }
    }
    if missing.is_empty() && extra.is_empty() {
        report.fault(format!("{ns}: the index {name} and the records differ"));
    }
}

fn shown_id(doc: Doc<'_>) -> String {
    doc.get("_id").unwrap_or(Val::NULL).to_string()
}

/// The `_id`s of records that lack an entry, one for each entry.
fn find_missing(
    offline: &Offline,
    coll: &Collection,
    index: &Arc<Index>,
    missing: &mut Vec<String>,
) -> Result<()> {
    let view = offline.view();
    offline
        .scan(
            &coll.record_prefix,
            &keyspace::prefix_end(&coll.record_prefix),
            |key, value| {
                let Ok(doc) = bson::validate(value) else {
                    return Ok(());
                };
                for entry in executor::entries_of(index, doc, key.get(PREFIX..).unwrap_or(&[]))
                    .unwrap_or_default()
                {
                    if !executor::has_entry(&view, index, &entry)? {
                        missing.push(shown_id(doc));
                    }
                }
                Ok(())
            },
        )
        .map(drop)
}

/// The `_id`s of the records of entries that are not theirs.
fn find_extra(
    offline: &Offline,
    coll: &Collection,
    index: &Arc<Index>,
    extra: &mut Vec<String>,
) -> Result<()> {
    let view = offline.view();
    offline
        .scan(
            &index.prefix,
            &keyspace::prefix_end(&index.prefix),
            |key, value| {
                let entry = key.get(PREFIX..).unwrap_or(&[]);
                let mut decoder = bson::key::Decoder::new(entry, &[]);
                for field in &index.info.key.fields {
                    decoder.skip(field.descending);
                }
                let at = entry.len().saturating_sub(decoder.rest().len());
                let told = executor::key_and_types(index, entry, at, value);
                let own_key = told.map_or(&[][..], |(own_key, _)| own_key);
                let record = view.get(&coll.record_key(own_key))?;
                let there = record
                    .as_deref()
                    .and_then(|bytes| bson::validate(bytes).ok())
                    .is_some_and(|doc| {
                        let identity = executor::identity(index, key, value);
                        executor::entries_of(index, doc, own_key)
                            .is_ok_and(|entries| entries.iter().any(|entry| *entry == *identity))
                    });
                if !there {
                    let record = record.as_deref().and_then(Doc::new);
                    extra.push(record.map_or_else(|| "which is not there".into(), shown_id));
                }
                Ok(())
            },
        )
        .map(drop)
}

/// What lies about a key, for people.
fn place(catalog: &Snapshot, key: &[u8]) -> String {
    let Some((tablet, space, id)) = split(key) else {
        return "the beginning of the data".into();
    };
    let coll = catalog.all().find(|c| c.tablet == tablet);
    match (coll, space) {
        (Some(c), SPACE_RECORD) => format!("the records of {}", c.ns),
        (Some(c), SPACE_INDEX | SPACE_ID) => {
            let name = c.index(id).map_or("", |i| i.name());
            format!("the index {name} of {}", c.ns)
        }
        (_, SPACE_META) if tablet == SYSTEM_TABLET => "the catalog".into(),
        _ => format!("tablet {tablet}"),
    }
}
