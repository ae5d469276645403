//! `_pandoChange`: writes to the metadata of a cluster, done all or not at all.
//!
//! ```text
//! {_pandoChange: 1, writes: [{update: <collection>, q, u} | {insert: <collection>, documents} | {remove: <collection>, q}…]}
//! ```
//! The collections are those of the database `config`. An update has to find one document: none, and
//! nothing of all is done (117).

use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Error, Result, Stop, bail, err};
use executor::{DeleteRequest, Lsid, Transaction, UpdateRequest};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::update::Update;
use std::sync::Arc;

/// The owner of the transaction: a session that no client can name.
const NO_SESSION: Lsid = Lsid {
    id: [0; 16],
    uid: [0; 32],
};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(writes) = cx.args.field("writes").and_then(|v| v.as_array()) else {
        bail!(FailedToParse, "_pandoChange needs writes");
    };
    cx.op.need_worker()?;
    let transaction = Transaction::begin(&cx.app.engine, None, NO_SESSION, 0);
    cx.op.join(Box::new(transaction));
    let done = writes
        .values()
        .try_for_each(|w| write(cx, w.as_doc().unwrap_or(Doc::EMPTY)));
    let transaction = cx.op.transaction.take();
    done?;
    if let Some(transaction) = transaction {
        cx.op.commit_transaction(transaction, |_| {})?;
        cx.after_commit = true;
    }
    Ok(Done::Reply)
}

fn write(cx: &mut CommandContext<'_, '_>, d: Doc<'_>) -> Result<()> {
    let first = d.first();
    let (kind, name) = first.map_or(("", ""), |e| (e.name, e.val.as_str().unwrap_or_default()));
    if name.is_empty() {
        bail!(FailedToParse, "a write that names no collection: {d}");
    }
    let ns = format!("config.{name}");
    let filter = || Filter::parse(document(d, "q")?, &ParseEnv::new());
    match kind {
        "insert" => {
            let documents = d.get("documents").and_then(|v| v.as_array());
            let documents = documents.unwrap_or(Doc::EMPTY).values();
            let documents: Vec<Doc<'_>> = documents.filter_map(|v| v.as_doc()).collect();
            let done = executor::insert(&mut cx.op, &ns, &documents, true, None)?;
            match done.errors.into_iter().next() {
                None => Ok(()),
                Some((_, e)) => Err(e.into()),
            }
        }
        "update" => {
            let filter = filter()?;
            match update(cx, &ns, &filter, d)? {
                0 => Err(Stop::from(missing(d))),
                _ => Ok(()),
            }
        }
        "remove" => {
            let request = DeleteRequest {
                filter: &filter()?,
                multi: true,
                sort: None,
                hint: None,
                vars: None,
                images: false,
            };
            executor::delete(&mut cx.op, &ns, &request, 0, None).map(drop)
        }
        _ => bail!(FailedToParse, "no write: {d}"),
    }
}

fn missing(d: Doc<'_>) -> Error {
    err!(
        ConflictingOperationInProgress,
        "the metadata has changed meanwhile: {d}"
    )
}

fn document<'a>(d: Doc<'a>, name: &str) -> Result<Doc<'a>> {
    match d.get(name).and_then(|v| v.as_doc()) {
        Some(found) => Ok(found),
        None => bail!(FailedToParse, "a write without {name}: {d}"),
    }
}

/// How many documents it found.
fn update(cx: &mut CommandContext<'_, '_>, ns: &str, filter: &Filter, d: Doc<'_>) -> Result<u64> {
    let update = Update::parse(document(d, "u")?.as_val(), &[], &ParseEnv::new())?;
    let now = now_millis();
    let request = UpdateRequest {
        filter,
        update: &update,
        multi: false,
        upsert: false,
        sort: None,
        hint: None,
        vars: &Arc::new(Vars::new(now)),
        now_millis: now,
        images: false,
    };
    Ok(executor::update(&mut cx.op, ns, &request, 0, None)?.matched)
}
