//! A text that character filters have rewritten, and where its bytes stood before.

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
            last.map_or(at, |(new, old)| old + (at - new))
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
