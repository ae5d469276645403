//! Regular expressions: PCRE2, with a bound on everything that a match may take.
//!
//! A short text is tried at first with few steps, the fewer the longer it is, and in machine code once
//! the pattern has been used a while. Nearly all matches end there. Other texts, and all long ones, are
//! tried in a form that calls back before each item of the pattern ([`watched`]): the operation is asked
//! in proportion to the work whether to end.
//!
//! Invariant: what the first try answers is what an unbounded match would answer; where a bound is
//! met, the second try alone decides. So the answer does not depend on how often a pattern was
//! used. No match holds more than [`HEAP_BYTES`] and [`STACK_BYTES`] beside its pattern, nor keeps
//! them.

mod code;
mod watched;

use code::{Code, Limits, MatchData, Outcome};
use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most that a match without machine code holds for going back.
pub const HEAP_BYTES: usize = 16 << 20;
/// The same for one with machine code.
pub const STACK_BYTES: usize = 8 << 20;
/// The most steps of a match from one place, which is PCRE2's own default.
pub const MOST_STEPS: u32 = 10_000_000;
/// Uses before machine code is worth its compilation; a long text counts more.
const WARM_UP: usize = 200;
const BYTES_OF_USE: usize = 1024;
/// The first try may go over so many bytes. PCRE2 counts steps anew at each place where a match may
/// begin, and one step may go over all of the text.
const BRIEF_BYTES: usize = 1 << 27;
const MOST_BRIEF_STEPS: usize = 20_000;
/// What a first try in vain counts as work.
const BRIEF_UNITS: usize = 64;

/// How a pattern is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternOptions {
    pub caseless: bool,
    pub multi_line: bool,
    pub extended: bool,
    pub dotall: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchFailure {
    /// The callback has ended the match.
    Ended,
    /// A bound was met, in PCRE2's words.
    Limit(String),
}

/// Is told of units of work, each about what going over 64 bytes takes, and answers whether the
/// match may go on.
pub type MayGoOn<'a> = &'a mut dyn FnMut(usize) -> bool;

/// A compiled pattern.
pub struct Regex {
    pattern: Box<str>,
    options: PatternOptions,
    plain: Code,
    used: AtomicUsize,
    machine: OnceLock<Option<Code>>,
    watched: OnceLock<Option<Code>>,
}

/// Where the last match and its groups are, and what searches of a long text keep between them.
pub struct Captures(MatchData, Option<watched::Stack>);

impl Regex {
    /// Compiles; the error in PCRE2's words.
    pub fn new(pattern: &str, options: PatternOptions) -> Result<Regex, String> {
        Ok(Regex {
            plain: Code::new(pattern, options, false)?,
            pattern: pattern.into(),
            options,
            used: AtomicUsize::new(0),
            machine: OnceLock::new(),
            watched: OnceLock::new(),
        })
    }

    /// Whether the pattern is found in the text.
    pub fn is_match(&self, text: &str, may_go_on: MayGoOn<'_>) -> Result<bool, MatchFailure> {
        thread_local! {
            static DATA: Cell<Option<MatchData>> = const { Cell::new(None) };
        }
        let mut data = match DATA.take() {
            Some(d) => d,
            None => MatchData::new(1)?,
        };
        let found = self.search(text, 0, &mut data, &mut None, may_go_on);
        DATA.set(Some(data));
        found
    }

    /// Room for what [`Regex::captures_at`] finds.
    pub fn captures(&self) -> Result<Captures, MatchFailure> {
        let data = MatchData::new(1 + self.plain.groups())?;
        Ok(Captures(data, None))
    }

    /// Looks for the first match that begins at this byte or later. `at` lies between characters.
    pub fn captures_at(
        &self,
        text: &str,
        at: usize,
        found: &mut Captures,
        may_go_on: MayGoOn<'_>,
    ) -> Result<bool, MatchFailure> {
        if !text.is_char_boundary(at) {
            return Ok(false);
        }
        self.search(text, at, &mut found.0, &mut found.1, may_go_on)
    }

    fn search(
        &self,
        text: &str,
        at: usize,
        data: &mut MatchData,
        stack: &mut Option<watched::Stack>,
        may_go_on: MayGoOn<'_>,
    ) -> Result<bool, MatchFailure> {
        let length = text.len() - at;
        if let Some(steps) = brief_steps(length) {
            match self.fast(length).brief(text, at, data, steps) {
                Outcome::Found => return Ok(true),
                Outcome::None => return Ok(false),
                Outcome::Limit(_) => {}
            }
            if !may_go_on(BRIEF_UNITS) {
                return Err(MatchFailure::Ended);
            }
        }
        let watched = self.watched.get_or_init(|| {
            let mut code = Code::new(&self.pattern, self.options, true).ok()?;
            code.compile_to_machine_code();
            Some(code)
        });
        let Some(code) = watched else {
            return Err(MatchFailure::Limit("the pattern is too large".into()));
        };
        watched::search(code, text, at, data, stack, may_go_on)
    }

    fn fast(&self, length: usize) -> &Code {
        if let Some(machine) = self.machine.get() {
            return machine.as_ref().unwrap_or(&self.plain);
        }
        let uses = 1 + length / BYTES_OF_USE;
        if self.used.fetch_add(uses, Ordering::Relaxed) < WARM_UP {
            return &self.plain;
        }
        let machine = self.machine.get_or_init(|| {
            let mut code = Code::new(&self.pattern, self.options, false).ok()?;
            code.compile_to_machine_code().then_some(code)
        });
        machine.as_ref().unwrap_or(&self.plain)
    }
}

/// The steps of a first try at each place; none where one would be too many.
fn brief_steps(length: usize) -> Option<u32> {
    let bytes = length.max(1).saturating_mul(length.max(1));
    let steps = (BRIEF_BYTES / bytes).min(MOST_BRIEF_STEPS) as u32;
    (steps > 0).then_some(steps)
}

impl Limits {
    const fn of(steps: u32) -> Limits {
        Limits {
            steps,
            heap_kib: (HEAP_BYTES >> 10) as u32,
        }
    }
}

impl Captures {
    /// The whole match and its groups.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.pairs()
    }

    /// From which byte to which; none where the group took no part.
    pub fn get(&self, i: usize) -> Option<(usize, usize)> {
        self.0.pair(i)
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({:?}, {:?})", self.pattern, self.options)
    }
}

#[cfg(test)]
mod tests;
