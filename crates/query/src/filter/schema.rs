//! `$jsonSchema`: draft 4 with BSON types, as MongoDB's manual describes it.
//!
//! A keyword that is about values of one kind passes every value of another kind. Nothing here
//! enters arrays implicitly.

use super::watch::WorkMeter;
use super::{CompiledRegex, TypeSet};
use crate::expr::{byte_units, regex_units};
use crate::list::FEW;
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, order, tag};
use errors::{Result, bail, err, operation};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

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
    /// In order, and documents by the order of their names.
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
    Pattern(CompiledRegex),
    MinItems(i64),
    MaxItems(i64),
    UniqueItems,
    /// Encrypted by the client, and of which type it was, where that is said.
    Encrypted(Option<TypeSet>),
    Items(Rules),
    /// By position, then what holds for those behind.
    Tuple(Vec<Rules>, Extra),
    Required(Vec<String>),
    MinProperties(i64),
    MaxProperties(i64),
    Properties(Box<Properties>),
    /// Fields, and what must be there with each.
    Needs(Vec<(String, Need)>),
}

#[derive(Clone, Debug)]
enum Need {
    Fields(Vec<String>),
    Schema(Rules),
}

#[derive(Clone, Debug)]
struct Properties {
    named: Vec<(String, Rules)>,
    /// Where each name is in `named`; empty for few.
    by_name: HashMap<String, Vec<usize>>,
    patterns: Vec<(CompiledRegex, Rules)>,
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

    #[cfg(test)]
    fn matches(&self, doc: Doc<'_>) -> bool {
        self.passes(doc, &WorkMeter::none())
    }

    pub(super) fn passes(&self, doc: Doc<'_>, watch: &WorkMeter<'_>) -> bool {
        pass(&self.rules, doc.as_val(), watch)
    }

    pub fn source(&self) -> &DocBuf {
        &self.source
    }
}

/// A test by a schema; what cannot be parsed, nothing passes.
pub(super) fn compile(schema: Doc<'_>) -> impl Fn(Val<'_>) -> bool {
    let rules = parse(schema).ok();
    move |v| {
        rules
            .as_ref()
            .is_some_and(|r| pass(r, v, &WorkMeter::none()))
    }
}

pub(super) fn holds(schema: Doc<'_>, v: Val<'_>) -> bool {
    compile(schema)(v)
}

/// An item that is there twice, as far as the first thousand tell.
pub(super) fn unique_pair<'a>(a: Doc<'a>) -> Option<Val<'a>> {
    let values: Vec<Val<'a>> = a.values().take(1000).collect();
    repeated(&values).map(|i| values[i])
}

fn wrong_type(name: &str, what: &str) -> errors::Error {
    err!(TypeMismatch, "$jsonSchema keyword '{name}' must be {what}")
}

fn object<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    e.val
        .as_doc()
        .ok_or_else(|| wrong_type(e.name, "an object").into())
}

fn list<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    e.val
        .as_array()
        .ok_or_else(|| wrong_type(e.name, "an array").into())
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
        .ok_or_else(|| wrong_type(e.name, "a boolean").into())
}

fn text<'a>(e: Elem<'a>) -> Result<&'a str> {
    e.val
        .as_str()
        .ok_or_else(|| wrong_type(e.name, "a string").into())
}

fn number(e: Elem<'_>) -> Result<Val<'_>> {
    if e.val.is_number() {
        Ok(e.val)
    } else {
        Err(wrong_type(e.name, "a number").into())
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
    let mut seen = HashSet::new();
    for v in nonempty(e)?.values() {
        operation::step()?;
        let Some(s) = v.as_str() else {
            return Err(wrong_type(e.name, "an array of strings").into());
        };
        if !seen.insert(s) {
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
            None => Err(wrong_type(e.name, "an array of objects").into()),
        })
        .collect()
}

fn extra(e: Elem<'_>) -> Result<Extra> {
    match (e.val.as_bool(), e.val.as_doc()) {
        (Some(true), _) => Ok(Extra::Allowed),
        (Some(false), _) => Ok(Extra::Forbidden),
        (_, Some(d)) => Ok(Extra::Schema(parse(d)?)),
        _ => Err(wrong_type(e.name, "either an object or a boolean").into()),
    }
}

/// `type` names JSON's types, `bsonType` those of BSON.
fn types(e: Elem<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::EMPTY;
    let mut add = |v: Val<'_>| -> Result<()> {
        let Some(name) = v.as_str() else {
            return Err(wrong_type(e.name, "either a string or an array of strings").into());
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
            .ok_or_else(|| err!(BadValue, "Unknown type name alias: {name}").into())
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

/// The values of `enum`, in order.
fn enumeration(e: Elem<'_>) -> Result<Vec<Value>> {
    let mut values: Vec<Value> = nonempty(e)?
        .values()
        .map(|v| {
            operation::step()?;
            Ok(canonical(v).unwrap_or_else(|| v.to_value()))
        })
        .collect::<Result<_>>()?;
    values.sort_by(|a, b| order::compare(a.as_val(), b.as_val()));
    if values
        .windows(2)
        .any(|w| order::equal(w[0].as_val(), w[1].as_val()))
    {
        bail!(
            FailedToParse,
            "$jsonSchema keyword 'enum' array cannot contain duplicate values"
        );
    }
    Ok(values)
}

/// Checks `exclusiveMinimum` or `exclusiveMaximum`, which need the keyword that gives the limit.
fn exclusive(e: Elem<'_>, limit: &str, limited: bool) -> Result<()> {
    boolean(e)?;
    if !limited {
        bail!(
            FailedToParse,
            "$jsonSchema keyword '{limit}' must be a present if {} is present",
            e.name
        );
    }
    Ok(())
}

fn multiple_of(e: Elem<'_>) -> Result<Scaled> {
    let v = number(e)?;
    let n = Scaled::of(v).filter(|n| n.coefficient != 0 && !n.negative);
    let Some(n) = n else {
        bail!(
            FailedToParse,
            "$jsonSchema keyword 'multipleOf' must have a positive value"
        );
    };
    Ok(n)
}

fn items(e: Elem<'_>, additional_items: Option<Val<'_>>) -> Result<Rule> {
    match (e.val.as_doc(), e.val.as_array()) {
        (Some(d), _) => Ok(Rule::Items(parse(d)?)),
        (_, Some(a)) => {
            let mut tuple = Vec::new();
            for v in a.values() {
                let Some(d) = v.as_doc() else {
                    return Err(wrong_type("items", "an array of objects").into());
                };
                tuple.push(parse(d)?);
            }
            let behind = match additional_items {
                Some(val) => extra(Elem {
                    name: "additionalItems",
                    val,
                })?,
                None => Extra::Allowed,
            };
            Ok(Rule::Tuple(tuple, behind))
        }
        _ => Err(wrong_type("items", "an array or an object").into()),
    }
}

/// Of binary values: what a client has encrypted.
const ENCRYPTED: u8 = 6;
/// Their content: kind, number of the key, and then the type of the encrypted value.
const TYPE_AT: usize = 17;

fn check_encryption(e: Elem<'_>, known: &[&str]) -> Result<()> {
    let Some(d) = e.val.as_doc() else {
        return Err(wrong_type(e.name, "an object").into());
    };
    if let Some(other) = d.iter().find(|o| !known.contains(&o.name)) {
        bail!(
            IDLUnknownField,
            "BSON field '{}.{}' is an unknown field.",
            e.name,
            other.name
        );
    }
    Ok(())
}

/// `encrypt`: the types that it asks for.
fn encrypted(e: Elem<'_>, schema: Doc<'_>) -> Result<Option<TypeSet>> {
    if schema.contains("type") || schema.contains("bsonType") {
        bail!(
            FailedToParse,
            "$jsonSchema keyword 'encrypt' cannot be used in conjunction with 'type' or 'bsonType'"
        );
    }
    check_encryption(e, &["algorithm", "bsonType", "keyId"])?;
    let of = e.val.as_doc().and_then(|d| d.get("bsonType"));
    of.map(|val| {
        types(Elem {
            name: "bsonType",
            val,
        })
    })
    .transpose()
}

fn is_encrypted(v: Val<'_>, types: Option<TypeSet>) -> bool {
    match v.as_binary() {
        Some((ENCRYPTED, content)) => {
            let of = content.get(TYPE_AT).copied();
            types.is_none_or(|types| of.is_some_and(|t| types.contains(t)))
        }
        _ => false,
    }
}

fn dependencies(e: Elem<'_>) -> Result<Vec<(String, Need)>> {
    let mut all = Vec::new();
    for d in object(e)? {
        operation::step()?;
        match (d.val.as_doc(), d.val.as_array()) {
            (Some(s), _) => all.push((d.name.to_string(), Need::Schema(parse(s)?))),
            (_, Some(_)) => {
                let fields = names(Elem {
                    name: "dependencies",
                    val: d.val,
                })?;
                all.push((d.name.to_string(), Need::Fields(fields)));
            }
            _ => {
                return Err(wrong_type("dependencies", "an object of arrays or objects").into());
            }
        }
    }
    Ok(all)
}

fn parse(schema: Doc<'_>) -> Result<Rules> {
    operation::step()?;
    let mut out = Rules::new();
    let mut properties = Properties {
        named: Vec::new(),
        by_name: HashMap::new(),
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
    // Looked up once: a keyword may be there a million times.
    let holds = |name: &str| schema.get(name).and_then(|v| v.as_bool()) == Some(true);
    let (above, below) = (holds("exclusiveMinimum"), holds("exclusiveMaximum"));
    let limited = ["minimum", "maximum"].map(|n| schema.contains(n));
    let additional_items = schema.get("additionalItems");
    for e in schema {
        operation::step()?;
        match e.name {
            "title" | "description" => {
                text(e)?;
            }
            "type" | "bsonType" => out.push(Rule::Type(types(e)?)),
            "enum" => out.push(Rule::Enum(enumeration(e)?)),
            "allOf" => out.push(Rule::AllOf(schemas(e)?)),
            "anyOf" => out.push(Rule::AnyOf(schemas(e)?)),
            "oneOf" => out.push(Rule::OneOf(schemas(e)?)),
            "not" => out.push(Rule::Not(parse(object(e)?)?)),
            "minimum" => out.push(Rule::Minimum(number(e)?.to_value(), !above)),
            "maximum" => out.push(Rule::Maximum(number(e)?.to_value(), !below)),
            "exclusiveMinimum" => exclusive(e, "minimum", limited[0])?,
            "exclusiveMaximum" => exclusive(e, "maximum", limited[1])?,
            "multipleOf" => out.push(Rule::MultipleOf(multiple_of(e)?)),
            "minLength" => out.push(Rule::MinLength(length(e)?)),
            "maxLength" => out.push(Rule::MaxLength(length(e)?)),
            "pattern" => out.push(Rule::Pattern(CompiledRegex::new(text(e)?, "")?)),
            "minItems" => out.push(Rule::MinItems(length(e)?)),
            "maxItems" => out.push(Rule::MaxItems(length(e)?)),
            "uniqueItems" => {
                if boolean(e)? {
                    out.push(Rule::UniqueItems);
                }
            }
            "items" => out.push(items(e, additional_items)?),
            "additionalItems" => {
                extra(e)?;
            }
            "required" => out.push(Rule::Required(names(e)?)),
            "minProperties" => out.push(Rule::MinProperties(length(e)?)),
            "maxProperties" => out.push(Rule::MaxProperties(length(e)?)),
            "properties" => {
                about_properties = true;
                properties.add_named(e)?;
            }
            "patternProperties" => {
                about_properties = true;
                properties.add_patterns(e)?;
            }
            "additionalProperties" => {
                about_properties = true;
                properties.others = extra(e)?;
            }
            "dependencies" => out.push(Rule::Needs(dependencies(e)?)),
            "encrypt" => out.push(Rule::Encrypted(encrypted(e, schema)?)),
            // For clients alone.
            "encryptMetadata" => check_encryption(e, &["algorithm", "keyId"])?,
            "$ref" | "$schema" | "default" | "definitions" | "format" | "id" => bail!(
                FailedToParse,
                "$jsonSchema keyword '{}' is not currently supported",
                e.name
            ),
            name => bail!(FailedToParse, "Unknown $jsonSchema keyword: {name}"),
        }
    }
    if about_properties {
        properties.index();
        out.push(Rule::Properties(Box::new(properties)));
    }
    Ok(out)
}

fn pass(rules: &Rules, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
    rules.iter().all(|r| r.passes(v, watch))
}

impl Extra {
    fn passes(&self, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
        match self {
            Extra::Allowed => true,
            Extra::Forbidden => false,
            Extra::Schema(s) => pass(s, v, watch),
        }
    }
}

/// Names that are looked for in a document for a unit of work.
const NAMES_OF_UNIT: usize = 2;

impl Rule {
    /// What testing a value counts as work, without what the rules below count themselves.
    fn units(&self, v: Val<'_>) -> usize {
        let len = v.bytes.len();
        match self {
            Rule::Pattern(_) => regex_units(len),
            Rule::Enum(_) | Rule::UniqueItems => 1 + len / 4,
            Rule::MinLength(_)
            | Rule::MaxLength(_)
            | Rule::MinItems(_)
            | Rule::MaxItems(_)
            | Rule::Items(_)
            | Rule::Tuple(..)
            | Rule::MinProperties(_)
            | Rule::MaxProperties(_)
            | Rule::Properties(_) => byte_units(len),
            Rule::Required(names) => byte_units(len) + names.len() / NAMES_OF_UNIT,
            Rule::Needs(all) => byte_units(len) + all.len() / NAMES_OF_UNIT,
            Rule::Type(_)
            | Rule::AllOf(_)
            | Rule::AnyOf(_)
            | Rule::OneOf(_)
            | Rule::Not(_)
            | Rule::Encrypted(_)
            | Rule::Minimum(..)
            | Rule::Maximum(..)
            | Rule::MultipleOf(_) => 1,
        }
    }

    fn passes(&self, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
        let items = |f: &dyn Fn(Doc<'_>) -> bool| v.as_array().is_none_or(f);
        let fields = |f: &dyn Fn(Doc<'_>) -> bool| v.as_doc().is_none_or(f);
        let chars =
            |f: &dyn Fn(i64) -> bool| v.as_str().is_none_or(|s| f(s.chars().count() as i64));
        if watch.spent(self.units(v)) {
            return false;
        }
        match self {
            Rule::Type(set) => set.contains(v.tag),
            Rule::Enum(values) if values.len() <= FEW => values.iter().any(|x| same(x.as_val(), v)),
            Rule::Enum(values) => {
                let by_name = canonical(v);
                let v = by_name.as_ref().map_or(v, Value::as_val);
                values
                    .binary_search_by(|x| order::compare(x.as_val(), v))
                    .is_ok()
            }
            Rule::AllOf(s) => watch.all(s, |s| pass(s, v, watch)),
            Rule::AnyOf(s) => watch.any(s, |s| pass(s, v, watch)),
            Rule::OneOf(s) => {
                let passed = s.iter().filter(|s| watch.ended() || pass(s, v, watch));
                passed.take(2).count() == 1
            }
            Rule::Not(s) => !pass(s, v, watch),
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
            Rule::Pattern(re) => v.as_str().is_none_or(|s| re.matches(s.as_bytes(), watch)),
            Rule::MinItems(n) => items(&|a| a.count() as i64 >= *n),
            Rule::MaxItems(n) => items(&|a| a.count() as i64 <= *n),
            Rule::UniqueItems => items(&unique),
            Rule::Encrypted(types) => is_encrypted(v, *types),
            Rule::Items(s) => items(&|a| watch.all(a.values(), |v| pass(s, v, watch))),
            Rule::Tuple(tuple, behind) => items(&|a| {
                watch.all(a.values().enumerate(), |(i, v)| match tuple.get(i) {
                    Some(s) => pass(s, v, watch),
                    None => behind.passes(v, watch),
                })
            }),
            Rule::Required(names) => fields(&|d| has_all(&Names::of(d, names.len()), names)),
            Rule::MinProperties(n) => fields(&|d| d.count() as i64 >= *n),
            Rule::MaxProperties(n) => fields(&|d| d.count() as i64 <= *n),
            Rule::Properties(p) => fields(&|d| p.pass(d, watch)),
            Rule::Needs(all) => fields(&|d| {
                let needed = |(_, need): &(String, Need)| match need {
                    Need::Fields(names) => 1 + names.len(),
                    Need::Schema(_) => 1,
                };
                let there = Names::of(d, all.iter().map(needed).sum());
                watch.all(all, |(name, need)| {
                    !there.contains(name)
                        || match need {
                            Need::Fields(needed) => has_all(&there, needed),
                            Need::Schema(s) => pass(s, d.as_val(), watch),
                        }
                })
            }),
        }
    }
}

impl Properties {
    fn add_named(&mut self, e: Elem<'_>) -> Result<()> {
        for p in object(e)? {
            let Some(d) = p.val.as_doc() else {
                bail!(
                    TypeMismatch,
                    "Nested schema for $jsonSchema property '{}' must be an object",
                    p.name
                );
            };
            self.named.push((p.name.to_string(), parse(d)?));
        }
        Ok(())
    }

    fn add_patterns(&mut self, e: Elem<'_>) -> Result<()> {
        for p in object(e)? {
            let Some(d) = p.val.as_doc() else {
                bail!(
                    TypeMismatch,
                    "$jsonSchema keyword 'patternProperties' has property '{}' which is not an object",
                    p.name
                );
            };
            let re = CompiledRegex::new(p.name, "").map_err(|_| {
                err!(
                    BadValue,
                    "Invalid regular expression in $jsonSchema keyword 'patternProperties': {}",
                    p.name
                )
            })?;
            self.patterns.push((re, parse(d)?));
        }
        Ok(())
    }

    fn index(&mut self) {
        if self.named.len() > FEW {
            for (i, (name, _)) in self.named.iter().enumerate() {
                self.by_name.entry(name.clone()).or_default().push(i);
            }
        }
    }

    fn pass(&self, d: Doc<'_>, watch: &WorkMeter<'_>) -> bool {
        watch.all(d.iter(), |e| {
            let mut spoken_of = false;
            let mut named = |name: &str, s: &Rules| {
                spoken_of |= name == e.name;
                name != e.name || pass(s, e.val, watch)
            };
            let passes = if self.by_name.is_empty() {
                self.named.iter().all(|(name, s)| named(name, s))
            } else {
                let at = self.by_name.get(e.name).map_or(&[][..], |at| at);
                at.iter().all(|i| named(e.name, &self.named[*i].1))
            };
            if !passes {
                return false;
            }
            for (re, s) in &self.patterns {
                if watch.spent(regex_units(e.name.len())) {
                    return false;
                }
                if re.matches(e.name.as_bytes(), watch) {
                    spoken_of = true;
                    if !pass(s, e.val, watch) {
                        return false;
                    }
                }
            }
            spoken_of || self.others.passes(e.val, watch)
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

/// A document's fields, of which many are asked for.
pub(super) enum Names<'a> {
    Few(Doc<'a>),
    Many(HashMap<&'a str, Val<'a>>),
}

impl<'a> Names<'a> {
    /// `asked`: for how many names.
    pub fn of(d: Doc<'a>, asked: usize) -> Names<'a> {
        if asked <= FEW {
            return Names::Few(d);
        }
        let mut all = HashMap::new();
        for e in d.iter() {
            all.entry(e.name).or_insert(e.val);
        }
        Names::Many(all)
    }

    /// The first field of that name.
    pub fn get(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Names::Few(d) => d.get(name),
            Names::Many(all) => all.get(name).copied(),
        }
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

fn has_all(there: &Names<'_>, names: &[String]) -> bool {
    names.iter().all(|n| there.contains(n))
}

/// Equal, with the fields of documents in any order.
fn same(a: Val<'_>, b: Val<'_>) -> bool {
    match (a.tag, b.tag) {
        (tag::DOCUMENT, tag::DOCUMENT) => match (a.as_doc(), b.as_doc()) {
            (Some(x), Some(y)) => {
                let n = x.count();
                n == y.count()
                    && if n <= FEW {
                        x.iter()
                            .all(|e| y.get(e.name).is_some_and(|v| same(e.val, v)))
                    } else {
                        same_by_order(a, b)
                    }
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

fn same_by_order(a: Val<'_>, b: Val<'_>) -> bool {
    let (x, y) = (canonical(a), canonical(b));
    let x = x.as_ref().map_or(a, Value::as_val);
    order::equal(x, y.as_ref().map_or(b, Value::as_val))
}

/// The value with the fields of documents by name, so that two are the same when they are equal;
/// none where it is so already.
fn canonical(v: Val<'_>) -> Option<Value> {
    if is_canonical(v) {
        return None;
    }
    let mut w = Writer::new_array();
    write_canonical(&mut w, "", v);
    let holder = w.finish_array();
    let first = holder.as_val().as_array()?.values().next();
    first.map(Val::to_value)
}

fn is_canonical(v: Val<'_>) -> bool {
    let Some(d) = v.as_container() else {
        return true;
    };
    let mut last = "";
    d.iter().all(|e| {
        let ordered = v.tag == tag::ARRAY || last <= e.name;
        last = e.name;
        ordered && is_canonical(e.val)
    })
}

fn write_canonical(w: &mut Writer, name: &str, v: Val<'_>) {
    let Some(d) = v.as_container() else {
        w.val(name, v);
        return;
    };
    if v.tag == tag::ARRAY {
        w.open_array(name);
        for item in d.values() {
            write_canonical(w, "", item);
        }
    } else {
        let mut fields: Vec<Elem<'_>> = d.iter().collect();
        fields.sort_by_key(|e| e.name);
        w.open_doc(name);
        for e in fields {
            write_canonical(w, e.name, e.val);
        }
    }
    w.close();
}

/// The first of these values that an earlier one is the same as.
fn repeated(values: &[Val<'_>]) -> Option<usize> {
    if values.len() <= FEW {
        return (1..values.len()).find(|i| values[..*i].iter().any(|w| same(values[*i], *w)));
    }
    let all: Vec<Option<Value>> = values.iter().map(|v| canonical(*v)).collect();
    let mut sorted: Vec<(usize, Val<'_>)> = values.iter().copied().enumerate().collect();
    for (i, v) in &mut sorted {
        if let Some(c) = &all[*i] {
            *v = c.as_val();
        }
    }
    // Stable: of those that are the same, the second one is the first that repeats.
    sorted.sort_by(|a, b| order::compare(a.1, b.1));
    let twice = sorted.windows(2).filter(|w| order::equal(w[0].1, w[1].1));
    twice.map(|w| w[1].0).min()
}

fn unique(a: Doc<'_>) -> bool {
    let values: Vec<Val<'_>> = a.values().collect();
    repeated(&values).is_none()
}

/// A decimal number, `coefficient · 10^exponent`; doubles count with 15 digits, so that 0.3 is a
/// multiple of 0.1.
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
                bson::decimal::DecimalParts::Finite {
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
    use crate::list::tests::{any_array, any_value};
    use bson::json;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// The same by definition, one field after the other.
    fn same_by_get(a: Val<'_>, b: Val<'_>) -> bool {
        match (a.as_doc(), b.as_doc(), a.as_array(), b.as_array()) {
            (Some(x), Some(y), ..) => {
                let found = |e: Elem<'_>| y.get(e.name).is_some_and(|v| same_by_get(e.val, v));
                x.count() == y.count() && x.iter().all(found)
            }
            (_, _, Some(x), Some(y)) => {
                let mut pairs = x.values().zip(y.values());
                x.count() == y.count() && pairs.all(|(a, b)| same_by_get(a, b))
            }
            _ => order::equal(a, b),
        }
    }

    #[test]
    fn as_one_by_one() {
        let mut r = StdRng::seed_from_u64(11);
        for _ in 0..100_000 {
            let (a, b) = (any_value(&mut r, 2), any_value(&mut r, 2));
            let want = same_by_get(a.as_val(), b.as_val());
            assert_eq!(same(a.as_val(), b.as_val()), want, "{a:?} {b:?}");
            assert_eq!(same_by_order(a.as_val(), b.as_val()), want, "{a:?} {b:?}");
        }
        let mut found = [0; 2];
        for _ in 0..3000 {
            // Numbers of their own, so that some have none twice.
            let mut w = Writer::new_array();
            for i in 0..r.random_range(0..40) {
                let v = any_value(&mut r, 2);
                match v.as_val().as_container() {
                    Some(d) if !d.is_empty() => w.push(v.as_val()),
                    _ => w.push(Value::from(1000 + i).as_val()),
                };
            }
            let array = match r.random_range(0..2) {
                0 => w.finish_array(),
                _ => any_array(&mut r, 40, 2),
            };
            let values: Vec<Val<'_>> = array.as_val().as_array().unwrap().values().collect();
            let want = (1..values.len())
                .find(|i| values[..*i].iter().any(|w| same_by_get(values[*i], *w)));
            assert_eq!(repeated(&values), want, "{array:?}");
            found[usize::from(want.is_some())] += usize::from(values.len() > FEW);
            // An enumeration of distinct values.
            let once: Vec<Val<'_>> = values[..want.unwrap_or(values.len())].to_vec();
            if once.is_empty() {
                continue;
            }
            let mut w = Writer::new();
            w.open_doc("properties").open_doc("a").open_array("enum");
            for v in &once {
                w.push(*v);
            }
            w.close().close().close();
            let schema = Schema::parse(w.finish().as_doc()).unwrap();
            for _ in 0..20 {
                let v = any_value(&mut r, 2);
                let mut w = Writer::new();
                w.val("a", v.as_val());
                let want = once.iter().any(|o| same_by_get(*o, v.as_val()));
                assert_eq!(schema.matches(w.finish().as_doc()), want, "{v:?}");
            }
        }
        assert!(found.iter().all(|n| *n > 20), "{found:?}");
    }

    /// One after the other, the list for each would take hours.
    #[test]
    fn long_ones() {
        const N: i32 = 200_000;
        let name = |i: i32| format!("f{}", i * 7919 % N);
        let mut wide = [Writer::new(), Writer::new()];
        for i in 0..N {
            wide[0].i32(&format!("f{i}"), i);
            wide[1].i32(&name(i), i * 7919 % N);
        }
        let wide = wide.map(|w| w.finish());
        let mut w = Writer::new();
        w.open_array("a");
        for i in 0..N {
            w.open_doc("").i32("x", i).i32("a", 1).close();
        }
        w.close().open_array("w");
        for d in &wide {
            w.doc("", d.as_doc());
        }
        w.close().doc("d", wide[0].as_doc());
        let doc = w.finish();
        let of = |path: &str, keyword: &str, write: &dyn Fn(&mut Writer)| {
            let mut w = Writer::new();
            w.open_doc("properties").open_doc(path);
            match keyword {
                "items" => w.open_doc("items").open_array("enum"),
                "required" | "enum" => w.open_array(keyword),
                _ => w.open_doc(keyword),
            };
            write(&mut w);
            w.close();
            if keyword == "items" {
                w.close();
            }
            w.close().close();
            Schema::parse(w.finish().as_doc()).unwrap()
        };
        let unique = r#"{"properties":{"PATH":{"uniqueItems":true}}}"#;
        for (path, want) in [("a", true), ("w", false)] {
            let schema = json::parse(&unique.replace("PATH", path)).unwrap();
            let schema = Schema::parse(schema.as_doc()).unwrap();
            assert_eq!(schema.matches(doc.as_doc()), want, "{path}");
        }
        let each = |f: &dyn Fn(&mut Writer, i32), w: &mut Writer| (0..N).for_each(|i| f(w, i));
        let schemas = [
            of("a", "items", &|w| {
                let one = |w: &mut Writer, i: i32| {
                    w.open_doc("").i32("a", 1).i32("x", i).close();
                };
                each(&one, w)
            }),
            of("d", "enum", &|w| {
                w.doc("", wide[1].as_doc());
            }),
            of("d", "required", &|w| {
                let one = |w: &mut Writer, i: i32| {
                    w.str("", &name(i));
                };
                each(&one, w)
            }),
            of("d", "properties", &|w| {
                let one = |w: &mut Writer, i: i32| {
                    w.open_doc(&name(i)).i32("minimum", 0).close();
                };
                each(&one, w)
            }),
            of("d", "dependencies", &|w| {
                let one = |w: &mut Writer, i: i32| {
                    w.open_array(&name(i)).str("", "f0").close();
                };
                each(&one, w)
            }),
        ];
        for (i, s) in schemas.iter().enumerate() {
            assert!(s.matches(doc.as_doc()), "{i}");
        }
        let mut w = Writer::new();
        for i in 0..N {
            w.i32("minimum", i);
        }
        assert!(Schema::parse(w.finish().as_doc()).is_ok());
    }

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
            assert_eq!(e.failure().unwrap().code.0, code, "{schema}");
        }
    }
}
