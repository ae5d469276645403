//! `_pandoStamp`: whether a collection is still as a router has read it.
//!
//! ```text
//! {_pandoStamp: <collection>, causal?: true}      → {stamp: <string>, plain: <bool>}
//! ```
//! The stamp is another one after each write. `causal`: it tells of all that the shard has acknowledged, and not only of
//! what is durable. `plain`: the name is not that of a view or of measurements.

use crate::request::{CommandContext, Done};
use bson::Val;
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let causal = cx.args.field("causal").is_some_and(Val::truthy);
    let stamp = executor::search::stamp(&mut cx.op, &ns, causal)?;
    cx.w.str("stamp", &stamp.text).bool("plain", stamp.plain);
    Ok(Done::Reply)
}
