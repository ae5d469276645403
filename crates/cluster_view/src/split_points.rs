//! Where a chunk is cut: behind so many bytes, or in the middle of its documents.
//!
//! Hashed keys lie in the order of their hashes, which documents do not show: there the shard sorts
//! by what it computes (`$toHashedIndexKey`).

use crate::collections::size_on;
use crate::metadata::{Cluster, all};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Value, Writer, array, doc};
use errors::err;
use sharding::{Chunk, RoutingTable, ShardKey, series, split};

/// The documents of a chunk on its shard.
struct Documents<'c> {
    cluster: &'c Cluster,
    table: &'c RoutingTable,
    chunk: &'c Chunk,
    db: &'c str,
    collection: &'c str,
    /// By which they may be cut.
    key: ShardKey,
}

/// The bound behind the first documents of a chunk that have about so many bytes; its own end where
/// it is no longer.
pub fn first_part(
    cluster: &Cluster,
    table: &RoutingTable,
    chunk: &Chunk,
    bytes: u64,
) -> Outcome<DocBuf> {
    let (size, count) = size_on(cluster, &chunk.shard, &table.entry.ns)?;
    let each = (size / count.max(1)).max(1);
    let documents = Documents::of(cluster, table, chunk)?;
    let cut = documents.behind((bytes / each).max(1))?;
    Ok(cut.unwrap_or_else(|| chunk.max.clone()))
}

/// The bound in the middle of a chunk's documents.
pub fn median(cluster: &Cluster, table: &RoutingTable, chunk: &Chunk) -> Outcome<DocBuf> {
    let documents = Documents::of(cluster, table, chunk)?;
    let count = doc! {
        "count": documents.collection, "query": documents.filter(chunk.min.as_doc()),
        "collation": simple(),
    };
    let count = cluster.on_shard(&chunk.shard, documents.db, count.as_doc())?;
    let n = count.get("n").and_then(Val::to_f64).unwrap_or(0.0) as u64;
    let middle = match n {
        0 | 1 => None,
        n => documents.behind(n / 2)?,
    };
    let none = || err!(OperationFailed, "the chunk has no middle to split it at");
    middle.ok_or_else(|| Failure::Client(none()))
}

impl<'c> Documents<'c> {
    fn of(
        cluster: &'c Cluster,
        table: &'c RoutingTable,
        chunk: &'c Chunk,
    ) -> Outcome<Documents<'c>> {
        let ns = &table.entry.ns;
        let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
        Ok(Documents {
            cluster,
            table,
            chunk,
            db,
            collection,
            key: match table.entry.series.is_some() {
                true => series::cut_key(table.key())?,
                false => table.key().clone(),
            },
        })
    }

    /// What finds them, from a bound on.
    fn filter(&self, min: Doc<'_>) -> DocBuf {
        let within = self.table.key().within(min, self.chunk.max.as_doc());
        doc! {"$expr": within}
    }

    /// The bound behind the first `many` documents, and behind all that lie at one place with the
    /// last of them; `None`: nothing is behind them.
    fn behind(&self, many: u64) -> Outcome<Option<DocBuf>> {
        let found = match self.key.is_hashed() {
            true => self.behind_by_hash(many)?,
            false => self.behind_by_index(many)?,
        };
        let whole = found.map(|bound| self.table.key().whole_bound(bound.as_doc()));
        Ok(whole.transpose()?)
    }

    fn behind_by_index(&self, many: u64) -> Outcome<Option<DocBuf>> {
        let key = &self.key;
        let (mut sort, mut fields) = (Writer::new(), Writer::new());
        for name in key.names() {
            sort.i32(name, 1);
            fields.i32(name, 1);
        }
        let find = doc! {
            "find": self.collection, "filter": self.filter(self.chunk.min.as_doc()),
            "sort": sort.finish(), "projection": fields.finish(), "limit": whole(many.saturating_mul(2)),
            "collation": simple(),
        };
        let set = self.cluster.shard(&self.chunk.shard)?;
        let keys = all(&set, self.db, find.as_doc())?;
        let split_points = split::points(key, keys.iter().map(DocBuf::as_doc), many);
        Ok(split_points.into_iter().next())
    }

    fn behind_by_hash(&self, many: u64) -> Outcome<Option<DocBuf>> {
        let at = [doc! {"$skip": whole(many - 1)}];
        let Some(last) = self.first_bound(self.chunk.min.as_doc(), &at)? else {
            return Ok(None);
        };
        let mut literal = Writer::new_array();
        last.as_doc().values().for_each(|v| {
            literal.push(v);
        });
        let literal = doc! {"$literal": literal.finish_array()};
        let mut values = Writer::new_array();
        (0..last.as_doc().count()).for_each(|n| {
            values.push_value(format!("$f{n}"));
        });
        let other = doc! {"$ne": array![values.finish_array(), literal]};
        self.first_bound(last.as_doc(), &[doc! {"$match": doc! {"$expr": other}}])
    }

    /// The first of the bounds at the documents from `min` on, in order, that `stages` leave.
    fn first_bound(&self, min: Doc<'_>, stages: &[DocBuf]) -> Outcome<Option<DocBuf>> {
        let key = &self.key;
        let (mut fields, mut sort) = (Writer::new(), Writer::new());
        fields.i32("_id", 0);
        for (n, field) in key.fields().iter().enumerate() {
            let name = format!("f{n}");
            let path = format!("${}", field.path);
            let v = doc! {"$ifNull": array![path.as_str(), Value::NULL]};
            match field.hashed {
                true => fields.value(&name, doc! {"$toHashedIndexKey": v}),
                false => fields.value(&name, v),
            };
            sort.i32(&name, 1);
        }
        let mut pipeline = Writer::new_array();
        pipeline.push(doc! {"$match": self.filter(min)}.as_doc().as_val());
        pipeline.push(doc! {"$project": fields.finish()}.as_doc().as_val());
        pipeline.push(doc! {"$sort": sort.finish()}.as_doc().as_val());
        stages.iter().for_each(|s| {
            pipeline.push(s.as_doc().as_val());
        });
        pipeline.push(doc! {"$limit": 1}.as_doc().as_val());
        let ask = doc! {
            "aggregate": self.collection, "pipeline": pipeline.finish_array(), "cursor": doc! {},
            "allowDiskUse": true, "collation": simple(),
        };
        let set = self.cluster.shard(&self.chunk.shard)?;
        let found = all(&set, self.db, ask.as_doc())?;
        Ok(found.first().map(|d| {
            let mut w = Writer::new();
            for (name, v) in key.names().zip(d.as_doc().values()) {
                w.val(name, v);
            }
            w.finish()
        }))
    }
}

/// Whatever the collection's own is: places are in the order of bytes.
fn simple() -> DocBuf {
    doc! {"locale": "simple"}
}

fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
