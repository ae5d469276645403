//! A write batch: the changes of one group, each in its family, applied together or not at all.

use crate::engine::{APPLIED_KEY, Engine, Families};
use crate::family::Family;
use crate::{Committed, Effect};
use rocksdb_sys as ffi;

/// Sorting fewer effects than this gains little.
const SORTED_EFFECTS: usize = 16;

/// A reusable write batch of the engine.
pub(crate) struct Batch {
    raw: *mut ffi::rocksdb_writebatch_t,
    families: Families,
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
        Batch { raw, families }
    }

    pub fn raw(&self) -> *mut ffi::rocksdb_writebatch_t {
        self.raw
    }

    /// Empties the batch. Its memory is kept unless it is more than `keep_bytes`.
    pub fn clear(&mut self, keep_bytes: usize) {
        if self.len() > keep_bytes {
            *self = Batch::of(self.families);
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
        let mut len = 0;
        unsafe { ffi::rocksdb_writebatch_data(self.raw, &mut len) };
        len
    }
}
