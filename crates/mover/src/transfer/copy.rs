//! Documents on their way from one shard to others, while they are written: a snapshot, then what the
//! donor's log says was touched, until little is left.
//!
//! Invariant: the steps are [`Follow`]'s. A document is at least as new as the place up to which the log
//! was read.

use super::MoveOptions;
use super::leases::LogLeases;
use super::progress::{MoveProgress, Work};
use super::put::{Copiers, Put};
use super::throttle::Throttle;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::Outcome;
use cluster_view::chunks::Lock;
use cluster_view::metadata::{Cluster, batches, each, run};
use cluster_view::upstream::with_fields;
use cluster_view::write_concern::majority;
use errors::{Code, err};
use sharding::follow::{Changes, Follow, FollowRequest, Newest, Touched};
use sharding::series::measurements_of;
use sharding::{PlaceRange, Version};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a writer's command waits at first, where the copy does not come nearer.
const SLOW_MILLIS: i64 = 2;
/// The donor forgets it after a second.
const SLOWED_ANEW: Duration = Duration::from_millis(300);

/// Where documents go.
pub(super) struct CopyRoute<'m> {
    pub cluster: &'m Cluster,
    pub held: &'m Lock<'m>,
    pub ns: &'m str,
    /// The collection's life while they move.
    pub life: Version,
    /// What of the collection goes; without it, whatever a shard gives.
    pub range: Option<PlaceRange>,
    /// The collection that they are put in.
    pub into: String,
    pub recipients: Vec<Arc<str>>,
    /// The recipient of a document, unless it stays where it is.
    pub place: &'m (dyn Fn(Doc<'_>) -> Outcome<Option<Arc<str>>> + Sync),
    pub leases: LogLeases,
    pub progress: MoveProgress,
}

impl CopyRoute<'_> {
    /// Whether all of a donor's documents go.
    pub fn gives_all(&self) -> bool {
        self.range
            .as_ref()
            .is_none_or(|range| *range == PlaceRange::all())
    }

    /// What says to a shard whose part of a move a write is.
    pub fn turn(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("ns", self.ns)
            .timestamp("life", self.life.timestamp)
            .i64("turn", self.held.turn());
        if let Some(range) = &self.range {
            w.doc("range", range.to_doc().as_doc());
        }
        w.finish()
    }
}

impl Drop for Donor<'_> {
    /// Its log need not be kept any more. A shard that does not hear of that drops the lease itself.
    fn drop(&mut self) {
        self.route.let_go_of_log(&self.shard);
    }
}

/// What one shard gives.
pub(super) struct Donor<'m> {
    route: &'m CopyRoute<'m>,
    pub shard: Arc<str>,
    /// A filter for its documents, among those of others at a recipient.
    mine: DocBuf,
    follow: Follow,
    /// All of it was copied once.
    copied: bool,
    /// Nothing of it is written any more.
    fenced: bool,
    throttle: Throttle<'m>,
    options: MoveOptions,
    /// When it was last told to slow writers down.
    slowed: Instant,
    /// The limits of an index that find the same: `hint`, `min`, `max`.
    limits: DocBuf,
    began: Instant,
    /// Of most of the last documents the recipient had no older state: they are new, or were copied as
    /// they are.
    are_new: bool,
}

/// Whatever the collection's own is: places are in the order of bytes.
fn simple() -> DocBuf {
    doc! {"locale": "simple"}
}

pub(super) fn parts(ns: &str) -> (&str, &str) {
    ns.split_once('.').unwrap_or((ns, ""))
}

impl<'m> Donor<'m> {
    /// From here on its log is kept, and tells which documents change.
    pub fn begin(route: &'m CopyRoute<'m>, shard: &Arc<str>, mine: DocBuf) -> Outcome<Donor<'m>> {
        let mut sides = route.recipients.clone();
        if !sides.contains(shard) {
            sides.push(shard.clone());
        }
        let mut donor = Donor {
            throttle: Throttle::new(route.cluster, route.held, sides, &route.recipients),
            route,
            shard: shard.clone(),
            mine,
            follow: Follow::new(),
            copied: false,
            fenced: false,
            options: MoveOptions::default(),
            slowed: Instant::now(),
            limits: DocBuf::default(),
            began: Instant::now(),
            are_new: true,
        };
        donor.go_on()?;
        donor.keep_logs();
        Ok(donor)
    }

    pub fn with_options(mut self, options: &MoveOptions) -> Donor<'m> {
        self.options = options.clone();
        self
    }

    /// By an index, within these limits.
    pub fn by(mut self, limits: DocBuf) -> Donor<'m> {
        self.limits = limits;
        self
    }

    /// Between pieces of the copy: fails where there is no time left, waits for the members that were
    /// asked for.
    fn between(&mut self) -> Outcome<()> {
        self.options.check()?;
        self.keep_logs_now_and_then();
        self.tell_progress();
        let route = self.route;
        route
            .recipients
            .iter()
            .try_for_each(|recipient| self.options.wait(route.cluster, route.held, recipient))
    }

    fn tell_progress(&self) {
        let work = Work {
            catches_up: self.copied,
            backlog: self.follow.backlog(),
            share: self.throttle.share(),
            limits: self.limits.as_doc(),
        };
        self.route.progress.tell(self.route, &work);
    }

    fn keep_logs_now_and_then(&self) {
        if self.route.leases.is_due() {
            self.keep_logs();
        }
    }

    fn keep_logs(&self) {
        let (after, _) = self.follow.place();
        self.route.keep_logs(&self.shard, after);
    }

    /// Says something of the lease on the log of the donor's primary.
    fn lease(&self, what: DocBuf) -> Outcome<()> {
        let cluster = self.route.cluster;
        let said = cluster.on_shard(&self.shard, "admin", self.route.of_lease(&what).as_doc());
        said.map(drop)
    }

    /// A find at the donor's current primary: it has everything up to the read position of the log.
    fn find(&self, filter: Doc<'_>) -> DocBuf {
        let (_, collection) = parts(self.route.ns);
        let mut w = Writer::new();
        w.str("find", collection)
            .doc("filter", filter)
            .doc("collation", simple().as_doc())
            .bool("noCursorTimeout", true);
        w.open_doc("readConcern").str("level", "local");
        if self.follow.time() > 0 {
            w.timestamp("afterClusterTime", self.follow.time());
        }
        w.close();
        w.finish()
    }

    pub fn copy(&mut self) -> Outcome<()> {
        let (db, _) = parts(self.route.ns);
        let first = doc! {"batchSize": self.throttle.documents() as i64};
        let find = with_fields(self.find(self.mine.as_doc()).as_doc(), self.limits.as_doc());
        let find = with_fields(find.as_doc(), first.as_doc());
        let from = self.route.cluster.shard(&self.shard)?;
        let refused = std::thread::scope(|threads| {
            let copiers = Copiers::new(threads, self.throttle.copiers());
            let mut put = Put::by(self.route, Some(copiers));
            let mut work = Instant::now();
            batches(&from, db, find.as_doc(), |batch| {
                for d in batch.values().filter_map(Val::as_doc) {
                    put.add(d)?;
                }
                if !self.throttle.is_idle() {
                    put.send_all()?;
                }
                self.throttle.after(work);
                self.between()?;
                work = Instant::now();
                Ok(Some(self.throttle.documents()))
            })?;
            put.end()
        })?;
        self.follow.copied(refused);
        self.copied = true;
        Ok(())
    }

    /// Rounds, until little is left.
    pub fn come_near(&mut self) -> Outcome<()> {
        self.follow.come_near(self.began.elapsed());
        self.go_on()
    }

    /// The last round, when nothing is written any more.
    pub fn finish(&mut self) -> Outcome<()> {
        self.fenced = true;
        self.follow.finish(self.began.elapsed());
        self.go_on()
    }

    fn go_on(&mut self) -> Outcome<()> {
        while let Some(ask) = self.follow.ask() {
            let hurries = self.slow_down()?;
            // Behind the fence routers wait: nothing is told that can be told later.
            if !self.fenced {
                self.keep_logs_now_and_then();
                self.tell_progress();
            }
            match ask {
                FollowRequest::Changes(after) => {
                    let changes = self.changes(after)?;
                    self.follow.heard(changes, self.began.elapsed())?;
                }
                FollowRequest::Renew(touched) => {
                    let work = Instant::now();
                    let may_rest = !hurries && self.follow.may_rest(self.began.elapsed());
                    let refused = self.renew(&touched)?;
                    self.follow.put(refused, self.began.elapsed())?;
                    self.options.check()?;
                    if may_rest {
                        self.throttle.after(work);
                        self.between()?;
                        self.follow.renew_at_once(self.throttle.documents());
                    }
                }
            }
        }
        Ok(())
    }

    /// Where the donor's writers are faster than the copy, each of their commands waits a little, and
    /// longer the longer that lasts. Whether they are.
    fn slow_down(&mut self) -> Outcome<bool> {
        let hurry = self.follow.hurry(self.began.elapsed());
        if hurry > 0 && self.slowed.elapsed() >= SLOWED_ANEW {
            let millis = SLOW_MILLIS << (hurry - 1);
            let (after, _) = self.follow.place();
            self.lease(doc! {"after": after, "renew": true, "slowMillis": millis})?;
            self.slowed = Instant::now();
        }
        Ok(hurry > 0)
    }

    fn changes(&self, after: Option<(i64, i64)>) -> Outcome<Changes> {
        let mut w = Writer::new();
        w.i32("_pandoChanges", 1).str("ns", self.route.ns);
        w.str("lease", &self.route.held.fence());
        if let Some((after, term)) = after {
            w.i64("after", after).i64("term", term);
            w.bool("documents", true);
        }
        if let Some(range) = &self.route.range {
            w.doc("range", range.to_doc().as_doc());
        }
        let cluster = self.route.cluster;
        let reply = cluster.on_shard(&self.shard, "admin", w.finish().as_doc())?;
        let number = |name: &str| reply.get(name).and_then(Val::to_i64_exact);
        let (Some(up_to), Some(term)) = (number("upTo"), number("term")) else {
            return Err(err!(
                InternalError,
                "{} does not say where its log ends",
                self.shard
            )
            .into());
        };
        let time = reply.get("operationTime").and_then(Val::as_timestamp);
        Ok(Changes {
            touched: touched_in(reply.as_doc()),
            up_to,
            term,
            // An older donor does not say it.
            end: number("end").unwrap_or(i64::MAX),
            time: time.unwrap_or(0),
            more: reply.get("more").is_some_and(Val::truthy),
        })
    }

    /// Puts the newest state of documents in the place of what the recipients have of them. The ids
    /// of those that were not taken.
    fn renew(&mut self, touched: &[Touched]) -> Outcome<Vec<Value>> {
        // Of several recipients another one than the document's may have an older state of it.
        if !self.are_new || self.route.recipients.len() > 1 {
            let removed = self.remove(touched)?;
            self.are_new = removed * 2 < touched.len() as u64;
            return Ok(self.put_newest(touched)?.0);
        }
        let (refused, absent) = self.put_newest(touched)?;
        self.are_new = refused.len() * 2 < touched.len();
        let mut refused: HashSet<Value> = refused.into_iter().collect();
        let is_behind = |t: &&Touched| refused.remove(&t.id) || absent.contains(&t.id);
        let mut behind: Vec<Touched> = touched.iter().filter(is_behind).cloned().collect();
        behind.extend(refused.into_iter().map(Touched::unknown));
        if behind.is_empty() {
            return Ok(Vec::new());
        }
        self.remove(&behind)?;
        Ok(self.put_newest(&behind)?.0)
    }

    /// Removes what the recipients have of documents: how many they had.
    fn remove(&self, touched: &[Touched]) -> Outcome<u64> {
        let (into_db, into) = parts(&self.route.into);
        let ids = one_of(touched.iter().map(|t| &t.id));
        let both = doc! {"$and": bson::array![ids, self.mine.clone()]};
        let delete = doc! {
            "delete": into,
            "deletes": bson::array![doc! {"q": both, "limit": 0, "collation": simple()}],
            "fromMigrate": true,
            "moveTurn": self.route.turn(),
            "writeConcern": majority(),
        };
        let mut removed = 0;
        for recipient in &self.route.recipients {
            let reply = self
                .route
                .cluster
                .on_shard(recipient, into_db, delete.as_doc())?;
            if let Some(errors) = reply.get("writeErrors") {
                return Err(err!(OperationFailed, "{recipient} removes nothing: {errors}").into());
            }
            removed += reply.get("n").and_then(Val::to_i64_exact).unwrap_or(0);
        }
        Ok(removed.unsigned_abs())
    }

    /// Inserts the newest states. The ids of those that were not taken, and of those that the donor has
    /// none of.
    fn put_newest(&self, touched: &[Touched]) -> Outcome<(Vec<Value>, HashSet<Value>)> {
        let mut put = Put::by(self.route, None);
        let (mut absent, mut unknown) = (HashSet::new(), Vec::new());
        for one in touched {
            match &one.newest {
                Newest::Document(d) if put.add(d.as_doc())? => continue,
                Newest::Unknown => unknown.push(&one.id),
                Newest::Document(_) | Newest::Gone => {}
            }
            absent.insert(one.id.clone());
        }
        if !unknown.is_empty() {
            let (db, _) = parts(self.route.ns);
            let from = self.route.cluster.shard(&self.shard)?;
            let find = self.find(one_of(unknown).as_doc());
            each(&from, db, find.as_doc(), |d| {
                if put.add(d)? {
                    absent.remove(&d.get("_id").unwrap_or(Val::NULL).to_value());
                }
                Ok(())
            })?;
        }
        Ok((put.end()?, absent))
    }
}

/// The documents of which a reply of `_pandoChanges` tells. An older donor tells of ids only.
fn touched_in(reply: Doc<'_>) -> Vec<Touched> {
    let list = |name: &str| {
        let list = reply.get(name).and_then(Val::as_array);
        list.unwrap_or(Doc::EMPTY).values()
    };
    let documents = list("documents").filter_map(Val::as_doc).map(|d| Touched {
        id: d.get("_id").unwrap_or(Val::NULL).to_value(),
        newest: Newest::Document(d.to_buf()),
    });
    let gone = list("gone").map(|id| Touched {
        id: id.to_value(),
        newest: Newest::Gone,
    });
    let ids = list("ids").map(|id| Touched::unknown(id.to_value()));
    documents.chain(gone).chain(ids).collect()
}

/// The filter of documents by their `_id`.
fn one_of<'i>(ids: impl IntoIterator<Item = &'i Value>) -> DocBuf {
    let mut list = Writer::new_array();
    for id in ids {
        list.push(id.as_val());
    }
    doc! {"_id": doc! {"$in": list.finish_array()}}
}

/// What a collection is like at a shard: its indexes, and its options, if it has any.
pub(super) fn likeness(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Vec<DocBuf>> {
    let shown = measurements_of(ns);
    let ns = shown.as_deref().unwrap_or(ns);
    let mut found = cluster_view::collections::indexes_of(cluster, shard, ns)?;
    found.extend(cluster_view::collections::options_of(cluster, shard, ns)?);
    found.extend(cluster_view::collections::search_definitions(
        cluster, shard, ns,
    )?);
    Ok(found)
}

/// The collection at a recipient as it is at a donor: with its options, its indexes and its UUID, unless
/// another is given, and no documents of it.
pub fn make_like(
    cluster: &Cluster,
    from: &str,
    ns: &str,
    to: &str,
    (into, uuid): (&str, Option<[u8; 16]>),
) -> Outcome<()> {
    // A time series makes its buckets, which have the UUID.
    let uuid = match uuid {
        None => cluster_view::collections::uuid_of(cluster, from, ns)?,
        given => given,
    };
    let (shown, shown_into) = (measurements_of(ns), measurements_of(into));
    let measured = shown.is_some();
    let (ns, into) = (
        shown.as_deref().unwrap_or(ns),
        shown_into.as_deref().unwrap_or(into),
    );
    let (into_db, into) = parts(into);
    let options = cluster_view::collections::options_of(cluster, from, ns)?;
    let to_name = to;
    let to = cluster.shard(to)?;
    let mut w = Writer::new();
    w.str("create", into);
    let options = options.unwrap_or_default();
    w.extend(options.as_doc());
    if let Some(uuid) = uuid {
        w.binary("pandoUUID", 4, &uuid);
    }
    // A move is not a user's write, so write blocks do not apply.
    w.doc("writeConcern", majority().as_doc())
        .bool("mayBypassWriteBlocking", true);
    match run(&to, into_db, w.finish().as_doc()) {
        Err(cluster_view::Failure::Client(e)) if e.code == Code::NamespaceExists => {}
        other => drop(other?),
    }
    let mut w = Writer::new();
    w.str("createIndexes", into).open_array("indexes");
    let mut any = false;
    for index in cluster_view::collections::indexes_of(cluster, from, ns)? {
        if index.get("name").and_then(Val::as_str) != Some("_id_")
            && !index.get("clustered").is_some_and(Val::truthy)
        {
            let mut own = Writer::new();
            own.extend(index.as_doc());
            // One that says nothing is by bytes, whatever the collection's own is.
            if options.as_doc().contains("collation") && !index.as_doc().contains("collation") {
                own.doc("collation", simple().as_doc());
            }
            w.push(own.finish().as_doc().as_val());
            any = true;
        }
    }
    w.close()
        .doc("writeConcern", majority().as_doc())
        .bool("mayBypassWriteBlocking", true);
    if any {
        run(&to, into_db, w.finish().as_doc())?;
    }
    if measured {
        return Ok(());
    }
    cluster_view::collections::copy_search_definitions(
        cluster,
        (from, ns),
        (to_name, &format!("{into_db}.{into}")),
    )
}

/// The records of retryable writes: the recipient gets retries from now on.
pub(super) fn copy_sessions(cluster: &Cluster, from: &str, to: &str) -> Outcome<()> {
    let (from, to) = (cluster.shard(from)?, cluster.shard(to)?);
    let mut after: Option<Value> = None;
    loop {
        let mut w = Writer::new();
        w.i32("_pandoSessions", 1);
        if let Some(after) = &after {
            w.val("after", after.as_val());
        }
        let reply = run(&from, "admin", w.finish().as_doc())?;
        let records = reply.get("records").and_then(Val::as_array);
        let records = records.unwrap_or(Doc::EMPTY);
        if !records.is_empty() {
            let mut w = Writer::new();
            w.i32("_pandoSessions", 1)
                .val("put", records.as_array_val());
            w.doc("writeConcern", majority().as_doc());
            run(&to, "admin", w.finish().as_doc())?;
        }
        match reply.get("next").map(|v| v.to_value()) {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}
