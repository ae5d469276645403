//! Pipelines over much of a collection by several threads: each scans a part of the records, or of an index, and runs the stages up
//! to the first one that gathers ([`query::pipeline::Parted`]); the operation's own thread puts together what they have found.
//!
//! Threads are taken where cores are idle: an operation never waits for them, and others' commands come first
//! ([`GivesWay::Little`], [`OpCtx::give_way`]).
//!
//! Invariants: all parts read the same state; no thread outlives the operation that has begun it; what ends the operation
//! ends all of them.

use crate::engine::Engine;
use crate::examined::Examined;
use crate::interrupt::Interrupt;
use crate::op::OpCtx;
use crate::pinned_snapshot::PinnedSnapshot;
use crate::pipeline::aggregate::{AggregateHost, AggregateRequest, Leaf};
use crate::range_cuts;
use crate::read::find::{FindPart, ScannedRange};
use errors::{Error, Result};
use own_process::COMMAND_STACK_BYTES;
use own_process::system::{self, GivesWay};
use query::expr::Vars;
use query::pipeline::{Part, Parted, Pipeline, over_docs, over_rows};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::View;

/// A scan of less is over before threads have begun.
const LEAST_DOCUMENTS: u64 = 10_000;
const LEAST_BYTES: u64 = 1 << 20;
/// The same of entries of an index.
const LEAST_INDEX_BYTES: u64 = 128 << 10;
/// How often an operation that waits for its threads looks whether it is to end.
const PAUSE: Duration = Duration::from_millis(10);

/// What a thread runs its part with.
struct PartTask {
    engine: Arc<Engine>,
    parted: Arc<Parted>,
    rows: FindPart,
    request: AggregateRequest,
    vars: Arc<Vars>,
    snapshot: Option<Arc<PinnedSnapshot>>,
    deadline: Option<Instant>,
    killed: Option<Arc<AtomicBool>>,
    disk_use: bool,
    /// Set when its operation has ended.
    ended: Arc<AtomicBool>,
}

impl PartTask {
    fn run(self) -> Gathered {
        system::give_way(GivesWay::Little);
        let memory = self.engine.operation_memory.clone();
        memory.within(|| {
            let mut ctx = OpCtx::worker(&self.engine);
            ctx.deadline = self.deadline;
            ctx.killed = self.killed.as_ref();
            ctx.cancelled = Some(&self.ended);
            ctx.disk_use = self.disk_use;
            ctx.give_way();
            ctx.snapshot = self.snapshot;
            let (_, vars) = Interrupt::bind(ctx.stopped_by(), &self.vars);
            let rows = over_rows(Box::new(Leaf(self.rows.open(&ctx, &vars)?)));
            let mut part = self.parted.part(rows, &vars)?;
            part.gather(&mut AggregateHost {
                ctx: &mut ctx,
                request: &self.request,
                watch: None,
                under_way: 0,
            })?;
            Ok((part, ctx.examined()))
        })
    }
}

/// What a thread has found, and what it has examined for that.
type Gathered = Result<(Part, Examined)>;

struct Thread {
    handle: JoinHandle<()>,
    gathered: Receiver<Gathered>,
}

impl Thread {
    fn begin(task: PartTask) -> io::Result<Thread> {
        let (sender, gathered) = mpsc::sync_channel(1);
        let work = move || drop(sender.send(task.run()));
        let thread = std::thread::Builder::new()
            .name("query".into())
            .stack_size(COMMAND_STACK_BYTES);
        let handle = thread.spawn(work)?;
        Ok(Thread { handle, gathered })
    }

    /// Waits for it, as long as the operation goes on.
    fn wait(&self, ctx: &OpCtx) -> Gathered {
        loop {
            match self.gathered.recv_timeout(PAUSE) {
                Ok(gathered) => return gathered,
                Err(RecvTimeoutError::Timeout) => ctx.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::internal("a thread of a query has panicked").into());
                }
            }
        }
    }
}

/// The threads of one operation.
#[derive(Default)]
struct Threads {
    threads: Vec<Thread>,
    ended: Arc<AtomicBool>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // One that has panicked has said so, and left its receiver.
            let _ = thread.handle.join();
        }
    }
}

/// What threads have gathered from the rows of `leaf` together; `None` where the operation does better by itself.
pub(super) fn gather(
    host: &mut AggregateHost<'_, '_>,
    parted: &Arc<Parted>,
    leaf: &Leaf,
    vars: &Arc<Vars>,
) -> Result<Option<Part>> {
    let Some(range) = divisible(host, parted, leaf) else {
        return Ok(None);
    };
    host.ctx.need_worker()?;
    let engine = host.ctx.engine.clone();
    let taken = engine.query_threads.take();
    let cuts = match taken.threads {
        0 => Vec::new(),
        more => cuts(&engine, leaf.0.view(), &range, more + 1)?,
    };
    if cuts.is_empty() {
        return Ok(None);
    }
    let cuts = cuts.iter().map(Vec::as_slice);
    let ends = cuts.clone().chain([range.high]);
    let mut threads = Threads::default();
    for range in [range.low].into_iter().chain(cuts).zip(ends) {
        let task = PartTask {
            engine: engine.clone(),
            parted: parted.clone(),
            rows: leaf.0.part(range),
            request: AggregateRequest {
                pipeline: Pipeline::default(),
                ..host.request.clone()
            },
            vars: vars.clone(),
            snapshot: host.ctx.snapshot.clone(),
            deadline: host.ctx.deadline,
            killed: host.ctx.killed.cloned(),
            disk_use: host.ctx.disk_use,
            ended: threads.ended.clone(),
        };
        // Nothing is lost yet: where the system has no thread, the operation goes on alone.
        let Ok(thread) = Thread::begin(task) else {
            return Ok(None);
        };
        threads.threads.push(thread);
    }
    engine.query_threads.divided.fetch_add(1, Relaxed);
    let mut whole = parted.part(over_docs(Vec::new()), vars)?;
    whole.gather(host)?;
    for thread in &threads.threads {
        let (next, examined) = thread.wait(host.ctx)?;
        host.ctx.examined.add(examined);
        whole.absorb(next, host)?;
    }
    Ok(Some(whole))
}

/// The range that `leaf` scans, where threads may share it.
fn divisible<'l>(
    host: &AggregateHost<'_, '_>,
    parted: &Parted,
    leaf: &'l Leaf,
) -> Option<ScannedRange<'l>> {
    let ctx = &host.ctx;
    // What a join reads of other collections may be watched.
    let is_own = ctx.transaction.is_none() && (ctx.on_view.is_none() || !parted.joins());
    if !is_own || host.watch.is_some() || host.request.remote.is_some() {
        return None;
    }
    let tablet = leaf.0.collection().tablet;
    let documents = ctx.engine.store.counts(tablet).0;
    let range = leaf.0.scans_forward(parted.sorts)?;
    (documents >= LEAST_DOCUMENTS).then_some(range)
}

/// Where a range is cut into so many parts of about the same size, in order; none where it is short.
fn cuts(
    engine: &Engine,
    view: &View,
    range: &ScannedRange<'_>,
    parts: usize,
) -> Result<Vec<Vec<u8>>> {
    let (Some(first), Some(last)) = (range.end(view, false)?, range.end(view, true)?) else {
        return Ok(Vec::new());
    };
    let least = match range.is_index {
        true => LEAST_INDEX_BYTES,
        false => LEAST_BYTES,
    };
    Ok(range_cuts::of_range(
        engine,
        range.prefix,
        (&first, &last),
        parts,
        least,
    ))
}
