//! Tokenizers: from a text to the tokens that filters go on with.
//!
//! Source: MongoDB's manual, "Tokenizers"; Lucene's `StandardTokenizer` (word boundaries of Unicode's annex 29),
//! `UAX29URLEmailTokenizer`, `NGramTokenizer`, `PatternTokenizer` and the others of these names.

use super::settings::Settings;
use super::token_filter::each_match;
use super::{MOST_CHARACTERS, MOST_TOKENS, Token, fold, url};
use errors::Result;
use pcre::Regex;
use std::sync::Arc;
use unicode_segmentation::UnicodeSegmentation;

/// The most bytes of all tokens that overlap.
const MOST_GRAM_BYTES: usize = 64 << 20;

#[derive(Clone, Debug)]
pub(super) enum Tokenizer {
    /// `edge`: from the beginning only.
    Grams {
        least: usize,
        most: usize,
        edge: bool,
    },
    Keyword,
    /// What a group of each match holds.
    Capture(Arc<Regex>, usize),
    /// What stands between matches.
    Split(Arc<Regex>),
    Standard(usize),
    UrlEmail(usize),
    Whitespace(usize),
}

impl Tokenizer {
    pub fn parse(f: &Settings<'_>) -> Result<Tokenizer> {
        let longest = || -> Result<usize> {
            let most = f.number("maxTokenLength", 1, 1 << 20)?;
            Ok(most.unwrap_or(MOST_CHARACTERS))
        };
        Ok(match f.kind()? {
            kind @ ("edgeGram" | "nGram") => {
                let (least, most) = f.grams()?;
                let edge = kind == "edgeGram";
                Tokenizer::Grams { least, most, edge }
            }
            "keyword" => Tokenizer::Keyword,
            "regexCaptureGroup" => {
                let pattern = f.pattern("pattern")?;
                let group = f.number("group", 0, 1 << 16)?;
                let group = group.ok_or_else(|| f.wrong("group", "is required"))?;
                let groups = pattern.captures().map_or(1, |c| c.len());
                if group >= groups {
                    return Err(f.wrong("group", "is a group that the pattern does not have"));
                }
                Tokenizer::Capture(pattern, group)
            }
            "regexSplit" => Tokenizer::Split(f.pattern("pattern")?),
            "standard" => Tokenizer::Standard(longest()?),
            "uaxUrlEmail" => Tokenizer::UrlEmail(longest()?),
            "whitespace" => Tokenizer::Whitespace(longest()?),
            other => return Err(f.unknown_kind(other)),
        })
    }

    /// Whether tokens stand one behind the other.
    pub fn suits_synonyms(&self) -> bool {
        !matches!(self, Tokenizer::Grams { .. })
    }

    pub fn tokens(&self, text: &str) -> Vec<Token> {
        match self {
            Tokenizer::Grams { least, most, edge } => grams(text, (*least, *most), *edge),
            Tokenizer::Keyword => numbered(std::iter::once((0, text))),
            Tokenizer::Capture(pattern, group) => captured(text, pattern, *group),
            Tokenizer::Split(pattern) => split(text, pattern),
            Tokenizer::Standard(most) => numbered(in_pieces(words(text), *most)),
            Tokenizer::UrlEmail(most) => numbered(in_pieces(url::words(text), *most)),
            Tokenizer::Whitespace(most) => {
                let words = text.split(fold::is_space).filter(|w| !w.is_empty());
                numbered(in_pieces(placed(text, words), *most))
            }
        }
    }
}

/// Pieces of a text, each at the next position.
pub(super) fn numbered<'a>(pieces: impl Iterator<Item = (usize, &'a str)>) -> Vec<Token> {
    let token = |(position, (start, piece)): (usize, (usize, &str))| Token {
        text: piece.to_string(),
        position,
        length: 1,
        start,
        end: start + piece.len(),
        keyword: false,
    };
    pieces.enumerate().map(token).collect()
}

/// Parts of a text with where they begin in it.
pub(super) fn placed<'a>(
    text: &'a str,
    parts: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let begin = text.as_ptr() as usize;
    parts.map(move |part| ((part.as_ptr() as usize).saturating_sub(begin), part))
}

/// Long words in pieces of at most so many characters.
pub(super) fn in_pieces<'a>(
    words: impl Iterator<Item = (usize, &'a str)>,
    most: usize,
) -> impl Iterator<Item = (usize, &'a str)> {
    words.flat_map(move |(start, word)| {
        let (mut at, mut rest) = (start, word);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = match rest.len() <= most {
                true => None,
                false => rest.char_indices().nth(most),
            };
            let (piece, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
            rest = behind;
            let begin = at;
            at += piece.len();
            Some((begin, piece))
        })
    })
}

/// The words of a text by Unicode's rules, with where they begin. Scripts that write no spaces between words and
/// need a dictionary (Thai, Lao, Khmer, Burmese and others) come in runs, emoji as words.
pub(super) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut pieces = text.split_word_bound_indices().peekable();
    let mut ascii = text.is_ascii().then_some(0);
    std::iter::from_fn(move || {
        if let Some(at) = &mut ascii {
            return ascii_word(text, at);
        }
        loop {
            let (start, piece) = pieces.next()?;
            if piece.chars().any(is_complex) {
                let mut end = start + piece.len();
                while let Some((_, next)) = pieces.peek()
                    && next.chars().all(is_complex)
                {
                    end += next.len();
                    pieces.next();
                }
                return Some((start, text.get(start..end)?));
            }
            if piece.chars().any(fold::is_word) || is_emoji(piece) {
                return Some((start, piece));
            }
        }
    })
}

/// Which bytes are part of a word wherever they stand.
const PARTS: [bool; 256] = {
    let mut parts = [false; 256];
    let mut n = 0u8;
    while n < 128 {
        parts[n as usize] = n.is_ascii_alphanumeric() || n == b'_';
        n += 1;
    }
    parts
};

/// The next word of a text without other characters, from `at` on: what Unicode's rules come to for these.
fn ascii_word<'t>(text: &'t str, at: &mut usize) -> Option<(usize, &'t str)> {
    let bytes = text.as_bytes();
    let byte = |n: usize| bytes.get(n).copied().unwrap_or(b' ');
    let is_part = |b: u8| PARTS.get(usize::from(b)).copied().unwrap_or(false);
    // Between two letters, or two digits, some marks are part of the word.
    let joins = |n: usize| match (byte(n.saturating_sub(1)), byte(n), byte(n + 1)) {
        (a, b'.' | b'\'', z) if a.is_ascii_digit() => z.is_ascii_digit(),
        (a, b',' | b';', z) => a.is_ascii_digit() && z.is_ascii_digit(),
        (a, b'.' | b'\'' | b':', z) => a.is_ascii_alphabetic() && z.is_ascii_alphabetic(),
        _ => false,
    };
    loop {
        let start = *at + bytes.get(*at..)?.iter().position(|b| is_part(*b))?;
        let mut end = start;
        while is_part(byte(end)) || joins(end) {
            end += 1;
        }
        *at = end;
        let word = text.get(start..end)?;
        if word.bytes().any(|b| b.is_ascii_alphanumeric()) {
            return Some((start, word));
        }
    }
}

fn is_complex(c: char) -> bool {
    matches!(u32::from(c),
        0xe01..=0xe3a | 0xe40..=0xe4e | 0xe81..=0xecf | 0xedc..=0xedf | 0x1000..=0x103f
        | 0x1050..=0x108f | 0x109a..=0x109f | 0x1780..=0x17d3 | 0x17d7 | 0x17dc..=0x17dd
        | 0x1950..=0x19cf | 0x19da | 0x19de..=0x19df | 0x1a20..=0x1a7c | 0x1aa0..=0x1aad
        | 0xa9e0..=0xa9ef | 0xa9fa..=0xa9fe | 0xaa60..=0xaac2 | 0xaadb..=0xaadf
        | 0x11700..=0x1172b | 0x1173a..=0x1173b | 0x1173f)
}

/// Whether a piece between word boundaries is a picture: its first character says so.
fn is_emoji(piece: &str) -> bool {
    let mut chars = piece.chars();
    let first = chars.next().map_or(0, u32::from);
    let keycap = piece.ends_with('\u{20e3}');
    let flag = matches!(first, 0x1f1e6..=0x1f1ff);
    keycap || flag && chars.next().is_some() || is_picture(first)
}

/// The blocks of pictures of Unicode's technical standard 51.
fn is_picture(c: u32) -> bool {
    matches!(c,
        0xa9 | 0xae | 0x203c | 0x2049 | 0x2122 | 0x2139 | 0x2194..=0x2199 | 0x21a9..=0x21aa
        | 0x231a..=0x231b | 0x2328 | 0x2388 | 0x23cf | 0x23e9..=0x23f3 | 0x23f8..=0x23fa | 0x24c2
        | 0x25aa..=0x25ab | 0x25b6 | 0x25c0 | 0x25fb..=0x25fe | 0x2600..=0x2605 | 0x2607..=0x2612
        | 0x2614..=0x2685 | 0x2690..=0x2705 | 0x2708..=0x2712 | 0x2714 | 0x2716 | 0x271d | 0x2721
        | 0x2728 | 0x2733..=0x2734 | 0x2744 | 0x2747 | 0x274c | 0x274e | 0x2753..=0x2755 | 0x2757
        | 0x2763..=0x2767 | 0x2795..=0x2797 | 0x27a1 | 0x27b0 | 0x27bf | 0x2934..=0x2935
        | 0x2b05..=0x2b07 | 0x2b1b..=0x2b1c | 0x2b50 | 0x2b55 | 0x3030 | 0x303d | 0x3297 | 0x3299
        | 0x1f000..=0x1f0ff | 0x1f10d..=0x1f10f | 0x1f12f | 0x1f16c..=0x1f171 | 0x1f17e..=0x1f17f
        | 0x1f18e | 0x1f191..=0x1f19a | 0x1f1ad..=0x1f1e5 | 0x1f201..=0x1f20f | 0x1f21a | 0x1f22f
        | 0x1f232..=0x1f23a | 0x1f23c..=0x1f23f | 0x1f249..=0x1f3fa | 0x1f400..=0x1f53d
        | 0x1f546..=0x1f64f | 0x1f680..=0x1f6ff | 0x1f774..=0x1f77f | 0x1f7d5..=0x1f7ff
        | 0x1f80c..=0x1f80f | 0x1f848..=0x1f84f | 0x1f85a..=0x1f85f | 0x1f888..=0x1f88f
        | 0x1f8ae..=0x1f8ff | 0x1f90c..=0x1f93a | 0x1f93c..=0x1f945 | 0x1f947..=0x1faff
        | 0x1fc00..=0x1fffd)
}

fn grams(text: &str, (least, most): (usize, usize), edge: bool) -> Vec<Token> {
    let mut places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    places.push(text.len());
    let n = places.len() - 1;
    let starts = if edge { 1.min(n) } else { n };
    let mut out = Vec::new();
    let mut bytes = 0;
    for from in 0..starts {
        for length in least..=most.min(n - from) {
            let (Some(start), Some(end)) = (places.get(from), places.get(from + length)) else {
                break;
            };
            let gram = text.get(*start..*end).unwrap_or("");
            bytes += gram.len();
            if out.len() >= MOST_TOKENS || bytes > MOST_GRAM_BYTES {
                return out;
            }
            out.push(Token {
                text: gram.to_string(),
                position: out.len(),
                length: 1,
                start: *start,
                end: *end,
                keyword: false,
            });
        }
    }
    out
}

fn captured(text: &str, pattern: &Regex, group: usize) -> Vec<Token> {
    let mut pieces = Vec::new();
    let Ok(mut found) = pattern.captures() else {
        return Vec::new();
    };
    each_match(text, pattern, &mut found, |found, _| {
        let piece = found.get(group).filter(|(start, end)| start < end);
        if let Some((start, end)) = piece {
            pieces.push((start, text.get(start..end).unwrap_or("")));
        }
        pieces.len() < MOST_TOKENS
    });
    numbered(pieces.into_iter())
}

fn split(text: &str, pattern: &Regex) -> Vec<Token> {
    let mut pieces = Vec::new();
    let Ok(mut found) = pattern.captures() else {
        return Vec::new();
    };
    let mut from = 0;
    each_match(text, pattern, &mut found, |_, (start, end)| {
        if start > from {
            pieces.push((from, text.get(from..start).unwrap_or("")));
        }
        from = end;
        pieces.len() < MOST_TOKENS
    });
    if from < text.len() {
        pieces.push((from, text.get(from..).unwrap_or("")));
    }
    numbered(pieces.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_plain_texts_are_those_of_unicode() {
        // All texts of five of these, which are of all kinds that the rules tell apart.
        let marks = b"aZ19_'.:,;\" -";
        let mut text = [0u8; 5];
        for n in 0..marks.len().pow(5) {
            let mut rest = n;
            for byte in &mut text {
                *byte = marks[rest % marks.len()];
                rest /= marks.len();
            }
            let text = std::str::from_utf8(&text).unwrap();
            let plain: Vec<_> = words(text).collect();
            let unicode = text.split_word_bound_indices();
            let unicode = unicode.filter(|(_, word)| word.chars().any(fold::is_word));
            assert_eq!(plain, unicode.collect::<Vec<_>>(), "{text}");
        }
    }
}
