//! The store: data directory, log and engine together, and their recovery.

use crate::at_rest::{DataFiles, Places, TemporaryFile};
use crate::batch::Batch;
use crate::batched_read;
use crate::cache_loan::CacheLoan;
use crate::commit::Committer;
use crate::commit_env::{Shared, StoreCommitEnv, check_size};
use crate::counts::Counts;
use crate::data_dir::DataDir;
use crate::engine::Engine;
use crate::hidden_keys;
use crate::log_window;
use crate::maintenance::{self, MaintenanceThread};
use crate::nonblocking_read::PageCacheRoom;
use crate::record_cache::{Rows, Writing};
use crate::replay::Replay;
use crate::replicator::{Epoch, FlushGate, Replicator};
use crate::restore::{BackupRecord, fingerprint};
use crate::tuning::EngineOptions;
use crate::{Effect, Entry, Latches, Observer, View, Watcher};
use errors::{Error, Fallible, Stop, err};
use oplog::{
    Log, LogMark, LogOptions, LogReader, Record, Trimmed as LogTrimmed, Window as LogWindow,
};
use own_process::disk_space::DiskSpace;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How a store is opened.
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
    /// How much of the log's past is kept, unless [`Store::set_log_window`] has said otherwise before.
    pub log_window: LogWindow,
    /// Threads that flush and compact.
    pub background_jobs: usize,
    /// The uncompressed block size of records and ids.
    pub block_bytes: usize,
    /// The most data files that are kept open: a share of the process's limit.
    pub open_files: usize,
    /// The most temporary files of sorts, groups and cursors: a share of the same limit.
    pub temporary_files: usize,
    /// Direct I/O: data files bypass the page cache, so only the cache above uses memory for them.
    pub direct_io: bool,
    /// Whether the page cache has room to grow. While it has none, most reads of event loops bypass
    /// it.
    pub has_room: Option<HasRoom>,
    /// RocksDB's options by name (`name=value;…`), applied last: for experiments.
    pub engine_options: String,
    /// The log's file system; a faulty one in tests.
    pub log_file_system: Arc<dyn oplog::FileSystem>,
    /// The engine's files, and the directory's stamp, are synced; see [`StoreOptions::unsynced`].
    pub syncs: bool,
    /// The last index of the log that opening applies, if later entries are not decided yet.
    pub apply_up_to: u64,
    /// Nor are entries applied that were made after that, in milliseconds since 1970 by the clock of
    /// their primary.
    pub apply_made_before: i64,
}

impl StoreOptions {
    pub fn new(dir: impl Into<PathBuf>) -> StoreOptions {
        StoreOptions {
            dir: dir.into(),
            cache_bytes: 256 << 20,
            row_percent: 50,
            sync_interval: Duration::from_millis(100),
            log_segment_bytes: 64 << 20,
            log_window: LogWindow::default(),
            background_jobs: std::thread::available_parallelism().map_or(2, |n| n.get()),
            block_bytes: 8 << 10,
            open_files: 1000,
            temporary_files: 1000,
            direct_io: false,
            has_room: None,
            engine_options: String::new(),
            log_file_system: Arc::new(oplog::Disk),
            syncs: true,
            apply_up_to: u64::MAX,
            apply_made_before: i64::MAX,
        }
    }
}

impl StoreOptions {
    /// For data that is not kept: nothing waits for the disk. A loss of power may leave a directory that does not open.
    pub fn unsynced(self) -> StoreOptions {
        StoreOptions {
            log_file_system: Arc::new(oplog::UnsyncedDisk),
            syncs: false,
            ..self
        }
    }

    pub(crate) fn engine(&self) -> EngineOptions {
        EngineOptions {
            cache_bytes: self.cache_bytes,
            row_percent: self.row_percent,
            block_bytes: self.block_bytes,
            background_jobs: self.background_jobs,
            open_files: self.open_files,
            direct_io: self.direct_io,
            syncs: self.syncs,
            extra: self.engine_options.clone(),
        }
    }

    pub(crate) fn log(&self, data_dir: &DataDir) -> LogOptions {
        LogOptions {
            segment_bytes: self.log_segment_bytes,
            sync_interval: self.sync_interval,
            window: self.log_window,
            file_system: self.log_file_system.clone(),
            key: data_dir.key().cloned(),
            ..LogOptions::new(data_dir.log())
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
    /// What is lent of the cache.
    pub lent_bytes: u64,
    /// Temporary files that are open.
    pub temporary_files: u64,
    pub memtable_bytes: u64,
    /// Disk reads that were submitted together with others of their operation, since the process
    /// began.
    pub batched_reads: u64,
    /// Hidden keys that the scans of the process have stepped over: deleted, overwritten, or newer than
    /// the scan's state.
    pub hidden_keys: u64,
    /// Ranges that are known to hold nothing.
    pub dead_ranges: u64,
    /// Readers with a lease on the log.
    pub log_leases: u64,
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
    /// The age of the oldest snapshot in seconds; deleted and overwritten versions since then stay on
    /// disk.
    pub oldest_snapshot_seconds: u64,
    pub log_bytes: u64,
    /// How much of its past the log keeps.
    pub log_window: LogWindow,
    /// Segments of the log that were removed since the start.
    pub log_trimmed: LogTrimmed,
    pub log_segments: u64,
    pub last_index: u64,
    pub durable_index: u64,
    /// The number of entries that recovery replayed from the log.
    pub replayed_entries: u64,
}

pub struct Store {
    // Fields are dropped in this order: the maintenance thread stops before what it uses is gone.
    keeper: MaintenanceThread,
    latest: View,
    committer: Committer<StoreCommitEnv>,
    shared: Shared,
    latches: Latches,
    log: Arc<Log>,
    engine: Arc<Engine>,
    replayed: u64,
    temporaries: Arc<Places>,
    /// Under which key the time is stored that entries of a new term are later than.
    reserved_time: OnceLock<Vec<u8>>,
}

impl Store {
    /// Opens or creates the directory, takes its lock, and applies the log to the engine up to its
    /// end.
    pub fn open(opts: StoreOptions) -> Fallible<Arc<Store>> {
        let data_dir = DataDir::open(&opts.dir, opts.syncs)?;
        let mut opts = opts;
        let mut log_options = opts.log(&data_dir);
        opts.log_window = log_window::load(&opts.dir)?.unwrap_or(opts.log_window);
        let engine = Arc::new(Engine::open(data_dir, &opts.engine())?);
        log_options.window = opts.log_window;
        let (counts, counted) = Counts::load(&engine).map_err(Stop::into_error)?;
        let applied = engine.applied(false)?.max(counted);
        let (log, replayed, applied) = replay(log_options, &engine, &counts, applied, &opts)?;
        let log = Arc::new(log);
        let shared = Shared {
            counts: Arc::new(counts),
            ..Shared::default()
        };
        let mut env = StoreCommitEnv::new(log.clone(), engine.clone(), shared.clone());
        env.fault = opts.engine().commit_fault()?;
        Ok(Arc::new(Store {
            keeper: MaintenanceThread::start(
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
            temporaries: Places::new(opts.temporary_files),
            reserved_time: OnceLock::new(),
        }))
    }

    /// The data directory.
    pub fn dir(&self) -> &std::path::Path {
        self.engine.data_dir().path()
    }

    /// A snapshot.
    pub fn view(&self) -> View {
        View::snapshot(&self.engine)
    }

    /// A snapshot of the state at `ts`, where nothing is later yet, and what `with` makes of the same
    /// moment. From then on nothing is written at `ts` or before.
    pub fn view_at<R>(&self, ts: u64, with: impl FnOnce() -> R) -> Fallible<Option<(View, R)>> {
        self.committer.between_groups(|_| {
            (self.log.last_ts() <= ts).then(|| {
                self.log.advance_clock(ts.saturating_add(1));
                (self.view(), with())
            })
        })
    }

    /// Reports to `watcher` all keys that are put under `prefix` from now on, each before it can be
    /// read, and returns a snapshot of all earlier puts. The registration ends with the watcher.
    /// Unlogged writes are not reported.
    pub fn watch(&self, prefix: &[u8], watcher: Weak<dyn Watcher>) -> Fallible<View> {
        self.committer
            .between_groups(|env| env.watches.add(prefix, watcher))?;
        Ok(self.view())
    }

    /// Reports to `observer` every entry that is applied from now on, and returns a snapshot of
    /// everything applied before.
    pub fn observe(&self, observer: Arc<dyn Observer>) -> Fallible<View> {
        self.committer.between_groups(|env| {
            env.observers.push(observer);
            View::snapshot(&self.engine)
        })
    }

    /// Has `replicator` asked and told of every entry that is made here from now on.
    pub fn replicate(&self, replicator: Arc<dyn Replicator>) -> Fallible<()> {
        self.committer.between_groups(|_| {
            // There is one for the life of the process.
            let _ = self.shared.replicator.set(replicator);
        })?;
        let engine = self.engine.clone();
        engine.gate().follow(self.log.follow_durable_index());
        self.log
            .on_durable(Box::new(move |_| engine.gate().synced()));
        Ok(())
    }

    /// Whether entries come from elsewhere too.
    pub fn is_replicated(&self) -> bool {
        self.shared.replicator.get().is_some()
    }

    /// The term of entries that are made here from now on.
    pub fn set_term(&self, term: u64) -> Fallible<()> {
        self.log.set_term(term)?;
        self.pass_reserved_time()
    }

    /// Entries that are made here from now on, and those of each later term, are later than the time
    /// that is stored under `key` when they begin (u64 BE).
    pub fn begin_after(&self, key: Vec<u8>) -> Fallible<()> {
        // There is one for the life of the process.
        let _ = self.reserved_time.set(key);
        self.pass_reserved_time()
    }

    fn pass_reserved_time(&self) -> Fallible<()> {
        let Some(key) = self.reserved_time.get() else {
            return Ok(());
        };
        let stored = self.latest.get(key).map_err(Stop::into_error)?;
        let time = stored.and_then(|bytes| <[u8; 8]>::try_from(&*bytes).ok());
        if let Some(time) = time {
            let time = u64::from_be_bytes(time);
            self.log.advance_clock(time.saturating_add(1));
        }
        Ok(())
    }

    /// The engine's files as the engine sees them.
    pub fn engine_files(&self) -> DataFiles {
        DataFiles::new(self.engine.data_dir().key().cloned())
    }

    /// An empty loan of the cache's memory.
    pub fn cache_loan(&self) -> CacheLoan {
        CacheLoan::new(&self.engine)
    }

    /// Whether the files of the directory are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.engine.data_dir().key().is_some()
    }

    /// The data format of what the directory may hold.
    pub fn data_format(&self) -> u32 {
        self.engine.data_dir().format()
    }

    /// From now on the directory may hold entries of this data format. On disk when it returns.
    pub fn raise_data_format(&self, format: u32) -> Fallible<()> {
        self.engine.data_dir().raise(format)
    }

    /// Holds back flushes: see [`FlushGate`].
    pub fn flush_gate(&self) -> &FlushGate {
        self.engine.gate()
    }

    /// The last entry of the log, applied or not.
    pub fn log_end(&self) -> u64 {
        self.log.last_index()
    }

    /// The timestamp of the log's last entry, applied or not.
    pub fn log_end_ts(&self) -> u64 {
        self.log.last_ts()
    }

    /// Takes all entries after `index` out of the log. False, and nothing is done, where one of them
    /// is applied or being applied.
    pub fn truncate_log(&self, index: u64) -> Fallible<bool> {
        let cut = || Ok(self.log.truncate_after(index)?);
        self.committer.cut(index, cut)
    }

    /// Appends entries that another member made, all or none; they are not applied.
    pub fn append_records(&self, entries: &[Record<'_>]) -> Fallible<()> {
        let end = self.log.append_records(entries.iter().copied())?;
        assert!(
            entries.last().is_none_or(|last| last.index == end.index),
            "the log ends with what was appended"
        );
        Ok(())
    }

    /// Applies entries that are in the log and follow on the last applied one.
    pub fn apply_records(&self, entries: &[Record<'_>]) -> Fallible<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut decoded = Vec::with_capacity(entries.len());
        for record in entries {
            let entry = Entry::decode(record.payload).ok_or_else(|| unknown_form(record.index))?;
            decoded.push(entry);
        }
        let places: Vec<Committed> = entries
            .iter()
            .map(|e| Committed {
                index: e.index,
                ts: e.ts,
            })
            .collect();
        self.committer.apply_appended(&decoded, &places)
    }

    /// Why the disk or the engine refused the last write that was proposed; `None` where it took it.
    pub fn refusal(&self) -> Option<Error> {
        self.committer.refusal()
    }

    /// Grows with every write. Where it is what it was, so is all that the engine holds.
    pub fn sequence(&self) -> u64 {
        self.engine.sequence()
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
    pub fn propose(&self, entries: Vec<Entry>) -> Fallible<Committed> {
        self.propose_in(self.epoch(), entries)
    }

    /// As [`Store::propose`], for a write that was decided in `epoch`: refused if another member may
    /// have written since.
    pub fn propose_in(&self, epoch: Epoch, entries: Vec<Entry>) -> Fallible<Committed> {
        check_size(&entries)?;
        self.committer.propose(epoch, entries)
    }

    /// The current epoch: to be taken before the first look at what a write changes.
    pub fn epoch(&self) -> Epoch {
        Epoch {
            term: self.shared.replicator.get().map_or(0, |r| r.term()),
            applied_late: self.committer.applied_late(),
        }
    }

    /// Returns when no thread is between a look at its right to write and its entry in the log.
    pub fn between_appends(&self) {
        drop(self.log.group());
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

    /// As [`oplog::Log::advance_clock`].
    pub fn advance_clock(&self, ts: u64) {
        self.log.advance_clock(ts);
    }

    pub fn last_ts(&self) -> u64 {
        self.committer.applied().ts
    }

    /// The last index that is never rolled back: it survives a loss of power. Where the log is one of
    /// several members', a majority has it on disk, and this member's own disk may be behind.
    pub fn durable_index(&self) -> u64 {
        match self.is_replicated() {
            true => self.engine.gate().allowed(),
            false => self.log.durable_index(),
        }
    }

    /// The last index that is on this disk.
    pub fn synced_index(&self) -> u64 {
        self.log.durable_index()
    }

    /// A majority has the log up to `index`: flushes may bring it to disk, and its waiters are told.
    pub fn decided(&self, index: u64) {
        self.engine.gate().allow(index);
        self.log.call_back();
    }

    /// Wakes the waiters for the log.
    pub fn call_back(&self) {
        self.log.call_back();
    }

    /// Returns when no write is under way that began before.
    pub fn between_groups(&self) {
        let _ = self.committer.between_groups(|_| ());
    }

    /// Asks that appended entries become durable soon, here and on other members; [`Store::on_durable`]
    /// callbacks tell when they are.
    pub fn request_sync(&self) {
        if let Some(replicator) = self.shared.replicator.get() {
            replicator.awaited();
        }
        self.log.request_sync();
    }

    /// Asks for an fdatasync of this member's log soon.
    pub fn request_own_sync(&self) {
        self.log.request_sync();
    }

    /// As [`Store::request_sync`], but not right after another sync. For readers that follow the log.
    pub fn request_sync_soon(&self) {
        self.log.request_sync_soon();
    }

    /// Waits until `index` is durable.
    pub fn wait_durable(&self, index: u64) -> Fallible<()> {
        Ok(self.log.wait_durable(index)?)
    }

    /// Calls `callback` with the durable index after each sync, also after a failed one. A waiter
    /// whose entry it did not reach asks [`Store::healthy`]. The callback runs on the sync thread,
    /// or on a thread in `wait_durable`.
    pub fn on_durable(&self, callback: Box<dyn Fn(u64) + Send + Sync>) {
        self.log.on_durable(callback);
    }

    /// An error when the store takes no more writes until a restart.
    pub fn healthy(&self) -> Fallible<()> {
        Ok(self.log.healthy()?)
    }

    /// Entries of the log from `from` on (see [`Entry::decode`]). At the end the reader gives
    /// `None`, and may be asked again later.
    pub fn read_log(&self, from: u64) -> Fallible<LogReader> {
        Ok(self.log.read(from)?)
    }

    /// A reader that continues where another one stopped.
    pub fn read_log_at(&self, mark: LogMark) -> Fallible<LogReader> {
        Ok(self.log.read_at(mark)?)
    }

    /// A place in the log at or before the entry `index`, near it if it is among the last.
    pub fn log_mark(&self, index: u64) -> LogMark {
        self.log.mark_before(index)
    }

    /// A reader from the first kept entry whose timestamp is at least `ts`.
    pub fn seek_log(&self, ts: u64) -> Fallible<LogReader> {
        Ok(self.log.seek(ts)?)
    }

    /// The free bytes of the disk of the data; `None`: unknown.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(DiskSpace::at(self.engine.data_dir().path())?.free)
    }

    /// Says how much of its past the log keeps, from now on and after restarts.
    pub fn set_log_window(&self, window: LogWindow) -> Fallible<()> {
        log_window::save(self.engine.data_dir().path(), &window)?;
        self.log.set_window(window);
        Ok(())
    }

    /// The log keeps its entries from `index` on, whatever its window; `u64::MAX` lets go of them.
    pub fn hold_log(&self, index: u64) {
        self.log.hold(index);
    }

    /// The log keeps its entries from `index` on for the reader of this name, for `lifetime` or until
    /// the lease is renewed or ended, within the bound of all leases.
    pub fn lease_log(&self, name: &str, index: u64, lifetime: Duration) {
        self.log.lease(name, index, lifetime);
    }

    pub fn end_log_lease(&self, name: &str) {
        self.log.end_lease(name);
    }

    /// The first entry of the log that is still kept.
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
    pub fn write_unlogged(&self, effects: &[Effect]) -> Fallible<()> {
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
            lent_bytes: engine.lent(),
            temporary_files: self.temporaries.taken() as u64,
            memtable_bytes: engine.memtable_bytes(),
            batched_reads: batched_read::submitted(),
            hidden_keys: hidden_keys::of_all(),
            dead_ranges: engine.dead().dead(),
            log_leases: self.log.leases() as u64,
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
            oldest_snapshot_seconds: engine.oldest_snapshot_seconds(),
            log_bytes,
            log_window: self.log.window(),
            log_trimmed: self.log.trimmed(),
            log_segments,
            last_index: self.last_index(),
            durable_index: self.log.durable_index(),
            replayed_entries: self.replayed,
        }
    }

    /// An unnamed temporary file for data that exceeds memory; it is gone when it is closed. It
    /// lies beside the data, where an operator provides space.
    pub fn temporary_file(&self) -> Fallible<TemporaryFile> {
        let place = self.temporaries.take()?;
        let file = self.engine.data_dir().temporary_file()?;
        Ok(file.at_place(place))
    }

    /// Flushes all memtables.
    pub fn flush(&self) -> Fallible<()> {
        self.engine.flush()
    }

    /// Compacts `[low, high)`; an empty bound is none.
    pub fn compact(
        &self,
        low: &[u8],
        high: &[u8],
        go_on: &mut dyn FnMut() -> Fallible<()>,
    ) -> Fallible<()> {
        self.engine.compact(low, high, go_on)
    }

    /// A consistent copy (hard links where they can be) that is a data directory of its own, and says from which entry of which
    /// log it can be brought further ([`crate::restore`]); `dir` must not exist.
    pub fn checkpoint(&self, dir: &Path) -> Fallible<()> {
        self.engine.checkpoint(dir)?;
        // Writes during the copying of the files may be in them.
        let complete = self.last();
        let fingerprint = || -> Fallible<u64> {
            let mut reader = self.log.read(complete.index)?;
            let last = reader.next()?;
            Ok(last.map_or(0, |record| fingerprint(record.payload)))
        };
        let saved = fingerprint().and_then(|fingerprint| {
            let record = BackupRecord {
                complete,
                fingerprint,
                log: self.engine.data_dir().log(),
            };
            record.save(dir)
        });
        saved.inspect_err(|_| {
            let _ = std::fs::remove_dir_all(dir);
        })
    }

    /// The data files: name and size in bytes.
    pub fn data_files(&self) -> Fallible<Vec<(String, u64)>> {
        self.engine.files()
    }

    /// Reads a data file whole, and compares each of its blocks with its checksum; damage is known to [`crate::damage`] then.
    pub fn verify_data_file(&self, name: &str) -> Fallible<()> {
        self.engine.verify_file(name)
    }

    pub fn latches(&self) -> &Latches {
        &self.latches
    }

    /// Syncs the log and flushes the engine, so that the next start replays nothing. A store that
    /// is dropped or killed is as safe, and only starts more slowly.
    pub fn close(&self) -> Fallible<()> {
        self.keeper.stop();
        self.log.wait_durable(self.log.last_index())?;
        // What no majority has must not be on disk.
        let gate = self.engine.gate();
        if gate.allowed() >= self.last_index() {
            // A write may have come since, and the set that would let it go on has stopped.
            self.engine.flush_while(|| gate.is_open())?;
        }
        maintenance::trim_log(&self.log, &self.engine)
    }
}

fn unknown_form(index: u64) -> Error {
    err!(
        UnsupportedFormat,
        "entry {index} of the log has a form that this version does not know"
    )
}

/// Opens the log and applies the entries that the engine lacks.
fn replay(
    opts: LogOptions,
    engine: &Engine,
    counts: &Counts,
    applied: Committed,
    limits: &StoreOptions,
) -> Fallible<(Log, u64, Committed)> {
    let mut replay = Replay::new(engine, counts);
    let mut last = applied;
    let mut up_to = limits.apply_up_to;
    let (log, recovered) = Log::open(opts, applied.index + 1, applied.ts, |record| {
        if record.wall_millis > limits.apply_made_before {
            // Later entries wait too, whatever their clock has said.
            up_to = up_to.min(record.index - 1);
        }
        if record.index > up_to {
            return Ok(());
        }
        assert_eq!(
            record.index,
            last.index + 1,
            "entries are replayed in their order, and none is left out"
        );
        last = Committed {
            index: record.index,
            ts: record.ts,
        };
        replay.entry(&record).map(drop)
    })?;
    replay.finish()?;
    // A state that is ahead of the log has the index at which the log goes on.
    if up_to == u64::MAX {
        last = Committed {
            index: log.last_index(),
            ts: log.last_ts(),
        };
    }
    assert!(
        last.index >= applied.index,
        "what is applied stays applied over a start"
    );
    Ok((log, recovered.replayed, last))
}
