//! Index key patterns and the keys that a document has in an index.
//!
//! A document has one key unless a field of the pattern goes through an array: then it has one for
//! each element (a multikey index). Two fields may share an array, but not go through two different
//! ones. Missing fields are null, an empty array at the end of a path is undefined (MongoDB,
//! "Multikey Indexes").
//!
//! A hashed field keeps the hash of its value; a wildcard index (see `wildcard`) has the path of
//! each value before it; indexes of shapes have cells (see `geospatial`); a text
//! index (see `text`) has an entry for each term.

mod geospatial;
mod hashed;
mod text;
mod wildcard;

pub use geospatial::Geospatial;
pub use wildcard::Wildcard;

use crate::collation::Collation;
use crate::expr::Vars;
use crate::path::FieldPath;
use ::text::TextIndex;
use bson::key::{self, Types};
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, tag};
use errors::{Result, bail, err};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// The most fields in a compound index, as in MongoDB.
pub const MAX_FIELDS: usize = 32;

/// A parsed key pattern of an ordered index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// As an entry has them: a wildcard stands for two, the path and the value.
    pub fields: Vec<KeyField>,
    source: DocBuf,
    kind: PatternKind,
    collation: Option<Collation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternKind {
    Ordered,
    Hashed,
    Wildcard(Arc<Wildcard>),
    Geospatial(Geospatial),
    Text(Arc<TextIndex>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    pub path: FieldPath,
    pub descending: bool,
    pub kind: FieldKind,
}

/// What an entry keeps of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Ordered,
    /// The hash of the value, as an int64.
    Hashed,
    /// The path of the value that the next field holds.
    WildcardPath,
    /// The value on that path.
    Wildcard,
    /// The number of a cell, as an int64, for each cell of a shape.
    Cells,
    /// A term of the document.
    Term,
    /// What the document scores by that term.
    Score,
}

impl KeyField {
    pub fn new(path: FieldPath, descending: bool) -> KeyField {
        KeyField {
            path,
            descending,
            kind: FieldKind::Ordered,
        }
    }

    /// Entries are in the order of the field's values, and show them.
    pub fn is_ordered(&self) -> bool {
        matches!(self.kind, FieldKind::Ordered | FieldKind::Wildcard)
    }
}

/// Which fields of an index were arrays: bit i for field i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Multikey(pub u64);

/// The keys of one document in one index, in buffers that are reused from document to document.
#[derive(Default, Debug)]
pub struct KeySet {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    types: Types,
    /// Strings go in as their sort keys.
    collation: Option<Collation>,
    /// The keys come to more than [`MOST_BYTES`]: none is made any more.
    full: bool,
    watch: Watch,
}

/// The context that may end the making of keys, where that takes more than going over the document.
#[derive(Default)]
struct Watch {
    vars: Option<Arc<Vars>>,
    /// The document is new: what MongoDB refuses is refused.
    is_new: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.vars.is_some())
    }
}

/// What the keys of one document may come to: a long value beside an array, of which each element
/// has it in its key, would fill any memory.
const MOST_BYTES: usize = 64 << 20;

/// `bytes[start..key_end]` is the key, `bytes[key_end..end]` its types.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    key_end: u32,
    end: u32,
}

impl Multikey {
    pub fn any(self) -> bool {
        self.0 != 0
    }

    pub fn field(self, i: usize) -> bool {
        i < 64 && self.0 & (1 << i) != 0
    }

    pub fn union(self, other: Multikey) -> Multikey {
        Multikey(self.0 | other.0)
    }
}

impl KeySet {
    pub fn new() -> KeySet {
        KeySet::default()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.full = false;
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Each entry: its key bytes, and the type bytes with which they decode.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        self.entries.iter().map(|e| {
            (
                &self.bytes[e.start as usize..e.key_end as usize],
                &self.bytes[e.key_end as usize..e.end as usize],
            )
        })
    }

    fn begin(&mut self) -> usize {
        self.types.0.clear();
        self.bytes.len()
    }

    /// Making keys asks these variables from now on; `is_new`: the documents are not stored yet.
    pub fn watched_by(&mut self, vars: Arc<Vars>, is_new: bool) {
        self.watch = Watch {
            vars: Some(vars),
            is_new,
        };
    }

    /// Counts units of work.
    fn work(&self, units: usize) -> Result<()> {
        match &self.watch.vars {
            Some(vars) => vars.work(units),
            None => Ok(()),
        }
    }

    /// The keys that follow are in the order of a collation.
    pub fn collate(&mut self, collation: Option<&Collation>) {
        self.collation = collation.cloned();
    }

    /// The value as it goes into a key.
    fn folded(&self, v: Val<'_>) -> Value {
        match &self.collation {
            Some(c) => c.fold(v),
            None => v.to_value(),
        }
    }

    fn put_as_is(&mut self, v: Val<'_>, descending: bool) {
        if self.full {
            return;
        }
        key::encode(v, descending, &mut self.bytes, Some(&mut self.types));
    }

    #[inline]
    fn put(&mut self, v: Option<Val<'_>>, descending: bool) {
        if self.full {
            return;
        }
        if let (Some(c), Some(v)) = (&self.collation, v)
            && Collation::affects(v)
        {
            let folded = c.fold(v);
            return self.put_as_is(folded.as_val(), descending);
        }
        match v {
            Some(v) => key::encode(v, descending, &mut self.bytes, Some(&mut self.types)),
            None => key::encode_missing(descending, &mut self.bytes, Some(&mut self.types)),
        }
    }

    fn end(&mut self, start: usize) {
        if self.full {
            return;
        }
        let key_end = self.bytes.len();
        while self.types.0.last() == Some(&0) {
            self.types.0.pop();
        }
        self.bytes.extend_from_slice(&self.types.0);
        self.entries.push(Entry {
            start: start as u32,
            key_end: key_end as u32,
            end: self.bytes.len() as u32,
        });
        self.full = self.bytes.len() > MOST_BYTES;
    }

    /// An error when not all keys could be made.
    fn complete(&self) -> Result<()> {
        if self.full {
            bail!(
                CannotBuildIndexKeys,
                "the keys of a document come to more than {MOST_BYTES} bytes"
            );
        }
        Ok(())
    }

    /// Key order, each key once.
    fn sort(&mut self) {
        let bytes = &self.bytes;
        let key = |e: &Entry| &bytes[e.start as usize..e.key_end as usize];
        self.entries.sort_by(|a, b| key(a).cmp(key(b)));
        self.entries.dedup_by(|a, b| key(a) == key(b));
    }
}

/// Where a walk along a path into documents ended.
enum Stop<'a> {
    /// At a value that is no array, or nowhere.
    Leaf(Option<Val<'a>>),
    /// At an array; `next` is the component after it (the path's length when the path ends there).
    Array { array: Val<'a>, next: usize },
}

/// One field of the pattern while a document's arrays are being expanded.
#[derive(Clone, Copy)]
enum Field<'a> {
    Done(Option<Val<'a>>),
    /// Still to walk: component `next` in `doc`.
    Walk {
        doc: Doc<'a>,
        next: usize,
    },
    /// Stopped at an array that is about to be expanded.
    At {
        array: Val<'a>,
        next: usize,
    },
}

#[inline]
fn walk<'a>(path: &FieldPath, doc: Doc<'a>, from: usize) -> Stop<'a> {
    let (mut d, mut i) = (doc, from);
    loop {
        let Some(v) = d.get(path.part(i)) else {
            return Stop::Leaf(None);
        };
        i += 1;
        match v.tag {
            tag::ARRAY => return Stop::Array { array: v, next: i },
            _ if i >= path.len() => return Stop::Leaf(Some(v)),
            tag::DOCUMENT => d = Doc::new(v.bytes).unwrap_or(Doc::EMPTY),
            _ => return Stop::Leaf(None),
        }
    }
}

/// The walk goes on from an array: by position where the path gives one that the array has.
fn settle<'a>(path: &FieldPath, mut stop: Stop<'a>) -> Result<Field<'a>> {
    loop {
        let (array, next) = match stop {
            Stop::Leaf(v) => return Ok(Field::Done(v)),
            Stop::Array { array, next } => (array, next),
        };
        let Some(n) = path.index(next) else {
            return Ok(Field::At { array, next });
        };
        let items = array.as_array().unwrap_or(Doc::EMPTY);
        let Some(e) = items.values().nth(n as usize) else {
            return Ok(Field::At { array, next });
        };
        if items
            .values()
            .any(|e| e.as_doc().is_some_and(|d| d.contains(path.part(next))))
        {
            bail!(
                16746,
                "Ambiguous field name found in array (do not use numeric field names in embedded elements in an \
                 array), field: '{}' for array: {array}",
                path.part(next)
            );
        }
        if next + 1 >= path.len() {
            // An array inside the array is the value itself: it is not expanded a second time.
            return Ok(Field::Done(Some(e)));
        }
        stop = match e.tag {
            tag::DOCUMENT => walk(path, Doc::new(e.bytes).unwrap_or(Doc::EMPTY), next + 1),
            tag::ARRAY => Stop::Array {
                array: e,
                next: next + 1,
            },
            _ => Stop::Leaf(None),
        };
    }
}

/// Replaces the content of `out` by the keys of `doc` for `fields`.
pub(crate) fn extract(
    fields: &[KeyField],
    doc: Doc<'_>,
    sparse: bool,
    out: &mut KeySet,
) -> Result<Multikey> {
    out.clear();
    let start = out.begin();
    let mut found = false;
    for f in fields {
        match walk(&f.path, doc, 0) {
            Stop::Leaf(v) => {
                found |= v.is_some();
                out.put(v, f.descending);
            }
            Stop::Array { .. } => {
                out.clear();
                let walks: SmallVec<[Field<'_>; 4]> = fields
                    .iter()
                    .map(|_| Field::Walk { doc, next: 0 })
                    .collect();
                let mut multikey = Multikey::default();
                expand(fields, &walks, sparse, out, &mut multikey)?;
                out.complete()?;
                out.sort();
                return Ok(multikey);
            }
        }
    }
    if found || !sparse {
        out.end(start);
    } else {
        out.clear();
    }
    Ok(Multikey::default())
}

fn expand<'a>(
    fields: &[KeyField],
    walks: &[Field<'a>],
    sparse: bool,
    out: &mut KeySet,
    multikey: &mut Multikey,
) -> Result<()> {
    let mut at: SmallVec<[Field<'a>; 4]> = SmallVec::with_capacity(walks.len());
    let mut array: Option<(Val<'a>, &str)> = None;
    for (i, (f, w)) in fields.iter().zip(walks).enumerate() {
        let w = match *w {
            Field::Walk { doc, next } => settle(&f.path, walk(&f.path, doc, next))?,
            done => done,
        };
        if let Field::At { array: a, next } = w {
            let name = f.path.part(next - 1);
            match array {
                Some((b, other)) if b.bytes.as_ptr() != a.bytes.as_ptr() => {
                    return Err(err!(
                        CannotIndexParallelArrays,
                        "cannot index parallel arrays [{name}] [{other}]"
                    )
                    .into());
                }
                _ => array = Some((a, name)),
            }
            multikey.0 |= 1 << i.min(63);
        }
        at.push(w);
    }
    let Some((array, _)) = array else {
        let missing = |w: &Field<'_>| matches!(w, Field::Done(None));
        if !(sparse && at.iter().all(missing)) {
            let start = out.begin();
            for (f, w) in fields.iter().zip(&at) {
                let v = match w {
                    Field::Done(v) => *v,
                    _ => None,
                };
                out.put(v, f.descending);
            }
            out.end(start);
        }
        return Ok(());
    };
    let items = array.as_array().unwrap_or(Doc::EMPTY);
    let mut element = |e: Option<Val<'a>>| -> Result<()> {
        let walks: SmallVec<[Field<'a>; 4]> = fields
            .iter()
            .zip(&at)
            .map(|(f, w)| match *w {
                Field::At { next, .. } if next >= f.path.len() => {
                    Field::Done(Some(e.unwrap_or(Val::UNDEFINED)))
                }
                Field::At { next, .. } => match e.and_then(|e| e.as_doc()) {
                    Some(doc) => Field::Walk { doc, next },
                    None => Field::Done(None),
                },
                w => w,
            })
            .collect();
        expand(fields, &walks, sparse, out, multikey)
    };
    if items.is_empty() {
        return element(None);
    }
    items.values().try_for_each(|e| element(Some(e)))
}

fn key_path(name: &str) -> Result<FieldPath> {
    if name.is_empty() {
        bail!(CannotCreateIndex, "Index keys cannot be an empty field.");
    }
    let path = FieldPath::new(name);
    if path.has_empty_part() {
        bail!(
            CannotCreateIndex,
            "Index keys cannot contain an empty field."
        );
    }
    Ok(path)
}

/// How a field is indexed, and whether it descends.
fn kind_of(e: Elem<'_>, is_wildcard: bool) -> Result<(FieldKind, bool)> {
    match e.val.to_f64() {
        Some(f) if f.is_nan() => bail!(
            CannotCreateIndex,
            "Values in the index key pattern cannot be NaN."
        ),
        Some(0.0) => bail!(
            CannotCreateIndex,
            "Values in the index key pattern cannot be 0."
        ),
        Some(f) => Ok((FieldKind::Ordered, f < 0.0)),
        None => match e.val.as_str() {
            Some("hashed") if !is_wildcard => Ok((FieldKind::Hashed, false)),
            Some("2d" | "2dsphere") if !is_wildcard => Ok((FieldKind::Cells, false)),
            Some("text") => Ok((FieldKind::Term, false)),
            Some("hashed" | "2d" | "2dsphere" | "geoHaystack") => bail!(
                CannotCreateIndex,
                "indexes of type '{}' are not supported",
                e.val.as_str().unwrap_or("")
            ),
            Some(kind) => bail!(CannotCreateIndex, "Unknown index plugin '{kind}'"),
            None => bail!(
                CannotCreateIndex,
                "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and \
                 strings are allowed.",
                e.val.type_name()
            ),
        },
    }
}

/// Which cells a pattern's shapes go into, if it has any.
fn geospatial_kind(pattern: Doc<'_>) -> Result<Option<Geospatial>> {
    let of = |kind: &str| {
        let fields = pattern.iter().enumerate();
        let named = fields.filter(move |(_, e)| e.val.as_str() == Some(kind));
        named.map(|(i, _)| i).collect::<Vec<_>>()
    };
    let (plane, sphere) = (of("2d"), of("2dsphere"));
    if plane.len() > 1 {
        bail!(16800, "can't have 2 geo fields");
    }
    match plane.first() {
        Some(_) if !sphere.is_empty() => bail!(
            CannotCreateIndex,
            "Index key pattern cannot be of several kinds: {pattern}"
        ),
        Some(0) => Ok(Some(Geospatial::Plane(geo::Grid::DEFAULT))),
        Some(_) => bail!(16801, "2d has to be first in index"),
        None => Ok((!sphere.is_empty()).then_some(Geospatial::Sphere { version: 3 })),
    }
}

/// No part may start with `$`, but for those of a DBRef below the first: `a.$id`.
fn check_dollars(path: &FieldPath, is_wildcard: bool) -> Result<()> {
    let scope = path.len() - usize::from(is_wildcard);
    if path
        .parts()
        .take(scope)
        .enumerate()
        .any(|(i, p)| p.starts_with('$') && (i == 0 || !matches!(p, "$id" | "$ref" | "$db")))
    {
        bail!(
            CannotCreateIndex,
            "Index key contains an illegal field name: field name starts with '$'."
        );
    }
    Ok(())
}

impl KeyPattern {
    /// Parses `{a: 1, "b.c": -1}`: positive numbers ascend, negative descend.
    pub fn parse(doc: Doc<'_>) -> Result<KeyPattern> {
        KeyPattern::parse_of(doc, None, None)
    }

    /// The same with the `wildcardProjection` of a wildcard index.
    pub fn parse_with(doc: Doc<'_>, projection: Option<Doc<'_>>) -> Result<KeyPattern> {
        KeyPattern::parse_of(doc, projection, None)
    }

    /// The same, or with what a text index is over.
    fn parse_of(
        doc: Doc<'_>,
        projection: Option<Doc<'_>>,
        text: Option<Arc<TextIndex>>,
    ) -> Result<KeyPattern> {
        let mut fields = Vec::new();
        let mut wildcard = None;
        if doc.is_empty() {
            bail!(CannotCreateIndex, "Index keys cannot be empty.");
        }
        for e in doc {
            let path = key_path(e.name)?;
            let is_wildcard = path.last() == "$**";
            let (mut kind, descending) = kind_of(e, is_wildcard)?;
            let behind = fields.last().map(|f: &KeyField| f.kind);
            if behind == Some(FieldKind::Term) && e.name == "_ftsx" {
                kind = FieldKind::Score;
            }
            if is_wildcard {
                if wildcard.is_some() {
                    bail!(
                        7246201,
                        "wildcard indexes do not allow more than one wildcard field"
                    );
                }
                wildcard = Some((fields.len(), path.parent()));
                fields.push(KeyField {
                    path: FieldPath::new(wildcard::PATH),
                    descending: false,
                    kind: FieldKind::WildcardPath,
                });
                kind = FieldKind::Wildcard;
            }
            check_dollars(&path, is_wildcard)?;
            fields.push(KeyField {
                path,
                descending,
                kind,
            });
        }
        if fields.len() > MAX_FIELDS + usize::from(wildcard.is_some()) {
            bail!(
                CannotCreateIndex,
                "Index key pattern contains more than {MAX_FIELDS} fields"
            );
        }
        let kind = KeyPattern::kind_of_fields(doc, &fields, wildcard, projection, text)?;
        Ok(KeyPattern {
            fields,
            source: doc.to_buf(),
            kind,
            collation: None,
        })
    }

    /// What its fields make of it. `wildcard` is the place of the wildcard field, and what is below.
    fn kind_of_fields(
        doc: Doc<'_>,
        fields: &[KeyField],
        wildcard: Option<(usize, FieldPath)>,
        projection: Option<Doc<'_>>,
        text: Option<Arc<TextIndex>>,
    ) -> Result<PatternKind> {
        let any = |kind| fields.iter().any(|f| f.kind == kind);
        let (has_terms, hashed) = (any(FieldKind::Term), any(FieldKind::Hashed));
        Ok(match wildcard {
            _ if has_terms => match text {
                Some(text) if wildcard.is_none() && !hashed => PatternKind::Text(text),
                _ => bail!(
                    CannotCreateIndex,
                    "a text index has no hashed fields and is over '$**' as a text only"
                ),
            },
            Some(_) if hashed => bail!(
                CannotCreateIndex,
                "wildcard indexes do not allow hashed fields"
            ),
            Some(_) if geospatial_kind(doc)?.is_some() => bail!(
                CannotCreateIndex,
                "wildcard indexes do not allow geospatial fields"
            ),
            Some((at, scope)) => {
                let others = fields.iter().filter(|f| f.kind == FieldKind::Ordered);
                PatternKind::Wildcard(Arc::new(Wildcard::parse(
                    at,
                    scope,
                    projection,
                    &others.map(|f| &f.path).collect::<Vec<_>>(),
                )?))
            }
            None if hashed => PatternKind::Hashed,
            None => match geospatial_kind(doc)? {
                Some(kind) => PatternKind::Geospatial(kind),
                None => PatternKind::Ordered,
            },
        })
    }

    /// The pattern of an index specification: `key`, `wildcardProjection`, `collation`.
    pub fn of_spec(spec: Doc<'_>) -> Result<KeyPattern> {
        let part = |name: &str| spec.get(name).and_then(|v| v.as_doc());
        let key = part("key").unwrap_or(Doc::EMPTY);
        let text = match TextIndex::is_pattern(key) {
            true => Some(Arc::new(TextIndex::of_spec(spec)?)),
            false => None,
        };
        let mut out = KeyPattern::parse_of(key, part("wildcardProjection"), text)?;
        out.collation = match part("collation") {
            Some(c) => Collation::new(c)?,
            None => None,
        };
        if let PatternKind::Geospatial(kind) = &out.kind {
            out.kind = PatternKind::Geospatial(kind.of_spec(spec)?);
        }
        Ok(out)
    }

    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_ref()
    }

    pub fn is_hashed(&self) -> bool {
        self.kind == PatternKind::Hashed
    }

    /// What makes the cells of an index of shapes.
    pub fn geospatial(&self) -> Option<&Geospatial> {
        match &self.kind {
            PatternKind::Geospatial(g) => Some(g),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&Arc<TextIndex>> {
        match &self.kind {
            PatternKind::Text(t) => Some(t),
            _ => None,
        }
    }

    pub fn wildcard(&self) -> Option<&Wildcard> {
        match &self.kind {
            PatternKind::Wildcard(w) => Some(w),
            _ => None,
        }
    }

    /// A wildcard index as the index of one path, or (`None`) of all of them.
    pub fn for_path(&self, path: Option<&FieldPath>) -> KeyPattern {
        let mut out = self.clone();
        let mut w = Writer::new();
        let mut names = self.source.as_doc().iter();
        for f in &mut out.fields {
            match f.kind {
                FieldKind::WildcardPath => {
                    w.i32(wildcard::PATH, 1);
                    continue;
                }
                FieldKind::Wildcard => {
                    if let Some(p) = path {
                        f.path = p.clone();
                    }
                }
                _ => {}
            }
            if let Some(e) = names.next() {
                w.val(f.path.as_str(), e.val);
            }
        }
        out.source = w.finish();
        out
    }

    /// Whether a change of what `touched` holds for may change a document's keys.
    pub fn concerned(&self, touched: impl Fn(&str) -> bool) -> bool {
        self.wildcard().is_some()
            || self.text().is_some_and(|t| t.concerned(&touched))
            || self.fields.iter().any(|f| touched(f.path.as_str()))
    }

    /// The pattern as it was given.
    pub fn to_doc(&self) -> DocBuf {
        self.source.clone()
    }

    pub fn as_doc(&self) -> Doc<'_> {
        self.source.as_doc()
    }

    /// Whether making keys may take much more than going over the document.
    pub fn is_laborious(&self) -> bool {
        matches!(self.kind, PatternKind::Geospatial(_) | PatternKind::Text(_))
    }

    /// MongoDB's default name: `a_1_b.c_-1`.
    pub fn default_name(&self) -> String {
        let mut name = String::new();
        for e in self.source.as_doc() {
            if !name.is_empty() {
                name.push('_');
            }
            let number = match e.val.to_i64_exact() {
                Some(n) => n.to_string(),
                None => e.val.to_string().trim_matches('"').to_string(),
            };
            name.push_str(&format!("{}_{number}", e.name));
        }
        name
    }

    pub fn is_id(&self) -> bool {
        matches!(&self.fields[..], [f] if f.path.is_id())
    }

    /// Replaces the content of `out` by the document's keys, in key order without duplicates.
    /// `sparse`: none when the document has none of the fields.
    pub fn extract(&self, doc: Doc<'_>, sparse: bool, out: &mut KeySet) -> Result<Multikey> {
        out.collation.clone_from(&self.collation);
        match &self.kind {
            PatternKind::Ordered => extract(&self.fields, doc, sparse, out),
            PatternKind::Hashed => hashed::extract(&self.fields, doc, sparse, out),
            PatternKind::Wildcard(w) => w.extract(&self.fields, doc, out),
            PatternKind::Geospatial(g) => g.extract(&self.fields, doc, out),
            PatternKind::Text(t) => text::extract(t, &self.fields, doc, out),
        }
    }

    /// Decodes an index entry's key (from its first field on) into values named by their paths;
    /// missing fields are left out when `omit_missing`, else null. `None` when the bytes are no key
    /// of this pattern.
    pub fn decode(&self, key: &[u8], types: &[u8], omit_missing: bool) -> Option<DocBuf> {
        let mut d = key::Decoder::new(key, types);
        let mut w = Writer::new();
        for f in &self.fields {
            match d.field(f.descending)? {
                Some(v) => {
                    w.val(f.path.as_str(), v.as_val());
                }
                None if omit_missing => {}
                None => {
                    w.null(f.path.as_str());
                }
            }
        }
        Some(w.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    fn keys(pattern: &str, doc: &str, sparse: bool) -> String {
        let p = KeyPattern::parse(json::parse(pattern).unwrap().as_doc()).unwrap();
        let d = json::parse(doc).unwrap();
        let mut set = KeySet::new();
        let m = match p.extract(d.as_doc(), sparse, &mut set) {
            Ok(m) => m,
            Err(e) => return format!("{}", e.failure().unwrap().code.0),
        };
        let mut out: Vec<String> = set
            .iter()
            .map(|(k, t)| {
                let mut d = key::Decoder::new(k, t);
                let f: Vec<String> = p
                    .fields
                    .iter()
                    .map(|f| match d.field(f.descending).unwrap() {
                        Some(v) => v.as_val().to_string().replace(' ', ""),
                        None => "-".into(),
                    })
                    .collect();
                f.join("|")
            })
            .collect();
        out.push(format!("m{:b}", m.0));
        out.join(" ")
    }

    #[test]
    fn what_would_fill_the_memory_is_refused() {
        let long = "x".repeat(64 << 10);
        let each = |one: fn(u32) -> String| (0..2000).map(one).collect::<Vec<_>>().join(",");
        let numbers = each(|n| n.to_string());
        let fields = each(|n| format!("\"f{n}\":{n}"));
        for (pattern, doc) in [
            (
                r#"{"a": 1, "b": 1}"#,
                format!(r#"{{"a":[{numbers}],"b":"{long}"}}"#),
            ),
            (r#"{"$**": 1}"#, format!(r#"{{"{long}":{{{fields}}}}}"#)),
        ] {
            let p = KeyPattern::parse(json::parse(pattern).unwrap().as_doc()).unwrap();
            let mut set = KeySet::new();
            let doc = json::parse(&doc).unwrap();
            let refused = p.extract(doc.as_doc(), false, &mut set).unwrap_err();
            assert_eq!(refused.failure().unwrap().code.0, 201);
            assert!(set.bytes.capacity() < 3 * MOST_BYTES);
            // And what comes next is as ever.
            let other = json::parse(r#"{"a": [1, 2], "b": 3}"#).unwrap();
            p.extract(other.as_doc(), false, &mut set).unwrap();
            assert!(set.len() >= 2);
        }
    }

    #[test]
    fn keys_of_documents() {
        for (pattern, doc, want) in [
            (r#"{"a":1}"#, r#"{"a": 5}"#, "5 m0"),
            (r#"{"a":1}"#, r#"{"b": 5}"#, "- m0"),
            (r#"{"a":1}"#, r#"{"a": null}"#, "null m0"),
            (r#"{"a":1}"#, r#"{"a": [3, 1, 3, 2]}"#, "1 2 3 m1"),
            (r#"{"a":-1}"#, r#"{"a": [1, 2]}"#, "2 1 m1"),
            (r#"{"a":1}"#, r#"{"a": []}"#, r#"{"$undefined":true} m1"#),
            (r#"{"a":1}"#, r#"{"a": [[1, 2], 3]}"#, "3 [1,2] m1"),
            (r#"{"a.b":1}"#, r#"{"a": {"b": 4}}"#, "4 m0"),
            (r#"{"a.b":1}"#, r#"{"a": 4}"#, "- m0"),
            (r#"{"a.b":1}"#, r#"{"a": []}"#, "- m1"),
            (r#"{"a.b":1}"#, r#"{"a": [1, {"b": 2}]}"#, "- 2 m1"),
            (
                r#"{"a.b":1}"#,
                r#"{"a": [{"b": [1, 2]}, {"b": 2}]}"#,
                "1 2 m1",
            ),
            (r#"{"a":1,"b":1}"#, r#"{"a": [1, 2], "b": 3}"#, "1|3 2|3 m1"),
            (r#"{"a":1,"b":1}"#, r#"{"a": [1], "b": [2]}"#, "171"),
            (
                r#"{"a.b":1,"a.c":1}"#,
                r#"{"a": [{"b": 1, "c": 2}, {"b": 3}]}"#,
                "1|2 3|- m11",
            ),
            (
                r#"{"a.b":1,"a.c":1}"#,
                r#"{"a": [{"b": [1], "c": [2]}]}"#,
                "171",
            ),
            (
                r#"{"a.b":1,"a":1}"#,
                r#"{"a": []}"#,
                r#"-|{"$undefined":true} m11"#,
            ),
            (
                r#"{"a":1,"a.b":1}"#,
                r#"{"a": [{"b": 1}]}"#,
                r#"{"b":1}|1 m11"#,
            ),
            (r#"{"a.0":1}"#, r#"{"a": [5, 6]}"#, "5 m0"),
            (r#"{"a.0":1}"#, r#"{"a": [[1, 2]]}"#, "[1,2] m0"),
            (
                r#"{"a.0.b":1}"#,
                r#"{"a": [[{"b": 1}, {"b": 2}]]}"#,
                "1 2 m1",
            ),
            (r#"{"a.0":1}"#, r#"{"a": [{"0": 1}]}"#, "16746"),
            (r#"{"a.0":1}"#, r#"{"a": {"0": 1}}"#, "1 m0"),
        ] {
            assert_eq!(keys(pattern, doc, false), want, "{pattern} of {doc}");
        }
        assert_eq!(keys(r#"{"a":1,"b":1}"#, r#"{"c": 1}"#, true), "m0");
        assert_eq!(
            keys(r#"{"a":1,"b":1}"#, r#"{"b": null}"#, true),
            "-|null m0"
        );
        assert_eq!(
            keys(r#"{"a.b":1}"#, r#"{"a": [1, {"b": 2}]}"#, true),
            "2 m1"
        );
    }

    #[test]
    fn patterns() {
        let bad = |p: &str| KeyPattern::parse(json::parse(p).unwrap().as_doc()).unwrap_err();
        for p in [
            r#"{}"#,
            r#"{"a":0}"#,
            r#"{"a":"x"}"#,
            r#"{"a":true}"#,
            r#"{"":1}"#,
            r#"{"a..b":1}"#,
            r#"{"$a":1}"#,
        ] {
            assert_eq!(bad(p).failure().unwrap().code.0, 67, "{p}");
        }
        let p = KeyPattern::parse(json::parse(r#"{"a":1,"b.c":-1}"#).unwrap().as_doc()).unwrap();
        assert_eq!(p.default_name(), "a_1_b.c_-1");
    }
}
