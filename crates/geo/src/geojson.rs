//! GeoJSON: its seven types, and the coordinate reference systems that MongoDB knows.

use crate::geometry::{Geometry, GeometryPart, Line};
use crate::{point, polygon};
use bson::{Doc, Val, shell, tag};
use errors::{Fallible, bail};
use s2rst::s2;

/// How the rings of a polygon are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Winding {
    /// A ring encloses the smaller part of the sphere.
    Smaller,
    /// A ring encloses what lies on its left.
    Strict,
}

/// The types of GeoJSON, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Point,
    LineString,
    Polygon,
    MultiPoint,
    MultiLineString,
    MultiPolygon,
    GeometryCollection,
}

impl Kind {
    fn of(d: Doc<'_>) -> Option<Kind> {
        Some(match d.get("type")?.as_str()? {
            "Point" => Kind::Point,
            "LineString" => Kind::LineString,
            "Polygon" => Kind::Polygon,
            "MultiPoint" => Kind::MultiPoint,
            "MultiLineString" => Kind::MultiLineString,
            "MultiPolygon" => Kind::MultiPolygon,
            "GeometryCollection" => Kind::GeometryCollection,
            _ => return None,
        })
    }
}

/// The reference system that a shape names.
pub(crate) fn crs(d: Doc<'_>, polygon: bool) -> Fallible<Winding> {
    let Some(v) = d.get("crs") else {
        return Ok(Winding::Smaller);
    };
    let Some(crs) = v.as_container() else {
        bail!(BadValue, "GeoJSON CRS must be an object");
    };
    if crs.get("type").and_then(|t| t.as_str()) != Some("name") {
        bail!(BadValue, "GeoJSON CRS must have field \"type\": \"name\"");
    }
    let Some(properties) = crs.get("properties").and_then(|p| p.as_container()) else {
        bail!(
            BadValue,
            "CRS must have field \"properties\" which is an object"
        );
    };
    match properties.get("name").and_then(|n| n.as_str()) {
        None => bail!(BadValue, "In CRS, \"properties.name\" must be a string"),
        Some("urn:ogc:def:crs:OGC:1.3:CRS84" | "EPSG:4326") => Ok(Winding::Smaller),
        Some("urn:x-mongodb:crs:strictwinding:EPSG:4326") if polygon => Ok(Winding::Strict),
        Some("urn:x-mongodb:crs:strictwinding:EPSG:4326") => bail!(
            BadValue,
            "Strict winding order is only supported by polygon"
        ),
        Some(name) => bail!(BadValue, "Unknown CRS name: {name}"),
    }
}

/// A shape. `geometries` of a collection are no collections.
pub(crate) fn parse(d: Doc<'_>) -> Fallible<Geometry> {
    let Some(kind) = Kind::of(d) else {
        bail!(BadValue, "unknown GeoJSON type: {}", shell::doc(d));
    };
    let mut parts = Vec::new();
    let winding = crs(d, kind == Kind::Polygon)?;
    if kind == Kind::GeometryCollection {
        collection(d, &mut parts)?;
    } else {
        read(kind, d, winding, &mut parts)?;
    }
    Ok(Geometry::new(parts, kind, winding == Winding::Strict))
}

fn collection(d: Doc<'_>, parts: &mut Vec<GeometryPart>) -> Fallible<()> {
    let list = d.get("geometries").and_then(|v| v.as_array());
    let Some(list) = list else {
        bail!(BadValue, "GeometryCollection geometries must be an array");
    };
    if list.is_empty() {
        bail!(
            BadValue,
            "GeometryCollection geometries must have at least 1 element"
        );
    }
    for (i, v) in list.values().enumerate() {
        let Some(inner) = v.as_doc().filter(|_| v.tag == tag::DOCUMENT) else {
            bail!(BadValue, "Element {i} of \"geometries\" is not an object");
        };
        match Kind::of(inner) {
            None => bail!(BadValue, "Unknown GeoJSON type: {}", shell::doc(inner)),
            Some(Kind::GeometryCollection) => bail!(
                BadValue,
                "GeometryCollections cannot be nested: {}",
                shell::doc(inner)
            ),
            Some(kind) => {
                crs(inner, false)?;
                read(kind, inner, Winding::Smaller, parts)?;
            }
        }
    }
    Ok(())
}

fn read(kind: Kind, d: Doc<'_>, winding: Winding, parts: &mut Vec<GeometryPart>) -> Fallible<()> {
    let v = d.get("coordinates");
    let one = |part: GeometryPart, parts: &mut Vec<GeometryPart>| {
        parts.push(part);
        Ok(())
    };
    match kind {
        Kind::Point => one(GeometryPart::Point(point::geojson(d)?), parts),
        Kind::LineString => one(GeometryPart::Line(line(v)?), parts),
        Kind::Polygon => one(GeometryPart::Area(polygon::parse(v, winding)?), parts),
        Kind::MultiPoint => {
            let before = parts.len();
            let Some(list) = v.and_then(|v| v.as_array()) else {
                bail!(
                    BadValue,
                    "GeoJSON coordinates must be an array of coordinates"
                );
            };
            for v in list.values() {
                let (flat, sphere) = point::position(v)?;
                parts.push(GeometryPart::Point(point::Location {
                    flat,
                    sphere: Some(sphere),
                    is_geojson: true,
                }));
            }
            if parts.len() == before {
                bail!(
                    BadValue,
                    "MultiPoint coordinates must have at least 1 element"
                );
            }
            Ok(())
        }
        Kind::MultiLineString => each(v, "MultiLineString", parts, |v| {
            Ok(GeometryPart::Line(line(v)?))
        }),
        Kind::MultiPolygon => each(v, "MultiPolygon", parts, |v| {
            Ok(GeometryPart::Area(polygon::parse(v, winding)?))
        }),
        Kind::GeometryCollection => Ok(()),
    }
}

fn each(
    v: Option<Val<'_>>,
    name: &str,
    parts: &mut Vec<GeometryPart>,
    read: impl Fn(Option<Val<'_>>) -> Fallible<GeometryPart>,
) -> Fallible<()> {
    let Some(list) = v.and_then(|v| v.as_array()) else {
        bail!(BadValue, "{name} coordinates must be an array");
    };
    if list.is_empty() {
        bail!(BadValue, "{name} coordinates must have at least 1 element");
    }
    for v in list.values() {
        parts.push(read(Some(v))?);
    }
    Ok(())
}

fn line(v: Option<Val<'_>>) -> Fallible<Line> {
    let mut points = point::positions(v)?;
    points.dedup();
    if points.len() < 2 {
        bail!(
            BadValue,
            "GeoJSON LineString must have at least 2 vertices: {}",
            v.map(shell::val).unwrap_or_default()
        );
    }
    point::ask_of_edges(points.len())?;
    let line = s2::polyline::Polyline::new(points);
    if let Some(e) = line.find_validation_error() {
        bail!(
            BadValue,
            "GeoJSON LineString is not valid: {e}: {}",
            v.map(shell::val).unwrap_or_default()
        );
    }
    Ok(Line::new(line))
}
