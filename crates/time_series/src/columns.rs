//! Columns: the values of one field in the measurements of a bucket, as bytes.
//!
//! ```text
//! column = (type byte | run varint | values)*          a run of values of one type
//! values, by type:
//!   date                 first zigzag, then differences of differences
//!   int32, int64         first zigzag, then differences
//!   double               scale u8: 0..=9 decimal places, as integers like int64; 0xFF: bits, each
//!                        exclusive-or with the one before, (significant bytes u8 | bytes)
//!   objectId             whole, then 2 × zigzag(seconds) + (random part differs) | random part? |
//!                        zigzag(counter), as differences
//!   any other            0 as the one before, or length + 1 | bytes
//! ```
//!
//! Numbers are LEB128, differences wrap. Invariant: reading ends with `None` on any bytes that were
//! not written here, and holds no more values than it was told that there are.

use bson::{Val, tag};

/// A value's type and place in the arena of its column.
#[derive(Clone, Copy, Debug)]
pub struct ValuePlace {
    pub tag: u8,
    pub start: u32,
    pub end: u32,
}

pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Bytes that are read from the front.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn varint(&mut self) -> Option<u64> {
        let (mut n, mut shift) = (0u64, 0);
        loop {
            let b = self.byte()?;
            if shift > 63 {
                return None;
            }
            n |= u64::from(b & 0x7F) << shift;
            if b & 0x80 == 0 {
                return Some(n);
            }
            shift += 7;
        }
    }

    pub fn len(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }
}

pub fn encode(values: &[Val<'_>], out: &mut Vec<u8>) {
    let mut rest = values;
    while let Some(first) = rest.first() {
        let n = rest.iter().take_while(|v| v.tag == first.tag).count();
        let (run, more) = rest.split_at(n);
        rest = more;
        out.push(first.tag);
        put_varint(out, n as u64);
        encode_run(first.tag, run, out);
    }
}

fn encode_run(t: u8, run: &[Val<'_>], out: &mut Vec<u8>) {
    match t {
        tag::DATE => integers(run.iter().map(|v| v.as_date().unwrap_or(0)), true, out),
        tag::INT64 => integers(run.iter().map(|v| v.as_i64().unwrap_or(0)), false, out),
        tag::INT32 => {
            let values = run.iter().map(|v| i64::from(v.as_i32().unwrap_or(0)));
            integers(values, false, out);
        }
        tag::DOUBLE => doubles(run, out),
        tag::OBJECT_ID => object_ids(run, out),
        _ => {
            let mut before: Option<&[u8]> = None;
            for v in run {
                if before == Some(v.bytes) {
                    out.push(0);
                } else {
                    put_varint(out, v.bytes.len() as u64 + 1);
                    out.extend_from_slice(v.bytes);
                }
                before = Some(v.bytes);
            }
        }
    }
}

fn integers(values: impl Iterator<Item = i64>, twice: bool, out: &mut Vec<u8>) {
    let (mut last, mut step) = (0i64, 0i64);
    for v in values {
        let difference = v.wrapping_sub(last);
        put_varint(out, zigzag(difference.wrapping_sub(step)));
        last = v;
        if twice {
            step = difference;
        }
    }
}

const BITS: u8 = 0xFF;
const PLACES: u8 = 9;

const POWERS: [f64; PLACES as usize + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// The integer that stands for a double with so many decimal places, if it gives back the same bits.
fn scaled(v: f64, places: u8) -> Option<i64> {
    let power = *POWERS.get(usize::from(places))?;
    let n = (v * power).round();
    if n.is_nan() || n.abs() >= 9e15 {
        return None;
    }
    let back = n as i64 as f64 / power;
    (back.to_bits() == v.to_bits()).then_some(n as i64)
}

fn doubles(run: &[Val<'_>], out: &mut Vec<u8>) {
    let value = |v: &Val<'_>| v.as_f64().unwrap_or(0.0);
    let mut places = 0;
    let decimal = run.iter().all(|v| {
        while places <= PLACES && scaled(value(v), places).is_none() {
            places += 1;
        }
        places <= PLACES
    });
    // A value may need fewer places than one before it, and still be written with more.
    let all: Option<Vec<i64>> = decimal
        .then(|| run.iter().map(|v| scaled(value(v), places)).collect())
        .flatten();
    if let Some(all) = all {
        out.push(places);
        integers(all.into_iter(), false, out);
        return;
    }
    out.push(BITS);
    let mut last = 0u64;
    for v in run {
        let bits = value(v).to_bits();
        // The bytes that differ stand at the front, where sign and exponent are.
        let differs = (bits ^ last).to_be_bytes();
        let n = 8 - differs.iter().rev().take_while(|b| **b == 0).count();
        out.push(n as u8);
        out.extend_from_slice(&differs[..n]);
        last = bits;
    }
}

fn parts(id: &[u8]) -> Option<(i64, [u8; 5], i64)> {
    let seconds = u32::from_be_bytes(id.get(..4)?.try_into().ok()?);
    let counter = id.get(9..12)?;
    let counter = u32::from_be_bytes([0, counter[0], counter[1], counter[2]]);
    Some((
        i64::from(seconds),
        id.get(4..9)?.try_into().ok()?,
        i64::from(counter),
    ))
}

fn object_ids(run: &[Val<'_>], out: &mut Vec<u8>) {
    let mut before = (0i64, [0u8; 5], 0i64);
    for v in run {
        let Some(now) = parts(v.bytes) else { continue };
        let differs = u64::from(now.1 != before.1);
        put_varint(out, zigzag(now.0 - before.0) << 1 | differs);
        if differs == 1 {
            out.extend_from_slice(&now.1);
        }
        put_varint(out, zigzag(now.2 - before.2));
        before = now;
    }
}

/// The `n` values of a column; `arena` takes their bytes.
pub fn decode(bytes: &[u8], n: usize, arena: &mut Vec<u8>) -> Option<Vec<ValuePlace>> {
    let mut b = Bytes(bytes);
    let mut pieces = Vec::with_capacity(n.min(bytes.len().saturating_mul(64)));
    while pieces.len() < n {
        let t = b.byte()?;
        let run = b.len()?;
        if run == 0 || run > n - pieces.len() {
            return None;
        }
        decode_run(t, run, &mut b, arena, &mut pieces)?;
    }
    b.0.is_empty().then_some(pieces)
}

/// Values that are decoded: their bytes in the arena, and their places there.
struct Decoded<'a> {
    tag: u8,
    arena: &'a mut Vec<u8>,
    places: &'a mut Vec<ValuePlace>,
}

impl Decoded<'_> {
    fn push(&mut self, bytes: &[u8]) -> Option<ValuePlace> {
        let start = u32::try_from(self.arena.len()).ok()?;
        self.arena.extend_from_slice(bytes);
        let end = u32::try_from(self.arena.len()).ok()?;
        let tag = self.tag;
        self.places.push(ValuePlace { tag, start, end });
        self.places.last().copied()
    }
}

fn decode_run(
    t: u8,
    run: usize,
    b: &mut Bytes<'_>,
    arena: &mut Vec<u8>,
    places: &mut Vec<ValuePlace>,
) -> Option<()> {
    let mut out = Decoded {
        tag: t,
        arena,
        places,
    };
    match t {
        tag::DATE | tag::INT64 | tag::INT32 => {
            let (mut last, mut step) = (0i64, 0i64);
            for _ in 0..run {
                let difference = unzigzag(b.varint()?).wrapping_add(step);
                last = last.wrapping_add(difference);
                if t == tag::DATE {
                    step = difference;
                }
                match t {
                    tag::INT32 => out.push(&i32::try_from(last).ok()?.to_le_bytes())?,
                    _ => out.push(&last.to_le_bytes())?,
                };
            }
        }
        tag::DOUBLE => decode_doubles(run, b, &mut out)?,
        tag::OBJECT_ID => decode_object_ids(run, b, &mut out)?,
        _ => {
            let mut last: Option<ValuePlace> = None;
            for _ in 0..run {
                match b.len()? {
                    0 => out.places.push(last?),
                    n => last = Some(out.push(b.take(n - 1)?)?),
                }
            }
        }
    }
    Some(())
}

fn decode_doubles(run: usize, b: &mut Bytes<'_>, out: &mut Decoded<'_>) -> Option<()> {
    match b.byte()? {
        BITS => {
            let mut last = 0u64;
            for _ in 0..run {
                let n = usize::from(b.byte()?);
                let mut differs = [0; 8];
                differs.get_mut(..n)?.copy_from_slice(b.take(n)?);
                last ^= u64::from_be_bytes(differs);
                out.push(&last.to_le_bytes())?;
            }
        }
        places if places <= PLACES => {
            let (mut last, power) = (0i64, 10f64.powi(i32::from(places)));
            for _ in 0..run {
                last = last.wrapping_add(unzigzag(b.varint()?));
                out.push(&(last as f64 / power).to_le_bytes())?;
            }
        }
        _ => return None,
    }
    Some(())
}

fn decode_object_ids(run: usize, b: &mut Bytes<'_>, out: &mut Decoded<'_>) -> Option<()> {
    let mut before = (0i64, [0u8; 5], 0i64);
    for _ in 0..run {
        let first = b.varint()?;
        before.0 = before.0.wrapping_add(unzigzag(first >> 1));
        if first & 1 == 1 {
            before.1 = b.take(5)?.try_into().ok()?;
        }
        before.2 = before.2.wrapping_add(unzigzag(b.varint()?));
        let mut id = [0; 12];
        id[..4].copy_from_slice(&(before.0 as u32).to_be_bytes());
        id[4..9].copy_from_slice(&before.1);
        id[9..].copy_from_slice(&(before.2 as u32).to_be_bytes()[1..]);
        out.push(&id)?;
    }
    Some(())
}
