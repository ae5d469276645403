//! Where a range of keys is cut into parts of about the same size, each for a thread.

use crate::engine::Engine;
use catalog::keyspace::{self, Prefix};

/// A part may be off by this share of itself: finer ranges cost more questions.
const TOLERANCE: u64 = 32;

/// The keys (without the prefix) at which the range from `first` to `last` is cut into so many parts, in order; none
/// where it has less than `least` bytes.
pub(crate) fn of_range(
    engine: &Engine,
    prefix: &Prefix,
    (first, last): (&[u8], &[u8]),
    parts: usize,
    least: u64,
) -> Vec<Vec<u8>> {
    let from = keyspace::join(prefix, first);
    let size = |to: &[u8]| {
        let to = keyspace::join(prefix, to);
        engine.store.approximate_size(&from, &to)
    };
    let total = size(last);
    if total < least {
        return Vec::new();
    }
    let mut cuts: Vec<Vec<u8>> = Vec::new();
    for part in 1..parts {
        let wanted = total / parts as u64 * part as u64;
        let tolerance = total / parts as u64 / TOLERANCE;
        let cut = key_at(first, last, wanted, tolerance, &size);
        let before = cuts.last().map_or(first, Vec::as_slice);
        if *before < *cut && *cut < *last {
            cuts.push(cut);
        }
    }
    cuts
}

/// A key between `first` and `last` up to which the size is about `wanted`: the first eight bytes in which the two differ are
/// taken for a number.
fn key_at(
    first: &[u8],
    last: &[u8],
    wanted: u64,
    tolerance: u64,
    size: &dyn Fn(&[u8]) -> u64,
) -> Vec<u8> {
    let same = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let digits = (0..8).map(|at| key.get(same + at).copied().unwrap_or(0));
        digits.fold(0, |n, digit| n << 8 | u64::from(digit))
    };
    let key = |n: u64| [first.get(..same).unwrap_or_default(), &n.to_be_bytes()].concat();
    let (mut low, mut high) = (number(first), number(last));
    while low < high {
        let middle = low + (high - low) / 2;
        let found = size(&key(middle));
        if found.abs_diff(wanted) <= tolerance {
            return key(middle);
        }
        match found < wanted {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    key(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_size() {
        // A thousand keys of one size each, most of them close together.
        let keys: Vec<Vec<u8>> = (0..1000u64)
            .map(|n| [b"prefix".as_slice(), &(n * n * n).to_be_bytes(), b"tail"].concat())
            .collect();
        let (first, last) = (keys[0].clone(), keys[999].clone());
        let size = |to: &[u8]| keys.iter().filter(|k| k.as_slice() < to).count() as u64;
        for wanted in [10, 250, 500, 999] {
            let key = key_at(&first, &last, wanted, 2, &size);
            assert!(size(&key).abs_diff(wanted) <= 2, "{wanted}: {}", size(&key));
        }
        let one = key_at(&first, &first, 500, 2, &size);
        assert!(one >= first, "there is nothing between");
    }
}
