//! Cursors of the router: one of a shard, or several that are merged.
//!
//! Invariant: a cursor is used by one request at a time. One that ends, is killed or times out takes
//! the shards' cursors with it.

use crate::access;
use crate::change_stream::ChangeStream;
use crate::merge::Merge;
use crate::merging;
use crate::request::{RoutedCommand, finish};
use crate::router::Router;
use crate::scratch::{check_arguments, compute};
use auth::{Action, Target};
use bson::{DocBuf, Val, Writer, doc};
use cluster_view::metadata::Cluster;
use cluster_view::reply::cursor_id;
use cluster_view::upstream::message;
use cluster_view::{Failure, Outcome, operation_time};
use errors::{Code, err};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// Documents of a batch where the client does not say how many.
pub(crate) const FIRST_BATCH: i64 = 101;

pub(crate) enum Source {
    /// A cursor of one shard, by that shard's number.
    Shard {
        shard: Arc<str>,
        id: i64,
        /// What the shard knows it by: of a view that is what lies below.
        collection: String,
    },
    Merge(Box<Merge>),
    Changes(Box<ChangeStream>),
    /// A cursor of the scratch server.
    Scratch {
        id: i64,
        db: String,
        collection: String,
        /// What it reads of shards.
        merging: Option<String>,
    },
}

struct Cursor {
    ns: String,
    /// `None` while a request uses it.
    source: Option<Source>,
    used: Instant,
    /// The user that opened it; `None` without access control.
    owner: Option<String>,
    /// The command that opened it: its user must keep the rights that the command needs.
    command: DocBuf,
}

#[derive(Default)]
pub(crate) struct Cursors {
    open: Mutex<HashMap<i64, Cursor>>,
}

impl Cursors {
    pub fn add(&self, ns: &str, source: Source) -> i64 {
        let mut open = self.open.lock();
        let late: Vec<i64> = open
            .iter()
            .filter(|(_, c)| c.source.is_some() && c.used.elapsed() > IDLE)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            // The shard's own time-out ends its part.
            open.remove(&id);
        }
        loop {
            let id = rand::random::<i64>() & i64::MAX;
            if id != 0 && !open.contains_key(&id) {
                let cursor = Cursor {
                    ns: ns.into(),
                    source: Some(source),
                    used: Instant::now(),
                    owner: None,
                    command: DocBuf::new(),
                };
                open.insert(id, cursor);
                return id;
            }
        }
    }

    fn take(&self, id: i64, ns: &str) -> Outcome<Source> {
        let mut open = self.open.lock();
        let Some(cursor) = open.get_mut(&id) else {
            return Err(err!(CursorNotFound, "cursor id {id} not found").into());
        };
        if cursor.ns != ns {
            return Err(err!(
                Unauthorized,
                "Requested getMore on namespace '{ns}', but cursor belongs to a different namespace {}",
                cursor.ns
            )
            .into());
        }
        let source = cursor.source.take();
        source.ok_or_else(|| err!(CursorInUse, "cursor id {id} is in use").into())
    }

    fn give_back(&self, id: i64, source: Source) -> Option<Source> {
        match self.open.lock().get_mut(&id) {
            Some(cursor) => {
                cursor.source = Some(source);
                cursor.used = Instant::now();
                None
            }
            // It was killed meanwhile.
            None => Some(source),
        }
    }

    /// Makes the cursor of a command its user's.
    pub fn own(&self, id: i64, command: &RoutedCommand<'_>) {
        let opened = id != 0 && command.name != "getMore";
        let Some(user) = command.user.as_ref().filter(|_| opened) else {
            return;
        };
        if let Some(cursor) = self.open.lock().get_mut(&id) {
            cursor.owner = Some(user.name.to_string());
            cursor.command = command.request.body.to_buf();
        }
    }

    /// Fails where a cursor is another user's.
    fn check_owner(&self, command: &RoutedCommand<'_>, id: i64) -> Outcome<()> {
        let open = self.open.lock();
        match open.get(&id) {
            Some(cursor) => access::check_owner(command, cursor.owner.as_deref(), id),
            None => Ok(()),
        }
    }

    /// Fails if the cursor is another user's, or if its user has lost the rights that its command needs.
    fn check_rights(&self, command: &RoutedCommand<'_>, id: i64) -> Outcome<()> {
        self.check_owner(command, id)?;
        let Some(user) = &command.user else {
            return Ok(());
        };
        let made_by = self.open.lock().get(&id).map(|c| c.command.clone());
        if let Some(made_by) = made_by {
            commands::check_user_still(user, made_by.as_doc(), command.db, id)?;
        }
        Ok(())
    }

    /// Has a cursor be of another name.
    pub fn rename(&self, id: i64, ns: &str) {
        if let Some(cursor) = self.open.lock().get_mut(&id) {
            cursor.ns = ns.into();
        }
    }

    fn end(&self, id: i64) -> Option<Source> {
        self.open.lock().remove(&id)?.source
    }
}

/// Puts another cursor number in the place of a reply's own.
pub(crate) fn renumber(reply: DocBuf, id: i64) -> DocBuf {
    with_cursor_field(reply, "id", |w| {
        w.i64("id", id);
    })
}

/// Puts another namespace in the place of a cursor's own.
pub(crate) fn with_ns(reply: DocBuf, ns: &str) -> DocBuf {
    with_cursor_field(reply, "ns", |w| {
        w.str("ns", ns);
    })
}

/// A reply whose `cursor` has in the place of the field `name` what `write` writes.
fn with_cursor_field(reply: DocBuf, name: &str, write: impl Fn(&mut Writer)) -> DocBuf {
    let mut w = Writer::with_capacity(reply.as_bytes().len() + 8);
    for e in reply.as_doc() {
        match (e.name, e.val.as_doc()) {
            ("cursor", Some(cursor)) => {
                w.open_doc("cursor");
                for f in cursor {
                    if f.name == name {
                        write(&mut w);
                    } else {
                        w.val(f.name, f.val);
                    }
                }
                w.close();
            }
            _ => {
                w.val(e.name, e.val);
            }
        }
    }
    w.finish()
}

/// The reply of one shard to a command that opens a cursor, as the client gets it.
pub(crate) fn adopt(router: &Router, ns: &str, shard: &Arc<str>, reply: DocBuf) -> DocBuf {
    let id = cursor_id(&reply);
    if id == 0 {
        return reply;
    }
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let known_as = cursor.and_then(|c| c.get("ns")?.as_str()).unwrap_or(ns);
    let collection = known_as.split_once('.').map_or(known_as, |(_, c)| c);
    let source = Source::Shard {
        shard: shard.clone(),
        id,
        collection: collection.into(),
    };
    renumber(reply, router.cursors.add(ns, source))
}

/// The scratch server knows none of the cursors.
const LACKS: [Code; 2] = [Code::CursorNotFound, Code::Unauthorized];

/// Whether a getMore says what every driver's does.
fn is_plain(command: &RoutedCommand<'_>) -> bool {
    let is = |e: bson::Elem<'_>| match e.name {
        "getMore" => e.val.as_i64().is_some(),
        "collection" => e.val.as_str().is_some(),
        "batchSize" => e.val.to_i64_exact().is_some_and(|n| n >= 0),
        "$db" | "lsid" | "$clusterTime" | "$readPreference" => true,
        _ => false,
    };
    command.body.contains("collection") && command.body.iter().all(is)
}

pub(crate) fn get_more(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    if !is_plain(command) {
        check_arguments(router, command, &LACKS)?;
    }
    let id = command.int("getMore").unwrap_or(0);
    let collection = command
        .field("collection")
        .and_then(Val::as_str)
        .unwrap_or("");
    let ns = format!("{}.{collection}", command.db);
    router.cursors.check_rights(command, id)?;
    let mut source = router.cursors.take(id, &ns)?;
    let gone_on = match router.local.fail_routed_get_more() {
        None => more(router, command, &ns, id, &mut source),
        Some(e) => Err(e.into()),
    };
    match gone_on {
        Ok((reply, true)) => {
            router.cursors.end(id);
            close(router, &ns, source);
            Ok(reply)
        }
        Ok((reply, false)) => {
            if let Some(killed) = router.cursors.give_back(id, source) {
                close(router, &ns, killed);
            }
            Ok(reply)
        }
        Err(not_yet @ Failure::NotYet(_)) => {
            if let Some(killed) = router.cursors.give_back(id, source) {
                close(router, &ns, killed);
            }
            Err(not_yet)
        }
        Err(e) => {
            router.cursors.end(id);
            let is_stream = matches!(source, Source::Changes(_));
            close(router, &ns, source);
            match is_stream {
                true => Err(commands::with_resumable_label(e.into_error()).into()),
                false => Err(e),
            }
        }
    }
}

/// The next batch, and whether it is the last.
fn more(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    id: i64,
    source: &mut Source,
) -> Outcome<(DocBuf, bool)> {
    match source {
        Source::Shard {
            shard,
            id: remote,
            collection,
        } => {
            let mut w = Writer::new();
            w.i64("getMore", *remote).str("collection", collection);
            for e in command.body.iter().skip(1) {
                if e.name == "collection" {
                    continue;
                }
                w.val(e.name, e.val);
            }
            let set = router.cluster.shard(shard)?;
            let reply = set.call(&message(w.finish().as_doc(), &[]))?;
            let reply = cluster_view::reply::sound(reply)?;
            match cursor_id(&reply) {
                0 => {
                    *remote = 0;
                    Ok((reply, true))
                }
                _ => Ok((with_ns(renumber(reply, id), ns), false)),
            }
        }
        Source::Merge(merge) => {
            let most = command.int("batchSize").filter(|n| *n > 0);
            let mut w = Writer::new();
            w.open_doc("cursor").open_array("nextBatch");
            let done = merge.fill(&router.cluster, &mut w, most)?;
            w.close()
                .i64("id", if done { 0 } else { id })
                .str("ns", ns)
                .close();
            Ok((finish(w, &[]), done))
        }
        Source::Changes(stream) => stream.next_batch(router, command, id),
        Source::Scratch {
            id: local,
            db,
            collection,
            merging: _,
        } => {
            let mut w = Writer::new();
            w.i64("getMore", *local)
                .str("collection", collection)
                .str("$db", db);
            if let Some(n) = command.int("batchSize") {
                w.i64("batchSize", n);
            }
            let reply = compute(router, &w.finish())?;
            let done = cursor_id(&reply) == 0;
            if done {
                *local = 0;
            }
            Ok((
                with_ns(renumber(reply, if done { 0 } else { id }), ns),
                done,
            ))
        }
    }
}

/// Ends the shards' part of a cursor. Failures are of no interest: they end it too, later.
pub(crate) fn close(router: &Router, ns: &str, source: Source) {
    operation_time::putting_away(|| close_source(router, ns, source));
}

fn close_source(router: &Router, ns: &str, source: Source) {
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    let kill = |shard: &str, id: i64, collection: &str| {
        let command = doc! {"killCursors": collection, "cursors": bson::array![id]};
        let _ = router.cluster.on_shard(shard, db, command.as_doc());
    };
    match source {
        Source::Shard {
            shard,
            id,
            collection,
        } if id != 0 => kill(&shard, id, &collection),
        Source::Shard { .. } => {}
        Source::Merge(merge) => end_parts(&router.cluster, &merge),
        Source::Changes(stream) => {
            let remains = stream.remains();
            remains.for_each(|(shard, id, collection)| kill(shard, id, collection));
        }
        Source::Scratch {
            id,
            db,
            collection,
            merging,
        } => {
            if id != 0 {
                let command =
                    doc! {"killCursors": &collection, "cursors": bson::array![id], "$db": &db};
                let _ = compute(router, &command);
            }
            if let Some(ns) = merging {
                merging::end(router, &ns);
            }
        }
    }
}

/// Ends the cursors of a merge at the shards.
pub(crate) fn close_merge(cluster: &Cluster, merge: &Merge) {
    operation_time::putting_away(|| end_parts(cluster, merge));
}

fn end_parts(cluster: &Cluster, merge: &Merge) {
    let (db, collection) = merge.ns.split_once('.').unwrap_or((&merge.ns, ""));
    for (shard, id) in merge.remains() {
        let command = doc! {"killCursors": collection, "cursors": bson::array![id]};
        let _ = cluster.on_shard(shard, db, command.as_doc());
    }
}

/// Ends a cursor of the router.
pub(crate) fn end(router: &Router, ns: &str, id: i64) {
    if let Some(source) = router.cursors.end(id) {
        close(router, ns, source);
    }
}

pub(crate) fn kill(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    if !command.in_transaction() {
        check_arguments(router, command, &LACKS)?;
    }
    let ns = command.namespace()?;
    let ids = command.field("cursors").and_then(Val::as_array);
    let Some(ids) = ids else {
        return Err(Failure::Client(err!(FailedToParse, "cursors is an array")));
    };
    let target = Target::Collection(command.db, command.collection());
    let kills_any = |t| access::may(command.user.as_deref(), Action::KillAnyCursor, t);
    if !kills_any(target) && !kills_any(Target::Cluster) {
        for id in ids.values().filter_map(Val::to_i64_exact) {
            router.cursors.check_owner(command, id)?;
        }
    }
    let (mut killed, mut missing) = (Writer::new_array(), Writer::new_array());
    for id in ids.values().filter_map(Val::to_i64_exact) {
        let known = router.cursors.open.lock().contains_key(&id);
        end(router, &ns, id);
        let list = if known { &mut killed } else { &mut missing };
        list.push_value(id);
    }
    let mut w = Writer::new();
    w.val("cursorsKilled", killed.finish_array().as_val())
        .val("cursorsNotFound", missing.finish_array().as_val())
        .value("cursorsAlive", bson::array![])
        .value("cursorsUnknown", bson::array![]);
    Ok(finish(w, &[]))
}
