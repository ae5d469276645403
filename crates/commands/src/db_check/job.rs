//! The runs of a check on the primary, one after the other.

use super::batch::{self, BatchContents, BatchLimits, BatchRange, Bound};
use super::health_log::{BatchEntry, HealthLogSubject};
use super::{DbChecks, LOOK, MOST_RESULTS, MOST_STATES, Marked, Outcome};
use crate::monitoring::operations::Registered;
use crate::settings::parameters::{DB_CHECK_LOGGED_EVERY, DB_CHECK_MOST_RUNS, DB_CHECK_RATE};
use bson::{Doc, DocBuf, Writer, doc};
use catalog::new_uuid;
use errors::{Code, Error, Result, bail};
use executor::OpCtx;
use replication::config::Wanted;
use replication::member::raft_id;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{Entry, Uuid};

/// How long a run waits for a member that does not report what it found.
const LONGEST_REPORT: Duration = Duration::from_secs(10);
/// Batches that other members may be behind by: each keeps `MOST_STATES` states, one of them for the next mark.
const MOST_UNREAD: usize = MOST_STATES - 1;
/// A write concern without a time limit is waited for as long.
const LONGEST_CONCERN: Duration = Duration::from_secs(3600);

/// What is read of a collection.
#[derive(Clone, Debug, Default)]
pub struct DbCheckKind {
    /// Entries of this index, not documents.
    pub index: Option<String>,
    pub looks_up: bool,
    pub with_indexes: bool,
}

/// One command's work.
#[derive(Clone, Debug)]
pub struct Run {
    pub targets: Vec<(String, Uuid)>,
    pub kind: DbCheckKind,
    pub from: Option<Bound>,
    pub to: Option<Bound>,
    pub most_docs: u64,
    pub most_bytes: u64,
    pub docs_of_batch: u64,
    pub time_of_batch: Duration,
    /// Who must have each batch before the next one.
    pub waits_for: Option<(Wanted, Option<u64>)>,
    /// As `dbCheckParameters` tells them.
    pub parameters: Option<DocBuf>,
    /// As currentOp tells it.
    pub description: DocBuf,
}

/// A bound as the health log shows it.
pub fn shown(bound: Option<&[u8]>, index: Option<&str>, is_end: bool) -> DocBuf {
    let open = match is_end {
        true => bson::Val::MAX_KEY,
        false => bson::Val::MIN_KEY,
    };
    let mut w = Writer::new();
    match (bound, index) {
        (None, index) => w.val(index.unwrap_or("_id"), open),
        (Some(key), Some(index)) => w.binary(index, 0, key),
        (Some(id), None) => w.extend(Doc::new(id).unwrap_or(Doc::EMPTY)),
    };
    w.finish()
}

/// What the health log says of a check that an error ended: severity, sentence, scope.
fn ended_early(code: Code) -> (&'static str, &'static str, &'static str) {
    match code {
        Code::NamespaceNotFound => (
            "warning",
            "abandoning dbCheck batch because collection no longer exists",
            "collection",
        ),
        Code::IndexNotFound => (
            "warning",
            "abandoning dbCheck extra index keys check because index no longer exists",
            "index",
        ),
        Code::WriteConcernFailed => (
            "warning",
            "dbCheck failed waiting for writeConcern",
            "collection",
        ),
        Code::NotWritablePrimary | Code::PrimarySteppedDown => (
            "warning",
            "abandoning dbCheck batch due to stepdown",
            "collection",
        ),
        _ => ("error", "dbCheck failed", "cluster"),
    }
}

/// How far a run has come in a collection.
struct Progress {
    from: Option<Bound>,
    docs: u64,
    bytes: u64,
    batches: i64,
    names: Vec<Uuid>,
    /// A member did not report in time: the run waits for none until its end.
    is_late: bool,
}

impl Progress {
    /// A batch was read.
    fn passed(&mut self, name: Uuid, found: &BatchContents) {
        self.docs += found.count;
        self.bytes += found.bytes;
        self.names.push(name);
        if self.names.len() > MOST_RESULTS {
            self.names.remove(0);
        }
        self.from = found.last.clone().or_else(|| self.from.take());
    }
}

/// A batch that was read on the primary.
struct Batch {
    from: Option<Bound>,
    to: Option<Bound>,
    /// The health log has it even if nothing is wrong.
    logs: bool,
    is_capped: bool,
}

impl Batch {
    /// What the health log of the primary says of it.
    fn entries(
        &self,
        run: &Run,
        marked: &Marked,
        about: &HealthLogSubject<'_>,
        found: &BatchContents,
    ) -> Vec<DocBuf> {
        let mut entries: Vec<DocBuf> = found.wrong.iter().map(|w| about.wrong(w)).collect();
        if self.logs {
            let index = run.kind.index.as_deref();
            let of = BatchEntry {
                name: &marked.name,
                expected: &found.digest,
                from: shown(self.from.as_deref(), index, false),
                to: shown(self.to.as_deref(), index, true),
                is_capped: self.is_capped,
                ts: marked.ts,
            };
            entries.push(about.batch(found, &of).0);
        }
        entries
    }

    /// What the other members are told, to read the same.
    fn to_doc(&self, run: &Run, (ns, uuid): (&str, &Uuid), found: &BatchContents) -> DocBuf {
        let mut w = Writer::new();
        w.str("ns", ns)
            .binary("uuid", 4, uuid)
            .str("md5", &found.digest);
        for (field, bound) in [("from", &self.from), ("to", &self.to)] {
            if let Some(bound) = bound {
                w.binary(field, 0, bound);
            }
        }
        if let Some(index) = run.kind.index.as_deref() {
            w.str("index", index);
        }
        w.bool("looksUp", run.kind.looks_up)
            .bool("withIndexes", run.kind.with_indexes)
            .bool("logs", self.logs);
        if let Some(parameters) = &run.parameters {
            w.doc("parameters", parameters.as_doc());
        }
        w.finish()
    }
}

impl DbChecks {
    /// Puts a run behind those that there are; tells the health log where they are too many.
    pub fn enqueue(self: &Arc<Self>, run: Run) {
        let most = usize::try_from(self.parameters.int(DB_CHECK_MOST_RUNS)).unwrap_or(1);
        let mut state = self.state.lock();
        if state.runs.len() >= most {
            let queue = state.runs.iter().map(|r| r.description.clone()).collect();
            drop(state);
            let host = self.host();
            let about = HealthLogSubject {
                target: None,
                host: &host,
                parameters: run.parameters.as_ref().map(DocBuf::as_doc),
                operation: "dbCheckBatch",
            };
            return self.log(&[about.queue(queue)]);
        }
        state.runs.push_back(run);
        let begins = !std::mem::replace(&mut state.runs_are_done, true);
        drop(state);
        if begins {
            self.clone().spawn(|checks| checks.do_runs());
        }
    }

    fn do_runs(self: Arc<Self>) {
        loop {
            let run = {
                let mut state = self.state.lock();
                let Some(run) = state.runs.front().cloned() else {
                    state.runs_are_done = false;
                    return;
                };
                run
            };
            self.run(&run);
            self.state.lock().runs.pop_front();
        }
    }

    fn run(&self, run: &Run) {
        let host = self.host();
        let single = run
            .parameters
            .is_some()
            .then(|| run.targets.first())
            .flatten();
        let about = |operation, target| HealthLogSubject {
            target,
            host: &host,
            parameters: run.parameters.as_ref().map(DocBuf::as_doc),
            operation,
        };
        let whole = single.map(|(ns, uuid)| (ns.as_str(), uuid));
        self.log(&[about("dbCheckStart", whole).info()]);
        let ns = run.targets.first().map_or("", |(ns, _)| ns.as_str());
        let operation = self.register(ns, run.description.clone());
        for (ns, uuid) in &run.targets {
            let of_batch = about("dbCheckBatch", Some((ns, uuid)));
            if let Err(stop) = self.check(run, (ns, uuid), &of_batch, &operation) {
                let error = stop.into_error();
                let (severity, msg, scope) = ended_early(error.code);
                self.log(&[of_batch.failure(severity, msg, scope, &error)]);
                if operation.is_killed() || self.control.is_stopping() || !self.leads() {
                    break;
                }
            }
        }
        self.log(&[about("dbCheckStop", whole).info()]);
    }

    /// Checks a collection, batch by batch.
    fn check(
        &self,
        run: &Run,
        target: (&str, &Uuid),
        about: &HealthLogSubject<'_>,
        operation: &Registered,
    ) -> Result<()> {
        let mut progress = Progress {
            from: run.from.clone(),
            docs: 0,
            bytes: 0,
            batches: 0,
            names: Vec::new(),
            is_late: false,
        };
        loop {
            self.go_on(operation)?;
            if !self.leads() {
                bail!(PrimarySteppedDown, "dbCheck terminated due to stepdown");
            }
            let began = Instant::now();
            let (found, index) = self.batch(run, target, about, operation, &mut progress)?;
            self.await_members(run, index, operation)?;
            let ends =
                found.ended || progress.docs >= run.most_docs || progress.bytes >= run.most_bytes;
            if ends {
                return self.await_last_reports(&progress.names, about, operation);
            }
            if !progress.is_late {
                progress.is_late =
                    self.unread(&progress.names, MOST_UNREAD, operation)? > MOST_UNREAD;
            }
            self.rest(found.bytes, began, operation)?;
        }
    }

    /// Reads the next batch in the state of a mark, and has its result ready for the others.
    fn batch(
        &self,
        run: &Run,
        target: (&str, &Uuid),
        about: &HealthLogSubject<'_>,
        operation: &Registered,
        progress: &mut Progress,
    ) -> Result<(BatchContents, u64)> {
        let marked = self.mark()?;
        let read = self.read(run, target, &marked, operation, progress);
        let (found, is_capped) = read.inspect_err(|_| self.forget(&marked.name))?;
        progress.batches += 1;
        let batch = Batch {
            // The last batch ends where all ends: what others have behind it is seen.
            to: match found.ended {
                true => run.to.clone(),
                false => found.last.clone(),
            },
            from: progress.from.clone(),
            logs: progress.batches % self.parameters.int(DB_CHECK_LOGGED_EVERY).max(1) == 0,
            is_capped,
        };
        self.publish(&marked.name, batch.to_doc(run, target, &found));
        self.log(&batch.entries(run, &marked, about, &found));
        progress.passed(marked.name, &found);
        Ok((found, marked.index))
    }

    /// Writes a mark into the log, and takes the state of that moment.
    fn mark(&self) -> Result<Marked> {
        let name = new_uuid();
        self.announce(name);
        let marked = match self.engine.store.propose(vec![Entry::mark(name)]) {
            Ok(_) => self.take(Some(name)).ok_or_else(|| {
                errors::err!(SnapshotUnavailable, "the state of a batch is gone").into()
            }),
            Err(stop) => Err(stop.into()),
        };
        marked.inspect_err(|_| self.forget(&name))
    }

    /// What the next batch has, and whether its collection is capped.
    fn read(
        &self,
        run: &Run,
        (ns, uuid): (&str, &Uuid),
        marked: &Marked,
        operation: &Registered,
        progress: &Progress,
    ) -> Result<(BatchContents, bool)> {
        let Some(coll) = marked.collection(ns, uuid) else {
            bail!(
                NamespaceNotFound,
                "Collection under dbCheck no longer exists; cannot find collection for ns {ns}"
            );
        };
        let mut op = OpCtx::worker(&self.engine);
        op.killed = Some(&operation.operation.killed);
        let limits = BatchLimits {
            count: run.docs_of_batch.min(run.most_docs - progress.docs),
            bytes: run.most_bytes - progress.bytes,
            until: Instant::now() + run.time_of_batch,
        };
        let range = BatchRange {
            view: &marked.view,
            coll,
            from: progress.from.as_deref(),
            to: run.to.as_deref(),
            limits: Some(&limits),
        };
        let found = match &run.kind.index {
            Some(index) => batch::entries(&mut op, &range, index, run.kind.looks_up),
            None => batch::documents(&mut op, &range, run.kind.with_indexes),
        }?;
        Ok((found, coll.capped.is_some()))
    }

    fn announce(&self, name: Uuid) {
        let mut state = self.state.lock();
        state.outcomes.push_back(Outcome {
            name,
            result: None,
            reported: 0,
        });
        while state.outcomes.len() > MOST_RESULTS {
            state.outcomes.pop_front();
        }
    }

    fn forget(&self, name: &Uuid) {
        self.state.lock().outcomes.retain(|o| o.name != *name);
    }

    fn publish(&self, name: &Uuid, result: DocBuf) {
        let mut state = self.state.lock();
        if let Some(outcome) = state.outcomes.iter_mut().find(|o| o.name == *name) {
            outcome.result = Some(result);
        }
    }

    /// What is known of a batch: `None` where it is not one of this member's; its result, when it is read.
    pub fn outcome(&self, name: &Uuid) -> Option<Option<DocBuf>> {
        let state = self.state.lock();
        let outcome = state.outcomes.iter().find(|o| o.name == *name)?;
        Some(outcome.result.clone())
    }

    /// Another member has read a batch.
    pub fn reported(&self, name: &Uuid) {
        let mut state = self.state.lock();
        if let Some(outcome) = state.outcomes.iter_mut().find(|o| o.name == *name) {
            outcome.reported += 1;
        }
    }

    /// Waits until the members that the command's write concern asks for have the batch's mark.
    fn await_members(&self, run: &Run, index: u64, operation: &Registered) -> Result<()> {
        let (Some(driver), Some((wanted, timeout))) = (&self.replica, &run.waits_for) else {
            return Ok(());
        };
        let until = Instant::now() + timeout.map_or(LONGEST_CONCERN, Duration::from_millis);
        loop {
            let reached = driver.wait(until.min(Instant::now() + LOOK), |status| {
                let has = |member: i32| {
                    let id = raft_id(member);
                    status.progress.iter().any(|p| p.0 == id && p.1 >= index)
                };
                status
                    .config
                    .as_ref()
                    .is_some_and(|c| c.is_reached(wanted, &has))
            });
            if reached {
                return Ok(());
            }
            self.go_on(operation)?;
            if !self.leads() {
                bail!(PrimarySteppedDown, "dbCheck terminated due to stepdown");
            }
            if Instant::now() >= until {
                bail!(WriteConcernFailed, "waiting for replication timed out");
            }
        }
    }

    /// Tells the health log how many batches a member has not read.
    fn await_last_reports(
        &self,
        names: &[Uuid],
        about: &HealthLogSubject<'_>,
        operation: &Registered,
    ) -> Result<()> {
        let unread = self.unread(names, 0, operation)?;
        if unread > 0 {
            let text = format!("{unread} batches have not been read by all members");
            let error = Error::new(Code::ExceededTimeLimit, text);
            let msg = "dbCheck: members are missing";
            self.log(&[about.failure("warning", msg, "cluster", &error)]);
        }
        Ok(())
    }

    /// Waits, for a while, until at most `most` of the batches have not been read by all members; how many these are.
    fn unread(&self, names: &[Uuid], most: usize, operation: &Registered) -> Result<usize> {
        let Some(driver) = &self.replica else {
            return Ok(0);
        };
        let until = Instant::now() + LONGEST_REPORT;
        loop {
            let status = driver.status();
            let others = status.progress.iter().filter(|p| p.0 != status.id).count();
            let unread = {
                let state = self.state.lock();
                let lacks = |o: &&Outcome| names.contains(&o.name) && o.reported < others;
                state.outcomes.iter().filter(lacks).count()
            };
            if unread <= most || Instant::now() >= until {
                return Ok(unread);
            }
            self.go_on(operation)?;
            std::thread::sleep(LOOK);
        }
    }

    /// Rests as long as `maxDbCheckMBperSec` says.
    fn rest(&self, bytes: u64, began: Instant, operation: &Registered) -> Result<()> {
        let rate = self.parameters.int(DB_CHECK_RATE).unsigned_abs();
        if rate == 0 {
            return Ok(());
        }
        let whole = Duration::from_secs_f64(bytes as f64 / (rate << 20) as f64);
        while let Some(left) = whole
            .checked_sub(began.elapsed())
            .filter(|left| !left.is_zero())
        {
            self.go_on(operation)?;
            std::thread::sleep(left.min(LOOK));
        }
        Ok(())
    }
}

/// A description without a collection, of a run over a database.
pub fn of_database(db: &str) -> DocBuf {
    doc! { "dbcheck": db }
}
