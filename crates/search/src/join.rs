//! From the elements of arrays to the documents that they lie in, and back.
//!
//! ```text
//! {items: [{…}, {…}]}  ─▶  element of items | element of items | the document      in this order, in one segment
//! ```
//! With `embeddedDocuments` an index has a document for each element, right before the one that the element lies in. So
//! a document's elements are those since the document before it.
//!
//! Invariant: they are written in one step and go together (their key is the same), so that each element stands before its
//! own document, also when segments are merged.
//!
//! Source: Lucene's `ToParentBlockJoinQuery` and `ToChildBlockJoinQuery`; MongoDB's manual, "embeddedDocument (Operator)",
//! "hasAncestor", "hasRoot".

use crate::compiler::{Compiler, Made};
use crate::fields::SpecificationFields;
use crate::operator::{Clause, Operator, only_clause};
use crate::problem::wrong;
use crate::score::not_explained;
use crate::set::{SetQuery, TermRange};
use crate::terms::{kind, value_prefix};
use errors::Result;
use std::ops::Bound;
use tantivy::query::{
    BitSetDocSet, BooleanQuery, ConstScoreQuery, EmptyQuery, EmptyScorer, EnableScoring,
    Explanation, Query, Scorer, Weight,
};
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED};

/// How the scores of elements become their document's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Sum,
    Maximum,
    Minimum,
    Mean,
}

/// `embeddedDocument`.
pub(crate) fn embedded(f: &SpecificationFields<'_>, depth: usize) -> Result<Operator> {
    let path = f.required_string("path")?.to_string();
    let clause = inner(f, depth)?;
    let aggregate = match aggregate(f)? {
        None | Some("sum") => Aggregate::Sum,
        Some("maximum") => Aggregate::Maximum,
        Some("minimum") => Aggregate::Minimum,
        Some("mean") => Aggregate::Mean,
        Some(_) => {
            return Err(wrong(format!(
                "\"{}\" must be one of [maximum, mean, minimum, sum]",
                f.name("score.embedded.aggregate")
            )));
        }
    };
    Ok(Operator::Embedded {
        path,
        clause,
        aggregate,
    })
}

/// The name of the aggregate; the score itself is read with those of all operators.
fn aggregate<'a>(f: &SpecificationFields<'a>) -> Result<Option<&'a str>> {
    let score = f.doc.get("score").and_then(|v| v.as_doc());
    let embedded = score.and_then(|d| d.get("embedded")?.as_doc());
    let Some(v) = embedded
        .and_then(|d| d.get("aggregate"))
        .filter(|v| !v.is_nullish())
    else {
        return Ok(None);
    };
    let name = f.name("score.embedded.aggregate");
    match v.as_str() {
        Some(s) => Ok(Some(s)),
        None => Err(wrong(format!("\"{name}\" must be a string"))),
    }
}

/// `hasAncestor` and, without a path, `hasRoot`.
pub(crate) fn ancestor(
    f: &SpecificationFields<'_>,
    depth: usize,
    of_root: bool,
) -> Result<Operator> {
    let path = match of_root {
        true => None,
        false => Some(f.required_string("ancestorPath")?.to_string()),
    };
    let clause = inner(f, depth)?;
    Ok(Operator::Ancestor { path, clause })
}

fn inner(f: &SpecificationFields<'_>, depth: usize) -> Result<Box<Clause>> {
    let operator = f.required("operator")?;
    let operator = SpecificationFields::of(&f.name("operator"), operator)?;
    let clause = only_clause(&operator, depth + 1)?;
    operator.end()?;
    Ok(Box::new(clause))
}

/// Whether a path lies within another.
pub(crate) fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|r| r.starts_with('.'))
}

impl Compiler<'_, '_> {
    /// A query for what is searched: documents, or elements of `scope`.
    pub(crate) fn top(&mut self, clause: Option<&Clause>, scope: Option<&str>) -> Result<Made> {
        self.scope = scope.map(str::to_string);
        let query = match clause {
            Some(clause) => self.clause(clause)?,
            None => Box::new(tantivy::query::AllQuery),
        };
        self.of_scope(query)
    }

    /// Those of a query's documents that are of the scope at hand.
    fn of_scope(&mut self, query: Made) -> Result<Made> {
        if self.snapshot.definition.embedded.is_empty() {
            return Ok(query);
        }
        let scope = self.scope.clone();
        let all = self.level(scope.as_deref())?;
        let unscored = ConstScoreQuery::new(Box::new(all), 0.0);
        let both: Vec<Made> = vec![query, Box::new(unscored)];
        Ok(Box::new(BooleanQuery::intersection(both)))
    }

    /// All elements at a path, or all documents.
    fn level(&mut self, path: Option<&str>) -> Result<SetQuery> {
        let exact = match path {
            None => value_prefix(u32::MAX, kind::ROOT),
            Some(path) => match self.snapshot.paths.get(path) {
                Some(n) => value_prefix(n, kind::ELEMENT),
                None => return Ok(SetQuery::default()),
            },
        };
        let range = TermRange {
            field: self.snapshot.fields.values,
            low: Bound::Included(exact.clone()),
            high: Bound::Included(exact),
        };
        SetQuery::of(&self.snapshot.searcher, &[range], self.room, &|_| true)
    }

    /// What is asked of another scope.
    fn within(&mut self, scope: Option<String>, clause: &Clause) -> Result<Made> {
        let outer = std::mem::replace(&mut self.scope, scope);
        let query = self.clause(clause).and_then(|q| self.of_scope(q));
        self.scope = outer;
        query
    }

    pub(crate) fn embedded(
        &mut self,
        path: &str,
        clause: &Clause,
        aggregate: Aggregate,
    ) -> Result<Made> {
        let known = self.snapshot.definition.embedded.contains_key(path);
        let below = self.scope.as_ref().is_none_or(|s| is_within(path, s));
        if !known || !below {
            return Err(wrong(match known {
                false => format!("path \"{path}\" needs to be indexed as embeddedDocuments"),
                true => format!(
                    "path \"{path}\" of embeddedDocument must lie within \"{}\"",
                    self.scope.as_deref().unwrap_or("")
                ),
            }));
        }
        let elements = self.within(Some(path.to_string()), clause)?;
        let scope = self.scope.clone();
        let parents = self.level(scope.as_deref())?;
        Ok(Box::new(ToParent {
            elements,
            parents,
            aggregate,
        }))
    }

    pub(crate) fn ancestor(&mut self, path: Option<&str>, clause: &Clause) -> Result<Made> {
        let name = if path.is_some() {
            "hasAncestor"
        } else {
            "hasRoot"
        };
        let Some(scope) = self.scope.clone() else {
            return Err(wrong(format!(
                "\"{name}\" needs to be within embeddedDocument, or a search with \"returnScope\""
            )));
        };
        if let Some(path) = path
            && (!self.snapshot.definition.embedded.contains_key(path) || !is_within(&scope, path))
        {
            return Err(wrong(format!(
                "\"ancestorPath\" must be a path of embeddedDocuments that \"{scope}\" lies within: {path}"
            )));
        }
        let parents = self.within(path.map(str::to_string), clause)?;
        if self.snapshot.paths.get(&scope).is_none() {
            return Ok(Box::new(EmptyQuery));
        }
        Ok(Box::new(ToElements {
            all: self.level(path)?,
            elements: self.level(Some(&scope))?,
            parents,
        }))
    }
}

/// Documents whose elements a query finds.
#[derive(Debug)]
struct ToParent {
    elements: Made,
    parents: SetQuery,
    aggregate: Aggregate,
}

impl Clone for ToParent {
    fn clone(&self) -> ToParent {
        ToParent {
            elements: self.elements.box_clone(),
            parents: self.parents.clone(),
            aggregate: self.aggregate,
        }
    }
}

impl Query for ToParent {
    fn weight(&self, scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(ToParentWeight {
            elements: self.elements.weight(scoring)?,
            parents: self.parents.clone(),
            aggregate: self.aggregate,
        }))
    }
}

struct ToParentWeight {
    elements: Box<dyn Weight>,
    parents: SetQuery,
    aggregate: Aggregate,
}

impl Weight for ToParentWeight {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let Some(parents) = self.parents.in_segment(reader) else {
            return Ok(Box::new(EmptyScorer));
        };
        let mut scorer = ParentScorer {
            elements: self.elements.scorer(reader, boost)?,
            parents,
            aggregate: self.aggregate,
            doc: 0,
            score: 0.0,
        };
        scorer.advance();
        Ok(Box::new(scorer))
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        explained(self.scorer(reader, 1.0)?, doc, "of the elements that match")
    }
}

fn explained(mut scorer: Box<dyn Scorer>, doc: DocId, how: &str) -> tantivy::Result<Explanation> {
    if scorer.doc() > doc || scorer.seek(doc) != doc {
        return Err(not_explained());
    }
    Ok(Explanation::new_with_string(
        how.to_string(),
        scorer.score(),
    ))
}

struct ParentScorer {
    elements: Box<dyn Scorer>,
    parents: BitSetDocSet,
    aggregate: Aggregate,
    doc: DocId,
    score: f32,
}

impl DocSet for ParentScorer {
    fn advance(&mut self) -> DocId {
        let first = self.elements.doc();
        if first == TERMINATED {
            self.doc = TERMINATED;
            return TERMINATED;
        }
        self.doc = match self.parents.doc() < first {
            true => self.parents.seek(first),
            false => self.parents.doc(),
        };
        let (mut sum, mut count) = (0.0f64, 0u32);
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        while self.elements.doc() < self.doc {
            let score = self.elements.score();
            sum += f64::from(score);
            count += 1;
            (low, high) = (low.min(score), high.max(score));
            self.elements.advance();
        }
        self.score = match self.aggregate {
            Aggregate::Sum => sum as f32,
            Aggregate::Mean => (sum / f64::from(count.max(1))) as f32,
            Aggregate::Maximum => high,
            Aggregate::Minimum => low,
        };
        self.doc
    }

    fn doc(&self) -> DocId {
        self.doc
    }

    fn size_hint(&self) -> u32 {
        self.elements.size_hint()
    }
}

impl Scorer for ParentScorer {
    fn score(&mut self) -> Score {
        self.score
    }
}

/// Elements of documents that a query finds.
#[derive(Debug)]
struct ToElements {
    parents: Made,
    /// All documents that may be such parents.
    all: SetQuery,
    elements: SetQuery,
}

impl Clone for ToElements {
    fn clone(&self) -> ToElements {
        ToElements {
            parents: self.parents.box_clone(),
            all: self.all.clone(),
            elements: self.elements.clone(),
        }
    }
}

impl Query for ToElements {
    fn weight(&self, scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(ToElementsWeight {
            parents: self.parents.weight(scoring)?,
            all: self.all.clone(),
            elements: self.elements.clone(),
        }))
    }
}

struct ToElementsWeight {
    parents: Box<dyn Weight>,
    all: SetQuery,
    elements: SetQuery,
}

impl Weight for ToElementsWeight {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let sets = (
            self.all.in_segment(reader),
            self.elements.in_segment(reader),
        );
        let (Some(all), Some(elements)) = sets else {
            return Ok(Box::new(EmptyScorer));
        };
        let mut scorer = ElementScorer {
            parents: self.parents.scorer(reader, boost)?,
            all,
            elements,
        };
        scorer.settle();
        Ok(Box::new(scorer))
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        explained(self.scorer(reader, 1.0)?, doc, "of the document around it")
    }
}

struct ElementScorer {
    parents: Box<dyn Scorer>,
    all: BitSetDocSet,
    elements: BitSetDocSet,
}

/// To the first document from `target` on.
fn forth(set: &mut dyn DocSet, target: DocId) -> DocId {
    match set.doc() < target {
        true => set.seek(target),
        false => set.doc(),
    }
}

impl ElementScorer {
    /// To an element whose document was found.
    fn settle(&mut self) -> DocId {
        loop {
            let element = self.elements.doc();
            if element == TERMINATED {
                return TERMINATED;
            }
            let parent = forth(&mut self.all, element);
            let found = forth(&mut self.parents, parent);
            if found == TERMINATED || parent == TERMINATED {
                return self.elements.seek(TERMINATED);
            }
            if found == parent {
                return element;
            }
            // Elements of documents that were not found are passed over.
            self.elements.advance();
        }
    }
}

impl DocSet for ElementScorer {
    fn advance(&mut self) -> DocId {
        self.elements.advance();
        self.settle()
    }

    fn doc(&self) -> DocId {
        self.elements.doc()
    }

    fn size_hint(&self) -> u32 {
        self.elements.size_hint()
    }
}

impl Scorer for ElementScorer {
    fn score(&mut self) -> Score {
        self.parents.score()
    }
}
