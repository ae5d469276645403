//! A pipeline whose beginning several threads run, each over a part of the documents: up to the first stage that needs all of
//! them before it gives any.
//!
//! ```text
//! thread 1: first part  → $match $unwind … → $group ┐
//! thread 2: second part → $match $unwind … → $group ┴ absorbed in this order → $group → the stages behind
//! ```
//!
//! Invariant: the results, and their order, are those of one thread; but for the last bits
//! of sums of doubles, which are added in another order.

use super::unwind_group::{self, Fused};
use super::{
    DocumentSource, IdleVisitor, Op, Pipeline, PipelineHost, Source, Stage, facet, group, sort,
    stream,
};
use crate::expr::Vars;
use crate::metadata::Metadata;
use bson::Doc;
use errors::{Error, Result};
use std::sync::Arc;

/// Where a pipeline is divided.
pub struct Parted {
    pipeline: Pipeline,
    /// The stage behind those that the rows stand for already.
    behind: usize,
    /// The rows are sorted too. Each thread sorts its own instead.
    pub sorts: bool,
    /// The first stage that each thread runs.
    from: usize,
    /// The stage that gathers.
    at: usize,
    /// How many stages gather as one.
    stages: usize,
}

/// A stage that gathers, over a part of the documents.
pub struct Part(Gathering);

enum Gathering {
    Count(stream::Count),
    Group(Box<group::Run>),
    Unwound(Box<unwind_group::Run>),
    First(Box<sort::Run>),
    Facets(Box<facet::Run>),
}

impl Pipeline {
    /// How threads may share the stages from number `from` on; `None` where the first stage that gathers does not do so from parts.
    pub fn parted(&self, from: usize) -> Option<Parted> {
        let rest = self.stages.get(from..)?;
        let before = rest.iter().take_while(|s| is_of_one_document(s)).count();
        let gathers = match &rest.get(before)?.op {
            Op::Count(_) => true,
            Op::Group(g) => g.merges_in_order(),
            Op::Facet(f) => f.merges_in_order(),
            Op::Sort(by, limit) => limit.is_some() && !by.has_meta(),
            _ => false,
        };
        if !gathers {
            return None;
        }
        let fuses = |at: usize| rest.get(at..).and_then(unwind_group::fused).is_some();
        let with_unwind = before > 0 && fuses(before - 1);
        Some(Parted {
            pipeline: self.clone(),
            behind: from,
            sorts: false,
            from,
            at: from + before - usize::from(with_unwind),
            stages: 1 + usize::from(with_unwind),
        })
    }

    /// The same where the rows are those of the stages before number `behind`, of which one sorts them and keeps the first.
    pub fn parted_sort(&self, behind: usize) -> Option<Parted> {
        let sorts = |s: &Stage| matches!(&s.op, Op::Sort(by, Some(_)) if !by.has_meta());
        let at = self.stages.get(..behind)?.iter().position(sorts)?;
        Some(Parted {
            pipeline: self.clone(),
            behind,
            sorts: true,
            from: at,
            at,
            stages: 1,
        })
    }
}

/// Whether a stage makes what it gives of one document, whatever the others are.
fn is_of_one_document(stage: &Stage) -> bool {
    matches!(
        stage.op,
        Op::Match(_)
            | Op::Transform(_)
            | Op::Unwind(_)
            | Op::Lookup(_)
            | Op::Redact(_)
            | Op::Inhibit
    )
}

impl Parted {
    /// The stages over `rows`, whose beginning the host may have several threads run.
    pub fn attach(self, rows: Box<dyn DocumentSource>, vars: &Arc<Vars>) -> Box<dyn Source> {
        Box::new(Divided {
            state: State::Begun(Arc::new(self), rows),
            vars: vars.clone(),
        })
    }

    /// Whether what a thread runs reads other collections.
    pub fn joins(&self) -> bool {
        let stages = self.pipeline.stages.get(self.from..self.at);
        let mut stages = stages.unwrap_or_default().iter();
        stages.any(|s| matches!(s.op, Op::Lookup(_)))
    }

    /// What one thread runs over `rows`.
    pub fn part(&self, rows: Box<dyn Source>, vars: &Arc<Vars>) -> Result<Part> {
        // Before a sort that keeps the first alone a document costs more to narrow than to read.
        let input = match self.from < self.at {
            true => self.pipeline.attach_before(self.from, self.at, rows, vars),
            false => rows,
        };
        self.gathering(input, vars)
    }

    fn gathering(&self, input: Box<dyn Source>, vars: &Arc<Vars>) -> Result<Part> {
        let stages = self.pipeline.stages.get(self.at..).unwrap_or_default();
        let fused: Option<Fused> = match self.stages {
            1 => None,
            _ => unwind_group::fused(stages),
        };
        if let Some(fused) = fused {
            let run = unwind_group::Run::new(input, fused, vars.clone());
            return Ok(Part(Gathering::Unwound(Box::new(run))));
        }
        let gathering = match stages.first().map(|s| &s.op) {
            Some(Op::Count(name)) => Gathering::Count(stream::Count::new(input, name.clone())),
            Some(Op::Group(g)) => {
                Gathering::Group(Box::new(group::Run::new(input, g.clone(), vars.clone())))
            }
            Some(Op::Sort(by, limit)) => {
                let order = sort::Order::By(by.clone());
                Gathering::First(Box::new(sort::Run::new(input, order, *limit)))
            }
            Some(Op::Facet(f)) => Gathering::Facets(Box::new(facet::Run::new(input, f, vars))),
            _ => return Err(Error::internal("a stage that gathers is missing").into()),
        };
        Ok(Part(gathering))
    }
}

/// A pipeline, until it is known who runs its beginning.
struct Divided {
    state: State,
    vars: Arc<Vars>,
}

enum State {
    Begun(Arc<Parted>, Box<dyn DocumentSource>),
    Running(Box<dyn Source>),
}

impl Source for Divided {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if let State::Begun(parted, rows) = &mut self.state {
            let gathered = host.gather_in_parts(parted, &mut **rows, &self.vars)?;
            let begun = State::Running(Box::new(stream::Empty));
            let State::Begun(parted, rows) = std::mem::replace(&mut self.state, begun) else {
                return Err(Error::internal("a division has begun twice").into());
            };
            let (from, input) = match gathered {
                Some(whole) => (parted.at + parted.stages, whole.into_source()),
                None => (parted.behind, super::over_rows(rows)),
            };
            self.state = State::Running(parted.pipeline.attach(from, input, &self.vars));
        }
        match &mut self.state {
            State::Running(source) => source.advance(host),
            State::Begun(..) => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        match &self.state {
            State::Running(source) => source.doc(),
            State::Begun(..) => Doc::EMPTY,
        }
    }

    fn meta(&self) -> &Metadata {
        match &self.state {
            State::Running(source) => source.meta(),
            State::Begun(..) => Metadata::NONE,
        }
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        match &mut self.state {
            State::Running(source) => source.parts(wanted, to),
            State::Begun(_, rows) => to.rows(&mut **rows, false),
        }
    }

    fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        match &mut self.state {
            State::Running(source) => source.leave_out(low, high),
            State::Begun(_, rows) => rows.leave_out(low, high),
        }
    }
}

impl Part {
    /// Takes in all documents of the part.
    pub fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        match &mut self.0 {
            Gathering::Count(c) => c.gather(host),
            Gathering::Group(g) => g.gather(host),
            Gathering::Unwound(u) => u.gather(host),
            Gathering::First(s) => s.gather(host),
            Gathering::Facets(f) => f.feed(host),
        }
    }

    /// Takes over what the part behind all those before has gathered. It must be one of the same division.
    pub fn absorb(&mut self, next: Part, host: &mut dyn PipelineHost) -> Result<()> {
        match (&mut self.0, next.0) {
            (Gathering::Count(c), Gathering::Count(next)) => c.absorb(&next),
            (Gathering::Group(g), Gathering::Group(next)) => g.absorb(*next, host)?,
            (Gathering::Unwound(u), Gathering::Unwound(next)) => u.absorb(*next, host)?,
            (Gathering::First(s), Gathering::First(next)) => s.absorb(*next, host)?,
            (Gathering::Facets(f), Gathering::Facets(next)) => f.absorb(*next, host)?,
            _ => return Err(Error::internal("parts of different stages").into()),
        }
        Ok(())
    }

    pub fn into_source(self) -> Box<dyn Source> {
        match self.0 {
            Gathering::Count(c) => Box::new(c),
            Gathering::Group(g) => g,
            Gathering::Unwound(u) => u,
            Gathering::First(s) => s,
            Gathering::Facets(f) => f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::over_docs;
    use super::super::tests::{Memory, parse};
    use super::*;
    use bson::DocBuf;

    fn documents() -> Vec<DocBuf> {
        let of = |i: i32| {
            let s = ["a", "b", "c"][i as usize % 3];
            let (k, t, u) = (i * 7 % 11, i % 5, i % 3);
            let text = format!(r#"{{"_id":{i},"k":{k},"t":[{t},{u}],"s":"{s}"}}"#);
            bson::json::parse(&text).unwrap()
        };
        (0..200).map(of).collect()
    }

    fn all(mut source: Box<dyn Source>, host: &mut Memory) -> Vec<DocBuf> {
        let mut out = Vec::new();
        while source.advance(host).unwrap() {
            out.push(source.doc().to_buf());
        }
        out
    }

    /// What comes of the parts that end at these places.
    fn in_parts(p: &Pipeline, ends: &[usize], host: &mut Memory) -> Vec<DocBuf> {
        let vars = Arc::new(Vars::new(0));
        let parted = p.parted(0).expect("divisible");
        let docs = documents();
        let mut whole: Option<Part> = None;
        let mut from = 0;
        for end in ends.iter().copied().chain([docs.len()]) {
            let rows = over_docs(docs[from..end].to_vec());
            let mut part = parted.part(rows, &vars).unwrap();
            part.gather(host).unwrap();
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.absorb(part, host).unwrap(),
            }
            from = end;
        }
        let whole = whole.unwrap().into_source();
        all(p.attach(parted.at + parted.stages, whole, &vars), host)
    }

    #[test]
    fn parts_give_what_the_whole_gives() {
        let accumulators = r#"{"_id":"$k","n":{"$sum":1},"a":{"$avg":"$_id"},"lo":{"$min":"$s"},"hi":{"$max":"$_id"},
            "f":{"$first":"$_id"},"l":{"$last":"$_id"},"p":{"$push":"$_id"},"set":{"$addToSet":"$s"},"d":{"$stdDevPop":"$_id"},
            "top":{"$topN":{"n":3,"sortBy":{"s":1},"output":"$_id"}},"fn":{"$firstN":{"n":2,"input":"$_id"}},
            "m":{"$mergeObjects":{"x":"$_id"}}}"#;
        let mut spilled = 0;
        for stages in [
            r#"[{"$match":{"k":{"$gt":3}}},{"$count":"n"}]"#.to_string(),
            r#"[{"$match":{"k":99}},{"$count":"n"}]"#.to_string(),
            format!(r#"[{{"$group":{accumulators}}}]"#),
            r#"[{"$group":{"_id":null,"n":{"$count":{}}}},{"$project":{"n":{"$add":["$n",1]}}}]"#.to_string(),
            r#"[{"$unwind":"$t"},{"$group":{"_id":"$t","n":{"$sum":1},"p":{"$push":"$_id"}}},{"$sort":{"n":-1,"_id":1}}]"#.to_string(),
            r#"[{"$unwind":"$t"},{"$addFields":{"x":{"$add":["$t","$k"]}}},{"$group":{"_id":"$x","p":{"$push":"$_id"}}}]"#.to_string(),
            r#"[{"$addFields":{"x":{"$mod":["$_id",7]}}},{"$sort":{"x":1}},{"$limit":30}]"#.to_string(),
            r#"[{"$facet":{"a":[{"$group":{"_id":"$k","p":{"$push":"$_id"}}},{"$sort":{"_id":1}}],"b":[{"$group":{"_id":null,"n":{"$sum":"$k"}}}]}}]"#.to_string(),
        ] {
            let pipeline = parse(&stages).unwrap().optimized();
            for limit in [None, Some(4000)] {
                let host = || Memory {
                    limit,
                    disk: true,
                    ..Memory::default()
                };
                let vars = Arc::new(Vars::new(0));
                let want = all(pipeline.attach(0, over_docs(documents()), &vars), &mut host());
                for ends in [&[][..], &[100], &[0, 1], &[10, 60, 60, 199], &[200]] {
                    let mut host = host();
                    let (mut got, mut want) = (in_parts(&pipeline, ends, &mut host), want.clone());
                    spilled += host.spilled;
                    if limit.is_some() {
                        // Groups are in the order of their first documents only where none are in files.
                        want.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
                        got.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
                    }
                    assert_eq!(got, want, "{stages} {ends:?}");
                }
            }
        }
        assert!(spilled > 0, "some are merged from files");
    }

    #[test]
    fn stages_that_look_at_several_documents_are_not_divided() {
        for stages in [
            r#"[{"$limit":5},{"$count":"n"}]"#,
            r#"[{"$skip":5},{"$group":{"_id":null}}]"#,
            r#"[{"$sort":{"k":1}}]"#,
            r#"[{"$match":{"k":1}}]"#,
            r#"[{"$group":{"_id":null,"m":{"$median":{"input":"$k","method":"approximate"}}}}]"#,
            r#"[{"$facet":{"a":[{"$count":"n"}]}}]"#,
        ] {
            assert!(parse(stages).unwrap().parted(0).is_none(), "{stages}");
        }
        let sorted = parse(r#"[{"$match":{"k":1}},{"$sort":{"k":1}},{"$limit":5},{"$skip":2}]"#);
        let sorted = sorted.unwrap().optimized();
        assert!(
            sorted
                .parted_sort(sorted.stages().len())
                .is_some_and(|p| p.sorts && p.at == 1)
        );
        assert!(sorted.parted_sort(1).is_none());
    }
}
