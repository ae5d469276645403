//! `$unwind` with the `$group` behind it, as one operator: an element goes into its group without a
//! document around it.
//!
//! Invariant: the groups, their order and what they hold are those of the two stages. So it stands
//! only for groups whose expressions take the element itself, or nothing that `$unwind` changes.

use super::unwind::Unwind;
use super::{IdleVisitor, Op, PipelineHost, Source, Stage, group};
use crate::expr::{Expression, Vars};
use bson::{Doc, Val, Value, tag};
use errors::Result;
use std::sync::Arc;

/// How many stages the operator stands for.
pub(super) const STAGES: usize = 2;

/// What the operator does.
pub(super) struct Fused {
    unwind: Arc<Unwind>,
    group: Arc<group::Group>,
    takes: GroupInputs,
}

/// What the id, and each accumulator, takes.
pub(super) struct GroupInputs {
    pub id: GroupInput,
    pub fields: Vec<GroupInput>,
}

pub(super) enum GroupInput {
    Element,
    Constant(Value),
    /// The value of its expression over the document.
    OfDocument,
}

/// The operator for the stages that `stages` begin with, where it can stand for them.
pub(super) fn fused(stages: &[Stage]) -> Option<Fused> {
    let [first, second, ..] = stages else {
        return None;
    };
    let (Op::Unwind(unwind), Op::Group(group)) = (&first.op, &second.op) else {
        return None;
    };
    if group.part == group::GroupPhase::Last
        || unwind.path.is_dotted()
        || unwind.index.is_some()
        || unwind.preserve
    {
        return None;
    }
    let path = unwind.path.first();
    let fields = group.fields.iter();
    let takes = GroupInputs {
        id: taken(&group.id, path)?,
        fields: fields
            .map(|f| taken(f.spec.only_argument()?, path))
            .collect::<Option<_>>()?,
    };
    Some(Fused {
        unwind: unwind.clone(),
        group: group.clone(),
        takes,
    })
}

/// What an expression takes; `None` where it reads the field that is unwound, and is not just that.
fn taken(e: &Expression, field: &str) -> Option<GroupInput> {
    if e.as_path().as_deref() == Some(field) {
        return Some(GroupInput::Element);
    }
    if let Some(v) = e.constant() {
        return Some(GroupInput::Constant(v.clone()));
    }
    let reads = |path: &String| path.split('.').next() == Some(field);
    (!e.needed_paths()?.iter().any(reads)).then_some(GroupInput::OfDocument)
}

pub(super) struct Run {
    /// Gone when all of it is taken.
    input: Option<Box<dyn Source>>,
    unwind: Arc<Unwind>,
    takes: GroupInputs,
    groups: group::Run,
    /// Where in the bytes of the input's document the rest of its array begins and ends.
    rest: Option<(usize, usize)>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, fused: Fused, vars: Arc<Vars>) -> Run {
        Run {
            input: Some(input),
            unwind: fused.unwind,
            takes: fused.takes,
            groups: group::Run::fed(fused.group, vars),
            rest: None,
        }
    }

    /// Takes in all of the input.
    pub fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        loop {
            self.take_array(host)?;
            let Some(input) = &mut self.input else {
                return Ok(());
            };
            self.groups.make_room(host)?;
            if !input.advance(host)? {
                self.input = None;
                return Ok(());
            }
            let doc = input.doc();
            match self.unwind.path.get(doc) {
                Some(v) if v.tag == tag::ARRAY => self.rest = elements(doc, v),
                // Anything else counts as its only element.
                Some(v) if !v.is_nullish() => {
                    self.groups
                        .take_element(doc, input.meta(), v, &self.takes)?;
                }
                _ => {}
            }
        }
    }

    /// Takes over the groups of another.
    pub fn absorb(&mut self, next: Run, host: &mut dyn PipelineHost) -> Result<()> {
        self.groups.absorb(next.groups, host)
    }

    /// Takes the rest of the array. After a suspension it goes on where it was.
    fn take_array(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let (Some(input), Some((start, end))) = (&self.input, self.rest) else {
            return Ok(());
        };
        let doc = input.doc();
        let mut rest = bson::Iter::over(doc.as_bytes().get(start..end).unwrap_or(&[]));
        loop {
            self.rest = Some((end - rest.rest().len(), end));
            host.check()?;
            self.groups.make_room(host)?;
            let Some((_, element)) = rest.next_raw() else {
                break;
            };
            self.groups
                .take_element(doc, input.meta(), element, &self.takes)?;
        }
        self.rest = None;
        Ok(())
    }
}

/// Where in the bytes of a document the elements of an array lie that is a field of it.
fn elements(doc: Doc<'_>, array: Val<'_>) -> Option<(usize, usize)> {
    let from = doc.as_bytes().as_ptr() as usize;
    let start = (array.bytes.as_ptr() as usize).checked_sub(from)?;
    Some((start + 4, start + array.bytes.len() - 1))
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        self.gather(host)?;
        self.groups.advance(host)
    }

    fn doc(&self) -> Doc<'_> {
        self.groups.doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        if let Some(input) = &mut self.input {
            input.parts(self.rest.is_some(), to)?;
        }
        self.groups.parts(wanted, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Memory, docs, parse};
    use super::super::{Pipeline, over_docs};
    use super::*;
    use bson::DocBuf;

    const INPUT: &str = r#"[{"_id":1,"t":["a","b","a"],"n":1,"d":{"t":5}},{"_id":2,"t":[]},{"_id":3},
        {"_id":4,"t":null,"n":4},{"_id":5,"t":"b","n":5},{"_id":6,"t":[null,["a"],{"x":1},7,7.0],"n":6},
        {"_id":7,"t":{"x":1},"n":7,"d":{"t":5}},{"_id":8,"t":["c"],"n":8}]"#;
    /// Changes nothing, and keeps the stages before and behind it apart.
    const APART: &str = r#"{"$addFields":{"zz":1}},{"$unset":"zz"}"#;

    fn run(stages: &str, host: &mut Memory) -> Vec<DocBuf> {
        let pipeline = parse(stages).unwrap();
        let mut source = pipeline.attach(0, over_docs(docs(INPUT)), &Arc::new(Vars::new(0)));
        let mut out = Vec::new();
        loop {
            match source.advance(host) {
                Ok(true) => out.push(source.doc().to_buf()),
                Ok(false) => return out,
                Err(e) if e.is_suspension() => {}
                Err(e) => panic!("{stages}: {e:?}"),
            }
        }
    }

    fn is_fused(stages: &str) -> bool {
        let pipeline: Pipeline = parse(stages).unwrap();
        fused(&pipeline.stages).is_some()
    }

    #[test]
    fn gives_what_the_stages_alone_give() {
        for group in [
            r#"{"_id":"$t","n":{"$sum":1}}"#,
            r#"{"_id":"$t","all":{"$push":"$n"},"ids":{"$addToSet":"$_id"},"k":{"$first":"$d.t"}}"#,
            r#"{"_id":"$n","t":{"$push":"$t"},"most":{"$max":"$t"},"few":{"$firstN":{"n":2,"input":"$t"}}}"#,
            r#"{"_id":null,"n":{"$sum":{"$add":["$n",1]}},"t":{"$last":"$t"},"c":{"$count":{}}}"#,
            r#"{"_id":{"a":"$n","b":"$d"},"t":{"$addToSet":"$t"}}"#,
        ] {
            let joined = format!(r#"[{{"$unwind":"$t"}},{{"$group":{group}}}]"#);
            assert!(is_fused(&joined), "{group}");
            let apart = format!(r#"[{{"$unwind":"$t"}},{APART},{{"$group":{group}}}]"#);
            for (offload_every, limit) in [(None, None), (Some(2), None), (Some(3), Some(600))] {
                let host = || Memory {
                    offload_every,
                    limit,
                    disk: true,
                    ..Memory::default()
                };
                let want = run(&apart, &mut host());
                assert!(want.len() > usize::from(!group.contains("null")));
                assert_eq!(run(&joined, &mut host()), want, "{group} {offload_every:?}");
            }
        }
    }

    #[test]
    fn stands_only_for_what_takes_the_element_or_leaves_it() {
        for (unwind, group) in [
            (r#""$t""#, r#"{"_id":"$t.x"}"#),
            (r#""$t""#, r#"{"_id":{"$add":["$t",1]}}"#),
            (r#""$t""#, r#"{"_id":null,"a":{"$push":"$$ROOT"}}"#),
            (
                r#""$t""#,
                r#"{"_id":null,"a":{"$top":{"output":"$n","sortBy":{"t":1}}}}"#,
            ),
            (r#""$d.t""#, r#"{"_id":"$d.t"}"#),
            (
                r#"{"path":"$t","includeArrayIndex":"i"}"#,
                r#"{"_id":"$t"}"#,
            ),
            (
                r#"{"path":"$t","preserveNullAndEmptyArrays":true}"#,
                r#"{"_id":"$t"}"#,
            ),
        ] {
            let stages = format!(r#"[{{"$unwind":{unwind}}},{{"$group":{group}}}]"#);
            assert!(!is_fused(&stages), "{stages}");
        }
    }
}
