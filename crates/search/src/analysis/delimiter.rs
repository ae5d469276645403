//! The `wordDelimiterGraph` filter: tokens in parts, where their letters, digits and marks meet.
//!
//! Source: Lucene's `WordDelimiterGraphFilter` and `WordDelimiterIterator`.

use super::Token;
use super::settings::Settings;
use super::token_filter::{Words, increments};
use errors::Result;
use icu_properties::CodePointMapData;
use icu_properties::props::GeneralCategory;

const LOWER: u8 = 1;
const UPPER: u8 = 2;
const ALPHA: u8 = 3;
const DIGIT: u8 = 4;
const DELIMITER: u8 = 8;

#[derive(Clone, Debug)]
pub(super) struct Delimiter {
    word_parts: bool,
    number_parts: bool,
    join_words: bool,
    join_numbers: bool,
    join_all: bool,
    original: bool,
    at_case: bool,
    at_digits: bool,
    possessive: bool,
    ignore_keywords: bool,
    protected: Words,
}

impl Delimiter {
    pub fn parse(f: &Settings<'_>) -> Result<Delimiter> {
        let options = f.get("delimiterOptions");
        let place = f.place("delimiterOptions");
        let o = Settings::of(&place, options.unwrap_or(bson::Doc::EMPTY.as_val()))?;
        let protected = match f.get("protectedWords") {
            None => Words::default(),
            Some(v) => {
                let p = Settings::of(&f.place("protectedWords"), v)?;
                let words = p.strings("words")?;
                let words = words.ok_or_else(|| p.wrong("words", "is required"))?;
                let words = Words::of(&words, p.flag("ignoreCase", true)?);
                p.end()?;
                words
            }
        };
        let delimiter = Delimiter {
            word_parts: o.flag("generateWordParts", true)?,
            number_parts: o.flag("generateNumberParts", true)?,
            join_words: o.flag("concatenateWords", false)?,
            join_numbers: o.flag("concatenateNumbers", false)?,
            join_all: o.flag("concatenateAll", false)?,
            original: o.flag("preserveOriginal", true)?,
            at_case: o.flag("splitOnCaseChange", true)?,
            at_digits: o.flag("splitOnNumerics", true)?,
            possessive: o.flag("stemEnglishPossessive", true)?,
            ignore_keywords: o.flag("ignoreKeywords", false)?,
            protected,
        };
        o.end()?;
        Ok(delimiter)
    }

    fn gives_parts(&self, kind: u8) -> bool {
        self.word_parts && kind & ALPHA != 0 || self.number_parts && kind & DIGIT != 0
    }

    fn joins(&self, kind: u8) -> bool {
        self.join_words && kind & ALPHA != 0 || self.join_numbers && kind & DIGIT != 0
    }

    pub fn apply(&self, tokens: Vec<Token>) -> Vec<Token> {
        let mut out: Vec<Token> = Vec::new();
        let (mut place, mut gap) = (0, 0);
        for (step, token) in increments(tokens) {
            if self.ignore_keywords && token.keyword {
                place += step;
                out.push(token.at(place));
                continue;
            }
            gap += step;
            let chars: Vec<char> = token.text.chars().collect();
            let mut parts = Parts::of(self, &chars);
            parts.advance();
            let whole = parts.current == 0 && parts.end == Some(chars.len());
            if whole || self.protected.has(&token.text) {
                place += std::mem::take(&mut gap);
                out.push(token.at(place));
                continue;
            }
            if parts.end.is_none() {
                // Nothing but marks.
                if self.original {
                    gap = 0;
                    place += step;
                    out.push(token.at(place));
                }
                continue;
            }
            let mut at = 0;
            for piece in self.pieces(&mut parts, &token.text) {
                place += std::mem::take(&mut gap) + piece.from - at;
                at = piece.from;
                let mut part = token.clone().at(place);
                part.length = piece.to - piece.from;
                part.text = piece.text;
                out.push(part);
            }
        }
        out
    }

    fn pieces(&self, parts: &mut Parts<'_>, original: &str) -> Vec<Piece> {
        let mut all = Pieces::default();
        if parts.is_single_word() {
            all.put(parts.piece(0));
            all.place = 1;
        } else {
            let (mut run, mut whole) = (Run::default(), Run::default());
            while parts.end.is_some() {
                let kind = parts.kind();
                if run.count > 0 && run.kind & kind == 0 {
                    all.flush(&mut run, self);
                }
                if self.joins(kind) {
                    run.add(parts, all.place);
                }
                if self.join_all {
                    whole.add(parts, all.place);
                }
                if self.gives_parts(kind) {
                    all.put(parts.piece(all.place));
                    all.place += 1;
                }
                parts.advance();
            }
            if run.count > 0 {
                all.flush(&mut run, self);
            }
            if whole.count > all.last_joined {
                all.place += usize::from(all.place == whole.from);
                let piece = whole.piece(all.place);
                all.put(piece);
            }
        }
        let mut pieces = all.pieces;
        pieces.sort_by_key(|p| (p.start, std::cmp::Reverse(p.end)));
        if self.original {
            let to = all.place.max(1);
            pieces.insert(0, Piece::new(original.to_string(), (0, to), (0, 0)));
        }
        pieces
    }
}

/// A token that a part becomes.
struct Piece {
    text: String,
    /// Positions, from the token's own on.
    from: usize,
    to: usize,
    start: usize,
    end: usize,
}

impl Piece {
    fn new(text: String, (from, to): (usize, usize), (start, end): (usize, usize)) -> Piece {
        Piece {
            text,
            from,
            to,
            start,
            end,
        }
    }
}

#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    place: usize,
    /// How many parts the last run had.
    last_joined: usize,
}

impl Pieces {
    fn put(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    fn flush(&mut self, run: &mut Run, options: &Delimiter) {
        self.place += usize::from(self.place == run.from);
        self.last_joined = run.count;
        if run.count != 1 || !options.gives_parts(run.kind) {
            let piece = run.piece(self.place);
            self.put(piece);
        }
        *run = Run::default();
    }
}

/// Parts that become one token.
#[derive(Default)]
struct Run {
    text: String,
    from: usize,
    start: usize,
    end: usize,
    kind: u8,
    count: usize,
}

impl Run {
    fn add(&mut self, parts: &Parts<'_>, place: usize) {
        if self.count == 0 {
            (self.kind, self.start, self.from) = (parts.kind(), parts.current, place);
        }
        self.text.push_str(&parts.text());
        self.end = parts.end.unwrap_or(self.end);
        self.count += 1;
    }

    fn piece(&self, place: usize) -> Piece {
        Piece::new(
            self.text.clone(),
            (self.from, place),
            (self.start, self.end),
        )
    }
}

/// Goes over the parts of a token.
struct Parts<'a> {
    options: &'a Delimiter,
    chars: &'a [char],
    low: usize,
    high: usize,
    current: usize,
    /// `None` behind the last.
    end: Option<usize>,
    final_possessive: bool,
    skips_possessive: bool,
}

impl<'a> Parts<'a> {
    fn of(options: &'a Delimiter, chars: &'a [char]) -> Parts<'a> {
        let is_mark = |c: &char| kind_of(*c) & DELIMITER != 0;
        let low = chars.iter().take_while(|c| is_mark(c)).count();
        let marks = chars.iter().rev().take_while(|c| is_mark(c)).count();
        let mut parts = Parts {
            options,
            chars,
            low,
            high: (chars.len() - marks).max(low),
            current: low,
            end: Some(0),
            final_possessive: false,
            skips_possessive: false,
        };
        parts.final_possessive = parts.is_possessive(parts.high);
        parts
    }

    fn kind_at(&self, at: usize) -> u8 {
        self.chars.get(at).map_or(DELIMITER, |c| kind_of(*c))
    }

    fn advance(&mut self) {
        match self.end {
            Some(0) => self.current = self.low,
            Some(end) => self.current = end,
            None => return,
        }
        if std::mem::take(&mut self.skips_possessive) {
            self.current += 2;
        }
        while self.current < self.high && self.kind_at(self.current) & DELIMITER != 0 {
            self.current += 1;
        }
        if self.current >= self.high {
            self.end = None;
            return;
        }
        let mut last = self.kind_at(self.current);
        let mut end = self.current + 1;
        while end < self.high {
            let kind = self.kind_at(end);
            if self.breaks(last, kind) {
                break;
            }
            last = kind;
            end += 1;
        }
        self.skips_possessive = end + 1 < self.high && self.is_possessive(end + 2);
        self.end = Some(end);
    }

    fn breaks(&self, last: u8, kind: u8) -> bool {
        let alpha = |k: u8| k & ALPHA != 0;
        let digit = |k: u8| k & DIGIT != 0;
        let crosses = alpha(last) && digit(kind) || digit(last) && alpha(kind);
        if last & kind != 0
            || !self.options.at_case && alpha(last) && alpha(kind)
            || last & UPPER != 0 && alpha(kind)
        {
            return false;
        }
        self.options.at_digits || !crosses
    }

    /// Whether what ends at a place ends with `'s`.
    fn is_possessive(&self, at: usize) -> bool {
        let ends = at == self.high || self.kind_at(at) & DELIMITER != 0;
        let (Some(mark), Some(s)) = (at.checked_sub(2), at.checked_sub(1)) else {
            return false;
        };
        self.options.possessive
            && at > 2
            && self.chars.get(mark) == Some(&'\'')
            && matches!(self.chars.get(s), Some('s' | 'S'))
            && self.kind_at(mark - 1) & ALPHA != 0
            && ends
    }

    fn is_single_word(&self) -> bool {
        let end = match self.final_possessive {
            true => self.high - 2,
            false => self.high,
        };
        self.current == self.low && self.end == Some(end)
    }

    fn kind(&self) -> u8 {
        match self.kind_at(self.current) {
            LOWER | UPPER => ALPHA,
            kind => kind,
        }
    }

    fn text(&self) -> String {
        let end = self.end.unwrap_or(self.current);
        let piece = self.chars.get(self.current..end);
        piece.unwrap_or(&[]).iter().collect()
    }

    fn piece(&self, place: usize) -> Piece {
        let end = self.end.unwrap_or(self.current);
        Piece::new(self.text(), (place, place + 1), (self.current, end))
    }
}

fn kind_of(c: char) -> u8 {
    use GeneralCategory as C;
    if c.is_ascii() {
        return match c {
            'a'..='z' => LOWER,
            'A'..='Z' => UPPER,
            '0'..='9' => DIGIT,
            _ => DELIMITER,
        };
    }
    if u32::from(c) < 0x100 {
        return match c {
            _ if c.is_lowercase() => LOWER,
            _ if c.is_uppercase() => UPPER,
            _ => DELIMITER,
        };
    }
    if u32::from(c) > 0xffff {
        // Lucene sees halves of it, which are letters and digits to it.
        return ALPHA | DIGIT;
    }
    match CodePointMapData::<GeneralCategory>::new().get(c) {
        C::UppercaseLetter => UPPER,
        C::LowercaseLetter => LOWER,
        C::TitlecaseLetter
        | C::ModifierLetter
        | C::OtherLetter
        | C::NonspacingMark
        | C::EnclosingMark
        | C::SpacingMark => ALPHA,
        C::DecimalNumber | C::LetterNumber | C::OtherNumber => DIGIT,
        _ => DELIMITER,
    }
}
