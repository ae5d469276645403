//! A shard's side of a cluster: what it knows of its part of each collection, what it answers to
//! routers, and the commands by which routers teach it and move ranges
//! ([decision](../../../../docs/decisions/2026-11-25-sharding.md)).

mod admission;
mod gates;
mod hiding;
pub mod identity;
pub mod joins;
mod log_times;
mod ownerships;
pub mod pando_change;
pub mod pando_changes;
pub mod pando_clean;
pub mod pando_decide;
pub mod pando_fence;
pub mod pando_home;
pub mod pando_outcome;
pub mod pando_ownership;
pub mod pando_prepare;
pub mod pando_prepared;
pub mod pando_range_size;
pub mod pando_receive;
pub mod pando_served;
pub mod pando_sessions;
pub mod pando_sizes;
pub mod pando_snapshot;
pub mod pando_stamp;
pub mod pando_swap;
pub mod pando_time;
mod ranges_read;

pub use log_times::LogTimes;
pub use ownerships::{Ownerships, WriterGuard};

use crate::request::CommandContext;
use crate::request::session_of::own_uid;
use crate::settings::documents;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use front::idl;
use session::Lsid;
use sharding::{Ownership, PlaceRange};
use std::time::Duration;

/// Where a shard keeps what it knows.
pub(crate) const OWNERSHIP: &str = "config.ownership";

/// Where it keeps which databases it is the primary of.
pub(crate) const DATABASE_PRIMARIES: &str = "config.homes";

/// How long a fence waits for writes in flight (`drain`), while routers' new writes wait for it.
fn drain_time(cx: &CommandContext<'_, '_>) -> Duration {
    let millis = cx.args.field("drain").and_then(|v| v.to_i64_exact());
    Duration::from_millis(millis.unwrap_or(500).clamp(0, 2000).unsigned_abs())
}

/// The required string `name` of an internal command.
fn text<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Result<&'a str> {
    let v = cx.args.field(name).and_then(|v| v.as_str());
    idl::required(cx.command.name, name, v)
}

/// The required field `name`, as `read` reads it.
fn required<'a, T>(
    cx: &CommandContext<'_, 'a>,
    name: &str,
    read: impl FnOnce(Val<'a>) -> Option<T>,
) -> Result<T> {
    let v = cx.args.field(name).and_then(read);
    idl::required(cx.command.name, name, v)
}

/// The transaction that `session` and `number` name.
fn named_transaction(cx: &CommandContext<'_, '_>) -> Result<(Lsid, i64)> {
    transaction_of(cx, cx.args.field("session"), cx.args.field("number"))
}

pub(crate) fn transaction_of(
    cx: &CommandContext<'_, '_>,
    session: Option<Val<'_>>,
    number: Option<Val<'_>>,
) -> Result<(Lsid, i64)> {
    let name = cx.command.name;
    let bytes = |field: &str| {
        let session = session.and_then(Val::as_doc)?;
        Some(session.get(field)?.as_binary()?.1)
    };
    let id = bytes("id").and_then(|b| <[u8; 16]>::try_from(b).ok());
    let id = idl::required(name, "session", id)?;
    let uid = bytes("uid").and_then(|b| <[u8; 32]>::try_from(b).ok());
    let uid = uid.unwrap_or_else(|| own_uid(cx));
    let number = number.and_then(Val::to_i64_exact);
    let number = idl::required(name, "number", number)?;
    Ok((Lsid { id, uid }, number))
}

fn document<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Result<Doc<'a>> {
    let v = cx.args.field(name).and_then(|v| v.as_doc());
    idl::required(cx.command.name, name, v)
}

fn range(cx: &CommandContext<'_, '_>) -> Result<PlaceRange> {
    PlaceRange::parse(document(cx, "range")?)
}

/// The turn of the lock of the sender; without one, the last known.
fn turn(cx: &CommandContext<'_, '_>, known: u64) -> u64 {
    let turn = cx.args.field("turn").and_then(|v| v.to_i64_exact());
    turn.map_or(known, |turn| turn as u64)
}

/// Stores what the shard knows from now on.
fn store(cx: &mut CommandContext<'_, '_>, ownership: &Ownership) -> Result<()> {
    put(cx, OWNERSHIP, &ownership.ns, &ownership.to_doc())
}

fn put(cx: &mut CommandContext<'_, '_>, ns: &str, id: &str, whole: &DocBuf) -> Result<()> {
    let mut w = bson::Writer::new();
    for e in whole.as_doc().iter().filter(|e| e.name != "_id") {
        w.val(e.name, e.val);
    }
    documents::put(&mut cx.op, ns, id, w.finish().as_doc())?;
    cx.after_commit = true;
    Ok(())
}
