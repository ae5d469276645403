//! Analyzers: from a text to its tokens, as Lucene's analyzers of the same names make them, and those that a definition
//! puts together ([`CustomAnalyzer`]).
//!
//! Source: Lucene's `StandardAnalyzer`, `SimpleAnalyzer`, `WhitespaceAnalyzer`, `KeywordAnalyzer`, `EnglishAnalyzer`.

mod char_filter;
mod custom;
mod delimiter;
mod fold;
mod html;
mod porter;
mod settings;
mod soundex;
mod spanish;
mod text;
mod token_filter;
mod tokenizer;
mod url;

pub use custom::{Analyzers, CustomAnalyzer, named, parse};

use std::sync::Arc;
use tokenizer::{in_pieces, numbered, placed, words};

/// The most characters of a token of the standard tokenizer: what is longer becomes several tokens.
const MOST_CHARACTERS: usize = 255;

/// The most bytes of a token of any analyzer; a longer one is not indexed.
pub const MOST_BYTES: usize = 32_766;

/// The most tokens of a text.
const MOST_TOKENS: usize = 1 << 20;

/// The words that `lucene.english` leaves out.
const ENGLISH_STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with",
];

/// One of Lucene's analyzers, or one of a definition.
#[derive(Clone, Debug, Default)]
pub enum Analyzer {
    #[default]
    Standard,
    /// Letters only, in lower case.
    Simple,
    Whitespace,
    /// The whole text is one token.
    Keyword,
    English,
    Custom(Arc<CustomAnalyzer>),
}

/// A token and its position among those of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub position: usize,
    /// How many positions it stands for.
    pub length: usize,
    /// Where it stands in the text, in bytes.
    pub start: usize,
    pub end: usize,
    /// No stemmer changes it.
    pub keyword: bool,
}

impl Token {
    /// At a position, counted from 1 on.
    fn at(mut self, place: usize) -> Token {
        self.position = place.saturating_sub(1);
        self
    }
}

impl Analyzer {
    /// The analyzer of MongoDB of that name; `None`: there is none here.
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

    pub fn name(&self) -> &str {
        match self {
            Analyzer::Standard => "lucene.standard",
            Analyzer::Simple => "lucene.simple",
            Analyzer::Whitespace => "lucene.whitespace",
            Analyzer::Keyword => "lucene.keyword",
            Analyzer::English => "lucene.english",
            Analyzer::Custom(custom) => &custom.name,
        }
    }

    /// Whether a whole text is one token, as it is written.
    pub fn is_keyword(&self) -> bool {
        matches!(self, Analyzer::Keyword)
    }

    /// Whether synonyms can be told of its tokens: they stand one behind the other.
    pub fn suits_synonyms(&self) -> bool {
        match self {
            Analyzer::Custom(custom) => custom.suits_synonyms(),
            _ => true,
        }
    }

    /// Whether tokens that stand for several positions are ways around others. Shingles only repeat them.
    pub fn is_graph(&self) -> bool {
        match self {
            Analyzer::Custom(custom) => custom.is_graph(),
            _ => false,
        }
    }

    /// The tokens of a text, in order. Costs time and memory in proportion to the text, or to the grams that a custom
    /// analyzer makes of it, up to a bound.
    pub fn tokens(&self, text: &str) -> Vec<Token> {
        let mut tokens = match self {
            Analyzer::Standard => lowered(numbered(in_pieces(words(text), MOST_CHARACTERS))),
            Analyzer::Simple => {
                let words = text
                    .split(|c| !fold::is_letter(c))
                    .filter(|w| !w.is_empty());
                lowered(numbered(in_pieces(placed(text, words), MOST_CHARACTERS)))
            }
            Analyzer::Whitespace => {
                let words = text.split(fold::is_space).filter(|w| !w.is_empty());
                numbered(in_pieces(placed(text, words), MOST_CHARACTERS))
            }
            Analyzer::Keyword => numbered(std::iter::once((0, text))),
            Analyzer::English => english(text),
            Analyzer::Custom(custom) => custom.tokens(text),
        };
        tokens.retain(|t| t.text.len() <= MOST_BYTES);
        tokens
    }

    /// Has `each` called with the text and the position of each token, in order, until it gives `false`. Where documents
    /// are indexed, tokens of the standard analyzer are too many for a text of its own for each.
    pub fn each_token(&self, text: &str, each: &mut dyn FnMut(&str, usize) -> bool) {
        if !matches!(self, Analyzer::Standard) {
            let tokens = self.tokens(text);
            let mut each = tokens.iter().map(|t| each(&t.text, t.position));
            each.all(|goes_on| goes_on);
            return;
        }
        let mut token = String::new();
        let pieces = in_pieces(words(text), MOST_CHARACTERS);
        for (position, (_, piece)) in pieces.enumerate() {
            token.clear();
            token.push_str(piece);
            match piece.is_ascii() {
                true => token.make_ascii_lowercase(),
                false => token = lower(piece),
            }
            if token.len() <= MOST_BYTES && !each(&token, position) {
                return;
            }
        }
    }
}

fn lowered(mut tokens: Vec<Token>) -> Vec<Token> {
    for token in &mut tokens {
        match token.text.is_ascii() {
            true => token.text.make_ascii_lowercase(),
            false => token.text = lower(&token.text),
        }
    }
    tokens
}

/// Each character in lower case, without regard to those around it.
pub fn lower(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    word.chars()
        .map(|c| c.to_lowercase().next().unwrap_or(c))
        .collect()
}

fn english(text: &str) -> Vec<Token> {
    let mut tokens = numbered(in_pieces(words(text), MOST_CHARACTERS));
    for token in &mut tokens {
        token.text = lower(token_filter::without_possessive(&token.text));
    }
    // A word that is left out leaves its place.
    tokens.retain(|t| !ENGLISH_STOP_WORDS.contains(&t.text.as_str()));
    for token in &mut tokens {
        token.text = porter::stem(&token.text);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(a: &Analyzer, of: &str) -> Vec<String> {
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
            assert_eq!(text(&analyzer, of), want, "{analyzer:?} {of}");
            let mut indexed = Vec::new();
            analyzer.each_token(of, &mut |token, position| {
                indexed.push((token.to_string(), position));
                true
            });
            let tokens = analyzer.tokens(of).into_iter();
            let tokens: Vec<_> = tokens.map(|t| (t.text, t.position)).collect();
            assert_eq!(indexed, tokens, "{analyzer:?} {of}");
        }
    }

    #[test]
    fn long_words_come_in_pieces_and_stop_words_leave_their_place() {
        assert_eq!(text(&Analyzer::Standard, &"a".repeat(600)).len(), 3);
        let tokens = Analyzer::English.tokens("fox in the box");
        let places: Vec<usize> = tokens.iter().map(|t| t.position).collect();
        assert_eq!(places, [0, 3]);
    }

    /// For `scripts/compare_lucene.py`: writes the tokens of the texts of a file beside it, one list a line.
    #[test]
    #[ignore = "needs the file that LUCENE_TEXTS names"]
    fn tokens_of_a_file() {
        let path = std::env::var("LUCENE_TEXTS").unwrap();
        let mut out = String::new();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let asked = bson::json::parse(line).unwrap();
            let analyzer = match asked.get("analyzer").unwrap() {
                name if name.as_str().is_some() => Analyzer::named(name.as_str().unwrap()),
                custom => {
                    let mut w = bson::Writer::new();
                    w.open_array("analyzers").push(custom);
                    w.close();
                    let all = parse(w.finish().as_doc()).unwrap();
                    all.into_values().next().map(Analyzer::Custom)
                }
            };
            let tokens = analyzer
                .unwrap()
                .tokens(asked.get("text").unwrap().as_str().unwrap());
            let told: Vec<_> = tokens
                .into_iter()
                .map(|t| serde_json::json!([t.text, t.position, t.length]))
                .collect();
            out.push_str(&serde_json::to_string(&told).unwrap());
            out.push('\n');
        }
        std::fs::write(format!("{path}.tokens"), out).unwrap();
    }
}
