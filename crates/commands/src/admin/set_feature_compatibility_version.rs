//! `setFeatureCompatibilityVersion`: kept across restarts and told by `getParameter`. No behaviour
//! depends on it yet: there is one data format, and one version of what members send each other. What it
//! will decide is in `docs/decisions/2026-11-25-rolling-upgrades.md`.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use crate::settings::parameters::Parameters;
use crate::settings::stored;
use crate::version::FEATURE_VERSIONS;
use bson::{Doc, Value, Writer, doc};
use errors::{Result, bail};
use std::sync::Arc;

const SETTING: &str = "featureCompatibilityVersion";

/// The version as the parameter of that name.
pub struct AsParameter(pub Arc<Parameters>);

impl stored::InMemory for AsParameter {
    fn id(&self) -> &'static str {
        SETTING
    }

    fn take(&self, setting: Option<Doc<'_>>) {
        if let Some(version) = setting.and_then(|d| d.get("version")) {
            let mut w = Writer::new();
            w.val("version", version);
            self.0.put(SETTING, Value::from(w.finish()));
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
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
    if !FEATURE_VERSIONS.contains(&version) {
        bail!(
            4926900,
            "Invalid feature compatibility version value '{version}'; expected one of {}",
            FEATURE_VERSIONS.join(", ")
        );
    }
    if !confirm {
        bail!(
            7369100,
            "Once you have changed the FCV, it may be hard to go back; pass 'confirm: true' to proceed."
        );
    }
    let value = doc! { "version": version };
    stored::save(&mut cx.op, SETTING, value.as_doc())?;
    Ok(Done::Reply)
}
