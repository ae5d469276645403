//! `connectionStatus`: the client's users and their privileges.

use crate::request::{CommandContext, Done};
use crate::security::login;
use crate::security::roles::append_roles;
use errors::Result;
use front::idl;

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
    let user = login::current(cx.app, cx.client, || cx.op.need_worker())?;
    cx.w.open_doc("authInfo");
    cx.w.open_array("authenticatedUsers");
    if let Some(user) = &user {
        let name = &user.name;
        cx.w.open_doc("")
            .str("user", &name.user)
            .str("db", &name.db)
            .close();
    }
    cx.w.close();
    let roles = user.iter().flat_map(|u| &u.all_roles);
    append_roles(&mut cx.w, "authenticatedUserRoles", roles);
    if privileges {
        cx.w.open_array("authenticatedUserPrivileges");
        for p in user.iter().flat_map(|u| u.privileges.list()) {
            cx.w.push(p.document().as_doc().as_val());
        }
        cx.w.close();
    }
    cx.w.close();
    cx.w.binary("uuid", 4, &cx.client.state.uuid);
    Ok(Done::Reply)
}
