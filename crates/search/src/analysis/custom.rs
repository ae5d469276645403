//! Custom analyzers: `{name, charFilters: […], tokenizer: {…}, tokenFilters: […]}` of a definition.
//!
//! Source: MongoDB's manual, "Custom Analyzers".

use super::char_filter::CharFilter;
use super::settings::Settings;
use super::text::Filtered;
use super::token_filter::TokenFilter;
use super::tokenizer::Tokenizer;
use super::{Analyzer, Token};
use crate::problem::wrong_definition;
use bson::{Doc, Val};
use errors::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most analyzers of a definition, and the most filters of one.
const MOST_ANALYZERS: usize = 256;
const MOST_FILTERS: usize = 64;

/// What the names of MongoDB's own analyzers begin with.
const RESERVED: [&str; 3] = ["lucene.", "builtin.", "mongodb."];

/// An analyzer that a user has put together.
#[derive(Debug)]
pub struct CustomAnalyzer {
    pub name: String,
    char_filters: Vec<CharFilter>,
    tokenizer: Tokenizer,
    filters: Vec<TokenFilter>,
}

/// The custom analyzers of a definition, by name.
pub type Analyzers = BTreeMap<String, Arc<CustomAnalyzer>>;

/// Fails with what is wrong in `analyzers` of a definition.
pub fn parse(d: Doc<'_>) -> Result<Analyzers> {
    let mut all = Analyzers::new();
    let Some(v) = d.get("analyzers").filter(|v| !v.is_nullish()) else {
        return Ok(all);
    };
    let Some(list) = v.as_array() else {
        return Err(wrong_definition(
            "\"analyzers\" must be a list of documents",
        ));
    };
    for (n, v) in list.values().enumerate() {
        errors::operation::step()?;
        let one = CustomAnalyzer::parse(&format!("analyzers[{n}]"), v)?;
        let name = one.name.clone();
        if all.insert(name.clone(), Arc::new(one)).is_some() {
            return Err(wrong_definition(format!(
                "\"analyzers\" has two analyzers with the name {name}"
            )));
        }
        if all.len() > MOST_ANALYZERS {
            return Err(wrong_definition("\"analyzers\" has too many of them"));
        }
    }
    Ok(all)
}

impl CustomAnalyzer {
    fn parse(at: &str, v: Val<'_>) -> Result<CustomAnalyzer> {
        let f = Settings::of(at, v)?;
        let name = f.required_string("name")?;
        if name.is_empty() || RESERVED.iter().any(|r| name.starts_with(r)) {
            let reserved = RESERVED.join(", ");
            let what = format!("cannot be empty or begin with one of [{reserved}]");
            return Err(f.wrong("name", &what));
        }
        let char_filters = parts(&f, "charFilters", CharFilter::parse)?;
        let filters = parts(&f, "tokenFilters", TokenFilter::parse)?;
        let tokenizer = f.get("tokenizer");
        let tokenizer = tokenizer.ok_or_else(|| f.wrong("tokenizer", "is required"))?;
        let t = Settings::of(&f.place("tokenizer"), tokenizer)?;
        let tokenizer = Tokenizer::parse(&t)?;
        t.end()?;
        f.end()?;
        Ok(CustomAnalyzer {
            name: name.to_string(),
            char_filters,
            tokenizer,
            filters,
        })
    }

    /// Whether synonyms can be told of its tokens.
    pub fn suits_synonyms(&self) -> bool {
        self.tokenizer.suits_synonyms() && self.filters.iter().all(TokenFilter::suits_synonyms)
    }

    /// Whether its tokens are ways around each other.
    pub fn is_graph(&self) -> bool {
        let shingles = |f: &TokenFilter| matches!(f, TokenFilter::Shingle { .. });
        !self.filters.iter().any(shingles)
    }

    pub fn tokens(&self, text: &str) -> Vec<Token> {
        let filtered = match self.char_filters.is_empty() {
            true => None,
            false => {
                let all = self.char_filters.iter();
                Some(all.fold(Filtered::of(text), |text, f| f.apply(text)))
            }
        };
        let text = filtered.as_ref().map_or(text, |f| &f.text);
        let tokens = self.tokenizer.tokens(text);
        let mut tokens = self.filters.iter().fold(tokens, |t, f| f.apply(t));
        if let Some(filtered) = &filtered {
            for token in &mut tokens {
                token.start = filtered.original(token.start);
                token.end = filtered.original(token.end).max(token.start);
            }
        }
        tokens
    }
}

/// The filters of a list.
fn parts<T>(
    f: &Settings<'_>,
    name: &'static str,
    parse: impl Fn(&Settings<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let Some(v) = f.get(name) else {
        return Ok(Vec::new());
    };
    let list = v.as_array();
    let list = list.ok_or_else(|| f.wrong(name, "must be a list of documents"))?;
    let mut out = Vec::new();
    for (n, v) in list.values().enumerate() {
        errors::operation::step()?;
        let place = format!("{}[{n}]", f.place(name));
        let one = Settings::of(&place, v)?;
        out.push(parse(&one)?);
        one.end()?;
        if out.len() > MOST_FILTERS {
            return Err(f.wrong(name, "has too many filters"));
        }
    }
    Ok(out)
}

/// The analyzer of a name, among MongoDB's and those of a definition.
pub fn named(name: &str, custom: &Analyzers) -> Option<Analyzer> {
    let known = Analyzer::named(name);
    known.or_else(|| custom.get(name).map(|c| Analyzer::Custom(c.clone())))
}
