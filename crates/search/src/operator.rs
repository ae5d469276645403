//! The operators of a search: which there are, and how a specification names one.
//!
//! Source: MongoDB's manual, "Operators and Collectors".

use crate::fields::SpecificationFields;
use crate::join::Aggregate;
pub(crate) use crate::paths::PathSpec;
use crate::paths::paths;
use crate::places::{self, Place};
use crate::problem::wrong;
use crate::query_vector::Nearest;
use crate::span::{Spans, Words};
use crate::text_operators::{autocomplete, more_like_this, text};
use crate::value_operators::{near, range, value, values};
use bson::{Val, Value};
use errors::Result;
use errors::operation::step;
use geo::Near;

/// The most clauses that the terms of one operator make.
pub const MOST_CLAUSES: usize = 1024;

/// How deep operators may nest.
const MOST_DEPTH: usize = 50;

/// An operator, and what becomes of its scores.
#[derive(Clone, Debug)]
pub(crate) struct Clause {
    pub operator: Operator,
    pub score: ScoreChange,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScoreChange {
    None,
    Boost(f32),
    Constant(f32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuzzy {
    pub edits: usize,
    pub prefix: usize,
    pub expansions: usize,
}

/// The synonyms that an operator asks for.
#[derive(Clone, Debug)]
pub(crate) struct SynonymsOf {
    /// The field that names them.
    pub at: String,
    pub name: String,
}

/// What `text` looks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    pub query: Vec<String>,
    pub fuzzy: Option<Fuzzy>,
    /// All words of a text, and not any.
    pub all: bool,
    pub synonyms: Option<SynonymsOf>,
}

/// A bound of a range, in the index's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub kind: u8,
    pub low: Option<(Vec<u8>, bool)>,
    pub high: Option<(Vec<u8>, bool)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Operator {
    Text {
        paths: Vec<PathSpec>,
        text: Text,
    },
    Phrase {
        paths: Vec<PathSpec>,
        query: Vec<String>,
        slop: u32,
        synonyms: Option<SynonymsOf>,
    },
    Compound {
        must: Vec<Clause>,
        should: Vec<Clause>,
        must_not: Vec<Clause>,
        filter: Vec<Clause>,
        least: usize,
    },
    /// One of some values; `finite`: numbers that are none never match.
    Values {
        paths: Vec<String>,
        values: Vec<Value>,
        finite: bool,
    },
    Span(Spans<Words>),
    /// Documents with such an element at a path.
    Embedded {
        path: String,
        clause: Box<Clause>,
        aggregate: Aggregate,
    },
    /// Elements of such a document around them; `None`: the whole one.
    Ancestor {
        path: Option<String>,
        clause: Box<Clause>,
    },
    Exists {
        path: String,
    },
    Range {
        paths: Vec<String>,
        bounds: Bounds,
    },
    Near {
        paths: Vec<String>,
        kind: u8,
        origin: f64,
        pivot: f64,
    },
    /// `shapes`: of any kind, and not of points only.
    Place {
        paths: Vec<String>,
        place: Place,
        shapes: bool,
    },
    NearPoint {
        paths: Vec<String>,
        near: Near,
        pivot: f64,
    },
    Pattern {
        paths: Vec<PathSpec>,
        query: Vec<String>,
        analyzed: bool,
        regex: bool,
    },
    Autocomplete {
        path: String,
        query: Vec<String>,
        fuzzy: Option<Fuzzy>,
        in_order: bool,
    },
    /// The documents whose vectors are the nearest.
    Nearest(Nearest),
}

pub(crate) const OPERATORS: [&str; 21] = [
    "autocomplete",
    "compound",
    "embeddedDocument",
    "equals",
    "exists",
    "geoShape",
    "geoWithin",
    "hasAncestor",
    "hasRoot",
    "in",
    "knnBeta",
    "moreLikeThis",
    "near",
    "phrase",
    "queryString",
    "range",
    "regex",
    "span",
    "text",
    "vectorSearch",
    "wildcard",
];

impl SynonymsOf {
    pub fn parse(f: &SpecificationFields<'_>) -> Result<Option<SynonymsOf>> {
        let at = f.name("synonyms");
        let name = f.string("synonyms")?.map(str::to_string);
        match name {
            Some(name) if name.is_empty() => Err(wrong(format!("\"{at}\" cannot be empty"))),
            name => Ok(name.map(|name| SynonymsOf { at, name })),
        }
    }
}

impl Clause {
    /// Has `each` called with this one and all that it is made of.
    pub fn each<'c>(&'c self, each: &mut dyn FnMut(&'c Clause)) {
        each(self);
        if let Operator::Compound {
            must,
            should,
            must_not,
            filter,
            ..
        } = &self.operator
        {
            let all = [must, should, must_not, filter];
            all.into_iter().flatten().for_each(|c| c.each(each));
        }
        if let Operator::Embedded { clause, .. } | Operator::Ancestor { clause, .. } =
            &self.operator
        {
            clause.each(each);
        }
        if let Operator::Nearest(Nearest {
            filter: Some(filter),
            ..
        }) = &self.operator
        {
            filter.each(each);
        }
    }

    /// How many vectors it looks for, if it looks for the nearest.
    pub fn nearest(&mut self) -> Option<&mut usize> {
        match &mut self.operator {
            Operator::Nearest(nearest) => Some(&mut nearest.limit),
            _ => None,
        }
    }
}

/// The one operator among the fields.
pub(crate) fn only_clause(f: &SpecificationFields<'_>, depth: usize) -> Result<Clause> {
    if depth > MOST_DEPTH {
        return Err(wrong("operators are nested too deep"));
    }
    let known = |name: &str| OPERATORS.contains(&name) || name == "term" || name == "search";
    let mut found = f
        .doc
        .iter()
        .filter(|e| known(e.name) && !e.val.is_nullish());
    let Some(e) = found.next() else {
        let names = OPERATORS.join(", ");
        return Err(wrong(format!("one of [{names}] must be present")));
    };
    if let Some(other) = found.next() {
        return Err(wrong(format!(
            "only one operator may be present, found \"{}\" and \"{}\"",
            f.name(e.name),
            f.name(other.name)
        )));
    }
    for name in OPERATORS.iter().chain(&["term", "search"]) {
        f.raw(name);
    }
    step()?;
    let at = f.name(e.name);
    let f = SpecificationFields::of(&at, e.val)?;
    let score = score(&f, e.name == "embeddedDocument")?;
    let operator = operator(e.name, &f, depth)?;
    f.end()?;
    Ok(Clause { operator, score })
}

fn operator(name: &str, f: &SpecificationFields<'_>, depth: usize) -> Result<Operator> {
    Ok(match name {
        "text" | "term" | "search" => text(f)?,
        "phrase" => Operator::Phrase {
            query: f.strings("query")?,
            paths: paths(f)?,
            slop: f.int("slop", 0, i32::MAX)?.unwrap_or(0) as u32,
            synonyms: SynonymsOf::parse(f)?,
        },
        "compound" => compound(f, depth)?,
        "equals" => {
            f.string("doesNotAffect")?;
            Operator::Values {
                paths: vec![f.required_string("path")?.to_string()],
                values: vec![value(f, "value", f.raw("value"))?],
                finite: true,
            }
        }
        "in" => values(f)?,
        "exists" => Operator::Exists {
            path: f.required_string("path")?.to_string(),
        },
        "range" => range(f)?,
        "near" => near(f)?,
        "wildcard" | "regex" => Operator::Pattern {
            query: f.strings("query")?,
            paths: paths(f)?,
            analyzed: f.flag("allowAnalyzedField")?.unwrap_or(false),
            regex: name == "regex",
        },
        "autocomplete" => autocomplete(f)?,
        "moreLikeThis" => more_like_this(f)?,
        "geoWithin" => places::geo_within(f)?,
        "geoShape" => places::geo_shape(f)?,
        "embeddedDocument" => crate::join::embedded(f, depth)?,
        "hasAncestor" => crate::join::ancestor(f, depth, false)?,
        "hasRoot" => crate::join::ancestor(f, depth, true)?,
        "queryString" => crate::query_string::parse(f)?,
        "knnBeta" | "vectorSearch" if depth > 0 => {
            return Err(wrong(format!(
                "\"{}\" must be the top-level operator",
                f.at
            )));
        }
        "knnBeta" | "vectorSearch" => Nearest::parse(f, name == "knnBeta")?,
        "span" => Operator::Span(crate::span::parse(f, 0)?),
        other => return Err(wrong(format!("\"{other}\" is not supported yet"))),
    })
}

/// What becomes of an operator's scores. `elements`: they are made of those of elements, whose sum or the like is changed by
/// `outerScore`.
fn score(f: &SpecificationFields<'_>, elements: bool) -> Result<ScoreChange> {
    match f.doc("score")? {
        None => Ok(ScoreChange::None),
        Some(s) => score_change(&s, elements),
    }
}

fn score_change(s: &SpecificationFields<'_>, elements: bool) -> Result<ScoreChange> {
    let (boost, constant) = (s.doc("boost")?, s.doc("constant")?);
    let (function, embedded) = (s.doc("function")?, s.doc("embedded")?);
    s.end()?;
    let given = [
        boost.is_some(),
        constant.is_some(),
        function.is_some(),
        embedded.is_some(),
    ];
    if given.iter().filter(|g| **g).count() != 1 {
        return Err(wrong(format!(
            "\"{}\" must have exactly one of [boost, constant, embedded, function]",
            s.at
        )));
    }
    let number =
        |f: &SpecificationFields<'_>, v: Val<'_>| match v.to_f64().filter(|_| v.is_number()) {
            Some(n) if n.is_finite() && n >= 0.0 => Ok(n as f32),
            _ => Err(wrong(format!(
                "\"{}.value\" must be a positive number",
                f.at
            ))),
        };
    if let Some(e) = embedded {
        if !elements {
            return Err(wrong(format!("\"{}\" is for embeddedDocument", e.at)));
        }
        e.string("aggregate")?;
        let outer = e.doc("outerScore")?;
        e.end()?;
        return outer.map_or(Ok(ScoreChange::None), |outer| score_change(&outer, false));
    }
    if let Some(b) = boost {
        if b.get("path").is_some() {
            return Err(wrong(format!("\"{}.path\" is not supported yet", b.at)));
        }
        let by = number(&b, b.required("value")?)?;
        b.end()?;
        return Ok(ScoreChange::Boost(by));
    }
    if let Some(c) = constant {
        let to = number(&c, c.required("value")?)?;
        c.end()?;
        return Ok(ScoreChange::Constant(to));
    }
    match function {
        Some(f) if f.doc.get("score").and_then(|v| v.as_str()) == Some("relevance") => {
            Ok(ScoreChange::None)
        }
        Some(f) if f.doc.contains("constant") => {
            Ok(ScoreChange::Constant(number(&f, f.required("constant")?)?))
        }
        _ => Err(wrong(format!("this \"{}\" is not supported yet", s.at))),
    }
}

/// The clauses at a place: a document, or a list of some. `parse` reads one, which has no other field.
pub(crate) fn one_or_several<T>(
    at: &str,
    v: Val<'_>,
    parse: impl Fn(&SpecificationFields<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let one = |at: &str, v: Val<'_>| -> Result<T> {
        let f = SpecificationFields::of(at, v)?;
        let clause = parse(&f)?;
        f.end()?;
        Ok(clause)
    };
    let Some(list) = v.as_array() else {
        return Ok(vec![one(at, v)?]);
    };
    let mut out = Vec::new();
    for (i, v) in list.values().enumerate() {
        out.push(one(&format!("{at}[{i}]"), v)?);
    }
    match out.is_empty() {
        true => Err(wrong(format!("\"{at}\" cannot be empty"))),
        false if out.len() > MOST_CLAUSES => Err(too_many_clauses()),
        false => Ok(out),
    }
}

fn compound(f: &SpecificationFields<'_>, depth: usize) -> Result<Operator> {
    let clauses = |name: &'static str| -> Result<Vec<Clause>> {
        let Some(v) = f.get(name) else {
            return Ok(Vec::new());
        };
        one_or_several(&f.name(name), v, |f| only_clause(f, depth + 1))
    };
    let (must, should) = (clauses("must")?, clauses("should")?);
    let (must_not, filter) = (clauses("mustNot")?, clauses("filter")?);
    if must.is_empty() && should.is_empty() && must_not.is_empty() && filter.is_empty() {
        return Err(wrong(format!("\"{}\" must have at least one clause", f.at)));
    }
    f.string("doesNotAffect")?;
    let most = i32::try_from(should.len()).unwrap_or(i32::MAX);
    let given = f.int("minimumShouldMatch", i32::MIN, i32::MAX)?;
    if let Some(n) = given
        && !(0..=most).contains(&n)
    {
        return Err(wrong(format!(
            "\"{}\" must be within bounds [0, {most}]",
            f.name("minimumShouldMatch")
        )));
    }
    let least = given.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    Ok(Operator::Compound {
        least: match must.is_empty() && filter.is_empty() && !should.is_empty() {
            true => least.max(1),
            false => least,
        },
        must,
        should,
        must_not,
        filter,
    })
}

pub(crate) fn too_many_clauses() -> errors::Stop {
    wrong(format!(
        "too many clauses: at most {MOST_CLAUSES} are allowed"
    ))
}
