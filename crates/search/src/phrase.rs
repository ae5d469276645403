//! Phrases: terms of a path in their places, or near them.
//!
//! Source: Lucene's `ExactPhraseMatcher` and `SloppyPhraseMatcher`: a document counts each place where the phrase is,
//! less the further its words lie apart.

use crate::postings::AnyPostings;
use crate::problem::stopped;
use crate::score::{Bm25, SegmentBm25, not_explained, words_of};
use errors::operation::steps;
use std::sync::Arc;
use tantivy::query::{EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED, Term};

/// The steps that it takes to look at a document.
const STEPS_A_DOCUMENT: usize = 4;

/// Documents that hold a phrase of at least two words, each with its place in the phrase. A word is any of some terms.
#[derive(Clone, Debug)]
pub(crate) struct PhraseQuery {
    pub terms: Vec<(Vec<Term>, u32)>,
    pub slop: u32,
    pub bm25: Arc<Bm25>,
}

impl Query for PhraseQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl PhraseQuery {
    /// `None`: a word is in no document of the segment.
    fn matches(
        &self,
        reader: &SegmentReader,
        boost: Score,
    ) -> tantivy::Result<Option<PhraseScorer>> {
        let mut words = Vec::new();
        for (terms, place) in &self.terms {
            let option = IndexRecordOption::WithFreqsAndPositions;
            let Some(postings) = AnyPostings::of(reader, terms, option)? else {
                return Ok(None);
            };
            words.push(Word {
                postings,
                place: i64::from(*place),
                positions: Vec::new(),
                buffer: Vec::new(),
            });
        }
        Ok(Some(PhraseScorer {
            words,
            repeats: Repeats::of(&self.terms),
            slop: i64::from(self.slop),
            frequency: 0.0,
            bm25: self.bm25.in_segment(reader, boost)?,
            doc: 0,
        }))
    }

    /// Whether its words stand one behind the other.
    pub fn is_exact(&self) -> bool {
        self.slop == 0
    }
}

impl Weight for PhraseQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        Ok(match self.matches(reader, boost)? {
            Some(mut scorer) => {
                scorer.settle_first();
                Box::new(scorer)
            }
            None => Box::new(EmptyScorer),
        })
    }

    fn for_each_pruning(
        &self,
        threshold: Score,
        reader: &SegmentReader,
        collect: &mut dyn FnMut(DocId, Score) -> Score,
    ) -> tantivy::Result<()> {
        match self.matches(reader, 1.0)? {
            Some(mut scorer) => scorer.best(threshold, collect),
            None => Ok(()),
        }
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        let Some(mut scorer) = self.matches(reader, 1.0)? else {
            return Err(not_explained());
        };
        scorer.settle_first();
        if scorer.doc() > doc || scorer.seek(doc) != doc {
            return Err(not_explained());
        }
        let words: Vec<String> = self.terms.iter().map(|(t, _)| words_of(t)).collect();
        let words = format!("\"{}\"", words.join(" "));
        self.bm25.explain(reader, (doc, scorer.frequency), &words)
    }
}

struct Word {
    postings: AnyPostings,
    place: i64,
    /// In the document at hand, less the place in the phrase.
    positions: Vec<i64>,
    buffer: Vec<u32>,
}

struct PhraseScorer {
    words: Vec<Word>,
    repeats: Repeats,
    slop: i64,
    frequency: f32,
    bm25: SegmentBm25,
    doc: DocId,
}

impl PhraseScorer {
    /// To the first document that holds the phrase.
    fn settle_first(&mut self) {
        let first = self.words.first();
        self.settle(first.map_or(TERMINATED, |w| w.postings.doc()));
    }

    /// To the first document from `target` on that holds the phrase.
    fn settle(&mut self, target: DocId) -> DocId {
        let mut target = self.meet(target);
        while target != TERMINATED {
            self.frequency = self.matches();
            if self.frequency > 0.0 {
                break;
            }
            target = self.pass();
        }
        self.doc = target;
        target
    }

    /// The first document from `target` on that has all words, wherever they stand.
    fn meet(&mut self, target: DocId) -> DocId {
        let mut target = target;
        while target != TERMINATED {
            let mut at = target;
            for word in &mut self.words {
                let there = match word.postings.doc() < at {
                    true => word.postings.seek(at),
                    false => word.postings.doc(),
                };
                at = at.max(there);
                if at == TERMINATED {
                    break;
                }
            }
            if at == target {
                return target;
            }
            target = at;
        }
        TERMINATED
    }

    /// The next one behind the document at hand.
    fn pass(&mut self) -> DocId {
        let next = match self.words.first_mut() {
            Some(first) => first.postings.advance(),
            None => TERMINATED,
        };
        self.meet(next)
    }

    /// Gives the documents whose scores exceed what `collect` says. Positions are read only where a document could be
    /// one of them.
    fn best(
        &mut self,
        mut threshold: Score,
        collect: &mut dyn FnMut(DocId, Score) -> Score,
    ) -> tantivy::Result<()> {
        let mut doc = self.meet(0);
        while doc != TERMINATED {
            steps(STEPS_A_DOCUMENT).map_err(|_| stopped())?;
            let most = self.words.iter_mut().map(|w| w.postings.frequency());
            let most = most.min().unwrap_or(0) as f32;
            if self.bm25.score(doc, most) > threshold {
                let frequency = self.matches();
                let score = self.bm25.score(doc, frequency);
                if frequency > 0.0 && score > threshold {
                    threshold = collect(doc, score);
                }
            }
            doc = self.pass();
        }
        Ok(())
    }

    fn matches(&mut self) -> f32 {
        for word in &mut self.words {
            word.postings.positions(&mut word.buffer);
            let place = word.place;
            word.positions.clear();
            word.positions
                .extend(word.buffer.iter().map(|p| i64::from(*p) - place));
        }
        let positions: Vec<(&[i64], i64)> = self
            .words
            .iter()
            .map(|w| (w.positions.as_slice(), w.place))
            .collect();
        match self.slop {
            0 => exact(&positions),
            slop => sloppy(&positions, &self.repeats, slop),
        }
    }
}

/// How often all words stand where the phrase has them.
fn exact(words: &[(&[i64], i64)]) -> f32 {
    let Some(((first, _), others)) = words.split_first() else {
        return 0.0;
    };
    let all = |p: &&i64| others.iter().all(|(w, _)| w.binary_search(p).is_ok());
    first.iter().filter(all).count() as f32
}

/// Words of the phrase that have terms in common, in the order of their places: they must not stand on the same word of a document.
#[derive(Clone, Debug, Default)]
struct Repeats {
    groups: Vec<Vec<usize>>,
    /// Of each word its group.
    of: Vec<Option<usize>>,
    /// Some word of a group is any of several terms, so that two of them may have few places in common.
    several: bool,
}

impl Repeats {
    fn of(words: &[(Vec<Term>, u32)]) -> Repeats {
        let mut repeats = Repeats {
            of: vec![None; words.len()],
            ..Repeats::default()
        };
        for (at, (terms, _)) in words.iter().enumerate() {
            let shares = |(other, _): &(Vec<Term>, u32)| other.iter().any(|t| terms.contains(t));
            let with: Vec<usize> = (0..at)
                .filter(|i| words.get(*i).is_some_and(shares))
                .collect();
            if with.is_empty() {
                continue;
            }
            let known: Vec<usize> = with.iter().filter_map(|i| *repeats.of.get(*i)?).collect();
            let group = known.first().copied().unwrap_or(repeats.groups.len());
            for (i, of) in repeats.of.iter_mut().enumerate() {
                if i == at || with.contains(&i) || of.is_some_and(|g| known.contains(&g)) {
                    *of = Some(group);
                }
            }
            repeats
                .groups
                .resize(repeats.groups.len().max(group + 1), Vec::new());
        }
        for (at, of) in repeats.of.iter().enumerate() {
            if let Some(group) = of.and_then(|g| repeats.groups.get_mut(g)) {
                group.push(at);
                repeats.several |= words.get(at).is_some_and(|(terms, _)| terms.len() > 1);
            }
        }
        repeats
    }
}

/// The words of a phrase on their way through a document. After Lucene's `SloppyPhraseMatcher`, with its order of steps: the counts
/// depend on it where words repeat.
struct Sloppy<'w> {
    /// The positions of each word, less its place in the phrase, and that place.
    words: &'w [(&'w [i64], i64)],
    repeats: &'w Repeats,
    at: Vec<usize>,
    /// The highest position so far.
    end: i64,
}

impl Sloppy<'_> {
    fn position(&self, word: usize) -> i64 {
        let at = self.at.get(word).copied().unwrap_or(0);
        let positions = self.words.get(word).map_or(&[][..], |w| w.0);
        positions.get(at).copied().unwrap_or(i64::MAX)
    }

    fn place(&self, word: usize) -> i64 {
        self.words.get(word).map_or(0, |w| w.1)
    }

    /// By what words are ordered.
    fn rank(&self, word: usize) -> (i64, i64, usize) {
        (self.position(word), self.place(word), word)
    }

    /// The word that comes first, but for `other`.
    fn lowest_but(&self, other: Option<usize>) -> Option<usize> {
        let words = (0..self.words.len()).filter(|w| Some(*w) != other);
        words.min_by_key(|w| self.rank(*w))
    }

    /// To its next position; `false` where there is none.
    fn advance(&mut self, word: usize) -> bool {
        let positions = self.words.get(word).map_or(0, |w| w.0.len());
        let Some(at) = self.at.get_mut(word).filter(|at| **at + 1 < positions) else {
            return false;
        };
        *at += 1;
        self.end = self.end.max(self.position(word));
        true
    }

    fn group(&self, word: usize) -> &[usize] {
        let group = self.repeats.of.get(word).copied().flatten();
        group
            .and_then(|g| self.repeats.groups.get(g))
            .map_or(&[], Vec::as_slice)
    }

    /// Another word of its group that stands on the same word of the document.
    fn collides(&self, word: usize) -> Option<usize> {
        let stands = |w: usize| self.position(w) + self.place(w);
        let same = |other: &usize| *other != word && stands(*other) == stands(word);
        self.group(word).iter().copied().find(same)
    }

    /// Has words of its group go on until none stand on the same word of the document; `false` where one cannot.
    fn resolve(&mut self, word: usize) -> bool {
        let mut word = word;
        while let Some(other) = self.collides(word) {
            word = std::cmp::min_by_key(word, other, |w| (self.position(*w), self.place(*w)));
            if !self.advance(word) {
                return false;
            }
        }
        true
    }

    /// Sets out with no two words on the same word of the document; `false` where they are too few.
    fn set_out(&mut self) -> bool {
        if self.words.iter().any(|(positions, _)| positions.is_empty()) {
            return false;
        }
        for group in &self.repeats.groups {
            for (turn, word) in group.iter().enumerate() {
                let apart = match self.repeats.several {
                    true => self.resolve(*word),
                    // Of a word that repeats the n-th one begins at the n-th position.
                    false => (0..turn).all(|_| self.advance(*word)),
                };
                if !apart {
                    return false;
                }
            }
        }
        let positions = (0..self.words.len()).map(|w| self.position(w));
        self.end = positions.max().unwrap_or(0);
        true
    }

    /// The sum over places of `1 / (1 + distance)`, for distances up to `slop`.
    fn frequency(mut self, slop: i64) -> f32 {
        let mut frequency = 0.0;
        let counted = |length: i64| match length <= slop {
            true => 1.0 / (1.0 + length as f32),
            false => 0.0,
        };
        if !self.set_out() {
            return frequency;
        }
        while let Some(lowest) = self.lowest_but(None) {
            let next = self.lowest_but(Some(lowest));
            let next = next.map_or(i64::MAX, |w| self.position(w));
            let mut length = self.end - self.position(lowest);
            // It may come closer before another one is the lowest.
            loop {
                if !self.advance(lowest) || !self.resolve(lowest) {
                    return frequency + counted(length);
                }
                if self.position(lowest) > next {
                    break;
                }
                length = length.min(self.end - self.position(lowest));
            }
            frequency += counted(length);
        }
        frequency
    }
}

/// How often words stand where the phrase has them, or near.
fn sloppy(words: &[(&[i64], i64)], repeats: &Repeats, slop: i64) -> f32 {
    let sloppy = Sloppy {
        words,
        repeats,
        at: vec![0; words.len()],
        end: i64::MIN,
    };
    sloppy.frequency(slop)
}

impl DocSet for PhraseScorer {
    fn advance(&mut self) -> DocId {
        if self.doc == TERMINATED {
            return TERMINATED;
        }
        let next = self.words.first_mut().map(|w| w.postings.advance());
        self.settle(next.unwrap_or(TERMINATED))
    }

    fn doc(&self) -> DocId {
        self.doc
    }

    fn size_hint(&self) -> u32 {
        let sizes = self.words.iter().map(|w| w.postings.size_hint());
        sizes.min().unwrap_or(0)
    }
}

impl Scorer for PhraseScorer {
    fn score(&mut self) -> Score {
        self.bm25.score(self.doc, self.frequency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_match_near_their_places() {
        let none = Repeats::default();
        // "quick fox" in "the quick brown fox": quick at 1, fox at 3 - 1.
        let words: [(&[i64], i64); 2] = [(&[1], 0), (&[2], 1)];
        assert_eq!(exact(&words), 0.0);
        assert_eq!(sloppy(&words, &none, 1), 0.5);
        let adjacent: [(&[i64], i64); 2] = [(&[1, 7], 0), (&[1, 7], 1)];
        assert_eq!(exact(&adjacent), 2.0);
        assert_eq!(sloppy(&adjacent, &none, 3), 2.0);
    }

    fn repeats(words: &[&[&str]]) -> Repeats {
        let field = tantivy::schema::Field::from_field_id(0);
        let term = |t: &&str| Term::from_field_text(field, t);
        let words = words.iter().zip(0..);
        let words: Vec<_> = words
            .map(|(w, place)| (w.iter().map(term).collect(), place))
            .collect();
        Repeats::of(&words)
    }

    #[test]
    fn a_word_that_repeats_is_not_the_same_one_twice() {
        // "a a" in "a": one word is not two.
        let two = repeats(&[&["a"], &["a"]]);
        assert_eq!(two.groups, [[0, 1]]);
        assert_eq!(sloppy(&[(&[5], 0), (&[4], 1)], &two, 2), 0.0);
        // "management library library" in "library management library": one library stands before.
        let three = repeats(&[&["m"], &["l"], &["l"]]);
        let words: [(&[i64], i64); 3] = [(&[1], 0), (&[-1, 1], 1), (&[-2, 0], 2)];
        assert_eq!(sloppy(&words, &three, 2), 1.0 / 3.0);
        assert_eq!(sloppy(&words, &three, 1), 0.0);
    }

    #[test]
    fn words_with_terms_in_common_are_one_group() {
        let four = repeats(&[&["a", "b"], &["c"], &["b", "d"], &["d"]]);
        assert_eq!((four.groups.len(), four.several), (1, true));
        assert_eq!(four.of, [Some(0), None, Some(0), Some(0)]);
        assert_eq!(repeats(&[&["a"], &["b"]]).groups.len(), 0);
    }
}
