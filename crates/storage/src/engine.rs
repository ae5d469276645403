//! The RocksDB adapter: options, writing of batches, figures. Nothing outside this file and `view` knows the engine.
//!
//! One column family, no write-ahead log of its own. Every group of the log is one write batch that also carries the applied
//! index, so what is on disk is always a prefix of the log together with the index where it ends.
//!
//! The C interface is called directly where the safe wrapper would copy or allocate for each record; the wrapper builds the
//! options and owns the database.

use crate::data_dir::{self, DataDir};
use crate::rows::{Rows, Writing};
use crate::view::ReadOptions;
use crate::{Committed, Effect};
use errors::{Error, Result, err};
use rocksdb::{AsRawPtr, DB};
use rocksdb_sys as ffi;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;

/// Where the applied index lies: tablet 0, space 0, index 0, "applied".
const APPLIED_KEY: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\0\0applied";
/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Blocks, rows and memtables together.
    pub cache_bytes: usize,
    /// The share of the cache that keeps whole records; 0 turns that off.
    pub row_percent: u8,
    pub block_bytes: usize,
    pub background_jobs: usize,
}

/// How much is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Idle,
    Moderate,
    Heavy,
}

impl Load {
    /// How many files wait on level 0 before they are merged. Each makes a scan dearer, each merge costs as much as the inserts
    /// that it merges: under load many are merged at once, at rest none is left.
    fn level_zero_files(self) -> i32 {
        match self {
            Load::Idle => 2,
            Load::Moderate => 4,
            Load::Heavy => 8,
        }
    }
}

pub(crate) struct Engine {
    db: DB,
    raw: *mut ffi::rocksdb_t,
    default_family: *mut ffi::rocksdb_column_family_handle_t,
    write_options: *mut ffi::rocksdb_writeoptions_t,
    cache_capacity: usize,
    block_cache: rocksdb::Cache,
    /// Records by key, in front of the blocks; none when they have no share of the cache.
    rows: Option<Rows>,
    memtables: rocksdb::WriteBufferManager,
    /// Locked for as long as anything may still read the files, which a view may do after the store is gone.
    _data_dir: DataDir,
}

// SAFETY: RocksDB's database handle, write options and caches may be used from any thread at once.
unsafe impl Send for Engine {}
unsafe impl Sync for Engine {}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by `open`, used by nobody else any more.
        unsafe {
            ffi::rocksdb_column_family_handle_destroy(self.default_family);
            ffi::rocksdb_writeoptions_destroy(self.write_options);
        }
    }
}

/// Below this nothing works well.
fn cache_bytes(opts: &EngineOptions) -> usize {
    opts.cache_bytes.max(8 << 20)
}

fn row_bytes(opts: &EngineOptions) -> usize {
    cache_bytes(opts) / 100 * usize::from(opts.row_percent.min(90))
}

/// The engine's options out of ours; also the caches, which the options share.
fn options(
    opts: &EngineOptions,
) -> (
    rocksdb::Options,
    rocksdb::Cache,
    rocksdb::WriteBufferManager,
) {
    let cache_bytes = cache_bytes(opts);
    // Zero for the size of an entry: the table of the cache grows with what is in it.
    let block_cache = rocksdb::Cache::new_hyper_clock_cache(cache_bytes - row_bytes(opts), 0);

    // What the memtables hold is what recovery replays: at most this many full ones. A larger one makes each insertion dearer
    // (it no longer fits the processor's caches), a smaller one makes more files to merge.
    let memtable_count = 4;
    let memtable_bytes = (cache_bytes / 16).clamp(1 << 20, 64 << 20);
    let memtables = rocksdb::WriteBufferManager::new_write_buffer_manager_with_cache(
        memtable_bytes * memtable_count,
        false,
        block_cache.clone(),
    );

    let mut table = rocksdb::BlockBasedOptions::default();
    table.set_block_cache(&block_cache);
    table.set_block_size(opts.block_bytes);
    table.set_format_version(6);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(10.0, false);
    table.set_whole_key_filtering(true);
    table.set_data_block_index_type(rocksdb::DataBlockIndexType::BinaryAndHash);
    table.set_data_block_hash_ratio(0.75);

    let mut o = rocksdb::Options::default();
    o.create_if_missing(true);
    o.set_block_based_table_factory(&table);
    o.set_write_buffer_manager(&memtables);
    o.set_write_buffer_size(memtable_bytes);
    o.set_max_write_buffer_number(memtable_count as i32);
    // One group is written at a time: the cheaper insertion, which remembers where the last one was, is the right one.
    o.set_allow_concurrent_memtable_write(false);
    o.set_enable_write_thread_adaptive_yield(false);
    o.set_memtable_whole_key_filtering(true);
    o.set_memtable_prefix_bloom_ratio(0.02);
    // SAFETY: a setter on options that live.
    unsafe { ffi::rocksdb_options_set_avoid_flush_during_shutdown(o.as_raw_ptr(), 1) };
    // The last user of a snapshot must not delete files: it may be an event loop.
    o.set_avoid_unnecessary_blocking_io(true);

    o.set_level_compaction_dynamic_level_bytes(true);
    o.set_max_bytes_for_level_base((memtable_bytes * 8) as u64);
    o.set_target_file_size_base((memtable_bytes as u64 * 2).max(8 << 20));
    o.set_level_zero_file_num_compaction_trigger(Load::Moderate.level_zero_files());
    o.set_compression_type(rocksdb::DBCompressionType::Lz4);
    // The first entry is level 0, the next the first level below it, wherever that is. Level 0 is merged within seconds: not
    // worth compressing. Zstandard only begins where the data has outgrown two levels of the fast one: until then it would be
    // paid at every merge and save space that nobody lacks.
    {
        use rocksdb::DBCompressionType::{Lz4, None as Plain, Zstd};
        o.set_compression_per_level(&[Plain, Lz4, Lz4, Zstd, Zstd, Zstd, Zstd]);
    }
    // Level -1 is the plain algorithm of LZ4 (a positive one would be its slow variant) and the fast one of Zstandard.
    o.set_compression_options(-14, -1, 0, 0);
    o.set_max_background_jobs(i32::try_from(opts.background_jobs.max(2)).unwrap_or(2));
    o.set_bytes_per_sync(1 << 20);
    // Small writes, for the reason that the log has for its own.
    o.set_writable_file_max_buffer_size(32 << 10);
    // Writers are slowed softly and late; stopping them is the last resort.
    o.set_level_zero_slowdown_writes_trigger(24);
    o.set_level_zero_stop_writes_trigger(48);
    unsafe { ffi::rocksdb_options_set_delayed_write_rate(o.as_raw_ptr(), 64 << 20) };

    o.set_max_open_files(1000);
    o.set_skip_stats_update_on_db_open(true);
    o.set_stats_dump_period_sec(0);
    o.set_stats_persist_period_sec(0);
    o.set_keep_log_file_num(3);
    o.set_max_log_file_size(8 << 20);
    o.set_log_level(rocksdb::LogLevel::Warn);
    (o, block_cache, memtables)
}

/// The options and one that the C interface cannot set: for each index of each collection (the first 13 bytes of a key) the
/// engine remembers where it inserted last. Keys that grow, as generated ids and dates do, then find their place at once.
fn with_insert_hints(base: &rocksdb::Options) -> Result<rocksdb::Options> {
    let options = rocksdb::Options::default();
    let mut failure: *mut c_char = ptr::null_mut();
    // SAFETY: both sets of options and the string live during the call; caches and tables are shared, not copied.
    unsafe {
        ffi::rocksdb_get_options_from_string(
            base.as_raw_ptr(),
            c"memtable_insert_with_hint_prefix_extractor=fixed:13".as_ptr(),
            options.as_raw_ptr(),
            &mut failure,
        );
    }
    check(failure)?;
    Ok(options)
}

impl Engine {
    pub fn open(data_dir: DataDir, opts: &EngineOptions) -> Result<Engine> {
        let (options, block_cache, memtables) = options(opts);
        let options = with_insert_hints(&options)?;
        let db = DB::open(&options, data_dir.engine()).map_err(|e| error(&e.into_string()))?;
        // SAFETY: the handles live as long as `db`, which the engine owns; the write options are destroyed with it.
        unsafe {
            let raw = db.as_raw_ptr();
            let write_options = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_disable_WAL(write_options, 1);
            Ok(Engine {
                raw,
                default_family: ffi::rocksdb_get_default_column_family_handle(raw),
                write_options,
                cache_capacity: cache_bytes(opts),
                block_cache,
                rows: Some(row_bytes(opts)).filter(|b| *b > 0).map(Rows::new),
                memtables,
                db,
                _data_dir: data_dir,
            })
        }
    }

    pub fn raw(&self) -> *mut ffi::rocksdb_t {
        self.raw
    }

    pub fn default_family(&self) -> *mut ffi::rocksdb_column_family_handle_t {
        self.default_family
    }

    pub fn rows(&self) -> Option<&Rows> {
        self.rows.as_ref()
    }

    /// The number of the newest change that readers can see.
    pub fn sequence(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { ffi::rocksdb_get_latest_sequence_number(self.raw) }
    }

    /// Applies a batch that consists of `effects` (and of keys of the storage room's own).
    pub fn apply<'a, I>(&self, batch: &Batch, effects: I, writing: &mut Writing) -> Result<()>
    where
        I: Iterator<Item = &'a Effect> + Clone,
    {
        let Some(rows) = &self.rows else {
            return self.write(batch);
        };
        rows.begin(effects.clone(), writing);
        let outcome = self.write(batch);
        rows.finish(effects, writing, self.sequence(), outcome.is_ok());
        outcome
    }

    /// Writes a batch of which no reader can have a row yet.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        let mut failure: *mut c_char = ptr::null_mut();
        // SAFETY: all three live during the call.
        unsafe { ffi::rocksdb_write(self.raw, self.write_options, batch.0, &mut failure) };
        check(failure)
    }

    /// Up to where the log is applied at least, as it would be after a crash now when `persisted`. A group that changes counts
    /// says it there instead (see `counts`), so this may be behind by some groups.
    pub fn applied(&self, persisted: bool) -> Result<Committed> {
        let options = ReadOptions::new();
        if persisted {
            options.persisted_only();
        }
        let mut failure: *mut c_char = ptr::null_mut();
        // SAFETY: key and options live during the call; the value is copied before it is destroyed.
        let value = unsafe {
            let v = ffi::rocksdb_get_pinned(
                self.raw,
                options.raw(),
                APPLIED_KEY.as_ptr().cast(),
                APPLIED_KEY.len(),
                &mut failure,
            );
            check(failure)?;
            if v.is_null() {
                return Ok(Committed::default());
            }
            let mut len = 0;
            let data = ffi::rocksdb_pinnableslice_value(v, &mut len);
            let value = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
            ffi::rocksdb_pinnableslice_destroy(v);
            value
        };
        let field = |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
        match (field(0), field(8)) {
            (Some(index), Some(ts)) => Ok(Committed { index, ts }),
            _ => Err(Error::internal("the engine's applied index is damaged")),
        }
    }

    pub fn approximate_size(&self, low: &[u8], high: &[u8]) -> u64 {
        // An empty bound at the end: no key of ours begins with sixteen bytes of 0xff.
        let high = if high.is_empty() { &[0xff; 16] } else { high };
        let (low_ptr, low_len) = (low.as_ptr().cast::<c_char>(), low.len());
        let (high_ptr, high_len) = (high.as_ptr().cast::<c_char>(), high.len());
        let (memtables, files) = (1, 2);
        let mut size = 0u64;
        let mut failure: *mut c_char = ptr::null_mut();
        // SAFETY: one range, whose bounds live during the call.
        unsafe {
            ffi::rocksdb_approximate_sizes_cf_with_flags(
                self.raw,
                self.default_family,
                1,
                &low_ptr,
                &low_len,
                &high_ptr,
                &high_len,
                memtables | files,
                &mut size,
                &mut failure,
            );
        }
        check(failure).map_or(0, |()| size)
    }

    pub fn flush(&self) -> Result<()> {
        self.db.flush().map_err(|e| error(&e.into_string()))
    }

    /// Has the memory tables written out in the background.
    pub fn begin_flush(&self) -> Result<()> {
        let mut options = rocksdb::FlushOptions::default();
        options.set_wait(false);
        self.db
            .flush_opt(&options)
            .map_err(|e| error(&e.into_string()))
    }

    pub fn compact(&self, low: &[u8], high: &[u8]) {
        let low = (!low.is_empty()).then_some(low);
        let high = (!high.is_empty()).then_some(high);
        self.db.compact_range(low, high);
    }

    /// A copy that is itself a data directory without a log.
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        let io = |e: std::io::Error| err!(FileNotOpen, "cannot write {}: {e}", dir.display());
        std::fs::create_dir(dir).map_err(io)?;
        rocksdb::checkpoint::Checkpoint::new(&self.db)
            .and_then(|c| c.create_checkpoint(dir.join("engine")))
            .map_err(|e| error(&e.into_string()))?;
        data_dir::write_stamp(dir).map_err(io)
    }

    /// Adapts merging to what is being written.
    pub fn set_load(&self, load: Load) -> Result<()> {
        let files = load.level_zero_files().to_string();
        self.db
            .set_options(&[("level0_file_num_compaction_trigger", &files)])
            .map_err(|e| error(&e.into_string()))
    }

    /// An integer property, 0 when there is none.
    pub fn figure(&self, name: &CStr) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or(0)
    }

    /// Whether writers are slowed or stopped until flushing or merging has caught up.
    pub fn is_holding_back(&self) -> bool {
        self.figure(c"rocksdb.actual-delayed-write-rate") > 0
            || self.figure(c"rocksdb.is-write-stopped") > 0
    }

    pub fn cache_capacity(&self) -> u64 {
        self.cache_capacity as u64
    }

    pub fn cache_used(&self) -> u64 {
        (self.block_cache.get_usage() + self.rows.as_ref().map_or(0, Rows::used)) as u64
    }

    pub fn cache_pinned(&self) -> u64 {
        self.block_cache.get_pinned_usage() as u64
    }

    pub fn memtable_bytes(&self) -> u64 {
        self.memtables.get_usage() as u64
    }
}

/// A write batch of the engine, used again and again.
pub(crate) struct Batch(*mut ffi::rocksdb_writebatch_t);

// SAFETY: used by one thread at a time.
unsafe impl Send for Batch {}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { ffi::rocksdb_writebatch_destroy(self.0) }
    }
}

impl Batch {
    pub fn new() -> Batch {
        // SAFETY: plain allocation.
        Batch(unsafe { ffi::rocksdb_writebatch_create() })
    }

    /// Empties it; its memory is kept unless it is more than `keep_bytes`.
    pub fn clear(&mut self, keep_bytes: usize) {
        if self.len() > keep_bytes {
            *self = Batch::new();
        } else {
            // SAFETY: our own batch.
            unsafe { ffi::rocksdb_writebatch_clear(self.0) }
        }
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY (here and below): the bytes are copied into our own batch.
        unsafe {
            ffi::rocksdb_writebatch_put(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    pub fn delete(&mut self, key: &[u8]) {
        unsafe { ffi::rocksdb_writebatch_delete(self.0, key.as_ptr().cast(), key.len()) }
    }

    pub fn delete_range(&mut self, low: &[u8], high: &[u8]) {
        unsafe {
            ffi::rocksdb_writebatch_delete_range(
                self.0,
                low.as_ptr().cast(),
                low.len(),
                high.as_ptr().cast(),
                high.len(),
            );
        }
    }

    pub fn push(&mut self, effect: &Effect) {
        match effect {
            Effect::Put(key, value) => self.put(key, value),
            Effect::Delete(key) => self.delete(key),
            Effect::DeleteRange(low, high) => self.delete_range(low, high),
        }
    }

    /// Adds where the log is applied up to with this batch.
    pub fn set_applied(&mut self, at: Committed) {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&at.index.to_le_bytes());
        value[8..].copy_from_slice(&at.ts.to_le_bytes());
        self.put(APPLIED_KEY, &value);
    }

    pub fn len(&self) -> usize {
        let mut len = 0;
        unsafe { ffi::rocksdb_writebatch_data(self.0, &mut len) };
        len
    }
}

/// Takes over an error string of the C interface.
pub(crate) fn check(failure: *mut c_char) -> Result<()> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: a string allocated by RocksDB, ours to free.
    let message = unsafe {
        let message = CStr::from_ptr(failure).to_string_lossy().into_owned();
        ffi::rocksdb_free(failure.cast());
        message
    };
    Err(error(&message))
}

/// The one place where the engine's statuses become errors of ours.
pub(crate) fn error(message: &str) -> Error {
    // A cache-only read that met a block on disk; all other "incomplete" results come from it too.
    if message.starts_with("Result incomplete") {
        return Error::offload();
    }
    if message.contains("No space left on device") || message.contains("Disk quota exceeded") {
        return err!(
            OutOfDiskSpace,
            "no space left for the data files: {message}"
        );
    }
    if message.starts_with("Corruption") {
        return err!(
            UnrecoverableRollbackError,
            "the data files are damaged: {message}"
        );
    }
    if message.starts_with("Shutdown in progress") {
        return err!(ShutdownInProgress, "the storage engine is shutting down");
    }
    Error::internal(format!("storage engine: {message}"))
}
