//! Collations of commands, collections and indexes: checked and completed as MongoDB does.

use crate::request::CommandContext;
use crate::request::idl;
use bson::{Doc, DocBuf, Elem, Writer, tag};
use errors::{Result, bail};
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

/// Checks a collation and fills in what its locale decides; `None` for the simple one.
pub fn complete(d: Doc<'_>) -> Result<Option<DocBuf>> {
    let (mut locale, mut strength, mut case_level, mut case_first) = (None, None, None, None);
    let (mut alternate, mut max_variable, mut normalization, mut numeric, mut backwards) =
        (None, None, None, None, None);
    for e in d {
        match e.name {
            "locale" => locale = idl::string("collation", e)?,
            "strength" => {
                if let Some(n) = idl::int("collation", e)? {
                    if !(1..=5).contains(&n) {
                        bail!(
                            BadValue,
                            "Enumeration value '{n}' for field 'collation.strength' is not a valid value."
                        );
                    }
                    strength = Some(n);
                }
            }
            "caseLevel" => case_level = idl::boolean("collation", e)?,
            "normalization" => normalization = idl::boolean("collation", e)?,
            "numericOrdering" => numeric = idl::boolean("collation", e)?,
            "backwards" => {
                if e.val.tag != tag::BOOL {
                    return Err(idl::mismatch("collation", "backwards", e.val, &["bool"]));
                }
                backwards = Some(e.val.truthy());
            }
            "caseFirst" => case_first = one_of(e, &["upper", "lower", "off"])?,
            "alternate" => alternate = one_of(e, &["non-ignorable", "shifted"])?,
            "maxVariable" => max_variable = one_of(e, &["punct", "space"])?,
            "version" => {
                if let Some(v) = idl::string("collation", e)?
                    && v != VERSION
                {
                    bail!(
                        IncompatibleCollationVersion,
                        "Requested collation version {v} is not available"
                    );
                }
            }
            name => return Err(idl::unknown("collation", name)),
        }
    }
    let locale = idl::required("collation", "locale", locale)?;
    if locale == "simple" {
        return Ok(None);
    }
    let language = locale.split(['_', '@', '-']).next().unwrap_or("");
    if !LANGUAGES.split_ascii_whitespace().any(|l| l == language) {
        bail!(BadValue, "Field 'locale' is invalid in: {d}");
    }
    // What the languages themselves ask for.
    let first = match language {
        "da" | "mt" => "upper",
        _ => "off",
    };
    let (strength, case_level) = (strength.unwrap_or(3), case_level.unwrap_or(false));
    if case_first.is_some_and(|c| c != "off") && !case_level && strength <= 2 {
        bail!(
            BadValue,
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2"
        );
    }
    let mut w = Writer::new();
    w.str("locale", locale)
        .bool("caseLevel", case_level)
        .str("caseFirst", case_first.unwrap_or(first))
        .i32("strength", strength as i32)
        .bool("numericOrdering", numeric.unwrap_or(false))
        .str(
            "alternate",
            alternate.unwrap_or(if language == "th" {
                "shifted"
            } else {
                "non-ignorable"
            }),
        )
        .str("maxVariable", max_variable.unwrap_or("punct"))
        .bool("normalization", normalization.unwrap_or(false))
        .bool("backwards", backwards.unwrap_or(locale == "fr_CA"))
        .str("version", VERSION);
    let spec = w.finish();
    Collation::new(spec.as_doc())?;
    Ok(Some(spec))
}

fn one_of<'a>(e: bson::Elem<'a>, values: &[&str]) -> Result<Option<&'a str>> {
    match idl::string("collation", e)? {
        Some(v) if !values.contains(&v) => {
            bail!(
                BadValue,
                "Enumeration value '{v}' for field 'collation.{}' is not a valid value.",
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
