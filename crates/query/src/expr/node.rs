//! The tree of a parsed expression and its evaluation.

use super::path::ExprPath;
use super::table::Op;
use super::values::check_size;
use super::{Vars, control, regex, table};
use crate::collation::Collation;
use crate::metadata::Metadata;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail, err};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Values bound to names inside an expression (`$let`, `$map`, …), innermost first. `None`: bound to
/// nothing (a missing value).
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    One {
        name: &'a str,
        value: Option<Val<'a>>,
        parent: Option<&'a Scope<'a>>,
    },
    /// A `$let` may have as many names as fit into a command: they stand in one scope.
    Many {
        values: &'a HashMap<&'a str, Option<Val<'a>>>,
        parent: Option<&'a Scope<'a>>,
    },
}

/// What an expression is evaluated over.
#[derive(Clone, Copy)]
pub struct EvalCtx<'a> {
    pub root: Doc<'a>,
    pub vars: &'a Vars,
    /// Of the document.
    pub meta: &'a Metadata,
    pub(crate) scope: Option<&'a Scope<'a>>,
}

impl<'a> EvalCtx<'a> {
    pub fn new(root: Doc<'a>, vars: &'a Vars) -> EvalCtx<'a> {
        EvalCtx {
            root,
            vars,
            meta: Metadata::NONE,
            scope: None,
        }
    }

    /// The same where something is known of the document.
    pub fn with_meta(self, meta: &'a Metadata) -> EvalCtx<'a> {
        EvalCtx { meta, ..self }
    }

    pub(crate) fn inside<'b>(&self, scope: &'b Scope<'b>) -> EvalCtx<'b>
    where
        'a: 'b,
    {
        EvalCtx {
            root: self.root,
            vars: self.vars,
            meta: self.meta,
            scope: Some(scope),
        }
    }
}

/// The result of an expression: nothing, a view into the document, or a new value.
#[derive(Clone, Debug)]
pub enum Computed<'a> {
    Missing,
    Ref(Val<'a>),
    Owned(Value),
}

impl<'a> Computed<'a> {
    pub const NULL: Computed<'static> = Computed::Ref(Val::NULL);

    /// The value; `None` when missing.
    #[inline]
    pub fn as_val(&self) -> Option<Val<'_>> {
        match self {
            Computed::Missing => None,
            Computed::Ref(v) => Some(*v),
            Computed::Owned(v) => Some(v.as_val()),
        }
    }

    pub fn into_value(self) -> Option<Value> {
        match self {
            Computed::Missing => None,
            Computed::Ref(v) => Some(v.to_value()),
            Computed::Owned(v) => Some(v),
        }
    }

    /// The value for comparing: missing compares as undefined does.
    #[inline]
    pub fn comparable(&self) -> Val<'_> {
        self.as_val().unwrap_or(Val::UNDEFINED)
    }

    /// The value with null for missing.
    #[inline]
    pub fn or_null(&self) -> Val<'_> {
        self.as_val().unwrap_or(Val::NULL)
    }

    /// Missing, null or undefined.
    #[inline]
    pub fn is_nullish(&self) -> bool {
        self.as_val().is_none_or(Val::is_nullish)
    }

    pub fn truthy(&self) -> bool {
        self.as_val().is_some_and(Val::truthy)
    }

    /// The name of the type for messages; `missing` when there is no value.
    pub fn type_name(&self) -> &'static str {
        self.as_val().map_or("missing", Val::type_name)
    }

    /// A copy that borrows from nothing.
    pub fn detach(self) -> Computed<'static> {
        match self {
            Computed::Missing => Computed::Missing,
            Computed::Ref(v) => Computed::Owned(v.to_value()),
            Computed::Owned(v) => Computed::Owned(v),
        }
    }
}

impl<'a> From<Option<Val<'a>>> for Computed<'a> {
    fn from(v: Option<Val<'a>>) -> Computed<'a> {
        v.map_or(Computed::Missing, Computed::Ref)
    }
}

/// A new value as a result.
#[inline]
pub(crate) fn own<'a>(v: impl Into<Value>) -> Result<Computed<'a>> {
    Ok(Computed::Owned(v.into()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Root,
    Now,
    ClusterTime,
    Remove,
    /// The metadata of a search's results as a whole.
    SearchMeta,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Const(Value),
    /// A field of the document.
    Path(ExprPath),
    System(System, ExprPath),
    /// A user variable, and a path below it.
    Var(Arc<str>, ExprPath),
    Doc(Vec<(Box<str>, Node)>),
    Array(Vec<Node>),
    Call(Box<Call>),
    /// An optional argument that was not given.
    Absent,
}

/// What an operator computed from constant arguments once and for all.
#[derive(Clone, Debug)]
pub(crate) enum Prepared {
    None,
    Regex(regex::Prepared),
    Script(crate::script::Function),
    Names(Vec<Arc<str>>),
    Sort(super::array::SortSpec),
    Percentiles(Vec<f64>),
    Ladder(super::ladder::Ladder),
    /// What the operator compares, it compares so.
    Collation(Collation),
}

/// An operator applied to its arguments, which are in the order of the table's row.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: &'static Op,
    pub(crate) args: Vec<Node>,
    pub(crate) prepared: Prepared,
}

/// What going over a string under a collation takes, in times of what copying it does.
pub(crate) const COLLATED: usize = 16;

impl Call {
    /// The value of argument `i`, to be read: its length counts as work. Missing when it was not
    /// given.
    #[inline]
    pub(crate) fn arg<'a>(&'a self, i: usize, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        match self.args.get(i) {
            Some(n) => self.read(n, ctx),
            None => Ok(Computed::Missing),
        }
    }

    /// The value of argument `i` for an operator that looks at its type or its beginning at most,
    /// hands it on, or counts itself what it looks at.
    #[inline]
    pub(crate) fn peek<'a>(&'a self, i: usize, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        match self.args.get(i) {
            Some(n) => n.eval(ctx),
            None => Ok(Computed::Missing),
        }
    }

    /// The values of all arguments, as by [`Call::arg`].
    #[inline]
    pub(crate) fn each_arg<'a>(
        &'a self,
        ctx: &EvalCtx<'a>,
    ) -> impl Iterator<Item = Result<Computed<'a>>> {
        self.args.iter().map(move |n| self.read(n, ctx))
    }

    /// The value of one of the arguments, as by [`Call::arg`].
    #[inline]
    pub(crate) fn read<'a>(&'a self, n: &'a Node, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        // Not taken out of its result, which would move it.
        let v = n.eval(ctx);
        if let Ok(x) = &v
            && let Some(x) = x.as_val()
        {
            ctx.vars.work_bytes(x.bytes.len() * self.weight())?;
        }
        v
    }

    /// How much dearer than others' the operator's comparisons are: a collation makes keys of
    /// strings for each.
    #[inline]
    pub(crate) fn weight(&self) -> usize {
        match &self.prepared {
            Prepared::Collation(_) => COLLATED,
            _ => 1,
        }
    }

    /// The order of two values as the operator sees it.
    #[inline]
    pub(crate) fn compare(&self, a: Val<'_>, b: Val<'_>) -> std::cmp::Ordering {
        match &self.prepared {
            Prepared::Collation(c) => c.compare(a, b),
            _ => bson::order::compare(a, b),
        }
    }

    pub(crate) fn has(&self, i: usize) -> bool {
        !matches!(self.args.get(i), None | Some(Node::Absent))
    }

    /// Names of the variables that the call binds.
    pub(crate) fn names(&self) -> &[Arc<str>] {
        match &self.prepared {
            Prepared::Names(n) => n,
            _ => &[],
        }
    }
}

impl Node {
    pub(crate) fn eval<'a>(&'a self, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        Ok(match self {
            Node::Const(v) => Computed::Ref(v.as_val()),
            Node::Path(p) => return p.eval_in(ctx.root, ctx.vars),
            Node::Call(c) => {
                ctx.vars.work(1)?;
                let made = (c.op.eval)(c, ctx);
                if let Ok(Computed::Owned(v)) = &made {
                    ctx.vars.work_bytes(v.as_val().bytes.len())?;
                }
                return made;
            }
            Node::System(s, path) => return system(*s, path, ctx),
            Node::Var(name, path) => return variable(name, path, ctx),
            Node::Doc(fields) => {
                let mut w = Writer::new();
                for (name, n) in fields {
                    n.write(name, ctx, &mut w)?;
                    check_size(w.len())?;
                }
                Computed::Owned(Value::from(w.finish()))
            }
            Node::Array(items) => {
                let mut w = Writer::new_array();
                for n in items {
                    let v = n.eval(ctx)?;
                    ctx.vars.work_bytes(v.or_null().bytes.len())?;
                    w.push(v.or_null());
                    check_size(w.len())?;
                }
                Computed::Owned(w.finish_array())
            }
            Node::Absent => Computed::Missing,
        })
    }

    /// Appends the value under `name`, or nothing when it is missing.
    pub(crate) fn write(&self, name: &str, ctx: &EvalCtx<'_>, w: &mut Writer) -> Result<()> {
        match self {
            Node::Doc(fields) => {
                w.open_doc(name);
                for (n, node) in fields {
                    node.write(n, ctx, w)?;
                }
                w.close();
            }
            _ => {
                check_size(w.len())?;
                if let Some(v) = self.eval(ctx)?.as_val() {
                    ctx.vars.work(super::work::byte_units(v.bytes.len()))?;
                    w.val(name, v);
                }
            }
        }
        Ok(())
    }

    /// Replaces constant parts by their values, innermost first.
    ///
    /// The result of a call is kept as far as `left` goes; a larger one is computed for each document,
    /// where it counts and can be ended.
    pub(crate) fn fold(&mut self, left: &super::ConstantBudget) -> Result<()> {
        errors::operation::step()?;
        match self {
            Node::Doc(fields) => {
                for (_, n) in fields.iter_mut() {
                    n.fold(left)?;
                }
                if !fields.iter().all(|(_, n)| matches!(n, Node::Const(_))) {
                    return Ok(());
                }
            }
            Node::Array(items) => {
                for n in items.iter_mut() {
                    n.fold(left)?;
                }
                if !items.iter().all(|n| matches!(n, Node::Const(_))) {
                    return Ok(());
                }
            }
            Node::Call(c) => {
                if let Some(chosen) = control::choose(c, left)? {
                    *self = chosen;
                    return Ok(());
                }
                for n in c.args.iter_mut() {
                    n.fold(left)?;
                }
                table::prepare(c)?;
                let known = |n: &Node| matches!(n, Node::Const(_) | Node::Absent);
                if !c.op.foldable || !c.args.iter().all(known) {
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
        let is_call = matches!(self, Node::Call(_));
        if is_call && left.is_spent() {
            return Ok(());
        }
        let (limited, spent) = Vars::for_constants();
        let vars = match is_call {
            true => limited,
            // Their parts are there already.
            false => Vars::default(),
        };
        let folded = match self.eval(&EvalCtx::new(Doc::EMPTY, &vars)) {
            Ok(v) => v.into_value(),
            Err(e) if e.is_suspension() => {
                left.take(spent());
                None
            }
            Err(e) => return Err(e),
        };
        if let Some(v) = folded
            && (!is_call || left.take(spent().max(v.as_val().bytes.len())))
        {
            *self = Node::Const(v);
        }
        Ok(())
    }

    pub(crate) fn constant(&self) -> Option<Val<'_>> {
        match self {
            Node::Const(v) => Some(v.as_val()),
            _ => None,
        }
    }

    /// Adds the paths read; false when all of the document may be.
    pub(crate) fn needed(&self, out: &mut BTreeSet<String>) -> bool {
        match self {
            Node::Path(p) => {
                out.insert(p.to_string());
                true
            }
            Node::System(System::Root, p) if p.is_empty() => false,
            Node::System(System::Root, p) => {
                out.insert(p.to_string());
                true
            }
            Node::Doc(fields) => fields.iter().all(|(_, n)| n.needed(out)),
            Node::Array(items) => items.iter().all(|n| n.needed(out)),
            Node::Call(c) => c.args.iter().all(|n| n.needed(out)),
            _ => true,
        }
    }

    pub(crate) fn runtime_variable(&self) -> Option<&'static str> {
        match self {
            Node::System(System::Now, _) => Some("NOW"),
            Node::System(System::ClusterTime, _) => Some("CLUSTER_TIME"),
            Node::Doc(fields) => fields.iter().find_map(|(_, n)| n.runtime_variable()),
            Node::Array(items) => items.iter().find_map(Node::runtime_variable),
            Node::Call(c) => c.args.iter().find_map(Node::runtime_variable),
            _ => None,
        }
    }

    /// Whether `f` holds for this call or one inside of it.
    pub(crate) fn any_call(&self, f: &mut dyn FnMut(&Call) -> bool) -> bool {
        match self {
            Node::Doc(fields) => fields.iter().any(|(_, n)| n.any_call(f)),
            Node::Array(items) => items.iter().any(|n| n.any_call(f)),
            Node::Call(c) => f(c) || c.args.iter().any(|n| n.any_call(f)),
            _ => false,
        }
    }

    pub(crate) fn is_random(&self) -> bool {
        match self {
            Node::Doc(fields) => fields.iter().any(|(_, n)| n.is_random()),
            Node::Array(items) => items.iter().any(Node::is_random),
            Node::Call(c) => c.op.name == "$rand" || c.args.iter().any(Node::is_random),
            _ => false,
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        let with = |prefix: &str, p: &ExprPath| {
            Value::from(if p.is_empty() {
                prefix.to_string()
            } else {
                format!("{prefix}.{p}")
            })
        };
        match self {
            Node::Const(v) => {
                let mut w = Writer::new();
                w.val("$const", v.as_val());
                Value::from(w.finish())
            }
            Node::Path(p) => Value::from(format!("${p}")),
            Node::System(System::Root, p) => with("$$ROOT", p),
            Node::System(System::Now, p) => with("$$NOW", p),
            Node::System(System::ClusterTime, p) => with("$$CLUSTER_TIME", p),
            Node::System(System::Remove, p) => with("$$REMOVE", p),
            Node::System(System::SearchMeta, p) => with("$$SEARCH_META", p),
            Node::Var(name, p) => with(&format!("$${name}"), p),
            Node::Doc(fields) => {
                let mut w = Writer::new();
                for (name, n) in fields {
                    w.val(name, n.to_value().as_val());
                }
                Value::from(w.finish())
            }
            Node::Array(items) => {
                let mut w = Writer::new_array();
                for n in items {
                    w.push(n.to_value().as_val());
                }
                w.finish_array()
            }
            Node::Call(c) => table::to_value(c),
            Node::Absent => Value::NULL,
        }
    }
}

fn system<'a>(s: System, path: &ExprPath, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    Ok(match s {
        System::Root if path.is_empty() => Computed::Ref(ctx.root.as_val()),
        System::Root => return path.eval_in(ctx.root, ctx.vars),
        System::Now if path.is_empty() => Computed::Owned(Value::date(ctx.vars.now)),
        System::ClusterTime => match ctx.vars.cluster_time {
            Some(t) if path.is_empty() => Computed::Owned(Value::timestamp(t)),
            Some(_) => Computed::Missing,
            None => bail!(
                10071200,
                "Builtin variable '$$CLUSTER_TIME' is not available"
            ),
        },
        System::SearchMeta => match ctx.vars.search_meta() {
            Some(known) => return path.eval_below(known, ctx.vars),
            None => Computed::Missing,
        },
        System::Now | System::Remove => Computed::Missing,
    })
}

fn variable<'a>(name: &str, path: &ExprPath, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let mut scope = ctx.scope;
    while let Some(s) = scope {
        let (bound, parent) = match *s {
            Scope::One {
                name: one,
                value,
                parent,
            } => ((one == name).then_some(value), parent),
            Scope::Many { values, parent } => (values.get(name).copied(), parent),
        };
        match bound {
            Some(Some(v)) => return path.eval_below(v, ctx.vars),
            Some(None) => return Ok(Computed::Missing),
            None => scope = parent,
        }
    }
    match ctx.vars.get(name) {
        Some(v) => path.eval_below(v, ctx.vars),
        None => Ok(Computed::Missing),
    }
}

/// The deepest nesting a computed document may have.
const MAX_COMPUTED_DEPTH: usize = 200;

/// Refuses values nested deeper than anything that could be stored: what recursion over them could
/// not bear.
pub(crate) fn check_depth(v: Val<'_>) -> Result<()> {
    fn within(v: Val<'_>, left: usize) -> bool {
        let Some(d) = v.as_doc().or_else(|| v.as_array()) else {
            return true;
        };
        // A level takes 8 bytes at least.
        if d.len() < left * 8 {
            return true;
        }
        left > 0 && d.values().all(|x| within(x, left - 1))
    }
    if matches!(v.tag, tag::DOCUMENT | tag::ARRAY) && !within(v, MAX_COMPUTED_DEPTH) {
        return Err(err!(
            Overflow,
            "cannot serialize document because it exceeds {MAX_COMPUTED_DEPTH} nesting levels"
        )
        .into());
    }
    Ok(())
}
