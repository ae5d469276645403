//! `profile`: what of a database's commands is kept in its `system.profile`, and what counts as
//! slow everywhere.

use crate::request::{CommandContext, Done};
use bson::{Elem, Val};
use errors::{Result, bail};
use front::idl;
use query::expr::ParseEnv;
use query::filter::Filter;
use std::sync::Arc;

const AT: &str = "profile";

idl::arguments! {
    struct Arguments<'a> {
        "slowms" => slow_ms: Option<i64> = idl::int,
        "sampleRate" => rate: Option<f64> = read_rate,
        "filter" => filter: Option<Val<'a>> = idl::value,
    }
}

fn read_rate(within: &str, e: Elem<'_>) -> Result<Option<f64>> {
    let rate = idl::number(within, e)?;
    if let Some(r) = rate.filter(|r| !(0.0..=1.0).contains(r)) {
        bail!(
            BadValue,
            "BSON field 'sampleRate' value must be >= 0 and <= 1, actual value '{r}'"
        );
    }
    Ok(rate)
}

/// The filter that is asked for; `None` for "unset".
pub(super) fn parse_filter(v: Val<'_>) -> Result<Option<Arc<Filter>>> {
    match (v.as_doc(), v.as_str()) {
        (Some(d), _) => Ok(Some(Arc::new(Filter::parse(d, &ParseEnv::new())?))),
        (None, Some("unset")) => Ok(None),
        _ => bail!(
            BadValue,
            "Expected an object, or the string 'unset' for 'filter', got {}",
            v.type_name()
        ),
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = Elem {
        name: AT,
        val: cx.args.first,
    };
    let level = idl::required(AT, AT, idl::int(AT, name)?)?;
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let filter = a.filter.map(parse_filter).transpose()?;
    let profiler = &cx.app.profiler;
    let mut settings = profiler.settings(cx.args.db);
    let was = (settings.clone(), profiler.slow_ms(), profiler.sample_rate());
    // Any other level asks, and changes nothing.
    if (0..=2).contains(&level) {
        if level > 0 {
            cx.app.create_profile(cx.args.db)?;
        }
        settings.level = level as i32;
        if let Some(filter) = filter {
            settings.filter = filter;
        }
        if let Some(ms) = a.slow_ms {
            profiler.set_slow_ms(ms.clamp(i64::from(i32::MIN), i64::from(i32::MAX)));
        }
        if let Some(rate) = a.rate {
            profiler.set_sample_rate(rate);
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
