//! The search for dead ranges: where many keys were deleted, the maintenance thread looks once for
//! living keys, so that the first query behind a mass delete does not step over all of it.
//!
//! One deleted key of 61 is a place to look around (see `batch`), and so is a stretch that a scan
//! has found and that was not quiet yet. A look steps from the place to the next living key on both
//! sides. Other places of the stretch are then known to be dead, and cost a look at the list.

use crate::dead_ranges::behind_all;
use crate::engine::Engine;
use crate::hidden_keys;
use crate::view::{Direction, View};
use errors::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so many steps over hidden keys the rest waits for the next round.
const STEPS_A_ROUND: u64 = 1 << 20;
/// A place is told by its index: `tablet u64 | space u8 | index id u32`.
const PREFIX: usize = 13;
/// How long a look waits for writes in flight, and how often it asks.
const PATIENCE: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(100);

/// Looks around all places that wait.
pub(crate) fn look(engine: &Arc<Engine>) {
    look_around_all(engine);
    engine.dead().end_round();
}

fn look_around_all(engine: &Arc<Engine>) {
    let mut places = engine.dead().take_places();
    let begun = hidden_keys::on_this_thread();
    while let Some(place) = places.pop_front() {
        let steps = hidden_keys::on_this_thread().wrapping_sub(begun);
        if steps > STEPS_A_ROUND {
            return engine.dead().look_around(places);
        }
        // An error is not reported here: a later reader meets it again. Blocks that are not in memory
        // would be missing at the other places of the index too, after as many steps.
        if look_around(engine, &place).is_err() {
            let index = place.get(..PREFIX).unwrap_or_default();
            places.retain(|other| !other.starts_with(index));
        }
    }
}

fn look_around(engine: &Arc<Engine>, place: &[u8]) -> Result<()> {
    let Some(low) = place.get(..PREFIX) else {
        return Ok(());
    };
    let Some(high) = behind_all(low) else {
        return Ok(());
    };
    let dead = engine.dead();
    if dead.covers(place) {
        return Ok(());
    }
    let Some(watch) = dead.watch(low, &high) else {
        return Ok(());
    };
    // The state is taken when all writes have ended that had begun before the watch.
    let begun = Instant::now();
    while dead.ended() < watch && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
    // Nothing is read from the disk for this: the deleting thread has just read the blocks.
    let view = View::snapshot(engine).cached_only();
    let looked = [Direction::Forward, Direction::Backward]
        .into_iter()
        .try_for_each(|direction| {
            let mut scan = view.scan(low, &high, direction);
            scan.seek(place).map(drop)
        });
    dead.forget(low, &high, watch);
    looked
}
