//! Users and roles that another server keeps: a router's are on the configuration set.
//!
//! Invariant: users and roles that were read hold until [`Security::generation`] grows, as with the
//! server's own users.

use super::Security;
use super::{roles, users};
use auth::role::{self, ResolvedRoles, Role};
use auth::{RoleName, UserName};
use bson::DocBuf;
use errors::{Fallible, Result};
use executor::Engine;
use std::sync::Arc;

/// A source of users and roles.
pub trait UserDirectory: Send + Sync {
    /// The document of that `_id` in `admin.system.users` or `admin.system.roles`. It may take the
    /// time of an answer over the network.
    fn document(&self, ns: &str, id: &str) -> Fallible<Option<DocBuf>>;

    /// Whether that collection has any document.
    fn any(&self, ns: &str) -> Fallible<bool>;
}

impl Security {
    /// Has users and roles read from `directory`, from now on.
    pub fn read_from(&self, directory: Arc<dyn UserDirectory>) {
        let _ = self.directory.set(directory);
    }

    /// Whether users are read over the network.
    pub fn is_remote(&self) -> bool {
        self.directory.get().is_some()
    }

    pub fn user(&self, engine: &Arc<Engine>, name: &UserName) -> Result<Option<users::User>> {
        let Some(directory) = self.directory.get() else {
            return users::find(engine, name);
        };
        let found = directory.document(users::NS, &name.id())?;
        let found = found.and_then(users::User::of);
        Ok(found.filter(|user| user.name == *name))
    }

    fn role(&self, engine: &Arc<Engine>, name: &RoleName) -> Result<Option<Role>> {
        let Some(directory) = self.directory.get() else {
            return roles::find(engine, name);
        };
        if let Some(role) = role::built_in(name) {
            return Ok(Some(role));
        }
        let found = directory.document(roles::NS, &name.id())?;
        let found = found.filter(|d| roles::is_named(d, name));
        Ok(found.map(|d| roles::parse(d.as_doc())))
    }

    /// All that follows from roles.
    pub fn resolve(&self, engine: &Arc<Engine>, given: &[RoleName]) -> Result<ResolvedRoles> {
        role::resolve(given, |name| self.role(engine, name))
    }
}
