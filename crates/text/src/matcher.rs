//! A search in one text index: by which terms it finds documents, which of these match, and how well.

use crate::document::add_scores;
use crate::tokens::Sensitivity;
use crate::{Language, Parsed, TextExpression, TextIndex};
use bson::Doc;
use errors::{Fallible, operation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct Matcher {
    pub index: Arc<TextIndex>,
    pub parsed: Arc<Parsed>,
    sensitivity: Sensitivity,
}

impl Matcher {
    pub fn new(search: &TextExpression, index: Arc<TextIndex>) -> Fallible<Matcher> {
        let language = match search.language.as_str() {
            "" => index.language,
            name => Language::find(name, index.version)?,
        };
        let parsed = search.parse_for(&index.tokens(language));
        // Words were left out where the operation has ended.
        operation::ask()?;
        Ok(Matcher {
            parsed: Arc::new(parsed),
            sensitivity: search.sensitivity,
            index,
        })
    }

    /// Whether having one of the terms is all that is asked of a document.
    pub fn is_by_terms(&self) -> bool {
        let p = &self.parsed;
        self.sensitivity == Sensitivity::default()
            && p.phrases.is_empty()
            && p.negated_phrases.is_empty()
            && p.negated_terms.is_empty()
    }

    /// `going` is asked before the document is gone over once more; where it says no, so is the
    /// answer.
    pub fn matches(&self, doc: Doc<'_>, going: &dyn Fn() -> bool) -> bool {
        let p = &self.parsed;
        going()
            && self.has_term(doc, &p.terms)
            && going()
            && !self.has_term(doc, &p.negated_terms)
            && p.phrases.iter().all(|x| going() && self.has_phrase(doc, x))
            && !(p.negated_phrases.iter()).any(|x| !going() || self.has_phrase(doc, x))
    }

    fn has_term(&self, doc: Doc<'_>, terms: &BTreeSet<String>) -> bool {
        if terms.is_empty() {
            return false;
        }
        let mut found = false;
        // A document whose language is unknown is in no index.
        let _ = self.index.texts(doc, &mut |t| {
            t.tokens.each(t.text, self.sensitivity, true, |w| {
                found = terms.contains(w);
                !found
            });
            match found {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        found
    }

    fn has_phrase(&self, doc: Doc<'_>, phrase: &str) -> bool {
        let mut found = false;
        let _ = self.index.texts(doc, &mut |t| {
            found = t.tokens.has_phrase(t.text, phrase, self.sensitivity);
            match found {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        found
    }

    /// The sum of the document's scores of the terms it is found by.
    pub fn score(&self, doc: Doc<'_>) -> f64 {
        let mut scores = BTreeMap::new();
        let _ = self.index.texts(doc, &mut |t| {
            add_scores(&t, &mut scores, &mut |_, _| true);
            ControlFlow::Continue(())
        });
        let each = self.parsed.bounds.iter();
        each.filter_map(|term| scores.get(term)).sum()
    }
}
