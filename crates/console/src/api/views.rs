//! What the process has measured of itself; each answer follows a command of the user that needs the
//! right.

use super::{
    ApiAnswer, ApiFailure, UNAUTHORIZED, aggregate, ask, doc_to_json, find, first_batch,
    reply_to_json, simple, text,
};
use crate::Shared;
use crate::http::HttpRequest;
use crate::in_process::ServerConnection;
use crate::session::ConsoleSession;
use bson::{Doc, Val, Writer};
use serde_json::{Value, json};

/// How `$currentOp` calls what moves between shards.
const MOVE: &str = "MoveCoordinator";

/// What `GET log` and the slow operations need: they are out of the log.
fn may_read_log(c: &mut dyn ServerConnection) -> Result<(), ApiFailure> {
    let mut w = Writer::new();
    w.str("getLog", "startupWarnings");
    ask(c, "admin", &w.finish()).map(|_| ())
}

/// The logged-in user, the server, and the views that the user may see.
pub fn session(
    shared: &Shared,
    session: &ConsoleSession,
    c: &mut dyn ServerConnection,
) -> ApiAnswer {
    let hello = ask(c, "admin", &simple("hello"))?;
    let build = ask(c, "admin", &simple("buildInfo"))?;
    let text = |name: &str| hello.get(name).and_then(Val::as_str).map(String::from);
    let is_router = text("msg").as_deref() == Some("isdbgrid");
    let refused = |answer: Result<_, ApiFailure>| match answer {
        Err(f) if f.is_code(UNAUTHORIZED) => true,
        Err(_) | Ok(_) => false,
    };
    let mut views = vec!["running", "data"];
    if !refused(ask(c, "admin", &simple("serverStatus"))) {
        views.push("now");
    }
    if may_read_log(c).is_ok() {
        views.extend(["slow", "log"]);
    }
    let set = text("setName");
    if set.is_some() && !refused(ask(c, "admin", &simple("replSetGetStatus"))) {
        views.push("members");
    }
    let shards = find("shards", json!({}), json!({}), 1);
    if is_router && ask(c, "config", &shards).is_ok() {
        views.push("shards");
    }
    let own = build.get("pandodb").and_then(Val::as_doc);
    let version = own.and_then(|d| d.get("version")?.as_str());
    Ok(json!({
        "user": session.user, "login": shared.authorization, "role": if is_router { "router" } else { "node" },
        "set": set, "me": text("me"), "primary": text("primary"),
        "version": version.unwrap_or(env!("CARGO_PKG_VERSION")),
        "compatibleWith": build.get("version").and_then(Val::as_str), "views": views,
    }))
}

/// The figures of the last hour, and those of this moment.
pub fn now(shared: &Shared, c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let mut w = Writer::new();
    w.i32("serverStatus", 1);
    for section in [
        "metrics",
        "electionMetrics",
        "catalogStats",
        "wiredTiger",
        "repl",
    ] {
        w.i32(section, 0);
    }
    let status = ask(c, "admin", &w.finish())?;
    let after = r.parameter("after").and_then(|v| v.parse().ok());
    let mut answer = shared.history.json(after.unwrap_or(0));
    answer["status"] = reply_to_json(&status);
    let [waiting, moves] = match waiting_and_moves(c) {
        Ok(found) => found,
        Err(_) => [Value::Null, Value::Null],
    };
    answer["waiting"] = waiting;
    answer["moves"] = moves;
    Ok(answer)
}

/// Operations that wait for others, and what moves between shards, where the user may see them.
fn waiting_and_moves(c: &mut dyn ServerConnection) -> Result<[Value; 2], ApiFailure> {
    let pipeline = json!([
        {"$currentOp": {"allUsers": true, "idleSessions": false, "truncateOps": true}},
        {"$match": {"$or": [{"waitingForLock": true}, {"desc": MOVE}]}},
        {"$limit": 40},
    ]);
    let reply = ask(c, "admin", &aggregate(None, pipeline, 40))?;
    let all = first_batch(&reply).into_iter();
    let is_move = |d: &Doc<'_>| d.get("desc").and_then(Val::as_str) == Some(MOVE);
    let (moves, waiting): (Vec<_>, Vec<_>) = all.partition(is_move);
    Ok([waiting, moves].map(|list| list.into_iter().map(doc_to_json).collect()))
}

pub fn slow(shared: &Shared, c: &mut dyn ServerConnection) -> ApiAnswer {
    may_read_log(c)?;
    shared.shapes.read_log();
    let mut answer = shared.shapes.json();
    let mut w = Writer::new();
    w.i32("profile", -1);
    // The limit of slow operations is told to users that may read it.
    if let Ok(profile) = ask(c, "admin", &w.finish()) {
        let slow_ms = profile.get("slowms").and_then(Val::to_i64_exact);
        answer["slowMillis"] = slow_ms.map_or(Value::Null, Value::from);
    }
    Ok(answer)
}

/// How the example of a shape is run, and which indexes there are.
pub fn plan(shared: &Shared, c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    may_read_log(c)?;
    let body = r
        .json()
        .ok_or_else(|| ApiFailure::new(400, "the body is no object"))?;
    let shape = shared.shapes.find(text(&body, "id"));
    let shape = shape.ok_or_else(|| ApiFailure::new(404, "there is no such shape any more"))?;
    let (db, collection) = shape.ns.split_once('.').unwrap_or((&shape.ns, ""));
    let mut answer = json!({"advice": crate::advice::of(&shape)});
    if let Some(command) = explainable(&shape.example, collection) {
        let mut w = Writer::new();
        w.value(
            "explain",
            bson::json::to_value(&command).unwrap_or(bson::Value::NULL),
        );
        w.str("verbosity", "queryPlanner");
        match ask(c, db, &w.finish()) {
            Ok(reply) => answer["explain"] = reply_to_json(&reply),
            Err(f) => answer["explainError"] = f.message.into(),
        }
    }
    let mut w = Writer::new();
    w.str("listIndexes", collection);
    if let Ok(reply) = ask(c, db, &w.finish()) {
        let all = first_batch(&reply);
        answer["indexes"] = all.into_iter().map(doc_to_json).collect();
    }
    Ok(answer)
}

/// The command as explain takes it; one statement of a write is made a command again.
fn explainable(example: &Value, collection: &str) -> Option<Value> {
    let name = example.as_object()?.keys().next()?;
    match name.as_str() {
        "find" | "count" | "distinct" => Some(example.clone()),
        "aggregate" => {
            let mut command = example.clone();
            command["cursor"] = json!({});
            Some(command)
        }
        "q" if example.get("u").is_some() => {
            Some(json!({"update": collection, "updates": [example]}))
        }
        "q" => Some(json!({"delete": collection, "deletes": [example]})),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_become_commands() {
        let update = json!({"q": {"a": 1}, "u": {"$set": {"b": 1}}});
        let command = explainable(&update, "c").unwrap();
        assert_eq!(command["update"], "c");
        assert_eq!(command["updates"][0]["q"]["a"], 1);
        assert!(explainable(&json!({"insert": "c"}), "c").is_none());
        assert!(explainable(&json!({}), "c").is_none() && explainable(&json!(1), "c").is_none());
    }
}
