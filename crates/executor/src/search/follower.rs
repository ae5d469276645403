//! One search index that follows the log.
//!
//! ```text
//! open ─┬─ its position is in the log ──────────────▶ read on ─▶ commit ─▶ wait for news ─▶ …
//!       └─ no commit, or the log no longer reaches ─▶ scan the collection ─▶ commit ─▶ read on
//! ```
//! Invariants:
//! - Entries are read up to the durable index only, each once, in order; a commit says how far.
//! - A document goes by the key of its record, and what an entry puts or deletes is absolute: an
//!   entry that a scan has already seen changes nothing when it is read again.

use super::{LOOK, SearchSpec};
use crate::engine::Engine;
use crate::follow::LogTail;
use crate::op::OpCtx;
use bson::Doc;
use catalog::keyspace::{SPACE_RECORD, prefix_end};
use errors::{Error, Result, bail};
use parking_lot::{Condvar, Mutex};
use search::{IndexWriter, Position, SearchIndex, WRITER_BYTES};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::{Direction, Effect, Entry, Store};

/// From one commit to the next, at least.
const BETWEEN_COMMITS: Duration = Duration::from_millis(50);
/// Entries that one turn reads before it commits.
const ENTRIES_A_TURN: u64 = 20_000;
/// A position is committed after so many entries that did not concern the index.
const ENTRIES_UNCOMMITTED: u64 = 50_000;
/// A writer that had nothing to do for so long gives its memory back.
const IDLE: Duration = Duration::from_secs(5);
/// The longest that a search waits for its index.
const CAUSAL_WAIT: Duration = Duration::from_secs(30);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);
/// How long a writer waits for its share of the memory before it takes it nevertheless.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// An index and its thread.
pub struct Follower {
    pub spec: SearchSpec,
    uuid: [u8; 16],
    tablet: u64,
    dir: PathBuf,
    index: OnceLock<Arc<SearchIndex>>,
    ready: AtomicBool,
    /// All entries up to this one are in the last commit, or did not concern the index.
    complete: AtomicU64,
    /// Somebody waits for this entry.
    wanted: AtomicU64,
    stopped: AtomicBool,
    removed: AtomicBool,
    failure: Mutex<Option<String>>,
    news: Mutex<bool>,
    woken: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Follower {
    pub(super) fn start(
        engine: &Arc<Engine>,
        uuid: [u8; 16],
        tablet: u64,
        spec: SearchSpec,
        dir: PathBuf,
    ) -> Arc<Follower> {
        let follower = Arc::new(Follower {
            spec,
            uuid,
            tablet,
            dir,
            index: OnceLock::new(),
            ready: AtomicBool::new(false),
            complete: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            failure: Mutex::default(),
            news: Mutex::default(),
            woken: Condvar::new(),
            thread: Mutex::default(),
        });
        let (weak, own) = (Arc::downgrade(engine), follower.clone());
        let thread = std::thread::Builder::new()
            .name("search-index".into())
            .spawn(move || own.run(&weak));
        match thread {
            Ok(t) => *follower.thread.lock() = Some(t),
            Err(e) => *follower.failure.lock() = Some(format!("no thread: {e}")),
        }
        follower
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub fn index(&self) -> Option<&Arc<SearchIndex>> {
        self.index.get()
    }

    pub fn documents(&self) -> u64 {
        self.index.get().map_or(0, |i| i.snapshot().documents())
    }

    pub fn bytes(&self) -> u64 {
        self.index.get().map_or(0, |i| i.bytes())
    }

    /// Ends the thread soon.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.wake();
    }

    /// And takes the files away.
    pub fn stop_and_remove(&self) {
        self.removed.store(true, SeqCst);
        self.stop();
    }

    pub fn join(&self) {
        let thread = self.thread.lock().take();
        // The last owner of the engine may be that thread itself.
        if let Some(t) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = t.join();
        }
    }

    fn wake(&self) {
        *self.news.lock() = true;
        self.woken.notify_all();
    }

    /// Waits for news, or a while.
    fn wait(&self, most: Duration) {
        let mut news = self.news.lock();
        if !*news && !self.stopped.load(SeqCst) {
            self.woken.wait_for(&mut news, most);
        }
        *news = false;
    }

    /// Waits until the index has everything up to `index`, as long as the operation may go on, and no
    /// longer than [`CAUSAL_WAIT`].
    pub(super) fn reach(&self, ctx: &OpCtx<'_>, index: u64) -> Result<()> {
        let begun = Instant::now();
        while self.complete.load(SeqCst) < index {
            ctx.check()?;
            if begun.elapsed() > CAUSAL_WAIT {
                bail!(
                    ExceededTimeLimit,
                    "the search index {} is behind what the session has seen",
                    self.spec.name
                );
            }
            self.wanted.fetch_max(index, SeqCst);
            ctx.engine.store.request_sync();
            self.wake();
            std::thread::sleep(LOOK / 10);
        }
        Ok(())
    }

    fn run(self: Arc<Follower>, engine: &Weak<Engine>) {
        while !self.stopped.load(SeqCst) {
            if let Err(e) = self.follow(engine) {
                let message = e.into_error().message.clone();
                tracing::warn!(target: "INDEX", index = &*self.spec.name, error = &*message, "a search index failed");
                *self.failure.lock() = Some(message);
                self.wait(RETRY);
            }
        }
        if self.removed.load(SeqCst) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    /// Follows the log until it is stopped.
    fn follow(&self, engine: &Weak<Engine>) -> Result<()> {
        let Some(strong) = engine.upgrade() else {
            self.stopped.store(true, SeqCst);
            return Ok(());
        };
        let stamp = format!("{}-{}", self.spec.id, self.spec.version);
        let index = match self.index.get() {
            Some(index) => index.clone(),
            None => {
                let (made, _) = SearchIndex::open(&self.dir, self.spec.definition.clone(), &stamp)?;
                self.index.get_or_init(|| made).clone()
            }
        };
        let tail = strong.log_tail.clone();
        let mut writer = Writer {
            index: index.clone(),
            stamp,
            open: None,
            share: strong.stage_memory.share(),
            used: Instant::now(),
        };
        let mut at = index.snapshot().position;
        if !reaches(&strong.store, at)? {
            at = self.fill(&strong, &mut writer)?;
        }
        self.complete.store(at.index, SeqCst);
        drop(strong);
        self.serve(engine);
        self.read_on(engine, &tail, &mut writer, at)
    }

    /// From now on searches find it; the version before is not needed any more.
    fn serve(&self, engine: &Weak<Engine>) {
        *self.failure.lock() = None;
        if !self.ready.swap(true, SeqCst)
            && let Some(engine) = engine.upgrade()
        {
            engine.search.sync(&engine, false);
        }
    }

    /// Puts in all documents of the collection. Returns from where on the log is to be read.
    fn fill(&self, engine: &Arc<Engine>, writer: &mut Writer) -> Result<Position> {
        let last = engine.store.last();
        let view = engine.store.view();
        let open = writer.open(self)?;
        open.clear()?;
        let prefix = catalog::keyspace::prefix(self.tablet, SPACE_RECORD, 0);
        let mut scan = view.scan(&prefix, &prefix_end(&prefix), Direction::Forward);
        while scan.next()? {
            if self.stopped.load(SeqCst) {
                return Err(Error::internal("stopped").into());
            }
            let Some(doc) = Doc::new(scan.value()) else {
                return Err(Error::internal("a record of the collection is damaged").into());
            };
            open.put(scan.key(), doc)?;
        }
        // What the scan saw may be taken back as long as it is not durable.
        engine.store.wait_durable(engine.store.last_index())?;
        let at = Position {
            index: last.index,
            ts: last.ts,
        };
        open.commit(at)?;
        Ok(at)
    }

    fn read_on(
        &self,
        engine: &Weak<Engine>,
        tail: &Arc<LogTail>,
        writer: &mut Writer,
        mut at: Position,
    ) -> Result<()> {
        let follower = tail.follow("");
        let me = Arc::new(Waker::default());
        let mut committed = at;
        while !self.stopped.load(SeqCst) {
            if engine.strong_count() == 0 {
                self.stopped.store(true, SeqCst);
                break;
            }
            let told = me.clone();
            follower.on_news(Box::new(move || told.tell()));
            let _ = follower.take_news();
            let store = tail.store();
            let changed = self.read(store, writer, &mut at)?;
            if changed || at.index > committed.index + ENTRIES_UNCOMMITTED {
                writer.open(self)?.commit(at)?;
                committed = at;
            }
            self.complete.store(at.index, SeqCst);
            if at.index < store.durable_index() {
                continue;
            }
            if !changed && writer.is_idle() {
                writer.close()?;
            }
            let begun = Instant::now();
            while !self.stopped.load(SeqCst) {
                let urgent =
                    self.wanted.load(SeqCst) > at.index && store.durable_index() > at.index;
                let rested = begun.elapsed() >= BETWEEN_COMMITS;
                let news = store.durable_index() > at.index;
                if urgent || rested && news || begun.elapsed() > IDLE {
                    break;
                }
                // Until there is news there is nothing to look at.
                match news {
                    true => self.wait(LOOK),
                    false => me.wait(self, IDLE),
                }
            }
        }
        Ok(())
    }

    /// Reads entries up to the durable index, or as many as a turn takes. Returns whether the index
    /// has changed.
    fn read(&self, store: &Store, writer: &mut Writer, at: &mut Position) -> Result<bool> {
        let durable = store.durable_index();
        if durable <= at.index {
            return Ok(false);
        }
        if store.first_log_index() > at.index + 1 {
            return Err(Error::internal("the log no longer reaches where the index stands").into());
        }
        let end = durable.min(at.index + ENTRIES_A_TURN);
        let mut reader = store.read_log_at(store.log_mark(at.index + 1))?;
        let mut changed = false;
        while at.index < end && !self.stopped.load(SeqCst) {
            let Some(record) = reader.next()? else { break };
            if record.index <= at.index {
                continue;
            }
            if self.concerns(record.payload) {
                let Some(entry) = Entry::decode(record.payload) else {
                    return Err(Error::internal("an entry of the log is damaged").into());
                };
                changed |= self.apply(&entry, writer)?;
            }
            *at = Position {
                index: record.index,
                ts: record.ts,
            };
        }
        Ok(changed)
    }

    /// Whether an entry may change the index: what is sure not to is not decoded.
    fn concerns(&self, payload: &[u8]) -> bool {
        Entry::documents_of(payload).is_none_or(|uuid| uuid == self.uuid)
    }

    fn apply(&self, entry: &Entry, writer: &mut Writer) -> Result<bool> {
        let records = catalog::keyspace::prefix(self.tablet, SPACE_RECORD, 0);
        let mut changed = false;
        for effect in entry.plain().flat_map(|part| &part.effects) {
            match effect {
                Effect::Put(key, value) if key.starts_with(&records) => {
                    let Some(doc) = Doc::new(value) else {
                        return Err(Error::internal("a document of the log is damaged").into());
                    };
                    writer.open(self)?.put(key, doc)?;
                    changed = true;
                }
                Effect::Delete(key) if key.starts_with(&records) => {
                    writer.open(self)?.delete(key);
                    changed = true;
                }
                Effect::DeleteRange(low, high)
                    if low.as_slice() < prefix_end(&records).as_slice()
                        && high.as_slice() > &records[..] =>
                {
                    writer.open(self)?.delete_range(low, high)?;
                    changed = true;
                }
                _ => {}
            }
        }
        Ok(changed)
    }
}

/// Whether the log goes on where an index stands.
fn reaches(store: &Store, at: Position) -> Result<bool> {
    if at.index == 0 || at.index < store.first_log_index() || at.index > store.log_end() {
        return Ok(false);
    }
    let mut reader = store.read_log(at.index)?;
    let record = reader.next()?;
    Ok(record.is_some_and(|r| r.index == at.index && r.ts == at.ts))
}

/// Tells a thread that there is news.
#[derive(Default)]
struct Waker {
    news: Mutex<bool>,
    told: Condvar,
}

impl Waker {
    fn tell(&self) {
        *self.news.lock() = true;
        self.told.notify_all();
    }

    /// Waits for news of the log, a stop, or a while.
    fn wait(&self, of: &Follower, most: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < most && !of.stopped.load(SeqCst) {
            let mut news = self.news.lock();
            if std::mem::take(&mut *news) {
                return;
            }
            self.told.wait_for(&mut news, LOOK * 5);
            if std::mem::take(&mut *news) || std::mem::take(&mut *of.news.lock()) {
                return;
            }
        }
    }
}

/// The index's writer while there is something to write.
struct Writer {
    index: Arc<SearchIndex>,
    stamp: String,
    open: Option<IndexWriter>,
    share: query::pipeline::Share,
    used: Instant,
}

impl Writer {
    fn open(&mut self, of: &Follower) -> Result<&mut IndexWriter> {
        self.used = Instant::now();
        if self.open.is_none() {
            let begun = Instant::now();
            while !self.share.fits_for_good(WRITER_BYTES) && begun.elapsed() < MEMORY_WAIT {
                if of.stopped.load(SeqCst) {
                    return Err(Error::internal("stopped").into());
                }
                std::thread::sleep(LOOK);
            }
        }
        match &mut self.open {
            Some(open) => Ok(open),
            none => Ok(none.insert(self.index.writer(&self.stamp)?)),
        }
    }

    fn is_idle(&self) -> bool {
        self.open.is_some() && self.used.elapsed() >= IDLE
    }

    fn close(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            open.close()?;
        }
        self.share.release();
        Ok(())
    }
}
