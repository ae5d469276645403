//! `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`.
//!
//! A bit position counts from the least significant bit. Numbers are 64-bit two's complement, so
//! that any position past 63 reads the sign; binary data is little-endian, and any position past
//! its end reads zero.

use bson::{Val, Value, Writer, tag};
use errors::{Result, err};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitTest {
    AllSet,
    AllClear,
    AnySet,
    AnyClear,
}

impl BitTest {
    pub fn name(self) -> &'static str {
        match self {
            BitTest::AllSet => "$bitsAllSet",
            BitTest::AllClear => "$bitsAllClear",
            BitTest::AnySet => "$bitsAnySet",
            BitTest::AnyClear => "$bitsAnyClear",
        }
    }
}

/// The positions asked for: non-zero bytes of the mask, by byte number, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BitMask {
    bytes: Vec<(u32, u8)>,
    /// The same for a 64-bit number: positions past 63 count as 63.
    number: u64,
}

impl BitMask {
    /// Parses a number, binary data or a list of positions.
    pub fn parse(v: Val<'_>, op: BitTest, field: &str) -> Result<BitMask> {
        let name = op.name();
        if let Some(list) = v.as_array() {
            let mut positions = Vec::new();
            for (i, p) in list.values().enumerate() {
                if !p.is_number() {
                    return Err(err!(
                        BadValue,
                        "Failed to parse bit position. Expected a number in: {i}: {p}"
                    )
                    .into());
                }
                let n = p.to_i64_exact().ok_or_else(|| {
                    err!(
                        BadValue,
                        "Failed to parse bit position. Expected an integer: {i}: {p}"
                    )
                })?;
                let n = i32::try_from(n).map_err(|_| {
                    err!(
                        BadValue,
                        "Failed to parse bit position. Cannot represent as a 32-bit integer: {i}: {p}"
                    )
                })?;
                positions.push(u32::try_from(n).map_err(|_| {
                    err!(
                        BadValue,
                        "Failed to parse bit position. Expected a non-negative number in: {i}: {p}"
                    )
                })?);
            }
            positions.sort_unstable();
            let mut mask = BitMask::default();
            for p in positions {
                mask.add(p / 8, 1 << (p % 8));
            }
            return Ok(mask);
        }
        if let Some((_, content)) = v.as_binary() {
            let mut mask = BitMask::default();
            for (i, b) in content.iter().enumerate() {
                mask.add(i as u32, *b);
            }
            return Ok(mask);
        }
        if v.is_number() {
            let n = v
                .to_i64_exact()
                .ok_or_else(|| err!(FailedToParse, "Expected an integer: {name}: {v}"))?;
            if n < 0 {
                return Err(err!(
                    FailedToParse,
                    "Expected a non-negative number in: {name}: {v}"
                )
                .into());
            }
            let mut mask = BitMask::default();
            for (i, b) in n.to_le_bytes().into_iter().enumerate() {
                mask.add(i as u32, b);
            }
            return Ok(mask);
        }
        Err(err!(
            BadValue,
            "{field} takes an Array, a number, or a BinData but received: {name}: {v}"
        )
        .into())
    }

    /// Bytes come in ascending order.
    fn add(&mut self, byte: u32, bits: u8) {
        if bits == 0 {
            return;
        }
        match self.bytes.last_mut() {
            Some((b, m)) if *b == byte => *m |= bits,
            _ => self.bytes.push((byte, bits)),
        }
        self.number |= match byte {
            0..8 => u64::from(bits) << (8 * byte),
            _ => 1 << 63,
        };
    }

    #[inline]
    pub fn test(&self, op: BitTest, v: Val<'_>) -> bool {
        match v.tag {
            tag::BINARY => {
                let content = v.as_binary().map_or(&[][..], |b| b.1);
                let mut it = self
                    .bytes
                    .iter()
                    .map(|&(i, m)| (content.get(i as usize).copied().unwrap_or(0), m));
                match op {
                    BitTest::AllSet => it.all(|(b, m)| b & m == m),
                    BitTest::AllClear => it.all(|(b, m)| b & m == 0),
                    BitTest::AnySet => it.any(|(b, m)| b & m != 0),
                    BitTest::AnyClear => it.any(|(b, m)| b & m != m),
                }
            }
            _ => {
                let Some(n) = v.to_i64_exact() else {
                    return false;
                };
                let (n, m) = (n as u64, self.number);
                match op {
                    BitTest::AllSet => n & m == m,
                    BitTest::AllClear => n & m == 0,
                    BitTest::AnySet => n & m != 0,
                    BitTest::AnyClear => n & m != m,
                }
            }
        }
    }

    /// The list of positions.
    pub fn to_value(&self) -> Value {
        let mut w = Writer::new_array();
        for &(byte, bits) in &self.bytes {
            for i in 0..8 {
                if bits & (1 << i) != 0 {
                    w.push_value(i64::from(byte) as i32 * 8 + i);
                }
            }
        }
        w.finish_array()
    }
}
