//! A match that asks in between: PCRE2 calls back before each item of the pattern.
//!
//! Invariant: between two calls a match goes over the text once at most, so what it does is counted,
//! whatever the pattern.

use crate::code::{Code, Context, Limits, MatchData, Outcome, message};
use crate::{MOST_STEPS, MatchFailure, MayGoOn, STACK_BYTES};
use pcre2_sys::*;
use std::ptr;

/// The bytes that are a unit of work.
const BYTES_OF_UNIT: usize = 64;
/// A comparison with what a group has taken may fail far into it, which shows in no place that the
/// match comes to: each call counts so many bytes of the text.
const COMPARED_SHARE: usize = 1024;
/// Units are told when there are as many.
const REPORTED_UNITS: usize = 256;
const FIRST_STACK_BYTES: usize = 32 << 10;

/// The beginning of PCRE2's `pcre2_callout_block`, which later versions only add to.
#[repr(C)]
struct Callout {
    version: u32,
    number: u32,
    capture_top: u32,
    capture_last: u32,
    offsets: *mut usize,
    mark: *const u8,
    subject: *const u8,
    subject_length: usize,
    start_match: usize,
    current_position: usize,
}

type CalledBack = unsafe extern "C" fn(*mut Callout, *mut libc::c_void) -> libc::c_int;

unsafe extern "C" {
    fn pcre2_set_callout_8(
        context: *mut pcre2_match_context_8,
        called: Option<CalledBack>,
        data: *mut libc::c_void,
    ) -> libc::c_int;
}

/// The state handed through PCRE2.
struct Meter<'a, 'b> {
    may_go_on: &'a mut (dyn FnMut(usize) -> bool + 'b),
    position: usize,
    units: usize,
    units_of_call: usize,
}

impl Meter<'_, '_> {
    fn called(&mut self, position: usize) -> bool {
        let gone = position.abs_diff(self.position);
        self.position = position;
        self.units += self.units_of_call + gone / BYTES_OF_UNIT;
        if self.units < REPORTED_UNITS {
            return true;
        }
        (self.may_go_on)(std::mem::take(&mut self.units))
    }
}

unsafe extern "C" fn called(block: *mut Callout, meter: *mut libc::c_void) -> libc::c_int {
    // SAFETY: PCRE2 gives its block, and the meter that it was given for this match.
    let (block, meter) = unsafe { (&*block, &mut *meter.cast::<Meter<'_, '_>>()) };
    match meter.called(block.current_position) {
        true => 0,
        false => PCRE2_ERROR_CALLOUT,
    }
}

/// Where a match with machine code keeps its ways back: address space of [`STACK_BYTES`], which takes
/// longer to get than a short match. A caller that searches one text again and again keeps it.
pub(crate) struct Stack(*mut pcre2_jit_stack_8);

#[cfg(test)]
thread_local! {
    pub(crate) static STACKS_MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Stack {
    fn new() -> Option<Stack> {
        #[cfg(test)]
        STACKS_MADE.set(STACKS_MADE.get() + 1);
        // SAFETY: no general context is needed.
        let made =
            unsafe { pcre2_jit_stack_create_8(FIRST_STACK_BYTES, STACK_BYTES, ptr::null_mut()) };
        (!made.is_null()).then_some(Stack(made))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: it is ours, or null, which PCRE2 allows.
        unsafe { pcre2_jit_stack_free_8(self.0) }
    }
}

/// Looks for a match to the end, or until it is ended or a bound is met. `stack` is made where there is
/// none yet.
pub(crate) fn search(
    code: &Code,
    text: &str,
    at: usize,
    data: &mut MatchData,
    stack: &mut Option<Stack>,
    may_go_on: MayGoOn<'_>,
) -> Result<bool, MatchFailure> {
    let mut meter = Meter {
        may_go_on,
        position: at,
        units: 0,
        units_of_call: match code.has_backreference() {
            true => 1 + text.len() / COMPARED_SHARE,
            false => 1,
        },
    };
    let no_memory = || MatchFailure::Limit("no more memory".into());
    let context = Context::new().ok_or_else(no_memory)?;
    context.limit(Limits::of(MOST_STEPS));
    if stack.is_none() {
        *stack = Stack::new();
    }
    let stack = stack.as_ref().ok_or_else(no_memory)?;
    // SAFETY: stack and meter outlive the match, and the context is used for it only.
    unsafe {
        pcre2_jit_stack_assign_8(context.0, None, stack.0.cast());
        pcre2_set_callout_8(context.0, Some(called), (&raw mut meter).cast());
    }
    match code.search(text, at, data, &context) {
        Outcome::Found => Ok(true),
        Outcome::None => Ok(false),
        Outcome::Limit(PCRE2_ERROR_CALLOUT) => Err(MatchFailure::Ended),
        Outcome::Limit(rc) => Err(MatchFailure::Limit(message(rc))),
    }
}
