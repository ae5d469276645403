//! What a `$search` or `$searchMeta` stage asks: parsed once, with MongoDB's errors.
//!
//! Source: MongoDB's manual, "Operators and Collectors".

use crate::definition::Kind;
use crate::facet::Facet;
use crate::fields::Fields;
use crate::problem::wrong;
use crate::terms::value_of;
use bson::{Doc, DocBuf, Val, Value, tag};
use errors::Result;
use errors::operation::step;

/// The most clauses that the terms of one operator make.
pub const MOST_CLAUSES: usize = 1024;

/// How deep operators may nest.
const MOST_DEPTH: usize = 50;

/// How results are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Count {
    #[default]
    LowerBound,
    Total,
}

/// A search over one index.
#[derive(Clone, Debug)]
pub struct Search {
    pub index: String,
    /// `None`: all documents.
    pub(crate) clause: Option<Clause>,
    pub(crate) facets: Vec<Facet>,
    pub(crate) count: Count,
    /// As `$sort` takes it.
    pub sort: Option<DocBuf>,
}

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

/// Where an operator looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathSpec {
    Path(String),
    /// A path and one of its other analyzers.
    Multi(String, String),
    /// Every path that matches.
    Wildcard(String),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuzzy {
    pub edits: usize,
    pub prefix: usize,
    pub expansions: usize,
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
        query: Vec<String>,
        fuzzy: Option<Fuzzy>,
        all: bool,
    },
    Phrase {
        paths: Vec<PathSpec>,
        query: Vec<String>,
        slop: u32,
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
}

const OPERATORS: [&str; 17] = [
    "autocomplete",
    "compound",
    "embeddedDocument",
    "equals",
    "exists",
    "geoShape",
    "geoWithin",
    "in",
    "moreLikeThis",
    "near",
    "phrase",
    "queryString",
    "range",
    "regex",
    "span",
    "text",
    "wildcard",
];

impl Search {
    /// From the stage's document. `meta`: of `$searchMeta`, which shows no documents.
    pub fn parse(stage: Doc<'_>, meta: bool) -> Result<Search> {
        let f = Fields::new("", stage);
        if let Some(v) = f.raw("scoreDetails")
            && v.as_bool().is_none()
        {
            errors::bail!(
                13111,
                "wrong type for field (scoreDetails) {} != bool",
                v.type_name()
            );
        }
        if let Some(v) = f.raw("returnStoredSource")
            && v.as_bool().is_none()
        {
            errors::bail!(
                13111,
                "wrong type for field (returnStoredSource) {} != bool",
                v.type_name()
            );
        }
        let index = f.string("index")?.unwrap_or("default");
        if index.is_empty() {
            return Err(wrong("\"index\" cannot be empty"));
        }
        let count = count(&f)?;
        let sort = sort(&f)?;
        f.flag("concurrent")?;
        if let Some(preference) = f.doc("searchNodePreference")? {
            preference.required_string("key")?;
        }
        if let Some(scope) = f.doc("returnScope")? {
            scope.required_string("path")?;
            if stage.get("returnStoredSource").and_then(|v| v.as_bool()) != Some(true) {
                return Err(wrong(
                    "\"returnScope\" requires \"returnStoredSource\" to be true",
                ));
            }
        }
        f.doc("tracking")?;
        f.doc("highlight")?;
        for option in ["highlight", "searchAfter", "searchBefore"] {
            if f.get(option).is_some() && !meta {
                return Err(wrong(format!("\"{option}\" is not supported yet")));
            }
        }
        for option in ["returnStoredSource", "scoreDetails"] {
            if !meta && f.get(option).and_then(|v| v.as_bool()) == Some(true) {
                return Err(wrong(format!("\"{option}\" is not supported yet")));
            }
        }
        let (clause, facets) = match f.doc("facet")? {
            Some(collector) => faceted(&f, &collector)?,
            None => (Some(only_clause(&f, 0)?), Vec::new()),
        };
        f.end()?;
        Ok(Search {
            index: index.to_string(),
            clause,
            facets,
            count,
            sort,
        })
    }

    /// Refuses what cannot be asked of an index of that kind.
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Search => Ok(()),
            Kind::Vector => Err(wrong(format!(
                "Cannot execute $search over vectorSearch index '{}'",
                self.index
            ))),
        }
    }
}

/// The operator and the facets of a collector.
fn faceted(f: &Fields<'_>, collector: &Fields<'_>) -> Result<(Option<Clause>, Vec<Facet>)> {
    if let Some(e) = f
        .doc
        .iter()
        .find(|e| OPERATORS.contains(&e.name) && !e.val.is_nullish())
    {
        return Err(wrong(format!(
            "only one operator may be present, found \"facet\" and \"{}\"",
            e.name
        )));
    }
    let facets = crate::facet::parse(collector)?;
    let clause = match collector.doc("operator")? {
        None => None,
        Some(operator) => {
            let clause = only_clause(&operator, 0)?;
            operator.end()?;
            Some(clause)
        }
    };
    collector.end()?;
    Ok((clause, facets))
}

fn count(f: &Fields<'_>) -> Result<Count> {
    let Some(c) = f.doc("count")? else {
        return Ok(Count::default());
    };
    let kind = match c.string("type")? {
        None | Some("lowerBound") => Count::LowerBound,
        Some("total") => Count::Total,
        Some(_) => {
            return Err(wrong("\"count.type\" must be one of [lowerBound, total]"));
        }
    };
    c.int("threshold", 0, i32::MAX)?;
    c.end()?;
    Ok(kind)
}

/// The `$sort` that orders the results.
fn sort(f: &Fields<'_>) -> Result<Option<DocBuf>> {
    let Some(s) = f.doc("sort")? else {
        return Ok(None);
    };
    let mut w = bson::Writer::new();
    if s.doc.is_empty() {
        return Err(wrong("\"sort\" must have at least one sort field"));
    }
    for e in s.doc.iter() {
        step()?;
        let name = s.name(e.name);
        let order = |v: Val<'_>| match v.as_decimal().is_none().then(|| v.to_f64()).flatten() {
            Some(1.0) => Ok(1),
            Some(-1.0) => Ok(-1),
            _ => Err(wrong(format!("\"{name}\" must be 1, -1 or a document"))),
        };
        match e.val.as_doc() {
            Some(d) if d.contains("$meta") => {
                if d.get("$meta").and_then(|v| v.as_str()) != Some("searchScore") {
                    return Err(wrong(format!("\"{name}.$meta\" must be \"searchScore\"")));
                }
                // In the order of scores from the highest on, unless the lowest are asked for.
                match d.get("order").map(order).transpose()? {
                    Some(1) => return Err(wrong("ascending order of scores is not supported yet")),
                    _ => w.open_doc(e.name).str("$meta", "searchScore").close(),
                };
            }
            Some(d) => {
                let by = d.get("order").map_or(Ok(1), order)?;
                w.i32(e.name, by);
            }
            None => {
                let by = order(e.val)?;
                w.i32(e.name, by);
            }
        }
    }
    Ok(Some(w.finish()))
}

/// The one operator among the fields.
fn only_clause(f: &Fields<'_>, depth: usize) -> Result<Clause> {
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
    let f = Fields::of(&at, e.val)?;
    let score = score(&f)?;
    let operator = operator(e.name, &f, depth)?;
    f.end()?;
    Ok(Clause { operator, score })
}

fn operator(name: &str, f: &Fields<'_>, depth: usize) -> Result<Operator> {
    Ok(match name {
        "text" | "term" | "search" => text(f)?,
        "phrase" => Operator::Phrase {
            query: f.strings("query")?,
            paths: paths(f)?,
            slop: f.int("slop", 0, i32::MAX)?.unwrap_or(0) as u32,
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
        other => return Err(wrong(format!("\"{other}\" is not supported yet"))),
    })
}

fn score(f: &Fields<'_>) -> Result<ScoreChange> {
    let Some(s) = f.doc("score")? else {
        return Ok(ScoreChange::None);
    };
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
    let number = |f: &Fields<'_>, v: Val<'_>| match v.to_f64().filter(|_| v.is_number()) {
        Some(n) if n.is_finite() && n >= 0.0 => Ok(n as f32),
        _ => Err(wrong(format!(
            "\"{}.value\" must be a positive number",
            f.at
        ))),
    };
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

fn fuzzy(f: &Fields<'_>) -> Result<Option<Fuzzy>> {
    let Some(z) = f.doc("fuzzy")? else {
        return Ok(None);
    };
    let whole = |n: Option<i32>, default: usize| n.map_or(default, |n| n.unsigned_abs() as usize);
    let fuzzy = Fuzzy {
        edits: whole(z.int("maxEdits", 1, 2)?, 2),
        prefix: whole(z.int("prefixLength", 0, i32::MAX)?, 0),
        expansions: whole(z.int("maxExpansions", 1, 1000)?, 50),
    };
    z.end()?;
    Ok(Some(fuzzy))
}

fn text(f: &Fields<'_>) -> Result<Operator> {
    let query = f.strings("query")?;
    let paths = paths(f)?;
    let fuzzy = fuzzy(f)?;
    if let Some(name) = f.string("synonyms")? {
        return Err(wrong(format!(
            "\"{}\" is not a synonym mapping: {name}",
            f.name("synonyms")
        )));
    }
    let all = match f.string("matchCriteria")? {
        None | Some("any") => false,
        Some("all") => true,
        Some(_) => {
            return Err(wrong(format!(
                "\"{}\" must be one of [all, any]",
                f.name("matchCriteria")
            )));
        }
    };
    Ok(Operator::Text {
        paths,
        query,
        fuzzy,
        all,
    })
}

/// The paths of an operator: a string, `{value, multi}`, `{wildcard}`, or a list of those.
fn paths(f: &Fields<'_>) -> Result<Vec<PathSpec>> {
    let v = f.required("path")?;
    let name = f.name("path");
    let Some(list) = v.as_array() else {
        return Ok(vec![path(&name, v)?]);
    };
    let mut out = Vec::new();
    for (i, v) in list.values().enumerate() {
        step()?;
        out.push(path(&format!("{name}[{i}]"), v)?);
    }
    if out.is_empty() {
        return Err(wrong(format!("\"{name}\" cannot be empty")));
    }
    Ok(out)
}

fn path(name: &str, v: Val<'_>) -> Result<PathSpec> {
    if let Some(s) = v.as_str() {
        return Ok(PathSpec::Path(s.to_string()));
    }
    if v.as_doc().is_none() {
        return Err(wrong(format!("\"{name}\" must be a string or a document")));
    }
    let f = Fields::of(name, v)?;
    let wildcard = f.string("wildcard")?;
    let value = f.string("value")?;
    let multi = f.string("multi")?;
    f.end()?;
    match (wildcard, value, multi) {
        (Some(w), None, None) => Ok(PathSpec::Wildcard(w.to_string())),
        (None, Some(v), Some(m)) => Ok(PathSpec::Multi(v.to_string(), m.to_string())),
        (None, Some(v), None) => Ok(PathSpec::Path(v.to_string())),
        (None, None, _) => Err(wrong(format!("\"{name}.value\" is required"))),
        _ => Err(wrong(format!(
            "\"{name}\" must have either \"value\" or \"wildcard\""
        ))),
    }
}

/// The paths of an operator that takes strings only.
fn plain_paths(f: &Fields<'_>) -> Result<Vec<String>> {
    let plain = |p| match p {
        PathSpec::Path(p) => Ok(p),
        _ => Err(wrong(format!("\"{}\" must be a string", f.name("path")))),
    };
    paths(f)?.into_iter().map(plain).collect()
}

fn compound(f: &Fields<'_>, depth: usize) -> Result<Operator> {
    let clauses = |name: &'static str| -> Result<Vec<Clause>> {
        let Some(v) = f.get(name) else {
            return Ok(Vec::new());
        };
        let at = f.name(name);
        let one = |at: &str, v: Val<'_>| -> Result<Clause> {
            let f = Fields::of(at, v)?;
            let clause = only_clause(&f, depth + 1)?;
            f.end()?;
            Ok(clause)
        };
        let Some(list) = v.as_array() else {
            return Ok(vec![one(&at, v)?]);
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

/// A value that `equals` and `in` compare with.
fn value(f: &Fields<'_>, name: &str, v: Option<Val<'_>>) -> Result<Value> {
    let Some(v) = v else {
        return Err(wrong(format!("\"{}\" is required", f.name(name))));
    };
    match value_of(v) {
        Some(_) => Ok(v.to_value()),
        None => Err(wrong(format!(
            "\"{}\" must be a boolean, objectId, number, string, date, uuid, or null",
            f.name(name)
        ))),
    }
}

fn values(f: &Fields<'_>) -> Result<Operator> {
    f.string("doesNotAffect")?;
    let paths = plain_paths(f)?;
    let v = f.required("value")?;
    let values = match v.as_array() {
        None => vec![value(f, "value", Some(v))?],
        Some(list) => {
            let mut out = Vec::new();
            for (i, v) in list.values().enumerate() {
                step()?;
                out.push(value(f, &format!("value[{i}]"), Some(v))?);
            }
            out
        }
    };
    let kinds = values
        .iter()
        .filter_map(|v| value_of(v.as_val()).map(|(kind, _)| kind));
    let mut kinds: Vec<u8> = kinds.collect();
    kinds.dedup();
    if kinds.is_empty() {
        return Err(wrong(format!("\"{}\" cannot be empty", f.name("value"))));
    }
    if kinds.len() > 1 {
        return Err(wrong(format!(
            "\"{}\" must have values of one type",
            f.name("value")
        )));
    }
    Ok(Operator::Values {
        paths,
        values,
        finite: false,
    })
}

fn range(f: &Fields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let bound = |name: &'static str| -> Result<Option<(u8, Vec<u8>)>> {
        let Some(v) = f.get(name) else {
            return Ok(None);
        };
        let fits = matches!(
            v.tag,
            tag::INT32 | tag::INT64 | tag::DOUBLE | tag::DATE | tag::STRING | tag::OBJECT_ID
        );
        match value_of(v).filter(|_| fits) {
            Some(value) => Ok(Some(value)),
            None => Err(wrong(format!(
                "\"{}\" must be a number, date, string, or objectId",
                f.name(name)
            ))),
        }
    };
    let (gt, gte) = (bound("gt")?, bound("gte")?);
    let (lt, lte) = (bound("lt")?, bound("lte")?);
    f.string("doesNotAffect")?;
    if gt.is_some() && gte.is_some() || lt.is_some() && lte.is_some() {
        return Err(wrong(format!(
            "\"{}\" may have one bound on each side",
            f.at
        )));
    }
    let low = gte.map(|b| (b, true)).or(gt.map(|b| (b, false)));
    let high = lte.map(|b| (b, true)).or(lt.map(|b| (b, false)));
    let kind = match (&low, &high) {
        (None, None) => return Err(wrong(format!("\"{}\" must have a bound", f.at))),
        (Some(((a, _), _)), Some(((b, _), _))) if a != b => {
            return Err(wrong(format!(
                "the bounds of \"{}\" must be of one type",
                f.at
            )));
        }
        (Some(((kind, _), _)), _) | (None, Some(((kind, _), _))) => *kind,
    };
    if let (Some(((_, a), _)), Some(((_, b), _))) = (&low, &high)
        && a > b
    {
        return Err(wrong(format!(
            "the lower bound of \"{}\" is greater than its upper bound",
            f.at
        )));
    }
    Ok(Operator::Range {
        paths,
        bounds: Bounds {
            kind,
            low: low.map(|((_, b), inclusive)| (b, inclusive)),
            high: high.map(|((_, b), inclusive)| (b, inclusive)),
        },
    })
}

fn near(f: &Fields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let origin = f.required("origin")?;
    let (kind, at) = match (origin.as_date(), origin.to_f64()) {
        (Some(millis), _) => (crate::terms::kind::DATE, millis as f64),
        (None, Some(n)) if origin.is_number() && origin.as_decimal().is_none() => {
            (crate::terms::kind::NUMBER, n)
        }
        _ if origin.as_doc().is_some() => {
            return Err(wrong("\"near\" over points is not supported yet"));
        }
        _ => {
            return Err(wrong(format!(
                "\"{}\" must be a number, date or point",
                f.name("origin")
            )));
        }
    };
    let pivot = f.required("pivot")?;
    let pivot = pivot
        .to_f64()
        .filter(|_| pivot.is_number() && pivot.as_decimal().is_none());
    let Some(pivot) = pivot else {
        return Err(wrong(format!("\"{}\" must be a number", f.name("pivot"))));
    };
    if !(pivot > 0.0 && pivot.is_finite() && at.is_finite()) {
        return Err(wrong(format!(
            "\"{}\" must be positive and finite",
            f.name("pivot")
        )));
    }
    Ok(Operator::Near {
        paths,
        kind,
        origin: at,
        pivot,
    })
}

fn autocomplete(f: &Fields<'_>) -> Result<Operator> {
    let query = f.strings("query")?;
    let path = match path(&f.name("path"), f.required("path")?)? {
        PathSpec::Path(p) => p,
        _ => return Err(wrong(format!("\"{}\" must be a string", f.name("path")))),
    };
    let in_order = match f.string("tokenOrder")? {
        None | Some("any") => false,
        Some("sequential") => true,
        Some(_) => {
            return Err(wrong(format!(
                "\"{}\" must be one of [any, sequential]",
                f.name("tokenOrder")
            )));
        }
    };
    Ok(Operator::Autocomplete {
        path,
        query,
        fuzzy: fuzzy(f)?,
        in_order,
    })
}

/// As `text` over each path of the examples.
fn more_like_this(f: &Fields<'_>) -> Result<Operator> {
    let like = f.required("like")?;
    let mut examples = Vec::new();
    match (like.as_doc(), like.as_array()) {
        (Some(d), _) => examples.push(d),
        (_, Some(list)) => {
            for v in list.values() {
                let Some(d) = v.as_doc() else {
                    return Err(wrong(format!("\"{}\" must be a document", f.name("like"))));
                };
                examples.push(d);
            }
        }
        _ => {
            return Err(wrong(format!(
                "\"{}\" must be a document or a list of documents",
                f.name("like")
            )));
        }
    }
    let mut should = Vec::new();
    for e in examples.iter().flat_map(|d| d.iter()) {
        step()?;
        let Some(text) = e.val.as_str().filter(|s| !s.is_empty()) else {
            continue;
        };
        should.push(Clause {
            operator: Operator::Text {
                paths: vec![PathSpec::Path(e.name.to_string())],
                query: vec![text.to_string()],
                fuzzy: None,
                all: false,
            },
            score: ScoreChange::None,
        });
    }
    if should.is_empty() || should.len() > MOST_CLAUSES {
        return Err(wrong(format!("\"{}\" must have texts", f.name("like"))));
    }
    Ok(Operator::Compound {
        must: vec![],
        should,
        must_not: vec![],
        filter: vec![],
        least: 1,
    })
}
