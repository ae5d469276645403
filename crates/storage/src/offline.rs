//! Offline access: reads a data directory that no server has open. Nothing in it is changed.
//!
//! The engine's files hold a prefix of the log, so they are consistent by themselves; the log has
//! what came after. Damage does not end the reading: a scan skips what cannot be read, and reports
//! which keys may be missing.

use crate::at_rest;
use crate::batch::Batch;
use crate::counts::{Counts, Touched};
use crate::data_dir::DataDir;
use crate::engine::Engine;
use crate::family::Family;
use crate::store::{Committed, StoreOptions};
use crate::view::{Direction, View};
use crate::{Effect, Entry};
use errors::{Error, Fallible, Stop};
use oplog::{LogExamination, LogOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// To find the end of a damaged block, keys are treated as numbers of so many bytes.
const PROBE_BYTES: usize = 64;
/// The batch size when the log is applied to a rebuilt engine.
const REFILL_BATCH_BYTES: usize = 4 << 20;
/// The most seeks for one gap.
const MAX_PROBES: usize = 2 * 8 * PROBE_BYTES;

/// A range of keys that could not be read: everything above `after`, up to before `before` (empty:
/// to the end of the scan).
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub after: Vec<u8>,
    pub before: Vec<u8>,
    pub why: Error,
}

impl Unreadable {
    pub fn covers(&self, key: &[u8]) -> bool {
        key > &self.after[..] && (self.before.is_empty() || key < &self.before[..])
    }
}

/// The content of the log, and its faults.
#[derive(Clone, Debug, Default)]
pub struct LogFindings {
    pub segments: u64,
    pub bytes: u64,
    pub entries: u64,
    pub first_index: u64,
    pub last_index: u64,
    /// The bytes of a torn tail, which opening would cut off.
    pub torn_bytes: u64,
    /// Damage, each with its place.
    pub faults: Vec<Error>,
}

pub struct Offline {
    engine: Arc<Engine>,
    log: LogOptions,
    stamp: Fallible<()>,
    applied: Committed,
}

impl Offline {
    /// Opens the directory read-only. Fails when a server has it open, or when the engine's
    /// manifest is damaged.
    pub fn open(dir: &Path) -> Fallible<Offline> {
        let data_dir = DataDir::open_to_read(dir)?;
        let opts = StoreOptions {
            cache_bytes: 64 << 20,
            row_percent: 0,
            ..StoreOptions::new(dir)
        };
        let (stamp, log) = (data_dir.check_stamp(), opts.log(&data_dir));
        let engine = Arc::new(Engine::open_to_read(data_dir, &opts.engine())?);
        // A damaged count or applied index is reported by the scan of its block.
        let counted = Counts::load(&engine).map_or(Committed::default(), |c| c.1);
        let applied = engine.applied(false).unwrap_or_default().max(counted);
        Ok(Offline {
            engine,
            log,
            stamp,
            applied,
        })
    }

    /// As [`Offline::open`], for a directory whose manifest is damaged or whose files are partly
    /// missing. RocksDB rebuilds the manifest in `scratch` from the remaining data files, which are
    /// linked or copied there. Then the log restores what it still has of the missing files.
    pub fn open_rebuilt(dir: &Path, scratch: &Path) -> Fallible<Offline> {
        let data_dir = DataDir::open_to_read(dir)?;
        let failed = |e: std::io::Error| {
            errors::err!(
                FileNotOpen,
                "cannot copy data files to {}: {e}",
                scratch.display()
            )
        };
        let engine_dir = scratch.join("engine");
        std::fs::create_dir_all(&engine_dir).map_err(failed)?;
        let mut files = 0;
        let entries = match std::fs::read_dir(data_dir.engine()) {
            Ok(entries) => Some(entries),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
        for entry in entries.into_iter().flatten() {
            let path = entry.map_err(failed)?.path();
            if let Some(name) = path
                .file_name()
                .filter(|_| path.extension().is_some_and(|e| e == "sst"))
            {
                let to = engine_dir.join(name);
                std::fs::hard_link(&path, &to)
                    .or_else(|_| std::fs::copy(&path, &to).map(|_| ()))
                    .map_err(failed)?;
                files += 1;
            }
        }
        let opts = StoreOptions {
            // The data is read once, so compacting it would be wasted.
            engine_options: "disable_auto_compactions=true".into(),
            ..StoreOptions::new(scratch)
        };
        if data_dir.key().is_some() {
            at_rest::copy_key(dir, scratch)?;
        }
        if files > 0 {
            Engine::rebuild(&engine_dir, &opts.engine(), data_dir.key())?;
        }
        let log = opts.log(&data_dir);
        let engine = Engine::open(DataDir::open_to_read(scratch)?, &opts.engine())?;
        refill(&Arc::new(engine), &log)?;
        let mut offline = Offline::open(scratch)?;
        offline.log = log;
        offline.stamp = data_dir.check_stamp();
        Ok(offline)
    }

    /// Checks the stamp of the directory.
    pub fn stamp(&self) -> Fallible<()> {
        self.stamp.clone()
    }

    /// The last log entry that the engine's files hold.
    pub fn applied(&self) -> Committed {
        self.applied
    }

    /// The number of a tablet's records and their bytes, as the stored counts say.
    pub fn counts(&self, tablet: u64) -> Fallible<(i64, i64)> {
        let (counts, _) = Counts::load(&self.engine).map_err(Stop::into_error)?;
        let [records, bytes] = counts.get(tablet);
        Ok((records, bytes))
    }

    /// A view of the engine's files.
    pub fn view(&self) -> View {
        View::snapshot(&self.engine)
    }

    /// The engine's data files: name and size in bytes.
    pub fn files(&self) -> Fallible<Vec<(String, u64)>> {
        self.engine.files()
    }

    /// Reads every block of every data file and compares checksums; the error names the first
    /// damaged file.
    pub fn verify_files(&self) -> Fallible<()> {
        self.engine.verify_files()
    }

    /// The same of one file; the error names the damaged block.
    pub fn verify_file(&self, name: &str) -> Fallible<()> {
        self.engine.verify_file(name)
    }

    pub fn log_dir(&self) -> PathBuf {
        self.log.dir.clone()
    }

    /// Reads the whole log and passes each entry to `each`, with its index.
    pub fn read_log(&self, mut each: impl FnMut(u64, Entry)) -> Fallible<LogFindings> {
        let mut strange = Vec::new();
        let LogExamination {
            segments,
            bytes,
            entries,
            first_index,
            last_index,
            torn_bytes,
            faults,
        } = oplog::examine(&self.log, |record| match Entry::decode(record.payload) {
            Some(entry) => each(record.index, entry),
            None => strange.push(record.index),
        })?;
        let mut faults: Vec<Error> = faults.into_iter().map(Error::from).collect();
        faults.extend(strange.into_iter().map(|index| {
            errors::err!(
                UnsupportedFormat,
                "entry {index} of the log has a form that this version does not know"
            )
        }));
        if entries > 0 && first_index > self.applied.index + 1 {
            faults.push(errors::err!(
                UnrecoverableRollbackError,
                "the data files end at entry {}, and the log begins only at {first_index}",
                self.applied.index
            ));
        }
        Ok(LogFindings {
            segments,
            bytes,
            entries,
            first_index,
            last_index,
            torn_bytes,
            faults,
        })
    }

    /// Reads `[low, high)`, records last, and passes each pair to `each`. Returns the gaps that
    /// could not be read.
    pub fn scan(
        &self,
        low: &[u8],
        high: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> errors::Result<()>,
    ) -> errors::Result<Vec<Unreadable>> {
        let view = self.view();
        let mut gaps = Vec::new();
        for &family in Family::of_range(low, high) {
            gaps.extend(scan(&view, family, low, high, &mut each)?);
        }
        Ok(gaps)
    }
}

/// Applies a log to an engine some of whose files are missing.
///
/// A log without a hole has the last state of every key that it names, so all of it is applied. A
/// log that ends early or is damaged may lack later changes of a key. Then the engine's value wins
/// over entries that the engine had already applied.
fn refill(engine: &Arc<Engine>, log: &LogOptions) -> Fallible<()> {
    let (counts, counted) = Counts::load(engine).unwrap_or_default();
    let applied = engine.applied(false).unwrap_or_default().max(counted);
    let examined = oplog::examine(log, |_| {})?;
    let whole = examined.faults.is_empty() && examined.last_index >= applied.index;
    let before = View::snapshot(engine);
    // A key that cannot be read counts as missing.
    let has = |key: &[u8]| before.exists(key).unwrap_or(false);
    let mut batch = Batch::new(engine);
    let mut touched = Touched::default();
    let mut last = applied;
    let mut outcome: Fallible<()> = Ok(());
    let write = |batch: &mut Batch, touched: &mut Touched, last: Committed| {
        touched.stage(batch, last);
        batch.set_applied(last);
        engine.write(batch)?;
        counts.publish(touched);
        touched.clear();
        batch.clear(REFILL_BATCH_BYTES);
        Ok::<(), Error>(())
    };
    oplog::examine(log, |record| {
        let Some(entry) = Entry::decode(record.payload).filter(|_| outcome.is_ok()) else {
            return;
        };
        let newer = record.index > applied.index;
        for effect in entry.plain().flat_map(|e| &e.effects) {
            let wanted = newer
                || whole
                || match effect {
                    Effect::Put(key, _) | Effect::Delete(key) => !has(key),
                    Effect::DeleteRange(..) => false,
                };
            if wanted {
                batch.push(effect);
            }
        }
        if newer {
            for delta in entry.plain().filter_map(|e| e.count.as_ref()) {
                counts.touch(&mut touched, delta);
            }
            last = Committed {
                index: record.index,
                ts: record.ts,
            };
        }
        if batch.len() > REFILL_BATCH_BYTES {
            outcome = write(&mut batch, &mut touched, last);
        }
    })?;
    outcome?;
    write(&mut batch, &mut touched, last)?;
    engine.flush()
}

fn scan(
    view: &View,
    family: Family,
    low: &[u8],
    high: &[u8],
    each: &mut impl FnMut(&[u8], &[u8]) -> errors::Result<()>,
) -> errors::Result<Vec<Unreadable>> {
    let mut gaps = Vec::new();
    let mut from = low.to_vec();
    loop {
        let mut scan = view.scan_of(family, &from, high, Direction::Forward);
        let mut last = from.clone();
        let why = loop {
            match scan.next() {
                Ok(true) => {
                    last.clear();
                    last.extend_from_slice(scan.key());
                    each(scan.key(), scan.value())?;
                }
                Ok(false) => return Ok(gaps),
                Err(e) => break e.into_error(),
            }
        };
        drop(scan);
        let before = past_damage(view, family, &last, high);
        let ended = before.is_empty();
        gaps.push(Unreadable {
            after: last,
            before: before.clone(),
            why,
        });
        if ended {
            return Ok(gaps);
        }
        from = before;
    }
}

/// About the least key above `key` at which the engine can be read again; empty when there is none
/// below `high`.
///
/// A seek fails inside a damaged block and succeeds behind it. So the search takes growing steps
/// first, and then halves them.
fn past_damage(view: &View, family: Family, key: &[u8], high: &[u8]) -> Vec<u8> {
    let readable = |at: &[u8]| {
        let mut scan = view.scan_of(family, at, high, Direction::Forward);
        scan.next().is_ok()
    };
    let start = widen(key);
    let (mut fails, mut reads) = (start.clone(), None);
    for bit in 0..8 * PROBE_BYTES {
        let Some(probe) = plus_power(&start, bit) else {
            break;
        };
        if !high.is_empty() && &probe[..] >= high {
            break;
        }
        if readable(&probe) {
            reads = Some(probe);
            break;
        }
        fails = probe;
    }
    let Some(mut reads) = reads else {
        return Vec::new();
    };
    for _ in 0..MAX_PROBES {
        let middle = midway(&fails, &reads);
        if middle <= fails || middle >= reads {
            break;
        }
        if readable(&middle) {
            reads = middle;
        } else {
            fails = middle;
        }
    }
    reads
}

/// The key as a number of fixed length.
fn widen(key: &[u8]) -> Vec<u8> {
    let mut wide = key.to_vec();
    wide.resize(PROBE_BYTES.max(key.len() + 1), 0);
    wide
}

/// `number + 2^bit`; `None` when that does not fit.
fn plus_power(number: &[u8], bit: usize) -> Option<Vec<u8>> {
    let mut sum = number.to_vec();
    let mut at = sum.len().checked_sub(1 + bit / 8)?;
    let mut carry = 1u16 << (bit % 8);
    loop {
        let byte = sum.get_mut(at)?;
        let total = u16::from(*byte) + carry;
        *byte = total as u8;
        carry = total >> 8;
        if carry == 0 {
            return Some(sum);
        }
        at = at.checked_sub(1)?;
    }
}

/// Half the way between two numbers of one length.
fn midway(low: &[u8], high: &[u8]) -> Vec<u8> {
    // The sum, from the last byte on, then halved.
    let mut sum = vec![0u8; low.len()];
    let mut carry = 0u16;
    for at in (0..low.len()).rev() {
        let pair = |n: &[u8]| n.get(at).copied().map_or(0, u16::from);
        let total = pair(low) + pair(high) + carry;
        if let Some(byte) = sum.get_mut(at) {
            *byte = total as u8;
        }
        carry = total >> 8;
    }
    for byte in &mut sum {
        let bits = carry << 8 | u16::from(*byte);
        *byte = (bits >> 1) as u8;
        carry = bits & 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(plus_power(&[0, 255], 0), Some(vec![1, 0]));
        assert_eq!(plus_power(&[0, 1], 9), Some(vec![2, 1]));
        assert_eq!(plus_power(&[255, 255], 3), None);
        assert_eq!(midway(&[0, 0], &[1, 0]), [0, 128]);
        assert_eq!(midway(&[255, 254], &[255, 255]), [255, 254]);
        assert_eq!(midway(&[255, 1], &[255, 255]), [255, 128]);
    }
}
