//! `$out` and `$merge` where documents and target are not all on one shard: the pipeline before
//! them gives a cursor, whose batches go to the shards of the target.
//!
//! A shard writes a batch by a pipeline of its own: `[{$documents: …}, {$merge: …}]`, which carries
//! the version of the target. `$out` fills a collection beside its target, and the shard replaces
//! the target by that one at once.
//!
//! Where the documents are on several shards, and the target as a whole is on one of these, that shard
//! writes its own while the router hands on those of the others: they do not come here.
//!
//! ```text
//! cursors of all documents ── the target's shard: [the same stages, {$merge}], with the versions of
//!        │                    before    └── refused as stale: its cursor is read in its place
//!        └── the other shards' documents, batch by batch ── the target's shard
//! ```
//! Where the target is sharded, each shard writes what of its documents belongs to it, and gives the
//! rest, batch by batch; the router hands those on. A batch is told what the router believes of the
//! target. A shard that knows better writes nothing of that batch: all of it comes here.
//!
//! The cursors are opened first, so what they show is of the versions that the writing shard is told:
//! it has the same documents as its cursor, or does nothing.
//!
//! Invariant: a document is written by the shard that owns its place. A batch that a shard has
//! written is not sent again, whatever the next one says. The target of `$out` is replaced where it is:
//! one that has moved while the documents were gathered is left as it is, and they are gathered anew.

use crate::databases::make_database;
use crate::reads::aggregate;
use crate::reads::aggregate::{Apart, Written};
use crate::reads::cluster_stages::naming;
use crate::reads::cursors::get_more;
use crate::reads::parted_merge::PartedMerge;
use crate::request::{RoutedCommand, finish, own};
use crate::state::{Router, cursors};
use crate::targeting::pipeline::stage_of;
use crate::targeting::shard_at;
use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::chunks::lock;
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::sound;
use cluster_view::routing::{SentCommand, received};
use cluster_view::upstream::with_fields;
use cluster_view::{Failure, Outcome, write_concern};
use errors::err;
use mover::PendingMoves;
use service::Request;
use sharding::RoutingTable;
use std::collections::VecDeque;
use std::sync::Arc;

/// Documents of one batch, in bytes: below the limit of a message with room for what `$literal`
/// takes.
const BATCH_BYTES: usize = 8 << 20;
const BATCH_DOCUMENTS: usize = 10_000;
/// How often the documents for a target are gathered that moves meanwhile.
const MOST_ATTEMPTS: u32 = 5;
/// The most write concern errors kept, over all batches.
const MOST_CONCERNS: usize = 100;

/// Options of the client's command that the writing part heeds too.
const OPTIONS: [&str; 6] = [
    "collation",
    "let",
    "bypassDocumentValidation",
    "writeConcern",
    "maxTimeMS",
    "comment",
];

pub(crate) fn run(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
    written: &Written,
) -> Outcome<DocBuf> {
    let all: Vec<Val<'_>> = stages.values().collect();
    let Some((last, before)) = all.split_last() else {
        return Err(err!(InternalError, "a pipeline that writes has a last stage").into());
    };
    for _ in 0..MOST_ATTEMPTS {
        let mut concerns = Vec::new();
        if once(router, command, before, *last, written, &mut concerns)? {
            let mut w = Writer::new();
            w.open_doc("cursor").open_array("firstBatch").close();
            w.i64("id", 0).str("ns", &command.cursor_ns()).close();
            write_concern::append(&mut w, &concerns);
            return Ok(finish(w, &[]));
        }
    }
    Err(err!(
        ConflictingOperationInProgress,
        "{} was moved each time that it was to be replaced",
        written.ns()
    )
    .into())
}

/// Replies that say that a write concern was not fulfilled.
pub(crate) type Concerns = Vec<DocBuf>;

pub(crate) fn note(concerns: &mut Concerns, reply: DocBuf, shard: &str) {
    let reply = write_concern::at_shard(reply, shard);
    if reply.as_doc().contains("writeConcernError") && concerns.len() < MOST_CONCERNS {
        concerns.push(reply);
    }
}

/// Whether all was written; if not, the target is elsewhere by now.
fn once(
    router: &Router,
    command: &RoutedCommand<'_>,
    before: &[Val<'_>],
    last: Val<'_>,
    written: &Written,
    concerns: &mut Concerns,
) -> Outcome<bool> {
    let database_primary = make_database(&router.cluster, &written.db, None)?;
    let placement = router.cluster.refresh(&written.ns())?;
    let target = match (written.replaces, placement) {
        (true, Some(Placement::Sharded(_))) => {
            return Err(err!(
                28769,
                "namespace '{}' is sharded so it can't be used for $out'",
                written.ns()
            )
            .into());
        }
        (true, Some(Placement::Unsharded(unsharded))) => Target::beside(written, unsharded.shard),
        (true, None) => Target::beside(written, database_primary),
        (false, placement) => Target::merged(written, last, placement)?,
    };
    // An empty write finds what is wrong with the stage before anything is read.
    let mut outcome = target.write(router, command, Vec::new(), concerns);
    if outcome.is_ok() {
        outcome = fill(router, command, before, &target, concerns);
    }
    let Target::Beside {
        name,
        database_primary,
        ..
    } = &target
    else {
        return outcome.map(|()| true);
    };
    let mut replaced = || {
        replace(
            router,
            command,
            name,
            database_primary,
            last,
            written,
            concerns,
        )
    };
    let replaced = outcome.and_then(|()| replaced());
    let drop = doc! {"drop": name};
    let _ = router
        .cluster
        .on_shard(database_primary, &written.db, drop.as_doc());
    if let (Ok(false), Some(now)) = (&replaced, router.cluster.database(&written.db)?) {
        // A move of the database has taken it along.
        let _ = router.cluster.on_shard(&now, &written.db, drop.as_doc());
    }
    replaced
}

/// Runs the stages before the one that writes, and hands on what they give.
fn fill(
    router: &Router,
    command: &RoutedCommand<'_>,
    before: &[Val<'_>],
    target: &Target,
    concerns: &mut Concerns,
) -> Outcome<()> {
    let mut w = command.without(&["pipeline", "cursor", "writeConcern"]);
    w.open_array("pipeline");
    before.iter().for_each(|s| {
        w.push(*s);
    });
    w.close().value("cursor", doc! {"batchSize": 1000});
    let body = w.finish();
    if let Some(parts) = PartedMerge::open(router, command, &body, target)? {
        return parts.run(router, command, target, concerns);
    }
    let Some((apart, shard, under_way)) = begin_beside(router, command, &body, before, target)?
    else {
        let request = Request::own(body.as_doc());
        let reads = RoutedCommand::of(&request)?.by(command.user.clone());
        let reply = sound(aggregate::run(router, &reads)?)?;
        return hand_on(router, command, reply, target, concerns);
    };
    let handed_on = hand_on(router, command, apart.others, target, concerns);
    // It is waited for whatever became of the others: what it does is part of the command.
    let reply = received(under_way).and_then(|reply| router.cluster.judge(&shard, reply));
    if let (Ok(()), Err(Failure::Stale(_))) = (&handed_on, &reply) {
        return hand_on(router, command, apart.of_one, target, concerns);
    }
    let ns = command.namespace()?;
    cursors::end(router, &ns, cluster_view::reply::cursor_id(&apart.of_one));
    handed_on?;
    note(concerns, sound(reply?)?, &shard);
    Ok(())
}

/// Has the shard where the target is as a whole write its own documents, where others have some too.
/// `body`: the aggregate that reads them.
fn begin_beside(
    router: &Router,
    command: &RoutedCommand<'_>,
    body: &DocBuf,
    before: &[Val<'_>],
    target: &Target,
) -> Outcome<Option<(Apart, Arc<str>, SentCommand)>> {
    let Some((shard, stage)) = target.whole_on() else {
        return Ok(None);
    };
    let request = Request::own(body.as_doc());
    let Some(apart) = aggregate::apart(router, &RoutedCommand::of(&request)?, &shard)? else {
        return Ok(None);
    };
    let mut w = command.without(&["pipeline", "cursor"]);
    w.open_array("pipeline");
    before.iter().for_each(|s| {
        w.push(*s);
    });
    w.push(stage.as_doc().as_val());
    w.close().value("cursor", doc! {});
    if let Target::Itself { ns, unsharded, .. } = target
        && let Some(unsharded) = unsharded
    {
        let placement = Placement::Unsharded(unsharded.clone());
        let told = router.cluster.target_of(ns, &placement, &shard);
        w.doc("writesTo", told.as_doc());
    }
    let (body, placement) = (naming(w.finish(), &shard), &apart.placement);
    let message = router
        .cluster
        .versioned(placement, &shard, body.as_doc(), &[]);
    let under_way = router.cluster.begin(&shard, message);
    Ok(Some((apart, shard, under_way)))
}

/// Writes all that a cursor gives.
fn hand_on(
    router: &Router,
    command: &RoutedCommand<'_>,
    mut reply: DocBuf,
    target: &Target,
    concerns: &mut Concerns,
) -> Outcome<()> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        if let Err(e) = errors::operation::ask() {
            let id = cluster_view::reply::cursor_id(&reply);
            cursors::end(router, &command.cursor_ns(), id);
            return Err(e.into());
        }
        for d in cluster_view::reply::batch_of(&reply) {
            bytes += d.len();
            batch.push(d.to_buf());
            if bytes > BATCH_BYTES || batch.len() >= BATCH_DOCUMENTS {
                target.write(router, command, std::mem::take(&mut batch), concerns)?;
                bytes = 0;
            }
        }
        let id = cluster_view::reply::cursor_id(&reply);
        if id == 0 {
            break;
        }
        let ns = command.cursor_ns();
        let collection = ns.split_once('.').map_or("", |(_, c)| c);
        let more = doc! {"getMore": id, "collection": collection, "$db": command.db};
        let more = with_fields(more.as_doc(), command.session_fields().as_doc());
        reply = own(router, &more, get_more)?;
    }
    match batch.is_empty() {
        true => Ok(()),
        false => target.write(router, command, batch, concerns),
    }
}

pub(crate) enum Target {
    /// A collection that will replace the target of `$out`.
    Beside {
        db: String,
        name: String,
        database_primary: Arc<str>,
    },
    /// The target of `$merge` itself.
    Itself {
        ns: String,
        db: String,
        stage: DocBuf,
        /// Where it is, if it is not sharded.
        unsharded: Option<Unsharded>,
    },
}

impl Target {
    fn beside(written: &Written, database_primary: Arc<str>) -> Target {
        Target::Beside {
            db: written.db.clone(),
            name: format!("tmp.agg_out.{}", ObjectId::generate()),
            database_primary,
        }
    }

    /// Over a sharded collection documents are found by `_id` and shard key, where the stage does
    /// not say by what.
    fn merged(written: &Written, last: Val<'_>, placement: Option<Placement>) -> Outcome<Target> {
        let spec = stage_of(last).map_or(Val::NULL, |s| s.1);
        let given = spec.as_doc().unwrap_or(Doc::EMPTY);
        let mut w = Writer::new();
        w.open_doc("$merge");
        w.value("into", doc! {"db": &written.db, "coll": &written.coll});
        for e in given.iter().filter(|e| e.name != "into") {
            w.val(e.name, e.val);
        }
        let unsharded = match &placement {
            Some(Placement::Unsharded(unsharded)) => Some(unsharded.clone()),
            _ => None,
        };
        if let Some(Placement::Sharded(table)) = &placement {
            let key: Vec<&str> = table.key().names().collect();
            match given.get("on") {
                None => {
                    w.open_array("on").value("", "_id");
                    key.iter().filter(|f| **f != "_id").for_each(|f| {
                        w.push_value(*f);
                    });
                    w.close();
                }
                Some(on) => check_on(on, &key)?,
            }
        }
        w.close();
        Ok(Target::Itself {
            ns: written.ns(),
            db: written.db.clone(),
            stage: w.finish(),
            unsharded,
        })
    }

    /// The namespace and the stage where it is sharded.
    pub fn sharded(&self) -> Option<(&str, &DocBuf)> {
        match self {
            Target::Itself {
                ns,
                stage,
                unsharded: None,
                ..
            } => Some((ns, stage)),
            _ => None,
        }
    }

    /// The shard that it is on as a whole, and the stage by which that writes its own documents.
    fn whole_on(&self) -> Option<(Arc<str>, DocBuf)> {
        match self {
            Target::Itself {
                stage, unsharded, ..
            } => Some((unsharded.as_ref()?.shard.clone(), stage.clone())),
            Target::Beside {
                db,
                name,
                database_primary,
            } => {
                let into = doc! {"db": db, "coll": name};
                let inserts = doc! {"into": into, "on": "_id", "whenMatched": "fail"};
                Some((database_primary.clone(), doc! {"$merge": inserts}))
            }
        }
    }

    pub fn write(
        &self,
        router: &Router,
        command: &RoutedCommand<'_>,
        docs: Vec<DocBuf>,
        concerns: &mut Concerns,
    ) -> Outcome<()> {
        match self {
            Target::Beside {
                db,
                name,
                database_primary,
            } => {
                let mut w = Writer::new();
                if docs.is_empty() {
                    w.str("create", name);
                } else {
                    w.str("insert", name).open_array("documents");
                    docs.iter().for_each(|d| {
                        w.push(d.as_doc().as_val());
                    });
                    w.close();
                }
                let reply = router
                    .cluster
                    .on_shard(database_primary, db, w.finish().as_doc())?;
                match reply.get("writeErrors") {
                    Some(errors) => Err(first_error(errors)),
                    None => Ok(()),
                }
            }
            Target::Itself { ns, db, stage, .. } => {
                merge(router, command, (ns, db), stage, docs, concerns)
            }
        }
    }
}

fn first_error(errors: Val<'_>) -> Failure {
    let first = errors.as_array().and_then(|a| a.values().next()?.as_doc());
    let first = first.unwrap_or(Doc::EMPTY);
    let code = first.get("code").and_then(Val::to_i64_exact).unwrap_or(8);
    let says = first.get("errmsg").and_then(Val::as_str).unwrap_or("");
    let code = i32::try_from(code).unwrap_or(8);
    Failure::Client(errors::Error::coded(
        code,
        format!("PlanExecutor error during aggregation :: caused by :: {says}"),
    ))
}

/// Fails where documents of one key could lie on several shards.
fn check_on(on: Val<'_>, key: &[&str]) -> Outcome<()> {
    let given: Vec<&str> = match (on.as_str(), on.as_array()) {
        (Some(one), _) => vec![one],
        (_, Some(several)) => several.values().filter_map(Val::as_str).collect(),
        // The shard reports what is wrong with it.
        _ => return Ok(()),
    };
    match key.iter().all(|f| given.contains(f)) {
        true => Ok(()),
        false => Err(err!(
            51183,
            "Cannot find index to verify that join fields will be unique"
        )
        .into()),
    }
}

/// Has the shards of a target merge documents into it.
fn merge(
    router: &Router,
    command: &RoutedCommand<'_>,
    (ns, db): (&str, &str),
    stage: &DocBuf,
    docs: Vec<DocBuf>,
    concerns: &mut Concerns,
) -> Outcome<()> {
    let checked = finds_by_id(stage);
    let nothing = docs.is_empty();
    let mut pending: VecDeque<DocBuf> = docs.into();
    router.cluster.agree(ns, |placement| {
        let Some(placement) = placement else {
            return Err(cluster_view::routing::no_database(db));
        };
        let mut first = nothing;
        while first || !pending.is_empty() {
            first = false;
            let (shard, mine) = take_for_one_shard(placement, checked, &mut pending)?;
            let mut w = Writer::new();
            w.i32("aggregate", 1).open_array("pipeline");
            w.open_doc("").open_doc("$documents").open_array("$literal");
            mine.iter().for_each(|d| {
                w.push(d.as_doc().as_val());
            });
            w.close().close().close();
            w.push(stage.as_doc().as_val());
            w.close().value("cursor", doc! {});
            for name in OPTIONS {
                if let Some(v) = command.field(name) {
                    w.val(name, v);
                }
            }
            w.str("mergeTarget", ns).bool("mergeKeyChecked", checked);
            w.str("$db", db);
            let sent = router
                .cluster
                .send(placement, &shard, w.finish().as_doc(), &[]);
            match sent {
                Ok(reply) => note(concerns, sound(reply)?, &shard),
                Err(e) => {
                    // Nothing of it was done.
                    pending.extend(mine);
                    return Err(e);
                }
            }
        }
        Ok(())
    })
}

/// Whether a `$merge` looks for documents by their `_id`, too: each has one, and finds one at most.
pub(crate) fn finds_by_id(stage: &DocBuf) -> bool {
    let spec = stage.get("$merge").and_then(Val::as_doc);
    let on = spec.and_then(|m| m.get("on"));
    let several = on.and_then(Val::as_array);
    let mut all = several.into_iter().flat_map(Doc::values).chain(on);
    on.is_none() || all.any(|f| f.as_str() == Some("_id"))
}

/// The first document's shard, and all documents that belong there. `identified`: each gets an `_id`
/// that has none.
fn take_for_one_shard(
    placement: &Placement,
    identified: bool,
    pending: &mut VecDeque<DocBuf>,
) -> Outcome<(Arc<str>, Vec<DocBuf>)> {
    let table = match placement {
        Placement::Unsharded(Unsharded { shard, .. }) => {
            return Ok((shard.clone(), pending.drain(..).collect()));
        }
        Placement::Sharded(table) => table,
    };
    let Some(first) = pending.front_mut() else {
        let some = table.shards().next().cloned();
        let some = some.ok_or_else(|| err!(InternalError, "a collection without chunks"))?;
        return Ok((some, Vec::new()));
    };
    if identified {
        ensure_id(first);
    }
    let shard = shard_of(table, first)?;
    let (mut mine, mut others) = (Vec::new(), VecDeque::new());
    for mut d in pending.drain(..) {
        if identified {
            ensure_id(&mut d);
        }
        match shard_of(table, &d)? == shard {
            true => mine.push(d),
            false => others.push_back(d),
        }
    }
    *pending = others;
    Ok((shard, mine))
}

fn shard_of(table: &RoutingTable, d: &DocBuf) -> Outcome<Arc<str>> {
    shard_at(table, &table.key().place_of(d.as_doc())?)
}

fn ensure_id(d: &mut DocBuf) {
    if !d.as_doc().contains("_id") {
        let mut w = Writer::new();
        w.oid("_id", ObjectId::generate()).extend(d.as_doc());
        *d = w.finish();
    }
}

/// Has the shard put the gathered collection in the place of the target, if the target has not changed.
fn replace(
    router: &Router,
    command: &RoutedCommand<'_>,
    name: &str,
    database_primary: &Arc<str>,
    last: Val<'_>,
    written: &Written,
    concerns: &mut Concerns,
) -> Outcome<bool> {
    let mut w = Writer::new();
    w.str("aggregate", name);
    w.open_array("pipeline").push(last);
    w.close().value("cursor", doc! {});
    if let Some(concern) = command.generic.write_concern {
        w.val("writeConcern", concern);
    }
    w.str("mergeTarget", &written.ns()).str("$db", &written.db);
    let (body, ns) = (w.finish(), written.ns());
    let held = lock(&router.cluster, &ns)?;
    router.cluster.end_pending_moves_under(&held, &ns)?;
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Ok(false);
        };
        match placement {
            Placement::Unsharded(unsharded) if unsharded.shard == *database_primary => {}
            _ => return Ok(false),
        }
        let reply = router
            .cluster
            .send(placement, database_primary, body.as_doc(), &[])?;
        note(concerns, sound(reply)?, database_primary);
        Ok(true)
    })
}
