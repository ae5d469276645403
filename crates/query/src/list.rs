//! A list for many look-ups: a client's list may be as long as a collection's array, and going over the
//! one for each item of the other would take hours, in a call that cannot be ended.

use crate::collation::{Collation, equal};
use bson::{Doc, Val, Value, order};
use errors::{Fallible, operation};
use std::collections::HashMap;

/// Up to so many items one after the other: sorting does not pay.
pub const FEW: usize = 16;

/// The items of an array, equal as queries see it.
#[derive(Debug)]
pub struct List {
    values: Value,
    collation: Option<Collation>,
    /// `values` as the collation compares them, where that makes a difference.
    folded: Option<Value>,
    /// The folded items in their order; empty for few.
    sorted: Vec<Slot>,
}

/// Where an item is: as values of their own, small ones would take a multiple of the list.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u8,
    start: u32,
    end: u32,
    /// In the list.
    position: u32,
}

impl Slot {
    fn val(self, array: Val<'_>) -> Val<'_> {
        Val {
            tag: self.tag,
            bytes: array
                .bytes
                .get(self.start as usize..self.end as usize)
                .unwrap_or(&[]),
        }
    }
}

fn items(v: Val<'_>) -> Doc<'_> {
    v.as_array().unwrap_or(Doc::EMPTY)
}

fn fold(collation: Option<&Collation>, v: Val<'_>) -> Option<Value> {
    collation
        .filter(|_| Collation::affects(v))
        .map(|c| c.fold(v))
}

fn slots(array: Val<'_>) -> Vec<Slot> {
    let all = items(array);
    let mut out = Vec::with_capacity(all.count());
    let mut it = all.iter();
    let len = array.bytes.len();
    while let Some((_, v)) = it.next_raw() {
        // Behind an item are the others and the array's last byte.
        let end = len - 1 - it.rest().len();
        out.push(Slot {
            tag: v.tag,
            start: (end - v.bytes.len()) as u32,
            end: end as u32,
            position: out.len() as u32,
        });
    }
    out
}

impl List {
    /// `values`: an array.
    pub fn new(values: Value, collation: Option<&Collation>) -> List {
        let mut list = List {
            values,
            collation: collation.cloned(),
            folded: None,
            sorted: Vec::new(),
        };
        if items(list.values()).values().nth(FEW).is_some() {
            list.folded = fold(collation, list.values());
            let array = list.folded.as_ref().unwrap_or(&list.values).as_val();
            let mut sorted = slots(array);
            sorted.sort_by(|a, b| order::compare(a.val(array), b.val(array)));
            list.sorted = sorted;
        }
        list
    }

    /// The array.
    pub fn values(&self) -> Val<'_> {
        self.values.as_val()
    }

    pub fn items(&self) -> Doc<'_> {
        items(self.values())
    }

    pub fn is_few(&self) -> bool {
        self.sorted.is_empty()
    }

    pub fn holds(&self, v: Val<'_>) -> bool {
        match self.is_few() {
            true => self
                .items()
                .values()
                .any(|o| equal(self.collation.as_ref(), o, v)),
            false => self.find(v).is_some(),
        }
    }

    /// The position of an item that is equal; none in a list of few.
    fn find(&self, v: Val<'_>) -> Option<usize> {
        let array = self.folded.as_ref().unwrap_or(&self.values).as_val();
        let at = Collation::with(self.collation.as_ref(), v, |v| {
            self.sorted
                .binary_search_by(|s| order::compare(s.val(array), v))
        });
        at.ok().map(|i| self.sorted[i].position as usize)
    }

    /// The items that are not among `others`, in their order. The list has each item once.
    pub fn without<'a>(&'a self, others: Doc<'_>) -> Fallible<Vec<Val<'a>>> {
        let all = self.items().values();
        if self.is_few() {
            let same = |n, o| equal(self.collation.as_ref(), o, n);
            return Ok(all
                .filter(|n| !others.values().any(|o| same(*n, o)))
                .collect());
        }
        let mut found = vec![false; self.sorted.len()];
        let mut left = found.len();
        for o in others.values() {
            if left == 0 {
                break;
            }
            operation::step()?;
            if let Some(i) = self.find(o)
                && !std::mem::replace(&mut found[i], true)
            {
                left -= 1;
            }
        }
        let kept = all.zip(&found).filter(|(_, f)| !**f);
        Ok(kept.map(|(v, _)| v).collect())
    }
}

/// The items of an array, each once: the first of those that are equal.
pub fn distinct<'a>(array: Val<'a>, collation: Option<&Collation>) -> Vec<Val<'a>> {
    let all = items(array);
    if all.values().nth(FEW).is_none() {
        let mut out: Vec<Val<'a>> = Vec::new();
        for v in all.values() {
            if !out.iter().any(|o| equal(collation, *o, v)) {
                out.push(v);
            }
        }
        return out;
    }
    let folded = fold(collation, array);
    let by = folded.as_ref().map_or(array, Value::as_val);
    let mut sorted = slots(by);
    // Stable, and the first of a run stays.
    sorted.sort_by(|a, b| order::compare(a.val(by), b.val(by)));
    sorted.dedup_by(|b, a| order::compare(a.val(by), b.val(by)).is_eq());
    let mut first = vec![false; all.count()];
    for s in sorted {
        first[s.position as usize] = true;
    }
    let kept = all.values().zip(&first).filter(|(_, f)| **f);
    kept.map(|(v, _)| v).collect()
}

/// Names of the fields of a specification, and where each is; up to [`FEW`] are looked for one
/// after the other.
#[derive(Clone, Debug, Default)]
pub struct Places(HashMap<Box<str>, usize>);

impl Places {
    /// Where `name` is in `all`, all of which were noted.
    #[inline]
    pub fn find<T>(&self, all: &[(Box<str>, T)], name: &[u8]) -> Option<usize> {
        if all.len() <= FEW {
            return all.iter().position(|(n, _)| n.as_bytes() == name);
        }
        self.0.get(std::str::from_utf8(name).ok()?).copied()
    }

    /// After something was put at the end of `all`.
    pub fn note<T>(&mut self, all: &[(Box<str>, T)]) {
        if all.len() == FEW + 1 {
            self.renew(all);
        } else if let (Some((name, _)), true) = (all.last(), all.len() > FEW) {
            self.0.insert(name.clone(), all.len() - 1);
        }
    }

    /// After something was put elsewhere.
    pub fn renew<T>(&mut self, all: &[(Box<str>, T)]) {
        if all.len() > FEW {
            let each = all.iter().enumerate();
            self.0 = each.map(|(i, (name, _))| (name.clone(), i)).collect();
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use bson::{DocBuf, Writer};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// A value of any kind, from so few that many are equal, often of another type or in another
    /// order of fields.
    pub fn any_value(r: &mut StdRng, depth: u32) -> Value {
        let n = r.random_range(0..6);
        match r.random_range(0..if depth == 0 { 8 } else { 11 }) {
            0 => Value::from(n),
            1 => Value::from(i64::from(n)),
            2 => Value::from(f64::from(n)),
            3 => Value::from(bson::Decimal128::from_i64(i64::from(n))),
            4 => Value::from(["a", "A", "b", "é", "e", "E"][n as usize]),
            5 => Value::NULL,
            6 => Value::from(n % 2 == 0),
            7 => Value::date(i64::from(n)),
            8 => any_array(r, 3, depth - 1),
            _ => {
                let mut names = vec!["x", "y", "z"];
                let mut w = Writer::new();
                for _ in 0..r.random_range(0..3) {
                    let name = names.remove(r.random_range(0..names.len()));
                    w.val(name, any_value(r, depth - 1).as_val());
                }
                Value::from(w.finish())
            }
        }
    }

    pub fn any_array(r: &mut StdRng, most: usize, depth: u32) -> Value {
        let mut w = Writer::new_array();
        for _ in 0..r.random_range(0..most + 1) {
            w.push(any_value(r, depth).as_val());
        }
        w.finish_array()
    }

    /// Numbers of mixed types, every third twice.
    pub fn long_array(n: i32) -> Value {
        let mut w = Writer::new_array();
        for i in 0..n {
            match i % 3 {
                0 => w.push(Value::from(i).as_val()),
                1 => w.push(Value::from(f64::from(i)).as_val()),
                _ => w.push(Value::from(i64::from(i - 2)).as_val()),
            };
        }
        w.finish_array()
    }

    pub fn collations() -> Vec<Option<Collation>> {
        let spec: DocBuf = bson::json::parse(r#"{"locale":"en","strength":1}"#).unwrap();
        vec![None, Collation::new(spec.as_doc()).unwrap()]
    }

    #[test]
    fn as_one_by_one() {
        let mut r = StdRng::seed_from_u64(7);
        for collation in collations() {
            let c = collation.as_ref();
            let mut longer = 0;
            for _ in 0..3000 {
                let (list, others) = (any_array(&mut r, 60, 2), any_array(&mut r, 60, 2));
                let mut once: Vec<Val<'_>> = Vec::new();
                for v in items(list.as_val()).values() {
                    if !once.iter().any(|o| equal(c, *o, v)) {
                        once.push(v);
                    }
                }
                assert_eq!(distinct(list.as_val(), c), once);
                let mut w = Writer::new_array();
                for v in &once {
                    w.push(*v);
                }
                let list = List::new(w.finish_array(), c);
                longer += u32::from(!list.is_few());
                for o in items(others.as_val()).values() {
                    let want = once.iter().any(|v| equal(c, *v, o));
                    assert_eq!(list.holds(o), want, "{o}");
                }
                let others = items(others.as_val());
                once.retain(|v| !others.values().any(|o| equal(c, o, *v)));
                assert_eq!(list.without(others).unwrap(), once);
            }
            assert!((500..2900).contains(&longer), "{longer}");
        }
    }

    /// One after the other, the list for each would take hours.
    #[test]
    fn long_lists() {
        let array = long_array(200_000);
        let once = distinct(array.as_val(), None);
        assert_eq!(once.len(), 133_334);
        let list = List::new(array.clone(), None);
        assert!(items(array.as_val()).values().all(|v| list.holds(v)));
        let mut w = Writer::new_array();
        for v in &once {
            w.push(*v);
        }
        let list = List::new(w.finish_array(), None);
        assert!(list.without(items(array.as_val())).unwrap().is_empty());
        assert_eq!(list.without(Doc::EMPTY).unwrap().len(), once.len());
    }
}
