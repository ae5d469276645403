//! `$project`, `$addFields`/`$set`, `$unset`, `$replaceRoot`/`$replaceWith`: document bytes in, document bytes out.

use crate::expr::{EvalCtx, ParseEnv};
use bson::{Doc, Val, Value};
use errors::{Result, err};
use std::collections::BTreeSet;

/// A compiled one-document transformation.
#[derive(Clone, Debug)]
pub struct Transform {}

impl Transform {
    /// The specification of an aggregation `$project`.
    pub fn project(_spec: Doc<'_>, _env: &ParseEnv) -> Result<Transform> {
        Ok(Transform {})
    }

    /// `$addFields` and `$set`; `stage` is the name for messages.
    pub fn add_fields(_stage: &str, _spec: Doc<'_>, _env: &ParseEnv) -> Result<Transform> {
        Ok(Transform {})
    }

    /// `$unset`: a string or an array of strings.
    pub fn unset(_spec: Val<'_>) -> Result<Transform> {
        Ok(Transform {})
    }

    /// `$replaceRoot`'s specification `{newRoot: expr}`.
    pub fn replace_root(_spec: Val<'_>, _env: &ParseEnv) -> Result<Transform> {
        Ok(Transform {})
    }

    /// `$replaceWith`'s expression.
    pub fn replace_with(_spec: Val<'_>, _env: &ParseEnv) -> Result<Transform> {
        Ok(Transform {})
    }

    /// Appends the resulting document to `out`.
    pub fn apply(&self, _ctx: &EvalCtx<'_>, _out: &mut Vec<u8>) -> Result<()> {
        Err(err!(NotImplemented, "transforms are not there yet"))
    }

    /// The specification as explain prints it.
    pub fn to_value(&self) -> Value {
        Value::NULL
    }

    /// Paths of the input that decide the output; `None` when all of it may.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        None
    }
}
