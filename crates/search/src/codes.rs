//! Vectors in few bytes, which a graph compares instead of the vectors themselves.
//!
//! ```text
//! none, scalar   a byte for each dimension: the number is the byte times the code's scale
//! binary         a bit for each dimension: the number is the scale, or less than nothing by as much
//! ```
//! A slot's row is its scale, the square of its length, and its code, side by side: to compare it is one place of memory.
//!
//! The greatest number of a vector is 127 steps of its scale, so no two vectors depend on each other, and none on what
//! came before it. A vector that is compared by its angle has the length 1 before.

use crate::products::{self, Pieces};
use crate::vector_definition::{Quantization, Similarity, VectorField};

/// The bytes of a row before its code.
const VALUE_BYTES: usize = 8;

/// The bytes that a processor reads of memory at once.
const LINE_BYTES: usize = 64;

/// The codes of the first slots.
pub(crate) struct Codes {
    binary: bool,
    similarity: Similarity,
    dimensions: usize,
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
        Codes {
            binary: field.quantization == Quantization::Binary,
            similarity: field.similarity,
            dimensions: field.dimensions,
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

    fn code(&self, vector: &[f32]) -> (Vec<u8>, Value) {
        let unit = unit(self.similarity, vector);
        if self.binary {
            return bits(vector, unit);
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
        let mut touched = 0u8;
        for slot in slots {
            let row = self.pieces().piece(*slot).iter();
            touched = row
                .step_by(LINE_BYTES)
                .fold(touched, |sum, byte| sum ^ byte);
        }
        std::hint::black_box(touched);
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
            false => products::bytes(code_a, code_b) as f32,
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
