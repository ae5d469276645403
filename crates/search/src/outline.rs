//! What a search is made of, for explain: its operators as the queries that Lucene would have of them.
//!
//! ```text
//! {query: {type, path, args: {…}, stats}, collectors: {…}, highlight, metadata: {indexName, totalLuceneDocs}}
//! ```
//! `stats` is there where the search has run: how many documents matched and were scored, and how long that took.
//!
//! Source: MongoDB's manual, "How to Retrieve a Query Plan and Execution Statistics".

use crate::definition::StringType;
use crate::files::IndexSnapshot;
use crate::operator::{Clause, Operator, PathSpec, ScoreChange};
use crate::query_vector::QueryVector;
use crate::search::Search;
use crate::vector::VectorSearch;
use bson::{DocBuf, Writer};
use errors::Result;
use errors::operation::step;
use std::time::Duration;

/// The most words of a text that are written, and the most operators in all.
const MOST_WORDS: usize = 50;
const MOST_WRITTEN: usize = 1_000;

/// What a run has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Documents that matched.
    pub matched: u64,
    pub time: Duration,
}

impl Search {
    /// What it is made of; with `counted` after a run.
    pub fn outline(&self, snapshot: &IndexSnapshot, counted: Option<Counted>) -> Result<DocBuf> {
        let mut w = Writer::new();
        let mut outline = Outline {
            snapshot,
            w: &mut w,
            left: MOST_WRITTEN,
        };
        match &self.clause {
            Some(clause) => outline.clause("query", "", clause, counted)?,
            None => outline.plain("query", "MatchAllDocsQuery"),
        }
        w.open_doc("collectors").open_doc("allCollectorStats");
        if let Some(c) = counted {
            write_millis(&mut w, c.time);
            w.open_doc("invocationCounts")
                .i64("collect", long(c.matched))
                .close();
        }
        w.close();
        if !self.facets.is_empty() {
            self.write_facets(&mut w);
        }
        if let Some(sort) = &self.sort {
            w.open_doc("sort").doc("fields", sort.as_doc()).close();
        }
        w.close();
        if self.highlight.is_some() {
            w.open_doc("highlight").close();
        }
        write_metadata(&mut w, &self.index, snapshot);
        Ok(w.finish())
    }

    fn write_facets(&self, w: &mut Writer) {
        w.open_doc("facet").open_doc("collectorDefinitions");
        for facet in &self.facets {
            facet.outline(w);
        }
        w.close().close();
    }
}

impl VectorSearch {
    /// The same of a search by a vector.
    pub fn outline(&self, snapshot: &IndexSnapshot, counted: Option<Counted>) -> Result<DocBuf> {
        let mut w = Writer::new();
        let vector = self.vector();
        w.open_doc("query").str("path", &vector.path);
        let filter = self.filter_of(snapshot);
        let mut outline = Outline {
            snapshot,
            w: &mut w,
            left: MOST_WRITTEN,
        };
        outline.nearest(vector, self.limit, filter.as_ref())?;
        write_stats(&mut w, counted);
        w.close();
        write_metadata(&mut w, &self.index, snapshot);
        Ok(w.finish())
    }
}

fn long(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn write_millis(w: &mut Writer, time: Duration) {
    w.f64("millisElapsed", time.as_secs_f64() * 1000.0);
}

fn write_stats(w: &mut Writer, counted: Option<Counted>) {
    let Some(c) = counted else { return };
    w.open_doc("stats");
    for (name, step) in [("match", "nextDoc"), ("score", "score")] {
        w.open_doc(name);
        write_millis(w, c.time);
        w.open_doc("invocationCounts")
            .i64(step, long(c.matched))
            .close();
        w.close();
    }
    w.close();
}

fn write_metadata(w: &mut Writer, index: &str, snapshot: &IndexSnapshot) {
    let all = u64::from(
        snapshot
            .searcher
            .segment_readers()
            .iter()
            .map(|s| s.max_doc())
            .sum::<u32>(),
    );
    w.open_doc("metadata")
        .str("indexName", index)
        .i64("totalLuceneDocs", long(all))
        .close();
}

struct Outline<'a> {
    snapshot: &'a IndexSnapshot,
    w: &'a mut Writer,
    /// How many more operators are written.
    left: usize,
}

impl Outline<'_> {
    fn plain(&mut self, name: &str, kind: &str) {
        self.w
            .open_doc(name)
            .str("type", kind)
            .open_doc("args")
            .close()
            .close();
    }

    /// `at`: the place within the operators around it.
    fn clause(
        &mut self,
        name: &str,
        at: &str,
        clause: &Clause,
        counted: Option<Counted>,
    ) -> Result<()> {
        step()?;
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        self.w.open_doc(name);
        if !at.is_empty() {
            self.w.str("path", at);
        }
        match clause.score {
            ScoreChange::None => self.operator(at, &clause.operator)?,
            ScoreChange::Boost(by) => {
                self.w.str("type", "BoostQuery").open_doc("args");
                self.w.f64("boost", f64::from(by)).open_doc("query");
                self.operator(at, &clause.operator)?;
                self.w.close().close();
            }
            ScoreChange::Constant(_) => {
                self.w
                    .str("type", "ConstantScoreQuery")
                    .open_doc("args")
                    .open_doc("query");
                self.operator(at, &clause.operator)?;
                self.w.close().close();
            }
        }
        write_stats(self.w, counted);
        self.w.close();
        Ok(())
    }

    fn operator(&mut self, at: &str, operator: &Operator) -> Result<()> {
        match operator {
            Operator::Text { paths, text } => self.words(paths, &text.query, text.fuzzy.is_some()),
            Operator::Phrase {
                paths, query, slop, ..
            } => self.phrase(paths, query, *slop),
            Operator::Compound {
                must,
                should,
                must_not,
                filter,
                least,
            } => {
                self.w.str("type", "BooleanQuery").open_doc("args");
                let lists = [
                    ("must", must),
                    ("mustNot", must_not),
                    ("should", should),
                    ("filter", filter),
                ];
                for (name, clauses) in lists {
                    let place = match at.is_empty() {
                        true => format!("compound.{name}"),
                        false => format!("{at}.compound.{name}"),
                    };
                    self.clauses(name, &place, clauses)?;
                }
                self.w
                    .i64("minimumShouldMatch", long(*least as u64))
                    .close();
                Ok(())
            }
            Operator::Embedded { path, clause, .. } => {
                self.w
                    .str("type", "ToParentBlockJoinQuery")
                    .open_doc("args");
                self.w.str("path", path);
                self.clause("query", "embeddedDocument.operator", clause, None)?;
                self.w.close();
                Ok(())
            }
            Operator::Ancestor { clause, .. } => {
                self.w.str("type", "ToChildBlockJoinQuery").open_doc("args");
                self.clause("query", "operator", clause, None)?;
                self.w.close();
                Ok(())
            }
            Operator::Nearest(n) => self.nearest(&n.vector, n.limit, n.filter.as_deref()),
            other => {
                let (kind, paths) = leaf(other);
                self.w.str("type", kind).open_doc("args");
                if let [one] = &paths[..] {
                    self.w.str("path", one);
                } else if !paths.is_empty() {
                    self.w.open_array("path");
                    paths.iter().for_each(|p| {
                        self.w.str("", p);
                    });
                    self.w.close();
                }
                self.w.close();
                Ok(())
            }
        }
    }

    fn nearest(
        &mut self,
        vector: &QueryVector,
        limit: usize,
        filter: Option<&Clause>,
    ) -> Result<()> {
        let kind = match vector.is_exact() {
            true => "ExactVectorSearchQuery",
            false => "KnnFloatVectorQuery",
        };
        self.w.str("type", kind).open_doc("args");
        self.w
            .str("path", &vector.path)
            .i64("k", long(limit as u64));
        if let Some(n) = vector.candidates {
            self.w.i64("numCandidates", long(n as u64));
        }
        if let Some(filter) = filter {
            self.clause("filter", "", filter, None)?;
        }
        self.w.close();
        Ok(())
    }

    fn clauses(&mut self, name: &str, place: &str, clauses: &[Clause]) -> Result<()> {
        if clauses.is_empty() {
            return Ok(());
        }
        self.w.open_array(name);
        for (n, c) in clauses.iter().enumerate() {
            let place = match clauses.len() {
                1 => place.to_string(),
                _ => format!("{place}[{n}]"),
            };
            self.clause("", &place, c, None)?;
        }
        self.w.close();
        Ok(())
    }

    /// The analyzed paths, with their names.
    fn places(&self, paths: &[PathSpec]) -> Vec<(String, StringType)> {
        let definition = &self.snapshot.definition;
        let one = |p: &PathSpec| match p {
            PathSpec::Path(path) => Some((path.clone(), definition.analyzers(path, None)?)),
            PathSpec::Multi(path, multi) => {
                Some((path.clone(), definition.analyzers(path, Some(multi))?))
            }
            PathSpec::Wildcard(pattern) => Some((pattern.clone(), definition.default.clone())),
        };
        paths.iter().filter_map(one).collect()
    }

    fn words(&mut self, paths: &[PathSpec], query: &[String], fuzzy: bool) -> Result<()> {
        let kind = if fuzzy { "FuzzyQuery" } else { "TermQuery" };
        let mut terms = Vec::new();
        for (path, analyzers) in self.places(paths) {
            for token in query.iter().flat_map(|q| analyzers.search.tokens(q)) {
                step()?;
                terms.push((path.clone(), token.text));
            }
        }
        terms.truncate(MOST_WORDS);
        let write = |w: &mut Writer, (path, value): &(String, String)| {
            w.str("type", kind).open_doc("args");
            w.str("path", path).str("value", value).close();
        };
        if let [one] = &terms[..] {
            write(self.w, one);
            return Ok(());
        }
        self.w
            .str("type", "BooleanQuery")
            .open_doc("args")
            .open_array("should");
        for term in &terms {
            self.w.open_doc("");
            write(self.w, term);
            self.w.close();
        }
        self.w.close().close();
        Ok(())
    }

    fn phrase(&mut self, paths: &[PathSpec], query: &[String], slop: u32) -> Result<()> {
        self.w.str("type", "PhraseQuery").open_doc("args");
        if let Some((path, analyzers)) = self.places(paths).into_iter().next() {
            let tokens = query.iter().flat_map(|q| analyzers.search.tokens(q));
            let words: Vec<String> = tokens.take(MOST_WORDS).map(|t| t.text).collect();
            self.w
                .str("path", &path)
                .str("query", &format!("[{}]", words.join(", ")));
        }
        self.w.i64("slop", i64::from(slop)).close();
        Ok(())
    }
}

/// The query and the paths of an operator that has no others.
fn leaf(operator: &Operator) -> (&'static str, Vec<String>) {
    let of = |specs: &[PathSpec]| -> Vec<String> {
        let name = |p: &PathSpec| match p {
            PathSpec::Path(p) | PathSpec::Multi(p, _) | PathSpec::Wildcard(p) => p.clone(),
        };
        specs.iter().map(name).collect()
    };
    match operator {
        Operator::Values { paths, .. } => ("ConstantScoreQuery", paths.clone()),
        Operator::Exists { path } => ("FieldExistsQuery", vec![path.clone()]),
        Operator::Range { paths, .. } => ("IndexOrDocValuesQuery", paths.clone()),
        Operator::Near { paths, .. } => ("LongDistanceFeatureQuery", paths.clone()),
        Operator::NearPoint { paths, .. } => ("LatLonPointDistanceFeatureQuery", paths.clone()),
        Operator::Place { paths, shapes, .. } => match shapes {
            true => ("LatLonShapeQuery", paths.clone()),
            false => ("LatLonPointQuery", paths.clone()),
        },
        Operator::Pattern { paths, regex, .. } => match regex {
            true => ("RegexpQuery", of(paths)),
            false => ("WildcardQuery", of(paths)),
        },
        Operator::Autocomplete { path, .. } => ("AutocompleteQuery", vec![path.clone()]),
        Operator::Span(spans) => {
            let mut paths = Vec::new();
            spans.each(true, &mut |words, _| paths.extend(of(&words.paths)));
            ("SpanQuery", paths)
        }
        _ => ("DefaultQuery", Vec::new()),
    }
}
