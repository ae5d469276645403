//! One step of a source: its inputs, and the document that it reaches.

use crate::examined::Examined;
use bson::Doc;
use catalog::Collection;
use errors::Result;
use query::filter::Filter;
use std::sync::Arc;
use storage::{Slice, View};

/// A document up to this length is copied to outlast a batch of its cursor, in bytes.
pub(crate) const KEPT_BYTES: usize = 16 << 10;

/// The current document of a source.
pub(crate) enum Current {
    None,
    /// The document is the scan's current value.
    Scanned,
    Fetched(Slice),
    Built(Vec<u8>),
    /// The document was released; the record key allows to read it again.
    Left,
}

impl Current {
    /// The document, unless the source holds it itself.
    pub(crate) fn doc(&self) -> Option<Doc<'_>> {
        match self {
            Current::Fetched(record) => Some(checked(record)),
            Current::Built(bytes) => Some(built(bytes)),
            Current::None | Current::Scanned | Current::Left => None,
        }
    }
}

/// A record that [`crate::records::stored`] has checked where it was read.
#[inline]
pub(crate) fn checked(record: &[u8]) -> Doc<'_> {
    Doc::of_stored(record).expect("a record that was checked where it was read")
}

/// A document that was made here.
#[inline]
pub(crate) fn built(bytes: &[u8]) -> Doc<'_> {
    Doc::new(bytes).expect("a document that was built here")
}

/// The inputs of one step of a source.
pub(crate) struct Step<'s> {
    pub view: &'s View,
    pub coll: &'s Arc<Collection>,
    pub vars: Option<&'s query::expr::Vars>,
    pub examined: &'s mut Examined,
    pub record_key: &'s mut Vec<u8>,
}

pub(crate) fn test(f: &Filter, doc: Doc<'_>, vars: Option<&query::expr::Vars>) -> Result<bool> {
    match vars {
        Some(v) => f.matches_with(doc, v),
        None => f.matches(doc),
    }
}
