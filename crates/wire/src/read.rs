//! A cursor over bytes from a peer: every read is checked, none panics.

use errors::{Error, err};

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub fn i32(&mut self) -> Option<i32> {
        Some(i32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A NUL-terminated UTF-8 string.
    pub fn cstr(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|&b| b == 0)?;
        let bytes = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(bytes).ok()
    }

    /// A document by its length prefix: at least five bytes, within the rest of the message, ended by a
    /// NUL.
    pub fn doc(&mut self) -> Result<&'a [u8], Error> {
        let len = Reader(self.0)
            .i32()
            .ok_or_else(|| err!(InvalidBSON, "BSON document is cut short in its length"))?;
        let size = usize::try_from(len).unwrap_or(0);
        if size < 5 {
            return Err(err!(InvalidBSON, "invalid BSON document length: {len}"));
        }
        let left = self.0.len();
        let doc = self.take(size).ok_or_else(|| {
            err!(
                InvalidBSON,
                "BSON document of {len} bytes exceeds the {left} bytes that are left"
            )
        })?;
        match doc.last() {
            Some(0) => Ok(doc),
            _ => Err(err!(InvalidBSON, "BSON document does not end with a NUL")),
        }
    }
}

/// The documents of `bytes`, one after the other, as far as they are framed.
#[derive(Clone, Debug)]
pub struct Documents<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Documents<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let mut r = Reader::new(self.0);
        let doc = r.doc().ok();
        self.0 = if doc.is_some() { r.rest() } else { &[] };
        doc
    }
}
