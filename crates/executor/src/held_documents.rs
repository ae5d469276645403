//! Documents that a cursor has and has not given yet.
//!
//! ```text
//! given ◀── front ── queue ── rest of the file ◀── pushed
//! file: (length of the key u32 LE | length of the document u32 LE | key | document)…
//! ```
//! Between two batches they are in memory while [`crate::Engine::cursor_memory`] has room, and in a file
//! otherwise, which is read a part at a time.
//!
//! Invariants:
//! - They are given in the order in which they came.
//! - Between [`HeldDocuments::resume`] and [`HeldDocuments::release`] the front one is in memory.

use crate::engine::Engine;
use bson::DocBuf;
use errors::{Error, Result, err};
use query::pipeline::{Share, StageMemory};
use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use storage::Store;
use storage::at_rest::TemporaryFile;

/// About so much of a file is read at once.
const READ_BYTES: usize = 256 << 10;
const HEAD_BYTES: usize = 8;

/// Where cursors keep documents between two batches.
#[derive(Clone)]
pub struct CursorMemory {
    store: Arc<Store>,
    memory: Arc<StageMemory>,
}

impl CursorMemory {
    pub fn of(engine: &Engine) -> CursorMemory {
        CursorMemory {
            store: engine.store.clone(),
            memory: engine.cursor_memory.clone(),
        }
    }

    /// An empty share of it.
    pub fn share(&self) -> Share {
        self.memory.share()
    }
}

/// What a document is ordered by.
pub trait HeldKey: Sized {
    fn bytes(&self) -> &[u8];
    fn of(bytes: Vec<u8>) -> Self;
}

impl HeldKey for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn of(bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
}

impl HeldKey for String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn of(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap_or_default()
    }
}

impl HeldKey for () {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn of(_: Vec<u8>) {}
}

struct Frames {
    file: TemporaryFile,
    /// Where the first frame begins that is not in the queue.
    at: u64,
    end: u64,
}

pub struct HeldDocuments<K> {
    queue: VecDeque<(K, DocBuf)>,
    /// The bytes of the queue's frames.
    bytes: usize,
    file: Option<Frames>,
}

impl<K> Default for HeldDocuments<K> {
    fn default() -> HeldDocuments<K> {
        HeldDocuments {
            queue: VecDeque::new(),
            bytes: 0,
            file: None,
        }
    }
}

fn frame_bytes<K: HeldKey>((key, doc): &(K, DocBuf)) -> usize {
    HEAD_BYTES + key.bytes().len() + doc.as_bytes().len()
}

fn failed(e: &io::Error) -> Error {
    err!(OutOfDiskSpace, "temporary file of a cursor: {e}")
}

impl<K: HeldKey> HeldDocuments<K> {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.file.is_none()
    }

    /// Behind all others, which are in memory.
    pub fn push(&mut self, key: K, doc: DocBuf) {
        assert!(self.file.is_none(), "what comes is behind what there is");
        let held = (key, doc);
        self.bytes += frame_bytes(&held);
        self.queue.push_back(held);
    }

    pub fn front(&self) -> Option<&(K, DocBuf)> {
        let front = self.queue.front();
        assert!(
            front.is_some() || self.file.is_none(),
            "a cursor is resumed before it is read"
        );
        front
    }

    /// The last one that is in memory.
    pub fn back(&self) -> Option<&(K, DocBuf)> {
        self.queue.back()
    }

    pub fn pop(&mut self) -> Result<Option<(K, DocBuf)>> {
        self.resume()?;
        let Some(held) = self.queue.pop_front() else {
            return Ok(None);
        };
        self.bytes -= frame_bytes(&held);
        self.resume()?;
        Ok(Some(held))
    }

    /// Has the front one in memory.
    pub fn resume(&mut self) -> Result<()> {
        if !self.queue.is_empty() {
            return Ok(());
        }
        let Some(frames) = &mut self.file else {
            return Ok(());
        };
        let read = |frames: &mut Frames, queue: &mut VecDeque<_>| -> io::Result<usize> {
            frames.file.seek(SeekFrom::Start(frames.at))?;
            let mut bytes = 0;
            while frames.at < frames.end && bytes < READ_BYTES {
                let held = read_frame(&mut frames.file)?;
                let length = frame_bytes::<K>(&held);
                frames.at += length as u64;
                bytes += length;
                queue.push_back(held);
            }
            Ok(bytes)
        };
        self.bytes = read(frames, &mut self.queue).map_err(|e| failed(&e))?;
        if frames.at >= frames.end {
            self.file = None;
        }
        Ok(())
    }

    /// Keeps them until the cursor goes on. `held`: what the cursor's other documents hold of `share`, in bytes; gives
    /// what it holds then.
    pub fn release(&mut self, of: &CursorMemory, share: &mut Share, held: usize) -> Result<usize> {
        if self.queue.is_empty() || share.fits(held + self.bytes) {
            return Ok(held + self.bytes);
        }
        match &mut self.file {
            // They lie there still, in front of the others.
            Some(frames) => frames.at -= self.bytes as u64,
            none => {
                let mut file = of.store.temporary_file()?;
                for held in &self.queue {
                    write_frame(&mut file, held).map_err(|e| failed(&e))?;
                }
                *none = Some(Frames {
                    file,
                    at: 0,
                    end: self.bytes as u64,
                });
            }
        }
        self.queue = VecDeque::new();
        self.bytes = 0;
        Ok(held)
    }
}

fn write_frame<K: HeldKey>(to: &mut TemporaryFile, (key, doc): &(K, DocBuf)) -> io::Result<()> {
    let length = |bytes: &[u8]| (bytes.len() as u32).to_le_bytes();
    let (key, doc) = (key.bytes(), doc.as_bytes());
    to.write_all(&[length(key), length(doc)].concat())?;
    to.write_all(key)?;
    to.write_all(doc)
}

fn read_frame<K: HeldKey>(from: &mut TemporaryFile) -> io::Result<(K, DocBuf)> {
    let mut part = |length: [u8; 4]| {
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut bytes).map(|()| bytes)
    };
    let head = part(8u32.to_le_bytes())?;
    let length = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.unwrap_or_default()
    };
    let (key, doc) = (part(length(0))?, part(length(4))?);
    let doc = DocBuf::from_vec(doc).ok_or(io::ErrorKind::InvalidData)?;
    Ok((K::of(key), doc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;
    use storage::StoreOptions;

    fn document(n: i64) -> DocBuf {
        doc! {"n": n, "text": "x".repeat(1 << 10)}
    }

    /// Gives some, is left and goes on, again and again.
    fn given(share: &mut Share, before: usize) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let of = CursorMemory {
            store: Store::open(StoreOptions::new(dir.path())).unwrap(),
            memory: Arc::default(),
        };
        let mut held = HeldDocuments::default();
        (0..2000).for_each(|n| held.push(format!("{n:04}"), document(n)));
        let mut out = Vec::new();
        while !held.is_empty() {
            let bytes = held.release(&of, share, before).unwrap();
            assert_eq!(bytes > before, held.file.is_none());
            held.resume().unwrap();
            for _ in 0..300 {
                let front = held.front().map(|h| h.0.clone());
                let popped = held.pop().unwrap();
                assert_eq!(front, popped.as_ref().map(|h| h.0.clone()));
                let Some((key, doc)) = popped else { break };
                assert_eq!(doc, document(out.len() as i64));
                out.push(key);
            }
        }
        out
    }

    #[test]
    fn what_is_held_comes_back_in_its_order_from_memory_and_from_a_file() {
        let wanted: Vec<String> = (0..2000).map(|n| format!("{n:04}")).collect();
        let memory = Arc::new(StageMemory::new(8 << 20));
        assert_eq!(given(&mut memory.share(), 0), wanted);
        let (mut others, mut own) = (memory.share(), memory.share());
        assert!(others.fits_for_good(12 << 20));
        assert_eq!(given(&mut own, 1), wanted);
    }
}
