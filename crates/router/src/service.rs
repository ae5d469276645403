//! The router as the event loops see it.
//!
//! Invariant: nothing waits on an event loop. Commands about the process are answered where they are
//! read; those for known shards are sent from there, and go on when the shards reply
//! ([`crate::fast_path`]); everything else runs on a worker.

use crate::access::OnConfigurationSet;
use crate::dispatch::handler;
use crate::fast_path::loop_connections::LoopConnections;
use crate::fast_path::{GoneOn, LoopLocal, Sent};
use crate::reads::joins::RouterJoins;
use crate::state::cursors::Cursors;
use crate::state::ended_sessions::EndedSessions;
use crate::state::transactions::Transactions;
use crate::state::{Handler, Router};
use crate::{access, admin};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Failure;
use cluster_view::metadata::Cluster;
use cluster_view::upstream::account_to;
use commands::{Commands, Connection, FailPoint};
use errors::Fallible;
use front::{ParsedCommand, specification};
use service::{Address, Client, Mode, Outcome, Request, Service};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

impl Router {
    pub fn new(cluster: Arc<Cluster>, local: Commands) -> Arc<Router> {
        let ended_sessions = EndedSessions::tell(&cluster);
        account_to(&local.control);
        let cursors = Arc::<Cursors>::default();
        local.cursors.join(cursors.clone());
        Arc::new_cyclic(|router: &Weak<Router>| {
            local.join_with(Arc::new(RouterJoins(router.clone())));
            local.read_users_from(Arc::new(OnConfigurationSet(cluster.clone())));
            Router {
                cluster,
                local,
                cursors,
                itself: router.clone(),
                transactions: Transactions::default(),
                ended_sessions,
                synonyms: Default::default(),
            }
        })
    }

    /// Begins what goes on by itself: the router is known to the cluster.
    pub fn announce(self: &Arc<Self>, host: &str) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |d| d.as_millis() as i64);
        let set = doc! {"$set": doc! {
            "ping": bson::Value::date(now), "mongoVersion": commands::VERSION, "waiting": true,
            "pandodb": commands::PANDO_VERSION,
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
        if let Err(e) = admin::follow_settings(self) {
            tracing::warn!(target: "SHARDING", error = %e, "Settings of the cluster will not be heard of");
        }
        for command in [version, ping] {
            if let Err(e) = self.cluster.on_config("config", command.as_doc()) {
                tracing::warn!(target: "SHARDING", error = %e, "The configuration set is not reached");
            }
        }
    }

    /// Runs a command where it may wait.
    fn run_on_worker<'r>(
        &self,
        handler: Handler,
        client: &Client<Connection>,
        request: &Request<'r>,
        parsed: &ParsedCommand<'r>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let more = match self.local.fail_routed(client, request, parsed) {
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
        match self.route(handler, client, request, parsed) {
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
}

impl Service for Router {
    type Local = LoopLocal;
    type State = Connection;

    fn local(&self) -> LoopLocal {
        LoopLocal {
            commands: self.local.local(),
            loop_connections: None,
        }
    }

    fn watch_replies(&self, local: &mut LoopLocal) -> Option<RawFd> {
        match LoopConnections::open(self.local.control.clone()) {
            Ok(loop_connections) => {
                Some(local.loop_connections.insert(loop_connections).as_raw_fd())
            }
            Err(e) => {
                tracing::warn!(target: "NETWORK", error = %e, "Workers wait for the replies of shards");
                None
            }
        }
    }

    fn take_arrived(&self, local: &mut LoopLocal, tickets: &mut Vec<u64>) {
        if let Some(loop_connections) = &mut local.loop_connections {
            loop_connections.take_arrived(tickets);
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
        let known = specification::lookup(request.command());
        let Some((command, handler)) = known.and_then(|c| Some((c, handler(c.name)?))) else {
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
            return self.run_on_loop(local, client, request, command, out);
        }
        if let Some(sent) = request.resumed.and_then(|r| r.take::<Sent>())
            && let Some(GoneOn::Ended(outcome)) = self.go_on(*sent, mode, client, request)
        {
            return self.answer(client, outcome, out);
        }
        match ParsedCommand::of(command, request) {
            Ok(parsed) => self.run_on_worker(handler, client, request, &parsed, out),
            Err(stop) => {
                let outcome = self.ended(client, request, Err(stop.into_error().into()));
                self.answer(client, outcome, out)
            }
        }
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
