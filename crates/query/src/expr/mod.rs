//! Aggregation expressions: parsed once into an owned tree of nodes, evaluated over document bytes.
//!
//! Every operator is one row of the table in `table.rs`: its name, how its argument is written and
//! the function that computes it. A family of operators has a file.
//!
//! Invariant: evaluation borrows from the document whenever it can (a field path, a comparison
//! allocates nothing) and never builds a tree of values.

mod arithmetic;
mod array;
mod array_build;
mod bits;
mod boolean;
mod calendar;
mod comparison;
mod control;
mod convert;
mod convert_binary;
mod date;
mod date_arithmetic;
mod date_format;
mod date_parse;
mod date_zone;
mod hash;
pub(crate) mod ladder;
mod node;
mod object;
mod parse;
mod path;
mod regex;
mod script;
mod set;
mod string;
mod string_position;
mod table;
mod trigonometry;
mod values;
mod work;

#[cfg(test)]
pub(crate) mod cases;

pub use comparison::{Comparison, Order};
pub use hash::hash64;
pub use node::{Computed, EvalCtx};
pub use parse::ParseEnv;
pub(crate) use parse::SearchMetaAccess;
pub use path::ExprPath;
pub use values::MAX_INTERMEDIATE_BYTES;

pub(crate) use array::{SortSpec, count_of};
pub(crate) use node::{COLLATED, Node, Scope, check_depth};
pub(crate) use object::merge as merge_documents;
pub(crate) use parse::{ConstantBudget, check_field_name};
pub(crate) use regex::units as regex_units;
pub(crate) use values::constant_of;
pub(crate) use work::byte_units;

use crate::list::FEW;
use crate::path::FieldPath;
use crate::script::{Globals, SCOPE, STORED, Scripts};
use bson::{Val, Value};
use errors::{Result, bail};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The names of all operators.
pub fn operator_names() -> impl Iterator<Item = &'static str> {
    table::names().filter(|name| !name.is_empty())
}

/// Ends evaluations that should not go on: their errors do.
pub trait Watchdog: Send + Sync {
    /// Asked now and then inside of long evaluations (time limits, kills, a loop's work budget).
    fn check(&self) -> Result<()>;

    /// Asked as often: whether the thread may hold as much as it does, and `more` bytes that it is about to make.
    fn weigh(&self, more: usize) -> Result<()>;

    /// What runs the command's scripts. Fails where there is none, and where a script would hold up
    /// others.
    fn scripts(&self) -> Result<&dyn Scripts> {
        no_scripts()
    }
}

fn no_scripts<T>() -> Result<T> {
    bail!(
        31264,
        "Cannot run server-side javascript without the javascript engine enabled"
    )
}

/// One that minds time only.
impl<F: Fn() -> Result<()> + Send + Sync> Watchdog for F {
    fn check(&self) -> Result<()> {
        self()
    }

    fn weigh(&self, _more: usize) -> Result<()> {
        Ok(())
    }
}

/// Values of the variables of one command: the same for all documents.
#[derive(Clone, Default)]
pub struct Vars {
    pub(crate) now: i64,
    pub(crate) cluster_time: Option<u64>,
    /// `None`: a variable whose value is missing; it is defined all the same.
    user: Vec<(Arc<str>, Option<Value>)>,
    /// Where each stands among them; empty for few.
    places: HashMap<Arc<str>, usize>,
    watchdog: Option<Arc<dyn Watchdog>>,
    /// `$$SEARCH_META` of the pipeline at hand.
    search_meta: Option<Arc<SearchMeta>>,
    left: work::Left,
}

impl Vars {
    /// `now_ms`: `$$NOW`, fixed for the whole command.
    pub fn new(now_ms: i64) -> Vars {
        Vars {
            now: now_ms,
            ..Vars::default()
        }
    }

    /// The same variables for the stages behind a search, which fills `known` before they run.
    pub(crate) fn behind_search(&self, known: Arc<SearchMeta>) -> Vars {
        Vars {
            search_meta: Some(known),
            ..self.clone()
        }
    }

    fn search_meta(&self) -> Option<Val<'_>> {
        let known = self.search_meta.as_ref()?.get()?;
        Some(known.as_doc().as_val())
    }

    pub fn now(&self) -> i64 {
        self.now
    }

    /// Evaluations ask it whenever they have done a good deal of work (`work.rs`), and when they
    /// hold much.
    pub fn set_watchdog(&mut self, watchdog: Arc<dyn Watchdog>) {
        self.watchdog = Some(watchdog);
    }

    /// The variables that a user or a stage has defined; `None`: the value is missing.
    pub fn user(&self) -> impl Iterator<Item = (&str, Option<Val<'_>>)> {
        (self.user.iter()).map(|(name, v)| (&**name, v.as_ref().map(Value::as_val)))
    }

    pub fn has_watchdog(&self) -> bool {
        self.watchdog.is_some()
    }

    /// To be called with the number of rows done, by what evaluates for each of many rows.
    #[inline]
    pub(crate) fn check_interrupt(&self, done: usize) -> Result<()> {
        match &self.watchdog {
            Some(w) if done % 256 == 255 => w.check(),
            _ => Ok(()),
        }
    }

    pub fn set_cluster_time(&mut self, ts: u64) {
        self.cluster_time = Some(ts);
    }

    /// Sets or replaces a user variable.
    pub fn set(&mut self, name: &str, v: Value) {
        self.define(name, Some(v));
    }

    /// Sets or replaces a user variable, whose value may be missing.
    pub fn define(&mut self, name: &str, v: Option<Value>) {
        if let Some(known) = self.place(name).and_then(|at| self.user.get_mut(at)) {
            known.1 = v;
            return;
        }
        self.user.push((Arc::from(name), v));
        if self.user.len() == FEW + 1 {
            let all = self.user.iter().enumerate();
            self.places = all.map(|(at, (n, _))| (n.clone(), at)).collect();
        } else if self.user.len() > FEW {
            self.places.insert(Arc::from(name), self.user.len() - 1);
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        match self.user.len() > FEW {
            true => self.places.get(name).copied(),
            false => self.user.iter().position(|(n, _)| &**n == name),
        }
    }

    pub(crate) fn scripts(&self) -> Result<&dyn Scripts> {
        match &self.watchdog {
            Some(w) => w.scripts(),
            None => no_scripts(),
        }
    }

    /// The global variables of scripts; `stored`: with the functions of `system.js`.
    pub(crate) fn script_globals(&self, stored: bool) -> Globals<'_> {
        let documents = |name| self.get(name).and_then(Val::as_container);
        Globals {
            scope: documents(SCOPE),
            stored: documents(STORED).filter(|_| stored),
        }
    }

    pub fn get(&self, name: &str) -> Option<Val<'_>> {
        let (_, v) = self.user.get(self.place(name)?)?;
        v.as_ref().map(Value::as_val)
    }
}

/// The metadata of a search's results as a whole, once it has run.
pub type SearchMeta = std::sync::OnceLock<bson::DocBuf>;

/// What documents come together by.
pub(crate) enum Key {
    /// The value of a field.
    Value(FieldPath),
    /// A document in which these fields have these names; others may be in it.
    Document(Vec<(Box<str>, FieldPath)>),
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    pub(crate) node: Node,
}

impl Expression {
    /// Parses any operand: a constant, `"$path"`, `"$$variable"`, an operator object, an object or
    /// array of expressions. Constant parts are computed here, so their errors show even when there
    /// is no document, unless `env` wants them late.
    pub fn parse(val: Val<'_>, env: &ParseEnv) -> Result<Expression> {
        let mut node = parse::operand(val, env)?;
        let written = env.has_late_errors().then(|| node.clone());
        match (node.fold(env.constants()), written) {
            (Err(_), Some(written)) => node = written,
            (folded, _) => folded?,
        }
        Ok(Expression { node })
    }

    /// As [`Expression::parse`], for `$expr`.
    pub(crate) fn parse_condition(val: Val<'_>, env: &ParseEnv) -> Result<Expression> {
        let mut node = parse::operand(val, env)?;
        parse::look_up(&mut node);
        node.fold(env.constants())?;
        Ok(Expression { node })
    }

    /// The condition that `$where` stands for.
    pub(crate) fn parse_where(val: Val<'_>, env: &ParseEnv) -> Result<Expression> {
        let node = script::condition(val, env)?;
        Ok(Expression { node })
    }

    /// The script of a `$where`.
    pub(crate) fn as_where(&self) -> Option<&str> {
        match &self.node {
            Node::Call(c) if c.op.name.is_empty() => match &c.prepared {
                node::Prepared::Script(f) => Some(&f.source),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether it is `$where`, or computes by a function of the user's.
    pub fn has_script(&self) -> bool {
        self.node
            .any_call(&mut |c| matches!(c.prepared, node::Prepared::Script(_)))
    }

    /// An expression that always has this value.
    pub fn literal(v: Value) -> Expression {
        Expression {
            node: Node::Const(v),
        }
    }

    /// The field at a dotted path (without `$`).
    pub fn path(path: &str) -> Result<Expression> {
        Ok(Expression {
            node: Node::Path(ExprPath::parse(path)?),
        })
    }

    pub fn evaluate<'a>(&'a self, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        ctx.vars.begin_work();
        self.node.eval(ctx)
    }

    /// As [`Expression::evaluate`], as a part of something larger that counts its work.
    pub(crate) fn evaluate_within<'a>(&'a self, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        self.node.eval(ctx)
    }

    /// The value when it does not depend on the document.
    pub fn constant(&self) -> Option<&Value> {
        match &self.node {
            Node::Const(v) => Some(v),
            _ => None,
        }
    }

    /// The dotted path when the expression is nothing but a field of the document.
    pub fn as_path(&self) -> Option<String> {
        match &self.node {
            Node::Path(p) => Some(p.to_string()),
            _ => None,
        }
    }

    /// The fields that the expression is, as a key by which documents come together; `None` where
    /// it is no field and no document of fields.
    pub(crate) fn key(&self) -> Option<Key> {
        match &self.node {
            Node::Path(p) => Some(Key::Value(FieldPath::new(&p.to_string()))),
            Node::Doc(fields) => {
                let mut names = BTreeSet::new();
                if !fields.iter().all(|(name, _)| names.insert(name)) {
                    return None;
                }
                let paths = fields.iter().filter_map(|(name, n)| match n {
                    Node::Path(p) => Some((name.clone(), FieldPath::new(&p.to_string()))),
                    _ => None,
                });
                Some(Key::Document(paths.collect()))
            }
            _ => None,
        }
    }

    /// The name of a variable that only a running command has (`NOW`, `CLUSTER_TIME`), if the
    /// expression reads one.
    pub fn runtime_variable(&self) -> Option<&'static str> {
        self.node.runtime_variable()
    }

    /// Whether chance has a part in its value.
    pub fn is_random(&self) -> bool {
        self.node.is_random()
    }

    /// The operator of the outermost call, with its `$`.
    pub fn operator(&self) -> Option<&'static str> {
        match &self.node {
            Node::Call(c) => Some(c.op.name),
            _ => None,
        }
    }

    /// The expression as MongoDB's explain prints it.
    pub fn to_value(&self) -> Value {
        self.node.to_value()
    }

    /// Dotted paths of the document that the expression reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        let mut out = BTreeSet::new();
        self.node.needed(&mut out).then_some(out)
    }
}

/// Whether expressions have an operator of that name (with its `$`).
pub fn is_operator(name: &str) -> bool {
    table::find(name).is_some()
}

/// Folds the paths that `more` needs into `all` (`None` means the whole document).
pub fn join_paths(all: &mut Option<BTreeSet<String>>, more: Option<BTreeSet<String>>) {
    match (all.as_mut(), more) {
        (Some(a), Some(m)) => a.extend(m),
        _ => *all = None,
    }
}
