//! The operators of an update, arranged by path.
//!
//! Invariant: no path is a prefix of another (conflicts are refused here), and the fields under a node are in the order in
//! which new ones are created: by name, numbers by value.

use super::operator::Op;
use crate::expr::ParseEnv;
use crate::filter::Filter;
use bson::Doc;
use errors::{Result, bail, err};
use smallvec::SmallVec;
use std::sync::Arc;

/// All operators of one update.
#[derive(Debug)]
pub struct Operators {
    pub root: Fields,
    pub filters: Vec<ArrayFilter>,
    /// A positional `$` occurs somewhere.
    pub positional: bool,
    pub touched: Vec<String>,
}

#[derive(Debug)]
pub struct ArrayFilter {
    pub id: String,
    /// Over documents `{id: element}`.
    pub filter: Filter,
}

#[derive(Clone, Debug)]
pub enum Node {
    Leaf(Arc<Op>),
    Fields(Fields),
    /// Below `$[]` (no identifier) and `$[id]`.
    Elements(Vec<(Option<usize>, Node)>),
}

/// Children by name.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub children: Vec<Child>,
    /// Below the positional `$`.
    pub positional: Option<Box<Node>>,
}

#[derive(Clone, Debug)]
pub struct Child {
    pub name: String,
    /// The array position that the name stands for.
    pub index: Option<u32>,
    pub node: Node,
}

fn is_filtered(part: &str) -> bool {
    part.starts_with("$[") && part.ends_with(']')
}

fn all_digits(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())
}

/// The order of creation: numbers by value, everything else by its bytes.
fn precedes(a: &str, b: &str) -> bool {
    if all_digits(a) && all_digits(b) {
        let (x, y) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
        (x.len(), x, a) < (y.len(), y, b)
    } else {
        a < b
    }
}

impl Fields {
    pub fn insert_child(&mut self, name: &str, node: Node) -> &mut Child {
        // Not a sort: the order is not transitive between numbers and other names.
        let at = self
            .children
            .iter()
            .position(|c| precedes(name, &c.name))
            .unwrap_or(self.children.len());
        self.children.insert(
            at,
            Child {
                name: name.to_string(),
                index: crate::path::array_index(name),
                node,
            },
        );
        &mut self.children[at]
    }
}

fn conflict(path: &str, at: &str) -> errors::Error {
    err!(
        ConflictingUpdateOperators,
        "Updating the path '{path}' would create a conflict at '{at}'"
    )
}

/// Joins two nodes that turned out to stand for the same place of a document.
pub fn merge(a: &Node, b: &Node, at: &str) -> Result<Node> {
    let clash = || {
        err!(
            ConflictingUpdateOperators,
            "Update created a conflict at '{at}'"
        )
    };
    match (a, b) {
        (Node::Fields(x), Node::Fields(y)) => {
            let mut out = x.clone();
            for c in &y.children {
                let path = format!("{at}.{}", c.name);
                match out.children.iter_mut().find(|o| o.name == c.name) {
                    Some(o) => o.node = merge(&o.node, &c.node, &path)?,
                    None => {
                        out.insert_child(&c.name, c.node.clone());
                    }
                }
            }
            out.positional = match (&x.positional, &y.positional) {
                (Some(p), Some(q)) => Some(Box::new(merge(p, q, &format!("{at}.$"))?)),
                (p, q) => p.as_ref().or(q.as_ref()).cloned(),
            };
            Ok(Node::Fields(out))
        }
        (Node::Elements(x), Node::Elements(y)) => {
            let mut out = x.clone();
            for (id, n) in y {
                match out.iter_mut().find(|(o, _)| o == id) {
                    Some((_, o)) => *o = merge(o, n, &format!("{at}.$[]"))?,
                    None => out.push((*id, n.clone())),
                }
            }
            Ok(Node::Elements(out))
        }
        _ => Err(clash()),
    }
}

impl Operators {
    pub fn parse(u: Doc<'_>, array_filters: &[Doc<'_>], env: &ParseEnv) -> Result<Operators> {
        let mut ops = Operators {
            root: Fields::default(),
            filters: Vec::new(),
            positional: false,
            touched: Vec::new(),
        };
        for f in array_filters {
            let f = ArrayFilter::parse(*f, env)?;
            if ops.filters.iter().any(|o| o.id == f.id) {
                bail!(
                    FailedToParse,
                    "Found multiple array filters with the same top-level field name {}",
                    f.id
                );
            }
            ops.filters.push(f);
        }
        let mut used = vec![false; ops.filters.len()];
        for modifier in u.iter() {
            Op::check_name(modifier.name)?;
            let Some(fields) = modifier.val.as_doc() else {
                bail!(
                    FailedToParse,
                    "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} not {{{}: {}}}",
                    modifier.val.type_name(),
                    modifier.name,
                    modifier.val
                );
            };
            for e in fields.iter() {
                if modifier.name == "$rename" {
                    let to = Op::parse_rename(e.name, e.val)?;
                    ops.insert(e.name, Op::RenameFrom, &mut used)?;
                    ops.insert(to, Op::rename_to(e.name), &mut used)?;
                } else {
                    let op = Op::parse(modifier.name, e.name, e.val, env)?;
                    ops.insert(e.name, op, &mut used)?;
                }
            }
        }
        if let Some(i) = used.iter().position(|u| !u) {
            bail!(
                FailedToParse,
                "The array filter for identifier '{}' was not used in the update {u}",
                ops.filters[i].id
            );
        }
        Ok(ops)
    }

    fn filter_of(&self, part: &str, path: &str, used: &mut [bool]) -> Result<Option<usize>> {
        let id = &part[2..part.len() - 1];
        if id.is_empty() {
            return Ok(None);
        }
        match self.filters.iter().position(|f| f.id == id) {
            Some(i) => {
                used[i] = true;
                Ok(Some(i))
            }
            None => Err(err!(
                BadValue,
                "No array filter found for identifier '{id}' in path '{path}'"
            )),
        }
    }

    fn insert(&mut self, path: &str, op: Op, used: &mut [bool]) -> Result<()> {
        let parts: SmallVec<[&str; 8]> = path.split('.').collect();
        if parts.iter().any(|p| p.is_empty()) {
            bail!(
                EmptyFieldName,
                "The update path '{path}' contains an empty field name, which is not allowed."
            );
        }
        if parts.len() > bson::MAX_DEPTH + 1 {
            return Err(too_deep());
        }
        if parts[0] == "$" {
            bail!(
                BadValue,
                "Cannot have positional (i.e. '$') element in the first position in path '{path}'"
            );
        }
        if is_filtered(parts[0]) {
            bail!(
                BadValue,
                "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{path}'"
            );
        }
        match parts.iter().filter(|p| **p == "$").count() {
            0 => {}
            1 => self.positional = true,
            _ => bail!(
                BadValue,
                "Too many positional (i.e. '$') elements found in path '{path}'"
            ),
        }
        let ids = parts
            .iter()
            .map(|p| {
                if is_filtered(p) {
                    self.filter_of(p, path, used).map(Some)
                } else {
                    Ok(None)
                }
            })
            .collect::<Result<SmallVec<[_; 8]>>>()?;
        let fixed = parts
            .iter()
            .position(|p| *p == "$" || is_filtered(p) || all_digits(p))
            .unwrap_or(parts.len());
        self.touched.push(parts[..fixed.max(1)].join("."));

        let mut leaf = Some(Node::Leaf(Arc::new(op)));
        let mut fresh = |i: usize| match (parts.get(i + 1), ids.get(i + 1)) {
            (None, _) => leaf.take().unwrap_or(Node::Elements(Vec::new())),
            (_, Some(Some(_))) => Node::Elements(Vec::new()),
            _ => Node::Fields(Fields::default()),
        };
        let mut at = &mut self.root;
        let mut i = 0;
        loop {
            // `i` is a named component (or `$`) below `at`.
            let prefix = || parts[..=i].join(".");
            let slot = if parts[i] == "$" {
                let known = at.positional.is_some();
                let n = at.positional.get_or_insert_with(|| Box::new(fresh(i)));
                (known, &mut **n)
            } else {
                match at.children.iter().position(|c| c.name == parts[i]) {
                    Some(n) => (true, &mut at.children[n].node),
                    None => (false, &mut at.insert_child(parts[i], fresh(i)).node),
                }
            };
            let (mut known, mut node) = slot;
            let mut where_ = prefix();
            // Array components hang below the node of the array.
            while let Some(Some(id)) = ids.get(i + 1) {
                let Node::Elements(list) = node else {
                    return Err(conflict(path, &where_));
                };
                i += 1;
                where_ = parts[..=i].join(".");
                let n = match list.iter().position(|(o, _)| o == id) {
                    Some(n) => {
                        known = true;
                        n
                    }
                    None => {
                        known = false;
                        list.push((*id, fresh(i)));
                        list.len() - 1
                    }
                };
                node = &mut list[n].1;
            }
            if i + 1 == parts.len() {
                return if known {
                    Err(conflict(path, &where_))
                } else {
                    Ok(())
                };
            }
            match node {
                Node::Fields(f) => at = f,
                _ => return Err(conflict(path, &where_)),
            }
            i += 1;
        }
    }
}

pub fn too_deep() -> errors::Error {
    err!(
        Overflow,
        "Document exceeds maximum nesting depth of {}",
        bson::MAX_DEPTH
    )
}

impl ArrayFilter {
    fn parse(f: Doc<'_>, env: &ParseEnv) -> Result<ArrayFilter> {
        const CONTEXT: &str = "Error parsing array filter";
        if f.contains("$expr") {
            bail!(
                QueryFeatureNotAllowed,
                "{CONTEXT} :: caused by :: $expr is not allowed in this context"
            );
        }
        let mut id = None;
        top_level_name(f, &mut id).map_err(|e| e.context(CONTEXT))?;
        let filter = Filter::parse(f, env).map_err(|e| e.context(CONTEXT))?;
        let Some(id) = id else {
            bail!(
                FailedToParse,
                "Cannot use an expression without a top-level field name in arrayFilters"
            );
        };
        let mut letters = id.bytes();
        if !letters.next().is_some_and(|b| b.is_ascii_lowercase())
            || !letters.all(|b| b.is_ascii_alphanumeric())
        {
            bail!(
                BadValue,
                "{CONTEXT} :: caused by :: The top-level field name must be an alphanumeric string beginning with a \
                 lowercase letter, found '{id}'"
            );
        }
        Ok(ArrayFilter { id, filter })
    }
}

/// The one first component that all paths of a filter share.
fn top_level_name(f: Doc<'_>, id: &mut Option<String>) -> Result<()> {
    for e in f.iter() {
        match e.name {
            "$and" | "$or" | "$nor" => {
                for branch in e.val.as_array().unwrap_or(Doc::EMPTY).values() {
                    top_level_name(branch.as_doc().unwrap_or(Doc::EMPTY), id)?;
                }
            }
            "$text" | "$where" => bail!(BadValue, "{} is not allowed in this context", e.name),
            n if n.starts_with('$') => {}
            n => {
                if let Some(ops) = e.val.as_doc()
                    && ops
                        .iter()
                        .any(|o| matches!(o.name, "$near" | "$nearSphere" | "$geoNear"))
                {
                    bail!(
                        5626500,
                        "$geoNear, $near, and $nearSphere are not allowed in this context"
                    );
                }
                let first = n.split('.').next().unwrap_or(n);
                match id {
                    None => *id = Some(first.to_string()),
                    Some(old) if old == first => {}
                    Some(old) => bail!(
                        FailedToParse,
                        "Expected a single top-level field name, found '{old}' and '{first}'"
                    ),
                }
            }
        }
    }
    Ok(())
}
