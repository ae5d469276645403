//! Runs a search over a snapshot of an index.
//!
//! Operators become queries of the library ([`crate::compiler`]). What takes many terms is looked up first
//! ([`crate::set`]); texts and phrases are scored while their postings are read.

use crate::compiler::Compiler;
use crate::definition::OrProblem;
use crate::files::Snapshot;
use crate::hits::{Hit, Hits, MOST_FOUND, element_of, keep, key_of, place};
use crate::operator::Clause;
use crate::page::score_order;
use crate::room::Room;
use crate::search::{Count, Search};
use errors::Result;
use errors::operation::step;
use std::collections::BinaryHeap;
use tantivy::query::EnableScoring;
use tantivy::{BitSet, DocAddress, DocId, DocSet, SegmentReader, TERMINATED};

/// What a document takes while those of its score are put in order, about.
const TIE_BYTES: usize = 96;

impl Search {
    /// Finds the best `limit` documents, or all; `None` of `limit` wants all.
    pub fn find(
        &self,
        snapshot: Snapshot,
        limit: Option<usize>,
        room: &mut Room<'_>,
    ) -> Result<Hits> {
        let mut compiler = Compiler::new(&snapshot, room);
        let query = compiler.top(self.clause.as_ref(), self.scope.as_deref())?;
        let scoring = EnableScoring::enabled_from_searcher(&snapshot.searcher);
        let weight = query.weight(scoring).or_problem()?;
        // What another page shows is known when all are there.
        let limit = limit.filter(|_| !self.pages.is_bounded());
        let most = limit.unwrap_or(MOST_FOUND);
        let (mut best, mut count) = (BinaryHeap::new(), 0);
        for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
            let mut scorer = weight.scorer(reader, 1.0).or_problem()?;
            let alive = reader.alive_bitset();
            let mut doc = scorer.doc();
            while doc != TERMINATED {
                step()?;
                if alive.is_none_or(|a| a.is_alive(doc)) {
                    count += 1;
                    if most > 0 {
                        let hit = Hit {
                            score: scorer.score(),
                            at: DocAddress::new(segment, doc),
                        };
                        keep(&mut best, hit, most, limit)?;
                        if best.len() == best.capacity() && best.len() < most {
                            compiler.room.take(best.len() * size_of::<Hit>())?;
                        }
                    }
                }
                doc = scorer.advance();
            }
        }
        let mut hits = Hits::of(snapshot, best, count);
        hits.elements = self.scope.is_some();
        hits.weight = Some(weight).filter(|_| self.details);
        Ok(hits)
    }

    /// The documents of the page that is wanted, at most `limit`, in the order of their tokens. `tie`: the part of a
    /// document's key that is its own on every server.
    pub fn page(
        &self,
        snapshot: Snapshot,
        tie: fn(&[u8]) -> &[u8],
        limit: Option<usize>,
        room: &mut Room<'_>,
    ) -> Result<Hits> {
        let all = self.find(snapshot.clone(), None, room)?;
        let (count, weight, mut left) = (all.count, all.weight, all.found.as_slice());
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
        let mut hits = Hits::in_order(snapshot, page, count);
        hits.elements = self.scope.is_some();
        hits.weight = weight;
        Ok(hits)
    }

    /// What is known of all results: `{count, facet}`. `shown`: whether the document under a key counts.
    pub fn meta(
        &self,
        snapshot: Snapshot,
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

/// Gives the documents that match, in batches of one segment each; all of them where nothing is
/// asked for.
pub(crate) fn each_match(
    snapshot: &Snapshot,
    (clause, scope): (Option<&Clause>, Option<&str>),
    room: &mut Room<'_>,
    mut each: impl FnMut(&SegmentReader, u32, &[DocId], &mut Room<'_>) -> Result<()>,
) -> Result<()> {
    let query = Compiler::new(snapshot, room).top(clause, scope)?;
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
