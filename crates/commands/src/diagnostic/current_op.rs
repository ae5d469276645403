//! `currentOp`, as a command and as the stage `$currentOp`: what runs, and on request idle
//! connections and idle cursors.

use crate::Commands;
use crate::clock::now_millis;
use crate::monitoring::operations::{Operation, Operations};
use crate::process;
use crate::profiler::{operation_name, summary};
use crate::request::session_of::append_session;
use crate::request::{CommandContext, Done};
use crate::security::authorize;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Fallible, Result};
use executor::{Engine, OpenTransaction};
use front::specification::lookup;
use front::{Args, flag};
use parking_lot::Mutex;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use session::{Cursors, IdleCursor};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The connections there are: number and peer.
pub type Connections = Mutex<BTreeMap<i64, String>>;

/// With `truncateOps`, a longer command is cut off.
const TRUNCATED_BYTES: usize = 1000;

/// Which operations to show.
#[derive(Clone, Debug, Default)]
pub struct OperationFilter {
    pub idle_connections: bool,
    pub idle_cursors: bool,
    /// Open transactions between two statements.
    pub idle_sessions: bool,
    pub truncate: bool,
    /// Only this user's operations.
    pub only: Option<String>,
}

impl OperationFilter {
    /// From the options of the stage.
    pub fn from_stage(spec: Doc<'_>) -> OperationFilter {
        let given = |name: &str| spec.get(name).and_then(|v| v.as_bool());
        let on = |name: &str| given(name).unwrap_or(false);
        OperationFilter {
            idle_connections: on("idleConnections"),
            idle_cursors: on("idleCursors"),
            idle_sessions: given("idleSessions").unwrap_or(true),
            truncate: on("truncateOps"),
            only: None,
        }
    }
}

/// Where it is seen. Owned, since a cursor keeps it.
#[derive(Clone)]
pub struct Watch {
    operations: Arc<Operations>,
    engine: Arc<Engine>,
    cursors: Arc<Cursors>,
    connections: Arc<Connections>,
    host: String,
}

/// What a client that runs the command wants to see.
pub struct CurrentOp {
    /// Idle connections too.
    all: bool,
    /// Only the client's own.
    pub own: bool,
    filter: Filter,
    vars: Vars,
}

impl CurrentOp {
    pub fn of(args: &Args<'_>) -> Result<CurrentOp> {
        let mut filter = Writer::new();
        let (mut all, mut own) = (false, false);
        // All other fields are a filter on the operations shown.
        for e in &args.fields {
            match e.name {
                "$all" => all = e.val.truthy(),
                "$ownOps" => own = e.val.truthy(),
                "$truncateOps" => {}
                name => {
                    filter.val(name, e.val);
                }
            }
        }
        Ok(CurrentOp {
            all,
            own,
            filter: Filter::parse(filter.finish().as_doc(), &ParseEnv::new())?,
            vars: Vars::new(now_millis()),
        })
    }

    /// Whether it wants to see this operation, if that is the client's or all are wanted.
    pub fn shows(&self, operation: Doc<'_>) -> Fallible<bool> {
        let shown = self.filter.matches_with(operation, &self.vars);
        shown.map_err(|stop| stop.into_error())
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let asked = CurrentOp::of(&cx.args)?;
    write(cx, &asked)?;
    Ok(Done::Reply)
}

/// Writes what runs in this process.
pub fn write(cx: &mut CommandContext<'_, '_>, asked: &CurrentOp) -> Result<()> {
    let wanted = OperationFilter {
        idle_connections: asked.all,
        idle_sessions: true,
        only: authorize::name(cx).filter(|_| asked.own),
        ..OperationFilter::default()
    };
    let docs = Watch::new(cx.app).documents(wanted);
    cx.w.open_array("inprog");
    for d in &docs {
        if asked.filter.matches_with(d.as_doc(), &asked.vars)? {
            cx.w.push(d.as_doc().as_val());
        }
    }
    cx.w.close();
    if cx.app.engine.fsync_lock.is_closed() {
        cx.w.bool("fsyncLock", true).str(
            "info",
            "use db.fsyncUnlock() to terminate the fsync write/snapshot lock",
        );
    }
    Ok(())
}

impl Watch {
    pub fn new(app: &Commands) -> Watch {
        Watch {
            operations: app.operations.clone(),
            engine: app.engine.clone(),
            cursors: app.cursors.clone(),
            connections: app.connections.clone(),
            host: format!("{}:{}", process::host_name(), app.config.port),
        }
    }

    /// What there is now.
    pub fn documents(&self, wanted: OperationFilter) -> Vec<DocBuf> {
        let mut running = self.operations.list();
        if let Some(user) = &wanted.only {
            running.retain(|o| o.user.as_ref() == Some(user));
            let own = running.iter().map(|o| self.operation(o, wanted.truncate));
            return own.collect();
        }
        let mut docs: Vec<DocBuf> = running
            .iter()
            .map(|o| self.operation(o, wanted.truncate))
            .collect();
        for b in self.engine.builds.running() {
            let (done, total) = (b.done.load(Relaxed), b.total.load(Relaxed));
            let mut w = self.begin(&format!("IndexBuild-{}", b.name));
            w.bool("active", true).str("op", "command").str("ns", &b.ns);
            w.open_doc("command")
                .str("createIndexes", catalog::collection_of(&b.ns))
                .str("index", &b.name)
                .close();
            w.str("msg", &format!("Index Build: {done}/{total}"));
            w.open_doc("progress")
                .int("done", done as i64)
                .int("total", total as i64)
                .close();
            docs.push(w.finish());
        }
        if wanted.idle_sessions {
            let open = self.engine.transactions.open();
            let idle = open.iter().filter(|t| !t.active.load(Relaxed));
            docs.extend(idle.map(|t| self.idle_transaction(t)));
        }
        if wanted.idle_connections {
            let busy: HashSet<i64> = running.iter().map(|o| o.connection).collect();
            for (id, peer) in self.connections.lock().iter() {
                if !busy.contains(id) {
                    let mut w = self.begin(&format!("conn{id}"));
                    w.int("connectionId", *id)
                        .str("client", peer)
                        .bool("active", false)
                        .str("currentOpTime", &now());
                    w.str("op", "none").str("ns", "").doc("command", Doc::EMPTY);
                    docs.push(w.finish());
                }
            }
        }
        if wanted.idle_cursors {
            docs.extend(self.cursors.idle().iter().map(|c| self.idle_cursor(c)));
        }
        docs
    }

    fn begin(&self, desc: &str) -> Writer {
        let mut w = Writer::new();
        w.str("type", "op")
            .str("host", &self.host)
            .str("desc", desc);
        w
    }

    fn operation(&self, o: &Operation, truncate: bool) -> DocBuf {
        let elapsed = o.started.elapsed();
        // What the server does by itself has no connection.
        let mut w = match o.connection {
            0 => self.begin(o.command),
            n => self.begin(&format!("conn{n}")),
        };
        if o.connection != 0 {
            w.int("connectionId", o.connection).str("client", &o.client);
        }
        if !o.app_name.is_empty() {
            w.str("appName", &o.app_name);
        }
        w.bool("active", true).str("currentOpTime", &now());
        w.int("opid", i64::from(o.id));
        if o.killed.load(Relaxed) {
            w.bool("killPending", true);
        }
        if let Some(lsid) = o.lsid {
            append_session(&mut w, "lsid", &lsid);
        }
        w.int("secs_running", elapsed.as_secs() as i64)
            .i64("microsecs_running", elapsed.as_micros() as i64);
        w.str("op", operation_name(o.command))
            .str("ns", &o.ns)
            .bool("redacted", false);
        let body = o.body.as_doc();
        if truncate && body.len() > TRUNCATED_BYTES {
            let text = bson::json::val_to_string(body.as_val());
            let end = (0..=TRUNCATED_BYTES.min(text.len()))
                .rev()
                .find(|n| text.is_char_boundary(*n))
                .unwrap_or(0);
            w.open_doc("command")
                .str("$truncated", &format!("{}...", &text[..end]));
            if let Some(c) = body.get("comment") {
                w.val("comment", c);
            }
            w.close();
        } else {
            w.doc("command", body);
        }
        if let Some(plan) = o.plan.lock().clone() {
            let coll = self.engine.catalog.get(&o.ns);
            w.str("planSummary", &summary(&plan.access, coll.as_deref()));
        }
        if o.command == "getMore" {
            let id = body.first().map_or(Val::NULL, |e| e.val);
            w.open_doc("cursor")
                .val("cursorId", id)
                .i64("operationUsingCursorId", i64::from(o.id))
                .close();
        }
        let waits = o.waiting.load(Relaxed);
        w.i32("numYields", 0);
        append_locks(&mut w, o, waits);
        w.bool("waitingForFlowControl", false)
            .doc("flowControlStats", Doc::EMPTY);
        w.finish()
    }

    /// An open transaction between two statements.
    fn idle_transaction(&self, t: &OpenTransaction) -> DocBuf {
        let open = t.started.elapsed();
        let mut w = Writer::new();
        w.str("type", "idleSession").str("host", &self.host);
        w.str("desc", "inactive transaction").bool("active", false);
        append_session(&mut w, "lsid", &t.lsid);
        w.open_doc("transaction").open_doc("parameters");
        w.i64("txnNumber", t.number)
            .bool("autocommit", false)
            .close();
        w.i64("timeOpenMicros", open.as_micros() as i64)
            .i64("operations", t.operations.load(Relaxed) as i64)
            .i64("bytes", t.bytes.load(Relaxed) as i64)
            .close();
        w.bool("waitingForLock", false);
        w.finish()
    }

    fn idle_cursor(&self, c: &IdleCursor) -> DocBuf {
        let ago = |at: std::time::Instant| now_millis() - at.elapsed().as_millis() as i64;
        let mut w = Writer::new();
        w.str("type", "idleCursor").str("host", &self.host);
        if let Some(lsid) = c.lsid {
            append_session(&mut w, "lsid", &lsid);
        }
        w.str("ns", &c.ns).open_doc("cursor");
        w.i64("cursorId", c.id)
            .date("createdDate", ago(c.created))
            .date("lastAccessDate", ago(c.used));
        w.bool("noCursorTimeout", c.no_timeout)
            .bool("tailable", false)
            .bool("awaitData", false)
            .doc("originatingCommand", c.command.as_doc());
        w.close();
        w.finish()
    }
}

fn now() -> String {
    service::logging::timestamp(std::time::SystemTime::now())
}

/// The intent locks that the operation counts as having taken (see `engine_figures::locks`): readers
/// take none in truth, and writers latch single records. An operation that waits does so for the lock
/// against all writes.
fn append_locks(w: &mut Writer, o: &Operation, waits: bool) {
    let has = |flag| lookup(o.command).is_some_and(|c| c.is(flag));
    let mode = match () {
        () if waits => Some("w"),
        () if has(flag::READ) => Some("r"),
        () if has(flag::WRITE) => Some("w"),
        () => None,
    };
    w.open_doc("locks");
    if let Some(mode) = mode {
        let names = ["Global", "Database", "Collection"];
        let known = if o.ns.ends_with(".$cmd") { 2 } else { 3 };
        names.iter().take(known).for_each(|name| {
            w.str(name, mode);
        });
    }
    w.close();
    w.bool("waitingForLock", waits).open_doc("lockStats");
    if waits {
        w.open_doc("Global");
        for name in ["acquireCount", "acquireWaitCount"] {
            w.open_doc(name).i64("w", 1).close();
        }
        w.close();
    }
    w.close();
}
