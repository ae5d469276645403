//! `$project`, `$addFields`/`$set`, `$unset`, `$replaceRoot`/`$replaceWith`: document bytes in,
//! document bytes out.
//!
//! A specification is a tree of names. Elements that stay are copied as they are; kept fields hold
//! the document's order, computed ones that are new follow in the order of the specification.

mod parse;

use crate::expr::{EvalCtx, Expression, Key, check_depth, join_paths};
use crate::list::Places;
use crate::path::FieldPath;
use bson::{Doc, Val, Value, Writer};
use errors::{Result, bail};
use std::collections::BTreeSet;

/// A compiled one-document transformation.
#[derive(Clone, Debug)]
pub struct Transform {
    kind: Kind,
    /// The specification, for explain.
    spec: Value,
}

#[derive(Clone, Debug)]
enum Kind {
    Tree(Mode, Branch),
    Replace(Expression),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Include,
    Exclude,
    /// Everything stays, computed fields are set.
    Add,
}

#[derive(Clone, Debug, Default)]
struct Branch {
    children: Vec<(Box<str>, Child)>,
    places: Places,
    /// A computed field is here or below.
    computed: bool,
}

#[derive(Clone, Debug)]
enum Child {
    /// Included or excluded, as the mode is.
    Leaf,
    Computed(Expression),
    Branch(Branch),
}

/// The largest document between two stages. What a client gets or a collection stores has the
/// smaller limit of documents.
const MAX_BETWEEN_STAGES_BYTES: usize = 64 * 1024 * 1024;

impl Transform {
    /// Appends the resulting document to `out`.
    pub fn apply(&self, ctx: &EvalCtx<'_>, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        ctx.vars.begin_work();
        match &self.kind {
            Kind::Tree(mode, root) => {
                let mut w = Writer::on(std::mem::take(out));
                let applied = root.apply(*mode, Some(ctx.root), ctx, &mut w);
                *out = w.finish_into();
                if let Err(e) = applied {
                    out.truncate(start);
                    return Err(e);
                }
                if root.computed {
                    self.check(out, start)?;
                }
            }
            Kind::Replace(e) => {
                let v = e.evaluate(ctx)?;
                let Some(d) = v.as_val().and_then(Val::as_doc) else {
                    bail!(
                        40228,
                        "'newRoot' expression  must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'. Input document: {}",
                        v.as_val().map_or("MISSING".into(), |v| v.to_string()),
                        v.type_name(),
                        ctx.root
                    );
                };
                out.extend_from_slice(d.as_bytes());
                self.check(out, start)?;
            }
        }
        Ok(())
    }

    /// Refuses results too large or too deep; gives `out` back as it was then.
    fn check(&self, out: &mut Vec<u8>, start: usize) -> Result<()> {
        let size = out.len() - start;
        let checked = if size > MAX_BETWEEN_STAGES_BYTES {
            Err(errors::err!(
                BSONObjectTooLarge,
                "BSONObj size: {size} is invalid. Size must be between 0 and {MAX_BETWEEN_STAGES_BYTES}"
            ).into())
        } else {
            Doc::new(&out[start..]).map_or(Ok(()), |d| check_depth(d.as_val()))
        };
        if checked.is_err() {
            out.truncate(start);
        }
        checked
    }

    /// Whether it only drops fields and copies others: no expression is evaluated.
    pub fn is_simple(&self) -> bool {
        matches!(&self.kind, Kind::Tree(_, b) if !b.computed)
    }

    /// Whether only included and computed fields are left.
    pub fn is_inclusion(&self) -> bool {
        matches!(&self.kind, Kind::Tree(Mode::Include, _))
    }

    /// Whether the field of that name comes out exactly as it went in.
    pub fn keeps(&self, top_level: &str) -> bool {
        match &self.kind {
            Kind::Replace(_) => false,
            Kind::Tree(mode, root) => matches!(
                (mode, root.child(top_level.as_bytes())),
                (Mode::Include, Some((_, Child::Leaf))) | (Mode::Exclude | Mode::Add, None)
            ),
        }
    }

    /// The path of the input under which every test finds what it finds under `path` in the result;
    /// `None` where there is none, or it is not known.
    ///
    /// If a field below another is computed, any other value on the way becomes a document, which a test
    /// of its neighbours sees. Where fields below another are left out, elements of arrays may be, so
    /// that positions are others.
    pub(crate) fn source_of(&self, path: &FieldPath) -> Option<FieldPath> {
        let (mode, root) = match &self.kind {
            Kind::Tree(mode, root) => (*mode, root),
            Kind::Replace(e) => match e.key()? {
                Key::Document(fields) => {
                    let (_, field) = fields.iter().find(|(name, _)| **name == *path.first())?;
                    return (!field.is_dotted()).then(|| field.join(&path.tail(1)));
                }
                Key::Value(_) => return None,
            },
        };
        let mut branch = root;
        for depth in 0..path.len() {
            if depth > 0 && (branch.computed || path.index(depth).is_some()) {
                return None;
            }
            match (mode, branch.child(path.part(depth).as_bytes())) {
                (Mode::Include, None) | (Mode::Exclude | Mode::Add, Some((_, Child::Leaf))) => {
                    return None;
                }
                (Mode::Include, Some((_, Child::Leaf))) | (Mode::Exclude | Mode::Add, None) => {
                    return Some(path.clone());
                }
                (_, Some((_, Child::Branch(below)))) => branch = below,
                (_, Some((_, Child::Computed(e)))) => {
                    let field = FieldPath::new(&e.as_path()?);
                    let plain = depth == 0 && !field.is_dotted();
                    return plain.then(|| field.join(&path.tail(1)));
                }
            }
        }
        None
    }

    /// Whether fields that it does not name come out.
    pub(crate) fn keeps_unnamed(&self) -> bool {
        matches!(&self.kind, Kind::Tree(Mode::Exclude | Mode::Add, _))
    }

    /// The field that becomes the document, where it does nothing else.
    pub(crate) fn root_field(&self) -> Option<FieldPath> {
        match &self.kind {
            Kind::Replace(e) => e.as_path().map(|p| FieldPath::new(&p)),
            Kind::Tree(..) => None,
        }
    }

    /// Paths of the input that decide what it changes, whatever else comes out; `None` when all of
    /// it may.
    pub(crate) fn read_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        match &self.kind {
            Kind::Tree(Mode::Exclude, _) => {}
            Kind::Tree(_, root) => root.needed("", &mut all),
            Kind::Replace(e) => join_paths(&mut all, e.needed_paths()),
        }
        all
    }

    /// The specification as explain prints it.
    pub fn to_value(&self) -> Value {
        self.spec.clone()
    }

    /// Paths of the input that decide the output; `None` when all of it may.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        match &self.kind {
            Kind::Tree(Mode::Include, root) => root.needed("", &mut all),
            Kind::Tree(..) => all = None,
            Kind::Replace(e) => join_paths(&mut all, e.needed_paths()),
        }
        all
    }
}

impl Branch {
    fn child(&self, name: &[u8]) -> Option<(usize, &Child)> {
        let i = self.places.find(&self.children, name)?;
        Some((i, &self.children[i].1))
    }

    /// Writes the fields of `input` (none when there is no document to start from) into the open
    /// document of `w`.
    fn apply(
        &self,
        mode: Mode,
        input: Option<Doc<'_>>,
        ctx: &EvalCtx<'_>,
        w: &mut Writer,
    ) -> Result<()> {
        let mut done: smallvec::SmallVec<[bool; 16]> =
            smallvec::smallvec![false; if self.computed { self.children.len() } else { 0 }];
        for e in input.unwrap_or(Doc::EMPTY).iter() {
            let Some((i, child)) = self.child(e.name.as_bytes()) else {
                if mode != Mode::Include {
                    w.val(e.name, e.val);
                }
                continue;
            };
            match child {
                Child::Leaf => {
                    if mode == Mode::Include {
                        w.val(e.name, e.val);
                    }
                }
                Child::Computed(x) => {
                    if mode == Mode::Add {
                        x.node.write(e.name, ctx, w)?;
                        done[i] = true;
                    }
                }
                Child::Branch(b) => {
                    let written = b.apply_below(mode, e.name, e.val, ctx, w)?;
                    if let Some(d) = done.get_mut(i) {
                        *d |= written;
                    }
                }
            }
        }
        if !self.computed {
            return Ok(());
        }
        for (i, (name, child)) in self.children.iter().enumerate() {
            match child {
                _ if done[i] => {}
                Child::Computed(x) => x.node.write(name, ctx, w)?,
                Child::Branch(b) if b.computed => {
                    w.open_doc(name);
                    b.apply(mode, None, ctx, w)?;
                    w.close();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes what becomes of a value under the branch; false when it is dropped.
    fn apply_below(
        &self,
        mode: Mode,
        name: &str,
        v: Val<'_>,
        ctx: &EvalCtx<'_>,
        w: &mut Writer,
    ) -> Result<bool> {
        if let Some(d) = v.as_doc() {
            w.open_doc(name);
            self.apply(mode, Some(d), ctx, w)?;
            w.close();
        } else if let Some(a) = v.as_array() {
            w.open_array(name);
            for x in a.values() {
                self.apply_below(mode, "", x, ctx, w)?;
            }
            w.close();
        } else {
            match mode {
                // Any other value gives way to a document for the computed fields.
                Mode::Include | Mode::Add if self.computed => {
                    w.open_doc(name);
                    self.apply(mode, None, ctx, w)?;
                    w.close();
                }
                Mode::Include => return Ok(false),
                Mode::Exclude | Mode::Add => {
                    w.val(name, v);
                }
            }
        }
        Ok(true)
    }

    fn needed(&self, prefix: &str, all: &mut Option<BTreeSet<String>>) {
        for (name, child) in &self.children {
            let path = if prefix.is_empty() {
                name.to_string()
            } else {
                format!("{prefix}.{name}")
            };
            match child {
                Child::Leaf => {
                    if let Some(all) = all {
                        all.insert(path);
                    }
                }
                Child::Computed(e) => {
                    // Computed below an array or document, it needs what it stands in, too.
                    if let (Some(all), false) = (all.as_mut(), prefix.is_empty()) {
                        all.insert(prefix.to_string());
                    }
                    join_paths(all, e.needed_paths());
                }
                Child::Branch(b) => b.needed(&path, all),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{ParseEnv, Vars};

    fn run(stage: &str, spec: &str, doc: &str) -> String {
        let env = ParseEnv::new();
        let spec = bson::json::parse_value(spec).unwrap();
        let v = spec.as_val();
        let t = match stage {
            "project" => Transform::project(v.as_doc().unwrap(), &env),
            "addFields" => Transform::add_fields("$addFields", v.as_doc().unwrap(), &env),
            "unset" => Transform::unset(v),
            "replaceRoot" => Transform::replace_root(v, &env),
            _ => Transform::replace_with(v, &env),
        };
        let doc = bson::json::parse(doc).unwrap();
        let vars = Vars::new(0);
        let mut out = Vec::new();
        match t.and_then(|t| t.apply(&EvalCtx::new(doc.as_doc(), &vars), &mut out)) {
            Ok(()) => {
                assert_eq!(bson::validate(&out).map(Doc::len), Ok(out.len()));
                Doc::new(&out).unwrap().to_string()
            }
            Err(e) => e.into_error().code.0.to_string(),
        }
    }

    #[test]
    fn cases() {
        let cases = [
            (
                "project",
                r#"{"a":1}"#,
                r#"{"_id":1,"a":2,"b":3}"#,
                r#"{"_id": 1, "a": 2}"#,
            ),
            (
                "project",
                r#"{"a":1,"_id":0}"#,
                r#"{"_id":1,"a":2,"b":3}"#,
                r#"{"a": 2}"#,
            ),
            (
                "project",
                r#"{"a":0}"#,
                r#"{"_id":1,"a":2,"b":3}"#,
                r#"{"_id": 1, "b": 3}"#,
            ),
            (
                "project",
                r#"{"_id":0}"#,
                r#"{"_id":1,"a":2}"#,
                r#"{"a": 2}"#,
            ),
            (
                "project",
                r#"{"a.b":1}"#,
                r#"{"a":{"b":1,"c":2}}"#,
                r#"{"a": {"b": 1}}"#,
            ),
            (
                "project",
                r#"{"a":{"b":1}}"#,
                r#"{"a":[{"b":1,"c":2},5,{"c":3}]}"#,
                r#"{"a": [{"b": 1}, {}]}"#,
            ),
            ("project", r#"{"a.b":1}"#, r#"{"a":5}"#, "{}"),
            (
                "project",
                r#"{"a.b":0}"#,
                r#"{"a":[{"b":1,"c":2},5]}"#,
                r#"{"a": [{"c": 2}, 5]}"#,
            ),
            (
                "project",
                r#"{"b":"$a","a":1}"#,
                r#"{"a":1}"#,
                r#"{"a": 1, "b": 1}"#,
            ),
            (
                "project",
                r#"{"a.b":{"$add":["$x",1]}}"#,
                r#"{"x":1,"a":[{"c":1},2]}"#,
                r#"{"a": [{"b": 2}, {"b": 2}]}"#,
            ),
            (
                "project",
                r#"{"a.b":{"$add":["$x",1]}}"#,
                r#"{"x":1,"a":7}"#,
                r#"{"a": {"b": 2}}"#,
            ),
            (
                "project",
                r#"{"x":"$nothing"}"#,
                r#"{"_id":1}"#,
                r#"{"_id": 1}"#,
            ),
            ("project", "{}", "{}", "51272"),
            ("project", r#"{"a":1,"b":0}"#, "{}", "31254"),
            ("project", r#"{"a":0,"b":1}"#, "{}", "31253"),
            ("project", r#"{"a":0,"b":{"$add":[1,2]}}"#, "{}", "31252"),
            ("project", r#"{"a":0,"b":"$a"}"#, "{}", "31310"),
            ("project", r#"{"a":1,"a.b":1}"#, "{}", "31249"),
            ("project", r#"{"a.b":1,"a":1}"#, "{}", "31250"),
            ("project", r#"{"a":{}}"#, "{}", "51270"),
            ("project", r#"{"a":{"$bogus":1}}"#, "{}", "31325"),
            (
                "addFields",
                r#"{"b":"$a"}"#,
                r#"{"a":1,"b":2,"c":3}"#,
                r#"{"a": 1, "b": 1, "c": 3}"#,
            ),
            (
                "addFields",
                r#"{"a.b":1}"#,
                r#"{"a":[1,{"c":1}]}"#,
                r#"{"a": [{"b": 1}, {"c": 1, "b": 1}]}"#,
            ),
            (
                "addFields",
                r#"{"a.b":1}"#,
                r#"{"a":5}"#,
                r#"{"a": {"b": 1}}"#,
            ),
            (
                "addFields",
                r#"{"a":{"b":1}}"#,
                r#"{"a":{"c":5}}"#,
                r#"{"a": {"c": 5, "b": 1}}"#,
            ),
            ("addFields", r#"{"a":"$$REMOVE"}"#, r#"{"a":{"c":5}}"#, "{}"),
            ("addFields", r#"{"a":1,"a.b":2}"#, "{}", "40176"),
            ("addFields", r#"{"a":{"x.y":1}}"#, "{}", "40183"),
            (
                "addFields",
                r#"{"a":{"$add":[1,2],"$multiply":[3,4]}}"#,
                "{}",
                "40181",
            ),
            (
                "unset",
                r#"["a.b","c"]"#,
                r#"{"a":{"b":1},"c":2,"d":3}"#,
                r#"{"a": {}, "d": 3}"#,
            ),
            ("unset", r#""a""#, r#"{"a":1}"#, "{}"),
            ("unset", "[]", "{}", "31119"),
            ("unset", "[1]", "{}", "31120"),
            ("unset", "1", "{}", "31002"),
            (
                "replaceRoot",
                r#"{"newRoot":"$a"}"#,
                r#"{"a":{"b":1}}"#,
                r#"{"b": 1}"#,
            ),
            ("replaceRoot", r#"{"newRoot":"$a"}"#, r#"{"a":1}"#, "40228"),
            ("replaceRoot", r#"{"x":"$a"}"#, r#"{"a":1}"#, "40415"),
            (
                "replaceWith",
                r#"{"$mergeObjects":["$$ROOT",{"x":1}]}"#,
                r#"{"a":1}"#,
                r#"{"a": 1, "x": 1}"#,
            ),
        ];
        for (stage, spec, doc, want) in cases {
            assert_eq!(run(stage, spec, doc), want, "{stage} {spec} of {doc}");
        }
    }
}
