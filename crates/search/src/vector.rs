//! Vectors of documents, and searches for the nearest.
//!
//! The library's index knows the slot of each document's vector (a column), so what is deleted or filtered there is
//! never given. A search compares all vectors that are left, or those that a graph leads to ([`crate::near`]).

use crate::definition::{Definition, OrProblem};
use crate::fields::Fields;
use crate::files::{PARENTS_COLUMN, Snapshot};
use crate::hits::{Hit, Hits, keep_best};
use crate::near::{self, Wanted};
use crate::nested::{self, Parents, ScoreMode};
use crate::operator::Clause;
use crate::problem::wrong;
use crate::room::Room;
use crate::slots::SlotReader;
use crate::vector_definition::{Similarity, VectorField};
use bson::{Doc, DocBuf, Val};
use errors::operation::steps;
use errors::{Code, Result};
use std::collections::BinaryHeap;
use tantivy::DocAddress;

/// The subtype of BSON's vectors.
const SUBTYPE: u8 = 9;

/// From this many results on an exact search is refused, as Lucene refuses it.
const MOST_EXACT: i32 = i32::MAX - 16;

/// What a vector's elements were, before they became floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Floats,
    Bytes,
    Bits,
}

/// The vector of a value: an array of numbers, or BinData of the vector subtype; `None`: it is neither.
pub(crate) fn vector_of(v: Val<'_>) -> Option<(Vec<f32>, Elements)> {
    if let Some(list) = v.as_array() {
        let number = |v: Val<'_>| match v.as_decimal() {
            None if v.is_number() => v.to_f64().map(|n| n as f32),
            _ => None,
        };
        let numbers: Option<Vec<f32>> = list.values().map(number).collect();
        return numbers.map(|n| (n, Elements::Floats));
    }
    let (SUBTYPE, bytes) = v.as_binary()? else {
        return None;
    };
    let (kind, padding, rest) = (bytes.first()?, bytes.get(1)?, bytes.get(2..)?);
    match (kind, padding) {
        (0x27, 0) if rest.len().is_multiple_of(4) => {
            let floats = rest
                .chunks_exact(4)
                .filter_map(|c| Some(f32::from_le_bytes(c.try_into().ok()?)));
            Some((floats.collect(), Elements::Floats))
        }
        (0x03, 0) => Some((
            rest.iter().map(|b| f32::from(*b as i8)).collect(),
            Elements::Bytes,
        )),
        (0x10, 0) => {
            let bits = rest
                .iter()
                .flat_map(|b| (0..8).rev().map(move |i| f32::from(b >> i & 1)));
            Some((bits.collect(), Elements::Bits))
        }
        _ => None,
    }
}

/// A vector of a document, if the field can hold it.
pub(crate) fn stored_vector(field: &VectorField, doc: Doc<'_>) -> Option<(Vec<f32>, Elements)> {
    let mut at = doc.as_val();
    for part in field.path.split('.') {
        at = at.as_doc()?.get(part)?;
    }
    let (vector, elements) = vector_of(at)?;
    let fits = vector.len() == field.dimensions && vector.iter().all(|n| n.is_finite());
    let zero = field.similarity == Similarity::Cosine && vector.iter().all(|n| *n == 0.0);
    // Bits have no direction.
    let bits = elements == Elements::Bits && field.similarity != Similarity::Euclidean;
    (fits && !zero && !bits).then_some((vector, elements))
}

/// A `$vectorSearch`.
#[derive(Clone, Debug)]
pub struct VectorSearch {
    pub index: String,
    path: String,
    query: Vec<f32>,
    elements: Elements,
    pub limit: usize,
    exact: bool,
    /// How many the graph gives, to be compared exactly.
    candidates: usize,
    filter: Option<Clause>,
    /// What is asked of a document whose elements have the vectors.
    parents: Option<Clause>,
    score_mode: Option<ScoreMode>,
    /// Documents are given as the index has stored them.
    stored: bool,
    /// It asks for what only an explanation tells (`explainOptions`).
    traces: bool,
}

impl VectorSearch {
    /// From the stage's document.
    pub fn parse(stage: Doc<'_>) -> Result<VectorSearch> {
        let f = Fields::new("", stage);
        let limit = limit(&f)?;
        let index = f.required_string("index")?;
        if index.is_empty() {
            return Err(wrong("\"index\" cannot be empty"));
        }
        let path = f.required_string("path")?;
        let (query, elements) = query(&f)?;
        let candidates = candidates(&f, limit)?;
        if let Some(preference) = f.doc("searchNodePreference")? {
            preference.required_string("key")?;
        }
        let parents = match f.doc("parentFilter")? {
            None => None,
            Some(d) => crate::filter::clause_of(d.doc).map_err(of_parents)?,
        };
        let score_mode = f.doc("nestedOptions")?.map(score_mode).transpose()?;
        let traces = f.doc("explainOptions")?.map(check_trace).transpose()?;
        let stored = f.flag("returnStoredSource")? == Some(true);
        let filter = match stage.get("filter") {
            None => None,
            Some(v) => match v.as_doc() {
                Some(d) => crate::filter::clause_of(d)?,
                None => return Err(wrong("\"filter\" must be a document")),
            },
        };
        Ok(VectorSearch {
            index: index.to_string(),
            path: path.to_string(),
            query,
            elements,
            limit: usize::try_from(limit).unwrap_or(0),
            exact: candidates.is_none(),
            candidates: usize::try_from(candidates.unwrap_or(0)).unwrap_or(0),
            filter,
            parents,
            score_mode,
            stored,
            traces: traces.is_some(),
        })
    }

    /// The same for explain, which has `explainOptions` allowed.
    pub fn parse_explained(stage: Doc<'_>) -> Result<VectorSearch> {
        let mut search = VectorSearch::parse(stage)?;
        if let Some(options) = stage.get("explainOptions").and_then(|v| v.as_doc()) {
            let ids = options.get("traceDocumentIds").and_then(|v| v.as_array());
            if ids.is_none_or(|l| l.values().any(|v| v.is_nullish())) {
                return Err(wrong(
                    "\"explainOptions.traceDocumentIds\" must be an array without nulls",
                ));
            }
        }
        search.traces = false;
        Ok(search)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn candidates(&self) -> usize {
        self.candidates
    }

    pub(crate) fn filter_of(&self, snapshot: &Snapshot) -> Option<Clause> {
        self.filter(&snapshot.definition)
    }

    /// The projection of what the index has stored, where that is asked for.
    pub fn stored(&self, definition: &Definition) -> Result<Option<DocBuf>> {
        match self.stored {
            true => definition.given(&self.index),
            false => Ok(None),
        }
    }

    /// The filter over what an index has as documents.
    fn filter(&self, definition: &Definition) -> Option<Clause> {
        let mut parents = self.parents.clone();
        if let Some(parents) = &mut parents
            && definition.nested_root.is_some()
        {
            nested::ask_parents(parents);
        }
        let both: Vec<Clause> = self.filter.iter().cloned().chain(parents).collect();
        (!both.is_empty()).then(|| crate::filter::all_of(both))
    }

    /// The nearest documents, at most `most`. All vectors that the filter lets through are compared where `exact` is
    /// asked for, or where that is no more work than to walk a graph.
    pub fn find(&self, snapshot: Snapshot, most: usize, room: &mut Room<'_>) -> Result<Hits> {
        let definition = snapshot.definition.clone();
        let mut fields = definition.vectors.iter().enumerate();
        let Some((number, field)) = fields.find(|(_, f)| f.path == self.path) else {
            return Err(wrong(format!(
                "Path '{}' needs to be indexed as vector",
                self.path
            )));
        };
        self.check(field)?;
        if self.exact && self.limit >= MOST_EXACT as usize {
            return Err(wrong("\"limit\" is too great for an exact search"));
        }
        if self.traces {
            return Err(wrong("\"explainOptions\" is for explain only"));
        }
        if self.score_mode.is_some() && definition.nested_root.is_none() {
            return Err(wrong(
                "\"nestedOptions\" needs an index with \"nestedRoot\"",
            ));
        }
        let filter = self.filter(&definition);
        let wanted = Wanted {
            number,
            elements: self.elements,
            query: &self.query,
            filter: filter.as_ref(),
            most: self.candidates.max(most),
        };
        let mut compared = 0;
        let found = match self.exact {
            true => None,
            false => near::candidates(&snapshot, &wanted, room, &mut compared)?,
        };
        let mut slots = match found {
            Some(slots) => slots,
            None => near::all(&snapshot, &wanted, room)?,
        };
        slots.sort_unstable();
        compared += slots.len();
        let best = match definition.nested_root {
            None => {
                let mut best = BinaryHeap::new();
                self.each_score(&snapshot, (number, field), &slots, |hit| {
                    keep_best(&mut best, hit, most);
                    Ok(())
                })?;
                best
            }
            Some(_) => self.nearest_parents(&snapshot, (number, field), (&slots, most), room)?,
        };
        let count = best.len() as u64;
        let mut hits = Hits::of(snapshot, best, count);
        hits.compared = compared;
        Ok(hits)
    }

    fn check(&self, field: &VectorField) -> Result<()> {
        let n = self.query.len();
        if n != field.dimensions {
            return Err(wrong(format!(
                "vector field is indexed with {} dimensions but queried with {n}",
                field.dimensions
            )));
        }
        let cosine = field.similarity == Similarity::Cosine;
        if self.elements == Elements::Bits && field.similarity != Similarity::Euclidean {
            return Err(wrong("binary vectors need euclidean similarity"));
        }
        if cosine && self.query.iter().all(|n| *n == 0.0) {
            return Err(wrong(
                "Cosine similarity cannot be calculated against a zero vector.",
            ));
        }
        Ok(())
    }

    /// Documents by the scores of their elements.
    fn nearest_parents(
        &self,
        snapshot: &Snapshot,
        (number, field): (usize, &VectorField),
        (slots, most): (&[(u64, DocAddress)], usize),
        room: &mut Room<'_>,
    ) -> Result<BinaryHeap<Hit>> {
        let readers = snapshot.searcher.segment_readers().iter();
        let column = |r: &tantivy::SegmentReader| r.fast_fields().column_opt::<i64>(PARENTS_COLUMN);
        let columns = readers.map(|r| column(r).or_problem());
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        let mut parents = Parents::default();
        self.each_score(snapshot, (number, field), slots, |hit| {
            let column = columns.get(hit.at.segment_ord as usize);
            let parent = column.and_then(|c| c.as_ref()?.first(hit.at.doc_id));
            let before = parents.len();
            parents.add(u64::try_from(parent.unwrap_or(0)).unwrap_or(0), hit);
            match parents.len() > before {
                true => room.take(size_of::<(u64, (Hit, f64, u32))>() * 2),
                false => Ok(()),
            }
        })?;
        let mode = self.score_mode.unwrap_or(ScoreMode::Max);
        let mut best = BinaryHeap::new();
        for hit in parents.hits(mode) {
            keep_best(&mut best, hit, most);
        }
        Ok(best)
    }

    /// Compares the vectors of slots with the query.
    fn each_score(
        &self,
        snapshot: &Snapshot,
        (number, field): (usize, &VectorField),
        wanted: &[(u64, DocAddress)],
        mut each: impl FnMut(Hit) -> Result<()>,
    ) -> Result<()> {
        let file = snapshot.vectors.get(number).cloned();
        let Some(file) = file.filter(|_| !wanted.is_empty()) else {
            return Ok(());
        };
        // A few that lie far apart are read one by one.
        let slots = snapshot.slots.get(number).copied().unwrap_or(0);
        let at_once = match wanted.len() as u64 > slots / 16 {
            true => usize::MAX,
            false => 1,
        };
        let mut reader = SlotReader::new(file, field.dimensions, at_once);
        let of = (field.similarity, self.elements);
        for (slot, at) in wanted {
            steps(1 + field.dimensions / 64)?;
            each(Hit {
                score: score(of, &self.query, reader.read(*slot)?),
                at: *at,
            })?;
        }
        Ok(())
    }
}

fn check_trace(options: Fields<'_>) -> Result<()> {
    if let Some(ids) = options.get("traceDocumentIds")
        && ids.as_array().is_none_or(|list| list.is_empty())
    {
        return Err(wrong(
            "\"explainOptions.traceDocumentIds\" must be a non-empty array",
        ));
    }
    options.end()
}

/// A mistake in a parent filter: all have one code, unlike those in the filter.
fn of_parents(e: errors::Stop) -> errors::Stop {
    match [Code::BadValue, Code(5626500)].iter().any(|c| e.is(*c)) {
        true => wrong(e.into_error().into_message()),
        false => e,
    }
}

/// The vector whose nearest are looked for.
fn query(f: &Fields<'_>) -> Result<(Vec<f32>, Elements)> {
    if f.get("model").is_some() || f.get("query").is_some() {
        return Err(wrong(
            "\"query\" and \"model\" cannot be used with \"queryVector\"",
        ));
    }
    let Some((query, elements)) = vector_of(f.required("queryVector")?) else {
        return Err(wrong(
            "\"queryVector\" must be an array of numbers or a vector",
        ));
    };
    match query.iter().all(|n| n.is_finite()) {
        true => Ok((query, elements)),
        false => Err(wrong("\"queryVector\" must have finite elements")),
    }
}

/// `numCandidates`; `None`: all are compared.
fn candidates(f: &Fields<'_>, limit: i32) -> Result<Option<i32>> {
    let exact = f.flag("exact")?.unwrap_or(false);
    let candidates = f.int("numCandidates", 1, 10_000)?;
    match (exact, candidates) {
        (true, Some(_)) => Err(wrong(
            "\"numCandidates\" must be omitted if \"exact\" is true",
        )),
        (false, None) => Err(wrong("\"numCandidates\" is required if \"exact\" is false")),
        (false, Some(n)) if n < limit => Err(wrong(
            "\"numCandidates\" must be greater than or equal to \"limit\"",
        )),
        _ => Ok(candidates),
    }
}

/// How elements' scores become a document's.
fn score_mode(options: Fields<'_>) -> Result<ScoreMode> {
    let mode = match options.string("scoreMode")? {
        None | Some("max") => ScoreMode::Max,
        Some("avg") => ScoreMode::Avg,
        Some(_) => {
            return Err(wrong(
                "\"nestedOptions.scoreMode\" must be one of [avg, max]",
            ));
        }
    };
    options.end()?;
    Ok(mode)
}

/// How alike two vectors are, as MongoDB tells it: from 0 to 1, but for a dot product of longer vectors. Bytes have the
/// scores of Lucene's `VectorUtil`.
fn score((similarity, elements): (Similarity, Elements), query: &[f32], stored: &[u8]) -> f32 {
    let numbers = stored
        .chunks_exact(4)
        .filter_map(|c| Some(f32::from_le_bytes(c.try_into().ok()?)));
    let (mut dot, mut own, mut other, mut distance) = (0f64, 0f64, 0f64, 0f64);
    for (a, b) in query.iter().zip(numbers) {
        let (a, b) = (f64::from(*a), f64::from(b));
        match similarity {
            Similarity::Euclidean => distance += (a - b) * (a - b),
            Similarity::DotProduct => dot += a * b,
            Similarity::Cosine => {
                dot += a * b;
                own += a * a;
                other += b * b;
            }
        }
    }
    let score = match similarity {
        Similarity::Euclidean => 1.0 / (1.0 + distance),
        Similarity::DotProduct if elements == Elements::Bytes => {
            0.5 + dot / (query.len() as f64 * f64::from(1 << 15))
        }
        Similarity::DotProduct => ((1.0 + dot) / 2.0).max(0.0),
        Similarity::Cosine => ((1.0 + dot / (own * other).sqrt()) / 2.0).max(0.0),
    };
    score as f32
}

/// `limit` has errors of its own.
fn limit(f: &Fields<'_>) -> Result<i32> {
    let Some(v) = f.raw("limit") else {
        return Err(wrong("\"limit\" is required"));
    };
    let Some(n) = v.to_f64().filter(|_| v.is_number()) else {
        errors::bail!(
            8575100,
            "Expected limit to be a number, but found {}",
            v.type_name()
        );
    };
    if n.is_nan() || n < 1.0 {
        errors::bail!(7912700, "$vectorSearch limit must be positive");
    }
    f.as_int("limit", v, 1, i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Value;

    #[test]
    fn scores_are_mongodbs() {
        let stored: Vec<u8> = [0.6f32, 0.4, 0.0]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let query = [1.0, 0.0, 0.0];
        let near = |s, want: f32| {
            let got = score((s, Elements::Floats), &query, &stored);
            assert!((got - want).abs() < 1e-6);
        };
        near(Similarity::Cosine, 0.916_025_16);
        near(Similarity::Euclidean, 0.757_575_8);
        near(Similarity::DotProduct, 0.8);
    }

    #[test]
    fn vectors_come_as_arrays_and_as_binary() {
        let floats = [&[0x27, 0][..], &1f32.to_le_bytes(), &2f32.to_le_bytes()].concat();
        let of = |bytes: &[u8]| vector_of(Value::binary(SUBTYPE, bytes).as_val());
        assert_eq!(of(&floats), Some((vec![1.0, 2.0], Elements::Floats)));
        assert_eq!(of(&[0x03, 0, 255]), Some((vec![-1.0], Elements::Bytes)));
        assert_eq!(of(&[0x10, 0, 0b1010_0000]).map(|v| v.0.len()), Some(8));
        assert_eq!(of(&[0x10, 3, 0]), None, "bits that are no bytes");
        assert_eq!(of(&[0x27]), None);
    }
}
