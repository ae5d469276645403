//! `setFeatureCompatibilityVersion`: kept across restarts and told by `getParameter`. It decides which
//! data format is written: with 8.2 forms of format 5 may be, which `appendOplogNote` does
//! (`docs/decisions/2026-11-25-rolling-upgrades.md`).
//!
//! ```text
//! {_id: "featureCompatibilityVersion", version: <string>, formatInUse: <int>}
//! ```
//!
//! Invariant: `formatInUse` is in the log before the first entry of that format, so the stamp of each
//! member's directory says so before that is applied there. While it is there the version goes no lower.

use crate::request::{CommandContext, Done};
use crate::settings::parameters::Parameters;
use crate::settings::stored;
use crate::version::FEATURE_VERSIONS;
use bson::{Doc, Value, Writer, doc};
use errors::{Result, bail};
use front::idl;
use std::sync::{Arc, Weak};
use storage::{DATA_FORMAT, Store};

pub(crate) use front::cluster_settings::FEATURE_VERSION as SETTING;

/// The version with which forms of the newest format may be written.
const NEWEST: &str = "8.2";
const IN_USE: &str = "formatInUse";

/// The version as the parameter of that name; and the data format that is in use, as the stamp of the
/// data directory.
pub struct AsParameter(pub Arc<Parameters>, pub Weak<Store>);

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
        let format = setting.and_then(in_use).unwrap_or_default();
        let Some(store) = self.1.upgrade() else {
            return;
        };
        if let Err(e) = store.raise_data_format(format) {
            tracing::error!(target: "STORAGE", error = %e, format, "The stamp of the data directory could not be changed");
        }
    }
}

fn in_use(setting: Doc<'_>) -> Option<u32> {
    let format = setting.get(IN_USE)?.to_i64_exact()?;
    // Of a later release: this one could not have opened the directory.
    Some(u32::try_from(format).ok()?.min(DATA_FORMAT))
}

/// Has all members know that entries of the newest data format follow; an error where the version does
/// not allow any.
pub(crate) fn use_newest_format(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    let _one = cx.app.format_change.lock();
    let stored = stored::load(&cx.app.engine, SETTING)?;
    let setting = stored.as_ref().map_or(Doc::EMPTY, |d| d.as_doc());
    if setting.get("version").and_then(|v| v.as_str()) != Some(NEWEST) {
        bail!(
            IncompatibleServerVersion,
            "{} writes a form that programs of the release before do not read: it needs setFeatureCompatibilityVersion \"{NEWEST}\"",
            cx.command.name
        );
    }
    if in_use(setting) != Some(DATA_FORMAT) {
        let format = i32::try_from(DATA_FORMAT).unwrap_or(i32::MAX);
        let value = doc! { "version": NEWEST, "formatInUse": format };
        stored::save(&mut cx.op, SETTING, value.as_doc())?;
    }
    Ok(cx.app.store.raise_data_format(DATA_FORMAT)?)
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
    let _one = cx.app.format_change.lock();
    put(cx, version)?;
    Ok(Done::Reply)
}

/// Stores a version, which is one of [`FEATURE_VERSIONS`]; the caller holds the lock of format changes.
pub(super) fn put(cx: &mut CommandContext<'_, '_>, version: &str) -> Result<()> {
    let used = check(cx, version)?;
    let mut value = Writer::new();
    value.str("version", version);
    if let Some(format) = used {
        value.i32(IN_USE, i32::try_from(format).unwrap_or(i32::MAX));
    }
    stored::save(&mut cx.op, SETTING, value.finish().as_doc())
}

/// Fails where the log holds entries that programs of that version do not read. Gives the data format
/// that is in use.
pub(super) fn check(cx: &CommandContext<'_, '_>, version: &str) -> Result<Option<u32>> {
    let stored = stored::load(&cx.app.engine, SETTING)?;
    let used = stored.as_ref().and_then(|d| in_use(d.as_doc()));
    if used.is_some() && version != NEWEST {
        bail!(
            CannotDowngrade,
            "Cannot downgrade to {version}: the log holds entries of data format {DATA_FORMAT}, which programs of that version do not read; \
             move the data with mongodump and mongorestore"
        );
    }
    Ok(used)
}
