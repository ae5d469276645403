//! The logged-in user of a connection, and the state of a pending login.

use arc_swap::ArcSwapOption;
use auth::scram::{Exchange, Hash};
use auth::session_id::NOBODY;
use auth::{Privileges, RoleName, UserName};
use front::Subject;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// An authenticated user.
pub struct LoggedIn {
    pub name: UserName,
    /// The owner's id in the user's sessions.
    pub uid: [u8; 32],
    /// The roles that were granted directly.
    pub roles: Vec<RoleName>,
    /// Those and all that they lead to.
    pub all_roles: BTreeSet<RoleName>,
    pub privileges: Privileges,
    /// The roles of the user's certificate; the stored user, if there is one, does not count then.
    pub(crate) certified: Vec<RoleName>,
    /// `Security::generation` when this was read.
    pub(crate) generation: u64,
}

impl LoggedIn {
    /// The part on which its rights depend.
    pub fn subject(&self) -> Subject<'_> {
        Subject {
            name: &self.name,
            all_roles: &self.all_roles,
            privileges: &self.privileges,
        }
    }
}

/// What a connection knows of its user.
#[derive(Default)]
pub struct Login {
    pub(crate) exchange: Mutex<Option<Pending>>,
    pub(crate) user: ArcSwapOption<LoggedIn>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.load();
        f.debug_tuple("Login")
            .field(&user.as_ref().map(|u| &u.name))
            .finish()
    }
}

impl Login {
    /// The logged-in user, with the privileges of when they were read.
    pub fn user(&self) -> Option<Arc<LoggedIn>> {
        self.user.load_full()
    }

    pub fn is_logged_in(&self) -> bool {
        self.user.load().is_some()
    }

    /// Whose the sessions of the connection are.
    pub fn uid(&self) -> [u8; 32] {
        self.user.load().as_ref().map_or(NOBODY, |u| u.uid)
    }

    /// Sets the connection's user without a login: for the server itself, or for a user that another
    /// connection has authenticated.
    pub fn admit(&self, user: Arc<LoggedIn>) {
        self.user.store(Some(user));
    }

    pub fn log_out(&self) {
        self.user.store(None);
        *self.exchange.lock() = None;
    }
}

/// Where an exchange stands.
pub(crate) enum Pending {
    /// The client's last message is awaited.
    Proof {
        exchange: Exchange,
        name: UserName,
        hash: Hash,
        skips_empty: bool,
    },
    /// Proven; the client sends an empty message yet.
    Empty,
    /// Failed, and answered from this moment on.
    Refused(Instant),
}
