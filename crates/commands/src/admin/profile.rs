//! `profile`: what of a database's commands is kept in its `system.profile`, and what counts as
//! slow everywhere.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::Elem;
use errors::{Result, bail};
use query::expr::ParseEnv;
use query::filter::Filter;
use std::sync::Arc;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "profile";
    let name = Elem {
        name: AT,
        val: cx.args.first,
    };
    let level = idl::required(AT, AT, idl::int(AT, name)?)?;
    let (mut slow_ms, mut rate, mut filter) = (None, None, None);
    for e in &cx.args.fields {
        match e.name {
            "slowms" => slow_ms = idl::int(AT, *e)?,
            "sampleRate" => {
                if e.val.is_nullish() {
                    continue;
                }
                let Some(r) = e.val.to_f64() else {
                    return Err(idl::mismatch(
                        AT,
                        e.name,
                        e.val,
                        &["long", "int", "decimal", "double"],
                    ));
                };
                if !(0.0..=1.0).contains(&r) {
                    bail!(
                        BadValue,
                        "BSON field 'sampleRate' value must be >= 0 and <= 1, actual value '{r}'"
                    );
                }
                rate = Some(r);
            }
            "filter" => {
                filter = Some(match (e.val.as_doc(), e.val.as_str()) {
                    (Some(d), _) => Some(Arc::new(Filter::parse(d, &ParseEnv::new())?)),
                    (None, Some("unset")) => None,
                    _ => bail!(
                        BadValue,
                        "Expected an object, or the string 'unset' for 'filter', got {}",
                        e.val.type_name()
                    ),
                });
            }
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let profiler = &cx.app.profiler;
    let mut settings = profiler.settings(cx.args.db);
    let was = (settings.clone(), profiler.slow_ms(), profiler.sample_rate());
    // Any other level asks, and changes nothing.
    if (0..=2).contains(&level) {
        if level > 0 {
            cx.app.create_profile(cx.args.db)?;
        }
        settings.level = level as i32;
        if let Some(f) = filter {
            settings.filter = f;
        }
        if let Some(ms) = slow_ms {
            profiler.set_slow_ms(ms.clamp(i64::from(i32::MIN), i64::from(i32::MAX)));
        }
        if let Some(r) = rate {
            profiler.set_sample_rate(r);
        }
        profiler.set(cx.args.db, settings);
    }
    cx.w.i32("was", was.0.level)
        .i32("slowms", was.1 as i32)
        .f64("sampleRate", was.2);
    if let Some(f) = &was.0.filter {
        cx.w.doc("filter", f.to_doc().as_doc()).str(
            "note",
            "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines.",
        );
    }
    Ok(Done::Reply)
}
