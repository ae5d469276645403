//! What of documents an index could not take in: such documents are searched without it.
//!
//! ```text
//! values   U+FFFFFFFF u32 BE | 'p'                              any document that lacks something
//!          U+FFFFFFFF u32 BE | 'p' | reason u8 | path, UTF-8    one that lacks this
//! ```
//! So what is told of them is as fresh as the index, and goes with the documents.

use crate::files::IndexSnapshot;
use crate::hits::key_of;
use crate::set::TermRange;
use crate::terms::{kind, value_prefix};
use errors::Result;
use tantivy::{DocAddress, DocId};

/// The most fields that are told of, and the most documents of each that are named.
const MOST_FIELDS: usize = 100;
const MOST_NAMED: usize = 10;

/// Why a field of a document is not in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    NoVector,
    VectorLength,
    NotFinite,
    ZeroVector,
    Bits,
    LongValue,
    ManyTerms,
    ManyPaths,
    ManyElements,
}

const ALL: [(Unfit, u8, &str); 9] = [
    (Unfit::NoVector, 1, "the value is no vector"),
    (
        Unfit::VectorLength,
        2,
        "the vector has another number of dimensions",
    ),
    (
        Unfit::NotFinite,
        3,
        "the vector has an element that is no finite number",
    ),
    (Unfit::ZeroVector, 4, "a zero vector has no cosine"),
    (
        Unfit::Bits,
        5,
        "a vector of bits needs euclidean similarity",
    ),
    (Unfit::LongValue, 6, "the value is longer than 8,192 bytes"),
    (
        Unfit::ManyTerms,
        7,
        "the document has too many words and values",
    ),
    (Unfit::ManyPaths, 8, "the index has too many fields"),
    (Unfit::ManyElements, 9, "the document has too many elements"),
];

impl Unfit {
    fn code(self) -> u8 {
        let mut all = ALL.iter();
        all.find(|(u, ..)| *u == self)
            .map_or(0, |(_, code, _)| *code)
    }

    fn of_code(code: u8) -> Option<Unfit> {
        ALL.iter().find(|(_, c, _)| *c == code).map(|(u, ..)| *u)
    }

    /// A sentence about it.
    pub fn reason(self) -> &'static str {
        let mut all = ALL.iter();
        all.find(|(u, ..)| *u == self)
            .map_or("", |(.., text)| *text)
    }

    /// The bytes in the index of a document that lacks a path for this reason.
    pub(crate) fn value(self, path: &str) -> Vec<u8> {
        let mut value = any_value();
        value.push(self.code());
        value.extend_from_slice(path.as_bytes());
        value
    }
}

/// The bytes in the index of a document that lacks anything.
pub(crate) fn any_value() -> Vec<u8> {
    value_prefix(u32::MAX, kind::UNFIT)
}

/// A field that documents lack in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitField {
    pub path: String,
    pub unfit: Unfit,
    /// How many documents.
    pub count: u64,
    /// The keys of some of them.
    pub keys: Vec<Vec<u8>>,
}

/// The documents that lack something in an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incomplete {
    /// How many; of vectors in elements of arrays, how many elements.
    pub count: u64,
    pub fields: Vec<UnfitField>,
}

impl Incomplete {
    /// What is known of a field, new if it is not; `None`: there are enough of them.
    fn field(&mut self, unfit: Unfit, path: &str) -> Option<&mut UnfitField> {
        let mut fields = self.fields.iter();
        let at = match fields.position(|f| f.unfit == unfit && f.path == path) {
            Some(at) => at,
            None if self.fields.len() >= MOST_FIELDS => return None,
            None => {
                self.fields.push(UnfitField {
                    path: path.to_string(),
                    unfit,
                    count: 0,
                    keys: Vec::new(),
                });
                self.fields.len() - 1
            }
        };
        self.fields.get_mut(at)
    }
}

impl IndexSnapshot {
    /// The documents that are not wholly in the index.
    pub fn incomplete(&self) -> Result<Incomplete> {
        let mut out = Incomplete::default();
        let (any, field) = (any_value(), self.fields.values);
        let segments = self.searcher.segment_readers().iter();
        for (segment, reader) in (0u32..).zip(segments) {
            let alive = reader.alive_bitset();
            let is_alive = |doc: DocId| alive.is_none_or(|a| a.is_alive(doc));
            TermRange::prefix(field, &any).walk(reader, |term, documents| {
                let mut found: Vec<DocId> = Vec::new();
                let mut count = 0;
                documents(&mut |doc| {
                    if is_alive(doc) {
                        count += 1;
                        if found.len() < MOST_NAMED {
                            found.push(doc);
                        }
                    }
                })?;
                let Some((code, path)) = term.get(any.len()..).and_then(<[u8]>::split_first) else {
                    out.count += count;
                    return Ok(());
                };
                let Some(unfit) = Unfit::of_code(*code).filter(|_| count > 0) else {
                    return Ok(());
                };
                let path = String::from_utf8_lossy(path);
                let Some(known) = out.field(unfit, &path) else {
                    return Ok(());
                };
                known.count += count;
                let left = MOST_NAMED.saturating_sub(known.keys.len());
                for doc in found.iter().take(left) {
                    known
                        .keys
                        .push(key_of(self, DocAddress::new(segment, *doc))?);
                }
                Ok(())
            })?;
        }
        Ok(out)
    }
}
