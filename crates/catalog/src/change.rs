//! Reads and changes the catalog. Lock order: a collection's write lock, then the catalog's mutex;
//! never the other way round, since a statement that holds the former may need the latter
//! (`set_multikey`).

use crate::applied::{self, PendingCollection, Published};
use crate::collection::{CheckInterrupt, Collection, Frozen, Index, IndexState, now_millis};
use crate::keyspace::{self, META_BUILD, SPACE_META, SYSTEM_TABLET};
use crate::names::Names;
use crate::view_definition::{self, Row};
use crate::{check_collection_name, record};
use bson::{Doc, DocBuf, Writer, doc};
use errors::{Error, Result, Suspension, bail, err};
use parking_lot::{Mutex, MutexGuard, RwLock};
use query::collation::Collation;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use storage::{Direction, Effect, Entry, Epoch, Op, Store, View};

/// One immutable state of the catalog.
#[derive(Default, Clone)]
pub struct Snapshot {
    collections: Names,
}

impl Snapshot {
    /// Fails where a collection would make a database whose name differs from another's by case only.
    /// Costs a step for each database, and nothing where the database is there.
    pub fn check_database(&self, ns: &str) -> Result<()> {
        let db = crate::db_of(ns);
        let first = |from: String| {
            let found = self.collections.values_from(&from).next()?;
            Some(crate::db_of(&found.ns).to_string())
        };
        if first(format!("{db}.")).is_some_and(|found| found == db) {
            return Ok(());
        }
        let mut at = first(String::new());
        while let Some(other) = at {
            if other.eq_ignore_ascii_case(db) {
                bail!(
                    DatabaseDifferCase,
                    "db already exists with different case already have: [{other}] trying to create [{db}]"
                );
            }
            // The name that comes next after all that begin with this one and a point.
            at = first(format!("{other}/"));
        }
        Ok(())
    }

    /// The catalog as of a view of the store.
    pub fn read(view: &View) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        let p = applied::collection_records();
        let mut scan = view.scan(&p, &keyspace::prefix_end(&p), Direction::Forward);
        while scan.next()? {
            let c = applied::read_record(scan.value())?;
            snapshot.collections.insert(Arc::new(c));
        }
        Ok(snapshot)
    }

    /// The names that several collections in a store have; a snapshot holds one collection of each
    /// name. Nothing but a fault of this server makes such a store.
    pub fn doubled_names(view: &View) -> Result<Vec<String>> {
        let (mut seen, mut doubled) = (BTreeSet::new(), BTreeSet::new());
        let p = applied::collection_records();
        let mut scan = view.scan(&p, &keyspace::prefix_end(&p), Direction::Forward);
        while scan.next()? {
            let ns = applied::read_record(scan.value())?.ns.to_string();
            if let Some(ns) = seen.replace(ns) {
                doubled.insert(ns);
            }
        }
        Ok(doubled.into_iter().collect())
    }

    pub fn get(&self, ns: &str) -> Option<&Arc<Collection>> {
        self.collections.get(ns)
    }

    #[cfg(test)]
    pub(crate) fn insert(&mut self, c: Arc<Collection>) {
        self.collections.insert(c);
    }

    pub(crate) fn names_mut(&mut self) -> &mut Names {
        &mut self.collections
    }

    /// Adds collections that only their transaction sees.
    pub fn with(&self, collections: impl Iterator<Item = Arc<Collection>>) -> Snapshot {
        let mut all = self.clone();
        collections.for_each(|c| all.collections.insert(c));
        all
    }

    pub fn by_uuid(&self, uuid: &[u8; 16]) -> Option<&Arc<Collection>> {
        self.collections.by_uuid(uuid)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values()
    }

    /// The collections of one database, by name.
    pub fn of_db<'a>(&'a self, db: &str) -> impl Iterator<Item = &'a Arc<Collection>> + use<'a> {
        let prefix = format!("{db}.");
        self.collections
            .values_from(&prefix)
            .take_while(move |c| c.ns.starts_with(&prefix))
    }

    /// Names of databases that have a collection, sorted.
    pub fn databases(&self) -> Vec<String> {
        let mut dbs: Vec<&str> = self.collections.values().map(|c| c.db()).collect();
        // Between the collections of a database lie those of databases whose name continues with a
        // character below the dot.
        dbs.dedup();
        dbs.sort_unstable();
        dbs.dedup();
        dbs.into_iter().map(str::to_string).collect()
    }
}

/// A validated index to create; `spec` is complete (`v`, `key`, `name`, options).
#[derive(Clone, Debug)]
pub struct NewIndex {
    pub spec: DocBuf,
}

pub struct Catalog {
    store: Arc<Store>,
    current: Arc<Published>,
    /// Held from the reading before a change until the change is applied.
    change: Mutex<()>,
    /// When that began.
    epoch: Mutex<Epoch>,
}

fn collection_key(uuid: &[u8; 16]) -> Vec<u8> {
    keyspace::join(&applied::collection_records(), uuid)
}

fn put_record(c: &Collection) -> Effect {
    Effect::Put(collection_key(&c.uuid), record::write(c).into_vec())
}

/// Where an index build keeps the last record key it has done.
pub fn build_progress_key(tablet: u64, index: u32) -> Vec<u8> {
    let mut k = keyspace::join(
        &keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_BUILD),
        &tablet.to_be_bytes(),
    );
    k.extend_from_slice(&index.to_be_bytes());
    k
}

impl Catalog {
    /// Reads all records. Unfinished index builds have the state `Building`; the executor resumes
    /// them.
    pub fn open(store: Arc<Store>) -> Result<Catalog> {
        let view = store.view();
        let snapshot = Snapshot::read(&view)?;
        let mut next_tablet = snapshot.all().map(|c| c.tablet + 1).max().unwrap_or(1);
        if let Some(v) = view.get(&applied::next_tablet_key())? {
            next_tablet = next_tablet.max(applied::next_tablet_of(&v)?);
        }
        drop(view);
        let current = Arc::new(Published::new(snapshot, next_tablet));
        store.observe(current.clone())?;
        Ok(Catalog {
            store,
            current,
            change: Mutex::new(()),
            epoch: Mutex::default(),
        })
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.snapshot.load_full()
    }

    pub fn get(&self, ns: &str) -> Option<Arc<Collection>> {
        self.current.snapshot.load().get(ns).cloned()
    }

    /// The collation of a collection or view. Costs nothing where no collection has one.
    pub fn collation_of(&self, ns: &str) -> Option<query::collation::Collation> {
        let snapshot = self.current.snapshot.load();
        if !snapshot.collections.is_collated() {
            return None;
        }
        snapshot.get(ns).and_then(|c| c.collation.clone())
    }

    /// A view and the catalog of the same state. If one were newer, a reader could use an index
    /// whose entries its view lacks.
    pub fn consistent(
        &self,
        ns: &str,
        view: impl Fn() -> storage::View,
    ) -> (storage::View, Option<Arc<Collection>>) {
        loop {
            let before = self.current.snapshot.load();
            let v = view();
            let after = self.current.snapshot.load();
            if Arc::ptr_eq(&before, &after) {
                return (v, after.get(ns).cloned());
            }
        }
    }

    /// Writes the change `what` of a collection. When this returns, readers see what `effects` do
    /// to its record.
    fn propose(&self, c: &Collection, what: DocBuf, effects: Vec<Effect>) -> Result<()> {
        self.propose_with(c, what, effects, None)
    }

    /// With the change of `system.views` that goes with it.
    fn propose_with(
        &self,
        c: &Collection,
        what: DocBuf,
        mut effects: Vec<Effect>,
        row: Option<Row>,
    ) -> Result<()> {
        let mut count = None;
        if let Some(r) = row {
            effects.push(r.effect);
            count = Some((r.tablet, r.records, r.bytes));
        }
        let mut entry = Entry::new(c.ns.clone(), c.uuid, Op::Ddl(what.into_vec()), effects);
        if let Some((tablet, records, bytes)) = count {
            entry.count(tablet, records, bytes);
        }
        let epoch = *self.epoch.lock();
        self.store.propose_in(epoch, vec![entry])?;
        Ok(())
    }

    /// Takes the catalog's mutex: under it a change follows on what it has read.
    fn changing(&self) -> MutexGuard<'_, ()> {
        let change = self.change.lock();
        *self.epoch.lock() = self.store.epoch();
        change
    }

    fn try_changing(&self) -> Option<MutexGuard<'_, ()>> {
        let change = self.change.try_lock()?;
        *self.epoch.lock() = self.store.epoch();
        Some(change)
    }

    /// Creates a collection; `None` when there is one of that name already.
    pub fn create(&self, ns: &str, options: DocBuf) -> Result<Option<Arc<Collection>>> {
        self.create_as(ns, options, None)
    }

    /// The same with a UUID that is known elsewhere: a part of a collection on another shard has it. No
    /// other collection here may have it.
    pub fn create_as(
        &self,
        ns: &str,
        options: DocBuf,
        uuid: Option<[u8; 16]>,
    ) -> Result<Option<Arc<Collection>>> {
        check_collection_name(ns)?;
        if ns == "local.oplog.rs" {
            bail!(
                InvalidNamespace,
                "cannot write to {ns}: it is a view of the log"
            );
        }
        let _change = self.changing();
        if self.current.holder(ns)?.is_some() {
            return Ok(None);
        }
        let now = self.current.snapshot.load();
        now.check_database(ns)?;
        check_definition(&now, ns, options.as_doc())?;
        if let Some(other) = uuid.and_then(|uuid| now.by_uuid(&uuid).cloned()) {
            bail!(NamespaceExists, "{} has that UUID already", other.ns);
        }
        let list = view_definition::list_of(ns);
        if options.as_doc().contains("viewOn") && now.get(&list).is_none() {
            self.create_locked(&list, DocBuf::new(), None)?;
        }
        self.create_locked(ns, options, uuid).map(Some)
    }

    /// With the catalog's mutex held.
    fn create_locked(
        &self,
        ns: &str,
        options: DocBuf,
        uuid: Option<[u8; 16]>,
    ) -> Result<Arc<Collection>> {
        let tablet = self.current.take_tablet();
        let (c, what, effects) = new_collection(tablet, ns, options, uuid)?;
        let row = Row::change(&self.current.snapshot.load(), None, Some(&c));
        self.propose_with(&c, what, effects, row)?;
        self.applied(ns)
    }

    /// The version that the last proposal published, with the catalog's mutex held.
    fn applied(&self, ns: &str) -> Result<Arc<Collection>> {
        self.get(ns)
            .ok_or_else(|| Error::internal(format!("no {ns} after its entry was applied")).into())
    }

    /// A new collection that only its transaction sees until the entry, which is a part of the
    /// transaction's, is applied. `None`: there is one of that name.
    pub fn begin_create(
        &self,
        ns: &str,
        options: DocBuf,
    ) -> Result<Option<(PendingCollection, Entry)>> {
        check_collection_name(ns)?;
        let _change = self.changing();
        if self.current.holder(ns)?.is_some() {
            return Ok(None);
        }
        self.current.snapshot.load().check_database(ns)?;
        let (c, what, effects) = new_collection(self.current.take_tablet(), ns, options, None)?;
        let entry = Entry::new(c.ns.clone(), c.uuid, Op::Ddl(what.into_vec()), effects);
        Ok(Some((PendingCollection::new(&self.current, c), entry)))
    }

    /// Adds indexes to a pending collection that has no records. Gives the new version and its part
    /// of the transaction.
    pub fn add_pending_indexes(
        &self,
        coll: &Collection,
        new: &[NewIndex],
    ) -> Result<(Arc<Collection>, Entry)> {
        let mut next = Collection::clone(coll);
        push_indexes(&mut next, new, IndexState::Ready)?;
        next.refresh();
        Ok(version(next, create_indexes_of(&coll.ns, new)))
    }

    /// Notes in a pending collection which fields of an index hold arrays.
    pub fn set_pending_multikey(
        &self,
        coll: &Collection,
        id: u32,
        bits: u64,
    ) -> Result<(Arc<Collection>, Entry)> {
        let mut next = Collection::clone(coll);
        index_mut(&mut next, |i| i.id == id)?.info.multikey |= bits;
        next.refresh();
        let what = doc! { "setMultikey": &*coll.ns, "index": i64::from(id) };
        Ok(version(next, what))
    }

    /// The collection of that name, made with default options when it is missing.
    pub fn get_or_create(&self, ns: &str) -> Result<Arc<Collection>> {
        if let Some(c) = self.get(ns) {
            return Ok(c);
        }
        match self.create(ns, DocBuf::new())? {
            Some(c) => Ok(c),
            None => self
                .get(ns)
                .ok_or_else(|| err!(NamespaceNotFound, "ns does not exist: {ns}").into()),
        }
    }

    /// Runs `f` with the collection's write lock held exclusively and the catalog's mutex: no write
    /// is in flight on it. The wait for those ends with `interrupt`'s error; nothing has changed then.
    fn exclusive<R>(
        &self,
        ns: &str,
        interrupt: CheckInterrupt<'_>,
        f: impl FnOnce(&Arc<Collection>) -> Result<R>,
    ) -> Result<R> {
        loop {
            let c = self
                .get(ns)
                .ok_or_else(|| err!(NamespaceNotFound, "ns not found {ns}"))?;
            let _write = c.lock_exclusively(interrupt)?;
            let _change = self.changing();
            // It may have been dropped or replaced during the wait.
            match self.get(ns) {
                Some(now) if now.uuid == c.uuid => return f(&now),
                _ => continue,
            }
        }
    }

    /// Waits until all writes and changes that were in flight at the call are done; false when
    /// `deadline` passes first.
    pub fn drain(&self, deadline: Instant) -> bool {
        let all_over = self
            .snapshot()
            .all()
            .all(|c| RwLock::try_write_arc_until(&c.lock, deadline).is_some());
        all_over && self.change.try_lock_until(deadline).is_some()
    }

    /// Drops a collection; the dropped one, or NamespaceNotFound. The views of a database go with
    /// its `system.views`.
    pub fn drop_collection(
        &self,
        ns: &str,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<Arc<Collection>> {
        self.drop_as(ns, "drop", interrupt)
    }

    /// Drops a collection without an event: this is not its last place.
    pub fn drop_unseen(&self, ns: &str, interrupt: CheckInterrupt<'_>) -> Result<()> {
        self.drop_as(ns, "dropUnseen", interrupt).map(drop)
    }

    fn drop_as(
        &self,
        ns: &str,
        name: &str,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<Arc<Collection>> {
        self.exclusive(ns, interrupt, |c| {
            let mut gone = vec![c.clone()];
            if view_definition::is_list(ns) {
                let now = self.current.snapshot.load();
                gone.extend(now.of_db(c.db()).filter(|v| v.is_view()).cloned());
            }
            let effects = gone.iter().flat_map(|c| drop_effects(c)).collect();
            let row = Row::change(&self.current.snapshot.load(), Some(c), None);
            let mut what = Writer::new();
            what.str(name, ns);
            self.propose_with(c, what.finish(), effects, row)?;
            Ok(c.clone())
        })
    }

    /// Drops every collection of a database; the names of those dropped.
    pub fn drop_database(&self, db: &str, interrupt: CheckInterrupt<'_>) -> Result<Vec<String>> {
        let names: Vec<String> = self
            .snapshot()
            .of_db(db)
            .map(|c| c.ns.to_string())
            .collect();
        let mut dropped = Vec::new();
        for ns in names {
            match self.drop_collection(&ns, interrupt) {
                Ok(_) => dropped.push(ns),
                Err(e) if e.is(errors::Code::NamespaceNotFound) => {}
                Err(e) => return Err(e),
            }
        }
        if !dropped.is_empty() {
            let what = doc! { "dropDatabase": db };
            let ns = format!("{db}.$cmd").into();
            let entry = Entry::new(ns, [0; 16], Op::Ddl(what.into_vec()), vec![]);
            self.store.propose(vec![entry])?;
        }
        Ok(dropped)
    }

    /// Renames within or across databases (tablets carry no names); `drop_target` replaces an
    /// existing target.
    pub fn rename(
        &self,
        from: &str,
        to: &str,
        drop_target: bool,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<()> {
        self.rename_as("renameCollection", from, to, drop_target, interrupt)
    }

    /// Puts `with` in the place of `ns`, which is dropped if it is there. There is no event: followers
    /// of `ns` go on.
    pub fn swap(&self, with: &str, ns: &str, interrupt: CheckInterrupt<'_>) -> Result<()> {
        self.rename_as("swap", with, ns, true, interrupt)
    }

    fn rename_as(
        &self,
        name: &str,
        from: &str,
        to: &str,
        drop_target: bool,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<()> {
        check_collection_name(to)?;
        if from == to {
            bail!(IllegalOperation, "Can't rename a collection to itself");
        }
        let target = self.current.holder(to)?;
        if target.is_some() && !drop_target {
            bail!(NamespaceExists, "target namespace exists");
        }
        // The target's lock before the source's mutex section; a rename the other way round at the
        // same time waits on the same source lock first, so the two cannot hold one each: both take
        // the alphabetically first lock first.
        let first_target = to < from;
        let held = if first_target {
            target
                .as_ref()
                .map(|t| t.lock_exclusively(interrupt))
                .transpose()?
        } else {
            None
        };
        let result = {
            let source = self.get(from).ok_or_else(|| {
                err!(NamespaceNotFound, "Source collection {from} does not exist")
            })?;
            let _source = source.lock_exclusively(interrupt)?;
            let _target = if first_target {
                None
            } else {
                target
                    .as_ref()
                    .map(|t| t.lock_exclusively(interrupt))
                    .transpose()?
            };
            let _change = self.changing();
            let now = self.get(from).filter(|c| c.uuid == source.uuid);
            let now = now.ok_or_else(|| {
                err!(NamespaceNotFound, "Source collection {from} does not exist")
            })?;
            // A transaction may have created the target during the wait.
            let there = self.current.holder(to)?;
            match (&there, &target) {
                (Some(a), Some(b)) if a.uuid == b.uuid => {}
                (None, _) => {}
                _ => bail!(NamespaceExists, "target namespace exists"),
            }
            let mut what = Writer::new();
            what.str(name, from).str("to", to);
            what.bool("dropTarget", drop_target);
            self.propose_rename(&now, to, there.as_deref(), what)
        };
        drop(held);
        result
    }

    /// Gives a collection the name `to`, and drops what has it.
    fn propose_rename(
        &self,
        now: &Arc<Collection>,
        to: &str,
        there: Option<&Collection>,
        mut what: Writer,
    ) -> Result<()> {
        let mut renamed = Collection::clone(now);
        renamed.ns = to.into();
        let mut effects = vec![put_record(&renamed)];
        if let Some(t) = there {
            effects.extend(drop_effects(t));
            what.binary("targetUUID", 4, &t.uuid);
        }
        // Logged under the old name, which its followers know.
        self.propose(now, what.finish(), effects)
    }

    /// Replaces a frozen collection, which is dropped, by another.
    pub fn replace(&self, with: &str, ns: &str, frozen: &Frozen) -> Result<()> {
        let _change = self.changing();
        let (Some(new), Some(old)) = (self.get(with), self.get(ns)) else {
            bail!(NamespaceNotFound, "ns not found {ns}");
        };
        if old.uuid != frozen.uuid {
            bail!(NamespaceNotFound, "ns not found {ns}");
        }
        let mut moved = Collection::clone(&new);
        moved.ns = ns.into();
        let mut effects = vec![put_record(&moved)];
        effects.extend(drop_effects(&old));
        self.propose(
            &new,
            doc! { "renameCollection": with, "to": ns, "dropTarget": true },
            effects,
        )
    }

    /// Replaces a collection's version by what `change` makes of it, with the write lock held
    /// exclusively.
    fn alter<R>(
        &self,
        ns: &str,
        interrupt: CheckInterrupt<'_>,
        what: DocBuf,
        change: impl FnOnce(&mut Collection) -> Result<(R, Vec<Effect>)>,
    ) -> Result<R> {
        self.exclusive(ns, interrupt, |c| {
            let mut next = Collection::clone(c);
            let (r, mut effects) = change(&mut next)?;
            next.refresh();
            effects.insert(0, put_record(&next));
            let row = Row::change(&self.current.snapshot.load(), Some(c), Some(&next));
            self.propose_with(c, what, effects, row)?;
            Ok(r)
        })
    }

    /// Changes an empty collection to sequence numbers, if nothing else decides its layout; returns
    /// whether it uses numbers now. `empty` is called with the write lock held.
    pub fn number_records(
        &self,
        ns: &str,
        interrupt: CheckInterrupt<'_>,
        empty: impl FnOnce(&Collection) -> Result<bool>,
    ) -> Result<bool> {
        self.exclusive(ns, interrupt, |c| {
            if c.is_numbered() {
                return Ok(true);
            }
            if !c.may_be_numbered() || !empty(c)? {
                return Ok(false);
            }
            let mut next = Collection::clone(c);
            next.number()?;
            self.propose(c, doc! { "numberRecords": ns }, vec![put_record(&next)])?;
            Ok(true)
        })
    }

    /// Adds indexes in the state `Building` (`Ready` at once when the collection is empty): from
    /// now on writers maintain them. Returns their ids. `empty` is asked with the write lock held.
    pub fn add_indexes(
        &self,
        ns: &str,
        new: &[NewIndex],
        interrupt: CheckInterrupt<'_>,
        empty: impl FnOnce(&Collection) -> Result<bool>,
    ) -> Result<Vec<(u32, bool)>> {
        self.alter(ns, interrupt, create_indexes_of(ns, new), |c| {
            let ready = empty(c)?;
            let state = match ready {
                true => IndexState::Ready,
                false => IndexState::Building,
            };
            let ids = push_indexes(c, new, state)?;
            Ok((ids.into_iter().map(|id| (id, ready)).collect(), vec![]))
        })
    }

    /// A build is complete: readers may use the index.
    pub fn finish_build(&self, ns: &str, id: u32, interrupt: CheckInterrupt<'_>) -> Result<()> {
        let what = doc! { "commitIndexBuild": ns, "index": i64::from(id) };
        self.alter(ns, interrupt, what, |c| {
            let tablet = c.tablet;
            let i = index_mut(c, |i| i.id == id)?;
            i.state = IndexState::Ready;
            i.info.ready = true;
            Ok(((), vec![Effect::Delete(build_progress_key(tablet, id))]))
        })
    }

    /// Begins to rebuild an index, under a new number: from now on writers maintain it; readers do
    /// not use it before it is ready. Returns the number.
    pub fn rebuild_index(
        &self,
        ns: &str,
        name: &str,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<u32> {
        self.alter(ns, interrupt, doc! { "reIndex": ns, "index": name }, |c| {
            let highest = c.indexes.iter().map(|i| i.id).max().unwrap_or(0);
            let id = highest.max(c.highest_index) + 1;
            let tablet = c.tablet;
            let i = index_mut(c, |i| i.name() == name)?;
            let (low, high) = (i.prefix.to_vec(), keyspace::prefix_end(&i.prefix));
            let progress = build_progress_key(tablet, i.id);
            *i = record::build_index(tablet, id, i.spec.as_doc(), IndexState::Building)?;
            c.highest_index = id;
            Ok((
                id,
                vec![Effect::DeleteRange(low, high), Effect::Delete(progress)],
            ))
        })
    }

    /// Removes an index (also one that is being built).
    pub fn drop_index(&self, ns: &str, name: &str, interrupt: CheckInterrupt<'_>) -> Result<()> {
        let mut what = Writer::new();
        what.str("dropIndexes", ns).str("index", name);
        let spec = self.get(ns).and_then(|c| {
            let index = c.indexes.iter().find(|i| i.name() == name)?;
            Some(index.clone())
        });
        if let Some(key) = spec.as_ref().and_then(|i| i.spec.as_doc().get("key")) {
            what.val("key", key);
        }
        self.alter(ns, interrupt, what.finish(), |c| {
            let at = c.indexes.iter().position(|i| i.name() == name);
            let at = at.ok_or_else(|| err!(IndexNotFound, "index not found with name [{name}]"))?;
            let i = c.indexes.remove(at);
            let (lo, hi) = (i.prefix.to_vec(), keyspace::prefix_end(&i.prefix));
            Ok((
                (),
                vec![
                    Effect::DeleteRange(lo, hi),
                    Effect::Delete(build_progress_key(c.tablet, i.id)),
                ],
            ))
        })
    }

    /// Replaces an index's specification (collMod: hidden, expireAfterSeconds, …).
    pub fn change_index(
        &self,
        ns: &str,
        name: &str,
        spec: DocBuf,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<()> {
        // What streams of changes tell of it: what it was.
        let mut what = Writer::new();
        what.str("collMod", ns).doc("index", spec.as_doc());
        if let Some(c) = self.get(ns) {
            what.doc("options", c.options.as_doc());
            let old = c.indexes.iter().find(|i| i.name() == name);
            if let Some(i) = old {
                what.doc("before", i.spec.as_doc());
            }
        }
        self.alter(ns, interrupt, what.finish(), |c| {
            let tablet = c.tablet;
            let i = index_mut(c, |i| i.name() == name)?;
            let mut next = record::build_index(tablet, i.id, spec.as_doc(), i.state)?;
            next.info.multikey = i.info.multikey;
            // Hiding or showing an index begins its statistics anew.
            if next.info.hidden == i.info.hidden {
                next.since_millis = i.since_millis;
            }
            *i = next;
            Ok(((), vec![]))
        })
    }

    /// Logs a collMod that changes nothing: followers see it nevertheless.
    pub fn note_coll_mod(&self, ns: &str, interrupt: CheckInterrupt<'_>) -> Result<()> {
        self.alter(ns, interrupt, doc! { "collMod": ns }, |_| Ok(((), vec![])))
    }

    /// Replaces a collection's options (collMod).
    pub fn change_options(
        &self,
        ns: &str,
        options: DocBuf,
        interrupt: CheckInterrupt<'_>,
    ) -> Result<()> {
        let mut what = Writer::new();
        what.str("collMod", ns).doc("options", options.as_doc());
        if let Some(c) = self.get(ns) {
            what.doc("before", c.options.as_doc());
        }
        self.alter(ns, interrupt, what.finish(), |c| {
            check_definition(&self.current.snapshot.load(), ns, options.as_doc())?;
            c.set_options(options);
            Ok(((), vec![]))
        })
    }

    /// Replaces the search indexes of a collection by what `change` makes of them.
    pub fn change_search(
        &self,
        ns: &str,
        interrupt: CheckInterrupt<'_>,
        change: impl FnOnce(&mut Vec<DocBuf>) -> Result<()>,
    ) -> Result<()> {
        self.alter(ns, interrupt, doc! { "searchIndexes": ns }, |c| {
            let mut all = c.search.as_deref().unwrap_or(&[]).to_vec();
            change(&mut all)?;
            c.search = (!all.is_empty()).then(|| all.into());
            Ok(((), vec![]))
        })
    }

    /// Has `changed` called after each change that concerns a collection with search indexes. Once
    /// only; it must be quick, and must not write.
    pub fn on_search(&self, changed: Box<dyn Fn() + Send + Sync>) {
        let _ = self.current.on_search.set(changed);
    }

    /// Marks fields of an index as multikey, before the first such entry is written. The caller
    /// holds the collection's write lock (read side); `wait` false gives `Suspension::Worker` instead
    /// of waiting for the mutex.
    pub fn set_multikey(
        &self,
        ns: &str,
        id: u32,
        bits: u64,
        wait: bool,
    ) -> Result<Arc<Collection>> {
        let _change = match wait {
            true => self.changing(),
            false => self.try_changing().ok_or(Suspension::Worker)?,
        };
        let c = self
            .get(ns)
            .ok_or_else(|| err!(NamespaceNotFound, "ns not found {ns}"))?;
        let mut next = Collection::clone(&c);
        let i = index_mut(&mut next, |i| i.id == id)?;
        if i.info.multikey | bits == i.info.multikey {
            return Ok(c);
        }
        i.info.multikey |= bits;
        next.refresh();
        self.propose(
            &c,
            doc! { "setMultikey": ns, "index": i64::from(id) },
            vec![put_record(&next)],
        )?;
        self.applied(ns)
    }
}

/// A collection with a tablet of its own, what the log says of it, and its effects.
fn new_collection(
    tablet: u64,
    ns: &str,
    options: DocBuf,
    uuid: Option<[u8; 16]>,
) -> Result<(Arc<Collection>, DocBuf, Vec<Effect>)> {
    let uuid = uuid.unwrap_or_else(new_uuid);
    let c = Arc::new(Collection::new(ns.into(), uuid, tablet, options)?);
    let next = doc! { "nextTablet": (tablet + 1) as i64 };
    let what = doc! { "create": ns, "options": &c.options };
    let number_key = applied::next_tablet_key().to_vec();
    let effects = vec![put_record(&c), Effect::Put(number_key, next.into_vec())];
    Ok((c, what, effects))
}

/// A version of a pending collection, and the entry that writes it.
fn version(next: Collection, what: DocBuf) -> (Arc<Collection>, Entry) {
    let effects = vec![put_record(&next)];
    let entry = Entry::new(
        next.ns.clone(),
        next.uuid,
        Op::Ddl(what.into_vec()),
        effects,
    );
    (Arc::new(next), entry)
}

fn create_indexes_of(ns: &str, new: &[NewIndex]) -> DocBuf {
    let mut w = Writer::new();
    w.str("createIndexes", ns).open_array("indexes");
    new.iter().for_each(|n| {
        w.push(n.spec.as_doc().as_val());
    });
    w.finish()
}

/// Adds indexes to a version of a collection; their ids.
fn push_indexes(c: &mut Collection, new: &[NewIndex], state: IndexState) -> Result<Vec<u32>> {
    let highest = c.indexes.iter().map(|i| i.id).max().unwrap_or(0);
    let mut id = highest.max(c.highest_index);
    let mut ids = Vec::new();
    for n in new {
        id += 1;
        let index = record::build_index(c.tablet, id, n.spec.as_doc(), state)?;
        c.indexes.push(Arc::new(index));
        ids.push(id);
    }
    c.highest_index = id;
    Ok(ids)
}

/// With the catalog's mutex held, so that no two views that read each other come to be at once.
fn check_definition(now: &Snapshot, ns: &str, options: Doc<'_>) -> Result<()> {
    match (
        options.get("viewOn").and_then(|v| v.as_str()),
        options.get("pipeline"),
    ) {
        (Some(on), Some(stages)) => {
            let collation = match options.get("collation").and_then(|v| v.as_doc()) {
                Some(c) => Collation::new(c)?,
                None => None,
            };
            now.check_view(ns, on, stages, collation)
        }
        _ => Ok(()),
    }
}

fn index_mut(c: &mut Collection, which: impl Fn(&Index) -> bool) -> Result<&mut Index> {
    let i = c.indexes.iter_mut().find(|i| which(i));
    i.map(Arc::make_mut)
        .ok_or_else(|| err!(IndexNotFound, "index not found").into())
}

fn drop_effects(c: &Collection) -> Vec<Effect> {
    let (lo, hi) = keyspace::tablet_range(c.tablet);
    let mut effects = vec![
        Effect::Delete(collection_key(&c.uuid)),
        Effect::DeleteRange(lo, hi),
    ];
    effects.push(Effect::Delete(storage::count_key(c.tablet)));
    effects.extend(
        c.indexes
            .iter()
            .map(|i| Effect::Delete(build_progress_key(c.tablet, i.id))),
    );
    effects
}

/// A random (version 4) UUID.
pub fn new_uuid() -> [u8; 16] {
    let mut u: [u8; 16] = rand::random();
    u[6] = u[6] & 0x0F | 0x40;
    u[8] = u[8] & 0x3F | 0x80;
    u
}

impl Collection {
    /// Milliseconds since 1970, now.
    pub fn now_millis() -> i64 {
        now_millis()
    }
}
