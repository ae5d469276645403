//! From documents to records and index entries: what one document's change means in the keyspace.

use bson::{Doc, DocBuf, MAX_DEPTH, MAX_DOC_BYTES, ObjectId, Val, Writer, key, tag};
use catalog::capped::ID_INDEX;
use catalog::keyspace::{PREFIX, Prefix};
use catalog::{Collection, Index};
use errors::{Error, Result, bail, err};
use query::index_keys::KeySet;
use storage::{Direction, Effect, View};

/// What is shorter cannot nest too deep.
const DEEP_BYTES: usize = 1024;

/// The hash under which a key of the keyspace is latched.
pub fn latch_hash(key: &[u8]) -> u64 {
    // FxHash-like: keys differ in their tails, collisions only cost a wait.
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for chunk in key.chunks(8) {
        let mut b = [0; 8];
        b[..chunk.len()].copy_from_slice(chunk);
        h = (h.rotate_left(5) ^ u64::from_le_bytes(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    h ^ (h >> 32)
}

/// A document as it is stored: `_id` first, generated when missing; empty timestamps at the top level are filled by `next_stamp`. Checks
/// what MongoDB checks of a document to insert.
pub fn prepare(doc: Doc<'_>, next_stamp: impl FnMut() -> u64) -> Result<Vec<u8>> {
    let mut first = None;
    let mut unstamped = false;
    let mut at = 0;
    let mut it = doc.iter();
    while let Some((name, v)) = it.next_raw() {
        if v.bytes.len() > DEEP_BYTES
            && let Some(d) = v.as_container()
            && bson::nests_deeper(d, MAX_DEPTH - 2)
        {
            bail!(
                Overflow,
                "cannot insert document because it exceeds {MAX_DEPTH} levels of nesting"
            );
        }
        if name == b"_id" && first.is_none() {
            first = Some((at, v));
        } else if v.tag == tag::TIMESTAMP && v.as_timestamp() == Some(0) {
            unstamped = true;
        }
        at += 1;
    }
    let bytes = match first {
        Some((0, id)) => {
            query::update::check_id(id)?;
            doc.as_bytes().to_vec()
        }
        Some((_, id)) => {
            query::update::check_id(id)?;
            let mut w = Writer::with_capacity(doc.len());
            w.val("_id", id);
            doc.iter().filter(|e| e.name != "_id").for_each(|e| {
                w.val(e.name, e.val);
            });
            w.finish().into_vec()
        }
        None => {
            let mut w = Writer::with_capacity(doc.len() + 17);
            w.oid("_id", ObjectId::generate()).extend(doc);
            w.finish().into_vec()
        }
    };
    let bytes = match unstamped {
        false => bytes,
        true => match DocBuf::from_vec(bytes) {
            Some(d) => query::update::stamp_each(d, next_stamp).into_vec(),
            None => bail!(InternalError, "prepared document is damaged"),
        },
    };
    if bytes.len() > MAX_DOC_BYTES {
        bail!(
            BSONObjectTooLarge,
            "object to insert too large. size in bytes: {}, max size: {MAX_DOC_BYTES}",
            bytes.len()
        );
    }
    Ok(bytes)
}

/// The `_id` of a stored document.
pub fn id_of(doc: Doc<'_>) -> Result<Val<'_>> {
    doc.get("_id")
        .ok_or_else(|| Error::internal("a stored document has no _id"))
}

/// The store's key of the record with that `_id`, wherever it lies; it need not exist where records lie under their `_id`.
/// `None`: there is no such record.
pub fn locate(view: &View, coll: &Collection, id: Val<'_>) -> Result<Option<Vec<u8>>> {
    if coll.capped.is_none() {
        return Ok(Some(record_key(coll, id)));
    }
    let index = coll
        .index(ID_INDEX)
        .ok_or_else(|| Error::internal("a capped collection has no index on _id"))?;
    let mut low = index.prefix.to_vec();
    key::encode(id, false, &mut low, None);
    let high = key::successor(&low).unwrap_or_default();
    let mut scan = view.scan(&low, &high, Direction::Forward);
    Ok(match scan.next()? {
        true => Some(coll.record_key(scan.key().get(low.len()..).unwrap_or(&[]))),
        false => None,
    })
}

/// The store's key of the record whose `_id` this is, in a collection whose records lie under their `_id`.
pub fn record_key(coll: &Collection, id: Val<'_>) -> Vec<u8> {
    let mut k = Vec::with_capacity(PREFIX + 1 + id.bytes.len().max(9));
    k.extend_from_slice(&coll.record_prefix);
    key::encode(id, false, &mut k, None);
    k
}

/// Whether a document belongs into an index.
pub fn indexed(index: &Index, doc: Doc<'_>) -> Result<bool> {
    match &index.info.partial {
        Some(f) => f.matches(doc),
        None => Ok(true),
    }
}

/// The index keys of a document, and which fields of the index were arrays. `keys` is cleared first.
pub fn keys_of(index: &Index, doc: Doc<'_>, keys: &mut KeySet) -> Result<u64> {
    keys.clear();
    if !indexed(index, doc)? {
        return Ok(0);
    }
    Ok(index.info.key.extract(doc, index.info.sparse, keys)?.0)
}

/// Adds the deletes of a record and of all its index entries.
pub fn delete_effects(
    coll: &Collection,
    record_key: Vec<u8>,
    doc: Doc<'_>,
    keys: &mut KeySet,
    effects: &mut Vec<Effect>,
) -> Result<()> {
    for index in &coll.indexes {
        keys_of(index, doc, keys)?;
        effects.extend(
            keys.iter()
                .map(|(k, _)| Effect::Delete(entry_key(&index.prefix, k, &record_key))),
        );
    }
    effects.push(Effect::Delete(record_key));
    Ok(())
}

/// The keys of all entries that an index must have for a record: for whoever compares the two. `record_key` is without prefix.
pub fn entries_of(index: &Index, doc: Doc<'_>, record_key: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut keys = KeySet::default();
    keys_of(index, doc, &mut keys)?;
    let entry = |key: &[u8]| [&index.prefix, key, record_key].concat();
    Ok(keys.iter().map(|(key, _)| entry(key)).collect())
}

/// prefix | index key | record key (without its own prefix).
pub fn entry_key(prefix: &Prefix, index_key: &[u8], record_key: &[u8]) -> Vec<u8> {
    let record = record_key.get(PREFIX..).unwrap_or(&[]);
    let mut k = Vec::with_capacity(PREFIX + index_key.len() + record.len());
    k.extend_from_slice(prefix);
    k.extend_from_slice(index_key);
    k.extend_from_slice(record);
    k
}

/// The hash under which one value of a unique index is latched.
pub fn unique_hash(index: &Index, index_key: &[u8]) -> u64 {
    latch_hash(index_key)
        ^ (u64::from(index.id) << 40)
        ^ u64::from_be_bytes(index.prefix[..8].try_into().unwrap_or([0; 8]))
}

/// Fails when a unique index holds `index_key` for another record than `record_key`.
pub fn check_unique(
    view: &View,
    coll: &Collection,
    index: &Index,
    index_key: &[u8],
    types: &[u8],
    record_key: &[u8],
) -> Result<()> {
    let mut low = index.prefix.to_vec();
    low.extend_from_slice(index_key);
    let high = key::successor(&low).unwrap_or_default();
    let mut scan = view.scan(&low, &high, Direction::Forward);
    while scan.next()? {
        if scan.key().get(low.len()..) != record_key.get(PREFIX..) {
            return Err(duplicate(coll, index, index_key, types));
        }
    }
    Ok(())
}

/// The error of a second value in a unique index.
pub fn duplicate(coll: &Collection, index: &Index, index_key: &[u8], types: &[u8]) -> Error {
    let mut d = key::Decoder::new(index_key, types);
    let mut w = Writer::new();
    for f in &index.info.key.fields {
        let v = d.field(f.descending).flatten();
        w.val(
            f.path.as_str(),
            v.as_ref().map_or(Val::NULL, |v| v.as_val()),
        );
    }
    let pattern = index
        .spec
        .get("key")
        .and_then(|v| v.as_doc())
        .map(|d| d.to_buf())
        .unwrap_or_default();
    duplicate_error(&coll.ns, index.name(), &pattern, &w.finish())
}

/// The error of a second `_id`.
pub fn duplicate_id(coll: &Collection, id: Val<'_>) -> Error {
    let mut w = Writer::new();
    w.val("_id", id);
    duplicate_error(&coll.ns, "_id_", &bson::doc! { "_id": 1 }, &w.finish())
}

fn duplicate_error(ns: &str, index: &str, pattern: &DocBuf, value: &DocBuf) -> Error {
    let extra = bson::doc! { "keyPattern": pattern, "keyValue": value };
    err!(
        DuplicateKey,
        "E11000 duplicate key error collection: {ns} index: {index} dup key: {}",
        bson::shell::doc(value.as_doc())
    )
    .with_extra(extra.into_vec())
}

/// The puts of a new document's index entries.
pub fn put_entry(index: &Index, index_key: &[u8], types: &[u8], record_key: &[u8]) -> Effect {
    Effect::Put(
        entry_key(&index.prefix, index_key, record_key),
        types.to_vec(),
    )
}
