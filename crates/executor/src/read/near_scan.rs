//! What an index of shapes has near to a point, the nearest first, as it is asked for.
//!
//! One queue holds cells, entries of the index and documents, each with the least distance that its
//! content can have. The nearest is taken out of it: a cell with few entries gives way to these, one
//! with many to its children; an entry to its document; a document is the next result. So of the
//! collection only those documents are read that are as near as the last result, and those whose cells
//! are.
//!
//! Invariant: a document comes out when nothing in the queue can be nearer than it, and once.

use crate::op::OpCtx;
use crate::read::index_scan::passes;
use crate::read::skip_scan::record_at;
use crate::read::step::{Current, KEPT_BYTES, Step};
use crate::records::{self, key_and_types};
use bson::Value;
use bson::key::{self, Decoder};
use catalog::Index;
use catalog::keyspace;
use errors::{Error, Result, bail};
use geo::{Cells, Metric, grid, sphere};
use planner::{CellPrefixes, NearAccess};
use query::filter::nearest;
use query::index_keys::Geospatial;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;
use storage::Direction;

/// A cell with more entries than these is looked at through its children.
const FEW_ENTRIES: usize = 8;
/// How many entries are taken at once from where no smaller cells are.
const CHUNK: usize = 64;
/// What the queue may hold, in bytes, and what of it may be documents.
const MOST_BYTES: usize = 100 << 20;
const MOST_DOCUMENT_BYTES: usize = 8 << 20;
/// What an item of the queue takes besides its keys.
const ITEM_BYTES: usize = 96;

pub(crate) struct NearScan {
    search: Box<dyn Steps>,
}

trait Steps: Send {
    fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>>;
    fn release(&mut self);
}

impl NearScan {
    pub(crate) fn new(index: Arc<Index>, access: &Arc<NearAccess>) -> NearScan {
        let near = &access.test.near;
        let on_sphere = near.center.sphere.filter(|_| near.metric != Metric::Flat);
        let access = access.clone();
        let search: Box<dyn Steps> = match (index.info.key.geospatial(), on_sphere) {
            (Some(Geospatial::Plane(g)), sphere) => {
                let cells = grid::GridFromPoint {
                    grid: *g,
                    flat: near.center.flat,
                    sphere,
                };
                Box::new(Search::new(index, access, cells))
            }
            (_, Some(p)) => Box::new(Search::new(index, access, sphere::FromPoint(p))),
            // The planner does not ask for it.
            (_, None) => Box::new(Nothing),
        };
        NearScan { search }
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        self.search.next(ctx, step)
    }

    pub(crate) fn release(&mut self) {
        self.search.release();
    }
}

struct Nothing;

impl Steps for Nothing {
    fn next(&mut self, _: &mut OpCtx, _: &mut Step) -> Result<Option<Current>> {
        Ok(None)
    }

    fn release(&mut self) {}
}

/// What the queue holds.
enum What<C> {
    /// A document at its distance, and its bytes where there is room for them.
    Document {
        record: Vec<u8>,
        bytes: Vec<u8>,
    },
    Entry {
        record: Vec<u8>,
    },
    /// Entries in a range of keys, which are as near as its cell.
    Range {
        low: Vec<u8>,
        high: Vec<u8>,
    },
    Cell {
        prefix: usize,
        cell: C,
    },
}

impl<C> What<C> {
    /// At equal distance documents come first.
    fn rank(&self) -> u8 {
        match self {
            What::Document { .. } => 0,
            What::Entry { .. } => 1,
            What::Range { .. } => 2,
            What::Cell { .. } => 3,
        }
    }

    fn bytes(&self) -> usize {
        ITEM_BYTES
            + match self {
                What::Document { record, bytes } => record.len() + bytes.len(),
                What::Entry { record } => record.len(),
                What::Range { low, high } => low.len() + high.len(),
                What::Cell { .. } => 0,
            }
    }

    fn record(&self) -> &[u8] {
        match self {
            What::Document { record, .. } | What::Entry { record } => record,
            _ => &[],
        }
    }
}

struct Item<C> {
    /// The least distance, in the search's unit.
    distance: f64,
    what: What<C>,
}

impl<C> Ord for Item<C> {
    fn cmp(&self, other: &Item<C>) -> Ordering {
        self.distance
            .total_cmp(&other.distance)
            .then_with(|| self.what.rank().cmp(&other.what.rank()))
            .then_with(|| self.what.record().cmp(other.what.record()))
    }
}

impl<C> PartialOrd for Item<C> {
    fn partial_cmp(&self, other: &Item<C>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<C> PartialEq for Item<C> {
    fn eq(&self, other: &Item<C>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<C> Eq for Item<C> {}

struct Search<C: Cells> {
    index: Arc<Index>,
    access: Arc<NearAccess>,
    cells: C,
    queue: BinaryHeap<Reverse<Item<C::Cell>>>,
    /// The bytes that the queue and `seen` hold, and those of documents among them.
    bytes: usize,
    document_bytes: usize,
    /// Records that were read, where one may have several entries.
    seen: HashSet<Vec<u8>>,
    begun: bool,
}

impl<C> Search<C>
where
    C: Cells,
{
    fn new(index: Arc<Index>, access: Arc<NearAccess>, cells: C) -> Search<C> {
        Search {
            index,
            access,
            cells,
            queue: BinaryHeap::new(),
            bytes: 0,
            document_bytes: 0,
            seen: HashSet::new(),
            begun: false,
        }
    }

    /// Where the search begins: the largest cells, or whole ranges where fields before the cells are not bound to values.
    fn begin(&mut self) -> Result<()> {
        let access = self.access.clone();
        match &access.starts {
            CellPrefixes::Prefixes(all) => {
                for prefix in 0..all.len() {
                    for cell in self.cells.roots() {
                        self.push_cell(prefix, cell)?;
                    }
                }
            }
            CellPrefixes::Ranges(all) => {
                for (low, high) in all {
                    let high = match high.is_empty() {
                        true => keyspace::prefix_end(&self.index.prefix),
                        false => keyspace::join(&self.index.prefix, high),
                    };
                    let low = keyspace::join(&self.index.prefix, low);
                    self.push(0.0, What::Range { low, high })?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, distance: f64, what: What<C::Cell>) -> Result<()> {
        self.bytes += what.bytes();
        if self.bytes > MOST_BYTES {
            bail!(
                QueryExceededMemoryLimitNoDiskUseAllowed,
                "a search for what is near holds more than {MOST_BYTES} bytes"
            );
        }
        self.queue.push(Reverse(Item { distance, what }));
        Ok(())
    }

    fn pop(&mut self) -> Option<Item<C::Cell>> {
        let Reverse(item) = self.queue.pop()?;
        self.bytes = self.bytes.saturating_sub(item.what.bytes());
        Some(item)
    }

    /// The distances of a cell in the search's unit; `None` where nothing of it is wanted.
    fn distances(&self, cell: C::Cell) -> Option<f64> {
        let near = &self.access.test.near;
        let (least, most) = self.cells.distances(cell);
        let (least, most) = (least * near.unit(), most * near.unit());
        (least <= near.max && most >= near.min).then_some(least)
    }

    fn push_cell(&mut self, prefix: usize, cell: C::Cell) -> Result<()> {
        match self.distances(cell) {
            Some(least) => self.push(least, What::Cell { prefix, cell }),
            None => Ok(()),
        }
    }

    /// The keys of the index between two numbers of cells, ends included.
    fn keys(&self, prefix: usize, low: i64, high: i64) -> (Vec<u8>, Vec<u8>) {
        let mut start = keyspace::join(&self.index.prefix, &[]);
        if let CellPrefixes::Prefixes(all) = &self.access.starts {
            start.extend_from_slice(all.get(prefix).map_or(&[], Vec::as_slice));
        }
        let mut end = start.clone();
        key::encode(Value::from(low).as_val(), false, &mut start, None);
        key::encode(Value::from(high).as_val(), false, &mut end, None);
        let end = key::successor(&end).unwrap_or_default();
        (start, end)
    }

    /// Takes up to `most` entries of a range, with their distances; then where the range goes on.
    fn entries(
        &self,
        ctx: &mut OpCtx,
        step: &mut Step,
        (low, high): (&[u8], &[u8]),
        most: usize,
    ) -> Result<(Vec<(f64, Vec<u8>)>, Option<Vec<u8>>)> {
        let mut scan = step.view.scan(low, high, Direction::Forward);
        step.examined.seeks += 1;
        let (mut out, mut n) = (Vec::new(), 0);
        while scan.next()? {
            ctx.tick(1)?;
            if n == most {
                return Ok((out, Some(scan.key().to_vec())));
            }
            n += 1;
            step.examined.keys += 1;
            let rest = records::own_part(scan.key());
            let at = record_at(&self.index, rest)?;
            let (record, types) = key_and_types(&self.index, rest, at, scan.value())?;
            let tests = &self.access.key_filter;
            if !tests.is_empty() && !passes(&self.index, tests, rest, types)? {
                continue;
            }
            if let Some(least) = self.entry_distance(rest, types)? {
                out.push((least, record.to_vec()));
            }
        }
        Ok((out, None))
    }

    /// How near the cell of an entry is. `None`: it has none, or nothing of it is wanted.
    fn entry_distance(&self, key: &[u8], types: &[u8]) -> Result<Option<f64>> {
        let mut d = Decoder::new(key, types);
        let mut number = None;
        for f in self
            .index
            .info
            .key
            .fields
            .iter()
            .take(self.access.field + 1)
        {
            number = d
                .field(f.descending)
                .ok_or_else(|| Error::internal("an index entry does not decode"))?;
        }
        let number = number.and_then(|v| v.as_val().to_i64_exact());
        let cell = number.and_then(|n| self.cells.of_key(n));
        Ok(cell.and_then(|c| self.distances(c)))
    }

    fn push_entries(&mut self, found: Vec<(f64, Vec<u8>)>, least: f64) -> Result<()> {
        for (distance, record) in found {
            if !self.seen.contains(&record) {
                self.push(distance.max(least), What::Entry { record })?;
            }
        }
        Ok(())
    }

    /// Puts the content of a cell in its place.
    fn open_cell(
        &mut self,
        ctx: &mut OpCtx,
        step: &mut Step,
        prefix: usize,
        cell: C::Cell,
        least: f64,
    ) -> Result<()> {
        let (low, high) = self.cells.range(cell);
        let keys = self.keys(prefix, low, high);
        let children = self.cells.children(cell);
        if children.is_empty() {
            let (low, high) = keys;
            return self.push(least, What::Range { low, high });
        }
        let (found, more) = self.entries(ctx, step, (&keys.0, &keys.1), FEW_ENTRIES)?;
        if more.is_none() {
            return self.push_entries(found, least);
        }
        for child in children {
            self.push_cell(prefix, child)?;
        }
        if let Some(own) = self.cells.own(cell) {
            let (low, high) = self.keys(prefix, own, own);
            self.push(least, What::Range { low, high })?;
        }
        Ok(())
    }

    /// Reads the document of an entry and puts it at its distance.
    fn read(&mut self, step: &mut Step, record: Vec<u8>) -> Result<()> {
        if self.index.info.multikey != 0 {
            if !self.seen.insert(record.clone()) {
                return Ok(());
            }
            self.bytes += ITEM_BYTES + record.len();
        }
        step.examined.docs += 1;
        let Some(found) = step.view.get(&step.coll.record_key(&record))? else {
            return Ok(());
        };
        let doc = records::stored(step.coll, &record, &found)?;
        let near = &self.access.test.near;
        let Some((distance, _)) = nearest(&self.access.path, near, doc) else {
            return Ok(());
        };
        if !near.wants(distance) {
            return Ok(());
        }
        let kept =
            found.len() <= KEPT_BYTES && self.document_bytes + found.len() <= MOST_DOCUMENT_BYTES;
        let bytes = match kept {
            true => found.to_vec(),
            false => Vec::new(),
        };
        self.document_bytes += bytes.len();
        self.push(distance, What::Document { record, bytes })
    }
}

impl<C> Steps for Search<C>
where
    C: Cells + Send,
    C::Cell: Send,
{
    fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.begin()?;
        }
        while let Some(Item { distance, what }) = self.pop() {
            ctx.tick(1)?;
            match what {
                What::Cell { prefix, cell } => self.open_cell(ctx, step, prefix, cell, distance)?,
                What::Range { low, high } => {
                    let (found, more) = self.entries(ctx, step, (&low, &high), CHUNK)?;
                    self.push_entries(found, distance)?;
                    if let Some(low) = more {
                        self.push(distance, What::Range { low, high })?;
                    }
                }
                What::Entry { record } => self.read(step, record)?,
                What::Document { record, bytes } => {
                    self.document_bytes = self.document_bytes.saturating_sub(bytes.len());
                    step.record_key.clear();
                    step.record_key.extend_from_slice(&record);
                    if !bytes.is_empty() {
                        return Ok(Some(Current::Built(bytes)));
                    }
                    let found = step.view.get(&step.coll.record_key(&record))?;
                    if let Some(found) = found {
                        return Ok(Some(Current::Fetched(found)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn release(&mut self) {}
}
