//! `rotateCertificates`: connections from now on get the certificates that lie in the files now.

use crate::request::{CommandContext, Done};
use errors::{Result, err};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    for e in cx.args.fields.clone() {
        match e.name {
            "message" => {
                idl::string("rotateCertificates", e)?;
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if let Some(certificates) = cx.app.control.certificates.get() {
        (certificates.rotate)().map_err(|e| err!(InvalidSSLConfiguration, "{e}"))?;
        tracing::info!(target: "NETWORK", id = 4913400, "Successfully rotated X509 certificates");
    }
    Ok(Done::Reply)
}
