//! The words of a text, as they are in an index, and phrases in a text.

use crate::fold::{to_lower, without_diacritics};
use crate::{IndexVersion, Language};
use icu_properties::CodePointSetData;
use icu_properties::props::{
    Dash, Hyphen, PatternSyntax, QuotationMark, SentenceTerminal, TerminalPunctuation, WhiteSpace,
};
use std::borrow::Cow;

/// What of a word is kept when it is compared; an index keeps neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sensitivity {
    pub case: bool,
    pub diacritics: bool,
}

/// How words are made of texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tokens {
    pub language: Language,
    pub version: IndexVersion,
}

impl Tokens {
    /// Calls `f` with each word of the text, stemmed and folded, until it gives `false`. Without
    /// `stop_words` those are left out.
    pub fn each(
        &self,
        text: &str,
        sensitivity: Sensitivity,
        stop_words: bool,
        mut f: impl FnMut(&str) -> bool,
    ) {
        let unicode = self.version == IndexVersion::Three;
        let english = self.language.is_english();
        let delimits = |c: char| is_delimiter(c, english, unicode);
        for word in text.split(delimits).filter(|w| !w.is_empty()) {
            let lower = self.lower(word);
            if !stop_words && self.language.is_stop_word(&lower) {
                continue;
            }
            let word = match sensitivity.case {
                true => word,
                false => &lower,
            };
            let stem = self.language.stem(word);
            let folded = match unicode && !sensitivity.diacritics {
                true => without_diacritics(&stem),
                false => Cow::Borrowed(&*stem),
            };
            if !f(&folded) {
                return;
            }
        }
    }

    fn lower<'w>(&self, word: &'w str) -> Cow<'w, str> {
        match self.version {
            IndexVersion::Three => to_lower(word, self.language.is_turkish()),
            _ if word.bytes().any(|b| b.is_ascii_uppercase()) => {
                Cow::Owned(word.to_ascii_lowercase())
            }
            _ => Cow::Borrowed(word),
        }
    }

    /// Whether the text has the phrase in it, as it is but for case and diacritics.
    pub fn has_phrase(&self, text: &str, phrase: &str, sensitivity: Sensitivity) -> bool {
        let text = self.fold_phrase(text, sensitivity);
        let phrase = self.fold_phrase(phrase, sensitivity);
        memchr::memmem::find(text.as_bytes(), phrase.as_bytes()).is_some()
    }

    fn fold_phrase<'t>(&self, text: &'t str, sensitivity: Sensitivity) -> Cow<'t, str> {
        if self.version != IndexVersion::Three {
            return match sensitivity.case {
                true => Cow::Borrowed(text),
                false => Cow::Owned(text.to_ascii_lowercase()),
            };
        }
        // In Turkish the case is never kept.
        let turkish = self.language.is_turkish();
        let text = match sensitivity.case && !turkish {
            true => Cow::Borrowed(text),
            false => to_lower(text, turkish),
        };
        match sensitivity.diacritics {
            true => text,
            false => Cow::Owned(without_diacritics(&text).into_owned()),
        }
    }
}

/// What stands between words. In English an apostrophe is a part of one.
fn is_delimiter(c: char, english: bool, unicode: bool) -> bool {
    match c {
        '\'' => !english,
        '_' => false,
        _ if c.is_ascii() => c.is_ascii_punctuation() || c == ' ' || matches!(c, '\t'..='\r'),
        _ => unicode && is_unicode_delimiter(c),
    }
}

fn is_unicode_delimiter(c: char) -> bool {
    CodePointSetData::new::<WhiteSpace>().contains(c)
        || CodePointSetData::new::<PatternSyntax>().contains(c)
        || CodePointSetData::new::<TerminalPunctuation>().contains(c)
        || CodePointSetData::new::<SentenceTerminal>().contains(c)
        || CodePointSetData::new::<Dash>().contains(c)
        || CodePointSetData::new::<Hyphen>().contains(c)
        || CodePointSetData::new::<QuotationMark>().contains(c)
}

/// A term as an index entry has it: long ones are cut, with a hash of the whole behind.
pub fn term_key(term: &str, version: IndexVersion) -> Cow<'_, str> {
    let most = match version {
        IndexVersion::One => usize::MAX,
        IndexVersion::Two => 32,
        IndexVersion::Three => 224,
    };
    if term.len() <= most {
        return Cow::Borrowed(term);
    }
    let mut end = most;
    while !term.is_char_boundary(end) {
        end -= 1;
    }
    let mut key = String::with_capacity(most + 32);
    key.push_str(&term[..end]);
    key.push_str(&format!("{:x}", md5::compute(term)));
    Cow::Owned(key)
}
