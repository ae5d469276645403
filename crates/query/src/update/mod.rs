//! Updates: parsed once from the `u` of a statement, applied to document bytes.
//!
//! * [`tree`] holds the operators of an update by path, as MongoDB does, so that conflicts show
//!   while parsing and new fields appear in order of their names.
//! * [`apply`] walks a document and that tree together and copies what stays as runs of bytes: the
//!   cost of setting one field is a scan up to it and two copies.
//! * [`operator`] and [`array`] say what one operator makes of one value.
//! * [`diff`] is what changed, in the form of MongoDB's oplog.
//! * [`upsert`] derives the document that an upsert starts from.
//!
//! Invariant: no I/O, no clock; everything that may differ between two runs comes in through
//! [`UpdateCtx`]. Source of the behaviour: MongoDB 8 manual, "Update Operators" and "Updates with
//! Aggregation Pipeline".

mod apply;
mod array;
pub mod diff;
mod operator;
mod tree;
mod upsert;

#[cfg(test)]
mod tests;

use crate::expr::{EvalCtx, ParseEnv, Vars};
use crate::filter::Filter;
use crate::pipeline::parse_transforms;
use crate::transform::Transform;
use bson::{Doc, DocBuf, MAX_DOC_BYTES, ObjectId, Val, Writer, order, tag};
use errors::{Result, bail, err};
use tree::Operators;

pub use upsert::base as upsert_base;

/// A parsed update.
#[derive(Debug)]
pub struct Update {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Operators(Operators),
    Replacement(DocBuf),
    Pipeline(Vec<Transform>),
    /// What another update changed, see [`diff`].
    Diff(DocBuf),
}

/// What an application needs to know beside the document.
#[derive(Clone, Copy)]
pub struct UpdateCtx<'a> {
    /// Variables of the command (`$$NOW` among them), for pipelines and `$expr` in array filters.
    pub vars: &'a Vars,
    /// Milliseconds since 1970: the date of `$currentDate`.
    pub now_millis: i64,
    /// seconds << 32 | increment: the timestamp of `$currentDate` and of empty timestamps in a
    /// replacement.
    pub ts: u64,
    /// The array position that the query matched, for the positional `$`: found out by
    /// [`Update::apply`].
    position: Option<u32>,
    /// The document is about to be inserted by an upsert.
    pub is_insert: bool,
}

impl<'a> UpdateCtx<'a> {
    pub fn new(vars: &'a Vars, now_millis: i64, ts: u64) -> UpdateCtx<'a> {
        UpdateCtx {
            vars,
            now_millis,
            ts,
            position: None,
            is_insert: false,
        }
    }
}

/// A document that an update changed.
#[derive(Debug)]
pub struct Applied {
    pub doc: DocBuf,
    /// What changed, see [`diff`]; `None` when the new document is to be taken whole: a
    /// replacement, or a pipeline that changed so much that the diff would be larger.
    pub diff: Option<Vec<u8>>,
}

impl Update {
    /// Parses the `u` of an update statement: a document of operators, a replacement, or a
    /// pipeline.
    pub fn parse(u: Val<'_>, array_filters: &[Doc<'_>], env: &ParseEnv) -> Result<Update> {
        Update::check_kind(u)?;
        let kind = match u.tag {
            tag::ARRAY => {
                if !array_filters.is_empty() {
                    bail!(
                        FailedToParse,
                        "arrayFilters may not be specified for pipeline-style updates"
                    );
                }
                Kind::Pipeline(parse_transforms(u.as_array().unwrap_or(Doc::EMPTY), env)?)
            }
            _ => {
                let d = u.as_doc().unwrap_or(Doc::EMPTY);
                match d.first() {
                    Some(e) if e.name.starts_with('$') => {
                        Kind::Operators(Operators::parse(d, array_filters, env)?)
                    }
                    _ => Kind::Replacement(d.to_buf()),
                }
            }
        };
        Ok(Update { kind })
    }

    /// Fails where the `u` of a statement is neither a document nor a pipeline.
    pub fn check_kind(u: Val<'_>) -> Result<()> {
        match u.tag {
            tag::ARRAY | tag::DOCUMENT => Ok(()),
            t => bail!(
                FailedToParse,
                "Update argument must be either an object or an array, not {}",
                tag::name(t)
            ),
        }
    }

    /// An update by a pipeline that is parsed already.
    pub fn from_transforms(stages: Vec<Transform>) -> Update {
        Update {
            kind: Kind::Pipeline(stages),
        }
    }

    /// An update that changes a document as another changed it.
    pub fn from_diff(diff: Doc<'_>) -> Update {
        Update {
            kind: Kind::Diff(diff.to_buf()),
        }
    }

    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, Kind::Replacement(_))
    }

    pub fn is_pipeline(&self) -> bool {
        matches!(self.kind, Kind::Pipeline(_))
    }

    /// Whether it needs variables that are asked whether it may go on: it computes, or may take
    /// long on one document.
    pub fn wants_vars(&self) -> bool {
        match &self.kind {
            Kind::Operators(o) => o.may_take_long(),
            Kind::Replacement(_) | Kind::Diff(_) => false,
            Kind::Pipeline(_) => true,
        }
    }

    /// Whether a positional `$` occurs: then [`Update::apply`] tests the filter on the document
    /// once more.
    pub fn needs_position(&self) -> bool {
        matches!(&self.kind, Kind::Operators(o) if o.positional)
    }

    /// Paths, cut before the first array position, outside of which nothing changes; `None` when
    /// anything may change.
    pub fn touched_paths(&self) -> Option<&[String]> {
        match &self.kind {
            Kind::Operators(o) => Some(&o.touched),
            _ => None,
        }
    }

    /// Whether a value at `path` (of an index key, say) may change.
    pub fn may_touch(&self, path: &str) -> bool {
        let within = |a: &str, b: &str| {
            a.strip_prefix(b)
                .is_some_and(|r| r.is_empty() || r.starts_with('.'))
        };
        self.touched_paths()
            .is_none_or(|t| t.iter().any(|t| within(t, path) || within(path, t)))
    }

    /// Applies the update. `None` when the document stays as it is.
    ///
    /// `filter`: the query that found the document, asked for the array position that a positional
    /// `$` stands for.
    pub fn apply(
        &self,
        doc: Doc<'_>,
        filter: &Filter,
        ctx: &UpdateCtx<'_>,
    ) -> Result<Option<Applied>> {
        ctx.vars.begin_work();
        let applied = match &self.kind {
            Kind::Operators(o) if o.positional && !ctx.is_insert => {
                let position = filter.first_matched_index(doc, ctx.vars)?.flatten();
                apply::operators(o, doc, &UpdateCtx { position, ..*ctx })?
            }
            Kind::Operators(o) => apply::operators(o, doc, ctx)?,
            Kind::Replacement(r) => replace(doc, r.as_doc(), ctx)?,
            Kind::Pipeline(stages) => transform(stages, doc, ctx)?,
            Kind::Diff(diff) => apply_diff(diff.as_doc(), doc)?,
        };
        if let Some(a) = &applied
            && a.doc.as_bytes().len() > MAX_DOC_BYTES
        {
            return Err(too_large(ctx).into());
        }
        // Operators check what they set.
        if let Some(a) = &applied
            && !matches!(self.kind, Kind::Operators(_))
            && bson::nests_deeper(a.doc.as_doc(), bson::MAX_DEPTH)
        {
            return Err(tree::too_deep().into());
        }
        Ok(applied)
    }

    /// The document that an upsert inserts when nothing matched `query`.
    pub fn upsert(&self, filter: &Filter, ctx: &UpdateCtx<'_>) -> Result<DocBuf> {
        let base = upsert::base(filter, self.is_replacement())?;
        let ctx = UpdateCtx {
            is_insert: true,
            ..*ctx
        };
        let doc = match self.apply(base.as_doc(), filter, &ctx)? {
            Some(a) => a.doc,
            None => base,
        };
        finish_insert(doc)
    }
}

/// What an update makes of a document is more than may be stored.
fn too_large(ctx: &UpdateCtx<'_>) -> errors::Error {
    if ctx.is_insert {
        return upsert_too_large();
    }
    err!(
        BSONObjectTooLarge,
        "Resulting document after update is larger than {MAX_DOC_BYTES}"
    )
}

fn upsert_too_large() -> errors::Error {
    let message = format!("Document to upsert is larger than {MAX_DOC_BYTES}");
    errors::Error::new(errors::Code(7655103), message)
}

/// `_id` first, generated when missing; refuses an `_id` that cannot be one.
fn finish_insert(doc: DocBuf) -> Result<DocBuf> {
    let d = doc.as_doc();
    let out = match d.get("_id") {
        None => {
            let mut w = Writer::with_capacity(d.len() + 20);
            w.oid("_id", ObjectId::generate()).extend(d);
            w.finish()
        }
        Some(id) => {
            check_id(id)?;
            if d.first().is_some_and(|e| e.name == "_id") {
                doc
            } else {
                id_first(id, d)
            }
        }
    };
    if out.as_bytes().len() > MAX_DOC_BYTES {
        return Err(upsert_too_large().into());
    }
    Ok(out)
}

/// Refuses values that MongoDB refuses as `_id`.
pub fn check_id(id: Val<'_>) -> Result<()> {
    match id.tag {
        tag::ARRAY | tag::REGEX | tag::UNDEFINED => bail!(
            InvalidIdField,
            "The '_id' value cannot be of type {}",
            id.type_name()
        ),
        tag::DOCUMENT => match id.as_doc().and_then(forbidden_dollar_field) {
            Some(name) => bail!(
                DollarPrefixedFieldName,
                "_id fields may not contain '$'-prefixed fields: {name} is not valid for storage."
            ),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The first field with a `$` that is not part of a DBRef. A DBRef begins with `$ref` (a string)
/// and `$id`, then maybe `$db` (a string).
fn forbidden_dollar_field<'a>(doc: Doc<'a>) -> Option<&'a str> {
    let mut fields = doc.iter().peekable();
    if fields
        .peek()
        .is_some_and(|e| e.name == "$ref" && e.val.tag == tag::STRING)
    {
        let reference = fields.next();
        if fields.next_if(|e| e.name == "$id").is_none() {
            return reference.map(|e| e.name);
        }
        fields.next_if(|e| e.name == "$db" && e.val.tag == tag::STRING);
    }
    fields.map(|e| e.name).find(|name| name.starts_with('$'))
}

fn id_first(id: Val<'_>, rest: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(rest.len() + id.bytes.len() + 8);
    w.val("_id", id);
    for e in rest.iter().filter(|e| e.name != "_id") {
        w.val(e.name, e.val);
    }
    w.finish()
}

fn altered_id(id: Val<'_>) -> errors::Error {
    err!(
        ImmutableField,
        "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {id}"
    )
}

fn replace(doc: Doc<'_>, new: Doc<'_>, ctx: &UpdateCtx<'_>) -> Result<Option<Applied>> {
    if doc.as_bytes() == new.as_bytes() {
        return Ok(None);
    }
    if !ctx.is_insert
        && let Some(e) = new.iter().find(|e| e.name.starts_with('$'))
    {
        return Err(dollar_prefixed(e.name, e.name).into());
    }
    // A replacement that says nothing of `_id` is no repetition to MongoDB, and counts as a change,
    // whatever comes of it.
    let out = with_id_of(doc, new)?;
    Ok(Some(Applied {
        doc: stamp(out, ctx.ts),
        diff: None,
    }))
}

/// `new` with the `_id` of `old`, which must be the same when both have one.
fn with_id_of(old: Doc<'_>, new: Doc<'_>) -> Result<DocBuf> {
    let id = match (old.get("_id"), new.get("_id")) {
        (Some(a), Some(b)) if !order::equal(a, b) => return Err(altered_id(b).into()),
        (_, Some(b)) => b,
        (Some(a), None) => a,
        (None, None) => return Ok(new.to_buf()),
    };
    if new.first().is_some_and(|e| e.name == "_id") {
        return Ok(new.to_buf());
    }
    Ok(id_first(id, new))
}

/// Empty timestamps at the top level of a stored document become the current one (`_id` excepted).
pub fn stamp(doc: DocBuf, ts: u64) -> DocBuf {
    match ts {
        0 => doc,
        _ => stamp_each(doc, || ts),
    }
}

/// The same with a timestamp of its own for each empty one.
pub fn stamp_each(doc: DocBuf, mut next: impl FnMut() -> u64) -> DocBuf {
    let empty = |name: &str, v: Val<'_>| {
        v.tag == tag::TIMESTAMP && v.as_timestamp() == Some(0) && name != "_id"
    };
    let d = doc.as_doc();
    if !d.iter().any(|e| empty(e.name, e.val)) {
        return doc;
    }
    let mut w = Writer::with_capacity(d.len());
    for e in d.iter() {
        if empty(e.name, e.val) {
            w.timestamp(e.name, next());
        } else {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}

fn dollar_prefixed(name: &str, path: &str) -> errors::Error {
    err!(
        DollarPrefixedFieldName,
        "The dollar ($) prefixed field '{name}' in '{path}' is not allowed in the context of an update's replacement \
         document. Consider using an aggregation pipeline with $replaceWith."
    )
}

fn apply_diff(diff: Doc<'_>, doc: Doc<'_>) -> Result<Option<Applied>> {
    let new = with_id_of(doc, diff::apply(doc, diff)?.as_doc())?;
    if new.as_bytes() == doc.as_bytes() {
        return Ok(None);
    }
    Ok(Some(Applied {
        doc: new,
        diff: Some(diff.as_bytes().to_vec()),
    }))
}

fn transform(stages: &[Transform], doc: Doc<'_>, ctx: &UpdateCtx<'_>) -> Result<Option<Applied>> {
    let mut cur = doc.to_buf();
    for s in stages {
        let mut out = Vec::with_capacity(cur.as_bytes().len() + 64);
        s.apply(&EvalCtx::new(cur.as_doc(), ctx.vars), &mut out)?;
        cur = DocBuf::from_vec(out).ok_or_else(|| {
            errors::Error::internal("a pipeline stage of an update made no document")
        })?;
    }
    let new = with_id_of(doc, cur.as_doc())?;
    if new.as_bytes() == doc.as_bytes() {
        return Ok(None);
    }
    let diff = diff::between(doc, new.as_doc());
    Ok(Some(Applied { doc: new, diff }))
}
