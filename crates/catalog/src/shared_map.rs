//! A sorted map of which copies share with the original all parts but later changes, so that a change of
//! the catalog costs little however many collections there are.
//!
//! ```text
//! leaves ─┬─ leaf: a.a … a.f        at most LARGEST entries each, none empty
//!         └─ leaf: a.g … b.c
//! ```
//! Invariant: entries are in the order of their keys, within each leaf and from one to the next.

use std::borrow::Borrow;
use std::sync::Arc;

/// A leaf with more is split in two.
const LARGEST: usize = 128;

type Leaf<K, V> = Vec<(K, V)>;

#[derive(Clone)]
pub(crate) struct SharedMap<K, V> {
    leaves: Vec<Arc<Leaf<K, V>>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap { leaves: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The leaf that a key belongs to.
    fn leaf<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let after = |l: &Arc<Leaf<K, V>>| l.first().is_none_or(|(first, _)| first.borrow() <= key);
        self.leaves.partition_point(after).saturating_sub(1)
    }

    fn place<Q: Ord + ?Sized>(leaf: &Leaf<K, V>, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        leaf.binary_search_by(|(k, _)| k.borrow().cmp(key))
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let leaf = self.leaves.get(self.leaf(key))?;
        let (_, value) = leaf.get(Self::place(leaf, key).ok()?)?;
        Some(value)
    }

    /// The value that was under the key before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.leaf(&key);
        assert!(
            self.leaves
                .get(at + 1)
                .and_then(|next| next.first())
                .is_none_or(|(first, _)| key < *first),
            "entries are in the order of their keys from one leaf to the next"
        );
        let Some(leaf) = self.leaves.get_mut(at) else {
            self.leaves.push(Arc::new(vec![(key, value)]));
            return None;
        };
        let leaf = Arc::make_mut(leaf);
        match Self::place(leaf, &key) {
            Ok(i) => {
                let (_, there) = leaf.get_mut(i)?;
                return Some(std::mem::replace(there, value));
            }
            Err(i) => leaf.insert(i, (key, value)),
        }
        if leaf.len() > LARGEST {
            let right = leaf.split_off(LARGEST / 2);
            self.leaves.insert(at + 1, Arc::new(right));
        }
        None
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.leaf(key);
        let leaf = self.leaves.get_mut(at)?;
        let i = Self::place(leaf, key).ok()?;
        let leaf = Arc::make_mut(leaf);
        let (_, gone) = leaf.remove(i);
        if leaf.is_empty() {
            self.leaves.remove(at);
        }
        Some(gone)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        let entries = self.leaves.iter().flat_map(|l| l.iter());
        entries.map(|(_, value)| value)
    }

    /// From the first key that is not before `key` on.
    pub fn values_from<'a, Q: Ord + ?Sized>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = &'a V> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let at = self.leaf(key);
        let first = self.leaves.get(at);
        let skip = first.map_or(0, |l| l.partition_point(|(k, _)| k.borrow() < key));
        let leaves = self.leaves.get(at..).unwrap_or(&[]);
        let entries = leaves.iter().flat_map(|l| l.iter());
        entries.skip(skip).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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
        let (mut map, mut want) = (SharedMap::<String, u64>::default(), BTreeMap::new());
        let mut before: Option<(SharedMap<String, u64>, Vec<u64>)> = None;
        let values = |m: &SharedMap<String, u64>| m.values().copied().collect::<Vec<_>>();
        for i in 0..6000 {
            // First it grows to many leaves, then it shrinks to none.
            let key = format!("d{}.c{}", random(3), random(1500));
            if random(10) < if i < 3000 { 9 } else { 1 } {
                assert_eq!(
                    map.insert(key.clone(), i),
                    want.insert(key, i),
                    "seed {seed}"
                );
            } else {
                assert_eq!(map.remove(&key), want.remove(&key), "seed {seed}");
            }
            let probe = format!("d{}.c{}", random(3), random(1500));
            assert_eq!(map.get(&probe), want.get(&probe), "seed {seed}");
            let next = want.range(probe.clone()..).next().map(|(_, v)| v);
            assert_eq!(map.values_from(&probe).next(), next, "seed {seed}");
            if i % 500 == 0 {
                if let Some((old, held)) = before.take() {
                    assert_eq!(values(&old), held, "seed {seed}");
                }
                let held: Vec<u64> = want.values().copied().collect();
                assert_eq!(values(&map), held, "seed {seed}");
                before = Some((map.clone(), held));
            }
            let in_bounds = |l: &Arc<Leaf<String, u64>>| (1..=LARGEST).contains(&l.len());
            assert!(map.leaves.iter().all(in_bounds));
        }
        for key in want.keys() {
            map.remove(key);
        }
        assert!(map.leaves.is_empty() && map.get("d0.c1").is_none());
    }

    /// What a change copies is one leaf.
    #[test]
    fn a_copy_shares_what_is_not_changed() {
        let mut map = SharedMap::default();
        for i in 0..5000 {
            map.insert(format!("d.{i}"), 1);
        }
        let before = map.clone();
        map.insert("d.77x".to_string(), 1);
        let shared = |l: &&Arc<Leaf<String, i32>>| before.leaves.iter().any(|b| Arc::ptr_eq(b, l));
        let own = map.leaves.len() - map.leaves.iter().filter(shared).count();
        assert!(map.leaves.len() > 30 && (1..=2).contains(&own), "{own}");
    }
}
