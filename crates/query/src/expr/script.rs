//! `$function`, and the expression behind mapReduce's map.

use super::node::{Call, Computed, EvalCtx, Node, Prepared};
use super::parse::{ParseEnv, Parsed, operand};
use super::table::Op;
use crate::script::{Emitted, Function};
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Error, Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::custom("$function", parse_function, &["args"], function).varying(),
    Op::custom("$_internalJsEmit", parse_emit, &["this"], emit).varying(),
    // What `$where` stands for; no user can write it.
    Op::custom("", parse_where, &[], where_).varying(),
];

/// The text of a function; `code`: of the error for a value of another type.
fn text(v: Val<'_>, code: i32, message: &str) -> Result<Function> {
    match v.tag {
        tag::STRING | tag::CODE => Ok(Function::new(v.as_code().unwrap_or(""))),
        _ => Err(Error::coded(code, message).into()),
    }
}

fn parse_function(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(d) = arg.as_doc() else {
        bail!(
            31260,
            "$function requires an object as an argument, found: {}",
            arg.type_name()
        );
    };
    let Some(body) = d.get("body") else {
        bail!(31261, "The body function must be specified.");
    };
    let mut body = operand(body, env)?;
    body.fold(env.constants())?;
    let Some(body) = body.constant() else {
        bail!(31432, "The body function must be a constant expression");
    };
    let body = text(
        body,
        31262,
        "The body function must evaluate to type string or code",
    )?;
    let Some(args) = d.get("args") else {
        bail!(31263, "The args field must be specified.");
    };
    let args = operand(args, env)?;
    let Some(lang) = d.get("lang") else {
        bail!(31418, "The lang field must be specified.");
    };
    if lang.as_str() != Some("js") {
        bail!(
            31419,
            "Currently the only supported language specifier is 'js'."
        );
    }
    Ok(Parsed::Call(vec![args], Prepared::Script(body)))
}

fn parse_emit(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let Some(d) = arg.as_doc() else {
        bail!(
            31221,
            "$_internalJsEmit requires an object as an argument, found: {}",
            arg.type_name()
        );
    };
    let Some(map) = d.get("eval") else {
        bail!(31222, "The map function must be specified.");
    };
    let map = text(
        map,
        31224,
        "The map function must be of type string or code",
    )?;
    let Some(this) = d.get("this") else {
        bail!(31223, "$_internalJsEmit requires 'this' to be specified");
    };
    let this = operand(this, env)?;
    Ok(Parsed::Call(vec![this], Prepared::Script(map)))
}

/// Parses `$where`'s operand: text or code, which the filter has checked.
fn parse_where(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let root = super::parse::field_or_variable("$$ROOT", env)?;
    let function = Function::new(arg.as_code().unwrap_or(""));
    Ok(Parsed::Call(vec![root], Prepared::Script(function)))
}

/// The condition that `$where` with this operand stands for.
pub(crate) fn condition(arg: Val<'_>, env: &ParseEnv) -> Result<Node> {
    super::parse::call("", arg, env)
}

fn script_of(c: &Call) -> Result<&Function> {
    match &c.prepared {
        Prepared::Script(f) => Ok(f),
        _ => Err(Error::internal("an expression has lost its function").into()),
    }
}

fn function<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let args = c.arg(0, ctx)?;
    let Some(list) = args.as_val().and_then(Val::as_array) else {
        bail!(31266, "The args field must be of type array");
    };
    let list: Vec<Val<'_>> = list.values().collect();
    let scripts = ctx.vars.scripts()?;
    let made = scripts.call(script_of(c)?, None, &list, ctx.vars.script_globals(false))?;
    Ok(Computed::Owned(made))
}

fn emit<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let this = c.arg(0, ctx)?;
    let Some(this) = this.as_val().and_then(Val::as_doc) else {
        bail!(31225, "'this' must be an object.");
    };
    let scripts = ctx.vars.scripts()?;
    let mut emitted = Emitted::default();
    let globals = ctx.vars.script_globals(true);
    scripts.map(script_of(c)?, this, globals, &mut emitted)?;
    let mut w = Writer::new_array();
    for (k, v) in emitted.pairs() {
        w.open_doc("").val("k", k).val("v", v).close();
    }
    Ok(Computed::Owned(w.finish_array()))
}

fn where_<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let this = c.arg(0, ctx)?;
    let this = this.as_val().and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
    let scripts = ctx.vars.scripts()?;
    let globals = ctx.vars.script_globals(true);
    let made = scripts.call(script_of(c)?, Some(this), &[], globals)?;
    // JavaScript's truth, not BSON's: an empty string is false, a missing answer too.
    let v = made.as_val();
    let truth = match v.tag {
        tag::STRING => v.as_str() != Some(""),
        tag::DOUBLE => v.as_f64().is_some_and(|f| f != 0.0 && !f.is_nan()),
        _ => v.truthy(),
    };
    super::node::own(truth)
}

/// A call as it prints.
pub(super) fn write(c: &Call, w: &mut Writer) {
    let source = match &c.prepared {
        Prepared::Script(f) => &*f.source,
        _ => "",
    };
    let arg = c.args.first().map_or(Value::NULL, Node::to_value);
    if c.op.name == "$_internalJsEmit" {
        w.open_doc(c.op.name).val("this", arg.as_val());
        w.str("eval", source).close();
    } else {
        w.open_doc("$function").str("body", source);
        w.val("args", arg.as_val()).str("lang", "js").close();
    }
}
