//! Collations: the order of strings in a language, as ICU has it.
//!
//! A string is compared by its sort key. [`Collation::fold`] puts sort keys in the place of
//! strings, so that folded values compare, hash and encode like any others: filters, sorts and
//! index keys all use the same folded values.
//!
//! Invariant: two values are equal (or in order) under a collation exactly when their folded values
//! are.

use bson::{Doc, DocBuf, Val, Value, Writer, tag};
use errors::{Result, err};
use icu_collator::options::{AlternateHandling, CaseLevel, CollatorOptions, MaxVariable, Strength};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};
use icu_locale_core::Locale;
use std::cmp::Ordering;
use std::sync::Arc;

/// A collation other than the simple one. Cheap to clone.
#[derive(Clone)]
pub struct Collation(Arc<Inner>);

struct Inner {
    spec: DocBuf,
    /// `None`: by code point, the order of the POSIX locale.
    collator: Option<CollatorBorrowed<'static>>,
}

impl std::fmt::Debug for Collation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.spec.as_doc())
    }
}

/// The same rules, as complete specifications tell.
impl PartialEq for Collation {
    fn eq(&self, other: &Collation) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.spec == other.0.spec
    }
}

impl Eq for Collation {}

/// What may be written after `@collation=` in ICU's old locale names, and its name in BCP 47.
const VARIANTS: [(&str, &str); 14] = [
    ("phonebook", "phonebk"),
    ("traditional", "trad"),
    ("dictionary", "dict"),
    ("gb2312han", "gb2312"),
    ("search", "search"),
    ("searchjl", "searchjl"),
    ("standard", "standard"),
    ("pinyin", "pinyin"),
    ("stroke", "stroke"),
    ("unihan", "unihan"),
    ("zhuyin", "zhuyin"),
    ("compat", "compat"),
    ("eor", "eor"),
    ("emoji", "emoji"),
];
/// Languages with the root's order: only for these can the accents be compared backwards, as
/// Canadian French does.
const UNTAILORED: [&str; 8] = ["en", "fr", "de", "it", "pt", "nl", "ga", "id"];

/// A name such as `de_AT@collation=phonebook` in BCP 47; `None` when it is no locale's.
pub fn bcp47(locale: &str) -> Option<String> {
    let (name, variant) = match locale.split_once('@') {
        Some((n, v)) => (n, Some(v.strip_prefix("collation=")?)),
        None => (locale, None),
    };
    let mut out = match name {
        "fa_AF" => "fa-AF".to_string(),
        n => n.replace('_', "-"),
    };
    if let Some(v) = variant {
        let (_, short) = VARIANTS.iter().find(|(long, _)| *long == v)?;
        out.push_str(if out.contains("-u-") {
            "-co-"
        } else {
            "-u-co-"
        });
        out.push_str(short);
    }
    Some(out)
}

impl Collation {
    /// From a complete specification; `None` for the simple collation.
    pub fn new(spec: Doc<'_>) -> Result<Option<Collation>> {
        let text = |name: &str| spec.get(name).and_then(|v| v.as_str());
        let on = |name: &str| spec.get(name).is_some_and(|v| v.truthy());
        let locale = text("locale").unwrap_or("simple");
        if locale == "simple" {
            return Ok(None);
        }
        if locale == "en_US_POSIX" {
            return Ok(Some(Collation(Arc::new(Inner {
                spec: spec.to_buf(),
                collator: None,
            }))));
        }
        let invalid = || err!(BadValue, "Field 'locale' is invalid in: {spec}");
        let mut name = bcp47(locale).ok_or_else(invalid)?;
        let language = name.split('-').next().unwrap_or("").to_string();
        if on("backwards") && UNTAILORED.contains(&language.as_str()) {
            name = "fr-CA".to_string();
        } else if name == "fr-CA" && spec.get("backwards").is_some() {
            name = "fr".to_string();
        }
        let locale: Locale = name.parse().map_err(|_| invalid())?;
        let mut preferences = CollatorPreferences::from(&locale);
        preferences.numeric_ordering = Some(match on("numericOrdering") {
            true => CollationNumericOrdering::True,
            false => CollationNumericOrdering::False,
        });
        preferences.case_first = match text("caseFirst") {
            Some("upper") => Some(CollationCaseFirst::Upper),
            Some("lower") => Some(CollationCaseFirst::Lower),
            Some("off") => Some(CollationCaseFirst::False),
            _ => None,
        };
        let mut options = CollatorOptions::default();
        options.strength = Some(match spec.get("strength").and_then(|v| v.to_i64_exact()) {
            Some(1) => Strength::Primary,
            Some(2) => Strength::Secondary,
            Some(4) => Strength::Quaternary,
            Some(5) => Strength::Identical,
            _ => Strength::Tertiary,
        });
        options.case_level = Some(if on("caseLevel") {
            CaseLevel::On
        } else {
            CaseLevel::Off
        });
        options.alternate_handling = match text("alternate") {
            Some("shifted") => Some(AlternateHandling::Shifted),
            Some(_) => Some(AlternateHandling::NonIgnorable),
            None => None,
        };
        options.max_variable = match text("maxVariable") {
            Some("space") => Some(MaxVariable::Space),
            Some(_) => Some(MaxVariable::Punctuation),
            None => None,
        };
        let collator = Collator::try_new(preferences, options).map_err(|_| invalid())?;
        Ok(Some(Collation(Arc::new(Inner {
            spec: spec.to_buf(),
            collator: Some(collator),
        }))))
    }

    /// The complete specification.
    pub fn spec(&self) -> Doc<'_> {
        self.0.spec.as_doc()
    }

    /// Whether a value's place depends on a collation: it is or holds a string.
    pub fn affects(v: Val<'_>) -> bool {
        match v.tag {
            tag::STRING | tag::SYMBOL => true,
            tag::DOCUMENT | tag::ARRAY => v
                .as_container()
                .is_some_and(|d| d.values().any(Collation::affects)),
            _ => false,
        }
    }

    /// The value with sort keys for strings.
    pub fn fold(&self, v: Val<'_>) -> Value {
        match v.tag {
            tag::STRING | tag::SYMBOL => self.key(v),
            tag::DOCUMENT | tag::ARRAY if Collation::affects(v) => {
                let array = v.tag == tag::ARRAY;
                let mut w = if array {
                    Writer::new_array()
                } else {
                    Writer::new()
                };
                self.fill(v.as_container().unwrap_or(Doc::EMPTY), array, &mut w);
                if array {
                    w.finish_array()
                } else {
                    Value::from(w.finish())
                }
            }
            _ => v.to_value(),
        }
    }

    /// `fold`, or the value itself where nothing changes.
    pub fn with<R>(this: Option<&Collation>, v: Val<'_>, f: impl FnOnce(Val<'_>) -> R) -> R {
        match this {
            Some(c) if Collation::affects(v) => f(c.fold(v).as_val()),
            _ => f(v),
        }
    }

    /// The order of the folded values, without folding more of them than tells them apart.
    pub fn compare(&self, a: Val<'_>, b: Val<'_>) -> Ordering {
        match &self.0.collator {
            Some(collator) => {
                bson::order::compare_by(a, b, &|a: &[u8], b: &[u8]| collator.compare_utf8(a, b))
            }
            None => bson::order::compare(a, b),
        }
    }

    fn key(&self, v: Val<'_>) -> Value {
        let text = v.str_bytes().unwrap_or(&[]);
        let Some(collator) = &self.0.collator else {
            return Value::str_from_bytes(text);
        };
        let mut key = Vec::new();
        let Ok(()) = collator.write_sort_key_utf8_to(text, &mut key);
        Value::str_from_bytes(&key)
    }

    fn fill(&self, d: Doc<'_>, array: bool, w: &mut Writer) {
        for e in d {
            let folded = self.fold(e.val);
            if array {
                w.push(folded.as_val());
            } else {
                w.val(e.name, folded.as_val());
            }
        }
    }
}

/// The order of two values, under a collation when there is one.
#[inline]
pub fn compare(collation: Option<&Collation>, a: Val<'_>, b: Val<'_>) -> Ordering {
    match collation {
        Some(c) => c.compare(a, b),
        None => bson::order::compare(a, b),
    }
}

/// Whether two values are equal in that order.
#[inline]
pub fn equal(collation: Option<&Collation>, a: Val<'_>, b: Val<'_>) -> bool {
    match collation {
        Some(c) => c.compare(a, b).is_eq(),
        None => bson::order::equal(a, b),
    }
}

/// The key of a value in that order.
pub fn key_of(collation: Option<&Collation>, v: Val<'_>) -> Vec<u8> {
    Collation::with(collation, v, bson::key::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering;

    fn collation(text: &str) -> Collation {
        let d = bson::json::parse(text).unwrap();
        Collation::new(d.as_doc()).unwrap().unwrap()
    }

    #[test]
    fn orders() {
        use Ordering::*;
        for (spec, a, b, want) in [
            (r#"{"locale":"en","strength":2}"#, "abc", "ABC", Equal),
            (r#"{"locale":"en","strength":1}"#, "resume", "résumé", Equal),
            (r#"{"locale":"en","strength":2}"#, "resume", "résumé", Less),
            (r#"{"locale":"en"}"#, "a", "B", Less),
            (r#"{"locale":"en"}"#, "a", "A", Less),
            (r#"{"locale":"en","caseFirst":"upper"}"#, "a", "A", Greater),
            (
                r#"{"locale":"en","strength":1,"caseLevel":true}"#,
                "a",
                "A",
                Less,
            ),
            (
                r#"{"locale":"en","numericOrdering":true}"#,
                "a10",
                "a2",
                Greater,
            ),
            (r#"{"locale":"en"}"#, "a10", "a2", Less),
            (
                r#"{"locale":"en","alternate":"shifted","strength":1}"#,
                "a-b c",
                "abc",
                Equal,
            ),
            (
                r#"{"locale":"en","alternate":"shifted","maxVariable":"space","strength":1}"#,
                "a-b",
                "ab",
                Less,
            ),
            (r#"{"locale":"sv"}"#, "ä", "z", Greater),
            (r#"{"locale":"de"}"#, "ä", "z", Less),
            (r#"{"locale":"fr"}"#, "cote\u{301}", "co\u{302}te", Less),
            (
                r#"{"locale":"fr","backwards":true}"#,
                "cote\u{301}",
                "co\u{302}te",
                Greater,
            ),
        ] {
            let c = collation(spec);
            let (x, y) = (Value::from(a), Value::from(b));
            assert_eq!(c.compare(x.as_val(), y.as_val()), want, "{spec} {a} {b}");
        }
    }

    /// Filters and indexes go by folded values, sorts and sets of expressions by `compare`: they
    /// must not differ.
    #[test]
    fn compares_as_folded_values_do() {
        use rand::{Rng, SeedableRng, seq::IndexedRandom};
        let mut r = rand::rngs::StdRng::seed_from_u64(7);
        let pieces = [
            "a",
            "A",
            "b",
            "ä",
            "a\u{308}",
            "e\u{301}\u{302}",
            "e\u{302}\u{301}",
            "é",
            "ß",
            "ss",
            "0",
            "1",
            "10",
            "٣",
            " ",
            "-",
            "_",
            "$",
            "",
            "\u{0}",
            "\u{200b}",
            "\u{fffd}",
            "日",
            "本",
            "が",
            "か\u{3099}",
            "ガ",
            "ｶﾞ",
            "한",
            "\u{1112}\u{1161}\u{11ab}",
            "я",
            "Я",
            "ch",
            "lj",
            "æ",
            "\u{1f600}",
            "\u{10ffff}",
            "\u{0f71}\u{0f72}",
            "เก",
            "กเ",
        ];
        let mut specs: Vec<String> = Vec::new();
        for locale in [
            "en",
            "de",
            "sv",
            "cs",
            "ja",
            "zh",
            "fr_CA",
            "th",
            "de@collation=phonebook",
        ] {
            for strength in 1..=5 {
                for more in [
                    "",
                    r#","caseLevel":true"#,
                    r#","alternate":"shifted""#,
                    r#","numericOrdering":true"#,
                    r#","caseFirst":"upper""#,
                ] {
                    specs.push(format!(
                        r#"{{"locale":"{locale}","strength":{strength}{more}}}"#
                    ));
                }
            }
        }
        for spec in specs {
            let c = collation(&spec);
            let text = |r: &mut rand::rngs::StdRng| {
                let n = r.random_range(0..5);
                (0..n)
                    .map(|_| *pieces.choose(r).unwrap())
                    .collect::<String>()
            };
            for _ in 0..150 {
                let (a, b) = (text(&mut r), text(&mut r));
                let wrapped =
                    |t: &str| Value::from(bson::doc! { "n": 1, "t": bson::array![t, 2], "u": t });
                for (x, y) in [
                    (Value::from(a.as_str()), Value::from(b.as_str())),
                    (wrapped(&a), wrapped(&b)),
                ] {
                    let folded = bson::order::compare(
                        c.fold(x.as_val()).as_val(),
                        c.fold(y.as_val()).as_val(),
                    );
                    assert_eq!(
                        c.compare(x.as_val(), y.as_val()),
                        folded,
                        "{spec} {a:?} {b:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn folds_inside() {
        let c = collation(r#"{"locale":"en","strength":2}"#);
        let d = |s: &str| Value::from(bson::json::parse(s).unwrap());
        let (x, y) = (
            d(r#"{"a":[{"b":"X"}],"c":1}"#),
            d(r#"{"a":[{"b":"x"}],"c":1}"#),
        );
        assert!(c.compare(x.as_val(), y.as_val()).is_eq());
        // Names are compared as they are.
        let (x, y) = (d(r#"{"A":"x"}"#), d(r#"{"a":"x"}"#));
        assert!(c.compare(x.as_val(), y.as_val()).is_lt());
    }
}
