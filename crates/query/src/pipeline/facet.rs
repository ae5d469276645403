//! `$facet`: several pipelines over the same input, their results as arrays of one document.
//!
//! Where several servers each do a part of it, each gives the results of its pipelines one by one,
//! with their pipeline's number: `{$facet: {…, $willBeMerged: true}}` gives `{f: 0, d: …}`. So none
//! of them has to make one document of all that its pipelines find.

use super::optimizer::whole::gives_the_same;
use super::parse::{Inside, ParseCtx};
use super::spill::{Tape, TapeWriter};
use super::stage_memory::hold;
use super::{
    IdleVisitor, Op, Pipeline, PipelineHost, Share, Source, group, stream, too_much_memory,
};
use crate::expr::Vars;
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::{Result, bail, operation};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(crate) struct Facet {
    pub parts: Vec<(String, Pipeline)>,
    /// Results come out one by one, for the router to go on with.
    pub numbered: bool,
}

/// The pipelines that the stage names, and whether their results come out one by one.
pub(super) fn branches(spec: Val<'_>) -> Result<(Vec<(&str, Val<'_>)>, bool)> {
    let Some(d) = spec.as_doc().filter(|d| !d.is_empty()) else {
        bail!(40169, "the $facet specification must be a non-empty object");
    };
    let (mut all, mut numbered) = (Vec::new(), false);
    for e in d.iter() {
        operation::step()?;
        if e.name == group::FIRST && e.val.as_bool() == Some(true) {
            numbered = true;
            continue;
        }
        crate::expr::check_field_name(e.name)?;
        let Some(stages) = e.val.as_array() else {
            bail!(
                40170,
                "arguments to $facet must be arrays, {} is type {}",
                e.name,
                e.val.type_name()
            );
        };
        if let Some(v) = stages.values().find(|v| v.as_doc().is_none()) {
            bail!(
                40171,
                "elements of arrays in $facet spec must be non-empty objects, {} argument contained an element of type {}",
                e.name,
                v.type_name()
            );
        }
        all.push((e.name, e.val));
    }
    Ok((all, numbered))
}

impl Facet {
    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<Facet> {
        let (all, numbered) = branches(spec)?;
        let inner = ctx.inside(Inside::Facet, None, ctx.env.clone());
        let parse =
            |(name, stages): (&str, _)| Ok((name.to_string(), Pipeline::parse(stages, &inner)?));
        let parts = all.into_iter().map(parse).collect::<Result<_>>()?;
        Ok(Facet { parts, numbered })
    }
}

impl Facet {
    /// Every part begins with a `$group`: then each document goes into the groups of all parts as
    /// it comes, and none is kept.
    pub fn feeds_groups(&self) -> bool {
        let first = |p: &Pipeline| p.stages.first().map(|s| matches!(s.op, Op::Group(_)));
        self.parts.iter().all(|(_, p)| first(p) == Some(true))
    }

    /// The same, and of groups that can be merged.
    pub fn merges_in_order(&self) -> bool {
        let merges = |p: &Pipeline| matches!(p.stages.first().map(|s| &s.op), Some(Op::Group(g)) if g.merges_in_order());
        self.parts.iter().all(|(_, p)| merges(p))
    }

    /// Of each part the number of the first one that runs the same stages, which may be its own.
    fn firsts(&self) -> Vec<usize> {
        let written = |p: &Pipeline| {
            let mut w = Writer::new_array();
            for stage in p.written() {
                w.push(stage.as_doc().as_val());
            }
            w.finish_array()
        };
        let written: Vec<Value> = self.parts.iter().map(|(_, p)| written(p)).collect();
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let first = written.iter().enumerate().map(|(at, p)| {
            let same = *known.entry(p.as_val().bytes).or_insert(at);
            if gives_the_same(p.as_val()) { same } else { at }
        });
        first.collect()
    }

    /// The groups of the parts that run, in their order.
    fn groups(&self, vars: &Arc<Vars>, firsts: &[usize]) -> Vec<group::Run> {
        let runs = |at: usize| firsts.get(at).is_none_or(|first| *first == at);
        let parts = self.parts.iter().enumerate().filter(|(at, _)| runs(*at));
        let first = parts.filter_map(|(_, (_, p))| p.stages.first());
        let groups = first.filter_map(|s| match &s.op {
            Op::Group(g) => Some(group::Run::fed(g.clone(), vars.clone())),
            _ => None,
        });
        groups.collect()
    }
}

/// The whole input: in memory, or, when it is too much for that, in a file. The pipelines read it
/// one after another.
enum Collected {
    Docs(Vec<DocBuf>),
    Tape(Mutex<Tape>),
}

/// The collected input, read by one of the pipelines.
struct Shared {
    input: Arc<Collected>,
    next: usize,
    doc: Vec<u8>,
}

impl Source for Shared {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        let more = match &*self.input {
            Collected::Docs(docs) => self.next < docs.len(),
            Collected::Tape(tape) => {
                let mut tape = tape.lock().unwrap_or_else(PoisonError::into_inner);
                if self.next == 0 {
                    tape.rewind()?;
                }
                let doc = tape.next()?;
                let more = doc.is_some();
                self.doc = doc.unwrap_or_default();
                more
            }
        };
        self.next += usize::from(more);
        Ok(more)
    }

    fn doc(&self) -> Doc<'_> {
        match &*self.input {
            Collected::Docs(docs) => self
                .next
                .checked_sub(1)
                .and_then(|i| docs.get(i))
                .map_or(Doc::EMPTY, DocBuf::as_doc),
            Collected::Tape(_) => Doc::new(&self.doc).unwrap_or(Doc::EMPTY),
        }
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        to.doc(&mut self.doc, wanted)
    }
}

/// The largest document that a facet makes. Stages behind it may make less of it; what leaves the
/// pipeline is looked at there.
const MAX_OUTPUT_BYTES: usize = 100 << 20;

fn check_output(bytes: usize) -> Result<()> {
    if bytes > MAX_OUTPUT_BYTES {
        bail!(
            4031700,
            "document constructed by $facet is {bytes} bytes, which exceeds the limit of {MAX_OUTPUT_BYTES} bytes"
        );
    }
    Ok(())
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    spec: Arc<Facet>,
    vars: Arc<Vars>,
    collected: Vec<DocBuf>,
    bytes: usize,
    share: Option<Share>,
    /// Where the input goes once it is too much for memory.
    spilled: Option<TapeWriter>,
    shared: Option<Arc<Collected>>,
    /// The groups of the parts that are still to run, where the input goes into them at once.
    fed: Option<std::collections::VecDeque<group::Run>>,
    /// [`Facet::firsts`]; empty where each part is to be seen at work.
    firsts: Vec<usize>,
    /// Those that others repeat, and what they have found.
    repeated: HashSet<usize>,
    found: HashMap<usize, Value>,
    /// The part that is running, and its number.
    running: Option<Box<dyn Source>>,
    part: usize,
    array: Writer,
    results: Writer,
    done: bool,
    out: DocBuf,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: &Arc<Facet>, vars: &Arc<Vars>) -> Run {
        let firsts = match spec.numbered || spec.parts.len() < 2 {
            true => Vec::new(),
            false => spec.firsts(),
        };
        let repeats = firsts.iter().enumerate().filter(|(at, first)| at != *first);
        Run {
            repeated: repeats.map(|(_, first)| *first).collect(),
            firsts,
            input: Some(input),
            spec: spec.clone(),
            vars: vars.clone(),
            collected: Vec::new(),
            bytes: 0,
            share: None,
            spilled: None,
            shared: None,
            fed: None,
            found: HashMap::new(),
            running: None,
            part: 0,
            array: Writer::new_array(),
            results: Writer::new(),
            done: false,
            out: DocBuf::new(),
        }
    }
}

impl Run {
    /// Has all groups take in each document of the input, where [`Facet::feeds_groups`].
    pub fn feed(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let (spec, vars) = (&self.spec, &self.vars);
        let firsts = &self.firsts;
        let groups = (self.fed).get_or_insert_with(|| spec.groups(vars, firsts).into());
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        loop {
            groups.iter_mut().try_for_each(|g| g.make_room(host))?;
            if !input.advance(host)? {
                break;
            }
            let (doc, meta) = (input.doc(), input.meta());
            groups.iter_mut().try_for_each(|g| g.take_in(doc, meta))?;
        }
        self.input = None;
        Ok(())
    }

    /// Takes over the groups of another.
    pub fn absorb(&mut self, next: Run, host: &mut dyn PipelineHost) -> Result<()> {
        let own = self.fed.iter_mut().flatten();
        for (own, next) in own.zip(next.fed.into_iter().flatten()) {
            own.absorb(next, host)?;
        }
        Ok(())
    }

    /// Reads the whole input, into memory or a file, where it was not read yet.
    fn collect(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let limit = host.memory_limit();
        while input.advance(host)? {
            let doc = input.doc();
            if let Some(tape) = &mut self.spilled {
                tape.push(doc.as_bytes())?;
                continue;
            }
            self.bytes += doc.len() + size_of::<DocBuf>();
            self.collected.push(doc.to_buf());
            let share = self.share.get_or_insert_with(|| host.share());
            if self.bytes > limit || !share.fits(self.bytes) {
                if self.bytes > limit && !host.allow_disk_use() {
                    return Err(too_much_memory("$facet", limit).into());
                }
                let file = host.spill()?;
                let docs = std::mem::take(&mut self.collected);
                let first = docs.iter().map(|d| d.as_bytes());
                self.spilled = Some(Tape::write(file, first)?);
                self.share = None;
                self.bytes = 0;
            }
        }
        self.input = None;
        self.shared = Some(Arc::new(match self.spilled.take() {
            Some(tape) => Collected::Tape(Mutex::new(tape.finish()?)),
            None => Collected::Docs(std::mem::take(&mut self.collected)),
        }));
        Ok(())
    }

    /// The next part, over the collected input or over its groups.
    fn begin(
        &mut self,
        pipeline: &Pipeline,
        host: &mut dyn PipelineHost,
    ) -> Option<Box<dyn Source>> {
        if let Some(groups) = &mut self.fed {
            let group = Box::new(groups.pop_front()?);
            let input = pipeline.attach(1, group, &self.vars);
            return Some(Box::new(stream::Checked { input }));
        }
        let shared = Box::new(Shared {
            input: self.shared.clone()?,
            next: 0,
            doc: Vec::new(),
        });
        let Some(w) = host.watch() else {
            return Some(pipeline.attach(0, shared, &self.vars));
        };
        let (running, numbers) = pipeline.attach_watched(0, shared, &self.vars, w);
        if let Some(f) = w.now() {
            f.parts.push(numbers);
        }
        Some(running)
    }
}

impl Run {
    /// Runs the part to its end, and writes its documents.
    fn finish_part(&mut self, name: &str, host: &mut dyn PipelineHost) -> Result<()> {
        while let Some(running) = &mut self.running {
            let bytes = self.bytes + self.results.len() + self.array.len();
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, bytes, host, "$facet")?;
            if !running.advance(host)? {
                break;
            }
            self.array.push(running.doc().as_val());
            check_output(self.results.len() + self.array.len())?;
        }
        let array = std::mem::replace(&mut self.array, Writer::new_array());
        let array = array.finish_array();
        self.results.val(name, array.as_val());
        if self.repeated.contains(&self.part) {
            self.bytes += array.as_val().bytes.len();
            self.found.insert(self.part, array);
        }
        self.running = None;
        self.part += 1;
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        if host.watch().is_some() {
            self.firsts.clear();
            self.repeated.clear();
        }
        // Explain counts each stage of a part by itself.
        let feeds = self.fed.is_some() || host.watch().is_none() && self.spec.feeds_groups();
        if feeds && self.input.is_some() {
            self.feed(host)?;
        }
        self.collect(host)?;
        let spec = self.spec.clone();
        while let Some((name, pipeline)) = spec.parts.get(self.part) {
            let first = self.firsts.get(self.part);
            let found = first.and_then(|first| self.found.get(first));
            if let Some(array) = found.filter(|_| self.running.is_none()) {
                let more = self.results.len() + array.as_val().bytes.len();
                check_output(more)?;
                let share = self.share.get_or_insert_with(|| host.share());
                hold(share, self.bytes + more, host, "$facet")?;
                host.check()?;
                self.results.val(name, array.as_val());
                self.part += 1;
                continue;
            }
            if self.running.is_none() {
                self.running = self.begin(pipeline, host);
            }
            let Some(running) = &mut self.running else {
                return Ok(false);
            };
            if spec.numbered {
                if running.advance(host)? {
                    let mut w = Writer::new();
                    w.int("f", self.part as i64).doc("d", running.doc());
                    self.out = w.finish();
                    return Ok(true);
                }
                self.running = None;
                self.part += 1;
                continue;
            }
            self.finish_part(name, host)?;
        }
        (self.shared, self.share) = (None, None);
        self.done = true;
        if spec.numbered {
            return Ok(false);
        }
        self.out = std::mem::take(&mut self.results).finish();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        for group in self.fed.iter_mut().flatten() {
            group.parts(false, to)?;
        }
        if let Some(running) = &mut self.running {
            running.parts(false, to)?;
        }
        super::show_doc(&mut self.out, wanted, to)
    }
}
