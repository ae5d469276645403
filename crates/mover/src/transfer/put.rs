//! Documents on their way to recipients: some at a time, and several messages at once where the recipients
//! have it so (`chunkMigrationConcurrency`).
//!
//! Invariant: no more is on its way than [`PUT_BYTES`], but for what each message has at least.

use super::copy::{CopyRoute, parts};
use bson::{Doc, Val, Value, Writer};
use cluster_view::Outcome;
use cluster_view::reply::own_message;
use cluster_view::write_concern::majority;
use errors::{Code, err};
use sharding::follow::PUT_DOCUMENTS;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

/// Bytes on their way to recipients.
const PUT_BYTES: usize = 4 << 20;
/// Of one message of several at once.
const LEAST_BYTES: usize = 64 << 10;
const LEAST_DOCUMENTS: usize = 100;

/// Threads that put documents, of a scope.
pub(super) struct Copiers<'s, 'e> {
    threads: &'s Scope<'s, 'e>,
    most: usize,
    under_way: VecDeque<ScopedJoinHandle<'s, Outcome<Vec<Value>>>>,
}

impl<'s, 'e> Copiers<'s, 'e> {
    pub fn new(threads: &'s Scope<'s, 'e>, most: usize) -> Copiers<'s, 'e> {
        Copiers {
            threads,
            most: most.max(1),
            under_way: VecDeque::new(),
        }
    }

    /// Waits until at most `left` messages are in flight. The ids of the documents that were refused in
    /// the others.
    fn wait(&mut self, left: usize) -> Outcome<Vec<Value>> {
        let mut refused = Vec::new();
        while self.under_way.len() > left
            && let Some(first) = self.under_way.pop_front()
        {
            let panicked = |_| Err(err!(InternalError, "a copier has panicked").into());
            refused.extend(first.join().unwrap_or_else(panicked)?);
        }
        Ok(refused)
    }
}

/// Documents on their way, some at a time for each recipient.
pub(super) struct Put<'s, 'e> {
    route: &'s CopyRoute<'s>,
    waiting: HashMap<Arc<str>, Waiting>,
    refused: Vec<Value>,
    copiers: Option<Copiers<'s, 'e>>,
    /// Of one message.
    documents: usize,
    bytes: usize,
}

#[derive(Default)]
struct Waiting {
    ids: Vec<Value>,
    documents: Vec<u8>,
}

impl<'s, 'e> Put<'s, 'e> {
    /// Without copiers one message after the other.
    pub fn by(route: &'s CopyRoute<'s>, copiers: Option<Copiers<'s, 'e>>) -> Put<'s, 'e> {
        let many = copiers.as_ref().map_or(1, |c| c.most);
        Put {
            route,
            waiting: HashMap::new(),
            refused: Vec::new(),
            copiers: copiers.filter(|c| c.most > 1),
            documents: (PUT_DOCUMENTS / many).max(LEAST_DOCUMENTS),
            bytes: (PUT_BYTES / many).max(LEAST_BYTES),
        }
    }

    /// Whether the document goes.
    pub fn add(&mut self, d: Doc<'_>) -> Outcome<bool> {
        let Some(recipient) = (self.route.place)(d)? else {
            return Ok(false);
        };
        let waiting = self.waiting.entry(recipient.clone()).or_default();
        waiting.documents.extend_from_slice(d.as_bytes());
        let id = d.get("_id").unwrap_or(Val::NULL);
        waiting.ids.push(id.to_value());
        if waiting.documents.len() > self.bytes || waiting.ids.len() >= self.documents {
            let full = std::mem::take(waiting);
            self.send(&recipient, full)?;
        }
        Ok(true)
    }

    /// Sends the remaining documents. The ids of those refused because of a duplicate key.
    pub fn end(mut self) -> Outcome<Vec<Value>> {
        self.send_all()?;
        Ok(self.refused)
    }

    /// All that was added is at the recipients then.
    pub fn send_all(&mut self) -> Outcome<()> {
        for (recipient, waiting) in std::mem::take(&mut self.waiting) {
            self.send(&recipient, waiting)?;
        }
        if let Some(copiers) = &mut self.copiers {
            self.refused.extend(copiers.wait(0)?);
        }
        Ok(())
    }

    fn send(&mut self, recipient: &Arc<str>, waiting: Waiting) -> Outcome<()> {
        if waiting.ids.is_empty() {
            return Ok(());
        }
        let route = self.route;
        let Some(copiers) = &mut self.copiers else {
            self.refused.extend(put(route, recipient, &waiting)?);
            return Ok(());
        };
        self.refused.extend(copiers.wait(copiers.most - 1)?);
        let recipient = recipient.clone();
        let one = copiers
            .threads
            .spawn(move || put(route, &recipient, &waiting));
        copiers.under_way.push_back(one);
        assert!(
            copiers.under_way.len() <= copiers.most,
            "what is on its way is bounded"
        );
        Ok(())
    }
}

/// One message. The ids of the refused documents.
fn put(route: &CopyRoute<'_>, recipient: &str, waiting: &Waiting) -> Outcome<Vec<Value>> {
    let (db, collection) = parts(&route.into);
    let mut w = Writer::new();
    w.str("insert", collection)
        .bool("ordered", false)
        .bool("bypassDocumentValidation", true)
        .bool("fromMigrate", true)
        .doc("moveTurn", route.turn().as_doc())
        .doc("writeConcern", majority().as_doc())
        .str("$db", db);
    let set = route.cluster.shard(recipient)?;
    let reply = own_message(&set, w.finish(), "documents", &waiting.documents)?;
    let bytes = waiting.documents.len();
    route.progress.put(waiting.ids.len(), bytes);
    let mut refused = Vec::new();
    let errors = reply.get("writeErrors").and_then(Val::as_array);
    for e in errors
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(Val::as_doc)
    {
        let number = |name: &str| e.get(name).and_then(Val::to_i64_exact);
        let at = number("index").and_then(|at| usize::try_from(at).ok());
        let id = at.and_then(|at| waiting.ids.get(at));
        match (number("code"), id) {
            (Some(code), Some(id)) if code == i64::from(Code::DuplicateKey.0) => {
                refused.push(id.clone());
            }
            _ => {
                return Err(
                    err!(OperationFailed, "{recipient} does not take a document: {e}").into(),
                );
            }
        }
    }
    Ok(refused)
}
