//! What a router runs of a pipeline itself: the stages behind those that shards have run, or a pipeline
//! that begins with documents of its own. It is parsed once, and goes on as a value that the router keeps
//! among its cursors.
//!
//! Invariant: nothing is written here, and the documents of other collections come through the router.
//! Each batch is counted, shown by `currentOp` and ended by `killOp` as a command of its own.

use crate::connection::Connection;
use crate::connection::login::LoggedIn;
use crate::crud::{aggregate, cursor, find, rows, variables};
use crate::dispatch::accounting::Account;
use crate::monitoring::command_counts;
use crate::monitoring::metrics::DocumentWork;
use crate::monitoring::operations::shown;
use crate::request::reply_reservation::ReplyReservation;
use crate::request::{Call, collation, operation};
use crate::{Commands, RemoteRows};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Error, Fallible, Result, Stop};
use executor::operation_memory;
use executor::{AggregateRequest, CursorMemory, OpCtx, PipelineCursor, ReadRemotely, Share};
use front::{Args, specification};
use query::expr::Vars;
use query::pipeline::{Namespace, ParseCtx};
use service::{Client, Mode, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The command that a batch answers.
pub struct Step<'s> {
    pub request: &'s Request<'s>,
    /// `None`: it is the router's own.
    pub user: Option<Arc<LoggedIn>>,
    /// What time there is for it.
    pub time: Option<Duration>,
}

/// A pipeline that the router runs.
pub struct RouterPipeline<'p> {
    /// That names in its stages are of.
    pub db: &'p str,
    /// `None`: it is on none.
    pub collection: Option<&'p str>,
    pub stages: Val<'p>,
    pub collation: Option<Doc<'p>>,
    pub variables: Option<Doc<'p>>,
    pub allow_disk_use: Option<bool>,
    /// Fields that each of its reads carries: its transaction, or its snapshot.
    pub within: DocBuf,
    /// Documents of the first batch, where the client says how many.
    pub batch: Option<u64>,
}

/// Such a pipeline between two batches.
pub struct RouterCursor {
    pipeline: PipelineCursor,
    /// `maxTimeMS` that is left.
    time_left: Option<Duration>,
    /// The command that has opened it, as it is shown.
    command: DocBuf,
}

/// `cursor: {<name>: […]`, how many documents these are, and whether they are the last.
fn batch(
    from: &mut PipelineCursor,
    op: &mut OpCtx<'_>,
    name: &str,
    most: u64,
) -> Result<(Writer, u64, bool)> {
    let mut w = Writer::new();
    w.open_doc("cursor").open_array(name);
    let done = from.fill(op, &mut w, most, cursor::BATCH_BYTES)?;
    let documents = w.items() as u64;
    w.close();
    if !done {
        from.release(op)?;
    }
    Ok((w, documents, done))
}

impl Commands {
    /// What a cursor holds of the memory of cursors: `own` bytes, and its command.
    pub fn share_of_cursor(&self, own: usize, command: Doc<'_>) -> Fallible<Share> {
        let share = self.engine.share_for_cursor(own, command);
        share.map_err(Stop::into_error)
    }

    /// Runs `work`, what a router does for a command, as the operation of this thread whose memory counts.
    pub fn within_memory<T>(&self, work: impl FnOnce() -> T) -> T {
        self.engine.operation_memory.within(work)
    }

    /// Counts what that operation holds, and waits where others hold what there is; `check` tells whether it is to end.
    pub fn weigh(&self, check: &dyn Fn() -> Fallible<()>) -> Fallible<()> {
        operation_memory::weigh(0, true, &|| Ok(check()?)).map_err(Stop::into_error)
    }

    /// Where cursors keep their documents.
    pub fn cursor_memory(&self) -> CursorMemory {
        CursorMemory::of(&self.engine)
    }

    /// Opens a pipeline: behind stages that have given `rows`, or a whole one. `finish` completes
    /// `cursor: {firstBatch: […]`, and keeps the cursor where there is more.
    pub fn open_pipeline(
        &self,
        step: &Step<'_>,
        asked: RouterPipeline<'_>,
        rows: Option<Box<dyn RemoteRows>>,
        finish: impl FnOnce(Writer, Option<RouterCursor>) -> DocBuf,
    ) -> Fallible<DocBuf> {
        self.run_step(step, step.time, None, |op, client| {
            let most = asked.batch.unwrap_or(cursor::FIRST_BATCH);
            let request = self.parse_pipeline(op, client, asked, rows.is_some())?;
            let mut pipeline = match rows {
                Some(rows) => PipelineCursor::over(op, request, rows)?,
                None => PipelineCursor::open(op, request)?,
            };
            let (w, documents, done) = batch(&mut pipeline, op, "firstBatch", most)?;
            if done {
                return Ok((finish(w, None), documents));
            }
            let kept = RouterCursor {
                pipeline,
                time_left: step.time,
                command: shown(step.request.body),
            };
            Ok((finish(w, Some(kept)), documents))
        })
    }

    /// The next batch of a pipeline, and whether it is the last. `finish` completes
    /// `cursor: {nextBatch: […]`.
    pub fn next_batch(
        &self,
        step: &Step<'_>,
        from: &mut RouterCursor,
        most: Option<u64>,
        finish: impl FnOnce(Writer, bool) -> DocBuf,
    ) -> Fallible<(DocBuf, bool)> {
        let (started, time) = (Instant::now(), from.time_left);
        let pipeline = &mut from.pipeline;
        let mut last = false;
        let reply = self.run_step(step, time, Some(&from.command), |op, _| {
            op.check()?;
            let most = most.unwrap_or(u64::MAX);
            let (w, documents, done) = batch(pipeline, op, "nextBatch", most)?;
            last = done;
            Ok((finish(w, done), documents))
        })?;
        let left = |t: Duration| t.saturating_sub(started.elapsed());
        from.time_left = time.map(|t| left(t).max(Duration::from_millis(1)));
        Ok((reply, last))
    }

    fn parse_pipeline(
        &self,
        op: &OpCtx<'_>,
        client: &Client<Connection>,
        asked: RouterPipeline<'_>,
        is_rest: bool,
    ) -> Result<AggregateRequest> {
        let Some(collections) = self.remote_collections.get() else {
            return Err(Error::internal("only a router runs the rest of a pipeline").into());
        };
        let collation = collation::given(asked.collation)?;
        let interruptible = |vars: &Vars| op.interruptible(vars);
        let (env, vars) = variables::of_router(self, collation, asked.variables, interruptible)?;
        let mut context = ParseCtx::new(asked.db, asked.collection, env);
        if is_rest {
            context = context.of_rest();
        }
        let pipeline = aggregate::parse_stages(self, asked.stages, &context)?;
        // A client's pipeline comes here: the process does not end for it.
        if pipeline.writes() {
            return Err(Error::internal("what a router writes its shards write").into());
        }
        let disk_use = asked.allow_disk_use;
        let given = asked.collation.filter(|d| !d.is_empty());
        Ok(AggregateRequest {
            ns: Namespace::new(asked.db, asked.collection.unwrap_or("$cmd.aggregate")),
            pipeline,
            vars,
            hint: None,
            allow_disk_use: disk_use.unwrap_or_else(|| self.parameters.bool(find::DISK_USE)),
            server_rows: Some(rows::for_pipeline(self, client)),
            remote: Some(ReadRemotely {
                collections: collections.clone(),
                collation: given.map(Doc::to_buf),
                within: asked.within,
            }),
            causal: false,
            merges_apart: None,
        })
    }

    /// Runs one batch as an operation of this process. `originating`: the command that has opened its
    /// cursor. `work` gives the reply, and how many documents that has.
    fn run_step(
        &self,
        step: &Step<'_>,
        time: Option<Duration>,
        originating: Option<&DocBuf>,
        work: impl FnOnce(&mut OpCtx<'_>, &Client<Connection>) -> Result<(DocBuf, u64)>,
    ) -> Fallible<DocBuf> {
        let request = step.request;
        let command = specification::lookup(request.command())
            .ok_or_else(|| Error::internal("a batch for a command that there is not"))?;
        let user = match &step.user {
            Some(user) => Some(user.clone()),
            None => self.own_user()?,
        };
        let client = self.own_client(user);
        let args = self.args_of(command.name, &client, request)?;
        let call = Call {
            mode: Mode::Worker,
            client: &client,
            request,
            command,
            on_view: None,
            holds: None,
            own_places: None,
        };
        let started = Instant::now();
        let shown = operation(command, &client, request, &args, started);
        let registered = self.operations.register(shown);
        let room = ReplyReservation::new(&self.control, &client, request);
        let mut op = OpCtx::worker(&self.engine);
        op.deadline = time.and_then(|t| self.fail_points.deadline(started, t));
        op.killed = Some(&registered.operation.killed);
        op.shown_plan = Some(&registered.operation.plan);
        op.room = Some(&room);
        op.may_cut = true;
        let question = op.question();
        let made = self.within_memory(|| {
            storage::long_steps::asking(op.deadline, &question, || work(&mut op, &client))
        });
        let made = made.map_err(Stop::into_error);
        if made.is_err() {
            command_counts::of(command).failed.fetch_add(1, Relaxed);
            self.counters.failed();
        }
        let account = Account {
            args: &args,
            failure: made.as_ref().err(),
            reply: made.as_ref().map_or(&[][..], |made| made.0.as_bytes()),
            elapsed: started.elapsed(),
            statements: 1,
            work: DocumentWork {
                returned: made.as_ref().map_or(0, |made| made.1),
                ..DocumentWork::default()
            },
            spent: Vec::new(),
            plan: op.plan.take(),
            examined: op.examined(),
            hashes: None,
            made: Default::default(),
            originating: originating.cloned(),
        };
        self.count(&call, &self.counters.shard(), account);
        Ok(made?.0)
    }

    fn args_of<'r>(
        &self,
        name: &'static str,
        client: &Client<Connection>,
        request: &Request<'r>,
    ) -> Fallible<Args<'r>> {
        let read = || {
            let mut args = Args::parse(name, request.body, request.legacy_db)?;
            if let Some(lsid) = &mut args.generic.lsid {
                self.own_session(client, lsid)?;
                self.sessions.touch(lsid)?;
            }
            Ok(args)
        };
        read().map_err(|stop: Stop| stop.into_error())
    }
}
