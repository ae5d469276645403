//! `createRole`.

use super::{check_circle, check_reach, document, named, privileges};
use crate::request::{CommandContext, Done};
use crate::security::roles;
use crate::users::{check_restrictions, check_roles};
use auth::RoleName;
use auth::role;
use bson::{Doc, Val};
use errors::{Result, bail};
use front::idl;

const AT: &str = "createRole";

idl::arguments! {
    pub struct Arguments<'a> {
        "privileges" => privileges: Option<Doc<'a>> = idl::array,
        "roles" => roles: Option<Doc<'a>> = idl::array,
        "authenticationRestrictions" => restrictions: Option<Val<'a>> = idl::value,
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = named(cx)?;
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let list = idl::required(AT, "privileges", a.privileges)?;
    let given = idl::required(AT, "roles", a.roles)?;
    check_name(&name)?;
    let privileges = privileges(list)?;
    let given = RoleName::parse_list(given, &name.db)?;
    check_restrictions(a.restrictions)?;
    check_reach(&name, &privileges, &given)?;
    let app = cx.app;
    let _changing = app.security.changing.lock();
    if roles::document(&app.engine, &name)?.is_some() {
        bail!(51002, "Role \"{name}\" already exists");
    }
    check_roles(app, &given)?;
    check_circle(app, &name, &given)?;
    let d = document(&name, &privileges, &given, a.restrictions);
    roles::save(&mut cx.op, &name, d.as_doc())?;
    Ok(Done::Reply)
}

fn check_name(name: &RoleName) -> Result<()> {
    if name.role.is_empty() {
        bail!(BadValue, "Role name must be non-empty");
    }
    if matches!(name.db.as_str(), "local" | "$external") {
        bail!(BadValue, "Cannot create roles in the {} database", name.db);
    }
    if role::is_built_in(name) {
        bail!(
            BadValue,
            "Cannot create roles with the same name as a built-in role"
        );
    }
    Ok(())
}
