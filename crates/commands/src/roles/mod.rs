//! Commands on roles that users make: made, changed, removed, shown.
//!
//! Invariant: a change of roles holds `Security::changing` from the reading of the stored documents
//! until the change is applied.

pub mod create_role;
pub mod drop_role;
pub mod role_privileges;
pub mod role_roles;
pub mod roles_info;
pub mod update_role;

use crate::Commands;
use crate::request::CommandContext;
use crate::security::roles;
use crate::security::roles::append_roles;
use auth::RoleName;
use auth::privilege::Privilege;
use auth::role::{self, Role};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail, err};
use front::idl;

/// A role of the users' own, which must be there, and its document.
fn existing(app: &Commands, name: &RoleName) -> Result<(Role, DocBuf)> {
    if role::is_built_in(name) {
        bail!(
            InvalidRoleModification,
            "{name} is a built-in role and cannot be modified."
        );
    }
    let found = roles::document(&app.engine, name)?;
    let found = found.ok_or_else(|| err!(RoleNotFound, "Role '{name}' not found"))?;
    Ok((roles::parse(found.as_doc()), found))
}

/// The name that the command's first value gives.
fn named(cx: &CommandContext<'_, '_>) -> Result<RoleName> {
    let at = cx.command.name;
    match cx.args.first.as_str() {
        Some(role) => Ok(RoleName::new(role, cx.args.db)),
        None => Err(idl::mismatch(at, at, cx.args.first, &["string"])),
    }
}

/// Privileges as a command gives them; actions that there are not are an error.
fn privileges(list: Doc<'_>) -> Result<Vec<Privilege>> {
    let mut all = Vec::new();
    for v in list.values() {
        let Some(d) = v.as_doc() else {
            bail!(FailedToParse, "Privileges must be objects");
        };
        let (privilege, unknown) = Privilege::parse(d)?;
        if !unknown.is_empty() {
            bail!(
                BadValue,
                "Unrecognized action privilege strings: {}",
                unknown.join(", ")
            );
        }
        all.push(privilege);
    }
    Ok(all)
}

/// Roles of other databases than admin have to do with their own only.
fn check_reach(name: &RoleName, privileges: &[Privilege], given: &[RoleName]) -> Result<()> {
    if name.db == "admin" {
        return Ok(());
    }
    let own = |p: &Privilege| p.resource.db() == Some(&name.db);
    if !privileges.iter().all(own) {
        bail!(
            InvalidRoleModification,
            "Roles on the '{}' database cannot be granted privileges that target other databases or the cluster",
            name.db
        );
    }
    if given.iter().any(|r| r.db != name.db) {
        bail!(
            InvalidRoleModification,
            "Roles on the '{}' database cannot be granted roles from other databases",
            name.db
        );
    }
    Ok(())
}

/// Fails where a role would come to have itself.
fn check_circle(app: &Commands, name: &RoleName, given: &[RoleName]) -> Result<()> {
    if roles::resolve(&app.engine, given)?.roles.contains(name) {
        bail!(
            InvalidRoleModification,
            "Granting roles to {name} would introduce a cycle in the role graph."
        );
    }
    Ok(())
}

/// A role's document, without `_id`.
fn document(
    name: &RoleName,
    privileges: &[Privilege],
    given: &[RoleName],
    restrictions: Option<Val<'_>>,
) -> DocBuf {
    let mut w = Writer::new();
    w.str("role", &name.role).str("db", &name.db);
    append_privileges(&mut w, "privileges", privileges);
    append_roles(&mut w, "roles", given);
    if let Some(v) = restrictions.filter(|v| v.as_array().is_some_and(|l| !l.is_empty())) {
        w.val("authenticationRestrictions", v);
    }
    w.finish()
}

fn append_privileges(w: &mut Writer, field: &str, privileges: &[Privilege]) {
    w.open_array(field);
    for p in privileges {
        w.push(p.document().as_doc().as_val());
    }
    w.close();
}

/// Changes a role of the users' own as `change` says, and stores it.
fn alter(
    cx: &mut CommandContext<'_, '_>,
    name: &RoleName,
    change: impl FnOnce(&mut Role) -> Result<()>,
    restrictions: Option<Val<'_>>,
) -> Result<()> {
    let app = cx.app;
    let _changing = app.security.changing.lock();
    let (mut role, stored) = existing(app, name)?;
    change(&mut role)?;
    check_reach(name, &role.privileges, &role.roles)?;
    crate::users::check_roles(app, &role.roles)?;
    check_circle(app, name, &role.roles)?;
    let restrictions = restrictions.or(stored.get("authenticationRestrictions"));
    let d = document(name, &role.privileges, &role.roles, restrictions);
    roles::save(&mut cx.op, name, d.as_doc())
}
