//! `$search`, `$searchMeta`, `$vectorSearch`: stages that find documents by an index beside the
//! collection. What they ask is read where the index is ([`PipelineHost::search`]).

use super::merged::Found;
use super::{
    IdleVisitor, Namespace, Op, Pipeline, PipelineHost, Source, Stage, StageProfiler, write_common,
};
use crate::expr::SearchMeta;
use crate::metadata::Metadata;
use crate::sort::SortPattern;
use bson::{Doc, DocBuf, Val, Writer, doc, tag};
use errors::{Error, Result, bail, err};
use std::sync::Arc;

/// Which of the stages it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchKind {
    /// Documents by text, best first.
    Search,
    /// One document with the metadata of all results.
    Meta,
    /// Documents by a vector, nearest first.
    Vector,
}

/// A search, not read yet.
#[derive(Clone, Debug)]
pub struct SearchStage {
    pub kind: SearchKind,
    /// The collection or view that it is on.
    pub ns: Namespace,
    pub spec: DocBuf,
    /// Documents that this filter does not let through are not there: orphans, at a shard.
    pub shown: Option<DocBuf>,
    /// The documents of synonym mappings by their names, where a router has read them.
    pub synonyms: Option<DocBuf>,
    /// What stages behind it read of what it found.
    pub asks: SearchMetaFields,
}

/// What stages behind a search ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchMetaFields {
    /// `$$SEARCH_META`
    pub meta: bool,
    /// `$meta: "searchSequenceToken"`
    pub token: bool,
    /// `$meta: "searchHighlights"`
    pub highlights: bool,
    /// `$meta: "scoreDetails"`
    pub details: bool,
}

impl SearchMetaFields {
    /// Of the stages as they are written.
    pub fn of<'a>(behind: impl IntoIterator<Item = Val<'a>>) -> SearchMetaFields {
        let mut asks = SearchMetaFields::default();
        for stage in behind {
            let has = |name: &str| memchr::memmem::find(stage.bytes, name.as_bytes()).is_some();
            asks.meta |= has("$SEARCH_META");
            asks.token |= has("searchSequenceToken");
            asks.highlights |= has("searchHighlights");
            asks.details |= has("scoreDetails");
        }
        asks
    }
}

/// The field of a stage's specification in which a shard names the documents that it shows.
pub const SHOWN: &str = "$_pandoShown";

/// The field in which a router sends the documents of synonym mappings.
pub const SYNONYMS: &str = "$_pandoSynonyms";

impl SearchKind {
    pub fn stage_name(self) -> &'static str {
        match self {
            SearchKind::Search => "$search",
            SearchKind::Meta => "$searchMeta",
            SearchKind::Vector => "$vectorSearch",
        }
    }
}

impl SearchStage {
    pub(super) fn parse(name: &str, spec: Val<'_>, ns: Namespace) -> Result<SearchStage> {
        if spec.tag == tag::ARRAY {
            bail!(
                FailedToParse,
                "{name} value must be an object. Found: array"
            );
        }
        let Some(d) = spec.as_doc() else {
            bail!(10065, "invalid parameter: expected an object ({name})");
        };
        let kind = match name {
            "$search" => SearchKind::Search,
            "$searchMeta" => SearchKind::Meta,
            _ => SearchKind::Vector,
        };
        let bad = ["scoreDetails", "returnStoredSource"].into_iter();
        let mut bad = bad.filter_map(|name| Some((name, d.get(name)?)));
        // Of the others the index says so itself.
        let checked = |name: &str| match kind {
            SearchKind::Search => true,
            SearchKind::Meta => name == "scoreDetails",
            SearchKind::Vector => false,
        };
        if let Some((name, v)) = bad.find(|(name, v)| v.as_bool().is_none() && checked(name)) {
            bail!(
                13111,
                "wrong type for field ({name}) {} != bool",
                v.type_name()
            );
        }
        if let Some(v) = d.get("filter").filter(|_| kind == SearchKind::Vector)
            && v.as_doc().is_none()
            && v.as_array().is_none()
        {
            bail!(10065, "invalid parameter: expected an object (filter)");
        }
        let shown = d.get(SHOWN).and_then(|v| v.as_doc());
        let synonyms = d.get(SYNONYMS).and_then(|v| v.as_doc());
        let mut own = Writer::new();
        let is_own = |name: &str| name != SHOWN && name != SYNONYMS;
        d.iter().filter(|e| is_own(e.name)).for_each(|e| {
            own.val(e.name, e.val);
        });
        Ok(SearchStage {
            kind,
            ns,
            spec: own.finish(),
            shown: shown.map(Doc::to_buf),
            synonyms: synonyms.map(Doc::to_buf),
            asks: SearchMetaFields::default(),
        })
    }

    /// The stages for the server that has the documents, and the metadata of those that it gives.
    pub fn remote_stages(&self, limit: Option<u64>) -> (Vec<DocBuf>, Found) {
        let mut stage = Writer::new();
        stage.doc(self.kind.stage_name(), self.spec.as_doc());
        let mut stages = vec![stage.finish()];
        let found = Found::of_search(stages.iter().map(|s| s.as_doc().as_val()), self.asks);
        if let (true, Some(most)) = (found.search, limit.filter(|n| *n > 0)) {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            stages.push(doc! {"$limit": most});
        }
        if found.any() {
            stages.push(found.wrapping());
        }
        (stages, found)
    }

    /// The stage, for the server that has the documents, that gives the metadata of all of them.
    pub fn meta_elsewhere(&self) -> DocBuf {
        doc! {"$searchMeta": self.spec.clone()}
    }

    /// Whether it gives what `$meta: "scoreDetails"` shows.
    pub(super) fn gives_details(&self) -> bool {
        gives_details(self.spec.as_doc())
    }
}

pub(super) fn gives_details(spec: Doc<'_>) -> bool {
    spec.get("scoreDetails").and_then(|v| v.as_bool()) == Some(true)
}

/// Where there are no search indexes.
pub fn not_here() -> Error {
    err!(SearchNotEnabled, "there are no search indexes here")
}

/// How many documents the stages behind a search want, at most; `None`: all.
pub(super) fn wanted(behind: &[Stage]) -> Option<u64> {
    let mut skipped = 0u64;
    for stage in behind {
        match stage.op {
            Op::Skip(n) => skipped = skipped.saturating_add(n),
            Op::Limit(n) => return Some(skipped.saturating_add(n)),
            // They pass on what they are given, one for one.
            Op::Transform(_) | Op::Inhibit => {}
            _ => return None,
        }
    }
    None
}

impl Pipeline {
    /// The search that it begins with.
    pub fn search(&self) -> Option<&SearchStage> {
        match &self.stages.first()?.op {
            Op::Search(stage) => Some(stage),
            _ => None,
        }
    }
}

impl SearchStage {
    /// The stages that explain shows for it: the search with what the index tells of it, and the reading of the
    /// documents that it has found.
    pub fn explain(&self, told: Doc<'_>, counted: Option<(&StageProfiler, usize)>) -> Vec<DocBuf> {
        let figures = counted.and_then(|(watch, n)| watch.figures(n));
        let finish = |mut w: Writer| {
            if let Some(figures) = figures {
                write_common(figures, &mut w);
            }
            w.finish()
        };
        let mut w = Writer::new();
        match self.kind {
            SearchKind::Search => {
                w.open_doc("$_internalSearchMongotRemote");
                w.doc("mongotQuery", self.spec.as_doc())
                    .doc("explain", told);
                w.bool("requiresSearchMetaCursor", self.asks.meta);
            }
            SearchKind::Meta => {
                w.open_doc("$searchMeta");
                w.doc("mongotQuery", self.spec.as_doc())
                    .doc("explain", told);
            }
            SearchKind::Vector => {
                w.open_doc("$vectorSearch").extend(self.spec.as_doc());
                w.doc("explain", told);
            }
        }
        w.close();
        let mut stages = vec![finish(w)];
        if self.kind != SearchKind::Meta {
            let mut w = Writer::new();
            w.open_doc("$_internalSearchIdLookup").close();
            stages.push(finish(w));
        }
        stages
    }
}

/// Opens the search when it is first asked for a document.
pub(super) struct Run {
    stage: Arc<SearchStage>,
    limit: Option<u64>,
    known: Option<Arc<SearchMeta>>,
    found: Option<Box<dyn Source>>,
}

impl Run {
    pub fn new(stage: Arc<SearchStage>, limit: Option<u64>, known: Option<Arc<SearchMeta>>) -> Run {
        Run {
            stage,
            limit,
            known,
            found: None,
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        let found = match &mut self.found {
            Some(found) => found,
            None => {
                let found = host.search(&self.stage, self.limit, self.known.as_deref())?;
                self.found.insert(found)
            }
        };
        found.advance(host)
    }

    fn doc(&self) -> Doc<'_> {
        self.found.as_ref().map_or(Doc::EMPTY, |f| f.doc())
    }

    fn meta(&self) -> &Metadata {
        self.found.as_ref().map_or(Metadata::NONE, |f| f.meta())
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        match &mut self.found {
            Some(found) => found.parts(wanted, to),
            None => Ok(()),
        }
    }
}

/// The results in the order of their sequence tokens, or the reverse of it.
pub fn by_token(found: Box<dyn Source>, backwards: bool, limit: Option<u64>) -> Box<dyn Source> {
    let order = super::sort::Order::Token { backwards };
    Box::new(super::sort::Run::new(found, order, limit))
}

/// The results in another order.
pub fn sorted(found: Box<dyn Source>, by: Doc<'_>, limit: Option<u64>) -> Result<Box<dyn Source>> {
    let pattern = Arc::new(SortPattern::parse_found(by)?);
    let order = super::sort::Order::By(pattern);
    Ok(Box::new(super::sort::Run::new(found, order, limit)))
}
