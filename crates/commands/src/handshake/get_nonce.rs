//! `getnonce`: MongoDB 8 no longer has it. Old drivers (mgo) ask for a number on every new
//! connection, whether or not they are going to log in, and give the connection up without one.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let nonce = format!("{:016x}", rand::random::<u64>());
    cx.w.str("nonce", &nonce);
    Ok(Done::Reply)
}
