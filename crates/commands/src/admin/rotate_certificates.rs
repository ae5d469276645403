//! `rotateCertificates`: there is no TLS yet, so there is nothing to read anew.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    for e in cx.args.fields.clone() {
        match e.name {
            "message" => {
                idl::string("rotateCertificates", e)?;
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    Ok(Done::Reply)
}
