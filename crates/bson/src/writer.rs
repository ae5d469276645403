//! The one way to build BSON: a [`Writer`] appends elements to a growing buffer and patches lengths when a container closes.

use crate::oid::ObjectId;
use crate::{Doc, DocBuf, Val, Value, tag};
use smallvec::SmallVec;

struct Frame {
    start: usize,
    /// The next index when the container is an array.
    next: Option<u32>,
}

/// Appends a document. Inside an array the names given are ignored and indexes written instead.
pub struct Writer {
    buf: Vec<u8>,
    stack: SmallVec<[Frame; 8]>,
}

impl Default for Writer {
    fn default() -> Self {
        Writer::new()
    }
}

impl Writer {
    pub fn new() -> Writer {
        Writer::with_capacity(64)
    }

    pub fn with_capacity(n: usize) -> Writer {
        Writer::on(Vec::with_capacity(n))
    }

    /// Starts a document at the end of `buf` (whose earlier bytes stay): how replies are built in place.
    pub fn on(mut buf: Vec<u8>) -> Writer {
        let start = buf.len();
        buf.extend_from_slice(&[0; 4]);
        Writer {
            buf,
            stack: SmallVec::from_iter([Frame { start, next: None }]),
        }
    }

    pub fn new_array() -> Writer {
        let mut w = Writer::new();
        w.stack[0].next = Some(0);
        w
    }

    /// Type byte and name; the caller appends the value's bytes.
    #[inline]
    fn head(&mut self, t: u8, name: &str) {
        self.buf.push(t);
        match self.stack.last_mut() {
            Some(Frame { next: Some(n), .. }) => {
                push_index(&mut self.buf, *n);
                *n += 1;
            }
            _ => self.buf.extend_from_slice(name.as_bytes()),
        }
        self.buf.push(0);
    }

    #[inline]
    pub fn val(&mut self, name: &str, v: Val<'_>) -> &mut Self {
        // Once for all the parts: tag, name or index, terminator, value.
        self.buf
            .reserve(name.len() + INDEX_DIGITS + 2 + v.bytes.len());
        self.head(v.tag, name);
        self.buf.extend_from_slice(v.bytes);
        self
    }

    pub fn value(&mut self, name: &str, v: impl Into<Value>) -> &mut Self {
        let v: Value = v.into();
        self.val(name, v.as_val())
    }

    pub fn i32(&mut self, name: &str, v: i32) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::INT32,
                bytes: &v.to_le_bytes(),
            },
        )
    }

    pub fn i64(&mut self, name: &str, v: i64) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::INT64,
                bytes: &v.to_le_bytes(),
            },
        )
    }

    /// int32 when it fits, else int64: how MongoDB appends counts.
    pub fn int(&mut self, name: &str, v: i64) -> &mut Self {
        match i32::try_from(v) {
            Ok(i) => self.i32(name, i),
            Err(_) => self.i64(name, v),
        }
    }

    pub fn f64(&mut self, name: &str, v: f64) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::DOUBLE,
                bytes: &v.to_le_bytes(),
            },
        )
    }

    pub fn bool(&mut self, name: &str, v: bool) -> &mut Self {
        self.val(name, if v { Val::TRUE } else { Val::FALSE })
    }

    pub fn null(&mut self, name: &str) -> &mut Self {
        self.val(name, Val::NULL)
    }

    pub fn date(&mut self, name: &str, millis: i64) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::DATE,
                bytes: &millis.to_le_bytes(),
            },
        )
    }

    /// `ts` is seconds << 32 | increment.
    pub fn timestamp(&mut self, name: &str, ts: u64) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::TIMESTAMP,
                bytes: &ts.to_le_bytes(),
            },
        )
    }

    pub fn oid(&mut self, name: &str, v: ObjectId) -> &mut Self {
        self.val(
            name,
            Val {
                tag: tag::OBJECT_ID,
                bytes: &v.0,
            },
        )
    }

    pub fn str(&mut self, name: &str, v: &str) -> &mut Self {
        self.head(tag::STRING, name);
        self.buf
            .extend_from_slice(&(v.len() as i32 + 1).to_le_bytes());
        self.buf.extend_from_slice(v.as_bytes());
        self.buf.push(0);
        self
    }

    pub fn binary(&mut self, name: &str, subtype: u8, v: &[u8]) -> &mut Self {
        self.head(tag::BINARY, name);
        self.buf.extend_from_slice(&(v.len() as i32).to_le_bytes());
        self.buf.push(subtype);
        self.buf.extend_from_slice(v);
        self
    }

    /// Binary data that `fill` appends to the buffer: large data is read to where it is sent from. After
    /// an error the document is of no use.
    pub fn binary_with<E>(
        &mut self,
        name: &str,
        subtype: u8,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<&mut Self, E> {
        self.binary(name, subtype, &[]);
        let start = self.buf.len();
        fill(&mut self.buf)?;
        let len = (self.buf.len() - start) as i32;
        let at = start - 5;
        self.buf[at..at + 4].copy_from_slice(&len.to_le_bytes());
        Ok(self)
    }

    pub fn doc(&mut self, name: &str, v: Doc<'_>) -> &mut Self {
        self.val(name, v.as_val())
    }

    /// All elements of `d`, in order.
    pub fn extend(&mut self, d: Doc<'_>) -> &mut Self {
        if let Some(Frame { next: None, .. }) = self.stack.last() {
            self.buf.extend_from_slice(&d.as_bytes()[4..d.len() - 1]);
        } else {
            for v in d.values() {
                self.push(v);
            }
        }
        self
    }

    /// The next item of an array.
    pub fn push(&mut self, v: Val<'_>) -> &mut Self {
        self.val("", v)
    }

    pub fn push_value(&mut self, v: impl Into<Value>) -> &mut Self {
        self.value("", v)
    }

    fn open(&mut self, t: u8, name: &str, next: Option<u32>) -> &mut Self {
        self.head(t, name);
        self.stack.push(Frame {
            start: self.buf.len(),
            next,
        });
        self.buf.extend_from_slice(&[0; 4]);
        self
    }

    pub fn open_doc(&mut self, name: &str) -> &mut Self {
        self.open(tag::DOCUMENT, name, None)
    }

    pub fn open_array(&mut self, name: &str) -> &mut Self {
        self.open(tag::ARRAY, name, Some(0))
    }

    /// Closes the innermost open container (the root too).
    pub fn close(&mut self) -> &mut Self {
        if let Some(f) = self.stack.pop() {
            self.buf.push(0);
            let len = (self.buf.len() - f.start) as i32;
            self.buf[f.start..f.start + 4].copy_from_slice(&len.to_le_bytes());
        }
        self
    }

    /// Bytes in the buffer so far.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Forgets the elements appended since the buffer had `bytes` bytes: whole elements of the innermost
    /// open document, which was open then.
    pub fn truncate(&mut self, bytes: usize) {
        self.buf.truncate(bytes);
    }

    /// How many values the innermost open array has so far.
    pub fn items(&self) -> usize {
        let innermost = self.stack.last().and_then(|f| f.next);
        innermost.map_or(0, |n| n as usize)
    }

    /// The values written so far into the root container, which is still open.
    pub fn open_values(&self) -> impl Iterator<Item = Val<'_>> {
        let start = self.stack.first().map_or(0, |f| f.start + 4);
        crate::Iter::over(self.buf.get(start..).unwrap_or(&[])).map(|e| e.val)
    }

    /// Whether nothing was appended to the innermost open container.
    pub fn is_empty(&self) -> bool {
        self.stack
            .last()
            .is_some_and(|f| self.buf.len() == f.start + 4)
    }

    /// How many containers are open, the root included.
    pub fn depth(&self) -> usize {
        self.stack.len()
    }

    fn close_all(&mut self) {
        while !self.stack.is_empty() {
            self.close();
        }
    }

    pub fn finish(mut self) -> DocBuf {
        self.close_all();
        DocBuf::from_vec(self.buf).unwrap_or_default()
    }

    pub fn finish_array(self) -> Value {
        Value::array(self.finish())
    }

    /// Closes everything and gives the buffer back: the pair of [`Writer::on`].
    pub fn finish_into(mut self) -> Vec<u8> {
        self.close_all();
        self.buf
    }
}

/// The most digits that an index has.
const INDEX_DIGITS: usize = 10;

/// Appends `n` in decimal digits.
#[inline]
fn push_index(buf: &mut Vec<u8>, n: u32) {
    if n < 10 {
        buf.push(b'0' + n as u8);
        return;
    }
    if n < 100 {
        buf.extend_from_slice(&[b'0' + (n / 10) as u8, b'0' + (n % 10) as u8]);
        return;
    }
    let (mut digits, mut at, mut n) = ([0u8; INDEX_DIGITS], INDEX_DIGITS, n);
    while n > 0 {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    buf.extend_from_slice(&digits[at..]);
}
