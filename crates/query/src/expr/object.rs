//! Operators over documents: `$mergeObjects $getField $setField $unsetField`.

use super::node::{Call, Computed, EvalCtx, Node, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, operand, optional};
use super::table::{Named, Op};
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::{Result, bail};
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

/// A document of these fields; of fields of one name the last value stands at the first one's place.
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
    let mut merged = DocBuf::new();
    let mut add = |v: Val<'_>| -> Result<()> {
        match v.as_doc() {
            Some(d) => merged = merge(merged.as_doc(), d),
            None if v.is_nullish() => {}
            None => bail!(
                40400,
                "$mergeObjects requires object inputs, but input {v} is of type {}",
                v.type_name()
            ),
        }
        Ok(())
    };
    if let [only] = &c.args[..] {
        // One array stands for its items.
        let v = only.eval(ctx)?;
        match v.or_null().as_array() {
            Some(a) => a.values().try_for_each(add)?,
            None => add(v.or_null())?,
        }
    } else {
        for n in &c.args {
            add(n.eval(ctx)?.or_null())?;
        }
    }
    own(merged)
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
    let input = c.arg(1, ctx)?;
    if input.is_nullish() {
        return Ok(match input {
            Computed::Missing => Computed::Missing,
            _ => Computed::NULL,
        });
    }
    Ok(match input {
        Computed::Ref(v) => Computed::from(v.as_doc().and_then(|d| d.get(name))),
        Computed::Owned(v) => v
            .as_val()
            .as_doc()
            .and_then(|d| d.get(name))
            .map_or(Computed::Missing, |x| Computed::Owned(x.to_value())),
        Computed::Missing => Computed::Missing,
    })
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
    n.fold()?;
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
