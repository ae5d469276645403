//! Joins by a hash table beside joins by queries.

use super::super::tests::{Memory, docs, parse, parse_value_under};
use super::super::{StageMemory, over_docs};
use super::*;
use bson::DocBuf;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const JOINS: [&str; 8] = [
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j"}}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j"}},{"$unwind":"$j"}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k.x","foreignField":"k.x","as":"j"}},{"$unwind":"$j"},{"$match":{"j._id":{"$gt":3}}}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k.x","as":"j","pipeline":[{"$match":{"_id":{"$ne":2}}}]}}]"#,
    // Only some fields of the joined documents are read.
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j"}},{"$unwind":"$j"},{"$group":{"_id":"$j._id","n":{"$sum":1}}}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j.b"}},{"$group":{"_id":"$j.b.k","a":{"$push":"$j.c"}}}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j"}},{"$match":{"j.0.k":2}},{"$count":"n"}]"#,
    r#"[{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j"}},{"$project":{"n":{"$size":"$j"},"j":1}}]"#,
];

fn value(rng: &mut StdRng, depth: u32) -> String {
    let item = |rng: &mut StdRng| value(rng, depth + 1);
    match rng.random_range(0..if depth < 2 { 12 } else { 9 }) {
        0 => "null".into(),
        1 => format!("{}.0", rng.random_range(0..4)),
        2 => format!("\"{}\"", rng.random_range(0..3)),
        3 => "true".into(),
        4 => r#"{"$numberLong":"2"}"#.into(),
        5 => r#"{"$numberDecimal":"2.50"}"#.into(),
        6 => "2.5".into(),
        7 | 8 => rng.random_range(0..5).to_string(),
        9 => format!("[{},{}]", item(rng), item(rng)),
        10 => format!("{{\"x\":{}}}", item(rng)),
        _ => "[]".into(),
    }
}

fn collection(rng: &mut StdRng, size: u32) -> Vec<DocBuf> {
    let doc = |id, rng: &mut StdRng| match rng.random_range(0..10) {
        0 => format!("{{\"_id\":{id}}}"),
        _ => format!("{{\"_id\":{id},\"k\":{}}}", value(rng, 0)),
    };
    let all: Vec<String> = (0..size).map(|id| doc(id, rng)).collect();
    docs(&format!("[{}]", all.join(",")))
}

fn run(stages: &str, input: &[DocBuf], host: &mut Memory) -> Vec<DocBuf> {
    let pipeline = parse(stages).unwrap();
    let mut source = pipeline.attach(0, over_docs(input.to_vec()), &Arc::new(Vars::new(0)));
    let mut out = Vec::new();
    loop {
        match source.advance(host) {
            Ok(true) => out.push(source.doc().to_buf()),
            Ok(false) => return out,
            Err(e) if e.is_suspension() => {}
            Err(e) => panic!("{stages}: {e:?}"),
        }
    }
}

fn host(foreign: &[DocBuf], sizes: bool) -> Memory {
    let mut host = Memory {
        sizes,
        ..Memory::default()
    };
    host.collections.insert("b".into(), foreign.to_vec());
    host
}

#[test]
fn a_table_gives_what_queries_give() {
    let seed = std::env::var("PANDO_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("PANDO_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for turn in 0..40 {
        let (input, foreign) = (collection(&mut rng, 100), collection(&mut rng, 30));
        for join in JOINS {
            let expected = run(join, &input, &mut host(&foreign, false));
            let mut with_table = host(&foreign, true);
            with_table.offload_every = [None, Some(7)][turn % 2];
            let got = run(join, &input, &mut with_table);
            assert_eq!(got, expected, "PANDO_SEED={seed} {join}");
        }
    }
}

#[test]
fn a_table_spares_queries() {
    let foreign: Vec<String> = (0..200)
        .map(|i| format!(r#"{{"_id":{i},"k":{}}}"#, i % 50))
        .collect();
    let foreign = docs(&format!("[{}]", foreign.join(",")));
    let input: Vec<String> = (0..500)
        .map(|i| format!(r#"{{"_id":{i},"k":{}}}"#, i % 60))
        .collect();
    let input = docs(&format!("[{}]", input.join(",")));
    let mut with_table = host(&foreign, true);
    let found = run(JOINS[1], &input, &mut with_table).len();
    assert_eq!(u64::from(with_table.opened), FEWEST + 1, "the scan is one");
    assert_eq!(
        found,
        run(JOINS[1], &input, &mut host(&foreign, false)).len()
    );
}

/// 300 documents of 1 KB, and 100 short ones that each find one of them.
fn long_foreign_side() -> (Vec<DocBuf>, Vec<DocBuf>) {
    let long = "x".repeat(1000);
    let foreign: Vec<String> = (0..300)
        .map(|i| format!(r#"{{"_id":{i},"k":{i},"t":"{long}"}}"#))
        .collect();
    let input: Vec<String> = (0..100)
        .map(|i| format!(r#"{{"_id":{i},"k":{i}}}"#))
        .collect();
    let all = |of: Vec<String>| docs(&format!("[{}]", of.join(",")));
    (all(foreign), all(input))
}

#[test]
fn a_table_holds_what_is_read() {
    let (foreign, input) = long_foreign_side();
    for (read, opened) in [("$j._id", FEWEST + 1), ("$j.t", 101), ("$j", 101)] {
        // Whole documents seem to fit before they are read. The scan is given up then.
        let mut small = host(&foreign, true);
        small.limit = Some(400_000);
        let group = format!(r#"{{"$unwind":"$j"}},{{"$group":{{"_id":"{read}"}}}}]"#);
        let stages = JOINS[0].replace("}}]", &format!("}}}},{group}"));
        run(&stages, &input, &mut small);
        assert_eq!(u64::from(small.opened), opened, "{read}");
    }
}

#[test]
fn queries_go_on_where_a_table_does_not_fit() {
    let (foreign, input) = long_foreign_side();
    let mut small = host(&foreign, true);
    small.limit = Some(200_000);
    assert_eq!(run(JOINS[1], &input, &mut small).len(), 100);
    assert_eq!(small.opened, 100);

    // Others hold the memory of stages.
    let memory = Arc::new(StageMemory::new(8 << 20));
    let mut others = memory.share();
    assert!(others.fits_for_good(8 << 20));
    let large: Vec<DocBuf> = (0..40).flat_map(|_| foreign.clone()).collect();
    let mut busy = host(&large, true);
    busy.shared = Some(memory);
    assert_eq!(run(JOINS[1], &input, &mut busy).len(), 4000);
    assert_eq!(busy.opened, 101, "one scan was given up");
}

#[test]
fn a_batch_gives_what_queries_give() {
    let mut rng = StdRng::seed_from_u64(7);
    for turn in 0..40 {
        let (input, foreign) = (collection(&mut rng, 100), collection(&mut rng, 30));
        for join in JOINS {
            let expected = run(join, &input, &mut host(&foreign, false));
            let mut there = host(&foreign, true);
            there.remote = true;
            there.offload_every = [None, Some(7)][turn % 2];
            assert_eq!(run(join, &input, &mut there), expected, "{turn} {join}");
        }
    }
}

#[test]
fn a_query_asks_for_many_documents_on_another_server() {
    let (foreign, _) = long_foreign_side();
    let input: Vec<String> = (0..1000)
        .map(|i| format!(r#"{{"_id":{i},"k":{}}}"#, i % 400))
        .collect();
    let input = docs(&format!("[{}]", input.join(",")));
    for join in &JOINS[..2] {
        let mut there = host(&foreign, true);
        there.remote = true;
        let found = run(join, &input, &mut there);
        // Four one by one, then 16, 32, 64, 128, 256 and 500 at a time.
        assert_eq!(there.opened, 4 + 6, "{join}");
        assert_eq!(found, run(join, &input, &mut host(&foreign, false)));
    }
    // A missing value is queried by itself.
    let few = docs(
        r#"[{"_id":1},{"_id":2,"k":null},{"_id":3,"k":1},{"_id":4},{"_id":5,"k":2},{"_id":6},{"_id":7,"k":[3,null]}]"#,
    );
    let mut there = host(&foreign, true);
    there.remote = true;
    let found = run(JOINS[0], &few, &mut there);
    assert_eq!(found, run(JOINS[0], &few, &mut host(&foreign, false)));
    assert_eq!(there.opened, 4 + 1 + 2);
}

#[test]
fn a_search_finds_the_same_in_documents_that_come_with_it() {
    let mut rng = StdRng::seed_from_u64(8);
    for turn in 0..40 {
        let (input, foreign) = (collection(&mut rng, 40), collection(&mut rng, 30));
        let found = |with: bool| {
            let mut w = Writer::new_array();
            w.open_doc("").open_doc("$graphLookup");
            w.str("from", "b").str("startWith", "$k").str("as", "j");
            w.str("connectFromField", "_id").str("connectToField", "k");
            w.str("depthField", "at").i32("maxDepth", 4);
            w.open_doc("restrictSearchWithMatch")
                .open_doc("_id")
                .i32("$ne", 3)
                .close()
                .close();
            if with {
                w.open_array("$_pandoDocuments");
                foreign.iter().for_each(|d| {
                    w.push(d.as_doc().as_val());
                });
                w.close();
            }
            w.close().close();
            let stages = w.finish_array();
            let pipeline = parse_value_under(stages.as_val(), "").unwrap();
            let mut host = host(&foreign, true);
            let mut source = pipeline.attach(0, over_docs(input.clone()), &Arc::new(Vars::new(0)));
            let mut out = Vec::new();
            while source.advance(&mut host).unwrap() {
                out.push(source.doc().to_buf());
            }
            (out, host.opened)
        };
        let ((there, asked), (sent, none)) = (found(false), found(true));
        assert_eq!(sent, there, "{turn}");
        assert!(asked > 0 && none == 0);
    }
}

const SEARCHES: [&str; 6] = [
    r#"[{"$graphLookup":{"from":"b","startWith":"$k","connectFromField":"k","connectToField":"_id","as":"j"}}]"#,
    r#"[{"$graphLookup":{"from":"b","startWith":"$_id","connectFromField":"k","connectToField":"k","as":"j","depthField":"d"}}]"#,
    r#"[{"$graphLookup":{"from":"b","startWith":"$k","connectFromField":"_id","connectToField":"k","as":"j","maxDepth":1,"depthField":"d"}}]"#,
    r#"[{"$graphLookup":{"from":"b","startWith":"$k.x","connectFromField":"k.x","connectToField":"k","as":"j","maxDepth":0}}]"#,
    r#"[{"$graphLookup":{"from":"b","startWith":"$k","connectFromField":"k","connectToField":"k.x","as":"j","restrictSearchWithMatch":{"_id":{"$gt":7}}}}]"#,
    // It fails for the texts among them.
    r#"[{"$match":{"k":{"$not":{"$type":["string","array","object","bool"]}}}},{"$graphLookup":{"from":"b","startWith":{"$add":["$k",1]},"connectFromField":"k","connectToField":"_id","as":"j"}},{"$limit":40}]"#,
];

/// What searches find, whatever came first.
fn sorted(found: Vec<DocBuf>) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let bytes = |v: Val<'_>| v.bytes.to_vec();
    let each = |d: DocBuf| {
        let all = d.get("j").and_then(Val::as_array).unwrap_or(Doc::EMPTY);
        let mut all: Vec<_> = all.values().map(bytes).collect();
        all.sort();
        (d.get("_id").map_or(Vec::new(), bytes), all)
    };
    found.into_iter().map(each).collect()
}

#[test]
fn searches_of_many_find_what_each_finds() {
    let seed = std::env::var("PANDO_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("PANDO_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for turn in 0..40 {
        let (input, foreign) = (collection(&mut rng, 100), collection(&mut rng, 30));
        for search in SEARCHES {
            let expected = run(search, &input, &mut host(&foreign, false));
            let mut remote = host(&foreign, true);
            remote.remote = true;
            remote.offload_every = [None, Some(7)][turn % 2];
            let got = run(search, &input, &mut remote);
            assert_eq!(sorted(got), sorted(expected), "PANDO_SEED={seed} {search}");
        }
    }
}

#[test]
fn searches_of_many_ask_once_for_each_step() {
    // Chains of ten: 0 → 1 → … → 9, 10 → 11 → …
    let foreign: Vec<String> = (0..1000)
        .map(|i| {
            format!(
                r#"{{"_id":{i},"k":{}}}"#,
                if i % 10 == 9 { -1 } else { i + 1 }
            )
        })
        .collect();
    let foreign = docs(&format!("[{}]", foreign.join(",")));
    let input: Vec<String> = (0..500)
        .map(|i| format!(r#"{{"_id":{i},"k":{}}}"#, i * 2))
        .collect();
    let input = docs(&format!("[{}]", input.join(",")));
    let mut remote = host(&foreign, true);
    remote.remote = true;
    let found = sorted(run(SEARCHES[0], &input, &mut remote));
    assert_eq!(
        found,
        sorted(run(SEARCHES[0], &input, &mut host(&foreign, false)))
    );
    // Four by themselves, then batches of 16, 32, …, 256, and the rest: eleven steps each.
    assert!(remote.opened <= (4 + 6) * 11, "{}", remote.opened);
    // Where they have no room each searches for itself.
    let mut small = host(&foreign, true);
    (small.remote, small.limit) = (true, Some(3000));
    let found = sorted(run(SEARCHES[0], &input, &mut small));
    assert_eq!(
        found,
        sorted(run(SEARCHES[0], &input, &mut host(&foreign, false)))
    );
    assert!(small.opened > 1000, "{}", small.opened);
}
