//! One backup: copies of all sets as of one moment, what the archive lacks of their files, and their logs.
//!
//! Invariant: a backup is in the archive when all of its files are, were read there and are what the
//! server said, and when the logs reach beyond its moment.

use super::log_keeper::LogKeeper;
use super::remote::{self, Described, LogFailure, RemoteFile, StagedSet};
use crate::client::{Conversation, ServerAddress};
use crate::progress::ProgressLine;
use crate::transfers::beside_each_other;
use archive::{Archive, ArchiveWork, At, Backup, KeptFile, SetBackup};
use jiff::Timestamp;
use own_process::pace::BackgroundThrottle;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a set may take to have its log beyond the moment of a backup. A secondary waits for its primary's next entry.
const LOG_PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// A finished backup, and its cost.
pub(super) struct Made<'a> {
    pub backup: Backup,
    pub sent_files: usize,
    pub sent_bytes: u64,
    /// Where the logs of the sets go on.
    pub logs: Vec<LogKeeper<'a>>,
    /// For people: surprising circumstances.
    pub notes: Vec<String>,
}

/// `place`: where the archive is, for people.
pub(super) fn make<'a>(
    address: &ServerAddress,
    archive: &'a Archive,
    place: &str,
) -> Result<Made<'a>, String> {
    let _lock = archive.lock(ArchiveWork::Backup)?;
    let mut c = address.open()?;
    let progress = ProgressLine::of_time("copying beside the data");
    let (cluster, staged) = remote::stage(&mut c)?;
    progress.say("reading the copies whole");
    let ids = staged.clone();
    let described = describe_all(address, staged);
    drop(progress);
    let mut made =
        described.and_then(|described| keep(address, &mut c, archive, cluster, described));
    for staged in &ids {
        remote::release(&mut c, staged);
    }
    if let Ok(made) = &mut made
        && let Err(why) = remote::note(&mut c, &made.backup.id, place)
    {
        made.notes.push(format!(
            "the servers do not know that there is a backup now, and will not tell its age: {why}"
        ));
    }
    made
}

fn describe_all(address: &ServerAddress, staged: Vec<StagedSet>) -> Result<Vec<Described>, String> {
    let outcomes: Vec<Result<Described, String>> = std::thread::scope(|scope| {
        let asked: Vec<_> = staged
            .into_iter()
            .map(|one| scope.spawn(|| remote::describe(address, one)))
            .collect();
        let gone = || Err("a thread ended".into());
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap_or_else(|_| gone()))
            .collect()
    });
    outcomes.into_iter().collect()
}

fn keep<'a>(
    address: &ServerAddress,
    c: &mut Conversation,
    archive: &'a Archive,
    cluster: bool,
    described: Vec<Described>,
) -> Result<Made<'a>, String> {
    check_encryption(archive, &described)?;
    let id = new_id();
    let (sent_files, sent_bytes) = keep_files(address, archive, &described)?;
    let previous = archive.backups()?.pop();
    let (mut sets, mut logs, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let reach = described.iter().map(|d| d.complete.ts).max().unwrap_or(0) + 1;
    for set in described {
        let before = previous
            .as_ref()
            .and_then(|b| b.sets.iter().find(|s| s.name == set.staged.name));
        let (log, note) = keep_log(c, archive, &id, &set, before, reach)?;
        notes.extend(note);
        sets.push(SetBackup {
            name: set.staged.name,
            members: set.staged.members,
            line: log.line.clone(),
            from: set.from,
            complete: set.complete,
            collections: set.collections,
            files: set.files,
        });
        logs.push(log);
    }
    let backup = Backup { id, cluster, sets };
    archive.save(&backup)?;
    Ok(Made {
        backup,
        sent_files,
        sent_bytes,
        logs,
        notes,
    })
}

/// The files of an encrypted server come as they are; its log comes in the clear.
fn check_encryption(archive: &Archive, described: &[Described]) -> Result<(), String> {
    let has_key = |d: &&Described| d.files.iter().any(|f| f.name == storage::at_rest::KEY_FILE);
    match described.iter().find(has_key) {
        Some(_) if !archive.is_encrypted() => Err(
            "the server's data are encrypted, and the archive is not, which would keep the log in the clear: make one with --key-file".into(),
        ),
        _ => Ok(()),
    }
}

/// Puts the files that the archive lacks, and reads them there.
fn keep_files(
    address: &ServerAddress,
    archive: &Archive,
    described: &[Described],
) -> Result<(usize, u64), String> {
    let kept = archive.kept_files()?;
    let mut seen = BTreeSet::new();
    let all = described
        .iter()
        .flat_map(|d| d.files.iter().map(move |f| (&d.staged, f)));
    let lacking: Vec<_> = all
        .filter(|(_, f)| !archive.has_file(&kept, f) && seen.insert(f.sha256))
        .collect();
    let bytes = lacking.iter().map(|(_, f)| f.bytes).sum();
    let progress = ProgressLine::of_bytes("copying files", bytes);
    let threads = archive.transfers().min(lacking.len());
    // Writers beside it keep their pace.
    let begin = || Ok((address.open()?, BackgroundThrottle::begin(threads)));
    let put = |(c, pace): &mut (Conversation, BackgroundThrottle),
               (staged, file): &(&StagedSet, &KeptFile)| {
        let from = progress.counting(RemoteFile::new(c, staged, file));
        archive.put_file(file, &mut pace.reading(from))?;
        // Each file that was put is read again: the network and the disk of the archive may err too.
        archive.verify_file(file, || pace.rest())
    };
    beside_each_other(archive.transfers(), &lacking, begin, put)?;
    Ok((lacking.len(), bytes))
}

/// Reads a set's log until it reaches beyond its part of the backup.
fn keep_log<'a>(
    c: &mut Conversation,
    archive: &'a Archive,
    id: &str,
    set: &Described,
    before: Option<&SetBackup>,
    reach: u64,
) -> Result<(LogKeeper<'a>, Option<String>), String> {
    let name = &set.staged.name;
    let mut note = None;
    if let Some(before) = before
        && let Some(mut log) = LogKeeper::go_on(archive, name, &before.line)?
    {
        match reach_beyond(c, &mut log, set, reach) {
            Ok(()) => return Ok((log, None)),
            Err(LogFailure::Failed(why)) => return Err(why),
            Err(LogFailure::Another(why)) => {
                let of = if name.is_empty() {
                    String::new()
                } else {
                    format!("{name}: ")
                };
                note = Some(format!(
                    "{of}the log does not go on where the archive ends, so moments between the backup before and this one cannot be gone back to ({why})"
                ));
            }
        }
    }
    // The entry that the files end with is there as a rule; a server that was started from a backup has only later ones.
    for after in [set.from.index.saturating_sub(1), set.from.index] {
        let mut log = LogKeeper::begin(
            archive,
            name,
            id,
            At {
                index: after,
                ts: 0,
            },
        );
        match reach_beyond(c, &mut log, set, reach) {
            Ok(()) => return Ok((log, note)),
            Err(LogFailure::Failed(why)) => return Err(why),
            Err(LogFailure::Another(why)) if after == set.from.index => {
                return Err(format!(
                    "the log does not reach back to the copy any more: {why}"
                ));
            }
            Err(LogFailure::Another(_)) => {}
        }
    }
    Err("the log cannot be read".into())
}

fn reach_beyond(
    c: &mut Conversation,
    log: &mut LogKeeper<'_>,
    set: &Described,
    reach: u64,
) -> Result<(), LogFailure> {
    let deadline = Instant::now() + LOG_PATIENCE;
    log.watch(set.complete.index);
    loop {
        log.pull(c, reach)?;
        if log.last.index >= set.complete.index && log.last.ts >= reach {
            break;
        }
        if Instant::now() > deadline {
            return Err(LogFailure::Failed(format!(
                "{}: the log does not go on beyond the moment of the copy: there is no majority, or no primary",
                set.staged.name
            )));
        }
        std::thread::sleep(LOOK);
    }
    match log.seen_fingerprint() {
        Some(seen) if seen != set.fingerprint => Err(LogFailure::Failed(
            "the copy has entries that were taken back since: a primary that was deposed has made it; try again".into(),
        )),
        _ => Ok(()),
    }
}

/// Ids sort by time.
fn new_id() -> String {
    let now = Timestamp::now();
    let shown = now.strftime("%Y%m%dT%H%M%S%3fZ");
    format!("{shown}-{:x}", std::process::id())
}
