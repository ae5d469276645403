//! The version of what `hello` tells, and the hellos that wait for it to change: clients that watch
//! a server send one with the version they know and hear at once when there is another, or after a
//! time that all is well.
//!
//! Invariant: the counter grows after the state that it counts has changed, and is read before; so a
//! client with an outdated version gets the new state with the next reply, which comes at once.

use crate::connection::monitor::{Counted, HelloCounters, Stream, Wait};
use crate::request::CommandContext;
use crate::request::operation;
use bson::{Elem, ObjectId};
use errors::{Error, Result, Stop, bail};
use front::idl;
use service::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const AT: &str = "hello.topologyVersion";

/// What of hello changes while the process lives.
#[derive(Default)]
pub struct TopologyMonitor {
    counter: AtomicI64,
    pub figures: Arc<HelloCounters>,
}

impl TopologyMonitor {
    pub fn counter(&self) -> i64 {
        self.counter.load(SeqCst)
    }

    /// What hello tells has changed.
    pub fn changed(&self, control: &Control) {
        self.counter.fetch_add(1, SeqCst);
        control.stir();
    }
}

/// `topologyVersion` of a request.
#[derive(Clone, Copy, Debug)]
pub struct TopologyVersion {
    process: ObjectId,
    counter: i64,
}

impl TopologyVersion {
    pub fn parse(e: Elem<'_>) -> Result<Option<TopologyVersion>> {
        let Some(d) = idl::doc("hello", e)? else {
            return Ok(None);
        };
        let (mut process, mut counter) = (None, None);
        for f in d.iter() {
            match f.name {
                "processId" => process = Some(f.val.as_oid().ok_or_else(|| wrong(f, "objectId"))?),
                "counter" => counter = Some(f.val.as_i64().ok_or_else(|| wrong(f, "long"))?),
                name => return Err(idl::unknown(AT, name)),
            }
        }
        let process = idl::required(AT, "processId", process)?;
        let counter = idl::required(AT, "counter", counter)?;
        Ok(Some(TopologyVersion { process, counter }))
    }

    pub fn check(self) -> Result<()> {
        if self.counter < 0 {
            bail!(31372, "topologyVersion must have a non-negative counter");
        }
        Ok(())
    }
}

fn wrong(e: Elem<'_>, expected: &str) -> Stop {
    idl::mismatch(AT, e.name, e.val, &[expected])
}

/// Whether the client is to wait, for at most `max_await` milliseconds since it asked first, since
/// it knows all that there is to be known at `counter`; and if so, until when.
pub fn wait(
    cx: &CommandContext<'_, '_>,
    known: TopologyVersion,
    max_await: i64,
    counter: i64,
) -> Result<Option<Instant>> {
    let mut monitor = cx.client.state.monitor.lock();
    let before = monitor.waits.take();
    if let Some(wait) = &before {
        if wait.registered.is_killed() {
            bail!(Interrupted, "operation was interrupted");
        }
        if wait.expires.is_some_and(|at| at <= Instant::now()) {
            bail!(MaxTimeMSExpired, "operation exceeded time limit");
        }
    }
    let known = match &monitor.streams {
        Some(stream) => stream.counter,
        None if known.process != cx.app.process_id => return Ok(None),
        None => known.counter,
    };
    let single = cx.app.config.topology.set_name().is_none();
    if known > counter || single && known != counter {
        let code = if single { 51764 } else { 31382 };
        return Err(Error::coded(
            code,
            format!(
                "Received a topology version with counter: {known} which is greater than the server topology version counter: {counter}"
            ),
        ).into());
    }
    if known < counter {
        return Ok(None);
    }
    let wait = match before {
        Some(wait) => wait,
        None => begin(cx, max_await),
    };
    let is_over = wait.until <= Instant::now();
    let next = wait.expires.map_or(wait.until, |at| at.min(wait.until));
    // One that is over too: the answer may need a worker, which asks once more.
    monitor.waits = Some(wait);
    Ok((!is_over).then_some(next))
}

fn begin(cx: &CommandContext<'_, '_>, max_await: i64) -> Wait {
    let started = Instant::now();
    let length = Duration::from_millis(max_await.unsigned_abs()).min(LONGEST);
    let operation = operation(cx.command, cx.client, cx.request, &cx.args, started);
    Wait {
        until: started + length,
        expires: cx.op.deadline,
        registered: cx.app.operations.register(operation),
        _counted: Counted::new(&cx.app.topology.figures, |f| &f.awaiting),
    }
}

/// The wait has come to its answer.
pub fn end_wait(cx: &CommandContext<'_, '_>) {
    cx.client.state.monitor.lock().waits = None;
}

/// A reply that another is to follow has told `counter`.
pub fn note_streamed(cx: &CommandContext<'_, '_>, counter: i64) {
    let figures = &cx.app.topology.figures;
    let mut monitor = cx.client.state.monitor.lock();
    match &mut monitor.streams {
        Some(stream) => {
            assert!(
                stream.counter <= counter,
                "what a stream has told is not taken back"
            );
            stream.counter = counter;
        }
        streams => {
            let counted = match cx.command.name {
                "hello" => Counted::new(figures, |f| &f.exhaust_hello),
                _ => Counted::new(figures, |f| &f.exhaust_is_master),
            };
            *streams = Some(Stream {
                counter,
                _counted: counted,
            });
        }
    }
}

/// Appends `topologyVersion`.
pub fn append(cx: &mut CommandContext<'_, '_>, counter: i64) {
    cx.w.open_doc("topologyVersion")
        .oid("processId", cx.app.process_id)
        .i64("counter", counter)
        .close();
}
