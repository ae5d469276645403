//! How long the texts of a path are: a byte for each document, as Lucene's scores take it, and what all have in common.
//!
//! Source: Lucene's `SmallFloat.intToByte4`: short lengths keep their value, of longer ones four bits count.
//!
//! Invariant: the bytes of all indexes are at most [`MOST_BYTES`]; beyond them lengths are read from their column.

use crate::columns::Columns;
use crate::files::lengths_column;
use crate::problem::stopped;
use errors::operation::step;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tantivy::columnar::Column;
use tantivy::index::SegmentId;
use tantivy::{DocId, SegmentReader};

/// The most bytes that the indexes of the process keep of their documents' lengths.
const MOST_BYTES: usize = 64 << 20;

/// How many they keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Where fewer documents have the path, of so many, no byte is kept for each.
const SPARSE: usize = 16;

/// Lengths below this keep their value.
const EXACT: u32 = 24;

/// The byte of a length.
pub(crate) fn byte_of(length: u32) -> u8 {
    if length < EXACT {
        return length as u8;
    }
    let n = length.min(i32::MAX as u32) - EXACT;
    let bits = 32 - n.leading_zeros();
    let code = match bits < 4 {
        true => n,
        false => (n >> (bits - 4)) & 7 | (bits - 3) << 3,
    };
    (EXACT + code).min(255) as u8
}

/// The length that a byte stands for.
pub(crate) fn length_of(byte: u8) -> u32 {
    let byte = u32::from(byte);
    if byte < EXACT {
        return byte;
    }
    let (low, shift) = ((byte - EXACT) & 7, (byte - EXACT) >> 3);
    EXACT
        + if shift == 0 {
            low
        } else {
            (low | 8) << (shift - 1)
        }
}

/// A byte for each document of a segment.
pub(crate) struct ByteLengths(Vec<u8>);

impl ByteLengths {
    /// `None`: there is no room for as many.
    fn zeros(count: usize) -> Option<ByteLengths> {
        let with = |kept: usize| kept.checked_add(count).filter(|all| *all <= MOST_BYTES);
        KEPT.fetch_update(Relaxed, Relaxed, with).ok()?;
        Some(ByteLengths(vec![0; count]))
    }
}

impl Drop for ByteLengths {
    fn drop(&mut self) {
        let before = KEPT.fetch_sub(self.0.len(), Relaxed);
        assert!(before >= self.0.len(), "bytes of lengths are counted once");
    }
}

/// How long the texts of a path are in a segment.
#[derive(Clone)]
pub(crate) enum Lengths {
    /// By document; 0 where there is none.
    Bytes(Arc<ByteLengths>),
    Column(Column<i64>),
    None,
}

impl Lengths {
    /// The byte of a document's length.
    pub fn byte(&self, doc: DocId) -> u8 {
        match self {
            Lengths::Bytes(all) => all.0.get(doc as usize).copied().unwrap_or(0),
            Lengths::Column(column) => column.first(doc).map_or(0, byte_of_number),
            Lengths::None => 0,
        }
    }
}

fn byte_of_number(n: i64) -> u8 {
    byte_of(u32::try_from(n).unwrap_or(u32::MAX))
}

/// What a path's texts have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LengthSum {
    pub documents: u64,
    pub tokens: u64,
}

/// The same of all segments and paths that searches have asked for.
#[derive(Clone, Default)]
pub(crate) struct KnownLengths {
    known: Arc<Mutex<HashMap<(SegmentId, u32), (LengthSum, Lengths)>>>,
    columns: Columns,
}

impl KnownLengths {
    pub fn new(columns: &Columns) -> KnownLengths {
        KnownLengths {
            known: Arc::default(),
            columns: columns.clone(),
        }
    }

    /// Those of a segment's path. The first search reads all of them.
    pub fn of(&self, segment: &SegmentReader, path: u32) -> tantivy::Result<(LengthSum, Lengths)> {
        let at = (segment.segment_id(), path);
        if let Some(known) = self.known.lock().get(&at) {
            return Ok(known.clone());
        }
        let found = match self.columns.column(segment, &lengths_column(path))? {
            None => (LengthSum::default(), Lengths::None),
            Some(column) => read(segment, column)?,
        };
        self.known.lock().insert(at, found.clone());
        Ok(found)
    }

    /// Forgets those of segments that are gone.
    pub fn retain(&self, there: &HashSet<SegmentId>) {
        self.known.lock().retain(|(id, _), _| there.contains(id));
    }
}

fn read(segment: &SegmentReader, column: Column<i64>) -> tantivy::Result<(LengthSum, Lengths)> {
    let count = segment.max_doc() as usize;
    let dense = column.values.num_vals() as usize >= count / SPARSE;
    let mut bytes = dense.then(|| ByteLengths::zeros(count)).flatten();
    let mut sum = LengthSum::default();
    for doc in 0..segment.max_doc() {
        step().map_err(|_| stopped())?;
        let Some(n) = column.first(doc) else { continue };
        sum.documents += 1;
        sum.tokens += u64::try_from(n).unwrap_or(0);
        if let Some(byte) = bytes.as_mut().and_then(|b| b.0.get_mut(doc as usize)) {
            *byte = byte_of_number(n);
        }
    }
    let bytes = bytes.map(|bytes| Lengths::Bytes(Arc::new(bytes)));
    Ok((sum, bytes.unwrap_or(Lengths::Column(column))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_as_lucene_rounds_them() {
        // From SmallFloat's table: byte4ToInt(intToByte4(n)).
        let cases = [
            (0, 0),
            (23, 23),
            (24, 24),
            (39, 39),
            (40, 40),
            (41, 40),
            (42, 42),
            (1000, 984),
        ];
        for (n, want) in cases {
            assert_eq!(length_of(byte_of(n)), want, "{n}");
        }
        // Bytes stand for the lengths that they are of, in their order.
        for byte in 0..=255u8 {
            assert_eq!(byte_of(length_of(byte)), byte);
        }
        assert_eq!(byte_of(u32::MAX), 255);
    }
}
