//! The languages of text indexes, by MongoDB's names for them.

use crate::stop_words;
use errors::{Fallible, bail};
use foldhash::HashSet;
use rust_stemmers::{Algorithm, Stemmer};
use std::borrow::Cow;
use std::fmt;

/// The version of a text index: how it makes words of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndexVersion {
    /// Words of ASCII rules, any language name, weights by a field's own name under `$**`.
    One = 1,
    /// Words of ASCII rules.
    Two = 2,
    /// Words of Unicode's rules, without diacritics.
    Three = 3,
}

/// A longer word is no word of any language, and is its own stem.
const MOST_STEMMED: usize = 1024;

/// How one language is read.
#[derive(Clone, Copy)]
pub struct Language {
    name: &'static str,
    algorithm: Option<Algorithm>,
    stop_words: Option<&'static HashSet<&'static str>>,
}

/// Name, code of two letters, other codes that version 1 knows, stemmer.
const LANGUAGES: &[(&str, &str, &[&str], Algorithm)] = &[
    ("danish", "da", &["dan"], Algorithm::Danish),
    ("dutch", "nl", &["dut", "nld"], Algorithm::Dutch),
    ("english", "en", &["eng", "porter"], Algorithm::English),
    ("finnish", "fi", &["fin"], Algorithm::Finnish),
    ("french", "fr", &["fra", "fre"], Algorithm::French),
    ("german", "de", &["deu", "ger"], Algorithm::German),
    ("hungarian", "hu", &["hun"], Algorithm::Hungarian),
    ("italian", "it", &["ita"], Algorithm::Italian),
    ("norwegian", "nb", &["no", "nor"], Algorithm::Norwegian),
    ("portuguese", "pt", &["por"], Algorithm::Portuguese),
    ("romanian", "ro", &["ron", "rum"], Algorithm::Romanian),
    ("russian", "ru", &["rus"], Algorithm::Russian),
    ("spanish", "es", &["esl", "spa"], Algorithm::Spanish),
    ("swedish", "sv", &["swe"], Algorithm::Swedish),
    ("turkish", "tr", &["tur"], Algorithm::Turkish),
];

impl Language {
    /// No stemmer, no stop words.
    pub const NONE: Language = Language {
        name: "none",
        algorithm: None,
        stop_words: None,
    };

    pub fn find(name: &str, version: IndexVersion) -> Fallible<Language> {
        if version == IndexVersion::One {
            return Ok(Language::legacy(name));
        }
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("none") {
            return Ok(Language::NONE);
        }
        let Some((name, .., algorithm)) = LANGUAGES.iter().find(|l| is(l.0) || is(l.1)) else {
            bail!(
                BadValue,
                "unsupported language: \"{name}\" for text index version {}",
                version as i32
            );
        };
        Ok(Language {
            name,
            algorithm: Some(*algorithm),
            stop_words: stop_words::of(name),
        })
    }

    /// Version 1 takes what it does not know for none, and knows stop words by whole names only.
    fn legacy(name: &str) -> Language {
        let (code, whole) = (
            LANGUAGES
                .iter()
                .find(|l| l.1 == name && name != "nb" || l.2.contains(&name)),
            LANGUAGES.iter().find(|l| l.0 == name),
        );
        match (whole, code) {
            (Some(l), _) => Language {
                name: l.0,
                algorithm: Some(l.3),
                stop_words: stop_words::of(l.0),
            },
            (None, Some(l)) => Language {
                name: "code",
                algorithm: Some(l.3),
                stop_words: None,
            },
            (None, None) => Language::NONE,
        }
    }

    pub(crate) fn is_english(&self) -> bool {
        self.name == "english"
    }

    pub(crate) fn is_turkish(&self) -> bool {
        self.name == "turkish"
    }

    pub(crate) fn is_stop_word(&self, word: &str) -> bool {
        self.stop_words.is_some_and(|w| w.contains(word))
    }

    /// A stemmer may go over a word once for each of its letters.
    pub(crate) fn stem<'w>(&self, word: &'w str) -> Cow<'w, str> {
        match self.algorithm.filter(|_| word.len() <= MOST_STEMMED) {
            Some(a) => Stemmer::create(a).stem(word),
            None => Cow::Borrowed(word),
        }
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Language {
    fn eq(&self, other: &Language) -> bool {
        self.name == other.name && self.algorithm == other.algorithm
    }
}

impl IndexVersion {
    pub fn of(n: i64) -> Option<IndexVersion> {
        match n {
            1 => Some(IndexVersion::One),
            2 => Some(IndexVersion::Two),
            3 => Some(IndexVersion::Three),
            _ => None,
        }
    }
}
