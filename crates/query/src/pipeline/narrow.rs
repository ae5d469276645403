//! Documents without the fields that no stage reads, before a stage that copies or keeps them:
//! `$unwind` makes a document for each element, `$sort`, `$facet` and `$setWindowFields` hold all
//! of them.
//!
//! Invariant: the results are those of whole documents. So a pipeline is left alone that gives
//! documents of its input.

use super::{IdleVisitor, Op, Pipeline, PipelineHost, Source, Stage, unwind_group};
use crate::metadata::Metadata;
use bson::Doc;
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
        let copies = |(at, s): (usize, &Stage)| match &s.op {
            Op::Facet(f) => watched || !f.feeds_groups(),
            Op::Unwind(_) => watched || unwind_group::fused(stages.split_at(at).1).is_none(),
            Op::Lookup(_) | Op::Window(_) | Op::Sort(..) => true,
            _ => false,
        };
        if !stages.iter().enumerate().take(before).any(copies) {
            return source;
        }
        match self.needed(from) {
            Some(paths) => Box::new(Narrow {
                input: source,
                names: Names::of(&paths),
                out: Vec::new(),
            }),
            None => source,
        }
    }
}

/// Names of fields of which documents are made anew.
pub(super) struct Names(Box<[Box<str>]>);

impl Names {
    /// `paths`: dotted; all of their first fields is kept.
    pub fn of(paths: &BTreeSet<String>) -> Names {
        let first = |p: &String| p.split('.').next().unwrap_or("").into();
        let names: BTreeSet<Box<str>> = paths.iter().map(first).collect();
        Names(names.into_iter().collect())
    }

    /// Appends a document of these fields of `doc`.
    pub fn copy(&self, doc: Doc<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let (bytes, end) = (doc.as_bytes(), doc.len() - 1);
        let (mut fields, mut at, mut found) = (doc.iter(), 4, 0u64);
        while found.count_ones() as usize != self.0.len()
            && let Some((name, _)) = fields.next_raw()
        {
            let before = std::mem::replace(&mut at, end - fields.rest().len());
            let place = self.0.iter().position(|n| bson::same_name(name, n));
            // Of fields with one name the first is the one that is read.
            let bit = place.map_or(0, |p| 1u64.checked_shl(p as u32).unwrap_or(0));
            if place.is_some() && found & bit == 0 {
                out.extend_from_slice(bytes.get(before..at).unwrap_or(&[]));
                found |= bit;
            }
        }
        out.push(0);
        let len = i32::try_from(out.len() - start).unwrap_or(i32::MAX);
        if let Some(place) = out.get_mut(start..start + 4) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// The fields that the stages behind read, of documents that they would copy whole.
struct Narrow {
    input: Box<dyn Source>,
    names: Names,
    out: Vec<u8>,
}

impl Source for Narrow {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.out.clear();
        self.names.copy(self.input.doc(), &mut self.out);
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
