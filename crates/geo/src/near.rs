//! Where `$near`, `$nearSphere` and `$geoNear` look from, how far, and by what measure.

use crate::EARTH_RADIUS_METRES;
use crate::geometry::Geometry;
use crate::point::Location;
use bson::{Doc, Elem, Val, shell};
use errors::{Fallible, bail};

/// How distances are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// On the plane, in its units.
    Flat,
    /// On the sphere, in radians.
    Radians,
    /// On the sphere, in metres.
    Metres,
}

/// A search for the nearest.
#[derive(Clone, Debug)]
pub struct Near {
    pub center: Location,
    pub metric: Metric,
    /// The least and the greatest distance wanted, in the metric's unit.
    pub min: f64,
    pub max: f64,
}

impl Near {
    /// `spherical`: a pair of numbers is a place on the sphere too.
    pub fn new(center: Location, spherical: bool) -> Fallible<Near> {
        let metric = match (center.is_geojson, spherical) {
            (true, _) => Metric::Metres,
            (false, false) => Metric::Flat,
            (false, true) if center.sphere.is_none() => {
                bail!(
                    BadValue,
                    "Legacy point is out of bounds for spherical query"
                )
            }
            (false, true) => Metric::Radians,
        };
        Ok(Near {
            center,
            metric,
            min: 0.0,
            max: f64::INFINITY,
        })
    }

    /// `{$near: [x, y], $maxDistance: d}` or `{$near: {$geometry: point, $maxDistance: d}}`: all operators of a field.
    pub fn parse(ops: Doc<'_>) -> Fallible<Near> {
        match legacy(ops)? {
            Some(near) => Ok(near),
            None => modern(ops),
        }
    }

    /// Whether the center can be looked for on the plane: by an index `2d`.
    pub fn is_for_plane(&self) -> bool {
        !self.center.is_geojson
    }

    /// Whether it can be looked for on the sphere: by an index `2dsphere`.
    pub fn is_for_sphere(&self) -> bool {
        self.metric != Metric::Flat
    }

    /// A distance on the sphere as the metric has it.
    pub fn unit(&self) -> f64 {
        match self.metric {
            Metric::Metres => EARTH_RADIUS_METRES,
            _ => 1.0,
        }
    }

    /// How far a shape is: infinite where the metric does not tell.
    pub fn distance(&self, g: &Geometry) -> f64 {
        if g.is_strict() {
            return f64::INFINITY;
        }
        match (self.metric, self.center.sphere) {
            (Metric::Flat, _) => match g.as_point() {
                Some(p) => self.center.flat.distance(p.flat),
                None => f64::INFINITY,
            },
            (_, Some(from)) if g.is_on_sphere() => {
                let angles = g.parts.iter().map(|p| p.angle(from));
                angles.fold(f64::INFINITY, f64::min) * self.unit()
            }
            _ => f64::INFINITY,
        }
    }

    /// The nearest shape of a value: its own, or one of those in the array that it is.
    pub fn nearest<'v>(&self, v: Val<'v>) -> Option<(f64, Val<'v>)> {
        if let Ok(g) = Geometry::of_stored(v) {
            return Some((self.distance(&g), v));
        }
        let mut best: Option<(f64, Val<'v>)> = None;
        for e in v.as_array()?.values() {
            let Ok(g) = Geometry::of_stored(e) else {
                continue;
            };
            let d = self.distance(&g);
            if best.is_none_or(|(b, _)| d < b) {
                best = Some((d, e));
            }
        }
        best
    }

    pub fn wants(&self, distance: f64) -> bool {
        distance.is_finite() && distance >= self.min && distance <= self.max
    }
}

/// Names of the operator.
fn is_near(name: &str) -> bool {
    matches!(name, "$near" | "$nearSphere" | "$geoNear")
}

fn legacy_limit(e: Elem<'_>, not_a_number: i32, negative: i32) -> Fallible<f64> {
    let number = e.val.to_f64().filter(|_| e.val.is_number());
    let Some(n) = number else {
        return Err(errors::Error::coded(
            not_a_number,
            format!("{} must be a number", e.name),
        ));
    };
    if n.is_nan() || n < 0.0 {
        return Err(errors::Error::coded(
            negative,
            format!("{} must be non-negative", e.name),
        ));
    }
    Ok(n)
}

/// With the limits beside it. `None`: there is no center.
fn legacy(ops: Doc<'_>) -> Fallible<Option<Near>> {
    let (mut near, mut min, mut max) = (None, None, None);
    for e in ops {
        match e.name {
            name if is_near(name) => {
                let Some(d) = e.val.as_container() else {
                    return Ok(None);
                };
                let spherical = name == "$nearSphere";
                if let Ok(center) = Location::parse(e.val) {
                    near = Some(Near::new(center, spherical)?);
                } else if let Some((center, limit)) = with_limit(d) {
                    if limit.is_nan() || limit < 0.0 {
                        bail!(18522, "max distance must be non-negative");
                    }
                    near = Some(Near::new(center, spherical)?);
                    max = Some(limit);
                }
            }
            "$minDistance" => min = Some(legacy_limit(e, 16893, 16894)?),
            "$maxDistance" => max = Some(legacy_limit(e, 16895, 16896)?),
            "$uniqueDocs" => {}
            name => bail!(34413, "invalid argument in geo near query: {name}"),
        }
    }
    Ok(near.map(|mut near| {
        near.min = min.unwrap_or(near.min);
        near.max = max.unwrap_or(near.max);
        near
    }))
}

/// `[x, y, maxDistance]`
fn with_limit(d: Doc<'_>) -> Option<(Location, f64)> {
    let numbers: Vec<f64> = d
        .values()
        .take(4)
        .map_while(|v| v.to_f64().filter(|_| v.is_number()))
        .collect();
    let ([_, _, limit], 3) = (&numbers[..], d.count()) else {
        return None;
    };
    let center = crate::point::legacy(d.as_array_val(), true).ok()?;
    Some((center, *limit))
}

fn modern(ops: Doc<'_>) -> Fallible<Near> {
    let mut all = ops.iter();
    let Some(e) = all.next() else {
        bail!(BadValue, "empty geo near query object");
    };
    if let Some(more) = all.next() {
        bail!(
            BadValue,
            "geo near accepts just one argument when querying for a GeoJSON point. Extra field found: {}: {}",
            more.name,
            shell::val(more.val)
        );
    }
    let Some(d) = e.val.as_container() else {
        bail!(BadValue, "geo near query argument is not an object");
    };
    if !is_near(e.name) {
        bail!(BadValue, "invalid geo near query operator: {}", e.name);
    }
    let (mut center, mut min, mut max) = (None, 0.0, f64::INFINITY);
    for a in d {
        match a.name {
            "$geometry" => center = geometry(a.val)?.or(center),
            "$minDistance" => min = limit(a)?,
            "$maxDistance" => max = limit(a)?,
            name => bail!(BadValue, "invalid argument in geo near query: {name}"),
        }
    }
    let Some(center) = center else {
        bail!(BadValue, "$geometry is required for geo near query");
    };
    let near = Near::new(center, e.name == "$nearSphere")?;
    Ok(Near { min, max, ..near })
}

fn geometry(v: Val<'_>) -> Fallible<Option<Location>> {
    if v.as_container().is_none() {
        return Ok(None);
    }
    match Location::parse(v) {
        Ok(center) if center.is_geojson => Ok(Some(center)),
        Ok(_) => bail!(
            16681,
            "$near requires geojson point, given {}",
            shell::val(v)
        ),
        Err(e) => bail!(
            BadValue,
            "invalid point in geo near query $geometry argument: {}  {}",
            shell::val(v),
            e.message
        ),
    }
}

fn limit(e: Elem<'_>) -> Fallible<f64> {
    let number = e.val.to_f64().filter(|_| e.val.is_number());
    match number.filter(|n| n.is_finite() && *n >= 0.0) {
        Some(n) => Ok(n),
        None => bail!(
            BadValue,
            "{} must be a non-negative number, but got {}",
            e.name,
            shell::val(e.val)
        ),
    }
}
