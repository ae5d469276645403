//! Logging in: pending exchanges of messages, and logged-in users.
//!
//! Invariants:
//! - A wrong password, an unknown user, a mechanism without a credential, and a malformed message get
//!   the same answer, after the same time ([`DELAY`]), in which no thread waits.
//! - A connection has one exchange at most, and one user at most: a new one takes the old one's
//!   place.

use super::{Security, member_name};
use crate::Commands;
use crate::connection::Connection;
use crate::connection::login::{LoggedIn, Pending};
use crate::request::{CommandContext, Done};
use auth::role::ResolvedRoles;
use auth::scram::{self, Credential, Exchange, First, Hash, ScramStep};
use auth::{Privileges, RoleName, UserName};
use errors::{Code, Error, Result, Stop, bail, err};
use service::{Client, PeerCertificate};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub const X509: &str = "MONGODB-X509";

/// The delay of the answer to a failed login.
const DELAY: Duration = Duration::from_millis(100);
/// How often a client is told to hash the password of an unknown user.
const ITERATIONS: [(Hash, u32); 2] = [(Hash::Sha1, 10_000), (Hash::Sha256, 15_000)];

/// What the client is told next.
pub struct LoginReply {
    pub done: bool,
    pub payload: String,
}

/// Why a login failed, for the log alone.
struct Failure {
    name: UserName,
    mechanism: &'static str,
    why: String,
}

pub fn failed() -> Error {
    err!(AuthenticationFailed, "Authentication failed.")
}

/// A first message.
pub struct LoginStart<'a> {
    pub mechanism: &'a str,
    pub payload: &'a [u8],
    pub db: &'a str,
    pub skips_empty: bool,
}

/// Begins an exchange. Reads the user: not for an event loop.
pub fn start(cx: &mut CommandContext<'_, '_>, s: &LoginStart<'_>) -> Result<Option<LoginReply>> {
    let Some(hash) = Hash::named(s.mechanism) else {
        bail!(
            MechanismUnavailable,
            "Received authentication for mechanism {} which is unknown or not enabled",
            s.mechanism
        );
    };
    let login = &cx.client.state.login;
    let first = match First::parse(s.payload) {
        Ok(first) => first,
        Err(e) => {
            let failure = Failure {
                name: UserName::new("", s.db),
                mechanism: hash.mechanism(),
                why: e.message.to_string(),
            };
            refuse(cx.app, cx.client, failure);
            return Ok(None);
        }
    };
    let name = UserName::new(first.user.clone(), s.db);
    let (credential, genuine) = cx.app.credential(&name, hash)?;
    let (exchange, payload) = Exchange::begin(first, credential, genuine, &scram::nonce());
    *login.exchange.lock() = Some(Pending::Proof {
        exchange,
        name,
        hash,
        skips_empty: s.skips_empty,
    });
    Ok(Some(LoginReply {
        done: false,
        payload,
    }))
}

/// Whether a login can succeed by its mechanism: false only for a known user without a credential for
/// it.
pub fn may_have(app: &Commands, s: &LoginStart<'_>) -> Result<bool> {
    let (Some(hash), Ok(first)) = (Hash::named(s.mechanism), First::parse(s.payload)) else {
        return Ok(false);
    };
    let name = UserName::new(first.user, s.db);
    let user = app.security.user(&app.engine, &name)?;
    Ok(user.is_none_or(|u| u.credentials().get(hash.mechanism()).is_some()))
}

/// Logs a client in by the certificate that it has shown. `user`: the user that the client names, if
/// any. `false` where that failed, which waits as any failure does.
pub fn by_certificate(cx: &mut CommandContext<'_, '_>, user: Option<&str>) -> Result<bool> {
    cx.op.need_worker()?;
    let Some(certificate) = cx.client.certificate.get() else {
        bail!(
            AuthenticationFailed,
            "No verified subject name available from client"
        );
    };
    let name = UserName::new(certificate.subject.clone(), "$external");
    let named_right = user.is_none_or(|u| u.is_empty() || u == name.user);
    let outcome = match (named_right, is_of_member(cx.app, certificate)) {
        (false, _) => Err(err!(
            AuthenticationFailed,
            "There is no x.509 client certificate matching the user."
        ).into()),
        (true, false) => {
            let roles = certificate.roles.iter();
            let roles: Vec<RoleName> = roles.map(|(r, db)| RoleName::new(r, db)).collect();
            log_in(cx, &name, X509, &roles)
        }
        (true, true) if cx.app.config.security.cluster_auth.takes_certificates() => {
            log_in(cx, &member_name(), X509, &[])
        }
        (true, true) => Err(err!(
            AuthenticationFailed,
            "The provided certificate can only be used for cluster authentication, not client authentication. The current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag"
        ).into()),
    };
    if let Err(Stop::Failed(e)) = &outcome {
        let failure = Failure {
            name,
            mechanism: X509,
            why: e.message.to_string(),
        };
        refuse(cx.app, cx.client, failure);
    }
    Ok(outcome.is_ok())
}

/// Whether a certificate is a member's of this cluster: it has the server's own O, OU and DC.
fn is_of_member(app: &Commands, shown: &PeerCertificate) -> bool {
    let own = app.control.certificates.get().map(|c| (c.own)());
    own.is_some_and(|own| !own.organization.is_empty() && own.organization == shown.organization)
}

/// The subject of a client's certificate.
pub fn certified(cx: &CommandContext<'_, '_>) -> String {
    let certificate = cx.client.certificate.get();
    certificate.map_or_else(String::new, |c| c.subject.clone())
}

/// Goes on with an exchange; `None` where it has failed.
pub fn go_on(cx: &mut CommandContext<'_, '_>, payload: &[u8]) -> Result<Option<LoginReply>> {
    let pending = cx.client.state.login.exchange.lock().take();
    let (exchange, name, hash, skips_empty) = match pending {
        Some(Pending::Proof {
            exchange,
            name,
            hash,
            skips_empty,
        }) => (exchange, name, hash, skips_empty),
        Some(Pending::Empty) if payload.is_empty() => {
            return Ok(Some(LoginReply {
                done: true,
                payload: String::new(),
            }));
        }
        Some(Pending::Refused(_)) | Some(Pending::Empty) => return Ok(None),
        None => bail!(ProtocolError, "No SASL session state found"),
    };
    let mechanism = hash.mechanism();
    let outcome = match exchange.end(payload) {
        Ok(ScramStep::Proven(answer)) => log_in(cx, &name, mechanism, &[]).map(|()| answer),
        Ok(ScramStep::Refused) => Err(err!(
            AuthenticationFailed,
            "SCRAM authentication failed, storedKey mismatch"
        )
        .into()),
        Err(e) => Err(e.into()),
    };
    match outcome {
        Ok(payload) => {
            if !skips_empty {
                *cx.client.state.login.exchange.lock() = Some(Pending::Empty);
            }
            Ok(Some(LoginReply {
                done: skips_empty,
                payload,
            }))
        }
        Err(Stop::Failed(e)) => {
            let failure = Failure {
                name,
                mechanism,
                why: e.message.to_string(),
            };
            refuse(cx.app, cx.client, failure);
            Ok(None)
        }
        Err(suspended) => Err(suspended),
    }
}

fn refuse(app: &Commands, client: &Client<Connection>, f: Failure) {
    let peer = client.peer.to_string();
    app.security
        .tell_failure(&f.name, &peer, f.mechanism, &f.why);
    let code = Code::AuthenticationFailed.0;
    app.security.audit_login(client, &f.name, f.mechanism, code);
    *client.state.login.exchange.lock() = Some(Pending::Refused(Instant::now() + DELAY));
}

/// The end of a login that failed: waits, without a thread, and answers then. A run again of the
/// same request comes back to here.
pub fn end_refused(cx: &CommandContext<'_, '_>, seen: usize) -> Result<Done> {
    let mut exchange = cx.client.state.login.exchange.lock();
    match *exchange {
        Some(Pending::Refused(until)) if Instant::now() < until => Ok(Done::Await { until, seen }),
        _ => {
            *exchange = None;
            Err(failed().into())
        }
    }
}

/// Whether this request has failed already and only waits to be answered.
pub fn is_refused(cx: &CommandContext<'_, '_>) -> bool {
    let exchange = cx.client.state.login.exchange.lock();
    cx.request.again && matches!(*exchange, Some(Pending::Refused(_)))
}

/// Makes `name` the connection's user, if no restriction of addresses forbids it. `certified`: the roles
/// of the certificate, if it has any.
fn log_in(
    cx: &CommandContext<'_, '_>,
    name: &UserName,
    mechanism: &str,
    certified: &[RoleName],
) -> Result<()> {
    let Some(user) = cx.app.read_user(name, certified)? else {
        return Err(failed().into());
    };
    check_restrictions(cx, name, &user.1)?;
    let login = &cx.client.state.login;
    let before = login.user.swap(Some(Arc::new(user.0)));
    if let Some(before) = before.filter(|b| b.name != *name) {
        tracing::warn!(target: "ACCESS", id = 5626700, user = %name, previous = %before.name,
            "Client has attempted to authenticate as multiple users on the same connection");
    }
    (cx.app.security).audit_login(cx.client, name, mechanism, 0);
    tracing::info!(target: "ACCESS", id = 5286306, user = %name.user, db = %name.db, mechanism,
        remote = %cx.client.peer, "Successfully authenticated");
    Ok(())
}

fn check_restrictions(
    cx: &CommandContext<'_, '_>,
    name: &UserName,
    all: &[auth::restriction::Restrictions],
) -> Result<()> {
    let (client, server) = (cx.client.peer.ip(), cx.client.local.ip());
    if !all.iter().all(|r| r.allow(client, server)) {
        bail!(
            AuthenticationRestrictionUnmet,
            "authentication restrictions of {name} unmet"
        );
    }
    Ok(())
}

impl Commands {
    /// The credential to prove, and whether the user exists: otherwise one that no client can prove.
    fn credential(&self, name: &UserName, hash: Hash) -> Result<(Credential, bool)> {
        // Made for every name, so that an unknown user takes as long as a known one.
        let (secret, text) = (&self.security.secret, name.to_string());
        let unknown = Credential::of_unknown_user(hash, &text, secret, iterations(hash));
        if *name == member_name() {
            let takes_key = self.config.security.cluster_auth.takes_key();
            if let Some(credential) = self.security.of_member(hash).filter(|_| takes_key) {
                return Ok((credential, true));
            }
        } else if let Some(user) = self.security.user(&self.engine, name)?
            && let Some(credential) = Credential::read(user.credentials(), hash)
        {
            return Ok((credential, true));
        }
        Ok((unknown, false))
    }

    /// A user with all privileges, and its restrictions.
    pub(crate) fn read_user(
        &self,
        name: &UserName,
        certified: &[RoleName],
    ) -> Result<Option<(LoggedIn, Vec<auth::restriction::Restrictions>)>> {
        // Taken before the reading: a change meanwhile makes the read user outdated.
        let generation = self.security.generation.load(Ordering::Acquire);
        if *name == member_name() {
            let role = RoleName::new("__system", "local");
            return Ok(Some((
                LoggedIn {
                    name: name.clone(),
                    uid: name.digest(),
                    all_roles: BTreeSet::from([role.clone()]),
                    roles: vec![role],
                    privileges: Privileges::all(),
                    certified: Vec::new(),
                    generation,
                },
                Vec::new(),
            )));
        }
        let (given, own_restrictions) = match certified {
            [] => match self.security.user(self.authority(), name)? {
                Some(user) => (user.roles(), Some(user.restrictions()?)),
                None => return Ok(None),
            },
            roles => (roles.to_vec(), None),
        };
        let ResolvedRoles {
            privileges,
            roles: all_roles,
            mut restrictions,
        } = self.security.resolve(self.authority(), &given)?;
        restrictions.extend(own_restrictions);
        let user = LoggedIn {
            name: name.clone(),
            uid: name.digest(),
            roles: given,
            all_roles,
            privileges,
            certified: certified.to_vec(),
            generation,
        };
        Ok(Some((user, restrictions)))
    }
}

pub(super) fn iterations(hash: Hash) -> u32 {
    let of = ITERATIONS.iter().find(|(h, _)| *h == hash);
    of.map_or(15_000, |(_, n)| *n)
}

/// The iterations for new credentials.
pub fn iterations_of(app: &Commands, hash: Hash) -> u32 {
    let parameter = match hash {
        Hash::Sha1 => "scramIterationCount",
        Hash::Sha256 => "scramSHA256IterationCount",
    };
    let given = u32::try_from(app.parameters.int(parameter)).unwrap_or(0);
    if given > 0 { given } else { iterations(hash) }
}

/// The logged-in user, as users and roles are stored now. Where they have changed it reads them, which
/// an event loop leaves to a worker: `may_block` fails there.
pub fn current(
    app: &Commands,
    client: &Client<Connection>,
    may_block: impl Fn() -> Result<()>,
) -> Result<Option<Arc<LoggedIn>>> {
    let security: &Security = &app.security;
    let login = &client.state.login;
    let Some(user) = login.user.load_full() else {
        return Ok(None);
    };
    if user.generation == security.generation.load(Ordering::Acquire) {
        return Ok(Some(user));
    }
    may_block()?;
    let again = match app.read_user(&user.name, &user.certified) {
        Err(Stop::Failed(e)) if security.is_remote() => {
            // As MongoDB's routers do: what needs no change goes on.
            tracing::warn!(target: "ACCESS", id = 20246, user = %user.name, error = %e,
                "Could not fetch updated user privilege information, continuing to use old information");
            return Ok(Some(user));
        }
        again => again?.map(|(user, _)| Arc::new(user)),
    };
    if again.is_none() {
        tracing::info!(target: "ACCESS", id = 20245, user = %user.name,
            "Removed deleted user from session cache of user information");
    }
    login.user.store(again.clone());
    Ok(again)
}
