//! The last, or the first, measurement of each device: what a `$group` by the meta field takes that
//! wants no more than that. Of the buckets of one device only the one that ends last is taken apart,
//! and of that the measurements of its last time.
//!
//! Invariant: the `$sort` and the `$group` behind it find in what comes out all that they would have
//! kept. So nothing but the meta field may be filtered in between.

use super::unpack::{damaged, rank, rank_of};
use super::{IdleVisitor, Op, PipelineHost, Source, Stage, Unpack};
use crate::filter::Node;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use std::collections::BTreeSet;
use std::sync::Arc;
use time_series::Rows;

/// Whether the stages behind buckets want the last measurements (`Some(true)`), or the first, of each
/// device only.
pub(super) fn wanted(spec: &Unpack, behind: &[Stage]) -> Option<bool> {
    let (meta, time) = (spec.options.meta.as_deref()?, spec.options.time.as_str());
    let filters = |s: &&Stage| matches!(s.op, Op::Match(_));
    let many = behind.iter().take_while(filters).count();
    let (matches, rest) = behind.split_at(many);
    let [sort, group, ..] = rest else {
        return None;
    };
    let (Op::Sort(by, None), Op::Group(group)) = (&sort.op, &group.op) else {
        return None;
    };
    let descending = match by.fields.as_slice() {
        [t] if t.path.as_str() == time => t.descending,
        [m, t] if m.path.as_str() == meta && t.path.as_str() == time => t.descending,
        _ => return None,
    };
    let all = |name: &str| group.fields.iter().all(|f| f.spec.name() == name);
    let first = match (all("$first"), all("$last")) {
        (true, false) => true,
        (false, true) => false,
        _ => return None,
    };
    let of_device = |s: &Stage| match &s.op {
        Op::Match(f) => asks_of(f.root(), meta),
        _ => false,
    };
    let grouped = group.id.as_path().as_deref() == Some(meta);
    let plain = grouped && !by.has_meta() && matches.iter().all(of_device);
    plain.then_some(first == descending)
}

/// Whether a filter asks of one field only.
fn asks_of(node: &Node, field: &str) -> bool {
    match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().all(|n| asks_of(n, field)),
        Node::Not(n) => asks_of(n, field),
        Node::Pred { path, .. } => path.first() == field,
        Node::Const(_) => true,
        Node::Expr(_) | Node::Schema(_) | Node::Sample(_) | Node::Text(_) => false,
    }
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Unpack>,
    last: bool,
    /// The fields at the top that later stages read; `None`: all.
    wanted: Option<BTreeSet<String>>,
    /// The best bucket of a device so far, by the rank of its best measurement.
    best: Option<(i64, DocBuf)>,
    rows: Option<Rows>,
    out: Vec<u8>,
    #[cfg(test)]
    pub taken_apart: Arc<std::sync::atomic::AtomicUsize>,
}

impl Run {
    /// As [`super::unpack::Run::new`].
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<Unpack>,
        last: bool,
        needed: Option<BTreeSet<String>>,
    ) -> Run {
        let top = |p: &String| p.split('.').next().unwrap_or("").to_string();
        Run {
            input: Some(input),
            spec,
            last,
            wanted: needed.map(|all| all.iter().map(top).collect()),
            best: None,
            rows: None,
            out: Vec::new(),
            #[cfg(test)]
            taken_apart: Arc::default(),
        }
    }

    /// The next device's best bucket; `None` at the end.
    fn next_best(&mut self, host: &mut dyn PipelineHost) -> Result<Option<(i64, DocBuf)>> {
        let meta = |d: &DocBuf| d.get("meta").map(Val::to_value);
        loop {
            let Some(input) = &mut self.input else {
                return Ok(self.best.take());
            };
            if !input.advance(host)? {
                self.input = None;
                continue;
            }
            let bucket = input.doc().to_buf();
            let rank = rank_of(&self.spec, bucket.as_doc(), self.last).ok_or_else(damaged_one)?;
            match &self.best {
                Some((least, best)) if meta(best) == meta(&bucket) => {
                    if rank < *least {
                        self.best = Some((rank, bucket));
                    }
                }
                _ => {
                    if let Some(done) = self.best.replace((rank, bucket)) {
                        return Ok(Some(done));
                    }
                }
            }
        }
    }
}

fn damaged_one() -> errors::Error {
    damaged(Doc::EMPTY)
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            if let Some(rows) = &mut self.rows {
                match rows.next(&mut self.out).ok_or_else(damaged_one)? {
                    true => return Ok(true),
                    false => self.rows = None,
                }
            }
            let Some((least, bucket)) = self.next_best(host)? else {
                return Ok(false);
            };
            #[cfg(test)]
            self.taken_apart
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let time = rank(least, self.last);
            let (options, wanted) = (&self.spec.options, self.wanted.as_ref());
            let rows = time_series::rows(options, bucket.as_doc(), wanted, (time, time));
            self.rows = Some(rows.ok_or_else(damaged_one)?);
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        to.doc(&mut self.out, wanted)
    }
}
