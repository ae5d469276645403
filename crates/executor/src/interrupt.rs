//! Interruption of expressions: a long evaluation checks in between, and so does building large
//! values.
//!
//! Variables are shared by the stages of a pipeline and outlive a cursor's batch; an operation does
//! not. So the variables hold this cell, and each batch puts its operation's stop conditions into
//! it.

use crate::operation_memory;
use bson::{Doc, Val, Value};
use errors::{Fallible, Result, Stop, Suspension, bail};
use parking_lot::Mutex;
use query::expr::{Vars, Watchdog};
use query::script::{Emitted, Function, Globals, Scripts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The number of checks on an event loop (one after some thousand steps) before a worker takes
/// over.
const INLINE_CHECKS: u32 = 40;

/// The stop conditions of an operation.
#[derive(Clone, Copy)]
pub(crate) struct StoppedBy<'a> {
    pub deadline: Option<Instant>,
    pub killed: Option<&'a Arc<AtomicBool>>,
    pub cancelled: Option<&'a Arc<AtomicBool>>,
    /// The operation runs on an event loop, and may move to a worker.
    pub inline: bool,
    /// It may run scripts.
    pub scripting: bool,
}

/// Fails when the time is up or a flag is set.
pub(crate) fn interrupted(
    deadline: Option<Instant>,
    flags: [Option<&AtomicBool>; 2],
) -> Fallible<()> {
    if flags.iter().flatten().any(|f| f.load(Ordering::Relaxed)) {
        bail!(Interrupted, "operation was interrupted");
    }
    if deadline.is_some_and(|d| Instant::now() >= d) {
        bail!(MaxTimeMSExpired, "operation exceeded time limit");
    }
    Ok(())
}

#[derive(Default)]
pub(crate) struct Interrupt {
    state: Mutex<State>,
    /// The operation's scripts: nothing until one is called.
    scripts: script::ScriptEngine,
    scripting: bool,
    /// Why a script was ended, when it was for its memory.
    refused: Mutex<Option<Stop>>,
    /// Itself, for the scripts to ask.
    this: Weak<Interrupt>,
}

#[derive(Default)]
struct State {
    deadline: Option<Instant>,
    killed: Option<Arc<AtomicBool>>,
    cancelled: Option<Arc<AtomicBool>>,
    /// On an event loop: the number of checks left.
    left: Option<u32>,
}

impl Interrupt {
    /// The variables with a new cell for this operation.
    pub fn bind(by: StoppedBy, vars: &Vars) -> (Arc<Interrupt>, Arc<Vars>) {
        let cell = Arc::new_cyclic(|this| Interrupt {
            state: Mutex::new(State::of(by)),
            scripting: by.scripting,
            this: this.clone(),
            ..Interrupt::default()
        });
        let mut vars = Vars::clone(vars);
        let asked = cell.clone();
        vars.set_watchdog(asked);
        (cell, Arc::new(vars))
    }

    /// Between two batches nothing of the scripts is kept.
    pub fn rest(&self) {
        self.scripts.rest();
    }

    /// Another run continues with the same variables.
    pub fn renew(&self, by: StoppedBy) {
        *self.state.lock() = State::of(by);
    }
}

/// Variables whose expressions stop at a time, of an operation that is none of an engine.
pub fn stoppable(deadline: Option<Instant>, scripting: bool, vars: &Vars) -> Arc<Vars> {
    let by = StoppedBy {
        deadline,
        killed: None,
        cancelled: None,
        inline: false,
        scripting,
    };
    Interrupt::bind(by, vars).1
}

impl State {
    fn of(by: StoppedBy) -> State {
        State {
            deadline: by.deadline,
            killed: by.killed.cloned(),
            cancelled: by.cancelled.cloned(),
            left: by.inline.then_some(INLINE_CHECKS),
        }
    }
}

impl Watchdog for Interrupt {
    fn check(&self) -> Result<()> {
        let mut s = self.state.lock();
        if let Some(left) = &mut s.left {
            match left.checked_sub(1) {
                Some(n) => *left = n,
                None => return Err(Suspension::Worker.into()),
            }
        }
        Ok(interrupted(
            s.deadline,
            [&s.killed, &s.cancelled].map(|f| f.as_deref()),
        )?)
    }

    fn weigh(&self, more: usize) -> Result<()> {
        let on_loop = self.state.lock().left.is_some();
        operation_memory::weigh(more, !on_loop, &|| self.check())
    }

    fn scripts(&self) -> Result<&dyn Scripts> {
        if !self.scripting {
            bail!(
                31264,
                "Cannot run server-side javascript without the javascript engine enabled"
            );
        }
        // An event loop serves other clients meanwhile.
        if self.state.lock().left.is_some() {
            return Err(Suspension::Worker.into());
        }
        Ok(self)
    }
}

impl Interrupt {
    /// What a script gave. The cause that ended one is a better error than the script's own.
    fn ran<T>(&self, made: std::result::Result<T, errors::Error>) -> Result<T> {
        if made.is_err() {
            self.check()?;
            if let Some(refused) = self.refused.lock().take() {
                return Err(refused);
            }
        }
        Ok(made?)
    }

    fn ends_script(&self) -> bool {
        if self.check().is_err() {
            return true;
        }
        let weighed = self.weigh(0);
        let ends = weighed.is_err();
        if let Err(refused) = weighed {
            *self.refused.lock() = Some(refused);
        }
        ends
    }

    /// For the scripts to ask whether they must end.
    fn for_scripts(&self) -> script::Interrupted {
        let this = self.this.clone();
        Box::new(move || this.upgrade().is_none_or(|i| i.ends_script()))
    }
}

impl Scripts for Interrupt {
    fn call(
        &self,
        function: &Function,
        this: Option<Doc<'_>>,
        args: &[Val<'_>],
        globals: Globals<'_>,
    ) -> Result<Value> {
        let call = script::FunctionCall {
            source: &function.source,
            this,
            args,
            globals: given(globals),
        };
        self.ran(self.scripts.call(&call, || self.for_scripts()))
    }

    fn map(
        &self,
        function: &Function,
        this: Doc<'_>,
        globals: Globals<'_>,
        out: &mut Emitted,
    ) -> Result<()> {
        let call = script::FunctionCall {
            source: &function.source,
            this: Some(this),
            args: &[],
            globals: given(globals),
        };
        self.ran(
            self.scripts
                .map(&call, &mut out.bytes, || self.for_scripts()),
        )
    }
}

fn given(globals: Globals<'_>) -> script::RealmGlobals<'_> {
    script::RealmGlobals {
        scope: globals.scope,
        stored: globals.stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::Code;

    #[test]
    fn stops() {
        let cell = Interrupt::default();
        assert!(cell.check().is_ok());
        let killed = Arc::new(AtomicBool::new(false));
        cell.state.lock().killed = Some(killed.clone());
        assert!(cell.check().is_ok());
        killed.store(true, Ordering::Relaxed);
        assert!(cell.check().unwrap_err().is(Code::Interrupted));
        *cell.state.lock() = State {
            deadline: Some(Instant::now()),
            ..State::default()
        };
        assert!(cell.check().unwrap_err().is(Code::MaxTimeMSExpired));
        cell.state.lock().deadline = None;
        cell.state.lock().left = Some(2);
        assert!(cell.check().is_ok() && cell.check().is_ok());
        assert!(cell.check().unwrap_err().is_suspension());
    }
}
