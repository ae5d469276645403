//! Find's projections: document bytes to document bytes.

use crate::expr::{ParseEnv, Vars};
use crate::filter::Filter;
use bson::Doc;
use errors::Result;

/// A parsed projection of `find`.
#[derive(Clone, Debug)]
pub struct Projection {}

impl Projection {
    /// `filter`: the query that a positional `a.$` refers to.
    pub fn parse(_doc: Doc<'_>, _filter: Option<&Filter>, _env: &ParseEnv) -> Result<Projection> {
        todo!()
    }

    /// Whether [`Projection::apply`] needs the position that the filter matched at ([`Filter::first_matched_index`]).
    pub fn needs_match_index(&self) -> bool {
        todo!()
    }

    /// Appends the projected document to `out`. `matched`: what [`Filter::first_matched_index`] said, where needed.
    pub fn apply(
        &self,
        _doc: Doc<'_>,
        _matched: Option<u32>,
        _vars: &Vars,
        _out: &mut Vec<u8>,
    ) -> Result<()> {
        todo!()
    }

    /// Top-level or dotted fields that suffice to compute the projection; `None` when the whole document is needed.
    pub fn needed_fields(&self) -> Option<Vec<String>> {
        todo!()
    }
}
