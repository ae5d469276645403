//! Recovery: a server with much incompressible data is killed (SIGKILL) under load, started again, and asked for every
//! write that it had acknowledged.

use super::place::{Server, ServerSetup};
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, RunOutcome};
use crate::process::disk_bytes;
use crate::progress::say;
use crate::reply;
use crate::report::CheckedFigure;
use crate::study::dataset::{DOCUMENT_BYTES, Dataset, INDEXES, Ids, Payload};
use crate::study::operation::{OperationPlace, StudyOperation, Work};
use crate::study::record::prepare;
use crate::terms::{WriteDurability, bytes};
use bson::{Val, Writer, doc};
use std::sync::Arc;
use std::time::{Duration, Instant};

const READY_BAR_MS: f64 = 3000.0;
const CONNECTIONS: usize = 32;
const UNDER_LOAD: Duration = Duration::from_secs(5);
const DB: &str = "lab";
const COLLECTION: &str = "recovery";

pub fn measure(room: &ServerSetup, gigabytes: f64, quiet: bool) -> Result<Vec<CheckedFigure>> {
    let records = (gigabytes * 1e9 / DOCUMENT_BYTES as f64).max(1.0) as u64;
    let data = Arc::new(Dataset::new(records, 1, Payload::Random, Ids::Generated));
    let dbpath = room.fresh_dbpath()?;
    // The server may use every core: how fast it loads is not the question.
    let mut server = room.start(&dbpath, &room.placement.all)?;
    say(quiet, format_args!("recovery: loading {gigabytes} GB"));
    let place = prepare(&server.target, DB, COLLECTION, &data, &INDEXES, quiet)?;
    say(quiet, "recovery: kill -9 under load");
    let mut fleet = killed_under_load(&mut server, &place)?;
    let on_disk = disk_bytes(&dbpath);
    let mut server = room.start(&dbpath, &room.placement.all)?;
    let ready = server.ready;
    say(
        quiet,
        format_args!("recovery: ready after {ready:?}, looking for every acknowledged write"),
    );
    let mut wanted = vec![(0, data.records)];
    for lane in &mut fleet.lanes {
        wanted.extend(lane.workload.acknowledged.take().unwrap_or_default());
    }
    let all: u64 = wanted.iter().map(|(_, n)| n).sum();
    let started = Instant::now();
    let missing = missing(&server.target, &place, &wanted)?;
    say(
        quiet,
        format_args!(
            "recovery: {all} writes looked for in {:?}",
            started.elapsed()
        ),
    );
    server.stop();
    let ready_note = format!("{} on disk, w:1", bytes(on_disk));
    let found_note = format!("{all} acknowledged, {} under load", all - data.records);
    Ok(vec![
        CheckedFigure::at_most(
            "recovery: ready after",
            ready.as_secs_f64() * 1e3,
            "ms",
            READY_BAR_MS,
        )
        .note(ready_note),
        CheckedFigure::at_most(
            "recovery: acknowledged writes missing",
            missing as f64,
            "documents",
            0.0,
        )
        .note(found_note),
    ])
}

/// A load in the middle of which the server is killed; its lanes know the acknowledged inserts.
fn killed_under_load(server: &mut Server, place: &OperationPlace) -> Result<Fleet<Work>> {
    let mut fleet = Fleet::connect(&server.target, CONNECTIONS, 1, |_, _| {
        let insert = StudyOperation::Insert {
            durability: WriteDurability::W1,
            batch: 1,
        };
        let mut work = Work::new(place, insert, 1);
        work.acknowledged = Some(Vec::new());
        work
    })?;
    let ended: Result<RunOutcome> = std::thread::scope(|scope| {
        let load = scope.spawn(|| fleet.run_quietly(Some(UNDER_LOAD * 4)));
        std::thread::sleep(UNDER_LOAD);
        server.kill();
        load.join()
            .unwrap_or_else(|_| Err(Fault::Local("the load's thread panicked".into())))
    });
    match ended {
        Ok(_) => return Err(Fault::Local("the server outlived its load".into())),
        // The connections broke, as they should.
        Err(Fault::Target(_)) => {}
        Err(other) => return Err(other),
    }
    Ok(fleet)
}

/// How many of these documents the server does not have.
fn missing(target: &MongoAddress, place: &OperationPlace, wanted: &[(u64, u64)]) -> Result<u64> {
    const AT_ONCE: usize = 1000;
    let mut connection = target.connect()?;
    let numbers = wanted
        .iter()
        .flat_map(|&(first, n)| first..first.saturating_add(n));
    let (mut missing, mut group) = (0, Vec::with_capacity(AT_ONCE));
    for i in numbers {
        group.push(i);
        if group.len() == AT_ONCE {
            missing += missing_of(&mut connection, place, &group)?;
            group.clear();
        }
    }
    Ok(missing + missing_of(&mut connection, place, &group)?)
}

fn missing_of(
    connection: &mut MongoConnection,
    place: &OperationPlace,
    group: &[u64],
) -> Result<u64> {
    if group.is_empty() {
        return Ok(0);
    }
    let mut ids = Writer::new_array();
    for &i in group {
        ids.push_value(place.data.id(i));
    }
    let size = i32::try_from(group.len()).unwrap_or(i32::MAX);
    let body = doc! {
        "find": place.collection.as_str(),
        "filter": doc! {"_id": doc! {"$in": ids.finish_array()}},
        "projection": doc! {"_id": 1},
        "batchSize": size + 1, "singleBatch": true,
    };
    let reply = connection.command(&place.db, body.as_doc())?;
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let found = cursor.and_then(|c| Some(c.get("firstBatch")?.as_array()?.count() as u64));
    let found = found
        .ok_or_else(|| Fault::Check(format!("no batch in {}", reply::brief(reply.as_doc()))))?;
    Ok((group.len() as u64).saturating_sub(found))
}
