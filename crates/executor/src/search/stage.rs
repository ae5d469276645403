//! `$search`, `$searchMeta` and `$vectorSearch` over a collection: what an index finds, as documents of the store.
//!
//! Invariant: a document is read when it is given, so it is in its present state; documents that were
//! deleted meanwhile are left out, and so are those that a shard does not own (`shown`).

use super::follower::{IndexFollower, reach_all};
use crate::engine::Engine;
use crate::op::OpCtx;
use crate::pinned_snapshot::PinnedSnapshot;
use ::search::{
    Counted, Highlighter, Hits, IndexSnapshot, Pages, Room, ScoredDocument, Search, SequenceToken,
    Synonyms, VectorSearch, element, place, score_order,
};
use bson::{Doc, DocBuf, Val, Writer, doc};
use catalog::Collection;
use catalog::keyspace::PREFIX;
use errors::{Code, Result, bail, err};
use query::expr::{ParseEnv, SearchMeta, Vars};
use query::filter::Filter;
use query::metadata::Metadata;
use query::pipeline::{
    self, IdleVisitor, Namespace, ParseCtx, Pipeline, PipelineHost, SearchKind, SearchStage, Share,
    Source, search,
};
use query::sort::SortPattern;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// What a search finds, at most `limit` documents. `causal`: the client wants to see what it has seen
/// elsewhere. `known`: the place for the metadata of all results, if requested. `explained`: it runs to be explained.
pub(crate) fn found(
    ctx: &mut OpCtx<'_>,
    stage: &SearchStage,
    limit: Option<u64>,
    causal: bool,
    vars: &Arc<Vars>,
    known: Option<&SearchMeta>,
    explained: bool,
) -> Result<Box<dyn Source>> {
    ctx.need_worker()?;
    if ctx.transaction.is_some() {
        bail!(
            OperationNotSupportedInTransaction,
            "Stage not supported inside of a multi-document transaction: {}",
            stage.kind.stage_name()
        );
    }
    let view = ctx.catalog().resolve(&stage.ns.to_string())?;
    let on = view.as_ref().map_or(&stage.ns, |v| &v.on).to_string();
    ctx.tell_of_view(&on);
    let Some(coll) = ctx.catalog().get(&on).cloned() else {
        return Ok(pipeline::over_docs(Vec::new()));
    };
    if stage.kind == SearchKind::Vector {
        let search = vector_search(stage, explained)?;
        return nearest(
            ctx,
            (stage, search),
            &coll,
            (causal, vars),
            |rows| match &view {
                Some(v) => v.pipeline.attach(0, rows, vars),
                None => rows,
            },
        );
    }
    let search = Search::parse(stage.spec.as_doc(), stage.kind == SearchKind::Meta)?;
    let engine = ctx.engine.clone();
    let Some(opened) = engine.search.to_search(ctx, &coll, &search.index)? else {
        return Ok(nothing(stage.kind, known));
    };
    let (open, index) = (opened.index, opened.follower);
    search.check_kind(index.spec.kind)?;
    if causal {
        index.reach(ctx, engine.store.last_index())?;
    }
    let projection = search.stored(open.definition())?;
    let synonyms = synonyms(ctx, (stage, &search), &coll, &index, causal)?;
    let mut open = OpenSearch {
        search,
        index,
        snapshot: open.snapshot().with_synonyms(synonyms),
        shown: Shown::of(stage)?,
        reader: Reader::of(ctx),
        held: engine.stage_memory.share(),
    };
    if stage.kind == SearchKind::Meta || known.is_some() {
        let meta = open.meta(ctx)?;
        if let Some(known) = known {
            let _ = known.set(meta.clone());
        }
        if stage.kind == SearchKind::Meta {
            return Ok(pipeline::over_docs(vec![meta]));
        }
    }
    let rows = open.rows(ctx, stage, (limit, view.is_some()))?;
    let rows = match projection {
        Some(projection) => projected(&stage.ns, &projection)?.attach(0, rows, vars),
        None => rows,
    };
    Ok(match view {
        Some(v) => v.pipeline.attach(0, rows, vars),
        None => rows,
    })
}

/// A search over a state of its index.
struct OpenSearch {
    search: Search,
    index: Arc<IndexFollower>,
    snapshot: IndexSnapshot,
    shown: Option<Shown>,
    reader: Reader,
    held: Share,
}

impl OpenSearch {
    /// The metadata of all documents that it finds and may show.
    fn meta(&mut self, ctx: &mut OpCtx<'_>) -> Result<DocBuf> {
        let of = (&self.reader, self.shown.as_ref());
        let (search, snapshot) = (&self.search, self.snapshot.clone());
        within(ctx, &self.index, &mut self.held, |room| {
            of_all(search, snapshot, of, room)
        })
    }

    /// The documents in their order, at most `limit`, if nothing behind the search may want more of them. `viewed`:
    /// the stages of a view come next.
    fn rows(
        mut self,
        ctx: &mut OpCtx<'_>,
        stage: &SearchStage,
        (limit, viewed): (Option<u64>, bool),
    ) -> Result<Box<dyn Source>> {
        // A view's own stages, and another order, may want more of them.
        let plain = self.search.sort.is_none() && !viewed && self.shown.is_none();
        let bounded = limit.filter(|_| plain);
        let most = bounded.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let left = self.search.nearest(None);
        if left.is_some() && self.shown.is_some() {
            // Of the nearest some may be hidden.
            let all = self.snapshot.documents().try_into();
            self.search.nearest(Some(all.unwrap_or(usize::MAX)));
        }
        let sort = sort_of(&self.search);
        let paging = Paging::of((&self.search, sort.as_ref()), stage)?;
        let highlighter = self.search.highlighter(&self.snapshot);
        let (search, snapshot) = (&self.search, self.snapshot);
        let hits = within(ctx, &self.index, &mut self.held, |room| match &paging {
            Some(p) if p.sort.is_none() => search.page(snapshot, tie, most, room),
            _ => search.find(snapshot, most, room),
        })?;
        let by_token = paging.is_some();
        let backwards = self.search.pages.is_backwards();
        let rows: Box<dyn Source> = Box::new(Rows {
            reader: self.reader,
            index: self.index,
            shown: self.shown,
            left: left.map_or(u64::MAX, |n| n as u64),
            hits,
            held: self.held,
            by_vector: false,
            scope: self.search.scope,
            paging,
            highlighter: highlighter.filter(|_| stage.asks.highlights),
            current: DocBuf::new(),
            meta: Metadata::default(),
        });
        let most = limit.filter(|_| !viewed);
        Ok(match &sort {
            Some(_) if by_token => search::by_token(rows, backwards, most),
            Some(by) => search::sorted(rows, by.as_doc(), most)?,
            None => rows,
        })
    }
}

/// What results are sorted by: of elements their own fields.
fn sort_of(search: &Search) -> Option<DocBuf> {
    let (Some(by), Some(scope)) = (&search.sort, &search.scope) else {
        return search.sort.clone();
    };
    let mut w = Writer::new();
    for e in by.as_doc() {
        let own = e.name.strip_prefix(scope.as_str());
        let own = own.and_then(|rest| rest.strip_prefix('.'));
        w.val(own.unwrap_or(e.name), e.val);
    }
    Some(w.finish())
}

/// The synonym mappings that a search names.
fn synonyms(
    ctx: &mut OpCtx<'_>,
    (stage, search): (&SearchStage, &Search),
    coll: &Collection,
    index: &Arc<IndexFollower>,
    causal: bool,
) -> Result<HashMap<String, Synonyms>> {
    let mut found = HashMap::new();
    let db = coll.ns.split_once('.').map_or("", |(db, _)| db);
    let names = search.synonyms();
    if causal && !names.is_empty() {
        reach_all(ctx, &ctx.engine.log_tail, ctx.engine.store.last_index())?;
    }
    for name in names {
        let mut all = index.spec.definition.synonyms.iter();
        let Some(source) = all.find(|s| s.name == name) else {
            continue;
        };
        let sent = stage.synonyms.as_ref().and_then(|d| d.get(name));
        let mapping = match (sent.and_then(Val::as_array), sent.and_then(Val::as_str)) {
            (Some(docs), _) => index.mappings.sent(ctx, source, docs)?,
            // The router could not read it.
            (None, Some(why)) => Err(why.to_string()),
            (None, None) => index.mappings.read(ctx, db, source)?,
        };
        found.insert(name.to_string(), mapping);
    }
    Ok(found)
}

/// The empty result without an index.
fn nothing(kind: SearchKind, known: Option<&SearchMeta>) -> Box<dyn Source> {
    let meta = doc! { "count": doc! { "total": 0i64 } };
    if let Some(known) = known {
        let _ = known.set(meta.clone());
    }
    pipeline::over_docs(match kind {
        SearchKind::Meta => vec![meta],
        _ => Vec::new(),
    })
}

/// The metadata of all documents that a search finds and may show.
fn of_all(
    search: &Search,
    snapshot: IndexSnapshot,
    (reader, shown): (&Reader, Option<&Shown>),
    room: &mut Room<'_>,
) -> Result<DocBuf> {
    let Some(shown) = shown else {
        return search.meta(snapshot, room, None);
    };
    let mut is_shown = |key: &[u8]| {
        let record = reader.record(key)?;
        Ok(record.is_some_and(|r| shown.has(r.as_doc())))
    };
    search.meta(snapshot, room, Some(&mut is_shown))
}

/// The stage that leaves of documents what an index has stored.
fn projected(ns: &Namespace, projection: &DocBuf) -> Result<Pipeline> {
    let stages = bson::array![doc! {"$project": projection.clone()}];
    let context = ParseCtx::new(&ns.db, Some(&ns.coll), ParseEnv::new());
    Pipeline::parse(stages.as_val(), &context)
}

fn vector_search(stage: &SearchStage, explained: bool) -> Result<VectorSearch> {
    match explained {
        true => VectorSearch::parse_explained(stage.spec.as_doc()),
        false => VectorSearch::parse(stage.spec.as_doc()),
    }
}

/// What explain tells of a search; with `run` what it counts.
pub(crate) fn explain(ctx: &mut OpCtx<'_>, stage: &SearchStage, run: bool) -> Result<DocBuf> {
    let view = ctx.catalog().resolve(&stage.ns.to_string())?;
    let on = view.as_ref().map_or(&stage.ns, |v| &v.on).to_string();
    let either = match stage.kind {
        SearchKind::Vector => EitherSearch::Vector(vector_search(stage, true)?),
        kind => EitherSearch::Text(Search::parse(
            stage.spec.as_doc(),
            kind == SearchKind::Meta,
        )?),
    };
    let engine = ctx.engine.clone();
    let Some(coll) = ctx.catalog().get(&on).cloned() else {
        return Ok(DocBuf::new());
    };
    let Some(opened) = engine.search.to_search(ctx, &coll, either.index())? else {
        return Ok(DocBuf::new());
    };
    let (open, index) = (opened.index, opened.follower);
    let mut snapshot = open.snapshot();
    if let EitherSearch::Text(search) = &either {
        search.check_kind(index.spec.kind)?;
        let mappings = synonyms(ctx, (stage, search), &coll, &index, false)?;
        snapshot = snapshot.with_synonyms(mappings);
    }
    let begun = Instant::now();
    let mut held = engine.stage_memory.share();
    let counted = match run {
        false => None,
        true => Some(Counted {
            matched: within(ctx, &index, &mut held, |room| match &either {
                EitherSearch::Text(search) => search.count(&snapshot, room),
                EitherSearch::Vector(search) => {
                    let hits = search.find(snapshot.clone(), search.limit, room)?;
                    Ok(hits.len() as u64)
                }
            })?,
            time: begun.elapsed(),
        }),
    };
    match &either {
        EitherSearch::Text(search) => search.outline(&snapshot, counted),
        EitherSearch::Vector(search) => search.outline(&snapshot, counted),
    }
}

/// A search of either kind.
enum EitherSearch {
    Text(Search),
    Vector(VectorSearch),
}

impl EitherSearch {
    fn index(&self) -> &str {
        match self {
            EitherSearch::Text(search) => &search.index,
            EitherSearch::Vector(search) => &search.index,
        }
    }
}

/// `$vectorSearch`. `above`: what comes on top of its results.
fn nearest(
    ctx: &mut OpCtx<'_>,
    (stage, search): (&SearchStage, VectorSearch),
    coll: &Collection,
    (causal, vars): (bool, &Arc<Vars>),
    above: impl FnOnce(Box<dyn Source>) -> Box<dyn Source>,
) -> Result<Box<dyn Source>> {
    let engine = ctx.engine.clone();
    let Some(opened) = engine.search.to_search(ctx, coll, &search.index)? else {
        return Ok(pipeline::over_docs(Vec::new()));
    };
    let (open, index) = (opened.index, opened.follower);
    if causal {
        index.reach(ctx, engine.store.last_index())?;
    }
    let mut held = engine.stage_memory.share();
    let (shown, reader) = (Shown::of(stage)?, Reader::of(ctx));
    // As many as are wanted; where some may be hidden, all of them, nearest first.
    let most = match &shown {
        None => search.limit,
        Some(_) => open.snapshot().documents().try_into().unwrap_or(usize::MAX),
    };
    let hits = within(ctx, &index, &mut held, |room| {
        search.find(open.snapshot(), most, room)
    })?;
    let projection = search.stored(open.definition())?;
    let rows: Box<dyn Source> = Box::new(Rows {
        reader,
        index,
        shown,
        left: search.limit as u64,
        held,
        hits,
        by_vector: true,
        scope: None,
        paging: None,
        highlighter: None,
        current: DocBuf::new(),
        meta: Metadata::default(),
    });
    let rows = match projection {
        Some(projection) => projected(&stage.ns, &projection)?.attach(0, rows, vars),
        None => rows,
    };
    Ok(above(rows))
}

/// Searches with memory from the budget of stages. Where the index is not what it should be, it looks
/// at its files, and the search fails.
fn within<T>(
    ctx: &mut OpCtx<'_>,
    index: &Arc<IndexFollower>,
    held: &mut Share,
    search: impl FnOnce(&mut Room<'_>) -> Result<T>,
) -> Result<T> {
    let mut ask = |bytes| held.hold(bytes, "$search", || ctx.wait_for_memory());
    guarded(index, || search(&mut Room::new(&mut ask)))
}

fn guarded<T>(index: &Arc<IndexFollower>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(err!(
            DataCorruptionDetected,
            "a search index met what it did not expect: {}",
            index.spec.name
        )
        .into())
    });
    if done
        .as_ref()
        .is_err_and(|e| e.is(Code::DataCorruptionDetected))
    {
        index.suspect();
    }
    done
}

/// What a shard owns of a collection.
struct Shown(Filter);

impl Shown {
    fn of(stage: &SearchStage) -> Result<Option<Shown>> {
        let filter = |d: &DocBuf| Filter::parse(d.as_doc(), &ParseEnv::new());
        Ok(stage.shown.as_ref().map(filter).transpose()?.map(Shown))
    }

    fn has(&self, doc: Doc<'_>) -> bool {
        self.0.matches(doc).unwrap_or(false)
    }
}

/// Reads records by their keys.
struct Reader {
    engine: Arc<Engine>,
    snapshot: Option<Arc<PinnedSnapshot>>,
}

impl Reader {
    fn of(ctx: &OpCtx<'_>) -> Reader {
        Reader {
            engine: ctx.engine.clone(),
            snapshot: ctx.snapshot.clone(),
        }
    }

    fn record(&self, key: &[u8]) -> Result<Option<DocBuf>> {
        let view = match &self.snapshot {
            Some(m) => m.view.clone(),
            None => self.engine.store.latest(),
        };
        let record = view.get(key)?;
        Ok(record.map(|r| DocBuf::from_vec(r.to_vec()).unwrap_or_default()))
    }
}

/// What tells the records of one collection apart, on every member and shard.
fn tie(key: &[u8]) -> &[u8] {
    key.get(PREFIX..).unwrap_or(key)
}

/// Where documents stand among all that a search finds.
struct Paging {
    pages: Pages,
    /// What they are sorted by; `None`: their scores.
    sort: Option<SortPattern>,
}

impl Paging {
    /// `None`: not requested.
    fn of(
        (search, sort): (&Search, Option<&DocBuf>),
        stage: &SearchStage,
    ) -> Result<Option<Paging>> {
        if !stage.asks.token && !search.pages.is_bounded() {
            return Ok(None);
        }
        Ok(Some(Paging {
            pages: search.pages.clone(),
            sort: sort
                .map(|by| SortPattern::parse_found(by.as_doc()))
                .transpose()?,
        }))
    }

    fn token(&self, hit: &ScoredDocument, doc: Doc<'_>, known: &Metadata) -> Result<SequenceToken> {
        let mut order = Vec::new();
        match &self.sort {
            None => order.extend(score_order(hit.score)),
            Some(sort) => sort.sort_key_with(doc, known, &mut order)?,
        }
        let place = place(tie(&hit.key), hit.element);
        Ok(self.pages.token(&order, &place))
    }
}

/// The documents of hits.
struct Rows {
    reader: Reader,
    index: Arc<IndexFollower>,
    shown: Option<Shown>,
    /// How many more are given.
    left: u64,
    hits: Hits,
    /// The memory of the hits.
    held: Share,
    by_vector: bool,
    /// The path of the elements that are given instead of documents.
    scope: Option<String>,
    paging: Option<Paging>,
    highlighter: Option<Highlighter>,
    current: DocBuf,
    meta: Metadata,
}

impl Rows {
    /// Sets the metadata of a document.
    fn tell(&mut self, hit: &ScoredDocument) {
        self.meta = Metadata::default();
        let score = Some(f64::from(hit.score));
        match self.by_vector {
            true => self.meta.vector_score = score,
            false => self.meta.search_score = score,
        }
        self.meta.score_details = hit.details.clone();
    }
}

impl Source for Rows {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            host.check()?;
            let hits = &mut self.hits;
            let next = match self.left {
                0 => None,
                _ => guarded(&self.index, || hits.next())?,
            };
            let Some(hit) = next else {
                self.held.release();
                return Ok(false);
            };
            let Some(record) = self.reader.record(&hit.key)? else {
                continue;
            };
            if self.shown.as_ref().is_some_and(|s| !s.has(record.as_doc())) {
                continue;
            }
            let record = match (&self.scope, hit.element) {
                (Some(scope), Some(n)) => match element(record.as_doc(), scope, n) {
                    Some(element) => element,
                    None => continue,
                },
                _ => record,
            };
            self.tell(&hit);
            if let Some(paging) = &self.paging {
                let token = paging.token(&hit, record.as_doc(), &self.meta)?;
                if !paging.pages.admits(&token) {
                    continue;
                }
                self.meta.sequence_token = Some(token.written().into());
            }
            if let Some(highlighter) = &mut self.highlighter {
                self.meta.highlights = Some(Box::new(highlighter.of(record.as_doc())?));
            }
            self.left -= 1;
            self.current = record;
            return Ok(true);
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn meta(&self) -> &Metadata {
        &self.meta
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.current).into_vec();
        let shown = to.doc(&mut bytes, wanted);
        self.current = DocBuf::from_vec(bytes).unwrap_or_default();
        shown
    }
}
