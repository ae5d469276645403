//! The configuration set of a cluster of any size: its documents are made when they are read, in the form
//! in which the product writes them, and found by the product's filters.

use crate::servers::{Role, error};
use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::collections::entry_doc;
use parking_lot::Mutex;
use query::expr::ParseEnv;
use query::filter::Filter;
use sharding::{Chunk, CollectionEntry, RoutingTable, ShardKey, Version};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Documents of a first batch, as on servers.
const FIRST_BATCH: usize = 101;
/// Bytes of a batch, as on servers.
const BATCH_BYTES: usize = 16 << 20;

/// How large a cluster is, and where its chunks are: the shards have them in turn.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub shards: usize,
    pub collections: usize,
    /// Of each collection.
    pub chunks: usize,
}

impl Size {
    pub fn shard_name(n: usize) -> String {
        format!("shard{n:04}")
    }

    pub fn ns(n: usize) -> String {
        format!("shop.collection{n:06}")
    }

    /// Which collection it is.
    pub fn number_of(ns: &str) -> Option<usize> {
        ns.strip_prefix("shop.collection")?.parse().ok()
    }

    fn uuid(n: usize) -> [u8; 16] {
        let mut uuid = [7; 16];
        uuid[..8].copy_from_slice(&(n as u64).to_be_bytes());
        uuid
    }

    pub fn entry(n: usize) -> CollectionEntry {
        CollectionEntry {
            ns: Size::ns(n),
            uuid: Size::uuid(n),
            key: ShardKey::parse(doc! {"customer": 1}.as_doc()).expect("a key"),
            unique: false,
            unsplittable: false,
            epoch: ObjectId([3; 12]),
            timestamp: 9,
            collation: None,
            series: None,
            measured: false,
        }
    }

    /// The shard of a collection's chunk.
    pub fn shard_of(&self, collection: usize, chunk: usize) -> usize {
        (collection * self.chunks + chunk) % self.shards
    }

    /// How many chunks of a collection a shard has.
    pub fn chunks_on(&self, collection: usize, shard: usize) -> usize {
        let first = self.shard_of(collection, 0);
        let before = (shard + self.shards - first) % self.shards;
        match before < self.chunks {
            true => (self.chunks - before - 1) / self.shards + 1,
            false => 0,
        }
    }

    fn chunk(&self, key: &ShardKey, collection: usize, n: usize) -> Chunk {
        let bound = |n: usize| match n {
            0 => key.global_min(),
            n if n == self.chunks => key.global_max(),
            n => doc! {"customer": n as i64 * 1000},
        };
        let mut id = [0; 12];
        id[..8].copy_from_slice(&((collection * self.chunks + n) as u64).to_be_bytes());
        Chunk {
            id: ObjectId(id),
            min: bound(n),
            max: bound(n + 1),
            shard: Size::shard_name(self.shard_of(collection, n)).into(),
            lastmod: Version::placement_of(1 + n as u32, 0),
            jumbo: false,
            since: 1,
            turn: 1 + n as u64,
        }
    }

    pub fn table(&self, collection: usize) -> RoutingTable {
        let entry = Size::entry(collection);
        let chunk = |n| self.chunk(&entry.key, collection, n);
        let chunks = (0..self.chunks).map(chunk).collect();
        RoutingTable::new(entry, chunks).expect("a table")
    }
}

/// A configuration set's documents.
pub struct Metadata {
    pub size: Size,
    /// `set/host:port` of each shard.
    pub hosts: Vec<String>,
    /// The shard that is being emptied.
    pub draining: Mutex<Option<usize>>,
    /// Tables of collections whose chunks are not where they were at first.
    pub changed: Mutex<BTreeMap<usize, RoutingTable>>,
    /// Other collections: `tags`, `settings`.
    pub others: Mutex<BTreeMap<String, Vec<DocBuf>>>,
    /// How often the lock of a collection was asked for; it is never given.
    pub locks: Mutex<BTreeMap<String, u64>>,
    cursors: Mutex<BTreeMap<i64, (String, VecDeque<DocBuf>)>>,
}

impl Metadata {
    pub fn new(size: Size, hosts: Vec<String>) -> Arc<Metadata> {
        Arc::new(Metadata {
            size,
            hosts,
            draining: Mutex::default(),
            changed: Mutex::default(),
            others: Mutex::default(),
            locks: Mutex::default(),
            cursors: Mutex::default(),
        })
    }

    fn shards(&self) -> Vec<DocBuf> {
        let draining = *self.draining.lock();
        let shard = |(n, host): (usize, &String)| {
            let mut w = Writer::new();
            w.str("_id", &Size::shard_name(n))
                .str("host", host)
                .i32("state", 1);
            if draining == Some(n) {
                w.bool("draining", true);
            }
            w.finish()
        };
        self.hosts.iter().enumerate().map(shard).collect()
    }

    /// By `_id: {$in: [...]}`, or all.
    fn collections(&self, filter: Doc<'_>) -> Vec<DocBuf> {
        let named = filter
            .get("_id")
            .and_then(|v| v.as_doc()?.get("$in")?.as_array());
        let entry = |n: usize| entry_doc(&Size::entry(n));
        match named {
            Some(names) => {
                let names = names.values().filter_map(|v| Size::number_of(v.as_str()?));
                names
                    .filter(|n| *n < self.size.collections)
                    .map(entry)
                    .collect()
            }
            None => (0..self.size.collections).map(entry).collect(),
        }
    }

    /// Of one collection: real servers find them by an index.
    fn chunks(&self, filter: Doc<'_>) -> Vec<DocBuf> {
        let uuid = filter.get("uuid").and_then(|v| Some(v.as_binary()?.1));
        let number = uuid.and_then(|u| Some(u64::from_be_bytes(u.get(..8)?.try_into().ok()?)));
        let n = number.expect("chunks are read by their collection") as usize;
        let uuid = Size::uuid(n);
        if let Some(table) = self.changed.lock().get(&n) {
            return table.chunks().map(|c| c.to_doc(&uuid)).collect();
        }
        let key = Size::entry(n).key;
        let chunk = |i| self.size.chunk(&key, n, i).to_doc(&uuid);
        (0..self.size.chunks).map(chunk).collect()
    }

    /// The UUIDs of collections that have a chunk on a shard.
    fn collections_on(&self, query: Doc<'_>) -> DocBuf {
        let filter = Filter::parse(query, &ParseEnv::new()).expect("a filter");
        let asked = |n: &usize| {
            let d = doc! {"shard": Size::shard_name(*n)};
            filter.matches(d.as_doc()).unwrap_or(false)
        };
        let shards: Vec<usize> = (0..self.size.shards).filter(asked).collect();
        let mut w = Writer::new();
        w.open_array("values");
        for n in 0..self.size.collections {
            if shards.iter().any(|s| self.size.chunks_on(n, *s) > 0) {
                w.push_value(bson::Value::binary(4, &Size::uuid(n)));
            }
        }
        w.close().f64("ok", 1.0);
        w.finish()
    }

    fn find(&self, collection: &str, command: Doc<'_>) -> DocBuf {
        let filter = command
            .get("filter")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let all = match collection {
            "shards" => self.shards(),
            "collections" => self.collections(filter),
            "chunks" => self.chunks(filter),
            other => self.others.lock().get(other).cloned().unwrap_or_default(),
        };
        let matches = Filter::parse(filter, &ParseEnv::new()).expect("a filter");
        let found = all
            .into_iter()
            .filter(|d| matches.matches(d.as_doc()).unwrap_or(false));
        let fields = command.get("projection").and_then(Val::as_doc);
        let found = found.map(|d| fields.map_or(d.clone(), |f| projected(&d, f)));
        self.batch(
            format!("config.{collection}"),
            found.collect(),
            "firstBatch",
            FIRST_BATCH,
        )
    }

    /// A part of a result; the rest is kept under a cursor.
    fn batch(&self, ns: String, mut all: VecDeque<DocBuf>, name: &str, most: usize) -> DocBuf {
        let (mut w, mut bytes, mut many) = (Writer::new(), 0, 0);
        w.open_doc("cursor").str("ns", &ns).open_array(name);
        while let Some(d) = all.pop_front() {
            bytes += d.as_bytes().len();
            w.push(d.as_doc().as_val());
            many += 1;
            if bytes > BATCH_BYTES || many == most {
                break;
            }
        }
        w.close();
        let mut id = 0;
        if !all.is_empty() {
            let mut cursors = self.cursors.lock();
            id = cursors.last_key_value().map_or(1, |(id, _)| id + 1);
            cursors.insert(id, (ns, all));
        }
        w.i64("id", id).close().f64("ok", 1.0);
        w.finish()
    }
}

/// The fields of a document that a projection names.
fn projected(d: &DocBuf, fields: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in d.as_doc().iter() {
        let shown = fields.get(e.name).map(|v| v.truthy());
        if shown.unwrap_or(e.name == "_id") {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}

impl Role for Metadata {
    fn answer(&self, name: &str, command: Doc<'_>) -> DocBuf {
        let first = command.first().expect("a name").val;
        match name {
            "find" => self.find(first.as_str().unwrap_or_default(), command),
            "getMore" => {
                let id = first.to_i64_exact().unwrap_or_default();
                let left = self.cursors.lock().remove(&id);
                let (ns, left) = left.unwrap_or_default();
                self.batch(ns, left, "nextBatch", usize::MAX)
            }
            "distinct" => {
                let query = command.get("query").and_then(Val::as_doc);
                self.collections_on(query.unwrap_or(Doc::EMPTY))
            }
            "findAndModify" => {
                let query = command.get("query").and_then(Val::as_doc);
                let name = query
                    .and_then(|q| q.get("_id")?.as_str())
                    .unwrap_or_default();
                *self.locks.lock().entry(name.into()).or_default() += 1;
                error(20, "no range moves in this cluster")
            }
            _ => doc! {"n": 1, "ok": 1.0},
        }
    }
}
