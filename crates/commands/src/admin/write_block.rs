//! `setUserWriteBlockMode`: refuses writes to users' databases until told otherwise, with the
//! reason that was given.

use crate::request::{CommandContext, Done};
use crate::security::authorize;
use crate::settings::stored;
use auth::{Action, Target};
use bson::{Doc, Val, doc};
use errors::{Result, bail};
use front::idl;
use front::{Specification, flag};
use parking_lot::Mutex;
use service::config::ClusterRole;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(crate) use front::cluster_settings::WRITE_BLOCK as SETTING;
const AT: &str = "setUserWriteBlockMode";

/// Whether writes are refused.
#[derive(Default)]
pub struct WriteBlock {
    on: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl stored::InMemory for WriteBlock {
    fn id(&self) -> &'static str {
        SETTING
    }

    fn take(&self, setting: Option<Doc<'_>>) {
        let reason = setting.and_then(|d| Some(d.get("reason")?.as_str()?.to_string()));
        let mut now = self.reason.lock();
        self.on.store(reason.is_some(), Relaxed);
        *now = reason;
    }
}

impl WriteBlock {
    /// Whether writes are refused.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Refuses a command that writes to users' databases. `pipeline`: that of an aggregate.
    pub fn refuse(
        &self,
        command: &Specification,
        db: &str,
        pipeline: Option<Val<'_>>,
    ) -> Result<()> {
        if !command.is(flag::WRITE) {
            return Ok(());
        }
        let writes = match command.name {
            "aggregate" => pipeline
                .and_then(|v| v.as_array())
                .and_then(|p| p.values().last()?.as_doc()?.first())
                .is_some_and(|e| matches!(e.name, "$out" | "$merge")),
            "applyOps" | "bulkWrite" | "renameCollection" => true,
            _ => !matches!(db, "admin" | "config" | "local"),
        };
        if writes {
            let reason = self.reason.lock().clone().unwrap_or_default();
            bail!(UserWritesBlocked, "User writes blocked, reason: {reason}");
        }
        Ok(())
    }
}

/// Refuses a command that writes, while writes are refused. The server's own databases are exempt, and
/// so are users with `bypassWriteBlockingMode`: a router says so of its users.
#[inline]
pub fn check(cx: &CommandContext<'_, '_>) -> Result<()> {
    // What a router runs itself is a part of what it has checked.
    if !cx.app.write_block.is_on() || cx.app.config.role == ClusterRole::Router {
        return Ok(());
    }
    let generic = &cx.args.generic;
    let told =
        (generic.bypasses_write_block || generic.from_migrate) && authorize::may_as_member(cx);
    let may = cx.app.checks_access()
        && authorize::may(cx, Action::BypassWriteBlockingMode, Target::Cluster);
    match told || may {
        true => Ok(()),
        false => {
            let pipeline = cx.args.field("pipeline");
            cx.app.write_block.refuse(cx.command, cx.args.db, pipeline)
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut global, mut reason) = (None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "global" => global = idl::boolean(AT, e)?,
            "reason" => reason = idl::string(AT, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let global = idl::required(AT, "global", global)?;
    let reason = reason.unwrap_or("Unspecified");
    if !matches!(
        reason,
        "Unspecified"
            | "ClusterToClusterMigrationInProgress"
            | "DiskUseThresholdExceeded"
            | "kUserWriteBlock"
    ) {
        bail!(
            BadValue,
            "Enumeration value '{reason}' for field '{AT}.reason' is not a valid value."
        );
    }
    let now = cx.app.write_block.reason.lock().clone();
    if let Some(now) = now.filter(|now| now != reason) {
        bail!(
            IllegalOperation,
            "Cannot change the user write block: it is on with reason {now}, not {reason}"
        );
    }
    let setting = match global {
        true => doc! { "reason": reason },
        false => doc! {},
    };
    stored::save(&mut cx.op, SETTING, setting.as_doc())?;
    Ok(Done::Reply)
}
