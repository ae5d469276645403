//! A place where backups are kept: a directory or a store that speaks S3.
//!
//! ```text
//! PANDO-ARCHIVE                        what this is, and whether it is encrypted
//! backups/ID.json                      one backup: of when it is, and the files of each set
//! files/AB/HASH                        a file of one backup or many, by its content
//! log/LINE/SET/FIRST-LAST              entries of the log from FIRST to LAST, as the storage room packs them, compressed
//! locks/ID                             a command works here
//! ```
//! A *line* is a history in which each entry of the log follows on the one before: a backup that finds the
//! log where the archive ended goes on in the line of the backup before it, else it begins another one.
//!
//! Invariants:
//! - A backup is written when all of its files are there, so a listed one is whole.
//! - A file is never changed: its name is the hash of its content.
//! - Knows no server, no data directory and no entry of a log: only bytes and their names.

mod cipher;
mod directory;
mod keeping;
mod lock;
mod manifest;
mod s3;
mod store;

pub use cipher::ArchiveKey;
pub use keeping::{Archive, LogPiece, Pruned};
pub use lock::{ArchiveLock, ArchiveWork};
pub use manifest::{At, Backup, KeptFile, SetBackup};
pub use store::{ArchiveStore, Object};

/// Failures are sentences for the user of the tool.
pub type ArchiveResult<T> = Result<T, String>;
