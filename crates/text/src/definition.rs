//! What a text index is over: its options, as they are given and as they are kept.

use crate::{IndexVersion, Language};
use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::{Fallible, bail};
use std::collections::BTreeMap;

/// The name of the field of a key pattern that stands for the terms; the next is that of scores.
pub const TERMS: &str = "_fts";
pub const SCORES: &str = "_ftsx";
/// The weight of every field.
const WILDCARD: &str = "$**";
/// Weights are below this.
const MAX_WEIGHT: f64 = 1e9 / 1e4;
const DEFAULT_OVERRIDE: &str = "language";
const DEFAULT_LANGUAGE: &str = "english";

/// A text index, as far as it is about texts.
#[derive(Clone, Debug, PartialEq)]
pub struct TextIndex {
    pub version: IndexVersion,
    pub(crate) language: Language,
    /// The field of a document that names its language.
    pub(crate) override_field: String,
    /// All strings are indexed.
    pub(crate) wildcard: bool,
    /// By dotted path.
    pub(crate) weights: BTreeMap<String, f64>,
}

impl Eq for TextIndex {}

impl TextIndex {
    /// Whether a key pattern is one of a text index, as it is given or as it is kept.
    pub fn is_pattern(key: Doc<'_>) -> bool {
        key.iter().any(|e| e.val.as_str() == Some("text"))
    }

    /// Of a specification as [`TextIndex::normalize`] makes it.
    pub fn of_spec(spec: Doc<'_>) -> Fallible<TextIndex> {
        let version = spec
            .get("textIndexVersion")
            .and_then(|v| v.to_i64_truncated());
        let Some(version) = version.and_then(IndexVersion::of) else {
            bail!(17364, "attempt to use unsupported textIndexVersion");
        };
        let string = |name: &str| spec.get(name).and_then(|v| v.as_str());
        let language = string("default_language").unwrap_or(DEFAULT_LANGUAGE);
        let mut out = TextIndex {
            version,
            language: Language::find(language, version)?,
            override_field: string("language_override")
                .unwrap_or(DEFAULT_OVERRIDE)
                .to_string(),
            wildcard: false,
            weights: BTreeMap::new(),
        };
        let weights = spec.get("weights").and_then(|v| v.as_doc());
        for e in weights.unwrap_or(Doc::EMPTY) {
            match (e.name, e.val.to_f64()) {
                (WILDCARD, _) => out.wildcard = true,
                (name, weight) => {
                    out.weights.insert(name.to_string(), weight.unwrap_or(1.0));
                }
            }
        }
        Ok(out)
    }

    /// Whether a change below `touched` paths may change a document's terms.
    pub fn concerned(&self, touched: impl Fn(&str) -> bool) -> bool {
        // The language of a text may be named in any document above it.
        self.wildcard
            || touched(&self.override_field)
            || self
                .weights
                .keys()
                .any(|p| touched(p.split('.').next().unwrap_or(p)))
    }

    /// An index specification as it is kept: the key with the fields that stand for terms and scores,
    /// all options.
    pub fn normalize(spec: Doc<'_>) -> Fallible<DocBuf> {
        let number = |name: &str| spec.get(name).and_then(|v| v.to_i64_truncated());
        let version = match spec.get("textIndexVersion") {
            None => IndexVersion::Three,
            Some(v) => match whole(v).and_then(IndexVersion::of) {
                Some(v) => v,
                None => bail!(
                    CannotCreateIndex,
                    "bad textIndexVersion: {}",
                    number("textIndexVersion").unwrap_or(0)
                ),
            },
        };
        let key = spec
            .get("key")
            .and_then(|v| v.as_doc())
            .unwrap_or(Doc::EMPTY);
        check_order(key)?;
        let mut weights = BTreeMap::new();
        let key = normal_key(key, &mut weights)?;
        add_weights(spec.get("weights"), &mut weights)?;
        let language = language(spec, version)?;
        let override_field = override_field(spec)?;
        let mut w = Writer::new();
        for e in spec {
            match e.name {
                "key" => {
                    w.doc("key", key.as_doc());
                }
                "weights" | "default_language" | "language_override" | "textIndexVersion" => {}
                name => {
                    w.val(name, e.val);
                }
            }
        }
        w.open_doc("weights");
        for (path, weight) in &weights {
            w.i32(path, *weight as i32);
        }
        w.close();
        w.str("default_language", language);
        w.str("language_override", override_field);
        w.i32("textIndexVersion", version as i32);
        Ok(w.finish())
    }
}

/// A whole number that is no decimal.
fn whole(v: Val<'_>) -> Option<i64> {
    v.to_i64_exact().filter(|_| v.tag != tag::DECIMAL128)
}

/// Fields before, texts, fields after; or, where it is normal already, `_fts` and `_ftsx` for texts.
fn check_order(key: Doc<'_>) -> Fallible<()> {
    let not_reserved = |name: &str| -> Fallible<()> {
        if name == TERMS || name == SCORES {
            bail!(
                CannotCreateIndex,
                "text index with reserved fields _fts/_ftsx not allowed"
            );
        }
        Ok(())
    };
    let mut fields = key.iter().peekable();
    while let Some(e) = fields.next_if(|e| e.val.tag != tag::STRING) {
        not_reserved(e.name)?;
    }
    if fields.next_if(|e| e.name == TERMS).is_some() {
        if fields.next_if(|e| e.name == SCORES).is_none() {
            bail!(CannotCreateIndex, "expected _ftsx after _fts");
        }
    } else {
        while let Some(e) = fields.next_if(|e| e.val.tag == tag::STRING) {
            not_reserved(e.name)?;
        }
    }
    for e in fields {
        if e.val.tag == tag::STRING {
            bail!(
                CannotCreateIndex,
                "'text' fields in index must all be adjacent"
            );
        }
        not_reserved(e.name)?;
    }
    Ok(())
}

fn normal_key(key: Doc<'_>, weights: &mut BTreeMap<String, i64>) -> Fallible<DocBuf> {
    let (mut w, mut added) = (Writer::new(), false);
    for e in key {
        match e.val.as_str() {
            Some("text") => {
                if !std::mem::replace(&mut added, true) {
                    w.str(TERMS, "text");
                    w.i32(SCORES, 1);
                }
                if e.name != TERMS {
                    weights.insert(e.name.to_string(), 1);
                }
            }
            Some(other) => bail!(CannotCreateIndex, "Unknown index plugin '{other}'"),
            None if e.name == SCORES => {
                if e.val.to_i64_exact() != Some(1) {
                    bail!(CannotCreateIndex, "expecting _ftsx:1");
                }
            }
            None => {
                if !matches!(e.val.to_i64_truncated(), Some(1 | -1)) {
                    bail!(
                        CannotCreateIndex,
                        "expected value 1 or -1 for non-text key in compound index"
                    );
                }
                w.val(e.name, e.val);
            }
        }
    }
    Ok(w.finish())
}

fn add_weights(given: Option<Val<'_>>, weights: &mut BTreeMap<String, i64>) -> Fallible<()> {
    match given {
        None => {}
        Some(v) if v.as_str() == Some(WILDCARD) => {
            weights.insert(WILDCARD.to_string(), 1);
        }
        Some(v) => {
            let Some(d) = v.as_doc() else {
                bail!(
                    CannotCreateIndex,
                    "text index option 'weights' must be an object"
                );
            };
            for e in d {
                let Some(n) = e.val.to_i64_truncated() else {
                    bail!(
                        CannotCreateIndex,
                        "weight for text index needs numeric type"
                    );
                };
                weights.insert(e.name.to_string(), n);
            }
        }
    }
    if weights.is_empty() {
        bail!(
            CannotCreateIndex,
            "text index option 'weights' must specify fields or the wildcard"
        );
    }
    for (path, weight) in weights.iter() {
        if *weight <= 0 || *weight as f64 >= MAX_WEIGHT {
            bail!(
                CannotCreateIndex,
                "text index weight must be in the exclusive interval (0,{MAX_WEIGHT}) but found: {weight}"
            );
        }
        if path != WILDCARD {
            check_path(path)?;
        }
    }
    Ok(())
}

fn check_path(path: &str) -> Fallible<()> {
    if path.is_empty() {
        bail!(CannotCreateIndex, "weight cannot be on an empty field");
    }
    for part in path.split('.') {
        if part.is_empty() {
            bail!(CannotCreateIndex, "weight cannot have empty path component");
        }
        if part.starts_with('$') {
            bail!(
                CannotCreateIndex,
                "weight cannot have path component with $ prefix"
            );
        }
    }
    Ok(())
}

fn language<'s>(spec: Doc<'s>, version: IndexVersion) -> Fallible<&'s str> {
    let Some(v) = spec.get("default_language") else {
        return Ok(DEFAULT_LANGUAGE);
    };
    let Some(name) = v.as_str() else {
        bail!(CannotCreateIndex, "default_language needs a string type");
    };
    if Language::find(name, version).is_err() {
        bail!(CannotCreateIndex, "default_language is not valid");
    }
    Ok(name)
}

fn override_field(spec: Doc<'_>) -> Fallible<&str> {
    let Some(v) = spec.get("language_override") else {
        return Ok(DEFAULT_OVERRIDE);
    };
    match v.as_str() {
        None => bail!(CannotCreateIndex, "language_override must be a string"),
        Some(f) if f.is_empty() || f.starts_with('$') || f.contains('.') => {
            bail!(CannotCreateIndex, "language_override is not valid")
        }
        Some(f) => Ok(f),
    }
}
