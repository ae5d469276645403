//! Authentication and access control.
//!
//! - `login`: logged-in users of connections, and pending exchanges;
//! - `users`, `roles`: the documents in `admin.system.users` and `admin.system.roles`;
//! - `directory`: those of another server, where a router's are;
//! - `authorize`: what a command needs, and whether its client may;
//! - `routed`: both for what a router sends on;
//! - `audit`: the audit log;
//! - `redact`: the secret fields of commands.
//!
//! Invariants:
//! - With authorization on, a command that reads or changes anything runs only for a logged-in client
//!   with the privileges, or under the localhost exception; the table of commands names the privileges
//!   of each command.
//! - A user's privileges are those that the stored users and roles give when the command begins: every
//!   change of them raises `generation`, and a login of an older one is read anew.

pub mod audit;
pub mod authorize;
mod directory;
pub mod login;
pub mod roles;
pub mod users;

pub use directory::UserDirectory;

use crate::connection::Connection;
use audit::Audit;
use auth::UserName;
use auth::scram::{self, Credential, Hash};
use bson::doc;
use errors::Result;
use executor::Engine;
use parking_lot::Mutex;
use service::{Client, ServerConfig};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use storage::{Committed, Entry, Observer};

/// The user that members of a cluster are to each other.
pub fn member_name() -> UserName {
    UserName::new("__system", "local")
}

/// How often failed logins of one user are told to the log.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Users whose failures are counted apart.
const COUNTED_USERS: usize = 1000;

/// Access control of the whole server.
pub struct Security {
    /// Commands are checked.
    pub enabled: bool,
    /// What members share; the first is the one to log in with.
    pub keys: Vec<String>,
    /// The secret from which credentials of unknown users are made.
    pub secret: [u8; 32],
    /// Grows with every change of users and roles.
    pub generation: AtomicU64,
    /// There was a user or a role once: the localhost exception is over.
    closed: AtomicBool,
    /// Held while users or roles are changed, from the reading of the stored documents.
    pub changing: Mutex<()>,
    /// Failed logins by user, since the last was told to the log.
    failures: Mutex<HashMap<UserName, Failures>>,
    pub audit: Option<Audit>,
    /// Of the first key, one for each mechanism: made when a member first logs in.
    of_members: OnceLock<Vec<Credential>>,
    /// The source of users and roles, if not this server's own store.
    directory: OnceLock<Arc<dyn UserDirectory>>,
}

struct Failures {
    told: Instant,
    untold: u64,
}

impl Security {
    pub fn open(config: &ServerConfig) -> Result<Security> {
        Ok(Security {
            enabled: config.security.authorization,
            keys: config.security.keys.clone(),
            secret: rand::random(),
            generation: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            changing: Mutex::default(),
            failures: Mutex::default(),
            of_members: OnceLock::new(),
            directory: OnceLock::new(),
            audit: config.audit.as_ref().map(Audit::open).transpose()?,
        })
    }

    /// Tells the audit log of a login.
    fn audit_login(
        &self,
        client: &Client<Connection>,
        name: &UserName,
        mechanism: &str,
        code: i32,
    ) {
        if let Some(audit) = &self.audit {
            let param = doc! { "user": &name.user, "db": &name.db, "mechanism": mechanism };
            audit.tell(client, "authenticate", &param, code);
        }
    }

    /// What a member of the cluster has to prove; `None` without a key.
    fn of_member(&self, hash: Hash) -> Option<Credential> {
        let key = self.keys.first()?;
        let make = |hash| {
            let prepared = match hash {
                Hash::Sha1 => scram::digest_password(&member_name().user, key),
                Hash::Sha256 => key.clone(),
            };
            Credential::of_prepared(hash, &prepared, login::iterations(hash))
        };
        let all = (self.of_members).get_or_init(|| Hash::ALL.into_iter().map(make).collect());
        all.iter().find(|c| c.hash == hash).cloned()
    }

    /// Whether a client on this machine may make the first user.
    pub fn is_exceptional(&self, engine: &Arc<Engine>) -> Result<bool> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let there = match self.directory.get() {
            Some(directory) => directory.any(users::NS)? || directory.any(roles::NS)?,
            None => users::any(engine)? || roles::any(engine)?,
        };
        if there {
            self.closed.store(true, Ordering::Release);
        }
        Ok(!there)
    }

    /// Tells a failed login to the log: each user's at most once in [`TOLD_EVERY`], with their
    /// number.
    pub fn tell_failure(&self, name: &UserName, peer: &str, mechanism: &str, why: &str) {
        let mut all = self.failures.lock();
        if all.len() >= COUNTED_USERS && !all.contains_key(name) {
            all.retain(|_, f| f.told.elapsed() < TOLD_EVERY);
            if all.len() >= COUNTED_USERS {
                return;
            }
        }
        let now = Instant::now();
        let untold = match all.get_mut(name) {
            Some(f) if now.duration_since(f.told) < TOLD_EVERY => {
                f.untold += 1;
                return;
            }
            Some(f) => {
                f.told = now;
                std::mem::take(&mut f.untold)
            }
            None => {
                let (told, untold) = (now, 0);
                all.insert(name.clone(), Failures { told, untold });
                0
            }
        };
        drop(all);
        tracing::info!(target: "ACCESS", id = 5286307, user = %name.user, db = %name.db, mechanism, remote = peer,
            error = why, notShown = untold, "Failed to authenticate");
    }
}

/// Raises the generation with every entry on users or roles.
pub struct RaiseGeneration(pub Arc<Security>);

impl Observer for RaiseGeneration {
    fn applied(&self, _: Committed, entry: &Entry) {
        let concerns = |e: &Entry| matches!(&*e.ns, users::NS | roles::NS);
        if entry.plain().any(concerns) {
            self.0.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}
