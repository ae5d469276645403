//! A server that has nothing and is told that it is a member: new, or with a disk that was replaced.
//! Which of the two it cannot know, so it asks the primary before it takes part
//! ([`crate::member`], readmission).

use super::Driver;
use crate::SetName;
use crate::config::Config;
use crate::member::raft_id;
use errors::Fallible;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// Between two questions, first and later.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// What a member hears to the question whether it may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It votes when its commit point has come to here.
    Now(u64),
    /// The primary has begun to bring it in.
    Later,
    /// The asked member is not the primary.
    NotHere,
}

/// What this member was told, and what it hears.
#[derive(Default)]
pub(super) struct Joining {
    /// The newest: number, founder, configuration.
    invitation: Mutex<Option<(u64, u64, Config)>>,
    why: Mutex<String>,
    /// On the primary: those that may begin, and have not heard it yet, with the commit point that they have to
    /// come to.
    granted: Mutex<HashMap<u64, u64>>,
}

impl Joining {
    pub fn grant(&self, id: u64, until: u64) {
        self.granted.lock().insert(id, until);
    }

    pub fn take_grant(&self, id: u64) -> Option<u64> {
        self.granted.lock().remove(&id)
    }
}

impl Driver {
    /// Takes part in a set as the member of this number, as soon as the primary lets it.
    pub fn join(&self, id: u64, founder: u64, config: Config) {
        let joining = &self.shared.joining;
        if joining
            .invitation
            .lock()
            .replace((id, founder, config))
            .is_some()
        {
            return;
        }
        *joining.why.lock() = "no member has answered yet".into();
        let driver = self.clone();
        let run = move || driver.ask_to_join();
        let spawned = std::thread::Builder::new()
            .name("joining".into())
            .spawn(run);
        if let Err(e) = spawned {
            tracing::error!(target: "REPL", error = %e, "Cannot start a thread");
            *joining.invitation.lock() = None;
        }
    }

    /// Why this server takes no part yet in the set that it was told of; `None` where it was told of none.
    pub fn joining(&self) -> Option<String> {
        let joining = &self.shared.joining;
        joining
            .invitation
            .lock()
            .is_some()
            .then(|| joining.why.lock().clone())
    }

    /// On the primary: the commit point that a member which has nothing has to come to, where it may begin.
    /// `None`: it asks again.
    pub fn readmits(&self, id: u64) -> Option<u64> {
        let granted = self.shared.joining.take_grant(id);
        if granted.is_none() {
            let _ = self.shared.inputs.send(super::Input::Readmit(id));
        }
        granted
    }

    fn ask_to_join(&self) {
        let joining = &self.shared.joining;
        let (mut pause, longest) = PAUSES;
        let mut said = false;
        while self.status().id == 0 && !self.shared.is_stopping() {
            let Some((id, founder, config)) = joining.invitation.lock().clone() else {
                return;
            };
            match self.ask_all(id, founder, &config) {
                Ok(Some(until)) => {
                    tracing::info!(target: "REPL", member = id - 1, "The primary takes this member in");
                    self.begin(id, founder, config, until);
                    *joining.invitation.lock() = None;
                    return;
                }
                Ok(None) => {
                    *joining.why.lock() = "the primary has begun to take it in: a majority of the other members has to agree".into();
                }
                Err(e) => *joining.why.lock() = e.into_message(),
            }
            if pause >= longest && !std::mem::replace(&mut said, true) {
                tracing::warn!(target: "REPL", why = joining.why.lock().as_str(), "This member has no data of its set, and is not taken in yet");
            }
            std::thread::sleep(pause);
            pause = longest.min(pause * 5 / 4);
        }
        *joining.invitation.lock() = None;
    }

    /// What this member has to come to before it votes, where the primary lets it begin; an error where no primary is
    /// found.
    fn ask_all(&self, id: u64, founder: u64, config: &Config) -> Fallible<Option<u64>> {
        let set = SetName {
            name: self.set_name.clone(),
            id: config.settings.replica_set_id.map_or([0; 12], |id| id.0),
            founder,
            from: id,
        };
        let mut failure = None;
        for other in config.members.iter().filter(|m| raft_id(m.id) != id) {
            let to = raft_id(other.id);
            match self.transport.admits(&set, &other.host.to_string(), to, id) {
                Ok(Admission::Now(until)) => return Ok(Some(until)),
                Ok(Admission::Later) => return Ok(None),
                Ok(Admission::NotHere) => {}
                Err(e) => failure = Some(e),
            }
        }
        let nobody = || errors::err!(NotWritablePrimary, "no member of the set is primary");
        Err(failure.unwrap_or_else(nobody))
    }
}
