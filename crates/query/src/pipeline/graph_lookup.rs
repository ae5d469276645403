//! `$graphLookup`: a breadth-first search through another collection.

use super::lookup::{collection, equals_any, join_values};
use super::lookup_batch::{Batch, BatchedJoin, Joins};
use super::lookup_table::{JoinedCollection, Table};
use super::options::field_path;
use super::parse::ParseCtx;
use super::stage_memory::hold;
use super::unwind::set_path;
use super::{IdleVisitor, Namespace, Pipeline, PipelineHost, Share, Source, over_docs};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, Vars};
use crate::filter::{Filter, Node};
use crate::metadata::Metadata;
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, key};
use errors::{Result, bail, err};
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct GraphLookup {
    pub from: Namespace,
    pub(super) as_: FieldPath,
    pub(super) start: Expression,
    connect_from: FieldPath,
    connect_to: FieldPath,
    depth_field: Option<FieldPath>,
    max_depth: Option<i64>,
    restrict: Option<Filter>,
    collation: Option<Collation>,
    /// All that the search may find, where it came with the stage.
    documents: Option<Nodes>,
}

/// A router sends a small collection with the stage to servers that do not have it.
const DOCUMENTS: &str = "$_pandoDocuments";

/// The documents of a search, by the values that lead to them.
#[derive(Clone)]
struct Nodes {
    all: Arc<[DocBuf]>,
    by_value: Option<Arc<Table>>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} documents", self.all.len())
    }
}

impl Nodes {
    fn of(documents: Doc<'_>, path: &FieldPath) -> Nodes {
        let all: Arc<[DocBuf]> = (documents.values())
            .filter_map(|v| Some(v.as_doc()?.to_buf()))
            .collect();
        let table = Table::by(path).and_then(|mut table| {
            let fits = all.iter().all(|d| table.add(d.as_doc(), None));
            fits.then(|| Arc::new(table))
        });
        Nodes {
            all,
            by_value: table,
        }
    }

    /// Those that may have one of the values.
    fn with(&self, values: &[Val<'_>]) -> Box<dyn Source> {
        let found = self.by_value.as_ref().and_then(|t| t.found(values));
        match found {
            Some(found) => Box::new(found),
            None => over_docs(self.all.to_vec()),
        }
    }
}

fn object(spec: Val<'_>) -> Result<Doc<'_>> {
    spec.as_doc().ok_or_else(|| {
        err!(
            FailedToParse,
            "the $graphLookup stage specification must be an object, but found {}",
            spec.type_name()
        )
        .into()
    })
}

fn text(e: Elem<'_>) -> Result<&str> {
    e.val.as_str().ok_or_else(|| {
        err!(
            40103,
            "expected string as argument for {}, found: {}",
            e.name,
            e.val
        )
        .into()
    })
}

/// The collection that the stage names; `None`: the parser refuses that.
pub(super) fn named(spec: Val<'_>, db: &str) -> Result<Option<Namespace>> {
    let from = object(spec)?.iter().find(|e| e.name == "from");
    from.map(|e| collection(db, text(e)?)).transpose()
}

impl GraphLookup {
    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<GraphLookup> {
        let d = object(spec)?;
        let (mut from, mut as_, mut start, mut connect_from, mut connect_to) =
            (None, None, None, None, None);
        let (mut depth_field, mut max_depth, mut restrict) = (None, None, None);
        let mut documents = None;
        for e in d.iter() {
            match e.name {
                "startWith" => start = Some(Expression::parse(e.val, &ctx.env)?),
                "maxDepth" => {
                    if !e.val.is_number() {
                        bail!(
                            40100,
                            "maxDepth requires numeric argument, found {}",
                            e.val.type_name()
                        );
                    }
                    let Some(n) = e.val.to_i64_exact() else {
                        bail!(
                            40102,
                            "maxDepth could not be represented as a long long: {}",
                            e.val
                        );
                    };
                    if n < 0 {
                        bail!(
                            40101,
                            "maxDepth requires a nonnegative argument, found: {n}"
                        );
                    }
                    max_depth = Some(n);
                }
                "restrictSearchWithMatch" => match e.val.as_doc() {
                    Some(q) => restrict = Some(Filter::parse(q, &ctx.env)?),
                    None => bail!(
                        40185,
                        "restrictSearchWithMatch must be an object, found {}",
                        e.val.type_name()
                    ),
                },
                "from" => from = named(spec, &ctx.db)?,
                "as" => as_ = Some(field_path(text(e)?)?),
                "connectFromField" => connect_from = Some(field_path(text(e)?)?),
                "connectToField" => connect_to = Some(field_path(text(e)?)?),
                "depthField" => depth_field = Some(field_path(text(e)?)?),
                DOCUMENTS => documents = e.val.as_array(),
                n => bail!(40104, "Unknown argument to $graphLookup: {n}"),
            }
        }
        match (from, as_, start, connect_from, connect_to) {
            (Some(from), Some(as_), Some(start), Some(connect_from), Some(connect_to)) => {
                let documents = documents.map(|d| Nodes::of(d, &connect_to));
                Ok(GraphLookup {
                    documents,
                    from,
                    as_,
                    start,
                    connect_from,
                    connect_to,
                    depth_field,
                    max_depth,
                    restrict,
                    collation: ctx.env.collation().cloned(),
                })
            }
            _ => bail!(
                40105,
                "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified."
            ),
        }
    }
}

impl GraphLookup {
    /// The stage on top of `input`.
    pub(super) fn attach(
        self: &Arc<GraphLookup>,
        input: Box<dyn Source>,
        vars: Arc<Vars>,
    ) -> Box<dyn Source> {
        let batch = Batch::default();
        let input: Box<dyn Source> = match self.documents.is_none() && self.collation.is_none() {
            true => {
                let (spec, vars, batch) = (self.clone(), vars.clone(), batch.clone());
                Box::new(BatchedJoin::new(input, spec, vars, batch))
            }
            false => input,
        };
        Box::new(Run::new(input, self.clone(), vars, batch))
    }

    /// The values that a search begins with.
    fn starts(&self, doc: Doc<'_>, vars: &Arc<Vars>) -> Result<Value> {
        let start = self.start.evaluate(&EvalCtx::new(doc, vars))?;
        Ok(start.as_val().map_or(Value::NULL, Val::to_value))
    }

    /// What finds the documents that have one of the values.
    fn level(&self, values: Vec<Val<'_>>) -> Pipeline {
        let mut nodes = vec![equals_any(
            &self.connect_to,
            values,
            self.collation.as_ref(),
        )];
        nodes.extend(self.restrict.clone().map(Filter::into_root));
        Pipeline::from_filter(Filter::from_node(Node::and(nodes)))
    }
}

/// The values that are looked for where a search begins with this one: of an array its elements.
fn each(start: &Value) -> Vec<Val<'_>> {
    match start.as_val().as_array() {
        Some(items) => items.values().collect(),
        None => vec![start.as_val()],
    }
}

impl Joins for GraphLookup {
    const STAGE: &'static str = "$graphLookup";
    // A query has to fit into a message.
    const MOST_VALUES: usize = 4096;

    fn from(&self) -> Option<(&Namespace, &FieldPath)> {
        Some((&self.from, &self.connect_to))
    }

    fn gains(&self, _: &JoinedCollection) -> bool {
        true
    }

    fn values(&self, doc: Doc<'_>, vars: &Arc<Vars>) -> Result<Vec<Value>> {
        let start = self.starts(doc, vars)?;
        Ok(each(&start).into_iter().map(Val::to_value).collect())
    }

    fn query(&self, values: Vec<Val<'_>>) -> Pipeline {
        self.level(values)
    }

    fn leads_to<'d>(&self, found: Doc<'d>) -> Vec<Val<'d>> {
        join_values(found, &self.connect_from)
    }

    fn most_steps(&self) -> Option<i64> {
        self.max_depth
    }
}

/// Of an entry of a set, beside its key, about.
const ENTRY_BYTES: usize = 48;

/// What a search has come by, and what that holds in bytes.
#[derive(Default)]
struct Seen {
    /// The values that are looked for now.
    frontier: Vec<Value>,
    /// Keys of values that were looked for, and of documents that were found.
    asked: HashSet<Vec<u8>>,
    found: HashSet<Vec<u8>>,
    next: Vec<Value>,
    keys_bytes: usize,
    next_bytes: usize,
    level_bytes: usize,
}

impl Seen {
    fn ask(&mut self, v: Val<'_>) {
        let key = key::of(v);
        let bytes = key.len() + ENTRY_BYTES;
        if self.asked.insert(key) {
            self.keys_bytes += bytes;
            self.next_bytes += size_of::<Value>() + v.bytes.len();
            self.next.push(v.to_value());
        }
    }

    /// Notes a document; false when it was found before.
    fn find(&mut self, doc: Doc<'_>) -> bool {
        let key = key::of(doc.get("_id").unwrap_or(Val::NULL));
        let bytes = key.len() + ENTRY_BYTES;
        let new = self.found.insert(key);
        self.keys_bytes += if new { bytes } else { 0 };
        new
    }

    /// On to the values that were found last.
    fn descend(&mut self) {
        self.frontier = std::mem::take(&mut self.next);
        // In the filter that looks for them, and in what an index is searched by.
        self.level_bytes = 2 * std::mem::take(&mut self.next_bytes);
    }

    fn bytes(&self) -> usize {
        self.keys_bytes + self.next_bytes + self.level_bytes
    }
}

/// The search for one input document.
struct Search {
    seen: Seen,
    depth: i64,
    level: Option<Box<dyn Source>>,
    results: Writer,
    share: Share,
    /// All that it may find, where that was read ahead.
    ahead: Option<Arc<Table>>,
}

fn check_memory(seen: &Seen, results: &Writer, limit: usize) -> Result<()> {
    if seen.bytes() + results.len() > limit {
        bail!(40099, "$graphLookup reached maximum memory consumption");
    }
    Ok(())
}

pub(super) struct Run {
    input: Box<dyn Source>,
    spec: Arc<GraphLookup>,
    vars: Arc<Vars>,
    /// What the documents that were taken in ahead find.
    batch: Batch,
    search: Option<Search>,
    out: Vec<u8>,
}

impl Run {
    fn new(input: Box<dyn Source>, spec: Arc<GraphLookup>, vars: Arc<Vars>, batch: Batch) -> Run {
        Run {
            input,
            spec,
            vars,
            batch,
            search: None,
            out: Vec::new(),
        }
    }

    fn begin(&self, host: &dyn PipelineHost) -> Result<Search> {
        let start = self.spec.starts(self.input.doc(), &self.vars)?;
        let mut s = Search {
            seen: Seen::default(),
            depth: 0,
            level: None,
            results: Writer::new_array(),
            share: host.share(),
            ahead: self.batch.table(),
        };
        for v in each(&start) {
            s.seen.ask(v);
            check_memory(&s.seen, &s.results, host.memory_limit())?;
        }
        s.seen.descend();
        Ok(s)
    }
}

impl GraphLookup {
    /// A document that the search has found, with the depth where that is asked for.
    fn write_found(&self, doc: Doc<'_>, depth: i64, results: &mut Writer) {
        match &self.depth_field {
            None => {
                results.push(doc.as_val());
            }
            Some(path) => {
                results.open_doc("");
                let depth = Value::from(depth);
                set_path(results, doc, path, 0, Some(depth.as_val()));
                results.close();
            }
        }
    }
}

impl Search {
    /// Runs to the end of the search.
    fn run(
        &mut self,
        spec: &GraphLookup,
        vars: &Arc<Vars>,
        host: &mut dyn PipelineHost,
    ) -> Result<()> {
        let Search {
            seen,
            depth,
            level,
            results,
            share,
            ahead,
        } = self;
        loop {
            // The results, and the document that they become part of.
            hold(
                share,
                seen.bytes() + 2 * results.len(),
                host,
                "$graphLookup",
            )?;
            let source = match level {
                Some(source) => source,
                None if seen.frontier.is_empty() => return Ok(()),
                None => {
                    let values: Vec<Val<'_>> = seen.frontier.iter().map(Value::as_val).collect();
                    let there: Option<Box<dyn Source>> = match (&spec.documents, &ahead) {
                        (Some(documents), _) => Some(documents.with(&values)),
                        (None, Some(table)) => {
                            let found = table.found(&values).unwrap_or_else(|| table.all());
                            Some(Box::new(found))
                        }
                        (None, None) => None,
                    };
                    let pipeline = spec.level(values);
                    let source = match there {
                        Some(there) => pipeline.attach(0, there, vars),
                        None => host.open(&spec.from, &pipeline, vars)?,
                    };
                    seen.frontier = Vec::new();
                    level.insert(source)
                }
            };
            if !source.advance(host)? {
                *level = None;
                *depth += 1;
                seen.descend();
                if spec.max_depth.is_some_and(|m| *depth > m) {
                    seen.frontier.clear();
                }
                continue;
            }
            let doc = source.doc();
            if !seen.find(doc) {
                continue;
            }
            for v in join_values(doc, &spec.connect_from) {
                seen.ask(v);
            }
            spec.write_found(doc, *depth, results);
            check_memory(seen, results, host.memory_limit())?;
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let search = match &mut self.search {
            Some(s) => s,
            None => {
                if !self.input.advance(host)? {
                    return Ok(false);
                }
                let s = self.begin(host)?;
                self.search.insert(s)
            }
        };
        search.run(&self.spec, &self.vars, host)?;
        let results = match self.search.take() {
            Some(s) => s.results.finish_array(),
            None => Value::NULL,
        };
        self.out.clear();
        let mut w = Writer::on(std::mem::take(&mut self.out));
        set_path(
            &mut w,
            self.input.doc(),
            &self.spec.as_,
            0,
            Some(results.as_val()),
        );
        self.out = w.finish_into();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(self.search.is_some(), to)?;
        to.doc(&mut self.out, wanted)
    }
}
