//! What several servers have found, where it comes together: a pipeline goes on with it as if it had
//! found it itself.
//!
//! ```text
//! each server: …, wrapped           {d: the document, m: {distance, textScore, searchScore, …}}
//! together:    …, $_pandoMerged     the document, with what was known of it
//! ```
//! The first stage is one that clients may write as well ([`wrapping`]); the second is for the router
//! that merges.

use super::geo_near::{DISTANCE, POINT};
use super::options::{object, options};
use super::search::{SearchMetaFields, gives_details};
use super::{IdleVisitor, Op, Pipeline, PipelineHost, Source, Stage, lookup_unwind};
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Val, Writer};
use errors::Result;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const STAGE: &str = "$_pandoMerged";

/// Metadata, by its name for `$meta` and in wrapped documents.
const SEARCH_SCORE: &str = "searchScore";
const VECTOR_SCORE: &str = "vectorSearchScore";
pub const TOKEN: &str = "searchSequenceToken";
const HIGHLIGHTS: &str = "searchHighlights";
const DETAILS: &str = "scoreDetails";

/// Which metadata the documents have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// `$geoNear` has found them, nearest first.
    pub near: bool,
    /// `$text` has found them.
    pub text: bool,
    /// `$search` has found them.
    pub search: bool,
    /// `$vectorSearch` has found them.
    pub vector: bool,
    /// Their places in the search are known, highlights, and how their scores came about.
    pub token: bool,
    pub highlights: bool,
    pub details: bool,
}

/// Whether a search over several servers is put in order by sequence tokens.
fn is_ordered_by_token(spec: Doc<'_>) -> bool {
    let has = |name: &str| spec.get(name).is_some_and(|v| !v.is_nullish());
    let stored = spec.get("returnStoredSource").and_then(|v| v.as_bool());
    // What it is sorted by may be none of the fields that are given.
    has("searchAfter") || has("searchBefore") || has("sort") && stored == Some(true)
}

impl Found {
    /// What a pipeline's first stage knows of the documents that it finds.
    pub fn by(first: Val<'_>) -> Found {
        let e = first.as_doc().and_then(Doc::first);
        Found {
            near: e.is_some_and(|e| e.name == "$geoNear"),
            text: e.is_some_and(|e| {
                e.name == "$match" && e.val.as_doc().is_some_and(super::parse::has_text)
            }),
            search: e.is_some_and(|e| e.name == "$search"),
            vector: e.is_some_and(|e| e.name == "$vectorSearch"),
            ..Found::default()
        }
    }

    /// The same of all stages.
    pub fn of<'a>(stages: impl IntoIterator<Item = Val<'a>>) -> Found {
        let mut stages = stages.into_iter();
        let first = stages.next();
        match first.map_or(Found::default(), Found::by) {
            found if found.search => Found::of_search(first, SearchMetaFields::of(stages)),
            found => found,
        }
    }

    /// `asks`: what the stages behind the first one ask for.
    pub(super) fn of_search<'a>(
        stages: impl IntoIterator<Item = Val<'a>>,
        asks: SearchMetaFields,
    ) -> Found {
        let first = stages.into_iter().next();
        let found = first.map_or(Found::default(), Found::by);
        let spec = first.and_then(|v| v.as_doc()?.first()?.val.as_doc());
        let spec = spec.unwrap_or(Doc::EMPTY);
        Found {
            token: found.search && (asks.token || is_ordered_by_token(spec)),
            highlights: found.search && asks.highlights,
            details: found.search && asks.details && gives_details(spec),
            ..found
        }
    }

    pub fn any(self) -> bool {
        self.near || self.text || self.search || self.vector
    }

    /// The stage that wraps documents.
    pub fn wrapping(self) -> DocBuf {
        let mut w = Writer::new();
        w.open_doc("$replaceWith").str("d", "$$ROOT").open_doc("m");
        for (known, name, meta) in [
            (self.near, "distance", "geoNearDistance"),
            (self.near, "point", "geoNearPoint"),
            (self.text, "textScore", "textScore"),
            (self.search, SEARCH_SCORE, SEARCH_SCORE),
            (self.vector, VECTOR_SCORE, VECTOR_SCORE),
            (self.token, TOKEN, TOKEN),
            (self.highlights, HIGHLIGHTS, HIGHLIGHTS),
            (self.details, DETAILS, DETAILS),
        ] {
            if known {
                w.open_doc(name).str("$meta", meta).close();
            }
        }
        w.close().close();
        w.finish()
    }

    /// The stage that goes on with documents that were wrapped.
    pub fn merged(self) -> DocBuf {
        self.merged_with(None)
    }

    /// The same, which knows `$$SEARCH_META` of the stages behind it.
    pub fn merged_with(self, search_meta: Option<Doc<'_>>) -> DocBuf {
        let mut w = Writer::new();
        w.open_doc(STAGE);
        for (known, name) in [
            (self.near, "near"),
            (self.text, "text"),
            (self.search, "search"),
            (self.vector, "vector"),
            (self.token, "token"),
            (self.highlights, "highlights"),
            (self.details, "details"),
        ] {
            if known {
                w.bool(name, true);
            }
        }
        if let Some(known) = search_meta {
            w.doc("searchMeta", known);
        }
        w.close();
        w.finish()
    }
}

/// The stage that goes on with documents that were wrapped.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    pub(super) found: Found,
    /// `$$SEARCH_META` of the stages behind it.
    pub(super) search_meta: Option<DocBuf>,
}

impl Merged {
    pub(super) fn parse(spec: Val<'_>) -> Result<Merged> {
        let names = [
            "searchMeta",
            "near",
            "text",
            "search",
            "vector",
            "token",
            "highlights",
            "details",
        ];
        let given = options(STAGE, object("", STAGE, spec)?, names)?;
        let [known, ..] = given;
        let search_meta = known.and_then(|v| v.as_doc()).map(Doc::to_buf);
        let [_, near, text, search, vector, token, highlights, details] =
            given.map(|v| v.is_some_and(Val::truthy));
        let found = Found {
            near,
            text,
            search,
            vector,
            token,
            highlights,
            details,
        };
        Ok(Merged { found, search_meta })
    }
}

/// Appends the document of a wrapped one, without the fields that were only for stages.
fn write_document(w: &mut Writer, wrapped: Doc<'_>) {
    let d = wrapped.get("d").and_then(|v| v.as_doc());
    let fields = d.unwrap_or(Doc::EMPTY).iter();
    fields
        .filter(|e| !matches!(e.name, DISTANCE | POINT))
        .for_each(|e| {
            w.val(e.name, e.val);
        });
}

/// The document of one that was wrapped.
pub fn unwrapped(wrapped: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(wrapped.len());
    write_document(&mut w, wrapped);
    w.finish()
}

/// How well one that was wrapped was found by a search.
pub fn search_score_of(wrapped: Doc<'_>) -> Option<f64> {
    let known = wrapped.get("m")?.as_doc()?;
    known
        .get(SEARCH_SCORE)
        .or(known.get(VECTOR_SCORE))?
        .to_f64()
}

/// The documents of wrapped ones, with their metadata.
pub fn going_on(wrapped: Box<dyn Source>, found: Found) -> Box<dyn Source> {
    match found.any() {
        true => Box::new(Run::new(wrapped, found)),
        false => wrapped,
    }
}

/// The distance of one that was wrapped.
pub fn distance_of(wrapped: Doc<'_>) -> Option<f64> {
    wrapped.get("m")?.as_doc()?.get("distance")?.to_f64()
}

impl Pipeline {
    /// Where other servers find what this pipeline begins with, and know more of it than a query
    /// tells: the stages for them, and the pipeline that goes on with what they give.
    pub fn found_elsewhere(&self) -> Option<(Vec<DocBuf>, Pipeline)> {
        let first = self.stages.first()?;
        let found = match &first.op {
            Op::GeoNear(_) => Found {
                near: true,
                ..Found::default()
            },
            Op::Match(f) if f.text().is_some() => Found {
                text: true,
                ..Found::default()
            },
            _ => return None,
        };
        let limit = self.stages.get(1).filter(|s| matches!(s.op, Op::Limit(_)));
        let mut there = vec![first.written()];
        there.extend(limit.map(Stage::written));
        there.push(found.wrapping());
        let spec = found.merged();
        let merged = Stage::new(
            STAGE,
            spec.as_doc().as_val(),
            Op::Merged(Arc::new(Merged {
                found,
                search_meta: None,
            })),
        );
        let mut stages = vec![merged];
        stages.extend_from_slice(self.stages.split_at(1).1);
        let rest = Pipeline {
            stages,
            optimized: self.optimized,
        };
        Some((there, rest))
    }
}

impl Pipeline {
    /// Its stages as a client may write them, in the order in which they run.
    pub fn written(&self) -> Vec<DocBuf> {
        let mut out = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            match &stage.op {
                Op::Lookup(l) => out.extend(lookup_unwind::write_apart(stage, l)),
                _ => out.push(stage.written()),
            }
        }
        out
    }

    /// The top fields of its input that it reads; `None` where it may read, or give, all of it.
    pub fn needed_fields(&self) -> Option<BTreeSet<String>> {
        self.needed_fields_from(0)
    }

    /// The same of the stages from number `from` on.
    pub fn needed_fields_from(&self, from: usize) -> Option<BTreeSet<String>> {
        let top = |p: &String| p.split('.').next().unwrap_or("").to_string();
        Some(self.needed(from)?.iter().map(top).collect())
    }
}

impl Stage {
    /// The stage as a pipeline has it.
    pub(super) fn written(&self) -> DocBuf {
        let mut w = Writer::new();
        w.val(self.name, self.spec.as_val());
        w.finish()
    }
}

pub(super) struct Run {
    input: Box<dyn Source>,
    found: Found,
    out: Vec<u8>,
    meta: Metadata,
}

impl Run {
    pub fn new(input: Box<dyn Source>, found: Found) -> Run {
        Run {
            input,
            found,
            out: Vec::new(),
            meta: Metadata::default(),
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        let given = self.input.doc();
        let known = given.get("m").and_then(|v| v.as_doc());
        let known = known.unwrap_or(Doc::EMPTY);
        let number = |name: &str| known.get(name).and_then(|v| v.to_f64());
        self.meta.text_score = number("textScore").filter(|_| self.found.text);
        self.meta.search_score = number(SEARCH_SCORE).filter(|_| self.found.search);
        self.meta.vector_score = number(VECTOR_SCORE).filter(|_| self.found.vector);
        let token = known.get(TOKEN).and_then(|v| v.as_str());
        self.meta.sequence_token = token.filter(|_| self.found.token).map(Box::from);
        let highlights = known.get(HIGHLIGHTS).filter(|_| self.found.highlights);
        self.meta.highlights = highlights.map(|v| Box::new(v.to_value()));
        let details = known.get(DETAILS).and_then(|v| v.as_doc());
        let details = details.filter(|_| self.found.details);
        self.meta.score_details = details.map(|d| Box::new(d.to_buf()));
        self.out.clear();
        let mut w = Writer::on(std::mem::take(&mut self.out));
        write_document(&mut w, given);
        if let (true, Some(distance)) = (self.found.near, known.get("distance")) {
            w.val(DISTANCE, distance);
            w.val(POINT, known.get("point").unwrap_or(Val::NULL));
        }
        self.out = w.finish_into();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        &self.meta
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}
