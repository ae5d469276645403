//! Regular expressions: PCRE2 with MongoDB's options, and plain byte comparison where the pattern
//! is only a literal.
//!
//! A match that meets a bound of [`pcre`] is no match, as in MongoDB.

use super::watch::WorkMeter;
use bson::Value;
use errors::{Result, err};
use std::sync::Arc;

/// The longest pattern that MongoDB accepts.
const MAX_PATTERN_BYTES: usize = 16 * 1024;
/// The most work of a match that cannot be ended: it is about 64 MB that are gone over.
const UNWATCHED_UNITS: usize = 1 << 20;

/// A compiled regular expression.
pub struct CompiledRegex {
    pattern: Box<str>,
    options: Box<str>,
    matcher: Matcher,
}

enum Matcher {
    /// `^literal`
    Prefix(Box<[u8]>),
    /// `literal`
    Contains(Box<memchr::memmem::Finder<'static>>),
    Pcre(Arc<pcre::Regex>),
}

fn read_with(options: &str) -> pcre::PatternOptions {
    pcre::PatternOptions {
        caseless: options.contains('i'),
        multi_line: options.contains('m'),
        extended: options.contains('x'),
        dotall: options.contains('s'),
    }
}

impl CompiledRegex {
    /// Compiles. Codes: 51108 unknown option, 51091 malformed pattern, BadValue for a NUL inside.
    pub fn new(pattern: &str, options: &str) -> Result<CompiledRegex> {
        if let Some(c) = options.chars().find(|c| !"imsux".contains(*c)) {
            return Err(err!(51108, "invalid flag in regex options: {c}").into());
        }
        if pattern.contains('\0') {
            return Err(err!(
                BadValue,
                "Regular expression cannot contain an embedded null byte"
            )
            .into());
        }
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(err!(
                51091,
                "Regular expression is invalid: regular expression is too large"
            )
            .into());
        }
        let mut sorted: Vec<char> = options.chars().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let options: String = sorted.into_iter().collect();
        let matcher = match literal(pattern, &options) {
            Some((true, text)) => Matcher::Prefix(text.as_bytes().into()),
            Some((false, text)) => Matcher::Contains(Box::new(
                memchr::memmem::Finder::new(text.as_bytes()).into_owned(),
            )),
            None => Matcher::Pcre(Arc::new(
                pcre::Regex::new(pattern, read_with(&options))
                    .map_err(|e| err!(51091, "Regular expression is invalid: {e}"))?,
            )),
        };
        Ok(CompiledRegex {
            pattern: pattern.into(),
            options: options.into(),
            matcher,
        })
    }

    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Sorted, without duplicates.
    pub fn options(&self) -> &str {
        &self.options
    }

    pub fn to_value(&self) -> Value {
        Value::regex(&self.pattern, &self.options)
    }

    /// Whether it is found in the string. It cannot be ended, and too much work is no match.
    pub fn is_match(&self, s: &[u8]) -> bool {
        self.found(s, &mut within(UNWATCHED_UNITS))
    }

    /// The same; the operation may end the test.
    #[inline]
    pub(crate) fn matches(&self, s: &[u8], watch: &WorkMeter<'_>) -> bool {
        match watch.vars() {
            Some(_) => self.found(s, &mut |units| !watch.spent(units)),
            None => self.is_match(s),
        }
    }

    fn found(&self, s: &[u8], may_go_on: pcre::MayGoOn<'_>) -> bool {
        match &self.matcher {
            Matcher::Prefix(p) => s.starts_with(p),
            Matcher::Contains(f) => f.find(s).is_some(),
            Matcher::Pcre(p) => {
                std::str::from_utf8(s).is_ok_and(|s| p.is_match(s, may_go_on).unwrap_or(false))
            }
        }
    }

    /// What every match must start with, and whether starting with it is all that the expression
    /// asks: `^abc` gives `("abc", true)`, `^abc.*d` `("abc", false)`, `abc` `("", false)`.
    pub fn prefix(&self) -> (String, bool) {
        prefix(&self.pattern, &self.options)
    }
}

/// Allows so many units of work.
fn within(mut left: usize) -> impl FnMut(usize) -> bool {
    move |units| {
        left = left.saturating_sub(units);
        left > 0
    }
}

/// A pattern without any special character, perhaps after one `^`: `(anchored, text)`.
fn literal<'a>(pattern: &'a str, options: &str) -> Option<(bool, &'a str)> {
    if options.contains(['i', 'x']) {
        return None;
    }
    let (anchored, text) = match pattern.strip_prefix('^') {
        Some(_) if options.contains('m') => return None,
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    text.bytes()
        .all(|b| !br"\^$.|?*+()[]{}".contains(&b))
        .then_some((anchored, text))
}

fn prefix(pattern: &str, options: &str) -> (String, bool) {
    let none = (String::new(), false);
    if options.contains(['i', 'x', 'm']) {
        return none;
    }
    let Some(rest) = pattern
        .strip_prefix('^')
        .or_else(|| pattern.strip_prefix("\\A"))
    else {
        return none;
    };
    // An alternation anywhere may leave the prefix out.
    if rest.contains('|') {
        return none;
    }
    let mut out = String::new();
    let mut chars = rest.chars().peekable();
    while let Some(c) = chars.next() {
        let literal = match c {
            '\\' => match chars.next() {
                // An escaped non-alphanumeric is itself; an escaped letter or digit is a class or
                // an assertion.
                Some(e) if e.is_ascii() && !e.is_ascii_alphanumeric() => e,
                _ => return (out, false),
            },
            '.' => {
                // A `.*` at the end adds nothing (with `s`, or for texts without newlines: only `s`
                // is exact).
                let all: String = std::iter::once(c).chain(chars).collect();
                return (out, all == ".*" && options.contains('s'));
            }
            '^' | '$' | '(' | ')' | '[' | ']' | '{' | '}' | '*' | '+' | '?' => return (out, false),
            c => c,
        };
        match chars.peek() {
            // The character may be absent.
            Some('*' | '?' | '{') => return (out, false),
            Some('+') => {
                out.push(literal);
                return (out, false);
            }
            _ => out.push(literal),
        }
    }
    (out, true)
}

impl Clone for CompiledRegex {
    fn clone(&self) -> CompiledRegex {
        let matcher = match &self.matcher {
            Matcher::Prefix(p) => Matcher::Prefix(p.clone()),
            Matcher::Contains(f) => Matcher::Contains(f.clone()),
            Matcher::Pcre(p) => Matcher::Pcre(p.clone()),
        };
        CompiledRegex {
            pattern: self.pattern.clone(),
            options: self.options.clone(),
            matcher,
        }
    }
}

impl std::fmt::Debug for CompiledRegex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}/{}", self.pattern, self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (p, o, want, exact) in [
            ("^abc", "", "abc", true),
            ("^abc.*", "s", "abc", true),
            ("^abc.*", "", "abc", false),
            ("^abc.*d", "", "abc", false),
            ("^ab?c", "", "a", false),
            ("^ab+c", "", "ab", false),
            ("^a\\.b", "", "a.b", true),
            ("^a\\db", "", "a", false),
            ("^a|b", "", "", false),
            ("^abc", "i", "", false),
            ("^abc$", "", "abc", false),
            ("abc", "", "", false),
            ("^", "", "", true),
        ] {
            assert_eq!(prefix(p, o), (want.to_string(), exact), "/{p}/{o}");
        }
    }

    #[test]
    fn matching() {
        for (p, o, s, want) in [
            ("^abc", "", "abcd", true),
            ("^abc", "", "xabc", false),
            ("bc", "", "abcd", true),
            ("BC", "i", "abcd", true),
            ("^b", "m", "a\nb", true),
            ("^b", "", "a\nb", false),
            ("a.b", "", "a\nb", false),
            ("a.b", "s", "a\nb", true),
            ("a b # c", "x", "ab", true),
            ("^\\w+$", "", "abc", true),
            ("(?<=a)b(?!c)", "", "abd", true),
            ("É", "i", "é", true),
        ] {
            assert_eq!(
                CompiledRegex::new(p, o).unwrap().is_match(s.as_bytes()),
                want,
                "/{p}/{o} {s:?}"
            );
        }
        assert_eq!(
            CompiledRegex::new("[a", "")
                .unwrap_err()
                .into_error()
                .code
                .0,
            51091
        );
        assert_eq!(
            CompiledRegex::new("a", "g")
                .unwrap_err()
                .into_error()
                .code
                .0,
            51108
        );
        // Exponential backtracking ends at PCRE2's bound.
        let evil = CompiledRegex::new("^(a+)+$", "").unwrap();
        assert!(!evil.is_match("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab".as_bytes()));
        let hot = CompiledRegex::new("a[0-9]+z", "").unwrap();
        assert!((0..1000).all(|_| hot.is_match(b"__a123z__")));
    }
}
