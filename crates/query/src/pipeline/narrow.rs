//! Documents without the fields that no stage reads, before a stage that copies or keeps them:
//! `$unwind` makes a document for each element, `$sort`, `$facet` and `$setWindowFields` hold all
//! of them.
//!
//! Invariant: the results are those of whole documents. So a pipeline is left alone that gives
//! documents of its input.

use super::{IdleVisitor, Op, Pipeline, PipelineHost, Source, Stage};
use crate::metadata::Metadata;
use bson::{Doc, Writer};
use errors::Result;
use std::collections::BTreeSet;

impl Pipeline {
    /// `watched`: by explain. `source` without what no stage from `from` on reads, where one of them copies the documents
    /// that it takes in.
    pub(super) fn narrowed(
        &self,
        from: usize,
        source: Box<dyn Source>,
        watched: bool,
    ) -> Box<dyn Source> {
        let stages = self.stages.get(from..).unwrap_or_default();
        let ends = |s: &Stage| matches!(s.op, Op::Group(_) | Op::Transform(_) | Op::Count(_));
        let before = stages.iter().position(ends).unwrap_or(stages.len());
        let copies = |s: &Stage| match &s.op {
            Op::Facet(f) => watched || !f.feeds_groups(),
            Op::Unwind(_) | Op::Lookup(_) | Op::Window(_) | Op::Sort(..) => true,
            _ => false,
        };
        if !stages.iter().take(before).any(copies) {
            return source;
        }
        match self.needed(from) {
            Some(paths) => Box::new(Narrow::new(source, &paths)),
            None => source,
        }
    }
}

/// The fields that the stages behind read, of documents that they would copy whole.
struct Narrow {
    input: Box<dyn Source>,
    names: Box<[Box<str>]>,
    out: Vec<u8>,
}

impl Narrow {
    /// `paths`: dotted; all of their first fields is kept.
    fn new(input: Box<dyn Source>, paths: &BTreeSet<String>) -> Narrow {
        let first = |p: &String| p.split('.').next().unwrap_or("").into();
        let names: BTreeSet<Box<str>> = paths.iter().map(first).collect();
        Narrow {
            input,
            names: names.into_iter().collect(),
            out: Vec::new(),
        }
    }
}

impl Source for Narrow {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.out.clear();
        let mut w = Writer::on(std::mem::take(&mut self.out));
        let mut found: u64 = 0;
        for e in self.input.doc() {
            if found.count_ones() as usize == self.names.len() {
                break;
            }
            let Some(at) = self.names.iter().position(|n| **n == *e.name) else {
                continue;
            };
            // Of fields with one name the first is the one that is read.
            let bit = 1u64.checked_shl(at as u32).unwrap_or(0);
            if found & bit == 0 {
                w.val(e.name, e.val);
                found |= bit;
            }
        }
        self.out = w.finish_into();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::over_docs;
    use super::super::tests::{Memory, docs, parse};
    use crate::expr::Vars;
    use bson::DocBuf;
    use std::sync::Arc;

    const LONG: usize = 1000;

    fn input() -> Vec<DocBuf> {
        let text = "x".repeat(LONG);
        let doc = |i: usize| {
            format!(
                r#"{{"_id":{i},"text":"{text}","a":{},"b":[{},{{"c":{i}}}],"d":{{"e":{},"f":[1,{i}]}}}}"#,
                i % 7,
                i % 3,
                i % 5
            )
        };
        let all: Vec<String> = (0..100).map(doc).collect();
        docs(&format!("[{}]", all.join(",")))
    }

    fn run(stages: &str, host: &mut Memory) -> Vec<DocBuf> {
        host.collections.insert("b".into(), input());
        let pipeline = parse(stages).unwrap();
        let mut source = pipeline.attach(0, over_docs(input()), &Arc::new(Vars::new(0)));
        let mut out = Vec::new();
        while source
            .advance(host)
            .unwrap_or_else(|e| panic!("{stages}: {e:?}"))
        {
            out.push(source.doc().to_buf());
        }
        out
    }

    const PIPELINES: [&str; 9] = [
        r#"{"$unwind":"$b"},{"$group":{"_id":"$b","n":{"$sum":"$a"},"ids":{"$push":"$_id"}}}"#,
        r#"{"$unwind":{"path":"$d.f","includeArrayIndex":"d.g"}},{"$project":{"d":1,"a":1}}"#,
        r#"{"$sort":{"d.e":-1,"_id":1}},{"$project":{"b.c":1}}"#,
        r#"{"$sort":{"d.e":-1,"_id":1}},{"$group":{"_id":"$a","first":{"$first":"$d"}}}"#,
        r#"{"$facet":{"x":[{"$group":{"_id":"$d.e","s":{"$sum":"$a"}}}],"y":[{"$unwind":"$b"},{"$count":"n"}]}}"#,
        r#"{"$facet":{"x":[{"$limit":2}],"y":[{"$count":"n"}]}}"#,
        r#"{"$setWindowFields":{"partitionBy":"$a","sortBy":{"_id":1},"output":{"d.s":{"$sum":"$d.e","window":{"documents":["unbounded","current"]}},"r":{"$rank":{}}}}},{"$group":{"_id":"$r","m":{"$max":"$d.s"}}}"#,
        r#"{"$lookup":{"from":"b","localField":"a","foreignField":"d.e","as":"d"}},{"$unwind":"$d"},{"$group":{"_id":"$d.a","n":{"$sum":1}}}"#,
        r#"{"$unwind":"$b"},{"$unwind":"$d.f"},{"$match":{"b.c":{"$gt":3}}},{"$count":"n"}"#,
    ];

    #[test]
    fn nothing_that_is_read_is_left_out() {
        // A stage that reads whole documents keeps them whole.
        let whole = r#"{"$match":{"$expr":{"$ne":["$$ROOT",1]}}}"#;
        for stages in PIPELINES {
            let narrow = run(&format!("[{stages}]"), &mut Memory::default());
            let expected = run(&format!("[{whole},{stages}]"), &mut Memory::default());
            assert!(!expected.is_empty(), "{stages}");
            assert_eq!(narrow, expected, "{stages}");
        }
    }

    #[test]
    fn what_is_not_read_is_not_held() {
        for stages in [PIPELINES[2], PIPELINES[3], PIPELINES[4], PIPELINES[6]] {
            let mut host = Memory {
                limit: Some(60 * LONG),
                disk: true,
                ..Memory::default()
            };
            run(&format!("[{stages}]"), &mut host);
            assert_eq!(host.spilled, 0, "{stages}");
        }
    }
}
