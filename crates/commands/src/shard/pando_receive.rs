//! `_pandoReceive`: the documents of a range are about to come in. Until the shard owns the range,
//! routers do not see them.
//!
//! ```text
//! {_pandoReceive: 1, ns, key, version, range: {low, high?}, turn?}
//! ```

use super::{document, range, store, text};
use crate::request::{CommandContext, Done};
use errors::Result;
use front::idl;
use sharding::{Ownership, ShardKey, Version};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let key = ShardKey::parse(document(cx, "key")?)?;
    let version = idl::required(cx.command.name, "version", cx.args.field("version"))?;
    let version = Version::parse(version)?;
    let incoming = range(cx)?;
    let ownerships = cx.app.ownerships.clone();
    let one = ownerships.changing.lock();
    let turn = cx.args.field("turn").and_then(|v| v.to_i64_exact());
    let turn = turn.map(|turn| turn as u64);
    let nothing = Ownership::nothing(ns, key, version);
    let known = ownerships.get(ns);
    let range = incoming.clone();
    let expecting = Ownership::expecting(known.as_deref(), nothing, incoming, turn)?;
    store(cx, &expecting)?;
    drop(one);
    // What an earlier mover has sent of it is done before this one begins.
    ownerships.drain_movers(ns, &[range])?;
    Ok(Done::Reply)
}
