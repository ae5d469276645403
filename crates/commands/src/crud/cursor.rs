//! First and next batches of cursors.

use super::snapshot;
use crate::request::CommandContext;
use crate::security::authorize;
use bson::Doc;
use catalog::Tail;
use errors::Result;
use executor::{PinnedSnapshot, Spent};
use front::idl;
use session::{Cursor, Results};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many documents a first batch has when the client does not say.
pub const FIRST_BATCH: u64 = 101;
/// A batch's documents take at most this much, in bytes; a single larger one is given alone.
pub const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// How a cursor is to be kept.
#[derive(Default)]
pub struct Keep {
    pub single_batch: bool,
    pub no_timeout: bool,
    pub uuid: Option<[u8; 16]>,
    /// What its getMores wait for, when they find nothing.
    pub awaits: Option<Arc<Tail>>,
}

/// The batch size that the document of an argument `cursor` tells, which has nothing else in it.
pub fn read_batch_size(within: &str, d: Doc<'_>) -> Result<Option<u64>> {
    let mut batch = None;
    for e in idl::unique(within, d)? {
        match e.name {
            "batchSize" => batch = idl::unsigned(within, e)?,
            name => return Err(idl::unknown(within, name)),
        }
    }
    Ok(batch)
}

/// A first batch that lacked records from the disk, or was too long for an event loop, before there
/// was anything in it.
pub struct PendingBatch {
    ns: String,
    results: Box<dyn Results>,
    batch: u64,
    keep: Keep,
    snapshot: Option<Arc<PinnedSnapshot>>,
    spent: Spent,
}

/// Goes on with a first batch where it was left: what it read of an index, and to which state, is
/// not read again.
pub fn go_on(cx: &mut CommandContext, begun: PendingBatch) -> Result<()> {
    let PendingBatch {
        ns,
        mut results,
        batch,
        keep,
        snapshot,
        spent,
    } = begun;
    if !cx.op.may_offload() {
        results.read_anywhere();
    }
    cx.op.snapshot = snapshot;
    cx.op.go_on(spent);
    first_batch(cx, &ns, results, batch, keep)
}

/// Writes `cursor: {firstBatch, id, ns}` and keeps the cursor if there is more.
pub fn first_batch(
    cx: &mut CommandContext,
    ns: &str,
    mut results: Box<dyn Results>,
    batch: u64,
    keep: Keep,
) -> Result<()> {
    cx.w.open_doc("cursor").open_array("firstBatch");
    cx.op.may_cut = !keep.single_batch;
    cx.op.may_start_over = !cx.op.has_written() && !cx.after_commit;
    let done = match results.fill(&mut cx.op, &mut cx.w, batch, BATCH_BYTES) {
        Ok(done) => done,
        Err(e) => {
            if e.is_suspension() && results.can_go_on() {
                cx.begun = Some(Box::new(PendingBatch {
                    ns: ns.to_owned(),
                    results,
                    batch,
                    keep,
                    snapshot: cx.op.snapshot.clone(),
                    spent: cx.op.spent(),
                }));
            }
            return Err(e);
        }
    };
    cx.op.may_start_over = false;
    cx.work.returned += cx.w.items() as u64;
    cx.w.close();
    if let Some(token) = results.resume_token() {
        cx.w.doc("postBatchResumeToken", token.as_doc());
    }
    let mut id = 0;
    if !done && !keep.single_batch {
        results.release(&mut cx.op)?;
        let mut c = Cursor::new(ns, results);
        let own = c.results.own_bytes();
        c.share = cx.app.engine.share_for_cursor(own, cx.request.body)?;
        c.lsid = cx.args.generic.lsid;
        c.owner = authorize::name(cx);
        c.txn_number = cx.transaction.as_ref().map(|s| s.number);
        c.no_timeout = keep.no_timeout;
        c.uuid = keep.uuid;
        c.awaits = keep.awaits;
        c.snapshot = cx.op.snapshot.clone();
        c.command = cx.request.body.to_buf();
        c.time_left = match cx.args.generic.max_time_ms {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        };
        id = cx.app.cursors.insert(c);
        cx.client.state.opened.store(id, Ordering::Relaxed);
    }
    cx.w.i64("id", id).str("ns", ns);
    snapshot::append(&cx.op, &mut cx.w);
    cx.w.close();
    Ok(())
}

/// The reply of a cursor without documents.
pub fn empty(cx: &mut CommandContext, ns: &str) {
    let w = &mut cx.w;
    w.open_doc("cursor")
        .open_array("firstBatch")
        .close()
        .i64("id", 0)
        .str("ns", ns);
    snapshot::append(&cx.op, w);
    w.close();
}
