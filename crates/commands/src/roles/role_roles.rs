//! `grantRolesToRole` and `revokeRolesFromRole`.

use super::{alter, named};
use crate::request::{CommandContext, Done};
use crate::users::check_roles;
use crate::users::user_roles::{Arguments, add, take};
use auth::RoleName;
use errors::Result;
use front::idl;

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
    let name = named(cx)?;
    let at = cx.command.name;
    let a = Arguments::parse(at, cx.args.fields.iter().copied())?;
    let list = idl::required(at, "roles", a.roles)?;
    let given = RoleName::parse_list(list, &name.db)?;
    check_roles(cx.app, &given)?;
    let change = |role: &mut auth::role::Role| {
        change(&mut role.roles, &given);
        Ok(())
    };
    alter(cx, &name, change, None)?;
    Ok(Done::Reply)
}
