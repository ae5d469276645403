//! From BSON to nodes: operands, paths, variables, and the argument styles that operators share.

use super::node::{Call, Node, Prepared, System};
use super::path::ExprPath;
use super::table::{self, Named, Op, Syntax};
use crate::collation::Collation;
use crate::list::Places;
use crate::metadata::Available;
use bson::{Doc, Val, tag};
use errors::{Result, bail, err, operation};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The context of parsing: the variables that may be named.
#[derive(Clone, Default)]
pub struct ParseEnv {
    names: Option<Arc<Names>>,
    /// `CURRENT` was bound to something else than the document.
    rebound: bool,
    /// How strings compare; `None`: byte by byte.
    collation: Option<Collation>,
    /// Constant parts that fail are left to the documents.
    late_errors: bool,
    /// A query may have `$where`, and `$near`.
    allows_where: bool,
    /// How far a document is from a point is known.
    near: bool,
    /// A query may have `$text`.
    allows_text: bool,
    /// What `$meta` may ask for.
    available: Available,
    /// What may be said of `$$SEARCH_META`.
    search_meta: SearchMetaAccess,
    /// Shared by all that is parsed with it.
    constants: Arc<ConstantBudget>,
}

/// Whether `$$SEARCH_META` may be read at a place of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SearchMetaAccess {
    /// There is no pipeline: the variable is missing.
    #[default]
    Outside,
    /// No search stands before.
    NoSearch,
    Known,
    /// A stage that has a pipeline of its own stands before.
    BehindPipeline,
}

/// The names of one `let`, and those around it. A `let` may have as many as fit into a command, and a
/// command as many places where they are known: going into one copies nothing.
#[derive(Default)]
struct Names {
    own: HashSet<Arc<str>>,
    outer: Option<Arc<Names>>,
}

/// The most bytes that a command's computed constants may have, and that may be gone over for them:
/// parsing cannot be ended, and a short call may give a long value.
const CONSTANT_BYTES: usize = 32 << 20;

/// The bytes that are left of [`CONSTANT_BYTES`].
pub(crate) struct ConstantBudget(AtomicUsize);

impl Default for ConstantBudget {
    fn default() -> ConstantBudget {
        ConstantBudget(AtomicUsize::new(CONSTANT_BYTES))
    }
}

impl ConstantBudget {
    /// Whether there were as many. One thread parses.
    pub fn take(&self, bytes: usize) -> bool {
        match self.0.load(Relaxed).checked_sub(bytes) {
            Some(left) => {
                self.0.store(left, Relaxed);
                true
            }
            None => {
                self.0.store(0, Relaxed);
                false
            }
        }
    }

    /// Nothing is computed any more.
    pub fn is_spent(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}

impl ParseEnv {
    pub fn new() -> ParseEnv {
        ParseEnv::default()
    }

    /// The same, where an error of a constant part shows on the first document that it is computed
    /// for.
    pub fn with_late_errors(&self) -> ParseEnv {
        ParseEnv {
            late_errors: true,
            ..self.clone()
        }
    }

    pub(crate) fn constants(&self) -> &ConstantBudget {
        &self.constants
    }

    pub(crate) fn has_late_errors(&self) -> bool {
        self.late_errors
    }

    /// Makes a user variable known (`let` of a command or of `$lookup`); refuses names MongoDB
    /// refuses.
    pub fn define(&mut self, name: &str) -> Result<()> {
        check_variable_name(name, true)?;
        self.define_unchecked(name);
        Ok(())
    }

    /// Makes a variable of the server's own known (`DESCEND` inside `$redact`).
    pub fn define_unchecked(&mut self, name: &str) {
        self.define_shared(Arc::from(name));
    }

    fn define_shared(&mut self, name: Arc<str>) {
        self.rebound |= &*name == "CURRENT";
        match self.names.as_mut().and_then(Arc::get_mut) {
            Some(names) => {
                names.own.insert(name);
            }
            None => {
                let own = HashSet::from([name]);
                let outer = self.names.take();
                self.names = Some(Arc::new(Names { own, outer }));
            }
        }
    }

    /// Whether queries that are parsed with it may have `$where`: those of commands, not those of
    /// stages, indexes and validators.
    pub fn allow_where(mut self, allowed: bool) -> ParseEnv {
        self.allows_where = allowed;
        self
    }

    /// Says whether `$meta` may ask for the distance from a point.
    pub(crate) fn with_near(mut self, near: bool) -> ParseEnv {
        self.near = near;
        self
    }

    pub(crate) fn has_near(&self) -> bool {
        self.near
    }

    pub(crate) fn allows_where(&self) -> bool {
        self.allows_where
    }

    /// Whether queries that are parsed with it may have `$text`: those that an index answers.
    pub fn allow_text(mut self, allowed: bool) -> ParseEnv {
        self.allows_text = allowed;
        self
    }

    pub(crate) fn allows_text(&self) -> bool {
        self.allows_text
    }

    /// Whether the parsed expression is computed over documents that `$text` found.
    pub fn with_text_score(self, there: bool) -> ParseEnv {
        self.with_available(Available::of_text(there))
    }

    /// Says which metadata `$meta` may ask for.
    pub(crate) fn with_available(mut self, available: Available) -> ParseEnv {
        self.available = available;
        self
    }

    pub(crate) fn with_search_meta(mut self, access: SearchMetaAccess) -> ParseEnv {
        self.search_meta = access;
        self
    }

    pub(crate) fn search_meta(&self) -> SearchMetaAccess {
        self.search_meta
    }

    pub fn available(&self) -> Available {
        self.available
    }

    /// The same for expressions and filters under a collation.
    pub fn collated(mut self, collation: Option<Collation>) -> ParseEnv {
        self.collation = collation;
        self
    }

    #[inline]
    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_ref()
    }

    pub fn knows(&self, name: &str) -> bool {
        let mut scope = self.names.as_deref();
        while let Some(names) = scope {
            if names.own.contains(name) {
                return true;
            }
            scope = names.outer.as_deref();
        }
        false
    }
}

/// Checks a variable's name as `let` may bind it (`write`) or as `$$name` may read it.
pub(super) fn check_variable_name(name: &str, write: bool) -> Result<()> {
    if name.is_empty() {
        bail!(FailedToParse, "empty variable names are not allowed");
    }
    if write && name == "CURRENT" {
        return Ok(());
    }
    let first_ok =
        |c: char| c.is_ascii_lowercase() || !c.is_ascii() || !write && c.is_ascii_uppercase();
    if !name.starts_with(first_ok) {
        bail!(
            FailedToParse,
            "'{name}' starts with an invalid character for a user variable name"
        );
    }
    if let Some(c) = name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || *c == '_' || !c.is_ascii()))
    {
        bail!(
            FailedToParse,
            "'{name}' contains an invalid character for a variable name: '{c}'"
        );
    }
    Ok(())
}

/// Checks one component of a path, or the name of a computed field.
pub(crate) fn check_field_name(name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(15998, "FieldPath field names may not be empty strings.");
    }
    if name.starts_with('$') && !matches!(name, "$id" | "$ref" | "$db") {
        bail!(
            16410,
            "FieldPath field names may not start with '$'. Consider using $getField or $setField."
        );
    }
    if name.contains('\0') {
        bail!(16411, "FieldPath field names may not contain '\\0'.");
    }
    if name.contains('.') {
        bail!(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField."
        );
    }
    Ok(())
}

pub(super) fn operand(v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    operation::step()?;
    match v.tag {
        tag::STRING => match v.as_str() {
            Some(s) if s.starts_with('$') => field_or_variable(s, env),
            _ => {
                super::string::check_length(v.bytes.len().saturating_sub(5))?;
                Ok(Node::Const(v.to_value()))
            }
        },
        tag::DOCUMENT => object(v.as_doc().unwrap_or(Doc::EMPTY), env),
        tag::ARRAY => {
            let items = v.as_array().unwrap_or(Doc::EMPTY);
            Ok(Node::Array(
                items
                    .values()
                    .map(|x| operand(x, env))
                    .collect::<Result<_>>()?,
            ))
        }
        _ => Ok(Node::Const(v.to_value())),
    }
}

pub(super) fn field_or_variable(s: &str, env: &ParseEnv) -> Result<Node> {
    if s == "$" {
        bail!(16872, "'$' by itself is not a valid FieldPath");
    }
    let Some(full) = s.strip_prefix("$$") else {
        let path = expression_path(&s[1..])?;
        return Ok(if env.rebound {
            Node::Var(Arc::from("CURRENT"), path)
        } else {
            Node::Path(path)
        });
    };
    let (name, rest) = match full.split_once('.') {
        Some((n, r)) => (n, Some(r)),
        None => (full, None),
    };
    check_variable_name(name, false)?;
    let path = |r: Option<&str>| r.map_or(Ok(ExprPath::default()), expression_path);
    if env.knows(name) {
        return Ok(Node::Var(Arc::from(name), path(rest)?));
    }
    let system = match name {
        "ROOT" => System::Root,
        "CURRENT" => {
            return match rest {
                Some(r) => Ok(Node::Path(expression_path(r)?)),
                None => Ok(Node::System(System::Root, ExprPath::default())),
            };
        }
        "NOW" => System::Now,
        "CLUSTER_TIME" => System::ClusterTime,
        "REMOVE" => System::Remove,
        "SEARCH_META" => search_meta(env)?,
        _ => bail!(17276, "Use of undefined variable: {name}"),
    };
    Ok(Node::System(system, path(rest)?))
}

fn search_meta(env: &ParseEnv) -> Result<System> {
    match env.search_meta {
        SearchMetaAccess::Outside | SearchMetaAccess::Known => Ok(System::SearchMeta),
        SearchMetaAccess::NoSearch => bail!(
            6347902,
            "Can't access $$SEARCH_META without a $search stage earlier in the pipeline"
        ),
        SearchMetaAccess::BehindPipeline => bail!(
            6347901,
            "Can't access $$SEARCH_META after a stage with a sub-pipeline"
        ),
    }
}

/// A path after `$` or after a variable: an empty one ended with a dot.
fn expression_path(p: &str) -> Result<ExprPath> {
    if p.is_empty() {
        bail!(40353, "FieldPath must not end with a '.'.");
    }
    ExprPath::parse(p)
}

pub(super) fn object(d: Doc<'_>, env: &ParseEnv) -> Result<Node> {
    let Some(first) = d.first() else {
        return Ok(Node::Doc(Vec::new()));
    };
    if first.name.starts_with('$') {
        if d.count() != 1 {
            bail!(
                15983,
                "an object representing an expression must have exactly one field: {d}"
            );
        }
        return call(first.name, first.val, env);
    }
    let mut fields: Vec<(Box<str>, Node)> = Vec::new();
    let mut places = Places::default();
    for e in d.iter() {
        check_field_name(e.name)?;
        if places.find(&fields, e.name.as_bytes()).is_some() {
            bail!(
                16406,
                "duplicate field name specified in object literal: {d}"
            );
        }
        fields.push((Box::from(e.name), operand(e.val, env)?));
        places.note(&fields);
    }
    Ok(Node::Doc(fields))
}

/// Operators that compare values.
const COLLATED: [&str; 18] = [
    "$cmp",
    "$eq",
    "$gt",
    "$gte",
    "$in",
    "$indexOfArray",
    "$lt",
    "$lte",
    "$max",
    "$maxN",
    "$min",
    "$minN",
    "$ne",
    "$setDifference",
    "$setEquals",
    "$setIntersection",
    "$setIsSubset",
    "$setUnion",
];

/// In the condition of a query MongoDB looks a field up in a constant list byte by byte, whatever
/// the collation.
pub(super) fn look_up(condition: &mut Node) {
    let constant = |n: &Node| match n {
        Node::Const(_) => true,
        Node::Array(items) => items.iter().all(|i| matches!(i, Node::Const(_))),
        _ => false,
    };
    let Node::Call(c) = condition else { return };
    match (c.op.name, c.args.as_mut_slice()) {
        ("$and" | "$or", args) => args.iter_mut().for_each(look_up),
        ("$in", [Node::Path(_), list]) if constant(list) => c.prepared = Prepared::None,
        _ => {}
    }
}

/// `{name: arg}` where `name` starts with `$`.
pub(super) fn call(name: &str, arg: Val<'_>, env: &ParseEnv) -> Result<Node> {
    let op = table::find(name)
        .ok_or_else(|| err!(InvalidPipelineOperator, "Unrecognized expression '{name}'"))?;
    let (args, prepared) = match op.syntax {
        Syntax::Args { min, max } => (arguments(op, arg, min, max, env)?, Prepared::None),
        Syntax::Named(spec) => (named(op, spec, arg, env)?, Prepared::None),
        Syntax::Custom { parse, .. } => match parse(op, arg, env)? {
            Parsed::Call(args, prepared) => (args, prepared),
            Parsed::Node(n) => return Ok(n),
        },
    };
    let prepared = match (prepared, env.collation()) {
        (Prepared::None, Some(c)) if COLLATED.contains(&name) => Prepared::Collation(c.clone()),
        (p, _) => p,
    };
    Ok(Node::Call(Box::new(Call { op, args, prepared })))
}

/// What a custom parser gives: arguments of a call, or another node in its place.
pub(crate) enum Parsed {
    Call(Vec<Node>, Prepared),
    Node(Node),
}

/// An array of operands, or one operand.
pub(super) fn arguments(
    op: &Op,
    arg: Val<'_>,
    min: usize,
    max: usize,
    env: &ParseEnv,
) -> Result<Vec<Node>> {
    let args: Vec<Node> = match arg.as_array() {
        Some(a) => a.values().map(|x| operand(x, env)).collect::<Result<_>>()?,
        None => vec![operand(arg, env)?],
    };
    let (n, name) = (args.len(), op.name);
    if min == max && n != min {
        bail!(
            16020,
            "Expression {name} takes exactly {min} arguments. {n} were passed in."
        );
    }
    if n < min || n > max {
        if max == usize::MAX {
            bail!(
                28667,
                "Expression {name} takes at least {min} arguments, but {n} were passed in."
            );
        }
        bail!(
            28667,
            "Expression {name} takes at least {min} arguments, and at most {max}, but {n} were passed in."
        );
    }
    Ok(args)
}

/// The fields of an object argument, by the table's order; unknown and missing ones are refused.
pub(super) fn fields<'a>(op: &Op, spec: &Named, arg: Val<'a>) -> Result<Vec<Option<Val<'a>>>> {
    let name = op.name;
    let Some(d) = arg.as_doc() else {
        return Err(errors::Error::coded(
            spec.not_object,
            format!(
                "{name} only supports an object as an argument, found: {}",
                arg.type_name()
            ),
        )
        .into());
    };
    let mut out = vec![None; spec.fields.len()];
    for e in d.iter() {
        match spec.fields.iter().position(|f| f.0 == e.name) {
            Some(i) => out[i] = Some(e.val),
            None => {
                return Err(errors::Error::coded(
                    spec.unknown,
                    format!("{name} found an unknown argument: {}", e.name),
                )
                .into());
            }
        }
    }
    for (i, (field, missing)) in spec.fields.iter().enumerate() {
        if *missing != 0 && out[i].is_none() {
            return Err(errors::Error::coded(
                *missing,
                format!("Missing '{field}' parameter to {name}"),
            )
            .into());
        }
    }
    Ok(out)
}

pub(super) fn optional(v: Option<Val<'_>>, env: &ParseEnv) -> Result<Node> {
    v.map_or(Ok(Node::Absent), |v| operand(v, env))
}

fn named(op: &Op, spec: &Named, arg: Val<'_>, env: &ParseEnv) -> Result<Vec<Node>> {
    fields(op, spec, arg)?
        .into_iter()
        .map(|v| optional(v, env))
        .collect()
}

impl ParseEnv {
    /// The same with more names, already checked.
    pub(super) fn with(&self, names: &[Arc<str>]) -> Result<ParseEnv> {
        let mut env = self.clone();
        for n in names {
            errors::operation::step()?;
            env.define_shared(n.clone());
        }
        Ok(env)
    }
}
