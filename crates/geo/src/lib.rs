//! Shapes on the plane and on the sphere: read from BSON, compared with each other, measured, and covered with cells.
//!
//! * [`Geometry`]: what a document holds, a legacy pair or GeoJSON (`geojson`, `polygon`, `point`).
//! * [`Region`]: what `$geoWithin` and `$geoIntersects` ask for; `relation` decides, `flat` on the plane.
//! * [`Near`]: where `$near` and `$nearSphere` look from, and how far.
//! * [`sphere`], [`grid`]: the cells of the indexes `2dsphere` and `2d`. [`Cells`] is what both know of a cell.
//!
//! A cell is a range of 64-bit numbers, and the cells within it are ranges within. An index holds the numbers of the cells
//! that cover a shape; a query reads the ranges of the cells that cover its region.
//!
//! Invariant: pure. A covering misses no point of its shape, with a margin ([`sphere::MARGIN`]) that is wider than what a
//! test still takes for touching ([`TOUCH`]). Whatever the bytes are, the answer is a shape or an error.
//! The geometry of the sphere is Google's S2 ([decision](../../../docs/decisions/2026-11-24-geospatial.md)).

mod cells;
mod flat;
mod geojson;
mod geometry;
pub mod grid;
mod near;
mod point;
mod polygon;
mod region;
mod relation;
pub mod sphere;

pub use cells::Cells;
pub use geometry::Geometry;
pub use grid::Grid;
pub use near::{Metric, Near};
pub use point::{Location, Point};
pub use region::{Predicate, Region};

/// MongoDB's radius of the earth, in metres.
pub const EARTH_RADIUS_METRES: f64 = 6_378_100.0;

/// Shapes nearer than this touch, in radians: about the width of S2's smallest cell, by which MongoDB
/// decides.
pub const TOUCH: f64 = 1e-9;
