//! `dbCheck`: compares what the members of a set have, batch by batch, while they work; also the indexes
//! of each with its documents. What is found stands in the health log.
//!
//! ```text
//! primary                         log                     each secondary
//! mark (a name) ────────────────► mark ─────────────────► applies it, keeps the state of that moment
//! reads a batch in its state                              asks the primary: pandoCheckBatch "result"
//! digest, bounds, health log ◄──────────────────────────► reads the same range in its state
//! counts who is done ◄─────────────────────────────────── own health log, pandoCheckBatch "done"
//! rests, waits for the batch's write concern
//! ```
//!
//! A mark ends its group in the log ([`storage::Entry::mark`]), so that the states are of the same moment
//! on all members. Invariant: what is kept is bounded (states by number and age, results by number,
//! runs by `dbCheckMaxRunsOnQueue`), and every step heeds killOp and the end of the server.

mod batch;
pub mod command;
mod health_log;
mod job;
mod member;

use crate::Commands;
use crate::monitoring::operations::{Operation, Operations, Registered};
use crate::own_local::OwnLocal;
use crate::settings::parameters::Parameters;
use bson::DocBuf;
use catalog::{Collection, Snapshot};
use errors::{Error, Result};
use executor::Engine;
use parking_lot::Mutex;
use replication::Driver;
use service::Control;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::{Committed, Entry, Observer, Uuid, View};

/// States that wait to be read, and for how long.
const MOST_STATES: usize = 4;
const LONGEST_STATE: Duration = Duration::from_secs(60);
/// Results that other members may still ask for.
const MOST_RESULTS: usize = 1024;
/// The interval between two looks of a thread that waits to go on.
const LOOK: Duration = Duration::from_millis(50);

/// The state of a mark.
struct Marked {
    name: Uuid,
    index: u64,
    view: View,
    catalog: Arc<Snapshot>,
    ts: u64,
    since: Instant,
}

impl Marked {
    /// The collection, where it is the one that was to be checked.
    fn collection(&self, ns: &str, uuid: &Uuid) -> Option<&Arc<Collection>> {
        self.catalog.get(ns).filter(|c| c.uuid == *uuid)
    }
}

/// What the primary has found of a batch; `None` while it reads.
struct Outcome {
    name: Uuid,
    result: Option<DocBuf>,
    reported: usize,
}

#[derive(Default)]
struct State {
    marked: VecDeque<Marked>,
    outcomes: VecDeque<Outcome>,
    runs: VecDeque<job::Run>,
    /// The thread that works as primary, as secondary.
    runs_are_done: bool,
    marks_are_read: bool,
}

/// The checks of this member.
pub struct DbChecks {
    engine: Arc<Engine>,
    parameters: Arc<Parameters>,
    control: Arc<Control>,
    operations: Arc<Operations>,
    replica: Option<Driver>,
    /// Where the health log is, if not in `engine`.
    own_local: Option<Arc<OwnLocal>>,
    port: u16,
    state: Mutex<State>,
}

struct Follow(Weak<DbChecks>);

impl Observer for Follow {
    fn applied(&self, at: Committed, entry: &Entry) {
        if entry.is_mark()
            && let Some(checks) = self.0.upgrade()
        {
            checks.keep(at, entry.uuid);
        }
    }
}

impl DbChecks {
    /// Follows the marks in the log from now on.
    pub fn follow(c: &Commands) -> Result<()> {
        let checks = Arc::new(DbChecks {
            engine: c.engine.clone(),
            parameters: c.parameters.clone(),
            control: c.control.clone(),
            operations: c.operations.clone(),
            replica: c.replica.clone(),
            own_local: c.own_local.clone(),
            port: c.config.port,
            state: Mutex::default(),
        });
        c.store.observe(Arc::new(Follow(Arc::downgrade(&checks))))?;
        let _ = c.db_checks.set(checks);
        Ok(())
    }

    fn leads(&self) -> bool {
        self.replica.as_ref().is_none_or(|r| r.is_open())
    }

    /// `host:port`, as the set knows this member.
    fn host(&self) -> String {
        let status = self.replica.as_ref().map(Driver::status);
        let own = status.as_ref().and_then(|s| s.member(s.id));
        own.map_or_else(
            || format!("{}:{}", crate::process::host_name(), self.port),
            |m| m.host.to_string(),
        )
    }

    /// Called between two groups: the state is that of the mark.
    fn keep(self: Arc<Self>, at: Committed, name: Uuid) {
        let marked = Marked {
            name,
            index: at.index,
            ts: at.ts,
            view: self.engine.store.view(),
            catalog: self.engine.catalog.snapshot(),
            since: Instant::now(),
        };
        let begins = {
            let mut state = self.state.lock();
            state.marked.retain(|m| m.since.elapsed() < LONGEST_STATE);
            state.marked.push_back(marked);
            while state.marked.len() > MOST_STATES {
                state.marked.pop_front();
                tracing::warn!(target: "COMMAND", "dbCheck: a batch is not compared, since this member reads too slowly");
            }
            assert!(state.marked.len() <= MOST_STATES, "states are few");
            let is_other = !state.outcomes.iter().any(|o| o.name == name);
            is_other && !std::mem::replace(&mut state.marks_are_read, true)
        };
        if begins {
            self.spawn(|checks| checks.read_marks());
        }
    }

    fn spawn(self: Arc<Self>, work: impl FnOnce(Arc<DbChecks>) + Send + 'static) {
        let spawned = std::thread::Builder::new()
            .name("dbCheck".into())
            .spawn(move || work(self));
        if let Err(error) = spawned {
            tracing::error!(target: "COMMAND", %error, "dbCheck: no thread can be started");
        }
    }

    /// Takes the state of a mark, or the oldest of others' marks.
    fn take(&self, name: Option<Uuid>) -> Option<Marked> {
        let mut state = self.state.lock();
        let at = match name {
            Some(name) => state.marked.iter().position(|m| m.name == name)?,
            None => 0,
        };
        state.marked.remove(at)
    }

    /// An operation of its own, which currentOp shows and killOp ends.
    fn register(&self, ns: &str, body: DocBuf) -> Registered {
        self.operations.register(Operation {
            id: 0,
            command: "dbCheck",
            ns: ns.to_string(),
            body,
            connection: 0,
            client: String::new(),
            app_name: String::new(),
            lsid: None,
            user: None,
            started: Instant::now(),
            killed: Arc::default(),
            waiting: Default::default(),
            plan: Default::default(),
        })
    }

    /// Fails where the operation was killed, or the server ends.
    fn go_on(&self, operation: &Registered) -> Result<()> {
        if self.control.is_stopping() {
            return Err(errors::err!(InterruptedAtShutdown, "interrupted at shutdown").into());
        }
        match operation.is_killed() {
            true => Err(Error::new(errors::Code::Interrupted, "operation was interrupted").into()),
            false => Ok(()),
        }
    }
}
