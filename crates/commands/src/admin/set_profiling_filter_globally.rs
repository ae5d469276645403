//! `setProfilingFilterGlobally`: the profiler's filter of all databases, and of those to come.

use super::profile::parse_filter;
use crate::request::{CommandContext, Done};
use crate::settings::parameters::GLOBAL_PROFILING_FILTER;
use bson::Val;
use errors::{Result, bail};
use front::idl;

const AT: &str = "setProfilingFilterGlobally";

idl::arguments! {
    struct Arguments<'a> {
        "filter" => filter: Option<Val<'a>> = idl::value,
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if !cx.app.parameters.bool(GLOBAL_PROFILING_FILTER) {
        bail!(7283301, "{AT} command requires query knob to be enabled");
    }
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let filter = parse_filter(idl::required(AT, "filter", a.filter)?)?;
    match cx.app.profiler.set_filter_globally(filter) {
        Some(was) => cx.w.doc("was", was.to_doc().as_doc()),
        None => cx.w.str("was", "none"),
    };
    Ok(Done::Reply)
}
