//! Dispatch: looks up the command of a request, admits the request
//! ([`admission`]), runs it, accounts for it ([`accounting`]),
//! and returns the outcome.

pub(crate) mod accounting;
pub mod admission;

use crate::connection::Connection;
use crate::connection::monitor::Monitor;
use crate::handlers;
use crate::monitoring::command_counts;
use crate::monitoring::metrics::Top;
use crate::request::concern::{self, Acknowledge, UnmetConcern, WriteConcern, is_linearizable};
use crate::request::reply_reservation::ReplyReservation;
use crate::request::retryable_errors::retryable_code;
use crate::request::transaction::{self, TransactionStatement};
use crate::request::{Begun, Call, CommandContext, Done};
use crate::settings::fail_point::CommandFailure;
use crate::topology::member;
use crate::topology::state_change;
use crate::{Commands, Local, own_local};
use ::replication::member::raft_id;
use accounting::Account;
use admission::{Admission, Refusal, is_retryable_write, write_labels};
use bson::{Doc, Writer};
use errors::{Code, Error, Result, Stop, Suspension, err};
use executor::{OpCtx, ViewTaken, WriteGroup};
use front::Args;
use front::{RequiredAccess, Specification, flag, specification};
use parking_lot::Mutex;
use service::config::ClusterRole;
use service::{Client, KeptProgress, Mode, Needs, Outcome, Request, Unfinished};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long members are waited for where the client sets no end.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The longest body of a command that is read on an event loop: to parse and plan for it takes some
/// milliseconds.
const LONG_BODY_BYTES: usize = 256 << 10;

/// The outcome of a command, failed or not.
#[derive(Default)]
struct Left {
    wrote: bool,
    /// For its next run, when it only needed disk reads or time.
    kept: Option<KeptProgress>,
}

/// What of a command that has run only its admission knows.
struct Ending {
    /// Where its reply begins.
    start: usize,
    elapsed: Duration,
    /// A write concern is not met, whatever the command says.
    unmet: bool,
}

impl Commands {
    pub(crate) fn dispatch(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let start = out.len();
        client.state.opened.store(0, Relaxed);
        client.state.awaited.store(0, Relaxed);
        let name = request.command();
        let known = specification::lookup(name).filter(|c| handlers::handler(c).is_some());
        let Some(command) = known else {
            self.counters.failed();
            self.write_failure(&err!(CommandNotFound, "no such command: '{name}'"), out);
            return Outcome::Reply;
        };
        if let Some(own) = self.own_local_of(command, request) {
            if mode.on_loop() {
                return suspended(Suspension::Worker, None);
            }
            let outcome = self.dispatch_to_own_local(own, (local, client), (command, request), out);
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        // A fail point may close, block or fail, which an event loop must not do.
        if mode.on_loop()
            // A request that waited checks on the loop whether it has to wait again.
            && (command.is(flag::WORKER) && !request.again
                || request.body.as_bytes().len() > LONG_BODY_BYTES
                || self.fail_points.any()
                || self.profiler.may_write(|| request.db()))
        {
            let progress = Progress::unbegun(self.store.last_ts());
            return suspended(Suspension::Worker, Some(Box::new(progress)));
        }
        match self.config.role {
            ClusterRole::Shard => {
                return self.dispatch_for_router(local, mode, client, request, command, out);
            }
            ClusterRole::Config => self.hear_time_of_router(client, request.body),
            _ => {}
        }
        let call = Call {
            mode,
            client,
            request,
            command,
            on_view: None,
            holds: None,
            own_places: None,
        };
        self.complete(local, &call, start, out)
    }

    /// Answers, or says why not.
    fn complete(
        &self,
        local: &mut Local,
        call: &Call<'_, '_>,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let mut left = Left::default();
        match self.answer(local, call, out, &mut left) {
            Ok(outcome) => outcome,
            Err(stop) => {
                out.truncate(start);
                self.stopped(call, stop, left, out)
            }
        }
    }

    /// As a shard: a router's command carries what the router believes.
    fn dispatch_for_router(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        command: &'static Specification,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let start = out.len();
        if let Some(wait) = self.slowed_write(command, request) {
            if mode.on_loop() {
                return suspended(Suspension::Worker, None);
            }
            std::thread::sleep(wait);
        }
        let mut admitted = match self.admit_router(command, client, request) {
            Ok(admitted) => admitted,
            Err(error) => {
                command_counts::of(command).failed.fetch_add(1, Relaxed);
                self.counters.failed();
                self.write_failure(&error, out);
                return Outcome::Reply;
            }
        };
        let body = admitted.body.take();
        local.writer = admitted.writer.take();
        let hiding = body.as_ref().map(|body| Request {
            body: body.as_doc(),
            sequences: &[],
            ..*request
        });
        let call = Call {
            mode,
            client,
            request: hiding.as_ref().unwrap_or(request),
            command,
            on_view: admitted.ranges.as_ref().map(|r| r as &dyn ViewTaken),
            holds: Some(&admitted),
            own_places: admitted.own_places.as_ref(),
        };
        let outcome = self.complete(local, &call, start, out);
        let writer = local.writer.take();
        if matches!(outcome, Outcome::Staged { .. }) {
            local.writers.extend(writer);
        }
        outcome
    }

    /// The outcome of a failed request: on a loop it may run again, otherwise its reply is the
    /// error.
    fn stopped(&self, call: &Call<'_, '_>, stop: Stop, left: Left, out: &mut Vec<u8>) -> Outcome {
        let on_loop = call.mode.on_loop();
        let e = match stop {
            Stop::Suspended(lack) if on_loop => return suspended(lack, left.kept),
            stop => stop.into_error(),
        };
        command_counts::of(call.command)
            .failed
            .fetch_add(1, Relaxed);
        self.counters.failed();
        if call.request.again {
            // That was the last of a stream.
            *call.client.state.monitor.lock() = Monitor::default();
        }
        self.write_failure(&e, out);
        // What it staged before it failed must be committed nevertheless.
        if left.wrote && on_loop {
            Outcome::Staged { durable: false }
        } else {
            Outcome::Reply
        }
    }

    /// Admits a request, runs its command, accounts for it, and tells the outcome.
    fn answer(
        &self,
        local: &mut Local,
        call: &Call<'_, '_>,
        out: &mut Vec<u8>,
        left: &mut Left,
    ) -> Result<Outcome> {
        let start = out.len();
        let args = self.arguments(call)?;
        let admission = match self.admit(call, &args) {
            Ok(admission) => admission,
            Err(Refusal::Close) => return Ok(Outcome::Close),
            Err(Refusal::Stop(stop)) => return Err(stop),
        };
        let room = ReplyReservation::new(&self.control, call.client, call.request);
        let mut op = self.operation_context(call, &mut local.group, &args, &admission);
        op.room = Some(&room);
        let progress = (call.request.resumed).and_then(|r| r.take::<Progress>());
        if let Some(progress) = &progress {
            op.reduce_budget(progress.budget);
        }
        let first_run = progress.as_ref().map(|p| p.first_run);
        let statement = self
            .join_transaction(call, &args, &mut op)
            .map_err(|e| e.map_error(|e| transaction::with_label(e, call.command, &args)))?;
        if let Some(transaction) = op.transaction.as_deref_mut()
            && let Some(writer) = local.writer.take()
        {
            transaction.keep(writer);
        }
        let mut cx = CommandContext::new(self, call, args, op, std::mem::take(out));
        cx.begun = progress.and_then(|p| p.begun);
        cx.first_run = first_run;
        cx.transaction = statement;
        let done = self.run_within_memory(&mut cx, call, start, &admission);
        let suspended = matches!(done, Err(Stop::Suspended(_)));
        if cx.op.commit_failed {
            // As after the failed commit of a loop's group.
            self.session_table.forget();
        }
        let lost = self.loses_reply(&cx, &admission, &done);
        left.wrote = cx.op.has_written() || cx.after_commit;
        if suspended {
            left.kept = Some(Box::new(self.progress(&mut cx, call.mode)));
        }
        let durability = self.durability(&cx, call.mode, left.wrote);
        let ending = Ending {
            start,
            elapsed: admission.started.elapsed().saturating_sub(cx.waited),
            unmet: admission.failure.is_some(),
        };
        self.conclude(call, &local.top, cx, &done, ending, out);
        admission.release();
        let done = done?;
        if lost {
            return Ok(Outcome::Close);
        }
        room.settle(out.len() - start);
        Ok(outcome(done, durability))
    }

    fn arguments<'a>(&self, call: &Call<'a, '_>) -> Result<Args<'a>> {
        let mut args = Args::parse(call.command.name, call.request.body, call.request.legacy_db)?;
        if let Some(lsid) = &mut args.generic.lsid {
            self.own_session(call.client, lsid)?;
        }
        if self.authority.is_some() {
            own_local::without_members(&mut args.generic);
        }
        Ok(args)
    }

    /// What a suspended command has when it is run again.
    fn progress(&self, cx: &mut CommandContext<'_, '_>, mode: Mode) -> Progress {
        assert!(
            !mode.on_loop() || !cx.op.has_written(),
            "a request that has written is not run again"
        );
        Progress {
            budget: cx.op.budget(),
            begun: cx.begun.take(),
            first_run: cx.first_run.unwrap_or_else(|| self.store.last_ts()),
        }
    }

    /// Runs the command, asked in between whether it may go on, with the memory that there is for operations.
    fn run_within_memory(
        &self,
        cx: &mut CommandContext<'_, '_>,
        call: &Call<'_, '_>,
        start: usize,
        admission: &Admission,
    ) -> Result<Done> {
        let question = cx.op.question();
        let deadline = cx.op.deadline;
        let mut run = || {
            storage::long_steps::asking(deadline, &question, || {
                run_of_ranges(cx, call, start, admission)
            })
        };
        match call.command.needs {
            // What members send each other, and operators, does not wait for clients.
            RequiredAccess::Cluster(_) => run(),
            // What takes much goes to a worker before it does.
            _ if call.mode.on_loop() => run(),
            _ => self.engine.operation_memory.within(run),
        }
    }

    /// Brings the reply to its end, leaves the transaction, and accounts for a command that has run.
    fn conclude(
        &self,
        call: &Call<'_, '_>,
        top: &Mutex<Top>,
        mut cx: CommandContext<'_, '_>,
        done: &Result<Done>,
        ending: Ending,
        out: &mut Vec<u8>,
    ) {
        let silent =
            cx.write_concern.acknowledge == Acknowledge::Never && cx.command.is(flag::COUNTED);
        let unmet = cx.write_concern.unmet.is_some() || ending.unmet;
        let suspended = matches!(done, Err(Stop::Suspended(_)));
        let (start, elapsed) = (ending.start, ending.elapsed);
        let hashes = match !suspended && self.profiler.wants(elapsed) {
            true => crate::crud::explain::hashes_of_command(&cx),
            false => None,
        };
        *out = cx.w.finish_into();
        if unmet && done.is_ok() {
            self.complete_unmet(out, start);
        }
        let awaits = matches!(done, Ok(Done::Await { .. }));
        if awaits {
            out.truncate(start);
        } else if silent && done.is_ok() {
            out.truncate(start);
            // An unacknowledged write reports nothing, not even a failed statement.
            out.extend_from_slice(unacknowledged(call.command.name).as_bytes());
        }
        if let Some(statement) = &mut cx.transaction
            && transaction::leave(statement, cx.op.transaction.take(), done, &out[start..])
        {
            self.cursors
                .kill_transaction(statement.lsid, statement.number);
        }
        drop(cx.transaction);
        if !awaits && !suspended {
            let account = Account {
                hashes,
                args: &cx.args,
                failure: done.as_ref().err().and_then(Stop::failure),
                reply: &out[start..],
                elapsed,
                statements: cx.statements,
                work: cx.work,
                spent: cx.spent,
                plan: cx.op.plan.take(),
                examined: cx.op.examined(),
                made: std::mem::take(&mut cx.op.made),
                originating: cx.originating,
            };
            self.account(call, top, account);
        }
    }

    /// As [`Commands::enter_transaction`]; on a shard its snapshot has to be later than the moves of
    /// what it reads.
    fn join_transaction(
        &self,
        call: &Call<'_, '_>,
        args: &Args<'_>,
        op: &mut OpCtx,
    ) -> Result<Option<TransactionStatement>> {
        let statement = self.enter_transaction(call, args, op)?;
        if let (ClusterRole::Shard, Some(transaction)) =
            (self.config.role, op.transaction.as_deref())
        {
            let taken = transaction.snapshot().taken;
            self.check_ranges_are_older(call.command, call.request, taken)?;
        }
        Ok(statement)
    }

    /// The operation that the command reads and writes through.
    fn operation_context<'c>(
        &'c self,
        call: &Call<'c, '_>,
        group: &'c mut WriteGroup,
        args: &Args<'_>,
        admission: &'c Admission,
    ) -> OpCtx<'c> {
        let mut op = match call.mode {
            Mode::Inline => OpCtx::inline(&self.engine, group),
            Mode::Worker => OpCtx::worker(&self.engine),
        };
        if args.generic.max_time_ms > 0 {
            let allowed = Duration::from_millis(args.generic.max_time_ms);
            // What a fail point holds back has not begun.
            let blocked = admission.failure.as_ref().map_or(0, |f| f.block_millis);
            let allowed = allowed + Duration::from_millis(blocked);
            op.deadline = self.fail_points.deadline(admission.started, allowed);
        }
        op.cancelled = Some(&call.client.cancelled);
        let registered = admission.registered.as_ref();
        op.killed = registered.map(|r| &r.operation.killed);
        op.waiting = registered.map(|r| &r.operation.waiting);
        op.shown_plan = registered.map(|r| &r.operation.plan);
        op.on_view = call.on_view;
        op.own_places = call.own_places.cloned();
        op
    }

    /// Whether the fail point `onPrimaryTransactionalWrite` closes the connection in place of a
    /// reply. Counts.
    fn loses_reply(
        &self,
        cx: &CommandContext<'_, '_>,
        admission: &Admission,
        done: &Result<Done>,
    ) -> bool {
        let Some(count) = admission.losable else {
            return false;
        };
        let lost = |count| self.fail_points.retryable_write(true, count);
        done.is_ok() && cx.op.has_written() && lost(count).is_some_and(|l| l.close_connection)
    }

    /// What a command's reply has to wait for.
    fn durability(&self, cx: &CommandContext<'_, '_>, mode: Mode, wrote: bool) -> Awaits {
        let durable = cx.durable();
        match wrote {
            true if mode.on_loop() => Awaits::Commit { durable },
            true if durable => Awaits::Disk(match cx.op.last_index {
                0 if cx.after_commit => self.store.last_index(),
                n => n,
            }),
            // What a secondary has applied a majority has.
            false if member::is_primary(cx) && shows_durable(cx) => {
                Awaits::Disk(self.store.last_index())
            }
            _ => Awaits::Nothing,
        }
    }
}

/// Whether a read may show only durable state: what a majority has, on one node. It reads the newest,
/// and its reply waits for the disk.
fn shows_durable(cx: &CommandContext<'_, '_>) -> bool {
    let concern = cx.args.generic.read_concern.and_then(|v| v.as_doc());
    let durable = match concern.and_then(|d| d.get("level")?.as_str()) {
        Some(level) => matches!(level, "majority" | "linearizable" | "snapshot"),
        None => cx.command.is(flag::READ) && cx.app.rw_defaults.reads_majority(),
    };
    durable && cx.transaction.is_none()
}

/// What earlier runs of a request pass to the next.
struct Progress {
    /// The entries that it may still examine on an event loop.
    budget: u32,
    begun: Option<Begun>,
    /// The newest entry of the log when it was run first.
    first_run: u64,
}

impl Progress {
    /// Of a request that no run has begun.
    fn unbegun(first_run: u64) -> Progress {
        Progress {
            budget: u32::MAX,
            begun: None,
            first_run,
        }
    }
}

/// The reply to an unacknowledged write whose client wants one: it reports nothing.
fn unacknowledged(command: &str) -> bson::DocBuf {
    let mut w = bson::Writer::new();
    if command == "bulkWrite" {
        w.open_doc("cursor").i64("id", 0);
        w.open_array("firstBatch").close();
        w.str("ns", "admin.$cmd.bulkWrite").close();
        for name in [
            "Errors", "Inserted", "Matched", "Modified", "Upserted", "Deleted",
        ] {
            w.i32(&format!("n{name}"), 0);
        }
    }
    w.f64("ok", 1.0);
    w.finish()
}

/// A request that is to run again, where it cannot block: after reads that it lacks, or on a
/// worker.
fn suspended(lack: Suspension, kept: Option<KeptProgress>) -> Outcome {
    let needs = match lack {
        // Which reads they are is known where they were recorded.
        Suspension::Read => Needs::Reads(Vec::new()),
        // A worker may wait for room.
        Suspension::Worker | Suspension::Room => Needs::Worker,
    };
    Outcome::Suspended(Unfinished { needs, kept })
}

/// What a reply waits for before it is sent.
#[derive(Clone, Copy)]
enum Awaits {
    Nothing,
    /// The commit of the loop's group, and if `durable`, the disk.
    Commit {
        durable: bool,
    },
    /// The log on disk up to this index.
    Disk(u64),
}

/// [`run`], where what the command has read must still be this shard's. Errors have the labels of
/// their transaction.
fn run_of_ranges(
    cx: &mut CommandContext<'_, '_>,
    call: &Call<'_, '_>,
    start: usize,
    admission: &Admission,
) -> Result<Done> {
    let mut done = run(cx, start, admission);
    if done.is_ok()
        && let Some(holds) = call.holds
    {
        done = holds.check(cx.app).and(done);
    }
    let labelled = |e| transaction::with_label(e, call.command, &cx.args);
    done.map_err(|e| e.map_error(labelled))
}

fn run_handler(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    // Dispatch has refused a command that has none.
    let handler = handlers::handler(cx.command).expect("a command that was dispatched");
    handler(cx)
}

/// Checks and runs a command and ends its reply, which began at `start`.
fn run(cx: &mut CommandContext<'_, '_>, start: usize, admission: &Admission) -> Result<Done> {
    let mut done = admission::pass_checks(cx, admission.started).and_then(|()| run_handler(cx));
    if matches!(done, Err(Stop::Suspended(Suspension::Room))) && !cx.op.may_offload() {
        cx.op.run_again();
        let empty = Writer::on(Vec::new());
        let mut begun = std::mem::replace(&mut cx.w, empty).finish_into();
        begun.truncate(start);
        cx.w = Writer::on(begun);
        done = cx.op.wait_for_room().and_then(|()| run_handler(cx));
    }
    if matches!(done, Err(Stop::Suspended(_))) {
        cx.op.run_again();
    }
    if let Ok(Done::Reply | Done::ReplyMore) = done {
        await_members(cx)?;
        confirm_primary(cx)?;
        append_concern_error(cx, admission.failure.as_ref());
        if cx.int_ok {
            cx.w.i32("ok", 1);
        } else {
            cx.w.f64("ok", 1.0);
        }
    }
    if let Err(Stop::Failed(e)) = &done
        && cx.command.is(flag::WRITE)
        && !is_of_arguments(e.code)
        && !state_change::is_not_primary(e.code)
        && !e.is_interruption()
    {
        // The write concern holds for the state that a failed write has seen, too.
        await_members(cx)?;
    }
    done.map_err(|e| e.map_error(|e| with_unmet(e, &cx.write_concern)))
}

/// Before the reply to a linearizable read: a majority takes an entry that is made after the read, so
/// no other primary was elected before it.
fn confirm_primary(cx: &CommandContext<'_, '_>) -> Result<()> {
    let Some(driver) = cx
        .app
        .replica
        .as_ref()
        .filter(|_| is_linearizable(&cx.args))
    else {
        return Ok(());
    };
    let entry = storage::Entry::noop(Vec::new());
    // In a later term the read may have missed writes in between.
    let index = cx.app.store.propose_in(cx.op.epoch(), vec![entry])?.index;
    let until = cx.op.deadline.unwrap_or(Instant::now() + LONGEST_WAIT);
    driver.wait(until, |s| s.commit_index >= index || !s.is_primary());
    if driver.commit_index() < index || !driver.is_leading() {
        return Err(err!(
            LinearizableReadConcernError,
            "Failed to confirm that read was linearizable."
        )
        .into());
    }
    Ok(())
}

/// Waits until the members that the write concern asks for have what the command wrote.
fn await_members(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    let wants = cx.write_concern.own_disk || cx.write_concern.members.is_some();
    let Some(driver) = cx.app.replica.as_ref().filter(|_| wants) else {
        return Ok(());
    };
    let index = match cx.op.last_index {
        // A write that changed nothing waits for what it has seen.
        0 => cx.app.store.last_index(),
        n => n,
    };
    if cx.write_concern.own_disk {
        cx.app.store.wait_durable(index)?;
    }
    let Some((wanted, timeout)) = &cx.write_concern.members else {
        return Ok(());
    };
    let longest = timeout.map_or(LONGEST_WAIT, Duration::from_millis);
    let (mut reached, mut leads) = (false, true);
    let began = Instant::now();
    driver.wait(began + longest, |status| {
        leads = status.is_primary();
        let Some(config) = &status.config else {
            return !leads;
        };
        let has = |member: i32| {
            let id = raft_id(member);
            status.progress.iter().any(|p| p.0 == id && p.1 >= index)
        };
        reached = leads && config.is_reached(wanted, &has);
        reached || !leads
    });
    (cx.app.counters.acknowledgements).add(began.elapsed(), !reached && leads);
    if !reached {
        cx.write_concern.unmet = Some(match leads {
            true => UnmetConcern::TimedOut,
            false => UnmetConcern::SteppedDown,
        });
    }
    Ok(())
}

/// What the server is to do about a command that did not fail.
fn outcome(done: Done, awaits: Awaits) -> Outcome {
    match (done, awaits) {
        (Done::Reply, Awaits::Commit { durable }) => Outcome::Staged { durable },
        (Done::Reply, Awaits::Disk(index)) => Outcome::WaitDurable(index),
        (Done::Reply, Awaits::Nothing) => Outcome::Reply,
        (Done::ReplyMore, _) => Outcome::ReplyMore,
        (Done::Await { until, seen }, _) => Outcome::Await { until, seen },
        (Done::Close, _) => Outcome::Close,
    }
}

/// Whether a command with an error of this code did not come to its work.
fn is_of_arguments(code: Code) -> bool {
    matches!(
        code,
        Code::FailedToParse | Code::TypeMismatch | Code::BadValue | Code::InvalidOptions
    )
}

/// An error of a command whose write concern cannot be met either tells both.
fn with_unmet(e: Error, concern: &WriteConcern) -> Error {
    match &concern.unmet {
        Some(unmet) if !is_of_arguments(e.code) => {
            let mut w = Writer::new();
            if let Some(extra) = e.extra.as_deref().and_then(Doc::new) {
                w.extend(extra);
            }
            concern::append_unmet(unmet, &mut w);
            e.with_extra(w.finish().into_vec())
        }
        _ => e,
    }
}

/// `writeConcernError`: of a fail point, or of a write concern that cannot be met.
fn append_concern_error(cx: &mut CommandContext<'_, '_>, failure: Option<&CommandFailure>) {
    if let Some((f, d)) = failure.and_then(|f| Some((f, f.write_concern_error.as_ref()?))) {
        let code = d
            .get("code")
            .and_then(|v| v.to_i64_exact())
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or(0);
        cx.w.doc("writeConcernError", d.as_doc());
        match &f.labels {
            Some(labels) => write_labels(&mut cx.w, labels.iter().map(String::as_str)),
            None if is_retryable_write(cx.command, &cx.args) && retryable_code(code) => {
                write_labels(&mut cx.w, ["RetryableWriteError"].into_iter());
            }
            None => {}
        }
    } else if let Some(unmet) = &cx.write_concern.unmet {
        concern::append_unmet(unmet, &mut cx.w);
        if *unmet == UnmetConcern::SteppedDown && is_retryable_write(cx.command, &cx.args) {
            write_labels(&mut cx.w, ["RetryableWriteError"].into_iter());
        }
    }
}
