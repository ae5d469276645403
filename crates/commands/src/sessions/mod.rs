//! Commands on logical sessions, and on transactions.

pub mod end_sessions;
pub mod kill_sessions;
pub mod start_session;
pub mod transactions;

use crate::request::CommandContext;
use crate::request::session_of::own_uid;
use crate::security::authorize;
use auth::{Action, Target};
use bson::{Doc, Elem, Val};
use errors::{Result, bail, operation};
use front::args::digest;
use front::idl;
use session::Lsid;

/// The sessions of an array of `{id: <uuid>}`, which are the client's own unless they say whose.
fn ids(cx: &CommandContext<'_, '_>, command: &'static str, v: Val<'_>) -> Result<Vec<Lsid>> {
    let Some(list) = v.as_array() else {
        if v.is_nullish() {
            return Err(idl::missing(command, command));
        }
        return Err(idl::mismatch(command, command, v, &["array"]));
    };
    let mut all = Vec::new();
    for (i, v) in list.values().enumerate() {
        operation::step()?;
        let Some(d) = v.as_doc() else {
            if v.is_nullish() {
                continue;
            }
            bail!(
                TypeMismatch,
                "BSON field '{command}.{command}.{i}' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        all.extend(id(cx, command, d)?);
    }
    Ok(all)
}

fn id(cx: &CommandContext<'_, '_>, command: &str, d: Doc<'_>) -> Result<Option<Lsid>> {
    let own = own_uid(cx);
    let (mut id, mut uid) = (None, own);
    for e in idl::unique(command, d)? {
        let e: Elem<'_> = e;
        match e.name {
            "id" => id = idl::uuid(command, e)?,
            "uid" => uid = digest(e.val).unwrap_or(own),
            name => return Err(idl::unknown(command, name)),
        }
    }
    let id = idl::required(command, "id", id)?;
    if uid != own && !authorize::may(cx, Action::KillAnySession, Target::Cluster) {
        bail!(
            Unauthorized,
            "Unauthorized to set user digest in LogicalSessionId"
        );
    }
    Ok(Some(Lsid { id, uid }))
}
