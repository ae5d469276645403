//! The store: data directory, log and engine together, and their recovery.

use crate::batch::Batch;
use crate::batched_read;
use crate::commit::Committer;
use crate::counts::{Counts, Touched};
use crate::data_dir::DataDir;
use crate::engine::Engine;
use crate::log_and_engine::{LogAndEngine, Shared, check_size};
use crate::maintenance::{self, Keeper};
use crate::nonblocking_read::PageCacheRoom;
use crate::record_cache::{Rows, Writing};
use crate::tuning::EngineOptions;
use crate::{Effect, Entry, Latches, Observer, View, Watcher};
use errors::{Error, Result, err};
use oplog::{Log, LogMark, LogOptions, LogReader};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Recovery applies entries in batches of about this size.
const REPLAY_BATCH_BYTES: usize = 1 << 20;

/// The options of a store.
#[derive(Clone)]
pub struct StoreOptions {
    pub dir: PathBuf,
    /// The memory of block cache, record cache and memtables together.
    pub cache_bytes: usize,
    /// The record cache's initial percentage of the memory (the share then adapts to the reads); 0
    /// turns the record cache off.
    pub row_percent: u8,
    /// The longest time that an acknowledged write stays unsynced when it asked for no sync.
    pub sync_interval: Duration,
    pub log_segment_bytes: u64,
    /// Applied log segments are kept while the log is no larger than this and they are no older
    /// than `log_retain_age`.
    pub log_retain_bytes: u64,
    pub log_retain_age: Duration,
    /// The number of threads that flush and compact.
    pub background_jobs: usize,
    /// The uncompressed block size of records and ids.
    pub block_bytes: usize,
    /// The most data files that are kept open: a share of the process's limit.
    pub open_files: usize,
    /// Direct I/O: data files bypass the page cache, so only the cache above uses memory for them.
    pub direct_io: bool,
    /// Whether the page cache has room to grow. While it has none, most reads of event loops bypass
    /// it.
    pub has_room: Option<HasRoom>,
    /// RocksDB's options by name (`name=value;…`), applied last: for experiments.
    pub engine_options: String,
    /// The log's file system; a faulty one in tests.
    pub log_file_system: Arc<dyn oplog::FileSystem>,
}

impl StoreOptions {
    pub fn new(dir: impl Into<PathBuf>) -> StoreOptions {
        StoreOptions {
            dir: dir.into(),
            cache_bytes: 256 << 20,
            row_percent: 50,
            sync_interval: Duration::from_millis(100),
            log_segment_bytes: 64 << 20,
            log_retain_bytes: 1 << 30,
            log_retain_age: Duration::from_secs(24 * 3600),
            background_jobs: std::thread::available_parallelism().map_or(2, |n| n.get()),
            block_bytes: 8 << 10,
            open_files: 1000,
            direct_io: false,
            has_room: None,
            engine_options: String::new(),
            log_file_system: Arc::new(oplog::Disk),
        }
    }
}

impl StoreOptions {
    pub(crate) fn engine(&self) -> EngineOptions {
        EngineOptions {
            cache_bytes: self.cache_bytes,
            row_percent: self.row_percent,
            block_bytes: self.block_bytes,
            background_jobs: self.background_jobs,
            open_files: self.open_files,
            direct_io: self.direct_io,
            extra: self.engine_options.clone(),
        }
    }

    pub(crate) fn log(&self, dir: PathBuf) -> LogOptions {
        LogOptions {
            segment_bytes: self.log_segment_bytes,
            sync_interval: self.sync_interval,
            retain_bytes: self.log_retain_bytes,
            retain_age: self.log_retain_age,
            file_system: self.log_file_system.clone(),
            ..LogOptions::new(dir)
        }
    }
}

/// See [`StoreOptions::has_room`].
pub type HasRoom = Arc<dyn Fn() -> bool + Send + Sync>;

/// The place of a proposal in the log: the index and timestamp of its last entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Committed {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
}

/// Figures for `serverStatus`, in bytes or counts.
#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    pub cache_capacity_bytes: u64,
    pub cache_used_bytes: u64,
    pub cache_pinned_bytes: u64,
    /// The bytes of the record cache, and its current share; blocks and memtables have the rest.
    pub row_bytes: u64,
    pub row_share_bytes: u64,
    pub memtable_bytes: u64,
    /// Disk reads that were submitted together with others of their operation, since the process
    /// began.
    pub batched_reads: u64,
    /// The bytes of all live SST files.
    pub sst_bytes: u64,
    pub pending_compaction_bytes: u64,
    /// Files on level 0 that wait for compaction.
    pub level_zero_files: u64,
    /// Full memtables that wait for a flush.
    pub full_memtables: u64,
    /// The engine's limit for writers in bytes a second while flushes and compactions catch up; 0
    /// without a limit.
    pub delayed_write_rate: u64,
    /// The write throttle's delay for a megabyte, in milliseconds; 0 while compaction keeps up.
    pub pace_millis_per_mb: u64,
    /// Whether writers wait until flushes or compactions have caught up.
    pub writes_stopped: bool,
    pub running_flushes: u64,
    pub running_compactions: u64,
    pub estimated_keys: u64,
    /// Failures of flushes and compactions since the start.
    pub background_errors: u64,
    /// The newest of these failures.
    pub background_error: Option<String>,
    pub snapshots: u64,
    pub log_bytes: u64,
    /// The size that the log may reach before old segments are removed.
    pub log_retain_bytes: u64,
    pub log_segments: u64,
    pub last_index: u64,
    pub durable_index: u64,
    /// The number of entries that recovery replayed from the log.
    pub replayed_entries: u64,
}

pub struct Store {
    // Fields are dropped in this order: the maintenance thread stops before what it uses is gone.
    keeper: Keeper,
    latest: View,
    committer: Committer<LogAndEngine>,
    shared: Shared,
    latches: Latches,
    log: Arc<Log>,
    engine: Arc<Engine>,
    replayed: u64,
}

impl Store {
    /// Opens or creates the directory, takes its lock, and applies the log to the engine up to its
    /// end.
    pub fn open(opts: StoreOptions) -> Result<Arc<Store>> {
        let data_dir = DataDir::open(&opts.dir)?;
        let log_dir = data_dir.log();
        let engine = Arc::new(Engine::open(data_dir, &opts.engine())?);
        let log_options = opts.log(log_dir);
        let (counts, counted) = Counts::load(&engine)?;
        let applied = engine.applied(false)?.max(counted);
        let (log, replayed) = replay(log_options, &engine, &counts, applied)?;
        let log = Arc::new(log);
        let shared = Shared {
            counts: Arc::new(counts),
            ..Shared::default()
        };
        let env = LogAndEngine::new(log.clone(), engine.clone(), shared.clone());
        let applied = Committed {
            index: log.last_index(),
            ts: log.last_ts(),
        };
        Ok(Arc::new(Store {
            keeper: Keeper::start(
                log.clone(),
                engine.clone(),
                shared.throttle.clone(),
                shared.arrival.clone(),
                PageCacheRoom::new(opts.has_room.clone()),
            ),
            latest: View::latest(&engine),
            committer: Committer::new(env, applied),
            shared,
            latches: Latches::new(),
            log,
            engine,
            replayed,
        }))
    }

    /// A snapshot.
    pub fn view(&self) -> View {
        View::snapshot(&self.engine)
    }

    /// Reports to `watcher` all keys that are put under `prefix` from now on, each before it can be
    /// read, and returns a snapshot of all earlier puts. The registration ends with the watcher.
    /// Unlogged writes are not reported.
    pub fn watch(&self, prefix: &[u8], watcher: Weak<dyn Watcher>) -> Result<View> {
        self.committer
            .between_groups(|env| env.watches.add(prefix, watcher))?;
        Ok(self.view())
    }

    /// Reports to `observer` every entry that is applied from now on, and returns a snapshot of
    /// everything applied before.
    pub fn observe(&self, observer: Arc<dyn Observer>) -> Result<View> {
        self.committer.between_groups(|env| {
            env.observers.push(observer);
            View::snapshot(&self.engine)
        })
    }

    /// A view that reads the newest state each time, without a snapshot: the cheapest for a single
    /// get. One scan of it sees one state.
    pub fn latest(&self) -> View {
        self.latest.clone()
    }

    /// Writes the entries to the log (one write for all concurrent proposals) and applies them;
    /// both are done when it returns. After an error none of them is visible. They are not in the
    /// log either, with two exceptions: the error says that the content of the log's files is
    /// unknown; or the engine failed in between, and they will be applied before any later write.
    pub fn propose(&self, entries: Vec<Entry>) -> Result<Committed> {
        check_size(&entries)?;
        self.committer.propose(entries)
    }

    /// The last entry that is applied.
    pub fn last(&self) -> Committed {
        self.committer.applied()
    }

    /// The exact number of a tablet's records, and their bytes; no scan is needed.
    pub fn counts(&self, tablet: u64) -> (u64, u64) {
        let [records, bytes] = self.shared.counts.get(tablet);
        (records.max(0) as u64, bytes.max(0) as u64)
    }

    pub fn last_index(&self) -> u64 {
        self.committer.applied().index
    }

    pub fn last_ts(&self) -> u64 {
        self.committer.applied().ts
    }

    /// The last index that survives a loss of power.
    pub fn durable_index(&self) -> u64 {
        self.log.durable_index()
    }

    /// Asks for an fdatasync soon; [`Store::on_durable`] callbacks tell when it is done.
    pub fn request_sync(&self) {
        self.log.request_sync();
    }

    /// Waits until `index` is durable.
    pub fn wait_durable(&self, index: u64) -> Result<()> {
        Ok(self.log.wait_durable(index)?)
    }

    /// Calls `callback` with the durable index after each sync, also after a failed one. A waiter
    /// whose entry it did not reach asks [`Store::healthy`]. The callback runs on the sync thread,
    /// or on a thread in `wait_durable`.
    pub fn on_durable(&self, callback: Box<dyn Fn(u64) + Send + Sync>) {
        self.log.on_durable(callback);
    }

    /// An error when the store takes no more writes until a restart.
    pub fn healthy(&self) -> Result<()> {
        Ok(self.log.healthy()?)
    }

    /// Entries of the log from `from` on (see [`Entry::decode`]). At the end the reader gives
    /// `None`, and may be asked again later.
    pub fn read_log(&self, from: u64) -> Result<LogReader> {
        Ok(self.log.read(from)?)
    }

    /// A reader that continues where another one stopped.
    pub fn read_log_at(&self, mark: LogMark) -> Result<LogReader> {
        Ok(self.log.read_at(mark)?)
    }

    /// A reader from the first kept entry whose timestamp is at least `ts`.
    pub fn seek_log(&self, ts: u64) -> Result<LogReader> {
        Ok(self.log.seek(ts)?)
    }

    /// The index of the first kept entry of the log.
    pub fn first_log_index(&self) -> u64 {
        self.log.first_index()
    }

    #[cfg(test)]
    pub(crate) fn engine_itself(&self) -> &Engine {
        &self.engine
    }

    /// Whether the engine stalls writers because flushes or compactions have fallen behind. A
    /// thread that must not wait should leave its writes to another thread meanwhile.
    pub fn is_stalled(&self) -> bool {
        self.shared.throttle.is_on() || self.shared.stall.is_on()
    }

    /// Writes to the engine without the log: only for data that can be derived again (index
    /// builds). Atomic, visible at once, durable with the engine's next flush.
    pub fn write_unlogged(&self, effects: &[Effect]) -> Result<()> {
        if effects.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new(&self.engine);
        for effect in effects {
            batch.push(effect);
        }
        self.engine
            .apply(&batch, effects.iter(), &mut Writing::default())
    }

    /// The approximate compressed bytes of `[low, high)`, on disk and in memtables.
    pub fn approximate_size(&self, low: &[u8], high: &[u8]) -> u64 {
        self.engine.approximate_size(low, high)
    }

    pub fn stats(&self) -> StoreStats {
        let engine = &self.engine;
        let (log_bytes, log_segments) = self.log.size();
        StoreStats {
            cache_capacity_bytes: engine.cache_capacity(),
            cache_used_bytes: engine.cache_used(),
            cache_pinned_bytes: engine.cache_pinned(),
            row_bytes: engine.rows().map_or(0, Rows::used) as u64,
            row_share_bytes: engine.row_share(),
            memtable_bytes: engine.memtable_bytes(),
            batched_reads: batched_read::submitted(),
            sst_bytes: engine.sum(c"rocksdb.live-sst-files-size"),
            pending_compaction_bytes: engine.sum(c"rocksdb.estimate-pending-compaction-bytes"),
            level_zero_files: engine.level_zero_files(),
            full_memtables: engine.sum(c"rocksdb.num-immutable-mem-table"),
            delayed_write_rate: engine.figure(c"rocksdb.actual-delayed-write-rate"),
            pace_millis_per_mb: self.shared.throttle.millis_per_mb(),
            writes_stopped: engine.figure(c"rocksdb.is-write-stopped") > 0,
            running_flushes: engine.figure(c"rocksdb.num-running-flushes"),
            running_compactions: engine.figure(c"rocksdb.num-running-compactions"),
            estimated_keys: engine.sum(c"rocksdb.estimate-num-keys"),
            background_errors: engine.sum(c"rocksdb.background-errors"),
            background_error: engine.last_trouble(),
            snapshots: engine.figure(c"rocksdb.num-snapshots"),
            log_bytes,
            log_retain_bytes: self.log.retain_bytes(),
            log_segments,
            last_index: self.last_index(),
            durable_index: self.log.durable_index(),
            replayed_entries: self.replayed,
        }
    }

    /// An unnamed temporary file for data that exceeds memory; it is gone when it is closed. It
    /// lies beside the data, where an operator provides space.
    pub fn temporary_file(&self) -> Result<File> {
        self.engine.data_dir().temporary_file()
    }

    /// Flushes all memtables.
    pub fn flush(&self) -> Result<()> {
        self.engine.flush()
    }

    /// Compacts `[low, high)`; an empty bound is none.
    pub fn compact(
        &self,
        low: &[u8],
        high: &[u8],
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.engine.compact(low, high, go_on)
    }

    /// Makes a consistent copy (hard links where possible) that is a data directory of its own;
    /// `dir` must not exist.
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        self.engine.checkpoint(dir)
    }

    pub fn latches(&self) -> &Latches {
        &self.latches
    }

    /// Syncs the log and flushes the engine, so that the next start replays nothing. A store that
    /// is dropped or killed is as safe, and only starts more slowly.
    pub fn close(&self) -> Result<()> {
        self.keeper.stop();
        self.log.wait_durable(self.log.last_index())?;
        self.engine.flush()?;
        maintenance::trim_log(&self.log, &self.engine)
    }
}

/// Opens the log and applies the entries that the engine lacks.
fn replay(
    opts: LogOptions,
    engine: &Engine,
    counts: &Counts,
    applied: Committed,
) -> Result<(Log, u64)> {
    let mut batch = Batch::new(engine);
    let mut touched = Touched::default();
    let mut last = applied;
    let apply = |batch: &mut Batch, touched: &mut Touched, at: Committed| {
        touched.stage(batch, at);
        batch.set_applied(at);
        engine.write(batch)?;
        counts.publish(touched);
        touched.clear();
        batch.clear(usize::MAX);
        Ok::<(), Error>(())
    };
    let (log, recovered) = Log::open(opts, applied.index + 1, applied.ts, |record| {
        let entry = Entry::decode(record.payload).ok_or_else(|| {
            // The checksum was right, so other code than this wrote the entry.
            err!(
                UnsupportedFormat,
                "entry {} of the log has a form that this version does not know",
                record.index
            )
        })?;
        for plain in entry.plain() {
            batch.push_all(&plain.effects);
            if let Some(delta) = &plain.count {
                counts.touch(&mut touched, delta);
            }
        }
        last = Committed {
            index: record.index,
            ts: record.ts,
        };
        if batch.len() > REPLAY_BATCH_BYTES {
            apply(&mut batch, &mut touched, last)?;
        }
        Ok::<(), Error>(())
    })?;
    if recovered.replayed > 0 {
        apply(&mut batch, &mut touched, last)?;
    }
    Ok((log, recovered.replayed))
}
