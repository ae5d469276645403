//! `$changeStream` over the cluster: the streams of all shards as one.
//!
//! ```text
//! a shard's events, in its order ──┐
//!     and up to where it has seen  ├─ the least (token, shard), once no other shard can have a lesser one
//! another's                      ──┘
//! token for clients: the shard's, with its name ([`crate::reads::stream_token`])
//! ```
//! A shard that has nothing to tell is asked to let its log come to the time that others wait for.
//!
//! A request that waits for news holds a thread, while not many do; the others are run again after a
//! pause.
//!
//! Invariants: events come in the order of (token, shard), for every reader and every time. A stream
//! that resumes asks each shard from the token's timestamp on, and skips events up to the token.

use crate::merge::release;
use crate::reads::find;
use crate::reads::stream_token::{shard_in, with_shard};
use crate::reads::waiting_streams::Waiting;
use crate::request::{RoutedCommand, finish};
use crate::state::cursors::CursorSource;
use crate::state::{Router, cursors};
use bson::{Doc, DocBuf, Val, Writer, doc};
use changes::{ResumeToken, TokenPlace};
use cluster_view::replica_set::ServerSelection;
use cluster_view::upstream::{Wait, error_of, message, with_fields};
use cluster_view::{Failure, Outcome, ReplicaSet};
use commands::{HeldDocuments, Share};
use errors::{Code, err};
use mover::transfer::{set_time, time_before};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a batch waits for news where the client does not say.
const AWAIT: Duration = Duration::from_secs(1);
/// How long shards are waited for before the others are looked at again.
const LONGEST_ROUND: Duration = Duration::from_millis(100);
/// How long a batch waits for shards that hold events up, whatever the client says.
const FOR_WHAT_IS_HELD: Duration = Duration::from_millis(200);
/// How often it is looked whether there are new shards.
const LOOK_FOR_SHARDS: Duration = Duration::from_secs(1);
/// How long a shard may be without a primary.
const PATIENCE: Duration = Duration::from_secs(20);
const BATCH_BYTES: usize = 16 << 20;

/// Behind all tokens.
const END: &str = "FF";

pub(crate) struct ChangeStream {
    ns: String,
    /// The aggregate for a shard, but for its pipeline.
    command: DocBuf,
    /// `$changeStream` without where to begin, and the stages behind it.
    spec: DocBuf,
    rest: DocBuf,
    parts: Vec<ShardStream>,
    /// Behind which place events are given.
    after: Place,
    /// It resumes behind an event that a shard itself has told of. Of which shard is not known before all
    /// have come to it; where two have one of the same token, both come, one of them again.
    unnamed: Option<String>,
    /// What the client may resume behind.
    token: String,
    /// Where each database is, as far as it was seen: that shard tells of its collections.
    database_primaries: HashMap<String, Arc<str>>,
    looks_up: bool,
    ended: bool,
    looked: Instant,
    /// What events at hand hold of the memory of cursors' documents.
    share: Share,
    /// Since when the getMore under way waits, if it was sent back to wait without a thread.
    waits_since: Option<Instant>,
}

/// A shard's stream.
struct ShardStream {
    shard: Arc<str>,
    /// Of a shard that was removed the router knows no more how it is reached.
    set: Arc<ReplicaSet>,
    id: i64,
    held: HeldDocuments<String>,
    /// The shard gives nothing at or before this token any more.
    seen: String,
    /// It was removed from the cluster.
    leaves: bool,
}

/// A place in the one order of all events.
type Place = (String, String);

pub(crate) fn open(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
    spec: Val<'_>,
) -> Outcome<DocBuf> {
    let ns = match command.collection() {
        "" => format!("{}.$cmd.aggregate", command.db),
        collection => format!("{}.{collection}", command.db),
    };
    let given = spec.as_doc().unwrap_or(Doc::EMPTY);
    let waited = command.request.resumed.as_ref();
    let waited = waited.map_or(Duration::ZERO, |run| run.since.elapsed());
    let begin = Begin::of(router, given, waited)?;
    let resumes = ["resumeAfter", "startAfter", "startAtOperationTime"];
    let mut kept = Writer::new();
    for e in given.iter().filter(|e| !resumes.contains(&e.name)) {
        kept.val(e.name, e.val);
    }
    let mut rest = Writer::new_array();
    stages.values().skip(1).for_each(|s| {
        rest.push(s);
    });
    let full = given.get("fullDocument").and_then(Val::as_str);
    let mut stream = ChangeStream {
        ns,
        command: command.without(&["pipeline", "cursor"]).finish(),
        spec: kept.finish(),
        rest: stages_of(rest.finish_array()),
        parts: Vec::new(),
        after: begin.after.clone(),
        unnamed: begin.unnamed.clone(),
        token: begin.token.clone(),
        database_primaries: HashMap::new(),
        looks_up: full == Some("updateLookup"),
        ended: false,
        looked: Instant::now(),
        share: router.local.cursor_memory().share(),
        waits_since: None,
    };
    for shard in router.cluster.shard_names()? {
        let part = stream.begin(router, &shard, begin.start_of(&shard))?;
        stream.parts.push(part);
    }
    let most = command.document("cursor").and_then(|c| c.get("batchSize"));
    let most = most
        .and_then(Val::to_i64_exact)
        .unwrap_or(cursors::FIRST_BATCH);
    let mut w = Writer::new();
    w.open_doc("cursor").open_array("firstBatch");
    stream.fill(router, &mut w, most, Duration::ZERO)?;
    stream.release(router)?;
    let ns = stream.ns.clone();
    let (token, ended) = (stream.token.clone(), stream.ended);
    let source = Box::new(stream);
    let id = match ended {
        true => 0,
        false => router.cursors.add(&ns, source),
    };
    w.close()
        .value("postBatchResumeToken", doc! {"_data": token});
    w.i64("id", id).str("ns", &ns).close();
    Ok(finish(w, &[]))
}

/// Where a stream begins.
struct Begin {
    after: Place,
    /// The token of an event that names no shard.
    unnamed: Option<String>,
    token: String,
    /// The shard whose event it resumes behind, and how it is told of that.
    origin: Option<(String, DocBuf)>,
    time: u64,
    /// Of a stream that begins now: what the time of each shard's log was when its command was read.
    times: HashMap<String, u64>,
}

impl Begin {
    /// `waited`: for how long the command has waited since it was read.
    fn of(router: &Router, given: Doc<'_>, waited: Duration) -> Outcome<Begin> {
        let resumed = ["resumeAfter", "startAfter"]
            .into_iter()
            .find_map(|name| Some((name, given.get(name).filter(|v| !v.is_nullish())?)));
        if let Some((name, v)) = resumed {
            let token = ResumeToken::parse(v)?;
            if name == "resumeAfter" && matches!(token.place, TokenPlace::Invalidate { .. }) {
                return Err(err!(
                    InvalidResumeToken,
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification."
                )
                .into());
            }
            let data = v.as_doc().and_then(|d| d.get("_data")?.as_str());
            let shard = match token.place {
                TokenPlace::Mark => String::new(),
                _ => shard_in(data.unwrap_or_default())?,
            };
            let mut how = Writer::new();
            how.doc(name, token.to_doc().as_doc());
            return Ok(Begin {
                after: (token.hex(), shard.clone()),
                unnamed: (shard.is_empty() && token.place != TokenPlace::Mark).then(|| token.hex()),
                token: with_shard(&token.hex(), &shard),
                origin: (!shard.is_empty()).then(|| (shard, how.finish())),
                time: token.ts,
                times: HashMap::new(),
            });
        }
        let given = given.get("startAtOperationTime");
        let times = match given.and_then(Val::as_timestamp) {
            Some(_) => HashMap::new(),
            None => times_before(router, waited)?,
        };
        let least = || times.values().min().copied().unwrap_or_default();
        let time = given.and_then(Val::as_timestamp).unwrap_or_else(least);
        let token = ResumeToken::mark(time).hex();
        Ok(Begin {
            after: (token.clone(), String::new()),
            unnamed: None,
            token,
            origin: None,
            time,
            times,
        })
    }

    /// The fields of a shard's `$changeStream` that say where it begins.
    fn start_of(&self, shard: &str) -> DocBuf {
        match &self.origin {
            Some((origin, how)) if origin == shard => how.clone(),
            _ => at_time(self.times.get(shard).copied().unwrap_or(self.time)),
        }
    }
}

fn stages_of(array: bson::Value) -> DocBuf {
    let stages = array.as_val().as_array().map(Doc::to_buf);
    stages.unwrap_or_default()
}

fn at_time(time: u64) -> DocBuf {
    let mut w = Writer::new();
    w.timestamp("startAtOperationTime", time);
    w.finish()
}

/// For each shard the first time that is later than all its writes of that long ago: later writes have
/// that time or a later one.
fn times_before(router: &Router, ago: Duration) -> Outcome<HashMap<String, u64>> {
    let asked = Instant::now();
    let mut times = HashMap::new();
    for shard in router.cluster.shard_names()? {
        let then = time_before(&router.cluster, &shard, ago + asked.elapsed())?;
        times.insert(shard.to_string(), then + 1);
    }
    Ok(times)
}

fn data_of(token: Option<Val<'_>>) -> String {
    let data = token.and_then(|t| t.as_doc()?.get("_data")?.as_str());
    data.unwrap_or_default().into()
}

fn token_of(hex: &str) -> Outcome<ResumeToken> {
    Ok(ResumeToken::parse(doc! {"_data": hex}.as_doc().as_val())?)
}

/// The mark before everything of a token's timestamp.
fn mark_of(hex: &str) -> Outcome<String> {
    Ok(ResumeToken::mark(token_of(hex)?.ts).hex())
}

impl CursorSource for ChangeStream {
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        _: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        self.next_batch(router, command, id)
    }

    fn close(self: Box<Self>, router: &Router, _: &str) {
        let (db, collection) = self.ns.split_once('.').unwrap_or((&self.ns, ""));
        for part in self.parts.iter().filter(|p| p.id != 0) {
            let command = doc! {"killCursors": collection, "cursors": bson::array![part.id]};
            let _ = router.cluster.on_shard(&part.shard, db, command.as_doc());
        }
    }

    fn is_resumable(&self) -> bool {
        true
    }
}

impl ChangeStream {
    /// Opens a shard's stream.
    fn begin(&self, router: &Router, shard: &str, start: DocBuf) -> Outcome<ShardStream> {
        let mut w = Writer::new();
        w.extend(self.command.as_doc()).open_array("pipeline");
        w.open_doc("").open_doc("$changeStream");
        w.extend(self.spec.as_doc()).extend(start.as_doc());
        w.close().close();
        self.rest.as_doc().values().for_each(|s| {
            w.push(s);
        });
        w.close().value("cursor", doc! {"batchSize": 0});
        let set = router.cluster.shard(shard)?;
        let reply = set.call(&message(w.finish().as_doc(), &[]))?;
        let reply = cluster_view::reply::sound(reply)?;
        let mut part = ShardStream {
            shard: shard.into(),
            set,
            id: 0,
            held: HeldDocuments::default(),
            seen: String::new(),
            leaves: false,
        };
        part.take(&reply);
        Ok(part)
    }

    /// The reply to a getMore, and whether it is the last.
    fn next_batch(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        let wait = command.time().unwrap_or(AWAIT);
        let most = command.more();
        let began = self.waits_since.take().unwrap_or_else(Instant::now);
        let left = wait.saturating_sub(began.elapsed());
        let turn = Waiting::begin();
        let mut w = Writer::new();
        w.open_doc("cursor").open_array("nextBatch");
        let empty = w.len();
        let here = match turn.holds_a_thread() {
            true => left,
            false => Duration::ZERO,
        };
        self.fill(router, &mut w, most.unwrap_or(i64::MAX), here)?;
        self.release(router)?;
        let waits_on = w.len() == empty && !self.ended && began.elapsed() < wait;
        if waits_on && !turn.holds_a_thread() {
            self.waits_since = Some(began);
            return Err(Failure::NotYet(Instant::now() + turn.pause()));
        }
        w.close()
            .value("postBatchResumeToken", doc! {"_data": &self.token});
        w.i64("id", if self.ended { 0 } else { id })
            .str("ns", &self.ns)
            .close();
        Ok((finish(w, &[]), self.ended))
    }

    /// Between two batches: keeps in memory only what there is room for.
    fn release(&mut self, router: &Router) -> Outcome<()> {
        let memory = router.local.cursor_memory();
        let held = self.parts.iter_mut().map(|p| &mut p.held);
        release(&memory, &mut self.share, held)
    }

    /// Appends events, and waits for some.
    fn fill(&mut self, router: &Router, w: &mut Writer, most: i64, wait: Duration) -> Outcome<()> {
        for part in &mut self.parts {
            part.held.resume()?;
        }
        let (began, start) = (Instant::now(), w.len());
        let mut round = Duration::from_millis(1);
        let (mut given, mut rounds) = (0, 0);
        while most > 0 && !self.ended {
            while given < most && w.len() - start < BATCH_BYTES && !self.ended {
                let Some(event) = self.next(router)? else {
                    break;
                };
                w.push(event.as_doc().as_val());
                given += 1;
            }
            let left = wait.saturating_sub(began.elapsed());
            let held_up = self.parts.iter().any(|p| !p.held.is_empty());
            let waits_on = held_up && began.elapsed() < FOR_WHAT_IS_HELD;
            if given > 0 || (rounds > 0 && left.is_zero() && !waits_on) {
                break;
            }
            self.look_for_shards(router)?;
            self.pull(router, round.min(left).max(Duration::from_millis(1)))?;
            rounds += 1;
            round = match self.urge()? {
                true => Duration::from_millis(1),
                false => (round * 2).min(LONGEST_ROUND),
            };
        }
        self.advance_token()
    }

    /// The next event, if no shard can have an earlier one.
    fn next(&mut self, router: &Router) -> Outcome<Option<DocBuf>> {
        loop {
            let fronts = self.parts.iter().enumerate();
            let least = fronts
                .filter_map(|(i, p)| Some((&p.held.front()?.0, &*p.shard, i)))
                .min();
            let Some((token, _, at)) = least else {
                return Ok(None);
            };
            let waits = |p: &ShardStream| p.held.is_empty() && p.seen < *token;
            if self.parts.iter().any(waits) {
                return Ok(None);
            }
            let shard = self.parts[at].shard.clone();
            let resumed_behind = self.unnamed.take_if(|unnamed| unnamed == token).is_some();
            let told = resumed_behind && self.only_one_has(token);
            let Some((token, event)) = self.parts[at].held.pop()? else {
                return Ok(None);
            };
            if told {
                continue;
            }
            let place = (token, shard.to_string());
            if place <= self.after {
                continue;
            }
            if !self.is_told_by(router, &shard, &event)? {
                continue;
            }
            let invalidates = matches!(token_of(&place.0)?.place, TokenPlace::Invalidate { .. });
            if invalidates && !self.is_database_primary(router, &shard)? {
                // Another shard's collection of that name goes on.
                let mut start = Writer::new();
                start.value("startAfter", doc! {"_data": &place.0});
                self.parts[at] = self.begin(router, &shard, start.finish())?;
                continue;
            }
            self.ended = invalidates;
            self.token = with_shard(&place.0, &shard);
            let event = self.shown(router, event)?;
            self.after = place;
            return Ok(Some(event));
        }
    }

    /// Whether the event of this token is of one shard only. All have come to it.
    fn only_one_has(&self, token: &str) -> bool {
        let has = |p: &&ShardStream| p.held.front().is_some_and(|(front, _)| front == token);
        self.parts.iter().filter(has).count() == 1
    }

    /// The shard that has a database; once known it is so for this stream when the database is
    /// gone.
    fn database_primary(&mut self, router: &Router, db: &str) -> Outcome<Option<Arc<str>>> {
        if let Some(primary) = router.cluster.database(db)? {
            self.database_primaries.insert(db.into(), primary);
        }
        Ok(self.database_primaries.get(db).cloned())
    }

    fn is_database_primary(&mut self, router: &Router, shard: &str) -> Outcome<bool> {
        let db = self.ns.split_once('.').map_or("", |(db, _)| db).to_string();
        let primary = self.database_primary(router, &db)?;
        Ok(primary.is_none_or(|primary| *primary == *shard))
    }

    /// Of a collection or a database as such only the shard tells that has the database; the others
    /// make and drop their parts of it.
    fn is_told_by(&mut self, router: &Router, shard: &str, event: &DocBuf) -> Outcome<bool> {
        let kind = event.get("operationType").and_then(Val::as_str);
        let of_documents = ["insert", "update", "replace", "delete", "invalidate"];
        let db = event
            .get("ns")
            .and_then(|ns| ns.as_doc()?.get("db")?.as_str());
        let (Some(kind), Some(db)) = (kind, db) else {
            return Ok(true);
        };
        if of_documents.contains(&kind) {
            // Where it is not known, it is asked while there is such a database.
            if !self.database_primaries.contains_key(db) {
                self.database_primary(router, db)?;
            }
            return Ok(true);
        }
        let primary = self.database_primary(router, db)?;
        Ok(primary.is_none_or(|primary| *primary == *shard))
    }

    /// An event as the client gets it: its token says its shard, and a document that has moved is
    /// looked up where it is.
    fn shown(&self, router: &Router, event: DocBuf) -> Outcome<DocBuf> {
        let mut w = Writer::with_capacity(event.as_bytes().len() + 32);
        let update = event.get("operationType").and_then(Val::as_str) == Some("update");
        let gone = event.get("fullDocument").is_some_and(|v| v.is_nullish());
        let found = match self.looks_up && update && gone {
            true => self.look_up(router, &event)?,
            false => None,
        };
        for e in event.as_doc() {
            match (e.name, &found) {
                ("_id", _) => w.value("_id", doc! {"_data": &self.token}),
                ("fullDocument", Some(found)) => w.doc(e.name, found.as_doc()),
                _ => w.val(e.name, e.val),
            };
        }
        Ok(w.finish())
    }

    fn look_up(&self, router: &Router, event: &DocBuf) -> Outcome<Option<DocBuf>> {
        let ns = event.get("ns").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        let key = event.get("documentKey").and_then(Val::as_doc);
        match (ns.get("db"), ns.get("coll"), key) {
            (Some(db), Some(coll), Some(key)) => {
                let text = |v: Val<'_>| v.as_str().unwrap_or_default().to_string();
                let ns = format!("{}.{}", text(db), text(coll));
                find::one(router, &ns, key, None, Doc::EMPTY)
            }
            _ => Ok(None),
        }
    }

    /// Asks the shards that have nothing at hand, all at once.
    fn pull(&mut self, router: &Router, wait: Duration) -> Outcome<()> {
        let collection = self.ns.split_once('.').map_or("", |(_, c)| c).to_string();
        let db = self.ns.split_once('.').map_or("", |(db, _)| db).to_string();
        self.end_ended(router)?;
        let mut under_way = Vec::new();
        for (at, part) in self.parts.iter().enumerate() {
            if !part.held.is_empty() || part.id == 0 || part.seen == END {
                continue;
            }
            let more = doc! {
                "getMore": part.id, "collection": &collection, "$db": &db,
                "maxTimeMS": i64::try_from(wait.as_millis()).unwrap_or(1).max(1),
            };
            let more = match self.command.get("lsid") {
                Some(lsid) => with_fields(more.as_doc(), doc! {"lsid": lsid}.as_doc()),
                None => more,
            };
            let set = part.set.clone();
            let more = message(more.as_doc(), &[]);
            let member = set.choose(&ServerSelection::of(&more)?)?;
            let connection = member.upstream.send(&more, &Wait::to(None, &|| {}));
            under_way.push((at, set, member, more, connection));
        }
        for (at, set, member, more, connection) in under_way {
            let wait = Wait::to(None, &|| {});
            let reply =
                connection.and_then(|connection| member.upstream.receive(connection, &wait));
            let reply = match set.judge(ServerSelection::of(&more)?.terms, &member, reply) {
                Some(reply) => reply.map(|reply| error_of(reply.as_doc()).map_or(Ok(reply), Err)),
                // Not the primary any more: its cursors are gone.
                None => Err(Failure::Lost("the primary is another".into())),
            };
            match reply {
                Ok(Ok(reply)) => self.parts[at].take(&reply),
                // Of a shard that is gone nothing more can come.
                _ if self.parts[at].leaves => self.parts[at].seen = END.into(),
                Ok(Err(e)) if !is_of_election(e.code) => return Err(e.into()),
                Err(Failure::Client(e)) => return Err(e.into()),
                _ => self.parts[at] = self.begin_again(router, at)?,
            }
        }
        Ok(())
    }

    /// A shard's stream that has ended without an event: a stage has kept the invalidation back.
    fn end_ended(&mut self, router: &Router) -> Outcome<()> {
        for at in 0..self.parts.len() {
            if self.parts[at].id != 0
                || !self.parts[at].held.is_empty()
                || self.parts[at].seen == END
            {
                continue;
            }
            let shard = self.parts[at].shard.clone();
            if self.is_database_primary(router, &shard)? {
                self.ended = true;
                return Ok(());
            }
            let behind = token_of(&self.parts[at].seen)?.ts + 1;
            self.parts[at] = self.begin(router, &shard, at_time(behind))?;
        }
        Ok(())
    }

    /// A shard's stream from where it was, on its new primary.
    fn begin_again(&self, router: &Router, at: usize) -> Outcome<ShardStream> {
        let part = &self.parts[at];
        let mut start = Writer::new();
        start.value("startAfter", doc! {"_data": &part.seen});
        let start = start.finish();
        let began = Instant::now();
        loop {
            match self.begin(router, &part.shard, start.clone()) {
                Err(Failure::Client(e)) if !is_of_election(e.code) => return Err(e.into()),
                Err(e) if began.elapsed() > PATIENCE => return Err(e),
                Err(_) => std::thread::sleep(LONGEST_ROUND),
                begun => return begun,
            }
        }
    }

    /// Has shards that hold others up come to the time of the last event at hand, so that all can be
    /// given; whether there were any.
    fn urge(&self) -> Outcome<bool> {
        let fronts = self.parts.iter().filter_map(|p| p.held.front());
        let Some(least) = fronts.map(|(token, _)| token).min() else {
            return Ok(false);
        };
        let backs = self.parts.iter().filter_map(|p| p.held.back());
        let last = backs.map(|(token, _)| token).max().unwrap_or(least);
        let time = token_of(last)?.ts + 1;
        let mut any = false;
        for part in &self.parts {
            if part.held.is_empty() && part.seen < *last {
                match set_time(&part.set, time) {
                    Err(e) if !part.leaves => return Err(e),
                    _ => any |= part.seen < *least,
                }
            }
        }
        Ok(any)
    }

    /// Shards that were added take part. Those that were removed are asked once more.
    fn look_for_shards(&mut self, router: &Router) -> Outcome<()> {
        let known = router.cluster.known_shards();
        let is_new = |name: &String| !self.parts.iter().any(|p| *p.shard == **name);
        if self.looked.elapsed() < LOOK_FOR_SHARDS && !known.iter().any(is_new) {
            return Ok(());
        }
        self.looked = Instant::now();
        let names = router.cluster.shard_names()?;
        self.parts.retain(|p| !p.leaves || !p.held.is_empty());
        for part in &mut self.parts {
            part.leaves = !names.iter().any(|n| **n == *part.shard);
        }
        for name in &names {
            if !self.parts.iter().any(|p| *p.shard == **name) {
                let time = token_of(&self.token)?.ts;
                let part = self.begin(router, name, at_time(time))?;
                self.parts.push(part);
            }
        }
        Ok(())
    }

    /// The client may resume behind what all shards have seen.
    fn advance_token(&mut self) -> Outcome<()> {
        let mut least: Option<String> = None;
        for part in &self.parts {
            let at = part.held.front().map_or(&part.seen, |(token, _)| token);
            if part.held.is_empty() && part.leaves {
                continue;
            }
            let mark = mark_of(at)?;
            least = Some(least.map_or(mark.clone(), |l| l.min(mark)));
        }
        match least {
            Some(mark) if !self.ended && mark > self.token => self.token = mark,
            _ => {}
        }
        Ok(())
    }
}

impl ShardStream {
    fn take(&mut self, reply: &DocBuf) {
        self.id = cluster_view::reply::cursor_id(reply);
        for event in cluster_view::reply::batch_of(reply) {
            self.held.push(data_of(event.get("_id")), event.to_buf());
        }
        let cursor = reply.get("cursor").and_then(Val::as_doc);
        let seen = data_of(cursor.and_then(|c| c.get("postBatchResumeToken")));
        if seen > self.seen {
            self.seen = seen;
        }
    }
}

/// An error that says only that the cursor's server is no primary any more.
fn is_of_election(code: Code) -> bool {
    matches!(
        code,
        Code::CursorNotFound
            | Code::InterruptedDueToReplStateChange
            | Code::NotWritablePrimary
            | Code::NotPrimaryNoSecondaryOk
            | Code::NotPrimaryOrSecondary
            | Code::PrimarySteppedDown
            | Code::ShutdownInProgress
            | Code::InterruptedAtShutdown
            | Code::HostUnreachable
    )
}
