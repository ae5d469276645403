//! `whatsmyuri`: the client's own address.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.str("you", &cx.client.peer.to_string());
    Ok(Done::Reply)
}
