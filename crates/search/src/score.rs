//! A term of a path, scored by BM25 as Lucene computes it.
//!
//! Source: Lucene's `BM25Similarity` (k1 1.2, b 0.75) and `SmallFloat`: lengths are rounded to a byte, and the
//! statistics are those of the path, deleted documents included.

use crate::files::{Snapshot, lengths_column};
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::postings::Postings;
use tantivy::query::{EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, Score, SegmentReader, TantivyError, Term};

const K1: f32 = 1.2;
const B: f32 = 0.75;

/// Lengths below this keep their value.
const EXACT: u32 = 24;

/// A length as Lucene's byte gives it back.
pub(crate) fn rounded(length: u32) -> u32 {
    if length < EXACT {
        return length;
    }
    let n = length - EXACT;
    let bits = 32 - n.leading_zeros();
    let kept = if bits < 4 {
        n
    } else {
        let shift = bits - 4;
        n >> shift << shift
    };
    EXACT + kept
}

/// How rare a term is.
pub(crate) fn idf(documents: u64, with_term: u64) -> f32 {
    let (n, d) = (documents as f64, with_term as f64);
    (1.0 + (n - d + 0.5) / (d + 0.5)).ln() as f32
}

/// What scores the occurrences of something in a path.
#[derive(Clone, Debug)]
pub(crate) struct Bm25 {
    pub weight: f32,
    average: f32,
    path: u32,
}

impl Bm25 {
    /// `idf`: of the term, or the sum of those of a phrase.
    pub fn new(snapshot: &Snapshot, path: u32, idf: f32) -> errors::Result<Bm25> {
        let sum = snapshot.length_sum(path)?;
        let average = (sum.tokens as f64 / sum.documents.max(1) as f64) as f32;
        Ok(Bm25 {
            weight: idf,
            average: average.max(f32::MIN_POSITIVE),
            path,
        })
    }

    pub fn in_segment(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<SegmentBm25> {
        Ok(SegmentBm25 {
            weight: self.weight * boost,
            average: self.average,
            lengths: reader
                .fast_fields()
                .column_opt::<i64>(&lengths_column(self.path))?,
        })
    }
}

pub(crate) struct SegmentBm25 {
    weight: f32,
    average: f32,
    lengths: Option<Column<i64>>,
}

impl SegmentBm25 {
    pub fn score(&self, doc: DocId, frequency: f32) -> Score {
        let length = self
            .lengths
            .as_ref()
            .and_then(|l| l.first(doc))
            .unwrap_or(1);
        let length = rounded(u32::try_from(length).unwrap_or(u32::MAX)) as f32;
        let inverse = 1.0 / (K1 * ((1.0 - B) + B * length / self.average));
        self.weight - self.weight / (1.0 + frequency * inverse)
    }
}

/// Documents that hold a term.
#[derive(Clone, Debug)]
pub(crate) struct WordQuery {
    pub term: Term,
    pub bm25: Arc<Bm25>,
}

impl Query for WordQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for WordQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let inverted = reader.inverted_index(self.term.field())?;
        let postings = inverted.read_postings(&self.term, IndexRecordOption::WithFreqs)?;
        let Some(postings) = postings else {
            return Ok(Box::new(EmptyScorer));
        };
        let bm25 = self.bm25.in_segment(reader, boost)?;
        Ok(Box::new(WordScorer { postings, bm25 }))
    }

    fn explain(&self, _: &SegmentReader, _: DocId) -> tantivy::Result<Explanation> {
        Err(not_explained())
    }
}

pub(crate) fn not_explained() -> TantivyError {
    TantivyError::InvalidArgument("not explained".into())
}

struct WordScorer<P> {
    postings: P,
    bm25: SegmentBm25,
}

impl<P: Postings> DocSet for WordScorer<P> {
    fn advance(&mut self) -> DocId {
        self.postings.advance()
    }

    fn seek(&mut self, target: DocId) -> DocId {
        self.postings.seek(target)
    }

    fn doc(&self) -> DocId {
        self.postings.doc()
    }

    fn size_hint(&self) -> u32 {
        self.postings.size_hint()
    }
}

impl<P: Postings> Scorer for WordScorer<P> {
    fn score(&mut self) -> Score {
        self.bm25
            .score(self.postings.doc(), self.postings.term_freq() as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_as_lucene_rounds_them() {
        // From SmallFloat's table: byte4ToInt(intToByte4(n)).
        let cases = [
            (0, 0),
            (23, 23),
            (24, 24),
            (39, 39),
            (40, 40),
            (41, 40),
            (42, 42),
            (1000, 984),
        ];
        for (n, want) in cases {
            assert_eq!(rounded(n), want, "{n}");
        }
    }
}
