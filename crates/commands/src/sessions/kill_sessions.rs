//! `killSessions`, `killAllSessions`, `killAllSessionsByPattern`: ends sessions with their cursors
//! and running operations.

use super::ids;
use crate::request::session_of::{append_session, own_uid};
use crate::request::{CommandContext, Done};
use auth::UserName;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Fallible, Result, operation};
use front::args::digest;
use front::idl;
use session::Lsid;
use std::collections::HashSet;

/// Which sessions a command ends.
#[derive(Debug, Default)]
pub struct KilledSessions {
    ids: Vec<Lsid>,
    /// All of these users.
    owners: Vec<[u8; 32]>,
    /// Those of all users.
    all: bool,
}

impl KilledSessions {
    /// The same as a command for the members of a cluster; `None`: they have nothing to end.
    pub fn command(&self) -> Option<DocBuf> {
        if !self.all && self.ids.is_empty() && self.owners.is_empty() {
            // An empty list would end them all.
            return None;
        }
        let mut w = Writer::new();
        w.open_array("killAllSessionsByPattern");
        if !self.all {
            for id in &self.ids {
                w.open_doc("");
                append_session(&mut w, "lsid", id);
                w.close();
            }
            for owner in &self.owners {
                w.open_doc("").binary("uid", 0, owner).close();
            }
        }
        w.close();
        Some(w.finish())
    }

    /// By the arguments of whichever of the three commands it is.
    pub fn of(cx: &CommandContext<'_, '_>) -> Result<KilledSessions> {
        match cx.command.name {
            "killSessions" => named(cx),
            "killAllSessions" => of_users(cx),
            _ => by_pattern(cx),
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let killed = KilledSessions::of(cx)?;
    kill(cx, &killed)?;
    Ok(Done::Reply)
}

fn named(cx: &CommandContext<'_, '_>) -> Result<KilledSessions> {
    let ids = ids(cx, "killSessions", cx.args.first)?;
    let owners = match ids.is_empty() {
        true => vec![own_uid(cx)],
        false => Vec::new(),
    };
    Ok(KilledSessions {
        ids,
        owners,
        all: false,
    })
}

fn of_users(cx: &CommandContext<'_, '_>) -> Result<KilledSessions> {
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
    Ok(KilledSessions {
        ids: Vec::new(),
        owners,
        all: users.is_empty(),
    })
}

fn by_pattern(cx: &CommandContext<'_, '_>) -> Result<KilledSessions> {
    cx.args.no_fields()?;
    let patterns = patterns("killAllSessionsByPattern", cx.args.first)?;
    let mut killed = KilledSessions {
        all: patterns.is_empty(),
        ..KilledSessions::default()
    };
    for (i, v) in patterns.values().enumerate() {
        operation::step()?;
        let within = format!("killAllSessionsByPattern.killAllSessionsByPattern.{i}");
        for e in idl::unique(&within, v.as_doc().unwrap_or(Doc::EMPTY))? {
            match e.name {
                "lsid" => {
                    let d = idl::doc(&within, e)?.unwrap_or(Doc::EMPTY);
                    killed.ids.extend(super::id(cx, &within, d)?);
                }
                "uid" => killed.owners.extend(digest(e.val)),
                "users" => {
                    let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                    let named = |v| UserName::parse(v, "").map(|n| n.digest());
                    let owners = list.values().map(named).collect::<Fallible<Vec<_>>>()?;
                    killed.owners.extend(owners);
                }
                "roles" => {}
                name => return Err(idl::unknown(&within, name)),
            }
        }
    }
    Ok(killed)
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

/// Ends them in this process, but not the one that the command itself runs in, unless that is named.
pub fn kill(cx: &CommandContext<'_, '_>, killed: &KilledSessions) -> Result<()> {
    let mut ids = killed.ids.clone();
    if killed.all || !killed.owners.is_empty() {
        let own = cx.args.generic.lsid;
        let owners: HashSet<[u8; 32]> = killed.owners.iter().copied().collect();
        let is_meant = |id: &Lsid| killed.all || owners.contains(&id.uid);
        let known = cx.app.sessions.list().into_iter().map(|(id, _)| id);
        ids.extend(known.filter(|id| Some(*id) != own && is_meant(id)));
    }
    for id in &ids {
        operation::step()?;
        cx.app.operations.kill_session(*id);
        cx.app.forget_session(id);
    }
    Ok(())
}
