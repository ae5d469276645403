//! `setFeatureCompatibilityVersion`: there is one version.

use crate::cx::{Cx, Done};
use crate::idl;
use crate::version::FEATURE_VERSION;
use errors::{Result, bail};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let mut confirm = false;
    for e in cx.args.fields.clone() {
        match e.name {
            "confirm" => {
                confirm = idl::safe_bool("setFeatureCompatibilityVersion", e)?.unwrap_or(false)
            }
            "fromConfigServer" | "phase" | "changeTimestamp" | "downgradeOnDiskChanges" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let Some(version) = cx.args.first.as_str() else {
        if cx.args.first.is_nullish() {
            return Err(idl::missing(
                "setFeatureCompatibilityVersion",
                "setFeatureCompatibilityVersion",
            ));
        }
        return Err(idl::mismatch(
            "setFeatureCompatibilityVersion",
            "setFeatureCompatibilityVersion",
            cx.args.first,
            &["string"],
        ));
    };
    if version != FEATURE_VERSION {
        bail!(
            4926900,
            "Invalid feature compatibility version value '{version}'; expected '{FEATURE_VERSION}'"
        );
    }
    if !confirm {
        bail!(
            7369100,
            "Once you have changed the FCV, it may be hard to go back; pass 'confirm: true' to proceed."
        );
    }
    Ok(Done::Reply)
}
