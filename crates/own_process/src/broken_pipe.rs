//! A command whose reader has had enough (`pando lab show | head`) ends quietly, as other programs do there.
//!
//! Printing panics then. The stack is unwound as ever, so that started processes are stopped and
//! temporary files removed; only nothing is printed, and the exit code is the one that a shell shows of
//! programs that the signal ends.

use std::any::Any;
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// 128 and SIGPIPE.
const ENDED_BY_A_BROKEN_PIPE: u8 = 141;

static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs a command to its end, or until its output has no reader.
pub fn guard(command: impl FnOnce() -> ExitCode + UnwindSafe) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if is_broken_pipe(info.payload()) {
            BROKEN.store(true, Relaxed);
        }
        // Others that fall with it have nothing to say either.
        if !BROKEN.load(Relaxed) {
            usual(info);
        }
    }));
    match panic::catch_unwind(command) {
        Ok(code) => code,
        Err(_) if BROKEN.load(Relaxed) => ExitCode::from(ENDED_BY_A_BROKEN_PIPE),
        Err(panic) => panic::resume_unwind(panic),
    }
}

fn is_broken_pipe(payload: &(dyn Any + Send)) -> bool {
    let says = payload.downcast_ref::<String>();
    says.is_some_and(|s| s.starts_with("failed printing to ") && s.contains("Broken pipe"))
}
