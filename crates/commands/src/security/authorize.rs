//! Whether a client may run a command: asked before the command does anything.
//!
//! Invariant: with authorization off it costs one look at a flag.

use super::login::{self, LoggedIn};
use super::needs::RequiredAccess;
use super::redact;
use crate::request::CommandContext;
use crate::request::args::Args;
use auth::{Action, Target};
use bson::Doc;
use errors::{Result, bail};
use service::Request;

/// What of a command an error shows, in bytes.
const SHOWN_BYTES: usize = 1024;

/// A command that asks whether it may run.
pub struct Check<'c, 'r> {
    pub user: &'c LoggedIn,
    pub args: &'c Args<'r>,
    /// `None` for a command inside another (`explain`).
    pub request: Option<&'c Request<'r>>,
}

impl<'r> Check<'_, 'r> {
    pub fn may(&self, action: Action, target: Target<'_>) -> bool {
        self.user.privileges.allows(action, target)
    }

    pub fn may_all(&self, actions: &[Action], target: Target<'_>) -> bool {
        actions.iter().all(|a| self.may(*a, target))
    }

    /// The collection that the command's first value names; its database where it names none.
    pub fn target(&self) -> Target<'r> {
        match self.args.first.as_str() {
            Some(collection) if !collection.is_empty() => {
                Target::Collection(self.args.db, collection)
            }
            _ => Target::Database(self.args.db),
        }
    }

    /// A field's documents, from the body or from a sequence beside it.
    pub fn documents(&self, field: &str) -> Vec<Doc<'r>> {
        if let Some(docs) = self.request.and_then(|r| r.sequence(field)) {
            return docs.collect();
        }
        let list = self.args.field(field).and_then(|v| v.as_array());
        (list.iter().flat_map(|l| l.values()))
            .filter_map(|v| v.as_doc())
            .collect()
    }

    pub fn flag(&self, field: &str) -> bool {
        self.args.field(field).is_some_and(|v| v.truthy())
    }

    /// Whether the user may do what the table says that the command needs.
    pub fn meets(&self, needs: &RequiredAccess) -> Result<bool> {
        Ok(match needs {
            RequiredAccess::Nothing | RequiredAccess::Login => true,
            RequiredAccess::Cluster(actions) => self.may_all(actions, Target::Cluster),
            RequiredAccess::Database(actions) => {
                self.may_all(actions, Target::Database(self.args.db))
            }
            RequiredAccess::Collection(actions) => self.may_all(actions, self.target()),
            RequiredAccess::Own(decide) => decide(self)?,
        })
    }
}

/// Fails where the client may not run its command.
#[inline]
pub fn check(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    if !cx.app.security.enabled || matches!(cx.command.needs, RequiredAccess::Nothing) {
        return Ok(());
    }
    check_client(cx)
}

fn check_client(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    let Some(user) = login::current(cx)? else {
        return check_stranger(cx);
    };
    let check = Check {
        user: &user,
        args: &cx.args,
        request: Some(cx.request),
    };
    match check.meets(&cx.command.needs)? {
        true => Ok(()),
        false => {
            tracing::info!(target: "ACCESS", id = 20436, command = cx.command.name, db = cx.args.db,
                user = %user.name, remote = %cx.client.peer, "Checking authorization failed");
            Err(denied(cx.args.db, cx.request.body).into())
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

/// Nobody is logged in: the first user may be made from this machine.
fn check_stranger(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    let local = match cx.client.peer.ip() {
        Some(ip) => ip.is_loopback(),
        None => true,
    };
    let makes_the_first =
        matches!(cx.command.name, "createUser" | "createRole") && cx.args.db == "admin" && local;
    if makes_the_first {
        cx.op.need_worker()?;
        if cx.app.security.is_exceptional(&cx.app.engine)? {
            return Ok(());
        }
    }
    bail!(
        Unauthorized,
        "Command {} requires authentication",
        cx.command.name
    )
}

/// Fails unless whoever made a cursor is who asks for it.
pub fn check_owner(cx: &CommandContext<'_, '_>, owner: Option<&str>, id: i64) -> Result<()> {
    if !cx.app.security.enabled || owner == name(cx).as_deref() {
        return Ok(());
    }
    bail!(
        Unauthorized,
        "cursor id {id} was not created by the authenticated user"
    )
}

/// The name of who is logged in.
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
