//! Files of a data directory as their users see them: decrypted, without what only tells how.
//!
//! Invariant: places and lengths are those of the content, whether the directory is encrypted or not.

use crate::{DataKey, FILE_HEADER_BYTES, FileCipher};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The files of a directory. Without a key they are what they are.
#[derive(Clone, Default)]
pub struct DataFiles(Option<DataKey>);

impl DataFiles {
    pub fn new(key: Option<DataKey>) -> DataFiles {
        DataFiles(key)
    }

    pub fn is_encrypted(&self) -> bool {
        self.0.is_some()
    }

    /// The header of a new file, and the cipher of what follows it; `None`: files have none.
    pub fn new_file(&self) -> Option<(Vec<u8>, FileCipher)> {
        let key = self.0.as_ref()?;
        let header = key.new_header();
        let cipher = key.of_file(&header)?;
        Some((header, cipher))
    }

    /// What a whole file holds. InvalidData where its header is not of this directory.
    pub fn content(&self, mut file: Vec<u8>) -> io::Result<Vec<u8>> {
        let Some(key) = &self.0 else {
            return Ok(file);
        };
        let front = file.len().min(FILE_HEADER_BYTES);
        let mut content = file.split_off(front);
        let cipher = key.of_file(&file).ok_or_else(|| damaged(None))?;
        cipher.apply(FILE_HEADER_BYTES as u64, &mut content);
        Ok(content)
    }

    /// A whole file with that content.
    pub fn file_with(&self, content: &[u8]) -> Vec<u8> {
        let Some((mut file, cipher)) = self.new_file() else {
            return content.to_vec();
        };
        file.extend_from_slice(content);
        if let Some(content) = file.get_mut(FILE_HEADER_BYTES..) {
            cipher.apply(FILE_HEADER_BYTES as u64, content);
        }
        file
    }

    /// Opens a file to read it.
    pub fn open(&self, path: &Path) -> io::Result<DataFile> {
        let file = File::open(path)?;
        let cipher = self.cipher_of(&file, path)?;
        Ok(DataFile { file, cipher })
    }

    /// Opens a file to go on with it; one whose header is not whole begins anew.
    pub fn open_to_write(&self, path: &Path) -> io::Result<DataFile> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        match self.cipher_of(&file, path) {
            Ok(cipher) => Ok(DataFile { file, cipher }),
            Err(_) => self.create(path),
        }
    }

    /// Makes an empty file, which is encrypted under a key of its own.
    pub fn create(&self, path: &Path) -> io::Result<DataFile> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(path)?;
        let cipher = match self.new_file() {
            Some((header, cipher)) => {
                file.write_all_at(&header, 0)?;
                Some(cipher)
            }
            None => None,
        };
        Ok(DataFile { file, cipher })
    }

    fn cipher_of(&self, file: &File, path: &Path) -> io::Result<Option<FileCipher>> {
        let Some(key) = &self.0 else {
            return Ok(None);
        };
        let mut header = [0; FILE_HEADER_BYTES];
        let damaged = || damaged(Some(path));
        file.read_exact_at(&mut header, 0).map_err(|_| damaged())?;
        key.of_file(&header).map(Some).ok_or_else(damaged)
    }
}

fn damaged(path: Option<&Path>) -> io::Error {
    let name = path.map_or("a file".into(), |p| p.display().to_string());
    io::Error::new(
        ErrorKind::InvalidData,
        format!("the header of {name} is damaged"),
    )
}

/// A file that is open.
pub struct DataFile {
    file: File,
    cipher: Option<FileCipher>,
}

impl DataFile {
    /// Where that place of the content is in the file.
    pub fn place(&self, offset: u64) -> u64 {
        let front = self.cipher.as_ref().map_or(0, |_| FILE_HEADER_BYTES as u64);
        offset + front
    }

    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().saturating_sub(self.place(0)))
    }

    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let at = self.place(offset);
        self.file.read_exact_at(bytes, at)?;
        self.decrypt(bytes, at);
        Ok(())
    }

    /// One pread(2): 0 at the end.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let at = self.place(offset);
        let n = self.file.read_at(bytes, at)?;
        if let Some(read) = bytes.get_mut(..n) {
            self.decrypt(read, at);
        }
        Ok(n)
    }

    fn decrypt(&self, bytes: &mut [u8], at: u64) {
        if let Some(cipher) = &self.cipher {
            cipher.apply(at, bytes);
        }
    }

    /// The content from its beginning.
    pub fn reader(&self) -> Content<'_> {
        Content { file: self, at: 0 }
    }

    /// A second write to one place must have the same bytes: see the crate's page. Other content wants a
    /// new file.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = self.place(offset);
        match &self.cipher {
            None => self.file.write_all_at(bytes, at),
            Some(cipher) => {
                let mut bytes = bytes.to_vec();
                cipher.apply(at, &mut bytes);
                self.file.write_all_at(&bytes, at)
            }
        }
    }

    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Gives the content that length.
    pub fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(self.place(bytes))
    }

    /// Gives the content its length, and syncs it.
    pub fn finish(&self, bytes: u64) -> io::Result<()> {
        self.set_bytes(bytes)?;
        self.file.sync_all()
    }
}

impl AsRawFd for DataFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Reads the content of a file.
pub struct Content<'f> {
    file: &'f DataFile,
    at: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(bytes, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_the_same_with_and_without_a_key_and_differ_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for key in [None, Some(DataKey::generate())] {
            let files = DataFiles::new(key);
            let file = files.create(&path).unwrap();
            file.write_all_at(b"world", 6).unwrap();
            file.write_all_at(b"hello ", 0).unwrap();
            file.finish(11).unwrap();
            let file = files.open_to_write(&path).unwrap();
            assert_eq!(file.bytes().unwrap(), 11);
            let mut bytes = [0; 4];
            files
                .open(&path)
                .unwrap()
                .read_exact_at(&mut bytes, 4)
                .unwrap();
            assert_eq!(&bytes, b"o wo");
            let mut all = Vec::new();
            file.reader().read_to_end(&mut all).unwrap();
            assert_eq!(all, b"hello world");
            let on_disk = std::fs::read(&path).unwrap();
            assert_eq!(files.content(on_disk.clone()).unwrap(), all);
            let other = files.file_with(&all);
            assert_eq!(other == on_disk, !files.is_encrypted());
            assert_eq!(files.content(other).unwrap(), all);
            let is_plain = on_disk.windows(5).any(|w| w == b"hello");
            assert_eq!(is_plain, !files.is_encrypted());
        }
        let other = DataFiles::new(Some(DataKey::generate()));
        let e = other.open(&path).err().unwrap();
        assert!(e.to_string().contains("damaged"), "{e}");
    }
}
