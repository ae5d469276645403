//! Short texts for study L, made of a seed or read from a file, and searches in them of which it is known what they find.
//!
//! Made texts have 5 to 15 words out of 100,000, drawn by Zipf's law. Invariant: a searched word stands between spaces and has
//! lower-case ASCII letters only, so every way to break texts into words has it as one.

use crate::distribution::Zipfian;
use crate::fault::{Fault, Result, local};
use crate::random::{Permutation, Rng};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;

const WORDS: u64 = 100_000;
const CONSONANTS: &[u8; 20] = b"bcdfghjklmnpqrstvwxz";
const VOWELS: &[u8; 5] = b"aeiou";
const SYLLABLES: u64 = (CONSONANTS.len() * VOWELS.len()) as u64;
const WORDS_A_TEXT: RangeInclusive<u64> = 5..=15;
/// Words of more than one text in so many are not searched for.
const COMMON: usize = 20;
/// Draws for one search until the texts are given up.
const MOST_DRAWS: usize = 10_000;
/// Results that a search gives.
pub const PAGE: usize = 10;

/// What a search asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextQueryKind {
    Word,
    Both,
    Either,
    Phrase,
}

impl TextQueryKind {
    pub const ALL: [TextQueryKind; 4] = [
        TextQueryKind::Word,
        TextQueryKind::Both,
        TextQueryKind::Either,
        TextQueryKind::Phrase,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TextQueryKind::Word => "search for a word",
            TextQueryKind::Both => "search for both of two words",
            TextQueryKind::Either => "search for either of two words",
            TextQueryKind::Phrase => "search for a phrase",
        }
    }
}

#[derive(Clone, Debug)]
pub struct TextQuery {
    pub kind: TextQueryKind,
    pub words: Vec<String>,
    /// How many results there must be: those of a page, or all.
    pub due: usize,
}

impl TextQuery {
    /// Whether a text has what is searched for; of a phrase its words only, as it may be written in several ways.
    pub fn is_in(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let mut words = self.words.iter();
        match self.kind {
            TextQueryKind::Either => words.any(|w| text.contains(w.as_str())),
            TextQueryKind::Word | TextQueryKind::Both | TextQueryKind::Phrase => {
                words.all(|w| text.contains(w.as_str()))
            }
        }
    }

    /// The same of whole words and a whole phrase, which every target finds.
    fn is_plainly_in(&self, text: &str) -> bool {
        let all: Vec<&str> = text.split(' ').collect();
        let mut words = self.words.iter().map(String::as_str);
        match self.kind {
            TextQueryKind::Either => words.any(|w| all.contains(&w)),
            TextQueryKind::Word | TextQueryKind::Both => words.all(|w| all.contains(&w)),
            TextQueryKind::Phrase => all
                .windows(2)
                .any(|pair| words.clone().eq(pair.iter().copied())),
        }
    }
}

/// So many texts of a seed: the same on every machine.
pub fn made(count: u64, seed: u64) -> Vec<String> {
    let (ranks, names) = (Zipfian::new(WORDS), Permutation::new(SYLLABLES.pow(3), 1));
    let mut rng = Rng::new(seed);
    let of_words = WORDS_A_TEXT.end() - WORDS_A_TEXT.start() + 1;
    let text = |_| {
        let mut text = String::new();
        for n in 0..WORDS_A_TEXT.start() + rng.below(of_words) {
            if n > 0 {
                text.push(' ');
            }
            let rank = ranks.at(rng.unit()).min(WORDS - 1);
            push_word(names.at(rank), &mut text);
        }
        text
    };
    (0..count).map(text).collect()
}

/// A word of three syllables, another one for each number.
fn push_word(mut number: u64, to: &mut String) {
    for _ in 0..3 {
        let syllable = (number % SYLLABLES) as usize;
        to.push(char::from(CONSONANTS[syllable / VOWELS.len()]));
        to.push(char::from(VOWELS[syllable % VOWELS.len()]));
        number /= SYLLABLES;
    }
}

/// The first texts of a file, one a line; empty lines are none.
pub fn read(path: &Path, most: u64) -> Result<Vec<String>> {
    let file = std::fs::File::open(path).map_err(local(path.display()))?;
    let mut all = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(local(path.display()))?;
        // A zero ends a text in SQL.
        if !line.trim().is_empty() && !line.contains('\0') {
            all.push(line.trim().to_string());
        }
        if all.len() as u64 == most {
            break;
        }
    }
    Ok(all)
}

fn is_plain(word: &str) -> bool {
    word.len() >= 3 && word.bytes().all(|b| b.is_ascii_lowercase())
}

fn plain_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').filter(|w| is_plain(w))
}

/// In how many texts each word is.
fn frequencies(texts: &[String]) -> HashMap<&str, u32> {
    let mut all = HashMap::new();
    for text in texts {
        let mut words: Vec<&str> = plain_words(text).collect();
        words.sort_unstable();
        words.dedup();
        words
            .into_iter()
            .for_each(|w| *all.entry(w).or_default() += 1);
    }
    all
}

/// So many searches of each kind, drawn of words that are in the texts and are not in too many of them.
pub fn searches(texts: &[String], each: usize, seed: u64) -> Result<Vec<TextQuery>> {
    let (of, mut rng) = (frequencies(texts), Rng::new(seed));
    let most = (texts.len() / COMMON).max(1) as u32;
    let mut all = Vec::new();
    for kind in TextQueryKind::ALL {
        for _ in 0..each {
            let drawn = (0..MOST_DRAWS).find_map(|_| drawn(kind, texts, &of, most, &mut rng));
            let none = || Fault::Usage(format!("the texts have nothing for a {}", kind.name()));
            let words = drawn.ok_or_else(none)?;
            let words = words.into_iter().map(String::from).collect();
            all.push(TextQuery {
                kind,
                words,
                due: 0,
            });
        }
    }
    count_due(texts, &mut all);
    Ok(all)
}

/// Words for a search, if the texts that are drawn have some.
fn drawn<'t>(
    kind: TextQueryKind,
    texts: &'t [String],
    of: &HashMap<&str, u32>,
    most: u32,
    rng: &mut Rng,
) -> Option<Vec<&'t str>> {
    let wanted = |w: &str| is_plain(w) && of.get(w).is_some_and(|n| *n <= most);
    let any_text = |rng: &mut Rng| &texts[rng.below(texts.len() as u64) as usize];
    let any_word = |text: &'t str, rng: &mut Rng| {
        let words: Vec<&str> = text.split(' ').filter(|w| wanted(w)).collect();
        words.get(rng.below(words.len() as u64) as usize).copied()
    };
    let text = any_text(rng);
    let words = match kind {
        TextQueryKind::Word => vec![any_word(text, rng)?],
        TextQueryKind::Both => vec![any_word(text, rng)?, any_word(text, rng)?],
        TextQueryKind::Either => vec![any_word(text, rng)?, any_word(any_text(rng), rng)?],
        TextQueryKind::Phrase => {
            let all: Vec<&str> = text.split(' ').collect();
            let pairs: Vec<&[&str]> = all
                .windows(2)
                .filter(|p| p.iter().all(|w| wanted(w)))
                .collect();
            pairs.get(rng.below(pairs.len() as u64) as usize)?.to_vec()
        }
    };
    let differ = words.first() != words.get(1);
    differ.then_some(words)
}

/// Counts what each search has to find, up to a page.
fn count_due(texts: &[String], all: &mut [TextQuery]) {
    let mut places: HashMap<&str, Vec<u32>> = HashMap::new();
    let words: Vec<String> = all.iter().flat_map(|s| s.words.clone()).collect();
    for word in &words {
        places.entry(word).or_default();
    }
    for (i, text) in (0..).zip(texts) {
        for word in plain_words(text) {
            if let Some(list) = places.get_mut(word).filter(|l| l.last() != Some(&i)) {
                list.push(i);
            }
        }
    }
    for search in all {
        let mut lists: Vec<&[u32]> = search.words.iter().map(|w| &*places[w.as_str()]).collect();
        lists.sort_by_key(|l| l.len());
        // Either word may be in a text, or all: then the rarer one leads to them.
        let mut found: Vec<u32> = match search.kind {
            TextQueryKind::Either => lists
                .iter()
                .flat_map(|l| &l[..l.len().min(PAGE)])
                .copied()
                .collect(),
            _ => lists[0].to_vec(),
        };
        found.sort_unstable();
        found.dedup();
        let found = found
            .iter()
            .filter(|i| search.is_plainly_in(&texts[**i as usize]));
        search.due = found.take(PAGE).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_seed_are_the_same_and_few_words_are_frequent() {
        let texts = made(5000, 7);
        assert_eq!(texts[..9], made(9, 7));
        assert_ne!(texts[..9], made(9, 8));
        let lengths = texts.iter().map(|t| t.split(' ').count() as u64);
        assert!(lengths.clone().all(|n| WORDS_A_TEXT.contains(&n)));
        assert_eq!((lengths.clone().min(), lengths.max()), (Some(5), Some(15)));
        assert!(texts.iter().all(|t| t.split(' ').all(is_plain)));
        let mut counts: Vec<u32> = frequencies(&texts).into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The first word is in more than a third of the texts, the hundredth in one of a hundred.
        assert!(
            counts[0] > 1700 && (25..100).contains(&counts[99]),
            "{:?}",
            &counts[..100]
        );
        assert!(
            counts.len() > 10_000 && counts.len() < 30_000,
            "{}",
            counts.len()
        );
        let mut words = (String::new(), String::new());
        push_word(1, &mut words.0);
        push_word(999_999, &mut words.1);
        assert_eq!((&*words.0, &*words.1), ("bebaba", "zuzuzu"));
    }

    #[test]
    fn what_a_search_finds_is_known() {
        let texts = made(3000, 1);
        let all = searches(&texts, 30, 5).unwrap();
        assert_eq!(all.len(), 30 * TextQueryKind::ALL.len());
        for s in &all {
            let found = texts.iter().filter(|t| s.is_plainly_in(t)).count();
            assert_eq!(s.due, found.min(PAGE), "{s:?}");
            assert!(s.due > 0 && texts.iter().all(|t| !s.is_plainly_in(t) || s.is_in(t)));
            assert_eq!(
                s.words.len(),
                if s.kind == TextQueryKind::Word { 1 } else { 2 }
            );
        }
        // No word of more than a twentieth of the texts.
        let frequent = all.iter().filter(|s| s.kind == TextQueryKind::Word);
        let most = |s: &TextQuery| texts.iter().filter(|t| s.is_plainly_in(t)).count();
        assert!(frequent.map(most).max().unwrap() <= 150);
        assert!(searches(&["no".to_string()], 1, 1).is_err());
    }

    #[test]
    fn texts_of_a_file_may_be_any() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("texts");
        std::fs::write(
            &path,
            "A small Tool, for text\n\n  find small tool things \nthird\n",
        )
        .unwrap();
        let texts = read(&path, 2).unwrap();
        assert_eq!(texts, ["A small Tool, for text", "find small tool things"]);
        let phrase = |words: &str| TextQuery {
            kind: TextQueryKind::Phrase,
            words: words.split(' ').map(String::from).collect(),
            due: 0,
        };
        let small = phrase("small tool");
        assert!(small.is_in(&texts[0]) && !small.is_plainly_in(&texts[0]));
        assert!(small.is_plainly_in(&texts[1]) && !phrase("tool find").is_plainly_in(&texts[1]));
        assert!(read(&dir.path().join("none"), 1).is_err());
    }
}
