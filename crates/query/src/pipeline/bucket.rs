//! `$bucket`, which is a `$group` by a `$switch` and a `$sort`, and `$bucketAuto`.
//!
//! The input of `$bucketAuto` is sorted, outside memory when it is much; then the buckets are given
//! one by one. What their accumulators hold can go nowhere and is bounded.

use super::granularity::{Granularity, granularity};
use super::group::{self, Field};
use super::parse::ParseCtx;
use super::stage_memory::hold;
use super::{IdleVisitor, Op, PipelineHost, Share, Source, Stage, sort};
use crate::accumulator::Accumulator;
use crate::collation::{Collation, compare};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::expr::{join_paths, ladder};
use crate::sort::SortPattern;
use bson::{Doc, DocBuf, Val, Value, Writer, key, order, tag};
use errors::{Result, bail, operation};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// With more boundaries `$bucket` looks for the right one; with fewer it is MongoDB's `$switch`, which
/// `explain` shows and filters on its result look into.
const MOST_BRANCHES: usize = 200;

/// A path, an object, or nothing that groups.
fn is_expression(v: Val<'_>) -> bool {
    v.tag == tag::DOCUMENT || v.as_str().is_some_and(|s| s.starts_with('$'))
}

/// `$bucket` as the stages it stands for.
pub(super) fn bucket(spec: Val<'_>, ctx: &ParseCtx) -> Result<Vec<Stage>> {
    let Some(d) = spec.as_doc() else {
        bail!(
            40201,
            "Argument to $bucket stage must be an object, but found type: {}.",
            spec.type_name()
        );
    };
    let (mut by, mut boundaries, mut default, mut output) = (None, None, None, None);
    for e in d.iter() {
        match e.name {
            "groupBy" => {
                if !is_expression(e.val) {
                    bail!(
                        40202,
                        "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression object, but \
                         found: {}.",
                        e.val
                    );
                }
                by = Some(e.val);
            }
            "boundaries" => {
                let Some(list) = e.val.as_array() else {
                    bail!(
                        40200,
                        "The $bucket 'boundaries' field must be an array, but found type: {}.",
                        e.val.type_name()
                    );
                };
                boundaries = Some(check_boundaries(list, &ctx.env)?);
            }
            "default" => default = Some(constant(e.val, &ctx.env, 40195, "default")?),
            "output" => match e.val.as_doc() {
                Some(o) => output = Some(o),
                None => bail!(
                    40196,
                    "The $bucket 'output' field must be an object, but found type: {}.",
                    e.val.type_name()
                ),
            },
            n => bail!(40197, "Unrecognized option to $bucket: {n}."),
        }
    }
    let (Some(by), Some(boundaries)) = (by, boundaries) else {
        bail!(
            40198,
            "$bucket requires 'groupBy' and 'boundaries' to be specified."
        );
    };
    check_default(default.as_ref(), &boundaries, &ctx.env)?;
    let id = match boundaries.len() {
        ..=MOST_BRANCHES => switch(by, &boundaries, default.as_ref())?,
        _ => ladder(by, &boundaries, default.as_ref()),
    };
    let mut w = Writer::new();
    w.val("_id", id.as_val());
    match output {
        Some(o) => {
            w.extend(o);
        }
        None => {
            w.open_doc("count").i32("$sum", 1).close();
        }
    }
    grouped_and_sorted(&w.finish(), &ctx.env)
}

/// No bucket has the default's documents.
fn check_default(default: Option<&Value>, boundaries: &[Value], env: &ParseEnv) -> Result<()> {
    if let (Some(v), Some(first), Some(last)) = (default, boundaries.first(), boundaries.last()) {
        let inside = compare(env.collation(), v.as_val(), first.as_val()) != Ordering::Less
            && compare(env.collation(), v.as_val(), last.as_val()) == Ordering::Less;
        if inside {
            bail!(
                40199,
                "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the \
                 highest boundary."
            );
        }
    }
    Ok(())
}

/// The stages: a group, and its groups by their `_id`.
fn grouped_and_sorted(group_spec: &DocBuf, env: &ParseEnv) -> Result<Vec<Stage>> {
    let group_spec = group_spec.as_doc().as_val();
    let sort_spec = bson::doc! { "_id": 1 };
    Ok(vec![
        Stage::new(
            "$group",
            group_spec,
            Op::Group(Arc::new(group::Group::parse(group_spec, env)?)),
        ),
        Stage::new(
            "$sort",
            sort_spec.as_doc().as_val(),
            Op::Sort(
                Arc::new(SortPattern::parse(sort_spec.as_doc())?.collated(env.collation())),
                None,
            ),
        ),
    ])
}

fn constant(v: Val<'_>, env: &ParseEnv, code: i32, what: &str) -> Result<Value> {
    match Expression::parse(v, env)?.constant() {
        Some(c) => Ok(c.clone()),
        None => Err(errors::Error::coded(
            code,
            format!("The $bucket '{what}' field must be a constant, but found: {v}."),
        )
        .into()),
    }
}

fn check_boundaries(list: Doc<'_>, env: &ParseEnv) -> Result<Vec<Value>> {
    let values = list
        .values()
        .map(|v| {
            operation::step()?;
            constant(v, env, 40191, "boundaries")
        })
        .collect::<Result<Vec<_>>>()?;
    if values.len() < 2 {
        bail!(
            40192,
            "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
            values.len()
        );
    }
    for pair in values.windows(2) {
        operation::step()?;
        let (a, b) = (pair[0].as_val(), pair[1].as_val());
        if tag::rank(a.tag) != tag::rank(b.tag) {
            bail!(
                40193,
                "All values in the the 'boundaries' option to $bucket must have the same type. Found conflicting types {} and {}.",
                a.type_name(),
                b.type_name()
            );
        }
        if compare(env.collation(), a, b) != Ordering::Less {
            bail!(
                40194,
                "The 'boundaries' option to $bucket must be sorted, but elements are not in ascending order ({a} is not \
                 less than {b})."
            );
        }
    }
    Ok(values)
}

fn literal(w: &mut Writer, name: &str, v: Val<'_>) {
    w.open_doc(name).val("$literal", v).close();
}

/// `{$_pandoBucket: {of: by, boundaries, default}}`.
fn ladder(by: Val<'_>, boundaries: &[Value], default: Option<&Value>) -> Value {
    let mut w = Writer::new();
    w.open_doc(ladder::NAME).val("of", by);
    w.open_doc("boundaries").open_array("$literal");
    boundaries.iter().for_each(|b| {
        w.push(b.as_val());
    });
    w.close().close();
    if let Some(d) = default {
        literal(&mut w, "default", d.as_val());
    }
    Value::from(w.finish())
}

/// `{$switch: {branches: [{case: {$and: [{$gte: [by, lower]}, {$lt: [by, upper]}]}, then: lower},
/// …], default}}`, as MongoDB has it.
fn switch(by: Val<'_>, boundaries: &[Value], default: Option<&Value>) -> Result<Value> {
    let mut w = Writer::new();
    w.open_doc("$switch").open_array("branches");
    for pair in boundaries.windows(2) {
        // A branch is some fields long, and is copied into the stages.
        operation::steps(8)?;
        w.open_doc("").open_doc("case").open_array("$and");
        for (op, bound) in [("$gte", &pair[0]), ("$lt", &pair[1])] {
            w.open_doc("").open_array(op).push(by);
            literal(&mut w, "", bound.as_val());
            w.close().close();
        }
        w.close().close();
        literal(&mut w, "then", pair[0].as_val());
        w.close();
    }
    w.close();
    if let Some(d) = default {
        literal(&mut w, "default", d.as_val());
    }
    Ok(Value::from(w.finish()))
}

#[derive(Debug)]
pub(crate) struct BucketAuto {
    by: Expression,
    buckets: i64,
    granularity: Option<Granularity>,
    fields: Vec<Field>,
    collation: Option<Collation>,
}

impl BucketAuto {
    /// Paths of the input that the stage reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = self.by.needed_paths();
        for f in &self.fields {
            join_paths(&mut all, f.spec.needed_paths());
        }
        all
    }

    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<BucketAuto> {
        let Some(d) = spec.as_doc() else {
            bail!(
                40240,
                "The argument to $bucketAuto must be an object, but found type: {}.",
                spec.type_name()
            );
        };
        let (mut by, mut buckets, mut rounder, mut output) = (None, None, None, None);
        for e in d.iter() {
            match e.name {
                "groupBy" => {
                    if !is_expression(e.val) {
                        bail!(
                            40239,
                            "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an expression object, \
                             but found: {}.",
                            e.val
                        );
                    }
                    by = Some(Expression::parse(e.val, &ctx.env)?);
                }
                "buckets" => {
                    buckets = Some(bucket_count(e.val)?);
                }
                "granularity" => match e.val.as_str() {
                    Some(g) => rounder = Some(granularity(g)?),
                    None => bail!(
                        40261,
                        "The $bucketAuto 'granularity' field must be a string, but found type: {}.",
                        e.val.type_name()
                    ),
                },
                "output" => match e.val.as_doc() {
                    Some(o) => output = Some(o),
                    None => bail!(
                        40244,
                        "The $bucketAuto 'output' field must be an object, but found type: {}.",
                        e.val.type_name()
                    ),
                },
                n => bail!(40245, "Unrecognized option to $bucketAuto: {n}."),
            }
        }
        let (Some(by), Some(buckets)) = (by, buckets) else {
            bail!(
                40246,
                "$bucketAuto requires 'groupBy' and 'buckets' to be specified."
            );
        };
        let count = bson::doc! { "count": bson::doc! { "$sum": 1 } };
        let output = output.filter(|o| !o.is_empty()).unwrap_or(count.as_doc());
        let fields = output
            .iter()
            .map(|e| Field::parse(e.name, e.val, &ctx.env))
            .collect::<Result<Vec<_>>>()?;
        Ok(BucketAuto {
            by,
            buckets,
            granularity: rounder,
            fields,
            collation: ctx.env.collation().cloned(),
        })
    }
}

/// How many buckets `$bucketAuto` makes.
fn bucket_count(v: Val<'_>) -> Result<i64> {
    if !v.is_number() {
        bail!(
            40241,
            "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}.",
            v.type_name()
        );
    }
    let Some(n) = v.to_i64_exact().and_then(|n| i32::try_from(n).ok()) else {
        bail!(
            40242,
            "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but found {v}."
        );
    };
    if n <= 0 {
        bail!(
            40243,
            "The $bucketAuto 'buckets' field must be greater than 0, but found: {n}."
        );
    }
    Ok(i64::from(n))
}

/// The input as rows `{v: what is grouped by, d: the document}`: asked again, an expression may
/// give another value.
struct Valued {
    input: Box<dyn Source>,
    spec: Arc<BucketAuto>,
    vars: Arc<Vars>,
    out: Vec<u8>,
}

impl Source for Valued {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        let doc = self.input.doc();
        let ctx = EvalCtx::new(doc, &self.vars);
        let v = self.spec.by.evaluate(&ctx)?;
        self.out.clear();
        let mut w = Writer::on(std::mem::take(&mut self.out));
        w.val("v", v.or_null()).doc("d", doc);
        self.out = w.finish_into();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}

fn value_of(row: Doc<'_>) -> Val<'_> {
    row.get("v").unwrap_or(Val::NULL)
}

struct Bucket {
    min: Value,
    max: Value,
    rows: u64,
    /// With a granularity: values below it still belong here. Known once the bucket has its size.
    bound: Option<Value>,
    states: Vec<Accumulator>,
    /// What those hold.
    bytes: usize,
}

impl BucketAuto {
    /// Writes what rows are sorted by.
    pub fn order(&self, row: Doc<'_>, out: &mut Vec<u8>) {
        Collation::with(self.collation.as_ref(), value_of(row), |v| {
            key::encode(v, false, out, None)
        });
    }

    /// Whether a bucket takes the row of value `v`, which comes next.
    fn takes(&self, b: &mut Bucket, v: Val<'_>, size: u64, last: bool) -> Result<bool> {
        if b.rows < size {
            return Ok(true);
        }
        let Some(g) = self.granularity else {
            return Ok(last || compare(self.collation.as_ref(), b.max.as_val(), v).is_eq());
        };
        let bound = match b.bound.take() {
            Some(bound) => bound,
            None => g.round(b.max.as_val(), true)?,
        };
        let bound = b.bound.insert(bound);
        g.check(v)?;
        let below = order::compare(bound.as_val(), v).is_gt();
        Ok(last || below || v.to_f64() == Some(0.0))
    }

    /// Where a bucket ends; `next` is the value behind it.
    fn end(&self, b: &mut Bucket, next: Option<Val<'_>>, last: bool) -> Result<Value> {
        let Some(g) = self.granularity else {
            return Ok(next.map_or_else(|| b.max.clone(), Val::to_value));
        };
        let bound = match b.bound.take().filter(|_| !last) {
            Some(bound) => bound,
            None => g.round(b.max.as_val(), true)?,
        };
        match next {
            // A bucket of zeros ends below the next value.
            Some(next) if b.max.as_val().to_f64() == Some(0.0) => g.round(next, false),
            _ => Ok(bound),
        }
    }
}

pub(super) struct Run {
    input: sort::Run,
    spec: Arc<BucketAuto>,
    vars: Arc<Vars>,
    /// The row that was read last, while it is in no bucket.
    next: Option<DocBuf>,
    ended: bool,
    bucket: Option<Bucket>,
    share: Option<Share>,
    /// Buckets given, and where the last one ended.
    given: i64,
    end: Option<Value>,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<BucketAuto>, vars: Arc<Vars>) -> Run {
        let valued = Valued {
            input,
            spec: spec.clone(),
            vars: vars.clone(),
            out: Vec::new(),
        };
        let order = sort::Order::Bucket(spec.clone());
        Run {
            input: sort::Run::new(Box::new(valued), order, None),
            spec,
            vars,
            next: None,
            ended: false,
            bucket: None,
            share: None,
            given: 0,
            end: None,
            out: DocBuf::new(),
        }
    }

    /// Reads the next row unless it is there.
    fn look(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        if self.next.is_none() && !self.ended {
            self.ended = !self.input.advance(host)?;
            if !self.ended {
                let row = DocBuf::from_vec(self.input.take())
                    .ok_or_else(|| errors::Error::internal("a sorted document is damaged"))?;
                self.next = Some(row);
            }
        }
        Ok(())
    }

    /// An empty bucket that begins with the value `first`.
    fn begin(&self, first: Val<'_>) -> Result<Bucket> {
        let min = match (self.spec.granularity, &self.end) {
            (None, _) => first.to_value(),
            (Some(g), end) => {
                g.check(first)?;
                match end {
                    Some(end) => end.clone(),
                    None => g.round(first, false)?,
                }
            }
        };
        Ok(Bucket {
            min,
            max: first.to_value(),
            rows: 0,
            bound: None,
            states: group::start(&self.spec.fields, &Value::NULL, &self.vars)?,
            bytes: 0,
        })
    }

    fn add(&mut self, row: &DocBuf, limit: usize) -> Result<()> {
        let Some(b) = &mut self.bucket else {
            return Ok(());
        };
        let doc = row.get("d").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        let ctx = EvalCtx::new(doc, &self.vars);
        let grown = group::add(&self.spec.fields, &mut b.states, &ctx)?;
        b.bytes = b.bytes.saturating_add_signed(grown);
        if b.bytes > limit {
            group::check_together(&self.spec.fields, &b.states, limit)?;
        }
        b.max = value_of(row.as_doc()).to_value();
        b.rows += 1;
        Ok(())
    }

    /// Gives the bucket out.
    fn close(&mut self, mut b: Bucket, last: bool) -> Result<()> {
        let next = self.next.as_ref().map(|r| value_of(r.as_doc()));
        let end = self.spec.end(&mut b, next, last)?;
        let mut w = Writer::new();
        w.open_doc("_id")
            .val("min", b.min.as_val())
            .val("max", end.as_val())
            .close();
        group::finish(&self.spec.fields, b.states, &self.vars, &mut w)?;
        self.out = w.finish();
        self.end = Some(end);
        self.given += 1;
        self.share = None;
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let limit = host.memory_limit();
        loop {
            if let Some(b) = &self.bucket {
                let share = self.share.get_or_insert_with(|| host.share());
                hold(share, b.bytes, host, "$bucketAuto")?;
            }
            self.look(host)?;
            let last = self.given + 1 == self.spec.buckets;
            // All of the input is counted once there is a row.
            let size = self.input.taken() as f64 / self.spec.buckets as f64;
            let size = (size.round() as u64).max(1);
            let fits = match (&mut self.bucket, &self.next) {
                (None, None) => return Ok(false),
                (None, Some(first)) => {
                    self.bucket = Some(self.begin(value_of(first.as_doc()))?);
                    true
                }
                (Some(b), Some(row)) => self.spec.takes(b, value_of(row.as_doc()), size, last)?,
                (Some(_), None) => false,
            };
            match (self.next.take(), self.bucket.take()) {
                (Some(row), bucket) if fits => {
                    self.bucket = bucket;
                    self.add(&row, limit)?;
                }
                (next, Some(bucket)) => {
                    self.next = next;
                    self.close(bucket, last)?;
                    return Ok(true);
                }
                (_, None) => return Ok(false),
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        if let Some(row) = &mut self.next {
            super::show_doc(row, true, to)?;
        }
        super::show_doc(&mut self.out, wanted, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StageMemory;
    use super::super::tests::{Memory, outside_memory, run_on, run_under, show};
    use super::*;

    /// A list of `n` documents.
    fn list(n: usize, doc: impl Fn(usize) -> String) -> String {
        let docs: Vec<String> = (0..n).map(doc).collect();
        format!("[{}]", docs.join(","))
    }

    fn auto(options: &str) -> String {
        format!(r#"{{"$bucketAuto":{{"groupBy":"$x",{options}}}}}"#)
    }

    /// Very many boundaries are looked up as the branches of few would be tried.
    #[test]
    fn many_boundaries_as_few() {
        let lists = [
            bson::array![0, 1.5, 2_i64, 7],
            bson::array!["A", "b", "C"],
            bson::array![false, true],
        ];
        let docs = [
            r#"{}"#,
            r#"{"a":null}"#,
            r#"{"a":-1}"#,
            r#"{"a":0}"#,
            r#"{"a":1.5}"#,
            r#"{"a":6.9}"#,
            r#"{"a":7}"#,
            r#"{"a":"A"}"#,
            r#"{"a":"B"}"#,
            r#"{"a":"b"}"#,
            r#"{"a":"c"}"#,
            r#"{"a":[1]}"#,
            r#"{"a":{}}"#,
            r#"{"a":true}"#,
        ];
        let (by, none) = (Value::from("$a"), Value::from("none"));
        for collation in crate::list::tests::collations() {
            let env = ParseEnv::new().collated(collation);
            for (list, default) in lists.iter().flat_map(|l| [(l, None), (l, Some(&none))]) {
                let bounds: Vec<Value> = list
                    .as_val()
                    .as_array()
                    .unwrap()
                    .values()
                    .map(|v| v.to_value())
                    .collect();
                let branches = switch(by.as_val(), &bounds, default).unwrap();
                let looked_up = ladder(by.as_val(), &bounds, default);
                let each =
                    [branches, looked_up].map(|e| Expression::parse(e.as_val(), &env).unwrap());
                for doc in docs {
                    let d = bson::json::parse(doc).unwrap();
                    let vars = Vars::new(0);
                    let [a, b] = each.each_ref().map(|e| {
                        match e.evaluate(&EvalCtx::new(d.as_doc(), &vars)) {
                            Ok(v) => format!("{:?}", v.into_value()),
                            Err(e) => format!("{}", e.into_error()),
                        }
                    });
                    assert_eq!(a, b, "{list:?} {default:?} {doc}");
                }
            }
        }
    }

    #[test]
    fn outside_memory_as_in_it() {
        let pad = "p".repeat(60);
        let inputs = [
            list(300, |i| {
                format!(r#"{{"_id":{i},"x":{},"pad":"{pad}"}}"#, i * 7 % 31)
            }),
            list(300, |i| {
                format!(
                    r#"{{"_id":{i},"x":{},"pad":"{pad}"}}"#,
                    (i * 89 % 300) as f64 / 4.0
                )
            }),
            list(300, |i| match i % 5 {
                0 => format!(r#"{{"_id":{i},"x":null,"pad":"{pad}"}}"#),
                1 => format!(r#"{{"_id":{i},"x":"s{}","pad":"{pad}"}}"#, i % 20),
                2 => format!(r#"{{"_id":{i},"x":[{i}],"pad":"{pad}"}}"#),
                3 => format!(
                    r#"{{"_id":{i},"x":{{"$date":{{"$numberLong":"{i}"}}}},"pad":"{pad}"}}"#
                ),
                _ => format!(r#"{{"_id":{i},"pad":"{pad}"}}"#),
            }),
            list(300, |i| {
                format!(
                    r#"{{"_id":{i},"x":{},"pad":"{pad}"}}"#,
                    ["0", "0.0", "5", "5.0"][i % 4]
                )
            }),
        ];
        let output = r#","output":{"n":{"$sum":1},"first":{"$first":"$_id"},"last":{"$last":"$x"},"ids":{"$push":"$_id"}}"#;
        for input in &inputs {
            for buckets in [1, 2, 7, 299, 1000] {
                for output in ["", output] {
                    outside_memory(
                        input,
                        &auto(&format!(r#""buckets":{buckets}{output}"#)),
                        "",
                        8000,
                    );
                }
            }
        }
        for granularity in ["POWERSOF2", "1-2-5", "R5", "E192"] {
            for (input, buckets) in [(0, 3), (1, 1), (1, 5), (1, 400), (3, 2)] {
                let options = format!(r#""buckets":{buckets},"granularity":"{granularity}""#);
                let found = outside_memory(&inputs[input], &auto(&options), "", 8000);
                assert!(found.contains("count"), "{found}");
            }
        }
        // Some of what cannot be rounded is seen when other buckets were given.
        for granularity in ["POWERSOF2", "R5"] {
            let options = format!(r#""buckets":40,"granularity":"{granularity}""#);
            assert_eq!(
                outside_memory(&inputs[2], &auto(&options), "", 8000),
                "#40258"
            );
        }
    }

    #[test]
    fn keeps_together_what_a_collation_does() {
        let names = ["a", "A", "b", "B"];
        let input = list(200, |i| {
            format!(r#"{{"_id":{i},"x":"{}","pad":"{:>50}"}}"#, names[i % 4], i)
        });
        let stage = auto(r#""buckets":4"#);
        let found = outside_memory(&input, &stage, r#"{"locale":"en","strength":1}"#, 8000);
        let want = r#"[{"_id": {"min": "a", "max": "b"}, "count": 100}, {"_id": {"min": "b", "max": "B"}, "count": 100}]"#;
        assert_eq!(found, want);
        let apart = run_under(&mut Memory::default(), &input, &format!("[{stage}]"), "");
        assert_eq!(apart.unwrap().len(), 4);
    }

    /// The group expression is evaluated once: evaluated again, it would give another value than the one
    /// sorted by.
    #[test]
    fn a_random_value_stays_what_it_was() {
        let input = list(200, |i| format!(r#"{{"_id":{i}}}"#));
        let stages = r#"[{"$bucketAuto":{"groupBy":{"$rand":{}},"buckets":8}}]"#;
        let found = run_on(&mut Memory::default(), &input, stages).unwrap();
        let mut before = 0.0;
        for bucket in &found {
            let id = bucket.get("_id").and_then(Val::as_doc).unwrap();
            let ends = ["min", "max"].map(|n| id.get(n).and_then(Val::to_f64).unwrap());
            assert!(before <= ends[0] && ends[0] < ends[1], "{found:?}");
            before = ends[1];
            assert_eq!(bucket.get("count").unwrap().to_i64_exact(), Some(25));
        }
        assert_eq!(found.len(), 8);
    }

    #[test]
    fn what_accumulators_hold_is_bounded() {
        let input = list(100, |i| {
            format!(r#"{{"_id":{i},"x":{i},"pad":"{}"}}"#, "p".repeat(150))
        });
        let run = |output: &str, buckets: usize| {
            let mut host = Memory {
                limit: Some(17_000),
                disk: true,
                ..Memory::default()
            };
            let stage = auto(&format!(r#""buckets":{buckets},"output":{{{output}}}"#));
            let stages = format!(r#"[{stage},{{"$count":"n"}}]"#);
            show(run_on(&mut host, &input, &stages))
        };
        let all = r#""a":{"$push":"$$ROOT"}"#;
        assert_eq!(run(all, 1), "#146");
        assert_eq!(run(all, 2), r#"[{"n": 2}]"#);
        // Each alone would do, not both.
        let half = r#""a":{"$push":"$pad"},"b":{"$push":"$pad"}"#;
        assert_eq!(run(half, 1), "#146");
        assert_eq!(run(r#""a":{"$push":"$pad"}"#, 1), r#"[{"n": 1}]"#);
        // The present bytes count, not the peak.
        assert_eq!(
            run(
                r#""a":{"$last":{"$cond":[{"$mod":["$_id",2]},"$$ROOT",0]}}"#,
                1
            ),
            r#"[{"n": 1}]"#
        );
    }

    #[test]
    fn what_accumulators_hold_counts() {
        let memory = Arc::new(StageMemory::default());
        let input = list(50, |i| {
            format!(r#"{{"_id":{i},"x":0,"pad":"{}"}}"#, "p".repeat(20_000))
        });
        let held = |output: &str| {
            let mut host = Memory {
                shared: Some(memory.clone()),
                ..Memory::default()
            };
            let options = format!(r#""buckets":2,"output":{{"a":{output}}}"#);
            let found = run_on(&mut host, &input, &format!("[{}]", auto(&options)));
            assert_eq!((found.unwrap().len(), memory.used()), (1, 0));
            host.most
        };
        // Of the rows and of the array.
        assert!(held(r#"{"$push":"$pad"}"#) > held(r#"{"$sum":1}"#) + 900_000);
    }
}
