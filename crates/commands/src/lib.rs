//! MongoDB's commands, and the way of a request to them.
//!
//! [`Commands`] answers what the server's event loops read (`service::Service`). The rooms:
//!
//! - `dispatch`, `handlers`, `accounting`: from the message to the function that runs its command, and
//!   back to the reply;
//! - `request`: admission, the context of a running command, concerns, transactions;
//! - `admin`, `crud`, `ddl`, `diagnostic`, `handshake`, `replication`, `roles`, `sessions`, `stats`,
//!   `users`: the commands, a file each, which parses, runs and replies;
//! - `shard`: a shard's side of a cluster;
//! - `security`: authentication and access control;
//! - `monitoring`, `settings`, `topology`: state of the server that several commands share;
//! - `background`: threads that work without a request.
//!
//! A command writes its reply in place. Errors become `{ok: 0, errmsg, code, codeName}`.
//!
//! Architecture invariant: nothing here knows sockets; nothing here reads or writes the store
//! except through the executor and the catalog.

mod background;
mod clock;
mod connection;
mod dispatch;
mod for_router;
mod handlers;
mod monitoring;
mod oplog_view;
mod process;
mod profiler;
mod request;
mod security;
mod settings;
mod snapshot_history;
mod topology;
mod version;

mod admin;
pub mod analysis;
mod crud;
mod db_check;
mod ddl;
mod diagnostic;
mod handshake;
mod own_local;
mod replication;
mod roles;
mod sessions;
mod shard;
mod stats;
#[cfg(test)]
mod tests;
mod users;

pub use admin::pando_backup::last as last_backup;
pub use catalog::new_uuid;
pub use connection::Connection;
pub use connection::login::LoggedIn;
pub use crud::bulk_write::check as check_bulk_write;
pub use crud::check_find_of_view;
pub use crud::file_md5::{FileDigest, of_view as chunks_of_view};
pub use crud::get_more::with_resumable_label;
pub use ddl::create::uuid_mismatch;
pub use executor::{CursorMemory, HeldDocuments, HeldKey, RemoteCollections, RemoteRows, Share};
pub use for_router::{FailPoint, OneUpdate, RouterCursor, RouterPipeline, Step, Whose};
pub use request::collation::given as given_collation;
pub use request::transaction::is_transient;
pub use security::UserDirectory;
pub use security::authorize::check_user_still;
pub use session::{CursorFigures, OtherCursors};
pub use shard::joins::ClusterReads;
pub use version::{FEATURE_VERSIONS, PANDO_VERSION, VERSION};

use ::replication::{Changed, Driver};
use admin::set_feature_compatibility_version::AsParameter as FeatureVersion;
use bson::{Doc, DocBuf, ObjectId, Writer};
use crud::query_settings;
use diagnostic::current_op::Connections;
use errors::{Fallible, Result};
use monitoring::metrics::{self, Counters};
use monitoring::operations::Operations;
use own_process::disk_space::DiskSpace;
use parking_lot::Mutex;
use profiler::Profiler;
use service::config::ClusterRole;
use service::{
    Address, Client, Control, DiskRead, Mode, Needs, Outcome, Request, ServerConfig, Service,
};
use session::{Cursors, Lsid, SessionTable, Sessions};
use settings::fail_point::FailPoints;
use settings::parameters::{self, Parameters};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use storage::{Missing, Op, Store};

/// What an event loop or a worker keeps between requests.
pub struct Local {
    pub(crate) group: executor::WriteGroup,
    pub(crate) top: Arc<Mutex<metrics::Top>>,
    /// Of routers' writes that are staged.
    pub(crate) writers: Vec<shard::WriterGuard>,
    /// Of the router's write that is run.
    pub(crate) writer: Option<shard::WriterGuard>,
}

/// Answers requests.
pub struct Commands {
    pub store: Arc<Store>,
    pub engine: Arc<executor::Engine>,
    pub cursors: Arc<Cursors>,
    pub session_table: Arc<SessionTable>,
    pub sessions: Arc<Sessions>,
    pub(crate) snapshots: Arc<snapshot_history::SnapshotHistory>,
    pub config: ServerConfig,
    pub control: Arc<Control>,
    /// Names this process among others (`topologyVersion.processId`, serverStatus).
    pub process_id: ObjectId,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) fail_points: FailPoints,
    pub(crate) operations: Arc<Operations>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) operators: monitoring::operators::OperatorCounters,
    pub(crate) profiler: Profiler,
    pub(crate) rw_defaults: Arc<admin::rw_concern::Defaults>,
    pub(crate) write_block: Arc<admin::write_block::WriteBlock>,
    pub(crate) query_settings: Arc<query_settings::QuerySettings>,
    /// What `autoCompact` was last told: target in megabytes, and whether once only.
    pub(crate) auto_compact: Mutex<Option<(i64, bool)>>,
    /// Held while the writable data format is changed.
    pub(crate) format_change: Mutex<()>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) expired: Arc<background::ttl_monitor::TtlCounters>,
    /// The member's part in a replica set that was given a name.
    pub(crate) replica: Option<Driver>,
    /// What it has applied of others' writes.
    pub(crate) replicated: Option<Arc<monitoring::replicated::Replicated>>,
    pub(crate) topology: Arc<topology::monitor::TopologyMonitor>,
    pub(crate) security: Arc<security::Security>,
    /// What this shard has of sharded collections.
    pub(crate) ownerships: Arc<shard::Ownerships>,
    pub(crate) log_times: Arc<shard::LogTimes>,
    /// Takes samples of queries.
    pub samplers: Arc<analysis::sampling::Samplers>,
    /// Reads what pipelines join and this server does not have.
    pub(crate) remote_collections: OnceLock<Arc<dyn RemoteCollections>>,
    /// Reads what a shard joins that other shards have.
    pub(crate) cluster_reads: OnceLock<Arc<dyn ClusterReads>>,
    /// A member's own `local`.
    pub own_local: Option<Arc<own_local::OwnLocal>>,
    /// Where users and roles are, if not in `engine`.
    pub(crate) authority: Option<Arc<executor::Engine>>,
    /// Checks that compare what members have.
    pub(crate) db_checks: OnceLock<Arc<db_check::DbChecks>>,
}

/// Goes on with the index builds that a stop interrupted.
fn resume_builds(engine: &Arc<executor::Engine>) {
    executor::build::resume(engine, |ns, name, result| match result {
        Ok(()) => {
            tracing::info!(target: "INDEX", id = 20345, namespace = ns, index = name, "Index build: done building")
        }
        Err(e) => {
            tracing::warn!(target: "INDEX", id = 20649, namespace = ns, index = name, error = %e, "Index build failed")
        }
    });
}

/// What the profiler does from the start on, as the configuration and the parameters have it.
fn profiler_of(config: &ServerConfig, parameters: &Parameters) -> Profiler {
    let profiler = Profiler::new(config.slow_ms);
    profiler.set_verbose(parameters.logs_commands());
    if config.role != ClusterRole::Router {
        profiler.profile_all(config.profile_level);
    }
    profiler.set_sample_rate(config.slow_sample_rate);
    profiler
}

/// What follows the settings that the sets and clusters store, from the start on.
fn follow_settings(
    engine: &Arc<executor::Engine>,
    rw_defaults: &Arc<admin::rw_concern::Defaults>,
    write_block: &Arc<admin::write_block::WriteBlock>,
    query_settings: &Arc<query_settings::QuerySettings>,
    parameters: &Arc<Parameters>,
) -> Result<()> {
    let version = FeatureVersion(parameters.clone(), Arc::downgrade(&engine.store));
    let expiry = admin::cluster_parameter::ImageExpiry(Arc::downgrade(engine));
    settings::stored::follow(
        engine,
        vec![
            rw_defaults.clone(),
            write_block.clone(),
            query_settings.clone(),
            Arc::new(version),
            Arc::new(expiry),
        ],
    )
}

/// How queries run, as the configuration and the parameters say.
fn limit_queries(engine: &executor::Engine, config: &ServerConfig, parameters: &Parameters) {
    let no_scan = parameters.bool(parameters::NO_TABLE_SCAN);
    engine.no_table_scan.store(no_scan, Ordering::Relaxed);
    engine.scripting.store(config.scripting, Ordering::Relaxed);
    if config.query_threads > 0 {
        engine.query_threads.limit(config.query_threads);
    }
}

/// Has large operations leave room for what messages, stages and cursors hold, and stages for what these and operations do.
fn count_together(engine: &Arc<executor::Engine>, control: &Arc<Control>) {
    let (stages, documents) = (engine.stage_memory.clone(), engine.cursor_memory.clone());
    let (cursors, control) = (engine.open_cursors.clone(), control.clone());
    let shared = [stages, documents, cursors];
    engine.operation_memory.counts_with(move || {
        let held = shared.iter().map(|m| m.used()).sum::<usize>();
        control.in_flight.used() + held
    });
    let operations = Arc::downgrade(&engine.operation_memory);
    engine.stage_memory.asks_for_room(move |more| {
        let operations = operations.upgrade();
        operations.is_none_or(|operations| operations.has_room_for_stages(more))
    });
}

impl Commands {
    pub fn new(store: Arc<Store>, config: ServerConfig, control: Arc<Control>) -> Result<Commands> {
        Commands::of_member(store, config, control, None)
    }

    /// As a member of a replica set, which begins its part now.
    pub fn of_member(
        store: Arc<Store>,
        config: ServerConfig,
        control: Arc<Control>,
        replica: Option<Driver>,
    ) -> Result<Commands> {
        let engine = executor::Engine::open(store.clone())?;
        count_together(&engine, &control);
        engine.transactions.keep_within(config.cache_bytes);
        executor::search::SearchIndexes::start(&engine);
        if replica.is_none() {
            resume_builds(&engine);
        }
        let rw_defaults = Arc::new(admin::rw_concern::Defaults::new(
            &config.topology,
            config.role,
        ));
        let write_block = Arc::<admin::write_block::WriteBlock>::default();
        let query_settings = Arc::<query_settings::QuerySettings>::default();
        let parameters = Arc::new(Parameters::new(&config.parameters));
        follow_settings(
            &engine,
            &rw_defaults,
            &write_block,
            &query_settings,
            &parameters,
        )?;
        let security = Arc::new(security::Security::open(&config)?);
        store.observe(Arc::new(security::RaiseGeneration(security.clone())))?;
        let ownerships = shard::Ownerships::follow(&engine)?;
        let log_times = Arc::new(shard::LogTimes::default());
        if config.role == ClusterRole::Shard {
            store.observe(log_times.clone())?;
        }
        let samplers = analysis::sampling::Samplers::follow(&engine)?;
        control.establishment.limit(parameters.establishment());
        limit_queries(&engine, &config, &parameters);
        let replicated = replica
            .clone()
            .map(|r| Arc::new(monitoring::replicated::Replicated::new(r)));
        if let Some(replicated) = &replicated {
            store.observe(replicated.clone())?;
        }
        let profiler = profiler_of(&config, &parameters);
        let mut commands = Commands {
            parameters,
            store,
            engine,
            cursors: Arc::default(),
            session_table: Arc::default(),
            sessions: Arc::default(),
            snapshots: Arc::new(snapshot_history::SnapshotHistory::new(
                config.role == ClusterRole::Shard,
            )),
            config,
            control,
            process_id: ObjectId::generate(),
            fail_points: FailPoints::default(),
            operations: Arc::default(),
            counters: Arc::default(),
            operators: Default::default(),
            profiler,
            rw_defaults,
            write_block,
            query_settings,
            auto_compact: Mutex::default(),
            format_change: Mutex::default(),
            connections: Arc::default(),
            expired: Arc::default(),
            replica,
            replicated,
            topology: Arc::default(),
            security,
            ownerships,
            log_times,
            samplers,
            remote_collections: OnceLock::new(),
            cluster_reads: OnceLock::new(),
            own_local: None,
            authority: None,
            db_checks: OnceLock::new(),
        };
        commands.begin()?;
        Ok(commands)
    }

    /// Begins the work beside commands.
    fn begin(&mut self) -> Result<()> {
        if self.replica.is_some() {
            self.own_local = Some(Arc::new(own_local::OwnLocal::beside(self)));
        }
        let control = self.control.clone();
        (self.cursors).on_kill_of_waiting(Box::new(move || control.stir()));
        self.follow_set()?;
        self.start_background()
    }

    fn start_background(&self) -> Result<()> {
        background::reaper::start(self)?;
        background::ttl_monitor::start(self)?;
        background::noop_writer::start(self)?;
        background::scrub::start(self)?;
        db_check::DbChecks::follow(self)
    }

    /// Has clients told of elections, and forgets what only a primary knows when another is elected.
    fn follow_set(&self) -> Result<()> {
        let Some(driver) = &self.replica else {
            return Ok(());
        };
        driver.save_rollbacks(self.parameters.bool(parameters::ROLLBACK_FILES));
        let (topology, control) = (self.topology.clone(), self.control.clone());
        let session_table = self.session_table.clone();
        let (engine, member) = (self.engine.clone(), driver.clone());
        driver.on_change(Box::new(move |changed| match changed {
            Changed::Topology => {
                if !member.is_leading() {
                    session_table.abort_all(&engine.transactions.open());
                    session_table.forget();
                }
                topology.changed(&control);
            }
            Changed::Opened => {
                topology.changed(&control);
                resume_builds(&engine);
            }
            Changed::CommitPoint => {}
        }));
        let engine = self.engine.clone();
        driver.before_ddl(Box::new(move |entry| {
            let Op::Ddl(what) = &entry.op else {
                return Ok(());
            };
            let what = Doc::new(what).unwrap_or(Doc::EMPTY);
            let ns = what.get("commitIndexBuild").and_then(|v| v.as_str());
            let index = what.get("index").and_then(|v| v.to_i64_exact());
            match (ns, index.and_then(|n| u32::try_from(n).ok())) {
                (Some(ns), Some(index)) => {
                    executor::build::catch_up(&engine, ns, index).map_err(|stop| stop.into_error())
                }
                _ => Ok(()),
            }
        }));
        Ok(driver.run()?)
    }

    /// Has pipelines read all collections but their own by `remote_collections`, from now on.
    pub fn join_with(&self, remote_collections: Arc<dyn RemoteCollections>) {
        let _ = self.remote_collections.set(remote_collections);
    }

    /// Has this server join by `reads` what other shards of its cluster have, where it is a shard.
    pub fn join_as_shard(&self, reads: Arc<dyn ClusterReads>) {
        let _ = self.cluster_reads.set(reads);
    }

    /// All figures of the server, in the text form that Prometheus reads.
    pub fn figures(&self) -> Fallible<String> {
        monitoring::prometheus::text(self)
    }

    /// Bytes of the data directory's file system: all, and those that are free.
    pub fn disk(&self) -> Option<(u64, u64)> {
        let space = DiskSpace::at(&self.config.db_path)?;
        Some((space.total, space.free))
    }

    /// Whether logins are required, but no user exists yet.
    pub fn lacks_users(&self) -> bool {
        self.security.enabled
            && self.config.role != ClusterRole::Router
            && self.security.is_exceptional(&self.engine).unwrap_or(false)
    }

    /// Whose users and roles hold.
    pub(crate) fn authority(&self) -> &Arc<executor::Engine> {
        self.authority.as_ref().unwrap_or(&self.engine)
    }

    /// Ends a session: its cursors go with it.
    pub(crate) fn forget_session(&self, id: &Lsid) {
        self.cursors.kill_session(*id);
        self.session_table.end(id);
        self.sessions.end(id);
    }
}

impl Service for Commands {
    type Local = Local;
    type State = Connection;

    fn local(&self) -> Local {
        Local {
            group: executor::WriteGroup::default(),
            top: self.counters.shard(),
            writers: Vec::new(),
            writer: None,
        }
    }

    fn connected(&self, id: i64, peer: &Address) -> Connection {
        self.connections.lock().insert(id, peer.to_string());
        Connection::new()
    }

    fn disconnected(&self, client: &Client<Connection>) {
        self.connections.lock().remove(&client.id);
        *client.state.monitor.lock() = connection::monitor::Monitor::default();
        // A cursor whose number was lost on the way would hold a batch's last document until it
        // times out.
        let opened = client.state.opened.swap(0, Ordering::Relaxed);
        if opened != 0 && client.undelivered.load(Ordering::Relaxed) {
            self.cursors.abandon(opened);
        }
        // As a getMore that runs ends with its client, and its cursor with it.
        let awaited = client.state.awaited.swap(0, Ordering::Relaxed);
        if awaited != 0 {
            self.cursors.abandon(awaited);
        }
    }

    fn is_guest(&self, client: &Client<Connection>) -> bool {
        self.security.enabled && !client.state.login.is_logged_in()
    }

    fn run(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        if mode != Mode::Inline {
            return self.dispatch(local, mode, client, request, out);
        }
        // What has to be read is read by others, and the request is run again.
        let blocks: SmallVec<[storage::Block<'_>; 4]> = (request.resumed.iter())
            .flat_map(|r| r.reads)
            .filter_map(|(read, bytes)| Some(read.of.downcast_ref::<Missing>()?.brought(bytes)))
            .collect();
        match storage::without(&blocks, || self.dispatch(local, mode, client, request, out)) {
            (Outcome::Suspended(mut suspension), missing) => {
                if let Needs::Reads(reads) = &mut suspension.needs {
                    reads.extend(missing.into_iter().map(disk_read));
                }
                Outcome::Suspended(suspension)
            }
            (outcome, _) => outcome,
        }
    }

    fn commit(&self, local: &mut Local) -> Fallible<u64> {
        let committed = local.group.commit(&self.store);
        local.writers.clear();
        let in_doubt = |e: errors::Error| match &self.replica {
            // Another member will be primary, and takes the write again.
            Some(_) if e.code == errors::Code::LogWriteFailed => state_has_changed(),
            _ => e,
        };
        committed
            .map_err(in_doubt)
            .inspect_err(|_| self.session_table.forget())
    }

    fn durable(&self) -> Fallible<u64> {
        let healthy = self.store.healthy();
        let Some(replica) = &self.replica else {
            healthy?;
            return Ok(self.store.durable_index());
        };
        // A member whose disk fails is primary no more: others are, and take the write again.
        if healthy.is_err() || !replica.is_leading() {
            return Err(state_has_changed());
        }
        Ok(self.store.durable_index())
    }

    fn request_sync(&self, _index: u64) {
        self.store.request_sync();
    }

    fn on_durable(&self, changed: Box<dyn Fn() + Send + Sync>) {
        self.store.on_durable(Box::new(move |_| changed()));
    }

    fn write_error(&self, error: &errors::Error, out: &mut Vec<u8>) {
        self.write_failure(error, out);
    }

    fn finish(&self, _client: &Client<Connection>, out: &mut Vec<u8>, body_start: usize) {
        if self.config.topology.set_name().is_none() {
            return;
        }
        // A member that has nothing yet knows of no time.
        let ts = self.store.last_ts();
        if ts > 0 {
            service::append_fields(out, body_start, cluster_time(ts).as_doc());
        }
    }
}

/// What a write hears whose outcome the next primary decides.
fn state_has_changed() -> errors::Error {
    let e = errors::err!(InterruptedDueToReplStateChange, "operation was interrupted");
    e.with_label("RetryableWriteError")
}

/// A read that a command lacked, as the loop knows it.
fn disk_read(missing: Missing) -> DiskRead {
    let (offset, len) = missing.place();
    DiskRead {
        fd: missing.fd(),
        offset,
        len,
        of: Box::new(missing),
    }
}

/// `{$clusterTime, operationTime}` of that timestamp: every reply ends with it, so it is made once
/// and patched.
fn cluster_time(ts: u64) -> DocBuf {
    static TEMPLATE: OnceLock<(DocBuf, Vec<usize>)> = OnceLock::new();
    const MARK: u64 = 0x1122_3344_5566_7788;
    let (template, places) = TEMPLATE.get_or_init(|| {
        let mut w = Writer::with_capacity(128);
        w.open_doc("$clusterTime")
            .timestamp("clusterTime", MARK)
            .open_doc("signature");
        w.binary("hash", 0, &[0; 20])
            .i64("keyId", 0)
            .close()
            .close();
        w.timestamp("operationTime", MARK);
        let doc = w.finish();
        let places = doc.as_bytes().windows(8).enumerate();
        let places = places
            .filter(|(_, b)| *b == MARK.to_le_bytes())
            .map(|(at, _)| at)
            .collect();
        (doc, places)
    });
    let mut bytes = template.as_bytes().to_vec();
    for at in places {
        if let Some(slot) = bytes.get_mut(*at..at + 8) {
            slot.copy_from_slice(&ts.to_le_bytes());
        }
    }
    DocBuf::from_vec(bytes).unwrap_or_default()
}
