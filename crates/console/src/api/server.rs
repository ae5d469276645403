//! Running operations, their end, and the log.

use super::{ApiAnswer, ApiFailure, aggregate, ask, doc_to_json, find, first_batch, simple};
use crate::Shared;
use crate::http::HttpRequest;
use crate::in_process::ServerConnection;
use bson::{Val, Writer};
use serde_json::{Value, json};

const MOST_OPERATIONS: i32 = 500;

/// All operations, or only the user's own without the right to see others.
pub fn running(c: &mut dyn ServerConnection) -> ApiAnswer {
    let list = |c: &mut dyn ServerConnection, all: bool| {
        let stage =
            json!({"$currentOp": {"allUsers": all, "idleSessions": true, "truncateOps": true}});
        let limit = json!({"$limit": MOST_OPERATIONS});
        let sort = json!({"$sort": {"microsecs_running": -1}});
        ask(
            c,
            "admin",
            &aggregate(None, json!([stage, sort, limit]), MOST_OPERATIONS),
        )
    };
    let (reply, all) = match list(c, true) {
        Err(f) if f.is_code(super::UNAUTHORIZED) => (list(c, false)?, false),
        listed => (listed?, true),
    };
    let operations = first_batch(&reply).into_iter().map(doc_to_json);
    let operations: Vec<Value> = operations.collect();
    Ok(json!({"allUsers": all, "operations": operations, "locksAgainstWrites": locks(c)}))
}

/// How many locks against all writes there are, where the user may know.
fn locks(c: &mut dyn ServerConnection) -> Value {
    let mut w = Writer::new();
    w.i32("serverStatus", 1);
    for section in [
        "metrics",
        "catalogStats",
        "wiredTiger",
        "repl",
        "opLatencies",
    ] {
        w.i32(section, 0);
    }
    let status = ask(c, "admin", &w.finish()).ok();
    let pandodb = status.as_ref().and_then(|s| s.get("pandodb")?.as_doc());
    let locks = pandodb.and_then(|p| p.get("locksAgainstWrites")?.to_i64_exact());
    locks.map_or(Value::Null, Value::from)
}

pub fn kill(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let body = r
        .json()
        .ok_or_else(|| ApiFailure::new(400, "the body is no object"))?;
    let opid = body.get("opid");
    let opid = opid.and_then(bson::json::to_value);
    let opid = opid.ok_or_else(|| ApiFailure::new(400, "opid is missing"))?;
    let mut w = Writer::new();
    w.i32("killOp", 1).value("op", opid);
    ask(c, "admin", &w.finish())?;
    Ok(json!({}))
}

/// The newest lines, those of the start and its warnings, the certificate, and the last backup.
pub fn log(shared: &Shared, c: &mut dyn ServerConnection) -> ApiAnswer {
    let mut answer = json!({});
    for (name, log) in [("lines", "global"), ("startupWarnings", "startupWarnings")] {
        let mut w = Writer::new();
        w.str("getLog", log);
        let reply = ask(c, "admin", &w.finish())?;
        let lines = reply.get("log").and_then(Val::as_array);
        let lines = lines.into_iter().flat_map(|l| l.values());
        answer[name] = lines.filter_map(Val::as_str).map(entry).collect();
    }
    answer["start"] = shared.start.lines().iter().map(|l| entry(l)).collect();
    answer["backup"] = backup(c);
    if let Ok(status) = ask(c, "admin", &simple("serverStatus")) {
        let security = status.get("security").and_then(Val::as_doc);
        let security = security.map_or(Value::Null, doc_to_json);
        answer["certificate"] = security["SSLServerCertificateExpirationDate"].clone();
        let started = status.get("uptimeMillis").and_then(Val::to_f64);
        answer["uptimeMillis"] = json!(started);
    }
    Ok(answer)
}

/// The last backup that the server knows of; `known` is false if the user may not read it.
fn backup(c: &mut dyn ServerConnection) -> Value {
    let last = find("settings", json!({"_id": "lastBackup"}), json!({}), 1);
    let Ok(reply) = ask(c, "config", &last) else {
        return json!({"known": false});
    };
    let mut answer = json!({"known": true});
    if let Some(last) = first_batch(&reply).first() {
        for name in ["at", "backup", "to"] {
            answer[name] = last.get(name).map_or(Value::Null, super::to_json);
        }
    }
    answer
}

/// A line of the log as what it says; one that was cut off as text.
fn entry(line: &str) -> Value {
    match serde_json::from_str(line) {
        Ok(Value::Object(entry)) => Value::Object(entry),
        _ => json!({"msg": line}),
    }
}
