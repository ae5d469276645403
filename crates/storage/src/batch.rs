//! A write batch: the changes of one group, each in its family, applied together or not at all.

use crate::engine::{APPLIED_KEY, Engine, Families};
use crate::family::Family;
use crate::{Committed, Effect};
use rocksdb_sys as ffi;

/// The header of the engine's form of a batch: a sequence number, a count.
const HEADER: usize = 12;
/// The engine's tags of changes: what a change is, and whether it names its family.
const DELETE: u8 = 0x0;
const PUT: u8 = 0x1;
const DELETE_IN: u8 = 0x4;
const PUT_IN: u8 = 0x5;
const DELETE_RANGE_IN: u8 = 0xe;
const DELETE_RANGE: u8 = 0xf;
/// One deleted key of this many is reported to the search for dead ranges. A prime: a document is a few
/// keys, in an order that comes again, and each of its indexes has to be told of.
const DELETES_A_PLACE: u32 = 61;

/// Sorting fewer effects than this gains little.
const SORTED_EFFECTS: usize = 16;

/// A reusable write batch of the engine.
pub(crate) struct Batch {
    raw: *mut ffi::rocksdb_writebatch_t,
    families: Families,
    /// Deleted keys since the last that was taken as a place.
    deletes: u32,
    /// Some of the keys that are deleted.
    places: Vec<Box<[u8]>>,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Batch {}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { ffi::rocksdb_writebatch_destroy(self.raw) }
    }
}

impl Batch {
    pub fn new(engine: &Engine) -> Batch {
        Batch::of(engine.families())
    }

    fn of(families: Families) -> Batch {
        // SAFETY: plain allocation.
        let raw = unsafe { ffi::rocksdb_writebatch_create() };
        Batch {
            raw,
            families,
            deletes: 0,
            places: Vec::new(),
        }
    }

    pub fn raw(&self) -> *mut ffi::rocksdb_writebatch_t {
        self.raw
    }

    /// Empties the batch. Its memory is kept unless it is more than `keep_bytes`.
    pub fn clear(&mut self, keep_bytes: usize) {
        self.places.clear();
        if self.len() > keep_bytes {
            let deletes = self.deletes;
            *self = Batch::of(self.families);
            self.deletes = deletes;
        } else {
            // SAFETY: our own batch.
            unsafe { ffi::rocksdb_writebatch_clear(self.raw) }
        }
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY (here and below): the bytes are copied into our own batch; the batch keeps only
        // the number of a family.
        unsafe {
            ffi::rocksdb_writebatch_put_cf(
                self.raw,
                self.families.of(key),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.deletes += 1;
        if self.deletes == DELETES_A_PLACE {
            self.deletes = 0;
            self.places.push(key.into());
        }
        unsafe {
            ffi::rocksdb_writebatch_delete_cf(
                self.raw,
                self.families.of(key),
                key.as_ptr().cast(),
                key.len(),
            );
        }
    }

    pub fn delete_range(&mut self, low: &[u8], high: &[u8]) {
        for &family in Family::of_range(low, high) {
            unsafe {
                ffi::rocksdb_writebatch_delete_range_cf(
                    self.raw,
                    self.families.handle(family),
                    low.as_ptr().cast(),
                    low.len(),
                    high.as_ptr().cast(),
                    high.len(),
                );
            }
        }
    }

    /// Adds the effects of an entry. Many effects are sorted by key: the engine inserts a key
    /// faster when the previous one is nearby. Effects on one key keep their order, and a range
    /// deletion keeps its place.
    pub fn push_all(&mut self, effects: &[Effect]) {
        let ranged = |e: &Effect| matches!(e, Effect::DeleteRange(..));
        if effects.len() < SORTED_EFFECTS || effects.iter().any(ranged) {
            return effects.iter().for_each(|effect| self.push(effect));
        }
        let mut sorted: Vec<&Effect> = effects.iter().collect();
        sorted.sort_by(|a, b| a.key().cmp(b.key()));
        sorted.into_iter().for_each(|effect| self.push(effect));
    }

    pub fn push(&mut self, effect: &Effect) {
        match effect {
            Effect::Put(key, value) => self.put(key, value),
            Effect::Delete(key) => self.delete(key),
            Effect::DeleteRange(low, high) => self.delete_range(low, high),
        }
    }

    /// Adds the applied index: the log is applied up to here with this batch.
    pub fn set_applied(&mut self, at: Committed) {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&at.index.to_le_bytes());
        value[8..].copy_from_slice(&at.ts.to_le_bytes());
        self.put(APPLIED_KEY, &value);
    }

    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// The engine's form of the batch.
    fn bytes(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the bytes of our own batch, which stay until it is changed; that takes
        // `&mut self`.
        unsafe {
            let data = ffi::rocksdb_writebatch_data(self.raw, &mut len);
            std::slice::from_raw_parts(data.cast(), len)
        }
    }

    /// Some of the keys that are deleted, one of many.
    pub fn places(&self) -> &[Box<[u8]>] {
        &self.places
    }

    /// Calls `each` with every key that is put, in order. The bytes read here are those that the engine
    /// gets: no put can be forgotten.
    pub fn each_put(&self, each: &mut dyn FnMut(&[u8])) {
        let mut rest = self.bytes().get(HEADER..).unwrap_or_default();
        while let Some((&tag, behind)) = rest.split_first() {
            rest = change(tag, behind, each).expect("a batch holds puts and deletes only");
        }
    }
}

/// Reads one change of a batch; gives the rest.
fn change<'b>(tag: u8, mut rest: &'b [u8], each: &mut dyn FnMut(&[u8])) -> Option<&'b [u8]> {
    if matches!(tag, PUT_IN | DELETE_IN | DELETE_RANGE_IN) {
        rest = number(rest)?.1;
    }
    let (key, rest) = text(rest)?;
    match tag {
        PUT | PUT_IN => {
            each(key);
            Some(text(rest)?.1)
        }
        DELETE | DELETE_IN => Some(rest),
        DELETE_RANGE | DELETE_RANGE_IN => Some(text(rest)?.1),
        _ => None,
    }
}

/// A number of seven bits a byte, the lowest first.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0usize;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = number(bytes)?;
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};

    #[test]
    fn what_is_put_is_told_in_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        let mut batch = Batch::new(store.engine_itself());
        let key = |space: u8, n: usize| {
            let mut key = vec![0, 0, 0, 0, 0, 0, 0, 9, space, 0, 0, 0, 1];
            key.resize(13 + n, 7);
            key
        };
        let mut put = Vec::new();
        for (n, space) in [(1, 1), (200, 2), (20_000, 4), (0, 0), (130, 3)] {
            batch.delete(&key(space, n + 1));
            batch.put(&key(space, n), &vec![5; n * 3]);
            batch.delete_range(&key(space, 1), &key(space, 9));
            put.push(key(space, n));
        }
        batch.set_applied(Committed::default());
        put.push(APPLIED_KEY.to_vec());
        let mut told = Vec::new();
        batch.each_put(&mut |key| told.push(key.to_vec()));
        assert_eq!(told, put);
        assert!(batch.places().is_empty());
        for n in 0..200 {
            batch.delete(&key(2, n));
        }
        assert_eq!(batch.places().len(), 3, "one of 61");
        batch.clear(0);
        assert!(batch.places().is_empty() && batch.deletes == 205 - 3 * 61);
        batch.each_put(&mut |_| panic!("it is empty"));
        // Each of the keys of a document comes to be a place.
        for _ in 0..1000 {
            for space in [1, 2, 3, 4] {
                batch.delete(&key(space, 5));
            }
        }
        for space in [1, 2, 3, 4] {
            assert!(batch.places().iter().any(|key| key[8] == space));
        }
    }
}
