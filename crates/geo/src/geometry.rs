//! What a document holds: points, lines and areas.

use crate::geojson::{self, Kind};
use crate::point::{self, Location};
use bson::{Val, shell};
use errors::{Fallible, bail};
use s2rst::s1::ChordAngle;
use s2rst::s2::closest_edge_query::{ClosestEdgeQuery, PointTarget, Target};
use s2rst::s2::edge_distances::distance_from_segment;
use s2rst::s2::polyline::Polyline;
use s2rst::s2::shape_index::ShapeIndex;
use s2rst::s2::{self, Polygon};
use std::sync::OnceLock;

/// A shape. One that is multiple, or a collection, has several parts.
#[derive(Debug)]
pub struct Geometry {
    pub(crate) parts: Vec<GeometryPart>,
    pub(crate) kind: Kind,
    /// A polygon whose inside is what lies on the left of its ring.
    pub(crate) strict: bool,
}

#[derive(Debug)]
pub(crate) enum GeometryPart {
    Point(Location),
    Line(Line),
    Area(Area),
}

/// A line, and its edges by where they are, once these are asked for.
#[derive(Debug)]
pub(crate) struct Line {
    pub line: Polyline,
    index: OnceLock<ShapeIndex>,
}

#[derive(Debug)]
pub(crate) struct Area {
    pub polygon: Polygon,
}

impl Line {
    pub fn new(line: Polyline) -> Line {
        Line {
            line,
            index: OnceLock::new(),
        }
    }

    pub fn index(&self) -> &ShapeIndex {
        self.index.get_or_init(|| {
            let mut index = ShapeIndex::new();
            index.add(Box::new(self.line.clone()));
            index.build();
            index
        })
    }
}

impl Area {
    pub fn new(polygon: Polygon) -> Area {
        Area { polygon }
    }
}

/// Whether a place is no farther from a shape than so much, in radians; what the shape encloses is no distance away.
pub(crate) fn within(index: &ShapeIndex, target: &dyn Target, radians: f64) -> bool {
    let limit = ChordAngle::from_radians(radians);
    ClosestEdgeQuery::new(index).is_distance_less_or_equal(target, limit)
}

impl GeometryPart {
    pub(crate) fn index(&self) -> Option<&ShapeIndex> {
        match self {
            GeometryPart::Point(_) => None,
            GeometryPart::Line(l) => Some(l.index()),
            GeometryPart::Area(a) => Some(a.polygon.shape_index()),
        }
    }

    pub(crate) fn edges(&self) -> usize {
        match self {
            GeometryPart::Point(_) => 0,
            GeometryPart::Line(l) => l.line.num_vertices(),
            GeometryPart::Area(a) => a.polygon.num_vertices(),
        }
    }

    /// The angle between a point and the nearest place of the part. Infinite where the part is not on the sphere.
    pub(crate) fn angle(&self, from: s2::Point) -> f64 {
        match self {
            GeometryPart::Point(p) => match p.sphere {
                Some(p) => from.distance(p).radians(),
                None => f64::INFINITY,
            },
            GeometryPart::Line(l) => {
                let v = l.line.vertices_vec();
                let edges = v.iter().zip(v.iter().skip(1));
                edges
                    .map(|(a, b)| distance_from_segment(from, *a, *b).radians())
                    .fold(f64::INFINITY, f64::min)
            }
            GeometryPart::Area(a) => area_angle(&a.polygon, from),
        }
    }

    /// Whether the part touches a point.
    pub(crate) fn touches(&self, p: s2::Point) -> bool {
        match (self, self.index()) {
            (GeometryPart::Point(q), _) => q
                .sphere
                .is_some_and(|q| q.distance(p).radians() <= crate::TOUCH),
            (_, Some(index)) => within(index, &PointTarget::new(p), crate::TOUCH),
            _ => false,
        }
    }
}

/// Few edges are measured one by one: that is exact where a chord's square is not.
const FEW_EDGES: usize = 64;

fn area_angle(polygon: &Polygon, from: s2::Point) -> f64 {
    if s2::Region::contains_point(polygon, &from) {
        return 0.0;
    }
    if polygon.num_vertices() > FEW_EDGES {
        return polygon.get_distance_to_boundary(from).radians();
    }
    let edges = polygon.loops().iter().flat_map(|l| {
        let n = l.num_vertices();
        (0..n).map(move |i| (l.vertex(i), l.vertex((i + 1) % n)))
    });
    edges
        .map(|(a, b)| distance_from_segment(from, a, b).radians())
        .fold(f64::INFINITY, f64::min)
}

impl Geometry {
    pub(crate) fn new(parts: Vec<GeometryPart>, kind: Kind, strict: bool) -> Geometry {
        Geometry {
            parts,
            kind,
            strict,
        }
    }

    pub(crate) fn of_location(p: Location) -> Geometry {
        Geometry::new(vec![GeometryPart::Point(p)], Kind::Point, false)
    }

    /// What a document holds: a pair of numbers, which others may follow, or GeoJSON.
    pub fn of_stored(v: Val<'_>) -> Fallible<Geometry> {
        let Some(d) = v.as_container() else {
            bail!(
                BadValue,
                "geo element must be an array or object: {}",
                shell::val(v)
            );
        };
        if point::is_legacy(v) {
            return Ok(Geometry::of_location(point::legacy(v, true)?));
        }
        geojson::parse(d)
    }

    /// The only point that it is.
    pub fn as_point(&self) -> Option<&Location> {
        match (&self.parts[..], self.kind) {
            ([GeometryPart::Point(p)], Kind::Point) => Some(p),
            _ => None,
        }
    }

    /// A polygon of strict winding, which no index takes and no query finds.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Whether it lies on the sphere.
    pub fn is_on_sphere(&self) -> bool {
        self.parts
            .iter()
            .all(|p| !matches!(p, GeometryPart::Point(p) if p.sphere.is_none()))
    }

    pub(crate) fn has_area(&self) -> bool {
        self.parts
            .iter()
            .any(|p| matches!(p, GeometryPart::Area(_)))
    }
}
