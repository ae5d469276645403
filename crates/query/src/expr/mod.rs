//! Aggregation expressions: parsed once into an owned tree of nodes, evaluated over document bytes.
//!
//! Invariant: evaluation borrows from the document whenever it can (a field path, a comparison allocates nothing) and
//! never builds a tree of values.

use bson::{Doc, Val, Value};
use errors::{Result, err};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is known while parsing: the variables that may be named.
#[derive(Clone, Default)]
pub struct ParseEnv {
    names: Vec<Arc<str>>,
}

impl ParseEnv {
    pub fn new() -> ParseEnv {
        ParseEnv::default()
    }

    /// Makes a user variable known (`let` of a command or of `$lookup`); refuses names MongoDB refuses.
    pub fn define(&mut self, name: &str) -> Result<()> {
        self.names.push(Arc::from(name));
        Ok(())
    }

    pub fn knows(&self, name: &str) -> bool {
        self.names.iter().any(|n| &**n == name)
    }
}

/// Values of the variables of one command: the same for all documents.
#[derive(Clone, Default)]
pub struct Vars {
    pub(crate) now: i64,
    pub(crate) cluster_time: Option<u64>,
    pub(crate) user: Vec<(Arc<str>, Value)>,
}

impl Vars {
    /// `now_ms`: `$$NOW`, fixed for the whole command.
    pub fn new(now_ms: i64) -> Vars {
        Vars {
            now: now_ms,
            ..Vars::default()
        }
    }

    pub fn set_cluster_time(&mut self, ts: u64) {
        self.cluster_time = Some(ts);
    }

    /// Sets or replaces a user variable.
    pub fn set(&mut self, name: &str, v: Value) {
        self.user.retain(|(n, _)| &**n != name);
        self.user.push((Arc::from(name), v));
    }
}

/// A value bound to a name inside an expression (`$let`, `$map`, …), innermost first.
pub(crate) struct Scope<'a> {
    #[allow(dead_code)]
    pub(crate) name: &'a str,
    #[allow(dead_code)]
    pub(crate) parent: Option<&'a Scope<'a>>,
}

/// What an expression is evaluated over.
#[derive(Clone, Copy)]
pub struct EvalCtx<'a> {
    pub root: Doc<'a>,
    pub vars: &'a Vars,
    #[allow(dead_code)]
    pub(crate) scope: Option<&'a Scope<'a>>,
}

impl<'a> EvalCtx<'a> {
    pub fn new(root: Doc<'a>, vars: &'a Vars) -> EvalCtx<'a> {
        EvalCtx {
            root,
            vars,
            scope: None,
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

impl Computed<'_> {
    /// The value; `None` when missing.
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
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    constant: Option<Value>,
}

impl Expression {
    pub fn parse(val: Val<'_>, _env: &ParseEnv) -> Result<Expression> {
        Ok(Expression {
            constant: Some(val.to_value()),
        })
    }

    pub fn evaluate<'a>(&'a self, _ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
        Err(err!(NotImplemented, "expressions are not there yet"))
    }

    /// The value when it does not depend on the document.
    pub fn constant(&self) -> Option<&Value> {
        self.constant.as_ref()
    }

    /// The expression as MongoDB's explain prints it.
    pub fn to_value(&self) -> Value {
        self.constant.clone().unwrap_or(Value::NULL)
    }

    /// Dotted paths of the document that the expression reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        None
    }
}
