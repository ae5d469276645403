//! An element of a document, found again by its path and number.

use bson::{Doc, DocBuf, Val};

/// The element with a number among those at a path, in the order in which the index counts them; `None`: the document has
/// not so many any more.
pub fn element(doc: Doc<'_>, path: &str, number: u64) -> Option<DocBuf> {
    let mut left = number;
    let parts: Vec<&str> = path.split('.').collect();
    nth(doc.as_val(), &parts, &mut left)
}

fn nth(v: Val<'_>, parts: &[&str], left: &mut u64) -> Option<DocBuf> {
    if let Some(list) = v.as_array() {
        return list.values().find_map(|v| nth(v, parts, left));
    }
    let doc = v.as_doc()?;
    let Some((first, rest)) = parts.split_first() else {
        let found = *left == 0;
        *left = left.saturating_sub(1);
        return found.then(|| doc.to_buf());
    };
    nth(doc.get(first)?, rest, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_through_arrays() {
        let text = r#"{"g": [{"t": [{"n": 0}, 5, {"n": 1}]}, {"x": 1}, {"t": {"n": 2}}]}"#;
        let doc = bson::json::parse(text).unwrap();
        for n in 0..3 {
            let got = element(doc.as_doc(), "g.t", n).unwrap();
            assert_eq!(got.get("n").and_then(|v| v.to_i64_exact()), Some(n as i64));
        }
        assert!(element(doc.as_doc(), "g.t", 3).is_none());
        assert!(element(doc.as_doc(), "g", 2).is_some());
    }
}
