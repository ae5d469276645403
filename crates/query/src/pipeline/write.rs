//! `$out` and `$merge`: what they want written. The host writes.

use super::options::{field_path, options, required, string, wrong_type};
use super::parse::{ParseCtx, parse_transforms};
use super::{IdleVisitor, Namespace, PipelineHost, Source};
use crate::collation::Collation;
use crate::expr::{Expression, Vars};
use crate::path::FieldPath;
use crate::transform::Transform;
use bson::{Doc, DocBuf, Val, tag};
use errors::{Result, bail, err};
use std::sync::Arc;

/// A parsed `$out`.
#[derive(Clone, Debug)]
pub struct OutSpec {
    pub target: Namespace,
    /// Options of a time-series collection, checked as far as their types go.
    pub timeseries: Option<DocBuf>,
}

/// What `$merge` does with a document that is there.
#[derive(Clone, Debug)]
pub enum Matched {
    Replace,
    KeepExisting,
    Merge,
    Fail,
    /// Over the document that is there; `$$new` is the one that comes.
    Pipeline(Vec<Transform>),
}

/// What `$merge` does with a document that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMatched {
    Insert,
    Discard,
    Fail,
}

/// A parsed `$merge`.
#[derive(Clone, Debug)]
pub struct MergeSpec {
    pub target: Namespace,
    /// Fields that identify a document; `_id` when none are given.
    pub on: Vec<FieldPath>,
    pub when_matched: Matched,
    pub when_not_matched: NotMatched,
    /// Variables of the pipeline, over the document that comes.
    lets: Vec<(String, Expression)>,
    /// How incoming documents are compared with existing ones.
    pub collation: Option<Collation>,
    /// The server has a part of the target only: see [`PipelineHost::merge_apart`].
    apart: bool,
}

/// What comes of a part of a `$merge`.
#[derive(Debug)]
pub enum MergePartStep {
    /// A document that another server writes.
    Elsewhere(DocBuf),
    /// Enough was written for one batch.
    Pause,
    /// There are no more documents.
    End,
}

impl MergeSpec {
    /// The same where the server has a part of the target only.
    pub(super) fn apart(&self) -> MergeSpec {
        MergeSpec {
            apart: true,
            ..self.clone()
        }
    }

    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// The variables for one document that comes: those of `let` and `$$new`.
    pub fn bind(&self, new: Doc<'_>, vars: &Arc<Vars>) -> Result<Arc<Vars>> {
        let bound = super::lookup::bind(&self.lets, new, vars)?;
        if let Some((n, _)) = self.lets.iter().find(|(n, _)| bound.get(n).is_none()) {
            bail!(17276, "Use of undefined variable: {n}");
        }
        if self.lets.iter().any(|(n, _)| n == "new") {
            return Ok(bound);
        }
        let mut v = (*bound).clone();
        v.set("new", bson::Value::from(new));
        Ok(Arc::new(v))
    }
}

fn check_db(db: &str) -> Result<()> {
    if db.is_empty() || db.len() >= 64 || db.contains(['.', ' ', '/', '\\', '"', '$', '\0']) {
        bail!(InvalidNamespace, "Invalid db name: {db}");
    }
    Ok(())
}

fn check_coll(db: &str, coll: &str) -> Result<()> {
    if coll.is_empty() || coll.starts_with('.') || coll.contains('\0') {
        bail!(
            InvalidNamespace,
            "Invalid namespace specified '{db}.{coll}'"
        );
    }
    Ok(())
}

/// The collection that `$out` names, and its options of a time series.
pub(super) fn out_target<'a>(spec: Val<'a>, db: &str) -> Result<(Namespace, Option<Doc<'a>>)> {
    const STAGE: &str = "$out";
    let (db, coll, timeseries) = match spec.tag {
        tag::STRING => (db, spec.as_str().unwrap_or(""), None),
        tag::DOCUMENT => {
            let d = spec.as_doc().unwrap_or(Doc::EMPTY);
            let [db, coll, timeseries] = options(STAGE, d, ["db", "coll", "timeseries"])?;
            let coll = string(STAGE, "coll", required(STAGE, "coll", coll)?)?;
            let db = string(STAGE, "db", required(STAGE, "db", db)?)?;
            if let Some(t) = timeseries {
                check_timeseries(t)?;
            }
            (db, coll, timeseries.and_then(|t| t.as_doc()))
        }
        t => bail!(
            16990,
            "$out only supports a string or object argument, but found {}",
            tag::name(t)
        ),
    };
    check_db(db)?;
    check_coll(db, coll)?;
    if coll.starts_with("system.") {
        bail!(17385, "Can't $out to special collection: {coll}");
    }
    if matches!(db, "admin" | "config" | "local") {
        bail!(31321, "Can't $out to internal database: {db}");
    }
    if coll.starts_with('$') || db.len() + 1 + coll.len() > 255 {
        bail!(
            IllegalOperation,
            "error with target namespace: Invalid collection name: {coll}"
        );
    }
    Ok((Namespace::new(db, coll), timeseries))
}

impl OutSpec {
    pub(super) fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<OutSpec> {
        let (target, timeseries) = out_target(spec, &ctx.db)?;
        Ok(OutSpec {
            target,
            timeseries: timeseries.map(Doc::to_buf),
        })
    }
}

/// Doubles are cut off, decimals rounded to even.
fn whole_seconds(v: Val<'_>) -> Option<i64> {
    match v.as_decimal() {
        Some(_) => v.to_f64().map(|n| n.round_ties_even() as i64),
        None => v.to_i64_truncated(),
    }
}

fn check_timeseries(v: Val<'_>) -> Result<()> {
    const MERGE: &str = "$out.timeseries";
    let Some(d) = v.as_doc() else {
        return Err(wrong_type("$out", "timeseries", v, "object").into());
    };
    let [time, meta, granularity, span, rounding] = options(
        MERGE,
        d,
        [
            "timeField",
            "metaField",
            "granularity",
            "bucketMaxSpanSeconds",
            "bucketRoundingSeconds",
        ],
    )?;
    string(MERGE, "timeField", required(MERGE, "timeField", time)?)?;
    if let Some(m) = meta {
        string(MERGE, "metaField", m)?;
    }
    if let Some(g) = granularity {
        let g = string(MERGE, "granularity", g)?;
        if !matches!(g, "seconds" | "minutes" | "hours") {
            bail!(
                BadValue,
                "Enumeration value '{g}' for field '{MERGE}.granularity' is not a valid value."
            );
        }
    }
    for (name, v) in [
        ("bucketMaxSpanSeconds", span),
        ("bucketRoundingSeconds", rounding),
    ] {
        let Some(v) = v else { continue };
        if !v.is_number() {
            return Err(wrong_type(MERGE, name, v, "[int, decimal, double, long]").into());
        }
        let n = whole_seconds(v).unwrap_or(0);
        if !(1..=31_536_000).contains(&n) {
            bail!(
                BadValue,
                "BSON field '{name}' value must be >= 1 and <= 31536000, actual value '{n}'"
            );
        }
    }
    let custom = span.is_some() || rounding.is_some();
    if granularity.is_some() && custom
        || span.is_some() != rounding.is_some()
        || span.and_then(whole_seconds) != rounding.and_then(whole_seconds)
    {
        bail!(
            InvalidOptions,
            "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set together to the same value, and \
             without 'granularity'"
        );
    }
    Ok(())
}

const MERGE: &str = "$merge";

/// `$merge` as it is written.
pub(super) struct MergeWritten<'a> {
    into: Val<'a>,
    /// It is no more than the name of a collection.
    short: bool,
    on: Option<Val<'a>>,
    lets: Option<Val<'a>>,
    matched: Option<Val<'a>>,
    not_matched: Option<Val<'a>>,
}

impl<'a> MergeWritten<'a> {
    pub fn parse(spec: Val<'a>) -> Result<MergeWritten<'a>> {
        let (into, on, lets, matched, not_matched) = match spec.tag {
            tag::STRING => (spec, None, None, None, None),
            tag::DOCUMENT => {
                let d = spec.as_doc().unwrap_or(Doc::EMPTY);
                let [_, _, lets, _, not_matched] = options(
                    MERGE,
                    d,
                    ["into", "on", "let", "whenMatched", "whenNotMatched"],
                )?;
                // These tell null from left out.
                let into = required(MERGE, "into", d.get("into"))?;
                (into, d.get("on"), lets, d.get("whenMatched"), not_matched)
            }
            _ => bail!(
                TypeMismatch,
                "{MERGE} requires a string or object argument, but found {}",
                spec.type_name()
            ),
        };
        Ok(MergeWritten {
            into,
            short: spec.tag == tag::STRING,
            on,
            lets,
            matched,
            not_matched,
        })
    }

    pub fn target(&self, db: &str) -> Result<Namespace> {
        parse_into(self.into, self.short, db)
    }

    /// Whether it may change a document of its target.
    pub fn updates(&self) -> Result<bool> {
        let mode = self.matched.map(Mode::parse).transpose()?;
        Ok(!matches!(mode, Some(Mode::Fail | Mode::KeepExisting)))
    }

    /// Whether it may insert one.
    pub fn inserts(&self) -> Result<bool> {
        Ok(parse_not_matched(self.not_matched)? == NotMatched::Insert)
    }
}

impl MergeSpec {
    pub(super) fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<MergeSpec> {
        let written = MergeWritten::parse(spec)?;
        let target = written.target(&ctx.db)?;
        let MergeWritten {
            on,
            lets,
            matched,
            not_matched,
            ..
        } = written;
        let on = parse_on(on)?;
        if let Some(l) = lets.filter(|l| l.tag != tag::DOCUMENT) {
            return Err(wrong_type(MERGE, "let", l, "object").into());
        }
        let when_not_matched = parse_not_matched(not_matched)?;
        let (when_matched, parsed_lets) = parse_matched(matched, lets, ctx)?;
        if lets.is_some() && !matches!(when_matched, Matched::Pipeline(_)) {
            bail!(
                51199,
                "Cannot use 'let' variables with 'whenMatched' mode that is not a pipeline"
            );
        }
        if matches!(when_matched, Matched::KeepExisting | Matched::Fail)
            && when_not_matched != NotMatched::Insert
        {
            bail!(
                51181,
                "Combination of {MERGE} modes 'whenMatched' and 'whenNotMatched' is not supported"
            );
        }
        Ok(MergeSpec {
            target,
            on,
            when_matched,
            when_not_matched,
            lets: parsed_lets,
            collation: ctx.env.collation().cloned(),
            apart: false,
        })
    }
}

fn parse_not_matched(not_matched: Option<Val<'_>>) -> Result<NotMatched> {
    Ok(match not_matched {
        None => NotMatched::Insert,
        Some(v) => match string(MERGE, "whenNotMatched", v)? {
            "insert" => NotMatched::Insert,
            "discard" => NotMatched::Discard,
            "fail" => NotMatched::Fail,
            m => bail!(
                BadValue,
                "Enumeration value '{m}' for field '$merge.whenNotMatched' is not a valid value."
            ),
        },
    })
}

/// `whenMatched` as it is written.
enum Mode<'a> {
    Replace,
    KeepExisting,
    Merge,
    Fail,
    Pipeline(Doc<'a>),
}

impl<'a> Mode<'a> {
    fn parse(v: Val<'a>) -> Result<Mode<'a>> {
        if let Some(stages) = v.as_array() {
            return Ok(Mode::Pipeline(stages));
        }
        let Some(mode) = v.as_str() else {
            bail!(
                51191,
                "$merge 'whenMatched' field must be either a string or an array, but found {}",
                v.type_name()
            );
        };
        Ok(match mode {
            "replace" => Mode::Replace,
            "keepExisting" => Mode::KeepExisting,
            "merge" => Mode::Merge,
            "fail" => Mode::Fail,
            m => bail!(
                BadValue,
                "Enumeration value '{m}' for field '$merge.whenMatched' is not a valid value."
            ),
        })
    }
}

/// `whenMatched`, and the variables of `let` where it is a pipeline.
fn parse_matched(
    matched: Option<Val<'_>>,
    lets: Option<Val<'_>>,
    ctx: &ParseCtx,
) -> Result<(Matched, Vec<(String, Expression)>)> {
    let mut parsed_lets = Vec::new();
    let when_matched = match matched.map(Mode::parse).transpose()? {
        None | Some(Mode::Merge) => Matched::Merge,
        Some(Mode::Replace) => Matched::Replace,
        Some(Mode::KeepExisting) => Matched::KeepExisting,
        Some(Mode::Fail) => Matched::Fail,
        Some(Mode::Pipeline(stages)) => {
            let mut env = ctx.env.clone();
            for e in lets.and_then(|l| l.as_doc()).unwrap_or(Doc::EMPTY).iter() {
                if e.name == "new" && e.val.as_str() != Some("$$ROOT") {
                    bail!(
                        51273,
                        "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'"
                    );
                }
                env.define(e.name)?;
                parsed_lets.push((e.name.to_string(), Expression::parse(e.val, &ctx.env)?));
            }
            if lets.is_none() || !env.knows("new") {
                env.define("new")?;
            }
            Matched::Pipeline(parse_transforms(stages, &env)?)
        }
    };
    Ok((when_matched, parsed_lets))
}

fn parse_into(into: Val<'_>, short: bool, own: &str) -> Result<Namespace> {
    const STAGE: &str = "$merge.into";
    let (db, coll) = match into.tag {
        tag::STRING => {
            let coll = into.as_str().unwrap_or("");
            if coll.is_empty() && !short {
                bail!(5786800, "{STAGE} must be a non-empty string or an object");
            }
            (own, coll)
        }
        tag::DOCUMENT => {
            let d = into.as_doc().unwrap_or(Doc::EMPTY);
            let [db, coll] = options(STAGE, d, ["db", "coll"])?;
            let db = match db {
                Some(v) if v.as_str() != Some("") => string(STAGE, "db", v)?,
                _ => own,
            };
            let Some(coll) = coll else {
                bail!(5786801, "{STAGE} requires a 'coll' field");
            };
            (db, string(STAGE, "coll", coll)?)
        }
        t => bail!(
            51178,
            "$merge 'into' field must be either a string or an object, but found {}",
            tag::name(t)
        ),
    };
    check_db(db)?;
    check_coll(db, coll)?;
    if coll.starts_with("system.") {
        bail!(31319, "Cannot $merge to special collection: {coll}");
    }
    if matches!(db, "admin" | "config" | "local") {
        bail!(31320, "Cannot $merge to internal database: {db}");
    }
    Ok(Namespace::new(db, coll))
}

fn parse_on(on: Option<Val<'_>>) -> Result<Vec<FieldPath>> {
    let Some(on) = on else {
        return Ok(vec![FieldPath::new("_id")]);
    };
    match on.tag {
        tag::STRING => Ok(vec![field_path(on.as_str().unwrap_or(""))?]),
        tag::ARRAY => {
            let items = on.as_array().unwrap_or(Doc::EMPTY);
            if items.is_empty() {
                bail!(
                    51187,
                    "If explicitly specifying $merge 'on', must include at least one field"
                );
            }
            let mut out: Vec<FieldPath> = Vec::new();
            for v in items.values() {
                let path = v.as_str().ok_or_else(|| {
                    err!(
                        51134,
                        "$merge 'on' array elements must be strings, but found {}",
                        v.type_name()
                    )
                })?;
                let path = field_path(path)?;
                if out.contains(&path) {
                    bail!(31465, "Found a duplicate field '{path}'");
                }
                out.push(path);
            }
            Ok(out)
        }
        t => bail!(
            51186,
            "$merge 'on' field must be either a string or an array of strings, but found {}",
            tag::name(t)
        ),
    }
}

pub(super) struct Out {
    input: Option<Box<dyn Source>>,
    spec: Arc<OutSpec>,
}

impl Out {
    pub fn new(input: Box<dyn Source>, spec: Arc<OutSpec>) -> Out {
        Out {
            input: Some(input),
            spec,
        }
    }
}

impl Source for Out {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if let Some(input) = &mut self.input {
            host.out(&self.spec, &mut **input)?;
            self.input = None;
        }
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::EMPTY
    }

    fn parts(&mut self, _wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)
    }
}

pub(super) struct Merge {
    input: Option<Box<dyn Source>>,
    spec: Arc<MergeSpec>,
    vars: Arc<Vars>,
}

impl Merge {
    pub fn new(input: Box<dyn Source>, spec: Arc<MergeSpec>, vars: Arc<Vars>) -> Merge {
        Merge {
            input: Some(input),
            spec,
            vars,
        }
    }
}

impl Source for Merge {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if let Some(input) = &mut self.input {
            host.merge(&self.spec, &mut **input, &self.vars)?;
            self.input = None;
        }
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::EMPTY
    }

    fn parts(&mut self, _wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)
    }
}

/// `$merge` where the server has a part of the target only: gives the documents that others write.
pub(super) struct MergeApart {
    input: Box<dyn Source>,
    spec: Arc<MergeSpec>,
    vars: Arc<Vars>,
    current: DocBuf,
}

impl MergeApart {
    pub fn new(input: Box<dyn Source>, spec: Arc<MergeSpec>, vars: Arc<Vars>) -> MergeApart {
        MergeApart {
            input,
            spec,
            vars,
            current: DocBuf::new(),
        }
    }
}

impl Source for MergeApart {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let next = host.merge_apart(&self.spec, &mut *self.input, &self.vars)?;
        let (doc, more) = match next {
            MergePartStep::Elsewhere(doc) => (doc, true),
            MergePartStep::Pause => (DocBuf::new(), true),
            MergePartStep::End => (DocBuf::new(), false),
        };
        self.current = doc;
        Ok(more)
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        super::show_doc(&mut self.current, wanted, to)
    }
}
