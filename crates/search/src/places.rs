//! Where shapes lie: `geoWithin`, `geoShape`, and `near` a point.
//!
//! A shape is in the index as its document has it, and each distinct one is tested by itself.
//!
//! Source: MongoDB's manual, "geoWithin", "geoShape", "near".

use crate::fields::SpecificationFields;
use crate::operator::Operator;
use crate::paths::plain_paths;
use crate::problem::wrong;
use bson::{Doc, Val, doc};
use errors::{Fallible, Result};
use geo::{Geometry, Location, Near, Predicate, Region};
use std::sync::Arc;

/// What is asked of a shape.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A point between two corners.
    Box { low: Location, high: Location },
    /// Within so many metres.
    Circle { near: Near, radius: f64 },
    Region {
        region: Arc<Region>,
        predicate: Predicate,
        /// What does not pass is wanted.
        not: bool,
    },
    /// It has this one within.
    Around(Arc<Geometry>),
}

/// The shape of a value in the index.
pub(crate) fn shape_of(bytes: &[u8]) -> Option<Geometry> {
    Geometry::of_stored(Doc::new(bytes)?.as_val()).ok()
}

/// Whether a value is a shape of GeoJSON, and a point where no other `shapes` are indexed.
pub(crate) fn is_indexed(v: Val<'_>, shapes: bool) -> bool {
    let named = v.as_doc().and_then(|d| d.get("type")?.as_str());
    match named {
        Some("Point") => Geometry::of_stored(v).is_ok(),
        Some(_) => shapes && Geometry::of_stored(v).is_ok(),
        None => false,
    }
}

impl Place {
    pub fn has(&self, shape: Geometry) -> bool {
        match self {
            Place::Box { low, high } => shape.as_point().is_some_and(|p| {
                let (x, y) = (p.flat.x, p.flat.y);
                // A box may span the line where the days begin.
                let within = match low.flat.x <= high.flat.x {
                    true => low.flat.x <= x && x <= high.flat.x,
                    false => low.flat.x <= x || x <= high.flat.x,
                };
                within && low.flat.y <= y && y <= high.flat.y
            }),
            Place::Circle { near, radius } => {
                shape.as_point().is_some() && near.distance(&shape) <= *radius
            }
            Place::Region {
                region,
                predicate,
                not,
            } => region.matches(*predicate, &shape) != *not,
            Place::Around(inner) => Region::Geometry(shape).matches(Predicate::Within, inner),
        }
    }
}

fn checked<T>(f: &SpecificationFields<'_>, field: &str, outcome: Fallible<T>) -> Result<T> {
    outcome.map_err(|e| {
        wrong(format!(
            "\"{}\" is no valid shape: {}",
            f.name(field),
            e.message
        ))
    })
}

/// A GeoJSON point.
pub(crate) fn point(f: &SpecificationFields<'_>, field: &'static str) -> Result<Location> {
    let v = f.required(field)?;
    let is_point = v
        .as_doc()
        .is_some_and(|d| d.get("type").and_then(Val::as_str) == Some("Point"));
    if !is_point {
        return Err(wrong(format!("\"{}\" must be a point", f.name(field))));
    }
    checked(f, field, Location::parse(v))
}

/// Metres from a point.
pub(crate) fn near(f: &SpecificationFields<'_>, field: &'static str) -> Result<Near> {
    let center = point(f, field)?;
    checked(f, field, Near::new(center, true))
}

fn region(f: &SpecificationFields<'_>, predicate: Predicate) -> Result<Arc<Region>> {
    let geometry = f.required("geometry")?;
    if geometry.as_doc().is_none() {
        return Err(wrong(format!(
            "\"{}\" must be a document",
            f.name("geometry")
        )));
    }
    let asked = doc! {"$geometry": geometry.to_value()};
    let region = Region::parse(asked.as_doc().as_val(), predicate);
    checked(f, "geometry", region).map(Arc::new)
}

pub(crate) fn geo_within(f: &SpecificationFields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let (bounds, circle) = (f.doc("box")?, f.doc("circle")?);
    let has_geometry = f.get("geometry").is_some();
    let given = [bounds.is_some(), circle.is_some(), has_geometry];
    if given.iter().filter(|g| **g).count() != 1 {
        return Err(wrong(format!(
            "\"{}\" must have exactly one of [box, circle, geometry]",
            f.at
        )));
    }
    let place = match (bounds, circle) {
        (Some(b), _) => {
            let (low, high) = (point(&b, "bottomLeft")?, point(&b, "topRight")?);
            b.end()?;
            Place::Box { low, high }
        }
        (_, Some(c)) => {
            let near = near(&c, "center")?;
            let radius = c.required("radius")?;
            let metres = radius.to_f64().filter(|_| radius.is_number());
            c.end()?;
            match metres {
                Some(radius) if radius >= 0.0 && radius.is_finite() => {
                    Place::Circle { near, radius }
                }
                _ => {
                    return Err(wrong(format!(
                        "\"{}.radius\" must be a positive number",
                        c.at
                    )));
                }
            }
        }
        _ => {
            let kind = f
                .get("geometry")
                .and_then(|v| v.as_doc()?.get("type")?.as_str());
            if !matches!(kind, Some("Polygon" | "MultiPolygon")) {
                return Err(wrong(format!(
                    "\"{}\" must be a Polygon or a MultiPolygon",
                    f.name("geometry")
                )));
            }
            Place::Region {
                region: region(f, Predicate::Within)?,
                predicate: Predicate::Within,
                not: false,
            }
        }
    };
    Ok(Operator::Place {
        paths,
        place,
        shapes: false,
    })
}

pub(crate) fn geo_shape(f: &SpecificationFields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let relation = f.required_string("relation")?;
    let tested = |predicate, not| -> Result<Place> {
        Ok(Place::Region {
            region: region(f, predicate)?,
            predicate,
            not,
        })
    };
    let place = match relation {
        "within" => {
            let kind = f
                .get("geometry")
                .and_then(|v| v.as_doc()?.get("type")?.as_str());
            if matches!(
                kind,
                Some("Point" | "LineString" | "MultiPoint" | "MultiLineString")
            ) {
                return Err(wrong(format!(
                    "\"{}\" cannot have anything within it",
                    f.name("geometry")
                )));
            }
            tested(Predicate::Within, false)?
        }
        "intersects" => tested(Predicate::Intersects, false)?,
        "disjoint" => tested(Predicate::Intersects, true)?,
        "contains" => {
            let inner = Geometry::of_stored(f.required("geometry")?);
            Place::Around(Arc::new(checked(f, "geometry", inner)?))
        }
        _ => {
            return Err(wrong(format!(
                "\"{}\" must be one of [contains, disjoint, intersects, within]",
                f.name("relation")
            )));
        }
    };
    Ok(Operator::Place {
        paths,
        place,
        shapes: true,
    })
}
