//! `$densify`: documents for the steps of a sequence of numbers or dates that are missing.

use super::options::{field_path, object, options, required, string};
use super::unwind::set_path;
use super::window::Unit;
use super::{Host, Parts, Source};
use crate::arithmetic::{Number, add, multiply};
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Val, Value, Writer, key, order, tag};
use errors::{Result, bail};
use std::collections::{BTreeMap, VecDeque};
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

impl Densify {
    pub fn parse(spec: Val<'_>) -> Result<Densify> {
        const STAGE: &str = "$densify";
        let Some(d) = spec.as_doc() else {
            bail!(
                5733401,
                "The {STAGE} stage specification must be an object, found {}",
                spec.type_name()
            );
        };
        let [field, partition, range] = options(STAGE, d, ["field", "partitionByFields", "range"])?;
        let field = field_path(string(STAGE, "field", required(STAGE, "field", field)?)?)?;
        let mut by = Vec::new();
        if let Some(p) = partition {
            let Some(list) = p.as_array() else {
                bail!(
                    TypeMismatch,
                    "'partitionByFields' must be an array of strings"
                );
            };
            for v in list.values() {
                by.push(field_path(string(STAGE, "partitionByFields", v)?)?);
            }
        }
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
        let bounds = match (bounds.as_str(), bounds.as_array()) {
            (Some("full"), _) => Bounds::Full,
            (Some("partition"), _) => {
                if by.is_empty() {
                    bail!(
                        5733408,
                        "One may not specify the bounds as 'partition' without specifying a non-empty array of partitionByFields."
                    );
                }
                Bounds::Partition
            }
            (None, Some(list)) => {
                let items: Vec<Val<'_>> = list.values().collect();
                let [a, b] = items.as_slice() else {
                    bail!(
                        5733403,
                        "A bounding array in a range statement must have exactly two elements"
                    );
                };
                let dates = a.tag == tag::DATE && b.tag == tag::DATE;
                let numbers = a.is_number() && b.is_number();
                if !(dates && unit.is_some() || numbers && unit.is_none()) {
                    bail!(
                        5733402,
                        "A bounding array in a range statement must contain either both dates (with a unit) or both numeric types"
                    );
                }
                if order::compare(*a, *b).is_gt() {
                    bail!(
                        5733402,
                        "The lower bound of a range statement must be less than or equal to the upper bound"
                    );
                }
                Bounds::Explicit(a.to_value(), b.to_value())
            }
            _ => bail!(
                5946802,
                "Bounds must be an array, or the string 'full' or 'partition'"
            ),
        };
        Ok(Densify {
            field,
            partition: by,
            step: step_number,
            unit,
            bounds,
        })
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

struct Partition {
    /// The partition's fields, as a document.
    fields: DocBuf,
    rows: Vec<(Value, DocBuf)>,
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Densify>,
    partitions: BTreeMap<Vec<u8>, Partition>,
    /// Documents without the field go through as they are.
    loose: Vec<DocBuf>,
    made: u64,
    done: VecDeque<DocBuf>,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Densify>) -> Run {
        Run {
            input: Some(input),
            spec,
            partitions: BTreeMap::new(),
            loose: Vec::new(),
            made: 0,
            done: VecDeque::new(),
            out: DocBuf::new(),
        }
    }

    fn collect(&mut self, host: &mut dyn Host) -> Result<()> {
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        while input.advance(host)? {
            let doc = input.doc();
            let v = match self.spec.field.get(doc) {
                None => {
                    self.loose.push(doc.to_buf());
                    continue;
                }
                Some(v) if v.is_nullish() => {
                    self.loose.push(doc.to_buf());
                    continue;
                }
                Some(v) => v,
            };
            if v.tag == tag::DATE && self.spec.unit.is_none() {
                bail!(
                    6053600,
                    "Encountered date densify value in collection when step does not have a date unit."
                );
            }
            if !(v.tag == tag::DATE || v.is_number() && self.spec.unit.is_none()) {
                bail!(
                    5733201,
                    "Densify field type must be numeric or a date with a unit, found {}",
                    v.type_name()
                );
            }
            let mut fields = DocBuf::new();
            for p in &self.spec.partition {
                if let Some(pv) = p.get(doc) {
                    let mut w = Writer::new();
                    set_path(&mut w, fields.as_doc(), p, 0, Some(pv));
                    fields = w.finish();
                }
            }
            self.partitions
                .entry(key::of(fields.as_doc().as_val()))
                .or_insert_with(|| Partition {
                    fields,
                    rows: Vec::new(),
                })
                .rows
                .push((v.to_value(), doc.to_buf()));
        }
        self.input = None;
        self.fill()
    }

    fn fill(&mut self) -> Result<()> {
        let spec = self.spec.clone();
        self.done.extend(std::mem::take(&mut self.loose));
        let mut partitions: Vec<Partition> =
            std::mem::take(&mut self.partitions).into_values().collect();
        for p in &mut partitions {
            p.rows
                .sort_by(|a, b| order::compare(a.0.as_val(), b.0.as_val()));
        }
        let ends =
            |rows: &[(Value, DocBuf)]| Some((rows.first()?.0.clone(), rows.last()?.0.clone()));
        let (least, greatest) = {
            let all = partitions.iter().filter_map(|p| ends(&p.rows));
            let mut bounds: Option<(Value, Value)> = None;
            for (lo, hi) in all {
                bounds = Some(match bounds {
                    None => (lo, hi),
                    Some((l, h)) => (
                        if order::compare(lo.as_val(), l.as_val()).is_lt() {
                            lo
                        } else {
                            l
                        },
                        if order::compare(hi.as_val(), h.as_val()).is_gt() {
                            hi
                        } else {
                            h
                        },
                    ),
                });
            }
            bounds.unwrap_or((Value::NULL, Value::NULL))
        };
        if let Bounds::Explicit(..) = spec.bounds
            && partitions.is_empty()
            && spec.partition.is_empty()
        {
            partitions.push(Partition {
                fields: DocBuf::new(),
                rows: Vec::new(),
            });
        }
        for p in partitions {
            let (from, to, inclusive) = match (&spec.bounds, ends(&p.rows)) {
                (Bounds::Explicit(a, b), _) => (a.clone(), b.clone(), false),
                (Bounds::Full, _) => (least.clone(), greatest.clone(), true),
                (Bounds::Partition, Some((a, b))) => (a, b, true),
                (Bounds::Partition, None) => continue,
            };
            let mut rows = p.rows.into_iter().peekable();
            let mut n = 0;
            loop {
                let next = spec.at(from.as_val(), n)?;
                let o = order::compare(next.as_val(), to.as_val());
                if o.is_gt() || o.is_eq() && !inclusive {
                    break;
                }
                let mut there = false;
                while let Some((v, _)) = rows.peek() {
                    let o = order::compare(v.as_val(), next.as_val());
                    if o.is_gt() {
                        break;
                    }
                    there |= o.is_eq();
                    if let Some((_, d)) = rows.next() {
                        self.done.push_back(d);
                    }
                }
                if !there {
                    self.made += 1;
                    if self.made > MAX_MADE {
                        bail!(
                            5897900,
                            "Generated {} documents in $densify, which is over the limit of {MAX_MADE}.",
                            self.made
                        );
                    }
                    let mut w = Writer::new();
                    set_path(
                        &mut w,
                        p.fields.as_doc(),
                        &spec.field,
                        0,
                        Some(next.as_val()),
                    );
                    self.done.push_back(w.finish());
                }
                n += 1;
            }
            self.done.extend(rows.map(|(_, d)| d));
        }
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn Host) -> Result<bool> {
        self.collect(host)?;
        host.check()?;
        match self.done.pop_front() {
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
