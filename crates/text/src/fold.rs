//! Letters without their case and their diacritics, one code point for one, as version 3 folds them.

use icu_casemap::{CaseMapper, CaseMapperBorrowed};
use icu_properties::CodePointSetData;
use icu_properties::props::Diacritic;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

const MAPPER: CaseMapperBorrowed<'static> = CaseMapper::new();

/// The lower case of a code point, where that is one code point. Turkish has two letters `i`.
pub(crate) fn lower(c: char, turkish: bool) -> char {
    match c {
        'I' if turkish => 'ı',
        'İ' if turkish => 'i',
        _ if c.is_ascii() => c.to_ascii_lowercase(),
        _ => MAPPER.simple_fold(c),
    }
}

/// The letter without diacritics; `None` where it is nothing but one.
fn bare(c: char) -> Option<char> {
    if c.is_ascii() {
        return (c != '^' && c != '`').then_some(c);
    }
    let is_diacritic = |c: char| CodePointSetData::new::<Diacritic>().contains(c);
    if is_diacritic(c) {
        return None;
    }
    let mut rest = std::iter::once(c).nfd().filter(|d| !is_diacritic(*d)).nfc();
    // A character that is more than one code point without its diacritics keeps them.
    match (rest.next(), rest.next()) {
        (Some(one), None) => Some(one),
        _ => Some(c),
    }
}

pub(crate) fn to_lower(text: &str, turkish: bool) -> Cow<'_, str> {
    let kept = |c: char| c.is_ascii() && !c.is_ascii_uppercase();
    if text.chars().all(kept) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| lower(c, turkish)).collect())
}

pub(crate) fn without_diacritics(text: &str) -> Cow<'_, str> {
    if text.is_ascii() && !text.bytes().any(|b| b == b'^' || b == b'`') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter_map(bare).collect())
}
