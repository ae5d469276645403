//! `updateRole`.

use super::create_role::Arguments;
use super::{alter, named, privileges};
use crate::request::{CommandContext, Done};
use crate::users::check_restrictions;
use auth::RoleName;
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = named(cx)?;
    let a = Arguments::parse("updateRole", cx.args.fields.iter().copied())?;
    if a.privileges.is_none() && a.roles.is_none() && a.restrictions.is_none() {
        bail!(
            BadValue,
            "Must specify at least one field to update in updateRole"
        );
    }
    check_restrictions(a.restrictions)?;
    let privileges = a.privileges.map(privileges).transpose()?;
    let given = (a.roles.map(|list| RoleName::parse_list(list, &name.db))).transpose()?;
    let change = |role: &mut auth::role::Role| {
        role.privileges = privileges.unwrap_or(std::mem::take(&mut role.privileges));
        role.roles = given.unwrap_or(std::mem::take(&mut role.roles));
        Ok(())
    };
    alter(cx, &name, change, a.restrictions)?;
    Ok(Done::Reply)
}
