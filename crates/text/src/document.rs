//! The texts of a document, and the terms that these give it.
//!
//! A string is indexed where a weight names its path, or all are. Arrays are entered, and their elements
//! have the array's path; an array in an array only if all strings are indexed. A document may name the
//! language of its strings.
//!
//! ```text
//! a string's score of a term = weight · (1 + 1/2 + 1/4 + …, once for each time)
//!                            · (1/2 + 1/2 · times / words) · (1.1 where the term is all of it)
//! a document's               = the sum of its strings'
//! ```
//! (MongoDB's own formula, in place since version 2.4.)

use crate::search::until_nul;
use crate::tokens::{Sensitivity, Tokens};
use crate::{IndexVersion, Language, TextIndex};
use bson::{Doc, Val, tag};
use errors::{Fallible, bail};
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// A text of a document: how it is read, the text, its weight.
pub(crate) struct Text<'d> {
    pub tokens: Tokens,
    pub text: &'d str,
    pub weight: f64,
}

type Visit<'f, 'd> = &'f mut dyn FnMut(Text<'d>) -> ControlFlow<()>;

/// How often a term comes in one text.
#[derive(Default)]
struct Count {
    times: f64,
    /// 1 + 1/2 + 1/4 + …
    frequency: f64,
    next: f64,
}

impl TextIndex {
    /// The terms of a document with their scores.
    pub fn terms(&self, doc: Doc<'_>) -> Fallible<BTreeMap<String, f64>> {
        Ok(self.terms_while(doc, &mut |_, _| true)?.unwrap_or_default())
    }

    /// The same while `going` holds, which is told of the bytes of each word, and how many terms
    /// there are. `None`: it has ended.
    pub fn terms_while(
        &self,
        doc: Doc<'_>,
        going: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Fallible<Option<BTreeMap<String, f64>>> {
        let (mut out, mut ended) = (BTreeMap::new(), false);
        self.texts(doc, &mut |t| {
            ended = !add_scores(&t, &mut out, going);
            match ended {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        Ok((!ended).then_some(out))
    }

    /// Shows the texts of a document, in its order, until it is told to stop.
    pub(crate) fn texts<'d>(&self, doc: Doc<'d>, f: Visit<'_, 'd>) -> Fallible<()> {
        if self.version == IndexVersion::One {
            self.legacy_texts(doc, f);
            return Ok(());
        }
        let language = self.language_of(doc, self.language)?;
        self.document(doc, "", language, false, f).map(|_| ())
    }

    fn language_of(&self, doc: Doc<'_>, outer: Language) -> Fallible<Language> {
        let Some(v) = doc.get(&self.override_field) else {
            return Ok(outer);
        };
        let Some(name) = v.as_str() else {
            bail!(
                17261,
                "found language override field in document with non-string type"
            );
        };
        match Language::find(name, self.version) {
            Ok(language) => Ok(language),
            Err(_) => bail!(17262, "language override unsupported: {name}"),
        }
    }

    fn document<'d>(
        &self,
        doc: Doc<'d>,
        above: &str,
        language: Language,
        in_array: bool,
        f: Visit<'_, 'd>,
    ) -> Fallible<ControlFlow<()>> {
        let mut path = String::new();
        for e in doc {
            if self.wildcard && e.name == self.override_field {
                continue;
            }
            path.clear();
            path.push_str(above);
            if above.is_empty() {
                path.push_str(e.name);
            } else if !in_array {
                path.push('.');
                path.push_str(e.name);
            }
            if self
                .value(e.val, &mut path, language, in_array, f)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn value<'d>(
        &self,
        v: Val<'d>,
        path: &mut String,
        language: Language,
        in_array: bool,
        f: Visit<'_, 'd>,
    ) -> Fallible<ControlFlow<()>> {
        const NEXT: Fallible<ControlFlow<()>> = Ok(ControlFlow::Continue(()));
        let is_document = v.tag == tag::DOCUMENT;
        if is_document {
            path.push('.');
        }
        // A string without a weight of its own has that of the next path in order: so MongoDB does it.
        let from = path.as_str();
        let named = self
            .weights
            .range::<str, _>((Bound::Included(from), Bound::Unbounded))
            .next();
        if is_document {
            path.pop();
        }
        let path = path.as_str();
        let below = |p: &str| {
            p.strip_prefix(path)
                .is_some_and(|r| r.is_empty() || r.starts_with('.'))
        };
        if !self.wildcard && !named.is_some_and(|(p, _)| below(p)) {
            return NEXT;
        }
        let exact = named.is_some_and(|(p, _)| p == path);
        match v.tag {
            tag::STRING if exact || self.wildcard => Ok(f(Text {
                tokens: self.tokens(language),
                text: until_nul(v.as_str().unwrap_or("")),
                weight: named.map_or(1.0, |(_, w)| *w),
            })),
            tag::DOCUMENT if !exact || self.wildcard => {
                let doc = v.as_doc().unwrap_or(Doc::EMPTY);
                let language = self.language_of(doc, language)?;
                self.document(doc, path, language, false, f)
            }
            tag::ARRAY if !in_array || self.wildcard => {
                let items = v.as_array().unwrap_or(Doc::EMPTY);
                self.document(items, path, language, true, f)
            }
            _ => NEXT,
        }
    }

    pub(crate) fn tokens(&self, language: Language) -> Tokens {
        Tokens {
            language,
            version: self.version,
        }
    }

    /// Version 1: one language for the whole document, weights by the names of fields under `$**`.
    fn legacy_texts<'d>(&self, doc: Doc<'d>, f: Visit<'_, 'd>) {
        let named = doc.get(&self.override_field).and_then(|v| v.as_str());
        let named = named.filter(|n| !n.is_empty());
        let found = named.map(|n| Language::find(n, IndexVersion::One));
        let tokens = self.tokens(match found {
            Some(Ok(language)) => language,
            _ => self.language,
        });
        if self.wildcard {
            let _ = self.legacy_all(doc, tokens, f);
            return;
        }
        for (path, weight) in &self.weights {
            let mut shown = |v: Option<Val<'d>>| match v.and_then(|v| v.as_str()) {
                Some(text) => f(Text {
                    tokens,
                    text: until_nul(text),
                    weight: *weight,
                }),
                None => ControlFlow::Continue(()),
            };
            let (found, left) = along(doc, path);
            let stopped = match found.and_then(|v| v.as_array()) {
                None => shown(found),
                Some(items) => items.values().try_for_each(|v| match v.as_container() {
                    Some(d) if !left.is_empty() => shown(along(d, left).0),
                    _ => shown(Some(v)),
                }),
            };
            if stopped.is_break() {
                return;
            }
        }
    }

    fn legacy_all<'d>(&self, doc: Doc<'d>, tokens: Tokens, f: Visit<'_, 'd>) -> ControlFlow<()> {
        for e in doc.iter().filter(|e| e.name != self.override_field) {
            if let Some(text) = e.val.as_str() {
                f(Text {
                    tokens,
                    text: until_nul(text),
                    weight: self.weights.get(e.name).copied().unwrap_or(1.0),
                })?;
            } else if let Some(d) = e.val.as_container() {
                self.legacy_all(d, tokens, f)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// The value at a path, or the first array on the way to it and what of the path is left.
fn along<'d, 'p>(doc: Doc<'d>, path: &'p str) -> (Option<Val<'d>>, &'p str) {
    let (part, left) = path.split_once('.').unwrap_or((path, ""));
    let v = doc.get(part);
    match v.and_then(|v| v.as_doc()) {
        Some(d) if !left.is_empty() => along(d, left),
        None if !left.is_empty() && v.is_none_or(|v| v.tag != tag::ARRAY) => (None, left),
        _ => (v, left),
    }
}

/// Adds a text's scores to those of its document, while `going` holds ([`TextIndex::terms_while`]);
/// whether it held to the end.
pub(crate) fn add_scores(
    t: &Text<'_>,
    scores: &mut BTreeMap<String, f64>,
    going: &mut dyn FnMut(usize, usize) -> bool,
) -> bool {
    let mut on = true;
    let mut counts: HashMap<String, Count> = HashMap::default();
    let mut words = 0.0;
    t.tokens
        .each(t.text, Sensitivity::default(), false, |term| {
            words += 1.0;
            match counts.get_mut(term) {
                Some(c) => c.add(),
                None => counts.entry(term.to_string()).or_default().add(),
            }
            on = going(term.len(), counts.len().max(scores.len()));
            on
        });
    if !on {
        return false;
    }
    for (term, count) in counts {
        let score = count.score(&term, words, t);
        *scores.entry(term).or_default() += score;
    }
    going(0, scores.len())
}

impl Count {
    fn add(&mut self) {
        self.next = if self.next == 0.0 {
            1.0
        } else {
            self.next * 2.0
        };
        self.times += 1.0;
        self.frequency += 1.0 / self.next;
    }

    fn score(&self, term: &str, words: f64, t: &Text<'_>) -> f64 {
        let share = (0.5 * self.times / words) + 0.5;
        let mut whole = 1.0;
        if t.text.eq_ignore_ascii_case(term) {
            whole += 0.1;
        }
        t.weight * self.frequency * share * whole
    }
}
