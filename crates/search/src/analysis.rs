//! Analyzers: from a text to its tokens, as Lucene's analyzers of the same names make them.
//!
//! Source: Lucene's `StandardTokenizer` (word boundaries of Unicode's annex 29), `LowerCaseFilter` (one character for
//! one), `EnglishAnalyzer`. The stemmer of `lucene.english` is Porter's second one here, and his first one there.

use rust_stemmers::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation;

/// The most characters of a token of the standard tokenizer: what is longer becomes several tokens.
const MOST_CHARACTERS: usize = 255;

/// The most bytes of a token of any analyzer; a longer one is not indexed.
pub const MOST_BYTES: usize = 32_766;

/// The words that `lucene.english` leaves out.
const ENGLISH_STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with",
];

/// One of Lucene's analyzers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Analyzer {
    #[default]
    Standard,
    /// Letters only, in lower case.
    Simple,
    Whitespace,
    /// The whole text is one token.
    Keyword,
    English,
}

/// A token and its position among those of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub position: usize,
    /// Where it stands in the text, in bytes.
    pub start: usize,
    pub end: usize,
}

impl Analyzer {
    /// The analyzer that a definition names; `None`: there is none of that name here.
    pub fn named(name: &str) -> Option<Analyzer> {
        Some(match name {
            "lucene.standard" => Analyzer::Standard,
            "lucene.simple" => Analyzer::Simple,
            "lucene.whitespace" => Analyzer::Whitespace,
            "lucene.keyword" => Analyzer::Keyword,
            "lucene.english" => Analyzer::English,
            _ => return None,
        })
    }

    /// The tokens of a text, in order. Costs time and memory in proportion to the text.
    pub fn tokens(self, text: &str) -> Vec<Token> {
        match self {
            Analyzer::Standard => numbered(words(text), lower),
            Analyzer::Simple => {
                let words = text.split(|c: char| !c.is_alphabetic());
                numbered(placed(text, words.filter(|w| !w.is_empty())), lower)
            }
            Analyzer::Whitespace => numbered(placed(text, text.split_whitespace()), str::to_string),
            Analyzer::Keyword => numbered(std::iter::once((0, text)), str::to_string),
            Analyzer::English => english(text),
        }
    }

    /// A word of a query that is not to be broken up (a pattern's), as the analyzer would write it.
    pub fn normalized(self, word: &str) -> String {
        match self {
            Analyzer::Whitespace | Analyzer::Keyword => word.to_string(),
            _ => lower(word),
        }
    }
}

fn numbered<'a>(
    words: impl Iterator<Item = (usize, &'a str)>,
    written: impl Fn(&str) -> String,
) -> Vec<Token> {
    let token = |(position, (start, word)): (usize, (usize, &str))| Token {
        text: written(word),
        position,
        start,
        end: start + word.len(),
    };
    words
        .enumerate()
        .map(token)
        .filter(|t| t.text.len() <= MOST_BYTES)
        .collect()
}

/// Parts of a text with where they begin in it.
fn placed<'a>(
    text: &'a str,
    parts: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let begin = text.as_ptr() as usize;
    parts.map(move |part| ((part.as_ptr() as usize).saturating_sub(begin), part))
}

/// The words of a text by Unicode's rules, long ones in pieces, with where they begin.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.unicode_word_indices().flat_map(|(start, word)| {
        let (mut at, mut rest) = (start, word);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = rest.char_indices().nth(MOST_CHARACTERS);
            let (piece, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
            rest = behind;
            let begin = at;
            at += piece.len();
            Some((begin, piece))
        })
    })
}

/// Each character in lower case, without regard to those around it.
pub fn lower(word: &str) -> String {
    word.chars()
        .map(|c| c.to_lowercase().next().unwrap_or(c))
        .collect()
}

fn english(text: &str) -> Vec<Token> {
    let stemmer = Stemmer::create(Algorithm::English);
    let mut out = Vec::new();
    for (position, (start, word)) in words(text).enumerate() {
        let possessive = ["'s", "'S", "\u{2019}s", "\u{2019}S"];
        let bare = possessive.iter().find_map(|end| word.strip_suffix(end));
        let end = start + word.len();
        let word = lower(bare.unwrap_or(word));
        // A word that is left out leaves its place.
        if !ENGLISH_STOP_WORDS.contains(&word.as_str()) {
            let text = stemmer.stem(&word).into_owned();
            out.push(Token {
                text,
                position,
                start,
                end,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(a: Analyzer, of: &str) -> Vec<String> {
        a.tokens(of).into_iter().map(|t| t.text).collect()
    }

    #[test]
    fn analyzers_break_texts_as_lucene_does() {
        let cases = [
            (
                Analyzer::Standard,
                "The quick-brown FOX",
                vec!["the", "quick", "brown", "fox"],
            ),
            (
                Analyzer::Standard,
                "can't 3.5 a_b $x",
                vec!["can't", "3.5", "a_b", "x"],
            ),
            (Analyzer::Standard, "日本 ΣΙΓΜΑ", vec!["日", "本", "σιγμα"]),
            (Analyzer::Standard, "\u{feff}joined", vec!["joined"]),
            (Analyzer::Simple, "Lion's 2 x", vec!["lion", "s", "x"]),
            (
                Analyzer::Whitespace,
                "Lion's 2\tx",
                vec!["Lion's", "2", "x"],
            ),
            (Analyzer::Keyword, "Lion's 2", vec!["Lion's 2"]),
            (Analyzer::English, "The dog's running", vec!["dog", "run"]),
        ];
        for (analyzer, of, want) in cases {
            assert_eq!(text(analyzer, of), want, "{analyzer:?} {of}");
        }
    }

    #[test]
    fn long_words_come_in_pieces_and_stop_words_leave_their_place() {
        assert_eq!(text(Analyzer::Standard, &"a".repeat(600)).len(), 3);
        let tokens = Analyzer::English.tokens("fox in the box");
        let places: Vec<usize> = tokens.iter().map(|t| t.position).collect();
        assert_eq!(places, [0, 3]);
    }
}
