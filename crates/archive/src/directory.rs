//! Objects in a directory: an object is a file of its name.
//!
//! ```text
//! DIR/drafts/RANDOM ── written, synced ──► renamed to DIR/NAME, whose directory is synced
//! ```
//! Invariant: a file under its name is whole, also after a loss of power.

use crate::ArchiveResult;
use crate::store::{ArchiveStore, Object};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const DRAFTS: &str = "drafts";

pub(crate) struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: &Path) -> Directory {
        Directory {
            root: root.to_path_buf(),
        }
    }
}

fn cannot(what: &str, path: &Path, e: &std::io::Error) -> String {
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("no space left for {}: {e}", path.display())
        }
        _ => format!("cannot {what} {}: {e}", path.display()),
    }
}

fn make_dir(dir: &Path) -> ArchiveResult<()> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.map_err(|e| cannot("make", dir, &e))
}

impl ArchiveStore for Directory {
    fn put(&self, name: &str, from: &mut dyn Read) -> ArchiveResult<()> {
        let path = self.root.join(name);
        let place = path.parent().unwrap_or(&self.root);
        let drafts = self.root.join(DRAFTS);
        make_dir(place)?;
        make_dir(&drafts)?;
        let draft = drafts.join(crate::lock::random_name());
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(&draft)?;
            std::io::copy(from, &mut file)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(place)?.sync_all()
        };
        let mut write = write;
        write().map_err(|e| {
            let _ = fs::remove_file(&draft);
            cannot("write", &path, &e)
        })
    }

    fn get(&self, name: &str) -> ArchiveResult<Option<Box<dyn Read + '_>>> {
        let path = self.root.join(name);
        match File::open(&path) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(cannot("read", &path, &e)),
        }
    }

    fn list(&self, prefix: &str) -> ArchiveResult<Vec<Object>> {
        let mut found = Vec::new();
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        gather(&self.root, folder, &mut found)?;
        found.retain(|o| o.name.starts_with(prefix));
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn remove(&self, name: &str) -> ArchiveResult<()> {
        let path = self.root.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(cannot("remove", &path, &e)),
            _ => Ok(()),
        }
    }
}

fn gather(root: &Path, folder: &str, found: &mut Vec<Object>) -> ArchiveResult<()> {
    let dir = root.join(folder);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(cannot("read", &dir, &e)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| cannot("read", &dir, &e))?;
        let own = entry.file_name().to_string_lossy().into_owned();
        let name = match folder {
            "" => own,
            folder => format!("{folder}/{own}"),
        };
        if name == DRAFTS {
            continue;
        }
        let told = entry
            .metadata()
            .map_err(|e| cannot("read", &entry.path(), &e))?;
        if told.is_dir() {
            gather(root, &name, found)?;
        } else {
            let age = told.modified().ok().and_then(|at| at.elapsed().ok());
            let bytes = told.len();
            found.push(Object { name, bytes, age });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(&dir.path().join("new"));
        assert_eq!(store.list("").unwrap(), []);
        store.put("a/b/c", &mut &b"one"[..]).unwrap();
        store.put("a/b/c", &mut &b"other"[..]).unwrap();
        store.put("a/d", &mut &b""[..]).unwrap();
        store.put("top", &mut &b"x"[..]).unwrap();
        let names = |prefix: &str| -> Vec<(String, u64)> {
            let found = store.list(prefix).unwrap();
            found.into_iter().map(|o| (o.name, o.bytes)).collect()
        };
        let all = [("a/b/c", 5), ("a/d", 0), ("top", 1)].map(|(n, b)| (n.to_string(), b));
        assert_eq!(names(""), all);
        assert_eq!(names("a/b"), all[..1]);
        assert_eq!(names("a/"), all[..2]);
        let mut text = String::new();
        let read = store
            .get("a/b/c")
            .unwrap()
            .unwrap()
            .read_to_string(&mut text);
        assert_eq!((read.unwrap(), &*text), (5, "other"));
        assert!(store.get("nothing").unwrap().is_none());
        store.remove("a/b/c").unwrap();
        store.remove("a/b/c").unwrap();
        assert_eq!(names("a/"), all[1..2]);
    }

    #[test]
    fn what_cannot_be_read_to_its_end_is_not_there() {
        struct Breaks;
        impl Read for Breaks {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the server is gone"))
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path());
        let said = store
            .put("x", &mut (&b"begun"[..]).chain(Breaks))
            .unwrap_err();
        assert!(said.contains("the server is gone"), "{said}");
        assert!(store.get("x").unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path().join(DRAFTS)).unwrap().count(), 0);
    }
}
