//! How much room there is on the file system that a path or an open file is on.
//!
//! Invariant: all figures of one [`DiskSpace`] are of one moment.

use std::ffi::CString;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    pub total: u64,
    /// Taken, by any process.
    pub used: u64,
    /// What this process may still write: less than the rest where some is kept for root.
    pub free: u64,
}

impl DiskSpace {
    /// Of the file system that `path` is on; `None`: there is no such path, or the system does not tell.
    pub fn at(path: &Path) -> Option<DiskSpace> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: the path ends with a zero and lives during the call, which fills the struct.
        DiskSpace::told_by(|stat| unsafe { libc::statvfs(path.as_ptr(), stat) })
    }

    /// Of the file system that an open file is on.
    pub fn of(file: &File) -> Option<DiskSpace> {
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open during the call, which fills the struct.
        DiskSpace::told_by(|stat| unsafe { libc::fstatvfs(fd, stat) })
    }

    /// `call` gives 0 where it has filled the struct.
    fn told_by(call: impl FnOnce(*mut libc::statvfs) -> libc::c_int) -> Option<DiskSpace> {
        let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
        if call(stat.as_mut_ptr()) != 0 {
            return None;
        }
        // SAFETY: all of its fields are numbers, for which the zeros and what the call wrote are valid.
        let stat = unsafe { stat.assume_init() };
        // Their types differ between systems.
        #[allow(clippy::useless_conversion)]
        let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(stat.f_frsize));
        let total = bytes(stat.f_blocks);
        Some(DiskSpace {
            total,
            used: total.saturating_sub(bytes(stat.f_bfree)),
            free: bytes(stat.f_bavail),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_file_on_it_tell_the_same_total() {
        let at = DiskSpace::at(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let of = DiskSpace::of(&File::open(manifest).unwrap()).unwrap();
        assert!(at.total > 0 && at.total == of.total);
        assert!(at.free <= at.total && at.used <= at.total);
        assert_eq!(DiskSpace::at(Path::new("/no such path")), None);
        assert_eq!(DiskSpace::at(Path::new("a\0b")), None);
    }
}
