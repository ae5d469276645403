//! Sort patterns and the keys that make sorting a comparison of bytes.
//!
//! Invariant: the order of two sort keys is MongoDB's order of the two documents; for an array the
//! least element counts when ascending, the greatest when descending, and with several fields the
//! least of the combined keys.

use crate::collation::Collation;
use crate::index_keys::{self, KeyField, KeySet};
use crate::metadata::{Available, Metadata};
use crate::path::FieldPath;
use bson::key;
use bson::{Doc, DocBuf, Elem, Val, Value, order, tag};
use errors::{Code, Error, Result, bail, err};
use std::collections::HashSet;

/// A parsed sort specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPattern {
    pub fields: Vec<SortField>,
    /// The same as the extraction of keys wants it; metadata fields have an empty path.
    keys: Vec<KeyField>,
    source: DocBuf,
    collation: Option<Collation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortField {
    /// Empty for metadata.
    pub path: FieldPath,
    pub descending: bool,
    pub meta: Option<SortMeta>,
}

/// `{$meta: …}` as a sort order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortMeta {
    RandVal,
    TextScore,
    /// What `$meta: "score"` gives, greatest first.
    Score,
    /// What `$search` or `$vectorSearch` gave, greatest first.
    SearchScore,
}

impl SortPattern {
    /// Parses the specification of find's `sort` and of `$sort`. An empty document gives a pattern
    /// without fields.
    pub fn parse(doc: Doc<'_>) -> Result<SortPattern> {
        let pattern = SortPattern::parse_found(doc)?;
        pattern.check_meta(Available::default())?;
        Ok(pattern)
    }

    /// Refuses an order by a score where there is none.
    pub fn check_meta(&self, known: Available) -> Result<()> {
        let by = |meta: SortMeta| self.fields.iter().any(|f| f.meta == Some(meta));
        let lacks = match () {
            () if by(SortMeta::TextScore) && !known.text_score => "text score",
            () if by(SortMeta::Score)
                && !known.score
                && !known.text_score
                && !known.search_score =>
            {
                "score"
            }
            () => return Ok(()),
        };
        bail!(
            40218,
            "query requires {lacks} metadata, but it is not available"
        )
    }

    /// Whether it orders by how well `$text` matches, where that is the score.
    pub fn by_text_score(&self) -> bool {
        self.fields
            .iter()
            .any(|f| matches!(f.meta, Some(SortMeta::TextScore | SortMeta::Score)))
    }

    /// As [`SortPattern::parse`], where [`SortPattern::check_meta`] is still to be asked.
    pub fn parse_found(doc: Doc<'_>) -> Result<SortPattern> {
        let mut fields: Vec<SortField> = Vec::new();
        let mut seen = HashSet::new();
        for e in doc {
            let field = parse_field(e)?;
            if field.meta.is_none() && !seen.insert(e.name) {
                bail!(
                    7472500,
                    "$sort key must not contain duplicate keys (duplicate: '{}')",
                    e.name
                );
            }
            fields.push(field);
        }
        if fields.iter().filter(|f| f.meta.is_none()).count() > index_keys::MAX_FIELDS {
            bail!(13103, "too many compound keys");
        }
        let keys = fields
            .iter()
            .map(|f| KeyField::new(f.path.clone(), f.descending))
            .collect();
        Ok(SortPattern {
            fields,
            keys,
            source: doc.to_buf(),
            collation: None,
        })
    }

    /// The same order with strings in that of a collation.
    pub fn collated(mut self, collation: Option<&Collation>) -> SortPattern {
        self.collation = collation.cloned();
        self
    }

    pub fn collation(&self) -> Option<&Collation> {
        self.collation.as_ref()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The specification as it was given.
    pub fn to_doc(&self) -> DocBuf {
        self.source.clone()
    }

    pub fn has_meta(&self) -> bool {
        self.fields.iter().any(|f| f.meta.is_some())
    }

    /// Appends the document's sort key: memcmp of two keys is the order of the documents.
    pub fn sort_key(&self, doc: Doc<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.sort_key_with(doc, Metadata::NONE, out)
    }

    /// The same where something is known of the document.
    pub fn sort_key_with(&self, doc: Doc<'_>, known: &Metadata, out: &mut Vec<u8>) -> Result<()> {
        self.sort_key_until(doc, known, None, out).map(|_| ())
    }

    /// The same for a caller that needs no key above `last`: of such a one it may write the first fields
    /// only, and returns false then.
    pub fn sort_key_until(
        &self,
        doc: Doc<'_>,
        known: &Metadata,
        last: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let start = out.len();
        let mut left = self.fields.len();
        for f in &self.fields {
            left -= 1;
            if let Some(meta) = f.meta {
                meta_key(meta, known, out);
                continue;
            }
            match plain(&f.path, doc) {
                Some(Some(v)) => Collation::with(self.collation.as_ref(), v, |v| {
                    key::encode(v, f.descending, out, None)
                }),
                Some(None) => key::encode_missing(f.descending, out, None),
                None => {
                    out.truncate(start);
                    return self.array_key(doc, known, out).map(|()| true);
                }
            }
            // Two fields that are still to come may be parallel arrays, which are refused.
            if left == 1 && last.is_some_and(|last| out.get(start..) > Some(last)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The key of a document in which a field goes through an array.
    fn array_key(&self, doc: Doc<'_>, known: &Metadata, out: &mut Vec<u8>) -> Result<()> {
        if let [f] = &self.fields[..]
            && !f.path.is_dotted()
            && let Some(items) = doc.get(f.path.first()).and_then(|v| v.as_array())
        {
            let compare = |a: &Val<'_>, b: &Val<'_>| match &self.collation {
                Some(c) => c.compare(*a, *b),
                None => order::compare(*a, *b),
            };
            let least = if f.descending {
                items.values().max_by(compare)
            } else {
                items.values().min_by(compare)
            };
            Collation::with(
                self.collation.as_ref(),
                least.unwrap_or(Val::UNDEFINED),
                |v| key::encode(v, f.descending, out, None),
            );
            return Ok(());
        }
        let plain: Vec<KeyField>;
        let keys = if self.has_meta() {
            plain = self
                .keys
                .iter()
                .filter(|k| !k.path.is_empty())
                .cloned()
                .collect();
            &plain
        } else {
            &self.keys
        };
        let mut set = KeySet::new();
        set.collate(self.collation.as_ref());
        index_keys::extract(keys, doc, false, &mut set).map_err(|e| e.map_error(as_sort))?;
        if let Some((k, _)) = set.iter().next() {
            out.extend_from_slice(k);
        }
        for f in &self.fields {
            if let Some(meta) = f.meta {
                meta_key(meta, known, out);
            }
        }
        Ok(())
    }
}

/// Errors of index keys, in the words of a sort.
fn as_sort(e: Error) -> Error {
    match e.code {
        Code::CannotIndexParallelArrays => {
            err!(BadValue, "cannot sort with keys that are parallel arrays")
        }
        Code::CannotBuildIndexKeys => err!(
            ExceededMemoryLimit,
            "the values that a document may be sorted by are too long to be compared"
        ),
        _ => e,
    }
}

fn meta_key(meta: SortMeta, known: &Metadata, out: &mut Vec<u8>) {
    match meta {
        SortMeta::RandVal => out.extend_from_slice(&rand::random::<[u8; 8]>()),
        SortMeta::TextScore => {
            let score = Value::from(known.text_score.unwrap_or(0.0));
            key::encode(score.as_val(), true, out, None);
        }
        SortMeta::Score => {
            let score = Value::from(known.any_score().unwrap_or(0.0));
            key::encode(score.as_val(), true, out, None);
        }
        SortMeta::SearchScore => {
            let score = known.search_score.or(known.vector_score).unwrap_or(0.0);
            key::encode(Value::from(score).as_val(), true, out, None);
        }
    }
}

/// The value at a path that meets no array; outer `None` when it meets one.
#[inline]
fn plain<'a>(path: &FieldPath, doc: Doc<'a>) -> Option<Option<Val<'a>>> {
    let mut d = doc;
    for i in 0..path.len() {
        let Some(v) = d.get(path.part(i)) else {
            return Some(None);
        };
        match v.tag {
            tag::ARRAY => return None,
            _ if i + 1 == path.len() => return Some(Some(v)),
            tag::DOCUMENT => d = v.as_doc().unwrap_or(Doc::EMPTY),
            _ => return Some(None),
        }
    }
    Some(None)
}

fn parse_field(e: Elem<'_>) -> Result<SortField> {
    if let Some(d) = e.val.as_doc() {
        let Some(m) = d.first().filter(|m| m.name == "$meta") else {
            bail!(
                17312,
                "$meta is the only expression supported by $sort right now"
            );
        };
        if d.count() > 1 {
            bail!(
                FailedToParse,
                "Cannot have additional keys in a $meta sort specification"
            );
        }
        let meta = match m.val.as_str() {
            Some("geoNearDistance") => bail!(
                40218,
                "query requires $geoNear distance metadata, but it is not available"
            ),
            Some("textScore") => SortMeta::TextScore,
            Some("score") => SortMeta::Score,
            Some("randVal") => SortMeta::RandVal,
            Some("searchScore" | "vectorSearchScore") => SortMeta::SearchScore,
            _ => bail!(31138, "Illegal $meta sort: {}: {}", m.name, m.val),
        };
        return Ok(SortField {
            path: FieldPath::empty(),
            descending: true,
            meta: Some(meta),
        });
    }
    // Doubles are cut to integers, decimals rounded to even: what MongoDB's conversions do.
    let direction = match e.val.tag {
        tag::DECIMAL128 => e.val.to_f64().map(|f| f.round_ties_even() as i64),
        _ => e.val.to_i64_truncated(),
    };
    let Some(direction) = direction else {
        bail!(
            15974,
            "Illegal key in $sort specification: {}: {}",
            e.name,
            e.val
        );
    };
    if direction != 1 && direction != -1 {
        bail!(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)"
        );
    }
    Ok(SortField {
        path: field_path(e.name)?,
        descending: direction < 0,
        meta: None,
    })
}

/// A path under the rules of aggregation's field paths.
pub fn field_path(name: &str) -> Result<FieldPath> {
    if name.is_empty() {
        bail!(40352, "FieldPath cannot be constructed with empty string");
    }
    if name.ends_with('.') {
        bail!(40353, "FieldPath must not end with a '.'.");
    }
    let path = FieldPath::new(name);
    if path.len() > 200 {
        bail!(Overflow, "FieldPath is too long");
    }
    for (i, p) in path.parts().enumerate() {
        if p.is_empty() {
            bail!(15998, "FieldPath field names may not be empty strings.");
        }
        if p.starts_with('$') && !(i > 0 && matches!(p, "$id" | "$ref" | "$db")) {
            bail!(
                16410,
                "FieldPath field names may not start with '$'. Consider using $getField or $setField."
            );
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    fn sorted(spec: &str, docs: &[&str]) -> Vec<usize> {
        let p = SortPattern::parse(json::parse(spec).unwrap().as_doc()).unwrap();
        let mut keyed: Vec<(Vec<u8>, usize)> = docs
            .iter()
            .enumerate()
            .map(|(i, d)| {
                let mut k = Vec::new();
                p.sort_key(json::parse(d).unwrap().as_doc(), &mut k)
                    .unwrap();
                (k, i)
            })
            .collect();
        keyed.sort();
        keyed.into_iter().map(|k| k.1).collect()
    }

    #[test]
    fn orders() {
        let docs = [
            r#"{"a":[5,1]}"#,
            r#"{"a":3}"#,
            r#"{}"#,
            r#"{"a":[]}"#,
            r#"{"a":"x"}"#,
        ];
        assert_eq!(sorted(r#"{"a":1}"#, &docs), [3, 2, 0, 1, 4]);
        assert_eq!(sorted(r#"{"a":-1}"#, &docs), [4, 0, 1, 2, 3]);
        // The least combined key, not the least of each field.
        let docs = [
            r#"{"a":[{"b":2,"c":1},{"b":1,"c":9}]}"#,
            r#"{"a":[{"b":1,"c":5}]}"#,
        ];
        assert_eq!(sorted(r#"{"a.b":1,"a.c":1}"#, &docs), [1, 0]);
        assert_eq!(sorted(r#"{"a.b":1,"a.c":-1}"#, &docs), [0, 1]);
    }

    #[test]
    fn a_key_above_the_last_may_end_early() {
        let spec = json::parse(r#"{"a":-1,"b":1,"c":1}"#).unwrap();
        let p = SortPattern::parse(spec.as_doc()).unwrap();
        let docs = [
            r#"{"a":2,"b":1,"c":1}"#,
            r#"{"a":1,"b":1,"c":0}"#,
            r#"{"a":1,"b":1,"c":1}"#,
            r#"{"a":1,"b":[1,2],"c":2}"#,
            r#"{"a":1,"b":2}"#,
            r#"{"b":0}"#,
        ]
        .map(|d| json::parse(d).unwrap());
        let key = |i: usize, last: Option<&[u8]>| {
            let mut key = vec![7];
            let known = Metadata::NONE;
            let whole = p.sort_key_until(docs[i].as_doc(), known, last, &mut key);
            (whole.unwrap(), key.split_off(1))
        };
        let keys: Vec<Vec<u8>> = (0..docs.len()).map(|i| key(i, None).1).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        for (last, bound) in keys.iter().enumerate() {
            for (i, whole) in keys.iter().enumerate() {
                let (all, found) = key(i, Some(bound));
                assert!(all && found == *whole || i > last && whole.starts_with(&found));
                assert!(all || found.as_slice() > bound.as_slice());
            }
        }
        // It ends before the last field, and not before two that may be refused.
        assert!(!key(4, Some(&keys[3])).0 && key(3, Some(&keys[1])).0);
        let parallel = json::parse(r#"{"a":0,"b":[1],"c":[1]}"#).unwrap();
        let (known, last) = (Metadata::NONE, Some(keys[0].as_slice()));
        let refused = p.sort_key_until(parallel.as_doc(), known, last, &mut Vec::new());
        assert!(refused.is_err());
    }

    #[test]
    fn refusals() {
        for (spec, code) in [
            (r#"{"a":0}"#, 15975),
            (r#"{"a":2}"#, 15975),
            (r#"{"a":"x"}"#, 15974),
            (r#"{"a":{"$foo":1}}"#, 17312),
            (r#"{"a":{"$meta":"x"}}"#, 31138),
            (r#"{"$a":1}"#, 16410),
            (r#"{"":1}"#, 40352),
            (r#"{"a..b":1}"#, 15998),
        ] {
            let e = SortPattern::parse(json::parse(spec).unwrap().as_doc()).unwrap_err();
            assert_eq!(e.failure().unwrap().code.0, code, "{spec}");
        }
        let p = SortPattern::parse(json::parse(r#"{"a":1,"b":1}"#).unwrap().as_doc()).unwrap();
        let d = json::parse(r#"{"a":[1],"b":[2]}"#).unwrap();
        assert!(p.sort_key(d.as_doc(), &mut Vec::new()).is_err());
        assert_eq!(p.to_doc().as_doc().count(), 2);
    }
}
