//! Synonyms: which words a search takes for others, as a collection says it.
//!
//! ```text
//! {mappingType: "equivalent", synonyms: ["car", "motor vehicle"]}                 each stands for the others too
//! {mappingType: "explicit", input: ["beer"], synonyms: ["beer", "brew"]}          the input stands for these
//! ```
//! The words of a search become a graph: where some have synonyms, these stand beside them, each from the first
//! position to the last.
//!
//! Source: MongoDB's manual, "Synonyms"; Lucene's `SynonymMap` and `SynonymGraphFilter`: the longest input counts.

use crate::analysis::{self, Analyzer, Analyzers, Token};
use crate::definition::string;
use crate::problem::{wrong, wrong_definition};
use bson::{Doc, Val};
use errors::Result;
use errors::operation::step;
use std::collections::HashMap;
use std::sync::Arc;

/// The most bytes of all words of a mapping.
const MOST_BYTES: usize = 32 << 20;
/// The most words that one document names, since each stands for each.
const MOST_EQUIVALENT: usize = 1_000;
/// The most words of one synonym.
const MOST_WORDS: usize = 64;
/// Between the words of one synonym.
const SEPARATOR: char = '\0';

/// A mapping of a definition: `{name, analyzer, source: {collection}}`.
#[derive(Clone, Debug)]
pub struct SynonymSource {
    pub name: String,
    pub analyzer: Analyzer,
    /// In the database of the index.
    pub collection: String,
}

/// What `synonyms` of a definition names.
pub(crate) fn parse(d: Doc<'_>, custom: &Analyzers) -> Result<Vec<SynonymSource>> {
    let Some(v) = d.get("synonyms").filter(|v| !v.is_nullish()) else {
        return Ok(Vec::new());
    };
    let Some(list) = v.as_array() else {
        return Err(wrong_definition("\"synonyms\" must be a list of documents"));
    };
    let mut out: Vec<SynonymSource> = Vec::new();
    for (n, v) in list.values().enumerate() {
        step()?;
        let at = format!("synonyms[{n}]");
        let one = source(&at, v, custom)?;
        if out.iter().any(|s| s.name == one.name) {
            return Err(wrong_definition(format!(
                "\"synonyms\" has two mappings with the name {}",
                one.name
            )));
        }
        out.push(one);
    }
    Ok(out)
}

fn source(at: &str, v: Val<'_>, custom: &Analyzers) -> Result<SynonymSource> {
    let Some(d) = v.as_doc() else {
        return Err(wrong_definition(format!("\"{at}\" must be a document")));
    };
    let known = ["name", "analyzer", "source"];
    if let Some(e) = d.iter().find(|e| !known.contains(&e.name)) {
        let name = e.name;
        return Err(wrong_definition(format!(
            "unrecognized field \"{at}.{name}\""
        )));
    }
    let required = |d: Doc<'_>, at: &str, name: &str| match string(d, name)? {
        Some(s) if !s.is_empty() => Ok(s.to_string()),
        Some(_) => Err(wrong_definition(format!("\"{at}.{name}\" cannot be empty"))),
        None => Err(wrong_definition(format!("\"{at}.{name}\" is required"))),
    };
    let name = required(d, at, "name")?;
    let given = required(d, at, "analyzer")?;
    let Some(analyzer) = analysis::named(&given, custom) else {
        return Err(wrong_definition(format!(
            "\"{at}.analyzer\" is not a supported analyzer: {given}"
        )));
    };
    if !analyzer.suits_synonyms() {
        return Err(wrong_definition(format!(
            "\"{at}.analyzer\" cannot be used with synonyms: {given}"
        )));
    }
    let Some(from) = d.get("source").and_then(|v| v.as_doc()) else {
        return Err(wrong_definition(format!(
            "\"{at}.source\" must be a document"
        )));
    };
    let at = format!("{at}.source");
    if let Some(e) = from.iter().find(|e| e.name != "collection") {
        let name = e.name;
        return Err(wrong_definition(format!(
            "unrecognized field \"{at}.{name}\""
        )));
    }
    Ok(SynonymSource {
        name,
        analyzer,
        collection: required(from, &at, "collection")?,
    })
}

/// What stands for some words.
#[derive(Debug, Default)]
struct Entry {
    /// They stay too.
    original: bool,
    outputs: Vec<Arc<str>>,
}

/// The synonyms of a mapping, by the words that a search has.
#[derive(Debug)]
pub struct SynonymMap {
    analyzer: Analyzer,
    entries: HashMap<Arc<str>, Entry>,
    /// The most words of an input.
    longest: usize,
    bytes: usize,
}

/// A mapping as its collection says it; or what is wrong with a document there.
pub type Synonyms = std::result::Result<Arc<SynonymMap>, String>;

impl SynonymMap {
    /// Without entries.
    pub fn new(source: &SynonymSource) -> SynonymMap {
        SynonymMap {
            analyzer: source.analyzer.clone(),
            entries: HashMap::new(),
            longest: 0,
            bytes: 0,
        }
    }

    /// About what it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what a document of the collection says; the error tells what is wrong with it.
    pub fn add(&mut self, doc: Doc<'_>) -> std::result::Result<(), String> {
        let invalid = |what: &str| {
            let id = doc.get("_id").unwrap_or(Val::NULL);
            format!("the document with _id {id} {what}")
        };
        let texts = |name: &str| -> std::result::Result<Vec<Arc<str>>, String> {
            let list = doc.get(name).and_then(|v| v.as_array());
            let list = list.filter(|l| !l.is_empty());
            let list =
                list.ok_or_else(|| invalid(&format!("needs a list of strings \"{name}\"")))?;
            let mut out: Vec<Arc<str>> = Vec::new();
            for v in list.values() {
                let text = v.as_str();
                let text =
                    text.ok_or_else(|| invalid(&format!("has in \"{name}\" what is no string")))?;
                let words = self.words(text);
                let words = words.ok_or_else(|| {
                    invalid(&format!(
                        "has in \"{name}\" a text without words, or with gaps: {text}"
                    ))
                })?;
                if !out.contains(&words) {
                    out.push(words);
                }
                if out.len() > MOST_EQUIVALENT {
                    return Err(invalid(&format!("has too many texts in \"{name}\"")));
                }
            }
            Ok(out)
        };
        match doc.get("mappingType").and_then(|v| v.as_str()) {
            Some("equivalent") => {
                let all = texts("synonyms")?;
                for from in &all {
                    let others = all.iter().filter(|to| *to != from);
                    self.put(from, others, true);
                }
            }
            Some("explicit") => {
                let (inputs, all) = (texts("input")?, texts("synonyms")?);
                for from in &inputs {
                    self.put(from, all.iter(), false);
                }
            }
            _ => return Err(invalid("needs \"mappingType\": equivalent or explicit")),
        }
        match self.bytes > MOST_BYTES {
            true => Err("the collection has too many synonyms".into()),
            false => Ok(()),
        }
    }

    /// The words of a text, one behind the other; `None`: some are missing, or all.
    fn words(&self, text: &str) -> Option<Arc<str>> {
        let tokens = self.analyzer.tokens(text);
        let in_order = tokens.iter().enumerate().all(|(n, t)| t.position == n);
        if tokens.is_empty() || !in_order || tokens.len() > MOST_WORDS {
            return None;
        }
        Some(joined(&tokens).into())
    }

    fn put<'a>(&mut self, from: &Arc<str>, to: impl Iterator<Item = &'a Arc<str>>, original: bool) {
        let new = !self.entries.contains_key(from);
        let entry = self.entries.entry(from.clone()).or_default();
        entry.original |= original;
        self.bytes += if new { from.len() + 96 } else { 0 };
        for to in to {
            if !entry.outputs.contains(to) {
                entry.outputs.push(to.clone());
                self.bytes += to.len() + 32;
            }
        }
        self.longest = self.longest.max(from.split(SEPARATOR).count());
    }

    /// The words of a search with their synonyms beside them. Fails where `analyzer` makes other words than the mapping
    /// has.
    pub(crate) fn expand(&self, at: &str, analyzer: &Analyzer, text: &str) -> Result<Vec<Token>> {
        if analyzer.name() != self.analyzer.name() {
            return Err(wrong(format!(
                "\"{at}\" names a synonym mapping with the analyzer {}, but the path is searched with {}",
                self.analyzer.name(),
                analyzer.name()
            )));
        }
        let tokens = analyzer.tokens(text);
        let mut out: Vec<Token> = Vec::new();
        // By how much positions have moved.
        let (mut n, mut moved) = (0, 0isize);
        while let Some(token) = tokens.get(n) {
            step()?;
            let rest = tokens.get(n..).unwrap_or(&[]);
            let first = token.position.saturating_add_signed(moved);
            let Some((taken, entry)) = self.longest_match(rest) else {
                let mut token = token.clone();
                token.position = first;
                out.push(token);
                n += 1;
                continue;
            };
            let original = rest.get(..taken).unwrap_or(&[]);
            let paths = entry.outputs.iter().map(|o| o.split(SEPARATOR).collect());
            let kept = original.iter().map(|t| t.text.as_str()).collect();
            let kept = entry.original.then_some(kept);
            let paths: Vec<Vec<&str>> = paths.chain(kept).collect();
            let last = original.last().unwrap_or(token);
            let behind = beside(&mut out, &paths, first, (token.start, last.end));
            moved = behind as isize - (last.position as isize + 1);
            n += taken;
        }
        out.sort_by_key(|t| t.position);
        Ok(out)
    }

    fn longest_match(&self, tokens: &[Token]) -> Option<(usize, &Entry)> {
        let most = self.longest.min(tokens.len());
        (1..=most).rev().find_map(|n| {
            let words = joined(tokens.get(..n)?);
            Some((n, self.entries.get(words.as_str())?))
        })
    }
}

fn joined(tokens: &[Token]) -> String {
    let words: Vec<&str> = tokens.iter().map(|t| t.text.as_str()).collect();
    words.join(&SEPARATOR.to_string())
}

/// Puts paths beside each other; the position behind them. Those of several words have positions of their own between
/// the first and the last.
fn beside(
    out: &mut Vec<Token>,
    paths: &[Vec<&str>],
    first: usize,
    (start, end): (usize, usize),
) -> usize {
    let inner: usize = paths.iter().map(|p| p.len().saturating_sub(1)).sum();
    let last = first + inner + 1;
    let mut next = first + 1;
    for path in paths {
        let mut from = first;
        for (n, word) in path.iter().enumerate() {
            let to = match n + 1 == path.len() {
                true => last,
                false => next,
            };
            out.push(Token {
                text: word.to_string(),
                position: from,
                length: to - from,
                start,
                end,
                keyword: false,
            });
            if to == next && n + 1 < path.len() {
                next += 1;
            }
            from = to;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    fn map(docs: &[bson::DocBuf]) -> std::result::Result<SynonymMap, String> {
        let mut map = SynonymMap::new(&SynonymSource {
            name: "s".into(),
            analyzer: Analyzer::Standard,
            collection: "c".into(),
        });
        for d in docs {
            map.add(d.as_doc())?;
        }
        Ok(map)
    }

    fn expanded(map: &SynonymMap, text: &str) -> Vec<(String, usize, usize)> {
        let tokens = map
            .expand("text.synonyms", &Analyzer::Standard, text)
            .unwrap();
        tokens
            .into_iter()
            .map(|t| (t.text, t.position, t.length))
            .collect()
    }

    #[test]
    fn words_have_their_synonyms_beside_them() {
        let map = map(&[
            doc! {"mappingType": "equivalent", "synonyms": array!["car", "Motor Vehicle"]},
            doc! {"mappingType": "explicit", "input": array!["beer"], "synonyms": array!["brew", "pint"]},
        ])
        .unwrap();
        let t = |s: &str, p, l| (s.to_string(), p, l);
        assert_eq!(
            expanded(&map, "red car here"),
            [
                t("red", 0, 1),
                t("motor", 1, 1),
                t("car", 1, 2),
                t("vehicle", 2, 1),
                t("here", 3, 1)
            ]
        );
        assert_eq!(
            expanded(&map, "motor vehicle"),
            [t("car", 0, 2), t("motor", 0, 1), t("vehicle", 1, 1)]
        );
        assert_eq!(expanded(&map, "Beer"), [t("brew", 0, 1), t("pint", 0, 1)]);
        assert!(map.expand("x", &Analyzer::English, "car").is_err());
    }

    #[test]
    fn a_document_that_says_nothing_is_named() {
        let cases = [
            doc! {"_id": 1, "synonyms": array!["a", "b"]},
            doc! {"_id": 1, "mappingType": "equivalent"},
            doc! {"_id": 1, "mappingType": "equivalent", "synonyms": array![1]},
            doc! {"_id": 1, "mappingType": "equivalent", "synonyms": array!["..."]},
            doc! {"_id": 1, "mappingType": "explicit", "synonyms": array!["a"]},
        ];
        for d in cases {
            let told = map(&[d]).unwrap_err();
            assert!(told.contains("_id 1"), "{told}");
        }
    }
}
