//! What expressions are told to stop by: a long evaluation asks in between, and so does whatever is made while the
//! operation holds much memory.
//!
//! Variables are shared by the stages of a pipeline and outlive a batch of a cursor, the operation does not. So the variables
//! hold this cell, and whoever runs a batch puts into it what stops the operation of that batch.

use crate::op::{self, OpCtx};
use errors::{Error, Result, bail};
use parking_lot::Mutex;
use query::expr::{Vars, Watchdog};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// How often expressions may ask on an event loop (each time after some thousand steps) before a worker takes over.
const INLINE_CHECKS: u32 = 40;
/// What the values that an operation makes may take, in bytes, as far as they are large. That of many operations is not shared out: who
/// waits for others holds what he has, and most end before others get so far (tried: three times the memory, and most refused).
const MOST_BYTES: isize = 512 << 20;

#[derive(Default)]
pub(crate) struct Interrupt(Mutex<State>);

#[derive(Default)]
struct State {
    deadline: Option<Instant>,
    killed: Option<Arc<AtomicBool>>,
    cancelled: Option<Arc<AtomicBool>>,
    /// On an event loop: how often it may still be asked.
    left: Option<u32>,
    /// What the thread held before the operation ([`alloc_meter::held`]).
    before: isize,
}

impl Interrupt {
    /// The variables with a new cell of this operation in them.
    pub fn bind(ctx: &OpCtx, vars: &Vars) -> (Arc<Interrupt>, Arc<Vars>) {
        let cell = Arc::new(Interrupt::default());
        *cell.0.lock() = State::of(ctx);
        let mut vars = Vars::clone(vars);
        let asked = cell.clone();
        vars.set_watchdog(asked);
        (cell, Arc::new(vars))
    }

    /// From now on it is `ctx` that runs.
    pub fn renew(&self, ctx: &OpCtx) {
        *self.0.lock() = State::of(ctx);
    }
}

impl State {
    fn of(ctx: &OpCtx) -> State {
        State {
            deadline: ctx.deadline,
            killed: ctx.killed.cloned(),
            cancelled: ctx.cancelled.cloned(),
            left: ctx.may_offload().then_some(INLINE_CHECKS),
            before: alloc_meter::held(),
        }
    }
}

impl Watchdog for Interrupt {
    fn check(&self) -> Result<()> {
        let mut s = self.0.lock();
        if let Some(left) = &mut s.left {
            match left.checked_sub(1) {
                Some(n) => *left = n,
                None => return Err(Error::offload()),
            }
        }
        op::interrupted(s.deadline, [&s.killed, &s.cancelled].map(|f| f.as_deref()))
    }

    fn weigh(&self) -> Result<()> {
        let held = alloc_meter::held() - self.0.lock().before;
        if held > MOST_BYTES {
            bail!(
                ExceededMemoryLimit,
                "The values that an expression has made take more than {MOST_BYTES} bytes of memory"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::Code;
    use std::sync::atomic::Ordering;

    #[test]
    fn stops() {
        let cell = Interrupt::default();
        assert!(cell.check().is_ok());
        let killed = Arc::new(AtomicBool::new(false));
        cell.0.lock().killed = Some(killed.clone());
        assert!(cell.check().is_ok());
        killed.store(true, Ordering::Relaxed);
        assert_eq!(cell.check().unwrap_err().code, Code::Interrupted);
        *cell.0.lock() = State {
            deadline: Some(Instant::now()),
            ..State::default()
        };
        assert_eq!(cell.check().unwrap_err().code, Code::MaxTimeMSExpired);
        cell.0.lock().deadline = None;
        cell.0.lock().left = Some(2);
        assert!(cell.check().is_ok() && cell.check().is_ok());
        assert!(cell.check().unwrap_err().is_offload());
    }
}
