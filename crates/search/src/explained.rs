//! How the score of a document came about, for `scoreDetails`.
//!
//! Source: MongoDB's manual, "Return the Score Details"; Lucene's `BM25Similarity.explain`.

use crate::definition::OrProblem;
use crate::files::IndexSnapshot;
use bson::{DocBuf, Writer};
use errors::Result;
use serde_json::Value;
use tantivy::DocAddress;
use tantivy::query::Weight;

/// Explanations are as deep as operators nest, some levels for each.
const MOST_DEPTH: usize = 200;

/// `{value, description, details: [the same, …]}`
pub(crate) fn explained(
    snapshot: &IndexSnapshot,
    weight: &dyn Weight,
    at: DocAddress,
) -> Result<DocBuf> {
    let reader = snapshot.searcher.segment_reader(at.segment_ord);
    let told = weight.explain(reader, at.doc_id).or_problem()?;
    let told = serde_json::to_value(&told).unwrap_or_default();
    let mut w = Writer::new();
    write(&mut w, &told, 0);
    Ok(w.finish())
}

fn write(w: &mut Writer, told: &Value, depth: usize) {
    let value = told.get("value").and_then(Value::as_f64).unwrap_or(0.0);
    w.f64("value", value);
    let text = told.get("description").and_then(Value::as_str);
    w.str("description", described(text.unwrap_or("")));
    w.open_array("details");
    let details = told.get("details").and_then(Value::as_array);
    let details = details.filter(|_| depth < MOST_DEPTH);
    for detail in details.into_iter().flatten() {
        w.open_doc("");
        write(w, detail, depth + 1);
        w.close();
    }
    w.close();
}

/// What the library says, as MongoDB says it.
fn described(text: &str) -> &str {
    if text.starts_with("BooleanClause") || text.starts_with("BooleanQuery") {
        return "sum of:";
    }
    if text.starts_with("Const") {
        return "ConstantScore";
    }
    if text.starts_with("Boost") {
        return "product of:";
    }
    text
}
