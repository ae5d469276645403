//! Commands that an event loop sends to shards, and goes on with when they have replied
//! ([`direct`]).
//!
//! Invariant: nothing here waits. What has to is left to a worker.

mod direct;
pub(crate) mod loop_connections;

use self::direct::{Finished, UnderWay};
use self::loop_connections::LoopConnections;
use crate::request::RoutedCommand;
use crate::state::Router;
use bson::DocBuf;
use cluster_view::Outcome as Routed;
use cluster_view::reply::cursor_id;
use commands::{Connection, Local, LoggedIn};
use front::{ParsedCommand, Specification};
use service::{Client, KeptProgress, Mode, Needs, Outcome, Request, Unfinished};
use std::sync::Arc;

/// What an event loop, or a worker, keeps from request to request.
pub struct LoopLocal {
    pub(crate) commands: Local,
    /// Of an event loop.
    pub(crate) loop_connections: Option<LoopConnections>,
}

/// A command that was sent from an event loop.
pub(crate) struct Sent {
    under_way: UnderWay,
    user: Option<Arc<LoggedIn>>,
}

/// What became of one.
pub(crate) enum GoneOn {
    Ended(Routed<DocBuf>),
    /// A worker has to wait for more.
    Waits(Sent),
}

impl Router {
    /// Sends a command on from an event loop, if that needs no waiting.
    fn begin(
        &self,
        local: &mut LoopLocal,
        client: &Client<Connection>,
        request: &Request<'_>,
        command: &'static Specification,
    ) -> Option<Unfinished> {
        let loop_connections = local
            .loop_connections
            .as_mut()
            .filter(|_| direct::serves(command.name))?;
        // A worker acts on them, once.
        if self.local.has_fail_points() || self.local.has_rules() {
            return None;
        }
        let parsed = ParsedCommand::of(command, request).ok()?;
        let user = self.local.admit_routed(client, request, &parsed, false);
        let user = user.ok()?;
        let body = self
            .local
            .for_shards(user.as_deref(), &parsed, request.body);
        let body = body.ok()?;
        let as_user = Request {
            body: body.as_ref().map_or(request.body, DocBuf::as_doc),
            ..*request
        };
        let command =
            RoutedCommand::of_client(user, parsed.from_client(), &as_user, body.is_some());
        let (ticket, under_way) = direct::begin(self, loop_connections, &command)?;
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
    pub(crate) fn go_on(
        &self,
        sent: Sent,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
    ) -> Option<GoneOn> {
        let Sent { under_way, user } = sent;
        let command = RoutedCommand::of(request).ok()?.by(user.clone());
        let finished = match mode.on_loop() {
            true => direct::finish(self, under_way, &command),
            false => direct::conclude(self, under_way, &command),
        };
        let mut outcome = match finished {
            Finished::Reply(outcome) => outcome,
            Finished::Anew => return None,
            Finished::Waits(under_way) => return Some(GoneOn::Waits(Sent { under_way, user })),
        };
        if let Ok(reply) = &outcome
            && let Err(e) = self.cursors.keep(&self.local, cursor_id(reply), &command)
        {
            outcome = Err(e);
        }
        Some(GoneOn::Ended(self.ended(client, request, outcome)))
    }

    /// Runs a command on an event loop, as far as that needs no waiting.
    pub(crate) fn run_on_loop(
        &self,
        local: &mut LoopLocal,
        client: &Client<Connection>,
        request: &Request<'_>,
        command: &'static Specification,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let to_worker = |kept: Option<KeptProgress>| {
            Outcome::Suspended(Unfinished {
                needs: Needs::Worker,
                kept,
            })
        };
        let Some(sent) = request.resumed.and_then(|r| r.take::<Sent>()) else {
            return match self.begin(local, client, request, command) {
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
}
