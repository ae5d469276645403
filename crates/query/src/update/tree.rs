//! The operators of an update, arranged by path.
//!
//! Invariant: no path is a prefix of another (conflicts are refused here), and the fields under a
//! node are in the order in which new ones are created: by name, numbers by value.

use super::array::decimal;
use super::operator::UpdateOp;
use crate::expr::ParseEnv;
use crate::filter::{FEW_NODES, Filter};
use crate::list::FEW;
use bson::Doc;
use errors::{Result, bail, err};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// All operators of one update.
#[derive(Debug)]
pub struct Operators {
    pub root: Fields,
    pub filters: Vec<ArrayFilter>,
    /// Which filter has an identifier.
    by_id: HashMap<String, usize>,
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
pub enum UpdateNode {
    Leaf(Arc<UpdateOp>),
    Fields(Fields),
    /// Below `$[]` (no identifier) and `$[id]`.
    Elements(Elements),
}

/// The children of each filter.
#[derive(Clone, Debug, Default)]
pub struct Elements {
    pub list: Vec<(Option<usize>, UpdateNode)>,
    /// Where a filter is in the list; empty for few.
    places: HashMap<Option<usize>, usize>,
}

impl Operators {
    /// Whether they may take long on one document.
    pub fn may_take_long(&self) -> bool {
        self.positional
            || self.root.size() > FEW_NODES
            || self.root.children.iter().any(|c| c.node.has_elements())
    }
}

impl Elements {
    fn find(&self, id: Option<usize>) -> Option<usize> {
        match self.places.is_empty() {
            true => self.list.iter().position(|(o, _)| *o == id),
            false => self.places.get(&id).copied(),
        }
    }

    fn add(&mut self, id: Option<usize>, node: UpdateNode) -> usize {
        let at = self.list.len();
        self.list.push((id, node));
        if at == FEW {
            let known = self.list.iter().enumerate();
            self.places = known.map(|(i, (id, _))| (*id, i)).collect();
        } else if at > FEW {
            self.places.insert(id, at);
        }
        at
    }
}

/// Children by name.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub children: Vec<Child>,
    /// Where a name is among the children; empty for few.
    by_name: HashMap<String, usize>,
    /// Below the positional `$`.
    pub positional: Option<Box<UpdateNode>>,
}

#[derive(Clone, Debug)]
pub struct Child {
    pub name: String,
    /// The array position that the name stands for.
    pub index: Option<u32>,
    pub node: UpdateNode,
}

fn is_filtered(part: &str) -> bool {
    part.starts_with("$[") && part.ends_with(']')
}

fn all_digits(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())
}

/// A number as a position of an array is written: `01` is a name.
fn is_number(s: &str) -> bool {
    all_digits(s) && (s == "0" || !s.starts_with('0'))
}

/// The order of creation: numbers by value, everything else by its bytes.
fn precedes(a: &str, b: &str) -> bool {
    if is_number(a) && is_number(b) {
        (a.len(), a) < (b.len(), b)
    } else {
        a < b
    }
}

impl Fields {
    pub fn find(&self, name: &str) -> Option<usize> {
        match self.by_name.is_empty() {
            true => self.children.iter().position(|c| c.name == name),
            false => self.by_name.get(name).copied(),
        }
    }

    /// The same for a name as it is in a document.
    #[inline]
    pub fn find_raw(&self, name: &[u8]) -> Option<usize> {
        if self.by_name.is_empty() {
            let named = |c: &Child| c.name.as_bytes() == name;
            return self.children.iter().position(named);
        }
        self.find(std::str::from_utf8(name).ok()?)
    }

    /// The child for an array position.
    pub fn find_index(&self, index: u32) -> Option<usize> {
        if self.by_name.is_empty() {
            return self.children.iter().position(|c| c.index == Some(index));
        }
        let mut digits = [0; 20];
        self.find(decimal(index as usize, &mut digits))
    }

    /// Adds a child of a new name, and says where it is. When all are there, [`Fields::arrange`]
    /// must follow.
    pub fn add(&mut self, name: &str, node: UpdateNode) -> usize {
        let child = Child {
            name: name.to_string(),
            index: crate::path::array_index(name),
            node,
        };
        let len = self.children.len();
        if len < FEW {
            // Not a sort: the order is not transitive between numbers and other names.
            let at = self.children.iter().position(|c| precedes(name, &c.name));
            let at = at.unwrap_or(len);
            self.children.insert(at, child);
            return at;
        }
        if len == FEW {
            self.note_names();
        }
        self.by_name.insert(child.name.clone(), len);
        self.children.push(child);
        len
    }

    fn note_names(&mut self) {
        let known = self.children.iter().enumerate();
        self.by_name = known.map(|(i, c)| (c.name.clone(), i)).collect();
    }

    /// Puts many children in order: numbers and other names each in theirs, where one precedes is
    /// sought as for few.
    pub fn arrange(&mut self) {
        if self.by_name.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.children);
        let (mut numbers, mut names): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|c| is_number(&c.name));
        let order = |a: &Child, b: &Child| match () {
            () if precedes(&a.name, &b.name) => Ordering::Less,
            () if precedes(&b.name, &a.name) => Ordering::Greater,
            () => Ordering::Equal,
        };
        numbers.sort_by(order);
        names.sort_by(order);
        let mut numbers = numbers.into_iter().peekable();
        for name in names {
            while let Some(n) = numbers.next_if(|n| precedes(&n.name, &name.name)) {
                self.children.push(n);
            }
            self.children.push(name);
        }
        self.children.extend(numbers);
        self.note_names();
    }

    fn size(&self) -> usize {
        let positional = self.positional.iter().map(|n| n.size());
        positional
            .chain(self.children.iter().map(|c| c.node.size()))
            .sum()
    }

    fn arrange_all(&mut self) {
        self.arrange();
        self.children.iter_mut().for_each(|c| c.node.arrange_all());
        self.positional.iter_mut().for_each(|n| n.arrange_all());
    }
}

impl UpdateNode {
    /// How many nodes it is.
    pub fn size(&self) -> usize {
        1 + match self {
            UpdateNode::Leaf(_) => 0,
            UpdateNode::Fields(f) => f.size(),
            UpdateNode::Elements(e) => e.list.iter().map(|(_, n)| n.size()).sum(),
        }
    }

    /// Whether some of it may be done for each element of an array.
    fn has_elements(&self) -> bool {
        match self {
            UpdateNode::Leaf(op) => matches!(**op, UpdateOp::Pull(_)),
            UpdateNode::Fields(f) => f.children.iter().any(|c| c.node.has_elements()),
            UpdateNode::Elements(_) => true,
        }
    }

    fn arrange_all(&mut self) {
        match self {
            UpdateNode::Leaf(_) => {}
            UpdateNode::Fields(f) => f.arrange_all(),
            UpdateNode::Elements(e) => e.list.iter_mut().for_each(|(_, n)| n.arrange_all()),
        }
    }
}

fn conflict(path: &str, at: &str) -> errors::Error {
    err!(
        ConflictingUpdateOperators,
        "Updating the path '{path}' would create a conflict at '{at}'"
    )
}

/// Joins two nodes that turned out to stand for the same place of a document.
pub fn merge(a: &UpdateNode, b: &UpdateNode, at: &str) -> Result<UpdateNode> {
    let clash = || {
        err!(
            ConflictingUpdateOperators,
            "Update created a conflict at '{at}'"
        )
    };
    match (a, b) {
        (UpdateNode::Fields(x), UpdateNode::Fields(y)) => {
            let mut out = x.clone();
            for c in &y.children {
                let path = format!("{at}.{}", c.name);
                match out.find(&c.name) {
                    Some(i) => {
                        let o = &mut out.children[i];
                        o.node = merge(&o.node, &c.node, &path)?;
                    }
                    None => {
                        out.add(&c.name, c.node.clone());
                    }
                }
            }
            out.arrange();
            out.positional = match (&x.positional, &y.positional) {
                (Some(p), Some(q)) => Some(Box::new(merge(p, q, &format!("{at}.$"))?)),
                (p, q) => p.as_ref().or(q.as_ref()).cloned(),
            };
            Ok(UpdateNode::Fields(out))
        }
        (UpdateNode::Elements(x), UpdateNode::Elements(y)) => {
            let mut out = x.clone();
            for (id, n) in &y.list {
                match out.find(*id) {
                    Some(i) => {
                        let o = &mut out.list[i].1;
                        *o = merge(o, n, &format!("{at}.$[]"))?;
                    }
                    None => {
                        out.add(*id, n.clone());
                    }
                }
            }
            Ok(UpdateNode::Elements(out))
        }
        _ => Err(clash().into()),
    }
}

impl Operators {
    pub fn parse(u: Doc<'_>, array_filters: &[Doc<'_>], env: &ParseEnv) -> Result<Operators> {
        let mut ops = Operators {
            root: Fields::default(),
            filters: Vec::new(),
            by_id: HashMap::new(),
            positional: false,
            touched: Vec::new(),
        };
        for f in array_filters {
            let f = ArrayFilter::parse(*f, env)?;
            if ops.by_id.insert(f.id.clone(), ops.filters.len()).is_some() {
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
            UpdateOp::check_name(modifier.name)?;
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
                errors::operation::step()?;
                if modifier.name == "$rename" {
                    let to = UpdateOp::parse_rename(e.name, e.val)?;
                    ops.insert(e.name, UpdateOp::RenameFrom, &mut used)?;
                    ops.insert(to, UpdateOp::rename_to(e.name), &mut used)?;
                } else {
                    let op = UpdateOp::parse(modifier.name, e.name, e.val, env)?;
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
        ops.root.arrange_all();
        Ok(ops)
    }

    fn filter_of(&self, part: &str, path: &str, used: &mut [bool]) -> Result<Option<usize>> {
        let id = &part[2..part.len() - 1];
        if id.is_empty() {
            return Ok(None);
        }
        match self.by_id.get(id).copied() {
            Some(i) => {
                used[i] = true;
                Ok(Some(i))
            }
            None => Err(err!(
                BadValue,
                "No array filter found for identifier '{id}' in path '{path}'"
            )
            .into()),
        }
    }

    fn insert(&mut self, path: &str, op: UpdateOp, used: &mut [bool]) -> Result<()> {
        let parts: SmallVec<[&str; 8]> = path.split('.').collect();
        check_components(path, &parts)?;
        match parts.iter().filter(|p| **p == "$").count() {
            0 => {}
            1 => self.positional = true,
            _ => bail!(
                BadValue,
                "Too many positional (i.e. '$') elements found in path '{path}'"
            ),
        }
        let filter = |p: &&str| match is_filtered(p) {
            true => self.filter_of(p, path, used).map(Some),
            false => Ok(None),
        };
        let ids: SmallVec<[_; 8]> = parts.iter().map(filter).collect::<Result<_>>()?;
        let fixed = parts
            .iter()
            .position(|p| *p == "$" || is_filtered(p) || all_digits(p))
            .unwrap_or(parts.len());
        self.touched.push(parts[..fixed.max(1)].join("."));
        self.insert_leaf(path, &parts, &ids, op)
    }

    /// Puts the operator where its path ends. `ids` are the filters of the components that name one.
    fn insert_leaf(
        &mut self,
        path: &str,
        parts: &[&str],
        ids: &[Option<Option<usize>>],
        op: UpdateOp,
    ) -> Result<()> {
        let mut leaf = Some(UpdateNode::Leaf(Arc::new(op)));
        let mut fresh = |i: usize| match (parts.get(i + 1), ids.get(i + 1)) {
            (None, _) => leaf
                .take()
                .unwrap_or(UpdateNode::Elements(Elements::default())),
            (_, Some(Some(_))) => UpdateNode::Elements(Elements::default()),
            _ => UpdateNode::Fields(Fields::default()),
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
                let (known, n) = match at.find(parts[i]) {
                    Some(n) => (true, n),
                    None => (false, at.add(parts[i], fresh(i))),
                };
                (known, &mut at.children[n].node)
            };
            let (mut known, mut node) = slot;
            let mut where_ = prefix();
            // Array components hang below the node of the array.
            while let Some(Some(id)) = ids.get(i + 1) {
                let UpdateNode::Elements(list) = node else {
                    return Err(conflict(path, &where_).into());
                };
                i += 1;
                where_ = parts[..=i].join(".");
                let n = list.find(*id);
                known = n.is_some();
                let n = n.unwrap_or_else(|| list.add(*id, fresh(i)));
                node = &mut list.list[n].1;
            }
            if i + 1 == parts.len() {
                return if known {
                    Err(conflict(path, &where_).into())
                } else {
                    Ok(())
                };
            }
            match node {
                UpdateNode::Fields(f) => at = f,
                _ => return Err(conflict(path, &where_).into()),
            }
            i += 1;
        }
    }
}

/// What no path of an operator may have.
fn check_components(path: &str, parts: &[&str]) -> Result<()> {
    if parts.iter().any(|p| p.is_empty()) {
        bail!(
            EmptyFieldName,
            "The update path '{path}' contains an empty field name, which is not allowed."
        );
    }
    if parts.len() > bson::MAX_DEPTH + 1 {
        return Err(too_deep().into());
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
    Ok(())
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
