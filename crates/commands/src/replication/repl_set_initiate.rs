//! `replSetInitiate`: makes a set of which this server is the first primary. The other members of the
//! configuration are brought in by it, one after the other, as soon as they answer.
//!
//! A server that was given no name of a set is the one member of `rs0` from its start, and hears
//! AlreadyInitialized.

use super::{check_supported, is_me, join_check, set_name};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, ObjectId, Writer};
use errors::{Result, bail, err};
use replication::member::raft_id;
use replication::{Config, Host};
use std::time::{Duration, Instant};

/// How long the first election may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = set_name(cx)?;
    let Some(driver) = cx.app.replica.clone() else {
        bail!(AlreadyInitialized, "already initialized");
    };
    if driver.status().id != 0 {
        bail!(AlreadyInitialized, "already initialized");
    }
    let id = ObjectId::generate();
    let given = cx.args.first.as_doc().unwrap_or(Doc::EMPTY);
    let config = match given.is_empty() {
        true => Config::of_one(&name, own_host(cx)?, id),
        false => Config::parse_for_initiate(with_version(given).as_doc(), id)?,
    };
    let app = cx.app;
    let at = config.check_initiate(&name, |host| is_me(app, host))?;
    check_supported(&config)?;
    let me = config.members.get(at).map(|m| raft_id(m.id));
    let me = me.ok_or_else(|| err!(InternalError, "the own member is not in the configuration"))?;
    join_check::ask(&driver, &config, |m| raft_id(m.id) != me)?;
    driver.found(me, config);
    let elected = driver.wait(Instant::now() + PATIENCE, |s| {
        s.is_primary() && driver.is_open()
    });
    if !elected {
        bail!(
            ExceededTimeLimit,
            "the set was made, and its first election takes long"
        );
    }
    Ok(Done::Reply)
}

/// A first configuration may leave its version out.
fn with_version(config: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    if config.get("version").is_none() {
        w.i32("version", 1);
    }
    w.extend(config);
    w.finish()
}

fn own_host(cx: &CommandContext<'_, '_>) -> Result<Host> {
    Ok(Host::parse(&crate::topology::member::host(cx))?)
}
