//! From a request to the command that answers it, and from what the command did to the reply.

use crate::concern::{self, WriteConcern};
use crate::connection::Connection;
use crate::cx::{Cx, Done};
use crate::generic::Args;
use crate::table;
use crate::{Commands, Local};
use bson::Writer;
use errors::{Error, Result, err};
use service::{Client, Mode, Outcome, Request};
use std::sync::atomic::Ordering::Relaxed;

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
        _local: &mut Local,
        mode: Mode,
        client: &Client<Connection>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        let name = request.command();
        let command = table::lookup(name).ok_or_else(|| err!(CommandNotFound, "no such command: '{name}'"))?;
        command.total.fetch_add(1, Relaxed);
        let args = Args::parse(command.name, request.body, request.legacy_db)?;
        let mut cx = Cx {
            app: self,
            client,
            request,
            command,
            args,
            mode,
            write_concern: WriteConcern::DEFAULT,
            w: Writer::on(std::mem::take(out)),
        };
        let done = cx.check().and_then(|()| (command.run)(&mut cx));
        if let Ok(Done::Reply | Done::ReplyMore) = done {
            cx.w.f64("ok", 1.0);
            if let Some(unmet) = &cx.write_concern.unmet {
                concern::append_unmet(unmet, &mut cx.w);
            }
        }
        *out = cx.w.finish_into();
        match done {
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
