//! A collection's validator, parsed once for each version of the collection.

use bson::{Doc, DocBuf, Value, Writer, doc};
use errors::Result;
use query::collation::Collation;
use query::expr::ParseEnv;
use query::filter::Filter;

/// Documents must match `filter`: the collection's own, and that fields which clients encrypt hold
/// encrypted values.
#[derive(Debug)]
pub struct Validator {
    /// An error when it was stored by a version that knew more operators: writes fail with it, the
    /// server starts.
    pub filter: Result<Filter>,
    pub source: DocBuf,
    /// A document that did not match before may stay so (`validationLevel: "moderate"`).
    pub moderate: bool,
    /// What does not match is refused (`error`, `errorAndLog`) or only logged (`warn`).
    pub refuses: bool,
    pub logs: bool,
    /// Whether matching needs variables.
    pub has_expr: bool,
}

impl Validator {
    /// `None` when documents are not tested.
    pub(crate) fn of(options: Doc<'_>) -> Option<Validator> {
        let text = |name: &str| options.get(name).and_then(|v| v.as_str());
        let mut level = text("validationLevel").unwrap_or("strict");
        let given = options.get("validator").and_then(|v| v.as_doc());
        let given = given.filter(|d| !d.is_empty() && level != "off");
        let encrypted = encrypted(options);
        let source = match (given, &encrypted) {
            (given, Some(rules)) => {
                level = "strict";
                let mut w = Writer::new();
                w.open_array("$and");
                for rule in given
                    .into_iter()
                    .map(|d| d.as_val())
                    .chain(rules.iter().map(|v| v.as_val()))
                {
                    w.push(rule);
                }
                w.finish()
            }
            (Some(d), None) => d.to_buf(),
            (None, None) => return None,
        };
        let action = match encrypted {
            Some(_) => "error",
            None => text("validationAction").unwrap_or("error"),
        };
        let collation = options.get("collation").and_then(|v| v.as_doc());
        let collation = collation.map_or(Ok(None), Collation::new);
        let filter =
            collation.and_then(|c| Filter::parse(source.as_doc(), &ParseEnv::new().collated(c)));
        Some(Validator {
            has_expr: filter.as_ref().is_ok_and(Filter::has_expr),
            filter,
            source,
            moderate: level == "moderate",
            refuses: action != "warn",
            logs: action != "error",
        })
    }
}

/// For each of `encryptedFields`: it is binary data, if it is there. `None` without such fields.
fn encrypted(options: Doc<'_>) -> Option<Vec<Value>> {
    let fields = options.get("encryptedFields")?.as_doc()?.get("fields")?;
    let mut rules = Vec::new();
    for f in fields.as_array()?.values() {
        let path = f.as_doc()?.get("path")?.as_str()?;
        let mut w = Writer::new();
        w.open_array("$or");
        for test in [doc! { "$exists": false }, doc! { "$type": "binData" }] {
            w.open_doc("").doc(path, test.as_doc()).close();
        }
        rules.push(Value::from(w.finish()));
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::array;

    #[test]
    fn encrypted_fields_hold_binary_data() {
        let options = doc! {
            "validator": doc! { "x": 1 },
            "validationAction": "warn",
            "encryptedFields": doc! { "fields": array![doc! { "path": "a.b" }] },
        };
        let v = Validator::of(options.as_doc()).unwrap();
        let filter = v.filter.unwrap();
        assert!(v.refuses && !v.moderate);
        let matches = |d: DocBuf| filter.matches(d.as_doc()).unwrap();
        let secret = Value::binary(6, &[1, 2, 3]);
        assert!(matches(doc! { "x": 1, "a": doc! { "b": secret } }));
        assert!(matches(doc! { "x": 1 }));
        assert!(!matches(doc! { "x": 1, "a": doc! { "b": "clear" } }));
        assert!(!matches(doc! {}));
        assert!(Validator::of(doc! { "validationLevel": "off" }.as_doc()).is_none());
    }
}
