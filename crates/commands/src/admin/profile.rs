//! `profile`: the profiler is always off; its thresholds can be told.

use crate::cx::{Cx, Done};
use crate::ddl::unsupported;
use crate::idl;
use bson::Elem;
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let level = idl::int(
        "profile",
        Elem {
            name: "profile",
            val: cx.args.first,
        },
    )?;
    let level = idl::required("profile", "profile", level)?;
    for e in cx.args.fields.clone() {
        match e.name {
            "slowms" => {
                idl::int("profile", e)?;
            }
            "sampleRate" | "filter" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if (1..=2).contains(&level) {
        return unsupported("profiling");
    }
    cx.w.i32("was", 0)
        .int("slowms", cx.app.config.slow_ms)
        .f64("sampleRate", 1.0);
    Ok(Done::Reply)
}
