//! The graph of one vector field: how it grows behind the commits, and its file.
//!
//! ```text
//! graph-N.links    slots u64 LE | row u32 LE | edges u32 LE | rows, u32 LE each | crc32c LE of all before
//! ```
//! The file holds links only; what the graph keeps of vectors is read from these. It can be lost: the graph grows anew.
//!
//! Invariants:
//! - A graph has slots of commits only, so the file never has vectors that a kill has undone.
//! - A search waits for links to be written at the most, not for them to be found.
//! - The same vectors make the same graph, however many threads help.

use crate::definition::OrProblem;
use crate::graph::{Bounds, Graph, List, Near, SlotSet, Walked};
use crate::near::PLACE_BYTES;
use crate::side_by_side::Helpers;
use crate::slots::SlotReader;
use crate::vector_definition::VectorField;
use encryption::{DataFile, DataFiles};
use errors::Result;
use parking_lot::{Mutex, RwLock};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Fewer vectors are compared one by one.
const LEAST_SLOTS: u64 = 2_000;

/// Slots between two questions for memory.
const SLOTS_A_TURN: usize = 1024;

const HEADER_BYTES: usize = 16;

/// How far a graph has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// It has all vectors of the last commit, or there are too few for a graph.
    Whole,
    More,
    /// There is no memory for more of them.
    NoRoom,
}

/// What a walk has found.
pub(crate) struct Walk {
    /// Slots, the nearest first; `None`: it was to end before.
    pub near: Option<Vec<u32>>,
    pub compared: usize,
    /// The slots that the graph had.
    pub slots: usize,
}

pub(crate) struct FieldGraph {
    path: PathBuf,
    data: DataFiles,
    field: VectorField,
    graph: RwLock<Graph>,
    /// `None`: it was not looked for yet. How many slots the file has.
    saved: Mutex<Option<usize>>,
}

impl FieldGraph {
    /// An empty one of the N-th vector field.
    pub fn new(dir: &Path, data: &DataFiles, n: usize, field: &VectorField) -> FieldGraph {
        FieldGraph {
            path: dir.join(format!("graph-{n}.links")),
            data: data.clone(),
            field: field.clone(),
            graph: RwLock::new(Graph::new(field)),
            saved: Mutex::new(None),
        }
    }

    pub fn slots(&self) -> u64 {
        self.graph.read().len() as u64
    }

    /// How many of so many vectors are to be in the graph.
    pub fn wanted(&self, committed: u64) -> u64 {
        match self.field.flat || committed < LEAST_SLOTS {
            true => 0,
            false => committed.min(u64::from(u32::MAX)),
        }
    }

    /// The bytes of memory that so many slots take, with the lists of where they are.
    fn bytes_of(&self, slots: usize) -> usize {
        let bytes = slots * (Graph::slot_bytes(&self.field) + PLACE_BYTES);
        // Buffers grow by an eighth.
        bytes + bytes / 8
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes_of(self.graph.read().len())
    }

    /// Walks to the slots that are nearest to a query. `wanted`: whether one is; where few are, `among` has them.
    pub fn walk(
        &self,
        query: &[f32],
        bounds: Bounds,
        (wanted, among): (impl FnMut(u32) -> bool, Option<&SlotSet>),
    ) -> Result<Walk> {
        let graph = self.graph.read();
        let probe = graph.probe(query);
        let Walked {
            found, compared, ..
        } = match among {
            None => graph.walk(&probe, bounds, wanted)?,
            Some(among) => graph.walk_among(&probe, bounds, among)?,
        };
        Ok(Walk {
            near: found.map(slots_of),
            compared,
            slots: graph.len(),
        })
    }

    /// The `most` nearest by their codes, in no order, of those of some slots that the graph has.
    pub fn nearest_of(&self, query: &[f32], slots: &SlotSet, most: usize) -> Result<Walk> {
        let graph = self.graph.read();
        let known = slots.below(graph.len());
        let (near, compared) = graph.nearest_of(&graph.probe(query), known, most)?;
        Ok(Walk {
            near: Some(slots_of(near)),
            compared,
            slots: graph.len(),
        })
    }

    /// Takes in vectors of the file, of which so many are committed.
    pub fn grow(
        &self,
        (file, committed): (&Arc<DataFile>, u64),
        until: Instant,
        holds: &mut dyn FnMut(usize) -> bool,
        helpers: Helpers<'_>,
    ) -> Result<Grown> {
        let committed = self.wanted(committed) as usize;
        if committed == 0 {
            return Ok(Grown::Whole);
        }
        if self.saved.lock().is_none() {
            let saved = self.load(file, committed, holds)?;
            *self.saved.lock() = Some(saved);
        }
        let mut reader = SlotReader::new(file.clone(), self.field.dimensions, 64);
        loop {
            let (next, side_by_side) = {
                let graph = self.graph.read();
                (graph.len(), graph.side_by_side())
            };
            if next >= committed {
                return Ok(Grown::Whole);
            }
            if Instant::now() > until {
                return Ok(Grown::More);
            }
            let end = (next + side_by_side).min(committed);
            if !holds(self.bytes_of(end.next_multiple_of(SLOTS_A_TURN))) {
                return Ok(Grown::NoRoom);
            }
            let vectors = (next..end).map(|slot| reader.numbers(slot as u64));
            self.put(&vectors.collect::<Result<Vec<_>>>()?, helpers)?;
        }
    }

    /// Puts in the next slots. The long parts are done beside searches.
    fn put(&self, vectors: &[Vec<f32>], helpers: Helpers<'_>) -> Result<()> {
        self.graph.write().put_vectors(vectors);
        let (own, others) = {
            let graph = self.graph.read();
            let first = graph.len();
            let own = helpers.each(vectors.len(), |n| {
                let vector = vectors.get(n).map_or(&[][..], Vec::as_slice);
                graph.own_list((first + n) as u32, vector)
            })?;
            let targets = Graph::targets(&own);
            let others = helpers.each(targets.len(), |n| {
                let list = targets.get(n).map(|more| graph.list_with(more, &own));
                Ok(list)
            })?;
            let others: Vec<List> = others.into_iter().flatten().collect();
            (own, others)
        };
        self.graph.write().put_lists(&own, &others);
        Ok(())
    }

    /// Writes it where it has grown by a quarter since then.
    pub fn save(&self) -> Result<()> {
        let mut saved = self.saved.lock();
        let (graph, before) = (self.graph.read(), saved.unwrap_or(0));
        let more = graph.len().saturating_sub(before);
        if graph.len() == 0 || more < (before / 4).max(SLOTS_A_TURN) {
            return Ok(());
        }
        let part = self.path.with_extension("tmp");
        let file = self.data.create(&part).or_problem()?;
        let mut to = Summed {
            file: &file,
            at: 0,
            sum: 0,
        };
        to.write(&(graph.len() as u64).to_le_bytes())?;
        to.write(&(graph.row() as u32).to_le_bytes())?;
        to.write(&(self.field.edges as u32).to_le_bytes())?;
        for rows in graph.links().chunks(1 << 18) {
            errors::operation::ask()?;
            let bytes: Vec<u8> = rows.iter().flat_map(|n| n.to_le_bytes()).collect();
            to.write(&bytes)?;
        }
        let sum = to.sum.to_le_bytes();
        to.write(&sum)?;
        file.finish(to.at).or_problem()?;
        std::fs::rename(&part, &self.path).or_problem()?;
        *saved = Some(graph.len());
        Ok(())
    }

    /// Takes the links of the file, and the vectors of its slots. Gives how many there are.
    fn load(
        &self,
        file: &Arc<DataFile>,
        committed: usize,
        holds: &mut dyn FnMut(usize) -> bool,
    ) -> Result<usize> {
        let row = self.graph.read().row();
        let Ok(from) = self.data.open(&self.path) else {
            return Ok(0);
        };
        let Some(links) = read(&from, row, self.field.edges, committed)? else {
            return Ok(0);
        };
        let slots = links.len() / row;
        if !holds(self.bytes_of(slots)) {
            return Ok(0);
        }
        let mut graph = Graph::new(&self.field);
        let mut reader = SlotReader::new(file.clone(), self.field.dimensions, usize::MAX);
        for slot in 0..slots {
            errors::operation::steps(1 + self.field.dimensions / 64)?;
            graph.put_code(&reader.numbers(slot as u64)?);
        }
        if !graph.put_links(links) {
            return Ok(0);
        }
        *self.graph.write() = graph;
        Ok(slots)
    }
}

fn slots_of(near: Vec<Near>) -> Vec<u32> {
    near.into_iter().map(|n| n.slot).collect()
}

/// The links of a file; `None`: there is none that is whole and of these commits.
fn read(file: &DataFile, row: usize, edges: usize, committed: usize) -> Result<Option<Vec<u32>>> {
    let size = file.bytes().or_problem()?;
    let mut from = BufReader::with_capacity(1 << 20, file.reader());
    let mut header = [0; HEADER_BYTES];
    if from.read_exact(&mut header).is_err() {
        return Ok(None);
    }
    let number = |at: usize| {
        let bytes = header.get(at..at + 4).and_then(|b| b.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default()) as usize
    };
    let (slots, high) = (number(0), number(4));
    let fits = high == 0 && slots <= committed && number(8) == row && number(12) == edges;
    let bytes = slots as u64 * row as u64 * 4;
    if !fits || size != HEADER_BYTES as u64 + bytes + 4 {
        return Ok(None);
    }
    let mut sum = crc32c::crc32c(&header);
    let mut links = Vec::with_capacity(slots * row);
    let mut block = vec![0; 1 << 18];
    while links.len() < slots * row {
        errors::operation::ask()?;
        let left = (slots * row - links.len()) * 4;
        let length = left.min(block.len());
        let Some(part) = block.get_mut(..length) else {
            return Ok(None);
        };
        from.read_exact(part).or_problem()?;
        sum = crc32c::crc32c_append(sum, part);
        let numbers = part.chunks_exact(4);
        links.extend(numbers.filter_map(|c| Some(u32::from_le_bytes(c.try_into().ok()?))));
    }
    let mut said = [0; 4];
    from.read_exact(&mut said).or_problem()?;
    Ok((said == sum.to_le_bytes()).then_some(links))
}

/// A file and the checksum of what was written to it.
struct Summed<'f> {
    file: &'f DataFile,
    at: u64,
    sum: u32,
}

impl Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        self.file.write_all_at(bytes, self.at).or_problem()?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
