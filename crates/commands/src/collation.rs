//! Collations: checked as MongoDB checks them. Only the simple one (bytes) is served.

use crate::idl;
use bson::{Doc, tag};
use errors::{Result, bail};

/// Languages of ICU's locales, enough to tell a locale from a slip of the pen.
const LANGUAGES: &str = "af am ar as az be bg bn bo bs ca ceb chr cs cy da de dsb dz ee el en eo es et fa fa_AF fi fil fo fr \
    ga gl gu ha haw he hi hr hsb hu hy id ig is it ja ka kk kl km kn ko kok ky lb lkt ln lo lt lv mk ml mn mr ms mt my nb \
    ne nl nn nso om or pa pl ps pt ro ru sa se si sk sl smn sq sr sv sw ta te th tk tn to tr ug uk ur uz vi wae wo xh yi yo \
    zh zu";

/// Checks a collation; whether it is another than the simple one.
pub fn is_special(d: Doc<'_>) -> Result<bool> {
    let (mut locale, mut strength, mut case_level, mut case_first) = (None, 3, false, None);
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
                    strength = n;
                }
            }
            "caseLevel" => case_level = idl::boolean("collation", e)?.unwrap_or(false),
            "normalization" | "numericOrdering" => {
                idl::boolean("collation", e)?;
            }
            "backwards" => {
                if e.val.tag != tag::BOOL {
                    return Err(idl::mismatch("collation", "backwards", e.val, &["bool"]));
                }
            }
            "caseFirst" => case_first = one_of(e, &["upper", "lower", "off"])?,
            "alternate" => {
                one_of(e, &["non-ignorable", "shifted"])?;
            }
            "maxVariable" => {
                one_of(e, &["punct", "space"])?;
            }
            "version" => {
                if let Some(v) = idl::string("collation", e)?
                    && v != "57.1"
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
        return Ok(false);
    }
    let language = locale.split(['_', '@', '-']).next().unwrap_or("");
    if !LANGUAGES.split_ascii_whitespace().any(|l| l == language) {
        bail!(BadValue, "Field 'locale' is invalid in: {d}");
    }
    if case_first.is_some_and(|c| c != "off") && !case_level && strength <= 2 {
        bail!(
            BadValue,
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2"
        );
    }
    Ok(true)
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
                is_special(json::parse(text).unwrap().as_doc()).map_err(|e| e.code.0),
                want,
                "{text}"
            );
        }
    }
}
