//! `pando lab reads`: point reads and index ranges on a collection that is there, as `scripts/bench-load.sh` leaves one.
//!
//! Four steps: any document by its `_id`; ten documents by a range of an indexed number; documents by `_id` that memory
//! holds; and the last with a read of any document in every other request. Where the data is larger than memory the first
//! two wait for the disk, and the fourth against the third says what that does to the requests that need not.

use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result, local};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::lane::{Issued, Judged, Workload};
use crate::output::{Journal, Output, Page};
use crate::process;
use crate::progress::{self, Goal, Progress, say};
use crate::random::Rng;
use crate::reply::{self, SAMPLE_EVERY};
use crate::report::{CollectionSizes, Draft, MeasuredStep, TargetInfo};
use crate::request::{Template, find_by_id};
use crate::terms::{count, duration, pause, positive};
use bson::{Doc, ObjectId, Val, Value, Writer, doc};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// The server, as mongodb://host:port
    #[arg(long, default_value = crate::targets::DEFAULT_URL)]
    pub url: String,
    /// The collection, as database.collection
    #[arg(long, default_value = "load.things")]
    pub namespace: String,
    /// Its ids, one a line: 24 hexadecimal digits are an ObjectId, all else is a string. All of one length.
    #[arg(long)]
    pub ids: PathBuf,
    /// An indexed field with whole numbers of 64 bits, spread evenly over all that there are.
    #[arg(long, default_value = "a")]
    pub field: String,
    /// Connections, each with one request under way.
    #[arg(long, alias = "threads", default_value_t = 32)]
    pub connections: usize,
    /// Length of each step.
    #[arg(long, default_value = "20s", value_parser = duration)]
    pub duration: Duration,
    /// Unmeasured time before each step.
    #[arg(long, default_value = "5s", value_parser = pause)]
    pub warmup: Duration,
    /// Documents that are read again and again, so that memory holds them.
    #[arg(long, default_value = "1000", value_parser = count)]
    pub hot: u64,
    /// Where random numbers begin: the same seed, the same operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub to: Output,
}

/// The documents of a range.
const RANGE: u64 = 10;
/// A range is so wide that on the average so many times as many are in it as it gives: evenly spread numbers have gaps.
const SLACK: u64 = 8;

const KINDS: [&str; 3] = ["read", "range", "read in memory"];
const ANY: u8 = 0;
const RANGES: u8 = 1;
const HOT: u8 = 2;

/// The ids of a collection as value bytes, all of one width.
struct Ids {
    tag: u8,
    width: usize,
    bytes: Vec<u8>,
}

impl Ids {
    fn read(path: &Path) -> Result<Ids> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(local(&name))?;
        Ids::parse(&text).ok_or_else(|| {
            Fault::Usage(format!(
                "{name}: ids are expected, one a line and all of one length"
            ))
        })
    }

    fn parse(text: &str) -> Option<Ids> {
        let value = |line: &str| match ObjectId::parse_hex(line) {
            Some(id) => Value::from(id),
            None => Value::from(line),
        };
        let mut lines = text.lines().map(value);
        let first = lines.next()?;
        let (tag, width) = (first.as_val().tag, first.as_val().bytes.len());
        let mut bytes = first.as_val().bytes.to_vec();
        for id in lines {
            let id = id.as_val();
            if (id.tag, id.bytes.len()) != (tag, width) {
                return None;
            }
            bytes.extend_from_slice(id.bytes);
        }
        Some(Ids { tag, width, bytes })
    }

    fn len(&self) -> u64 {
        (self.bytes.len() / self.width) as u64
    }

    /// The `_id` of document `i`, which is below `len`.
    #[inline]
    fn at(&self, i: u64) -> &[u8] {
        let at = i as usize * self.width;
        &self.bytes[at..at + self.width]
    }

    fn value(&self, i: u64) -> Value {
        Value::from_bytes(self.tag, self.at(i).to_vec())
    }
}

/// What all lanes share.
struct Place {
    db: String,
    collection: String,
    field: String,
    ids: Ids,
    hot: u64,
    /// From the start of a range to its end.
    width: u64,
}

impl Place {
    fn range(&self) -> Template {
        let mut w = Writer::new();
        let bounds = doc! {"$gte": 0i64, "$lt": 0i64};
        w.str("find", &self.collection)
            .open_doc("filter")
            .doc(&self.field, bounds.as_doc())
            .close()
            .i32("limit", RANGE as i32)
            .str("$db", &self.db);
        Template::new(w.finish().as_doc(), None, 0)
            .slot(&["filter", &self.field, "$gte"])
            .slot(&["filter", &self.field, "$lt"])
    }
}

/// One lane: requests of these kinds in turn.
struct Read {
    place: Arc<Place>,
    kinds: &'static [u8],
    turn: usize,
    rng: Rng,
    point: Template,
    range: Template,
    seen: u32,
}

impl Read {
    fn new(place: &Arc<Place>, kinds: &'static [u8], seed: u64) -> Read {
        let id = place.ids.value(0);
        Read {
            rng: Rng::new(seed),
            point: find_by_id(&place.db, &place.collection, id.as_val(), None),
            range: place.range(),
            place: Arc::clone(place),
            kinds,
            turn: 0,
            seen: 0,
        }
    }
}

impl Workload for Read {
    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let kind = *self.kinds.get(self.turn % self.kinds.len())?;
        self.turn += 1;
        let place = &self.place;
        let all = place.ids.len();
        let tag = match kind {
            RANGES => {
                // Unsigned numbers in the order of the signed ones.
                let from = self.rng.below(u64::MAX - place.width) ^ 1 << 63;
                let to = (from as i64).saturating_add_unsigned(place.width);
                self.range
                    .write(out, &[&from.to_le_bytes(), &to.to_le_bytes()]);
                from
            }
            _ => {
                let i = match kind {
                    // Not those that were written last.
                    HOT => self.rng.below(place.hot) * (all / place.hot),
                    _ => self.rng.below(all),
                };
                self.point.write(out, &[place.ids.at(i)]);
                i
            }
        };
        Some(Issued {
            kind,
            whole: None,
            units: 1,
            tag,
            acknowledged: true,
        })
    }

    fn reply(&mut self, issued: &Issued, reply: Doc<'_>, _: &mut Vec<u8>) -> Judged {
        let range = issued.kind == RANGES;
        let docs = reply::batch(reply, if range { RANGE as usize } else { 1 })?;
        let looked_at = self.seen.is_multiple_of(SAMPLE_EVERY);
        self.seen = self.seen.wrapping_add(1);
        if looked_at {
            let place = &self.place;
            let from = issued.tag as i64;
            let within = from..from.saturating_add_unsigned(place.width);
            let right = |d: Doc<'_>| match d.get(&place.field).and_then(Val::to_i64_exact) {
                Some(number) if range => within.contains(&number),
                _ => !range && d.get("_id") == Some(place.ids.value(issued.tag).as_val()),
            };
            if let Some(wrong) = docs.values().find(|v| !v.as_doc().is_some_and(right)) {
                let wrong = wrong.as_doc().unwrap_or(Doc::EMPTY);
                return Err(Fault::Check(format!(
                    "not a document that was asked for: {}",
                    reply::brief(wrong)
                )));
            }
        }
        Ok(None)
    }
}

const STEPS: [(&str, &[u8]); 4] = [
    ("point read", &[ANY]),
    ("range of 10 documents", &[RANGES]),
    ("point read in memory", &[HOT]),
    ("the same beside reads of any", &[HOT, ANY]),
];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &[args.connections])?;
    let (db, collection) = args
        .namespace
        .split_once('.')
        .ok_or_else(|| Fault::Usage("--namespace is database.collection".into()))?;
    let ids = Ids::read(&args.ids)?;
    let documents = ids.len();
    if !(1..=documents).contains(&args.hot) || documents < RANGE * SLACK * 2 {
        return Err(Fault::Usage(format!(
            "{documents} documents are too few, or too few for --hot {}",
            args.hot
        )));
    }
    let place = Arc::new(Place {
        db: db.into(),
        collection: collection.into(),
        field: args.field.clone(),
        hot: args.hot,
        width: u64::MAX / documents * RANGE * SLACK,
        ids,
    });
    let target = MongoAddress::parse(&args.url)?;
    let mut control = target.connect()?;
    let counted = control.count(db, collection)?;
    if counted != documents {
        return Err(Fault::Check(format!(
            "{counted} documents in {} where {documents} ids are given",
            args.namespace
        )));
    }
    let mut draft = Draft::new("reads", &args.namespace);
    let info = TargetInfo::of(&target, &mut control);
    draft.set("documents", documents);
    draft.set("documents_in_memory", args.hot);
    draft.set("documents_per_range", RANGE);
    draft.set("seed", args.seed);
    draft.add_target(info);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    progress::course(STEPS.len().saturating_sub(draft.report.steps.len()) as f64);
    for (title, kinds) in STEPS {
        if interrupted() || draft.has(title) {
            continue;
        }
        let step = measure(&args, &target, &mut control, &place, title, kinds)?;
        draft.push(title, step);
        journal.save(&draft);
    }
    Ok(journal.finish(draft, Page::None)?.passed())
}

fn measure(
    args: &Args,
    target: &MongoAddress,
    control: &mut MongoConnection,
    place: &Arc<Place>,
    title: &str,
    kinds: &'static [u8],
) -> Result<MeasuredStep> {
    progress::step(1.0);
    let threads = process::allowed_cores().len().min(args.connections);
    say(
        args.to.quiet,
        format_args!("{title}, {} connection(s)", args.connections),
    );
    let mut fleet = Fleet::connect(target, args.connections, threads, |i, _| {
        Read::new(place, kinds, args.seed ^ (i as u64 + 1) << 32)
    })?;
    if !args.warmup.is_zero() {
        fleet.run_quietly(Some(args.warmup))?;
    }
    let pids = control.server_pid().into_iter().collect();
    let progress = Progress::new(title, Goal::Time(args.duration), pids, args.to.quiet);
    let (outcome, spent) = fleet.watched(Some(args.duration), progress, &mut |_| {})?;
    let mut step = MeasuredStep::new(title, args.connections, threads, &outcome, spent);
    let at = outcome.elapsed.as_secs_f64();
    let sizes = CollectionSizes::of(control, &place.db, &place.collection, at)?;
    step.sizes.push(sizes);
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::tag;

    #[test]
    fn ids_are_of_one_form() {
        let ids = Ids::parse("0123456789abcdef01234567\n0123456789abcdef01234568\n").unwrap();
        assert_eq!((ids.len(), ids.tag, ids.width), (2, tag::OBJECT_ID, 12));
        assert_eq!(ids.at(1)[11], 0x68);
        let ids = Ids::parse("c4ca4238a0b923820dcc509a6f75849b").unwrap();
        assert_eq!((ids.len(), ids.tag, ids.width), (1, tag::STRING, 37));
        assert_eq!(
            ids.value(0).as_val().as_str(),
            Some("c4ca4238a0b923820dcc509a6f75849b")
        );
        for wrong in ["", "a\nbb", "0123456789abcdef01234567\nabc"] {
            assert!(Ids::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn ranges_lie_within_the_numbers_that_there_are() {
        let place = Arc::new(Place {
            db: "d".into(),
            collection: "c".into(),
            field: "a".into(),
            ids: Ids::parse("a\nb\nc").unwrap(),
            hot: 1,
            width: u64::MAX / 3,
        });
        let mut read = Read::new(&place, &[RANGES], 1);
        let (mut below, mut above) = (false, false);
        for _ in 0..1000 {
            let mut out = Vec::new();
            let from = read.next(&mut out).unwrap().tag as i64;
            assert!(from.checked_add_unsigned(place.width).is_some());
            below |= from < 0;
            above |= from > 0;
        }
        assert!(below && above);
    }
}
