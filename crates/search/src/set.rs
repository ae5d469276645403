//! Sets of documents that were found beforehand, segment by segment: what takes many terms of an index (ranges,
//! patterns), and asks in between whether the operation may go on.

use crate::definition::OrProblem;
use crate::files::IndexSnapshot;
use crate::hits::Hit;
use crate::room::Room;
use crate::score::not_explained;
use errors::Result;
use errors::operation::{step, steps};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use tantivy::index::SegmentId;
use tantivy::query::{
    BitSetDocSet, ConstScorer, EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight,
};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{BitSet, DocId, DocSet, Score, Searcher, SegmentReader, TERMINATED};

/// Documents with the score 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetQuery {
    segments: HashMap<SegmentId, Arc<BitSet>>,
}

/// Documents with scores of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScoredQuery {
    segments: HashMap<SegmentId, Arc<Vec<(DocId, f32)>>>,
}

/// Which terms of a field are looked at.
pub(crate) struct TermRange {
    pub field: Field,
    pub low: Bound<Vec<u8>>,
    pub high: Bound<Vec<u8>>,
}

impl TermRange {
    /// The terms that begin with `prefix`.
    pub fn prefix(field: Field, prefix: &[u8]) -> TermRange {
        TermRange {
            field,
            low: Bound::Included(prefix.to_vec()),
            high: behind(prefix),
        }
    }

    /// Has `each` called with every term in the range, and the documents that have it.
    pub fn walk(
        &self,
        reader: &SegmentReader,
        mut each: impl FnMut(&[u8], &mut dyn FnMut(&mut dyn FnMut(DocId)) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let inverted = reader.inverted_index(self.field).or_problem()?;
        let mut range = inverted.terms().range();
        range = match &self.low {
            Bound::Included(low) => range.ge(low),
            Bound::Excluded(low) => range.gt(low),
            Bound::Unbounded => range,
        };
        range = match &self.high {
            Bound::Included(high) => range.le(high),
            Bound::Excluded(high) => range.lt(high),
            Bound::Unbounded => range,
        };
        let mut stream = range.into_stream().or_problem()?;
        while stream.advance() {
            step()?;
            let info = stream.value().clone();
            let mut documents = |put: &mut dyn FnMut(DocId)| -> Result<()> {
                let option = IndexRecordOption::Basic;
                let postings = inverted.read_block_postings_from_terminfo(&info, option);
                let mut postings = postings.or_problem()?;
                loop {
                    let docs = postings.docs();
                    if docs.is_empty() {
                        return Ok(());
                    }
                    steps(docs.len())?;
                    docs.iter()
                        .filter(|d| **d != TERMINATED)
                        .for_each(|d| put(*d));
                    postings.advance();
                }
            };
            each(stream.key(), &mut documents)?;
        }
        Ok(())
    }
}

/// The first bytes that come behind all that begin with `prefix`.
fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

impl SetQuery {
    /// The documents with a term that `wanted` lets through.
    pub fn of(
        searcher: &Searcher,
        ranges: &[TermRange],
        room: &mut Room<'_>,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<SetQuery> {
        let mut out = SetQuery::default();
        for reader in searcher.segment_readers() {
            room.take_set(reader.max_doc() as usize / 8 + 64)?;
            let mut set = BitSet::with_max_value(reader.max_doc());
            for range in ranges {
                range.walk(reader, |term, documents| match wanted(term) {
                    true => documents(&mut |doc| {
                        set.insert(doc);
                    }),
                    false => Ok(()),
                })?;
            }
            out.segments.insert(reader.segment_id(), Arc::new(set));
        }
        Ok(out)
    }
}

impl SetQuery {
    /// Those that are not deleted.
    pub fn alive(
        &self,
        snapshot: &IndexSnapshot,
        room: &mut Room<'_>,
    ) -> Result<HashMap<SegmentId, BitSet>> {
        let mut out = HashMap::new();
        for reader in snapshot.searcher.segment_readers() {
            let Some(set) = self.segments.get(&reader.segment_id()) else {
                continue;
            };
            room.take_set(reader.max_doc() as usize / 8 + 64)?;
            let mut set = BitSet::clone(set);
            if let Some(alive) = reader.alive_bitset() {
                set.intersect_update(alive.bitset());
            }
            out.insert(reader.segment_id(), set);
        }
        Ok(out)
    }

    /// The documents of a segment; `None`: there are none.
    pub fn in_segment(&self, reader: &SegmentReader) -> Option<BitSetDocSet> {
        let set = self.segments.get(&reader.segment_id())?;
        (set.len() > 0).then(|| BitSetDocSet::from(BitSet::clone(set)))
    }
}

impl ScoredQuery {
    /// The documents with a term in the range, each with the best score that `score` gives to its terms.
    pub fn of(
        searcher: &Searcher,
        ranges: &[TermRange],
        room: &mut Room<'_>,
        score: &dyn Fn(&[u8]) -> f32,
    ) -> Result<ScoredQuery> {
        let mut out = ScoredQuery::default();
        for reader in searcher.segment_readers() {
            let mut best: HashMap<DocId, f32> = HashMap::new();
            for range in ranges {
                range.walk(reader, |term, documents| {
                    let score = score(term);
                    documents(&mut |doc| {
                        let known = best.entry(doc).or_insert(score);
                        *known = known.max(score);
                    })
                })?;
                room.take_set(best.len() * 16)?;
            }
            let mut docs: Vec<(DocId, f32)> = best.into_iter().collect();
            docs.sort_unstable_by_key(|(doc, _)| *doc);
            out.segments.insert(reader.segment_id(), Arc::new(docs));
        }
        Ok(out)
    }
}

impl ScoredQuery {
    /// Documents that were found with their scores.
    pub fn of_hits(searcher: &Searcher, hits: impl IntoIterator<Item = Hit>) -> ScoredQuery {
        let mut by_segment: HashMap<u32, Vec<(DocId, f32)>> = HashMap::new();
        for hit in hits {
            let docs = by_segment.entry(hit.at.segment_ord).or_default();
            docs.push((hit.at.doc_id, hit.score));
        }
        let mut out = ScoredQuery::default();
        for (segment, mut docs) in by_segment {
            docs.sort_unstable_by_key(|(doc, _)| *doc);
            let id = searcher.segment_reader(segment).segment_id();
            out.segments.insert(id, Arc::new(docs));
        }
        out
    }
}

fn looked_up(mut scorer: Box<dyn Scorer>, doc: DocId) -> tantivy::Result<Explanation> {
    if scorer.doc() > doc || scorer.seek(doc) != doc {
        return Err(not_explained());
    }
    Ok(Explanation::new("looked up beforehand", scorer.score()))
}

impl Query for SetQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for SetQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        match self.segments.get(&reader.segment_id()) {
            Some(set) if set.len() > 0 => {
                let docs = BitSetDocSet::from(BitSet::clone(set));
                Ok(Box::new(ConstScorer::new(docs, boost)))
            }
            _ => Ok(Box::new(EmptyScorer)),
        }
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        looked_up(self.scorer(reader, 1.0)?, doc)
    }
}

impl Query for ScoredQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for ScoredQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        match self.segments.get(&reader.segment_id()) {
            Some(docs) if !docs.is_empty() => Ok(Box::new(ScoredDocs {
                docs: docs.clone(),
                at: 0,
                boost,
            })),
            _ => Ok(Box::new(EmptyScorer)),
        }
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        looked_up(self.scorer(reader, 1.0)?, doc)
    }
}

struct ScoredDocs {
    docs: Arc<Vec<(DocId, f32)>>,
    at: usize,
    boost: f32,
}

impl DocSet for ScoredDocs {
    fn advance(&mut self) -> DocId {
        self.at += 1;
        self.doc()
    }

    fn doc(&self) -> DocId {
        self.docs.get(self.at).map_or(TERMINATED, |(doc, _)| *doc)
    }

    fn size_hint(&self) -> u32 {
        u32::try_from(self.docs.len()).unwrap_or(u32::MAX)
    }
}

impl Scorer for ScoredDocs {
    fn score(&mut self) -> Score {
        self.docs.get(self.at).map_or(0.0, |(_, s)| *s) * self.boost
    }
}
