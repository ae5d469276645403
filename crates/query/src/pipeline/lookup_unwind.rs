//! `$lookup` with the `$unwind` of its array, as one stage: the matches are given one by one, and there
//! is no array. A `$match` on the joined documents becomes the last stage of the pipeline that is run
//! for each document.
//!
//! Invariant: the results are those of the stages one after another, but that no array has to fit
//! into memory.

use super::lookup::Lookup;
use super::lookup_table::{Joiner, Matches};
use super::unwind::{self, Unwind};
use super::{IdleVisitor, Op, PipelineHost, Share, Source, Stage};
use crate::expr::Vars;
use crate::filter::{Filter, Node};
use crate::metadata::Metadata;
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::Result;
use std::sync::Arc;

/// Joins to each `$lookup` what behind it works on its array only.
pub(super) fn coalesce(stages: Vec<Stage>) -> Vec<Stage> {
    let mut out: Vec<Stage> = Vec::with_capacity(stages.len());
    for stage in stages {
        let joined = out.last().and_then(|before| join(before, &stage.op));
        match (out.last_mut(), joined) {
            (Some(last), Some(joined)) => *last = joined,
            _ => out.push(stage),
        }
    }
    out
}

fn join(stage: &Stage, next: &Op) -> Option<Stage> {
    let Op::Lookup(lookup) = &stage.op else {
        return None;
    };
    let mut lookup = Lookup::clone(lookup);
    let mut matched = None;
    match (&lookup.unwinding, next) {
        (None, Op::Unwind(u)) if u.path == lookup.as_ => lookup.unwinding = Some(u.clone()),
        // Documents that are kept without a match, and positions among all matches, are seen before the
        // filter.
        (Some(u), Op::Match(f)) if u.index.is_none() && !u.preserve => {
            let filter = Filter::from_node(below(f.root(), &lookup.as_)?);
            let spec = filter.to_doc();
            let spec = spec.as_doc().as_val();
            let stage = Stage::new("$match", spec, Op::Match(Arc::new(filter)));
            matched = Some(stage.spec.clone());
            lookup.pipeline.stages.push(stage);
            lookup.pipeline.optimized = false;
        }
        _ => return None,
    }
    let spec = stage.spec.as_val().as_doc().unwrap_or(Doc::EMPTY);
    let shown = show(spec, lookup.unwinding.as_deref()?, matched.as_deref());
    let shown = shown.as_doc().as_val();
    Some(Stage::new(stage.name, shown, Op::Lookup(Arc::new(lookup))))
}

/// The filter as it is for the joined document alone; none when it looks at anything else.
fn below(node: &Node, path: &FieldPath) -> Option<Node> {
    let all = |c: &[Node]| c.iter().map(|n| below(n, path)).collect::<Option<Vec<_>>>();
    Some(match node {
        Node::And(c) => Node::And(all(c)?),
        Node::Or(c) => Node::Or(all(c)?),
        Node::Nor(c) => Node::Nor(all(c)?),
        Node::Not(n) => Node::Not(Box::new(below(n, path)?)),
        Node::Pred { path: p, test } if p.len() > path.len() && p.starts_with(path) => Node::Pred {
            path: p.tail(path.len()),
            test: test.clone(),
        },
        _ => return None,
    })
}

/// The specification as MongoDB's explain shows it.
fn show(spec: Doc<'_>, unwind: &Unwind, matched: Option<&Value>) -> DocBuf {
    let mut w = Writer::new();
    for e in spec {
        if !matches!(e.name, "let" | "pipeline" | "unwinding") {
            w.val(e.name, e.val);
        }
    }
    let stages = spec.get("pipeline").and_then(|v| v.as_array());
    if stages.is_some() || matched.is_some() {
        let lets = spec.get("let").and_then(|v| v.as_doc());
        w.doc("let", lets.unwrap_or(Doc::EMPTY));
        w.open_array("pipeline");
        for stage in stages.unwrap_or(Doc::EMPTY).values() {
            w.push(stage);
        }
        if let Some(filter) = matched {
            w.open_doc("").val("$match", filter.as_val()).close();
        }
        w.close();
    }
    w.open_doc("unwinding")
        .bool("preserveNullAndEmptyArrays", unwind.preserve);
    if let Some(index) = &unwind.index {
        w.str("includeArrayIndex", index.as_str());
    }
    w.close();
    w.finish()
}

/// The stages that a `$lookup` stands for, as a client may write them.
pub(super) fn write_apart(stage: &Stage, lookup: &Lookup) -> Vec<DocBuf> {
    let Some(unwind) = &lookup.unwinding else {
        return vec![stage.written()];
    };
    let spec = stage.spec.as_val().as_doc().unwrap_or(Doc::EMPTY);
    let mut join = Writer::new();
    join.open_doc(stage.name);
    for e in spec.iter().filter(|e| e.name != "unwinding") {
        join.val(e.name, e.val);
    }
    join.close();
    let mut w = Writer::new();
    w.open_doc("$unwind")
        .str("path", &format!("${}", lookup.as_))
        .bool("preserveNullAndEmptyArrays", unwind.preserve);
    if let Some(index) = &unwind.index {
        w.str("includeArrayIndex", index.as_str());
    }
    w.close();
    vec![join.finish(), w.finish()]
}

enum Step {
    /// All were given: on to the next document of the input.
    Over,
    /// That document was reached.
    Wanted,
    Running(Matches),
    /// They are the same as for the document before.
    Known,
}

pub(super) struct Run {
    input: Box<dyn Source>,
    joiner: Joiner,
    unwind: Arc<Unwind>,
    vars: Arc<Vars>,
    step: Step,
    /// How many were given for this document.
    given: usize,
    /// The matches so far, or all of them once they are `Known`, where they are the same for every
    /// document of the input and not too much.
    known: Option<Vec<DocBuf>>,
    known_bytes: usize,
    share: Option<Share>,
    complete: bool,
    out: Vec<u8>,
}

impl Run {
    pub fn new(
        input: Box<dyn Source>,
        joiner: Joiner,
        spec: &Lookup,
        unwind: Arc<Unwind>,
        vars: Arc<Vars>,
    ) -> Run {
        Run {
            input,
            known: spec.is_independent().then(Vec::new),
            joiner,
            unwind,
            vars,
            step: Step::Over,
            given: 0,
            known_bytes: 0,
            share: None,
            complete: false,
            out: Vec::new(),
        }
    }

    fn remember(&mut self, host: &dyn PipelineHost) {
        let (Some(known), Step::Running(source)) = (&mut self.known, &self.step) else {
            return;
        };
        self.known_bytes += source.doc().len() + size_of::<DocBuf>();
        let share = self.share.get_or_insert_with(|| host.share());
        if self.known_bytes > host.memory_limit() || !share.fits(self.known_bytes) {
            (self.known, self.share) = (None, None);
        } else {
            known.push(source.doc().to_buf());
        }
    }
}

fn emit(out: &mut Vec<u8>, input: Doc<'_>, unwind: &Unwind, joined: Option<(Val<'_>, usize)>) {
    let index = joined.map(|(_, n)| n as i64);
    unwind::replace(out, input, unwind, joined.map(|(v, _)| v), index);
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            match &mut self.step {
                Step::Over => {
                    if !self.input.advance(host)? {
                        return Ok(false);
                    }
                    self.given = 0;
                    self.step = match self.complete {
                        true => Step::Known,
                        false => Step::Wanted,
                    };
                    continue;
                }
                Step::Wanted => {
                    let source = self.joiner.open(self.input.doc(), host, &self.vars)?;
                    self.step = Step::Running(source);
                    continue;
                }
                Step::Running(source) => {
                    if source.advance(host)? {
                        let joined = Some((source.doc().as_val(), self.given));
                        emit(&mut self.out, self.input.doc(), &self.unwind, joined);
                        self.given += 1;
                        self.remember(host);
                        return Ok(true);
                    }
                    self.complete = self.known.is_some();
                }
                Step::Known => {
                    host.check()?;
                    if let Some(doc) = self.known.as_ref().and_then(|k| k.get(self.given)) {
                        let joined = Some((doc.as_doc().as_val(), self.given));
                        emit(&mut self.out, self.input.doc(), &self.unwind, joined);
                        self.given += 1;
                        return Ok(true);
                    }
                }
            }
            self.step = Step::Over;
            if self.given == 0 && self.unwind.preserve {
                emit(&mut self.out, self.input.doc(), &self.unwind, None);
                return Ok(true);
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(!matches!(self.step, Step::Over), to)?;
        if let Step::Running(source) = &mut self.step {
            source.parts(false, to)?;
        }
        self.joiner.parts(to)?;
        to.doc(&mut self.out, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Memory, docs, parse};
    use super::super::{Pipeline, over_docs};
    use super::*;

    fn names(p: &Pipeline) -> Vec<&str> {
        p.stages.iter().map(|s| s.name).collect()
    }

    const JOIN: &str = r#"{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j.b"}}"#;

    #[test]
    fn takes_in_what_works_on_its_array() {
        for (behind, left) in [
            (r#"{"$unwind":"$j.b"}"#, 1),
            (r#"{"$unwind":"$j"}"#, 2),
            (r#"{"$unwind":"$j.b"},{"$unwind":"$j.b"}"#, 2),
            (r#"{"$unwind":"$j.b"},{"$match":{"j.b.x":1}}"#, 1),
            (
                r#"{"$unwind":"$j.b"},{"$match":{"j.b.x":1}},{"$match":{"$or":[{"j.b.y":{"$ne":2}},{"j.b.z":null}]}}"#,
                1,
            ),
            (r#"{"$unwind":"$j.b"},{"$match":{"j.b":1}}"#, 2),
            (r#"{"$unwind":"$j.b"},{"$match":{"j.bc":1}}"#, 2),
            (r#"{"$unwind":"$j.b"},{"$match":{"j.b.x":1,"k":2}}"#, 2),
            (r#"{"$unwind":"$j.b"},{"$match":{"$expr":"$j.b.x"}}"#, 2),
            (
                r#"{"$unwind":{"path":"$j.b","includeArrayIndex":"i"}},{"$match":{"j.b.x":1}}"#,
                2,
            ),
            (
                r#"{"$unwind":{"path":"$j.b","preserveNullAndEmptyArrays":true}},{"$match":{"j.b.x":1}}"#,
                2,
            ),
            (r#"{"$match":{"j.b.x":1}},{"$unwind":"$j.b"}"#, 3),
        ] {
            let p = parse(&format!("[{JOIN},{behind}]")).unwrap();
            assert_eq!(names(&p).len(), left, "{behind}");
        }
        // A view's last stage and the first of the query.
        let both = parse(&format!("[{JOIN}]")).unwrap();
        let both = both.then(&parse(r#"[{"$unwind":"$j.b"}]"#).unwrap());
        assert_eq!(names(&both), ["$lookup"]);
    }

    #[test]
    fn is_shown() {
        let p = parse(&format!(
            r#"[{JOIN},{{"$unwind":"$j.b"}},{{"$match":{{"j.b.x":{{"$gt":1}}}}}}]"#
        ));
        let shown = p.unwrap().stages[0].explain(None);
        let want = bson::json::parse(
            r#"{"$lookup":{"from":"b","localField":"k","foreignField":"k","as":"j.b","let":{},
                "pipeline":[{"$match":{"x":{"$gt":1}}}],"unwinding":{"preserveNullAndEmptyArrays":false}}}"#,
        );
        assert_eq!(shown, want.unwrap());
    }

    /// The same results as of the stages one after another, which a stage between them that changes
    /// nothing keeps apart.
    #[test]
    fn gives_what_the_stages_alone_give() {
        let input = r#"[{"_id":1,"k":1},{"_id":2,"k":[1,2],"j":{"a":0,"b":9,"c":1}},{"_id":3,"k":5,"j":4},{"_id":4,"k":6,"j":{"b":1}}]"#;
        let lookups = [
            JOIN,
            r#"{"$lookup":{"from":"b","pipeline":[{"$match":{"x":{"$lt":3}}}],"as":"j.b"}}"#,
            r#"{"$lookup":{"from":"none","pipeline":[],"as":"j.b"}}"#,
            r#"{"$lookup":{"from":"b","let":{"k":"$k"},"pipeline":[{"$match":{"$expr":{"$eq":["$k","$$k"]}}}],"as":"j.b"}}"#,
            r#"{"$lookup":{"pipeline":[{"$documents":[{"x":1,"k":5},{"x":2,"k":1}]}],"localField":"k","foreignField":"k","as":"j.b"}}"#,
        ];
        let unwinds = [
            r#"{"$unwind":"$j.b"}"#,
            r#"{"$unwind":{"path":"$j.b","includeArrayIndex":"i"}}"#,
            r#"{"$unwind":{"path":"$j.b","includeArrayIndex":"j.n","preserveNullAndEmptyArrays":true}}"#,
        ];
        let filters = [
            "",
            r#",{"$match":{"j.b.x":{"$ne":2}}}"#,
            r#",{"$match":{"$nor":[{"j.b.x":1},{"j.b.y":{"$exists":true}}]}}"#,
        ];
        const APART: &str = r#"{"$addFields":{"zz":1}},{"$unset":"zz"}"#;
        let run = |stages: &str, offload_every| {
            let mut host = Memory {
                offload_every,
                ..Memory::default()
            };
            let foreign = r#"[{"_id":1,"k":1,"x":1},{"_id":2,"k":2,"x":2,"y":0},{"_id":3,"k":1,"x":3},{"_id":4,"k":5,"x":4}]"#;
            host.collections.insert("b".into(), docs(foreign));
            let p = parse(stages).unwrap();
            let mut source = p.attach(0, over_docs(docs(input)), &Arc::new(Vars::new(0)));
            let mut out = Vec::new();
            loop {
                match source.advance(&mut host) {
                    Ok(true) => out.push(source.doc().to_buf()),
                    Ok(false) => return out,
                    Err(e) if e.is_suspension() => {}
                    Err(e) => panic!("{stages}: {e:?}"),
                }
            }
        };
        for lookup in lookups {
            for unwind in unwinds {
                for filter in filters {
                    let apart = format!("[{lookup},{APART},{unwind},{APART}{filter}]");
                    let want = run(&apart, None);
                    let joined = format!("[{lookup},{unwind}{filter}]");
                    assert!(names(&parse(&joined).unwrap()).len() < 3);
                    for offload in [None, Some(2), Some(3)] {
                        assert_eq!(run(&joined, offload), want, "{joined}");
                    }
                }
            }
        }
    }

    #[test]
    fn holds_no_array() {
        let mut host = Memory {
            limit: Some(1000),
            ..Memory::default()
        };
        let foreign: Vec<String> = (0..100)
            .map(|i| format!(r#"{{"_id":{i},"k":1}}"#))
            .collect();
        let foreign = docs(&format!("[{}]", foreign.join(",")));
        host.collections.insert("b".into(), foreign);
        let independent = r#"{"$lookup":{"from":"b","pipeline":[],"as":"j.b"}}"#;
        for (stages, want) in [
            (format!("[{JOIN}]"), Err(4568)),
            (format!(r#"[{JOIN},{{"$unwind":"$j.b"}}]"#), Ok(200)),
            (format!(r#"[{independent},{{"$unwind":"$j.b"}}]"#), Ok(200)),
        ] {
            let input = over_docs(docs(r#"[{"k":1},{"k":1}]"#));
            let p = parse(&stages).unwrap();
            let mut source = p.attach(0, input, &Arc::new(Vars::new(0)));
            let mut found = Ok(0);
            while let Ok(n) = found {
                match source.advance(&mut host) {
                    Ok(true) => found = Ok(n + 1),
                    Ok(false) => break,
                    Err(e) => found = Err(e.failure().unwrap().code.0),
                }
            }
            assert_eq!(found, want, "{stages}");
        }
    }
}
