//! Authentication and privileges.
//!
//! - [`name`]: names of users and roles, with the database that each belongs to;
//! - [`scram`]: passwords as they are kept, and the exchange that proves one, for both sides;
//! - [`key_file`]: the secret that members of a cluster share;
//! - [`action`], [`privilege`]: what may be done on what;
//! - [`role`]: built-in roles, and roles that users make of others;
//! - [`restriction`]: from where a user may come;
//! - [`session_id`]: logical sessions, each of which belongs to a user.
//!
//! Invariant: no I/O, no clock, and no cryptography of its own: hashes and their use for passwords
//! are libraries. What depends on a secret takes the same time whatever the secret is.

pub mod action;
pub mod key_file;
pub mod name;
pub mod privilege;
pub mod restriction;
pub mod role;
pub mod scram;
pub mod session_id;

use bson::Doc;
use errors::{Fallible, bail};

/// Fails if a document has a field twice: the check and the use must read the same one.
fn unique<'a>(within: &str, d: Doc<'a>) -> Fallible<Doc<'a>> {
    match d.repeated_name() {
        None => Ok(d),
        Some(field) => bail!(
            IDLDuplicateField,
            "BSON field '{within}.{field}' is a duplicate field"
        ),
    }
}

pub use action::{Action, Actions};
pub use name::{RoleName, UserName};
pub use privilege::{Privilege, Privileges, Resource, Target};
