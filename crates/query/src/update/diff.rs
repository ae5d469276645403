//! What an update changed, in the form of MongoDB's oplog: the `diff` of `{$v: 2, diff: …}`.
//!
//! ```text
//! document = {d: {name: false, …}, u: {name: value, …}, i: {name: value, …}, s<name>: inside, …}
//! array    = {a: true, l: new length, u<position>: value, s<position>: inside, …}
//! ```
//! `d` removes, `u` sets where the field stands, `i` appends, `s` goes inside. Parts that say
//! nothing are left out.
//!
//! * [`Notes`] are taken by the walk that writes the new document. They point into its output, so
//!   noting copies no value.
//! * [`between`] compares two documents, as MongoDB does after an update by a pipeline.
//! * [`apply`] makes the new document of the old one.
//!
//! Invariant: `apply(old, diff)` is the document that the update made, for both ways to a diff.

use super::array::decimal;
use bson::{Doc, DocBuf, Val, tag};
use errors::{Result, bail};
use std::collections::{HashMap, HashSet};

/// How many nulls a position past the end of an array may add.
pub(super) const MAX_PADDING: u32 = 1_500_000;

/// The bytes of an element in the walk's output: `tag | name | 0 | value`.
#[derive(Clone, Copy)]
struct Written {
    start: usize,
    end: usize,
}

enum Note<'a> {
    Removed(&'a str),
    Updated(Written),
    Inserted(Written),
    /// The notes up to `end` are about the content of this element.
    Inside {
        name: &'a str,
        array: bool,
        end: usize,
    },
}

/// What a walk changed, in its order.
#[derive(Default)]
pub(super) struct Notes<'a>(Vec<Note<'a>>);

impl<'a> Notes<'a> {
    pub fn removed(&mut self, name: &'a str) {
        self.0.push(Note::Removed(name));
    }

    /// An element that stands at `start..end` of the output, at the place of the one before.
    pub fn updated(&mut self, start: usize, end: usize) {
        self.0.push(Note::Updated(Written { start, end }));
    }

    /// The same for one that is new.
    pub fn inserted(&mut self, start: usize, end: usize) {
        self.0.push(Note::Inserted(Written { start, end }));
    }

    /// Everything until [`Notes::leave`] is inside of the container `name`.
    pub fn enter(&mut self, name: &'a str, array: bool) -> usize {
        let at = self.0.len();
        self.0.push(Note::Inside {
            name,
            array,
            end: at,
        });
        at
    }

    /// Ends what [`Notes::enter`] began; takes it back when nothing changed.
    pub fn leave(&mut self, entered: usize, changed: bool) {
        if !changed {
            self.0.truncate(entered);
            return;
        }
        let len = self.0.len();
        if let Some(Note::Inside { end, .. }) = self.0.get_mut(entered) {
            *end = len;
        }
    }

    /// The diff. `out`: the walk's output.
    pub fn diff(&self, out: &[u8]) -> Vec<u8> {
        let bytes = |n: &Note<'_>| match n {
            Note::Updated(w) | Note::Inserted(w) => w.end - w.start,
            Note::Removed(name) | Note::Inside { name, .. } => name.len() + 8,
        };
        let size: usize = self.0.iter().map(bytes).sum();
        let mut to = Vec::with_capacity(size + 32);
        write_document(&mut to, &self.0, out);
        to
    }
}

fn open(to: &mut Vec<u8>) -> usize {
    let start = to.len();
    to.extend_from_slice(&[0; 4]);
    start
}

fn close(to: &mut Vec<u8>, start: usize) {
    to.push(0);
    let len = (to.len() - start) as u32;
    to[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// `tag | prefix name | 0`
fn head(to: &mut Vec<u8>, tag: u8, prefix: &str, name: &[u8]) {
    to.push(tag);
    to.extend_from_slice(prefix.as_bytes());
    to.extend_from_slice(name);
    to.push(0);
}

/// The notes of one level: those inside of a container stand behind it.
fn level<'n, 'a>(
    notes: &'n [Note<'a>],
    base: usize,
) -> impl Iterator<Item = (usize, &'n Note<'a>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (i, note) = (at, notes.get(at)?);
        at = match note {
            Note::Inside { end, .. } => (end - base).max(i + 1),
            _ => i + 1,
        };
        Some((i, note))
    })
}

fn write_document(to: &mut Vec<u8>, notes: &[Note<'_>], out: &[u8]) {
    write_document_at(to, notes, 0, out);
}

/// `base`: how many notes there are before `notes`.
fn write_document_at(to: &mut Vec<u8>, notes: &[Note<'_>], base: usize, out: &[u8]) {
    let start = open(to);
    for section in [b"d", b"u", b"i"] {
        let mut opened = None;
        for (_, note) in level(notes, base) {
            let written = match (note, section) {
                (Note::Removed(_), b"d") => None,
                (Note::Updated(w), b"u") | (Note::Inserted(w), b"i") => Some(w),
                _ => continue,
            };
            opened.get_or_insert_with(|| {
                head(to, tag::DOCUMENT, "", section);
                open(to)
            });
            match (note, written) {
                (_, Some(w)) => to.extend_from_slice(&out[w.start..w.end]),
                (Note::Removed(name), None) => {
                    head(to, tag::BOOL, "", name.as_bytes());
                    to.push(0);
                }
                _ => {}
            }
        }
        if let Some(opened) = opened {
            close(to, opened);
        }
    }
    for (i, note) in level(notes, base) {
        write_inside(to, note, i, notes, base, out);
    }
    close(to, start);
}

fn write_inside(
    to: &mut Vec<u8>,
    note: &Note<'_>,
    at: usize,
    notes: &[Note<'_>],
    base: usize,
    out: &[u8],
) {
    let Note::Inside { name, array, end } = note else {
        return;
    };
    head(to, tag::DOCUMENT, "s", name.as_bytes());
    let inner = notes.get(at + 1..end - base).unwrap_or_default();
    match array {
        true => write_array(to, inner, base + at + 1, out),
        false => write_document_at(to, inner, base + at + 1, out),
    }
}

/// The walk never shortens an array without setting it whole, so there is no new length.
fn write_array(to: &mut Vec<u8>, notes: &[Note<'_>], base: usize, out: &[u8]) {
    let start = open(to);
    head(to, tag::BOOL, "", b"a");
    to.push(1);
    for (i, note) in level(notes, base) {
        match note {
            Note::Updated(w) | Note::Inserted(w) => {
                to.push(out[w.start]);
                to.push(b'u');
                to.extend_from_slice(&out[w.start + 1..w.end]);
            }
            Note::Removed(_) => {}
            Note::Inside { .. } => write_inside(to, note, i, notes, base, out),
        }
    }
    close(to, start);
}

/// The diff of two documents; `None` when it would be larger than the new one, which then says it
/// better.
pub(super) fn between(old: Doc<'_>, new: Doc<'_>) -> Option<Vec<u8>> {
    let mut to = Vec::with_capacity(new.len().min(256));
    document_diff(&mut to, old, new);
    (to.len() < new.len()).then_some(to)
}

fn document_diff(to: &mut Vec<u8>, old: Doc<'_>, new: Doc<'_>) {
    let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
    // In the order of the old document; what comes again at another place is inserted there.
    let mut removed: Vec<&str> = Vec::new();
    let (mut updated, mut inside) = (Vec::new(), Vec::new());
    while let (Some(a), Some(b)) = (olds.peek(), news.peek()) {
        if a.name == b.name {
            if a.val != b.val {
                match container_diff(a.val, b.val) {
                    Some(diff) => inside.push((b.name, diff)),
                    None => updated.push(*b),
                }
            }
            news.next();
        } else {
            removed.push(a.name);
        }
        olds.next();
    }
    removed.extend(olds.map(|e| e.name));
    let inserted: Vec<_> = news.collect();
    let again: HashSet<&str> = inserted.iter().map(|e| e.name).collect();
    removed.retain(|name| !again.contains(name));

    let start = open(to);
    if !removed.is_empty() {
        head(to, tag::DOCUMENT, "", b"d");
        let at = open(to);
        for name in removed {
            head(to, tag::BOOL, "", name.as_bytes());
            to.push(0);
        }
        close(to, at);
    }
    for (section, elements) in [(b"u", updated), (b"i", inserted)] {
        if elements.is_empty() {
            continue;
        }
        head(to, tag::DOCUMENT, "", section);
        let at = open(to);
        for e in elements {
            head(to, e.val.tag, "", e.name.as_bytes());
            to.extend_from_slice(e.val.bytes);
        }
        close(to, at);
    }
    for (name, diff) in inside {
        head(to, tag::DOCUMENT, "s", name.as_bytes());
        to.extend_from_slice(&diff);
    }
    close(to, start);
}

/// What changed inside of two containers of one kind, where that is shorter than the new one.
fn container_diff(old: Val<'_>, new: Val<'_>) -> Option<Vec<u8>> {
    let mut to = Vec::new();
    match (old.as_array(), new.as_array()) {
        (Some(a), Some(b)) => array_diff(&mut to, a, b),
        (None, None) => document_diff(&mut to, old.as_doc()?, new.as_doc()?),
        _ => return None,
    }
    (to.len() < new.bytes.len()).then_some(to)
}

fn array_diff(to: &mut Vec<u8>, old: Doc<'_>, new: Doc<'_>) {
    let (olds, news) = (old.count(), new.count());
    let start = open(to);
    head(to, tag::BOOL, "", b"a");
    to.push(1);
    if news < olds {
        head(to, tag::INT32, "", b"l");
        to.extend_from_slice(&(news as u32).to_le_bytes());
    }
    let mut before = old.values();
    for (i, b) in new.values().enumerate() {
        let a = before.next();
        if a == Some(b) {
            continue;
        }
        let mut digits = [0; 20];
        let position = decimal(i, &mut digits).as_bytes();
        match a.and_then(|a| container_diff(a, b)) {
            Some(diff) => {
                head(to, tag::DOCUMENT, "s", position);
                to.extend_from_slice(&diff);
            }
            None => {
                head(to, b.tag, "u", position);
                to.extend_from_slice(b.bytes);
            }
        }
    }
    close(to, start);
}

/// The document that `diff` makes of `old`.
///
/// Errors: `FailedToParse` when `diff` is none.
pub fn apply(old: Doc<'_>, diff: Doc<'_>) -> Result<DocBuf> {
    let mut to = Vec::with_capacity(old.len() + diff.len());
    apply_document(&mut to, old, diff, 0)?;
    match DocBuf::from_vec(to) {
        Some(new) => Ok(new),
        None => bail!(FailedToParse, "the diff makes no document"),
    }
}

/// How one field changes.
enum Change<'a> {
    Remove,
    Set(Val<'a>),
    /// It leaves its place and comes back at the end.
    Move,
    Inside(Doc<'a>),
}

fn inner<'a>(v: Val<'a>) -> Result<Doc<'a>> {
    match v.as_doc() {
        Some(d) => Ok(d),
        None => bail!(
            FailedToParse,
            "A part of a diff must be an object, not {}",
            v.type_name()
        ),
    }
}

fn apply_document(to: &mut Vec<u8>, old: Doc<'_>, diff: Doc<'_>, depth: usize) -> Result<()> {
    if depth > bson::MAX_DEPTH {
        bail!(Overflow, "The diff nests too deep");
    }
    let mut changes: HashMap<&str, Change<'_>> = HashMap::new();
    let (mut updates, mut inserts) = (Doc::EMPTY, Doc::EMPTY);
    for e in diff.iter() {
        match e.name {
            "d" => changes.extend(inner(e.val)?.iter().map(|f| (f.name, Change::Remove))),
            "u" => {
                updates = inner(e.val)?;
                changes.extend(updates.iter().map(|f| (f.name, Change::Set(f.val))));
            }
            "i" => {
                inserts = inner(e.val)?;
                changes.extend(inserts.iter().map(|f| (f.name, Change::Move)));
            }
            name => match name.strip_prefix('s') {
                Some(field) => {
                    changes.insert(field, Change::Inside(inner(e.val)?));
                }
                None => bail!(FailedToParse, "Unexpected section in a diff: {name}"),
            },
        }
    }
    let start = open(to);
    let mut set: HashSet<&str> = HashSet::new();
    for e in old.iter() {
        match changes.get(e.name) {
            Some(Change::Remove | Change::Move) => {}
            Some(Change::Set(v)) => {
                set.insert(e.name);
                head(to, v.tag, "", e.name.as_bytes());
                to.extend_from_slice(v.bytes);
            }
            Some(Change::Inside(d)) => apply_inside(to, e.name.as_bytes(), e.val, *d, depth)?,
            None => {
                head(to, e.val.tag, "", e.name.as_bytes());
                to.extend_from_slice(e.val.bytes);
            }
        }
    }
    let missing = updates.iter().filter(|e| !set.contains(e.name));
    for e in missing.chain(inserts.iter()) {
        head(to, e.val.tag, "", e.name.as_bytes());
        to.extend_from_slice(e.val.bytes);
    }
    close(to, start);
    Ok(())
}

/// An element with changes inside; as it is where it is no such container any more.
fn apply_inside(
    to: &mut Vec<u8>,
    name: &[u8],
    val: Val<'_>,
    diff: Doc<'_>,
    depth: usize,
) -> Result<()> {
    head(to, val.tag, "", name);
    let for_array = diff.first().is_some_and(|e| e.name == "a");
    match (val.as_array(), val.as_doc(), for_array) {
        (Some(array), _, true) => apply_array(to, array, diff, depth + 1),
        (None, Some(d), false) => apply_document(to, d, diff, depth + 1),
        _ => {
            to.extend_from_slice(val.bytes);
            Ok(())
        }
    }
}

fn apply_array(to: &mut Vec<u8>, old: Doc<'_>, diff: Doc<'_>, depth: usize) -> Result<()> {
    if depth > bson::MAX_DEPTH {
        bail!(Overflow, "The diff nests too deep");
    }
    let mut length = None;
    let mut changes: HashMap<usize, Change<'_>> = HashMap::new();
    let old_length = old.count();
    let mut end = old_length;
    for e in diff.iter() {
        let position = |s: &str| s.parse::<u32>().ok().map(|n| n as usize);
        let changed = match (e.name, e.name.split_at_checked(1)) {
            ("a", _) => continue,
            ("l", _) => {
                length = e.val.as_i32().and_then(|n| usize::try_from(n).ok());
                continue;
            }
            (_, Some(("u", n))) => position(n).map(|n| (n, Change::Set(e.val))),
            (_, Some(("s", n))) => match position(n) {
                Some(n) => Some((n, Change::Inside(inner(e.val)?))),
                None => None,
            },
            _ => None,
        };
        let Some((at, change)) = changed else {
            bail!(
                FailedToParse,
                "Unexpected field in an array's diff: {}",
                e.name
            );
        };
        end = end.max(at + 1);
        changes.insert(at, change);
    }
    let end = length.unwrap_or(end);
    if end.saturating_sub(old_length) > MAX_PADDING as usize + changes.len() {
        bail!(
            CannotBackfillArray,
            "can't backfill more than {MAX_PADDING} elements"
        );
    }
    let start = open(to);
    let mut values = old.values();
    for i in 0..end {
        let mut digits = [0; 20];
        let name = decimal(i, &mut digits).as_bytes();
        let before = values.next();
        match (changes.get(&i), before) {
            (Some(Change::Set(v)), _) => {
                head(to, v.tag, "", name);
                to.extend_from_slice(v.bytes);
            }
            (Some(Change::Inside(d)), Some(v)) => apply_inside(to, name, v, *d, depth)?,
            (_, Some(v)) => {
                head(to, v.tag, "", name);
                to.extend_from_slice(v.bytes);
            }
            (_, None) => head(to, tag::NULL, "", name),
        }
    }
    close(to, start);
    Ok(())
}
