//! `$group`: a hash table from the memcomparable key of the group's id to accumulators.
//!
//! Groups come out in the order in which their first documents came in, or, once some were spilled,
//! in order of their ids. A spilled group is `{_id, s: [states]}`; states of one group from several
//! runs are merged in order of the runs.

use super::spill::{Merge, Runs};
use super::stage_memory::hold;
use super::{
    IdleVisitor, PipelineHost, Share, Source, StageProfiler, too_much_memory, unspillable,
};
use crate::accumulator::{Accumulator, AccumulatorSpec};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use bson::{Doc, DocBuf, Val, Value, Writer, key, tag};
use errors::{Result, bail};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Group {
    pub id: Expression,
    pub fields: Vec<Field>,
    collation: Option<Collation>,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub name: String,
    pub spec: AccumulatorSpec,
    /// Its state grows with the input, or holds a value of it.
    grows: bool,
}

impl Field {
    pub fn parse(name: &str, spec: Val<'_>, env: &ParseEnv) -> Result<Field> {
        let spec = AccumulatorSpec::parse_field(name, spec, env)?;
        let grows = matches!(
            spec.name(),
            "$push"
                | "$addToSet"
                | "$concatArrays"
                | "$setUnion"
                | "$mergeObjects"
                | "$percentile"
                | "$median"
                | "$first"
                | "$last"
                | "$min"
                | "$max"
                | "$top"
                | "$bottom"
                | "$topN"
                | "$bottomN"
                | "$minN"
                | "$maxN"
                | "$firstN"
                | "$lastN"
                | "$accumulator"
                | "$_internalJsReduce"
        );
        Ok(Field {
            name: name.to_string(),
            spec,
            grows,
        })
    }
}

impl Group {
    pub fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<Group> {
        let Some(d) = spec.as_doc() else {
            bail!(15947, "a group's fields must be specified in an object");
        };
        let (mut id, mut fields) = (None, Vec::new());
        for e in d.iter() {
            if e.name == "_id" {
                if id.is_some() {
                    bail!(15948, "a group's _id may only be specified once");
                }
                id = Some(parse_id(e.val, env)?);
            } else {
                fields.push(Field::parse(e.name, e.val, env)?);
            }
        }
        match id {
            Some(id) => Ok(Group {
                id,
                fields,
                collation: env.collation().cloned(),
            }),
            None => bail!(15955, "a group specification must include an _id"),
        }
    }

    /// Under which ids are equal.
    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_ref()
    }
}

fn parse_id(v: Val<'_>, env: &ParseEnv) -> Result<Expression> {
    if let Some(d) = v.as_doc()
        && d.first().is_some_and(|e| !e.name.starts_with('$'))
        && d.iter()
            .any(|e| e.val.is_number() || e.val.tag == tag::BOOL)
    {
        bail!(17390, "$group does not support inclusion-style expressions");
    }
    Expression::parse(v, env)
}

struct State {
    id: Value,
    accumulators: Vec<Accumulator>,
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Group>,
    vars: Arc<Vars>,
    by_key: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    groups: Vec<State>,
    bytes: usize,
    share: Option<Share>,
    scratch: Vec<u8>,
    runs: Runs,
    done: std::vec::IntoIter<State>,
    merge: Option<Merge>,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Group>, vars: Arc<Vars>) -> Run {
        Run {
            input: Some(input),
            spec,
            vars,
            by_key: HashMap::default(),
            groups: Vec::new(),
            bytes: 0,
            share: None,
            scratch: Vec::new(),
            runs: Runs::default(),
            done: Vec::new().into_iter(),
            merge: None,
            out: DocBuf::new(),
        }
    }

    /// Tells explain what the groups in memory hold.
    fn measure(&self, host: &mut dyn PipelineHost) {
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
            f.held(self.groups.iter().map(|g| g.accumulators.as_slice()));
        }
    }

    /// Writes the groups in memory as a run.
    fn spill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        self.runs.prepare(host)?;
        self.measure(host);
        let mut keys: Vec<(Box<[u8]>, usize)> =
            std::mem::take(&mut self.by_key).into_iter().collect();
        keys.sort_unstable();
        let groups = std::mem::take(&mut self.groups);
        self.bytes = 0;
        let entries = keys.iter().filter_map(|(key, i)| {
            let g = groups.get(*i)?;
            let mut w = Writer::new();
            w.val("_id", g.id.as_val()).open_array("s");
            for a in &g.accumulators {
                w.push(a.to_partial().as_val());
            }
            Some((&**key, w.finish().into_vec()))
        });
        let bytes = self.runs.write(entries)?;
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
            f.spilled(groups.len(), bytes);
        }
        drop(groups);
        self.share = None;
        Ok(())
    }

    /// The next group of the merged runs.
    fn merged(&mut self, host: &mut dyn PipelineHost) -> Result<Option<State>> {
        let limit = host.memory_limit();
        let Some(m) = &mut self.merge else {
            return Ok(None);
        };
        let share = self.share.get_or_insert_with(|| host.share());
        let Some((key, first)) = m.next_entry()? else {
            return Ok(None);
        };
        let doc = Doc::new(&first).unwrap_or(Doc::EMPTY);
        let id = doc.get("_id").unwrap_or(Val::NULL).to_value();
        let mut accumulators = start(&self.spec.fields, &id, &self.vars)?;
        take_states(&mut accumulators, doc)?;
        while m.peek_key() == Some(key.as_slice()) {
            if let Some((_, more)) = m.next_entry()? {
                take_states(&mut accumulators, Doc::new(&more).unwrap_or(Doc::EMPTY))?;
                check_together(&self.spec.fields, &accumulators, limit)?;
                if let Some(f) = self.spec.fields.iter().find(|f| f.grows) {
                    let bytes = accumulators.iter().map(Accumulator::memory_bytes).sum();
                    hold(share, bytes, host, f.spec.name())?;
                }
            }
        }
        Ok(Some(State { id, accumulators }))
    }
}

/// Refuses a single state that alone is more than may be held: writing it out would not make it
/// smaller.
fn check_states(fields: &[Field], states: &[Accumulator], limit: usize) -> Result<()> {
    for (f, a) in fields.iter().zip(states) {
        // When all of it is too much and this is nearly all, it is this.
        if f.grows && a.memory_bytes() > limit - limit / 16 {
            return Err(unspillable(f.spec.name(), limit).into());
        }
    }
    Ok(())
}

/// The same where all states of a group are in memory for good: then they share what one may have.
pub(super) fn check_together(fields: &[Field], states: &[Accumulator], limit: usize) -> Result<()> {
    check_states(fields, states, limit)?;
    let growing = fields.iter().zip(states).filter(|(f, _)| f.grows);
    let held = growing.map(|(f, a)| (a.memory_bytes(), f.spec.name()));
    if held.clone().map(|(bytes, _)| bytes).sum::<usize>() > limit {
        let most = held.max().map_or("$group", |(_, name)| name);
        return Err(unspillable(most, limit).into());
    }
    Ok(())
}

fn take_states(accumulators: &mut [Accumulator], spilled: Doc<'_>) -> Result<()> {
    let states = spilled
        .get("s")
        .and_then(|v| v.as_array())
        .unwrap_or(Doc::EMPTY);
    for (a, s) in accumulators.iter_mut().zip(states.values()) {
        a.merge(s)?;
    }
    Ok(())
}

/// Fresh states of the accumulators of one group.
pub(super) fn start(fields: &[Field], id: &Value, vars: &Vars) -> Result<Vec<Accumulator>> {
    let mut w = Writer::new();
    w.val("_id", id.as_val());
    let group = w.finish();
    let ctx = EvalCtx::new(group.as_doc(), vars);
    fields.iter().map(|f| f.spec.start(&ctx)).collect()
}

/// Takes a document into the states; gives the bytes by which they grew, or shrank.
pub(super) fn add(
    fields: &[Field],
    states: &mut [Accumulator],
    ctx: &EvalCtx<'_>,
) -> Result<isize> {
    let mut grown = 0;
    for (f, a) in fields.iter().zip(states) {
        if f.grows {
            let before = a.memory_bytes();
            f.spec.add(a, ctx)?;
            grown += a.memory_bytes() as isize - before as isize;
        } else {
            f.spec.add(a, ctx)?;
        }
    }
    Ok(grown)
}

/// Writes the results of one group after its `_id`.
pub(super) fn finish(
    fields: &[Field],
    states: Vec<Accumulator>,
    vars: &Vars,
    w: &mut Writer,
) -> Result<()> {
    for (f, a) in fields.iter().zip(states) {
        w.val(&f.name, f.spec.finish(a, vars)?.as_val());
    }
    Ok(())
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if self.input.is_some() {
            let limit = host.memory_limit();
            while let Some(input) = &mut self.input {
                let share = self.share.get_or_insert_with(|| host.share());
                if self.bytes > limit || !share.fits(self.bytes) {
                    // Who gave no leave for files is refused for what is his, not for what others
                    // hold.
                    if self.bytes > limit && !host.allow_disk_use() {
                        return Err(too_much_memory("$group", limit).into());
                    }
                    self.spill(host)?;
                    continue;
                }
                if !input.advance(host)? {
                    break;
                }
                let ctx = EvalCtx::new(input.doc(), &self.vars).with_meta(input.meta());
                let id = self.spec.id.evaluate(&ctx)?;
                self.scratch.clear();
                Collation::with(self.spec.collation.as_ref(), id.or_null(), |id| {
                    key::encode(id, false, &mut self.scratch, None)
                });
                let at = match self.by_key.get(self.scratch.as_slice()) {
                    Some(i) => *i,
                    None => {
                        let id = id.or_null().to_value();
                        let accumulators = start(&self.spec.fields, &id, &self.vars)?;
                        self.bytes += self.scratch.len()
                            + id.as_val().bytes.len()
                            + 96
                            + accumulators.len() * size_of::<Accumulator>();
                        self.groups.push(State { id, accumulators });
                        self.by_key
                            .insert(self.scratch.as_slice().into(), self.groups.len() - 1);
                        self.groups.len() - 1
                    }
                };
                if let Some(g) = self.groups.get_mut(at) {
                    let grown = add(&self.spec.fields, &mut g.accumulators, &ctx)?;
                    self.bytes = self.bytes.saturating_add_signed(grown);
                    if self.bytes > limit {
                        check_states(&self.spec.fields, &g.accumulators, limit)?;
                    }
                }
            }
            if !self.runs.is_empty() {
                self.spill(host)?;
                self.merge = Some(std::mem::take(&mut self.runs).merge()?);
            }
            self.measure(host);
            self.input = None;
            self.by_key = HashMap::default();
            self.done = std::mem::take(&mut self.groups).into_iter();
        }
        host.check()?;
        let next = match self.done.next() {
            Some(g) => Some(g),
            None => self.merged(host)?,
        };
        let Some(g) = next else {
            return Ok(false);
        };
        let mut w = Writer::new();
        w.val("_id", g.id.as_val());
        finish(&self.spec.fields, g.accumulators, &self.vars, &mut w)?;
        self.out = w.finish();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        super::show_doc(&mut self.out, wanted, to)
    }
}
