//! Which rules of a `$jsonSchema` a value does not satisfy, in the shape that MongoDB's manual
//! shows.

use super::CompiledRegex;
use super::schema::{Names, compile, holds, unique_pair};
use bson::{Doc, DocBuf, Val, Writer};

/// Keywords in the order in which MongoDB tells of them. Companions (`exclusiveMinimum`) go with
/// theirs.
const KEYWORDS: &[&str] = &[
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "pattern",
    "multipleOf",
    "maxItems",
    "minItems",
    "uniqueItems",
    "encrypt",
    "items",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "enum",
    "type",
    "bsonType",
];

/// `title` and `description`, for people.
pub(super) fn titles(schema: Doc<'_>, w: &mut Writer) {
    for name in ["title", "description"] {
        if let Some(v) = schema.get(name) {
            w.val(name, v);
        }
    }
}

/// A schema of some of the keywords of another.
fn part(schema: Doc<'_>, names: &[&str]) -> DocBuf {
    let mut w = Writer::new();
    for n in names {
        if let Some(v) = schema.get(n) {
            w.val(n, v);
        }
    }
    w.finish()
}

/// A document for each keyword that `v` fails.
pub(super) fn rules(schema: Doc<'_>, v: Val<'_>) -> Vec<DocBuf> {
    let mut out = Vec::new();
    for keyword in KEYWORDS {
        let Some(value) = schema.get(keyword) else {
            continue;
        };
        let alone = match *keyword {
            "maximum" => part(schema, &["maximum", "exclusiveMaximum"]),
            "minimum" => part(schema, &["minimum", "exclusiveMinimum"]),
            "items" => part(schema, &["items", "additionalItems"]),
            "additionalProperties" => part(
                schema,
                &["properties", "patternProperties", "additionalProperties"],
            ),
            k => part(schema, &[k]),
        };
        if holds(alone.as_doc(), v) {
            continue;
        }
        if *keyword == "additionalProperties" && others(schema, v).is_empty() {
            continue;
        }
        out.push(describe(keyword, value, schema, alone, v));
    }
    out
}

/// Why a keyword about a single value did not hold.
fn scalar_reason(keyword: &str, v: Val<'_>) -> Option<&'static str> {
    Some(match keyword {
        "maximum" | "minimum" => "comparison failed",
        "maxLength" | "minLength" => "specified string length was not satisfied",
        "pattern" => "regular expression did not match",
        "multipleOf" => "considered value is not a multiple of the specified value",
        "maxItems" | "minItems" => "array did not match specified length",
        "enum" => "value was not found in enum",
        "type" | "bsonType" => "type did not match",
        "uniqueItems" => "found a duplicate item",
        "encrypt" if !matches!(v.as_binary(), Some((6, _))) => "value was not encrypted",
        "encrypt" => "encrypted value has wrong type",
        "minProperties" | "maxProperties" => "specified number of properties was not satisfied",
        _ => return None,
    })
}

fn describe(keyword: &str, value: Val<'_>, schema: Doc<'_>, alone: DocBuf, v: Val<'_>) -> DocBuf {
    let mut w = Writer::new();
    w.str("operatorName", keyword);
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    if let Some(reason) = scalar_reason(keyword, v) {
        w.doc("specifiedAs", alone.as_doc()).str("reason", reason);
        match keyword {
            "minProperties" | "maxProperties" => {
                w.int("numberOfProperties", d.count() as i64);
            }
            _ => {
                w.val("consideredValue", v);
            }
        }
    }
    match keyword {
        "type" | "bsonType" => {
            w.str("consideredType", v.type_name());
        }
        "uniqueItems" => {
            if let Some(twice) = v.as_array().and_then(unique_pair) {
                w.val("duplicatedValue", twice);
            }
        }
        "items" => items(&mut w, value, schema, v),
        "properties" => properties(&mut w, value, d),
        "patternProperties" => pattern_properties(&mut w, value, d),
        "additionalProperties" => additional_properties(&mut w, value, schema, v),
        "required" => required(&mut w, value, alone, d),
        "dependencies" => dependencies(&mut w, value, v),
        "allOf" | "anyOf" | "oneOf" => schemas(&mut w, keyword, value, v),
        k if scalar_reason(k, v).is_some() => {}
        _ => {
            w.str("reason", "child expression matched");
        }
    }
    w.finish()
}

fn properties(w: &mut Writer, value: Val<'_>, d: Doc<'_>) {
    w.open_array("propertiesNotSatisfied");
    let rules = value.as_doc().unwrap_or(Doc::EMPTY);
    let there = Names::of(d, rules.count());
    for p in rules {
        if let (Some(s), Some(v)) = (p.val.as_doc(), there.get(p.name)) {
            property(w, p.name, None, s, v);
        }
    }
    w.close();
}

fn pattern_properties(w: &mut Writer, value: Val<'_>, d: Doc<'_>) {
    w.open_array("details");
    for p in value.as_doc().unwrap_or(Doc::EMPTY) {
        let (Some(s), Ok(re)) = (p.val.as_doc(), CompiledRegex::new(p.name, "")) else {
            continue;
        };
        for f in d.iter().filter(|f| re.is_match(f.name.as_bytes())) {
            property(w, f.name, Some(p.name), s, f.val);
        }
    }
    w.close();
}

fn required(w: &mut Writer, value: Val<'_>, alone: DocBuf, d: Doc<'_>) {
    w.doc("specifiedAs", alone.as_doc())
        .open_array("missingProperties");
    let names = value.as_array().unwrap_or(Doc::EMPTY);
    let mut missing = missing_of(names, &Names::of(d, names.count()));
    missing.sort_unstable();
    missing.iter().for_each(|n| {
        w.push_value(*n);
    });
    w.close();
}

fn dependencies(w: &mut Writer, value: Val<'_>, v: Val<'_>) {
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    w.open_array("failingDependencies");
    let needs = value.as_doc().unwrap_or(Doc::EMPTY);
    // One of the names for itself, and what it needs.
    let asked = needs
        .values()
        .map(|v| 1 + v.as_array().map_or(0, |a| a.count()));
    let there = Names::of(d, asked.sum());
    for p in needs {
        if !there.contains(p.name) {
            continue;
        }
        if let Some(s) = p.val.as_doc() {
            if !holds(s, v) {
                w.open_doc("").str("conditionalProperty", p.name);
                details(w, s, v);
                w.close();
            }
        } else if let Some(names) = p.val.as_array() {
            let missing = missing_of(names, &there);
            if !missing.is_empty() {
                w.open_doc("").str("conditionalProperty", p.name);
                w.open_array("missingProperties");
                missing.iter().for_each(|n| {
                    w.push_value(*n);
                });
                w.close().close();
            }
        }
    }
    w.close();
}

/// Those of the names in an array that no field has.
fn missing_of<'a>(names: Doc<'a>, there: &Names<'_>) -> Vec<&'a str> {
    let names = names.values().filter_map(|n| n.as_str());
    names.filter(|n| !there.contains(n)).collect()
}

fn details(w: &mut Writer, schema: Doc<'_>, v: Val<'_>) {
    w.open_array("details");
    for r in rules(schema, v) {
        w.push(r.as_doc().as_val());
    }
    w.close();
}

fn property(w: &mut Writer, name: &str, pattern: Option<&str>, schema: Doc<'_>, v: Val<'_>) {
    if holds(schema, v) {
        return;
    }
    w.open_doc("").str("propertyName", name);
    if let Some(p) = pattern {
        w.str("regexMatched", p);
    }
    titles(schema, w);
    details(w, schema, v);
    w.close();
}

fn items(w: &mut Writer, value: Val<'_>, schema: Doc<'_>, v: Val<'_>) {
    let list = v.as_array().unwrap_or(Doc::EMPTY);
    let tuple: Vec<Doc<'_>> = value
        .as_array()
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|s| s.as_doc())
        .collect();
    let behind = schema.get("additionalItems");
    let rest = value.as_doc().or_else(|| behind.and_then(|b| b.as_doc()));
    let passes_rest = compile(rest.unwrap_or(Doc::EMPTY));
    for (i, item) in list.values().enumerate() {
        let own = tuple.get(i).copied();
        let fails = match own {
            Some(s) => !holds(s, item),
            None => !passes_rest(item),
        };
        match own.or(rest) {
            Some(s) if fails => {
                w.str("reason", "At least one item did not match the sub-schema")
                    .i32("itemIndex", i as i32);
                details(w, s, item);
                return;
            }
            None if behind.and_then(|b| b.as_bool()) == Some(false) => {
                w.str("reason", "found additional items")
                    .open_array("additionalItems");
                list.values().skip(i).for_each(|x| {
                    w.push(x);
                });
                w.close();
                return;
            }
            _ => {}
        }
    }
}

/// Fields that neither `properties` nor `patternProperties` speak of, as long as
/// `additionalProperties` refuses them.
fn others<'a>(schema: Doc<'_>, v: Val<'a>) -> Vec<(&'a str, Val<'a>)> {
    let d = v.as_doc().unwrap_or(Doc::EMPTY);
    let named = schema.get("properties").and_then(|p| p.as_doc());
    let named = Names::of(named.unwrap_or(Doc::EMPTY), d.count());
    let patterns: Vec<CompiledRegex> = schema
        .get("patternProperties")
        .and_then(|p| p.as_doc())
        .unwrap_or(Doc::EMPTY)
        .iter()
        .filter_map(|p| CompiledRegex::new(p.name, "").ok())
        .collect();
    let rule = schema.get("additionalProperties");
    let schema_of_others = rule.and_then(|r| r.as_doc());
    let passes = compile(schema_of_others.unwrap_or(Doc::EMPTY));
    let allowed = |v: Val<'_>| match schema_of_others {
        Some(_) => passes(v),
        None => rule.and_then(|r| r.as_bool()) != Some(false),
    };
    d.iter()
        .filter(|f| {
            !named.contains(f.name)
                && !patterns.iter().any(|p| p.is_match(f.name.as_bytes()))
                && !allowed(f.val)
        })
        .map(|f| (f.name, f.val))
        .collect()
}

fn additional_properties(w: &mut Writer, value: Val<'_>, schema: Doc<'_>, v: Val<'_>) {
    let others = others(schema, v);
    match (value.as_doc(), others.first()) {
        (Some(s), Some((name, v))) => {
            w.str(
                "reason",
                "at least one additional property did not match the subschema",
            )
            .str("failingProperty", name);
            details(w, s, *v);
        }
        _ => {
            w.open_doc("specifiedAs")
                .val("additionalProperties", value)
                .close();
            w.open_array("additionalProperties");
            others.iter().for_each(|(n, _)| {
                w.push_value(*n);
            });
            w.close();
        }
    }
}

fn schemas(w: &mut Writer, keyword: &str, value: Val<'_>, v: Val<'_>) {
    let list: Vec<Doc<'_>> = value
        .as_array()
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|s| s.as_doc())
        .collect();
    let matching: Vec<usize> = (0..list.len())
        .filter(|i| list.get(*i).is_some_and(|s| holds(*s, v)))
        .collect();
    if keyword == "oneOf" && matching.len() > 1 {
        w.str("reason", "more than one subschema matched")
            .open_array("matchingSchemaIndexes");
        matching.iter().for_each(|i| {
            w.push_value(*i as i32);
        });
        w.close();
        return;
    }
    w.open_array("schemasNotSatisfied");
    for (i, s) in list.iter().enumerate().filter(|(_, s)| !holds(**s, v)) {
        w.open_doc("").i32("index", i as i32);
        titles(*s, w);
        details(w, *s, v);
        w.close();
    }
    w.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    /// Each name against all others would take a minute.
    #[test]
    fn wide_ones() {
        const N: usize = 60_000;
        let name = |i: usize| format!("f{}", i * 7919 % N);
        let (mut schema, mut doc) = (Writer::new(), Writer::new());
        schema.open_doc("properties");
        (0..N).for_each(|i| {
            schema.open_doc(&name(i)).str("type", "string").close();
        });
        schema.close().bool("additionalProperties", false);
        schema.open_array("required");
        (0..N).for_each(|i| {
            schema.push_value(format!("g{i}"));
        });
        schema.close().open_doc("dependencies");
        (0..N).for_each(|i| {
            schema.open_array(&name(i)).push_value("x");
            schema.close();
        });
        schema.close();
        (0..N).for_each(|i| {
            doc.i32(&format!("f{i}"), 1);
        });
        doc.i32("other", 1);
        let (schema, doc) = (schema.finish(), doc.finish());
        let told = rules(schema.as_doc(), doc.as_doc().as_val());
        let told = told.iter().map(|r| {
            let list = r.as_doc().iter().find_map(|e| e.val.as_array());
            (
                r.get("operatorName").unwrap().as_str().unwrap(),
                list.unwrap().count(),
            )
        });
        let want = [
            ("properties", N),
            ("additionalProperties", 1),
            ("required", N),
            ("dependencies", N),
        ];
        assert_eq!(told.collect::<Vec<_>>(), want);
    }

    #[test]
    fn rules_of_values() {
        for (schema, doc, want) in [
            (
                r#"{"required":["a","b"],"properties":{"a":{"bsonType":"int","description":"a whole number"}}}"#,
                r#"{"a":"x"}"#,
                r#"{"r":[{"operatorName":"properties","propertiesNotSatisfied":[{"propertyName":"a","description":"a whole number","details":[{"operatorName":"bsonType","specifiedAs":{"bsonType":"int"},"reason":"type did not match","consideredValue":"x","consideredType":"string"}]}]},{"operatorName":"required","specifiedAs":{"required":["a","b"]},"missingProperties":["b"]}]}"#,
            ),
            (
                r#"{"properties":{"a":{}},"additionalProperties":false}"#,
                r#"{"a":1,"b":2}"#,
                r#"{"r":[{"operatorName":"additionalProperties","specifiedAs":{"additionalProperties":false},"additionalProperties":["b"]}]}"#,
            ),
            (
                r#"{"properties":{"a":{"minimum":3,"exclusiveMinimum":true}}}"#,
                r#"{"a":3}"#,
                r#"{"r":[{"operatorName":"properties","propertiesNotSatisfied":[{"propertyName":"a","details":[{"operatorName":"minimum","specifiedAs":{"minimum":3,"exclusiveMinimum":true},"reason":"comparison failed","consideredValue":3}]}]}]}"#,
            ),
            (
                r#"{"oneOf":[{"required":["a"]},{"required":["b"]}]}"#,
                r#"{"a":1,"b":1}"#,
                r#"{"r":[{"operatorName":"oneOf","reason":"more than one subschema matched","matchingSchemaIndexes":[0,1]}]}"#,
            ),
            (
                r#"{"properties":{"a":{"items":{"bsonType":"int"}}}}"#,
                r#"{"a":[1,"x"]}"#,
                r#"{"r":[{"operatorName":"properties","propertiesNotSatisfied":[{"propertyName":"a","details":[{"operatorName":"items","reason":"At least one item did not match the sub-schema","itemIndex":1,"details":[{"operatorName":"bsonType","specifiedAs":{"bsonType":"int"},"reason":"type did not match","consideredValue":"x","consideredType":"string"}]}]}]}]}"#,
            ),
        ] {
            let (s, d) = (json::parse(schema).unwrap(), json::parse(doc).unwrap());
            let mut w = Writer::new();
            w.open_array("r");
            for r in rules(s.as_doc(), d.as_doc().as_val()) {
                w.push(r.as_doc().as_val());
            }
            w.close();
            let (got, want) = (w.finish(), json::parse(want).unwrap());
            assert_eq!(got.as_doc(), want.as_doc(), "{schema} {doc}");
        }
    }
}
