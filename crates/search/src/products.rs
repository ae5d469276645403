//! Sums of products of numbers, in the widest instructions that the processor has.
//!
//! Invariant: all processors give the same sums. Floating-point numbers are added in eight lanes everywhere, and the
//! lanes in their order.

/// How many numbers are added side by side.
const LANES: usize = 8;

/// The bytes that a processor reads of memory at once.
const LINE_BYTES: usize = 64;

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

/// Has the processor read a piece of memory, which will be needed soon, beside what it does now.
#[inline(always)]
pub(crate) fn ask_for<T: Copy>(piece: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = piece.as_ptr().cast::<i8>();
        for at in (0..size_of_val(piece)).step_by(LINE_BYTES) {
            // SAFETY: it is a hint, and the place is one of the piece.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.add(at)) };
        }
    }
    // It is read at once there.
    #[cfg(not(target_arch = "x86_64"))]
    for first in piece.iter().step_by(LINE_BYTES / size_of::<T>()) {
        std::hint::black_box(*first);
    }
}

/// A function that is called as it is written for AVX2 where the processor has that.
macro_rules! widest {
    ($(#[$about:meta])* $name:ident, $plain:ident, ($($arg:ident: $of:ty),*) -> $gives:ty) => {
        $(#[$about])*
        pub(crate) fn $name($($arg: $of),*) -> $gives {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("popcnt")
            {
                // SAFETY: the processor has the instructions that it is compiled for.
                return unsafe { avx2::$name($($arg),*) };
            }
            $plain($($arg),*)
        }
    };
}

widest! {
    /// The product of two vectors of signed bytes, none of which is -128.
    bytes, bytes_plain, (a: &[u8], b: &[u8]) -> i32
}

widest! {
    /// The products of such a vector and of those of pieces, by the pieces' numbers.
    rows, rows_plain, (a: &[u8], pieces: Pieces<'_>, numbers: &[u32], out: &mut Vec<i32>) -> ()
}

widest! {
    /// How many bits are not the same.
    differing_bits, differing_bits_plain, (a: &[u8], b: &[u8]) -> u32
}

widest! {
    /// The product of a vector and one in its stored form, f32 LE.
    dot, dot_plain, (a: &[f32], stored: &[u8]) -> f64
}

widest! {
    /// The same, and the product of the stored one with itself.
    dot_and_square, dot_and_square_plain, (a: &[f32], stored: &[u8]) -> (f64, f64)
}

widest! {
    /// The square of their distance.
    distance, distance_plain, (a: &[f32], stored: &[u8]) -> f64
}

/// Written out, because the compiler may compile the inner parts of iterators apart, for any processor.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{LANES, Pieces, rest_of};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn bytes(a: &[u8], b: &[u8]) -> i32 {
        let ones = _mm256_set1_epi16(1);
        let mut sums = _mm256_setzero_si256();
        let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
        for (a, b) in a.iter().zip(b) {
            // SAFETY: each has 32 bytes.
            let (a, b) = unsafe {
                (
                    _mm256_loadu_si256(a.as_ptr().cast()),
                    _mm256_loadu_si256(b.as_ptr().cast()),
                )
            };
            // Two products of 127 and 127 fit into 16 bits.
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
        }
        let mut lanes = [0i32; 8];
        // SAFETY: it has 32 bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
        let mut sum: i32 = lanes.iter().sum();
        for (a, b) in rest_a.iter().zip(rest_b) {
            sum += i32::from(*a as i8) * i32::from(*b as i8);
        }
        sum
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn rows(a: &[u8], pieces: Pieces<'_>, numbers: &[u32], out: &mut Vec<i32>) {
        out.clear();
        for number in numbers {
            let vector = pieces.piece(*number).get(pieces.before..).unwrap_or(&[]);
            out.push(bytes(a, vector));
        }
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn differing_bits(a: &[u8], b: &[u8]) -> u32 {
        let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
        let mut sum = 0;
        for (a, b) in a.iter().zip(b) {
            sum += (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).count_ones();
        }
        for (a, b) in rest_a.iter().zip(rest_b) {
            sum += (a ^ b).count_ones();
        }
        sum
    }

    /// Eight numbers of a vector and of a stored one, as two times four.
    #[target_feature(enable = "avx2,popcnt")]
    fn loaded(a: &[f32; LANES], stored: &[[u8; 4]; LANES]) -> [(__m256d, __m256d); 2] {
        // SAFETY: each has 32 bytes, and the processor's order of bytes is that of the file.
        let (a, b) = unsafe {
            (
                _mm256_loadu_ps(a.as_ptr()),
                _mm256_loadu_ps(stored.as_ptr().cast()),
            )
        };
        let low = |of| _mm256_cvtps_pd(_mm256_castps256_ps128(of));
        let high = |of| _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(of));
        [(low(a), low(b)), (high(a), high(b))]
    }

    #[target_feature(enable = "avx2,popcnt")]
    fn lanes(of: [__m256d; 2]) -> [f64; LANES] {
        let mut out = [0f64; LANES];
        let (low, high) = out.split_at_mut(4);
        // SAFETY: each half has room for four numbers.
        unsafe {
            _mm256_storeu_pd(low.as_mut_ptr(), of[0]);
            _mm256_storeu_pd(high.as_mut_ptr(), of[1]);
        }
        out
    }

    /// A function that adds up terms of each pair of numbers: four pairs at a time, and those that fill no lanes one by one.
    macro_rules! sums_of_pairs {
        ($name:ident, $gives:ty, ($a:ident, $b:ident),
         [$(($sum:ident, $four:expr, $one:expr)),+]) => {
            #[target_feature(enable = "avx2,popcnt")]
            pub(super) fn $name(a: &[f32], stored: &[u8]) -> $gives {
                $(let mut $sum = [_mm256_setzero_pd(); 2];)+
                let (stored, _) = stored.as_chunks::<4>();
                let (wide_a, wide_b) = (a.as_chunks::<LANES>().0, stored.as_chunks::<LANES>().0);
                for (a, b) in wide_a.iter().zip(wide_b) {
                    let [low, high] = loaded(a, b);
                    {
                        let ($a, $b) = low;
                        $($sum[0] = _mm256_add_pd($sum[0], $four);)+
                    }
                    let ($a, $b) = high;
                    $($sum[1] = _mm256_add_pd($sum[1], $four);)+
                }
                $(let mut $sum = lanes($sum);)+
                for (lane, ($a, $b)) in rest_of(a, stored).enumerate() {
                    $(if let Some(sum) = $sum.get_mut(lane) {
                        *sum += $one;
                    })+
                }
                ($($sum.iter().sum()),+)
            }
        };
    }

    sums_of_pairs!(dot, f64, (a, b), [(dots, _mm256_mul_pd(a, b), a * b)]);
    sums_of_pairs!(
        dot_and_square,
        (f64, f64),
        (a, b),
        [
            (dots, _mm256_mul_pd(a, b), a * b),
            (squares, _mm256_mul_pd(b, b), b * b)
        ]
    );
    sums_of_pairs!(
        distance,
        f64,
        (a, b),
        [(
            sums,
            {
                let d = _mm256_sub_pd(a, b);
                _mm256_mul_pd(d, d)
            },
            (a - b) * (a - b)
        )]
    );
}

/// The last numbers of both, which fill no eight lanes.
#[cfg(target_arch = "x86_64")]
fn rest_of<'r>(a: &'r [f32], stored: &'r [[u8; 4]]) -> impl Iterator<Item = (f64, f64)> + 'r {
    let (rest_a, rest_b) = (a.as_chunks::<LANES>().1, stored.as_chunks::<LANES>().1);
    let number = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
    let pairs = rest_a.iter().zip(rest_b);
    pairs.map(move |(a, b)| (f64::from(*a), number(b)))
}

fn bytes_plain(a: &[u8], b: &[u8]) -> i32 {
    let pairs = a.iter().zip(b);
    pairs
        .map(|(a, b)| i32::from(*a as i8) * i32::from(*b as i8))
        .sum()
}

fn differing_bits_plain(a: &[u8], b: &[u8]) -> u32 {
    let bytes = a.iter().zip(b);
    bytes.map(|(a, b)| (a ^ b).count_ones()).sum()
}

fn rows_plain(a: &[u8], pieces: Pieces<'_>, numbers: &[u32], out: &mut Vec<i32>) {
    out.clear();
    out.extend(numbers.iter().map(|number| {
        let vector = pieces.piece(*number).get(pieces.before..).unwrap_or(&[]);
        bytes_plain(a, vector)
    }));
}

fn dot_plain(a: &[f32], stored: &[u8]) -> f64 {
    let [dot] = sums_of_pairs(a, stored, |a, b| [a * b]);
    dot
}

fn dot_and_square_plain(a: &[f32], stored: &[u8]) -> (f64, f64) {
    let [dot, square] = sums_of_pairs(a, stored, |a, b| [a * b, b * b]);
    (dot, square)
}

fn distance_plain(a: &[f32], stored: &[u8]) -> f64 {
    let [square] = sums_of_pairs(a, stored, |a, b| [(a - b) * (a - b)]);
    square
}

/// The sums of the terms of each pair of numbers.
#[inline(always)]
fn sums_of_pairs<const N: usize>(
    a: &[f32],
    stored: &[u8],
    terms: impl Fn(f64, f64) -> [f64; N],
) -> [f64; N] {
    let mut sums = [[0f64; LANES]; N];
    let (stored, _) = stored.as_chunks::<4>();
    for (a, b) in a.chunks(LANES).zip(stored.chunks(LANES)) {
        for (lane, (a, b)) in a.iter().zip(b).enumerate() {
            let terms = terms(f64::from(*a), f64::from(f32::from_le_bytes(*b)));
            for (sum, term) in sums.iter_mut().zip(terms) {
                if let Some(sum) = sum.get_mut(lane) {
                    *sum += term;
                }
            }
        }
    }
    sums.map(|lanes| lanes.iter().sum())
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
            assert_eq!(
                dot_and_square(&a, &stored),
                dot_and_square_plain(&a, &stored)
            );
            let (low, high) = stored.split_at(stored.len() / 2);
            assert_eq!(differing_bits(low, high), differing_bits_plain(low, high));
            let small = |of: &[u8]| of.iter().map(|n| n % 127).collect::<Vec<u8>>();
            let (low, high) = (small(low), small(high));
            assert_eq!(bytes(&low, &high), bytes_plain(&low, &high));
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
