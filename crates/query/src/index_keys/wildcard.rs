//! Wildcard indexes: which paths they hold, and their keys.
//!
//! ```text
//! entry = fields before | path (a string) | value | fields after
//! ```
//! A document has an entry for each value that is no document, under the path to it; positions in
//! arrays are no part of a path. An empty document is a value, an empty array is undefined, an
//! array inside an array is a value. In a compound wildcard index a document without any such value
//! has the path and the value MinKey.

use super::{FieldKind, KeyField, KeySet, Multikey, Stop, walk};
use crate::path::FieldPath;
use bson::{Doc, Val, Value, tag};
use errors::{Result, bail};
use smallvec::SmallVec;

/// The name of the field of paths, as in MongoDB's explain.
pub(super) const PATH: &str = "$_path";

/// What a wildcard index holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    /// The position of the path among the fields; the value follows it.
    at: usize,
    /// Paths that are held (`include`), or left out; `_id` stands for itself.
    paths: Vec<FieldPath>,
    include: bool,
    id: bool,
    compound: bool,
}

/// How a path relates to the indexed ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    /// Something below may be held.
    Above,
    Inside,
}

impl Wildcard {
    /// `scope`: the path before `$**`; `regular`: the other fields of the index.
    pub(super) fn parse(
        at: usize,
        scope: FieldPath,
        projection: Option<Doc<'_>>,
        regular: &[&FieldPath],
    ) -> Result<Wildcard> {
        let mut out = Wildcard {
            at,
            id: scope.first() == "_id",
            include: !scope.is_empty(),
            paths: Vec::new(),
            compound: !regular.is_empty(),
        };
        match projection {
            Some(_) if !scope.is_empty() => bail!(
                FailedToParse,
                "The field 'wildcardProjection' is only allowed when 'key' is {{\"$**\": ±1}}"
            ),
            Some(p) => out.project(p)?,
            None if !scope.is_empty() => out.paths.push(scope),
            None => {}
        }
        if projection.is_none() && out.compound && out.paths.is_empty() {
            bail!(
                CannotCreateIndex,
                "The 'wildcardProjection' field is required of a compound index on all fields"
            );
        }
        if let Some(f) = regular
            .iter()
            .find(|f| out.place(f.as_str()) != Place::Outside)
        {
            bail!(
                7246209,
                "wildcardProjection of a compound wildcard index must exclude its other field '{f}'"
            );
        }
        Ok(out)
    }

    fn project(&mut self, p: Doc<'_>) -> Result<()> {
        if p.is_empty() {
            bail!(
                FailedToParse,
                "The 'wildcardProjection' field can't be an empty object"
            );
        }
        let (mut include, mut id) = (None, None);
        self.add(p, &FieldPath::empty(), &mut include, &mut id)?;
        // Of `_id` alone: the rest is the opposite.
        self.include = include.unwrap_or(id == Some(true));
        self.id = id == Some(true);
        Ok(())
    }

    fn add(
        &mut self,
        p: Doc<'_>,
        above: &FieldPath,
        include: &mut Option<bool>,
        id: &mut Option<bool>,
    ) -> Result<()> {
        for e in p {
            if e.name.is_empty() || e.name.starts_with('$') {
                bail!(
                    16410,
                    "FieldPath field names may not start with '$' or be empty, given '{}'",
                    e.name
                );
            }
            let path = above.join(&FieldPath::new(e.name));
            if let Some(d) = e.val.as_doc() {
                if d.is_empty() {
                    bail!(51270, "An empty sub-projection is not a valid value");
                }
                if d.first().is_some_and(|e| e.name.starts_with('$')) {
                    bail!(
                        51271,
                        "Bad projection specification, cannot use computed fields when parsing a wildcard projection"
                    );
                }
                self.add(d, &path, include, id)?;
                continue;
            }
            if !e.val.is_number() && e.val.tag != tag::BOOL {
                bail!(
                    51271,
                    "Bad projection specification, cannot use computed fields when parsing a wildcard projection: {}: {}",
                    e.name,
                    e.val
                );
            }
            let on = e.val.truthy();
            if path.is_id() {
                *id = Some(on);
                continue;
            }
            if let Some(other) = self.paths.iter().find(|o| o.conflicts_with(&path)) {
                let code = if path.starts_with(other) {
                    31249
                } else {
                    31250
                };
                return Err(errors::Error::coded(code, format!("Path collision at {path}")).into());
            }
            match *include {
                Some(true) if !on => bail!(
                    31254,
                    "Cannot do exclusion on field {path} in inclusion projection"
                ),
                Some(false) if on => bail!(
                    31253,
                    "Cannot do inclusion on field {path} in exclusion projection"
                ),
                _ => *include = Some(on),
            }
            self.paths.push(path);
        }
        Ok(())
    }

    fn place(&self, path: &str) -> Place {
        let below = |p: &str, of: &str| {
            p.strip_prefix(of)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut paths = self.paths.iter().map(FieldPath::as_str);
        if below(path, "_id") && !paths.clone().any(|p| below(p, "_id")) {
            return if self.id {
                Place::Inside
            } else {
                Place::Outside
            };
        }
        match self.include {
            true if paths.clone().any(|p| below(path, p)) => Place::Inside,
            true if paths.any(|p| below(p, path)) => Place::Above,
            true => Place::Outside,
            false if paths.any(|p| below(path, p)) => Place::Outside,
            false => Place::Inside,
        }
    }

    /// Whether every scalar on the path is held.
    pub fn covers(&self, path: &FieldPath) -> bool {
        !path.is_empty() && self.place(path.as_str()) == Place::Inside
    }

    /// Whether the index has other fields.
    pub fn is_compound(&self) -> bool {
        self.compound
    }

    /// The position of the path among the fields of the pattern.
    pub fn at(&self) -> usize {
        self.at
    }

    pub(super) fn extract(
        &self,
        fields: &[KeyField],
        doc: Doc<'_>,
        out: &mut KeySet,
    ) -> Result<Multikey> {
        out.clear();
        let mut regular: SmallVec<[Option<Val<'_>>; 4]> = SmallVec::new();
        for f in fields {
            regular.push(match f.kind {
                FieldKind::Ordered => match walk(&f.path, doc, 0) {
                    Stop::Leaf(v) => v,
                    Stop::Array { .. } => bail!(
                        7246301,
                        "Multikey is not supported on the regular fields of a compound wildcard index: '{}'",
                        f.path
                    ),
                },
                _ => None,
            });
        }
        let mut walk = Walk {
            wildcard: self,
            fields,
            regular: &regular,
            out,
            arrays: false,
        };
        walk.document(doc, &mut String::new());
        let arrays = walk.arrays;
        if out.is_empty() && self.compound {
            let mut walk = Walk {
                wildcard: self,
                fields,
                regular: &regular,
                out,
                arrays,
            };
            walk.put(Val::MIN_KEY, Val::MIN_KEY);
        }
        out.complete()?;
        out.sort();
        Ok(Multikey(if arrays {
            1 << (self.at + 1).min(63)
        } else {
            0
        }))
    }
}

struct Walk<'w, 'a> {
    wildcard: &'w Wildcard,
    fields: &'w [KeyField],
    regular: &'w [Option<Val<'a>>],
    out: &'w mut KeySet,
    arrays: bool,
}

impl Walk<'_, '_> {
    /// Whether anything was put.
    fn document(&mut self, d: Doc<'_>, path: &mut String) -> bool {
        let before = self.out.len();
        for e in d {
            // No query reaches a name with a dot.
            if e.name.contains('.') {
                continue;
            }
            let len = path.len();
            if len > 0 {
                path.push('.');
            }
            path.push_str(e.name);
            match self.wildcard.place(path) {
                Place::Outside => {}
                place => self.value(e.val, path, place == Place::Inside),
            }
            path.truncate(len);
        }
        self.out.len() > before
    }

    fn value(&mut self, v: Val<'_>, path: &mut String, held: bool) {
        match v.tag {
            tag::ARRAY => {
                self.arrays = true;
                let items = v.as_array().unwrap_or(Doc::EMPTY);
                if items.is_empty() && held {
                    self.put_at(path, Val::UNDEFINED);
                }
                for e in items.values() {
                    match e.tag {
                        tag::ARRAY if held => self.put_at(path, e),
                        tag::ARRAY => {}
                        _ => self.value(e, path, held),
                    }
                }
            }
            tag::DOCUMENT => {
                let any = self.document(v.as_doc().unwrap_or(Doc::EMPTY), path);
                if !any && held {
                    self.put_at(path, bson::doc! {}.as_doc().as_val());
                }
            }
            _ if held => self.put_at(path, v),
            _ => {}
        }
    }

    fn put_at(&mut self, path: &str, v: Val<'_>) {
        if self.out.full {
            return;
        }
        let path = Value::from(path);
        self.put(path.as_val(), v);
    }

    fn put(&mut self, path: Val<'_>, v: Val<'_>) {
        let start = self.out.begin();
        for (f, regular) in self.fields.iter().zip(self.regular) {
            match f.kind {
                FieldKind::WildcardPath => self.out.put_as_is(path, false),
                FieldKind::Wildcard => self.out.put(Some(v), f.descending),
                _ => self.out.put(*regular, f.descending),
            }
        }
        self.out.end(start);
    }
}
