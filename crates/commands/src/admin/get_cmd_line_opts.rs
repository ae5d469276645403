//! `getCmdLineOpts`.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    cx.w.open_array("argv");
    for a in &cx.app.config.argv {
        cx.w.push_value(a.as_str());
    }
    cx.w.close();
    match bson::json::to_value(&cx.app.config.parsed) {
        Some(v) => cx.w.val("parsed", v.as_val()),
        None => cx.w.open_doc("parsed").close(),
    };
    Ok(Done::Reply)
}
