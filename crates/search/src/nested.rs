//! Vectors in the elements of an array (`nestedRoot`): each element is indexed as a document of its own.
//!
//! ```text
//! {c: "x", r: [{v: …, n: 1}, {v: …, n: 2}]}    with the root r  ─▶  {r: {v: …, n: 1}, PARENT: {c: "x"}}
//!                                                                   {r: {v: …, n: 2}, PARENT: {c: "x"}}
//! ```
//! So a filter sees what lies within the element, and a parent filter, whose paths begin with PARENT, what lies beside
//! the array. All have the key of the one record, and the slot of its first vector, which tells them from those of
//! others.
//!
//! Source: MongoDB's manual, "How to Index Fields for Vector Search", nestedRoot.

use crate::hits::Hit;
use crate::operator::{Clause, Operator};
use bson::{Doc, DocBuf, Val, Writer};
use std::collections::HashMap;

/// The name that a parent's own fields are indexed within. No array is named so: a path that a definition gives is text
/// of a user, who would have to mean it.
pub(crate) const PARENT: &str = "\u{1}";

/// The most elements of one document that are indexed.
const MOST_ELEMENTS: usize = 10_000;

/// How the scores of a document's elements become its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScoreMode {
    Max,
    Avg,
}

/// The documents that are indexed for one.
pub(crate) fn elements(doc: Doc<'_>, root: &str) -> Vec<DocBuf> {
    let mut at = Some(doc.as_val());
    for part in root.split('.') {
        at = at.and_then(|v| v.as_doc()).and_then(|d| d.get(part));
    }
    let Some(list) = at.and_then(|v| v.as_array()) else {
        return Vec::new();
    };
    let parts: Vec<&str> = root.split('.').collect();
    let mut parent = Writer::new();
    without(&mut parent, doc, &parts);
    let parent = parent.finish();
    let documents = list.values().filter(|v| v.as_doc().is_some());
    let one = |element: Val<'_>| {
        let mut w = Writer::new();
        let (last, outer) = parts.split_last().unwrap_or((&"", &[]));
        outer.iter().for_each(|part| {
            w.open_doc(part);
        });
        w.val(last, element);
        outer.iter().for_each(|_| {
            w.close();
        });
        w.doc(PARENT, parent.as_doc());
        w.finish()
    };
    documents.take(MOST_ELEMENTS).map(one).collect()
}

/// A document without what lies at a path.
fn without(w: &mut Writer, doc: Doc<'_>, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    for e in doc.iter() {
        match e.val.as_doc() {
            _ if e.name != *first => {
                w.val(e.name, e.val);
            }
            Some(inner) if !rest.is_empty() && e.val.as_array().is_none() => {
                w.open_doc(e.name);
                without(w, inner, rest);
                w.close();
            }
            _ => {}
        }
    }
}

/// The path of a parent's own field.
pub(crate) fn of_parent(path: &str) -> String {
    format!("{PARENT}.{path}")
}

/// Has a filter ask the parents.
pub(crate) fn ask_parents(clause: &mut Clause) {
    match &mut clause.operator {
        Operator::Compound {
            must,
            should,
            must_not,
            filter,
            ..
        } => {
            let all = [must, should, must_not, filter];
            all.into_iter().flatten().for_each(ask_parents);
        }
        Operator::Values { paths, .. } | Operator::Range { paths, .. } => {
            paths.iter_mut().for_each(|p| *p = of_parent(p));
        }
        Operator::Exists { path } => *path = of_parent(path),
        // A filter has no others.
        _ => {}
    }
}

/// The scores of elements, by the parent that they are of.
#[derive(Default)]
pub(crate) struct Parents(HashMap<u64, (Hit, f64, u32)>);

impl Parents {
    pub fn add(&mut self, parent: u64, hit: Hit) {
        let (best, sum, count) = self.0.entry(parent).or_insert((hit, 0.0, 0));
        if hit < *best {
            *best = hit;
        }
        *sum += f64::from(hit.score);
        *count += 1;
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One hit for each parent.
    pub fn hits(self, mode: ScoreMode) -> impl Iterator<Item = Hit> {
        self.0
            .into_values()
            .map(move |(best, sum, count)| match mode {
                ScoreMode::Max => best,
                ScoreMode::Avg => Hit {
                    score: (sum / f64::from(count.max(1))) as f32,
                    at: best.at,
                },
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_becomes_a_document() {
        let doc = bson::json::parse(r#"{"c": "x", "a": {"k": 1, "r": [{"n": 1}, 5, {"n": 2}]}}"#)
            .unwrap();
        let got = elements(doc.as_doc(), "a.r");
        let want = [1, 2].map(|n| {
            let text = format!(
                "{{\"a\": {{\"r\": {{\"n\": {n}}}}}, \"\\u0001\": {{\"c\": \"x\", \"a\": {{\"k\": 1}}}}}}"
            );
            bson::json::parse(&text).unwrap()
        });
        assert_eq!(got, want);
        assert!(elements(doc.as_doc(), "c").is_empty());
        assert!(elements(doc.as_doc(), "no.such").is_empty());
    }
}
