//! A search and a text, parted by a line's end, in a language and a version that the first byte names: a
//! document found by its terms has one of them in its index entries, and no other scores.

use std::sync::Arc;
use text::{Matcher, TextExpression, TextIndex};

const LANGUAGES: [&str; 16] = [
    "none",
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
];

pub fn searches(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let rest = String::from_utf8_lossy(rest);
    let (asked, text) = rest.split_once('\n').unwrap_or((&rest, &rest));
    let spec = bson::doc! {
        "key": bson::doc! { "a": "text" },
        "default_language": LANGUAGES[usize::from(first & 15)],
        "textIndexVersion": i32::from(first >> 4 & 3).clamp(1, 3),
    };
    let spec = TextIndex::normalize(spec.as_doc()).expect("a good specification");
    let index = Arc::new(TextIndex::of_spec(spec.as_doc()).expect("a normal specification"));
    let document = bson::doc! { "a": text };
    let entries = index
        .terms(document.as_doc())
        .expect("no language of its own");
    let search = bson::doc! {
        "$search": asked,
        "$caseSensitive": first & 64 != 0,
        "$diacriticSensitive": first & 128 != 0,
    };
    let search = TextExpression::parse(search.as_doc()).expect("a good search");
    let matcher = Matcher::new(&search, index).expect("a known language");
    let found = matcher
        .parsed
        .bounds
        .iter()
        .any(|t| entries.contains_key(t));
    let matches = matcher.matches(document.as_doc(), &|| true);
    if matcher.is_by_terms() {
        assert_eq!(matches, found);
    }
    assert_eq!(matcher.score(document.as_doc()) > 0.0, found);
    assert!(
        entries
            .values()
            .all(|score| *score > 0.0 && score.is_finite())
    );
}
