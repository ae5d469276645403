//! Admission: the checks before a command runs, of its session, fail points, concerns and the
//! server's state.
//!
//! Invariant: [`Admission::release`] releases what an [`Admission`] holds; its drop does so after
//! an error or a panic.

use crate::Commands;
use crate::admin::write_block;
use crate::connection::Connection;
use crate::monitoring::operations::Registered;
use crate::request::Call;
use crate::request::CommandContext;
use crate::request::concern::is_linearizable;
use crate::request::operation;
use crate::request::retryable_errors::{not_primary, retryable_code};
use crate::request::{check_generic, transaction};
use crate::security::authorize;
use crate::settings::fail_point::CommandFailure;
use crate::shard::pando_time;
use ::replication::Driver;
use auth::session_id::{Lsid, NOBODY};
use bson::{Doc, Writer};
use errors::{Error, Result, Stop, bail};
use front::Args;
use front::{Specification, flag};
use service::config::ClusterRole;
use service::{Client, Mode, Request, ServerConfig};
use std::time::{Duration, Instant};

/// How often a read that waits for a time looks whether it was ended.
const LOOK: Duration = Duration::from_millis(100);

/// What an admitted request holds until it has run.
pub(crate) struct Admission {
    /// When the request was run first.
    pub started: Instant,
    /// On a worker: its place among the running operations.
    pub registered: Option<Registered>,
    /// What `failCommand` does to its reply.
    pub failure: Option<CommandFailure>,
    /// How many statements `onPrimaryTransactionalWrite` counts for it, if it is a retryable write
    /// and any fail point is on.
    pub losable: Option<usize>,
}

impl Admission {
    /// Called after the command has run and was accounted for: releases what it held. Here a
    /// statement of a multi-document transaction returns its transaction to the session.
    pub fn release(self) {
        drop(self.registered);
    }
}

/// A request that is not admitted.
pub(crate) enum Refusal {
    /// A fail point closes its connection.
    Close,
    Stop(Stop),
}

impl From<Stop> for Refusal {
    fn from(stop: Stop) -> Refusal {
        Refusal::Stop(stop)
    }
}

impl Commands {
    /// Admits a request: checks its session and transaction, registers the operation, applies the
    /// fail points.
    pub(crate) fn admit(&self, call: &Call<'_, '_>, args: &Args<'_>) -> Result<Admission, Refusal> {
        self.enter_session(call.command, args)?;
        let started = call.request.resumed.map_or_else(Instant::now, |r| r.since);
        let mut admission = Admission {
            started,
            registered: None,
            failure: None,
            losable: None,
        };
        if call.mode == Mode::Worker {
            let operation = operation(call.command, call.client, call.request, args, started);
            admission.registered = Some(self.operations.register(operation));
            if self.fail_points.any() {
                self.meet_fail_points(call, args, &mut admission)?;
            }
        }
        Ok(admission)
    }

    /// Applies the fail points that act before a command. Those that are on keep every command off
    /// the event loops.
    fn meet_fail_points(
        &self,
        call: &Call<'_, '_>,
        args: &Args<'_>,
        admission: &mut Admission,
    ) -> Result<(), Refusal> {
        // A hello that has waited has passed them.
        let waited = call.request.again && call.client.state.monitor.lock().is_waiting();
        if !waited {
            let failure = self.fail(call.command, call.client, call.request, args)?;
            if failure.as_ref().is_some_and(|f| f.close_connection) {
                return Err(Refusal::Close);
            }
            admission.failure = failure;
        }
        if !is_retryable_write(call.command, args) {
            return Ok(());
        }
        let count = statements(call.request, args);
        admission.losable = Some(count);
        match self.fail_points.retryable_write(false, count) {
            None => Ok(()),
            Some(lost) if lost.close_connection => Err(Refusal::Close),
            Some(lost) => Err(Refusal::Stop(Stop::Failed(Error::coded(
                lost.code.unwrap_or(1),
                "Failing write due to failpoint. The write must not be reflected.",
            )))),
        }
    }

    /// Makes a session the client's own: another user's of the same id is another one.
    pub(crate) fn own_session(&self, client: &Client<Connection>, lsid: &mut Lsid) -> Result<()> {
        if !self.security.enabled {
            lsid.uid = NOBODY;
            return Ok(());
        }
        let own = client.state.login.uid();
        // A router says whose session it is.
        let speaks_for_others = || authorize::is_member(client);
        if lsid.uid != NOBODY && lsid.uid != own {
            if speaks_for_others() {
                return Ok(());
            }
            bail!(
                Unauthorized,
                "Unauthorized to set user digest in LogicalSessionId"
            );
        }
        lsid.uid = own;
        Ok(())
    }

    /// Checks what the session and the transaction number of a request allow, and keeps the session
    /// alive.
    fn enter_session(&self, command: &Specification, args: &Args<'_>) -> Result<()> {
        if let Some(lsid) = &args.generic.lsid {
            self.sessions.touch(lsid)?;
        }
        check_session(command, args, &self.config)
    }

    /// Applies the fail point `failCommand`: blocks, fails, or tells what happens to the reply.
    pub(crate) fn fail(
        &self,
        command: &Specification,
        client: &Client<Connection>,
        request: &Request<'_>,
        args: &Args<'_>,
    ) -> Result<Option<CommandFailure>> {
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
            let mut extra = Writer::new();
            if let Some(concern) = &f.write_concern_error {
                extra.doc("writeConcernError", concern.as_doc());
            }
            match &f.labels {
                Some(labels) => write_labels(&mut extra, labels.iter().map(String::as_str)),
                None if is_retryable_write(command, args) && retryable_code(code) => {
                    e = e.with_label("RetryableWriteError")
                }
                None => e = transaction::with_label(e, command, args),
            }
            return Err(e.with_extra(extra.finish().into_vec()).into());
        }
        Ok(Some(f))
    }
}

/// Checks the session, the transaction number, and what has to stand together with them.
pub(crate) fn check_session(
    command: &Specification,
    args: &Args<'_>,
    config: &ServerConfig,
) -> Result<()> {
    let g = &args.generic;
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
    if config.topology.is_standalone() {
        bail!(
            IllegalOperation,
            "Transaction numbers are only allowed on a replica set member or mongos"
        );
    }
    if g.autocommit == Some(true) {
        bail!(InvalidOptions, "Specifying autocommit=true is not allowed.");
    }
    if transaction::is_statement(args) {
        return transaction::check_arguments(command, args, config.role);
    }
    if g.start_transaction {
        bail!(
            InvalidOptions,
            "'startTransaction' field requires 'autocommit' field to also be specified"
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

/// The checks that need the command's context: its concerns, then what may hold it back: the write
/// block, the gate of `fsync`'s lock, the memory for long replies, a time limit of nothing.
pub(crate) fn pass_checks(cx: &mut CommandContext<'_, '_>, started: Instant) -> Result<()> {
    let command = cx.command;
    authorize::check(cx)?;
    heed_generic(cx)?;
    check_role(cx)?;
    write_block::check(cx)?;
    if command.is(flag::WRITE) && command.is(flag::WORKER) {
        // Changes of the catalog; writes to collections wait where they lock them.
        cx.op.pass_gate()?;
    }
    if command.is(flag::LONG) && cx.app.control.in_flight.is_short() {
        cx.op.take_room(false)?;
    }
    if cx.op.deadline == Some(started) {
        cx.op.check()?;
    }
    Ok(())
}

/// Checks the generic arguments, and heeds them.
fn heed_generic(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    let g = cx.args.generic;
    let concern = check_generic(cx.command, &cx.args, &cx.app.config.topology)?;
    if g.from_migrate {
        cx.op.from_migrate = authorize::may_as_member(cx);
    }
    match (concern, g.write_concern) {
        (Some(concern), Some(v)) => cx.await_concern(concern, v),
        (None, _) if cx.command.is(flag::WRITE) => cx.heed_write_concern(None),
        _ => Ok(()),
    }
}

/// Whether this member of its set may run the command: the primary any, a secondary those that read
/// where the client allows it.
fn check_role(cx: &CommandContext<'_, '_>) -> Result<()> {
    let Some(driver) = &cx.app.replica else {
        return Ok(());
    };
    let command = cx.command;
    let writes =
        command.is(flag::WRITE) && !command.is(flag::READ) || transaction::is_statement(&cx.args);
    let reads = command.is(flag::READ)
        || matches!(
            command.name,
            "listCollections" | "listIndexes" | "listDatabases" | "dbStats" | "collStats"
        );
    if !(writes || reads) || command.name == "getMore" {
        return Ok(());
    }
    if is_linearizable(&cx.args) {
        cx.op.need_worker()?;
        if !driver.is_leading() {
            return Err(not_primary().into());
        }
    }
    await_cluster_time(cx, driver)?;
    let status = driver.status();
    if status.is_primary() && driver.is_open() {
        return Ok(());
    }
    if !crate::topology::member::has_data(&status) && cx.args.db != "local" {
        match writes {
            true => return Err(not_primary().into()),
            false => bail!(
                NotPrimaryOrSecondary,
                "node is not in primary or recovering state"
            ),
        }
    }
    if writes {
        return Err(not_primary().into());
    }
    if !cx.args.generic.secondary_ok && !status.is_primary() && cx.args.db != "local" {
        bail!(NotPrimaryNoSecondaryOk, "not primary and secondaryOk=false");
    }
    Ok(())
}

/// Waits until this member has what the client has seen elsewhere (`afterClusterTime`).
fn await_cluster_time(cx: &CommandContext<'_, '_>, driver: &Driver) -> Result<()> {
    let concern = cx.args.generic.read_concern.and_then(|v| v.as_doc());
    let after = concern.and_then(|d| d.get("afterClusterTime")?.as_timestamp());
    let store = &cx.app.store;
    let Some(after) = after.filter(|ts| *ts > store.last_ts()) else {
        return Ok(());
    };
    cx.op.need_worker()?;
    if cx.app.config.role == ClusterRole::Shard && driver.is_leading() {
        // Another shard's time: nothing need be written here for it to come.
        pando_time::reach(cx, after)?;
    }
    while store.last_ts() < after {
        cx.op.check()?;
        driver.wait(Instant::now() + LOOK, |_| store.last_ts() >= after);
    }
    Ok(())
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

pub(crate) fn is_retryable_write(command: &Specification, args: &Args<'_>) -> bool {
    let numbered = command.is(flag::RETRY) && args.generic.txn_number.is_some();
    numbered && !transaction::is_statement(args)
}

pub(crate) fn write_labels<'a>(w: &mut Writer, labels: impl Iterator<Item = &'a str>) {
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
