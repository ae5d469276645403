//! A router's command at the door of a shard: is what the router believes what the shard knows, and
//! are there documents to hide?
//!
//! Invariant: a command whose version is refused has changed nothing. One that is admitted while the
//! shard may hold orphans that it could find runs with a filter that hides them.

use super::WriterGuard;
use super::gates::Holder;
use super::hiding::Hider;
use super::pando_time::MOST_AHEAD_SECONDS;
use super::ranges_read::RangesRead;
use crate::Commands;
use crate::connection::Connection;
use crate::request::StillHolds;
use crate::security::authorize;
use crate::settings::parameters::PACED_MOVES;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Error, Result, err};
use executor::{OwnPlaces, Owns};
use front::specification::lookup;
use front::{Specification, flag};
use service::{Client, Request};
use sharding::{
    DatabasePrimary, DbVersion, Ownership, PlaceRange, Received, Series, Standing,
    database_standing, standing,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use time_series::TimeSeriesOptions;

/// The name by which a shard knows what it owns of a collection.
pub(crate) struct OwnershipKey {
    /// The collection: of measurements that of their buckets.
    pub name: String,
    series: Option<Arc<TimeSeriesOptions>>,
}

impl OwnershipKey {
    /// The measurements, in whose names commands speak.
    fn series_of(&self, known: &Ownership) -> Option<Series> {
        let options = self.series.as_ref()?.to_doc();
        Series::new(options.as_doc(), &known.key)
    }
}

/// What a router's command holds, and what it runs as.
#[derive(Default)]
pub struct Admitted {
    pub writer: Option<WriterGuard>,
    /// The command with the orphans hidden, in place of the one that came.
    pub body: Option<DocBuf>,
    /// Of a read: what it was admitted by.
    pub ranges: Option<RangesRead>,
    /// The same of a command for a database as a whole.
    pub database_read: Option<DatabaseRead>,
    /// Of the next batch of a `$merge` in parts: what it writes here.
    pub own_places: Option<OwnPlaces>,
}

impl StillHolds for Admitted {
    fn check(&self, app: &Commands) -> Result<()> {
        if let Some(ranges) = &self.ranges {
            ranges.check()?;
        }
        self.database_read
            .as_ref()
            .map_or(Ok(()), |read| read.check(app))
    }
}

/// What a shard owns, as it was when the command was admitted.
struct Owned(Arc<Ownership>);

impl Owns for Owned {
    fn owns(&self, doc: Doc<'_>) -> Result<bool> {
        self.0.owns(doc)
    }
}

impl Commands {
    /// The shard's part of a collection that a router names. Its buckets may be sharded where it is not
    /// there.
    pub(crate) fn ownership_key(&self, ns: &str) -> OwnershipKey {
        let found = self.engine.catalog.get(ns);
        let series = found.as_ref().and_then(|c| c.measurements().cloned());
        let buckets = || time_series::buckets_of(ns);
        let name = match (&series, &found) {
            (Some(_), _) => buckets(),
            (None, None) if self.ownerships.get(ns).is_none() => Some(buckets())
                .filter(|name| self.ownerships.get(name).is_some())
                .unwrap_or_else(|| ns.to_string()),
            _ => ns.to_string(),
        };
        OwnershipKey { name, series }
    }

    /// How long a router's write waits, because a mover could not keep up otherwise.
    pub(crate) fn slowed_write(
        &self,
        command: &Specification,
        request: &Request<'_>,
    ) -> Option<Duration> {
        let any = self.ownerships.slows_any();
        if !any || !command.is(flag::WRITE) || request.body.contains("moveTurn") {
            return None;
        }
        let first = request.body.first().map_or(Val::NULL, |e| e.val);
        let (db, coll) = command.target(request.db().unwrap_or(""), first)?;
        self.ownerships.slowed(&format!("{db}.{coll}"))
    }

    /// Compares versions where the command carries one.
    pub(crate) fn admit_router(
        &self,
        command: &Specification,
        client: &Client<Connection>,
        request: &Request<'_>,
    ) -> Result<Admitted, Error> {
        let mut admitted = Admitted::default();
        let moves = request.body.contains("moveTurn");
        let merges = command.name == "getMore" && request.body.contains("writesTo");
        if !moves && !merges && !request.body.contains("shardVersion") {
            return Ok(admitted);
        }
        if self.security.enabled && !authorize::is_member(client) {
            return Err(err!(
                Unauthorized,
                "shardVersion is for routers, which log in as members of the cluster"
            ));
        }
        if moves {
            return self.admit_mover(request);
        }
        self.ownerships.serving(request.message_bytes);
        self.hear_time(request.body);
        if merges {
            return self.admit_merging(request);
        }
        if let Some(inner) = request.body.get("explain").and_then(Val::as_doc)
            && command.name == "explain"
        {
            return self.admit_explained(request, inner);
        }
        let received = Received::of(request.body).map_err(|stop| stop.into_error())?;
        let first = request.body.first().map_or(Val::NULL, |e| e.val);
        let db = request.db().unwrap_or("");
        // A pipeline that a router has made, of documents that are to be merged into a collection.
        let merged = request.body.get("mergeTarget").and_then(Val::as_str);
        let ns = match (merged, command.target(db, first)) {
            (Some(target), _) => target.to_string(),
            (None, Some((db, coll))) => format!("{db}.{coll}"),
            // Of a database as a whole.
            (None, None) => {
                let told = request.body.get("databaseVersion");
                self.check_database(told, db, false)?;
                admitted.database_read = DatabaseRead::of(told, db);
                return Ok(admitted);
            }
        };
        self.admit_namespace(command, request, &ns, received, admitted)
    }

    /// The rest, of a command on `ns`. `received`: the versions that it carries.
    fn admit_namespace(
        &self,
        command: &Specification,
        request: &Request<'_>,
        ns: &str,
        received: Received,
        mut admitted: Admitted,
    ) -> Result<Admitted, Error> {
        let merged = (request.body.get("mergeTarget")).is_some_and(|v| v.as_str().is_some());
        let owned = self.ownership_key(ns);
        let told = request.body.get("databaseVersion");
        let database = ns.split_once('.').map_or(ns, |(db, _)| db);
        let holder = holder(request.body);
        if command.is(flag::WRITE) || merged || holder.is_some() {
            let gated = told.map(|_| database);
            let guard = self.ownerships.enter(&owned.name, gated, holder.as_ref());
            // A read needs none, but goes on where its transaction has one: it could not end otherwise.
            admitted.writer = match command.is(flag::WRITE) || merged {
                true => Some(guard.ok_or_else(|| refusal(ns, received, None, true))?),
                false => guard.filter(WriterGuard::again),
            };
        }
        let again = admitted.writer.as_ref().is_some_and(WriterGuard::again);
        self.check_database(told, database, again)?;
        // Views are where the database is.
        let reads = matches!(command.name, "find" | "aggregate" | "count" | "distinct");
        if reads && !asks_of_itself(request.body) {
            self.tell_of_view(ns, request)?;
        }
        if let Some(target) = request.body.get("writesTo").and_then(Val::as_doc) {
            admitted.writer = Some(self.admit_target(target, holder.as_ref())?.0);
        }
        let known = unfenced(self.ownerships.get(&owned.name), again);
        match standing(known.as_deref(), received) {
            Standing::Serve { hides: false } => {}
            // A merged document is found by the shard key, so it is no orphan.
            Standing::Serve { .. } if merged => {}
            Standing::Serve { hides: true } => {
                if let Some(known) = &known {
                    admitted.body = self.hider(ns, &owned, known).hide(command.name, request);
                }
            }
            Standing::Stale => return Err(refusal(ns, received, known.as_deref(), false)),
            Standing::Fenced => return Err(refusal(ns, received, known.as_deref(), true)),
        }
        if admitted.writer.is_none() && command.name != "getMore" {
            let ranges = RangesRead::new(&self.ownerships, ns, owned.name, received, known);
            admitted.ranges = Some(ranges);
        }
        Ok(admitted)
    }
}

impl Commands {
    /// An explained command runs with the orphans hidden, as it would run for itself.
    fn admit_explained(&self, request: &Request<'_>, inner: Doc<'_>) -> Result<Admitted, Error> {
        let mut admitted = Admitted::default();
        let received = Received::of(request.body).map_err(|stop| stop.into_error())?;
        let first = inner.first();
        let Some((command, first)) = first.and_then(|e| Some((lookup(e.name)?, e.val))) else {
            return Ok(admitted);
        };
        let Some((db, coll)) = command.target(request.db().unwrap_or(""), first) else {
            return Ok(admitted);
        };
        let ns = format!("{db}.{coll}");
        let owned = self.ownership_key(&ns);
        self.check_database(request.body.get("databaseVersion"), db, false)?;
        let known = self.ownerships.get(&owned.name);
        match standing(known.as_deref(), received) {
            Standing::Serve { hides } => {
                if let (true, Some(known)) = (hides, &known) {
                    let hidden = self.hider(&ns, &owned, known);
                    let hidden = hidden.hide(command.name, &Request::own(inner));
                    admitted.body = hidden.map(|inner| explaining(request.body, &inner));
                }
            }
            Standing::Stale => return Err(refusal(&ns, received, known.as_deref(), false)),
            Standing::Fenced => return Err(refusal(&ns, received, known.as_deref(), true)),
        }
        let ranges = RangesRead::new(&self.ownerships, &ns, owned.name, received, known);
        admitted.ranges = Some(ranges);
        Ok(admitted)
    }

    fn hider<'k>(&self, ns: &str, owned: &OwnershipKey, known: &'k Ownership) -> Hider<'k> {
        Hider {
            known,
            collated: self.engine.catalog.collation_of(ns).is_some(),
            series: owned.series_of(known),
        }
    }
}

/// The explain in place of the one that came, of a command with the orphans hidden.
fn explaining(came: Doc<'_>, inner: &DocBuf) -> DocBuf {
    let mut w = Writer::with_capacity(came.len() + inner.as_bytes().len());
    w.doc("explain", inner.as_doc());
    for e in came.iter().filter(|e| e.name != "explain") {
        w.val(e.name, e.val);
    }
    w.finish()
}

/// A command for a database as a whole, of which the router believes that it is here.
pub struct DatabaseRead {
    db: String,
    told: DocBuf,
}

impl DatabaseRead {
    fn of(told: Option<Val<'_>>, db: &str) -> Option<DatabaseRead> {
        let told = told.and_then(Val::as_doc)?;
        Some(DatabaseRead {
            db: db.into(),
            told: told.to_buf(),
        })
    }

    /// Fails where the database has gone while the command ran.
    fn check(&self, commands: &Commands) -> Result<()> {
        let told = Some(self.told.as_doc().as_val());
        Ok(commands.check_database(told, &self.db, false)?)
    }
}

impl Commands {
    /// How much the shard has served for routers, in commands; none where movers need not rest.
    pub(super) fn served(&self) -> u64 {
        match self.parameters.bool(PACED_MOVES) {
            true => self.ownerships.served(),
            false => 0,
        }
    }

    /// Fails where the router believes another shard's time as the database's primary to be this
    /// one's, or the other way round. `again`: a fence is not finished before the command's
    /// transaction ends.
    fn check_database(&self, told: Option<Val<'_>>, db: &str, again: bool) -> Result<(), Error> {
        let Some(told) = told.and_then(Val::as_doc) else {
            return Ok(());
        };
        let received = DbVersion::parse(told).map_err(|stop| stop.into_error())?;
        let known = self.ownerships.database_primary(db);
        let fenced = match database_standing(known.as_deref(), received) {
            Standing::Serve { .. } => return Ok(()),
            Standing::Fenced if again => return Ok(()),
            Standing::Stale => false,
            Standing::Fenced => true,
        };
        let mut w = Writer::new();
        w.str("db", db)
            .doc("vReceived", told)
            .bool("fenced", fenced);
        if let Some(known) = known {
            w.doc("vWanted", known.version.to_doc().as_doc());
        }
        Err(err!(StaleDbVersion, "version mismatch for database {db}")
            .with_extra(w.finish().into_vec()))
    }

    /// The gates for the collection that a pipeline writes to beside the one that it reads, as the
    /// router believes it to be: `{ns, shardVersion, databaseVersion?}`.
    fn admit_target(
        &self,
        target: Doc<'_>,
        holder: Option<&Holder>,
    ) -> Result<(WriterGuard, Option<Arc<Ownership>>), Error> {
        let ns = target.get("ns").and_then(Val::as_str).unwrap_or_default();
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        let received = Received::of(target).map_err(|stop| stop.into_error())?;
        let told = target.get("databaseVersion");
        let database = told.map(|_| db);
        let owned = self.ownership_key(ns);
        let Some(guard) = self.ownerships.enter(&owned.name, database, holder) else {
            return Err(refusal(ns, received, None, true));
        };
        self.check_database(told, db, guard.again())?;
        let known = unfenced(self.ownerships.get(&owned.name), guard.again());
        match standing(known.as_deref(), received) {
            Standing::Serve { .. } => Ok((guard, known)),
            Standing::Stale => Err(refusal(ns, received, known.as_deref(), false)),
            Standing::Fenced => Err(refusal(ns, received, known.as_deref(), true)),
        }
    }

    /// The gate for the next batch of a `$merge` in parts, and what belongs here meanwhile.
    fn admit_merging(&self, request: &Request<'_>) -> Result<Admitted, Error> {
        let target = request.body.get("writesTo").and_then(Val::as_doc);
        let target = target.unwrap_or(Doc::EMPTY);
        let ns = target.get("ns").and_then(Val::as_str).unwrap_or_default();
        let (writer, known) = self.admit_target(target, None)?;
        let own = known.map(|known| OwnPlaces::new(ns, Arc::new(Owned(known))));
        Ok(Admitted {
            writer: Some(writer),
            own_places: own,
            ..Admitted::default()
        })
    }

    /// Fails where the mover of a database's primary was followed by another, or the shard is the
    /// primary by now.
    fn admit_primary_mover(&self, db: &str, turn: u64) -> Result<Admitted, Error> {
        let known = self.ownerships.database_primary(db);
        match DatabasePrimary::takes_from(known.as_deref(), turn) {
            true => Ok(Admitted::default()),
            false => Err(err!(
                ConflictingOperationInProgress,
                "the primary of {db} is being changed by somebody else since"
            )),
        }
    }

    /// The gate for a part of a range's move. Fails if the lock has had a later holder: the mover's
    /// messages are refused then.
    pub(crate) fn admit_mover(&self, request: &Request<'_>) -> Result<Admitted, Error> {
        let told = request.body.get("moveTurn").and_then(Val::as_doc);
        let database =
            told.and_then(|d| Some((d.get("db")?.as_str()?, d.get("turn")?.to_i64_exact()?)));
        if let Some((db, turn)) = database {
            return self.admit_primary_mover(db, turn as u64);
        }
        let part = told.and_then(|d| {
            Some((
                d.get("ns")?.as_str()?,
                d.get("life")?.as_timestamp()?,
                d.get("turn")?.to_i64_exact()? as u64,
            ))
        });
        let Some((ns, life, turn)) = part else {
            return Err(err!(
                FailedToParse,
                "moveTurn is {{ns, life, turn, range?}} or {{db, turn}}"
            ));
        };
        let range = told.and_then(|d| d.get("range")?.as_doc());
        let range = range.map(PlaceRange::parse).transpose();
        let range = range.map_err(|stop| stop.into_error())?;
        let gone = || {
            err!(
                ConflictingOperationInProgress,
                "{ns} is being changed by somebody else since"
            )
        };
        let writer = self.ownerships.enter_mover(ns, range.clone());
        let known = self.ownerships.get(ns);
        match Ownership::takes_from(known.as_deref(), life, turn, range.as_ref()) {
            true => Ok(Admitted {
                writer: Some(writer),
                ..Admitted::default()
            }),
            false => Err(gone()),
        }
    }

    /// As the configuration set: a write that follows from a write on a shard has a later time, so the
    /// logs of all sets up to one time fit together.
    pub(crate) fn hear_time_of_router(&self, client: &Client<Connection>, body: Doc<'_>) {
        if !self.security.enabled || authorize::is_member(client) {
            self.hear_time(body);
        }
    }

    /// Writes from now on are later than all that the router has seen. A time far ahead of the clock is
    /// ignored.
    pub(crate) fn hear_time(&self, body: Doc<'_>) {
        let told = body.get("$clusterTime").and_then(Val::as_doc);
        let Some(time) = told.and_then(|t| t.get("clusterTime")?.as_timestamp()) else {
            return;
        };
        let now = u64::try_from(self.engine.now_millis() / 1000).unwrap_or(0);
        if time >> 32 <= now + MOST_AHEAD_SECONDS {
            self.store.advance_clock(time + 1);
        }
    }

    /// Fails for a view with what it is made of: what lies below may be on other shards. In a
    /// transaction, which an error would end, only where that is known.
    fn tell_of_view(&self, ns: &str, request: &Request<'_>) -> Result<(), Error> {
        let Some(coll) = self.engine.catalog.get(ns) else {
            return Ok(());
        };
        let (Some(on), None) = (coll.option("viewOn"), coll.measurements()) else {
            return Ok(());
        };
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        let on = format!("{db}.{}", on.as_str().unwrap_or_default());
        let in_transaction = request.body.get("autocommit").and_then(Val::as_bool) == Some(false);
        if in_transaction && self.ownerships.get(&on).is_none() {
            return Ok(());
        }
        let mut w = Writer::new();
        w.open_doc("resolvedView").str("ns", &on);
        match coll.option("pipeline") {
            Some(pipeline) => w.val("pipeline", pipeline),
            None => w.open_array("pipeline").close(),
        };
        if let Some(collation) = coll.option("collation") {
            w.val("collation", collation);
        }
        w.close();
        Err(err!(
            CommandOnShardedViewNotSupportedOnMongod,
            "{ns} is a view: a router reads what lies below it"
        )
        .with_extra(w.finish().into_vec()))
    }
}

impl Commands {
    /// Fails a statement of a transaction whose snapshot is older than the collection's ranges here:
    /// it would miss what has come in since.
    pub(crate) fn check_ranges_are_older(
        &self,
        command: &Specification,
        request: &Request<'_>,
        began: Instant,
    ) -> Result<(), Error> {
        if !request.body.contains("shardVersion") {
            return Ok(());
        }
        let first = request.body.first().map_or(Val::NULL, |e| e.val);
        let Some((db, coll)) = command.target(request.db().unwrap_or(""), first) else {
            return Ok(());
        };
        let ns = format!("{db}.{coll}");
        match self.ownerships.changed(&self.ownership_key(&ns).name) {
            Some(changed) if changed > began => Err(err!(
                MigrationConflict,
                "Transaction's snapshot is older than the ranges of {ns} on this shard. Please retry your operation or multi-document transaction."
            )),
            _ => Ok(()),
        }
    }
}

/// Whether a pipeline begins with a stage about a collection as such, which is none about what lies
/// below a view.
fn asks_of_itself(command: Doc<'_>) -> bool {
    let stages = command.get("pipeline").and_then(Val::as_array);
    let first = stages.and_then(|s| s.values().next()?.as_doc()?.first());
    first.is_some_and(|e| matches!(e.name, "$collStats" | "$indexStats" | "$planCacheStats"))
}

/// The transaction that a command belongs to.
fn holder(body: Doc<'_>) -> Option<Holder> {
    if body.get("autocommit").and_then(Val::as_bool) != Some(false) {
        return None;
    }
    let lsid = body.get("lsid")?.as_doc()?;
    Some((
        lsid.as_bytes().to_vec(),
        body.get("txnNumber")?.to_i64_exact()?,
    ))
}

/// The state without a fence that waits for the command's own transaction.
fn unfenced(known: Option<Arc<Ownership>>, again: bool) -> Option<Arc<Ownership>> {
    match known {
        Some(known) if again && known.fence.is_some() => Some(Arc::new(known.without_fence())),
        known => known,
    }
}

pub(super) fn refusal(
    ns: &str,
    received: Received,
    known: Option<&Ownership>,
    fenced: bool,
) -> Error {
    let mut w = Writer::new();
    w.str("ns", ns);
    if let Received::Version(version) = received {
        w.doc("vReceived", version.to_doc().as_doc());
    }
    if let Some(known) = known {
        w.doc("vWanted", known.version.to_doc().as_doc());
    }
    w.bool("fenced", fenced);
    let why = match fenced {
        true => "a range of it is being moved",
        false => "the versions of router and shard differ",
    };
    err!(
        StaleConfig,
        "sharding status of collection {ns} is not as the router believes: {why}"
    )
    .with_extra(w.finish().into_vec())
}
