//! Synonyms of searches over shards: the router reads their collections, which may be on any shard, and sends the
//! documents with the search, or with the question how the mappings fare.
//!
//! ```text
//! search ─▶ which mappings does it name? ─▶ stamps of their shards ─┬─ as before ─▶ what is kept
//!                                                                  └─ others ────▶ read, and kept under these stamps
//! ```
//! Invariants:
//! - All shards of one search have the same synonyms.
//! - The stamps of a collection are taken before it is read, so what is kept is never older than they tell.
//! - A user needs no rights to the collection: the documents go to shards only, as a search on one node reads them there.

use crate::reads::{aggregate, find};
use crate::request::{RoutedCommand, own};
use crate::state::Router;
use crate::targeting::pipeline::stage_of;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::reply::{batch_of, sound};
use cluster_view::{Failure, Outcome};
use errors::Code;
use query::pipeline::search::SYNONYMS;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most bytes of documents that go with a search.
const MOST_BYTES: usize = 12 << 20;

/// A mapping as shards get it: its documents as an array, or why there are none as a string.
#[derive(Clone)]
enum Mapping {
    Documents(Arc<Value>),
    Unread(String),
}

/// The command with the documents of the synonym mappings that its search names, or of all where it lists indexes;
/// `None`: it needs none.
pub(crate) fn with_documents(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let Some((name, spec)) = stages.values().next().and_then(stage_of) else {
        return Ok(None);
    };
    let Some(spec) = spec.as_doc().filter(|d| !d.contains(SYNONYMS)) else {
        return Ok(None);
    };
    let sent = match name {
        "$search" | "$searchMeta" => of_search(router, command, spec)?,
        "$listSearchIndexes" => of_list(router, command, spec)?,
        _ => None,
    };
    let Some(sent) = sent else {
        return Ok(None);
    };
    let mut w = command.without(&["pipeline"]);
    w.open_array("pipeline").open_doc("").open_doc(name);
    w.extend(spec).doc(SYNONYMS, sent.as_doc()).close().close();
    stages.values().skip(1).for_each(|stage| {
        w.push(stage);
    });
    w.close();
    Ok(Some(w.finish()))
}

/// `{<mapping>: [<document>, …]}` for the mappings that a search names.
fn of_search(
    router: &Router,
    command: &RoutedCommand<'_>,
    spec: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let mut wanted = BTreeSet::new();
    named(spec, &mut wanted, 0);
    if wanted.is_empty() {
        return Ok(None);
    }
    let index = spec.get("index").and_then(|v| v.as_str());
    let which = doc! {"name": index.unwrap_or("default")};
    let rows = definitions(router, command, which)?;
    let (mut w, mut left) = (Writer::new(), MOST_BYTES);
    for (name, collection) in rows.first().map(sources).unwrap_or_default() {
        if wanted.contains(&name) {
            let mapping = mapping(router, command, &collection)?;
            write(&mut w, &name, mapping, &mut left);
        }
    }
    Ok(Some(w.finish()))
}

/// `{<index>: {<mapping>: [<document>, …]}}` for indexes that are listed.
fn of_list(router: &Router, command: &RoutedCommand<'_>, spec: Doc<'_>) -> Outcome<Option<DocBuf>> {
    let rows = definitions(router, command, spec.to_buf())?;
    let (mut w, mut left) = (Writer::new(), MOST_BYTES);
    for row in &rows {
        let of_index = sources(row);
        let name = row.get("name").and_then(Val::as_str);
        let Some(name) = name.filter(|_| !of_index.is_empty()) else {
            continue;
        };
        w.open_doc(name);
        for (name, collection) in of_index {
            let mapping = mapping(router, command, &collection)?;
            write(&mut w, &name, mapping, &mut left);
        }
        w.close();
    }
    Ok(Some(w.finish()))
}

/// `left`: how many bytes all may still have together.
fn write(w: &mut Writer, name: &str, mapping: Mapping, left: &mut usize) {
    match mapping {
        Mapping::Documents(docs) if docs.as_val().bytes.len() <= *left => {
            *left -= docs.as_val().bytes.len();
            w.val(name, docs.as_val());
        }
        Mapping::Documents(_) => {
            w.str(name, &too_many());
        }
        Mapping::Unread(why) => {
            w.str(name, &why);
        }
    }
}

fn too_many() -> String {
    format!("synonyms of searches over shards may have at most {MOST_BYTES} bytes of documents")
}

/// The names of mappings that operators name.
fn named<'a>(d: Doc<'a>, out: &mut BTreeSet<String>, depth: usize) {
    if depth > 100 {
        return;
    }
    for e in d.iter() {
        match e.val.as_str() {
            Some(name) if e.name == "synonyms" => {
                out.insert(name.to_string());
            }
            _ => {
                let inner = e.val.as_doc().or_else(|| e.val.as_array());
                inner.into_iter().for_each(|d| named(d, out, depth + 1));
            }
        }
    }
}

/// The rows of `$listSearchIndexes`, of which no shard reads synonyms for itself.
fn definitions(
    router: &Router,
    command: &RoutedCommand<'_>,
    which: DocBuf,
) -> Outcome<Vec<DocBuf>> {
    let mut w = Writer::new();
    w.extend(which.as_doc()).doc(SYNONYMS, Doc::EMPTY);
    let pipeline = bson::array![doc! {"$listSearchIndexes": w.finish()}];
    let body = doc! {
        "aggregate": command.collection(), "pipeline": pipeline, "cursor": doc! {}, "$db": command.db,
    };
    let reply = own(router, &body, aggregate::run)?;
    Ok(batch_of(&reply).map(Doc::to_buf).collect())
}

/// The mappings of an index with their collections.
fn sources(row: &DocBuf) -> Vec<(String, String)> {
    let definition = row.get("latestDefinition").and_then(Val::as_doc);
    let list = definition.and_then(|d| d.get("synonyms")?.as_array());
    let mapping = |v: Val<'_>| {
        let d = v.as_doc()?;
        let from = d.get("source")?.as_doc()?.get("collection")?.as_str()?;
        Some((d.get("name")?.as_str()?.to_string(), from.to_string()))
    };
    let list = list.into_iter().flat_map(|l| l.values());
    list.filter_map(mapping).collect()
}

/// The documents of a collection as they are now.
fn mapping(router: &Router, command: &RoutedCommand<'_>, collection: &str) -> Outcome<Mapping> {
    let ns = format!("{}.{collection}", command.db);
    let stamps = match stamps(router, command, &ns)? {
        Stamps::Unknown => None,
        Stamps::Of(stamps) => Some(stamps),
        Stamps::NoDocuments => {
            let why = format!("{ns} is no collection of documents");
            return Ok(Mapping::Unread(why));
        }
    };
    let known = stamps.as_ref();
    if let Some(known) = known.and_then(|stamps| router.synonyms.get(&ns, stamps)) {
        return Ok(Mapping::Documents(known));
    }
    let body = doc! {"find": collection, "batchSize": i32::MAX, "$db": command.db};
    let reply = own(router, &body, find::find)?;
    let id = reply
        .get("cursor")
        .and_then(|c| c.as_doc()?.get("id")?.as_i64());
    if id != Some(0) {
        return Ok(Mapping::Unread(too_many()));
    }
    let mut w = Writer::new_array();
    batch_of(&reply).for_each(|d| {
        w.push(d.as_val());
    });
    let documents = Arc::new(w.finish_array());
    if let Some(stamps) = stamps {
        router.synonyms.keep(&ns, stamps, documents.clone());
    }
    Ok(Mapping::Documents(documents))
}

/// What the shards tell of a collection that was read before.
enum Stamps {
    /// A shard tells nothing of that.
    Unknown,
    /// `{<shard>: <stamp>}`
    Of(DocBuf),
    /// The name is that of a view, or of measurements.
    NoDocuments,
}

fn stamps(router: &Router, command: &RoutedCommand<'_>, ns: &str) -> Outcome<Stamps> {
    let collection = ns.split_once('.').map_or(ns, |(_, c)| c);
    let concern = command.read_concern();
    let causal = concern.is_some_and(|d| d.contains("afterClusterTime"));
    let body = doc! {"_pandoStamp": collection, "causal": causal, "$db": command.db};
    let of = |placement: Option<&Placement>| {
        let shards: Vec<Arc<str>> = match placement {
            None => Vec::new(),
            Some(Placement::Unsharded(unsharded)) => vec![unsharded.shard.clone()],
            Some(Placement::Sharded(table)) => table.shards().cloned().collect(),
        };
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), body.clone())).collect();
        let replies = match placement {
            Some(placement) => router.cluster.scatter(placement, &commands)?,
            None => Vec::new(),
        };
        let mut w = Writer::new();
        for (shard, reply) in shards.iter().zip(replies) {
            let reply = sound(reply)?;
            if reply.get("plain").and_then(Val::as_bool) == Some(false) {
                return Ok(Stamps::NoDocuments);
            }
            w.val(shard, reply.get("stamp").unwrap_or(Val::NULL));
        }
        Ok(Stamps::Of(w.finish()))
    };
    match router.cluster.agree(ns, of) {
        Err(Failure::Client(e)) if e.code == Code::CommandNotFound => Ok(Stamps::Unknown),
        outcome => outcome,
    }
}
