//! `fsync` and `fsyncUnlock`: the log to the disk, the engine's memory into its files; and the lock
//! against writes under which the files can be copied.
//!
//! With `pandoHoldMillis` the lock ends by itself after that time, and the reply has `pandoHold`, the id
//! by which `fsyncUnlock` ends exactly it: a client that locks several servers may die in between.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;
use std::time::{Duration, Instant};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut lock, mut patience, mut lifetime) = (false, 90_000, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "lock" => lock = idl::safe_bool("fsync", e)?.unwrap_or(false),
            "fsyncLockAcquisitionTimeoutMillis" => {
                if e.val.tag != bson::tag::INT32 && !e.val.is_nullish() {
                    return Err(idl::mismatch("fsync", e.name, e.val, &["int"]));
                }
                patience = e.val.as_i32().unwrap_or(patience);
            }
            "pandoHoldMillis" => {
                let millis = idl::int_from("fsync", e, 1)?;
                lifetime = millis.map(|ms| Duration::from_millis(ms.unsigned_abs()));
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let taken = lock.then(|| Taken::take(cx, lifetime));
    let locked = match lock {
        // No write begins from here on; a write that has begun holds a lock of the catalog until it is
        // done.
        true => drain(cx, patience),
        false => Ok(()),
    };
    let store = &cx.app.store;
    let synced = locked.and_then(|()| Ok(store.wait_durable(store.last_index())?));
    if let Err(e) = synced.and_then(|()| Ok(store.flush()?)) {
        if let Some(taken) = taken {
            taken.give_back(cx);
        }
        return Err(e);
    }
    match taken {
        None => {
            cx.w.i32("numFiles", 1);
        }
        Some(taken) => {
            let n = cx.app.engine.fsync_lock.locks();
            if let Taken::Hold(id) = taken {
                cx.w.i64("pandoHold", id);
            }
            tracing::warn!(target: "COMMAND", id = 20469, lockCount = n, "Locked against writes; fsyncUnlock unlocks");
            cx.w.str(
                "info",
                "now locked against writes, use db.fsyncUnlock() to unlock",
            )
            .i64("lockCount", n)
            .str("seeAlso", "http://dochub.mongodb.org/core/fsynccommand");
        }
    }
    Ok(Done::Reply)
}

/// The lock that a command has taken.
enum Taken {
    Lasting,
    Hold(i64),
}

impl Taken {
    fn take(cx: &CommandContext<'_, '_>, lifetime: Option<Duration>) -> Taken {
        let fsync_lock = &cx.app.engine.fsync_lock;
        match lifetime {
            Some(lifetime) => Taken::Hold(fsync_lock.hold(lifetime)),
            None => {
                fsync_lock.close();
                Taken::Lasting
            }
        }
    }

    fn give_back(self, cx: &CommandContext<'_, '_>) {
        let fsync_lock = &cx.app.engine.fsync_lock;
        match self {
            Taken::Hold(id) => {
                fsync_lock.release(id);
            }
            Taken::Lasting => {
                fsync_lock.open();
            }
        }
    }
}

/// Waits for the writes in flight.
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
    let fsync_lock = &cx.app.engine.fsync_lock;
    let mut left = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "pandoHold" => {
                let id = idl::required("fsyncUnlock", e.name, idl::int("fsyncUnlock", e)?)?;
                left = Some(fsync_lock.release(id).then(|| fsync_lock.locks()));
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let Some(left) = left.unwrap_or_else(|| fsync_lock.open()) else {
        bail!(IllegalOperation, "fsyncUnlock called when not locked")
    };
    tracing::info!(target: "COMMAND", id = 20470, lockCount = left, "One lock against writes less");
    cx.w.str("info", "fsyncUnlock completed")
        .i64("lockCount", left);
    Ok(Done::Reply)
}
