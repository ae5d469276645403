//! The router as the event loops see it.
//!
//! Invariant: nothing waits on an event loop. What is about the server itself is answered where it
//! was read; what is for shards that are known is sent from there, and goes on when they reply
//! ([`crate::direct`]); everything else runs on a worker.

use crate::access::{self, OnConfigurationSet};
use crate::cursors::{Cursors, cursor_id};
use crate::direct::{self, Finished, UnderWay};
use crate::foreign::Foreign;
use crate::lines::Lines;
use crate::metadata::Cluster;
use crate::operations::EndedSessions;
use crate::read_preference::{self, ReadPreference};
use crate::request::Command;
use crate::transactions::{self, Transactions};
use crate::upstream::{account_to, error_of};
use crate::{
    Failure, Outcome as Routed, admin, aggregate, bulk_write, cursors, ddl, find, listing,
    map_reduce, operations, single_write, snapshot, write,
};
use bson::{Doc, DocBuf, Val, Writer, doc};
use commands::{Commands, Connection, FailPoint, Local, LoggedIn};
use errors::{Error, Fallible, err};
use service::in_flight::SMALL_BYTES;
use service::{Address, Client, Kept, Mode, Needs, Outcome, Request, Service, Unfinished};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

pub struct Router {
    pub(crate) cluster: Arc<Cluster>,
    /// Answers what is about this process, and computes what shards cannot compute alone.
    pub(crate) local: Commands,
    pub(crate) cursors: Cursors,
    pub(crate) transactions: Transactions,
    pub(crate) ended_sessions: EndedSessions,
}

/// What an event loop, or a worker, keeps from request to request.
pub struct LoopLocal {
    commands: Local,
    /// Of an event loop.
    lines: Option<Lines>,
}

/// A command that was sent from an event loop.
struct Sent {
    under_way: UnderWay,
    user: Option<Arc<LoggedIn>>,
}

/// What became of one.
enum GoneOn {
    Ended(Routed<DocBuf>),
    /// A worker has to wait for more.
    Waits(Sent),
}

pub(crate) type Handler = fn(&Router, &Command<'_>) -> Routed<DocBuf>;

/// What is not answered by the router alone.
fn handler(name: &str) -> Option<Handler> {
    Some(match name {
        "find" => find::find,
        "insert" | "update" | "delete" => write::run,
        "getMore" => cursors::get_more,
        "findAndModify" | "findandmodify" => single_write::find_and_modify,
        "aggregate" => aggregate::run,
        "count" => find::count,
        "distinct" => find::distinct,
        "killCursors" => cursors::kill,
        "listCollections" => listing::list_collections,
        "listIndexes" => listing::list_indexes,
        "listDatabases" => listing::list_databases,
        "dbStats" => listing::db_stats,
        "collStats" | "dataSize" | "validate" => listing::of_collection,
        "explain" => listing::explain,
        "currentOp" => operations::current,
        "killOp" => operations::kill,
        "killSessions" | "killAllSessions" | "killAllSessionsByPattern" => {
            operations::kill_sessions
        }
        "endSessions" => operations::end_sessions,
        "mapReduce" | "mapreduce" => map_reduce::run,
        "convertToCapped" | "cloneCollectionAsCapped" => ddl::capped,
        "planCacheClear"
        | "planCacheClearFilters"
        | "planCacheListFilters"
        | "planCacheSetFilter"
        | "setIndexCommitQuorum" => ddl::where_it_is,
        // A router has none of these.
        "compact" | "reIndex" | "applyOps" | "dbHash" => unknown,
        "create" => ddl::create,
        "createIndexes" | "dropIndexes" | "deleteIndexes" | "collMod" => ddl::on_all_shards,
        "drop" => ddl::drop_collection,
        "dropDatabase" => ddl::drop_database,
        "renameCollection" => ddl::rename,
        "bulkWrite" => bulk_write::run,
        "commitTransaction" => transactions::commit,
        "abortTransaction" => transactions::abort,
        "createUser"
        | "updateUser"
        | "dropUser"
        | "dropAllUsersFromDatabase"
        | "grantRolesToUser"
        | "revokeRolesFromUser"
        | "createRole"
        | "updateRole"
        | "dropRole"
        | "dropAllRolesFromDatabase"
        | "grantPrivilegesToRole"
        | "revokePrivilegesFromRole"
        | "grantRolesToRole"
        | "revokeRolesFromRole"
        | "usersInfo"
        | "rolesInfo"
        | "_mergeAuthzCollections" => access::on_users,
        name => return admin::handler(name),
    })
}

fn unknown(_: &Router, command: &Command<'_>) -> Routed<DocBuf> {
    Err(err!(CommandNotFound, "no such command: '{}'", command.name).into())
}

impl Router {
    pub fn new(cluster: Arc<Cluster>, local: Commands) -> Arc<Router> {
        let ended_sessions = EndedSessions::tell(&cluster);
        account_to(&local.control);
        Arc::new_cyclic(|router: &Weak<Router>| {
            local.join_with(Arc::new(Foreign(router.clone())));
            local.read_users_from(Arc::new(OnConfigurationSet(cluster.clone())));
            Router {
                cluster,
                local,
                cursors: Cursors::default(),
                transactions: Transactions::default(),
                ended_sessions,
            }
        })
    }

    /// Begins what goes on by itself: the router is known to the cluster.
    pub fn announce(self: &Arc<Self>, host: &str) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |d| d.as_millis() as i64);
        let set = doc! {"$set": doc! {
            "ping": bson::Value::date(now), "mongoVersion": commands::VERSION, "waiting": true,
        }};
        let update = doc! {"q": doc! {"_id": host}, "u": set, "upsert": true};
        let ping = doc! {"update": "mongos", "updates": bson::array![update]};
        // The first router of all gives the cluster its number.
        let number = doc! {"$setOnInsert": doc! {"clusterId": bson::ObjectId::generate()}};
        let update = doc! {"q": doc! {"_id": 1}, "u": number, "upsert": true};
        let version = doc! {"update": "version", "updates": bson::array![update]};
        if self.local.checks_access()
            && let Err(e) = access::watch_users(self)
        {
            tracing::warn!(target: "ACCESS", error = %e, "Changes of users will not be heard of");
        }
        if let Err(e) = admin::follow_analyzers(self) {
            tracing::warn!(target: "SHARDING", error = %e, "Queries will not be sampled");
        }
        for command in [version, ping] {
            if let Err(e) = self.cluster.on_config("config", command.as_doc()) {
                tracing::warn!(target: "SHARDING", error = %e, "The configuration set is not reached");
            }
        }
    }

    /// Sends a command on, if its client may have it run.
    fn route(
        &self,
        handler: Handler,
        client: &Client<Connection>,
        request: &Request<'_>,
    ) -> Routed<DocBuf> {
        let own = access::own(request.command());
        let admitted = self.local.admit_routed(client, request, own, true);
        let outcome = match admitted {
            Ok(user) => self.route_for(user, handler, request),
            Err(e) => Err(e.into()),
        };
        self.ended(client, request, outcome)
    }

    /// Tells the audit log what came of a command.
    fn ended(
        &self,
        client: &Client<Connection>,
        request: &Request<'_>,
        outcome: Routed<DocBuf>,
    ) -> Routed<DocBuf> {
        if let Err(not_yet @ Failure::NotYet(_)) = outcome {
            return Err(not_yet);
        }
        let outcome = outcome.map_err(Failure::into_error);
        let failure = match &outcome {
            Ok(reply) => error_of(reply.as_doc()),
            Err(e) => Some(e.clone()),
        };
        let own = access::own(request.command());
        self.local
            .audit_routed(client, request, own, failure.as_ref());
        outcome.map_err(Failure::from)
    }

    /// Sends a command on from an event loop, if that needs no waiting.
    fn begin(
        &self,
        local: &mut LoopLocal,
        client: &Client<Connection>,
        request: &Request<'_>,
    ) -> Option<Unfinished> {
        let name = request.command();
        let lines = local.lines.as_mut().filter(|_| direct::serves(name))?;
        // A worker acts on them, once.
        if self.local.has_fail_points() {
            return None;
        }
        let user = self
            .local
            .admit_routed(client, request, access::own(name), false);
        let user = user.ok()?;
        let body = self.local.with_own_session(user.as_deref(), request.body);
        let body = body.ok()?;
        let as_user = Request {
            body: body.as_ref().map_or(request.body, DocBuf::as_doc),
            ..*request
        };
        let command = Command {
            user,
            ..Command::of(&as_user).ok()?
        };
        let (ticket, under_way) = direct::begin(self, lines, &command)?;
        self.local.samplers.see(request);
        Some(Unfinished {
            needs: Needs::Replies(ticket),
            kept: Some(Box::new(Sent {
                under_way,
                user: command.user,
            })),
        })
    }

    /// Goes on with a command whose replies are there. `None`: a worker has to, from its beginning.
    fn go_on(
        &self,
        sent: Sent,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
    ) -> Option<GoneOn> {
        let command = Command::of(request).ok()?;
        let Sent { under_way, user } = sent;
        let finished = match mode.on_loop() {
            true => direct::finish(self, under_way, &command),
            false => direct::conclude(self, under_way, &command),
        };
        let outcome = match finished {
            Finished::Reply(outcome) => outcome,
            Finished::Anew => return None,
            Finished::Waits(under_way) => return Some(GoneOn::Waits(Sent { under_way, user })),
        };
        if let (Some(user), Ok(reply)) = (&user, &outcome) {
            self.cursors.own(cursor_id(reply), &user.name.to_string());
        }
        Some(GoneOn::Ended(self.ended(client, request, outcome)))
    }

    /// Runs a command on an event loop, as far as that needs no waiting.
    fn run_on_loop(
        &self,
        local: &mut LoopLocal,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let to_worker = |kept: Option<Kept>| {
            Outcome::Suspended(Unfinished {
                needs: Needs::Worker,
                kept,
            })
        };
        let Some(sent) = request.resumed.and_then(|r| r.take::<Sent>()) else {
            return match self.begin(local, client, request) {
                Some(unfinished) => Outcome::Suspended(unfinished),
                None => to_worker(None),
            };
        };
        match self.go_on(*sent, Mode::Inline, client, request) {
            Some(GoneOn::Ended(outcome)) => self.answer(client, outcome, out),
            Some(GoneOn::Waits(sent)) => to_worker(Some(Box::new(sent))),
            None => to_worker(None),
        }
    }

    fn answer(
        &self,
        client: &Client<Connection>,
        outcome: Routed<DocBuf>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        match outcome {
            Ok(reply) => out.extend_from_slice(reply.as_bytes()),
            Err(failure) => service::write_error(&failure.into_error(), out),
        }
        self.count_long(client, out.len());
        Outcome::Reply
    }

    /// Counts the memory of a long reply until it is sent.
    fn count_long(&self, client: &Client<Connection>, bytes: usize) {
        if bytes > SMALL_BYTES && client.reply_held.load(Relaxed) == 0 {
            self.local.control.in_flight.take(bytes);
            client.reply_held.store(bytes, Relaxed);
        }
    }

    /// Sends a user's command on.
    fn route_for(
        &self,
        user: Option<Arc<LoggedIn>>,
        handler: Handler,
        request: &Request<'_>,
    ) -> Routed<DocBuf> {
        let body = self.local.with_own_session(user.as_deref(), request.body)?;
        let request = Request {
            body: body.as_ref().map_or(request.body, DocBuf::as_doc),
            ..*request
        };
        let command = Command {
            user,
            ..Command::of(&request)?
        };
        let reply = self.handle(handler, &command)?;
        if let Some(user) = command.user.as_ref().filter(|_| command.name != "getMore") {
            self.cursors.own(cursor_id(&reply), &user.name.to_string());
        }
        Ok(reply)
    }

    fn handle(&self, handler: Handler, command: &Command<'_>) -> Routed<DocBuf> {
        if command.db == "local" {
            return Err(err!(InvalidNamespace, "a router has no database local").into());
        }
        let named = command.body.first().and_then(|e| e.val.as_str());
        if named.is_some_and(|name| name.contains('\0')) {
            return Err(err!(
                InvalidNamespace,
                "namespaces cannot have embedded null characters"
            )
            .into());
        }
        if let Some(given) = command.field("$readPreference") {
            let preference = ReadPreference::parse(given)?;
            if command.in_transaction() && preference.mode != read_preference::Mode::Primary {
                return Err(err!(
                    InvalidOptions,
                    "Read preference in a transaction must be primary"
                )
                .into());
            }
        }
        self.cluster.hear_time(command.body);
        self.local.samplers.see(command.request);
        if !snapshot::wants_snapshot(command) {
            return self.dispatch(handler, command);
        }
        let given = snapshot::given_time(command);
        let at = match given {
            Some(at) => at,
            None => self.cluster.pin_snapshot()?,
        };
        // The state is kept by primaries.
        let mut body = command.without(&["readConcern", "$readPreference"]);
        body.doc("readConcern", snapshot::concern_at(command, at).as_doc());
        let body = body.finish();
        let request = Request {
            body: body.as_doc(),
            ..*command.request
        };
        let command = Command {
            user: command.user.clone(),
            ..Command::of(&request)?
        };
        let reply = self.dispatch(handler, &command)?;
        let failed = error_of(reply.as_doc()).is_some();
        Ok(match command.in_transaction() || failed {
            true => reply,
            false => snapshot::tell_time(reply, at),
        })
    }

    fn dispatch(&self, handler: Handler, command: &Command<'_>) -> Routed<DocBuf> {
        let ends = matches!(command.name, "commitTransaction" | "abortTransaction");
        if ends || !command.in_transaction() {
            return handler(self, command);
        }
        self.local.check_routed_statement(command.request)?;
        self.transactions.begin_statement(command)?;
        let outcome = handler(self, command);
        self.after_statement(command, outcome)
    }
}

impl Service for Router {
    type Local = LoopLocal;
    type State = Connection;

    fn local(&self) -> LoopLocal {
        LoopLocal {
            commands: self.local.local(),
            lines: None,
        }
    }

    fn watch_replies(&self, local: &mut LoopLocal) -> Option<RawFd> {
        match Lines::open(self.local.control.clone()) {
            Ok(lines) => Some(local.lines.insert(lines).as_raw_fd()),
            Err(e) => {
                tracing::warn!(target: "NETWORK", error = %e, "Workers wait for the replies of shards");
                None
            }
        }
    }

    fn take_arrived(&self, local: &mut LoopLocal, tickets: &mut Vec<u64>) {
        if let Some(lines) = &mut local.lines {
            lines.take_arrived(tickets);
        }
    }

    fn connected(&self, id: i64, peer: &Address) -> Connection {
        self.local.connected(id, peer)
    }

    fn is_guest(&self, client: &Client<Connection>) -> bool {
        self.local.is_guest(client)
    }

    fn disconnected(&self, client: &Client<Connection>) {
        self.local.disconnected(client);
    }

    fn run(
        &self,
        local: &mut LoopLocal,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let Some(handler) = handler(request.command()) else {
            let start = out.len();
            let outcome = self
                .local
                .run(&mut local.commands, mode, client, request, out);
            let greets = matches!(request.command(), "hello" | "isMaster" | "ismaster");
            if greets && matches!(outcome, Outcome::Reply | Outcome::ReplyMore) {
                service::append_fields(out, start, doc! {"msg": "isdbgrid"}.as_doc());
            }
            return outcome;
        };
        if mode.on_loop() {
            return self.run_on_loop(local, client, request, out);
        }
        if let Some(sent) = request.resumed.and_then(|r| r.take::<Sent>())
            && let Some(GoneOn::Ended(outcome)) = self.go_on(*sent, mode, client, request)
        {
            return self.answer(client, outcome, out);
        }
        let more = match self.local.fail_routed(client, request) {
            Ok(FailPoint::Close) => return Outcome::Close,
            Ok(FailPoint::Append(fields)) => fields,
            Ok(FailPoint::Nothing) => DocBuf::new(),
            Err(error) => {
                service::write_error(&error, out);
                return Outcome::Reply;
            }
        };
        let start = out.len();
        let seen = self.local.control.stirred();
        match self.route(handler, client, request) {
            Ok(reply) => {
                out.extend_from_slice(reply.as_bytes());
                self.count_long(client, out.len());
            }
            Err(Failure::NotYet(until)) => return Outcome::Await { until, seen },
            Err(failure) => service::write_error(&failure.into_error(), out),
        }
        if !more.as_doc().is_empty() {
            service::append_fields(out, start, more.as_doc());
        }
        let goes_on = request.exhaust_allowed && request.command() == "getMore";
        if goes_on && Doc::new(&out[start..]).is_some_and(has_more) {
            return Outcome::ReplyMore;
        }
        Outcome::Reply
    }

    fn commit(&self, local: &mut LoopLocal) -> Fallible<u64> {
        self.local.commit(&mut local.commands)
    }

    fn durable(&self) -> Fallible<u64> {
        self.local.durable()
    }

    fn request_sync(&self, index: u64) {
        self.local.request_sync(index);
    }

    fn on_durable(&self, changed: Box<dyn Fn() + Send + Sync>) {
        self.local.on_durable(changed);
    }

    fn finish(&self, client: &Client<Connection>, out: &mut Vec<u8>, body_start: usize) {
        self.local.finish(client, out, body_start);
        // Of what the router answers itself, the time of which it has heard.
        let time = self.cluster.time();
        let body = out.get(body_start..).and_then(Doc::new);
        if time > 0 && body.is_some_and(|b| !b.contains("operationTime")) {
            let mut w = Writer::new();
            w.open_doc("$clusterTime").timestamp("clusterTime", time);
            w.open_doc("signature").binary("hash", 0, &[0; 20]);
            w.i64("keyId", 0).close().close();
            w.timestamp("operationTime", time);
            service::append_fields(out, body_start, w.finish().as_doc());
        }
    }
}

/// Whether a reply has documents, and leaves its cursor open.
fn has_more(reply: Doc<'_>) -> bool {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let id = cursor.and_then(|c| c.get("id")?.to_i64_exact());
    let batch = cursor.and_then(|c| c.get("nextBatch")?.as_array());
    id.is_some_and(|id| id != 0) && batch.is_some_and(|b| !b.is_empty())
}

/// A reply, or the error that it tells.
pub(crate) fn sound(reply: DocBuf) -> Routed<DocBuf> {
    match error_of(reply.as_doc()) {
        Some(e) => Err(e.into()),
        None => Ok(reply),
    }
}

/// What the scratch server says to a command of the router's own.
pub(crate) fn compute(router: &Router, command: &DocBuf) -> Routed<DocBuf> {
    let own = router.local.own_user()?;
    compute_for(router, own, command)
}

/// What the scratch server says to a user's command.
pub(crate) fn compute_for(
    router: &Router,
    user: Option<Arc<LoggedIn>>,
    command: &DocBuf,
) -> Routed<DocBuf> {
    let request = Request {
        body: command.as_doc(),
        sequences: &[],
        legacy_db: None,
        more_to_come: false,
        exhaust_allowed: false,
        again: false,
        message_bytes: command.as_bytes().len(),
        resumed: None,
    };
    let peer = Address::Unix(String::new());
    let client = Client {
        id: 0,
        peer: peer.clone(),
        local: peer,
        certificate: Arc::default(),
        cancelled: Arc::default(),
        reply_held: Default::default(),
        undelivered: Default::default(),
        waker: Default::default(),
        state: Connection::new(),
    };
    if let Some(user) = user {
        client.state.login.admit(user);
    }
    let mut out = Vec::new();
    let mut local = router.local.local();
    router
        .local
        .run(&mut local, Mode::Worker, &client, &request, &mut out);
    let reply = DocBuf::from_vec(out);
    sound(reply.ok_or_else(|| Error::internal("the scratch server gave no reply"))?)
}
