//! Index changes: the index entries that a record's change adds, removes or retypes.
//!
//! Invariant: every write of records (insert, update, delete, expiry, room in a capped collection)
//! takes its index effects from here, computed from the document before and the document after. So
//! an index cannot be maintained by one kind of write and forgotten by another.

use crate::op::OpCtx;
use crate::records;
use crate::write::taken_keys::TakenKeys;
use bson::{Doc, Elem};
use catalog::{Collection, Index};
use errors::Result;
use query::expr::Vars;
use query::index_keys::KeySet;
use query::update::Update;
use std::cmp::Ordering;
use std::ops::Range;
use storage::{Effect, View};

/// A document before and after a write. Without `before` it is inserted, without `after` it is
/// deleted.
#[derive(Clone, Copy)]
pub(crate) struct Versions<'d> {
    pub before: Option<Doc<'d>>,
    pub after: Option<Doc<'d>>,
    /// The update between the two. Indexes on paths that it cannot touch are skipped.
    pub update: Option<&'d Update>,
}

impl Versions<'_> {
    /// Whether all that an index has its keys from is in both versions byte for byte. Asked only where many keys
    /// come from a document, or making them takes long: a single one is made about as fast as its fields are compared.
    fn keep_keys_of(&self, index: &Index) -> bool {
        let (Some(before), Some(after)) = (self.before, self.after) else {
            return false;
        };
        let is_dear = index.info.key.is_laborious() || index.info.multikey != 0;
        is_dear
            && index.info.partial.is_none()
            && !(index.info.key).concerned(|path| differs(before, after, path))
    }
}

/// Whether the top-level field that a path begins with is another in each.
fn differs(before: Doc<'_>, after: Doc<'_>, path: &str) -> bool {
    let name = path.split('.').next().unwrap_or(path);
    // A document may have a field twice.
    let has_name = |e: &Elem<'_>| e.name == name;
    let before = before.iter().filter(has_name).map(|e| e.val);
    !before.eq(after.iter().filter(has_name).map(|e| e.val))
}

/// The index changes of some records, in buffers that are reused. Each record's changes are a range
/// of them.
#[derive(Default)]
pub(crate) struct IndexChanges {
    changes: Vec<IndexChange>,
    /// The keys and types of all changes.
    bytes: Vec<u8>,
    /// For each index of the collection: the fields of its key that were arrays.
    multikey: Vec<u64>,
    keys_before: KeySet,
    keys_after: KeySet,
    watched: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Add,
    Remove,
    /// The key stays, the types with which it decodes are others (1 became 1.0).
    Retype,
}

/// `bytes[start..key_end]` is the index key, `bytes[key_end..end]` its types.
#[derive(Clone, Copy)]
struct IndexChange {
    /// Position in the collection's indexes.
    index: usize,
    kind: Kind,
    start: usize,
    key_end: usize,
    end: usize,
}

impl IndexChanges {
    /// Making keys asks the operation from now on, where the collection has an index for which that
    /// may take long.
    pub fn watched_by(&mut self, ctx: &OpCtx, coll: &Collection) {
        if !self.watched && coll.indexes.iter().any(|i| i.info.key.is_laborious()) {
            let vars = ctx.interruptible(&Vars::default());
            self.keys_before.watched_by(vars.clone(), false);
            self.keys_after.watched_by(vars, true);
            self.watched = true;
        }
    }

    pub fn clear(&mut self) {
        self.changes.clear();
        self.bytes.clear();
    }

    /// Adds the changes of one record; returns their range. On an error nothing is added.
    pub fn add(&mut self, coll: &Collection, versions: Versions<'_>) -> Result<Range<usize>> {
        let (first, bytes) = (self.changes.len(), self.bytes.len());
        self.multikey.resize(coll.indexes.len(), 0);
        for (i, index) in coll.indexes.iter().enumerate() {
            if let Err(e) = self.compare(i, index, versions) {
                self.changes.truncate(first);
                self.bytes.truncate(bytes);
                return Err(e);
            }
        }
        Ok(first..self.changes.len())
    }

    /// Adds the changes of one record's entries in one index.
    fn compare(&mut self, i: usize, index: &Index, versions: Versions<'_>) -> Result<()> {
        if let Some(update) = versions.update
            && index.info.partial.is_none()
            && !index.info.key.concerned(|path| update.may_touch(path))
        {
            return Ok(());
        }
        if versions.keep_keys_of(index) {
            return Ok(());
        }
        self.keys_before.clear();
        self.keys_after.clear();
        if let Some(doc) = versions.before {
            records::keys_of(index, doc, &mut self.keys_before)?;
        }
        if let Some(doc) = versions.after {
            self.multikey[i] |= records::keys_of(index, doc, &mut self.keys_after)?;
        }
        errors::operation::steps(self.keys_before.len() + self.keys_after.len())?;
        let (changes, bytes) = (&mut self.changes, &mut self.bytes);
        let mut push = |kind, (key, types): (&[u8], &[u8])| {
            let start = bytes.len();
            bytes.extend_from_slice(key);
            let key_end = bytes.len();
            bytes.extend_from_slice(types);
            changes.push(IndexChange {
                index: i,
                kind,
                start,
                key_end,
                end: bytes.len(),
            });
        };
        // Both sets are in key order.
        let mut before = self.keys_before.iter().peekable();
        for new in self.keys_after.iter() {
            while let Some(gone) = before.next_if(|old| old.0 < new.0) {
                push(Kind::Remove, gone);
            }
            match before.peek().map(|old| old.0.cmp(new.0)) {
                Some(Ordering::Equal) => {
                    if before.next().is_some_and(|old| old.1 != new.1) {
                        push(Kind::Retype, new);
                    }
                }
                _ => push(Kind::Add, new),
            }
        }
        before.for_each(|gone| push(Kind::Remove, gone));
        Ok(())
    }

    /// For each index of the collection: the fields of its key that were arrays in some document.
    pub fn multikey(&self) -> &[u64] {
        &self.multikey
    }

    /// The position of the index, the key and the types of each new entry in a unique index.
    fn unique_additions<'c>(
        &'c self,
        coll: &'c Collection,
        range: Range<usize>,
    ) -> impl Iterator<Item = (usize, &'c [u8], &'c [u8])> {
        self.changes[range]
            .iter()
            .filter(|c| c.kind == Kind::Add && coll.indexes[c.index].info.unique)
            .map(|c| {
                let (key, types) = self.parts(c);
                (c.index, key, types)
            })
    }

    fn parts(&self, change: &IndexChange) -> (&[u8], &[u8]) {
        self.bytes[change.start..change.end].split_at(change.key_end - change.start)
    }

    /// The latch hashes of new entries in unique indexes.
    pub fn unique_hashes<'c>(
        &'c self,
        coll: &'c Collection,
        range: Range<usize>,
    ) -> impl Iterator<Item = u64> {
        self.unique_additions(coll, range)
            .map(|(i, key, _)| records::unique_hash(&coll.indexes[i], key))
    }

    /// Fails with DuplicateKey when another record than `own` has one of the new unique keys, whose
    /// latches are held. `own` is the store's key of the record; `None` for a new record.
    pub fn check_unique(
        &self,
        view: &View,
        coll: &Collection,
        range: Range<usize>,
        own: Option<&[u8]>,
    ) -> Result<()> {
        self.unique_additions(coll, range)
            .try_for_each(|(i, key, types)| {
                records::check_unique(view, coll, &coll.indexes[i], key, types, own)
            })
    }

    /// The same check against the earlier records of a batch.
    pub fn check_taken(
        &self,
        coll: &Collection,
        range: Range<usize>,
        taken: &[TakenKeys<'_>],
    ) -> Result<()> {
        self.unique_additions(coll, range)
            .find(|(i, key, _)| taken.get(*i).is_some_and(|t| t.contains(key)))
            .map_or(Ok(()), |(i, key, types)| {
                Err(records::duplicate(coll, &coll.indexes[i], key, types).into())
            })
    }

    /// Notes the new keys of a record in unique indexes as taken.
    pub fn take<'c>(
        &'c self,
        coll: &'c Collection,
        range: Range<usize>,
        taken: &mut [TakenKeys<'c>],
    ) {
        for (i, key, _) in self.unique_additions(coll, range) {
            taken[i].insert(key);
        }
    }

    /// For each index of the collection: the unique keys that a batch has taken, none yet.
    pub fn none_taken(&self, coll: &Collection) -> Vec<TakenKeys<'_>> {
        let has_unique = coll.indexes.iter().any(|index| index.info.unique);
        let indexes = if has_unique { coll.indexes.len() } else { 0 };
        (0..indexes).map(|_| TakenKeys::default()).collect()
    }

    /// Adds the effects of a record's changes. `record_key` is the store's key of the record.
    pub fn effects(
        &self,
        coll: &Collection,
        range: Range<usize>,
        record_key: &[u8],
        out: &mut Vec<Effect>,
    ) {
        out.extend(self.changes[range].iter().map(|c| {
            let (key, types) = self.parts(c);
            let index = &coll.indexes[c.index];
            match c.kind {
                Kind::Add | Kind::Retype => records::put_entry(index, key, types, record_key),
                Kind::Remove => records::delete_entry(index, key, record_key),
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use bson::{DocBuf, doc};
    use catalog::NewIndex;
    use storage::{Store, StoreOptions};

    /// Words are not cut again, and elements not gone through, where they cannot have changed.
    #[test]
    fn keys_that_cannot_have_changed_are_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap();
        engine.catalog.get_or_create("t.c").unwrap();
        let text = doc! {
            "v": 2, "key": doc! {"_fts": "text", "_ftsx": 1}, "name": "texts", "weights": doc! {"a.t": 1},
            "default_language": "english", "language_override": "language", "textIndexVersion": 3,
        };
        let tags = doc! {"v": 2, "key": doc! {"tags.n": 1}, "name": "tags"};
        let new = [text, tags].map(|spec| NewIndex { spec });
        let mut ctx = OpCtx::worker(&engine);
        crate::write::build::create_indexes(&mut ctx, "t.c", &new).unwrap();
        let tags = engine.catalog.get("t.c").unwrap().indexes[1].id;
        engine.catalog.set_multikey("t.c", tags, 1, true).unwrap();
        let coll = engine.catalog.get("t.c").unwrap();
        let before = doc! {"_id": 1, "a": doc! {"t": "green trees"}, "tags": bson::array![doc! {"n": 1}], "n": 1};
        let made = |after: &DocBuf, index: usize| {
            let mut changes = IndexChanges::default();
            changes.multikey.resize(2, 0);
            let versions = Versions {
                before: Some(before.as_doc()),
                after: Some(after.as_doc()),
                update: None,
            };
            changes
                .compare(index, &coll.indexes[index], versions)
                .unwrap();
            (changes.keys_after.len(), changes.changes.len())
        };
        let beside = doc! {"_id": 1, "n": 2, "tags": bson::array![doc! {"n": 1}], "a": doc! {"t": "green trees"}};
        assert_eq!((made(&beside, 0), made(&beside, 1)), ((0, 0), (0, 0)));
        let below = doc! {"_id": 1, "a": doc! {"t": "green trees", "language": "german"}, "tags": bson::array![doc! {"n": 2}]};
        assert_eq!((made(&below, 0), made(&below, 1)), ((2, 2), (1, 2)));
        let named = doc! {"_id": 1, "a": doc! {"t": "green trees"}, "tags": bson::array![doc! {"n": 1}], "language": "none"};
        assert_eq!((made(&named, 0).0, made(&named, 1)), (2, (0, 0)));
    }
}
