//! Records and index entries: how documents are laid out in the keyspace.

use bson::{Doc, DocBuf, MAX_DEPTH, MAX_DOC_BYTES, ObjectId, Val, Writer, key, tag};
use catalog::keyspace::{self, PREFIX, Prefix};
use catalog::numbers::{ID_INDEX, NUMBER, sequence_key, sequence_of};
use catalog::{Collection, Index};
use errors::{Error, Result, bail, err};
use query::index_keys::KeySet;
use std::borrow::Cow;
use storage::{Direction, Effect, Epoch, View};

/// A shorter document cannot be nested too deeply.
const DEEP_BYTES: usize = 1024;

/// The hash under which a key of the keyspace is latched. Prepared transactions store it: it is the
/// same in every version.
pub fn latch_hash(key: &[u8]) -> u64 {
    // A collision makes a transaction's lock a lock on another document too. A product carries
    // differences only upwards, so each step also brings them down: else the next chunk, which differs
    // where the last one did in numbers that follow each other, takes them back.
    let mut h: u64 = 0xcbf2_9ce4_8422_2325 ^ key.len() as u64;
    for chunk in key.chunks(8) {
        let mut b = [0; 8];
        b[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^= h >> 32;
    }
    h
}

/// A document as it is stored: `_id` first, generated when missing; empty timestamps at the top
/// level are filled by `next_stamp`. Checks what MongoDB checks of a document to insert.
pub fn prepare(doc: Doc<'_>, next_stamp: impl FnMut() -> u64) -> Result<DocBuf> {
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
    let prepared = match first {
        Some((0, id)) => {
            query::update::check_id(id)?;
            doc.to_buf()
        }
        Some((_, id)) => {
            query::update::check_id(id)?;
            let mut w = Writer::with_capacity(doc.len());
            w.val("_id", id);
            doc.iter().filter(|e| e.name != "_id").for_each(|e| {
                w.val(e.name, e.val);
            });
            w.finish()
        }
        None => {
            let mut w = Writer::with_capacity(doc.len() + 17);
            w.oid("_id", ObjectId::generate()).extend(doc);
            w.finish()
        }
    };
    let prepared = match unstamped {
        false => prepared,
        true => query::update::stamp_each(prepared, next_stamp),
    };
    let len = prepared.as_bytes().len();
    if len > MAX_DOC_BYTES {
        bail!(
            BSONObjectTooLarge,
            "object to insert too large. size in bytes: {len}, max size: {MAX_DOC_BYTES}"
        );
    }
    Ok(prepared)
}

/// A stored record as a document; an error that names collection and record key when it is damaged.
/// `key` may have the store's prefix.
#[inline]
pub(crate) fn stored<'r>(coll: &Collection, key: &[u8], record: &'r [u8]) -> Result<Doc<'r>> {
    Doc::of_stored(record).ok_or_else(|| damaged_record(coll, key).into())
}

#[cold]
fn damaged_record(coll: &Collection, key: &[u8]) -> Error {
    let key = shown_key(coll, key);
    Error::internal(format!("the record {key} of {} is damaged", coll.ns))
}

/// The error of an index entry that names a record which is not there; `key` is the store's.
#[cold]
pub(crate) fn missing_record(coll: &Collection, index: &Index, key: &[u8]) -> Error {
    err!(
        DataCorruptionDetected,
        "Erroneous index key found with reference to non-existent record id {}: the index {} of {}. \
         Consider dropping and then re-creating the index and then running the validate command on \
         the collection.",
        shown_key(coll, key),
        index.name(),
        coll.ns
    )
}

/// A record key in hexadecimal digits.
fn shown_key(coll: &Collection, key: &[u8]) -> String {
    let key = key.strip_prefix(&coll.record_prefix[..]).unwrap_or(key);
    key.iter().map(|b| format!("{b:02x}")).collect()
}

/// A key of the store without its prefix: for a record, the record key that index entries end with.
///
/// Every such key was made with a prefix, or comes from a range of keys with one. Anything else is
/// a bug, and would make index entries that point nowhere.
#[inline]
pub fn own_part(store_key: &[u8]) -> &[u8] {
    assert!(
        store_key.len() >= PREFIX,
        "a key of the store without its prefix: {store_key:02x?}"
    );
    &store_key[PREFIX..]
}

/// The `_id` of a stored document.
pub fn id_of(doc: Doc<'_>) -> Result<Val<'_>> {
    doc.get("_id")
        .ok_or_else(|| Error::internal("a stored document has no _id").into())
}

/// The store's key of the record with this `_id`. Where records lie under their `_id` the record
/// need not exist. `None`: there is no such record.
pub fn locate(view: &View, coll: &Collection, id: Val<'_>) -> Result<Option<Vec<u8>>> {
    if !coll.is_numbered() {
        return Ok(Some(record_key(coll, id)));
    }
    let index = coll.index(ID_INDEX);
    let index = index
        .ok_or_else(|| Error::internal(format!("{} has no index on _id to look in", coll.ns)))?;
    let mut entry = Vec::with_capacity(PREFIX + 1 + id.bytes.len().max(9));
    entry.extend_from_slice(&index.prefix);
    key::encode(id, false, &mut entry, None);
    let Some(value) = view.get(&entry)? else {
        return Ok(None);
    };
    let (number, _) = key_and_types(index, &[], 0, &value)?;
    Ok(Some(coll.record_key(number)))
}

/// A string `_id` of at least so many bytes is taken for a hash or a similar identifier: too long
/// to be part of every index entry.
const LONG_STRING: usize = 32;
const LONG_BINARY: usize = 16;

/// Whether `_id`s like this one probably come in random order, as hashes and random UUIDs do. Then
/// records are better stored under sequence numbers.
pub(crate) fn comes_in_no_order(id: Val<'_>) -> bool {
    match id.tag {
        tag::STRING => id.as_str().is_some_and(|s| s.len() >= LONG_STRING),
        // Versions 6 and 7 begin with the time.
        tag::BINARY => id.as_binary().is_some_and(|(_, b)| {
            let version = b.get(6).map(|v| v >> 4);
            b.len() >= LONG_BINARY && !(b.len() == 16 && matches!(version, Some(6 | 7)))
        }),
        _ => false,
    }
}

/// The store's keys of `many` new records, in a collection that stores records under sequence
/// numbers. `waiting`: the highest that a prepared transaction is to put there.
pub(crate) fn new_keys(
    newest: &View,
    waiting: Option<Vec<u8>>,
    epoch: Epoch,
    coll: &Collection,
    many: usize,
) -> Result<Vec<Vec<u8>>> {
    let numbers = coll.numbers.as_ref();
    let numbers = numbers
        .ok_or_else(|| Error::internal(format!("the records of {} have no numbers", coll.ns)))?;
    let first = numbers.take(many as u64, epoch, || {
        let waiting = waiting.and_then(|key| sequence_of(own_part(&key)));
        Ok(last_number(newest, coll)?.max(waiting))
    })?;
    let key = |n: u64| keyspace::join(&coll.record_prefix, &sequence_key(first.saturating_add(n)));
    Ok((0..many as u64).map(key).collect())
}

/// Whether a collection has no records.
pub(crate) fn none(view: &View, coll: &Collection) -> Result<bool> {
    let prefix = &coll.record_prefix;
    let mut scan = view.scan(prefix, &keyspace::prefix_end(prefix), Direction::Forward);
    Ok(!scan.next()?)
}

/// The sequence number of the newest record.
fn last_number(view: &View, coll: &Collection) -> Result<Option<u64>> {
    let prefix = &coll.record_prefix;
    let mut scan = view.scan(prefix, &keyspace::prefix_end(prefix), Direction::Backward);
    if !scan.next()? {
        return Ok(None);
    }
    let number = scan.key().get(PREFIX..).and_then(sequence_of);
    number.map(Some).ok_or_else(|| {
        Error::internal(format!("a record of {} lies under no number", coll.ns)).into()
    })
}

/// The store's key of the record whose `_id` this is, in a collection whose records lie under their
/// `_id`.
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

/// The index keys of a document, and which fields of the index were arrays. `keys` is cleared
/// first.
pub fn keys_of(index: &Index, doc: Doc<'_>, keys: &mut KeySet) -> Result<u64> {
    keys.clear();
    if !indexed(index, doc)? {
        return Ok(0);
    }
    Ok(index.info.key.extract(doc, index.info.sparse, keys)?.0)
}

/// The identity of each entry that an index must have for a record; [`identity`] gives that of an
/// existing entry. Used to verify indexes. `record_key` is without prefix.
pub fn entries_of(index: &Index, doc: Doc<'_>, record_key: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut keys = KeySet::default();
    keys_of(index, doc, &mut keys)?;
    let entry = |key: &[u8]| [&index.prefix, key, record_key].concat();
    Ok(keys.iter().map(|(key, _)| entry(key)).collect())
}

/// See [`entries_of`].
pub fn identity<'e>(index: &Index, entry: &'e [u8], value: &[u8]) -> Cow<'e, [u8]> {
    match index.id {
        ID_INDEX => Cow::Owned([entry, value.get(..NUMBER).unwrap_or(value)].concat()),
        _ => Cow::Borrowed(entry),
    }
}

/// Whether an entry with an identity from [`entries_of`] exists.
pub fn has_entry(view: &View, index: &Index, identity: &[u8]) -> Result<bool> {
    match index.id {
        ID_INDEX => {
            let Some(at) = identity.len().checked_sub(NUMBER) else {
                return Ok(false);
            };
            let (entry, number) = identity.split_at(at);
            let value = view.get(entry)?;
            Ok(value.is_some_and(|v| v.get(..NUMBER) == Some(number)))
        }
        _ => view.exists(identity),
    }
}

/// The rest of an entry after its fields: the record key, without prefix, and the type information
/// that the index key lacks. `entry` is without the index's prefix, and its fields end at `at`.
#[inline]
pub fn key_and_types<'e>(
    index: &Index,
    entry: &'e [u8],
    at: usize,
    value: &'e [u8],
) -> Result<(&'e [u8], &'e [u8])> {
    let parts = match index.id {
        ID_INDEX => value.split_at_checked(NUMBER),
        _ => entry.get(at..).map(|record| (record, value)),
    };
    parts.ok_or_else(|| damaged_entry(index).into())
}

/// The type information of an entry, which its key lacks.
#[inline]
pub(crate) fn types<'e>(index: &Index, value: &'e [u8]) -> Result<&'e [u8]> {
    match index.id {
        ID_INDEX => value
            .get(NUMBER..)
            .ok_or_else(|| damaged_entry(index).into()),
        _ => Ok(value),
    }
}

#[cold]
pub(crate) fn damaged_entry(index: &Index) -> Error {
    Error::internal(format!("an entry of index {} is damaged", index.name()))
}

/// prefix | index key | record key (without its own prefix).
fn entry_key(prefix: &Prefix, index_key: &[u8], record_key: &[u8]) -> Vec<u8> {
    let record = own_part(record_key);
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

/// Fails when a unique index has `index_key` for another record than `record_key`, the store's key
/// of an existing record.
pub fn check_unique(
    view: &View,
    coll: &Collection,
    index: &Index,
    index_key: &[u8],
    types: &[u8],
    record_key: Option<&[u8]>,
) -> Result<()> {
    let own = record_key.map(own_part);
    let mut low = Vec::with_capacity(PREFIX + index_key.len());
    low.extend_from_slice(&index.prefix);
    low.extend_from_slice(index_key);
    if index.id == ID_INDEX {
        return match view.get(&low)? {
            Some(value) if value.get(..NUMBER) != own => {
                Err(duplicate(coll, index, index_key, types).into())
            }
            _ => view.check_first_writer(&low),
        };
    }
    let high = key::successor(&low).expect("no space is numbered 255");
    let mut scan = view.scan(&low, &high, Direction::Forward);
    while scan.next()? {
        if scan.key().get(low.len()..) != own {
            return Err(duplicate(coll, index, index_key, types).into());
        }
    }
    view.check_unchanged(&low, &high)
}

/// The error for a duplicate value in a unique index.
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
    let pattern = index.info.key.as_doc().to_buf();
    let collation = index.info.key.collation().map(|c| c.spec());
    let place = (&*coll.ns, index.name());
    duplicate_error(place, collation, &pattern, w.finish().as_doc())
}

/// The error for a duplicate `_id`.
pub fn duplicate_id(coll: &Collection, id: Val<'_>) -> Error {
    let mut w = Writer::new();
    w.val("_id", id);
    let place = (&*coll.ns, "_id_");
    duplicate_error(place, None, &bson::doc! { "_id": 1 }, w.finish().as_doc())
}

/// The key's strings are shown as hexadecimal digits where they are not text: under a collation,
/// and where a client stored bytes as a string.
fn duplicate_error(
    (ns, index): (&str, &str),
    collation: Option<Doc<'_>>,
    pattern: &DocBuf,
    key: Doc<'_>,
) -> Error {
    use bson::hex_text::{Strings, in_hex};
    let strings = match collation {
        Some(_) => Strings::All,
        None => Strings::Invalid,
    };
    let (mut shown, mut value) = (Writer::new(), Writer::new());
    let mut encoded = Vec::new();
    for e in key {
        let (v, changed) = in_hex(e.val, strings, "");
        value.val(e.name, v.as_val());
        shown.val(e.name, in_hex(e.val, strings, "0x").0.as_val());
        encoded.push(changed);
    }
    let mut extra = Writer::new();
    extra.doc("keyPattern", pattern.as_doc());
    extra.doc("keyValue", value.finish().as_doc());
    if encoded.contains(&true) {
        extra.open_array("hexEncoded");
        for changed in encoded {
            extra.push_value(changed);
        }
        extra.close();
    }
    let mut under = String::new();
    if let Some(c) = collation {
        extra.doc("collation", c);
        under = format!(" collation: {}", bson::shell::doc(c));
    }
    err!(
        DuplicateKey,
        "E11000 duplicate key error collection: {ns} index: {index}{under} dup key: {}",
        bson::shell::doc(shown.finish().as_doc())
    )
    .with_extra(extra.finish().into_vec())
}

/// The put of one index entry of a document.
pub fn put_entry(index: &Index, index_key: &[u8], types: &[u8], record_key: &[u8]) -> Effect {
    if index.id == ID_INDEX {
        let number = own_part(record_key);
        return Effect::Put(
            keyspace::join(&index.prefix, index_key),
            [number, types].concat(),
        );
    }
    Effect::Put(
        entry_key(&index.prefix, index_key, record_key),
        types.to_vec(),
    )
}

/// The delete of one index entry of a document.
pub(crate) fn delete_entry(index: &Index, index_key: &[u8], record_key: &[u8]) -> Effect {
    Effect::Delete(match index.id {
        ID_INDEX => keyspace::join(&index.prefix, index_key),
        _ => entry_key(&index.prefix, index_key, record_key),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::Value;
    use std::collections::HashMap;

    #[test]
    fn keys_of_neighbours_do_not_collide() {
        let prefix = keyspace::prefix(77, keyspace::SPACE_RECORD, 0);
        let numbers = (0..20_000i32).map(Value::from);
        let fractions = (0..20_000).map(|i| Value::from(f64::from(i) / 8.0 + 0.0625));
        let texts = (0..20_000).map(|i| Value::from(format!("user{i}")));
        let mut seen = HashMap::new();
        for id in numbers.chain(fractions).chain(texts) {
            let mut k = prefix.to_vec();
            key::encode(id.as_val(), false, &mut k, None);
            if let Some(other) = seen.insert(latch_hash(&k), k.clone()) {
                assert_eq!(other, k, "two keys of one hash");
            }
        }
        assert_eq!(seen.len(), 60_000);
    }
}
