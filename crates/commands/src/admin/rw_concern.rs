//! `getDefaultRWConcern` and `setDefaultRWConcern`: the defaults are those of MongoDB, and fixed.

use crate::cx::{Cx, Done};
use crate::ddl::unsupported;
use crate::idl;
use errors::{Result, bail};

pub fn get(cx: &mut Cx<'_, '_>) -> Result<Done> {
    for e in cx.args.fields.clone() {
        match e.name {
            "inMemory" => {
                idl::boolean("getDefaultRWConcern", e)?;
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    refuse_standalone(cx)?;
    let w = &mut cx.w;
    w.open_doc("defaultReadConcern")
        .str("level", "local")
        .close();
    w.open_doc("defaultWriteConcern")
        .str("w", "majority")
        .i32("wtimeout", 0)
        .close();
    w.str("defaultWriteConcernSource", "implicit")
        .str("defaultReadConcernSource", "implicit");
    w.date("localUpdateWallClockTime", crate::clock::now_millis());
    Ok(Done::Reply)
}

pub fn set(cx: &mut Cx<'_, '_>) -> Result<Done> {
    refuse_standalone(cx)?;
    unsupported("other default concerns")
}

fn refuse_standalone(cx: &Cx<'_, '_>) -> Result<()> {
    if cx.app.config.topology.set_name().is_none() {
        bail!(
            51300,
            "'{}' is not supported on standalone nodes.",
            cx.command.name
        );
    }
    Ok(())
}
