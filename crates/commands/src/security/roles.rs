//! Roles that users made, as they are stored: one document each, as MongoDB 8 keeps them.
//!
//! ```text
//! admin.system.roles: {_id: "db.role", role, db, privileges: [{resource, actions}, …], roles: [{role, db}, …],
//!                      authenticationRestrictions: [{…}, …]}
//! ```

use super::users::role_names;
use crate::settings::documents;
use auth::RoleName;
use auth::privilege::Privilege;
use auth::restriction::Restrictions;
use auth::role::{self, ResolvedRoles, Role};
use bson::{Doc, DocBuf, Writer};
use errors::Result;
use executor::{Engine, OpCtx};
use std::sync::Arc;

pub const NS: &str = "admin.system.roles";

pub fn any(engine: &Arc<Engine>) -> Result<bool> {
    documents::any(engine, NS)
}

/// A role of the users' own, from its document.
pub fn parse(d: Doc<'_>) -> Role {
    let privileges = d.get("privileges").and_then(|v| v.as_array());
    let restrictions = d.get("authenticationRestrictions");
    Role {
        privileges: (privileges.iter().flat_map(|l| l.values()))
            .filter_map(|v| Privilege::parse(v.as_doc()?).ok())
            .map(|(privilege, _)| privilege)
            .collect(),
        roles: role_names(d),
        restrictions: (restrictions.and_then(|v| Restrictions::parse(v).ok())).unwrap_or_default(),
    }
}

pub fn document(engine: &Arc<Engine>, name: &RoleName) -> Result<Option<DocBuf>> {
    let found = documents::get(engine, NS, &name.id())?;
    Ok(found.filter(|d| is_named(d, name)))
}

/// Whether a document is that role's. Two names can have one id, where one holds a dot.
pub fn is_named(d: &DocBuf, name: &RoleName) -> bool {
    let is = |field: &str, text: &str| d.get(field).and_then(|v| v.as_str()) == Some(text);
    is("role", &name.role) && is("db", &name.db)
}

/// A built-in role, or one of the users' own.
pub fn find(engine: &Arc<Engine>, name: &RoleName) -> Result<Option<Role>> {
    match role::built_in(name) {
        Some(role) => Ok(Some(role)),
        None => Ok(document(engine, name)?.map(|d| parse(d.as_doc()))),
    }
}

/// All that follows from roles.
pub fn resolve(engine: &Arc<Engine>, roles: &[RoleName]) -> Result<ResolvedRoles> {
    role::resolve(roles, |name| find(engine, name))
}

/// The documents of users' own roles that match a filter.
pub fn matching(engine: &Arc<Engine>, filter: Doc<'_>) -> Result<Vec<DocBuf>> {
    let mut all = Vec::new();
    documents::each(engine, NS, filter, |d| {
        all.push(d.to_buf());
        Ok(true)
    })?;
    Ok(all)
}

/// Stores a role; `doc` has no `_id`.
pub fn save(op: &mut OpCtx<'_>, name: &RoleName, doc: Doc<'_>) -> Result<()> {
    documents::put(op, NS, &name.id(), doc)
}

/// Writes names as `[{role, db}, …]` under `field`.
pub fn append_roles<'r>(
    w: &mut Writer,
    field: &str,
    names: impl IntoIterator<Item = &'r RoleName>,
) {
    w.open_array(field);
    for name in names {
        w.open_doc("")
            .str("role", &name.role)
            .str("db", &name.db)
            .close();
    }
    w.close();
}
