//! The files of an index as the library reads and writes them, and whether they are as they were written.
//!
//! ```text
//! small files       read into memory        a mapping for each would be too many where there are many indexes
//! large files       mapped
//! lists of files    the list | crc32c LE    what the library replaces as a whole (`meta.json`)
//! encrypted files   read and decrypted where they are asked for: nothing of them is mapped
//! ```
//! Invariant: [`check`] reads with `read`, and not through a mapping: what the disk cannot give is an error then, and
//! not the end of the process.

use crate::files::damaged;
use crate::problem::{of_io, of_library};
use encryption::{DataFile, DataFiles, FILE_HEADER_BYTES, FileCipher};
use errors::Result;
use std::fmt;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tantivy::HasLen;
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, OwnedBytes,
    TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::{Index, SegmentComponent, SegmentMeta};

/// Files up to this size are read into memory.
const SMALL_BYTES: u64 = 64 << 10;

/// What one read of a check takes.
const BLOCK_BYTES: usize = 1 << 20;

/// What the library puts behind its files: `{"version": …, "crc": …} | length u32 LE | 1337 u32 LE`.
const FOOTER_MAGIC: u32 = 1337;
const MOST_FOOTER_BYTES: u64 = 50_000;

/// The folder of an index.
#[derive(Clone)]
pub(crate) struct Files {
    dir: PathBuf,
    mapped: MmapDirectory,
    data: DataFiles,
}

impl Files {
    pub fn open(dir: &Path, data: &DataFiles) -> Result<Files> {
        Ok(Files {
            dir: dir.to_path_buf(),
            mapped: MmapDirectory::open(dir).map_err(|e| of_library(e.into()))?,
            data: data.clone(),
        })
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.dir.display())
    }
}

/// A large file that is encrypted.
struct Decrypted {
    file: DataFile,
    bytes: usize,
}

impl fmt::Debug for Decrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decrypted({} bytes)", self.bytes)
    }
}

impl HasLen for Decrypted {
    fn len(&self) -> usize {
        self.bytes
    }
}

impl FileHandle for Decrypted {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let mut bytes = vec![0; range.len()];
        self.file.read_exact_at(&mut bytes, range.start as u64)?;
        Ok(OwnedBytes::new(bytes))
    }
}

/// Encrypts what is written to a new file.
struct Encrypting {
    inner: WritePtr,
    cipher: FileCipher,
    at: u64,
}

impl Write for Encrypting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut bytes = bytes.to_vec();
        self.cipher.apply(self.at, &mut bytes);
        self.inner.write_all(&bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl TerminatingWrite for Encrypting {
    fn terminate_ref(&mut self, token: AntiCallToken) -> io::Result<()> {
        self.inner.terminate_ref(token)
    }
}

fn not_read(path: &Path, e: io::Error) -> OpenReadError {
    match e.kind() {
        io::ErrorKind::NotFound => OpenReadError::FileDoesNotExist(path.to_path_buf()),
        _ => OpenReadError::wrap_io_error(e, path.to_path_buf()),
    }
}

impl Directory for Files {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let full = self.dir.join(path);
        let size = std::fs::metadata(&full).map_err(|e| not_read(path, e))?;
        if size.len() > SMALL_BYTES {
            return match self.data.is_encrypted() {
                true => {
                    let opened = decrypted(&self.data, &full).map_err(|e| not_read(path, e))?;
                    Ok(Arc::new(opened))
                }
                false => self.mapped.get_file_handle(path),
            };
        }
        let bytes = std::fs::read(&full).and_then(|bytes| self.data.content(bytes));
        let bytes = bytes.map_err(|e| not_read(path, e))?;
        Ok(Arc::new(OwnedBytes::new(bytes)))
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.mapped.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let mut inner = self.mapped.open_write(path)?;
        let Some((header, cipher)) = self.data.new_file() else {
            return Ok(inner);
        };
        let written = inner.write_all(&header);
        written.map_err(|e| OpenWriteError::wrap_io_error(e, path.to_path_buf()))?;
        let at = FILE_HEADER_BYTES as u64;
        Ok(BufWriter::new(Box::new(Encrypting { inner, cipher, at })))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        let bytes = self.data.content(self.mapped.atomic_read(path)?);
        let mut bytes = bytes.map_err(|e| not_read(path, e))?;
        let list = bytes.len().saturating_sub(4);
        let sum = bytes.split_off(list);
        if sum != crc32c::crc32c(&bytes).to_le_bytes() {
            let e = io::Error::new(io::ErrorKind::InvalidData, "its checksum is another one");
            return Err(OpenReadError::wrap_io_error(e, path.to_path_buf()));
        }
        Ok(bytes)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let sum = crc32c::crc32c(data).to_le_bytes();
        let file = self.data.file_with(&[data, &sum].concat());
        self.mapped.atomic_write(path, &file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.mapped.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.mapped.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}

fn decrypted(data: &DataFiles, path: &Path) -> io::Result<Decrypted> {
    let file = data.open(path)?;
    let bytes = usize::try_from(file.bytes()?).unwrap_or(usize::MAX);
    Ok(Decrypted { file, bytes })
}

/// Fails where a file of the last commit is not as it was written. Reads all of them, and asks the operation in between.
pub(crate) fn check(dir: &Path, data: &DataFiles, index: &Index) -> Result<()> {
    let segments = index.searchable_segment_metas().map_err(of_library)?;
    for file in index.directory().list_managed_files() {
        if segments.iter().any(|s| is_of(s, &file)) && dir.join(&file).exists() {
            check_file(&dir.join(&file), data)?;
        }
    }
    Ok(())
}

/// Removes what no commit names: of a writer that was killed, or that failed. The library would refuse to write files of
/// the same names, and never remove its temporary ones.
pub(crate) fn clean(dir: &Path, index: &Index) -> Result<()> {
    let segments = index.searchable_segment_metas().map_err(of_library)?;
    for entry in std::fs::read_dir(dir).map_err(of_io)? {
        let file = PathBuf::from(entry.map_err(of_io)?.file_name());
        let name = file.to_str().unwrap_or("");
        // Files of segments have names of 32 hexadecimal digits.
        let of_segment = name.len() > 32 && name.bytes().take(32).all(|b| b.is_ascii_hexdigit());
        let is_left = of_segment && !segments.iter().any(|s| is_of(s, &file));
        if is_left || name.starts_with(".tmp") {
            std::fs::remove_file(dir.join(&file)).map_err(of_io)?;
        }
    }
    Ok(())
}

/// Whether a file is one of a segment, and not of an earlier state of it.
fn is_of(segment: &SegmentMeta, file: &Path) -> bool {
    let name = file.to_str().unwrap_or("");
    match file.extension().and_then(|e| e.to_str()) {
        Some("del") => segment.relative_path(SegmentComponent::Delete) == file,
        Some("temp") | None => false,
        Some(_) => name.starts_with(&segment.id().uuid_string()),
    }
}

fn check_file(path: &Path, data: &DataFiles) -> Result<()> {
    let wrong = || damaged(&format!("{}", path.display()));
    let file = open_to_check(path, data)?;
    let size = file.bytes().map_err(of_io)?;
    let Some(tail_at) = size.checked_sub(8) else {
        return Err(wrong());
    };
    let mut tail = [0; 8];
    file.read_exact_at(&mut tail, tail_at).map_err(of_io)?;
    let (length, magic) = tail.split_at(4);
    let number = |b: &[u8]| b.try_into().map_or(0, u32::from_le_bytes);
    let (length, magic) = (u64::from(number(length)), number(magic));
    let body = tail_at.checked_sub(length);
    let Some(body) = body.filter(|_| magic == FOOTER_MAGIC && length <= MOST_FOOTER_BYTES) else {
        return Err(wrong());
    };
    let mut footer = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut footer, body).map_err(of_io)?;
    let said: Option<serde_json::Value> = serde_json::from_slice(&footer).ok();
    let said = said.and_then(|v| v.get("crc")?.as_u64());
    let mut sum = crc32fast::Hasher::new();
    each_block(&mut file.reader().take(body), |block| {
        sum.update(block);
        Ok(())
    })?;
    match said == Some(u64::from(sum.finalize())) {
        true => Ok(()),
        false => Err(wrong()),
    }
}

/// Opens a file; one whose header is not of this directory is damaged.
pub(crate) fn open_to_check(path: &Path, data: &DataFiles) -> Result<DataFile> {
    data.open(path).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => damaged(&format!("{}", path.display())),
        _ => of_io(e),
    })
}

/// Has `each` called with all of a file, block by block.
pub(crate) fn each_block(
    file: &mut impl Read,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        errors::operation::ask()?;
        match file.read(&mut block).map_err(of_io)? {
            0 => return Ok(()),
            n => each(block.get(..n).unwrap_or(&[]))?,
        }
    }
}
