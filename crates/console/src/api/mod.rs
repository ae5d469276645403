//! The page's requests, as JSON (docs/console.md): each path is one or more commands of the logged-in
//! user.
//!
//! Invariant: a reply is built of at most [`MOST_REPLY_BYTES`] of documents.

mod data;
mod members;
mod query;
mod schema;
mod server;
mod views;

use crate::Shared;
use crate::http::{HttpReply, HttpRequest, Method};
use crate::in_process::ServerConnection;
use crate::session::{ConsoleSession, LoginForm};
use bson::{Doc, DocBuf, Val, Writer};
use serde_json::{Map, Value, json};
use service::Address;
use std::net::SocketAddr;
use std::sync::Arc;

const MOST_REPLY_BYTES: usize = 4 << 20;
/// What a view may take, unless it says otherwise.
const VIEW_MILLIS: i64 = 10_000;

/// Why there is no answer.
#[derive(Debug)]
pub struct ApiFailure {
    status: u16,
    /// MongoDB's code and its name, where the server has refused a command.
    code: Option<(i64, String)>,
    message: String,
}

pub type ApiAnswer = Result<Value, ApiFailure>;

impl ApiFailure {
    fn new(status: u16, message: impl Into<String>) -> ApiFailure {
        ApiFailure {
            status,
            code: None,
            message: message.into(),
        }
    }

    fn is_code(&self, code: i64) -> bool {
        self.code.as_ref().is_some_and(|(c, _)| *c == code)
    }

    fn into_reply(self) -> HttpReply {
        let mut error = Map::new();
        if let Some((code, name)) = self.code {
            error.insert("code".into(), code.into());
            error.insert("codeName".into(), name.into());
        }
        error.insert("message".into(), self.message.into());
        HttpReply::json(self.status, &json!({ "error": error }))
    }
}

const UNAUTHORIZED: i64 = 13;

/// Runs a command; an error reply is a failure.
pub fn ask(c: &mut dyn ServerConnection, db: &str, command: &DocBuf) -> Result<DocBuf, ApiFailure> {
    let reply = c
        .run(db, command.as_doc())
        .map_err(|e| ApiFailure::new(500, e))?;
    let doc = reply.as_doc();
    if doc.get("ok").is_some_and(Val::truthy) {
        if doc.len() > MOST_REPLY_BYTES {
            return Err(ApiFailure::new(
                413,
                format!("the reply has {} bytes: ask for less", doc.len()),
            ));
        }
        return Ok(reply);
    }
    let text = |name: &str| {
        doc.get(name)
            .and_then(Val::as_str)
            .unwrap_or("")
            .to_string()
    };
    let code = doc.get("code").and_then(Val::to_i64_exact).unwrap_or(1);
    Err(ApiFailure {
        status: if code == UNAUTHORIZED { 403 } else { 400 },
        code: Some((code, text("codeName"))),
        message: text("errmsg"),
    })
}

/// `{name: 1, maxTimeMS}`.
fn simple(name: &str) -> DocBuf {
    let mut w = Writer::new();
    w.i32(name, 1).i64("maxTimeMS", VIEW_MILLIS);
    w.finish()
}

/// A pipeline given in Extended JSON, on a collection, or on the database itself.
fn aggregate(collection: Option<&str>, pipeline: Value, batch: i32) -> DocBuf {
    let mut w = Writer::new();
    match collection {
        Some(name) => w.str("aggregate", name),
        None => w.i32("aggregate", 1),
    };
    w.value(
        "pipeline",
        bson::json::to_value(&pipeline).unwrap_or(bson::Value::NULL),
    );
    w.open_doc("cursor").i32("batchSize", batch).close();
    w.i64("maxTimeMS", VIEW_MILLIS);
    w.finish()
}

fn find(collection: &str, filter: Value, sort: Value, limit: i64) -> DocBuf {
    let mut w = Writer::new();
    let value = |v: &Value| bson::json::to_value(v).unwrap_or(bson::Value::NULL);
    w.str("find", collection).value("filter", value(&filter));
    w.value("sort", value(&sort));
    w.i64("limit", limit).i64("batchSize", limit);
    w.bool("singleBatch", true).i64("maxTimeMS", VIEW_MILLIS);
    w.finish()
}

/// The documents of a reply's first batch.
fn first_batch(reply: &DocBuf) -> Vec<Doc<'_>> {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let batch = cursor.and_then(|c| c.get("firstBatch")?.as_array());
    let all = batch.unwrap_or(Doc::EMPTY).values();
    all.filter_map(Val::as_doc).collect()
}

/// Extended JSON.
fn to_json(v: Val<'_>) -> Value {
    serde_json::from_str(&bson::json::val_to_string(v)).unwrap_or(Value::Null)
}

fn doc_to_json(d: Doc<'_>) -> Value {
    to_json(d.as_val())
}

/// A reply without what every reply has.
fn reply_to_json(reply: &DocBuf) -> Value {
    let mut value = doc_to_json(reply.as_doc());
    if let Value::Object(o) = &mut value {
        for name in [
            "ok",
            "$clusterTime",
            "operationTime",
            "$gleStats",
            "lastCommittedOpTime",
        ] {
            o.remove(name);
        }
    }
    value
}

fn number_at(d: Doc<'_>, path: &str) -> Option<f64> {
    let mut names = path.split('.').peekable();
    let mut at = d;
    loop {
        let value = at.get(names.next()?)?;
        if names.peek().is_none() {
            return match value.as_bool() {
                Some(b) => Some(f64::from(u8::from(b))),
                None => value.to_f64().or_else(|| value.as_date().map(|d| d as f64)),
            };
        }
        at = value.as_doc()?;
    }
}

fn parameter(r: &HttpRequest, name: &str) -> Result<String, ApiFailure> {
    let given = r.parameter(name).filter(|v| !v.is_empty());
    given.ok_or_else(|| ApiFailure::new(400, format!("the parameter {name} is missing")))
}

fn text<'a>(o: &'a Map<String, Value>, name: &str) -> &'a str {
    o.get(name).and_then(Value::as_str).unwrap_or("")
}

/// Answers requests below `/api/`.
pub fn answer(shared: &Arc<Shared>, r: &HttpRequest, peer: SocketAddr) -> HttpReply {
    let Some(path) = r.path.strip_prefix("/api/1/") else {
        return HttpReply::error(404, "this is version 1 of the API: /api/1/");
    };
    if path == "login" && r.method == Method::Post {
        return log_in(shared, r, peer).unwrap_or_else(ApiFailure::into_reply);
    }
    let word = r.cookie(&shared.cookie).map(str::to_string);
    let Some(session) = word.as_ref().and_then(|w| shared.sessions.find(w)) else {
        let needs = json!({"error": {"message": "log in"}, "login": shared.authorization});
        return HttpReply::json(401, &needs);
    };
    if path == "logout" && r.method == Method::Post {
        shared.sessions.remove(word.as_deref().unwrap_or(""));
        let mut reply = HttpReply::json(200, &json!({}));
        reply.cookie = Some(cookie(shared, "", 0));
        return reply;
    }
    match route(shared, &session, path, r) {
        Ok(value) => HttpReply::json(200, &value),
        Err(failure) => failure.into_reply(),
    }
}

fn route(shared: &Arc<Shared>, session: &ConsoleSession, path: &str, r: &HttpRequest) -> ApiAnswer {
    let posted = r.method == Method::Post;
    if posted && matches!(path, "query" | "explain" | "schema") {
        let busy = || ApiFailure::new(409, "another query of this session runs");
        let mut connection = session.query().ok_or_else(busy)?;
        let c = &mut **connection;
        return match path {
            "query" => query::run(c, r),
            "explain" => query::explain(c, r),
            _ => schema::run(c, r),
        };
    }
    let busy = || ApiFailure::new(503, "other views of this session take too long");
    let mut connection = session.watch().ok_or_else(busy)?;
    let c = &mut **connection;
    match (posted, path) {
        (false, "session") => views::session(shared, session, c),
        (false, "now") => views::now(shared, c, r),
        (false, "running") => server::running(c),
        (true, "kill") => server::kill(c, r),
        (false, "slow") => views::slow(shared, c),
        (true, "slow/plan") => views::plan(shared, c, r),
        (false, "log") => server::log(shared, c),
        (false, "databases") => data::databases(c),
        (false, "collections") => data::collections(c, r),
        (false, "collection") => data::collection(c, r),
        (false, "members") => members::members(c),
        (false, "shards") => members::shards(c),
        (false, "shards/members") => members::of_shards(c),
        _ => Err(ApiFailure::new(
            404,
            "there is no such path, or not by this method",
        )),
    }
}

fn log_in(
    shared: &Arc<Shared>,
    r: &HttpRequest,
    peer: SocketAddr,
) -> Result<HttpReply, ApiFailure> {
    let body = r
        .json()
        .ok_or_else(|| ApiFailure::new(400, "the body is no object"))?;
    let login = LoginForm {
        user: text(&body, "user").into(),
        password: text(&body, "password").into(),
        source: match text(&body, "source") {
            "" => "admin".into(),
            name => name.into(),
        },
    };
    if shared.authorization && (login.user.is_empty() || login.password.is_empty()) {
        return Err(ApiFailure::new(401, "a user and a password are needed"));
    }
    let who = (!login.user.is_empty()).then_some(&login);
    let from = peer.ip().to_canonical();
    if !shared.failures.may_try(from) {
        return Err(ApiFailure::new(
            429,
            "too many logins have failed: wait a little",
        ));
    }
    let stopping = || ApiFailure::new(503, "the server stops");
    let backend = shared.backend().ok_or_else(stopping)?;
    let turn = shared.login.try_lock_for(crate::http::PATIENCE);
    let _turn = turn.ok_or_else(|| ApiFailure::new(503, "too many log in at once"))?;
    let opened = ConsoleSession::open(&*backend, &Address::Tcp(peer), who);
    let session = opened.map_err(|_| {
        shared.failures.note(from);
        // It tells neither whether there is such a user, nor the user's name.
        ApiFailure::new(401, "the user, the password or the database is wrong")
    })?;
    let word = shared.sessions.add(session);
    let mut reply = HttpReply::json(200, &json!({}));
    let seconds = crate::session::LONGEST.as_secs();
    reply.cookie = Some(cookie(shared, &word, seconds));
    Ok(reply)
}

fn cookie(shared: &Shared, word: &str, seconds: u64) -> String {
    let secure = if shared.guard.secure { "; Secure" } else { "" };
    let name = &shared.cookie;
    format!("{name}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}
