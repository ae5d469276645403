//! `dbStats`.

use super::sizes;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;
use own_process::disk_space::DiskSpace;

/// Sums over the collections of a database.
#[derive(Default)]
struct Totals {
    collections: i64,
    views: i64,
    indexes: i64,
    objects: u64,
    data: u64,
    storage: u64,
    index_size: u64,
}

impl Totals {
    fn of(cx: &CommandContext<'_, '_>) -> Totals {
        let mut t = Totals::default();
        for c in cx.app.engine.catalog.snapshot().of_db(cx.args.db) {
            if c.is_view() {
                t.views += 1;
                continue;
            }
            let s = sizes(&cx.app.engine, c);
            t.collections += 1;
            t.indexes += s.indexes.len() as i64;
            t.objects += s.count;
            t.data += s.data;
            t.storage += s.storage;
            t.index_size += s.index_total();
        }
        t
    }

    fn average(&self) -> f64 {
        match self.objects {
            0 => 0.0,
            n => self.data as f64 / n as f64,
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut scale, mut free) = (1, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "scale" => scale = idl::int("dbStats", e)?.unwrap_or(1),
            "freeStorage" => free = idl::flag("dbStats", e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if scale < 1 {
        bail!(
            BadValue,
            "BSON field 'scale' value must be >= 1, actual value '{scale}'"
        );
    }
    let t = Totals::of(cx);
    let scaled = |n: u64| (n / scale.unsigned_abs()) as f64;
    let space = DiskSpace::at(&cx.app.config.db_path).unwrap_or_default();
    let w = &mut cx.w;
    w.str("db", cx.args.db)
        .i64("collections", t.collections)
        .i64("views", t.views)
        .i64("objects", t.objects as i64)
        .f64("avgObjSize", t.average())
        .f64("dataSize", scaled(t.data))
        .f64("storageSize", scaled(t.storage));
    if free {
        w.f64("freeStorageSize", 0.0);
    }
    w.i64("indexes", t.indexes)
        .f64("indexSize", scaled(t.index_size));
    if free {
        w.f64("indexFreeStorageSize", 0.0);
    }
    w.f64("totalSize", scaled(t.storage + t.index_size));
    if free {
        w.f64("totalFreeStorageSize", 0.0);
    }
    w.i64("scaleFactor", scale)
        .f64("fsUsedSize", scaled(space.used))
        .f64("fsTotalSize", scaled(space.total));
    Ok(Done::Reply)
}
