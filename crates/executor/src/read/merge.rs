//! Sorted merge: several index scans, each in the requested order, merged into one; each record
//! comes once.

use crate::op::OpCtx;
use crate::read::dedup::{Known, Seen, given_by};
use crate::read::index_scan::IndexScan;
use crate::read::step::{Current, KEPT_BYTES, Step, test};
use crate::records;
use bson::Doc;
use errors::Result;
use planner::{Branch, IndexAccess};
use query::sort::SortPattern;
use std::sync::Arc;

struct Input {
    scan: IndexScan,
    /// Its next row: sort key, record key, document.
    head: Option<(Vec<u8>, Vec<u8>, Current)>,
    done: bool,
}

pub(crate) struct Merge {
    branches: Arc<[Branch<Arc<IndexAccess>>]>,
    inputs: Vec<Input>,
    pattern: SortPattern,
    /// Whether several branches may give one record.
    shared: bool,
    /// Whether the rows of one record have the same sort key: no field is multikey.
    together: bool,
    /// The sort key of the last row, where it matters.
    last: Vec<u8>,
    /// The records of which a row was taken. When it is full it keeps what it has: of a record that
    /// it does not know no row was taken, so the first branch that has the record still gives it.
    seen: Seen,
}

impl Merge {
    pub(crate) fn new(
        branches: Arc<[Branch<Arc<IndexAccess>>]>,
        scans: Vec<IndexScan>,
        pattern: SortPattern,
    ) -> Merge {
        let input = |scan| Input {
            scan,
            head: None,
            done: false,
        };
        Merge {
            shared: branches.iter().any(|b| b.whole.is_some()),
            together: branches.iter().all(|b| !b.access.dedup),
            branches,
            inputs: scans.into_iter().map(input).collect(),
            pattern,
            last: Vec::new(),
            seen: Seen::default(),
        }
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        loop {
            let inputs = self.inputs.iter_mut().zip(self.branches.iter());
            for (input, branch) in inputs.filter(|(i, _)| i.head.is_none() && !i.done) {
                loop {
                    let Some(c) = input.scan.next(ctx, step)? else {
                        input.done = true;
                        break;
                    };
                    let doc = document(&c);
                    if test(&branch.residual, doc, step.vars)? {
                        let mut key = Vec::new();
                        self.pattern.sort_key(doc, &mut key)?;
                        // It may have to wait for long, and there are many branches: a long
                        // document is read again later.
                        let c = match c {
                            Current::Fetched(long) if long.len() > KEPT_BYTES => Current::Left,
                            short => short,
                        };
                        input.head = Some((key, step.record_key.clone(), c));
                        break;
                    }
                }
            }
            let heads = self.inputs.iter_mut().map(|i| &mut i.head).enumerate();
            let best = heads
                .filter(|(_, h)| h.is_some())
                .min_by(|(_, a), (_, b)| match (a, b) {
                    (Some(a), Some(b)) => (&a.0, &a.1).cmp(&(&b.0, &b.1)),
                    (a, b) => a.is_none().cmp(&b.is_none()),
                });
            let Some((at, (key, record_key, current))) =
                best.and_then(|(at, head)| Some((at, head.take()?)))
            else {
                return Ok(None);
            };
            let mut known = Known::New;
            if self.shared {
                if self.together && key != self.last {
                    self.seen.restart();
                    self.last = key;
                }
                known = self.seen.add(ctx, &record_key);
            }
            if known == Known::Given {
                continue;
            }
            let current = match current {
                Current::Left => match step.view.get(&step.coll.record_key(&record_key))? {
                    Some(found) => {
                        records::stored(step.coll, &record_key, &found)?;
                        Current::Fetched(found)
                    }
                    None => continue,
                },
                held => held,
            };
            let earlier = &self.branches[..at];
            if known == Known::Nothing && given_by(ctx, earlier, document(&current), step.vars)? {
                continue;
            }
            *step.record_key = record_key;
            return Ok(Some(current));
        }
    }

    pub(crate) fn release(&mut self) {
        for i in &mut self.inputs {
            i.scan.release();
            if let Some((_, _, current @ Current::Fetched(_))) = &mut i.head {
                *current = Current::Left;
            }
        }
    }
}

fn document(current: &Current) -> Doc<'_> {
    current.doc().expect("an index scan gives a document")
}
