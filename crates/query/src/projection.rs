//! Find's projections: document bytes to document bytes.
//!
//! A projection is a tree of names. Applying it copies elements of the document as they are; only
//! computed fields, slices and picked array elements are built. Included fields keep the document's
//! order, computed ones follow in the order of the specification (manual, "Project Fields to Return
//! from Query").

use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::filter::{Filter, Node, Test};
use crate::list::Places;
use crate::metadata::{self, Metadata};
use crate::path::FieldPath;
use crate::sort::field_path;
use bson::{Doc, DocBuf, Elem, Val, Writer, tag};
use errors::{Result, bail, err};
use std::borrow::Cow;

/// A parsed projection of `find`.
#[derive(Clone, Debug)]
pub struct Projection {
    inclusion: bool,
    root: Branch,
    positional: bool,
    source: DocBuf,
    /// Fields that show the index's key.
    index_key: Vec<Box<str>>,
    near: bool,
}

#[derive(Clone, Debug, Default)]
struct Branch {
    children: Vec<(Box<str>, Child)>,
    places: Places,
    /// A computed field is here or below.
    computed: bool,
    /// A positional field is here or below.
    positional: bool,
}

#[derive(Clone, Debug)]
enum Child {
    /// Included or excluded, as the projection is.
    Leaf,
    Branch(Branch),
    /// `$slice`: from where (negative: from the end), and how many.
    Slice {
        skip: i64,
        limit: Option<i64>,
    },
    /// `a.$`
    Positional,
    ElemMatch(Box<Test>),
    Computed(Expression),
}

/// The parsed part, and its properties so far.
struct Parser<'p> {
    env: &'p ParseEnv,
    filter: Option<&'p Filter>,
    /// Inclusion or exclusion, once a field has said so.
    inclusion: Option<bool>,
    id: Option<bool>,
    elem_match: bool,
    positional: Option<FieldPath>,
    index_key: Vec<Box<str>>,
    /// Some `$meta` may ask how far documents are from a point.
    near: bool,
    root: Branch,
}

impl Projection {
    /// `filter`: the query that a positional `a.$` refers to.
    pub fn parse(doc: Doc<'_>, filter: Option<&Filter>, env: &ParseEnv) -> Result<Projection> {
        let mut p = Parser {
            env,
            filter,
            inclusion: None,
            id: None,
            elem_match: false,
            positional: None,
            index_key: Vec::new(),
            near: false,
            root: Branch::default(),
        };
        for e in doc {
            p.field("", e)?;
        }
        let inclusion = p.inclusion.unwrap_or(p.elem_match || p.id == Some(true));
        let id_given = p.root.children.iter().any(|(n, _)| &**n == "_id");
        if !id_given {
            // In an inclusion `_id` comes along unless refused; in an exclusion it goes only when
            // refused.
            match (inclusion, p.id) {
                (true, None | Some(true)) | (false, Some(false)) => {
                    p.root.children.insert(0, ("_id".into(), Child::Leaf));
                    p.root.places.renew(&p.root.children);
                }
                _ => {}
            }
        }
        p.root.settle();
        Ok(Projection {
            inclusion,
            root: p.root,
            positional: p.positional.is_some(),
            index_key: p.index_key,
            near: p.near,
            source: doc.to_buf(),
        })
    }

    /// Whether it may ask how far documents are from a point.
    pub fn reads_near(&self) -> bool {
        self.near
    }

    /// The specification as it was given.
    pub fn to_doc(&self) -> DocBuf {
        self.source.clone()
    }

    /// Gives every document back as it is.
    pub fn is_identity(&self) -> bool {
        !self.inclusion && self.root.children.is_empty()
    }

    pub fn is_inclusion(&self) -> bool {
        self.inclusion
    }

    /// Only whole top-level fields, included or excluded.
    pub fn is_simple(&self) -> bool {
        self.root
            .children
            .iter()
            .all(|(_, c)| matches!(c, Child::Leaf))
    }

    /// Whether [`Projection::apply`] needs the position that the filter matched at
    /// ([`Filter::first_matched_index`]).
    pub fn needs_match_index(&self) -> bool {
        self.positional
    }

    /// Fields that show the key of the index that found the document; the executor adds them.
    pub fn index_key_fields(&self) -> &[Box<str>] {
        &self.index_key
    }

    /// Whether it shows `$meta` of that name.
    pub fn asks_for(&self, name: &str) -> bool {
        self.root.computed && metadata::asks_for(self.source.as_doc().as_val(), name)
    }

    /// Appends the projected document to `out`. `matched`: what [`Filter::first_matched_index`]
    /// said, where needed.
    pub fn apply(
        &self,
        doc: Doc<'_>,
        matched: Option<u32>,
        vars: &Vars,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.apply_with(doc, matched, vars, Metadata::NONE, out)
    }

    /// The same where something is known of the document.
    pub fn apply_with(
        &self,
        doc: Doc<'_>,
        matched: Option<u32>,
        vars: &Vars,
        meta: &Metadata,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let pass = Pass {
            inclusion: self.inclusion,
            root: doc,
            matched,
            vars,
            meta,
        };
        pass.document(&self.root, doc, out)
    }

    /// Dotted fields that suffice to compute the projection; `None` when the whole document is
    /// needed.
    pub fn needed_fields(&self) -> Option<Vec<String>> {
        if !self.inclusion {
            return None;
        }
        let mut out = Vec::new();
        self.root.needed("", &mut out)?;
        out.sort();
        out.dedup();
        Some(out)
    }
}

impl Branch {
    fn get(&self, name: &[u8]) -> Option<(usize, &Child)> {
        let i = self.places.find(&self.children, name)?;
        Some((i, &self.children[i].1))
    }

    /// Puts `child` at the end of `path`; refuses where another field's path already leads.
    fn insert(&mut self, path: &FieldPath, at: usize, child: Child) -> Result<()> {
        let name = path.part(at);
        let last = at + 1 == path.len();
        let Some(i) = self.places.find(&self.children, name.as_bytes()) else {
            let child = if last {
                child
            } else {
                let mut b = Branch::default();
                b.insert(path, at + 1, child)?;
                Child::Branch(b)
            };
            self.children.push((name.into(), child));
            self.places.note(&self.children);
            return Ok(());
        };
        match &mut self.children[i].1 {
            _ if last => bail!(31250, "Path collision at {path}"),
            Child::Branch(b) => b.insert(path, at + 1, child)?,
            _ => bail!(
                31249,
                "Path collision at {path} remaining portion {}",
                path.tail(at + 1)
            ),
        }
        Ok(())
    }

    /// Fills in what lies below.
    fn settle(&mut self) {
        for (_, c) in &mut self.children {
            match c {
                Child::Branch(b) => {
                    b.settle();
                    self.computed |= b.computed;
                    self.positional |= b.positional;
                }
                Child::Computed(_) | Child::ElemMatch(_) => self.computed = true,
                Child::Positional => self.positional = true,
                Child::Leaf | Child::Slice { .. } => {}
            }
        }
    }

    fn needed(&self, prefix: &str, out: &mut Vec<String>) -> Option<()> {
        for (name, c) in &self.children {
            match c {
                Child::Branch(b) => b.needed(&format!("{prefix}{name}."), out)?,
                Child::Computed(e) => out.extend(e.needed_paths()?),
                _ => out.push([prefix, name].concat()),
            }
        }
        Some(())
    }
}

impl Parser<'_> {
    /// One element of the specification; `prefix` (with its dot) is the path of the object that it
    /// stands in.
    fn field(&mut self, prefix: &str, e: Elem<'_>) -> Result<()> {
        errors::operation::step()?;
        let full = match prefix {
            "" => Cow::Borrowed(e.name),
            _ => Cow::Owned(format!("{prefix}{}", e.name)),
        };
        if let Some(name) = full.strip_suffix(".$") {
            return self.positional(name, e.val);
        }
        if e.name.contains(".$.") {
            bail!(
                31394,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional projection \
                 may only be used at the end, for example: a.b.$. If the query previously used a form like a.b.$.d, \
                 remove the parts following the '$' and the results will be equivalent."
            );
        }
        let path = field_path(e.name)?;
        let path = match prefix {
            "" => path,
            _ => field_path(&full)?,
        };
        if let Some(d) = e.val.as_doc() {
            let Some(first) = d.first() else {
                bail!(
                    51270,
                    "An empty sub-projection is not a valid value. Found empty object at path"
                );
            };
            if first.name.starts_with('$') && d.count() == 1 {
                return self.operator(path, first, e.val);
            }
            for inner in d {
                self.field(&format!("{full}."), inner)?;
            }
            return Ok(());
        }
        if e.val.is_number() || e.val.tag == tag::BOOL {
            return self.flag(path, e.val.truthy());
        }
        // Any other value is a literal, or a field path as an expression.
        if self.inclusion == Some(false) {
            bail!(
                31310,
                "Cannot use an expression {}: {} in an exclusion projection",
                e.name,
                e.val
            );
        }
        self.inclusion = Some(true);
        let expr = Expression::parse(e.val, self.env)?;
        self.root.insert(&path, 0, Child::Computed(expr))
    }

    fn flag(&mut self, path: FieldPath, include: bool) -> Result<()> {
        if path.is_id() {
            if self.id.is_some() {
                bail!(31250, "Path collision at {path}");
            }
            self.id = Some(include);
            return Ok(());
        }
        match (self.inclusion, include) {
            (Some(false), true) => bail!(
                31253,
                "Cannot do inclusion on field {path} in exclusion projection"
            ),
            (Some(true), false) => bail!(
                31254,
                "Cannot do exclusion on field {path} in inclusion projection"
            ),
            _ => self.inclusion = Some(include),
        }
        self.root.insert(&path, 0, Child::Leaf)
    }

    fn positional(&mut self, name: &str, v: Val<'_>) -> Result<()> {
        if name.contains(".$.") || name.ends_with(".$") {
            bail!(
                31394,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path."
            );
        }
        let path = field_path(name)?;
        if v.as_doc().is_some() {
            bail!(
                31271,
                "positional projection cannot be used with an expression or sub object"
            );
        }
        if !v.is_number() && v.tag != tag::BOOL {
            bail!(31308, "positional projection cannot be used with a literal");
        }
        if self.positional.is_some() {
            bail!(
                31276,
                "Cannot specify more than one positional projection per query."
            );
        }
        if self.elem_match {
            bail!(31256, "Cannot specify positional operator and $elemMatch.");
        }
        if self.inclusion == Some(false) || !v.truthy() {
            bail!(31395, "positional projection cannot be used with exclusion");
        }
        let Some(filter) = self.filter else {
            bail!(
                51050,
                "Projections with a positional operator require a matcher"
            );
        };
        if filter.has_expr() {
            bail!(
                QueryFeatureNotAllowed,
                "$expr is not allowed in the query predicate with a positional projection"
            );
        }
        self.inclusion = Some(true);
        self.positional = Some(path.clone());
        self.root.insert(&path, 0, Child::Positional)
    }

    fn operator(&mut self, path: FieldPath, op: Elem<'_>, whole: Val<'_>) -> Result<()> {
        match op.name {
            "$slice" => {
                let taken = |p: &FieldPath| p.conflicts_with(&path);
                if !self.positional.as_ref().is_some_and(taken)
                    && let Some(child) = slice(op.val)?
                {
                    return self.root.insert(&path, 0, child);
                }
            }
            "$elemMatch" => return self.elem_match(path, op.val),
            "$meta" => {
                if op.val.as_str() == Some("indexKey") && !path.is_dotted() {
                    self.index_key.push(path.as_str().into());
                }
                let near = self.filter.is_some_and(|f| f.near().is_some());
                self.near |= near;
                let expr = Expression::parse(whole, &self.env.clone().with_near(near))?;
                return self.root.insert(&path, 0, Child::Computed(expr));
            }
            name if !crate::expr::is_operator(name) => bail!(31325, "Unknown expression {name}"),
            _ => {}
        }
        let expr = Expression::parse(whole, self.env)?;
        if self.inclusion == Some(false) {
            bail!(
                31252,
                "Cannot use an expression {} in an exclusion projection",
                path
            );
        }
        self.inclusion = Some(true);
        self.root.insert(&path, 0, Child::Computed(expr))
    }

    fn elem_match(&mut self, path: FieldPath, v: Val<'_>) -> Result<()> {
        if v.as_doc().is_none() {
            bail!(
                31274,
                "elemMatch: Invalid argument, object required, but got {}",
                v.type_name()
            );
        }
        if self.positional.is_some() {
            bail!(31255, "Cannot specify positional operator and $elemMatch.");
        }
        if path.is_dotted() {
            bail!(31275, "Cannot use $elemMatch projection on a nested field.");
        }
        if mentions(v, &["$near", "$nearSphere", "$geoNear"]) {
            bail!(
                5626500,
                "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require sorting \
                 geospatial data."
            );
        }
        if mentions(v, &["$jsonSchema"]) {
            bail!(
                QueryFeatureNotAllowed,
                "$jsonSchema is not allowed in this context"
            );
        }
        let mut w = Writer::new();
        w.open_doc(path.as_str()).val("$elemMatch", v).close();
        let mut root = Filter::parse(w.finish().as_doc(), self.env)?.into_root();
        let test = match &mut root {
            Node::Pred { test, .. } => test.clone(),
            _ => return Err(err!(BadValue, "$elemMatch needs an Object").into()),
        };
        self.elem_match = true;
        self.root.insert(&path, 0, Child::ElemMatch(Box::new(test)))
    }
}

/// Whether a field of one of these names is anywhere in the value.
fn mentions(v: Val<'_>, names: &[&str]) -> bool {
    v.as_container().is_some_and(|d| {
        d.iter()
            .any(|e| names.contains(&e.name) || mentions(e.val, names))
    })
}

/// `$slice` of find: a count, or skip and count. `None`: it is the expression of that name.
fn slice(v: Val<'_>) -> Result<Option<Child>> {
    if v.is_number() {
        let n = v.to_i64_truncated().unwrap_or(0);
        return Ok(Some(if n < 0 {
            Child::Slice {
                skip: n,
                limit: None,
            }
        } else {
            Child::Slice {
                skip: 0,
                limit: Some(n),
            }
        }));
    }
    let Some(list) = v.as_array() else {
        return Ok(None);
    };
    let parts: Vec<Val<'_>> = list.values().take(3).collect();
    match parts[..] {
        [skip, limit] if skip.is_number() && limit.is_number() => {
            let limit = limit.to_i64_truncated().unwrap_or(0);
            if limit <= 0 {
                bail!(28724, "$slice limit must be positive");
            }
            Ok(Some(Child::Slice {
                skip: skip.to_i64_truncated().unwrap_or(0),
                limit: Some(limit),
            }))
        }
        _ => Ok(None),
    }
}

/// One application to one document.
struct Pass<'a> {
    inclusion: bool,
    root: Doc<'a>,
    matched: Option<u32>,
    vars: &'a Vars,
    meta: &'a Metadata,
}

fn open(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    start
}

fn close(out: &mut Vec<u8>, start: usize) {
    out.push(0);
    let len = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

#[inline]
fn head(out: &mut Vec<u8>, tag: u8, name: &[u8]) {
    out.push(tag);
    out.extend_from_slice(name);
    out.push(0);
}

fn index_head(out: &mut Vec<u8>, tag: u8, n: usize) {
    out.push(tag);
    out.extend_from_slice(n.to_string().as_bytes());
    out.push(0);
}

impl<'a> Pass<'a> {
    fn document(&self, branch: &Branch, doc: Doc<'_>, out: &mut Vec<u8>) -> Result<()> {
        let start = open(out);
        let mut it = doc.iter();
        // Fields whose place is taken, as bits; computed ones among the first 64 only, which is all
        // that matters.
        let mut placed = 0u64;
        let mut left = branch.children.len();
        while let Some((name, v)) = it.next_raw() {
            let Some((i, child)) = branch.get(name) else {
                if !self.inclusion {
                    head(out, v.tag, name);
                    out.extend_from_slice(v.bytes);
                }
                continue;
            };
            match child {
                Child::Leaf if self.inclusion => {
                    head(out, v.tag, name);
                    out.extend_from_slice(v.bytes);
                }
                // An exclusion leaves the field where it is.
                Child::ElemMatch(_) if !self.inclusion => {
                    self.computed(&branch.children[i].0, child, doc, out)?;
                    placed |= 1 << i.min(63);
                }
                Child::Leaf | Child::Computed(_) | Child::ElemMatch(_) => {}
                Child::Slice { skip, limit } => {
                    head(out, v.tag, name);
                    sliced(v, *skip, *limit, out);
                }
                Child::Positional => {
                    head(out, v.tag, name);
                    self.picked(v, None, out)?;
                }
                Child::Branch(b) => {
                    if self.branch(b, name, v, out)? {
                        placed |= 1 << i.min(63);
                    }
                }
            }
            left -= 1;
            if left == 0 && self.inclusion && !branch.computed {
                break;
            }
            left = left.max(1);
        }
        if branch.computed {
            for (i, (name, child)) in branch.children.iter().enumerate() {
                if placed & (1 << i.min(63)) != 0 && i < 63 {
                    continue;
                }
                self.computed(name, child, doc, out)?;
            }
        }
        close(out, start);
        Ok(())
    }

    /// A value that the specification looks into. Says whether it was written.
    fn branch(&self, b: &Branch, name: &[u8], v: Val<'_>, out: &mut Vec<u8>) -> Result<bool> {
        match v.tag {
            tag::DOCUMENT => {
                head(out, v.tag, name);
                self.document(b, v.as_doc().unwrap_or(Doc::EMPTY), out)?;
                Ok(true)
            }
            tag::ARRAY => {
                head(out, v.tag, name);
                if b.positional {
                    self.picked(v, Some(b), out)?;
                } else {
                    self.array(b, v, out)?;
                }
                Ok(true)
            }
            _ if self.inclusion => Ok(false),
            _ => {
                head(out, v.tag, name);
                out.extend_from_slice(v.bytes);
                Ok(true)
            }
        }
    }

    /// Each element of an array by itself; an element that is no document is dropped by an inclusion,
    /// kept by an exclusion.
    fn array(&self, b: &Branch, v: Val<'_>, out: &mut Vec<u8>) -> Result<()> {
        let start = open(out);
        let mut n = 0;
        for e in v.as_array().unwrap_or(Doc::EMPTY).values() {
            match e.tag {
                tag::DOCUMENT => {
                    index_head(out, e.tag, n);
                    self.document(b, e.as_doc().unwrap_or(Doc::EMPTY), out)?;
                }
                tag::ARRAY => {
                    index_head(out, e.tag, n);
                    self.array(b, e, out)?;
                }
                _ if b.computed => {
                    index_head(out, tag::DOCUMENT, n);
                    self.document(b, Doc::EMPTY, out)?;
                }
                _ if self.inclusion => continue,
                _ => {
                    index_head(out, e.tag, n);
                    out.extend_from_slice(e.bytes);
                }
            }
            n += 1;
        }
        close(out, start);
        Ok(())
    }

    /// `a.$`: of an array only the element that the query matched (projected further when the path
    /// goes on).
    fn picked(&self, v: Val<'_>, below: Option<&Branch>, out: &mut Vec<u8>) -> Result<()> {
        let Some(items) = v.as_array() else {
            out.extend_from_slice(v.bytes);
            return Ok(());
        };
        let Some(n) = self.matched else {
            bail!(
                51246,
                "Executor error during find command :: caused by :: positional operator '.$' couldn't find a matching \
                 element in the array"
            );
        };
        let Some(e) = items.values().nth(n as usize) else {
            bail!(
                51247,
                "Executor error during find command :: caused by :: positional operator '.$' element mismatch"
            );
        };
        let start = open(out);
        match (below, e.as_doc()) {
            (Some(b), Some(d)) => {
                index_head(out, e.tag, 0);
                let whole = Branch {
                    places: b.places.clone(),
                    children: b
                        .children
                        .iter()
                        .map(|(n, c)| {
                            let c = match c {
                                Child::Positional => Child::Leaf,
                                c => c.clone(),
                            };
                            (n.clone(), c)
                        })
                        .collect(),
                    computed: b.computed,
                    positional: false,
                };
                self.document(&whole, d, out)?;
            }
            (Some(_), None) => {}
            (None, _) => {
                index_head(out, e.tag, 0);
                out.extend_from_slice(e.bytes);
            }
        }
        close(out, start);
        Ok(())
    }

    fn computed(&self, name: &str, child: &Child, doc: Doc<'_>, out: &mut Vec<u8>) -> Result<()> {
        match child {
            Child::Computed(e) => {
                let ctx = EvalCtx::new(self.root, self.vars).with_meta(self.meta);
                let v = e.evaluate(&ctx)?;
                if let Some(v) = v.as_val() {
                    head(out, v.tag, name.as_bytes());
                    out.extend_from_slice(v.bytes);
                }
            }
            Child::ElemMatch(test) => {
                let Some(v) = doc.get(name) else {
                    return Ok(());
                };
                if let Some(e) = test.matching_element(v, self.vars)? {
                    head(out, tag::ARRAY, name.as_bytes());
                    let start = open(out);
                    index_head(out, e.tag, 0);
                    out.extend_from_slice(e.bytes);
                    close(out, start);
                }
            }
            Child::Branch(b) if b.computed => {
                head(out, tag::DOCUMENT, name.as_bytes());
                self.document(b, Doc::EMPTY, out)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn sliced(v: Val<'_>, skip: i64, limit: Option<i64>, out: &mut Vec<u8>) {
    let Some(items) = v.as_array() else {
        out.extend_from_slice(v.bytes);
        return;
    };
    let count = items.count() as i64;
    let from = if skip < 0 {
        count.saturating_add(skip).max(0)
    } else {
        skip.min(count)
    };
    let n = limit.unwrap_or(i64::MAX).min(count - from);
    let start = open(out);
    let picked = items
        .values()
        .skip(usize::try_from(from).unwrap_or(0))
        .take(usize::try_from(n).unwrap_or(0));
    for (i, e) in picked.enumerate() {
        index_head(out, e.tag, i);
        out.extend_from_slice(e.bytes);
    }
    close(out, start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Value;
    use bson::json;

    fn project(spec: &str, doc: &str, filter: &str) -> String {
        let env = ParseEnv::default();
        let f = Filter::parse(json::parse(filter).unwrap().as_doc(), &env).unwrap();
        let spec = json::parse(spec).unwrap();
        let p = match Projection::parse(spec.as_doc(), Some(&f), &env) {
            Ok(p) => p,
            Err(e) => return e.into_error().code.0.to_string(),
        };
        let d = json::parse(doc).unwrap();
        let vars = Vars::default();
        let at = f.first_matched_index(d.as_doc(), &vars).unwrap().flatten();
        let mut out = Vec::new();
        match p.apply(d.as_doc(), at, &vars, &mut out) {
            Ok(()) => Doc::new(&out).unwrap().to_string().replace(' ', ""),
            Err(e) => e.into_error().code.0.to_string(),
        }
    }

    #[test]
    fn projections() {
        let doc =
            r#"{"_id":1,"a":[1,2,3],"b":{"c":1,"d":2},"e":[{"f":1,"g":2},5,[{"f":3}]],"h":"x"}"#;
        for (spec, want) in [
            (r#"{"h":1}"#, r#"{"_id":1,"h":"x"}"#),
            (r#"{"h":1,"_id":0}"#, r#"{"h":"x"}"#),
            (r#"{"_id":1}"#, r#"{"_id":1}"#),
            (r#"{"b.c":1,"_id":0}"#, r#"{"b":{"c":1}}"#),
            (r#"{"b":{"c":1},"_id":0}"#, r#"{"b":{"c":1}}"#),
            (r#"{"e.f":1,"_id":0}"#, r#"{"e":[{"f":1},[{"f":3}]]}"#),
            (r#"{"h.x":1,"_id":0}"#, r#"{}"#),
            (
                r#"{"a":0,"b.d":0,"e":0}"#,
                r#"{"_id":1,"b":{"c":1},"h":"x"}"#,
            ),
            (
                r#"{"_id":0,"a":0,"b":0,"e.f":0}"#,
                r#"{"e":[{"g":2},5,[{}]],"h":"x"}"#,
            ),
            (
                r#"{"a":{"$slice":2},"h":1,"_id":0}"#,
                r#"{"a":[1,2],"h":"x"}"#,
            ),
            (
                r#"{"a":{"$slice":-1},"b":0,"e":0,"_id":0}"#,
                r#"{"a":[3],"h":"x"}"#,
            ),
            (r#"{"a":{"$slice":[1,1]},"_id":1}"#, r#"{"_id":1,"a":[2]}"#),
            (r#"{"a":{"$elemMatch":{"$gt":1}}}"#, r#"{"_id":1,"a":[2]}"#),
            (r#"{"a.$":1,"_id":0}"#, r#"{"a":[2]}"#),
            (r#"{"e.f.$":1,"_id":0}"#, r#"{"e":[]}"#),
            (r#"{"a":1,"b":0}"#, "31254"),
            (r#"{"a":0,"b":1}"#, "31253"),
            (r#"{"a":1,"a.b":1}"#, "31249"),
            (r#"{"a.b":1,"a":1}"#, "31250"),
            (r#"{"a":{}}"#, "51270"),
            (r#"{"a.$":1,"b.$":1}"#, "31276"),
            (r#"{"a.$.b":1}"#, "31394"),
            (r#"{"b":0,"a.$":1}"#, "31395"),
            (r#"{"a.$":1,"e":{"$elemMatch":{"f":1}}}"#, "31255"),
            (r#"{"b.c":{"$elemMatch":{"f":1}}}"#, "31275"),
            (r#"{"$a":1}"#, "16410"),
            (r#"{"a":{"$slice":[0,0]}}"#, "28724"),
        ] {
            assert_eq!(project(spec, doc, r#"{"a":{"$gte":2}}"#), want, "{spec}");
        }
        assert_eq!(project(r#"{"a.$":1}"#, doc, r#"{"h":"x"}"#), "51246");
        assert_eq!(project(r#"{}"#, r#"{"a":1}"#, "{}"), r#"{"a":1}"#);
    }
    /// Many fields of wide documents: each against all others, they would take hours.
    #[test]
    fn wide() {
        const N: i32 = 200_000;
        let name = |i: i32| format!("f{}", i * 7919 % N);
        let (mut d, mut p) = (Writer::new(), Writer::new());
        for i in 0..N {
            d.i32(&format!("f{i}"), i);
            p.i32(&name(i), 1);
        }
        let (d, p) = (d.finish(), p.finish());
        let env = ParseEnv::new();
        let projection = Projection::parse(p.as_doc(), None, &env).unwrap();
        let vars = Vars::new(0);
        let mut out = Vec::new();
        projection.apply(d.as_doc(), None, &vars, &mut out).unwrap();
        assert_eq!(out, d.as_bytes());
        let stage = crate::transform::Transform::project(p.as_doc(), &env).unwrap();
        out.clear();
        stage
            .apply(&EvalCtx::new(d.as_doc(), &vars), &mut out)
            .unwrap();
        assert_eq!(out, d.as_bytes());
        let fields = Value::from(d.clone());
        let literal = Expression::parse(fields.as_val(), &env).unwrap();
        let made = literal.evaluate(&EvalCtx::new(Doc::EMPTY, &vars)).unwrap();
        assert_eq!(made.into_value().unwrap(), fields);
        assert!(crate::sort::SortPattern::parse(p.as_doc()).is_err());
        // Twice is a collision still.
        let mut w = Writer::new();
        w.extend(p.as_doc()).i32(&name(N - 1), 1);
        let e = Projection::parse(w.finish().as_doc(), None, &env).unwrap_err();
        assert_eq!(e.failure().unwrap().code.0, 31250);
    }
}
