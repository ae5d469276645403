//! The changes of the source, read from a change stream over all of it and made at the target.
//!
//! Of the changes of one document in a batch the last is made: a change shows the document as it is when the stream is read.
//! Invariant: the token that is kept is one whose changes the target has acknowledged, so a run that was killed makes some
//! changes again, which ends in the same.

use super::inventory::Selection;
use super::server::{
    DUPLICATE_KEY, Failure, Kind, NAMESPACE_EXISTS, NO_SUCH_NAMESPACE, Result, Server, command,
    opened, write_errors,
};
use super::state::State;
use super::structure::{self, Notes, ignoring};
use crate::client::DocumentSequence;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use std::collections::{BTreeMap, HashMap};

/// ChangeStreamHistoryLost.
const HISTORY_LOST: i64 = 286;
/// How long the source waits for a change, in milliseconds.
const AWAITED_MS: i64 = 500;
/// A message takes 48 MB; a document is at most 16 MB.
const MOST_BYTES: usize = 24 << 20;

/// What `collMod` takes.
const CHANGEABLE: [&str; 9] = [
    "index",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "expireAfterSeconds",
    "timeseries",
    "changeStreamPreAndPostImages",
];

/// What a document is to become: its bytes, or gone.
type NewDocument = Option<DocBuf>;

/// The last changes of documents of one collection, in the order in which these were first changed.
#[derive(Default)]
struct Changed {
    order: Vec<(Value, NewDocument)>,
    places: HashMap<Vec<u8>, usize>,
}

impl Changed {
    fn put(&mut self, id: Val<'_>, becomes: NewDocument) {
        let mut key = vec![id.tag];
        key.extend_from_slice(id.bytes);
        let next = self.order.len();
        let place = *self.places.entry(key).or_insert(next);
        match self.order.get_mut(place) {
            Some(one) => one.1 = becomes,
            None => self.order.push((id.to_value(), becomes)),
        }
    }
}

pub(super) struct Follower<'f> {
    pub from: Server,
    pub to: Server,
    pub source: Kind,
    pub only: &'f Selection,
    pub state: &'f State,
    cursor: Option<(i64, String)>,
    changed: BTreeMap<(String, String), Changed>,
    /// The source's time up to which all changes are at the target.
    pub reached: u64,
}

impl<'f> Follower<'f> {
    pub fn new(
        from: Server,
        to: Server,
        source: Kind,
        only: &'f Selection,
        state: &'f State,
    ) -> Follower<'f> {
        Follower {
            from,
            to,
            source,
            only,
            state,
            cursor: None,
            changed: BTreeMap::new(),
            reached: 0,
        }
    }

    /// Reads what there is, or waits a moment for it, and makes it; how many changes it were.
    pub fn step(&mut self, notes: &mut Notes) -> Result<u64> {
        let asked = match self.cursor.take() {
            Some((cursor, coll)) => {
                let more = doc! { "getMore": cursor, "collection": coll, "maxTimeMS": AWAITED_MS };
                self.from.try_run("admin", &more)
            }
            None => self.open(),
        };
        let reply = match asked {
            // Another cursor goes on behind the token.
            Err(e) if e.passes() || e.is(43) => {
                std::thread::sleep(std::time::Duration::from_secs(1));
                return Ok(0);
            }
            Err(e) if e.is(HISTORY_LOST) => {
                return Err(Failure::lasting(format!(
                    "the source has cut its log where this migration had not read it; begin again with another --state ({e})"
                )));
            }
            asked => asked?,
        };
        let (cursor, coll, batch) = opened(reply.as_doc())?;
        let mut many = 0;
        let mut last = None;
        for event in batch.values().filter_map(Val::as_doc) {
            self.take(event, notes)?;
            last = event.get("_id").and_then(Val::as_doc);
            many += 1;
        }
        self.flush(notes)?;
        let given = reply.get("cursor").and_then(Val::as_doc);
        let given = given
            .and_then(|c| c.get("postBatchResumeToken"))
            .and_then(Val::as_doc);
        // What waits would be lost with this process if the token went past it.
        if let Some(token) = given.or(last).filter(|_| self.waiting() == 0) {
            self.reached = self.reached.max(time_of(token).unwrap_or_default());
            self.state.note(|p| {
                p.token = Some(token.to_buf());
                p.changes += many;
            })?;
        }
        if cursor != 0 {
            self.cursor = Some((cursor, coll));
        }
        Ok(many.unsigned_abs())
    }

    fn open(&mut self) -> Result<DocBuf> {
        let mut stage = Writer::new();
        stage.open_doc("$changeStream");
        stage
            .bool("allChangesForCluster", true)
            .str("fullDocument", "updateLookup");
        if self.source.tells_of_everything() {
            stage.bool("showExpandedEvents", true);
        }
        self.state.look(|p| match (&p.token, p.start) {
            (Some(token), _) => {
                stage.doc("resumeAfter", token.as_doc());
            }
            (None, Some(start)) => {
                stage.timestamp("startAtOperationTime", start);
            }
            (None, None) => {}
        });
        stage.close();
        let open = doc! {
            "aggregate": 1,
            "pipeline": bson::array![stage.finish()],
            "cursor": doc! {},
        };
        self.from.try_run("admin", &open)
    }

    fn take(&mut self, event: Doc<'_>, notes: &mut Notes) -> Result<()> {
        let kind = event
            .get("operationType")
            .and_then(Val::as_str)
            .unwrap_or_default();
        let Some((db, coll)) = place(event, "ns") else {
            return Ok(());
        };
        let is_meant = self.only.has(db, coll) || coll.is_empty() && self.only.has_any_of(db);
        if !is_meant {
            return self.refuse_coming(kind, event);
        }
        let id = event
            .get("documentKey")
            .and_then(Val::as_doc)
            .and_then(|d| d.get("_id"));
        let full = event.get("fullDocument").and_then(Val::as_doc);
        match (kind, id, full) {
            ("insert" | "replace" | "update", Some(id), Some(full)) => {
                self.put(db, coll, id, Some(full.to_buf()))
            }
            // It was deleted since; that comes too.
            ("update", _, None) => Ok(()),
            ("delete", Some(id), _) => self.put(db, coll, id, None),
            ("invalidate", ..) => Ok(()),
            _ => {
                self.flush(notes)?;
                self.define(kind, (db, coll), event, notes)
            }
        }
    }

    /// A collection renamed from outside of the migration has documents that were never read.
    fn refuse_coming(&self, kind: &str, event: Doc<'_>) -> Result<()> {
        match place(event, "to") {
            Some((db, coll)) if kind == "rename" && self.only.has(db, coll) => {
                Err(Failure::lasting(format!(
                    "{db}.{coll} was another collection, which is not migrated, until it was renamed; begin again with another --state"
                )))
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, db: &str, coll: &str, id: Val<'_>, becomes: NewDocument) -> Result<()> {
        let of = self
            .changed
            .entry((db.to_string(), coll.to_string()))
            .or_default();
        of.put(id, becomes);
        Ok(())
    }

    /// Changes of collections and indexes.
    fn define(
        &mut self,
        kind: &str,
        (db, coll): (&str, &str),
        event: Doc<'_>,
        notes: &mut Notes,
    ) -> Result<()> {
        let told = event
            .get("operationDescription")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let indexes = || {
            let all = told.get("indexes").and_then(Val::as_array);
            let each = all.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc);
            each.filter_map(super::inventory::index_spec)
                .collect::<Vec<_>>()
        };
        let done = match kind {
            "drop" => structure::drop_collection(&mut self.to, db, coll),
            "dropDatabase" if self.only.0.is_empty() => {
                self.to.run(db, &doc! { "dropDatabase": 1 }).map(drop)
            }
            "dropDatabase" => Ok(()),
            "rename" => match place(event, "to") {
                Some((to_db, to_coll)) => self.rename((db, coll), (to_db, to_coll)),
                None => Ok(()),
            },
            "create" => {
                let own = |name: &str| matches!(name, "idIndex" | "uuid");
                let create = command_with("create", coll, told, |name| !own(name));
                ignoring(self.to.run(db, &create), &[NAMESPACE_EXISTS])
            }
            "createIndexes" => {
                let specs: Vec<DocBuf> = indexes().into_iter().map(|(_, spec)| spec).collect();
                match specs.is_empty() {
                    true => Ok(()),
                    false => structure::build(&mut self.to, db, coll, specs.iter()),
                }
            }
            "dropIndexes" => {
                let mut each = indexes().into_iter();
                each.try_for_each(|(name, _)| structure::drop_index(&mut self.to, db, coll, &name))
            }
            "modify" => {
                let change = command_with("collMod", coll, told, |name| CHANGEABLE.contains(&name));
                ignoring(self.to.run(db, &change), &[NO_SUCH_NAMESPACE])
            }
            other => {
                notes.add(format!(
                    "{db}.{coll}: '{other}' at the source is not followed"
                ));
                Ok(())
            }
        };
        match done {
            Err(e) if !e.passes() => {
                notes.add(format!("{db}.{coll}: '{kind}' was refused: {e}"));
                Ok(())
            }
            done => done,
        }
    }

    fn rename(&mut self, (db, coll): (&str, &str), (to_db, to_coll): (&str, &str)) -> Result<()> {
        if !self.only.has(to_db, to_coll) {
            return structure::drop_collection(&mut self.to, db, coll);
        }
        let ask = command("renameCollection", &format!("{db}.{coll}"), |w| {
            w.str("to", &format!("{to_db}.{to_coll}"))
                .bool("dropTarget", true);
        });
        ignoring(self.to.run("admin", &ask), &[NO_SUCH_NAMESPACE])
    }

    /// Makes all changes that were read. What a unique index refuses waits for what comes after it.
    fn flush(&mut self, notes: &mut Notes) -> Result<()> {
        let all = std::mem::take(&mut self.changed);
        for ((db, coll), changed) in all {
            let refused = self.make(&db, &coll, &changed.order)?;
            let (in_the_way, others): (Vec<_>, Vec<_>) = refused
                .into_iter()
                .partition(|(_, code, _)| *code == DUPLICATE_KEY);
            for (at, _, text) in others {
                let id = changed.order.get(at).map(|(id, _)| id);
                notes.add(format!(
                    "{db}.{coll}: a document was refused ({id:?}): {text}"
                ));
            }
            let in_the_way = in_the_way.into_iter();
            let again: Vec<_> = in_the_way
                .filter_map(|(at, ..)| changed.order.get(at).cloned())
                .collect();
            self.change_places(&db, &coll, &again)?;
        }
        Ok(())
    }

    /// Documents that have what others are to have: all go, then all come. Documents still refused wait
    /// for the change of a document that was not read yet; until then the token stays where it is.
    fn change_places(&mut self, db: &str, coll: &str, all: &[(Value, NewDocument)]) -> Result<()> {
        let gone: Vec<(Value, NewDocument)> =
            all.iter().map(|(id, _)| (id.clone(), None)).collect();
        self.make(db, coll, &gone)?;
        for (at, ..) in self.make(db, coll, all)? {
            if let Some((id, becomes)) = all.get(at) {
                self.put(db, coll, id.as_val(), becomes.clone())?;
            }
        }
        Ok(())
    }

    /// How many changes wait for others.
    pub fn waiting(&self) -> usize {
        self.changed.values().map(|c| c.order.len()).sum()
    }

    /// The places in `all` of those that were refused, with codes and messages. Deletes are made first: they make room.
    fn make(
        &mut self,
        db: &str,
        coll: &str,
        all: &[(Value, NewDocument)],
    ) -> Result<Vec<(usize, i64, String)>> {
        let mut refused = Vec::new();
        for deletes in [true, false] {
            let (mut bytes, mut places) = (Vec::new(), Vec::new());
            for (at, (id, becomes)) in all.iter().enumerate() {
                if becomes.is_none() != deletes {
                    continue;
                }
                bytes.extend_from_slice(statement(id, becomes.as_ref()).as_bytes());
                places.push(at);
                if bytes.len() >= MOST_BYTES {
                    refused.extend(self.send(db, coll, deletes, (&bytes, &places))?);
                    (bytes, places) = (Vec::new(), Vec::new());
                }
            }
            if !places.is_empty() {
                refused.extend(self.send(db, coll, deletes, (&bytes, &places))?);
            }
        }
        Ok(refused)
    }

    fn send(
        &mut self,
        db: &str,
        coll: &str,
        deletes: bool,
        (bytes, places): (&[u8], &[usize]),
    ) -> Result<Vec<(usize, i64, String)>> {
        let (name, field) = match deletes {
            true => ("delete", "deletes"),
            false => ("update", "updates"),
        };
        let ask = command(name, coll, |w| {
            w.bool("ordered", false)
                .doc("writeConcern", doc! { "w": "majority" }.as_doc());
            if !deletes {
                w.bool("bypassDocumentValidation", true);
            }
        });
        let reply = self
            .to
            .run_with(db, &ask, &DocumentSequence { field, bytes })?;
        let errors = write_errors(reply.as_doc()).into_iter();
        let placed = errors.filter_map(|(i, code, text)| Some((*places.get(i)?, code, text)));
        Ok(placed.collect())
    }
}

/// One statement of an update or a delete.
fn statement(id: &Value, becomes: Option<&DocBuf>) -> DocBuf {
    let mut w = Writer::new();
    // An `_id` may look like a condition.
    w.open_doc("q")
        .open_doc("_id")
        .val("$eq", id.as_val())
        .close()
        .close();
    let Some(document) = becomes else {
        w.i32("limit", 1);
        return w.finish();
    };
    let document = document.as_doc();
    if document.iter().any(|e| e.name.starts_with('$')) {
        // What looks like operators is no replacement.
        let stage = doc! { "$replaceWith": doc! { "$literal": document.to_buf() } };
        w.value("u", bson::array![stage]);
    } else {
        w.doc("u", document);
    }
    w.bool("upsert", true);
    w.finish()
}

/// A namespace of an event; the collection is empty where a database is meant.
fn place<'e>(event: Doc<'e>, field: &str) -> Option<(&'e str, &'e str)> {
    let ns = event.get(field)?.as_doc()?;
    let coll = ns.get("coll").and_then(Val::as_str).unwrap_or_default();
    Some((ns.get("db")?.as_str()?, coll))
}

/// The time of a resume token: its first value, after the byte of its type, in hexadecimal digits or in bytes (before 4.0.7).
pub(super) fn time_of(token: Doc<'_>) -> Option<u64> {
    const OF_TIMESTAMPS: u64 = 0x82;
    let data = token.get("_data")?;
    if let Some((_, bytes)) = data.as_binary() {
        let time = bytes.get(1..9)?.try_into().ok()?;
        return (u64::from(*bytes.first()?) == OF_TIMESTAMPS).then_some(u64::from_be_bytes(time));
    }
    let digits = data.as_str()?;
    let kind = u64::from_str_radix(digits.get(..2)?, 16).ok()?;
    let time = u64::from_str_radix(digits.get(2..18)?, 16).ok()?;
    (kind == OF_TIMESTAMPS).then_some(time)
}

/// A command on a collection with those fields of `told` that `has` names.
fn command_with(name: &str, coll: &str, told: Doc<'_>, has: impl Fn(&str) -> bool) -> DocBuf {
    command(name, coll, |w| {
        for e in told.iter().filter(|e| has(e.name)) {
            w.val(e.name, e.val);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_token() {
        let token = doc! { "_data": "826B0A6BF2000000060004" };
        assert_eq!(time_of(token.as_doc()), Some(0x6B0A_6BF2_0000_0006));
        assert_eq!(time_of(doc! { "_data": "82é" }.as_doc()), None);
        assert_eq!(time_of(doc! {}.as_doc()), None);
    }

    #[test]
    fn of_one_document_the_last_change_is_made() {
        let mut changed = Changed::default();
        let (a, b) = (Value::from(1), Value::from("1"));
        changed.put(a.as_val(), Some(doc! { "n": 1 }));
        changed.put(b.as_val(), None);
        changed.put(a.as_val(), Some(doc! { "n": 2 }));
        assert_eq!(changed.order.len(), 2);
        let first = changed.order[0]
            .1
            .as_ref()
            .and_then(|d| d.get("n")?.as_i32());
        assert_eq!(first, Some(2));
    }

    #[test]
    fn statements() {
        let id = Value::from(doc! { "$gt": 1 });
        let gone = statement(&id, None);
        assert_eq!(
            gone.as_bytes(),
            doc! { "q": doc! { "_id": doc! { "$eq": doc! { "$gt": 1 } } }, "limit": 1 }.as_bytes()
        );
        let odd = statement(&Value::from(1), Some(&doc! { "_id": 1, "$x": 1 }));
        assert!(
            odd.get("u").is_some_and(|u| u.as_array().is_some()),
            "{odd:?}"
        );
    }
}
