//! The file system as the log sees it: the real disk, or a test's faulty one.

#[cfg(target_os = "linux")]
use own_process::disk_space::DiskSpace;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The file-system operations that the log uses.
pub trait FileSystem: Send + Sync {
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates an empty file for reading and writing; an existing file is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn LogFile>>;
    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>>;
    /// Opens a file read-only, perhaps on a disk that takes no writes.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        self.open(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open segment file.
pub trait LogFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;
    /// One pwrite(2): may write less than asked.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// One pread(2): 0 at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Takes disk space up to `to`, where the file, whose entries end at `from`, is now as long, with
    /// zeros behind `from`. A write there changes no metadata, so its sync is one write of data
    /// instead of two in turn. False where nothing was reserved: the file grows by its writes.
    fn reserve(&self, from: u64, to: u64) -> bool {
        let _ = (from, to);
        false
    }
    /// fdatasync(2).
    fn sync_data(&self) -> io::Result<()>;
    /// Tells the kernel that the synced part of the first `len` bytes may leave the page cache. A
    /// hint: nothing depends on it.
    fn forget(&self, len: u64) {
        let _ = len;
    }

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The real file system.
pub struct Disk;

impl FileSystem for Disk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(
            OpenOptions::new().read(true).write(true).open(path)?,
        ))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(File::open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// Nothing is reserved where the disk has less free: the rest is for data.
#[cfg(target_os = "linux")]
const RESERVE_ABOVE_FREE_BYTES: u64 = 256 << 20;

impl LogFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, buf, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn reserve(&self, from: u64, to: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let (Ok(at), Ok(len)) = (from.try_into(), to.saturating_sub(from).try_into()) else {
                return false;
            };
            let free = DiskSpace::of(self).map_or(0, |space| space.free);
            if free < RESERVE_ABOVE_FREE_BYTES {
                return false;
            }
            // SAFETY: a system call on a descriptor that is open, about no memory of ours.
            unsafe { libc::fallocate(self.as_raw_fd(), 0, at, len) == 0 }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (from, to);
            false
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn forget(&self, len: u64) {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let len = libc::off_t::try_from(len).unwrap_or(0);
            if len > 0 {
                // SAFETY: a system call on a descriptor that is open, about no memory of ours.
                unsafe { libc::posix_fadvise(self.as_raw_fd(), 0, len, libc::POSIX_FADV_DONTNEED) };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = len;
    }
}

/// The real file system, for data that is not kept: nothing waits for the disk, and what the kernel has written survives the end of
/// the process, but no loss of power.
pub struct UnsyncedDisk;

impl FileSystem for UnsyncedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(UnsyncedFile(Disk.create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(UnsyncedFile(Disk.open(path)?)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Disk.open_to_read(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// A file of [`UnsyncedDisk`]. It reserves nothing: that is to make syncs cheaper.
struct UnsyncedFile(Arc<dyn LogFile>);

impl LogFile for UnsyncedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest single write. For larger ones the kernel allocates large page-cache pages, whose
/// memory is often cold or, on a virtual machine, not yet backed. Measured on ext4: a byte of a 1
/// MB write costs three times as much as a byte of a 32 KB write.
const WRITE_BYTES: usize = 32 << 10;

/// Writes all of `buf` at `offset`; the usual case is one pwrite.
pub(crate) fn write_all_at(file: &dyn LogFile, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        let piece = buf.get(..WRITE_BYTES).unwrap_or(buf);
        match file.write_at(piece, offset) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    "nothing was written",
                ));
            }
            Ok(n) => {
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends; returns the number of bytes read.
pub(crate) fn read_full_at(
    file: &dyn LogFile,
    buf: &mut [u8],
    mut offset: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset) {
            Ok(0) => break,
            Ok(n) => {
                filled += n;
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
