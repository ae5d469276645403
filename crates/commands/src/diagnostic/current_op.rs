//! `currentOp`, as a command (the stage `$currentOp` shows the same documents).

use crate::clock::now_millis;
use crate::cx::{Cx, Done};
use crate::operations::Operation;
use bson::{Doc, DocBuf, Writer};
use errors::Result;
use executor::Engine;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let mut filter = Writer::new();
    // Nobody is authenticated, so every operation is everybody's own; all other fields are a filter on what is shown.
    for e in cx
        .args
        .fields
        .iter()
        .filter(|e| !matches!(e.name, "$ownOps" | "$all"))
    {
        filter.val(e.name, e.val);
    }
    let filter = Filter::parse(filter.finish().as_doc(), &ParseEnv::new())?;
    let vars = Vars::new(now_millis());
    let host = format!("{}:{}", super::process::host_name(), cx.app.config.port);
    let docs = documents(&cx.app.operations.list(), &cx.app.engine, &host);
    cx.w.open_array("inprog");
    for d in &docs {
        if filter.matches_with(d.as_doc(), &vars)? {
            cx.w.push(d.as_doc().as_val());
        }
    }
    cx.w.close();
    Ok(Done::Reply)
}

/// What runs now.
pub fn documents(running: &[Arc<Operation>], engine: &Engine, host: &str) -> Vec<DocBuf> {
    let mut docs: Vec<DocBuf> = running.iter().map(|o| document(o, host)).collect();
    for b in engine.builds.running() {
        let (done, total) = (b.done.load(Relaxed), b.total.load(Relaxed));
        let mut w = Writer::new();
        w.str("type", "op")
            .str("host", host)
            .str("desc", &format!("IndexBuild-{}", b.name))
            .bool("active", true);
        w.str("op", "command").str("ns", &b.ns);
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
    docs
}

fn document(o: &Operation, host: &str) -> DocBuf {
    let elapsed = o.started.elapsed();
    let mut w = Writer::new();
    w.str("type", "op")
        .str("host", host)
        .str("desc", &format!("conn{}", o.connection));
    w.int("connectionId", o.connection).str("client", &o.client);
    if !o.app_name.is_empty() {
        w.str("appName", &o.app_name);
    }
    w.bool("active", true);
    w.str(
        "currentOpTime",
        &service::logging::timestamp(std::time::SystemTime::now()),
    );
    w.int("opid", i64::from(o.id));
    if o.killed.load(Relaxed) {
        w.bool("killPending", true);
    }
    if let Some(id) = o.lsid {
        w.open_doc("lsid").binary("id", 4, &id).close();
    }
    w.int("secs_running", elapsed.as_secs() as i64)
        .i64("microsecs_running", elapsed.as_micros() as i64);
    let kind = match o.command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" | "update" => o.command,
        "delete" => "remove",
        _ => "command",
    };
    w.str("op", kind)
        .str("ns", &o.ns)
        .bool("redacted", false)
        .doc("command", o.body.as_doc())
        .i32("numYields", 0);
    w.doc("locks", Doc::EMPTY)
        .bool("waitingForLock", false)
        .doc("lockStats", Doc::EMPTY);
    w.bool("waitingForFlowControl", false)
        .doc("flowControlStats", Doc::EMPTY);
    w.finish()
}
