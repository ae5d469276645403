//! Vectors of documents, and searches for the nearest.
//!
//! The library's index knows the slot of each document's vector (a column), so what is deleted or filtered there is
//! never given. A search compares all vectors that are left, or those that a graph leads to ([`crate::near`]).

use crate::definition::{Definition, OrProblem};
use crate::fields::SpecificationFields;
use crate::files::{IndexSnapshot, PARENTS_COLUMN};
use crate::hits::{Hit, Hits, keep_best};
use crate::nested::{self, Parents, ScoreMode};
use crate::operator::Clause;
use crate::problem::wrong;
use crate::query_vector::QueryVector;
use crate::room::Room;
use crate::unfit::Unfit;
use crate::vector_definition::{Similarity, VectorField, VectorUse};
use bson::{Doc, DocBuf, Val};
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

/// The vector that a document has for a field; `None`: it has no such field. The error says why the field cannot hold
/// the value of the document.
pub(crate) fn stored_vector(
    field: &VectorField,
    doc: Doc<'_>,
) -> std::result::Result<Option<(Vec<f32>, Elements)>, Unfit> {
    let mut at = Some(doc.as_val());
    for part in field.path.split('.') {
        at = at.and_then(|v| v.as_doc()?.get(part));
    }
    let Some(v) = at.filter(|v| !v.is_nullish()) else {
        return Ok(None);
    };
    let (vector, elements) = vector_of(v).ok_or(Unfit::NoVector)?;
    let cosine = field.similarity == Similarity::Cosine;
    if vector.len() != field.dimensions {
        return Err(Unfit::VectorLength);
    }
    if !vector.iter().all(|n| n.is_finite()) {
        return Err(Unfit::NotFinite);
    }
    if cosine && vector.iter().all(|n| *n == 0.0) {
        return Err(Unfit::ZeroVector);
    }
    // Bits have no direction.
    if elements == Elements::Bits && field.similarity != Similarity::Euclidean {
        return Err(Unfit::Bits);
    }
    Ok(Some((vector, elements)))
}

/// A `$vectorSearch`.
#[derive(Clone, Debug)]
pub struct VectorSearch {
    pub index: String,
    vector: QueryVector,
    pub limit: usize,
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
        let f = SpecificationFields::new("", stage);
        let limit = limit(&f)?;
        let index = f.required_string("index")?;
        if index.is_empty() {
            return Err(wrong("\"index\" cannot be empty"));
        }
        let path = f.required_string("path")?;
        let vector = QueryVector::parse(&f, path, limit)?;
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
            vector,
            limit: usize::try_from(limit).unwrap_or(0),
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

    pub(crate) fn vector(&self) -> &QueryVector {
        &self.vector
    }

    pub(crate) fn filter_of(&self, snapshot: &IndexSnapshot) -> Option<Clause> {
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
    pub fn find(&self, snapshot: IndexSnapshot, most: usize, room: &mut Room<'_>) -> Result<Hits> {
        let definition = snapshot.definition.clone();
        let is_stages = |used_by| used_by != VectorUse::Operator;
        let (number, field) = self.vector.field(&definition, is_stages)?;
        self.check()?;
        if self.score_mode.is_some() && definition.nested_root.is_none() {
            return Err(wrong(
                "\"nestedOptions\" needs an index with \"nestedRoot\"",
            ));
        }
        let filter = self.filter(&definition);
        let (slots, compared) =
            self.vector
                .slots(&snapshot, number, (filter.as_ref(), most), room)?;
        let best = match definition.nested_root {
            None => {
                let mut best = BinaryHeap::new();
                let of = (number, field);
                self.vector.each_score(&snapshot, of, &slots, |hit| {
                    keep_best(&mut best, hit, most);
                    Ok(())
                })?;
                best
            }
            Some(_) => self.nearest_parents(&snapshot, (number, field), (&slots, most), room)?,
        };
        let mut hits = Hits::of(snapshot, best);
        hits.compared = compared;
        Ok(hits)
    }

    fn check(&self) -> Result<()> {
        if self.vector.is_exact() && self.limit >= MOST_EXACT as usize {
            return Err(wrong("\"limit\" is too great for an exact search"));
        }
        match self.traces {
            true => Err(wrong("\"explainOptions\" is for explain only")),
            false => Ok(()),
        }
    }

    /// Documents by the scores of their elements.
    fn nearest_parents(
        &self,
        snapshot: &IndexSnapshot,
        (number, field): (usize, &VectorField),
        (slots, most): (&[(u64, DocAddress)], usize),
        room: &mut Room<'_>,
    ) -> Result<BinaryHeap<Hit>> {
        let readers = snapshot.searcher.segment_readers().iter();
        let column = |r| snapshot.columns.column(r, PARENTS_COLUMN);
        let columns = readers.map(|r| column(r).or_problem());
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        let mut parents = Parents::default();
        self.vector
            .each_score(snapshot, (number, field), slots, |hit| {
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
}

fn check_trace(options: SpecificationFields<'_>) -> Result<()> {
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

/// How elements' scores become a document's.
fn score_mode(options: SpecificationFields<'_>) -> Result<ScoreMode> {
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

/// `limit` has errors of its own.
fn limit(f: &SpecificationFields<'_>) -> Result<i32> {
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
