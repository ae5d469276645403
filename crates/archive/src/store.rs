//! Where objects lie: named bytes that are put and got whole.

use crate::ArchiveResult;
use std::io::Read;
use std::time::Duration;

/// An object as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub name: String,
    pub bytes: u64,
    /// How long ago it was written; `None` where the store does not say.
    pub age: Option<Duration>,
}

/// Names are words of letters, digits, `.`, `-` and `_`, parted by `/`.
pub trait ArchiveStore: Send + Sync {
    /// Writes an object, whole or not at all, also in place of one of that name. On disk when it returns.
    fn put(&self, name: &str, from: &mut dyn Read) -> ArchiveResult<()>;

    /// `None` where there is no object of that name.
    fn get(&self, name: &str) -> ArchiveResult<Option<Box<dyn Read + '_>>>;

    /// Objects whose names begin so, by name.
    fn list(&self, prefix: &str) -> ArchiveResult<Vec<Object>>;

    /// One that is not there is removed already.
    fn remove(&self, name: &str) -> ArchiveResult<()>;

    /// How many objects are best moved beside each other: one where nothing but the disk is waited for.
    fn transfers(&self) -> usize {
        1
    }
}
