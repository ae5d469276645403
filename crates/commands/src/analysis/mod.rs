//! Whether a key would serve as a shard key: `analyzeShardKey`, and the samples of queries that it
//! asks, which `configureQueryAnalyzer` has taken. A router uses the same over its shards
//! ([`Analyzed`]).

pub mod analyze_shard_key;
pub mod configure_query_analyzer;
pub mod sampling;

use bson::{Doc, DocBuf, Val, Writer, array, doc};
use errors::{Fallible, Result, bail, err};
use front::Args;
use front::idl;
use sharding::ShardKey;
use sharding::analysis::{self, Distribution};

const AT: &str = "analyzeShardKey";
/// Documents that are looked at where the command does not say how many.
const SAMPLE_SIZE: i64 = 10_000_000;
/// Documents whose order of insertion is compared with that of the key.
const ORDERED: u64 = 50_000;
/// Documents by whose keys the ranges are cut that queries are counted by, and how many these are.
const CUT_BY: i64 = 10_000;
const RANGES: usize = 100;
const MOST_COMMON: i32 = 5;

/// A collection whose keys are analyzed.
pub trait Analyzed {
    /// As `listIndexes` shows them.
    fn indexes(&mut self) -> Fallible<Vec<DocBuf>>;
    fn size(&mut self) -> Fallible<Size>;
    fn aggregate(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>>;
    /// The same on one server, whose documents come in the order of their records.
    fn in_order(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>>;
    /// The sampled queries of the collection.
    fn samples(&mut self) -> Fallible<Vec<DocBuf>>;
}

pub struct Size {
    pub documents: u64,
    pub bytes: u64,
    /// Documents on shards that do not own them; `None`: the collection is on no shard.
    pub orphans: Option<u64>,
    /// Records lie by `_id`, whatever was inserted first.
    pub clustered: bool,
}

idl::arguments! {
    struct Arguments<'a> {
        "key" => key: Option<Doc<'a>> = idl::doc,
        "keyCharacteristics" => characteristics: Option<bool> = idl::boolean,
        "readWriteDistribution" => distribution: Option<bool> = idl::boolean,
        "sampleRate" => rate: Option<f64> = idl::number,
        "sampleSize" => size: Option<i64> = idl::int,
    }
}

/// What `analyzeShardKey` is asked.
pub struct AnalyzeRequest {
    pub ns: String,
    key: ShardKey,
    characteristics: bool,
    distribution: bool,
    rate: Option<f64>,
    size: i64,
}

impl AnalyzeRequest {
    pub fn parse(body: Doc<'_>) -> Fallible<AnalyzeRequest> {
        AnalyzeRequest::read(body).map_err(|stop| stop.into_error())
    }

    fn read(body: Doc<'_>) -> Result<AnalyzeRequest> {
        let args = Args::parse(AT, body, None)?;
        let a = Arguments::parse(AT, args.fields.iter().copied())?;
        let ns = namespace(AT, args.first)?;
        let key = ShardKey::parse(idl::required(AT, "key", a.key)?)?;
        let characteristics = a.characteristics.unwrap_or(true);
        let distribution = a.distribution.unwrap_or(true);
        if !characteristics && !distribution {
            bail!(
                InvalidOptions,
                "Cannot specify both 'keyCharacteristics' and 'readWriteDistribution' as false"
            );
        }
        if !characteristics && (a.rate.is_some() || a.size.is_some()) {
            bail!(
                InvalidOptions,
                "Cannot specify 'sampleRate' or 'sampleSize' when 'keyCharacteristics' is false"
            );
        }
        if a.rate.is_some() && a.size.is_some() {
            bail!(
                InvalidOptions,
                "Cannot specify both 'sampleRate' and 'sampleSize'"
            );
        }
        if a.rate.is_some_and(|r| !(r > 0.0 && r <= 1.0)) {
            bail!(
                51024,
                "BSON field 'sampleRate' value must be > 0 and <= 1, actual value '{}'",
                a.rate.unwrap_or(0.0)
            );
        }
        if a.size.is_some_and(|n| n < 1) {
            bail!(
                51024,
                "BSON field 'sampleSize' value must be >= 1, actual value '{}'",
                a.size.unwrap_or(0)
            );
        }
        Ok(AnalyzeRequest {
            ns,
            key,
            characteristics,
            distribution,
            rate: a.rate,
            size: a.size.unwrap_or(SAMPLE_SIZE),
        })
    }

    /// The reply, but for `ok`.
    pub fn answer(&self, of: &mut dyn Analyzed) -> Fallible<DocBuf> {
        let mut w = Writer::new();
        if self.characteristics
            && let Some(found) = self.characteristics(of)?
        {
            w.doc("keyCharacteristics", found.as_doc());
        }
        if self.distribution {
            let (reads, writes) = self.distribution(of)?;
            w.doc("readDistribution", reads.as_doc());
            w.doc("writeDistribution", writes.as_doc());
        }
        Ok(w.finish())
    }

    /// `{f0: …, f1: …}`: the values of the key.
    fn values(&self) -> DocBuf {
        let mut w = Writer::new();
        for (n, name) in self.key.names().enumerate() {
            let path = format!("${name}");
            w.value(
                &format!("f{n}"),
                doc! {"$ifNull": array![path.as_str(), bson::Value::NULL]},
            );
        }
        w.finish()
    }

    /// Whether an index begins with the key, and whether it is the key itself and unique; `None`:
    /// there is none.
    fn is_unique(&self, indexes: &[DocBuf]) -> Option<bool> {
        let mut found = None;
        for index in indexes {
            let names = index.get("key").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
            let names: Vec<&str> = names.iter().map(|e| e.name).collect();
            let key: Vec<&str> = self.key.names().collect();
            let partial = ["sparse", "partialFilterExpression", "collation", "hidden"];
            if !names.starts_with(&key)
                || partial
                    .iter()
                    .any(|f| index.get(f).is_some_and(Val::truthy))
            {
                continue;
            }
            let unique = names == ["_id"] || index.get("unique").is_some_and(Val::truthy);
            found = Some(found == Some(true) || unique && names.len() == key.len());
        }
        found
    }

    fn characteristics(&self, of: &mut dyn Analyzed) -> Fallible<Option<DocBuf>> {
        let Some(unique) = self.is_unique(&of.indexes()?) else {
            return Ok(None);
        };
        let size = of.size()?;
        let empty = || {
            err!(
                IllegalOperation,
                "Cannot analyze the cardinality and frequency of a shard key for an empty collection"
            )
        };
        if size.documents == 0 {
            return Err(empty());
        }
        let wanted = match self.rate {
            Some(rate) => (rate * size.documents as f64).ceil() as u64,
            None => self.size.unsigned_abs(),
        };
        let mut stages = sampled(size.documents, wanted);
        stages.push(doc! {"$group": doc! {"_id": self.values(), "n": doc! {"$sum": 1}}});
        let output = doc! {"v": "$_id", "n": "$n"};
        let most = doc! {"n": MOST_COMMON, "sortBy": doc! {"n": -1}, "output": output};
        stages.push(doc! {"$group": doc! {
            "_id": bson::Value::NULL, "distinct": doc! {"$sum": 1}, "sampled": doc! {"$sum": "$n"},
            "most": doc! {"$topN": most},
        }});
        let found = of
            .aggregate(&stages)?
            .into_iter()
            .next()
            .ok_or_else(empty)?;
        let number = |name: &str| found.get(name).and_then(Val::to_i64_exact).unwrap_or(0);
        let mut w = Writer::new();
        w.i64("numDocsTotal", size.documents as i64);
        if let Some(orphans) = size.orphans {
            w.i64("numOrphanDocs", orphans as i64);
        }
        w.i64("avgDocSizeBytes", (size.bytes / size.documents) as i64)
            .i64("numDocsSampled", number("sampled"))
            .bool("isUnique", unique)
            .i64("numDistinctValues", number("distinct"));
        w.open_array("mostCommonValues");
        let most = found.get("most").and_then(Val::as_array);
        for one in most.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc) {
            self.write_common(&mut w, one);
        }
        w.close();
        let monotonicity = self.monotonicity(of, &size)?;
        w.doc("monotonicity", monotonicity.as_doc());
        Ok(Some(w.finish()))
    }

    fn write_common(&self, w: &mut Writer, one: Doc<'_>) {
        let values = one.get("v").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        w.open_doc("").open_doc("value");
        for (name, v) in self.key.names().zip(values.values()) {
            w.val(name, v);
        }
        let n = one.get("n").and_then(Val::to_i64_exact).unwrap_or(0);
        w.close().i64("frequency", n).close();
    }

    fn monotonicity(&self, of: &mut dyn Analyzed, size: &Size) -> Fallible<DocBuf> {
        if size.clustered {
            return Ok(analysis::monotonicity(None));
        }
        if self.key.is_hashed() && self.key.fields().len() == 1 {
            return Ok(doc! {"type": "not monotonic"});
        }
        let mut stages = sampled(size.documents, ORDERED);
        let mut fields = Writer::new();
        fields.i32("_id", 0).extend(self.values().as_doc());
        stages.push(doc! {"$project": fields.finish()});
        let found = of.in_order(&stages)?;
        let keys: Vec<Vec<u8>> = (found.iter())
            .map(|d| analysis::key_of(d.as_doc().values()))
            .collect();
        Ok(analysis::monotonicity(analysis::correlation(&keys)))
    }

    fn distribution(&self, of: &mut dyn Analyzed) -> Fallible<(DocBuf, DocBuf)> {
        let samples = of.samples()?;
        let ranges = match samples.is_empty() {
            true => Vec::new(),
            false => {
                let docs = of.aggregate(&[doc! {"$sample": doc! {"size": CUT_BY}}])?;
                analysis::ranges(&self.key, docs.iter().map(DocBuf::as_doc), RANGES)
            }
        };
        let mut found = Distribution::new(&self.key, ranges);
        samples.iter().for_each(|s| found.add(s.as_doc()));
        Ok(found.finish())
    }
}

/// The stages that leave about `wanted` of so many documents, in their order.
fn sampled(documents: u64, wanted: u64) -> Vec<DocBuf> {
    if documents <= wanted {
        return Vec::new();
    }
    let rate = wanted as f64 / documents as f64;
    let limit = i64::try_from(wanted.max(1)).unwrap_or(i64::MAX);
    vec![
        doc! {"$match": doc! {"$sampleRate": rate}},
        doc! {"$limit": limit},
    ]
}

/// The collection that a command names, which is not one of the server's own.
pub(crate) fn namespace(at: &'static str, first: Val<'_>) -> Result<String> {
    let Some(ns) = first.as_str() else {
        return Err(idl::mismatch(at, at, first, &["string"]));
    };
    let (db, coll) = match ns.split_once('.') {
        Some((db, coll)) if !db.is_empty() && !coll.is_empty() => (db, coll),
        _ => bail!(InvalidNamespace, "Invalid namespace specified '{ns}'"),
    };
    if matches!(db, "admin" | "config" | "local") || coll.starts_with("system.") {
        bail!(
            IllegalOperation,
            "Cannot run against an internal collection"
        );
    }
    Ok(ns.to_string())
}
