//! Field paths: `a.b.c` walked over documents; an array on the way gives the array of what its
//! documents hold.

use super::{Computed, Vars};
use bson::{Doc, Val, Writer, tag};
use errors::{Result, bail};
use smallvec::SmallVec;
use std::fmt;

/// The most components a path may have.
const MAX_COMPONENTS: usize = 200;

/// A parsed dotted path; may be empty when it follows a variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExprPath {
    parts: SmallVec<[Box<str>; 2]>,
}

impl ExprPath {
    /// Splits and checks a path written without its `$`.
    pub fn parse(path: &str) -> Result<ExprPath> {
        if path.is_empty() {
            bail!(40352, "FieldPath cannot be constructed with empty string");
        }
        if path.ends_with('.') {
            bail!(40353, "FieldPath must not end with a '.'.");
        }
        let mut parts = SmallVec::new();
        for part in path.split('.') {
            super::check_field_name(part)?;
            parts.push(Box::from(part));
        }
        if parts.len() > MAX_COMPONENTS {
            bail!(Overflow, "FieldPath is too long");
        }
        Ok(ExprPath { parts })
    }

    /// Splits a path of a sort specification, which may name any field.
    pub(crate) fn unchecked(path: &str) -> ExprPath {
        ExprPath {
            parts: path.split('.').map(Box::from).collect(),
        }
    }

    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The value in a document; the elements on the way count as work.
    #[inline]
    pub(crate) fn eval_in<'a>(&self, doc: Doc<'a>, vars: &Vars) -> Result<Computed<'a>> {
        let mut seen = 0;
        if let [name] = &*self.parts {
            let found = get(doc, name, &mut seen);
            vars.work_elements(seen)?;
            return Ok(found.into());
        }
        let found = walk(doc, &self.parts, &mut seen);
        vars.work_elements(seen)?;
        Ok(found)
    }

    /// From any value: of a document its field, of an array the array of its documents' fields.
    #[inline]
    pub(crate) fn eval_below<'a>(&self, v: Val<'a>, vars: &Vars) -> Result<Computed<'a>> {
        if self.parts.is_empty() {
            return Ok(Computed::Ref(v));
        }
        let mut seen = 0;
        let found = match v.tag {
            tag::DOCUMENT => v
                .as_doc()
                .map_or(Computed::Missing, |d| walk(d, &self.parts, &mut seen)),
            tag::ARRAY => v
                .as_array()
                .map_or(Computed::Missing, |a| walk_array(a, &self.parts, &mut seen)),
            _ => Computed::Missing,
        };
        vars.work_elements(seen)?;
        Ok(found)
    }
}

/// The first field of that name; `seen` grows by the elements on the way.
#[inline]
pub(super) fn get<'a>(doc: Doc<'a>, name: &str, seen: &mut usize) -> Option<Val<'a>> {
    let mut it = doc.iter();
    while let Some((n, v)) = it.next_raw() {
        *seen += 1;
        if bson::same_name(n, name) {
            return Some(v);
        }
    }
    None
}

fn walk<'a>(mut doc: Doc<'a>, parts: &[Box<str>], seen: &mut usize) -> Computed<'a> {
    let mut rest = parts;
    while let Some((name, after)) = rest.split_first() {
        let Some(v) = get(doc, name, seen) else {
            return Computed::Missing;
        };
        if after.is_empty() {
            return Computed::Ref(v);
        }
        match v.tag {
            tag::DOCUMENT => match v.as_doc() {
                Some(d) => doc = d,
                None => return Computed::Missing,
            },
            tag::ARRAY => {
                return v
                    .as_array()
                    .map_or(Computed::Missing, |a| walk_array(a, after, seen));
            }
            _ => return Computed::Missing,
        }
        rest = after;
    }
    Computed::Missing
}

fn walk_array<'a>(array: Doc<'a>, parts: &[Box<str>], seen: &mut usize) -> Computed<'a> {
    let mut w = Writer::new_array();
    for item in array.values() {
        *seen += 1;
        let Some(d) = item.as_doc() else { continue };
        if let Some(v) = walk(d, parts, seen).as_val() {
            // A copy of so many bytes, in elements.
            *seen += v.bytes.len() / 8;
            w.push(v);
        }
    }
    Computed::Owned(w.finish_array())
}

impl fmt::Display for ExprPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.parts.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            f.write_str(p)?;
        }
        Ok(())
    }
}
