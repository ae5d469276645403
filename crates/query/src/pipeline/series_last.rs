//! The last, or the first, measurement of each device: what a `$group` by the meta field takes that
//! wants no more than that. Of the buckets of one device only the one that ends last is taken apart,
//! and of that the measurements of its last time.
//!
//! ```text
//! buckets in the order of _id, backwards      span: how long a bucket may be
//! device 1  [..][..][..][..][..][####]        reads from the end of the device on what begins within
//! device 2  [..][..][..][###][#######]        a span of the latest time, and leaves the rest out
//! ```
//! The other way round the first bucket of a device begins first.
//!
//! Invariant: the `$sort` and the `$group` behind it find in what comes out all that they would have
//! kept. So in between nothing is filtered but the meta field, and the time only from that side on where
//! a device's end passes if anything of it does.

use super::group::Field;
use super::unpack::{damaged, rank, rank_of};
use super::{IdleVisitor, Op, PipelineHost, Source, Stage, Unpack};
use crate::filter::{Node, Test};
use bson::{Doc, DocBuf, Val, Writer};
use errors::Result;
use std::collections::BTreeSet;
use std::sync::Arc;
use time_series::Rows;

/// Whether the stages behind buckets want the last measurements (`Some(true)`), or the first, of each
/// device only.
pub(super) fn wanted(spec: &Unpack, behind: &[Stage]) -> Option<bool> {
    let (meta, time) = (spec.options.meta.as_deref()?, spec.options.time.as_str());
    let filters = |s: &&Stage| matches!(s.op, Op::Match(_));
    let many = behind.iter().take_while(filters).count();
    let (matches, rest) = behind.split_at(many);
    // Whether the latest come first, where there is an order.
    let (descending, group) = match rest {
        [sort, group, ..] if matches!(sort.op, Op::Sort(..)) => {
            (Some(descending_by_time(&sort.op, meta, time)?), group)
        }
        [group, ..] => (None, group),
        [] => return None,
    };
    let Op::Group(group) = &group.op else {
        return None;
    };
    let newest = |f: &Field| match (f.spec.name(), descending) {
        ("$first", Some(descending)) => Some(descending),
        ("$last", Some(descending)) => Some(!descending),
        _ => f.spec.needs_end_of(time),
    };
    // Of a device that is all that is asked for any measurement tells.
    let first = group.fields.first().map_or(Some(false), newest)?;
    if !group.fields.iter().all(|f| newest(f) == Some(first)) {
        return None;
    }
    let keeps = |s: &Stage| match &s.op {
        Op::Match(f) => keeps_end(f.root(), meta, time, first),
        _ => false,
    };
    let grouped = group.id.as_path().as_deref() == Some(meta);
    (grouped && matches.iter().all(keeps)).then_some(first)
}

/// Whether the last measurement of a device (`last`), or the first, passes a filter where any of it does.
fn keeps_end(node: &Node, meta: &str, time: &str, last: bool) -> bool {
    match node {
        Node::And(all) => all.iter().all(|n| keeps_end(n, meta, time, last)),
        Node::Pred { path, test } if path.as_str() == time => match test {
            Test::Gt(_) | Test::Gte(_) => last,
            Test::Lt(_) | Test::Lte(_) => !last,
            _ => false,
        },
        node => asks_of(node, meta),
    }
}

/// Whether a `$sort` by the time, within a device, is descending; `None`: it is by something else.
fn descending_by_time(sort: &Op, meta: &str, time: &str) -> Option<bool> {
    let Op::Sort(by, None) = sort else {
        return None;
    };
    match by.fields.as_slice() {
        _ if by.has_meta() => None,
        [t] if t.path.as_str() == time => Some(t.descending),
        [m, t] if m.path.as_str() == meta && t.path.as_str() == time => Some(t.descending),
        _ => None,
    }
}

/// Whether a filter asks of one field only.
fn asks_of(node: &Node, field: &str) -> bool {
    match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().all(|n| asks_of(n, field)),
        Node::Not(n) => asks_of(n, field),
        Node::Pred { path, .. } => path.first() == field,
        Node::Const(_) => true,
        Node::Expr(_) | Node::Schema(_) | Node::Sample(_) | Node::Text(_) => false,
    }
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Unpack>,
    last: bool,
    /// The fields at the top that later stages read; `None`: all.
    wanted: Option<BTreeSet<String>>,
    /// The best bucket of a device so far, by the rank of its best measurement.
    best: Option<(i64, DocBuf)>,
    rows: Option<Rows>,
    out: Vec<u8>,
    #[cfg(test)]
    pub taken_apart: Arc<std::sync::atomic::AtomicUsize>,
}

impl Run {
    /// As [`super::unpack::Run::new`].
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<Unpack>,
        last: bool,
        needed: Option<BTreeSet<String>>,
    ) -> Run {
        let top = |p: &String| p.split('.').next().unwrap_or("").to_string();
        Run {
            input: Some(input),
            spec,
            last,
            wanted: needed.map(|all| all.iter().map(top).collect()),
            best: None,
            rows: None,
            out: Vec::new(),
            #[cfg(test)]
            taken_apart: Arc::default(),
        }
    }

    /// The next device's best bucket; `None` at the end.
    fn next_best(&mut self, host: &mut dyn PipelineHost) -> Result<Option<(i64, DocBuf)>> {
        let meta = |d: &DocBuf| d.get("meta").map(Val::to_value);
        loop {
            let Some(input) = &mut self.input else {
                return Ok(self.best.take());
            };
            if !input.advance(host)? {
                self.input = None;
                continue;
            }
            let bucket = input.doc().to_buf();
            let rank = rank_of(&self.spec, bucket.as_doc(), self.last).ok_or_else(damaged_one)?;
            match &self.best {
                Some((least, best)) if meta(best) == meta(&bucket) => {
                    if rank < *least {
                        self.leave_out(rank, bucket.as_doc());
                        self.best = Some((rank, bucket));
                    }
                }
                _ => {
                    self.leave_out(rank, bucket.as_doc());
                    if let Some(done) = self.best.replace((rank, bucket)) {
                        return Ok(Some(done));
                    }
                }
            }
        }
    }

    /// Leaves out those buckets of the same device that can have nothing better than this one.
    fn leave_out(&mut self, best: i64, bucket: Doc<'_>) {
        let time = rank(best, self.last);
        if let Some(input) = &mut self.input
            && let Some((low, high)) = unwanted(&self.spec, bucket, time, self.last)
        {
            input.leave_out(low.as_doc(), high.as_doc());
        }
    }
}

/// The `_id`s, from the first to before the second, of buckets of a bucket's device that have nothing
/// after `time` (`last`), or nothing before it.
fn unwanted(spec: &Unpack, bucket: Doc<'_>, time: i64, last: bool) -> Option<(DocBuf, DocBuf)> {
    let device = bucket.get("_id")?.as_doc()?.get("m")?;
    let at = |write: &dyn Fn(&mut Writer)| {
        let mut w = Writer::new();
        w.val("m", device);
        write(&mut w);
        w.finish()
    };
    Some(match last {
        // One that begins earlier ends before that time.
        true => {
            let within = time.saturating_sub(spec.options.span_millis());
            (at(&|_| {}), at(&|w| _ = w.date("t", within)))
        }
        false => (
            at(&|w| _ = w.date("t", time).val("o", Val::MAX_KEY)),
            at(&|w| _ = w.val("t", Val::MAX_KEY)),
        ),
    })
}

fn damaged_one() -> errors::Error {
    damaged(Doc::EMPTY)
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            if let Some(rows) = &mut self.rows {
                match rows.next(&mut self.out).ok_or_else(damaged_one)? {
                    true => return Ok(true),
                    false => self.rows = None,
                }
            }
            let Some((least, bucket)) = self.next_best(host)? else {
                return Ok(false);
            };
            #[cfg(test)]
            self.taken_apart
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let time = rank(least, self.last);
            let (options, wanted) = (&self.spec.options, self.wanted.as_ref());
            let rows = time_series::rows(options, bucket.as_doc(), wanted, (time, time));
            self.rows = Some(rows.ok_or_else(damaged_one)?);
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        to.doc(&mut self.out, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Memory, parse};
    use super::super::{Pipeline, Stage};
    use super::*;
    use bson::{Value, doc, key};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use time_series::{Measurement, TimeSeriesOptions};

    /// Buckets in the order of their keys, or backwards; those left out do not come.
    struct Records {
        left: Vec<(Vec<u8>, DocBuf)>,
        hole: Option<(Vec<u8>, Vec<u8>)>,
        now: DocBuf,
        given: Arc<AtomicUsize>,
    }

    impl Source for Records {
        fn advance(&mut self, _: &mut dyn PipelineHost) -> Result<bool> {
            while let Some((key, bucket)) = self.left.pop() {
                let hole = self.hole.as_ref();
                if hole.is_some_and(|(low, high)| *low <= key && key < *high) {
                    continue;
                }
                self.given.fetch_add(1, Relaxed);
                self.now = bucket;
                return Ok(true);
            }
            Ok(false)
        }

        fn doc(&self) -> Doc<'_> {
            self.now.as_doc()
        }

        fn parts(&mut self, _: bool, _: &mut dyn IdleVisitor) -> Result<()> {
            Ok(())
        }

        fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
            self.hole = Some((key::of(low.as_val()), key::of(high.as_val())));
        }
    }

    const SPAN: i64 = 3600;

    fn options() -> TimeSeriesOptions {
        TimeSeriesOptions::new("t", Some("m"), None, None, None).unwrap()
    }

    fn devices() -> [Value; 6] {
        let of = |v: &str| Value::from(v);
        [
            Value::NULL,
            1.into(),
            1.5.into(),
            of("a"),
            of("ab"),
            doc! {"room": 1}.into(),
        ]
    }

    /// Batches of each device; some come late, and their buckets lie within others.
    fn buckets(seed: u64) -> (Vec<DocBuf>, Vec<(Value, i64)>) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |n: i64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n as u64) as i64
        };
        let (options, mut all, mut times) = (options(), Vec::new(), Vec::new());
        for device in devices() {
            for _ in 0..1 + random(12) {
                let start = random(10 * SPAN);
                let mut of: Vec<i64> = (0..1 + random(30)).map(|_| start + random(SPAN)).collect();
                of.sort_unstable();
                let docs: Vec<DocBuf> = (of.iter())
                    .map(|t| doc! {"_id": *t, "m": device.clone(), "t": Value::date(t * 1000)})
                    .collect();
                let read = |d| Measurement::read(&options, d).unwrap();
                let sorted: Vec<_> = docs.iter().map(|d| read(d.as_doc())).collect();
                let packed = time_series::pack(&options, Some(device.as_val()), &sorted);
                all.extend(packed.map(|p| p.doc));
                times.extend(of.into_iter().map(|t| (device.clone(), t * 1000)));
            }
        }
        (all, times)
    }

    /// The ends of all devices by a pipeline, and how many buckets it has read.
    fn ends(all: &[DocBuf], stages: &str) -> (Vec<(Vec<u8>, i64)>, usize, bool) {
        let options = Arc::new(options());
        let whole = Pipeline::of_measurements(Unpack { options }).then(&parse(stages).unwrap());
        let Some(Op::Unpack(spec)) = whole.stages.first().map(|s| &s.op) else {
            panic!("no buckets");
        };
        let behind: &[Stage] = &whole.stages[1..];
        let last = wanted(spec, behind).expect("the ends of devices");
        assert_eq!(whole.pushdown().backwards, last, "{stages}");
        let key = |d: &DocBuf| key::of(d.get("_id").unwrap());
        let mut left: Vec<_> = all.iter().map(|d| (key(d), d.clone())).collect();
        left.sort_by(|a, b| a.0.cmp(&b.0));
        if !last {
            left.reverse();
        }
        let given = Arc::new(AtomicUsize::new(0));
        let records = Records {
            left,
            hole: None,
            now: DocBuf::new(),
            given: given.clone(),
        };
        let (vars, mut host) = (Arc::default(), Memory::default());
        let mut source = whole.attach(0, Box::new(records), &vars);
        let mut found = Vec::new();
        while source.advance(&mut host).unwrap() {
            let doc = source.doc();
            let time = doc.get("t").and_then(Val::as_date).unwrap();
            found.push((key::of(doc.get("_id").unwrap()), time));
        }
        found.sort();
        (found, given.load(Relaxed), last)
    }

    fn wanted_ends(times: &[(Value, i64)], last: bool) -> Vec<(Vec<u8>, i64)> {
        let mut out = std::collections::BTreeMap::new();
        for (device, time) in times {
            let end = out.entry(key::of(device.as_val())).or_insert(*time);
            *end = if last { *time.max(end) } else { *time.min(end) };
        }
        out.into_iter().collect()
    }

    const NEWEST: [&str; 4] = [
        r#"[{"$sort":{"m":1,"t":-1}},{"$group":{"_id":"$m","t":{"$first":"$t"}}}]"#,
        r#"[{"$sort":{"t":1}},{"$group":{"_id":"$m","t":{"$last":"$t"},"u":{"$max":"$t"}}}]"#,
        r#"[{"$group":{"_id":"$m","t":{"$max":"$t"}}}]"#,
        r#"[{"$group":{"_id":"$m","t":{"$top":{"output":"$t","sortBy":{"t":-1}}}}}]"#,
    ];
    const OLDEST: [&str; 3] = [
        r#"[{"$sort":{"t":1}},{"$group":{"_id":"$m","t":{"$first":"$t"}}}]"#,
        r#"[{"$group":{"_id":"$m","t":{"$min":"$t"}}}]"#,
        r#"[{"$group":{"_id":"$m","t":{"$bottom":{"output":"$t","sortBy":{"t":-1}}}}}]"#,
    ];

    #[test]
    fn what_is_left_out_has_no_end_of_a_device() {
        for seed in 1..200 {
            let (all, times) = buckets(seed);
            for stages in NEWEST.iter().chain(&OLDEST) {
                let (found, _, last) = ends(&all, stages);
                assert_eq!(found, wanted_ends(&times, last), "{seed}: {stages}");
            }
        }
    }

    #[test]
    fn of_a_device_few_buckets_come() {
        let mut all = Vec::new();
        let options = options();
        for device in devices() {
            for hour in 0..50 {
                let doc =
                    doc! {"_id": hour, "m": device.clone(), "t": Value::date(hour * SPAN * 1000)};
                let one = [Measurement::read(&options, doc.as_doc()).unwrap()];
                let packed = time_series::pack(&options, Some(device.as_val()), &one);
                all.extend(packed.map(|p| p.doc));
            }
        }
        // One that begins a span before the last may end at the same time.
        let (_, newest, _) = ends(&all, NEWEST[0]);
        assert_eq!(newest, 2 * devices().len());
        let (_, oldest, _) = ends(&all, OLDEST[0]);
        assert_eq!(oldest, devices().len());
    }

    /// The condition by which the first test believes: without the span it fails.
    #[test]
    fn one_that_begins_earlier_may_end_later() {
        let spec = Unpack {
            options: Arc::new(options()),
        };
        let mut missed = 0;
        for seed in 1..200 {
            let (all, _) = buckets(seed);
            for bucket in &all {
                let end = rank(rank_of(&spec, bucket.as_doc(), true).unwrap(), true);
                let left_out = |shift: i64, other: &DocBuf| {
                    let (low, high) = unwanted(&spec, bucket.as_doc(), end + shift, true).unwrap();
                    let id = key::of(other.get("_id").unwrap());
                    key::of(low.as_doc().as_val()) <= id && id < key::of(high.as_doc().as_val())
                };
                let later = |other: &&DocBuf| {
                    rank(rank_of(&spec, other.as_doc(), true).unwrap(), true) > end
                };
                for other in all.iter().filter(later) {
                    assert!(!left_out(0, other), "{seed}");
                    missed += usize::from(left_out(SPAN * 1000, other));
                }
            }
        }
        assert!(missed > 100, "{missed}");
    }
}
