//! `fsync` and `fsyncUnlock`: the log to the disk, the engine's memory into its files; and the lock
//! against writes under which the files can be copied.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::time::{Duration, Instant};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut lock, mut patience) = (false, 90_000);
    for e in cx.args.fields.clone() {
        match e.name {
            "lock" => lock = idl::safe_bool("fsync", e)?.unwrap_or(false),
            "fsyncLockAcquisitionTimeoutMillis" => {
                if e.val.tag != bson::tag::INT32 && !e.val.is_nullish() {
                    return Err(idl::mismatch("fsync", e.name, e.val, &["int"]));
                }
                patience = e.val.as_i32().unwrap_or(patience);
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let (store, engine) = (&cx.app.store, &cx.app.engine);
    let locks = match lock {
        true => {
            let n = engine.gate.close();
            // Nobody begins to write from here on; whoever had begun holds a lock of the catalog
            // until it is done.
            if let Err(e) = drain(cx, patience) {
                engine.gate.open();
                return Err(e);
            }
            Some(n)
        }
        false => None,
    };
    let synced = store
        .wait_durable(store.last_index())
        .and_then(|()| store.flush());
    if let Err(e) = synced {
        if lock {
            engine.gate.open();
        }
        return Err(e.into());
    }
    match locks {
        None => cx.w.i32("numFiles", 1),
        Some(n) => {
            tracing::warn!(target: "COMMAND", id = 20469, lockCount = n, "Locked against writes; fsyncUnlock unlocks");
            cx.w.str(
                "info",
                "now locked against writes, use db.fsyncUnlock() to unlock",
            )
            .i64("lockCount", n)
            .str("seeAlso", "http://dochub.mongodb.org/core/fsynccommand")
        }
    };
    Ok(Done::Reply)
}

/// Waits for the writes that are under way.
fn drain(cx: &CommandContext<'_, '_>, patience_ms: i32) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(100);
    let patience = Duration::from_millis(u64::try_from(patience_ms).unwrap_or(0));
    let deadline = Instant::now() + patience;
    loop {
        let now = Instant::now();
        if cx.app.engine.catalog.drain(deadline.min(now + LOOK)) {
            return Ok(());
        }
        cx.op.check()?;
        if now >= deadline {
            bail!(LockTimeout, "Fsync lock timed out");
        }
    }
}

pub fn unlock(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(left) = cx.app.engine.gate.open() else {
        bail!(IllegalOperation, "fsyncUnlock called when not locked")
    };
    tracing::info!(target: "COMMAND", id = 20470, lockCount = left, "One lock against writes less");
    cx.w.str("info", "fsyncUnlock completed")
        .i64("lockCount", left);
    Ok(Done::Reply)
}
