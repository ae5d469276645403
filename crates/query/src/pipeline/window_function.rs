//! The functions of `$setWindowFields`, each over one sorted partition.

use super::options::options;
use super::unspillable;
use super::window::{Edge, Frame, Row, Unit};
use crate::accumulator::{Accumulator, AccumulatorSpec};
use crate::arithmetic::{Number, add, decimal, multiply, subtract};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::sort::SortPattern;
use bson::{Doc, Val, Value, Writer, order, tag};
use errors::{Code, Result, bail, err};
use std::ops::Range;

#[derive(Debug)]
pub(super) enum Function {
    Accumulate(AccumulatorSpec),
    DocumentNumber,
    Rank,
    DenseRank,
    Shift {
        output: Expression,
        by: i64,
        default: Value,
    },
    ExpMovingAvg {
        input: Expression,
        alpha: Number,
    },
    Derivative {
        input: Expression,
        unit: Option<Unit>,
    },
    Integral {
        input: Expression,
        unit: Option<Unit>,
    },
    Covariance {
        x: Expression,
        y: Expression,
        sample: bool,
    },
    LinearFill(Expression),
    Locf(Expression),
}

impl Function {
    pub fn parse(
        name: &str,
        arg: Val<'_>,
        sort: Option<&SortPattern>,
        has_window: bool,
        env: &ParseEnv,
    ) -> Result<Function> {
        let sorted = |code: i32| match sort {
            Some(_) => Ok(()),
            None => Err(errors::Error::coded(
                code,
                format!("{name} requires a sortBy"),
            )),
        };
        let no_window = || {
            if has_window {
                bail!(FailedToParse, "'window' field is not allowed in {name}");
            }
            Ok(())
        };
        let object = || {
            arg.as_doc().ok_or_else(|| {
                err!(
                    FailedToParse,
                    "Argument to {name} must be an object, found {}",
                    arg.type_name()
                )
            })
        };
        Ok(match name {
            "$rank" | "$denseRank" | "$documentNumber" => {
                if !arg.as_doc().is_some_and(Doc::is_empty) {
                    bail!(5371603, "{name} must be specified with '{{}}' as the value");
                }
                if sort.is_none_or(|s| s.fields.len() != 1) {
                    bail!(
                        5371602,
                        "{name} must be specified with a top level sortBy expression with exactly one element"
                    );
                }
                match name {
                    "$rank" => Function::Rank,
                    "$denseRank" => Function::DenseRank,
                    _ => Function::DocumentNumber,
                }
            }
            "$shift" => {
                no_window()?;
                sorted(9)?;
                let [output, by, default] = options(name, object()?, ["output", "by", "default"])?;
                let (Some(output), Some(by)) = (output, by) else {
                    bail!(FailedToParse, "{name} requires 'output' and 'by'");
                };
                let Some(by) = by.to_i64_exact() else {
                    bail!(
                        FailedToParse,
                        "'{name}:by' field must be an integer, but found {by}"
                    );
                };
                let default = match default {
                    Some(d) => match Expression::parse(d, env)?.constant() {
                        Some(c) => c.clone(),
                        None => bail!(
                            FailedToParse,
                            "'{name}:default' expression must yield a constant value."
                        ),
                    },
                    None => Value::NULL,
                };
                Function::Shift {
                    output: Expression::parse(output, env)?,
                    by,
                    default,
                }
            }
            "$expMovingAvg" => {
                no_window()?;
                sorted(9)?;
                let [input, n, alpha] = options(name, object()?, ["input", "N", "alpha"])?;
                let Some(input) = input else {
                    bail!(FailedToParse, "{name} requires 'input'");
                };
                let alpha = match (n, alpha) {
                    (Some(n), None) => match n.to_i64_exact() {
                        Some(n) if n > 0 => Number::Double(2.0 / (n as f64 + 1.0)),
                        _ => bail!(
                            FailedToParse,
                            "'N' field must be an integer greater than zero, found {n}"
                        ),
                    },
                    (None, Some(a)) => match Number::of(a) {
                        Some(x) if x.to_f64() > 0.0 && x.to_f64() < 1.0 => x,
                        _ => bail!(
                            FailedToParse,
                            "'alpha' must be between 0 and 1 (exclusive), found {a}"
                        ),
                    },
                    _ => bail!(
                        FailedToParse,
                        "{name} sub object must have exactly two fields: An 'input' field, and either an 'N' field or an \
                         'alpha' field"
                    ),
                };
                Function::ExpMovingAvg {
                    input: Expression::parse(input, env)?,
                    alpha,
                }
            }
            "$derivative" | "$integral" => {
                let [input, unit] = options(name, object()?, ["input", "unit"])?;
                let Some(input) = input else {
                    bail!(FailedToParse, "{name} requires an 'input' expression");
                };
                if sort.is_none_or(|s| s.fields.len() != 1) {
                    bail!(
                        FailedToParse,
                        "{name} requires a sortBy with exactly one field"
                    );
                }
                if name == "$derivative" && !has_window {
                    bail!(FailedToParse, "{name} requires explicit window bounds");
                }
                let unit = unit.map(Unit::parse).transpose()?;
                if unit.as_ref().is_some_and(|u| u.ms.is_none()) {
                    bail!(5490704, "unit must be 'week' or smaller");
                }
                let input = Expression::parse(input, env)?;
                if name == "$derivative" {
                    Function::Derivative { input, unit }
                } else {
                    Function::Integral { input, unit }
                }
            }
            "$covariancePop" | "$covarianceSamp" => {
                let parts: Vec<Val<'_>> = arg
                    .as_array()
                    .map(|a| a.values().collect())
                    .unwrap_or_default();
                let sample = name == "$covarianceSamp";
                match parts.as_slice() {
                    [x, y] => Function::Covariance {
                        x: Expression::parse(*x, env)?,
                        y: Expression::parse(*y, env)?,
                        sample,
                    },
                    // Anything else gives no pairs.
                    _ => Function::Covariance {
                        x: Expression::parse(arg, env)?,
                        y: Expression::literal(Value::NULL),
                        sample,
                    },
                }
            }
            "$linearFill" => {
                no_window()?;
                if sort.is_none_or(|s| s.fields.len() != 1) {
                    bail!(
                        605001,
                        "{name} must be specified with a top level sortBy expression with exactly one element"
                    );
                }
                Function::LinearFill(Expression::parse(arg, env)?)
            }
            "$locf" => {
                no_window()?;
                Function::Locf(Expression::parse(arg, env)?)
            }
            _ => {
                // Here an array is an expression like any other, which `$group` refuses.
                let mut w = Writer::new();
                w.open_array("$concatArrays").push(arg).close();
                let wrapped = w.finish();
                let arg = if arg.tag == tag::ARRAY {
                    wrapped.as_doc().as_val()
                } else {
                    arg
                };
                Function::Accumulate(AccumulatorSpec::parse(name, arg, env).map_err(|e| {
                    if e.code == Code(15952) {
                        err!(FailedToParse, "Unrecognized window function, {name}")
                    } else {
                        e
                    }
                })?)
            }
        })
    }

    /// The values for the rows of a partition.
    pub fn over(
        &self,
        rows: &[Row],
        frame: &Frame,
        sort: Option<&SortPattern>,
        vars: &Vars,
    ) -> Result<Values> {
        match self {
            Function::Accumulate(spec) if !deviates(spec, frame) => {
                Ok(Values::Sliding(Box::new(Sliding {
                    frames: frames(rows, frame, sort, vars)?,
                    previous: None,
                    state: None,
                    last: Value::NULL,
                })))
            }
            _ => Ok(Values::All(self.over_all(rows, frame, sort, vars)?)),
        }
    }

    fn over_all(
        &self,
        rows: &[Row],
        frame: &Frame,
        sort: Option<&SortPattern>,
        vars: &Vars,
    ) -> Result<Vec<Value>> {
        let eval = |e: &Expression, row: &Row| -> Result<Value> {
            let v = e.evaluate(&EvalCtx::new(row.doc.as_doc(), vars))?;
            Ok(v.into_value().unwrap_or(Value::NULL))
        };
        let all = |e: &Expression| {
            let values = rows.iter().enumerate().map(|(i, r)| {
                vars.check_interrupt(i)?;
                eval(e, r)
            });
            values.collect::<Result<Vec<_>>>()
        };
        match self {
            Function::Accumulate(spec) => sliding_deviation(spec, rows, frame, sort, vars),
            Function::DocumentNumber => Ok((1..=rows.len())
                .map(|n| Number::int_or_long(n as i64).to_value())
                .collect()),
            Function::Rank | Function::DenseRank => {
                let (mut out, mut rank) = (Vec::with_capacity(rows.len()), 0);
                for (i, r) in rows.iter().enumerate() {
                    let tie = i > 0 && rows[i - 1].key == r.key;
                    if !tie {
                        rank = if matches!(self, Function::Rank) {
                            i as i64 + 1
                        } else {
                            rank + 1
                        };
                    }
                    out.push(Number::int_or_long(rank).to_value());
                }
                Ok(out)
            }
            Function::Shift {
                output,
                by,
                default,
            } => (0..rows.len() as i64)
                .map(|i| {
                    let row = i.checked_add(*by).and_then(|j| usize::try_from(j).ok());
                    match row.and_then(|j| rows.get(j)) {
                        Some(r) => eval(output, r),
                        None => Ok(default.clone()),
                    }
                })
                .collect(),
            Function::ExpMovingAvg { input, alpha } => Ok(moving_average(&all(input)?, *alpha)),
            Function::Derivative { input, unit } => {
                let points = points(rows, &all(input)?, sort, unit.as_ref())?;
                frames(rows, frame, sort, vars)?
                    .into_iter()
                    .enumerate()
                    .map(|(i, f)| {
                        vars.check_interrupt(i)?;
                        Ok(derivative(points.get(f).unwrap_or(&[])))
                    })
                    .collect()
            }
            Function::Integral { input, unit } => {
                let points = points(rows, &all(input)?, sort, unit.as_ref())?;
                frames(rows, frame, sort, vars)?
                    .into_iter()
                    .enumerate()
                    .map(|(i, f)| {
                        vars.check_interrupt(i)?;
                        Ok(integral(points.get(f).unwrap_or(&[])))
                    })
                    .collect()
            }
            Function::Covariance { x, y, sample } => {
                let (x, y) = (all(x)?, all(y)?);
                frames(rows, frame, sort, vars)?
                    .into_iter()
                    .enumerate()
                    .map(|(i, f)| {
                        vars.check_interrupt(i)?;
                        let pairs = x
                            .get(f.clone())
                            .unwrap_or(&[])
                            .iter()
                            .zip(y.get(f).unwrap_or(&[]));
                        Ok(covariance(pairs, *sample))
                    })
                    .collect()
            }
            Function::LinearFill(e) => linear_fill(rows, all(e)?, sort),
            Function::Locf(e) => {
                let mut last = Value::NULL;
                Ok(all(e)?
                    .into_iter()
                    .map(|v| {
                        if !v.as_val().is_nullish() {
                            last = v;
                        }
                        last.clone()
                    })
                    .collect())
            }
        }
    }
}

/// The rows that count for each row.
fn frames(
    rows: &[Row],
    frame: &Frame,
    sort: Option<&SortPattern>,
    vars: &Vars,
) -> Result<Vec<Range<usize>>> {
    let n = rows.len();
    match frame {
        Frame::Documents(lower, upper) => Ok((0..n)
            .map(|i| {
                let at = |by: i64| (i as i64).saturating_add(by).clamp(0, n as i64) as usize;
                let lo = lower.map_or(0, at);
                let hi = upper.map_or(n, |u| at(u.saturating_add(1)));
                lo.min(hi)..hi
            })
            .collect()),
        Frame::Range { lower, upper, unit } => {
            let values = sort_values(rows, sort);
            let mut out = Vec::with_capacity(n);
            for v in &values {
                let in_range = if unit.is_some() {
                    v.as_val().tag == tag::DATE
                } else {
                    v.as_val().is_number()
                };
                if !in_range {
                    if v.as_val().tag == tag::DATE {
                        bail!(
                            5429513,
                            "Invalid range: For windows that involve date or time ranges, a unit must be provided."
                        );
                    }
                    let numeric = [lower, upper].iter().any(|e| matches!(e, Edge::By(_)));
                    if numeric && unit.is_some() {
                        bail!(
                            5429513,
                            "Invalid range: Expected the sortBy field to be a date, but it was {}",
                            v.as_val().type_name()
                        );
                    }
                    if numeric {
                        bail!(
                            5429414,
                            "Invalid range: Expected the sortBy field to be a number, but it was {}",
                            v.as_val().type_name()
                        );
                    }
                }
                let lo = match bound(v, lower, unit.as_ref(), vars)? {
                    None => 0,
                    Some(b) => {
                        values.partition_point(|x| order::compare(x.as_val(), b.as_val()).is_lt())
                    }
                };
                let hi = match bound(v, upper, unit.as_ref(), vars)? {
                    None => n,
                    Some(b) => {
                        values.partition_point(|x| order::compare(x.as_val(), b.as_val()).is_le())
                    }
                };
                out.push(lo.min(hi)..hi);
            }
            Ok(out)
        }
    }
}

/// The values of the only sort field; missing is null.
fn sort_values(rows: &[Row], sort: Option<&SortPattern>) -> Vec<Value> {
    let path = sort.and_then(|s| s.fields.first()).map(|f| &f.path);
    rows.iter()
        .map(|r| {
            path.and_then(|p| p.get(r.doc.as_doc()))
                .map_or(Value::NULL, Val::to_value)
        })
        .collect()
}

/// The value at an edge of a range around `v`; `None` when unbounded.
fn bound(v: &Value, edge: &Edge, unit: Option<&Unit>, vars: &Vars) -> Result<Option<Value>> {
    let by = match edge {
        Edge::Unbounded => return Ok(None),
        Edge::Current => return Ok(Some(v.clone())),
        Edge::By(n) => n.as_val(),
    };
    match unit {
        None => {
            let (Some(a), Some(b)) = (Number::of(v.as_val()), Number::of(by)) else {
                return Ok(Some(v.clone()));
            };
            Ok(Some(add(a, b).to_value()))
        }
        Some(Unit { ms: Some(ms), .. }) => {
            let n = by.to_i64_exact().unwrap_or(0).saturating_mul(*ms);
            let date = v.as_val().as_date().unwrap_or(0).saturating_add(n);
            Ok(Some(Value::date(date)))
        }
        Some(Unit { name, .. }) => {
            let mut w = Writer::new();
            w.open_doc("$dateAdd")
                .val("startDate", v.as_val())
                .str("unit", name)
                .i64("amount", by.to_i64_exact().unwrap_or(0))
                .close();
            let e = Expression::parse(w.finish().as_doc().as_val(), &ParseEnv::new())?;
            let v = e.evaluate(&EvalCtx::new(Doc::EMPTY, vars))?;
            Ok(v.into_value())
        }
    }
}

/// What a function gives for the rows of a partition.
pub(super) enum Values {
    All(Vec<Value>),
    /// Made row by row: the values of all rows together may be much more than the rows.
    Sliding(Box<Sliding>),
}

impl Values {
    /// Whether later values need the rows that were given.
    pub fn reads_rows(&self) -> bool {
        matches!(self, Values::Sliding(_))
    }

    /// The value of the row `at`; rows are asked for in order.
    pub fn take(
        &mut self,
        at: usize,
        function: &Function,
        rows: &[Row],
        vars: &Vars,
        limit: usize,
    ) -> Result<Value> {
        match (self, function) {
            // Copied: an interruption may have the row asked for again.
            (Values::All(values), _) => Ok(values.get(at).cloned().unwrap_or(Value::NULL)),
            (Values::Sliding(s), Function::Accumulate(spec)) => s.take(at, spec, rows, vars, limit),
            (Values::Sliding(_), _) => Ok(Value::NULL),
        }
    }
}

/// An accumulator over frames that follow one another.
pub(super) struct Sliding {
    frames: Vec<Range<usize>>,
    previous: Option<Range<usize>>,
    /// A frame that only grows at its end goes on with its state.
    state: Option<Accumulator>,
    last: Value,
}

impl Sliding {
    fn take(
        &mut self,
        at: usize,
        spec: &AccumulatorSpec,
        rows: &[Row],
        vars: &Vars,
        limit: usize,
    ) -> Result<Value> {
        let Some(f) = self.frames.get(at).cloned() else {
            return Ok(Value::NULL);
        };
        if self.previous.as_ref() == Some(&f) {
            return Ok(self.last.clone());
        }
        let empty = EvalCtx::new(Doc::EMPTY, vars);
        let grows = self
            .previous
            .as_ref()
            .is_some_and(|p| p.start == f.start && p.end <= f.end && !p.is_empty());
        let (mut state, from) = match (self.state.take(), &self.previous) {
            (Some(s), Some(p)) if grows => (s, p.end),
            _ => (spec.start(&empty)?, f.start),
        };
        for (i, r) in rows.get(from..f.end).unwrap_or(&[]).iter().enumerate() {
            vars.check_interrupt(i)?;
            spec.add(&mut state, &EvalCtx::new(r.doc.as_doc(), vars))?;
            if i % 256 == 255 && state.memory_bytes() > limit {
                return Err(unspillable(spec.name(), limit));
            }
        }
        let mut result = spec.start(&empty)?;
        result.merge(state.to_partial().as_val())?;
        self.last = result.finish()?;
        self.state = Some(state);
        self.previous = Some(f);
        Ok(self.last.clone())
    }
}

/// Deviations over a frame that loses rows are counted anew for each.
fn deviates(spec: &AccumulatorSpec, frame: &Frame) -> bool {
    let slides = !matches!(
        frame,
        Frame::Documents(None, _)
            | Frame::Range {
                lower: Edge::Unbounded,
                ..
            }
    );
    slides && matches!(spec.name(), "$stdDevPop" | "$stdDevSamp")
}

/// Deviations over a frame that loses documents: null while anything infinite or NaN is in it, and a plain 0 for one.
fn sliding_deviation(
    spec: &AccumulatorSpec,
    rows: &[Row],
    frame: &Frame,
    sort: Option<&SortPattern>,
    vars: &Vars,
) -> Result<Vec<Value>> {
    let empty = EvalCtx::new(Doc::EMPTY, vars);
    let mut out = Vec::with_capacity(rows.len());
    for (i, f) in frames(rows, frame, sort, vars)?.into_iter().enumerate() {
        vars.check_interrupt(i)?;
        let mut state = spec.start(&empty)?;
        let (mut numbers, mut finite) = (0, true);
        for r in rows.get(f).unwrap_or(&[]) {
            let ctx = EvalCtx::new(r.doc.as_doc(), vars);
            for e in spec.expressions().into_iter().take(1) {
                if let Some(n) = e.evaluate(&ctx)?.as_val().and_then(Number::of) {
                    numbers += 1;
                    finite &= n.to_f64().is_finite();
                }
            }
            spec.add(&mut state, &ctx)?;
        }
        out.push(match numbers {
            _ if !finite => Value::NULL,
            1 if spec.name() == "$stdDevPop" => Value::from(0),
            _ => state.finish()?,
        });
    }
    Ok(out)
}

fn moving_average(values: &[Value], alpha: Number) -> Vec<Value> {
    let mut average: Option<Number> = None;
    values
        .iter()
        .map(|v| {
            let Some(x) = Number::of(v.as_val()) else {
                return average.map_or(Value::NULL, Number::to_value);
            };
            let next = match average {
                None => match x {
                    Number::Decimal(_) => x,
                    _ => Number::Double(x.to_f64()),
                },
                Some(a) => add(
                    multiply(x, alpha),
                    multiply(a, subtract(Number::Int(1), alpha)),
                ),
            };
            average = Some(next);
            next.to_value()
        })
        .collect()
}

/// Abscissa (in `unit` for dates) and ordinate of each row; `None` when the ordinate is no number.
fn points(
    rows: &[Row],
    input: &[Value],
    sort: Option<&SortPattern>,
    unit: Option<&Unit>,
) -> Result<Vec<Option<(Number, Number)>>> {
    sort_values(rows, sort)
        .iter()
        .zip(input)
        .map(|(t, v)| {
            let x = match (t.as_val().as_date(), unit) {
                (Some(ms), Some(u)) => Number::Double(ms as f64 / u.ms.unwrap_or(1) as f64),
                (Some(_), None) => bail!(
                    5624900,
                    "where the sortBy is a Date, 'unit' must be specified"
                ),
                (None, Some(_)) => {
                    bail!(5624901, "with 'unit' expects the sortBy field to be a Date")
                }
                (None, None) => match Number::of(t.as_val()) {
                    Some(n) => n,
                    None => bail!(
                        5624902,
                        "without 'unit' expects the sortBy field to be numeric"
                    ),
                },
            };
            Ok(Number::of(v.as_val()).map(|y| (x, y)))
        })
        .collect()
}

/// Exact for decimals, else a double.
fn divide(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal(decimal::div(a.to_decimal(), b.to_decimal()))
        }
        _ => Number::Double(a.to_f64() / b.to_f64()),
    }
}

fn derivative(points: &[Option<(Number, Number)>]) -> Value {
    let (Some(Some((x0, y0))), Some(Some((x1, y1)))) = (points.first(), points.last()) else {
        return Value::NULL;
    };
    let dx = subtract(*x1, *x0);
    if points.len() < 2 || dx.is_zero() {
        return Value::NULL;
    }
    divide(subtract(*y1, *y0), dx).to_value()
}

fn integral(points: &[Option<(Number, Number)>]) -> Value {
    let mut sum = Number::Double(0.0);
    let mut previous: Option<(Number, Number)> = None;
    for (x, y) in points.iter().flatten() {
        if let Some((px, py)) = previous {
            let area = multiply(subtract(*x, px), add(py, *y));
            sum = add(sum, divide(area, Number::Int(2)));
        }
        previous = Some((*x, *y));
    }
    if previous.is_none() {
        Value::NULL
    } else {
        sum.to_value()
    }
}

fn covariance<'a>(pairs: impl Iterator<Item = (&'a Value, &'a Value)>, sample: bool) -> Value {
    let (mut n, mut sum_x, mut sum_y) = (0i64, Number::Int(0), Number::Int(0));
    let mut c = Number::Int(0);
    // What is infinite or NaN counts apart, and decides once there are two finite pairs.
    let mut infinite: Option<f64> = None;
    for (x, y) in pairs {
        let (Some(x), Some(y)) = (Number::of(x.as_val()), Number::of(y.as_val())) else {
            continue;
        };
        if !x.to_f64().is_finite() && !is_finite_decimal(x)
            || !y.to_f64().is_finite() && !is_finite_decimal(y)
        {
            let (x, y) = (x.to_f64(), y.to_f64());
            let opposed = x.is_infinite() && y == -x;
            *infinite.get_or_insert(0.0) += if opposed { f64::NAN } else { x * y };
            continue;
        }
        // Counts are doubles, which gives quotients of decimals their digits.
        let mean_x = divide(sum_x, Number::Double(n as f64));
        n += 1;
        (sum_x, sum_y) = (add(sum_x, x), add(sum_y, y));
        if n > 1 {
            let mean_y = divide(sum_y, Number::Double(n as f64));
            c = add(c, multiply(subtract(x, mean_x), subtract(y, mean_y)));
        }
    }
    let by = if sample { n - 1 } else { n };
    match (by, infinite) {
        (..1, _) => Value::NULL,
        _ if n == 1 => Value::from(0.0),
        (_, Some(x)) => match c {
            Number::Decimal(_) => Value::from(decimal::from_f64(x)),
            _ => Value::from(x),
        },
        _ => divide(c, Number::Double(by as f64)).to_value(),
    }
}

/// A decimal beyond the doubles is finite all the same.
fn is_finite_decimal(n: Number) -> bool {
    matches!(n, Number::Decimal(d) if !d.is_nan() && !d.is_infinite())
}

fn linear_fill(
    rows: &[Row],
    mut values: Vec<Value>,
    sort: Option<&SortPattern>,
) -> Result<Vec<Value>> {
    let at = sort_values(rows, sort);
    let number = |v: &Value| -> Result<Number> {
        match (Number::of(v.as_val()), v.as_val().as_date()) {
            (Some(n), _) => Ok(n),
            (_, Some(ms)) => Ok(Number::Long(ms)),
            _ => Err(err!(
                605002,
                "$linearFill needs numbers or dates in the sortBy field, found {}",
                v.as_val().type_name()
            )),
        }
    };
    for pair in rows.windows(2) {
        if pair[0].key == pair[1].key {
            bail!(6050106, "There can be no repeated values in the sort field");
        }
    }
    let mut known: Option<usize> = None;
    for i in 0..values.len() {
        if values[i].as_val().is_nullish() {
            continue;
        }
        if let Some(k) = known.filter(|k| k + 1 < i) {
            let (x0, x1) = (number(&at[k])?, number(&at[i])?);
            let (Some(y0), Some(y1)) = (
                Number::of(values[k].as_val()),
                Number::of(values[i].as_val()),
            ) else {
                bail!(TypeMismatch, "$linearFill needs numbers");
            };
            let slope = divide(subtract(y1, y0), subtract(x1, x0));
            for j in k + 1..i {
                let x = number(&at[j])?;
                values[j] = add(y0, multiply(slope, subtract(x, x0))).to_value();
            }
        }
        known = Some(i);
    }
    Ok(values)
}
