//! Words, scores, searches and specifications, case by case; and whatever texts there may be.

use crate::{Matcher, TextExpression, TextIndex};
use bson::{Doc, DocBuf, json};
use std::sync::Arc;

fn doc(text: &str) -> DocBuf {
    json::parse(text).unwrap()
}

fn index(spec: &str) -> Arc<TextIndex> {
    let spec = TextIndex::normalize(doc(spec).as_doc()).unwrap();
    Arc::new(TextIndex::of_spec(spec.as_doc()).unwrap())
}

fn terms(spec: &str, document: &str) -> String {
    let all = index(spec).terms(doc(document).as_doc());
    match all {
        Ok(all) => all
            .iter()
            .map(|(t, s)| format!("{t}:{s} "))
            .collect::<String>()
            .trim()
            .to_string(),
        Err(e) => e.code.0.to_string(),
    }
}

fn matcher(spec: &str, search: &str) -> Matcher {
    let search = TextExpression::parse(doc(search).as_doc()).unwrap();
    Matcher::new(&search, index(spec)).unwrap()
}

const A: &str = r#"{"key": {"a": "text"}}"#;

#[test]
fn scores_of_a_documents_terms() {
    for (spec, document, want) in [
        (A, r#"{"a": "coffee"}"#, "coffe:1"),
        (A, r#"{"a": "Coffee coffee coffee"}"#, "coffe:1.75"),
        (A, r#"{"a": "cake"}"#, "cake:1.1"),
        (A, r#"{"a": "the cake of cakes"}"#, "cake:1.5"),
        (A, r#"{"a": "big cake"}"#, "big:0.75 cake:0.75"),
        (
            A,
            r#"{"a": ["cake", "big cake"], "b": "pie"}"#,
            "big:0.75 cake:1.85",
        ),
        (A, r#"{"a": {"b": "cake"}}"#, ""),
        (A, r#"{"a": [["cake"]]}"#, ""),
        (A, r#"{"a": "los perros", "language": "es"}"#, "perr:1"),
        (A, r#"{"a": "los perros", "language": "xx"}"#, "17262"),
        (A, r#"{"a": "los perros", "language": 1}"#, "17261"),
        (
            A,
            r#"{"a": "café Ünïcode naïve"}"#,
            "cafe:0.6666666666666666 naiv:0.6666666666666666 unicode:0.6666666666666666",
        ),
        (
            r#"{"key": {"a.b": "text"}, "weights": {"a.b": 3}}"#,
            r#"{"a": [{"b": "cake"}, {"b": "pie", "language": "none"}]}"#,
            "cake:3.3000000000000003 pie:3.3000000000000003",
        ),
        (
            r#"{"key": {"$**": "text"}}"#,
            r#"{"a": {"b": "cake"}, "c": [["pie"]], "language": "english"}"#,
            "cake:1.1 pie:1.1",
        ),
        (
            r#"{"key": {"a": "text"}, "textIndexVersion": 2}"#,
            r#"{"a": "Café cakes—pies"}"#,
            "café:0.75 cakes—pi:0.75",
        ),
        (
            r#"{"key": {"a": "text"}, "textIndexVersion": 1}"#,
            r#"{"a": ["x", "y"], "language": "klingon"}"#,
            "x:1.1 y:1.1",
        ),
    ] {
        assert_eq!(terms(spec, document), want, "{spec} of {document}");
    }
}

#[test]
fn searches_match() {
    let fox = r#"{"a": "The Quick brown foxes jumped, don't they? Café"}"#;
    for (search, document, want) in [
        (r#"{"$search": "fox"}"#, fox, true),
        (r#"{"$search": "FOXES"}"#, fox, true),
        (r#"{"$search": "the"}"#, fox, false),
        (r#"{"$search": "dog fox"}"#, fox, true),
        (r#"{"$search": "fox -brown"}"#, fox, false),
        (r#"{"$search": "fox - brown"}"#, fox, true),
        (r#"{"$search": "fox -jump-brown"}"#, fox, false),
        (r#"{"$search": "\"quick BROWN\""}"#, fox, true),
        (r#"{"$search": "\"brown quick\""}"#, fox, false),
        (r#"{"$search": "fox -\"quick brown\""}"#, fox, false),
        (r#"{"$search": "fox -\"brown quick\""}"#, fox, true),
        (r#"{"$search": "\"quick brown\" \"cafe\""}"#, fox, true),
        (r#"{"$search": "\"quick brown\" \"tea\""}"#, fox, false),
        (
            r#"{"$search": "quick", "$caseSensitive": true}"#,
            fox,
            false,
        ),
        (r#"{"$search": "Quick", "$caseSensitive": true}"#, fox, true),
        (
            r#"{"$search": "\"quick brown\"", "$caseSensitive": true}"#,
            fox,
            false,
        ),
        (r#"{"$search": "cafe"}"#, fox, true),
        (
            r#"{"$search": "cafe", "$diacriticSensitive": true}"#,
            fox,
            false,
        ),
        (
            r#"{"$search": "café", "$diacriticSensitive": true}"#,
            fox,
            true,
        ),
        (r#"{"$search": "\"unclosed brown"}"#, fox, true),
        (r#"{"$search": "-brown"}"#, fox, false),
        (r#"{"$search": ""}"#, fox, false),
    ] {
        assert_eq!(
            matcher(A, search).matches(doc(document).as_doc(), &|| true),
            want,
            "{search}"
        );
    }
}

#[test]
fn a_match_scores_what_its_entries_do() {
    let m = matcher(A, r#"{"$search": "cake tea \"big cake\""}"#);
    let d = doc(r#"{"a": ["big cake", "cake", "pie"]}"#);
    let entries = m.index.terms(d.as_doc()).unwrap();
    assert_eq!(m.score(d.as_doc()), entries["big"] + entries["cake"]);
    assert_eq!(m.score(d.as_doc()), 0.75 + 0.75 + 1.1);
}

#[test]
fn specifications() {
    let normal = |s: &str| TextIndex::normalize(doc(s).as_doc());
    let kept = normal(
        r#"{"v": 2, "key": {"x": 1, "b": "text", "a": "text", "y": -1}, "name": "n", "weights": {"c": 5}}"#,
    );
    assert_eq!(
        kept.unwrap().as_doc().to_string(),
        doc(r#"{"v": 2, "key": {"x": 1, "_fts": "text", "_ftsx": 1, "y": -1}, "name": "n", "weights": {"a": 1, "b": 1, "c": 5}, "default_language": "english", "language_override": "language", "textIndexVersion": 3}"#).as_doc().to_string()
    );
    let again = normal(r#"{"key": {"_fts": "text", "_ftsx": 1}, "weights": {"a": 2}}"#).unwrap();
    assert_eq!(
        normal(&again.as_doc().to_string())
            .unwrap()
            .as_doc()
            .to_string(),
        again.as_doc().to_string()
    );
    for s in [
        r#"{"key": {"a": "text", "b": 1, "c": "text"}}"#,
        r#"{"key": {"a": "text", "b": "2dsphere"}}"#,
        r#"{"key": {"a": "text", "b": 2}}"#,
        r#"{"key": {"_fts": "text"}}"#,
        r#"{"key": {"_fts": "text", "_ftsx": 1}}"#,
        r#"{"key": {"a": "text"}, "weights": {"a": 0}}"#,
        r#"{"key": {"a": "text"}, "weights": {"a": 100000}}"#,
        r#"{"key": {"a": "text"}, "weights": {"b..c": 1}}"#,
        r#"{"key": {"a": "text"}, "weights": {"$b": 1}}"#,
        r#"{"key": {"a": "text"}, "weights": "a"}"#,
        r#"{"key": {"a": "text"}, "textIndexVersion": 4}"#,
        r#"{"key": {"a": "text"}, "default_language": "latin"}"#,
        r#"{"key": {"a": "text"}, "language_override": "a.b"}"#,
    ] {
        assert_eq!(normal(s).unwrap_err().code.0, 67, "{s}");
    }
}

#[test]
fn bad_searches() {
    for (s, code) in [
        (r#"{}"#, 4),
        (r#"{"$search": 1}"#, 14),
        (r#"{"$search": "a", "$language": 1}"#, 14),
        (r#"{"$search": "a", "$caseSensitive": 1}"#, 14),
        (r#"{"$search": "a", "$language": "latin"}"#, 2),
        (r#"{"$search": "a", "x": 1}"#, 2),
    ] {
        assert_eq!(
            TextExpression::parse(doc(s).as_doc()).unwrap_err().code.0,
            code,
            "{s}"
        );
    }
}

/// Each language stems and leaves out its stop words.
#[test]
fn languages() {
    for (language, text, want) in [
        ("danish", "og kager", "kag"),
        ("dutch", "de katten", "kat"),
        ("english", "the running", "run"),
        ("finnish", "ja talossa", "talo"),
        ("french", "les chevaux", "cheval"),
        ("german", "die katzen", "katz"),
        ("hungarian", "a házak", "haz"),
        ("italian", "le gatte", "gatt"),
        ("nb", "og kattene", "katt"),
        ("portuguese", "os gatos", "gat"),
        ("romanian", "acest pisicile", "pisic"),
        ("russian", "и кошки", "кошк"),
        ("spanish", "los gatos", "gat"),
        ("swedish", "och katterna", "katt"),
        ("turkish", "ve kediler", "kedi"),
        ("none", "The Running", "running the"),
    ] {
        let spec = format!(r#"{{"key": {{"a": "text"}}, "default_language": "{language}"}}"#);
        let d = bson::doc! { "a": text };
        let all = index(&spec).terms(d.as_doc()).unwrap();
        let words: Vec<&str> = all.keys().map(String::as_str).collect();
        assert_eq!(words.join(" "), want, "{language}");
    }
}

/// Whatever the texts are, nothing panics, and a document is found by each of its own terms.
#[test]
fn any_text() {
    use rand::{Rng, SeedableRng};
    let seed = std::env::var("PANDO_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("PANDO_SEED={seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let letters: Vec<char> = "aeiouäéıIİßſςтьюя'\"- \t\n\0^`_.,–“”日本\u{301}\u{345}𝔘yYqungsed"
        .chars()
        .collect();
    let languages = [
        "danish",
        "dutch",
        "english",
        "finnish",
        "french",
        "german",
        "hungarian",
        "italian",
        "norwegian",
        "portuguese",
        "romanian",
        "russian",
        "spanish",
        "swedish",
        "turkish",
        "none",
    ];
    for _ in 0..4000 {
        let any = |rng: &mut rand::rngs::StdRng| -> String {
            let n = rng.random_range(0..24);
            (0..n)
                .map(|_| match rng.random_range(0..12) {
                    0 => rng.random::<char>(),
                    _ => letters[rng.random_range(0..letters.len())],
                })
                .collect()
        };
        let language = languages[rng.random_range(0..languages.len())];
        let version = rng.random_range(1..4);
        let spec = format!(
            r#"{{"key": {{"a": "text"}}, "default_language": "{language}", "textIndexVersion": {version}}}"#
        );
        let index = index(&spec);
        let text = any(&mut rng);
        let d = bson::doc! { "a": text.as_str() };
        let entries = index.terms(d.as_doc()).unwrap();
        for sensitive in [false, true] {
            let search = bson::doc! { "$search": any(&mut rng).as_str(), "$caseSensitive": sensitive,
            "$diacriticSensitive": rng.random::<bool>() };
            let m = Matcher::new(
                &TextExpression::parse(search.as_doc()).unwrap(),
                index.clone(),
            )
            .unwrap();
            let found = m.parsed.bounds.iter().any(|t| entries.contains_key(t));
            // Not the other way round: a stop word of the document, which has no entry, may equal a word
            // of the search without its diacritics.
            if m.is_by_terms() && found {
                assert!(
                    m.matches(d.as_doc(), &|| true),
                    "{text:?} by {search:?} in {language}"
                );
            }
            assert_eq!(m.score(d.as_doc()) > 0.0, found);
        }
        let _ = Doc::EMPTY;
    }
}

/// A word of any length is gone over once; of the terms of a document as many are made as are
/// wanted.
#[test]
fn long_words_and_many() {
    let long = "y".repeat(2000);
    let of = |word: &str| terms(A, &format!(r#"{{"a": "{word}ing cakes"}}"#));
    assert!(of("walk").contains("walk:"));
    assert!(of(&long).contains(&format!("{long}ing:")));
    let words: Vec<String> = (0..1000).map(|n| format!("w{n}")).collect();
    let document = doc(&format!(r#"{{"a": "{}"}}"#, words.join(" ")));
    let (mut asked, mut bytes) = (0, 0);
    let all = index(A).terms_while(document.as_doc(), &mut |word, _| {
        (asked, bytes) = (asked + 1, bytes + word);
        true
    });
    assert_eq!(all.unwrap().unwrap().len(), 1000);
    assert!(asked >= 1000 && bytes >= 3000);
    let mut most = 0;
    let ended = index(A).terms_while(document.as_doc(), &mut |_, terms| {
        most = terms;
        terms < 10
    });
    assert!(ended.unwrap().is_none() && most == 10);
}

/// A search may be as long as a command.
#[test]
fn a_long_search_can_be_ended() {
    let words: Vec<String> = (0..10_000).map(|n| format!("w{n}")).collect();
    let search = doc(&format!(r#"{{"$search": "{}"}}"#, words.join(" ")));
    let search = TextExpression::parse(search.as_doc()).unwrap();
    let asked = std::cell::Cell::new(0);
    let made = |most: usize| {
        asked.set(0);
        let ask = |_: Option<std::time::Instant>| {
            asked.set(asked.get() + 1);
            match asked.get() > most {
                true => Err(errors::err!(Interrupted, "enough")),
                false => Ok(()),
            }
        };
        errors::operation::asking(None, &ask, || Matcher::new(&search, index(A)))
    };
    let ended = made(2).expect_err("it went on to its end");
    assert_eq!(ended.code, errors::Code::Interrupted);
    assert!(asked.get() < 12, "{}", asked.get());
    let whole = made(usize::MAX).expect("nobody ends it");
    assert!(whole.parsed.terms.len() == 10_000 && asked.get() > 20);
}

/// An index is asked for some phrases, a document for all; and each is asked for before the document
/// is gone over for it.
#[test]
fn many_phrases() {
    let phrases: Vec<String> = (0..1000).map(|n| format!(r#"\"q{n} z\""#)).collect();
    let search = format!(r#"{{"$search": "{}"}}"#, phrases.join(" "));
    let m = matcher(A, &search);
    assert!(m.parsed.phrase_terms.len() < 100 && m.parsed.phrases.len() == 1000);
    let every: Vec<String> = (0..1000).map(|n| format!("q{n} z")).collect();
    let has = |phrases: &[String]| {
        let asked = std::cell::Cell::new(0);
        let document = doc(&format!(r#"{{"a": "{}"}}"#, phrases.join(" ")));
        let going = || {
            asked.set(asked.get() + 1);
            asked.get() < 2000
        };
        (m.matches(document.as_doc(), &going), asked.get())
    };
    assert_eq!(has(&every), (true, 1002));
    assert!(!has(&every[..999]).0);
    assert!(!m.matches(doc(r#"{"a": "q0 z"}"#).as_doc(), &|| false));
}
