//! Queries over values: `equals`, `in`, `exists`, `range`, `near`. Their documents are found beforehand.

use crate::compiler::{Compiler, Made};
use crate::definition::Kind;
use crate::operator::Bounds;
use crate::places::{Place, shape_of};
use crate::problem::wrong;
use crate::set::{ScoredQuery, SetQuery, TermRange};
use crate::terms::{date_of, kind, number_of, search_value, value_prefix};
use bson::Value;
use errors::Result;
use errors::operation::step;
use geo::Near;
use std::ops::Bound;
use tantivy::query::EmptyQuery;

impl Compiler<'_, '_> {
    pub(crate) fn set(
        &mut self,
        ranges: &[TermRange],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Made> {
        let set = SetQuery::of(&self.snapshot.searcher, ranges, self.room, wanted)?;
        Ok(Box::new(set))
    }

    /// A filter of vectors may ask only for what was said to be one.
    fn check_filters(&self, paths: &[String]) -> Result<()> {
        let definition = &self.snapshot.definition;
        let is_filter = |p: &&String| definition.at(p).0.is_some_and(|t| t.token.is_some());
        match paths.iter().find(|p| !is_filter(p)) {
            Some(path) if definition.kind == Kind::Vector => Err(wrong(format!(
                "Path '{path}' needs to be indexed as filter"
            ))),
            _ => Ok(()),
        }
    }

    /// Strings are no bounds of dates.
    fn check_dates(&self, paths: &[String], kind: u8) -> Result<()> {
        let definition = &self.snapshot.definition;
        let of_dates = |p: &&String| {
            let types = definition.at(p).0;
            types.is_some_and(|t| t.date && t.token.is_none())
        };
        match paths.iter().find(of_dates) {
            Some(path) if kind == kind::STRING => Err(wrong(format!(
                "Path \"{path}\" needs to be indexed as token"
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn values(
        &mut self,
        paths: &[String],
        values: &[Value],
        finite: bool,
    ) -> Result<Made> {
        self.check_filters(paths)?;
        let mut ranges = Vec::new();
        for path in paths {
            let (types, dynamic) = self.snapshot.definition.at(path);
            let token = types.and_then(|t| t.token);
            for value in values {
                step()?;
                let found = search_value(value.as_val(), token == Some(true))?;
                let Some((kind, bytes)) = found else {
                    continue;
                };
                let analyzed = types.map_or(dynamic, |t| t.string.is_some());
                if kind == kind::STRING && token.is_none() && analyzed {
                    return Err(wrong(format!(
                        "Path \"{path}\" needs to be indexed as token"
                    )));
                }
                let number = value.as_val().to_f64().filter(|_| kind == kind::NUMBER);
                if finite && number.is_some_and(|n| !n.is_finite()) {
                    continue;
                }
                if let Some(n) = self.snapshot.paths.get(path) {
                    let mut exact = value_prefix(n, kind);
                    exact.extend_from_slice(&bytes);
                    ranges.push(TermRange {
                        field: self.snapshot.fields.values,
                        low: Bound::Included(exact.clone()),
                        high: Bound::Included(exact),
                    });
                }
            }
        }
        self.set(&ranges, &|_| true)
    }

    pub(crate) fn exists(&mut self, path: &str) -> Result<Made> {
        self.check_filters(&[path.to_string()])?;
        let Some(n) = self.snapshot.paths.get(path) else {
            return Ok(Box::new(EmptyQuery));
        };
        let range = TermRange::prefix(self.snapshot.fields.values, &value_prefix(n, kind::EXISTS));
        self.set(&[range], &|_| true)
    }

    pub(crate) fn range(&mut self, paths: &[String], bounds: &Bounds) -> Result<Made> {
        self.check_filters(paths)?;
        self.check_dates(paths, bounds.kind)?;
        let of = |path: u32, bound: &Option<(Vec<u8>, bool)>| {
            bound.as_ref().map(|(bytes, inclusive)| {
                let mut at = value_prefix(path, bounds.kind);
                at.extend_from_slice(bytes);
                match inclusive {
                    true => Bound::Included(at),
                    false => Bound::Excluded(at),
                }
            })
        };
        let field = self.snapshot.fields.values;
        let ranges = self.numbers(paths).map(|path| {
            let whole = TermRange::prefix(field, &value_prefix(path, bounds.kind));
            TermRange {
                field,
                low: of(path, &bounds.low).unwrap_or(whole.low),
                high: of(path, &bounds.high).unwrap_or(whole.high),
            }
        });
        let ranges: Vec<TermRange> = ranges.collect();
        self.set(&ranges, &|term| !is_nan(term))
    }

    pub(crate) fn place(&mut self, paths: &[String], place: &Place, shapes: bool) -> Result<Made> {
        let definition = &self.snapshot.definition;
        for path in paths {
            let indexed = definition.at(path).0.and_then(|t| t.geo);
            match (indexed, shapes) {
                (None, _) => {
                    return Err(wrong(format!("Path \"{path}\" needs to be indexed as geo")));
                }
                (Some(false), true) => {
                    return Err(wrong(format!(
                        "Path \"{path}\" needs to be indexed as geo with indexShapes"
                    )));
                }
                _ => {}
            }
        }
        let ranges = self.shapes(paths);
        let from = value_prefix(0, kind::GEO).len();
        self.set(&ranges, &|term| {
            let shape = term.get(from..).and_then(shape_of);
            shape.is_some_and(|s| place.has(s))
        })
    }

    pub(crate) fn near_point(&mut self, paths: &[String], near: &Near, pivot: f64) -> Result<Made> {
        let ranges = self.shapes(paths);
        let from = value_prefix(0, kind::GEO).len();
        let score = |term: &[u8]| {
            let shape = term.get(from..).and_then(shape_of);
            let distance = shape.map_or(f64::INFINITY, |s| near.distance(&s));
            (pivot / (pivot + distance)) as f32
        };
        let found = ScoredQuery::of(&self.snapshot.searcher, &ranges, self.room, &score)?;
        Ok(Box::new(found))
    }

    fn shapes(&self, paths: &[String]) -> Vec<TermRange> {
        let field = self.snapshot.fields.values;
        let numbers = self.numbers(paths);
        numbers
            .map(|path| TermRange::prefix(field, &value_prefix(path, kind::GEO)))
            .collect()
    }

    pub(crate) fn near(
        &mut self,
        paths: &[String],
        kind: u8,
        origin: f64,
        pivot: f64,
    ) -> Result<Made> {
        let field = self.snapshot.fields.values;
        let ranges = self.numbers(paths);
        let ranges = ranges.map(|path| TermRange::prefix(field, &value_prefix(path, kind)));
        let ranges: Vec<TermRange> = ranges.collect();
        let score = |term: &[u8]| {
            let Some(bytes) = term.last_chunk::<8>() else {
                return 0.0;
            };
            let value = match kind {
                kind::DATE => date_of(*bytes) as f64,
                _ => number_of(*bytes),
            };
            let score = pivot / (pivot + (origin - value).abs());
            if score.is_finite() { score as f32 } else { 0.0 }
        };
        let found = ScoredQuery::of(&self.snapshot.searcher, &ranges, self.room, &score)?;
        Ok(Box::new(found))
    }
}

/// Ranges hold no number that is none.
fn is_nan(term: &[u8]) -> bool {
    term.get(4) == Some(&kind::NUMBER)
        && term
            .last_chunk::<8>()
            .is_some_and(|b| number_of(*b).is_nan())
}
