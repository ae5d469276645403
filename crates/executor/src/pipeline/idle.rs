//! Idle pipelines: what a pipeline's cursor keeps between two batches.
//!
//! A cursor keeps its snapshots and releases its scans. Of a long stored document it keeps only the
//! record key. Computed documents stay in memory while [`crate::Engine::cursor_memory`] has room,
//! and go to a file otherwise.
//!
//! Invariant: leaving and resuming visit the same documents in the same order. A pipeline that is
//! not advanced shows its parts in the same order.

use crate::op::OpCtx;
use crate::pipeline::aggregate::Leaf;
use errors::{Error, Result, err};
use query::pipeline::{DocumentSource, IdleVisitor, Share, Source};
use std::collections::VecDeque;
use std::io::{self, Read, Seek, Write};
use storage::at_rest::TemporaryFile;

/// Shorter documents stay in memory, in bytes: a file takes more.
const LONG: usize = 1 << 10;

/// The saved documents of an idle cursor.
pub(crate) struct Idle {
    share: Share,
    held: usize,
    /// The lengths of the documents in the order of the visit; `None` for documents that stayed in
    /// place.
    left: VecDeque<Option<usize>>,
    file: Option<TemporaryFile>,
}

impl Idle {
    /// `pending`: the pipeline's current document has not been returned yet.
    pub(crate) fn leave(ctx: &mut OpCtx, source: &mut dyn Source, pending: bool) -> Result<Idle> {
        let mut idle = Idle {
            share: ctx.engine.cursor_memory.share(),
            held: 0,
            left: VecDeque::new(),
            file: None,
        };
        source.parts(
            pending,
            &mut IdleSpiller {
                ctx,
                idle: &mut idle,
            },
        )?;
        Ok(idle)
    }

    /// `pending`: as it was in [`Idle::leave`].
    pub(crate) fn resume(mut self, source: &mut dyn Source, pending: bool) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.rewind().map_err(failed)?;
        }
        source.parts(pending, &mut self)
    }
}

fn failed(e: io::Error) -> Error {
    err!(OutOfDiskSpace, "temporary file of a cursor: {e}")
}

struct IdleSpiller<'a, 'c> {
    ctx: &'a mut OpCtx<'c>,
    idle: &'a mut Idle,
}

impl IdleVisitor for IdleSpiller<'_, '_> {
    fn held(&mut self, release: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        release()
    }

    fn rows(&mut self, rows: &mut dyn DocumentSource, wanted: bool) -> Result<()> {
        if let Some(leaf) = rows.as_any().downcast_mut::<Leaf>() {
            leaf.0.leave(wanted);
        }
        Ok(())
    }

    fn doc(&mut self, doc: &mut Vec<u8>, wanted: bool) -> Result<()> {
        if !wanted {
            *doc = Vec::new();
            return Ok(());
        }
        let idle = &mut *self.idle;
        let len = doc.len();
        if idle.share.fits(idle.held + len) || len <= LONG {
            doc.shrink_to_fit();
            idle.held += len;
            idle.left.push_back(None);
            return Ok(());
        }
        let file = match &mut idle.file {
            Some(file) => file,
            none => {
                self.ctx.need_worker()?;
                none.insert(self.ctx.engine.store.temporary_file()?)
            }
        };
        file.write_all(doc).map_err(failed)?;
        idle.left.push_back(Some(len));
        *doc = Vec::new();
        Ok(())
    }
}

/// Resuming.
impl IdleVisitor for Idle {
    fn rows(&mut self, rows: &mut dyn DocumentSource, wanted: bool) -> Result<()> {
        match rows.as_any().downcast_mut::<Leaf>() {
            Some(leaf) if wanted => leaf.0.resume(),
            _ => Ok(()),
        }
    }

    fn doc(&mut self, doc: &mut Vec<u8>, wanted: bool) -> Result<()> {
        if !wanted {
            return Ok(());
        }
        if let (Some(Some(len)), Some(file)) = (self.left.pop_front(), &mut self.file) {
            *doc = vec![0; len];
            file.read_exact(doc).map_err(failed)?;
        }
        Ok(())
    }
}
