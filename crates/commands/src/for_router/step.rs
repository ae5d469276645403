//! A step that this process runs for a command of a router: as an operation that `currentOp` shows, that
//! `killOp` with a number ends, and that is counted.
//!
//! Invariants: the command is not parsed again, and nothing is asked of the client's rights that the door
//! has asked. A client that is not logged in has no user here either: only what the router does by itself
//! has the rights of the process.

use crate::Commands;
use crate::connection::Connection;
use crate::connection::login::LoggedIn;
use crate::dispatch::accounting::Account;
use crate::monitoring::command_counts;
use crate::request::reply_reservation::ReplyReservation;
use crate::request::{Call, CommandContext, operation};
use bson::DocBuf;
use errors::{Error, Fallible, Result, Stop};
use executor::OpCtx;
use front::{Args, specification};
use service::{Client, Mode, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The command that a step is for.
pub struct Step<'s> {
    pub request: &'s Request<'s>,
    pub args: Args<'s>,
    pub by: Whose,
    /// What time there is for it.
    pub time: Option<Duration>,
}

/// Who has sent a command.
pub enum Whose {
    /// A client, and the user that is logged in there, if there is access control.
    Client(Option<Arc<LoggedIn>>),
    /// The router itself.
    Router,
}

impl Commands {
    /// The arguments with the session as its user's own, which is kept alive.
    fn enter<'s>(&self, step: &Step<'s>, client: &Client<Connection>) -> Result<Args<'s>> {
        let mut args = step.args.clone();
        if let Some(lsid) = &mut args.generic.lsid {
            self.own_session(client, lsid)?;
            self.sessions.touch(lsid)?;
        }
        Ok(args)
    }

    /// Runs a step. `originating`: the command that has opened its cursor. `work` gives the reply.
    pub(super) fn run_step(
        &self,
        step: &Step<'_>,
        time: Option<Duration>,
        originating: Option<&DocBuf>,
        work: impl FnOnce(&mut CommandContext<'_, '_>) -> Result<DocBuf>,
    ) -> Fallible<DocBuf> {
        let command = specification::lookup(step.args.command)
            .ok_or_else(|| Error::internal("a step of a command that there is not"))?;
        let user = match &step.by {
            Whose::Client(user) => user.clone(),
            Whose::Router => self.own_user()?,
        };
        let client = self.own_client(user);
        let args = self.enter(step, &client).map_err(Stop::into_error)?;
        let call = Call {
            mode: Mode::Worker,
            client: &client,
            request: step.request,
            command,
            on_view: None,
            holds: None,
            own_places: None,
        };
        let started = Instant::now();
        let shown = operation(command, &client, step.request, &args, started);
        let registered = self.operations.register(shown);
        let room = ReplyReservation::new(&self.control, &client, step.request);
        let mut op = OpCtx::worker(&self.engine);
        op.deadline = time.and_then(|t| self.fail_points.deadline(started, t));
        op.killed = Some(&registered.operation.killed);
        op.shown_plan = Some(&registered.operation.plan);
        op.room = Some(&room);
        let mut cx = CommandContext::new(self, &call, args, op, Vec::new());
        let (deadline, question) = (cx.op.deadline, cx.op.question());
        let made = self
            .within_memory(|| storage::long_steps::asking(deadline, &question, || work(&mut cx)));
        let made = made.map_err(Stop::into_error);
        if made.is_err() {
            command_counts::of(command).failed.fetch_add(1, Relaxed);
            self.counters.failed();
        }
        let account = Account {
            args: &cx.args,
            failure: made.as_ref().err(),
            reply: made.as_ref().map_or(&[][..], |made| made.as_bytes()),
            elapsed: started.elapsed(),
            statements: 1,
            work: cx.work,
            spent: Vec::new(),
            plan: cx.op.plan.take(),
            examined: cx.op.examined(),
            hashes: None,
            made: Default::default(),
            originating: originating.cloned(),
        };
        self.count(&call, &self.counters.shard(), account);
        made
    }
}
