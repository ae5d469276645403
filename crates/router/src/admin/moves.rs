//! `moveChunk`, `moveRange`: a range of a collection goes to a shard that is named.
//!
//! Both return when the donor has removed the range's documents, so what `waitForDelete` asks for holds
//! anyway. No range is too big to be moved, so there is nothing to force.

use super::{consistency, done, named_chunk, table_of};
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use errors::{Error, err};
use front::ParsedCommand;
use mover::transfer::{MoveOptions, To, move_concurrently};
use sharding::{Chunk, RoutingTable};
use std::time::Instant;

const CHUNK_FIELDS: [&str; 9] = [
    "find",
    "bounds",
    "to",
    "forceJumbo",
    "maxChunkSizeBytes",
    "secondaryThrottle",
    "_secondaryThrottle",
    "waitForDelete",
    "_waitForDelete",
];
const RANGE_FIELDS: [&str; 8] = [
    "min",
    "max",
    "toShard",
    "forceJumbo",
    "secondaryThrottle",
    "_secondaryThrottle",
    "waitForDelete",
    "_waitForDelete",
];

/// The error of a field of another type.
fn mismatch(within: &str, field: &str, v: Val<'_>, expected: &str) -> Error {
    err!(
        TypeMismatch,
        "BSON field '{within}.{field}' is the wrong type '{}', expected type '{expected}'",
        v.type_name()
    )
}

/// A field, as `read` reads it; null is none.
fn typed<'a, T>(
    command: &RoutedCommand<'a>,
    within: &str,
    field: &str,
    expected: &str,
    read: impl FnOnce(Val<'a>) -> Option<T>,
) -> Outcome<Option<T>> {
    let Some(v) = command.field(field).filter(|v| !v.is_nullish()) else {
        return Ok(None);
    };
    let found = read(v).ok_or_else(|| mismatch(within, field, v, expected))?;
    Ok(Some(found))
}

fn shard<'a>(command: &RoutedCommand<'a>, within: &str, field: &str) -> Outcome<&'a str> {
    let given = typed(command, within, field, "string", |v| v.as_str())?;
    Ok(given.ok_or_else(|| {
        err!(
            IDLFailedToParse,
            "BSON field '{within}.{field}' is missing but a required field"
        )
    })?)
}

/// Fails where a command that moves a range is given a field that it does not have.
pub(crate) fn check_fields(router: &Router, parsed: &ParsedCommand<'_>) -> Outcome<()> {
    let fields = match parsed.specification.name {
        "moveChunk" => &CHUNK_FIELDS[..],
        "moveRange" => &RANGE_FIELDS[..],
        _ => return Ok(()),
    };
    Ok(router.local.check_router_command(parsed, fields)?)
}

/// How the move is to be made. Fails for fields of other types.
fn options(command: &RoutedCommand<'_>, within: &str) -> Outcome<MoveOptions> {
    let flag = |field: &str| typed(command, within, field, "bool", |v| v.as_bool());
    for field in ["forceJumbo", "waitForDelete", "_waitForDelete"] {
        flag(field)?;
    }
    let throttled = [flag("secondaryThrottle")?, flag("_secondaryThrottle")?];
    let throttled = throttled.into_iter().flatten().next().unwrap_or(false);
    let concern = command.write_concern().filter(|_| throttled);
    let max_time_ms = command.generic.max_time_ms;
    Ok(MoveOptions::within(max_time_ms).throttled(concern))
}

pub(super) fn chunk(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    const NAME: &str = "moveChunk";
    let began = Instant::now();
    let options = options(command, NAME)?;
    let to = shard(command, NAME, "to")?;
    let find = typed(command, NAME, "find", "object", |v| v.as_doc())?;
    let bounds = typed(command, NAME, "bounds", "array", |v| v.as_array())?;
    if find.is_some() && bounds.is_some() {
        return Err(err!(
            InvalidOptions,
            "cannot specify bounds and query at the same time"
        )
        .into());
    }
    if bounds.is_some_and(|bounds| bounds.count() != 2) {
        return Err(err!(InvalidOptions, "bounds can only have exactly 2 elements").into());
    }
    let ns = command.collection();
    let table = table_of(router, ns)?;
    let chunk = named_chunk(command, &table)?;
    run(
        router,
        ns,
        (chunk.min.as_doc(), chunk.max.as_doc()),
        to,
        &options,
    )?;
    let mut w = Writer::new();
    w.i64(
        "millis",
        i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
    );
    Ok(finish(w, &[]))
}

fn run(
    router: &Router,
    ns: &str,
    (min, max): (Doc<'_>, Doc<'_>),
    to: &str,
    options: &MoveOptions,
) -> Outcome<()> {
    consistency::check_moves_are_allowed(router, ns)?;
    let range = To {
        min,
        max,
        shard: to,
    };
    move_concurrently(&router.cluster, ns, &range, options)?;
    router.cluster.refresh(ns)?;
    Ok(())
}

pub(super) fn range(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    const NAME: &str = "moveRange";
    let options = options(command, NAME)?;
    let to = shard(command, NAME, "toShard")?;
    let min = typed(command, NAME, "min", "object", |v| v.as_doc())?;
    let max = typed(command, NAME, "max", "object", |v| v.as_doc())?;
    let ns = command.collection();
    let table = table_of(router, ns)?;
    let (min, max) = whole_range(&table, min, max)?;
    run(router, ns, (min.as_doc(), max.as_doc()), to, &options)?;
    Ok(done())
}

/// The bounds of a range of which one may be missing: it is that of the chunk that has the other.
fn whole_range(
    table: &RoutingTable,
    min: Option<Doc<'_>>,
    max: Option<Doc<'_>>,
) -> Outcome<(DocBuf, DocBuf)> {
    let key = table.key();
    let whole = |d: Option<Doc<'_>>| d.map(|d| key.whole_bound(d)).transpose();
    let chunk = |bound: &DocBuf| -> Outcome<Chunk> {
        let place = key.place_of_bound(bound.as_doc())?;
        let found = table.chunk_at(&place).cloned();
        Ok(found.ok_or_else(|| err!(InternalError, "a place lies in no chunk"))?)
    };
    Ok(match (whole(min)?, whole(max)?) {
        (Some(min), Some(max)) => (min, max),
        (Some(min), None) => {
            let max = chunk(&min)?.max;
            (min, max)
        }
        (None, Some(max)) => {
            let place = key.place_of_bound(max.as_doc())?;
            let before = table.chunks().find(|c| {
                key.place_of_bound(c.max.as_doc())
                    .is_ok_and(|end| end >= place)
            });
            let min = before.map(|c| c.min.clone());
            (min.unwrap_or_else(|| key.global_min()), max)
        }
        (None, None) => {
            return Err(err!(InvalidOptions, "Must specify at least one bound").into());
        }
    })
}
