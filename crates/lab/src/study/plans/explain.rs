//! A query as a server plans it, by an index that it is told to take, and what both read.

use super::query::RandomQuery;
use super::schema::{Pattern, RandomCollection, document};
use crate::connection::MongoConnection;
use crate::fault::{Fault, Result};
use crate::reply;
use crate::report::FETCH;
use bson::{Doc, Val, Writer, doc};

/// Documents of a batch; small ones, so that one fits into a reply.
const BATCH: i32 = 10_000;

/// What a query is told to go by.
#[derive(Clone, Copy)]
pub enum AccessPath<'a> {
    Planned,
    By(&'a Pattern),
    /// All documents, one after the other.
    Scan,
}

/// What a plan read, and which it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRead {
    /// Entries of indexes, and four times the documents.
    pub cost: u64,
    pub plan: String,
    pub sorts: bool,
}

/// One collection on one server.
pub struct ServedCollection<'a> {
    pub connection: &'a mut MongoConnection,
    pub db: &'a str,
    pub collection: &'a str,
}

impl ServedCollection<'_> {
    fn find(&self, q: &RandomQuery, way: AccessPath<'_>) -> Writer {
        let mut w = Writer::new();
        w.str("find", self.collection)
            .doc("filter", q.condition.filter.as_doc());
        if !q.sort.is_empty() {
            w.value("sort", document(&q.sort));
        }
        if q.skip > 0 {
            w.i32("skip", q.skip);
        }
        if let Some(limit) = q.limit {
            w.i32("limit", limit);
        }
        match way {
            AccessPath::Planned => {}
            AccessPath::By(index) => {
                w.value("hint", document(index));
            }
            AccessPath::Scan => {
                w.value("hint", doc! {"$natural": 1});
            }
        }
        w
    }

    /// Runs the query under `explain`.
    pub fn explain(&mut self, q: &RandomQuery, way: AccessPath<'_>) -> Result<PlanRead> {
        let explain = doc! {
            "explain": self.find(q, way).finish(), "verbosity": "executionStats",
        };
        let reply = self.connection.command(self.db, explain.as_doc())?;
        read_of(reply.as_doc()).ok_or_else(|| {
            let said = reply::brief(reply.as_doc());
            Fault::Target(format!("explain told nothing of what was read: {said}"))
        })
    }

    /// Runs the query; gives the `_id`s in their order.
    pub fn ids(&mut self, q: &RandomQuery, way: AccessPath<'_>) -> Result<Vec<u64>> {
        let mut find = self.find(q, way);
        find.i32("batchSize", BATCH);
        let mut reply = self.connection.command(self.db, find.finish().as_doc())?;
        let mut ids = Vec::new();
        loop {
            let (cursor, batch) = batch_of(reply.as_doc())?;
            for d in batch.values() {
                let id = d.as_doc().and_then(|d| reply::int(d, "_id"));
                let id = id.and_then(|id| u64::try_from(id).ok());
                ids.push(id.ok_or_else(|| {
                    let said = reply::brief(reply.as_doc());
                    Fault::Check(format!("a document that nobody inserted in {said}"))
                })?);
            }
            if cursor == 0 {
                return Ok(ids);
            }
            let more = doc! {"getMore": cursor, "collection": self.collection, "batchSize": BATCH};
            reply = self.connection.command(self.db, more.as_doc())?;
        }
    }

    /// Inserts documents of these numbers.
    pub fn insert(
        &mut self,
        schema: &RandomCollection,
        numbers: std::ops::Range<u64>,
    ) -> Result<()> {
        const TOGETHER: u64 = 1000;
        let mut from = numbers.start;
        while from < numbers.end {
            let to = numbers.end.min(from + TOGETHER);
            let mut all = Writer::new_array();
            for number in from..to {
                all.push_value(schema.document(number));
            }
            let insert = doc! {"insert": self.collection, "documents": all.finish_array()};
            self.connection.command(self.db, insert.as_doc())?;
            from = to;
        }
        Ok(())
    }

    /// Makes all indexes of the collection, each by itself.
    pub fn index(&mut self, schema: &RandomCollection) -> Result<()> {
        for key in &schema.indexes {
            let index = doc! {"key": document(key), "name": super::schema::name(key)};
            let make = doc! {"createIndexes": self.collection, "indexes": bson::array![index]};
            self.connection.command(self.db, make.as_doc())?;
        }
        Ok(())
    }
}

/// A cursor's number and its batch.
fn batch_of(reply: Doc<'_>) -> Result<(i64, Doc<'_>)> {
    let found = reply.get("cursor").and_then(Val::as_doc).and_then(|c| {
        let batch = c.get("firstBatch").or_else(|| c.get("nextBatch"))?;
        Some((reply::int(c, "id")?, batch.as_array()?))
    });
    found.ok_or_else(|| Fault::Check(format!("no cursor in {}", reply::brief(reply))))
}

/// What `explain` says that was read; nothing where it does not say it.
fn read_of(reply: Doc<'_>) -> Option<PlanRead> {
    let stats = reply.get("executionStats")?.as_doc()?;
    if stats.get("executionSuccess").is_some_and(|s| !s.truthy()) {
        return None;
    }
    let count = |name: &str| u64::try_from(reply::int(stats, name)?).ok();
    let cost = count("totalKeysExamined")? + FETCH * count("totalDocsExamined")?;
    let mut stages = Stages::default();
    if let Some(plan) = reply.get("queryPlanner").and_then(Val::as_doc) {
        let winner = plan.get("winningPlan").and_then(Val::as_doc)?;
        stages.walk(winner, 0);
    }
    Some(PlanRead {
        cost,
        sorts: stages.sorts,
        plan: stages.text(),
    })
}

/// What a plan's tree is made of.
#[derive(Default)]
struct Stages {
    indexes: Vec<String>,
    sorts: bool,
    /// Above several scans: an `OR`, a merge.
    several: Option<String>,
}

impl Stages {
    /// Deeper than any plan's tree.
    const DEEPEST: usize = 100;

    fn walk(&mut self, stage: Doc<'_>, depth: usize) {
        if depth > Stages::DEEPEST {
            return;
        }
        let name = stage.get("stage").and_then(Val::as_str).unwrap_or_default();
        match name {
            "SORT" => self.sorts = true,
            "OR" | "SORT_MERGE" | "AND_SORTED" | "AND_HASH" => {
                self.several.get_or_insert_with(|| name.to_string());
            }
            _ => {}
        }
        if let Some(index) = stage.get("indexName").and_then(Val::as_str) {
            self.indexes.push(index.to_string());
        }
        // Newer servers wrap the tree; a router has one for each shard.
        for below in ["queryPlan", "winningPlan", "inputStage"] {
            if let Some(next) = stage.get(below).and_then(Val::as_doc) {
                self.walk(next, depth + 1);
            }
        }
        for below in ["inputStages", "shards"] {
            let all = stage.get(below).and_then(Val::as_array);
            for next in all.unwrap_or(Doc::EMPTY).values() {
                if let Some(next) = next.as_doc() {
                    self.walk(next, depth + 1);
                }
            }
        }
    }

    /// `a_1_b_1`, `OR of a_1, b_1`, `scan`; what sorts says so.
    fn text(&self) -> String {
        let indexes = self.indexes.join(", ");
        let mut told = match (&self.several, self.indexes.is_empty()) {
            (_, true) => "scan".to_string(),
            (Some(how), false) => format!("{how} of {indexes}"),
            (None, false) => indexes,
        };
        if self.sorts {
            told.push_str(", sorted");
        }
        told
    }
}

/// Fails unless two runs of a query, each with what it went by, gave what one collection must give to both.
pub fn same(
    schema: &RandomCollection,
    q: &RandomQuery,
    a: (&str, &[u64]),
    b: (&str, &[u64]),
) -> Result<()> {
    let differ = |why: &str| {
        Err(Fault::Check(format!(
            "{why} by {} and by {}: {}",
            a.0,
            b.0,
            q.text()
        )))
    };
    if a.1.len() != b.1.len() {
        return differ(&format!("{} and {} documents", a.1.len(), b.1.len()));
    }
    // Documents of equal order may come in any order, and with a limit any of them may come.
    let ranks = |ids: &[u64]| -> Vec<_> { ids.iter().map(|id| q.ranks(schema, *id)).collect() };
    if ranks(a.1) != ranks(b.1) {
        return differ("another order");
    }
    if q.limit.is_none() && q.skip == 0 && sorted(a.1) != sorted(b.1) {
        return differ("other documents");
    }
    Ok(())
}

fn sorted(ids: &[u64]) -> Vec<u64> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

/// Fails unless a run gave no document twice, and all in the order that was asked for.
pub fn proper(schema: &RandomCollection, q: &RandomQuery, by: &str, ids: &[u64]) -> Result<()> {
    let wrong = |why: &str| Err(Fault::Check(format!("{why} by {by}: {}", q.text())));
    if sorted(ids).windows(2).any(|w| w[0] == w[1]) {
        return wrong("a document twice");
    }
    let ranks: Vec<_> = ids.iter().map(|id| q.ranks(schema, *id)).collect();
    let falls = ranks.windows(2).any(|w| {
        let fields = q.sort.iter().zip(w[0].iter().zip(&w[1]));
        let order = fields.map(|((_, direction), (a, b))| match direction {
            1 => a.cmp(b),
            _ => b.cmp(a),
        });
        order
            .fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
            .is_gt()
    });
    if falls {
        return wrong("the order is wrong");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plans::schema::ValueSpread;
    use bson::DocBuf;

    fn explained(winner: DocBuf, keys: i32, docs: i32) -> DocBuf {
        doc! {
            "queryPlanner": doc! {"winningPlan": winner},
            "executionStats": doc! {
                "executionSuccess": true, "totalKeysExamined": keys, "totalDocsExamined": docs,
            },
        }
    }

    fn scan(name: &str) -> DocBuf {
        doc! {"stage": "IXSCAN", "indexName": name}
    }

    #[test]
    fn plans_are_told_by_their_indexes() {
        let read = |winner: DocBuf| {
            let read = read_of(explained(winner, 10, 3).as_doc()).unwrap();
            assert_eq!(read.cost, 22);
            (read.plan, read.sorts)
        };
        let fetch = doc! {"stage": "FETCH", "inputStage": scan("a_1")};
        assert_eq!(read(fetch.clone()), ("a_1".into(), false));
        let sort = doc! {"stage": "SORT", "inputStage": fetch};
        assert_eq!(read(sort.clone()), ("a_1, sorted".into(), true));
        let wrapped = doc! {"queryPlan": sort, "slotBasedPlan": doc! {}};
        assert_eq!(read(wrapped), ("a_1, sorted".into(), true));
        let or = doc! {"stage": "OR", "inputStages": bson::array![scan("a_1"), scan("b_1")]};
        let sharded =
            doc! {"stage": "SINGLE_SHARD", "shards": bson::array![doc! {"winningPlan": or}]};
        assert_eq!(read(sharded), ("OR of a_1, b_1".into(), false));
        let all = doc! {"stage": "COLLSCAN"};
        assert_eq!(read(all), ("scan".into(), false));
        assert_eq!(read_of(doc! {"ok": 1.0}.as_doc()), None);
        let failed = doc! {"executionStats": doc! {"executionSuccess": false}};
        assert_eq!(read_of(failed.as_doc()), None);
    }

    #[test]
    fn what_must_be_equal_is_compared() {
        let mut schema = RandomCollection::new(1, 0, 100);
        schema.documents = 100;
        (schema.kinds[0], schema.kinds[1]) = (ValueSpread::Constant, ValueSpread::Unique);
        let mut q = RandomQuery::new(&schema, &mut schema.queries());
        (q.sort, q.limit, q.skip) = (Vec::new(), None, 0);
        let check =
            |q: &RandomQuery, a: &[u64], b: &[u64]| same(&schema, q, ("a", a), ("b", b)).is_ok();
        assert!(check(&q, &[1, 2], &[2, 1]));
        assert!(!check(&q, &[1, 2], &[1, 3]) && !check(&q, &[1, 2], &[1]));
        // Any two will do.
        q.limit = Some(2);
        assert!(check(&q, &[1, 2], &[1, 3]) && !check(&q, &[1, 2], &[1]));
        q.sort = vec![(0, 1)];
        assert!(check(&q, &[1, 2], &[1, 3]));
        q.sort = vec![(1, 1)];
        assert!(check(&q, &[1, 2], &[1, 2]) && !check(&q, &[1, 2], &[1, 3]));
        let proper = |q: &RandomQuery, ids: &[u64]| proper(&schema, q, "a", ids).is_ok();
        assert!(proper(&q, &[1, 2, 9]) && !proper(&q, &[2, 1]) && !proper(&q, &[1, 1]));
        q.sort = vec![(0, 1), (1, -1)];
        assert!(proper(&q, &[9, 2, 1]) && !proper(&q, &[1, 2]));
    }
}
