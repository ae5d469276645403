//! A collection's validator, parsed once for each version of the collection.

use bson::{Doc, DocBuf};
use errors::Result;
use query::collation::Collation;
use query::expr::ParseEnv;
use query::filter::Filter;

/// Documents must match `filter`.
#[derive(Debug)]
pub struct Validator {
    /// An error when it was stored by a version that knew more operators: writes fail with it, the server starts.
    pub filter: Result<Filter>,
    pub source: DocBuf,
    /// A document that did not match before may stay so (`validationLevel: "moderate"`).
    pub moderate: bool,
    /// What does not match is refused (`error`, `errorAndLog`) or only logged (`warn`).
    pub refuses: bool,
    pub logs: bool,
    /// Whether matching needs variables.
    pub has_expr: bool,
}

impl Validator {
    /// `None` when documents are not tested.
    pub(crate) fn of(options: Doc<'_>) -> Option<Validator> {
        let source = options.get("validator")?.as_doc()?;
        let text = |name: &str| options.get(name).and_then(|v| v.as_str());
        let level = text("validationLevel").unwrap_or("strict");
        if source.is_empty() || level == "off" {
            return None;
        }
        let action = text("validationAction").unwrap_or("error");
        let collation = options.get("collation").and_then(|v| v.as_doc());
        let collation = collation.map_or(Ok(None), Collation::new);
        let filter = collation.and_then(|c| Filter::parse(source, &ParseEnv::new().collated(c)));
        Some(Validator {
            has_expr: filter.as_ref().is_ok_and(Filter::has_expr),
            filter,
            source: source.to_buf(),
            moderate: level == "moderate",
            refuses: action != "warn",
            logs: action != "error",
        })
    }
}
