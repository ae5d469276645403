//! Collections by name, in order. A copy shares with the original all parts but later changes, so that a
//! change of the catalog costs little however many collections there are.
//!
//! ```text
//! leaves ─┬─ leaf: a.a … a.f        at most LARGEST entries each, none empty
//!         └─ leaf: a.g … b.c
//! ```
//! Invariant: entries are in the order of their names, within each leaf and from one to the next.

use crate::collection::Collection;
use std::sync::Arc;

/// A leaf with more is split in two.
const LARGEST: usize = 128;

type Leaf = Vec<(Arc<str>, Arc<Collection>)>;

#[derive(Clone, Default)]
pub(crate) struct Names {
    leaves: Vec<Arc<Leaf>>,
    /// How many have a collation of their own.
    collated: usize,
}

fn collation(c: &Collection) -> usize {
    usize::from(c.collation.is_some())
}

impl Names {
    /// The leaf that a name belongs to.
    fn leaf(&self, ns: &str) -> usize {
        let after = |l: &Arc<Leaf>| l.first().is_none_or(|(first, _)| **first <= *ns);
        self.leaves.partition_point(after).saturating_sub(1)
    }

    fn place(leaf: &Leaf, ns: &str) -> Result<usize, usize> {
        leaf.binary_search_by(|(name, _)| (**name).cmp(ns))
    }

    pub fn get(&self, ns: &str) -> Option<&Arc<Collection>> {
        let leaf = self.leaves.get(self.leaf(ns))?;
        let (_, c) = leaf.get(Names::place(leaf, ns).ok()?)?;
        Some(c)
    }

    /// Some collection has a collation of its own.
    pub fn is_collated(&self) -> bool {
        self.collated > 0
    }

    /// Puts a collection under its name, in the place of another that has it.
    pub fn insert(&mut self, c: Arc<Collection>) {
        self.collated += collation(&c);
        let at = self.leaf(&c.ns);
        let Some(leaf) = self.leaves.get_mut(at) else {
            let first = vec![(c.ns.clone(), c)];
            self.leaves.push(Arc::new(first));
            return;
        };
        let leaf = Arc::make_mut(leaf);
        match Names::place(leaf, &c.ns) {
            Ok(i) => {
                if let Some((_, there)) = leaf.get_mut(i) {
                    self.collated -= collation(there);
                    *there = c;
                }
            }
            Err(i) => leaf.insert(i, (c.ns.clone(), c)),
        }
        if leaf.len() > LARGEST {
            let right = leaf.split_off(LARGEST / 2);
            self.leaves.insert(at + 1, Arc::new(right));
        }
    }

    pub fn remove(&mut self, ns: &str) {
        let at = self.leaf(ns);
        let Some(leaf) = self.leaves.get_mut(at) else {
            return;
        };
        let Ok(i) = Names::place(leaf, ns) else {
            return;
        };
        let leaf = Arc::make_mut(leaf);
        let (_, gone) = leaf.remove(i);
        self.collated -= collation(&gone);
        if leaf.is_empty() {
            self.leaves.remove(at);
        }
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<Collection>> {
        let entries = self.leaves.iter().flat_map(|l| l.iter());
        entries.map(|(_, c)| c)
    }

    /// From the first name that is not before `ns` on.
    pub fn values_from(&self, ns: &str) -> impl Iterator<Item = &Arc<Collection>> + use<'_> {
        let at = self.leaf(ns);
        let first = self.leaves.get(at);
        let skip = first.map_or(0, |l| l.partition_point(|(name, _)| **name < *ns));
        let leaves = self.leaves.get(at..).unwrap_or(&[]);
        let entries = leaves.iter().flat_map(|l| l.iter());
        entries.skip(skip).map(|(_, c)| c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DocBuf, doc};
    use std::collections::BTreeMap;

    fn collection(ns: &str, number: u64) -> Arc<Collection> {
        let options = match number % 3 {
            0 => doc! { "collation": doc! { "locale": "de" } },
            _ => DocBuf::new(),
        };
        Arc::new(Collection::new(ns.into(), [0; 16], number, options).unwrap())
    }

    /// Against a map of the standard library, under random changes, and old copies stay what they
    /// were.
    #[test]
    fn is_a_sorted_map() {
        let seed: u64 = rand::random();
        let mut state = seed | 1;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let (mut names, mut want) = (Names::default(), BTreeMap::new());
        let mut before: Option<(Names, Vec<u64>)> = None;
        let tablets = |n: &Names| n.values().map(|c| c.tablet).collect::<Vec<_>>();
        for i in 0..6000 {
            // First it grows to many leaves, then it shrinks to none.
            let ns = format!("d{}.c{}", random(3), random(1500));
            if random(10) < if i < 3000 { 9 } else { 1 } {
                let c = collection(&ns, i);
                names.insert(c.clone());
                want.insert(ns, c);
            } else {
                names.remove(&ns);
                want.remove(&ns);
            }
            let probe = format!("d{}.c{}", random(3), random(1500));
            let of = |c: Option<&Arc<Collection>>| c.map(|c| c.tablet);
            assert_eq!(of(names.get(&probe)), of(want.get(&probe)), "seed {seed}");
            let next = of(want.range(probe.clone()..).next().map(|(_, c)| c));
            assert_eq!(of(names.values_from(&probe).next()), next, "seed {seed}");
            let collated = want.values().any(|c| c.collation.is_some());
            assert_eq!(names.is_collated(), collated, "seed {seed}");
            if i % 500 == 0 {
                if let Some((old, held)) = before.take() {
                    assert_eq!(tablets(&old), held, "seed {seed}");
                }
                let held: Vec<u64> = want.values().map(|c| c.tablet).collect();
                assert_eq!(tablets(&names), held, "seed {seed}");
                before = Some((names.clone(), held));
            }
            assert!(
                names
                    .leaves
                    .iter()
                    .all(|l| (1..=LARGEST).contains(&l.len()))
            );
        }
        let left: Vec<String> = want.keys().cloned().collect();
        left.iter().for_each(|ns| names.remove(ns));
        assert!(names.leaves.is_empty() && !names.is_collated() && names.get("d0.c1").is_none());
    }

    /// What a change copies is one leaf.
    #[test]
    fn a_copy_shares_what_is_not_changed() {
        let mut names = Names::default();
        (0..5000).for_each(|i| names.insert(collection(&format!("d.{i}"), 1)));
        let before = names.clone();
        names.insert(collection("d.77x", 1));
        let shared = |l: &&Arc<Leaf>| before.leaves.iter().any(|b| Arc::ptr_eq(b, l));
        let own = names.leaves.len() - names.leaves.iter().filter(shared).count();
        assert!(names.leaves.len() > 30 && (1..=2).contains(&own), "{own}");
    }
}
