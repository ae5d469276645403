//! Vectors in few bytes, which a graph compares instead of the vectors themselves.
//!
//! ```text
//! none, scalar   a byte for each dimension: the number is the byte times the code's scale
//! binary         a bit for each dimension of the turned vector: the number is the scale, or less than nothing by as much
//! ```
//! A slot's row is its scale, the square of its length, and its code, side by side: to compare it is one place of memory.
//!
//! Before it becomes bits a vector is turned, as all others are, so that no dimension tells much more of it than another.
//! The scale is such that the product of a vector and its own code is the square of its length.
//!
//! Source: Gao and Long, "RaBitQ".
//!
//! The greatest number of a vector is 127 steps of its scale, so no two vectors depend on each other, and none on what
//! came before it. A vector that is compared by its angle has the length 1 before.

use crate::products::{self, Pieces};
use crate::vector_definition::{Quantization, Similarity, VectorField};

/// The bytes of a row before its code.
const VALUE_BYTES: usize = 8;

/// The codes of the first slots.
pub(crate) struct Codes {
    binary: bool,
    similarity: Similarity,
    /// What the product of two vectors of length 1 is about, by how many bits of their codes differ.
    by_bits: Vec<f32>,
    /// Row by row.
    rows: Vec<u8>,
    /// The bytes of a row.
    row: usize,
}

/// What a code is worth.
#[derive(Clone, Copy, Default)]
struct Value {
    scale: f32,
    /// The square of the vector's length, by its code.
    square: f32,
}

/// A vector that others are compared with.
pub(crate) struct Probe {
    value: Value,
    /// Bytes of a scalar code.
    code: Vec<u8>,
    /// What each byte of a binary code adds to the product: 256 numbers for each.
    table: Vec<f32>,
    /// Whether the greater product is the nearer, and not the smaller distance.
    by_product: bool,
}

impl Probe {
    /// From the product of the codes.
    fn distance(&self, product: f32, other: Value) -> f32 {
        let product = product * self.value.scale * other.scale;
        match self.by_product {
            true => -product,
            false => self.value.square + other.square - 2.0 * product,
        }
    }
}

/// Room for distances of several slots.
#[derive(Default)]
pub(crate) struct Distances {
    pub found: Vec<f32>,
    products: Vec<i32>,
}

/// The bytes of a slot's row.
fn row(binary: bool, dimensions: usize) -> usize {
    let code = match binary {
        true => dimensions.div_ceil(8),
        false => dimensions,
    };
    VALUE_BYTES + code
}

/// By how much a buffer that is full grows.
pub(crate) fn grow<T>(buffer: &mut Vec<T>, more: usize) {
    if buffer.capacity() - buffer.len() < more {
        buffer.reserve_exact((buffer.len() / 8).max(more * 1024));
    }
}

impl Codes {
    pub fn new(field: &VectorField) -> Codes {
        let binary = field.quantization == Quantization::Binary;
        let bits = field.dimensions as f32;
        let cosine = |differ: usize| (std::f32::consts::PI * differ as f32 / bits).cos();
        Codes {
            binary,
            similarity: field.similarity,
            by_bits: match binary {
                true => (0..=field.dimensions).map(cosine).collect(),
                false => Vec::new(),
            },
            rows: Vec::new(),
            row: Codes::slot_bytes(field),
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len() / self.row
    }

    /// The bytes that a slot of a field takes.
    pub fn slot_bytes(field: &VectorField) -> usize {
        row(field.quantization == Quantization::Binary, field.dimensions)
    }

    pub fn push(&mut self, vector: &[f32]) {
        let (code, value) = self.code(vector);
        assert_eq!(
            VALUE_BYTES + code.len(),
            self.row,
            "a code has its field's length"
        );
        grow(&mut self.rows, self.row);
        self.rows.extend_from_slice(&value.scale.to_le_bytes());
        self.rows.extend_from_slice(&value.square.to_le_bytes());
        self.rows.extend_from_slice(&code);
    }

    /// Forgets those behind the first `slots`.
    pub fn truncate(&mut self, slots: usize) {
        self.rows.truncate(slots * self.row);
    }

    fn code(&self, vector: &[f32]) -> (Vec<u8>, Value) {
        let unit = unit(self.similarity, vector);
        if self.binary {
            return bits(&turned(vector, unit));
        }
        let greatest = vector.iter().fold(0f32, |m, n| m.max(n.abs())) * unit;
        let scale = (greatest / 127.0).max(f32::MIN_POSITIVE);
        let step = |n: &f32| (n * unit / scale).round().clamp(-127.0, 127.0) as i8 as u8;
        let code: Vec<u8> = vector.iter().map(step).collect();
        let square = products::bytes(&code, &code) as f32 * scale * scale;
        (code, Value { scale, square })
    }

    /// `stored`: it is to become one of the others, and not what a user looks for.
    pub fn probe(&self, vector: &[f32], stored: bool) -> Probe {
        let by_product = !stored && self.similarity == Similarity::DotProduct;
        if !self.binary {
            let (code, value) = self.code(vector);
            let table = Vec::new();
            return Probe {
                value,
                code,
                table,
                by_product,
            };
        }
        let vector = turned(vector, unit(self.similarity, vector));
        let mut table = Vec::with_capacity(vector.len().div_ceil(8) * 256);
        let square = vector.iter().map(|n| n * n).sum();
        for eight in vector.chunks(8) {
            let first = table.len();
            let all: f32 = eight.iter().sum();
            table.push(-all);
            for byte in 1..256usize {
                // Without its lowest bit it is known already.
                let low = byte.trailing_zeros() as usize;
                let known = table
                    .get(first + (byte & (byte - 1)))
                    .copied()
                    .unwrap_or(0.0);
                let number = eight.get(low).copied().unwrap_or(0.0);
                table.push(known + 2.0 * number);
            }
        }
        let value = Value { scale: 1.0, square };
        Probe {
            value,
            code: Vec::new(),
            table,
            by_product,
        }
    }

    fn pieces(&self) -> Pieces<'_> {
        Pieces {
            all: &self.rows,
            step: self.row,
            before: VALUE_BYTES,
        }
    }

    fn at(&self, slot: u32) -> (&[u8], Value) {
        let row = self.pieces().piece(slot);
        let Some((scale, (square, code))) = row
            .split_first_chunk::<4>()
            .and_then(|(scale, rest)| Some((scale, rest.split_first_chunk::<4>()?)))
        else {
            return (&[], Value::default());
        };
        let value = Value {
            scale: f32::from_le_bytes(*scale),
            square: f32::from_le_bytes(*square),
        };
        (code, value)
    }

    /// How far slots are from a probe, in their order. Their rows lie far apart: memory is asked for all of them before
    /// the first is compared, so that they come side by side.
    pub fn distances(&self, probe: &Probe, slots: &[u32], out: &mut Distances) {
        for slot in slots {
            products::ask_for(self.pieces().piece(*slot));
        }
        out.found.clear();
        if self.binary {
            let each = slots.iter().map(|slot| self.distance(probe, *slot));
            return out.found.extend(each);
        }
        products::rows(&probe.code, self.pieces(), slots, &mut out.products);
        let each = slots.iter().zip(&out.products);
        out.found
            .extend(each.map(|(slot, product)| probe.distance(*product as f32, self.at(*slot).1)));
    }

    /// How far a slot is from a probe: less is nearer.
    pub fn distance(&self, probe: &Probe, slot: u32) -> f32 {
        let (code, value) = self.at(slot);
        let product = match self.binary {
            false => products::bytes(&probe.code, code) as f32,
            true => looked_up(&probe.table, code),
        };
        probe.distance(product, value)
    }

    /// The square of the distance of two slots.
    pub fn between(&self, a: u32, b: u32) -> f32 {
        let ((code_a, value_a), (code_b, value_b)) = (self.at(a), self.at(b));
        let product = match self.binary {
            false => products::bytes(code_a, code_b) as f32 * value_a.scale * value_b.scale,
            true => {
                let differ = products::differing_bits(code_a, code_b) as usize;
                let of_unit = self.by_bits.get(differ).copied().unwrap_or(-1.0);
                of_unit * (value_a.square * value_b.square).sqrt()
            }
        };
        value_a.square + value_b.square - 2.0 * product
    }
}

/// The product of a probe and a binary code. Four sums, because one would wait for each addition before the next.
fn looked_up(table: &[f32], code: &[u8]) -> f32 {
    let (tables, _) = table.as_chunks::<256>();
    let number =
        |table: &[f32; 256], byte: &u8| table.get(usize::from(*byte)).copied().unwrap_or(0.0);
    let (four_tables, rest_tables) = tables.as_chunks::<4>();
    let (four_bytes, rest_bytes) = code.as_chunks::<4>();
    let mut sums = [0f32; 4];
    for (tables, bytes) in four_tables.iter().zip(four_bytes) {
        for ((sum, table), byte) in sums.iter_mut().zip(tables).zip(bytes) {
            *sum += number(table, byte);
        }
    }
    let rest = rest_tables.iter().zip(rest_bytes);
    sums.iter().sum::<f32>() + rest.map(|(table, byte)| number(table, byte)).sum::<f32>()
}

/// What a vector's numbers are multiplied with first.
fn unit(similarity: Similarity, vector: &[f32]) -> f32 {
    let square: f32 = vector.iter().map(|n| n * n).sum();
    match similarity {
        Similarity::Cosine if square > 0.0 => 1.0 / square.sqrt(),
        _ => 1.0,
    }
}

/// The bits of a turned vector.
fn bits(vector: &[f32]) -> (Vec<u8>, Value) {
    let byte = |eight: &[f32]| {
        let bits = eight.iter().enumerate();
        bits.fold(0u8, |byte, (i, n)| byte | u8::from(*n > 0.0) << i)
    };
    let square: f32 = vector.iter().map(|n| n * n).sum();
    let sum: f32 = vector.iter().map(|n| n.abs()).sum();
    let scale = square / sum.max(f32::MIN_POSITIVE);
    let value = Value { scale, square };
    (vector.chunks(8).map(byte).collect(), value)
}

/// A vector, `unit` times as long, in another system of dimensions: each of these has a part of each of the vector's.
/// Lengths and distances stay.
fn turned(vector: &[f32], unit: f32) -> Vec<f32> {
    let mut out: Vec<f32> = vector.iter().map(|n| n * unit).collect();
    let count = out.len();
    // The greatest power of two is turned at once: the first dimensions, then the last ones.
    let part = match count {
        0 => return out,
        _ => 1usize << count.ilog2(),
    };
    for turn in 0..2 {
        for from in [0, count - part] {
            if let Some(some) = out.get_mut(from..from + part) {
                turn_part(some, turn * 2 + u64::from(from > 0));
            }
        }
    }
    out
}

/// Some signs are changed, always the same ones, and then each number becomes the sum of all with signs of their own
/// (the transform of Hadamard and Walsh).
fn turn_part(some: &mut [f32], turn: u64) {
    let length = some.len();
    let by = 1.0 / (length as f32).sqrt();
    for (n, number) in (1u64..).zip(some.iter_mut()) {
        let mixed = (n + (turn << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        *number *= if mixed >> 63 == 1 { -by } else { by };
    }
    let mut half = 1;
    while half < length {
        for pair in some.chunks_exact_mut(half * 2) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turned_vector_is_as_long_and_has_no_great_numbers() {
        for count in [1usize, 2, 3, 64, 100, 256, 1536] {
            let one = |at: usize| {
                let mut vector = vec![0f32; count];
                vector[at] = 2.0;
                turned(&vector, 1.0)
            };
            let (first, last) = (one(0), one(count - 1));
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            assert!((dot(&first, &first) - 4.0).abs() < 1e-3, "{count}");
            let between = if count == 1 { 4.0 } else { 0.0 };
            assert!((dot(&first, &last) - between).abs() < 1e-3, "{count}");
            if count >= 64 {
                assert!(first.iter().all(|n| n.abs() < 1.0), "{count}");
            }
            let (_, value) = bits(&first);
            assert!((value.square - 4.0).abs() < 1e-3, "{count}");
        }
    }
}
