//! `autoCompact`: the engine compacts by itself as it is written to; the options are checked and
//! remembered, and `runOnce` requests one compaction of everything.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;

const AT: &str = "autoCompact";
const DEFAULT_MB: i64 = 20;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let first = bson::Elem {
        name: AT,
        val: cx.args.first,
    };
    let on = idl::required(AT, AT, idl::boolean(AT, first)?)?;
    let (mut target, mut once) = (DEFAULT_MB, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "freeSpaceTargetMB" => target = idl::int_from(AT, e, 1)?.unwrap_or(DEFAULT_MB),
            "runOnce" => once = idl::boolean(AT, e)?.unwrap_or(false),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if on && target.checked_mul(1 << 20).is_none() {
        bail!(BadValue, "freeSpaceTargetMB is too large: {target}");
    }
    let mut now = cx.app.auto_compact.lock();
    match (*now, on) {
        (Some(other), true) if other != (target, once) => bail!(
            AlreadyInitialized,
            "Background compaction is already running with another configuration"
        ),
        _ => *now = on.then_some((target, once)),
    }
    drop(now);
    if on && once {
        let store = cx.app.store.clone();
        let work = move || {
            if let Err(e) = store.compact(&[], &[0xFF; 16], &mut || Ok(())) {
                tracing::warn!(target: "STORAGE", error = %e, "The compaction that autoCompact asked for failed");
            }
        };
        // Its end is not waited for; what it was asked for stays remembered as MongoDB does until
        // it is switched off.
        let _ = std::thread::Builder::new()
            .name("autoCompact".into())
            .spawn(work);
    }
    Ok(Done::Reply)
}
