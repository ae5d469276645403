//! States of accumulators.

use super::percentile;
use crate::arithmetic::{Sum, Variance};
use crate::collation::{Collation, compare, key_of};
use crate::expr::merge_documents;
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::{Result, bail};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// The state of one accumulator of one group.
pub enum Accumulator {
    Sum(Sum),
    Avg(Sum),
    Min(Option<Value>, Option<Collation>),
    Max(Option<Value>, Option<Collation>),
    First(Option<Value>),
    Last(Option<Value>),
    Push(Writer),
    Concat(Writer),
    Set(DistinctValues),
    Union(DistinctValues),
    Deviation(Variance, bool),
    Merge(DocBuf),
    FirstN(BoundedValues),
    LastN(BoundedValues),
    Bounded(Bounded),
    Percentile(Vec<f64>, Vec<f64>, bool),
    /// The states of an `$accumulator`: several only where some were spilled.
    Script(Vec<Value>),
    Reduce(super::script::Reduction),
}

/// Distinct values in the order of their arrival; equality as in comparisons.
pub struct DistinctValues {
    keys: HashSet<Box<[u8]>>,
    items: Writer,
    key_bytes: usize,
    collation: Option<Collation>,
}

impl Default for DistinctValues {
    fn default() -> DistinctValues {
        DistinctValues {
            keys: HashSet::new(),
            items: Writer::new_array(),
            key_bytes: 0,
            collation: None,
        }
    }
}

impl DistinctValues {
    pub(super) fn new(collation: Option<Collation>) -> DistinctValues {
        DistinctValues {
            collation,
            ..DistinctValues::default()
        }
    }

    fn add(&mut self, v: Val<'_>) {
        let key = key_of(self.collation.as_ref(), v);
        if !self.keys.contains(&key[..]) {
            self.key_bytes += key.len() + 32;
            self.keys.insert(key.into());
            self.items.push(v);
        }
    }
}

/// Heap bytes of a value.
fn heap_bytes(v: &Value) -> usize {
    let n = v.as_val().bytes.len();
    if n > 16 { n } else { 0 }
}

/// Up to `n` values in the order of their arrival.
pub struct BoundedValues {
    items: VecDeque<Value>,
    n: usize,
    bytes: usize,
}

impl BoundedValues {
    pub(super) fn new(n: usize) -> BoundedValues {
        BoundedValues {
            items: VecDeque::new(),
            n,
            bytes: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.items.len() >= self.n
    }

    fn push(&mut self, v: Option<Val<'_>>) {
        let v = v.unwrap_or(Val::NULL).to_value();
        self.bytes += size_of::<Value>() + heap_bytes(&v);
        self.items.push_back(v);
    }

    /// Lets go of the first.
    fn pop(&mut self) {
        if let Some(v) = self.items.pop_front() {
            self.bytes -= size_of::<Value>() + heap_bytes(&v);
        }
    }
}

/// The first or last `n` values by a sort key; later arrivals come after earlier ones of the same
/// key.
pub struct Bounded {
    kept: BTreeMap<(Vec<u8>, u64), Value>,
    n: usize,
    arrivals: u64,
    /// Keeps the largest keys.
    largest: bool,
    /// Gives the largest first.
    reversed: bool,
    /// Gives a single value, not an array.
    single: bool,
    bytes: usize,
    collation: Option<Collation>,
}

impl Bounded {
    pub(super) fn new(n: usize, largest: bool, reversed: bool, single: bool) -> Bounded {
        Bounded {
            kept: BTreeMap::new(),
            n,
            arrivals: 0,
            largest,
            reversed,
            single,
            bytes: 0,
            collation: None,
        }
    }

    pub(super) fn collated(mut self, collation: Option<Collation>) -> Bounded {
        self.collation = collation;
        self
    }

    fn add(&mut self, key: Vec<u8>, v: Val<'_>) {
        self.arrivals += 1;
        if self.kept.len() >= self.n {
            let worst = if self.largest {
                self.kept.first_key_value()
            } else {
                self.kept.last_key_value()
            };
            let better =
                worst.is_none_or(|((k, _), _)| if self.largest { key > *k } else { key < *k });
            if !better {
                return;
            }
            let gone = if self.largest {
                self.kept.pop_first()
            } else {
                self.kept.pop_last()
            };
            if let Some(((k, _), v)) = gone {
                self.bytes -= k.len() + v.as_val().bytes.len() + 96;
            }
        }
        self.bytes += key.len() + v.bytes.len() + 96;
        self.kept.insert((key, self.arrivals), v.to_value());
    }

    fn finish(self) -> Value {
        if self.single {
            return self.kept.into_values().next().unwrap_or(Value::NULL);
        }
        let mut w = Writer::new_array();
        if self.reversed {
            for v in self.kept.values().rev() {
                w.push(v.as_val());
            }
        } else {
            for v in self.kept.values() {
                w.push(v.as_val());
            }
        }
        w.finish_array()
    }
}

impl Accumulator {
    /// Takes in a value; `None` is a missing one.
    pub fn take(&mut self, v: Option<Val<'_>>) -> Result<()> {
        let present = v.filter(|v| !v.is_nullish());
        match self {
            Accumulator::Sum(s) | Accumulator::Avg(s) => {
                if let Some(v) = v {
                    s.add(v);
                }
            }
            Accumulator::Deviation(s, _) => {
                if let Some(v) = v {
                    s.add(v);
                }
            }
            Accumulator::Min(best, c) => {
                if let Some(v) = present
                    && best
                        .as_ref()
                        .is_none_or(|b| compare(c.as_ref(), v, b.as_val()).is_lt())
                {
                    *best = Some(v.to_value());
                }
            }
            Accumulator::Max(best, c) => {
                if let Some(v) = present
                    && best
                        .as_ref()
                        .is_none_or(|b| compare(c.as_ref(), v, b.as_val()).is_gt())
                {
                    *best = Some(v.to_value());
                }
            }
            Accumulator::First(first) => {
                if first.is_none() {
                    *first = Some(v.unwrap_or(Val::NULL).to_value());
                }
            }
            Accumulator::Last(last) => *last = Some(v.unwrap_or(Val::NULL).to_value()),
            Accumulator::Push(w) => {
                if let Some(v) = v {
                    w.push(v);
                }
            }
            Accumulator::Concat(w) => {
                if let Some(a) = array("$concatArrays", v)? {
                    for x in a.values() {
                        w.push(x);
                    }
                }
            }
            Accumulator::Set(s) => {
                if let Some(v) = v {
                    s.add(v);
                }
            }
            Accumulator::Union(s) => {
                if let Some(a) = array("$setUnion", v)? {
                    a.values().for_each(|x| s.add(x));
                }
            }
            Accumulator::Merge(d) => {
                if let Some(v) = present {
                    match v.as_doc() {
                        Some(over) => *d = merge_documents(d.as_doc(), over),
                        None => bail!(
                            5911200,
                            "$mergeObjects only supports objects, but got {v} of type {}",
                            v.type_name()
                        ),
                    }
                }
            }
            Accumulator::FirstN(few) => {
                if !few.is_full() {
                    few.push(v);
                }
            }
            Accumulator::LastN(few) => {
                if few.is_full() {
                    few.pop();
                }
                few.push(v);
            }
            Accumulator::Bounded(b) => {
                if let Some(v) = present {
                    b.add(key_of(b.collation.as_ref(), v), v);
                }
            }
            Accumulator::Percentile(numbers, ..) => numbers.extend(v.and_then(Val::to_f64)),
            Accumulator::Script(states) => states.extend(v.map(Val::to_value)),
            Accumulator::Reduce(r) => {
                if let Some(v) = v {
                    r.push(v);
                }
            }
        }
        Ok(())
    }

    /// Takes in a value under an encoded sort key (`$top` and its kin).
    pub(super) fn take_sorted(&mut self, key: Vec<u8>, v: Val<'_>) {
        if let Accumulator::Bounded(b) = self {
            b.add(key, v);
        }
    }

    pub fn finish(self) -> Result<Value> {
        let list = |items: &mut dyn Iterator<Item = Value>| {
            let mut w = Writer::new_array();
            for v in items {
                w.push(v.as_val());
            }
            w.finish_array()
        };
        Ok(match self {
            Accumulator::Sum(s) => s.sum(),
            Accumulator::Avg(s) => s.average(),
            Accumulator::Min(v, _)
            | Accumulator::Max(v, _)
            | Accumulator::First(v)
            | Accumulator::Last(v) => v.unwrap_or(Value::NULL),
            Accumulator::Push(w) | Accumulator::Concat(w) => w.finish_array(),
            Accumulator::Set(s) | Accumulator::Union(s) => s.items.finish_array(),
            Accumulator::Deviation(s, sample) => s.deviation(sample),
            Accumulator::Merge(d) => Value::from(d),
            Accumulator::FirstN(few) | Accumulator::LastN(few) => list(&mut few.items.into_iter()),
            Accumulator::Bounded(b) => b.finish(),
            Accumulator::Percentile(mut numbers, p, single) => {
                let r = percentile::compute(&mut numbers, &p);
                if single { percentile::single(&r) } else { r }
            }
            // Theirs is computed by their specification.
            Accumulator::Script(_) | Accumulator::Reduce(_) => Value::NULL,
        })
    }

    /// Heap bytes held, approximately.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Accumulator::Sum(_) | Accumulator::Avg(_) | Accumulator::Deviation(..) => 0,
            Accumulator::Min(v, _)
            | Accumulator::Max(v, _)
            | Accumulator::First(v)
            | Accumulator::Last(v) => v.as_ref().map_or(0, heap_bytes),
            Accumulator::Push(w) | Accumulator::Concat(w) => w.len(),
            Accumulator::Set(s) | Accumulator::Union(s) => s.items.len() + s.key_bytes,
            Accumulator::Merge(d) => d.as_bytes().len(),
            Accumulator::FirstN(few) | Accumulator::LastN(few) => few.bytes,
            Accumulator::Bounded(b) => b.bytes,
            Accumulator::Percentile(numbers, ..) => numbers.len() * 8,
            Accumulator::Script(states) => states.iter().map(heap_bytes).sum(),
            Accumulator::Reduce(r) => r.memory_bytes(),
        }
    }

    /// Takes over the state of the same accumulator over documents that come behind those of this one.
    pub fn absorb(&mut self, next: Accumulator) -> Result<()> {
        use Accumulator::{Avg, First, Last, Max, Min, Sum};
        match (self, next) {
            (Sum(own), Sum(next)) | (Avg(own), Avg(next)) => own.merge(&next),
            (
                own @ (Min(..) | Max(..) | First(_) | Last(_)),
                Min(v, _) | Max(v, _) | First(v) | Last(v),
            ) => {
                if let Some(v) = v {
                    own.take(Some(v.as_val()))?;
                }
            }
            (own, next) => own.merge(next.to_partial().as_val())?,
        }
        Ok(())
    }

    /// The state as a value that [`Accumulator::merge`] takes back: how a `$group` that spills
    /// writes it.
    pub fn to_partial(&self) -> Value {
        let mut w = Writer::new();
        match self {
            Accumulator::Sum(s) | Accumulator::Avg(s) => {
                w.binary("s", 0, &s.to_bytes());
            }
            Accumulator::Deviation(s, _) => {
                w.binary("s", 0, &s.to_bytes());
            }
            Accumulator::Min(v, _)
            | Accumulator::Max(v, _)
            | Accumulator::First(v)
            | Accumulator::Last(v) => {
                if let Some(v) = v {
                    w.val("v", v.as_val());
                }
            }
            Accumulator::Push(items) | Accumulator::Concat(items) => copy_items(&mut w, items),
            Accumulator::Set(s) | Accumulator::Union(s) => copy_items(&mut w, &s.items),
            Accumulator::Merge(d) => {
                w.doc("v", d.as_doc());
            }
            Accumulator::FirstN(few) | Accumulator::LastN(few) => {
                w.open_array("a");
                for v in &few.items {
                    w.push(v.as_val());
                }
            }
            Accumulator::Bounded(b) => {
                w.open_array("a");
                for ((key, _), v) in &b.kept {
                    w.open_doc("")
                        .binary("k", 0, key)
                        .val("v", v.as_val())
                        .close();
                }
            }
            Accumulator::Percentile(numbers, ..) => {
                w.open_array("a");
                for x in numbers {
                    w.f64("", *x);
                }
            }
            Accumulator::Script(states) => {
                w.open_array("a");
                for v in states {
                    w.push(v.as_val());
                }
            }
            Accumulator::Reduce(r) => r.to_partial(&mut w),
        }
        Value::from(w.finish())
    }

    /// Takes in another state of the same accumulator, later in input order.
    pub fn merge(&mut self, partial: Val<'_>) -> Result<()> {
        let d = partial.as_doc().unwrap_or(Doc::EMPTY);
        let bytes = || d.get("s").and_then(Val::as_binary).map_or(&[][..], |b| b.1);
        let items = d.get("a").and_then(Val::as_array).unwrap_or(Doc::EMPTY);
        match self {
            Accumulator::Sum(s) | Accumulator::Avg(s) => {
                if let Some(o) = Sum::from_bytes(bytes()) {
                    s.merge(&o);
                }
            }
            Accumulator::Deviation(s, _) => {
                if let Some(o) = Variance::from_bytes(bytes()) {
                    s.merge(&o);
                }
            }
            Accumulator::Concat(w) => items.values().for_each(|x| {
                w.push(x);
            }),
            Accumulator::Union(s) => items.values().for_each(|x| s.add(x)),
            Accumulator::Bounded(b) => {
                for e in items.values().filter_map(Val::as_doc) {
                    let key = e.get("k").and_then(Val::as_binary).map_or(&[][..], |k| k.1);
                    b.add(key.to_vec(), e.get("v").unwrap_or(Val::NULL));
                }
            }
            Accumulator::Reduce(r) => {
                r.set_key(d.get("k"));
                items.values().for_each(|x| r.push(x));
            }
            Accumulator::Script(_)
            | Accumulator::Push(_)
            | Accumulator::Set(_)
            | Accumulator::FirstN(..)
            | Accumulator::LastN(..)
            | Accumulator::Percentile(..) => {
                for x in items.values() {
                    self.take(Some(x))?;
                }
            }
            Accumulator::Min(..)
            | Accumulator::Max(..)
            | Accumulator::First(_)
            | Accumulator::Last(_)
            | Accumulator::Merge(_) => {
                if let Some(v) = d.get("v") {
                    self.take(Some(v))?;
                }
            }
        }
        Ok(())
    }
}

/// Appends what an unfinished array writer holds as the array `a`.
fn copy_items(w: &mut Writer, items: &Writer) {
    w.open_array("a");
    for v in items.open_values() {
        w.push(v);
    }
}

/// The array an accumulator of arrays wants; `None` when the value is missing.
fn array<'v>(name: &str, v: Option<Val<'v>>) -> Result<Option<Doc<'v>>> {
    match v {
        None => Ok(None),
        Some(v) => match v.as_array() {
            Some(a) => Ok(Some(a)),
            None => bail!(
                TypeMismatch,
                "{name} requires array inputs, but input {v} is of type {}",
                v.type_name()
            ),
        },
    }
}
