//! `_pandoReceive`: the documents of a range are about to come in. Until the shard owns the range,
//! routers do not see them.
//!
//! ```text
//! {_pandoReceive: 1, ns, key, version, range: {low, high?}, turn?}
//! ```

use super::{document, range, store, text, turn};
use crate::request::{CommandContext, Done, idl};
use errors::{Result, bail};
use sharding::{Ownership, ShardKey, Version};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let key = ShardKey::parse(document(cx, "key")?)?;
    let version = idl::required(cx.command.name, "version", cx.args.field("version"))?;
    let version = Version::parse(version)?;
    let incoming = range(cx)?;
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    let known = match ownerships.get(ns) {
        Some(known) if known.version.is_same_life(&version) => (*known).clone(),
        Some(known) if known.version.is_newer(&version) => {
            bail!(StaleConfig, "{ns} has been sharded anew")
        }
        _ => Ownership::nothing(ns, key, version),
    };
    let turn = turn(cx, known.turn);
    store(cx, &known.receive(incoming).heed(turn)?)?;
    // What an earlier mover has sent is done before this one begins.
    ownerships.drain(ns);
    Ok(Done::Reply)
}
