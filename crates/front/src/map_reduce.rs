//! Where the results of a `mapReduce` go.

use crate::idl;
use bson::Val;
use errors::{Result, bail, err};

/// Where the results go.
pub enum Out<'a> {
    Inline,
    /// `mode`: `replace`, `merge` or `reduce`.
    Collection {
        mode: &'static str,
        db: Option<&'a str>,
        name: &'a str,
    },
}

impl<'a> Out<'a> {
    pub fn parse(v: Val<'a>) -> Result<Out<'a>> {
        let replace = |name| Out::Collection {
            mode: "replace",
            db: None,
            name,
        };
        if let Some(name) = v.as_str() {
            return Ok(replace(name));
        }
        let Some(d) = v.as_doc() else {
            bail!(BadValue, "'out' must be either a string or an object");
        };
        idl::unique("mapReduce.out", d)?;
        if d.get("nonAtomic").and_then(Val::as_bool) == Some(false) {
            bail!(
                15895,
                "The nonAtomic:false option is no longer allowed in the mapReduce command. Please omit or specify nonAtomic:true"
            );
        }
        if d.contains("inline") {
            return Ok(Out::Inline);
        }
        for mode in ["replace", "merge", "reduce"] {
            let Some(name) = d.get(mode) else { continue };
            let Some(name) = name.as_str() else {
                bail!(
                    BadValue,
                    "'{mode}' supports type string, found type: {}",
                    name.type_name()
                );
            };
            let db = match d.get("db") {
                Some(db) => Some(db.as_str().ok_or_else(|| {
                    err!(
                        BadValue,
                        "db field value must be string, found type: {}",
                        db.type_name()
                    )
                })?),
                None => None,
            };
            return Ok(Out::Collection { mode, db, name });
        }
        bail!(
            BadValue,
            "'out' requires 'replace', 'merge', 'reduce' or 'inline'"
        )
    }
}
