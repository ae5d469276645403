//! Highlights: the sentences of a document in which a search has found words, and which words these are.
//!
//! ```text
//! [{score, path, texts: [{value, type: "text" | "hit"}, …]}, …]     one for each sentence
//! ```
//! Texts are those of the document as it is given, so a highlight is of what is shown.
//!
//! Source: MongoDB's manual, "Highlight Search Terms in Results"; Lucene's `UnifiedHighlighter` and `PassageScorer`.

use crate::analysis::Token;
use crate::definition::{Definition, StringType};
use crate::edits::edits;
use crate::fields::SpecificationFields;
use crate::files::IndexSnapshot;
use crate::operator::{Clause, Fuzzy, Operator, PathSpec, SynonymsOf};
use crate::paths::paths;
use crate::pattern::{glob, whole_regex, wildcard};
use crate::search::Search;
use crate::synonyms::{SynonymMap, Synonyms};
use crate::words::{places_of, ways};
use bson::{Doc, Val, Value, Writer};
use errors::Result;
use errors::operation::{step, steps};
use regex::Regex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use unicode_segmentation::UnicodeSegmentation;

/// What is wanted of highlights.
#[derive(Clone, Debug)]
pub(crate) struct Highlight {
    paths: Vec<PathSpec>,
    most_characters: usize,
    most_passages: usize,
}

impl Highlight {
    pub fn parse(f: &SpecificationFields<'_>) -> Result<Option<Highlight>> {
        let Some(h) = f.doc("highlight")? else {
            return Ok(None);
        };
        let whole =
            |n: Option<i32>, default: usize| n.map_or(default, |n| n.unsigned_abs() as usize);
        let highlight = Highlight {
            paths: paths(&h)?,
            most_characters: whole(h.int("maxCharsToExamine", 1, i32::MAX)?, 500_000),
            most_passages: whole(h.int("maxNumPassages", 1, i32::MAX)?, 5),
        };
        h.end()?;
        Ok(Some(highlight))
    }
}

/// A path of documents, and which of its analyzers is meant.
type Place = (String, Option<String>);

/// Finds what documents have of what a search looks for.
pub struct Highlighter {
    definition: Arc<Definition>,
    synonyms: Arc<HashMap<String, Synonyms>>,
    /// The path of what is given, where that is an element.
    scope: String,
    highlight: Highlight,
    leaves: Vec<Leaf>,
    /// What is looked for at places where documents had texts.
    tests: HashMap<Place, Arc<Tests>>,
}

/// What one operator looks for.
struct Leaf {
    paths: Vec<PathSpec>,
    query: Vec<String>,
    how: How,
    synonyms: Option<SynonymsOf>,
}

#[derive(Clone, Copy)]
enum How {
    Words(Option<Fuzzy>),
    Phrase(u32),
    Pattern {
        regex: bool,
    },
    /// Words that begin so.
    Start,
}

/// Which words of a text are meant.
#[derive(Default)]
struct Tests {
    analyzers: Option<StringType>,
    words: HashSet<String>,
    near: Vec<(Vec<char>, Fuzzy)>,
    phrases: Vec<(Vec<Token>, u32)>,
    wildcards: Vec<String>,
    patterns: Vec<Regex>,
    starts: Vec<String>,
}

/// A sentence with words that were found.
struct Passage {
    score: f64,
    /// Pieces, and whether each was found.
    texts: Vec<(String, bool)>,
}

impl Search {
    /// What highlights the documents that it finds; `None`: no highlights are asked for.
    pub fn highlighter(&self, snapshot: &IndexSnapshot) -> Option<Highlighter> {
        let highlight = self.highlight.clone()?;
        let mut leaves = Vec::new();
        if let Some(clause) = &self.clause {
            collect(clause, &mut leaves);
        }
        Some(Highlighter {
            definition: snapshot.definition.clone(),
            synonyms: snapshot.synonyms.clone(),
            scope: self.scope.clone().unwrap_or_default(),
            highlight,
            leaves,
            tests: HashMap::new(),
        })
    }
}

fn collect(clause: &Clause, leaves: &mut Vec<Leaf>) {
    let leaf = |paths: &[PathSpec], query: &[String], how| Leaf {
        paths: paths.to_vec(),
        query: query.to_vec(),
        how,
        synonyms: None,
    };
    match &clause.operator {
        Operator::Text { paths, text } => leaves.push(Leaf {
            synonyms: text.synonyms.clone(),
            ..leaf(paths, &text.query, How::Words(text.fuzzy))
        }),
        Operator::Phrase {
            paths,
            query,
            slop,
            synonyms,
        } => leaves.push(Leaf {
            synonyms: synonyms.clone(),
            ..leaf(paths, query, How::Phrase(*slop))
        }),
        Operator::Pattern {
            paths,
            query,
            regex,
            ..
        } => leaves.push(leaf(paths, query, How::Pattern { regex: *regex })),
        Operator::Autocomplete {
            path, query, fuzzy, ..
        } => {
            let how = fuzzy.map_or(How::Start, |f| How::Words(Some(f)));
            leaves.push(leaf(&[PathSpec::Path(path.clone())], query, how));
        }
        Operator::Span(spans) => spans.each(true, &mut |words, counts| {
            if counts {
                leaves.push(leaf(&words.paths, &words.query, How::Words(None)));
            }
        }),
        Operator::Embedded { clause, .. } | Operator::Ancestor { clause, .. } => {
            collect(clause, leaves);
        }
        Operator::Compound {
            must,
            should,
            filter,
            ..
        } => {
            let all = must.iter().chain(should).chain(filter);
            all.for_each(|c| collect(c, leaves));
        }
        _ => {}
    }
}

fn covers(spec: &PathSpec, place: &Place) -> bool {
    match (spec, &place.1) {
        (PathSpec::Path(p), None) => *p == place.0,
        (PathSpec::Multi(p, m), Some(multi)) => *p == place.0 && m == multi,
        (PathSpec::Wildcard(pattern), None) => glob(pattern, &place.0),
        _ => false,
    }
}

impl Highlighter {
    /// The highlights of a document: an array.
    pub fn of(&mut self, doc: Doc<'_>) -> Result<Value> {
        let mut texts = BTreeMap::new();
        let mut path = self.scope.clone();
        gather(doc.as_val(), &mut path, &mut texts)?;
        let mut w = Writer::new_array();
        for (path, values) in &texts {
            for multi in self.alternatives(path) {
                let place = (path.clone(), multi);
                let tests = self.tests(&place)?;
                let passages = passages(&self.highlight, &tests, values)?;
                passages.iter().for_each(|p| write(&mut w, &place, p));
            }
        }
        Ok(w.finish_array())
    }

    /// By which analyzers a path is highlighted; `None`: its own.
    fn alternatives(&self, path: &str) -> Vec<Option<String>> {
        let mut out: Vec<Option<String>> = Vec::new();
        for spec in &self.highlight.paths {
            let multi = match spec {
                PathSpec::Multi(p, multi) if p == path => Some(multi.clone()),
                spec if covers(spec, &(path.to_string(), None)) => None,
                _ => continue,
            };
            if !out.contains(&multi) {
                out.push(multi);
            }
        }
        out
    }

    fn tests(&mut self, place: &Place) -> Result<Arc<Tests>> {
        if let Some(known) = self.tests.get(place) {
            return Ok(known.clone());
        }
        let mut tests = Tests {
            analyzers: self.definition.analyzers(&place.0, place.1.as_deref()),
            ..Tests::default()
        };
        let here = |leaf: &&Leaf| leaf.paths.iter().any(|spec| covers(spec, place));
        for leaf in self.leaves.iter().filter(here) {
            let named = leaf.synonyms.as_ref();
            let named = named.and_then(|of| Some((of, self.synonyms.get(&of.name)?)));
            for text in &leaf.query {
                match named {
                    Some((of, Ok(map))) => tests.add_synonyms((of, map), leaf.how, text)?,
                    _ => tests.add(leaf.how, text)?,
                }
            }
        }
        let tests = Arc::new(tests);
        self.tests.insert(place.clone(), tests.clone());
        Ok(tests)
    }
}

impl Tests {
    /// Each way to say a text is looked for.
    fn add_synonyms(
        &mut self,
        (of, map): (&SynonymsOf, &SynonymMap),
        how: How,
        text: &str,
    ) -> Result<()> {
        let Some(analyzers) = &self.analyzers else {
            return Ok(());
        };
        let tokens = map.expand(&of.at, &analyzers.search, text)?;
        let How::Phrase(slop) = how else {
            self.words.extend(tokens.into_iter().map(|t| t.text));
            return Ok(());
        };
        let end = tokens.iter().map(|t| t.position + t.length).max();
        for way in ways(&tokens, end.unwrap_or(0))? {
            let places = places_of(&way);
            let words = way.iter().zip(places).map(|(token, position)| Token {
                position,
                ..Token::clone(token)
            });
            self.phrases.push((words.collect(), slop));
        }
        Ok(())
    }

    fn add(&mut self, how: How, text: &str) -> Result<()> {
        let Some(analyzers) = &self.analyzers else {
            return Ok(());
        };
        match how {
            How::Pattern { regex: true } => self.patterns.push(whole_regex(text)?),
            How::Pattern { regex: false } => self.wildcards.push(text.to_string()),
            How::Phrase(slop) => self.phrases.push((analyzers.search.tokens(text), slop)),
            How::Words(fuzzy) => {
                for token in analyzers.search.tokens(text) {
                    step()?;
                    match fuzzy {
                        None => drop(self.words.insert(token.text)),
                        Some(f) => self.near.push((token.text.chars().collect(), f)),
                    }
                }
            }
            How::Start => {
                let tokens = analyzers.search.tokens(text).into_iter();
                self.starts.extend(tokens.map(|t| t.text));
            }
        }
        Ok(())
    }

    /// Which tokens of a text are meant.
    fn found(&self, tokens: &[Token]) -> Result<Vec<bool>> {
        let each = 1 + self.near.len() + self.patterns.len() + self.wildcards.len();
        let mut found = Vec::with_capacity(tokens.len());
        for token in tokens {
            steps(each)?;
            let word = token.text.as_str();
            let near = |(wanted, f): &(Vec<char>, Fuzzy)| {
                let fixed = wanted.iter().take(f.prefix);
                fixed.zip(word.chars()).all(|(a, b)| *a == b)
                    && edits(wanted, word, f.edits).is_some()
            };
            found.push(
                self.words.contains(word)
                    || self.starts.iter().any(|s| word.starts_with(s.as_str()))
                    || self.near.iter().any(near)
                    || self.wildcards.iter().any(|p| wildcard(p, word))
                    || self.patterns.iter().any(|p| p.is_match(word)),
            );
        }
        for (phrase, slop) in &self.phrases {
            mark_phrase(tokens, phrase, *slop, &mut found)?;
        }
        Ok(found)
    }
}

/// Marks the words of a phrase where all of them are, each no further from its place than `slop`.
fn mark_phrase(tokens: &[Token], phrase: &[Token], slop: u32, found: &mut [bool]) -> Result<()> {
    let mut places: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
    for (n, token) in tokens.iter().enumerate() {
        places
            .entry(&token.text)
            .or_default()
            .push((token.position, n));
    }
    let Some(first) = phrase.first() else {
        return Ok(());
    };
    let slop = slop as usize;
    for (start, _) in places.get(first.text.as_str()).into_iter().flatten() {
        steps(phrase.len())?;
        // The nearest occurrence of each word to where the phrase has it.
        let near = phrase.iter().map(|word| {
            let wanted = (start + word.position).saturating_sub(first.position);
            let all = places.get(word.text.as_str())?;
            let at = all.partition_point(|(position, _)| *position < wanted);
            let around = all.get(at.saturating_sub(1)..(at + 1).min(all.len()))?;
            let (position, n) = around.iter().min_by_key(|(p, _)| p.abs_diff(wanted))?;
            (position.abs_diff(wanted) <= slop).then_some(*n)
        });
        let all: Option<Vec<usize>> = near.collect();
        for n in all.into_iter().flatten() {
            if let Some(mark) = found.get_mut(n) {
                *mark = true;
            }
        }
    }
    Ok(())
}

/// The strings of a document by their paths, through arrays.
fn gather<'a>(
    v: Val<'a>,
    path: &mut String,
    out: &mut BTreeMap<String, Vec<&'a str>>,
) -> Result<()> {
    step()?;
    if let Some(text) = v.as_str() {
        out.entry(path.clone()).or_default().push(text);
    } else if let Some(list) = v.as_array() {
        for v in list.values() {
            gather(v, path, out)?;
        }
    } else if let Some(doc) = v.as_doc() {
        for e in doc.iter() {
            let before = path.len();
            if before > 0 {
                path.push('.');
            }
            path.push_str(e.name);
            gather(e.val, path, out)?;
            path.truncate(before);
        }
    }
    Ok(())
}

/// The best passages of the texts of one path, in the order of the texts.
fn passages(highlight: &Highlight, tests: &Tests, texts: &[&str]) -> Result<Vec<Passage>> {
    let Some(analyzers) = &tests.analyzers else {
        return Ok(Vec::new());
    };
    let mut left = highlight.most_characters;
    let mut out = Vec::new();
    for text in texts {
        let end = text
            .char_indices()
            .nth(left)
            .map_or(text.len(), |(at, _)| at);
        let text = text.get(..end).unwrap_or("");
        let length = text.chars().count();
        left = left.saturating_sub(length);
        let tokens = analyzers.index.tokens(text);
        let found = tests.found(&tokens)?;
        let hits = tokens.iter().zip(&found).filter(|(_, found)| **found);
        let hits: Vec<&Token> = hits.map(|(token, _)| token).collect();
        if !hits.is_empty() {
            out.extend(sentences(text, length, &hits)?);
        }
        if left == 0 {
            break;
        }
    }
    if out.len() > highlight.most_passages {
        let mut scores: Vec<f64> = out.iter().map(|p: &Passage| p.score).collect();
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        let least = scores
            .get(highlight.most_passages - 1)
            .copied()
            .unwrap_or(0.0);
        out.retain(|p| p.score >= least);
        out.truncate(highlight.most_passages);
    }
    Ok(out)
}

/// The sentences of a text that have words which were found.
fn sentences(text: &str, length: usize, hits: &[&Token]) -> Result<Vec<Passage>> {
    let mut frequencies: HashMap<&str, u32> = HashMap::new();
    for hit in hits {
        *frequencies.entry(&hit.text).or_default() += 1;
    }
    let mut left = hits;
    let mut before = 0;
    let mut out = Vec::new();
    for (start, sentence) in text.split_sentence_bound_indices() {
        step()?;
        let end = start + sentence.len();
        let (here, rest) = left.split_at(left.partition_point(|hit| hit.start < end));
        left = rest;
        if !here.is_empty() {
            out.push(Passage {
                score: score(sentence, before, length, here, &frequencies),
                texts: pieces(text, (start, end), here),
            });
        }
        before += sentence.chars().count();
        if left.is_empty() {
            break;
        }
    }
    Ok(out)
}

/// `before`: how many characters stand before the sentence.
fn score(
    sentence: &str,
    before: usize,
    length: usize,
    here: &[&Token],
    frequencies: &HashMap<&str, u32>,
) -> f64 {
    const K1: f64 = 1.2;
    const B: f64 = 0.75;
    /// The usual length of a passage.
    const PIVOT: f64 = 87.0;
    let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
    for hit in here {
        *counts.entry(&hit.text).or_default() += 1.0;
    }
    let passages = 1.0 + length as f64 / PIVOT;
    let norm = K1 * ((1.0 - B) + B * (sentence.chars().count() as f64 / PIVOT));
    let each = counts.iter().map(|(word, count)| {
        let all = f64::from(frequencies.get(word).copied().unwrap_or(1));
        let weight = (K1 + 1.0) * (1.0 + (passages + 0.5) / (all + 0.5)).ln();
        weight * (count / (count + norm))
    });
    let early = 1.0 + 1.0 / (PIVOT + before as f64).ln();
    each.sum::<f64>() * early
}

/// A sentence in pieces: what was found, and what stands between.
fn pieces(text: &str, (start, end): (usize, usize), hits: &[&Token]) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    let mut put = |from: usize, to: usize, hit: bool| {
        if let Some(piece) = text.get(from..to).filter(|p| !p.is_empty()) {
            out.push((piece.to_string(), hit));
        }
    };
    let mut at = start;
    for hit in hits {
        put(at, hit.start, false);
        put(hit.start.max(at), hit.end.min(end), true);
        at = at.max(hit.end.min(end));
    }
    put(at, end, false);
    out
}

fn write(w: &mut Writer, (path, multi): &Place, passage: &Passage) {
    w.open_doc("").f64("score", passage.score);
    match multi {
        None => w.str("path", path),
        Some(multi) => w
            .open_doc("path")
            .str("value", path)
            .str("multi", multi)
            .close(),
    };
    w.open_array("texts");
    for (value, hit) in &passage.texts {
        let kind = if *hit { "hit" } else { "text" };
        w.open_doc("").str("value", value).str("type", kind).close();
    }
    w.close().close();
}
