//! Slow-command log and profiler: after a command one document describes it. The document goes to
//! the log when the command was slow, and to `<database>.system.profile` when the database is
//! profiled.
//!
//! Invariant: a command whose database is not profiled pays for two loads of atomics. One whose
//! database is runs on a worker, so that its profile is written before its reply is sent.

use crate::Commands;
use crate::clock::now_millis;
use crate::connection::Connection;
use crate::monitoring::operations::{shown, shown_whole};
use bson::{Doc, DocBuf, Val, Writer, doc};
use catalog::Collection;
use errors::{Code, Error, Result};
use executor::{Examined, OpCtx};
use front::{Specification, flag};
use parking_lot::RwLock;
use planner::{Access, IndexAccess, Plan};
use query::expr::Vars;
use query::filter::Filter;
use service::{Client, Request};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The collection that profiles are written to, and how many bytes of them are kept.
const COLLECTION: &str = "system.profile";
const PROFILE_BYTES: i64 = 1 << 20;

/// How one database is profiled.
#[derive(Clone, Default)]
pub struct ProfilerSettings {
    /// 0: not; 1: what is slow; 2: everything.
    pub level: i32,
    /// A filter that replaces the time limit.
    pub filter: Option<Arc<Filter>>,
}

/// The profiler of all databases.
pub struct Profiler {
    /// Some database has settings of its own, or every command is logged.
    any: AtomicBool,
    /// Every command is logged.
    verbose: AtomicBool,
    slow_ms: AtomicI64,
    /// The bits of an f64.
    sample_rate: AtomicU64,
    databases: RwLock<Databases>,
}

#[derive(Default)]
struct Databases {
    own: HashMap<String, ProfilerSettings>,
    /// Level and filter of a database that has no settings of its own.
    level: i32,
    filter: Option<Arc<Filter>>,
}

impl Databases {
    fn of(&self, db: &str) -> ProfilerSettings {
        let common = || ProfilerSettings {
            level: self.level,
            filter: self.filter.clone(),
        };
        self.own.get(db).cloned().unwrap_or_else(common)
    }

    /// Whether any database is profiled or has a filter.
    fn any(&self) -> bool {
        !self.own.is_empty() || self.filter.is_some() || self.level > 0
    }
}

impl Profiler {
    pub fn new(slow_ms: i64) -> Profiler {
        Profiler {
            any: AtomicBool::new(false),
            verbose: AtomicBool::new(false),
            slow_ms: AtomicI64::new(slow_ms),
            sample_rate: AtomicU64::new(1f64.to_bits()),
            databases: RwLock::default(),
        }
    }

    /// The level of databases without one of their own (`--profile`).
    pub fn profile_all(&self, level: i32) {
        let mut databases = self.databases.write();
        databases.level = level;
        self.any.store(self.verbose() || databases.any(), Relaxed);
    }

    pub fn slow_ms(&self) -> i64 {
        self.slow_ms.load(Relaxed)
    }

    pub fn set_slow_ms(&self, ms: i64) {
        self.slow_ms.store(ms, Relaxed);
    }

    pub fn sample_rate(&self) -> f64 {
        f64::from_bits(self.sample_rate.load(Relaxed))
    }

    pub fn set_sample_rate(&self, rate: f64) {
        self.sample_rate.store(rate.to_bits(), Relaxed);
    }

    pub fn settings(&self, db: &str) -> ProfilerSettings {
        if !self.any.load(Relaxed) {
            return ProfilerSettings::default();
        }
        self.databases.read().of(db)
    }

    pub fn set(&self, db: &str, settings: ProfilerSettings) {
        let mut databases = self.databases.write();
        if settings.level == databases.level
            && settings.filter.is_none()
            && databases.filter.is_none()
        {
            databases.own.remove(db);
        } else {
            databases.own.insert(db.to_string(), settings);
        }
        self.any.store(self.verbose() || databases.any(), Relaxed);
    }

    /// Sets the filter of all databases, also of those to come. Gives what the latter would have had.
    pub fn set_filter_globally(&self, filter: Option<Arc<Filter>>) -> Option<Arc<Filter>> {
        let mut databases = self.databases.write();
        for own in databases.own.values_mut() {
            own.filter = filter.clone();
        }
        let was = std::mem::replace(&mut databases.filter, filter);
        if databases.filter.is_none() {
            databases.own.retain(|_, own| own.level != 0);
        }
        self.any.store(self.verbose() || databases.any(), Relaxed);
        was
    }

    fn verbose(&self) -> bool {
        self.verbose.load(Relaxed)
    }

    /// Has every command logged, as a slow one is (`logComponentVerbosity`).
    pub fn set_verbose(&self, on: bool) {
        let databases = self.databases.write();
        self.verbose.store(on, Relaxed);
        self.any.store(on || databases.any(), Relaxed);
    }

    /// Whether a command on that database may have to be profiled, and so must not run on an event
    /// loop.
    #[inline]
    pub fn may_write<'a>(&self, db: impl FnOnce() -> Option<&'a str>) -> bool {
        self.any.load(Relaxed) && db().is_some_and(|db| self.settings(db).level > 0)
    }

    /// Whether a command of this duration is logged or profiled.
    #[inline]
    pub fn wants(&self, elapsed: Duration) -> bool {
        self.any.load(Relaxed) || elapsed.as_millis() as i64 >= self.slow_ms()
    }
}

/// A command that has run.
pub struct Observed<'a> {
    pub client: &'a Client<Connection>,
    pub command: &'static Specification,
    pub request: &'a Request<'a>,
    pub db: &'a str,
    pub first: Val<'a>,
    pub reply: Doc<'a>,
    /// What it failed with.
    pub failure: Option<&'a Error>,
    pub plan: Option<Arc<Plan>>,
    pub examined: Examined,
    /// Of what the planner looked at, and of the query's shape.
    pub hashes: Option<(String, Option<String>)>,
    pub elapsed: Duration,
    /// The command that made the cursor of a getMore: its comment is the getMore's too.
    pub originating: Option<DocBuf>,
}

impl Commands {
    /// Logs and profiles a command that has run, when it is to be.
    pub fn observe(&self, o: &Observed<'_>) {
        let settings = self.profiler.settings(o.db);
        let slow = o.elapsed.as_millis() as i64 >= self.profiler.slow_ms();
        let verbose = self.profiler.verbose();
        if !slow && !verbose && settings.level == 0 && settings.filter.is_none() {
            return;
        }
        let document = self.document(o);
        let chosen = match &settings.filter {
            Some(f) => f
                .matches_with(document.as_doc(), &Vars::new(now_millis()))
                .unwrap_or(false),
            None => slow && sampled(self.profiler.sample_rate()),
        };
        if chosen || verbose {
            log(o, document.as_doc());
        }
        let profiled = settings.level == 2 || settings.level == 1 && chosen;
        if profiled && !o.command.is(flag::HANDSHAKE) && o.command.name != "profile" {
            self.write_profile(o.db, document.as_doc());
        }
    }

    /// Makes the collection of a database's profiles, if there is none.
    pub fn create_profile(&self, db: &str) -> Result<()> {
        let ns = format!("{db}.{COLLECTION}");
        if self.engine.catalog.get(&ns).is_none() {
            let options = doc! { "capped": true, "size": PROFILE_BYTES };
            self.engine.catalog.create(&ns, options)?;
        }
        Ok(())
    }

    fn write_profile(&self, db: &str, document: Doc<'_>) {
        // Locked against writes: what reads must not wait.
        if self.engine.fsync_lock.is_closed() {
            return;
        }
        let ns = format!("{db}.{COLLECTION}");
        if let Err(e) = self.create_profile(db) {
            tracing::warn!(target: "COMMAND", error = %e, namespace = ns, "The profile could not be created");
            return;
        }
        let mut op = OpCtx::worker(&self.engine);
        if let Err(e) = executor::insert(&mut op, &ns, &[document], true, None) {
            tracing::warn!(target: "COMMAND", id = 20703, error = %e, namespace = ns, "Caught exception while trying to profile an operation");
        }
    }

    /// The profile of a command, in MongoDB's shape.
    fn document(&self, o: &Observed<'_>) -> DocBuf {
        let of_cursor = || Some((o.db, o.request.body.get("collection")?.as_str()?));
        let target = match o.command.name {
            "getMore" => of_cursor(),
            _ => o.command.target(o.db, o.first),
        };
        let (db, coll) = target.unwrap_or((o.db, "$cmd"));
        let ns = format!("{db}.{coll}");
        let body = statement(o).unwrap_or_else(|| shown_whole(o.request));
        let mut w = Writer::with_capacity(512 + body.as_bytes().len());
        w.str("op", operation_name(o.command.name)).str("ns", &ns);
        let inherited = o.originating.as_ref().and_then(|d| d.get("comment"));
        match inherited {
            Some(c) if !body.as_doc().contains("comment") => {
                w.open_doc("command").extend(body.as_doc());
                w.val("comment", c).close();
            }
            _ => {
                w.doc("command", body.as_doc());
            }
        }
        if let Some(d) = &o.originating {
            w.doc("originatingCommand", shown(d.as_doc()).as_doc());
        }
        if o.command.name == "getMore" {
            w.val("cursorid", o.first);
        }
        w.int("keysExamined", o.examined.keys as i64)
            .int("docsExamined", o.examined.docs as i64);
        if o.examined.hidden > 0 {
            w.int("hiddenKeysSkipped", o.examined.hidden as i64);
        }
        if o.examined.planning > 0 {
            w.int("planningReads", o.examined.planning as i64);
        }
        if o.plan.as_ref().is_some_and(|p| p.sort.is_some()) {
            w.bool("hasSortStage", true);
        }
        for (name, n) in [
            ("fromMultiPlanner", o.examined.raced),
            ("replanned", o.examined.replanned),
        ] {
            if n > 0 {
                w.bool(name, true);
            }
        }
        write_hashes(&mut w, o.hashes.as_ref());
        counts(&mut w, o.command.name, o.reply);
        w.i32("numYield", 0).doc("locks", Doc::EMPTY);
        if let Some(e) = o.failure {
            w.bool("ok", false)
                .str("errMsg", &e.message)
                .str("errName", &e.code.name())
                .i32("errCode", e.code.0);
        }
        w.int("responseLength", o.reply.len() as i64)
            .str("protocol", "op_msg");
        w.int("millis", o.elapsed.as_millis() as i64)
            .int("micros", o.elapsed.as_micros() as i64);
        if let Some(plan) = &o.plan {
            let coll = self.engine.catalog.get(&ns);
            w.str("queryFramework", "classic");
            w.str("planSummary", &summary(&plan.access, coll.as_deref()));
            w.int(
                "planningTimeMicros",
                (o.examined.planning_nanos / 1000) as i64,
            );
        }
        w.date("ts", now_millis())
            .str("client", &o.client.peer.to_string())
            .str("appName", o.client.state.app_name());
        w.open_array("allUsers").close().str("user", "");
        w.finish()
    }
}

/// The hashes by which queries of one kind are grouped, under MongoDB 8's names.
fn write_hashes(w: &mut Writer, hashes: Option<&(String, Option<String>)>) {
    let Some((plan, shape)) = hashes else {
        return;
    };
    w.str("planCacheShapeHash", plan).str("planCacheKey", plan);
    if let Some(shape) = shape {
        w.str("queryShapeHash", shape);
    }
}

/// An update or delete of one statement is shown as that statement, as MongoDB shows each.
fn statement(o: &Observed<'_>) -> Option<DocBuf> {
    let (field, flags): (_, &[&str]) = match o.command.name {
        "update" => ("updates", &["multi", "upsert"]),
        "delete" => ("deletes", &[]),
        _ => return None,
    };
    let only = match o.request.sequence(field) {
        Some(mut docs) => docs.next().filter(|_| docs.next().is_none()),
        None => {
            let array = o.request.body.get(field).and_then(|v| v.as_array())?;
            let mut docs = array.values();
            docs.next().filter(|_| docs.next().is_none())?.as_doc()
        }
    }?;
    let mut w = Writer::new();
    for e in only {
        match e.val.as_str().filter(|_| e.name == "hint") {
            // An index's name stands in the form that a parsed hint has.
            Some(name) => w.open_doc("hint").str("$hint", name).close(),
            None => w.val(e.name, e.val),
        };
    }
    for flag in flags.iter().filter(|f| !only.contains(f)) {
        w.bool(flag, false);
    }
    if let Some(c) = o.request.body.get("comment") {
        w.val("comment", c);
    }
    Some(shown(w.finish().as_doc()))
}

fn sampled(rate: f64) -> bool {
    rate >= 1.0 || rand::random::<f64>() < rate
}

/// How profiles and currentOp name a command's kind.
pub fn operation_name(command: &str) -> &str {
    match command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" | "update" => command,
        "delete" => "remove",
        _ => "command",
    }
}

/// What the reply tells of documents returned and changed.
fn counts(w: &mut Writer, command: &str, reply: Doc<'_>) {
    let number = |d: Doc<'_>, name: &str| d.get(name).and_then(|v| v.to_i64_truncated());
    if let Some(cursor) = reply.get("cursor").and_then(|v| v.as_doc()) {
        let batch = cursor.get("firstBatch").or_else(|| cursor.get("nextBatch"));
        if let Some(batch) = batch.and_then(|v| v.as_array()) {
            w.int("nreturned", batch.values().count() as i64);
        }
        w.bool("cursorExhausted", number(cursor, "id") == Some(0));
    }
    let n = number(reply, "n").unwrap_or(0);
    match command {
        "insert" => {
            w.int("ninserted", n);
        }
        "delete" => {
            w.int("ndeleted", n);
        }
        "update" => {
            let upserted = reply.get("upserted").and_then(|v| v.as_array());
            let upserted = upserted.map_or(0, |a| a.values().count() as i64);
            w.int("nMatched", n - upserted)
                .int("nModified", number(reply, "nModified").unwrap_or(0))
                .int("nUpserted", upserted);
        }
        "bulkWrite" => {
            for (from, to) in [
                ("nInserted", "ninserted"),
                ("nMatched", "nMatched"),
                ("nModified", "nModified"),
                ("nUpserted", "nUpserted"),
                ("nDeleted", "ndeleted"),
            ] {
                w.int(to, number(reply, from).unwrap_or(0));
            }
        }
        "findAndModify" => {
            if let Some(d) = reply.get("lastErrorObject").and_then(|v| v.as_doc()) {
                w.int("nMatched", number(d, "n").unwrap_or(0));
            }
        }
        _ => {}
    }
}

/// A plan in a few words: `COLLSCAN`, `IXSCAN { a: 1 }`.
pub fn summary(access: &Access, coll: Option<&Collection>) -> String {
    let index = |a: &IndexAccess| {
        let (id, stage) = match a.distinct {
            Some(_) => (a.index, "DISTINCT_SCAN"),
            None => (a.index, "IXSCAN"),
        };
        let spec = coll.and_then(|c| c.index(id)).map(|i| &i.spec);
        let key = spec.and_then(|s| s.get("key"));
        let key = key.map(|k| bson::shell::val(k)).unwrap_or_default();
        format!("{stage} {key}")
    };
    match access {
        Access::Eof => "EOF".into(),
        Access::Ids(_) => "IDHACK".into(),
        a @ Access::Records { .. } if a.is_scan() => "COLLSCAN".into(),
        Access::Records { .. } => "IXSCAN { _id: 1 }".into(),
        Access::Index(i) => index(i),
        Access::Or(branches) => joined(branches.iter().map(|b| summary(&b.access, coll))),
        Access::Near(n) => {
            let spec = coll.and_then(|c| c.index(n.index)).map(|i| &i.spec);
            let key = spec.and_then(|s| s.get("key"));
            let key = key.map(|k| bson::shell::val(k)).unwrap_or_default();
            let plane = key.contains("\"2d\"");
            let stage = if plane {
                "GEO_NEAR_2D"
            } else {
                "GEO_NEAR_2DSPHERE"
            };
            format!("{stage} {key}")
        }
        Access::Merge(branches, _) => joined(branches.iter().map(|b| index(&b.access))),
    }
}

/// The summaries of so many branches are shown; there may be as many as fit into a command.
const MOST_BRANCHES: usize = 64;

fn joined(mut branches: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = branches.by_ref().take(MOST_BRANCHES).collect();
    if branches.next().is_some() {
        all.push("...".into());
    }
    all.join(", ")
}

/// The line of a slow command, as MongoDB writes it.
fn log(o: &Observed<'_>, profile: Doc<'_>) {
    let mut w = Writer::with_capacity(profile.len() + 64);
    let written = statement(o).is_some();
    let kind = match written {
        true => operation_name(o.command.name),
        false => "command",
    };
    w.str("type", kind).bool("isFromUserConnection", true);
    for e in profile {
        match e.name {
            "op" | "micros" | "ts" | "allUsers" | "user" | "locks" => {}
            "millis" => {}
            "client" => {
                w.val("remote", e.val);
            }
            "responseLength" => {
                w.val("reslen", e.val);
            }
            "numYield" => {
                w.val("numYields", e.val);
            }
            "ok" => {
                w.i32("ok", 0);
            }
            "appName" if e.val.as_str() == Some("") => {}
            name => {
                w.val(name, e.val);
            }
        }
    }
    let millis = o.elapsed.as_millis() as i64;
    // Waiting for news is in neither.
    w.int("workingMillis", millis).int("durationMillis", millis);
    let attr = w.finish();
    let text = bson::json::val_to_string(attr.as_doc().as_val());
    let ctx = format!("conn{}", o.client.id);
    if o.failure.is_some_and(|e| e.code == Code::Interrupted) {
        tracing::info!(target: "COMMAND", id = 51803, ctx = ctx, attr.json = %text, interrupted = true, "Slow query");
    } else if written {
        tracing::info!(target: "WRITE", id = 51803, ctx = ctx, attr.json = %text, "Slow query");
    } else {
        tracing::info!(target: "COMMAND", id = 51803, ctx = ctx, attr.json = %text, "Slow query");
    }
}
