//! The RocksDB adapter: writing of batches, checkpoints, figures. Only this file, `tuning`,
//! `background_error`, `view` and `engine_scan` know the engine.
//!
//! The column families (see `family`) are flushed together; the engine's own write-ahead log is
//! off. Every group of the log is one write batch that also carries the applied index. So the state
//! on disk is always a prefix of the log, together with the index where it ends.
//!
//! Where the safe wrapper would copy or allocate for each record, the C interface is called
//! directly. The wrapper builds the options and owns the database.

use crate::at_rest;
use crate::background_error::BackgroundError;
use crate::batch::Batch;
use crate::cache_balance::Shares;
use crate::compaction_ranges::cuts;
use crate::data_dir::{self, DataDir};
use crate::dead_ranges::DeadRanges;
use crate::encrypted_env;
use crate::family::Family;
use crate::ghost_list::Ghost;
use crate::record_cache::{Rows, Writing};
use crate::replicator::FlushGate;
use crate::tuning::{EngineOptions, Load, TunedOptions, records_compression};
use crate::view::ReadOptions;
use crate::{Committed, Effect};
use encryption::DataKey;
use errors::{Error, Fallible, Suspension, err};
use parking_lot::Mutex;
use rocksdb::{AsColumnFamilyRef, AsRawPtr, ColumnFamily, ColumnFamilyDescriptor, DB};
use rocksdb_sys as ffi;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The key of the applied index: tablet 0, space 0, index 0, "applied".
pub(crate) const APPLIED_KEY: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\0\0applied";
/// The key of the mark that [`Engine::flush`] writes and waits for.
const FLUSHED_KEY: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\0\0flushed";
/// How long `flush` waits for its mark, how often it looks for the mark, and when it asks for
/// another flush.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);
const FLUSH_LOOK: Duration = Duration::from_millis(1);
const FLUSH_LOOKS: u32 = 200;

/// The handles of the column families; they live as long as the engine.
#[derive(Clone, Copy)]
pub(crate) struct Families {
    records: *mut ffi::rocksdb_column_family_handle_t,
    ids: *mut ffi::rocksdb_column_family_handle_t,
    others: *mut ffi::rocksdb_column_family_handle_t,
}

impl Families {
    pub fn handle(&self, family: Family) -> *mut ffi::rocksdb_column_family_handle_t {
        match family {
            Family::Records => self.records,
            Family::Ids => self.ids,
            Family::Others => self.others,
        }
    }

    /// The handle of the family of `key`.
    pub fn of(&self, key: &[u8]) -> *mut ffi::rocksdb_column_family_handle_t {
        self.handle(Family::of(key))
    }
}

pub(crate) struct Engine {
    db: DB,
    raw: *mut ffi::rocksdb_t,
    families: Families,
    write_options: *mut ffi::rocksdb_writeoptions_t,
    cache_capacity: usize,
    background_jobs: i32,
    block_cache: rocksdb::Cache,
    blocks_ghost: Arc<Ghost>,
    shares: Mutex<Shares>,
    /// The record cache; `None` when it is turned off.
    rows: Option<Rows>,
    memtables: rocksdb::WriteBufferManager,
    /// Where nothing lives.
    dead: DeadRanges,
    /// One write at a time: dead ranges number them.
    writing: Mutex<()>,
    /// One thread at a time waits for a flush.
    flushing: Mutex<()>,
    trouble: Arc<BackgroundError>,
    /// Locked as long as anything may read the files: a view may outlive the store.
    data_dir: DataDir,
}

// SAFETY: RocksDB's database handle, write options and caches may be used from any thread at once.
unsafe impl Send for Engine {}
unsafe impl Sync for Engine {}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by `open`; nothing else uses them any more.
        unsafe {
            ffi::rocksdb_writeoptions_destroy(self.write_options);
        }
    }
}

impl Engine {
    pub fn open(data_dir: DataDir, opts: &EngineOptions) -> Fallible<Engine> {
        Engine::open_as(data_dir, opts, false)
    }

    /// Opens the engine read-only: nothing on disk is changed, and writes fail.
    pub fn open_to_read(data_dir: DataDir, opts: &EngineOptions) -> Fallible<Engine> {
        Engine::open_as(data_dir, opts, true)
    }

    fn open_as(data_dir: DataDir, opts: &EngineOptions, read_only: bool) -> Fallible<Engine> {
        data_dir.check_books()?;
        let trouble = Arc::new(BackgroundError::default());
        let encrypted = data_dir.key().map(encrypted_env::of);
        let tuned = TunedOptions::new(opts, &trouble, encrypted)?;
        let families = Family::ALL
            .map(|family| ColumnFamilyDescriptor::new(family.name(), tuned.of(family).clone()));
        let dir = data_dir.engine();
        let db = match read_only {
            false => DB::open_cf_descriptors(tuned.of(Family::Others), dir, families),
            true => {
                DB::open_cf_descriptors_read_only(tuned.of(Family::Others), dir, families, false)
            }
        };
        let db = db.map_err(|e| error(&e.into_string()))?;
        let families = Families {
            records: handle(&db, Family::Records)?.inner(),
            ids: handle(&db, Family::Ids)?.inner(),
            others: handle(&db, Family::Others)?.inner(),
        };
        // SAFETY: the handles live as long as `db`, which the engine owns; the write options are
        // destroyed with it.
        unsafe {
            let raw = db.as_raw_ptr();
            let write_options = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_disable_WAL(write_options, 1);
            Ok(Engine {
                raw,
                families,
                write_options,
                cache_capacity: opts.cache_bytes(),
                background_jobs: opts.background_jobs(),
                block_cache: tuned.block_cache,
                blocks_ghost: tuned.blocks_ghost,
                shares: Mutex::new(Shares::new(
                    opts.cache_bytes(),
                    opts.row_bytes(),
                    tuned.memtable_bytes,
                )),
                rows: Some(opts.row_bytes())
                    .filter(|bytes| *bytes > 0)
                    .map(|bytes| Rows::new(bytes, opts.cache_bytes())),
                memtables: tuned.memtables,
                dead: DeadRanges::new(opts.dead_ranges()?),
                writing: Mutex::new(()),
                flushing: Mutex::new(()),
                trouble,
                db,
                data_dir,
            })
        }
    }

    /// Rebuilds the engine's manifest from the data files in `dir`.
    pub fn rebuild(dir: &Path, opts: &EngineOptions, key: Option<&DataKey>) -> Fallible<()> {
        let tuned = TunedOptions::new(opts, &Arc::default(), key.map(encrypted_env::of))?;
        DB::repair(tuned.of(Family::Others), dir).map_err(|e| error(&e.into_string()))
    }

    /// An error while the engine takes no writes because a flush or a compaction has failed. Called
    /// before a group goes into the log, because the engine would refuse it afterwards.
    pub fn takes_writes(&self) -> Fallible<()> {
        if !self.trouble.is_known() {
            return Ok(());
        }
        // The engine recovers by itself when there is space again, and does not report it. An empty
        // write shows it.
        let probe = Batch::new(self);
        self.write(&probe)
            .map_err(|e| self.trouble.explain(&e))
            .inspect(|()| self.trouble.forget())
    }

    /// Reads every block of every file and verifies checksums; the error names the first damaged
    /// file.
    pub fn verify_files(&self) -> Fallible<()> {
        let mut failure: *mut c_char = ptr::null_mut();
        let options = ReadOptions::new();
        // SAFETY: both live during the call.
        unsafe {
            ffi::rocksdb_verify_checksum_with_options(self.raw, options.raw(), &mut failure);
        }
        check(failure)
    }

    /// The same of one file. One that is not there any more, since it was merged into others, is well.
    pub fn verify_file(&self, name: &str) -> Fallible<()> {
        unsafe extern "C" {
            fn pando_verify_file(path: *const c_char, env: *mut c_void) -> *mut c_char;
        }
        let path = self.data_dir.engine().join(name);
        let shown = CString::new(path.as_os_str().as_encoded_bytes());
        let shown = shown.map_err(|_| Error::internal("a data file's name has a zero in it"))?;
        let encrypted = self.data_dir.key().map(encrypted_env::of);
        let env = encrypted.map_or(ptr::null_mut(), |env| env.0);
        // SAFETY: the path lives during the call, the environment for ever; what comes back is ours.
        let failure = unsafe { pando_verify_file(shown.as_ptr(), env) };
        match failure.is_null() || !path.exists() {
            true if failure.is_null() => Ok(()),
            true => {
                taken(failure);
                Ok(())
            }
            false => check(failure),
        }
    }

    /// The data files: name and size in bytes.
    pub fn files(&self) -> Fallible<Vec<(String, u64)>> {
        let files = self.db.live_files().map_err(|e| error(&e.into_string()))?;
        Ok(files
            .into_iter()
            .map(|f| (f.name.trim_start_matches('/').to_string(), f.size as u64))
            .collect())
    }

    pub fn data_dir(&self) -> &DataDir {
        &self.data_dir
    }

    pub fn raw(&self) -> *mut ffi::rocksdb_t {
        self.raw
    }

    pub fn families(&self) -> Families {
        self.families
    }

    /// Divides the memory between rows and blocks. With `weigh` (once a second) the shares follow
    /// the ghost lists of both.
    pub fn share(&self, weigh: bool) {
        let Some(rows) = &self.rows else {
            return;
        };
        let mut shares = self.shares.lock();
        if weigh {
            shares.weigh(
                rows.take_spared(),
                self.blocks_ghost.take_spared(),
                rows.used(),
            );
        }
        self.divide(&mut shares, Some(rows));
    }

    fn divide(&self, shares: &mut Shares, rows: Option<&Rows>) {
        let blocks = match rows {
            None => shares.own(),
            Some(rows) => {
                let Some((bytes, blocks)) = shares.divide(self.memtables.get_usage()) else {
                    return;
                };
                rows.set_bytes(bytes);
                blocks
            }
        };
        self.block_cache.clone().set_capacity(blocks);
    }

    /// Whether one who had `before` bytes of the cache for something else may have `bytes`.
    pub fn lend(&self, before: usize, bytes: usize) -> bool {
        let mut shares = self.shares.lock();
        let lends = shares.lend(before, bytes);
        if lends {
            self.divide(&mut shares, self.rows.as_ref());
        }
        lends
    }

    /// What is lent of the cache, in bytes.
    pub fn lent(&self) -> u64 {
        self.shares.lock().lent() as u64
    }

    /// The current share of the record cache, in bytes.
    pub fn row_share(&self) -> u64 {
        self.rows.as_ref().map_or(0, |_| self.shares.lock().given()) as u64
    }

    pub fn rows(&self) -> Option<&Rows> {
        self.rows.as_ref()
    }

    /// The sequence number of the newest change that readers can see.
    pub fn sequence(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { ffi::rocksdb_get_latest_sequence_number(self.raw) }
    }

    /// Applies a batch. `effects` are its changes that may concern an existing record.
    pub fn apply<'a, I>(&self, batch: &Batch, effects: I, writing: &mut Writing) -> Fallible<()>
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

    /// Writes a batch that concerns no row of the record cache. There is no other way to the
    /// engine: dead ranges that a put ends are ended here.
    pub fn write(&self, batch: &Batch) -> Fallible<()> {
        let mut failure: *mut c_char = ptr::null_mut();
        let writing = self.writing.lock();
        let under_way = self.dead.begin(|each| batch.each_put(each));
        // SAFETY: all three live during the call.
        unsafe { ffi::rocksdb_write(self.raw, self.write_options, batch.raw(), &mut failure) };
        drop(under_way);
        drop(writing);
        check(failure)?;
        if !batch.places().is_empty() {
            self.dead.look_around(batch.places().iter().cloned());
        }
        Ok(())
    }

    pub fn dead(&self) -> &DeadRanges {
        &self.dead
    }

    /// A lower bound of the applied index; when `persisted`, as it would be after a crash now. A
    /// group that changes counts writes its index there instead (see `counts`), so this value may
    /// lag by some groups.
    pub fn applied(&self, persisted: bool) -> Fallible<Committed> {
        let Some(value) = self.value(APPLIED_KEY, persisted)? else {
            return Ok(Committed::default());
        };
        let field = |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
        match (field(0), field(8)) {
            (Some(index), Some(ts)) => Ok(Committed { index, ts }),
            _ => Err(Error::internal("the engine's applied index is damaged")),
        }
    }

    /// The value under one of the engine's own bookkeeping keys.
    fn value(&self, key: &[u8], persisted: bool) -> Fallible<Option<Vec<u8>>> {
        let options = ReadOptions::new();
        if persisted {
            options.persisted_only();
        }
        let mut failure: *mut c_char = ptr::null_mut();
        // SAFETY: key and options live during the call; the value is copied before it is destroyed.
        let value = unsafe {
            let v = ffi::rocksdb_get_pinned_cf(
                self.raw,
                options.raw(),
                self.families.others,
                key.as_ptr().cast(),
                key.len(),
                &mut failure,
            );
            check(failure)?;
            if v.is_null() {
                return Ok(None);
            }
            let mut len = 0;
            let data = ffi::rocksdb_pinnableslice_value(v, &mut len);
            let value = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
            ffi::rocksdb_pinnableslice_destroy(v);
            value
        };
        Ok(Some(value))
    }

    pub fn approximate_size(&self, low: &[u8], high: &[u8]) -> u64 {
        // An empty bound means the end: no key begins with sixteen bytes of 0xff.
        let high = if high.is_empty() { &[0xff; 16] } else { high };
        let (low_ptr, low_len) = (low.as_ptr().cast::<c_char>(), low.len());
        let (high_ptr, high_len) = (high.as_ptr().cast::<c_char>(), high.len());
        let (memtables, files) = (1, 2);
        let mut total = 0;
        for &family in Family::of_range(low, high) {
            let mut size = 0u64;
            let mut failure: *mut c_char = ptr::null_mut();
            // SAFETY: one range, whose bounds live during the call.
            unsafe {
                ffi::rocksdb_approximate_sizes_cf_with_flags(
                    self.raw,
                    self.families.handle(family),
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
            total += check(failure).map_or(0, |()| size);
        }
        total
    }

    /// Flushes all memtables. When it returns, all earlier writes are in the data files.
    pub fn flush(&self) -> Fallible<()> {
        let _one = self.flushing.lock();
        let mark = self.mark_flush()?;
        let begun = Instant::now();
        while begun.elapsed() < FLUSH_PATIENCE {
            self.flush_all(true)?;
            for _ in 0..FLUSH_LOOKS {
                if self.is_flushed(&mark)? {
                    return Ok(());
                }
                self.takes_writes()?;
                std::thread::sleep(FLUSH_LOOK);
            }
        }
        Err(Error::internal("the engine does not write out its memory"))
    }

    /// As [`Engine::flush`], for as long as `goes_on`: the rest then stays in memory, and is in the log.
    /// Whether all is written.
    pub fn flush_while(&self, goes_on: impl Fn() -> bool) -> Fallible<bool> {
        let _one = loop {
            if let Some(one) = self.flushing.try_lock_for(FLUSH_LOOK) {
                break one;
            }
            if !goes_on() {
                return Ok(false);
            }
        };
        let mark = self.mark_flush()?;
        for look in 0u32.. {
            if !goes_on() {
                break;
            }
            if look.is_multiple_of(FLUSH_LOOKS) {
                self.flush_all(false)?;
            }
            if self.is_flushed(&mark)? {
                return Ok(true);
            }
            self.takes_writes()?;
            std::thread::sleep(FLUSH_LOOK);
        }
        Ok(false)
    }

    /// When RocksDB waits for several families it confuses their memtables, and may return before all is written. So a mark is
    /// written last, and then looked for in the files.
    fn mark_flush(&self) -> Fallible<[u8; 8]> {
        let mark = self.sequence().to_be_bytes();
        let mut batch = Batch::new(self);
        batch.push(&Effect::Put(FLUSHED_KEY.to_vec(), mark.to_vec()));
        self.write(&batch)?;
        Ok(mark)
    }

    fn is_flushed(&self, mark: &[u8; 8]) -> Fallible<bool> {
        Ok(self.value(FLUSHED_KEY, true)?.as_deref() == Some(mark))
    }

    /// Starts a flush of all memtables in the background.
    pub fn begin_flush(&self) -> Fallible<()> {
        self.flush_all(false)
    }

    /// All families at once: flushing one alone would leave part of a group on disk.
    fn flush_all(&self, wait: bool) -> Fallible<()> {
        let mut options = rocksdb::FlushOptions::default();
        options.set_wait(wait);
        let handles = Family::ALL.map(|family| handle(&self.db, family));
        let handles = handles.into_iter().collect::<Fallible<Vec<_>>>()?;
        self.db
            .flush_cfs_opt(&handles, &options)
            .map_err(|e| error(&e.into_string()))
    }

    /// Compacts a range (an empty bound is none), one part after another. `go_on` is asked before
    /// each part.
    pub fn compact(
        &self,
        low: &[u8],
        high: &[u8],
        go_on: &mut dyn FnMut() -> Fallible<()>,
    ) -> Fallible<()> {
        let files = self.db.live_files().map_err(|e| error(&e.into_string()))?;
        for &family in Family::of_range(low, high) {
            let handle = handle(&self.db, family)?;
            let of_family = files
                .iter()
                .filter(|f| f.column_family_name == family.name());
            let bound = |key: &[u8]| (!key.is_empty()).then(|| key.to_vec());
            let mut from = bound(low);
            let cuts = cuts(of_family, low, high).into_iter().map(Some);
            for to in cuts.chain([bound(high)]) {
                go_on()?;
                self.db
                    .compact_range_cf(handle, from.as_deref(), to.as_deref());
                from = to;
            }
        }
        Ok(())
    }

    /// Makes a copy that is itself a data directory, without a log. After an error no copy is left.
    pub fn checkpoint(&self, dir: &Path) -> Fallible<()> {
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::StorageFull => {
                err!(OutOfDiskSpace, "no space left for {}: {e}", dir.display())
            }
            _ => err!(FileNotOpen, "cannot write {}: {e}", dir.display()),
        };
        // The copy has no log, so its data files must hold everything that was acknowledged before.
        self.flush()?;
        std::fs::create_dir(dir).map_err(io)?;
        let copied = rocksdb::checkpoint::Checkpoint::new(&self.db)
            .and_then(|c| c.create_checkpoint(dir.join("engine")))
            .map_err(|e| error(&e.into_string()))
            .and_then(|()| match self.data_dir.key() {
                Some(_) => at_rest::copy_key(self.data_dir.path(), dir),
                None => Ok(()),
            })
            // The stamp is written last: a directory that has it is complete.
            .and_then(|()| data_dir::write_stamp(dir, self.data_dir.stamp()).map_err(io));
        if copied.is_err() {
            let _ = std::fs::remove_dir_all(dir);
        }
        copied
    }

    /// Adapts compaction to the write load. Each family rewrites the options file (20 KB; the
    /// engine keeps the last two). So a change of load writes three files, at most once in three
    /// seconds.
    pub fn set_load(&self, load: Load) -> Fallible<()> {
        for family in Family::ALL {
            let files = load.level_zero_files(family).to_string();
            self.db
                .set_options_cf(
                    handle(&self.db, family)?,
                    &[("level0_file_num_compaction_trigger", &files)],
                )
                .map_err(|e| error(&e.into_string()))?;
        }
        Ok(())
    }

    /// Adapts to whether records arrive in order (see [`crate::insert_order`]). Then they are
    /// compressed at the flush, not at a compaction, and files are only moved down. One more
    /// background job lets these moves run beside a long compaction.
    pub fn set_in_order(&self, on: bool) -> Fallible<()> {
        let levels = records_compression(on);
        self.db
            .set_options_cf(
                handle(&self.db, Family::Records)?,
                &[("compression_per_level", levels)],
            )
            .map_err(|e| error(&e.into_string()))?;
        let jobs = self.background_jobs + i32::from(on);
        self.set_of_all(
            c"max_background_jobs",
            &CString::new(jobs.to_string()).unwrap_or_default(),
        )
    }

    /// Changes an option of the database.
    fn set_of_all(&self, name: &CStr, value: &CStr) -> Fallible<()> {
        let mut failure: *mut c_char = ptr::null_mut();
        // SAFETY: the strings live during the call.
        unsafe {
            ffi::rocksdb_set_db_options(self.raw, 1, &name.as_ptr(), &value.as_ptr(), &mut failure);
        }
        check(failure)
    }

    /// An integer property of the database, for figures only; 0 when the engine has none.
    pub fn figure(&self, name: &CStr) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or(0)
    }

    /// The age of the oldest snapshot; 0 when there is none.
    pub fn oldest_snapshot_seconds(&self) -> u64 {
        let taken = self.figure(c"rocksdb.oldest-snapshot-time");
        if taken == 0 {
            return 0;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs().saturating_sub(taken))
    }

    /// An integer property of each family, for figures only.
    fn figures(&self, name: &CStr) -> [u64; Family::ALL.len()] {
        Family::ALL.map(|family| {
            let figure = handle(&self.db, family).map(|f| self.db.property_int_value_cf(f, name));
            figure.ok().and_then(|f| f.ok().flatten()).unwrap_or(0)
        })
    }

    /// The sum of an integer property over all families.
    pub fn sum(&self, name: &CStr) -> u64 {
        self.figures(name).iter().sum()
    }

    /// The number of level-0 files of the family with the most: a scan has to look into each.
    pub fn level_zero_files(&self) -> u64 {
        self.on_level_zero().into_iter().max().unwrap_or(0)
    }

    /// Compaction debt: the number of level-0 files beyond those that a heavy load lets wait, of
    /// the family with the most.
    pub fn merging_debt(&self) -> u64 {
        let beyond = Family::ALL.into_iter().zip(self.on_level_zero());
        let beyond = beyond.map(|(f, files)| files.saturating_sub(Load::Heavy.level_zero_files(f)));
        beyond.max().unwrap_or(0)
    }

    fn on_level_zero(&self) -> [u64; Family::ALL.len()] {
        Family::ALL.map(|family| {
            let text = handle(&self.db, family).ok().and_then(|f| {
                self.db
                    .property_value_cf(f, c"rocksdb.num-files-at-level0")
                    .ok()??
                    .trim()
                    .parse()
                    .ok()
            });
            text.unwrap_or(0)
        })
    }

    /// What flushes wait at.
    pub fn gate(&self) -> &FlushGate {
        &self.trouble.gate
    }

    /// The last error in the engine's background work.
    pub fn last_trouble(&self) -> Option<String> {
        self.trouble.last()
    }

    /// Whether the engine slows or stops writers until flushes or compactions have caught up.
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

fn handle(db: &DB, family: Family) -> Fallible<&ColumnFamily> {
    db.cf_handle(family.name())
        .ok_or_else(|| Error::internal("a column family of the engine is missing"))
}

/// Converts and frees an error string of the C interface.
pub(crate) fn check(failure: *mut c_char) -> Fallible<()> {
    match failure.is_null() {
        true => Ok(()),
        false => Err(error(&taken(failure))),
    }
}

/// As [`check`], of a read that may be limited to memory.
#[inline]
pub(crate) fn check_read(failure: *mut c_char) -> errors::Result<()> {
    if failure.is_null() {
        return Ok(());
    }
    Err(read_failure(&taken(failure)))
}

/// The failure of a read, by the engine's words.
pub(crate) fn read_failure(message: &str) -> errors::Stop {
    // A cached-only read met a block on disk; nothing else that comes here is "incomplete".
    match message.starts_with("Result incomplete") {
        true => Suspension::Read.into(),
        false => error(message).into(),
    }
}

pub(crate) fn taken(failure: *mut c_char) -> String {
    // SAFETY: a string allocated by RocksDB, ours to free.
    unsafe {
        let message = CStr::from_ptr(failure).to_string_lossy().into_owned();
        ffi::rocksdb_free(failure.cast());
        message
    }
}

/// The first damage that was found since the process began.
static DAMAGE: Mutex<Option<String>> = Mutex::new(None);

/// The first damage of data files that this process has met.
pub fn damage() -> Option<String> {
    DAMAGE.lock().clone()
}

/// Logs damage for the operator, but not at every read that meets it.
fn tell_damage(message: &str) {
    const INTERVAL_SECONDS: u64 = 10;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    DAMAGE.lock().get_or_insert_with(|| message.into());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |d| d.as_secs());
    let next = NEXT.load(Ordering::Relaxed);
    // A clock that was set back must not silence it.
    if now >= next || next > now + INTERVAL_SECONDS {
        NEXT.store(now + INTERVAL_SECONDS, Ordering::Relaxed);
        tracing::error!(target: "STORAGE", error = message, "The data files are damaged");
    }
}

/// The one place that maps the engine's statuses to errors.
pub(crate) fn error(message: &str) -> Error {
    if message.contains("No space left on device") || message.contains("Disk quota exceeded") {
        return err!(
            OutOfDiskSpace,
            "no space left for the data files: {message}"
        );
    }
    // A disk that cannot give back what it has taken.
    let is_lost = message.starts_with("IO error") && message.contains("Input/output error");
    if message.starts_with("Corruption") || is_lost {
        tell_damage(message);
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

#[cfg(test)]
mod flush_tests {
    use super::*;
    use crate::{Store, StoreOptions};

    fn put(space: u8, n: u32, bytes: usize) -> Effect {
        let mut key = vec![0, 0, 0, 0, 0, 0, 0, 1, space, 0, 0, 0, 1];
        key.extend_from_slice(&n.to_be_bytes());
        Effect::Put(key, vec![n as u8; bytes])
    }

    #[test]
    fn what_was_written_before_a_flush_is_in_the_files_after_it() {
        // Which family the engine confuses with which depends on addresses.
        for _ in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            let mut options = StoreOptions::new(dir.path());
            options.cache_bytes = 64 << 20;
            let store = Store::open(options).unwrap();
            let engine = store.engine_itself();
            // Index entries have been flushed more often than records here.
            for n in 0..10 {
                store.write_unlogged(&[put(2, n, 10)]).unwrap();
                engine.flush().unwrap();
            }
            for n in 100..110 {
                // A flush of everything is under way while there are new index entries and no new
                // records.
                let records: Vec<Effect> = (0..40).map(|i| put(1, i, 50_000)).collect();
                store.write_unlogged(&records).unwrap();
                engine.begin_flush().unwrap();
                store.write_unlogged(&[put(2, n, 10)]).unwrap();
                engine.flush().unwrap();
                let Effect::Put(key, value) = put(2, n, 10) else {
                    unreachable!()
                };
                assert_eq!(engine.value(&key, true).unwrap(), Some(value));
            }
        }
    }

    #[test]
    fn a_flush_that_is_not_let_go_on_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        let engine = store.engine_itself();
        store.write_unlogged(&[put(1, 1, 10)]).unwrap();
        assert!(engine.flush_while(|| engine.gate().is_open()).unwrap());
        // Applied after it was asked whether a flush may begin, and had by no majority.
        engine.gate().allow(4);
        engine.gate().applying(5);
        let asked = std::cell::Cell::new(false);
        let goes_on = || !asked.replace(true) || engine.gate().is_open();
        assert!(!engine.flush_while(goes_on).unwrap());
        engine.gate().allow(5);
        assert!(engine.flush_while(|| engine.gate().is_open()).unwrap());
    }

    #[test]
    fn records_in_order_are_moved_down_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path());
        options.cache_bytes = 64 << 20;
        let store = Store::open(options).unwrap();
        let engine = store.engine_itself();
        let records = handle(&engine.db, Family::Records).unwrap();
        let set = |name, value| engine.db.set_options_cf(records, &[(name, value)]).unwrap();
        set("disable_auto_compactions", "true");
        // The files of records: name, level and bytes.
        let files = || {
            let files = engine.db.live_files().unwrap().into_iter();
            let of_records = files.filter(|f| f.column_family_name == "records");
            let mut files: Vec<_> = of_records.map(|f| (f.name, f.level, f.size)).collect();
            files.sort();
            files
        };
        // Raw bytes would come to 400 KB a flush.
        let flush = |from: u32| {
            let records: Vec<Effect> = (from..from + 40).map(|n| put(1, n, 10_000)).collect();
            store.write_unlogged(&records).unwrap();
            engine.flush().unwrap();
            files().pop().unwrap()
        };
        assert!(flush(0).2 > 300_000);
        engine.compact(b"", b"", &mut || Ok(())).unwrap();
        engine.set_in_order(true).unwrap();
        // An idle second job would merge the files of level 0 with each other while the first job
        // moves one.
        engine.set_of_all(c"max_background_jobs", c"2").unwrap();
        let flushed: Vec<_> = (1..20).map(|n| flush(n * 40)).collect();
        assert!(
            flushed.iter().all(|f| f.1 == 0 && f.2 < 100_000),
            "{flushed:?}"
        );
        set("disable_auto_compactions", "false");
        let deadline = Instant::now() + Duration::from_secs(30);
        while files().iter().filter(|f| f.1 == 0).count() > 8 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // A merged file gets a new name, and files of raw bytes are always merged. (Some files stay
        // on level 0, too few for a compaction; the engine may merge a few of them with each other
        // while it moves the others.)
        let kept = files();
        let moved = kept
            .iter()
            .filter(|f| f.1 > 0 && flushed.iter().any(|k| k.0 == f.0));
        assert!(moved.count() > 4, "{kept:?}");
        engine.set_in_order(false).unwrap();
        set("disable_auto_compactions", "true");
        assert!(flush(800).2 > 300_000);
    }

    /// An engine without the maintenance thread: nothing else changes its options.
    fn without_keeper(dir: &Path) -> Engine {
        let data_dir = DataDir::open(dir, true).unwrap();
        Engine::open(data_dir, &StoreOptions::new(dir).engine()).unwrap()
    }

    #[test]
    fn what_is_only_moved_may_have_a_job_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let engine = without_keeper(dir.path());
        // The engine writes its options anew when they change; the newest file has the highest
        // number.
        let jobs = || {
            let files = std::fs::read_dir(engine.data_dir().engine()).unwrap();
            let files = files.map(|f| f.unwrap().path());
            let newest = files
                .filter(|f| f.to_string_lossy().contains("OPTIONS-"))
                .max();
            let options = std::fs::read_to_string(newest.unwrap()).unwrap();
            let line = options
                .lines()
                .find(|l| l.contains("max_background_jobs="))
                .unwrap();
            line.split_once('=').unwrap().1.parse::<i32>().unwrap()
        };
        let usual = jobs();
        engine.set_in_order(true).unwrap();
        assert_eq!(jobs(), usual + 1);
        engine.set_in_order(false).unwrap();
        assert_eq!(jobs(), usual);
    }

    #[test]
    fn a_file_of_markers_is_merged_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let engine = without_keeper(dir.path());
        let write = |effects: Vec<Effect>| {
            let mut batch = Batch::new(&engine);
            batch.push_all(&effects);
            engine.write(&batch).unwrap();
            engine.flush().unwrap();
        };
        let markers = || -> u64 {
            let files = engine.db.live_files().unwrap();
            let entries = files.iter().filter(|f| f.column_family_name == "default");
            entries.map(|f| f.num_deletions).sum()
        };
        let keys = |from: u32| (from..from + 10_000).map(|n| put(2, n, 10));
        let gone = |effect: Effect| Effect::Delete(effect.key().to_vec());
        write(keys(0).chain(keys(50_000)).collect());
        // What updates leave: as many new entries as markers.
        write(
            keys(0)
                .map(gone)
                .zip(keys(90_000))
                .flat_map(|(a, b)| [a, b])
                .collect(),
        );
        write(keys(50_000).map(gone).collect());
        let deadline = Instant::now() + Duration::from_secs(30);
        while markers() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(markers(), 0);
    }

    #[test]
    fn under_load_more_files_of_index_entries_than_of_records_wait() {
        let dir = tempfile::tempdir().unwrap();
        let engine = without_keeper(dir.path());
        engine.set_load(Load::Heavy).unwrap();
        for n in 0..14 {
            let mut batch = Batch::new(&engine);
            // Each file overlaps the others, so none can be moved unchanged.
            for i in 0..10 {
                batch.push(&put(1, n + 100 * i, 100));
                batch.push(&put(2, n + 100 * i, 100));
            }
            engine.write(&batch).unwrap();
            engine.flush().unwrap();
        }
        let waiting = || {
            let files = Family::ALL.into_iter().zip(engine.on_level_zero());
            let of = |family| files.clone().find(|f| f.0 == family).unwrap().1;
            (of(Family::Records), of(Family::Others))
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while waiting().0 >= 8 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (records, entries) = waiting();
        assert!(records < 8 && entries == 14, "{records}, {entries}");
        assert_eq!(engine.merging_debt(), 0, "they wait because they may");
    }
}
