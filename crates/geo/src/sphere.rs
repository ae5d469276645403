//! The cells of an index `2dsphere`: S2's, whose numbers are the index's keys.
//!
//! A point is in the index under its smallest cell, anything else under the cells of a covering. Of a query's covering the
//! ranges are read, which hold all smaller cells, and the larger cells that hold it, one by one.

use crate::cells::Cells;
use crate::geometry::{Geometry, GeometryPart, within};
use crate::region::{Region, cap};
use s2rst::s1::{Angle, ChordAngle};
use s2rst::s2::closest_edge_query::CellTarget;
use s2rst::s2::region_coverer::RegionCoverer;
use s2rst::s2::shape_index::ShapeIndex;
use s2rst::s2::shape_index_region::ShapeIndexRegion;
use s2rst::s2::{self, Cap, Cell, CellId, CellUnion, Level, Rect};
use std::cell::Cell as Flag;
use std::collections::BTreeSet;
use std::fmt;

/// By so much a covering is wider than its shape, in radians: more than what counts as touching it.
pub const MARGIN: f64 = 3e-9;
/// The most keys of a shape that is not made of points, and the smallest cells of a covering, as in MongoDB.
const MOST_KEYS: usize = 50;
const FINEST: Level = Level::new(23);
/// The cells of a query's covering. More fit its region better, and each is a range to be read.
const QUERY_CELLS: usize = 40;
/// A bound is less than a distance by more than either is wrong.
const SLACK: f64 = 1e-9;

/// Edges with a margin around them, as S2's coverer asks for regions.
///
/// The next test is announced first; if the answer is no, nothing is met any more, and the covering is
/// of no use.
struct Padded<'a> {
    index: &'a ShapeIndex,
    edges: usize,
    going: &'a dyn Fn(usize) -> bool,
    ended: Flag<bool>,
}

impl fmt::Debug for Padded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} edges", self.edges)
    }
}

impl<'a> Padded<'a> {
    fn new(index: &'a ShapeIndex, edges: usize, going: &'a dyn Fn(usize) -> bool) -> Padded<'a> {
        Padded {
            index,
            edges,
            going,
            ended: Flag::new(false),
        }
    }

    fn goes_on(&self) -> bool {
        if !self.ended.get() && !(self.going)(self.edges) {
            self.ended.set(true);
        }
        !self.ended.get()
    }
}

impl s2::Region for Padded<'_> {
    fn cap_bound(&self) -> Cap {
        let bound = ShapeIndexRegion::new(self.index).cap_bound();
        bound.expanded(Angle::from_radians(MARGIN))
    }

    fn rect_bound(&self) -> Rect {
        self.cap_bound().rect_bound()
    }

    fn cell_union_bound(&self) -> Vec<CellId> {
        self.cap_bound().cell_union_bound()
    }

    fn contains_cell(&self, cell: &Cell) -> bool {
        ShapeIndexRegion::new(self.index).contains_cell(cell)
    }

    fn intersects_cell(&self, cell: &Cell) -> bool {
        self.goes_on() && within(self.index, &CellTarget::new(*cell), MARGIN)
    }

    fn contains_point(&self, p: &s2::Point) -> bool {
        ShapeIndexRegion::new(self.index).contains_point(p)
    }
}

fn covering(region: &dyn s2::Region, most: usize, finest: Level) -> CellUnion {
    let coverer = RegionCoverer::new().max_level(finest).max_cells(most);
    coverer.covering(region)
}

/// The keys of a shape that lies on the sphere.
pub fn keys(g: &Geometry) -> Vec<i64> {
    keys_while(g, &|_| true)
}

/// The same while `going` holds, which is told how many edges may be measured before that is done;
/// after it has said no, what comes out is nothing that counts.
pub fn keys_while(g: &Geometry, going: &dyn Fn(usize) -> bool) -> Vec<i64> {
    let shapes = g.parts.iter().filter(|p| p.index().is_some()).count();
    let most = (MOST_KEYS / shapes.max(1)).max(4);
    let mut out = BTreeSet::new();
    for part in &g.parts {
        match (part, part.index()) {
            (GeometryPart::Point(p), _) => {
                if !going(0) {
                    return Vec::new();
                }
                out.extend(p.sphere.map(|p| CellId::from_point(&p).0));
            }
            (_, Some(index)) => {
                let padded = Padded::new(index, part.edges(), going);
                // The edges have been put in order for that.
                if !padded.goes_on() {
                    return Vec::new();
                }
                let cells = covering(&padded, most, FINEST);
                out.extend(cells.cell_ids().iter().map(|c| c.0));
            }
            _ => {}
        }
    }
    out.into_iter().map(|id| id as i64).collect()
}

/// The keys of what may lie in a region or meet it: ranges, ends included, ascending and apart from each other. `None`: the
/// region is none of the sphere.
pub fn ranges(region: &Region) -> Option<Vec<(i64, i64)>> {
    let mut cells: Vec<CellId> = Vec::new();
    match region {
        Region::Cap { center, radius, .. } => {
            let cap = cap(*center, radius + MARGIN);
            cells.extend(covering(&cap, QUERY_CELLS, Level::MAX).cell_ids());
        }
        Region::Geometry(g) => {
            let most = (QUERY_CELLS / g.parts.len().max(1)).max(8);
            for part in &g.parts {
                match (part, part.index()) {
                    (GeometryPart::Point(p), _) => {
                        let p = cap(p.sphere?, MARGIN);
                        cells.extend(covering(&p, 8, Level::MAX).cell_ids());
                    }
                    (_, Some(index)) => {
                        cells.extend(
                            covering(
                                &Padded::new(index, part.edges(), &|_| true),
                                most,
                                Level::MAX,
                            )
                            .cell_ids(),
                        );
                    }
                    _ => {}
                }
            }
        }
        _ => return None,
    }
    Some(ranges_of(&CellUnion::from_cell_ids(cells)))
}

fn ranges_of(cells: &CellUnion) -> Vec<(i64, i64)> {
    let mut ranges: BTreeSet<(i64, i64)> = BTreeSet::new();
    for cell in cells.cell_ids() {
        ranges.insert((cell.range_min().0 as i64, cell.range_max().0 as i64));
        let mut above = *cell;
        while !above.is_face() {
            above = above.parent();
            ranges.insert((above.0 as i64, above.0 as i64));
        }
    }
    // A larger cell's number may lie between two ranges, in none: it holds them and is not held by them.
    let mut out: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match out.last_mut() {
            Some((_, last)) if low <= last.saturating_add(1) => *last = (*last).max(high),
            _ => out.push((low, high)),
        }
    }
    out
}

/// The sphere's cells, measured from a point: distances in radians.
#[derive(Clone, Copy, Debug)]
pub struct FromPoint(pub s2::Point);

impl Cells for FromPoint {
    type Cell = CellId;

    fn roots(&self) -> Vec<CellId> {
        (0..6u64)
            .map(|face| CellId((face << 61) | (1 << 60)))
            .collect()
    }

    fn children(&self, cell: CellId) -> Vec<CellId> {
        match cell.is_leaf() {
            true => Vec::new(),
            false => cell.children().to_vec(),
        }
    }

    fn range(&self, cell: CellId) -> (i64, i64) {
        (cell.range_min().0 as i64, cell.range_max().0 as i64)
    }

    fn own(&self, cell: CellId) -> Option<i64> {
        (!cell.is_leaf()).then_some(cell.0 as i64)
    }

    fn of_key(&self, key: i64) -> Option<CellId> {
        let cell = CellId(key as u64);
        cell.is_valid().then_some(cell)
    }

    fn distances(&self, cell: CellId) -> (f64, f64) {
        let cell = Cell::from_cell_id(cell);
        let radians = |c: ChordAngle| c.to_angle().radians();
        let near = radians(cell.distance_to_point(self.0));
        let far = radians(cell.max_distance_to_point(self.0));
        // A chord near to a whole diameter tells its angle but roughly.
        let slack = SLACK + if far > 3.0 { 1e-7 } else { 0.0 };
        ((near - slack).max(0.0), far + slack)
    }
}
