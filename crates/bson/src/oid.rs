//! ObjectIds: 4 bytes of seconds, 5 random bytes a process, a 3-byte counter, all big-endian.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 12]);

impl ObjectId {
    /// A new one, increasing within this process (until the counter wraps within one second).
    pub fn generate() -> ObjectId {
        static PROCESS: OnceLock<[u8; 5]> = OnceLock::new();
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let process = PROCESS.get_or_init(|| {
            use std::hash::{BuildHasher, Hasher, RandomState};
            let seed = RandomState::new().build_hasher().finish();
            let other = RandomState::new().build_hasher().finish();
            COUNTER.store((other as u32) & 0x007F_FFFF, Ordering::Relaxed);
            let b = seed.to_le_bytes();
            [b[0], b[1], b[2], b[3], b[4]]
        });
        let secs = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs() as u32);
        let n = COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut b = [0; 12];
        b[..4].copy_from_slice(&secs.to_be_bytes());
        b[4..9].copy_from_slice(process);
        b[9..].copy_from_slice(&n[1..]);
        ObjectId(b)
    }

    pub fn parse_hex(s: &str) -> Option<ObjectId> {
        let s = s.as_bytes();
        if s.len() != 24 {
            return None;
        }
        let mut b = [0; 12];
        for (i, pair) in s.chunks(2).enumerate() {
            let hi = (pair[0] as char).to_digit(16)?;
            let lo = (pair[1] as char).to_digit(16)?;
            b[i] = (hi * 16 + lo) as u8;
        }
        Some(ObjectId(b))
    }

    /// Seconds since 1970.
    pub fn seconds(&self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectId({self})")
    }
}
