//! What of a document goes into an index.
//!
//! All paths share three fields of the library's index, so that a path may come with any document:
//! ```text
//! words    "PATH in hex" U+0001 TOKEN          with frequencies and positions
//! values   PATH u32 BE | kind u8 | value       what can be told exactly: numbers, dates, whole strings, …
//! lengths  {"PATH": how many tokens}           a column for each path, of which BM25 needs the average
//! ```
//! PATH is the number that [`Paths`] gives to a path's name. The bytes of values of one kind are in the values' order.

use crate::analysis::{Analyzer, lower};
use crate::definition::{Definition, FieldTypes, Grams, GramsFrom, Mapping, StringType};
use crate::unfit::{Unfit, any_value};
use bson::{Doc, Val, tag};
use errors::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most paths of an index: fields of documents beyond them are not indexed.
const MOST_PATHS: usize = 10_000;

/// The most bytes of a value in the index; a longer one is not indexed.
const MOST_VALUE_BYTES: usize = 8_192;

/// Between two elements of an array, so that no phrase spans both.
const GAP: usize = 100;

/// The most bytes of a path's name where it is told what a document lacks.
const MOST_NAME_BYTES: usize = 1_000;

/// The most fields of one document of which that is told.
const MOST_UNFIT: usize = 20;

/// The most values and tokens of one document.
const MOST_TERMS: usize = 1 << 20;

/// Between the name of a path and that of one of its alternatives.
const SEPARATOR: char = '\0';

/// Kinds of value, by their byte in the index.
pub mod kind {
    /// An element of an array, as a document of its own.
    pub const ELEMENT: u8 = b'e';
    /// A whole document, in an index that has elements too.
    pub const ROOT: u8 = b'r';
    pub const EXISTS: u8 = b'x';
    /// A shape, as the document has it.
    pub const GEO: u8 = b'g';
    pub const NULL: u8 = b'0';
    pub const BOOLEAN: u8 = b'b';
    pub const DATE: u8 = b'd';
    pub const NUMBER: u8 = b'n';
    pub const OBJECT_ID: u8 = b'o';
    pub const STRING: u8 = b's';
    pub const UUID: u8 = b'u';
    /// A document that lacks something: see [`crate::unfit`].
    pub const UNFIT: u8 = b'p';
}

/// The names of an index's paths; a path's number is its place.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    names: Vec<String>,
    by_name: HashMap<String, u32>,
}

impl Paths {
    pub fn of(names: Vec<String>) -> Paths {
        let mut paths = Paths::default();
        for name in names {
            paths.number(&name);
        }
        paths
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of a path.
    pub fn name(&self, path: u32) -> &str {
        let name = self.names.get(path as usize).map_or("", |n| n.as_str());
        name.split(SEPARATOR).next().unwrap_or("")
    }

    /// The number of a path that some document had.
    pub fn get(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(n) = self.by_name.get(name) {
            return Some(*n);
        }
        let n = u32::try_from(self.names.len()).ok()?;
        if self.names.len() >= MOST_PATHS {
            return None;
        }
        self.names.push(name.to_string());
        self.by_name.insert(name.to_string(), n);
        Some(n)
    }
}

/// The name of an alternative of a path among [`Paths`].
pub fn multi_name(path: &str, multi: &str) -> String {
    format!("{path}{SEPARATOR}m{multi}")
}

/// The name of the grams of a path.
pub fn grams_name(path: &str) -> String {
    format!("{path}{SEPARATOR}a")
}

/// Whether a name is a path's own, and not that of one of its alternatives.
pub fn is_path(name: &str) -> bool {
    !name.contains(SEPARATOR)
}

/// What the words of a path begin with in the index.
pub fn word_prefix(path: u32) -> String {
    format!("{path:x}\u{1}")
}

/// What the values of a kind of a path begin with in the index.
pub fn value_prefix(path: u32, kind: u8) -> Vec<u8> {
    let mut out = path.to_be_bytes().to_vec();
    out.push(kind);
    out
}

/// A number as bytes in the order of numbers; both zeros are one.
pub fn number_bytes(n: f64) -> [u8; 8] {
    let bits = if n == 0.0 { 0 } else { n.to_bits() };
    let ordered = if bits >> 63 == 0 {
        bits | 1 << 63
    } else {
        !bits
    };
    ordered.to_be_bytes()
}

/// The number that [`number_bytes`] made these of.
pub fn number_of(bytes: [u8; 8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes);
    let bits = if ordered >> 63 == 1 {
        ordered & !(1 << 63)
    } else {
        !ordered
    };
    f64::from_bits(bits)
}

/// A date as bytes in the order of dates.
pub fn date_bytes(millis: i64) -> [u8; 8] {
    ((millis as u64) ^ (1 << 63)).to_be_bytes()
}

/// The date that [`date_bytes`] made these of.
pub fn date_of(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)) as i64
}

/// A value's kind and bytes in the index; `None` for a value that is not told exactly.
pub fn value_of(v: Val<'_>) -> Option<(u8, Vec<u8>)> {
    Some(match v.tag {
        tag::NULL => (kind::NULL, Vec::new()),
        tag::BOOL => (kind::BOOLEAN, vec![u8::from(v.as_bool()?)]),
        tag::DATE => (kind::DATE, date_bytes(v.as_date()?).to_vec()),
        tag::INT32 | tag::INT64 | tag::DOUBLE => (kind::NUMBER, number_bytes(v.to_f64()?).to_vec()),
        tag::OBJECT_ID => (kind::OBJECT_ID, v.bytes.to_vec()),
        tag::STRING => (kind::STRING, v.as_str()?.as_bytes().to_vec()),
        tag::BINARY => match v.as_binary()? {
            (4, bytes) if bytes.len() == 16 => (kind::UUID, bytes.to_vec()),
            _ => return None,
        },
        _ => return None,
    })
}

/// A word of a path, and its position.
#[derive(Clone, Copy)]
pub struct Word {
    pub path: u32,
    pub position: usize,
    /// Where it is in the text of all words.
    from: usize,
    to: usize,
}

/// The words of a document, in one text: it has very many of them.
#[derive(Default)]
pub struct Words {
    text: String,
    list: Vec<Word>,
}

impl Words {
    pub fn push(&mut self, path: u32, text: &str, position: usize) {
        let from = self.text.len();
        self.text.push_str(text);
        self.list.push(Word {
            path,
            position,
            from,
            to: self.text.len(),
        });
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The bytes of all words.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The words with their texts, from the first position on.
    pub fn by_position(&mut self) -> impl ExactSizeIterator<Item = (Word, &str)> {
        // Paths are mixed.
        self.list.sort_by_key(|word| word.position);
        let text = &self.text;
        let of = |word: &Word| (*word, text.get(word.from..word.to).unwrap_or(""));
        self.list.iter().map(of)
    }
}

/// The terms of one document.
#[derive(Default)]
pub struct DocumentTerms {
    pub words: Words,
    pub values: BTreeSet<Vec<u8>>,
    /// The number of tokens by path.
    pub lengths: BTreeMap<u32, u32>,
    /// The next position by path.
    next: HashMap<u32, usize>,
    count: usize,
    /// Paths with a value that was left out because it is too long.
    long: BTreeSet<u32>,
    /// Terms were left out.
    full: bool,
}

/// An element of an array of type embeddedDocuments.
pub struct Element {
    pub terms: DocumentTerms,
    /// Which one it is among those of its path in the document.
    pub number: u64,
}

/// The most elements of one document.
const MOST_ELEMENTS: usize = 10_000;

impl DocumentTerms {
    /// The terms of a document, and those of its elements, each before what it lies in. New paths get their numbers.
    pub fn of(
        definition: &Definition,
        doc: Doc<'_>,
        paths: &mut Paths,
    ) -> (DocumentTerms, Vec<Element>) {
        let mut walk = Walk {
            default: &definition.default,
            paths,
            terms: DocumentTerms::default(),
            path: String::new(),
            elements: Vec::new(),
            numbers: HashMap::new(),
            unfit: BTreeSet::new(),
        };
        if !definition.embedded.is_empty() {
            walk.terms.value(u32::MAX, kind::ROOT, &[]);
        }
        walk.document(doc, &definition.mapping);
        walk.note_unfit();
        (walk.terms, walk.elements)
    }

    /// Notes that the document lacks a path in the index.
    pub fn lacks(&mut self, unfit: Unfit, path: &str) {
        let path = path.get(..MOST_NAME_BYTES).unwrap_or(path);
        self.values.insert(any_value());
        self.values.insert(unfit.value(path));
    }

    pub fn lacks_any(&self) -> bool {
        self.values.contains(&any_value())
    }

    fn value(&mut self, path: u32, kind: u8, bytes: &[u8]) {
        if bytes.len() > MOST_VALUE_BYTES {
            self.long.insert(path);
            return;
        }
        if self.count >= MOST_TERMS {
            self.full = true;
            return;
        }
        self.count += 1;
        let mut value = value_prefix(path, kind);
        value.extend_from_slice(bytes);
        self.values.insert(value);
    }

    fn text(&mut self, path: u32, analyzer: &Analyzer, text: &str) {
        let start = self.next.get(&path).map_or(0, |next| next + GAP);
        let mut last = 0;
        let mut before = None;
        let mut length = 0;
        analyzer.each_token(text, &mut |token, position| {
            if self.count >= MOST_TERMS {
                self.full = true;
                return false;
            }
            self.count += 1;
            last = position;
            // Tokens at one place make a text no longer.
            length += u32::from(before != Some(position));
            before = Some(position);
            self.words.push(path, token, start + position);
            true
        });
        if length > 0 {
            *self.lengths.entry(path).or_default() += length;
        }
        self.next.insert(path, start + last + 1);
    }

    fn grams(&mut self, path: u32, grams: Grams, text: &str) {
        for token in Analyzer::Standard.tokens(text) {
            for gram in grams_of(grams, &token.text) {
                if self.count >= MOST_TERMS {
                    self.full = true;
                    return;
                }
                self.count += 1;
                self.words.push(path, &gram, token.position);
            }
        }
    }
}

/// The grams of a word.
fn grams_of(grams: Grams, word: &str) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    let n = chars.len();
    let piece = |from: usize, len: usize| chars.iter().skip(from).take(len).collect::<String>();
    let lengths = grams.least..=grams.most.min(n);
    match grams.from {
        GramsFrom::Start => lengths.map(|len| piece(0, len)).collect(),
        GramsFrom::End => lengths.map(|len| piece(n - len, len)).collect(),
        GramsFrom::Anywhere => lengths
            .flat_map(|len| (0..=n - len).map(move |from| (from, len)))
            .map(|(from, len)| piece(from, len))
            .collect(),
    }
}

struct Walk<'a> {
    default: &'a StringType,
    paths: &'a mut Paths,
    terms: DocumentTerms,
    path: String,
    elements: Vec<Element>,
    /// The next number of an element by path.
    numbers: HashMap<u32, u64>,
    /// Fields that are left out, and why.
    unfit: BTreeSet<(Unfit, String)>,
}

impl Walk<'_> {
    /// A document of an array that has a place of its own in the index.
    fn element(&mut self, doc: Doc<'_>, mapping: &Mapping) {
        let Some(path) = self.paths.number(&self.path) else {
            self.leave_out(Unfit::ManyPaths);
            return;
        };
        let next = self.numbers.entry(path).or_default();
        let number = *next;
        *next += 1;
        if self.elements.len() >= MOST_ELEMENTS {
            self.leave_out(Unfit::ManyElements);
            return;
        }
        let inner = DocumentTerms {
            count: self.terms.count,
            ..DocumentTerms::default()
        };
        let outer = std::mem::replace(&mut self.terms, inner);
        self.terms.value(path, kind::ELEMENT, &[]);
        self.document(doc, mapping);
        let terms = std::mem::replace(&mut self.terms, outer);
        self.terms.count = terms.count;
        self.elements.push(Element { terms, number });
    }

    fn document(&mut self, doc: Doc<'_>, mapping: &Mapping) {
        for e in doc.iter() {
            let types = mapping.fields.get(e.name);
            if types.is_none() && !mapping.dynamic || e.name.contains(SEPARATOR) {
                continue;
            }
            let before = self.path.len();
            if before > 0 {
                self.path.push('.');
            }
            self.path.push_str(e.name);
            match types {
                Some(types) => self.typed(e.val, types),
                None => self.untyped(e.val),
            }
            self.path.truncate(before);
        }
    }

    /// The number of the path at hand, which exists in the document.
    fn here(&mut self) -> Option<u32> {
        let Some(path) = self.paths.number(&self.path) else {
            self.leave_out(Unfit::ManyPaths);
            return None;
        };
        self.terms.value(path, kind::EXISTS, &[]);
        Some(path)
    }

    fn leave_out(&mut self, why: Unfit) {
        if self.unfit.len() < MOST_UNFIT {
            self.unfit.insert((why, self.path.clone()));
        }
    }

    /// Puts what was left out of the document and its elements among the terms of the document.
    fn note_unfit(&mut self) {
        let elements = self.elements.iter().map(|e| &e.terms);
        for terms in elements.chain([&self.terms]) {
            let long = terms.long.iter();
            let long = long.map(|path| (Unfit::LongValue, self.paths.name(*path).to_string()));
            let full = terms.full.then(|| (Unfit::ManyTerms, String::new()));
            let left = MOST_UNFIT.saturating_sub(self.unfit.len());
            self.unfit.extend(long.chain(full).take(left));
        }
        for (why, path) in std::mem::take(&mut self.unfit) {
            self.terms.lacks(why, &path);
        }
    }

    fn untyped(&mut self, v: Val<'_>) {
        if let Some(list) = v.as_array() {
            list.values().for_each(|v| self.untyped(v));
            return;
        }
        if let Some(doc) = v.as_doc() {
            let all = Mapping {
                dynamic: true,
                fields: BTreeMap::new(),
            };
            if self.here().is_some() {
                self.document(doc, &all);
            }
            return;
        }
        let Some(path) = self.here() else { return };
        match v.as_str() {
            Some(text) => self.terms.text(path, &self.default.index, text),
            None => {
                if let Some((kind, bytes)) = value_of(v) {
                    self.terms.value(path, kind, &bytes);
                }
            }
        }
    }

    fn typed(&mut self, v: Val<'_>, types: &FieldTypes) {
        if let Some(list) = v.as_array() {
            list.values().for_each(|v| self.typed(v, types));
            return;
        }
        if let Some(doc) = v.as_doc() {
            if let Some(shapes) = types.geo
                && crate::places::is_indexed(v, shapes)
                && let Some(path) = self.here()
            {
                self.terms.value(path, kind::GEO, doc.as_bytes());
            }
            if let Some(embedded) = &types.embedded {
                self.element(doc, &embedded.mapping);
            }
            if let Some(mapping) = &types.document
                && self.here().is_some()
            {
                self.document(doc, mapping);
            }
            return;
        }
        if let Some(text) = v.as_str() {
            return self.string(text, types);
        }
        let Some((kind, bytes)) = value_of(v) else {
            return;
        };
        let wanted = match kind {
            kind::NUMBER => types.number,
            kind::DATE => types.date,
            kind::BOOLEAN => types.boolean,
            kind::OBJECT_ID => types.object_id,
            kind::UUID => types.uuid,
            _ => true,
        };
        if wanted && let Some(path) = self.here() {
            self.terms.value(path, kind, &bytes);
        }
    }

    fn string(&mut self, text: &str, types: &FieldTypes) {
        if types.string.is_none()
            && types.token.is_none()
            && types.autocomplete.is_none()
            && types.multi.is_empty()
        {
            return;
        }
        let Some(path) = self.here() else { return };
        if let Some(string) = &types.string {
            self.terms.text(path, &string.index, text);
        }
        for (name, string) in &types.multi {
            let name = multi_name(&self.path, name);
            if let Some(path) = self.paths.number(&name) {
                self.terms.text(path, &string.index, text);
            }
        }
        match types.token {
            Some(true) => self.terms.value(path, kind::STRING, lower(text).as_bytes()),
            Some(false) => self.terms.value(path, kind::STRING, text.as_bytes()),
            None => {}
        }
        if let Some(grams) = types.autocomplete
            && let Some(path) = self.paths.number(&grams_name(&self.path))
        {
            self.terms.grams(path, grams, text);
        }
    }
}

/// The bytes of a value that a search compares with: a whole string as its path has them.
pub fn search_value(v: Val<'_>, lower_case: bool) -> Result<Option<(u8, Vec<u8>)>> {
    Ok(value_of(v).map(|(kind, bytes)| match v.as_str() {
        Some(s) if lower_case => (kind, lower(s).into_bytes()),
        _ => (kind, bytes),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Kind;
    use bson::doc;

    #[test]
    fn numbers_and_dates_keep_their_order_and_come_back() {
        let numbers = [f64::NEG_INFINITY, -2.5, -0.0, 1e-300, 3.0, f64::INFINITY];
        let bytes: Vec<_> = numbers.iter().map(|n| number_bytes(*n)).collect();
        assert!(bytes.is_sorted());
        assert!(numbers.iter().zip(&bytes).all(|(n, b)| number_of(*b) == *n));
        assert_eq!(number_bytes(0.0), number_bytes(-0.0));
        let dates = [i64::MIN, -1, 0, i64::MAX];
        let bytes: Vec<_> = dates.iter().map(|d| date_bytes(*d)).collect();
        assert!(bytes.is_sorted());
        assert!(dates.iter().zip(&bytes).all(|(d, b)| date_of(*b) == *d));
    }

    #[test]
    fn a_document_gives_the_terms_that_its_mapping_wants() {
        let d = doc! { "mappings": doc! { "dynamic": false, "fields": doc! {
        "a": doc! { "type": "string" }, "n": doc! { "type": "number" } } } };
        let definition = Definition::parse(Kind::Search, d.as_doc()).unwrap();
        let mut paths = Paths::default();
        let stored = doc! { "a": "Big fox", "n": 1, "other": "x" };
        let (mut terms, _) = DocumentTerms::of(&definition, stored.as_doc(), &mut paths);
        assert_eq!(paths.names(), ["a", "n"]);
        let words = terms
            .words
            .by_position()
            .map(|(word, text)| (word.path, text));
        let words: Vec<_> = words.collect();
        assert_eq!(words, [(0, "big"), (0, "fox")]);
        assert_eq!(terms.lengths.get(&0), Some(&2));
        assert_eq!(terms.values.len(), 3, "two that exist, and a number");
    }
}
