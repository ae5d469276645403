//! The synonym mappings of an index: read from their collections, and read again when these have changed.
//!
//! Invariant: a mapping is as fresh as the index: a search in a causally consistent session sees what the session has
//! seen.

use crate::follow;
use crate::op::OpCtx;
use ::search::{SynonymMap, SynonymSource, Synonyms};
use bson::Doc;
use catalog::keyspace::{SPACE_RECORD, prefix, prefix_end};
use errors::{Error, Result};
use parking_lot::Mutex;
use query::pipeline::Share;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use storage::Direction;

/// The mappings of one index that searches have asked for.
#[derive(Default)]
pub(super) struct Mappings {
    known: Mutex<HashMap<String, Known>>,
    /// Secrets of [`From::Sent`].
    keys: [RandomState; 2],
}

/// A mapping that was read.
struct Known {
    from: From,
    synonyms: Synonyms,
    _held: Share,
}

/// Where it comes from.
enum From {
    /// A collection, by its id, and news of it; there may be none of that name.
    Collection(Option<[u8; 16]>, follow::LogFollower),
    /// Documents that a router has sent, by hashes of them under keys that no client knows: others with the same
    /// would be taken for them.
    Sent([u64; 2]),
    /// A router could not read it.
    Unread,
}

impl From {
    fn is(&self, other: &From) -> bool {
        match (self, other) {
            (From::Collection(a, news), From::Collection(b, _)) => a == b && !news.has_news(),
            (From::Sent(a), From::Sent(b)) => a == b,
            _ => false,
        }
    }
}

impl Mappings {
    /// A mapping as its collection has it now, in the database `db`.
    pub fn read(&self, ctx: &mut OpCtx<'_>, db: &str, source: &SynonymSource) -> Result<Synonyms> {
        let ns = format!("{db}.{}", source.collection);
        let coll = ctx.catalog().get(&ns).cloned();
        // What is written from now on is news.
        let news = ctx.engine.log_tail.follow(&ns);
        let from = From::Collection(coll.as_ref().map(|c| c.uuid), news);
        if let Some(known) = self.same(&source.name, &from) {
            return Ok(known);
        }
        let mut map = SynonymMap::new(source);
        let mut problem = None;
        match &coll {
            None => {}
            Some(c) if c.is_view() || c.time_series.is_some() => {
                problem = Some(format!("{ns} is no collection of documents"));
            }
            Some(c) => {
                let low = prefix(c.tablet, SPACE_RECORD, 0);
                let view = ctx.engine.store.view();
                let mut scan = view.scan(&low, &prefix_end(&low), Direction::Forward);
                while problem.is_none() && scan.next()? {
                    ctx.check()?;
                    let Some(doc) = Doc::new(scan.value()) else {
                        return Err(Error::internal("a record is damaged").into());
                    };
                    problem = map.add(doc).err();
                }
            }
        }
        self.keep(ctx, source, from, problem.map_or(Ok(map), Err))
    }

    /// A mapping of documents that a router has sent.
    pub fn sent(
        &self,
        ctx: &mut OpCtx<'_>,
        source: &SynonymSource,
        docs: Doc<'_>,
    ) -> Result<Synonyms> {
        let from = From::Sent(
            self.keys
                .each_ref()
                .map(|key| key.hash_one(docs.as_bytes())),
        );
        if let Some(known) = self.same(&source.name, &from) {
            return Ok(known);
        }
        let mut map = SynonymMap::new(source);
        let mut problem = None;
        for doc in docs.values().filter_map(|v| v.as_doc()) {
            ctx.check()?;
            problem = map.add(doc).err();
            if problem.is_some() {
                break;
            }
        }
        self.keep(ctx, source, from, problem.map_or(Ok(map), Err))
    }

    /// What is known of a mapping: whether searches may use it, or why not; `None`: no search has asked for it.
    pub fn state(&self, name: &str) -> Option<std::result::Result<(), String>> {
        let known = self.known.lock();
        let synonyms = &known.get(name)?.synonyms;
        Some(synonyms.as_ref().map(drop).map_err(String::clone))
    }

    /// A router could not read a mapping.
    pub fn unread(&self, ctx: &OpCtx<'_>, name: &str, why: &str) {
        let known = Known {
            from: From::Unread,
            synonyms: Err(why.to_string()),
            _held: ctx.engine.stage_memory.share(),
        };
        self.known.lock().insert(name.to_string(), known);
    }

    fn same(&self, name: &str, from: &From) -> Option<Synonyms> {
        let known = self.known.lock();
        let known = known.get(name).filter(|k| k.from.is(from))?;
        Some(known.synonyms.clone())
    }

    fn keep(
        &self,
        ctx: &mut OpCtx<'_>,
        source: &SynonymSource,
        from: From,
        map: std::result::Result<SynonymMap, String>,
    ) -> Result<Synonyms> {
        let synonyms: Synonyms = map.map(Arc::new);
        let mut held = ctx.engine.stage_memory.share();
        let bytes = synonyms.as_ref().map_or(0, |map| map.bytes());
        held.hold(bytes, "a synonym mapping", || ctx.wait_for_memory())?;
        if let From::Collection(_, news) = &from {
            // So that a write is seen soon, and not with the next sync that something else asks for.
            news.on_news(Box::new(|| {}));
        }
        let known = Known {
            from,
            synonyms: synonyms.clone(),
            _held: held,
        };
        self.known.lock().insert(source.name.clone(), known);
        Ok(synonyms)
    }
}
