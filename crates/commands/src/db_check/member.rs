//! What a secondary does with the states of the primary's marks: reads the same range in them as the
//! primary has, and notes in its health log what it found.

use super::batch::{self, BatchContents, BatchRange};
use super::health_log::{BatchEntry, HealthLogSubject};
use super::{DbChecks, LONGEST_STATE, LOOK, Marked, job};
use bson::{Doc, DocBuf, Writer, doc};
use errors::{Error, Result, bail, err};
use executor::OpCtx;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::Uuid;

/// The longest that a batch may take to be read here (MongoDB's `dbCheckSecondaryBatchMaxTimeMs`).
const LONGEST: Duration = Duration::from_secs(300);
/// How long the thread waits for the next mark before it ends.
const IDLE: Duration = Duration::from_secs(2);

/// A batch as the primary describes it.
struct CheckedBatch<'a> {
    ns: &'a str,
    uuid: Uuid,
    md5: &'a str,
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
    index: Option<&'a str>,
    looks_up: bool,
    with_indexes: bool,
    logs: bool,
    parameters: Option<Doc<'a>>,
}

impl<'a> CheckedBatch<'a> {
    fn parse(d: Doc<'a>) -> Option<CheckedBatch<'a>> {
        let binary = |name: &str| d.get(name).and_then(|v| v.as_binary()).map(|(_, b)| b);
        let flag = |name: &str| d.get(name).is_some_and(|v| v.truthy());
        Some(CheckedBatch {
            ns: d.get("ns")?.as_str()?,
            uuid: Uuid::try_from(binary("uuid")?).ok()?,
            md5: d.get("md5")?.as_str()?,
            from: binary("from"),
            to: binary("to"),
            index: d.get("index").and_then(|v| v.as_str()),
            looks_up: flag("looksUp"),
            with_indexes: flag("withIndexes"),
            logs: flag("logs"),
            parameters: d.get("parameters").and_then(|v| v.as_doc()),
        })
    }
}

impl DbChecks {
    /// Reads the states that are kept, until none has come for a while.
    pub(super) fn read_marks(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            let stops = self.control.is_stopping() || self.leads();
            match self.take(None).filter(|_| !stops) {
                Some(marked) => {
                    self.read_mark(&marked);
                    last = Instant::now();
                }
                None if stops || last.elapsed() > IDLE => {
                    let mut state = self.state.lock();
                    if stops || state.marked.is_empty() {
                        state.marks_are_read = false;
                        return;
                    }
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    fn read_mark(&self, marked: &Marked) {
        let result = match self.result(marked) {
            Ok(Some(result)) => result,
            // The primary that had made the mark is gone.
            Ok(None) => return,
            Err(error) => {
                let error = error.into_error();
                tracing::warn!(target: "COMMAND", error = error.message.as_str(), "dbCheck: the primary does not tell what it found");
                return;
            }
        };
        let Some(batch) = CheckedBatch::parse(result.as_doc()) else {
            return;
        };
        let host = self.host();
        let about = HealthLogSubject {
            target: Some((batch.ns, &batch.uuid)),
            host: &host,
            parameters: batch.parameters,
            operation: "dbCheckBatch",
        };
        let entries = match self.compare(marked, &batch, &about) {
            Ok(entries) => entries,
            Err(stop) => {
                vec![about.failure("error", "dbCheck failed", "cluster", &stop.into_error())]
            }
        };
        self.log(&entries);
        let mut w = Writer::new();
        w.str("pandoCheckBatch", "done")
            .binary("batchId", 4, &marked.name);
        if let Err(error) = self.ask(w.finish()) {
            let error = error.into_error();
            tracing::warn!(target: "COMMAND", error = error.message.as_str(), "dbCheck: the primary was not told that a batch was read");
        }
    }

    fn ask(&self, command: DocBuf) -> Result<DocBuf> {
        let Some(driver) = &self.replica else {
            bail!(NotWritablePrimary, "not primary")
        };
        let reply = driver.ask_primary("admin", command.as_doc())?;
        if reply.get("ok").is_some_and(|v| v.truthy()) {
            return Ok(reply);
        }
        let why = reply
            .get("errmsg")
            .and_then(|v| v.as_str())
            .unwrap_or_default();
        Err(err!(OperationFailed, "{why}").into())
    }

    /// What the primary found, when it has; `None` where it knows nothing of it.
    fn result(&self, marked: &Marked) -> Result<Option<DocBuf>> {
        let mut question = Writer::new();
        question
            .str("pandoCheckBatch", "result")
            .binary("batchId", 4, &marked.name);
        let question = question.finish();
        while marked.since.elapsed() < LONGEST_STATE && !self.control.is_stopping() {
            let reply = self.ask(question.clone())?;
            if let Some(result) = reply.get("result").and_then(|v| v.as_doc()) {
                return Ok(Some(result.to_buf()));
            }
            if !reply.get("reads").is_some_and(|v| v.truthy()) {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
        Ok(None)
    }

    /// Reads a batch, and what is to be written of it.
    fn compare(
        &self,
        marked: &Marked,
        batch: &CheckedBatch<'_>,
        about: &HealthLogSubject<'_>,
    ) -> Result<Vec<DocBuf>> {
        let Some(coll) = marked.collection(batch.ns, &batch.uuid) else {
            let gone = Error::new(
                errors::Code::NamespaceNotFound,
                "the collection is not there",
            );
            let msg = "abandoning dbCheck batch because collection no longer exists";
            return Ok(vec![about.failure("warning", msg, "collection", &gone)]);
        };
        let operation = self.register(batch.ns, doc! { "dbCheck": batch.ns });
        let mut op = OpCtx::worker(&self.engine);
        op.killed = Some(&operation.operation.killed);
        op.deadline = Some(Instant::now() + LONGEST);
        let range = BatchRange {
            view: &marked.view,
            coll,
            from: batch.from,
            to: batch.to,
            limits: None,
        };
        let found: BatchContents = match batch.index {
            Some(index) => batch::entries(&mut op, &range, index, batch.looks_up)?,
            None => batch::documents(&mut op, &range, batch.with_indexes)?,
        };
        let of = BatchEntry {
            name: &marked.name,
            expected: batch.md5,
            from: job::shown(batch.from, batch.index, false),
            to: job::shown(batch.to, batch.index, true),
            is_capped: coll.capped.is_some(),
            ts: marked.ts,
        };
        let mut entries: Vec<DocBuf> = found.wrong.iter().map(|w| about.wrong(w)).collect();
        let (entry, same) = about.batch(&found, &of);
        if batch.logs || !same {
            entries.push(entry);
        }
        Ok(entries)
    }
}
