//! `fsync` and `fsyncUnlock`: the log to the disk, the engine's memory into its files.

use crate::cx::{Cx, Done};
use crate::ddl::unsupported;
use crate::idl;
use errors::{Result, bail};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let mut lock = false;
    for e in cx.args.fields.clone() {
        match e.name {
            "lock" => lock = idl::safe_bool("fsync", e)?.unwrap_or(false),
            "fsyncLockAcquisitionTimeoutMillis" => {
                idl::int("fsync", e)?;
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if lock {
        return unsupported("locking against writes");
    }
    let store = &cx.app.store;
    store.wait_durable(store.last_index())?;
    store.flush()?;
    cx.w.i32("numFiles", 1);
    Ok(Done::Reply)
}

pub fn unlock(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    bail!(IllegalOperation, "fsyncUnlock called when not locked")
}
