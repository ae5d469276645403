//! `_pandoHome`: which shard is a database's primary, and that routers wait while it changes.
//!
//! ```text
//! {_pandoHome: 1, home: {_id: db, version, primary}, turn?}     only what is newer is learned
//! {_pandoHome: 1, fence: db, version, by: <string>, turn, drain?: <milliseconds>}
//!                                                               routers wait; the reply comes when all writes of before are done
//! {_pandoHome: 1, lift: db, by: <string>, turn?}
//! {_pandoHome: 1, forgetViews: db, turn}                        where the shard is not the primary
//! ```
//! What an earlier holder of the database's lock sends is refused.

use super::{DATABASE_PRIMARIES, document, drain_time, put, text};
use crate::ddl::changed;
use crate::request::{CommandContext, Done};
use bson::Val;
use catalog::Collection;
use errors::{Code, Result, bail};
use front::idl;
use sharding::{DatabasePrimary, DbVersion};
use std::sync::Arc;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    // The known state may not be on a majority yet.
    cx.after_commit = true;
    if cx.args.field("home").is_some() {
        let told = DatabasePrimary::parse(document(cx, "home")?)?;
        let known = ownerships.database_primary(&told.db);
        if let Some(learned) = DatabasePrimary::learn_in_turn(known.as_deref(), &told, turn(cx))? {
            store(cx, &learned)?;
        }
        return Ok(Done::Reply);
    }
    if let Some(db) = cx.args.field("forgetViews").and_then(Val::as_str) {
        return forget_views(cx, db);
    }
    if let Some(db) = cx.args.field("lift").and_then(Val::as_str) {
        let by = text(cx, "by")?;
        if let Some(known) = ownerships.database_primary(db)
            && let Some(open) = known.lifted(by, turn(cx))?
        {
            store(cx, &open)?;
        }
        return Ok(Done::Reply);
    }
    fence(cx)
}

fn store(cx: &mut CommandContext<'_, '_>, primary: &DatabasePrimary) -> Result<()> {
    put(cx, DATABASE_PRIMARIES, &primary.db, &primary.to_doc())
}

/// The turn of the lock of the sender, if it names one.
fn turn(cx: &CommandContext<'_, '_>) -> Option<u64> {
    let turn = cx.args.field("turn").and_then(Val::to_i64_exact);
    turn.map(|turn| turn as u64)
}

fn needed_turn(cx: &CommandContext<'_, '_>) -> Result<u64> {
    idl::required(cx.command.name, "turn", turn(cx))
}

fn fence(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (db, by, turn) = (text(cx, "fence")?, text(cx, "by")?, needed_turn(cx)?);
    let version = DbVersion::parse(document(cx, "version")?)?;
    let ownerships = cx.app.ownerships.clone();
    let known = ownerships.database_primary(db);
    let fenced = DatabasePrimary::fenced(known.as_deref(), (db, version), by, turn)?;
    store(cx, &fenced)?;
    let prepared = &cx.app.engine.prepared;
    let here = |ns: &str| ns.split_once('.').is_some_and(|(of, _)| of == db);
    let patience = drain_time(cx);
    let ended = || prepared.wait(patience, |_, t| t.collections.iter().any(|c| here(c)));
    if !(ownerships.drain(db, patience) && ended()) {
        store(cx, &fenced.without_fence())?;
        bail!(
            LockTimeout,
            "writes to {db} have been open for too long for its primary to be changed"
        );
    }
    Ok(Done::Reply)
}

/// The views here have no owner: those of the database are on its primary shard.
fn forget_views(cx: &mut CommandContext<'_, '_>, db: &str) -> Result<Done> {
    let turn = needed_turn(cx)?;
    let known = cx.app.ownerships.database_primary(db);
    let heard = DatabasePrimary::cleared(known.as_deref(), db, turn)?;
    if known.as_deref() != Some(&heard) {
        store(cx, &heard)?;
    }
    let catalog = &cx.app.engine.catalog;
    let now = catalog.snapshot();
    // Measurements are where their buckets are.
    let is_own = |c: &&Arc<Collection>| c.is_view() && c.measurements().is_none();
    for view in now.of_db(db).filter(is_own) {
        match catalog.drop_unseen(&view.ns, &|| cx.op.check()) {
            Err(e) if !e.is(Code::NamespaceNotFound) => return Err(e),
            _ => changed(cx),
        }
    }
    Ok(Done::Reply)
}
