//! `$geoWithin`, `$geoIntersects`, `$near`, `$nearSphere`: from their operands to shapes, and their tests of values.
//!
//! Invariant: a filter has at most one `$near`, and that is a clause of its top.

use super::{Node, Test};
use crate::expr::ParseEnv;
use crate::path::{FieldPath, Leaf};
use bson::{Doc, DocBuf, Elem, Val, Writer, shell};
use errors::{Result, bail};
use geo::{Geometry, Near, Predicate, Region};
use std::sync::Arc;

/// `$geoWithin` or `$geoIntersects`, with the region that it asks for.
#[derive(Debug)]
pub struct GeoTest {
    pub predicate: Predicate,
    pub region: Region,
    source: DocBuf,
}

/// `$near`, `$nearSphere` or `$geoNear`.
#[derive(Debug)]
pub struct NearTest {
    pub near: Near,
    source: DocBuf,
}

impl GeoTest {
    /// The operator as it was written.
    pub fn source(&self) -> Doc<'_> {
        self.source.as_doc()
    }

    pub fn name(&self) -> &'static str {
        match self.predicate {
            Predicate::Within => "geoWithin",
            Predicate::Intersects => "geoIntersects",
        }
    }

    /// A value without a shape does not pass.
    pub fn matches(&self, v: Val<'_>) -> bool {
        v.as_container().is_some()
            && Geometry::of_stored(v).is_ok_and(|g| self.region.matches(self.predicate, &g))
    }
}

impl NearTest {
    /// All operators of the field: they are those of one.
    pub fn parse(ops: Doc<'_>) -> Result<NearTest> {
        Ok(NearTest {
            near: Near::parse(ops)?,
            source: ops.to_buf(),
        })
    }

    pub fn source(&self) -> Doc<'_> {
        self.source.as_doc()
    }
}

/// `$geoWithin` or `$geoIntersects`, which stands alone.
pub(super) fn test(e: Elem<'_>, all: Doc<'_>) -> Result<Test> {
    let other = all.iter().find(|o| o.name != e.name);
    if let Some(other) = other.filter(|_| all.first().is_some_and(|f| f.name == e.name)) {
        bail!(
            BadValue,
            "can't parse extra field: {}: {}",
            other.name,
            shell::val(other.val)
        );
    }
    if other.is_some() {
        bail!(BadValue, "invalid geo query predicate: {}", shell::doc(all));
    }
    let predicate = match e.name {
        "$geoIntersects" => Predicate::Intersects,
        _ => Predicate::Within,
    };
    let mut w = Writer::new();
    w.val(e.name, e.val);
    Ok(Test::Geo(Arc::new(GeoTest {
        predicate,
        region: Region::parse(e.val, predicate)?,
        source: w.finish(),
    })))
}

/// The operators of a field, if they are those of a search for the nearest.
pub(super) fn near(ops: Doc<'_>, env: &ParseEnv) -> Result<Option<Test>> {
    let is_near = |e: &Elem<'_>| matches!(e.name, "$near" | "$nearSphere" | "$geoNear");
    let first = ops.first().filter(is_near);
    if first.is_none_or(|e| e.val.as_container().is_none()) {
        return Ok(None);
    }
    if !env.allows_where() {
        return Err(not_allowed().into());
    }
    Ok(Some(Test::Near(Arc::new(NearTest::parse(ops)?))))
}

/// Of `$near` where there is no order to give.
pub(crate) fn not_allowed() -> errors::Error {
    errors::Error::coded(
        5626500,
        "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require sorting geospatial \
         data. If you do not need sort, consider using $geoWithin instead. Check out \
         https://dochub.mongodb.org/core/near-sort-operation and https://dochub.mongodb.org/core/nearSphere-sort-operation for \
         more details."
            .to_string(),
    )
}

fn near_test(node: &Node) -> Option<(&FieldPath, &Arc<NearTest>)> {
    match node {
        Node::Pred {
            path,
            test: Test::Near(n),
        } => Some((path, n)),
        _ => None,
    }
}

pub(super) fn near_of(root: &Node) -> Option<(&FieldPath, &Arc<NearTest>)> {
    match root {
        Node::And(c) => c.iter().find_map(near_test),
        n => near_test(n),
    }
}

/// One at most, and at the top.
pub(super) fn check_near(root: &Node) -> Result<()> {
    let mut n = 0;
    root.any(&mut |node| {
        n += u32::from(near_test(node).is_some());
        false
    });
    match n {
        0 => Ok(()),
        1 if near_of(root).is_some() => Ok(()),
        1 => bail!(BadValue, "geoNear must be top-level expr"),
        _ => bail!(BadValue, "Too many geoNear expressions"),
    }
}

/// The nearest shape that a document has on a path, and how far it is.
pub fn nearest<'a>(path: &FieldPath, near: &Near, doc: Doc<'a>) -> Option<(f64, Val<'a>)> {
    let mut best: Option<(f64, Val<'a>)> = None;
    path.visit(doc, Leaf::Whole, &mut |v, _| {
        if let Some(found) = v.and_then(|v| near.nearest(v))
            && best.is_none_or(|(d, _)| found.0 < d)
        {
            best = Some(found);
        }
        false
    });
    best
}
