//! How well a key would serve as a shard key: what its values are like, and which ranges of them
//! queries that were sampled would ask for.
//!
//! A sampled query is a document of `config.sampledQueries`: `{cmdName, cmd}`, where `cmd` has
//! `filter` (reads), one element of `updates` or `deletes`, or is a whole `findAndModify`.

use crate::{Place, PlaceRange, ShardKey, targeting};
use bson::{Doc, DocBuf, Val, Writer, key};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

/// From this correlation on a key counts as one that grows, or falls, with each insert.
const MONOTONIC: f64 = 0.7;

/// Pearson's correlation of the order in which values were inserted with the order that they have;
/// `None` where there are fewer than two.
pub fn correlation(inserted: &[Vec<u8>]) -> Option<f64> {
    if inserted.len() < 2 {
        return None;
    }
    let mut ranks: Vec<usize> = (0..inserted.len()).collect();
    // Of equal values the one that came first is first.
    ranks.sort_by(|a, b| inserted[*a].cmp(&inserted[*b]));
    let mean = (inserted.len() - 1) as f64 / 2.0;
    let (mut both, mut one) = (0.0, 0.0);
    for (rank, at) in ranks.iter().enumerate() {
        let (x, y) = (rank as f64 - mean, *at as f64 - mean);
        both += x * y;
        one += x * x;
    }
    Some(both / one)
}

/// `monotonicity` of a key.
pub fn monotonicity(correlation: Option<f64>) -> DocBuf {
    let mut w = Writer::new();
    match correlation {
        None => w.str("type", "unknown"),
        Some(c) => {
            w.f64("recordIdCorrelationCoefficient", c);
            w.str(
                "type",
                if c.abs() >= MONOTONIC {
                    "monotonic"
                } else {
                    "not monotonic"
                },
            )
        }
    };
    w.finish()
}

/// Ranges that the places of these documents cut into about so many equal parts.
pub fn ranges<'a>(
    key: &ShardKey,
    sampled: impl Iterator<Item = Doc<'a>>,
    many: usize,
) -> Vec<PlaceRange> {
    let mut places: Vec<Place> = sampled.filter_map(|d| key.place_of(d).ok()).collect();
    places.sort_unstable();
    places.dedup();
    let n = places.len();
    let mut cuts: Vec<Place> = (1..many)
        .filter_map(|i| places.get(i * n / many).cloned())
        .collect();
    cuts.dedup();
    let mut low = Vec::new();
    let mut out = Vec::with_capacity(cuts.len() + 1);
    for cut in cuts {
        if cut <= low {
            continue;
        }
        out.push(PlaceRange {
            low: std::mem::replace(&mut low, cut.clone()),
            high: Some(cut),
        });
    }
    out.push(PlaceRange { low, high: None });
    out
}

/// Which ranges queries ask for.
#[derive(Default)]
struct Counts {
    single: u64,
    multi: u64,
    all: u64,
    by_range: Vec<u64>,
}

impl Counts {
    fn new(ranges: &[PlaceRange]) -> Counts {
        Counts {
            by_range: vec![0; ranges.len()],
            ..Counts::default()
        }
    }

    /// Counts a query; whether it names one place.
    fn add(&mut self, filter: Doc<'_>, key: &ShardKey, ranges: &[PlaceRange]) -> bool {
        let asked = match Filter::parse(filter, &ParseEnv::new()) {
            Ok(filter) => targeting::ranges(&filter, key, &Vars::new(0)),
            Err(_) => vec![PlaceRange::all()],
        };
        let one = targeting::single_place(&asked, key).is_some();
        match one {
            true => self.single += 1,
            false if asked == [PlaceRange::all()] => self.all += 1,
            false => self.multi += 1,
        }
        for (n, range) in self.by_range.iter_mut().zip(ranges) {
            if asked.iter().any(|a| a.overlaps(range)) {
                *n += 1;
            }
        }
        one
    }

    fn write(&self, w: &mut Writer, what: &str) {
        let total = self.single + self.multi + self.all;
        for (name, n) in [
            ("SingleShard", self.single),
            ("MultiShard", self.multi),
            ("ScatterGather", self.all),
        ] {
            w.f64(&format!("percentageOf{name}{what}"), percent(n, total));
        }
        w.open_array(&format!("num{what}ByRange"));
        self.by_range.iter().for_each(|n| {
            w.push_value(*n as i64);
        });
        w.close();
    }
}

fn percent(n: u64, of: u64) -> f64 {
    match of {
        0 => 0.0,
        of => n as f64 * 100.0 / of as f64,
    }
}

/// What sampled queries mean for a key.
pub struct Distribution<'k> {
    key: &'k ShardKey,
    ranges: Vec<PlaceRange>,
    reads: Counts,
    writes: Counts,
    /// By command: find, aggregate, count, distinct; update, delete, findAndModify.
    commands: [u64; 7],
    key_updates: u64,
    single_without_key: u64,
    multi_without_key: u64,
}

const COMMANDS: [&str; 7] = [
    "find",
    "aggregate",
    "count",
    "distinct",
    "update",
    "delete",
    "findAndModify",
];
const READS: usize = 4;

/// The name under which a command is sampled, if it is.
pub fn sampled_as(command: &str) -> Option<&'static str> {
    let name = match command {
        "findandmodify" => "findAndModify",
        name => name,
    };
    COMMANDS.iter().find(|c| **c == name).copied()
}

impl<'k> Distribution<'k> {
    pub fn new(key: &'k ShardKey, ranges: Vec<PlaceRange>) -> Distribution<'k> {
        Distribution {
            key,
            reads: Counts::new(&ranges),
            writes: Counts::new(&ranges),
            ranges,
            commands: [0; 7],
            key_updates: 0,
            single_without_key: 0,
            multi_without_key: 0,
        }
    }

    /// Takes a sampled query in.
    pub fn add(&mut self, sample: Doc<'_>) {
        let name = sample.get("cmdName").and_then(|v| v.as_str());
        let at = name.and_then(|name| COMMANDS.iter().position(|c| *c == name));
        let cmd = sample.get("cmd").and_then(|v| v.as_doc());
        let (Some(at), Some(cmd)) = (at, cmd) else {
            return;
        };
        self.commands[at] += 1;
        if at < READS {
            let filter = doc_of(cmd, "filter");
            self.reads.add(filter, self.key, &self.ranges);
            return;
        }
        let (filter, update, multi) = match at {
            4 => {
                let one = first_of(cmd, "updates");
                let multi = one.get("multi").is_some_and(Val::truthy);
                (doc_of(one, "q"), one.get("u"), multi)
            }
            5 => {
                let one = first_of(cmd, "deletes");
                let all = one.get("limit").and_then(Val::to_f64) == Some(0.0);
                (doc_of(one, "q"), None, all)
            }
            _ => (doc_of(cmd, "query"), cmd.get("update"), false),
        };
        let one = self.writes.add(filter, self.key, &self.ranges);
        match (one, multi) {
            (true, _) => {}
            (false, true) => self.multi_without_key += 1,
            (false, false) => self.single_without_key += 1,
        }
        if update.is_some_and(|u| self.changes_key(u)) {
            self.key_updates += 1;
        }
    }

    /// Whether an update with operators names a field of the key.
    fn changes_key(&self, update: Val<'_>) -> bool {
        let operators = update.as_doc().unwrap_or(Doc::EMPTY).iter();
        let mut fields =
            operators.filter_map(|e| e.val.as_doc().filter(|_| e.name.starts_with('$')));
        fields.any(|d| d.iter().any(|f| self.key.concerns(f.name)))
    }

    /// `readDistribution` and `writeDistribution`.
    pub fn finish(&self) -> (DocBuf, DocBuf) {
        let sizes = |w: &mut Writer, from: usize, to: usize| -> u64 {
            let total = self.commands[from..to].iter().sum();
            w.open_doc("sampleSize").i64("total", total as i64);
            for (name, n) in COMMANDS[from..to].iter().zip(&self.commands[from..to]) {
                w.i64(name, *n as i64);
            }
            w.close();
            total
        };
        let mut reads = Writer::new();
        if sizes(&mut reads, 0, READS) > 0 {
            self.reads.write(&mut reads, "Reads");
        }
        let mut writes = Writer::new();
        let total = sizes(&mut writes, READS, COMMANDS.len());
        if total > 0 {
            self.writes.write(&mut writes, "Writes");
            for (name, n) in [
                ("percentageOfShardKeyUpdates", self.key_updates),
                (
                    "percentageOfSingleWritesWithoutShardKey",
                    self.single_without_key,
                ),
                (
                    "percentageOfMultiWritesWithoutShardKey",
                    self.multi_without_key,
                ),
            ] {
                writes.f64(name, percent(n, total));
            }
        }
        (reads.finish(), writes.finish())
    }
}

fn doc_of<'a>(d: Doc<'a>, name: &str) -> Doc<'a> {
    d.get(name).and_then(|v| v.as_doc()).unwrap_or(Doc::EMPTY)
}

fn first_of<'a>(d: Doc<'a>, name: &str) -> Doc<'a> {
    let list = d.get(name).and_then(|v| v.as_array());
    let first = list.and_then(|l| l.values().next()?.as_doc());
    first.unwrap_or(Doc::EMPTY)
}

/// The memcomparable key of some values, one after another.
pub fn key_of<'a>(values: impl Iterator<Item = Val<'a>>) -> Vec<u8> {
    let mut out = Vec::new();
    values.for_each(|v| key::encode(v, false, &mut out, None));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    fn keys(values: &[i32]) -> Vec<Vec<u8>> {
        let key = |n: &i32| key_of(std::iter::once(bson::Value::from(*n).as_val()));
        values.iter().map(key).collect()
    }

    #[test]
    fn what_grows_with_each_insert_is_monotonic() {
        let close = |values: &[i32], wanted: f64| {
            let found = correlation(&keys(values)).unwrap();
            assert!((found - wanted).abs() < 1e-9, "{found}");
        };
        close(&[1, 2, 3, 4], 1.0);
        close(&[4, 3, 2, 1], -1.0);
        close(&[7, 7, 7], 1.0);
        close(&[2, 4, 1, 3], 0.0);
        assert!(correlation(&keys(&[1])).is_none());
        assert_eq!(monotonicity(None), doc! {"type": "unknown"});
    }

    #[test]
    fn queries_are_counted_by_the_ranges_that_they_ask_for() {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let docs: Vec<_> = (0..100).map(|n| doc! {"a": n}).collect();
        let cut = ranges(&key, docs.iter().map(DocBuf::as_doc), 4);
        assert_eq!(cut.len(), 4);
        let mut found = Distribution::new(&key, cut);
        let read =
            |name: &str, filter: DocBuf| doc! {"cmdName": name, "cmd": doc! {"filter": filter}};
        let update = |q: DocBuf, u: DocBuf, multi: bool| {
            let one = doc! {"q": q, "u": u, "multi": multi};
            doc! {"cmdName": "update", "cmd": doc! {"updates": array![one]}}
        };
        for sample in [
            read("find", doc! {"a": 3}),
            read("count", doc! {"a": doc! {"$lt": 30}}),
            read("find", doc! {"b": 1}),
            read("aggregate", doc! {}),
            update(doc! {"a": 99}, doc! {"$set": doc! {"a": 5}}, false),
            update(doc! {"b": 1}, doc! {"$set": doc! {"b": 5}}, true),
        ] {
            found.add(sample.as_doc());
        }
        let (reads, writes) = found.finish();
        let size =
            doc! {"total": 4i64, "find": 2i64, "aggregate": 1i64, "count": 1i64, "distinct": 0i64};
        assert_eq!(
            reads,
            doc! {
                "sampleSize": size, "percentageOfSingleShardReads": 25.0,
                "percentageOfMultiShardReads": 25.0, "percentageOfScatterGatherReads": 50.0,
                "numReadsByRange": array![4i64, 3i64, 2i64, 2i64],
            }
        );
        let number = |name: &str| writes.get(name).and_then(Val::to_f64);
        assert_eq!(number("percentageOfShardKeyUpdates"), Some(50.0));
        assert_eq!(number("percentageOfMultiWritesWithoutShardKey"), Some(50.0));
        assert_eq!(number("percentageOfSingleWritesWithoutShardKey"), Some(0.0));
    }

    #[test]
    fn without_samples_there_are_sizes_only() {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let found = Distribution::new(&key, ranges(&key, std::iter::empty(), 100));
        let (reads, writes) = found.finish();
        let size =
            doc! {"total": 0i64, "find": 0i64, "aggregate": 0i64, "count": 0i64, "distinct": 0i64};
        assert_eq!(reads, doc! {"sampleSize": size});
        let size = doc! {"total": 0i64, "update": 0i64, "delete": 0i64, "findAndModify": 0i64};
        assert_eq!(writes, doc! {"sampleSize": size});
    }
}
