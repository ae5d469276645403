//! A term of a path, scored by BM25 as Lucene computes it.
//!
//! Source: Lucene's `BM25Similarity` (k1 1.2, b 0.75): the statistics are those of the path, deleted documents included.

use crate::files::IndexSnapshot;
use crate::lengths::{KnownLengths, Lengths, length_of};
use crate::postings::AnyPostings;
use std::sync::Arc;
use tantivy::postings::Postings;
use tantivy::query::{EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED, TantivyError, Term};

const K1: f32 = 1.2;
const B: f32 = 0.75;

/// How rare a term is.
pub(crate) fn idf(documents: u64, with_term: u64) -> f32 {
    let (n, d) = (documents as f64, with_term as f64);
    (1.0 + (n - d + 0.5) / (d + 0.5)).ln() as f32
}

/// What scores the occurrences of something in a path.
#[derive(Clone)]
pub(crate) struct Bm25 {
    pub weight: f32,
    average: f32,
    path: u32,
    lengths: KnownLengths,
    inverses: Arc<[f32; 256]>,
    /// The path's name.
    name: Arc<str>,
}

impl std::fmt::Debug for Bm25 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bm25({}, {})", self.name, self.weight)
    }
}

impl Bm25 {
    /// `idf`: of the term, or the sum of those of a phrase.
    pub fn new(snapshot: &IndexSnapshot, path: u32, idf: f32) -> errors::Result<Bm25> {
        let sum = snapshot.length_sum(path)?;
        let average = (sum.tokens as f64 / sum.documents.max(1) as f64) as f32;
        let average = average.max(f32::MIN_POSITIVE);
        Ok(Bm25 {
            weight: idf,
            average,
            path,
            lengths: snapshot.lengths.clone(),
            inverses: inverses(average),
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
        let (_, lengths) = self.lengths.of(reader, self.path)?;
        Ok(SegmentBm25 {
            weight: self.weight * boost,
            lengths,
            inverses: self.inverses.clone(),
        })
    }
}

/// What a frequency is multiplied with, by the byte of a text's length.
fn inverses(average: f32) -> Arc<[f32; 256]> {
    let mut out = [0.0; 256];
    for (byte, inverse) in (0..=255u8).zip(out.iter_mut()) {
        let length = length_in_score(byte);
        *inverse = 1.0 / (K1 * ((1.0 - B) + B * length / average));
    }
    Arc::new(out)
}

/// The length that a byte stands for. A document without a length counts as the shortest.
fn length_in_score(byte: u8) -> f32 {
    length_of(byte).max(1) as f32
}

pub(crate) struct SegmentBm25 {
    weight: f32,
    lengths: Lengths,
    inverses: Arc<[f32; 256]>,
}

impl SegmentBm25 {
    /// No score exceeds it.
    pub fn most(&self) -> Score {
        self.weight
    }

    /// The scores of documents, as [`SegmentBm25::score`] gives them one by one.
    pub fn score_all(&self, docs: &[DocId], frequencies: &[u32], out: &mut Vec<Score>) {
        out.clear();
        let each = docs.iter().zip(frequencies);
        out.extend(each.map(|(doc, frequency)| self.score(*doc, *frequency as f32)));
    }

    /// How long a document's text is, as scores take it.
    fn length(&self, doc: DocId) -> f32 {
        length_in_score(self.lengths.byte(doc))
    }

    pub fn score(&self, doc: DocId, frequency: f32) -> Score {
        let byte = usize::from(self.lengths.byte(doc));
        let inverse = self.inverses.get(byte).copied().unwrap_or(0.0);
        self.weight - self.weight / (1.0 + frequency * inverse)
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
