//! The collections of a snapshot, by name and by UUID.
//!
//! Invariant: both maps hold the same collections, each under its own name and its own UUID.

use crate::collection::Collection;
use crate::shared_map::SharedMap;
use std::sync::Arc;

type Uuid = [u8; 16];

#[derive(Clone, Default)]
pub(crate) struct Names {
    by_name: SharedMap<Arc<str>, Arc<Collection>>,
    by_uuid: SharedMap<Uuid, Arc<Collection>>,
    /// How many have a collation of their own.
    collated: usize,
}

fn collation(c: &Collection) -> usize {
    usize::from(c.collation.is_some())
}

impl Names {
    pub fn get(&self, ns: &str) -> Option<&Arc<Collection>> {
        self.by_name.get(ns)
    }

    pub fn by_uuid(&self, uuid: &Uuid) -> Option<&Arc<Collection>> {
        self.by_uuid.get(uuid)
    }

    /// Some collection has a collation of its own.
    pub fn is_collated(&self) -> bool {
        self.collated > 0
    }

    /// Puts a collection under its name, in the place of another that has it. Panics where its UUID
    /// belongs to a collection of another name.
    pub fn insert(&mut self, c: Arc<Collection>) {
        self.collated += collation(&c);
        if let Some(before) = self.by_name.insert(c.ns.clone(), c.clone()) {
            self.collated -= collation(&before);
            let of_uuid = self.by_uuid.remove(&before.uuid);
            assert!(of_uuid.is_some(), "{} is under its UUID too", before.ns);
        }
        let other = self.by_uuid.insert(c.uuid, c.clone());
        let other_ns = other.as_ref().map_or("", |other| &*other.ns);
        assert!(other.is_none(), "{other_ns} and {} have one UUID", c.ns);
    }

    pub fn remove(&mut self, ns: &str) {
        if let Some(gone) = self.by_name.remove(ns) {
            self.collated -= collation(&gone);
            let of_uuid = self.by_uuid.remove(&gone.uuid);
            assert!(of_uuid.is_some(), "{ns} is under its UUID too");
        }
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_name.values()
    }

    /// From the first name that is not before `ns` on.
    pub fn values_from(&self, ns: &str) -> impl Iterator<Item = &Arc<Collection>> + use<'_> {
        self.by_name.values_from(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DocBuf, doc};

    fn collection(ns: &str, number: u8, collated: bool) -> Arc<Collection> {
        let options = match collated {
            true => doc! { "collation": doc! { "locale": "de" } },
            false => DocBuf::new(),
        };
        Arc::new(Collection::new(ns.into(), [number; 16], 1, options).unwrap())
    }

    #[test]
    fn both_maps_hold_the_same() {
        let mut names = Names::default();
        names.insert(collection("d.a", 1, true));
        names.insert(collection("d.b", 2, false));
        assert!(names.is_collated());
        // Another collection of the same name.
        names.insert(collection("d.a", 3, false));
        assert!(!names.is_collated() && names.by_uuid(&[1; 16]).is_none());
        assert_eq!(names.by_uuid(&[3; 16]).map(|c| &*c.ns), Some("d.a"));
        names.remove("d.a");
        assert!(names.by_uuid(&[3; 16]).is_none() && names.get("d.a").is_none());
        assert_eq!(names.by_uuid(&[2; 16]).map(|c| &*c.ns), Some("d.b"));
    }

    #[test]
    #[should_panic(expected = "d.a and d.b have one UUID")]
    fn one_uuid_belongs_to_one_name() {
        let mut names = Names::default();
        names.insert(collection("d.a", 1, false));
        names.insert(collection("d.b", 1, false));
    }
}
