//! The options of a part of an analyzer, as a definition writes them.

use crate::problem::wrong_definition;
use bson::{Doc, Val};
use errors::{Result, Stop};
use pcre::{PatternOptions, Regex};
use std::cell::RefCell;
use std::sync::Arc;

/// The most words of a list, and the longest of patterns.
const MOST_WORDS: usize = 50_000;
const MOST_PATTERN_BYTES: usize = 16 << 10;

/// The options of one filter or tokenizer, which are asked for by name: what is not asked for is refused.
pub(super) struct Settings<'a> {
    /// Its place in sentences (`analyzers[0].tokenFilters[1]`).
    at: String,
    doc: Doc<'a>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Settings<'a> {
    pub fn of(at: &str, v: Val<'a>) -> Result<Settings<'a>> {
        match v.as_doc().filter(|_| v.as_array().is_none()) {
            Some(doc) => Ok(Settings {
                at: at.to_string(),
                doc,
                known: RefCell::default(),
            }),
            None => Err(wrong_definition(format!("\"{at}\" must be a document"))),
        }
    }

    pub fn wrong(&self, name: &str, what: &str) -> Stop {
        wrong_definition(format!("\"{}.{name}\" {what}", self.at))
    }

    pub fn unknown_kind(&self, kind: &str) -> Stop {
        self.wrong("type", &format!("is unknown: {kind}"))
    }

    pub fn get(&self, name: &'static str) -> Option<Val<'a>> {
        self.known.borrow_mut().push(name);
        self.doc.get(name).filter(|v| !v.is_nullish())
    }

    pub fn place(&self, name: &str) -> String {
        format!("{}.{name}", self.at)
    }

    pub fn string(&self, name: &'static str) -> Result<Option<&'a str>> {
        self.get(name)
            .map(|v| {
                v.as_str()
                    .ok_or_else(|| self.wrong(name, "must be a string"))
            })
            .transpose()
    }

    pub fn required_string(&self, name: &'static str) -> Result<&'a str> {
        self.string(name)?
            .ok_or_else(|| self.wrong(name, "is required"))
    }

    /// Its type.
    pub fn kind(&self) -> Result<&'a str> {
        self.required_string("type")
    }

    pub fn flag(&self, name: &'static str, otherwise: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(otherwise),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| self.wrong(name, "must be a boolean")),
        }
    }

    /// Which of two words is written: whether it is the second.
    pub fn choice(&self, name: &'static str, words: [&str; 2], otherwise: bool) -> Result<bool> {
        match self.string(name)? {
            None => Ok(otherwise),
            Some(word) if word == words[0] => Ok(false),
            Some(word) if word == words[1] => Ok(true),
            Some(_) => {
                let all = words.join(", ");
                Err(self.wrong(name, &format!("must be one of [{all}]")))
            }
        }
    }

    pub fn number(&self, name: &'static str, low: i64, high: i64) -> Result<Option<usize>> {
        let Some(v) = self.get(name) else {
            return Ok(None);
        };
        let n = v.to_i64_exact().filter(|_| v.is_number());
        let n = n.ok_or_else(|| self.wrong(name, "must be an integer"))?;
        match usize::try_from(n) {
            Ok(n) if (low..=high).contains(&i64::try_from(n).unwrap_or(i64::MAX)) => Ok(Some(n)),
            _ => Err(self.wrong(name, &format!("must be within bounds [{low}, {high}]"))),
        }
    }

    pub fn required_doc(&self, name: &'static str) -> Result<Doc<'a>> {
        let v = self
            .get(name)
            .ok_or_else(|| self.wrong(name, "is required"))?;
        v.as_doc()
            .ok_or_else(|| self.wrong(name, "must be a document"))
    }

    pub fn strings(&self, name: &'static str) -> Result<Option<Vec<String>>> {
        let Some(v) = self.get(name) else {
            return Ok(None);
        };
        let list = v.as_array();
        let list = list.ok_or_else(|| self.wrong(name, "must be a list of strings"))?;
        let mut out = Vec::new();
        for v in list.values() {
            errors::operation::step()?;
            let word = v.as_str();
            out.push(
                word.ok_or_else(|| self.wrong(name, "must be a list of strings"))?
                    .to_string(),
            );
            if out.len() > MOST_WORDS {
                return Err(self.wrong(name, "has too many words"));
            }
        }
        Ok(Some(out))
    }

    /// A pattern of regular expressions.
    pub fn pattern(&self, name: &'static str) -> Result<Arc<Regex>> {
        let pattern = self.required_string(name)?;
        let made = match pattern.len() > MOST_PATTERN_BYTES {
            true => Err("it is too long".to_string()),
            false => Regex::new(pattern, PatternOptions::default()),
        };
        made.map(Arc::new)
            .map_err(|e| self.wrong(name, &format!("is no regular expression: {e}")))
    }

    /// Two lengths of grams.
    pub fn grams(&self) -> Result<(usize, usize)> {
        let (least, most) = (
            self.number("minGram", 1, 1 << 10)?,
            self.number("maxGram", 1, 1 << 10)?,
        );
        let (Some(least), Some(most)) = (least, most) else {
            let missing = if least.is_none() {
                "minGram"
            } else {
                "maxGram"
            };
            return Err(self.wrong(missing, "is required"));
        };
        match least <= most {
            true => Ok((least, most)),
            false => Err(self.wrong("minGram", "cannot be greater than \"maxGram\"")),
        }
    }

    /// Refuses options that there are not.
    pub fn end(&self) -> Result<()> {
        let known = self.known.borrow();
        match self.doc.iter().find(|e| !known.contains(&e.name)) {
            Some(e) => Err(wrong_definition(format!(
                "unrecognized field \"{}.{}\"",
                self.at, e.name
            ))),
            None => Ok(()),
        }
    }
}
