//! Several index scans, each in the wanted order, merged into one; a record comes once.

use crate::fetch::IndexScan;
use crate::op::OpCtx;
use crate::read::{Current, KEPT_BYTES, Step, test};
use bson::Doc;
use errors::Result;
use query::filter::Filter;
use query::sort::SortPattern;
use std::collections::HashSet;

struct Branch {
    scan: IndexScan,
    filter: Filter,
    /// The next row of this branch: sort key, record key, document.
    head: Option<(Vec<u8>, Vec<u8>, Current)>,
    done: bool,
}

pub(crate) struct Merge {
    branches: Vec<Branch>,
    pattern: SortPattern,
    seen: HashSet<Vec<u8>>,
}

impl Merge {
    pub(crate) fn new(scans: Vec<(IndexScan, Filter)>, pattern: SortPattern) -> Merge {
        let branches = scans
            .into_iter()
            .map(|(scan, filter)| Branch {
                scan,
                filter,
                head: None,
                done: false,
            })
            .collect();
        Merge {
            branches,
            pattern,
            seen: HashSet::new(),
        }
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        loop {
            for b in self
                .branches
                .iter_mut()
                .filter(|b| b.head.is_none() && !b.done)
            {
                loop {
                    let Some(c) = b.scan.next(ctx, step)? else {
                        b.done = true;
                        break;
                    };
                    let doc = match &c {
                        Current::Fetched(s) => Doc::new(s).unwrap_or(Doc::EMPTY),
                        Current::Built(x) => Doc::new(x).unwrap_or(Doc::EMPTY),
                        _ => Doc::EMPTY,
                    };
                    if test(&b.filter, doc, step.vars)? {
                        let mut key = Vec::new();
                        self.pattern.sort_key(doc, &mut key)?;
                        // Others may come first for long; there are many branches.
                        let c = match c {
                            Current::Fetched(long) if long.len() > KEPT_BYTES => Current::Left,
                            short => short,
                        };
                        b.head = Some((key, step.record_key.clone(), c));
                        break;
                    }
                }
            }
            let best = self
                .branches
                .iter_mut()
                .filter(|b| b.head.is_some())
                .min_by(|a, b| match (&a.head, &b.head) {
                    (Some(a), Some(b)) => (&a.0, &a.1).cmp(&(&b.0, &b.1)),
                    (a, b) => a.is_none().cmp(&b.is_none()),
                });
            let Some((_, record_key, current)) = best.and_then(|b| b.head.take()) else {
                return Ok(None);
            };
            if self.seen.insert(record_key.clone()) {
                let current = match current {
                    Current::Left => match step.view.get(&step.coll.record_key(&record_key))? {
                        Some(found) => Current::Fetched(found),
                        None => continue,
                    },
                    held => held,
                };
                *step.record_key = record_key;
                return Ok(Some(current));
            }
        }
    }

    pub(crate) fn release(&mut self) {
        for b in &mut self.branches {
            b.scan.release();
            if let Some((_, _, current @ Current::Fetched(_))) = &mut b.head {
                *current = Current::Left;
            }
        }
    }
}
