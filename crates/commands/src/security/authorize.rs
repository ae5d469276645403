//! Whether a client may run a command: asked before the command does anything.
//!
//! Invariant: with authorization off it costs one look at a flag.

use super::login;
use crate::Commands;
use crate::connection::Connection;
use crate::connection::login::LoggedIn;
use crate::request::CommandContext;
use auth::{Action, Target};
use bson::Doc;
use errors::{Fallible, Result, bail};
use front::specification;
use front::{Args, Check, RequiredAccess, redact};
use service::{Client, Request};

/// What of a command an error shows, in bytes.
const SHOWN_BYTES: usize = 1024;

/// A request that asks whether it may run.
pub struct Asking<'c, 'r> {
    pub app: &'c Commands,
    pub client: &'c Client<Connection>,
    pub request: &'c Request<'r>,
    pub command: &'static str,
    pub needs: &'c RequiredAccess,
    pub args: &'c Args<'r>,
}

/// Fails where the client may not run its command.
#[inline]
pub fn check(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    if !cx.app.security.enabled || matches!(cx.command.needs, RequiredAccess::Nothing) {
        return Ok(());
    }
    let asking = Asking {
        app: cx.app,
        client: cx.client,
        request: cx.request,
        command: cx.command.name,
        needs: &cx.command.needs,
        args: &cx.args,
    };
    check_client(&asking, || cx.op.need_worker())
}

/// Fails if a client may not run the command. `may_block` fails where what has to be read cannot be
/// waited for.
pub fn check_client(asking: &Asking<'_, '_>, may_block: impl Fn() -> Result<()>) -> Result<()> {
    let Some(user) = login::current(asking.app, asking.client, &may_block)? else {
        return check_stranger(asking, may_block);
    };
    let check = Check {
        subject: user.subject(),
        args: asking.args,
        request: Some(asking.request),
    };
    match check.meets(asking.needs)? {
        true => Ok(()),
        false => {
            tracing::info!(target: "ACCESS", id = 20436, command = asking.command, db = asking.args.db,
                user = %user.name, remote = %asking.client.peer, "Checking authorization failed");
            Err(denied(asking.args.db, asking.request.body).into())
        }
    }
}

fn denied(db: &str, body: Doc<'_>) -> errors::Error {
    let mut text = match redact::without_secrets(body) {
        Some(d) => bson::shell::doc(d.as_doc()),
        None => bson::shell::doc(body),
    };
    if text.len() > SHOWN_BYTES {
        let end = (0..=SHOWN_BYTES).rev().find(|i| text.is_char_boundary(*i));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    errors::err!(
        Unauthorized,
        "not authorized on {db} to execute command {text}"
    )
}

/// What may be done from this machine while there is no user and no role: make the first, and what
/// a cluster is put together with.
const EXCEPTIONAL: [&str; 6] = [
    "createUser",
    "createRole",
    "replSetInitiate",
    "replSetReconfig",
    "replSetGetStatus",
    "addShard",
];

/// Without a login: the localhost exception may hold.
fn check_stranger(asking: &Asking<'_, '_>, may_block: impl Fn() -> Result<()>) -> Result<()> {
    let local = match asking.client.peer.ip() {
        Some(ip) => ip.is_loopback(),
        None => true,
    };
    if local && asking.args.db == "admin" && EXCEPTIONAL.contains(&asking.command) {
        may_block()?;
        if asking.app.security.is_exceptional(asking.app.authority())? {
            return Ok(());
        }
    }
    bail!(
        Unauthorized,
        "Command {} requires authentication",
        asking.command
    )
}

/// Fails if the cursor's owner is another user.
pub fn check_owner(cx: &CommandContext<'_, '_>, owner: Option<&str>, id: i64) -> Result<()> {
    if !cx.app.security.enabled || owner == name(cx).as_deref() {
        return Ok(());
    }
    bail!(
        Unauthorized,
        "cursor id {id} was not created by the authenticated user"
    )
}

/// Fails if the client has lost the privileges that the cursor's command needs.
pub fn check_still(cx: &CommandContext<'_, '_>, command: Doc<'_>, id: i64) -> Result<()> {
    if !cx.app.security.enabled {
        return Ok(());
    }
    match cx.client.state.login.user() {
        Some(user) => Ok(check_user_still(&user, command, cx.args.db, id)?),
        None => Err(lost(id).into()),
    }
}

/// Fails if a user may no longer run the command, of `db`, that opened its cursor `id`.
pub fn check_user_still(user: &LoggedIn, command: Doc<'_>, db: &str, id: i64) -> Fallible<()> {
    let Some(known) = command.first().and_then(|e| specification::lookup(e.name)) else {
        return Ok(());
    };
    // A cursor is asked for by its number, by whichever database: what counts is its own.
    let beside = Some(db).filter(|_| !command.contains("$db"));
    let args = Args::parse(known.name, command, beside);
    let met = args.and_then(|args| {
        let check = Check {
            subject: user.subject(),
            args: &args,
            request: None,
        };
        check.meets(&known.needs)
    });
    match met.map_err(|stop| stop.into_error())? {
        true => Ok(()),
        false => Err(lost(id)),
    }
}

fn lost(id: i64) -> errors::Error {
    errors::err!(
        Unauthorized,
        "not authorized for getMore with cursor id {id}"
    )
}

/// The name of the logged-in user.
pub fn name(cx: &CommandContext<'_, '_>) -> Option<String> {
    if !cx.app.security.enabled {
        return None;
    }
    cx.client.state.login.user().map(|u| u.name.to_string())
}

/// Whether the client may do this as well, beyond what its command needs.
pub fn may(cx: &CommandContext<'_, '_>, action: Action, target: Target<'_>) -> bool {
    !cx.app.security.enabled
        || (cx.client.state.login.user()).is_some_and(|u| u.privileges.allows(action, target))
}

/// Whether the client may use what is for members of the cluster; always true without access control.
pub fn may_as_member(cx: &CommandContext<'_, '_>) -> bool {
    may(cx, Action::Internal, Target::Cluster)
}

/// Whether the client is a member of the cluster.
pub fn is_member(client: &Client<Connection>) -> bool {
    let user = client.state.login.user();
    user.is_some_and(|u| u.privileges.allows(Action::Internal, Target::Cluster))
}

/// Whether the client may do anything with a collection.
pub fn may_any(cx: &CommandContext<'_, '_>, db: &str, collection: &str) -> bool {
    let target = Target::Collection(db, collection);
    !cx.app.security.enabled
        || (cx.client.state.login.user()).is_some_and(|u| !u.privileges.on(target).is_empty())
}

/// Whether the client may do anything with a database or a collection of it.
pub fn may_anything(cx: &CommandContext<'_, '_>, db: &str) -> bool {
    !cx.app.security.enabled
        || (cx.client.state.login.user()).is_some_and(|u| u.privileges.touches(db))
}
