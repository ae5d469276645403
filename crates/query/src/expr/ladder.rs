//! `$_pandoBucket`: which of many ascending boundaries a value lies behind. It stands for the `$switch`
//! of a `$bucket` that has very many: that has two comparisons for each of them, and 1.7 KB of memory.

use super::node::{Call, Computed, EvalCtx, Node, Prepared};
use super::parse::{ParseEnv, Parsed, operand};
use super::table::Op;
use crate::collation::{Collation, compare};
use bson::{Doc, Val, Value};
use errors::{Result, bail, operation};
use std::cmp::Ordering;
use std::sync::Arc;

pub(crate) const NAME: &str = "$_pandoBucket";

pub(super) const OPS: &[Op] = &[Op::custom(
    NAME,
    parse,
    &["of", "boundaries", "default"],
    bucket_of,
)];

#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    boundaries: Arc<[Value]>,
    collation: Option<Collation>,
}

/// `{of: <expression>, boundaries: {$literal: [<ascending values>]}, default: <expression>}`. Without a
/// default a value that lies outside all of them is refused, as by `$switch`.
fn parse(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let mut args = vec![Node::Absent, Node::Absent, Node::Absent];
    for e in arg.as_doc().unwrap_or(Doc::EMPTY) {
        let slot = match e.name {
            "of" => 0,
            "boundaries" => 1,
            "default" => 2,
            other => bail!(FailedToParse, "Unrecognized parameter to {NAME}: {other}"),
        };
        args[slot] = operand(e.val, env)?;
    }
    let list = match &args[1] {
        Node::Const(v) => v.as_val().as_array(),
        _ => None,
    };
    let (false, Some(list)) = (matches!(args[0], Node::Absent), list) else {
        bail!(
            FailedToParse,
            "{NAME} needs a value and constant boundaries"
        );
    };
    let each = |v: Val<'_>| {
        operation::step()?;
        Ok(v.to_value())
    };
    let ladder = Ladder {
        boundaries: list.values().map(each).collect::<Result<_>>()?,
        collation: env.collation().cloned(),
    };
    Ok(Parsed::Call(args, Prepared::Ladder(ladder)))
}

fn bucket_of<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let Prepared::Ladder(ladder) = &c.prepared else {
        return Err(errors::Error::internal("a bucket without boundaries").into());
    };
    let value = c.arg(0, ctx)?;
    let value = value.comparable();
    let collation = ladder.collation.as_ref();
    let not_behind = |b: &Value| compare(collation, b.as_val(), value) != Ordering::Greater;
    let behind = ladder.boundaries.partition_point(not_behind);
    ctx.vars
        .work(ladder.boundaries.len().max(1).ilog2() as usize)?;
    if (1..ladder.boundaries.len()).contains(&behind) {
        return Ok(Computed::Ref(ladder.boundaries[behind - 1].as_val()));
    }
    if !c.has(2) {
        bail!(
            40069,
            "$switch could not find a matching branch for an input, and no default was specified."
        );
    }
    c.peek(2, ctx)
}
