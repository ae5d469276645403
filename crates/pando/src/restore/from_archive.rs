//! A restore from an archive: the files of a backup, and the log behind it, up to a moment.
//!
//! ```text
//! archive ─► TARGET.fetching/SET  (files, log)  ─► storage::restore ─► TARGET.whole/SET ─► TARGET, renamed when all sets are there
//! ```
//! Of a cluster all sets go to one time of the cluster. A commit over shards that was decided by then is
//! in all of it or goes on when the cluster is started, as after a loss of power.
//!
//! Invariant: the target appears whole, or not at all.

use super::{BuiltIndexes, sentence, show};
use crate::point_in_time;
use crate::progress::ProgressLine;
use crate::salvage;
use crate::transfers::beside_each_other;
use archive::{Archive, Backup, KeptFile, SetBackup};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use storage::{LogMaker, PointInTime, RestoreRequest, Until, restore};

pub(super) struct FromArchive<'a> {
    pub place: &'a str,
    pub target: &'a Path,
    pub key_file: Option<&'a Path>,
    /// The backup to begin with; by itself the last one that is not behind the moment.
    pub backup: Option<&'a str>,
    pub until: Until,
    /// Only this set of a cluster.
    pub set: Option<&'a str>,
    /// Only these databases and collections, as mongodump writes them.
    pub only: &'a [String],
}

/// The restored sets.
pub(super) struct Restored {
    pub cluster: bool,
    pub sets: Vec<(SetBackup, PathBuf, PointInTime)>,
}

pub(super) fn run(asked: &FromArchive<'_>) -> Result<Restored, String> {
    let target = asked.target;
    if target.exists() {
        return Err(format!("{} exists already", target.display()));
    }
    let archive = Archive::open(asked.place, asked.key_file)?;
    let backup = choose(archive.backups()?, asked)?;
    let beside = |ending: &str| {
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(ending);
        target.with_file_name(name)
    };
    let (fetched, whole) = (beside(".fetching"), beside(".whole"));
    let made = fresh(&fetched)
        .and_then(|()| fresh(&whole))
        .and_then(|()| sets(&archive, asked, &backup, &fetched, &whole));
    let _ = fs::remove_dir_all(&fetched);
    let made = made.and_then(|made| finish(asked, &backup, &whole, target).map(|()| made));
    let _ = fs::remove_dir_all(&whole);
    let mut made = made?;
    for (set, path, _) in &mut made {
        *path = place_of(target, &backup, set);
    }
    Ok(Restored {
        cluster: backup.cluster,
        sets: made,
    })
}

/// The directory of a set: that of a server alone is the target itself.
fn place_of(target: &Path, backup: &Backup, set: &SetBackup) -> PathBuf {
    match backup.cluster {
        true => target.join(&set.name),
        false => target.to_path_buf(),
    }
}

fn choose(backups: Vec<Backup>, asked: &FromArchive<'_>) -> Result<Backup, String> {
    let (id, until) = (asked.backup, asked.until);
    let first = backups.first().map(Backup::complete_ts);
    let is_before = |b: &Backup| match until {
        Until::End => true,
        Until::Timestamp(ts) => b.complete_ts() <= ts,
        Until::Wall(millis) => {
            i64::try_from(b.complete_ts() >> 32).is_ok_and(|s| s * 1000 <= millis)
        }
    };
    let fits = |b: &Backup| id.map_or_else(|| is_before(b), |id| b.id == id);
    let mut chosen = backups
        .into_iter()
        .rev()
        .find(fits)
        .ok_or_else(|| match (id, first) {
            (Some(id), _) => format!("there is no backup '{id}' in {}", asked.place),
            (None, None) => format!("there is no backup in {}", asked.place),
            (None, Some(first)) => format!(
                "the first backup in {} is of {}: of an earlier moment there is none",
                asked.place,
                point_in_time::show(i64::try_from(first >> 32).unwrap_or(0) * 1000, first)
            ),
        })?;
    if let Some(name) = asked.set {
        chosen.sets.retain(|s| s.name == name);
        if chosen.sets.is_empty() {
            return Err(format!("backup {} has no set '{name}'", chosen.id));
        }
    }
    Ok(chosen)
}

fn fresh(dir: &Path) -> Result<(), String> {
    // What a restore has left that was killed.
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))
}

fn sets(
    archive: &Archive,
    asked: &FromArchive<'_>,
    backup: &Backup,
    fetched: &Path,
    whole: &Path,
) -> Result<Vec<(SetBackup, PathBuf, PointInTime)>, String> {
    let bytes = backup.bytes();
    let progress = ProgressLine::of_bytes("fetching files", bytes);
    let mut end = u64::MAX;
    for set in &backup.sets {
        let of = |why: String| in_set(set, why);
        let dir = fetched.join(named(set));
        fetch_files(archive, set, &dir, &progress).map_err(of)?;
        end = end.min(fetch_log(archive, set, &dir.join("kept-log")).map_err(of)?);
    }
    drop(progress);
    let until = match (asked.until, backup.cluster) {
        // All sets go to a time that all logs reach.
        (Until::End, true) => Until::Timestamp(end),
        // Walls have clocks of their own; the cluster has one.
        (Until::Wall(millis), true) => {
            let seconds = u64::try_from(millis / 1000).map_err(|_| "the moment is before 1970")?;
            Until::Timestamp(seconds << 32)
        }
        (until, _) => until,
    };
    let progress = ProgressLine::of_time("applying the log");
    let mut made = Vec::new();
    for set in &backup.sets {
        progress.say(&format!("applying the log {}", set.name));
        let dir = fetched.join(named(set));
        let target = match backup.cluster {
            true => whole.join(&set.name),
            false => whole.join("data"),
        };
        let request = RestoreRequest {
            backup: &dir,
            log: Some(&dir.join("kept-log")),
            target: &target,
            until,
        };
        let done = restore(&request, &mut BuiltIndexes::default());
        let done = done.map_err(|e| in_set(set, sentence(e)))?;
        made.push((set.clone(), target, done.last));
    }
    Ok(made)
}

fn named(set: &SetBackup) -> &str {
    match set.name.is_empty() {
        true => "data",
        false => &set.name,
    }
}

fn in_set(set: &SetBackup, why: String) -> String {
    match set.name.is_empty() {
        true => why,
        false => format!("{}: {why}", set.name),
    }
}

fn fetch_files(
    archive: &Archive,
    set: &SetBackup,
    dir: &Path,
    progress: &ProgressLine,
) -> Result<(), String> {
    let fetch = |(): &mut (), file: &KeptFile| {
        let path = dir.join(&file.name);
        let parent = path.parent().unwrap_or(dir);
        let write = |from: &mut dyn std::io::Read| -> std::io::Result<()> {
            fs::create_dir_all(parent)?;
            let mut to = File::create(&path)?;
            std::io::copy(from, &mut to)?;
            to.flush()?;
            to.sync_all()
        };
        let mut from = progress.counting(archive.read_file(file)?);
        write(&mut from).map_err(|e| format!("{}: {e}", path.display()))
    };
    beside_each_other(archive.transfers(), &set.files, || Ok(()), fetch)
}

/// The log behind the files. Returns the timestamp of its last entry.
fn fetch_log(archive: &Archive, set: &SetBackup, dir: &Path) -> Result<u64, String> {
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let mut maker = LogMaker::new(dir).map_err(|e| e.into_message())?;
    for piece in archive.pieces(&set.line, &set.name)? {
        if piece.last >= set.from.index {
            let packed = archive.read_piece(&piece)?;
            maker.append(&packed).map_err(|e| e.into_message())?;
        }
    }
    maker.finish().map_err(|e| e.into_message())
}

/// Puts a restored directory in its place: as it is, or in the requested form.
fn finish(
    asked: &FromArchive<'_>,
    backup: &Backup,
    whole: &Path,
    target: &Path,
) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cannot make {}: {e}", target.display());
    let from = match backup.cluster {
        true => whole.to_path_buf(),
        false => whole.join("data"),
    };
    if asked.only.is_empty() {
        fs::rename(&from, target).map_err(cannot)?;
    } else {
        for set in &backup.sets {
            let wanted = |ns: &str| is_wanted(asked.only, ns);
            let out = place_of(target, backup, set);
            let lost = salvage::dump(&place_of(&from, backup, set), &out, &wanted)?;
            if lost > 0 {
                return Err("not all of what was asked for could be read".into());
            }
        }
    }
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|d| d.sync_all())
        .map_err(cannot)
}

/// `db` is all of a database, `db.collection` one collection.
fn is_wanted(only: &[String], ns: &str) -> bool {
    only.iter().any(|one| match one.contains('.') {
        true => one == ns,
        false => ns.split_once('.').is_some_and(|(db, _)| db == one),
    })
}

/// For people: what there is now, and how it is started.
pub(super) fn summary(restored: &Restored, asked: &FromArchive<'_>) -> String {
    let target = asked.target.display();
    if !asked.only.is_empty() {
        let first = restored
            .sets
            .first()
            .map(|(_, path, _)| path.display().to_string());
        return format!(
            "{target} has what was asked for, as mongodump writes it, up to {}. Load it with: mongorestore {}",
            restored
                .sets
                .first()
                .map_or_else(String::new, |(_, _, last)| show(last)),
            match restored.cluster {
                true => format!("DIR, for each directory in {target}"),
                false => first.unwrap_or_default(),
            }
        );
    }
    if !restored.cluster {
        let last = restored
            .sets
            .first()
            .map_or_else(String::new, |(_, _, last)| show(last));
        return format!(
            "{target} has everything up to {last}. Start it with: pando serve --dbpath {target}"
        );
    }
    let mut text = format!("{target} has the cluster:\n");
    for (set, path, last) in &restored.sets {
        let role = match set.name.as_str() {
            "config" => "--configsvr",
            _ => "--shardsvr",
        };
        text += &format!(
            "\n  {:8} up to {}\n           pando serve {role} --replSet {} --dbpath {}",
            set.name,
            show(last),
            set.members
                .split('/')
                .next()
                .filter(|n| !n.is_empty())
                .unwrap_or("NAME"),
            path.display()
        );
    }
    text += "\n\nStart each at an address that it had, or say where it is now: docs/operating.md.";
    text
}

/// The moments that an archive has are told by `pando backup list`.
pub(super) fn is_archive(place: &str) -> bool {
    // Whatever a store says against it is said when it is opened.
    place.contains("://") || Archive::is_at(place).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted() {
        let only = ["shop".to_string(), "crm.people".to_string()];
        for (ns, wanted) in [
            ("shop.orders", true),
            ("shop2.orders", false),
            ("crm.people", true),
            ("crm.people.old", false),
            ("crm.other", false),
        ] {
            assert_eq!(is_wanted(&only, ns), wanted, "{ns}");
        }
    }
}
