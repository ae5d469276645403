//! Characters without their case, their accents and their variants.
//!
//! Source: Unicode's NFKC_Casefold and Technical Report 30, as Lucene's `ICUFoldingFilter` applies it; the tables say what
//! Lucene's `ASCIIFoldingFilter` and its foldings make of characters that no rule of Unicode covers.

use icu_casemap::{CaseMapper, CaseMapperBorrowed};
use icu_properties::props::{DefaultIgnorableCodePoint, Diacritic, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};
use std::collections::HashMap;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;

const MAPPER: CaseMapperBorrowed<'static> = CaseMapper::new();

type Table = HashMap<char, &'static str>;

/// Lines of what characters become, a tab, and these characters.
fn table(lines: &'static str) -> Table {
    let lines = lines.lines().filter_map(|l| l.split_once('\t'));
    lines
        .flat_map(|(to, from)| from.chars().map(move |c| (c, to)))
        .collect()
}

static ASCII: LazyLock<Table> = LazyLock::new(|| table(include_str!("ascii.txt")));
static FOLDING: LazyLock<Table> = LazyLock::new(|| table(include_str!("folding.txt")));

/// Letters, digits and marks of other blocks as those of ASCII.
pub(super) fn ascii(text: &str) -> String {
    if text.is_ascii() {
        return text.to_string();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match ASCII.get(&c) {
            Some(to) if !c.is_ascii() => out.push_str(to),
            _ => out.push(c),
        }
    }
    out
}

/// NFKC_Casefold.
pub(super) fn nfkc_casefold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let ignored = CodePointSetData::new::<DefaultIgnorableCodePoint>();
    let once = |text: &str| -> String {
        let kept = |c: &char| !ignored.contains(*c);
        let folded = MAPPER.fold_string(text);
        folded.nfkc().filter(kept).collect()
    };
    let apart: String = text.nfd().collect();
    once(&once(&apart)).nfc().collect()
}

/// Text without case, accents and variants of characters.
pub(super) fn icu(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in nfkc_casefold(text).nfd() {
        if let Some(to) = FOLDING.get(&c) {
            out.push_str(to);
        } else if CodePointSetData::new::<Diacritic>().contains(c) {
        } else if let Some(to) = ASCII.get(&c) {
            out.push_str(&to.to_ascii_lowercase());
        } else {
            out.push(digit(c).unwrap_or(c));
        }
    }
    out.nfc().collect()
}

/// The digit of ASCII that a decimal digit means. Those of a script stand in order, ten and ten.
fn digit(c: char) -> Option<char> {
    let category = CodePointMapData::<GeneralCategory>::new();
    let is_digit = |n: u32| category.get32(n) == GeneralCategory::DecimalNumber;
    let n = u32::from(c);
    if c.is_ascii() || !is_digit(n) {
        return None;
    }
    let before = (1..50u32)
        .take_while(|d| n >= *d && is_digit(n - d))
        .count();
    char::from_digit(u32::try_from(before).ok()? % 10, 10)
}

/// Whether a character makes what lies between two word boundaries a word.
pub(super) fn is_word(c: char) -> bool {
    let category = CodePointMapData::<GeneralCategory>::new();
    c.is_alphabetic() || c.is_numeric() && category.get(c) == GeneralCategory::DecimalNumber
}

/// Whether a character is a letter of an alphabet.
pub(super) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    matches!(
        CodePointMapData::<GeneralCategory>::new().get(c),
        GeneralCategory::UppercaseLetter
            | GeneralCategory::LowercaseLetter
            | GeneralCategory::TitlecaseLetter
            | GeneralCategory::ModifierLetter
            | GeneralCategory::OtherLetter
    )
}

/// Whether a character stands between words of a whitespace tokenizer: no space that is not to be broken does.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, '\u{1c}'..='\u{1f}')
        || c.is_whitespace() && !matches!(c, '\u{85}' | '\u{a0}' | '\u{2007}' | '\u{202f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_folded() {
        assert_eq!(ascii("Ærøskøbing “naïve” ①"), "AEroskobing \"naive\" 1");
        assert_eq!(nfkc_casefold("Straße ﬁ Σ\u{ad}"), "strasse fi σ");
        assert_eq!(icu("Résumé Ðor Ґ ٣ ﺁ ⺁"), "resume dor г 3 ا 厂");
        assert!(is_letter('é') && !is_letter('\u{301}'));
        assert!(is_space('\u{3000}') && !is_space('\u{a0}'));
    }
}
