//! The last backup: a document of `config.settings`, which all members have and every start finds.
//!
//! ```text
//! {_id: "lastBackup", at: <date>, backup: <id in its archive, or "">, to: <where>}
//! ```

use crate::clock::now_millis;
use crate::request::CommandContext;
use crate::settings::stored;
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};

/// The `_id` of the document.
pub const ID: &str = "lastBackup";
/// Of what a client says of it.
const MOST_BYTES: usize = 4096;

/// The document without its `_id`, for a backup that is there now.
pub fn document(backup: &str, to: &str) -> DocBuf {
    let mut w = Writer::new();
    w.date("at", now_millis());
    w.str("backup", backup).str("to", to);
    w.finish()
}

/// Keeps it; a secondary has its primary keep it.
pub(super) fn note(cx: &mut CommandContext<'_, '_>, backup: &str, to: &str) -> Result<()> {
    if backup.len() + to.len() > MOST_BYTES {
        bail!(
            BadValue,
            "the name of a backup is longer than {MOST_BYTES} bytes"
        );
    }
    if let Some(driver) = cx.app.replica.as_ref().filter(|d| !d.is_open()) {
        let mut w = Writer::new();
        w.i32("pandoBackup", 1).str("step", "kept");
        w.str("backup", backup).str("to", to);
        let reply = driver.ask_primary("admin", w.finish().as_doc())?;
        return match refused(reply.as_doc()) {
            Some(why) => bail!(OperationFailed, "the primary has not noted it: {why}"),
            None => Ok(()),
        };
    }
    let noted = document(backup, to);
    stored::save(&mut cx.op, ID, noted.as_doc())
}

fn refused(reply: Doc<'_>) -> Option<&str> {
    let done = reply.get("ok").is_some_and(|v| v.truthy());
    let why = reply.get("errmsg").and_then(|v| v.as_str());
    (!done).then_some(why.unwrap_or("it does not say why"))
}
