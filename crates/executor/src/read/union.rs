//! Union: several sources, one after the other; each record comes once.
//!
//! Invariant: a source gives each of its records once, and a record is given by the first branch
//! that has it.

use crate::op::OpCtx;
use crate::read::dedup::{Known, Seen, given_by};
use crate::read::source::{Source, doc_of_scan, release_source, step_source};
use crate::read::step::{Current, Step, test};
use crate::records;
use bson::Doc;
use errors::Result;
use planner::{Access, Branch};
use std::sync::Arc;

pub(crate) struct Union {
    branches: Arc<[Branch<Access>]>,
    sources: Vec<Source>,
    at: usize,
    seen: Seen,
}

impl Union {
    pub(crate) fn new(branches: Arc<[Branch<Access>]>, sources: Vec<Source>) -> Union {
        Union {
            branches,
            sources,
            at: 0,
            seen: Seen::default(),
        }
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        while let (Some(source), Some(branch)) =
            (self.sources.get_mut(self.at), self.branches.get(self.at))
        {
            let Some(c) = step_source(source, ctx, step)? else {
                // The source is exhausted; it releases what it holds.
                *source = Source::Eof;
                self.at += 1;
                continue;
            };
            let doc = match &c {
                Current::Scanned => doc_of_scan(source),
                held => held.doc().expect("a source gives a document"),
            };
            if let (Current::Scanned, Source::Records(s)) = (&c, &*source) {
                step.record_key.clear();
                step.record_key
                    .extend_from_slice(records::own_part(s.key()));
            }
            if !test(&branch.residual, doc, step.vars)? {
                continue;
            }
            let known = match self.at + 1 < self.branches.len() {
                true => self.seen.add(ctx, step.record_key),
                false => self.seen.look(step.record_key),
            };
            match known {
                Known::New => {}
                Known::Given => continue,
                Known::Nothing => {
                    self.seen.forget();
                    let earlier = &self.branches[..self.at];
                    if given_by(ctx, earlier, doc, step.vars)? {
                        continue;
                    }
                }
            }
            return Ok(Some(c));
        }
        Ok(None)
    }

    /// The current document of a record scan.
    pub(crate) fn scanned(&self) -> Doc<'_> {
        doc_of_scan(&self.sources[self.at])
    }

    pub(crate) fn release(&mut self) {
        self.sources.iter_mut().for_each(release_source);
    }
}
