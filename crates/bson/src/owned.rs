//! Owned documents and values. A [`Value`] keeps small values inline, so that computing with numbers allocates nothing.

use crate::decimal::Decimal128;
use crate::oid::ObjectId;
use crate::{Doc, Val, tag};
use smallvec::SmallVec;

/// An owned document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DocBuf(Vec<u8>);

impl Default for DocBuf {
    fn default() -> Self {
        DocBuf(vec![5, 0, 0, 0, 0])
    }
}

impl DocBuf {
    pub fn new() -> DocBuf {
        DocBuf::default()
    }

    /// Takes bytes that are a whole document; `None` when length or terminator are wrong.
    pub fn from_vec(bytes: Vec<u8>) -> Option<DocBuf> {
        (Doc::new(&bytes)?.len() == bytes.len()).then_some(DocBuf(bytes))
    }

    pub fn from_doc(d: Doc<'_>) -> DocBuf {
        DocBuf(d.as_bytes().to_vec())
    }

    pub fn as_doc(&self) -> Doc<'_> {
        Doc::new(&self.0).unwrap_or(Doc::EMPTY)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }

    pub fn get(&self, name: &str) -> Option<Val<'_>> {
        self.as_doc().get(name)
    }
}

impl std::fmt::Debug for DocBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_doc().fmt(f)
    }
}

/// An owned value of any type.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value {
    tag: u8,
    bytes: SmallVec<[u8; 16]>,
}

impl Value {
    pub const NULL: Value = Value {
        tag: tag::NULL,
        bytes: SmallVec::new_const(),
    };

    #[inline]
    pub fn new(tag: u8, bytes: &[u8]) -> Value {
        Value {
            tag,
            bytes: SmallVec::from_slice(bytes),
        }
    }

    /// Takes the bytes without copying (large documents and arrays).
    pub fn from_bytes(tag: u8, bytes: Vec<u8>) -> Value {
        Value {
            tag,
            bytes: SmallVec::from_vec(bytes),
        }
    }

    #[inline]
    pub fn from_val(v: Val<'_>) -> Value {
        Value::new(v.tag, v.bytes)
    }

    #[inline]
    pub fn as_val(&self) -> Val<'_> {
        Val {
            tag: self.tag,
            bytes: &self.bytes,
        }
    }

    pub fn tag(&self) -> u8 {
        self.tag
    }

    pub fn date(millis: i64) -> Value {
        Value::new(tag::DATE, &millis.to_le_bytes())
    }

    /// `ts` is seconds << 32 | increment.
    pub fn timestamp(ts: u64) -> Value {
        Value::new(tag::TIMESTAMP, &ts.to_le_bytes())
    }

    pub fn binary(subtype: u8, content: &[u8]) -> Value {
        let mut b = Vec::with_capacity(content.len() + 5);
        b.extend_from_slice(&(content.len() as i32).to_le_bytes());
        b.push(subtype);
        b.extend_from_slice(content);
        Value::from_bytes(tag::BINARY, b)
    }

    /// `pattern` and `options` must not hold NUL bytes.
    pub fn regex(pattern: &str, options: &str) -> Value {
        let mut b = pattern.as_bytes().to_vec();
        b.push(0);
        b.extend_from_slice(options.as_bytes());
        b.push(0);
        Value::from_bytes(tag::REGEX, b)
    }

    fn stringlike(tag: u8, s: &[u8]) -> Value {
        let mut b: SmallVec<[u8; 16]> = SmallVec::with_capacity(s.len() + 5);
        b.extend_from_slice(&(s.len() as i32 + 1).to_le_bytes());
        b.extend_from_slice(s);
        b.push(0);
        Value { tag, bytes: b }
    }

    pub fn str_from_bytes(s: &[u8]) -> Value {
        Value::stringlike(tag::STRING, s)
    }

    pub fn code(s: &str) -> Value {
        Value::stringlike(tag::CODE, s.as_bytes())
    }

    pub fn symbol(s: &str) -> Value {
        Value::stringlike(tag::SYMBOL, s.as_bytes())
    }

    pub fn array(d: DocBuf) -> Value {
        Value::from_bytes(tag::ARRAY, d.into_vec())
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_val().fmt(f)
    }
}

macro_rules! from {
    ($($t:ty, |$v:ident| $e:expr);* $(;)?) => { $(impl From<$t> for Value { #[inline] fn from($v: $t) -> Value { $e } })* };
}
from! {
    i32, |v| Value::new(tag::INT32, &v.to_le_bytes());
    i64, |v| Value::new(tag::INT64, &v.to_le_bytes());
    f64, |v| Value::new(tag::DOUBLE, &v.to_le_bytes());
    bool, |v| Value::new(tag::BOOL, &[u8::from(v)]);
    &str, |v| Value::stringlike(tag::STRING, v.as_bytes());
    String, |v| Value::stringlike(tag::STRING, v.as_bytes());
    &String, |v| Value::stringlike(tag::STRING, v.as_bytes());
    ObjectId, |v| Value::new(tag::OBJECT_ID, &v.0);
    Decimal128, |v| Value::new(tag::DECIMAL128, &v.to_le_bytes());
    DocBuf, |v| Value::from_bytes(tag::DOCUMENT, v.into_vec());
    &DocBuf, |v| Value::from_val(v.as_doc().as_val());
    Doc<'_>, |v| Value::from_val(v.as_val());
    Val<'_>, |v| Value::from_val(v);
    (), |_v| Value::NULL;
}
