//! The records of a collection in the log: which entries change them, and how that changes an index.

use bson::Doc;
use catalog::keyspace::{SPACE_RECORD, prefix, prefix_end};
use errors::{Error, Result};
use search::IndexWriter;
use storage::{Effect, Entry};

pub(super) struct Records {
    uuid: [u8; 16],
    /// What their keys begin with.
    prefix: [u8; 13],
}

impl Records {
    pub fn of(uuid: [u8; 16], tablet: u64) -> Records {
        Records {
            uuid,
            prefix: prefix(tablet, SPACE_RECORD, 0),
        }
    }

    /// Whether an entry may change them: an entry that certainly does not is not decoded.
    pub fn concern(&self, payload: &[u8]) -> bool {
        Entry::documents_of(payload).is_none_or(|uuid| uuid == self.uuid)
    }

    pub fn are_touched_by(&self, entry: &Entry) -> bool {
        let mut effects = entry.plain().flat_map(|part| &part.effects);
        effects.any(|effect| match effect {
            Effect::Put(key, _) | Effect::Delete(key) => key.starts_with(&self.prefix),
            Effect::DeleteRange(low, high) => self.overlap(low, high),
        })
    }

    /// Does to the index what the entry did to the records.
    pub fn apply(&self, entry: &Entry, writer: &mut IndexWriter) -> Result<()> {
        for effect in entry.plain().flat_map(|part| &part.effects) {
            match effect {
                Effect::Put(key, value) if key.starts_with(&self.prefix) => {
                    let Some(doc) = Doc::new(value) else {
                        return Err(Error::internal("a document of the log is damaged").into());
                    };
                    writer.put(key, doc)?;
                }
                Effect::Delete(key) if key.starts_with(&self.prefix) => writer.delete(key),
                Effect::DeleteRange(low, high) if self.overlap(low, high) => {
                    writer.delete_range(low, high)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a range has keys of theirs.
    fn overlap(&self, low: &[u8], high: &[u8]) -> bool {
        low < prefix_end(&self.prefix).as_slice() && high > &self.prefix[..]
    }
}
