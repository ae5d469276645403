//! The TTL monitor: deletes documents whose time is over, as TTL indexes and clustered collections
//! say.
//!
//! A thread wakes every `ttlMonitorSleepSecs` and makes passes over all TTL indexes until none of them
//! has anything left. Each index gets a turn of bounded length, so that one with much to delete does not
//! hold up the others; within a turn the batches go through the ordinary write path, each followed by a
//! pause as long as the batch took, so that clients have at least half of the time.

use crate::Commands;
use crate::settings::parameters::Parameters;
use catalog::{Collection, IndexState};
use errors::{Error, Result};
use executor::{Engine, OpCtx};
use service::Control;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(500);
/// Documents of a batch: latched together, so kept few.
const BATCH: usize = 256;
/// An index's turn ends after this.
const TURN: Duration = Duration::from_secs(1);
const TURN_DOCS: u64 = 50_000;

/// `metrics.ttl` of serverStatus.
#[derive(Debug, Default)]
pub struct TtlCounters {
    pub deleted: AtomicU64,
    pub passes: AtomicU64,
    pub sub_passes: AtomicU64,
}

/// A collection with documents to expire.
struct Target {
    coll: Arc<Collection>,
    /// The TTL index; none: a clustered collection's own `_id`.
    index: Option<String>,
    seconds: i64,
}

struct Expirer {
    engine: Weak<Engine>,
    parameters: Weak<Parameters>,
    control: Weak<Control>,
    /// Only the primary removes: the others are told what it removed.
    replica: Option<::replication::Driver>,
    figures: Arc<TtlCounters>,
}

/// Starts the thread, which runs for as long as the commands are there.
pub fn start(c: &Commands) -> Result<()> {
    let expirer = Expirer {
        engine: Arc::downgrade(&c.engine),
        parameters: Arc::downgrade(&c.parameters),
        control: Arc::downgrade(&c.control),
        replica: c.replica.clone(),
        figures: c.expired.clone(),
    };
    let run = move || {
        let mut last = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            match expirer.is_due(last) {
                None => return,
                Some(false) => continue,
                Some(true) => {}
            }
            last = Instant::now();
            if expirer.pass().is_none() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("ttl".into()).spawn(run);
    started
        .map(|_| ())
        .map_err(|e| Error::internal(format!("cannot start a thread: {e}")).into())
}

impl Expirer {
    /// Whether it may work; `None` when the server has ended.
    fn is_enabled(&self) -> Option<bool> {
        if self.control.upgrade()?.is_stopping() {
            return None;
        }
        let is_primary = self.replica.as_ref().is_none_or(|r| r.is_open());
        Some(is_primary && self.parameters.upgrade()?.bool("ttlMonitorEnabled"))
    }

    fn is_due(&self, last: Instant) -> Option<bool> {
        let pause = self.parameters.upgrade()?.int("ttlMonitorSleepSecs");
        let due = last.elapsed() >= Duration::from_secs(pause.unsigned_abs().max(1));
        Some(self.is_enabled()? && due)
    }

    /// Turns for all targets, until none has anything left.
    fn pass(&self) -> Option<()> {
        loop {
            let mut more = false;
            for target in targets(&*self.engine.upgrade()?) {
                if !self.is_enabled()? {
                    return Some(());
                }
                more |= !self.turn(&target)?;
            }
            self.figures.sub_passes.fetch_add(1, Relaxed);
            if !more {
                break;
            }
        }
        self.figures.passes.fetch_add(1, Relaxed);
        Some(())
    }

    /// One turn of a target; whether nothing was left.
    fn turn(&self, target: &Target) -> Option<bool> {
        let before = crate::clock::now_millis().saturating_sub(target.seconds.saturating_mul(1000));
        let (begun, mut deleted) = (Instant::now(), 0);
        while begun.elapsed() < TURN && deleted < TURN_DOCS {
            let engine = self.engine.upgrade()?;
            if engine.fsync_lock.is_closed() {
                return Some(true);
            }
            let (batch, index) = (Instant::now(), target.index.as_deref());
            let mut op = OpCtx::worker(&engine);
            let expired = match target.coll.measurements() {
                None => executor::expire(&mut op, &target.coll, index, before, BATCH),
                Some(_) => executor::expire_measurements(&mut op, &target.coll, before, BATCH)
                    .map(|(deleted, done)| executor::Expired { deleted, done }),
            };
            match expired {
                Ok(e) => {
                    deleted += e.deleted;
                    self.figures.deleted.fetch_add(e.deleted, Relaxed);
                    // What could not be deleted now would be found again at once.
                    if e.done || e.deleted == 0 {
                        return Some(true);
                    }
                }
                Err(e) => {
                    tracing::warn!(target: "INDEX", id = 5400703, namespace = &*target.coll.ns, index,
                        error = %e, "Error running TTL job on collection");
                    return Some(true);
                }
            }
            drop(engine);
            std::thread::sleep(batch.elapsed().clamp(Duration::from_millis(1), TURN));
            if !self.is_enabled()? {
                return Some(true);
            }
        }
        Some(false)
    }
}

fn targets(engine: &Engine) -> Vec<Target> {
    let mut all = Vec::new();
    for coll in engine.catalog.snapshot().all() {
        let clustered = coll.option("clusteredIndex").is_some() || coll.measurements().is_some();
        if let Some(seconds) = coll
            .option("expireAfterSeconds")
            .filter(|_| clustered)
            .and_then(|v| v.to_i64_truncated())
        {
            all.push(Target {
                coll: coll.clone(),
                index: None,
                seconds,
            });
        }
        for index in coll.secondary() {
            let seconds = index
                .spec
                .get("expireAfterSeconds")
                .and_then(|v| v.to_i64_truncated());
            if let (Some(seconds), IndexState::Ready) = (seconds, index.state) {
                all.push(Target {
                    coll: coll.clone(),
                    index: Some(index.name().to_string()),
                    seconds,
                });
            }
        }
    }
    all
}
