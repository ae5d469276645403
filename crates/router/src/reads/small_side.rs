//! `$lookup` and `$graphLookup` on shards. Small collections: the router reads the foreign documents and
//! sends them with the stage, as MongoDB's `$documents` lets any client do for `$lookup`. In large: the
//! shards read it of each other (`shard_joins`), and the router says how much there is.
//!
//! Invariant: the results are those of the stage as it was written. So all of it is sent; it is compared
//! by bytes, and outside of transactions and snapshots, whose reads are at one time.

use crate::reads::aggregate;
use crate::reads::joins::RouterJoins;
use crate::reads::pipeline_parts::STREAMING;
use crate::request::{RoutedCommand, own, within};
use crate::state::{Router, cursors};
use crate::targeting::pipeline::stage_of;
use crate::targeting::pipeline_context::{PipelineContext, list};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::Outcome;
use commands::RemoteCollections;
use query::path::FieldPath;
use query::pipeline::Namespace;
use std::cell::RefCell;

/// The most that is sent with a stage.
const MOST_DOCUMENTS: u64 = 1000;
const MOST_BYTES: u64 = 256 << 10;

/// The joins of a pipeline, as its shards do them.
pub(crate) struct Joins<'j> {
    router: &'j Router,
    command: &'j RoutedCommand<'j>,
    context: &'j PipelineContext<'j>,
    /// What the shards have to read of each other, `{ns, path, documents, bytes, indexed}`.
    remote_joins: RefCell<Vec<DocBuf>>,
}

impl<'j> Joins<'j> {
    pub fn of(
        router: &'j Router,
        command: &'j RoutedCommand<'j>,
        context: &'j PipelineContext<'j>,
    ) -> Joins<'j> {
        Joins {
            router,
            command,
            context,
            remote_joins: RefCell::default(),
        }
    }

    /// The stage for the shards: with what it looks up, where that is little, or as it is, where they
    /// can read it of each other. `None`: it is for the router.
    pub fn join(&self, name: &str, spec: Doc<'_>) -> Outcome<Option<DocBuf>> {
        let text = |name: &str| spec.get(name).and_then(Val::as_str);
        let path = match name {
            "$lookup" => text("foreignField").unwrap_or("_id"),
            "$graphLookup" => text("connectToField").unwrap_or("_id"),
            _ => return Ok(None),
        };
        let alone = self.command.in_transaction() || self.context.collation.is_some();
        let Some(from) = text("from").filter(|_| !alone) else {
            return Ok(None);
        };
        let ns = Namespace::new(self.command.db, from);
        let reads = RouterJoins(self.router.itself.clone());
        let Some(size) = reads.size(&ns, &FieldPath::new(path)) else {
            return Ok(None);
        };
        if is_small(size.documents, size.bytes) {
            let sent = match name {
                "$lookup" => joined(self.router, self.command, spec)?,
                _ => searched(self.router, self.command, spec)?,
            };
            if sent.is_some() {
                return Ok(sent);
            }
        }
        if !self.may_be_read_late(spec) {
            return Ok(None);
        }
        self.remote_joins.borrow_mut().push(doc! {
            "ns": ns.to_string(), "path": path, "documents": size.documents as i64,
            "bytes": size.bytes as i64, "indexed": size.indexed,
        });
        let mut w = Writer::new();
        w.doc(name, spec);
        Ok(Some(w.finish()))
    }

    /// Whether shards may read it when they come to it: no snapshot is named, and no stage within needs
    /// more than a document.
    fn may_be_read_late(&self, spec: Doc<'_>) -> bool {
        let level = self.command.read_level();
        let stages = spec.get("pipeline").and_then(Val::as_array);
        let stages = stages.unwrap_or(Doc::EMPTY);
        let streams = |s: Val<'_>| stage_of(s).is_some_and(|(name, _)| STREAMING.contains(&name));
        within(self.command).as_doc().is_empty()
            && !matches!(level, Some("snapshot" | "linearizable"))
            && stages.values().all(streams)
    }

    /// What the shards have to be told of the collections that they read of each other.
    pub fn remote_joins(&self) -> Option<Value> {
        let all = self.remote_joins.borrow();
        (!all.is_empty()).then(|| list(all.iter().cloned().map(Value::from)))
    }
}

fn is_small(documents: u64, bytes: u64) -> bool {
    documents <= MOST_DOCUMENTS && bytes <= MOST_BYTES
}

/// The search with all that it may find.
fn searched(
    router: &Router,
    command: &RoutedCommand<'_>,
    spec: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let text = |name: &str| spec.get(name).and_then(Val::as_str);
    let Some(from) = text("from") else {
        return Ok(None);
    };
    let Some(documents) = all_of(router, command, from, Doc::EMPTY)? else {
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

fn joined(router: &Router, command: &RoutedCommand<'_>, spec: Doc<'_>) -> Outcome<Option<DocBuf>> {
    let text = |name: &str| spec.get(name).and_then(Val::as_str);
    let (Some(from), Some(local), Some(foreign)) =
        (text("from"), text("localField"), text("foreignField"))
    else {
        return Ok(None);
    };
    let stages = spec.get("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let lets = spec.get("let").and_then(Val::as_doc);
    let filters = |s: Val<'_>| stage_of(s).is_some_and(|(name, _)| name == "$match");
    if !lets.unwrap_or(Doc::EMPTY).is_empty() || !stages.values().all(filters) {
        return Ok(None);
    }
    let Some(documents) = all_of(router, command, from, stages)? else {
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

/// What a pipeline of filters finds in a collection that has little; `None`: it has more by now.
fn all_of(
    router: &Router,
    command: &RoutedCommand<'_>,
    from: &str,
    filters: Doc<'_>,
) -> Outcome<Option<Vec<DocBuf>>> {
    let ns = Namespace::new(command.db, from);
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
    let found: Vec<DocBuf> = cluster_view::reply::batch_of(&reply)
        .map(Doc::to_buf)
        .collect();
    let bytes = found.iter().map(|d| d.as_doc().len() as u64).sum();
    let id = cluster_view::reply::cursor_id(&reply);
    if id != 0 {
        cursors::end(router, &ns.to_string(), id);
    }
    Ok((id == 0 && is_small(found.len() as u64, bytes)).then_some(found))
}
