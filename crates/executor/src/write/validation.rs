//! Validation: tests new versions of documents against the collection's validator.
//!
//! A collection without a validator costs one pointer check.

use crate::op::OpCtx;
use bson::{Doc, Writer};
use catalog::{Collection, Validator};
use errors::{Result, err};
use query::expr::Vars;

/// Fails with DocumentValidationFailure when `new` may not be stored. `old`: the version that it
/// replaces.
#[inline]
pub(crate) fn check(
    ctx: &OpCtx,
    coll: &Collection,
    new: Doc<'_>,
    old: Option<Doc<'_>>,
) -> Result<()> {
    match &coll.validator {
        Some(v) if !ctx.bypass_validation => test(ctx, coll, v, new, old),
        _ => Ok(()),
    }
}

/// For longer documents the validation can be interrupted.
const LONG_BYTES: usize = 64 << 10;

#[cold]
fn test(
    ctx: &OpCtx,
    coll: &Collection,
    v: &Validator,
    new: Doc<'_>,
    old: Option<Doc<'_>>,
) -> Result<()> {
    let filter = v.filter.as_ref().map_err(Clone::clone)?;
    let vars = if v.has_expr {
        Vars::new(Collection::now_millis())
    } else {
        Vars::default()
    };
    // On an event loop the rest of a batch could not be handed to a worker here.
    let long = new.len() + old.map_or(0, |d| d.len()) > LONG_BYTES && !ctx.may_offload();
    let bound = long.then(|| ctx.interruptible(&vars));
    let vars = bound.as_deref().unwrap_or(&vars);
    if filter.matches_with(new, vars)? {
        return Ok(());
    }
    if let Some(old) = old
        && v.moderate
        && !filter.matches_with(old, vars)?
    {
        return Ok(());
    }
    let mut w = Writer::new();
    w.open_doc("errInfo");
    if let Some(id) = new.get("_id") {
        w.val("failingDocumentId", id);
    }
    let details = query::filter::explain_failure(v.source.as_doc(), new, vars);
    w.doc("details", details.as_doc()).close();
    if v.logs {
        let id = new.get("_id").map(bson::json::val_to_string);
        let would = if v.refuses { "failed" } else { "would fail" };
        tracing::warn!(
            target: "STORAGE",
            id = 20294,
            namespace = &*coll.ns,
            document = id,
            errInfo = %bson::json::val_to_string(details.as_doc().as_val()),
            "Document {would} validation"
        );
    }
    if !v.refuses {
        return Ok(());
    }
    Err(
        err!(DocumentValidationFailure, "Document failed validation")
            .with_extra(w.finish().into_vec())
            .into(),
    )
}
