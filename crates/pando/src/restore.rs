//! `pando restore BACKUP TARGET`: a data directory as of a moment, from a backup and the log that was kept since.
//!
//! The entries of an index that was built on documents that were there are not in the log. Indexes whose build the log ends are
//! therefore built anew here; one whose build it only begins is built on by the first start, as after any stop.

use crate::moment;
use bson::Doc;
use errors::Fallible as EngineResult;
use executor::{Engine, OpCtx, build};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use storage::{
    Completion, Entry, Moment, Op, RestoreError, RestoreRequest, Restored, Store, StoreOptions,
    Until, Uuid, restore,
};

const HELP: &str = "\
Makes a data directory from a backup and the log that was kept since, as of a moment.

Usage: pando restore BACKUP TARGET [--log DIR] [--until MOMENT]

  BACKUP   a directory that pando backup made, and that no server was started in
  TARGET   does not exist yet; start it with: pando serve --dbpath TARGET
  --log    the data directory of the server that the backup was made of, or a copy of its
           directory \"log\" [default: where the server had it]; the server may be running
  --until  the last moment to be in it: a time as 2026-11-24T10:00:00Z, or the timestamp of
           an entry as 1795514400:3 (see pando oplog) [default: all that the log has]

A transaction or a batch is in TARGET as a whole, or it is not. After an error nothing is made.
";

struct Asked {
    backup: PathBuf,
    target: PathBuf,
    log: Option<PathBuf>,
    until: Until,
}

pub fn main(args: &[OsString]) -> ExitCode {
    if matches!(args, [help] if help == "--help" || help == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(says) => {
            eprintln!("pando: {says} (see pando restore --help)");
            return ExitCode::from(2);
        }
    };
    let request = RestoreRequest {
        backup: &asked.backup,
        log: asked.log.as_deref(),
        target: &asked.target,
        until: asked.until,
    };
    let target = asked.target.display();
    match restore(&request, &mut BuiltIndexes::default()) {
        Ok(Restored { last, entries }) => {
            println!(
                "{target} has everything up to {}: the backup and {entries} entries behind it. Start it with: pando serve --dbpath {target}",
                show(&last)
            );
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("pando: nothing was restored: {}", sentence(e));
            ExitCode::from(1)
        }
    }
}

fn parse(args: &[OsString]) -> Result<Asked, String> {
    let (mut places, mut log, mut until) = (Vec::new(), None, Until::End);
    let mut args = args.iter();
    while let Some(word) = args.next() {
        let mut value = || {
            args.next()
                .ok_or(format!("{} wants a value", word.display()))
        };
        match word.to_str() {
            Some("--log") => log = Some(PathBuf::from(value()?)),
            Some("--until") => until = moment::parse(&value()?.to_string_lossy())?,
            Some(option) if option.starts_with('-') => {
                return Err(format!("restore has no option {option}"));
            }
            _ => places.push(PathBuf::from(word)),
        }
    }
    match <[PathBuf; 2]>::try_from(places) {
        Ok([backup, target]) => Ok(Asked {
            backup,
            target,
            log,
            until,
        }),
        Err(_) => Err("restore wants a backup and a directory to make".into()),
    }
}

/// The indexes whose builds ended in the log, by collection and number.
#[derive(Default)]
struct BuiltIndexes(Vec<(Uuid, i64)>);

impl Completion for BuiltIndexes {
    fn applied(&mut self, entry: &Entry) {
        for part in entry.plain() {
            if let Op::Ddl(what) = &part.op
                && let Some(what) = Doc::new(what).filter(|d| d.contains("commitIndexBuild"))
                && let Some(index) = what.get("index").and_then(|v| v.as_i64())
            {
                self.0.push((part.uuid, index));
            }
        }
    }

    fn complete(&mut self, dir: &Path) -> EngineResult<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let store = Store::open(StoreOptions {
            cache_bytes: 64 << 20,
            ..StoreOptions::new(dir)
        })?;
        let engine = Engine::open(store.clone()).map_err(errors::Stop::into_error)?;
        let mut op = OpCtx::worker(&engine);
        for (uuid, index) in &self.0 {
            let snapshot = engine.catalog.snapshot();
            let Some(coll) = snapshot.all().find(|c| c.uuid == *uuid) else {
                continue;
            };
            if let Some(built) = coll.indexes.iter().find(|i| i64::from(i.id) == *index) {
                build::rebuild_index(&mut op, &coll.ns, built.name())
                    .map_err(errors::Stop::into_error)?;
            }
        }
        store.close()
    }
}

fn show(at: &Moment) -> String {
    moment::show(at.wall_millis, at.ts)
}

fn sentence(e: RestoreError) -> String {
    match e {
        RestoreError::Failed(e) => e.into_message(),
        RestoreError::TooEarly { earliest } => format!(
            "the backup was complete only at {}: of an earlier moment it has too much",
            show(&earliest)
        ),
        RestoreError::TooLate { last } => format!(
            "the log ends at {}, before that moment; without --until all that it has is restored",
            show(&last)
        ),
        RestoreError::Gap {
            after,
            next: Some(next),
        } => format!(
            "there is a gap: behind entry {} of {} the log goes on only with entry {} of {}",
            after.index,
            show(&after),
            next.index,
            show(&next)
        ),
        RestoreError::Gap { after, next: None } => format!(
            "the log ends with entry {} of {}, before the backup was complete",
            after.index,
            show(&after)
        ),
        RestoreError::OtherLog { index } => format!(
            "this is the log of another server, or of another life of this one: its entry {index} is not the one that the backup was made under"
        ),
    }
}
