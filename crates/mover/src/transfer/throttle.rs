//! Throttles copying while the shards of both sides serve routers ([`Pace`]).
//!
//! Invariant: a request to shards for the throttle never fails a move.

use bson::{Val, doc};
use cluster_view::chunks::Lock;
use cluster_view::metadata::Cluster;
use sharding::pace::Pace;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Throttle<'m> {
    cluster: &'m Cluster,
    held: &'m Lock<'m>,
    began: Instant,
    shards: Vec<(Arc<str>, Pace)>,
    /// The least pause, as the shards report it.
    least: Duration,
    /// How long it has rested in all.
    paused: Duration,
    /// Those that documents are put at, and how many messages at once each wants.
    recipients: Vec<(Arc<str>, usize)>,
}

impl<'m> Throttle<'m> {
    pub fn new(
        cluster: &'m Cluster,
        held: &'m Lock<'m>,
        shards: Vec<Arc<str>>,
        recipients: &[Arc<str>],
    ) -> Throttle<'m> {
        let mut throttle = Throttle {
            cluster,
            held,
            began: Instant::now(),
            shards: shards.into_iter().map(|s| (s, Pace::default())).collect(),
            least: Duration::ZERO,
            paused: Duration::ZERO,
            recipients: recipients
                .iter()
                .map(|recipient| (recipient.clone(), 1))
                .collect(),
        };
        throttle.ask();
        throttle
    }

    fn ask(&mut self) {
        let mut least = Duration::ZERO;
        let mut asked = false;
        for (shard, pace) in &mut self.shards {
            if !pace.asks(self.began.elapsed()) {
                continue;
            }
            let question = doc! {"_pandoServed": 1};
            let Ok(reply) = self.cluster.on_shard(shard, "admin", question.as_doc()) else {
                continue;
            };
            let number = |name: &str| reply.get(name).and_then(Val::to_i64_exact);
            let served = number("served").unwrap_or(0).unsigned_abs();
            pace.heard(served, self.began.elapsed());
            let pause = number("pauseMillis").unwrap_or(0).unsigned_abs();
            least = least.max(Duration::from_millis(pause));
            let copiers = number("copiers").and_then(|n| usize::try_from(n).ok());
            for (_, at_once) in self
                .recipients
                .iter_mut()
                .filter(|(recipient, _)| recipient == shard)
            {
                *at_once = copiers.unwrap_or(1);
            }
            asked = true;
        }
        if asked {
            self.least = least;
        }
    }

    /// After work that has begun then. No pause beyond the least while another command waits for the
    /// lock.
    pub fn after(&mut self, work: Instant) {
        self.ask();
        let (worked, since) = (work.elapsed(), self.began.elapsed());
        let rest = self
            .shards
            .iter()
            .map(|(_, pace)| pace.rest(worked, since))
            .max();
        let rest = match self.held.is_awaited() {
            true => Duration::ZERO,
            false => rest.unwrap_or_default(),
        };
        let rest = rest.max(self.least);
        std::thread::sleep(rest);
        self.paused += rest;
    }

    /// Of the time since the beginning the part in which it did not rest.
    pub fn share(&self) -> f64 {
        let all = self.began.elapsed().as_secs_f64();
        match all > 0.0 {
            true => (1.0 - self.paused.as_secs_f64() / all).clamp(0.0, 1.0),
            false => 1.0,
        }
    }

    /// Documents of one piece of work.
    pub fn documents(&self) -> usize {
        let each = self
            .shards
            .iter()
            .map(|(_, pace)| pace.documents(self.began.elapsed()));
        each.min().unwrap_or(1)
    }

    /// How many messages are in flight to a recipient at once: the least that any of them reports.
    pub fn copiers(&self) -> usize {
        self.recipients
            .iter()
            .map(|(_, at_once)| *at_once)
            .min()
            .unwrap_or(1)
    }

    pub fn is_idle(&self) -> bool {
        self.shards.iter().all(|(_, pace)| pace.is_idle())
    }
}
