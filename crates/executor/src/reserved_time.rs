//! The time up to which states may have been pinned for snapshots of all shards, as the log says it.
//!
//! Invariant: a primary writes nothing at or before what its log said when it began
//! (`Store::begin_after`). So the log of a set up to a time at which a state was pinned is the same for
//! ever, under every primary.

use crate::engine::Engine;
use catalog::keyspace::{self, META_COUNT, META_RESERVED_TIME, Prefix, SPACE_META, SYSTEM_TABLET};
use errors::Result;
use storage::{Effect, Entry, Epoch, View};

/// Where it is stored, as u64 BE.
pub(crate) fn key() -> Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_RESERVED_TIME)
}

/// Where builds before 28 November 2026 have stored it: among the counts of records.
fn old_key() -> Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_COUNT)
}

/// What the log says.
pub fn reserved_time(view: &View) -> Result<u64> {
    let at = |key: Prefix| -> Result<u64> {
        let stored = view.get(&key)?;
        let bytes = stored.and_then(|bytes| <[u8; 8]>::try_from(&*bytes).ok());
        Ok(bytes.map_or(0, u64::from_be_bytes))
    };
    Ok(at(key())?.max(at(old_key())?))
}

/// Has it say a later one. One thread at a time does.
pub fn reserve_time(engine: &Engine, epoch: Epoch, until: u64) -> Result<()> {
    let put = Effect::Put(key().to_vec(), until.to_be_bytes().to_vec());
    engine
        .store
        .propose_in(epoch, vec![Entry::noop(vec![put])])?;
    Ok(())
}
