//! `applyOps`: entries of an oplog, applied one after the other. As in MongoDB 8 they are not one
//! atomic change: what came before an entry that fails stays, and the error's `applied` and
//! `results` tell how far it went.

use crate::clock::now_millis;
use crate::ddl::{
    coll_mod, create, create_indexes, drop, drop_database, drop_indexes, rename_collection,
};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Code, Result, bail, err};
use executor::{DeleteRequest, UpdateRequest};
use front::Args;
use front::idl;
use front::specification;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::update::Update;
use std::sync::Arc;

const AT: &str = "applyOps";

/// Commands that an entry of kind `c` may hold.
/// What runs a command that an entry may hold.
fn handler(name: &str) -> Option<fn(&mut CommandContext<'_, '_>) -> Result<Done>> {
    Some(match name {
        "collMod" => coll_mod::run,
        "create" => create::run,
        "createIndexes" => create_indexes::run,
        "drop" => drop::run,
        "dropDatabase" => drop_database::run,
        "dropIndexes" => drop_indexes::run,
        "renameCollection" => rename_collection::run,
        _ => return None,
    })
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    super::set_name(cx)?;
    let Some(list) = cx.args.first.as_array() else {
        return Err(idl::mismatch(AT, AT, cx.args.first, &["array"]));
    };
    check_options(cx)?;
    let mut entries = Vec::new();
    for v in list.values() {
        entries.push(entry(v)?);
    }
    let mut results = Vec::new();
    for e in &entries {
        if e.kind == "n" {
            continue;
        }
        let done = apply(cx, e);
        results.push(done.is_ok());
        if let Err(e) = done {
            let mut w = Writer::new();
            write_results(&mut w, &results);
            return Err(e.map_error(|e| e.with_extra(w.finish().as_bytes().to_vec())));
        }
    }
    write_results(&mut cx.w, &results);
    Ok(Done::Reply)
}

fn write_results(w: &mut Writer, results: &[bool]) {
    w.i32("applied", i32::try_from(results.len()).unwrap_or(i32::MAX));
    w.open_array("results");
    for r in results {
        w.bool("", *r);
    }
    w.close();
}

/// Options that there were, or that are not a client's to give. What else is there is ignored, as
/// in MongoDB.
fn check_options(cx: &CommandContext<'_, '_>) -> Result<()> {
    for e in &cx.args.fields {
        match e.name {
            "prepare" => bail!(BadValue, "cannot apply a prepared transaction by {AT}"),
            "partialTxn" => bail!(31056, "applyOps command can not have 'partialTxn' set."),
            "count" if !e.val.is_number() => {
                return Err(idl::mismatch(AT, "count", e.val, &["long"]));
            }
            "alwaysUpsert" if idl::boolean(AT, *e)? == Some(true) => {
                bail!(6711601, "alwaysUpsert is not supported by {AT}")
            }
            "preCondition" if !e.val.is_nullish() => {
                bail!(6711600, "preCondition is not supported by {AT}")
            }
            _ => {}
        }
    }
    Ok(())
}

struct Entry<'a> {
    kind: &'a str,
    ns: &'a str,
    o: Doc<'a>,
    o2: Option<Doc<'a>>,
}

fn entry<'a>(v: Val<'a>) -> Result<Entry<'a>> {
    let Some(d) = v.as_doc() else {
        bail!(
            TypeMismatch,
            "an entry of {AT} must be an object, not {}",
            v.type_name()
        );
    };
    let Some(kind) = d.get("op") else {
        bail!(NoSuchKey, "Missing expected field \"op\"");
    };
    let Some(kind) = kind.as_str() else {
        bail!(
            TypeMismatch,
            "\"op\" had the wrong type. Expected string, found {}",
            kind.type_name()
        );
    };
    if kind.is_empty() {
        bail!(IllegalOperation, "the kind of an entry is empty: {d}");
    }
    let ns = d.get("ns").and_then(|v| v.as_str()).unwrap_or("");
    if ns.is_empty() {
        bail!(IllegalOperation, "an entry names no namespace: {d}");
    }
    if !matches!(kind, "i" | "u" | "d" | "c" | "n") {
        bail!(BadValue, "bad opType: {kind}");
    }
    let o = match d.get("o") {
        None => return Err(idl::missing("OplogEntryBase", "o")),
        Some(v) => match v.as_doc() {
            Some(o) => o,
            None => return Err(idl::mismatch("OplogEntryBase", "o", v, &["object"])),
        },
    };
    let o2 = d.get("o2").and_then(|v| v.as_doc());
    Ok(Entry { kind, ns, o, o2 })
}

fn apply(cx: &mut CommandContext<'_, '_>, e: &Entry<'_>) -> Result<()> {
    let (db, coll) =
        e.ns.split_once('.')
            .filter(|(db, coll)| !db.is_empty() && !coll.is_empty() && !e.ns.contains('\0'))
            .ok_or_else(|| err!(InvalidNamespace, "invalid ns: {}", e.ns))?;
    catalog::check_db_name(db)?;
    if e.kind == "c" {
        if coll != "$cmd" {
            bail!(InvalidNamespace, "invalid ns: {}", e.ns);
        }
        // A transaction's writes, or those of a batch.
        if let Some(parts) = e.o.get(AT).and_then(|v| v.as_array()) {
            for part in parts.values() {
                let part = entry(part)?;
                if part.kind == "c" {
                    bail!(
                        OplogOperationUnsupported,
                        "an {AT} inside of {AT} holds no commands"
                    );
                }
                apply(cx, &part)?;
            }
            return Ok(());
        }
        return command(cx, db, e.o);
    }
    if cx.app.engine.catalog.get(e.ns).is_none() {
        bail!(
            NamespaceNotFound,
            "Failed to apply an entry due to missing collection: {}",
            e.ns
        );
    }
    match e.kind {
        "i" => insert(cx, e.ns, e.o),
        "u" => update(cx, e.ns, e.o, e.o2),
        _ => delete(cx, e.ns, e.o),
    }
}

/// `{_id: <of d>}`.
fn id_of(d: Doc<'_>, what: &str) -> Result<DocBuf> {
    let Some(id) = d.get("_id") else {
        bail!(NoSuchKey, "Failed to apply {what} due to missing _id: {d}");
    };
    let mut w = Writer::new();
    w.open_doc("_id").val("$eq", id);
    Ok(w.finish())
}

/// Puts a document in its place, whether there is one with its `_id` or not: an entry may be
/// applied again.
fn insert(cx: &mut CommandContext<'_, '_>, ns: &str, o: Doc<'_>) -> Result<()> {
    let id = id_of(o, "insert")?;
    let done = executor::insert(&mut cx.op, ns, &[o], true, None)?;
    match done.errors.into_iter().next() {
        None => Ok(()),
        Some((_, e)) if e.code == Code::DuplicateKey => {
            let whole = Update::parse(o.as_val(), &[], &ParseEnv::new())?;
            put(cx, ns, &id, &whole).map(|_| ())
        }
        Some((_, e)) => Err(e.into()),
    }
}

fn update(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    o: Doc<'_>,
    o2: Option<Doc<'_>>,
) -> Result<()> {
    let id = id_of(o2.unwrap_or(o), "update")?;
    let update = match o.get("$v") {
        None => match o.first() {
            Some(e) if e.name.starts_with('$') => bail!(
                4772600,
                "an update in an oplog is a whole document or a diff of {{$v: 2}}: {o}"
            ),
            _ => Update::parse(o.as_val(), &[], &ParseEnv::new())?,
        },
        Some(v) if v.to_f64() == Some(2.0) => {
            let Some(diff) = o.get("diff").and_then(|v| v.as_doc()) else {
                bail!(NoSuchKey, "an update of {{$v: 2}} has no diff: {o}");
            };
            Update::from_diff(diff)
        }
        Some(v) => bail!(4772604, "Unrecognized value of $v in an update: {v}"),
    };
    if !put(cx, ns, &id, &update)? {
        bail!(
            UnknownError,
            "Failed to apply update due to missing document: {}",
            id.as_doc()
        );
    }
    Ok(())
}

/// Updates the document of that `_id`; whether there is one.
fn put(cx: &mut CommandContext<'_, '_>, ns: &str, id: &DocBuf, update: &Update) -> Result<bool> {
    let filter = Filter::parse(id.as_doc(), &ParseEnv::new())?;
    let now = now_millis();
    let done = executor::update(
        &mut cx.op,
        ns,
        &UpdateRequest {
            filter: &filter,
            update,
            multi: false,
            upsert: false,
            sort: None,
            hint: None,
            vars: &Arc::new(Vars::new(now)),
            now_millis: now,
            images: false,
        },
        0,
        None,
    )?;
    Ok(done.matched > 0)
}

fn delete(cx: &mut CommandContext<'_, '_>, ns: &str, o: Doc<'_>) -> Result<()> {
    let filter = Filter::parse(id_of(o, "delete")?.as_doc(), &ParseEnv::new())?;
    let request = DeleteRequest {
        filter: &filter,
        multi: false,
        sort: None,
        hint: None,
        vars: None,
        images: false,
    };
    executor::delete(&mut cx.op, ns, &request, 0, None).map(|_| ())
}

/// Runs the command of an entry; its reply is discarded.
fn command(cx: &mut CommandContext<'_, '_>, db: &str, o: Doc<'_>) -> Result<()> {
    let name = o.first().map_or("", |e| e.name);
    let known = specification::lookup(name).and_then(|c| Some((c, handler(c.name)?)));
    let Some((command, run)) = known else {
        bail!(
            OplogOperationUnsupported,
            "an entry of {AT} cannot hold the command '{name}'"
        );
    };
    let mut inner = CommandContext {
        app: cx.app,
        client: cx.client,
        request: cx.request,
        command,
        args: Args::parse(command.name, o, Some(db))?,
        write_concern: cx.write_concern.clone(),
        op: executor::OpCtx::worker(&cx.app.engine),
        after_commit: false,
        statements: 1,
        work: Default::default(),
        begun: None,
        first_run: None,
        waited: Default::default(),
        spent: Vec::new(),
        int_ok: false,
        originating: None,
        transaction: None,
        w: Writer::new(),
    };
    (inner.op.deadline, inner.op.cancelled, inner.op.killed) =
        (cx.op.deadline, cx.op.cancelled, cx.op.killed);
    let done = run(&mut inner);
    cx.op.last_index = cx.op.last_index.max(inner.op.last_index);
    cx.after_commit |= inner.after_commit || inner.op.has_written();
    done.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn entries() {
        let code = |d: DocBuf| {
            entry(d.as_doc().as_val())
                .err()
                .map(|e| e.into_error().code.0)
        };
        assert_eq!(code(doc! {}), Some(4));
        assert_eq!(code(doc! { "op": 1 }), Some(14));
        assert_eq!(code(doc! { "op": "", "ns": "a.b" }), Some(20));
        assert_eq!(code(doc! { "op": "i", "o": doc! {} }), Some(20));
        assert_eq!(code(doc! { "op": "x", "ns": "a.b", "o": doc! {} }), Some(2));
        assert_eq!(code(doc! { "op": "i", "ns": "a.b" }), Some(40414));
        assert_eq!(code(doc! { "op": "i", "ns": "a.b", "o": doc! {} }), None);
    }
}
