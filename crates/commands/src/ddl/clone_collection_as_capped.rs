//! `cloneCollectionAsCapped`: a capped copy of a collection, under another name.

use super::{changed, convert_to_capped as convert, create};
use crate::request::{CommandContext, Done};
use bson::Val;
use errors::{Result, bail};
use front::Args;

/// The collection, the name of its copy, and how large that may become.
fn arguments(args: &Args<'_>) -> Result<(String, String, i64)> {
    let from = string("cloneCollectionAsCapped", Some(args.first))?;
    let to = string("toCollection", args.field("toCollection"))?;
    let (from, to) = (args.namespace_of(from)?, args.namespace_of(to)?);
    if from.contains('$') {
        bail!(InvalidNamespace, "Invalid namespace specified '{from}'");
    }
    let size = convert::size(args)?;
    convert::check_source(&from)?;
    Ok((from, to, size))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (from, to, size) = arguments(&cx.args)?;
    let engine = cx.app.engine.clone();
    let source = convert::source(&engine.catalog, &from)?;
    convert::check_target(&engine.catalog, &to)?;
    create::check_name(&to, false)?;
    if engine
        .catalog
        .create(&to, convert::options(&source, size))?
        .is_none()
    {
        convert::check_target(&engine.catalog, &to)?;
    }
    if let Err(e) = convert::copy(&mut cx.op, &source, &to) {
        let _ = engine
            .catalog
            .drop_collection(&to, &catalog::never_interrupted);
        return Err(e);
    }
    cx.op.made.push(to);
    changed(cx);
    Ok(Done::Reply)
}

fn string<'a>(name: &str, v: Option<Val<'a>>) -> Result<&'a str> {
    match v.and_then(|v| v.as_str()) {
        Some(s) => Ok(s),
        None => bail!(
            TypeMismatch,
            "\"{name}\" had the wrong type. Expected string, found {}",
            v.map_or("missing", |v| v.type_name())
        ),
    }
}
