//! Collations of commands, collections and indexes: checked and completed as MongoDB does.

use crate::request::CommandContext;
use bson::{Doc, DocBuf, Elem, Writer, shell};
use errors::{Result, bail};
use front::idl;
use query::collation::Collation;

/// The version of ICU that MongoDB names.
const VERSION: &str = "57.1";

/// Languages of ICU's locales, enough to tell a locale from a slip of the pen.
const LANGUAGES: &str = "af am ar as az be bg bn bo bs ca ceb chr cs cy da de dsb dz ee el en eo es et fa fa_AF fi fil fo fr \
    ga gl gu ha haw he hi hr hsb hu hy id ig is it ja ka kk kl km kn ko kok ky lb lkt ln lo lt lv mk ml mn mr ms mt my nb \
    ne nl nn nso om or pa pl ps pt ro ru sa se si sk sl smn sq sr sv sw ta te th tk tn to tr ug uk ur uz vi wae wo xh yi yo \
    zh zu";

/// What a command says of its collation; `None`: nothing, so that the collection's holds.
pub type CollationArgument = Option<Option<Collation>>;

/// Reads the argument `collation` of a command.
pub fn read(within: &str, e: Elem<'_>) -> Result<CollationArgument> {
    given(idl::doc(within, e)?)
}

/// The `collation` of a command.
pub fn given(d: Option<Doc<'_>>) -> Result<CollationArgument> {
    match d.filter(|d| !d.is_empty()) {
        None => Ok(None),
        Some(d) => parse(d).map(Some),
    }
}

/// A collation; `None` for the simple one.
pub fn parse(d: Doc<'_>) -> Result<Option<Collation>> {
    match complete(d)? {
        Some(spec) => Collation::new(spec.as_doc()),
        None => Ok(None),
    }
}

/// The collation that holds for a command on `ns`.
pub fn effective(
    cx: &CommandContext<'_, '_>,
    ns: &str,
    given: &CollationArgument,
) -> Result<Option<Collation>> {
    let catalog = &cx.app.engine.catalog;
    let Some(given) = given else {
        return Ok(catalog.collation_of(ns));
    };
    if let Some(c) = catalog.get(ns)
        && c.is_view()
        && c.measurements().is_none()
        && c.collation != *given
    {
        bail!(
            OptionNotSupportedOnView,
            "Cannot override a view's default collation. Collation specified by the operation: {}",
            given.as_ref().map_or_else(
                || "{ locale: \"simple\" }".to_string(),
                |c| c.spec().to_string()
            )
        );
    }
    Ok(given.clone())
}

const AT: &str = "collation";

idl::arguments! {
    /// A collation as it is written.
    struct Written<'a> {
        "locale" => locale: Option<&'a str> = idl::string,
        "strength" => strength: Option<i64> = read_strength,
        "caseLevel" => case_level: Option<bool> = idl::boolean,
        "caseFirst" => case_first: Option<&'a str> = |within, e| one_of(within, e, &["upper", "lower", "off"]),
        "alternate" => alternate: Option<&'a str> = |within, e| one_of(within, e, &["non-ignorable", "shifted"]),
        "maxVariable" => max_variable: Option<&'a str> = |within, e| one_of(within, e, &["punct", "space"]),
        "normalization" => normalization: Option<bool> = idl::boolean,
        "numericOrdering" => numeric: Option<bool> = idl::boolean,
        "backwards" => backwards: Option<bool> = bool_not_null,
    }
    checked: "version" => check_version;
}

fn read_strength(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let strength = idl::int(within, e)?;
    if let Some(n) = strength.filter(|n| !(1..=5).contains(n)) {
        bail!(
            BadValue,
            "Enumeration value '{n}' for field '{within}.strength' is not a valid value."
        );
    }
    Ok(strength)
}

/// A boolean, and null is none.
fn bool_not_null(within: &str, e: Elem<'_>) -> Result<Option<bool>> {
    match e.val.as_bool() {
        Some(b) => Ok(Some(b)),
        None => Err(idl::mismatch(within, e.name, e.val, &["bool"])),
    }
}

fn check_version(within: &str, e: Elem<'_>) -> Result<()> {
    match idl::string(within, e)? {
        Some(v) if v != VERSION => bail!(
            IncompatibleCollationVersion,
            "Requested collation version {v} is not available"
        ),
        _ => Ok(()),
    }
}

/// Checks a collation and fills in what its locale decides; `None` for the simple one.
pub fn complete(d: Doc<'_>) -> Result<Option<DocBuf>> {
    let c = Written::parse_document(AT, d)?;
    let locale = idl::required(AT, "locale", c.locale)?;
    if locale == "simple" {
        return Ok(None);
    }
    let language = locale.split(['_', '@', '-']).next().unwrap_or("");
    if !LANGUAGES.split_ascii_whitespace().any(|l| l == language) {
        bail!(BadValue, "Field 'locale' is invalid in: {}", shell::doc(d));
    }
    // What the languages themselves ask for.
    let first = match language {
        "da" | "mt" => "upper",
        _ => "off",
    };
    let (strength, case_level) = (c.strength.unwrap_or(3), c.case_level.unwrap_or(false));
    if c.case_first.is_some_and(|first| first != "off") && !case_level && strength <= 2 {
        bail!(
            BadValue,
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2"
        );
    }
    let mut w = Writer::new();
    w.str("locale", locale)
        .bool("caseLevel", case_level)
        .str("caseFirst", c.case_first.unwrap_or(first))
        .i32("strength", strength as i32)
        .bool("numericOrdering", c.numeric.unwrap_or(false))
        .str(
            "alternate",
            c.alternate.unwrap_or(if language == "th" {
                "shifted"
            } else {
                "non-ignorable"
            }),
        )
        .str("maxVariable", c.max_variable.unwrap_or("punct"))
        .bool("normalization", c.normalization.unwrap_or(false))
        .bool("backwards", c.backwards.unwrap_or(locale == "fr_CA"))
        .str("version", VERSION);
    let spec = w.finish();
    Collation::new(spec.as_doc())?;
    Ok(Some(spec))
}

fn one_of<'a>(within: &str, e: Elem<'a>, values: &[&str]) -> Result<Option<&'a str>> {
    match idl::string(within, e)? {
        Some(v) if !values.contains(&v) => {
            bail!(
                BadValue,
                "Enumeration value '{v}' for field '{within}.{}' is not a valid value.",
                e.name
            )
        }
        v => Ok(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn checks() {
        for (text, want) in [
            (r#"{"locale": "simple"}"#, Ok(false)),
            (r#"{"locale": "en_US", "strength": 2.9}"#, Ok(true)),
            (r#"{}"#, Err(40414)),
            (r#"{"locale": 1}"#, Err(14)),
            (r#"{"locale": "nonsense"}"#, Err(2)),
            (r#"{"locale": "en", "strength": 6}"#, Err(2)),
            (
                r#"{"locale": "en", "caseFirst": "upper", "strength": 1}"#,
                Err(2),
            ),
            (r#"{"locale": "en", "backwards": null}"#, Err(14)),
            (r#"{"locale": "en", "Strength": 1}"#, Err(40415)),
            (r#"{"locale": "en", "version": "1"}"#, Err(161)),
        ] {
            assert_eq!(
                complete(json::parse(text).unwrap().as_doc())
                    .map(|c| c.is_some())
                    .map_err(|e| e.into_error().code.0),
                want,
                "{text}"
            );
        }
    }
}
