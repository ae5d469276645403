//! The log's errors, and how a client sees them.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub enum Error {
    /// No space on the device. The group was removed again, and later ones may succeed.
    Full { what: String },
    /// Another failure of the file system.
    Io { what: String, kind: io::ErrorKind },
    /// The log takes no entries until the process is restarted.
    Poisoned { why: String },
    /// An entry that had reached the disk is damaged.
    Corrupt {
        segment: PathBuf,
        offset: u64,
        index: u64,
        why: String,
    },
    /// The requested entries were trimmed, or are missing.
    Missing { wanted: u64, first: u64 },
    /// Entries that a reader was given have been removed, because another member's log continued in
    /// their place.
    Cut { wanted: u64, last: u64 },
    /// The entry does not directly follow the last one of the log.
    OutOfOrder { index: u64, why: String },
    /// The segment is encrypted and there is no key, or the other way round.
    Encryption { segment: PathBuf, is_sealed: bool },
    /// The directory holds a log of a format version that this program does not read.
    Version { segment: PathBuf, version: u32 },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(what: impl Into<String>, e: &io::Error) -> Error {
        let what = format!("{}: {e}", what.into());
        match e.raw_os_error() {
            Some(libc::ENOSPC) | Some(libc::EDQUOT) => Error::Full { what },
            _ => Error::Io {
                what,
                kind: e.kind(),
            },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full { what } => write!(f, "no space left for the log: {what}"),
            Error::Io { what, .. } => write!(f, "log: {what}"),
            Error::Poisoned { why } => write!(
                f,
                "the log takes no more writes until a restart, because its files are in doubt: {why}"
            ),
            Error::Corrupt {
                segment,
                offset,
                index,
                why,
            } => write!(
                f,
                "the log is damaged at entry {index} ({} at byte {offset}): {why}",
                segment.display()
            ),
            Error::Missing { wanted, first } => {
                write!(
                    f,
                    "entry {wanted} is not in the log, which begins at {first}"
                )
            }
            Error::Cut { wanted, last } => {
                write!(
                    f,
                    "entry {wanted} was cut off the log, which went on after {last}"
                )
            }
            Error::OutOfOrder { index, why } => {
                write!(f, "entry {index} cannot be appended to the log: {why}")
            }
            Error::Encryption { segment, is_sealed } => {
                let segment = segment.display();
                match is_sealed {
                    true => write!(f, "{segment} is encrypted, and there is no key for it"),
                    false => write!(
                        f,
                        "{segment} is not encrypted, as it should be in this data directory"
                    ),
                }
            }
            Error::Version { segment, version } => write!(
                f,
                "{} has log format version {version}, which this version does not read",
                segment.display()
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for errors::Error {
    fn from(e: Error) -> errors::Error {
        let code = match &e {
            Error::Full { .. } => errors::Code::OutOfDiskSpace,
            Error::Io { .. } => errors::Code::LogWriteFailed,
            Error::Poisoned { .. } => errors::Code::LogWriteFailed,
            Error::Corrupt { .. } => errors::Code::UnrecoverableRollbackError,
            Error::Missing { .. } => errors::Code::OplogQueryMinTsMissing,
            Error::Cut { .. } => errors::Code::CappedPositionLost,
            Error::OutOfOrder { .. } => errors::Code::OplogOutOfOrder,
            Error::Encryption { .. } | Error::Version { .. } => errors::Code::UnsupportedFormat,
        };
        errors::Error::new(code, e.to_string())
    }
}
