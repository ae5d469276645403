//! The language of tables and pages. The code says everything in English; another language is a file that gives the same in its own
//! words, and what is missing there stays English.
//!
//! Invariant: a text is looked up whole, with the places of its values (`{0}`, `{1}`), never put together from words.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lang {
    En,
    Zh,
}

static CHINESE: AtomicBool = AtomicBool::new(false);

/// Lines of an English text, a tabulator and the Chinese one.
const ZH: &str = include_str!("zh.tsv");

pub fn set(lang: Lang) {
    CHINESE.store(lang == Lang::Zh, Ordering::Relaxed);
}

/// The language as pages name it.
pub fn code() -> &'static str {
    match CHINESE.load(Ordering::Relaxed) {
        true => "zh-Hans",
        false => "en",
    }
}

fn chinese() -> &'static HashMap<&'static str, &'static str> {
    static TABLE: OnceLock<HashMap<&str, &str>> = OnceLock::new();
    TABLE.get_or_init(|| ZH.lines().filter_map(|l| l.split_once('\t')).collect())
}

/// A text in the language that was asked for.
pub fn tr(text: &'static str) -> &'static str {
    known(text)
}

/// The same of a text that comes from elsewhere: of a result, which is written in English.
pub fn known(text: &str) -> &str {
    match CHINESE.load(Ordering::Relaxed) {
        true => chinese().get(text).copied().unwrap_or(text),
        false => text,
    }
}

/// A text with its values.
pub fn filled(text: &'static str, values: &[&dyn std::fmt::Display]) -> String {
    let mut out = tr(text).to_string();
    for (i, value) in values.iter().enumerate() {
        // A value that holds braces itself stands in no place.
        let value = value.to_string().replace('{', "\u{1}");
        out = out.replace(&format!("{{{i}}}"), &value);
    }
    out.replace('\u{1}', "{")
}

/// `text!("{0} is faster than {1}", a, b)`, in the language that was asked for.
#[macro_export]
macro_rules! text {
    ($text:literal $(, $value:expr)* $(,)?) => {
        $crate::lang::filled($text, &[$(&$value as &dyn std::fmt::Display),*])
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The texts of `tr("…")` and `text!("…")` in the sources.
    fn collect_texts(folder: &Path, all: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect_texts(&path, all);
                continue;
            }
            if path.extension().is_none_or(|e| e != "rs") || path.ends_with("lang.rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for call in ["tr(", "text!(", "column("] {
                let parts: Vec<&str> = source.split(call).collect();
                for pair in parts.windows(2) {
                    // The end of a longer name is another call.
                    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
                    let rest = pair[1].trim_start().strip_prefix('"');
                    let Some(rest) = rest.filter(|_| !pair[0].ends_with(part_of_name)) else {
                        continue;
                    };
                    let mut text = String::new();
                    let mut chars = rest.chars();
                    while let Some(c) = chars.next() {
                        match c {
                            '"' => break,
                            '\\' => text.extend(chars.next()),
                            c => text.push(c),
                        }
                    }
                    all.insert(text);
                }
            }
        }
    }

    fn places(text: &str) -> Vec<usize> {
        (0..9)
            .filter(|i| text.contains(&format!("{{{i}}}")))
            .collect()
    }

    #[test]
    fn everything_is_said_in_chinese_too_with_the_same_values() {
        let mut all = BTreeSet::new();
        collect_texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
        assert!(all.len() > 100, "{} texts", all.len());
        let missing: Vec<&String> = all
            .iter()
            .filter(|t| !chinese().contains_key(t.as_str()))
            .collect();
        assert!(missing.is_empty(), "not in zh.tsv: {missing:#?}");
        for (english, other) in chinese() {
            assert_eq!(places(english), places(other), "{english}");
        }
    }

    #[test]
    fn values_stand_where_the_text_has_them() {
        assert_eq!(
            filled("no such text {1} {0}", &[&"{1}", &2]),
            "no such text 2 {1}"
        );
    }
}
