//! `$merge`: finds each incoming document in the target by the fields of `on`, and updates or
//! inserts it.
//!
//! As in MongoDB a batch of documents is written unordered: a document that cannot be written does
//! not stop the others, and the first error is reported at the end of the batch.

use crate::op::OpCtx;
use crate::write::{UpdateRequest, update};
use bson::{Doc, DocBuf, Val, Writer, doc, tag};
use catalog::Collection;
use errors::{Code, Error, Result, Stop, bail, err};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::pipeline::{Matched, MergeSpec, NotMatched};
use query::update::Update;
use std::sync::Arc;

/// The largest batch, as in MongoDB.
const BATCH_BYTES: usize = 16 << 20;
const BATCH_DOCUMENTS: usize = 100_000;

pub(crate) struct MergeInto<'a> {
    spec: &'a MergeSpec,
    target: String,
    vars: &'a Arc<Vars>,
    /// A unique index that is not sparse holds the documents without a value of `on`.
    nulls: bool,
    env: ParseEnv,
    failed: Option<Error>,
    bytes: usize,
    documents: usize,
}

impl<'a> MergeInto<'a> {
    /// Fails when no unique index is on the fields that identify a document.
    pub fn new(ctx: &OpCtx<'_>, spec: &'a MergeSpec, vars: &'a Arc<Vars>) -> Result<MergeInto<'a>> {
        Ok(MergeInto {
            spec,
            nulls: check_key(ctx, spec)?,
            target: spec.target.to_string(),
            vars,
            env: ParseEnv::new().collated(spec.collation.clone()),
            failed: None,
            bytes: 0,
            documents: 0,
        })
    }

    /// Writes one document. An error that concerns only this document is kept for the end of the
    /// batch.
    pub fn put(&mut self, ctx: &mut OpCtx<'_>, new: Doc<'_>) -> Result<()> {
        let new = identified(self.spec, new);
        let new = new.as_doc();
        let filter = self.filter(new)?;
        match self.write(ctx, &filter, new) {
            Err(Stop::Failed(e)) if concerns_one_document(&e) => {
                self.failed.get_or_insert(e);
            }
            done => done?,
        }
        self.bytes += new.len();
        self.documents += 1;
        if self.bytes >= BATCH_BYTES || self.documents >= BATCH_DOCUMENTS {
            self.finish()?;
        }
        Ok(())
    }

    /// Ends a batch.
    pub fn finish(&mut self) -> Result<()> {
        (self.bytes, self.documents) = (0, 0);
        self.failed.take().map_or(Ok(()), |e| Err(e.into()))
    }

    /// The filter that finds the document to merge with.
    fn filter(&self, new: Doc<'_>) -> Result<Filter> {
        let mut key = Writer::new();
        for p in &self.spec.on {
            let v = p.get(new).unwrap_or(Val::NULL);
            if v.tag == tag::ARRAY {
                bail!(
                    51185,
                    "$merge write error: 'on' field '{p}' cannot be an array"
                );
            }
            if v.is_nullish() && !self.nulls {
                bail!(
                    51132,
                    "$merge write error: 'on' field '{p}' cannot be missing, null or undefined if supporting index is sparse"
                );
            }
            key.open_doc(p.as_str()).val("$eq", v).close();
        }
        Filter::parse(key.finish().as_doc(), &self.env)
    }

    fn write(&self, ctx: &mut OpCtx<'_>, filter: &Filter, new: Doc<'_>) -> Result<()> {
        let bound;
        let modifier = match &self.spec.when_matched {
            Matched::Fail => return self.insert(ctx, new),
            Matched::KeepExisting => doc! { "$setOnInsert": new },
            Matched::Merge => doc! { "$set": new },
            Matched::Replace => new.to_buf(),
            Matched::Pipeline(_) => DocBuf::new(),
        };
        let (update_spec, vars) = match &self.spec.when_matched {
            Matched::Pipeline(stages) => {
                bound = self.spec.bind(new, self.vars)?;
                (Update::from_transforms(stages.clone()), &bound)
            }
            _ => {
                let parsed = Update::parse(modifier.as_doc().as_val(), &[], &Default::default())?;
                (parsed, self.vars)
            }
        };
        let inserts = matches!(self.spec.when_not_matched, NotMatched::Insert);
        let transforms = matches!(self.spec.when_matched, Matched::Pipeline(_));
        let request = UpdateRequest {
            filter,
            update: &update_spec,
            multi: false,
            // A pipeline applies to existing documents; a new document is inserted unchanged.
            upsert: inserts && !transforms,
            sort: None,
            hint: None,
            vars,
            now_millis: Collection::now_millis(),
            images: false,
        };
        for _ in 0..100 {
            let done = update(ctx, &self.target, &request, 0, None)
                .map_err(|e| e.map_error(with_context))?;
            if done.matched > 0 || done.upserted.is_some() {
                return Ok(());
            }
            match self.spec.when_not_matched {
                NotMatched::Discard => return Ok(()),
                NotMatched::Fail => {
                    return Err(err!(
                        13113,
                        "$merge could not find a matching document in the target collection for at least one document in the source collection"
                    ).into());
                }
                NotMatched::Insert => match self.insert(ctx, new) {
                    Err(e)
                        if e.is(Code::DuplicateKey) && self.spec.on.iter().all(|p| p.is_id()) =>
                    {
                        continue;
                    }
                    done => return done,
                },
            }
        }
        bail!(WriteConflict, "$merge conflicted with others too often")
    }

    fn insert(&self, ctx: &mut OpCtx<'_>, new: Doc<'_>) -> Result<()> {
        let new = with_id(new);
        let done = crate::write::insert(ctx, &self.target, &[new.as_doc()], true, None)?;
        match done.errors.into_iter().next() {
            Some((_, e)) => Err(with_context(e).into()),
            None => Ok(()),
        }
    }
}

fn with_context(e: Error) -> Error {
    match concerns_one_document(&e) {
        true => e.context("PlanExecutor error during aggregation"),
        false => e,
    }
}

/// Whether an error concerns one document, so that the rest of the batch is still written.
fn concerns_one_document(e: &Error) -> bool {
    matches!(
        e.code,
        Code::DuplicateKey
            | Code::ImmutableField
            | Code::DocumentValidationFailure
            | Code::BSONObjectTooLarge
            | Code::Overflow
            | Code::PathNotViable
            | Code(13113)
    )
}

/// A document as it is looked for: with an `_id` where that is among what it is found by.
pub(crate) fn identified(spec: &MergeSpec, d: Doc<'_>) -> DocBuf {
    match spec.on.iter().any(|p| p.is_id()) {
        true => with_id(d),
        false => d.to_buf(),
    }
}

fn with_id(d: Doc<'_>) -> DocBuf {
    if d.contains("_id") {
        return d.to_buf();
    }
    let mut w = Writer::with_capacity(d.len() + 20);
    w.oid("_id", bson::ObjectId::generate()).extend(d);
    w.finish()
}

/// Checks that a unique index is on the fields that identify a document, as `$merge` needs. Returns
/// whether one of these indexes holds nulls.
pub(crate) fn check_key(ctx: &OpCtx<'_>, spec: &MergeSpec) -> Result<bool> {
    let mut on: Vec<&str> = spec.on.iter().map(|p| p.as_str()).collect();
    on.sort_unstable();
    if on == ["_id"] || ctx.merges_by_checked_key {
        return Ok(true);
    }
    let coll = ctx.engine.catalog.get(&spec.target.to_string());
    let mut sparse = coll.iter().flat_map(|c| c.indexes.iter()).filter_map(|i| {
        let mut fields: Vec<&str> = i.info.key.fields.iter().map(|f| f.path.as_str()).collect();
        fields.sort_unstable();
        let serves = i.info.unique
            && i.info.partial.is_none()
            && i.info.key.collation() == spec.collation.as_ref()
            && fields == on;
        serves.then_some(i.info.sparse)
    });
    match sparse.next() {
        None => bail!(
            51183,
            "Cannot find index to verify that join fields will be unique"
        ),
        Some(first) => Ok(!first || sparse.any(|s| !s)),
    }
}
