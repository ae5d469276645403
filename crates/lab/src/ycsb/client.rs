//! One lane of the YCSB workload: which operation comes next, its bytes, and whether the answer is right.

use super::sequence::Sequence;
use super::spec::Spec;
use super::values::{Lengths, Pool, deterministic, write_key};
use crate::distribution::Chooser;
use crate::fault::{Fault, Result};
use crate::lane::{Issued, Workload};
use crate::random::Rng;
use crate::reply;
use crate::request::{InsertHead, Template, find_by_id, flags};
use crate::terms::Durability;
use bson::{Doc, Val, Writer};
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

/// One document in so many is looked at whole.
const SAMPLE_EVERY: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Inserts the records.
    Load,
    /// Does the operations.
    Run,
}

/// What all lanes of a phase share.
pub struct Shared {
    pub spec: Spec,
    pub db: String,
    pub durability: Durability,
    pub phase: Phase,
    /// Documents of one insert message.
    pub batch: u64,
    /// Whether documents are compared too, not only counted (the null server's are always the same).
    pub verify: bool,
    pub seed: u64,
    pool: Pool,
    pub inserts: Sequence,
    /// Operations that the run phase may still begin.
    left: AtomicU64,
    operations: u64,
}

impl Shared {
    /// `operations`: how many the run phase does (`u64::MAX`: until its time is over).
    pub fn new(
        spec: Spec,
        db: &str,
        durability: Durability,
        phase: Phase,
        operations: u64,
        seed: u64,
    ) -> Arc<Shared> {
        let start = match phase {
            Phase::Load => spec.insert_start,
            Phase::Run if spec.only_inserts() => 0,
            Phase::Run => spec.insert_start + spec.insert_count,
        };
        Arc::new(Shared {
            pool: Pool::new(seed, spec.field_length),
            batch: spec.batch,
            inserts: Sequence::new(start),
            left: AtomicU64::new(operations),
            operations,
            spec,
            db: db.to_string(),
            durability,
            phase,
            verify: true,
            seed,
        })
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

pub struct Client {
    shared: Arc<Shared>,
    rng: Rng,
    chooser: Chooser,
    lengths: Lengths,
    scan_lengths: Lengths,
    fields: Vec<String>,
    /// Reads by length of the key and by field (the last: all fields).
    reads: Vec<Option<Template>>,
    head: Arc<InsertHead>,
    /// Running sums of the proportions.
    mix: [f64; 6],
    key: Vec<u8>,
    seen: u32,
}

impl Client {
    pub fn new(shared: &Arc<Shared>, lane: usize, lanes: usize) -> Client {
        let spec = &shared.spec;
        let total: f64 = spec.proportions().iter().sum();
        let mut sum = 0.0;
        let mix = spec.proportions().map(|p| {
            sum += p / total;
            sum
        });
        Client {
            rng: Rng::new(shared.seed ^ (lane as u64 + 1) << 32),
            chooser: spec.chooser(lane as u64, lanes as u64),
            lengths: Lengths::new(
                spec.field_length_distribution,
                spec.min_field_length,
                spec.field_length,
            ),
            scan_lengths: Lengths::new(
                spec.scan_length_distribution,
                spec.min_scan_length,
                spec.max_scan_length,
            ),
            fields: (0..spec.field_count)
                .map(|i| format!("{}{i}", spec.field_prefix))
                .collect(),
            reads: Vec::new(),
            head: Arc::new(InsertHead::new(&shared.db, &spec.table, shared.durability)),
            mix,
            key: Vec::new(),
            seen: 0,
            shared: Arc::clone(shared),
        }
    }

    /// Puts the BSON bytes of record `n`'s key (a string value) into `self.key`.
    fn set_key(&mut self, n: u64) {
        self.key.clear();
        self.key.extend_from_slice(&[0; 4]);
        write_key(&self.shared.spec, n, &mut self.key);
        self.key.push(0);
        let length = (self.key.len() - 4) as i32;
        self.key[..4].copy_from_slice(&length.to_le_bytes());
    }

    fn key_val(&self) -> Val<'_> {
        Val {
            tag: bson::tag::STRING,
            bytes: &self.key,
        }
    }

    fn choose(&mut self) -> u64 {
        let start = self.shared.spec.insert_start;
        let count = self.shared.inserts.acknowledged().saturating_sub(start);
        start + self.chooser.next(&mut self.rng, count)
    }

    fn write_read(&mut self, n: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        let spec = &self.shared.spec;
        let all = self.fields.len();
        let field = if spec.read_all_fields {
            all
        } else {
            self.rng.below(all as u64) as usize
        };
        let at = self.key.len() * (all + 1) + field;
        if self.reads.len() <= at {
            self.reads.resize(at + 1, None);
        }
        if self.reads[at].is_none() {
            let projection = self.fields.get(field).map(|name| {
                let mut w = Writer::new();
                w.i32(name, 1);
                w.finish()
            });
            let projection = projection.as_ref().map(bson::DocBuf::as_doc);
            let made = find_by_id(&self.shared.db, &spec.table, self.key_val(), projection);
            self.reads[at] = Some(made);
        }
        if let Some(template) = &self.reads[at] {
            template.write(out, &[&self.key]);
        }
    }

    fn write_field(&mut self, w: &mut Writer, field: usize) {
        let name = &self.fields[field];
        if self.shared.spec.data_integrity {
            let key = self.key_val().as_str().unwrap_or_default();
            let size = self.shared.spec.field_length as usize;
            w.binary(name, 0, &deterministic(key, name, size));
        } else {
            let length = self.lengths.next(&mut self.rng) as usize;
            w.binary(name, 0, self.shared.pool.cut(&mut self.rng, length));
        }
    }

    fn write_update(&mut self, n: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        let start = self.begin(out, "update");
        let sequence = wire::begin_sequence(out, "updates");
        let mut w = Writer::on(std::mem::take(out));
        w.open_doc("q").val("_id", self.key_val()).close();
        w.open_doc("u").open_doc("$set");
        if self.shared.spec.write_all_fields {
            for field in 0..self.fields.len() {
                self.write_field(&mut w, field);
            }
        } else {
            let field = self.rng.below(self.fields.len() as u64) as usize;
            self.write_field(&mut w, field);
        }
        *out = w.finish_into();
        wire::end_sequence(out, sequence);
        wire::end(out, start);
    }

    /// Begins a write message up to its body.
    fn begin(&self, out: &mut Vec<u8>, command: &str) -> usize {
        let start = wire::begin_msg(out, 0, 0, flags(self.shared.durability));
        wire::begin_body(out);
        let mut w = Writer::on(std::mem::take(out));
        w.str(command, &self.shared.spec.table)
            .bool("ordered", true);
        self.shared.durability.write_concern(&mut w);
        w.str("$db", &self.shared.db);
        *out = w.finish_into();
        start
    }

    fn write_delete(&mut self, n: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        let start = self.begin(out, "delete");
        let sequence = wire::begin_sequence(out, "deletes");
        let mut w = Writer::on(std::mem::take(out));
        w.open_doc("q").val("_id", self.key_val()).close();
        w.i32("limit", 1);
        *out = w.finish_into();
        wire::end_sequence(out, sequence);
        wire::end(out, start);
    }

    fn write_scan(&mut self, n: u64, length: u64, out: &mut Vec<u8>) {
        self.set_key(n);
        let spec = &self.shared.spec;
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let start = wire::begin_msg(out, 0, 0, 0);
        wire::begin_body(out);
        let mut w = Writer::on(std::mem::take(out));
        w.str("find", &spec.table);
        w.open_doc("filter").open_doc("_id");
        w.val("$gte", self.key_val()).close().close();
        w.open_doc("sort").i32("_id", 1).close();
        if !spec.read_all_fields {
            let field = self.rng.below(self.fields.len() as u64) as usize;
            w.open_doc("projection").i32(&self.fields[field], 1).close();
        }
        w.i64("limit", length)
            .i64("batchSize", length)
            .bool("singleBatch", true)
            .str("$db", &self.shared.db);
        *out = w.finish_into();
        wire::end(out, start);
    }

    fn write_insert(&mut self, first: u64, count: u64, out: &mut Vec<u8>) {
        let head = Arc::clone(&self.head);
        head.write(out, |out| {
            for n in first..first + count {
                self.set_key(n);
                let mut w = Writer::on(std::mem::take(out));
                w.val("_id", self.key_val());
                for field in 0..self.fields.len() {
                    self.write_field(&mut w, field);
                }
                *out = w.finish_into();
            }
        });
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
            // Nobody will say that it is there; a reader may miss it, as YCSB's does.
            self.shared.inserts.acknowledge(first, count);
        }
        Issued {
            units: count as u32,
            ..self.issued(INSERT, first)
        }
    }

    /// A record read by its key: `_id`, and the fields that were asked for.
    fn check_record(&mut self, n: u64, record: Doc<'_>) -> Result<()> {
        self.set_key(n);
        let wrong = |what: &str| {
            Err(Fault::Check(format!(
                "record {n}: {what} in {}",
                reply::brief(record)
            )))
        };
        if record.get("_id") != Some(self.key_val()) {
            return wrong("another _id");
        }
        let spec = &self.shared.spec;
        let fields = if spec.read_all_fields {
            self.fields.len()
        } else {
            1
        };
        let mut right = 0;
        for e in record.iter().filter(|e| e.name != "_id") {
            let Some((_, bytes)) = e.val.as_binary() else {
                return wrong("a field that is not binary");
            };
            let len = bytes.len() as u64;
            if !(spec.min_field_length.min(spec.field_length)..=spec.field_length).contains(&len) {
                return wrong("a field of another length");
            }
            if spec.data_integrity {
                let key = self.key_val().as_str().unwrap_or_default();
                if bytes != deterministic(key, e.name, bytes.len()) {
                    return wrong("a field of another value");
                }
            }
            right += 1;
        }
        if right == fields {
            Ok(())
        } else {
            wrong("too few or too many fields")
        }
    }

    fn sampled(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.shared.verify
            && (self.shared.spec.data_integrity || self.seen.is_multiple_of(SAMPLE_EVERY))
    }
}

impl Workload for Client {
    fn kinds(&self) -> &'static [&'static str] {
        &OPERATIONS
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let shared = Arc::clone(&self.shared);
        if shared.phase == Phase::Load {
            let end = shared.spec.insert_start + shared.spec.insert_count;
            let (first, count) = shared.inserts.take_below(shared.batch, end)?;
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
            let first = shared.inserts.take(claimed);
            return Some(self.next_insert(first, claimed, out));
        }
        let n = self.choose();
        Some(match kind {
            UPDATE => {
                self.write_update(n, out);
                self.issued(UPDATE, n)
            }
            SCAN => {
                let length = self.scan_lengths.next(&mut self.rng);
                self.write_scan(n, length, out);
                self.issued(SCAN, length)
            }
            DELETE => {
                self.write_delete(n, out);
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

    fn reply(
        &mut self,
        issued: &Issued,
        reply: Doc<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Issued>> {
        match issued.kind {
            READ => {
                let docs = reply::batch(reply, 1)?;
                if self.sampled() {
                    let record = docs.values().next().and_then(Val::as_doc);
                    self.check_record(issued.tag, record.unwrap_or(Doc::EMPTY))?;
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
                let cursor = reply.get("cursor").and_then(Val::as_doc);
                let got = cursor.and_then(|c| c.get("firstBatch")?.as_array());
                let got = got.map_or(0, Doc::count) as u64;
                if !(1..=issued.tag).contains(&got) {
                    return Err(Fault::Check(format!(
                        "a scan of {} gave {got} documents",
                        issued.tag
                    )));
                }
            }
            INSERT => {
                reply::expect(reply, "n", i64::from(issued.units))?;
                self.shared
                    .inserts
                    .acknowledge(issued.tag, u64::from(issued.units));
            }
            // A record may be deleted twice.
            DELETE => {}
            _ => reply::expect(reply, "n", 1)?,
        }
        Ok(None)
    }
}
