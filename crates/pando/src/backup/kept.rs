//! `pando backup list`, `verify` and `prune`: what an archive holds.

use super::log_keeper::last_of;
use crate::point_in_time;
use crate::progress::ProgressLine;
use crate::transfers::beside_each_other;
use archive::{Archive, ArchiveWork, Backup, KeptFile, SetBackup};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use storage::unpack_record;

pub(super) fn list(archive: &Archive) -> Result<String, String> {
    let backups = archive.backups()?;
    if backups.is_empty() {
        return Ok("There is no backup yet.".into());
    }
    let mut said = String::from(
        "id                          of the moment                          MB  sets\n",
    );
    for backup in &backups {
        let names: Vec<&str> = backup.sets.iter().map(|s| &*s.name).collect();
        let sets = match backup.cluster {
            true => names.join(", "),
            false => "one server".into(),
        };
        said += &format!(
            "{:26}  {:36}  {:>5}  {sets}\n",
            backup.id,
            shown(backup.complete_ts()),
            backup.bytes() >> 20
        );
    }
    said += "\nMoments that can be gone back to:";
    for (n, backup) in backups.iter().enumerate() {
        // A later backup of the same lines goes on to the same end.
        let goes_on = |later: &&Backup| lines(later) == lines(backup);
        if backups.get(n + 1).is_some_and(|b| goes_on(&b)) {
            continue;
        }
        let first = backups.iter().find(goes_on).unwrap_or(backup);
        let end = common_end(archive, backup)?;
        said += &format!("\n  {} to {}", shown(first.complete_ts()), shown(end));
    }
    Ok(said)
}

fn lines(backup: &Backup) -> Vec<(&str, &str)> {
    let of = backup.sets.iter().map(|s| (&*s.name, &*s.line));
    of.collect()
}

fn shown(ts: u64) -> String {
    let millis = i64::try_from(ts >> 32).unwrap_or(0) * 1000;
    point_in_time::show(millis, ts)
}

/// Up to where the logs of all sets go.
fn common_end(archive: &Archive, backup: &Backup) -> Result<u64, String> {
    let mut end = u64::MAX;
    for set in &backup.sets {
        let pieces = archive.pieces(&set.line, &set.name)?;
        let last = match pieces.iter().max_by_key(|p| p.last) {
            Some(piece) => last_of(&archive.read_piece(piece)?)?,
            None => None,
        };
        end = end.min(last.map_or(set.complete.ts, |at| at.ts));
    }
    Ok(end)
}

/// Reads everything that backups need, and compares it with what it was.
pub(super) fn verify(archive: &Archive, id: Option<&str>) -> Result<String, String> {
    let mut backups = archive.backups()?;
    if let Some(id) = id {
        backups.retain(|b| b.id == id);
    }
    if backups.is_empty() {
        return Err(match id {
            Some(id) => format!("there is no backup '{id}' in the archive"),
            None => "there is no backup in the archive".into(),
        });
    }
    let sets: Vec<&SetBackup> = backups.iter().flat_map(|b| &b.sets).collect();
    let mut files: Vec<_> = sets.iter().flat_map(|s| &s.files).collect();
    files.sort_by_key(|f| f.sha256);
    files.dedup_by_key(|f| f.sha256);
    let progress = ProgressLine::of_bytes("reading", files.iter().map(|f| f.bytes).sum());
    let damage = Mutex::new(Vec::new());
    let verify = |(): &mut (), file: &&KeptFile| {
        let verified = archive.verify_file(file, || {});
        damage.lock().extend(verified.err());
        progress.add(file.bytes);
        Ok(())
    };
    beside_each_other(archive.transfers(), &files, || Ok(()), verify)?;
    let mut damage = damage.into_inner();
    damage.sort();
    let mut seen = BTreeSet::new();
    let mut entries = 0;
    for set in &sets {
        if seen.insert((&set.line, &set.name)) {
            match verify_log(archive, set) {
                Ok(n) => entries += n,
                Err(why) => damage.push(why),
            }
        }
    }
    match damage.is_empty() {
        true => Ok(format!(
            "All is as it was: {} backups, {} files, {entries} entries of logs.",
            backups.len(),
            files.len()
        )),
        false => Err(format!(
            "the archive is damaged:\n  {}",
            damage.join("\n  ")
        )),
    }
}

/// That the log of the oldest backup of a line goes on to its end. Returns how many entries that are.
fn verify_log(archive: &Archive, set: &SetBackup) -> Result<u64, String> {
    let mut next = None;
    let mut entries = 0;
    for piece in archive.pieces(&set.line, &set.name)? {
        if piece.last < set.from.index {
            continue;
        }
        let packed = archive.read_piece(&piece)?;
        let mut rest = &packed[..];
        while let Some(record) = unpack_record(&mut rest).map_err(|e| e.into_message())? {
            let expected = *next.get_or_insert(record.index);
            if record.index > expected || (entries == 0 && record.index > set.from.index + 1) {
                return Err(format!(
                    "the log of {}: entry {expected} is missing",
                    set.name
                ));
            }
            if record.index == expected {
                next = Some(record.index + 1);
                entries += 1;
            }
        }
    }
    match next {
        Some(next) if next > set.complete.index => Ok(entries),
        _ => Err(format!("the log of {} ends before its backup", set.name)),
    }
}

/// Lets go of all backups but the newest `keep`, and of those that are older than so many days.
pub(super) fn prune(
    archive: &Archive,
    keep: Option<usize>,
    days: Option<u64>,
) -> Result<String, String> {
    let _lock = archive.lock(ArchiveWork::Prune)?;
    let backups = archive.backups()?;
    let newest = backups.len().saturating_sub(keep.unwrap_or(1));
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let is_young =
        |b: &Backup| days.is_some_and(|days| (b.complete_ts() >> 32) + days * 86_400 >= now);
    let kept: BTreeSet<String> = backups
        .iter()
        .enumerate()
        .filter(|(n, b)| *n >= newest || is_young(b))
        .map(|(_, b)| b.id.clone())
        .collect();
    let pruned = archive.prune(|b| kept.contains(&b.id))?;
    Ok(format!(
        "{} backups stay, {} went, with {} objects of {} MB.",
        kept.len(),
        backups.len() - kept.len(),
        pruned.objects,
        pruned.bytes >> 20
    ))
}
