//! `rolesInfo`.

use super::append_privileges;
use crate::request::{CommandContext, Done};
use crate::security::roles;
use crate::security::roles::append_roles;
use auth::RoleName;
use auth::role::{self, Role};
use bson::{DocBuf, Val, Writer, doc};
use errors::{Result, bail};
use front::idl;

const AT: &str = "rolesInfo";

idl::arguments! {
    struct Arguments<'a> {
        "showPrivileges" => privileges: Option<Val<'a>> = idl::value,
        "showAuthenticationRestrictions" => restrictions: Option<bool> = idl::safe_bool,
        "showBuiltinRoles" => built_in: Option<bool> = idl::safe_bool,
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let as_fragment = a.privileges.and_then(|v| v.as_str()) == Some("asUserFragment");
    let names = wanted(cx, a.built_in.unwrap_or(false))?;
    if as_fragment {
        return fragment(cx, &names);
    }
    let mut shown = Vec::new();
    for name in names {
        if let Some(role) = roles::find(&cx.app.engine, &name)? {
            shown.push(show(cx, &name, &role, &a)?);
        }
    }
    cx.w.open_array("roles");
    for d in &shown {
        cx.w.push(d.as_doc().as_val());
    }
    cx.w.close();
    Ok(Done::Reply)
}

fn wanted(cx: &CommandContext<'_, '_>, built_in: bool) -> Result<Vec<RoleName>> {
    let first = cx.args.first;
    let db = cx.args.db;
    if let Some(list) = first.as_array() {
        return Ok(RoleName::parse_list(list, db)?);
    }
    if first.as_doc().is_some() || first.as_str().is_some() {
        return Ok(vec![RoleName::parse(first, db)?]);
    }
    if first.to_i64_truncated() != Some(1) {
        bail!(BadValue, "Role name must be either a string or an object");
    }
    let filter = doc! { "db": db };
    let mut names: Vec<RoleName> = (roles::matching(&cx.app.engine, filter.as_doc())?.iter())
        .filter_map(|d| Some(RoleName::new(d.get("role")?.as_str()?, db)))
        .collect();
    names.sort();
    if built_in {
        let all = role::built_in_names(db);
        names.extend(all.into_iter().map(|r| RoleName::new(r, db)));
    }
    Ok(names)
}

fn show(
    cx: &CommandContext<'_, '_>,
    name: &RoleName,
    role: &Role,
    a: &Arguments<'_>,
) -> Result<DocBuf> {
    let mut w = Writer::new();
    w.str("_id", &name.id())
        .str("role", &name.role)
        .str("db", &name.db);
    append_roles(&mut w, "roles", &role.roles);
    let inherited = roles::resolve(&cx.app.engine, &role.roles)?;
    append_roles(&mut w, "inheritedRoles", &inherited.roles);
    if a.privileges.is_some_and(|v| v.truthy()) {
        append_privileges(&mut w, "privileges", &role.privileges);
        let mut all = inherited.privileges;
        role.privileges.iter().for_each(|p| all.add(p));
        append_privileges(&mut w, "inheritedPrivileges", &all.list());
    }
    if a.restrictions.unwrap_or(false) {
        let stored = roles::document(&cx.app.engine, name)?;
        let own = stored
            .as_ref()
            .and_then(|d| d.get("authenticationRestrictions"));
        match own {
            Some(v) => w.val("authenticationRestrictions", v),
            None => w.open_array("authenticationRestrictions").close(),
        };
        w.open_array("inheritedAuthenticationRestrictions").close();
    }
    w.bool("isBuiltin", role::is_built_in(name));
    Ok(w.finish())
}

/// The roles and privileges of a user with these roles.
fn fragment(cx: &mut CommandContext<'_, '_>, names: &[RoleName]) -> Result<Done> {
    let resolved = roles::resolve(&cx.app.engine, names)?;
    cx.w.open_doc("userFragment");
    append_roles(&mut cx.w, "roles", names);
    append_roles(&mut cx.w, "inheritedRoles", &resolved.roles);
    let privileges = resolved.privileges.list();
    append_privileges(&mut cx.w, "inheritedPrivileges", &privileges);
    cx.w.close();
    Ok(Done::Reply)
}
