//! `pando restore BACKUP TARGET`: a data directory as of a moment, from a backup and the log that was kept since; or
//! a whole cluster, from an archive.
//!
//! The entries of an index that was built on documents that were there are not in the log. Indexes whose build the log ends are
//! therefore built anew here; one whose build it only begins is built on by the first start, as after any stop.

mod from_archive;

use crate::point_in_time;
use crate::tool_words;
use bson::Doc;
use errors::Fallible as EngineResult;
use executor::{Engine, OpCtx, build};
use from_archive::FromArchive;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use storage::{
    Completion, Entry, Op, PointInTime, RestoreError, RestoreRequest, Restored, Store,
    StoreOptions, Until, Uuid, restore,
};

const HELP: &str = "\
Makes a data directory from a backup and the log that was kept since, as of a moment.

Usage: pando restore ARCHIVE TARGET [--until MOMENT] [--backup ID] [--set SET] [--only NAMESPACES]
                     [--key-file FILE] [--encryptionKeyFile FILE]
       pando restore BACKUP TARGET [--until MOMENT] [--log DIR]

  ARCHIVE  where pando backup keeps backups; of a cluster all sets go to one time of the cluster,
           and TARGET has a directory of each
  BACKUP   a directory that pando backup --in-place made, and that no server was started in
  TARGET   does not exist yet; start it with: pando serve --dbpath TARGET
  --until  the last moment to be in it: a time as 2026-11-24T10:00:00Z, or the timestamp of
           an entry as 1795514400:3 (see pando oplog) [default: all that the log has]
  --backup    begins with this one of pando backup list [default: the last one before the moment]
  --set       only this set of a cluster
  --only      databases and collections, as shop,crm.people: TARGET then has them as mongodump
              writes them, for mongorestore into a deployment that runs
  --key-file  the key of an archive that is encrypted
  --encryptionKeyFile  the master key of encrypted data directories: TARGET is encrypted as they are
  --log    the data directory of the server that BACKUP was made of, or a copy of its
           directory \"log\" [default: where the server had it]; the server may be running

A transaction or a batch is in TARGET as a whole, or it is not. After an error nothing is made.
";

struct RestoreArguments {
    backup: PathBuf,
    target: PathBuf,
    log: Option<PathBuf>,
    until: Until,
    id: Option<String>,
    set: Option<String>,
    only: Vec<String>,
    key_file: Option<PathBuf>,
}

pub fn main(args: &[OsString]) -> ExitCode {
    let help = tool_words::ask_help_alone(args).then_some(HELP);
    let arguments = match tool_words::parsed("restore", help, || parse(args)) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run(&arguments) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("pando: nothing was restored: {says}");
            ExitCode::from(1)
        }
    }
}

/// A set of a backup.
pub struct RestoredSet {
    /// As the cluster knows it; empty for a server alone.
    pub name: String,
    /// `SET/host:port,…`, as it was; may be empty.
    pub members: String,
}

/// Restores all of the last backup before a moment. Returns whether it is of a cluster, and its sets: the
/// data of each is in `target/NAME`, that of a server alone in `target`.
pub fn whole(
    archive: &str,
    target: &Path,
    key_file: Option<&Path>,
    until: Until,
) -> Result<(bool, Vec<RestoredSet>), String> {
    let restored = from_archive::run(&FromArchive {
        place: archive,
        target,
        key_file,
        backup: None,
        until,
        set: None,
        only: &[],
    })?;
    let sets = restored.sets.into_iter().map(|(set, _, _)| RestoredSet {
        name: set.name,
        members: set.members,
    });
    Ok((restored.cluster, sets.collect()))
}

fn run(arguments: &RestoreArguments) -> Result<String, String> {
    let place = arguments.backup.to_string_lossy();
    if from_archive::is_archive(&place) {
        if arguments.log.is_some() {
            return Err(
                "an archive has its logs: --log is for backups that were made in place".into(),
            );
        }
        let from = FromArchive {
            place: &place,
            target: &arguments.target,
            key_file: arguments.key_file.as_deref(),
            backup: arguments.id.as_deref(),
            until: arguments.until,
            set: arguments.set.as_deref(),
            only: &arguments.only,
        };
        return Ok(from_archive::summary(&from_archive::run(&from)?, &from));
    }
    if arguments.id.is_some()
        || arguments.set.is_some()
        || !arguments.only.is_empty()
        || arguments.key_file.is_some()
    {
        return Err(format!("{place} is no archive of backups"));
    }
    let request = RestoreRequest {
        backup: &arguments.backup,
        log: arguments.log.as_deref(),
        target: &arguments.target,
        until: arguments.until,
    };
    let target = arguments.target.display();
    match restore(&request, &mut BuiltIndexes::default()) {
        Ok(Restored { last, entries }) => Ok(format!(
            "{target} has everything up to {}: the backup and {entries} entries behind it. Start it with: pando serve --dbpath {target}",
            show(&last)
        )),
        Err(e) => Err(sentence(e)),
    }
}

fn parse(args: &[OsString]) -> Result<RestoreArguments, String> {
    let (mut places, mut log, mut until) = (Vec::new(), None, Until::End);
    let (mut id, mut set, mut only, mut key_file) = (None, None, Vec::new(), None);
    let mut args = args.iter();
    while let Some(word) = args.next() {
        let mut value = || {
            args.next()
                .ok_or(format!("{} wants a value", word.display()))
        };
        match word.to_str() {
            Some("--log") => log = Some(PathBuf::from(value()?)),
            Some("--until") => until = point_in_time::parse(&value()?.to_string_lossy())?,
            Some("--backup") => id = Some(value()?.to_string_lossy().into_owned()),
            Some("--set") => set = Some(value()?.to_string_lossy().into_owned()),
            Some("--key-file") => key_file = Some(PathBuf::from(value()?)),
            Some("--only") => {
                let list = value()?.to_string_lossy();
                only.extend(list.split(',').filter(|n| !n.is_empty()).map(String::from));
            }
            Some(option) if option.starts_with('-') => {
                return Err(format!("restore has no option {option}"));
            }
            _ => places.push(PathBuf::from(word)),
        }
    }
    match <[PathBuf; 2]>::try_from(places) {
        Ok([backup, target]) => Ok(RestoreArguments {
            backup,
            target,
            log,
            until,
            id,
            set,
            only,
            key_file,
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

fn show(at: &PointInTime) -> String {
    point_in_time::show(at.wall_millis, at.ts)
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
