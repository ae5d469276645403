//! What `$geoWithin` and `$geoIntersects` ask for.

use crate::flat::{Outline, Rectangle};
use crate::geojson::Kind;
use crate::geometry::Geometry;
use crate::point::{self, Point};
use bson::{Doc, Elem, Val, shell};
use errors::{Fallible, bail};
use s2rst::s1::Angle;
use s2rst::s2;

/// How a document's shape has to lie to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicate {
    Within,
    Intersects,
}

/// A region of the plane or of the sphere.
#[derive(Debug)]
pub enum Region {
    Box(Rectangle),
    Polygon(Outline),
    Circle {
        center: Point,
        radius: f64,
    },
    /// A circle on the sphere; the radius in radians.
    Cap {
        center: s2::Point,
        flat: Point,
        radius: f64,
    },
    Geometry(Geometry),
}

impl Region {
    /// The operand of an operator: one shape under the name of its kind.
    pub fn parse(v: Val<'_>, predicate: Predicate) -> Fallible<Region> {
        let Some(d) = v.as_doc() else {
            bail!(BadValue, "geometry must be an object");
        };
        let mut region = None;
        for e in d.iter().filter(|e| e.name != "$uniqueDocs") {
            let first = region.replace(specified(e)?);
            if first.is_some() {
                bail!(
                    BadValue,
                    "geo query has more than one geometry: {}",
                    shell::val(v)
                );
            }
        }
        let Some(region) = region else {
            bail!(BadValue, "geo query doesn't have any geometry");
        };
        if predicate == Predicate::Within && !region.can_contain() {
            bail!(
                BadValue,
                "$within not supported with provided geometry: {}",
                shell::val(v)
            );
        }
        if predicate == Predicate::Intersects && !region.can_intersect() {
            bail!(
                BadValue,
                "$geoIntersect not supported with provided geometry: {}",
                shell::val(v)
            );
        }
        Ok(region)
    }

    fn can_contain(&self) -> bool {
        match self {
            Region::Geometry(g) => match g.kind {
                Kind::Polygon | Kind::MultiPolygon => true,
                Kind::GeometryCollection => g.has_area(),
                _ => false,
            },
            _ => true,
        }
    }

    fn can_intersect(&self) -> bool {
        match self {
            Region::Geometry(g) => g.is_on_sphere(),
            Region::Cap { .. } => true,
            _ => false,
        }
    }

    /// Whether it lies on the sphere, where an index `2dsphere` finds what it holds.
    pub fn is_on_sphere(&self) -> bool {
        matches!(self, Region::Geometry(_) | Region::Cap { .. })
    }
}

/// A shape under the name of its kind.
fn specified(e: Elem<'_>) -> Fallible<Region> {
    let Some(d) = e.val.as_container() else {
        bail!(
            BadValue,
            "unknown geo specifier: {}: {}",
            e.name,
            shell::val(e.val)
        );
    };
    Ok(match e.name {
        "$box" => {
            let mut corners = d.values();
            let mut corner = || match corners.next() {
                Some(v) => point::flat(v, false),
                None => bail!(
                    BadValue,
                    "Point must be an array or object, instead got type missing"
                ),
            };
            Region::Box(Rectangle::new(corner()?, corner()?))
        }
        "$polygon" => {
            let corners: Fallible<Vec<Point>> = d.values().map(|v| point::flat(v, false)).collect();
            match Outline::new(corners?) {
                Some(outline) => Region::Polygon(outline),
                None => bail!(BadValue, "Polygon must have at least 3 points"),
            }
        }
        "$center" => {
            let (center, radius) = circle(d)?;
            Region::Circle { center, radius }
        }
        "$centerSphere" => {
            let (flat, radius) = circle(d)?;
            Region::Cap {
                center: point::lng_lat(flat)?,
                flat,
                radius,
            }
        }
        "$geometry" if point::is_legacy(e.val) => {
            Region::Geometry(Geometry::of_location(point::legacy(e.val, false)?))
        }
        "$geometry" => Region::Geometry(crate::geojson::parse(d)?),
        _ => bail!(
            BadValue,
            "unknown geo specifier: {}: {}",
            e.name,
            shell::val(e.val)
        ),
    })
}

/// `[center, radius]`
fn circle(d: Doc<'_>) -> Fallible<(Point, f64)> {
    let mut values = d.values();
    let Some(center) = values.next() else {
        bail!(
            BadValue,
            "Point must be an array or object, instead got type missing"
        );
    };
    let center = point::flat(center, false)?;
    let v = values.next();
    let radius = v.filter(|v| v.is_number()).and_then(|v| v.to_f64());
    let Some(radius) = radius.filter(|r| *r >= 0.0) else {
        bail!(
            BadValue,
            "Radius must be a non-negative number: {}",
            v.map(shell::val).unwrap_or_default()
        );
    };
    if values.next().is_some() {
        bail!(
            BadValue,
            "Only 2 fields allowed for circular region, but more provided"
        );
    }
    Ok((center, radius))
}

/// A circle of the sphere; past half of it, all of it.
pub(crate) fn cap(center: s2::Point, radius: f64) -> s2::Cap {
    match radius {
        r if r >= std::f64::consts::PI => s2::Cap::full(),
        r => s2::Cap::from_center_angle(center, Angle::from_radians(r)),
    }
}
