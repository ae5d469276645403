//! What `mapReduce` runs: its map, its `$unwind` and its `$group` as one operator.
//!
//! The command writes `{$project: {emits: {$_internalJsEmit: …}}}`, `{$unwind: "$emits"}` and a
//! `$group` by `$emits.k`. Run one by one they make a document for each key that is emitted, only to
//! take it apart again. Here what a document's map emits goes into the groups from one buffer.
//!
//! Invariant: the groups, their order and what they hold are those of the three stages.

use super::{IdleVisitor, Op, PipelineHost, Source, Stage, group};
use crate::expr::Vars;
use crate::script::{Emitted, Function};
use bson::Doc;
use errors::Result;
use std::sync::Arc;

/// The name of the array between the stages.
const EMITS: &str = "emits";
/// How many stages the operator stands for.
pub(super) const STAGES: usize = 3;

/// The operator for the stages that `stages` begin with, where they are those of `mapReduce`.
pub(super) fn fused(stages: &[Stage]) -> Option<(Function, Arc<group::Group>)> {
    let [map, unwind, reduce, ..] = stages else {
        return None;
    };
    let map = emitting(map)?;
    match &unwind.op {
        Op::Unwind(u)
            if !u.path.is_dotted()
                && u.path.first() == EMITS
                && u.index.is_none()
                && !u.preserve => {}
        _ => return None,
    }
    let Op::Group(group) = &reduce.op else {
        return None;
    };
    (group.id.as_path()? == "emits.k").then_some(())?;
    match group.fields.as_slice() {
        [only] if only.spec.reduces().as_deref() == Some(EMITS) => Some((map, group.clone())),
        _ => None,
    }
}

/// The map of `{$project: {_id: 0, emits: {$_internalJsEmit: {this: "$$ROOT", eval: map}}}}`.
fn emitting(stage: &Stage) -> Option<Function> {
    let spec = stage.spec.as_val().as_doc()?;
    let map = spec.get(EMITS)?.as_doc()?.get("$_internalJsEmit")?;
    let whole = map.as_doc()?.get("this")?.as_str()? == "$$ROOT";
    let alone = spec.count() == 2 && spec.get("_id")?.as_i32()? == 0;
    if stage.name != "$project" || !whole || !alone {
        return None;
    }
    map.as_doc()?.get("eval")?.as_code().map(Function::new)
}

pub(super) struct Run {
    /// Gone when all of it is mapped.
    input: Option<Box<dyn Source>>,
    map: Function,
    groups: group::Run,
    emitted: Emitted,
    vars: Arc<Vars>,
}

impl Run {
    pub fn new(
        input: Box<dyn Source>,
        map: Function,
        group: Arc<group::Group>,
        vars: Arc<Vars>,
    ) -> Run {
        Run {
            input: Some(input),
            map,
            groups: group::Run::fed(group, vars.clone()),
            emitted: Emitted::default(),
            vars,
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while let Some(input) = &mut self.input {
            let scripts = self.vars.scripts()?;
            if !input.advance(host)? {
                self.groups.settle(host)?;
                self.input = None;
                break;
            }
            let globals = self.vars.script_globals(true);
            scripts.map(&self.map, input.doc(), globals, &mut self.emitted)?;
            for (k, v) in self.emitted.pairs() {
                self.groups.make_room(host)?;
                self.groups.take_emitted(k, v)?;
            }
        }
        self.groups.advance(host)
    }

    fn doc(&self) -> Doc<'_> {
        self.groups.doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        self.groups.parts(wanted, to)
    }
}
