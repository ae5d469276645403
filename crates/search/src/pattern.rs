//! Patterns (`wildcard`, `regex`) over the terms of paths, and over the names of paths.

use crate::compiler::{Compiler, Made, any_of};
use crate::operator::PathSpec;
use crate::problem::wrong;
use crate::set::TermRange;
use crate::terms::word_prefix;
use errors::Result;

impl Compiler<'_, '_> {
    pub(crate) fn pattern(
        &mut self,
        paths: &[PathSpec],
        query: &[String],
        analyzed: bool,
        regex: bool,
    ) -> Result<Made> {
        if !analyzed {
            self.check_keywords(paths)?;
        }
        let found = self.analyzed(paths)?;
        let mut alternatives: Vec<Made> = Vec::new();
        for text in query {
            let compiled = match regex {
                true => {
                    self.room.take(text.len().saturating_mul(REGEX_BYTES))?;
                    Some(whole_regex(text)?)
                }
                false => None,
            };
            for (path, _) in &found {
                let start = word_prefix(*path);
                let range = TermRange::prefix(self.snapshot.fields.words, start.as_bytes());
                let matches = |term: &[u8]| {
                    let word = term
                        .get(start.len()..)
                        .and_then(|t| std::str::from_utf8(t).ok());
                    word.is_some_and(|w| match &compiled {
                        Some(r) => r.is_match(w),
                        None => wildcard(text, w),
                    })
                };
                alternatives.push(self.set(&[range], &matches)?);
            }
        }
        Ok(any_of(alternatives))
    }

    /// Patterns look at whole strings, unless the search says otherwise.
    fn check_keywords(&self, paths: &[PathSpec]) -> Result<()> {
        let definition = &self.snapshot.definition;
        for path in paths {
            let (name, found) = match path {
                PathSpec::Path(p) => (p, definition.analyzers(p, None)),
                PathSpec::Multi(p, m) => (p, definition.analyzers(p, Some(m))),
                PathSpec::Wildcard(_) => continue,
            };
            if found.is_none_or(|a| !a.index.is_keyword()) {
                return Err(wrong(format!(
                    "path \"{name}\" is analyzed: set \"allowAnalyzedField\" to search it by a pattern"
                )));
            }
        }
        Ok(())
    }
}

/// The most bytes of a compiled expression, and about how many a character of it takes.
const MOST_REGEX_BYTES: usize = 16 << 20;
const REGEX_BYTES: usize = 64;

/// A pattern of regular expressions over a whole term.
pub(crate) fn whole_regex(pattern: &str) -> Result<regex::Regex> {
    let whole = regex::RegexBuilder::new(&format!("^(?:{pattern})$"))
        .dot_matches_new_line(true)
        .size_limit(MOST_REGEX_BYTES)
        .build();
    whole.map_err(|_| {
        wrong(format!(
            "\"regex.query\" is no regular expression: {pattern}"
        ))
    })
}

/// Whether a path's name matches a pattern in which `*` stands for anything.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    matches_pattern(pattern, name, false)
}

/// The same for a term, where `?` is any one character and `\` takes what follows as it is.
pub(crate) fn wildcard(pattern: &str, word: &str) -> bool {
    matches_pattern(pattern, word, true)
}

#[derive(Clone, Copy, PartialEq)]
enum Piece {
    Any,
    One,
    Is(char),
}

fn matches_pattern(pattern: &str, word: &str, single: bool) -> bool {
    let mut chars = pattern.chars();
    let mut pieces = Vec::new();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' => Piece::Any,
            '?' if single => Piece::One,
            '\\' if single => Piece::Is(chars.next().unwrap_or('\\')),
            c => Piece::Is(c),
        });
    }
    let word: Vec<char> = word.chars().collect();
    // Where to go on when what follows the last star does not match: no more than words times pieces in all.
    let (mut p, mut w) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while w < word.len() {
        match (pieces.get(p), word.get(w)) {
            (Some(Piece::Any), _) => {
                star = Some((p, w));
                p += 1;
            }
            (Some(Piece::One), Some(_)) => (p, w) = (p + 1, w + 1),
            (Some(Piece::Is(a)), Some(b)) if a == b => (p, w) = (p + 1, w + 1),
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, w) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pieces
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|r| *r == Piece::Any))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_words() {
        let cases = [
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a?b", "ab", false),
            ("a\\*b", "axb", false),
            ("a\\*b", "a*b", true),
            ("*", "", true),
            ("qu*k", "quickly", false),
        ];
        for (pattern, word, want) in cases {
            assert_eq!(wildcard(pattern, word), want, "{pattern} {word}");
        }
    }
}
