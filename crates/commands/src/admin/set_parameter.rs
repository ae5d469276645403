//! `setParameter`.

use crate::request::{CommandContext, Done};
use crate::settings::parameters::{ESTABLISHMENT, NO_TABLE_SCAN, ROLLBACK_FILES};
use errors::{Result, bail};
use std::sync::atomic::Ordering::Relaxed;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if cx.args.fields.is_empty() {
        bail!(
            InvalidOptions,
            "no option found to set, use help:true to see options "
        );
    }
    let app = cx.app;
    // All must be known before any is set.
    for e in &cx.args.fields {
        if app.parameters.get(e.name).is_none() {
            bail!(
                InvalidOptions,
                "attempted to set unrecognized parameter [{}], use help:true to see options ",
                e.name
            );
        }
    }
    for (i, e) in cx.args.fields.iter().enumerate() {
        let was = app.parameters.set(e.name, e.val)?;
        if i == 0 {
            cx.w.val("was", was.as_val());
        }
        if matches!(e.name, "logLevel" | "logComponentVerbosity") {
            service::logging::set_verbosity(app.parameters.int("logLevel") as u8);
            app.profiler.set_verbose(app.parameters.logs_commands());
        }
        if ESTABLISHMENT.contains(&e.name) {
            let rate = app.parameters.establishment();
            app.control.establishment.limit(rate);
        }
        if let (ROLLBACK_FILES, Some(driver)) = (e.name, &app.replica) {
            driver.save_rollbacks(app.parameters.bool(e.name));
        }
        if e.name == NO_TABLE_SCAN {
            let on = app.parameters.bool(e.name);
            app.engine.no_table_scan.store(on, Relaxed);
        }
    }
    Ok(Done::Reply)
}
