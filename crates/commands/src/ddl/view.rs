//! What `create` and `collMod` say of views. The catalog checks how views stand on each other.

use bson::{Doc, DocBuf, Value, Writer};
use errors::{Result, bail};

/// `viewOn`: a name in the same database. Its length is not limited.
pub fn check_source(on: &str) -> Result<()> {
    if on.is_empty() {
        bail!(BadValue, "'viewOn' cannot be empty");
    }
    if on.starts_with('.') || on.contains(['\0', '$']) {
        bail!(
            InvalidNamespace,
            "Invalid namespace specified for 'viewOn': '{on}'"
        );
    }
    Ok(())
}

/// The stages without the nulls among them.
pub fn stages(pipeline: Option<Doc<'_>>) -> Result<Value> {
    let mut w = Writer::new_array();
    for v in pipeline.unwrap_or(Doc::EMPTY).values() {
        match v.as_doc() {
            Some(_) => {
                w.push(v);
            }
            None if v.is_nullish() => {}
            None => bail!(
                TypeMismatch,
                "Each element of the 'pipeline' array must be an object, found {}",
                v.type_name()
            ),
        }
    }
    Ok(w.finish_array())
}

/// The options of a view.
pub fn options(on: &str, stages: &Value) -> DocBuf {
    let mut w = Writer::new();
    w.str("viewOn", on).val("pipeline", stages.as_val());
    w.finish()
}
