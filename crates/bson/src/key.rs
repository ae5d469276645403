//! Memcomparable keys: `memcmp` of two encodings is [`crate::order::compare`] of the values.
//!
//! ```text
//! value    = rank byte | payload                       rank as in tag::rank, shifted by 8 (0x09 … 0x87)
//! number   = f64 8 bytes | 00                           the double is the value
//!          | f64 8 bytes | 01 | decimal 20 bytes        the value lies between that double and the next one
//! f64      = big-endian bits, sign flipped (all bits if negative); NaN is 0; −0 is 0
//! decimal  = exponent i32 BE flipped | 34-digit coefficient u128 BE, complemented when negative
//! string   = bytes, 00 → 01 01, 01 → 01 02 | 00         (also code; symbol as string)
//! document = (rank byte | name 00 | payload)* | 00      array the same without names
//! binary   = length u32 BE | subtype | bytes
//! ```
//! A descending field is the complement of every byte. No encoding is a prefix of another's, so fields concatenate.
//!
//! Keys forget what order ignores (int or double, null or missing); [`Types`] keeps it beside the key, mostly in no bytes,
//! so that [`decode`] gives the exact value back.

use crate::decimal::DecimalParts;
use crate::{Decimal128, Doc, Val, Value, Writer, tag};

/// Type codes in encoding order, one byte for each number, string and null (decimals add their exponent, 2 bytes BE).
/// Trailing zeros are left out: a key of int32s, strings and dates needs none.
#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Types(pub Vec<u8>);

impl Types {
    /// The bytes to store.
    pub fn finish(mut self) -> Vec<u8> {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self.0
    }
}

/// Where type codes go, if anywhere: a key alone allocates nothing for them.
struct Codes<'a>(Option<&'a mut Types>);

impl Codes<'_> {
    #[inline]
    fn push(&mut self, code: u8) {
        if let Some(t) = &mut self.0 {
            t.0.push(code);
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        if let Some(t) = &mut self.0 {
            t.0.extend_from_slice(bytes);
        }
    }
}

const RANK_SHIFT: u8 = 8;
const END: u8 = 0;

/// Appends the key of `v`. `types` receives what [`decode`] needs, when given.
pub fn encode(v: Val<'_>, descending: bool, out: &mut Vec<u8>, types: Option<&mut Types>) {
    let start = out.len();
    value(v, out, &mut Codes(types));
    if descending {
        for b in &mut out[start..] {
            *b = !*b;
        }
    }
}

/// Appends the key of a field that is not there: the key of null, but [`decode`] gives `None`.
pub fn encode_missing(descending: bool, out: &mut Vec<u8>, types: Option<&mut Types>) {
    let b = tag::rank(tag::NULL) + RANK_SHIFT;
    out.push(if descending { !b } else { b });
    if let Some(t) = types {
        t.0.push(1);
    }
}

/// The key of one value, ascending.
pub fn of(v: Val<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(v.bytes.len() + 4);
    encode(v, false, &mut out, None);
    out
}

/// The least byte string that is above every key whose encoding starts with `prefix`; `None` when there is none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut s = prefix.to_vec();
    while let Some(last) = s.last_mut() {
        if *last < 0xFF {
            *last += 1;
            return Some(s);
        }
        s.pop();
    }
    None
}

/// First byte of every key of the type's rank (ascending).
pub fn rank_byte(t: u8) -> u8 {
    tag::rank(t) + RANK_SHIFT
}

fn value(v: Val<'_>, out: &mut Vec<u8>, types: &mut Codes<'_>) {
    out.push(rank_byte(v.tag));
    payload(v, out, types);
}

fn payload(v: Val<'_>, out: &mut Vec<u8>, types: &mut Codes<'_>) {
    match v.tag {
        tag::DOUBLE | tag::INT32 | tag::INT64 | tag::DECIMAL128 => number(v, out, types),
        tag::STRING | tag::SYMBOL => {
            types.push(u8::from(v.tag == tag::SYMBOL));
            string(v.str_bytes().unwrap_or(&[]), out);
        }
        tag::CODE => string(v.str_bytes().unwrap_or(&[]), out),
        tag::NULL => types.push(0),
        tag::DOCUMENT | tag::ARRAY => container(
            Doc::new(v.bytes).unwrap_or(Doc::EMPTY),
            v.tag == tag::DOCUMENT,
            out,
            types,
        ),
        tag::BINARY => {
            let (subtype, content) = v.as_binary().unwrap_or((0, &[]));
            out.extend_from_slice(&(content.len() as u32).to_be_bytes());
            out.push(subtype);
            out.extend_from_slice(content);
        }
        tag::DATE => {
            out.extend_from_slice(&((v.as_date().unwrap_or(0) as u64) ^ (1 << 63)).to_be_bytes())
        }
        tag::TIMESTAMP => out.extend_from_slice(&v.as_timestamp().unwrap_or(0).to_be_bytes()),
        tag::OBJECT_ID | tag::BOOL | tag::REGEX => out.extend_from_slice(v.bytes),
        tag::DB_POINTER => {
            out.extend_from_slice(&(v.bytes.len() as u32).to_be_bytes());
            out.extend_from_slice(v.bytes);
        }
        tag::CODE_WITH_SCOPE => {
            let (code, scope) = v.as_code_with_scope().unwrap_or((&[], Doc::EMPTY));
            string(code, out);
            container(scope, true, out, types);
        }
        _ => {}
    }
}

fn container(d: Doc<'_>, names: bool, out: &mut Vec<u8>, types: &mut Codes<'_>) {
    let mut it = d.iter();
    while let Some((name, v)) = it.next_raw() {
        out.push(rank_byte(v.tag));
        if names {
            out.extend_from_slice(name);
            out.push(0);
        }
        payload(v, out, types);
    }
    out.push(END);
}

fn string(s: &[u8], out: &mut Vec<u8>) {
    if s.iter().any(|&b| b <= 1) {
        for &b in s {
            match b {
                0 | 1 => out.extend_from_slice(&[1, b + 1]),
                _ => out.push(b),
            }
        }
    } else {
        out.extend_from_slice(s);
    }
    out.push(0);
}

const T_INT32: u8 = 0;
const T_INT64: u8 = 1;
const T_DOUBLE: u8 = 2;
const T_DECIMAL: u8 = 3;
const T_NEG_ZERO: u8 = 4;
const T_DECIMAL_NEG_ZERO: u8 = 5;

fn sortable(f: f64) -> [u8; 8] {
    if f.is_nan() {
        return [0; 8];
    }
    let bits = if f == 0.0 { 0 } else { f.to_bits() };
    (if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    })
    .to_be_bytes()
}

fn from_sortable(b: [u8; 8]) -> f64 {
    let u = u64::from_be_bytes(b);
    match u {
        0 => f64::NAN,
        _ if u >> 63 == 1 => f64::from_bits(u & !(1 << 63)),
        _ => f64::from_bits(!u),
    }
}

fn number(v: Val<'_>, out: &mut Vec<u8>, types: &mut Codes<'_>) {
    match v.tag {
        tag::INT32 => {
            types.push(T_INT32);
            out.extend_from_slice(&sortable(f64::from(v.as_i32().unwrap_or(0))));
            out.push(0);
        }
        tag::DOUBLE => {
            let f = v.as_f64().unwrap_or(0.0);
            types.push(if f == 0.0 && f.is_sign_negative() {
                T_NEG_ZERO
            } else {
                T_DOUBLE
            });
            out.extend_from_slice(&sortable(f));
            out.push(0);
        }
        tag::INT64 => {
            types.push(T_INT64);
            let i = v.as_i64().unwrap_or(0);
            let mut f = i as f64;
            if f as i128 > i128::from(i) {
                f = f.next_down();
            }
            out.extend_from_slice(&sortable(f));
            if f as i128 == i128::from(i) {
                out.push(0);
            } else {
                out.push(1);
                continuation(Decimal128::from_i64(i), out);
            }
        }
        _ => {
            let d = v.as_decimal().unwrap_or(Decimal128::ZERO);
            let exponent = match d.parts() {
                DecimalParts::Finite { exponent, .. } => exponent,
                _ => 0,
            };
            types.push(if d.is_zero() && d.is_negative() {
                T_DECIMAL_NEG_ZERO
            } else {
                T_DECIMAL
            });
            types.extend(&((exponent + 8192) as u16).to_be_bytes());
            let mut f = d.to_f64();
            let exact = d.is_nan() || {
                let o = d.cmp_f64(f);
                if o.is_lt() {
                    f = f.next_down();
                }
                o.is_eq()
            };
            out.extend_from_slice(&sortable(f));
            out.push(u8::from(!exact));
            if !exact {
                continuation(d, out);
            }
        }
    }
}

fn continuation(d: Decimal128, out: &mut Vec<u8>) {
    let Some((negative, e, c)) = d.normalized() else {
        return;
    };
    let start = out.len();
    out.extend_from_slice(&((e as u32) ^ 0x8000_0000).to_be_bytes());
    out.extend_from_slice(&c.to_be_bytes());
    if negative {
        for b in &mut out[start..] {
            *b = !*b;
        }
    }
}

/// The length of the field at the start of `key`, without decoding it; `None` when these bytes are no key.
pub fn field_len(key: &[u8], descending: bool) -> Option<usize> {
    let flip = if descending { 0xFF } else { 0 };
    let rank = *key.first()? ^ flip;
    Some(1 + payload_len(rank, key.get(1..)?, flip, 0)?)
}

fn payload_len(rank: u8, b: &[u8], flip: u8, depth: usize) -> Option<usize> {
    let terminated = |b: &[u8]| b.iter().position(|&c| c == flip).map(|n| n + 1);
    let n = match rank.checked_sub(RANK_SHIFT)? {
        1 | 2 | 5 | 127 => 0,
        10 => {
            if *b.get(8)? ^ flip == 0 {
                9
            } else {
                29
            }
        }
        15 | 60 => terminated(b)?,
        20 | 25 | 65 => {
            let code = if rank == 65 + RANK_SHIFT {
                terminated(b)?
            } else {
                0
            };
            code + container_len(rank != 25 + RANK_SHIFT, b.get(code..)?, flip, depth)?
        }
        30 => {
            let l: [u8; 4] = b.get(..4)?.try_into().ok()?;
            5 + u32::from_be_bytes(l.map(|c| c ^ flip)) as usize
        }
        35 => 12,
        40 => 1,
        45 | 47 => 8,
        50 => {
            let pattern = terminated(b)?;
            pattern + terminated(b.get(pattern..)?)?
        }
        55 => {
            let l: [u8; 4] = b.get(..4)?.try_into().ok()?;
            4 + u32::from_be_bytes(l.map(|c| c ^ flip)) as usize
        }
        _ => return None,
    };
    (n <= b.len()).then_some(n)
}

fn container_len(names: bool, b: &[u8], flip: u8, depth: usize) -> Option<usize> {
    if depth > 2 * crate::MAX_DEPTH {
        return None;
    }
    let mut at = 0;
    loop {
        let rank = *b.get(at)? ^ flip;
        at += 1;
        if rank == END {
            return Some(at);
        }
        if names {
            at += b.get(at..)?.iter().position(|&c| c == flip)? + 1;
        }
        at += payload_len(rank, b.get(at..)?, flip, depth + 1)?;
    }
}

/// Reads keys back. Every method gives `None` on bytes that are no key.
pub struct Decoder<'a> {
    key: &'a [u8],
    types: &'a [u8],
    flip: u8,
}

fn tagged(tag: u8, bytes: &[u8]) -> Val<'_> {
    Val { tag, bytes }
}

impl<'a> Decoder<'a> {
    /// `key`: concatenated fields (what follows them is left alone); `types`: the stored bytes of [`Types`].
    pub fn new(key: &'a [u8], types: &'a [u8]) -> Decoder<'a> {
        Decoder {
            key,
            types,
            flip: 0,
        }
    }

    /// The next field: `Some(None)` for a missing one.
    pub fn field(&mut self, descending: bool) -> Option<Option<Value>> {
        self.flip = if descending { 0xFF } else { 0 };
        let rank = self.byte()?;
        if rank == rank_byte(tag::NULL) {
            return Some(if self.type_code() == 1 {
                None
            } else {
                Some(Value::NULL)
            });
        }
        let mut w = Writer::new_array();
        self.payload(rank, "", &mut w, 0)?;
        let d = w.finish();
        let v = d.as_doc().values().next()?.to_value();
        Some(Some(v))
    }

    /// Skips one field and gives its raw bytes.
    pub fn skip(&mut self, descending: bool) -> Option<&'a [u8]> {
        self.flip = if descending { 0xFF } else { 0 };
        let before = self.key;
        let rank = self.byte()?;
        if rank != rank_byte(tag::NULL) {
            let mut w = Writer::new_array();
            self.payload(rank, "", &mut w, 0)?;
        } else {
            self.type_code();
        }
        before.get(..before.len() - self.key.len())
    }

    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.key
    }

    fn byte(&mut self) -> Option<u8> {
        let (&b, rest) = self.key.split_first()?;
        self.key = rest;
        Some(b ^ self.flip)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut b: [u8; N] = self.key.get(..N)?.try_into().ok()?;
        self.key = &self.key[N..];
        b.iter_mut().for_each(|b| *b ^= self.flip);
        Some(b)
    }

    fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        let b = self.key.get(..n)?.iter().map(|b| b ^ self.flip).collect();
        self.key = &self.key[n..];
        Some(b)
    }

    fn type_code(&mut self) -> u8 {
        match self.types.split_first() {
            Some((&t, rest)) => {
                self.types = rest;
                t
            }
            None => 0,
        }
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        let mut s = Vec::new();
        loop {
            match self.byte()? {
                0 => return Some(s),
                1 => s.push(self.byte()?.checked_sub(1)?),
                b => s.push(b),
            }
        }
    }

    fn cstring(&mut self) -> Option<Vec<u8>> {
        let end = self.key.iter().position(|b| b ^ self.flip == 0)?;
        let s = self.take(end)?;
        self.byte()?;
        Some(s)
    }

    fn payload(&mut self, rank: u8, name: &str, w: &mut Writer, depth: usize) -> Option<()> {
        if depth > 2 * crate::MAX_DEPTH {
            return None;
        }
        let rank = rank.checked_sub(RANK_SHIFT)?;
        match rank {
            1 => w.val(name, Val::MIN_KEY),
            2 => w.val(name, Val::UNDEFINED),
            5 => {
                self.type_code();
                w.null(name)
            }
            10 => {
                let v = self.number()?;
                w.val(name, v.as_val())
            }
            15 => {
                let symbol = self.type_code() == 1;
                let s = self.string()?;
                let v = Value::str_from_bytes(&s);
                let symbol = if symbol { tag::SYMBOL } else { tag::STRING };
                w.val(name, tagged(symbol, v.as_val().bytes))
            }
            20 => {
                w.open_doc(name);
                self.fields(true, w, depth)?;
                w.close()
            }
            25 => {
                w.open_array(name);
                self.fields(false, w, depth)?;
                w.close()
            }
            30 => {
                let len = u32::from_be_bytes(self.bytes()?) as usize;
                let subtype = self.byte()?;
                let content = self.take(len)?;
                w.binary(name, subtype, &content)
            }
            35 => {
                let b: [u8; 12] = self.bytes()?;
                w.oid(name, crate::ObjectId(b))
            }
            40 => {
                let b = self.byte()?;
                w.bool(name, b == 1)
            }
            45 => {
                let b: [u8; 8] = self.bytes()?;
                w.date(name, (u64::from_be_bytes(b) ^ (1 << 63)) as i64)
            }
            47 => {
                let b: [u8; 8] = self.bytes()?;
                w.timestamp(name, u64::from_be_bytes(b))
            }
            50 => self.regex(name, w)?,
            55 => {
                let len = u32::from_be_bytes(self.bytes()?) as usize;
                let bytes = self.take(len)?;
                w.val(name, tagged(tag::DB_POINTER, &bytes))
            }
            60 => {
                let code = Value::str_from_bytes(&self.string()?);
                w.val(name, tagged(tag::CODE, code.as_val().bytes))
            }
            65 => self.code_with_scope(name, w, depth)?,
            127 => w.val(name, Val::MAX_KEY),
            _ => return None,
        };
        Some(())
    }

    fn regex<'w>(&mut self, name: &str, w: &'w mut Writer) -> Option<&'w mut Writer> {
        let (mut p, mut o) = (self.cstring()?, self.cstring()?);
        p.push(0);
        o.push(0);
        p.extend_from_slice(&o);
        Some(w.val(
            name,
            Val {
                tag: tag::REGEX,
                bytes: &p,
            },
        ))
    }

    fn code_with_scope<'w>(
        &mut self,
        name: &str,
        w: &'w mut Writer,
        depth: usize,
    ) -> Option<&'w mut Writer> {
        let code = Value::str_from_bytes(&self.string()?);
        let mut scope = Writer::new();
        self.fields(true, &mut scope, depth)?;
        let scope = scope.finish();
        let (c, s) = (code.as_val().bytes, scope.as_bytes());
        let mut b = ((4 + c.len() + s.len()) as i32).to_le_bytes().to_vec();
        b.extend_from_slice(c);
        b.extend_from_slice(s);
        Some(w.val(
            name,
            Val {
                tag: tag::CODE_WITH_SCOPE,
                bytes: &b,
            },
        ))
    }

    fn fields(&mut self, names: bool, w: &mut Writer, depth: usize) -> Option<()> {
        loop {
            let rank = self.byte()?;
            if rank == END {
                return Some(());
            }
            let name = if names {
                String::from_utf8(self.cstring()?).ok()?
            } else {
                String::new()
            };
            self.payload(rank, &name, w, depth + 1)?;
        }
    }

    fn number(&mut self) -> Option<Value> {
        let f = from_sortable(self.bytes()?);
        let more = match self.byte()? {
            0 => None,
            _ => Some(self.continuation(f)?),
        };
        Some(match self.type_code() {
            T_INT32 => Value::from(f as i32),
            T_INT64 => Value::from(match more {
                Some(d) => d.to_i64_exact()?,
                None => f as i64,
            }),
            T_NEG_ZERO => Value::from(-0.0),
            T_DOUBLE => Value::from(f),
            T_DECIMAL_NEG_ZERO => {
                let e = self.exponent()?;
                Value::from(Decimal128::from_parts(true, 0, e)?)
            }
            T_DECIMAL => {
                let e = self.exponent()?;
                let d = match more {
                    Some(d) => d,
                    None => Decimal128::from_f64_exact(f)?,
                };
                Value::from(d.with_exponent(e).unwrap_or(d))
            }
            _ => return None,
        })
    }

    fn exponent(&mut self) -> Option<i32> {
        let (hi, lo) = (self.type_code(), self.type_code());
        Some(i32::from(u16::from_be_bytes([hi, lo])) - 8192)
    }

    fn continuation(&mut self, f: f64) -> Option<Decimal128> {
        let mut e: [u8; 4] = self.bytes()?;
        let mut c: [u8; 16] = self.bytes()?;
        let negative = f < 0.0;
        if negative {
            e.iter_mut().chain(c.iter_mut()).for_each(|b| *b = !*b);
        }
        let (mut e, mut c) = (
            (u32::from_be_bytes(e) ^ 0x8000_0000) as i32,
            u128::from_be_bytes(c),
        );
        // The normalized exponent may lie below the format's range: shift zeros out.
        while (e < crate::decimal::MIN_EXPONENT || e < 0 && c.is_multiple_of(10))
            && c.is_multiple_of(10)
            && c != 0
        {
            c /= 10;
            e += 1;
        }
        Decimal128::from_parts(negative, c, e)
    }
}
