//! Points: pairs of numbers on the plane, and the same on the sphere as longitude and latitude in degrees.

use bson::{Doc, Val};
use errors::{Fallible, bail, operation};
use s2rst::s2;
use std::time::Duration;

/// A point on the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// A point as it was written, and where that is on the sphere.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub flat: Point,
    /// `None`: its numbers are no longitude and latitude.
    pub sphere: Option<s2::Point>,
    /// It was written as GeoJSON.
    pub is_geojson: bool,
}

impl Point {
    pub(crate) fn distance(self, other: Point) -> f64 {
        let (dx, dy) = (self.x - other.x, self.y - other.y);
        (dx * dx + dy * dy).sqrt()
    }
}

/// The first two elements as numbers. `more`: others may follow.
pub(crate) fn flat(v: Val<'_>, more: bool) -> Fallible<Point> {
    let Some(d) = v.as_container() else {
        bail!(
            BadValue,
            "Point must be an array or object, instead got type {}",
            v.type_name()
        );
    };
    let mut values = d.values();
    let mut number = || {
        let v = values.next();
        match v.filter(|v| v.is_number()).and_then(|v| v.to_f64()) {
            Some(n) => Ok(n),
            None => bail!(
                BadValue,
                "Point must only contain numeric elements, instead got type {}",
                v.map_or("missing", |v| v.type_name())
            ),
        }
    };
    let (x, y) = (number()?, number()?);
    if !more && values.next().is_some() {
        bail!(BadValue, "Point must only contain two numeric elements");
    }
    if !x.is_finite() || !y.is_finite() {
        bail!(BadValue, "Point coordinates must be finite numbers");
    }
    Ok(Point { x, y })
}

fn on_sphere(p: Point) -> Option<s2::Point> {
    let valid = p.x.abs() <= 180.0 && p.y.abs() <= 90.0;
    valid.then(|| s2::LatLng::from_degrees(p.y, p.x).normalized().to_point())
}

/// A point on the sphere, from its longitude and latitude.
pub(crate) fn lng_lat(p: Point) -> Fallible<s2::Point> {
    match on_sphere(p) {
        Some(s) => Ok(s),
        None => bail!(
            BadValue,
            "Longitude/latitude is out of bounds, lng: {} lat: {}",
            p.x,
            p.y
        ),
    }
}

/// A position of GeoJSON; what follows longitude and latitude (a height) is no matter.
pub(crate) fn position(v: Val<'_>) -> Fallible<(Point, s2::Point)> {
    operation::step()?;
    if v.as_container().is_none() {
        bail!(
            BadValue,
            "GeoJSON coordinates must be an array of coordinates"
        );
    }
    let p = flat(v, true)?;
    Ok((p, lng_lat(p)?))
}

/// A list of positions.
pub(crate) fn positions(v: Option<Val<'_>>) -> Fallible<Vec<s2::Point>> {
    let Some(list) = v.and_then(|v| v.as_array()) else {
        bail!(
            BadValue,
            "GeoJSON coordinates must be an array of coordinates"
        );
    };
    list.values().map(|v| Ok(position(v)?.1)).collect()
}

/// Whether it is a pair of numbers, as `[1, 2]` and `{x: 1, y: 2}` are, and no GeoJSON.
pub(crate) fn is_legacy(v: Val<'_>) -> bool {
    let Some(d) = v.as_container() else {
        return false;
    };
    v.as_array().is_some() || d.first().is_some_and(|e| e.val.is_number())
}

/// A pair of numbers.
pub(crate) fn legacy(v: Val<'_>, more: bool) -> Fallible<Location> {
    let p = flat(v, more)?;
    Ok(Location {
        flat: p,
        sphere: on_sphere(p),
        is_geojson: false,
    })
}

/// The `coordinates` of a GeoJSON point.
pub(crate) fn geojson(d: Doc<'_>) -> Fallible<Location> {
    let Some(v) = d.get("coordinates") else {
        bail!(BadValue, "Point coordinates must be an array or object");
    };
    let (flat, sphere) = position(v)?;
    Ok(Location {
        flat,
        sphere: Some(sphere),
        is_geojson: true,
    })
}

impl Location {
    /// A point that is searched from: legacy or GeoJSON, whose type goes without saying.
    pub fn parse(v: Val<'_>) -> Fallible<Location> {
        let Some(d) = v.as_container() else {
            bail!(BadValue, "Point must be an array or object");
        };
        if is_legacy(v) {
            return legacy(v, false);
        }
        if d.get("type").is_some_and(|t| t.as_str() != Some("Point")) {
            bail!(
                BadValue,
                "invalid point: expected a GeoJSON point, got {}",
                bson::shell::doc(d)
            );
        }
        crate::geojson::crs(d, false)?;
        geojson(d)
    }
}

/// What the library takes about to check an edge and to put it into an index, on a slow machine: it cannot be ended.
const EDGE: Duration = Duration::from_nanos(500);

/// Before so many edges are given to the library: whether there is time for them.
pub(crate) fn ask_of_edges(edges: usize) -> Fallible<()> {
    operation::ask_ahead(EDGE.saturating_mul(u32::try_from(edges).unwrap_or(u32::MAX)))
}
