//! What one write is: a log entry, and its bytes.
//!
//! ```text
//! entry   = head u8 | namespace [16] | session? | operation | count varint | effect*
//! head    = operation kind (bits 0..4) | 0x80 when a session follows
//! session = lsid [16] | transaction number u64 LE | statement id u32 LE
//! operation, by kind:
//!   0 no-op   –
//!   1 insert  –                          (effect 0 is the put of the document)
//!   2 update  diff bytes | record key bytes
//!   3 delete  the document's `_id` as a BSON document, bytes
//!   4 ddl     BSON document, bytes
//! effect  = 0x01 key bytes value bytes   put
//!         | 0x00 key bytes               delete
//!         | 0x0f low bytes high bytes    delete of [low, high)
//! bytes   = length varint (LEB128, at most 32 bits) | that many bytes
//! ```
//!
//! Invariant: the effects are the tail of the entry and have the very layout of the engine's write batch, so that a group is
//! handed to the engine (and replayed from the log) by copying bytes, without building anything per record. Effects are
//! absolute: applying an entry twice, or over newer state, converges.

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
    /// `effects[0]` is the put of the document.
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
}
