//! A text that character filters have rewritten, and where its bytes stood before.

/// The most bytes that a text grows to: what would be put in beyond them is left out.
const MOST_BYTES: usize = 32 << 20;

/// A text on its way to a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filtered {
    pub text: String,
    /// From a byte of the text on, which byte of the text before it was. Each filter has its own, the last one first.
    shifts: Vec<Vec<(usize, usize)>>,
}

impl Filtered {
    pub fn of(text: &str) -> Filtered {
        Filtered {
            text: text.to_string(),
            shifts: Vec::new(),
        }
    }

    /// Where a byte stood in the text that a user has written.
    pub fn original(&self, at: usize) -> usize {
        self.shifts.iter().fold(at, |at, shifts| {
            let behind = shifts.partition_point(|(new, _)| *new <= at);
            let last = behind.checked_sub(1).and_then(|n| shifts.get(n));
            let old = last.map_or(at, |(new, old)| old + (at - new));
            // Within what was put in, it is no further than what that stands for.
            shifts.get(behind).map_or(old, |(_, end)| old.min(*end))
        })
    }
}

/// Rewrites a text from its beginning to its end.
pub(super) struct Rewrite {
    from: Filtered,
    /// Up to where it is rewritten.
    at: usize,
    out: String,
    shifts: Vec<(usize, usize)>,
}

impl Rewrite {
    pub fn new(from: Filtered) -> Rewrite {
        Rewrite {
            at: 0,
            out: String::with_capacity(from.text.len()),
            shifts: Vec::new(),
            from,
        }
    }

    pub fn text(&self) -> &str {
        &self.from.text
    }

    /// Takes what lies before `end` over as it is.
    pub fn keep_to(&mut self, end: usize) {
        let piece = self.from.text.get(self.at..end).unwrap_or("");
        self.out.push_str(piece);
        self.at = end.max(self.at);
    }

    /// Has other text stand for what lies before `end`.
    pub fn replace_to(&mut self, end: usize, by: &str) {
        let by = match self.out.len() + by.len() > MOST_BYTES {
            true => "",
            false => by,
        };
        self.out.push_str(by);
        let end = end.max(self.at);
        if by.len() != end - self.at {
            self.shifts.push((self.out.len(), end));
        }
        self.at = end;
    }

    pub fn finish(mut self) -> Filtered {
        self.keep_to(self.from.text.len());
        let mut shifts = self.from.shifts;
        if !self.shifts.is_empty() {
            shifts.insert(0, self.shifts);
        }
        Filtered {
            text: self.out,
            shifts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lead_back_and_texts_stay_in_bounds() {
        let mut out = Rewrite::new(Filtered::of("a & b"));
        out.keep_to(2);
        out.replace_to(3, "and so");
        let got = out.finish();
        assert_eq!(got.text, "a and so b");
        let places: Vec<usize> = [0, 2, 6, 8, 9]
            .into_iter()
            .map(|n| got.original(n))
            .collect();
        assert_eq!(places, [0, 2, 3, 3, 4]);
        let mut out = Rewrite::new(Filtered::of("xxxx"));
        let long = "y".repeat(20 << 20);
        (1..=4).for_each(|end| out.replace_to(end, &long));
        assert_eq!(out.finish().text.len(), 20 << 20);
    }
}
