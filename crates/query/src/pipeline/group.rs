//! `$group`: a hash table from the memcomparable key of the group's id to accumulators.
//!
//! Groups come out in the order in which their first documents came in, or, once some were spilled,
//! in order of their ids. A spilled group is `{_id, s: [states]}`; states of one group from several
//! runs are merged in order of the runs.
//!
//! The documents of a group may lie on several servers. Then each does its [`GroupPhase`] and gives its
//! groups as they are spilled, and the last part merges them:
//!
//! ```text
//! each server: $group: {_id: …, …, $willBeMerged: true}    {_id, s: [states]}
//! together:    $group: {_id: …, …, $doingMerge: true}      {_id, …}
//! ```
//! Behind a `$sort` both have `$_pandoSortedBy`: states of what heeds the order then hold the sort
//! keys of the values that they keep.

use super::spill::{Merge, Runs};
use super::stage_memory::hold;
use super::unwind_group::{GroupInput, GroupInputs};
use super::{
    IdleVisitor, PipelineHost, Share, Source, StageProfiler, too_much_memory, unspillable,
};
use crate::accumulator::{Accumulator, AccumulatorSpec};
use crate::collation::Collation;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::metadata::{Available, Metadata};
use bson::{Doc, DocBuf, Iter, Val, Value, Writer, key, tag};
use errors::{Result, bail};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Group {
    pub id: Expression,
    pub fields: Vec<Field>,
    collation: Option<Collation>,
    pub part: GroupPhase,
}

/// What of the work is done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupPhase {
    Whole,
    /// States come out, for the last part.
    First,
    /// States come in. What groups has done its work: `id` is the path `_id`.
    Last,
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
        let (mut id, mut fields, mut part) = (None, Vec::new(), GroupPhase::Whole);
        // The last part evaluates nothing: the metadata of documents was given to the others.
        let known = env.clone().with_near(true).with_available(Available {
            text_score: true,
            score: true,
            score_details: true,
            search_score: true,
        });
        let env = if d.contains(LAST) { &known } else { env };
        for e in d.iter() {
            match e.name {
                "_id" if id.is_some() => bail!(15948, "a group's _id may only be specified once"),
                "_id" => id = Some(parse_id(e.val, env)?),
                FIRST => part = this_phase(e.name, e.val, GroupPhase::First)?,
                LAST => part = this_phase(e.name, e.val, GroupPhase::Last)?,
                SORTED_BY => {}
                name => fields.push(Field::parse(name, e.val, env)?),
            }
        }
        if let Some(sort) = d.get(SORTED_BY).and_then(Val::as_doc) {
            for field in &mut fields {
                field.spec.over_sorted(sort, env)?;
            }
        }
        if part == GroupPhase::Last && id.is_some() {
            id = Some(Expression::parse(Value::from("$_id").as_val(), env)?);
        }
        match id {
            Some(id) => Ok(Group {
                id,
                fields,
                collation: env.collation().cloned(),
                part,
            }),
            None => bail!(15955, "a group specification must include an _id"),
        }
    }

    /// Whether what several have gathered, merged in the order of their documents, is what one of them would have.
    pub fn merges_in_order(&self) -> bool {
        let differs = |f: &Field| {
            matches!(
                f.spec.name(),
                "$percentile" | "$median" | "$accumulator" | "$_internalJsReduce"
            )
        };
        !self.fields.iter().any(differs)
    }

    /// Under which ids are equal.
    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_ref()
    }
}

/// Options of a `$group` whose work is divided.
pub(super) const FIRST: &str = "$willBeMerged";
pub(super) const LAST: &str = "$doingMerge";
pub(super) const SORTED_BY: &str = "$_pandoSortedBy";

fn this_phase(option: &str, v: Val<'_>, part: GroupPhase) -> Result<GroupPhase> {
    match v.as_bool() {
        Some(true) => Ok(part),
        _ => bail!(17030, "{option} should be true if present"),
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

/// A key of a hash table. Those of numbers and short strings lie in the table itself, where a look
/// at them costs no further miss of the cache.
pub(super) type ShortKey = SmallVec<[u8; 24]>;

struct State {
    id: Value,
    accumulators: Vec<Accumulator>,
}

/// The groups in memory, in the order of their first documents.
#[derive(Default)]
struct Groups {
    by_key: HashMap<ShortKey, usize, foldhash::fast::RandomState>,
    ids: Vec<Value>,
    /// Those of one group after those of another.
    accumulators: Vec<Accumulator>,
    /// What all of it takes.
    bytes: usize,
    scratch: Vec<u8>,
}

impl Groups {
    fn of(&self, group: usize, width: usize) -> &[Accumulator] {
        let states = group * width..(group + 1) * width;
        self.accumulators.get(states).unwrap_or_default()
    }

    fn of_mut(&mut self, group: usize, width: usize) -> &mut [Accumulator] {
        let states = group * width..(group + 1) * width;
        self.accumulators.get_mut(states).unwrap_or_default()
    }

    /// The number of the group with this id, which may be a new one.
    fn place_of(&mut self, id: Val<'_>, spec: &Group, vars: &Vars) -> Result<usize> {
        self.scratch.clear();
        Collation::with(spec.collation.as_ref(), id, |id| {
            key::encode(id, false, &mut self.scratch, None)
        });
        if let Some(at) = self.by_key.get(self.scratch.as_slice()) {
            return Ok(*at);
        }
        let id = id.to_value();
        let states = start(&spec.fields, &id, vars)?;
        self.bytes += self.scratch.len()
            + id.as_val().bytes.len()
            + 96
            + spec.fields.len() * size_of::<Accumulator>();
        self.ids.push(id);
        self.accumulators.extend(states);
        let at = self.ids.len() - 1;
        self.by_key.insert(ShortKey::from_slice(&self.scratch), at);
        Ok(at)
    }
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Group>,
    vars: Arc<Vars>,
    groups: Groups,
    share: Option<Share>,
    /// What the groups may hold, once that was asked.
    limit: Option<usize>,
    settled: bool,
    runs: Runs,
    done: (std::vec::IntoIter<Value>, std::vec::IntoIter<Accumulator>),
    merge: Option<Merge>,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<Group>, vars: Arc<Vars>) -> Run {
        Run {
            input: Some(input),
            spec,
            vars,
            groups: Groups::default(),
            share: None,
            limit: None,
            settled: false,
            runs: Runs::default(),
            done: Default::default(),
            merge: None,
            out: DocBuf::new(),
        }
    }

    /// Tells explain what the groups in memory hold.
    fn measure(&self, host: &mut dyn PipelineHost) {
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
            let width = self.spec.fields.len();
            let all = (0..self.groups.ids.len()).map(|g| self.groups.of(g, width));
            f.held(all);
        }
    }

    /// Writes the groups in memory as a run.
    fn spill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        self.runs.prepare(host)?;
        self.measure(host);
        let mut groups = std::mem::take(&mut self.groups);
        let mut keys: Vec<(ShortKey, usize)> =
            std::mem::take(&mut groups.by_key).into_iter().collect();
        keys.sort_unstable();
        let width = self.spec.fields.len();
        let entries = keys.iter().filter_map(|(key, i)| {
            let mut w = Writer::new();
            w.val("_id", groups.ids.get(*i)?.as_val());
            write_states(groups.of(*i, width), &mut w);
            Some((&**key, w.finish().into_vec()))
        });
        let bytes = self.runs.write(entries)?;
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
            f.spilled(groups.ids.len(), bytes);
        }
        drop(groups);
        self.share = None;
        Ok(())
    }

    /// One that is given its documents: by [`Run::make_room`] and [`Run::take_in`] for each, then
    /// [`Run::settle`].
    pub fn fed(spec: Arc<Group>, vars: Arc<Vars>) -> Run {
        Run {
            input: None,
            ..Run::new(Box::new(super::stream::Empty), spec, vars)
        }
    }

    /// Before a document is taken: writes the groups in memory away where they are too much.
    pub fn make_room(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let share = self.share.get_or_insert_with(|| host.share());
        let limit = self.limit.unwrap_or_else(|| host.memory_limit());
        self.limit = Some(limit);
        let bytes = self.groups.bytes;
        if bytes <= limit && share.fits(bytes) {
            return Ok(());
        }
        // Without leave for files a stage is refused for its own memory, not for that of others.
        if bytes > limit && !host.allow_disk_use() {
            return Err(too_much_memory("$group", limit).into());
        }
        self.spill(host)?;
        self.share = Some(host.share());
        Ok(())
    }

    /// Takes a document, or states of another part, into its group.
    pub fn take_in(&mut self, doc: Doc<'_>, meta: &Metadata) -> Result<()> {
        if self.spec.part == GroupPhase::Last {
            return self.take_group(doc);
        }
        let ctx = EvalCtx::new(doc, &self.vars).with_meta(meta);
        let (fields, width) = (&self.spec.fields, self.spec.fields.len());
        let id = self.spec.id.evaluate(&ctx)?;
        let at = self.groups.place_of(id.or_null(), &self.spec, &self.vars)?;
        let grown = add(fields, self.groups.of_mut(at, width), &ctx)?;
        self.grew(at, grown)
    }

    /// Takes what another part has found of one group.
    fn take_group(&mut self, found: Doc<'_>) -> Result<()> {
        let id = found.get("_id").unwrap_or(Val::NULL);
        let at = self.groups.place_of(id, &self.spec, &self.vars)?;
        let width = self.spec.fields.len();
        let states = self.groups.of_mut(at, width);
        let held = |states: &[Accumulator]| -> usize {
            states.iter().map(Accumulator::memory_bytes).sum()
        };
        let before = held(states);
        take_states(states, found)?;
        let grown = held(states) as isize - before as isize;
        self.grew(at, grown)
    }

    /// Takes an element that was unwound from a document into its group.
    pub fn take_element(
        &mut self,
        doc: Doc<'_>,
        meta: &Metadata,
        element: Val<'_>,
        takes: &GroupInputs,
    ) -> Result<()> {
        let ctx = EvalCtx::new(doc, &self.vars).with_meta(meta);
        let (fields, width) = (&self.spec.fields, self.spec.fields.len());
        let of_document;
        let id = match &takes.id {
            GroupInput::Element => element,
            GroupInput::Constant(v) => v.as_val(),
            GroupInput::OfDocument => {
                of_document = self.spec.id.evaluate(&ctx)?;
                of_document.or_null()
            }
        };
        let at = self.groups.place_of(id, &self.spec, &self.vars)?;
        let mut grown = 0;
        let states = self.groups.of_mut(at, width);
        for ((f, takes), a) in fields.iter().zip(&takes.fields).zip(states) {
            let before = if f.grows { a.memory_bytes() } else { 0 };
            match takes {
                GroupInput::Element => a.take(Some(element))?,
                GroupInput::Constant(v) => a.take(Some(v.as_val()))?,
                GroupInput::OfDocument => f.spec.add(a, &ctx)?,
            }
            if f.grows {
                grown += a.memory_bytes() as isize - before as isize;
            }
        }
        self.grew(at, grown)
    }

    /// Takes values that a map emitted under one key into their group, whose only accumulator
    /// reduces.
    pub fn take_emitted(&mut self, k: Val<'_>, mut values: Iter<'_>) -> Result<()> {
        let (fields, width) = (&self.spec.fields, self.spec.fields.len());
        let at = self.groups.place_of(k, &self.spec, &self.vars)?;
        let mut grown = 0;
        if let (Some(f), Some(a)) = (fields.first(), self.groups.of_mut(at, width).first_mut()) {
            let before = a.memory_bytes();
            while let Some((_, v)) = values.next_raw() {
                f.spec.add_emitted(a, k, v, &self.vars)?;
            }
            grown += a.memory_bytes() as isize - before as isize;
        }
        self.grew(at, grown)
    }

    /// The states of a group hold so many bytes more.
    fn grew(&mut self, group: usize, bytes: isize) -> Result<()> {
        self.groups.bytes = self.groups.bytes.saturating_add_signed(bytes);
        if let Some(limit) = self.limit.filter(|l| self.groups.bytes > *l) {
            let fields = &self.spec.fields;
            check_states(fields, self.groups.of(group, fields.len()), limit)?;
        }
        Ok(())
    }

    /// Takes in all of the input.
    pub fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while self.input.is_some() {
            self.make_room(host)?;
            let Some(mut input) = self.input.take() else {
                break;
            };
            let taken = match input.advance(host) {
                Ok(true) => self.take_in(input.doc(), input.meta()).map(|()| true),
                other => other,
            };
            if !matches!(taken, Ok(false)) {
                self.input = Some(input);
            }
            taken?;
        }
        Ok(())
    }

    /// Takes over the groups of another, whose documents come behind all that this one has seen.
    pub fn absorb(&mut self, mut next: Run, host: &mut dyn PipelineHost) -> Result<()> {
        if self.groups.ids.is_empty() && self.runs.is_empty() {
            (self.groups, self.runs) = (next.groups, next.runs);
            (self.share, self.limit) = (next.share, next.limit);
            return Ok(());
        }
        if !self.runs.is_empty() || !next.runs.is_empty() {
            self.spill(host)?;
            next.spill(host)?;
            self.runs.append(next.runs);
            return Ok(());
        }
        let width = self.spec.fields.len();
        let mut states = next.groups.accumulators.into_iter();
        for id in next.groups.ids {
            host.check()?;
            self.make_room(host)?;
            let known = self.groups.ids.len();
            let at = self.groups.place_of(id.as_val(), &self.spec, &self.vars)?;
            let mut grown = 0;
            let own = self.groups.of_mut(at, width);
            for ((own, next), field) in own.iter_mut().zip(&mut states).zip(&self.spec.fields) {
                let before = if field.grows { own.memory_bytes() } else { 0 };
                match at == known {
                    true => *own = next,
                    false => own.absorb(next)?,
                }
                if field.grows {
                    grown += own.memory_bytes() as isize - before as isize;
                }
            }
            self.grew(at, grown)?;
        }
        Ok(())
    }

    /// All documents were taken in.
    pub fn settle(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        if self.settled {
            return Ok(());
        }
        if !self.runs.is_empty() {
            self.spill(host)?;
            self.merge = Some(std::mem::take(&mut self.runs).merge()?);
        }
        self.measure(host);
        let groups = std::mem::take(&mut self.groups);
        self.done = (groups.ids.into_iter(), groups.accumulators.into_iter());
        self.settled = true;
        Ok(())
    }

    /// Asks for the room that the next group in memory takes as a document: each long value is made once by itself, and once in it.
    fn room_for_result(&self) -> Result<()> {
        let next = self.done.1.as_slice().iter().zip(&self.spec.fields);
        let long = next.filter(|(_, f)| f.grows).map(|(a, _)| a.memory_bytes());
        self.vars.room_for(2 * long.sum::<usize>())
    }

    /// The next group in memory.
    fn next_done(&mut self) -> Option<State> {
        let id = self.done.0.next()?;
        let width = self.spec.fields.len();
        Some(State {
            id,
            accumulators: self.done.1.by_ref().take(width).collect(),
        })
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

/// Writes the states of one group after its `_id`.
pub(super) fn write_states(states: &[Accumulator], w: &mut Writer) {
    w.open_array("s");
    for a in states {
        w.push(a.to_partial().as_val());
    }
    w.close();
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

/// Fresh states of the accumulators of one group. Where its key is a document, what depends on the
/// group sees the key's fields.
pub(super) fn start(fields: &[Field], id: &Value, vars: &Vars) -> Result<Vec<Accumulator>> {
    let key = id.as_val().as_doc().unwrap_or(Doc::EMPTY);
    let ctx = EvalCtx::new(key, vars);
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
        self.gather(host)?;
        self.settle(host)?;
        host.check()?;
        self.room_for_result()?;
        let next = match self.next_done() {
            Some(g) => Some(g),
            None => self.merged(host)?,
        };
        let Some(g) = next else {
            return Ok(false);
        };
        let mut w = Writer::new();
        w.val("_id", g.id.as_val());
        match self.spec.part {
            GroupPhase::First => {
                write_states(&g.accumulators, &mut w);
            }
            GroupPhase::Whole | GroupPhase::Last => {
                finish(&self.spec.fields, g.accumulators, &self.vars, &mut w)?;
            }
        }
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
