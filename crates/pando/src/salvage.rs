//! `pando salvage DIR OUT`: saves what can be read of a damaged data directory, as mongodump would have written it.
//!
//! Dump files and not a data directory: saved documents then pass validation when they are loaded
//! (mongorestore), so nothing half-written is taken over, indexes are built anew, and the files can be
//! read with other tools too.
//!
//! ```text
//! data files   what can be read of them; what is in a damaged block is passed over
//! log          entries that the data files do not have; and for what was passed over, its last state in the kept past
//! OUT/<db>/<collection>.bson, .metadata.json
//! OUT/salvaged/tablet_<n>.bson      documents whose collection the catalog no longer tells
//! ```

use crate::progress::ProgressLine;
use bson::Writer;
use catalog::keyspace::{self, META_COLLECTION, SPACE_META, SPACE_RECORD, SYSTEM_TABLET};
use errors::{Result, err};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use storage::{Effect, Offline, Unreadable};

const HELP: &str = "\
Saves what can be read of a data directory that no server has open. Nothing in it is changed.

Usage: pando salvage DIR OUT [--encryptionKeyFile FILE]

  OUT   a directory that does not exist yet, or is empty; it gets what mongodump would write, to be
        loaded with: mongorestore OUT. Of an encrypted directory too it is not encrypted

Exit codes: 0 everything was saved, 1 something was lost, 100 nothing could be read.
";

pub fn main(args: &[OsString]) -> ExitCode {
    let (dir, out) = match args {
        [help] if help == "--help" || help == "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [dir, out] if !dir.to_string_lossy().starts_with('-') => (Path::new(dir), Path::new(out)),
        _ => {
            eprintln!(
                "pando: salvage wants a data directory and one to write to (see pando salvage --help)"
            );
            return ExitCode::from(2);
        }
    };
    let scratch = out.join(".rebuilt");
    let outcome = run(dir, out, &scratch, &|_| true);
    let _ = fs::remove_dir_all(&scratch);
    match outcome {
        Ok(0) => {
            println!(
                "Everything was saved. Load it with: mongorestore {}",
                out.display()
            );
            ExitCode::SUCCESS
        }
        Ok(_) => {
            println!(
                "What could be read was saved. Load it with: mongorestore {}",
                out.display()
            );
            ExitCode::from(1)
        }
        Err(e) => {
            eprintln!(
                "pando: cannot salvage {}: {}",
                dir.display(),
                e.into_error().message
            );
            ExitCode::from(100)
        }
    }
}

/// The collections of a data directory whose namespaces are wanted, as mongodump would have written them. Returns how much
/// was lost.
pub fn dump(
    dir: &Path,
    out: &Path,
    wanted: &dyn Fn(&str) -> bool,
) -> std::result::Result<u64, String> {
    let scratch = out.join(".rebuilt");
    let outcome = run(dir, out, &scratch, wanted);
    let _ = fs::remove_dir_all(&scratch);
    outcome.map_err(|e| e.into_error().into_message())
}

/// Returns how much was lost: gaps, and records that are no documents.
fn run(dir: &Path, out: &Path, scratch: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<u64> {
    let cannot = |e: std::io::Error| err!(FileNotOpen, "cannot write to {}: {e}", out.display());
    fs::create_dir_all(out).map_err(cannot)?;
    if fs::read_dir(out).map_err(cannot)?.next().is_some() {
        return Err(err!(FileNotOpen, "{} is not empty", out.display()).into());
    }
    let mut lost = 0;
    let offline = open(dir, scratch, &mut lost)?;
    let newer = newer_than_engine(&offline, &mut lost)?;
    let (records, mut doubtful) = catalog_records(&offline, &newer, &mut lost)?;
    let mut gaps = Vec::new();
    let mut dumps = Vec::new();
    for record in records.values() {
        match Dump::new(out, record) {
            Some(dump) if wanted(&dump.ns) => dumps.push(dump),
            Some(_) => {}
            None => {
                println!("damaged: a record of the catalog");
                lost += 1;
                doubtful = true;
            }
        }
    }
    if doubtful {
        for tablet in nameless(&offline, &newer, &dumps)? {
            dumps.push(Dump::nameless(out, tablet));
        }
    }
    let progress = ProgressLine::of_steps("saving collections", dumps.len() as u64);
    for dump in &mut dumps {
        progress.say(&format!("saving {}", dump.ns));
        progress.add(1);
        let found = dump
            .fill(&offline, &newer)
            .map_err(|e| err!(FileNotOpen, "{}: {}", dump.ns, e.into_error().message))?;
        gaps.extend(found);
    }
    drop(progress);
    if !gaps.is_empty() {
        // The log's past has the last state of documents written within its window.
        let older = older(&offline, &gaps)?;
        for dump in &mut dumps {
            dump.add(&older)?;
        }
    }
    for dump in dumps {
        lost += dump.report(&offline);
    }
    Ok(lost)
}

fn open(dir: &Path, scratch: &Path, lost: &mut u64) -> Result<Offline> {
    match Offline::open(dir) {
        Ok(offline) => Ok(offline),
        Err(e) if matches!(e.code, errors::Code::DBPathInUse | errors::Code::BadValue) => {
            Err(e.into())
        }
        Err(e) => {
            println!(
                "The engine does not open ({}); its books are made anew from the data files and the log.",
                e.message
            );
            *lost += 1;
            Ok(Offline::open_rebuilt(dir, scratch)?)
        }
    }
}

/// The effects of those entries of the log that the engine has not.
fn newer_than_engine(offline: &Offline, lost: &mut u64) -> Result<Overlay> {
    let applied = offline.applied().index;
    let mut newer = Overlay::default();
    let log = offline.read_log(|index, entry| {
        if index > applied {
            entry.into_effects().for_each(|e| newer.apply(e, |_| true));
        }
    })?;
    for fault in &log.faults {
        println!("damaged: {}", fault.message);
        *lost += 1;
    }
    Ok(newer)
}

/// The catalog's records of collections by key, and whether some may be missing.
fn catalog_records(
    offline: &Offline,
    newer: &Overlay,
    lost: &mut u64,
) -> Result<(BTreeMap<Vec<u8>, Vec<u8>>, bool)> {
    let (low, high) = space(SYSTEM_TABLET, SPACE_META, META_COLLECTION);
    let mut records = BTreeMap::new();
    let gaps = collect(offline, newer, &low, &high, |key, value| {
        records.insert(key.to_vec(), value.to_vec());
        Ok(())
    })?;
    if !gaps.is_empty() {
        let older = older(offline, &gaps)?;
        older.each(&low, &high, |key, value| {
            records.insert(key.to_vec(), value.to_vec());
            Ok(())
        })?;
        println!("The catalog cannot be read in part: collections may be missing.");
        *lost += 1;
    }
    Ok((records, !gaps.is_empty()))
}

/// Tablets that hold records and have no collection.
fn nameless(offline: &Offline, newer: &Overlay, dumps: &[Dump]) -> Result<BTreeSet<u64>> {
    let known: BTreeSet<u64> = dumps.iter().map(|d| d.tablet).collect();
    let mut found = BTreeSet::new();
    let low = keyspace::prefix(SYSTEM_TABLET + 1, 0, 0);
    collect(offline, newer, &low, &[u8::MAX; 16], |key, _| {
        let tablet = key.get(..8).and_then(|t| t.try_into().ok());
        if let Some(tablet) = tablet.map(u64::from_be_bytes)
            && key.get(8) == Some(&SPACE_RECORD)
            && !known.contains(&tablet)
        {
            found.insert(tablet);
        }
        Ok(())
    })?;
    Ok(found)
}

fn space(tablet: u64, space: u8, id: u32) -> (Vec<u8>, Vec<u8>) {
    let prefix = keyspace::prefix(tablet, space, id);
    (prefix.to_vec(), keyspace::prefix_end(&prefix))
}

/// Changes of the keyspace, the last of each key.
#[derive(Default)]
struct Overlay {
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Deleted from what lies below.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Overlay {
    fn apply(&mut self, effect: Effect, wanted: impl Fn(&[u8]) -> bool) {
        match effect {
            Effect::Put(key, value) if wanted(&key) => {
                self.keys.insert(key, Some(value));
            }
            Effect::Delete(key) if wanted(&key) => {
                self.keys.insert(key, None);
            }
            Effect::DeleteRange(low, high) => {
                self.keys.retain(|key, _| !(key >= &low && key < &high));
                self.ranges.push((low, high));
            }
            _ => {}
        }
    }

    fn hides(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
            || self
                .ranges
                .iter()
                .any(|(low, high)| key >= &low[..] && key < &high[..])
    }

    /// What it puts between two keys.
    fn each(
        &self,
        low: &[u8],
        high: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (key, value) in self.keys.range(low.to_vec()..high.to_vec()) {
            if let Some(value) = value {
                each(key, value)?;
            }
        }
        Ok(())
    }
}

/// All pairs between two keys: those of the data files, and the changes upon them.
fn collect(
    offline: &Offline,
    newer: &Overlay,
    low: &[u8],
    high: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<Vec<Unreadable>> {
    let gaps = offline.scan(low, high, |key, value| match newer.hides(key) {
        true => Ok(()),
        false => each(key, value),
    })?;
    newer.each(low, high, each)?;
    Ok(gaps)
}

/// What the log's past says of the keys in gaps.
fn older(offline: &Offline, gaps: &[Unreadable]) -> Result<Overlay> {
    let applied = offline.applied().index;
    let mut older = Overlay::default();
    offline.read_log(|index, entry| {
        if index <= applied {
            for effect in entry.into_effects() {
                older.apply(effect, |key| gaps.iter().any(|gap| gap.covers(key)));
            }
        }
    })?;
    Ok(older)
}

/// One collection on its way into files.
struct Dump {
    ns: String,
    tablet: u64,
    metadata: Vec<u8>,
    /// None for a view, which has no documents.
    path: Option<PathBuf>,
    metadata_path: PathBuf,
    saved: u64,
    malformed: u64,
    gaps: u64,
    recovered: u64,
    newer_than_count: bool,
}

impl Dump {
    /// From a record of the catalog, as far as it can be read.
    fn new(out: &Path, record: &[u8]) -> Option<Dump> {
        let record = bson::validate(record).ok()?;
        let ns = record.get("ns")?.as_str()?;
        let tablet = record.get("tablet")?.as_i64()? as u64;
        let (_, uuid) = record.get("uuid")?.as_binary()?;
        let options = record.get("options")?.as_doc()?;
        let (db, name) = ns.split_once('.')?;
        let is_view = options.get("viewOn").is_some();
        let mut w = Writer::new();
        w.doc("options", options).open_array("indexes");
        if !is_view {
            w.open_doc("")
                .i32("v", 2)
                .open_doc("key")
                .i32("_id", 1)
                .close();
            w.str("name", "_id_").close();
            for index in record.get("indexes")?.as_array()?.values() {
                let spec = index.as_doc()?.get("spec")?.as_doc()?;
                // A capped collection keeps this one like any other.
                if spec.get("name").and_then(|v| v.as_str()) != Some("_id_") {
                    w.push_value(spec.to_buf());
                }
            }
        }
        w.close()
            .str(
                "uuid",
                &uuid.iter().map(|b| format!("{b:02x}")).collect::<String>(),
            )
            .str("collectionName", name)
            .str("type", if is_view { "view" } else { "collection" });
        let folder = out.join(escape(db));
        let file = escape(name);
        Some(Dump {
            ns: ns.to_string(),
            tablet,
            metadata: w.finish().as_doc().to_string().into_bytes(),
            path: (!is_view).then(|| folder.join(format!("{file}.bson"))),
            metadata_path: folder.join(format!("{file}.metadata.json")),
            saved: 0,
            malformed: 0,
            gaps: 0,
            recovered: 0,
            newer_than_count: false,
        })
    }

    /// For documents whose collection is unknown.
    fn nameless(out: &Path, tablet: u64) -> Dump {
        let folder = out.join("salvaged");
        let name = format!("tablet_{tablet}");
        Dump {
            ns: format!("salvaged.{name} (of a collection whose name is lost)"),
            tablet,
            metadata: br#"{"options":{},"indexes":[]}"#.to_vec(),
            path: Some(folder.join(format!("{name}.bson"))),
            metadata_path: folder.join(format!("{name}.metadata.json")),
            saved: 0,
            malformed: 0,
            gaps: 0,
            recovered: 0,
            newer_than_count: false,
        }
    }

    fn fill(&mut self, offline: &Offline, newer: &Overlay) -> Result<Vec<Unreadable>> {
        let failed = |e: std::io::Error| err!(FileStreamFailed, "cannot write: {e}");
        if let Some(folder) = self.metadata_path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(&self.metadata_path, &self.metadata).map_err(failed)?;
        let Some(path) = &self.path else {
            return Ok(Vec::new());
        };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let (low, high) = space(self.tablet, SPACE_RECORD, 0);
        let (mut saved, mut malformed) = (0, 0);
        let gaps = collect(
            offline,
            newer,
            &low,
            &high,
            |_, value| match bson::validate(value) {
                Ok(_) => {
                    saved += 1;
                    Ok(file.write_all(value).map_err(failed)?)
                }
                Err(_) => {
                    malformed += 1;
                    Ok(())
                }
            },
        )?;
        file.flush().map_err(failed)?;
        (self.saved, self.malformed, self.gaps) = (saved, malformed, gaps.len() as u64);
        self.newer_than_count = newer.keys.range(low..high).next().is_some();
        Ok(gaps)
    }

    /// Appends documents that the log still had.
    fn add(&mut self, older: &Overlay) -> Result<()> {
        let failed = |e: std::io::Error| err!(FileStreamFailed, "cannot write: {e}");
        let Some(path) = self.path.as_ref().filter(|_| self.gaps > 0) else {
            return Ok(());
        };
        let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        let (low, high) = space(self.tablet, SPACE_RECORD, 0);
        let mut recovered = 0;
        older.each(&low, &high, |_, value| {
            if bson::validate(value).is_ok() {
                recovered += 1;
                file.write_all(value).map_err(failed)?;
            }
            Ok(())
        })?;
        self.recovered = recovered;
        Ok(())
    }

    /// Says how it went; how much was lost.
    fn report(&self, offline: &Offline) -> u64 {
        let total = self.saved + self.recovered;
        let counted = offline
            .counts(self.tablet)
            .ok()
            .filter(|_| !self.newer_than_count && self.path.is_some())
            .map(|(records, _)| records.max(0) as u64)
            // Less than there are: the count itself was lost.
            .filter(|n| *n >= total);
        let of = counted.map_or(String::new(), |n| format!(" of {n}"));
        let mut line = format!("{}: {total}{of} documents", self.ns);
        if self.path.is_none() {
            line = format!("{}: a view", self.ns);
        }
        if self.gaps > 0 {
            line += &format!(
                "; {} damaged places, {} documents of them from the log",
                self.gaps, self.recovered
            );
        }
        if self.malformed > 0 {
            line += &format!("; {} records are no documents", self.malformed);
        }
        println!("{line}");
        let all_back = counted.is_some_and(|n| total >= n);
        self.malformed + if all_back { 0 } else { self.gaps }
    }
}

/// A name as mongodump makes it a file's.
fn escape(name: &str) -> String {
    name.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'~' | b'$' | 0x80.. => {
                vec![b]
            }
            _ => format!("%{b:02X}").into_bytes(),
        })
        .fold(Vec::new(), |mut all, some| {
            all.extend(some);
            all
        })
        .into_iter()
        .map(char::from)
        .collect()
}
