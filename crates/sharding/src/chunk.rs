//! A chunk: a range of places, the shard that has it, and since which version. As a document it is
//! MongoDB's in `config.chunks`.

use crate::{PlaceRange, ShardKey};
use bson::{Doc, DocBuf, ObjectId, Writer};
use errors::{Result, bail};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub id: ObjectId,
    pub min: DocBuf,
    pub max: DocBuf,
    pub shard: Arc<str>,
    /// Major and minor, as in [`crate::Version::placement`].
    pub lastmod: u64,
    pub jumbo: bool,
    /// When its shard got it: a BSON timestamp.
    pub since: u64,
    /// The turn of the lock under which it was written, which only grows; 0 if the document has none.
    pub turn: u64,
}

/// Chunks that take the places of others.
#[derive(Clone, Debug)]
pub struct ReplacedChunks {
    pub old: Vec<Chunk>,
    pub new: Vec<Chunk>,
}

impl Chunk {
    pub fn parse(d: Doc<'_>) -> Result<Chunk> {
        let read = || {
            Some(Chunk {
                id: d.get("_id")?.as_oid()?,
                min: d.get("min")?.as_doc()?.to_buf(),
                max: d.get("max")?.as_doc()?.to_buf(),
                shard: d.get("shard")?.as_str()?.into(),
                lastmod: d.get("lastmod")?.as_timestamp()?,
                jumbo: d.get("jumbo").is_some_and(|v| v.truthy()),
                since: d
                    .get("onCurrentShardSince")
                    .and_then(|v| v.as_timestamp())
                    .unwrap_or(0),
                turn: d.get("turn").and_then(|v| v.to_i64_exact()).unwrap_or(0) as u64,
            })
        };
        match read() {
            Some(chunk) => Ok(chunk),
            None => bail!(FailedToParse, "{d} is no chunk"),
        }
    }

    pub fn to_doc(&self, uuid: &[u8; 16]) -> DocBuf {
        let mut w = Writer::new();
        w.oid("_id", self.id)
            .binary("uuid", 4, uuid)
            .doc("min", self.min.as_doc())
            .doc("max", self.max.as_doc())
            .str("shard", &self.shard)
            .timestamp("lastmod", self.lastmod)
            .timestamp("onCurrentShardSince", self.since);
        if self.jumbo {
            w.bool("jumbo", true);
        }
        if self.turn > 0 {
            w.i64("turn", self.turn as i64);
        }
        w.open_array("history").open_doc("0");
        w.timestamp("validAfter", self.since)
            .str("shard", &self.shard);
        w.finish()
    }

    pub fn range(&self, key: &ShardKey) -> Result<PlaceRange> {
        key.range(self.min.as_doc(), self.max.as_doc())
    }
}
