//! A graph over the slots of a vector field: each slot knows some that are near to it, in all directions, and a search
//! walks from slot to slot towards what it looks for.
//!
//! ```text
//! links    slot 0 | slot 1 | …     how many u32 | their slots u32 …
//! ```
//! Source: Jayaram Subramanya et al., "DiskANN", and Singh et al., "FreshDiskANN": one level, lists that are pruned so
//! that no two of a list lie in one direction, and slots that come as they are written.
//!
//! Some slots are put in side by side: their vectors, then the list of each, then the lists of those that get a link to
//! one of them. Between these steps searches walk the graph as it was.
//!
//! Invariant: links lead to slots of the graph. A slot stays, whether its document does or not: what is not wanted is
//! walked through and not given.

use crate::codes::{Codes, Distances, Probe, grow};
use crate::products;
use crate::vector_definition::VectorField;
use errors::Result;
use errors::operation::steps;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A slot is left out of a list where another one of it is nearer to it, by this factor, than the list's owner is.
const SPREAD: f32 = 1.2;

/// A walk sets out from so many slots.
const STARTS: usize = 8;

/// A walk among the slots that a filter leaves goes on over those that it does not leave, until it has met so many
/// new ones in a turn.
const FRESH_AMONG: usize = 32;

/// So many slots are compared in one step where all are.
const COMPARED_AT_ONCE: usize = 32;

/// The most slots that are put in side by side.
pub(crate) const MOST_SIDE_BY_SIDE: usize = 64;

/// So many times as many slots are there before as are put in side by side: these do not lead to each other's lists.
const KNOWN_EACH: usize = 32;

/// A slot, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Near {
    pub distance: f32,
    pub slot: u32,
}

impl Eq for Near {}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Near) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Near {
    fn cmp(&self, other: &Near) -> Ordering {
        let by_distance = self.distance.total_cmp(&other.distance);
        by_distance.then_with(|| self.slot.cmp(&other.slot))
    }
}

pub(crate) struct Graph {
    /// Of all slots, and of those that are being put in.
    codes: Codes,
    /// Of all slots.
    links: Vec<u32>,
    /// The most links of a slot after its list was pruned.
    degree: usize,
    /// How many slots a new one is compared with closely.
    pool: usize,
}

/// What a walk has come to.
#[derive(Default)]
pub(crate) struct Walked {
    /// The nearest that are wanted, from the nearest on; `None`: it was to end before, or led to too few of them.
    pub found: Option<Vec<Near>>,
    /// The slots whose lists it has read.
    passed: Vec<Near>,
    /// The slots that it compared.
    pub compared: usize,
}

/// How far a walk goes.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// So many of the nearest are wanted.
    pub most: usize,
    /// It ends without them where it would compare more.
    pub limit: usize,
}

/// A slot with links that are new.
pub(crate) struct List {
    slot: u32,
    links: Vec<u32>,
}

/// Some slots of all: those that were met, or those that are wanted.
#[derive(Clone)]
pub(crate) struct SlotSet(Vec<u64>);

impl SlotSet {
    /// An empty set of the first `count` slots.
    pub fn empty(count: usize) -> SlotSet {
        SlotSet(vec![0; count.div_ceil(64)])
    }

    /// Whether it was not there before. What lies behind the first slots never is.
    pub fn insert(&mut self, slot: u32) -> bool {
        let Some(word) = self.0.get_mut(slot as usize / 64) else {
            return false;
        };
        let bit = 1 << (slot % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether it was there; it is not any more.
    pub fn remove(&mut self, slot: u32) -> bool {
        let Some(word) = self.0.get_mut(slot as usize / 64) else {
            return false;
        };
        let bit = 1 << (slot % 64);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    pub fn has(&self, slot: u32) -> bool {
        let word = self.0.get(slot as usize / 64);
        word.is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    /// The slots from the first on that are below `end`.
    pub fn below(&self, end: usize) -> impl Iterator<Item = u32> + '_ {
        let words = (0u32..).step_by(64).zip(&self.0);
        let slots = words.flat_map(|(first, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(first + bit)
            })
        });
        slots.take_while(move |slot| (*slot as usize) < end)
    }

    /// The first of it from a slot on.
    fn next(&self, slot: u32) -> Option<u32> {
        let first = slot as usize / 64;
        let here = self.0.get(first)? & (u64::MAX << (slot % 64));
        if here != 0 {
            return Some(slot / 64 * 64 + here.trailing_zeros());
        }
        let behind = self.0.iter().enumerate().skip(first + 1);
        let mut some = behind.filter(|(_, word)| **word != 0);
        some.next()
            .map(|(n, word)| n as u32 * 64 + word.trailing_zeros())
    }
}

/// The slots that a walk knows: those whose lists it may read next, and the nearest that are wanted.
struct Known<'g> {
    graph: &'g Graph,
    probe: &'g Probe,
    most: usize,
    open: BinaryHeap<Reverse<Near>>,
    best: BinaryHeap<Near>,
    distances: Distances,
    compared: usize,
}

impl<'g> Known<'g> {
    fn new(graph: &'g Graph, probe: &'g Probe, most: usize) -> Known<'g> {
        Known {
            graph,
            probe,
            most,
            open: BinaryHeap::new(),
            best: BinaryHeap::with_capacity(most.min(graph.len()) + 1),
            distances: Distances::default(),
            compared: 0,
        }
    }

    /// Compares slots that were not met before.
    fn meet(&mut self, fresh: &[u32], mut wanted: impl FnMut(u32) -> bool) {
        self.compared += fresh.len();
        let codes = &self.graph.codes;
        codes.distances(self.probe, fresh, &mut self.distances);
        let found = self.distances.found.iter();
        for (slot, distance) in fresh.iter().copied().zip(found.copied()) {
            let near = Near { distance, slot };
            let full = self.best.len() >= self.most;
            if full && self.best.peek().is_none_or(|worst| near >= *worst) {
                continue;
            }
            self.open.push(Reverse(near));
            if !wanted(slot) {
                continue;
            }
            if !full {
                self.best.push(near);
            } else if let Some(mut worst) = self.best.peek_mut() {
                *worst = near;
            }
        }
    }

    /// The slot whose list is to be read next, while there is hope to find a nearer one. The memory of the list behind it
    /// is asked for meanwhile.
    fn next(&mut self) -> Option<Near> {
        let Reverse(near) = self.open.pop()?;
        let full = self.best.len() >= self.most;
        if full && self.best.peek().is_some_and(|worst| near > *worst) {
            return None;
        }
        if let Some(Reverse(behind)) = self.open.peek() {
            products::ask_for(self.graph.row_of(behind.slot));
        }
        Some(near)
    }
}

impl Graph {
    pub fn new(field: &VectorField) -> Graph {
        Graph {
            codes: Codes::new(field),
            links: Vec::new(),
            degree: field.edges * 2,
            pool: field.edge_candidates,
        }
    }

    /// The number of its slots: the first ones of the file.
    pub fn len(&self) -> usize {
        self.links.len() / self.row()
    }

    /// The bytes of memory that a slot of a field takes.
    pub fn slot_bytes(field: &VectorField) -> usize {
        Codes::slot_bytes(field) + row(field.edges * 2) * size_of::<u32>()
    }

    pub fn probe(&self, vector: &[f32]) -> Probe {
        self.codes.probe(vector, false)
    }

    fn row_of(&self, slot: u32) -> &[u32] {
        let row = self.row();
        let at = slot as usize * row;
        self.links.get(at..at + row).unwrap_or(&[])
    }

    fn list(&self, slot: u32) -> &[u32] {
        let row = self.row_of(slot);
        let count = row.first().map_or(0, |n| *n as usize);
        row.get(1..1 + count).unwrap_or(&[])
    }

    fn set_list(&mut self, list: &List) {
        let row = self.row();
        let at = list.slot as usize * row;
        let room = self.links.get_mut(at..at + row);
        let Some((count, room)) = room.and_then(<[u32]>::split_first_mut) else {
            return;
        };
        assert!(list.links.len() <= room.len(), "a list fits into its row");
        *count = list.links.len() as u32;
        room.iter_mut()
            .zip(&list.links)
            .for_each(|(to, from)| *to = *from);
    }

    /// Walks to the slots nearest to a probe that are wanted.
    pub fn walk(
        &self,
        probe: &Probe,
        bounds: Bounds,
        mut wanted: impl FnMut(u32) -> bool,
    ) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut met = SlotSet::empty(self.len());
        let mut known = Known::new(self, probe, bounds.most);
        let mut fresh: Vec<u32> = self.starts().filter(|slot| met.insert(*slot)).collect();
        known.meet(&fresh, &mut wanted);
        while let Some(near) = known.next() {
            walked.passed.push(near);
            let list = self.list(near.slot);
            steps(1 + list.len())?;
            fresh.clear();
            fresh.extend(list.iter().copied().filter(|slot| met.insert(*slot)));
            known.meet(&fresh, &mut wanted);
            walked.compared = known.compared;
            if walked.compared > bounds.limit {
                return Ok(walked);
            }
        }
        walked.compared = known.compared;
        walked.found = Some(known.best.into_sorted_vec());
        Ok(walked)
    }

    /// Slots from all parts of the graph.
    fn starts(&self) -> impl Iterator<Item = u32> + use<> {
        let count = self.len();
        let each = (count / STARTS).max(1);
        (0..count).step_by(each).take(STARTS).map(|n| n as u32)
    }

    /// The same walk where few are wanted: only these are compared. Over the others it looks for wanted ones behind
    /// them.
    ///
    /// Source: Patel et al., "ACORN" (its variant that keeps the lists of a plain graph).
    pub fn walk_among(&self, probe: &Probe, bounds: Bounds, wanted: &SlotSet) -> Result<Walked> {
        let mut walked = Walked::default();
        let (mut left, mut passed) = (wanted.clone(), SlotSet::empty(self.len()));
        let mut known = Known::new(self, probe, bounds.most);
        let starts = self.starts().filter_map(|slot| wanted.next(slot));
        // What it does not have yet may be wanted too.
        let starts = starts.filter(|slot| (*slot as usize) < self.len());
        let mut fresh: Vec<u32> = starts.filter(|slot| left.remove(*slot)).collect();
        known.meet(&fresh, |_| true);
        let mut between = Vec::new();
        while let Some(near) = known.next() {
            let list = self.list(near.slot);
            fresh.clear();
            between.clear();
            for slot in list.iter().copied() {
                if left.remove(slot) {
                    fresh.push(slot);
                } else if !wanted.has(slot) && passed.insert(slot) {
                    products::ask_for(self.row_of(slot));
                    between.push(slot);
                }
            }
            let mut looked = 1 + list.len();
            for slot in between.iter().copied() {
                if fresh.len() >= FRESH_AMONG {
                    passed.remove(slot);
                    continue;
                }
                let behind = self.list(slot);
                looked += behind.len() / 8;
                for slot in behind.iter().copied() {
                    if left.remove(slot) {
                        fresh.push(slot);
                    }
                }
            }
            steps(looked)?;
            known.meet(&fresh, |_| true);
            walked.compared = known.compared;
            if walked.compared > bounds.limit {
                return Ok(walked);
            }
        }
        let enough = known.best.len() >= bounds.most;
        walked.found = enough.then(|| known.best.into_sorted_vec());
        Ok(walked)
    }

    /// The `most` of the slots that are nearest to a probe, in no order, and how many these slots are. All are of the
    /// graph.
    pub fn nearest_of(
        &self,
        probe: &Probe,
        slots: impl Iterator<Item = u32>,
        most: usize,
    ) -> Result<(Vec<Near>, usize)> {
        let mut known = Known::new(self, probe, most);
        let mut some = Vec::with_capacity(COMPARED_AT_ONCE);
        let mut slots = slots.peekable();
        while slots.peek().is_some() {
            some.clear();
            some.extend(slots.by_ref().take(COMPARED_AT_ONCE));
            steps(some.len())?;
            known.meet(&some, |_| true);
            known.open.clear();
        }
        Ok((known.best.into_vec(), known.compared))
    }

    /// The numbers of a row of links.
    pub fn row(&self) -> usize {
        row(self.degree)
    }

    pub fn links(&self) -> &[u32] {
        &self.links
    }

    /// Of a graph that is read from a file: the next slot's vector.
    pub fn put_code(&mut self, vector: &[f32]) {
        self.codes.push(vector);
    }

    /// The links of all slots that were put; whether they lead to these.
    pub fn put_links(&mut self, links: Vec<u32>) -> bool {
        let (slots, row) = (self.codes.len(), self.row());
        let sound = |row: &[u32]| {
            let count = row.first().map_or(0, |n| *n as usize);
            let list = row.get(1..1 + count);
            list.is_some_and(|list| list.iter().all(|n| (*n as usize) < slots))
        };
        let whole = links.len() == slots * row && links.chunks_exact(row).all(sound);
        self.links = links;
        whole
    }

    /// How many slots may be put in side by side.
    pub fn side_by_side(&self) -> usize {
        (self.len() / KNOWN_EACH).clamp(1, MOST_SIDE_BY_SIDE)
    }

    /// The next slots have these vectors; no list leads to them yet.
    pub fn put_vectors(&mut self, vectors: &[Vec<f32>]) {
        let slots = self.len();
        self.codes.truncate(slots);
        vectors.iter().for_each(|vector| self.codes.push(vector));
    }

    /// The own list of a slot whose vector was put, among those that were put with it.
    pub fn own_list(&self, slot: u32, vector: &[f32]) -> Result<List> {
        let probe = self.codes.probe(vector, true);
        let bounds = Bounds {
            most: self.pool,
            limit: usize::MAX,
        };
        let walked = self.walk(&probe, bounds, |_| true)?;
        let mut near = walked.found.unwrap_or_default();
        let full = near.len() >= self.pool;
        let worst = near.last().copied().filter(|_| full);
        let beside = (self.len() as u32..slot).map(|other| Near {
            distance: self.codes.distance(&probe, other),
            slot: other,
        });
        // Those that the walk would have found.
        let beside: Vec<Near> = beside.filter(|n| worst.is_none_or(|w| *n < w)).collect();
        near.extend(beside);
        near.extend(walked.passed);
        let links = self.prune(near);
        Ok(List { slot, links })
    }

    /// Which slots get links to which new ones, in the order of these.
    pub fn targets(own: &[List]) -> Vec<List> {
        let links = |list: &List| {
            let new = list.slot;
            let each = list.links.iter().map(move |to| (*to, new));
            each.collect::<Vec<_>>()
        };
        let mut pairs: Vec<(u32, u32)> = own.iter().flat_map(links).collect();
        pairs.sort_unstable();
        let of_one = pairs.chunk_by(|a, b| a.0 == b.0);
        let list = |pairs: &[(u32, u32)]| List {
            slot: pairs.first().map_or(0, |pair| pair.0),
            links: pairs.iter().map(|pair| pair.1).collect(),
        };
        of_one.map(list).collect()
    }

    /// The whole list of a slot that gets these links too. `own`: the lists of the slots that are put in.
    pub fn list_with(&self, more: &List, own: &[List]) -> List {
        let slot = more.slot;
        let mut links = match (slot as usize).checked_sub(self.len()) {
            None => self.list(slot).to_vec(),
            Some(n) => own.get(n).map_or_else(Vec::new, |list| list.links.clone()),
        };
        links.extend_from_slice(&more.links);
        if links.len() >= self.row() {
            let near = links.iter().map(|other| Near {
                distance: self.codes.between(slot, *other),
                slot: *other,
            });
            links = self.prune(near.collect());
        }
        List { slot, links }
    }

    /// The slots whose vectors were put are in from now on.
    pub fn put_lists(&mut self, own: &[List], others: &[List]) {
        let row = self.row();
        grow(&mut self.links, own.len() * row);
        self.links.resize(self.links.len() + own.len() * row, 0);
        own.iter()
            .chain(others)
            .for_each(|list| self.set_list(list));
        assert_eq!(self.codes.len(), self.len(), "each slot has a vector");
    }

    /// The nearest that do not lie behind another.
    fn prune(&self, mut near: Vec<Near>) -> Vec<u32> {
        near.sort_unstable();
        near.dedup_by_key(|n| n.slot);
        let mut kept: Vec<u32> = Vec::with_capacity(row(self.degree));
        // Equal vectors hide each other from none, and leave room for others.
        let mut equal = 0;
        for n in near {
            if kept.len() >= self.degree {
                break;
            }
            if n.distance <= 0.0 {
                equal += 1;
                if equal > self.degree / 4 {
                    continue;
                }
            }
            let hidden = |k: &u32| SPREAD * self.codes.between(*k, n.slot) < n.distance;
            if !kept.iter().any(hidden) {
                kept.push(n.slot);
            }
        }
        kept
    }
}

/// The numbers of a row: how many links, and these. Lists have room beyond their degree, so that not each new link has
/// one pruned.
fn row(degree: usize) -> usize {
    1 + degree + degree / 4
}
