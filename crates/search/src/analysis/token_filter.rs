//! Token filters: what becomes of the tokens that a tokenizer has made.
//!
//! Source: MongoDB's manual, "Token Filters"; Lucene's filters of the same purposes, with their positions: a token that is
//! taken out leaves its place, one that is added stands at the place of its original.

use super::delimiter::Delimiter;
use super::settings::Settings;
use super::{MOST_TOKENS, Token, fold, lower, porter, soundex, spanish};
use errors::Result;
use errors::operation::steps;
use pcre::{Captures, Regex};
use rust_stemmers::{Algorithm, Stemmer};
use std::collections::HashSet;
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;

/// The most bytes that added tokens have.
const MOST_ADDED_BYTES: usize = 64 << 20;

/// Words to compare with, in one case or in each.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    words: HashSet<String>,
    any_case: bool,
}

impl Words {
    pub fn of(words: &[String], any_case: bool) -> Words {
        let one = |w: &String| if any_case { lower(w) } else { w.clone() };
        Words {
            words: words.iter().map(one).collect(),
            any_case,
        }
    }

    pub fn has(&self, word: &str) -> bool {
        match self.any_case {
            true => !self.words.is_empty() && self.words.contains(&lower(word)),
            false => self.words.contains(word),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stems {
    Porter,
    Snowball(Algorithm),
    SpanishPlural,
}

#[derive(Clone, Debug)]
pub(super) enum TokenFilter {
    /// `original`: it stays beside what it becomes.
    AsciiFolding {
        original: bool,
    },
    Soundex {
        original: bool,
    },
    Grams {
        least: usize,
        most: usize,
        /// From the beginning only.
        edge: bool,
        /// Tokens of other lengths stay.
        kept: bool,
    },
    EnglishPossessive,
    FlattenGraph,
    IcuFolding,
    Normalizer(Form),
    KeywordRepeat,
    Length {
        least: usize,
        most: usize,
    },
    Lowercase,
    Stem(Stems),
    Regex {
        pattern: Arc<Regex>,
        by: Vec<Piece>,
        all: bool,
    },
    RemoveDuplicates,
    Reverse,
    Shingle {
        least: usize,
        most: usize,
    },
    Stopword(Words),
    Trim,
    WordDelimiter(Box<Delimiter>),
}

impl TokenFilter {
    pub fn parse(f: &Settings<'_>) -> Result<TokenFilter> {
        let original = |otherwise| f.choice("originalTokens", ["omit", "include"], otherwise);
        Ok(match f.kind()? {
            "asciiFolding" => TokenFilter::AsciiFolding {
                original: original(false)?,
            },
            "daitchMokotoffSoundex" => TokenFilter::Soundex {
                original: original(true)?,
            },
            kind @ ("edgeGram" | "nGram") => {
                let (least, most) = f.grams()?;
                TokenFilter::Grams {
                    least,
                    most,
                    edge: kind == "edgeGram",
                    kept: f.choice("termNotInBounds", ["omit", "include"], false)?,
                }
            }
            "englishPossessive" => TokenFilter::EnglishPossessive,
            "flattenGraph" => TokenFilter::FlattenGraph,
            "icuFolding" => TokenFilter::IcuFolding,
            "icuNormalizer" => TokenFilter::Normalizer(form(f)?),
            "keywordRepeat" => TokenFilter::KeywordRepeat,
            "length" => length(f)?,
            "lowercase" => TokenFilter::Lowercase,
            "porterStemming" => TokenFilter::Stem(Stems::Porter),
            "regex" => {
                let pattern = f.pattern("pattern")?;
                TokenFilter::Regex {
                    by: pieces(f, &pattern)?,
                    pattern,
                    all: f.choice("matches", ["first", "all"], true)?,
                }
            }
            "removeDuplicates" => TokenFilter::RemoveDuplicates,
            "reverse" => TokenFilter::Reverse,
            "shingle" => shingle(f)?,
            "snowballStemming" => TokenFilter::Stem(snowball(f)?),
            "spanishPluralStemming" => TokenFilter::Stem(Stems::SpanishPlural),
            "stopword" => {
                let words = f.strings("tokens")?;
                let words = words.ok_or_else(|| f.wrong("tokens", "is required"))?;
                TokenFilter::Stopword(Words::of(&words, f.flag("ignoreCase", true)?))
            }
            "trim" => TokenFilter::Trim,
            "wordDelimiterGraph" => TokenFilter::WordDelimiter(Box::new(Delimiter::parse(f)?)),
            kind @ ("kStemming" | "stempel") => {
                return Err(f.wrong("type", &format!("is not supported yet: {kind}")));
            }
            other => return Err(f.unknown_kind(other)),
        })
    }

    /// Whether synonyms can be told of tokens that it has made: they stand one behind the other.
    pub fn suits_synonyms(&self) -> bool {
        !matches!(
            self,
            TokenFilter::Soundex { .. }
                | TokenFilter::Grams { .. }
                | TokenFilter::Shingle { .. }
                | TokenFilter::WordDelimiter(_)
        )
    }

    pub fn apply(&self, tokens: Vec<Token>) -> Vec<Token> {
        match self {
            TokenFilter::AsciiFolding { original } => several(tokens, |t| folded(t, *original)),
            TokenFilter::Soundex { original } => several(tokens, |t| sounds(t, *original)),
            TokenFilter::Grams {
                least,
                most,
                edge,
                kept,
            } => several(tokens, |t| grams(t, (*least, *most), *edge, *kept)),
            TokenFilter::EnglishPossessive => each(tokens, |w| without_possessive(w).to_string()),
            TokenFilter::FlattenGraph => flattened(tokens),
            TokenFilter::IcuFolding => each(tokens, fold::icu),
            TokenFilter::Normalizer(form) => each(tokens, |w| match form {
                Form::Nfc => w.nfc().collect(),
                Form::Nfd => w.nfd().collect(),
                Form::Nfkc => w.nfkc().collect(),
                Form::Nfkd => w.nfkd().collect(),
            }),
            TokenFilter::KeywordRepeat => several(tokens, |mut t| {
                t.keyword = false;
                let mut whole = t.clone();
                whole.keyword = true;
                vec![whole, t]
            }),
            TokenFilter::Length { least, most } => those(tokens, |w| {
                (*least..=*most).contains(&w.encode_utf16().count())
            }),
            TokenFilter::Lowercase => each(tokens, lower),
            TokenFilter::Stem(stems) => stemmed(tokens, *stems),
            TokenFilter::Regex { pattern, by, all } => {
                let mut room = pattern.captures().ok();
                let mut bytes = 0;
                each(tokens, |w| {
                    if bytes > MOST_ADDED_BYTES {
                        return w.to_string();
                    }
                    let new = replaced(w, pattern, &mut room, by, *all);
                    bytes += new.len();
                    new
                })
            }
            TokenFilter::RemoveDuplicates => without_duplicates(tokens),
            TokenFilter::Reverse => each(tokens, |w| w.chars().rev().collect()),
            TokenFilter::Shingle { least, most } => shingles(tokens, *least, *most),
            TokenFilter::Stopword(words) => those(tokens, |w| !words.has(w)),
            TokenFilter::Trim => each(tokens, |w| {
                let is_blank = |c: char| c <= ' ';
                w.trim_matches(is_blank).to_string()
            }),
            TokenFilter::WordDelimiter(options) => options.apply(tokens),
        }
    }
}

fn form(f: &Settings<'_>) -> Result<Form> {
    Ok(match f.string("normalizationForm")? {
        None | Some("nfc") => Form::Nfc,
        Some("nfd") => Form::Nfd,
        Some("nfkc") => Form::Nfkc,
        Some("nfkd") => Form::Nfkd,
        Some(_) => {
            return Err(f.wrong("normalizationForm", "must be one of [nfc, nfd, nfkc, nfkd]"));
        }
    })
}

fn length(f: &Settings<'_>) -> Result<TokenFilter> {
    let most = i64::from(i32::MAX);
    let (least, most) = (f.number("min", 0, most)?, f.number("max", 0, most)?);
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(255));
    match least <= most {
        true => Ok(TokenFilter::Length { least, most }),
        false => Err(f.wrong("min", "cannot be greater than \"max\"")),
    }
}

fn shingle(f: &Settings<'_>) -> Result<TokenFilter> {
    let least = f.number("minShingleSize", 2, 64)?;
    let most = f.number("maxShingleSize", 2, 64)?;
    let least = least.ok_or_else(|| f.wrong("minShingleSize", "is required"))?;
    let most = most.ok_or_else(|| f.wrong("maxShingleSize", "is required"))?;
    match least <= most {
        true => Ok(TokenFilter::Shingle { least, most }),
        false => Err(f.wrong(
            "minShingleSize",
            "cannot be greater than \"maxShingleSize\"",
        )),
    }
}

fn snowball(f: &Settings<'_>) -> Result<Stems> {
    Ok(Stems::Snowball(match f.required_string("stemmerName")? {
        "arabic" => Algorithm::Arabic,
        "danish" => Algorithm::Danish,
        "dutch" => Algorithm::Dutch,
        "english" => Algorithm::English,
        "finnish" => Algorithm::Finnish,
        "french" => Algorithm::French,
        "german" => Algorithm::German,
        "hungarian" => Algorithm::Hungarian,
        "italian" => Algorithm::Italian,
        "norwegian" => Algorithm::Norwegian,
        "porter" => return Ok(Stems::Porter),
        "portuguese" => Algorithm::Portuguese,
        "romanian" => Algorithm::Romanian,
        "russian" => Algorithm::Russian,
        "spanish" => Algorithm::Spanish,
        "swedish" => Algorithm::Swedish,
        "turkish" => Algorithm::Turkish,
        name @ ("armenian" | "basque" | "catalan" | "estonian" | "german2" | "irish" | "kp"
        | "lithuanian" | "lovins") => {
            return Err(f.wrong("stemmerName", &format!("is not supported yet: {name}")));
        }
        other => return Err(f.wrong("stemmerName", &format!("is unknown: {other}"))),
    }))
}

/// The steps from one token's position to the next one's, from the place before the text on.
pub(super) fn increments(tokens: Vec<Token>) -> impl Iterator<Item = (usize, Token)> {
    let mut before = 0;
    tokens.into_iter().map(move |token| {
        // Positions begin with 0: the first step is one longer.
        let here = token.position + 1;
        let step = here.saturating_sub(before);
        before = here;
        (step, token)
    })
}

/// Graphs as an index can hold them: parts of a word stand on one line already, so only long gaps become short.
fn flattened(tokens: Vec<Token>) -> Vec<Token> {
    let mut place = 0;
    let one = |(step, token): (usize, Token)| {
        place += step.min(2);
        token.at(place)
    };
    increments(tokens).map(one).collect()
}

fn each(mut tokens: Vec<Token>, mut written: impl FnMut(&str) -> String) -> Vec<Token> {
    for token in &mut tokens {
        token.text = written(&token.text);
    }
    tokens
}

fn those(mut tokens: Vec<Token>, wanted: impl Fn(&str) -> bool) -> Vec<Token> {
    tokens.retain(|t| wanted(&t.text));
    tokens
}

/// Has tokens stand for each, as many as there may be.
fn several(tokens: Vec<Token>, mut made: impl FnMut(Token) -> Vec<Token>) -> Vec<Token> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut bytes = 0;
    for token in tokens {
        let new = made(token);
        bytes += new.iter().map(|t| t.text.len()).sum::<usize>();
        if out.len() + new.len() > MOST_TOKENS || bytes > MOST_ADDED_BYTES {
            break;
        }
        out.extend(new);
    }
    out
}

fn with_text(token: &Token, text: String) -> Token {
    Token {
        text,
        ..token.clone()
    }
}

fn folded(token: Token, original: bool) -> Vec<Token> {
    let plain = fold::ascii(&token.text);
    match plain == token.text {
        true => vec![token],
        false if original => vec![with_text(&token, plain), token],
        false => vec![with_text(&token, plain)],
    }
}

fn sounds(token: Token, original: bool) -> Vec<Token> {
    if token.text.is_empty() {
        return vec![token];
    }
    let codes = soundex::codes(&token.text).into_iter();
    let codes = codes.map(|code| with_text(&token, code));
    match original {
        true => std::iter::once(token.clone()).chain(codes).collect(),
        false => codes.collect(),
    }
}

fn grams(token: Token, (least, most): (usize, usize), edge: bool, kept: bool) -> Vec<Token> {
    let chars: Vec<char> = token.text.chars().collect();
    let n = chars.len();
    let gram = |from: usize, length: usize| {
        let piece = chars.iter().skip(from).take(length).collect();
        with_text(&token, piece)
    };
    let mut out = Vec::new();
    let starts = if edge { 1.min(n) } else { n };
    let mut bytes = 0;
    for from in 0..starts {
        for length in least..=most.min(n - from) {
            bytes += length;
            if out.len() >= MOST_TOKENS || bytes > MOST_ADDED_BYTES {
                return out;
            }
            out.push(gram(from, length));
        }
    }
    if kept && !(least..=most).contains(&n) {
        out.push(token);
    }
    out
}

/// A word without `'s`.
pub(super) fn without_possessive(word: &str) -> &str {
    let bare = word.strip_suffix(['s', 'S']);
    let bare = bare.and_then(|w| w.strip_suffix(['\'', '\u{2019}', '\u{ff07}']));
    bare.unwrap_or(word)
}

fn stemmed(mut tokens: Vec<Token>, stems: Stems) -> Vec<Token> {
    let stemmer = match stems {
        Stems::Snowball(algorithm) => Some(Stemmer::create(algorithm)),
        _ => None,
    };
    for token in tokens.iter_mut().filter(|t| !t.keyword) {
        token.text = match (&stemmer, stems) {
            (Some(s), _) => s.stem(&token.text).into_owned(),
            (None, Stems::SpanishPlural) => spanish::stem(&token.text),
            (None, _) => porter::stem(&token.text),
        };
    }
    tokens
}

/// A piece of what stands for a match: text, or what a group has found.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Text(String),
    Group(usize),
}

/// The pieces of a replacement, in which `$1` is a group, and `\` takes what follows as it is.
fn pieces(f: &Settings<'_>, pattern: &Regex) -> Result<Vec<Piece>> {
    let wrong = || {
        f.wrong(
            "replacement",
            "names a group that the pattern does not have",
        )
    };
    let groups = pattern.captures().map_or(1, |c| c.len());
    let mut out = Vec::new();
    let mut text = String::new();
    let mut chars = f.required_string("replacement")?.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next().ok_or_else(wrong)?),
            '$' => {
                let digit = |c: Option<&char>| c.and_then(|c| c.to_digit(10)).map(|d| d as usize);
                let mut group = digit(chars.peek()).ok_or_else(wrong)?;
                chars.next();
                // More digits belong to it as long as there is such a group.
                while let Some(more) = digit(chars.peek())
                    && group * 10 + more < groups
                {
                    group = group * 10 + more;
                    chars.next();
                }
                if group >= groups {
                    return Err(wrong());
                }
                out.push(Piece::Text(std::mem::take(&mut text)));
                out.push(Piece::Group(group));
            }
            c => text.push(c),
        }
    }
    out.push(Piece::Text(text));
    Ok(out)
}

fn replaced(
    word: &str,
    pattern: &Regex,
    room: &mut Option<Captures>,
    by: &[Piece],
    all: bool,
) -> String {
    let Some(found) = room else {
        return word.to_string();
    };
    let mut out = String::new();
    let mut kept = 0;
    each_match(word, pattern, found, |found, (start, end)| {
        out.push_str(word.get(kept..start).unwrap_or(""));
        for piece in by {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Group(n) => {
                    let group = found.get(*n).and_then(|(a, b)| word.get(a..b));
                    out.push_str(group.unwrap_or(""));
                }
            }
        }
        kept = end;
        all && out.len() < MOST_ADDED_BYTES
    });
    out.push_str(word.get(kept..).unwrap_or(""));
    out
}

/// Gives the matches of a pattern in order, until `each` wants no more, or the operation is to end.
pub(super) fn each_match(
    text: &str,
    pattern: &Regex,
    found: &mut Captures,
    mut each: impl FnMut(&Captures, (usize, usize)) -> bool,
) {
    let mut at = 0;
    let mut going = |units: usize| steps(units).is_ok();
    while at <= text.len() {
        if !matches!(pattern.captures_at(text, at, found, &mut going), Ok(true)) {
            return;
        }
        let Some((start, end)) = found.get(0) else {
            return;
        };
        if !each(found, (start, end)) {
            return;
        }
        at = match end > start {
            true => end,
            // Behind an empty match it looks one character further.
            false => {
                end + text
                    .get(end..)
                    .and_then(|t| t.chars().next())
                    .map_or(1, char::len_utf8)
            }
        };
    }
}

fn without_duplicates(tokens: Vec<Token>) -> Vec<Token> {
    let mut at = None;
    let mut here: HashSet<String> = HashSet::new();
    let mut out = tokens;
    out.retain(|token| {
        if at != Some(token.position) {
            at = Some(token.position);
            here.clear();
        }
        here.insert(token.text.clone())
    });
    out
}

/// Tokens, and those that follow each other as one.
fn shingles(tokens: Vec<Token>, least: usize, most: usize) -> Vec<Token> {
    // Where a token was taken out one stands that is none, as many as a shingle may have beside a real one.
    let mut row: Vec<Option<Token>> = Vec::new();
    for (step, token) in increments(tokens) {
        let gap = step.saturating_sub(1).min(most - 1);
        row.extend(std::iter::repeat_n(None, gap));
        row.push(Some(token));
    }
    let mut out = Vec::new();
    let (mut position, mut bytes) = (0, 0);
    for (from, first) in row.iter().enumerate() {
        let before = out.len();
        for length in std::iter::once(1).chain(least..=most) {
            let Some(parts) = row.get(from..from + length) else {
                break;
            };
            let Some(real) = parts.iter().flatten().next() else {
                continue;
            };
            let words: Vec<&str> = parts
                .iter()
                .map(|p| p.as_ref().map_or("_", |t| t.text.as_str()))
                .collect();
            let text = words.join(" ");
            bytes += text.len();
            if out.len() >= MOST_TOKENS || bytes > MOST_ADDED_BYTES {
                return out;
            }
            let last = parts.iter().flatten().next_back().unwrap_or(real);
            out.push(Token {
                text,
                position,
                length,
                start: first.as_ref().map_or(real.start, |t| t.start),
                end: last.end,
                keyword: real.keyword,
            });
        }
        position += usize::from(out.len() > before);
    }
    out
}
