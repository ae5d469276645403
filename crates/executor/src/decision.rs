//! The decision of a prepared transaction on the shard that has prepared it.
//!
//! Invariant: it takes effect once. One thread at a time decides, by the latch of the stored entry, and
//! the decision's entry removes that.

use crate::op::OpCtx;
use crate::prepared::{damaged, entry_of};
use crate::records::latch_hash;
use crate::write_group::Held;
use errors::Result;
use std::sync::atomic::Ordering;
use storage::{Effect, Entry};

/// Commits or aborts the transaction stored under `key`; false if there is none, because it has been
/// decided or was never prepared. `record` adds to the commit's entry what the session is to say.
pub fn decide(
    ctx: &mut OpCtx,
    key: &[u8],
    commits: bool,
    record: impl FnOnce(&mut Entry),
) -> Result<bool> {
    ctx.need_worker()?;
    let latch = ctx.engine.store.latches().acquire(&[latch_hash(key)]);
    let Some(stored) = ctx.newest().get(key)?.map(|v| v.to_vec()) else {
        return Ok(false);
    };
    let mut entry = match commits {
        true => entry_of(&stored).ok_or_else(damaged)?,
        false => Entry::noop(Vec::new()),
    };
    if commits {
        record(&mut entry);
    }
    entry.effects.push(Effect::Delete(key.to_vec()));
    let held = Held {
        latches: Some(latch),
        ..Held::default()
    };
    ctx.commit(vec![entry], held)?;
    let all = &ctx.engine.transactions;
    let ended = if commits {
        &all.committed
    } else {
        &all.aborted
    };
    ended.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}
