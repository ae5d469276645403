//! What the configuration set says of the cluster, as far as it was needed.
//!
//! Invariant: the cache may be stale. A shard that knows better says so, and it is read again.

use crate::refresh::Refreshes;
use crate::replica_set::{ConnectionStrings, ReplicaSet};
use crate::upstream::{error_of, message, with_fields};
use crate::write_concern::acknowledged;
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use errors::err;
use parking_lot::RwLock;
use service::moves::Moves;
use sharding::{Chunk, CollectionEntry, DbVersion, RoutingTable, Series, ShardKey, series};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Where a collection is.
#[derive(Clone)]
pub enum Placement {
    Unsharded(Unsharded),
    Sharded(Arc<RoutingTable>),
}

/// Where a collection is that is not sharded.
#[derive(Clone)]
pub struct Unsharded {
    pub shard: Arc<str>,
    /// On the database's primary shard, as of this version of the database.
    pub database: Option<DbVersion>,
    /// It was moved by itself (`moveCollection`): its one chunk says where it is.
    pub table: Option<Arc<RoutingTable>>,
}

impl Unsharded {
    /// Of a shard whose collections nothing moves.
    fn fixed(shard: &str) -> Unsharded {
        Unsharded {
            shard: shard.into(),
            database: None,
            table: None,
        }
    }

    /// On the primary shard of its database.
    pub fn on_primary(primary: &KnownPrimary) -> Unsharded {
        Unsharded {
            shard: primary.shard.clone(),
            database: primary.version,
            table: None,
        }
    }
}

/// A database's primary shard.
#[derive(Clone)]
pub struct KnownPrimary {
    pub shard: Arc<str>,
    pub version: Option<DbVersion>,
}

impl Placement {
    /// The chunks, where the metadata has any: of a collection that is sharded, or was moved by itself.
    pub fn table(&self) -> Option<&Arc<RoutingTable>> {
        match self {
            Placement::Sharded(table) => Some(table),
            Placement::Unsharded(unsharded) => unsharded.table.as_ref(),
        }
    }

    fn of(table: RoutingTable) -> Placement {
        let first = table.chunks().next().map(|chunk| chunk.shard.clone());
        match first {
            Some(shard) if table.entry.unsplittable => Placement::Unsharded(Unsharded {
                shard,
                database: None,
                table: Some(Arc::new(table)),
            }),
            _ => Placement::Sharded(Arc::new(table)),
        }
    }
}

/// The name under which the configuration set is asked like a shard.
pub const CONFIG: &str = "config";

#[derive(Default)]
struct Known {
    /// `set/host:port,…` of all shards.
    addresses: HashMap<String, String>,
    /// The shards that were asked for. Each member of these is watched, so a process that needs a few of a
    /// thousand shards watches these.
    shards: HashMap<String, Arc<ReplicaSet>>,
    /// The sets of before the cache was cleared: a set at the same address is reused.
    earlier: HashMap<String, Arc<ReplicaSet>>,
    databases: HashMap<String, KnownPrimary>,
    collections: HashMap<String, Placement>,
}

/// Which members of the configuration set may answer a read.
#[derive(Clone, Copy)]
enum Readers {
    Primary,
    /// One of those that are near.
    Any,
}

impl Readers {
    fn say(self, command: &mut Writer) {
        if let Readers::Any = self {
            command.doc("$readPreference", doc! {"mode": "nearest"}.as_doc());
        }
    }
}

/// Finds what a majority of the configuration set has.
fn find_in(collection: &str, filter: Doc<'_>) -> Writer {
    let mut w = Writer::new();
    w.str("find", collection)
        .doc("filter", filter)
        .doc("readConcern", doc! {"level": "majority"}.as_doc());
    w
}

/// How far ahead of the clock a client's time may be, in seconds.
const MOST_AHEAD_SECONDS: u64 = 10;

/// What moves data in this process, and ends what others began; this room knows no more of it.
pub trait Mover: Send + Sync {
    /// Takes away the fence of a shard that holds routers up, without ending what it was raised for, if
    /// that was not done; tells the shards, if it was. `name`: of a collection or a database.
    fn release_fence(&self, cluster: &Cluster, name: &str, shard: &str) -> Outcome<()>;

    /// Itself, for its own room.
    fn as_any(&self) -> &dyn Any;
}

/// The cluster, as one process knows it.
pub struct Cluster {
    pub config: Arc<ReplicaSet>,
    pub config_address: String,
    access: ConnectionStrings,
    known: RwLock<Known>,
    /// The latest time that a set has told of.
    time: Arc<AtomicU64>,
    pub refreshes: Refreshes,
    pub moves: Arc<Moves>,
    pub mover: Box<dyn Mover>,
}

impl Cluster {
    pub fn new(config: &str, access: ConnectionStrings, mover: Box<dyn Mover>) -> Cluster {
        let time = Arc::<AtomicU64>::default();
        let set = ReplicaSet::of_cluster(config, access.clone(), time.clone());
        Cluster {
            config: Arc::new(set),
            config_address: config.into(),
            access,
            known: RwLock::default(),
            time,
            refreshes: Refreshes::default(),
            moves: Arc::default(),
            mover,
        }
    }

    /// What it moves is counted there.
    pub fn counting(mut self, moves: Arc<Moves>) -> Cluster {
        self.moves = moves;
        self
    }

    /// Takes over the cluster's time from a shard's reply.
    pub fn note_time(&self, reply: Doc<'_>) {
        let time = time_in(reply).unwrap_or(0);
        self.time.fetch_max(time, Ordering::Relaxed);
    }

    /// Takes over the time of which a client has heard elsewhere, unless it is far ahead of the
    /// clock: nothing proves it.
    pub fn hear_time(&self, command: Doc<'_>) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let most = since.map_or(0, |d| d.as_secs()) + MOST_AHEAD_SECONDS;
        if let Some(time) = time_in(command).filter(|time| time >> 32 <= most) {
            self.time.fetch_max(time, Ordering::Relaxed);
        }
    }

    pub fn time(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    /// A set that is no shard yet.
    pub fn outside(&self, address: &str) -> ReplicaSet {
        ReplicaSet::of_cluster(address, self.access.clone(), self.time.clone())
    }

    /// Runs a command on the configuration set; an error reply is an error.
    pub fn on_config(&self, db: &str, command: Doc<'_>) -> Outcome<DocBuf> {
        run(&self.config, db, command)
    }

    /// Runs a command on a shard; an error reply is an error.
    pub fn on_shard(&self, shard: &str, db: &str, command: Doc<'_>) -> Outcome<DocBuf> {
        run(&*self.shard(shard)?, db, command)
    }

    /// All documents of the configuration set that match, in that order.
    pub fn read_config(
        &self,
        collection: &str,
        filter: Doc<'_>,
        sort: Doc<'_>,
    ) -> Outcome<Vec<DocBuf>> {
        let mut command = find_in(collection, filter);
        command.doc("sort", sort);
        all(&self.config, "config", command.finish().as_doc())
    }

    /// The same, with these fields of each document only: a projection.
    pub fn read_config_fields(
        &self,
        collection: &str,
        filter: Doc<'_>,
        sort: Doc<'_>,
        fields: Doc<'_>,
    ) -> Outcome<Vec<DocBuf>> {
        let mut command = find_in(collection, filter);
        command.doc("sort", sort).doc("projection", fields);
        all(&self.config, "config", command.finish().as_doc())
    }

    pub fn shards(&self) -> Outcome<Vec<DocBuf>> {
        self.read_config("shards", Doc::EMPTY, doc! {"_id": 1}.as_doc())
    }

    pub fn shard_names(&self) -> Outcome<Vec<String>> {
        let shards = self.shards()?;
        let name = |d: &DocBuf| Some(d.get("_id")?.as_str()?.to_string());
        Ok(shards.iter().filter_map(name).collect())
    }

    /// Leaves of shards those that have a primary, or get one within `patience`, in which all of them are
    /// waited for together. `name`: of the shard.
    pub fn retain_reached<T>(
        &self,
        shards: &mut Vec<T>,
        name: impl Fn(&T) -> &str,
        patience: Duration,
    ) -> Outcome<()> {
        let until = Instant::now() + patience;
        let mut sets = Vec::with_capacity(shards.len());
        for shard in shards.iter() {
            sets.push(self.shard(name(shard))?);
        }
        let mut sets = sets.iter();
        shards.retain(|_| {
            let left = until.saturating_duration_since(Instant::now());
            sets.next().is_some_and(|set| set.has_primary_within(left))
        });
        Ok(())
    }

    /// The shards that were heard of.
    pub fn known_shards(&self) -> Vec<String> {
        self.known.read().addresses.keys().cloned().collect()
    }

    /// The shards that this process has asked anything. The others have nothing of its clients.
    pub fn used_shards(&self) -> Vec<Arc<str>> {
        let known = self.known.read();
        let earlier = known.earlier.keys();
        let names = known.shards.keys().chain(earlier);
        names.map(|name| name.as_str().into()).collect()
    }

    /// A shard by name, or the configuration set as `config`.
    pub fn shard(&self, name: &str) -> Outcome<Arc<ReplicaSet>> {
        if let Some(set) = self.known_shard(name) {
            return Ok(set);
        }
        if !self.known.read().addresses.contains_key(name) {
            self.read_addresses()?;
        }
        let mut known = self.known.write();
        let Some(address) = known.addresses.get(name).cloned() else {
            return Err(err!(ShardNotFound, "Shard '{name}' not found").into());
        };
        let new = || Arc::new(self.outside(&address));
        let set = known.shards.entry(name.into()).or_insert_with(new);
        Ok(set.clone())
    }

    /// Reads where the shards are. A set at another address than before is another one.
    fn read_addresses(&self) -> Outcome<()> {
        let shards = self.shards()?;
        let text = |d: &DocBuf, name: &str| Some(d.get(name)?.as_str()?.to_string());
        let address = |d: &DocBuf| Some((text(d, "_id")?, text(d, "host")?));
        let mut known = self.known.write();
        let earlier = std::mem::take(&mut known.earlier);
        known.addresses = shards.iter().filter_map(address).collect();
        let Known {
            addresses,
            shards: sets,
            ..
        } = &mut *known;
        let is_there = |id: &String, set: &Arc<ReplicaSet>| {
            addresses.get(id).is_none_or(|a| *a == set.address)
        };
        sets.retain(|id, set| is_there(id, set));
        for (id, set) in earlier {
            if addresses.get(&id) == Some(&set.address) {
                sets.entry(id).or_insert(set);
            }
        }
        Ok(())
    }

    /// The primary shard of a database, if there is one of that name.
    pub fn database(&self, db: &str) -> Outcome<Option<Arc<str>>> {
        Ok(self.database_primary(db)?.map(|primary| primary.shard))
    }

    /// The same with its version.
    pub fn database_primary(&self, db: &str) -> Outcome<Option<KnownPrimary>> {
        match self.known_database_primary(db) {
            Some(primary) => Ok(Some(primary)),
            None => self.refresh_database_primary(db),
        }
    }

    /// The same, as far as it was read.
    pub fn known_database_primary(&self, db: &str) -> Option<KnownPrimary> {
        self.known.read().databases.get(db).cloned()
    }

    /// Reads anew where a database is.
    pub fn refresh_database_primary(&self, db: &str) -> Outcome<Option<KnownPrimary>> {
        let found = self.read_config("databases", doc! {"_id": db}.as_doc(), Doc::EMPTY)?;
        let primary = found.first().and_then(|d| {
            let version = d.get("version").and_then(Val::as_doc);
            Some(KnownPrimary {
                shard: Arc::from(d.get("primary")?.as_str()?),
                version: version.and_then(|v| DbVersion::parse(v).ok()),
            })
        });
        let mut known = self.known.write();
        match &primary {
            Some(primary) => known.databases.insert(db.into(), primary.clone()),
            None => known.databases.remove(db),
        };
        Ok(primary)
    }

    /// Where a collection is; `None`: the database does not exist.
    pub fn placement(&self, ns: &str) -> Outcome<Option<Placement>> {
        if let Some(placement) = self.known_placement(ns) {
            return Ok(Some(placement));
        }
        // Whatever has failed, the primary knows better.
        match self.read_at_any_member(ns) {
            Ok(Some(table)) => self.take_over(ns, Some(table)),
            _ => self.refresh(ns),
        }
    }

    /// The table as any member of the configuration set has it, so that routers which start do not read all
    /// tables from the primary. It may be older than the primary's, as a cached one may: then a shard
    /// refuses it. `None`: it may be one that this member does not know yet.
    fn read_at_any_member(&self, ns: &str) -> Outcome<Option<RoutingTable>> {
        let Some(entry) = self.read_entry(ns, Readers::Any)? else {
            return Ok(None);
        };
        let chunks = self.read_chunks(&entry, None, Readers::Any)?;
        Ok(Some(RoutingTable::new(entry, chunks)?))
    }

    /// The same, as far as it was read.
    pub fn known_placement(&self, ns: &str) -> Option<Placement> {
        if ns.starts_with("config.") || ns.starts_with("admin.") {
            return Some(Placement::Unsharded(Unsharded::fixed(CONFIG)));
        }
        self.known.read().collections.get(ns).cloned()
    }

    /// A shard of which was heard.
    pub fn known_shard(&self, name: &str) -> Option<Arc<ReplicaSet>> {
        match name {
            CONFIG => Some(self.config.clone()),
            name => self.known.read().shards.get(name).cloned(),
        }
    }

    /// Reads anew where a collection is: of its chunks, those that have changed.
    pub fn refresh(&self, ns: &str) -> Outcome<Option<Placement>> {
        let table = self.read_table(ns)?;
        self.take_over(ns, table)
    }

    /// The same, with all of its chunks.
    pub fn refresh_whole(&self, ns: &str) -> Outcome<Option<Placement>> {
        let table = self.read_table_from(ns, None)?;
        self.take_over(ns, table)
    }

    /// What a collection's table says is known from now on.
    pub fn take_over(&self, ns: &str, table: Option<RoutingTable>) -> Outcome<Option<Placement>> {
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        let placement = match table {
            Some(table) => Some(Placement::of(table)),
            None => {
                let primary = self.refresh_database_primary(db)?;
                // It may have got chunks before that was read, and the database have moved after.
                match self.read_table_from(ns, None)? {
                    Some(table) => Some(Placement::of(table)),
                    None => {
                        primary.map(|primary| Placement::Unsharded(Unsharded::on_primary(&primary)))
                    }
                }
            }
        };
        let mut known = self.known.write();
        match &placement {
            Some(placement) => known.collections.insert(ns.into(), placement.clone()),
            None => known.collections.remove(ns),
        };
        Ok(placement)
    }

    /// The chunks of a sharded collection, or of one that was moved by itself, as the configuration
    /// set has them.
    pub fn read_table(&self, ns: &str) -> Outcome<Option<RoutingTable>> {
        let known = self.known.read().collections.get(ns).cloned();
        let known = known.as_ref().and_then(Placement::table);
        self.read_table_from(ns, known.map(|table| &**table))
    }

    /// Of a known table of the same life, reads only the chunks that were written since, by the lock's
    /// last holder or a later one. Chunks that change while they are read do not meet: then all are
    /// read.
    fn read_table_from(
        &self,
        ns: &str,
        mut known: Option<&RoutingTable>,
    ) -> Outcome<Option<RoutingTable>> {
        let mut tries = 0;
        loop {
            let Some(entry) = self.read_entry(ns, Readers::Primary)? else {
                return Ok(None);
            };
            known = known.filter(|table| table.entry == entry);
            let chunks = self.read_chunks(&entry, known, Readers::Primary)?;
            match RoutingTable::followed(known, entry, chunks) {
                Ok(table) => return Ok(Some(table)),
                Err(e) if tries >= 20 => return Err(e.into()),
                Err(_) => {
                    known = None;
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// The entry of a collection that has chunks.
    fn read_entry(&self, ns: &str, readers: Readers) -> Outcome<Option<CollectionEntry>> {
        // Of a time series the buckets are what has chunks.
        let names = bson::array![ns, series::buckets_of(ns)];
        let either = doc! {"_id": doc! {"$in": names}};
        let mut command = find_in("collections", either.as_doc());
        readers.say(&mut command);
        let found = all(&self.config, "config", command.finish().as_doc())?;
        let Some(entry) = found.first() else {
            return Ok(None);
        };
        let mut entry = entry_of(entry.as_doc())?;
        entry.measured = entry.ns != ns;
        Ok(Some(entry))
    }

    /// The chunks of a collection that a known table of the same life lacks.
    fn read_chunks(
        &self,
        entry: &CollectionEntry,
        known: Option<&RoutingTable>,
        readers: Readers,
    ) -> Outcome<Vec<Chunk>> {
        let filter = RoutingTable::unknown_chunks(known, &entry.uuid);
        let mut command = find_in("chunks", filter.as_doc());
        readers.say(&mut command);
        let chunks = all(&self.config, "config", command.finish().as_doc())?;
        let chunks: Result<Vec<Chunk>, _> =
            chunks.iter().map(|d| Chunk::parse(d.as_doc())).collect();
        Ok(chunks?)
    }

    pub fn forget_database(&self, db: &str) {
        let mut known = self.known.write();
        known.databases.remove(db);
        let prefix = format!("{db}.");
        known.collections.retain(|ns, _| !ns.starts_with(&prefix));
    }

    pub fn forget(&self, ns: &str) {
        self.known.write().collections.remove(ns);
    }

    pub fn forget_all(&self) {
        let mut known = self.known.write();
        let earlier = std::mem::take(&mut known.shards);
        *known = Known {
            earlier,
            ..Known::default()
        };
    }
}

/// The cluster's time, as a message tells it.
pub(crate) fn time_in(message: Doc<'_>) -> Option<u64> {
    let told = message.get("$clusterTime").and_then(Val::as_doc);
    told.and_then(|t| t.get("clusterTime")?.as_timestamp())
}

/// Runs a command of the router's own on a set's primary; an error reply is an error, and so is one that
/// was not acknowledged: a primary that was deposed meanwhile may roll it back.
pub fn run(set: &ReplicaSet, db: &str, command: Doc<'_>) -> Outcome<DocBuf> {
    acknowledged(run_as_told(set, db, command)?)
}

/// The same with a client's write concern: what the reply says of that is for the client. The set hears
/// the cluster's time and tells its own: a write that follows from a write on another set has a later
/// time, so the logs of all sets up to one time fit together.
pub fn run_as_told(set: &ReplicaSet, db: &str, command: Doc<'_>) -> Outcome<DocBuf> {
    let body = match command.contains("$db") {
        true => command.to_buf(),
        false => with_fields(command, doc! {"$db": db}.as_doc()),
    };
    let reply = set.call(&message(timed(set, &body).as_doc(), &[]))?;
    hear(set, &reply);
    match error_of(reply.as_doc()) {
        Some(e) => Err(Failure::Client(e)),
        None => Ok(reply),
    }
}

/// A command with the cluster's time.
pub fn timed(set: &ReplicaSet, body: &DocBuf) -> DocBuf {
    let time = set.cluster_time.load(Ordering::Relaxed);
    if time == 0 || body.get("$clusterTime").is_some() {
        return body.clone();
    }
    let time = doc! {"clusterTime": Value::timestamp(time)};
    with_fields(body.as_doc(), doc! {"$clusterTime": time}.as_doc())
}

/// Takes over the cluster's time from a set's reply.
pub fn hear(set: &ReplicaSet, reply: &DocBuf) {
    let time = time_in(reply.as_doc()).unwrap_or(0);
    set.cluster_time.fetch_max(time, Ordering::Relaxed);
}

/// All that a find or an aggregate gives.
pub fn all(set: &ReplicaSet, db: &str, command: Doc<'_>) -> Outcome<Vec<DocBuf>> {
    let mut out = Vec::new();
    each(set, db, command, |d| {
        out.push(d.to_buf());
        Ok(())
    })?;
    Ok(out)
}

/// Hands on what a find, an aggregate or a listing gives.
pub fn each(
    set: &ReplicaSet,
    db: &str,
    command: Doc<'_>,
    mut take: impl FnMut(Doc<'_>) -> Outcome<()>,
) -> Outcome<()> {
    batches(set, db, command, |batch| {
        batch
            .values()
            .filter_map(Val::as_doc)
            .try_for_each(&mut take)?;
        Ok(None)
    })
}

/// The same batch by batch; `take` says how many documents the next is to have, if it minds.
pub fn batches(
    set: &ReplicaSet,
    db: &str,
    command: Doc<'_>,
    mut take: impl FnMut(Doc<'_>) -> Outcome<Option<usize>>,
) -> Outcome<()> {
    let mut reply = run(set, db, command)?;
    loop {
        let cursor = reply
            .get("cursor")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let batch = cursor.get("firstBatch").or(cursor.get("nextBatch"));
        let next = take(batch.and_then(Val::as_array).unwrap_or(Doc::EMPTY))?;
        let id = cursor.get("id").and_then(Val::to_i64_exact).unwrap_or(0);
        if id == 0 {
            return Ok(());
        }
        let ns = cursor.get("ns").and_then(Val::as_str).unwrap_or_default();
        let collection = ns.split_once('.').map_or(ns, |(_, c)| c);
        let mut more = Writer::new();
        more.i64("getMore", id).str("collection", collection);
        if let Some(next) = next {
            more.i64("batchSize", next as i64);
        }
        reply = run(set, db, more.finish().as_doc())?;
    }
}

fn entry_of(d: Doc<'_>) -> Outcome<CollectionEntry> {
    let read = || {
        let uuid = d.get("uuid")?.as_binary()?.1;
        Some((
            d.get("_id")?.as_str()?.to_string(),
            uuid.try_into().ok()?,
            d.get("key")?.as_doc()?,
            d.get("lastmodEpoch")?.as_oid()?,
            d.get("timestamp")?.as_timestamp()?,
        ))
    };
    let (ns, uuid, key, epoch, timestamp) =
        read().ok_or_else(|| err!(FailedToParse, "{d} is no entry of config.collections"))?;
    let key = ShardKey::parse(key)?;
    Ok(CollectionEntry {
        ns,
        unsplittable: d.get("unsplittable").is_some_and(Val::truthy),
        uuid,
        unique: d.get("unique").is_some_and(Val::truthy),
        epoch,
        timestamp,
        collation: d
            .get("defaultCollation")
            .and_then(Val::as_doc)
            .map(Doc::to_buf),
        series: d
            .get("timeseriesFields")
            .and_then(|v| Series::new(v.as_doc()?, &key)),
        measured: false,
        key,
    })
}
