//! Whether a document's shape lies within a region, or meets it.

use crate::TOUCH;
use crate::geometry::{Area, Geometry, GeometryPart, Line};
use crate::point::Point;
use crate::region::{Predicate, Region};
use s2rst::s2;
use s2rst::s2::boolean_operation::{OpType, Options, PolygonModel, S2BooleanOperation};
use s2rst::s2::closest_edge_query::PointTarget;
use s2rst::s2::crossing_edge_query::CrossingType;
use s2rst::s2::lax_polygon::LaxPolygon;
use s2rst::s2::shape_index::ShapeIndex;
use s2rst::s2::shape_util::visit_crossing_edge_pairs_ab;
use std::f64::consts::PI;
use std::ops::ControlFlow;

impl Region {
    /// Whether what a document holds passes.
    pub fn matches(&self, predicate: Predicate, g: &Geometry) -> bool {
        if g.is_strict() {
            return false;
        }
        match predicate {
            Predicate::Within => self.contains(g),
            Predicate::Intersects => {
                g.is_on_sphere()
                    && match self {
                        Region::Geometry(r) => {
                            r.parts.iter().any(|r| g.parts.iter().any(|p| meet(r, p)))
                        }
                        Region::Cap { center, radius, .. } => {
                            g.parts.iter().any(|p| p.angle(*center) <= radius + TOUCH)
                        }
                        _ => false,
                    }
            }
        }
    }

    fn contains(&self, g: &Geometry) -> bool {
        let flat = |inside: &dyn Fn(Point) -> bool| g.as_point().is_some_and(|p| inside(p.flat));
        match self {
            Region::Box(r) => flat(&|p| r.contains(p)),
            Region::Polygon(o) => flat(&|p| o.contains(p)),
            Region::Circle { center, radius } => flat(&|p| center.distance(p) <= *radius),
            Region::Cap { center, radius, .. } => {
                g.is_on_sphere() && g.parts.iter().all(|p| in_cap(*center, *radius, p))
            }
            Region::Geometry(r) => {
                let areas = || {
                    r.parts.iter().filter_map(|p| match p {
                        GeometryPart::Area(a) => Some(a),
                        _ => None,
                    })
                };
                g.is_on_sphere() && g.parts.iter().all(|p| areas().any(|a| holds(a, p)))
            }
        }
    }
}

/// A part lies in a circle when it keeps away from the rest of the sphere.
fn in_cap(center: s2::Point, radius: f64, p: &GeometryPart) -> bool {
    if radius >= PI {
        return true;
    }
    match p {
        GeometryPart::Point(_) => p.angle(center) <= radius + TOUCH,
        _ => p.angle(-center) >= PI - radius,
    }
}

/// Whether an area holds a part, edges included.
fn holds(a: &Area, p: &GeometryPart) -> bool {
    match p {
        GeometryPart::Point(p) => p.sphere.is_some_and(|p| covers_point(a, p)),
        GeometryPart::Line(l) => covers_line(a, l),
        GeometryPart::Area(b) => a.polygon.contains_polygon(&b.polygon),
    }
}

fn covers_point(a: &Area, p: s2::Point) -> bool {
    crate::geometry::within(a.polygon.shape_index(), &PointTarget::new(p), TOUCH)
}

/// The same area in an index that can be worked on.
fn index_of(a: &Area) -> ShapeIndex {
    let mut index = ShapeIndex::new();
    index.add(Box::new(LaxPolygon::from_polygon_ref(&a.polygon)));
    index.build();
    index
}

fn covers_line(a: &Area, l: &Line) -> bool {
    if !l.line.iter().all(|v| covers_point(a, *v)) {
        return false;
    }
    let mut line = ShapeIndex::new();
    line.add(Box::new(l.line.clone()));
    line.build();
    let options = Options {
        polygon_model: PolygonModel::Closed,
        ..Options::default()
    };
    S2BooleanOperation::is_empty(OpType::Difference, &mut line, &mut index_of(a), options)
}

fn meet(a: &GeometryPart, b: &GeometryPart) -> bool {
    match (a, b) {
        (GeometryPart::Point(p), other) | (other, GeometryPart::Point(p)) => {
            p.sphere.is_some_and(|p| other.touches(p))
        }
        (GeometryPart::Area(a), GeometryPart::Area(b)) => a.polygon.intersects_polygon(&b.polygon),
        (GeometryPart::Line(l), GeometryPart::Line(m)) => edges_meet(l.index(), m.index()),
        (GeometryPart::Line(l), GeometryPart::Area(a))
        | (GeometryPart::Area(a), GeometryPart::Line(l)) => {
            let first = l.line.first();
            first.is_some_and(|v| covers_point(a, *v))
                || edges_meet(l.index(), a.polygon.shape_index())
        }
    }
}

fn edges_meet(a: &ShapeIndex, b: &ShapeIndex) -> bool {
    visit_crossing_edge_pairs_ab(a, b, CrossingType::All, &mut |_, _, _| {
        ControlFlow::Break(())
    })
    .is_break()
}
