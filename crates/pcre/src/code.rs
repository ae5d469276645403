//! PCRE2's objects: compiled patterns, contexts and results of matches.
//!
//! Invariant: a pointer here is never null, and is freed once, by its owner. Texts are `str`, so
//! PCRE2 need not check again that they are UTF-8.

use crate::{MatchFailure, PatternOptions};
use pcre2_sys::*;
use std::ptr;

/// Match data that has grown beyond this does not keep what it has.
const KEPT_BYTES: usize = 64 << 10;

/// A compiled pattern.
pub(crate) struct Code(*mut pcre2_code_8);

// SAFETY: a compiled pattern does not change after it was made (and compiled to machine code, which
// takes `&mut`), and PCRE2 lets threads match with one at the same time.
unsafe impl Send for Code {}
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { pcre2_code_free_8(self.0) }
    }
}

impl Code {
    /// `calls_back`: before each item of the pattern.
    pub fn new(pattern: &str, options: PatternOptions, calls_back: bool) -> Result<Code, String> {
        let flags = [
            (options.caseless, PCRE2_CASELESS),
            (options.multi_line, PCRE2_MULTILINE),
            (options.extended, PCRE2_EXTENDED),
            (options.dotall, PCRE2_DOTALL),
            (calls_back, PCRE2_AUTO_CALLOUT),
        ];
        let flags = flags.iter().filter(|f| f.0).fold(PCRE2_UTF, |a, f| a | f.1);
        let (mut error, mut offset) = (0, 0);
        // SAFETY: the pattern has this length; all else may be null.
        let code = unsafe {
            pcre2_compile_8(
                pattern.as_ptr(),
                pattern.len(),
                flags,
                &mut error,
                &mut offset,
                ptr::null_mut(),
            )
        };
        match code.is_null() {
            true => Err(format!(
                "PCRE2: error compiling pattern at offset {offset}: {}",
                message(error)
            )),
            false => Ok(Code(code)),
        }
    }

    /// Whether there is machine code for it now.
    pub fn compile_to_machine_code(&mut self) -> bool {
        // SAFETY: it has no other owner yet.
        unsafe { pcre2_jit_compile_8(self.0, PCRE2_JIT_COMPLETE) == 0 }
    }

    pub fn groups(&self) -> usize {
        self.info(PCRE2_INFO_CAPTURECOUNT) as usize
    }

    pub fn has_backreference(&self) -> bool {
        self.info(PCRE2_INFO_BACKREFMAX) > 0
    }

    fn info(&self, what: u32) -> u32 {
        let mut out = 0u32;
        // SAFETY: both that are asked for are of this type.
        unsafe { pcre2_pattern_info_8(self.0, what, (&raw mut out).cast()) };
        out
    }

    /// Tries with few steps, without a callback.
    pub fn brief(&self, text: &str, at: usize, data: &mut MatchData, steps: u32) -> Outcome {
        thread_local! {
            static CONTEXT: Option<Context> = Context::new();
        }
        CONTEXT.with(|c| match c {
            Some(c) => {
                c.limit(Limits::of(steps));
                self.search(text, at, data, c)
            }
            None => Outcome::Limit(PCRE2_ERROR_NOMEMORY),
        })
    }

    pub fn search(&self, text: &str, at: usize, data: &mut MatchData, c: &Context) -> Outcome {
        let start = match text.is_empty() {
            // An empty text may be anywhere; this one can be read.
            true => c"".as_ptr().cast(),
            false => text.as_ptr(),
        };
        // SAFETY: the text is UTF-8 and has this length, `at` lies between two of its characters.
        let rc = unsafe {
            pcre2_match_8(
                self.0,
                start,
                text.len(),
                at,
                PCRE2_NO_UTF_CHECK,
                data.0,
                c.0,
            )
        };
        data.shrink();
        match rc {
            0.. => Outcome::Found,
            PCRE2_ERROR_NOMATCH => Outcome::None,
            rc => Outcome::Limit(rc),
        }
    }
}

/// What a match has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Found,
    None,
    /// PCRE2's number of a bound, or of another failure.
    Limit(i32),
}

#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub steps: u32,
    pub heap_kib: u32,
}

/// The limits of a match, and its callback.
pub(crate) struct Context(pub *mut pcre2_match_context_8);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { pcre2_match_context_free_8(self.0) }
    }
}

impl Context {
    pub fn new() -> Option<Context> {
        // SAFETY: no general context is needed.
        let c = unsafe { pcre2_match_context_create_8(ptr::null_mut()) };
        (!c.is_null()).then_some(Context(c))
    }

    pub fn limit(&self, limits: Limits) {
        // SAFETY: the context is ours, and of this thread. The bound on depth is that of steps: one
        // cannot go deeper than it has gone steps.
        unsafe {
            pcre2_set_match_limit_8(self.0, limits.steps);
            pcre2_set_depth_limit_8(self.0, limits.steps);
            pcre2_set_heap_limit_8(self.0, limits.heap_kib);
        }
    }
}

/// Where a match and its groups are.
pub(crate) struct MatchData(*mut pcre2_match_data_8);

impl Drop for MatchData {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { pcre2_match_data_free_8(self.0) }
    }
}

impl MatchData {
    /// For so many pairs of offsets.
    pub fn new(pairs: usize) -> Result<MatchData, MatchFailure> {
        let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
        // SAFETY: no general context is needed.
        let data = unsafe { pcre2_match_data_create_8(pairs, ptr::null_mut()) };
        match data.is_null() {
            true => Err(MatchFailure::Limit("no more memory".into())),
            false => Ok(MatchData(data)),
        }
    }

    pub fn pairs(&self) -> usize {
        // SAFETY: it is ours.
        unsafe { pcre2_get_ovector_count_8(self.0) as usize }
    }

    pub fn pair(&self, i: usize) -> Option<(usize, usize)> {
        if i >= self.pairs() {
            return None;
        }
        // SAFETY: there are so many pairs.
        let (from, to) = unsafe {
            let pairs = pcre2_get_ovector_pointer_8(self.0);
            (*pairs.add(2 * i), *pairs.add(2 * i + 1))
        };
        (from != PCRE2_UNSET && to != PCRE2_UNSET).then_some((from, to))
    }

    /// Gives back what a long match has left; the offsets stay.
    fn shrink(&mut self) {
        // SAFETY: it is ours.
        if unsafe { pcre2_get_match_data_heapframes_size_8(self.0) } <= KEPT_BYTES {
            return;
        }
        let Ok(small) = MatchData::new(self.pairs()) else {
            return;
        };
        // SAFETY: both have as many pairs.
        unsafe {
            ptr::copy_nonoverlapping(
                pcre2_get_ovector_pointer_8(self.0),
                pcre2_get_ovector_pointer_8(small.0),
                2 * self.pairs(),
            );
        }
        *self = small;
    }
}

/// PCRE2's words for one of its numbers.
pub(crate) fn message(error: i32) -> String {
    let mut out = [0u8; 256];
    // SAFETY: it writes no more than there is room for.
    let n = unsafe { pcre2_get_error_message_8(error, out.as_mut_ptr(), out.len()) };
    let n = usize::try_from(n).unwrap_or(0).min(out.len());
    String::from_utf8_lossy(&out[..n]).into_owned()
}
