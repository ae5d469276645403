//! Versions: what a router believes of a collection, and what a shard knows.
//!
//! Invariant: `epoch` and `timestamp` name one life of a sharded collection. Within it, `placement`
//! grows with each change of what a shard owns.

use bson::{Doc, DocBuf, ObjectId, Val, Writer};
use errors::{Result, bail};

/// The version of a shard's part of a collection, or of the whole: `{e, t, v}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub epoch: ObjectId,
    pub timestamp: u64,
    /// Major in the high half, minor in the low one, as a BSON timestamp has them.
    pub placement: u64,
}

impl Version {
    /// Of a collection that is not sharded.
    pub const UNSHARDED: Version = Version {
        epoch: ObjectId([0; 12]),
        timestamp: 0,
        placement: 0,
    };

    pub fn is_unsharded(&self) -> bool {
        self.timestamp == 0
    }

    pub fn major(&self) -> u32 {
        (self.placement >> 32) as u32
    }

    pub fn minor(&self) -> u32 {
        self.placement as u32
    }

    /// The placement `major|minor`.
    pub fn placement_of(major: u32, minor: u32) -> u64 {
        u64::from(major) << 32 | u64::from(minor)
    }

    /// Of the same collection in the same life.
    pub fn is_same_life(&self, other: &Version) -> bool {
        (self.timestamp, self.epoch) == (other.timestamp, other.epoch)
    }

    /// Whether it is of a later life or, in the same, says more.
    pub fn is_newer(&self, other: &Version) -> bool {
        (self.timestamp, self.placement) > (other.timestamp, other.placement)
    }

    /// As commands carry it.
    pub fn to_doc(self) -> DocBuf {
        let mut w = Writer::new();
        self.write(&mut w);
        w.finish()
    }

    /// Writes the fields of it.
    pub fn write(self, w: &mut Writer) {
        w.oid("e", self.epoch)
            .timestamp("t", self.timestamp)
            .timestamp("v", self.placement);
    }

    pub fn parse(v: Val<'_>) -> Result<Version> {
        let read = |d: Doc<'_>| {
            Some(Version {
                epoch: d.get("e")?.as_oid()?,
                timestamp: d.get("t")?.as_timestamp()?,
                placement: d.get("v")?.as_timestamp()?,
            })
        };
        match v.as_doc().and_then(read) {
            Some(version) => Ok(version),
            None => bail!(FailedToParse, "shardVersion is {{e, t, v}}, not {v}"),
        }
    }
}

/// The version that came with a command, or that it is told to have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Not from a router: nothing is checked, and nothing is hidden.
    Nothing,
    Version(Version),
}

impl Received {
    pub fn of(command: Doc<'_>) -> Result<Received> {
        Ok(match command.get("shardVersion") {
            None => Received::Nothing,
            Some(v) => Received::Version(Version::parse(v)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let v = Version {
            epoch: ObjectId([7; 12]),
            timestamp: 5,
            placement: Version::placement_of(3, 1),
        };
        assert_eq!((v.major(), v.minor()), (3, 1));
        assert_eq!(Version::parse(v.to_doc().as_doc().as_val()).unwrap(), v);
        assert!(v.is_newer(&Version::UNSHARDED));
        assert!(!Version::UNSHARDED.is_newer(&Version::UNSHARDED));
        assert!(Version::parse(bson::doc! {"e": 1}.as_doc().as_val()).is_err());
    }
}
