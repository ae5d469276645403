//! The keys of indexes `2dsphere` and `2d`: the numbers of cells in the place of shapes.
//!
//! A document without a shape in any of the fields has no key (but in a `2dsphere` index of version 1). One with several cells,
//! or arrays in the other fields, has a key for each combination.

use super::{FieldKind, KeyField, KeySet, Multikey};
use crate::path::Leaf;
use bson::{Doc, Val, Value, shell, tag};
use errors::{Result, bail};
use geo::{Geometry, Grid, sphere};
use std::cell::Cell;

/// What makes the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Geospatial {
    Sphere {
        /// `2dsphereIndexVersion`.
        version: i32,
    },
    Plane(Grid),
}

/// The values that a document has for one field.
#[derive(Default)]
struct Column {
    values: Vec<Value>,
    /// They come from an array, or are several cells of a shape.
    several: bool,
    /// A shape is among them.
    shape: bool,
}

impl Geospatial {
    /// The options of an index: its whole specification.
    pub(super) fn of_spec(&self, spec: Doc<'_>) -> Result<Geospatial> {
        Ok(match self {
            Geospatial::Plane(_) => Geospatial::Plane(Grid::of_spec(spec)?),
            Geospatial::Sphere { .. } => {
                let version = match spec.get("2dsphereIndexVersion") {
                    None => 3,
                    Some(v) => match v.to_i64_exact() {
                        Some(n @ 1..=3) => n as i32,
                        _ => bail!(
                            CannotCreateIndex,
                            "unsupported geo index version {{ 2dsphereIndexVersion : {} }}, only support versions: [1,2,3]",
                            shell::val(v)
                        ),
                    },
                };
                Geospatial::Sphere { version }
            }
        })
    }

    /// Replaces the content of `out` by the keys of `doc`.
    pub(super) fn extract(
        &self,
        fields: &[KeyField],
        doc: Doc<'_>,
        out: &mut KeySet,
    ) -> Result<Multikey> {
        out.clear();
        let mut columns = Vec::with_capacity(fields.len());
        let mut multikey = Multikey::default();
        for (i, f) in fields.iter().enumerate() {
            let column = match f.kind {
                FieldKind::Cells => self.cells(f, doc, out)?,
                _ => literals(f, doc, out),
            };
            if column.several {
                multikey.0 |= 1 << i.min(63);
            }
            columns.push(column);
        }
        let needed = !matches!(self, Geospatial::Sphere { version: 1 });
        if needed && !columns.iter().any(|c| c.shape) {
            return Ok(Multikey::default());
        }
        combine(fields, &columns, out);
        out.complete()?;
        out.sort();
        Ok(multikey)
    }

    fn cells(&self, f: &KeyField, doc: Doc<'_>, out: &KeySet) -> Result<Column> {
        let mut shapes: Vec<Val<'_>> = Vec::new();
        let mut column = Column::default();
        f.path.visit(doc, Leaf::Whole, &mut |v, at| {
            column.several |= at.is_some();
            shapes.extend(v);
            false
        });
        let mut keys: Vec<i64> = Vec::new();
        match self {
            Geospatial::Plane(grid) => {
                for v in shapes {
                    column.several |= places(grid, v, &mut keys)?;
                }
            }
            Geospatial::Sphere { .. } => {
                // Nothing at all, in one of the ways of saying so.
                if let [v] = &shapes[..]
                    && (v.is_nullish() || v.as_container().is_some_and(Doc::is_empty))
                {
                    shapes.clear();
                }
                for v in shapes {
                    keys.extend(on_sphere(v, doc, out)?);
                }
            }
        }
        column.shape = !keys.is_empty();
        keys.sort_unstable();
        keys.dedup();
        column.several |= keys.len() > 1;
        column.values = keys.into_iter().map(Value::from).collect();
        if column.values.is_empty() {
            column.values.push(Value::NULL);
        }
        Ok(column)
    }
}

/// The cells of one value on the sphere.
fn on_sphere(v: Val<'_>, doc: Doc<'_>, out: &KeySet) -> Result<Vec<i64>> {
    let fail = |why: &str| {
        errors::Error::coded(
            16755,
            format!("Can't extract geo keys: {}  {why}", shell::doc(doc)),
        )
    };
    let shape = Geometry::of_stored(v).map_err(|e| match e.is_interruption() {
        true => e,
        false => fail(&e.message),
    })?;
    if shape.is_strict() || !shape.is_on_sphere() {
        return Err(fail(&format!(
            "can't project geometry into spherical CRS: {}",
            shell::val(v)
        ))
        .into());
    }
    // Of a line or an area the edges near to a cell are measured for each cell that is tried.
    let ended = Cell::new(None);
    let keys = sphere::keys_while(&shape, &|edges| match out.work(1 + edges) {
        Ok(()) => true,
        Err(e) => {
            ended.set(Some(e));
            false
        }
    });
    if let Some(e) = ended.into_inner() {
        return Err(e);
    }
    if keys.is_empty() {
        bail!(
            16756,
            "Unable to generate keys for (likely malformed) geometry: {}",
            shell::doc(doc)
        );
    }
    Ok(keys)
}

/// The cells of one value on the plane: a pair of numbers, or several of them. Whether it is several.
fn places(grid: &Grid, v: Val<'_>, out: &mut Vec<i64>) -> Result<bool> {
    let Some(d) = v.as_container() else {
        return Ok(false);
    };
    let Some(first) = d.first() else {
        return Ok(false);
    };
    if first.val.is_number() {
        out.push(grid.key(v)?);
        return Ok(false);
    }
    for v in d.values() {
        if v.as_container().is_some_and(Doc::is_empty) {
            continue;
        }
        out.push(grid.key(v)?);
    }
    Ok(true)
}

/// The values of an ordinary field, as its keys have them.
fn literals(f: &KeyField, doc: Doc<'_>, out: &KeySet) -> Column {
    let mut column = Column::default();
    f.path.visit(doc, Leaf::Whole, &mut |v, at| {
        column.several |= at.is_some();
        match v {
            Some(v) if v.tag == tag::ARRAY => {
                column.several = true;
                let items = v.as_array().unwrap_or(Doc::EMPTY);
                if items.is_empty() {
                    column.values.push(Val::UNDEFINED.to_value());
                }
                column.values.extend(items.values().map(|v| out.folded(v)));
            }
            Some(v) => column.values.push(out.folded(v)),
            None => column.values.push(Value::NULL),
        }
        false
    });
    if column.values.is_empty() {
        column.values.push(Value::NULL);
    }
    column
}

/// A key for each combination of one value of each field.
fn combine(fields: &[KeyField], columns: &[Column], out: &mut KeySet) {
    let mut at = vec![0; columns.len()];
    loop {
        if out.full {
            return;
        }
        let start = out.begin();
        for ((f, c), i) in fields.iter().zip(columns).zip(&at) {
            if let Some(v) = c.values.get(*i) {
                out.put_as_is(v.as_val(), f.descending);
            }
        }
        out.end(start);
        let mut turned = false;
        for (i, c) in at.iter_mut().zip(columns).rev() {
            *i += 1;
            if *i < c.values.len() {
                turned = true;
                break;
            }
            *i = 0;
        }
        if !turned {
            return;
        }
    }
}
