//! `$lookup`: by equality of two fields, by a pipeline with variables, or both.

use super::lookup_batch::{Batch, BatchedJoin, Joins};
use super::lookup_table::{JoinedCollection, Joiner, Matches, is_exact, may_have_table};
use super::lookup_unwind;
use super::narrow::Names;
use super::options::{field_path, object, options, required, string, wrong_type};
use super::parse::{Inside, ParseCtx};
use super::stage_memory::hold;
use super::unwind::{Unwind, set_path};
use super::{IdleVisitor, Namespace, Op, Pipeline, PipelineHost, Share, Source, Stage};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, Vars};
use crate::filter::{Filter, InList, Node, Test};
use crate::metadata::Metadata;
use crate::path::{FieldPath, array_index};
use bson::{Doc, Val, Value, Writer, order, tag};
use errors::{Result, bail};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    /// Nothing when the pipeline makes its own documents.
    pub from: Option<Namespace>,
    pub as_: FieldPath,
    /// Of the input, and of the joined documents.
    pub fields: Option<(FieldPath, FieldPath)>,
    pub lets: Vec<(String, Expression)>,
    pub pipeline: Pipeline,
    pub collation: Option<Collation>,
    /// The `$unwind` of its array, which it does itself (see `lookup_unwind`).
    pub unwinding: Option<Arc<Unwind>>,
}

/// A collection's name as a stage gives it: in the database of the pipeline.
pub(super) fn collection(db: &str, name: &str) -> Result<Namespace> {
    if name.is_empty() || name.starts_with('.') || name.contains('\0') {
        bail!(
            InvalidNamespace,
            "Invalid namespace specified '{db}.{name}'"
        );
    }
    Ok(Namespace::new(db, name))
}

/// Whether a pipeline brings documents of its own.
pub(super) fn starts_with_documents(pipeline: Option<Val<'_>>) -> bool {
    pipeline
        .and_then(|p| p.as_array())
        .and_then(|a| a.values().next())
        .and_then(|s| s.as_doc())
        .is_some_and(|s| s.first().is_some_and(|e| e.name == "$documents"))
}

const STAGE: &str = "$lookup";

/// The collection that `from` names; none where the inner pipeline brings documents of its own.
fn parse_from(d: Doc<'_>, db: &str) -> Result<Option<Namespace>> {
    let documents = starts_with_documents(d.get("pipeline"));
    match d.get("from") {
        Some(v) if v.tag == tag::STRING => {
            let name = v.as_str().unwrap_or("");
            if documents && !name.is_empty() {
                bail!(
                    InvalidNamespace,
                    "$documents must be run in a $lookup without 'from'"
                );
            }
            Ok(Some(collection(db, name)?))
        }
        Some(v) if v.tag == tag::DOCUMENT => {
            let [db, coll] = options("$lookup.from", object(STAGE, "from", v)?, ["db", "coll"])?;
            for (name, v) in [("db", db), ("coll", coll)] {
                if let Some(v) = v {
                    string("$lookup.from", name, v)?;
                }
            }
            bail!(
                FailedToParse,
                "$lookup with syntax {{from: {{db:<>, coll:<>}},..}} is not supported for db: {} and coll: {}",
                db.unwrap_or(Val::NULL),
                coll.unwrap_or(Val::NULL)
            );
        }
        Some(v) if v.tag != tag::NULL => bail!(
            FailedToParse,
            "$lookup 'from' field must be a string, but found {}",
            v.type_name()
        ),
        _ if documents => Ok(None),
        _ => bail!(
            FailedToParse,
            "must specify 'pipeline' when 'from' is empty; missing 'from' option to $lookup stage specification: {d}"
        ),
    }
}

/// The stage as it is written: what it names, and its other options.
pub(super) struct Written<'a> {
    pub from: Option<Namespace>,
    pub pipeline: Option<Val<'a>>,
    as_: Option<Val<'a>>,
    local: Option<Val<'a>>,
    foreign: Option<Val<'a>>,
    lets: Option<Val<'a>>,
}

impl<'a> Written<'a> {
    pub fn parse(spec: Val<'a>, db: &str) -> Result<Written<'a>> {
        let Some(d) = spec.as_doc() else {
            bail!(
                FailedToParse,
                "the $lookup stage specification must be an object, but found {}",
                spec.type_name()
            );
        };
        let from = parse_from(d, db)?;
        // `_internal…` options do not come from users.
        let names = [
            "as",
            "localField",
            "foreignField",
            "let",
            "pipeline",
            "from",
        ];
        let [as_, local, foreign, lets, pipeline, _] = options(STAGE, d, names)?;
        if let Some(v) = d.get("pipeline").filter(|v| v.tag == tag::NULL) {
            return Err(wrong_type(STAGE, "pipeline", v, "array").into());
        }
        Ok(Written {
            from,
            pipeline,
            as_,
            local,
            foreign,
            lets,
        })
    }
}

impl Lookup {
    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<Lookup> {
        let Written {
            from,
            pipeline,
            as_,
            local,
            foreign,
            lets,
        } = Written::parse(spec, &ctx.db)?;
        let as_ = field_path(string(STAGE, "as", required(STAGE, "as", as_)?)?)?;
        let path = |name, v: Option<Val<'_>>| -> Result<Option<FieldPath>> {
            // MongoDB takes an empty name for none.
            let name = v.map(|v| string(STAGE, name, v)).transpose()?;
            name.filter(|n| !n.is_empty()).map(field_path).transpose()
        };
        let fields = match (path("localField", local)?, path("foreignField", foreign)?) {
            (Some(l), Some(f)) => Some((l, f)),
            (None, None) => None,
            _ => bail!(
                FailedToParse,
                "$lookup requires both or neither of 'localField' and 'foreignField' to be specified"
            ),
        };
        if let Some(l) = lets {
            object(STAGE, "let", l)?;
            if pipeline.is_none() {
                bail!(
                    FailedToParse,
                    "$lookup with a 'let' argument must also specify 'pipeline'"
                );
            }
        }
        if pipeline.is_none() && fields.is_none() {
            bail!(
                FailedToParse,
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified"
            );
        }
        let mut env = ctx.env.clone();
        let lets = parse_lets(lets, ctx, &mut env)?;
        let pipeline = match pipeline {
            Some(p) => {
                let inner = ctx.inside(Inside::Lookup, from.as_ref(), env);
                Pipeline::parse(p, &inner)?
            }
            None => Pipeline::default(),
        };
        Ok(Lookup {
            from,
            as_,
            fields,
            lets,
            pipeline,
            collation: ctx.env.collation().cloned(),
            unwinding: None,
        })
    }

    /// Paths of the input that the stage reads.
    pub fn needed(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(Default::default());
        for (_, e) in &self.lets {
            crate::expr::join_paths(&mut all, e.needed_paths());
        }
        if let (Some((local, _)), Some(all)) = (&self.fields, &mut all) {
            all.insert(local.to_string());
        }
        all
    }

    /// The fields of joined documents that are read, if these paths are read behind the stage; `None`:
    /// all. A number may be a place in the array.
    pub(super) fn read_of_joined(&self, paths: Option<&BTreeSet<String>>) -> Option<Names> {
        let mut below = BTreeSet::new();
        for path in paths?.iter().map(|p| FieldPath::new(p)) {
            if path.starts_with(&self.as_) {
                let name = path.part(self.as_.len());
                if name.is_empty() || array_index(name).is_some() {
                    return None;
                }
                below.insert(name.to_string());
            } else if self.as_.starts_with(&path) {
                return None;
            }
        }
        Some(Names::of(&below))
    }

    /// The stage on top of `input`. `read`: as [`Joiner::new`].
    pub(super) fn attach(
        self: &Arc<Lookup>,
        input: Box<dyn Source>,
        vars: Arc<Vars>,
        read: Option<Names>,
    ) -> Box<dyn Source> {
        let batch = Batch::default();
        let joiner = Joiner::new(self.clone(), read, batch.clone());
        let input: Box<dyn Source> = match may_have_table(self) && self.from.is_some() {
            true => Box::new(BatchedJoin::new(input, self.clone(), vars.clone(), batch)),
            false => input,
        };
        match &self.unwinding {
            None => Box::new(Run::new(input, joiner, self.clone(), vars)),
            Some(u) => Box::new(lookup_unwind::Run::new(
                input,
                joiner,
                self,
                u.clone(),
                vars,
            )),
        }
    }

    /// What there is to join to `doc`.
    pub fn open(
        &self,
        doc: Doc<'_>,
        host: &mut dyn PipelineHost,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>> {
        let vars = bind(&self.lets, doc, vars)?;
        let pipeline = match &self.fields {
            Some((local, foreign)) => {
                let filter = Filter::from_node(equals_any(
                    foreign,
                    join_values(doc, local),
                    self.collation.as_ref(),
                ));
                if self.from.is_none() {
                    // After the documents that the pipeline makes.
                    let mut p = self.pipeline.clone();
                    let filter = Pipeline::from_filter(filter);
                    p.stages.splice(1..1, filter.stages);
                    p
                } else {
                    self.pipeline.after(filter)
                }
            }
            None => self.pipeline.clone(),
        };
        match &self.from {
            Some(ns) => host.open(ns, &pipeline, &vars),
            None => Ok(pipeline.run_alone(&vars)),
        }
    }

    /// The result is the same for every input document.
    pub fn is_independent(&self) -> bool {
        let samples = |s: &Stage| matches!(s.op, Op::Sample(_));
        self.lets.is_empty() && self.fields.is_none() && !self.pipeline.stages.iter().any(samples)
    }
}

impl Joins for Lookup {
    const STAGE: &'static str = STAGE;
    // A document that has values of two queries would come twice.
    const MOST_VALUES: usize = usize::MAX;

    fn from(&self) -> Option<(&Namespace, &FieldPath)> {
        let (_, foreign) = self.fields.as_ref()?;
        Some((self.from.as_ref()?, foreign))
    }

    fn gains(&self, there: &JoinedCollection) -> bool {
        there.indexed
    }

    fn values(&self, doc: Doc<'_>, _: &Arc<Vars>) -> Result<Vec<Value>> {
        let Some((local, _)) = &self.fields else {
            return Ok(Vec::new());
        };
        let values = join_values(doc, local).into_iter();
        Ok(values.filter(|v| is_exact(*v)).map(Val::to_value).collect())
    }

    fn query(&self, values: Vec<Val<'_>>) -> Pipeline {
        match &self.fields {
            Some((_, foreign)) => {
                let filter = Filter::from_node(equals_any(foreign, values, None));
                self.pipeline.after(filter)
            }
            None => self.pipeline.clone(),
        }
    }

    fn leads_to<'d>(&self, _: Doc<'d>) -> Vec<Val<'d>> {
        Vec::new()
    }

    fn most_steps(&self) -> Option<i64> {
        Some(0)
    }
}

/// Parses variables, each in the scope outside, and makes their names known.
pub(super) fn parse_lets(
    lets: Option<Val<'_>>,
    ctx: &ParseCtx,
    env: &mut crate::expr::ParseEnv,
) -> Result<Vec<(String, Expression)>> {
    let mut out = Vec::new();
    for e in lets.and_then(|l| l.as_doc()).unwrap_or(Doc::EMPTY).iter() {
        env.define(e.name)?;
        out.push((e.name.to_string(), Expression::parse(e.val, &ctx.env)?));
    }
    Ok(out)
}

/// The variables with those of `lets` over `doc`.
pub(super) fn bind(
    lets: &[(String, Expression)],
    doc: Doc<'_>,
    vars: &Arc<Vars>,
) -> Result<Arc<Vars>> {
    if lets.is_empty() {
        return Ok(vars.clone());
    }
    let mut inner = (**vars).clone();
    let ctx = EvalCtx::new(doc, vars);
    for (name, e) in lets {
        inner.define(name, e.evaluate(&ctx)?.into_value());
    }
    Ok(Arc::new(inner))
}

/// The values at a path that a join looks up: through arrays on the way, and of an array at the end
/// its elements.
pub(super) fn join_values<'a>(doc: Doc<'a>, path: &FieldPath) -> Vec<Val<'a>> {
    fn walk<'a>(v: Val<'a>, path: &FieldPath, depth: usize, out: &mut Vec<Val<'a>>) {
        if depth == path.len() {
            match v.as_array() {
                Some(a) => out.extend(a.values()),
                None => out.push(v),
            }
            return;
        }
        match v.tag {
            tag::DOCUMENT => {
                if let Some(f) = v.as_doc().and_then(|d| d.get(path.part(depth))) {
                    walk(f, path, depth + 1, out);
                }
            }
            tag::ARRAY => {
                let items = v.as_array().unwrap_or(Doc::EMPTY);
                if let Some(i) = path.index(depth)
                    && let Some(f) = items.values().nth(i as usize)
                {
                    walk(f, path, depth + 1, out);
                }
                for item in items.values().filter(|i| i.tag == tag::DOCUMENT) {
                    walk(item, path, depth, out);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(doc.as_val(), path, 0, &mut out);
    out
}

/// Documents whose `path` equals one of the values; of none, those where it is null or missing.
pub(super) fn equals_any(
    path: &FieldPath,
    values: Vec<Val<'_>>,
    collation: Option<&Collation>,
) -> Node {
    let mut values: Vec<Value> = values.into_iter().map(Val::to_value).collect();
    values.sort_by(|a, b| order::compare(a.as_val(), b.as_val()));
    values.dedup_by(|a, b| order::compare(a.as_val(), b.as_val()) == Ordering::Equal);
    let pred = |test: Test| Node::Pred {
        path: path.clone(),
        test: test.collate(collation),
    };
    // A regular expression is a value like others here. Among a list, written down for another server,
    // it would be one that texts match.
    let (patterns, mut values): (Vec<Value>, Vec<Value>) = values
        .into_iter()
        .partition(|v| v.as_val().tag == tag::REGEX);
    let mut any: Vec<Node> = patterns.into_iter().map(|p| pred(Test::Eq(p))).collect();
    match values.len() {
        0 if any.is_empty() => any.push(pred(Test::Eq(Value::NULL))),
        0 => {}
        1 => any.push(pred(Test::Eq(values.swap_remove(0)))),
        _ => {
            let regexes = Vec::new();
            any.push(pred(Test::In(InList { values, regexes }.into())));
        }
    }
    match any.len() {
        1 => any.swap_remove(0),
        _ => Node::Or(any),
    }
}

struct Run {
    input: Box<dyn Source>,
    joiner: Joiner,
    spec: Arc<Lookup>,
    vars: Arc<Vars>,
    /// The joined documents of the current input document, and where more come from.
    joining: Option<(Option<Matches>, Writer)>,
    /// The result when it is the same for every input document.
    same: Option<Value>,
    share: Option<Share>,
    out: Vec<u8>,
}

impl Run {
    fn new(input: Box<dyn Source>, joiner: Joiner, spec: Arc<Lookup>, vars: Arc<Vars>) -> Run {
        Run {
            input,
            joiner,
            spec,
            vars,
            joining: None,
            same: None,
            share: None,
            out: Vec::new(),
        }
    }

    fn emit(&mut self, joined: Val<'_>) {
        self.out.clear();
        let mut w = Writer::on(std::mem::take(&mut self.out));
        set_path(&mut w, self.input.doc(), &self.spec.as_, 0, Some(joined));
        self.out = w.finish_into();
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if self.joining.is_none() {
            if !self.input.advance(host)? {
                return Ok(false);
            }
            if let Some(v) = self.same.take() {
                self.emit(v.as_val());
                self.same = Some(v);
                return Ok(true);
            }
            // Opening may fail and be tried again: the input stays where it is.
            self.joining = Some((None, Writer::new_array()));
        }
        if let Some((None, _)) = &self.joining {
            let source = self.joiner.open(self.input.doc(), host, &self.vars)?;
            if let Some(j) = &mut self.joining {
                j.0 = Some(source);
            }
        }
        let Some((Some(source), array)) = &mut self.joining else {
            return Err(errors::Error::internal("a $lookup lost its place").into());
        };
        loop {
            // The array, and the document that it becomes part of.
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, 2 * array.len(), host, "$lookup")?;
            if !source.advance(host)? {
                break;
            }
            array.push(source.doc().as_val());
            if array.len() > host.memory_limit() {
                bail!(
                    4568,
                    "Total size of documents in {} matching pipeline's $lookup stage exceeds {} bytes",
                    self.spec.from.as_ref().map_or("", |n| &n.coll),
                    host.memory_limit()
                );
            }
        }
        let joined = match self.joining.take() {
            Some((_, array)) => array.finish_array(),
            None => Value::NULL,
        };
        self.emit(joined.as_val());
        if self.spec.is_independent() {
            self.same = Some(joined);
        }
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        let joining = self.joining.as_mut().map(|(source, _)| source);
        self.input.parts(joining.is_some(), to)?;
        if let Some(Some(source)) = joining {
            source.parts(false, to)?;
        }
        self.joiner.parts(to)?;
        to.doc(&mut self.out, wanted)
    }
}
