//! Search: text and vector indexes beside a collection, the searches over them, and their scores.
//!
//! * [`Definition`] says which fields are indexed, and how.
//! * [`SearchIndex`] is one index on disk: an [`IndexWriter`] puts documents in, a [`IndexSnapshot`] answers searches.
//! * [`Search`] is what a `$search` stage asks; [`Search::find`] gives the keys and scores of what it finds.
//! * [`VectorSearch`] is the same of `$vectorSearch`.
//! * [`SynonymMap`] is what a collection says of words that mean the same.
//!
//! Invariant: this room knows no log, no catalog and no command. What it holds can be derived again from a collection.
//! A search asks [`errors::operation`] in proportion to what it looks at.

mod analysis;
mod best;
mod codes;
mod columns;
mod compiler;
mod definition;
mod directory;
mod edits;
mod elements;
mod explained;
mod facet;
mod field_graph;
mod fields;
mod files;
mod filter;
mod find;
mod graph;
mod highlight;
mod hits;
mod join;
mod lengths;
mod near;
mod nested;
mod operator;
mod outline;
mod packed;
mod page;
mod paths;
mod pattern;
mod phrase;
mod places;
mod postings;
mod problem;
mod products;
mod query_string;
mod query_vector;
mod room;
mod score;
mod search;
mod set;
mod side_by_side;
mod slots;
mod span;
mod synonyms;
mod terms;
mod text_operators;
mod unfit;
mod value_operators;
mod value_queries;
mod vector;
mod vector_definition;
mod words;

pub use definition::{Definition, Kind, StoredSource};
pub use elements::element;
pub use field_graph::Grown;
pub use files::{FILLING_BYTES, IndexSnapshot, IndexWriter, Position, SearchIndex, WRITER_BYTES};
pub use highlight::Highlighter;
pub use hits::{Hits, ScoredDocument, place};
pub use outline::Counted;
pub use page::{Pages, SequenceToken, score_order};
pub use room::Room;
pub use search::Search;
pub use side_by_side::Helpers;
pub use synonyms::{SynonymMap, SynonymSource, Synonyms};
pub use unfit::{Incomplete, Unfit, UnfitField};
pub use vector::VectorSearch;

/// The checksum that files beside an index carry.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod join_tests;
#[cfg(test)]
mod near_tests;
#[cfg(test)]
mod shown_tests;
#[cfg(test)]
mod tests;
