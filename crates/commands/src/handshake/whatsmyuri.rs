//! `whatsmyuri`: the client's own address.

use crate::cx::{Cx, Done};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.w.str("you", &cx.client.peer.to_string());
    Ok(Done::Reply)
}
