//! `logout`: nobody was logged in.

use crate::cx::{Cx, Done};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    Ok(Done::Reply)
}
