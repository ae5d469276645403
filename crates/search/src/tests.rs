//! An index as a whole: what is put in is found again.

use crate::{Definition, IndexWriter, Kind, Position, Room, Search, SearchIndex, VectorSearch};
use bson::{Doc, DocBuf, doc};
use encryption::{DataFiles, DataKey};
use std::sync::Arc;

fn json(text: &str) -> DocBuf {
    bson::json::parse(text).unwrap()
}

fn definition(text: &str) -> Arc<Definition> {
    Arc::new(Definition::parse(Kind::Search, json(text).as_doc()).unwrap())
}

fn filled(dir: &std::path::Path, docs: &[&str]) -> (Arc<SearchIndex>, IndexWriter) {
    let dynamic = definition(r#"{"mappings": {"dynamic": true}}"#);
    let (index, position) = SearchIndex::open(dir, dynamic, "1", &DataFiles::default()).unwrap();
    assert_eq!(position, None);
    let mut writer = index.writer("1").unwrap();
    for (i, d) in docs.iter().enumerate() {
        writer.put(&[i as u8], json(d).as_doc()).unwrap();
    }
    writer.commit(Position { index: 7, ts: 70 }).unwrap();
    (index, writer)
}

fn found(index: &SearchIndex, search: &str) -> Vec<(u8, f32)> {
    let search = Search::parse(json(search).as_doc(), false).unwrap();
    let mut hits = search
        .find(index.snapshot(), None, &mut Room::new(&mut |_| Ok(())))
        .unwrap();
    let mut out = Vec::new();
    while let Some(hit) = hits.next().unwrap() {
        out.push((hit.key[0], hit.score));
    }
    out
}

fn keys(index: &SearchIndex, search: &str) -> Vec<u8> {
    let mut keys: Vec<u8> = found(index, search).into_iter().map(|(k, _)| k).collect();
    keys.sort();
    keys
}

const TEXTS: [&str; 5] = [
    r#"{"title": "the quick brown fox", "n": 1, "tags": ["a", "b"]}"#,
    r#"{"title": "slow green turtle", "n": 2.5, "body": "quick nap"}"#,
    r#"{"title": "a quick quick quick rabbit", "n": 3}"#,
    r#"{"title": "Résumé", "flag": true}"#,
    r#"{"sub": {"title": "quick"}, "n": -1}"#,
];

#[test]
fn a_document_that_is_put_again_replaces_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = filled(dir.path(), &TEXTS);
    let quick =
        |index: &SearchIndex| keys(index, r#"{"text": {"query": "quick", "path": "title"}}"#);
    assert_eq!(quick(&index), [0, 2]);
    // A key that lies behind all others, and again in the same commit.
    for title in ["quick", "slow", "quick again"] {
        let doc = doc! { "title": title };
        writer.put(&[9], doc.as_doc()).unwrap();
    }
    writer.commit(Position { index: 8, ts: 80 }).unwrap();
    assert_eq!(quick(&index), [0, 2, 9]);
    writer.close().unwrap();
    drop(index);
    let dynamic = definition(r#"{"mappings": {"dynamic": true}}"#);
    let (index, _) = SearchIndex::open(dir.path(), dynamic, "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for (key, title) in [(9, "slow"), (2, "slow"), (4, "quick"), (10, "quick")] {
        let doc = doc! { "title": title };
        writer.put(&[key], doc.as_doc()).unwrap();
    }
    writer.commit(Position { index: 9, ts: 90 }).unwrap();
    assert_eq!(quick(&index), [0, 4, 10]);
}

#[test]
fn operators_find_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &TEXTS);
    let cases: [(&str, &[u8]); 16] = [
        (r#"{"text": {"query": "QUICK", "path": "title"}}"#, &[0, 2]),
        (
            r#"{"text": {"query": "quick", "path": {"wildcard": "*"}}}"#,
            &[0, 1, 2, 4],
        ),
        (r#"{"text": {"query": "quick", "path": "sub.title"}}"#, &[4]),
        (
            r#"{"text": {"query": "quick brown", "path": "title", "matchCriteria": "all"}}"#,
            &[0],
        ),
        (
            r#"{"text": {"query": "resume", "path": "title", "fuzzy": {}}}"#,
            &[3],
        ),
        (r#"{"text": {"query": "resume", "path": "title"}}"#, &[]),
        (
            r#"{"phrase": {"query": "quick fox", "path": "title"}}"#,
            &[],
        ),
        (
            r#"{"phrase": {"query": "quick fox", "path": "title", "slop": 1}}"#,
            &[0],
        ),
        (
            r#"{"phrase": {"query": "quick brown fox", "path": "title"}}"#,
            &[0],
        ),
        (r#"{"equals": {"value": 1, "path": "n"}}"#, &[0]),
        (r#"{"in": {"value": [1, 3], "path": "n"}}"#, &[0, 2]),
        (r#"{"range": {"gt": -1, "lte": 2.5, "path": "n"}}"#, &[0, 1]),
        (r#"{"exists": {"path": "sub"}}"#, &[4]),
        (
            r#"{"wildcard": {"query": "qu*", "path": "title", "allowAnalyzedField": true}}"#,
            &[0, 2],
        ),
        (
            r#"{"regex": {"query": "t.*e", "path": "title", "allowAnalyzedField": true}}"#,
            &[0, 1],
        ),
        (
            r#"{"compound": {"must": [{"text": {"query": "quick", "path": "title"}}],
                "mustNot": {"exists": {"path": "tags"}}}}"#,
            &[2],
        ),
    ];
    for (search, want) in cases {
        assert_eq!(keys(&index, search), want, "{search}");
    }
}

/// The sums were computed by hand from Lucene's formula.
#[test]
fn scores_are_those_of_lucenes_bm25() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &TEXTS);
    let got = found(&index, r#"{"text": {"query": "quick", "path": "title"}}"#);
    // Four titles of 4, 3, 5 and 1 words; two of them have the word, once and three times.
    let idf = (1.0f64 + (4.0 - 2.0 + 0.5) / (2.0 + 0.5)).ln();
    let score = |tf: f64, length: f64| idf * tf / (tf + 1.2 * (0.25 + 0.75 * length / 3.25));
    let want = [(2, score(3.0, 5.0)), (0, score(1.0, 4.0))];
    assert_eq!(got.len(), want.len());
    for ((key, got), (want_key, want)) in got.iter().zip(want) {
        assert_eq!(*key, want_key);
        assert!((f64::from(*got) - want).abs() < 1e-6, "{got} {want}");
    }
    let constant =
        r#"{"text": {"query": "quick", "path": "title", "score": {"constant": {"value": 3}}}}"#;
    assert!(found(&index, constant).iter().all(|(_, s)| *s == 3.0));
    let near = found(
        &index,
        r#"{"near": {"path": "n", "origin": 1, "pivot": 2}}"#,
    );
    assert_eq!(near.first(), Some(&(0, 1.0)));
    assert_eq!(near.get(2).map(|(_, s)| *s), Some(0.5));
}

#[test]
fn an_index_goes_on_where_its_last_commit_was() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = filled(dir.path(), &TEXTS);
    writer
        .put(&[9], doc! { "title": "never seen" }.as_doc())
        .unwrap();
    drop((index, writer));
    let dynamic = definition(r#"{"mappings": {"dynamic": true}}"#);
    let (index, position) =
        SearchIndex::open(dir.path(), dynamic.clone(), "1", &DataFiles::default()).unwrap();
    assert_eq!(position, Some(Position { index: 7, ts: 70 }));
    assert_eq!(
        keys(&index, r#"{"exists": {"path": "title"}}"#),
        [0, 1, 2, 3]
    );
    let mut writer = index.writer("1").unwrap();
    writer
        .put(&[0], doc! { "other": "quick" }.as_doc())
        .unwrap();
    writer.delete(&[2]);
    writer.commit(Position { index: 8, ts: 80 }).unwrap();
    assert_eq!(keys(&index, r#"{"exists": {"path": "title"}}"#), [1, 3]);
    assert_eq!(
        keys(&index, r#"{"text": {"query": "quick", "path": "other"}}"#),
        [0]
    );
    drop((index, writer));
    let (_, position) = SearchIndex::open(dir.path(), dynamic, "2", &DataFiles::default()).unwrap();
    assert_eq!(position, None, "another definition begins anew");
}

#[test]
fn mistakes_are_errors() {
    let cases = [
        r#"{}"#,
        r#"{"text": {"path": "a"}}"#,
        r#"{"text": {"query": "", "path": "a"}}"#,
        r#"{"text": {"query": "x", "path": []}}"#,
        r#"{"text": {"query": "x", "path": "a", "bogus": 1}}"#,
        r#"{"text": {"query": "x", "path": "a"}, "exists": {"path": "a"}}"#,
        r#"{"text": {"query": "x", "path": "a", "fuzzy": {"maxEdits": 3}}}"#,
        r#"{"phrase": {"query": "x", "path": "a", "slop": 1.5}}"#,
        r#"{"compound": {}}"#,
        r#"{"range": {"path": "a"}}"#,
        r#"{"text": {"query": "x", "path": "a"}, "index": ""}"#,
    ];
    for case in cases {
        let said = Search::parse(json(case).as_doc(), false).unwrap_err();
        assert!(said.is(errors::Code::UnknownError), "{case}: {said}");
    }
    let bad = [
        r#"{}"#,
        r#"{"mappings": {}, "analyzer": "x"}"#,
        r#"{"mappings": {"fields": {"a": 1}}}"#,
    ];
    for bad in bad {
        let d = json(bad);
        assert!(
            Definition::parse(Kind::Search, Doc::new(d.as_bytes()).unwrap()).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn vectors_are_found_behind_a_filter_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let d = json(
        r#"{"fields": [{"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"},
            {"type": "filter", "path": "n"}]}"#,
    );
    let definition = Arc::new(Definition::parse(Kind::Vector, d.as_doc()).unwrap());
    let (index, _) =
        SearchIndex::open(dir.path(), definition.clone(), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for i in 0..20u8 {
        let v = format!(r#"{{"v": [{i}, 0], "n": {}}}"#, i % 2);
        writer.put(&[i], json(&v).as_doc()).unwrap();
    }
    writer
        .put(&[30], json(r#"{"v": [1], "n": 0}"#).as_doc())
        .unwrap();
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    let near = |index: &SearchIndex, filter: &str| {
        let stage = format!(
            r#"{{"index": "i", "path": "v", "queryVector": [7.2, 0], "limit": 3, "exact": true, "filter": {filter}}}"#
        );
        let search = VectorSearch::parse(json(&stage).as_doc()).unwrap();
        let mut hits = search
            .find(index.snapshot(), 3, &mut Room::new(&mut |_| Ok(())))
            .unwrap();
        let mut keys = Vec::new();
        while let Some(hit) = hits.next().unwrap() {
            keys.push(hit.key[0]);
        }
        keys
    };
    assert_eq!(near(&index, "{}"), [7, 8, 6]);
    assert_eq!(near(&index, r#"{"n": 0}"#), [8, 6, 10]);
    assert_eq!(near(&index, r#"{"n": {"$ne": 0}}"#), [7, 9, 5]);
    // What was not committed is not there.
    writer
        .put(&[7], json(r#"{"v": [100, 0], "n": 1}"#).as_doc())
        .unwrap();
    drop((writer, index));
    let (index, position) =
        SearchIndex::open(dir.path(), definition, "1", &DataFiles::default()).unwrap();
    assert!(position.is_some());
    assert_eq!(near(&index, "{}"), [7, 8, 6]);
    let mut writer = index.writer("1").unwrap();
    writer
        .put(&[7], json(r#"{"v": [100, 0], "n": 1}"#).as_doc())
        .unwrap();
    writer.delete_range(&[8], &[9]).unwrap();
    writer.commit(Position { index: 2, ts: 2 }).unwrap();
    assert_eq!(near(&index, "{}"), [6, 9, 5]);
}

#[test]
fn facets_count_values_of_what_matches() {
    let dir = tempfile::tempdir().unwrap();
    let d = r#"{"mappings": {"dynamic": true, "fields": {"cat": {"type": "token"}}}}"#;
    let (index, _) =
        SearchIndex::open(dir.path(), definition(d), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for (i, cat) in ["a", "b", "a", "c", "b", "a"].iter().enumerate() {
        let doc = format!(r#"{{"cat": "{cat}", "n": {i}}}"#);
        writer.put(&[i as u8], json(&doc).as_doc()).unwrap();
    }
    writer.delete(&[5]);
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    let facet = r#"{"facet": {"operator": {"range": {"path": "n", "gte": 1}}, "facets": {
        "s": {"type": "string", "path": "cat", "numBuckets": 2},
        "n": {"type": "number", "path": "n", "boundaries": [0, 2, 4], "default": "rest"}}}}"#;
    let search = Search::parse(json(facet).as_doc(), true).unwrap();
    let got = search
        .meta(index.snapshot(), &mut Room::new(&mut |_| Ok(())), None)
        .unwrap();
    let want = r#"{"count": {"lowerBound": {"$numberLong": "4"}}, "facet": {
        "s": {"buckets": [{"_id": "b", "count": {"$numberLong": "2"}}, {"_id": "a", "count": {"$numberLong": "1"}}]},
        "n": {"buckets": [{"_id": 0, "count": {"$numberLong": "1"}}, {"_id": 2, "count": {"$numberLong": "2"}},
            {"_id": "rest", "count": {"$numberLong": "1"}}]}}}"#;
    assert_eq!(got.as_doc().to_string(), json(want).as_doc().to_string());
}

/// Every file of an index, damaged at many places: it is built anew, or it answers as before.
#[test]
fn damaged_files_are_found_when_the_index_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let d = json(
        r#"{"fields": [{"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"},
            {"type": "filter", "path": "n"}]}"#,
    );
    let vectors = Arc::new(Definition::parse(Kind::Vector, d.as_doc()).unwrap());
    let texts = definition(r#"{"mappings": {"dynamic": true}}"#);
    let plain = DataFiles::default();
    let encrypted = DataFiles::new(Some(DataKey::generate()));
    for (definition, data) in [
        (texts, &plain),
        (vectors.clone(), &plain),
        (vectors, &encrypted),
    ] {
        let made = dir.path().join("made");
        let (index, _) = SearchIndex::open(&made, definition.clone(), "1", data).unwrap();
        let mut writer = index.writer("1").unwrap();
        for i in 0..200u8 {
            let d = format!(
                r#"{{"v": [{i}, 0], "n": {}, "title": "some words {i}"}}"#,
                i % 2
            );
            writer.put(&[i], json(&d).as_doc()).unwrap();
        }
        writer.delete(&[7]);
        writer.commit(Position { index: 1, ts: 1 }).unwrap();
        writer.close().unwrap();
        drop(index);
        let files = std::fs::read_dir(&made).unwrap();
        let mut files: Vec<_> = files.map(|f| f.unwrap().file_name()).collect();
        files.sort();
        let mut found = 0;
        for file in &files {
            let whole = std::fs::read(made.join(file)).unwrap();
            for part in 0..9 {
                let copy = dir.path().join("copy");
                std::fs::create_dir(&copy).unwrap();
                for f in &files {
                    std::fs::copy(made.join(f), copy.join(f)).unwrap();
                }
                let mut bytes = whole.clone();
                match bytes.len().checked_sub(1) {
                    Some(last) if part < 8 => bytes[last * part / 7] ^= 0x10,
                    Some(last) => bytes.truncate(last / 2),
                    None => {}
                }
                std::fs::write(copy.join(file), bytes).unwrap();
                let (opened, position) =
                    SearchIndex::open(&copy, definition.clone(), "1", data).unwrap();
                match position {
                    None => found += 1,
                    Some(_) => assert_eq!(opened.snapshot().documents(), 199, "{file:?} {part}"),
                }
                drop(opened);
                std::fs::remove_dir_all(&copy).unwrap();
            }
            let name = file.to_str().unwrap();
            assert!(found > 0 || name.starts_with('.'), "{name}");
        }
        std::fs::remove_dir_all(&made).unwrap();
    }
}

/// A key stream that has encrypted vectors which were not committed is not used again.
#[test]
fn vectors_that_were_not_committed_are_not_written_over_in_an_encrypted_file() {
    let dir = tempfile::tempdir().unwrap();
    let d = json(
        r#"{"fields": [{"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"}]}"#,
    );
    let vectors = Arc::new(Definition::parse(Kind::Vector, d.as_doc()).unwrap());
    let data = DataFiles::new(Some(DataKey::generate()));
    let open = || SearchIndex::open(dir.path(), vectors.clone(), "1", &data).unwrap();
    let put = |index: &Arc<SearchIndex>, ids: std::ops::Range<u8>| {
        let mut writer = index.writer("1").unwrap();
        for i in ids {
            let d = format!(r#"{{"v": [{i}, {i}]}}"#);
            writer.put(&[i], json(&d).as_doc()).unwrap();
        }
        let at = u64::from(index.snapshot().documents() as u8) + 1;
        writer.commit(Position { index: at, ts: at }).unwrap();
        writer.close().unwrap();
    };
    put(&open().0, 0..20);
    let file = dir.path().join("vectors-0.f32");
    let before = std::fs::read(&file).unwrap();
    let longer = [&before[..], &[7; 99]].concat();
    std::fs::write(&file, &longer).unwrap();
    let (index, position) = open();
    assert!(position.is_some());
    put(&index, 20..40);
    let after = std::fs::read(&file).unwrap();
    assert_eq!(after.len(), before.len() + 20 * 12);
    assert_ne!(after[..64], before[..64], "another salt");
    let stage =
        r#"{"index": "i", "path": "v", "queryVector": [31.2, 31.2], "limit": 3, "exact": true}"#;
    let search = VectorSearch::parse(json(stage).as_doc()).unwrap();
    for index in [index, open().0] {
        let mut hits = search
            .find(index.snapshot(), 3, &mut Room::new(&mut |_| Ok(())))
            .unwrap();
        for want in [31, 32, 30] {
            assert_eq!(hits.next().unwrap().unwrap().key, [want]);
        }
    }
}

#[test]
fn a_search_asks_for_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let d = r#"{"mappings": {"dynamic": true, "fields": {"cat": {"type": "token"}}}}"#;
    let (index, _) =
        SearchIndex::open(dir.path(), definition(d), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for i in 0..5000u32 {
        let doc = format!(r#"{{"cat": "c{i}", "n": {i}}}"#);
        writer.put(&i.to_be_bytes(), json(&doc).as_doc()).unwrap();
    }
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    let asked = |search: &str, most: usize| {
        let search = Search::parse(json(search).as_doc(), true).unwrap();
        let mut held = 0;
        let mut ask = |bytes: usize| {
            held = bytes;
            match bytes > most {
                true => Err(errors::err!(ExceededMemoryLimit, "{bytes}").into()),
                false => Ok(()),
            }
        };
        let room = &mut Room::new(&mut ask);
        let all = search.find(index.snapshot(), None, room).map(|h| h.len());
        let facets = search.meta(index.snapshot(), room, None).map(drop);
        (all.and(facets), held)
    };
    let facet = r#"{"facet": {"operator": {"range": {"path": "n", "gte": 0}}, "facets": {
        "s": {"type": "string", "path": "cat"}}}}"#;
    let (done, held) = asked(facet, usize::MAX);
    done.unwrap();
    // Hits, sets, and the strings that are counted.
    assert!(held > 5000 * (16 + 64), "{held}");
    assert!(asked(facet, held / 2).0.is_err());
}

pub(crate) fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Killed when the files of a commit were written, and the commit was not.
#[test]
fn what_a_killed_writer_has_left_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let (index, mut writer) = filled(&whole, &TEXTS);
    copy(&whole, &killed);
    let change = |writer: &mut IndexWriter| {
        writer.delete(&[2]);
        writer.commit(Position { index: 8, ts: 80 })
    };
    change(&mut writer).unwrap();
    for file in std::fs::read_dir(&whole).unwrap() {
        let file = file.unwrap();
        if file.path().extension().is_some_and(|e| e == "del") {
            std::fs::copy(file.path(), killed.join(file.file_name())).unwrap();
        }
    }
    std::fs::write(killed.join(".tmpXXXXXX"), "half").unwrap();
    drop((index, writer));
    let dynamic = definition(r#"{"mappings": {"dynamic": true}}"#);
    let (index, position) =
        SearchIndex::open(&killed, dynamic, "1", &DataFiles::default()).unwrap();
    assert_eq!(position, Some(Position { index: 7, ts: 70 }));
    change(&mut index.writer("1").unwrap()).unwrap();
    assert_eq!(index.snapshot().documents(), 4);
    assert!(!killed.join(".tmpXXXXXX").exists());
}

#[test]
fn query_strings_are_lucenes() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &TEXTS);
    let cases: [(&str, &[u8]); 16] = [
        ("quick", &[0, 2]),
        ("quick AND brown", &[0]),
        ("quick OR turtle", &[0, 1, 2]),
        ("quick turtle", &[0, 1, 2]),
        ("quick -rabbit", &[0]),
        ("+quick +rabbit", &[2]),
        ("quick AND NOT fox", &[2]),
        ("body:quick", &[1]),
        ("sub.title:quick OR body:nap", &[1, 4]),
        ("(quick OR slow) AND (fox OR turtle)", &[0, 1]),
        ("\\\"quick brown\\\"", &[0]),
        ("\\\"quick fox\\\"~1", &[0]),
        ("turtel~1", &[1]),
        ("qu*", &[0, 2]),
        ("n:[2 TO *]", &[1, 2]),
        ("n:{1 TO 3}^2", &[1]),
    ];
    for (query, want) in cases {
        let search =
            format!(r#"{{"queryString": {{"defaultPath": "title", "query": "{query}"}}}}"#);
        assert_eq!(keys(&index, &search), want, "{query}");
    }
    for bad in [
        "quick AND AND",
        "(quick",
        "OR",
        "\\\"quick",
        "n:[1 2]",
        "a:",
        ")",
        "x^y",
    ] {
        let search = format!(r#"{{"queryString": {{"defaultPath": "title", "query": "{bad}"}}}}"#);
        let said = Search::parse(json(&search).as_doc(), false).unwrap_err();
        assert!(said.is(errors::Code::UnknownError), "{bad}: {said}");
    }
}

#[test]
fn shapes_are_found_where_they_lie() {
    let dir = tempfile::tempdir().unwrap();
    let d = r#"{"mappings": {"fields": {"at": {"type": "geo", "indexShapes": true}, "p": {"type": "geo"}}}}"#;
    let (index, _) =
        SearchIndex::open(dir.path(), definition(d), "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for (i, (x, y)) in [
        (0.0, 0.0),
        (1.0, 1.0),
        (5.0, 5.0),
        (179.5, 0.0),
        (-179.5, 0.0),
    ]
    .iter()
    .enumerate()
    {
        let point = format!(r#"{{"type": "Point", "coordinates": [{x:.1}, {y:.1}]}}"#);
        let doc = format!(r#"{{"at": {point}, "p": {point}, "other": {point}}}"#);
        writer.put(&[i as u8], json(&doc).as_doc()).unwrap();
    }
    let square =
        r#"{"type": "Polygon", "coordinates": [[[4, 4], [4, 6], [6, 6], [6, 4], [4, 4]]]}"#;
    writer
        .put(
            &[9],
            json(&format!(r#"{{"at": {square}, "p": 3}}"#)).as_doc(),
        )
        .unwrap();
    writer.commit(Position { index: 1, ts: 1 }).unwrap();
    let corner =
        |x: f64, y: f64| format!(r#"{{"type": "Point", "coordinates": [{x:.1}, {y:.1}]}}"#);
    let boxed = |low: String, high: String| {
        format!(
            r#"{{"geoWithin": {{"path": "p", "box": {{"bottomLeft": {low}, "topRight": {high}}}}}}}"#
        )
    };
    let big =
        r#"{"type": "Polygon", "coordinates": [[[-1, -1], [-1, 8], [8, 8], [8, -1], [-1, -1]]]}"#;
    let shape = |relation: &str, geometry: &str| {
        format!(
            r#"{{"geoShape": {{"path": "at", "relation": "{relation}", "geometry": {geometry}}}}}"#
        )
    };
    let center = corner(0.0, 0.0);
    let cases: [(String, &[u8]); 8] = [
        (boxed(corner(-1.0, -1.0), corner(2.0, 2.0)), &[0, 1]),
        (boxed(corner(179.0, -1.0), corner(-179.0, 1.0)), &[3, 4]),
        (
            format!(
                r#"{{"geoWithin": {{"path": "p", "circle": {{"center": {center}, "radius": 200000}}}}}}"#
            ),
            &[0, 1],
        ),
        (
            format!(r#"{{"geoWithin": {{"path": "p", "geometry": {big}}}}}"#),
            &[0, 1, 2],
        ),
        (shape("within", big), &[0, 1, 2, 9]),
        (shape("intersects", square), &[2, 9]),
        (shape("disjoint", big), &[3, 4]),
        (shape("contains", &corner(5.5, 5.5)), &[9]),
    ];
    for (search, want) in cases {
        assert_eq!(keys(&index, &search), want, "{search}");
    }
    // A shape of so many bytes is not in the index.
    let ring: Vec<String> = (0..=360)
        .map(|i| f64::from(i % 360).to_radians())
        .map(|a| format!("[{:.6}, {:.6}]", 50.0 + a.cos(), 50.0 + a.sin()))
        .collect();
    let ring = ring.join(", ");
    let ring = format!(r#"{{"at": {{"type": "Polygon", "coordinates": [[{ring}]]}}}}"#);
    assert!(json(&ring).as_doc().len() > 8_192);
    writer.put(&[10], json(&ring).as_doc()).unwrap();
    writer.commit(Position { index: 2, ts: 2 }).unwrap();
    let far = corner(50.0, 50.0);
    assert_eq!(keys(&index, &shape("contains", &far)), [0u8; 0]);
    let near = found(
        &index,
        &format!(r#"{{"near": {{"path": "p", "origin": {center}, "pivot": 1000}}}}"#),
    );
    assert_eq!(
        near.iter().take(3).map(|(k, _)| *k).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(near.first().map(|(_, s)| *s), Some(1.0));
    for bad in [
        boxed(corner(0.0, 0.0), corner(0.0, 100.0)),
        r#"{"geoWithin": {"path": "p"}}"#.to_string(),
        shape("touches", big),
        shape("within", &center),
    ] {
        let said = Search::parse(json(&bad).as_doc(), false).unwrap_err();
        assert!(said.is(errors::Code::UnknownError), "{bad}: {said}");
    }
}

#[test]
fn stored_sources_are_projections() {
    let stored = |said: &str| {
        let d = format!(r#"{{"mappings": {{"dynamic": true}}, "storedSource": {said}}}"#);
        Definition::parse(Kind::Search, json(&d).as_doc())
    };
    let search = json(r#"{"exists": {"path": "a"}, "returnStoredSource": true}"#);
    let search = Search::parse(search.as_doc(), false).unwrap();
    let given = |said: &str| search.stored(&stored(said).unwrap());
    assert!(given("true").unwrap().is_none());
    assert!(given(r#"{"exclude": ["_id"]}"#).unwrap().is_none());
    assert!(given("false").is_err(), "nothing is stored");
    for (said, want) in [
        (
            r#"{"include": ["a.b", "c", "a", "a-b", "c"]}"#,
            r#"{"a": 1, "a-b": 1, "c": 1}"#,
        ),
        (r#"{"exclude": ["_id", "b.c"]}"#, r#"{"b.c": 0}"#),
    ] {
        assert_eq!(given(said).unwrap(), Some(json(want)), "{said}");
    }
    for bad in [
        "1",
        "{}",
        r#"{"include": []}"#,
        r#"{"include": ["a"], "exclude": ["b"]}"#,
        r#"{"include": [3]}"#,
        r#"{"include": ["a..b"]}"#,
        r#"{"exclude": ["$a"]}"#,
    ] {
        assert!(stored(bad).is_err(), "{bad}");
    }
}

#[test]
fn fuzzy_takes_the_terms_that_are_nearest_for_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let texts = ["ins", "insrt", "insxy"].map(|w| format!(r#"{{"title": "{w}"}}"#));
    let texts = texts.each_ref().map(String::as_str);
    let (index, _writer) = filled(dir.path(), &texts);
    let of = |expansions: usize| {
        let fuzzy = format!(r#"{{"maxEdits": 2, "maxExpansions": {expansions}}}"#);
        let search =
            format!(r#"{{"text": {{"query": "insr", "path": "title", "fuzzy": {fuzzy}}}}}"#);
        keys(&index, &search)
    };
    // One edit of four letters, one of three, two of four.
    assert_eq!(of(1), [1]);
    assert_eq!(of(2), [0, 1]);
    assert_eq!(of(3), [0, 1, 2]);
}
