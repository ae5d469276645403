//! Stamps of collections: a router that has read one asks by its stamp whether it is still as it was.
//!
//! Invariant: a stamp that comes twice tells that no write has become durable in between, by this process, to the
//! collection of this name. After a restart, or at another member, all stamps are others.

use super::follower::reach_all;
use crate::follow;
use crate::op::OpCtx;
use errors::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The most collections that are watched; the one that was asked for first of all is given up.
const MOST_WATCHED: usize = 256;

/// What is known of collections whose stamps were asked for.
#[derive(Default)]
pub(super) struct Stamps(Mutex<State>);

#[derive(Default)]
struct State {
    /// Tells this process from others; 0 before the first stamp.
    process: u64,
    watched: HashMap<String, Watched>,
    /// Counts changes and questions.
    last: u64,
}

/// A collection that is watched.
struct Watched {
    uuid: Option<[u8; 16]>,
    news: follow::LogFollower,
    changed: u64,
    asked_at: u64,
}

/// What a shard tells of a collection.
pub struct CollectionStamp {
    pub text: String,
    /// There is a collection of that name that holds documents, or none.
    pub plain: bool,
}

impl Stamps {
    fn of(&self, ctx: &mut OpCtx<'_>, ns: &str) -> CollectionStamp {
        let coll = ctx.catalog().get(ns).cloned();
        let uuid = coll.as_ref().map(|c| c.uuid);
        let mut state = self.0.lock();
        if state.process == 0 {
            state.process = RandomState::new().build_hasher().finish().max(1);
        }
        state.last += 1;
        let now = state.last;
        let known = state.watched.get(ns);
        if known.is_none_or(|w| w.uuid != uuid || w.news.has_news()) {
            // What is written from now on is news.
            let news = ctx.engine.log_tail.follow(ns);
            // So that a write is seen soon, and not with the next sync that something else asks for.
            news.on_news(Box::new(|| {}));
            let watched = Watched {
                uuid,
                news,
                changed: now,
                asked_at: now,
            };
            state.watched.insert(ns.to_string(), watched);
        }
        let changed = match state.watched.get_mut(ns) {
            Some(watched) => {
                watched.asked_at = now;
                watched.changed
            }
            None => now,
        };
        if state.watched.len() > MOST_WATCHED {
            let oldest = state.watched.iter().min_by_key(|(_, w)| w.asked_at);
            let oldest = oldest.map(|(ns, _)| ns.clone());
            oldest.and_then(|ns| state.watched.remove(&ns));
        }
        CollectionStamp {
            text: format!("{:016x}-{changed}", state.process),
            plain: coll.is_none_or(|c| !c.is_view() && c.time_series.is_none()),
        }
    }
}

/// The stamp of a collection. `causal`: it tells of all that is acknowledged here, and not only of what is durable.
pub fn stamp(ctx: &mut OpCtx<'_>, ns: &str, causal: bool) -> Result<CollectionStamp> {
    let engine = ctx.engine.clone();
    let stamp = engine.search.stamps.of(ctx, ns);
    if !causal {
        return Ok(stamp);
    }
    // The log's tail reads on as long as something is watched, which is so from here on.
    ctx.need_worker()?;
    reach_all(ctx, &engine.log_tail, engine.store.last_index())?;
    Ok(engine.search.stamps.of(ctx, ns))
}
