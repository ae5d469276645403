//! A `$lookup` or `$graphLookup` in little, so that shards can do it: the router reads what is looked up
//! and sends it with the stage, as MongoDB's `$documents` lets any client do for `$lookup`.
//!
//! Invariant: the results are those of the stage as it was written. So what is sent is all of it,
//! compared by bytes, and outside of transactions, whose reads are those of one moment.

use crate::Outcome;
use crate::foreign::{Foreign, within};
use crate::pipeline_parts::Asked;
use crate::request::{Command, own};
use crate::service_impl::Router;
use crate::{aggregate, cursors};
use bson::{Doc, DocBuf, Val, Writer, doc};
use commands::Elsewhere;
use query::path::FieldPath;
use query::pipeline::Namespace;

/// The most that is sent with a stage.
const MOST_DOCUMENTS: u64 = 1000;
const MOST_BYTES: u64 = 256 << 10;

/// The stage with what it looks up; `None` where that is too much, or not the same for all
/// documents.
pub(crate) fn small_side(
    router: &Router,
    command: &Command<'_>,
    asked: &Asked<'_>,
    name: &str,
    spec: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    if command.in_transaction() || asked.collation.is_some() {
        return Ok(None);
    }
    match name {
        "$lookup" => joined(router, command, spec),
        "$graphLookup" => searched(router, command, spec),
        _ => Ok(None),
    }
}

/// The search with all that it may find.
fn searched(router: &Router, command: &Command<'_>, spec: Doc<'_>) -> Outcome<Option<DocBuf>> {
    let text = |name: &str| spec.get(name).and_then(Val::as_str);
    let (Some(from), Some(to)) = (text("from"), text("connectToField")) else {
        return Ok(None);
    };
    let Some(documents) = all_of(router, command, from, to, Doc::EMPTY)? else {
        return Ok(None);
    };
    let mut w = Writer::new();
    w.open_doc("$graphLookup").extend(spec);
    w.open_array("$_pandoDocuments");
    documents.iter().for_each(|d| {
        w.push(d.as_doc().as_val());
    });
    w.close().close();
    Ok(Some(w.finish()))
}

fn joined(router: &Router, command: &Command<'_>, spec: Doc<'_>) -> Outcome<Option<DocBuf>> {
    let text = |name: &str| spec.get(name).and_then(Val::as_str);
    let (Some(from), Some(local), Some(foreign)) =
        (text("from"), text("localField"), text("foreignField"))
    else {
        return Ok(None);
    };
    let stages = spec.get("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let lets = spec.get("let").and_then(Val::as_doc);
    let filters = |s: Val<'_>| aggregate::stage_of(s).is_some_and(|(name, _)| name == "$match");
    if !lets.unwrap_or(Doc::EMPTY).is_empty() || !stages.values().all(filters) {
        return Ok(None);
    }
    let Some(documents) = all_of(router, command, from, foreign, stages)? else {
        return Ok(None);
    };
    let mut w = Writer::new();
    w.open_doc("$lookup").open_array("pipeline");
    w.open_doc("").open_doc("$documents").open_array("$literal");
    documents.iter().for_each(|d| {
        w.push(d.as_doc().as_val());
    });
    w.close().close().close().close();
    w.str("localField", local).str("foreignField", foreign);
    w.val("as", spec.get("as").unwrap_or(Val::NULL)).close();
    Ok(Some(w.finish()))
}

/// What a pipeline of filters finds in a collection that has little; `None`: it has more, or it is
/// not known.
fn all_of(
    router: &Router,
    command: &Command<'_>,
    from: &str,
    path: &str,
    filters: Doc<'_>,
) -> Outcome<Option<Vec<DocBuf>>> {
    let small = |documents: u64, bytes: u64| documents <= MOST_DOCUMENTS && bytes <= MOST_BYTES;
    let ns = Namespace::new(command.db, from);
    let size = Foreign(router.itself.clone()).size(&ns, &FieldPath::new(path));
    if !size.is_some_and(|s| small(s.documents, s.bytes)) {
        return Ok(None);
    }
    let mut w = Writer::new();
    w.str("aggregate", from)
        .val("pipeline", filters.as_array_val());
    w.value("cursor", doc! {"batchSize": MOST_DOCUMENTS as i64 + 1});
    if let Some(variables) = command.field("let") {
        w.val("let", variables);
    }
    w.open_doc("collation").str("locale", "simple").close();
    w.extend(within(command).as_doc()).str("$db", command.db);
    let reply = own(router, &w.finish(), aggregate::run)?;
    let found: Vec<DocBuf> = cursors::batch_of(&reply).map(Doc::to_buf).collect();
    let bytes = found.iter().map(|d| d.as_doc().len() as u64).sum();
    let id = cursors::cursor_id(&reply);
    if id != 0 {
        cursors::end(router, &ns.to_string(), id);
    }
    Ok((id == 0 && small(found.len() as u64, bytes)).then_some(found))
}
