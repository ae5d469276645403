//! Which vectors a search compares: all that are wanted, or those that a graph leads to.
//!
//! Invariant: what a graph does not have yet is compared in any case, so a search finds what was committed.

use crate::codes::Codes;
use crate::compiler::Compiler;
use crate::definition::OrProblem;
use crate::facet::matching;
use crate::field_graph::{FieldGraph, Walk};
use crate::files::{IndexSnapshot, slots_column};
use crate::filter::only_one;
use crate::graph::{Bounds, SlotSet};
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

/// The most bytes of a slot in [`PlaceList`].
pub(crate) const PLACE_BYTES: usize = 3 * size_of::<u32>();

/// No slot, or no document.
const NONE: u32 = u32::MAX;

/// Where one in so many slots is wanted, a walk compares only these. Of more it passes few others, and among fewer they
/// do not lead to each other.
const WALKED_AMONG: std::ops::RangeInclusive<usize> = 3..=32;

/// About how many vectors such a walk compares for each that it gives.
const COMPARED_AMONG: usize = 32;

/// As long as it reads links for each that it gives, it could compare codes of about so many bytes.
const LINKS_EACH: usize = 24 << 10;

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

/// The slots of a segment's documents.
pub(crate) struct Places {
    /// By document.
    slots: Vec<u32>,
    first: u32,
    /// By slot, from the first on.
    docs: Docs,
    count: usize,
}

enum Docs {
    All(Vec<DocId>),
    /// Where most slots between the first and the last are of other segments: those that are there, in their order.
    Some(Vec<(u32, DocId)>),
}

#[derive(Clone)]
pub(crate) struct PlaceList(Arc<Places>);

impl PlaceList {
    /// All of them, also of documents that are deleted.
    pub fn of(segment: &SegmentReader, column: &str) -> Result<PlaceList> {
        let column = segment
            .fast_fields()
            .column_opt::<i64>(column)
            .or_problem()?;
        let mut slots = Vec::new();
        let mut list = Vec::new();
        if let Some(column) = column {
            slots = vec![NONE; segment.max_doc() as usize];
            for (doc, place) in (0..).zip(slots.iter_mut()) {
                steps(1)?;
                if let Some(slot) = column.first(doc).and_then(|n| u32::try_from(n).ok()) {
                    *place = slot;
                    list.push((slot, doc));
                }
            }
        }
        list.sort_unstable();
        Ok(PlaceList(Arc::new(Places::new(slots, list))))
    }

    fn doc(&self, slot: u32) -> Option<DocId> {
        let place = slot.checked_sub(self.0.first)? as usize;
        match &self.0.docs {
            Docs::All(docs) => docs.get(place).copied().filter(|doc| *doc != NONE),
            Docs::Some(list) => {
                let at = list.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
                list.get(at).map(|(_, doc)| *doc)
            }
        }
    }

    fn slot(&self, doc: DocId) -> Option<u32> {
        let slot = self.0.slots.get(doc as usize).copied();
        slot.filter(|slot| *slot != NONE)
    }
}

impl Places {
    /// `list`: the slots in their order.
    fn new(slots: Vec<u32>, list: Vec<(u32, DocId)>) -> Places {
        let count = list.len();
        let first = list.first().map_or(0, |(slot, _)| *slot);
        let range = list
            .last()
            .map_or(0, |(last, _)| (last - first) as usize + 1);
        let docs = match range <= count * 2 {
            true => {
                let mut docs = vec![NONE; range];
                for (slot, doc) in list {
                    if let Some(place) = docs.get_mut((slot - first) as usize) {
                        *place = doc;
                    }
                }
                Docs::All(docs)
            }
            false => Docs::Some(list),
        };
        Places {
            slots,
            first,
            docs,
            count,
        }
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

    /// Whether each of the first slots is wanted.
    fn have_all(&self, slots: usize) -> bool {
        let whole = |s: &Segment<'_>| s.alive.is_none() && s.set.is_none();
        self.0.iter().all(whole) && self.0.iter().map(|s| s.list.0.count).sum::<usize>() == slots
    }

    /// Those of the first slots that are wanted, and how many they are.
    fn wanted(&self, slots: usize) -> Result<(SlotSet, usize)> {
        let (mut all, mut count) = (SlotSet::empty(slots), 0);
        for segment in &self.0 {
            let mut insert = |doc| {
                if segment.alive.is_none_or(|a| a.is_alive(doc))
                    && let Some(slot) = segment.list.slot(doc)
                {
                    count += usize::from(all.insert(slot));
                }
            };
            let Some(set) = segment.set else {
                for doc in 0..segment.list.0.slots.len() as u32 {
                    steps(1)?;
                    insert(doc);
                }
                continue;
            };
            let mut at = 0;
            while let Some(bucket) = set.first_non_empty_bucket(at) {
                let docs = set.tinyset(bucket).into_iter();
                docs.for_each(|doc| insert(bucket * 64 + doc));
                steps(64)?;
                at = bucket + 1;
            }
        }
        Ok((all, count))
    }
}

/// What a filter lets through, by segment; `None`: there is no filter.
type Sets = Option<HashMap<SegmentId, BitSet>>;

/// What the filter lets through.
fn filtered(snapshot: &IndexSnapshot, wanted: &Wanted<'_>, room: &mut Room<'_>) -> Result<Sets> {
    let of = |filter| matching(snapshot, (Some(only_one(filter)), None), room, None);
    wanted.filter.map(of).transpose()
}

/// The slots to compare: those that a graph leads to, or that are nearest by their codes where to compare the codes of
/// all that are wanted is no more work; and those that the graph does not have. `compared` is told how many it has
/// compared by their codes.
pub(crate) fn candidates(
    snapshot: &IndexSnapshot,
    wanted: &Wanted<'_>,
    room: &mut Room<'_>,
    compared: &mut usize,
) -> Result<Vec<(u64, DocAddress)>> {
    let field = snapshot.definition.vectors.get(wanted.number);
    let graph = snapshot.graphs.get(wanted.number);
    let (Some(field), Some(graph)) = (field, graph.filter(|graph| graph.slots() > 0)) else {
        return all(snapshot, wanted, room);
    };
    let sets = filtered(snapshot, wanted, room)?;
    let segments = segments(snapshot, wanted, sets.as_ref())?;
    let slots = snapshot.slots.get(wanted.number).copied().unwrap_or(0);
    let slots = usize::try_from(slots).unwrap_or(usize::MAX);
    // Four sets of slots at the most.
    room.take(slots / 2)?;
    let of = Candidates {
        graph,
        segments: &segments,
        query: wanted.query,
        most: wanted.by_codes(field),
        slots,
        code_bytes: Codes::slot_bytes(field),
    };
    let found = of.found(sets.is_some(), wanted.to_read(field))?;
    *compared += found.compared;
    let mut near = found.near.unwrap_or_default();
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
    Ok(out)
}

/// What candidates are chosen from.
struct Candidates<'c> {
    graph: &'c FieldGraph,
    segments: &'c Segments<'c>,
    query: &'c [f32],
    /// How many are wanted.
    most: usize,
    /// How many slots there are.
    slots: usize,
    code_bytes: usize,
}

impl Candidates<'_> {
    /// `read`: how many of them are compared as they are.
    fn found(&self, filtered: bool, read: usize) -> Result<Walk> {
        let all = self.segments.have_all(self.slots);
        let walk = self.most.saturating_mul(COMPARED_EACH);
        if !filtered && walk < self.slots {
            let bounds = Bounds {
                most: self.most,
                limit: self.slots,
            };
            let wanted = |slot| all || self.segments.at(slot).is_some();
            let walked = self.graph.walk(self.query, bounds, (wanted, None))?;
            if walked.near.is_some() {
                return Ok(walked);
            }
        }
        let (among, count) = self.segments.wanted(self.slots)?;
        let read = self.most.min(read);
        if count <= read {
            let slots = self.graph.slots() as usize;
            return Ok(Walk {
                near: Some(among.below(slots).collect()),
                compared: 0,
                slots,
            });
        }
        let mut before = 0;
        // Of what a walk meets as many are wanted as of all.
        let every = self.slots / count;
        let is_among = WALKED_AMONG.contains(&every);
        let (most, each) = match is_among {
            // The fewer are wanted, the less do they lead to each other.
            true => (
                self.most.saturating_mul(WALKED_AMONG.end() + every) / WALKED_AMONG.end(),
                COMPARED_AMONG + LINKS_EACH / self.code_bytes,
            ),
            false => (self.most, COMPARED_EACH.saturating_mul(every.max(1))),
        };
        if filtered && most.saturating_mul(each) < count {
            let bounds = Bounds { most, limit: count };
            let wanted = |slot| among.has(slot);
            let few = Some(&among).filter(|_| is_among);
            let walked = self.graph.walk(self.query, bounds, (wanted, few))?;
            if walked.near.is_some() {
                return Ok(walked);
            }
            before = walked.compared;
        }
        let mut walked = self.graph.nearest_of(self.query, &among, read)?;
        walked.compared += before;
        Ok(walked)
    }
}

fn segments<'a>(
    snapshot: &'a IndexSnapshot,
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

/// All slots that are wanted.
pub(crate) fn all(
    snapshot: &IndexSnapshot,
    wanted: &Wanted<'_>,
    room: &mut Room<'_>,
) -> Result<Vec<(u64, DocAddress)>> {
    let mut out = Vec::new();
    let query = Compiler::new(snapshot, room).top(wanted.filter, None)?;
    crate::find::each_match(
        snapshot,
        query.as_ref(),
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
