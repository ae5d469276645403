//! Index key patterns and the keys that a document has in an index.

use crate::path::FieldPath;
use bson::{Doc, DocBuf};
use errors::Result;

/// A parsed key pattern of an ordered index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    pub fields: Vec<KeyField>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    pub path: FieldPath,
    pub descending: bool,
}

/// Which fields of an index were arrays: bit i for field i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Multikey(pub u64);

/// The keys of one document in one index, in buffers that are reused from document to document.
#[derive(Default, Debug)]
pub struct KeySet {
    bytes: Vec<u8>,
    entries: Vec<(u32, u32, u32)>,
}

impl Multikey {
    pub fn any(self) -> bool {
        self.0 != 0
    }
    pub fn field(self, i: usize) -> bool {
        i < 64 && self.0 & (1 << i) != 0
    }
}

impl KeySet {
    pub fn new() -> KeySet {
        KeySet::default()
    }
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Each entry: its key bytes, and the type bytes with which they decode.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        self.entries.iter().map(|&(a, b, c)| {
            (
                &self.bytes[a as usize..b as usize],
                &self.bytes[b as usize..c as usize],
            )
        })
    }
}

impl KeyPattern {
    /// Parses `{a: 1, "b.c": -1}`.
    pub fn parse(_doc: Doc<'_>) -> Result<KeyPattern> {
        todo!()
    }

    pub fn to_doc(&self) -> DocBuf {
        todo!()
    }

    /// Replaces the content of `out` by the document's keys, in key order without duplicates. `sparse`: none when the
    /// document has none of the fields.
    pub fn extract(&self, _doc: Doc<'_>, _sparse: bool, _out: &mut KeySet) -> Result<Multikey> {
        todo!()
    }
}
