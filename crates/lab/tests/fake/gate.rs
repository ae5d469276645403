//! A gate before the server: from some moment of a run on it answers nothing, so that the run can be killed right there,
//! however fast or slow the machine is.

use lab::report::Report;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Closes when the journal of a run holds so many steps.
pub struct Gate {
    journal: PathBuf,
    steps: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The file that was looked into last, so that a request costs one look at its name.
    seen: Option<(u64, i64, i64)>,
    closed: bool,
    open_for_good: bool,
}

/// What a run has measured so far.
pub fn measured(report: &Report) -> usize {
    report.steps.len() + report.turns.len() + report.comparisons.len()
}

impl Gate {
    pub fn new(journal: PathBuf, steps: usize) -> Gate {
        Gate {
            journal,
            steps,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Before each request. Returns when it may be answered.
    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.closed
            && let Ok(m) = std::fs::metadata(&self.journal)
        {
            let now = Some((m.ino(), m.mtime(), m.mtime_nsec()));
            if state.seen != now {
                state.seen = now;
                let enough = Report::read(&self.journal).is_ok_and(|r| measured(&r) >= self.steps);
                state.closed = enough;
                self.changed.notify_all();
            }
        }
        while state.closed && !state.open_for_good {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Waits until it has closed; `false` when that takes too long.
    pub fn wait(&self) -> bool {
        let state = self.state.lock().unwrap();
        let patience = Duration::from_secs(120);
        let wait = self
            .changed
            .wait_timeout_while(state, patience, |s| !s.closed);
        !wait.unwrap().1.timed_out()
    }

    pub fn open(&self) {
        self.state.lock().unwrap().open_for_good = true;
        self.changed.notify_all();
    }
}
