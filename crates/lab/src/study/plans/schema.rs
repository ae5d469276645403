//! Random collections: what their documents hold, which indexes they have, and in which order both came.
//!
//! Invariant: a seed and a number give the same collection everywhere. A document is a function of its number, so that none
//! is kept, and what a server gives back is known by its `_id` alone.

use crate::random::{Rng, mix};
use bson::{DocBuf, Value, Writer};

pub const FIELDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// The fewest documents of a collection.
const FEWEST: f64 = 100.0;
/// The elements of arrays are below it.
pub const ELEMENTS: u64 = 60;

/// How the values of a field are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSpread {
    Constant,
    Few,
    Skewed,
    Uniform,
    Unique,
    /// With the field before it.
    Correlated,
    Array,
    /// Often null or missing.
    Holes,
    Text,
}

const KINDS: [ValueSpread; 9] = [
    ValueSpread::Constant,
    ValueSpread::Few,
    ValueSpread::Skewed,
    ValueSpread::Uniform,
    ValueSpread::Unique,
    ValueSpread::Correlated,
    ValueSpread::Array,
    ValueSpread::Holes,
    ValueSpread::Text,
];

/// A field's value in one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    Missing,
    Null,
    Number(i64),
    Text(String),
    List(Vec<i64>),
}

/// Where a document stands in an order: an empty array before null, and null before numbers and texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Empty,
    Null,
    Number(i64),
    Text(String),
}

impl Datum {
    /// By an ascending order an array stands where its least element does, by a descending one where its greatest does.
    pub fn rank(&self, direction: i32) -> Rank {
        match self {
            Datum::Missing | Datum::Null => Rank::Null,
            Datum::Number(n) => Rank::Number(*n),
            Datum::Text(t) => Rank::Text(t.clone()),
            Datum::List(all) => {
                let end = if direction > 0 {
                    all.iter().min()
                } else {
                    all.iter().max()
                };
                end.map_or(Rank::Empty, |n| Rank::Number(*n))
            }
        }
    }

    /// As a document has it; `None` for a missing field.
    fn value(&self) -> Option<Value> {
        Some(match self {
            Datum::Missing => return None,
            Datum::Null => Value::NULL,
            Datum::Number(n) => Value::from(*n),
            Datum::Text(t) => Value::from(t),
            Datum::List(all) => {
                let mut w = Writer::new_array();
                for n in all {
                    w.push_value(*n);
                }
                w.finish_array()
            }
        })
    }
}

/// Fields by their places in [`FIELDS`], each with its direction: an index's key or an order.
pub type Pattern = Vec<(usize, i32)>;

/// `{a: 1, b: -1}`.
pub fn document(pattern: &Pattern) -> DocBuf {
    let mut w = Writer::new();
    for (field, direction) in pattern {
        w.i32(FIELDS[*field], *direction);
    }
    w.finish()
}

/// `a_1_b_-1`.
pub fn name(pattern: &Pattern) -> String {
    let each: Vec<String> = pattern
        .iter()
        .map(|(field, direction)| format!("{}_{direction}", FIELDS[*field]))
        .collect();
    each.join("_")
}

/// When the indexes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    IndexesFirst,
    DocumentsFirst,
    /// With a tenth of the documents, of which the first queries are asked before the rest comes.
    Grown,
}

/// One random collection.
pub struct RandomCollection {
    seed: u64,
    pub documents: u64,
    pub kinds: [ValueSpread; FIELDS.len()],
    pub indexes: Vec<Pattern>,
    pub history: History,
}

pub fn one_in(r: &mut Rng, n: u64) -> bool {
    r.below(n) == 0
}

pub fn pick<T: Copy>(r: &mut Rng, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

pub fn field(r: &mut Rng) -> usize {
    r.below(FIELDS.len() as u64) as usize
}

impl RandomCollection {
    /// The collection of this number, of at most so many documents.
    pub fn new(seed: u64, number: u64, most: u64) -> RandomCollection {
        let seed = mix(mix(seed) ^ number);
        let mut r = Rng::new(seed);
        let span = (most as f64 / FEWEST).max(1.0);
        let kinds = std::array::from_fn(|_| pick(&mut r, &KINDS));
        let mut schema = RandomCollection {
            seed,
            documents: (FEWEST * span.powf(r.unit())) as u64,
            kinds,
            indexes: Vec::new(),
            history: pick(
                &mut r,
                &[
                    History::IndexesFirst,
                    History::DocumentsFirst,
                    History::Grown,
                ],
            ),
        };
        let wanted = 2 + r.below(6) as usize;
        while schema.indexes.len() < wanted {
            let key = schema.key(&mut r);
            if !schema.indexes.contains(&key) {
                schema.indexes.push(key);
            }
        }
        schema
    }

    /// What its queries are drawn from.
    pub fn queries(&self) -> Rng {
        Rng::new(mix(self.seed))
    }

    pub fn is_array(&self, field: usize) -> bool {
        self.kinds[field] == ValueSpread::Array
    }

    /// One to three fields, of which at most one holds arrays.
    fn key(&self, r: &mut Rng) -> Pattern {
        let mut key = Pattern::new();
        for _ in 0..1 + r.below(3) {
            let next = field(r);
            let taken = key
                .iter()
                .any(|(f, _)| *f == next || (self.is_array(*f) && self.is_array(next)));
            if !taken {
                key.push((next, pick(r, &[1, -1])));
            }
        }
        key
    }

    /// The fields of a document.
    pub fn row(&self, number: u64) -> [Datum; FIELDS.len()] {
        let mut r = Rng::new(self.seed ^ mix(number));
        let mut before = number;
        self.kinds.map(|kind| {
            let drawn = match kind {
                ValueSpread::Constant => 7,
                ValueSpread::Few | ValueSpread::Holes => r.below(5),
                ValueSpread::Skewed => (r.unit().powi(6) * 100.0) as u64,
                ValueSpread::Uniform | ValueSpread::Text => r.below((self.documents / 8).max(2)),
                ValueSpread::Unique => number,
                ValueSpread::Correlated => before / 3 + r.below(2),
                ValueSpread::Array => r.below(ELEMENTS),
            };
            before = drawn;
            match kind {
                ValueSpread::Array => {
                    let elements = (0..r.below(4)).map(|_| r.below(ELEMENTS) as i64);
                    Datum::List(elements.collect())
                }
                ValueSpread::Holes if one_in(&mut r, 4) => Datum::Missing,
                ValueSpread::Holes if one_in(&mut r, 3) => Datum::Null,
                ValueSpread::Text => {
                    Datum::Text(format!("{:04x}", drawn.wrapping_mul(40503) & 0xffff))
                }
                _ => Datum::Number(drawn as i64),
            }
        })
    }

    pub fn document(&self, number: u64) -> DocBuf {
        let mut w = Writer::new();
        w.i64("_id", number as i64);
        for (name, datum) in FIELDS.iter().zip(self.row(number)) {
            if let Some(value) = datum.value() {
                w.value(name, value);
            }
        }
        w.finish()
    }

    /// A value that some document has in this field, or an element of its array.
    pub fn value(&self, r: &mut Rng, field: usize) -> Value {
        match &self.row(r.below(self.documents))[field] {
            Datum::List(_) => Value::from(r.below(ELEMENTS) as i64),
            other => other.value().unwrap_or(Value::NULL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_collection_and_another_number_another() {
        let told = |seed, number| {
            let s = RandomCollection::new(seed, number, 5000);
            let documents: Vec<DocBuf> = (0..20).map(|i| s.document(i)).collect();
            (s.documents, s.indexes, s.history, documents)
        };
        assert_eq!(told(3, 5), told(3, 5));
        assert!(told(3, 5) != told(3, 6) && told(3, 5) != told(4, 5));
    }

    #[test]
    fn collections_have_all_kinds_histories_and_numbers_of_indexes() {
        let all: Vec<RandomCollection> = (0..300)
            .map(|n| RandomCollection::new(1, n, 20_000))
            .collect();
        for kind in KINDS {
            assert!(all.iter().any(|s| s.kinds.contains(&kind)), "{kind:?}");
        }
        for n in 2..=7 {
            assert!(all.iter().any(|s| s.indexes.len() == n), "{n}");
        }
        for fields in 1..=3 {
            assert!(
                all.iter()
                    .flat_map(|s| &s.indexes)
                    .any(|k| k.len() == fields)
            );
        }
        let histories = |h| all.iter().filter(|s| s.history == h).count();
        assert!(histories(History::IndexesFirst) > 60 && histories(History::Grown) > 60);
        for s in &all {
            assert!((100..=20_000).contains(&s.documents), "{}", s.documents);
            for key in &s.indexes {
                assert!(key.iter().filter(|(f, _)| s.is_array(*f)).count() <= 1);
            }
        }
        assert!(all.iter().any(|s| s.documents < 200) && all.iter().any(|s| s.documents > 10_000));
        assert_eq!(RandomCollection::new(1, 0, 100).documents, 100);
    }

    #[test]
    fn documents_are_of_their_kinds() {
        let mut s = RandomCollection::new(1, 0, 1000);
        s.documents = 1000;
        s.kinds = [
            ValueSpread::Constant,
            ValueSpread::Few,
            ValueSpread::Correlated,
            ValueSpread::Unique,
            ValueSpread::Array,
            ValueSpread::Holes,
            ValueSpread::Text,
            ValueSpread::Uniform,
        ];
        let rows: Vec<_> = (0..1000).map(|n| s.row(n)).collect();
        let distinct = |field: usize| {
            let mut ranks: Vec<Rank> = rows.iter().map(|r| r[field].rank(1)).collect();
            ranks.sort();
            ranks.dedup();
            ranks.len()
        };
        assert_eq!([distinct(0), distinct(1), distinct(3)], [1, 5, 1000]);
        for r in &rows {
            let [_, Datum::Number(few), Datum::Number(with), ..] = r else {
                panic!("{r:?}");
            };
            assert!((few / 3..=few / 3 + 1).contains(with));
        }
        let holes = |d: &Datum| rows.iter().filter(|r| r[5] == *d).count();
        assert!(holes(&Datum::Missing) > 150 && holes(&Datum::Null) > 150);
        assert!(rows.iter().any(|r| r[4] == Datum::List(Vec::new())));
        let document = s.document(3);
        assert_eq!(document.get("_id").unwrap().to_i64_exact(), Some(3));
    }

    #[test]
    fn an_array_stands_where_its_end_does() {
        let list = Datum::List(vec![4, 2, 9]);
        assert_eq!(
            [list.rank(1), list.rank(-1)],
            [Rank::Number(2), Rank::Number(9)]
        );
        assert!(Datum::List(Vec::new()).rank(1) < Datum::Missing.rank(1));
        assert!(Datum::Null.rank(1) < list.rank(1));
        assert!(list.rank(-1) < Datum::Text("a".into()).rank(1));
    }
}
