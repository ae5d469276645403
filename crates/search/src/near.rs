//! Which vectors a search compares: all that are wanted, or those that a graph leads to.
//!
//! Invariant: what a graph does not have yet is compared in any case, so a search finds what was committed.

use crate::definition::OrProblem;
use crate::facet::matching;
use crate::files::{Snapshot, slots_column};
use crate::operator::Clause;
use crate::room::Room;
use crate::vector::Elements;
use crate::vector_definition::{Quantization, VectorField};
use errors::Result;
use errors::operation::steps;
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::fastfield::AliveBitSet;
use tantivy::index::SegmentId;
use tantivy::{BitSet, DocAddress, DocId, SegmentReader};

/// About how many vectors a walk compares for each that it gives, where all are wanted.
const COMPARED_EACH: usize = 16;

/// How many candidates a graph of single bits gives for each that is asked for, because they tell little of a vector.
const OF_BITS: usize = 4;

/// How many of the nearest by their codes are read and compared as they are, for each result that is wanted. A byte for
/// each dimension tells nearly the same order.
const READ_EACH: usize = 4;

/// As many are read in any case.
const LEAST_READ: usize = 40;

/// The bytes of one entry of [`PlaceList`].
pub(crate) const PLACE_BYTES: usize = size_of::<(u32, DocId)>();

/// What a search wants of a vector field.
pub(crate) struct Wanted<'a> {
    /// The field's place in the definition.
    pub number: usize,
    pub elements: Elements,
    pub query: &'a [f32],
    pub filter: Option<&'a Clause>,
    /// How many it wants at the least.
    pub most: usize,
    /// How many results come of them; `None`: several may be of one result.
    pub results: Option<usize>,
}

impl Wanted<'_> {
    /// How many are to be found by their codes.
    fn by_codes(&self, field: &VectorField) -> usize {
        match field.quantization {
            Quantization::Binary => self.most.saturating_mul(OF_BITS),
            _ => self.most,
        }
    }

    /// How many of these are to be compared as they are.
    fn to_read(&self, field: &VectorField) -> usize {
        match (field.quantization, self.results) {
            (Quantization::Binary, _) | (_, None) => usize::MAX,
            (_, Some(results)) => results.saturating_mul(READ_EACH).max(LEAST_READ),
        }
    }
}

/// The slots of a segment in their order, with their documents.
#[derive(Clone)]
pub(crate) struct PlaceList(Arc<Vec<(u32, DocId)>>);

impl PlaceList {
    /// All of them, also of documents that are deleted.
    pub fn of(segment: &SegmentReader, column: &str) -> Result<PlaceList> {
        let column = segment
            .fast_fields()
            .column_opt::<i64>(column)
            .or_problem()?;
        let mut list = Vec::new();
        if let Some(column) = column {
            for doc in 0..segment.max_doc() {
                steps(1)?;
                if let Some(slot) = column.first(doc).and_then(|n| u32::try_from(n).ok()) {
                    list.push((slot, doc));
                }
            }
        }
        list.sort_unstable();
        Ok(PlaceList(Arc::new(list)))
    }

    fn doc(&self, slot: u32) -> Option<DocId> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        if slot < first.0 || slot > last.0 {
            return None;
        }
        // Where none was left out it stands in its place.
        let place = (slot - first.0) as usize;
        if let Some((there, doc)) = self.0.get(place)
            && *there == slot
        {
            return Some(*doc);
        }
        let before = self.0.get(..place).unwrap_or(&self.0);
        let at = before.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        before.get(at).map(|(_, doc)| *doc)
    }
}

/// One segment's documents that are wanted.
struct Segment<'a> {
    number: u32,
    list: PlaceList,
    alive: Option<&'a AliveBitSet>,
    /// What the filter lets through.
    set: Option<&'a BitSet>,
}

struct Segments<'a>(Vec<Segment<'a>>);

impl Segments<'_> {
    /// The document of a slot, if it is wanted.
    fn at(&self, slot: u32) -> Option<DocAddress> {
        let mut segments = self.0.iter();
        let (segment, doc) = segments.find_map(|s| Some((s, s.list.doc(slot)?)))?;
        let is_alive = segment.alive.is_none_or(|a| a.is_alive(doc));
        let is_wanted = segment.set.is_none_or(|set| set.contains(doc));
        (is_alive && is_wanted).then(|| DocAddress::new(segment.number, doc))
    }
}

/// What a filter lets through, by segment; `None`: there is no filter.
pub(crate) type Sets = Option<HashMap<SegmentId, BitSet>>;

/// What the filter lets through.
pub(crate) fn filtered(
    snapshot: &Snapshot,
    wanted: &Wanted<'_>,
    room: &mut Room<'_>,
) -> Result<Sets> {
    let of = |filter| matching(snapshot, (Some(filter), None), room, None);
    wanted.filter.map(of).transpose()
}

/// The slots that a graph leads to, and those that it does not have; `None`: to compare all is no more work. `compared`
/// is told how many it has compared by their codes.
pub(crate) fn candidates(
    snapshot: &Snapshot,
    (wanted, sets): (&Wanted<'_>, &Sets),
    room: &mut Room<'_>,
    compared: &mut usize,
) -> Result<Option<Vec<(u64, DocAddress)>>> {
    let field = snapshot.definition.vectors.get(wanted.number);
    let graph = snapshot.graphs.get(wanted.number);
    let (Some(field), Some(graph)) = (field, graph) else {
        return Ok(None);
    };
    let slots = snapshot.slots.get(wanted.number).copied().unwrap_or(0);
    let slots = usize::try_from(slots).unwrap_or(usize::MAX);
    let most = wanted.by_codes(field);
    // Even with no filter it would be more work.
    let walk = most.saturating_mul(COMPARED_EACH);
    if graph.slots() == 0 || walk >= slots {
        return Ok(None);
    }
    let matching = match sets {
        Some(sets) => sets.values().map(BitSet::len).sum(),
        None => usize::try_from(snapshot.documents()).unwrap_or(usize::MAX),
    };
    // Of what it meets as many are wanted as of all.
    let walk = walk.saturating_mul(slots) / matching.max(1);
    if walk >= matching {
        return Ok(None);
    }
    let segments = segments(snapshot, wanted, sets.as_ref())?;
    room.take(slots / 8 + walk * 16)?;
    let found = graph.walk(wanted.query, (most, matching), |slot| {
        segments.at(slot).is_some()
    })?;
    *compared += found.compared;
    let Some(mut near) = found.near else {
        return Ok(None);
    };
    near.truncate(wanted.to_read(field));
    let behind = u32::try_from(found.slots).unwrap_or(u32::MAX)..u32::try_from(slots).unwrap_or(0);
    room.take((near.len() + behind.len()) * size_of::<(u64, DocAddress)>())?;
    let mut out = Vec::new();
    for slot in near.into_iter().chain(behind) {
        steps(1)?;
        if let Some(at) = segments.at(slot) {
            out.push((u64::from(slot), at));
        }
    }
    Ok(Some(out))
}

fn segments<'a>(
    snapshot: &'a Snapshot,
    wanted: &Wanted<'_>,
    sets: Option<&'a HashMap<SegmentId, BitSet>>,
) -> Result<Segments<'a>> {
    let mut out = Vec::new();
    for (number, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let set = sets.map(|sets| sets.get(&reader.segment_id()));
        if matches!(set, Some(None)) {
            continue;
        }
        out.push(Segment {
            number,
            list: snapshot.places(reader, wanted.number, wanted.elements)?,
            alive: reader.alive_bitset(),
            set: set.flatten(),
        });
    }
    Ok(Segments(out))
}

/// The slots to compare where no walk leads to them: of all that are wanted those that are nearest by their codes, and
/// those that the graph does not have.
pub(crate) fn nearest_of_all(
    snapshot: &Snapshot,
    (wanted, sets): (&Wanted<'_>, &Sets),
    room: &mut Room<'_>,
    compared: &mut usize,
) -> Result<Vec<(u64, DocAddress)>> {
    let mut slots = match sets {
        Some(sets) => all_of(snapshot, (wanted, sets), room)?,
        None => all(snapshot, wanted, room)?,
    };
    let field = snapshot.definition.vectors.get(wanted.number);
    let graph = snapshot.graphs.get(wanted.number);
    let (Some(field), Some(graph)) = (field, graph) else {
        return Ok(slots);
    };
    let most = wanted.by_codes(field).min(wanted.to_read(field));
    if slots.len() <= most {
        return Ok(slots);
    }
    slots.sort_unstable();
    room.take(slots.len() * size_of::<u32>())?;
    let numbers = slots
        .iter()
        .map_while(|(slot, _)| u32::try_from(*slot).ok());
    let (mut near, known) = graph.nearest_of(wanted.query, &numbers.collect::<Vec<u32>>(), most)?;
    *compared += known;
    near.sort_unstable();
    let mut at = 0;
    slots.retain(|(slot, _)| {
        at += 1;
        at > known
            || near
                .binary_search_by_key(slot, |near| u64::from(*near))
                .is_ok()
    });
    Ok(slots)
}

/// All slots of what a filter lets through.
fn all_of(
    snapshot: &Snapshot,
    (wanted, sets): (&Wanted<'_>, &HashMap<SegmentId, BitSet>),
    room: &mut Room<'_>,
) -> Result<Vec<(u64, DocAddress)>> {
    let name = slots_column(wanted.number, wanted.elements);
    let found: usize = sets.values().map(BitSet::len).sum();
    room.take(found * size_of::<(u64, DocAddress)>())?;
    let mut out = Vec::with_capacity(found);
    for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let column = snapshot.columns.column(reader, &name).or_problem()?;
        let (Some(set), Some(column)) = (sets.get(&reader.segment_id()), column) else {
            continue;
        };
        let mut at = 0;
        while let Some(bucket) = set.first_non_empty_bucket(at) {
            for doc in set.tinyset(bucket) {
                let doc = bucket * 64 + doc;
                if let Some(slot) = column.first(doc).and_then(|n| u64::try_from(n).ok()) {
                    out.push((slot, DocAddress::new(segment, doc)));
                }
            }
            steps(64)?;
            at = bucket + 1;
        }
    }
    Ok(out)
}

/// All slots that are wanted.
pub(crate) fn all(
    snapshot: &Snapshot,
    wanted: &Wanted<'_>,
    room: &mut Room<'_>,
) -> Result<Vec<(u64, DocAddress)>> {
    let mut out = Vec::new();
    crate::find::each_match(
        snapshot,
        (wanted.filter, None),
        room,
        |reader, segment, docs, room| {
            room.take(docs.len() * size_of::<(u64, DocAddress)>() * 2)?;
            let name = slots_column(wanted.number, wanted.elements);
            let column = snapshot.columns.column(reader, &name).or_problem()?;
            let Some(column) = column else { return Ok(()) };
            for doc in docs {
                steps(1)?;
                if let Some(slot) = column.first(*doc).and_then(|n| u64::try_from(n).ok()) {
                    out.push((slot, DocAddress::new(segment, *doc)));
                }
            }
            Ok(())
        },
    )?;
    Ok(out)
}
