//! Operators over documents: `$mergeObjects $getField $setField $unsetField`.

use super::node::{Call, Computed, EvalCtx, Node, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, operand, optional};
use super::path::get;
use super::table::{Named, Op};
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::{Result, bail, err};
use std::collections::HashMap;

pub(super) const OPS: &[Op] = &[
    Op::variadic("$mergeObjects", merge_objects),
    Op::custom("$getField", parse_get_field, &["field", "input"], get_field).varying(),
    Op::custom(
        "$setField",
        parse_set_field,
        &["field", "input", "value"],
        set_field,
    ),
    Op::custom(
        "$unsetField",
        parse_unset_field,
        &["field", "input"],
        set_field,
    ),
];

/// A document of these fields; of fields of one name the last value stands at the first one's
/// place.
pub(crate) fn document_of(fields: Vec<(&str, Val<'_>)>) -> DocBuf {
    let mut last: HashMap<&str, usize> = HashMap::with_capacity(fields.len());
    let mut kept: Vec<(&str, Val<'_>)> = Vec::with_capacity(fields.len());
    for (name, v) in fields {
        match last.get(name) {
            Some(&i) => kept[i].1 = v,
            None => {
                last.insert(name, kept.len());
                kept.push((name, v));
            }
        }
    }
    let mut w = Writer::new();
    for (name, v) in kept {
        w.val(name, v);
    }
    w.finish()
}

/// The fields of both, `over`'s winning.
pub(crate) fn merge(base: Doc<'_>, over: Doc<'_>) -> DocBuf {
    if base.is_empty() {
        return over.to_buf();
    }
    let fields = base.iter().chain(over.iter()).map(|e| (e.name, e.val));
    document_of(fields.collect())
}

fn merge_objects<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let mut values: Vec<Computed<'_>> = Vec::with_capacity(c.args.len());
    for v in c.each_arg(ctx) {
        let v = v?;
        if c.args.len() > 1 {
            object(v.or_null()).transpose()?;
        }
        values.push(v);
    }
    // One array stands for its items.
    let items = match &values[..] {
        [only] => only.or_null().as_array(),
        _ => None,
    };
    let all: Vec<Doc<'_>> = match items {
        Some(a) => a.values().filter_map(object).collect::<Result<_>>()?,
        None => {
            let each = values.iter().map(Computed::or_null);
            each.filter_map(object).collect::<Result<_>>()?
        }
    };
    // At once: merged one by one, the existing fields would be gone over for each.
    own(match &all[..] {
        [only] => only.to_buf(),
        _ => document_of(
            all.iter()
                .flat_map(|d| d.iter())
                .map(|e| (e.name, e.val))
                .collect(),
        ),
    })
}

/// A value that `$mergeObjects` merges; none where it is null.
fn object(v: Val<'_>) -> Option<Result<Doc<'_>>> {
    match v.as_doc() {
        Some(d) => Some(Ok(d)),
        None if v.is_nullish() => None,
        None => Some(Err(err!(
            40400,
            "$mergeObjects requires object inputs, but input {v} is of type {}",
            v.type_name()
        )
        .into())),
    }
}

static GET_FIELD: Named = Named {
    fields: &[("field", 3041702), ("input", 3041703)],
    not_object: 3041701,
    unknown: 3041701,
};

/// `{field, input}`, or only the field's name (of the document itself).
fn parse_get_field(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let current = || operand(Value::from("$$CURRENT").as_val(), env);
    let is_expression = arg
        .as_doc()
        .is_none_or(|d| d.first().is_some_and(|e| e.name.starts_with('$')));
    let args = if is_expression {
        vec![operand(arg, env)?, current()?]
    } else {
        let f = fields(op, &GET_FIELD, arg)?;
        vec![optional(f[0], env)?, optional(f[1], env)?]
    };
    Ok(Parsed::Call(args, Prepared::None))
}

fn get_field<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let field = c.arg(0, ctx)?;
    let Some(name) = field.or_null().as_str() else {
        bail!(
            3041704,
            "$getField requires 'field' to evaluate to type String, but got {}",
            field.type_name()
        );
    };
    let input = c.peek(1, ctx)?;
    if input.is_nullish() {
        return Ok(match input {
            Computed::Missing => Computed::Missing,
            _ => Computed::NULL,
        });
    }
    let mut seen = 0;
    let found = match &input {
        Computed::Ref(v) => Computed::from(v.as_doc().and_then(|d| get(d, name, &mut seen))),
        Computed::Owned(v) => {
            let v = v.as_val().as_doc().and_then(|d| get(d, name, &mut seen));
            v.map_or(Computed::Missing, |x| Computed::Owned(x.to_value()))
        }
        Computed::Missing => Computed::Missing,
    };
    ctx.vars.work_elements(seen)?;
    Ok(found)
}

static SET_FIELD: Named = Named {
    fields: &[("field", 4161102), ("value", 4161103), ("input", 4161109)],
    not_object: 4161100,
    unknown: 4161101,
};

static UNSET_FIELD: Named = Named {
    fields: &[("field", 4161102), ("input", 4161109)],
    not_object: 4161100,
    unknown: 4161101,
};

fn parse_set_field(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &SET_FIELD, arg)?;
    let (value, input) = (optional(f[1], env)?, optional(f[2], env)?);
    let args = vec![
        field_name(op, f[0].unwrap_or(Val::NULL), env)?,
        input,
        value,
    ];
    Ok(Parsed::Call(args, Prepared::None))
}

fn parse_unset_field(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &UNSET_FIELD, arg)?;
    let input = optional(f[1], env)?;
    let args = vec![field_name(op, f[0].unwrap_or(Val::NULL), env)?, input];
    Ok(Parsed::Call(args, Prepared::None))
}

/// The name of the field to set must be a constant string.
fn field_name(op: &Op, v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    let mut n = operand(v, env)?;
    if matches!(n, Node::Path(_) | Node::System(..) | Node::Var(..)) {
        bail!(
            4161108,
            "'{}' is a field path reference which is not allowed in this context. Did you mean {{$literal: '{}'}}?",
            v.as_str().unwrap_or(""),
            v.as_str().unwrap_or("")
        );
    }
    // Objects and arrays count as expressions even when all in them is constant.
    let literal = match &n {
        Node::Doc(fields) => fields.is_empty(),
        Node::Array(_) => false,
        _ => true,
    };
    n.fold(env.constants())?;
    let Some(name) = n.constant().filter(|_| literal) else {
        bail!(
            4161106,
            "{} requires 'field' to evaluate to a constant, but got a non-constant argument",
            op.name
        );
    };
    match name.as_str() {
        None => bail!(
            4161107,
            "{} requires 'field' to evaluate to type String, but got {}",
            op.name,
            name.type_name()
        ),
        Some(s) if s.contains('\0') => {
            bail!(
                9534700,
                "{}: 'field' must not contain a null character",
                op.name
            )
        }
        Some(_) => Ok(n),
    }
}

/// `$setField`, and `$unsetField` (no third argument). A missing value removes the field.
fn set_field<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (field, input, value) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let (name, Some(d)) = (
        field.or_null().as_str().unwrap_or(""),
        input.or_null().as_doc(),
    ) else {
        bail!(
            4161105,
            "{} requires 'input' to evaluate to type Object",
            c.op.name
        );
    };
    let (mut w, mut done) = (Writer::with_capacity(d.len() + 64), false);
    for e in d.iter() {
        if e.name != name {
            w.val(e.name, e.val);
        } else if let (Some(v), false) = (value.as_val(), done) {
            w.val(name, v);
            done = true;
        }
    }
    if let (Some(v), false) = (value.as_val(), done) {
        w.val(name, v);
    }
    own(w.finish())
}
