//! Shard keys: the fields that say where a document belongs, and a document's place among all.
//!
//! Invariant: places compare as the shard key's values do, field by field, in the order of an
//! index. A missing field counts as null. A hashed field counts as its hash, an int64.

use crate::PlaceRange;
use bson::{Doc, DocBuf, Val, Value, Writer, doc, key, tag};
use errors::{Result, bail};
use planner::ScalarField;
use query::expr::hash64;
use query::path::FieldPath;

/// Where a document belongs: the memcomparable keys of the shard key's values, one after another.
pub type Place = Vec<u8>;

const MAX_FIELDS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardKey {
    fields: Vec<ScalarField>,
    pattern: DocBuf,
}

impl ShardKey {
    /// `{a: 1, "b.c": 1}`, with at most one `"hashed"`.
    pub fn parse(pattern: Doc<'_>) -> Result<ShardKey> {
        let mut fields = Vec::new();
        for e in pattern {
            let hashed = e.val.as_str() == Some("hashed");
            if !hashed && e.val.to_f64() != Some(1.0) {
                bail!(
                    BadValue,
                    "Shard key {pattern} can contain either a single 'hashed' field or multiple numerical fields set to a value of 1. Failed to parse field {}",
                    e.name
                );
            }
            if e.name.is_empty() || e.name.starts_with('$') || e.name.split('.').any(str::is_empty)
            {
                bail!(
                    BadValue,
                    "Field {} of the shard key has no valid name",
                    e.name
                );
            }
            fields.push(ScalarField {
                path: FieldPath::new(e.name),
                hashed,
            });
        }
        if fields.is_empty() {
            bail!(BadValue, "Shard key is empty");
        }
        if fields.len() > MAX_FIELDS {
            bail!(BadValue, "A shard key has at most {MAX_FIELDS} fields");
        }
        if fields.iter().filter(|f| f.hashed).count() > 1 {
            bail!(
                BadValue,
                "Shard key {pattern} can contain at most one 'hashed' field, and/or multiple numerical fields set to a value of 1"
            );
        }
        Ok(ShardKey {
            fields,
            pattern: pattern.to_buf(),
        })
    }

    pub fn pattern(&self) -> Doc<'_> {
        self.pattern.as_doc()
    }

    pub fn fields(&self) -> &[ScalarField] {
        &self.fields
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|f| f.path.as_str())
    }

    pub fn is_hashed(&self) -> bool {
        self.fields.iter().any(|f| f.hashed)
    }

    /// Whether `path` is a field of the key, lies above one, or below one.
    pub fn concerns(&self, path: &str) -> bool {
        let path = FieldPath::new(path);
        self.fields.iter().any(|f| f.path.conflicts_with(&path))
    }

    /// Whether an index of these fields begins with the key's, so that its order is that of places.
    pub fn is_prefix_of(&self, index: Doc<'_>) -> bool {
        let mut of_index = index.iter();
        self.fields.iter().all(|f| {
            of_index.next().is_some_and(|e| {
                let hashed = e.val.as_str() == Some("hashed");
                let ordered = e.val.to_f64().is_some_and(|n| n != 0.0);
                e.name == f.path.as_str() && hashed == f.hashed && (hashed || ordered)
            })
        })
    }

    /// The range between two bounds as `min` and `max` of a find by that index, which begins with the
    /// key; a `max` only where something is behind it. `None` where the index does not serve.
    pub fn limits(
        &self,
        index: Doc<'_>,
        min: Doc<'_>,
        max: Doc<'_>,
    ) -> Option<(DocBuf, Option<DocBuf>)> {
        let rises = |e: &bson::Elem<'_>| e.val.to_f64().is_some_and(|n| n > 0.0);
        let fields = self.fields.len();
        let serves = index
            .iter()
            .take(fields)
            .all(|e| rises(&e) || e.val.as_str() == Some("hashed"));
        if !serves || !self.is_prefix_of(index) {
            return None;
        }
        // Whatever is behind the key's fields: all that lies at the bound is behind it.
        let mut least = Writer::new();
        for e in index.iter().skip(fields) {
            match e.val.to_f64() {
                Some(n) if n < 0.0 => least.val(e.name, Val::MAX_KEY),
                Some(_) => least.val(e.name, Val::MIN_KEY),
                None => return None,
            };
        }
        let least = least.finish();
        let whole = |bound: Doc<'_>| {
            let mut w = Writer::new();
            w.extend(bound).extend(least.as_doc());
            w.finish()
        };
        let ends = !max.iter().all(|e| e.val.tag == tag::MAX_KEY);
        Some((whole(min), ends.then(|| whole(max))))
    }

    /// The value of each field as a chunk's bound has it.
    fn values_of(&self, doc: Doc<'_>) -> Result<Vec<Value>> {
        self.fields
            .iter()
            .map(|field| {
                let v = scalar(&field.path, doc)?;
                Ok(match field.hashed {
                    true => Value::from(hash64(v)),
                    false => v.to_value(),
                })
            })
            .collect()
    }

    /// Where a document belongs. Arrays on the way to a field are refused.
    pub fn place_of(&self, doc: Doc<'_>) -> Result<Place> {
        let mut place = Vec::with_capacity(32);
        for field in &self.fields {
            let v = scalar(&field.path, doc)?;
            match field.hashed {
                true => key::encode(Value::from(hash64(v)).as_val(), false, &mut place, None),
                false => key::encode(v, false, &mut place, None),
            }
        }
        Ok(place)
    }

    /// The bound at a document's place: `{a: …, b: …}`, with hashes for hashed fields.
    pub fn bound_at(&self, doc: Doc<'_>) -> Result<DocBuf> {
        let values = self.values_of(doc)?;
        let mut w = Writer::new();
        for (field, v) in self.fields.iter().zip(&values) {
            w.val(field.path.as_str(), v.as_val());
        }
        Ok(w.finish())
    }

    /// The key's own fields of a document, as the document has them: the condition by which a shard
    /// finds it again.
    pub fn fields_of(&self, doc: Doc<'_>) -> Result<DocBuf> {
        let mut w = Writer::new();
        for field in &self.fields {
            w.val(field.path.as_str(), scalar(&field.path, doc)?);
        }
        Ok(w.finish())
    }

    /// The place of a bound, whose fields are the key's, in order; fewer of them stand for the
    /// least place that begins so. `$maxKey` in all is the end of all places.
    pub fn place_of_bound(&self, bound: Doc<'_>) -> Result<Place> {
        let mut place = Vec::with_capacity(32);
        let mut fields = self.fields.iter();
        for e in bound {
            let Some(field) = fields.next().filter(|f| f.path.as_str() == e.name) else {
                bail!(
                    BadValue,
                    "{bound} is no bound of the shard key {}",
                    self.pattern()
                );
            };
            if field.hashed && !matches!(e.val.tag, tag::INT64 | tag::MIN_KEY | tag::MAX_KEY) {
                bail!(
                    InvalidOptions,
                    "The hashed field {} has a long for a bound, not {}",
                    e.name,
                    e.val
                );
            }
            key::encode(e.val, false, &mut place, None);
        }
        Ok(place)
    }

    /// The bound that these fields begin, filled up with `$minKey`.
    pub fn whole_bound(&self, bound: Doc<'_>) -> Result<DocBuf> {
        self.place_of_bound(bound)?;
        let mut w = Writer::new();
        w.extend(bound);
        for field in self.fields.iter().skip(bound.count()) {
            w.val(field.path.as_str(), Val::MIN_KEY);
        }
        Ok(w.finish())
    }

    /// The first values of a bound under this key's names.
    pub(crate) fn named(&self, bound: Doc<'_>) -> DocBuf {
        let mut w = Writer::new();
        for (field, v) in self.fields.iter().zip(bound.values()) {
            w.val(field.path.as_str(), v);
        }
        w.finish()
    }

    fn everywhere(&self, v: Val<'_>) -> DocBuf {
        let mut w = Writer::new();
        for field in &self.fields {
            w.val(field.path.as_str(), v);
        }
        w.finish()
    }

    pub fn global_min(&self) -> DocBuf {
        self.everywhere(Val::MIN_KEY)
    }

    pub fn global_max(&self) -> DocBuf {
        self.everywhere(Val::MAX_KEY)
    }

    /// The places between two bounds. The last range holds `$maxKey` itself.
    pub fn range(&self, min: Doc<'_>, max: Doc<'_>) -> Result<PlaceRange> {
        let global = max.iter().all(|e| e.val.tag == tag::MAX_KEY);
        let least = min.iter().all(|e| e.val.tag == tag::MIN_KEY);
        let range = PlaceRange {
            low: match least {
                true => Vec::new(),
                false => self.place_of_bound(min)?,
            },
            high: match global {
                true => None,
                false => Some(self.place_of_bound(max)?),
            },
        };
        // By the bounds: the first of all ranges begins before the place of its own.
        if self.place_of_bound(max)? <= self.place_of_bound(min)? {
            bail!(FailedToParse, "min: {min} should be less than max: {max}");
        }
        Ok(range)
    }

    /// The least and the greatest bound as the place range that has them, back as documents.
    pub fn bounds(&self, range: &PlaceRange) -> Option<(DocBuf, DocBuf)> {
        let bound = |place: &[u8]| {
            let mut rest = place;
            let mut w = Writer::new();
            for field in &self.fields {
                let (mut v, behind) = value_at(rest)?;
                if let (true, Some(hash)) = (field.hashed, v.as_val().to_i64_exact()) {
                    v = Value::from(hash);
                }
                w.val(field.path.as_str(), v.as_val());
                rest = behind;
            }
            Some(w.finish())
        };
        let min = match range.low.is_empty() {
            true => self.global_min(),
            false => bound(&range.low)?,
        };
        let max = match &range.high {
            None => self.global_max(),
            Some(high) => bound(high)?,
        };
        Some((min, max))
    }

    /// An expression for `$expr` that holds for the documents between two bounds.
    pub fn within(&self, min: Doc<'_>, max: Doc<'_>) -> DocBuf {
        let mut values = Writer::new_array();
        for field in &self.fields {
            let path = format!("${}", field.path);
            let mut w = Writer::new();
            w.open_array("$ifNull").push_value(&path).push(Val::NULL);
            let or_null = w.finish();
            if field.hashed {
                let mut w = Writer::new();
                w.doc("$toHashedIndexKey", or_null.as_doc());
                values.push(w.finish().as_doc().as_val());
            } else {
                values.push(or_null.as_doc().as_val());
            }
        }
        let values = values.finish_array();
        let side = |operator: &str, bound: Doc<'_>| {
            let mut literal = Writer::new();
            literal.open_array("$literal");
            for v in bound.values() {
                literal.push(v);
            }
            let literal = literal.finish();
            let mut w = Writer::new();
            w.open_array(operator);
            w.push(values.as_val()).push(literal.as_doc().as_val());
            w.finish()
        };
        let mut w = Writer::new();
        w.open_array("$and");
        w.push(side("$gte", min).as_doc().as_val());
        if !max.iter().all(|e| e.val.tag == tag::MAX_KEY) {
            w.push(side("$lt", max).as_doc().as_val());
        }
        self.narrow(&mut w, min, max);
        w.finish()
    }

    /// What also holds for the first field of what lies between two bounds, in a form that an index is
    /// searched by. A document without the field lies where null does, though it is less than null in
    /// an expression: so null is no lower bound.
    fn narrow(&self, w: &mut Writer, min: Doc<'_>, max: Doc<'_>) {
        let Some(field) = self.fields.first().filter(|field| !field.hashed) else {
            return;
        };
        let path = format!("${}", field.path);
        let mut side = |operator: &str, bound: Val<'_>| {
            let mut comparison = Writer::new();
            comparison.open_array(operator).push_value(path.as_str());
            let literal = doc! {"$literal": bound.to_value()};
            comparison.push(literal.as_doc().as_val());
            let comparison = comparison.finish();
            w.push(comparison.as_doc().as_val());
        };
        let first = |bound: Doc<'_>| bound.first().map(|e| e.val.to_value());
        let (low, high) = (first(min), first(max));
        let is_cut = |v: &Value| !matches!(v.tag(), tag::MIN_KEY | tag::MAX_KEY | tag::NULL);
        if let Some(low) = low.filter(is_cut) {
            side("$gte", low.as_val());
        }
        if let Some(high) = high.filter(is_cut) {
            side("$lte", high.as_val());
        }
    }
}

/// The value of which this is the key; `None` where there is no such value.
pub fn value_of(key: &[u8]) -> Option<Value> {
    let (value, rest) = value_at(key)?;
    rest.is_empty().then_some(value)
}

/// The value that a place begins with, and the rest. A place does not say of which type its numbers are:
/// of the types that could be, the first is taken that gives the same place again.
fn value_at(place: &[u8]) -> Option<(Value, &[u8])> {
    /// Codes of int32, int64, double and decimal, as [`key::Decoder`] reads them.
    const WHOLE_AND_DOUBLE: [u8; 3] = [0, 1, 2];
    const DECIMAL: u8 = 3;
    const EXPONENTS: std::ops::RangeInclusive<i32> = -64..=64;
    /// Of values within a document.
    const MOST_VALUES: usize = 256;
    let decoded = |types: &[u8]| {
        let mut decoder = key::Decoder::new(place, types);
        let v = decoder.field(false)??;
        let (own, behind) = place.split_at_checked(place.len() - decoder.rest().len())?;
        (key::of(v.as_val()) == own).then_some((v, behind))
    };
    let plain = WHOLE_AND_DOUBLE
        .iter()
        .find_map(|code| decoded(&[*code; MOST_VALUES]));
    plain.or_else(|| {
        EXPONENTS.into_iter().find_map(|exponent| {
            let shifted = u16::try_from(exponent + 8192).ok()?.to_be_bytes();
            let one = [DECIMAL, shifted[0], shifted[1]];
            decoded(&one.repeat(MOST_VALUES))
        })
    })
}

/// The value of a field that no array may lie on the way to.
fn scalar<'a>(path: &FieldPath, doc: Doc<'a>) -> Result<Val<'a>> {
    let mut d = doc;
    let parts = path.len();
    for i in 0..parts {
        let Some(v) = d.get(path.part(i)) else {
            return Ok(Val::NULL);
        };
        if v.tag == tag::ARRAY {
            bail!(
                ShardKeyNotFound,
                "Shard key cannot contain array values or array descendants."
            );
        }
        if i + 1 == parts {
            // An index keeps undefined as null.
            return Ok(if v.tag == tag::UNDEFINED {
                Val::NULL
            } else {
                v
            });
        }
        match v.as_doc() {
            Some(inner) => d = inner,
            None => return Ok(Val::NULL),
        }
    }
    Ok(Val::NULL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    fn of(pattern: DocBuf) -> ShardKey {
        ShardKey::parse(pattern.as_doc()).unwrap()
    }

    #[test]
    fn what_is_a_key() {
        of(doc! {"a": 1, "b.c": 1.0});
        assert!(of(doc! {"a": "hashed", "b": 1}).is_hashed());
        for bad in [
            doc! {},
            doc! {"a": -1},
            doc! {"a": "text"},
            doc! {"a": "hashed", "b": "hashed"},
            doc! {"a..b": 1},
        ] {
            assert!(ShardKey::parse(bad.as_doc()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn places() {
        let key = of(doc! {"a": 1, "b.c": 1});
        let place = |d: DocBuf| key.place_of(d.as_doc());
        let here = place(doc! {"b": doc! {"c": "x"}, "a": 1}).unwrap();
        assert_eq!(here, place(doc! {"a": 1.0, "b": doc! {"c": "x"}}).unwrap());
        assert_eq!(place(doc! {}).unwrap(), place(doc! {"a": ()}).unwrap());
        assert!(place(doc! {"a": 1, "b": 5}).unwrap() < here);
        assert!(place(doc! {"a": array![1]}).is_err());
        assert!(place(doc! {"b": array![doc! {"c": 1}]}).is_err());
        let bound = doc! {"a": 1, "b.c": "x"};
        assert_eq!(key.place_of_bound(bound.as_doc()).unwrap(), here);
        assert!(key.place_of_bound(doc! {"b.c": 1}.as_doc()).is_err());
        let (least, last) = (key.global_min(), key.global_max());
        let range = key.range(least.as_doc(), last.as_doc());
        assert_eq!(range.unwrap(), PlaceRange::all());
        assert!(key.range(least.as_doc(), least.as_doc()).is_err());
        assert!(key.range(last.as_doc(), last.as_doc()).is_err());
    }

    #[test]
    fn hashes_are_those_of_hashed_indexes() {
        let key = of(doc! {"a": "hashed"});
        let bound = key.bound_at(doc! {"a": 5}.as_doc()).unwrap();
        assert_eq!(
            bound.get("a").unwrap().as_i64(),
            Some(hash64(Value::from(5).as_val()))
        );
        assert_eq!(
            key.place_of_bound(bound.as_doc()).unwrap(),
            key.place_of(doc! {"a": 5.0}.as_doc()).unwrap()
        );
        assert!(key.place_of_bound(doc! {"a": "x"}.as_doc()).is_err());
    }

    #[test]
    fn indexes_that_serve() {
        let key = of(doc! {"a": 1, "b": 1});
        assert!(key.is_prefix_of(doc! {"a": 1, "b": -1, "c": 1}.as_doc()));
        assert!(!key.is_prefix_of(doc! {"a": 1}.as_doc()));
        assert!(!key.is_prefix_of(doc! {"b": 1, "a": 1}.as_doc()));
        assert!(!key.is_prefix_of(doc! {"a": "hashed", "b": 1}.as_doc()));
    }

    /// What an index finds between limits, and what a filter does, are the documents of the range.
    #[test]
    fn limits_of_indexes() {
        let key = of(doc! {"a": 1, "b": 1});
        let (min, max) = (doc! {"a": 1, "b": 2}, doc! {"a": 3, "b": 4});
        let limits = |index: DocBuf| key.limits(index.as_doc(), min.as_doc(), max.as_doc());
        let exact = limits(doc! {"a": 1, "b": 1});
        assert_eq!(exact, Some((min.clone(), Some(max.clone()))));
        let (low, high) = limits(doc! {"a": 1, "b": 1.0, "c": -1, "d": 1}).unwrap();
        let (behind, before) = (Val::MAX_KEY.to_value(), Val::MIN_KEY.to_value());
        assert_eq!(low, doc! {"a": 1, "b": 2, "c": behind, "d": before});
        assert_eq!(high.unwrap().as_doc().count(), 4);
        for other in [
            doc! {"a": -1, "b": 1},
            doc! {"a": 1},
            doc! {"b": 1, "a": 1},
            doc! {"a": 1, "b": 1, "c": "text"},
        ] {
            assert_eq!(limits(other), None);
        }
        let all = key.limits(
            key.pattern(),
            key.global_min().as_doc(),
            key.global_max().as_doc(),
        );
        assert_eq!(all, Some((key.global_min(), None)));
        let hashed = of(doc! {"a": "hashed"});
        let bound = doc! {"a": 5_i64};
        let last = hashed.global_max();
        let found = hashed.limits(hashed.pattern(), bound.as_doc(), last.as_doc());
        assert_eq!(found, Some((bound, None)));
    }

    #[test]
    fn a_filter_narrows_by_the_first_field_and_keeps_all() {
        let key = of(doc! {"a": 1, "b": 1});
        let values = [
            Value::from(1),
            Value::from(2.5),
            Value::NULL,
            Value::from("x"),
            Val::MIN_KEY.to_value(),
            Val::MAX_KEY.to_value(),
        ];
        let mut documents = vec![doc! {}, doc! {"b": 1}];
        for a in &values {
            documents.extend(values.iter().map(|b| doc! {"a": a.clone(), "b": b.clone()}));
        }
        let bounds: Vec<DocBuf> = documents
            .iter()
            .filter(|d| d.as_doc().count() == 2)
            .cloned()
            .collect();
        for min in &bounds {
            for max in &bounds {
                let Ok(range) = key.range(min.as_doc(), max.as_doc()) else {
                    continue;
                };
                let filter = doc! {"$expr": key.within(min.as_doc(), max.as_doc())};
                let parsed = query::filter::Filter::parse(filter.as_doc(), &Default::default());
                let parsed = parsed.unwrap();
                for d in &documents {
                    let inside = range.contains(&key.place_of(d.as_doc()).unwrap());
                    assert_eq!(
                        parsed.matches(d.as_doc()).unwrap(),
                        inside,
                        "{min:?} {max:?} {d:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn bounds_come_back_whatever_their_type() {
        let key = ShardKey::parse(doc! {"_id": 1, "b": 1}.as_doc()).unwrap();
        let of = |v: Value| doc! {"_id": v, "b": "x"};
        let rising = [
            Val::MIN_KEY.to_value(),
            Value::from(-3_000_000_000_000_i64),
            Value::from(-2.5),
            Value::from(7),
            Value::from("7.1".parse::<bson::Decimal128>().unwrap()),
            Value::from(1e300),
            Value::from("text"),
            Value::from(doc! {"n": 5_000_000_000_i64, "m": 1}),
            Value::from(true),
            Value::date(1),
        ];
        for pair in rising.windows(2) {
            let (min, max) = (of(pair[0].clone()), of(pair[1].clone()));
            let range = key.range(min.as_doc(), max.as_doc()).unwrap();
            let (low, high) = key.bounds(&range).unwrap();
            assert_eq!(key.range(low.as_doc(), high.as_doc()).unwrap(), range);
        }
        let key = ShardKey::parse(doc! {"_id": "hashed"}.as_doc()).unwrap();
        for (low, high) in [
            (-4_611_686_018_427_387_902_i64, 0_i64),
            (0, 4_611_686_018_427_387_902),
        ] {
            let (min, max) = (doc! {"_id": low}, doc! {"_id": high});
            let range = key.range(min.as_doc(), max.as_doc()).unwrap();
            assert_eq!(key.bounds(&range), Some((min, max)));
        }
    }
}
