//! Which logical session a request belongs to.
//!
//! Invariant: another user's session of the same id is another session.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The digest of the empty name (SHA-256 of nothing): the owner of sessions without logins.
pub const NOBODY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsid {
    /// As its client made it.
    pub id: [u8; 16],
    /// Whose it is: SHA-256 of `user@db`.
    pub uid: [u8; 32],
}

impl Lsid {
    /// A session without an owner.
    pub fn unowned(id: [u8; 16]) -> Lsid {
        Lsid { id, uid: NOBODY }
    }
}

/// Ids are random: they alone tell nearly all sessions apart.
impl Hash for Lsid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.id);
    }
}

impl fmt::Debug for Lsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}
