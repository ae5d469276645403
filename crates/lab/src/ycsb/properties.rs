//! Java `.properties` files: the format of workload files.

use crate::fault::{Fault, Result, local};
use std::collections::BTreeMap;
use std::path::Path;

/// Keys and values; a later one wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Adds a file's text.
    pub fn add_text(&mut self, text: &str) -> Result<()> {
        for line in logical_lines(text) {
            let (key, value) = split(&line)?;
            self.0.insert(key, value);
        }
        Ok(())
    }

    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(local(path.display()))?;
        // Such files are ISO 8859-1 by definition and UTF-8 by habit.
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|e| e.into_bytes().iter().map(|&b| char::from(b)).collect());
        self.add_text(&text)
    }

    /// `key=value`, as `-p` takes it.
    pub fn add_pair(&mut self, pair: &str) -> Result<()> {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Fault::Usage(format!("'-p {pair}': key=value is expected")));
        };
        self.set(key.trim(), value.trim());
        Ok(())
    }

    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.0.insert(key.to_string(), value.to_string());
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// The value of a key, parsed; `otherwise` when it is not set.
    pub fn parse<T: std::str::FromStr>(&self, key: &str, otherwise: T) -> Result<T> {
        match self.get(key).map(str::trim) {
            None | Some("") => Ok(otherwise),
            Some(text) => text
                .parse()
                .map_err(|_| Fault::Usage(format!("property {key}: '{text}' cannot be read"))),
        }
    }

    /// `true` or `false` in any case, as Java reads it: everything but `true` is false.
    pub fn flag(&self, key: &str, otherwise: bool) -> bool {
        self.get(key)
            .map_or(otherwise, |v| v.trim().eq_ignore_ascii_case("true"))
    }
}

/// Natural lines joined where one ends with an odd number of backslashes; comments and blank lines left out.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open: Option<String> = None;
    for natural in text.split(['\n', '\r']) {
        let trimmed = natural.trim_start_matches([' ', '\t', '\x0c']);
        if open.is_none() && (trimmed.is_empty() || trimmed.starts_with(['#', '!'])) {
            continue;
        }
        let mut line = open.take().unwrap_or_default();
        let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            line.push_str(&trimmed[..trimmed.len() - 1]);
            open = Some(line);
        } else {
            line.push_str(trimmed);
            lines.push(line);
        }
    }
    lines.extend(open);
    lines
}

/// Key and value of a logical line: the key ends at the first unescaped `=`, `:` or blank.
fn split(line: &str) -> Result<(String, String)> {
    let mut end = line.len();
    let mut escaped = false;
    for (i, c) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if matches!(c, '=' | ':' | ' ' | '\t' | '\x0c') {
            end = i;
            break;
        }
    }
    let (key, rest) = line.split_at(end);
    let blank = [' ', '\t', '\x0c'];
    let rest = rest.trim_start_matches(blank);
    let value = match rest.strip_prefix(['=', ':']) {
        Some(after) => after.trim_start_matches(blank),
        None => rest,
    };
    Ok((unescape(key)?, unescape(value)?))
}

fn unescape(s: &str) -> Result<String> {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\x0c'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16)
                    .ok()
                    .filter(|_| digits.len() == 4);
                let Some(c) = code.map(|n| char::from_u32(n).unwrap_or('\u{fffd}')) else {
                    return Err(Fault::Usage(format!("properties: malformed \\u in '{s}'")));
                };
                out.push(c);
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<(String, String)> {
        let mut p = Properties::default();
        p.add_text(text).unwrap();
        p.iter().map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect()
    }

    #[test]
    fn the_format_as_java_reads_it() {
        for (text, want) in [
            (
                "a=1\nb = 2\r\nc:3",
                &[("a", "1"), ("b", "2"), ("c", "3")][..],
            ),
            ("# no\n! no\n  \n a 1", &[("a", "1")]),
            ("fruits = apple, \\\n    pear", &[("fruits", "apple, pear")]),
            ("path=c\\:\\\\x\\t\\u0041", &[("path", "c:\\x\tA")]),
            ("a\\ b\\=c=d", &[("a b=c", "d")]),
            ("empty", &[("empty", "")]),
            ("empty=", &[("empty", "")]),
            ("a==b", &[("a", "=b")]),
            ("a=1\na=2", &[("a", "2")]),
            ("tail=x  ", &[("tail", "x  ")]),
            ("even=x\\\\\nb=2", &[("b", "2"), ("even", "x\\")]),
        ] {
            assert_eq!(parse(text), pairs(want), "{text:?}");
        }
        assert!(Properties::default().add_text("a=\\u00").is_err());
    }

    #[test]
    fn values_are_typed() {
        let mut p = Properties::default();
        p.add_pair("recordcount=5000").unwrap();
        p.add_pair("readallfields=FALSE").unwrap();
        p.add_pair("broken=x").unwrap();
        assert!(p.add_pair("nothing").is_err());
        assert_eq!(p.parse("recordcount", 0u64).unwrap(), 5000);
        assert_eq!(p.parse("absent", 7u64).unwrap(), 7);
        assert!(p.parse("broken", 0u64).is_err());
        assert!(!p.flag("readallfields", true));
        assert!(p.flag("absent", true));
    }
}
