//! A shard's side of a cluster: what it knows of its part of each collection, what it answers to
//! routers, and the commands by which routers teach it and move ranges
//! ([decision](../../../../docs/decisions/2026-11-25-sharding.md)).

mod admission;
mod ownerships;
pub mod pando_changes;
pub mod pando_clean;
pub mod pando_fence;
pub mod pando_ownership;
pub mod pando_receive;
pub mod pando_sessions;
pub mod pando_time;

pub use ownerships::{Ownerships, WriterGuard};

use crate::request::{CommandContext, idl};
use crate::settings::documents;
use bson::{Doc, DocBuf};
use errors::Result;
use sharding::{Ownership, PlaceRange};

/// Where a shard keeps what it knows.
pub(crate) const OWNERSHIP: &str = "config.ownership";

/// The required string `name` of an internal command.
fn text<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Result<&'a str> {
    let v = cx.args.field(name).and_then(|v| v.as_str());
    idl::required(cx.command.name, name, v)
}

fn document<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Result<Doc<'a>> {
    let v = cx.args.field(name).and_then(|v| v.as_doc());
    idl::required(cx.command.name, name, v)
}

fn range(cx: &CommandContext<'_, '_>) -> Result<PlaceRange> {
    PlaceRange::parse(document(cx, "range")?)
}

/// Stores what the shard knows from now on.
fn store(cx: &mut CommandContext<'_, '_>, ownership: &Ownership) -> Result<()> {
    let whole = ownership.to_doc();
    let without_id: DocBuf = {
        let mut w = bson::Writer::new();
        for e in whole.as_doc().iter().filter(|e| e.name != "_id") {
            w.val(e.name, e.val);
        }
        w.finish()
    };
    documents::put(&mut cx.op, OWNERSHIP, &ownership.ns, without_id.as_doc())?;
    cx.after_commit = true;
    Ok(())
}
