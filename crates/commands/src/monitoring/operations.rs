//! Operations that are running on workers, and hellos that wait: what currentOp shows and killOp
//! stops. What runs on an event loop is too short to be seen or stopped.

use bson::{Doc, DocBuf, Writer};
use front::redact;
use parking_lot::Mutex;
use planner::Plan;
use service::Request;
use session::Lsid;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::Instant;

/// A longer command is shown cut off.
const MAX_SHOWN_BYTES: usize = 16 << 10;
/// Of a command that is longer than that its first value is shown, up to so many bytes.
const MAX_FIRST_BYTES: usize = 1 << 10;

/// One running operation.
#[derive(Debug)]
pub struct Operation {
    pub id: i32,
    pub command: &'static str,
    pub ns: String,
    pub body: DocBuf,
    pub connection: i64,
    pub client: String,
    pub app_name: String,
    pub lsid: Option<Lsid>,
    /// Who is logged in on its connection, where authorization is on.
    pub user: Option<String>,
    pub started: Instant,
    pub killed: Arc<AtomicBool>,
    /// It waits for the lock of fsync to go.
    pub waiting: AtomicBool,
    /// The plan that runs for it; `None` before there is one, and for what has none.
    pub plan: Mutex<Option<Arc<Plan>>>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Operations {
    last_id: AtomicI32,
    running: Mutex<HashMap<i32, Arc<Operation>>>,
}

/// An operation's stay in the registry.
#[derive(Debug)]
pub struct Registered {
    all: Arc<Operations>,
    pub operation: Arc<Operation>,
}

impl Registered {
    pub fn is_killed(&self) -> bool {
        self.operation.killed.load(Relaxed)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.running.lock().remove(&self.operation.id);
    }
}

impl Operations {
    pub fn next_id(&self) -> i32 {
        self.last_id.fetch_add(1, Relaxed).wrapping_add(1)
    }

    pub fn register(self: &Arc<Self>, mut operation: Operation) -> Registered {
        operation.id = self.next_id();
        let operation = Arc::new(operation);
        self.running.lock().insert(operation.id, operation.clone());
        Registered {
            all: self.clone(),
            operation,
        }
    }

    pub fn list(&self) -> Vec<Arc<Operation>> {
        let mut all: Vec<_> = self.running.lock().values().cloned().collect();
        all.sort_by_key(|o| o.id);
        all
    }

    /// Whose operation it is; `None` where there is none of that number.
    pub fn user(&self, id: i32) -> Option<Option<String>> {
        self.running.lock().get(&id).map(|o| o.user.clone())
    }

    /// Asks an operation to stop; returns whether it exists.
    pub fn kill(&self, id: i32) -> bool {
        let running = self.running.lock();
        running
            .get(&id)
            .inspect(|o| o.killed.store(true, Relaxed))
            .is_some()
    }

    pub fn kill_session(&self, lsid: Lsid) {
        for o in self
            .running
            .lock()
            .values()
            .filter(|o| o.lsid == Some(lsid))
        {
            o.killed.store(true, Relaxed);
        }
    }
}

/// What of a command is kept to be shown: its body, and the statements that travel beside it, but
/// no documents to be inserted.
pub fn shown_whole(request: &Request<'_>) -> DocBuf {
    if let Some(d) = redact::without_secrets(request.body) {
        return shown(d.as_doc());
    }
    let mut left = MAX_SHOWN_BYTES.saturating_sub(request.body.len());
    let mut w = Writer::new();
    w.extend(request.body);
    for s in request.sequences {
        if left == 0 || !matches!(s.name, "updates" | "deletes" | "ops") {
            continue;
        }
        w.open_array(s.name);
        for d in request.sequence(s.name).into_iter().flatten() {
            if d.len() > left {
                left = 0;
                w.push_value("...");
                break;
            }
            left -= d.len();
            w.push(d.as_val());
        }
        w.close();
    }
    if request.body.len() > MAX_SHOWN_BYTES {
        return shown(request.body);
    }
    w.finish()
}

/// What of a command's body, which holds no secrets, is kept to be shown.
pub fn shown(body: Doc<'_>) -> DocBuf {
    if body.len() <= MAX_SHOWN_BYTES {
        return body.to_buf();
    }
    let mut w = Writer::new();
    w.str("$truncated", "the command is too long to be shown");
    if let Some(e) = body.first() {
        match e.val.as_doc() {
            _ if e.val.bytes.len() <= MAX_FIRST_BYTES => w.val(e.name, e.val),
            // Of explain: what is explained.
            Some(inner) if e.name == "explain" && inner.len() < body.len() => {
                w.doc(e.name, shown(inner).as_doc())
            }
            _ => w.str(e.name, "..."),
        };
    }
    // By it an operator finds what an application sent.
    if let Some(comment) = body.get("comment")
        && comment.bytes.len() <= MAX_FIRST_BYTES
    {
        w.val("comment", comment);
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_shown_of_long_commands() {
        let long = "x".repeat(1 << 20);
        let many: Vec<bson::Value> = (0..100_000).map(bson::Value::from).collect();
        let mut list = Writer::new_array();
        many.iter().for_each(|v| {
            list.push(v.as_val());
        });
        let find = bson::doc! {"find": "c", "filter": bson::doc! {"a": long.as_str()}};
        let all = [
            (
                bson::doc! {"rolesInfo": list.finish_array()},
                r#"{"$truncated":"the command is too long to be shown","rolesInfo":"..."}"#,
            ),
            (
                bson::doc! {"find": long.as_str()},
                r#"{"$truncated":"the command is too long to be shown","find":"..."}"#,
            ),
            (
                find.clone(),
                r#"{"$truncated":"the command is too long to be shown","find":"c"}"#,
            ),
            (
                bson::doc! {"find": "c", "comment": "mine", "filter": bson::doc! {"a": long.as_str()}},
                r#"{"$truncated":"the command is too long to be shown","find":"c","comment":"mine"}"#,
            ),
            (
                bson::doc! {"explain": find},
                r#"{"$truncated":"the command is too long to be shown","explain":{"$truncated":"the command is too long to be shown","find":"c"}}"#,
            ),
        ];
        for (command, expected) in all {
            let expected = bson::json::parse(expected).unwrap();
            assert_eq!(shown(command.as_doc()).as_doc(), expected.as_doc());
        }
        let nested = (0..150).fold(bson::doc! {"find": long.as_str()}, |inner, _| {
            bson::doc! {"explain": inner}
        });
        assert!(shown(nested.as_doc()).as_doc().len() < 20_000);
    }

    #[test]
    fn stays_while_it_runs() {
        let ops = Arc::new(Operations::default());
        let op = Operation {
            id: 0,
            command: "find",
            ns: "a.b".into(),
            body: DocBuf::new(),
            connection: 1,
            client: String::new(),
            app_name: String::new(),
            lsid: Some(Lsid::unowned([1; 16])),
            user: None,
            started: Instant::now(),
            killed: Arc::default(),
            waiting: AtomicBool::default(),
            plan: Mutex::default(),
        };
        let r = ops.register(op);
        assert_eq!(ops.list().len(), 1);
        assert!(!ops.kill(r.operation.id + 1));
        assert!(!r.operation.killed.load(Relaxed));
        assert!(ops.kill(r.operation.id));
        assert!(r.operation.killed.load(Relaxed));
        drop(r);
        assert!(ops.list().is_empty());
    }
}
