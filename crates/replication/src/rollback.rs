//! Documents of entries that are rolled back, because no majority had them: saved before the entries
//! leave the log, as MongoDB saves them, so that bsondump and mongorestore read them.
//!
//! ```text
//! <data directory>/rollback/<UUID of the collection>/removed.2026-11-25T07-40-00.0.bson
//! ```
//!
//! A file holds the documents as they were when the last of the entries was made. A document that these
//! entries deleted is in none: its earlier state comes back by itself.
//!
//! Invariants:
//! - When [`save`] returns, the files and their names are on disk. A start that was cut off between
//!   that and the cut of the log saves them once more, under other names.
//! - Memory holds the keys of the documents, and as many of the documents as [`BUFFER_BYTES`].

use crate::state_file;
use errors::{Error, Fallible, err};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use storage::{Effect, Entry, Record, Uuid};

/// The directory in the data directory.
pub const DIRECTORY: &str = "rollback";
/// Documents are written when so many bytes of them have come together.
const BUFFER_BYTES: usize = 8 << 20;

/// Hands the entries that are rolled back to its argument, in their order, from the first.
pub type Entries<'a> = dyn FnMut(&mut dyn FnMut(Record<'_>) -> Fallible<()>) -> Fallible<()> + 'a;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub ns: String,
    pub path: PathBuf,
    pub documents: u64,
}

/// Writes the documents that are rolled back. Reads the entries twice.
pub fn save(dir: &Path, now: SystemTime, entries: &mut Entries<'_>) -> Fallible<Vec<Saved>> {
    let newest = newest(entries)?;
    let mut files = Files {
        dir: dir.join(DIRECTORY),
        time: time_of(now),
        files: BTreeMap::new(),
        buffered: 0,
    };
    if newest.is_empty() {
        return Ok(Vec::new());
    }
    let mut at = 0;
    entries(&mut |record| {
        for_each_effect(&record, &mut |plain, effect| {
            at += 1;
            match effect {
                Effect::Put(key, document) if newest.get(key) == Some(&at) => {
                    files.add(plain, document)
                }
                _ => Ok(()),
            }
        })
    })?;
    files.finish()
}

/// Of each record that is there after all entries, which effect put it, counted from the first.
fn newest(entries: &mut Entries<'_>) -> Fallible<BTreeMap<Vec<u8>, u64>> {
    let mut newest = BTreeMap::new();
    let mut at = 0;
    entries(&mut |record| {
        for_each_effect(&record, &mut |_, effect| {
            at += 1;
            match effect {
                Effect::Put(key, _) if effect.is_of_record() => _ = newest.insert(key.clone(), at),
                Effect::Put(..) => {}
                Effect::Delete(key) => _ = newest.remove(key),
                Effect::DeleteRange(low, high) => newest.retain(|key, _| key < low || key >= high),
            }
            Ok(())
        })
    })?;
    Ok(newest)
}

fn for_each_effect(
    record: &Record<'_>,
    f: &mut dyn FnMut(&Entry, &Effect) -> Fallible<()>,
) -> Fallible<()> {
    let Some(entry) = Entry::decode(record.payload) else {
        return Err(err!(
            UnsupportedFormat,
            "entry {} of the log has a form that this version does not know",
            record.index
        ));
    };
    for plain in entry.plain() {
        for effect in &plain.effects {
            f(plain, effect)?;
        }
    }
    Ok(())
}

struct Files {
    dir: PathBuf,
    time: String,
    files: BTreeMap<Uuid, Open>,
    buffered: usize,
}

struct Open {
    saved: Saved,
    buffer: Vec<u8>,
}

impl Files {
    fn add(&mut self, entry: &Entry, document: &[u8]) -> Fallible<()> {
        let (dir, time) = (&self.dir, &self.time);
        let open = match self.files.entry(entry.uuid) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let dir = dir.join(hyphenated(&entry.uuid));
                let path = create(&dir, time).map_err(|e| unwritable(&dir, &e))?;
                let ns = entry.ns.to_string();
                place.insert(Open {
                    saved: Saved {
                        ns,
                        path,
                        documents: 0,
                    },
                    buffer: Vec::new(),
                })
            }
        };
        open.saved.documents += 1;
        open.buffer.extend_from_slice(document);
        self.buffered += document.len();
        if self.buffered > BUFFER_BYTES {
            for open in self.files.values_mut() {
                open.write(false)?;
            }
            self.buffered = 0;
        }
        Ok(())
    }

    fn finish(mut self) -> Fallible<Vec<Saved>> {
        for open in self.files.values_mut() {
            open.write(true)?;
        }
        for dir in [Some(self.dir.as_path()), self.dir.parent()] {
            let dir = dir.unwrap_or(&self.dir);
            sync(dir).map_err(|e| unwritable(dir, &e))?;
        }
        Ok(self.files.into_values().map(|open| open.saved).collect())
    }
}

impl Open {
    /// Appends the buffered documents. Files are many, so none stays open.
    fn write(&mut self, last: bool) -> Fallible<()> {
        let path = &self.saved.path;
        let append = || {
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(&self.buffer)?;
            if last {
                file.sync_all()?;
                path.parent().map_or(Ok(()), sync)?;
            }
            Ok(())
        };
        append().map_err(|e| unwritable(path, &e))?;
        self.buffer.clear();
        Ok(())
    }
}

/// An empty file of a name that was not there.
fn create(dir: &Path, time: &str) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    for n in 0u64.. {
        let path = dir.join(format!("removed.{time}.{n}.bson"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(std::io::ErrorKind::AlreadyExists.into())
}

fn sync(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

fn unwritable(path: &Path, e: &std::io::Error) -> Error {
    let e = state_file::unwritable(path, e);
    let what = "documents that are taken back cannot be saved";
    Error::new(e.code, format!("{what}: {}", e.message))
}

fn hyphenated(uuid: &Uuid) -> String {
    let mut out = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// `2026-11-25T07-40-00`, UTC.
fn time_of(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    let text = bson::json::iso_date(millis);
    let seconds = text.split(['.', 'Z']).next().unwrap_or(&text);
    seconds.replace(':', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DocBuf, doc};
    use storage::Op;

    fn key(n: u8) -> Vec<u8> {
        vec![0, 0, 0, 0, 0, 0, 0, 9, 1, 0, 0, 0, 0, n]
    }

    fn put(n: u8, document: &DocBuf) -> Effect {
        Effect::Put(key(n), document.as_bytes().to_vec())
    }

    fn entry(collection: u8, effects: Vec<Effect>) -> Entry {
        let ns = format!("db.c{collection}");
        Entry::new(ns.as_str().into(), [collection; 16], Op::Insert, effects)
    }

    fn saved(dir: &Path, entries: &[Entry]) -> Vec<(String, u64, Vec<u8>)> {
        let payloads: Vec<_> = entries.iter().map(Entry::to_bytes).collect();
        let mut hand_out = |take: &mut dyn FnMut(Record<'_>) -> Fallible<()>| {
            for (at, payload) in payloads.iter().enumerate() {
                take(Record {
                    index: at as u64 + 1,
                    ts: 1,
                    term: 2,
                    wall_millis: 0,
                    payload,
                })?;
            }
            Ok(())
        };
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_582_088_231);
        let files = save(dir, now, &mut hand_out).unwrap();
        let with_bytes = |f: Saved| (f.ns, f.documents, std::fs::read(&f.path).unwrap());
        files.into_iter().map(with_bytes).collect()
    }

    #[test]
    fn the_newest_of_each_document_is_saved_and_what_was_deleted_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let d = |n: i32| doc! { "_id": n };
        let of_index = Effect::Put(vec![0, 0, 0, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1, 5], Vec::new());
        let parts = vec![entry(2, vec![put(7, &d(7))]), entry(1, vec![put(5, &d(5))])];
        let mut transaction = entry(0, Vec::new());
        transaction.op = Op::Transaction(parts);
        let entries = [
            entry(1, vec![put(1, &d(1)), put(2, &d(2)), of_index]),
            entry(1, vec![put(1, &d(11))]),
            entry(
                1,
                vec![Effect::Delete(key(2)), put(3, &d(3)), put(4, &d(4))],
            ),
            entry(1, vec![Effect::DeleteRange(key(3), key(4))]),
            transaction,
        ];
        let both = |a: &DocBuf, b: &DocBuf| [a.as_bytes(), b.as_bytes()].concat();
        let mut first = both(&d(11), &d(4));
        first.extend_from_slice(d(5).as_bytes());
        let wanted = vec![
            ("db.c1".to_string(), 3, first),
            ("db.c2".to_string(), 1, d(7).as_bytes().to_vec()),
        ];
        assert_eq!(saved(dir.path(), &entries), wanted);
        // A second time under other names.
        assert_eq!(saved(dir.path(), &entries), wanted);
        let of_first = dir
            .path()
            .join("rollback/01010101-0101-0101-0101-010101010101");
        let mut names: Vec<_> = std::fs::read_dir(of_first)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let name = |n| format!("removed.2020-02-19T04-57-11.{n}.bson");
        assert_eq!(names, [name(0), name(1)]);
    }

    #[test]
    fn nothing_is_made_where_no_document_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(saved(dir.path(), &[Entry::noop(Vec::new())]), []);
        assert!(!dir.path().join(DIRECTORY).exists());
    }
}
