//! Elements of arrays and the documents around them, over an index on disk.

use crate::{Definition, IndexWriter, Kind, Position, Room, Search, SearchIndex, element};
use bson::DocBuf;
use encryption::DataFiles;
use std::sync::Arc;

fn json(text: &str) -> DocBuf {
    bson::json::parse(text).unwrap()
}

const DEFINITION: &str = r#"{"mappings": {"dynamic": true, "fields": {"g": {"type": "embeddedDocuments",
    "storedSource": true, "dynamic": true, "fields": {"t": {"type": "embeddedDocuments", "dynamic": true}}}}}}"#;

fn opened(dir: &std::path::Path) -> (Arc<SearchIndex>, IndexWriter) {
    let definition = Definition::parse(Kind::Search, json(DEFINITION).as_doc()).unwrap();
    let data = DataFiles::default();
    let (index, _) = SearchIndex::open(dir, Arc::new(definition), "1", &data).unwrap();
    let writer = index.writer("1").unwrap();
    (index, writer)
}

const AT: Position = Position { index: 7, ts: 70 };

fn ask(index: &SearchIndex, search: &str) -> errors::Result<Vec<(u8, Option<u64>, f32)>> {
    let search = Search::parse(json(search).as_doc(), false)?;
    let mut ask = |_| Ok(());
    let mut hits = search.find(index.snapshot(), None, &mut Room::new(&mut ask))?;
    let mut out = Vec::new();
    while let Some(hit) = hits.next()? {
        out.push((hit.key[0], hit.element, hit.score));
    }
    out.sort_by_key(|hit| (hit.0, hit.1));
    Ok(out)
}

fn keys(index: &SearchIndex, search: &str) -> Vec<u8> {
    ask(index, search)
        .unwrap()
        .into_iter()
        .map(|h| h.0)
        .collect()
}

fn filled(dir: &std::path::Path) -> (Arc<SearchIndex>, IndexWriter) {
    let (index, mut writer) = opened(dir);
    let docs = [
        r#"{"name": "one", "g": [{"k": "a", "t": [{"n": "red"}, {"n": "blue"}]}, {"k": "b", "t": [{"n": "blue"}]}]}"#,
        r#"{"name": "two", "g": [{"k": "b", "t": [{"n": "red"}]}, {"k": "a"}]}"#,
        r#"{"name": "three", "g": {"k": "a", "t": {"n": "red"}}}"#,
        r#"{"name": "four"}"#,
    ];
    for (i, d) in docs.iter().enumerate() {
        writer.put(&[i as u8], json(d).as_doc()).unwrap();
        writer.commit(AT).unwrap();
    }
    (index, writer)
}

fn of_g(operator: &str) -> String {
    format!(r#"{{"embeddedDocument": {{"path": "g", "operator": {operator}}}}}"#)
}

#[test]
fn conditions_are_met_by_one_element() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = filled(dir.path());
    let k = |k: &str| format!(r#"{{"text": {{"path": "g.k", "query": "{k}"}}}}"#);
    let t = |n: &str| {
        format!(
            r#"{{"embeddedDocument": {{"path": "g.t", "operator": {{"text": {{"path": "g.t.n", "query": "{n}"}}}}}}}}"#
        )
    };
    assert_eq!(keys(&index, &of_g(&k("a"))), [0, 1, 2]);
    let both = format!(r#"{{"compound": {{"must": [{}, {}]}}}}"#, k("a"), t("red"));
    assert_eq!(keys(&index, &of_g(&both)), [0, 2]);
    // Straight through both arrays, from the document.
    assert_eq!(keys(&index, &t("red")), [0, 1, 2]);
    assert_eq!(keys(&index, &t("blue")), [0]);
    let without = format!(r#"{{"compound": {{"mustNot": [{}]}}}}"#, k("a"));
    assert_eq!(keys(&index, &of_g(&without)), [0, 1]);
    // Elements are no documents.
    assert_eq!(keys(&index, &k("a")), [] as [u8; 0]);
    let not = format!(r#"{{"compound": {{"mustNot": [{}]}}}}"#, of_g(&k("a")));
    assert_eq!(keys(&index, &not), [3]);
    assert_eq!(index.snapshot().documents(), 4);
    writer.delete(&[0]);
    writer
        .put(&[1], json(r#"{"g": [{"k": "c"}]}"#).as_doc())
        .unwrap();
    writer.commit(AT).unwrap();
    assert_eq!(keys(&index, &of_g(&k("a"))), [2]);
    assert_eq!(index.snapshot().documents(), 3);
}

#[test]
fn elements_lie_before_their_documents_after_merges() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = opened(dir.path());
    for round in 0..40u8 {
        for n in 0..5u8 {
            let text = format!(
                r#"{{"g": [{{"k": "r{round}", "t": [{{"n": "n{n}"}}]}}, {{"k": "other"}}]}}"#
            );
            writer.put(&[round, n], json(&text).as_doc()).unwrap();
        }
        writer.commit(AT).unwrap();
    }
    writer.close().unwrap();
    for round in [0, 7, 39] {
        let wanted = of_g(&format!(
            r#"{{"compound": {{"must": [{{"text": {{"path": "g.k", "query": "r{round}"}}}},
                {{"embeddedDocument": {{"path": "g.t", "operator": {{"text": {{"path": "g.t.n", "query": "n3"}}}}}}}}]}}}}"#
        ));
        assert_eq!(keys(&index, &wanted), [round]);
    }
}

#[test]
fn scores_of_elements_are_put_together() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut writer) = opened(dir.path());
    let doc = r#"{"g": [{"k": "a", "w": 1}, {"k": "a", "w": 1}, {"k": "a b", "w": 1}]}"#;
    writer.put(&[0], json(doc).as_doc()).unwrap();
    writer.commit(AT).unwrap();
    let score = |score: &str| {
        let operator = r#"{"compound": {"should": [
            {"text": {"path": "g.k", "query": "a", "score": {"constant": {"value": 2}}}},
            {"text": {"path": "g.k", "query": "b", "score": {"constant": {"value": 3}}}}]}}"#;
        let search = format!(
            r#"{{"embeddedDocument": {{"path": "g", "operator": {operator}, "score": {{{score}}}}}}}"#
        );
        ask(&index, &search).map(|hits| hits[0].2)
    };
    let aggregate =
        |name: &str| score(&format!(r#""embedded": {{"aggregate": "{name}"}}"#)).unwrap();
    assert_eq!(aggregate("sum"), 9.0);
    assert_eq!(aggregate("maximum"), 5.0);
    assert_eq!(aggregate("minimum"), 2.0);
    assert_eq!(aggregate("mean"), 3.0);
    assert_eq!(score(r#""embedded": {}"#).unwrap(), 9.0);
    assert_eq!(score(r#""boost": {"value": 2}"#).unwrap(), 18.0);
    let outer = r#""embedded": {"aggregate": "mean", "outerScore": {"boost": {"value": 10}}}"#;
    assert_eq!(score(outer).unwrap(), 30.0);
    assert!(score(r#""embedded": {"aggregate": "median"}"#).is_err());
    assert!(score(r#""embedded": {"more": 1}"#).is_err());
}

#[test]
fn elements_are_found_by_what_lies_around_them() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path());
    let scoped = |operator: &str| {
        let search = format!(
            r#"{{{operator}, "returnStoredSource": true, "returnScope": {{"path": "g"}}}}"#
        );
        ask(&index, &search)
    };
    let places = |operator: &str| -> Vec<(u8, u64)> {
        let hits = scoped(operator).unwrap();
        hits.into_iter().map(|h| (h.0, h.1.unwrap())).collect()
    };
    let red = r#"{"path": "g.t", "operator": {"text": {"path": "g.t.n", "query": "red"}}}"#;
    assert_eq!(
        places(&format!(r#""embeddedDocument": {red}"#)),
        [(0, 0), (1, 0), (2, 0)]
    );
    assert_eq!(
        places(r#""text": {"path": "g.k", "query": "b"}"#),
        [(0, 1), (1, 0)]
    );
    let root = |name: &str| {
        format!(r#"{{"operator": {{"text": {{"path": "name", "query": "{name}"}}}}}}"#)
    };
    assert_eq!(
        places(&format!(r#""hasRoot": {}"#, root("one"))),
        [(0, 0), (0, 1)]
    );
    let both = format!(
        r#""compound": {{"must": [{{"text": {{"path": "g.k", "query": "b"}}}}, {{"hasRoot": {}}}]}}"#,
        root("two")
    );
    assert_eq!(places(&both), [(1, 0)]);
    // From elements of elements up to those around them.
    let inner = r#"{"compound": {"must": [{"text": {"path": "g.t.n", "query": "blue"}},
        {"hasAncestor": {"ancestorPath": "g", "operator": {"text": {"path": "g.k", "query": "b"}}}}]}}"#;
    let around = format!(r#"{{"embeddedDocument": {{"path": "g.t", "operator": {inner}}}}}"#);
    assert_eq!(keys(&index, &around), [0]);
    let wrong = [
        r#""hasAncestor": {"ancestorPath": "g", "operator": {"exists": {"path": "name"}}}"#,
        r#""hasAncestor": {"operator": {"exists": {"path": "name"}}}"#,
        r#""hasRoot": {}"#,
        r#""embeddedDocument": {"path": "g", "operator": {"exists": {"path": "g.k"}}}"#,
    ];
    for operator in wrong {
        assert!(scoped(operator).is_err(), "{operator}");
    }
    assert!(ask(&index, &format!(r#"{{"hasRoot": {}}}"#, root("one"))).is_err());
    assert!(
        ask(
            &index,
            r#"{"embeddedDocument": {"path": "name", "operator": {"exists": {"path": "name"}}}}"#
        )
        .is_err()
    );
    let doc = json(r#"{"g": [{"k": 1}, {"k": 2}]}"#);
    assert_eq!(element(doc.as_doc(), "g", 1), Some(json(r#"{"k": 2}"#)));
}
