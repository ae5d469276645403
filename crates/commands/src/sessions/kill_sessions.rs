//! `killSessions`, `killAllSessions`, `killAllSessionsByPattern`: ends sessions with their cursors
//! and running operations.

use super::ids;
use crate::request::session_of::own_uid;
use crate::request::{CommandContext, Done};
use auth::UserName;
use bson::{Doc, Val};
use errors::{Fallible, Result, operation};
use front::args::digest;
use front::idl;
use session::Lsid;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ids = ids(cx, "killSessions", cx.args.first)?;
    if ids.is_empty() {
        let own = own_uid(cx);
        kill(cx, &those(cx, |l| l.uid == own))?;
    } else {
        kill(cx, &ids)?;
    }
    Ok(Done::Reply)
}

pub fn run_all(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let users = patterns("killAllSessions", cx.args.first)?;
    let mut owners = Vec::new();
    for (i, v) in users.values().enumerate() {
        operation::step()?;
        let within = format!("killAllSessions.killAllSessions.{i}");
        let (mut user, mut db) = (None, None);
        let Some(d) = v.as_doc() else { continue };
        for e in idl::unique(&within, d)? {
            match e.name {
                "user" => user = idl::string(&within, e)?,
                "db" => db = idl::string(&within, e)?,
                name => return Err(idl::unknown(&within, name)),
            }
        }
        let user = idl::required(&within, "user", user)?;
        let db = idl::required(&within, "db", db)?;
        owners.push(UserName::new(user, db).digest());
    }
    let named = |l: &Lsid| users.is_empty() || owners.contains(&l.uid);
    kill(cx, &those(cx, named))?;
    Ok(Done::Reply)
}

pub fn run_by_pattern(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let patterns = patterns("killAllSessionsByPattern", cx.args.first)?;
    let mut which = if patterns.is_empty() {
        those(cx, |_| true)
    } else {
        Vec::new()
    };
    for (i, v) in patterns.values().enumerate() {
        operation::step()?;
        let within = format!("killAllSessionsByPattern.killAllSessionsByPattern.{i}");
        for e in idl::unique(&within, v.as_doc().unwrap_or(Doc::EMPTY))? {
            match e.name {
                "lsid" => {
                    let d = idl::doc(&within, e)?.unwrap_or(Doc::EMPTY);
                    which.extend(super::id(cx, &within, d)?);
                }
                "uid" => {
                    let uid = digest(e.val);
                    which.extend(those(cx, |l| Some(l.uid) == uid));
                }
                "users" => {
                    let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                    let named = |v| UserName::parse(v, "").map(|n| n.digest());
                    let owners = list.values().map(named).collect::<Fallible<Vec<_>>>()?;
                    which.extend(those(cx, |l| owners.contains(&l.uid)));
                }
                "roles" => {}
                name => return Err(idl::unknown(&within, name)),
            }
        }
    }
    kill(cx, &which)?;
    Ok(Done::Reply)
}

fn patterns<'a>(command: &'static str, v: Val<'a>) -> Result<Doc<'a>> {
    let list = match v.as_array() {
        Some(a) => a,
        None if v.is_nullish() => return Err(idl::missing(command, command)),
        None => return Err(idl::mismatch(command, command, v, &["array"])),
    };
    match list
        .values()
        .enumerate()
        .find(|(_, v)| v.as_doc().is_none() && !v.is_nullish())
    {
        Some((i, v)) => Err(idl::mismatch(
            command,
            &format!("{command}.{i}"),
            v,
            &["object"],
        )),
        None => Ok(list),
    }
}

/// The sessions of a kind, without the one that the command itself runs in.
fn those(cx: &CommandContext<'_, '_>, kind: impl Fn(&Lsid) -> bool) -> Vec<Lsid> {
    let own = cx.args.generic.lsid;
    cx.app
        .sessions
        .list()
        .into_iter()
        .map(|(id, _)| id)
        .filter(|id| Some(*id) != own && kind(id))
        .collect()
}

fn kill(cx: &CommandContext<'_, '_>, ids: &[Lsid]) -> Result<()> {
    for id in ids {
        operation::step()?;
        cx.app.operations.kill_session(*id);
        cx.app.forget_session(id);
    }
    Ok(())
}
