//! A client of the server that the console is part of: commands take the way of those from sockets, as
//! the user that has logged in by SCRAM on this connection. There is no other check of rights.
//!
//! Invariant: a command that panics, or that an event would have to end, is an error; what its reply has reserved is given
//! back.

use bson::{Doc, DocBuf, Writer};
use outgoing::{Converse, Credentials};
use service::in_flight::InFlight;
use service::{Address, Client, Control, Mode, Outcome, Request, Service};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// Numbers of connections that no socket has: acceptors count from 1.
const FIRST_ID: i64 = 1 << 40;
static NEXT_ID: AtomicI64 = AtomicI64::new(FIRST_ID);

/// What opens connections.
pub trait Backend: Send + Sync {
    fn connect(&self, peer: Address) -> Box<dyn ServerConnection>;
}

pub trait ServerConnection: Send {
    /// The reply, which may be an error's.
    fn run(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf, String>;

    /// Set when what runs should end.
    fn cancelled(&self) -> Arc<AtomicBool>;
}

pub struct InProcess<S: Service> {
    pub service: Arc<S>,
    pub control: Arc<Control>,
    pub local: Address,
}

struct Own<S: Service> {
    service: Arc<S>,
    control: Arc<Control>,
    client: Client<S::State>,
}

impl<S: Service> Backend for InProcess<S> {
    fn connect(&self, peer: Address) -> Box<dyn ServerConnection> {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let state = self.service.connected(id, &peer);
        Box::new(Own {
            service: self.service.clone(),
            control: self.control.clone(),
            client: Client::new(id, peer, self.local.clone(), state),
        })
    }
}

impl<S: Service> Drop for Own<S> {
    fn drop(&mut self) {
        self.service.disconnected(&self.client);
    }
}

/// Gives back what a reply holds, however the command ends.
struct Held<'a>(&'a InFlight, &'a std::sync::atomic::AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let held = self.1.swap(0, Relaxed);
        if held > 0 {
            self.0.give(held);
        }
    }
}

impl<S: Service> ServerConnection for Own<S> {
    fn run(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf, String> {
        let mut w = Writer::with_capacity(command.len() + 32);
        w.extend(command).str("$db", db);
        let body = w.finish();
        // What came from a person is checked as what comes from a socket is.
        bson::validate(body.as_bytes()).map_err(|e| e.to_string())?;
        let request = Request::own(body.as_doc());
        let _held = Held(&self.control.in_flight, &self.client.reply_held);
        let mut out = Vec::new();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut local = self.service.local();
            self.service
                .run(&mut local, Mode::Worker, &self.client, &request, &mut out)
        }));
        match ran {
            Ok(Outcome::Reply | Outcome::ReplyMore) => {}
            Ok(Outcome::WaitDurable(index)) => self.service.request_sync(index),
            Ok(_) => return Err("the server gave no reply".into()),
            Err(_) => {
                tracing::error!(target: "COMMAND", command = request.command(), "A command of the console panicked");
                return Err("the server failed on this command".into());
            }
        }
        DocBuf::from_vec(out).ok_or_else(|| "the server's reply is no document".into())
    }

    fn cancelled(&self) -> Arc<AtomicBool> {
        self.client.cancelled.clone()
    }
}

/// A connection as the login sees it.
struct LoginConnection<'a>(&'a mut dyn ServerConnection);

impl Converse for LoginConnection<'_> {
    type Failure = outgoing::Error;

    fn ask(&mut self, db: &str, command: Doc<'_>) -> outgoing::Result<DocBuf> {
        self.0.run(db, command).map_err(outgoing::Error::Failed)
    }
}

/// Introduces the client: a program of this name, and the user, if one logs in.
pub fn greet(c: &mut dyn ServerConnection, who: Option<&Credentials>) -> Result<(), String> {
    let mut w = Writer::new();
    w.i32("hello", 1);
    if let Some(user) = who.and_then(Credentials::asks_for) {
        w.str("saslSupportedMechs", &user);
    }
    w.open_doc("client").open_doc("application");
    w.str("name", "PandoDB console").close();
    w.open_doc("driver").str("name", "console");
    w.str("version", env!("CARGO_PKG_VERSION")).close();
    w.open_doc("os").str("type", std::env::consts::OS).close();
    w.close();
    let hello = c.run("admin", w.finish().as_doc())?;
    let Some(who) = who else { return Ok(()) };
    let performed = who.perform(&mut LoginConnection(c), hello.as_doc());
    performed.map_err(|e| e.to_string())
}
