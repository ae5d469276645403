//! Searches that a graph answers: what they find against a comparison of all vectors, and how many they compare.

use crate::{
    Definition, Grown, Helpers, IndexWriter, Kind, Position, Room, SearchIndex, VectorSearch,
    checksum,
};
use bson::{DocBuf, Writer};
use encryption::DataFiles;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const COUNT: u32 = 2_600;
const DIMENSIONS: usize = 24;
const QUERIES: u32 = 20;

fn definition(options: &str) -> Arc<Definition> {
    let d = format!(
        r#"{{"fields": [{{"type": "vector", "path": "v", "numDimensions": {DIMENSIONS}, "similarity": "cosine" {options}}},
            {{"type": "filter", "path": "n"}}]}}"#
    );
    let d = bson::json::parse(&d).unwrap();
    Arc::new(Definition::parse(Kind::Vector, d.as_doc()).unwrap())
}

/// Numbers from -1 to 1 that are always the same.
fn vector(of: u32) -> Vec<f64> {
    let number = |i: usize| {
        let bytes = [of.to_le_bytes(), (i as u32).to_le_bytes()].concat();
        f64::from(checksum(&bytes)) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    // Some lie near others, as vectors of texts do.
    let group = |i: usize| {
        let bytes = [(of % 50).to_le_bytes(), (i as u32 + 999).to_le_bytes()].concat();
        f64::from(checksum(&bytes)) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..DIMENSIONS).map(|i| number(i) + group(i)).collect()
}

fn document(of: u32, by: u32) -> DocBuf {
    let mut w = Writer::new();
    w.i32("n", (by % 100) as i32);
    w.open_array("v");
    vector(of).into_iter().for_each(|n| {
        w.push_value(n);
    });
    w.close();
    w.finish()
}

fn put(writer: &mut IndexWriter, keys: std::ops::Range<u32>) {
    for key in keys {
        writer
            .put(&key.to_be_bytes(), document(key, key).as_doc())
            .unwrap();
    }
}

fn filled(dir: &Path, definition: &Arc<Definition>) -> (Arc<SearchIndex>, IndexWriter) {
    let (index, _) =
        SearchIndex::open(dir, definition.clone(), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    put(&mut writer, 0..COUNT);
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    (index, writer)
}

fn helpers() -> Helpers<'static> {
    Helpers {
        threads: 2,
        ..Helpers::default()
    }
}

fn grow(index: &SearchIndex) -> Grown {
    let until = Instant::now() + Duration::from_secs(600);
    index.grow_graphs(until, |_| true, helpers()).unwrap()
}

/// The keys of the ten nearest, and how many vectors were compared.
fn nearest(index: &SearchIndex, query: u32, how: &str, filter: &str) -> (BTreeSet<u32>, usize) {
    let v: Vec<String> = vector(query).iter().map(|n| format!("{n:.9}")).collect();
    let stage = format!(
        r#"{{"index": "i", "path": "v", "queryVector": [{}], "limit": 10, {how}, "filter": {filter}}}"#,
        v.join(",")
    );
    let search = VectorSearch::parse(bson::json::parse(&stage).unwrap().as_doc()).unwrap();
    let mut ask = |_| Ok(());
    let mut hits = search
        .find(index.snapshot(), 10, &mut Room::new(&mut ask))
        .unwrap();
    let mut keys = BTreeSet::new();
    while let Some(hit) = hits.next().unwrap() {
        keys.insert(u32::from_be_bytes(hit.key[..].try_into().unwrap()));
    }
    (keys, hits.compared)
}

/// How many of the nearest are found in a hundred, and how many vectors a search compares.
fn recall(index: &SearchIndex, candidates: usize, filter: &str) -> (usize, usize) {
    let (mut found, mut wanted, mut compared) = (0, 0, 0);
    for query in COUNT..COUNT + QUERIES {
        let exact = nearest(index, query, r#""exact": true"#, filter).0;
        let how = format!(r#""numCandidates": {candidates}"#);
        let (near, n) = nearest(index, query, &how, filter);
        found += near.intersection(&exact).count();
        wanted += exact.len();
        compared += n;
    }
    (found * 100 / wanted, compared / QUERIES as usize)
}

#[test]
fn a_graph_finds_the_nearest_and_compares_few() {
    let cases = [
        ("", 100),
        (r#", "quantization": "scalar""#, 100),
        (r#", "quantization": "binary""#, 40),
        (
            r#", "hnswOptions": {"maxEdges": 32, "numEdgeCandidates": 150}"#,
            60,
        ),
    ];
    for (options, candidates) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (index, _writer) = filled(dir.path(), &definition(options));
        let (all, compared) = recall(&index, candidates, "{}");
        assert_eq!((all, compared), (100, COUNT as usize), "no graph yet");
        assert_eq!(grow(&index), Grown::Whole);
        let (all, compared) = recall(&index, candidates, "{}");
        assert!(all >= 95, "{options}: {all} of a hundred");
        assert!(compared < COUNT as usize * 3 / 4, "{options}: {compared}");
        let (half, _) = recall(&index, 20, r#"{"n": {"$lt": 50}}"#);
        assert!(half >= 90, "{options}: {half} of a hundred");
        // Where few are left they are compared one by one.
        let (few, compared) = recall(&index, candidates, r#"{"n": 7}"#);
        assert_eq!((few, compared), (100, COUNT as usize / 100));
    }
}

#[test]
fn more_candidates_compare_more() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &definition(""));
    grow(&index);
    let of = |n| recall(&index, n, "{}").1;
    assert!(of(10) < of(40) && of(40) < of(120), "they are used");
    let (flat, _writer) = {
        let dir = dir.path().join("flat");
        filled(&dir, &definition(r#", "indexingMethod": "flat""#))
    };
    assert_eq!(grow(&flat), Grown::Whole);
    assert_eq!(recall(&flat, 10, "{}"), (100, COUNT as usize));
}

#[test]
fn what_is_deleted_or_new_is_heeded_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = filled(dir.path(), &definition(""));
    grow(&index);
    (0..COUNT)
        .filter(|n| n % 3 == 0)
        .for_each(|n| writer.delete(&n.to_be_bytes()));
    // Those that a query is equal to, under keys of their own.
    put(&mut writer, COUNT..COUNT + QUERIES);
    writer.commit(Position { index: 2, ts: 2 }).unwrap();
    for query in COUNT..COUNT + QUERIES {
        let (near, compared) = nearest(&index, query, r#""numCandidates": 60"#, "{}");
        assert!(near.contains(&query), "what no graph has yet is compared");
        assert!(near.iter().all(|n| *n >= COUNT || n % 3 != 0));
        assert!(compared < COUNT as usize, "{compared}");
    }
    assert!(recall(&index, 60, "{}").0 >= 95);
    grow(&index);
    assert_eq!(index.in_graphs(), u64::from(COUNT + QUERIES));
    assert!(recall(&index, 60, "{}").0 >= 95);
}

#[test]
fn equal_vectors_hide_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) =
        SearchIndex::open(dir.path(), definition(""), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for key in 0..COUNT {
        let of = if key % 2 == 0 { 0 } else { key };
        writer
            .put(&key.to_be_bytes(), document(of, key).as_doc())
            .unwrap();
    }
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    grow(&index);
    for query in (1..COUNT).step_by(201).filter(|n| n % 2 == 1) {
        let (near, _) = nearest(&index, query, r#""numCandidates": 60"#, "{}");
        assert!(near.contains(&query), "{query}");
    }
}

#[test]
fn a_graph_is_there_again_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let (made, killed) = (dir.path().join("made"), dir.path().join("killed"));
    let definition = definition("");
    let (index, mut writer) = filled(&made, &definition);
    super::tests::copy(&made, &killed);
    put(&mut writer, COUNT..COUNT + 400);
    writer.commit(Position { index: 2, ts: 2 }).unwrap();
    grow(&index);
    index.save_graphs().unwrap();
    drop((writer, index));
    let in_graphs = |dir: &Path| {
        let (index, position) =
            SearchIndex::open(dir, definition.clone(), "1", &DataFiles::default()).unwrap();
        assert!(position.is_some());
        // Nothing is put in: what it has then is what the file had.
        index
            .grow_graphs(Instant::now(), |_| true, helpers())
            .unwrap();
        let had = index.in_graphs();
        assert_eq!(grow(&index), Grown::Whole);
        assert!(recall(&index, 60, "{}").0 >= 95);
        had
    };
    assert_eq!(in_graphs(&made), u64::from(COUNT) + 400);
    // Of later commits than the index has.
    let file = "graph-0.links";
    std::fs::copy(made.join(file), killed.join(file)).unwrap();
    assert_eq!(in_graphs(&killed), 0);
    // Damaged, or cut.
    let whole = std::fs::read(made.join(file)).unwrap();
    for at in [0, 9, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(made.join(file), bytes).unwrap();
        let (index, _) =
            SearchIndex::open(&made, definition.clone(), "1", &DataFiles::default()).unwrap();
        index
            .grow_graphs(Instant::now(), |_| true, helpers())
            .unwrap();
        assert_eq!(index.in_graphs(), 0, "byte {at}");
    }
    std::fs::write(made.join(file), &whole[..whole.len() / 2]).unwrap();
    assert_eq!(in_graphs(&made), 0);
}

#[test]
fn a_graph_takes_no_more_memory_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &definition(""));
    let until = Instant::now() + Duration::from_secs(600);
    let mut asked = 0;
    let holds = |bytes| {
        asked = bytes;
        bytes < 500_000
    };
    let grown = index.grow_graphs(until, holds, helpers());
    assert_eq!(grown.unwrap(), Grown::NoRoom);
    assert!(index.in_graphs() > 0 && index.in_graphs() < u64::from(COUNT));
    assert!(recall(&index, 20, "{}").0 >= 90, "the rest is compared");
    assert_eq!(grow(&index), Grown::Whole);
    // A byte for each dimension, its links, and where it is.
    assert!(asked > 500_000);
}
