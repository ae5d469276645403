//! The servers that a migration stands between: what kind each is, and what it is asked.
//!
//! Invariant: a refusal by a server is an error with its code; a loss on the way is one without, and the
//! request may be repeated if that does no harm.

use crate::client::{Conversation, DocumentSequence, ServerAddress};
use bson::{Doc, DocBuf, Val, Writer, doc};
use std::time::Duration;

/// NamespaceNotFound.
pub(super) const NO_SUCH_NAMESPACE: i64 = 26;
/// NamespaceExists.
pub(super) const NAMESPACE_EXISTS: i64 = 48;
pub(super) const DUPLICATE_KEY: i64 = 11000;
/// How often a server that is gone is looked for again, a second apart.
const TRIES: u32 = 60;

#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// `None`: the server did not answer.
    pub code: Option<i64>,
    pub text: String,
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure { code: None, text }
    }
}

impl Failure {
    /// What asking again does not mend.
    pub fn lasting(text: impl Into<String>) -> Failure {
        Failure {
            code: Some(-1),
            text: text.into(),
        }
    }

    pub fn is(&self, code: i64) -> bool {
        self.code == Some(code)
    }

    /// Whether the same may be answered when it is asked again: no answer, or no primary.
    pub fn passes(&self) -> bool {
        const PASSING: [i64; 13] = [
            6, 7, 89, 91, 133, 134, 189, 262, 9001, 10107, 11600, 11602, 13435,
        ];
        self.code.is_none_or(|code| PASSING.contains(&code))
    }
}

/// What a server is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Has a log that can be followed: a member of a set, or a router.
    pub has_log: bool,
    pub is_router: bool,
    pub max_wire_version: i64,
}

impl Kind {
    /// 6.0 and later tell of indexes and options in change streams.
    pub fn tells_of_everything(self) -> bool {
        self.max_wire_version >= 17
    }
}

/// A server, connected again whenever the connection is lost.
pub(super) struct Server {
    address: ServerAddress,
    conversation: Option<Conversation>,
}

impl Server {
    pub fn new(address: &ServerAddress) -> Server {
        Server {
            address: address.clone(),
            conversation: None,
        }
    }

    /// Another connection to the same.
    pub fn another(&self) -> Server {
        Server::new(&self.address)
    }

    fn connected(&mut self) -> Result<&mut Conversation> {
        if self.conversation.is_none() {
            self.conversation = Some(self.address.open()?);
        }
        self.conversation
            .as_mut()
            .ok_or_else(|| Failure::from("there is no connection".to_string()))
    }

    /// Runs a command once.
    pub fn try_run(&mut self, db: &str, command: &DocBuf) -> Result<DocBuf> {
        let asked = self.connected()?.run(db, command.as_doc());
        self.judge(asked)
    }

    fn judge(&mut self, asked: std::result::Result<DocBuf, String>) -> Result<DocBuf> {
        let reply = asked.inspect_err(|_| self.conversation = None)?;
        match failure_of(reply.as_doc()) {
            None => Ok(reply),
            Some(failure) => {
                if failure.passes() {
                    self.conversation = None;
                }
                Err(failure)
            }
        }
    }

    /// Runs a command that may be run twice, until it is answered.
    pub fn run(&mut self, db: &str, command: &DocBuf) -> Result<DocBuf> {
        patiently(|| self.try_run(db, command))
    }

    /// The same with documents beside the body.
    pub fn run_with(
        &mut self,
        db: &str,
        command: &DocBuf,
        documents: &DocumentSequence<'_>,
    ) -> Result<DocBuf> {
        patiently(|| {
            let asked = self.connected()?.run_with(db, command.as_doc(), documents);
            self.judge(asked)
        })
    }

    pub fn kind(&mut self) -> Result<Kind> {
        let hello = self.run("admin", &doc! { "isMaster": 1 })?;
        let is_router = hello.get("msg").and_then(Val::as_str) == Some("isdbgrid");
        Ok(Kind {
            has_log: is_router || hello.get("setName").is_some(),
            is_router,
            max_wire_version: number(hello.as_doc(), "maxWireVersion"),
        })
    }

    /// The time of the last write that it knows of; `None` of a server without a log.
    pub fn operation_time(&mut self) -> Result<Option<u64>> {
        let reply = self.run("admin", &doc! { "ping": 1 })?;
        Ok(reply.get("operationTime").and_then(Val::as_timestamp))
    }

    /// All that a cursor gives which `command` opens, by pieces.
    pub fn read_all(
        &mut self,
        db: &str,
        command: &DocBuf,
        mut take: impl FnMut(Doc<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut reply = self.run(db, command)?;
        loop {
            let (cursor, coll, batch) = opened(reply.as_doc())?;
            batch
                .values()
                .filter_map(Val::as_doc)
                .try_for_each(&mut take)?;
            if cursor == 0 {
                return Ok(());
            }
            let more = doc! { "getMore": cursor, "collection": coll };
            // A lost cursor is gone: its reader begins again.
            reply = self.try_run(db, &more)?;
        }
    }

    /// The same, all of it in memory.
    pub fn list(&mut self, db: &str, command: &DocBuf) -> Result<Vec<DocBuf>> {
        let mut all = Vec::new();
        self.read_all(db, command, |d| {
            all.push(d.to_buf());
            Ok(())
        })?;
        Ok(all)
    }
}

fn patiently<T>(mut run: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match run() {
            Err(e) if e.passes() && tries < TRIES => {
                tries += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
            done => return done,
        }
    }
}

/// The number, the collection and the documents of a cursor's reply.
pub(super) fn opened(reply: Doc<'_>) -> Result<(i64, String, Doc<'_>)> {
    let read = || {
        let cursor = reply.get("cursor")?.as_doc()?;
        let batch = cursor.get("firstBatch").or(cursor.get("nextBatch"))?;
        let ns = cursor.get("ns")?.as_str()?;
        let coll = ns.split_once('.').map_or(ns, |(_, coll)| coll);
        Some((
            cursor.get("id")?.to_i64_exact()?,
            coll.to_string(),
            batch.as_array()?,
        ))
    };
    read().ok_or_else(|| Failure::lasting("a reply has no cursor"))
}

pub(super) fn number(d: Doc<'_>, name: &str) -> i64 {
    let found = d.get(name).and_then(Val::to_i64_truncated);
    found.unwrap_or_default()
}

/// What a reply says went wrong as a whole.
fn failure_of(reply: Doc<'_>) -> Option<Failure> {
    let code = |d: Doc<'_>| d.get("code").and_then(Val::to_i64_exact);
    let text = |d: Doc<'_>| d.get("errmsg").and_then(Val::as_str).map(String::from);
    if let Some(text) = crate::client::refusal(reply) {
        let code = Some(code(reply).unwrap_or(-1));
        return Some(Failure { code, text });
    }
    let concern = reply.get("writeConcernError")?.as_doc()?;
    Some(Failure {
        code: Some(code(concern).unwrap_or(-1)),
        text: text(concern).unwrap_or_default(),
    })
}

/// The documents that a write did not take: their places, codes and messages.
pub(super) fn write_errors(reply: Doc<'_>) -> Vec<(usize, i64, String)> {
    let errors = reply.get("writeErrors").and_then(Val::as_array);
    let each = errors
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(Val::as_doc);
    each.map(|e| {
        let text = e.get("errmsg").and_then(Val::as_str).unwrap_or_default();
        let index = usize::try_from(number(e, "index")).unwrap_or_default();
        (index, number(e, "code"), text.to_string())
    })
    .collect()
}

/// A command's document with what `fill` adds to its first field.
pub(super) fn command(name: &str, value: &str, fill: impl FnOnce(&mut Writer)) -> DocBuf {
    let mut w = Writer::new();
    w.str(name, value);
    fill(&mut w);
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes() {
        let lost = Failure::from("gone".to_string());
        let not_primary = Failure {
            code: Some(10107),
            text: String::new(),
        };
        let refused = Failure {
            code: Some(13),
            text: String::new(),
        };
        assert!(lost.passes() && not_primary.passes() && !refused.passes());
    }

    #[test]
    fn replies() {
        assert!(failure_of(doc! { "ok": 1.0 }.as_doc()).is_none());
        let refused = failure_of(doc! { "ok": 0.0, "code": 13, "errmsg": "no" }.as_doc());
        assert!(refused.is_some_and(|e| e.is(13) && e.text == "no"));
        let unsure = doc! { "ok": 1.0, "writeConcernError": doc! { "code": 91, "errmsg": "w" } };
        assert!(failure_of(unsure.as_doc()).is_some_and(|e| e.passes()));
    }
}
