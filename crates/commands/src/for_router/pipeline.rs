//! What a router runs of a pipeline itself: the stages behind those that shards have run, or a pipeline
//! that begins with documents of its own. It is parsed once, and goes on as a value that the router keeps
//! among its cursors.
//!
//! Invariant: nothing is written here, and the documents of other collections come through the router.
//! Each batch is counted, shown by `currentOp` and ended by `killOp` as a command of its own.

use super::step::Step;
use crate::crud::{aggregate, cursor, find, rows, variables};
use crate::monitoring::operations::shown;
use crate::request::{CommandContext, collation};
use crate::{Commands, RemoteRows};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Error, Fallible, Result, Stop};
use executor::operation_memory;
use executor::{AggregateRequest, CursorMemory, PipelineCursor, ReadRemotely, Share};
use query::expr::Vars;
use query::pipeline::{Namespace, ParseCtx};
use std::time::{Duration, Instant};

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

/// `cursor: {<name>: […]`, and whether these documents are the last.
fn batch(
    from: &mut PipelineCursor,
    cx: &mut CommandContext<'_, '_>,
    name: &str,
    most: u64,
) -> Result<(Writer, bool)> {
    let mut w = Writer::new();
    w.open_doc("cursor").open_array(name);
    cx.op.may_cut = true;
    let done = from.fill(&mut cx.op, &mut w, most, cursor::BATCH_BYTES)?;
    cx.work.returned = w.items() as u64;
    w.close();
    if !done {
        from.release(&mut cx.op)?;
    }
    Ok((w, done))
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
        self.run_step(step, step.time, None, |cx| {
            let most = asked.batch.unwrap_or(cursor::FIRST_BATCH);
            let request = self.parse_pipeline(cx, asked, rows.is_some())?;
            let mut pipeline = match rows {
                Some(rows) => PipelineCursor::over(&mut cx.op, request, rows)?,
                None => PipelineCursor::open(&mut cx.op, request)?,
            };
            let (w, done) = batch(&mut pipeline, cx, "firstBatch", most)?;
            if done {
                return Ok(finish(w, None));
            }
            let kept = RouterCursor {
                pipeline,
                time_left: step.time,
                command: shown(step.request.body),
            };
            Ok(finish(w, Some(kept)))
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
        let reply = self.run_step(step, time, Some(&from.command), |cx| {
            cx.op.check()?;
            let most = most.unwrap_or(u64::MAX);
            let (w, done) = batch(pipeline, cx, "nextBatch", most)?;
            last = done;
            Ok(finish(w, done))
        })?;
        let left = |t: Duration| t.saturating_sub(started.elapsed());
        from.time_left = time.map(|t| left(t).max(Duration::from_millis(1)));
        Ok((reply, last))
    }

    fn parse_pipeline(
        &self,
        cx: &CommandContext<'_, '_>,
        asked: RouterPipeline<'_>,
        is_rest: bool,
    ) -> Result<AggregateRequest> {
        let Some(collections) = self.remote_collections.get() else {
            return Err(Error::internal("only a router runs the rest of a pipeline").into());
        };
        let collation = collation::given(asked.collation)?;
        let interruptible = |vars: &Vars| cx.op.interruptible(vars);
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
            server_rows: Some(rows::for_pipeline(self, cx.client)),
            remote: Some(ReadRemotely {
                collections: collections.clone(),
                collation: given.map(Doc::to_buf),
                within: asked.within,
            }),
            causal: false,
            merges_apart: None,
        })
    }
}
