//! The walk of a document and an operator tree together.
//!
//! Output is one buffer. Unchanged elements are copied in runs: everything between the last change
//! and the next one is one `memcpy`. A container in which nothing changes leaves no trace in the
//! output.

use super::array::decimal;
use super::diff::{MAX_PADDING, Notes};
use super::operator::{Creation, UpdateOp, UpdateTarget, ValueChange, not_viable, through_array};
use super::tree::{Child, Elements, Fields, Operators, UpdateNode, merge, too_deep};
use super::{Applied, UpdateCtx, dollar_prefixed, too_large};
use bson::{Doc, DocBuf, MAX_DEPTH, MAX_DOC_BYTES, Val, Writer, tag};
use errors::{Result, bail, err};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;

/// When the written bytes come to more, no document can come of it, and nothing more is written. Less
/// may still be undone.
const MAX_WRITTEN: usize = 2 * MAX_DOC_BYTES;

#[cfg(test)]
thread_local! {
    /// The bytes that were written where the last update was refused for their number.
    pub(super) static REFUSED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub fn operators(ops: &Operators, doc: Doc<'_>, ctx: &UpdateCtx<'_>) -> Result<Option<Applied>> {
    let mut walk = Walk {
        ops,
        root: doc,
        ctx,
        position: ctx.position.map(|p| p.to_string()),
        path: String::new(),
        depth: 0,
        array: None,
        notes: Notes::default(),
        out: Vec::with_capacity(doc.len() + 64),
    };
    if !walk.container(&ops.root, "", doc, false)? {
        return Ok(None);
    }
    let diff = Some(walk.notes.diff(&walk.out));
    let Some(doc) = DocBuf::from_vec(walk.out) else {
        return Err(errors::Error::internal("an update made no document").into());
    };
    Ok(Some(Applied { doc, diff }))
}

struct Walk<'a> {
    ops: &'a Operators,
    root: Doc<'a>,
    ctx: &'a UpdateCtx<'a>,
    /// What a positional `$` stands for.
    position: Option<String>,
    /// The path of the element at hand, for messages.
    path: String,
    depth: usize,
    /// The outermost array that the walk is in.
    array: Option<String>,
    notes: Notes<'a>,
    out: Vec<u8>,
}

/// An element of the document that is being copied.
struct Element<'a> {
    name: &'a str,
    val: Val<'a>,
    /// Offsets in the container: of the element, and past it.
    start: usize,
    end: usize,
    in_array: bool,
}

fn header(out: &mut Vec<u8>, t: u8, name: &str) {
    out.push(t);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

fn close(out: &mut Vec<u8>, start: usize) {
    out.push(0);
    let len = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// How many containers are nested in a value, itself included.
fn nesting(v: Val<'_>) -> usize {
    match v.as_container() {
        Some(d) => 1 + d.values().map(nesting).max().unwrap_or(0),
        None => 0,
    }
}

impl<'a> Walk<'a> {
    fn push_name(&mut self, name: &str) -> usize {
        let len = self.path.len();
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.depth += 1;
        len
    }

    fn pop_name(&mut self, len: usize) {
        self.path.truncate(len);
        self.depth -= 1;
    }

    /// The fields with the positional child, if any, under the name it stands for.
    fn resolve<'f>(&self, f: &'f Fields) -> Result<Cow<'f, Fields>> {
        let Some(node) = &f.positional else {
            return Ok(Cow::Borrowed(f));
        };
        let Some(name) = &self.position else {
            bail!(
                BadValue,
                "The positional operator did not find the match needed from the query."
            );
        };
        // A copy for each place that it is found at.
        self.ctx.vars.work(f.children.len())?;
        let mut out = f.clone();
        out.positional = None;
        match out.find(name) {
            Some(i) => {
                let c = &mut out.children[i];
                self.ctx.vars.work(c.node.size() + node.size())?;
                c.node = merge(&c.node, node, &format!("{}.{name}", self.path))?;
            }
            None => {
                out.add(name, (**node).clone());
                out.arrange();
            }
        }
        Ok(Cow::Owned(out))
    }

    /// Writes `doc` (the value of `name`) with the changes to its fields; says whether there are
    /// any. Without, nothing is written.
    fn container(
        &mut self,
        fields: &Fields,
        name: &str,
        doc: Doc<'a>,
        array: bool,
    ) -> Result<bool> {
        self.ctx.vars.work_bytes(doc.len())?;
        let fields = self.resolve(fields)?;
        let fields = &*fields;
        let (bytes, start) = (doc.as_bytes(), self.out.len());
        let (mut copied, mut changed, mut left) = (0, false, fields.children.len());
        let mut seen: SmallVec<[bool; 16]> = smallvec![false; left];
        let mut it = doc.iter();
        let (mut at, mut index) = (4, 0u32);
        while left > 0 {
            let Some((raw, val)) = it.next_raw() else {
                break;
            };
            let from = at;
            at = bytes.len() - 1 - it.rest().len();
            let found = if array {
                fields.find_index(index)
            } else {
                fields.find_raw(raw)
            };
            index = index.saturating_add(1);
            let Some(i) = found.filter(|i| !seen[*i]) else {
                continue;
            };
            seen[i] = true;
            left -= 1;
            let c = &fields.children[i];
            let e = Element {
                name: std::str::from_utf8(raw).unwrap_or(""),
                val,
                start: from,
                end: at,
                in_array: array,
            };
            let mark = self.push_name(e.name);
            let touched = self.element(&c.node, &e, bytes, &mut copied)?;
            if touched && self.depth == 1 {
                self.check_top_level(e.name, &c.node)?;
            }
            self.pop_name(mark);
            changed |= touched;
        }
        if left > 0 {
            let outer = self.array.clone();
            if array && self.array.is_none() {
                self.array = Some(name.to_string());
            }
            let missing = fields.children.iter().zip(&seen);
            let missing = missing.filter(|(_, seen)| !**seen).map(|(c, _)| c);
            changed |= self.make_missing(missing, name, doc, array, &mut copied)?;
            self.array = outer;
        }
        if !changed {
            self.out.truncate(start);
            return Ok(false);
        }
        self.out.extend_from_slice(&bytes[copied..bytes.len() - 1]);
        close(&mut self.out, start);
        Ok(true)
    }

    /// Makes those of the fields that the container (the value of `name`) has not; says whether any was made. `copied`: how
    /// much of `doc` has been written.
    fn make_missing<'f>(
        &mut self,
        missing: impl Iterator<Item = &'f Child>,
        name: &str,
        doc: Doc<'a>,
        array: bool,
        copied: &mut usize,
    ) -> Result<bool> {
        let bytes = doc.as_bytes();
        let mut changed = false;
        let mut n = if array { doc.count() as u32 } else { 0 };
        for c in missing {
            if array && c.index.is_none() {
                self.blocked(&c.node, &c.name, name, doc.as_array_val())?;
                continue;
            }
            // The run before, so that the new element comes after it. It stays if there is
            // none: the next one needs it.
            self.out.extend_from_slice(&bytes[*copied..bytes.len() - 1]);
            *copied = bytes.len() - 1;
            let mark = self.out.len();
            if let (true, Some(i)) = (array, c.index) {
                self.pad(n, i)?;
            }
            let len = self.push_name(&c.name);
            let from = self.out.len();
            let made = self.create(&c.node, &c.name)?;
            if made {
                if self.depth == 1 && c.name.starts_with('$') && !self.ctx.is_insert {
                    return Err(dollar_prefixed(&c.name, &c.name).into());
                }
                self.notes.inserted(from, self.out.len());
                changed = true;
                n = n.max(c.index.unwrap_or(0).saturating_add(1));
            } else {
                self.out.truncate(mark);
            }
            self.pop_name(len);
        }
        Ok(changed)
    }

    /// `_id` does not change, and names at the top start with `$` only in inserted documents.
    fn check_top_level(&self, name: &str, node: &UpdateNode) -> Result<()> {
        if name == "_id" {
            let mut path = name.to_string();
            let mut node = node;
            while let UpdateNode::Fields(f) = node {
                let Some(c) = f.children.first() else { break };
                path = format!("{path}.{}", c.name);
                node = &c.node;
            }
            bail!(
                ImmutableField,
                "Performing an update on the path '{path}' would modify the immutable field '_id'"
            );
        }
        let removes = matches!(node, UpdateNode::Leaf(op) if matches!(**op, UpdateOp::Unset | UpdateOp::RenameFrom));
        if name.starts_with('$') && !self.ctx.is_insert && !removes {
            return Err(dollar_prefixed(name, name).into());
        }
        Ok(())
    }

    fn pad(&mut self, len: u32, index: u32) -> Result<()> {
        if index.saturating_sub(len) > MAX_PADDING {
            bail!(
                CannotBackfillArray,
                "can't backfill more than {MAX_PADDING} elements"
            );
        }
        let mut digits = [0; 20];
        for i in len..index {
            header(&mut self.out, tag::NULL, decimal(i as usize, &mut digits));
        }
        Ok(())
    }

    /// Writes one element with its changes. `copied`: up to where `bytes` are in the output
    /// already.
    fn element(
        &mut self,
        node: &UpdateNode,
        e: &Element<'a>,
        bytes: &'a [u8],
        copied: &mut usize,
    ) -> Result<bool> {
        self.ctx.vars.work(1)?;
        match node {
            UpdateNode::Leaf(op) => self.leaf(op, e, bytes, copied),
            UpdateNode::Fields(f) => {
                let Some(inner) = e.val.as_container() else {
                    for c in &self.resolve(f)?.children {
                        self.blocked(&c.node, &c.name, e.name, e.val)?;
                    }
                    return Ok(false);
                };
                self.inside(e, bytes, copied, |w| {
                    w.container(f, e.name, inner, e.val.tag == tag::ARRAY)
                })
            }
            UpdateNode::Elements(Elements { list, .. }) => {
                let Some(inner) = e.val.as_array() else {
                    bail!(
                        BadValue,
                        "Cannot apply array updates to non-array element {}: {}",
                        e.name,
                        e.val
                    );
                };
                self.inside(e, bytes, copied, |w| w.elements(list, inner))
            }
        }
    }

    /// Copies the run up to the value of `e`, and lets `f` write the value; takes all of it back
    /// when nothing changes.
    fn inside(
        &mut self,
        e: &Element<'a>,
        bytes: &'a [u8],
        copied: &mut usize,
        f: impl FnOnce(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let mark = self.out.len();
        self.out
            .extend_from_slice(&bytes[*copied..e.end - e.val.bytes.len()]);
        let outer = self.array.clone();
        if e.val.tag == tag::ARRAY && self.array.is_none() {
            self.array = Some(e.name.to_string());
        }
        let entered = self.notes.enter(e.name, e.val.tag == tag::ARRAY);
        let changed = f(self)?;
        self.notes.leave(entered, changed);
        self.array = outer;
        if changed {
            *copied = e.end;
        } else {
            self.out.truncate(mark);
        }
        Ok(changed)
    }

    /// Writes an array with changes to the elements that filters select.
    fn elements(
        &mut self,
        filtered: &[(Option<usize>, UpdateNode)],
        array: Doc<'a>,
    ) -> Result<bool> {
        let (bytes, start) = (array.as_bytes(), self.out.len());
        let (mut copied, mut changed, mut at) = (0, false, 4);
        let mut it = array.iter();
        let mut scratch = Vec::new();
        while let Some((raw, val)) = it.next_raw() {
            let from = at;
            at = bytes.len() - 1 - it.rest().len();
            let mut node: Option<Cow<'_, UpdateNode>> = None;
            for (filter, n) in filtered {
                self.ctx.vars.work(1)?;
                let selected = match filter.and_then(|i| self.ops.filters.get(i)) {
                    None => true,
                    Some(f) => {
                        self.ctx.vars.work_bytes(val.bytes.len())?;
                        scratch.clear();
                        let mut w = Writer::on(std::mem::take(&mut scratch));
                        w.val(&f.id, val);
                        scratch = w.finish_into();
                        f.filter.matches_within(
                            Doc::new(&scratch).unwrap_or(Doc::EMPTY),
                            self.ctx.vars,
                        )?
                    }
                };
                if selected {
                    node = Some(match node {
                        None => Cow::Borrowed(n),
                        Some(o) => {
                            self.ctx.vars.work(o.size() + n.size())?;
                            Cow::Owned(merge(&o, n, &self.path)?)
                        }
                    });
                }
            }
            let Some(node) = node else {
                continue;
            };
            let e = Element {
                name: std::str::from_utf8(raw).unwrap_or("0"),
                val,
                start: from,
                end: at,
                in_array: true,
            };
            let len = self.push_name(e.name);
            changed |= self.element(&node, &e, bytes, &mut copied)?;
            self.pop_name(len);
        }
        if !changed {
            self.out.truncate(start);
            return Ok(false);
        }
        self.out.extend_from_slice(&bytes[copied..bytes.len() - 1]);
        close(&mut self.out, start);
        Ok(true)
    }

    fn leaf(
        &mut self,
        op: &UpdateOp,
        e: &Element<'a>,
        bytes: &'a [u8],
        copied: &mut usize,
    ) -> Result<bool> {
        if let (UpdateOp::RenameTo(_), Some(a)) = (op, &self.array) {
            return Err(through_array("destination", &self.path, a, self.root).into());
        }
        let at = UpdateTarget {
            root: self.root,
            path: &self.path,
            name: e.name,
        };
        self.ctx.vars.work_bytes(e.val.bytes.len())?;
        match op.apply(e.val, &at, self.ctx)? {
            ValueChange::Unchanged => return Ok(false),
            ValueChange::Remove if e.in_array => {
                if e.val.tag == tag::NULL {
                    return Ok(false);
                }
                let start = write_value(&mut self.out, &bytes[*copied..e.start], e.name, Val::NULL);
                self.notes.updated(start, self.out.len());
            }
            ValueChange::Remove => {
                self.out.extend_from_slice(&bytes[*copied..e.start]);
                self.notes.removed(e.name);
            }
            ValueChange::Set(v) => {
                check_depth(v, self.depth)?;
                let start = write_value(&mut self.out, &bytes[*copied..e.start], e.name, v);
                self.notes.updated(start, self.out.len());
            }
            ValueChange::SetOwned(v) => {
                let v = v.as_val();
                check_depth(v, self.depth)?;
                let start = write_value(&mut self.out, &bytes[*copied..e.start], e.name, v);
                self.notes.updated(start, self.out.len());
            }
            ValueChange::Grown(v, from) => {
                check_depth(v.as_val(), self.depth)?;
                let start =
                    write_value(&mut self.out, &bytes[*copied..e.start], e.name, v.as_val());
                self.note_growth(e.name, start, from);
            }
        }
        *copied = e.end;
        self.check_written()?;
        Ok(true)
    }

    /// One value may go to each of a million places.
    fn check_written(&self) -> Result<()> {
        if self.out.len() <= MAX_WRITTEN {
            return Ok(());
        }
        #[cfg(test)]
        REFUSED_AT.set(self.out.len());
        Err(too_large(self.ctx).into())
    }

    /// Notes only the new elements of an array, which is written at `start`: those from position
    /// `from` on.
    fn note_growth(&mut self, name: &'a str, start: usize, from: u32) {
        let value_at = start + name.len() + 2;
        let Some(array) = self.out.get(value_at..).and_then(Doc::new) else {
            return;
        };
        let entered = self.notes.enter(name, true);
        let (mut it, mut at) = (array.iter(), 4);
        let mut index = 0;
        while it.next_raw().is_some() {
            let end = array.as_bytes().len() - 1 - it.rest().len();
            if index >= from {
                self.notes.inserted(value_at + at, value_at + end);
            }
            at = end;
            index += 1;
        }
        self.notes.leave(entered, true);
    }

    /// Appends a new element `name`; says whether there is anything to create.
    fn create(&mut self, node: &UpdateNode, name: &str) -> Result<bool> {
        self.ctx.vars.work(1)?;
        match node {
            UpdateNode::Leaf(op) => {
                let owned;
                let v = match op.missing(self.root, self.ctx)? {
                    Creation::Ignore | Creation::CheckPath => return Ok(false),
                    Creation::Create(v) => v,
                    Creation::CreateOwned(v) => {
                        owned = v;
                        owned.as_val()
                    }
                };
                if let (UpdateOp::RenameTo(_), Some(a)) = (&**op, &self.array) {
                    return Err(through_array("destination", &self.path, a, self.root).into());
                }
                check_depth(v, self.depth)?;
                header(&mut self.out, v.tag, name);
                self.out.extend_from_slice(v.bytes);
                self.check_written()?;
                Ok(true)
            }
            UpdateNode::Fields(f) => {
                let mark = self.out.len();
                header(&mut self.out, tag::DOCUMENT, name);
                let start = self.out.len();
                self.out.extend_from_slice(&[0; 4]);
                let mut any = false;
                for c in &self.resolve(f)?.children {
                    let len = self.push_name(&c.name);
                    any |= self.create(&c.node, &c.name)?;
                    self.pop_name(len);
                }
                if any {
                    close(&mut self.out, start);
                } else {
                    self.out.truncate(mark);
                }
                Ok(any)
            }
            UpdateNode::Elements(_) => Err(err!(
                BadValue,
                "The path '{}' must exist in the document in order to apply array updates.",
                self.path
            )
            .into()),
        }
    }

    /// `child` cannot exist below the value `v` of `name`: an error unless the operators there ask
    /// for nothing.
    fn blocked(&mut self, node: &UpdateNode, child: &str, name: &str, v: Val<'_>) -> Result<()> {
        self.ctx.vars.work(1)?;
        match node {
            UpdateNode::Leaf(op) => match op.missing(self.root, self.ctx)? {
                Creation::Ignore => Ok(()),
                Creation::CheckPath => {
                    let path = format!("{}.{child}", self.path);
                    Err(not_viable(child, &path, name, v).into())
                }
                _ => Err(err!(
                    PathNotViable,
                    "Cannot create field '{child}' in element {{{name}: {v}}}"
                )
                .into()),
            },
            UpdateNode::Fields(f) => {
                for c in &self.resolve(f)?.children {
                    self.blocked(&c.node, child, name, v)?;
                }
                Ok(())
            }
            UpdateNode::Elements(_) => Err(err!(
                BadValue,
                "The path '{}.{child}' must exist in the document in order to apply array updates.",
                self.path
            )
            .into()),
        }
    }
}

/// Appends a run and the element after it; says where the element starts.
fn write_value(out: &mut Vec<u8>, run: &[u8], name: &str, v: Val<'_>) -> usize {
    out.extend_from_slice(run);
    let start = out.len();
    header(out, v.tag, name);
    out.extend_from_slice(v.bytes);
    start
}

fn check_depth(v: Val<'_>, depth: usize) -> Result<()> {
    if v.as_container().is_some() && depth + nesting(v) > MAX_DEPTH + 1 {
        return Err(too_deep().into());
    }
    Ok(())
}
