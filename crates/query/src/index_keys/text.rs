//! The keys of text indexes: one for each term of a document.
//!
//! ```text
//! entry = fields before | term (a string) | score (a double) | fields after
//! ```

use super::{FieldKind, KeyField, KeySet, Multikey, Stop, walk};
use bson::{Doc, Val, Value};
use errors::{Result, bail, err};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use text::{TextIndex, term_key};

/// The most different terms of one document, as in MongoDB.
const MOST_TERMS: usize = 400_000;
/// Bytes of words that count as a unit of work: they are folded, stemmed and counted.
const BYTES_OF_UNIT: usize = 8;

fn terms(index: &TextIndex, doc: Doc<'_>, out: &KeySet) -> Result<BTreeMap<String, f64>> {
    let mut ended = None;
    let terms = index.terms_while(doc, &mut |bytes, terms| {
        if out.watch.is_new && terms > MOST_TERMS {
            ended = Some(
                err!(
                    16732,
                    "too many unique keys for a single document to have a text index, max is \
                     {MOST_TERMS}"
                )
                .into(),
            );
        } else if let Err(e) = out.work(1 + bytes / BYTES_OF_UNIT) {
            ended = Some(e);
        }
        ended.is_none()
    })?;
    match ended {
        Some(e) => Err(e),
        None => Ok(terms.unwrap_or_default()),
    }
}

/// Replaces the content of `out` by the keys of `doc`. A document without terms has none.
pub(super) fn extract(
    index: &TextIndex,
    fields: &[KeyField],
    doc: Doc<'_>,
    out: &mut KeySet,
) -> Result<Multikey> {
    out.clear();
    let mut regular: SmallVec<[Option<Val<'_>>; 4]> = SmallVec::new();
    for f in fields {
        regular.push(match f.kind {
            FieldKind::Ordered => match walk(&f.path, doc, 0) {
                Stop::Leaf(v) => v,
                Stop::Array { .. } => bail!(
                    CannotBuildIndexKeys,
                    "Field '{}' of text index contains an array in document: {doc}",
                    f.path
                ),
            },
            _ => None,
        });
    }
    let mut at = 0;
    for (term, score) in terms(index, doc, out)? {
        let term = Value::from(&*term_key(&term, index.version));
        let score = Value::from(score);
        let start = out.begin();
        for (i, (f, regular)) in fields.iter().zip(&regular).enumerate() {
            match f.kind {
                FieldKind::Term => {
                    at = i;
                    out.put_as_is(term.as_val(), false);
                }
                FieldKind::Score => out.put_as_is(score.as_val(), false),
                _ => out.put(*regular, f.descending),
            }
        }
        out.end(start);
    }
    out.complete()?;
    out.sort();
    Ok(Multikey(match out.len() {
        0 | 1 => 0,
        _ => 1 << at.min(63),
    }))
}
