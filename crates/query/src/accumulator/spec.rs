//! Parsed accumulators.

use super::percentile;
use super::state::{Accumulator, Bounded, BoundedValues, DistinctValues};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, ParseEnv, SortSpec, Vars, join_paths};
use crate::sort::SortPattern;
use bson::{Doc, Val, Value, Writer};
use errors::{Code, Error, Result, bail, err};
use std::collections::BTreeSet;

/// A parsed accumulator, e.g. `{$sum: "$a"}`.
#[derive(Clone, Debug)]
pub struct AccumulatorSpec {
    pub(super) kind: Kind,
    name: &'static str,
    arg: Expression,
    /// The `n` of `$firstN` and its kin.
    n: Option<Expression>,
    collation: Option<Collation>,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    Deviation {
        sample: bool,
    },
    MergeObjects,
    ConcatArrays,
    SetUnion,
    FirstN,
    LastN,
    MinN,
    MaxN,
    Top {
        by: SortSpec,
        /// The same as a `$sort` has it.
        order: Box<SortPattern>,
        bottom: bool,
        single: bool,
    },
    Percentile {
        p: Vec<f64>,
        single: bool,
    },
    Script(Box<super::script::Functions>),
    Reduce(crate::script::Function),
}

const SIMPLE: &[(&str, Kind)] = &[
    ("$sum", Kind::Sum),
    ("$avg", Kind::Avg),
    ("$min", Kind::Min),
    ("$max", Kind::Max),
    ("$first", Kind::First),
    ("$last", Kind::Last),
    ("$push", Kind::Push),
    ("$addToSet", Kind::AddToSet),
    ("$stdDevPop", Kind::Deviation { sample: false }),
    ("$stdDevSamp", Kind::Deviation { sample: true }),
    ("$mergeObjects", Kind::MergeObjects),
    ("$concatArrays", Kind::ConcatArrays),
    ("$setUnion", Kind::SetUnion),
];

const COUNTED: &[(&str, Kind)] = &[
    ("$firstN", Kind::FirstN),
    ("$lastN", Kind::LastN),
    ("$minN", Kind::MinN),
    ("$maxN", Kind::MaxN),
];

/// Name, whether bottom, whether a single one.
const SORTED: &[(&str, bool, bool)] = &[
    ("$top", false, true),
    ("$topN", false, false),
    ("$bottom", true, true),
    ("$bottomN", true, false),
];

/// The accumulators that read their argument in a way of their own.
fn with_own_arguments(
    name: &str,
    arg: Val<'_>,
    env: &ParseEnv,
) -> Result<(&'static str, Kind, Expression)> {
    match name {
        "$count" => {
            if arg.as_doc().is_none_or(|d| !d.is_empty()) {
                bail!(TypeMismatch, "$count takes no arguments, i.e. $count:{{}}");
            }
            let one = Expression::literal(Value::from(1));
            Ok(("$count", Kind::Sum, one))
        }
        "$median" => {
            let [input, method] = options(name, arg, ["input", "method"], [7436100, 40415, 40414])?;
            percentile::check_method(method)?;
            let kind = Kind::Percentile {
                p: vec![0.5],
                single: true,
            };
            Ok(("$median", kind, Expression::parse(input, env)?))
        }
        "$percentile" => {
            let [input, p, method] =
                options(name, arg, ["input", "p", "method"], [7429703, 40415, 40414])?;
            let p = percentile::parse_p(p, env)?;
            percentile::check_method(method)?;
            let kind = Kind::Percentile { p, single: false };
            Ok(("$percentile", kind, Expression::parse(input, env)?))
        }
        "$accumulator" => {
            let (kind, args) = super::script::parse(arg, env)?;
            Ok(("$accumulator", kind, args))
        }
        "$_internalJsReduce" => {
            let (kind, data) = super::script::parse_reduce(arg, env)?;
            Ok(("$_internalJsReduce", kind, data))
        }
        _ => bail!(15952, "unknown group operator '{name}'"),
    }
}

/// `$top`, `$topN`, `$bottom`, `$bottomN`: the accumulator, its output and how many.
fn sorted(
    name: &str,
    arg: Val<'_>,
    (bottom, single): (bool, bool),
    env: &ParseEnv,
) -> Result<(Kind, Expression, Option<Expression>)> {
    let codes = [5788001, 5788002, 5788003];
    let (n, output, sort) = if single {
        let codes = [codes[0], codes[1], 5788004];
        let [output, sort] = options(name, arg, ["output", "sortBy"], codes)?;
        (None, output, sort)
    } else {
        let [n, output, sort] = options(name, arg, ["n", "output", "sortBy"], codes)?;
        let n = Expression::parse(n, env)?;
        check_constant_n(name, &n)?;
        (Some(n), output, sort)
    };
    let Some(sort) = sort.as_doc() else {
        bail!(
            5788604,
            "expected 'sortBy' to already be an object in the arguments to {name}"
        );
    };
    let kind = top(sort, bottom, single, env)?;
    Ok((kind, Expression::parse(output, env)?, n))
}

impl AccumulatorSpec {
    /// Whether it is nothing but the number of documents: `{$sum: 1}` or `{$count: {}}`.
    pub fn counts(&self) -> bool {
        matches!(self.kind, Kind::Sum) && self.arg.constant() == Some(&Value::from(1))
    }

    /// Parses the value of an output field of `$group`: `{$sum: …}`.
    pub fn parse_field(field: &str, spec: Val<'_>, env: &ParseEnv) -> Result<AccumulatorSpec> {
        let Some(d) = spec.as_doc().filter(|d| !d.is_empty()) else {
            bail!(40234, "The field '{field}' must be an accumulator object");
        };
        if field.contains('.') {
            bail!(40235, "The field name '{field}' cannot contain '.'");
        }
        if field.starts_with('$') {
            bail!(40236, "The field name '{field}' cannot be an operator name");
        }
        let mut elements = d.iter();
        match (elements.next(), elements.next()) {
            (Some(e), None) => {
                if !e.name.starts_with('$') {
                    bail!(40234, "The field '{field}' must be an accumulator object");
                }
                AccumulatorSpec::parse(e.name, e.val, env)
            }
            _ => bail!(40238, "The field '{field}' must specify one accumulator"),
        }
    }

    /// `name` with its `$`, and the accumulator's argument.
    pub fn parse(name: &str, arg: Val<'_>, env: &ParseEnv) -> Result<AccumulatorSpec> {
        let build = |name, kind, arg, n| AccumulatorSpec {
            kind,
            name,
            arg,
            n,
            collation: env.collation().cloned(),
        };
        if arg.as_array().is_some() {
            bail!(40237, "The {name} accumulator is a unary operator");
        }
        if let Some((name, kind)) = SIMPLE.iter().find(|s| s.0 == name) {
            return Ok(build(
                name,
                kind.clone(),
                Expression::parse(arg, env)?,
                None,
            ));
        }
        if let Some((name, kind)) = COUNTED.iter().find(|s| s.0 == name) {
            let [n, input] = options(name, arg, ["n", "input"], [5787900, 5787901, 5787906])?;
            let n = Expression::parse(n, env)?;
            check_constant_n(name, &n)?;
            let input = Expression::parse(input, env)?;
            return Ok(build(name, kind.clone(), input, Some(n)));
        }
        if let Some(&(name, bottom, single)) = SORTED.iter().find(|s| s.0 == name) {
            let (kind, output, n) = sorted(name, arg, (bottom, single), env)?;
            return Ok(build(name, kind, output, n));
        }
        let (name, kind, arg) = with_own_arguments(name, arg, env)?;
        Ok(build(name, kind, arg, None))
    }

    /// Has one that heeds the order of its input keep the order of a `$sort` by itself, so that
    /// states of several inputs, each in that order, can be merged.
    pub fn over_sorted(&mut self, sort: Doc<'_>, env: &ParseEnv) -> Result<()> {
        let (bottom, single) = match self.kind {
            Kind::First => (false, true),
            Kind::Last => (true, true),
            Kind::FirstN => (false, false),
            Kind::LastN => (true, false),
            _ => return Ok(()),
        };
        self.kind = top(sort, bottom, single, env)?;
        Ok(())
    }

    /// With its `$`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A fresh state. `group`: a context whose root is the group's key (the `n` of `$firstN` may
    /// depend on it).
    pub fn start(&self, group: &EvalCtx<'_>) -> Result<Accumulator> {
        let n = match &self.n {
            Some(e) => count_of(self.name, e.evaluate(group)?.or_null())?,
            None => 1,
        };
        Ok(match &self.kind {
            Kind::Sum => Accumulator::Sum(Default::default()),
            Kind::Avg => Accumulator::Avg(Default::default()),
            Kind::Min => Accumulator::Min(None, self.collation.clone()),
            Kind::Max => Accumulator::Max(None, self.collation.clone()),
            Kind::First => Accumulator::First(None),
            Kind::Last => Accumulator::Last(None),
            Kind::Push => Accumulator::Push(Writer::new_array()),
            Kind::ConcatArrays => Accumulator::Concat(Writer::new_array()),
            Kind::AddToSet => Accumulator::Set(DistinctValues::new(self.collation.clone())),
            Kind::SetUnion => Accumulator::Union(DistinctValues::new(self.collation.clone())),
            Kind::Deviation { sample } => Accumulator::Deviation(Default::default(), *sample),
            Kind::MergeObjects => Accumulator::Merge(Default::default()),
            Kind::FirstN => Accumulator::FirstN(BoundedValues::new(n)),
            Kind::LastN => Accumulator::LastN(BoundedValues::new(n)),
            Kind::MinN => Accumulator::Bounded(
                Bounded::new(n, false, false, false).collated(self.collation.clone()),
            ),
            Kind::MaxN => Accumulator::Bounded(
                Bounded::new(n, true, true, false).collated(self.collation.clone()),
            ),
            Kind::Top { bottom, single, .. } => {
                Accumulator::Bounded(Bounded::new(n, *bottom, false, *single))
            }
            Kind::Percentile { p, single } => {
                Accumulator::Percentile(Vec::new(), p.clone(), *single)
            }
            Kind::Script(functions) => functions.start(group)?,
            Kind::Reduce(_) => Accumulator::Reduce(Default::default()),
        })
    }

    /// Evaluates the argument over a document and takes it in.
    pub fn add(&self, acc: &mut Accumulator, ctx: &EvalCtx<'_>) -> Result<()> {
        let v = self
            .arg
            .evaluate(ctx)
            .map_err(|e| e.map_error(group_code))?;
        if let Kind::Top { order, .. } = &self.kind {
            let mut key = Vec::new();
            order.sort_key(ctx.root, &mut key)?;
            acc.take_sorted(key, v.or_null());
            return Ok(());
        }
        match (&self.kind, acc) {
            (Kind::Script(f), Accumulator::Script(states)) => f.add(states, v.or_null(), ctx.vars),
            (Kind::Reduce(f), Accumulator::Reduce(r)) => match v.as_val() {
                None => Ok(()),
                Some(v) => {
                    r.take(v)?;
                    r.settle(f, ctx.vars)
                }
            },
            (_, acc) => acc.take(v.as_val()),
        }
    }

    /// What it takes of each document, where that is the value of one expression.
    pub(crate) fn only_argument(&self) -> Option<&Expression> {
        let more = matches!(
            self.kind,
            Kind::Top { .. } | Kind::Script(_) | Kind::Reduce(_)
        );
        (!more).then_some(&self.arg)
    }

    /// The path of what it takes, where it is the reduction of `mapReduce`.
    pub(crate) fn reduces(&self) -> Option<String> {
        matches!(self.kind, Kind::Reduce(_))
            .then(|| self.arg.as_path())
            .flatten()
    }

    /// As [`AccumulatorSpec::add`] of `{k, v}`, for the reduction of `mapReduce`.
    pub(crate) fn add_emitted(
        &self,
        acc: &mut Accumulator,
        k: Val<'_>,
        v: Val<'_>,
        vars: &Vars,
    ) -> Result<()> {
        match (&self.kind, acc) {
            (Kind::Reduce(f), Accumulator::Reduce(r)) => {
                r.take_pair(k, v);
                r.settle(f, vars)
            }
            _ => Err(Error::internal("not a reduction of mapReduce").into()),
        }
    }

    pub fn to_value(&self) -> Value {
        let mut w = Writer::new();
        match (&self.kind, &self.n) {
            (Kind::Script(functions), _) => functions.write(&self.arg, &mut w),
            (Kind::Reduce(f), _) => {
                w.open_doc(self.name)
                    .val("data", self.arg.to_value().as_val());
                w.str("eval", &f.source).close();
            }
            (Kind::Top { by, .. }, n) => {
                w.open_doc(self.name);
                if let Some(n) = n {
                    w.val("n", n.to_value().as_val());
                }
                w.val("output", self.arg.to_value().as_val());
                w.val("sortBy", by.spec.as_val());
                w.close();
            }
            (_, Some(n)) => {
                w.open_doc(self.name);
                w.val("n", n.to_value().as_val());
                w.val("input", self.arg.to_value().as_val());
                w.close();
            }
            (Kind::Percentile { p, single }, _) => {
                w.open_doc(self.name);
                w.val("input", self.arg.to_value().as_val());
                if !single {
                    w.open_array("p");
                    for p in p {
                        w.f64("", *p);
                    }
                    w.close();
                }
                w.str("method", "approximate").close();
            }
            _ => {
                w.val(self.name, self.arg.to_value().as_val());
            }
        }
        Value::from(w.finish())
    }

    /// The argument expressions.
    pub fn expressions(&self) -> Vec<&Expression> {
        std::iter::once(&self.arg).chain(&self.n).collect()
    }

    /// Whether of its group's documents those are enough that have the greatest value (`Some(true)`),
    /// or the least, at a path where all have values that sort.
    pub fn needs_end_of(&self, path: &str) -> Option<bool> {
        match &self.kind {
            Kind::Max if self.arg.as_path().as_deref() == Some(path) => Some(true),
            Kind::Min if self.arg.as_path().as_deref() == Some(path) => Some(false),
            Kind::Top {
                order,
                bottom,
                single: true,
                ..
            } => match order.fields.as_slice() {
                [by] if by.meta.is_none() && by.path.as_str() == path => {
                    Some(by.descending != *bottom)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Paths of the document that it reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        for e in self.expressions() {
            join_paths(&mut all, e.needed_paths());
        }
        if let (Kind::Top { by, .. }, Some(all)) = (&self.kind, &mut all) {
            all.extend(by.keys().iter().map(|(p, _)| p.to_string()));
        }
        all
    }
}

fn top(sort: Doc<'_>, bottom: bool, single: bool, env: &ParseEnv) -> Result<Kind> {
    let by = SortSpec::parse(sort)?;
    let order = SortPattern::parse(sort)?.collated(env.collation());
    Ok(Kind::Top {
        by,
        order: Box::new(order),
        bottom,
        single,
    })
}

/// The named options of an accumulator, all required. Codes: not an object, unknown, the first
/// missing (the next ones follow it).
fn options<'a, const N: usize>(
    name: &str,
    arg: Val<'a>,
    names: [&str; N],
    [not_object, unknown, missing]: [i32; 3],
) -> Result<[Val<'a>; N]> {
    let Some(d): Option<Doc<'a>> = arg.as_doc() else {
        return Err(Error::coded(
            not_object,
            format!("specification must be an object; found {name}: {arg}"),
        )
        .into());
    };
    let mut out = [None; N];
    for e in d.iter() {
        match names.iter().position(|n| *n == e.name) {
            Some(i) => out[i] = Some(e.val),
            None => {
                return Err(Error::coded(
                    unknown,
                    format!("Unknown argument for {name} operator: {}", e.name),
                )
                .into());
            }
        }
    }
    for (i, v) in out.iter().enumerate() {
        if v.is_none() {
            // 40414 is one code for whichever field is missing.
            let code = if missing == 40414 {
                missing
            } else {
                missing + i as i32
            };
            return Err(
                Error::coded(code, format!("Missing value for '{}' in {name}", names[i])).into(),
            );
        }
    }
    Ok(out.map(|v| v.unwrap_or(Val::NULL)))
}

fn check_constant_n(name: &str, n: &Expression) -> Result<()> {
    match n.constant() {
        Some(v) => count_of(name, v.as_val()).map(|_| ()),
        None => Ok(()),
    }
}

/// The `n` of an accumulator (`$group` has another code for it than the expressions of the same
/// names).
fn count_of(name: &str, v: Val<'_>) -> Result<usize> {
    crate::expr::count_of(name, v).map_err(|e| e.map_error(|e| err!(7548606, "{}", e.message)))
}

/// MongoDB runs `$group` in its other engine, which has its own numbers for two mistakes.
fn group_code(e: Error) -> Error {
    match e.message.as_str() {
        "can't $divide by zero" if e.code == Code::BadValue => err!(4848401, "{}", e.message),
        "can't $mod by zero" => err!(4848403, "{}", e.message),
        _ => e,
    }
}
