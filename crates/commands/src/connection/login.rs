//! Who is logged in on a connection, and where the exchange of a login stands.

use arc_swap::ArcSwapOption;
use auth::scram::{Exchange, Hash};
use auth::session_id::NOBODY;
use auth::{Privileges, RoleName, UserName};
use front::Subject;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Somebody who has proven who he is.
pub struct LoggedIn {
    pub name: UserName,
    /// Whose his sessions are.
    pub uid: [u8; 32],
    /// Those that he was given.
    pub roles: Vec<RoleName>,
    /// Those and all that they lead to.
    pub all_roles: BTreeSet<RoleName>,
    pub privileges: Privileges,
    /// Those that his certificate gives him; the stored user, if there is one, does not count then.
    pub(crate) certified: Vec<RoleName>,
    /// `Security::generation` when this was read.
    pub(crate) generation: u64,
}

impl LoggedIn {
    /// As far as its rights depend on who it is.
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
    /// Who is logged in, as he was known when that was read.
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

    /// Makes somebody the connection's user who need not prove who he is: the server itself, or whom
    /// another connection has proven.
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
