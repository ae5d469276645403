//! `pando lab study keys`: study B, five ways to insert and reads by number of keys, one connection, on any targets.
//!
//! A record has 45 fields: the md5 of its number, and 44 others, in all about 1 KB. The others are constant, as published,
//! or cut from random text (`--fields random`), since constant ones compress to nothing. The time of every 1,000
//! operations is kept; the series is the result. Keys to read are drawn by a permutation, so that five million distinct
//! ones need no list and no night.

use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, RunOutcome, catch_interrupts, interrupted};
use crate::floor::{Floor, FloorLoad};
use crate::lane::{Issued, Judged, Numbered};
use crate::output::{Journal, Output, Page};
use crate::progress::{Goal, Progress, course, say, step};
use crate::random::{Permutation, Rng, mix};
use crate::repeat::{Repeat, turns};
use crate::reply::SAMPLE_EVERY;
use crate::report::{CollectionSizes, Draft, MeasuredStep, TargetInfo};
use crate::spoken::Spoken;
use crate::targets::local::given_or_own;
use crate::targets::{Activity, ByteStrings, Dialect, KeyRole, Table, TargetDatabase};
use crate::terms::{WriteDurability, count, duration};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fill {
    /// The same bytes in every record, as published.
    Constant,
    /// Different text in every record.
    Random,
}

#[derive(clap::Args)]
pub struct Args {
    /// Targets: mongodb://…, postgres://…, mysql://…; those that do not answer are skipped.
    #[arg(long)]
    pub url: Vec<String>,
    /// Records of each insert mode (published: 100m).
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Distinct keys of each read test; those above the number of records are left out.
    #[arg(long, value_delimiter = ',', value_parser = count,
          default_value = "10k,50k,100k,200k,500k,1m,2m,5m")]
    pub keys: Vec<u64>,
    /// What the 44 other fields hold.
    #[arg(long, value_enum, default_value = "constant")]
    pub fields: Fill,
    /// Insert modes: id, none, indexed.
    #[arg(long, value_delimiter = ',', default_value = "id,none,indexed")]
    pub modes: Vec<String>,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// The longest time of an insert mode or a read test.
    #[arg(long, value_parser = duration)]
    pub limit: Option<Duration>,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

pub const FIELDS: usize = 44;
const FIELD_BYTES: usize = 12;
/// Operations whose time together is one value of the result.
pub const GROUP: u64 = 1000;

/// A mode's name, how it is keyed, and what it is called.
const MODES: [(&str, KeyRole, &str); 3] = [
    ("id", KeyRole::Primary, "key given"),
    ("none", KeyRole::Unkeyed, "no key"),
    ("indexed", KeyRole::Indexed, "no key given, md5 indexed"),
];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    for m in &args.modes {
        if !MODES.iter().any(|(name, _, _)| name == m) {
            return Err(Fault::Usage(format!(
                "mode {m} is not one of id, none, indexed"
            )));
        }
    }
    if args.records == 0 || args.keys.contains(&0) {
        return Err(Fault::Usage(
            "--records and --keys must be at least 1".into(),
        ));
    }
    let (own, targets) = given_or_own(&args.url, args.to.quiet)?;
    let repeats = args.repeat.times(targets.len())?;
    let mut draft = Draft::new("study", "B-keys");
    draft.set("records", args.records);
    draft.set("fields", FIELDS + 1);
    draft.set("fill", format!("{:?}", args.fields).to_lowercase());
    draft.set("durability", args.durability.name());
    draft.set("connections", 1);
    draft.repeated(repeats);
    draft
        .note("44 fields beside the md5; reads take each key once, in the order of a permutation.");
    let mut journal = Journal::open(&mut draft, &args.to)?;
    course(left(&args, &draft, targets.len() * repeats));
    let mut infos = Vec::new();
    for target in &targets {
        target.ready(args.durability)?;
        let mut info = target.info()?;
        draft.tell_apart(&mut info);
        draft.add_target(info.clone());
        infos.push(info);
    }
    for (repeat, (name, key, title), i) in order(repeats, targets.len()) {
        if interrupted() || !args.modes.iter().any(|m| m == name) {
            continue;
        }
        draft.begin(repeat);
        let mode = Mode {
            args: &args,
            target: Arc::clone(&targets[i]),
            info: &infos[i],
            table: Arc::new(table(&*targets[i], name, key, args.fields)),
            title,
        };
        mode.run(&mut draft, &mut journal)?;
    }
    drop(own);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// The operations that are to be done yet: a step weighs as much as it has.
fn left(args: &Args, draft: &Draft, turns: usize) -> f64 {
    let reads: u64 = args.keys.iter().filter(|k| **k <= args.records).sum();
    let of_mode = |m: &String| args.records + if m == "none" { 0 } else { reads };
    let once: u64 = args.modes.iter().map(of_mode).sum();
    let steps = draft.report.steps.iter().chain(&draft.report.turns);
    let done: u64 = steps.map(|s| s.operations).sum();
    (once * turns as u64).saturating_sub(done) as f64
}

type ModeOf = (&'static str, KeyRole, &'static str);

/// Repeat, mode, target: within a repeat the targets take turns mode by mode.
fn order(repeats: usize, targets: usize) -> Vec<(usize, ModeOf, usize)> {
    let mut all: Vec<(usize, ModeOf, usize)> = Vec::new();
    for repeat in 0..repeats {
        for mode in MODES {
            let own = turns(repeats, targets).filter(|(r, _)| *r == repeat);
            all.extend(own.map(|(r, i)| (r, mode, i)));
        }
    }
    all
}

/// One insert mode by itself, its table dropped afterwards: for study E.
pub fn insert(
    target: &Arc<dyn TargetDatabase>,
    mode: &str,
    key: KeyRole,
    records: u64,
    durability: WriteDurability,
    quiet: bool,
) -> Result<MeasuredStep> {
    let args = Args {
        url: Vec::new(),
        records,
        keys: Vec::new(),
        fields: Fill::Random,
        modes: Vec::new(),
        durability,
        limit: None,
        repeat: Repeat::default(),
        to: Output {
            quiet,
            ..Output::default()
        },
    };
    let (_, _, title) = MODES
        .iter()
        .find(|(m, _, _)| *m == mode)
        .copied()
        .unwrap_or(MODES[0]);
    let info = target.info()?;
    let mode = Mode {
        args: &args,
        target: Arc::clone(target),
        info: &info,
        table: Arc::new(table(&**target, mode, key, args.fields)),
        title,
    };
    let step = mode.measure("insert", Work::Insert, 0)?;
    target.drop_table(&mode.table)?;
    Ok(step)
}

fn table(target: &dyn TargetDatabase, mode: &str, key: KeyRole, fill: Fill) -> Table {
    Table {
        database: target.database().unwrap_or_else(|| "studyb".into()),
        name: format!("studyb_{mode}_{}", format!("{fill:?}").to_lowercase()),
        key,
        key_name: "md5".into(),
        fields: (1..=FIELDS).map(|i| format!("f{i}")).collect(),
        text: true,
        single_fields: false,
    }
}

struct Mode<'a> {
    args: &'a Args,
    target: Arc<dyn TargetDatabase>,
    info: &'a TargetInfo,
    table: Arc<Table>,
    title: &'a str,
}

impl Mode<'_> {
    fn run(&self, draft: &mut Draft, journal: &mut Journal) -> Result<()> {
        let records = self.args.records;
        let steps: Vec<(String, Work)> = std::iter::once(("insert".to_string(), Work::Insert))
            .chain(
                self.args
                    .keys
                    .iter()
                    .filter(|&&k| k <= records && self.table.key != KeyRole::Unkeyed)
                    .map(|&k| (format!("read of {k} keys"), Work::Read(k))),
            )
            .collect();
        let key = |name: &str| format!("{} / {} / {name}", self.info.label(), self.title);
        let left: Vec<&(String, Work)> =
            steps.iter().filter(|(n, _)| !draft.has(&key(n))).collect();
        if left.is_empty() {
            return Ok(());
        }
        // Reads that are left need the records of an insert test that is done; its limit may have cut that short.
        let mut there = draft.step(&key("insert")).map_or(0, |s| s.operations);
        let loaded = draft.has(&key("insert")) && self.target.count(&self.table)? == there;
        for (name, work) in &steps {
            if interrupted() {
                return Ok(());
            }
            if draft.has(&key(name)) && (loaded || *work != Work::Insert) {
                continue;
            }
            // Keys are numbered in the order of insertion, so the first ones are those that are there.
            if matches!(work, Work::Read(keys) if *keys > there) {
                continue;
            }
            let step = self.measure(name, *work, there)?;
            if *work == Work::Insert {
                there = step.operations;
            }
            draft.forget(&key(name));
            draft.push(&key(name), step);
            journal.save(draft);
        }
        self.target.drop_table(&self.table)
    }

    /// What a null server spends on an operation of such a load.
    fn floor(&self, work: Work) -> Option<Floor> {
        let kind = FloorLoad {
            name: match work {
                Work::Insert => "study B, insert".into(),
                Work::Read(_) => "study B, read".into(),
            },
            table: &self.table,
            durability: self.args.durability,
            connections: 1,
            threads: 1,
        };
        kind.floor(|dialect, _, _| Keys {
            verify: false,
            ..Keys::new(
                dialect,
                Arc::clone(&self.table),
                FieldSource::new(self.args.fields),
                work,
                self.args.records,
                u64::MAX,
            )
        })
    }

    /// What the inserts left, all of which must be there.
    fn sizes(&self, title: &str, outcome: &RunOutcome) -> Result<CollectionSizes> {
        let have = self.target.count(&self.table)?;
        if have != outcome.operations {
            return Err(Fault::Check(format!(
                "{title}: {have} records after {} inserts",
                outcome.operations
            )));
        }
        let at = outcome.elapsed.as_secs_f64();
        let mut sizes = self.target.sizes(&self.table, at)?;
        sizes.documents = have;
        sizes.server_resident_bytes = self.info.memory_bytes();
        sizes.server_disk_bytes = self.info.disk_bytes();
        Ok(sizes)
    }

    /// `there`: how many records reads may ask for.
    fn measure(&self, name: &str, work: Work, there: u64) -> Result<MeasuredStep> {
        let records = match work {
            Work::Insert => self.args.records,
            Work::Read(_) => there,
        };
        let (operations, connections) = match work {
            Work::Insert => (self.args.records, 1),
            Work::Read(keys) => (keys, 1),
        };
        let title = format!("{}, {}: {name}", self.info.label(), self.title);
        step(operations as f64);
        say(self.args.to.quiet, &title);
        if work == Work::Insert {
            self.target.create(&self.table)?;
        }
        let dialect = self.target.dialect(&self.table, self.args.durability)?;
        let mut fleet = Fleet::through(&*dialect, connections, 1, |_, _| {
            Ok(Keys::new(
                self.target.dialect(&self.table, self.args.durability)?,
                Arc::clone(&self.table),
                FieldSource::new(self.args.fields),
                work,
                records,
                operations,
            ))
        })?;
        let progress = Progress::new(
            &title,
            Goal::Operations(operations),
            self.info.pids(),
            self.args.to.quiet,
        );
        let mut activity = Activity::default();
        let done = fleet.watched(self.args.limit, progress, &mut |s| {
            if work == Work::Insert {
                activity.look(&*self.target, s.at);
            }
        });
        let (outcome, spent) = done.map_err(|f| f.at(&self.info.url))?;
        let mut step = MeasuredStep::new(name, connections, 1, &outcome, spent);
        step.activity = activity.0;
        step.planned = self.args.limit.map(|_| operations);
        step.target = Some(self.info.label());
        step.mode = Some(self.title.to_string());
        step.at = matches!(work, Work::Read(_)).then_some(operations as f64);
        step.group = GROUP;
        step.point_reads = matches!(work, Work::Read(_));
        step.set_floor(self.floor(work));
        step.group_seconds = fleet
            .lanes
            .iter_mut()
            .flat_map(|l| std::mem::take(&mut l.workload.groups))
            .collect();
        if work == Work::Insert {
            step.durability = Some(self.args.durability.name().into());
            let sizes = self.sizes(&title, &outcome)?;
            step.sizes.push(sizes);
        }
        Ok(step)
    }
}

/// The key of record `i`: the md5 of its number, counted from 1, in hexadecimal.
pub fn write_key(i: u64, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.clear();
    let (mut digits, mut at, mut rest) = ([0u8; 20], 20, i + 1);
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    for b in md5::compute(&digits[at..]).0 {
        out.push(HEX[usize::from(b >> 4)]);
        out.push(HEX[usize::from(b & 15)]);
    }
}

/// Where fields come from: ready before the clock starts.
pub struct FieldSource {
    pool: Vec<u8>,
    fill: Fill,
}

const POOL_BYTES: usize = 1 << 20;

impl FieldSource {
    pub fn new(fill: Fill) -> FieldSource {
        let mut rng = Rng::new(23);
        let pool = (0..POOL_BYTES + FIELD_BYTES)
            .map(|_| b'a' + rng.below(26) as u8)
            .collect();
        FieldSource { pool, fill }
    }

    #[inline]
    fn field(&self, i: u64, field: usize) -> &[u8] {
        let at = match self.fill {
            Fill::Constant => field * FIELD_BYTES,
            Fill::Random => (mix(i << 6 | field as u64) % POOL_BYTES as u64) as usize,
        };
        &self.pool[at..at + FIELD_BYTES]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Insert,
    /// So many distinct keys, each once.
    Read(u64),
}

const KINDS: [&str; 1] = ["operation"];

struct Keys {
    dialect: Box<dyn Dialect>,
    table: Arc<Table>,
    source: FieldSource,
    work: Work,
    order: Permutation,
    key: Vec<u8>,
    cells: ByteStrings,
    next: u64,
    end: u64,
    done: u64,
    group_started: Option<Instant>,
    groups: Vec<f64>,
    verify: bool,
}

impl Keys {
    fn new(
        dialect: Box<dyn Dialect>,
        table: Arc<Table>,
        source: FieldSource,
        work: Work,
        records: u64,
        operations: u64,
    ) -> Keys {
        Keys {
            dialect,
            table,
            source,
            work,
            order: Permutation::new(records, 29),
            key: Vec::new(),
            cells: ByteStrings::default(),
            next: 0,
            end: operations,
            done: 0,
            group_started: None,
            groups: Vec::with_capacity((operations / GROUP + 1).min(1 << 17) as usize),
            verify: true,
        }
    }

    fn check(&mut self, i: u64, message: &[u8], id: i32) -> Result<()> {
        self.cells.clear();
        self.dialect.rows(message, id, &mut self.cells)?;
        write_key(i, &mut self.key);
        let fields = (0..FIELDS).all(|f| self.cells.get(f + 1) == self.source.field(i, f));
        if self.cells.len() != FIELDS + 1 || self.cells.get(0) != self.key || !fields {
            return Err(Fault::Check(format!("record {i} is not what was inserted")));
        }
        Ok(())
    }
}

impl Spoken for Keys {
    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        if self.next >= self.end {
            return None;
        }
        self.group_started.get_or_insert_with(Instant::now);
        let i = match self.work {
            Work::Insert => self.next,
            Work::Read(_) => self.order.at(self.next),
        };
        self.next += 1;
        write_key(i, &mut self.key);
        match self.work {
            Work::Insert => {
                self.cells.clear();
                self.cells.push(&self.key);
                for f in 0..self.table.fields.len() {
                    self.cells.push(self.source.field(i, f));
                }
                self.dialect.insert(&self.cells, out);
            }
            Work::Read(_) => self.dialect.read(&self.key, None, out),
        }
        Some(Issued::plain(1, i))
    }

    fn judge(&mut self, issued: &Issued, (message, id): Numbered<'_>, _: &mut Vec<u8>) -> Judged {
        let answer = self.dialect.answer(message, id)?;
        let got = match self.work {
            Work::Insert => answer.affected,
            Work::Read(_) => answer.rows,
        };
        if got != 1 {
            return Err(Fault::Check(format!(
                "{got} records for one of number {}",
                issued.tag
            )));
        }
        self.done += 1;
        if self.verify
            && matches!(self.work, Work::Read(_))
            && self.done.is_multiple_of(u64::from(SAMPLE_EVERY))
        {
            self.check(issued.tag, message, id)?;
        }
        if self.done.is_multiple_of(GROUP)
            && let Some(started) = self.group_started
        {
            let now = Instant::now();
            self.groups.push((now - started).as_secs_f64());
            self.group_started = Some(now);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_md5_of_one_and_on() {
        let mut key = Vec::new();
        write_key(0, &mut key);
        assert_eq!(key, b"c4ca4238a0b923820dcc509a6f75849b");
        write_key(9, &mut key);
        assert_eq!(key, b"d3d9446802a44259755d38e6d163e820");
    }

    #[test]
    fn constant_fields_are_constant_and_random_ones_are_not() {
        let constant = FieldSource::new(Fill::Constant);
        assert_eq!(constant.field(1, 3), constant.field(2, 3));
        assert_ne!(constant.field(1, 3), constant.field(1, 4));
        let random = FieldSource::new(Fill::Random);
        assert_ne!(random.field(1, 3), random.field(2, 3));
        assert_eq!(random.field(7, 3), random.field(7, 3));
    }
}
