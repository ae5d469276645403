//! The logical sessions of a client, and how a reply shows one.

use crate::request::CommandContext;
use auth::session_id::NOBODY;
use bson::Writer;
use session::Lsid;

/// Whose the sessions of this client are.
pub fn own_uid(cx: &CommandContext<'_, '_>) -> [u8; 32] {
    match cx.app.security.enabled {
        true => cx.client.state.login.uid(),
        false => NOBODY,
    }
}

/// A session as it is shown.
pub fn append_session(w: &mut Writer, field: &str, lsid: &Lsid) {
    w.open_doc(field)
        .binary("id", 4, &lsid.id)
        .binary("uid", 0, &lsid.uid)
        .close();
}
