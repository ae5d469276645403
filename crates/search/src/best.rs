//! The best documents for one word, or for any of several: their postings are scored block by block, and what cannot be
//! among the best is not looked at.
//!
//! Several words are read in windows of documents. Once the best are better than what the most frequent words can give
//! together, a document has to have one of the other words, and only of such a document it is asked how often it has
//! the frequent ones.
//!
//! Of documents with all of several words those of the rarest are looked at, and the others are asked only for what may be
//! among the best. Where a phrase stands is read only where a document could be among the best if the phrase stood there
//! as often as its rarest word.
//!
//! Source: Turtle and Flood, "Query evaluation: strategies and optimizations" (MaxScore).
//!
//! Invariant: a document has the score here that [`crate::score::WordQuery`]'s scorers add up to, in the same order.

use crate::phrase::PhraseQuery;
use crate::problem::stopped;
use crate::score::{SegmentBm25, WordQuery};
use errors::operation::steps;
use tantivy::postings::BlockSegmentPostings;
use tantivy::query::{BooleanQuery, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, Score, SegmentReader, TERMINATED, TantivyError};

/// The documents of a block of postings.
const BLOCK: usize = 128;

/// The documents that are looked at together.
const WINDOW: usize = 1024;

/// The most words that are read in windows.
const MOST_WORDS: usize = 16;

/// What sums of scores may be off by.
const ROUNDING: f32 = 1.000_01;

/// What gets documents with their scores, and says which score the next has to exceed.
type Collector<'c> = &'c mut dyn FnMut(DocId, Score) -> Score;

/// The documents of one term in a segment, with their scores.
pub(crate) struct ScoredBlocks {
    postings: BlockSegmentPostings,
    bm25: SegmentBm25,
    /// The place in the block.
    at: usize,
    scores: Vec<f32>,
    /// Whether these are of the block at hand.
    scored: bool,
}

impl ScoredBlocks {
    /// `None`: no document of the segment has it.
    fn of(word: &WordQuery, reader: &SegmentReader) -> tantivy::Result<Option<ScoredBlocks>> {
        let [term] = &word.terms[..] else {
            return Err(TantivyError::InvalidArgument("several terms".into()));
        };
        let inverted = reader.inverted_index(term.field())?;
        let postings = inverted.read_block_postings(term, IndexRecordOption::WithFreqs)?;
        let Some(postings) = postings else {
            return Ok(None);
        };
        Ok(Some(ScoredBlocks {
            postings,
            bm25: word.bm25.in_segment(reader, 1.0)?,
            at: 0,
            scores: Vec::with_capacity(BLOCK),
            scored: false,
        }))
    }

    /// What no score of it exceeds.
    fn most(&self) -> f32 {
        self.bm25.most() * ROUNDING
    }

    fn doc(&self) -> DocId {
        let doc = self.postings.docs().get(self.at);
        doc.copied().unwrap_or(TERMINATED)
    }

    fn next_block(&mut self) -> tantivy::Result<()> {
        self.postings.advance();
        (self.at, self.scored) = (0, false);
        steps(BLOCK).map_err(|_| stopped())
    }

    fn score_block(&mut self) {
        if !self.scored {
            let (docs, frequencies) = (self.postings.docs(), self.postings.freqs());
            self.bm25.score_all(docs, frequencies, &mut self.scores);
            self.scored = true;
        }
    }

    /// Gives each document below `end`, and goes behind them.
    fn each_below(&mut self, end: DocId, mut each: impl FnMut(DocId, f32)) -> tantivy::Result<()> {
        while self.doc() < end {
            self.score_block();
            let docs = self.postings.docs().iter().zip(&self.scores);
            let here = docs.skip(self.at).take_while(|(doc, _)| **doc < end);
            self.at += here.map(|(doc, score)| each(*doc, *score)).count();
            if self.at >= self.postings.docs().len() {
                self.next_block()?;
            }
        }
        Ok(())
    }

    /// The score of a document, which lies behind those that were asked for before; `None` where it lacks the word.
    fn score_of(&mut self, doc: DocId) -> tantivy::Result<Option<f32>> {
        if self.doc() < doc {
            let last = self.postings.docs().last().copied();
            self.scored &= last.is_some_and(|last| doc <= last);
            self.at = self.postings.seek(doc);
            steps(1).map_err(|_| stopped())?;
        }
        if self.doc() != doc {
            return Ok(None);
        }
        if let Some(score) = self.scores.get(self.at).filter(|_| self.scored) {
            return Ok(Some(*score));
        }
        let frequency = self.postings.freq(self.at);
        Ok(Some(self.bm25.score(doc, frequency as f32)))
    }
}

/// Whether the best documents of a query can be found without a look at all others. Such a query asks on its way whether
/// the operation is to end.
pub(crate) fn knows(query: &dyn Query) -> bool {
    let word = query.downcast_ref::<WordQuery>();
    let phrase = query.downcast_ref::<PhraseQuery>();
    word.is_some_and(|word| word.terms.len() == 1)
        || phrase.is_some_and(PhraseQuery::is_exact)
        || query.is::<WordsQuery>()
}

/// The documents of one word whose scores exceed what `collect` says.
pub(crate) fn of_word(
    word: &WordQuery,
    reader: &SegmentReader,
    mut threshold: Score,
    collect: Collector<'_>,
) -> tantivy::Result<()> {
    let Some(mut blocks) = ScoredBlocks::of(word, reader)? else {
        return Ok(());
    };
    blocks.each_below(TERMINATED, |doc, score| {
        if score > threshold {
            threshold = collect(doc, score);
        }
    })
}

/// Documents with any, or all, of several words.
#[derive(Clone, Debug)]
pub(crate) struct WordsQuery {
    words: Vec<WordQuery>,
    all: bool,
}

impl WordsQuery {
    /// `None`: they are not all words of one term each, or are too many.
    pub fn of(queries: &[Box<dyn Query>], all: bool) -> Option<WordsQuery> {
        let word = |query: &dyn Query| query.downcast_ref::<WordQuery>().cloned();
        let words = queries.iter().map(|query| word(query.as_ref()));
        let words: Vec<WordQuery> = words.collect::<Option<_>>()?;
        let fits = (2..=MOST_WORDS).contains(&words.len());
        (fits && words.iter().all(|w| w.terms.len() == 1)).then_some(WordsQuery { words, all })
    }
}

impl Query for WordsQuery {
    fn weight(&self, scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        let words = self.words.iter().cloned();
        let words = words.map(|w| Box::new(w) as Box<dyn Query>).collect();
        let plain = match self.all {
            true => BooleanQuery::intersection(words),
            false => BooleanQuery::union(words),
        };
        Ok(Box::new(WordsWeight {
            query: self.clone(),
            plain: plain.weight(scoring)?,
        }))
    }
}

struct WordsWeight {
    query: WordsQuery,
    /// What the library makes of the words.
    plain: Box<dyn Weight>,
}

impl Weight for WordsWeight {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        self.plain.scorer(reader, boost)
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        self.plain.explain(reader, doc)
    }

    fn for_each_pruning(
        &self,
        threshold: Score,
        reader: &SegmentReader,
        collect: Collector<'_>,
    ) -> tantivy::Result<()> {
        let words = self.query.words.iter();
        let words = words.map(|w| ScoredBlocks::of(w, reader));
        let words: Vec<Option<ScoredBlocks>> = words.collect::<tantivy::Result<_>>()?;
        if self.query.all {
            return match words.into_iter().collect() {
                Some(words) => of_all(words, threshold, collect),
                None => Ok(()),
            };
        }
        let words: Vec<ScoredBlocks> = words.into_iter().flatten().collect();
        Windows::over(words, threshold).each(collect)
    }
}

/// The documents with all words. Scores are added from the rarest word on, as the library does.
fn of_all(
    mut words: Vec<ScoredBlocks>,
    mut threshold: Score,
    collect: Collector<'_>,
) -> tantivy::Result<()> {
    words.sort_by_key(|word| word.postings.doc_freq());
    let Some((rarest, others)) = words.split_first_mut() else {
        return Ok(());
    };
    let rest: f32 = others.iter().map(|word| word.most()).sum();
    let mut failed = Ok(());
    rarest.each_below(TERMINATED, |doc, score| {
        if failed.is_err() || (score + rest) * ROUNDING <= threshold {
            return;
        }
        let mut sum = score;
        for word in others.iter_mut() {
            match word.score_of(doc) {
                Ok(Some(score)) => sum += score,
                Ok(None) => return,
                Err(e) => return failed = Err(e),
            }
        }
        if sum > threshold {
            threshold = collect(doc, sum);
        }
    })?;
    failed
}

/// Words whose documents are read window by window.
struct Windows {
    words: Vec<ScoredBlocks>,
    /// The words' places, from the one on that can give the least.
    by_most: Vec<usize>,
    /// So many of these can, together, not give a document that is wanted.
    frequent: usize,
    threshold: Score,
    /// Scores by word and document.
    scores: Vec<f32>,
    /// The documents of the window that have one of the other words.
    met: [u64; WINDOW / 64],
}

impl Windows {
    fn over(words: Vec<ScoredBlocks>, threshold: Score) -> Windows {
        let mut by_most: Vec<usize> = (0..words.len()).collect();
        let most = |n: &usize| words.get(*n).map_or(0.0, ScoredBlocks::most);
        by_most.sort_by(|a, b| most(a).total_cmp(&most(b)));
        Windows {
            by_most,
            frequent: 0,
            threshold,
            scores: vec![0.0; words.len() * WINDOW],
            met: [0; WINDOW / 64],
            words,
        }
    }

    /// What the first `count` by the most that they can give give together at the most.
    fn most_of(&self, count: usize) -> f32 {
        let first = self.by_most.iter().take(count);
        let most = first.map(|n| self.words.get(*n).map_or(0.0, ScoredBlocks::most));
        most.sum()
    }

    fn each(mut self, collect: Collector<'_>) -> tantivy::Result<()> {
        loop {
            while self.frequent < self.words.len()
                && self.most_of(self.frequent + 1) <= self.threshold
            {
                self.frequent += 1;
            }
            let others = self.by_most.iter().skip(self.frequent);
            let next = others.filter_map(|n| self.words.get(*n).map(ScoredBlocks::doc));
            let Some(start) = next.min().filter(|doc| *doc != TERMINATED) else {
                return Ok(());
            };
            let start = start - start % WINDOW as u32;
            self.read(start)?;
            self.collect(start, collect)?;
        }
    }

    /// Takes in the scores of the window's documents by the words that one of them has to have.
    fn read(&mut self, start: DocId) -> tantivy::Result<()> {
        let end = start.saturating_add(WINDOW as u32).min(TERMINATED);
        let (met, scores) = (&mut self.met, &mut self.scores);
        for n in self.by_most.iter().skip(self.frequent) {
            let (Some(word), Some(of_word)) = (
                self.words.get_mut(*n),
                scores.get_mut(n * WINDOW..(n + 1) * WINDOW),
            ) else {
                continue;
            };
            word.each_below(end, |doc, score| {
                let at = (doc - start) as usize;
                if let (Some(word), Some(place)) = (met.get_mut(at / 64), of_word.get_mut(at)) {
                    *word |= 1 << (at % 64);
                    *place = score;
                }
            })?;
        }
        Ok(())
    }

    /// Gives the window's documents that may be among the best, and forgets it.
    fn collect(&mut self, start: DocId, collect: Collector<'_>) -> tantivy::Result<()> {
        for part in 0..self.met.len() {
            let mut bits = self.met.get_mut(part).map_or(0, std::mem::take);
            while bits != 0 {
                let at = part * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let doc = start + at as u32;
                if self.may_be_wanted(doc, at)? {
                    let score = self.sum(at);
                    if score > self.threshold {
                        self.threshold = collect(doc, score);
                    }
                }
                for n in 0..self.words.len() {
                    if let Some(score) = self.scores.get_mut(n * WINDOW + at) {
                        *score = 0.0;
                    }
                }
            }
        }
        Ok(())
    }

    /// The score of a document, by what is known of it, in the words' own order.
    fn sum(&self, at: usize) -> f32 {
        let scores = (0..self.words.len()).filter_map(|n| self.scores.get(n * WINDOW + at));
        scores.sum()
    }

    /// Whether a document may exceed the threshold. Asks the frequent words for it, as long as it may.
    fn may_be_wanted(&mut self, doc: DocId, at: usize) -> tantivy::Result<bool> {
        for left in (0..=self.frequent).rev() {
            if (self.sum(at) + self.most_of(left)) * ROUNDING <= self.threshold {
                return Ok(false);
            }
            let Some(n) = left
                .checked_sub(1)
                .and_then(|n| self.by_most.get(n))
                .copied()
            else {
                break;
            };
            if let Some(word) = self.words.get_mut(n) {
                let score = word.score_of(doc)?.unwrap_or(0.0);
                if let Some(place) = self.scores.get_mut(n * WINDOW + at) {
                    *place = score;
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Definition, Kind, Position, Room, Search, SearchIndex};
    use encryption::DataFiles;
    use std::sync::Arc;

    const DOCUMENTS: u32 = 5_000;

    /// Words of which each next one is in fewer documents, in texts of many lengths.
    fn text(n: u32) -> String {
        let mut words = Vec::new();
        for (word, each) in [("a", 1), ("b", 3), ("c", 40), ("d", 700), ("e", 2_500)] {
            if n.is_multiple_of(each) {
                words.extend(vec![word; 1 + (n / 7 % 3) as usize]);
            }
        }
        words.extend(vec!["x"; (n * 7919 % 90) as usize]);
        words.join(" ")
    }

    fn found(
        index: &SearchIndex,
        (operator, query, more): (&str, &str, &str),
        limit: Option<usize>,
    ) -> Vec<(Vec<u8>, f32)> {
        let search = format!(r#"{{"{operator}": {{"query": "{query}", "path": "t" {more}}}}}"#);
        let search = bson::json::parse(&search).unwrap();
        let search = Search::parse(search.as_doc(), false).unwrap();
        let mut ask = |_| Ok(());
        let mut room = Room::new(&mut ask);
        let mut hits = search.find(index.snapshot(), limit, &mut room).unwrap();
        let mut out = Vec::new();
        while let Some(hit) = hits.next().unwrap() {
            out.push((hit.key, hit.score));
        }
        out
    }

    #[test]
    fn the_best_are_those_of_all() {
        let dir = tempfile::tempdir().unwrap();
        let dynamic = bson::json::parse(r#"{"mappings": {"dynamic": true}}"#).unwrap();
        let dynamic = Arc::new(Definition::parse(Kind::Search, dynamic.as_doc()).unwrap());
        let data = DataFiles::default();
        let (index, _) = SearchIndex::open(dir.path(), dynamic, "1", &data).unwrap();
        let mut writer = index.writer("1").unwrap();
        // Several segments, some of whose documents are deleted.
        for part in 0..3 {
            for n in (0..DOCUMENTS).filter(|n| n % 3 == part) {
                let doc = bson::doc! { "t": text(n) };
                writer.put(&n.to_be_bytes(), doc.as_doc()).unwrap();
            }
            let at = u64::from(part) + 1;
            writer.commit(Position { index: at, ts: at }).unwrap();
        }
        for n in (0..DOCUMENTS).step_by(11) {
            writer.delete(&n.to_be_bytes());
        }
        writer.commit(Position { index: 9, ts: 9 }).unwrap();
        let queries = [
            "a",
            "b",
            "e",
            "none",
            "a b",
            "b a",
            "a b c",
            "a d",
            "e d",
            "e a",
            "c none b",
            "a b c d e x",
            "none nothing",
        ];
        let operators = [
            ("text", ""),
            ("text", r#", "matchCriteria": "all""#),
            ("phrase", ""),
            ("phrase", r#", "slop": 2"#),
        ];
        for (query, (operator, more)) in queries.iter().flat_map(|q| operators.map(|o| (q, o))) {
            let asked = (operator, *query, more);
            let all = found(&index, asked, None);
            for most in [0, 1, 10, 300, 100_000] {
                let best = found(&index, asked, Some(most));
                let wanted = all.get(..most.min(all.len())).unwrap();
                assert_eq!(best, wanted, "{asked:?}, {most}");
            }
        }
    }
}
