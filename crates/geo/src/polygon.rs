//! Polygons of GeoJSON: rings checked as MongoDB checks them.
//!
//! Invariant: what comes out has rings that do not cross or touch themselves or each other (but in a vertex), one outer ring,
//! and holes within it. Checks end at the first fault, so that no polygon makes them long.

use crate::geojson::Winding;
use crate::geometry::Area;
use crate::point;
use bson::{Val, shell};
use errors::{Fallible, bail};
use s2rst::s2::crossing_edge_query::CrossingType;
use s2rst::s2::shape_index::ShapeIndex;
use s2rst::s2::shape_util::visit_crossing_edge_pairs;
use s2rst::s2::{Loop, Point, Polygon};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// The most rings of a polygon: how they lie to each other is asked of each pair.
pub const MOST_RINGS: usize = 2_000;
/// The most places where rings touch each other.
const MOST_TOUCHES: usize = 100_000;

/// The `coordinates` of a polygon.
pub(crate) fn parse(v: Option<Val<'_>>, winding: Winding) -> Fallible<Area> {
    let Some(v) = v.filter(|v| v.as_array().is_some()) else {
        bail!(BadValue, "Polygon coordinates must be an array");
    };
    match winding {
        Winding::Strict => big(v),
        Winding::Smaller => with_holes(v),
    }
}

fn rings(v: Val<'_>) -> impl Iterator<Item = Val<'_>> {
    v.as_array().into_iter().flat_map(|a| a.values())
}

/// One ring, whose inside is on its left, however large that is.
fn big(v: Val<'_>) -> Fallible<Area> {
    let n = rings(v).take(2).count();
    let (Some(first), 1) = (rings(v).next(), n) else {
        bail!(
            BadValue,
            "Only one simple loop is allowed in a big polygon, instead provided {} loops: {}",
            rings(v).count(),
            shell::val(v)
        );
    };
    Ok(Area::new(Polygon::from_oriented_loops(vec![ring(first)?])))
}

fn with_holes(v: Val<'_>) -> Fallible<Area> {
    let mut loops: Vec<Loop> = Vec::new();
    for r in rings(v) {
        if loops.len() == MOST_RINGS {
            bail!(BadValue, "A polygon has at most {MOST_RINGS} loops");
        }
        let mut l = ring(r)?;
        l.normalize();
        if let Some(outer) = loops.first()
            && !outer.contains_loop(&l)
        {
            bail!(
                BadValue,
                "Secondary loops not contained by first exterior loop - secondary loops must be holes: {} first loop: {}",
                shell::val(r),
                rings(v).next().map(shell::val).unwrap_or_default()
            );
        }
        loops.push(l);
    }
    if loops.is_empty() {
        bail!(BadValue, "Polygon has no loops.");
    }
    let several = loops.len() > 1;
    let polygon = Polygon::from_loops(loops);
    if several {
        check_rings(&polygon, v)?;
    }
    Ok(Area::new(polygon))
}

/// How several rings lie to each other.
fn check_rings(polygon: &Polygon, v: Val<'_>) -> Fallible<()> {
    let mut touches = 0;
    let crossed = crossing(polygon.shape_index(), CrossingType::All, &mut |interior| {
        touches += 1;
        interior || touches > MOST_TOUCHES
    });
    if crossed {
        bail!(
            BadValue,
            "Polygon isn't valid: loops cross {}",
            shell::val(v)
        );
    }
    if let Some(e) = polygon.find_validation_error() {
        bail!(BadValue, "Polygon isn't valid: {e} {}", shell::val(v));
    }
    if !polygon.is_normalized() {
        bail!(
            BadValue,
            "A loop shares more than one vertex with its parent loop: {}",
            shell::val(v)
        );
    }
    let outer = polygon.loops().iter().filter(|l| l.depth() == 0).count();
    if outer > 1 {
        bail!(
            BadValue,
            "Only one exterior polygon loop is allowed: {}",
            shell::val(v)
        );
    }
    if polygon.loops().iter().any(|l| l.depth() > 1) {
        bail!(
            BadValue,
            "Polygon interior loops cannot be nested: {}",
            shell::val(v)
        );
    }
    Ok(())
}

/// One closed ring that does not meet itself.
fn ring(v: Val<'_>) -> Fallible<Loop> {
    let mut points = point::positions(Some(v))?;
    let Some(first) = points.first() else {
        bail!(BadValue, "Loop has no vertices: {}", shell::val(v));
    };
    if points.last() != Some(first) {
        bail!(BadValue, "Loop is not closed: {}", shell::val(v));
    }
    points.dedup();
    points.pop();
    if points.len() < 3 {
        bail!(
            BadValue,
            "Loop must have at least 3 different vertices, {} unique vertices were provided: {}",
            points.len(),
            shell::val(v)
        );
    }
    let bits = |p: &Point| (p.x().to_bits(), p.y().to_bits(), p.z().to_bits());
    let mut seen = HashSet::with_capacity(points.len());
    if !points.iter().all(|p| seen.insert(bits(p))) {
        bail!(
            BadValue,
            "Loop is not valid: {} Duplicate vertices",
            shell::val(v)
        );
    }
    point::ask_of_edges(points.len())?;
    let l = Loop::new(points);
    if let Err(e) = l.validate() {
        bail!(BadValue, "Loop is not valid: {} {e}", shell::val(v));
    }
    if crossing(l.shape_index(), CrossingType::Interior, &mut |_| true) {
        bail!(BadValue, "Loop is not valid: {} Edges cross", shell::val(v));
    }
    Ok(l)
}

/// Whether `stop` says so of one of the places where edges meet.
fn crossing(index: &ShapeIndex, which: CrossingType, stop: &mut dyn FnMut(bool) -> bool) -> bool {
    let met = visit_crossing_edge_pairs(index, which, &mut |_, _, interior| match stop(interior) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    met.is_break()
}
