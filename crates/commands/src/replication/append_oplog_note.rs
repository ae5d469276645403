//! `appendOplogNote`: a document in the log that changes nothing, for readers of the log. It is of a
//! data format that the release before does not read.

use super::set_name;
use crate::admin::set_feature_compatibility_version::use_newest_format;
use crate::request::{CommandContext, Done};
use errors::Result;
use front::idl;
use std::sync::Arc;
use storage::{Entry, Op};

const AT: &str = "appendOplogNote";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let data = cx.args.field("data").and_then(|v| v.as_doc());
    let note = idl::required(AT, "data", data)?.as_bytes().to_vec();
    use_newest_format(cx)?;
    let entry = Entry::new(Arc::default(), [0; 16], Op::Note(note), Vec::new());
    let made = (cx.app.store).propose_in(cx.op.epoch(), vec![entry])?;
    cx.op.last_index = made.index;
    Ok(Done::Reply)
}
