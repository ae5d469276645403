//! Commands that the process runs for itself, or for a user whose request it has taken apart.

use crate::{Commands, Connection, LoggedIn};
use bson::{Doc, DocBuf};
use errors::{Error, Fallible};
use service::{Address, Client, Mode, OWN_ID, Request, Service};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Commands {
    /// The reply to a command that the process asks for itself, with all rights.
    pub fn ask_own(&self, body: Doc<'_>) -> Fallible<DocBuf> {
        self.run_own(self.own_user()?, body)
    }

    /// The reply to a command that came in no message, run here as `user`; it may be an error's.
    pub fn run_own(&self, user: Option<Arc<LoggedIn>>, body: Doc<'_>) -> Fallible<DocBuf> {
        let client = self.own_client(user);
        let mut out = Vec::new();
        let request = Request::own(body);
        self.run(&mut self.local(), Mode::Worker, &client, &request, &mut out);
        // The reply goes to no client.
        let held = client.reply_held.swap(0, Relaxed);
        if held > 0 {
            self.control.in_flight.give(held);
        }
        DocBuf::from_vec(out).ok_or_else(|| Error::internal("a command gave no document"))
    }

    /// The process itself as a client.
    pub(crate) fn own_client(&self, user: Option<Arc<LoggedIn>>) -> Client<Connection> {
        let own = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.config.port)));
        let client = Client::new(OWN_ID, own.clone(), own, Connection::new());
        if let Some(user) = user {
            client.state.login.admit(user);
        }
        client
    }
}
