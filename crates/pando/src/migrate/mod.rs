//! `pando migrate`: brings a running MongoDB (or PandoDB) over, while clients go on to write there.
//!
//! The steps: collections are made, documents copied, changes since the beginning followed, indexes
//! built when all is of one time, changes followed until the cut-over to the target, and both sides
//! compared. The state of it lies in a directory, so a run that was ended goes on.
//!
//! Invariant: nothing is written at the source, ever; at the target only collections that this migration has made.

mod copy;
mod follow;
mod inventory;
mod server;
mod state;
mod structure;
mod users;
mod verify;

use crate::client::ServerAddress;
use crate::progress::ProgressLine;
use crate::tool_words;
use copy::Copying;
use follow::Follower;
use inventory::{Namespace, NamespaceKind, Selection};
use server::{Failure, Kind, Result, Server};
use state::{Phase, State};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use structure::Notes;

const HELP: &str = "\
pando migrate: brings a running MongoDB or PandoDB over to another server, while clients go on to write at the source.

Usage: pando migrate FROM TO --state DIR [options]     starts, or goes on where a run was ended
       pando migrate status DIR                        how far it is
       pando migrate cut-over DIR                      tells the running one to finish: clients write at FROM no more
       pando migrate verify FROM TO [options]          compares both sides

FROM and TO are connection strings, mongodb://[user:password@]host[:port][,host…]/[?authSource=…&tls=true…].

  --state DIR     where the migration keeps how far it is
  --only NAME     a database, or DB.COLLECTION; can be given several times (all, if not given)
  --once          finish as soon as all changes are there, without waiting for cut-over
  --piece-mb N    larger collections are read in pieces of about this size, several at a time (256)
  --parallel N    how many read and write at a time (4)
  --no-users      leave users and roles where they are
  --help

The source is a replica set or a sharded cluster of MongoDB 4.0 or later, or PandoDB; of a mongod without a set the documents
are copied and changes are not followed. Change streams do not tell of time series: these are copied again at the end where
they differ. Databases admin, config and local are not copied, but for users and roles.

Ends with 0 when both sides are the same, with 1 when something has to be looked at, which is said.
";

/// How often a run without a terminal says how far it is.
const TOLD_EACH: Duration = Duration::from_secs(10);
/// How long changes may wait for others at the end.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Options {
    places: Vec<String>,
    state: Option<PathBuf>,
    only: Selection,
    once: bool,
    parallel: usize,
    piece_mb: u64,
    no_users: bool,
}

/// Runs `pando migrate …`; `args` are the words after `migrate`.
pub fn main(args: &[OsString]) -> ExitCode {
    let words = tool_words::texts(args);
    if words.is_empty() || tool_words::ask_help(&words) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match parse(&words) {
        Ok(options) => options,
        Err(e) => {
            eprintln!("pando migrate: {e}; see pando migrate --help");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("pando migrate: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> std::result::Result<Options, String> {
    let mut options = Options {
        parallel: 4,
        piece_mb: 256,
        ..Options::default()
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((n, v)) if n.starts_with("--") => (n, Some(v.to_string())),
            _ => (word.as_str(), None),
        };
        let mut taken = || {
            let value = value.clone().or_else(|| words.next().cloned());
            value.ok_or_else(|| format!("{name} takes a value"))
        };
        match name {
            "--state" => options.state = Some(taken()?.into()),
            "--only" => options.only.0.push(taken()?),
            "--parallel" => {
                let text = taken()?;
                options.parallel = match text.parse() {
                    Ok(n @ 1..=64) => n,
                    _ => {
                        return Err(format!(
                            "--parallel takes a number from 1 to 64, not '{text}'"
                        ));
                    }
                };
            }
            "--piece-mb" => {
                let text = taken()?;
                options.piece_mb = match text.parse() {
                    Ok(n @ 1..=1_048_576) => n,
                    _ => return Err(format!("--piece-mb takes a number above 0, not '{text}'")),
                };
            }
            "--once" => options.once = true,
            "--no-users" => options.no_users = true,
            other if other.starts_with('-') => return Err(format!("there is no option {other}")),
            _ => options.places.push(word.clone()),
        }
    }
    Ok(options)
}

/// Whether nothing has to be looked at.
fn run(options: &Options) -> std::result::Result<bool, String> {
    let places: Vec<&str> = options.places.iter().map(String::as_str).collect();
    match *places {
        ["status", dir] => {
            println!("{}", state::status(dir.as_ref())?);
            Ok(true)
        }
        ["cut-over", dir] => {
            state::ask_for_cut_over(dir.as_ref())?;
            println!("It finishes when all changes are at the target.");
            Ok(true)
        }
        ["verify", from, to] => {
            let (from, to) = (open(from)?, open(to)?);
            verify_only(from, to, options).map_err(|e| e.to_string())
        }
        [from, to] => {
            let dir = options
                .state
                .as_ref()
                .ok_or("name a directory with --state")?;
            let (shown, aim) = (
                outgoing::without_password(from),
                outgoing::without_password(to),
            );
            let (from, to) = (open(from)?, open(to)?);
            let (state, _) = State::open(dir, &shown, &aim, &options.only)?;
            migrate(from, to, options, &state).map_err(|e| e.to_string())
        }
        _ => Err("name the source and the target".into()),
    }
}

/// A server that answers now: a name or a password that is wrong is told at once.
fn open(uri: &str) -> std::result::Result<Server, String> {
    let address = ServerAddress::parse(uri)?;
    address.open()?;
    Ok(Server::new(&address))
}

fn verify_only(mut from: Server, to: Server, options: &Options) -> Result<bool> {
    let namespaces = inventory::namespaces(&mut from, &options.only)?;
    let (documents, differences) = verify::compare(&from, &to, &namespaces, options.parallel)?;
    Ok(tell_verified(documents, namespaces.len(), &differences))
}

fn tell_verified(documents: u64, namespaces: usize, differences: &[verify::Difference]) -> bool {
    for one in differences {
        println!("{} differs: {}", one.ns, one.says);
    }
    if differences.is_empty() {
        println!(
            "Both sides are the same: {documents} documents of {namespaces} collections and views, by counts and hashes."
        );
    }
    differences.is_empty()
}

struct Migration<'m> {
    from: Server,
    to: Server,
    source: Kind,
    target: Kind,
    options: &'m Options,
    state: &'m State,
    notes: Notes,
}

fn migrate(mut from: Server, mut to: Server, options: &Options, state: &State) -> Result<bool> {
    let (source, target) = (from.kind()?, to.kind()?);
    let mut m = Migration {
        from,
        to,
        source,
        target,
        options,
        state,
        notes: Notes::default(),
    };
    if state.look(|p| p.phase) == Phase::Copying {
        m.copy()?;
    }
    let mut follower = Follower::new(
        m.from.another(),
        m.to.another(),
        source,
        &options.only,
        state,
    );
    if state.look(|p| p.phase) == Phase::CatchingUp {
        m.catch_up(&mut follower)?;
    }
    m.follow(&mut follower)?;
    m.finish()
}

impl Migration<'_> {
    fn copying<'c>(&'c self, progress: &'c ProgressLine) -> Copying<'c> {
        Copying {
            from: &self.from,
            to: &self.to,
            source: self.source,
            state: self.state,
            workers: self.options.parallel,
            progress,
        }
    }

    fn copy(&mut self) -> Result<()> {
        let namespaces = inventory::namespaces(&mut self.from, &self.options.only)?;
        self.prepare(&namespaces)?;
        let bytes = self.make_collections(&namespaces)?;
        println!(
            "Copying {} collections and views, {} MB.",
            namespaces.len(),
            bytes >> 20
        );
        let progress = ProgressLine::of_bytes("copying", bytes);
        self.copying(&progress).run(&namespaces)?;
        drop(progress);
        let copied = self.from.operation_time()?;
        self.state.change(|p| {
            p.copied = copied;
            p.phase = Phase::CatchingUp;
        })?;
        Ok(())
    }

    /// The time from which changes count, and a target without what would be mixed up with what comes.
    fn prepare(&mut self, namespaces: &[Namespace]) -> Result<()> {
        if self
            .state
            .look(|p| p.start.is_some() || !p.pieces.is_empty())
        {
            return Ok(());
        }
        let there = inventory::namespaces(&mut self.to, &self.options.only)?;
        let both = |ns: &&Namespace| namespaces.iter().any(|n| n.full() == ns.full());
        if let Some(ns) = there.iter().find(both) {
            return Err(Failure::lasting(format!(
                "the target has a collection {} already; drop it, or name others with --only",
                ns.full()
            )));
        }
        let start = match self.source.has_log {
            true => self.from.operation_time()?,
            false => None,
        };
        if start.is_none() {
            self.notes.add(
                "the source has no log: what is written there from now on does not come over"
                    .into(),
            );
        }
        self.state.change(|p| p.start = start)?;
        Ok(())
    }

    /// Makes collections and their pieces; gives the bytes to copy.
    fn make_collections(&mut self, namespaces: &[Namespace]) -> Result<u64> {
        let mut bytes = 0;
        for ns in namespaces {
            let known = self.state.look(|p| p.pieces.get(&ns.full()).cloned());
            if let Some(pieces) = &known
                && !copy::is_by_id(ns)
                && pieces.iter().any(|p| !p.done)
            {
                // An unknown part of it is there.
                structure::drop_collection(&mut self.to, &ns.db, &ns.coll)?;
            }
            structure::create(&mut self.to, ns)?;
            if ns.kind == NamespaceKind::View {
                continue;
            }
            let (size, _) = inventory::size(&mut self.from, ns)?;
            bytes += size;
            if known.is_none() {
                let pieces = copy::pieces(&mut self.from, ns, size, self.options.piece_mb << 20)?;
                self.state.change(|p| {
                    p.pieces.insert(ns.full(), pieces);
                })?;
            }
        }
        structure::shard(
            (&mut self.from, self.source),
            (&mut self.to, self.target),
            namespaces,
            &mut self.notes,
        )?;
        Ok(bytes)
    }

    /// Follows to where the copy ended, from where on the target is as the source was at some time, and builds the indexes.
    fn catch_up(&mut self, follower: &mut Follower<'_>) -> Result<()> {
        let until = self.state.look(|p| p.copied).unwrap_or_default();
        if self.state.look(|p| p.start.is_some()) {
            println!("All documents are read; catching up.");
            self.follow_to(follower, until)?;
        }
        let namespaces = inventory::namespaces(&mut self.to, &self.options.only)?;
        let progress = ProgressLine::of_steps("building indexes", namespaces.len() as u64);
        for ns in namespaces
            .iter()
            .filter(|ns| ns.kind != NamespaceKind::View)
        {
            structure::equalize_indexes(&mut self.from, &mut self.to, ns, &mut self.notes)?;
            progress.add(1);
        }
        drop(progress);
        self.state.change(|p| p.phase = Phase::Following)?;
        Ok(())
    }

    fn follow_to(&mut self, follower: &mut Follower<'_>, until: u64) -> Result<()> {
        let progress = ProgressLine::of_time("making the changes since the begin");
        while follower.reached < until {
            follower.step(&mut self.notes)?;
        }
        drop(progress);
        Ok(())
    }

    fn follow(&mut self, follower: &mut Follower<'_>) -> Result<()> {
        if self.state.look(|p| p.start.is_none()) {
            return Ok(());
        }
        if !self.options.once {
            println!(
                "Following the changes of the source. When no client writes there any more: pando migrate cut-over DIR"
            );
            self.follow_until_told(follower)?;
        }
        // Writes acknowledged at the source before now come over.
        let until = self.from.operation_time()?.unwrap_or_default();
        self.follow_to(follower, until)?;
        let begun = Instant::now();
        while follower.waiting() > 0 {
            follower.step(&mut self.notes)?;
            if begun.elapsed() > SETTLES_WITHIN {
                self.notes.add(format!(
                    "{} documents are refused by unique indexes of the target",
                    follower.waiting()
                ));
                break;
            }
        }
        Ok(())
    }

    fn follow_until_told(&mut self, follower: &mut Follower<'_>) -> Result<()> {
        let progress = ProgressLine::of_time("following");
        let mut told = Instant::now();
        while !self.state.is_cut_over_asked() {
            follower.step(&mut self.notes)?;
            if told.elapsed() >= TOLD_EACH {
                told = Instant::now();
                let newest = self.from.operation_time()?.unwrap_or_default();
                let behind = (newest >> 32).saturating_sub(follower.reached >> 32);
                let line = format!(
                    "following: {} changes, {behind} s behind",
                    self.state.look(|p| p.changes)
                );
                progress.say(&line);
                if !progress.is_shown() {
                    println!("{line}");
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<bool> {
        let all = structure::equalize(
            &mut self.from,
            &mut self.to,
            &self.options.only,
            &mut self.notes,
        )?;
        if !self.options.no_users && self.options.only.0.is_empty() {
            users::copy(&mut self.from, &mut self.to, &mut self.notes)?;
        }
        let workers = self.options.parallel.div_ceil(2);
        let (mut documents, mut differences) =
            verify::compare(&self.from, &self.to, &all, workers)?;
        let (series, plain): (Vec<Namespace>, Vec<Namespace>) = all
            .into_iter()
            .partition(|ns| ns.kind == NamespaceKind::TimeSeries);
        if series
            .iter()
            .any(|ns| differences.iter().any(|d| d.ns == ns.full()))
        {
            let differ = |ns: &Namespace| differences.iter().any(|d| d.ns == ns.full());
            let again: Vec<Namespace> = series.into_iter().filter(differ).collect();
            self.copy_again(&again)?;
            let (more, left) = verify::compare(&self.from, &self.to, &again, workers)?;
            differences.retain(|d| plain.iter().any(|ns| ns.full() == d.ns));
            differences.extend(left);
            documents += more;
        }
        self.state.change(|p| p.phase = Phase::Done)?;
        let same = tell_verified(documents, self.state.look(|p| p.pieces.len()), &differences);
        Ok(same && self.notes.all().is_empty())
    }

    /// Time series, whose changes no stream tells of.
    fn copy_again(&mut self, series: &[Namespace]) -> Result<()> {
        for ns in series {
            structure::drop_collection(&mut self.to, &ns.db, &ns.coll)?;
            structure::create(&mut self.to, ns)?;
            self.state.change(|p| {
                p.pieces.insert(ns.full(), vec![state::Piece::default()]);
            })?;
        }
        let progress = ProgressLine::of_time("copying time series");
        self.copying(&progress).run(series)?;
        for ns in series {
            structure::equalize_indexes(&mut self.from, &mut self.to, ns, &mut self.notes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(s: &str) -> std::result::Result<Options, String> {
        parse(&s.split(' ').map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options() {
        let o = words("mongodb://a mongodb://b --state d --only x --only=y.z --parallel 2 --once")
            .unwrap();
        assert_eq!(
            (o.places.len(), o.parallel, o.once, o.no_users),
            (2, 2, true, false)
        );
        assert_eq!(o.only.0, ["x", "y.z"]);
        for wrong in ["a b --parallel 0", "a b --nope", "a b --state"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
        let missing = run(&words("a b").unwrap());
        assert!(missing.is_err(), "no directory is named");
    }
}
