//! Sort patterns and the keys that make sorting a comparison of bytes.

use crate::index_keys::{KeyPattern, KeySet};
use crate::path::FieldPath;
use bson::{Doc, DocBuf};
use errors::Result;

/// A parsed sort specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPattern {
    pub fields: Vec<SortField>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortField {
    pub path: FieldPath,
    pub descending: bool,
}

impl SortPattern {
    /// Parses the specification of find's `sort` and of `$sort`. An empty document gives a pattern without fields.
    pub fn parse(_doc: Doc<'_>) -> Result<SortPattern> {
        todo!()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Appends the document's sort key: memcmp of two keys is the order of the documents.
    pub fn sort_key(&self, _doc: Doc<'_>, _out: &mut Vec<u8>) -> Result<()> {
        todo!()
    }

    pub fn to_doc(&self) -> DocBuf {
        todo!()
    }
}
