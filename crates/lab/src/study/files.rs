//! `pando lab study files`: study F, large files through GridFS, as drivers store them: chunks of 255 KB in `fs.chunks`
//! with a unique index on file and number, and a document in `fs.files`.
//!
//! The unit is a file: its whole upload or download is one operation, each chunk a request of its own.
//! Every downloaded file is compared with the uploaded one, chunk by chunk.

use super::shards;
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::lane::{Issued, Judged, Workload};
use crate::output::{Journal, Output, Page};
use crate::process;
use crate::progress::{self, Goal, Progress, say};
use crate::random::{Rng, mix};
use crate::repeat::Repeat;
use crate::reply;
use crate::report::{CollectionSizes, Draft, MeasuredStep, ShardPart, TargetInfo};
use crate::request::{InsertHead, command};
use crate::targets::local::{Launch, Started};
use crate::terms::{WriteDurability, bytes_of, count, positive};
use bson::{Doc, ObjectId, Val, Value, Writer, array, doc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(clap::Args)]
pub struct Args {
    /// The server, as mongodb://host:port (default: one of this run's own).
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub launch: Launch,
    /// Files to store and to read back.
    #[arg(long, default_value = "64", value_parser = count)]
    pub files: u64,
    /// Size of each.
    #[arg(long, default_value = "16m", value_parser = bytes_of)]
    pub size: u64,
    /// Numbers of connections, one after the other; each has one file under way.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,4,16"
    )]
    pub connections: Vec<usize>,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// The database; its collections fs.files and fs.chunks are made anew.
    #[arg(long, default_value = "studyf")]
    pub database: String,
    /// Keep the files.
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

/// GridFS's own.
const CHUNK: u64 = 255 * 1024;
const POOL_BYTES: usize = 4 << 20;

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &args.connections)?;
    if args.files == 0 || args.size == 0 || args.size > 1 << 40 {
        return Err(Fault::Usage(
            "--files and --size must be at least 1 (and a file at most 1 TB)".into(),
        ));
    }
    if !args.durability.acknowledged() {
        return Err(Fault::Usage(
            "files are uploaded acknowledged: use --durability w1 or journaled".into(),
        ));
    }
    let launched = match args.launch.launch.as_deref() {
        Some(_) if args.launch.shards > 1 && !args.launch.has_router() => {
            return Err(Fault::Usage(
                "files are spread by a router: --shards goes with --launch mongod, or with --launch pando --cluster".into(),
            ));
        }
        _ => args.launch.start(args.url.is_some(), args.to.quiet)?,
    };
    let given = args.url.clone().unwrap_or_default();
    let url = launched.as_ref().map_or(given, Started::url);
    let mut study = Study::open(&args, &url)?;
    let repeats = args.repeat.times(1)?;
    let done = study.draft.done();
    progress::course((args.connections.len() * 2 * repeats).saturating_sub(done) as f64);
    for repeat in 0..repeats {
        study.draft.begin(repeat);
        for &n in &args.connections {
            study.with(n)?;
        }
    }
    let Study { draft, journal, .. } = study.end(&url)?;
    drop(launched);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// The study under way on one server.
struct Study<'a> {
    args: &'a Args,
    address: MongoAddress,
    control: MongoConnection,
    info: TargetInfo,
    shared: Arc<Shared>,
    draft: Draft,
    journal: Journal,
}

impl Study<'_> {
    fn open<'a>(args: &'a Args, url: &str) -> Result<Study<'a>> {
        let address = MongoAddress::parse(url)?;
        let mut control = address.connect()?;
        let info = TargetInfo::of(&address, &mut control);
        let mut draft = Draft::new("study", "F-files");
        draft.set("files", args.files);
        draft.set("file_bytes", args.size);
        draft.set("chunk_bytes", CHUNK);
        draft.set("durability", args.durability.name());
        draft.repeated(args.repeat.times(1)?);
        draft.add_target(info.clone());
        draft.note("An operation is a whole file; its chunks are requests of their own.");
        let journal = Journal::open(&mut draft, &args.to)?;
        let mut rng = Rng::new(31);
        let mut pool = Vec::with_capacity(POOL_BYTES + CHUNK as usize);
        while pool.len() < POOL_BYTES + CHUNK as usize {
            pool.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        let shared = Arc::new(Shared {
            db: args.database.clone(),
            pool,
            files: args.files,
            size: args.size,
            durability: args.durability,
            next: AtomicU64::new(0),
        });
        Ok(Study {
            args,
            address,
            control,
            info,
            shared,
            draft,
            journal,
        })
    }

    /// Upload and download with so many connections.
    fn with(&mut self, n: usize) -> Result<()> {
        let label = self.info.label();
        let key = |name: &str| format!("{label} / {n} / {name}");
        // The uploads of a run that died may have gone with its server, or be only a part.
        if !self.draft.has(&key("download"))
            && !stored(&mut self.control, self.args, self.args.files)?
        {
            self.draft.forget(&key("upload"));
        }
        for (download, name) in [(false, "upload"), (true, "download")] {
            let key = key(name);
            if interrupted() || self.draft.has(&key) {
                continue;
            }
            let files = self.args.files;
            let line = format_args!("{name} of {files} files, {n} connection(s)");
            say(self.args.to.quiet, line);
            if !download {
                self.empty()?;
            }
            let step = self.measure(name, download, n)?;
            self.draft.push(&key, step);
            self.journal.save(&self.draft);
        }
        Ok(())
    }

    /// The collections of GridFS with their indexes and nothing in them.
    fn empty(&mut self) -> Result<()> {
        let (control, db) = (&mut self.control, &self.args.database);
        for collection in ["fs.files", "fs.chunks"] {
            control.drop_collection(db, collection)?;
        }
        if control.is_router() {
            // By hash: the ids of files grow, and would all go to the last shard.
            let hashed = Value::from("hashed");
            control.shard_collection(db, "fs.chunks", "files_id", hashed)?;
        }
        control.create_indexes(db, "fs.files", &[("filename", 1)])?;
        let index = doc! {
            "createIndexes": "fs.chunks",
            "indexes": array![doc! {
                "key": doc! {"files_id": 1, "n": 1}, "name": "files_id_1_n_1", "unique": true,
            }],
        };
        control.command(db, index.as_doc())?;
        control.mark(db, "fs.chunks")
    }

    fn measure(&mut self, name: &str, download: bool, n: usize) -> Result<MeasuredStep> {
        let (args, info) = (self.args, &self.info);
        progress::step(1.0);
        self.shared.next.store(0, Ordering::Relaxed);
        let threads = process::allowed_cores().len().min(n);
        let shared = &self.shared;
        let mut fleet = Fleet::connect(&self.address, n, threads, |_, _| {
            Files::new(shared, download)
        })?;
        let goal = Goal::Operations(args.files);
        let progress = Progress::new(name, goal, info.pids(), args.to.quiet);
        let (outcome, spent) = fleet.watched(None, progress, &mut |_| {})?;
        let mut step = MeasuredStep::new(name, n, threads, &outcome, spent);
        step.target = Some(info.label());
        step.mode = Some(name.to_string());
        step.megabytes_per_second = Some(outcome.rate() * args.size as f64 / 1e6);
        if download {
            return Ok(step);
        }
        step.durability = Some(args.durability.name().into());
        // Downloads ask for chunks by their file's id, so a lost file document shows only here.
        if !interrupted() && !stored(&mut self.control, args, outcome.operations)? {
            return Err(Fault::Check(format!(
                "{} files of {} chunks were uploaded, and others are there",
                outcome.operations,
                args.size.div_ceil(CHUNK)
            )));
        }
        let (db, at) = (&args.database, step.seconds);
        let sizes = CollectionSizes::of(&mut self.control, db, "fs.chunks", at)?;
        step.sizes.push(sizes);
        Ok(step)
    }

    /// The shards' statistics of a cluster; the files go, unless they are to stay.
    fn end(mut self, url: &str) -> Result<Self> {
        let db = &self.args.database;
        if self.control.is_router() {
            let all = shards::statistics(url, db, "fs.chunks", 0)?;
            let of = all.len() as u64;
            let all = all.into_iter().map(|s| ShardPart { of, ..s });
            self.draft.report.shards = all.collect();
        }
        if !self.args.keep {
            for collection in ["fs.files", "fs.chunks"] {
                self.control.drop_collection(db, collection)?;
            }
        }
        Ok(self)
    }
}

/// Whether so many files are there, and all their chunks.
fn stored(control: &mut MongoConnection, args: &Args, files: u64) -> Result<bool> {
    let db = &args.database;
    Ok(control.count(db, "fs.files")? == files
        && control.count(db, "fs.chunks")? == files * args.size.div_ceil(CHUNK))
}

struct Shared {
    db: String,
    pool: Vec<u8>,
    files: u64,
    size: u64,
    durability: WriteDurability,
    next: AtomicU64,
}

impl Shared {
    fn chunks(&self) -> u64 {
        self.size.div_ceil(CHUNK)
    }

    /// The bytes of chunk `n` of a file: a cut of the pool.
    fn chunk(&self, file: u64, n: u64) -> &[u8] {
        let length = CHUNK.min(self.size - n * CHUNK) as usize;
        let at = (mix(file << 20 ^ n) % POOL_BYTES as u64) as usize;
        &self.pool[at..at + length]
    }
}

fn id(file: u64) -> ObjectId {
    let mut b = *b"lab.file\0\0\0\0";
    b[8..].copy_from_slice(&(file as u32).to_be_bytes());
    ObjectId(b)
}

const KINDS: [&str; 4] = ["UPLOAD", "DOWNLOAD", "CHUNK-WRITE", "CHUNK-READ"];
const UPLOAD: u8 = 0;
const DOWNLOAD: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;

struct Files {
    shared: Arc<Shared>,
    download: bool,
    chunks: InsertHead,
    files: InsertHead,
}

impl Files {
    fn new(shared: &Arc<Shared>, download: bool) -> Files {
        Files {
            chunks: InsertHead::new(&shared.db, "fs.chunks", shared.durability),
            files: InsertHead::new(&shared.db, "fs.files", shared.durability),
            shared: Arc::clone(shared),
            download,
        }
    }

    /// The request for chunk `n`; past the last, the file's own document. A tag holds the file and the chunk.
    fn write(&self, file: u64, n: u64, out: &mut Vec<u8>) -> Issued {
        let shared = &self.shared;
        let issued = |kind, whole, units| Issued {
            kind,
            whole,
            units,
            tag: file << 32 | n,
            acknowledged: true,
        };
        if self.download {
            let body = doc! {
                "find": "fs.chunks", "filter": doc! {"files_id": Value::from(id(file)), "n": n as i32},
                "limit": 1, "singleBatch": true,
            };
            out.extend_from_slice(command(&shared.db, body.as_doc()).bytes());
            return issued(READ, Some(DOWNLOAD), u32::from(n + 1 == shared.chunks()));
        }
        let file_id = Value::from(id(file));
        if n < shared.chunks() {
            self.chunks.write(out, |out| {
                let mut w = Writer::on(std::mem::take(out));
                let mut own = id(file).0;
                own[0] = b'c';
                own[4..8].copy_from_slice(&(n as u32).to_be_bytes());
                w.value("_id", Value::from(ObjectId(own)));
                w.val("files_id", file_id.as_val()).i32("n", n as i32);
                w.binary("data", 0, shared.chunk(file, n));
                *out = w.finish_into();
            });
            return issued(WRITE, Some(UPLOAD), 0);
        }
        self.files.write(out, |out| {
            let mut w = Writer::on(std::mem::take(out));
            w.val("_id", file_id.as_val())
                .i64("length", shared.size as i64)
                .i32("chunkSize", CHUNK as i32)
                .date("uploadDate", 1_700_000_000_000)
                .str("filename", &format!("file{file}"));
            *out = w.finish_into();
        });
        issued(WRITE, Some(UPLOAD), 1)
    }
}

impl Workload for Files {
    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let file = self.shared.next.fetch_add(1, Ordering::Relaxed);
        (file < self.shared.files).then(|| self.write(file, 0, out))
    }

    fn reply(&mut self, issued: &Issued, body: Doc<'_>, out: &mut Vec<u8>) -> Judged {
        let (file, n) = (issued.tag >> 32, issued.tag & 0xffff_ffff);
        if self.download {
            let found = reply::batch(body, 1)?.values().next().and_then(Val::as_doc);
            let data = found.and_then(|d| d.get("data")?.as_binary());
            if data.map(|(_, bytes)| bytes) != Some(self.shared.chunk(file, n)) {
                return Err(Fault::Check(format!(
                    "chunk {n} of file {file} is not what was uploaded"
                )));
            }
        } else {
            reply::expect(body, "n", 1)?;
        }
        Ok((issued.units == 0).then(|| self.write(file, n + 1, out)))
    }
}
