//! Porter's stemmer of 1980, which Lucene's `PorterStemFilter` and its analyzer of English use.
//!
//! Source: M. F. Porter, "An algorithm for suffix stripping", with the departures that its author made in his own
//! program (`bli` and `logi` in the second step).

/// The stem of a word in lower case.
pub(super) fn stem(word: &str) -> String {
    let mut w = Word(word.chars().collect());
    if w.0.len() < 3 {
        return word.to_string();
    }
    w.plurals();
    w.past();
    if w.ends("y") && w.has_vowel(w.0.len() - 1) {
        w.set(1, "i");
    }
    w.replace_first(&SECOND, 0);
    w.replace_first(&THIRD, 0);
    w.fourth();
    w.fifth();
    w.0.into_iter().collect()
}

const SECOND: [(&str, &str); 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
];

const THIRD: [(&str, &str); 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];

const FOURTH: [&str; 18] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
];

struct Word(Vec<char>);

impl Word {
    fn is_consonant(&self, at: usize) -> bool {
        match self.0.get(at) {
            Some('a' | 'e' | 'i' | 'o' | 'u') => false,
            Some('y') => at == 0 || !self.is_consonant(at - 1),
            _ => true,
        }
    }

    /// How often vowels are followed by consonants before `end`.
    fn measure(&self, end: usize) -> usize {
        let mut kinds = (0..end).map(|at| self.is_consonant(at));
        let mut last = true;
        let mut count = 0;
        for consonant in kinds.by_ref() {
            count += usize::from(consonant && !last);
            last = consonant;
        }
        count
    }

    fn has_vowel(&self, end: usize) -> bool {
        (0..end).any(|at| !self.is_consonant(at))
    }

    fn ends(&self, suffix: &str) -> bool {
        let n = suffix.len();
        self.0.len() >= n
            && self
                .0
                .iter()
                .rev()
                .take(n)
                .copied()
                .eq(suffix.chars().rev())
    }

    /// Has `by` stand for the last characters.
    fn set(&mut self, last: usize, by: &str) {
        self.0.truncate(self.0.len().saturating_sub(last));
        self.0.extend(by.chars());
    }

    fn doubled(&self, end: usize) -> bool {
        let at = |n: usize| end.checked_sub(n).and_then(|n| self.0.get(n));
        end > 1 && at(1) == at(2) && self.is_consonant(end - 1)
    }

    /// Consonant, vowel, consonant before `end`, and the last is none of w, x and y.
    fn is_short(&self, end: usize) -> bool {
        end >= 3
            && self.is_consonant(end - 1)
            && !self.is_consonant(end - 2)
            && self.is_consonant(end - 3)
            && !matches!(self.0.get(end - 1), Some('w' | 'x' | 'y'))
    }

    fn plurals(&mut self) {
        if self.ends("sses") || self.ends("ies") {
            self.set(2, "");
        } else if self.ends("s") && !self.ends("ss") {
            self.set(1, "");
        }
    }

    fn past(&mut self) {
        if self.ends("eed") {
            if self.measure(self.0.len() - 3) > 0 {
                self.set(1, "");
            }
            return;
        }
        let suffix = ["ed", "ing"].into_iter().find(|s| self.ends(s));
        let Some(suffix) = suffix.filter(|s| self.has_vowel(self.0.len() - s.len())) else {
            return;
        };
        self.set(suffix.len(), "");
        let end = self.0.len();
        if ["at", "bl", "iz"].iter().any(|s| self.ends(s)) {
            self.set(0, "e");
        } else if self.doubled(end) {
            if !["l", "s", "z"].iter().any(|s| self.ends(s)) {
                self.set(1, "");
            }
        } else if self.measure(end) == 1 && self.is_short(end) {
            self.set(0, "e");
        }
    }

    /// Replaces the first suffix that the word has, if what stands before it measures more than `least`.
    fn replace_first(&mut self, all: &[(&str, &str)], least: usize) {
        let Some((suffix, by)) = all.iter().find(|(suffix, _)| self.ends(suffix)) else {
            return;
        };
        if self.measure(self.0.len() - suffix.len()) > least {
            self.set(suffix.len(), by);
        }
    }

    fn fourth(&mut self) {
        let ion = self.ends("sion") || self.ends("tion");
        let found = FOURTH.iter().find(|s| self.ends(s)).map(|s| s.len());
        let Some(last) = found.or(ion.then_some(3)) else {
            return;
        };
        if self.measure(self.0.len() - last) > 1 {
            self.set(last, "");
        }
    }

    fn fifth(&mut self) {
        let end = self.0.len();
        if self.ends("e") {
            let measure = self.measure(end - 1);
            if measure > 1 || measure == 1 && !self.is_short(end - 1) {
                self.set(1, "");
            }
        }
        let end = self.0.len();
        if self.ends("ll") && self.measure(end - 1) > 1 {
            self.set(1, "");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_have_their_stems() {
        let cases = [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("hopping", "hop"),
            ("filing", "file"),
            ("happy", "happi"),
            ("relational", "relat"),
            ("generalizations", "gener"),
            ("controlling", "control"),
            ("sky", "sky"),
            ("as", "as"),
            ("adoption", "adopt"),
            ("psychology", "psycholog"),
        ];
        for (word, stem) in cases {
            assert_eq!(super::stem(word), stem, "{word}");
        }
    }
}
