//! The part of a router's command that is about this process: its operations, its sessions, and the plan
//! of what is nowhere. Each is the function of the command itself, with the arguments that the door has
//! parsed.

use super::step::Step;
use crate::Commands;
use crate::crud::{aggregate, explain};
use crate::diagnostic::current_op::{self, CurrentOp};
use crate::diagnostic::kill_op;
use crate::request::{CommandContext, Done};
use crate::sessions::end_sessions;
use crate::sessions::kill_sessions::{self, KilledSessions};
use bson::{Doc, DocBuf, Writer};
use errors::{Error, Fallible, Result};
use session::Lsid;

impl Commands {
    /// What runs here, as `currentOp` replies it, and what of others' operations is wanted.
    pub fn current_op(&self, step: &Step<'_>) -> Fallible<(DocBuf, CurrentOp)> {
        self.reply_with(step, |cx| {
            let asked = CurrentOp::of(&cx.args)?;
            current_op::write(cx, &asked)?;
            Ok(asked)
        })
    }

    /// Ends an operation of this process, by its number.
    pub fn kill_op(&self, step: &Step<'_>) -> Fallible<DocBuf> {
        self.reply(step, kill_op::run)
    }

    /// Ends sessions in this process, by whichever of the three commands; which they are.
    pub fn kill_sessions(&self, step: &Step<'_>) -> Fallible<(DocBuf, KilledSessions)> {
        self.reply_with(step, |cx| {
            let killed = KilledSessions::of(cx)?;
            kill_sessions::kill(cx, &killed)?;
            Ok(killed)
        })
    }

    /// Ends the sessions that a client is done with; which they are.
    pub fn end_sessions(&self, step: &Step<'_>) -> Fallible<(DocBuf, Vec<Lsid>)> {
        self.reply_with(step, |cx| end_sessions::end(cx))
    }

    /// The plan of a command over a collection that is not there.
    pub fn explain_absent(&self, step: &Step<'_>) -> Fallible<DocBuf> {
        self.reply(step, explain::run)
    }

    /// The plan of a pipeline that is over no collection, by its own argument `explain`. `shown`: the
    /// command as the reply has it.
    pub fn explain_pipeline(&self, step: &Step<'_>, shown: Doc<'_>) -> Fallible<DocBuf> {
        self.reply(step, |cx| aggregate::explain(cx, shown))
    }

    /// The reply of a command's own function.
    fn reply(
        &self,
        step: &Step<'_>,
        run: impl FnOnce(&mut CommandContext<'_, '_>) -> Result<Done>,
    ) -> Fallible<DocBuf> {
        let ran = self.reply_with(step, |cx| {
            let done = run(cx)?;
            assert_eq!(done, Done::Reply, "a command of the process replies once");
            Ok(())
        });
        Ok(ran?.0)
    }

    /// The reply that `write` has written, and what else it gives.
    fn reply_with<T>(
        &self,
        step: &Step<'_>,
        write: impl FnOnce(&mut CommandContext<'_, '_>) -> Result<T>,
    ) -> Fallible<(DocBuf, T)> {
        let mut given = None;
        let reply = self.run_step(step, step.time, None, |cx| {
            given = Some(write(cx)?);
            cx.w.f64("ok", 1.0);
            let written = std::mem::replace(&mut cx.w, Writer::on(Vec::new()));
            let reply = DocBuf::from_vec(written.finish_into());
            Ok(reply.ok_or_else(|| Error::internal("a command gave no document"))?)
        })?;
        let given = given.ok_or_else(|| Error::internal("a command gave nothing"))?;
        Ok((reply, given))
    }
}
