//! From query documents to nodes, with MongoDB's errors.

use super::geospatial;
use super::{BitMask, BitTest, CompiledRegex, InList, Node, Schema, Test, TextSearch, TypeSet};
use crate::expr::{Expression, ParseEnv};
use crate::path::FieldPath;
use bson::{Doc, Elem, Val, tag};
use errors::{Result, bail, err};
use std::cell::OnceCell;
use std::sync::Arc;

/// What the surroundings of a predicate allow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Top,
    /// Inside `$elemMatch`: nothing that needs the whole document.
    Element,
}

pub(super) fn parse(doc: Doc<'_>, env: &ParseEnv) -> Result<Node> {
    let root = simplify(parse_doc(doc, env, Place::Top)?);
    // Simplifying and what follows go over all clauses without a question of their own.
    errors::operation::steps(width(&root))?;
    Ok(root)
}

fn width(node: &Node) -> usize {
    match node {
        Node::And(clauses) | Node::Or(clauses) | Node::Nor(clauses) => clauses.len(),
        _ => 1,
    }
}

pub(super) fn parse_value_operators(ops: Doc<'_>, env: &ParseEnv) -> Result<Node> {
    let nodes = parse_operators(&FieldPath::empty(), ops, env)?;
    Ok(simplify(Node::and(nodes)))
}

fn parse_doc(doc: Doc<'_>, env: &ParseEnv, place: Place) -> Result<Node> {
    let mut nodes = Vec::new();
    for e in doc {
        errors::operation::step()?;
        match e.name.strip_prefix('$') {
            Some(op) => nodes.extend(parse_top(op, e, env, place)?),
            None => parse_field(e, env, &mut nodes)?,
        }
    }
    errors::operation::steps(nodes.len())?;
    Ok(Node::and(nodes))
}

/// `{field: value}`
fn parse_field(e: Elem<'_>, env: &ParseEnv, nodes: &mut Vec<Node>) -> Result<()> {
    let path = FieldPath::new(e.name);
    match e.val.tag {
        tag::DOCUMENT => {
            let d = e.val.as_doc().unwrap_or(Doc::EMPTY);
            if is_operators(d, false) {
                let mut ops = parse_operators(&path, d, env)?;
                nodes.append(&mut ops);
            } else {
                let test = Test::Eq(e.val.to_value()).collate(env.collation());
                nodes.push(Node::Pred { path, test });
            }
        }
        tag::REGEX => {
            let test = Test::Regex(Box::new(regex_of(e.val)?));
            nodes.push(Node::Pred { path, test });
        }
        _ => {
            let test = Test::Eq(operand(e.val)?.to_value()).collate(env.collation());
            nodes.push(Node::Pred { path, test });
        }
    }
    Ok(())
}

/// Whether a document holds operators rather than being a value: its first name starts with `$` and
/// it is no DBRef.
fn is_operators(d: Doc<'_>, incomplete_ref: bool) -> bool {
    let Some(first) = d.first() else {
        return false;
    };
    first.name.starts_with('$') && !is_dbref(d, incomplete_ref)
}

fn is_dbref(d: Doc<'_>, incomplete: bool) -> bool {
    let (r, i) = (d.contains("$ref"), d.contains("$id"));
    if incomplete {
        r || i || d.contains("$db")
    } else {
        r && i
    }
}

fn regex_of(v: Val<'_>) -> Result<CompiledRegex> {
    let (p, o) = v
        .as_regex()
        .ok_or_else(|| err!(BadValue, "malformed regular expression"))?;
    CompiledRegex::new(p, o)
}

fn operand(v: Val<'_>) -> Result<Val<'_>> {
    if v.tag == tag::UNDEFINED {
        bail!(BadValue, "cannot compare to undefined");
    }
    Ok(v)
}

/// An operator at the top of a query or of a clause.
fn parse_top(op: &str, e: Elem<'_>, env: &ParseEnv, place: Place) -> Result<Option<Node>> {
    let only_top = |what: &str| -> Result<()> {
        if place != Place::Top {
            bail!(
                BadValue,
                "{what} can only be applied to the top-level document"
            );
        }
        Ok(())
    };
    Ok(Some(match op {
        "and" => Node::and(clauses(e, env, place)?),
        "or" => Node::Or(clauses(e, env, place)?),
        "nor" => Node::Nor(clauses(e, env, place)?),
        "expr" => {
            only_top("$expr")?;
            Node::Expr(Arc::new(Expression::parse_condition(e.val, env)?))
        }
        "comment" => return Ok(None),
        // Of a shard's own: by bytes, whatever the collation is.
        "_pandoUncollated" => match e.val.as_doc() {
            Some(d) => parse_doc(d, &env.clone().collated(None), place)?,
            None => bail!(TypeMismatch, "$_pandoUncollated must be an object"),
        },
        "jsonSchema" => {
            let Some(d) = e.val.as_doc() else {
                bail!(TypeMismatch, "$jsonSchema must be an object");
            };
            Node::Schema(Arc::new(Schema::parse(d)?))
        }
        "sampleRate" => {
            only_top("$sampleRate")?;
            Node::Sample(sample_rate(e.val)?)
        }
        "alwaysTrue" | "alwaysFalse" => {
            if e.val.to_i64_exact() != Some(1) {
                bail!(FailedToParse, "{} must be an integer value of 1", e.name);
            }
            Node::Const(op == "alwaysTrue")
        }
        "where" => {
            only_top("$where")?;
            parse_where(e.val, env)?
        }
        // The fields of a DBRef. Names of collections and databases know no collation.
        "ref" | "id" | "db" => {
            let test = Test::Eq(operand(e.val)?.to_value());
            Node::Pred {
                path: FieldPath::new(e.name),
                test: match op {
                    "id" => test.collate(env.collation()),
                    _ => test,
                },
            }
        }
        "text" => {
            only_top("$text")?;
            parse_text(e.val, env)?
        }
        _ => bail!(
            BadValue,
            "unknown top level operator: {}. If you have a field name that starts with a '$' symbol, consider using \
             $getField or $setField.",
            e.name
        ),
    }))
}

fn sample_rate(v: Val<'_>) -> Result<f64> {
    let Some(rate) = v.to_f64() else {
        bail!(BadValue, "argument to $sampleRate must be a numeric type");
    };
    if !(0.0..=1.0).contains(&rate) {
        bail!(
            BadValue,
            "numeric argument to $sampleRate must be in [0, 1]"
        );
    }
    Ok(rate)
}

fn parse_where(v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    if !matches!(v.tag, tag::STRING | tag::CODE) {
        bail!(BadValue, "$where got bad type");
    }
    if !env.allows_where() {
        bail!(BadValue, "$where is not allowed in this context");
    }
    Ok(Node::Expr(Arc::new(Expression::parse_where(v, env)?)))
}

fn parse_text(v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    if v.tag != tag::DOCUMENT {
        bail!(TypeMismatch, "$text expects an object");
    }
    let search = ::text::TextExpression::parse(v.as_doc().unwrap_or(Doc::EMPTY))?;
    if !env.allows_text() {
        bail!(BadValue, "$text is not allowed in this context");
    }
    Ok(Node::Text(Arc::new(TextSearch {
        search,
        matcher: None,
    })))
}

fn clauses(e: Elem<'_>, env: &ParseEnv, place: Place) -> Result<Vec<Node>> {
    let Some(list) = e.val.as_array() else {
        bail!(BadValue, "{} must be an array", e.name);
    };
    let mut out = Vec::new();
    for v in list.values() {
        let Some(d) = v.as_doc() else {
            bail!(BadValue, "$or/$and/$nor entries need to be full objects");
        };
        out.push(parse_doc(d, env, place)?);
    }
    if out.is_empty() {
        bail!(BadValue, "$and/$or/$nor must be a nonempty array");
    }
    Ok(out)
}

/// The operators of one field: `{$gt: 1, $lt: 5}`.
fn parse_operators(path: &FieldPath, ops: Doc<'_>, env: &ParseEnv) -> Result<Vec<Node>> {
    let mut out = Vec::new();
    let neighbours = Neighbours {
        all: ops,
        options: OnceCell::new(),
    };
    let mut has_regex = false;
    // Its limits stand beside it.
    if let Some(near) = geospatial::near(ops, env)? {
        out.push(Node::Pred {
            path: path.clone(),
            test: near,
        });
        return Ok(out);
    }
    for e in ops {
        errors::operation::step()?;
        match e.name {
            // `$regex` reads its neighbour `$options`.
            "$options" => {
                has_regex = has_regex || ops.contains("$regex");
                if !has_regex {
                    bail!(BadValue, "$options needs a $regex");
                }
            }
            _ => out.push(parse_operator(path, e, &neighbours, env)?),
        }
    }
    Ok(out)
}

/// The operators beside one. A search among them is done once: there may be a million.
struct Neighbours<'a> {
    all: Doc<'a>,
    /// The last `$options`, and whether a `$regex` follows one.
    options: OnceCell<(Option<&'a str>, bool)>,
}

impl<'a> Neighbours<'a> {
    fn options(&self) -> Result<(Option<&'a str>, bool)> {
        if let Some(known) = self.options.get() {
            return Ok(*known);
        }
        let (mut options, mut first) = (None, false);
        for e in self.all {
            if e.name == "$options" {
                let Some(s) = e.val.as_str() else {
                    bail!(BadValue, "$options has to be a string");
                };
                options = Some(s);
            } else if e.name == "$regex" && options.is_some() {
                first = true;
            }
        }
        Ok(*self.options.get_or_init(|| (options, first)))
    }
}

fn parse_operator(
    path: &FieldPath,
    e: Elem<'_>,
    all: &Neighbours<'_>,
    env: &ParseEnv,
) -> Result<Node> {
    let v = e.val;
    let pred = |test: Test| Node::Pred {
        path: path.clone(),
        test: test.collate(env.collation()),
    };
    let not = |n: Node| Node::Not(Box::new(n));
    let comparison = || -> Result<bson::Value> {
        if v.tag == tag::REGEX {
            bail!(
                BadValue,
                "Can't have RegEx as arg to predicate over field '{path}'."
            );
        }
        Ok(operand(v)?.to_value())
    };
    Ok(match e.name {
        "$eq" => pred(Test::Eq(operand(v)?.to_value())),
        "$ne" => {
            if v.tag == tag::REGEX {
                bail!(BadValue, "Can't have regex as arg to $ne.");
            }
            not(pred(Test::Eq(operand(v)?.to_value())))
        }
        "$lt" => pred(Test::Lt(comparison()?)),
        "$lte" => pred(Test::Lte(comparison()?)),
        "$gt" => pred(Test::Gt(comparison()?)),
        "$gte" => pred(Test::Gte(comparison()?)),
        "$in" => pred(Test::of_list(in_list(v, "$in")?, env.collation())?),
        "$nin" => not(pred(Test::of_list(in_list(v, "$nin")?, env.collation())?)),
        "$exists" if v.truthy() => pred(Test::Exists),
        "$exists" => not(pred(Test::Exists)),
        "$type" => pred(Test::Type(TypeSet::parse(v, path.as_str())?)),
        "$size" => pred(Test::Size(size(v)?)),
        "$mod" => modulo(v).map(pred)?,
        "$regex" => pred(Test::Regex(Box::new(regex_operator(all, v)?))),
        "$not" => negation(path, v, env)?,
        "$all" => all_of(path, v, env)?,
        "$elemMatch" => pred(elem_match(v, env)?),
        "$bitsAllSet" => bits(path, BitTest::AllSet, v)?,
        "$bitsAllClear" => bits(path, BitTest::AllClear, v)?,
        "$bitsAnySet" => bits(path, BitTest::AnySet, v)?,
        "$bitsAnyClear" => bits(path, BitTest::AnyClear, v)?,
        "$geoWithin" | "$within" | "$geoIntersects" => pred(geospatial::test(e, all.all)?),
        "$near" | "$nearSphere" | "$geoNear" => {
            bail!(BadValue, "near must be first in: {}", all.all)
        }
        name => bail!(BadValue, "unknown operator: {name}"),
    })
}

/// Whether the language has an operator on fields of that name: other names may begin with `$` in a
/// value.
fn is_operator(name: &str) -> bool {
    matches!(
        name,
        "$eq"
            | "$ne"
            | "$lt"
            | "$lte"
            | "$gt"
            | "$gte"
            | "$in"
            | "$nin"
            | "$exists"
            | "$type"
            | "$size"
            | "$mod"
            | "$regex"
            | "$options"
            | "$not"
            | "$all"
            | "$elemMatch"
            | "$bitsAllSet"
            | "$bitsAllClear"
            | "$bitsAnySet"
            | "$bitsAnyClear"
            | "$geoWithin"
            | "$within"
            | "$geoIntersects"
            | "$near"
            | "$nearSphere"
            | "$geoNear"
    )
}

fn bits(path: &FieldPath, test: BitTest, v: Val<'_>) -> Result<Node> {
    Ok(Node::Pred {
        path: path.clone(),
        test: Test::Bits {
            test,
            mask: BitMask::parse(v, test, path.as_str())?,
        },
    })
}

fn in_list(v: Val<'_>, op: &str) -> Result<InList> {
    let Some(list) = v.as_array() else {
        bail!(BadValue, "{op} needs an array");
    };
    let (mut values, mut regexes) = (Vec::new(), Vec::new());
    for v in list.values() {
        errors::operation::step()?;
        match v.tag {
            tag::REGEX => regexes.push(regex_of(v)?),
            tag::DOCUMENT if is_operators(v.as_doc().unwrap_or(Doc::EMPTY), false) => {
                bail!(BadValue, "cannot nest $ under {op}")
            }
            _ => values.push(operand(v)?.to_value()),
        }
    }
    let steps = values.len();
    let list = InList::new(values, regexes);
    // They have been put in order.
    errors::operation::steps(steps)?;
    Ok(list)
}

fn size(v: Val<'_>) -> Result<i64> {
    if !v.is_number() {
        bail!(
            BadValue,
            "Failed to parse $size. Expected a number in: $size: {v}"
        );
    }
    let Some(n) = v.to_i64_exact() else {
        bail!(
            BadValue,
            "Failed to parse $size. Expected an integer: $size: {v}"
        );
    };
    if i32::try_from(n).is_err() {
        bail!(
            BadValue,
            "Failed to parse $size. Cannot represent as a 32-bit integer: $size: {v}"
        );
    }
    if n < 0 {
        bail!(
            BadValue,
            "Failed to parse $size. Expected a non-negative number in: $size: {v}"
        );
    }
    Ok(n)
}

fn modulo(v: Val<'_>) -> Result<Test> {
    let Some(list) = v.as_array() else {
        bail!(BadValue, "malformed mod, needs to be an array");
    };
    let parts: Vec<Val<'_>> = list.values().take(3).collect();
    let [d, r] = parts[..] else {
        match parts.len() {
            0 | 1 => bail!(BadValue, "malformed mod, not enough elements"),
            _ => bail!(BadValue, "malformed mod, too many elements"),
        }
    };
    if !d.is_number() {
        bail!(BadValue, "malformed mod, divisor not a number");
    }
    if !r.is_number() {
        bail!(BadValue, "malformed mod, remainder not a number");
    }
    let part = |v: Val<'_>, what: &str| {
        super::eval::integer_part(v).ok_or_else(|| {
            err!(
                BadValue,
                "malformed mod, {what} value is invalid :: caused by :: Unable to coerce NaN/Inf to integral type"
            )
        })
    };
    let divisor = part(d, "divisor")?;
    let remainder = part(r, "remainder")?;
    if divisor == 0 {
        bail!(BadValue, "divisor cannot be 0");
    }
    Ok(Test::Mod { divisor, remainder })
}

/// `$regex` with the `$options` beside it.
fn regex_operator(all: &Neighbours<'_>, v: Val<'_>) -> Result<CompiledRegex> {
    let (pattern, flags) = match v.tag {
        tag::STRING => match v.as_str() {
            Some(s) => (s, None),
            None => bail!(51091, "Regular expression is invalid: not valid UTF-8"),
        },
        tag::REGEX => match v.as_regex() {
            Some((p, o)) => (p, Some(o)),
            None => bail!(BadValue, "$regex has to be a string"),
        },
        _ => bail!(BadValue, "$regex has to be a string"),
    };
    let (options, options_first) = all.options()?;
    if let (Some(f), Some(_)) = (flags, options)
        && !f.is_empty()
    {
        if options_first {
            bail!(51074, "options set in both $regex and $options");
        }
        bail!(51075, "options set in both $regex and $options");
    }
    CompiledRegex::new(pattern, options.or(flags).unwrap_or(""))
}

fn negation(path: &FieldPath, v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    let inner = match v.tag {
        tag::REGEX => Node::Pred {
            path: path.clone(),
            test: Test::Regex(Box::new(regex_of(v)?)),
        },
        tag::DOCUMENT => {
            let d = v.as_doc().unwrap_or(Doc::EMPTY);
            if d.is_empty() {
                bail!(BadValue, "$not cannot be empty");
            }
            Node::and(parse_operators(path, d, env)?)
        }
        _ => bail!(BadValue, "$not needs a regex or a document"),
    };
    Ok(Node::Not(Box::new(inner)))
}

fn all_of(path: &FieldPath, v: Val<'_>, env: &ParseEnv) -> Result<Node> {
    let Some(list) = v.as_array() else {
        bail!(BadValue, "$all needs an array");
    };
    let mut nodes = Vec::new();
    let mut elem_matches = None;
    for v in list.values() {
        errors::operation::step()?;
        let d = v.as_doc();
        let is_elem_match = d
            .and_then(|d| d.first())
            .is_some_and(|e| e.name == "$elemMatch");
        match elem_matches {
            None => elem_matches = Some(is_elem_match),
            Some(true) if !is_elem_match => {
                bail!(BadValue, "$all/$elemMatch has to be consistent")
            }
            _ => {}
        }
        let test = match (v.tag, d) {
            (tag::DOCUMENT, Some(d)) if elem_matches == Some(true) => {
                let Some(e) = d.first() else { continue };
                elem_match(e.val, env)?
            }
            (tag::DOCUMENT, Some(d)) if d.first().is_some_and(|e| is_operator(e.name)) => {
                bail!(BadValue, "no $ expressions in $all")
            }
            (tag::REGEX, _) => Test::Regex(Box::new(regex_of(v)?)),
            _ => Test::Eq(operand(v)?.to_value()).collate(env.collation()),
        };
        nodes.push(Node::Pred {
            path: path.clone(),
            test,
        });
    }
    if nodes.is_empty() {
        return Ok(Node::Const(false));
    }
    Ok(Node::and(nodes))
}

fn elem_match(v: Val<'_>, env: &ParseEnv) -> Result<Test> {
    let Some(d) = v.as_doc() else {
        bail!(BadValue, "$elemMatch needs an Object");
    };
    let on_values = is_operators(d, true)
        && !matches!(
            d.first().map(|e| e.name),
            Some(
                "$and"
                    | "$or"
                    | "$nor"
                    | "$expr"
                    | "$where"
                    | "$text"
                    | "$jsonSchema"
                    | "$comment"
                    | "$sampleRate"
                    | "$alwaysTrue"
                    | "$alwaysFalse"
            )
        );
    Ok(if on_values {
        let nodes = parse_operators(&FieldPath::empty(), d, env)?;
        Test::ElemMatchValue(Box::new(simplify(Node::and(nodes))))
    } else {
        Test::ElemMatchObject(Box::new(simplify(parse_doc(d, env, Place::Element)?)))
    })
}

/// Rewrites that keep the meaning: constants fold, single clauses stand alone, `$or` of equalities
/// on one field is `$in`, `$in` of one value is equality.
pub(super) fn simplify(node: Node) -> Node {
    match node {
        Node::And(c) => Node::and(c.into_iter().map(simplify).collect()),
        Node::Or(c) => {
            let mut out = Vec::with_capacity(c.len());
            for n in c.into_iter().map(simplify) {
                match n {
                    Node::Or(mut inner) => out.append(&mut inner),
                    Node::Const(false) => {}
                    Node::Const(true) => return Node::Const(true),
                    n => out.push(n),
                }
            }
            match out.len() {
                0 => Node::Const(false),
                1 => out.remove(0),
                _ => or_to_in(out),
            }
        }
        Node::Nor(c) => {
            let mut out = Vec::with_capacity(c.len());
            for n in c.into_iter().map(simplify) {
                match n {
                    Node::Const(false) => {}
                    Node::Const(true) => return Node::Const(false),
                    n => out.push(n),
                }
            }
            match out.len() {
                0 => Node::Const(true),
                _ => Node::Nor(out),
            }
        }
        Node::Not(n) => match simplify(*n) {
            Node::Const(b) => Node::Const(!b),
            Node::Not(n) => *n,
            n => Node::Not(Box::new(n)),
        },
        Node::Pred {
            path,
            test: Test::In(l),
        } => match (&l.values[..], &l.regexes[..]) {
            ([], []) => Node::Const(false),
            ([one], []) => Node::Pred {
                path,
                test: Test::Eq(one.clone()),
            },
            ([], [one]) => Node::Pred {
                path,
                test: Test::Regex(Box::new(one.clone())),
            },
            _ => Node::Pred {
                path,
                test: Test::In(l),
            },
        },
        n => n,
    }
}

fn or_to_in(nodes: Vec<Node>) -> Node {
    let first = match &nodes[0] {
        Node::Pred {
            path,
            test: Test::Eq(_) | Test::In(_),
        } => path.clone(),
        _ => return Node::Or(nodes),
    };
    let same = nodes.iter().all(
        |n| matches!(n, Node::Pred { path, test: Test::Eq(_) | Test::In(_) } if *path == first),
    );
    if !same {
        return Node::Or(nodes);
    }
    let (mut values, mut regexes) = (Vec::new(), Vec::new());
    for n in nodes {
        match n {
            Node::Pred {
                test: Test::Eq(v), ..
            } => values.push(v),
            Node::Pred {
                test: Test::In(l), ..
            } => {
                let mut l = Arc::unwrap_or_clone(l);
                values.append(&mut l.values);
                regexes.append(&mut l.regexes);
            }
            _ => {}
        }
    }
    simplify(Node::Pred {
        path: first,
        test: Test::In(InList::new(values, regexes).into()),
    })
}
