//! Errors that say that this server is no primary any more, or ends: their replies carry
//! `topologyVersion`, by which a driver knows whether it has heard of the change already.
//!
//! Invariant: an error that says so carries a version that is greater than what `hello` told while
//! this server took writes. A driver takes an error with an old version for an old story, and asks
//! the same server again.

use crate::Commands;
use bson::{Doc, Writer};
use errors::{Code, Error};

/// Whether an error with this code says that this member does not do what only a primary, or only a
/// member with data, does.
pub fn is_not_primary(code: Code) -> bool {
    matches!(
        code,
        Code::NotWritablePrimary
            | Code::NotPrimaryNoSecondaryOk
            | Code::NotPrimaryOrSecondary
            | Code::InterruptedDueToReplStateChange
            | Code::PrimarySteppedDown
            | Code::LegacyNotPrimary
    )
}

fn is_shutdown(code: Code) -> bool {
    matches!(code, Code::ShutdownInProgress | Code::InterruptedAtShutdown)
}

/// The code of the `writeConcernError` of a reply.
fn code_of_concern(reply: Doc<'_>) -> Option<Code> {
    let error = reply.get("writeConcernError")?.as_doc()?;
    let code = error.get("code")?.to_i64_exact()?;
    Some(Code(i32::try_from(code).ok()?))
}

impl Commands {
    /// Appends the reply of a command that failed.
    pub(crate) fn write_failure(&self, error: &Error, out: &mut Vec<u8>) {
        let start = out.len();
        service::write_error(error, out);
        let extra = error.extra.as_deref().and_then(Doc::new);
        let of_concern = extra.and_then(code_of_concern);
        self.tell_version(&[Some(error.code), of_concern], out, start);
    }

    /// Completes the reply of a command whose write concern was not met, from `start` on.
    pub(crate) fn complete_unmet(&self, out: &mut Vec<u8>, start: usize) {
        let reply = out.get(start..).and_then(Doc::new);
        if let Some(code) = reply.and_then(code_of_concern) {
            self.tell_version(&[Some(code)], out, start);
        }
    }

    fn tell_version(&self, codes: &[Option<Code>], out: &mut Vec<u8>, start: usize) {
        if self.config.topology.set_name().is_none() {
            return;
        }
        let stops = self.control.is_stopping();
        let tells = |code: Code| is_not_primary(code) || stops && is_shutdown(code);
        if !codes.iter().flatten().any(|code| tells(*code)) {
            return;
        }
        // A server that ends tells no hello of it.
        let counter = self.topology.counter() + i64::from(stops);
        let mut w = Writer::new();
        w.open_doc("topologyVersion")
            .oid("processId", self.process_id)
            .i64("counter", counter)
            .close();
        service::append_fields(out, start, w.finish().as_doc());
    }
}
