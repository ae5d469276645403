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
            slop => sloppy(&positions, slop),
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

/// The sum over places of `1 / (1 + distance)`, for distances up to `slop`.
fn sloppy(words: &[(&[i64], i64)], slop: i64) -> f32 {
    let mut at = vec![0usize; words.len()];
    let here = |at: &[usize], i: usize| words.get(i).and_then(|(w, _)| w.get(*at.get(i)?)).copied();
    let mut frequency = 0.0;
    loop {
        let now: Option<Vec<i64>> = (0..words.len()).map(|i| here(&at, i)).collect();
        let Some(now) = now else { return frequency };
        let (Some(low), Some(high)) = (now.iter().min(), now.iter().max()) else {
            return frequency;
        };
        let Some(lowest) = now.iter().position(|p| p == low) else {
            return frequency;
        };
        let next = words
            .get(lowest)
            .and_then(|(w, _)| w.get(at.get(lowest)? + 1))
            .copied();
        // The word that lies lowest may come closer before another one is the lowest.
        let second = now.iter().enumerate().filter(|(i, _)| *i != lowest);
        let second = second.map(|(_, p)| *p).min().unwrap_or(*low);
        let comes_closer = next.is_some_and(|n| n <= second);
        if !comes_closer && high - low <= slop && distinct(&now, words) {
            frequency += 1.0 / (1.0 + (high - low) as f32);
        }
        match at.get_mut(lowest) {
            Some(at) => *at += 1,
            None => return frequency,
        }
    }
}

/// No two words of the phrase are the same one of the document.
fn distinct(now: &[i64], words: &[(&[i64], i64)]) -> bool {
    let mut raw: Vec<i64> = now
        .iter()
        .zip(words)
        .map(|(p, (_, place))| p + place)
        .collect();
    raw.sort_unstable();
    raw.windows(2).all(|w| w.first() != w.last())
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
        // "quick fox" in "the quick brown fox": quick at 1, fox at 3 - 1.
        let words: [(&[i64], i64); 2] = [(&[1], 0), (&[2], 1)];
        assert_eq!(exact(&words), 0.0);
        assert_eq!(sloppy(&words, 1), 0.5);
        let adjacent: [(&[i64], i64); 2] = [(&[1, 7], 0), (&[1, 7], 1)];
        assert_eq!(exact(&adjacent), 2.0);
        assert_eq!(sloppy(&adjacent, 3), 2.0);
        // "a a" in "a": one word is not two.
        let twice: [(&[i64], i64); 2] = [(&[5], 0), (&[4], 1)];
        assert_eq!(sloppy(&twice, 2), 0.0);
    }
}
