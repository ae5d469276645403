//! `grantRolesToUser` and `revokeRolesFromUser`.

use super::{check_roles, existing, with_fields};
use crate::request::{CommandContext, Done};
use crate::security::roles::append_roles;
use crate::security::users;
use auth::{RoleName, UserName};
use bson::{Doc, Writer};
use errors::Result;
use front::idl;

idl::arguments! {
    pub struct Arguments<'a> {
        "roles" => roles: Option<Doc<'a>> = idl::array,
    }
}

/// Adds the roles that are missing.
pub fn add(has: &mut Vec<RoleName>, given: &[RoleName]) {
    for role in given {
        if !has.contains(role) {
            has.push(role.clone());
        }
    }
}

pub fn take(has: &mut Vec<RoleName>, taken: &[RoleName]) {
    has.retain(|role| !taken.contains(role));
}

pub fn grant(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    change(cx, add)
}

pub fn revoke(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    change(cx, take)
}

fn change(
    cx: &mut CommandContext<'_, '_>,
    change: impl FnOnce(&mut Vec<RoleName>, &[RoleName]),
) -> Result<Done> {
    let at = cx.command.name;
    let Some(user) = cx.args.first.as_str() else {
        return Err(idl::mismatch(at, at, cx.args.first, &["string"]));
    };
    let a = Arguments::parse(at, cx.args.fields.iter().copied())?;
    let list = idl::required(at, "roles", a.roles)?;
    let name = UserName::new(user, cx.args.db);
    let given = RoleName::parse_list(list, &name.db)?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    let stored = existing(app, &name)?;
    check_roles(app, &given)?;
    let mut roles = stored.roles();
    change(&mut roles, &given);
    let mut w = Writer::new();
    append_roles(&mut w, "roles", &roles);
    let roles = w.finish();
    let next = with_fields(stored.document(), &[("roles", roles.get("roles"))]);
    users::save(&mut cx.op, &app.engine, &name, next.as_doc())?;
    Ok(Done::Reply)
}
