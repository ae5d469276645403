//! Plans against brute force: whatever plan is chosen, running it over real index entries gives the
//! documents that the filter matches, in the order asked for.

use crate::explain::{Explain, winning_plan};
use crate::plan;
use crate::plan::*;
use bson::{Doc, DocBuf, Val, Value, Writer, json, key};
use query::collation::Collation;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::index_keys::{KeyPattern, KeySet};
use query::path::FieldPath;
use query::projection::Projection;
use query::sort::SortPattern;
use std::collections::{BTreeMap, HashSet};

mod effort;

/// A key, and its types and record.
type Entry<'c> = (&'c Vec<u8>, &'c (Vec<u8>, Vec<u8>));

/// A collection with indexes in memory.
struct Collection {
    records: BTreeMap<Vec<u8>, DocBuf>,
    infos: Vec<IndexInfo>,
    entries: Vec<BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>>,
}

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn filter(text: &str) -> Filter {
    Filter::parse(d(text).as_doc(), &Default::default()).unwrap()
}

/// `options`: `unique`, `sparse`, `partial {filter}` or `spec {more fields of the specification}`.
fn index(id: u32, key: &str, options: &str) -> IndexInfo {
    let mut w = Writer::new();
    w.doc("key", d(key).as_doc());
    if let Some(more) = options.strip_prefix("spec ") {
        w.extend(d(more).as_doc());
    }
    let key = KeyPattern::of_spec(w.finish().as_doc()).unwrap();
    IndexInfo {
        id,
        name: key.default_name(),
        key,
        unique: options == "unique",
        sparse: options == "sparse",
        partial: options
            .strip_prefix("partial ")
            .map(|f| std::sync::Arc::new(filter(f))),
        hidden: false,
        multikey: 0,
        ready: true,
    }
}

impl Collection {
    fn new(infos: Vec<IndexInfo>) -> Collection {
        let entries = infos.iter().map(|_| BTreeMap::new()).collect();
        Collection {
            records: BTreeMap::new(),
            infos,
            entries,
        }
    }

    /// `false` when an index refuses the document.
    fn insert(&mut self, doc: DocBuf) -> bool {
        let record = key::of(doc.get("_id").unwrap());
        let mut set = KeySet::new();
        let mut sets = Vec::new();
        for i in &self.infos {
            if i.partial
                .as_ref()
                .is_some_and(|p| !p.matches(doc.as_doc()).unwrap())
            {
                sets.push((0, Vec::new()));
                continue;
            }
            let Ok(m) = i.key.extract(doc.as_doc(), i.sparse, &mut set) else {
                return false;
            };
            let keys = set
                .iter()
                .map(|(k, t)| ([k, &record].concat(), t.to_vec()))
                .collect::<Vec<_>>();
            sets.push((m.0, keys));
        }
        for ((info, entries), (m, keys)) in self.infos.iter_mut().zip(&mut self.entries).zip(sets) {
            info.multikey |= m;
            for (k, t) in keys {
                entries.insert(k, (t, record.clone()));
            }
        }
        self.records.insert(record, doc);
        true
    }

    /// What an access reads, counted.
    fn reads(&self, access: &Access) -> Reads {
        let inside = |k: &Vec<u8>, low: &[u8], high: &[u8]| {
            k.as_slice() >= low && (high.is_empty() || k.as_slice() < high)
        };
        let entries = |a: &IndexAccess| {
            let n = self.infos.iter().position(|i| i.id == a.index).unwrap();
            let Bounds::Ranges(ranges) = &a.bounds;
            let within = |k: &&Vec<u8>| ranges.iter().any(|(low, high)| inside(k, low, high));
            self.entries[n].keys().filter(within).count()
        };
        let n = match access {
            Access::Index(a) => entries(a),
            Access::Merge(b, _) => b.iter().map(|b| entries(&b.access)).sum(),
            Access::Records { low, high, .. } => {
                let within = |k: &&Vec<u8>| inside(k, low, high);
                self.records.keys().filter(within).count()
            }
            Access::Or(b) => b.iter().map(|b| self.reads(&b.access).keys as usize).sum(),
            Access::Ids(ids) => ids.len(),
            Access::Eof | Access::Near(_) => 0,
        };
        Reads {
            keys: n as f64,
            given: n as f64,
            exact: true,
        }
    }

    fn plan(
        &self,
        f: &Filter,
        sort: Option<&SortPattern>,
        projection: Option<&Projection>,
        limit: Option<u64>,
    ) -> Plan {
        let estimate = |asked: &[&Access]| asked.iter().map(|a| self.reads(a)).collect();
        plan(&PlanRequest {
            vars: None,
            filter: f,
            sort,
            projection,
            limit,
            hint: None,
            min: None,
            max: None,
            indexes: &self.infos,
            count: false,
            distinct: None,
            clustered: true,
            ns: "t.c",
            fewest: None,
            estimate: Some(&estimate),
        })
        .unwrap()
    }

    /// The entries of a range that are inside an access's bounds, ascending: as a scan finds them,
    /// going from one that is outside to where the next can be, and in both directions the same.
    fn scan<'c>(&'c self, n: usize, a: &IndexAccess, low: &[u8], high: &[u8]) -> Vec<Entry<'c>> {
        let fields = &self.infos[n].key.fields;
        let all: Vec<Entry<'c>> = self.entries[n]
            .iter()
            .filter(|(k, _)| k.as_slice() >= low && (high.is_empty() || k.as_slice() < high))
            .collect();
        let want: Vec<&Vec<u8>> = all
            .iter()
            .filter(|(k, _)| a.holds(fields, k))
            .map(|(k, _)| *k)
            .collect();
        let mut found = Vec::new();
        for reverse in [false, true] {
            found.clear();
            let (mut target, mut outside): (Vec<u8>, bool) = (Vec::new(), false);
            let mut ordered = all.clone();
            if reverse {
                ordered.reverse();
            }
            for (k, v) in ordered {
                if outside && if reverse { *k > target } else { *k < target } {
                    continue;
                }
                let mut ends = Vec::new();
                for f in fields {
                    let at = ends.last().copied().unwrap_or(0);
                    ends.push(at + key::field_len(&k[at..], f.descending).unwrap());
                }
                outside = !a.skip.admit(k, &ends, reverse, &mut target);
                if outside {
                    let onward = if reverse { target < *k } else { target > *k };
                    assert!(onward, "a seek that does not move");
                } else {
                    found.push((k, v));
                }
            }
            if reverse {
                found.reverse();
            }
            let got: Vec<&Vec<u8>> = found.iter().map(|(k, _)| *k).collect();
            assert_eq!(
                got, want,
                "entries were passed over, reverse {reverse}: {a:?}"
            );
        }
        found
    }

    /// Record keys in scan order, and the documents that a covered plan would build.
    fn run(&self, access: &Access, residual: &Filter, covered: bool) -> Vec<(Vec<u8>, DocBuf)> {
        let mut out = Vec::new();
        match access {
            Access::Eof => {}
            Access::Near(_) => unreachable!("no query here asks for what is near"),
            Access::Ids(ids) => {
                for id in ids {
                    let k = key::of(id.as_val());
                    if let Some(d) = self.records.get(&k) {
                        out.push((k, d.clone()));
                    }
                }
            }
            Access::Records { low, high, reverse } => {
                let inside = self
                    .records
                    .iter()
                    .filter(|(k, _)| *k >= low && (high.is_empty() || *k < high))
                    .map(|(k, d)| (k.clone(), d.clone()));
                out.extend(inside);
                if *reverse {
                    out.reverse();
                }
            }
            Access::Index(a) => {
                let n = self.infos.iter().position(|i| i.id == a.index).unwrap();
                let info = &self.infos[n];
                let Bounds::Ranges(ranges) = &a.bounds;
                let mut last: Option<&Vec<u8>> = None;
                for (low, high) in ranges {
                    assert!(last.is_none_or(|l| l <= low), "ranges ascend");
                    assert!(high.is_empty() || low <= high);
                    last = Some(high);
                    let inside = self.scan(n, a, low, high);
                    for (k, (types, record)) in inside {
                        let mut dec = key::Decoder::new(k, types);
                        let values: Vec<Option<Value>> = info
                            .key
                            .fields
                            .iter()
                            .map(|f| dec.field(f.descending).unwrap())
                            .collect();
                        let pass = a.key_filter.iter().all(|(i, f)| {
                            f.matches_value(values[*i].as_ref().map_or(Val::NULL, |v| v.as_val()))
                        });
                        if !pass {
                            continue;
                        }
                        let doc = if covered {
                            built(info, a.wildcard.as_ref(), &values)
                        } else {
                            self.records[record].clone()
                        };
                        out.push((record.clone(), doc));
                    }
                }
                if a.reverse {
                    out.reverse();
                }
                let mut seen = HashSet::new();
                let all = out.len();
                out.retain(|(k, _)| seen.insert(k.clone()));
                assert!(
                    a.dedup || all == out.len(),
                    "a record came twice: {access:?}"
                );
            }
            Access::Or(branches) => {
                let mut seen = HashSet::new();
                for (i, b) in branches.iter().enumerate() {
                    for (k, d) in self.run(&b.access, &b.residual, false) {
                        assert_eq!(
                            seen.contains(&k),
                            given(&branches[..i], d.as_doc()),
                            "{d:?}: {access:?}"
                        );
                        if seen.insert(k.clone()) {
                            out.push((k, d));
                        }
                    }
                }
            }
            Access::Merge(branches, sort) => {
                let mut all: Vec<(Vec<u8>, usize, Vec<u8>, DocBuf)> = Vec::new();
                let mut seen = HashSet::new();
                for (i, b) in branches.iter().enumerate() {
                    let (mut last, before) = (Vec::new(), seen.clone());
                    for (n, (k, d)) in self
                        .run(&Access::Index(b.access.clone()), &b.residual, false)
                        .into_iter()
                        .enumerate()
                    {
                        let mut s = Vec::new();
                        sort.sort_key(d.as_doc(), &mut s).unwrap();
                        assert!(last <= s, "a merged scan is out of order");
                        last = s.clone();
                        assert_eq!(
                            before.contains(&k),
                            given(&branches[..i], d.as_doc()),
                            "{d:?}: {access:?}"
                        );
                        seen.insert(k.clone());
                        all.push((s, n, k, d));
                    }
                }
                all.sort_by(|a, b| (&a.0, &a.2).cmp(&(&b.0, &b.2)));
                let mut seen = HashSet::new();
                for (_, _, k, d) in all {
                    if seen.insert(k.clone()) {
                        out.push((k, d));
                    }
                }
            }
        }
        out.retain(|(_, d)| residual.matches(d.as_doc()).unwrap());
        out
    }
}

/// Whether one of the branches gives the document, by what they say of themselves.
fn given<A>(branches: &[Branch<A>], doc: Doc<'_>) -> bool {
    let mut wholes = branches.iter().filter_map(|b| b.whole.as_ref());
    wholes.any(|f| f.matches(doc).unwrap())
}

/// The index's fields as a document; paths have at most two components here.
fn built(info: &IndexInfo, path: Option<&FieldPath>, values: &[Option<Value>]) -> DocBuf {
    let info = match path {
        Some(p) => crate::wildcard::as_path(info, p),
        None => info.clone(),
    };
    let mut w = Writer::new();
    let mut done: Vec<&str> = Vec::new();
    let all = || {
        let fields = info.key.fields.iter().zip(values);
        fields.filter(|(f, _)| f.is_ordered())
    };
    for (f, v) in all() {
        let first = f.path.first();
        if done.contains(&first) {
            continue;
        }
        done.push(first);
        if !f.path.is_dotted() {
            if let Some(v) = v {
                w.val(first, v.as_val());
            }
            continue;
        }
        w.open_doc(first);
        for (g, v) in all().filter(|(g, _)| g.path.first() == first) {
            if let Some(v) = v {
                w.val(g.path.last(), v.as_val());
            }
        }
        w.close();
    }
    w.finish()
}

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    fn scalar(&mut self) -> String {
        match self.below(13) {
            12 => r#""X""#.into(),
            0 => "null".into(),
            1 => r#""x""#.into(),
            2 => r#""xyz""#.into(),
            3 => "true".into(),
            4 => r#"{"$numberDouble":"NaN"}"#.into(),
            5 => "2.5".into(),
            6 => r#"{"c":1}"#.into(),
            7 => r#"{"$minKey":1}"#.into(),
            _ => self.below(6).to_string(),
        }
    }

    fn value(&mut self, arrays: bool) -> String {
        match self.below(if arrays { 8 } else { 5 }) {
            0 => format!(r#"{{"b":{},"c":{}}}"#, self.scalar(), self.scalar()),
            1 => format!(r#"{{"b":{}}}"#, self.scalar()),
            5 => "[]".into(),
            6 => format!("[{},{}]", self.scalar(), self.scalar()),
            7 => format!(
                r#"[{{"b":{},"c":{}}},{{"b":{}}},{}]"#,
                self.scalar(),
                self.scalar(),
                self.scalar(),
                self.scalar()
            ),
            _ => self.scalar(),
        }
    }

    fn doc(&mut self, id: usize, arrays: bool) -> String {
        let mut out = format!(r#"{{"_id":{id}"#);
        for f in ["a", "d", "e"] {
            if self.below(4) > 0 {
                out.push_str(&format!(r#","{f}":{}"#, self.value(arrays)));
            }
        }
        out + "}"
    }

    fn operator(&mut self) -> String {
        let v = self.scalar();
        match self.below(14) {
            0..=2 => format!(r#"{{"$eq":{v}}}"#),
            3 => format!(r#"{{"$gt":{v}}}"#),
            4 => format!(r#"{{"$gte":{v}}}"#),
            5 => format!(r#"{{"$lt":{v}}}"#),
            6 => format!(r#"{{"$lte":{v}}}"#),
            7 => format!(r#"{{"$in":[{v},{},{}]}}"#, self.scalar(), self.scalar()),
            8 => format!(r#"{{"$ne":{v}}}"#),
            9 => format!(r#"{{"$exists":{}}}"#, self.below(2) == 0),
            10 => format!(
                r#"{{"$type":"{}"}}"#,
                self.pick(&["int", "string", "null", "number", "object", "array"])
            ),
            11 => r#"{"$regex":"^x"}"#.into(),
            12 => format!(r#"{{"$nin":[{v},{}]}}"#, self.scalar()),
            _ => format!(r#"{{"$gte":{v},"$lte":{}}}"#, self.scalar()),
        }
    }

    fn predicate(&mut self, depth: usize) -> String {
        match self.below(12) {
            0 if depth > 0 => {
                let (a, b) = (self.query(depth - 1), self.query(depth - 1));
                format!(r#""$or":[{a},{b}]"#)
            }
            1 => {
                let (o, p) = (self.operator(), self.operator());
                format!(r#""a":{{"$elemMatch":{{"b":{o},"c":{p}}}}}"#)
            }
            2 => format!(r#""a":{{"$elemMatch":{}}}"#, self.operator()),
            3 => format!(r#""a":{{"$not":{}}}"#, self.operator()),
            4 => format!(r#""_id":{{"$gte":{}}}"#, self.below(60)),
            5 => format!(r#""a":[{},{}]"#, self.scalar(), self.scalar()),
            6 => format!(r#""$expr":{}"#, self.condition(2)),
            _ => format!(
                r#""{}":{}"#,
                self.pick(&["a", "a.b", "a.c", "d", "e", "a.0"]),
                self.operator()
            ),
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        let operator = match self.below(6) {
            0 if depth > 0 => {
                let both = (self.condition(depth - 1), self.condition(depth - 1));
                let operator = self.pick(&["$and", "$or"]);
                return format!(r#"{{"{operator}":[{},{}]}}"#, both.0, both.1);
            }
            1 => "$lt",
            2 => "$lte",
            3 => "$gt",
            4 => "$gte",
            _ => "$eq",
        };
        let field = self.pick(&["$a", "$d", "$e", "$a.b", "$a.0", "$_id", "$$ROOT.d"]);
        let (field, value) = (format!("\"{field}\""), self.scalar());
        match self.below(3) {
            0 => format!(r#"{{"{operator}":[{{"$literal":{value}}},{field}]}}"#),
            _ => format!(r#"{{"{operator}":[{field},{{"$literal":{value}}}]}}"#),
        }
    }

    fn query(&mut self, depth: usize) -> String {
        let mut parts: Vec<String> = Vec::new();
        for _ in 0..1 + self.below(3) {
            let p = self.predicate(depth);
            let name = p.split(':').next().unwrap().to_string();
            if !parts.iter().any(|q| q.starts_with(&name)) {
                parts.push(p);
            }
        }
        format!("{{{}}}", parts.join(","))
    }
}

fn compare_with_brute_force(seed: u64, arrays: bool) -> usize {
    let mut r = Random(seed);
    const COLLATED: &str = r#"spec {"collation":{"locale":"en","strength":2}}"#;
    let pools: [&[(&str, &str)]; 13] = [
        &[(r#"{"a":1}"#, ""), (r#"{"d":-1}"#, "")],
        &[(r#"{"a":1,"d":1}"#, ""), (r#"{"e":1,"a":-1}"#, "")],
        &[
            (r#"{"a.b":1,"a.c":1}"#, ""),
            (r#"{"d":1,"e":-1,"a":1}"#, ""),
        ],
        &[
            (r#"{"a":1}"#, "sparse"),
            (r#"{"a.b":1}"#, "sparse"),
            (r#"{"d":1}"#, r#"partial {"e":{"$gte":2}}"#),
        ],
        &[
            (r#"{"a.0":1}"#, ""),
            (r#"{"d":1,"a.b":1}"#, ""),
            (r#"{"e":-1}"#, ""),
        ],
        &[(r#"{"d":"hashed"}"#, ""), (r#"{"a":"hashed"}"#, "sparse")],
        &[
            (r#"{"e":1,"d":"hashed","a":-1}"#, ""),
            (r#"{"a.b":"hashed","d":1}"#, COLLATED),
        ],
        &[(r#"{"$**":1}"#, "")],
        &[
            (r#"{"a.$**":-1}"#, ""),
            (
                r#"{"$**":1}"#,
                r#"spec {"wildcardProjection":{"a.c":0,"d":0}}"#,
            ),
        ],
        &[
            (
                r#"{"d":1,"$**":1,"e":-1}"#,
                r#"spec {"wildcardProjection":{"a":1}}"#,
            ),
            (r#"{"$**":1}"#, COLLATED),
        ],
        &[
            (r#"{"a":1,"d":-1}"#, COLLATED),
            (r#"{"d":1}"#, ""),
            (r#"{"e":1}"#, r#"spec {"collation":{"locale":"en"}}"#),
        ],
        &[(r#"{"e":1,"d":-1,"a":1}"#, ""), (r#"{"a":-1,"d":1}"#, "")],
        &[
            (r#"{"d":1,"a.b":-1,"e":1}"#, ""),
            (r#"{"e":-1,"a":"hashed","d":1}"#, ""),
        ],
    ];
    let strength = |n: i32| {
        let spec = d(&match n {
            2 => r#"{"locale":"en","strength":2}"#.to_string(),
            _ => r#"{"locale":"en"}"#.to_string(),
        });
        Collation::new(spec.as_doc()).unwrap()
    };
    let collations = [None, strength(2), strength(3)];
    let mut indexed = 0;
    for (round, pool) in pools.iter().enumerate() {
        let infos = pool
            .iter()
            .enumerate()
            .map(|(i, (k, o))| index(i as u32 + 1, k, o))
            .collect();
        let mut c = Collection::new(infos);
        for id in 0..60 {
            let text = r.doc(id, arrays);
            c.insert(d(&text));
        }
        for _ in 0..400 {
            let text = r.query(2);
            let collation = match pool.iter().any(|(_, o)| o.contains("collation")) {
                true => collations[r.below(3)].clone(),
                false => None,
            };
            let env = ParseEnv::new().collated(collation.clone());
            let f = Filter::parse(d(&text).as_doc(), &env).unwrap();
            let sort_text = r.pick(&[
                "",
                r#"{"a":1}"#,
                r#"{"a":-1,"d":-1}"#,
                r#"{"d":1}"#,
                r#"{"_id":-1}"#,
                r#"{"d":1,"_id":1}"#,
                r#"{"a.c":1}"#,
            ]);
            let sort = (!sort_text.is_empty()).then(|| {
                SortPattern::parse(d(sort_text).as_doc())
                    .unwrap()
                    .collated(collation.as_ref())
            });
            let projection_text = r.pick(&[
                "",
                r#"{"a":1,"_id":0}"#,
                r#"{"d":1,"e":1,"_id":0}"#,
                r#"{"a.b":1,"_id":0}"#,
            ]);
            let projection = (!projection_text.is_empty()).then(|| {
                Projection::parse(d(projection_text).as_doc(), Some(&f), &Default::default())
                    .unwrap()
            });
            let limit = (r.below(2) == 0).then_some(5);
            let p = c.plan(&f, sort.as_ref(), projection.as_ref(), limit);
            let context = || {
                format!(
                    "seed {seed} round {round}: {text} {collation:?} sort {sort_text} projection {projection_text}\nindexes {:?}\nplan {p:?}",
                    c.infos
                        .iter()
                        .map(|i| (&i.name, i.multikey))
                        .collect::<Vec<_>>()
                )
            };
            let got = c.run(&p.access, &p.residual, p.covered);
            let mut keys: Vec<&Vec<u8>> = got.iter().map(|g| &g.0).collect();
            let mut want: Vec<&Vec<u8>> = c
                .records
                .iter()
                .filter(|(_, d)| f.matches(d.as_doc()).unwrap())
                .map(|(k, _)| k)
                .collect();
            // Sort keys of parallel arrays are errors: not asked here.
            if let (Some(s), None) = (&sort, &p.sort) {
                let mut last = Vec::new();
                for (k, _) in &got {
                    let mut key = Vec::new();
                    if s.sort_key(c.records[k].as_doc(), &mut key).is_ok() {
                        assert!(last <= key, "out of order: {}", context());
                        last = key;
                    }
                }
            }
            keys.sort();
            want.sort();
            assert_eq!(keys, want, "{}", context());
            if p.covered {
                let projection = projection.as_ref().unwrap();
                for (k, built) in &got {
                    let project = |doc: Doc<'_>| {
                        let mut out = Vec::new();
                        projection
                            .apply(doc, None, &Vars::default(), &mut out)
                            .unwrap();
                        DocBuf::from_vec(out).unwrap().to_string_sorted()
                    };
                    assert_eq!(
                        project(built.as_doc()),
                        project(c.records[k].as_doc()),
                        "{}",
                        context()
                    );
                }
            }
            indexed += usize::from(!p.access.is_scan());
            let explained = winning_plan(&Explain {
                plan: &p,
                filter: &f,
                projection: projection.as_ref(),
                indexes: &c.infos,
                clustered: false,
                skip: 0,
                limit: 0,
                count: false,
                plain: true,
            });
            assert!(explained.get("stage").is_some());
        }
    }
    indexed
}

trait Sorted {
    fn to_string_sorted(&self) -> Vec<String>;
}

impl Sorted for DocBuf {
    /// Fields in any order: an index gives them in its own.
    fn to_string_sorted(&self) -> Vec<String> {
        let mut v: Vec<String> = self
            .as_doc()
            .iter()
            .map(|e| format!("{}:{}", e.name, e.val))
            .collect();
        v.sort();
        v
    }
}

#[test]
fn plans_answer_as_brute_force_does() {
    let mut indexed = 0;
    for seed in 1..=12 {
        indexed += compare_with_brute_force(seed, seed % 3 != 0);
    }
    assert!(indexed > 5_000, "only {indexed} queries used an index");
}

fn explain(indexes: &[(&str, &str)], f: &str, sort: &str, projection: &str) -> String {
    let infos: Vec<IndexInfo> = indexes
        .iter()
        .enumerate()
        .map(|(i, (k, o))| index(i as u32 + 1, k, o))
        .collect();
    let f = filter(f);
    let sort = (!sort.is_empty()).then(|| SortPattern::parse(d(sort).as_doc()).unwrap());
    let projection = (!projection.is_empty())
        .then(|| Projection::parse(d(projection).as_doc(), None, &Default::default()).unwrap());
    let p = plan(&PlanRequest {
        vars: None,
        filter: &f,
        sort: sort.as_ref(),
        projection: projection.as_ref(),
        limit: None,
        hint: None,
        min: None,
        max: None,
        indexes: &infos,
        count: false,
        distinct: None,
        clustered: true,
        ns: "t.c",
        fewest: None,
        estimate: None,
    })
    .unwrap();
    let s = crate::explain::stages(&Explain {
        plan: &p,
        filter: &f,
        projection: projection.as_ref(),
        indexes: &infos,
        clustered: false,
        skip: 0,
        limit: 0,
        count: false,
        plain: true,
    });
    let mut out = Vec::new();
    s.walk(&mut |s| {
        let mut t = s.name.to_string();
        if let Some(f) = s.fields.get("filter") {
            t.push_str(&format!(" {f}"));
        }
        if let Some(b) = s.fields.get("indexBounds").and_then(|b| b.as_doc()) {
            for e in b {
                let all: Vec<String> = e
                    .val
                    .as_array()
                    .into_iter()
                    .flat_map(|a| a.values())
                    .map(|v| v.as_str().unwrap().to_string())
                    .collect();
                t.push_str(&format!(" {}: {}", e.name, all.join(" ")));
            }
        }
        out.push(t);
    });
    out.join(" < ")
}

#[test]
fn explained_plans() {
    let a: &[(&str, &str)] = &[(r#"{"a":1}"#, "")];
    let ab: &[(&str, &str)] = &[(r#"{"a":1,"b":-1}"#, "")];
    for (indexes, f, sort, projection, want) in [
        (a, r#"{"_id":5}"#, "", "", "EXPRESS_IXSCAN"),
        (
            a,
            r#"{"_id":{"$in":[5,6]}}"#,
            "",
            "",
            "FETCH < IXSCAN _id: [5, 5] [6, 6]",
        ),
        (
            a,
            r#"{"_id":{"$gt":5}}"#,
            "",
            "",
            "FETCH < IXSCAN _id: (5, inf.0]",
        ),
        (
            a,
            r#"{"$expr":{"$eq":["$a",5]}}"#,
            "",
            "",
            r#"FETCH {"$expr": {"$eq": ["$a", {"$const": 5}]}} < IXSCAN a: [5, 5]"#,
        ),
        (
            ab,
            r#"{"$expr":{"$and":[{"$lt":["$a",5]},{"$gte":[7,"$b"]}]}}"#,
            "",
            r#"{"a":1,"b":1,"_id":0}"#,
            "PROJECTION_COVERED < IXSCAN a: [MinKey, 5) b: [7, MinKey]",
        ),
        (
            a,
            r#"{"a":{"$gt":2},"$expr":{"$lte":["$a",5]}}"#,
            "",
            "",
            r#"FETCH {"$expr": {"$lte": ["$a", {"$const": 5}]}} < IXSCAN a: (2, 5]"#,
        ),
        (a, r#"{"b":5}"#, "", "", r#"COLLSCAN {"b": {"$eq": 5}}"#),
        (a, r#"{"a":5}"#, "", "", "FETCH < IXSCAN a: [5, 5]"),
        (
            a,
            r#"{"a":5,"b":1}"#,
            "",
            "",
            r#"FETCH {"b": {"$eq": 1}} < IXSCAN a: [5, 5]"#,
        ),
        (
            a,
            r#"{"a":{"$gt":"x"}}"#,
            "",
            "",
            r#"FETCH < IXSCAN a: ("x", {})"#,
        ),
        (
            a,
            r#"{"a":{"$ne":5}}"#,
            "",
            "",
            "FETCH < IXSCAN a: [MinKey, 5) (5, MaxKey]",
        ),
        (
            a,
            r#"{"a":{"$regex":"^x"}}"#,
            "",
            "",
            r#"FETCH < IXSCAN a: ["x", "y") [/^x/, /^x/]"#,
        ),
        (
            a,
            r#"{"a":{"$regex":"x"}}"#,
            "",
            "",
            r#"FETCH < IXSCAN {"a": {"$regex": "x"}} a: ["", {}) [/x/, /x/]"#,
        ),
        (
            a,
            "{}",
            r#"{"a":-1}"#,
            "",
            "FETCH < IXSCAN a: [MaxKey, MinKey]",
        ),
        (a, "{}", r#"{"b":1}"#, "", "SORT < COLLSCAN"),
        (
            a,
            r#"{"a":5}"#,
            "",
            r#"{"a":1,"_id":0}"#,
            "PROJECTION_COVERED < IXSCAN a: [5, 5]",
        ),
        (
            a,
            r#"{"a":5}"#,
            "",
            r#"{"a":1}"#,
            "PROJECTION_SIMPLE < FETCH < IXSCAN a: [5, 5]",
        ),
        (a, r#"{"a":{"$in":[]}}"#, "", "", "EOF"),
        (a, r#"{"a":{"$gt":5,"$lt":3}}"#, "", "", "EOF"),
        (
            ab,
            r#"{"a":5}"#,
            r#"{"b":1}"#,
            "",
            "FETCH < IXSCAN a: [5, 5] b: [MinKey, MaxKey]",
        ),
        (
            ab,
            r#"{"a":5,"b":{"$lt":3}}"#,
            "",
            "",
            "FETCH < IXSCAN a: [5, 5] b: (3, -inf.0]",
        ),
        (
            ab,
            r#"{"a":{"$gt":5},"b":3}"#,
            "",
            "",
            "FETCH < IXSCAN a: (5, inf.0] b: [3, 3]",
        ),
        (
            ab,
            r#"{"a":{"$in":[1,2]}}"#,
            r#"{"b":-1}"#,
            "",
            "FETCH < SORT_MERGE < IXSCAN a: [1, 1] b: [MaxKey, MinKey] < IXSCAN a: [2, 2] b: [MaxKey, MinKey]",
        ),
        (
            &[(r#"{"a":1}"#, ""), (r#"{"b":1}"#, "")],
            r#"{"$or":[{"a":1},{"b":2}]}"#,
            "",
            "",
            "SUBPLAN < FETCH < OR < IXSCAN a: [1, 1] < IXSCAN b: [2, 2]",
        ),
        (
            &[(r#"{"a":1}"#, "sparse")],
            r#"{"a":null}"#,
            "",
            "",
            r#"COLLSCAN {"a": {"$eq": null}}"#,
        ),
        (
            &[(r#"{"a":1}"#, "sparse")],
            r#"{"a":{"$exists":true}}"#,
            "",
            "",
            "FETCH < IXSCAN a: [MinKey, MaxKey]",
        ),
        (
            &[(r#"{"a":1}"#, r#"partial {"b":{"$gt":3}}"#)],
            r#"{"a":1,"b":5}"#,
            "",
            "",
            r#"FETCH {"b": {"$eq": 5}} < IXSCAN a: [1, 1]"#,
        ),
        (
            &[(r#"{"a":1}"#, r#"partial {"b":5}"#)],
            r#"{"a":1,"b":5}"#,
            "",
            "",
            "FETCH < IXSCAN a: [1, 1]",
        ),
        (
            &[(r#"{"a":1}"#, r#"partial {"b":{"$gt":3}}"#)],
            r#"{"a":1,"b":2}"#,
            "",
            "",
            r#"COLLSCAN {"$and": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}"#,
        ),
    ] {
        assert_eq!(
            explain(indexes, f, sort, projection),
            want,
            "{f} {sort} {projection}"
        );
    }
}

/// Bounds of later fields against a look at every entry: they decide without a test, and nothing
/// inside is passed over.
#[test]
fn later_fields_are_skipped_by_their_bounds() {
    let mut r = Random(7);
    let mut skipping = 0;
    for key in [
        r#"{"x":1,"y":1}"#,
        r#"{"x":1,"y":-1,"z":1}"#,
        r#"{"x":-1,"y":1,"z":-1}"#,
    ] {
        let mut c = Collection::new(vec![index(1, key, "")]);
        for id in 0..200 {
            let mut v = |n: usize| match r.below(9) {
                0 => "null".to_string(),
                1 => format!("\"s{}\"", r.below(3)),
                2 => format!("{}.5", r.below(n)),
                _ => r.below(n).to_string(),
            };
            let (x, y, z) = (v(6), v(8), v(4));
            c.insert(d(&format!(r#"{{"_id":{id},"x":{x},"y":{y},"z":{z}}}"#)));
        }
        for _ in 0..400 {
            let mut clause = |name: &str, n: usize| {
                let (a, b) = (r.below(n), r.below(n));
                match r.below(7) {
                    0 => format!(r#""{name}":{a}"#),
                    1 => format!(r#""{name}":{{"$in":[{a},{b},"s1"]}}"#),
                    2 => format!(r#""{name}":{{"$gt":{a},"$lte":{}}}"#, a + 3),
                    3 => format!(r#""{name}":{{"$gte":{a},"$lt":{}}}"#, a + 2),
                    4 => format!(r#""{name}":{{"$ne":{a}}}"#),
                    5 => format!(r#""{name}":null"#),
                    _ => format!(r#""{name}":{{"$gte":{a}}}"#),
                }
            };
            let text = format!(
                "{{{},{},{}}}",
                clause("x", 6),
                clause("y", 8),
                clause("z", 4)
            );
            let f = filter(&text);
            let p = c.plan(&f, None, None, None);
            let Access::Index(a) = &p.access else {
                assert!(matches!(p.access, Access::Eof), "{text}: {p:?}");
                continue;
            };
            skipping += usize::from(!a.skip.is_empty());
            let mut got: Vec<_> = c.run(&p.access, &p.residual, false);
            got.sort_by(|a, b| a.0.cmp(&b.0));
            let want = c
                .records
                .iter()
                .filter(|(_, d)| f.matches(d.as_doc()).unwrap());
            let want: Vec<_> = want.map(|(k, d)| (k.clone(), d.clone())).collect();
            assert_eq!(got, want, "{text}: {p:?}");
        }
    }
    assert!(
        skipping > 500,
        "only {skipping} plans had bounds of later fields"
    );
}

#[test]
fn hashed_and_wildcard_plans() {
    for (key, options, f, sort, projection, want) in [
        (
            r#"{"a":"hashed"}"#,
            "",
            r#"{"a":{"$in":[1,1.5]}}"#,
            "",
            "",
            r#"FETCH {"a": {"$in": [1, 1.5]}} < IXSCAN a: [5902408780260971510, 5902408780260971510]"#,
        ),
        (
            r#"{"a":"hashed"}"#,
            "",
            r#"{"a":{"$gt":1}}"#,
            "",
            "",
            r#"COLLSCAN {"a": {"$gt": 1}}"#,
        ),
        (
            r#"{"$**":1}"#,
            "",
            r#"{"a.b":{"$gte":3}}"#,
            r#"{"a.b":-1}"#,
            r#"{"a.b":1,"_id":0}"#,
            r#"PROJECTION_COVERED < IXSCAN $_path: ["a.b", "a.b"] a.b: [inf.0, 3]"#,
        ),
        (
            r#"{"$**":1}"#,
            "",
            r#"{"a":{"$exists":true}}"#,
            "",
            "",
            r#"FETCH < IXSCAN $_path: ["a", "a"] ["a.", "a/") a: [MinKey, MaxKey]"#,
        ),
        (
            r#"{"$**":1}"#,
            "",
            r#"{"a":null}"#,
            "",
            "",
            r#"COLLSCAN {"a": {"$eq": null}}"#,
        ),
        (
            r#"{"$**":1}"#,
            "",
            r#"{"a":{"b":1}}"#,
            "",
            "",
            r#"COLLSCAN {"a": {"$eq": {"b": 1}}}"#,
        ),
        (
            r#"{"b.$**":1}"#,
            "",
            r#"{"a":1}"#,
            "",
            "",
            r#"COLLSCAN {"a": {"$eq": 1}}"#,
        ),
        (
            r#"{"b":1,"$**":1}"#,
            r#"spec {"wildcardProjection":{"b":0}}"#,
            r#"{"b":1}"#,
            "",
            "",
            r#"FETCH < IXSCAN b: [1, 1] $_path: [MinKey, MinKey] ["", {}) $**: [MinKey, MaxKey]"#,
        ),
        (
            r#"{"b":1,"$**":1}"#,
            r#"spec {"wildcardProjection":{"b":0}}"#,
            r#"{"b":1,"c":2}"#,
            "",
            "",
            r#"FETCH < IXSCAN b: [1, 1] $_path: ["c", "c"] c: [2, 2]"#,
        ),
    ] {
        let got = explain(&[(key, options)], f, sort, projection);
        assert_eq!(got, want, "{key} {f} {sort} {projection}");
    }
}

#[test]
fn hints() {
    let infos = [index(1, r#"{"a":1}"#, "")];
    let f = filter("{}");
    let ask = |hint: Hint, min: Option<DocBuf>| {
        plan(&PlanRequest {
            vars: None,
            filter: &f,
            sort: None,
            projection: None,
            limit: None,
            hint: Some(&hint),
            min: min.as_ref().map(|m| m.as_doc()),
            max: None,
            indexes: &infos,
            count: false,
            distinct: None,
            clustered: true,
            ns: "t.c",
            fewest: None,
            estimate: None,
        })
    };
    assert!(matches!(
        ask(Hint::Name("a_1".into()), None).unwrap().access,
        Access::Index(_)
    ));
    assert!(matches!(
        ask(Hint::Key(d(r#"{"a":1}"#)), None).unwrap().access,
        Access::Index(_)
    ));
    assert!(
        ask(Hint::Key(d(r#"{"$natural":-1}"#)), None)
            .unwrap()
            .access
            .is_scan()
    );
    assert!(ask(Hint::Name("_id_".into()), None).is_ok());
    assert_eq!(
        ask(Hint::Name("b_1".into()), None)
            .unwrap_err()
            .failure()
            .unwrap()
            .code
            .0,
        2
    );
    assert_eq!(
        ask(Hint::Key(d(r#"{"a":-1}"#)), None)
            .unwrap_err()
            .failure()
            .unwrap()
            .code
            .0,
        2
    );
    let Access::Index(a) = ask(Hint::Name("a_1".into()), Some(d(r#"{"a":3}"#)))
        .unwrap()
        .access
    else {
        panic!("no index access")
    };
    let Bounds::Ranges(r) = &a.bounds;
    assert_eq!(*r, [(key::of(Value::from(3).as_val()), vec![])]);
    assert_eq!(
        ask(Hint::Name("a_1".into()), Some(d(r#"{"b":3}"#)))
            .unwrap_err()
            .failure()
            .unwrap()
            .code
            .0,
        51174
    );
}

#[test]
fn records_in_the_order_of_insertion() {
    let mut infos = [
        index(0, r#"{"_id":1}"#, "unique"),
        index(1, r#"{"a":1}"#, ""),
    ];
    infos[0].name = "_id_".into();
    let ask = |f: &str, sort: &str, hint: Option<Hint>| {
        let f = filter(f);
        let sort = (!sort.is_empty()).then(|| SortPattern::parse(d(sort).as_doc()).unwrap());
        plan(&PlanRequest {
            vars: None,
            filter: &f,
            sort: sort.as_ref(),
            projection: None,
            limit: None,
            hint: hint.as_ref(),
            min: None,
            max: None,
            indexes: &infos,
            count: false,
            distinct: None,
            clustered: false,
            ns: "t.c",
            fewest: None,
            estimate: None,
        })
        .unwrap()
    };
    let by_id = |p: &Plan| matches!(&p.access, Access::Index(a) if a.index == 0);
    assert!(matches!(
        ask(r#"{"_id":1}"#, "", None).access,
        Access::Ids(_)
    ));
    assert!(by_id(&ask(r#"{"_id":{"$gt":1}}"#, "", None)));
    assert!(by_id(&ask(r#"{"_id":{"$in":[1,2]}}"#, "", None)));
    assert!(by_id(&ask("{}", "", Some(Hint::Name("_id_".into())))));
    assert!(by_id(&ask("{}", "", Some(Hint::Key(d(r#"{"_id":1}"#))))));
    // Only the index gives the order of _id; a scan does not.
    let sorted = ask("{}", r#"{"_id":-1}"#, None);
    assert!(by_id(&sorted) && sorted.sort.is_none());
    let hinted = ask("{}", r#"{"_id":1}"#, Some(Hint::Natural { reverse: false }));
    assert!(hinted.access.is_scan() && hinted.sort.is_some());
}

#[test]
fn chance_is_asked_once() {
    let infos = [index(1, r#"{"a":1}"#, ""), index(2, r#"{"b":1}"#, "")];
    let ask = |f: &str| {
        let f = filter(f);
        plan(&PlanRequest {
            vars: None,
            filter: &f,
            sort: None,
            projection: None,
            limit: None,
            hint: None,
            min: None,
            max: None,
            indexes: &infos,
            count: false,
            distinct: None,
            clustered: true,
            ns: "t.c",
            fewest: None,
            estimate: None,
        })
        .unwrap()
    };
    let rand = r#""$expr":{"$lt":[{"$add":[{"$rand":{}},0]},0.5]}"#;
    for chance in [r#""$sampleRate":0.5"#, rand] {
        let beside = ask(&format!(r#"{{"$or":[{{"a":1}},{{"b":1}}],{chance}}}"#));
        let Access::Or(branches) = &beside.access else {
            panic!("no union: {beside:?}")
        };
        assert!(beside.residual.root().varies());
        let tested = |b: &Branch<Access>| [Some(b.residual.clone()), b.whole.clone()];
        let mut tested = branches.iter().flat_map(tested).flatten();
        assert!(tested.all(|f| !f.root().varies()));
        // Another branch cannot know what chance said.
        let inside = ask(&format!(r#"{{"$or":[{{"a":1,{chance}}},{{"b":1}}]}}"#));
        assert!(inside.access.is_scan(), "{inside:?}");
    }
}

/// Which index of shapes answers what, and by what stage; none is an error for `$near`.
#[test]
fn indexes_of_shapes() {
    let infos = [
        index(1, r#"{"at": "2dsphere", "n": 1}"#, ""),
        index(2, r#"{"k": 1, "at": "2dsphere"}"#, ""),
        index(3, r#"{"flat": "2d"}"#, ""),
        index(4, r#"{"part": "2dsphere"}"#, r#"partial {"open": true}"#),
    ];
    let stage = |text: &str| {
        let env = query::expr::ParseEnv::new().allow_where(true);
        let f = Filter::parse(d(text).as_doc(), &env).unwrap();
        let plan = plan(&PlanRequest {
            vars: None,
            filter: &f,
            sort: None,
            projection: None,
            limit: None,
            hint: None,
            min: None,
            max: None,
            indexes: &infos,
            count: false,
            distinct: None,
            clustered: true,
            ns: "t.c",
            fewest: None,
            estimate: None,
        });
        match plan.map(|p| p.access) {
            Ok(Access::Near(a)) => format!("near {}", a.index),
            Ok(Access::Index(a)) => format!("scan {}", a.index),
            Ok(other) if other.is_scan() => "all".to_string(),
            Ok(other) => format!("{other:?}"),
            Err(e) => format!("{}", e.into_error().code.0),
        }
    };
    let near = r#"{"$near": {"$geometry": {"type": "Point", "coordinates": [0, 0]}}}"#;
    let within = r#"{"$geoWithin": {"$centerSphere": [[0, 0], 0.1]}}"#;
    let flat = r#"{"$geoWithin": {"$box": [[0, 0], [1, 1]]}}"#;
    for (query, want) in [
        (format!(r#"{{"at": {near}}}"#), "near 1"),
        (format!(r#"{{"at": {near}, "n": 5}}"#), "near 1"),
        (r#"{"at": {"$nearSphere": [0, 0]}}"#.into(), "near 1"),
        (r#"{"at": {"$near": [0, 0]}}"#.into(), "291"),
        (r#"{"flat": {"$near": [0, 0]}}"#.into(), "near 3"),
        (r#"{"flat": {"$near": [200, 0]}}"#.into(), "16433"),
        (format!(r#"{{"flat": {near}}}"#), "291"),
        (format!(r#"{{"part": {near}}}"#), "291"),
        (format!(r#"{{"part": {near}, "open": true}}"#), "near 4"),
        (format!(r#"{{"at": {within}}}"#), "scan 1"),
        (format!(r#"{{"flat": {within}}}"#), "scan 3"),
        (format!(r#"{{"flat": {flat}}}"#), "scan 3"),
        (format!(r#"{{"at": {flat}}}"#), "all"),
        (format!(r#"{{"at": {{"$not": {within}}}}}"#), "all"),
        // A document without a shape is in none of them.
        (r#"{"k": 1}"#.into(), "all"),
        (r#"{"at": null}"#.into(), "all"),
    ] {
        assert_eq!(stage(&query), want, "{query}");
    }
}
