//! The bytes of fields and keys.

use crate::distribution::{Zipfian, fnv64};
use crate::random::Rng;
use crate::ycsb::spec::{Buckets, Length, Spec};
use std::sync::Arc;

/// The key of record `n`: `user` and the number, hashed unless inserts are ordered, padded with zeros.
pub fn write_key(spec: &Spec, n: u64, out: &mut Vec<u8>) {
    let number = if spec.ordered_inserts { n } else { fnv64(n) };
    let (mut digits, mut at, mut rest) = ([0u8; 20], 20, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(b"user");
    let written = digits.len() - at;
    out.resize(out.len() + spec.zero_padding.saturating_sub(written), b'0');
    out.extend_from_slice(&digits[at..]);
}

/// YCSB's `dataintegrity` value: derived from key and field, so that a reader can tell it.
pub fn deterministic(key: &str, field: &str, size: usize) -> Vec<u8> {
    let mut text = format!("{key}:{field}");
    while text.len() < size {
        // Java's String.hashCode over ASCII.
        let hash = text
            .bytes()
            .fold(0i32, |h, b| h.wrapping_mul(31).wrapping_add(i32::from(b)));
        text.push(':');
        text.push_str(&hash.to_string());
    }
    text.truncate(size);
    text.into_bytes()
}

/// Random field contents in YCSB's alphabet, cut from a pool: drawing a thousand bytes an insert would cost the client
/// more than sending them. The pool is far longer than any block that a store compresses.
#[derive(Clone, Debug)]
pub struct Pool(Vec<u8>);

const POOL_BYTES: usize = 4 << 20;

impl Pool {
    pub fn new(seed: u64, longest: u64) -> Pool {
        let mut rng = Rng::new(seed);
        let size = POOL_BYTES + longest as usize;
        let mut bytes = Vec::with_capacity(size + 6);
        while bytes.len() < size {
            // Six bytes from one draw, with the masks of YCSB's byte iterator.
            let r = rng.next_u64();
            for (shift, mask) in [(0, 31), (5, 63), (10, 95), (15, 31), (20, 63), (25, 95)] {
                bytes.push(b' ' + ((r >> shift) & mask) as u8);
            }
        }
        Pool(bytes)
    }

    #[inline]
    pub fn cut(&self, rng: &mut Rng, length: usize) -> &[u8] {
        let at = rng.below((self.0.len() - length) as u64) as usize;
        &self.0[at..at + length]
    }
}

/// How long something is.
#[derive(Clone, Debug)]
pub struct Lengths {
    min: u64,
    max: u64,
    zipfian: Option<Zipfian>,
    constant: bool,
    buckets: Option<Arc<Buckets>>,
}

impl Lengths {
    pub fn new(distribution: Length, min: u64, max: u64) -> Lengths {
        Lengths {
            min,
            max,
            zipfian: (distribution == Length::Zipfian)
                .then(|| Zipfian::new((max - min + 1).max(2))),
            constant: distribution == Length::Constant,
            buckets: None,
        }
    }

    /// Those of a field.
    pub fn of_fields(spec: &Spec) -> Lengths {
        Lengths {
            buckets: (spec.field_length_distribution == Length::Histogram)
                .then(|| Arc::clone(&spec.field_lengths)),
            ..Lengths::new(
                spec.field_length_distribution,
                spec.min_field_length,
                spec.field_length,
            )
        }
    }

    #[inline]
    pub fn next(&self, rng: &mut Rng) -> u64 {
        if let Some(b) = &self.buckets {
            return b.at(rng.unit());
        }
        if self.constant {
            return self.max;
        }
        let above = match &self.zipfian {
            Some(z) => z.at(rng.unit()),
            None => rng.below(self.max - self.min + 1),
        };
        (self.min + above).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::Properties;

    fn key(properties: &str, n: u64) -> String {
        let mut p = Properties::default();
        p.add_text(&format!("recordcount=10\n{properties}"))
            .unwrap();
        let mut out = Vec::new();
        write_key(&Spec::new(&p).unwrap().0, n, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn keys_are_those_of_ycsb() {
        assert_eq!(key("", 0), "user6284781860667377211");
        assert_eq!(key("", 1), "user8517097267634966620");
        assert_eq!(key("", 2), "user1820151046732198393");
        assert_eq!(key("insertorder=ordered", 0), "user0");
        assert_eq!(
            key("insertorder=ordered\nzeropadding=12", 42),
            "user000000000042"
        );
    }

    #[test]
    fn deterministic_values() {
        let v = deterministic("user1", "field0", 30);
        // "user1:field0".hashCode() in Java.
        let hash = b"user1:field0"
            .iter()
            .fold(0i32, |h, b| h.wrapping_mul(31).wrapping_add(i32::from(*b)));
        assert!(v.starts_with(format!("user1:field0:{hash}").as_bytes()));
        assert_eq!(v.len(), 30);
        assert_eq!(deterministic("user1", "field0", 4), b"user");
    }

    #[test]
    fn values_are_printable_and_lengths_in_range() {
        let (pool, mut rng) = (Pool::new(1, 100), Rng::new(2));
        let cut = pool.cut(&mut rng, 100);
        assert!(cut.len() == 100 && cut.iter().all(|b| (32..128).contains(b)));
        for d in [Length::Constant, Length::Uniform, Length::Zipfian] {
            let lengths = Lengths::new(d, 3, 9);
            let drawn: Vec<u64> = (0..1000).map(|_| lengths.next(&mut rng)).collect();
            assert!(drawn.iter().all(|l| (3..=9).contains(l)), "{d:?}");
            assert_eq!(drawn.iter().all(|&l| l == 9), d == Length::Constant);
        }
    }
}
