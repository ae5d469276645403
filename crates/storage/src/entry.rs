//! What one write is: a log entry, and its bytes.
//!
//! ```text
//! entry   = head u8 | namespace [16] | session? | count? | operation | count varint | effect*
//! head    = operation kind (bits 0..4) | 0x80 when a session follows | 0x40 when a count follows
//! count   = tablet u64 LE | records i64 LE | bytes i64 LE      (after the session)
//! session = lsid [16] | transaction number u64 LE | statement id u32 LE
//! operation, by kind:
//!   0 no-op   –
//!   1 insert  –                          (every put into a record space is a document)
//!   2 update  diff bytes | record key bytes
//!   3 delete  the document's `_id` as a BSON document, bytes
//!   4 ddl     BSON document, bytes
//! effect  = 0x01 key bytes value bytes   put
//!         | 0x00 key bytes               delete
//!         | 0x02 low bytes high bytes    delete of [low, high)
//! bytes   = length varint (LEB128, at most 32 bits) | that many bytes
//! ```
//!
//! Invariant: effects are absolute: applying an entry twice, or over newer state, converges. (A count is not; it is applied
//! exactly once, since it is in the engine's batch together with the index of its entry.)

use crate::counts::CountDelta;

/// A key of the one keyspace: `tablet u64 BE | space u8 | index id u32 BE | rest`.
pub type Key = Vec<u8>;

/// A collection's UUID.
pub type Uuid = [u8; 16];

/// One change of the keyspace, absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// Everything from the first key to before the second.
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Effect {
    /// The key that it concerns; the first of a range.
    pub fn key(&self) -> &[u8] {
        match self {
            Effect::Put(key, _) | Effect::Delete(key) | Effect::DeleteRange(key, _) => key,
        }
    }
}

/// The retryable write or transaction that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSession {
    pub lsid: [u8; 16],
    pub txn_number: i64,
    pub stmt_id: i32,
}

/// What the client's write meant; change streams and the oplog read this, applying does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Noop,
    /// Every put into a record space is a document: a batch is one entry, there whole or not at all. Nothing was under its key
    /// before: caches rely on it. It may delete others, to make room for itself.
    Insert,
    Update {
        diff: Vec<u8>,
        record_key: Vec<u8>,
    },
    Delete {
        /// The `_id` element as a BSON document.
        record_key: Vec<u8>,
    },
    /// A BSON document that says what was created, changed or dropped.
    Ddl(Vec<u8>),
}

/// One write: in the log one entry, in the engine one atomic change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ns: Uuid,
    pub session: Option<OpSession>,
    pub op: Op,
    pub effects: Vec<Effect>,
    /// By how much it changes the number of records of its tablet.
    pub count: Option<CountDelta>,
}

const TAG_DELETE: u8 = 0x00;
const TAG_PUT: u8 = 0x01;
const TAG_DELETE_RANGE: u8 = 0x02;

const KIND_NOOP: u8 = 0;
const KIND_INSERT: u8 = 1;
const KIND_UPDATE: u8 = 2;
const KIND_DELETE: u8 = 3;
const KIND_DDL: u8 = 4;
const WITH_SESSION: u8 = 0x80;
const WITH_COUNT: u8 = 0x40;

fn put_varint(buf: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        buf.push(n as u8 | 0x80);
        n >>= 7;
    }
    buf.push(n as u8);
}

fn put_bytes(buf: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(buf, bytes.len());
    buf.extend_from_slice(bytes);
}

impl Effect {
    /// Its bytes without lengths and tag.
    pub(crate) fn size(&self) -> usize {
        match self {
            Effect::Put(a, b) | Effect::DeleteRange(a, b) => a.len() + b.len(),
            Effect::Delete(key) => key.len(),
        }
    }

    fn encode(&self, buf: &mut Vec<u8>) {
        match self {
            Effect::Put(key, value) => {
                // Tag and two lengths of at most five bytes: one reservation for all.
                buf.reserve(key.len() + value.len() + 11);
                buf.push(TAG_PUT);
                put_bytes(buf, key);
                put_bytes(buf, value);
            }
            Effect::Delete(key) => {
                buf.push(TAG_DELETE);
                put_bytes(buf, key);
            }
            Effect::DeleteRange(low, high) => {
                buf.push(TAG_DELETE_RANGE);
                put_bytes(buf, low);
                put_bytes(buf, high);
            }
        }
    }
}

impl Entry {
    pub fn new(ns: Uuid, op: Op, effects: Vec<Effect>) -> Entry {
        Entry {
            ns,
            session: None,
            op,
            effects,
            count: None,
        }
    }

    /// Says by how much the entry changes its tablet's records.
    pub fn count(&mut self, tablet: u64, records: i64, bytes: i64) {
        if records != 0 || bytes != 0 {
            self.count = Some(CountDelta {
                tablet,
                records,
                bytes,
            });
        }
    }

    /// Appends the entry's bytes.
    pub(crate) fn encode(&self, buf: &mut Vec<u8>) {
        let kind = match self.op {
            Op::Noop => KIND_NOOP,
            Op::Insert => KIND_INSERT,
            Op::Update { .. } => KIND_UPDATE,
            Op::Delete { .. } => KIND_DELETE,
            Op::Ddl(_) => KIND_DDL,
        };
        let mut head = kind;
        if self.session.is_some() {
            head |= WITH_SESSION;
        }
        if self.count.is_some() {
            head |= WITH_COUNT;
        }
        buf.push(head);
        buf.extend_from_slice(&self.ns);
        if let Some(session) = &self.session {
            buf.extend_from_slice(&session.lsid);
            buf.extend_from_slice(&session.txn_number.to_le_bytes());
            buf.extend_from_slice(&session.stmt_id.to_le_bytes());
        }
        if let Some(count) = &self.count {
            buf.extend_from_slice(&count.tablet.to_le_bytes());
            buf.extend_from_slice(&count.records.to_le_bytes());
            buf.extend_from_slice(&count.bytes.to_le_bytes());
        }
        match &self.op {
            Op::Noop | Op::Insert => {}
            Op::Update { diff, record_key } => {
                put_bytes(buf, diff);
                put_bytes(buf, record_key);
            }
            Op::Delete { record_key } => put_bytes(buf, record_key),
            Op::Ddl(doc) => put_bytes(buf, doc),
        }
        put_varint(buf, self.effects.len());
        for effect in &self.effects {
            effect.encode(buf);
        }
    }

    /// The entry that `bytes` hold whole; `None` when they are anything else.
    pub fn decode(bytes: &[u8]) -> Option<Entry> {
        let mut rest = Cursor(bytes);
        let head = rest.byte()?;
        let ns = rest.array()?;
        let session = if head & WITH_SESSION != 0 {
            Some(OpSession {
                lsid: rest.array()?,
                txn_number: i64::from_le_bytes(rest.array()?),
                stmt_id: i32::from_le_bytes(rest.array()?),
            })
        } else {
            None
        };
        let count = if head & WITH_COUNT != 0 {
            Some(CountDelta {
                tablet: u64::from_le_bytes(rest.array()?),
                records: i64::from_le_bytes(rest.array()?),
                bytes: i64::from_le_bytes(rest.array()?),
            })
        } else {
            None
        };
        let op = match head & !(WITH_SESSION | WITH_COUNT) {
            KIND_NOOP => Op::Noop,
            KIND_INSERT => Op::Insert,
            KIND_UPDATE => Op::Update {
                diff: rest.bytes()?.to_vec(),
                record_key: rest.bytes()?.to_vec(),
            },
            KIND_DELETE => Op::Delete {
                record_key: rest.bytes()?.to_vec(),
            },
            KIND_DDL => Op::Ddl(rest.bytes()?.to_vec()),
            _ => return None,
        };
        let effect_count = rest.varint()?;
        // No reservation by a number that may be wrong: each effect must be there to be counted.
        let mut effects = Vec::new();
        for _ in 0..effect_count {
            effects.push(match rest.byte()? {
                TAG_PUT => Effect::Put(rest.bytes()?.to_vec(), rest.bytes()?.to_vec()),
                TAG_DELETE => Effect::Delete(rest.bytes()?.to_vec()),
                TAG_DELETE_RANGE => {
                    Effect::DeleteRange(rest.bytes()?.to_vec(), rest.bytes()?.to_vec())
                }
                _ => return None,
            });
        }
        rest.0.is_empty().then_some(Entry {
            ns,
            session,
            op,
            effects,
            count,
        })
    }
}

/// Reads from the front of bytes, never beyond them.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn varint(&mut self) -> Option<u32> {
        let mut n = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let b = self.byte()?;
            n |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return u32::try_from(n).ok();
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.varint()?;
        self.take(usize::try_from(n).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Entry> {
        let session = Some(OpSession {
            lsid: [7; 16],
            txn_number: -3,
            stmt_id: 9,
        });
        let effects = vec![
            Effect::Put(b"k".to_vec(), vec![5; 300]),
            Effect::Delete(vec![]),
            Effect::DeleteRange(b"a".to_vec(), b"b".to_vec()),
        ];
        [
            Op::Noop,
            Op::Insert,
            Op::Update {
                diff: vec![1; 200],
                record_key: vec![2],
            },
            Op::Delete {
                record_key: vec![3; 5],
            },
            Op::Ddl(vec![4; 20]),
        ]
        .into_iter()
        .flat_map(|op| {
            [None, session].map(|session| Entry {
                ns: [1; 16],
                session,
                op: op.clone(),
                effects: effects.clone(),
                count: session.map(|_| CountDelta {
                    tablet: 5,
                    records: -1,
                    bytes: 1 << 40,
                }),
            })
        })
        .collect()
    }

    #[test]
    fn every_operation_comes_back() {
        for entry in samples() {
            let mut buf = vec![0xaa];
            entry.encode(&mut buf);
            assert_eq!(Entry::decode(&buf[1..]), Some(entry));
        }
    }

    #[test]
    fn a_cut_or_longer_entry_is_refused() {
        for entry in samples() {
            let mut buf = Vec::new();
            entry.encode(&mut buf);
            for cut in 0..buf.len() {
                assert_eq!(Entry::decode(&buf[..cut]), None, "cut at {cut}");
            }
            buf.push(0);
            assert_eq!(Entry::decode(&buf), None);
        }
    }
}
