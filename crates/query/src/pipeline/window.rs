//! `$setWindowFields`: fields computed over a window of neighbours in a sorted partition.
//!
//! The input is sorted by partition and sort key, then one partition at a time is read whole; both
//! go outside memory when they are much. What a function gives for a row is made when the output
//! comes to the row.

use super::options::{field_path, object, options, required};
use super::partition::{Partition, Row};
use super::stage_memory::hold;
use super::unwind::set_path;
use super::window_function::Function;
use super::window_values::{Progress, WindowContext, heap_bytes};
use super::{IdleVisitor, PipelineHost, Share, Source, sort};
use crate::arithmetic::convert::in_message;
use crate::collation::Collation;
use crate::expr::join_paths;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::path::FieldPath;
use crate::sort::SortPattern;
use bson::{Doc, DocBuf, Val, Value, Writer, key, tag};
use errors::{Result, bail, err};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Window {
    partition: Option<Expression>,
    pub sort: Option<SortPattern>,
    outputs: Vec<Output>,
    collation: Option<Collation>,
}

#[derive(Debug)]
pub(super) struct Output {
    path: FieldPath,
    pub function: Function,
    pub frame: Frame,
}

/// The neighbours that count.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    /// Positions from the current one; `None` is unbounded.
    Documents(Option<i64>, Option<i64>),
    /// Values of the sort field.
    Range {
        lower: Edge,
        upper: Edge,
        unit: Option<Unit>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Edge {
    Unbounded,
    Current,
    By(Value),
}

/// A unit of time; its milliseconds unless it is a month or longer.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub name: String,
    pub ms: Option<i64>,
}

impl Unit {
    pub fn parse(v: Val<'_>) -> Result<Unit> {
        let name = v.as_str().unwrap_or("");
        let ms = match name {
            "week" => Some(7 * 86_400_000),
            "day" => Some(86_400_000),
            "hour" => Some(3_600_000),
            "minute" => Some(60_000),
            "second" => Some(1000),
            "millisecond" => Some(1),
            "year" | "quarter" | "month" => None,
            _ => bail!(FailedToParse, "unknown time unit value: {v}"),
        };
        Ok(Unit {
            name: name.to_string(),
            ms,
        })
    }
}

const STAGE: &str = "$setWindowFields";

impl Window {
    /// The fields that it makes.
    pub(super) fn written(&self) -> impl Iterator<Item = &FieldPath> {
        self.outputs.iter().map(|o| &o.path)
    }

    pub(super) fn partition(&self) -> Option<&Expression> {
        self.partition.as_ref()
    }

    pub(super) fn sorts_by_metadata(&self) -> bool {
        self.sort.as_ref().is_some_and(SortPattern::has_meta)
    }

    /// Paths of the input that the stage reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        if let Some(e) = &self.partition {
            join_paths(&mut all, e.needed_paths());
        }
        for f in self.sort.iter().flat_map(|s| &s.fields) {
            join_paths(&mut all, Some(BTreeSet::from([f.path.to_string()])));
        }
        for output in &self.outputs {
            join_paths(&mut all, output.function.needed_paths());
        }
        all
    }

    pub fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<Window> {
        let Some(d) = spec.as_doc() else {
            bail!(
                FailedToParse,
                "the {STAGE} stage specification must be an object, found {}",
                spec.type_name()
            );
        };
        let [partition, sort, output] = options(STAGE, d, ["partitionBy", "sortBy", "output"])?;
        let partition = partition.map(|p| Expression::parse(p, env)).transpose()?;
        // An empty object is a sort order, one that leaves all as it came.
        let ordered = sort.is_some();
        let sort = match sort {
            Some(s) => {
                let d = object(STAGE, "sortBy", s)?;
                let sort = (!d.is_empty()).then(|| SortPattern::parse(d)).transpose()?;
                sort.map(|s| s.collated(env.collation()))
            }
            None => None,
        };
        let output = object(STAGE, "output", required(STAGE, "output", output)?)?;
        let mut outputs: Vec<Output> = Vec::new();
        for e in output.iter() {
            let o = Output::parse(e.name, e.val, sort.as_ref(), ordered, env)?;
            if outputs.iter().any(|p| p.path.conflicts_with(&o.path)) {
                bail!(
                    40176,
                    "specification contains two conflicting paths: '{}'",
                    o.path
                );
            }
            outputs.push(o);
        }
        Ok(Window {
            partition,
            sort,
            outputs,
            collation: env.collation().cloned(),
        })
    }
}

impl Output {
    fn parse(
        name: &str,
        spec: Val<'_>,
        sort: Option<&SortPattern>,
        ordered: bool,
        env: &ParseEnv,
    ) -> Result<Output> {
        let path = field_path(name)?;
        let Some(d) = spec.as_doc() else {
            bail!(
                FailedToParse,
                "The field '{name}' must be a window function object"
            );
        };
        let Some(first) = d.iter().find(|e| e.name.starts_with('$')) else {
            bail!(FailedToParse, "Expected a $-prefixed window function");
        };
        let ranks = matches!(first.name, "$rank" | "$denseRank" | "$documentNumber");
        let mut frame = None;
        for e in d.iter() {
            if e.name == first.name {
                continue;
            }
            if ranks {
                bail!(
                    5371601,
                    "Rank style window functions take no other arguments"
                );
            }
            if e.name != "window" {
                bail!(
                    FailedToParse,
                    "Window function found an unknown argument: {}",
                    e.name
                );
            }
            frame = Some(Frame::parse(e.val, sort, ordered)?);
        }
        let explicit = frame.is_some();
        if first.name == "$minMaxScaler" && frame.as_ref().is_some_and(Frame::excludes_current) {
            bail!(
                FailedToParse,
                "the window of $minMaxScaler must contain the current document"
            );
        }
        let function = Function::parse(first.name, first.val, sort, explicit, env)?;
        Ok(Output {
            path,
            function,
            frame: frame.unwrap_or(Frame::Documents(None, None)),
        })
    }
}

impl Frame {
    /// Whether the row itself is never in it.
    fn excludes_current(&self) -> bool {
        let sign = |e: &Edge| match e {
            Edge::By(v) => v.as_val().to_f64().unwrap_or(0.0),
            _ => 0.0,
        };
        match self {
            Frame::Documents(lower, upper) => {
                lower.is_some_and(|n| n > 0) || upper.is_some_and(|n| n < 0)
            }
            Frame::Range { lower, upper, .. } => sign(lower) > 0.0 || sign(upper) < 0.0,
        }
    }

    fn parse(spec: Val<'_>, sort: Option<&SortPattern>, ordered: bool) -> Result<Frame> {
        let Some(d) = spec.as_doc() else {
            bail!(FailedToParse, "'window' field must be an object");
        };
        let (mut documents, mut range, mut unit) = (None, None, None);
        for e in d.iter() {
            match e.name {
                "documents" => documents = Some(bounds(e.val)?),
                "range" => range = Some(bounds(e.val)?),
                "unit" => match e.val.tag {
                    tag::STRING => unit = Some(Unit::parse(e.val)?),
                    _ => bail!(FailedToParse, "'unit' must be a string"),
                },
                n => bail!(
                    FailedToParse,
                    "'window' field can only contain 'documents' as the only argument or 'range' with an optional \
                     'unit' field; found {n}"
                ),
            }
        }
        match (documents, range) {
            (Some(_), Some(_)) => bail!(
                FailedToParse,
                "'window' field can only contain 'documents' as the only argument or 'range' with an optional 'unit' field"
            ),
            (_, None) if unit.is_some() => bail!(
                FailedToParse,
                "Window bounds can only specify 'unit' with range-based bounds."
            ),
            (Some(b), None) => Frame::of_documents(b, ordered),
            (None, Some(b)) => Frame::of_range(b, unit, sort),
            (None, None) => Ok(Frame::Documents(None, None)),
        }
    }

    fn of_documents(bounds: [Val<'_>; 2], ordered: bool) -> Result<Frame> {
        let frame = Frame::Documents(position(bounds[0])?, position(bounds[1])?);
        if let Frame::Documents(Some(l), Some(u)) = frame
            && l > u
        {
            bail!(5339900, "Lower bound must not exceed upper bound");
        }
        if !ordered && !matches!(frame, Frame::Documents(None, None)) {
            bail!(5339901, "Document-based bounds require a sortBy");
        }
        Ok(frame)
    }

    fn of_range(
        bounds: [Val<'_>; 2],
        unit: Option<Unit>,
        sort: Option<&SortPattern>,
    ) -> Result<Frame> {
        let (lower, upper) = (edge(bounds[0])?, edge(bounds[1])?);
        let zero = Value::from(0);
        let as_number = |e: &Edge| match e {
            Edge::By(v) => Some(v.clone()),
            Edge::Current => Some(zero.clone()),
            Edge::Unbounded => None,
        };
        if let (Some(l), Some(u)) = (as_number(&lower), as_number(&upper))
            && bson::order::compare(l.as_val(), u.as_val()).is_gt()
        {
            bail!(5339900, "Lower bound must not exceed upper bound");
        }
        let is_part = |e: &&Edge| matches!(e, Edge::By(v) if v.as_val().to_i64_exact().is_none());
        if unit.is_some() && [&lower, &upper].iter().any(is_part) {
            bail!(
                FailedToParse,
                "With 'unit', range-based bounds must be whole numbers"
            );
        }
        match sort.map(|s| s.fields.as_slice()) {
            Some([f]) if !f.descending => {}
            Some([_]) => bail!(8947401, "Range-based bounds require an ascending sortBy"),
            _ => bail!(
                5339902,
                "Range-based bounds require a sortBy a single field in ascending order"
            ),
        }
        Ok(Frame::Range { lower, upper, unit })
    }
}

fn bounds(v: Val<'_>) -> Result<[Val<'_>; 2]> {
    let items: Vec<Val<'_>> = v
        .as_array()
        .map(|a| a.values().collect())
        .unwrap_or_default();
    match items.as_slice() {
        [a, b] => Ok([*a, *b]),
        _ => Err(err!(
            FailedToParse,
            "Window bounds must be a 2-element array: {v}"
        )
        .into()),
    }
}

fn position(v: Val<'_>) -> Result<Option<i64>> {
    match (v.as_str(), v.to_i64_exact()) {
        (Some("unbounded"), _) => Ok(None),
        (Some("current"), _) => Ok(Some(0)),
        // An integer of 32 bits, of whatever type.
        (_, Some(n)) if i32::try_from(n).is_ok() => Ok(Some(n)),
        _ => Err(err!(
            FailedToParse,
            "Numeric document-based bounds must be an integer: {}",
            in_message(v)
        )
        .into()),
    }
}

fn edge(v: Val<'_>) -> Result<Edge> {
    match v.as_str() {
        Some("unbounded") => Ok(Edge::Unbounded),
        Some("current") => Ok(Edge::Current),
        _ if v.is_number() => Ok(Edge::By(v.to_value())),
        _ => Err(err!(
            FailedToParse,
            "Range-based bounds expression must be a number: {v}"
        )
        .into()),
    }
}

pub(super) struct Run {
    input: sort::Run,
    spec: Arc<Window>,
    vars: Arc<Vars>,
    /// The partition that is read or given, and the start of its keys.
    rows: Partition,
    partition: Vec<u8>,
    /// The partition is whole: it ends here, or with it the input.
    whole: bool,
    /// The row that was read last, while it is not in the partition: in the end the first of the
    /// next one.
    next: Option<(Vec<u8>, Row)>,
    ended: bool,
    /// The row to be given next, and its values so far.
    at: usize,
    values: Vec<Value>,
    /// Of each output.
    progress: Vec<Progress>,
    /// For what those and the values hold, which can go nowhere.
    share: Option<Share>,
    out: Vec<u8>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Window>, vars: Arc<Vars>) -> Run {
        let order = sort::Order::Window(spec.clone(), vars.clone());
        Run {
            input: sort::Run::new(input, order, None),
            progress: spec.outputs.iter().map(|_| Progress::default()).collect(),
            share: None,
            spec,
            vars,
            rows: Partition::default(),
            partition: Vec::new(),
            whole: false,
            next: None,
            ended: false,
            at: 0,
            values: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Reads until the partition is whole.
    fn fill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while !self.whole {
            if self.next.is_none() {
                if !self.input.advance(host)? {
                    (self.whole, self.ended) = (true, true);
                    break;
                }
                let (partition, key) = self.spec.split(self.input.key());
                let (partition, key) = (partition.to_vec(), key.to_vec());
                let doc = DocBuf::from_vec(self.input.take())
                    .ok_or_else(|| errors::Error::internal("a sorted document is damaged"))?;
                self.next = Some((partition, Row { key, doc }));
            }
            let Some((partition, row)) = &self.next else {
                break;
            };
            if self.rows.len() > 0 && *partition != self.partition {
                self.whole = true;
                break;
            }
            // An interruption there leaves the row where it is.
            self.rows.prepare(row, host)?;
            if let Some((partition, row)) = self.next.take() {
                self.partition = partition;
                self.rows.push(row)?;
            }
        }
        Ok(())
    }

    /// On to the next partition; false when there is none.
    fn turn(&mut self) -> bool {
        self.rows.clear();
        self.at = 0;
        self.progress.fill_with(Progress::default);
        self.share = None;
        self.whole = false;
        !self.ended
    }
}

impl Window {
    /// Writes what rows are sorted by: their partition, then their sort key.
    pub fn order(&self, doc: Doc<'_>, vars: &Vars, out: &mut Vec<u8>) -> Result<()> {
        if let Some(e) = &self.partition {
            let ctx = EvalCtx::new(doc, vars);
            let v = e.evaluate(&ctx)?;
            let v = v.or_null();
            if v.tag == tag::ARRAY {
                bail!(
                    TypeMismatch,
                    "An expression used to partition cannot evaluate to value of type array"
                );
            }
            Collation::with(self.collation.as_ref(), v, |v| {
                key::encode(v, false, out, None)
            });
        }
        match &self.sort {
            Some(s) => s.sort_key(doc, out),
            None => Ok(()),
        }
    }

    /// The two parts of that.
    fn split<'k>(&self, key: &'k [u8]) -> (&'k [u8], &'k [u8]) {
        let end = match self.partition {
            Some(_) => key::field_len(key, false).unwrap_or(0).min(key.len()),
            None => 0,
        };
        key.split_at(end)
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            self.fill(host)?;
            host.check()?;
            if self.at < self.rows.len() {
                break;
            }
            if !self.turn() {
                return Ok(false);
            }
        }
        let values = self.values.iter().map(heap_bytes);
        let mut held = values
            .chain(self.progress.iter().map(Progress::bytes))
            .sum();
        loop {
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, held, host, STAGE)?;
            // After an interruption the first of them are there already.
            let n = self.values.len();
            let next = self.spec.outputs.get(n).zip(self.progress.get_mut(n));
            let Some((output, progress)) = next else {
                break;
            };
            let around = WindowContext {
                sort: self.spec.sort.as_ref(),
                vars: &self.vars,
                limit: host.memory_limit(),
                others: held - progress.bytes(),
            };
            held = around.others;
            let value = progress.value(self.at, output, &mut self.rows, &around)?;
            held += progress.bytes();
            if let Some(value) = value {
                held += heap_bytes(&value);
                self.values.push(value);
            }
        }
        let Some(row) = self.rows.row(self.at)? else {
            return Ok(false);
        };
        let mut doc = row.doc.as_bytes().to_vec();
        for (o, v) in self.spec.outputs.iter().zip(self.values.drain(..)) {
            let mut w = Writer::with_capacity(doc.len() + v.as_val().bytes.len() + 16);
            set_path(
                &mut w,
                Doc::new(&doc).unwrap_or(Doc::EMPTY),
                &o.path,
                0,
                Some(v.as_val()),
            );
            doc = w.finish_into();
        }
        self.out = doc;
        self.at += 1;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        if let Some((_, row)) = &mut self.next {
            super::show_doc(&mut row.doc, true, to)?;
        }
        to.doc(&mut self.out, wanted)
    }
}
