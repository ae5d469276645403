//! `$bucket`, which is a `$group` by a `$switch` and a `$sort`, and `$bucketAuto`.

use super::group::{self, Field};
use super::parse::ParseCtx;
use super::{Host, Op, Parts, Source, Stage};
use crate::accumulator::Accumulator;
use crate::arithmetic::Number;
use crate::collation::{Collation, compare, key_of};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::sort::SortPattern;
use bson::{Doc, DocBuf, Val, Value, Writer, order, tag};
use errors::{Result, bail};
use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

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
    if let (Some(v), Some(first), Some(last)) = (&default, boundaries.first(), boundaries.last()) {
        let inside = compare(ctx.env.collation(), v.as_val(), first.as_val()) != Ordering::Less
            && compare(ctx.env.collation(), v.as_val(), last.as_val()) == Ordering::Less;
        if inside {
            bail!(
                40199,
                "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the \
                 highest boundary."
            );
        }
    }
    let id = switch(by, &boundaries, default.as_ref());
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
    let group_spec = w.finish();
    let group_spec = group_spec.as_doc().as_val();
    let sort_spec = bson::doc! { "_id": 1 };
    Ok(vec![
        Stage::new(
            "$group",
            group_spec,
            Op::Group(Arc::new(group::Group::parse(group_spec, &ctx.env)?)),
        ),
        Stage::new(
            "$sort",
            sort_spec.as_doc().as_val(),
            Op::Sort(
                Arc::new(SortPattern::parse(sort_spec.as_doc())?.collated(ctx.env.collation())),
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
        )),
    }
}

fn check_boundaries(list: Doc<'_>, env: &ParseEnv) -> Result<Vec<Value>> {
    let values = list
        .values()
        .map(|v| constant(v, env, 40191, "boundaries"))
        .collect::<Result<Vec<_>>>()?;
    if values.len() < 2 {
        bail!(
            40192,
            "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
            values.len()
        );
    }
    for pair in values.windows(2) {
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

/// `{$switch: {branches: [{case: {$and: [{$gte: [by, lower]}, {$lt: [by, upper]}]}, then: lower}, …], default}}`.
fn switch(by: Val<'_>, boundaries: &[Value], default: Option<&Value>) -> Value {
    let literal = |w: &mut Writer, name: &str, v: Val<'_>| {
        w.open_doc(name).val("$literal", v).close();
    };
    let mut w = Writer::new();
    w.open_doc("$switch").open_array("branches");
    for pair in boundaries.windows(2) {
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
    Value::from(w.finish())
}

#[derive(Debug)]
pub(crate) struct BucketAuto {
    by: Expression,
    buckets: i64,
    granularity: Option<Granularity>,
    fields: Vec<Field>,
    collation: Option<Collation>,
}

#[derive(Clone, Copy, Debug)]
enum Granularity {
    PowersOf2,
    /// A series of numbers that goes on at every power of ten.
    Series(&'static [f64]),
}

/// E48, E96 and E192: powers of 10 in equal steps, in three digits.
static FINE: LazyLock<[Vec<f64>; 3]> = LazyLock::new(|| {
    [48, 96, 192].map(|n| {
        (0..n)
            .map(
                |i| match (100.0 * 10f64.powf(f64::from(i) / f64::from(n))).round() {
                    // The one number of the standard that rounding does not give.
                    919.0 => 920.0,
                    x => x,
                },
            )
            .collect()
    })
});

const SERIES: &[(&str, &[f64])] = &[
    ("R5", &[10.0, 16.0, 25.0, 40.0, 63.0]),
    (
        "R10",
        &[
            100.0, 125.0, 160.0, 200.0, 250.0, 315.0, 400.0, 500.0, 630.0, 800.0,
        ],
    ),
    (
        "R20",
        &[
            100.0, 112.0, 125.0, 140.0, 160.0, 180.0, 200.0, 224.0, 250.0, 280.0, 315.0, 355.0,
            400.0, 450.0, 500.0, 560.0, 630.0, 710.0, 800.0, 900.0,
        ],
    ),
    (
        "R40",
        &[
            100.0, 106.0, 112.0, 118.0, 125.0, 132.0, 140.0, 150.0, 160.0, 170.0, 180.0, 190.0,
            200.0, 212.0, 224.0, 236.0, 250.0, 265.0, 280.0, 300.0, 315.0, 355.0, 375.0, 400.0,
            425.0, 450.0, 475.0, 500.0, 530.0, 560.0, 600.0, 630.0, 670.0, 710.0, 750.0, 800.0,
            850.0, 900.0, 950.0,
        ],
    ),
    (
        "R80",
        &[
            103.0, 109.0, 115.0, 122.0, 128.0, 136.0, 145.0, 155.0, 165.0, 175.0, 185.0, 195.0,
            206.0, 218.0, 230.0, 243.0, 258.0, 272.0, 290.0, 307.0, 325.0, 345.0, 365.0, 387.0,
            412.0, 437.0, 462.0, 487.0, 515.0, 545.0, 575.0, 615.0, 650.0, 690.0, 730.0, 775.0,
            825.0, 875.0, 925.0, 975.0,
        ],
    ),
    ("1-2-5", &[10.0, 20.0, 50.0]),
    ("E6", &[10.0, 15.0, 22.0, 33.0, 47.0, 68.0]),
    (
        "E12",
        &[
            10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0,
        ],
    ),
    (
        "E24",
        &[
            10.0, 11.0, 12.0, 13.0, 15.0, 16.0, 18.0, 20.0, 22.0, 24.0, 27.0, 30.0, 33.0, 36.0,
            39.0, 43.0, 47.0, 51.0, 56.0, 62.0, 68.0, 75.0, 82.0, 91.0,
        ],
    ),
];

fn granularity(name: &str) -> Result<Granularity> {
    if name == "POWERSOF2" {
        return Ok(Granularity::PowersOf2);
    }
    let fine = match name {
        "E48" => FINE.first(),
        "E96" => FINE.get(1),
        "E192" => FINE.get(2),
        _ => None,
    };
    if let Some(s) = fine {
        return Ok(Granularity::Series(s));
    }
    match SERIES.iter().find(|(n, _)| *n == name) {
        Some((_, s)) => Ok(Granularity::Series(s)),
        None => bail!(40257, "Unknown rounding granularity '{name}'"),
    }
}

impl Granularity {
    fn check(self, v: Val<'_>) -> Result<Number> {
        let Some(n) = Number::of(v) else {
            bail!(
                40258,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: {}",
                v.type_name()
            );
        };
        if n.is_nan() {
            bail!(
                40259,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN"
            );
        }
        if n.to_f64() < 0.0 {
            bail!(
                40260,
                "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number: {v}"
            );
        }
        Ok(n)
    }

    /// The next number of the series above (`up`) or below a value.
    fn round(self, v: Val<'_>, up: bool) -> Result<Value> {
        let n = self.check(v)?;
        let x = n.to_f64();
        if x == 0.0 || x.is_infinite() {
            return Ok(v.to_value());
        }
        let r = match self {
            Granularity::PowersOf2 => {
                let mut p = 2f64.powi(x.log2().floor() as i32);
                if up {
                    while p <= x {
                        p *= 2.0;
                    }
                } else {
                    while p >= x {
                        p /= 2.0;
                    }
                }
                p
            }
            Granularity::Series(s) => {
                let first = s.first().copied().unwrap_or(10.0);
                let power = (x / first).log10().floor() as i32;
                let scaled = |k: i32| {
                    s.iter().map(move |b| {
                        if k >= 0 {
                            b * 10f64.powi(k)
                        } else {
                            b / 10f64.powi(-k)
                        }
                    })
                };
                let mut all = (power - 1..=power + 1).flat_map(scaled);
                if up {
                    all.find(|b| *b > x).unwrap_or(x)
                } else {
                    all.take_while(|b| *b < x).last().unwrap_or(x)
                }
            }
        };
        Ok(match (self, n) {
            (_, Number::Decimal(_)) => Value::from(crate::arithmetic::decimal::from_f64_precise(r)),
            (Granularity::PowersOf2, Number::Int(_) | Number::Long(_))
                if r.fract() == 0.0 && r < 9.0e18 =>
            {
                Number::int_or_long(r as i64).to_value()
            }
            _ => Value::from(r),
        })
    }
}

impl BucketAuto {
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
                    if !e.val.is_number() {
                        bail!(
                            40241,
                            "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}.",
                            e.val.type_name()
                        );
                    }
                    let n = e.val.to_i64_exact().and_then(|n| i32::try_from(n).ok());
                    let Some(n) = n else {
                        bail!(
                            40242,
                            "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but found {}.",
                            e.val
                        );
                    };
                    if n <= 0 {
                        bail!(
                            40243,
                            "The $bucketAuto 'buckets' field must be greater than 0, but found: {n}."
                        );
                    }
                    buckets = Some(i64::from(n));
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

struct Row {
    key: Vec<u8>,
    seq: usize,
    value: Value,
    doc: DocBuf,
}

struct Bucket {
    min: Value,
    max: Value,
    states: Vec<Accumulator>,
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<BucketAuto>,
    vars: Arc<Vars>,
    rows: Vec<Row>,
    done: std::vec::IntoIter<DocBuf>,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<BucketAuto>, vars: Arc<Vars>) -> Run {
        Run {
            input: Some(input),
            spec,
            vars,
            rows: Vec::new(),
            done: Vec::new().into_iter(),
            out: DocBuf::new(),
        }
    }

    fn distribute(&mut self) -> Result<Vec<DocBuf>> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(a.seq.cmp(&b.seq)));
        let size = ((rows.len() as f64 / self.spec.buckets as f64).round() as usize).max(1);
        let mut out = Vec::new();
        let mut rows = rows.into_iter().peekable();
        let mut previous_max: Option<Value> = None;
        while let Some(first) = rows.next() {
            let last_bucket = out.len() as i64 + 1 == self.spec.buckets;
            let mut b = Bucket {
                min: first.value.clone(),
                max: first.value.clone(),
                states: group::start(&self.spec.fields, &Value::NULL, &self.vars)?,
            };
            if let Some(g) = self.spec.granularity {
                g.check(first.value.as_val())?;
                b.min = match previous_max.take() {
                    Some(m) => m,
                    None => g.round(first.value.as_val(), false)?,
                };
            }
            self.add(&mut b, &first)?;
            for _ in 1..size {
                let Some(r) = rows.next() else { break };
                self.add(&mut b, &r)?;
            }
            match self.spec.granularity {
                None => {
                    while let Some(next) = rows.peek() {
                        let same = compare(
                            self.spec.collation.as_ref(),
                            b.max.as_val(),
                            next.value.as_val(),
                        ) == Ordering::Equal;
                        if !last_bucket && !same {
                            break;
                        }
                        if let Some(r) = rows.next() {
                            self.add(&mut b, &r)?;
                        }
                    }
                    if let Some(next) = rows.peek() {
                        b.max = next.value.clone();
                    }
                }
                Some(g) => {
                    let mut bound = g.round(b.max.as_val(), true)?;
                    while let Some(next) = rows.peek() {
                        g.check(next.value.as_val())?;
                        let below = order::compare(bound.as_val(), next.value.as_val())
                            == Ordering::Greater;
                        let zero = next.value.as_val().to_f64() == Some(0.0);
                        if !last_bucket && !below && !zero {
                            break;
                        }
                        if let Some(r) = rows.next() {
                            self.add(&mut b, &r)?;
                            bound = if last_bucket {
                                g.round(b.max.as_val(), true)?
                            } else {
                                bound
                            };
                        }
                    }
                    // A bucket of zeros ends below the next value.
                    b.max = match rows.peek() {
                        Some(next) if b.max.as_val().to_f64() == Some(0.0) => {
                            g.round(next.value.as_val(), false)?
                        }
                        _ => bound,
                    };
                    previous_max = Some(b.max.clone());
                }
            }
            let mut w = Writer::new();
            w.open_doc("_id")
                .val("min", b.min.as_val())
                .val("max", b.max.as_val())
                .close();
            group::finish(&self.spec.fields, b.states, &mut w)?;
            out.push(w.finish());
        }
        Ok(out)
    }

    fn add(&self, b: &mut Bucket, row: &Row) -> Result<()> {
        let ctx = EvalCtx::new(row.doc.as_doc(), &self.vars);
        b.max = row.value.clone();
        group::add(&self.spec.fields, &mut b.states, &ctx)?;
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn Host) -> Result<bool> {
        if let Some(input) = &mut self.input {
            while input.advance(host)? {
                let doc = input.doc();
                let v = self.spec.by.evaluate(&EvalCtx::new(doc, &self.vars))?;
                self.rows.push(Row {
                    key: key_of(self.spec.collation.as_ref(), v.or_null()),
                    seq: self.rows.len(),
                    value: v.or_null().to_value(),
                    doc: doc.to_buf(),
                });
            }
            self.input = None;
            self.done = self.distribute()?.into_iter();
        }
        host.check()?;
        match self.done.next() {
            Some(d) => {
                self.out = d;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn Parts) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        super::show_doc(&mut self.out, wanted, to)
    }
}
