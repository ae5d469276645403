//! MongoDB's commands: a file each, which parses, runs and replies.
//!
//! [`Commands`] is what the server's event loops ask (`service::Service`). A request goes through [`dispatch`]: its command is
//! looked up in [`table`], generic arguments are parted from the command's own ([`generic`]), checked ([`cx`], [`concern`]),
//! and the command's function writes its reply in place. Errors become `{ok: 0, errmsg, code, codeName}`.
//!
//! Architecture invariant: nothing here knows sockets or threads; nothing here reads or writes the store except through
//! the executor and the catalog.

mod clock;
mod concern;
mod connection;
mod cx;
mod dispatch;
mod generic;
mod idl;
mod replica_set;
mod table;
mod version;

mod crud;
mod handshake;

pub use connection::Connection;
pub use version::VERSION;

use bson::{ObjectId, Writer};
use errors::Result;
use parking_lot::Mutex;
use service::{Address, Client, Config, Control, Mode, Outcome, Request, Service};
use std::sync::{Arc, Weak};
use std::time::Duration;
use storage::Store;

/// What an event loop or a worker keeps between requests.
#[derive(Default)]
pub struct Local {
    pub(crate) group: executor::Group,
}

/// Answers requests.
pub struct Commands {
    pub store: Arc<Store>,
    pub engine: Arc<executor::Engine>,
    pub cursors: Arc<session::Cursors>,
    pub retries: session::Retries,
    pub config: Config,
    pub control: Arc<Control>,
    /// Names this process among others (`topologyVersion.processId`, serverStatus).
    pub process_id: ObjectId,
    /// The host that replSetInitiate gave this member.
    pub(crate) initiated_host: Mutex<Option<String>>,
}

impl Commands {
    pub fn new(store: Arc<Store>, config: Config, control: Arc<Control>) -> Result<Commands> {
        let engine = executor::Engine::open(store.clone())?;
        executor::build::resume(&engine, |ns, name, result| {
            match result {
                Ok(()) => tracing::info!(target: "INDEX", id = 20345, namespace = ns, index = name, "Index build: done building"),
                Err(e) => tracing::warn!(target: "INDEX", id = 20649, namespace = ns, index = name, error = %e, "Index build failed"),
            }
        });
        let cursors: Arc<session::Cursors> = Arc::default();
        reap(Arc::downgrade(&cursors))?;
        Ok(Commands {
            store,
            engine,
            cursors,
            retries: Default::default(),
            config,
            control,
            process_id: ObjectId::generate(),
            initiated_host: Mutex::default(),
        })
    }
}

/// How long a cursor may stay unused.
const CURSOR_TIMEOUT: Duration = Duration::from_secs(600);

/// Times cursors out for as long as somebody holds them.
fn reap(cursors: Weak<session::Cursors>) -> Result<()> {
    let run = move || {
        while let Some(c) = cursors.upgrade() {
            c.reap(CURSOR_TIMEOUT);
            drop(c);
            std::thread::sleep(Duration::from_secs(4));
        }
    };
    let started = std::thread::Builder::new().name("cursor-reaper".into()).spawn(run);
    started.map(|_| ()).map_err(|e| errors::Error::internal(format!("cannot start a thread: {e}")))
}

impl Service for Commands {
    type Local = Local;
    type State = Connection;

    fn local(&self) -> Local {
        Local::default()
    }

    fn connected(&self, _id: i64, _peer: &Address) -> Connection {
        Connection::default()
    }

    fn disconnected(&self, _client: &Client<Connection>) {}

    fn run(&self, local: &mut Local, mode: Mode, client: &Client<Connection>, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        self.dispatch(local, mode, client, request, out)
    }

    fn commit(&self, local: &mut Local) -> Result<u64> {
        local.group.commit(&self.store).inspect_err(|_| self.retries.forget())
    }

    fn durable(&self) -> Result<u64> {
        self.store.healthy()?;
        Ok(self.store.durable_index())
    }

    fn request_sync(&self, _index: u64) {
        self.store.request_sync();
    }

    fn on_durable(&self, changed: Box<dyn Fn() + Send + Sync>) {
        self.store.on_durable(Box::new(move |_| changed()));
    }

    fn finish(&self, _client: &Client<Connection>, out: &mut Vec<u8>, body_start: usize) {
        if self.config.topology.set_name().is_none() {
            return;
        }
        let ts = self.store.last_ts();
        let mut w = Writer::with_capacity(128);
        w.open_doc("$clusterTime").timestamp("clusterTime", ts).open_doc("signature");
        w.binary("hash", 0, &[0; 20]).i64("keyId", 0).close().close();
        w.timestamp("operationTime", ts);
        service::append_fields(out, body_start, w.finish().as_doc());
    }
}
