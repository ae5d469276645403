//! From a request to the command that answers it, and from what the command did to the reply.

use crate::concern::{self, Acknowledge, WriteConcern};
use crate::connection::Connection;
use crate::context::{CommandContext, Done};
use crate::fail_point::Failure;
use crate::generic::Args;
use crate::latency::class_of;
use crate::metrics::{Usage, Work, kind_of};
use crate::operations::{Operation, shown_whole};
use crate::profiler::Observed;
use crate::reply_room::ReplyRoom;
use crate::table::{self, Command, flag};
use crate::topology::Monitor;
use crate::{Commands, Local};
use bson::{Doc, Writer};
use errors::{Code, Error, Result, bail, err};
use executor::OpCtx;
use service::{Client, Kept, Mode, Outcome, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What a command leaves behind, whether it failed or not.
#[derive(Default)]
struct Left {
    wrote: bool,
    /// For its next run, where it only lacked reads from the disk or time.
    kept: Option<Kept>,
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
        let name = request.command();
        let Some(command) = table::lookup(name) else {
            self.counters.failed();
            service::write_error(&err!(CommandNotFound, "no such command: '{name}'"), out);
            return Outcome::Reply;
        };
        // A fail point may close, block or fail: whatever it does is not for an event loop.
        if mode.on_loop()
            && (command.is(flag::WORKER)
                || self.fail_points.any()
                || self.profiler.may_write(|| request.db()))
        {
            return Outcome::Offload { kept: None };
        }
        let mut left = Left::default();
        match self.answer(local, mode, client, request, command, out, &mut left) {
            Ok(outcome) => outcome,
            Err(e) if e.is_offload() && mode.on_loop() => {
                out.truncate(start);
                if e.is_for_disk() && mode == Mode::Inline {
                    Outcome::NeedsDisk {
                        reads: Vec::new(),
                        kept: left.kept,
                    }
                } else {
                    Outcome::Offload { kept: left.kept }
                }
            }
            Err(e) => {
                out.truncate(start);
                command.failed.fetch_add(1, Relaxed);
                self.counters.failed();
                if request.again {
                    // That was the last of a stream.
                    *client.state.monitor.lock() = Monitor::default();
                }
                let e = if e.is_offload() {
                    Error::internal("a worker was asked to hand over its command")
                } else {
                    e
                };
                service::write_error(&e, out);
                // What it staged before it failed must be committed all the same.
                if left.wrote && mode.on_loop() {
                    Outcome::Staged { durable: false }
                } else {
                    Outcome::Reply
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn answer(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        command: &'static Command,
        out: &mut Vec<u8>,
        left: &mut Left,
    ) -> Result<Outcome> {
        let start = out.len();
        let args = Args::parse(command.name, request.body, request.legacy_db)?;
        self.check_session(command, &args)?;
        let started = request.resumed.map_or_else(Instant::now, |r| r.since);
        let registered = (mode == Mode::Worker).then(|| {
            self.operations
                .register(operation(command, client, request, &args, started))
        });
        let mut failure = None;
        // One that has waited has passed the fail points.
        let begins = !(request.again && client.state.monitor.lock().is_waiting());
        if begins && self.fail_points.any() && mode == Mode::Worker {
            failure = self.fail(command, client, request, &args)?;
            if failure.as_ref().is_some_and(|f| f.close_connection) {
                return Ok(Outcome::Close);
            }
        }
        let may_be_lost =
            self.fail_points.any() && mode == Mode::Worker && is_retryable_write(command, &args);
        let count = if may_be_lost {
            statements(request, &args)
        } else {
            0
        };
        if may_be_lost && let Some(lost) = self.fail_points.retryable_write(false, count) {
            if lost.close_connection {
                return Ok(Outcome::Close);
            }
            return Err(Error::coded(
                lost.code.unwrap_or(1),
                "Failing write due to failpoint. The write must not be reflected.",
            ));
        }
        let room = ReplyRoom::new(&self.control, client, request);
        let mut op = match mode {
            Mode::Inline => OpCtx::inline(&self.engine, &mut local.group),
            Mode::Patient => OpCtx::patient(&self.engine, &mut local.group),
            Mode::Worker => OpCtx::worker(&self.engine),
        };
        if args.generic.max_time_ms > 0 {
            let allowed = Duration::from_millis(args.generic.max_time_ms);
            op.deadline = self.fail_points.deadline(started, allowed);
        }
        op.cancelled = Some(&client.cancelled);
        op.room = Some(&room);
        op.killed = registered.as_ref().map(|r| &r.operation.killed);
        op.waiting = registered.as_ref().map(|r| &r.operation.waiting);
        let mut cx = CommandContext {
            app: self,
            client,
            request,
            command,
            args,
            write_concern: self.rw_defaults.write_concern(),
            op,
            after_commit: false,
            statements: 1,
            work: Work::default(),
            waited: Duration::ZERO,
            kept: None,
            spent: Vec::new(),
            int_ok: false,
            originating: None,
            w: Writer::on(std::mem::take(out)),
        };
        let done = cx.check().and_then(|()| {
            self.write_block.check(command, &cx.args)?;
            if command.is(flag::WRITE) && command.is(flag::WORKER) {
                // Changes of the catalog; writes to collections wait where they lock them.
                cx.op.pass_gate()?;
                if let Some((db, coll)) = command.target(cx.args.db, cx.args.first) {
                    cx.op.wait_for_writers(&format!("{db}.{coll}"))?;
                }
            }
            if command.is(flag::LONG) && self.control.in_flight.is_short() {
                cx.op.take_room(false)?;
            }
            if cx.op.deadline == Some(started) {
                cx.op.check()?;
            }
            (command.run)(&mut cx)
        });
        let done = match done {
            Err(e) if e.is_offload() && cx.op.wants_room => {
                cx.op.run_again();
                let mut begun = cx.w.finish_into();
                begun.truncate(start);
                cx.w = Writer::on(begun);
                cx.op.wait_for_room().and_then(|()| (command.run)(&mut cx))
            }
            done => done,
        };
        if matches!(&done, Err(e) if e.is_offload()) {
            cx.op.run_again();
        }
        let done = done.map_err(|e| with_unmet(e, &cx.write_concern));
        if let Ok(Done::Reply | Done::ReplyMore) = done {
            append_concern_error(&mut cx, failure.as_ref());
            if cx.int_ok {
                cx.w.i32("ok", 1);
            } else {
                cx.w.f64("ok", 1.0);
            }
        }
        let lost = may_be_lost
            && done.is_ok()
            && cx.op.has_written()
            && self
                .fail_points
                .retryable_write(true, count)
                .is_some_and(|l| l.close_connection);
        let durable = cx.durable();
        left.wrote = cx.op.has_written() || cx.after_commit;
        left.kept = cx.kept.take();
        let index = match cx.op.last_index {
            0 if cx.after_commit => self.store.last_index(),
            n => n,
        };
        let (statements, db, first) = (cx.statements, cx.args.db, cx.args.first);
        let of_cursor = || Some((db, cx.args.field("collection")?.as_str()?));
        let target = match command.name {
            "getMore" => of_cursor(),
            _ => command.target(db, first),
        };
        let spent = std::mem::take(&mut cx.spent);
        let (mut work, waited) = (cx.work, cx.waited);
        let originating = cx.originating.take();
        let (plan, examined) = (cx.op.plan.take(), cx.op.examined);
        let silent =
            cx.write_concern.acknowledge == Acknowledge::Never && cx.command.is(flag::COUNTED);
        *out = cx.w.finish_into();
        let awaits = matches!(done, Ok(Done::Await { .. }));
        if awaits {
            out.truncate(start);
        } else if silent && done.is_ok() {
            // An unacknowledged write tells nothing, not even that a statement failed.
            out.truncate(start);
            out.extend_from_slice(bson::doc! { "ok": 1.0 }.as_bytes());
        }
        if !awaits && !matches!(&done, Err(e) if e.is_offload()) {
            let kind = kind_of(command.name);
            command.total.fetch_add(1, Relaxed);
            self.counters.add(kind, statements);
            let elapsed = started.elapsed().saturating_sub(waited);
            let (class, micros) = (class_of(command.name), elapsed.as_micros() as u64);
            work.keys_examined = examined.keys;
            work.docs_examined = examined.docs;
            if let Some(plan) = &plan {
                work.scans = u64::from(plan.access.is_scan());
                work.sorts = u64::from(plan.sort.is_some());
            }
            let mut top = local.top.lock();
            top.ran(class, micros, &work);
            for (ns, kind, usage) in &spent {
                let (db, coll) = (catalog::db_of(ns), catalog::collection_of(ns));
                top.used(db, coll, *kind, class, *usage);
            }
            // What it dropped is not to be counted again.
            let drops = matches!(command.name, "drop" | "renameCollection") && done.is_ok();
            if let Some((db, coll)) = target.filter(|_| !drops) {
                top.used(db, coll, kind, class, Usage { micros, count: 1 });
                if work.scans > 0 {
                    top.scanned(db, coll);
                }
            }
            drop(top);
            if self.profiler.wants(elapsed) {
                let reply = out.get(start..).and_then(Doc::new).unwrap_or(Doc::EMPTY);
                self.observe(&Observed {
                    client,
                    command,
                    request,
                    db,
                    first,
                    reply,
                    done: &done,
                    plan,
                    examined,
                    elapsed,
                    originating,
                });
            }
        }
        let done = done?;
        if lost {
            return Ok(Outcome::Close);
        }
        room.settle(out.len() - start);
        match done {
            Done::Reply if left.wrote && mode.on_loop() => Ok(Outcome::Staged { durable }),
            Done::Reply if left.wrote && durable => Ok(Outcome::WaitDurable(index)),
            Done::Reply => Ok(Outcome::Reply),
            Done::ReplyMore => Ok(Outcome::ReplyMore),
            Done::Await { until, seen } => Ok(Outcome::Await { until, seen }),
            Done::Close => Ok(Outcome::Close),
        }
    }

    /// What a session and its transaction number allow.
    fn check_session(&self, command: &Command, args: &Args<'_>) -> Result<()> {
        let g = &args.generic;
        if let Some(lsid) = &g.lsid {
            self.sessions.touch(lsid)?;
        }
        let Some(number) = g.txn_number else {
            if g.autocommit.is_some() || g.start_transaction {
                bail!(InvalidOptions, "Transaction arguments need a 'txnNumber'");
            }
            return Ok(());
        };
        if g.lsid.is_none() {
            bail!(
                InvalidOptions,
                "Transaction number requires a session ID to also be specified"
            );
        }
        if self.config.topology.set_name().is_none() {
            bail!(
                IllegalOperation,
                "Transaction numbers are only allowed on a replica set member or mongos"
            );
        }
        if g.autocommit == Some(true) {
            bail!(InvalidOptions, "Specifying autocommit=true is not allowed.");
        }
        if matches!(command.name, "commitTransaction" | "abortTransaction") {
            return Ok(());
        }
        if g.autocommit == Some(false) || g.start_transaction {
            bail!(
                OperationNotSupportedInTransaction,
                "PandoDB does not support multi-document transactions yet"
            );
        }
        if !command.is(flag::RETRY) {
            bail!(
                NotARetryableWriteCommand,
                "txnNumber {number} may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and {} is not a retryable write command.",
                command.name
            );
        }
        Ok(())
    }

    /// Applies the fail point `failCommand`: blocks, fails, or tells what is to be done with the reply.
    fn fail(
        &self,
        command: &Command,
        client: &Client<Connection>,
        request: &Request<'_>,
        args: &Args<'_>,
    ) -> Result<Option<Failure>> {
        if command.name == "configureFailPoint" {
            return Ok(None);
        }
        let ns = args.first.as_str().map(|c| format!("{}.{c}", args.db));
        let mut app_name = client.state.app_name();
        if app_name.is_empty() && command.is(flag::HANDSHAKE) {
            // The hello that tells the name is already meant.
            app_name = application(request.body).unwrap_or("");
        }
        let names = [request.command()];
        let hit = self
            .fail_points
            .fail_command(command.name, &names, app_name, ns.as_deref());
        let Some(f) = hit else { return Ok(None) };
        if f.block_millis > 0 {
            std::thread::sleep(Duration::from_millis(f.block_millis));
        }
        if let (false, Some(code)) = (f.close_connection, f.error_code) {
            let mut e = Error::coded(code, "Failing command via 'failCommand' failpoint");
            match &f.labels {
                Some(labels) => {
                    let mut w = Writer::new();
                    write_labels(&mut w, labels.iter().map(String::as_str));
                    e = e.with_extra(w.finish().into_vec());
                }
                None if is_retryable_write(command, args) && retryable_code(code) => {
                    e = e.with_label("RetryableWriteError")
                }
                None => {}
            }
            return Err(e);
        }
        Ok(Some(f))
    }
}

/// The name of the application that a hello tells.
fn application(body: Doc<'_>) -> Option<&str> {
    let client = body.get("client")?.as_doc()?;
    client.get("application")?.as_doc()?.get("name")?.as_str()
}

/// How many statements a write has.
fn statements(request: &Request<'_>, args: &Args<'_>) -> usize {
    let of = |field: &str| match request.sequence(field) {
        Some(docs) => Some(docs.count()),
        None => args
            .field(field)
            .and_then(|v| v.as_array())
            .map(|a| a.count()),
    };
    let fields = ["documents", "updates", "deletes", "ops"];
    fields.iter().find_map(|f| of(f)).unwrap_or(1)
}

/// An error of a command whose write concern cannot be met either tells both.
fn with_unmet(e: Error, concern: &WriteConcern) -> Error {
    let of_arguments = matches!(
        e.code,
        Code::FailedToParse | Code::TypeMismatch | Code::BadValue | Code::InvalidOptions
    );
    match &concern.unmet {
        Some(unmet) if !of_arguments && !e.is_offload() => {
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

fn is_retryable_write(command: &Command, args: &Args<'_>) -> bool {
    command.is(flag::RETRY) && args.generic.txn_number.is_some()
}

/// Codes after which a retryable write may be sent again.
fn retryable_code(code: i32) -> bool {
    let codes = [
        Code::HostUnreachable,
        Code::HostNotFound,
        Code::NetworkTimeout,
        Code::ShutdownInProgress,
        Code::PrimarySteppedDown,
        Code::ExceededTimeLimit,
        Code::SocketException,
        Code::NotWritablePrimary,
        Code::InterruptedAtShutdown,
        Code::InterruptedDueToReplStateChange,
        Code::NotPrimaryNoSecondaryOk,
        Code::NotPrimaryOrSecondary,
    ];
    codes.contains(&Code(code))
}

fn write_labels<'a>(w: &mut Writer, labels: impl Iterator<Item = &'a str>) {
    let mut labels = labels.peekable();
    if labels.peek().is_none() {
        return;
    }
    w.open_array("errorLabels");
    for l in labels {
        w.push_value(l);
    }
    w.close();
}

/// `writeConcernError`: of a fail point, or of a write concern that cannot be met.
fn append_concern_error(cx: &mut CommandContext<'_, '_>, failure: Option<&Failure>) {
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
    }
}

pub(crate) fn operation(
    command: &'static Command,
    client: &Client<Connection>,
    request: &Request<'_>,
    args: &Args<'_>,
    started: Instant,
) -> Operation {
    Operation {
        id: 0,
        command: command.name,
        ns: match command.target(args.db, args.first) {
            Some((db, coll)) => format!("{db}.{coll}"),
            None => format!("{}.$cmd", args.db),
        },
        body: shown_whole(request),
        connection: client.id,
        client: client.peer.to_string(),
        app_name: client.state.app_name().to_string(),
        lsid: args.generic.lsid,
        started,
        killed: Arc::default(),
        waiting: Default::default(),
    }
}
