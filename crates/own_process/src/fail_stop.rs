//! Fail-stop: where this program's own mistake could reach what is durable, or what clients are told of it, a panic
//! ends the process at its place. A start reads what is on disk, as after a kill.
//!
//! A guard says that the thread is at such work. The hook asks for it while the panic is told, before the stack is
//! unwound: no lock is released, no waiter woken and no reply sent after it. Without the hook (tests of a room by
//! itself, tools) the stack is unwound as ever.
//!
//! Invariant: a guard holds for its own thread, and until the one before it holds again.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{self, PanicHookInfo};

/// Which panics of a thread end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    None,
    /// Those of the code under this path.
    Of(&'static str),
    All,
}

thread_local! {
    static ENDS: Cell<Ends> = const { Cell::new(Ends::None) };
}

/// While it lives a panic of this thread ends the process.
pub struct FailStop {
    before: Ends,
    /// It is of one thread, and stays there.
    _thread: PhantomData<*const ()>,
}

impl FailStop {
    /// Any panic does.
    pub fn begin() -> FailStop {
        FailStop::set(Ends::All)
    }

    /// A panic of one's own crate does; one of a library is left to the code that catches it. `file` is the caller's `file!()`.
    pub fn of_crate(file: &'static str) -> FailStop {
        let sources = file.split_once("/src/").map_or(file, |(path, _)| path);
        FailStop::set(match ENDS.get() {
            Ends::All => Ends::All,
            _ => Ends::Of(sources),
        })
    }

    fn set(ends: Ends) -> FailStop {
        FailStop {
            before: ENDS.replace(ends),
            _thread: PhantomData,
        }
    }
}

impl Drop for FailStop {
    fn drop(&mut self) {
        ENDS.set(self.before);
    }
}

/// Whether a panic of this thread, in this file, ends the process.
fn ends_in(file: &str) -> bool {
    match ENDS.get() {
        Ends::None => false,
        Ends::Of(sources) => file
            .strip_prefix(sources)
            .is_some_and(|f| f.starts_with('/')),
        Ends::All => true,
    }
}

/// A panic, for a log.
pub struct Panicked<'a> {
    pub message: &'a str,
    /// File and line.
    pub place: String,
    /// Whether the process is to end. The log may know of a reason against it, and say so.
    pub ends: bool,
}

/// From now on panics are told to `tell`, besides what was told before, and those under a guard end the process, unless
/// `tell` says that they must not.
pub fn watch(tell: impl Fn(&Panicked<'_>) -> bool + Send + Sync + 'static) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        let file = info.location().map_or("", |at| at.file());
        let ends = ends_in(file);
        let panicked = Panicked {
            message: message_of(info),
            place: info
                .location()
                .map_or_else(String::new, ToString::to_string),
            ends,
        };
        if tell(&panicked) && ends {
            std::process::abort();
        }
    }));
}

fn message_of<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_hold_for_their_thread_until_they_end() {
        assert!(!ends_in("crates/x/src/a.rs"));
        {
            let _own = FailStop::of_crate("crates/x/src/b/c.rs");
            assert!(ends_in("crates/x/src/a.rs"));
            assert!(!ends_in("crates/xy/src/a.rs"), "another crate");
            assert!(!ends_in("/registry/raft-0.7/src/raft.rs"), "a library");
            {
                let _all = FailStop::begin();
                assert!(ends_in("/registry/raft-0.7/src/raft.rs"));
                let _narrower = FailStop::of_crate("crates/y/src/a.rs");
                assert!(ends_in("crates/x/src/a.rs"), "the wider one holds");
                let elsewhere = std::thread::spawn(|| ends_in("crates/x/src/a.rs"));
                assert!(!elsewhere.join().unwrap());
            }
            assert!(!ends_in("/registry/raft-0.7/src/raft.rs"));
        }
        assert!(!ends_in("crates/x/src/a.rs"));
    }

    #[test]
    fn an_unwound_guard_has_ended() {
        let fell = panic::catch_unwind(|| {
            let _all = FailStop::begin();
            panic!("on purpose");
        });
        assert!(fell.is_err() && !ends_in("a.rs"));
    }
}
