//! Keys of the one keyspace: `tablet u64 BE | space u8 | index id u32 BE | rest`.

/// The length of what stands before `rest`.
pub const PREFIX: usize = 13;

/// Tablet 0 holds the system's own records.
pub const SYSTEM_TABLET: u64 = 0;

pub const SPACE_META: u8 = 0;
pub const SPACE_RECORD: u8 = 1;
pub const SPACE_INDEX: u8 = 2;
pub const SPACE_SESSION: u8 = 3;
/// Where the records of a collection lie that are not under their `_id`: see [`crate::numbers`].
pub const SPACE_ID: u8 = 4;

/// Kinds of meta records (in the place of the index id).
pub const META_COLLECTION: u32 = 1;
pub const META_NEXT_TABLET: u32 = 2;
pub const META_BUILD: u32 = 3;
/// Counts of records, which the store keeps itself (`storage::counts`): `tablet u64 BE` follows.
pub const META_COUNT: u32 = 4;
/// The time up to which states may have been pinned for snapshots of all shards.
pub const META_RESERVED_TIME: u32 = 5;

/// Kinds of records of sessions (in the place of the index id): what retryable writes and
/// transactions came to, prepared transactions, decisions that not all shards have heard of.
pub const SESSION_RECORD: u32 = 0;
pub const SESSION_PREPARED: u32 = 1;
pub const SESSION_DECISION: u32 = 2;

pub type Prefix = [u8; PREFIX];

pub fn prefix(tablet: u64, space: u8, id: u32) -> Prefix {
    let mut p = [0; PREFIX];
    p[..8].copy_from_slice(&tablet.to_be_bytes());
    p[8] = space;
    p[9..].copy_from_slice(&id.to_be_bytes());
    p
}

/// The least key above every key of the prefix.
pub fn prefix_end(p: &Prefix) -> Vec<u8> {
    bson::key::successor(p).expect("no space is numbered 255")
}

/// `[low, high)` of all that belongs to a tablet.
pub fn tablet_range(tablet: u64) -> (Vec<u8>, Vec<u8>) {
    (
        tablet.to_be_bytes().to_vec(),
        (tablet + 1).to_be_bytes().to_vec(),
    )
}

pub fn join(p: &Prefix, rest: &[u8]) -> Vec<u8> {
    let mut k = Vec::with_capacity(PREFIX + rest.len());
    k.extend_from_slice(p);
    k.extend_from_slice(rest);
    k
}
