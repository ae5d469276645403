//! The keys that the documents of one batch have taken so far.

use foldhash::HashSet;

/// A set of keys. Those that come in ascending order, as generated `_id`s do, need no table.
#[derive(Default)]
pub(crate) struct TakenKeys<'c> {
    ascending: Vec<&'c [u8]>,
    others: HashSet<&'c [u8]>,
}

impl<'c> TakenKeys<'c> {
    pub fn contains(&self, key: &[u8]) -> bool {
        !self.is_beyond(key) && self.ascending.binary_search(&key).is_ok()
            || !self.others.is_empty() && self.others.contains(key)
    }

    pub fn insert(&mut self, key: &'c [u8]) {
        if self.is_beyond(key) {
            self.ascending.push(key);
        } else {
            self.others.insert(key);
        }
    }

    /// Whether the key is greater than all that came in order.
    fn is_beyond(&self, key: &[u8]) -> bool {
        self.ascending.last().is_none_or(|last| *last < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_whatever_order_they_came_in() {
        for order in [
            [0u8, 1, 2, 3, 4, 5],
            [5, 4, 3, 2, 1, 0],
            [2, 5, 0, 4, 1, 3],
            [1, 1, 0, 0, 5, 1],
        ] {
            let mut taken = TakenKeys::default();
            for (n, key) in order.iter().enumerate() {
                let before = order[..n].contains(key);
                assert_eq!(taken.contains(&[*key]), before, "{order:?} at {n}");
                taken.insert(std::slice::from_ref(key));
            }
            for key in 0..=6 {
                assert_eq!(taken.contains(&[key]), order.contains(&key), "{order:?}");
            }
            assert!(!taken.contains(&[]));
        }
    }
}
