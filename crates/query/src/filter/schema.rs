//! `$jsonSchema`: draft 4 with BSON types, as MongoDB's manual describes it.
//!
//! A keyword that is about values of one kind passes every value of another kind. Nothing here enters arrays implicitly.

use super::{Regex, TypeSet};
use bson::{Doc, DocBuf, Elem, Val, Value, order, tag};
use errors::{Result, bail, err};
use std::cmp::Ordering;

/// A parsed schema and its source.
#[derive(Clone, Debug)]
pub struct Schema {
    rules: Rules,
    source: DocBuf,
}

/// The keywords of one (sub)schema: all must pass.
type Rules = Vec<Rule>;

#[derive(Clone, Debug)]
enum Rule {
    Type(TypeSet),
    Enum(Vec<Value>),
    AllOf(Vec<Rules>),
    AnyOf(Vec<Rules>),
    OneOf(Vec<Rules>),
    Not(Rules),
    /// The limit, and whether it is itself allowed.
    Minimum(Value, bool),
    Maximum(Value, bool),
    MultipleOf(Scaled),
    MinLength(i64),
    MaxLength(i64),
    Pattern(Regex),
    MinItems(i64),
    MaxItems(i64),
    UniqueItems,
    Items(Rules),
    /// By position, then what holds for those behind.
    Tuple(Vec<Rules>, Extra),
    Required(Vec<String>),
    MinProperties(i64),
    MaxProperties(i64),
    Properties(Box<Properties>),
    /// A field, and what must be there with it.
    NeedsFields(String, Vec<String>),
    NeedsSchema(String, Rules),
}

#[derive(Clone, Debug)]
struct Properties {
    named: Vec<(String, Rules)>,
    patterns: Vec<(Regex, Rules)>,
    others: Extra,
}

/// What holds for values that nothing else speaks of.
#[derive(Clone, Debug)]
enum Extra {
    Allowed,
    Forbidden,
    Schema(Rules),
}

impl Schema {
    pub fn parse(doc: Doc<'_>) -> Result<Schema> {
        Ok(Schema {
            rules: parse(doc)?,
            source: doc.to_buf(),
        })
    }

    pub fn matches(&self, doc: Doc<'_>) -> bool {
        pass(&self.rules, doc.as_val())
    }

    pub fn source(&self) -> &DocBuf {
        &self.source
    }
}

/// A test by a schema; what cannot be parsed, nothing passes.
pub(super) fn compile(schema: Doc<'_>) -> impl Fn(Val<'_>) -> bool {
    let rules = parse(schema).ok();
    move |v| rules.as_ref().is_some_and(|r| pass(r, v))
}

pub(super) fn holds(schema: Doc<'_>, v: Val<'_>) -> bool {
    compile(schema)(v)
}

/// An item that is there twice, as far as the first thousand tell.
pub(super) fn unique_pair<'a>(a: Doc<'a>) -> Option<Val<'a>> {
    let values: Vec<Val<'a>> = a.values().take(1000).collect();
    (1..values.len())
        .find(|i| values[..*i].iter().any(|w| same(values[*i], *w)))
        .map(|i| values[i])
}

fn wrong_type(name: &str, what: &str) -> errors::Error {
    err!(TypeMismatch, "$jsonSchema keyword '{name}' must be {what}")
}

fn object<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    e.val
        .as_doc()
        .ok_or_else(|| wrong_type(e.name, "an object"))
}

fn list<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    e.val
        .as_array()
        .ok_or_else(|| wrong_type(e.name, "an array"))
}

fn nonempty<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    let l = list(e)?;
    if l.is_empty() {
        bail!(
            FailedToParse,
            "$jsonSchema keyword '{}' cannot be an empty array",
            e.name
        );
    }
    Ok(l)
}

fn boolean(e: Elem<'_>) -> Result<bool> {
    e.val
        .as_bool()
        .ok_or_else(|| wrong_type(e.name, "a boolean"))
}

fn text<'a>(e: Elem<'a>) -> Result<&'a str> {
    e.val.as_str().ok_or_else(|| wrong_type(e.name, "a string"))
}

fn number(e: Elem<'_>) -> Result<Val<'_>> {
    if e.val.is_number() {
        Ok(e.val)
    } else {
        Err(wrong_type(e.name, "a number"))
    }
}

fn length(e: Elem<'_>) -> Result<i64> {
    let n = e.val.to_i64_exact().ok_or_else(|| {
        err!(
            FailedToParse,
            "$jsonSchema keyword '{}' must be a representable as a long",
            e.name
        )
    })?;
    if n < 0 {
        bail!(
            FailedToParse,
            "$jsonSchema keyword '{}' must be a non-negative number",
            e.name
        );
    }
    Ok(n)
}

fn names(e: Elem<'_>) -> Result<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for v in nonempty(e)?.values() {
        let Some(s) = v.as_str() else {
            return Err(wrong_type(e.name, "an array of strings"));
        };
        if out.iter().any(|o| o == s) {
            bail!(
                FailedToParse,
                "$jsonSchema keyword '{}' array cannot contain duplicate values",
                e.name
            );
        }
        out.push(s.to_string());
    }
    Ok(out)
}

fn schemas(e: Elem<'_>) -> Result<Vec<Rules>> {
    nonempty(e)?
        .values()
        .map(|v| match v.as_doc() {
            Some(d) => parse(d),
            None => Err(wrong_type(e.name, "an array of objects")),
        })
        .collect()
}

fn extra(e: Elem<'_>) -> Result<Extra> {
    match (e.val.as_bool(), e.val.as_doc()) {
        (Some(true), _) => Ok(Extra::Allowed),
        (Some(false), _) => Ok(Extra::Forbidden),
        (_, Some(d)) => Ok(Extra::Schema(parse(d)?)),
        _ => Err(wrong_type(e.name, "either an object or a boolean")),
    }
}

/// `type` names JSON's types, `bsonType` those of BSON.
fn types(e: Elem<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::EMPTY;
    let mut add = |v: Val<'_>| -> Result<()> {
        let Some(name) = v.as_str() else {
            return Err(wrong_type(e.name, "either a string or an array of strings"));
        };
        if name == "integer" {
            bail!(
                FailedToParse,
                "$jsonSchema type 'integer' is not currently supported."
            );
        }
        let alias = match (e.name, name) {
            ("bsonType", _) => name,
            (_, "boolean") => "bool",
            (_, "object" | "array" | "number" | "string" | "null") => name,
            _ => bail!(BadValue, "Unknown type name alias: {name}"),
        };
        set.add_alias(alias)
            .ok_or_else(|| err!(BadValue, "Unknown type name alias: {name}"))
    };
    match e.val.as_array() {
        Some(_) => {
            let mut seen = Vec::new();
            for v in nonempty(e)?.values() {
                if seen.contains(&v) {
                    bail!(
                        FailedToParse,
                        "$jsonSchema keyword '{}' has duplicate value: {v}",
                        e.name
                    );
                }
                seen.push(v);
                add(v)?;
            }
        }
        None => add(e.val)?,
    }
    Ok(set)
}

fn parse(schema: Doc<'_>) -> Result<Rules> {
    let mut out = Rules::new();
    let mut properties = Properties {
        named: Vec::new(),
        patterns: Vec::new(),
        others: Extra::Allowed,
    };
    let mut about_properties = false;
    if schema.contains("type") && schema.contains("bsonType") {
        bail!(
            FailedToParse,
            "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'"
        );
    }
    for e in schema {
        match e.name {
            "title" | "description" => {
                text(e)?;
            }
            "type" | "bsonType" => out.push(Rule::Type(types(e)?)),
            "enum" => {
                let mut values: Vec<Value> = Vec::new();
                for v in nonempty(e)?.values() {
                    if values.iter().any(|o| same(o.as_val(), v)) {
                        bail!(
                            FailedToParse,
                            "$jsonSchema keyword 'enum' array cannot contain duplicate values"
                        );
                    }
                    values.push(v.to_value());
                }
                out.push(Rule::Enum(values));
            }
            "allOf" => out.push(Rule::AllOf(schemas(e)?)),
            "anyOf" => out.push(Rule::AnyOf(schemas(e)?)),
            "oneOf" => out.push(Rule::OneOf(schemas(e)?)),
            "not" => out.push(Rule::Not(parse(object(e)?)?)),
            "minimum" => {
                let exclusive = schema.get("exclusiveMinimum").and_then(|v| v.as_bool());
                out.push(Rule::Minimum(
                    number(e)?.to_value(),
                    exclusive != Some(true),
                ));
            }
            "maximum" => {
                let exclusive = schema.get("exclusiveMaximum").and_then(|v| v.as_bool());
                out.push(Rule::Maximum(
                    number(e)?.to_value(),
                    exclusive != Some(true),
                ));
            }
            "exclusiveMinimum" | "exclusiveMaximum" => {
                boolean(e)?;
                let limit = if e.name == "exclusiveMinimum" {
                    "minimum"
                } else {
                    "maximum"
                };
                if !schema.contains(limit) {
                    bail!(
                        FailedToParse,
                        "$jsonSchema keyword '{limit}' must be a present if {} is present",
                        e.name
                    );
                }
            }
            "multipleOf" => {
                let v = number(e)?;
                let n = Scaled::of(v).filter(|n| n.coefficient != 0 && !n.negative);
                let Some(n) = n else {
                    bail!(
                        FailedToParse,
                        "$jsonSchema keyword 'multipleOf' must have a positive value"
                    );
                };
                out.push(Rule::MultipleOf(n));
            }
            "minLength" => out.push(Rule::MinLength(length(e)?)),
            "maxLength" => out.push(Rule::MaxLength(length(e)?)),
            "pattern" => out.push(Rule::Pattern(Regex::new(text(e)?, "")?)),
            "minItems" => out.push(Rule::MinItems(length(e)?)),
            "maxItems" => out.push(Rule::MaxItems(length(e)?)),
            "uniqueItems" => {
                if boolean(e)? {
                    out.push(Rule::UniqueItems);
                }
            }
            "items" => match (e.val.as_doc(), e.val.as_array()) {
                (Some(d), _) => out.push(Rule::Items(parse(d)?)),
                (_, Some(a)) => {
                    let mut tuple = Vec::new();
                    for v in a.values() {
                        let Some(d) = v.as_doc() else {
                            return Err(wrong_type("items", "an array of objects"));
                        };
                        tuple.push(parse(d)?);
                    }
                    let behind = match schema.get("additionalItems") {
                        Some(val) => extra(Elem {
                            name: "additionalItems",
                            val,
                        })?,
                        None => Extra::Allowed,
                    };
                    out.push(Rule::Tuple(tuple, behind));
                }
                _ => return Err(wrong_type("items", "an array or an object")),
            },
            "additionalItems" => {
                extra(e)?;
            }
            "required" => out.push(Rule::Required(names(e)?)),
            "minProperties" => out.push(Rule::MinProperties(length(e)?)),
            "maxProperties" => out.push(Rule::MaxProperties(length(e)?)),
            "properties" => {
                about_properties = true;
                for p in object(e)? {
                    let Some(d) = p.val.as_doc() else {
                        bail!(
                            TypeMismatch,
                            "Nested schema for $jsonSchema property '{}' must be an object",
                            p.name
                        );
                    };
                    properties.named.push((p.name.to_string(), parse(d)?));
                }
            }
            "patternProperties" => {
                about_properties = true;
                for p in object(e)? {
                    let Some(d) = p.val.as_doc() else {
                        bail!(
                            TypeMismatch,
                            "$jsonSchema keyword 'patternProperties' has property '{}' which is not an object",
                            p.name
                        );
                    };
                    let re = Regex::new(p.name, "").map_err(|_| {
                        err!(
                            BadValue,
                            "Invalid regular expression in $jsonSchema keyword 'patternProperties': {}",
                            p.name
                        )
                    })?;
                    properties.patterns.push((re, parse(d)?));
                }
            }
            "additionalProperties" => {
                about_properties = true;
                properties.others = extra(e)?;
            }
            "dependencies" => {
                for d in object(e)? {
                    match (d.val.as_doc(), d.val.as_array()) {
                        (Some(s), _) => out.push(Rule::NeedsSchema(d.name.to_string(), parse(s)?)),
                        (_, Some(_)) => {
                            let fields = names(Elem {
                                name: "dependencies",
                                val: d.val,
                            })?;
                            out.push(Rule::NeedsFields(d.name.to_string(), fields));
                        }
                        _ => {
                            return Err(wrong_type(
                                "dependencies",
                                "an object of arrays or objects",
                            ));
                        }
                    }
                }
            }
            "$ref" | "$schema" | "default" | "definitions" | "format" | "id" => bail!(
                FailedToParse,
                "$jsonSchema keyword '{}' is not currently supported",
                e.name
            ),
            name => bail!(FailedToParse, "Unknown $jsonSchema keyword: {name}"),
        }
    }
    if about_properties {
        out.push(Rule::Properties(Box::new(properties)));
    }
    Ok(out)
}

fn pass(rules: &Rules, v: Val<'_>) -> bool {
    rules.iter().all(|r| r.passes(v))
}

impl Extra {
    fn passes(&self, v: Val<'_>) -> bool {
        match self {
            Extra::Allowed => true,
            Extra::Forbidden => false,
            Extra::Schema(s) => pass(s, v),
        }
    }
}

impl Rule {
    fn passes(&self, v: Val<'_>) -> bool {
        let items = |f: &dyn Fn(Doc<'_>) -> bool| v.as_array().is_none_or(f);
        let fields = |f: &dyn Fn(Doc<'_>) -> bool| v.as_doc().is_none_or(f);
        let chars =
            |f: &dyn Fn(i64) -> bool| v.as_str().is_none_or(|s| f(s.chars().count() as i64));
        match self {
            Rule::Type(set) => set.contains(v.tag),
            Rule::Enum(values) => values.iter().any(|x| same(x.as_val(), v)),
            Rule::AllOf(s) => s.iter().all(|s| pass(s, v)),
            Rule::AnyOf(s) => s.iter().any(|s| pass(s, v)),
            Rule::OneOf(s) => s.iter().filter(|s| pass(s, v)).count() == 1,
            Rule::Not(s) => !pass(s, v),
            Rule::Minimum(limit, inclusive) => {
                within(v, limit.as_val(), Ordering::Greater, *inclusive)
            }
            Rule::Maximum(limit, inclusive) => {
                within(v, limit.as_val(), Ordering::Less, *inclusive)
            }
            Rule::MultipleOf(n) => {
                !v.is_number() || Scaled::of(v).is_some_and(|v| v.is_multiple_of(n))
            }
            Rule::MinLength(n) => chars(&|c| c >= *n),
            Rule::MaxLength(n) => chars(&|c| c <= *n),
            Rule::Pattern(re) => v.as_str().is_none_or(|s| re.is_match(s.as_bytes())),
            Rule::MinItems(n) => items(&|a| a.count() as i64 >= *n),
            Rule::MaxItems(n) => items(&|a| a.count() as i64 <= *n),
            Rule::UniqueItems => items(&unique),
            Rule::Items(s) => items(&|a| a.values().all(|v| pass(s, v))),
            Rule::Tuple(tuple, behind) => items(&|a| {
                a.values().enumerate().all(|(i, v)| match tuple.get(i) {
                    Some(s) => pass(s, v),
                    None => behind.passes(v),
                })
            }),
            Rule::Required(names) => fields(&|d| names.iter().all(|n| d.contains(n))),
            Rule::MinProperties(n) => fields(&|d| d.count() as i64 >= *n),
            Rule::MaxProperties(n) => fields(&|d| d.count() as i64 <= *n),
            Rule::Properties(p) => fields(&|d| p.pass(d)),
            Rule::NeedsFields(name, needed) => {
                fields(&|d| !d.contains(name) || needed.iter().all(|n| d.contains(n)))
            }
            Rule::NeedsSchema(name, s) => fields(&|d| !d.contains(name) || pass(s, d.as_val())),
        }
    }
}

impl Properties {
    fn pass(&self, d: Doc<'_>) -> bool {
        d.iter().all(|e| {
            let mut spoken_of = false;
            for (name, s) in &self.named {
                if name == e.name {
                    spoken_of = true;
                    if !pass(s, e.val) {
                        return false;
                    }
                }
            }
            for (re, s) in &self.patterns {
                if re.is_match(e.name.as_bytes()) {
                    spoken_of = true;
                    if !pass(s, e.val) {
                        return false;
                    }
                }
            }
            spoken_of || self.others.passes(e.val)
        })
    }
}

fn within(v: Val<'_>, limit: Val<'_>, side: Ordering, inclusive: bool) -> bool {
    if !v.is_number() {
        return true;
    }
    let (a, b) = (super::eval::is_nan(v), super::eval::is_nan(limit));
    if a || b {
        return a && b && inclusive;
    }
    match order::compare(v, limit) {
        Ordering::Equal => inclusive,
        o => o == side,
    }
}

/// Equal, with the fields of documents in any order.
fn same(a: Val<'_>, b: Val<'_>) -> bool {
    match (a.tag, b.tag) {
        (tag::DOCUMENT, tag::DOCUMENT) => match (a.as_doc(), b.as_doc()) {
            (Some(x), Some(y)) => {
                x.count() == y.count()
                    && x.iter()
                        .all(|e| y.get(e.name).is_some_and(|v| same(e.val, v)))
            }
            _ => false,
        },
        (tag::ARRAY, tag::ARRAY) => match (a.as_array(), b.as_array()) {
            (Some(x), Some(y)) => {
                x.count() == y.count() && x.values().zip(y.values()).all(|(a, b)| same(a, b))
            }
            _ => false,
        },
        _ => order::equal(a, b),
    }
}

fn unique(a: Doc<'_>) -> bool {
    let mut values: Vec<Val<'_>> = a.values().collect();
    if values
        .iter()
        .any(|v| matches!(v.tag, tag::DOCUMENT | tag::ARRAY))
    {
        // Only documents and arrays can be the same without being equal.
        return values
            .iter()
            .enumerate()
            .all(|(i, v)| !values[..i].iter().any(|w| same(*v, *w)));
    }
    values.sort_by(|a, b| order::compare(*a, *b));
    values.windows(2).all(|w| !order::equal(w[0], w[1]))
}

/// A decimal number, `coefficient · 10^exponent`; doubles count with 15 digits, so that 0.3 is a multiple of 0.1.
#[derive(Clone, Debug, PartialEq)]
struct Scaled {
    negative: bool,
    coefficient: u128,
    exponent: i32,
}

impl Scaled {
    fn of(v: Val<'_>) -> Option<Scaled> {
        if let Some(i) = v.as_i32().map(i64::from).or(v.as_i64()) {
            return Some(Scaled {
                negative: i < 0,
                coefficient: u128::from(i.unsigned_abs()),
                exponent: 0,
            });
        }
        if let Some(d) = v.as_decimal() {
            return match d.parts() {
                bson::decimal::Parts::Finite {
                    coefficient,
                    exponent,
                    ..
                } => Some(Scaled {
                    negative: d.is_negative(),
                    coefficient,
                    exponent,
                }),
                _ => None,
            };
        }
        let f = v.as_f64().filter(|f| f.is_finite())?;
        let text = format!("{:.14e}", f.abs());
        let (digits, exponent) = text.split_once('e')?;
        Some(Scaled {
            negative: f < 0.0,
            coefficient: digits.replace('.', "").parse().ok()?,
            exponent: exponent.parse::<i32>().ok()?.checked_sub(14)?,
        })
    }

    fn is_multiple_of(&self, n: &Scaled) -> bool {
        if self.coefficient == 0 {
            return true;
        }
        if n.coefficient == 0 {
            return false;
        }
        // Both sides without the zeros at their ends.
        let strip = |s: &Scaled| {
            let (mut c, mut e) = (s.coefficient, s.exponent);
            while c.is_multiple_of(10) {
                c /= 10;
                e += 1;
            }
            (c, e)
        };
        let ((a, ea), (b, eb)) = (strip(self), strip(n));
        if ea < eb {
            return false;
        }
        let mut rest = a % b;
        for _ in 0..ea - eb {
            if rest == 0 {
                break;
            }
            rest = rest * 10 % b;
        }
        rest == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn schemas() {
        for (schema, doc, want) in [
            (r#"{"required":["a"]}"#, r#"{"a":null}"#, true),
            (r#"{"required":["a"]}"#, r#"{"b":1}"#, false),
            (
                r#"{"properties":{"a":{"bsonType":"int"}}}"#,
                r#"{"a":"x"}"#,
                false,
            ),
            (r#"{"properties":{"a":{"bsonType":"int"}}}"#, r#"{}"#, true),
            (
                r#"{"properties":{"a":{"multipleOf":0.1}}}"#,
                r#"{"a":0.3}"#,
                true,
            ),
            (
                r#"{"properties":{"a":{"multipleOf":3}}}"#,
                r#"{"a":10}"#,
                false,
            ),
            (
                r#"{"properties":{"a":{"multipleOf":0.25}}}"#,
                r#"{"a":100}"#,
                true,
            ),
            (
                r#"{"properties":{"a":{"minimum":5,"exclusiveMinimum":true}}}"#,
                r#"{"a":5}"#,
                false,
            ),
            (
                r#"{"properties":{"a":{"uniqueItems":true}}}"#,
                r#"{"a":[{"x":1,"y":2},{"y":2,"x":1}]}"#,
                false,
            ),
            (
                r#"{"properties":{"a":{"items":[{"type":"string"}],"additionalItems":false}}}"#,
                r#"{"a":["x",1]}"#,
                false,
            ),
            (
                r#"{"properties":{"a":{"enum":[{"x":1,"y":2}]}}}"#,
                r#"{"a":{"y":2,"x":1}}"#,
                true,
            ),
            (
                r#"{"patternProperties":{"^s":{"type":"string"}},"additionalProperties":false}"#,
                r#"{"s1":"x"}"#,
                true,
            ),
            (
                r#"{"patternProperties":{"^s":{"type":"string"}},"additionalProperties":false}"#,
                r#"{"t":"x"}"#,
                false,
            ),
            (r#"{"dependencies":{"a":["b"]}}"#, r#"{"a":1}"#, false),
            (
                r#"{"oneOf":[{"required":["a"]},{"required":["b"]}]}"#,
                r#"{"a":1,"b":1}"#,
                false,
            ),
            (
                r#"{"properties":{"a":{"minLength":2}}}"#,
                r#"{"a":"é"}"#,
                false,
            ),
        ] {
            let s = Schema::parse(json::parse(schema).unwrap().as_doc()).unwrap();
            let d = json::parse(doc).unwrap();
            assert_eq!(s.matches(d.as_doc()), want, "{schema} {doc}");
        }
        for (schema, code) in [
            (r#"{"required":[]}"#, 9),
            (r#"{"required":[1]}"#, 14),
            (r#"{"foo":1}"#, 9),
            (r#"{"properties":{"a":{"bsonType":"x"}}}"#, 2),
            (r#"{"exclusiveMinimum":true}"#, 9),
            (r#"{"minLength":-1}"#, 9),
        ] {
            let e = Schema::parse(json::parse(schema).unwrap().as_doc()).unwrap_err();
            assert_eq!(e.code.0, code, "{schema}");
        }
    }
}
