//! Plans against the best that there are: random collections, indexes and queries, each run as it is
//! planned, and by every index that bears on it.
//!
//! A collection scan is not among them where an index serves the query, as in MongoDB. The cost of a
//! run is the entries it examined and four times the documents. The quotient is that of
//! the chosen plan by the least, with a document added to both. More of all: `CHOICE_SCHEMAS`,
//! `CHOICE_QUERIES`, `CHOICE_DOCS`, `CHOICE_SEED`; `CHOICE_SHOW` prints the worst.

use bson::{Doc, DocBuf, Writer, json, shell};
use catalog::NewIndex;
use executor::{Engine, FindCursor, FindRequest, OpCtx, build};
use planner::Hint;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::path::FieldPath;
use query::sort::SortPattern;
use query::update::Update;
use std::sync::Arc;
use storage::{Store, StoreOptions};

const NS: &str = "t.c";
const FIELDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// A document in entries.
const FETCH: u64 = 4;

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn unit(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 20) as f64
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// How the values of a field are spread.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Constant,
    Few,
    Skewed,
    Uniform,
    Unique,
    /// With the field before it.
    Correlated,
    Array,
    /// Often null or missing.
    Holes,
    Text,
}

const KINDS: [Kind; 9] = [
    Kind::Constant,
    Kind::Few,
    Kind::Skewed,
    Kind::Uniform,
    Kind::Unique,
    Kind::Correlated,
    Kind::Array,
    Kind::Holes,
    Kind::Text,
];

/// A value of the kind, as JSON; `before` is the number that the field before it came from.
fn value(r: &mut Random, kind: Kind, i: usize, n: usize, before: usize) -> (usize, String) {
    let number = match kind {
        Kind::Constant => 7,
        Kind::Few | Kind::Holes => r.below(5),
        Kind::Skewed => (r.unit().powi(6) * 100.0) as usize,
        Kind::Uniform | Kind::Text => r.below((n / 8).max(2)),
        Kind::Unique => i,
        Kind::Correlated => before / 3 + r.below(2),
        Kind::Array => r.below(60),
    };
    let text = match kind {
        Kind::Array => {
            let more: Vec<String> = (0..r.below(4)).map(|_| r.below(60).to_string()).collect();
            format!("[{}]", more.join(","))
        }
        Kind::Holes if r.one_in(3) => "null".into(),
        Kind::Text => format!(r#""{:04x}""#, number.wrapping_mul(40503) & 0xffff),
        _ => number.to_string(),
    };
    (number, text)
}

struct Db {
    engine: Arc<Engine>,
    kinds: Vec<Kind>,
    indexes: Vec<String>,
    docs: Vec<DocBuf>,
    _dir: tempfile::TempDir,
}

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn create_index(engine: &Arc<Engine>, key: &str) {
    let mut w = Writer::new();
    w.i32("v", 2).doc("key", d(key).as_doc()).str("name", key);
    let spec = NewIndex { spec: w.finish() };
    build::create_indexes(&mut OpCtx::worker(engine), NS, &[spec]).unwrap();
}

fn insert(engine: &Arc<Engine>, docs: &[DocBuf]) {
    for some in docs.chunks(1000) {
        let refs: Vec<Doc> = some.iter().map(|d| d.as_doc()).collect();
        executor::insert(&mut OpCtx::worker(engine), NS, &refs, true, None).unwrap();
    }
}

fn open(dir: &tempfile::TempDir) -> Arc<Engine> {
    Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap()
}

impl Db {
    fn random(r: &mut Random, most: usize) -> Db {
        let n = (100.0 * (most as f64 / 100.0).powf(r.unit())) as usize;
        let kinds: Vec<Kind> = FIELDS.iter().map(|_| r.pick(&KINDS)).collect();
        let mut docs = Vec::new();
        for i in 0..n {
            let mut parts = vec![format!(r#""_id":{i}"#)];
            let mut before = i;
            for (name, kind) in FIELDS.iter().zip(&kinds) {
                let (number, text) = value(r, *kind, i, n, before);
                before = number;
                if !(matches!(kind, Kind::Holes) && r.one_in(4)) {
                    parts.push(format!(r#""{name}":{text}"#));
                }
            }
            docs.push(d(&format!("{{{}}}", parts.join(","))));
        }
        let mut indexes: Vec<String> = Vec::new();
        for _ in 0..2 + r.below(6) {
            let key = random_key(r, &kinds);
            if !indexes.contains(&key) {
                indexes.push(key);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let engine = open(&dir);
        // The statistics of an index may be from a time when it was small.
        let first = r.pick(&[0, n / 10, n]);
        let (early, late) = docs.split_at(first.max(1));
        insert(&engine, early);
        indexes.iter().for_each(|key| create_index(&engine, key));
        insert(&engine, late);
        if r.one_in(2) {
            engine.store.flush().unwrap();
        }
        Db {
            engine,
            kinds,
            indexes,
            docs,
            _dir: dir,
        }
    }

    fn run(&self, q: &Query, hint: Option<Hint>) -> Run {
        let mut ctx = OpCtx::worker(&self.engine);
        let request = FindRequest {
            sort: q.sort.clone(),
            limit: q.limit,
            skip: q.skip,
            hint,
            ..FindRequest::new(q.filter.clone())
        };
        let mut cursor = FindCursor::open(&mut ctx, NS, request).unwrap().unwrap();
        let mut ids = Vec::new();
        let mut keys = Vec::new();
        while cursor.next(&mut ctx).unwrap() {
            let doc = cursor.doc().unwrap();
            ids.push(doc.get("_id").unwrap().to_string());
            if let Some(s) = &q.sort {
                let mut key = Vec::new();
                s.sort_key(doc, &mut key).unwrap();
                keys.push(key);
            }
        }
        let x = cursor.examined();
        Run {
            cost: x.keys + FETCH * x.docs,
            planning: x.planning,
            ids,
            keys,
            how: planner_says(&cursor),
        }
    }
}

fn planner_says(cursor: &FindCursor) -> String {
    let plan = cursor.plan();
    let names = &cursor.collection().usable;
    let name = |id: u32| names.iter().find(|i| i.id == id).map_or("?", |i| &i.name);
    let access = match &plan.access {
        planner::Access::Index(a) => name(a.index).to_string(),
        planner::Access::Or(b) => format!("or of {}", b.len()),
        planner::Access::Merge(b, _) => format!("merge of {}", b.len()),
        planner::Access::Ids(_) => "ids".to_string(),
        _ => "scan".to_string(),
    };
    let sorts = if plan.sort.is_some() { ", sorted" } else { "" };
    format!("{access}{sorts}")
}

fn random_key(r: &mut Random, kinds: &[Kind]) -> String {
    let mut fields: Vec<usize> = Vec::new();
    for _ in 0..1 + r.below(3) {
        let f = r.below(FIELDS.len());
        let array = |f: usize| matches!(kinds[f], Kind::Array);
        // An index has at most one array.
        let second = array(f) && fields.iter().any(|g| array(*g));
        if !second && !fields.contains(&f) {
            fields.push(f);
        }
    }
    let each = fields
        .iter()
        .map(|f| format!(r#""{}":{}"#, FIELDS[*f], r.pick(&["1", "-1"])));
    let each: Vec<String> = each.collect();
    format!("{{{}}}", each.join(","))
}

struct Run {
    cost: u64,
    /// What choosing read, as if it were entries.
    planning: u64,
    ids: Vec<String>,
    keys: Vec<Vec<u8>>,
    how: String,
}

struct Query {
    text: String,
    filter: Filter,
    /// Fields of the filter that an index can narrow by, and the first of the order.
    filtered: Vec<&'static str>,
    ordered: Option<&'static str>,
    sort: Option<SortPattern>,
    limit: Option<u64>,
    skip: u64,
}

impl Db {
    /// A value that some document has.
    fn value(&self, r: &mut Random, field: &str) -> String {
        let doc = &self.docs[r.below(self.docs.len())];
        match doc.get(field) {
            Some(v) if v.as_array().is_some() => r.below(60).to_string(),
            Some(v) => v.to_string(),
            None => "null".into(),
        }
    }

    fn predicate(&self, r: &mut Random, fields: &mut Vec<&'static str>) -> String {
        let at = r.below(FIELDS.len());
        let (field, kind) = (FIELDS[at], self.kinds[at]);
        fields.push(field);
        let v = self.value(r, field);
        let test = match r.below(10) {
            0 => format!(r#"{{"$gte":{v}}}"#),
            1 => format!(r#"{{"$lt":{v}}}"#),
            2 => format!(r#"{{"$gt":{v},"$lte":{}}}"#, self.value(r, field)),
            3 => {
                let many = r.pick(&[2, 5, 100]);
                let all: Vec<String> = (0..many).map(|_| self.value(r, field)).collect();
                format!(r#"{{"$in":[{}]}}"#, all.join(","))
            }
            4 if matches!(kind, Kind::Array) => {
                format!(r#"{{"$elemMatch":{{"$gte":{v},"$lt":{}}}}}"#, r.below(60))
            }
            4 if matches!(kind, Kind::Text) => {
                format!(r#"{{"$regex":"^{}"}}"#, v.get(1..3).unwrap_or("a"))
            }
            5 if r.one_in(3) => format!(r#"{{"$ne":{v}}}"#),
            _ => v,
        };
        format!(r#"{{"{field}":{test}}}"#)
    }

    fn conjunction(&self, r: &mut Random, fields: &mut Vec<&'static str>) -> String {
        let all: Vec<String> = (0..1 + r.below(3))
            .map(|_| self.predicate(r, fields))
            .collect();
        match &all[..] {
            [one] => one.clone(),
            all => format!(r#"{{"$and":[{}]}}"#, all.join(",")),
        }
    }

    fn query(&self, r: &mut Random) -> Query {
        let mut fields = Vec::new();
        let mut text = self.conjunction(r, &mut fields);
        if r.one_in(8) {
            // No single index narrows by fields of branches.
            let mut inner = Vec::new();
            let all: Vec<String> = (0..2 + r.below(2))
                .map(|_| self.conjunction(r, &mut inner))
                .collect();
            let or = format!(r#"{{"$or":[{}]}}"#, all.join(","));
            text = match r.below(2) {
                0 => {
                    fields.clear();
                    or
                }
                _ => format!(r#"{{"$and":[{text},{or}]}}"#),
            };
        }
        let mut ordered = None;
        let sort = (r.below(5) < 2).then(|| {
            let mut by: Vec<usize> = vec![r.below(FIELDS.len())];
            let second = r.below(FIELDS.len());
            // Nothing sorts by two arrays.
            let arrays = [by[0], second].map(|f| matches!(self.kinds[f], Kind::Array));
            if r.one_in(3) && second != by[0] && arrays != [true, true] {
                by.push(second);
            }
            ordered = Some(FIELDS[by[0]]);
            let each = by
                .iter()
                .map(|f| format!(r#""{}":{}"#, FIELDS[*f], r.pick(&["1", "-1"])));
            format!("{{{}}}", each.collect::<Vec<_>>().join(","))
        });
        let limit = r.one_in(2).then(|| r.pick(&[1, 1, 10, 50, 200]));
        // Some are past what a race keeps.
        let skip = if r.one_in(8) { r.below(50) as u64 } else { 0 };
        let skip = if skip % 2 == 0 { skip * 8 } else { skip };
        Query {
            filter: Filter::parse(d(&text).as_doc(), &ParseEnv::default()).unwrap(),
            sort: sort
                .as_ref()
                .map(|s| SortPattern::parse(d(s).as_doc()).unwrap()),
            text: format!("{text} sort {sort:?} limit {limit:?} skip {skip}"),
            filtered: fields,
            ordered,
            limit,
            skip,
        }
    }

    /// The indexes that begin with a field of the filter, and those that begin with that of the
    /// order.
    fn bearing(&self, q: &Query) -> Vec<(&String, bool)> {
        let first = |key: &String| d(key).as_doc().first().unwrap().name.to_string();
        let told = |key: &String| {
            let (first, ordered) = (first(key), q.ordered);
            let filtered = q.filtered.contains(&&*first);
            (filtered || ordered == Some(&*first)).then_some(filtered)
        };
        let all = self.indexes.iter();
        all.filter_map(|key| Some((key, told(key)?))).collect()
    }
}

/// The other operations that read by a filter: each finds what a find does, and reads no more than ten times
/// what the best plan does, and some hundred; how many read more.
fn others_alike(db: &Db, q: &Query, found: &Run, best: u64) -> usize {
    let engine = &db.engine;
    let request = executor::ReadRequest::new(&q.filter);
    let mut beyond = 0;
    let mut judge = |what: &str, ctx: &OpCtx| {
        let read = ctx.examined.keys + FETCH * ctx.examined.docs;
        if read > best * 10 + 200 {
            println!("{what} reads {read}, the best plan {best}: {}", q.text);
            beyond += 1;
        }
    };
    let mut ctx = OpCtx::worker(engine);
    let n = executor::count(&mut ctx, NS, &request, 0, 0).unwrap();
    assert_eq!(n, found.ids.len() as u64, "count of {}", q.text);
    judge("count", &ctx);
    let mut ctx = OpCtx::worker(engine);
    let path = FieldPath::new("a");
    let values = executor::distinct(&mut ctx, NS, &path, &request, None).unwrap();
    judge("distinct", &ctx);
    let by_scan = executor::ReadRequest {
        hint: Some(Hint::Natural { reverse: false }),
        ..request
    };
    let by_scan = executor::distinct(&mut OpCtx::worker(engine), NS, &path, &by_scan, None);
    assert_eq!(values, by_scan.unwrap(), "distinct of {}", q.text);
    let change = d(r#"{"$unset":{"none":1}}"#);
    let env = ParseEnv::default();
    let change = Update::parse(change.as_doc().as_val(), &[], &env).unwrap();
    let vars = Arc::new(query::expr::Vars::new(0));
    let request = executor::UpdateRequest {
        filter: &q.filter,
        update: &change,
        multi: true,
        upsert: false,
        sort: None,
        hint: None,
        vars: &vars,
        now_millis: 0,
        images: false,
    };
    let mut ctx = OpCtx::worker(engine);
    let done = executor::update(&mut ctx, NS, &request, 0, None).unwrap();
    assert_eq!(done.matched, found.ids.len() as u64, "update of {}", q.text);
    judge("update", &ctx);
    beyond
}

fn same(q: &Query, a: &Run, b: &Run) {
    let told = || format!("{}: {} and {}", q.text, a.how, b.how);
    assert_eq!(a.ids.len(), b.ids.len(), "{}", told());
    assert_eq!(a.keys, b.keys, "{}", told());
    if q.limit.is_none() && q.skip == 0 {
        let sorted = |r: &Run| {
            let mut ids = r.ids.clone();
            ids.sort();
            ids
        };
        assert_eq!(sorted(a), sorted(b), "{}", told());
    }
}

fn number(name: &str, default: usize) -> usize {
    let given = std::env::var(name).ok();
    given.and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The quotient, and its details.
struct Outcome {
    quotient: f64,
    beyond: bool,
    /// How many of count, distinct and update read too much.
    others: usize,
    /// As if what choosing read were the plan's.
    with_planning: f64,
    beyond_planned: bool,
    told: String,
}

fn outcome(db: &Db, q: &Query) -> Option<Outcome> {
    let bearing = db.bearing(q);
    let chosen = db.run(q, None);
    let mut best = (chosen.cost, chosen.how.clone());
    if bearing.is_empty() && chosen.how.starts_with("scan") {
        return None;
    }
    let scan = db.run(q, Some(Hint::Natural { reverse: false }));
    same(q, &chosen, &scan);
    for (name, filtered) in &bearing {
        let run = db.run(q, Some(Hint::Name(name.to_string())));
        same(q, &chosen, &run);
        // What neither narrows nor gives the order is no plan.
        if run.cost < best.0 && (*filtered || !run.how.ends_with("sorted")) {
            best = (run.cost, run.how);
        }
    }
    let others = match q.limit.is_none() && q.skip == 0 && q.sort.is_none() {
        true => others_alike(db, q, &chosen, best.0),
        false => 0,
    };
    let quotient = (chosen.cost + FETCH + 1) as f64 / (best.0 + FETCH + 1) as f64;
    let told = format!(
        "{quotient:9.2}  {} of {} by {}, {} by {}; {} documents, indexes {:?}, {:?}",
        shell::doc(q.filter.to_doc().as_doc()),
        q.text,
        chosen.how,
        best.0,
        best.1,
        db.docs.len(),
        db.indexes,
        db.kinds
    );
    Some(Outcome {
        quotient,
        with_planning: (chosen.cost + chosen.planning + FETCH + 1) as f64
            / (best.0 + FETCH + 1) as f64,
        beyond: chosen.cost > best.0 * 10 + 200,
        others,
        beyond_planned: chosen.cost + chosen.planning > best.0 * 10 + 200,
        told: told.replacen(" of ", &format!(" {} of ", chosen.cost), 1),
    })
}

#[test]
fn chosen_plans_read_little_more_than_the_best() {
    let mut r = Random((number("CHOICE_SEED", 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (schemas, queries) = (number("CHOICE_SCHEMAS", 24), number("CHOICE_QUERIES", 50));
    let most = number("CHOICE_DOCS", 3000);
    let mut all = Vec::new();
    for _ in 0..schemas {
        let db = Db::random(&mut r, most);
        for _ in 0..queries {
            let q = db.query(&mut r);
            all.extend(outcome(&db, &q));
        }
    }
    all.sort_by(|a, b| a.quotient.total_cmp(&b.quotient));
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].quotient;
    let above = |n: f64| all.iter().filter(|o| o.quotient > n).count();
    let beyond = all.iter().filter(|o| o.beyond).count();
    println!(
        "{} queries; chosen by best: 50% {:.2}, 90% {:.2}, 95% {:.2}, 99% {:.2}, 99.5% {:.2}, all {:.2}; above 1.2: {}, 2: {}, 10: {}, 10 and 200: {beyond}",
        all.len(),
        at(0.5),
        at(0.9),
        at(0.95),
        at(0.99),
        at(0.995),
        at(1.0),
        above(1.2),
        above(2.0),
        above(10.0),
    );
    let mut planned: Vec<f64> = all.iter().map(|o| o.with_planning).collect();
    planned.sort_by(f64::total_cmp);
    let of_planned = |share: f64| planned[((planned.len() - 1) as f64 * share) as usize];
    let too_much = all.iter().filter(|o| o.beyond_planned).count();
    println!(
        "with planning: 10 and 200: {too_much}, 50% {:.2}, 90% {:.2}, 95% {:.2}, 99% {:.2}, 99.5% {:.2}, all {:.2}",
        of_planned(0.5),
        of_planned(0.9),
        of_planned(0.95),
        of_planned(0.99),
        of_planned(0.995),
        of_planned(1.0),
    );
    for o in all.iter().rev().take(number("CHOICE_SHOW", 10)) {
        println!("{}", o.told);
    }
    for o in all
        .iter()
        .filter(|o| o.beyond_planned)
        .take(number("CHOICE_SHOW", 10))
    {
        println!("with planning {:.2}: {}", o.with_planning, o.told);
    }
    assert_eq!(beyond, 0);
    assert_eq!(all.iter().map(|o| o.others).sum::<usize>(), 0);
    assert!(too_much * 200 <= all.len(), "{too_much}");
    assert!(at(0.95) <= 1.2, "{}", at(0.95));
    // Of few queries this is the fourth worst, and the engine's sizes differ a little from run to run.
    let most = if all.len() < 5000 { 3.0 } else { 2.0 };
    assert!(at(0.995) <= most, "{}", at(0.995));
}

/// Where the part of an index that was counted says nothing of the rest: `a` repeats itself up to 60 and is a number of its own
/// from there, so that jumps over `c` pass over much at first, and over nothing later.
fn misleading() -> Db {
    const ALIKE: usize = 30_000;
    let document = |i: usize| {
        let (a, c) = if i < ALIKE { (i % 60, 0) } else { (i, 1) };
        let (b, c) = if i % 90 == 3 { (1, c) } else { (2 + i, c) };
        let c = if i % 20_000 == 3 { 5 } else { c };
        d(&format!(r#"{{"_id":{i},"a":{a},"b":{b},"c":{c}}}"#))
    };
    let docs: Vec<DocBuf> = (0..100_000).map(document).collect();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    insert(&engine, &docs);
    let indexes = vec![r#"{"a":1,"c":1}"#.to_string(), r#"{"b":1}"#.to_string()];
    indexes.iter().for_each(|key| create_index(&engine, key));
    engine.store.flush().unwrap();
    Db {
        engine,
        kinds: Vec::new(),
        indexes,
        docs,
        _dir: dir,
    }
}

#[test]
fn a_plan_that_disappoints_is_joined_by_others() {
    let db = misleading();
    let query = |filter: &str| Query {
        filter: Filter::parse(d(filter).as_doc(), &ParseEnv::default()).unwrap(),
        sort: None,
        text: filter.to_string(),
        filtered: Vec::new(),
        ordered: None,
        limit: None,
        skip: 0,
    };
    let q = query(r#"{"a":{"$gte":0},"b":1,"c":5}"#);
    let by = |n: usize| db.run(&q, Some(Hint::Name(db.indexes[n].clone())));
    let (misled, best) = (by(0), by(1));
    assert!(
        misled.cost > 10 * best.cost,
        "{} and {}: nothing disappoints",
        misled.cost,
        best.cost
    );
    let chosen = db.run(&q, None);
    same(&q, &chosen, &best);
    let all = chosen.cost + chosen.planning;
    println!(
        "{all} reads, {} by the best, {} by the other",
        best.cost, misled.cost
    );
    assert!(all <= 10 * best.cost + 200, "{all} of {}", best.cost);
    // What won is remembered: the other has the shorter turns.
    let again = db.run(&q, None);
    let again_all = again.cost + again.planning;
    assert!(
        again_all <= 4 * best.cost && again_all <= all,
        "{again_all}"
    );
    same(&q, &again, &best);
}

#[test]
fn a_watched_plan_reads_no_more_than_was_asked_for() {
    let db = misleading();
    let filter = |text: &str| Filter::parse(d(text).as_doc(), &ParseEnv::default()).unwrap();
    // A request for the plan only reads nothing.
    let mut ctx = OpCtx::worker(&db.engine);
    ctx.only_plans = true;
    let request = FindRequest::new(filter(r#"{"a":{"$gte":0},"b":1,"c":5}"#));
    let cursor = FindCursor::open(&mut ctx, NS, request).unwrap().unwrap();
    let x = cursor.examined();
    assert_eq!((x.keys, x.docs), (0, 0));
    // A count up to one reads one.
    let mut ctx = OpCtx::worker(&db.engine);
    let filter = filter(r#"{"a":{"$gte":40000},"b":{"$gte":3}}"#);
    let request = executor::ReadRequest::new(&filter);
    assert_eq!(executor::count(&mut ctx, NS, &request, 0, 1).unwrap(), 1);
    assert!(ctx.examined.docs <= 5, "{}", ctx.examined.docs);
}

/// Entries of two fields lie in the order of `d` behind `h`: those whose `d` is great come last, and first by the index that
/// narrows less.
#[test]
fn a_limit_that_comes_late_is_joined_by_a_wider_index() {
    let document = |i: usize| {
        let (h, g) = (i % 5, i / 5 % 10);
        d(&format!(
            r#"{{"_id":{i},"d":{i},"e":{i},"g":{g},"h":{h},"f":7}}"#
        ))
    };
    let docs: Vec<DocBuf> = (0..100_000).map(document).collect();
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    insert(&engine, &docs);
    let keys = [r#"{"h":1,"g":1,"f":1}"#, r#"{"h":-1,"e":1}"#];
    keys.iter().for_each(|key| create_index(&engine, key));
    let db = Db {
        engine,
        kinds: Vec::new(),
        indexes: keys.map(String::from).to_vec(),
        docs,
        _dir: dir,
    };
    let filter = r#"{"g":3,"d":{"$gte":98000}}"#;
    for skip in [0, 3, 30] {
        let q = Query {
            filter: Filter::parse(d(filter).as_doc(), &ParseEnv::default()).unwrap(),
            sort: SortPattern::parse(d(r#"{"h":1}"#).as_doc()).ok(),
            text: filter.to_string(),
            filtered: Vec::new(),
            ordered: None,
            limit: Some(10),
            skip,
        };
        let by = |n: usize| db.run(&q, Some(Hint::Name(db.indexes[n].clone())));
        let (narrow, wide) = (by(0), by(1));
        assert!(narrow.cost > 4 * wide.cost, "{} {}", narrow.cost, wide.cost);
        let chosen = db.run(&q, None);
        let all = chosen.cost + chosen.planning;
        println!(
            "skip {skip}: {all} reads, {} by the wider, {} by the narrower",
            wide.cost, narrow.cost
        );
        assert!(all <= 10 * wide.cost + 200, "{all} of {}", wide.cost);
        same(&q, &chosen, &wide);
    }
}

/// A collection of which one query is answered by an index alone, after a race.
fn raced() -> (Db, Filter) {
    let db = misleading();
    create_index(&db.engine, r#"{"b":1,"a":1}"#);
    let filter = Filter::parse(
        d(r#"{"a":{"$gte":0},"b":1}"#).as_doc(),
        &ParseEnv::default(),
    )
    .unwrap();
    (db, filter)
}

/// A race gathers more records than it keeps: these are neither lost nor read twice.
#[test]
fn a_write_changes_what_a_race_has_gathered_and_counts_it_once() {
    let (db, filter) = raced();
    let mut ctx = OpCtx::worker(&db.engine);
    let request = executor::ReadRequest::new(&filter);
    let deleted = executor::delete_in_parts(&mut ctx, NS, &request, |_| Ok(Some(()))).unwrap();
    assert_eq!(deleted.n, 1112);
    assert_eq!((ctx.examined.docs, ctx.examined.raced), (deleted.n, 1));
}

#[test]
fn what_a_race_has_gathered_is_skipped_one_by_one() {
    let (db, filter) = raced();
    for skip in [50, 100, 101, 102, 110, 500, 1111, 1112] {
        let mut ctx = OpCtx::worker(&db.engine);
        let mut request = FindRequest::new(filter.clone());
        request.skip = skip;
        let mut cursor = FindCursor::open(&mut ctx, NS, request).unwrap().unwrap();
        let mut n = 0;
        while cursor.next(&mut ctx).unwrap() {
            n += 1;
        }
        assert_eq!((n, ctx.examined.raced), (1112 - skip, 1), "skip {skip}");
    }
}

/// A distinct whose plan disappoints is joined by others, as a find is.
#[test]
fn a_distinct_reads_no_more_than_the_best_plan_allows() {
    let db = misleading();
    let filter = Filter::parse(
        d(r#"{"a":{"$gte":0},"b":1,"c":5}"#).as_doc(),
        &ParseEnv::default(),
    )
    .unwrap();
    let read = |hint: Option<&str>| {
        let mut ctx = OpCtx::worker(&db.engine);
        let request = executor::ReadRequest {
            hint: hint.map(|h| Hint::Name(h.into())),
            ..executor::ReadRequest::new(&filter)
        };
        let path = FieldPath::new("c");
        let values = executor::distinct(&mut ctx, NS, &path, &request, None).unwrap();
        let x = ctx.examined;
        (values.len(), x.keys + FETCH * x.docs + x.planning)
    };
    let (best, chosen) = (read(Some(&db.indexes[1])), read(None));
    assert_eq!((best.0, chosen.0), (1, 1));
    assert!(chosen.1 <= 10 * best.1 + 200, "{} of {}", chosen.1, best.1);
}

/// The rows of a sort that a race has fetched come before all others.
#[test]
fn a_skip_behind_a_race_goes_on_in_the_order_of_the_sort() {
    let (db, filter) = raced();
    let numbers = |skip: u64, limit: Option<u64>| {
        let mut ctx = OpCtx::worker(&db.engine);
        let mut request = FindRequest::new(filter.clone());
        request.sort = Some(SortPattern::parse(d(r#"{"_id":-1}"#).as_doc()).unwrap());
        (request.skip, request.limit) = (skip, limit);
        request.hint = Some(Hint::Name(db.indexes[1].clone()));
        let mut cursor = FindCursor::open(&mut ctx, NS, request).unwrap().unwrap();
        let mut ids = Vec::new();
        while cursor.next(&mut ctx).unwrap() {
            ids.push(cursor.doc().unwrap().get("_id").unwrap().to_string());
        }
        ids
    };
    let all = numbers(0, None);
    assert_eq!(all.len(), 1112);
    for skip in [50, 100, 101, 102, 120, 160, 1000] {
        let rest = numbers(skip, Some(200));
        let behind: Vec<_> = all.iter().skip(skip as usize).take(200).cloned().collect();
        assert_eq!(rest, behind, "skip {skip}");
    }
}
