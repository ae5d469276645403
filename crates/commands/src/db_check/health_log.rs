//! The health log, `local.system.healthlog`: a capped collection. Each member has its own, with what it
//! found itself.

use super::DbChecks;
use super::batch::{BatchContents, Inconsistency};
use bson::{Doc, DocBuf, ObjectId, Writer, doc};
use errors::{Error, Result};
use executor::OpCtx;
use storage::Uuid;

pub const NAMESPACE: &str = "local.system.healthlog";
const BYTES: i64 = 100_000_000;

/// What an entry is about.
pub struct HealthLogSubject<'a> {
    /// Of a run over a whole database, none.
    pub target: Option<(&'a str, &'a Uuid)>,
    pub host: &'a str,
    /// As the command gave them (`dbCheckParameters`).
    pub parameters: Option<Doc<'a>>,
    /// `dbCheckStart`, `dbCheckBatch`, `dbCheckStop`.
    pub operation: &'static str,
}

/// Of a batch, in what MongoDB's entries have of it.
pub struct BatchEntry<'a> {
    pub name: &'a Uuid,
    pub expected: &'a str,
    pub from: DocBuf,
    pub to: DocBuf,
    /// Different documents in a capped collection are no error.
    pub is_capped: bool,
    pub ts: u64,
}

impl HealthLogSubject<'_> {
    fn entry(&self, severity: &str, msg: &str, scope: &str, data: Option<DocBuf>) -> DocBuf {
        let mut w = Writer::new();
        w.oid("_id", ObjectId::generate());
        if let Some((ns, uuid)) = self.target {
            w.str("namespace", ns).binary("collectionUUID", 4, uuid);
        }
        w.date("timestamp", crate::clock::now_millis())
            .str("severity", severity)
            .str("msg", msg)
            .str("scope", scope)
            .str("operation", self.operation)
            .str("host", self.host);
        if data.is_some() || self.parameters.is_some() {
            w.open_doc("data").extend(data.unwrap_or_default().as_doc());
            if let Some(parameters) = self.parameters {
                w.doc("dbCheckParameters", parameters);
            }
            w.close();
        }
        w.finish()
    }

    pub fn info(&self) -> DocBuf {
        self.entry("info", "", "cluster", None)
    }

    /// What ended a run or a batch early, and what may not be as it should.
    pub fn failure(&self, severity: &str, msg: &str, scope: &str, error: &Error) -> DocBuf {
        let text = format!("{}: {}", error.code.name(), error.message);
        let data = doc! { "success": false, "error": text, "context": doc! {} };
        self.entry(severity, msg, scope, Some(data))
    }

    pub fn queue(&self, runs: Vec<DocBuf>) -> DocBuf {
        let mut w = Writer::new();
        w.open_array("dbCheckQueue");
        for run in &runs {
            w.push(run.as_doc().as_val());
        }
        w.close();
        self.entry(
            "error",
            "too many dbcheck runs in queue",
            "database",
            Some(w.finish()),
        )
    }

    pub fn wrong(&self, wrong: &Inconsistency) -> DocBuf {
        let data = doc! { "success": false, "error": format!("KeyNotFound: {}", wrong.message), "context": wrong.context.clone() };
        self.entry("error", wrong.message, "index", Some(data))
    }

    /// A batch as a member found it, and whether it is what the primary found.
    pub fn batch(&self, found: &BatchContents, of: &BatchEntry<'_>) -> (DocBuf, bool) {
        let same = found.digest == of.expected;
        let mut w = Writer::new();
        w.binary("batchId", 4, of.name)
            .bool("success", true)
            .i64("count", found.count as i64)
            .i64("bytes", found.bytes as i64)
            .open_doc("md5")
            .str("expected", of.expected)
            .str("found", &found.digest)
            .close()
            .doc("batchStart", of.from.as_doc())
            .doc("batchEnd", of.to.as_doc())
            .i64("nConsecutiveIdenticalIndexKeysSeenAtEnd", 0)
            .timestamp("readTimestamp", of.ts);
        let (severity, msg) = match (same, of.is_capped) {
            (true, _) => ("info", "dbCheck batch consistent"),
            (false, true) => ("warning", "dbCheck batch inconsistent"),
            (false, false) => ("error", "dbCheck batch inconsistent"),
        };
        (self.entry(severity, msg, "cluster", Some(w.finish())), same)
    }
}

impl DbChecks {
    /// Writes entries.
    pub(super) fn log(&self, entries: &[DocBuf]) {
        if entries.is_empty() {
            return;
        }
        if let Err(e) = self.insert(entries) {
            let error = e.into_error();
            tracing::warn!(target: "COMMAND", error = error.message.as_str(), "dbCheck: the health log cannot be written");
        }
    }

    fn insert(&self, entries: &[DocBuf]) -> Result<()> {
        let beside = match &self.own_local {
            Some(own) => own.commands(true)?,
            None => None,
        };
        let engine = beside.as_ref().map_or(&self.engine, |c| &c.engine);
        if engine.catalog.get(NAMESPACE).is_none() {
            let options = doc! { "capped": true, "size": BYTES };
            engine.catalog.create(NAMESPACE, options)?;
        }
        let mut op = OpCtx::worker(engine);
        let documents: Vec<Doc<'_>> = entries.iter().map(DocBuf::as_doc).collect();
        executor::insert(&mut op, NAMESPACE, &documents, true, None)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_not_the_primarys_is_an_error() {
        let (uuid, found) = (
            [1; 16],
            BatchContents {
                digest: "b".into(),
                ..BatchContents::default()
            },
        );
        let about = HealthLogSubject {
            target: Some(("d.c", &uuid)),
            host: "h:1",
            parameters: None,
            operation: "dbCheckBatch",
        };
        let said = |expected: &str, is_capped: bool| {
            let of = BatchEntry {
                name: &uuid,
                expected,
                from: DocBuf::new(),
                to: DocBuf::new(),
                is_capped,
                ts: 1,
            };
            let (entry, same) = about.batch(&found, &of);
            let word = |name: &str| entry.get(name).and_then(|v| v.as_str().map(str::to_string));
            (word("severity").unwrap(), word("msg").unwrap(), same)
        };
        let words = |severity: &str, end: &str, same| {
            (severity.to_string(), format!("dbCheck batch {end}"), same)
        };
        assert_eq!(said("b", false), words("info", "consistent", true));
        assert_eq!(said("a", false), words("error", "inconsistent", false));
        assert_eq!(said("a", true), words("warning", "inconsistent", false));
    }
}
