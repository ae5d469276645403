//! What a run of a pipeline counted, stage by stage, for explain.
//!
//! [`Pipeline::attach_watched`] puts an observer around each operator. While an operator is
//! advanced it is the current one of the host's [`StageProfiler`]: what it says of itself, and what
//! the collections that it opens examine, is counted there.
//!
//! Invariant: without an explanation none of this is there. No operator is wrapped, no clock is read,
//! and [`PipelineHost::watch`] is asked once for a whole input or a spill, never for a document.

use super::{IdleVisitor, Op, Pipeline, PipelineHost, Source, Stage};
use crate::accumulator::Accumulator;
use crate::expr::Vars;
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Writer};
use errors::Result;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The counters of one stage, or of the query that stands for the first ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageCounters {
    /// Documents that came out, and their bytes.
    pub returned: u64,
    pub bytes: u64,
    /// With the time of the stages below.
    pub time: Duration,
    /// What the collections that it read examined.
    pub keys: u64,
    pub docs: u64,
    pub seeks: u64,
    pub hidden: u64,
    /// What a sort in the query held at most, and how many rows it took in.
    pub sort_bytes: u64,
    pub sort_rows: u64,
    pub collection_scans: u64,
    pub indexes_used: BTreeSet<String>,
    /// What a `$sort` took in: keys and documents.
    pub sorted_bytes: u64,
    /// The most that each accumulator of a `$group` held.
    pub accumulators: Vec<u64>,
    pub spills: u64,
    pub spilled_records: u64,
    pub spilled_bytes: u64,
    /// Of each pipeline of a `$facet` the numbers of its stages.
    pub parts: Vec<Vec<usize>>,
}

impl StageCounters {
    pub(super) fn spilled(&mut self, records: usize, bytes: u64) {
        self.spills += 1;
        self.spilled_records += records as u64;
        self.spilled_bytes += bytes;
    }

    /// Takes note of what the accumulators of all groups in memory hold.
    pub(super) fn held<'g>(&mut self, groups: impl Iterator<Item = &'g [Accumulator]>) {
        let mut now: Vec<u64> = Vec::new();
        for accumulators in groups {
            now.resize(accumulators.len().max(now.len()), 0);
            for (n, a) in now.iter_mut().zip(accumulators) {
                *n += (size_of::<Accumulator>() + a.memory_bytes()) as u64;
            }
        }
        self.accumulators
            .resize(now.len().max(self.accumulators.len()), 0);
        for (most, n) in self.accumulators.iter_mut().zip(now) {
            *most = (*most).max(n);
        }
    }
}

/// The figures of all that is watched, and which of it runs now.
pub struct StageProfiler {
    clock: fn() -> Instant,
    stages: Vec<StageCounters>,
    current: usize,
}

impl StageProfiler {
    pub fn new(clock: fn() -> Instant) -> StageProfiler {
        StageProfiler {
            clock,
            stages: Vec::new(),
            current: 0,
        }
    }

    /// The number of a further stage.
    pub fn add(&mut self) -> usize {
        self.stages.push(StageCounters::default());
        self.stages.len() - 1
    }

    pub fn figures(&self, stage: usize) -> Option<&StageCounters> {
        self.stages.get(stage)
    }

    pub fn figures_mut(&mut self, stage: usize) -> Option<&mut StageCounters> {
        self.stages.get_mut(stage)
    }

    /// The number of the stage that runs.
    pub fn current(&self) -> usize {
        self.current
    }

    pub(super) fn now(&mut self) -> Option<&mut StageCounters> {
        self.stages.get_mut(self.current)
    }
}

/// Counts what comes out of an operator.
pub(super) struct Watched {
    input: Box<dyn Source>,
    stage: usize,
}

impl Source for Watched {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let Some((started, before)) = host.watch().map(|w| {
            let before = std::mem::replace(&mut w.current, self.stage);
            ((w.clock)(), before)
        }) else {
            return self.input.advance(host);
        };
        let more = self.input.advance(host);
        if let Some(w) = host.watch() {
            w.current = before;
            let now = (w.clock)();
            if let Some(f) = w.figures_mut(self.stage) {
                f.time += now.saturating_duration_since(started);
                if let Ok(true) = more {
                    f.returned += 1;
                    f.bytes += self.input.doc().len() as u64;
                }
            }
        }
        more
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        self.input.leave_out(low, high);
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

/// A source whose documents are counted for the stage of this number.
pub fn watched(input: Box<dyn Source>, stage: usize) -> Box<dyn Source> {
    Box::new(Watched { input, stage })
}

impl Pipeline {
    /// As [`Pipeline::attach`], each stage watched; also gives their numbers.
    pub fn attach_watched(
        &self,
        from: usize,
        source: Box<dyn Source>,
        vars: &Arc<Vars>,
        watch: &mut StageProfiler,
    ) -> (Box<dyn Source>, Vec<usize>) {
        let mut out = self.narrowed(from, source, true);
        let mut numbers = Vec::new();
        for (at, s) in self.stages.iter().enumerate().skip(from) {
            let n = watch.add();
            out = match &s.op {
                Op::Unpack(u) => u.attach(out, self.stages.split_at(at + 1).1, self.needed(at + 1)),
                op => op.attach(out, vars),
            };
            out = watched(out, n);
            numbers.push(n);
        }
        // Watching takes as much of the stack again.
        (super::nested(out, 2 * numbers.len()), numbers)
    }
}

impl Stage {
    /// Whether the stage before does all that this one would: a `$limit` behind a `$sort` that
    /// keeps no more. Explain shows the two as one.
    pub fn is_part_of(&self, before: &Stage) -> bool {
        matches!((&before.op, &self.op), (Op::Sort(_, Some(l)), Op::Limit(n)) if l == n)
    }

    /// Whether MongoDB 8 has its query engine do this stage where it follows a query at once: a
    /// `$group` of accumulators that this engine knows. Explain shows it as the top of the query's
    /// plan.
    pub fn is_group_of_query(&self) -> bool {
        let outside = [
            "$accumulator",
            "$median",
            "$percentile",
            "$_internalJsReduce",
        ];
        matches!(&self.op, Op::Group(g) if g.fields.iter().all(|f| !outside.contains(&f.spec.name())))
    }

    /// The stage as explain prints it: `{$name: specification}`, and behind it what its run
    /// counted.
    pub fn explain(&self, counted: Option<(&StageProfiler, usize)>) -> DocBuf {
        let figures = counted.and_then(|(w, n)| Some((w, w.figures(n)?)));
        let mut w = Writer::new();
        match (&self.op, figures) {
            (Op::Sort(pattern, limit), _) => {
                w.open_doc("$sort")
                    .doc("sortKey", pattern.to_doc().as_doc());
                if let Some(l) = limit {
                    w.i64("limit", *l as i64);
                }
                w.close();
            }
            (Op::Facet(f), Some((watch, figures))) => {
                w.open_doc("$facet");
                for ((name, pipeline), numbers) in f.parts.iter().zip(&figures.parts) {
                    w.open_array(name);
                    for (s, n) in pipeline.stages.iter().zip(numbers) {
                        w.push(s.explain(Some((watch, *n))).as_doc().as_val());
                    }
                    w.close();
                }
                w.close();
            }
            _ => {
                w.val(self.name, self.spec.as_val());
            }
        }
        if let Some((_, f)) = figures {
            self.write_figures(f, &mut w);
            write_common(f, &mut w);
        }
        w.finish()
    }

    /// What only stages of this kind count.
    fn write_figures(&self, f: &StageCounters, w: &mut Writer) {
        match &self.op {
            Op::Group(g) => {
                w.open_doc("maxAccumulatorMemoryUsageBytes");
                for (i, field) in g.fields.iter().enumerate() {
                    let most = f.accumulators.get(i).copied().unwrap_or(0);
                    w.i64(&field.name, most as i64);
                }
                w.close().i64("totalOutputDataSizeBytes", f.bytes as i64);
            }
            Op::Sort(..) => {
                w.i64("totalDataSizeSortedBytesEstimate", f.sorted_bytes as i64);
            }
            Op::Lookup(_) => {
                w.i64("totalDocsExamined", f.docs as i64)
                    .i64("totalKeysExamined", f.keys as i64)
                    .i64("collectionScans", f.collection_scans as i64);
                w.open_array("indexesUsed");
                for name in &f.indexes_used {
                    w.str("", name);
                }
                w.close();
                return;
            }
            _ => return,
        }
        w.bool("usedDisk", f.spills > 0)
            .i64("spills", f.spills as i64)
            .i64("spilledDataStorageSize", f.spilled_bytes as i64)
            .i64("spilledBytes", f.spilled_bytes as i64)
            .i64("spilledRecords", f.spilled_records as i64);
    }
}

/// What every stage counts.
pub fn write_common(f: &StageCounters, w: &mut Writer) {
    w.i64("nReturned", f.returned as i64)
        .i64("executionTimeMillisEstimate", f.time.as_millis() as i64);
}

#[cfg(test)]
mod tests {
    use super::super::over_docs;
    use super::super::tests::{Memory, docs, parse};
    use super::*;
    use std::cell::Cell;

    /// A millisecond passes between any two looks.
    fn clock() -> Instant {
        thread_local! {
            static START: Instant = Instant::now();
            static LOOKS: Cell<u64> = const { Cell::new(0) };
        }
        LOOKS.set(LOOKS.get() + 1);
        START.with(|s| *s + Duration::from_millis(LOOKS.get()))
    }

    /// Runs a pipeline watched; its stages as explain prints them.
    fn explained(host: &mut Memory, input: &str, stages: &str) -> Vec<DocBuf> {
        let pipeline = parse(stages).unwrap();
        let mut watch = StageProfiler::new(clock);
        let (mut source, numbers) = pipeline.attach_watched(
            0,
            over_docs(docs(input)),
            &Arc::new(Vars::new(0)),
            &mut watch,
        );
        host.watch = Some(watch);
        while source.advance(host).unwrap() {}
        let watch = host.watch.take().unwrap();
        let stages = pipeline.stages.iter().zip(numbers);
        stages.map(|(s, n)| s.explain(Some((&watch, n)))).collect()
    }

    fn number(d: &DocBuf, name: &str) -> i64 {
        let v = d.get(name).unwrap_or_else(|| panic!("{name} in {d:?}"));
        assert_eq!(v.tag, bson::tag::INT64, "{name}");
        v.to_i64_exact().unwrap()
    }

    const INPUT: &str =
        r#"[{"a": 1, "b": 5}, {"a": 2, "b": 6}, {"a": 1, "b": 7}, {"a": 3, "b": 8}]"#;

    #[test]
    fn counts_what_comes_out_and_the_time_of_all_below() {
        let out = explained(
            &mut Memory::default(),
            INPUT,
            r#"[{"$match": {"b": {"$gt": 5}}}, {"$set": {"c": 1}}, {"$group": {"_id": "$a", "s": {"$push": "$b"}}}]"#,
        );
        let returned: Vec<i64> = out.iter().map(|d| number(d, "nReturned")).collect();
        assert_eq!(returned, [3, 3, 3]);
        let times: Vec<i64> = out
            .iter()
            .map(|d| number(d, "executionTimeMillisEstimate"))
            .collect();
        assert!(
            times[0] > 0 && times[0] < times[1] && times[1] < times[2],
            "{times:?}"
        );
    }

    #[test]
    fn counts_what_blocking_stages_hold_and_spill() {
        let stages = r#"[{"$group": {"_id": "$a", "all": {"$push": "$b"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]"#;
        let held = explained(&mut Memory::default(), INPUT, stages);
        let most = held[0].get("maxAccumulatorMemoryUsageBytes").unwrap();
        let most = most.as_doc().unwrap();
        assert!(most.get("all").unwrap().to_i64_exact() > most.get("n").unwrap().to_i64_exact());
        assert!(number(&held[0], "totalOutputDataSizeBytes") > 3 * 20);
        assert!(number(&held[1], "totalDataSizeSortedBytesEstimate") > 3 * 20);
        for d in &held {
            assert_eq!(d.get("usedDisk").unwrap().as_bool(), Some(false));
            assert_eq!(number(d, "spills"), 0);
        }
        let mut small = Memory {
            limit: Some(60),
            disk: true,
            ..Memory::default()
        };
        for (d, rows) in explained(&mut small, INPUT, stages).iter().zip([4, 3]) {
            assert_eq!(d.get("usedDisk").unwrap().as_bool(), Some(true));
            // Each row alone is too much; the last run is the rest at the end.
            assert_eq!(number(d, "spilledRecords"), rows, "{d:?}");
            assert!(number(d, "spills") >= rows && number(d, "spilledBytes") > rows * 20);
            assert_eq!(number(d, "nReturned"), 3);
        }
    }

    #[test]
    fn shows_sorts_as_they_run_and_facets_from_inside() {
        let out = explained(
            &mut Memory::default(),
            INPUT,
            r#"[{"$set": {"c": 1}}, {"$sort": {"b": -1}}, {"$limit": 2},
              {"$facet": {"few": [{"$limit": 1}], "sums": [{"$match": {"b": 9}}, {"$count": "n"}]}}]"#,
        );
        let stages = parse(r#"[{"$sort": {"b": -1}}, {"$limit": 2}, {"$limit": 1}]"#)
            .unwrap()
            .stages;
        assert!(stages[1].is_part_of(&stages[0]) && !stages[2].is_part_of(&stages[1]));
        let sort = out[1].get("$sort").unwrap().as_doc().unwrap();
        assert_eq!(
            sort,
            bson::doc! { "sortKey": bson::doc! { "b": -1 }, "limit": 2i64 }.as_doc()
        );
        let facet = out[3].get("$facet").unwrap().as_doc().unwrap();
        let inside = |name: &str| -> Vec<i64> {
            let list = facet.get(name).unwrap().as_array().unwrap();
            let stages = list.values().map(|s| s.as_doc().unwrap().to_buf());
            stages.map(|s| number(&s, "nReturned")).collect()
        };
        assert_eq!(inside("few"), [1]);
        assert_eq!(inside("sums"), [0, 0]);
        assert_eq!(number(&out[3], "nReturned"), 1);
    }

    #[test]
    fn without_a_run_there_is_only_the_specification() {
        let p = parse(r#"[{"$set": {"c": 1}}, {"$count": "n"}]"#).unwrap();
        let shown: Vec<DocBuf> = p.stages.iter().map(|s| s.explain(None)).collect();
        assert_eq!(shown[1], bson::doc! { "$count": "n" });
    }
}
