//! What `mapReduce` runs: its map, its `$unwind` and its `$group` as one operator.
//!
//! The command writes `{$project: {emits: {$_internalJsEmit: …}}}`, `{$unwind: "$emits"}` and a `$group`
//! by `$emits.k`. Run one by one they make a document for each key that is emitted, only to take it
//! apart again. Here emitted values are held by key, and go into the groups when there are enough of
//! them: a group is looked for once for many values.
//!
//! Invariant: the groups and their order are those of the three stages. A group's values are in the
//! order in which they were emitted, where its keys are of one type.

use super::group::ShortKey;
use super::{IdleVisitor, Op, PipelineHost, Source, Stage, group};
use crate::expr::Vars;
use crate::script::{Emitted, Function};
use bson::{Doc, Iter, Val, Value};
use errors::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// The name of the array between the stages.
const EMITS: &str = "emits";
/// How many stages the operator stands for.
pub(super) const STAGES: usize = 3;

/// The most bytes held before they go into the groups.
const PENDING_BYTES: usize = 512 << 10;
/// What a key takes beside its bytes.
const KEY_BYTES: usize = 128;

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

/// Emitted values that are in no group yet.
#[derive(Default)]
struct Pending {
    /// Places in `keys`, by type and bytes.
    by_key: HashMap<ShortKey, usize, foldhash::fast::RandomState>,
    /// In the order in which they were emitted first, with their values as elements without names.
    keys: Vec<(Value, Vec<u8>)>,
    /// How many of `keys` have gone into their groups.
    taken: usize,
    bytes: usize,
    scratch: Vec<u8>,
}

impl Pending {
    fn add(&mut self, k: Val<'_>, v: Val<'_>) {
        self.scratch.clear();
        self.scratch.push(k.tag);
        self.scratch.extend_from_slice(k.bytes);
        let at = match self.by_key.get(self.scratch.as_slice()) {
            Some(at) => *at,
            None => {
                let at = self.keys.len();
                let key = ShortKey::from_slice(&self.scratch);
                self.by_key.insert(key, at);
                self.keys.push((k.to_value(), Vec::new()));
                self.bytes += KEY_BYTES + 2 * self.scratch.len();
                at
            }
        };
        if let Some((_, values)) = self.keys.get_mut(at) {
            values.extend_from_slice(&[v.tag, 0]);
            values.extend_from_slice(v.bytes);
            self.bytes += 2 + v.bytes.len();
        }
    }
}

pub(super) struct Run {
    /// Gone when all of it is mapped.
    input: Option<Box<dyn Source>>,
    map: Function,
    groups: group::Run,
    emitted: Emitted,
    pending: Pending,
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
            pending: Pending::default(),
            vars,
        }
    }

    /// Takes the pending values into the groups. After a suspension it goes on where it was.
    fn take_pending(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while let Some((key, values)) = self.pending.keys.get(self.pending.taken) {
            host.check()?;
            self.groups.make_room(host)?;
            self.groups.take_emitted(key.as_val(), Iter::over(values))?;
            self.pending.taken += 1;
        }
        self.pending = Pending::default();
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while let Some(input) = &mut self.input {
            let scripts = self.vars.scripts()?;
            if self.pending.bytes >= PENDING_BYTES {
                self.take_pending(host)?;
                continue;
            }
            if !input.advance(host)? {
                self.take_pending(host)?;
                self.groups.settle(host)?;
                self.input = None;
                break;
            }
            let globals = self.vars.script_globals(true);
            scripts.map(&self.map, input.doc(), globals, &mut self.emitted)?;
            for (k, v) in self.emitted.pairs() {
                self.pending.add(k, v);
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
