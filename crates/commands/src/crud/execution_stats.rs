//! What a run of an explained query counted, and `executionStats`, in which explain tells it.

use super::explain::{QUERY_ROOM, Verbosity};
use bson::{DocBuf, Writer};
use errors::{Result, Stop};
use executor::{FindCursor, FindRequest, OpCtx, Trial};
use planner::explain::PlanStage;
use query::filter::Filter;
use query::pipeline::StageCounters;
use std::time::Instant;

/// What a run of the query counted.
#[derive(Default)]
pub(super) struct Counted {
    returned: u64,
    keys: u64,
    docs: u64,
    seeks: u64,
    hidden: u64,
    /// What came out of the scans of indexes.
    entries: u64,
    sort_bytes: u64,
    sort_rows: u64,
    millis: i64,
    /// A trial was over before the plan was.
    cut: bool,
    error: Option<errors::Error>,
}

impl From<&StageCounters> for Counted {
    fn from(f: &StageCounters) -> Counted {
        Counted {
            returned: f.returned,
            keys: f.keys,
            docs: f.docs,
            seeks: f.seeks,
            hidden: f.hidden,
            entries: entries(f.docs, f.returned),
            sort_bytes: f.sort_bytes,
            sort_rows: f.sort_rows,
            millis: f.time.as_millis() as i64,
            cut: false,
            error: None,
        }
    }
}

impl From<&Trial> for Counted {
    fn from(t: &Trial) -> Counted {
        let x = &t.examined;
        Counted {
            returned: t.returned,
            keys: x.keys,
            docs: x.docs,
            seeks: x.seeks,
            hidden: x.hidden,
            entries: entries(x.docs, t.returned),
            sort_bytes: t.sort_bytes as u64,
            sort_rows: t.sort_rows,
            millis: 0,
            cut: !t.ended,
            error: t.failed.clone(),
        }
    }
}

/// What index scans gave: all of it is fetched, if anything is.
fn entries(docs: u64, returned: u64) -> u64 {
    if docs > 0 { docs } else { returned }
}

pub(super) fn execute(op: &mut OpCtx, cursor: &mut FindCursor) -> Result<Counted> {
    let started = Instant::now();
    let hidden = op.examined().hidden;
    let mut c = Counted::default();
    loop {
        match cursor.next(op) {
            Ok(true) => {
                cursor.doc()?;
                c.returned += 1;
            }
            Ok(false) => break,
            Err(Stop::Failed(e)) if !e.is_interruption() => {
                c.error = Some(e);
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    let x = cursor.examined();
    (c.keys, c.docs, c.seeks) = (x.keys, x.docs, x.seeks);
    c.hidden = op.examined().hidden.saturating_sub(hidden);
    c.entries = entries(c.docs, c.returned);
    let (bytes, rows) = cursor.sorted();
    (c.sort_bytes, c.sort_rows) = (bytes as u64, rows);
    c.millis = started.elapsed().as_millis() as i64;
    Ok(c)
}

/// `executionStats`; `trials` are the plans that there were to choose from, for `allPlansExecution`.
pub(super) fn write_stats(
    w: &mut Writer,
    tree: &DocBuf,
    c: &Counted,
    verbosity: Verbosity,
    trials: &[DocBuf],
) {
    w.open_doc("executionStats")
        .bool("executionSuccess", c.error.is_none());
    if let Some(e) = &c.error {
        w.str("errorMessage", &e.message).i32("errorCode", e.code.0);
    }
    w.int("nReturned", c.returned as i64)
        .int("executionTimeMillis", c.millis);
    w.int("totalKeysExamined", c.keys as i64)
        .int("totalDocsExamined", c.docs as i64);
    if c.hidden > 0 {
        w.int("totalHiddenKeysSkipped", c.hidden as i64);
    }
    w.doc("executionStages", tree.as_doc());
    if verbosity == Verbosity::AllPlansExecution {
        w.open_array("allPlansExecution");
        for t in trials {
            if w.len() + t.as_bytes().len() <= QUERY_ROOM {
                w.push(t.as_doc().as_val());
            }
        }
        w.close();
    }
    w.close();
}

impl Counted {
    /// What a trial of a plan counted, as a member of `allPlansExecution` begins. The score is MongoDB's
    /// without its bonuses: one, and the results for each step.
    pub(super) fn write_trial(&self, w: &mut Writer) {
        let works = self.keys.max(self.docs) + 1;
        w.int("nReturned", self.returned as i64)
            .i32("executionTimeMillisEstimate", 0)
            .int("totalKeysExamined", self.keys as i64)
            .int("totalDocsExamined", self.docs as i64)
            .f64("score", 1.0 + self.returned as f64 / works as f64);
        if let Some(e) = &self.error {
            w.str("errorMessage", &e.message).i32("errorCode", e.code.0);
        }
    }

    /// Entries that were skipped came out of the scan too.
    pub(super) fn skipped_entries(&mut self, skip: u64) {
        self.entries = self.entries.saturating_add(skip).min(self.keys);
    }

    /// The same run, which gave another number of documents in the end.
    pub(super) fn with_returned(mut self, returned: u64) -> Counted {
        self.returned = returned;
        self
    }
}

/// A count is run as count runs it, so that the figures are those of the command.
pub(super) fn count_run(
    op: &mut OpCtx,
    ns: &str,
    filter: &Filter,
    tree: &PlanStage,
) -> Result<Counted> {
    let started = Instant::now();
    let mut c = Counted::default();
    let below = tree.inputs.first().map_or(tree.name, |s| s.name);
    if matches!(below, "IXSCAN" | "COUNT_SCAN" | "RECORD_STORE_FAST_COUNT") {
        let before = op.examined();
        c.entries = executor::count(op, ns, &executor::ReadRequest::new(filter), 0, 0)?;
        c.hidden = op.examined().hidden.saturating_sub(before.hidden);
        match below {
            "COUNT_SCAN" => c.keys = c.entries + 1,
            "IXSCAN" => {
                c.keys = op.examined.keys - before.keys;
                c.seeks = op.examined.seeks - before.seeks;
            }
            _ => {}
        }
    } else if let Some(mut cursor) = FindCursor::open(op, ns, FindRequest::new(filter.clone()))? {
        c = execute(op, &mut cursor)?;
    }
    c.millis = started.elapsed().as_millis() as i64;
    Ok(c)
}

/// What a run counted at each stage; a `GROUP` at the top gave `groups`.
pub(super) fn execution_stages(tree: &PlanStage, c: &Counted, groups: Option<u64>) -> DocBuf {
    tree.to_doc(&|s, w| {
        let returned = match s.name {
            "GROUP" => groups.unwrap_or(c.returned),
            "IXSCAN" | "DISTINCT_SCAN" | "COUNT_SCAN" => c.entries,
            "FETCH" if !s.fields.as_doc().contains("filter") => c.docs.max(c.returned),
            _ => c.returned,
        };
        w.int("nReturned", returned as i64)
            .i32("executionTimeMillisEstimate", 0);
        w.int("works", (c.keys.max(c.docs) + 1) as i64)
            .int("advanced", returned as i64);
        w.i32("needTime", 0)
            .i32("needYield", 0)
            .i32("saveState", 0)
            .i32("restoreState", 0)
            .i32("isEOF", i32::from(!c.cut));
        match s.name {
            "IXSCAN" | "DISTINCT_SCAN" | "COUNT_SCAN" | "EXPRESS_IXSCAN" => {
                w.int("keysExamined", c.keys as i64);
                if matches!(s.name, "IXSCAN" | "EXPRESS_IXSCAN") {
                    w.int("seeks", c.seeks.max(1) as i64)
                        .i32("dupsTested", 0)
                        .i32("dupsDropped", 0);
                }
                if s.name == "EXPRESS_IXSCAN" {
                    w.int("docsExamined", c.docs as i64);
                }
            }
            "COLLSCAN" | "FETCH" => {
                w.int("docsExamined", c.docs as i64);
                if s.name == "FETCH" {
                    w.i32("alreadyHasObj", 0);
                }
            }
            "SORT" => {
                w.int("totalDataSizeSorted", c.sort_bytes as i64)
                    .bool("usedDisk", false);
                w.int("spills", 0).int("rowsSorted", c.sort_rows as i64);
            }
            "UPDATE" => {
                w.int("nMatched", c.returned as i64)
                    .int("nWouldModify", c.returned as i64);
                w.int("nWouldUpsert", 0);
            }
            "DELETE" => {
                w.int("nWouldDelete", c.returned as i64);
            }
            _ => {}
        }
    })
}
