//! The RocksDB adapter: writing of batches, checkpoints, figures. Nothing outside this file, `tuning`, `trouble` and `view` knows
//! the engine.
//!
//! One column family, no write-ahead log of its own. Every group of the log is one write batch that also carries the applied
//! index, so what is on disk is always a prefix of the log together with the index where it ends.
//!
//! The C interface is called directly where the safe wrapper would copy or allocate for each record; the wrapper builds the
//! options and owns the database.

use crate::data_dir::{self, DataDir};
use crate::rows::{Rows, Writing};
use crate::trouble::Trouble;
use crate::tuning::{EngineOptions, Load, Tuned};
use crate::view::ReadOptions;
use crate::{Committed, Effect};
use errors::{Error, Result, err};
use rocksdb::{AsRawPtr, DB};
use rocksdb_sys as ffi;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Where the applied index lies: tablet 0, space 0, index 0, "applied".
const APPLIED_KEY: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\0\0applied";
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
    trouble: Arc<Trouble>,
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

impl Engine {
    pub fn open(data_dir: DataDir, opts: &EngineOptions) -> Result<Engine> {
        Engine::open_as(data_dir, opts, false)
    }

    /// As it is on disk: nothing is changed, writing fails.
    pub fn open_to_read(data_dir: DataDir, opts: &EngineOptions) -> Result<Engine> {
        Engine::open_as(data_dir, opts, true)
    }

    fn open_as(data_dir: DataDir, opts: &EngineOptions, read_only: bool) -> Result<Engine> {
        let trouble = Arc::new(Trouble::default());
        let Tuned {
            options,
            block_cache,
            memtables,
        } = Tuned::new(opts, &trouble)?;
        let dir = data_dir.engine();
        let db = match read_only {
            false => DB::open(&options, dir),
            true => DB::open_for_read_only(&options, dir, false),
        };
        let db = db.map_err(|e| error(&e.into_string()))?;
        // SAFETY: the handles live as long as `db`, which the engine owns; the write options are destroyed with it.
        unsafe {
            let raw = db.as_raw_ptr();
            let write_options = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_disable_WAL(write_options, 1);
            Ok(Engine {
                raw,
                default_family: ffi::rocksdb_get_default_column_family_handle(raw),
                write_options,
                cache_capacity: opts.cache_bytes(),
                block_cache,
                rows: Some(opts.row_bytes()).filter(|b| *b > 0).map(Rows::new),
                memtables,
                trouble,
                db,
                _data_dir: data_dir,
            })
        }
    }

    /// Makes the engine's bookkeeping anew out of the data files in `dir`.
    pub fn rebuild(dir: &Path, opts: &EngineOptions) -> Result<()> {
        let tuned = Tuned::new(opts, &Arc::default())?;
        DB::repair(&tuned.options, dir).map_err(|e| error(&e.into_string()))
    }

    /// An error while the engine takes no writes because a flush or a merge has failed. To be asked before a group goes into the
    /// log: it would be refused after.
    pub fn takes_writes(&self) -> Result<()> {
        if !self.trouble.is_known() {
            return Ok(());
        }
        // The engine recovers by itself when there is space again, and tells nobody: an empty write shows it.
        let probe = Batch::new();
        self.write(&probe)
            .map_err(|e| self.trouble.explain(&e))
            .inspect(|()| self.trouble.forget())
    }

    /// Reads every block of every file and compares checksums; the error names the first file that is damaged.
    pub fn verify_files(&self) -> Result<()> {
        let mut failure: *mut c_char = ptr::null_mut();
        let options = ReadOptions::new();
        // SAFETY: both live during the call.
        unsafe {
            ffi::rocksdb_verify_checksum_with_options(self.raw, options.raw(), &mut failure);
        }
        check(failure)
    }

    /// The data files: name and bytes.
    pub fn files(&self) -> Result<Vec<(String, u64)>> {
        let files = self.db.live_files().map_err(|e| error(&e.into_string()))?;
        Ok(files
            .into_iter()
            .map(|f| (f.name.trim_start_matches('/').to_string(), f.size as u64))
            .collect())
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

    /// A copy that is itself a data directory without a log. After an error nothing of it is left.
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::StorageFull => {
                err!(OutOfDiskSpace, "no space left for {}: {e}", dir.display())
            }
            _ => err!(FileNotOpen, "cannot write {}: {e}", dir.display()),
        };
        std::fs::create_dir(dir).map_err(io)?;
        let copied = rocksdb::checkpoint::Checkpoint::new(&self.db)
            .and_then(|c| c.create_checkpoint(dir.join("engine")))
            .map_err(|e| error(&e.into_string()))
            // The stamp comes last: a directory that has it is whole.
            .and_then(|()| data_dir::write_stamp(dir).map_err(io));
        if copied.is_err() {
            let _ = std::fs::remove_dir_all(dir);
        }
        copied
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

    /// Files on level 0, which a scan has to look into one by one.
    pub fn level_zero_files(&self) -> u64 {
        self.db
            .property_value(c"rocksdb.num-files-at-level0")
            .ok()
            .flatten()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Why the engine last failed in the background, and how often it has.
    pub fn last_trouble(&self) -> Option<String> {
        self.trouble.last()
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
