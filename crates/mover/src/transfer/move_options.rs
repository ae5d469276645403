//! The options of a move: which members of the recipient the copy waits for, and its time limit.
//!
//! Invariant: a majority of the recipient has all documents before the owner changes, whatever is asked
//! for.

use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::chunks::Lock;
use cluster_view::metadata::{Cluster, run_as_told};
use cluster_view::write_concern::{acknowledged, more_than_majority};
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use std::time::{Duration, Instant};

/// How long one wait for members takes, before the time limit is checked again.
const SLICE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
pub struct MoveOptions {
    /// After each piece of the copy.
    throttle: Option<DocBuf>,
    until: Option<Instant>,
}

impl MoveOptions {
    /// `maxTimeMS`; 0 is none.
    pub fn within(max_time_ms: u64) -> MoveOptions {
        let until = Instant::now().checked_add(Duration::from_millis(max_time_ms));
        MoveOptions {
            until: until.filter(|_| max_time_ms > 0),
            ..MoveOptions::default()
        }
    }

    /// With `_secondaryThrottle`: the copy waits for this write concern, where it asks for more than a
    /// majority.
    pub fn throttled(mut self, concern: Option<Doc<'_>>) -> MoveOptions {
        let concern = concern.filter(|c| more_than_majority(*c));
        self.throttle = concern.map(Doc::to_buf);
        self
    }

    /// Time that is left; `None` where there is no end.
    pub fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Fails where there is no time left.
    pub fn check(&self) -> Outcome<()> {
        match self.left() {
            Some(Duration::ZERO) => {
                Err(err!(MaxTimeMSExpired, "operation exceeded time limit").into())
            }
            _ => Ok(()),
        }
    }

    /// Waits for the members that the write concern names, at most its `wtimeout`. Does not wait if
    /// another command waits for the lock.
    pub fn wait(&self, cluster: &Cluster, held: &Lock<'_>, shard: &str) -> Outcome<()> {
        let Some(concern) = &self.throttle else {
            return Ok(());
        };
        let most = concern.get("wtimeout").and_then(Val::to_i64_exact);
        let most = most.filter(|ms| *ms > 0);
        let most = most.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let began = Instant::now();
        while !held.is_awaited() {
            self.check()?;
            let left = most.map_or(SLICE, |most| most.saturating_sub(began.elapsed()));
            if left.is_zero() {
                return Ok(());
            }
            match self.ask(cluster, shard, concern.as_doc(), left.min(SLICE)) {
                Err(Failure::Client(e)) if e.code == Code::WriteConcernFailed => {}
                other => return other,
            }
        }
        Ok(())
    }

    fn ask(&self, cluster: &Cluster, shard: &str, concern: Doc<'_>, most: Duration) -> Outcome<()> {
        let most = self.left().map_or(most, |left| most.min(left));
        let mut w = Writer::new();
        w.i32("_pandoTime", 1).open_doc("writeConcern");
        for e in concern.iter().filter(|e| e.name != "wtimeout") {
            w.val(e.name, e.val);
        }
        let millis = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        w.i64("wtimeout", millis.max(1)).close();
        let set = cluster.shard(shard)?;
        let reply = run_as_told(&set, "admin", w.finish().as_doc())?;
        acknowledged(reply).map(drop)
    }
}
