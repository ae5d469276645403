//! `dbStats`.

use super::sizes;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut scale, mut free) = (1, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "scale" => scale = idl::int("dbStats", e)?.unwrap_or(1),
            "freeStorage" => free = idl::safe_bool("dbStats", e)?.unwrap_or(false),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if scale < 1 {
        bail!(
            BadValue,
            "BSON field 'scale' value must be >= 1, actual value '{scale}'"
        );
    }
    let (mut collections, mut views, mut indexes) = (0, 0, 0);
    let (mut objects, mut data, mut storage, mut index_size) = (0u64, 0u64, 0u64, 0u64);
    for c in cx.app.engine.catalog.snapshot().of_db(cx.args.db) {
        if c.is_view() {
            views += 1;
            continue;
        }
        let s = sizes(&cx.app.engine, c);
        collections += 1;
        indexes += s.indexes.len() as i64;
        objects += s.count;
        data += s.data;
        storage += s.storage;
        index_size += s.index_total();
    }
    let scaled = |n: u64| (n / scale.unsigned_abs()) as f64;
    let (used, total) = disk(&cx.app.config.db_path);
    let w = &mut cx.w;
    w.str("db", cx.args.db)
        .i64("collections", collections)
        .i64("views", views)
        .i64("objects", objects as i64);
    w.f64(
        "avgObjSize",
        if objects > 0 {
            data as f64 / objects as f64
        } else {
            0.0
        },
    );
    w.f64("dataSize", scaled(data))
        .f64("storageSize", scaled(storage));
    if free {
        w.f64("freeStorageSize", 0.0);
    }
    w.i64("indexes", indexes)
        .f64("indexSize", scaled(index_size));
    if free {
        w.f64("indexFreeStorageSize", 0.0);
    }
    w.f64("totalSize", scaled(storage + index_size));
    if free {
        w.f64("totalFreeStorageSize", 0.0);
    }
    w.i64("scaleFactor", scale);
    w.f64("fsUsedSize", scaled(used))
        .f64("fsTotalSize", scaled(total));
    Ok(Done::Reply)
}

/// Used and total bytes of the file system that holds the data.
fn disk(path: &std::path::Path) -> (u64, u64) {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return (0, 0);
    };
    // SAFETY: `path` is a C string and `s` is written by the call before it is read.
    let s = unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(path.as_ptr(), &mut s) != 0 {
            return (0, 0);
        }
        s
    };
    let unit = s.f_frsize;
    (
        (s.f_blocks.saturating_sub(s.f_bfree)).saturating_mul(unit),
        s.f_blocks.saturating_mul(unit),
    )
}
