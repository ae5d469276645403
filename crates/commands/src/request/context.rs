//! Command context: a command's arguments, its connection, and the reply under construction.

use crate::Commands;
use crate::connection::Connection;
use crate::monitoring::metrics::{DocumentWork, OperationKind, Usage};
use crate::request::concern::{self, Acknowledge, WriteConcern};
use crate::request::transaction::{self, TransactionStatement};
use bson::{DocBuf, Val, Writer};
use errors::{Result, bail};
use executor::OpCtx;
use executor::{OwnPlaces, ViewTaken};
use front::Args;
use front::{Specification, flag};
use service::config::Topology;
use service::{Client, Mode, Request};
use std::time::{Duration, Instant};

/// What a command that was suspended keeps for its next run.
pub type Begun = Box<dyn std::any::Any + Send>;

/// The outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The reply is written; the dispatcher adds `ok: 1`.
    Reply,
    /// The reply is written, and the same request is to be run again for the next one.
    ReplyMore,
    /// Nothing is written; the request is run again at this time, or when the server's count of events
    /// differs from `seen`.
    Await { until: Instant, seen: usize },
    /// The connection is closed.
    Close,
}

/// What a shard admitted a router's command by.
pub trait StillHolds {
    /// Fails where it has changed while the command ran.
    fn check(&self, app: &Commands) -> Result<()>;
}

/// One run of a request: client, command, and the mode of the run.
#[derive(Clone, Copy)]
pub struct Call<'c, 'r> {
    pub mode: Mode,
    pub client: &'c Client<Connection>,
    pub request: &'c Request<'r>,
    pub command: &'static Specification,
    /// Told of each view that the command takes.
    pub on_view: Option<&'c dyn ViewTaken>,
    /// What has to hold still when the command has run.
    pub holds: Option<&'c dyn StillHolds>,
    /// What a pipeline may write here of a sharded collection.
    pub own_places: Option<&'c OwnPlaces>,
}

/// One request on its way through a command.
pub struct CommandContext<'c, 'r> {
    pub app: &'c Commands,
    pub client: &'c Client<Connection>,
    pub request: &'c Request<'r>,
    pub command: &'static Specification,
    pub args: Args<'r>,
    pub write_concern: WriteConcern,
    /// The operation: budget, deadline, where writes go.
    pub op: OpCtx<'c>,
    /// The reply reports a staged or earlier write, and must not be sent before that write is
    /// committed.
    pub after_commit: bool,
    /// The number of operations it counts as: documents of an insert, statements of an update or
    /// delete.
    pub statements: u64,
    /// The reply says `ok: 1` as an int32, as MongoDB does where one command answers for another.
    pub int_ok: bool,
    /// The command that made the cursor of a getMore.
    pub originating: Option<DocBuf>,
    /// What it did to documents, as far as only the command knows.
    pub work: DocumentWork,
    /// The time spent waiting for other operations, which does not count as its own.
    pub waited: Duration,
    /// A first batch that an earlier run began; set again when this run is suspended.
    pub begun: Option<Begun>,
    /// The newest entry of the log when an earlier run began; `None`: this is the first.
    pub first_run: Option<u64>,
    /// For `top`, of a command on several collections.
    pub spent: Vec<(String, OperationKind, Usage)>,
    /// The transaction that the request belongs to, or ends.
    pub transaction: Option<TransactionStatement>,
    /// The reply document, open.
    pub w: Writer,
}

impl<'c, 'r> CommandContext<'c, 'r> {
    /// A command that is about to run; its reply goes to the end of `out`.
    pub fn new(
        app: &'c Commands,
        call: &Call<'c, 'r>,
        args: Args<'r>,
        op: OpCtx<'c>,
        out: Vec<u8>,
    ) -> CommandContext<'c, 'r> {
        CommandContext {
            app,
            client: call.client,
            request: call.request,
            command: call.command,
            args,
            write_concern: app.rw_defaults.write_concern(),
            op,
            after_commit: false,
            statements: 1,
            work: DocumentWork::default(),
            waited: Duration::ZERO,
            begun: None,
            first_run: None,
            spent: Vec::new(),
            int_ok: false,
            originating: None,
            transaction: None,
            w: Writer::on(out),
        }
    }

    /// Makes the command wait for what a write concern says, or the default where none is given.
    pub fn heed_write_concern(&mut self, given: Option<Val<'_>>) -> Result<()> {
        let default = match given {
            None => self.app.rw_defaults.of_members(),
            Some(_) => None,
        };
        match default.as_ref().map(|d| d.as_doc().as_val()).or(given) {
            Some(v) => {
                let concern = concern::write_concern(v, &self.app.config.topology)?;
                self.await_concern(concern, v)
            }
            None => Ok(()),
        }
    }

    /// Makes the command wait for what a write concern says that was given.
    pub fn await_concern(&mut self, mut wc: WriteConcern, given: Val<'_>) -> Result<()> {
        concern::of_set(&mut wc, given, self.app.replica.as_ref());
        if wc.members.is_some() || wc.own_disk {
            self.op.need_worker()?;
        }
        self.write_concern = wc;
        Ok(())
    }

    /// Whether a write's reply must wait for the disk.
    pub fn durable(&self) -> bool {
        match self.write_concern.acknowledge {
            Acknowledge::Durable => true,
            Acknowledge::Written => self.app.config.durability.always,
            Acknowledge::Never => false,
        }
    }
}

/// Checks of generic arguments that depend on the command; the write concern, if it takes one and one
/// was given.
pub fn check_generic(
    command: &Specification,
    args: &Args<'_>,
    topology: &Topology,
) -> Result<Option<WriteConcern>> {
    let g = &args.generic;
    if command.is(flag::ADMIN) && args.db != "admin" {
        bail!(
            Unauthorized,
            "{} may only be run against the admin database.",
            command.name
        );
    }
    catalog::check_db_name(args.db)?;
    if g.api.strict && !command.is(flag::API) {
        bail!(
            APIStrictError,
            "Provided apiStrict:true, but the command {} is not in API Version 1. Information on supported commands and migrations in API Version 1 can be found at https://dochub.mongodb.org/core/manual-versioned-api",
            command.name
        );
    }
    let concern = match g.write_concern {
        Some(v) => Some(concern::write_concern(v, topology)?),
        None => None,
    };
    let given = g.write_concern.is_some_and(|v| !v.is_nullish());
    if given && !command.is(flag::WRITE) {
        bail!(
            InvalidOptions,
            "Command {} does not support writeConcern",
            command.name
        );
    }
    if let Some(v) = g.read_concern {
        let reads = command.is(flag::READ) || transaction::is_statement(args);
        concern::read_concern(v, topology, command.name, reads)?;
    }
    Ok(concern.filter(|_| command.is(flag::WRITE)))
}
