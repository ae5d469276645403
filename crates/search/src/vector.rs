//! Vectors of documents: their slots in a file beside the index, and searches that compare them all.
//!
//! ```text
//! vectors-N.f32    slot 0 | slot 1 | …      `dimensions` f32 LE and their crc32c LE each, of the N-th vector field
//! ```
//! The library's index knows the slot of each document (a column), so what is deleted or filtered there is never looked
//! at. Slots are only appended; those of documents that changed stay until the index is built anew.
//!
//! Invariant: the file is on disk up to a commit's count of slots before that commit is.

use crate::definition::{OrProblem, Similarity, VectorField};
use crate::fields::Fields;
use crate::files::{Snapshot, damaged, slots_column};
use crate::hits::{Hit, Hits, keep_best};
use crate::operator::Clause;
use crate::problem::wrong;
use crate::room::Room;
use bson::{Doc, Val};
use errors::Result;
use errors::operation::steps;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tantivy::DocAddress;

/// The most bytes that one read of the file takes.
const READ_BYTES: usize = 1 << 20;

/// The bytes of a slot's checksum.
const SUM_BYTES: usize = 4;

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
pub(crate) fn stored_vector(field: &VectorField, doc: Doc<'_>) -> Option<Vec<f32>> {
    let mut at = doc.as_val();
    for part in field.path.split('.') {
        at = at.as_doc()?.get(part)?;
    }
    let (vector, elements) = vector_of(at)?;
    let fits = elements == Elements::Floats
        && vector.len() == field.dimensions
        && vector.iter().all(|n| n.is_finite());
    let zero = field.similarity == Similarity::Cosine && vector.iter().all(|n| *n == 0.0);
    (fits && !zero).then_some(vector)
}

/// The file of a field's vectors.
pub(crate) fn file_of(dir: &Path, field: usize) -> PathBuf {
    dir.join(format!("vectors-{field}.f32"))
}

/// The bytes of a slot.
fn slot_bytes(dimensions: usize) -> usize {
    dimensions * 4 + SUM_BYTES
}

/// The vector of a slot; `None`: it is not what was written.
fn sound(slot: &[u8]) -> Option<&[u8]> {
    let (vector, sum) = slot.split_last_chunk::<SUM_BYTES>()?;
    (crc32c::crc32c(vector).to_le_bytes() == *sum).then_some(vector)
}

/// Fails where one of the first `count` slots is not what was written. Reads them all.
pub(crate) fn check(path: &Path, dimensions: usize, count: u64) -> Result<()> {
    let bytes = slot_bytes(dimensions);
    let Ok(file) = File::open(path) else {
        return Err(damaged("vectors"));
    };
    let (mut left, mut whole) = (Vec::new(), 0);
    let mut file = std::io::Read::take(file, count * bytes as u64);
    crate::directory::each_block(&mut file, |block| {
        left.extend_from_slice(block);
        let end = left.len() / bytes * bytes;
        let slots = left.get(..end).unwrap_or(&[]).chunks_exact(bytes);
        whole += slots.take_while(|s| sound(s).is_some()).count() as u64;
        left.drain(..end);
    })?;
    match whole == count {
        true => Ok(()),
        false => Err(damaged("vectors")),
    }
}

/// Appends vectors.
pub(crate) struct Slots {
    file: File,
    count: u64,
    buffer: Vec<u8>,
    /// Some of the file is not on disk yet.
    unsynced: bool,
}

impl Slots {
    /// Goes on behind `count` slots: what is behind them was not committed.
    pub fn open(path: &Path, dimensions: usize, count: u64) -> Result<Slots> {
        let mut options = File::options();
        let file = options
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .or_problem()?;
        file.set_len(count * slot_bytes(dimensions) as u64)
            .or_problem()?;
        Ok(Slots {
            file,
            count,
            buffer: Vec::new(),
            unsynced: false,
        })
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The slot of a vector.
    pub fn push(&mut self, vector: &[f32]) -> Result<u64> {
        let start = self.buffer.len();
        vector
            .iter()
            .for_each(|n| self.buffer.extend_from_slice(&n.to_le_bytes()));
        let sum = crc32c::crc32c(self.buffer.get(start..).unwrap_or(&[]));
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        if self.buffer.len() > READ_BYTES {
            self.flush()?;
        }
        self.count += 1;
        Ok(self.count - 1)
    }

    fn flush(&mut self) -> Result<()> {
        self.unsynced = true;
        self.file.write_all(&self.buffer).or_problem()?;
        self.buffer.clear();
        Ok(())
    }

    /// All that was pushed is on disk.
    pub fn sync(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        if self.unsynced {
            self.file.sync_data().or_problem()?;
            self.unsynced = false;
        }
        Ok(())
    }
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
    filter: Option<Clause>,
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
        if f.get("model").is_some() || f.get("query").is_some() {
            return Err(wrong(
                "\"query\" and \"model\" cannot be used with \"queryVector\"",
            ));
        }
        let given = f.required("queryVector")?;
        let Some((query, elements)) = vector_of(given) else {
            return Err(wrong(
                "\"queryVector\" must be an array of numbers or a vector",
            ));
        };
        if query.iter().any(|n| !n.is_finite()) {
            return Err(wrong("\"queryVector\" must have finite elements"));
        }
        let exact = f.flag("exact")?.unwrap_or(false);
        let candidates = f.int("numCandidates", 1, 10_000)?;
        match (exact, candidates) {
            (true, Some(_)) => {
                return Err(wrong(
                    "\"numCandidates\" must be omitted if \"exact\" is true",
                ));
            }
            (false, None) => {
                return Err(wrong("\"numCandidates\" is required if \"exact\" is false"));
            }
            (false, Some(n)) if n < limit => {
                return Err(wrong(
                    "\"numCandidates\" must be greater than or equal to \"limit\"",
                ));
            }
            _ => {}
        }
        if let Some(preference) = f.doc("searchNodePreference")? {
            preference.required_string("key")?;
        }
        for unsupported in ["parentFilter", "nestedOptions"] {
            if stage.get(unsupported).is_some_and(|v| !v.is_nullish()) {
                return Err(wrong(format!("\"{unsupported}\" is not supported yet")));
            }
        }
        if f.flag("returnStoredSource")? == Some(true) {
            return Err(wrong("\"returnStoredSource\" is not supported yet"));
        }
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
            exact,
            filter,
        })
    }

    /// The nearest documents, at most `most`. All vectors that the filter lets through are compared.
    pub fn find(&self, snapshot: Snapshot, most: usize, room: &mut Room<'_>) -> Result<Hits> {
        let definition = snapshot.definition.clone();
        let fields = definition.vectors.iter().enumerate();
        let Some((number, field)) = fields.clone().find(|(_, f)| f.path == self.path) else {
            return Err(wrong(format!(
                "Path '{}' needs to be indexed as vector",
                self.path
            )));
        };
        self.check(field)?;
        if self.exact && self.limit >= MOST_EXACT as usize {
            return Err(wrong("\"limit\" is too great for an exact search"));
        }
        let mut wanted = Vec::new();
        if self.elements == Elements::Floats {
            let filter = self.filter.as_ref();
            crate::find::each_match(&snapshot, filter, room, |reader, segment, docs, room| {
                room.take(docs.len() * size_of::<(u64, DocAddress)>() * 2)?;
                let column = reader
                    .fast_fields()
                    .column_opt::<i64>(&slots_column(number))
                    .or_problem()?;
                let Some(column) = column else { return Ok(()) };
                for doc in docs {
                    steps(1)?;
                    if let Some(slot) = column.first(*doc) {
                        wanted.push((
                            u64::try_from(slot).unwrap_or(0),
                            DocAddress::new(segment, *doc),
                        ));
                    }
                }
                Ok(())
            })?;
        }
        wanted.sort_unstable();
        let best = self.nearest(&snapshot, number, field, (&wanted, most))?;
        let count = best.len() as u64;
        Ok(Hits::of(snapshot, best, count))
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

    fn nearest(
        &self,
        snapshot: &Snapshot,
        number: usize,
        field: &VectorField,
        (wanted, most): (&[(u64, DocAddress)], usize),
    ) -> Result<BinaryHeap<Hit>> {
        let mut best = BinaryHeap::new();
        let bytes = slot_bytes(field.dimensions);
        let a_read = (READ_BYTES / bytes).max(1) as u64;
        let mut block = Vec::new();
        let mut start = u64::MAX;
        let file = snapshot.vectors.get(number).cloned();
        let Some(file) = file.filter(|_| !wanted.is_empty()) else {
            return Ok(best);
        };
        for (slot, at) in wanted {
            steps(1 + field.dimensions / 64)?;
            let first = slot / a_read * a_read;
            if first != start {
                start = first;
                read_block(
                    &file,
                    first * bytes as u64,
                    a_read as usize * bytes,
                    &mut block,
                )?;
            }
            let from = usize::try_from(slot - start).unwrap_or(0) * bytes;
            let Some(stored) = block.get(from..from + bytes).and_then(sound) else {
                return Err(damaged("vectors"));
            };
            let hit = Hit {
                score: score(field.similarity, &self.query, stored),
                at: *at,
            };
            keep_best(&mut best, hit, most);
        }
        Ok(best)
    }
}

fn read_block(file: &Arc<File>, at: u64, bytes: usize, block: &mut Vec<u8>) -> Result<()> {
    block.resize(bytes, 0);
    let mut filled = 0;
    while let Some(rest) = block.get_mut(filled..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, at + filled as u64).or_problem()? {
            0 => break,
            n => filled += n,
        }
    }
    block.truncate(filled);
    Ok(())
}

/// How alike two vectors are, as MongoDB tells it: from 0 to 1, but for a dot product of longer vectors.
fn score(similarity: Similarity, query: &[f32], stored: &[u8]) -> f32 {
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
        let near = |s, want: f32| assert!((score(s, &query, &stored) - want).abs() < 1e-6);
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
