//! The events of change streams.
//!
//! Source: MongoDB 8 manual, "Change Events". Fields come in MongoDB's order.
//!
//! Invariant: what a stream sees is decided by its [`Scope`] and the change alone, so resuming sees it again.

use crate::{Change, ChangeKind, EntryStamp, ResumeToken, TokenPlace, description, text};
use bson::{Doc, DocBuf, Writer};

/// What a stream is opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `database.collection`
    Collection(String),
    Database(String),
    Deployment,
}

/// What a stream shows.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    pub scope: Scope,
    pub expanded: bool,
}

/// The kinds of events that streams show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Insert,
    Update,
    Replace,
    Delete,
    Drop,
    Rename,
    DropDatabase,
    Create,
    CreateIndexes,
    DropIndexes,
    Modify,
}

impl EventKind {
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Insert => "insert",
            EventKind::Update => "update",
            EventKind::Replace => "replace",
            EventKind::Delete => "delete",
            EventKind::Drop => "drop",
            EventKind::Rename => "rename",
            EventKind::DropDatabase => "dropDatabase",
            EventKind::Create => "create",
            EventKind::CreateIndexes => "createIndexes",
            EventKind::DropIndexes => "dropIndexes",
            EventKind::Modify => "modify",
        }
    }

    /// `None`: what no stream shows.
    pub fn of(change: &Change<'_>) -> Option<EventKind> {
        Some(match change.what {
            ChangeKind::Insert(_) => EventKind::Insert,
            ChangeKind::Update(..) => EventKind::Update,
            ChangeKind::Replace(_) => EventKind::Replace,
            ChangeKind::Delete(_) => EventKind::Delete,
            ChangeKind::Ddl(d) => match d.first()?.name {
                "drop" => EventKind::Drop,
                "renameCollection" => EventKind::Rename,
                "dropDatabase" => EventKind::DropDatabase,
                "create" => EventKind::Create,
                "createIndexes" => EventKind::CreateIndexes,
                "dropIndexes" => EventKind::DropIndexes,
                "collMod" => EventKind::Modify,
                _ => return None,
            },
        })
    }

    /// Only shown with `showExpandedEvents`.
    fn is_expanded(self) -> bool {
        matches!(
            self,
            EventKind::Create
                | EventKind::CreateIndexes
                | EventKind::DropIndexes
                | EventKind::Modify
        )
    }
}

impl StreamOptions {
    /// The kind of event that the stream shows of a change; `None` when it shows none.
    pub fn kind(&self, change: &Change<'_>) -> Option<EventKind> {
        if change.migrated {
            return None;
        }
        let kind = EventKind::of(change)?;
        if kind.is_expanded() && !self.expanded {
            return None;
        }
        let sees = match &self.scope {
            Scope::Collection(ns) => {
                (change.ns == ns && kind != EventKind::DropDatabase)
                    || (kind == EventKind::Rename && renamed_to(change) == ns)
            }
            Scope::Database(db) => {
                let within = |ns: &str| ns.split_once('.').is_some_and(|(d, _)| d == db);
                (change.db() == db && is_a_users(change))
                    || (kind == EventKind::Rename && within(renamed_to(change)))
            }
            Scope::Deployment => {
                !matches!(change.db(), "admin" | "config" | "local") && is_a_users(change)
            }
        };
        sees.then_some(kind)
    }

    /// Whether the stream ends behind an event that it shows.
    pub fn ends(&self, change: &Change<'_>, kind: EventKind) -> bool {
        match &self.scope {
            Scope::Collection(_) => matches!(kind, EventKind::Drop | EventKind::Rename),
            Scope::Database(db) => kind == EventKind::DropDatabase && change.db() == db,
            Scope::Deployment => false,
        }
    }
}

fn is_a_users(change: &Change<'_>) -> bool {
    !change.coll().starts_with("system.")
}

fn renamed_to<'a>(change: &Change<'a>) -> &'a str {
    match change.what {
        ChangeKind::Ddl(d) => text(d, "to"),
        _ => "",
    }
}

/// What an event holds beside the change itself.
#[derive(Clone, Copy, Default)]
pub struct Images<'a> {
    /// `fullDocument` of an update; `Some(None)` is null.
    pub full: Option<Option<Doc<'a>>>,
    /// `fullDocumentBeforeChange`; `Some(None)` is null.
    pub before: Option<Option<Doc<'a>>>,
}

/// How much an event tells.
#[derive(Clone, Copy, Default)]
pub struct Extent<'a> {
    /// `showExpandedEvents`
    pub expanded: bool,
    /// The paths of the collection's shard key; none where it is not sharded.
    pub shard_key: &'a [String],
}

/// The token of a change's event.
pub fn token(stamp: &EntryStamp, change: &Change<'_>) -> ResumeToken {
    ResumeToken {
        ts: stamp.ts,
        place: TokenPlace::Event {
            at: change.at,
            fragment: 0,
        },
        uuid: change.uuid,
    }
}

fn head(w: &mut Writer, token: &ResumeToken, kind: &str, stamp: &EntryStamp) {
    w.doc("_id", token.to_doc().as_doc())
        .str("operationType", kind)
        .timestamp("clusterTime", stamp.ts);
}

fn ns(w: &mut Writer, name: &str, ns: &str) {
    let (db, coll) = ns.split_once('.').unwrap_or((ns, ""));
    w.open_doc(name).str("db", db).str("coll", coll).close();
}

fn image(w: &mut Writer, name: &str, image: Option<Option<Doc<'_>>>) {
    match image {
        Some(Some(d)) => w.doc(name, d),
        Some(None) => w.null(name),
        None => w,
    };
}

/// The fields of [`summary`].
pub const SUMMARY_FIELDS: [&str; 5] = [
    "operationType",
    "clusterTime",
    "wallTime",
    "ns",
    "documentKey",
];

/// The fields of a change's event that say what it is about: each as it is in the event.
pub fn summary(
    stamp: &EntryStamp,
    change: &Change<'_>,
    kind: EventKind,
    shard_key: &[String],
) -> DocBuf {
    let mut w = Writer::with_capacity(256);
    w.str("operationType", kind.name())
        .timestamp("clusterTime", stamp.ts)
        .date("wallTime", stamp.wall_millis);
    name(&mut w, change, kind);
    key_of(&mut w, change, shard_key);
    w.finish()
}

/// `ns` of the event of a change to documents of a collection.
pub fn ns_only(of: &str) -> DocBuf {
    let mut w = Writer::with_capacity(64);
    ns(&mut w, "ns", of);
    w.finish()
}

fn name(w: &mut Writer, change: &Change<'_>, kind: EventKind) {
    match kind {
        EventKind::DropDatabase => {
            w.open_doc("ns").str("db", change.db()).close();
        }
        _ => ns(w, "ns", change.ns),
    }
}

fn key_of(w: &mut Writer, change: &Change<'_>, shard_key: &[String]) {
    match change.what {
        ChangeKind::Insert(d) | ChangeKind::Replace(d) | ChangeKind::Update(_, d) => {
            w.doc("documentKey", document_key(d, shard_key).as_doc());
        }
        // The entry has it as it was.
        ChangeKind::Delete(key) => {
            w.doc("documentKey", key);
        }
        ChangeKind::Ddl(_) => {}
    }
}

/// What names a document: the fields of its collection's shard key that it has, under their whole
/// paths, and its `_id`.
pub fn document_key(d: Doc<'_>, shard_key: &[String]) -> DocBuf {
    let mut w = Writer::new();
    for path in shard_key {
        let mut names = path.split('.');
        let first = names.next().and_then(|name| d.get(name));
        let found = names.fold(first, |v, name| v?.as_doc()?.get(name));
        if let Some(v) = found {
            w.val(path, v);
        }
    }
    if let Some(id) = d
        .get("_id")
        .filter(|_| !shard_key.iter().any(|p| p == "_id"))
    {
        w.val("_id", id);
    }
    w.finish()
}

/// The event of a change.
pub fn write(
    stamp: &EntryStamp,
    change: &Change<'_>,
    kind: EventKind,
    shown: Extent<'_>,
    images: Images<'_>,
) -> DocBuf {
    let Extent {
        expanded,
        shard_key,
    } = shown;
    let mut w = Writer::with_capacity(512);
    head(&mut w, &token(stamp, change), kind.name(), stamp);
    if expanded && kind != EventKind::DropDatabase {
        w.binary("collectionUUID", 4, &change.uuid);
    }
    w.date("wallTime", stamp.wall_millis);
    if let Some(s) = change.session.filter(|_| change.in_transaction) {
        w.i64("txnNumber", s.txn_number);
        w.open_doc("lsid").binary("id", 4, &s.lsid).close();
    }
    let full = match change.what {
        ChangeKind::Insert(d) | ChangeKind::Replace(d) => Some(Some(d)),
        ChangeKind::Update(..) => images.full,
        ChangeKind::Delete(_) | ChangeKind::Ddl(_) => None,
    };
    image(&mut w, "fullDocument", full);
    name(&mut w, change, kind);
    key_of(&mut w, change, shard_key);
    if let ChangeKind::Update(diff, _) = change.what {
        description::write(&mut w, diff, expanded);
    }
    if let ChangeKind::Ddl(d) = change.what {
        match kind {
            EventKind::Modify => modification(&mut w, d, &change.uuid),
            _ => operation(&mut w, d, kind, expanded),
        }
    }
    if matches!(
        kind,
        EventKind::Update | EventKind::Replace | EventKind::Delete
    ) {
        image(&mut w, "fullDocumentBeforeChange", images.before);
    }
    w.finish()
}

/// `to`, and `operationDescription` of the expanded events.
fn operation(w: &mut Writer, d: Doc<'_>, kind: EventKind, expanded: bool) {
    match kind {
        EventKind::Rename => {
            ns(w, "to", text(d, "to"));
            if expanded {
                w.open_doc("operationDescription");
                ns(w, "to", text(d, "to"));
                if let Some(uuid) = d.get("targetUUID") {
                    w.val("dropTarget", uuid);
                }
                w.close();
            }
        }
        EventKind::Create => {
            w.open_doc("operationDescription");
            if let Some(options) = d.get("options").and_then(|v| v.as_doc()) {
                w.extend(options);
            }
            w.open_doc("idIndex")
                .i32("v", 2)
                .open_doc("key")
                .i32("_id", 1)
                .close();
            w.str("name", "_id_").close().close();
        }
        EventKind::CreateIndexes | EventKind::DropIndexes => {
            w.open_doc("operationDescription");
            match d.get("indexes") {
                Some(indexes) => {
                    w.val("indexes", indexes);
                }
                None => {
                    w.open_array("indexes").open_doc("").i32("v", 2);
                    if let Some(key) = d.get("key") {
                        w.val("key", key);
                    }
                    w.str("name", text(d, "index")).close().close();
                }
            }
            w.close();
        }
        _ => {}
    }
}

/// What `collMod` has changed, and as what it was before.
fn modification(w: &mut Writer, d: Doc<'_>, uuid: &[u8; 16]) {
    let part = |name: &str| d.get(name).and_then(|v| v.as_doc());
    let (before, index) = (part("before"), part("index"));
    let now = match index {
        Some(_) => index,
        None => part("options"),
    };
    let (now, old) = (now.unwrap_or(Doc::EMPTY), before.unwrap_or(Doc::EMPTY));
    w.open_doc("operationDescription");
    if index.is_some() {
        w.open_doc("index").str("name", text(now, "name"));
    }
    for e in now.iter().filter(|e| old.get(e.name) != Some(e.val)) {
        w.val(e.name, e.val);
    }
    for name in gone(old, now) {
        as_nothing(w, name);
    }
    if index.is_some() {
        w.close();
    }
    w.close();
    // Entries of older logs do not tell.
    if before.is_none() {
        return;
    }
    w.open_doc("stateBeforeChange")
        .open_doc("collectionOptions")
        .binary("uuid", 4, uuid);
    let options = if index.is_some() {
        part("options")
    } else {
        before
    };
    w.extend(options.unwrap_or(Doc::EMPTY)).close();
    if index.is_some() {
        w.open_doc("indexOptions");
        for e in old.iter().filter(|e| now.get(e.name) != Some(e.val)) {
            w.val(e.name, e.val);
        }
        for name in gone(now, old) {
            as_nothing(w, name);
        }
        w.close();
    }
    w.close();
}

/// The fields that one document has and the other has not.
fn gone<'d>(from: Doc<'d>, to: Doc<'d>) -> impl Iterator<Item = &'d str> {
    let names = from.iter().map(|e| e.name);
    names.filter(move |name| to.get(name).is_none())
}

/// An option that is not there, by the value that means so.
fn as_nothing(w: &mut Writer, name: &str) {
    match name {
        "hidden" | "unique" | "prepareUnique" | "changeStreamPreAndPostImages" => {
            w.bool(name, false)
        }
        "validator" => w.doc(name, Doc::EMPTY),
        _ => w,
    };
}

/// The event that ends a stream, behind that of `change`.
pub fn invalidate(stamp: &EntryStamp, change: &Change<'_>) -> (ResumeToken, DocBuf) {
    let token = ResumeToken {
        place: TokenPlace::Invalidate { at: change.at },
        ..token(stamp, change)
    };
    let mut w = Writer::new();
    head(&mut w, &token, "invalidate", stamp);
    w.date("wallTime", stamp.wall_millis);
    (token, w.finish())
}
