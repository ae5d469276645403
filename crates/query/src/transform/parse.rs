//! Specifications of the transforming stages.

use super::{Branch, Child, Kind, Mode, Transform};
use crate::expr::{ExprPath, Expression, ParseEnv, is_operator};
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Error, Result, Stop, bail, err, operation};

/// The most components of a path.
const MAX_DEPTH: usize = 200;

/// The properties of a `$project` so far.
struct Project<'e> {
    env: &'e ParseEnv,
    mode: Option<Mode>,
    /// `_id: 1` or `_id: 0`, which decides nothing for the other fields.
    id: Option<bool>,
    root: Branch,
}

impl Transform {
    /// The specification of an aggregation `$project`. (One that is no object is the caller's to
    /// refuse, code 15969.)
    pub fn project(d: Doc<'_>, env: &ParseEnv) -> Result<Transform> {
        let context = |e: Stop| e.context("Invalid $project");
        if d.is_empty() {
            return Err(context(
                err!(
                    51272,
                    "projection specification must have at least one field"
                )
                .into(),
            ));
        }
        let mut p = Project {
            env,
            mode: None,
            id: None,
            root: Branch::default(),
        };
        for e in d.iter() {
            p.element(e.name, e.val, 1).map_err(context)?;
        }
        let mode = p.mode.unwrap_or(match p.id {
            Some(false) => Mode::Exclude,
            _ => Mode::Include,
        });
        match (mode, p.id) {
            (Mode::Include, None | Some(true))
                if !p.root.children.iter().any(|(n, _)| &**n == "_id") =>
            {
                p.root.children.insert(0, ("_id".into(), Child::Leaf));
                p.root.places.renew(&p.root.children);
            }
            (Mode::Exclude, Some(false)) => {
                p.root.children.push(("_id".into(), Child::Leaf));
                p.root.places.note(&p.root.children);
            }
            _ => {}
        }
        Ok(Transform::tree(mode, p.root, Value::from(d)))
    }

    fn tree(mode: Mode, mut root: Branch, spec: Value) -> Transform {
        root.note_computed();
        Transform {
            kind: Kind::Tree(mode, root),
            spec,
        }
    }

    /// `$addFields` and `$set`; `stage` is the name for messages. (One that is no object: code
    /// 40272, the caller's.)
    pub fn add_fields(stage: &str, d: Doc<'_>, env: &ParseEnv) -> Result<Transform> {
        let mut root = Branch::default();
        for e in d.iter() {
            add_field(&mut root, e.name, e.val, env)
                .map_err(|e| e.context(&format!("Invalid {stage}")))?;
        }
        Ok(Transform::tree(Mode::Add, root, Value::from(d)))
    }

    /// `$unset`: a string or an array of strings.
    pub fn unset(spec: Val<'_>) -> Result<Transform> {
        let list = match (spec.as_str(), spec.as_array()) {
            (Some(_), _) => vec![spec],
            (_, Some(a)) => a.values().collect(),
            _ => bail!(31002, "$unset specification must be a string or an array"),
        };
        if list.is_empty() {
            bail!(
                31119,
                "$unset specification must be a string or an array with at least one field"
            );
        }
        let names: Option<Vec<&str>> = list.iter().map(|v| v.as_str()).collect();
        let Some(names) = names else {
            bail!(
                31120,
                "$unset specification must be a string or an array containing only string values"
            );
        };
        if names.iter().any(|n| n.contains('\0')) {
            bail!(
                9527900,
                "$unset field names must not contain embedded null bytes"
            );
        }
        let (mut root, mut printed) = (Branch::default(), Writer::new());
        for name in names {
            operation::step()?;
            insert(&mut root, &path(name)?, Child::Leaf, project_collision)
                .map_err(|e| e.context("Invalid $unset"))?;
            printed.bool(name, false);
        }
        Ok(Transform::tree(
            Mode::Exclude,
            root,
            Value::from(printed.finish()),
        ))
    }

    /// `$replaceRoot`'s specification `{newRoot: expr}`.
    pub fn replace_root(spec: Val<'_>, env: &ParseEnv) -> Result<Transform> {
        let Some(d) = spec.as_doc() else {
            bail!(
                40229,
                "expected an object as specification for $replaceRoot stage, got {}",
                spec.type_name()
            );
        };
        if let Some(e) = d.iter().find(|e| e.name != "newRoot") {
            bail!(
                40415,
                "BSON field '$replaceRoot.{}' is an unknown field.",
                e.name
            );
        }
        match d.get("newRoot") {
            Some(v) => Transform::replace_with(v, env),
            None => bail!(
                40414,
                "BSON field '$replaceRoot.newRoot' is missing but a required field"
            ),
        }
    }

    /// `$replaceWith`'s expression.
    pub fn replace_with(spec: Val<'_>, env: &ParseEnv) -> Result<Transform> {
        let e = Expression::parse(spec, env)?;
        let mut w = Writer::new();
        w.val("newRoot", e.to_value().as_val());
        Ok(Transform {
            kind: Kind::Replace(e),
            spec: Value::from(w.finish()),
        })
    }
}

impl Branch {
    fn note_computed(&mut self) -> bool {
        for (_, c) in &mut self.children {
            self.computed |= match c {
                Child::Leaf => false,
                Child::Computed(_) => true,
                Child::Branch(b) => b.note_computed(),
            };
        }
        self.computed
    }
}

/// A checked path as a stage's field name.
fn path(name: &str) -> Result<ExprPath> {
    if name.split('.').count() > MAX_DEPTH {
        bail!(
            Overflow,
            "FieldPath is too deep: it may have {MAX_DEPTH} components at most"
        );
    }
    ExprPath::parse(name)
}

type Collision = fn(&str, Option<&str>) -> Error;

/// `rest`: what follows the path that collides, when the shorter one came first.
fn project_collision(at: &str, rest: Option<&str>) -> Error {
    match rest {
        Some(rest) => err!(
            31249,
            "Path collision at {at}.{rest} remaining portion {rest}"
        ),
        None => err!(31250, "Path collision at {at}"),
    }
}

fn add_collision(at: &str, rest: Option<&str>) -> Error {
    err!(
        40176,
        "specification contains two conflicting paths. Cannot specify both '{at}{}{}' and '{at}'",
        if rest.is_some() { "." } else { "" },
        rest.unwrap_or("")
    )
}

fn insert(root: &mut Branch, path: &ExprPath, child: Child, collision: Collision) -> Result<()> {
    let parts = path.parts();
    let mut branch = root;
    for (i, part) in parts.iter().enumerate() {
        let at = branch.places.find(&branch.children, part.as_bytes());
        let last = i + 1 == parts.len();
        match at {
            Some(_) if last => return Err(collision(&parts.join("."), None).into()),
            None if last => {
                branch.children.push((part.clone(), child));
                branch.places.note(&branch.children);
                return Ok(());
            }
            Some(at) if !matches!(branch.children[at].1, Child::Branch(_)) => {
                return Err(
                    collision(&parts[..=i].join("."), Some(&parts[i + 1..].join("."))).into(),
                );
            }
            _ => {}
        }
        let at = at.unwrap_or_else(|| {
            let fresh = Child::Branch(Branch::default());
            branch.children.push((part.clone(), fresh));
            branch.places.note(&branch.children);
            branch.children.len() - 1
        });
        match &mut branch.children[at].1 {
            Child::Branch(b) => branch = b,
            _ => return Err(Error::internal("a projection's leaf was entered").into()),
        }
    }
    Ok(())
}

impl Project<'_> {
    /// One element; `name` is its whole path.
    fn element(&mut self, name: &str, v: Val<'_>, depth: usize) -> Result<()> {
        operation::step()?;
        let p = path(name)?;
        match v.tag {
            tag::BOOL | tag::INT32 | tag::INT64 | tag::DOUBLE | tag::DECIMAL128 => {
                self.leaf(name, &p, v.truthy())
            }
            tag::DOCUMENT => self.document(name, &p, v, depth),
            _ => {
                let e = Expression::parse(v, self.env)?;
                self.computed(&p, e, false)
            }
        }
    }

    fn leaf(&mut self, name: &str, p: &ExprPath, include: bool) -> Result<()> {
        if name == "_id" {
            self.id = Some(include);
            if include {
                // Keeps its place in an inclusion; an exclusion keeps it anyway.
                return Ok(());
            }
            return Ok(());
        }
        let mode = if include {
            Mode::Include
        } else {
            Mode::Exclude
        };
        match self.mode {
            Some(Mode::Include) if !include && !name.starts_with("_id.") => {
                bail!(
                    31254,
                    "Cannot do exclusion on field {name} in inclusion projection"
                )
            }
            Some(Mode::Exclude) if include && !name.starts_with("_id.") => {
                bail!(
                    31253,
                    "Cannot do inclusion on field {name} in exclusion projection"
                )
            }
            _ => self.mode = Some(self.mode.unwrap_or(mode)),
        }
        insert(&mut self.root, p, Child::Leaf, project_collision)
    }

    fn document(&mut self, name: &str, p: &ExprPath, v: Val<'_>, depth: usize) -> Result<()> {
        let d = v.as_doc().unwrap_or(Doc::EMPTY);
        let Some(first) = d.first() else {
            bail!(
                51270,
                "An empty sub-projection is not a valid value. Found empty object at path"
            );
        };
        if first.name.starts_with('$') && d.count() == 1 {
            if !is_operator(first.name) && first.name != "$elemMatch" {
                bail!(31325, "Unknown expression {}", first.name);
            }
            let e = Expression::parse(v, self.env)?;
            return self.computed(p, e, true);
        }
        if depth > MAX_DEPTH {
            bail!(Overflow, "projection is nested too deep");
        }
        for e in d.iter() {
            self.element(&format!("{name}.{}", e.name), e.val, depth + 1)?;
        }
        Ok(())
    }

    fn computed(&mut self, p: &ExprPath, e: Expression, operator: bool) -> Result<()> {
        if self.mode == Some(Mode::Exclude) && e.operator() != Some("$meta") {
            return Err(if operator {
                err!(
                    31252,
                    "Cannot use expression other than $meta in exclusion projection"
                )
                .into()
            } else {
                err!(31310, "Cannot use an expression in an exclusion projection").into()
            });
        }
        self.mode = self.mode.or(Some(Mode::Include));
        insert(&mut self.root, p, Child::Computed(e), project_collision)
    }
}

fn add_field(root: &mut Branch, name: &str, v: Val<'_>, env: &ParseEnv) -> Result<()> {
    operation::step()?;
    let p = path(name)?;
    if let Some(d) = v.as_doc().filter(|d| !d.is_empty()) {
        if d.iter().any(|e| e.name.starts_with('$')) {
            if d.count() != 1 {
                bail!(
                    40181,
                    "an expression specification must contain exactly one field, the name of the expression. Found {} fields in {d}, while parsing object {d}",
                    d.count()
                );
            }
        } else {
            for e in d.iter() {
                if e.name.contains('.') {
                    bail!(
                        40183,
                        "cannot use dotted field name '{}' in a sub object",
                        e.name
                    );
                }
                add_field(root, &format!("{name}.{}", e.name), e.val, env)?;
            }
            return Ok(());
        }
    }
    let e = Expression::parse(v, env)?;
    insert(root, &p, Child::Computed(e), add_collision)
}
