//! `encryptedFields`: which fields clients encrypt before they send them. The option is checked and
//! kept, and documents that hold such a field unencrypted are refused (`catalog::Validator`);
//! writes that need the server's part of Queryable Encryption are refused too. The collections that
//! keep its state are made by drivers.

use bson::{Doc, DocBuf, Elem, Val, Writer, order};
use errors::{Error, Result, bail};
use front::idl;
use query::filter::TypeSet;

/// The option as it is kept.
pub fn check(coll: &str, d: Doc<'_>) -> Result<DocBuf> {
    const AT: &str = "create.encryptedFields";
    let mut fields = None;
    let mut rest = Writer::new();
    for e in idl::unique(AT, d)? {
        match e.name {
            "fields" => fields = idl::array(AT, e)?,
            "escCollection" | "ecocCollection" => {
                if let Some(name) = idl::string(AT, e)? {
                    let kind = e.name.trim_end_matches("Collection");
                    let wanted = format!("enxcol_.{coll}.{kind}");
                    if name != wanted {
                        bail!(
                            7406900,
                            "Encrypted state collection name '{name}' does not follow the naming pattern '{wanted}'"
                        );
                    }
                    rest.str(e.name, name);
                }
            }
            "eccCollection" => {
                if let Some(name) = idl::string(AT, e)? {
                    rest.str(e.name, name);
                }
            }
            "strEncodeVersion" => {
                if let Some(n) = idl::int(AT, e)? {
                    rest.int(e.name, n);
                }
            }
            name => return Err(idl::unknown(AT, name)),
        }
    }
    let fields = idl::required(AT, "fields", fields)?;
    let mut w = Writer::new();
    w.open_array("fields");
    let mut paths: Vec<&str> = Vec::new();
    for v in fields.values().filter(|v| !v.is_nullish()) {
        let Some(f) = v.as_doc() else {
            return Err(idl::mismatch(AT, "fields", v, &["object"]));
        };
        let path = field(f)?;
        if paths.contains(&path) {
            bail!(6338402, "Duplicate paths are not allowed: {path}");
        }
        if let Some(other) = paths
            .iter()
            .find(|p| contains(p, path) || contains(path, p))
        {
            bail!(
                6338403,
                "Conflicting index paths found as one is a prefix of another '{path}' and '{other}'"
            );
        }
        paths.push(path);
        w.push(v);
    }
    w.close();
    w.extend(rest.finish().as_doc());
    Ok(w.finish())
}

/// Whether one path lies below another.
fn contains(outer: &str, inner: &str) -> bool {
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.starts_with('.'))
}

idl::arguments! {
    /// One of `fields` as it is written.
    struct FieldArguments<'a> {
        "path" => path: Option<&'a str> = idl::string,
        "keyId" => key: Option<[u8; 16]> = idl::uuid,
        "bsonType" => kind: Option<&'a str> = idl::string,
        "queries" => queries: Option<Elem<'a>> = idl::element,
    }
}

/// One of `fields`, checked; its path.
fn field(d: Doc<'_>) -> Result<&str> {
    const AT: &str = "create.encryptedFields.fields";
    let FieldArguments {
        path,
        key,
        kind,
        queries,
    } = FieldArguments::parse_document(AT, d)?;
    idl::required(AT, "keyId", key)?;
    let path = idl::required(AT, "path", path)?;
    if path.contains('\0') {
        bail!(9867600, "A path cannot hold a null byte");
    }
    if path.is_empty() {
        bail!(6316402, "Encrypted field must have a non-empty path");
    }
    if path == "_id" || path.starts_with("_id.") {
        bail!(6316403, "Cannot encrypt _id or its subfields: {path}");
    }
    if let Some(kind) = kind {
        let mut known = TypeSet::EMPTY;
        if known.add_alias(kind).is_none() {
            bail!(BadValue, "Unknown type name alias: {kind}");
        }
        if matches!(kind, "null" | "undefined" | "minKey" | "maxKey") {
            bail!(
                6338406,
                "Type '{kind}' is not a supported Queryable Encryption data type"
            );
        }
    }
    if let Some(e) = queries {
        check_queries(e, kind)?;
    }
    Ok(path)
}

fn check_queries(e: Elem<'_>, kind: Option<&str>) -> Result<()> {
    const AT: &str = "create.encryptedFields.fields";
    let mut types = Vec::new();
    match (e.val.as_doc(), e.val.as_array()) {
        (Some(d), _) => types.push(query_type(d, kind)?),
        (_, Some(a)) => {
            if a.is_empty() {
                bail!(9783412, "At least one query type must be defined");
            }
            for v in a.values() {
                match v.as_doc() {
                    Some(d) => types.push(query_type(d, kind)?),
                    None => return Err(idl::mismatch(AT, "queries", v, &["object"])),
                }
            }
        }
        _ => return Err(idl::mismatch(AT, "queries", e.val, &["array", "object"])),
    }
    match types[..] {
        [] | [_] => Ok(()),
        ["suffixPreview", "prefixPreview"] | ["prefixPreview", "suffixPreview"] => Ok(()),
        [_, _] => bail!(
            9783414,
            "Multiple query types may only be the suffix and prefix query types"
        ),
        _ => bail!(
            9783413,
            "The number of query types for an encrypted field cannot exceed two"
        ),
    }
}

idl::arguments! {
    /// What may be asked of an encrypted field, as it is written.
    struct QueryArguments<'a> {
        "queryType" => name: Option<&'a str> = idl::string,
        "min" => min: Option<Val<'a>> = idl::value,
        "max" => max: Option<Val<'a>> = idl::value,
        "trimFactor" => trim: Option<i64> = from_0,
        "strMaxLength" => length: Option<i64> = from_1,
        "strMinQueryLength" => shortest: Option<i64> = from_1,
        "strMaxQueryLength" => longest: Option<i64> = from_1,
        "caseSensitive" => case: Option<bool> = idl::boolean,
        "diacriticSensitive" => diacritic: Option<bool> = idl::boolean,
    }
    checked: "sparsity" => from_1, "precision" | "contention" => from_0;
}

/// What may be asked of an encrypted field, checked; the name of the query type.
fn query_type<'a>(d: Doc<'a>, kind: Option<&str>) -> Result<&'a str> {
    const AT: &str = "create.encryptedFields.fields.queries";
    let q = QueryArguments::parse_document(AT, d)?;
    let name = idl::required(AT, "queryType", q.name)?;
    let Some(kind) = kind else {
        bail!(
            6412601,
            "The BSON type needs to be specified for a field that is queried"
        )
    };
    match name {
        "equality" if matches!(kind, "double" | "decimal" | "object" | "array") => bail!(
            6338405,
            "Type '{kind}' is not a supported equality indexed Queryable Encryption data type"
        ),
        "equality" => {}
        "range" | "rangePreview" => check_range(kind, q.min, q.max, q.trim)?,
        "suffixPreview" | "prefixPreview" | "substringPreview" => check_text(name, kind, &q)?,
        other => bail!(
            BadValue,
            "Enumeration value '{other}' for field '{AT}.queryType' is not a valid value."
        ),
    }
    Ok(name)
}

/// Checks a query of parts of strings.
fn check_text(name: &str, kind: &str, q: &QueryArguments<'_>) -> Result<()> {
    if kind != "string" {
        bail!(
            9783400,
            "Type '{kind}' is not a supported text search indexed Queryable Encryption data type"
        );
    }
    let is_required = |given: bool, code: i32, option: &str| match given {
        true => Ok(()),
        false => Err(Error::coded(
            code,
            format!("{option} parameter is required for {name}"),
        )),
    };
    let substring = name == "substringPreview";
    is_required(!substring || q.length.is_some(), 9783401, "strMaxLength")?;
    is_required(q.shortest.is_some(), 9783402, "strMinQueryLength")?;
    is_required(q.longest.is_some(), 9783403, "strMaxQueryLength")?;
    is_required(q.case.is_some(), 9783404, "caseSensitive")?;
    is_required(q.diacritic.is_some(), 9783405, "diacriticSensitive")?;
    if q.shortest > q.longest {
        bail!(
            9783406,
            "strMinQueryLength cannot be greater than strMaxQueryLength"
        );
    }
    Ok(())
}

fn check_range(
    kind: &str,
    min: Option<Val<'_>>,
    max: Option<Val<'_>>,
    trim: Option<i64>,
) -> Result<()> {
    let bits = match kind {
        "int" => 32,
        "long" | "date" | "double" => 64,
        "decimal" => 128,
        _ => bail!(
            6775201,
            "Type '{kind}' is not a supported range indexed Queryable Encryption data type"
        ),
    };
    for (name, v) in [("min", min), ("max", max)] {
        if let Some(v) = v.filter(|v| v.type_name() != kind) {
            bail!(
                7018200,
                "Range field type '{kind}' does not match the type of its {name}, '{}'",
                v.type_name()
            );
        }
    }
    if let (Some(min), Some(max)) = (min, max)
        && order::compare(min, max).is_ge()
    {
        bail!(
            6720005,
            "Minimum value must be less than maximum value, got min: {min}, max: {max}"
        );
    }
    if trim.is_some_and(|n| n >= bits) {
        bail!(
            8574000,
            "trimFactor must be less than the number of bits of the domain, {bits}"
        );
    }
    Ok(())
}

/// A whole number, without a fraction, that is at least `least`.
fn whole(within: &str, e: Elem<'_>, least: i64) -> Result<Option<i64>> {
    if e.val.is_number() && e.val.to_i64_exact().is_none() {
        bail!(
            FailedToParse,
            "Expected an integer for '{within}.{}', but found {}",
            e.name,
            e.val
        );
    }
    idl::int_from(within, e, least)
}

fn from_0(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    whole(within, e, 0)
}

fn from_1(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    whole(within, e, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, array, doc};

    fn code(field: DocBuf) -> i32 {
        let mut w = Writer::new();
        w.binary("keyId", 4, &[1; 16]).extend(field.as_doc());
        let d = doc! { "fields": array![w.finish()] };
        check("c", d.as_doc()).map_or_else(|e| e.into_error().code.0, |_| 0)
    }

    #[test]
    fn fields_are_checked() {
        let queried =
            |kind: &str, q: DocBuf| code(doc! { "path": "a", "bsonType": kind, "queries": q });
        assert_eq!(code(doc! { "path": "a" }), 0);
        assert_eq!(code(doc! { "path": "" }), 6316402);
        assert_eq!(code(doc! { "path": "_id.a" }), 6316403);
        assert_eq!(code(doc! { "path": "a", "bsonType": "minKey" }), 6338406);
        assert_eq!(code(doc! { "path": "a", "bsonType": "x" }), 2);
        assert_eq!(code(doc! { "path": "a", "queries": array![] }), 9783412);
        assert_eq!(queried("string", doc! { "queryType": "equality" }), 0);
        assert_eq!(queried("string", doc! { "queryType": "range" }), 6775201);
        assert_eq!(
            queried("int", doc! { "queryType": "range", "min": 1, "max": 9 }),
            0
        );
        assert_eq!(
            queried("int", doc! { "queryType": "range", "min": 9, "max": 1 }),
            6720005
        );
        assert_eq!(
            queried("int", doc! { "queryType": "range", "min": 1i64 }),
            7018200
        );
        assert_eq!(
            queried("int", doc! { "queryType": "range", "trimFactor": 32 }),
            8574000
        );
        assert_eq!(
            queried("int", doc! { "queryType": "range", "sparsity": 1.5 }),
            9
        );
        assert_eq!(
            queried("string", doc! { "queryType": "prefixPreview" }),
            9783402
        );
    }

    #[test]
    fn paths_do_not_overlap() {
        let of = |a: &str, b: &str| {
            let f = |p: &str| doc! { "path": p, "keyId": Value::binary(4, &[1; 16]) };
            let d = doc! { "fields": array![f(a), f(b)] };
            check("c", d.as_doc()).map_or_else(|e| e.into_error().code.0, |_| 0)
        };
        assert_eq!(of("a", "a"), 6338402);
        assert_eq!(of("a.b", "a"), 6338403);
        assert_eq!(of("a", "ab"), 0);
    }
}
