//! From a request to the command that answers it, and from what the command did to the reply.

use crate::concern::{self, WriteConcern};
use crate::connection::Connection;
use crate::cx::{Cx, Done};
use crate::generic::Args;
use crate::table;
use crate::{Commands, Local};
use bson::Writer;
use errors::{Error, Result, err};
use executor::OpCtx;
use service::{Client, Mode, Outcome, Request};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

impl Commands {
    pub(crate) fn dispatch(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let start = out.len();
        match self.answer(local, mode, client, request, out) {
            Ok(outcome) => outcome,
            Err(e) => {
                out.truncate(start);
                if e.is_offload() {
                    if mode == Mode::Inline {
                        return Outcome::Offload;
                    }
                    service::write_error(&Error::internal("a worker was asked to hand over its command"), out);
                    return Outcome::Reply;
                }
                service::write_error(&e, out);
                Outcome::Reply
            }
        }
    }

    fn answer(
        &self,
        local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        let name = request.command();
        let command = table::lookup(name).ok_or_else(|| err!(CommandNotFound, "no such command: '{name}'"))?;
        command.total.fetch_add(1, Relaxed);
        let args = Args::parse(command.name, request.body, request.legacy_db)?;
        if command.is(table::flag::WORKER) && mode == Mode::Inline {
            return Ok(Outcome::Offload);
        }
        let mut op = match mode {
            Mode::Inline => OpCtx::inline(&self.engine, &mut local.group),
            Mode::Worker => OpCtx::worker(&self.engine),
        };
        if args.generic.max_time_ms > 0 {
            op.deadline = Some(Instant::now() + Duration::from_millis(args.generic.max_time_ms));
        }
        op.killed = Some(&client.cancelled);
        let mut cx = Cx {
            app: self,
            client,
            request,
            command,
            args,
            mode,
            write_concern: WriteConcern::DEFAULT,
            op,
            after_commit: false,
            w: Writer::on(std::mem::take(out)),
        };
        let done = cx.check().and_then(|()| (command.run)(&mut cx));
        if let Ok(Done::Reply | Done::ReplyMore) = done {
            cx.w.f64("ok", 1.0);
            if let Some(unmet) = &cx.write_concern.unmet {
                concern::append_unmet(unmet, &mut cx.w);
            }
        }
        let durable = cx.durable();
        let wrote = cx.op.has_written() || cx.after_commit;
        let index = match cx.op.last_index {
            0 if cx.after_commit => self.store.last_index(),
            n => n,
        };
        *out = cx.w.finish_into();
        match done {
            Ok(Done::Reply) if wrote && mode == Mode::Inline => Ok(Outcome::Staged { durable }),
            Ok(Done::Reply) if wrote && durable => Ok(Outcome::WaitDurable(index)),
            Ok(Done::Reply) => Ok(Outcome::Reply),
            Ok(Done::ReplyMore) => Ok(Outcome::ReplyMore),
            Ok(Done::NoReply) => Ok(Outcome::NoReply),
            Ok(Done::Close) => Ok(Outcome::Close),
            Err(e) => {
                if !e.is_offload() {
                    command.failed.fetch_add(1, Relaxed);
                }
                Err(e)
            }
        }
    }
}
