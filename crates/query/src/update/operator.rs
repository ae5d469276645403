//! One update operator: its operand parsed, and what it makes of a value that is there or not.

use super::UpdateCtx;
use super::array::{AddToSet, Pull, Push};
use crate::arithmetic::{Number, add_checked, multiply_checked};
use crate::collation::{Collation, compare};
use crate::expr::ParseEnv;
use crate::list::List;
use bson::{Doc, Val, Value, order, tag};
use errors::{Result, bail, err};
use std::cmp::Ordering;

/// An operator with its operand, for one path.
#[derive(Debug)]
pub enum UpdateOp {
    Set(Value),
    SetOnInsert(Value),
    Unset,
    Inc(Value),
    Mul(Value),
    Min(Value, Option<Collation>),
    Max(Value, Option<Collation>),
    /// A timestamp, or else a date.
    CurrentDate {
        timestamp: bool,
    },
    Bit(Vec<(Bit, i64, bool)>),
    Push(Push),
    AddToSet(AddToSet),
    Pop {
        first: bool,
    },
    Pull(Pull),
    PullAll(List),
    /// The new place of a renamed field; the old path.
    RenameTo(Box<str>),
    /// The old place of a renamed field.
    RenameFrom,
}

#[derive(Clone, Copy, Debug)]
pub enum Bit {
    And,
    Or,
    Xor,
}

/// What becomes of a value.
pub enum ValueChange<'a> {
    Unchanged,
    Remove,
    Set(Val<'a>),
    SetOwned(Value),
    /// An array that only grew at its end, from that position on.
    Grown(Value, u32),
}

/// What becomes of a place where nothing is.
pub enum Creation<'a> {
    /// It stays so, even if the path could not exist.
    Ignore,
    /// It stays so, but the path must be one that could exist (`$pop`, `$pull`).
    CheckPath,
    Create(Val<'a>),
    CreateOwned(Value),
}

/// The update's document and operator, for error messages.
pub struct UpdateTarget<'a> {
    pub root: Doc<'a>,
    pub path: &'a str,
    pub name: &'a str,
}

impl UpdateTarget<'_> {
    /// `{_id: …}` of the document.
    pub fn id(&self) -> String {
        match self.root.get("_id") {
            Some(id) => format!("{{_id: {id}}}"),
            None => "{no id}".to_string(),
        }
    }
}

impl UpdateOp {
    pub fn check_name(name: &str) -> Result<()> {
        match name {
            "$set" | "$setOnInsert" | "$unset" | "$inc" | "$mul" | "$min" | "$max"
            | "$currentDate" | "$bit" | "$push" | "$addToSet" | "$pop" | "$pull" | "$pullAll"
            | "$rename" => Ok(()),
            _ => Err(err!(
                FailedToParse,
                "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an array"
            ).into()),
        }
    }

    pub fn parse(modifier: &str, path: &str, v: Val<'_>, env: &ParseEnv) -> Result<UpdateOp> {
        Ok(match modifier {
            "$set" => UpdateOp::Set(v.to_value()),
            "$setOnInsert" => UpdateOp::SetOnInsert(v.to_value()),
            "$unset" => UpdateOp::Unset,
            "$inc" => UpdateOp::Inc(number(v, "increment", path)?),
            "$mul" => UpdateOp::Mul(number(v, "multiply", path)?),
            "$min" => UpdateOp::Min(v.to_value(), env.collation().cloned()),
            "$max" => UpdateOp::Max(v.to_value(), env.collation().cloned()),
            "$currentDate" => parse_current_date(v)?,
            "$bit" => parse_bit(path, v)?,
            "$push" => UpdateOp::Push(Push::parse(v, env.collation())?),
            "$addToSet" => UpdateOp::AddToSet(AddToSet::parse(v, env.collation())?),
            "$pop" => parse_pop(path, v)?,
            "$pull" => UpdateOp::Pull(Pull::parse(v, env)?),
            "$pullAll" => match v.tag {
                tag::ARRAY => UpdateOp::PullAll(List::new(v.to_value(), env.collation())),
                _ => bail!(
                    BadValue,
                    "$pullAll requires an array argument but was given a {}",
                    v.type_name()
                ),
            },
            _ => return Err(errors::Error::internal("unknown modifier").into()),
        })
    }

    /// Checks `{from: to}` of `$rename` and gives `to`.
    pub fn parse_rename<'a>(from: &str, to: Val<'a>) -> Result<&'a str> {
        let Some(target) = to.as_str() else {
            bail!(
                BadValue,
                "The 'to' field for $rename must be a string: {from}: {to}"
            );
        };
        if target.contains('\0') {
            bail!(
                9867600,
                "The 'to' field for $rename cannot contain an embedded null byte"
            );
        }
        for (which, path) in [("source", from), ("destination", target)] {
            if path
                .split('.')
                .any(|p| p == "$" || (p.starts_with("$[") && p.ends_with(']')))
            {
                bail!(
                    BadValue,
                    "The {which} field for $rename may not be dynamic: {path}"
                );
            }
        }
        let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|r| r.starts_with('.'));
        if from == target {
            bail!(
                BadValue,
                "The source and target field for $rename must differ: {from}: {to}"
            );
        }
        if !from.is_empty() && !target.is_empty() && (below(from, target) || below(target, from)) {
            bail!(
                BadValue,
                "The source and target field for $rename must not be on the same path: {from}: {to}"
            );
        }
        Ok(target)
    }

    pub fn rename_to(from: &str) -> UpdateOp {
        UpdateOp::RenameTo(from.into())
    }

    /// Applies the operator to a value that is there.
    pub fn apply<'a>(
        &'a self,
        v: Val<'a>,
        at: &UpdateTarget<'a>,
        ctx: &UpdateCtx<'_>,
    ) -> Result<ValueChange<'a>> {
        Ok(match self {
            UpdateOp::Set(new) => replace_if_other(v, new.as_val()),
            UpdateOp::SetOnInsert(new) if ctx.is_insert => replace_if_other(v, new.as_val()),
            UpdateOp::SetOnInsert(_) => ValueChange::Unchanged,
            UpdateOp::Unset => ValueChange::Remove,
            UpdateOp::Inc(n) => arithmetic("$inc", v, n.as_val(), at)?,
            UpdateOp::Mul(n) => arithmetic("$mul", v, n.as_val(), at)?,
            UpdateOp::Min(new, c) if compare(c.as_ref(), new.as_val(), v) == Ordering::Less => {
                ValueChange::Set(new.as_val())
            }
            UpdateOp::Max(new, c) if compare(c.as_ref(), new.as_val(), v) == Ordering::Greater => {
                ValueChange::Set(new.as_val())
            }
            UpdateOp::Min(..) | UpdateOp::Max(..) => ValueChange::Unchanged,
            UpdateOp::CurrentDate { timestamp } => ValueChange::SetOwned(now(*timestamp, ctx)),
            UpdateOp::Bit(ops) => bit(ops, v, at)?,
            UpdateOp::Push(p) => p.apply(v, at)?,
            UpdateOp::AddToSet(a) => a.apply(v, at)?,
            UpdateOp::Pop { first } => super::array::pop(*first, v, at)?,
            UpdateOp::Pull(p) => p.apply(v, ctx)?,
            UpdateOp::PullAll(values) => super::array::pull_all(values, v)?,
            UpdateOp::RenameTo(from) => match renamed(from, at.root)? {
                // Onto `_id` it is an error even when the values are the same.
                Some(new) if at.path == "_id" => ValueChange::Set(new),
                Some(new) => replace_if_other(v, new),
                None => ValueChange::Unchanged,
            },
            UpdateOp::RenameFrom => ValueChange::Remove,
        })
    }

    /// Applies the operator where nothing is.
    pub fn missing<'a>(&'a self, root: Doc<'a>, ctx: &UpdateCtx<'_>) -> Result<Creation<'a>> {
        Ok(match self {
            UpdateOp::Set(v) | UpdateOp::Inc(v) | UpdateOp::Min(v, _) | UpdateOp::Max(v, _) => {
                Creation::Create(v.as_val())
            }
            UpdateOp::SetOnInsert(v) if ctx.is_insert => Creation::Create(v.as_val()),
            UpdateOp::SetOnInsert(_) | UpdateOp::Unset | UpdateOp::RenameFrom => Creation::Ignore,
            UpdateOp::Mul(v) => {
                let zero = Number::Int(0);
                let factor = Number::of(v.as_val()).unwrap_or(zero);
                let product = match factor {
                    Number::Int(_) => zero,
                    Number::Long(_) => Number::Long(0),
                    Number::Double(_) => Number::Double(0.0),
                    Number::Decimal(_) => Number::Decimal(bson::Decimal128::from_i64(0)),
                };
                Creation::CreateOwned(product.to_value())
            }
            UpdateOp::CurrentDate { timestamp } => Creation::CreateOwned(now(*timestamp, ctx)),
            UpdateOp::Bit(ops) => Creation::CreateOwned(bits(ops, 0, false)),
            UpdateOp::Push(p) => Creation::CreateOwned(p.create()?),
            UpdateOp::AddToSet(a) => Creation::CreateOwned(a.create()),
            UpdateOp::Pop { .. } | UpdateOp::Pull(_) | UpdateOp::PullAll(..) => Creation::CheckPath,
            UpdateOp::RenameTo(from) => match renamed(from, root)? {
                Some(v) => Creation::Create(v),
                None => Creation::Ignore,
            },
        })
    }
}

/// An update that stores the same bytes is none.
fn replace_if_other<'a>(old: Val<'_>, new: Val<'a>) -> ValueChange<'a> {
    if old == new {
        ValueChange::Unchanged
    } else {
        ValueChange::Set(new)
    }
}

fn number(v: Val<'_>, verb: &str, path: &str) -> Result<Value> {
    if !v.is_number() {
        bail!(
            TypeMismatch,
            "Cannot {verb} with non-numeric argument: {{{path}: {v}}}"
        );
    }
    Ok(v.to_value())
}

fn arithmetic<'a>(
    name: &str,
    v: Val<'_>,
    operand: Val<'_>,
    at: &UpdateTarget<'_>,
) -> Result<ValueChange<'a>> {
    let (Some(a), Some(b)) = (Number::of(v), Number::of(operand)) else {
        bail!(
            TypeMismatch,
            "Cannot apply {name} to a value of non-numeric type. {} has the field '{}' of non-numeric type {}",
            at.id(),
            at.name,
            v.type_name()
        );
    };
    let sum = if name == "$inc" {
        add_checked(a, b)
    } else {
        multiply_checked(a, b)
    };
    let Some(sum) = sum else {
        bail!(
            BadValue,
            "Failed to apply {name} operations to current value (({}){v}) for document {}",
            v.type_name(),
            at.id()
        );
    };
    let new = sum.to_value();
    if new.tag() == v.tag && order::equal(new.as_val(), v) {
        return Ok(ValueChange::Unchanged);
    }
    Ok(ValueChange::SetOwned(new))
}

fn now(timestamp: bool, ctx: &UpdateCtx<'_>) -> Value {
    if timestamp {
        Value::timestamp(ctx.ts)
    } else {
        Value::date(ctx.now_millis)
    }
}

fn parse_current_date(v: Val<'_>) -> Result<UpdateOp> {
    if v.as_bool().is_some() {
        return Ok(UpdateOp::CurrentDate { timestamp: false });
    }
    let Some(d) = v.as_doc() else {
        bail!(
            BadValue,
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({{$type: \
             'timestamp/date'}}).",
            v.type_name()
        );
    };
    let mut timestamp = None;
    for e in d.iter() {
        if e.name != "$type" {
            bail!(BadValue, "Unrecognized $currentDate option: {}", e.name);
        }
        timestamp = match e.val.as_str() {
            Some("date") => Some(false),
            Some("timestamp") => Some(true),
            _ => bail!(
                BadValue,
                "The '$type' string field is required to be 'date' or 'timestamp': {{$currentDate: {{field : {{$type: \
                 'date'}}}}}}"
            ),
        };
    }
    match timestamp {
        Some(timestamp) => Ok(UpdateOp::CurrentDate { timestamp }),
        None => Ok(UpdateOp::CurrentDate { timestamp: false }),
    }
}

fn parse_pop(path: &str, v: Val<'_>) -> Result<UpdateOp> {
    if !v.is_number() {
        bail!(FailedToParse, "Expected a number in: {path}: {v}");
    }
    match v.to_i64_exact() {
        Some(1) => Ok(UpdateOp::Pop { first: false }),
        Some(-1) => Ok(UpdateOp::Pop { first: true }),
        Some(n) => Err(err!(FailedToParse, "$pop expects 1 or -1, found: {n}").into()),
        None => Err(err!(FailedToParse, "Expected an integer: {path}: {v}").into()),
    }
}

fn parse_bit(path: &str, v: Val<'_>) -> Result<UpdateOp> {
    let Some(d) = v.as_doc() else {
        bail!(
            BadValue,
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: {{$bit: {{field: \
             {{and/or/xor: #}}}}}}",
            v.type_name()
        );
    };
    let mut ops = Vec::new();
    for e in d.iter() {
        let op = match e.name {
            "and" => Bit::And,
            "or" => Bit::Or,
            "xor" => Bit::Xor,
            n => bail!(
                BadValue,
                "The $bit modifier only supports 'and', 'or', and 'xor', not '{n}' which is an unknown operator: {{{n}: {}}}",
                e.val
            ),
        };
        match e.val.tag {
            tag::INT32 | tag::INT64 => {
                ops.push((
                    op,
                    e.val.to_i64_exact().unwrap_or(0),
                    e.val.tag == tag::INT64,
                ));
            }
            _ => bail!(
                BadValue,
                "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}: {}}}",
                e.val.type_name(),
                e.name,
                e.val
            ),
        }
    }
    if ops.is_empty() {
        bail!(
            BadValue,
            "You must pass in at least one bitwise operation for '{path}'. The format is: {{$bit: {{field: {{and/or/xor: #}}}}}}"
        );
    }
    Ok(UpdateOp::Bit(ops))
}

fn bits(ops: &[(Bit, i64, bool)], start: i64, long: bool) -> Value {
    let (mut n, mut long) = (start, long);
    for (op, operand, wide) in ops {
        long |= wide;
        n = match op {
            Bit::And => n & operand,
            Bit::Or => n | operand,
            Bit::Xor => n ^ operand,
        };
    }
    // Sign extension makes 64-bit operations on two int32 values those on 32 bits.
    match i32::try_from(n) {
        Ok(i) if !long => Value::from(i),
        _ => Value::from(n),
    }
}

fn bit<'a>(ops: &[(Bit, i64, bool)], v: Val<'_>, at: &UpdateTarget<'_>) -> Result<ValueChange<'a>> {
    if !matches!(v.tag, tag::INT32 | tag::INT64) {
        bail!(
            BadValue,
            "Cannot apply $bit to a value of non-integral type.{} has the field {} of non-integer type {}",
            at.id(),
            at.name,
            v.type_name()
        );
    }
    let new = bits(ops, v.to_i64_exact().unwrap_or(0), v.tag == tag::INT64);
    Ok(if new.as_val() == v {
        ValueChange::Unchanged
    } else {
        ValueChange::SetOwned(new)
    })
}

/// The value that a rename moves; `None` when the source is not there.
fn renamed<'a>(from: &str, root: Doc<'a>) -> Result<Option<Val<'a>>> {
    let mut v = root.as_val();
    let (mut array, mut name) = (None, "");
    for part in from.split('.') {
        let found = match v.tag {
            tag::DOCUMENT => v.as_doc().and_then(|d| d.get(part)),
            tag::ARRAY => {
                array = array.or(Some(name));
                let Some(i) = crate::path::array_index(part) else {
                    return Err(not_viable(part, from, name, v).into());
                };
                v.as_array().and_then(|a| a.values().nth(i as usize))
            }
            _ => return Err(not_viable(part, from, name, v).into()),
        };
        match found {
            Some(f) => v = f,
            None => return Ok(None),
        }
        name = part;
    }
    if let Some(array) = array {
        return Err(through_array("source", from, array, root).into());
    }
    Ok(Some(v))
}

pub fn not_viable(part: &str, path: &str, name: &str, v: Val<'_>) -> errors::Error {
    err!(
        PathNotViable,
        "Cannot use the part ({part}) of ({path}) to traverse the element ({{{name}: {v}}})"
    )
}

/// A rename whose source or destination lies in an array.
pub fn through_array(which: &str, path: &str, array: &str, root: Doc<'_>) -> errors::Error {
    let id = root
        .get("_id")
        .map_or("no id".to_string(), |id| format!("_id: {id}"));
    err!(
        BadValue,
        "The {which} field cannot be an array element, '{path}' in doc with {id} has an array field called '{array}'"
    )
}
