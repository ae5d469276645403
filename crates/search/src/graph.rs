//! A graph over the slots of a vector field: each slot knows some that are near to it, in all directions, and a search
//! walks from slot to slot towards what it looks for.
//!
//! ```text
//! links    slot 0 | slot 1 | …     how many u32 | their slots u32 …
//! ```
//! Source: Jayaram Subramanya et al., "DiskANN", and Singh et al., "FreshDiskANN": one level, lists that are pruned so
//! that no two of a list lie in one direction, and slots that come one by one.
//!
//! Invariant: links lead to slots of the graph. A slot stays, whether its document does or not: what is not wanted is
//! walked through and not given.

use crate::codes::{Codes, Distances, Probe, grow};
use crate::vector_definition::VectorField;
use errors::Result;
use errors::operation::steps;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A slot is left out of a list where another one of it is nearer to it, by this factor, than the list's owner is.
const SPREAD: f32 = 1.2;

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
    codes: Codes,
    links: Vec<u32>,
    /// The most links of a slot after its list was pruned.
    degree: usize,
    /// How many slots a new one is compared with closely.
    pool: usize,
}

/// What a walk has come to.
pub(crate) struct Walked {
    /// The nearest that are wanted, from the nearest on; `None`: it was to end before.
    pub found: Option<Vec<Near>>,
    /// The slots whose lists it has read.
    passed: Vec<Near>,
    /// The slots that it compared.
    pub compared: usize,
}

/// The new lists that a slot brings about.
pub(crate) struct Lists {
    own: Vec<u32>,
    /// Pruned ones of others.
    others: Vec<(u32, Vec<u32>)>,
}

/// The slots that were met.
struct Met(Vec<u64>);

impl Met {
    /// Whether it was not met before.
    fn insert(&mut self, slot: u32) -> bool {
        let Some(word) = self.0.get_mut(slot as usize / 64) else {
            return false;
        };
        let bit = 1 << (slot % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
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
        self.codes.len()
    }

    /// The bytes of memory that a slot of a field takes.
    pub fn slot_bytes(field: &VectorField) -> usize {
        Codes::slot_bytes(field) + row(field.edges * 2) * size_of::<u32>()
    }

    pub fn probe(&self, vector: &[f32]) -> Probe {
        self.codes.probe(vector, false)
    }

    fn list(&self, slot: u32) -> &[u32] {
        let row = row(self.degree);
        let at = slot as usize * row;
        let count = self.links.get(at).map_or(0, |n| *n as usize);
        self.links.get(at + 1..at + 1 + count).unwrap_or(&[])
    }

    fn set_list(&mut self, slot: u32, list: &[u32]) {
        let row = row(self.degree);
        let at = slot as usize * row;
        if let Some(room) = self.links.get_mut(at..at + row)
            && let Some((count, room)) = room.split_first_mut()
        {
            let fits = list.len().min(room.len());
            *count = fits as u32;
            room.iter_mut().zip(list).for_each(|(to, from)| *to = *from);
        }
    }

    /// Walks to the `most` slots nearest to a probe that are wanted. Ends without them where it would compare more than
    /// `limit`.
    pub fn walk(
        &self,
        probe: &Probe,
        (most, limit): (usize, usize),
        mut wanted: impl FnMut(u32) -> bool,
    ) -> Result<Walked> {
        let mut walked = Walked {
            found: None,
            passed: Vec::new(),
            compared: 0,
        };
        let mut met = Met(vec![0; self.len().div_ceil(64)]);
        let (mut open, mut best) = (BinaryHeap::new(), BinaryHeap::<Near>::new());
        let (mut fresh, mut distances) = (Vec::new(), Distances::default());
        let mut meet = |fresh: &[u32], open: &mut BinaryHeap<_>, best: &mut BinaryHeap<Near>| {
            self.codes.distances(probe, fresh, &mut distances);
            for (slot, distance) in fresh.iter().copied().zip(distances.found.iter().copied()) {
                let near = Near { distance, slot };
                let full = best.len() >= most;
                if full && best.peek().is_none_or(|worst| near >= *worst) {
                    continue;
                }
                open.push(Reverse(near));
                if wanted(slot) {
                    best.push(near);
                    if full {
                        best.pop();
                    }
                }
            }
        };
        if met.insert(0) {
            walked.compared += 1;
            meet(&[0], &mut open, &mut best);
        }
        while let Some(Reverse(near)) = open.pop() {
            if best.len() >= most && best.peek().is_some_and(|worst| near > *worst) {
                break;
            }
            walked.passed.push(near);
            let list = self.list(near.slot);
            steps(1 + list.len())?;
            fresh.clear();
            fresh.extend(list.iter().copied().filter(|slot| met.insert(*slot)));
            walked.compared += fresh.len();
            meet(&fresh, &mut open, &mut best);
            if walked.compared > limit {
                return Ok(walked);
            }
        }
        walked.found = Some(best.into_sorted_vec());
        Ok(walked)
    }

    /// The `most` of the slots that are nearest to a probe, in no order. All are of the graph.
    pub fn nearest_of(&self, probe: &Probe, slots: &[u32], most: usize) -> Result<Vec<Near>> {
        let (mut best, mut distances) = (BinaryHeap::<Near>::new(), Distances::default());
        for slots in slots.chunks(64) {
            steps(slots.len())?;
            self.codes.distances(probe, slots, &mut distances);
            for (slot, distance) in slots.iter().copied().zip(distances.found.iter().copied()) {
                let near = Near { distance, slot };
                if best.len() < most {
                    best.push(near);
                } else if let Some(mut worst) = best.peek_mut()
                    && near < *worst
                {
                    *worst = near;
                }
            }
        }
        Ok(best.into_vec())
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
        let (slots, row) = (self.len(), row(self.degree));
        let sound = |row: &[u32]| {
            let count = row.first().map_or(0, |n| *n as usize);
            let list = row.get(1..1 + count);
            list.is_some_and(|list| list.iter().all(|n| (*n as usize) < slots))
        };
        let whole = links.len() == slots * row && links.chunks_exact(row).all(sound);
        self.links = links;
        whole
    }

    /// What the next slot changes, if this is its vector.
    pub fn lists_with(&self, vector: &[f32]) -> Result<Lists> {
        let new = self.len() as u32;
        let probe = self.codes.probe(vector, true);
        let walked = self.walk(&probe, (self.pool, usize::MAX), |_| true)?;
        let mut near = walked.found.unwrap_or_default();
        near.extend(walked.passed);
        let own = self.pruned(near);
        let mut others = Vec::new();
        for slot in &own {
            let mut list = self.list(*slot).to_vec();
            if list.len() + 1 >= row(self.degree) {
                let mut near: Vec<Near> = list
                    .iter()
                    .map(|other| Near {
                        distance: self.codes.between(*slot, *other),
                        slot: *other,
                    })
                    .collect();
                let own = Near {
                    distance: self.codes.distance(&probe, *slot),
                    slot: new,
                };
                near.push(own);
                list = self.pruned_with(near, &probe, new);
            } else {
                list.push(new);
            }
            others.push((*slot, list));
        }
        Ok(Lists { own, others })
    }

    /// The next slot has this vector.
    pub fn add(&mut self, vector: &[f32], lists: Lists) {
        let (new, row) = (self.len() as u32, row(self.degree));
        self.codes.push(vector);
        grow(&mut self.links, row);
        self.links.resize(self.links.len() + row, 0);
        self.set_list(new, &lists.own);
        for (slot, list) in lists.others {
            self.set_list(slot, &list);
        }
    }

    fn pruned(&self, near: Vec<Near>) -> Vec<u32> {
        self.prune(near, |a, b| self.codes.between(a, b))
    }

    /// The same where one of them is `new`, which is not in the graph yet.
    fn pruned_with(&self, near: Vec<Near>, probe: &Probe, new: u32) -> Vec<u32> {
        self.prune(near, |a, b| match (a == new, b == new) {
            (true, _) => self.codes.distance(probe, b),
            (_, true) => self.codes.distance(probe, a),
            _ => self.codes.between(a, b),
        })
    }

    /// The nearest that do not lie behind another.
    fn prune(&self, mut near: Vec<Near>, between: impl Fn(u32, u32) -> f32) -> Vec<u32> {
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
            let hidden = |k: &u32| SPREAD * between(*k, n.slot) < n.distance;
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
