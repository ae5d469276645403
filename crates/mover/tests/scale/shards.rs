//! Shards that have documents by their number and size only, and answer to versions by the product's own
//! rules.

use crate::metadata::Size;
use crate::servers::{Role, error};
use bson::{Doc, DocBuf, Val, Writer, doc};
use parking_lot::Mutex;
use sharding::{Ownership, Received, Standing, standing};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Bytes of a chunk, where nothing else is said: half a range's default size.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// How many bytes a shard has of a collection, by their numbers.
pub type Bytes = Arc<dyn Fn(usize, usize) -> u64 + Send + Sync>;

pub struct Shard {
    pub number: usize,
    pub size: Size,
    pub bytes: Bytes,
    /// It is of a release that tells the sizes of named collections only.
    pub older: AtomicBool,
    /// How many large collections a reply tells of.
    pub at_once: AtomicUsize,
    owned: Mutex<BTreeMap<String, Ownership>>,
}

impl Shard {
    pub fn new(number: usize, size: Size, bytes: Bytes) -> Arc<Shard> {
        Arc::new(Shard {
            number,
            size,
            bytes,
            older: AtomicBool::new(false),
            at_once: AtomicUsize::new(10_000),
            owned: Mutex::default(),
        })
    }

    /// Takes over what it is told, unless it knows better.
    pub fn learn(&self, told: &Ownership) {
        let mut owned = self.owned.lock();
        if let Some(learned) = Ownership::learn(owned.get(&told.ns), told) {
            owned.insert(told.ns.clone(), learned);
        }
    }

    fn bytes_of(&self, ns: &str) -> u64 {
        Size::number_of(ns).map_or(0, |n| (self.bytes)(self.number, n))
    }

    /// As `_pandoSizes` of a server.
    fn sizes(&self, command: Doc<'_>) -> DocBuf {
        let names = command.get("collections").and_then(Val::as_array);
        let mut w = Writer::new();
        w.open_array("bytes");
        for ns in names.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_str) {
            w.push_value(self.bytes_of(ns) as i64);
        }
        w.close();
        let above = command.get("above").and_then(Val::to_i64_exact);
        if let Some(above) = above.filter(|_| !self.older.load(Relaxed)) {
            let after = command.get("after").and_then(Val::as_str).unwrap_or("");
            let first = Size::number_of(after).map_or(0, |n| n + 1);
            let sized = (first..self.size.collections).map(|n| (n, (self.bytes)(self.number, n)));
            let mut large = sized
                .filter(|(_, bytes)| *bytes > above.unsigned_abs())
                .peekable();
            w.open_array("large");
            for (n, bytes) in large.by_ref().take(self.at_once.load(Relaxed)) {
                w.push(
                    doc! {"ns": Size::ns(n), "bytes": bytes as i64}
                        .as_doc()
                        .as_val(),
                );
            }
            w.close().bool("more", large.peek().is_some());
        }
        w.f64("ok", 1.0);
        w.finish()
    }

    /// A read of a router, served where both agree.
    fn read(&self, command: Doc<'_>) -> DocBuf {
        let text = |name: &str| command.get(name).and_then(Val::as_str);
        let collection = command.first().and_then(|e| e.val.as_str());
        let ns = format!("{}.{}", text("$db").unwrap_or(""), collection.unwrap_or(""));
        let received = Received::of(command).expect("a version");
        let owned = self.owned.lock();
        let known = owned.get(&ns);
        match standing(known, received) {
            Standing::Serve { .. } => {
                let cursor = doc! {"ns": ns, "id": 0_i64, "firstBatch": bson::array![]};
                doc! {"cursor": cursor, "ok": 1.0}
            }
            refused => {
                let mut w = Writer::new();
                w.extend(error(13388, "the versions of router and shard differ").as_doc());
                w.str("ns", &ns).bool("fenced", refused == Standing::Fenced);
                if let Some(known) = known {
                    w.doc("vWanted", known.version.to_doc().as_doc());
                }
                w.finish()
            }
        }
    }
}

impl Role for Shard {
    fn answer(&self, name: &str, command: Doc<'_>) -> DocBuf {
        match name {
            "_pandoSizes" => self.sizes(command),
            "collStats" => {
                let db = command.get("$db").and_then(Val::as_str).unwrap_or_default();
                let collection = command.first().and_then(|e| e.val.as_str());
                let bytes = self.bytes_of(&format!("{db}.{}", collection.unwrap_or_default()));
                doc! {"size": bytes as i64, "count": (bytes / 1000) as i64, "ok": 1.0}
            }
            "_pandoPrepared" => {
                doc! {"prepared": bson::array![], "decisions": bson::array![], "ok": 1.0}
            }
            "_pandoOwnership" => {
                let told = command.get("ownership").and_then(Val::as_doc);
                self.learn(&Ownership::parse(told.expect("an ownership")).expect("an ownership"));
                doc! {"ok": 1.0}
            }
            "find" => self.read(command),
            _ => doc! {"ok": 1.0},
        }
    }
}
