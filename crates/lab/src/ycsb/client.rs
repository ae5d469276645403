//! One lane of the YCSB workload: which operation comes next, and whether the answer is right. How it is said is the
//! business of the target's dialect.

use super::sequence::KeySequence;
use super::spec::Spec;
use super::values::{Lengths, Pool, deterministic, write_key};
use crate::distribution::{Chooser, fnv64};
use crate::fault::{Fault, Result};
use crate::lane::{Issued, Judged, Numbered};
use crate::random::{Rng, mix};
use crate::reply::SAMPLE_EVERY;
use crate::spoken::Spoken;
use crate::targets::{ByteStrings, Dialect, KeyRole, Table};
use crate::terms::WriteDurability;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// YCSB's names, which are also the kinds of the result.
pub const OPERATIONS: [&str; 6] = [
    "READ",
    "UPDATE",
    "INSERT",
    "SCAN",
    "READ-MODIFY-WRITE",
    "DELETE",
];
const READ: u8 = 0;
const UPDATE: u8 = 1;
const INSERT: u8 = 2;
const SCAN: u8 = 3;
const READ_MODIFY_WRITE: u8 = 4;
const DELETE: u8 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbPhase {
    /// Inserts the records.
    Load,
    /// Does the operations.
    Run,
}

/// What all lanes of a phase share.
pub struct Shared {
    pub spec: Spec,
    pub table: Arc<Table>,
    pub durability: WriteDurability,
    pub phase: YcsbPhase,
    /// Documents of one insert message.
    pub batch: u64,
    /// Whether documents are compared too, not only counted (the null server's are always the same).
    pub verify: bool,
    pub seed: u64,
    pool: Arc<Pool>,
    pub inserts: KeySequence,
    /// Operations that the run phase may still begin.
    left: Arc<AtomicU64>,
    operations: u64,
    part: RecordShare,
}

/// Which of the records: all, or those of one of several servers side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordShare {
    index: u64,
    of: u64,
}

impl RecordShare {
    /// Whether record `n` lives here.
    #[inline]
    fn has(self, n: u64) -> bool {
        self.of == 1 || mix(fnv64(n)) % self.of == self.index
    }
}

/// The table that YCSB uses.
pub fn table_of(spec: &Spec, db: &str) -> Table {
    Table {
        database: db.to_string(),
        name: spec.table.clone(),
        key: KeyRole::Primary,
        key_name: "ycsb_key".into(),
        fields: (0..spec.field_count)
            .map(|i| format!("{}{i}", spec.field_prefix))
            .collect(),
        text: false,
        single_fields: !spec.read_all_fields,
    }
}

impl Shared {
    /// `operations`: how many the run phase does (`u64::MAX`: until its time is over).
    pub fn new(
        spec: Spec,
        db: &str,
        durability: WriteDurability,
        phase: YcsbPhase,
        operations: u64,
        seed: u64,
    ) -> Arc<Shared> {
        let mut one = Shared::parts(spec, db, durability, phase, operations, seed, 1);
        one.remove(0)
    }

    /// The same for servers side by side: each part has the records that live on one of them.
    pub fn parts(
        spec: Spec,
        db: &str,
        durability: WriteDurability,
        phase: YcsbPhase,
        operations: u64,
        seed: u64,
        of: u64,
    ) -> Vec<Arc<Shared>> {
        let start = match phase {
            YcsbPhase::Load => spec.insert_start,
            YcsbPhase::Run if spec.only_inserts() => 0,
            YcsbPhase::Run => spec.insert_start + spec.insert_count,
        };
        let pool = Arc::new(Pool::new(seed, spec.field_length));
        let left = Arc::new(AtomicU64::new(operations));
        let table = Arc::new(table_of(&spec, db));
        let part = |index| {
            Arc::new(Shared {
                pool: Arc::clone(&pool),
                batch: spec.batch,
                inserts: KeySequence::new(start),
                left: Arc::clone(&left),
                operations,
                table: Arc::clone(&table),
                spec: spec.clone(),
                durability,
                phase,
                verify: true,
                seed: seed ^ index << 48,
                part: RecordShare { index, of },
            })
        };
        (0..of).map(part).collect()
    }

    /// Takes numbers for the next insert: the first and how many.
    fn take_inserts(&self, wanted: u64, end: u64) -> Option<(u64, u64)> {
        if self.part.of == 1 {
            return self.inserts.take_below(wanted, end);
        }
        loop {
            let (n, _) = self.inserts.take_below(1, end)?;
            if self.part.has(n) {
                return Some((n, 1));
            }
            // Another server's: as good as there.
            self.inserts.acknowledge(n, 1);
        }
    }

    /// Takes up to `n` operations from those that are left.
    fn claim(&self, n: u64) -> u64 {
        if self.operations == u64::MAX {
            return n;
        }
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(n))
            });
        taken.map_or(0, |left| left.min(n))
    }
}

pub struct YcsbClient {
    shared: Arc<Shared>,
    dialect: Box<dyn Dialect>,
    rng: Rng,
    chooser: Chooser,
    lengths: Lengths,
    scan_lengths: Lengths,
    /// Running sums of the proportions.
    mix: [f64; 6],
    key: Vec<u8>,
    cells: ByteStrings,
    seen: u32,
}

impl YcsbClient {
    pub fn new(
        shared: &Arc<Shared>,
        dialect: Box<dyn Dialect>,
        lane: usize,
        lanes: usize,
    ) -> YcsbClient {
        let spec = &shared.spec;
        let total: f64 = spec.proportions().iter().sum();
        let mut sum = 0.0;
        let mix = spec.proportions().map(|p| {
            sum += p / total;
            sum
        });
        YcsbClient {
            dialect,
            rng: Rng::new(shared.seed ^ (lane as u64 + 1) << 32),
            chooser: spec.chooser(lane as u64, lanes as u64),
            lengths: Lengths::of_fields(spec),
            scan_lengths: Lengths::new(
                spec.scan_length_distribution,
                spec.min_scan_length,
                spec.max_scan_length,
            ),
            mix,
            key: Vec::new(),
            cells: ByteStrings::default(),
            seen: 0,
            shared: Arc::clone(shared),
        }
    }

    fn set_key(&mut self, n: u64) {
        self.key.clear();
        write_key(&self.shared.spec, n, &mut self.key);
    }

    fn choose(&mut self) -> u64 {
        let start = self.shared.spec.insert_start;
        let count = self.shared.inserts.acknowledged().saturating_sub(start);
        loop {
            let n = start + self.chooser.next(&mut self.rng, count);
            if self.shared.part.has(n) {
                return n;
            }
        }
    }

    /// One field of many, unless all are wanted.
    fn any_field(&mut self, all: bool) -> Option<usize> {
        let fields = self.shared.table.fields.len() as u64;
        (!all).then(|| self.rng.below(fields) as usize)
    }

    fn write_read(&mut self, n: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        let field = self.any_field(self.shared.spec.read_all_fields);
        self.dialect.read(&self.key, field, out);
    }

    /// Adds a value of the field to the cells; the key is set.
    fn push_field(&mut self, field: usize) {
        let shared = Arc::clone(&self.shared);
        if shared.spec.data_integrity {
            let key = std::str::from_utf8(&self.key).unwrap_or_default();
            let size = shared.spec.field_length as usize;
            let value = deterministic(key, &shared.table.fields[field], size);
            self.cells.push(&value);
        } else {
            let length = self.lengths.next(&mut self.rng) as usize;
            self.cells.push(shared.pool.cut(&mut self.rng, length));
        }
    }

    fn write_update(&mut self, n: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        self.cells.clear();
        let first = self.any_field(self.shared.spec.write_all_fields);
        match first {
            Some(field) => self.push_field(field),
            None => (0..self.shared.table.fields.len()).for_each(|f| self.push_field(f)),
        }
        self.dialect
            .update(&self.key, first.unwrap_or(0), &self.cells, out);
    }

    fn write_insert(&mut self, first: u64, count: u64, out: &mut Vec<u8>) {
        self.cells.clear();
        for n in first..first + count {
            self.set_key(n);
            self.cells.push(&self.key);
            (0..self.shared.table.fields.len()).for_each(|f| self.push_field(f));
        }
        self.dialect.insert(&self.cells, out);
    }

    fn issued(&self, kind: u8, tag: u64) -> Issued {
        let reads = matches!(kind, READ | SCAN);
        Issued {
            kind,
            whole: None,
            units: 1,
            tag,
            acknowledged: reads || self.shared.durability.acknowledged(),
        }
    }

    fn next_insert(&mut self, first: u64, count: u64, out: &mut Vec<u8>) -> Issued {
        self.write_insert(first, count, out);
        if !self.shared.durability.acknowledged() {
            // The insert gets no acknowledgement; a reader may miss it, as YCSB's does.
            self.shared.inserts.acknowledge(first, count);
        }
        Issued {
            units: count as u32,
            ..self.issued(INSERT, first)
        }
    }

    /// A record read by its key: the key, and the fields that were asked for.
    fn check_record(&mut self, n: u64, message: &[u8], id: i32) -> Result<()> {
        self.set_key(n);
        self.cells.clear();
        self.dialect.rows(message, id, &mut self.cells)?;
        let wrong = |what: &str| Err(Fault::Check(format!("record {n}: {what}")));
        if self.cells.get(0) != self.key {
            return wrong("another key");
        }
        let spec = &self.shared.spec;
        let all = &self.shared.table.fields;
        let fields = if spec.read_all_fields { all.len() } else { 1 };
        if self.cells.len() != fields + 1 {
            return wrong("too few or too many fields");
        }
        for (i, value) in self.cells.iter().skip(1).enumerate() {
            let len = value.len() as u64;
            if !(spec.min_field_length.min(spec.field_length)..=spec.field_length).contains(&len) {
                return wrong("a field of another length");
            }
            if spec.data_integrity {
                let key = std::str::from_utf8(&self.key).unwrap_or_default();
                let is = |name: &String| value == deterministic(key, name, value.len());
                let right = if spec.read_all_fields {
                    is(&all[i])
                } else {
                    all.iter().any(is)
                };
                if !right {
                    return wrong("a field of another value");
                }
            }
        }
        Ok(())
    }

    fn sampled(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.shared.verify
            && (self.shared.spec.data_integrity || self.seen.is_multiple_of(SAMPLE_EVERY))
    }
}

impl Spoken for YcsbClient {
    fn kinds(&self) -> &'static [&'static str] {
        &OPERATIONS
    }

    fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let shared = Arc::clone(&self.shared);
        if shared.phase == YcsbPhase::Load {
            let end = shared.spec.insert_start + shared.spec.insert_count;
            let (first, count) = shared.take_inserts(shared.batch, end)?;
            return Some(self.next_insert(first, count, out));
        }
        let u = self.rng.unit();
        let kind = self.mix.iter().position(|&sum| u < sum).unwrap_or(0) as u8;
        let wanted = if kind == INSERT { shared.batch } else { 1 };
        let claimed = shared.claim(wanted);
        if claimed == 0 {
            return None;
        }
        if kind == INSERT {
            let (first, count) = shared.take_inserts(claimed, u64::MAX)?;
            return Some(self.next_insert(first, count, out));
        }
        let n = self.choose();
        Some(match kind {
            UPDATE => {
                self.write_update(n, out);
                self.issued(UPDATE, n)
            }
            SCAN => {
                let length = self.scan_lengths.next(&mut self.rng);
                self.set_key(n);
                let field = self.any_field(shared.spec.read_all_fields);
                self.dialect.scan(&self.key, length, field, out);
                self.issued(SCAN, length)
            }
            DELETE => {
                self.set_key(n);
                self.dialect.delete(&self.key, out);
                self.issued(DELETE, n)
            }
            READ_MODIFY_WRITE => {
                self.write_read(n, out);
                Issued {
                    whole: Some(READ_MODIFY_WRITE),
                    ..self.issued(READ, n)
                }
            }
            _ => {
                self.write_read(n, out);
                self.issued(READ, n)
            }
        })
    }

    fn judge(&mut self, issued: &Issued, (message, id): Numbered<'_>, out: &mut Vec<u8>) -> Judged {
        let answer = self.dialect.answer(message, id)?;
        let due = |what: &str, got: u64, want: u64| {
            if got == want {
                return Ok(());
            }
            Err(Fault::Check(format!("{what} {got} where {want} was due")))
        };
        match issued.kind {
            READ => {
                // A workload that deletes reads what it has deleted.
                let gone = self.shared.spec.delete > 0.0 && answer.rows == 0;
                due("records read:", answer.rows + u64::from(gone), 1)?;
                if !gone && self.sampled() {
                    self.check_record(issued.tag, message, id)?;
                }
                if issued.whole.is_some() {
                    self.write_update(issued.tag, out);
                    return Ok(Some(Issued {
                        whole: issued.whole,
                        // An unacknowledged write has no end that could be measured.
                        ..self.issued(UPDATE, issued.tag)
                    }));
                }
            }
            SCAN => {
                let least = u64::from(self.shared.spec.delete == 0.0);
                if !(least..=issued.tag).contains(&answer.rows) {
                    return Err(Fault::Check(format!(
                        "a scan of {} gave {} records",
                        issued.tag, answer.rows
                    )));
                }
            }
            INSERT => {
                due(
                    "records inserted:",
                    answer.affected,
                    u64::from(issued.units),
                )?;
                self.shared
                    .inserts
                    .acknowledge(issued.tag, u64::from(issued.units));
            }
            // A record may be deleted twice.
            DELETE => {}
            _ if self.shared.spec.delete > 0.0 => {}
            _ => due("records updated:", answer.affected, 1)?,
        }
        Ok(None)
    }
}
