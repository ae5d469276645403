//! What a search shows beside documents: pages, highlights, how scores came about; and spans.

use crate::{Definition, IndexWriter, Kind, Position, Room, Search, SearchIndex, score_order};
use bson::{Doc, DocBuf, doc};
use encryption::DataFiles;
use std::sync::Arc;

fn json(text: &str) -> DocBuf {
    bson::json::parse(text).unwrap()
}

/// Documents under keys of a prefix and a number. Each is a commit.
fn filled(dir: &std::path::Path, docs: &[&str]) -> (Arc<SearchIndex>, IndexWriter) {
    let definition = json(
        r#"{"mappings": {"dynamic": true, "fields": {
            "name": {"type": "string", "multi": {"whole": {"type": "string", "analyzer": "lucene.keyword"}}}}}}"#,
    );
    let definition = Arc::new(Definition::parse(Kind::Search, definition.as_doc()).unwrap());
    let (index, _) = SearchIndex::open(dir, definition, "1", &DataFiles::default()).unwrap();
    let mut writer = index.writer("1").unwrap();
    for (i, d) in docs.iter().enumerate() {
        writer.put(&key(i), json(d).as_doc()).unwrap();
        writer.commit(Position { index: 7, ts: 70 }).unwrap();
    }
    (index, writer)
}

fn key(i: usize) -> [u8; 2] {
    [0xff, i as u8]
}

fn tie(key: &[u8]) -> &[u8] {
    &key[1..]
}

fn parsed(search: &str) -> Search {
    Search::parse(json(search).as_doc(), false).unwrap()
}

/// Numbers of documents and tokens of a page.
fn page(index: &SearchIndex, search: &Search, limit: Option<usize>) -> Vec<(u8, String)> {
    let mut ask = |_| Ok(());
    let mut room = Room::new(&mut ask);
    let mut hits = search
        .page(index.snapshot(), tie, limit, &mut room)
        .unwrap();
    let mut out = Vec::new();
    while let Some(hit) = hits.next().unwrap() {
        let token = search.pages.token(&score_order(hit.score), tie(&hit.key));
        out.push((hit.key[1], token.written()));
    }
    out
}

#[test]
fn pages_follow_one_another_whatever_is_written_between() {
    let dir = tempfile::tempdir().unwrap();
    // Two scores, each of several documents.
    let texts: Vec<String> = (0..9)
        .map(|i| match i % 3 {
            0 => r#"{"t": "fox fox"}"#.to_string(),
            _ => r#"{"t": "fox hen"}"#.to_string(),
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (index, mut writer) = filled(dir.path(), &texts);
    let fox = r#""text": {"query": "fox", "path": "t"}"#;
    let all = page(&index, &parsed(&format!("{{{fox}}}")), None);
    let order: Vec<u8> = all.iter().map(|(n, _)| *n).collect();
    assert_eq!(order, [0, 3, 6, 1, 2, 4, 5, 7, 8]);
    assert!(all.iter().map(|(_, token)| token).is_sorted());
    let side = |option: &str, at: usize, limit| {
        let search = format!(r#"{{{fox}, "{option}": "{}"}}"#, all[at].1);
        let page = page(&index, &parsed(&search), limit);
        page.into_iter().map(|(n, _)| n).collect::<Vec<u8>>()
    };
    assert_eq!(side("searchAfter", 1, Some(3)), [6, 1, 2]);
    assert_eq!(side("searchAfter", 4, None), [4, 5, 7, 8]);
    assert_eq!(side("searchAfter", 8, None), [0u8; 0]);
    assert_eq!(side("searchBefore", 4, Some(3)), [1, 6, 3]);
    assert_eq!(side("searchBefore", 0, None), [0u8; 0]);
    // Scores that no write changes. The document of the token is gone, and another one has moved in the index.
    let fox = r#""exists": {"path": "t"}"#;
    let all = page(&index, &parsed(&format!("{{{fox}}}")), None);
    writer.delete(&key(2));
    writer.put(&key(1), json(texts[1]).as_doc()).unwrap();
    writer.commit(Position { index: 8, ts: 80 }).unwrap();
    let side = |option: &str| {
        let search = format!(r#"{{{fox}, "{option}": "{}"}}"#, all[2].1);
        let page = page(&index, &parsed(&search), Some(3));
        page.into_iter().map(|(n, _)| n).collect::<Vec<u8>>()
    };
    assert_eq!(side("searchAfter"), [3, 4, 5]);
    assert_eq!(side("searchBefore"), [1, 0]);
}

fn highlights(search: &str, stored: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (index, _writer) = filled(dir.path(), &[]);
    let mut highlighter = parsed(search).highlighter(&index.snapshot()).unwrap();
    let told = highlighter.of(json(stored).as_doc()).unwrap();
    let mut out = String::new();
    for passage in told.as_val().as_array().unwrap().values() {
        let d = passage.as_doc().unwrap();
        assert!(d.get("score").unwrap().to_f64().unwrap() > 0.0);
        let path = d.get("path").unwrap();
        out += &path
            .as_str()
            .map_or_else(|| path.to_string(), str::to_string);
        out.push('=');
        for text in d.get("texts").unwrap().as_array().unwrap().values() {
            let text = text.as_doc().unwrap();
            let value = text.get("value").unwrap().as_str().unwrap();
            match text.get("type").unwrap().as_str() {
                Some("hit") => out += &format!("<{value}>"),
                _ => out += value,
            }
        }
        out.push('|');
    }
    out
}

#[test]
fn highlights_are_sentences_with_words_that_were_found() {
    let stored = r#"{"t": "The quick fox. Nobody saw it! A résumé of quick thinking.", "name": "Fox",
        "sub": [{"t": "lazy dog"}, {"t": "a dog's day"}]}"#;
    let cases = [
        (
            r#"{"text": {"query": "Quick", "path": "t"}, "highlight": {"path": "t"}}"#,
            "t=The <quick> fox. |t=A résumé of <quick> thinking.|",
        ),
        (
            r#"{"text": {"query": "quick", "path": "t"}, "highlight": {"path": "t", "maxNumPassages": 1}}"#,
            "t=The <quick> fox. |",
        ),
        (
            r#"{"text": {"query": "quick", "path": "t"}, "highlight": {"path": "t", "maxCharsToExamine": 20}}"#,
            "t=The <quick> fox. |",
        ),
        (
            r#"{"text": {"query": "resume", "path": "t", "fuzzy": {}}, "highlight": {"path": {"wildcard": "*"}}}"#,
            "t=A <résumé> of quick thinking.|",
        ),
        (
            r#"{"phrase": {"query": "quick fox", "path": "t"}, "highlight": {"path": "t"}}"#,
            "t=The <quick> <fox>. |",
        ),
        (
            r#"{"text": {"query": "dog", "path": "sub.t"}, "highlight": {"path": ["t", "sub.t"]}}"#,
            "sub.t=lazy <dog>|",
        ),
        (
            r#"{"wildcard": {"query": "th*", "path": "t", "allowAnalyzedField": true}, "highlight": {"path": "t"}}"#,
            "t=<The> quick fox. |t=A résumé of quick <thinking>.|",
        ),
        (
            r#"{"compound": {"must": [{"text": {"query": "fox", "path": {"wildcard": "*"}}}],
                "mustNot": [{"text": {"query": "quick", "path": "t"}}]}, "highlight": {"path": {"wildcard": "*"}}}"#,
            "name=<Fox>|t=The quick <fox>. |",
        ),
        (
            r#"{"text": {"query": "Fox", "path": {"value": "name", "multi": "whole"}},
                "highlight": {"path": {"value": "name", "multi": "whole"}}}"#,
            "{ value: \"name\", multi: \"whole\" }=<Fox>|",
        ),
        (
            r#"{"text": {"query": "none", "path": "t"}, "highlight": {"path": "t"}}"#,
            "",
        ),
        (
            r#"{"exists": {"path": "t"}, "highlight": {"path": "t"}}"#,
            "",
        ),
    ];
    let plain = |text: &str| text.replace(['"', ' '], "");
    for (search, want) in cases {
        assert_eq!(plain(&highlights(search, stored)), plain(want), "{search}");
    }
}

#[test]
fn the_details_of_a_score_come_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let texts = [r#"{"t": "quick brown fox"}"#, r#"{"t": "slow fox"}"#];
    let (index, _writer) = filled(dir.path(), &texts);
    let search = parsed(
        r#"{"compound": {"must": [{"text": {"query": "quick fox", "path": "t"}}],
            "should": [{"phrase": {"query": "quick brown", "path": "t", "score": {"boost": {"value": 2}}}}]},
            "scoreDetails": true}"#,
    );
    let mut room = |_| Ok(());
    let mut hits = search
        .find(index.snapshot(), None, &mut Room::new(&mut room))
        .unwrap();
    let hit = hits.next().unwrap().unwrap();
    let details = hit.details.unwrap();
    let value = |d: Doc<'_>| d.get("value").unwrap().to_f64().unwrap();
    assert_eq!(value(details.as_doc()), f64::from(hit.score));
    let parts = details.get("details").unwrap().as_array().unwrap();
    let sum: f64 = parts.values().map(|p| value(p.as_doc().unwrap())).sum();
    assert!(
        (sum - f64::from(hit.score)).abs() < 1e-5,
        "{sum} {}",
        hit.score
    );
    let text = details.as_doc().to_string();
    for part in [
        "sum of:",
        "product of:",
        "$type:string/t:quick [BM25Similarity]",
        "avgdl",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let plain = parsed(r#"{"text": {"query": "fox", "path": "t"}}"#);
    let mut hits = plain
        .find(index.snapshot(), None, &mut Room::new(&mut room))
        .unwrap();
    assert_eq!(hits.next().unwrap().unwrap().details, None);
}

#[test]
fn spans_are_found_in_documents() {
    let dir = tempfile::tempdir().unwrap();
    let texts = [
        r#"{"t": "quick brown fox", "u": "brown"}"#,
        r#"{"t": "brown quick"}"#,
        r#"{"t": ["quick", "brown"]}"#,
        r#"{"t": "the very quick red brown fox"}"#,
    ];
    let (index, _writer) = filled(dir.path(), &texts);
    let quick = r#"{"term": {"path": "t", "query": "Quick"}}"#;
    let brown = r#"{"term": {"path": ["t", "u"], "query": "brown"}}"#;
    let near = |rest: &str| format!(r#"{{"near": {{"clauses": [{quick}, {brown}], {rest}}}}}"#);
    let cases = [
        (quick.to_string(), vec![0, 1, 2, 3]),
        (near(r#""slop": 0, "inOrder": true"#), vec![0]),
        (near(r#""slop": 0"#), vec![0, 1]),
        (near(r#""slop": 1, "inOrder": true"#), vec![0, 3]),
        (near(r#""slop": 99, "inOrder": true"#), vec![0, 3]),
        (near(r#""slop": 100, "inOrder": true"#), vec![0, 2, 3]),
        (
            format!(r#"{{"first": {{"operator": {quick}, "endPositionLte": 1}}}}"#),
            vec![0, 2],
        ),
        (
            format!(r#"{{"first": {{"operator": {quick}}}}}"#),
            vec![0, 1, 2, 3],
        ),
        (
            format!(r#"{{"or": {{"clauses": [{brown}]}}}}"#),
            vec![0, 1, 2, 3],
        ),
        (
            format!(
                r#"{{"subtract": {{"include": {quick}, "exclude": {}}}}}"#,
                near(r#""slop": 1"#)
            ),
            vec![2],
        ),
    ];
    for (spans, want) in cases {
        let search = parsed(&format!(r#"{{"span": {spans}}}"#));
        let mut room = |_| Ok(());
        let mut hits = search
            .find(index.snapshot(), None, &mut Room::new(&mut room))
            .unwrap();
        let mut found = Vec::new();
        while let Some(hit) = hits.next().unwrap() {
            assert!(hit.score > 0.0);
            found.push(hit.key[1]);
        }
        found.sort();
        assert_eq!(found, want, "{spans}");
    }
    for bad in [
        doc! {"span": doc! {}},
        doc! {"span": doc! {"or": doc! {"clauses": bson::array![]}}},
        doc! {"span": doc! {"first": doc! {"operator": doc! {"text": doc! {}}}}},
    ] {
        assert!(Search::parse(bad.as_doc(), false).is_err(), "{bad:?}");
    }
}
