//! Settings of the whole server that outlive it: a document each in `config.settings`, read at the
//! start.

use bson::{Doc, DocBuf, Writer};
use errors::Result;
use executor::{Engine, OpCtx, ReadRequest, RecordStream, UpdateRequest};
use query::expr::Vars;
use query::filter::Filter;
use query::update::Update;
use std::sync::Arc;

const NS: &str = "config.settings";

fn by_id(id: &str) -> Result<Filter> {
    let mut w = Writer::new();
    w.str("_id", id);
    Filter::parse(w.finish().as_doc(), &Default::default())
}

/// The setting of that name, without its `_id`.
pub fn load(engine: &Arc<Engine>, id: &str) -> Result<Option<DocBuf>> {
    let mut op = OpCtx::worker(engine);
    let (view, Some(coll)) = op.view(NS) else {
        return Ok(None);
    };
    let filter = by_id(id)?;
    let mut rows = RecordStream::open(&mut op, view, coll, &ReadRequest::new(&filter))?;
    if !rows.next(&mut op)? {
        return Ok(None);
    }
    let mut w = Writer::new();
    for e in rows.doc().iter().filter(|e| e.name != "_id") {
        w.val(e.name, e.val);
    }
    Ok(Some(w.finish()))
}

/// Puts a setting in the place of what it was.
pub fn save(op: &mut OpCtx<'_>, id: &str, setting: Doc<'_>) -> Result<()> {
    let filter = by_id(id)?;
    let mut w = Writer::new();
    w.str("_id", id).extend(setting);
    let replacement = w.finish();
    let update = Update::parse(replacement.as_doc().as_val(), &[], &Default::default())?;
    let now = crate::clock::now_millis();
    let request = UpdateRequest {
        filter: &filter,
        update: &update,
        multi: false,
        upsert: true,
        sort: None,
        hint: None,
        vars: &Arc::new(Vars::new(now)),
        now_millis: now,
        images: false,
    };
    executor::update(op, NS, &request, 0, None).map(|_| ())
}
