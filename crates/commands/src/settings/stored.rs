//! Settings of the whole server that outlive it: a document each in `config.settings`.
//!
//! Invariant: the copies in memory change only when an entry of the log on their documents is applied,
//! by any proposer, and at the start from the stored documents.

use super::documents;
use bson::{Doc, DocBuf, Writer};
use catalog::keyspace::SPACE_RECORD;
use errors::Result;
use executor::{Engine, OpCtx};
use std::sync::Arc;
use storage::{Committed, Effect, Entry, Observer, Op};

const NS: &str = "config.settings";

/// A setting that is also kept in memory.
pub trait InMemory: Send + Sync {
    /// `_id` of its document.
    fn id(&self) -> &'static str;
    /// Takes over what its document says, with or without the `_id`; `None`: there is none.
    fn take(&self, setting: Option<Doc<'_>>);
}

/// Those that are told of changes.
struct Followers(Vec<Arc<dyn InMemory>>);

/// Gives each setting its stored document, and from now on every change of it.
pub fn follow(engine: &Arc<Engine>, settings: Vec<Arc<dyn InMemory>>) -> Result<()> {
    for setting in &settings {
        let stored = load(engine, setting.id())?;
        setting.take(stored.as_ref().map(DocBuf::as_doc));
    }
    engine.store.observe(Arc::new(Followers(settings)))?;
    Ok(())
}

impl Followers {
    fn tell(&self, id: &str, setting: Option<Doc<'_>>) {
        for s in self.0.iter().filter(|s| s.id() == id) {
            s.take(setting);
        }
    }

    /// A record key says nothing of the `_id`; the entry of a delete does.
    fn changed(&self, entry: &Entry) {
        if let Op::Delete { record_key } = &entry.op
            && let Some(id) = Doc::new(record_key).and_then(id_of)
        {
            self.tell(id, None);
        }
        for effect in &entry.effects {
            if let Effect::Put(key, value) = effect
                && key.get(8) == Some(&SPACE_RECORD)
                && let Some(setting) = Doc::new(value)
                && let Some(id) = id_of(setting)
            {
                self.tell(id, Some(setting));
            }
        }
    }
}

fn id_of(d: Doc<'_>) -> Option<&str> {
    d.get("_id")?.as_str()
}

impl Observer for Followers {
    fn applied(&self, _: Committed, entry: &Entry) {
        for part in entry.plain().filter(|e| &*e.ns == NS) {
            match &part.op {
                Op::Ddl(what) if Doc::new(what).is_some_and(|d| d.get("drop").is_some()) => {
                    self.0.iter().for_each(|s| s.take(None))
                }
                _ => self.changed(part),
            }
        }
    }
}

/// The setting of that name, without its `_id`.
pub fn load(engine: &Arc<Engine>, id: &str) -> Result<Option<DocBuf>> {
    let stored = documents::get(engine, NS, id)?;
    Ok(stored.map(|d| without_id(d.as_doc())))
}

/// A setting's document without its `_id`.
pub fn without_id(d: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in d.iter().filter(|e| e.name != "_id") {
        w.val(e.name, e.val);
    }
    w.finish()
}

/// Puts a setting in the place of what it was.
pub fn save(op: &mut OpCtx<'_>, id: &str, setting: Doc<'_>) -> Result<()> {
    documents::put(op, NS, id, setting)
}
