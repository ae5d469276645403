//! Synonyms of searches over shards: the router reads their collections, which may be on any shard, and sends the
//! documents with the search.
//!
//! Invariant: all shards of one search have the same synonyms.

use crate::reads::{aggregate, find};
use crate::request::{RoutedCommand, own};
use crate::state::Router;
use crate::targeting::pipeline::stage_of;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::reply::batch_of;
use errors::err;
use query::pipeline::search::SYNONYMS;
use std::collections::BTreeSet;

/// The most bytes of documents that go with a search.
const MOST_BYTES: usize = 12 << 20;

/// The command with the documents of the synonym mappings that its search names; `None`: it names none.
pub(crate) fn with_documents(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let first = stages.values().next().and_then(stage_of);
    let Some((name, spec)) = first.filter(|(n, _)| matches!(*n, "$search" | "$searchMeta")) else {
        return Ok(None);
    };
    let Some(spec) = spec.as_doc().filter(|d| !d.contains(SYNONYMS)) else {
        return Ok(None);
    };
    let mut wanted = BTreeSet::new();
    named(spec, &mut wanted, 0);
    if wanted.is_empty() {
        return Ok(None);
    }
    let index = spec.get("index").and_then(|v| v.as_str());
    let sources = sources(router, command, index.unwrap_or("default"))?;
    let mut w = Writer::new();
    let mut bytes = 0;
    for (name, collection) in sources.iter().filter(|(n, _)| wanted.contains(n)) {
        w.open_array(name);
        for doc in documents(router, command, collection)? {
            bytes += doc.as_bytes().len();
            w.push(doc.as_doc().as_val());
        }
        w.close();
    }
    if bytes > MOST_BYTES {
        return Err(too_many().into());
    }
    let sent = w.finish();
    let mut w = command.without(&["pipeline"]);
    w.open_array("pipeline").open_doc("").open_doc(name);
    w.extend(spec).doc(SYNONYMS, sent.as_doc()).close().close();
    stages.values().skip(1).for_each(|stage| {
        w.push(stage);
    });
    w.close();
    Ok(Some(w.finish()))
}

fn too_many() -> errors::Error {
    err!(
        UnknownError,
        "synonyms of searches over shards may have at most {MOST_BYTES} bytes of documents"
    )
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

/// The mappings of an index with their collections.
fn sources(
    router: &Router,
    command: &RoutedCommand<'_>,
    index: &str,
) -> Outcome<Vec<(String, String)>> {
    let pipeline = bson::array![doc! {"$listSearchIndexes": doc! {"name": index}}];
    let body = doc! {
        "aggregate": command.collection(), "pipeline": pipeline, "cursor": doc! {}, "$db": command.db,
    };
    let reply = own(router, &body, aggregate::run)?;
    let definition = batch_of(&reply)
        .next()
        .and_then(|row| row.get("latestDefinition"));
    let list = definition.and_then(|d| d.as_doc()?.get("synonyms")?.as_array());
    let mapping = |v: Val<'_>| {
        let d = v.as_doc()?;
        let from = d.get("source")?.as_doc()?.get("collection")?.as_str()?;
        Some((d.get("name")?.as_str()?.to_string(), from.to_string()))
    };
    Ok(list
        .into_iter()
        .flat_map(|l| l.values())
        .filter_map(mapping)
        .collect())
}

fn documents(
    router: &Router,
    command: &RoutedCommand<'_>,
    collection: &str,
) -> Outcome<Vec<DocBuf>> {
    let body = doc! {"find": collection, "batchSize": i32::MAX, "$db": command.db};
    let reply = own(router, &body, find::find)?;
    let id = reply
        .get("cursor")
        .and_then(|c| c.as_doc()?.get("id")?.as_i64());
    if id != Some(0) {
        return Err(too_many().into());
    }
    Ok(batch_of(&reply).map(Doc::to_buf).collect())
}
