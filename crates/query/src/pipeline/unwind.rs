//! `$unwind`: a document for each element of an array.

use super::options::field_path;
use super::{IdleVisitor, PipelineHost, Source};
use crate::metadata::Metadata;
use crate::path::FieldPath;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Unwind {
    pub path: FieldPath,
    /// Where the position of the element goes.
    pub index: Option<FieldPath>,
    pub preserve: bool,
}

impl Unwind {
    pub fn parse(spec: Val<'_>) -> Result<Unwind> {
        let (mut path, mut index, mut preserve) = (None, None, false);
        match spec.tag {
            tag::STRING => path = spec.as_str(),
            tag::DOCUMENT => {
                for e in spec.as_doc().unwrap_or(Doc::EMPTY).iter() {
                    match e.name {
                        "path" => match e.val.as_str() {
                            Some(p) => path = Some(p),
                            None => bail!(
                                28808,
                                "expected a string as the path for $unwind stage, got {}",
                                e.val.type_name()
                            ),
                        },
                        "preserveNullAndEmptyArrays" => match e.val.as_bool() {
                            Some(b) => preserve = b,
                            None => bail!(
                                28809,
                                "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {}",
                                e.val.type_name()
                            ),
                        },
                        "includeArrayIndex" => match e.val.as_str() {
                            Some("") | None => bail!(
                                28810,
                                "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {}",
                                e.val.type_name()
                            ),
                            Some(i) if i.starts_with('$') => bail!(
                                28822,
                                "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {i}"
                            ),
                            Some(i) => index = Some(field_path(i)?),
                        },
                        n => bail!(28811, "unrecognized option to $unwind stage: {n}"),
                    }
                }
            }
            t => bail!(
                15981,
                "expected either a string or an object as specification for $unwind stage, got {}",
                tag::name(t)
            ),
        }
        let Some(path) = path.filter(|p| !p.is_empty()) else {
            bail!(28812, "no path specified to $unwind stage");
        };
        let Some(path) = path.strip_prefix('$') else {
            bail!(
                28818,
                "path option to $unwind stage should be prefixed with a '$': {path}"
            );
        };
        if path.contains('\0') {
            bail!(
                16419,
                "field path must not contain embedded null characters"
            );
        }
        Ok(Unwind {
            path: field_path(path)?,
            index,
            preserve,
        })
    }
}

pub(super) struct Run {
    input: Box<dyn Source>,
    spec: Arc<Unwind>,
    /// How far the array of the current input document is unwound, and how long it is.
    at: usize,
    len: usize,
    /// Where the rest of the array starts in the array's bytes.
    offset: usize,
    /// Where the array's element begins and ends in the document, where it is a field at its top
    /// and nothing else is added.
    place: Option<(usize, usize)>,
    out: Vec<u8>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Unwind>) -> Run {
        Run {
            input,
            spec,
            at: 0,
            len: 0,
            offset: 4,
            place: None,
            out: Vec::new(),
        }
    }

    /// The next document, made of the bytes before the array, its next element under its name, and
    /// the bytes behind it. `None`: the array has no more.
    fn splice(&mut self, (start, end): (usize, usize)) -> Option<()> {
        let doc = self.input.doc().as_bytes();
        let name = self.spec.path.first();
        // A tag, the name, its end.
        let array = doc.get(start + name.len() + 2..end)?;
        let (number, v) = first_element(array.get(self.offset..array.len() - 1)?)?;
        self.offset += 1 + number + 1 + v.bytes.len();
        let out = &mut self.out;
        out.clear();
        out.extend_from_slice(doc.get(..start)?);
        out.push(v.tag);
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out.extend_from_slice(v.bytes);
        out.extend_from_slice(doc.get(end..)?);
        let len = i32::try_from(out.len()).ok()?;
        out.first_chunk_mut::<4>()?
            .copy_from_slice(&len.to_le_bytes());
        Some(())
    }

    fn emit(&mut self, value: Option<Value>, index: Option<i64>) {
        let value = value.as_ref().map(Value::as_val);
        replace(&mut self.out, self.input.doc(), &self.spec, value, index);
    }
}

/// Makes `out` the document with `value` in place of the array (`None` removes the field).
pub(super) fn replace(
    out: &mut Vec<u8>,
    doc: Doc<'_>,
    spec: &Unwind,
    value: Option<Val<'_>>,
    index: Option<i64>,
) {
    out.clear();
    let mut w = Writer::on(std::mem::take(out));
    match &spec.index {
        None => set_path(&mut w, doc, &spec.path, 0, value),
        Some(index_path) => {
            let mut inner = Writer::new();
            set_path(&mut inner, doc, &spec.path, 0, value);
            let position = index.map_or(Value::NULL, Value::from);
            set_path(
                &mut w,
                inner.finish().as_doc(),
                index_path,
                0,
                Some(position.as_val()),
            );
        }
    }
    *out = w.finish_into();
}

/// Copies `doc` with the value at a path replaced (or removed); makes missing documents on the way.
/// Anything on the way that is no document becomes one.
pub(super) fn set_path(
    w: &mut Writer,
    doc: Doc<'_>,
    path: &FieldPath,
    depth: usize,
    value: Option<Val<'_>>,
) {
    let name = path.part(depth);
    let last = depth + 1 == path.len();
    let mut found = false;
    for e in doc.iter() {
        if found || e.name != name {
            w.val(e.name, e.val);
            continue;
        }
        found = true;
        if last {
            if let Some(v) = value {
                w.val(name, v);
            }
        } else if let Some(d) = e.val.as_doc() {
            w.open_doc(name);
            set_path(w, d, path, depth + 1, value);
            w.close();
        } else if value.is_some() {
            w.open_doc(name);
            set_path(w, Doc::EMPTY, path, depth + 1, value);
            w.close();
        } else {
            w.val(e.name, e.val);
        }
    }
    if !found && let Some(v) = value {
        if last {
            w.val(name, v);
        } else {
            w.open_doc(name);
            set_path(w, Doc::EMPTY, path, depth + 1, value);
            w.close();
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            if self.at < self.len {
                host.check()?;
                if let Some(place) = self.place {
                    match self.splice(place) {
                        Some(()) => self.at += 1,
                        None => {
                            self.at = self.len;
                            continue;
                        }
                    }
                    return Ok(true);
                }
                let item = self
                    .spec
                    .path
                    .get(self.input.doc())
                    .and_then(|v| v.as_array())
                    .and_then(|a| {
                        let rest = a.as_bytes().get(self.offset..a.len() - 1)?;
                        let (name, v) = first_element(rest)?;
                        Some((v.to_value(), self.offset + 1 + name + 1 + v.bytes.len()))
                    });
                let Some((item, offset)) = item else {
                    self.at = self.len;
                    continue;
                };
                let n = self.at as i64;
                self.at += 1;
                self.offset = offset;
                self.emit(Some(item), Some(n));
                return Ok(true);
            }
            if !self.input.advance(host)? {
                return Ok(false);
            }
            (self.at, self.len, self.offset) = (0, 0, 4);
            self.place = None;
            let v = self.spec.path.get(self.input.doc());
            let value = match v {
                Some(v) if v.tag == tag::ARRAY => {
                    self.len = v.as_array().map_or(0, Doc::count);
                    if self.len > 0 {
                        self.place = place(&self.spec, self.input.doc());
                        continue;
                    }
                    // An empty array goes away as a field.
                    None
                }
                Some(v) if v.is_nullish() => Some(v.to_value()),
                None => None,
                Some(v) => {
                    let v = v.to_value();
                    self.emit(Some(v), None);
                    return Ok(true);
                }
            };
            if self.spec.preserve {
                self.emit(value, None);
                return Ok(true);
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        // The rest of the array is still to come.
        self.input.parts(self.at < self.len, to)?;
        to.doc(&mut self.out, wanted)
    }
}

/// Where the element that is unwound begins and ends in the bytes of the document.
fn place(spec: &Unwind, doc: Doc<'_>) -> Option<(usize, usize)> {
    if spec.path.is_dotted() || spec.index.is_some() {
        return None;
    }
    let end = doc.len() - 1;
    let mut it = doc.iter();
    loop {
        let start = end - it.rest().len();
        let (name, _) = it.next_raw()?;
        if bson::same_name(name, spec.path.first()) {
            return Some((start, end - it.rest().len()));
        }
    }
}

/// The length of the name and the value of the first element in raw element bytes.
fn first_element(bytes: &[u8]) -> Option<(usize, Val<'_>)> {
    // An iterator over element bytes needs no document around them.
    let mut it = bson::Iter::over(bytes);
    let (name, v) = it.next_raw()?;
    Some((name.len(), v))
}
