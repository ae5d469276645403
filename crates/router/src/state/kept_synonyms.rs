//! Collections of synonyms that a router has read for searches, for later ones.
//!
//! Invariants:
//! - What is given was read under the stamps that the caller has of the collection now.
//! - It is bounded: what was used first of all goes.

use bson::{DocBuf, Value};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The most bytes that are kept for later searches.
const MOST_KEPT_BYTES: usize = 32 << 20;

/// The most collections that are kept.
const MOST_KEPT: usize = 1_000;

/// Collections of synonyms as they were read last.
#[derive(Default)]
pub(crate) struct KeptSynonyms(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_ns: HashMap<String, Entry>,
    bytes: usize,
    /// Counts uses.
    last: u64,
}

struct Entry {
    stamps: DocBuf,
    documents: Arc<Value>,
    used_at: u64,
}

impl KeptSynonyms {
    /// What was read of a collection under these stamps.
    pub fn get(&self, ns: &str, stamps: &DocBuf) -> Option<Arc<Value>> {
        let mut kept = self.0.lock();
        kept.last += 1;
        let now = kept.last;
        let entry = kept.by_ns.get_mut(ns).filter(|e| e.stamps == *stamps)?;
        entry.used_at = now;
        Some(entry.documents.clone())
    }

    /// Keeps what was read under stamps that were taken before.
    pub fn keep(&self, ns: &str, stamps: DocBuf, documents: Arc<Value>) {
        let mut kept = self.0.lock();
        kept.last += 1;
        let used_at = kept.last;
        kept.bytes += documents.as_val().bytes.len();
        let entry = Entry {
            stamps,
            documents,
            used_at,
        };
        let before = kept.by_ns.insert(ns.to_string(), entry);
        kept.bytes -= before.map_or(0, |e| e.documents.as_val().bytes.len());
        while kept.bytes > MOST_KEPT_BYTES || kept.by_ns.len() > MOST_KEPT {
            let oldest = kept.by_ns.iter().min_by_key(|(_, e)| e.used_at);
            let Some(oldest) = oldest.map(|(ns, _)| ns.clone()) else {
                panic!("what is counted is kept");
            };
            let gone = kept.by_ns.remove(&oldest);
            kept.bytes -= gone.map_or(0, |e| e.documents.as_val().bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn documents(bytes: usize) -> Arc<Value> {
        Arc::new(bson::array!["x".repeat(bytes)])
    }

    #[test]
    fn documents_are_kept_under_their_stamps_and_within_bounds() {
        let kept = KeptSynonyms::default();
        let (old, new) = (doc! {"s0": "1"}, doc! {"s0": "2"});
        kept.keep("t.a", old.clone(), documents(10));
        assert!(kept.get("t.a", &old).is_some());
        assert!(kept.get("t.a", &new).is_none(), "it was written to");
        kept.keep("t.a", new.clone(), documents(10));
        assert!(kept.get("t.a", &new).is_some());
        for name in ["t.b", "t.c"] {
            kept.keep(name, old.clone(), documents(MOST_KEPT_BYTES / 2 - 1000));
            assert!(kept.get("t.a", &new).is_some());
        }
        kept.keep("t.d", old.clone(), documents(5000));
        assert!(kept.get("t.b", &old).is_none(), "used first of all");
        assert!(kept.get("t.c", &old).is_some() && kept.get("t.d", &old).is_some());
        assert!(kept.0.lock().bytes <= MOST_KEPT_BYTES);
    }
}
