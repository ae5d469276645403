//! `$_internalUnpackBucket`: the measurements in the buckets of a time-series collection. It is the
//! first stage of every pipeline over one; users do not write it.
//!
//! What the stages behind it say of the meta field and of the time decides which buckets are read
//! ([`Unpack::selection`]); what they need decides which columns are taken out of a bucket.

use super::{IdleVisitor, Op, PipelineHost, Source, Stage, series_last};
use crate::collation::Collation;
use crate::expr::ParseEnv;
use crate::filter::Filter;
use bson::{Doc, Val, Writer};
use errors::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use time_series::{Rows, Selection, TimeSeriesOptions};

#[derive(Debug)]
pub struct Unpack {
    pub options: Arc<TimeSeriesOptions>,
}

impl Unpack {
    pub(super) fn stage(self) -> Stage {
        let mut w = Writer::new();
        w.str("timeField", &self.options.time);
        if let Some(m) = &self.options.meta {
            w.str("metaField", m);
        }
        w.int("bucketMaxSpanSeconds", self.options.span_seconds);
        let spec = w.finish();
        Stage::new(
            "$_internalUnpackBucket",
            spec.as_doc().as_val(),
            Op::Unpack(Arc::new(self)),
        )
    }

    /// The stage on top of `input`. `behind` are the stages that follow; they need the paths
    /// `needed`.
    pub(super) fn attach(
        self: &Arc<Unpack>,
        input: Box<dyn Source>,
        behind: &[Stage],
        needed: Option<BTreeSet<String>>,
    ) -> Box<dyn Source> {
        match series_last::wanted(self, behind) {
            Some(last) => Box::new(series_last::Run::new(input, self.clone(), last, needed)),
            None => Box::new(Run::new(input, self.clone(), behind, needed)),
        }
    }

    /// What the stages that follow say of buckets.
    pub(super) fn selection(&self, behind: &[Stage]) -> Selection {
        let matches = behind.iter().map_while(|s| match &s.op {
            Op::Match(_) => s.spec.as_val().as_doc(),
            _ => None,
        });
        let queries: Vec<Doc<'_>> = matches.collect();
        Selection::of(&self.options, &queries, collation_of(behind).is_some())
    }

    /// The query over buckets that stands before this stage.
    pub(super) fn filter(&self, behind: &[Stage]) -> Filter {
        let env = ParseEnv::new().collated(collation_of(behind));
        let selected = self.selection(behind);
        // What cannot be asked of buckets is asked of measurements all the same.
        Filter::parse(selected.filter.as_doc(), &env).unwrap_or_else(|_| Filter::all())
    }
}

/// Under which strings are compared in the filters that follow.
fn collation_of(behind: &[Stage]) -> Option<Collation> {
    behind.iter().find_map(|s| match &s.op {
        Op::Match(f) => f.root().collation(),
        _ => None,
    })
}

pub(super) struct Run {
    input: Box<dyn Source>,
    spec: Arc<Unpack>,
    /// The fields at the top that later stages read; `None`: all.
    wanted: Option<BTreeSet<String>>,
    times: (i64, i64),
    rows: Option<Rows>,
    out: Vec<u8>,
}

impl Run {
    /// `behind` are the stages that follow; they need the paths `needed`.
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<Unpack>,
        behind: &[Stage],
        needed: Option<BTreeSet<String>>,
    ) -> Run {
        let top = |p: &String| p.split('.').next().unwrap_or("").to_string();
        Run {
            input,
            times: spec.selection(behind).times,
            spec,
            wanted: needed.map(|all| all.iter().map(top).collect()),
            rows: None,
            out: Vec::new(),
        }
    }
}

/// The rank of a time, and the time of a rank: what comes first has the least one.
pub(super) fn rank(time: i64, descending: bool) -> i64 {
    match descending {
        true => !time,
        false => time,
    }
}

/// The rank of a bucket's first measurement; `None`: it does not tell.
pub(super) fn rank_of(spec: &Unpack, bucket: Doc<'_>, descending: bool) -> Option<i64> {
    let side = match descending {
        true => "max",
        false => "min",
    };
    let control = bucket.get("control")?.as_doc()?;
    let bound = control.get(side)?.as_doc()?.get(&spec.options.time)?;
    Some(rank(bound.as_date()?, descending))
}

#[cold]
pub(super) fn damaged(bucket: Doc<'_>) -> Error {
    let id = bucket.get("_id").unwrap_or(Val::NULL);
    Error::internal(format!("the bucket {id} of a time series is damaged"))
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            if let Some(rows) = &mut self.rows {
                host.check()?;
                match rows.next(&mut self.out) {
                    Some(true) => return Ok(true),
                    Some(false) => self.rows = None,
                    None => return Err(damaged(Doc::EMPTY).into()),
                }
            }
            if !self.input.advance(host)? {
                return Ok(false);
            }
            let bucket = self.input.doc();
            let rows =
                time_series::rows(&self.spec.options, bucket, self.wanted.as_ref(), self.times);
            self.rows = Some(rows.ok_or_else(|| damaged(bucket))?);
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}
