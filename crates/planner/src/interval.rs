//! Sets of values as lists of intervals in MongoDB's comparison order.
//!
//! Invariant: a list is ascending and its intervals are disjoint; each interval holds at least one
//! possible value.

use bson::hex_text::{self, Strings};
use bson::{Val, Value, key, order, shell, tag};
use std::cmp::Ordering;

/// The values between two ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    pub low: Value,
    pub low_inclusive: bool,
    pub high: Value,
    pub high_inclusive: bool,
}

impl Interval {
    pub fn new(low: Value, low_inclusive: bool, high: Value, high_inclusive: bool) -> Interval {
        Interval {
            low,
            low_inclusive,
            high,
            high_inclusive,
        }
    }

    pub fn point(v: Value) -> Interval {
        Interval {
            low: v.clone(),
            low_inclusive: true,
            high: v,
            high_inclusive: true,
        }
    }

    /// Every value.
    pub fn all() -> Interval {
        Interval::new(Val::MIN_KEY.into(), true, Val::MAX_KEY.into(), true)
    }

    pub fn is_all(&self) -> bool {
        self.low.tag() == tag::MIN_KEY
            && self.high.tag() == tag::MAX_KEY
            && self.low_inclusive
            && self.high_inclusive
    }

    pub fn is_point(&self) -> bool {
        self.low_inclusive
            && self.high_inclusive
            && order::equal(self.low.as_val(), self.high.as_val())
    }

    fn is_empty(&self) -> bool {
        match order::compare(self.low.as_val(), self.high.as_val()) {
            Ordering::Less => false,
            Ordering::Equal => !(self.low_inclusive && self.high_inclusive),
            Ordering::Greater => true,
        }
    }

    fn cmp_low(&self, other: &Interval) -> Ordering {
        order::compare(self.low.as_val(), other.low.as_val())
            .then(other.low_inclusive.cmp(&self.low_inclusive))
    }

    fn cmp_high(&self, other: &Interval) -> Ordering {
        order::compare(self.high.as_val(), other.high.as_val())
            .then(self.high_inclusive.cmp(&other.high_inclusive))
    }

    pub fn contains(&self, v: Val<'_>) -> bool {
        let low = order::compare(self.low.as_val(), v);
        let high = order::compare(v, self.high.as_val());
        (low.is_lt() || low.is_eq() && self.low_inclusive)
            && (high.is_lt() || high.is_eq() && self.high_inclusive)
    }

    /// The key bytes behind `prefix` of the values in the interval, as `[low, high)`; an empty
    /// `high` is the end.
    pub fn range(&self, prefix: &[u8], descending: bool) -> (Vec<u8>, Vec<u8>) {
        // A key goes on behind the value, so "after the value" is the successor of the value's
        // bytes as a prefix.
        let at = |v: &Value, after: bool| {
            let mut k = Vec::with_capacity(prefix.len() + v.as_val().bytes.len() + 4);
            k.extend_from_slice(prefix);
            key::encode(v.as_val(), descending, &mut k, None);
            if after {
                key::successor(&k).unwrap_or_default()
            } else {
                k
            }
        };
        if descending {
            (
                at(&self.high, !self.high_inclusive),
                at(&self.low, self.low_inclusive),
            )
        } else {
            (
                at(&self.low, !self.low_inclusive),
                at(&self.high, self.high_inclusive),
            )
        }
    }

    /// As explain prints it: `[1, 5)`. `collated`: strings are keys of a collation.
    pub fn to_text(&self, reverse: bool, collated: bool) -> String {
        let value = |v: &Value| match v.tag() {
            tag::STRING if collated => {
                let key = v.as_val().str_bytes().unwrap_or(&[]);
                format!("CollationKey(0x{})", hex_text::hex(key))
            }
            tag::DOCUMENT | tag::ARRAY if collated => {
                shell::val(hex_text::in_hex(v.as_val(), Strings::All, "0x").0.as_val())
            }
            tag::DOUBLE if v.as_val().as_f64().is_some_and(|f| !f.is_finite()) => {
                format!("{}.0", shell::val(v.as_val()))
            }
            _ => shell::val(v.as_val()),
        };
        let (a, ai, b, bi) = if reverse {
            (
                &self.high,
                self.high_inclusive,
                &self.low,
                self.low_inclusive,
            )
        } else {
            (
                &self.low,
                self.low_inclusive,
                &self.high,
                self.high_inclusive,
            )
        };
        format!(
            "{}{}, {}{}",
            if ai { '[' } else { '(' },
            value(a),
            value(b),
            if bi { ']' } else { ')' }
        )
    }
}

/// Sorts, drops empty intervals and joins those that overlap or touch.
pub fn union(mut list: Vec<Interval>) -> Vec<Interval> {
    list.retain(|i| !i.is_empty());
    list.sort_by(|a, b| a.cmp_low(b).then_with(|| a.cmp_high(b)));
    let mut out: Vec<Interval> = Vec::with_capacity(list.len());
    for i in list {
        match out.last_mut() {
            Some(last) if touches(last, &i) => {
                if last.cmp_high(&i).is_lt() {
                    last.high = i.high;
                    last.high_inclusive = i.high_inclusive;
                }
            }
            _ => out.push(i),
        }
    }
    out
}

/// Whether `b`, which does not begin before `a`, begins where `a` still is or just ends.
fn touches(a: &Interval, b: &Interval) -> bool {
    match order::compare(b.low.as_val(), a.high.as_val()) {
        Ordering::Less => true,
        Ordering::Equal => a.high_inclusive || b.low_inclusive,
        Ordering::Greater => false,
    }
}

/// Whether a list of intervals leaves anything out.
pub(crate) fn bounded(list: &[Interval]) -> bool {
    !matches!(list, [all] if all.is_all())
}

pub fn intersect(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::new();
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let low = if x.cmp_low(y).is_ge() { x } else { y };
        let x_ends_first = x.cmp_high(y).is_le();
        let high = if x_ends_first { x } else { y };
        let both = Interval::new(
            low.low.clone(),
            low.low_inclusive,
            high.high.clone(),
            high.high_inclusive,
        );
        if !both.is_empty() {
            out.push(both);
        }
        if x_ends_first {
            i += 1;
        } else {
            j += 1;
        }
    }
    out
}

/// All values outside.
pub fn complement(list: &[Interval]) -> Vec<Interval> {
    let mut out = Vec::with_capacity(list.len() + 1);
    let (mut low, mut inclusive): (Value, bool) = (Val::MIN_KEY.into(), true);
    for i in list {
        let gap = Interval::new(low, inclusive, i.low.clone(), !i.low_inclusive);
        if !gap.is_empty() {
            out.push(gap);
        }
        (low, inclusive) = (i.high.clone(), !i.high_inclusive);
    }
    let rest = Interval::new(low, inclusive, Val::MAX_KEY.into(), true);
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i(low: i32, li: bool, high: i32, hi: bool) -> Interval {
        Interval::new(low.into(), li, high.into(), hi)
    }

    fn text(list: &[Interval]) -> String {
        let t: Vec<String> = list.iter().map(|i| i.to_text(false, false)).collect();
        t.join(" ")
    }

    #[test]
    fn sets() {
        let u = union(vec![
            i(5, true, 7, false),
            i(1, true, 3, false),
            i(3, true, 4, true),
            i(9, false, 9, true),
        ]);
        assert_eq!(text(&u), "[1, 4] [5, 7)");
        assert_eq!(
            text(&intersect(&u, &[i(2, false, 6, true)])),
            "(2, 4] [5, 6]"
        );
        assert_eq!(text(&complement(&u)), "[MinKey, 1) (4, 5) [7, MaxKey]");
        assert_eq!(text(&complement(&[Interval::all()])), "");
        assert_eq!(text(&complement(&[])), "[MinKey, MaxKey]");
        assert_eq!(text(&complement(&complement(&u))), text(&u));
    }

    #[test]
    fn ranges_of_bytes() {
        for descending in [false, true] {
            for (iv, inside, outside) in [
                (i(2, true, 4, true), vec![2, 3, 4], vec![1, 5]),
                (i(2, false, 4, false), vec![3], vec![2, 4]),
            ] {
                let (lo, hi) = iv.range(b"p", descending);
                let key = |n: i32| {
                    let mut k = b"p".to_vec();
                    key::encode(Value::from(n).as_val(), descending, &mut k, None);
                    k.extend_from_slice(b"rest");
                    k
                };
                for n in inside {
                    assert!(
                        lo <= key(n) && (hi.is_empty() || key(n) < hi),
                        "{n} {descending}"
                    );
                }
                for n in outside {
                    assert!(
                        !(lo <= key(n) && (hi.is_empty() || key(n) < hi)),
                        "{n} {descending}"
                    );
                }
            }
        }
    }
}
