//! `_pandoHome`: which shard is a database's primary, and that routers wait while it changes.
//!
//! ```text
//! {_pandoHome: 1, home: {_id: db, version, primary}}       only what is newer is learned
//! {_pandoHome: 1, fence: db, version, by: <string>}        routers wait; the reply comes when all writes of before are done
//! {_pandoHome: 1, lift: db, by: <string>}
//! ```

use super::ownerships::DRAIN;
use super::{HOMES, document, put, text};
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use sharding::{DbVersion, Home};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    if cx.args.field("home").is_some() {
        let told = Home::parse(document(cx, "home")?)?;
        let known = ownerships.home(&told.db);
        if let Some(learned) = Home::learn(known.as_deref(), &told) {
            put(cx, HOMES, &learned.db, &learned.to_doc())?;
        }
        return Ok(Done::Reply);
    }
    let by = text(cx, "by")?;
    if let Some(db) = cx.args.field("lift").and_then(|v| v.as_str()) {
        if let Some(known) = ownerships.home(db)
            && known.fence.as_deref() == Some(by)
        {
            let open = Home {
                fence: None,
                ..(*known).clone()
            };
            put(cx, HOMES, db, &open.to_doc())?;
        }
        return Ok(Done::Reply);
    }
    let db = text(cx, "fence")?;
    let version = DbVersion::parse(document(cx, "version")?)?;
    if let Some(known) = ownerships.home(db)
        && (known.version != version || !known.primary)
    {
        bail!(StaleDbVersion, "{db} has another primary since");
    }
    let fenced = Home {
        db: db.into(),
        version,
        primary: true,
        fence: Some(by.into()),
    };
    put(cx, HOMES, db, &fenced.to_doc())?;
    let prepared = &cx.app.engine.prepared;
    let here = |ns: &str| ns.split_once('.').is_some_and(|(of, _)| of == db);
    let ended = || prepared.wait(DRAIN, |_, t| t.collections.iter().any(|c| here(c)));
    if !(ownerships.drain(db) && ended()) {
        let open = Home {
            fence: None,
            ..fenced
        };
        put(cx, HOMES, db, &open.to_doc())?;
        bail!(
            LockTimeout,
            "writes to {db} have been open for too long for its primary to be changed"
        );
    }
    Ok(Done::Reply)
}
