//! The resolver: ends transactions over several shards whose router is gone, and tells shards of
//! settings that they have not heard of.
//!
//! It is a client in the process that leads the configuration set, as the balancer is one. What it
//! finds on a shard in two looks, some seconds apart, is left: a commit takes less.
//!
//! Invariant: to end a transaction, the shard that coordinates it is asked first. So it does no harm to
//! one whose router lives and is slow, but that it may be aborted.

use crate::settings::Teller;
use crate::two_phase::{Id, TwoPhase};
use cluster_view::metadata::Cluster;
use sharding::two_phase::{Coordinator, Shard, Verdict};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);
/// How long something waits before it counts as left.
const LEFT: Duration = Duration::from_secs(5);
/// How long a round waits, in all, for shards to have a primary.
const REACHED: Duration = Duration::from_secs(1);

type Key = (Shard, Vec<u8>, i64);

/// Transactions seen, and when first.
#[derive(Default)]
struct Seen(HashMap<Key, Instant>);

impl Seen {
    /// Whether it was first seen long enough ago.
    fn is_left(&mut self, key: Key, now: Instant, round: &mut HashMap<Key, Instant>) -> bool {
        let first = self.0.get(&key).copied().unwrap_or(now);
        round.insert(key, first);
        now.duration_since(first) >= LEFT
    }
}

/// What rounds remember.
#[derive(Default)]
pub struct Resolver {
    seen: Seen,
    teller: Teller,
}

impl Resolver {
    /// One round: one message to each shard that has a primary. The others are looked at in the next
    /// round: a shard whose members are gone does not keep transactions of other shards waiting.
    pub fn look(&mut self, cluster: &Cluster) -> cluster_view::Outcome<()> {
        let mut round = HashMap::new();
        let mut shards = cluster.shard_names()?;
        cluster.retain_reached(&mut shards, String::as_str, REACHED)?;
        self.teller.look(cluster, &shards)?;
        for shard in shards {
            let shard = Shard::from(shard);
            let in_doubt = match cluster.in_doubt_on(&shard) {
                Ok(in_doubt) => in_doubt,
                Err(_) => continue,
            };
            for one in in_doubt {
                let (session, number) = one.id.key();
                let key = (shard.clone(), session, number);
                if self.seen.is_left(key, Instant::now(), &mut round) {
                    let recovery = one.recovery.unwrap_or_else(|| shard.clone());
                    resolve(cluster, &one.id, &recovery, one.participants);
                }
            }
        }
        self.seen.0 = round;
        Ok(())
    }
}

fn resolve(cluster: &Cluster, id: &Id, recovery: &Shard, others: Vec<Shard>) {
    let steps = Coordinator::recover(recovery.clone(), others.clone());
    let ended = cluster.end(id, recovery, steps, None);
    let outcome = match ended.verdict {
        Verdict::Committed => "committed",
        Verdict::Aborted => "aborted",
        Verdict::Unknown => "not known yet",
    };
    tracing::info!(
        target: "SHARDING", transaction = ?id, recovery_shard = &**recovery, shards = ?others, outcome,
        "A transaction over several shards was left by its router"
    );
}

/// Resolves for ever, in a thread of its own, while `leads` says that this process is to.
pub fn run(
    cluster: Arc<Cluster>,
    leads: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<()> {
    let work = move || {
        let mut resolver = Resolver::default();
        loop {
            std::thread::sleep(PAUSE);
            match leads() {
                true => {
                    if let Err(e) = resolver.look(&cluster) {
                        tracing::debug!(target: "SHARDING", error = %e, "Left transactions could not be looked for");
                    }
                }
                false => resolver = Resolver::default(),
            }
        }
    };
    std::thread::Builder::new()
        .name("resolver".into())
        .spawn(work)
        .map(drop)
}
