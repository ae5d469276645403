//! The cells of an index `2d`: a square of the plane, halved again and again in both directions.
//!
//! ```text
//! place = x and y of 32 bits each, bit by bit: x31 y31 x30 y30 … x0 y0; of each the first `bits` are kept
//! key   = place with its highest bit turned, as a signed number: the order of keys is that of places
//! ```

use crate::cells::Cells;
use crate::flat::Rectangle;
use crate::point::Point;
use crate::region::Region;
use bson::{Doc, Val};
use errors::{Fallible, bail};
use s2rst::{r1, s1, s2};

/// The most ranges that a query reads, about.
const QUERY_CELLS: usize = 64;

/// The square that an index covers, and how finely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    pub min: f64,
    pub max: f64,
    /// How often the square is halved.
    pub bits: u32,
}

impl Eq for Grid {}

/// A square of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Square {
    place: u64,
    level: u32,
}

impl Square {
    /// The places in it.
    fn span(self) -> (u64, u64) {
        let rest = match self.level {
            0 => u64::MAX,
            l => u64::MAX.checked_shr(2 * l).unwrap_or(0),
        };
        (self.place & !rest, self.place | rest)
    }
}

/// The bits of a number, each followed by room for another.
fn spread(v: u32) -> u64 {
    let mut x = u64::from(v);
    for (shift, mask) in [
        (16, 0x0000_FFFF_0000_FFFF),
        (8, 0x00FF_00FF_00FF_00FF),
        (4, 0x0F0F_0F0F_0F0F_0F0F),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        x = (x | (x << shift)) & mask;
    }
    x
}

/// Every other bit of a number.
fn gather(v: u64) -> u32 {
    let mut x = v & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0F0F_0F0F_0F0F_0F0F),
        (4, 0x00FF_00FF_00FF_00FF),
        (8, 0x0000_FFFF_0000_FFFF),
        (16, 0x0000_0000_FFFF_FFFF),
    ] {
        x = (x | (x >> shift)) & mask;
    }
    x as u32
}

fn key(place: u64) -> i64 {
    (place ^ (1 << 63)) as i64
}

impl Grid {
    pub const DEFAULT: Grid = Grid {
        min: -180.0,
        max: 180.0,
        bits: 26,
    };

    /// The options of an index: `bits`, `min`, `max`.
    pub fn of_spec(spec: Doc<'_>) -> Fallible<Grid> {
        let number = |name: &str, default: f64| match spec.get(name) {
            None => Ok(default),
            Some(v) => match v.to_f64().filter(|n| n.is_finite()) {
                Some(n) => Ok(n),
                None => bail!(BadValue, "{name} must be a finite number"),
            },
        };
        let bits = number("bits", f64::from(Grid::DEFAULT.bits))?;
        let (min, max) = (
            number("min", Grid::DEFAULT.min)?,
            number("max", Grid::DEFAULT.max)?,
        );
        if !(1.0..=32.0).contains(&bits) {
            bail!(
                InvalidOptions,
                "bits for hash must be > 0 and <= 32, but {bits} bits were specified"
            );
        }
        if min >= max || !(max - min).is_finite() {
            bail!(
                InvalidOptions,
                "region for hash must be valid and have positive area, but [{min}, {max}] was specified"
            );
        }
        Ok(Grid {
            min,
            max,
            bits: bits as u32,
        })
    }

    pub fn holds(&self, p: Point) -> bool {
        let within = |v: f64| v >= self.min && v <= self.max;
        within(p.x) && within(p.y)
    }

    fn place(&self, p: Point) -> u64 {
        let part = |v: f64| ((v - self.min) / (self.max - self.min) * 4_294_967_296.0) as u32;
        let place = (spread(part(p.x)) << 1) | spread(part(p.y));
        place & !(u64::MAX.checked_shr(2 * self.bits).unwrap_or(0))
    }

    /// The key of what a document holds, a pair of numbers.
    pub fn key(&self, v: Val<'_>) -> Fallible<i64> {
        let Some(d) = v.as_container() else {
            bail!(
                16804,
                "location object expected, location array not in correct format"
            );
        };
        let mut values = d.values();
        let (Some(x), Some(y)) = (values.next(), values.next()) else {
            match d.is_empty() {
                true => bail!(13067, "geo field is empty"),
                false => bail!(13068, "geo field only has 1 element"),
            }
        };
        let (true, true, Some(x), Some(y)) = (x.is_number(), y.is_number(), x.to_f64(), y.to_f64())
        else {
            bail!(
                13026,
                "geo values must be 'legacy coordinate pairs' for 2d indexes"
            );
        };
        let p = Point { x, y };
        if !self.holds(p) {
            bail!(
                13027,
                "point not in interval of [ {}, {} ]",
                self.min,
                self.max
            );
        }
        Ok(key(self.place(p)))
    }

    fn root(&self) -> Square {
        Square { place: 0, level: 0 }
    }

    fn parts(&self, s: Square) -> Vec<Square> {
        if s.level >= self.bits {
            return Vec::new();
        }
        let (first, _) = s.span();
        let shift = 62 - 2 * s.level;
        (0..4u64)
            .map(|n| Square {
                place: first | (n << shift),
                level: s.level + 1,
            })
            .collect()
    }

    /// What of the plane lies in a square, a little more for what rounding does to a point.
    fn rectangle(&self, s: Square) -> Rectangle {
        let (first, last) = s.span();
        let size = self.max - self.min;
        let edge = |part: u64| self.min + part as f64 / 4_294_967_296.0 * size;
        let low = |v: u64| edge(u64::from(gather(v)));
        let high = |v: u64| edge(u64::from(gather(v)) + 1);
        let slack = size * 1e-12;
        Rectangle {
            min: Point {
                x: low(first >> 1) - slack,
                y: low(first) - slack,
            },
            max: Point {
                x: high(last >> 1) + slack,
                y: high(last) + slack,
            },
        }
    }

    /// The keys of what may lie in a region: ranges, ends included, ascending and apart from each other. `None`: the region
    /// is none of the plane.
    pub fn ranges(&self, region: &Region) -> Option<Vec<(i64, i64)>> {
        if !has_plane(region) {
            return None;
        }
        let mut open = vec![self.root()];
        let mut done: Vec<Square> = Vec::new();
        // The largest come first, so that what room there is goes to all parts of the region.
        while !open.is_empty() && open.len() + done.len() <= QUERY_CELLS {
            let mut next = Vec::new();
            for s in open {
                let parts = self.parts(s);
                if parts.is_empty() {
                    done.push(s);
                }
                for part in parts {
                    match relation(region, &self.rectangle(part)) {
                        Relation::Apart => {}
                        Relation::Inside => done.push(part),
                        Relation::Partly => next.push(part),
                    }
                }
            }
            open = next;
        }
        done.extend(open);
        let mut spans: Vec<(u64, u64)> = done.into_iter().map(Square::span).collect();
        spans.sort_unstable();
        let mut out: Vec<(i64, i64)> = Vec::with_capacity(spans.len());
        for (low, high) in spans.into_iter().map(|(low, high)| (key(low), key(high))) {
            match out.last_mut() {
                Some((_, last)) if low <= last.saturating_add(1) => *last = (*last).max(high),
                _ => out.push((low, high)),
            }
        }
        Some(out)
    }
}

enum Relation {
    Apart,
    Partly,
    Inside,
}

fn has_plane(region: &Region) -> bool {
    !matches!(region, Region::Geometry(_))
}

/// How a rectangle lies to a region. Partly is never wrong.
fn relation(region: &Region, r: &Rectangle) -> Relation {
    let (apart, inside) = match region {
        Region::Box(b) => (!b.meets(r), b.encloses(r)),
        Region::Circle { center, radius } => {
            let (near, far) = r.distances(*center);
            (near > *radius, far <= *radius)
        }
        Region::Polygon(o) => match !o.bounds().meets(r) {
            true => (true, false),
            false if o.edge_meets(r) => (false, false),
            // No edge goes through it: it is all on one side.
            false => (!o.contains(r.min), o.contains(r.min)),
        },
        Region::Cap { center, radius, .. } => (
            on_sphere(*center, r).0 > radius + crate::sphere::MARGIN,
            false,
        ),
        Region::Geometry(_) => (false, false),
    };
    match (apart, inside) {
        (true, _) => Relation::Apart,
        (_, true) => Relation::Inside,
        _ => Relation::Partly,
    }
}

/// The least and the greatest angle between a point and what of a rectangle is on the sphere.
fn on_sphere(from: s2::Point, r: &Rectangle) -> (f64, f64) {
    let radians = |v: f64, most: f64| v.clamp(-most, most).to_radians();
    if r.min.x > 180.0 || r.max.x < -180.0 || r.min.y > 90.0 || r.max.y < -90.0 {
        return (f64::INFINITY, f64::INFINITY);
    }
    let lng = match r.max.x - r.min.x >= 360.0 {
        true => s1::Interval::full(),
        false => s1::Interval::new(radians(r.min.x, 180.0), radians(r.max.x, 180.0)),
    };
    let lat = r1::Interval::new(radians(r.min.y, 90.0), radians(r.max.y, 90.0));
    let rect = s2::Rect::new(lat, lng);
    let to = |p: s2::Point| {
        rect.get_distance_to_latlng(s2::LatLng::from_point(p))
            .radians()
    };
    (
        (to(from) - 1e-9).max(0.0),
        std::f64::consts::PI - to(-from) + 1e-9,
    )
}

/// The grid, measured from a point: on the plane in its units, or on the sphere in radians.
#[derive(Clone, Copy, Debug)]
pub struct GridFromPoint {
    pub grid: Grid,
    pub flat: Point,
    /// Where distances are those on the sphere.
    pub sphere: Option<s2::Point>,
}

impl Cells for GridFromPoint {
    type Cell = Square;

    fn roots(&self) -> Vec<Square> {
        vec![self.grid.root()]
    }

    fn children(&self, cell: Square) -> Vec<Square> {
        self.grid.parts(cell)
    }

    fn range(&self, cell: Square) -> (i64, i64) {
        let (low, high) = cell.span();
        (key(low), key(high))
    }

    fn own(&self, _: Square) -> Option<i64> {
        None
    }

    fn of_key(&self, number: i64) -> Option<Square> {
        Some(Square {
            place: (number as u64) ^ (1 << 63),
            level: self.grid.bits,
        })
    }

    fn distances(&self, cell: Square) -> (f64, f64) {
        let r = self.grid.rectangle(cell);
        match self.sphere {
            Some(p) => on_sphere(p, &r),
            None => {
                let (near, far) = r.distances(self.flat);
                // Rounding.
                (near * (1.0 - 1e-12), far * (1.0 + 1e-12))
            }
        }
    }
}
