//! What every operation of a process shares.

use crate::build_progress::Builds;
use crate::document_keys::DocumentKeys;
use crate::follow::LogTail;
use crate::fsync_lock::FsyncLock;
use crate::key_locks::Transactions;
use crate::operation_memory::{OperationMemory, parsed_size};
use crate::prepared::Prepared;
use crate::query_threads::QueryThreads;
use crate::reserved_time;
use crate::search::SearchIndexes;
use crate::temp_collections;
use crate::zone_maps::ZoneMaps;
use bson::Doc;
use catalog::Catalog;
use errors::{Result, bail};
use query::pipeline::{Share, StageMemory};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;
use storage::{Committed, Entry, Observer, Store};

/// The most memory that documents of idle cursors hold, in bytes.
const CURSOR_MEMORY: usize = 64 << 20;
/// What cursors hold themselves, with their commands. It has no other place, so short ones may hold twice as much.
const OPEN_CURSORS: usize = 64 << 20;

/// A budget of cursors: less where there is little memory.
fn of_little(most: usize) -> usize {
    most.min(alloc_meter::available() / 12)
}

/// What every operation shares: the store and its catalog.
pub struct Engine {
    pub store: Arc<Store>,
    pub catalog: Catalog,
    /// Index builds that run: see [`crate::write::build`].
    pub builds: Builds,
    pub fsync_lock: FsyncLock,
    /// The memory budget of sorts, groups and the deduplication of scans.
    pub stage_memory: Arc<StageMemory>,
    /// The memory budget of idle cursors' documents.
    pub cursor_memory: Arc<StageMemory>,
    /// That of the cursors themselves.
    pub open_cursors: Arc<StageMemory>,
    /// That of long commands and large values.
    pub operation_memory: Arc<OperationMemory>,
    pub zones: ZoneMaps,
    /// The end of the log, for cursors that follow it.
    pub log_tail: Arc<LogTail>,
    /// Seconds after which change streams show the images of documents no more; 0: as long as the log has them.
    pub image_expiry_seconds: AtomicU64,
    /// Queries that would have to read a whole collection are refused (`notablescan`).
    pub no_table_scan: AtomicBool,
    /// How often another plan has won a race than the one that had won for the shape before.
    pub replanned: AtomicU64,
    /// Scripts are run (`security.javascriptEnabled`).
    pub scripting: AtomicBool,
    pub transactions: Transactions,
    /// Transactions that wait to be decided.
    pub prepared: Prepared,
    /// The last timestamp that took the place of an empty one.
    stamped: AtomicU64,
    pub(crate) document_keys: DocumentKeys,
    pub search: SearchIndexes,
    /// The threads that pipelines may have beside their own.
    pub query_threads: QueryThreads,
}

/// Keeps [`Engine::prepared`] in step with applied entries.
struct FollowPrepared(Weak<Engine>);

impl Observer for FollowPrepared {
    fn applied(&self, _: Committed, entry: &Entry) {
        if Prepared::is_concerned(entry)
            && let Some(engine) = self.0.upgrade()
        {
            let (transactions, catalog) = (&engine.transactions, &engine.catalog);
            engine.prepared.applied(transactions, catalog, entry);
        }
    }
}

impl Engine {
    pub fn open(store: Arc<Store>) -> Result<Arc<Engine>> {
        let replicated = store.is_replicated();
        if store.last_index() == 0 && !replicated {
            // A replica set's first entry: cluster time is never zero.
            let first = store.propose(vec![Entry::noop(vec![])])?;
            // So that no client finds an oplog without an entry.
            store.wait_durable(first.index)?;
        }
        let catalog = Catalog::open(store.clone())?;
        if !replicated {
            temp_collections::drop_all(&catalog);
        }
        let engine = Arc::new(Engine {
            log_tail: LogTail::new(store.clone())?,
            store,
            catalog,
            builds: Default::default(),
            fsync_lock: FsyncLock::default(),
            stage_memory: Arc::default(),
            cursor_memory: Arc::new(StageMemory::new(of_little(CURSOR_MEMORY))),
            open_cursors: Arc::new(StageMemory::new(of_little(OPEN_CURSORS))),
            operation_memory: Arc::default(),
            zones: Default::default(),
            image_expiry_seconds: AtomicU64::new(0),
            no_table_scan: AtomicBool::new(false),
            replanned: AtomicU64::new(0),
            scripting: AtomicBool::new(true),
            transactions: Transactions::default(),
            prepared: Prepared::default(),
            stamped: AtomicU64::new(0),
            document_keys: DocumentKeys::default(),
            search: SearchIndexes::default(),
            query_threads: QueryThreads::default(),
        });
        engine.operation_memory.borrow_from(&engine.store);
        let view = engine
            .store
            .observe(Arc::new(FollowPrepared(Arc::downgrade(&engine))))?;
        let (transactions, catalog) = (&engine.transactions, &engine.catalog);
        engine.prepared.load(transactions, catalog, &view)?;
        engine.store.begin_after(reserved_time::key().to_vec())?;
        Ok(engine)
    }

    /// A timestamp for a write at this time: after the last entry of the log, which may be ahead of
    /// the clock, and not behind the clock, which may be ahead of an idle log.
    pub fn stamp_at(&self, now_millis: i64) -> u64 {
        let seconds = u64::try_from(now_millis / 1000).unwrap_or(0);
        (seconds << 32 | 1).max(self.store.last_ts() + 1)
    }

    /// What a cursor of `own` bytes holds with its command, which may be a list of a million values.
    pub fn share_for_cursor(&self, own: usize, command: Doc<'_>) -> Result<Share> {
        let mut share = self.open_cursors.share();
        let len = command.len();
        let parsed = parsed_size(command);
        if !share.fits_for_good(own + parsed) {
            bail!(
                ExceededMemoryLimit,
                "The open cursors hold what memory there is for them, and this command is {len} bytes long. Close cursors, ask for \
                 all results in one batch, or try again later"
            );
        }
        Ok(share)
    }

    /// Milliseconds since 1970.
    pub fn now_millis(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }

    /// A timestamp that replaces an empty one in a document; each is greater than the one before.
    pub fn next_stamp(&self) -> u64 {
        let floor = self.stamp_at(self.now_millis());
        let next = |last: u64| floor.max(last + 1);
        let last = self
            .stamped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        next(last.unwrap_or_else(|last| last))
    }
}
