//! Commands on users: made, changed, removed, shown.
//!
//! Invariant: a change of users holds `Security::changing` from the reading of the stored documents
//! until the change is applied.

pub mod create_user;
pub mod drop_user;
pub mod invalidate_user_cache;
pub mod merge;
mod password;
pub mod update_user;
pub mod user_cache_generation;
pub mod user_roles;
pub mod users_info;

use crate::Commands;
use crate::security::roles;
use crate::security::users::{self, User};
use auth::restriction::Restrictions;
use auth::{RoleName, UserName};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail, err};

/// Fails unless every role is there.
pub fn check_roles(app: &Commands, names: &[RoleName]) -> Result<()> {
    for name in names {
        if roles::find(&app.engine, name)?.is_none() {
            bail!(RoleNotFound, "Could not find role: {name}");
        }
    }
    Ok(())
}

/// A document without its `_id`, with other values for some of its fields; `None` takes a field
/// away.
pub fn with_fields(d: Doc<'_>, changed: &[(&str, Option<Val<'_>>)]) -> DocBuf {
    let mut w = Writer::new();
    let is_changed = |name: &str| name == "_id" || changed.iter().any(|(field, _)| *field == name);
    for e in d.iter().filter(|e| !is_changed(e.name)) {
        w.val(e.name, e.val);
    }
    for (field, value) in changed {
        if let Some(value) = value {
            w.val(field, *value);
        }
    }
    w.finish()
}

/// Reads `authenticationRestrictions` for its errors alone.
pub fn check_restrictions(v: Option<Val<'_>>) -> Result<()> {
    match v {
        Some(v) => Ok(Restrictions::parse(v).map(|_| ())?),
        None => Ok(()),
    }
}

/// The user of that name; an error if there is none.
fn existing(app: &Commands, name: &UserName) -> Result<User> {
    let found = users::find(&app.engine, name)?;
    found.ok_or_else(|| err!(UserNotFound, "User '{name}' not found").into())
}
