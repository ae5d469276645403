//! A sharded collection, and commands on it, for the tables of cases.

use crate::request::RoutedCommand;
use bson::{DocBuf, ObjectId, doc, json};
use service::Request;
use sharding::{Chunk, CollectionEntry, RoutingTable, ShardKey, Version};

/// `d.c`, in ranges from one of these bounds of `a` to the next: on `s0`, `s1` and so on.
pub(crate) fn table(bounds: &[i32]) -> RoutingTable {
    let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
    let all: Vec<DocBuf> = std::iter::once(key.global_min())
        .chain(bounds.iter().map(|n| doc! {"a": *n}))
        .chain(std::iter::once(key.global_max()))
        .collect();
    let chunk = |(n, bounds): (usize, &[DocBuf])| Chunk {
        id: ObjectId::generate(),
        min: bounds[0].clone(),
        max: bounds[1].clone(),
        shard: format!("s{n}").into(),
        lastmod: Version::placement_of(1, n as u32),
        jumbo: false,
        since: 1,
        turn: 1,
    };
    let chunks = all.windows(2).enumerate().map(chunk).collect();
    let entry = CollectionEntry {
        ns: "d.c".into(),
        uuid: [1; 16],
        key,
        unique: false,
        unsplittable: false,
        epoch: ObjectId([3; 12]),
        timestamp: 9,
        collation: None,
        series: None,
        measured: false,
    };
    RoutingTable::new(entry, chunks).unwrap()
}

/// `{v: …}` of a value in JSON.
pub(crate) fn value(text: &str) -> DocBuf {
    json::parse(&format!("{{\"v\":{text}}}")).unwrap()
}

/// The same with the command of a client that is not logged in.
pub(crate) fn with_command_of<T>(text: &str, test: impl FnOnce(&RoutedCommand<'_>) -> T) -> T {
    let body = json::parse(text).unwrap();
    let request = Request {
        legacy_db: Some("d"),
        ..Request::own(body.as_doc())
    };
    let known = front::specification::lookup(request.command()).unwrap();
    let parsed = front::ParsedCommand::of(known, &request).unwrap();
    let from_client = parsed.from_client();
    test(&RoutedCommand::of_client(
        None,
        from_client,
        &request,
        false,
    ))
}

/// Runs `test` with a command of the database `d`.
pub(crate) fn with_command<T>(text: &str, test: impl FnOnce(&RoutedCommand<'_>) -> T) -> T {
    let body = json::parse(text).unwrap();
    let mut w = bson::Writer::new();
    w.extend(body.as_doc()).str("$db", "d");
    let body = w.finish();
    let request = Request::own(body.as_doc());
    test(&RoutedCommand::of(&request).unwrap())
}
