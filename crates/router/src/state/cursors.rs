//! Cursors of the router, whatever they go over.
//!
//! Invariant: a cursor is used by one request at a time. One that ends or is killed takes the shards' cursors with it. One that
//! times out, or whose session ends, does not: the shards' time out too, and their sessions are ended by the same command.

use crate::request::RoutedCommand;
use crate::state::Router;
use auth::session_id::Lsid;
use bson::{DocBuf, Val, Writer, doc};
use cluster_view::reply::cursor_id;
use cluster_view::upstream::message;
use cluster_view::{Outcome, operation_time};
use commands::{Commands, CursorFigures, OtherCursors, Share};
use errors::err;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Documents of a batch where the client does not say how many.
pub(crate) const FIRST_BATCH: i64 = 101;
/// About what a cursor takes without its documents and its command.
const CURSOR_BYTES: usize = 2 << 10;

/// What a cursor goes over.
pub(crate) trait CursorSource: Send {
    /// The next batch, and whether it is the last. `id`: the cursor's number at the client.
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        ns: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)>;

    /// Ends the shards' part of it. Failures are of no interest: they end it too, later.
    fn close(self: Box<Self>, router: &Router, ns: &str);

    /// Whether it can be resumed behind an error that has ended it.
    fn is_resumable(&self) -> bool {
        false
    }
}

pub(crate) type Source = Box<dyn CursorSource>;

struct Cursor {
    ns: String,
    /// `None` while a request uses it.
    source: Option<Source>,
    used: Instant,
    lsid: Option<Lsid>,
    /// It is kept however long its client asks for no more.
    no_timeout: bool,
    /// The user that opened it; `None` without access control.
    owner: Option<String>,
    /// The command that opened it: its user must keep the rights that the command needs.
    command: DocBuf,
    /// What it holds of the memory of cursors, with its command.
    share: Option<Share>,
}

/// The open cursors by their numbers.
///
/// Invariant: `of_sessions` has exactly those that have a session.
#[derive(Default)]
struct Open {
    by_id: HashMap<i64, Cursor>,
    of_sessions: BTreeSet<(Lsid, i64)>,
}

impl Open {
    fn remove(&mut self, id: i64) -> Option<Cursor> {
        let cursor = self.by_id.remove(&id)?;
        if let Some(lsid) = cursor.lsid {
            let was = self.of_sessions.remove(&(lsid, id));
            assert!(was, "the cursors of sessions are known");
        }
        Some(cursor)
    }

    /// Makes it one of a session; it was of none.
    fn join(&mut self, id: i64, lsid: Lsid) {
        if let Some(cursor) = self.by_id.get_mut(&id) {
            let before = cursor.lsid.replace(lsid);
            assert!(before.is_none(), "a cursor joins one session");
            self.of_sessions.insert((lsid, id));
        }
    }

    fn of_session(&self, lsid: Lsid) -> Vec<i64> {
        let theirs = self.of_sessions.range((lsid, i64::MIN)..=(lsid, i64::MAX));
        theirs.map(|(_, id)| *id).collect()
    }
}

#[derive(Default)]
pub(crate) struct Cursors {
    open: Mutex<Open>,
    opened: AtomicU64,
    timed_out: AtomicU64,
}

impl Cursors {
    pub fn add(&self, ns: &str, source: Source) -> i64 {
        let mut open = self.open.lock();
        let id = loop {
            let id = rand::random::<i64>() & i64::MAX;
            if id != 0 && !open.by_id.contains_key(&id) {
                break id;
            }
        };
        let cursor = Cursor {
            ns: ns.into(),
            source: Some(source),
            used: Instant::now(),
            lsid: None,
            no_timeout: false,
            owner: None,
            command: DocBuf::new(),
            share: None,
        };
        open.by_id.insert(id, cursor);
        self.opened.fetch_add(1, Relaxed);
        id
    }

    /// Ends those cursors; how many. One that a request uses ends with its request.
    fn end_those(&self, which: impl FnOnce(&Open) -> Vec<i64>) -> usize {
        let mut open = self.open.lock();
        let ids = which(&open);
        let ended: Vec<Cursor> = ids.into_iter().filter_map(|id| open.remove(id)).collect();
        drop(open);
        // They are dropped without the lock: what a pipeline joins may be a cursor among these, which ends with it.
        ended.len()
    }

    pub fn take(&self, id: i64, ns: &str) -> Outcome<Source> {
        let mut open = self.open.lock();
        let Some(cursor) = open.by_id.get_mut(&id) else {
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

    pub fn give_back(&self, id: i64, source: Source) -> Option<Source> {
        match self.open.lock().by_id.get_mut(&id) {
            Some(cursor) => {
                let other = cursor.source.replace(source);
                assert!(other.is_none(), "one request at a time uses a cursor");
                cursor.used = Instant::now();
                None
            }
            // It was killed meanwhile.
            None => Some(source),
        }
    }

    /// Counts the cursor that a client's command has opened, and makes it the user's. Where there is no room for it, it
    /// ends; the shards' part of it ends with their time-out.
    pub fn keep(&self, local: &Commands, id: i64, command: &RoutedCommand<'_>) -> Outcome<()> {
        if id == 0 || command.name == "getMore" {
            return Ok(());
        }
        let body = command.request.body;
        let share = local.share_of_cursor(CURSOR_BYTES, body);
        if share.is_err() {
            let ended = self.open.lock().remove(id);
            drop(ended);
        }
        let share = share?;
        let mut open = self.open.lock();
        if let Some(cursor) = open.by_id.get_mut(&id) {
            cursor.share = Some(share);
            cursor.no_timeout = command.is("noCursorTimeout");
            if let Some(user) = &command.user {
                cursor.owner = Some(user.name.to_string());
                cursor.command = body.to_buf();
            }
        }
        if let Some(lsid) = command.generic.lsid {
            open.join(id, lsid);
        }
        Ok(())
    }

    /// Fails where a cursor is another user's.
    pub fn check_owner(&self, command: &RoutedCommand<'_>, id: i64) -> Outcome<()> {
        let open = self.open.lock();
        match open.by_id.get(&id) {
            Some(cursor) => check_owner(command, cursor.owner.as_deref(), id),
            None => Ok(()),
        }
    }

    /// Fails if the cursor is another user's, or if its user has lost the rights that its command needs.
    pub fn check_rights(&self, command: &RoutedCommand<'_>, id: i64) -> Outcome<()> {
        self.check_owner(command, id)?;
        let Some(user) = &command.user else {
            return Ok(());
        };
        let made_by = self.open.lock().by_id.get(&id).map(|c| c.command.clone());
        if let Some(made_by) = made_by {
            commands::check_user_still(user, made_by.as_doc(), command.db, id)?;
        }
        Ok(())
    }

    /// Has a cursor be of another name.
    pub fn rename(&self, id: i64, ns: &str) {
        if let Some(cursor) = self.open.lock().by_id.get_mut(&id) {
            cursor.ns = ns.into();
        }
    }

    pub fn is_open(&self, id: i64) -> bool {
        self.open.lock().by_id.contains_key(&id)
    }

    pub fn end(&self, id: i64) -> Option<Source> {
        self.open.lock().remove(id)?.source
    }
}

impl OtherCursors for Cursors {
    fn kill_session(&self, lsid: Lsid) {
        self.end_those(|open| open.of_session(lsid));
    }

    fn reap(&self, idle: Duration) {
        let is_late = |c: &Cursor| c.source.is_some() && !c.no_timeout && c.used.elapsed() > idle;
        let late = self.end_those(|open| {
            let late = open.by_id.iter().filter(|(_, c)| is_late(c));
            late.map(|(id, _)| *id).collect()
        });
        self.timed_out.fetch_add(late as u64, Relaxed);
    }

    fn figures(&self) -> CursorFigures {
        let open = self.open.lock();
        let count =
            |which: fn(&Cursor) -> bool| open.by_id.values().filter(|c| which(c)).count() as u64;
        CursorFigures {
            open: open.by_id.len() as u64,
            pinned: count(|c| c.source.is_none()),
            no_timeout: count(|c| c.no_timeout),
            timed_out: self.timed_out.load(Relaxed),
            opened: self.opened.load(Relaxed),
        }
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

/// Fails if the cursor's owner is another user.
fn check_owner(command: &RoutedCommand<'_>, owner: Option<&str>, id: i64) -> Outcome<()> {
    let Some(user) = &command.user else {
        return Ok(());
    };
    if owner == Some(user.name.to_string().as_str()) {
        return Ok(());
    }
    Err(err!(
        Unauthorized,
        "cursor id {id} was not created by the authenticated user"
    )
    .into())
}

/// A cursor of one shard, by that shard's number.
struct OfShard {
    shard: Arc<str>,
    id: i64,
    /// What the shard knows it by: of a view that is what lies below.
    collection: String,
}

impl CursorSource for OfShard {
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        ns: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        let mut w = Writer::new();
        w.i64("getMore", self.id)
            .str("collection", &self.collection);
        for e in command.body.iter().skip(1) {
            if e.name == "collection" {
                continue;
            }
            w.val(e.name, e.val);
        }
        let set = router.cluster.shard(&self.shard)?;
        let reply = set.call(&message(w.finish().as_doc(), &[]))?;
        let reply = cluster_view::reply::sound(reply)?;
        match cursor_id(&reply) {
            0 => {
                self.id = 0;
                Ok((reply, true))
            }
            _ => Ok((with_ns(renumber(reply, id), ns), false)),
        }
    }

    fn close(self: Box<Self>, router: &Router, ns: &str) {
        if self.id != 0 {
            let db = ns.split_once('.').map_or(ns, |(db, _)| db);
            let command = doc! {"killCursors": &self.collection, "cursors": bson::array![self.id]};
            let _ = router.cluster.on_shard(&self.shard, db, command.as_doc());
        }
    }
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
    let source = OfShard {
        shard: shard.clone(),
        id,
        collection: collection.into(),
    };
    renumber(reply, router.cursors.add(ns, Box::new(source)))
}

/// Ends the shards' part of a cursor.
pub(crate) fn close(router: &Router, ns: &str, source: Source) {
    operation_time::putting_away(|| source.close(router, ns));
}

/// Ends a cursor of the router.
pub(crate) fn end(router: &Router, ns: &str, id: i64) {
    if let Some(source) = router.cursors.end(id) {
        close(router, ns, source);
    }
}
