//! The hello of a connection that watches the server.

use crate::monitoring::operations::Registered;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Instant;

/// How many connections are in the middle of what, for serverStatus.
#[derive(Debug, Default)]
pub struct HelloCounters {
    pub awaiting: AtomicI64,
    pub exhaust_hello: AtomicI64,
    pub exhaust_is_master: AtomicI64,
}

/// What the hello of a connection that watches the server is in the middle of.
#[derive(Debug, Default)]
pub struct Monitor {
    pub(crate) waits: Option<Wait>,
    pub(crate) streams: Option<Stream>,
}

#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) until: Instant,
    /// When its `maxTimeMS` is over.
    pub(crate) expires: Option<Instant>,
    pub(crate) registered: Registered,
    pub(crate) _counted: Counted,
}

#[derive(Debug)]
pub(crate) struct Stream {
    /// What the last reply told.
    pub(crate) counter: i64,
    pub(crate) _counted: Counted,
}

/// One in a figure, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<HelloCounters>, fn(&HelloCounters) -> &AtomicI64);

impl Counted {
    pub(crate) fn new(
        figures: &Arc<HelloCounters>,
        which: fn(&HelloCounters) -> &AtomicI64,
    ) -> Counted {
        which(figures).fetch_add(1, SeqCst);
        Counted(figures.clone(), which)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, SeqCst);
    }
}

impl Monitor {
    pub fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }
}
