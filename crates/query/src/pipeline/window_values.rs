//! What the functions of `$setWindowFields` give for the rows of a partition, row by row in their
//! order.
//!
//! Invariant: the held bytes do not grow with the partition, but for a function whose value does: that
//! stops now and then, so that its bytes can be counted ([`Progress::bytes`]). A function that has
//! failed because of an interruption may be asked for the same row again.

use super::partition::{Partition, Row};
use super::window::{Edge, Frame, Output, Unit};
use super::window_function::Function;
use super::window_scale::Extremes;
use crate::accumulator::{Accumulator, AccumulatorSpec};
use crate::arithmetic::{Number, add, decimal, multiply, subtract};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::sort::SortPattern;
use bson::{Decimal128, Doc, Val, Value, Writer, order, tag};
use errors::{Result, bail, err};
use std::ops::Range;

/// What the functions of a stage share.
pub(super) struct WindowContext<'a> {
    pub sort: Option<&'a SortPattern>,
    pub vars: &'a Vars,
    /// Bytes that all functions may hold, and those that the others do.
    pub limit: usize,
    pub others: usize,
}

/// A function on its way through a partition.
#[derive(Default)]
pub(super) struct Progress {
    /// Where the last range began and ended: neither edge ever moves back.
    lower: usize,
    upper: usize,
    frame: Option<Range<usize>>,
    state: State,
    last: Option<Value>,
}

#[derive(Default)]
enum State {
    #[default]
    None,
    Accumulator(Accumulator),
    Rank(i64, Vec<u8>),
    /// Of `$expMovingAvg`, a decimal behind its first value; whether a decimal was among the values.
    Average(Number, bool),
    Area(Area),
    Covariance(Box<Covariance>),
    Line(Line),
    Extremes(Extremes),
}

/// Heap bytes of a value.
pub(super) fn heap_bytes(v: &Value) -> usize {
    let n = v.as_val().bytes.len();
    if n > 16 { n } else { 0 }
}

impl Progress {
    /// What it holds between two rows.
    pub fn bytes(&self) -> usize {
        let state = match &self.state {
            State::Accumulator(a) => a.memory_bytes(),
            State::Line(line) => line.bytes(),
            State::Rank(_, key) => key.len(),
            _ => 0,
        };
        state + self.last.as_ref().map_or(0, heap_bytes)
    }

    /// The value for the row `at`. None when it is not made yet: to be asked for again when
    /// [`Progress::bytes`] are counted.
    pub fn value(
        &mut self,
        at: usize,
        output: &Output,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Option<Value>> {
        match &output.function {
            Function::Accumulate(spec) if !deviates(spec, &output.frame) => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                let same = matches!(output.frame, Frame::Documents(None, None));
                self.accumulated(spec, frame, same, rows, around)
            }
            _ => self.computed(at, output, rows, around).map(Some),
        }
    }

    fn computed(
        &mut self,
        at: usize,
        output: &Output,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Value> {
        match &output.function {
            Function::Accumulate(spec) => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                sliding_deviation(spec, frame, rows, around)
            }
            Function::DocumentNumber => Ok(Number::int_or_long(at as i64 + 1).to_value()),
            Function::Rank => self.rank(at, rows, |_| at as i64 + 1),
            Function::DenseRank => self.rank(at, rows, |before| before + 1),
            Function::Shift {
                output,
                by,
                default,
            } => {
                let other = (at as i64).checked_add(*by);
                match other.and_then(|i| usize::try_from(i).ok()) {
                    Some(i) if i < rows.len() => evaluate(output, i, rows, around),
                    _ => Ok(default.clone()),
                }
            }
            Function::ExpMovingAvg { input, alpha } => {
                let v = evaluate(input, at, rows, around)?;
                Ok(self.moving_average(v.as_val(), *alpha))
            }
            Function::Derivative { input, unit } => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                derivative_over(frame, (input, unit.as_ref()), rows, around)
            }
            Function::Integral { input, unit } => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                self.integral(frame, (input, unit.as_ref()), rows, around)
            }
            Function::Covariance { x, y, sample } => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                self.covariance(frame, (x, y), *sample, rows, around)
            }
            function @ Function::MinMaxScaler { input, min, max } => {
                let frame = self.frame(at, &output.frame, rows, around)?;
                let found = self.extremes(frame, function, rows, around)?;
                let value = evaluate(input, at, rows, around)?;
                found.scale(&value, *min, *max)
            }
            Function::LinearFill(e) => {
                let mut line = match std::mem::take(&mut self.state) {
                    State::Line(line) => line,
                    _ => Line::default(),
                };
                let value = line.value(e, at, rows, around);
                self.state = State::Line(line);
                value
            }
            Function::Locf(e) => {
                let v = evaluate(e, at, rows, around)?;
                if !v.as_val().is_nullish() {
                    self.last = Some(v);
                }
                Ok(self.last.clone().unwrap_or(Value::NULL))
            }
        }
    }

    /// The area below the points of `frame`, from where the last row's ended.
    fn integral(
        &mut self,
        frame: Range<usize>,
        (input, unit): (&Expression, Option<&Unit>),
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Value> {
        let (mut area, from) = match (std::mem::take(&mut self.state), self.grown(&frame)) {
            (State::Area(a), Some(from)) => (a, from),
            _ => (Area::default(), frame.start),
        };
        for i in from..frame.end {
            around.vars.check_interrupt(i - from)?;
            if let Some(p) = point(input, i, unit, rows, around)? {
                area.add(p);
            }
        }
        let value = area.value(unit);
        (self.state, self.frame) = (State::Area(area), Some(frame));
        Ok(value)
    }

    /// The least and the greatest value of `frame`, from where the last row's ended.
    fn extremes(
        &mut self,
        frame: Range<usize>,
        function: &Function,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Extremes> {
        let (mut found, from) = match (std::mem::take(&mut self.state), self.grown(&frame)) {
            (State::Extremes(e), Some(from)) => (e, from),
            _ => (Extremes::default(), frame.start),
        };
        found.take(function, from..frame.end, rows, around)?;
        (self.state, self.frame) = (State::Extremes(found), Some(frame));
        Ok(found)
    }

    /// The covariance of two expressions over the rows of `frame`, from where the last row's ended.
    fn covariance(
        &mut self,
        frame: Range<usize>,
        (x, y): (&Expression, &Expression),
        sample: bool,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Value> {
        let (mut c, from) = match (std::mem::take(&mut self.state), self.grown(&frame)) {
            (State::Covariance(c), Some(from)) => (c, from),
            _ => (Box::default(), frame.start),
        };
        for i in from..frame.end {
            around.vars.check_interrupt(i - from)?;
            let x = evaluate(x, i, rows, around)?;
            let y = evaluate(y, i, rows, around)?;
            c.add(x.as_val(), y.as_val());
        }
        let value = c.value(sample);
        (self.state, self.frame) = (State::Covariance(c), Some(frame));
        Ok(value)
    }

    /// The rows that count for the row `at`.
    fn frame(
        &mut self,
        at: usize,
        frame: &Frame,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Range<usize>> {
        let n = rows.len();
        let (lower, upper, unit) = match frame {
            Frame::Documents(lower, upper) => {
                let from_here =
                    |by: i64| (at as i64).saturating_add(by).clamp(0, n as i64) as usize;
                let lo = lower.map_or(0, from_here);
                let hi = upper.map_or(n, |u| from_here(u.saturating_add(1)));
                return Ok(lo.min(hi)..hi);
            }
            Frame::Range { lower, upper, unit } => (lower, upper, unit.as_ref()),
        };
        let v = sort_value(at, rows, around)?;
        check_range(v.as_val(), lower, upper, unit)?;
        let lo = match bound(&v, lower, unit, around.vars)? {
            None => 0,
            Some(b) => {
                let before = |x: &Value| order::compare(x.as_val(), b.as_val()).is_lt();
                forward(&mut self.lower, before, rows, around)?
            }
        };
        let hi = match bound(&v, upper, unit, around.vars)? {
            None => n,
            Some(b) => {
                let within = |x: &Value| order::compare(x.as_val(), b.as_val()).is_le();
                forward(&mut self.upper, within, rows, around)?
            }
        };
        Ok(lo.min(hi)..hi)
    }

    /// Where to go on when this frame is the last one and more at its end.
    fn grown(&self, frame: &Range<usize>) -> Option<usize> {
        let p = self.frame.as_ref()?;
        (p.start == frame.start && p.end <= frame.end && !p.is_empty()).then_some(p.end)
    }

    /// `same`: the frame of every row.
    fn accumulated(
        &mut self,
        spec: &AccumulatorSpec,
        frame: Range<usize>,
        same: bool,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Option<Value>> {
        if self.frame.as_ref() == Some(&frame)
            && let Some(last) = &self.last
        {
            return Ok(Some(last.clone()));
        }
        self.last = None;
        let empty = EvalCtx::new(Doc::EMPTY, around.vars);
        let (mut state, from) = match (std::mem::take(&mut self.state), self.grown(&frame)) {
            (State::Accumulator(s), Some(from)) => (s, from),
            _ => (spec.start(&empty)?, frame.start),
        };
        let (mut unmeasured, counted) = (0, state.memory_bytes());
        for i in from..frame.end {
            around.vars.check_interrupt(i - from)?;
            let Some(row) = rows.row(i)? else { break };
            spec.add(&mut state, &EvalCtx::new(row.doc.as_doc(), around.vars))?;
            unmeasured += row.doc.as_bytes().len();
            if (unmeasured > around.limit / 64 || i + 1 == frame.end)
                && std::mem::take(&mut unmeasured) > 0
            {
                check_memory(state.memory_bytes() + around.others, around.limit)?;
                if i + 1 < frame.end && state.memory_bytes() > counted + around.limit / 64 {
                    self.frame = Some(frame.start..i + 1);
                    self.state = State::Accumulator(state);
                    return Ok(None);
                }
            }
        }
        let value = if same {
            state.finish()?
        } else {
            let mut result = spec.start(&empty)?;
            result.merge(state.to_partial().as_val())?;
            self.state = State::Accumulator(state);
            result.finish()?
        };
        (self.last, self.frame) = (Some(value.clone()), Some(frame));
        Ok(Some(value))
    }

    fn rank(
        &mut self,
        at: usize,
        rows: &mut Partition,
        next: impl Fn(i64) -> i64,
    ) -> Result<Value> {
        let Some(row) = rows.row(at)? else {
            return Ok(Value::NULL);
        };
        let rank = match &self.state {
            State::Rank(rank, key) if *key == row.key => *rank,
            State::Rank(rank, _) => next(*rank),
            _ => 1,
        };
        self.state = State::Rank(rank, row.key.clone());
        Ok(Number::int_or_long(rank).to_value())
    }

    /// In decimals, whatever the values are; a double where no decimal is among them.
    fn moving_average(&mut self, v: Val<'_>, alpha: Decimal128) -> Value {
        let before = match self.state {
            State::Average(a, exact) => Some((a, exact)),
            _ => None,
        };
        let shown = |average: Number, exact: bool| match exact {
            true => average.to_value(),
            false => Value::from(average.to_f64()),
        };
        let Some(x) = Number::of(v) else {
            return before.map_or(Value::NULL, |(a, exact)| shown(a, exact));
        };
        let is_decimal = matches!(x, Number::Decimal(_));
        let (next, exact) = match before {
            None => (x, is_decimal),
            Some((a, exact)) => {
                let alpha = Number::Decimal(alpha);
                let rest = subtract(Number::Int(1), alpha);
                let of = |x: Number, part| multiply(Number::Decimal(x.to_decimal()), part);
                (add(of(x, alpha), of(a, rest)), exact || is_decimal)
            }
        };
        self.state = State::Average(next, exact);
        shown(next, exact)
    }
}

/// The state of a function can go nowhere else.
fn check_memory(bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        bail!(
            5414201,
            "Exceeded memory limit in DocumentSourceSetWindowFields, used {bytes} bytes but max allowed is {limit}"
        );
    }
    Ok(())
}

pub(super) fn evaluate(
    e: &Expression,
    at: usize,
    rows: &mut Partition,
    around: &WindowContext<'_>,
) -> Result<Value> {
    let doc = rows.row(at)?.map_or(Doc::EMPTY, |r| r.doc.as_doc());
    let v = e.evaluate(&EvalCtx::new(doc, around.vars))?;
    Ok(v.into_value().unwrap_or(Value::NULL))
}

/// Moves an edge to the first row, from where it is on, that `passes` does not hold for.
fn forward(
    edge: &mut usize,
    passes: impl Fn(&Value) -> bool,
    rows: &mut Partition,
    around: &WindowContext<'_>,
) -> Result<usize> {
    while *edge < rows.len() && passes(&sort_value(*edge, rows, around)?) {
        *edge += 1;
        around.vars.check_interrupt(*edge)?;
    }
    Ok(*edge)
}

/// The value of the only sort field; missing is null.
fn sort_value(at: usize, rows: &mut Partition, around: &WindowContext<'_>) -> Result<Value> {
    let field = around.sort.and_then(|s| s.fields.first());
    let of = |r: &Row| field.and_then(|f| Some(f.path.get(r.doc.as_doc())?.to_value()));
    Ok(rows.row(at)?.and_then(of).unwrap_or(Value::NULL))
}

/// Refuses a value around which there is no such range.
fn check_range(v: Val<'_>, lower: &Edge, upper: &Edge, unit: Option<&Unit>) -> Result<()> {
    let fits = match unit {
        Some(_) => v.tag == tag::DATE,
        None => v.is_number(),
    };
    if fits {
        return Ok(());
    }
    if v.tag == tag::DATE {
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
            v.type_name()
        );
    }
    if numeric {
        bail!(
            5429414,
            "Invalid range: Expected the sortBy field to be a number, but it was {}",
            v.type_name()
        );
    }
    Ok(())
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

/// The deviation over a frame that loses documents: null while anything infinite or NaN is in it,
/// and a plain 0 for one.
fn sliding_deviation(
    spec: &AccumulatorSpec,
    frame: Range<usize>,
    rows: &mut Partition,
    around: &WindowContext<'_>,
) -> Result<Value> {
    let mut state = spec.start(&EvalCtx::new(Doc::EMPTY, around.vars))?;
    let (mut numbers, mut finite) = (0, true);
    for i in frame.clone() {
        around.vars.check_interrupt(i - frame.start)?;
        let Some(row) = rows.row(i)? else { break };
        let ctx = EvalCtx::new(row.doc.as_doc(), around.vars);
        for e in spec.expressions().into_iter().take(1) {
            if let Some(n) = e.evaluate(&ctx)?.as_val().and_then(Number::of) {
                numbers += 1;
                finite &= n.to_f64().is_finite();
            }
        }
        spec.add(&mut state, &ctx)?;
    }
    match numbers {
        _ if !finite => Ok(Value::NULL),
        1 if spec.name() == "$stdDevPop" => Ok(Value::from(0)),
        _ => state.finish(),
    }
}

type Point = (Number, Number);

/// Abscissa (in `unit` for dates) and ordinate of a row; `None` when the ordinate is no number.
/// The slope between the first and the last point of `frame`.
fn derivative_over(
    frame: Range<usize>,
    (input, unit): (&Expression, Option<&Unit>),
    rows: &mut Partition,
    around: &WindowContext<'_>,
) -> Result<Value> {
    if frame.is_empty() {
        return Ok(Value::NULL);
    }
    let first = point(input, frame.start, unit, rows, around)?;
    let last = point(input, frame.end - 1, unit, rows, around)?;
    Ok(derivative(frame.len(), (first, last), unit))
}

fn point(
    input: &Expression,
    at: usize,
    unit: Option<&Unit>,
    rows: &mut Partition,
    around: &WindowContext<'_>,
) -> Result<Option<Point>> {
    let y = evaluate(input, at, rows, around)?;
    let t = sort_value(at, rows, around)?;
    let x = match (t.as_val().as_date(), unit) {
        (Some(ms), Some(_)) => Number::Long(ms),
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
    Ok(Number::of(y.as_val()).map(|y| (x, y)))
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

/// The milliseconds of a unit; 1 where there is none.
fn length_ms(unit: Option<&Unit>) -> Number {
    Number::Long(unit.and_then(|u| u.ms).unwrap_or(1))
}

/// By the millisecond first, then by the unit: a quotient of quotients would lose digits.
fn derivative(points: usize, ends: (Option<Point>, Option<Point>), unit: Option<&Unit>) -> Value {
    let (Some((x0, y0)), Some((x1, y1))) = ends else {
        return Value::NULL;
    };
    let dx = subtract(x1, x0);
    if points < 2 || dx.is_zero() {
        return Value::NULL;
    }
    let slope = divide(subtract(y1, y0), dx);
    match unit {
        Some(_) => multiply(slope, length_ms(unit)).to_value(),
        None => slope.to_value(),
    }
}

/// The area below a line.
struct Area {
    sum: Number,
    last: Option<Point>,
}

impl Default for Area {
    fn default() -> Area {
        Area {
            sum: Number::Double(0.0),
            last: None,
        }
    }
}

impl Area {
    fn add(&mut self, (x, y): Point) {
        if let Some((px, py)) = self.last {
            let area = multiply(subtract(x, px), add(py, y));
            self.sum = add(self.sum, divide(area, Number::Int(2)));
        }
        self.last = Some((x, y));
    }

    fn value(&self, unit: Option<&Unit>) -> Value {
        match (self.last, unit) {
            (None, _) => Value::NULL,
            (Some(_), None) => self.sum.to_value(),
            (Some(_), Some(_)) => divide(self.sum, length_ms(unit)).to_value(),
        }
    }
}

struct Covariance {
    n: i64,
    sum_x: Number,
    sum_y: Number,
    c: Number,
    /// Infinite values and NaN count apart, and decide once there are two finite pairs.
    infinite: Option<f64>,
}

impl Default for Covariance {
    fn default() -> Covariance {
        Covariance {
            n: 0,
            sum_x: Number::Int(0),
            sum_y: Number::Int(0),
            c: Number::Int(0),
            infinite: None,
        }
    }
}

impl Covariance {
    fn add(&mut self, x: Val<'_>, y: Val<'_>) {
        let (Some(x), Some(y)) = (Number::of(x), Number::of(y)) else {
            return;
        };
        if !x.to_f64().is_finite() && !is_finite_decimal(x)
            || !y.to_f64().is_finite() && !is_finite_decimal(y)
        {
            let (x, y) = (x.to_f64(), y.to_f64());
            let opposed = x.is_infinite() && y == -x;
            *self.infinite.get_or_insert(0.0) += if opposed { f64::NAN } else { x * y };
            return;
        }
        // Counts are doubles, which gives quotients of decimals their digits.
        let mean_x = divide(self.sum_x, Number::Double(self.n as f64));
        self.n += 1;
        (self.sum_x, self.sum_y) = (add(self.sum_x, x), add(self.sum_y, y));
        if self.n > 1 {
            let mean_y = divide(self.sum_y, Number::Double(self.n as f64));
            let product = multiply(subtract(x, mean_x), subtract(y, mean_y));
            self.c = add(self.c, product);
        }
    }

    fn value(&self, sample: bool) -> Value {
        let by = if sample { self.n - 1 } else { self.n };
        match (by, self.infinite) {
            (..1, _) => Value::NULL,
            _ if self.n == 1 => Value::from(0.0),
            (_, Some(x)) => match self.c {
                Number::Decimal(_) => Value::from(decimal::from_f64(x)),
                _ => Value::from(x),
            },
            _ => divide(self.c, Number::Double(by as f64)).to_value(),
        }
    }
}

/// A decimal beyond the doubles is finite all the same.
fn is_finite_decimal(n: Number) -> bool {
    matches!(n, Number::Decimal(d) if !d.is_nan() && !d.is_infinite())
}

/// `$linearFill` between the last value that is known and the next one.
#[derive(Default)]
struct Line {
    key: Option<Vec<u8>>,
    known: Option<Known>,
    /// The next one, once it was looked for; none when there is no more.
    next: Option<Option<Known>>,
}

struct Known {
    at: usize,
    x: Value,
    y: Value,
}

impl Line {
    fn bytes(&self) -> usize {
        let next = self.next.iter().flatten();
        let known = self.known.iter().chain(next);
        known.map(|k| heap_bytes(&k.x) + heap_bytes(&k.y)).sum()
    }

    fn value(
        &mut self,
        e: &Expression,
        at: usize,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Value> {
        let key = rows.row(at)?.map(|r| r.key.clone());
        if at > 0 && self.key == key {
            bail!(6050106, "There can be no repeated values in the sort field");
        }
        let y = evaluate(e, at, rows, around)?;
        let x = sort_value(at, rows, around)?;
        let known = !y.as_val().is_nullish();
        let filled = match &self.known {
            Some(_) if !known => {
                if self.next.is_none() {
                    self.next = Some(Line::look_ahead(e, at + 1, rows, around)?);
                }
                self.between(&x)?
            }
            _ => None,
        };
        // From here on nothing fails: a row that is asked for again finds things as they were.
        self.key = key;
        if known {
            (self.known, self.next) = (
                Some(Known {
                    at,
                    x,
                    y: y.clone(),
                }),
                None,
            );
        }
        Ok(filled.unwrap_or(y))
    }

    fn look_ahead(
        e: &Expression,
        from: usize,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<Option<Known>> {
        for at in from..rows.len() {
            around.vars.check_interrupt(at - from)?;
            let y = evaluate(e, at, rows, around)?;
            if !y.as_val().is_nullish() {
                let x = sort_value(at, rows, around)?;
                return Ok(Some(Known { at, x, y }));
            }
        }
        Ok(None)
    }

    /// The value at `x` on the line.
    fn between(&self, x: &Value) -> Result<Option<Value>> {
        let (Some(a), Some(Some(b))) = (&self.known, &self.next) else {
            return Ok(None);
        };
        debug_assert!(a.at < b.at);
        let number = |v: &Value| -> Result<Number> {
            match (Number::of(v.as_val()), v.as_val().as_date()) {
                (Some(n), _) => Ok(n),
                (_, Some(ms)) => Ok(Number::Long(ms)),
                _ => Err(err!(
                    605002,
                    "$linearFill needs numbers or dates in the sortBy field, found {}",
                    v.as_val().type_name()
                )
                .into()),
            }
        };
        let (x0, x1) = (number(&a.x)?, number(&b.x)?);
        let (Some(y0), Some(y1)) = (Number::of(a.y.as_val()), Number::of(b.y.as_val())) else {
            bail!(TypeMismatch, "$linearFill needs numbers");
        };
        let slope = divide(subtract(y1, y0), subtract(x1, x0));
        let filled = add(y0, multiply(slope, subtract(number(x)?, x0)));
        Ok(Some(filled.to_value()))
    }
}
