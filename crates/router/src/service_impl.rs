//! The router as the event loops see it.
//!
//! Invariant: nothing that waits for a shard runs on an event loop. What is about the server itself
//! is answered where it was read.

use crate::cursors::Cursors;
use crate::foreign::Foreign;
use crate::metadata::Cluster;
use crate::request::Command;
use crate::transactions::{self, Transactions};
use crate::upstream::error_of;
use crate::{
    Outcome as Routed, admin, aggregate, bulk_write, cursors, ddl, find, listing, operations,
    single_write, write,
};
use bson::{Doc, DocBuf, Writer, doc};
use commands::{Commands, Connection, Local};
use errors::{Error, Fallible, err};
use service::{Address, Client, Mode, Needs, Outcome, Request, Service, Unfinished};
use std::sync::{Arc, Weak};

pub struct Router {
    pub(crate) cluster: Arc<Cluster>,
    /// Answers what is about this process, and computes what shards cannot compute alone.
    pub(crate) local: Commands,
    pub(crate) cursors: Cursors,
    pub(crate) transactions: Transactions,
}

type Handler = fn(&Router, &Command<'_>) -> Routed<DocBuf>;

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
        "create" => ddl::create,
        "createIndexes" | "dropIndexes" | "deleteIndexes" | "collMod" => ddl::on_all_shards,
        "drop" => ddl::drop_collection,
        "dropDatabase" => ddl::drop_database,
        "renameCollection" => ddl::rename,
        "bulkWrite" => bulk_write::run,
        "commitTransaction" => transactions::commit,
        "abortTransaction" => transactions::abort,
        name => return admin::handler(name),
    })
}

impl Router {
    pub fn new(cluster: Arc<Cluster>, local: Commands) -> Arc<Router> {
        Arc::new_cyclic(|router: &Weak<Router>| {
            local.join_with(Arc::new(Foreign(router.clone())));
            Router {
                cluster,
                local,
                cursors: Cursors::default(),
                transactions: Transactions::default(),
            }
        })
    }

    /// Begins what goes on by itself: the router is known to the cluster.
    pub fn announce(&self, host: &str) {
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
        for command in [version, ping] {
            if let Err(e) = self.cluster.on_config("config", command.as_doc()) {
                tracing::warn!(target: "SHARDING", error = %e, "The configuration set is not reached");
            }
        }
    }

    fn route(&self, handler: Handler, request: &Request<'_>) -> Routed<DocBuf> {
        let command = Command::of(request)?;
        if command.db == "local" {
            return Err(err!(InvalidNamespace, "a router has no database local").into());
        }
        self.cluster.hear_time(command.body);
        let ends = matches!(command.name, "commitTransaction" | "abortTransaction");
        if ends || !command.in_transaction() {
            return handler(self, &command);
        }
        self.transactions.begin_statement(&command)?;
        let outcome = handler(self, &command);
        self.after_statement(&command, outcome)
    }
}

impl Service for Router {
    type Local = Local;
    type State = Connection;

    fn local(&self) -> Local {
        self.local.local()
    }

    fn connected(&self, id: i64, peer: &Address) -> Connection {
        self.local.connected(id, peer)
    }

    fn disconnected(&self, client: &Client<Connection>) {
        self.local.disconnected(client);
    }

    fn run(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let Some(handler) = handler(request.command()) else {
            let start = out.len();
            let outcome = self.local.run(local, mode, client, request, out);
            let greets = matches!(request.command(), "hello" | "isMaster" | "ismaster");
            if greets && matches!(outcome, Outcome::Reply | Outcome::ReplyMore) {
                service::append_fields(out, start, doc! {"msg": "isdbgrid"}.as_doc());
            }
            return outcome;
        };
        if mode.on_loop() {
            return Outcome::Suspended(Unfinished {
                needs: Needs::Worker,
                kept: None,
            });
        }
        match self.route(handler, request) {
            Ok(reply) => out.extend_from_slice(reply.as_bytes()),
            Err(failure) => {
                let error = failure.into_error();
                service::write_error(&error, out);
            }
        }
        Outcome::Reply
    }

    fn commit(&self, local: &mut Local) -> Fallible<u64> {
        self.local.commit(local)
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

/// A reply, or the error that it tells.
pub(crate) fn sound(reply: DocBuf) -> Routed<DocBuf> {
    match error_of(reply.as_doc()) {
        Some(e) => Err(e.into()),
        None => Ok(reply),
    }
}

/// What the scratch server says to a command.
pub(crate) fn compute(router: &Router, command: &DocBuf) -> Routed<DocBuf> {
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
    let mut out = Vec::new();
    let mut local = router.local.local();
    router
        .local
        .run(&mut local, Mode::Worker, &client, &request, &mut out);
    let reply = DocBuf::from_vec(out);
    sound(reply.ok_or_else(|| Error::internal("the scratch server gave no reply"))?)
}
