//! One search index that follows the log, turn by turn.
//!
//! ```text
//! open ─┬─ its position is in the log ─────────────▶ read ─▶ commit ─▶ wait for news of the collection
//!       └─ no commit, or the log no longer reaches ─▶ fill, a part a turn ─▶ commit ─▶ read, and grow graphs
//! damaged ─▶ thrown away ─▶ open
//! ```
//! Invariants:
//! - Entries are read up to the durable index only, each once, in order; a commit says how far.
//! - A document goes by the key of its record, and what an entry puts or deletes is absolute: an
//!   entry that a scan has already seen changes nothing when it is read again.
//! - A new index serves searches when its graphs have what it was filled with.
//! - Without news of its collection an index is complete up to the point that the log's tail has
//!   reported to all followers.

use super::note::Note;
use super::pool::{Pool, WriterPermit};
use super::records::Records;
use super::synonyms::Mappings;
use super::{LOOK, SearchSpec};
use crate::engine::Engine;
use crate::follow;
use crate::op::OpCtx;
use bson::Doc;
use catalog::keyspace::{SPACE_RECORD, prefix_end};
use errors::{Code, Error, Result, bail, err, operation};
use own_process::system::{self, GivesWay};
use parking_lot::Mutex;
use search::{FILLING_BYTES, Grown, Helpers, IndexWriter, Position, SearchIndex, WRITER_BYTES};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::{CacheLoan, Direction, Entry, LogMark, Store, View};

/// From one commit to the next, at least.
const BETWEEN_COMMITS: Duration = Duration::from_millis(50);
/// Entries that one turn reads before it commits.
const ENTRIES_A_TURN: u64 = 20_000;
/// How long one turn puts vectors into graphs: a commit that is due meanwhile comes so much later.
const GROWING_A_TURN: Duration = Duration::from_millis(30);
/// The most threads that help with that: on most machines fewer cores are idle.
const MOST_HELPERS: usize = 15;
/// So many documents, or so many bytes of them, are indexed by two threads.
const MANY_DOCUMENTS: usize = 50_000;
const MANY_BYTES: usize = 64 << 20;

/// How long one turn fills an index.
const FILLING_A_TURN: Duration = Duration::from_millis(200);
/// An index writes down how far it is when so many entries did not concern it.
const ENTRIES_UNNOTED: u64 = 50_000;
/// How often it looks whether that is so.
const BETWEEN_NOTES: Duration = Duration::from_secs(300);
/// How long an idle writer keeps its memory.
const IDLE: Duration = Duration::from_secs(5);
/// The longest that a search waits for its index.
const CAUSAL_WAIT: Duration = Duration::from_secs(30);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Until there may be a writer.
const WRITER_WAIT: Duration = Duration::from_millis(30);
/// From one look at all files, because a search was surprised by them, to the next.
const BETWEEN_CHECKS: Duration = Duration::from_secs(60);
/// Where less is free, an index leaves the disk to the log and the collections.
const LEAST_FREE_BYTES: u64 = 32 << 20;

/// An index.
pub struct IndexFollower {
    pub id: u64,
    pub spec: SearchSpec,
    uuid: [u8; 16],
    tablet: u64,
    dir: PathBuf,
    engine: Weak<Engine>,
    pool: Weak<Pool>,
    tail: Arc<follow::LogTail>,
    index: Mutex<Option<Arc<SearchIndex>>>,
    /// News of the collection, under the name that it has.
    news: Mutex<Option<(String, Arc<follow::LogFollower>)>>,
    ready: AtomicBool,
    /// All entries up to this one are in the last commit, or did not concern the index.
    complete: AtomicU64,
    /// It has all of the news that it was told of.
    caught_up: AtomicBool,
    /// Its turn has begun and not ended.
    running: AtomicBool,
    stopped: AtomicBool,
    removed: AtomicBool,
    /// A search was surprised by its files.
    suspect: AtomicBool,
    failure: Mutex<Option<String>>,
    pub(super) mappings: Mappings,
    state: Mutex<State>,
}

/// What an index does after a turn.
pub(super) enum Next {
    /// Nothing, until there is news.
    Wait,
    After(Duration),
    Ended,
}

#[derive(Default)]
struct State {
    phase: Phase,
    writer: Option<Writer>,
    /// When the last commit was.
    committed: Option<Instant>,
    checked: Option<Instant>,
    /// What [`Note`] says on disk.
    noted: u64,
    /// It serves searches when its graphs have so many vectors; `None`: it does.
    grows_to: Option<u64>,
    /// The memory of graphs, lent by the cache.
    graphs: Option<CacheLoan>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Closed,
    /// The documents behind `key` are not in yet.
    Filling {
        view: View,
        key: Vec<u8>,
        from: Position,
    },
    /// `from`: it has nothing to read before this place.
    Reading { at: Position, from: Option<LogMark> },
}

/// The index's writer while there is something to write.
struct Writer {
    inner: IndexWriter,
    used: Instant,
    permit: WriterPermit,
    _share: query::pipeline::Share,
}

impl IndexFollower {
    pub(super) fn new(
        engine: &Arc<Engine>,
        of: ([u8; 16], u64),
        spec: SearchSpec,
        dir: PathBuf,
    ) -> Arc<IndexFollower> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Arc::new(IndexFollower {
            id: LAST.fetch_add(1, SeqCst),
            spec,
            uuid: of.0,
            tablet: of.1,
            dir,
            engine: Arc::downgrade(engine),
            pool: Arc::downgrade(&engine.search.pool),
            tail: engine.log_tail.clone(),
            index: Mutex::default(),
            news: Mutex::default(),
            ready: AtomicBool::new(false),
            complete: AtomicU64::new(0),
            caught_up: AtomicBool::new(false),
            running: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            failure: Mutex::default(),
            mappings: Mappings::default(),
            state: Mutex::default(),
        })
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    /// Whether it is to look at its files.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(SeqCst)
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub fn index(&self) -> Option<Arc<SearchIndex>> {
        self.index.lock().clone()
    }

    pub fn documents(&self) -> u64 {
        self.index().map_or(0, |i| i.snapshot().documents())
    }

    pub fn bytes(&self) -> u64 {
        self.index().map_or(0, |i| i.bytes())
    }

    /// Has it get a turn soon.
    fn hurry(self: &Arc<IndexFollower>, at: Instant) {
        if let Some(pool) = self.pool.upgrade() {
            pool.due(self, at);
        }
    }

    /// Follows the collection under this name from now on.
    pub(super) fn follow(self: &Arc<IndexFollower>, ns: &str) {
        let mut news = self.news.lock();
        if news.as_ref().is_some_and(|(known, _)| known == ns) {
            return;
        }
        // Writes under the new name before this came without news.
        self.caught_up.store(false, SeqCst);
        let following = self.tail.follow(ns);
        *news = Some((ns.to_string(), Arc::new(following)));
        drop(news);
        self.hurry(Instant::now());
    }

    /// It has its last turn soon.
    pub(super) fn end(self: &Arc<IndexFollower>, remove: bool) {
        self.removed.store(remove, SeqCst);
        self.stopped.store(true, SeqCst);
        self.hurry(Instant::now());
    }

    /// A search was surprised by what it found: the index looks at its files, and is built anew where
    /// they are damaged.
    pub(super) fn suspect(self: &Arc<IndexFollower>) {
        self.suspect.store(true, SeqCst);
        self.hurry(Instant::now());
    }

    fn news(&self) -> Option<Arc<follow::LogFollower>> {
        self.news.lock().as_ref().map(|(_, n)| n.clone())
    }

    /// Up to which entry the index has everything.
    fn complete(&self) -> u64 {
        // In this order: what has come since then was told of before it was scanned.
        let scanned = self.tail.scanned().0;
        let news = self.news().is_none_or(|n| n.has_news());
        let busy = news || self.running.load(SeqCst) || !self.caught_up.load(SeqCst);
        let own = self.complete.load(SeqCst);
        if busy { own } else { own.max(scanned) }
    }

    /// Waits until the index has everything up to `index`, as long as the operation may go on, and no
    /// longer than [`CAUSAL_WAIT`].
    pub(super) fn reach(self: &Arc<IndexFollower>, ctx: &OpCtx<'_>, index: u64) -> Result<()> {
        let begun = Instant::now();
        while self.complete() < index {
            ctx.check()?;
            if begun.elapsed() > CAUSAL_WAIT {
                bail!(
                    ExceededTimeLimit,
                    "the search index {} is behind what the session has seen",
                    self.spec.name
                );
            }
            ctx.engine.store.request_sync();
            if self.news().is_some_and(|n| n.has_news()) {
                self.hurry(Instant::now());
            }
            std::thread::sleep(LOOK / 10);
        }
        Ok(())
    }

    /// Does what there is to do, as far as one turn goes.
    pub(super) fn turn(self: &Arc<IndexFollower>) -> Next {
        self.running.store(true, SeqCst);
        let next = self.turn_with(&mut self.state.lock());
        self.running.store(false, SeqCst);
        next
    }

    fn turn_with(self: &Arc<IndexFollower>, state: &mut State) -> Next {
        let engine = self.engine.upgrade();
        let (Some(engine), false) = (&engine, self.stopped.load(SeqCst)) else {
            self.close(state);
            return Next::Ended;
        };
        let ends = |_: Option<Instant>| match self.stops() {
            true => Err(err!(Interrupted, "the search index is stopped")),
            false => Ok(()),
        };
        let step = || operation::asking(None, &ends, || self.step(engine, state));
        let next = match catch_unwind(AssertUnwindSafe(step)) {
            Ok(Ok(next)) => return next,
            Ok(Err(e)) => e.into_error(),
            Err(_) => {
                self.suspect.store(true, SeqCst);
                Error::internal("the index met a fault of the program")
            }
        };
        self.failed(state, &next);
        Next::After(RETRY)
    }

    /// Whether it is to end, or the server.
    fn stops(&self) -> bool {
        let pool = self.pool.upgrade();
        self.stopped.load(SeqCst) || pool.is_none_or(|p| p.is_stopped())
    }

    fn failed(&self, state: &mut State, e: &Error) {
        // Uncommitted changes are lost; the next turn begins at the last commit.
        state.phase = Phase::Closed;
        state.grows_to = None;
        state.writer = None;
        self.caught_up.store(false, SeqCst);
        if self.stops() {
            return;
        }
        if e.code == Code::DataCorruptionDetected {
            self.suspect.store(true, SeqCst);
        }
        if !self.is_ready() {
            // Nothing of it is of use, and the disk may be full of it.
            *self.index.lock() = None;
            state.graphs = None;
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        let message = e.message.clone();
        tracing::warn!(target: "INDEX", index = &*self.spec.name, error = &*message, "a search index failed");
        *self.failure.lock() = Some(message);
    }

    /// Gives back what it holds. Where the collection is gone, or the definition, its files go too.
    fn close(&self, state: &mut State) {
        let _ = self.note_progress(state, 1);
        state.writer = None;
        state.phase = Phase::Closed;
        state.grows_to = None;
        *self.news.lock() = None;
        if self.removed.load(SeqCst) {
            *self.index.lock() = None;
            state.graphs = None;
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    /// The same when no turn will come any more.
    pub(super) fn close_now(&self) {
        self.close(&mut self.state.lock());
    }

    fn stamp(&self) -> String {
        format!("{}-{}", self.spec.id, self.spec.version)
    }

    fn step(self: &Arc<IndexFollower>, engine: &Arc<Engine>, state: &mut State) -> Result<Next> {
        if self.suspect.load(SeqCst) {
            self.look_at_files(state)?;
        }
        match &state.phase {
            Phase::Closed => self.open(engine, state),
            Phase::Filling { .. } => self.fill(engine, state),
            Phase::Reading { at, from } => {
                let (at, from) = (*at, *from);
                self.read_on(engine, state, at, from)
            }
        }
    }

    /// Reads all files; where they are damaged the index begins anew.
    fn look_at_files(&self, state: &mut State) -> Result<()> {
        if state.checked.is_some_and(|c| c.elapsed() < BETWEEN_CHECKS) {
            self.suspect.store(false, SeqCst);
            return Ok(());
        }
        let index = self.index();
        let found = index.as_ref().map_or(Ok(()), |i| {
            let looked = catch_unwind(AssertUnwindSafe(|| i.check()));
            looked.unwrap_or_else(|_| Err(err!(DataCorruptionDetected, "its files").into()))
        });
        match found {
            Ok(()) => state.checked = Some(Instant::now()),
            Err(e) if e.is(Code::DataCorruptionDetected) => {
                tracing::warn!(target: "INDEX", index = &*self.spec.name, error = %e.into_error(), "a damaged search index is built anew");
                self.ready.store(false, SeqCst);
                self.caught_up.store(false, SeqCst);
                state.writer = None;
                state.phase = Phase::Closed;
                state.grows_to = None;
                *self.index.lock() = None;
                state.graphs = None;
                // A search that still runs has the files open.
                let _ = std::fs::remove_dir_all(&self.dir);
            }
            Err(e) => return Err(e),
        }
        self.suspect.store(false, SeqCst);
        Ok(())
    }

    fn open(self: &Arc<IndexFollower>, engine: &Arc<Engine>, state: &mut State) -> Result<Next> {
        let index = match self.index() {
            Some(index) => index,
            None => {
                let definition = self.spec.definition.clone();
                let files = engine.store.engine_files();
                let (made, _) = SearchIndex::open(&self.dir, definition, &self.stamp(), &files)?;
                state.graphs = Some(engine.store.cache_loan());
                self.index.lock().insert(made).clone()
            }
        };
        let committed = index.snapshot().position;
        let noted = Note::read(&self.dir, committed);
        for at in noted.into_iter().chain([committed]) {
            if reaches(&engine.store, at)? {
                state.noted = at.index;
                return self.serve(engine, state, at);
            }
        }
        state.phase = Phase::Filling {
            from: Position {
                index: engine.store.last().index,
                ts: engine.store.last().ts,
            },
            view: engine.store.view(),
            key: Vec::new(),
        };
        Ok(Next::After(Duration::ZERO))
    }

    /// From now on searches find it; the version before is not needed any more.
    fn serve(
        self: &Arc<IndexFollower>,
        engine: &Arc<Engine>,
        state: &mut State,
        at: Position,
    ) -> Result<Next> {
        *self.failure.lock() = None;
        state.phase = Phase::Reading { at, from: None };
        self.complete.store(at.index, SeqCst);
        self.announce(engine);
        Ok(Next::After(Duration::ZERO))
    }

    fn announce(&self, engine: &Arc<Engine>) {
        if !self.ready.swap(true, SeqCst) {
            engine.search.changed(engine);
        }
    }

    /// The writer, if there may be one now.
    fn writer<'s>(
        &self,
        engine: &Engine,
        writer: &'s mut Option<Writer>,
        fills: Option<&View>,
    ) -> Result<Option<&'s mut Writer>> {
        if let Some(open) = writer {
            open.used = Instant::now();
            return Ok(Some(open));
        }
        let (Some(pool), Some(index)) = (self.pool.upgrade(), self.index()) else {
            return Ok(None);
        };
        let Some(permit) = pool.writer(fills.is_some()) else {
            engine.search.wants_writer(true);
            return Ok(None);
        };
        let mut share = engine.stage_memory.share();
        let (bytes, threads) = match fills {
            Some(view) if share.fits(FILLING_BYTES) => (FILLING_BYTES, self.filling_threads(view)?),
            _ => (WRITER_BYTES, 1),
        };
        // One writer is always allowed, so that there is progress when others hold the memory.
        let fits = bytes == FILLING_BYTES || share.fits_for_good(bytes);
        if !fits && pool.writers() > 1 {
            engine.search.wants_writer(true);
            return Ok(None);
        }
        engine.search.wants_writer(false);
        Ok(Some(writer.insert(Writer {
            inner: index.writer_with(&self.stamp(), (bytes, threads))?,
            used: Instant::now(),
            permit,
            _share: share,
        })))
    }

    /// How many of the library's threads index the documents of a view: a second one where there are many.
    fn filling_threads(&self, view: &View) -> Result<usize> {
        let prefix = catalog::keyspace::prefix(self.tablet, SPACE_RECORD, 0);
        let mut scan = view.scan(&prefix, &prefix_end(&prefix), Direction::Forward);
        let (mut documents, mut bytes) = (0, 0);
        while documents < MANY_DOCUMENTS && bytes < MANY_BYTES {
            operation::step()?;
            if !scan.next()? {
                return Ok(1);
            }
            documents += 1;
            bytes += scan.value().len();
        }
        Ok(2)
    }

    /// Puts in documents of the collection, as many as a turn takes.
    fn fill(self: &Arc<IndexFollower>, engine: &Arc<Engine>, state: &mut State) -> Result<Next> {
        check_disk(engine)?;
        let begun = Instant::now();
        let Phase::Filling { view, key, from } = &mut state.phase else {
            return Ok(Next::Wait);
        };
        let first = key.is_empty();
        let Some(open) = self.writer(engine, &mut state.writer, Some(view))? else {
            return Ok(Next::After(WRITER_WAIT));
        };
        if first {
            open.inner.clear()?;
        }
        let prefix = catalog::keyspace::prefix(self.tablet, SPACE_RECORD, 0);
        let low = if first { prefix.to_vec() } else { key.clone() };
        let mut scan = view.scan(&low, &prefix_end(&prefix), Direction::Forward);
        while scan.next()? {
            operation::step()?;
            let Some(doc) = Doc::new(scan.value()) else {
                return Err(Error::internal("a record of the collection is damaged").into());
            };
            open.inner.put(scan.key(), doc)?;
            if begun.elapsed() > FILLING_A_TURN {
                *key = scan.key().to_vec();
                // The next one comes right behind it.
                key.push(0);
                return Ok(Next::After(Duration::ZERO));
            }
        }
        // The state that the scan saw may be rolled back as long as it is not durable.
        engine.store.wait_durable(engine.store.last_index())?;
        let at = *from;
        open.inner.commit(at)?;
        open.permit.is_filled();
        state.committed = Some(Instant::now());
        let to_grow = self.index().map_or(0, |index| index.for_graphs());
        if to_grow == 0 {
            return self.serve(engine, state, at);
        }
        // It keeps up with the log meanwhile, so that this need not reach back until all is in.
        state.grows_to = Some(to_grow);
        state.phase = Phase::Reading { at, from: None };
        Ok(Next::After(Duration::ZERO))
    }

    /// Has a new index serve searches as soon as its graphs have what it was filled with, or what there is memory for;
    /// whether they grow on.
    fn grow_and_serve(
        self: &Arc<IndexFollower>,
        engine: &Arc<Engine>,
        state: &mut State,
    ) -> Result<bool> {
        let grows = self.grow_graphs(state)?;
        if let Some(to) = state.grows_to
            && (!grows || self.index().is_none_or(|index| index.in_graphs() >= to))
        {
            state.grows_to = None;
            self.announce(engine);
        }
        Ok(grows)
    }

    fn read_on(
        self: &Arc<IndexFollower>,
        engine: &Arc<Engine>,
        state: &mut State,
        mut at: Position,
        mut from: Option<LogMark>,
    ) -> Result<Next> {
        let Some(news) = self.news() else {
            return Ok(Next::Wait);
        };
        let store = &engine.store;
        if self.caught_up.load(SeqCst) {
            let scanned = self.tail.scanned();
            match news.has_news() {
                true => from = news.take_news(),
                false if scanned.0 > at.index => {
                    at = Position {
                        index: scanned.0,
                        ts: scanned.1,
                    }
                }
                false => {}
            }
        } else {
            // It reads everything behind its position, so also what it was told of.
            let _ = news.take_news();
        }
        let until = store.durable_index();
        let reads = from.is_some() || !self.caught_up.load(SeqCst);
        if reads && until > at.index {
            check_disk(engine)?;
            let mark = from.unwrap_or_else(|| store.log_mark(at.index + 1));
            self.caught_up.store(false, SeqCst);
            match self.read(engine, &mut state.writer, &mut at, mark, until)? {
                Read::NoWriter => {
                    state.phase = Phase::Reading { at, from };
                    return Ok(Next::After(WRITER_WAIT));
                }
                Read::Unchanged => {}
                Read::Changed => {
                    if let Some(open) = &mut state.writer {
                        open.inner.commit(at)?;
                    }
                    state.committed = Some(Instant::now());
                    state.noted = at.index;
                }
            }
        }
        *self.failure.lock() = None;
        self.complete.store(at.index, SeqCst);
        let goes_on = reads && at.index < until;
        state.phase = Phase::Reading {
            at,
            from: from.filter(|_| goes_on),
        };
        if goes_on {
            if state.grows_to.is_some() {
                self.grow_and_serve(engine, state)?;
            }
            return Ok(Next::After(Duration::ZERO));
        }
        self.caught_up.store(true, SeqCst);
        self.await_news(&news, state);
        self.note_progress(state, ENTRIES_UNNOTED)?;
        if self.grow_and_serve(engine, state)? {
            return Ok(Next::After(Duration::ZERO));
        }
        self.rest(engine, state)
    }

    /// Puts vectors into graphs, as many as a turn takes; whether there are more. What there is no memory for is
    /// compared one by one. Idle cores help, after all that clients wait for.
    fn grow_graphs(&self, state: &mut State) -> Result<bool> {
        let Some(index) = self.index() else {
            return Ok(false);
        };
        let until = Instant::now() + GROWING_A_TURN;
        let holds = |bytes| state.graphs.as_mut().is_some_and(|g| g.fits(bytes));
        let helpers = Helpers {
            threads: system::idle_cores().unwrap_or(0).min(MOST_HELPERS),
            begin: &|| system::give_way(GivesWay::Much),
        };
        let grown = index.grow_graphs(until, holds, helpers)?;
        if grown == Grown::More {
            return Ok(true);
        }
        index.save_graphs()?;
        Ok(false)
    }

    /// Has news make it due, not too soon after the last commit.
    fn await_news(self: &Arc<IndexFollower>, news: &follow::LogFollower, state: &State) {
        let rest = state.committed.map_or(Duration::ZERO, |c| {
            BETWEEN_COMMITS.saturating_sub(c.elapsed())
        });
        let at = Instant::now() + rest;
        let me = Arc::downgrade(self);
        news.on_news(Box::new(move || {
            if let Some(me) = me.upgrade() {
                me.hurry(at.max(Instant::now()));
            }
        }));
        if news.has_news() {
            self.hurry(at);
        }
    }

    /// The work without news: to give the writer back.
    fn rest(&self, engine: &Engine, state: &mut State) -> Result<Next> {
        let Some(open) = &state.writer else {
            return Ok(Next::After(BETWEEN_NOTES));
        };
        let wanted = engine.search.is_writer_wanted();
        if wanted || open.used.elapsed() >= IDLE {
            if let Some(open) = state.writer.take() {
                open.inner.close()?;
            }
            return Ok(Next::After(BETWEEN_NOTES));
        }
        Ok(Next::After(BETWEEN_COMMITS * 4))
    }

    /// Records the progress, if that is at least `least` entries behind the last commit.
    fn note_progress(&self, state: &mut State, least: u64) -> Result<()> {
        let Phase::Reading { mut at, .. } = state.phase else {
            return Ok(());
        };
        let scanned = self.tail.scanned();
        let news = self.news().is_none_or(|n| n.has_news());
        if scanned.0 > at.index && self.caught_up.load(SeqCst) && !news {
            at = Position {
                index: scanned.0,
                ts: scanned.1,
            };
        }
        if at.index >= state.noted + least
            && let Some(index) = self.index()
        {
            Note::write(&self.dir, index.snapshot().position, at)?;
            state.noted = at.index;
        }
        Ok(())
    }

    /// Reads entries up to `until`, or as many as a turn takes.
    fn read(
        &self,
        engine: &Engine,
        writer: &mut Option<Writer>,
        at: &mut Position,
        from: LogMark,
        until: u64,
    ) -> Result<Read> {
        let store = &engine.store;
        if store.first_log_index() > from.index.max(at.index + 1) {
            return Err(Error::internal("the log no longer reaches where the index stands").into());
        }
        let end = until.min(from.index.max(at.index) + ENTRIES_A_TURN);
        let records = Records::of(self.uuid, self.tablet);
        let mut reader = store.read_log_at(from)?;
        let mut outcome = Read::Unchanged;
        while at.index < end {
            operation::step()?;
            let Some(record) = reader.next()? else { break };
            if record.index <= at.index {
                continue;
            }
            if records.concern(record.payload) {
                let Some(entry) = Entry::decode(record.payload) else {
                    return Err(Error::internal("an entry of the log is damaged").into());
                };
                if records.are_touched_by(&entry) {
                    let Some(open) = self.writer(engine, writer, None)? else {
                        return Ok(Read::NoWriter);
                    };
                    records.apply(&entry, &mut open.inner)?;
                    outcome = Read::Changed;
                }
            }
            *at = Position {
                index: record.index,
                ts: record.ts,
            };
        }
        Ok(outcome)
    }
}

/// Waits until the followers of all collections were told of everything up to `index`, no longer than [`CAUSAL_WAIT`].
pub(super) fn reach_all(ctx: &OpCtx<'_>, tail: &follow::LogTail, index: u64) -> Result<()> {
    let begun = Instant::now();
    while tail.scanned().0 < index && begun.elapsed() < CAUSAL_WAIT {
        ctx.check()?;
        ctx.engine.store.request_sync();
        std::thread::sleep(LOOK / 10);
    }
    Ok(())
}

/// What reading the log has come to.
enum Read {
    /// There may be no writer now.
    NoWriter,
    Unchanged,
    Changed,
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

/// Fails if the disk is nearly full: the rest is for the log and the collections.
fn check_disk(engine: &Engine) -> Result<()> {
    match engine.store.free_bytes() {
        Some(free) if free < LEAST_FREE_BYTES => bail!(
            OutOfDiskSpace,
            "less than {} MB are free on the disk",
            LEAST_FREE_BYTES >> 20
        ),
        _ => Ok(()),
    }
}
