//! Vectors in few bytes, which a graph compares instead of the vectors themselves.
//!
//! ```text
//! none, scalar   a byte for each dimension: the number is the byte times the code's scale
//! binary         a bit for each dimension: the number is the scale, or less than nothing by as much
//! ```
//! The greatest number of a vector is 127 steps of its scale, so no two vectors depend on each other, and none on what
//! came before it. A vector that is compared by its angle has the length 1 before.

use crate::vector_definition::{Quantization, Similarity, VectorField};

/// The codes of the first slots.
pub(crate) struct Codes {
    binary: bool,
    similarity: Similarity,
    dimensions: usize,
    bytes: Vec<u8>,
    /// Of each slot.
    values: Vec<Value>,
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

/// The bytes that a slot takes in memory.
fn width(binary: bool, dimensions: usize) -> usize {
    match binary {
        true => dimensions.div_ceil(8),
        false => dimensions,
    }
}

/// By how much a buffer that is full grows.
pub(crate) fn grow<T>(buffer: &mut Vec<T>, more: usize) {
    if buffer.capacity() - buffer.len() < more {
        buffer.reserve_exact((buffer.len() / 8).max(more * 1024));
    }
}

impl Codes {
    pub fn new(field: &VectorField) -> Codes {
        Codes {
            binary: field.quantization == Quantization::Binary,
            similarity: field.similarity,
            dimensions: field.dimensions,
            bytes: Vec::new(),
            values: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The bytes that a slot of a field takes.
    pub fn slot_bytes(field: &VectorField) -> usize {
        width(field.quantization == Quantization::Binary, field.dimensions) + size_of::<Value>()
    }

    pub fn push(&mut self, vector: &[f32]) {
        let (code, value) = self.code(vector);
        grow(&mut self.bytes, code.len());
        grow(&mut self.values, 1);
        self.bytes.extend_from_slice(&code);
        self.values.push(value);
    }

    fn code(&self, vector: &[f32]) -> (Vec<u8>, Value) {
        let unit = unit(self.similarity, vector);
        if self.binary {
            return bits(vector, unit);
        }
        let greatest = vector.iter().fold(0f32, |m, n| m.max(n.abs())) * unit;
        let scale = (greatest / 127.0).max(f32::MIN_POSITIVE);
        let step = |n: &f32| (n * unit / scale).round().clamp(-127.0, 127.0) as i8 as u8;
        let code: Vec<u8> = vector.iter().map(step).collect();
        let square = product(&code, &code) as f32 * scale * scale;
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
        let unit = unit(self.similarity, vector);
        let mut table = Vec::with_capacity(vector.len().div_ceil(8) * 256);
        let mut square = 0f32;
        for eight in vector.chunks(8) {
            let first = table.len();
            let all: f32 = eight.iter().map(|n| n * unit).sum();
            square += eight.iter().map(|n| n * n * unit * unit).sum::<f32>();
            table.push(-all);
            for byte in 1..256usize {
                // Without its lowest bit it is known already.
                let low = byte.trailing_zeros() as usize;
                let known = table
                    .get(first + (byte & (byte - 1)))
                    .copied()
                    .unwrap_or(0.0);
                let number = eight.get(low).map_or(0.0, |n| n * unit);
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

    fn at(&self, slot: u32) -> (&[u8], Value) {
        let (at, width) = (slot as usize, width(self.binary, self.dimensions));
        let code = self.bytes.get(at * width..(at + 1) * width);
        (
            code.unwrap_or(&[]),
            self.values.get(at).copied().unwrap_or_default(),
        )
    }

    /// How far a slot is from a probe: less is nearer.
    pub fn distance(&self, probe: &Probe, slot: u32) -> f32 {
        let (code, value) = self.at(slot);
        let product = match self.binary {
            false => product(&probe.code, code) as f32,
            true => {
                let parts = code.iter().zip(probe.table.chunks_exact(256));
                parts
                    .map(|(byte, t)| t.get(usize::from(*byte)).copied().unwrap_or(0.0))
                    .sum()
            }
        };
        let product = product * probe.value.scale * value.scale;
        match probe.by_product {
            true => -product,
            false => probe.value.square + value.square - 2.0 * product,
        }
    }

    /// The square of the distance of two slots.
    pub fn between(&self, a: u32, b: u32) -> f32 {
        let ((code_a, value_a), (code_b, value_b)) = (self.at(a), self.at(b));
        let product = match self.binary {
            false => product(code_a, code_b) as f32,
            true => {
                let differ: u32 = code_a
                    .iter()
                    .zip(code_b)
                    .map(|(a, b)| (a ^ b).count_ones())
                    .sum();
                self.dimensions as f32 - 2.0 * differ as f32
            }
        };
        let product = product * value_a.scale * value_b.scale;
        value_a.square + value_b.square - 2.0 * product
    }
}

/// What a vector's numbers are multiplied with first.
fn unit(similarity: Similarity, vector: &[f32]) -> f32 {
    let square: f32 = vector.iter().map(|n| n * n).sum();
    match similarity {
        Similarity::Cosine if square > 0.0 => 1.0 / square.sqrt(),
        _ => 1.0,
    }
}

fn bits(vector: &[f32], unit: f32) -> (Vec<u8>, Value) {
    let byte = |eight: &[f32]| {
        let bits = eight.iter().enumerate();
        bits.fold(0u8, |byte, (i, n)| byte | u8::from(*n > 0.0) << i)
    };
    let n = vector.len().max(1) as f32;
    let scale = vector.iter().map(|n| n.abs() * unit).sum::<f32>() / n;
    let value = Value {
        scale,
        square: scale * scale * n,
    };
    (vector.chunks(8).map(byte).collect(), value)
}

fn product(a: &[u8], b: &[u8]) -> i32 {
    let pairs = a.iter().zip(b);
    pairs
        .map(|(a, b)| i32::from(*a as i8) * i32::from(*b as i8))
        .sum()
}
