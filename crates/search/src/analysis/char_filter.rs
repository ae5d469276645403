//! Character filters: what is done to a text before it is broken into tokens.
//!
//! Source: MongoDB's manual, "Character Filters"; Lucene's `MappingCharFilter`, `ICUNormalizer2CharFilter`,
//! `PersianCharFilter` and `HTMLStripCharFilter`.

use super::fold::nfkc_casefold;
use super::html;
use super::settings::Settings;
use super::text::{Filtered, Rewrite};
use errors::Result;
use std::collections::{BTreeSet, HashMap};
use unicode_segmentation::UnicodeSegmentation;

#[derive(Clone, Debug)]
pub(super) enum CharFilter {
    /// The names of tags that stay.
    HtmlStrip(BTreeSet<String>),
    IcuNormalize,
    /// By first characters: what is replaced, the longest first, and by what.
    Mapping(HashMap<char, Vec<(String, String)>>),
    Persian,
}

impl CharFilter {
    pub fn parse(f: &Settings<'_>) -> Result<CharFilter> {
        Ok(match f.kind()? {
            "htmlStrip" => {
                let kept = f.strings("ignoredTags")?.unwrap_or_default();
                CharFilter::HtmlStrip(kept.iter().map(|t| t.to_lowercase()).collect())
            }
            "icuNormalize" => CharFilter::IcuNormalize,
            "mapping" => CharFilter::Mapping(mapping(f)?),
            "persian" => CharFilter::Persian,
            other => return Err(f.unknown_kind(other)),
        })
    }

    pub fn apply(&self, text: Filtered) -> Filtered {
        match self {
            CharFilter::HtmlStrip(kept) => html::stripped(text, kept),
            CharFilter::IcuNormalize => normalized(text),
            CharFilter::Mapping(map) => mapped(text, map),
            CharFilter::Persian => {
                let space = HashMap::from([('\u{200c}', vec![("\u{200c}".into(), " ".into())])]);
                mapped(text, &space)
            }
        }
    }
}

fn mapping(f: &Settings<'_>) -> Result<HashMap<char, Vec<(String, String)>>> {
    let mut map: HashMap<char, Vec<(String, String)>> = HashMap::new();
    let mappings = f.required_doc("mappings")?;
    for e in mappings.iter() {
        errors::operation::step()?;
        let Some(to) = e.val.as_str() else {
            return Err(f.wrong(&format!("mappings.{}", e.name), "must be a string"));
        };
        let Some(first) = e.name.chars().next() else {
            return Err(f.wrong("mappings", "cannot have an empty string as a key"));
        };
        let all = map.entry(first).or_default();
        all.push((e.name.to_string(), to.to_string()));
    }
    for all in map.values_mut() {
        all.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
    }
    Ok(map)
}

fn mapped(text: Filtered, map: &HashMap<char, Vec<(String, String)>>) -> Filtered {
    let mut out = Rewrite::new(text);
    let mut at = 0;
    while let Some(rest) = out.text().get(at..)
        && let Some(c) = rest.chars().next()
    {
        let known = map.get(&c).into_iter().flatten();
        let mut known = known.filter(|(from, _)| rest.starts_with(from.as_str()));
        match known.next() {
            Some((from, to)) => {
                let end = at + from.len();
                out.keep_to(at);
                out.replace_to(end, to);
                at = end;
            }
            None => at += c.len_utf8(),
        }
    }
    out.finish()
}

fn normalized(text: Filtered) -> Filtered {
    let mut out = Rewrite::new(text);
    let pieces: Vec<(usize, usize, String)> = out
        .text()
        .grapheme_indices(true)
        .map(|(at, piece)| (at, at + piece.len(), nfkc_casefold(piece)))
        .collect();
    for (at, end, to) in pieces {
        if out.text().get(at..end) != Some(to.as_str()) {
            out.keep_to(at);
            out.replace_to(end, &to);
        }
    }
    out.finish()
}
