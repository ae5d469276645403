//! The database `local` of a member of a replica set: each member has its own. Its collections lie in a
//! store beside the member's (`<data directory>/local`), are not replicated, and can be written on any
//! member, also on a secondary and before the set is initiated.
//!
//! ```text
//! command of local.x ──► Commands ──► OwnLocal ──► Commands over the store beside: as a server by itself
//! ```
//!
//! Invariants:
//! - The store is made by the first write; what only reads does not make it.
//! - The oplog, `system.replset`, and what the member's log has of `local` (of a release that replicated
//!   it) are not in it.
//! - Access is checked by the member's own users ([`Commands::authority`]).

use crate::{Commands, Local, resume_builds};
use bson::{Doc, ObjectId, Val};
use errors::{Fallible, Result};
use front::args::Generic;
use front::{Specification, flag};
use parking_lot::Mutex;
use service::config::{ClusterRole, Topology};
use service::{Client, Mode, Outcome, Request, ServerConfig};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use storage::{Store, StoreOptions};

const DB: &str = "local";
/// Small: what tools and members note there.
const CACHE_BYTES: usize = 8 << 20;
const LOG_SEGMENT_BYTES: u64 = 1 << 20;
const OPEN_FILES: usize = 64;

type Make = dyn Fn(Arc<Store>) -> Result<Commands> + Send + Sync;

/// The store of a member's own `local`, once it is needed.
pub struct OwnLocal {
    dir: PathBuf,
    make: Box<Make>,
    opened: Mutex<Option<Arc<Commands>>>,
}

impl OwnLocal {
    /// That of the member that `c` answers for.
    pub(crate) fn beside(c: &Commands) -> OwnLocal {
        OwnLocal {
            dir: c.config.db_path.join(DB),
            make: commands_beside(c),
            opened: Mutex::default(),
        }
    }

    /// Answers by the store beside; `None` if there is none and the command does not write.
    pub(crate) fn commands(&self, writes: bool) -> Result<Option<Arc<Commands>>> {
        let mut opened = self.opened.lock();
        if opened.is_none() && (writes || self.dir.exists()) {
            let store = Store::open(StoreOptions {
                cache_bytes: CACHE_BYTES,
                log_segment_bytes: LOG_SEGMENT_BYTES,
                background_jobs: 1,
                open_files: OPEN_FILES,
                ..StoreOptions::new(&self.dir)
            })?;
            *opened = Some(Arc::new((self.make)(store)?));
        }
        Ok(opened.clone())
    }

    /// Has all on disk, at the end of the server.
    pub fn close(&self) -> Fallible<()> {
        match self.opened.lock().take() {
            Some(commands) => commands.store.close(),
            None => Ok(()),
        }
    }
}

/// How commands over the store beside are made: they share what clients and operators see with those of
/// the member.
fn commands_beside(c: &Commands) -> Box<Make> {
    let config = ServerConfig {
        role: ClusterRole::None,
        topology: match c.config.topology.set_name() {
            Some(name) => Topology::ReplicaSet {
                name: name.to_string(),
                named: false,
            },
            None => Topology::Standalone,
        },
        ..c.config.clone()
    };
    let (authority, cursors) = (c.engine.clone(), c.cursors.clone());
    let (control, parameters) = (c.control.clone(), c.parameters.clone());
    let (operations, counters) = (c.operations.clone(), c.counters.clone());
    let (rw_defaults, write_block) = (c.rw_defaults.clone(), c.write_block.clone());
    let (query_settings, connections) = (c.query_settings.clone(), c.connections.clone());
    let (topology, security) = (c.topology.clone(), c.security.clone());
    Box::new(move |store| {
        let engine = executor::Engine::open(store.clone())?;
        resume_builds(&engine);
        let commands = Commands {
            ownerships: crate::shard::Ownerships::follow(&engine)?,
            samplers: crate::analysis::sampling::Samplers::follow(&engine)?,
            store,
            engine,
            authority: Some(authority.clone()),
            own_local: None,
            cursors: cursors.clone(),
            session_table: Arc::default(),
            // Of those that have written here the retries are kept here.
            sessions: Arc::default(),
            snapshots: Arc::new(crate::snapshot_history::SnapshotHistory::new(false)),
            control: control.clone(),
            process_id: ObjectId::generate(),
            parameters: parameters.clone(),
            fail_points: Default::default(),
            operations: operations.clone(),
            counters: counters.clone(),
            operators: Default::default(),
            profiler: crate::profiler::Profiler::new(config.slow_ms),
            rw_defaults: rw_defaults.clone(),
            write_block: write_block.clone(),
            query_settings: query_settings.clone(),
            auto_compact: Mutex::default(),
            format_change: Mutex::default(),
            connections: connections.clone(),
            expired: Arc::default(),
            replica: None,
            replicated: None,
            topology: topology.clone(),
            security: security.clone(),
            log_times: Arc::default(),
            remote_collections: OnceLock::new(),
            cluster_reads: OnceLock::new(),
            db_checks: OnceLock::new(),
            config: config.clone(),
        };
        crate::background::reaper::start(&commands)?;
        Ok(commands)
    })
}

impl Commands {
    /// The member's own `local`, for a command of it.
    pub(crate) fn own_local_of(
        &self,
        command: &Specification,
        request: &Request<'_>,
    ) -> Option<&Arc<OwnLocal>> {
        let own = self.own_local.as_ref()?;
        let is_of_it = match command.name {
            "bulkWrite" => writes_only_local(request),
            _ if request.db() != Some(DB) || command.is(flag::ADMIN | flag::HANDSHAKE) => false,
            "listCollections" | "dbStats" => true,
            _ => collection(command, request).is_some_and(|name| self.is_own(name)),
        };
        is_of_it.then_some(own)
    }

    fn is_own(&self, collection: &str) -> bool {
        let is_of_member = matches!(collection, "oplog.rs" | "system.replset");
        let ns = format!("{DB}.{collection}");
        !is_of_member && self.engine.catalog.get(&ns).is_none()
    }

    /// Runs a command of the member's own `local`, on a worker; `None`: nothing is there, as the member
    /// itself will say.
    pub(crate) fn dispatch_to_own_local(
        &self,
        own: &OwnLocal,
        (local, client): (&mut Local, &Client<crate::Connection>),
        (command, request): (&Specification, &Request<'_>),
        out: &mut Vec<u8>,
    ) -> Option<Outcome> {
        let writes = command.is(flag::WRITE) && !command.is(flag::READ);
        let beside = match own.commands(writes) {
            Ok(beside) => beside?,
            Err(stop) => {
                self.write_failure(&stop.into_error(), out);
                return Some(Outcome::Reply);
            }
        };
        let start = out.len();
        match beside.dispatch(local, Mode::Worker, client, request, out) {
            // The loop knows of the member's log only.
            Outcome::WaitDurable(index) => {
                if let Err(error) = beside.store.wait_durable(index) {
                    out.truncate(start);
                    self.write_failure(&error, out);
                }
                Some(Outcome::Reply)
            }
            outcome => Some(outcome),
        }
    }
}

/// Writes to the member's own `local` are on no other member, and wait for none.
pub(crate) fn without_members(generic: &mut Generic<'_>) {
    let names_members = |w: Val<'_>| match w.to_i64_exact() {
        Some(n) => n > 1,
        None => !w.is_nullish(),
    };
    let w = generic.write_concern.and_then(|v| v.as_doc()?.get("w"));
    if w.is_some_and(names_members) {
        generic.write_concern = None;
    }
}

/// The collection that a command is about.
fn collection<'a>(command: &Specification, request: &Request<'a>) -> Option<&'a str> {
    let first = request.body.first()?;
    let text = |v: Val<'a>| v.as_str().filter(|name| !name.is_empty());
    match command.name {
        "getMore" => text(request.body.get("collection")?),
        "explain" => text(first.val.as_doc()?.first()?.val),
        _ => {
            let target = command.target(DB, first.val);
            target.filter(|(db, _)| *db == DB).map(|(_, name)| name)
        }
    }
}

fn writes_only_local(request: &Request<'_>) -> bool {
    let is_local = |d: Doc<'_>| {
        let ns = d.get("ns").and_then(|v| v.as_str());
        ns.is_some_and(|ns| ns.split_once('.').is_some_and(|(db, _)| db == DB))
    };
    if let Some(names) = request.sequence("nsInfo") {
        let mut names = names.peekable();
        return names.peek().is_some() && names.all(is_local);
    }
    let names = request.body.get("nsInfo").and_then(|v| v.as_array());
    names.is_some_and(|names| {
        let mut all = names.values().peekable();
        all.peek().is_some() && all.all(|v| v.as_doc().is_some_and(is_local))
    })
}
