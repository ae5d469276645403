//! `$densify`: documents for the steps of a sequence of numbers or dates that are missing.
//!
//! The input is sorted by partition and value, outside memory when it is much, with what has no
//! value before all; then rows and the documents between them are given one by one.

use super::options::{field_path, object, options, required, string};
use super::unwind::set_path;
use super::window::Unit;
use super::{IdleVisitor, PipelineHost, Source, sort};
use crate::arithmetic::{Number, add, multiply};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Val, Value, Writer, key, order, tag};
use errors::{Result, bail};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most documents one stage makes.
const MAX_MADE: u64 = 500_000;

#[derive(Debug)]
pub(crate) struct Densify {
    field: FieldPath,
    partition: Vec<FieldPath>,
    step: Number,
    unit: Option<Unit>,
    bounds: Bounds,
    collation: Option<Collation>,
}

#[derive(Debug)]
enum Bounds {
    /// From the least to the greatest value of all documents.
    Full,
    /// The same in each partition.
    Partition,
    /// From a value up to before another.
    Explicit(Value, Value),
}

const STAGE: &str = "$densify";

/// The paths in `partitionByFields`.
fn partition_fields(given: Val<'_>) -> Result<Vec<FieldPath>> {
    let Some(list) = given.as_array() else {
        bail!(
            TypeMismatch,
            "'partitionByFields' must be an array of strings"
        );
    };
    let paths = list.values();
    paths
        .map(|v| field_path(string(STAGE, "partitionByFields", v)?))
        .collect()
}

impl Bounds {
    fn parse(bounds: Val<'_>, partitioned: bool, has_unit: bool) -> Result<Bounds> {
        match (bounds.as_str(), bounds.as_array()) {
            (Some("full"), _) => Ok(Bounds::Full),
            (Some("partition"), _) if !partitioned => bail!(
                5733408,
                "One may not specify the bounds as 'partition' without specifying a non-empty array of partitionByFields."
            ),
            (Some("partition"), _) => Ok(Bounds::Partition),
            (None, Some(list)) => {
                let items: Vec<Val<'_>> = list.values().collect();
                let [a, b] = items.as_slice() else {
                    bail!(
                        5733403,
                        "A bounding array in a range statement must have exactly two elements"
                    );
                };
                Bounds::between(*a, *b, has_unit)
            }
            _ => bail!(
                5946802,
                "Bounds must be an array, or the string 'full' or 'partition'"
            ),
        }
    }

    fn between(a: Val<'_>, b: Val<'_>, has_unit: bool) -> Result<Bounds> {
        let dates = a.tag == tag::DATE && b.tag == tag::DATE;
        let numbers = a.is_number() && b.is_number();
        if !(dates && has_unit || numbers && !has_unit) {
            bail!(
                5733402,
                "A bounding array in a range statement must contain either both dates (with a unit) or both numeric types"
            );
        }
        if order::compare(a, b).is_gt() {
            bail!(
                5733402,
                "The lower bound of a range statement must be less than or equal to the upper bound"
            );
        }
        Ok(Bounds::Explicit(a.to_value(), b.to_value()))
    }
}

impl Densify {
    /// Whether all documents that have one value at a path, which no document that it makes lacks,
    /// are filled up without a look at others.
    pub fn is_by_itself(&self, path: &FieldPath) -> bool {
        let partition = |field: &FieldPath| !field.is_dotted() && path.starts_with(field);
        !matches!(self.bounds, Bounds::Full)
            && path.first() != self.field.first()
            && self.partition.iter().any(partition)
    }

    /// What decides which documents it makes, and between which.
    pub fn read_paths(&self) -> BTreeSet<String> {
        let partition = self.partition.iter().map(FieldPath::to_string);
        partition.chain([self.field.to_string()]).collect()
    }

    pub fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<Densify> {
        let Some(d) = spec.as_doc() else {
            bail!(
                5733401,
                "The {STAGE} stage specification must be an object, found {}",
                spec.type_name()
            );
        };
        let [field, partition, range] = options(STAGE, d, ["field", "partitionByFields", "range"])?;
        let field = field_path(string(STAGE, "field", required(STAGE, "field", field)?)?)?;
        let by = partition
            .map(partition_fields)
            .transpose()?
            .unwrap_or_default();
        let range = object(STAGE, "range", required(STAGE, "range", range)?)?;
        let [step, bounds, unit] = options("$densify.range", range, ["step", "bounds", "unit"])?;
        let step = required("$densify.range", "step", step)?;
        let Some(step_number) = Number::of(step) else {
            bail!(
                TypeMismatch,
                "The step parameter in a range statement must be numeric"
            );
        };
        if step_number.to_f64() <= 0.0 {
            bail!(
                5733401,
                "The step parameter in a range statement must be a strictly positive numeric value"
            );
        }
        let unit = unit.map(Unit::parse).transpose()?;
        if unit.is_some() && step.to_i64_exact().is_none() {
            bail!(
                6586400,
                "The step parameter in a range statement must be a whole number when densifying a date range"
            );
        }
        let bounds = required("$densify.range", "bounds", bounds)?;
        let bounds = Bounds::parse(bounds, !by.is_empty(), unit.is_some())?;
        Ok(Densify {
            field,
            partition: by,
            step: step_number,
            unit,
            bounds,
            collation: env.collation().cloned(),
        })
    }

    /// The value of the field; none of a document that goes through as it is.
    fn value<'a>(&self, doc: Doc<'a>) -> Result<Option<Val<'a>>> {
        let Some(v) = self.field.get(doc).filter(|v| !v.is_nullish()) else {
            return Ok(None);
        };
        if v.tag == tag::DATE && self.unit.is_none() {
            bail!(
                6053600,
                "Encountered date densify value in collection when step does not have a date unit."
            );
        }
        if !(v.tag == tag::DATE || v.is_number() && self.unit.is_none()) {
            bail!(
                5733201,
                "Densify field type must be numeric or a date with a unit, found {}",
                v.type_name()
            );
        }
        Ok(Some(v))
    }

    /// The fields of a document that say its partition.
    fn partition(&self, doc: Doc<'_>) -> DocBuf {
        let mut fields = DocBuf::new();
        for p in &self.partition {
            if let Some(v) = p.get(doc) {
                let mut w = Writer::new();
                set_path(&mut w, fields.as_doc(), p, 0, Some(v));
                fields = w.finish();
            }
        }
        fields
    }

    /// `start` and `n` steps.
    fn at(&self, start: Val<'_>, n: u64) -> Result<Value> {
        let n = Number::int_or_long(n as i64);
        match &self.unit {
            None => {
                let start = Number::of(start).unwrap_or(Number::Int(0));
                Ok(add(start, multiply(self.step, n)).to_value())
            }
            Some(unit) => {
                let amount = multiply(self.step, n).to_value();
                let mut w = Writer::new();
                w.open_doc("$dateAdd")
                    .val("startDate", start)
                    .str("unit", &unit.name)
                    .i64("amount", amount.as_val().to_i64_truncated().unwrap_or(0))
                    .close();
                let e = Expression::parse(w.finish().as_doc().as_val(), &ParseEnv::new())?;
                let vars = Vars::new(0);
                let v = e.evaluate(&EvalCtx::new(Doc::EMPTY, &vars))?;
                Ok(v.into_value().unwrap_or(Value::NULL))
            }
        }
    }
}

/// First bytes of the keys of rows: those without a value come first.
const LOOSE: u8 = 0;
const VALUED: u8 = 1;

/// What rows are sorted by, and between which values all of them are.
pub(super) struct Ranking {
    spec: Arc<Densify>,
    ends: Option<Ends>,
}

struct Ends {
    least: Value,
    /// The key of its row: of equal values the one of the first partition says whether the steps
    /// are doubles.
    key: Vec<u8>,
    greatest: Value,
}

impl Ranking {
    /// Writes what a row is sorted by into `out`, which is empty.
    pub fn order(&mut self, doc: Doc<'_>, out: &mut Vec<u8>) -> Result<()> {
        let Some(v) = self.spec.value(doc)? else {
            out.push(LOOSE);
            return Ok(());
        };
        out.push(VALUED);
        let partition = self.spec.partition(doc);
        let partition = partition.as_doc().as_val();
        Collation::with(self.spec.collation.as_ref(), partition, |p| {
            key::encode(p, false, out, None)
        });
        key::encode(v, false, out, None);
        match &mut self.ends {
            None => {
                self.ends = Some(Ends {
                    least: v.to_value(),
                    key: out.clone(),
                    greatest: v.to_value(),
                });
            }
            Some(ends) => {
                let o = order::compare(v, ends.least.as_val());
                if o.then_with(|| out.as_slice().cmp(&ends.key)).is_lt() {
                    (ends.least, ends.key) = (v.to_value(), out.clone());
                }
                if order::compare(v, ends.greatest.as_val()).is_gt() {
                    ends.greatest = v.to_value();
                }
            }
        }
        Ok(())
    }
}

/// A row, and the partition's key as it is in the row's key.
struct Row {
    partition: Vec<u8>,
    fields: DocBuf,
    value: Value,
    doc: DocBuf,
}

/// The steps through a partition, which is the one that is given.
struct Steps {
    partition: Vec<u8>,
    /// For documents that are made behind the last row; else the fields are those of the row behind.
    fields: DocBuf,
    from: Value,
    /// The step that comes next, and its value.
    n: u64,
    value: Value,
    /// A row has that value.
    there: bool,
    /// The value of the row that was given last.
    last: Value,
}

pub(super) struct Run {
    input: sort::Run,
    spec: Arc<Densify>,
    /// The row that was read last, while it was not given.
    next: Option<Row>,
    ended: bool,
    steps: Option<Steps>,
    /// There was a partition.
    begun: bool,
    made: u64,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Densify>) -> Run {
        let ranking = Ranking {
            spec: spec.clone(),
            ends: None,
        };
        Run {
            input: sort::Run::new(input, sort::Order::Densify(ranking), None),
            spec,
            next: None,
            ended: false,
            steps: None,
            begun: false,
            made: 0,
            out: DocBuf::new(),
        }
    }

    /// Reads the next row unless it is there; true when it is one without a value, which is given
    /// at once.
    fn look(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if self.next.is_some() || self.ended {
            host.check()?;
            return Ok(false);
        }
        if !self.input.advance(host)? {
            self.ended = true;
            return Ok(false);
        }
        let key = self.input.key().get(1..).unwrap_or(&[]);
        let partition = key::field_len(key, false).unwrap_or(0).min(key.len());
        let partition = key.get(..partition).unwrap_or(&[]).to_vec();
        let doc = DocBuf::from_vec(self.input.take())
            .ok_or_else(|| errors::Error::internal("a sorted document is damaged"))?;
        let Some(value) = self.spec.value(doc.as_doc())?.map(Val::to_value) else {
            self.out = doc;
            return Ok(true);
        };
        self.next = Some(Row {
            partition,
            fields: self.spec.partition(doc.as_doc()),
            value,
            doc,
        });
        Ok(false)
    }

    /// Begins with the partition of the next row, or, where there was none and bounds are given,
    /// with one that is empty.
    fn begin(&mut self) -> Result<bool> {
        let first = self.next.as_ref();
        let explicit = matches!(self.spec.bounds, Bounds::Explicit(..));
        if first.is_none() && (self.begun || !explicit || !self.spec.partition.is_empty()) {
            return Ok(false);
        }
        let from = match (&self.spec.bounds, self.ends(), first) {
            (Bounds::Explicit(from, _), ..) => from.clone(),
            (Bounds::Full, Some(ends), _) => ends.least.clone(),
            (.., Some(row)) => row.value.clone(),
            (.., None) => Value::NULL,
        };
        let of = first.map(|row| (row.partition.clone(), row.fields.clone()));
        let (partition, fields) = of.unwrap_or_default();
        self.steps = Some(Steps {
            partition,
            fields,
            value: self.spec.at(from.as_val(), 0)?,
            last: from.clone(),
            from,
            n: 0,
            there: false,
        });
        self.begun = true;
        Ok(true)
    }

    fn ends(&self) -> Option<&Ends> {
        match self.input.order() {
            sort::Order::Densify(ranking) => ranking.ends.as_ref(),
            _ => None,
        }
    }

    /// Whether the steps go as far as `value` in a partition that goes to `last` at least.
    fn goes_to(&self, value: &Value, last: &Value) -> bool {
        let to = match (&self.spec.bounds, self.ends()) {
            (Bounds::Explicit(_, to), _) => {
                return order::compare(value.as_val(), to.as_val()).is_lt();
            }
            (Bounds::Full, Some(ends)) => &ends.greatest,
            _ => last,
        };
        order::compare(value.as_val(), to.as_val()).is_le()
    }

    /// Makes the document of a step.
    fn make(&mut self, fields: &DocBuf, value: &Value) -> Result<()> {
        self.made += 1;
        if self.made > MAX_MADE {
            bail!(
                5897900,
                "Generated {} documents in $densify, which is over the limit of {MAX_MADE}.",
                self.made
            );
        }
        let mut w = Writer::new();
        let value = Some(value.as_val());
        set_path(&mut w, fields.as_doc(), &self.spec.field, 0, value);
        self.out = w.finish();
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            if self.look(host)? {
                return Ok(true);
            }
            let Some(steps) = &self.steps else {
                if !self.begin()? {
                    return Ok(false);
                }
                continue;
            };
            let row = self.next.as_ref();
            let row = row.filter(|row| row.partition == steps.partition);
            let last = row.map_or(&steps.last, |row| &row.value);
            let ahead = row
                .is_none_or(|row| order::compare(row.value.as_val(), steps.value.as_val()).is_gt());
            if ahead && self.goes_to(&steps.value, last) {
                let (n, made) = (steps.n + 1, !steps.there);
                let next = self.spec.at(steps.from.as_val(), n)?;
                let fields = row.map_or(&steps.fields, |row| &row.fields).clone();
                if let Some(steps) = &mut self.steps {
                    (steps.n, steps.there) = (n, false);
                    let value = std::mem::replace(&mut steps.value, next);
                    if made {
                        self.make(&fields, &value)?;
                        return Ok(true);
                    }
                }
            } else if row.is_none() {
                self.steps = None;
            } else if let (Some(row), Some(steps)) = (self.next.take(), &mut self.steps) {
                steps.there |= order::compare(row.value.as_val(), steps.value.as_val()).is_eq();
                steps.last = row.value;
                self.out = row.doc;
                return Ok(true);
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        if let Some(row) = &mut self.next {
            super::show_doc(&mut row.doc, true, to)?;
        }
        super::show_doc(&mut self.out, wanted, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::over_docs;
    use super::super::tests::{Memory, docs, outside_memory, parse, run_under, show};
    use super::*;

    fn densify(options: &str) -> String {
        format!(r#"{{"$densify":{{"field":"t",{options}}}}}"#)
    }

    fn list(n: usize, doc: impl Fn(usize) -> String) -> String {
        let docs: Vec<String> = (0..n).map(doc).collect();
        format!("[{}]", docs.join(","))
    }

    #[test]
    fn outside_memory_as_in_it() {
        let pad = "p".repeat(60);
        let numbers = list(200, |i| match i % 9 {
            0 => format!(r#"{{"_id":{i},"p":{{"a":{}}},"pad":"{pad}"}}"#, i % 2),
            1 => format!(r#"{{"_id":{i},"t":null,"pad":"{pad}"}}"#),
            _ => format!(
                r#"{{"_id":{i},"p":{{"a":{}}},"q":{},"t":{},"pad":"{pad}"}}"#,
                ["0", "0.0", "1", "\"x\""][i % 4],
                i % 3,
                ["7", "11.5", "-3", "40"][i % 4].to_string() + if i % 4 == 1 { "" } else { ".0" },
            ),
        });
        let dates = list(200, |i| {
            let t = 86_400_000 * (i as i64 * 37 % 211) + 1000 * (i as i64 % 2);
            format!(
                r#"{{"_id":{i},"q":{},"t":{{"$date":{{"$numberLong":"{t}"}}}},"pad":"{pad}"}}"#,
                i % 3
            )
        });
        let partitions = [
            "",
            r#""partitionByFields":["q"],"#,
            r#""partitionByFields":["p.a","q"],"#,
        ];
        for by in partitions {
            for bounds in [
                r#""full""#,
                r#""partition""#,
                "[-5,13]",
                "[2,2]",
                "[100,110]",
                "[-20,-10]",
                "[0,60.5]",
            ] {
                for step in ["1", "2.5", "100", r#"{"$numberDecimal":"0.7"}"#] {
                    if by.is_empty() && bounds.contains("partition") {
                        continue;
                    }
                    let options = format!(r#"{by}"range":{{"step":{step},"bounds":{bounds}}}"#);
                    outside_memory(&numbers, &densify(&options), "", 8000);
                }
            }
            let first = r#"{"$date":"1970-02-01T00:00:00Z"}"#;
            let last = r#"{"$date":"1970-05-01T00:00:00Z"}"#;
            for bounds in [r#""full""#.to_string(), format!("[{first},{last}]")] {
                for (step, unit) in [(1, "day"), (36, "hour"), (1, "month"), (1, "quarter")] {
                    let range = format!(r#""step":{step},"unit":"{unit}","bounds":{bounds}"#);
                    let options = format!(r#"{by}"range":{{{range}}}"#);
                    outside_memory(&dates, &densify(&options), "", 8000);
                }
            }
        }
        for (input, range, code) in [
            (&dates, r#""step":1,"bounds":"full""#, "#6053600"),
            (
                &numbers,
                r#""step":1,"unit":"day","bounds":"full""#,
                "#5733201",
            ),
        ] {
            let stages = format!("[{}]", densify(&format!(r#""range":{{{range}}}"#)));
            assert_eq!(
                show(run_under(&mut Memory::default(), input, &stages, "")),
                code
            );
        }
    }

    #[test]
    fn rows_and_what_is_made_between_them() {
        let input = r#"[{"_id":1,"p":"b","t":2},{"_id":2,"p":"a","t":4},{"_id":3,"p":"a","t":1},{"_id":4},{"_id":5,"p":"a","t":1}]"#;
        for (options, want) in [
            (
                r#""partitionByFields":["p"],"range":{"step":2,"bounds":"partition"}"#,
                r#"[{"_id":4},{"_id":3,"p":"a","t":1},{"_id":5,"p":"a","t":1},{"p":"a","t":3},{"_id":2,"p":"a","t":4},{"_id":1,"p":"b","t":2}]"#,
            ),
            (
                r#""partitionByFields":["p"],"range":{"step":2,"bounds":"full"}"#,
                r#"[{"_id":4},{"_id":3,"p":"a","t":1},{"_id":5,"p":"a","t":1},{"p":"a","t":3},{"_id":2,"p":"a","t":4},{"p":"b","t":1},{"_id":1,"p":"b","t":2},{"p":"b","t":3}]"#,
            ),
            (
                r#""range":{"step":1,"bounds":[2,4]}"#,
                r#"[{"_id":4},{"_id":3,"p":"a","t":1},{"_id":5,"p":"a","t":1},{"_id":1,"p":"b","t":2},{"t":3},{"_id":2,"p":"a","t":4}]"#,
            ),
        ] {
            let stages = format!("[{}]", densify(options));
            let found = run_under(&mut Memory::default(), input, &stages, "");
            assert_eq!(show(found), format!("{:?}", docs(want)), "{options}");
        }
        // Of equal values the first partition's says of what type the steps are.
        let input = r#"[{"p":2,"t":0},{"p":1,"t":0.0},{"p":1,"t":2}]"#;
        let options = r#""partitionByFields":["p"],"range":{"step":1,"bounds":"full"}"#;
        let stages = format!("[{}]", densify(options));
        let found = run_under(&mut Memory::default(), input, &stages, "");
        let want = r#"[{"p":1,"t":0.0},{"p":1,"t":1.0},{"p":1,"t":2},{"p":2,"t":0},{"p":2,"t":1.0},{"p":2,"t":2.0}]"#;
        assert_eq!(show(found), format!("{:?}", docs(want)));
        // Of nothing that has the field: bounds alone.
        let stages = format!("[{}]", densify(r#""range":{"step":1,"bounds":[0,2]}"#));
        let found = run_under(&mut Memory::default(), r#"[{"_id":4}]"#, &stages, "");
        assert_eq!(
            show(found),
            format!("{:?}", docs(r#"[{"_id":4},{"t":0},{"t":1}]"#))
        );
    }

    /// A document made in a gap has the partition as the row behind it spells it.
    #[test]
    fn partitions_are_told_apart_by_the_collation() {
        let input = r#"[{"p":"a","t":0},{"p":"A","t":2},{"p":"b","t":5}]"#;
        let stages =
            densify(r#""partitionByFields":["p"],"range":{"step":1,"bounds":"partition"}"#);
        let stages = format!("[{stages}]");
        for (collation, want) in [
            (
                r#"{"locale":"en","strength":1}"#,
                r#"[{"p":"a","t":0},{"p":"A","t":1},{"p":"A","t":2},{"p":"b","t":5}]"#,
            ),
            ("", r#"[{"p":"A","t":2},{"p":"a","t":0},{"p":"b","t":5}]"#),
        ] {
            let found = run_under(&mut Memory::default(), input, &stages, collation);
            assert_eq!(show(found), format!("{:?}", docs(want)), "{collation}");
        }
    }

    /// They are made one by one, and not too many.
    #[test]
    fn makes_documents_as_they_are_asked_for() {
        let range = r#""range":{"step":1,"bounds":[0,1000000000]}"#;
        let p = parse(&format!("[{}]", densify(range))).unwrap();
        let mut source = p.attach(0, over_docs(Vec::new()), &Arc::new(Vars::new(0)));
        let mut host = Memory::default();
        for t in 0..MAX_MADE as i64 {
            assert!(source.advance(&mut host).unwrap());
            assert_eq!(source.doc().get("t").unwrap().to_i64_exact(), Some(t));
        }
        assert_eq!(
            source.advance(&mut host).unwrap_err().into_error().code.0,
            5897900
        );
    }
}
