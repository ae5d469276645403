//! `saslStart`, `saslContinue`, `authenticate`: there are no users yet, so nobody can be
//! authenticated.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

const MECHANISMS: [&str; 2] = ["SCRAM-SHA-1", "SCRAM-SHA-256"];

pub fn start(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut mechanism, mut payload) = (None, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "mechanism" => mechanism = idl::string("saslStart", e)?,
            "payload" => payload = true,
            "autoAuthorize" | "options" | "db" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let mechanism = idl::required("saslStart", "mechanism", mechanism)?;
    if !payload {
        return Err(idl::missing("saslStart", "payload"));
    }
    if !MECHANISMS.contains(&mechanism) {
        bail!(
            MechanismUnavailable,
            "Received authentication for mechanism {mechanism} which is unknown or not enabled"
        );
    }
    bail!(AuthenticationFailed, "Authentication failed.")
}

pub fn continues(_cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    bail!(ProtocolError, "No SASL session state found")
}

pub fn authenticate(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    match cx.args.field("mechanism").and_then(|v| v.as_str()) {
        Some("MONGODB-X509") => bail!(
            AuthenticationFailed,
            "SSL support is required for the MONGODB-X509 mechanism."
        ),
        Some(m) => bail!(
            MechanismUnavailable,
            "Received authentication for mechanism {m} which is unknown or not enabled"
        ),
        None => Err(idl::missing("authenticate", "mechanism")),
    }
}
