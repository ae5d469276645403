//! Sums of products of numbers, in the widest instructions that the processor has.
//!
//! Invariant: all processors give the same sums. Floating-point numbers are added in eight lanes everywhere, and the
//! lanes in their order.

/// How many numbers are added side by side.
const LANES: usize = 8;

/// Pieces of memory, each of which holds a vector of signed bytes.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a> {
    pub all: &'a [u8],
    /// The bytes of a piece.
    pub step: usize,
    /// The bytes before its vector.
    pub before: usize,
}

impl<'a> Pieces<'a> {
    #[inline(always)]
    pub fn piece(&self, number: u32) -> &'a [u8] {
        let from = number as usize * self.step;
        self.all.get(from..from + self.step).unwrap_or(&[])
    }
}

/// A function, and the same compiled for AVX2, which is called where there is one.
macro_rules! widest {
    ($(#[$about:meta])* $name:ident, $wide:ident, $plain:ident, ($($arg:ident: $of:ty),*) -> $gives:ty) => {
        $(#[$about])*
        pub(crate) fn $name($($arg: $of),*) -> $gives {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions that it is compiled for.
                return unsafe { $wide($($arg),*) };
            }
            $plain($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide($($arg: $of),*) -> $gives {
            $plain($($arg),*)
        }
    };
}

widest! {
    /// The product of two vectors of signed bytes.
    bytes, bytes_avx2, bytes_plain, (a: &[u8], b: &[u8]) -> i32
}

widest! {
    /// The products of a vector of signed bytes and of those of pieces, by the pieces' numbers.
    rows, rows_avx2, rows_plain, (a: &[u8], pieces: Pieces<'_>, numbers: &[u32], out: &mut Vec<i32>) -> ()
}

widest! {
    /// The product of a vector and one in its stored form, f32 LE.
    dot, dot_avx2, dot_plain, (a: &[f32], stored: &[u8]) -> f64
}

widest! {
    /// The same, and the product of the stored one with itself.
    dot_and_square, dot_and_square_avx2, dot_and_square_plain, (a: &[f32], stored: &[u8]) -> (f64, f64)
}

widest! {
    /// The square of their distance.
    distance, distance_avx2, distance_plain, (a: &[f32], stored: &[u8]) -> f64
}

#[inline(always)]
fn bytes_plain(a: &[u8], b: &[u8]) -> i32 {
    let pairs = a.iter().zip(b);
    pairs
        .map(|(a, b)| i32::from(*a as i8) * i32::from(*b as i8))
        .sum()
}

#[inline(always)]
fn rows_plain(a: &[u8], pieces: Pieces<'_>, numbers: &[u32], out: &mut Vec<i32>) {
    out.clear();
    out.extend(numbers.iter().map(|number| {
        let vector = pieces.piece(*number).get(pieces.before..).unwrap_or(&[]);
        bytes_plain(a, vector)
    }));
}

#[inline(always)]
fn dot_plain(a: &[f32], stored: &[u8]) -> f64 {
    let mut sums = [0f64; LANES];
    each_lane(a, stored, |lane, a, b| {
        if let Some(sum) = sums.get_mut(lane) {
            *sum += a * b;
        }
    });
    sums.iter().sum()
}

#[inline(always)]
fn dot_and_square_plain(a: &[f32], stored: &[u8]) -> (f64, f64) {
    let (mut dots, mut squares) = ([0f64; LANES], [0f64; LANES]);
    each_lane(a, stored, |lane, a, b| {
        if let (Some(dot), Some(square)) = (dots.get_mut(lane), squares.get_mut(lane)) {
            *dot += a * b;
            *square += b * b;
        }
    });
    (dots.iter().sum(), squares.iter().sum())
}

#[inline(always)]
fn distance_plain(a: &[f32], stored: &[u8]) -> f64 {
    let mut sums = [0f64; LANES];
    each_lane(a, stored, |lane, a, b| {
        if let Some(sum) = sums.get_mut(lane) {
            *sum += (a - b) * (a - b);
        }
    });
    sums.iter().sum()
}

/// Gives each pair of numbers with its lane.
#[inline(always)]
fn each_lane(a: &[f32], stored: &[u8], mut add: impl FnMut(usize, f64, f64)) {
    let (stored, _) = stored.as_chunks::<4>();
    let (wide_a, rest_a) = a.as_chunks::<LANES>();
    let (wide_b, rest_b) = stored.as_chunks::<LANES>();
    let number = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
    for (a, b) in wide_a.iter().zip(wide_b) {
        for (lane, (a, b)) in a.iter().zip(b).enumerate() {
            add(lane, f64::from(*a), number(b));
        }
    }
    for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
        add(lane, f64::from(*a), number(b));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_plain_loops() {
        for n in [0usize, 1, 7, 8, 9, 31, 256, 1023] {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.91).cos()).collect();
            let stored: Vec<u8> = b.iter().flat_map(|n| n.to_le_bytes()).collect();
            let pairs = || {
                a.iter()
                    .zip(&b)
                    .map(|(a, b)| (f64::from(*a), f64::from(*b)))
            };
            let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-9, "{n}: {x} {y}");
            near(dot(&a, &stored), pairs().map(|(a, b)| a * b).sum());
            near(
                distance(&a, &stored),
                pairs().map(|(a, b)| (a - b) * (a - b)).sum(),
            );
            let (product, square) = dot_and_square(&a, &stored);
            near(product, dot(&a, &stored));
            near(square, pairs().map(|(_, b)| b * b).sum());
            // The same to the last bit, whatever the processor has.
            assert_eq!(dot(&a, &stored), dot_plain(&a, &stored));
            assert_eq!(distance(&a, &stored), distance_plain(&a, &stored));
        }
    }

    #[test]
    fn products_of_bytes_do_not_overflow() {
        let (low, high) = (vec![0x81u8; 8192], vec![0x7fu8; 8192]);
        assert_eq!(bytes(&low, &high), -127 * 127 * 8192);
        assert_eq!(bytes(&low, &low), 127 * 127 * 8192);
        assert_eq!(bytes(&[1, 0xff, 3], &[2, 5, 0xfe]), 2 - 5 - 6);
        let pieces = Pieces {
            all: &[9, 1, 2, 9, 3, 4],
            step: 3,
            before: 1,
        };
        let mut found = Vec::new();
        rows(&[1, 10], pieces, &[1, 0, 7], &mut found);
        assert_eq!(found, [43, 21, 0]);
    }
}
