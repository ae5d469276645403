//! The vector whose nearest are looked for, by `$vectorSearch` or by an operator of `$search`, and the comparison with those
//! of documents.

use crate::compiler::{Compiler, Made};
use crate::definition::Definition;
use crate::fields::SpecificationFields;
use crate::files::IndexSnapshot;
use crate::hits::{Hit, keep_best};
use crate::near::{self, Wanted};
use crate::operator::{Clause, Operator, only_clause};
use crate::problem::wrong;
use crate::products;
use crate::room::Room;
use crate::set::ScoredQuery;
use crate::slots::SlotReader;
use crate::vector::{Elements, vector_of};
use crate::vector_definition::{Similarity, VectorField, VectorUse};
use bson::Val;
use errors::Result;
use errors::operation::steps;
use std::collections::BinaryHeap;
use tantivy::DocAddress;

/// The most vectors that are compared for one search, where a graph leads to them.
const MOST_CANDIDATES: i32 = 10_000;

/// A vector, and how its nearest are looked for.
#[derive(Clone, Debug)]
pub(crate) struct QueryVector {
    pub path: String,
    query: Vec<f32>,
    elements: Elements,
    /// How many a graph gives, to be compared exactly; `None`: all are compared.
    pub candidates: Option<usize>,
}

/// What the operators `vectorSearch` and `knnBeta` look for.
#[derive(Clone, Debug)]
pub(crate) struct Nearest {
    pub vector: QueryVector,
    /// How many are found.
    pub limit: usize,
    pub filter: Option<Box<Clause>>,
    of_knn: bool,
}

impl QueryVector {
    /// From `queryVector`, `numCandidates` and `exact`, for so many results.
    pub fn parse(f: &SpecificationFields<'_>, path: &str, limit: i32) -> Result<QueryVector> {
        let (query, elements) = query(f)?;
        let candidates = candidates(f, limit)?;
        Ok(QueryVector {
            path: path.to_string(),
            query,
            elements,
            candidates: candidates.and_then(|n| usize::try_from(n).ok()),
        })
    }

    pub fn is_exact(&self) -> bool {
        self.candidates.is_none()
    }

    /// The field of an index that it is compared with, and its place in the definition.
    pub fn field<'d>(
        &self,
        definition: &'d Definition,
        may_be: impl Fn(VectorUse) -> bool,
    ) -> Result<(usize, &'d VectorField)> {
        let mut fields = definition.vectors.iter().enumerate();
        let Some((number, field)) = fields.find(|(_, f)| f.path == self.path && may_be(f.used_by))
        else {
            return Err(wrong(format!(
                "Path '{}' needs to be indexed as vector",
                self.path
            )));
        };
        self.check(field)?;
        Ok((number, field))
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

    /// The slots to compare of what `filter` lets through, in their order, and how many vectors were compared to find
    /// them. All, where that is wanted or no more work than to walk a graph.
    pub fn slots(
        &self,
        snapshot: &IndexSnapshot,
        number: usize,
        (filter, most): (Option<&Clause>, usize),
        room: &mut Room<'_>,
    ) -> Result<(Vec<(u64, DocAddress)>, usize)> {
        let is_nested = snapshot.definition.nested_root.is_some();
        let wanted = Wanted {
            number,
            elements: self.elements,
            query: &self.query,
            filter,
            most: self.candidates.unwrap_or(0).max(most),
            results: (!is_nested).then_some(most),
        };
        let mut compared = 0;
        let mut slots = match self.is_exact() {
            true => near::all(snapshot, &wanted, room)?,
            false => near::candidates(snapshot, &wanted, room, &mut compared)?,
        };
        slots.sort_unstable();
        compared += slots.len();
        Ok((slots, compared))
    }

    /// Compares the vectors of slots with the query.
    pub fn each_score(
        &self,
        snapshot: &IndexSnapshot,
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
        let scores = Scores::new(field.similarity, self.elements, &self.query);
        for (slot, at) in wanted {
            steps(1 + field.dimensions / 64)?;
            each(Hit {
                score: scores.of(reader.read(*slot)?),
                at: *at,
            })?;
        }
        Ok(())
    }
}

impl Nearest {
    /// `vectorSearch`, or `knnBeta` with the names that it has for the same.
    pub fn parse(f: &SpecificationFields<'_>, of_knn: bool) -> Result<Operator> {
        let path = f.required_string("path")?;
        let (vector, limit) = match of_knn {
            false => {
                let limit = f.required_int("limit", 1, i32::MAX)?;
                (QueryVector::parse(f, path, limit)?, limit)
            }
            true => {
                let k = f.required_int("k", 1, MOST_CANDIDATES)?;
                (QueryVector::of_numbers(f, path, k)?, k)
            }
        };
        let filter = match f.doc("filter")? {
            None => None,
            Some(d) => {
                // Not at the top: no vector is compared there.
                let clause = only_clause(&d, 1)?;
                d.end()?;
                Some(Box::new(clause))
            }
        };
        Ok(Operator::Nearest(Nearest {
            vector,
            limit: usize::try_from(limit).unwrap_or(0),
            filter,
            of_knn,
        }))
    }

    fn is_by(&self, used_by: VectorUse) -> bool {
        match self.of_knn {
            true => used_by == VectorUse::Knn,
            false => used_by == VectorUse::Operator,
        }
    }
}

impl QueryVector {
    /// From an array of numbers, `vector`.
    fn of_numbers(f: &SpecificationFields<'_>, path: &str, k: i32) -> Result<QueryVector> {
        let (query, elements) = vector_at(f, "vector")?;
        Ok(QueryVector {
            path: path.to_string(),
            query,
            elements,
            candidates: usize::try_from(k).ok(),
        })
    }
}

impl Compiler<'_, '_> {
    /// The nearest documents, with their scores.
    pub(crate) fn nearest(&mut self, nearest: &Nearest) -> Result<Made> {
        let (snapshot, vector) = (self.snapshot, &nearest.vector);
        let (number, field) = vector.field(&snapshot.definition, |by| nearest.is_by(by))?;
        let wanted = (nearest.filter.as_deref(), nearest.limit);
        let (slots, _) = vector.slots(snapshot, number, wanted, self.room)?;
        let mut best = BinaryHeap::new();
        vector.each_score(snapshot, (number, field), &slots, |hit| {
            keep_best(&mut best, hit, nearest.limit);
            Ok(())
        })?;
        self.room.take_set(best.len() * size_of::<Hit>() * 2)?;
        Ok(Box::new(ScoredQuery::of_hits(&snapshot.searcher, best)))
    }
}

/// The vector whose nearest are looked for.
fn query(f: &SpecificationFields<'_>) -> Result<(Vec<f32>, Elements)> {
    if f.get("model").is_some() || f.get("query").is_some() {
        return Err(wrong(
            "\"query\" and \"model\" cannot be used with \"queryVector\"",
        ));
    }
    vector_at(f, "queryVector")
}

fn vector_at(f: &SpecificationFields<'_>, field: &'static str) -> Result<(Vec<f32>, Elements)> {
    let v: Val<'_> = f.required(field)?;
    let name = f.name(field);
    let Some((query, elements)) = vector_of(v) else {
        return Err(wrong(format!(
            "\"{name}\" must be an array of numbers or a vector"
        )));
    };
    match query.iter().all(|n| n.is_finite()) {
        true => Ok((query, elements)),
        false => Err(wrong(format!("\"{name}\" must have finite elements"))),
    }
}

/// `numCandidates`; `None`: all are compared.
fn candidates(f: &SpecificationFields<'_>, limit: i32) -> Result<Option<i32>> {
    let exact = f.flag("exact")?.unwrap_or(false);
    let candidates = f.int("numCandidates", 1, MOST_CANDIDATES)?;
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

/// How alike vectors are to a query, as MongoDB tells it: from 0 to 1, but for a dot product of longer vectors. Bytes have
/// the scores of Lucene's `VectorUtil`.
struct Scores<'q> {
    similarity: Similarity,
    elements: Elements,
    query: &'q [f32],
    /// The query's product with itself.
    square: f64,
}

impl<'q> Scores<'q> {
    fn new(similarity: Similarity, elements: Elements, query: &'q [f32]) -> Scores<'q> {
        Scores {
            similarity,
            elements,
            query,
            square: query.iter().map(|n| f64::from(*n) * f64::from(*n)).sum(),
        }
    }

    /// `stored`: f32 LE.
    fn of(&self, stored: &[u8]) -> f32 {
        let query = self.query;
        let score = match self.similarity {
            Similarity::Euclidean => 1.0 / (1.0 + products::distance(query, stored)),
            Similarity::DotProduct if self.elements == Elements::Bytes => {
                0.5 + products::dot(query, stored) / (query.len() as f64 * f64::from(1 << 15))
            }
            Similarity::DotProduct => ((1.0 + products::dot(query, stored)) / 2.0).max(0.0),
            Similarity::Cosine => {
                let (dot, square) = products::dot_and_square(query, stored);
                ((1.0 + dot / (self.square * square).sqrt()) / 2.0).max(0.0)
            }
        };
        score as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_mongodbs() {
        let stored: Vec<u8> = [0.6f32, 0.4, 0.0]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let query = [1.0, 0.0, 0.0];
        let near = |s, want: f32| {
            let got = Scores::new(s, Elements::Floats, &query).of(&stored);
            assert!((got - want).abs() < 1e-6);
        };
        near(Similarity::Cosine, 0.916_025_16);
        near(Similarity::Euclidean, 0.757_575_8);
        near(Similarity::DotProduct, 0.8);
    }
}
