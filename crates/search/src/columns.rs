//! The open columns of an index's segments.
//!
//! To open a column the library reads what it has of each 512 of its numbers, so a search does not open one again that
//! another has opened.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tantivy::SegmentReader;
use tantivy::columnar::Column;
use tantivy::index::SegmentId;

/// Columns of numbers, by segment and name; `None`: the segment has none of that name.
#[derive(Clone, Default)]
pub(crate) struct Columns(Arc<Mutex<HashMap<SegmentId, BySegment>>>);

type BySegment = HashMap<String, Option<Column<i64>>>;

impl Columns {
    pub fn column(
        &self,
        reader: &SegmentReader,
        name: &str,
    ) -> tantivy::Result<Option<Column<i64>>> {
        let id = reader.segment_id();
        if let Some(known) = self.0.lock().get(&id).and_then(|all| all.get(name)) {
            return Ok(known.clone());
        }
        let column = reader.fast_fields().column_opt::<i64>(name)?;
        let mut all = self.0.lock();
        let of_segment = all.entry(id).or_default();
        of_segment.insert(name.to_string(), column.clone());
        Ok(column)
    }

    /// Forgets those of segments that are gone.
    pub fn retain(&self, there: &HashSet<SegmentId>) {
        self.0.lock().retain(|id, _| there.contains(id));
    }
}
