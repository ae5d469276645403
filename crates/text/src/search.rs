//! What `$text` asks for: as it was written, and taken apart into words and phrases.

use crate::tokens::{Sensitivity, Tokens};
use crate::{IndexVersion, Language};
use bson::{Doc, DocBuf, Writer};
use errors::{Fallible, bail, err, operation};
use std::collections::BTreeSet;

/// `{$search, $language, $caseSensitive, $diacriticSensitive}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextExpression {
    pub text: String,
    /// Empty: the index's own.
    pub language: String,
    pub sensitivity: Sensitivity,
}

/// A search in one language.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The terms by which an index finds documents.
    pub bounds: BTreeSet<String>,
    /// Of these a document has at least one: in the case and with the diacritics that were asked for.
    pub terms: BTreeSet<String>,
    /// Of these it has none.
    pub negated_terms: BTreeSet<String>,
    /// All of these it has,
    pub phrases: Vec<String>,
    /// and none of these.
    pub negated_phrases: Vec<String>,
    /// For the first phrases the terms of their words, as far as an index has them.
    pub phrase_terms: Vec<BTreeSet<String>>,
}

/// The phrases whose words are looked for in an index; more would only narrow the search.
const MOST_LOOKED_FOR: usize = 32;

impl TextExpression {
    pub fn parse(d: Doc<'_>) -> Fallible<TextExpression> {
        let string = |name: &str| match d.get(name) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| {
                err!(
                    TypeMismatch,
                    "\"{name}\" had the wrong type. Expected string, found {}",
                    v.type_name()
                )
            }),
        };
        let flag = |name: &str| match d.get(name) {
            None => Ok(false),
            Some(v) => v.as_bool().ok_or_else(|| {
                err!(
                    TypeMismatch,
                    "\"{name}\" had the wrong type. Expected bool, found {}",
                    v.type_name()
                )
            }),
        };
        let Some(text) = string("$search")? else {
            bail!(NoSuchKey, "Missing expected field \"$search\"");
        };
        let out = TextExpression {
            text: text.to_string(),
            language: string("$language")?.unwrap_or("").to_string(),
            sensitivity: Sensitivity {
                case: flag("$caseSensitive")?,
                diacritics: flag("$diacriticSensitive")?,
            },
        };
        let known = [
            "$search",
            "$language",
            "$caseSensitive",
            "$diacriticSensitive",
        ];
        if d.iter().any(|e| !known.contains(&e.name)) {
            bail!(BadValue, "extra fields in $text");
        }
        // Whatever index there is: what no version knows is refused at once.
        if !out.language.is_empty() {
            Language::find(&out.language, IndexVersion::Three)?;
        }
        Ok(out)
    }

    /// As explain prints it.
    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("$search", &self.text);
        w.str("$language", &self.language);
        w.bool("$caseSensitive", self.sensitivity.case);
        w.bool("$diacriticSensitive", self.sensitivity.diacritics);
        w.finish()
    }

    /// Takes the text apart. Parts are left out where the operation has to end meanwhile.
    pub(crate) fn parse_for(&self, tokens: &Tokens) -> Parsed {
        let mut out = Parsed::default();
        let (mut positive, mut negative) = (String::new(), String::new());
        let (mut negated, mut phrase) = (false, None);
        for p in pieces(&self.text) {
            if operation::step().is_err() {
                break;
            }
            match p.kind {
                Kind::Text => {
                    // A negation goes as far as the next space.
                    if phrase.is_none() && p.after_space {
                        negated = false;
                    }
                    let into = match (phrase.is_some(), negated) {
                        (true, true) => continue,
                        (_, true) => &mut negative,
                        (_, false) => &mut positive,
                    };
                    into.push_str(p.text);
                    into.push(' ');
                }
                Kind::Minus => negated |= phrase.is_none() && p.after_space,
                Kind::Quote => match phrase.take() {
                    Some(start) => {
                        let text = self.text.get(start..p.start).unwrap_or("").to_string();
                        if negated {
                            out.negated_phrases.push(text);
                        } else {
                            // All phrases are asked of a document, so some show where it is.
                            if out.phrase_terms.len() < MOST_LOOKED_FOR {
                                out.phrase_terms.push(terms(tokens, &text));
                            }
                            out.phrases.push(text);
                        }
                    }
                    None => {
                        phrase = Some(p.start + 1);
                        negated &= !p.after_space;
                    }
                },
            }
        }
        out.bounds = terms(tokens, &positive);
        let compared = |text: &str| {
            let mut words = BTreeSet::new();
            tokens.each(until_nul(text), self.sensitivity, false, |w| {
                words.insert(w.to_string());
                operation::step().is_ok()
            });
            words
        };
        out.terms = compared(&positive);
        out.negated_terms = compared(&negative);
        out
    }
}

/// The terms of a text as an index has them.
fn terms(tokens: &Tokens, text: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    tokens.each(until_nul(text), Sensitivity::default(), false, |w| {
        out.insert(w.to_string());
        operation::step().is_ok()
    });
    out
}

/// MongoDB's texts end at their first NUL, where words are made of them.
pub(crate) fn until_nul(text: &str) -> &str {
    text.split('\0').next().unwrap_or("")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Minus,
    Quote,
}

struct Piece<'t> {
    kind: Kind,
    text: &'t str,
    start: usize,
    /// Nothing, or space, stands before it.
    after_space: bool,
}

/// A search taken apart: runs of text, `-` and `"` each for itself, spaces between.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let space = |b: u8| matches!(b, b' ' | b'\n' | 0x0b | 0x0c | b'\r');
    let (bytes, mut at, mut after_space) = (text.as_bytes(), 0, true);
    std::iter::from_fn(move || {
        while bytes.get(at).is_some_and(|b| space(*b)) {
            (at, after_space) = (at + 1, true);
        }
        let (start, first) = (at, *bytes.get(at)?);
        at += 1;
        let kind = match first {
            b'-' => Kind::Minus,
            b'"' => Kind::Quote,
            _ => Kind::Text,
        };
        while kind == Kind::Text
            && (bytes.get(at)).is_some_and(|b| !space(*b) && !matches!(b, b'-' | b'"'))
        {
            at += 1;
        }
        let piece = Piece {
            kind,
            text: text.get(start..at).unwrap_or(""),
            start,
            after_space,
        };
        after_space = false;
        Some(piece)
    })
}
