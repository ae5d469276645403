//! One write as a log entry, and its bytes in the log.
//!
//! ```text
//! entry     = head u8 | collection UUID [16] | namespace bytes | session? | count? | pre-image? | operation
//!             | number of effects varint | effect*
//! head      = operation kind (bits 0..4) | 0x80 session follows | 0x40 count follows | 0x20 pre-image follows
//! session   = lsid [16] | transaction number i64 LE | statement id i32 LE
//! count     = tablet u64 LE | records i64 LE | bytes i64 LE
//! pre-image = the document before the change, bytes
//! operation, by kind:
//!   0 no-op        –
//!   1 insert       –                          (every put into a record space is a document)
//!   2 update       diff bytes | record key bytes
//!   3 delete       the document's `_id` as a BSON document, bytes
//!   4 ddl          BSON document, bytes
//!   5 transaction  number of parts varint | (entry as bytes)*
//!   6 membership   configuration of the replica set, BSON bytes | change of voters, bytes
//!   7 note         BSON document, bytes      (data format 5)
//! effect    = 0x01 key bytes value bytes   put
//!           | 0x00 key bytes               delete
//!           | 0x02 low bytes high bytes    delete of [low, high)
//! bytes     = length varint (LEB128, at most 32 bits) | that many bytes
//! ```
//!
//! The log's frame adds what only the append knows: index, timestamp, term and wall clock (see
//! [`oplog::Record`]).
//!
//! Invariants:
//! - Effects are absolute: applying an entry twice, or over newer state, converges. A count is
//!   relative. It is applied exactly once, because it is in the engine's batch together with the
//!   index of its entry.
//! - One entry is one frame of the log, so a transaction is there whole or not at all. Its parts
//!   are applied in order, its own effects after them.
//! - A part of a transaction is no transaction: reading an entry goes one level deep, whatever its
//!   bytes say.
//! - Reading reserves nothing by a number in the bytes: the counted bytes must be there.

use crate::counts::CountDelta;
use crate::record_cache;
use std::sync::Arc;

/// A key of the one keyspace: `tablet u64 BE | space u8 | index id u32 BE | rest`.
pub type Key = Vec<u8>;

/// A collection's UUID.
pub type Uuid = [u8; 16];

/// One change of the keyspace, absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// Deletes `[low, high)`.
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Effect {
    /// The key of the effect; of a range, its lower bound.
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

/// The logical operation of the client's write. Change streams and the oplog read it; applying an
/// entry does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Noop,
    /// Every put into a record space is a document, so a batch is one atomic entry. No record
    /// existed under these keys before: caches rely on this. The entry may also delete other
    /// records, to make room in a capped collection.
    Insert,
    Update {
        /// The change in the format `$v: 2` of MongoDB's oplog. Empty: the document was replaced.
        diff: Vec<u8>,
        record_key: Vec<u8>,
    },
    Delete {
        /// What names the document, as BSON: its `_id`, behind the fields of its collection's shard
        /// key where it is sharded.
        record_key: Vec<u8>,
    },
    /// A BSON document that describes the collection or index that was created, changed or dropped.
    Ddl(Vec<u8>),
    /// The writes of a transaction with several documents, in order. The entry around them carries
    /// the session, and has the effects on the session's own record.
    Transaction(Vec<Entry>),
    /// A configuration of the replica set, and the change of its voters in the form of the
    /// consensus, empty where there is none. This room looks at neither.
    Membership {
        config: Vec<u8>,
        change: Vec<u8>,
    },
    /// A note of a user: a BSON document. It is of data format 5: written only where all members read
    /// that.
    Note(Vec<u8>),
}

/// One write, or one transaction: in the log one entry, in the engine one atomic change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `database.collection`; empty when the entry belongs to no collection. Shared with the
    /// catalog.
    pub ns: Arc<str>,
    pub uuid: Uuid,
    pub session: Option<OpSession>,
    pub op: Op,
    pub effects: Vec<Effect>,
    /// The change in the number and size of its tablet's records.
    pub count: Option<CountDelta>,
    /// The document before an update or a delete, where the collection keeps such images.
    pub pre_image: Option<Vec<u8>>,
    /// It is a part of the move of a range between shards: to the cluster nothing has changed.
    pub migrated: bool,
}

/// The namespace of [`Entry::mark`]: no collection can have it.
const MARK: &str = "local.$mark";

const TAG_DELETE: u8 = 0x00;
const TAG_PUT: u8 = 0x01;
const TAG_DELETE_RANGE: u8 = 0x02;

const KIND_NOOP: u8 = 0;
const KIND_INSERT: u8 = 1;
const KIND_UPDATE: u8 = 2;
const KIND_DELETE: u8 = 3;
const KIND_DDL: u8 = 4;
const KIND_TRANSACTION: u8 = 5;
const KIND_MEMBERSHIP: u8 = 6;
const KIND_NOTE: u8 = 7;
const WITH_SESSION: u8 = 0x80;
const WITH_COUNT: u8 = 0x40;
const WITH_PRE_IMAGE: u8 = 0x20;
const MIGRATED: u8 = 0x10;
/// What the first byte says beside the kind.
const FLAGS: u8 = WITH_SESSION | WITH_COUNT | WITH_PRE_IMAGE | MIGRATED;

/// The most bytes that an entry may have: the log's frame holds no more.
pub const MAX_ENTRY_BYTES: usize = oplog::MAX_PAYLOAD_BYTES;
/// The most bytes of an effect's tag and its two lengths.
const EFFECT_HEAD_BYTES: usize = 11;
/// A bound of an entry's fixed-size fields, and of the lengths and numbers of the rest.
const ENTRY_HEAD_BYTES: usize = 128;

/// What the first bytes of an entry tell about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryGlance<'a> {
    /// A write to documents of one collection: `database.collection`.
    Documents(&'a str),
    /// Anything else, such as a transaction.
    Other,
}

impl EntryGlance<'_> {
    /// `None` when the bytes are not an entry.
    pub fn at(bytes: &[u8]) -> Option<EntryGlance<'_>> {
        let mut rest = Cursor(bytes);
        let head = rest.byte()?;
        let _uuid: Uuid = rest.array()?;
        let ns = std::str::from_utf8(rest.bytes()?).ok()?;
        let kind = head & !FLAGS;
        Some(match kind {
            KIND_INSERT | KIND_UPDATE | KIND_DELETE => EntryGlance::Documents(ns),
            _ => EntryGlance::Other,
        })
    }
}

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
    /// Whether it is one of a record: what it puts is a document then.
    pub fn is_of_record(&self) -> bool {
        record_cache::is_record(self.key())
    }

    /// The size of its keys and values, without lengths and tag.
    pub(crate) fn size(&self) -> usize {
        match self {
            Effect::Put(a, b) | Effect::DeleteRange(a, b) => a.len() + b.len(),
            Effect::Delete(key) => key.len(),
        }
    }

    fn encode(&self, buf: &mut Vec<u8>) {
        match self {
            Effect::Put(key, value) => {
                buf.reserve(key.len() + value.len() + EFFECT_HEAD_BYTES);
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
    pub fn new(ns: Arc<str>, uuid: Uuid, op: Op, effects: Vec<Effect>) -> Entry {
        Entry {
            ns,
            uuid,
            session: None,
            op,
            effects,
            count: None,
            pre_image: None,
            migrated: false,
        }
    }

    /// An entry that belongs to no collection and has only effects.
    pub fn noop(effects: Vec<Effect>) -> Entry {
        Entry::new(Arc::default(), [0; 16], Op::Noop, effects)
    }

    /// An entry without content whose state every member can look at: an observer that is told of it
    /// sees nothing of what comes after it, on whichever member.
    pub fn mark(name: Uuid) -> Entry {
        Entry::new(MARK.into(), name, Op::Noop, Vec::new())
    }

    pub fn is_mark(&self) -> bool {
        self.op == Op::Noop && &*self.ns == MARK
    }

    /// The plain entries in the order of application: the parts of a transaction, then the entry
    /// itself with its own effects and count.
    pub fn plain(&self) -> impl Iterator<Item = &Entry> + Clone {
        let parts: &[Entry] = match &self.op {
            Op::Transaction(parts) => parts,
            _ => &[],
        };
        parts.iter().chain(std::iter::once(self))
    }

    /// All effects in the order of application, see [`Entry::plain`].
    pub fn into_effects(self) -> impl Iterator<Item = Effect> {
        let parts = match self.op {
            Op::Transaction(parts) => parts,
            _ => Vec::new(),
        };
        let of_parts = parts.into_iter().flat_map(|part| part.effects);
        of_parts.chain(self.effects)
    }

    /// An upper bound of the bytes that the entry takes in the log.
    pub fn size_bound(&self) -> usize {
        let parts = match &self.op {
            Op::Transaction(parts) => parts.iter().map(Entry::size_bound).sum(),
            Op::Update { diff, record_key } => diff.len() + record_key.len(),
            Op::Delete { record_key } => record_key.len(),
            Op::Ddl(doc) | Op::Note(doc) => doc.len(),
            Op::Membership { config, change } => config.len() + change.len(),
            Op::Noop | Op::Insert => 0,
        };
        let effects = self.effects.iter().map(|e| e.size() + EFFECT_HEAD_BYTES);
        let own = self.ns.len() + self.pre_image.as_ref().map_or(0, Vec::len);
        ENTRY_HEAD_BYTES + own + parts + effects.sum::<usize>()
    }

    /// How many timestamps before its own a transaction has: a reader that shows it in parts gives each
    /// its own. A part of more than this has one more, so the parts may be of twice as many bytes and
    /// still not fill up.
    pub(crate) fn reserved(&self) -> u64 {
        const PART_BYTES: usize = 6 << 20;
        match &self.op {
            Op::Transaction(_) => (self.size_bound() / PART_BYTES) as u64,
            _ => 0,
        }
    }

    /// Adds to the entry's count.
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
            Op::Note(_) => KIND_NOTE,
            Op::Insert => KIND_INSERT,
            Op::Update { .. } => KIND_UPDATE,
            Op::Delete { .. } => KIND_DELETE,
            Op::Ddl(_) => KIND_DDL,
            Op::Transaction(_) => KIND_TRANSACTION,
            Op::Membership { .. } => KIND_MEMBERSHIP,
        };
        let mut head = kind;
        if self.session.is_some() {
            head |= WITH_SESSION;
        }
        if self.count.is_some() {
            head |= WITH_COUNT;
        }
        if self.pre_image.is_some() {
            head |= WITH_PRE_IMAGE;
        }
        if self.migrated {
            head |= MIGRATED;
        }
        buf.push(head);
        buf.extend_from_slice(&self.uuid);
        put_bytes(buf, self.ns.as_bytes());
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
        if let Some(pre_image) = &self.pre_image {
            put_bytes(buf, pre_image);
        }
        match &self.op {
            Op::Noop | Op::Insert => {}
            Op::Update { diff, record_key } => {
                put_bytes(buf, diff);
                put_bytes(buf, record_key);
            }
            Op::Delete { record_key } => put_bytes(buf, record_key),
            Op::Ddl(doc) | Op::Note(doc) => put_bytes(buf, doc),
            Op::Transaction(parts) => encode_parts(parts, buf),
            Op::Membership { config, change } => {
                put_bytes(buf, config);
                put_bytes(buf, change);
            }
        }
        put_varint(buf, self.effects.len());
        for effect in &self.effects {
            effect.encode(buf);
        }
    }

    /// The configuration and the change of voters, where `bytes` are an entry of that kind.
    pub fn membership(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        if bytes.first()? & !FLAGS != KIND_MEMBERSHIP {
            return None;
        }
        match Entry::decode(bytes)?.op {
            Op::Membership { config, change } => Some((config, change)),
            _ => None,
        }
    }

    /// Whether the bytes of an entry say that it is one of DDL.
    pub fn is_ddl(bytes: &[u8]) -> bool {
        let kind = bytes.first().map(|b| b & !FLAGS);
        matches!(kind, Some(KIND_DDL))
    }

    /// The collection of an entry that writes documents of one collection; `None` for any other entry.
    pub fn documents_of(bytes: &[u8]) -> Option<Uuid> {
        let mut rest = Cursor(bytes);
        let kind = rest.byte()? & !FLAGS;
        let uuid = rest.array()?;
        matches!(kind, KIND_INSERT | KIND_UPDATE | KIND_DELETE).then_some(uuid)
    }

    /// Its bytes, as they are in the log.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes an entry; `None` unless `bytes` hold exactly one.
    pub fn decode(bytes: &[u8]) -> Option<Entry> {
        Entry::decode_at(bytes, Depth::Whole)
    }

    fn decode_at(bytes: &[u8], depth: Depth) -> Option<Entry> {
        let mut rest = Cursor(bytes);
        let head = rest.byte()?;
        let uuid = rest.array()?;
        let ns = std::str::from_utf8(rest.bytes()?).ok()?.into();
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
        let pre_image = match head & WITH_PRE_IMAGE {
            0 => None,
            _ => Some(rest.bytes()?.to_vec()),
        };
        let op = match head & !FLAGS {
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
            KIND_NOTE => Op::Note(rest.bytes()?.to_vec()),
            KIND_MEMBERSHIP => Op::Membership {
                config: rest.bytes()?.to_vec(),
                change: rest.bytes()?.to_vec(),
            },
            KIND_TRANSACTION if depth == Depth::Whole => Op::Transaction(decode_parts(&mut rest)?),
            _ => return None,
        };
        let effect_count = rest.varint()?;
        // Nothing is reserved by a number from the bytes, which may be wrong.
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
            uuid,
            session,
            op,
            effects,
            count,
            pre_image,
            migrated: head & MIGRATED != 0,
        })
    }
}

/// Which operations are allowed: only an entry that is not a part may be a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Whole,
    Part,
}

fn encode_parts(parts: &[Entry], buf: &mut Vec<u8>) {
    put_varint(buf, parts.len());
    // A part's length precedes the part, and is known only after encoding it.
    let mut bytes = Vec::new();
    for part in parts {
        assert!(!matches!(part.op, Op::Transaction(_)), "a part is plain");
        bytes.clear();
        part.encode(&mut bytes);
        put_bytes(buf, &bytes);
    }
}

fn decode_parts(rest: &mut Cursor<'_>) -> Option<Vec<Entry>> {
    let mut parts = Vec::new();
    for _ in 0..rest.varint()? {
        parts.push(Entry::decode_at(rest.bytes()?, Depth::Part)?);
    }
    Some(parts)
}

/// A cursor over bytes that never reads beyond their end.
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
        let plain = [
            Op::Note(vec![5, 0, 0, 0, 0]),
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
        ];
        let entry = |op: Op, session: Option<OpSession>| Entry {
            ns: "db.häuser".into(),
            uuid: [1; 16],
            session,
            op,
            effects: effects.clone(),
            count: session.map(|_| CountDelta {
                tablet: 5,
                records: -1,
                bytes: 1 << 40,
            }),
            pre_image: session.map(|_| vec![6; 130]),
            migrated: session.is_some(),
        };
        let mut samples: Vec<Entry> = plain
            .into_iter()
            .flat_map(|op| [None, session].map(|session| entry(op.clone(), session)))
            .collect();
        let transaction = Op::Transaction(samples.clone());
        samples.push(entry(transaction, session));
        samples.push(entry(Op::Transaction(vec![]), None));
        samples.push(Entry::noop(vec![]));
        samples
    }

    fn bytes(entry: &Entry) -> Vec<u8> {
        let mut buf = Vec::new();
        entry.encode(&mut buf);
        buf
    }

    #[test]
    fn every_operation_comes_back() {
        for entry in samples() {
            let mut buf = vec![0xaa];
            entry.encode(&mut buf);
            assert!(buf.len() - 1 <= entry.size_bound());
            assert_eq!(Entry::decode(&buf[1..]), Some(entry));
        }
    }

    #[test]
    fn a_cut_or_longer_entry_is_refused() {
        for entry in samples() {
            let mut buf = bytes(&entry);
            for cut in 0..buf.len() {
                assert_eq!(Entry::decode(&buf[..cut]), None, "cut at {cut}");
            }
            buf.push(0);
            assert_eq!(Entry::decode(&buf), None);
        }
    }

    #[test]
    fn a_changed_byte_gives_another_entry_or_none() {
        for entry in samples() {
            let buf = bytes(&entry);
            for at in 0..buf.len() {
                for flip in [0x01, 0x20, 0x80, 0xff] {
                    let mut bent = buf.clone();
                    bent[at] ^= flip;
                    assert_ne!(Entry::decode(&bent).as_ref(), Some(&entry), "at {at}");
                }
            }
        }
    }

    #[test]
    fn a_transaction_holds_no_transaction() {
        let inner = bytes(&Entry {
            op: Op::Transaction(vec![]),
            ..Entry::noop(vec![])
        });
        // The same frame around a plain entry and around a transaction.
        let around = |part: &[u8]| {
            let mut buf = vec![KIND_TRANSACTION];
            buf.extend_from_slice(&[0; 16]);
            put_bytes(&mut buf, b"admin.$cmd");
            put_varint(&mut buf, 1);
            put_bytes(&mut buf, part);
            put_varint(&mut buf, 0);
            buf
        };
        assert!(Entry::decode(&around(&bytes(&Entry::noop(vec![])))).is_some());
        assert!(Entry::decode(&inner).is_some());
        assert_eq!(Entry::decode(&around(&inner)), None);
    }

    #[test]
    fn a_number_that_is_wrong_reserves_nothing() {
        let mut buf = vec![KIND_TRANSACTION];
        buf.extend_from_slice(&[0; 16]);
        put_bytes(&mut buf, b"");
        put_varint(&mut buf, u32::MAX as usize);
        assert_eq!(Entry::decode(&buf), None);
        buf[0] = KIND_INSERT;
        assert_eq!(Entry::decode(&buf), None);
    }

    #[test]
    fn parts_come_before_the_entry_itself() {
        let part = |n: u8| Entry::noop(vec![Effect::Delete(vec![n])]);
        let whole = Entry {
            op: Op::Transaction(vec![part(1), part(2)]),
            ..part(3)
        };
        let keys: Vec<&[u8]> = whole.plain().map(|e| e.effects[0].key()).collect();
        assert_eq!(keys, [[1], [2], [3]]);
        assert_eq!(part(4).plain().count(), 1);
    }
}
