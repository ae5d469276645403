//! Index specifications: checked, completed, compared with those that exist.

use bson::{Doc, DocBuf, Elem, Val, Writer, order, shell, tag};
use errors::{Error, Result, Stop, bail, err};
use front::idl;
use query::collation::Collation;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::index_keys::{Geospatial, KeyPattern};
use text::TextIndex;

/// The most indexes of one collection, `_id_` included.
pub const MAX_INDEXES: usize = 64;

/// A checked specification, complete (`v`, `key`, `name`, options).
#[derive(Clone, Debug)]
pub struct IndexSpec {
    pub spec: DocBuf,
}

/// Options that determine the content of an index: two indexes on one key must differ in one of them.
const SIGNATURE: [&str; 5] = [
    "unique",
    "sparse",
    "partialFilterExpression",
    "collation",
    "wildcardProjection",
];
/// Options of text indexes.
const TEXT_OPTIONS: [&str; 4] = [
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
];
/// Options that are true or false.
const FLAGS: [&str; 6] = [
    "unique",
    "sparse",
    "hidden",
    "background",
    "prepareUnique",
    "dropDups",
];
/// Options that are kept as they come, for kinds of index that have their own checks.
const KIND_OPTIONS: [&str; 11] = [
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "bucketSize",
    "coarsestIndexedLevel",
    "finestIndexedLevel",
];

/// Whether two key patterns are the same: names, order and values (1 and 1.0 are one).
pub fn same_key(a: Doc<'_>, b: Doc<'_>) -> bool {
    a.count() == b.count()
        && a.iter()
            .zip(b.iter())
            .all(|(x, y)| x.name == y.name && direction(x.val) == direction(y.val))
}

/// The part of a key's value that counts: its sign, or the kind of index.
fn direction(v: Val<'_>) -> Option<&str> {
    match v.to_f64() {
        Some(f) if f < 0.0 => Some("-"),
        Some(_) => Some("+"),
        None => v.as_str(),
    }
}

fn is_id_key(key: Doc<'_>) -> bool {
    key.count() == 1 && key.get("_id").is_some_and(|v| v.to_f64() == Some(1.0))
}

/// The error of an option of a wrong type. `wanted`: with its article.
fn wrong_type(e: Elem<'_>, wanted: &str) -> Error {
    err!(
        TypeMismatch,
        "The field '{}' must be {wanted}, but got {}",
        e.name,
        e.val.type_name()
    )
}

fn object<'a>(e: Elem<'a>) -> Result<Doc<'a>> {
    e.val
        .as_doc()
        .ok_or_else(|| wrong_type(e, "an object").into())
}

/// The two fields that a specification must have.
fn key_and_name<'a>(d: Doc<'a>) -> Result<(Doc<'a>, &'a str)> {
    let (mut key, mut name) = (None, None);
    for e in idl::unique("createIndexes.indexes", d)? {
        match e.name {
            "key" => key = Some(object(e)?),
            "name" => {
                let text = e.val.as_str();
                name = Some(text.ok_or_else(|| wrong_type(e, "a string"))?);
            }
            _ => {}
        }
    }
    let missing = |field: &str| {
        err!(
            FailedToParse,
            "The '{field}' field is a required property of an index specification"
        )
    };
    let key = key.ok_or_else(|| missing("key"))?;
    Ok((key, name.ok_or_else(|| missing("name"))?))
}

/// The options of a specification on their way into the complete one.
struct IndexOptions<'a> {
    given: Doc<'a>,
    key: Doc<'a>,
    w: Writer,
    sparse: bool,
    partial: bool,
    collated: bool,
    /// It asks for version 1.
    old: bool,
}

impl<'a> IndexOptions<'a> {
    fn new(given: Doc<'a>, key: Doc<'a>) -> IndexOptions<'a> {
        IndexOptions {
            given,
            key,
            w: Writer::new(),
            sparse: false,
            partial: false,
            collated: false,
            old: false,
        }
    }

    /// Checks one option and writes it.
    fn read(&mut self, e: Elem<'a>) -> Result<()> {
        match e.name {
            "key" | "name" => {}
            "v" => {
                check_version(e.val)?;
                self.old |= e.val.to_i64_exact() == Some(1);
            }
            "ns" if e.val.tag != tag::STRING => return Err(wrong_type(e, "a string").into()),
            "ns" => {}
            "hidden" if e.val.tag != tag::BOOL => return Err(wrong_type(e, "a bool").into()),
            flag if FLAGS.contains(&flag) => self.read_flag(e)?,
            "expireAfterSeconds" => self.read_expiry(e)?,
            "partialFilterExpression" => {
                let f = object(e)?;
                check_partial(f, 0)?;
                Filter::parse(f, &ParseEnv::new())?;
                self.partial = true;
                self.w.doc(e.name, f);
            }
            "collation" => self.read_collation(e)?,
            "storageEngine" => {
                let engine = object(e)?;
                super::engine_options::check(engine)?;
                self.w.doc(e.name, engine);
            }
            "wildcardProjection" => self.read_wildcard_projection(e)?,
            kind if KIND_OPTIONS.contains(&kind) => self.read_kind_option(e)?,
            other => bail!(
                InvalidIndexSpecificationOption,
                "The field '{other}' is not valid for an index specification. Specification: {}",
                shell::doc(self.given)
            ),
        }
        Ok(())
    }

    fn read_flag(&mut self, e: Elem<'a>) -> Result<()> {
        let on = flag_value(e)?;
        self.sparse |= on && e.name == "sparse";
        // MongoDB keeps false of `sparse` only, and nothing that no longer means anything.
        match e.name {
            "background" => self.w.val(e.name, e.val),
            "sparse" => self.w.bool(e.name, on),
            "dropDups" => return Ok(()),
            _ if on => self.w.bool(e.name, true),
            _ => return Ok(()),
        };
        Ok(())
    }

    fn read_expiry(&mut self, e: Elem<'a>) -> Result<()> {
        let seconds = expiry(e.val)?;
        if self.key.count() != 1 {
            bail!(
                CannotCreateIndex,
                "TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: {}",
                shell::doc(self.given)
            );
        }
        self.w.int(e.name, seconds);
        Ok(())
    }

    fn read_collation(&mut self, e: Elem<'a>) -> Result<()> {
        let c = object(e)?;
        if c.is_empty() {
            bail!(BadValue, "The field 'collation' cannot be an empty object.");
        }
        self.collated = true;
        if let Some(c) = crate::request::collation::complete(c)? {
            self.w.doc(e.name, c.as_doc());
        }
        Ok(())
    }

    fn read_wildcard_projection(&mut self, e: Elem<'a>) -> Result<()> {
        let projection = object(e)?;
        if !self.key.iter().any(|k| k.name.ends_with("$**")) {
            bail!(
                BadValue,
                "The field 'wildcardProjection' is only allowed in an 'wildcard' index"
            );
        }
        self.w.doc(e.name, projection);
        Ok(())
    }

    fn read_kind_option(&mut self, e: Elem<'a>) -> Result<()> {
        if e.name == "weights" && !self.key.iter().any(|k| k.val.as_str() == Some("text")) {
            bail!(
                CannotCreateIndex,
                "the field 'weights' can only be specified with text indexes"
            );
        }
        let number = matches!(e.name, "2dsphereIndexVersion" | "bits" | "min" | "max");
        if number && !e.val.is_number() {
            return Err(wrong_type(e, "a number").into());
        }
        check_text_option(e)?;
        // As MongoDB keeps them.
        match (e.name, e.val.to_f64(), e.val.to_i64_exact()) {
            ("min" | "max", Some(n), _) => self.w.f64(e.name, n),
            ("bits" | "2dsphereIndexVersion", _, Some(n)) => self.w.int(e.name, n),
            _ => self.w.val(e.name, e.val),
        };
        Ok(())
    }
}

impl IndexSpec {
    pub fn key(&self) -> Doc<'_> {
        let key = self.spec.get("key").and_then(|v| v.as_doc());
        key.expect("a checked specification has its key")
    }

    pub fn name(&self) -> &str {
        self.spec.get("name").and_then(|v| v.as_str()).unwrap_or("")
    }

    /// `{_id: 1}`, which every collection has.
    pub fn is_id(&self) -> bool {
        is_id_key(self.key())
    }

    /// Checks one element of `indexes`.
    /// `collation`: the collection's, for indexes that say nothing of theirs.
    pub fn parse(v: Val<'_>, collation: Option<&Collation>) -> Result<IndexSpec> {
        let Some(d) = v.as_doc() else {
            bail!(
                TypeMismatch,
                "BSON field 'createIndexes.indexes' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        let (key, name) = key_and_name(d)?;
        check_name(name, key)?;
        let id = is_id_key(key);
        let mut options = IndexOptions::new(d, key);
        options.w.i32("v", 2).doc("key", key);
        options.w.str("name", if id { "_id_" } else { name });
        for e in d {
            if id && !matches!(e.name, "key" | "name" | "v" | "ns" | "collation") {
                bail!(
                    InvalidIndexSpecificationOption,
                    "The field '{}' is not valid for an _id index specification. Specification: {}",
                    e.name,
                    shell::doc(d)
                );
            }
            options.read(e)?;
        }
        if options.sparse && options.partial {
            bail!(
                CannotCreateIndex,
                "cannot mix \"partialFilterExpression\" and \"sparse\" options"
            );
        }
        check_key(key)?;
        if let Some(c) = collation.filter(|_| !options.collated) {
            options.w.doc("collation", c.spec());
        }
        let sphere = key.iter().any(|k| k.val.as_str() == Some("2dsphere"));
        if sphere && !d.contains("2dsphereIndexVersion") {
            options.w.i32("2dsphereIndexVersion", 3);
        }
        let mut spec = options.w.finish();
        if TextIndex::is_pattern(key) {
            spec = TextIndex::normalize(spec.as_doc())?;
        }
        check_kind(&spec, options.old)?;
        Ok(IndexSpec { spec })
    }

    /// A collection has one text index.
    fn is_the_text_index(&self, existing: &[DocBuf]) -> Result<bool> {
        for e in existing {
            let e = e.as_doc();
            let (key, name) = (e.get("key"), e.get("name").and_then(|v| v.as_str()));
            let key = key.and_then(|v| v.as_doc()).unwrap_or(Doc::EMPTY);
            let same = |field: &&str| match (self.spec.get(field), e.get(field)) {
                (None, None) => true,
                (Some(a), Some(b)) => order::equal(a, b),
                _ => false,
            };
            match (name == Some(self.name()), TextIndex::is_pattern(key)) {
                (true, true)
                    if TEXT_OPTIONS.iter().all(same)
                        && matches!(self.compare(e), Likeness::Identical) =>
                {
                    return Ok(true);
                }
                (true, true) => bail!(
                    IndexOptionsConflict,
                    "An equivalent index already exists with the same name but different options. \
                     Requested index: {}, existing index: {}",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e)
                ),
                (false, true) => bail!(
                    IndexOptionsConflict,
                    "An equivalent index already exists with a different name and options. Requested index: {}, \
                     existing index: {} (only one text index per collection allowed, found existing text index \
                     \"{}\")",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e),
                    name.unwrap_or("")
                ),
                (true, false) => bail!(
                    IndexKeySpecsConflict,
                    "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e)
                ),
                (false, false) => {}
            }
        }
        Ok(false)
    }

    /// How this specification stands to an existing one.
    fn compare(&self, other: Doc<'_>) -> Likeness {
        let other_key = other
            .get("key")
            .and_then(|v| v.as_doc())
            .unwrap_or(Doc::EMPTY);
        let same = |field: &str| match (self.spec.get(field), other.get(field)) {
            (None, None) => true,
            (Some(a), Some(b)) => order::equal(a, b),
            _ => false,
        };
        let same_signature = |field: &&str| match *field {
            "partialFilterExpression" => same(field) || same_partial(self.spec.as_doc(), other),
            "sparse" => is_on(self.spec.as_doc(), field) == is_on(other, field),
            field => same(field),
        };
        if !same_key(self.key(), other_key) || !SIGNATURE.iter().all(same_signature) {
            Likeness::Different
        } else if same("expireAfterSeconds") && same("storageEngine") && same("hidden") {
            Likeness::Identical
        } else {
            Likeness::Equivalent
        }
    }

    /// Whether `existing` is this very index already; an error when both cannot be.
    pub fn exists_among(&self, existing: &[DocBuf]) -> Result<bool> {
        if TextIndex::is_pattern(self.key()) {
            return self.is_the_text_index(existing);
        }
        for e in existing {
            let e = e.as_doc();
            let name = e.get("name").and_then(|v| v.as_str()).unwrap_or("");
            match (name == self.name(), self.compare(e)) {
                (true, Likeness::Identical) => return Ok(true),
                (true, Likeness::Equivalent) => bail!(
                    IndexOptionsConflict,
                    "An equivalent index already exists with the same name but different options. Requested index: {}, existing index: {}",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e)
                ),
                (true, Likeness::Different) => bail!(
                    IndexKeySpecsConflict,
                    "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e)
                ),
                _ => {}
            }
        }
        for e in existing {
            let e = e.as_doc();
            match self.compare(e) {
                Likeness::Identical => bail!(
                    IndexOptionsConflict,
                    "Index already exists with a different name: {}",
                    e.get("name").and_then(|v| v.as_str()).unwrap_or("")
                ),
                Likeness::Equivalent => bail!(
                    IndexOptionsConflict,
                    "An equivalent index already exists with a different name and options. Requested index: {}, existing index: {}",
                    shell::doc(self.spec.as_doc()),
                    shell::doc(e)
                ),
                Likeness::Different => {}
            }
        }
        Ok(false)
    }
}

/// Whether a specification has a flag, and not with false.
fn is_on(spec: Doc<'_>, flag: &str) -> bool {
    spec.get(flag).is_some_and(Val::truthy)
}

/// Whether the partial filters of two specifications hold the same documents, in whatever order
/// their clauses stand.
fn same_partial(a: Doc<'_>, b: Doc<'_>) -> bool {
    let parsed = |d: Doc<'_>| {
        let f = d.get("partialFilterExpression")?.as_doc()?;
        Filter::parse(f, &ParseEnv::new()).ok()
    };
    match (parsed(a), parsed(b)) {
        (Some(a), Some(b)) => {
            planner::implies(a.root(), b.root()) && planner::implies(b.root(), a.root())
        }
        _ => false,
    }
}

enum Likeness {
    Identical,
    /// One cannot be told from the other by queries, but other options differ.
    Equivalent,
    Different,
}

/// What only some kinds of index allow.
fn check_kind(spec: &DocBuf, old: bool) -> Result<()> {
    let pattern = KeyPattern::of_spec(spec.as_doc())?;
    let has = |name: &str| spec.get(name).is_some();
    if pattern.is_hashed() && has("unique") {
        bail!(
            16764,
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index."
        );
    }
    let without_collation = match pattern.geospatial() {
        Some(Geospatial::Plane(_)) => Some("2d"),
        _ => pattern.text().map(|_| "text"),
    };
    if let Some(kind) = without_collation.filter(|_| has("collation")) {
        bail!(
            CannotCreateIndex,
            "Index type '{kind}' does not support collation: {}",
            shell::doc(spec.as_doc())
        );
    }
    if pattern.wildcard().is_some() {
        if old {
            bail!(
                CannotCreateIndex,
                "Invalid index specification; wildcard indexes cannot be created with v=1"
            );
        }
        for option in ["unique", "sparse", "expireAfterSeconds"] {
            if has(option) {
                bail!(
                    CannotCreateIndex,
                    "Index type 'wildcard' does not support the '{option}' option"
                );
            }
        }
    }
    Ok(())
}

fn check_name(name: &str, key: Doc<'_>) -> Result<()> {
    if name.is_empty() {
        bail!(CannotCreateIndex, "The index name cannot be empty");
    }
    if name.contains('\0') {
        bail!(
            CannotCreateIndex,
            "The index name cannot contain embedded nulls"
        );
    }
    if name == "*" {
        bail!(BadValue, "The index name '*' is not valid.");
    }
    if name == "_id_" && !is_id_key(key) {
        bail!(
            BadValue,
            "The index name '_id_' is reserved for the _id index, which must have key pattern {{_id: 1}}, found key: {}",
            shell::doc(key)
        );
    }
    Ok(())
}

fn check_key(key: Doc<'_>) -> Result<()> {
    if key.count() > 32 {
        bail!(13103, "too many compound keys");
    }
    let mut names: Vec<&str> = Vec::new();
    for e in key {
        if names.contains(&e.name) {
            bail!(
                BadValue,
                "Index key pattern contains the field '{}' twice",
                e.name
            );
        }
        names.push(e.name);
        if e.val.as_str() == Some("wildcard") && !e.name.ends_with("$**") {
            bail!(
                7246202,
                "The 'wildcard' index type must be declared with a '$**' field"
            );
        }
    }
    let is_hashed = |e: &Elem<'_>| e.val.as_str() == Some("hashed");
    let hashed = key.iter().filter(is_hashed).count();
    if hashed > 1 {
        bail!(
            31303,
            "A maximum of one index field is allowed to be hashed but found {hashed} for 'key' {}",
            shell::doc(key)
        );
    }
    if key.count() == 1 && key.get("_id").is_some_and(|v| v.is_number()) && !is_id_key(key) {
        bail!(
            BadValue,
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            shell::doc(key)
        );
    }
    Ok(())
}

fn flag_value(e: Elem<'_>) -> Result<bool> {
    if e.val.tag == tag::BOOL || e.val.is_number() {
        return Ok(e.val.truthy());
    }
    Err(err!(
        TypeMismatch,
        "The field '{}' has value {}: {}, which is not convertible to bool",
        e.name,
        e.name,
        e.val
    )
    .into())
}

fn check_version(v: Val<'_>) -> Result<()> {
    if !v.is_number() {
        bail!(
            TypeMismatch,
            "The field 'v' must be a number, but got {}",
            v.type_name()
        );
    }
    match v.to_i64_exact() {
        Some(1 | 2) => Ok(()),
        Some(0) => bail!(
            CannotCreateIndex,
            "Invalid index specification; cannot create an index with v=0"
        ),
        Some(n) => bail!(
            CannotCreateIndex,
            "Invalid index specification; cannot create an index with v={n}"
        ),
        None => bail!(
            BadValue,
            "Index version must be representable as a 32-bit integer, but got {v}"
        ),
    }
}

/// The types of what belongs to text indexes.
fn check_text_option(e: Elem<'_>) -> Result<()> {
    let (fits, expected) = match e.name {
        "default_language" | "language_override" => (e.val.tag == tag::STRING, "string"),
        "textIndexVersion" => (e.val.is_number(), "number"),
        // A name and a list are not what MongoDB asks for either, and tells it as it makes the
        // index.
        "weights" => (
            matches!(e.val.tag, tag::DOCUMENT | tag::ARRAY | tag::STRING),
            "object",
        ),
        _ => return Ok(()),
    };
    if !fits {
        bail!(
            TypeMismatch,
            "The field '{}' must be {expected}, but got {}",
            e.name,
            e.val.type_name()
        );
    }
    Ok(())
}

/// `expireAfterSeconds` of an index, as MongoDB checks and keeps it.
fn expiry(v: Val<'_>) -> Result<i64> {
    if !v.is_number() {
        bail!(
            CannotCreateIndex,
            "TTL index 'expireAfterSeconds' option must be numeric, but received a type of {}.",
            v.type_name()
        );
    }
    let n = idl::whole(v).unwrap_or(0);
    if n < 0 || v.to_f64().is_some_and(f64::is_nan) {
        bail!(
            CannotCreateIndex,
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a different value than {v}."
        );
    }
    if n > i64::from(i32::MAX) {
        bail!(
            CannotCreateIndex,
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number."
        );
    }
    Ok(n)
}

/// Fails on operators that a partial index cannot be defined with.
fn check_partial(filter: Doc<'_>, depth: usize) -> Result<()> {
    for e in filter {
        match e.name {
            "$and" | "$or" => {
                if depth > 4 {
                    bail!(
                        CannotCreateIndex,
                        "partialFilterExpression depth may not exceed 4"
                    );
                }
                for clause in e.val.as_array().unwrap_or(Doc::EMPTY).values() {
                    check_partial(clause.as_doc().unwrap_or(Doc::EMPTY), depth + 1)?;
                }
            }
            "$comment" => {}
            "$expr" => bail!(
                QueryFeatureNotAllowed,
                "$expr is not allowed in this context"
            ),
            "$where" | "$text" => bail!(BadValue, "{} is not allowed in this context", e.name),
            name if name.starts_with('$') && !is_of_dbref(name) => {
                return Err(not_in_partial(name));
            }
            _ => check_partial_field(e.val)?,
        }
    }
    Ok(())
}

fn is_of_dbref(name: &str) -> bool {
    matches!(name, "$ref" | "$id" | "$db")
}

/// What a partial index asks of one field: a value or operators.
fn check_partial_field(v: Val<'_>) -> Result<()> {
    if v.tag == tag::REGEX {
        return Err(not_in_partial("$regex"));
    }
    let operators = v.as_doc().filter(|ops| {
        let first = ops.first();
        first.is_some_and(|o| o.name.starts_with('$') && !is_of_dbref(o.name))
    });
    for op in operators.into_iter().flatten() {
        match op.name {
            "$eq" | "$gt" | "$gte" | "$lt" | "$lte" | "$type" | "$all" | "$geoWithin"
            | "$within" | "$geoIntersects" => {}
            "$in" => {
                let mut items = op.val.as_array().unwrap_or(Doc::EMPTY).values();
                if items.any(|v| v.tag == tag::REGEX) {
                    return Err(not_in_partial("$in with a regular expression"));
                }
            }
            "$exists" if op.val.truthy() => {}
            other => return Err(not_in_partial(other)),
        }
    }
    Ok(())
}

fn not_in_partial(what: &str) -> Stop {
    err!(
        CannotCreateIndex,
        "Expression not supported in partial index: {what}"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    fn parse(text: &str) -> Result<IndexSpec> {
        IndexSpec::parse(json::parse(text).unwrap().as_doc().as_val(), None)
    }

    #[test]
    fn accepted() {
        let s = parse(r#"{"key": {"a": 1}, "name": "x", "unique": 1, "sparse": false, "expireAfterSeconds": 3.7}"#).unwrap();
        assert_eq!(
            json::val_to_string(s.spec.as_doc().as_val()),
            r#"{"v": 2, "key": {"a": 1}, "name": "x", "unique": true, "sparse": false, "expireAfterSeconds": 3}"#
        );
        assert!(
            parse(r#"{"key": {"_id": 1}, "name": "whatever"}"#)
                .unwrap()
                .is_id()
        );
        parse(r#"{"key": {"a": 1}, "name": "x", "partialFilterExpression": {"$or": [{"a": {"$gt": 5}}, {"b": 1}]}}"#).unwrap();
    }

    #[test]
    fn rejected() {
        for (text, code) in [
            (r#"{}"#, 9),
            (r#"{"key": {"a": 1}}"#, 9),
            (r#"{"key": {}, "name": "x"}"#, 67),
            (r#"{"key": {"a": 1}, "name": ""}"#, 67),
            (r#"{"key": {"a": 1}, "name": 1}"#, 14),
            (r#"{"key": {"a": 1}, "name": "_id_"}"#, 2),
            (r#"{"key": {"a": 1}, "name": "*"}"#, 2),
            (r#"{"key": {"a": 0}, "name": "x"}"#, 67),
            (r#"{"key": {"a": "abc"}, "name": "x"}"#, 67),
            (r#"{"key": {"_id": -1}, "name": "x"}"#, 2),
            (r#"{"key": {"_id": 1}, "name": "x", "hidden": true}"#, 197),
            (r#"{"key": {"a": 1}, "name": "x", "nope": true}"#, 197),
            (r#"{"key": {"a": "text"}, "name": "x", "weights": 1}"#, 14),
            (
                r#"{"key": {"a": "text"}, "name": "x", "default_language": 1}"#,
                14,
            ),
            (r#"{"key": {"a": 1}, "name": "x", "unique": "yes"}"#, 14),
            (
                r#"{"key": {"a": 1}, "name": "x", "expireAfterSeconds": -1}"#,
                67,
            ),
            (
                r#"{"key": {"a": 1, "b": 1}, "name": "x", "expireAfterSeconds": 1}"#,
                67,
            ),
            (
                r#"{"key": {"a": 1}, "name": "x", "partialFilterExpression": {"a": {"$ne": 5}}}"#,
                67,
            ),
            (
                r#"{"key": {"a": 1}, "name": "x", "sparse": true, "partialFilterExpression": {"a": 5}}"#,
                67,
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().into_error().code.0, code, "{text}");
        }
    }

    #[test]
    fn conflicts() {
        let existing = |text: &str| vec![parse(text).unwrap().spec];
        let a = existing(r#"{"key": {"a": 1}, "name": "a_1"}"#);
        let check = |text: &str| {
            parse(text)
                .unwrap()
                .exists_among(&a)
                .map_err(|e| e.into_error().code.0)
        };
        assert_eq!(check(r#"{"key": {"a": 1.0}, "name": "a_1"}"#), Ok(true));
        assert_eq!(check(r#"{"key": {"a": 1}, "name": "other"}"#), Err(85));
        assert_eq!(check(r#"{"key": {"b": 1}, "name": "a_1"}"#), Err(86));
        assert_eq!(
            check(r#"{"key": {"a": 1}, "name": "a_1", "unique": true}"#),
            Err(86)
        );
        assert_eq!(
            check(r#"{"key": {"a": 1}, "name": "a_1", "expireAfterSeconds": 5}"#),
            Err(85)
        );
        assert_eq!(
            check(r#"{"key": {"a": 1}, "name": "u", "unique": true}"#),
            Ok(false)
        );
        assert_eq!(check(r#"{"key": {"a": -1}, "name": "d"}"#), Ok(false));
    }
}
