//! Text search: what words a text has, what a search asks for, whether a document matches it, and how
//! well. MongoDB's text indexes of versions 1, 2 and 3.
//!
//! * [`Language`]: stemmer and stop words. `fold`: case and diacritics. `tokens`: a text's words.
//! * [`TextIndex`]: which strings of a document are indexed, with what weight and in what language,
//!   and from these its terms with their scores, which are the entries of the index.
//! * [`TextExpression`]: `$text` as it was written. [`Matcher`]: the same for one index.
//!
//! Invariant: pure. The terms that a document is found by are those of its index entries, and its
//! score is the sum of theirs: both come from the one walk in [`TextIndex`].

mod definition;
mod document;
mod fold;
mod language;
mod matcher;
mod search;
mod stop_words;
#[cfg(test)]
mod tests;
mod tokens;

pub use definition::TextIndex;
pub use language::{IndexVersion, Language};
pub use matcher::Matcher;
pub use search::{Parsed, TextExpression};
pub use tokens::{Sensitivity, term_key};
