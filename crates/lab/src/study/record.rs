//! `pando lab record`: one reply of a real server for each operation, for the null server.

use super::dataset::{Dataset, INDEXES, Ids, Payload};
use super::operation::{OperationPlace, StudyOperation, Work};
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::Fleet;
use crate::null::{Recorded, write_recorded};
use crate::output::fresh_place;
use crate::progress::{Goal, Progress};
use crate::reply;
use crate::targets::local::{Started, given_or_own};
use crate::terms::{WriteDurability, count};
use crate::ycsb::sequence::KeySequence;
use bson::Doc;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Args {
    /// The server, as mongodb://host:port (default: one of this run's own).
    #[arg(long)]
    url: Option<String>,
    /// Documents to load for it.
    #[arg(long, default_value = "20k", value_parser = count)]
    records: u64,
    /// The file to write.
    #[arg(long, default_value = "replies.bson")]
    out: PathBuf,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
}

/// The operations whose replies are recorded.
pub const RECORDED: [StudyOperation; 8] = [
    StudyOperation::PointRead,
    StudyOperation::OneNumber,
    StudyOperation::TwoNumbers,
    StudyOperation::SortedRange,
    StudyOperation::First,
    StudyOperation::Update(WriteDurability::W1),
    StudyOperation::CountRange,
    StudyOperation::Insert {
        durability: WriteDurability::W1,
        batch: 1,
    },
];

pub fn main(args: Args) -> Result<bool> {
    fresh_place(&args.out, args.force)?;
    let urls: Vec<String> = args.url.into_iter().collect();
    let (own, targets) = given_or_own(&urls, true)?;
    let url = own.as_ref().map(Started::url).or(urls.into_iter().next());
    drop(targets);
    let target = MongoAddress::parse(&url.unwrap_or_default())?;
    let data = Arc::new(Dataset::new(args.records, 1, Payload::Text, Ids::Generated));
    let place = prepare(&target, "lab", "record", &data, &INDEXES, false)?;
    let mut connection = target.connect()?;
    let recorded = RECORDED
        .iter()
        .map(|&op| record(&mut connection, &place, op))
        .collect::<Result<Vec<_>>>()?;
    write_recorded(&args.out, &recorded)?;
    println!("{} replies in {}", recorded.len(), args.out.display());
    connection.drop_collection("lab", "record")?;
    Ok(true)
}

/// Sends one request of the operation and keeps the reply, which must be right.
pub fn record(
    connection: &mut MongoConnection,
    place: &OperationPlace,
    operation: StudyOperation,
) -> Result<Recorded> {
    let mut work = Work::new(place, operation, 3);
    let request = work
        .request()
        .ok_or_else(|| Fault::Usage("there is nothing to insert".into()))?;
    let message = connection.exchange_bytes(request)?;
    let body = match wire::parse(&message) {
        Ok((_, wire::Message::Msg(m))) => Doc::new(m.body).unwrap_or(Doc::EMPTY),
        _ => Doc::EMPTY,
    };
    reply::ok(body)?;
    Ok(Recorded {
        operation: operation.name().into(),
        command: operation.command().into(),
        message,
    })
}

/// A fresh collection with the whole data set and the indexes given.
pub fn prepare(
    target: &MongoAddress,
    db: &str,
    collection: &str,
    data: &Arc<Dataset>,
    indexes: &[(&str, i32)],
    quiet: bool,
) -> Result<OperationPlace> {
    let mut connection = target.connect()?;
    connection.drop_collection(db, collection)?;
    connection.create_indexes(db, collection, indexes)?;
    let mut place = OperationPlace {
        db: db.into(),
        collection: collection.into(),
        data: Arc::clone(data),
        loaded: 0,
        inserts: Arc::new(KeySequence::new(0)),
        insert_end: data.records,
        verify: true,
    };
    load(target, &mut place, connection.server_pid(), quiet)?;
    place.inserts = Arc::new(KeySequence::new(data.records));
    place.insert_end = u64::MAX;
    Ok(place)
}

/// Inserts documents up to `insert_end` in batches over a few connections, and counts them.
pub fn load(
    target: &MongoAddress,
    place: &mut OperationPlace,
    pid: Option<u32>,
    quiet: bool,
) -> Result<()> {
    const CONNECTIONS: usize = 4;
    let insert = StudyOperation::Insert {
        durability: WriteDurability::W1,
        batch: 1000,
    };
    let title = format!("loading {}.{}", place.db, place.collection);
    let goal = Goal::Operations(place.insert_end - place.loaded);
    let mut progress = Progress::new(title, goal, pid.into_iter().collect(), quiet);
    let mut fleet = Fleet::connect(target, CONNECTIONS, 1, |i, _| {
        Work::new(place, insert, i as u64)
    })?;
    fleet.run(None, &mut |s| progress.sample(s))?;
    if crate::fleet::interrupted() {
        return Err(Fault::Local("interrupted while loading".into()));
    }
    place.loaded = place.insert_end;
    let counted = target.connect()?.count(&place.db, &place.collection)?;
    if counted != place.loaded {
        return Err(Fault::Check(format!(
            "{counted} documents in {}.{} after {} acknowledged inserts",
            place.db, place.collection, place.loaded
        )));
    }
    Ok(())
}
