//! The results of several shards as one: in the order of a sort, or one shard after another.
//!
//! Invariant: each shard gives its results in the sort's order, and what it holds at the router is
//! one batch. Between two batches for the client that counts, and goes to a file where there is no room.

use crate::post_merge_projection::PostMergeProjection;
use bson::{Doc, DocBuf, Val, Value, Writer, doc, key};
use cluster_view::metadata::{Cluster, run};
use cluster_view::upstream::with_fields;
use cluster_view::{Failure, Outcome, operation_time};
use commands::{CursorMemory, HeldDocuments, HeldKey};
use query::filter::{NearTest, nearest};
use query::path::FieldPath;
use query::pipeline::{Share, merged};
use query::sort::SortPattern;
use std::sync::Arc;

/// A batch for the client, in bytes.
pub(crate) const BATCH_BYTES: usize = 16 << 20;

/// In which order shards give their results.
#[derive(Default)]
pub(crate) enum Order {
    /// In none: one shard comes after the other.
    #[default]
    None,
    By(SortPattern),
    /// Nearest first.
    Near(FieldPath, Arc<NearTest>),
    /// Nearest first, in documents that are wrapped.
    Distance,
    /// Best first, in documents that are wrapped.
    Score,
}

impl Order {
    pub fn is_none(&self) -> bool {
        matches!(self, Order::None)
    }

    /// memcmp of two keys is the order of their documents.
    fn key(&self, d: Doc<'_>) -> Outcome<Vec<u8>> {
        let far =
            |distance: Option<f64>| key::of(Value::from(distance.unwrap_or(f64::MAX)).as_val());
        Ok(match self {
            Order::None => Vec::new(),
            Order::By(sort) => {
                let mut key = Vec::new();
                sort.sort_key(d, &mut key).map_err(Failure::from)?;
                key
            }
            Order::Near(path, test) => far(nearest(path, &test.near, d).map(|n| n.0)),
            Order::Distance => far(merged::distance_of(d)),
            Order::Score => far(merged::search_score_of(d).map(|score| -score)),
        })
    }
}

/// The rest of one shard's results.
pub(crate) struct ShardCursor {
    pub shard: Arc<str>,
    /// 0: the shard has no more.
    pub id: i64,
    /// Each with its sort key.
    pub held: HeldDocuments<Vec<u8>>,
}

/// Between two batches for the client: keeps in memory only what the cursor's share has room for.
pub(crate) fn release<'h, K: HeldKey + 'h>(
    memory: &CursorMemory,
    share: &mut Share,
    all: impl Iterator<Item = &'h mut HeldDocuments<K>>,
) -> Outcome<()> {
    share.release();
    let mut bytes = 0;
    for held in all {
        bytes = held.release(memory, share, bytes)?;
    }
    Ok(())
}

pub(crate) struct Merge {
    pub ns: String,
    pub parts: Vec<ShardCursor>,
    pub order: Order,
    pub skip: u64,
    /// How many more the client may get.
    pub left: Option<u64>,
    /// Documents of a batch from a shard.
    pub batch: i64,
    pub projection: Option<PostMergeProjection>,
    /// Documents come wrapped, and the client gets them as they are.
    pub wrapped: bool,
    /// The fields that say whose session, and transaction, the shards' cursors belong to.
    pub session: DocBuf,
    /// What they hold of the memory of cursors' documents.
    pub share: Option<Share>,
}

impl Merge {
    /// Of documents at hand.
    pub fn of_documents(ns: &str, documents: Vec<DocBuf>) -> Merge {
        let mut held = HeldDocuments::default();
        documents.into_iter().for_each(|d| held.push(Vec::new(), d));
        Merge {
            ns: ns.into(),
            parts: vec![ShardCursor {
                shard: "".into(),
                id: 0,
                held,
            }],
            order: Order::None,
            skip: 0,
            left: None,
            batch: 0,
            projection: None,
            wrapped: false,
            session: DocBuf::new(),
            share: None,
        }
    }

    /// Takes over the first batches.
    pub fn begin(&mut self, shards: &[Arc<str>], replies: &[DocBuf]) -> Outcome<()> {
        assert_eq!(shards.len(), replies.len(), "a reply of each shard");
        for (shard, reply) in shards.iter().zip(replies) {
            if let Some(e) = cluster_view::upstream::error_of(reply.as_doc()) {
                return Err(e.into());
            }
            let mut part = ShardCursor {
                shard: shard.clone(),
                id: 0,
                held: HeldDocuments::default(),
            };
            take(&self.order, &mut part, reply)?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// Cursors that shards still have open.
    pub fn remains(&self) -> impl Iterator<Item = (&str, i64)> {
        self.parts
            .iter()
            .filter(|p| p.id != 0)
            .map(|p| (&*p.shard, p.id))
    }

    /// Ends the cursors at the shards. Failures are of no interest: they end them too, later.
    pub fn close(&self, cluster: &Cluster) {
        let (db, collection) = self.ns.split_once('.').unwrap_or((&self.ns, ""));
        operation_time::putting_away(|| {
            for (shard, id) in self.remains() {
                let command = doc! {"killCursors": collection, "cursors": bson::array![id]};
                let _ = cluster.on_shard(shard, db, command.as_doc());
            }
        });
    }

    /// Appends documents to the open array; whether there are no more.
    pub fn fill(&mut self, cluster: &Cluster, w: &mut Writer, most: Option<i64>) -> Outcome<bool> {
        self.resume()?;
        let mut given = 0;
        let start = w.len();
        loop {
            if self.left == Some(0) {
                return Ok(true);
            }
            if most.is_some_and(|most| given >= most) {
                return Ok(false);
            }
            let Some(at) = self.next(cluster)? else {
                return Ok(true);
            };
            let size = self.parts[at]
                .held
                .front()
                .map_or(0, |(_, d)| d.as_bytes().len());
            if given > 0 && w.len() - start + size > BATCH_BYTES {
                return Ok(false);
            }
            let Some((_, doc)) = self.parts[at].held.pop()? else {
                return Ok(true);
            };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            match &self.projection {
                Some(projection) => w.push(projection.apply(doc.as_doc())?.as_doc().as_val()),
                None if self.wrapped => w.push(merged::unwrapped(doc.as_doc()).as_doc().as_val()),
                None => w.push(doc.as_doc().as_val()),
            };
            given += 1;
            self.left = self.left.map(|n| n - 1);
        }
    }

    /// Between two batches for the client: keeps in memory only what there is room for.
    pub fn release(&mut self, memory: &CursorMemory) -> Outcome<()> {
        let share = self.share.get_or_insert_with(|| memory.share());
        release(memory, share, self.parts.iter_mut().map(|p| &mut p.held))
    }

    fn resume(&mut self) -> Outcome<()> {
        let mut parts = self.parts.iter_mut();
        Ok(parts.try_for_each(|part| part.held.resume())?)
    }

    /// Whether a shard has to be asked for the next document.
    pub fn has_to_ask(&self) -> bool {
        self.parts.iter().any(|p| p.held.is_empty() && p.id != 0)
    }

    /// The next document as its shard gave it.
    pub fn next_document(&mut self, cluster: &Cluster) -> Outcome<Option<DocBuf>> {
        self.resume()?;
        loop {
            if self.left == Some(0) {
                return Ok(None);
            }
            let at = self.next(cluster)?;
            let part = at.and_then(|at| self.parts.get_mut(at));
            let popped = part.map(|p| p.held.pop()).transpose()?;
            let Some((_, doc)) = popped.flatten() else {
                return Ok(None);
            };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.left = self.left.map(|n| n - 1);
            return Ok(Some(doc));
        }
    }

    /// The part that has the next document.
    fn next(&mut self, cluster: &Cluster) -> Outcome<Option<usize>> {
        for part in &mut self.parts {
            while part.held.is_empty() && part.id != 0 {
                let (db, collection) = self.ns.split_once('.').unwrap_or((&self.ns, ""));
                let command =
                    doc! {"getMore": part.id, "collection": collection, "batchSize": self.batch};
                let command = with_fields(command.as_doc(), self.session.as_doc());
                let reply = run(&*cluster.shard(&part.shard)?, db, command.as_doc())?;
                take(&self.order, part, &reply)?;
            }
        }
        let with = self
            .parts
            .iter()
            .enumerate()
            .filter_map(|(i, p)| Some((i, &p.held.front()?.0)));
        Ok(match self.order.is_none() {
            false => with.min_by(|a, b| a.1.cmp(b.1)).map(|(i, _)| i),
            true => with.map(|(i, _)| i).next(),
        })
    }
}

fn take(order: &Order, part: &mut ShardCursor, reply: &DocBuf) -> Outcome<()> {
    let cursor = reply
        .get("cursor")
        .and_then(Val::as_doc)
        .unwrap_or(Doc::EMPTY);
    part.id = cursor.get("id").and_then(Val::to_i64_exact).unwrap_or(0);
    let batch = cursor.get("firstBatch").or(cursor.get("nextBatch"));
    for d in batch.and_then(Val::as_array).unwrap_or(Doc::EMPTY).values() {
        let d = d.as_doc().unwrap_or(Doc::EMPTY);
        part.held.push(order.key(d)?, d.to_buf());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;
    use cluster_view::testing::access;
    use mover::Moving;

    fn reply(documents: &str) -> DocBuf {
        let batch = json::parse(&format!("{{\"v\":{documents}}}")).unwrap();
        let batch = batch.get("v").unwrap().to_value();
        doc! {"cursor": doc! {"id": 0i64, "ns": "d.c", "firstBatch": batch}, "ok": 1.0}
    }

    struct Case {
        order: Order,
        skip: u64,
        left: Option<u64>,
        most: Option<i64>,
        shards: &'static [&'static str],
        wanted: &'static str,
        done: bool,
    }

    fn by(sort: &str) -> Order {
        Order::By(SortPattern::parse_found(json::parse(sort).unwrap().as_doc()).unwrap())
    }

    #[test]
    fn what_shards_give_becomes_one() {
        let shards: &[&str] = &[r#"[{"a":1},{"a":4}]"#, r#"[{"a":2},{"a":3}]"#];
        let down: &[&str] = &[r#"[{"a":4},{"a":1}]"#, "[]", r#"[{"a":3},{"a":2}]"#];
        let all = |order, wanted| Case {
            order,
            skip: 0,
            left: None,
            most: None,
            shards,
            wanted,
            done: true,
        };
        let ascending = || by(r#"{"a":1}"#);
        for case in [
            all(ascending(), "1 2 3 4"),
            all(Order::None, "1 4 2 3"),
            Case {
                shards: down,
                ..all(by(r#"{"a":-1}"#), "4 3 2 1")
            },
            Case {
                skip: 1,
                left: Some(2),
                ..all(ascending(), "2 3")
            },
            Case {
                skip: 9,
                ..all(ascending(), "")
            },
            Case {
                left: Some(0),
                ..all(ascending(), "")
            },
            Case {
                most: Some(3),
                done: false,
                ..all(ascending(), "1 2 3")
            },
            // A batch that is full does not look whether there is more.
            Case {
                most: Some(4),
                done: false,
                ..all(ascending(), "1 2 3 4")
            },
            Case {
                most: Some(4),
                left: Some(4),
                ..all(ascending(), "1 2 3 4")
            },
            Case {
                shards: &[],
                ..all(ascending(), "")
            },
        ] {
            let cluster = Cluster::new("c/127.0.0.1:1", access(), Box::<Moving>::default());
            let mut merge = Merge {
                order: case.order,
                skip: case.skip,
                left: case.left,
                parts: Vec::new(),
                ..Merge::of_documents("d.c", Vec::new())
            };
            let names: Vec<Arc<str>> = (0..case.shards.len())
                .map(|n| format!("s{n}").into())
                .collect();
            let replies: Vec<DocBuf> = case.shards.iter().map(|d| reply(d)).collect();
            merge.begin(&names, &replies).unwrap();
            let mut w = Writer::new();
            w.open_array("batch");
            let done = merge.fill(&cluster, &mut w, case.most).unwrap();
            w.close();
            let batch = w.finish();
            let batch = batch.get("batch").and_then(Val::as_array).unwrap();
            let given: Vec<String> = batch
                .values()
                .map(|v| v.as_doc().unwrap().get("a").unwrap().to_string())
                .collect();
            assert_eq!((given.join(" ").as_str(), done), (case.wanted, case.done));
        }
    }

    #[test]
    fn one_error_is_that_of_all() {
        let mut merge = Merge::of_documents("d.c", Vec::new());
        let failed = doc! {"ok": 0.0, "code": 2, "errmsg": "no", "codeName": "BadValue"};
        let e = merge.begin(&["s0".into(), "s1".into()], &[reply("[]"), failed]);
        assert_eq!(e.unwrap_err().into_error().code.0, 2);
    }
}
