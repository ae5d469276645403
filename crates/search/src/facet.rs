//! Facets: how many of the documents that a search finds have which values.
//!
//! Source: MongoDB's manual, "facet (Collector)".

use crate::compiler::Compiler;
use crate::fields::SpecificationFields;
use crate::files::IndexSnapshot;
use crate::find::each_match;
use crate::hits::key_of;
use crate::operator::Clause;
use crate::problem::wrong;
use crate::room::Room;
use crate::set::{SetQuery, TermRange};
use crate::terms::{date_bytes, kind, number_bytes, value_prefix};
use bson::{Value, Writer, tag};
use errors::Result;
use errors::operation::step;
use std::collections::HashMap;
use tantivy::index::SegmentId;
use tantivy::{BitSet, DocAddress};

/// The most boundaries or buckets of a facet.
const MOST_BUCKETS: i32 = 1000;

/// What a string takes that is counted, besides its bytes.
const STRING_BYTES: usize = 64;

/// The most facets of a search.
const MOST_FACETS: usize = 100;

/// One facet.
#[derive(Clone, Debug)]
pub(crate) struct Facet {
    name: String,
    path: String,
    by: By,
}

#[derive(Clone, Debug)]
enum By {
    /// The most frequent strings.
    Strings { most: usize },
    /// Ranges between boundaries; the last, if it is named, has the rest.
    Ranges {
        kind: u8,
        boundaries: Vec<(Vec<u8>, Value)>,
        rest: Option<String>,
    },
}

/// The facets of a collector's document `facets`.
pub(crate) fn parse(f: &SpecificationFields<'_>) -> Result<Vec<Facet>> {
    let facets = f.required("facets")?;
    let facets = SpecificationFields::of(&f.name("facets"), facets)?;
    let mut out = Vec::new();
    for e in facets.doc.iter() {
        step()?;
        out.push(one(&facets.name(e.name), e.name, e.val)?);
    }
    if out.is_empty() || out.len() > MOST_FACETS {
        return Err(wrong(format!(
            "\"{}\" must have 1 to {MOST_FACETS} facets",
            facets.at
        )));
    }
    Ok(out)
}

fn one(at: &str, name: &str, v: bson::Val<'_>) -> Result<Facet> {
    let f = SpecificationFields::of(at, v)?;
    let kind = f.required_string("type")?;
    let path = f.required_string("path")?.to_string();
    let by = match kind {
        "string" => By::Strings {
            most: f
                .int("numBuckets", 1, MOST_BUCKETS)?
                .map_or(10, |n| n.unsigned_abs() as usize),
        },
        "number" | "date" => By::Ranges {
            kind: if kind == "date" {
                kind::DATE
            } else {
                kind::NUMBER
            },
            boundaries: boundaries(&f, kind == "date")?,
            rest: f.string("default")?.map(str::to_string),
        },
        _ => {
            return Err(wrong(format!(
                "\"{at}.type\" must be one of [date, number, string]"
            )));
        }
    };
    f.end()?;
    Ok(Facet {
        name: name.to_string(),
        path,
        by,
    })
}

fn boundaries(f: &SpecificationFields<'_>, dates: bool) -> Result<Vec<(Vec<u8>, Value)>> {
    let at = f.name("boundaries");
    let Some(list) = f.required("boundaries")?.as_array() else {
        return Err(wrong(format!("\"{at}\" must be an array")));
    };
    let mut out: Vec<(Vec<u8>, Value)> = Vec::new();
    for v in list.values() {
        step()?;
        let bytes = match v.tag {
            tag::DATE if dates => v.as_date().map(|d| date_bytes(d).to_vec()),
            tag::INT32 | tag::INT64 | tag::DOUBLE if !dates => {
                v.to_f64().map(|n| number_bytes(n).to_vec())
            }
            _ => None,
        };
        let Some(bytes) = bytes else {
            let what = if dates { "dates" } else { "numbers" };
            return Err(wrong(format!("\"{at}\" must be {what}")));
        };
        if out.last().is_some_and(|(last, _)| *last >= bytes) {
            return Err(wrong(format!(
                "\"{at}\" must be distinct and in ascending order"
            )));
        }
        out.push((bytes, v.to_value()));
    }
    if !(2..=MOST_BUCKETS as usize).contains(&out.len()) {
        return Err(wrong(format!(
            "\"{at}\" must have 2 to {MOST_BUCKETS} elements"
        )));
    }
    Ok(out)
}

/// The documents that match, by segment. `shown`: whether the one under a key counts.
pub(crate) fn matching(
    snapshot: &IndexSnapshot,
    asked: (Option<&Clause>, Option<&str>),
    room: &mut Room<'_>,
    mut shown: Option<&mut dyn FnMut(&[u8]) -> Result<bool>>,
) -> Result<HashMap<SegmentId, BitSet>> {
    let query = Compiler::new(snapshot, room).top(asked.0, asked.1)?;
    if shown.is_none()
        && let Some(known) = query.downcast_ref::<SetQuery>()
    {
        return known.alive(snapshot, room);
    }
    let mut matching: HashMap<SegmentId, BitSet> = HashMap::new();
    each_match(
        snapshot,
        query.as_ref(),
        room,
        |reader, segment, docs, room| {
            if !matching.contains_key(&reader.segment_id()) {
                room.take_set(reader.max_doc() as usize / 8 + 64)?;
            }
            let set = matching
                .entry(reader.segment_id())
                .or_insert_with(|| BitSet::with_max_value(reader.max_doc()));
            for doc in docs {
                let counts = match &mut shown {
                    None => true,
                    Some(shown) => {
                        step()?;
                        shown(&key_of(snapshot, DocAddress::new(segment, *doc))?)?
                    }
                };
                if counts {
                    set.insert(*doc);
                }
            }
            Ok(())
        },
    )?;
    Ok(matching)
}

/// Writes `facet: {name: {buckets: [{_id, count}]}}`.
pub(crate) fn write(
    w: &mut Writer,
    snapshot: &IndexSnapshot,
    matching: &HashMap<SegmentId, BitSet>,
    facets: &[Facet],
    room: &mut Room<'_>,
) -> Result<()> {
    w.open_doc("facet");
    for facet in facets {
        w.open_doc(&facet.name).open_array("buckets");
        facet.write(w, snapshot, matching, room)?;
        w.close().close();
    }
    w.close();
    Ok(())
}

impl Facet {
    /// What explain tells of it.
    pub fn outline(&self, w: &mut Writer) {
        let kind = match &self.by {
            By::Strings { .. } => "string",
            By::Ranges {
                kind: kind::DATE, ..
            } => "date",
            By::Ranges { .. } => "number",
        };
        w.open_doc(&self.name)
            .str("type", kind)
            .str("path", &self.path);
        if let By::Strings { most } = self.by {
            w.i64("numBuckets", i64::try_from(most).unwrap_or(i64::MAX));
        }
        w.close();
    }

    /// The strings that occur, and how often: the most frequent first.
    fn strings(
        &self,
        snapshot: &IndexSnapshot,
        matching: &HashMap<SegmentId, BitSet>,
        room: &mut Room<'_>,
    ) -> Result<Vec<(String, u64)>> {
        let mut counts: HashMap<String, u64> = HashMap::new();
        self.each(snapshot, kind::STRING, matching, |value, n| {
            if let (Ok(s), true) = (std::str::from_utf8(value), n > 0) {
                if !counts.contains_key(s) {
                    room.take(s.len() + STRING_BYTES)?;
                }
                *counts.entry(s.to_string()).or_default() += n;
            }
            Ok(())
        })?;
        let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(counts)
    }

    fn write(
        &self,
        w: &mut Writer,
        snapshot: &IndexSnapshot,
        matching: &HashMap<SegmentId, BitSet>,
        room: &mut Room<'_>,
    ) -> Result<()> {
        if matches!(self.by, By::Strings { .. })
            && snapshot
                .definition
                .at(&self.path)
                .0
                .is_none_or(|t| t.token.is_none())
        {
            return Err(wrong(format!(
                "Path \"{}\" needs to be indexed as token",
                self.path
            )));
        }
        let bucket = |w: &mut Writer, id: &Value, n: u64| {
            w.open_doc("").val("_id", id.as_val());
            w.i64("count", i64::try_from(n).unwrap_or(i64::MAX)).close();
        };
        match &self.by {
            By::Strings { most } => {
                let counts = self.strings(snapshot, matching, room)?;
                for (s, n) in counts.iter().take(*most) {
                    bucket(w, &Value::from(s.as_str()), *n);
                }
            }
            By::Ranges {
                kind,
                boundaries,
                rest,
            } => {
                let mut counts = vec![0u64; boundaries.len()];
                self.each(snapshot, *kind, matching, |value, n| {
                    // The number of boundaries up to the value; the last counts what is outside.
                    let at = boundaries.partition_point(|(b, _)| b.as_slice() <= value);
                    let last = boundaries.len() - 1;
                    let place = if at == 0 || at > last { last } else { at - 1 };
                    if let Some(count) = counts.get_mut(place) {
                        *count += n;
                    }
                    Ok(())
                })?;
                for ((_, id), n) in boundaries.iter().zip(&counts).take(boundaries.len() - 1) {
                    bucket(w, id, *n);
                }
                if let (Some(name), Some(n)) = (rest, counts.last()) {
                    bucket(w, &Value::from(name.as_str()), *n);
                }
            }
        }
        Ok(())
    }

    /// Has `each` called with the values of a kind, and how many of the documents have them.
    fn each(
        &self,
        snapshot: &IndexSnapshot,
        kind: u8,
        matching: &HashMap<SegmentId, BitSet>,
        mut each: impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let Some(path) = snapshot.paths.get(&self.path) else {
            return Ok(());
        };
        let prefix = value_prefix(path, kind);
        let range = TermRange::prefix(snapshot.fields.values, &prefix);
        for reader in snapshot.searcher.segment_readers() {
            let Some(set) = matching.get(&reader.segment_id()) else {
                continue;
            };
            range.walk(reader, |term, documents| {
                let mut n = 0;
                documents(&mut |doc| n += u64::from(set.contains(doc)))?;
                each(term.get(prefix.len()..).unwrap_or(&[]), n)
            })?;
        }
        Ok(())
    }
}
