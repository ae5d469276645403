//! A member whose data files are damaged: it has another member elected, where it is primary, and stands
//! for no election. Readers of it are told to go elsewhere. By itself it gets the files of the primary in
//! place of its own, unless it was told not to.
//!
//! Invariant: what it has acknowledged it keeps: it goes on to take entries and to vote.

use super::Input;
use super::thread::{BY_REQUEST, Thread};
use errors::Fallible;
use std::sync::atomic::Ordering;

impl Thread {
    /// Looks whether the store has met damage.
    pub(super) fn look_for_damage(&mut self) -> Fallible<()> {
        if !self.damaged {
            let Some(why) = storage::damage() else {
                return Ok(());
            };
            self.damaged = true;
            match self.shared.repairs_itself.load(Ordering::Relaxed) {
                true => {
                    tracing::error!(target: "REPL", error = why.as_str(), "The data files of this member are damaged: it is no candidate until it has those of another")
                }
                false => {
                    tracing::error!(target: "REPL", error = why.as_str(), "The data files of this member are damaged: it is no candidate until it is started again. \
                    Empty its data directory and start it: it copies the data from the set")
                }
            }
            let _ = self.shared.damage.set(why);
            self.withhold();
        }
        let leads = self.shared.status.read().is_primary();
        if leads && let Some(to) = self.due_successor() {
            tracing::warn!(target: "REPL", member = to - 1, "The data files are damaged here: another member is asked to take over");
            self.hands_over_because = BY_REQUEST;
            self.close_before(move |term| Input::HandOverNow(to, term));
        }
        if !leads {
            self.begin_repair();
        }
        Ok(())
    }
}
