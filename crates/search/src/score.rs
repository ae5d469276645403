//! A term of a path, scored by BM25 as Lucene computes it.
//!
//! Source: Lucene's `BM25Similarity` (k1 1.2, b 0.75) and `SmallFloat`: lengths are rounded to a byte, and the
//! statistics are those of the path, deleted documents included.

use crate::files::{Snapshot, lengths_column};
use crate::postings::AnyPostings;
use std::sync::Arc;
use tantivy::columnar::Column;
use tantivy::postings::Postings;
use tantivy::query::{EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED, TantivyError, Term};

const K1: f32 = 1.2;
const B: f32 = 0.75;

/// So many lengths have what they do to a score computed beforehand.
const KNOWN: usize = 64;

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
    /// The path's name.
    name: Arc<str>,
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
            name: snapshot.paths.name(path).into(),
        })
    }

    /// Why a document has its score for what it holds so often.
    pub fn explain(
        &self,
        reader: &SegmentReader,
        (doc, frequency): (DocId, f32),
        what: &str,
    ) -> tantivy::Result<Explanation> {
        let here = self.in_segment(reader, 1.0)?;
        let (score, length) = (here.score(doc, frequency), here.length(doc));
        let text = format!(
            "$type:string/{}:{what} [BM25Similarity], result of:",
            self.name
        );
        let mut told = Explanation::new_with_string(text, score);
        let text = format!("score(freq={frequency:.1}), computed as boost * idf * tf from:");
        let mut product = Explanation::new_with_string(text, score);
        let idf = "idf, computed as log(1 + (N - n + 0.5) / (n + 0.5))";
        product.add_detail(Explanation::new(idf, self.weight));
        let tf = "tf, computed as freq / (freq + k1 * (1 - b + b * dl / avgdl)) from:";
        let mut tf = Explanation::new(tf, score / self.weight.max(f32::MIN_POSITIVE));
        for (what, value) in [
            ("freq, occurrences of term within document", frequency),
            ("k1, term saturation parameter", K1),
            ("b, length normalization parameter", B),
            ("dl, length of field", length),
            ("avgdl, average length of field", self.average),
        ] {
            tf.add_detail(Explanation::new(what, value));
        }
        product.add_detail(tf);
        told.add_detail(product);
        Ok(told)
    }

    pub fn in_segment(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<SegmentBm25> {
        let mut inverses = [0.0; KNOWN];
        for (length, inverse) in (0u32..).zip(inverses.iter_mut()) {
            *inverse = inverse_of(rounded(length) as f32, self.average);
        }
        Ok(SegmentBm25 {
            weight: self.weight * boost,
            average: self.average,
            lengths: reader
                .fast_fields()
                .column_opt::<i64>(&lengths_column(self.path))?,
            inverses,
        })
    }
}

/// What a frequency is multiplied with in a text of such a length.
fn inverse_of(length: f32, average: f32) -> f32 {
    1.0 / (K1 * ((1.0 - B) + B * length / average))
}

pub(crate) struct SegmentBm25 {
    weight: f32,
    average: f32,
    lengths: Option<Column<i64>>,
    /// Of the shortest lengths.
    inverses: [f32; KNOWN],
}

impl SegmentBm25 {
    /// No score exceeds it.
    pub fn most(&self) -> Score {
        self.weight
    }

    /// The scores of documents, as [`SegmentBm25::score`] gives them one by one.
    pub fn score_all(&self, docs: &[DocId], frequencies: &[u32], out: &mut Vec<Score>) {
        let mut lengths = vec![None; docs.len()];
        if let Some(column) = &self.lengths {
            column.first_vals(docs, &mut lengths);
        }
        out.clear();
        let each = lengths.iter().zip(frequencies);
        out.extend(each.map(|(length, frequency)| {
            self.of(*frequency as f32, self.inverse(length.unwrap_or(1)))
        }));
    }

    fn inverse(&self, length: i64) -> f32 {
        let known = usize::try_from(length)
            .ok()
            .and_then(|n| self.inverses.get(n));
        match known {
            Some(inverse) => *inverse,
            None => inverse_of(
                rounded(u32::try_from(length).unwrap_or(u32::MAX)) as f32,
                self.average,
            ),
        }
    }

    fn of(&self, frequency: f32, inverse: f32) -> Score {
        self.weight - self.weight / (1.0 + frequency * inverse)
    }

    /// How long the path's texts are, as scores take it.
    fn length(&self, doc: DocId) -> f32 {
        let length = self
            .lengths
            .as_ref()
            .and_then(|l| l.first(doc))
            .unwrap_or(1);
        rounded(u32::try_from(length).unwrap_or(u32::MAX)) as f32
    }

    pub fn score(&self, doc: DocId, frequency: f32) -> Score {
        let length = self.lengths.as_ref().and_then(|l| l.first(doc));
        self.of(frequency, self.inverse(length.unwrap_or(1)))
    }
}

/// Documents that hold a term, or one of several that mean the same: these score as one word would that stands wherever
/// one of them does.
#[derive(Clone, Debug)]
pub(crate) struct WordQuery {
    pub terms: Vec<Term>,
    pub bm25: Arc<Bm25>,
}

impl Query for WordQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for WordQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let bm25 = self.bm25.in_segment(reader, boost)?;
        let option = IndexRecordOption::WithFreqs;
        let [term] = &self.terms[..] else {
            return Ok(match AnyPostings::of(reader, &self.terms, option)? {
                Some(postings) => Box::new(AnyScorer { postings, bm25 }),
                None => Box::new(EmptyScorer),
            });
        };
        let inverted = reader.inverted_index(term.field())?;
        Ok(match inverted.read_postings(term, option)? {
            Some(postings) => Box::new(WordScorer { postings, bm25 }),
            None => Box::new(EmptyScorer),
        })
    }

    fn for_each_pruning(
        &self,
        mut threshold: Score,
        reader: &SegmentReader,
        collect: &mut dyn FnMut(DocId, Score) -> Score,
    ) -> tantivy::Result<()> {
        if self.terms.len() == 1 {
            return crate::best::of_word(self, reader, threshold, collect);
        }
        let mut scorer = self.scorer(reader, 1.0)?;
        while scorer.doc() != TERMINATED {
            let score = scorer.score();
            if score > threshold {
                threshold = collect(scorer.doc(), score);
            }
            scorer.advance();
        }
        Ok(())
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        let postings = AnyPostings::of(reader, &self.terms, IndexRecordOption::WithFreqs)?;
        let Some(mut postings) = postings.filter(|p| p.doc() <= doc) else {
            return Err(not_explained());
        };
        if postings.seek(doc) != doc {
            return Err(not_explained());
        }
        let frequency = postings.frequency() as f32;
        let words = words_of(&self.terms);
        self.bm25.explain(reader, (doc, frequency), &words)
    }
}

/// The words of terms that stand for one.
pub(crate) fn words_of(terms: &[Term]) -> String {
    match terms {
        [one] => word_of(one),
        several => {
            let words: Vec<String> = several.iter().map(word_of).collect();
            format!("Synonym({})", words.join(" "))
        }
    }
}

/// The word of a term, without its path.
fn word_of(term: &Term) -> String {
    let bytes = term.serialized_value_bytes();
    let text = String::from_utf8_lossy(bytes);
    let word = text.split_once('\u{1}').map_or("", |(_, word)| word);
    word.to_string()
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

struct AnyScorer {
    postings: AnyPostings,
    bm25: SegmentBm25,
}

impl DocSet for AnyScorer {
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

impl Scorer for AnyScorer {
    fn score(&mut self) -> Score {
        let frequency = self.postings.frequency() as f32;
        self.bm25.score(self.postings.doc(), frequency)
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
