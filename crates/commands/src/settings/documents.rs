//! Documents of the server's own collections: settings, users, roles.

use bson::{Doc, DocBuf, Writer};
use errors::Result;
use executor::{DeleteRequest, Engine, OpCtx, ReadRequest, RecordStream, UpdateRequest};
use query::expr::Vars;
use query::filter::Filter;
use query::update::Update;
use std::sync::Arc;

fn by_id(id: &str) -> Result<Filter> {
    let mut w = Writer::new();
    w.str("_id", id);
    Filter::parse(w.finish().as_doc(), &Default::default())
}

/// The document of that `_id`.
pub fn get(engine: &Arc<Engine>, ns: &str, id: &str) -> Result<Option<DocBuf>> {
    let mut found = None;
    each_of(engine, ns, &by_id(id)?, |d| {
        found = Some(d.to_buf());
        Ok(false)
    })?;
    Ok(found)
}

/// Whether a collection holds any document.
pub fn any(engine: &Arc<Engine>, ns: &str) -> Result<bool> {
    let mut any = false;
    each_of(engine, ns, &Filter::all(), |_| {
        any = true;
        Ok(false)
    })?;
    Ok(any)
}

/// Hands on the documents that match; `each` answers whether it wants more.
pub fn each(
    engine: &Arc<Engine>,
    ns: &str,
    filter: Doc<'_>,
    each: impl FnMut(Doc<'_>) -> Result<bool>,
) -> Result<()> {
    each_of(
        engine,
        ns,
        &Filter::parse(filter, &Default::default())?,
        each,
    )
}

fn each_of(
    engine: &Arc<Engine>,
    ns: &str,
    filter: &Filter,
    mut each: impl FnMut(Doc<'_>) -> Result<bool>,
) -> Result<()> {
    let mut op = OpCtx::worker(engine);
    let (view, Some(coll)) = op.view(ns) else {
        return Ok(());
    };
    let mut rows = RecordStream::open(&mut op, view, coll, &ReadRequest::new(filter))?;
    while rows.next(&mut op)? {
        if !each(rows.doc())? {
            break;
        }
    }
    Ok(())
}

/// Puts `doc`, which has no `_id`, in the place of what has that `_id`.
pub fn put(op: &mut OpCtx<'_>, ns: &str, id: &str, doc: Doc<'_>) -> Result<()> {
    let filter = by_id(id)?;
    let mut w = Writer::new();
    w.str("_id", id).extend(doc);
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
    executor::update(op, ns, &request, 0, None).map(|_| ())
}

/// Removes all that match; how many they were.
pub fn remove(op: &mut OpCtx<'_>, ns: &str, filter: Doc<'_>) -> Result<u64> {
    let filter = Filter::parse(filter, &Default::default())?;
    let request = DeleteRequest {
        filter: &filter,
        multi: true,
        sort: None,
        hint: None,
        vars: None,
        images: false,
    };
    executor::delete(op, ns, &request, 0, None).map(|done| done.n)
}
