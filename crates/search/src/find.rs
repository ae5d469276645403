//! Runs a search over a snapshot of an index.
//!
//! Operators become queries of the library ([`crate::compiler`]). What takes many terms is looked up first
//! ([`crate::set`]); texts and phrases are scored while their postings are read.

use crate::best;
use crate::compiler::Compiler;
use crate::definition::OrProblem;
use crate::files::IndexSnapshot;
use crate::hits::{Hit, Hits, element_of, keep, keep_best, key_of, place};
use crate::page::score_order;
use crate::room::Room;
use crate::search::{Count, Search};
use errors::operation::step;
use errors::{Result, Stop};
use std::collections::BinaryHeap;
use tantivy::query::{EnableScoring, Query, Weight};
use tantivy::{BitSet, DocAddress, DocId, Score, SegmentReader, TERMINATED};

/// What a document takes while those of its score are put in order, about.
const TIE_BYTES: usize = 96;

impl Search {
    /// Finds the best `limit` documents, or all; `None` of `limit` wants all.
    pub fn find(
        &self,
        snapshot: IndexSnapshot,
        limit: Option<usize>,
        room: &mut Room<'_>,
    ) -> Result<Hits> {
        let mut compiler = Compiler::new(&snapshot, room);
        let query = compiler.top(self.clause.as_ref(), self.scope.as_deref())?;
        let scoring = EnableScoring::enabled_from_searcher(&snapshot.searcher);
        let weight = query.weight(scoring).or_problem()?;
        // What another page shows is known when all are there.
        let limit = limit.filter(|_| !self.pages.is_bounded());
        let best = match limit {
            Some(most) if best::knows(query.as_ref()) => {
                best_of_words(weight.as_ref(), &snapshot, most, compiler.room)?
            }
            _ => of_all(weight.as_ref(), &snapshot, limit, compiler.room)?,
        };
        let mut hits = Hits::of(snapshot, best);
        hits.elements = self.scope.is_some();
        hits.weight = Some(weight).filter(|_| self.details);
        Ok(hits)
    }

    /// How many documents it finds.
    pub fn count(&self, snapshot: &IndexSnapshot, room: &mut Room<'_>) -> Result<u64> {
        let asked = (self.clause.as_ref(), self.scope.as_deref());
        let matching = crate::facet::matching(snapshot, asked, room, None)?;
        Ok(matching.values().map(|set| set.len() as u64).sum())
    }

    /// The documents of the page that is wanted, at most `limit`, in the order of their tokens. `tie`: the part of a
    /// document's key that is its own on every server.
    pub fn page(
        &self,
        snapshot: IndexSnapshot,
        tie: fn(&[u8]) -> &[u8],
        limit: Option<usize>,
        room: &mut Room<'_>,
    ) -> Result<Hits> {
        let all = self.find(snapshot.clone(), None, room)?;
        let (weight, mut left) = (all.weight, all.found.as_slice());
        let mut page = Vec::new();
        let mut same = Vec::new();
        while !left.is_empty() && limit.is_none_or(|most| page.len() < most) {
            step()?;
            // In reverse order the worst come first.
            let group = match self.pages.is_backwards() {
                false => {
                    let of = |hit: &Hit| left.first().is_some_and(|f| f.score == hit.score);
                    let n = left.iter().take_while(|hit| of(hit)).count();
                    let (group, rest) = left.split_at(n.max(1));
                    left = rest;
                    group
                }
                true => {
                    let of = |hit: &Hit| left.last().is_some_and(|l| l.score == hit.score);
                    let n = left.iter().rev().take_while(|hit| of(hit)).count();
                    let (rest, group) = left.split_at(left.len() - n.max(1));
                    left = rest;
                    group
                }
            };
            let order = group.first().map_or([0; 4], |hit| score_order(hit.score));
            if !self.pages.may_admit(&order) {
                continue;
            }
            same.clear();
            for hit in group {
                step()?;
                let key = key_of(&snapshot, hit.at)?;
                let element = match self.scope {
                    Some(_) => element_of(&snapshot, hit.at)?,
                    None => None,
                };
                let token = self.pages.token(&order, &place(tie(&key), element));
                if self.pages.admits(&token) {
                    same.push((token, *hit));
                }
            }
            room.take(same.len() * TIE_BYTES)?;
            same.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            if self.pages.is_backwards() {
                same.reverse();
            }
            let wanted = limit.map_or(same.len(), |most| most - page.len());
            page.extend(same.iter().take(wanted).map(|(_, hit)| *hit));
        }
        let mut hits = Hits::in_order(snapshot, page);
        hits.elements = self.scope.is_some();
        hits.weight = weight;
        Ok(hits)
    }

    /// What is known of all results: `{count, facet}`. `shown`: whether the document under a key counts.
    pub fn meta(
        &self,
        snapshot: IndexSnapshot,
        room: &mut Room<'_>,
        shown: Option<&mut dyn FnMut(&[u8]) -> Result<bool>>,
    ) -> Result<bson::DocBuf> {
        let asked = (self.clause.as_ref(), self.scope.as_deref());
        let matching = crate::facet::matching(&snapshot, asked, room, shown)?;
        let count: usize = matching.values().map(BitSet::len).sum();
        let mut w = bson::Writer::new();
        w.open_doc("count");
        let name = match self.count {
            Count::LowerBound => "lowerBound",
            Count::Total => "total",
        };
        w.i64(name, i64::try_from(count).unwrap_or(i64::MAX))
            .close();
        if !self.facets.is_empty() {
            crate::facet::write(&mut w, &snapshot, &matching, &self.facets, room)?;
        }
        Ok(w.finish())
    }
}

/// The best `most` documents of words: what cannot be among them is passed over.
fn best_of_words(
    weight: &dyn Weight,
    snapshot: &IndexSnapshot,
    most: usize,
    room: &mut Room<'_>,
) -> Result<BinaryHeap<Hit>> {
    let (mut best, mut held, mut failed) = (BinaryHeap::<Hit>::new(), 0, None);
    for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let alive = reader.alive_bitset();
        let worst = |best: &BinaryHeap<Hit>| match best.len() < most {
            true => Score::NEG_INFINITY,
            false => best.peek().map_or(Score::INFINITY, |worst| worst.score),
        };
        let least = worst(&best);
        let mut collect = |doc, score| {
            if alive.is_none_or(|a| a.is_alive(doc)) {
                let at = DocAddress::new(segment, doc);
                keep_best(&mut best, Hit { score, at }, most);
                if best.len() > held {
                    held = best.capacity();
                    failed = room.take(held * size_of::<Hit>()).err();
                }
            }
            failed = failed.take().or_else(|| step().err().map(Stop::from));
            match failed.is_some() {
                true => Score::INFINITY,
                false => worst(&best),
            }
        };
        let read = weight.for_each_pruning(least, reader, &mut collect);
        if let Some(stop) = failed {
            return Err(stop);
        }
        read.or_problem()?;
    }
    Ok(best)
}

/// The best `limit` documents, or all.
fn of_all(
    weight: &dyn Weight,
    snapshot: &IndexSnapshot,
    limit: Option<usize>,
    room: &mut Room<'_>,
) -> Result<BinaryHeap<Hit>> {
    let mut best = BinaryHeap::new();
    for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let mut scorer = weight.scorer(reader, 1.0).or_problem()?;
        let alive = reader.alive_bitset();
        let mut doc = scorer.doc();
        while doc != TERMINATED && limit != Some(0) {
            step()?;
            if alive.is_none_or(|a| a.is_alive(doc)) {
                let hit = Hit {
                    score: scorer.score(),
                    at: DocAddress::new(segment, doc),
                };
                keep(&mut best, hit, limit)?;
                if best.len() == best.capacity() && limit.is_none_or(|most| best.len() < most) {
                    room.take(best.len() * size_of::<Hit>())?;
                }
            }
            doc = scorer.advance();
        }
    }
    Ok(best)
}

/// Gives the documents that match, in batches of one segment each.
pub(crate) fn each_match(
    snapshot: &IndexSnapshot,
    query: &dyn Query,
    room: &mut Room<'_>,
    mut each: impl FnMut(&SegmentReader, u32, &[DocId], &mut Room<'_>) -> Result<()>,
) -> Result<()> {
    let unscored = EnableScoring::disabled_from_searcher(&snapshot.searcher);
    let weight = query.weight(unscored).or_problem()?;
    for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let mut scorer = weight.scorer(reader, 1.0).or_problem()?;
        let alive = reader.alive_bitset();
        let mut batch = Vec::new();
        let mut doc = scorer.doc();
        while doc != TERMINATED {
            step()?;
            if alive.is_none_or(|a| a.is_alive(doc)) {
                batch.push(doc);
            }
            if batch.len() == 1024 {
                each(reader, segment, &batch, room)?;
                batch.clear();
            }
            doc = scorer.advance();
        }
        each(reader, segment, &batch, room)?;
    }
    Ok(())
}
