//! `getParameter`.

use crate::request::{CommandContext, Done};
use crate::settings::parameters::append;
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at = "getParameter.getParameter";
    let (mut details, mut all, mut when) = (false, cx.args.first.as_str() == Some("*"), None);
    if let Some(d) = cx.args.first.as_doc() {
        for e in d {
            match e.name {
                "showDetails" => details = idl::safe_bool(at, e)?.unwrap_or(false),
                "allParameters" => all = idl::safe_bool(at, e)?.unwrap_or(false),
                "setAt" => {
                    when = idl::string(at, e)?;
                    if let Some(other) = when.filter(|w| !matches!(*w, "startup" | "runtime")) {
                        bail!(
                            BadValue,
                            "Enumeration value '{other}' for field '{at}.setAt' is not a valid value."
                        );
                    }
                }
                name => return Err(idl::unknown(at, name)),
            }
        }
    }
    let parameters = &cx.app.parameters;
    let mut found = 0;
    if all {
        for (name, p) in parameters.all() {
            if when.is_none_or(|w| {
                if w == "startup" {
                    p.at_start()
                } else {
                    p.at_runtime()
                }
            }) {
                append(&mut cx.w, name, &p, details);
                found += 1;
            }
        }
    } else {
        for e in &cx.args.fields {
            if let Some(p) = parameters.get(e.name) {
                append(&mut cx.w, e.name, &p, details);
                found += 1;
            }
        }
    }
    if found == 0 {
        bail!(InvalidOptions, "no option found to get");
    }
    Ok(Done::Reply)
}
