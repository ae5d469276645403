//! Operators that choose or repeat: `$cond $ifNull $switch $let $map $filter $reduce`, and
//! `$literal`, `$meta`.

use super::node::{Call, Computed, EvalCtx, Node, Prepared, Scope, System, check_depth};
use super::parse::{ParseEnv, Parsed, arguments, check_variable_name, fields, operand, optional};
use super::path::ExprPath;
use super::table::{Named, Op};
use crate::list::FEW;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail, err};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

pub(super) const OPS: &[Op] = &[
    Op::custom("$cond", parse_cond, &[], cond),
    Op::custom("$ifNull", parse_if_null, &[], if_null),
    Op::custom("$switch", parse_switch, &[], switch),
    Op::custom("$let", parse_let, &[], eval_let).varying(),
    Op::custom("$map", parse_map, &["input", "in"], map).varying(),
    Op::custom("$filter", parse_filter, &["input", "cond", "limit"], filter).varying(),
    Op::custom(
        "$reduce",
        parse_reduce,
        &["input", "initialValue", "in"],
        reduce,
    )
    .varying(),
    Op::custom("$literal", parse_literal, &[], absent),
    Op::custom("$const", parse_literal, &[], absent),
    Op::custom("$meta", parse_meta, &[], meta).varying(),
];

fn absent<'a>(_: &'a Call, _: &EvalCtx<'a>) -> Result<Computed<'a>> {
    Ok(Computed::Missing)
}

fn meta<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let name = match c.args.first() {
        Some(Node::Const(v)) => v.as_val().as_str(),
        _ => None,
    };
    let found = name.and_then(|name| ctx.meta.get(name));
    Ok(found.map_or(Computed::Missing, Computed::Owned))
}

fn parse_literal(_: &'static Op, arg: Val<'_>, _: &ParseEnv) -> Result<Parsed> {
    Ok(Parsed::Node(Node::Const(arg.to_value())))
}

fn parse_cond(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(d) = arg.as_doc() else {
        return Ok(Parsed::Call(arguments(op, arg, 3, 3, env)?, Prepared::None));
    };
    let mut args = vec![Node::Absent, Node::Absent, Node::Absent];
    for e in d.iter() {
        let slot = match e.name {
            "if" => 0,
            "then" => 1,
            "else" => 2,
            other => bail!(17083, "Unrecognized parameter to $cond: {other}"),
        };
        args[slot] = operand(e.val, env)?;
    }
    for (n, code, name) in [(0, 17080, "if"), (1, 17081, "then"), (2, 17082, "else")] {
        if matches!(args[n], Node::Absent) {
            return Err(
                errors::Error::coded(code, format!("Missing '{name}' parameter to $cond")).into(),
            );
        }
    }
    Ok(Parsed::Call(args, Prepared::None))
}

fn cond<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let chosen = if c.peek(0, ctx)?.truthy() { 1 } else { 2 };
    c.peek(chosen, ctx)
}

fn parse_if_null(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let args = arguments(op, arg, 0, usize::MAX, env)?;
    if args.len() < 2 {
        bail!(
            1257300,
            "$ifNull needs at least two arguments, had: {}",
            args.len()
        );
    }
    Ok(Parsed::Call(args, Prepared::None))
}

fn if_null<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let mut last = Computed::Missing;
    for n in &c.args {
        last = n.eval(ctx)?;
        if !last.is_nullish() {
            break;
        }
    }
    Ok(last)
}

/// Arguments: case, then, case, then, …, default (or absent).
fn parse_switch(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(d) = arg.as_doc() else {
        bail!(
            40060,
            "$switch requires an object as an argument, found: {}",
            arg.type_name()
        );
    };
    let (mut args, mut default) = (Vec::new(), Node::Absent);
    for e in d.iter() {
        match e.name {
            "branches" => {
                let Some(branches) = e.val.as_array() else {
                    bail!(
                        40061,
                        "$switch expected an array for 'branches', found: {}",
                        e.val.type_name()
                    );
                };
                for b in branches.values() {
                    let (case, then) = parse_branch(b, env)?;
                    args.push(case);
                    args.push(then);
                }
            }
            "default" => default = operand(e.val, env)?,
            other => bail!(40067, "$switch found an unknown argument: {other}"),
        }
    }
    if args.is_empty() {
        bail!(40068, "$switch requires at least one branch.");
    }
    args.push(default);
    Ok(Parsed::Call(args, Prepared::None))
}

fn parse_branch(b: Val<'_>, env: &ParseEnv) -> Result<(Node, Node)> {
    let Some(d) = b.as_doc() else {
        bail!(
            40062,
            "$switch expected each branch to be an object, found: {}",
            b.type_name()
        );
    };
    let (mut case, mut then) = (None, None);
    for e in d.iter() {
        match e.name {
            "case" => case = Some(operand(e.val, env)?),
            "then" => then = Some(operand(e.val, env)?),
            other => bail!(
                40063,
                "$switch found an unknown argument to a branch: {other}"
            ),
        }
    }
    let case = case.ok_or_else(|| {
        err!(
            40064,
            "$switch requires each branch have a 'case' expression"
        )
    })?;
    let then = then.ok_or_else(|| {
        err!(
            40065,
            "$switch requires each branch have a 'then' expression."
        )
    })?;
    Ok((case, then))
}

fn switch<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (default, branches) = c
        .args
        .split_last()
        .ok_or_else(|| errors::Error::internal("$switch without arguments"))?;
    for pair in branches.chunks_exact(2) {
        if pair[0].eval(ctx)?.truthy() {
            return pair[1].eval(ctx);
        }
    }
    if matches!(default, Node::Absent) {
        bail!(
            40069,
            "$switch could not find a matching branch for an input, and no default was specified."
        );
    }
    default.eval(ctx)
}

/// Takes the branch that constant conditions leave, without looking at the others. `Some`: what
/// stands in the call's place.
pub(super) fn choose(c: &mut Call, left: &super::ConstantBudget) -> Result<Option<Node>> {
    match c.op.name {
        "$cond" => {
            c.args[0].fold(left)?;
            let Some(v) = c.args[0].constant() else {
                return Ok(None);
            };
            let mut chosen = c.args.swap_remove(if v.truthy() { 1 } else { 2 });
            chosen.fold(left)?;
            Ok(Some(chosen))
        }
        "$ifNull" => {
            let (mut kept, mut ends_in_null) = (Vec::new(), false);
            for mut n in std::mem::take(&mut c.args) {
                n.fold(left)?;
                ends_in_null = false;
                match n.constant().map(Val::is_nullish) {
                    Some(true) => ends_in_null = true,
                    Some(false) => {
                        kept.push(n);
                        break;
                    }
                    None => kept.push(n),
                }
            }
            match kept.len() {
                0 => Ok(Some(Node::Const(Value::NULL))),
                1 if kept[0].constant().is_some() => Ok(kept.pop()),
                _ => {
                    if ends_in_null {
                        kept.push(Node::Const(Value::NULL));
                    }
                    c.args = kept;
                    Ok(None)
                }
            }
        }
        "$switch" => {
            let mut default = c.args.pop().unwrap_or(Node::Absent);
            default.fold(left)?;
            let mut old = std::mem::take(&mut c.args).into_iter();
            while let (Some(mut case), Some(mut then)) = (old.next(), old.next()) {
                case.fold(left)?;
                match case.constant().map(Val::truthy) {
                    Some(false) => {}
                    Some(true) => {
                        then.fold(left)?;
                        default = then;
                        break;
                    }
                    None => {
                        then.fold(left)?;
                        c.args.push(case);
                        c.args.push(then);
                    }
                }
            }
            if c.args.is_empty() && !matches!(default, Node::Absent) {
                return Ok(Some(default));
            }
            c.args.push(default);
            Ok(None)
        }
        "$and" | "$or" => {
            let decides = c.op.name == "$or";
            let mut kept = Vec::with_capacity(c.args.len());
            for mut n in std::mem::take(&mut c.args) {
                n.fold(left)?;
                match n.constant().map(|v| v.truthy() == decides) {
                    Some(true) => return Ok(Some(Node::Const(Value::from(decides)))),
                    Some(false) => {}
                    None => match n {
                        Node::Call(inner) if std::ptr::eq(inner.op, c.op) => {
                            kept.extend(inner.args)
                        }
                        n => kept.push(n),
                    },
                }
            }
            c.args = kept;
            Ok(match c.args.is_empty() {
                true => Some(Node::Const(Value::from(!decides))),
                false => None,
            })
        }
        _ => Ok(None),
    }
}

fn parse_let(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(d) = arg.as_doc() else {
        bail!(16874, "$let only supports an object as its argument");
    };
    let (mut vars, mut body) = (None, None);
    for e in d.iter() {
        match e.name {
            "vars" => vars = Some(e.val),
            "in" => body = Some(e.val),
            other => bail!(16875, "Unrecognized parameter to $let: {other}"),
        }
    }
    let vars = vars.ok_or_else(|| err!(16876, "Missing 'vars' parameter to $let"))?;
    let body = body.ok_or_else(|| err!(16877, "Missing 'in' parameter to $let"))?;
    if !matches!(vars.tag, tag::DOCUMENT | tag::ARRAY) {
        bail!(
            10065,
            "invalid parameter: expected an object (vars), found {}",
            vars.type_name()
        );
    }
    let (mut names, mut args) = (Vec::<Arc<str>>::new(), Vec::new());
    for e in Doc::new(vars.bytes).unwrap_or(Doc::EMPTY) {
        check_variable_name(e.name, true)?;
        names.push(Arc::from(e.name));
        args.push(operand(e.val, env)?);
    }
    args.push(operand(body, &env.with(&names)?)?);
    Ok(Parsed::Call(args, Prepared::Names(names)))
}

fn eval_let<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (body, vars) = c
        .args
        .split_last()
        .ok_or_else(|| errors::Error::internal("$let without arguments"))?;
    let values: SmallVec<[Computed<'a>; 3]> =
        vars.iter().map(|n| n.eval(ctx)).collect::<Result<_>>()?;
    let names = c.names();
    if names.len() <= FEW {
        return bind(names, &values, body, ctx);
    }
    let mut by_name = HashMap::with_capacity(names.len());
    for (name, v) in names.iter().zip(&values) {
        ctx.vars.work(1)?;
        by_name.insert(&**name, v.as_val());
    }
    let scope = Scope::Many {
        values: &by_name,
        parent: ctx.scope,
    };
    body.eval(&ctx.inside(&scope)).map(Computed::detach)
}

/// Evaluates `body` with a few names bound, one scope a name.
fn bind<'b>(
    names: &'b [Arc<str>],
    values: &'b [Computed<'b>],
    body: &'b Node,
    ctx: &EvalCtx<'b>,
) -> Result<Computed<'static>> {
    let (Some((name, names)), Some((value, values))) = (names.split_first(), values.split_first())
    else {
        return body.eval(ctx).map(Computed::detach);
    };
    let scope = Scope::One {
        name,
        value: value.as_val(),
        parent: ctx.scope,
    };
    bind(names, values, body, &ctx.inside(&scope))
}

/// The name after `as`, or `this`.
fn parse_as(v: Option<Val<'_>>) -> Result<Arc<str>> {
    let name = v.map_or("this", |v| v.as_str().unwrap_or(""));
    check_variable_name(name, true)?;
    Ok(Arc::from(name))
}

static MAP: Named = Named {
    fields: &[("input", 16880), ("as", 0), ("in", 16882)],
    not_object: 16878,
    unknown: 16879,
};

fn parse_map(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &MAP, arg)?;
    let name = parse_as(f[1])?;
    let inner = env.with(std::slice::from_ref(&name))?;
    let args = vec![optional(f[0], env)?, optional(f[2], &inner)?];
    Ok(Parsed::Call(args, Prepared::Names(vec![name])))
}

fn map<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = input.or_null().as_array() else {
        bail!(
            16883,
            "input to $map must be an array not {}",
            input.type_name()
        );
    };
    let mut w = Writer::new_array();
    for v in items.values() {
        ctx.vars.work(1)?;
        let scope = Scope::One {
            name: &c.names()[0],
            value: Some(v),
            parent: ctx.scope,
        };
        w.push(c.arg(1, &ctx.inside(&scope))?.or_null());
        super::values::check_size(w.len())?;
    }
    Ok(Computed::Owned(w.finish_array()))
}

static FILTER: Named = Named {
    fields: &[("input", 28648), ("as", 0), ("cond", 28650), ("limit", 0)],
    not_object: 28646,
    unknown: 28647,
};

fn parse_filter(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &FILTER, arg)?;
    let name = parse_as(f[1])?;
    let inner = env.with(std::slice::from_ref(&name))?;
    let args = vec![
        optional(f[0], env)?,
        optional(f[2], &inner)?,
        optional(f[3], env)?,
    ];
    Ok(Parsed::Call(args, Prepared::Names(vec![name])))
}

fn filter<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = input.or_null().as_array() else {
        bail!(
            28651,
            "input to $filter must be an array not {}",
            input.type_name()
        );
    };
    let limit = c.arg(2, ctx)?;
    let mut left = i64::MAX;
    if !limit.is_nullish() {
        let v = limit.or_null();
        let whole = v.to_i64_exact().and_then(|i| i32::try_from(i).ok());
        let Some(n) = whole else {
            bail!(
                327391,
                "$filter: limit must be represented as a 32-bit integral value: {v}"
            );
        };
        if n <= 0 {
            bail!(327392, "$filter: limit must be greater than 0: {n}");
        }
        left = i64::from(n);
    }
    let mut w = Writer::new_array();
    for v in items.values() {
        ctx.vars.work(1)?;
        if left == 0 {
            break;
        }
        let scope = Scope::One {
            name: &c.names()[0],
            value: Some(v),
            parent: ctx.scope,
        };
        if c.peek(1, &ctx.inside(&scope))?.truthy() {
            w.push(v);
            left -= 1;
        }
    }
    Ok(Computed::Owned(w.finish_array()))
}

static REDUCE: Named = Named {
    fields: &[("input", 40077), ("initialValue", 40078), ("in", 40079)],
    not_object: 40075,
    unknown: 40076,
};

fn parse_reduce(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &REDUCE, arg)?;
    let names: Vec<Arc<str>> = vec![Arc::from("this"), Arc::from("value")];
    let inner = env.with(&names)?;
    let args = vec![
        optional(f[0], env)?,
        optional(f[1], env)?,
        optional(f[2], &inner)?,
    ];
    Ok(Parsed::Call(args, Prepared::Names(names)))
}

fn reduce<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = input.or_null().as_array() else {
        bail!(
            40080,
            "$reduce requires that 'input' be an array, found: {}",
            input.or_null()
        );
    };
    let mut value = c.arg(1, ctx)?.into_value();
    for v in items.values() {
        ctx.vars.work(1)?;
        let this = Scope::One {
            name: "this",
            value: Some(v),
            parent: ctx.scope,
        };
        let scope = Scope::One {
            name: "value",
            value: value.as_ref().map(Value::as_val),
            parent: Some(&this),
        };
        let next = c.arg(2, &ctx.inside(&scope))?.into_value();
        if let Some(n) = &next {
            check_depth(n.as_val())?;
            super::values::check_size(n.as_val().bytes.len())?;
        }
        value = next;
    }
    Ok(value.map_or(Computed::Missing, Computed::Owned))
}

const METADATA: &[&str] = &[
    "textScore",
    "randVal",
    "searchScore",
    "searchHighlights",
    "geoNearDistance",
    "geoNearPoint",
    "recordId",
    "indexKey",
    "sortKey",
    "searchScoreDetails",
    "searchSequenceToken",
    "timeseriesBucketMinTime",
    "timeseriesBucketMaxTime",
    "vectorSearchScore",
    "score",
    "scoreDetails",
    "stream",
];

fn parse_meta(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(name) = arg.as_str() else {
        bail!(17307, "$meta only supports string arguments");
    };
    if !METADATA.contains(&name) {
        bail!(17308, "Unsupported argument to $meta: {name}");
    }
    if env.has_near() && matches!(name, "geoNearDistance" | "geoNearPoint") {
        let path = ExprPath::unchecked(&format!("${name}"));
        return Ok(Parsed::Node(Node::System(System::Root, path)));
    }
    let known = env.available();
    let lacks = match name {
        "textScore" if !known.text_score => "text score",
        "score" if !known.score && !known.text_score && !known.search_score => "score",
        "scoreDetails" if !known.score_details => "scoreDetails",
        "geoNearDistance" | "geoNearPoint" => name,
        _ => "",
    };
    if !lacks.is_empty() {
        bail!(
            40218,
            "query requires {lacks} metadata, but it is not available"
        );
    }
    let args = vec![Node::Const(arg.to_value())];
    Ok(Parsed::Call(args, Prepared::None))
}
