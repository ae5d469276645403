//! Leases on the logs of those that give: what movers have still to read is kept for them.
//!
//! Invariant: every member of a donor keeps its log, since each may become primary; and all donors of a
//! transfer are renewed together, while only one of them is copied.

use super::copy::CopyRoute;
use bson::{DocBuf, Writer, doc};
use cluster_view::upstream::{message, with_fields};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the leases on donors' logs are renewed.
const RENEWED: Duration = Duration::from_secs(5);

/// The logs that are kept, and up to which entry each was read.
#[derive(Default)]
pub(super) struct LogLeases {
    places: Mutex<BTreeMap<Arc<str>, i64>>,
    /// When that was said last.
    renewed: Mutex<Option<Instant>>,
}

impl LogLeases {
    /// Those whose logs are kept.
    pub fn donors(&self) -> Vec<Arc<str>> {
        self.places.lock().keys().cloned().collect()
    }

    pub fn is_due(&self) -> bool {
        let renewed = *self.renewed.lock();
        renewed.is_none_or(|renewed| renewed.elapsed() > RENEWED)
    }
}

impl CopyRoute<'_> {
    /// Takes or renews the leases: this donor's log was read up to `after`.
    pub fn keep_logs(&self, shard: &Arc<str>, after: i64) {
        let all = {
            let mut places = self.leases.places.lock();
            places.insert(shard.clone(), after);
            places.clone()
        };
        for (shard, after) in all {
            if let Ok(set) = self.cluster.shard(&shard) {
                set.tell_all(&self.to_each(doc! {"after": after, "renew": true}));
            }
        }
        *self.leases.renewed.lock() = Some(Instant::now());
    }

    /// A donor's log need not be kept any more. A member that does not answer is not waited for; it
    /// drops the lease itself.
    pub fn let_go_of_log(&self, shard: &str) {
        self.leases.places.lock().remove(shard);
        let said = self.to_each(doc! {"end": true});
        if let Ok(set) = self.cluster.shard(shard) {
            let tell = move || set.tell_all(&said);
            let _ = std::thread::Builder::new().name("lease".into()).spawn(tell);
        }
    }

    /// What says something of the lease to a donor.
    pub fn of_lease(&self, what: &DocBuf) -> DocBuf {
        let mut w = Writer::new();
        w.i32("_pandoChanges", 1)
            .str("ns", self.ns)
            .str("lease", &self.held.fence())
            .extend(what.as_doc());
        w.finish()
    }

    /// A message about the lease to each member of a donor.
    fn to_each(&self, what: DocBuf) -> Vec<u8> {
        let by_any = doc! {"mode": "primaryPreferred"};
        let to_each = doc! {"$db": "admin", "$readPreference": by_any};
        let said = with_fields(self.of_lease(&what).as_doc(), to_each.as_doc());
        message(said.as_doc(), &[])
    }
}
