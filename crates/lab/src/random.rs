//! Random numbers and permutations: cheap, seeded, the same on every machine.

/// xoshiro256++ (Blackman and Vigna), seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// One step of splitmix64: a good 64-bit mix.
pub fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let a = mix(seed);
        let b = mix(a);
        let c = mix(b);
        Rng([a, b, c, mix(c) | 1])
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..n` (0 when `n` is 0); the bias is below n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`, 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A bijection of `0..n` onto itself, in constant memory: a Feistel network over the next even power of two, walked until
/// it lands inside. It stands in for a shuffled list of all keys.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    pub fn new(n: u64, seed: u64) -> Permutation {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let mut rng = Rng::new(seed);
        Permutation {
            n,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.next_u64()),
        }
    }

    /// Where `i` goes; `i` itself when it is not below `n`.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        if i >= self.n {
            return i;
        }
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = i;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mix(right ^ key) & mask));
            }
            x = left << self.half_bits | right;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_hits_everything_once() {
        for n in [1, 2, 3, 10, 1000, 4097] {
            let p = Permutation::new(n, 7);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let to = p.at(i) as usize;
                assert!(!seen[to], "{to} twice of {n}");
                seen[to] = true;
            }
        }
        let p = Permutation::new(1000, 7);
        let moved = (0..1000).filter(|&i| p.at(i) != i).count();
        assert!(moved > 950, "only {moved} moved");
    }

    #[test]
    fn below_and_unit_cover_their_range() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 10];
        let mut sum = 0.0;
        for _ in 0..10_000 {
            seen[rng.below(10) as usize] += 1;
            let u = rng.unit();
            assert!((0.0..1.0).contains(&u));
            sum += u;
        }
        assert!(seen.iter().all(|&c| (850..1150).contains(&c)), "{seen:?}");
        assert!((sum / 10_000.0 - 0.5).abs() < 0.02);
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
    }
}
