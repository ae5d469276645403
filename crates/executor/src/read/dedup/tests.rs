//! Scans that may remember nothing, little or all of what they gave, against each other and against
//! testing every document.

use super::*;
use crate::op::REMEMBERED;
use crate::{Engine, FindCursor, FindRequest, ReadRequest, build};
use bson::{DocBuf, Writer, json, shell};
use catalog::NewIndex;
use planner::{Access, Hint};
use query::expr::ParseEnv;
use query::pipeline::StageMemory;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;
use storage::{Store, StoreOptions};

const NS: &str = "t.c";

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn filter(text: &str) -> Filter {
    Filter::parse(d(text).as_doc(), &ParseEnv::default()).unwrap()
}

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }

    fn scalar(&mut self) -> String {
        match self.below(12) {
            0 => "null".into(),
            1 => r#""s""#.into(),
            _ => self.below(8).to_string(),
        }
    }

    fn list(&mut self, most: usize, mut item: impl FnMut(&mut Random) -> String) -> String {
        let items: Vec<String> = (0..self.below(most + 1)).map(|_| item(self)).collect();
        format!("[{}]", items.join(","))
    }

    /// `a` and `n` are often arrays, `b` and `c` never are.
    fn document(&mut self, id: &str) -> String {
        let mut fields = vec![format!(r#""_id":{id}"#)];
        match self.below(8) {
            0 => {}
            1 => fields.push(format!(r#""a":{}"#, self.scalar())),
            // More than are asked again and again.
            2 => {
                let list = self.list(40, |r| r.below(60).to_string());
                fields.push(format!(r#""a":{list}"#));
            }
            3 => {
                let nested = self.list(3, |r| r.list(2, Random::scalar));
                fields.push(format!(r#""a":{nested}"#));
            }
            _ => {
                let list = self.list(5, Random::scalar);
                fields.push(format!(r#""a":{list}"#));
            }
        }
        for name in ["b", "c"] {
            if self.below(8) > 0 {
                fields.push(format!(r#""{name}":{}"#, self.scalar()));
            }
        }
        let part = |r: &mut Random| match r.below(8) {
            0 => r.scalar(),
            1 => format!(r#"{{"y":{}}}"#, r.scalar()),
            2 => format!(
                r#"{{"x":{},"y":{}}}"#,
                r.list(3, Random::scalar),
                r.scalar()
            ),
            _ => format!(r#"{{"x":{},"y":{}}}"#, r.scalar(), r.scalar()),
        };
        match self.below(6) {
            0 => {}
            1 => fields.push(format!(r#""n":{}"#, part(self))),
            _ => fields.push(format!(r#""n":{}"#, self.list(4, part))),
        }
        format!("{{{}}}", fields.join(","))
    }

    fn predicate(&mut self) -> String {
        self.predicate_on(&["a", "a", "b", "c", "n.x", "n.x", "n.y"])
    }

    fn predicate_on(&mut self, paths: &[&str]) -> String {
        let path = self.pick(paths);
        let k = self.below(8);
        let test = match self.below(12) {
            0 | 1 => format!(r#"{{"$in":{}}}"#, self.list(4, Random::scalar)),
            2 => format!(r#"{{"$gte":{k}}}"#),
            3 => format!(r#"{{"$lt":{k}}}"#),
            4 => format!(r#"{{"$gt":{k},"$lte":{}}}"#, k + 2),
            5 => format!(r#"{{"$elemMatch":{{"$gte":{k},"$lt":{}}}}}"#, k + 3),
            6 => r#"{"$exists":true}"#.into(),
            7 => format!(r#"{{"$ne":{k}}}"#),
            8 => r#"{"$mod":[2,1]}"#.into(),
            9 => format!("[{k}]"),
            _ => self.scalar(),
        };
        format!(r#"{{"{path}":{test}}}"#)
    }

    fn conjunction(&mut self) -> String {
        let all: Vec<String> = (0..1 + self.below(3)).map(|_| self.predicate()).collect();
        if self.below(8) == 0 {
            return format!(
                r#"{{"n":{{"$elemMatch":{{"x":{},"y":{{"$gte":{}}}}}}}}}"#,
                self.scalar(),
                self.below(8)
            );
        }
        format!(r#"{{"$and":[{}]}}"#, all.join(","))
    }

    /// Of fields of one index.
    fn conjunction_on(&mut self, paths: &[&str]) -> String {
        let all: Vec<String> = (0..1 + self.below(3))
            .map(|_| self.predicate_on(paths))
            .collect();
        format!(r#"{{"$and":[{}]}}"#, all.join(","))
    }

    /// Whose every branch an index gives in the order of a field; that field.
    fn ordered_disjunction(&mut self) -> (String, &'static str) {
        let (field, paths): (_, &[&str]) = match self.below(3) {
            0 => ("a", &["b", "c"]),
            1 => ("n.x", &["c"]),
            _ => ("b", &["c"]),
        };
        let all: Vec<String> = (0..2 + self.below(4))
            .map(|_| {
                let more = match self.below(2) {
                    0 => self.predicate(),
                    _ => "{}".into(),
                };
                let (path, k) = (self.pick(paths), self.below(4));
                format!(r#"{{"$and":[{{"{path}":{k}}},{more}]}}"#)
            })
            .collect();
        (format!(r#"{{"$or":[{}]}}"#, all.join(",")), field)
    }

    fn disjunction(&mut self) -> String {
        let all: Vec<String> = (0..2 + self.below(3)).map(|_| self.conjunction()).collect();
        let or = format!(r#"{{"$or":[{}]}}"#, all.join(","));
        match self.below(3) {
            0 => format!(r#"{{"$and":[{or},{}]}}"#, self.predicate()),
            _ => or,
        }
    }
}

/// A query, and how it was answered.
struct Query {
    filter: Filter,
    sort: Option<SortPattern>,
    projection: Option<&'static str>,
    hint: Option<Hint>,
    skip: u64,
}

impl Query {
    fn new(filter: Filter) -> Query {
        Query {
            filter,
            sort: None,
            projection: None,
            hint: None,
            skip: 0,
        }
    }
}

struct Db {
    engine: Arc<Engine>,
    docs: Vec<DocBuf>,
    _dir: tempfile::TempDir,
}

impl Db {
    fn new(docs: &[String], indexes: &[(&str, &str)]) -> Db {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap();
        let mut ctx = OpCtx::worker(&engine);
        let docs: Vec<DocBuf> = docs.iter().map(|t| d(t)).collect();
        let refs: Vec<Doc> = docs.iter().map(|d| d.as_doc()).collect();
        let done = crate::write::insert(&mut ctx, NS, &refs, true, None).unwrap();
        assert_eq!(done.n as usize, docs.len());
        for (key, options) in indexes {
            let mut w = Writer::new();
            let name = format!("{key}{options}");
            w.i32("v", 2)
                .doc("key", d(key).as_doc())
                .str("name", &name)
                .extend(d(options).as_doc());
            build::create_indexes(&mut ctx, NS, &[NewIndex { spec: w.finish() }]).unwrap();
        }
        Db {
            engine,
            docs,
            _dir: dir,
        }
    }

    fn ctx(&self, remembered: usize) -> OpCtx<'_> {
        let mut ctx = OpCtx::worker(&self.engine);
        ctx.remembered = remembered;
        ctx
    }

    fn open(&self, ctx: &mut OpCtx, q: &Query) -> FindCursor {
        let projection = q.projection.map(|p| {
            let p = d(p);
            Projection::parse(p.as_doc(), None, &ParseEnv::default()).unwrap()
        });
        let request = FindRequest {
            sort: q.sort.clone(),
            projection,
            hint: q.hint.clone(),
            skip: q.skip,
            ..FindRequest::new(q.filter.clone())
        };
        FindCursor::open(ctx, NS, request).unwrap().unwrap()
    }

    /// The results, of a cursor that is left now and then.
    fn find(&self, remembered: usize, q: &Query) -> errors::Result<Vec<String>> {
        let mut ctx = self.ctx(remembered);
        let mut cursor = self.open(&mut ctx, q);
        let mut out = vec![];
        while cursor.next(&mut ctx)? {
            out.push(cursor.doc()?.to_string());
            if out.len() % 7 == 0 {
                cursor.release();
            }
        }
        Ok(out)
    }

    fn count(&self, remembered: usize, q: &Query) -> u64 {
        let request = ReadRequest {
            hint: q.hint.clone(),
            ..ReadRequest::new(&q.filter)
        };
        crate::count(&mut self.ctx(remembered), NS, &request, 0, 0).unwrap()
    }

    fn matching(&self, f: &Filter) -> Vec<String> {
        let docs = self.docs.iter().map(|d| d.as_doc());
        let docs = docs.filter(|d| f.matches(*d).unwrap());
        docs.map(|d| d.to_string()).collect()
    }
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

fn sort_keys(of: &[String], sort: &SortPattern) -> Vec<Vec<u8>> {
    let key = |text: &String| {
        let mut key = Vec::new();
        sort.sort_key(d(text).as_doc(), &mut key).unwrap();
        key
    };
    of.iter().map(key).collect()
}

fn documents(random: &mut Random, many: usize, numbered: bool) -> Vec<String> {
    let id = |n: usize| match numbered {
        // Looks like a hash: the records lie under numbers.
        true => format!(
            r#""{:032x}""#,
            (n as u128 + 7).wrapping_mul(0x9E37_79B9_7F4A)
        ),
        false => n.to_string(),
    };
    (0..many).map(|n| random.document(&id(n))).collect()
}

/// Nothing, so little that it is used up half-way, all.
const LIMITS: [usize; 4] = [0, 300, 2_000, REMEMBERED];

const INDEXES: &[(&str, &str)] = &[
    (r#"{"a":1}"#, "{}"),
    (r#"{"a":-1,"b":1}"#, "{}"),
    (r#"{"b":1,"a":1,"c":-1}"#, "{}"),
    (r#"{"c":1,"n.x":1}"#, "{}"),
    (r#"{"n.x":1,"n.y":-1}"#, "{}"),
    (r#"{"n.y":1}"#, "{}"),
    (r#"{"b":1}"#, "{}"),
    (r#"{"c":1,"b":1}"#, "{}"),
    (r#"{"c":-1,"a":-1}"#, "{}"),
    (r#"{"a":1,"c":1}"#, r#"{"sparse":true}"#),
    (
        r#"{"n.x":-1,"c":1}"#,
        r#"{"partialFilterExpression":{"b":{"$gte":2}}}"#,
    ),
    (r#"{"$**":1}"#, "{}"),
];

#[test]
fn a_scan_gives_a_record_once() {
    let (mut dedup, mut skipping, mut filtered, mut reverse, mut covered) = (0, 0, 0, 0, 0);
    for seed in 1..=4 {
        let mut random = Random(seed * 0x9E37_79B9);
        let db = Db::new(&documents(&mut random, 120, seed % 2 == 0), INDEXES);
        for _ in 0..250 {
            let (key, options) = INDEXES[random.below(INDEXES.len())];
            let key_pattern = d(key);
            let mut fields: Vec<&str> = key_pattern.as_doc().iter().map(|e| e.name).collect();
            let conjunction = match random.below(2) {
                0 if key != r#"{"$**":1}"# => random.conjunction_on(&fields),
                _ => {
                    fields = vec!["a", "b", "c", "n.x", "n.y"];
                    random.conjunction()
                }
            };
            let mut q = Query::new(filter(&conjunction));
            q.hint = Some(Hint::Name(format!("{key}{options}")));
            if random.below(2) == 0 {
                let way = random.pick(&["1", "-1"]);
                let some = 1 + random.below(fields.len());
                let field = random.pick(&fields[..some]);
                let sort = d(&format!(r#"{{"{field}":{way}}}"#));
                q.sort = Some(SortPattern::parse(sort.as_doc()).unwrap());
            }
            if random.below(if key.starts_with(r#"{"b":1,"a""#) {
                1
            } else {
                4
            }) == 0
            {
                q.projection = Some(r#"{"_id":0,"b":1,"c":1}"#);
            }
            let mut ctx = db.ctx(0);
            let Ok(Some(cursor)) = FindCursor::open(
                &mut ctx,
                NS,
                FindRequest {
                    hint: q.hint.clone(),
                    ..FindRequest::new(q.filter.clone())
                },
            ) else {
                // Nothing that a wildcard index could be asked for.
                continue;
            };
            drop(cursor);
            let cursor = db.open(&mut ctx, &q);
            if let Access::Index(a) = &cursor.plan().access
                && a.dedup
            {
                dedup += 1;
                skipping += usize::from(!a.skip.is_empty());
                filtered += usize::from(!a.key_filter.is_empty());
                reverse += usize::from(a.reverse);
                covered += usize::from(cursor.plan().covered);
            }
            let told = format!("{:?}, {}", q.hint, shell::doc(q.filter.to_doc().as_doc()));
            let want = db.find(REMEMBERED, &q).unwrap();
            if options == "{}" && q.projection.is_none() {
                assert_eq!(
                    sorted(want.clone()),
                    sorted(db.matching(&q.filter)),
                    "{told}"
                );
            }
            for limit in LIMITS {
                assert_eq!(db.find(limit, &q).unwrap(), want, "{told}, {limit}");
                assert_eq!(db.count(limit, &q) as usize, want.len(), "{told}, {limit}");
            }
            q.skip = random.below(30) as u64;
            let rest = want.get(q.skip as usize..).unwrap_or(&[]);
            for limit in LIMITS {
                assert_eq!(db.find(limit, &q).unwrap(), rest, "{told}, {limit}");
            }
        }
    }
    let all = (dedup, skipping, filtered, reverse, covered);
    assert!(
        dedup > 300 && skipping > 30 && filtered > 30 && reverse > 20 && covered > 10,
        "{all:?}"
    );
}

#[test]
fn a_union_gives_a_record_once() {
    let (mut unions, mut merges, mut through_arrays) = (0, 0, 0);
    for seed in 1..=4 {
        let mut random = Random(seed * 0x51_7CC1_B727);
        let docs = documents(&mut random, 120, seed % 2 == 0);
        let db = Db::new(&docs, &INDEXES[..INDEXES.len() - (seed as usize % 2)]);
        for _ in 0..250 {
            let (disjunction, field) = match random.below(2) {
                0 => (random.disjunction(), ""),
                _ => random.ordered_disjunction(),
            };
            let mut q = Query::new(filter(&disjunction));
            if !field.is_empty() {
                let way = random.pick(&["1", "-1"]);
                let sort = d(&format!(r#"{{"{field}":{way}}}"#));
                q.sort = Some(SortPattern::parse(sort.as_doc()).unwrap());
            }
            let mut ctx = db.ctx(0);
            let cursor = db.open(&mut ctx, &q);
            match &cursor.plan().access {
                Access::Or(_) => unions += 1,
                Access::Merge(b, _) => {
                    merges += 1;
                    through_arrays += usize::from(b.iter().any(|b| b.access.dedup));
                }
                _ => continue,
            }
            let told = shell::doc(q.filter.to_doc().as_doc());
            let want = db.find(REMEMBERED, &q).unwrap();
            assert_eq!(
                sorted(want.clone()),
                sorted(db.matching(&q.filter)),
                "{told}"
            );
            for limit in LIMITS {
                let got = db.find(limit, &q).unwrap();
                match &q.sort {
                    // Rows of one sort key may come in any order.
                    Some(s) => {
                        assert_eq!(sort_keys(&got, s), sort_keys(&want, s), "{told}, {limit}");
                        assert!(sort_keys(&got, s).is_sorted(), "{told}, {limit}");
                        assert_eq!(sorted(got), sorted(want.clone()), "{told}, {limit}");
                    }
                    None => assert_eq!(got, want, "{told}, {limit}"),
                }
            }
        }
    }
    let all = (unions, merges, through_arrays);
    assert!(unions > 200 && merges > 30 && through_arrays > 5, "{all:?}");
}

/// A long array is not asked for each of its elements.
#[test]
fn who_has_many_keys_is_asked_seldom() {
    let long: Vec<String> = (0..3000).map(|n| (n + 10).to_string()).collect();
    let mut docs = vec![format!(r#"{{"_id":-1,"a":[{}]}}"#, long.join(","))];
    docs.extend((0..50).map(|n| format!(r#"{{"_id":{n},"a":[{n},{}]}}"#, n + 1000)));
    let db = Db::new(&docs, &INDEXES[..1]);
    let q = Query::new(filter(r#"{"a":{"$gte":0}}"#));
    let mut ctx = db.ctx(300);
    let mut cursor = db.open(&mut ctx, &q);
    let mut given = 0;
    while cursor.next(&mut ctx).unwrap() {
        given += 1;
    }
    assert_eq!((given, db.count(300, &q)), (51, 51));
    let examined = cursor.examined();
    assert!(examined.keys == 3100 && examined.docs < 400, "{examined:?}");
}

/// The same for what writes: each record is deleted, and counted, once.
#[test]
fn a_delete_counts_a_record_once() {
    for limit in LIMITS {
        let mut random = Random(77);
        let db = Db::new(&documents(&mut random, 100, false), &INDEXES[..1]);
        let f = filter(r#"{"a":{"$gte":2}}"#);
        let want = db.matching(&f).len();
        let request = crate::DeleteRequest {
            filter: &f,
            multi: true,
            sort: None,
            hint: None,
            vars: None,
            images: false,
        };
        let done = crate::write::delete(&mut db.ctx(limit), NS, &request, 0, None).unwrap();
        assert!(want > 20);
        assert_eq!(done.n as usize, want);
        assert_eq!(db.find(limit, &Query::new(f)).unwrap(), [""; 0]);
    }
}

/// A branch's tests fail for documents that only others give; that is no matter, as it is none
/// while they are remembered.
#[test]
fn what_a_branch_never_tests_does_not_fail() {
    let docs = [
        r#"{"_id":1,"a":1,"b":1,"c":2}"#,
        r#"{"_id":2,"a":1,"c":2}"#,
        r#"{"_id":3,"b":1,"c":0}"#,
        r#"{"_id":4,"b":1,"c":1}"#,
    ];
    let db = Db::new(
        &docs.map(String::from),
        &[(r#"{"a":1}"#, "{}"), (r#"{"b":1}"#, "{}")],
    );
    let failing = r#"{"$expr":{"$gt":[{"$divide":[2,"$c"]},0]}}"#;
    let q = |first: &str| Query::new(filter(&format!(r#"{{"$or":[{first},{{"b":1}}]}}"#)));
    let simple = q(&format!(r#"{{"$and":[{failing},{{"a":1}}]}}"#));
    for limit in LIMITS {
        assert_eq!(db.find(limit, &simple).unwrap().len(), 4);
    }
    // Here the other alternative might have found it, which is not known.
    let nested = q(&format!(
        r#"{{"$or":[{{"$and":[{failing},{{"a":1}}]}},{{"b":5}}]}}"#
    ));
    assert_eq!(db.find(REMEMBERED, &nested).unwrap().len(), 4);
}

#[test]
fn it_holds_no_more_than_it_may() {
    let db = Db::new(&["{}".into()], &[]);
    let key = |n: usize| (n as u64).to_be_bytes();
    let mut seen = Seen::default();
    let ctx = db.ctx(100);
    assert_eq!(seen.add(&ctx, &key(1)), Known::New);
    assert_eq!(seen.look(&key(1)), Known::Given);
    assert_eq!(seen.look(&key(2)), Known::New);
    assert_eq!(seen.add(&ctx, &key(2)), Known::Nothing);
    assert_eq!(seen.add(&ctx, &key(1)), Known::Given);
    seen.restart();
    assert_eq!(seen.add(&ctx, &key(2)), Known::New);
    seen.forget();
    assert_eq!(seen.add(&ctx, &key(2)), Known::Nothing);

    // All together hold what stages may, besides a little each.
    let memory: &Arc<StageMemory> = &db.engine.stage_memory;
    let ctx = db.ctx(REMEMBERED);
    let mut many: Vec<Seen> = Vec::new();
    for _ in 0..600 {
        let mut seen = Seen::default();
        let room = (0..400).take_while(|n| seen.add(&ctx, &key(*n)) == Known::New);
        assert!(room.count() >= UNCOUNTED / (8 + OVERHEAD));
        many.push(seen);
    }
    assert!(memory.used() <= memory.limit());
    assert!(many.first().is_some_and(|s| !s.full) && many.last().is_some_and(|s| s.full));
    drop(many);
    assert_eq!(memory.used(), 0);
    let mut seen = Seen::default();
    let room = (0..1_000_000).take_while(|n| seen.add(&ctx, &key(*n)) == Known::New);
    assert_eq!(room.count(), REMEMBERED / (8 + OVERHEAD));
    assert!(memory.used() >= REMEMBERED);
    seen.restart();
    assert_eq!(memory.used(), 0);
}
