//! An archive: its content, how it is put, read and removed.

use crate::cipher::{DecryptingReader, EncryptingReader};
use crate::directory::Directory;
use crate::lock::{ArchiveLock, ArchiveWork};
use crate::manifest::{Backup, KeptFile, hex};
use crate::s3::S3;
use crate::store::{ArchiveStore, Object};
use crate::{ArchiveKey, ArchiveResult};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

const STAMP: &str = "PANDO-ARCHIVE";
const FORMAT: u64 = 1;
const BACKUPS: &str = "backups/";
const FILES: &str = "files/";
const LOG: &str = "log/";
/// Bytes of a file that are read at once to verify it.
const VERIFIED_AT_ONCE: usize = 1 << 20;

pub struct Archive {
    store: Arc<dyn ArchiveStore>,
    key: Option<ArchiveKey>,
}

/// Entries of a log, kept together. Two pieces may have entries in common: those are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// The indexes of its first and last entry.
    pub first: u64,
    pub last: u64,
    pub bytes: u64,
    name: String,
}

/// What a prune has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub objects: usize,
    pub bytes: u64,
}

impl Archive {
    /// Whether a place is an archive.
    pub fn is_at(place: &str) -> ArchiveResult<bool> {
        let store = store_at(place)?;
        Ok(store.get(STAMP)?.is_some())
    }

    pub fn open(place: &str, key: Option<&Path>) -> ArchiveResult<Archive> {
        let store = store_at(place)?;
        match read_text(&*store, STAMP)? {
            Some(stamp) => Archive::stamped(store, &stamp, key, place),
            None => Err(format!(
                "{place} is no archive of backups: it has no {STAMP}"
            )),
        }
    }

    /// Opens it, or makes it in a place where nothing is.
    pub fn open_or_make(place: &str, key: Option<&Path>) -> ArchiveResult<Archive> {
        let store = store_at(place)?;
        if let Some(stamp) = read_text(&*store, STAMP)? {
            return Archive::stamped(store, &stamp, key, place);
        }
        if !store.list("")?.is_empty() {
            return Err(format!(
                "{place} holds something else than an archive of backups"
            ));
        }
        let key = key.map(ArchiveKey::load).transpose()?;
        let proof = key.as_ref().map(proof_of);
        let stamp = json!({"format": FORMAT, "encrypted": key.is_some(), "proof": proof});
        store.put(STAMP, &mut format!("{stamp}\n").as_bytes())?;
        Ok(Archive { store, key })
    }

    fn stamped(
        store: Arc<dyn ArchiveStore>,
        stamp: &str,
        key: Option<&Path>,
        place: &str,
    ) -> ArchiveResult<Archive> {
        let stamp: Value = serde_json::from_str(stamp).unwrap_or(Value::Null);
        match stamp.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(n) => {
                return Err(format!(
                    "{place} has format {n}, which this release does not know"
                ));
            }
            None => return Err(format!("{place}/{STAMP} is damaged")),
        }
        let encrypted = stamp.get("encrypted").and_then(Value::as_bool) == Some(true);
        let key = match (encrypted, key) {
            (true, None) => return Err(format!("{place} is encrypted: --key-file names its key")),
            (false, Some(_)) => return Err(format!("{place} is not encrypted: it has no key")),
            (_, key) => key.map(ArchiveKey::load).transpose()?,
        };
        let proof = stamp.get("proof").and_then(Value::as_str);
        if let Some(key) = &key
            && proof != Some(&*proof_of(key))
        {
            return Err(format!("{place} is encrypted with another key"));
        }
        Ok(Archive { store, key })
    }

    /// How many of its objects are best moved beside each other.
    pub fn transfers(&self) -> usize {
        self.store.transfers()
    }

    /// Whether it can be read only with its key.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    pub fn lock(&self, work: ArchiveWork) -> ArchiveResult<ArchiveLock> {
        ArchiveLock::take(&self.store, work)
    }

    fn put(&self, name: &str, from: &mut dyn Read) -> ArchiveResult<()> {
        match &self.key {
            None => self.store.put(name, from),
            Some(key) => {
                let mut sealing =
                    EncryptingReader::new(key, name, from).map_err(|e| e.to_string())?;
                self.store.put(name, &mut sealing)
            }
        }
    }

    fn get(&self, name: &str) -> ArchiveResult<Box<dyn Read + '_>> {
        let missing = || format!("{name} is missing in the archive");
        let from = self.store.get(name)?.ok_or_else(missing)?;
        match &self.key {
            None => Ok(from),
            Some(key) => {
                let opening = DecryptingReader::new(key, name, from).map_err(|e| e.to_string())?;
                Ok(Box::new(opening))
            }
        }
    }

    /// Of an encrypted archive a name says nothing of the content without the key.
    fn file_name(&self, sha256: &[u8; 32]) -> String {
        let name = match &self.key {
            None => hex(sha256),
            Some(key) => hex(&key.derive("file", sha256)),
        };
        let folder = name.get(..2).unwrap_or_default();
        format!("{FILES}{folder}/{name}")
    }

    /// The names of all files that are there.
    pub fn kept_files(&self) -> ArchiveResult<BTreeSet<String>> {
        let files = self.store.list(FILES)?;
        Ok(files.into_iter().map(|o| o.name).collect())
    }

    pub fn has_file(&self, kept: &BTreeSet<String>, file: &KeptFile) -> bool {
        kept.contains(&self.file_name(&file.sha256))
    }

    pub fn put_file(&self, file: &KeptFile, from: &mut dyn Read) -> ArchiveResult<()> {
        self.put(&self.file_name(&file.sha256), from)
    }

    /// The content of a file, which is compared with its hash as it is read: the last read fails where they differ.
    pub fn read_file(&self, file: &KeptFile) -> ArchiveResult<impl Read + '_> {
        let from = self.get(&self.file_name(&file.sha256))?;
        Ok(Hashed {
            from,
            hasher: Some(Sha256::new()),
            file: file.clone(),
        })
    }

    /// Reads a file, and fails where it is not what it was. `between` is called between its pieces.
    pub fn verify_file(&self, file: &KeptFile, mut between: impl FnMut()) -> ArchiveResult<()> {
        let mut from = self.read_file(file)?;
        let mut piece = vec![0; VERIFIED_AT_ONCE];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(_) => between(),
                Err(e) => return Err(format!("{}: {e}", file.name)),
            }
        }
    }

    /// All backups, the oldest first.
    pub fn backups(&self) -> ArchiveResult<Vec<Backup>> {
        let mut backups = Vec::new();
        for object in self.store.list(BACKUPS)? {
            let mut text = String::new();
            let read = self.get(&object.name)?.read_to_string(&mut text);
            let damaged = |why: String| format!("{}: {why}", object.name);
            read.map_err(|e| damaged(e.to_string()))?;
            backups.push(Backup::from_json(&text).map_err(damaged)?);
        }
        backups.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(backups)
    }

    pub fn save(&self, backup: &Backup) -> ArchiveResult<()> {
        let text = format!("{:#}\n", backup.to_json());
        let name = format!("{BACKUPS}{}.json", backup.id);
        self.put(&name, &mut text.as_bytes())
    }

    /// The pieces of a set's log in a line, by their first entries.
    pub fn pieces(&self, line: &str, set: &str) -> ArchiveResult<Vec<LogPiece>> {
        let prefix = log_prefix(line, set);
        let piece = |o: Object| {
            let (first, last) = range_of(o.name.strip_prefix(&prefix)?)?;
            Some(LogPiece {
                first,
                last,
                bytes: o.bytes,
                name: o.name,
            })
        };
        let mut pieces: Vec<LogPiece> = self
            .store
            .list(&prefix)?
            .into_iter()
            .filter_map(piece)
            .collect();
        pieces.sort_by_key(|p| (p.first, p.last));
        Ok(pieces)
    }

    /// Puts packed entries, the first and the last of which have these indexes.
    pub fn put_piece(
        &self,
        line: &str,
        set: &str,
        (first, last): (u64, u64),
        packed: &[u8],
    ) -> ArchiveResult<LogPiece> {
        let name = format!("{}{first:020}-{last:020}", log_prefix(line, set));
        let mut small = zstd::stream::read::Encoder::new(packed, 3).map_err(|e| e.to_string())?;
        self.put(&name, &mut small)?;
        Ok(LogPiece {
            first,
            last,
            bytes: packed.len() as u64,
            name,
        })
    }

    /// Removes a piece all of which is in another one.
    pub fn remove_piece(&self, piece: &LogPiece) -> ArchiveResult<()> {
        self.store.remove(&piece.name)
    }

    pub fn read_piece(&self, piece: &LogPiece) -> ArchiveResult<Vec<u8>> {
        let mut packed = Vec::new();
        let from = self.get(&piece.name)?;
        let read =
            zstd::stream::read::Decoder::new(from).and_then(|mut d| d.read_to_end(&mut packed));
        read.map(|_| packed)
            .map_err(|e| format!("{}: {e}", piece.name))
    }

    /// Removes backups, and what no other one needs: files, and pieces of logs of lines that have no backup, or
    /// that end before the first entry that a backup of their line lacks. `pieces` stay as long as they may matter.
    pub fn prune(&self, keep: impl Fn(&Backup) -> bool) -> ArchiveResult<Pruned> {
        let (kept, gone): (Vec<Backup>, Vec<Backup>) = self.backups()?.into_iter().partition(keep);
        let mut pruned = Pruned::default();
        // A listed backup is whole: the list goes first.
        for backup in &gone {
            self.store.remove(&format!("{BACKUPS}{}.json", backup.id))?;
        }
        let files = kept.iter().flat_map(|b| &b.sets).flat_map(|s| &s.files);
        let needed: BTreeSet<String> = files.map(|f| self.file_name(&f.sha256)).collect();
        let mut remove = |object: &Object| -> ArchiveResult<()> {
            self.store.remove(&object.name)?;
            pruned.objects += 1;
            pruned.bytes += object.bytes;
            Ok(())
        };
        for object in self
            .store
            .list(FILES)?
            .iter()
            .filter(|o| !needed.contains(&o.name))
        {
            remove(object)?;
        }
        for object in &self.unneeded_pieces(&kept)? {
            remove(object)?;
        }
        Ok(pruned)
    }

    fn unneeded_pieces(&self, kept: &[Backup]) -> ArchiveResult<Vec<Object>> {
        // By set and line: the entry of the oldest backup.
        let mut oldest = std::collections::BTreeMap::new();
        for set in kept.iter().flat_map(|b| &b.sets) {
            let first = oldest
                .entry(log_prefix(&set.line, &set.name))
                .or_insert(u64::MAX);
            *first = set.from.index.min(*first);
        }
        let is_needed = |o: &Object| -> Option<bool> {
            let (prefix, name) = o.name.rsplit_once('/')?;
            let from = oldest.get(&format!("{prefix}/"));
            let (_, last) = range_of(name)?;
            Some(from.is_some_and(|from| last >= *from))
        };
        let mut pieces = self.store.list(LOG)?;
        pieces.retain(|o| is_needed(o) == Some(false));
        Ok(pieces)
    }
}

/// `FIRST-LAST`.
fn range_of(name: &str) -> Option<(u64, u64)> {
    let (first, last) = name.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn log_prefix(line: &str, set: &str) -> String {
    let set = if set.is_empty() { "alone" } else { set };
    format!("{LOG}{line}/{set}/")
}

fn proof_of(key: &ArchiveKey) -> String {
    hex(&key.derive("archive", b"proof"))
}

fn store_at(place: &str) -> ArchiveResult<Arc<dyn ArchiveStore>> {
    match place.split_once("://") {
        Some(("s3", rest)) => {
            let environment = |name: &str| std::env::var(name).ok();
            Ok(Arc::new(S3::new(rest, environment)?))
        }
        Some((scheme, _)) => Err(format!(
            "{place}: there are no stores of the kind '{scheme}'"
        )),
        None => Ok(Arc::new(Directory::new(Path::new(place)))),
    }
}

fn read_text(store: &dyn ArchiveStore, name: &str) -> ArchiveResult<Option<String>> {
    let Some(mut from) = store.get(name)? else {
        return Ok(None);
    };
    let mut text = String::new();
    let read = from.read_to_string(&mut text);
    read.map_err(|e| format!("{name}: {e}"))?;
    Ok(Some(text))
}

/// Hands on the bytes read, and compares their hash at the end.
struct Hashed<R> {
    from: R,
    hasher: Option<Sha256>,
    file: KeptFile,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(to)?;
        let read = to.get(..n).unwrap_or_default();
        if !read.is_empty() {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(read);
            }
            return Ok(n);
        }
        let hash = self.hasher.take().map(|h| <[u8; 32]>::from(h.finalize()));
        match to.is_empty() || hash.is_none_or(|hash| hash == self.file.sha256) {
            true => Ok(0),
            false => Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "its content in the archive is damaged",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{At, SetBackup};
    use std::fs;

    fn file(name: &str, content: &[u8]) -> KeptFile {
        KeptFile {
            name: name.into(),
            bytes: content.len() as u64,
            sha256: Sha256::digest(content).into(),
        }
    }

    fn backup(id: &str, from: u64, files: Vec<KeptFile>) -> Backup {
        let at = |index| At {
            index,
            ts: index << 32,
        };
        let set = SetBackup {
            name: String::new(),
            members: String::new(),
            line: "l".into(),
            from: at(from),
            complete: at(from),
            collections: 1,
            files,
        };
        Backup {
            id: id.into(),
            cluster: false,
            sets: vec![set],
        }
    }

    fn archive(dir: &Path, key: Option<&Path>) -> Archive {
        Archive::open_or_make(dir.to_str().unwrap(), key).unwrap()
    }

    #[test]
    fn files_are_kept_once_and_read_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let archive = archive(&dir.path().join("a"), None);
        let one = file("engine/1.sst", b"content");
        assert!(!archive.has_file(&archive.kept_files().unwrap(), &one));
        archive.put_file(&one, &mut &b"content"[..]).unwrap();
        assert!(archive.has_file(&archive.kept_files().unwrap(), &one));
        archive.verify_file(&one, || {}).unwrap();
        let lies = file("engine/2.sst", b"what it should be");
        archive.put_file(&lies, &mut &b"what it is"[..]).unwrap();
        assert!(
            archive
                .verify_file(&lies, || {})
                .unwrap_err()
                .contains("damaged")
        );
        assert!(
            archive
                .verify_file(&file("x", b"x"), || {})
                .unwrap_err()
                .contains("missing")
        );
    }

    #[test]
    fn an_encrypted_archive_says_nothing_without_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        let (right, wrong) = (dir.path().join("key"), dir.path().join("other"));
        fs::write(&right, "0b".repeat(32)).unwrap();
        fs::write(&wrong, "0c".repeat(32)).unwrap();
        let sealed = archive(&place, Some(&right));
        let one = file("engine/secret.sst", b"a long secret");
        sealed.put_file(&one, &mut &b"a long secret"[..]).unwrap();
        sealed
            .put_piece("l", "s0", (1, 2), b"a long secret")
            .unwrap();
        sealed.save(&backup("1", 1, vec![one.clone()])).unwrap();
        for object in sealed.store.list("").unwrap() {
            let raw = fs::read(place.join(&object.name)).unwrap();
            let text = String::from_utf8_lossy(&raw);
            assert!(!text.contains("secret") && !object.name.contains(&hex(&one.sha256)));
        }
        let at = place.to_str().unwrap();
        let again = Archive::open(at, Some(&right)).unwrap();
        again
            .verify_file(&again.backups().unwrap()[0].sets[0].files[0], || {})
            .unwrap();
        let piece = again.pieces("l", "s0").unwrap().remove(0);
        assert_eq!(again.read_piece(&piece).unwrap(), b"a long secret");
        let refused = |key: Option<&Path>| Archive::open(at, key).err().unwrap();
        assert!(refused(None).contains("encrypted"));
        assert!(refused(Some(&wrong)).contains("another key"));
    }

    #[test]
    fn a_prune_leaves_what_others_need() {
        let dir = tempfile::tempdir().unwrap();
        let archive = archive(dir.path(), None);
        let (old, both, new) = (file("1", b"1"), file("2", b"2"), file("3", b"3"));
        for (f, content) in [(&old, b"1"), (&both, b"2"), (&new, b"3")] {
            archive.put_file(f, &mut &content[..]).unwrap();
        }
        for range in [(1, 4), (5, 8), (5, 11), (12, 20)] {
            archive.put_piece("l", "", range, b"x").unwrap();
        }
        archive.put_piece("gone", "", (1, 99), b"x").unwrap();
        archive
            .save(&backup("1", 2, vec![old.clone(), both.clone()]))
            .unwrap();
        archive
            .save(&backup("2", 10, vec![both.clone(), new.clone()]))
            .unwrap();
        let pruned = archive.prune(|b| b.id != "1").unwrap();
        assert_eq!(
            pruned.objects, 4,
            "a file, two pieces of the line, and one of a line without a backup"
        );
        let kept = archive.kept_files().unwrap();
        assert!(!archive.has_file(&kept, &old));
        assert!(archive.has_file(&kept, &both) && archive.has_file(&kept, &new));
        let firsts: Vec<u64> = archive
            .pieces("l", "")
            .unwrap()
            .iter()
            .map(|p| p.first)
            .collect();
        // The entry behind 10 is in the second piece that begins with 5.
        assert_eq!(firsts, [5, 12]);
        assert_eq!(archive.backups().unwrap().len(), 1);
    }

    #[test]
    fn a_place_with_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), b"x").unwrap();
        let at = dir.path().to_str().unwrap();
        assert!(
            Archive::open_or_make(at, None)
                .err()
                .unwrap()
                .contains("something else")
        );
        assert!(
            Archive::open(at, None)
                .err()
                .unwrap()
                .contains("no archive")
        );
        assert!(Archive::open_or_make("ftp://x/y", None).is_err());
    }
}
