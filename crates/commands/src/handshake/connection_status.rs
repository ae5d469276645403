//! `connectionStatus`: who the client is. There are no users yet, so it is nobody, who may do
//! anything.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut privileges = false;
    for e in cx.args.fields.clone() {
        match e.name {
            "showPrivileges" => {
                privileges = idl::safe_bool("connectionStatus", e)?.unwrap_or(false)
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    cx.w.open_doc("authInfo");
    cx.w.open_array("authenticatedUsers")
        .close()
        .open_array("authenticatedUserRoles")
        .close();
    if privileges {
        cx.w.open_array("authenticatedUserPrivileges").close();
    }
    cx.w.close();
    cx.w.binary("uuid", 4, &cx.client.state.uuid);
    Ok(Done::Reply)
}
