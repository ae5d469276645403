//! Record cache: whole records in memory, found by key with one probe. A hit costs a tenth of a
//! read from the engine's block cache.
//!
//! It holds records only. A record enters when it is read by key (not by a scan), and stays when it
//! is changed. The cache has a variable [share](crate::cache_balance) of the memory budget. When a
//! shard is over its part, a clock hand evicts rows that were not read since the hand last passed.
//! A row that is read often survives several passes.
//!
//! Admission: once a shard is full, most records would be evicted before they are read again. So a
//! first miss leaves only a mark; the record enters when it is missed again while the mark is
//! there.
//!
//! Invariant: a row is the newest value of its key, and has been since the engine's sequence number
//! `since`. So a read of the newest state may always use it, and a snapshot may when it is not
//! older than `since`. A writer that changes or deletes a record keeps the invariant by two steps
//! around the engine's write (inserting a new record needs none):
//!
//! ```text
//! begin    each key's shard: one more writer; the row is taken out          a reader may put nothing into the shard now
//! write    the engine applies the batch
//! finish   each key's shard: one writer less; changed := the newest sequence number; what had been there comes back, new
//! ```
//!
//! After a miss the reader reads the engine and offers the value. The value enters if no writer is
//! in the shard and nothing in the shard changed after the state that was read. Its `since` is a
//! state in which the record certainly existed: the snapshot's, or the newest after the read.

use crate::Effect;
use crate::cache_balance::WINDOW;
use crate::family::Family;
use crate::ghost_list::Ghost;
use parking_lot::{Mutex, MutexGuard};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 128;
/// The space byte of a key: `tablet u64 | space u8 | …`.
pub(crate) const SPACE_AT: usize = 8;
pub(crate) const RECORD_SPACE: u8 = 1;
pub(crate) const ID_SPACE: u8 = 4;
/// The overhead of a row: a slot and half a mark, in tables that are half full on average.
const SLOT_BYTES: usize = 2 * size_of::<Option<Slot>>() + size_of::<u16>();
/// The reference counters of an `Arc`.
const COUNTER_BYTES: usize = 16;
/// The assumed size of an evicted row; see [`Ghost::new`].
const TYPICAL_ROW_BYTES: usize = 256;
/// There is at least one mark for each so many bytes of the whole cache.
const CACHE_BYTES_PER_MARK: usize = 1024;
/// The highest read count of a row: how many passes of the clock hand it can survive.
const HOTTEST: u8 = 3;
/// While rows fill at least this percentage of the memory that the allocator holds for them, they
/// are evicted one by one.
const WELL_USED: usize = 85;
/// The size of the allocator's pages for rows. A page returns to the system when all of it is free.
const PAGE_BITS: u32 = 16;
/// The slots of a new shard.
const FIRST_SLOTS: usize = 16;

/// A row: the key, then the value.
pub(crate) type Row = Arc<[u8]>;

struct Slot {
    hash: u64,
    key_len: u32,
    /// The read count, up to [`HOTTEST`]. The clock hand subtracts one when it passes.
    heat: u8,
    since: u64,
    row: Row,
}

struct Shard {
    /// Open addressing with linear probing, never more than three quarters full; the length is a
    /// power of two.
    slots: Vec<Option<Slot>>,
    /// Marks of records that were missed and not admitted: 16 bits of a hash each. A later mark
    /// replaces an earlier one.
    seen: Vec<u16>,
    count: usize,
    bytes: usize,
    hand: usize,
    writers: u32,
    /// No key of this shard changed after this sequence number.
    changed: u64,
}

/// Aligned to its own cache lines, to avoid false sharing.
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

pub(crate) struct Rows {
    shards: Box<[Aligned]>,
    shard_bytes: AtomicUsize,
    /// The most bytes that rows have taken since memory was last given back. The allocator may
    /// still hold that much.
    held_bytes: AtomicUsize,
    seed: u64,
    ghost: Ghost,
}

/// The record keys that a write touches, between `begin` and `finish`.
#[derive(Default)]
pub(crate) struct Writing {
    /// The hash of each record key that is put or deleted, in order, and whether its row was
    /// cached.
    keys: Vec<(u64, bool)>,
    /// A range is deleted: all shards are concerned.
    all: bool,
}

pub(crate) fn is_record(key: &[u8]) -> bool {
    key.get(SPACE_AT) == Some(&RECORD_SPACE)
}

/// The record key of an effect on one record.
fn record_key(effect: &Effect) -> Option<&[u8]> {
    match effect {
        Effect::Put(key, _) | Effect::Delete(key) => is_record(key).then_some(&key[..]),
        Effect::DeleteRange(..) => None,
    }
}

impl Rows {
    /// `bytes`: the initial share of the `cache_bytes`.
    pub fn new(bytes: usize, cache_bytes: usize) -> Rows {
        // As many marks as there could be rows, even while there are few. With fewer marks a record
        // that is read now and then would look like one that is read once, and more memory for rows
        // would seem useless.
        let marks = (cache_bytes / CACHE_BYTES_PER_MARK / SHARDS).next_power_of_two();
        let shard = || {
            Aligned(Mutex::new(Shard {
                slots: Vec::new(),
                seen: vec![0; marks],
                count: 0,
                bytes: 0,
                hand: 0,
                writers: 0,
                changed: 0,
            }))
        };
        // A seed against keys that were made to collide; an address is random enough.
        let seed = &raw const bytes as u64 ^ u64::from(std::process::id()) << 32;
        Rows {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            shard_bytes: AtomicUsize::new(bytes / SHARDS),
            held_bytes: AtomicUsize::new(0),
            seed: seed | 1,
            ghost: Ghost::new(cache_bytes / WINDOW, TYPICAL_ROW_BYTES),
        }
    }

    pub fn hash(&self, key: &[u8]) -> u64 {
        let mix = |a: u64, b: u64| {
            let wide = u128::from(a) * u128::from(b);
            wide as u64 ^ (wide >> 64) as u64
        };
        let mut state = self.seed ^ key.len() as u64;
        for chunk in key.chunks(16) {
            let word = |part: &[u8]| {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                u64::from_le_bytes(bytes)
            };
            let (low, high) = chunk.split_at(chunk.len().min(8));
            state = mix(
                state ^ word(low) ^ 0x9e37_79b9_7f4a_7c15,
                word(high) ^ 0xe703_7ed1_a0b4_28db,
            );
        }
        mix(state, 0x8ebc_6af0_9c88_c6e3)
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        // The low bits find the slot.
        let at = (hash >> 57) as usize % SHARDS;
        self.shards.get(at).map(|shard| shard.0.lock())
    }

    /// The row under `key` as a state at `sequence` sees it (the newest: `u64::MAX`).
    pub fn get(&self, hash: u64, key: &[u8], sequence: u64) -> Option<Row> {
        let mut shard = self.shard(hash)?;
        if shard.writers > 0 {
            return None;
        }
        let at = shard.find(hash, key)?;
        let slot = shard.slots.get_mut(at)?.as_mut()?;
        if slot.since > sequence {
            return None;
        }
        slot.heat = (slot.heat + 1).min(HOTTEST);
        Some(slot.row.clone())
    }

    /// Prefetches the rows of these hashes, so that their cache misses overlap. A hint: a
    /// prefetched row may be another key's, or evicted before it is read.
    pub fn prefetch(&self, hashes: &[u64]) {
        for &hash in hashes {
            if let Some(shard) = self.shard(hash)
                && let Some(slot) = shard.slots.get(hash as usize & shard.mask())
            {
                prefetch(ptr::from_ref(slot).cast(), size_of::<Option<Slot>>());
            }
        }
        for &hash in hashes {
            if let Some(shard) = self.shard(hash)
                && let Some(row) = shard.at_home(hash)
            {
                // The `Arc`'s counters lie before the bytes, in the same cache line or the one
                // before.
                prefetch(row.as_ptr().wrapping_sub(16), row.len().min(256));
            }
        }
    }

    /// Offers the value that the engine had under `key`. The value includes all changes up to
    /// `sequence`, and the record existed at `since`.
    pub fn offer(&self, hash: u64, key: &[u8], value: &[u8], sequence: u64, since: u64) {
        let limit = self.shard_bytes();
        let cost = cost(key.len() + value.len());
        if cost > limit / 8 {
            return;
        }
        let fits = |shard: &mut Shard| {
            shard.bytes + cost <= limit || shard.find(hash, key).is_some() || shard.was_seen(hash)
        };
        if !self.shard(hash).is_some_and(|mut shard| fits(&mut shard)) {
            return;
        }
        // Copied before the shard is locked.
        let row = join(key, value);
        let Some(mut shard) = self.shard(hash) else {
            return;
        };
        if shard.writers == 0 && shard.changed <= sequence {
            shard.put(hash, key.len(), row, since, limit, &self.ghost);
        }
    }

    /// Before the engine's write.
    pub fn begin<'a>(&self, effects: impl Iterator<Item = &'a Effect>, writing: &mut Writing) {
        writing.keys.clear();
        writing.all = false;
        for effect in effects {
            if let Some(key) = record_key(effect) {
                let hash = self.hash(key);
                let Some(mut shard) = self.shard(hash) else {
                    continue;
                };
                shard.writers += 1;
                let was_here = shard.find(hash, key).is_some_and(|at| shard.take(at));
                writing.keys.push((hash, was_here));
            } else if let Effect::DeleteRange(low, high) = effect {
                writing.all |= Family::of_range(low, high).contains(&Family::Records);
            }
        }
        if writing.all {
            for shard in &self.shards {
                let mut shard = shard.0.lock();
                shard.writers += 1;
                shard.clear();
            }
        }
    }

    /// After the engine's write, whether or not it succeeded (`written`). `sequence` is the
    /// engine's newest.
    pub fn finish<'a>(
        &self,
        effects: impl Iterator<Item = &'a Effect>,
        writing: &Writing,
        sequence: u64,
        written: bool,
    ) {
        let limit = self.shard_bytes();
        let mut keys = writing.keys.iter();
        for effect in effects.filter(|e| record_key(e).is_some()) {
            let Some(&(hash, was_here)) = keys.next() else {
                panic!("a write ends with the keys that it has begun with");
            };
            let Some(mut shard) = self.shard(hash) else {
                continue;
            };
            assert!(shard.writers > 0, "a write that ends has begun");
            shard.writers -= 1;
            shard.changed = sequence;
            // A later effect of the same batch may concern the same key; `get` ignores the row
            // until the last of them is finished.
            match effect {
                Effect::Put(key, value) if written => {
                    let cost = cost(key.len() + value.len());
                    if !writing.all && cost <= limit / 8 && was_here {
                        let row = join(key, value);
                        shard.put(hash, key.len(), row, sequence, limit, &self.ghost);
                    } else if let Some(at) = shard.find(hash, key) {
                        shard.take(at);
                    }
                }
                Effect::Put(key, _) | Effect::Delete(key) => {
                    if let Some(at) = shard.find(hash, key) {
                        shard.take(at);
                    }
                }
                Effect::DeleteRange(..) => {}
            }
        }
        assert!(keys.next().is_none(), "a write ends for each of its keys");
        if writing.all {
            for shard in &self.shards {
                let mut shard = shard.0.lock();
                assert!(shard.writers > 0, "a write that ends has begun");
                shard.writers -= 1;
                shard.changed = sequence;
            }
        }
    }

    /// The limit of one shard, in bytes.
    fn shard_bytes(&self) -> usize {
        self.shard_bytes.load(Ordering::Relaxed)
    }

    /// Sets the limit of all rows, in bytes. Rows over the limit are evicted at once.
    pub fn set_bytes(&self, bytes: usize) {
        let limit = bytes / SHARDS;
        self.shard_bytes.store(limit, Ordering::Relaxed);
        let held = self.held_bytes.load(Ordering::Relaxed).max(self.used());
        let give_back = bytes < held / 100 * WELL_USED;
        self.held_bytes
            .store(if give_back { bytes } else { held }, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            if give_back {
                shard.leave_pages(limit, self.seed ^ bytes as u64, &self.ghost);
            }
            shard.shrink(limit, &self.ghost);
        }
    }

    /// Notes that a block had to be read for the record under `key`.
    pub fn lacked(&self, key: &[u8]) {
        self.ghost.comes(self.hash(key));
    }

    /// See [`Ghost::take_spared`].
    pub fn take_spared(&self) -> (u64, u64) {
        self.ghost.take_spared()
    }

    /// Bytes in all shards.
    pub fn used(&self) -> usize {
        self.shards.iter().map(|s| s.0.lock().bytes).sum()
    }
}

/// The memory that a row of so many bytes takes. The allocator has four size classes between two
/// powers of two.
fn cost(len: usize) -> usize {
    let len = len + COUNTER_BYTES;
    len.next_multiple_of((len.next_power_of_two() / 8).max(16)) + SLOT_BYTES
}

/// Key and value in one allocation.
fn join(key: &[u8], value: &[u8]) -> Row {
    let mut row = Arc::<[u8]>::new_uninit_slice(key.len() + value.len());
    if let Some(bytes) = Arc::get_mut(&mut row) {
        let (head, tail) = bytes.split_at_mut(key.len());
        for (to, from) in [(head, key), (tail, value)] {
            // SAFETY: both are `from.len()` long and do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), from.len());
            }
        }
    }
    // SAFETY: a new Arc has one owner, so all bytes were written.
    unsafe { row.assume_init() }
}

/// Prefetches the cache lines of `[at, at + len)`. Nothing is read, so any address is allowed.
fn prefetch(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

impl Slot {
    fn cost(&self) -> usize {
        cost(self.row.len())
    }
}

impl Shard {
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mask = self.mask();
        let mut at = hash as usize & mask;
        // This loop ends: the table always has empty slots.
        while let Some(slot) = self.slots.get(at)?.as_ref() {
            if slot.hash == hash && slot.row.get(..slot.key_len as usize) == Some(key) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// The first row with this hash, probing from its home slot; keys are not compared.
    fn at_home(&self, hash: u64) -> Option<&Row> {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        while let Some(slot) = self.slots.get(at)?.as_ref() {
            if slot.hash == hash {
                return Some(&slot.row);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Empties a slot and closes the gap in the probe sequences of other rows. Always true.
    fn take(&mut self, mut gap: usize) -> bool {
        let mask = self.mask();
        if let Some(slot) = self.slots.get_mut(gap).and_then(Option::take) {
            self.bytes -= slot.cost();
            self.count -= 1;
        }
        let mut at = (gap + 1) & mask;
        while let Some(slot) = self.slots.get(at).and_then(Option::as_ref) {
            let home = slot.hash as usize & mask;
            // A row may move into the gap when the gap lies in its probe sequence.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.slots.swap(at, gap);
                gap = at;
            }
            at = (at + 1) & mask;
        }
        true
    }

    fn put(
        &mut self,
        hash: u64,
        key_len: usize,
        row: Row,
        since: u64,
        limit_bytes: usize,
        ghost: &Ghost,
    ) {
        let slot = Slot {
            hash,
            key_len: key_len as u32,
            heat: 0,
            since,
            row,
        };
        let key = &slot.row[..key_len];
        if let Some(at) = self.find(hash, key) {
            self.take(at);
        }
        self.bytes += slot.cost();
        self.count += 1;
        while self.bytes > limit_bytes && self.count > 1 {
            self.evict(ghost);
        }
        if self.count * 4 > self.slots.len() * 3 {
            self.resize(self.slots.len() * 2);
        }
        self.place(slot);
    }

    /// Puts the row into the first empty slot from its home slot on.
    fn place(&mut self, slot: Slot) {
        let mask = self.mask();
        let mut at = slot.hash as usize & mask;
        while self.slots.get(at).is_some_and(Option::is_some) {
            at = (at + 1) & mask;
        }
        if let Some(empty) = self.slots.get_mut(at) {
            *empty = Some(slot);
        }
    }

    /// Evicts rows over the limit, and frees spare slots.
    fn shrink(&mut self, limit_bytes: usize, ghost: &Ghost) {
        while self.bytes > limit_bytes && self.count > 0 {
            self.evict(ghost);
        }
        if self.slots.len() > FIRST_SLOTS && self.count * 8 < self.slots.len() {
            self.resize((self.count * 2).next_power_of_two());
        }
    }

    /// Evicts all rows of as many allocator pages as the limit demands. Evicting the coldest rows
    /// instead would free hardly any page: a few remaining rows would hold nearly every one.
    fn leave_pages(&mut self, limit_bytes: usize, salt: u64, ghost: &Ghost) {
        if self.bytes <= limit_bytes {
            return;
        }
        let kept_of_all = limit_bytes as f64 / self.bytes as f64;
        let kept = (kept_of_all * f64::from(u32::MAX)) as u64;
        for place in &mut self.slots {
            let Some(slot) = place else { continue };
            let page = slot.row.as_ptr() as u64 >> PAGE_BITS;
            if (page ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 >= kept {
                ghost.left(slot.hash, slot.cost());
                self.bytes -= slot.cost();
                self.count -= 1;
                *place = None;
            }
        }
        // The probe sequences of the remaining rows have gaps now.
        self.resize((self.count * 2).next_power_of_two());
    }

    /// Resizes to `len` slots: a power of two, larger than the number of rows.
    fn resize(&mut self, len: usize) {
        let len = len.max(FIRST_SLOTS);
        let mut slots = Vec::new();
        slots.resize_with(len, || None);
        let old = std::mem::replace(&mut self.slots, slots);
        self.hand = 0;
        // About as many marks as rows: a record missed longer ago than that would be evicted
        // anyway.
        if len / 2 > self.seen.len() {
            self.seen = vec![0; len / 2];
        }
        for slot in old.into_iter().flatten() {
            self.place(slot);
        }
    }

    /// Whether this hash has a mark; leaves a mark in any case.
    fn was_seen(&mut self, hash: u64) -> bool {
        let at = (hash >> 16) as usize & (self.seen.len().wrapping_sub(1));
        let mark = (hash >> 40) as u16;
        (self.seen.get_mut(at)).is_some_and(|seen| std::mem::replace(seen, mark) == mark)
    }

    /// Evicts one row: the next one under the clock hand that was not read since the hand passed.
    /// The row being inserted is counted already, but is in no slot yet.
    fn evict(&mut self, ghost: &Ghost) {
        let mask = self.mask();
        for _ in 0..self.slots.len() * (usize::from(HOTTEST) + 1) {
            self.hand = (self.hand + 1) & mask;
            match self.slots.get_mut(self.hand) {
                Some(Some(slot)) if slot.heat > 0 => slot.heat -= 1,
                Some(Some(slot)) => {
                    ghost.left(slot.hash, slot.cost());
                    self.take(self.hand);
                    return;
                }
                _ => {}
            }
        }
    }

    fn clear(&mut self) {
        self.slots = Vec::new();
        self.count = 0;
        self.bytes = 0;
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn key(n: u64) -> Vec<u8> {
        let mut key = vec![0, 0, 0, 0, 0, 0, 0, 9, RECORD_SPACE, 0, 0, 0, 0];
        key.extend_from_slice(&n.to_be_bytes());
        key
    }

    fn value<'a>(rows: &Rows, key: &[u8], sequence: u64, buf: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let row = rows.get(rows.hash(key), key, sequence)?;
        buf.clear();
        buf.extend_from_slice(&row[key.len()..]);
        Some(buf)
    }

    fn offer(rows: &Rows, key: &[u8], value: &[u8], sequence: u64) {
        rows.offer(rows.hash(key), key, value, sequence, sequence);
    }

    fn write(rows: &Rows, effects: &[Effect], sequence: u64, written: bool) {
        let mut writing = Writing::default();
        rows.begin(effects.iter(), &mut writing);
        rows.finish(effects.iter(), &writing, sequence, written);
    }

    #[test]
    fn a_row_that_was_read_stays_when_it_is_changed() {
        let rows = Rows::new(128 * 4096, 1 << 20);
        let buf = &mut Vec::new();
        let put = |n: u64| Effect::Put(key(n), vec![b'x'; 256]);
        write(&rows, &[put(1)], 5, true);
        assert_eq!(value(&rows, &key(1), 5, buf), None, "nobody has read it");
        offer(&rows, &key(1), b"read", 6);
        offer(&rows, &key(3), b"read", 6);
        write(&rows, &[put(1)], 7, true);
        assert_eq!(value(&rows, &key(1), 7, buf), Some(&[b'x'; 256][..]));
        assert_eq!(value(&rows, &key(1), 6, buf), None, "an older snapshot");
        // A record that is put and then deleted with its range in one batch.
        let (low, high) = (key(0), key(u64::MAX));
        write(&rows, &[put(3), Effect::DeleteRange(low, high)], 8, true);
        assert_eq!(value(&rows, &key(3), 9, buf), None);
        // Rows that were read stay when more is written than fits.
        offer(&rows, &key(4), b"read", 10);
        for n in 100..5_000 {
            write(&rows, &[put(n)], n, true);
        }
        assert!(value(&rows, &key(4), u64::MAX, buf).is_some());
        assert!(rows.used() <= 128 * 4096);
    }

    #[test]
    fn what_is_asked_for_once_puts_out_nothing() {
        let rows = Rows::new(SHARDS * 8000, 1 << 20);
        let there = |n: u64| rows.get(rows.hash(&key(n)), &key(n), u64::MAX).is_some();
        let offer = |n: u64| offer(&rows, &key(n), &[0; 200], 1);
        // A cache with room admits every record.
        for n in 0..SHARDS as u64 * 100 {
            offer(n);
        }
        let first: Vec<u64> = (0..SHARDS as u64 * 100).filter(|n| there(*n)).collect();
        assert!(first.len() > SHARDS * 10, "{}", first.len());
        let come_in = (100_000..200_000).filter(|n| {
            offer(*n);
            there(*n)
        });
        // Two marks of 16 bits are sometimes equal.
        assert!(come_in.count() < 20);
        assert!(first.iter().filter(|n| !there(**n)).count() < 20);
        // Rows that are read are evicted last.
        let (hot, cold) = first.split_at(SHARDS * 4);
        let hot: Vec<_> = hot.iter().filter(|n| there(**n)).collect();
        for n in 200_000..230_000 {
            offer(n);
            offer(n);
            assert!(there(n), "{n} for the second time");
            if n % 100 == 0 {
                hot.iter().for_each(|n| assert!(there(**n)));
            }
        }
        assert!(cold.iter().filter(|n| there(**n)).count() < cold.len() / 4);
        // With a lower limit fewer rows stay: first single rows go, then whole pages, and the rest
        // can still be found.
        for bytes in [7500, 7000, 2000] {
            rows.set_bytes(SHARDS * bytes);
            assert!(rows.used() <= SHARDS * bytes);
            let found = (0..230_000).filter(|n| there(*n)).count();
            let counted: usize = rows.shards.iter().map(|s| s.0.lock().count).sum();
            assert_eq!(found, counted);
        }
        rows.set_bytes(0);
        assert_eq!(rows.used(), 0);
    }

    #[test]
    fn a_row_is_not_shown_to_snapshots_from_before_the_record() {
        let rows = Rows::new(1 << 20, 1 << 20);
        let (k, buf) = (key(1), &mut Vec::new());
        // A reader of the newest state began at 5; the record was inserted at 7, which no writer
        // reported; the reader found it at 8.
        rows.offer(rows.hash(&k), &k, b"a", 5, 8);
        assert_eq!(value(&rows, &k, 6, buf), None);
        assert_eq!(value(&rows, &k, 8, buf), Some(&b"a"[..]));
        assert_eq!(value(&rows, &k, u64::MAX, buf), Some(&b"a"[..]));
    }

    #[test]
    fn a_snapshot_sees_only_rows_that_are_not_newer() {
        let rows = Rows::new(1 << 20, 1 << 20);
        let (k, buf) = (key(1), &mut Vec::new());
        offer(&rows, &k, b"a", 5);
        assert_eq!(value(&rows, &k, u64::MAX, buf), Some(&b"a"[..]));
        assert_eq!(value(&rows, &k, 5, buf), Some(&b"a"[..]));
        write(&rows, &[Effect::Put(k.clone(), b"b".to_vec())], 10, true);
        assert_eq!(value(&rows, &k, u64::MAX, buf), Some(&b"b"[..]));
        assert_eq!(value(&rows, &k, 10, buf), Some(&b"b"[..]));
        assert_eq!(value(&rows, &k, 9, buf), None);
        offer(&rows, &k, b"a", 9);
        assert_eq!(
            value(&rows, &k, u64::MAX, buf),
            Some(&b"b"[..]),
            "an older state is not taken"
        );
        write(&rows, &[Effect::Delete(k.clone())], 11, true);
        assert_eq!(value(&rows, &k, u64::MAX, buf), None);
    }

    #[test]
    fn nothing_comes_in_while_a_writer_is_there() {
        let rows = Rows::new(1 << 20, 1 << 20);
        let (k, buf) = (key(1), &mut Vec::new());
        offer(&rows, &k, b"a", 5);
        let effects = [Effect::Put(k.clone(), b"b".to_vec())];
        let mut writing = Writing::default();
        rows.begin(effects.iter(), &mut writing);
        assert_eq!(value(&rows, &k, u64::MAX, buf), None);
        offer(&rows, &k, b"a", 5);
        offer(&rows, &k, b"a", 7);
        assert_eq!(value(&rows, &k, u64::MAX, buf), None);
        rows.finish(effects.iter(), &writing, 7, false);
        assert_eq!(
            value(&rows, &k, u64::MAX, buf),
            None,
            "a write that failed brings no row"
        );
        offer(&rows, &k, b"a", 5);
        assert_eq!(value(&rows, &k, u64::MAX, buf), None);
        offer(&rows, &k, b"a", 7);
        assert_eq!(value(&rows, &k, 7, buf), Some(&b"a"[..]));
    }

    #[test]
    fn the_last_effect_on_a_key_counts() {
        let rows = Rows::new(1 << 20, 1 << 20);
        let (k, buf) = (key(1), &mut Vec::new());
        let put = |v: &[u8]| Effect::Put(k.clone(), v.to_vec());
        let cases: [(&[Effect], Option<&[u8]>); 4] = [
            (&[put(b"1"), put(b"2")], None),
            (&[put(b"1"), Effect::Delete(k.clone())], None),
            (&[Effect::Delete(k.clone()), put(b"2")], None),
            (&[Effect::DeleteRange(key(0), key(9)), put(b"2")], None),
        ];
        for (n, (effects, seen)) in (1..).zip(cases) {
            offer(&rows, &k, b"0", n * 10);
            assert!(value(&rows, &k, u64::MAX, buf).is_some());
            write(&rows, effects, n * 10 + 1, true);
            // Where several effects concern one key, a missing row is allowed; a wrong row is not.
            let found = value(&rows, &k, u64::MAX, buf).map(<[u8]>::to_vec);
            assert!(
                found.is_none()
                    || matches!(effects.last(), Some(Effect::Put(_, v)) if *v == *found.as_ref().unwrap()),
                "case {n}: {found:?} for {seen:?}"
            );
        }
    }

    #[test]
    fn ranges_of_other_spaces_leave_the_rows() {
        let rows = Rows::new(1 << 20, 1 << 20);
        let (k, buf) = (key(1), &mut Vec::new());
        let other = |space: u8| {
            let mut k = key(0);
            k[SPACE_AT] = space;
            k
        };
        offer(&rows, &k, b"a", 1);
        write(
            &rows,
            &[Effect::DeleteRange(
                other(2),
                [&other(2)[..9], &[9]].concat(),
            )],
            2,
            true,
        );
        assert!(value(&rows, &k, u64::MAX, buf).is_some());
        write(&rows, &[Effect::DeleteRange(other(0), other(2))], 3, true);
        assert!(value(&rows, &k, u64::MAX, buf).is_none());
    }

    #[test]
    fn random_use_agrees_with_a_map_and_stays_within_its_bytes() {
        let rows = Rows::new(SHARDS * 4000, 1 << 20);
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        let (mut hits, mut buf) = (0, Vec::new());
        for sequence in 1..200_000 {
            let n = random(9000);
            let k = key(n);
            match random(10) {
                0 => {
                    model.remove(&n);
                    write(&rows, &[Effect::Delete(k)], sequence, true);
                }
                1 | 2 => {
                    let v = vec![sequence as u8; random(400) as usize];
                    model.insert(n, v.clone());
                    write(&rows, &[Effect::Put(k, v)], sequence, true);
                }
                _ => match value(&rows, &k, u64::MAX, &mut buf) {
                    Some(v) => {
                        hits += 1;
                        assert_eq!(Some(v), model.get(&n).map(|v| &v[..]));
                    }
                    None => {
                        if let Some(v) = model.get(&n) {
                            offer(&rows, &k, v, sequence);
                        }
                    }
                },
            }
        }
        assert!(hits > 1000);
        assert!(rows.used() <= rows.shard_bytes() * SHARDS);
    }
}
