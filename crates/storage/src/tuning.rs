//! RocksDB's options: sizes of memtables and files, levels, compression, and when writers are
//! slowed.
//!
//! The measurements behind these figures are in docs/decisions (`engine-tuning`).

use crate::background_error::BackgroundError;
use crate::cache_balance::WINDOW;
use crate::dead_ranges::Mode;
use crate::encrypted_env::Env;
use crate::engine::check;
use crate::family::Family;
use crate::ghost_list::Ghost;
use crate::nonblocking_read;
use crate::planted_fault::CommitFault;
use crate::write_throttle::FULL;
use errors::{Fallible, err};
use rocksdb::AsRawPtr;
use rocksdb_sys as ffi;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;

/// The size of a block of index entries. They are scanned, many at a time, and larger blocks
/// compress better.
const SCANNED_BLOCK_BYTES: usize = 16 << 10;

/// A file in which of so many keys in a row so many are markers of deleted ones is merged by itself.
/// Fewer would do for what updates leave in indexes, half of which are markers: each file would be
/// merged twice.
const MARKERS_OF: usize = 8192;
const MARKERS: usize = 7400;

/// The options of the engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The memory of block cache, record cache and memtables together.
    pub cache_bytes: usize,
    /// The record cache's initial percentage of the memory; 0 turns the record cache off.
    pub row_percent: u8,
    /// The block size of records and ids, which are found by key.
    pub block_bytes: usize,
    pub background_jobs: usize,
    /// The most data files that are kept open.
    pub open_files: usize,
    /// Direct I/O: data files bypass the page cache.
    pub direct_io: bool,
    /// Files are synced; not those of data that is not kept.
    pub syncs: bool,
    /// RocksDB's options by name (`name=value;…`), applied last: for experiments. Two are ours:
    /// [`DEAD_RANGES`], [`COMMIT_FAULT`].
    pub extra: String,
}

/// How dead ranges are used: `on`, `off`, or `unended` (a planted fault).
const DEAD_RANGES: &str = "dead_ranges";
/// A planted fault: see [`CommitFault`].
const COMMIT_FAULT: &str = "commit_fault";

/// The write load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Idle,
    Moderate,
    Heavy,
}

impl Load {
    /// The number of level-0 files of a family at which a compaction starts. Each file makes a scan
    /// dearer, and each compaction costs as much as the inserts that it merges. So under load many
    /// files are merged at once, and at rest none is left. A flush of index entries is small, a few
    /// megabytes, and merging it rewrites most of the level below; so index entries wait for twice
    /// as many files.
    pub fn level_zero_files(self, family: Family) -> u64 {
        match (self, family) {
            (Load::Idle, _) => 2,
            (Load::Moderate, _) => 4,
            (Load::Heavy, Family::Records | Family::Ids) => 8,
            (Load::Heavy, Family::Others) => 16,
        }
    }
}

impl EngineOptions {
    pub(crate) fn cache_bytes(&self) -> usize {
        // The least cache that works well.
        self.cache_bytes.max(8 << 20)
    }

    pub(crate) fn background_jobs(&self) -> i32 {
        i32::try_from(self.background_jobs.max(2)).unwrap_or(2)
    }

    pub(crate) fn dead_ranges(&self) -> Fallible<Mode> {
        let Some(given) = self.own_option(DEAD_RANGES) else {
            return Ok(Mode::On);
        };
        Mode::of(given).ok_or_else(|| {
            err!(
                BadValue,
                "{DEAD_RANGES} is on, off or unended, not '{given}'"
            )
        })
    }

    pub(crate) fn commit_fault(&self) -> Fallible<CommitFault> {
        let Some(given) = self.own_option(COMMIT_FAULT) else {
            return Ok(CommitFault::default());
        };
        CommitFault::of(given)
            .ok_or_else(|| err!(BadValue, "{COMMIT_FAULT} is FAULT@GROUP, not '{given}'"))
    }

    /// The value of an option of ours.
    fn own_option(&self, name: &str) -> Option<&str> {
        let mut own = each_option(&self.extra).into_iter().filter_map(own_option);
        own.find(|o| o.0 == name).map(|o| o.1)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.cache_bytes() / 100 * usize::from(self.row_percent.min(90))
    }
}

/// RocksDB's options, and the block cache that they share.
pub(crate) struct TunedOptions {
    records: rocksdb::Options,
    ids: rocksdb::Options,
    others: rocksdb::Options,
    pub block_cache: rocksdb::Cache,
    /// The ghost list of the block cache.
    pub blocks_ghost: Arc<Ghost>,
    pub memtables: rocksdb::WriteBufferManager,
    /// The bytes of full memtables.
    pub memtable_bytes: usize,
}

impl TunedOptions {
    pub fn new(
        opts: &EngineOptions,
        trouble: &Arc<BackgroundError>,
        encrypted: Option<Env>,
    ) -> Fallible<TunedOptions> {
        let mut tuned = options(opts, encrypted);
        for (options, family) in [
            (&mut tuned.others, Family::Others),
            (&mut tuned.records, Family::Records),
            (&mut tuned.ids, Family::Ids),
        ] {
            trouble.listen(options);
            if opts.dead_ranges()? != Mode::Off {
                let no_ratio = 0.0;
                options.add_compact_on_deletion_collector_factory(MARKERS_OF, MARKERS, no_ratio);
            }
            let [starts, heavy] =
                [Load::Moderate, Load::Heavy].map(|load| load.level_zero_files(family) as i32);
            options.set_level_zero_file_num_compaction_trigger(starts);
            // The write throttle acts first (see `write_throttle`). The engine's own slowdown is
            // coarse; it is the last resort.
            options.set_level_zero_slowdown_writes_trigger(heavy + FULL as i32 + 12);
            options.set_level_zero_stop_writes_trigger(heavy + FULL as i32 * 2);
            *options = with_names(options, family, &opts.extra)?;
        }
        let all = [&tuned.others, &tuned.records, &tuned.ids];
        tuned.blocks_ghost.watch_blocks(&all);
        Ok(tuned)
    }

    /// The options of a family. Those of family `others` are the database's options as well.
    pub fn of(&self, family: Family) -> &rocksdb::Options {
        match family {
            Family::Records => &self.records,
            Family::Ids => &self.ids,
            Family::Others => &self.others,
        }
    }
}

/// The compression of records on level 0 and on the other levels, as option text.
pub(crate) fn records_compression(at_flush: bool) -> &'static str {
    match at_flush {
        true => "kLZ4Compression:kLZ4Compression",
        false => "kNoCompression:kLZ4Compression",
    }
}

fn options(opts: &EngineOptions, encrypted: Option<Env>) -> TunedOptions {
    let cache_bytes = opts.cache_bytes();
    // Entry size zero: the cache's table grows with its content.
    let block_cache = rocksdb::Cache::new_hyper_clock_cache(cache_bytes - opts.row_bytes(), 0);

    // Recovery replays what the memtables hold: at most this many full ones. In a larger memtable
    // an insertion is dearer, since it does not fit the processor's caches. Smaller memtables make
    // more files, and merging those costs more.
    let memtable_count = 4;
    let memtable_bytes = (cache_bytes / 8).clamp(1 << 20, 64 << 20);
    let memtables = rocksdb::WriteBufferManager::new_write_buffer_manager_with_cache(
        memtable_bytes * memtable_count,
        false,
        block_cache.clone(),
    );

    let mut o = rocksdb::Options::default();
    nonblocking_read::use_files(&o, encrypted, opts.syncs);
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_write_buffer_manager(&memtables);
    hold_memtables(&mut o, memtable_bytes, memtable_count);
    merge_files(&mut o, memtable_bytes, opts.background_jobs());
    keep_files(&mut o, opts);

    let mut others = o.clone();
    others.set_block_based_table_factory(&table(opts, &block_cache, Family::Others));
    o.set_block_based_table_factory(&table(opts, &block_cache, Family::Records));
    o.set_memtable_whole_key_filtering(true);
    o.set_memtable_prefix_bloom_ratio(0.02);
    let mut ids = o.clone();
    compress(&mut o, &mut ids, &mut others);
    TunedOptions {
        ids,
        records: o,
        others,
        block_cache,
        blocks_ghost: Arc::new(Ghost::new(cache_bytes / WINDOW, opts.block_bytes / 2)),
        memtables,
        memtable_bytes: memtable_bytes * memtable_count,
    }
}

/// Writes, until they are flushed.
fn hold_memtables(o: &mut rocksdb::Options, memtable_bytes: usize, memtable_count: usize) {
    // The engine writes no log of its own, so only the atomic flush keeps records and index entries
    // consistent.
    o.set_atomic_flush(true);
    o.set_write_buffer_size(memtable_bytes);
    o.set_max_write_buffer_number(memtable_count as i32);
    // One group is written at a time. So the cheaper, non-concurrent insertion fits; it remembers
    // the position of the last one.
    o.set_allow_concurrent_memtable_write(false);
    o.set_enable_write_thread_adaptive_yield(false);
    // SAFETY: a setter on options that live.
    unsafe { ffi::rocksdb_options_set_avoid_flush_during_shutdown(o.as_raw_ptr(), 1) };
    // The thread that releases a snapshot must not delete files: it may be an event loop.
    o.set_avoid_unnecessary_blocking_io(true);
}

/// Flushes and merges, and what they hold writers to.
fn merge_files(o: &mut rocksdb::Options, memtable_bytes: usize, background_jobs: i32) {
    o.set_level_compaction_dynamic_level_bytes(true);
    o.set_max_bytes_for_level_base((memtable_bytes * 8) as u64);
    o.set_target_file_size_base((memtable_bytes as u64 * 2).max(8 << 20));
    // Level -1 means plain LZ4 (a positive level selects its slow variant), and the fast mode of
    // Zstandard.
    o.set_compression_options(-14, -1, 0, 0);
    o.set_max_background_jobs(background_jobs);
    o.set_bytes_per_sync(1 << 20);
    // Small writes, for the same reason as in the log (`oplog::file`).
    o.set_writable_file_max_buffer_size(32 << 10);
    // SAFETY: a setter on options that live.
    unsafe { ffi::rocksdb_options_set_delayed_write_rate(o.as_raw_ptr(), 16 << 20) };
    o.set_soft_pending_compaction_bytes_limit(256 << 30);
    o.set_hard_pending_compaction_bytes_limit(0);
}

/// Open files, direct reads, and the engine's own log.
fn keep_files(o: &mut rocksdb::Options, opts: &EngineOptions) {
    o.set_max_open_files(opts.open_files.clamp(64, 4000) as i32);
    o.set_use_direct_reads(opts.direct_io);
    o.set_use_direct_io_for_flush_and_compaction(opts.direct_io);
    o.set_skip_stats_update_on_db_open(true);
    o.set_stats_dump_period_sec(0);
    o.set_stats_persist_period_sec(0);
    o.set_keep_log_file_num(3);
    o.set_max_log_file_size(8 << 20);
    o.set_log_level(rocksdb::LogLevel::Warn);
}

/// Compression by level, for each family.
fn compress(
    records: &mut rocksdb::Options,
    ids: &mut rocksdb::Options,
    others: &mut rocksdb::Options,
) {
    use rocksdb::DBCompressionType::{Lz4, None as Plain, Zstd};
    // The first entry is level 0, the second the base level. Level 0 is merged within seconds,
    // so compressing it does not pay. Zstandard begins where the data has outgrown two levels
    // of LZ4. Before that it would cost time at every merge, and the space it saves is not
    // short.
    others.set_compression_per_level(&[Plain, Lz4, Lz4, Zstd, Zstd, Zstd, Zstd]);
    // The same compression on all levels but level 0: RocksDB moves a file down unchanged only
    // where the next level has the same compression. Files on level 0 overlap a little even
    // with growing ids, because several clients generate ids within one second. So those files
    // have to be merged once; after that, records with growing ids are not rewritten.
    records.set_compression_per_level(&[Plain, Lz4]);
    records.set_bottommost_compression_type(Lz4);
    // Most ids here are hashes, which do not compress, and each merge rewrites them all.
    ids.set_compression_type(Plain);
    ids.set_bottommost_compression_type(Plain);
}

fn table(
    opts: &EngineOptions,
    block_cache: &rocksdb::Cache,
    family: Family,
) -> rocksdb::BlockBasedOptions {
    let mut table = rocksdb::BlockBasedOptions::default();
    table.set_block_cache(block_cache);
    table.set_block_size(match family {
        Family::Others => SCANNED_BLOCK_BYTES,
        Family::Records | Family::Ids => opts.block_bytes,
    });
    table.set_format_version(6);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // Records and ids are found by key. Index entries are scanned; filters and hashes do not help
    // scans, and each merge would rebuild them. An insertion asks every file that may hold its
    // `_id`, often a dozen or more, and reads the disk where a filter gives a false positive. With
    // ten bits a key, one false positive in a hundred, these reads were a quarter of the cost of an
    // insertion into data larger than memory.
    if family != Family::Others {
        table.set_bloom_filter(16.0, false);
        table.set_whole_key_filtering(true);
        table.set_data_block_index_type(rocksdb::DataBlockIndexType::BinaryAndHash);
        table.set_data_block_hash_ratio(0.75);
    }
    table
}

/// Splits `name=value;name={a=1;b=2};` into options, each with its semicolon. A semicolon within
/// braces belongs to a value.
fn each_option(text: &str) -> Vec<&str> {
    let (mut options, mut start, mut depth) = (Vec::new(), 0, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => {
                options.extend(text.get(start..=at));
                start = at + 1;
            }
            _ => {}
        }
    }
    options.extend(text.get(start..).filter(|rest| !rest.is_empty()));
    options
}

/// Name and value, if this option is one of ours.
fn own_option(option: &str) -> Option<(&str, &str)> {
    let (name, value) = option.trim_end_matches(';').split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    [DEAD_RANGES, COMMIT_FAULT]
        .contains(&name)
        .then_some((name, value))
}

/// Adds the options that RocksDB takes by name only. The memtable remembers the last insert
/// position for each index of each collection (the first 13 bytes of a key), so growing keys, such
/// as generated ids and dates, find their place at once. Flushed and merged blocks enter the block
/// cache with low priority; without that each flush and each merge would leave its blocks cold. In
/// a file's index block, which holds thousands of keys, only every eighth key is stored whole: a
/// search touches fewer cache lines.
fn with_names(base: &rocksdb::Options, family: Family, extra: &str) -> Fallible<rocksdb::Options> {
    // An experiment may concern one family: "records:name=value".
    let extra: String = each_option(extra)
        .into_iter()
        .filter(|option| own_option(option).is_none())
        .filter_map(|option| match option.trim_start().split_once(':') {
            Some((name, option)) if Family::ALL.iter().any(|f| f.name() == name) => {
                (name == family.name()).then_some(option)
            }
            _ => Some(option),
        })
        .collect();
    let text = format!(
        "memtable_insert_with_hint_prefix_extractor=fixed:13;\
         block_based_table_factory={{prepopulate_block_cache=kFlushAndCompaction;\
         index_block_restart_interval=8}};{extra}"
    );
    let text = CString::new(text).map_err(|_| err!(BadValue, "engine options hold a zero byte"))?;
    let options = rocksdb::Options::default();
    let mut failure: *mut c_char = ptr::null_mut();
    // SAFETY: both option sets and the string live during the call; caches and tables are shared,
    // not copied.
    unsafe {
        ffi::rocksdb_get_options_from_string(
            base.as_raw_ptr(),
            text.as_ptr(),
            options.as_raw_ptr(),
            &mut failure,
        );
    }
    check(failure)?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_outside_of_braces_only() {
        assert_eq!(
            each_option("a=1; records:b={c={d=2;e=3};f=4};g=5"),
            ["a=1;", " records:b={c={d=2;e=3};f=4};", "g=5"]
        );
        assert_eq!(each_option(""), [""; 0]);
    }
}
