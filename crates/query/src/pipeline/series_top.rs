//! The newest, or the oldest, of a time series: its buckets with the filters and the `$sort` by time
//! behind them, as one operator. Buckets come in the order of devices; so many of them are gathered,
//! and taken apart the most promising first, until none that is left can have anything better.
//!
//! Invariant: the measurements are those of the stages one after another, in the order of time. Gathered
//! and kept measurements count in the memory of stages.

use super::stage_memory::hold;
use super::unpack::{damaged, rank, rank_of};
use super::{IdleVisitor, Op, PipelineHost, Share, Source, Stage, Unpack};
use crate::expr::Vars;
use crate::filter::Filter;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A `$sort` that keeps more holds better what it sorts.
const MOST_KEPT: u64 = 10_000;
/// Buckets that are gathered at a time.
const GATHERED: usize = 512;
const GATHERED_BYTES: usize = 8 << 20;

/// What the operator does.
pub(super) struct Fused {
    filters: Vec<Arc<Filter>>,
    descending: bool,
    keep: usize,
    /// How many stages behind that of buckets it stands for.
    pub stages: usize,
}

/// The operator for the stages behind buckets, where it can stand for them.
pub(super) fn fused(spec: &Unpack, behind: &[Stage]) -> Option<Fused> {
    let mut filters = Vec::new();
    for (n, stage) in behind.iter().enumerate() {
        match &stage.op {
            Op::Match(f) => filters.push(f.clone()),
            Op::Sort(by, Some(keep)) if (1..=MOST_KEPT).contains(keep) => {
                let [field] = by.fields.as_slice() else {
                    return None;
                };
                let by_time = field.meta.is_none() && field.path.as_str() == spec.options.time;
                return by_time.then_some(Fused {
                    filters,
                    descending: field.descending,
                    keep: *keep as usize,
                    stages: n + 1,
                });
            }
            _ => return None,
        }
    }
    None
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Unpack>,
    fused: Fused,
    vars: Arc<Vars>,
    /// The fields at the top that later stages read; `None`: all.
    wanted: Option<BTreeSet<String>>,
    times: (i64, i64),
    /// Each with the least rank that a measurement of it can have.
    gathered: Vec<(i64, DocBuf)>,
    bytes: usize,
    /// By rank, then in order of arrival.
    kept: BTreeMap<(i64, u64), DocBuf>,
    arrivals: u64,
    share: Option<Share>,
    out: DocBuf,
    #[cfg(test)]
    taken_apart: Arc<std::sync::atomic::AtomicUsize>,
}

impl Run {
    /// `behind` are the stages that follow; they need the paths `needed`.
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<Unpack>,
        behind: &[Stage],
        fused: Fused,
        needed: Option<BTreeSet<String>>,
        vars: Arc<Vars>,
    ) -> Run {
        let top = |p: &String| p.split('.').next().unwrap_or("").to_string();
        Run {
            input: Some(input),
            times: spec.selection(behind).times,
            spec,
            fused,
            vars,
            wanted: needed.map(|all| all.iter().map(top).collect()),
            gathered: Vec::new(),
            bytes: 0,
            kept: BTreeMap::new(),
            arrivals: 0,
            share: None,
            out: DocBuf::new(),
            #[cfg(test)]
            taken_apart: Arc::default(),
        }
    }

    /// The rank that a measurement must be below to be among those that are kept.
    fn limit(&self) -> Option<i64> {
        let full = self.kept.len() >= self.fused.keep;
        let worst = self.kept.last_key_value().filter(|_| full);
        worst.map(|((rank, _), _)| *rank)
    }

    /// Takes buckets in; whether there may be more.
    fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let mut bytes: usize = self.gathered.iter().map(|(_, b)| b.as_doc().len()).sum();
        while self.gathered.len() < GATHERED && bytes < GATHERED_BYTES {
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, bytes + self.bytes, host, "$sort")?;
            let Some(input) = &mut self.input else {
                return Ok(false);
            };
            if !input.advance(host)? {
                self.input = None;
                return Ok(false);
            }
            let bucket = input.doc().to_buf();
            let least = rank_of(&self.spec, bucket.as_doc(), self.fused.descending);
            let least = least.unwrap_or(i64::MIN);
            if self.limit().is_none_or(|limit| least < limit) {
                bytes += bucket.as_doc().len();
                self.gathered.push((least, bucket));
            }
        }
        Ok(true)
    }

    /// Takes the gathered buckets apart, as far as they can have something better.
    fn choose(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        // The most promising last, from where they are taken.
        self.gathered
            .sort_by_key(|(least, _)| std::cmp::Reverse(*least));
        loop {
            host.check()?;
            let Some((least, bucket)) = self.gathered.pop() else {
                return Ok(());
            };
            if self.limit().is_some_and(|limit| least >= limit) {
                self.gathered.clear();
                return Ok(());
            }
            self.take_apart(bucket.as_doc())?;
        }
    }

    fn take_apart(&mut self, bucket: Doc<'_>) -> Result<()> {
        #[cfg(test)]
        self.taken_apart
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let damaged = || damaged(bucket);
        let (low, high) = self.times;
        let times = match (self.limit(), self.fused.descending) {
            (Some(limit), true) => (low.max(!limit), high),
            (Some(limit), false) => (low, high.min(limit)),
            (None, _) => (low, high),
        };
        let rows = time_series::rows(&self.spec.options, bucket, self.wanted.as_ref(), times);
        let (mut rows, mut out) = (rows.ok_or_else(damaged)?, Vec::new());
        while rows.next(&mut out).ok_or_else(damaged)? {
            let doc = Doc::new(&out).unwrap_or(Doc::EMPTY);
            let time = doc.get(&self.spec.options.time).and_then(Val::as_date);
            let rank = rank(time.ok_or_else(damaged)?, self.fused.descending);
            if self.limit().is_some_and(|limit| rank >= limit) {
                continue;
            }
            let mut passes = true;
            for filter in &self.fused.filters {
                passes = passes && filter.matches_with(doc, &self.vars)?;
            }
            if passes {
                self.keep(rank, doc);
            }
        }
        Ok(())
    }

    fn keep(&mut self, rank: i64, doc: Doc<'_>) {
        self.bytes += doc.len() + size_of::<DocBuf>();
        self.arrivals += 1;
        self.kept.insert((rank, self.arrivals), doc.to_buf());
        if self.kept.len() > self.fused.keep
            && let Some((_, gone)) = self.kept.pop_last()
        {
            self.bytes -= gone.as_doc().len() + size_of::<DocBuf>();
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while self.input.is_some() || !self.gathered.is_empty() {
            self.gather(host)?;
            self.choose(host)?;
        }
        host.check()?;
        match self.kept.pop_first() {
            Some((_, doc)) => {
                self.out = doc;
                Ok(true)
            }
            None => {
                self.share = None;
                Ok(false)
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        super::show_doc(&mut self.out, wanted, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Memory, parse};
    use super::super::{Pipeline, over_docs};
    use super::*;
    use bson::doc;
    use std::sync::atomic::Ordering::Relaxed;
    use time_series::{Measurement, TimeSeriesOptions};

    const DEVICES: i64 = 20;
    const EACH: i64 = 3000;

    fn options() -> TimeSeriesOptions {
        TimeSeriesOptions::new("t", Some("m"), None, None, None).unwrap()
    }

    /// The buckets of all devices, device by device; one measurement each second of each of them.
    fn buckets() -> Vec<DocBuf> {
        let mut out = Vec::new();
        for m in 0..DEVICES {
            let doc =
                |n: i64| doc! {"_id": n, "m": m, "t": bson::Value::date(n * 1000), "v": n % 7};
            let all: Vec<DocBuf> = (0..EACH).map(doc).collect();
            let options = options();
            let read = |d: &'_ DocBuf| Measurement::read(&options, d.as_doc()).unwrap().time;
            let of: Vec<_> = all
                .iter()
                .map(|d| Measurement {
                    doc: d.as_doc(),
                    time: read(d),
                })
                .collect();
            let meta = bson::Value::from(m);
            out.extend(time_series::pack(&options, Some(meta.as_val()), &of).map(|p| p.doc));
        }
        out
    }

    /// Times and values, and how many buckets were taken apart.
    fn run(stages: &str) -> (Vec<(i64, i64)>, usize) {
        let options = Arc::new(options());
        let whole = Pipeline::of_measurements(Unpack { options }).then(&parse(stages).unwrap());
        let Some(Op::Unpack(spec)) = whole.stages.first().map(|s| &s.op) else {
            panic!("no buckets");
        };
        let behind = &whole.stages[1..];
        let fused = fused(spec, behind).expect("an order by time");
        let vars = Arc::new(Vars::new(0));
        let input = over_docs(buckets());
        let mut run = Run::new(input, spec.clone(), behind, fused, None, vars.clone());
        let (apart, mut host) = (run.taken_apart.clone(), Memory::default());
        let mut found = Vec::new();
        while run.advance(&mut host).unwrap() {
            let d = run.doc();
            let time = d.get("t").and_then(Val::as_date).unwrap();
            found.push((time / 1000, d.get("v").and_then(Val::to_i64_exact).unwrap()));
        }
        // The same as the stages one after another.
        let slow = whole.attach_watchless(over_docs(buckets()), &vars, &mut host);
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), slow);
        (found, apart.load(Relaxed))
    }

    impl Pipeline {
        /// The times, in seconds, that the stages give without this operator.
        fn attach_watchless(
            &self,
            input: Box<dyn Source>,
            vars: &Arc<Vars>,
            host: &mut Memory,
        ) -> Vec<i64> {
            let mut out = input;
            for (at, s) in self.stages.iter().enumerate() {
                out = match &s.op {
                    Op::Unpack(u) => {
                        let behind = &self.stages[at + 1..];
                        Box::new(super::super::unpack::Run::new(out, u.clone(), behind, None))
                    }
                    op => op.attach(out, vars),
                };
            }
            let mut times = Vec::new();
            while out.advance(host).unwrap() {
                times.push(out.doc().get("t").and_then(Val::as_date).unwrap() / 1000);
            }
            times
        }
    }

    #[test]
    fn of_each_device_one_bucket_is_taken_apart() {
        use super::super::series_last;
        let last = r#"{"_id":"$m","t":{"$last":"$t"}}"#;
        let first = last.replace("last", "first");
        for (sort, group, filter, newest) in [
            (r#"{"t":1}"#, last, "", Some(true)),
            (r#"{"m":1,"t":1}"#, last, "", Some(true)),
            (r#"{"m":-1,"t":-1}"#, &first, "", Some(true)),
            (
                r#"{"t":1}"#,
                &first,
                r#"{"$match":{"m":{"$gt":4}}},"#,
                Some(false),
            ),
            (
                r#"{"t":1}"#,
                last,
                r#"{"$match":{"m":{"$gt":4},"t":{"$gte":{"$date":1000}}}},"#,
                Some(true),
            ),
            (
                r#"{"t":1}"#,
                &first,
                r#"{"$match":{"t":{"$lt":{"$date":1000}},"m":{"$gt":4}}},"#,
                Some(false),
            ),
            // The last of these is not the last of the device.
            (
                r#"{"t":1}"#,
                last,
                r#"{"$match":{"t":{"$lt":{"$date":1000}}}},"#,
                None,
            ),
            (
                r#"{"t":1}"#,
                last,
                r#"{"$match":{"$or":[{"m":1},{"t":{"$gt":{"$date":1000}}}]}},"#,
                None,
            ),
            (r#"{"t":1,"m":1}"#, last, "", None),
            (r#"{"v":1}"#, last, "", None),
            (r#"{"t":1}"#, last, r#"{"$match":{"v":1}},"#, None),
            (
                r#"{"t":1}"#,
                r#"{"_id":"$m","t":{"$last":"$t"},"u":{"$min":"$t"}}"#,
                "",
                None,
            ),
            (
                r#"{"t":1}"#,
                r#"{"_id":"$m","t":{"$top":{"output":"$t","sortBy":{"v":1}}}}"#,
                "",
                None,
            ),
            (r#"{"t":1}"#, r#"{"_id":"$m","s":{"$sum":"$v"}}"#, "", None),
            (r#"{"t":1}"#, r#"{"_id":"$v","t":{"$last":"$t"}}"#, "", None),
        ] {
            let options = Arc::new(options());
            let stages = format!(r#"[{filter}{{"$sort":{sort}}},{{"$group":{group}}}]"#);
            let whole =
                Pipeline::of_measurements(Unpack { options }).then(&parse(&stages).unwrap());
            let Some(Op::Unpack(spec)) = whole.stages.first().map(|s| &s.op) else {
                panic!("no buckets");
            };
            let behind = &whole.stages[1..];
            assert_eq!(series_last::wanted(spec, behind), newest, "{stages}");
            let Some(newest) = newest else { continue };
            let input = over_docs(buckets());
            let run = series_last::Run::new(input, spec.clone(), newest, None);
            let (apart, vars) = (run.taken_apart.clone(), Arc::new(Vars::new(0)));
            let mut host = Memory::default();
            let rest = Pipeline {
                stages: behind.to_vec(),
                optimized: true,
            };
            let mut source = rest.attach(0, Box::new(run), &vars);
            let want = if newest { EACH - 1 } else { 0 };
            let mut found = 0;
            while source.advance(&mut host).unwrap() {
                let time = source.doc().get("t").and_then(Val::as_date);
                assert_eq!(time, Some(want * 1000), "{stages}");
                found += 1;
            }
            let devices = if filter.is_empty() {
                DEVICES
            } else {
                DEVICES - 5
            };
            assert_eq!(
                (found, apart.load(Relaxed)),
                (devices, DEVICES as usize),
                "{stages}"
            );
        }
    }

    #[test]
    fn few_buckets_are_taken_apart() {
        let all = buckets().len();
        assert!(all >= 3 * DEVICES as usize, "{all}");
        let (found, apart) = run(r#"[{"$sort":{"t":-1}},{"$limit":10}]"#);
        assert_eq!((found.len(), found[0].0), (10, EACH - 1));
        // Each device may have measured at the last moment.
        assert!(apart <= 10, "{apart} of {all}");
        let (found, apart) = run(r#"[{"$sort":{"t":1}},{"$limit":10}]"#);
        assert_eq!((found.len(), found[0].0), (10, 0));
        assert!(apart <= 10, "{apart} of {all}");
        // Filtered-out measurements do not count.
        let (found, apart) = run(r#"[{"$match":{"v":3}},{"$sort":{"t":-1}},{"$limit":35}]"#);
        assert!(found.iter().all(|(_, v)| *v == 3));
        assert!(apart <= DEVICES as usize, "{apart} of {all}");
        let (found, _) =
            run(r#"[{"$match":{"m":2,"v":{"$gt":100}}},{"$sort":{"t":-1}},{"$limit":1}]"#);
        assert_eq!(found, []);
    }
}
