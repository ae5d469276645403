//! What a router's read was admitted by, until it has its views: a wait in between (for a time that
//! the client has seen elsewhere, for memory, for a thread) may be longer than a move.
//!
//! Invariant: results are handed out only if, when each view was taken, no range had gone since the
//! admission, and none had come that the read does not hide.

use super::Ownerships;
use super::admission::refusal;
use errors::{Result, Stop};
use executor::ViewTaken;
use sharding::{Ownership, Received};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct RangesRead {
    ownerships: Arc<Ownerships>,
    /// The collection as the router names it, and the one that is read.
    ns: String,
    part: String,
    received: Received,
    admitted: Option<Arc<Ownership>>,
    changed: AtomicBool,
}

impl RangesRead {
    pub(super) fn new(
        ownerships: &Arc<Ownerships>,
        ns: &str,
        part: String,
        received: Received,
        admitted: Option<Arc<Ownership>>,
    ) -> RangesRead {
        RangesRead {
            ownerships: ownerships.clone(),
            ns: ns.into(),
            part,
            received,
            admitted,
            changed: AtomicBool::new(false),
        }
    }

    /// Fails where the read is to be asked for again.
    pub fn check(&self) -> Result<()> {
        match self.changed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Stop::from(refusal(
                &self.ns,
                self.received,
                self.admitted.as_deref(),
                true,
            ))),
        }
    }
}

impl ViewTaken for RangesRead {
    fn view_taken(&self, ns: &str) {
        if ns != self.part {
            return;
        }
        let now = self.ownerships.get(&self.part);
        let same = match (&now, &self.admitted) {
            (Some(now), Some(admitted)) => Arc::ptr_eq(now, admitted),
            (None, None) => true,
            _ => false,
        };
        if !same && !Ownership::still_serves(self.admitted.as_deref(), now.as_deref()) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }
}
