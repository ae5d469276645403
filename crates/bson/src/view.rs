//! Borrowed views of BSON bytes. Invariant: no view panics or reads outside its slice, whatever the bytes; malformed bytes
//! end an iteration. Names are always valid UTF-8 (an element whose name is not ends the iteration).

use crate::decimal::Decimal128;
use crate::oid::ObjectId;
use crate::{DocBuf, Value, tag};

/// A document: its whole bytes, `int32 length … 0x00`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Doc<'a>(&'a [u8]);

/// A value without its name: the type byte and the value's bytes (`bytes` of a string include its length and final NUL).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Val<'a> {
    pub tag: u8,
    pub bytes: &'a [u8],
}

/// One element of a document.
#[derive(Clone, Copy, Debug)]
pub struct Elem<'a> {
    pub name: &'a str,
    pub val: Val<'a>,
}

fn i32_at(b: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Whether a raw name is `name`. Most names of a length differ in their first letter, and are told
/// apart without a call.
#[inline(always)]
pub fn same_name(raw: &[u8], name: &str) -> bool {
    raw.len() == name.len() && raw.first() == name.as_bytes().first() && raw == name.as_bytes()
}

/// As [`same_name`].
#[inline(always)]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.first() == b.first() && a == b
}

impl<'a> Doc<'a> {
    pub const EMPTY: Doc<'static> = Doc(&[5, 0, 0, 0, 0]);

    /// A view of the document at the start of `bytes` (which may go on after it). `None` unless the length fits and the
    /// last byte is the terminator; the elements are not looked at.
    pub fn new(bytes: &'a [u8]) -> Option<Doc<'a>> {
        let len = usize::try_from(i32_at(bytes, 0)?).ok()?;
        let d = bytes.get(..len)?;
        (len >= 5 && d[len - 1] == 0).then_some(Doc(d))
    }

    /// The same for a document that was whole when it was stored: it fits if its length is that of
    /// `bytes`. Its last byte is not looked at: of a long document that may be the first touch of memory
    /// that is never read, and costs more than to find a field.
    #[inline]
    pub fn of_stored(bytes: &'a [u8]) -> Option<Doc<'a>> {
        let len = usize::try_from(i32_at(bytes, 0)?).ok()?;
        (len >= 5 && len == bytes.len()).then_some(Doc(bytes))
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Size in bytes.
    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn is_empty(self) -> bool {
        self.0.len() <= 5
    }

    pub fn iter(self) -> Iter<'a> {
        Iter {
            rest: self.0.get(4..self.0.len().saturating_sub(1)).unwrap_or(&[]),
        }
    }

    /// The first element of that name (a whole name: dots are not split).
    #[inline]
    pub fn get(self, name: &str) -> Option<Val<'a>> {
        let mut it = self.iter();
        while let Some((n, v)) = it.next_raw() {
            if same_name(n, name) {
                return Some(v);
            }
        }
        None
    }

    pub fn contains(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn first(self) -> Option<Elem<'a>> {
        self.iter().next()
    }

    /// The first name that occurs a second time. Time in proportion to the bytes, however many names
    /// there are.
    pub fn repeated_name(self) -> Option<&'a str> {
        /// As many are compared with each other, without a table.
        const FEW: usize = 16;
        let mut few: [&[u8]; FEW] = [&[]; FEW];
        let (mut it, mut n) = (self.iter(), 0);
        while let Some((name, _)) = it.next_raw() {
            if n == FEW {
                return self.repeated_name_of_many();
            }
            if few[..n].iter().any(|seen| same_bytes(seen, name)) {
                return std::str::from_utf8(name).ok();
            }
            few[n] = name;
            n += 1;
        }
        None
    }

    fn repeated_name_of_many(self) -> Option<&'a str> {
        let mut seen = std::collections::HashSet::new();
        self.iter().map(|e| e.name).find(|name| !seen.insert(*name))
    }

    pub fn count(self) -> usize {
        let (mut it, mut n) = (self.iter(), 0);
        while it.next_raw().is_some() {
            n += 1;
        }
        n
    }

    pub fn to_buf(self) -> DocBuf {
        DocBuf::from_doc(self)
    }

    /// The document as a value of type object.
    pub fn as_val(self) -> Val<'a> {
        Val {
            tag: tag::DOCUMENT,
            bytes: self.0,
        }
    }

    /// The same bytes as a value of type array.
    pub fn as_array_val(self) -> Val<'a> {
        Val {
            tag: tag::ARRAY,
            bytes: self.0,
        }
    }

    /// Values in order (the natural way to walk an array).
    pub fn values(self) -> impl Iterator<Item = Val<'a>> + Clone {
        self.iter().map(|e| e.val)
    }
}

impl<'a> IntoIterator for Doc<'a> {
    type Item = Elem<'a>;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterates over elements; ends at the end or at the first malformed byte.
#[derive(Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iter<'a> {
    /// The next name (as bytes, not checked to be UTF-8) and value: the hot paths' form of `next`.
    #[inline]
    pub fn next_raw(&mut self) -> Option<(&'a [u8], Val<'a>)> {
        let (name, val, _) = self.step()?;
        Some((name, val))
    }

    /// Name, value, and whether the name is all ASCII: that falls out of looking for its end.
    #[inline]
    fn step(&mut self) -> Option<(&'a [u8], Val<'a>, bool)> {
        let (&t, after) = self.rest.split_first()?;
        let (end, ascii) = name_end(after)?;
        let (name, body) = (&after[..end], &after[end + 1..]);
        let Some(len) = size_of_value(t, body) else {
            self.rest = &[];
            return None;
        };
        self.rest = &body[len..];
        Some((
            name,
            Val {
                tag: t,
                bytes: &body[..len],
            },
            ascii,
        ))
    }

    /// Over bare elements, without the length and terminator of a document.
    pub fn over(elements: &'a [u8]) -> Iter<'a> {
        Iter { rest: elements }
    }

    /// The bytes not yet iterated over (without the document's terminator).
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Elem<'a>;
    #[inline]
    fn next(&mut self) -> Option<Elem<'a>> {
        let (name, val, ascii) = self.step()?;
        let name = if ascii {
            // SAFETY: every byte is below 0x80.
            unsafe { std::str::from_utf8_unchecked(name) }
        } else {
            std::str::from_utf8(name).ok()?
        };
        Some(Elem { name, val })
    }
}

/// Where the name that `bytes` begin with ends, and whether it is all ASCII. `None`: it does not.
///
/// Eight bytes at once: most names are shorter, and a loop over their bytes would end unpredictably.
#[inline]
fn name_end(bytes: &[u8]) -> Option<(usize, bool)> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let (mut at, mut bits) = (0, 0);
    while let Some(eight) = bytes.get(at..).and_then(|b| b.first_chunk()) {
        let word = u64::from_le_bytes(*eight);
        // The lowest bit of these is that of the first zero; those above it may be of other bytes.
        let zeros = word.wrapping_sub(ONES) & !word & HIGH;
        if zeros != 0 {
            let before = zeros.trailing_zeros() / 8;
            bits |= word & !(u64::MAX << (8 * before));
            return Some((at + before as usize, bits & HIGH == 0));
        }
        bits |= word;
        at += eight.len();
    }
    loop {
        match *bytes.get(at)? {
            0 => return Some((at, bits & HIGH == 0)),
            b => bits |= u64::from(b),
        }
        at += 1;
    }
}

/// The sizes of values of each type; [`VARIES`] where they differ or there is no such type.
static SIZES: [u8; 256] = {
    let mut sizes = [VARIES; 256];
    sizes[tag::DOUBLE as usize] = 8;
    sizes[tag::DATE as usize] = 8;
    sizes[tag::TIMESTAMP as usize] = 8;
    sizes[tag::INT64 as usize] = 8;
    sizes[tag::INT32 as usize] = 4;
    sizes[tag::OBJECT_ID as usize] = 12;
    sizes[tag::BOOL as usize] = 1;
    sizes[tag::NULL as usize] = 0;
    sizes[tag::UNDEFINED as usize] = 0;
    sizes[tag::MIN_KEY as usize] = 0;
    sizes[tag::MAX_KEY as usize] = 0;
    sizes[tag::DECIMAL128 as usize] = 16;
    sizes
};
const VARIES: u8 = u8::MAX;

/// The size in bytes of a value of type `t` at the start of `b`; `None` when it does not fit or the type is unknown.
#[inline]
pub(crate) fn size_of_value(t: u8, b: &[u8]) -> Option<usize> {
    let n = match SIZES[usize::from(t)] {
        VARIES => size_that_varies(t, b)?,
        n => usize::from(n),
    };
    (n <= b.len()).then_some(n)
}

#[inline]
fn size_that_varies(t: u8, b: &[u8]) -> Option<usize> {
    Some(match t {
        tag::STRING | tag::CODE | tag::SYMBOL => {
            let l = usize::try_from(i32_at(b, 0)?).ok()?;
            if l == 0 {
                return None;
            }
            4 + l
        }
        tag::DOCUMENT | tag::ARRAY => {
            let l = usize::try_from(i32_at(b, 0)?).ok()?;
            if l < 5 {
                return None;
            }
            l
        }
        tag::BINARY => 5 + usize::try_from(i32_at(b, 0)?).ok()?,
        tag::REGEX => {
            let p = b.iter().position(|&c| c == 0)?;
            let f = b.get(p + 1..)?.iter().position(|&c| c == 0)?;
            p + f + 2
        }
        tag::DB_POINTER => 4 + usize::try_from(i32_at(b, 0)?).ok()? + 12,
        tag::CODE_WITH_SCOPE => {
            let l = usize::try_from(i32_at(b, 0)?).ok()?;
            if l < 14 {
                return None;
            }
            l
        }
        _ => return None,
    })
}

impl<'a> Val<'a> {
    pub const NULL: Val<'static> = Val {
        tag: tag::NULL,
        bytes: &[],
    };
    pub const UNDEFINED: Val<'static> = Val {
        tag: tag::UNDEFINED,
        bytes: &[],
    };
    pub const MIN_KEY: Val<'static> = Val {
        tag: tag::MIN_KEY,
        bytes: &[],
    };
    pub const MAX_KEY: Val<'static> = Val {
        tag: tag::MAX_KEY,
        bytes: &[],
    };
    pub const TRUE: Val<'static> = Val {
        tag: tag::BOOL,
        bytes: &[1],
    };
    pub const FALSE: Val<'static> = Val {
        tag: tag::BOOL,
        bytes: &[0],
    };

    pub fn to_value(self) -> Value {
        Value::from_val(self)
    }

    /// `null`, `undefined`.
    pub fn is_nullish(self) -> bool {
        matches!(self.tag, tag::NULL | tag::UNDEFINED)
    }

    pub fn is_number(self) -> bool {
        tag::is_number(self.tag)
    }

    pub fn type_name(self) -> &'static str {
        tag::name(self.tag)
    }

    fn array8(self) -> Option<[u8; 8]> {
        self.bytes.get(..8)?.try_into().ok()
    }

    /// The value of an int32 and nothing else.
    pub fn as_i32(self) -> Option<i32> {
        if self.tag == tag::INT32 {
            i32_at(self.bytes, 0)
        } else {
            None
        }
    }

    /// The value of an int64 and nothing else.
    pub fn as_i64(self) -> Option<i64> {
        if self.tag == tag::INT64 {
            Some(i64::from_le_bytes(self.array8()?))
        } else {
            None
        }
    }

    /// The value of a double and nothing else.
    pub fn as_f64(self) -> Option<f64> {
        if self.tag == tag::DOUBLE {
            Some(f64::from_le_bytes(self.array8()?))
        } else {
            None
        }
    }

    pub fn as_decimal(self) -> Option<Decimal128> {
        if self.tag == tag::DECIMAL128 {
            Some(Decimal128::from_le_bytes(
                self.bytes.get(..16)?.try_into().ok()?,
            ))
        } else {
            None
        }
    }

    /// Any number as a double (nearest).
    pub fn to_f64(self) -> Option<f64> {
        match self.tag {
            tag::DOUBLE => self.as_f64(),
            tag::INT32 => self.as_i32().map(f64::from),
            tag::INT64 => self.as_i64().map(|i| i as f64),
            tag::DECIMAL128 => self.as_decimal().map(|d| d.to_f64()),
            _ => None,
        }
    }

    /// Any number whose value is exactly an i64.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self.tag {
            tag::INT32 => self.as_i32().map(i64::from),
            tag::INT64 => self.as_i64(),
            tag::DOUBLE => {
                let f = self.as_f64()?;
                (f.fract() == 0.0 && (-9223372036854775808.0..9223372036854775808.0).contains(&f))
                    .then_some(f as i64)
            }
            tag::DECIMAL128 => self.as_decimal()?.to_i64_exact(),
            _ => None,
        }
    }

    /// Any number as an i64: fractions cut off, out-of-range values clamped, NaN is 0.
    pub fn to_i64_truncated(self) -> Option<i64> {
        match self.tag {
            tag::INT32 => self.as_i32().map(i64::from),
            tag::INT64 => self.as_i64(),
            tag::DOUBLE => self.as_f64().map(|f| f as i64),
            tag::DECIMAL128 => self.as_decimal().map(|d| d.to_i64_truncated()),
            _ => None,
        }
    }

    /// The content of a string (also of a symbol or code) as bytes, without length and final NUL.
    pub fn str_bytes(self) -> Option<&'a [u8]> {
        match self.tag {
            tag::STRING | tag::SYMBOL | tag::CODE => {
                self.bytes.get(4..self.bytes.len().checked_sub(1)?)
            }
            _ => None,
        }
    }

    /// The content of a string, and nothing else.
    pub fn as_str(self) -> Option<&'a str> {
        if self.tag == tag::STRING {
            std::str::from_utf8(self.str_bytes()?).ok()
        } else {
            None
        }
    }

    pub fn as_bool(self) -> Option<bool> {
        if self.tag == tag::BOOL {
            self.bytes.first().map(|&b| b != 0)
        } else {
            None
        }
    }

    /// MongoDB's truth of any value: false, null, undefined and zero are false; NaN and all else are true.
    pub fn truthy(self) -> bool {
        match self.tag {
            tag::BOOL => self.bytes.first() == Some(&1),
            tag::NULL | tag::UNDEFINED => false,
            tag::INT32 | tag::INT64 | tag::DOUBLE => self.to_f64() != Some(0.0),
            tag::DECIMAL128 => !self.as_decimal().is_some_and(|d| d.is_zero()),
            _ => true,
        }
    }

    /// An embedded document.
    pub fn as_doc(self) -> Option<Doc<'a>> {
        if self.tag == tag::DOCUMENT {
            Doc::new(self.bytes)
        } else {
            None
        }
    }

    /// An array, as the document it is.
    pub fn as_array(self) -> Option<Doc<'a>> {
        if self.tag == tag::ARRAY {
            Doc::new(self.bytes)
        } else {
            None
        }
    }

    /// A document or an array.
    pub fn as_container(self) -> Option<Doc<'a>> {
        if matches!(self.tag, tag::ARRAY | tag::DOCUMENT) {
            Doc::new(self.bytes)
        } else {
            None
        }
    }

    pub fn as_oid(self) -> Option<ObjectId> {
        if self.tag == tag::OBJECT_ID {
            Some(ObjectId(self.bytes.get(..12)?.try_into().ok()?))
        } else {
            None
        }
    }

    /// Milliseconds since 1970.
    pub fn as_date(self) -> Option<i64> {
        if self.tag == tag::DATE {
            Some(i64::from_le_bytes(self.array8()?))
        } else {
            None
        }
    }

    /// seconds << 32 | increment.
    pub fn as_timestamp(self) -> Option<u64> {
        if self.tag == tag::TIMESTAMP {
            Some(u64::from_le_bytes(self.array8()?))
        } else {
            None
        }
    }

    /// Subtype and content.
    pub fn as_binary(self) -> Option<(u8, &'a [u8])> {
        if self.tag == tag::BINARY {
            Some((*self.bytes.get(4)?, self.bytes.get(5..)?))
        } else {
            None
        }
    }

    /// Pattern and options.
    pub fn as_regex(self) -> Option<(&'a str, &'a str)> {
        if self.tag != tag::REGEX {
            return None;
        }
        let mut parts = self.bytes.split(|&b| b == 0);
        Some((
            std::str::from_utf8(parts.next()?).ok()?,
            std::str::from_utf8(parts.next()?).ok()?,
        ))
    }

    /// The text of a string or of code, with or without a scope.
    pub fn as_code(self) -> Option<&'a str> {
        let bytes = match self.tag {
            tag::STRING | tag::CODE => self.str_bytes()?,
            tag::CODE_WITH_SCOPE => self.as_code_with_scope()?.0,
            _ => return None,
        };
        std::str::from_utf8(bytes).ok()
    }

    /// Code and scope of a code-with-scope.
    pub fn as_code_with_scope(self) -> Option<(&'a [u8], Doc<'a>)> {
        if self.tag != tag::CODE_WITH_SCOPE {
            return None;
        }
        let l = usize::try_from(i32_at(self.bytes, 4)?).ok()?;
        let code = self.bytes.get(8..(8 + l).checked_sub(1)?)?;
        Some((code, Doc::new(self.bytes.get(8 + l..)?)?))
    }
}

impl std::fmt::Debug for Val<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::json::val_to_string(*self))
    }
}

impl std::fmt::Display for Val<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::json::val_to_string(*self))
    }
}

impl std::fmt::Debug for Doc<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::json::val_to_string(self.as_val()))
    }
}

impl std::fmt::Display for Doc<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::json::val_to_string(self.as_val()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_there_twice() {
        let of = |names: &[String]| {
            let mut w = crate::Writer::new();
            for name in names {
                w.i32(name, 1);
            }
            w.finish()
        };
        for many in [0, 1, 2, 15, 16, 17, 18, 500] {
            let mut names: Vec<String> = (0..many).map(|i| format!("n{i}")).collect();
            assert_eq!(of(&names).as_doc().repeated_name(), None, "{many}");
            let Some(first) = names.first().cloned() else {
                continue;
            };
            names.push(first.clone());
            assert_eq!(of(&names).as_doc().repeated_name(), Some(&*first), "{many}");
        }
    }

    #[test]
    fn names_end_at_their_zero() {
        for fill in ["\u{1}", "a", "\u{7f}", "\u{80}", "é", "日"] {
            for many in 0..20 {
                let name = fill.repeat(many);
                for behind in 0..20u8 {
                    let bytes = [name.as_bytes(), &[0], &vec![behind % 3; behind.into()]].concat();
                    let end = Some((name.len(), name.is_ascii()));
                    assert_eq!(name_end(&bytes), end, "{name} {behind}");
                }
                assert_eq!(name_end(name.as_bytes()), None);
            }
        }
    }

    #[test]
    fn a_stored_document_is_as_long_as_it_says() {
        let doc = crate::doc! { "a": 1 };
        let bytes = doc.as_bytes();
        assert_eq!(Doc::of_stored(bytes), Doc::new(bytes));
        assert_eq!(Doc::of_stored(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Doc::of_stored(&[bytes, &[0]].concat()), None);
        assert_eq!(Doc::of_stored(&[4, 0, 0, 0]), None);
        assert_eq!(Doc::of_stored(&[]), None);
    }
}
