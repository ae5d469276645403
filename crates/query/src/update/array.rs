//! The operators on whole arrays: `$push` with its modifiers, `$addToSet`, `$pop`, `$pull`,
//! `$pullAll`.

use super::UpdateCtx;
use super::operator::{UpdateTarget, ValueChange};
use crate::collation::{Collation, compare, equal};
use crate::expr::ParseEnv;
use crate::filter::Filter;
use crate::list::{List, distinct};
use crate::path::{FieldPath, array_index};
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail, operation};
use std::cmp::Ordering;

#[derive(Debug)]
pub struct Push {
    /// An array: the values to add.
    values: Value,
    position: Option<i64>,
    slice: Option<i64>,
    sort: Option<Sort>,
    collation: Option<Collation>,
}

#[derive(Debug)]
enum Sort {
    Whole { descending: bool },
    Fields(Vec<(FieldPath, bool)>),
}

#[derive(Debug)]
pub struct AddToSet {
    /// Without duplicates.
    values: List,
}

/// The condition of `$pull`.
#[derive(Debug)]
pub enum Pull {
    Equal(Value, Option<Collation>),
    /// Operators on the element itself; on an array, as they are on a field that holds it.
    Operators {
        element: Filter,
        field: Filter,
    },
    /// A query on element documents.
    Query(Filter),
}

/// Bytes of an array that take a step to put in order.
const STEP_BYTES: usize = 16;

fn items(v: Val<'_>) -> Doc<'_> {
    v.as_array().unwrap_or(Doc::EMPTY)
}

fn array_of<'a>(values: impl IntoIterator<Item = Val<'a>>, capacity: usize) -> Value {
    let mut w = Writer::with_capacity(capacity + 16);
    for (i, v) in values.into_iter().enumerate() {
        write_item(&mut w, i, v);
    }
    Value::array(w.finish())
}

fn write_item(w: &mut Writer, i: usize, v: Val<'_>) {
    let mut digits = [0u8; 20];
    w.val(decimal(i, &mut digits), v);
}

/// The digits of an array position.
pub fn decimal(mut n: usize, buf: &mut [u8; 20]) -> &str {
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    std::str::from_utf8(&buf[at..]).unwrap_or("0")
}

/// The array with values after its end: everything before is copied as it is.
fn append<'a>(
    array: Val<'_>,
    values: impl Iterator<Item = Val<'a>>,
    capacity: usize,
) -> (Value, u32) {
    let old = items(array);
    let count = old.count();
    let mut w = Writer::with_capacity(old.len() + capacity + 16);
    w.extend(old);
    for (i, v) in values.enumerate() {
        write_item(&mut w, count + i, v);
    }
    (Value::array(w.finish()), count as u32)
}

fn one(v: Val<'_>) -> Value {
    array_of([v], v.bytes.len())
}

fn whole_number(clause: &str, v: Val<'_>) -> Result<i64> {
    match v.to_i64_exact() {
        Some(n) => Ok(n),
        None => bail!(
            BadValue,
            "The value for {clause} must be an integer value but was given type: {}",
            v.type_name()
        ),
    }
}

impl Push {
    pub fn parse(v: Val<'_>, collation: Option<&Collation>) -> Result<Push> {
        let mut push = Push {
            values: Value::NULL,
            position: None,
            slice: None,
            sort: None,
            collation: collation.cloned(),
        };
        let Some(d) = v.as_doc().filter(|d| d.contains("$each")) else {
            push.values = one(v);
            return Ok(push);
        };
        for e in d.iter() {
            match e.name {
                "$each" => {
                    if e.val.tag != tag::ARRAY {
                        bail!(
                            BadValue,
                            "The argument to $each in $push must be an array but it was of type: {}",
                            e.val.type_name()
                        );
                    }
                    push.values = e.val.to_value();
                }
                "$slice" => push.slice = Some(whole_number("$slice", e.val)?),
                "$position" => push.position = Some(whole_number("$position", e.val)?),
                "$sort" => push.sort = Some(Sort::parse(e.val)?),
                n => bail!(BadValue, "Unrecognized clause in $push: {n}"),
            }
        }
        Ok(push)
    }

    pub fn create(&self) -> Result<Value> {
        self.arrange(Value::array(Default::default()).as_val())
    }

    pub fn apply<'a>(&self, v: Val<'_>, at: &UpdateTarget<'_>) -> Result<ValueChange<'a>> {
        if v.tag != tag::ARRAY {
            bail!(
                BadValue,
                "The field '{}' must be an array but is of type {} in document {}",
                at.path,
                v.type_name(),
                at.id()
            );
        }
        let added = items(self.values.as_val());
        if self.position.is_none() && self.slice.is_none() && self.sort.is_none() {
            if added.is_empty() {
                return Ok(ValueChange::Unchanged);
            }
            let (array, from) = append(v, added.values(), added.len());
            return Ok(ValueChange::Grown(array, from));
        }
        let new = self.arrange(v)?;
        operation::steps(v.bytes.len() / STEP_BYTES)?;
        Ok(if new.as_val() == v {
            ValueChange::Unchanged
        } else {
            ValueChange::SetOwned(new)
        })
    }

    fn arrange(&self, old: Val<'_>) -> Result<Value> {
        let bytes = old.bytes.len() + self.values.as_val().bytes.len();
        let mut all: Vec<Val<'_>> = items(old).values().collect();
        let len = all.len();
        let at = match self.position {
            None => len,
            Some(p) if p >= 0 => usize::try_from(p).map_or(len, |p| p.min(len)),
            Some(p) => len.saturating_sub(usize::try_from(p.unsigned_abs()).unwrap_or(usize::MAX)),
        };
        all.splice(at..at, items(self.values.as_val()).values());
        operation::steps(bytes / STEP_BYTES)?;
        if let Some(s) = &self.sort {
            s.sort(&mut all, self.collation.as_ref());
        }
        if let Some(n) = self.slice {
            let keep = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
            if n >= 0 {
                all.truncate(keep);
            } else {
                all.drain(..all.len().saturating_sub(keep));
            }
        }
        operation::steps(bytes / STEP_BYTES)?;
        Ok(array_of(all, bytes))
    }
}

impl Sort {
    fn parse(v: Val<'_>) -> Result<Sort> {
        if v.is_number() {
            return match v.to_i64_exact() {
                Some(n @ (1 | -1)) => Ok(Sort::Whole { descending: n < 0 }),
                _ => bail!(BadValue, "The $sort element value must be either 1 or -1"),
            };
        }
        let Some(d) = v.as_doc() else {
            bail!(
                BadValue,
                "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}} to sort embedded fields"
            );
        };
        if d.is_empty() {
            bail!(
                BadValue,
                "The $sort pattern is empty when it should be a set of fields."
            );
        }
        let mut fields = Vec::new();
        for e in d.iter() {
            let descending = match e.val.to_i64_exact() {
                Some(1) => false,
                Some(-1) => true,
                _ => bail!(BadValue, "The $sort element value must be either 1 or -1"),
            };
            if e.name.is_empty() {
                bail!(BadValue, "The $sort field cannot be empty");
            }
            let path = FieldPath::new(e.name);
            if path.has_empty_part() {
                bail!(
                    BadValue,
                    "The $sort field is a dotted field but has an empty part: {}",
                    e.name
                );
            }
            fields.push((path, descending));
        }
        Ok(Sort::Fields(fields))
    }

    fn sort(&self, all: &mut [Val<'_>], collation: Option<&Collation>) {
        let turn = |o: Ordering, descending: bool| if descending { o.reverse() } else { o };
        match self {
            Sort::Whole { descending } => {
                all.sort_by(|a, b| turn(compare(collation, *a, *b), *descending));
            }
            Sort::Fields(fields) => all.sort_by(|a, b| {
                for (path, descending) in fields {
                    let o = compare(collation, field_of(*a, path), field_of(*b, path));
                    if o != Ordering::Equal {
                        return turn(o, *descending);
                    }
                }
                Ordering::Equal
            }),
        }
    }
}

/// The value at a path of an element, null when it is not there; numbers address array positions.
fn field_of<'a>(v: Val<'a>, path: &FieldPath) -> Val<'a> {
    let mut v = v;
    for (i, part) in path.parts().enumerate() {
        let next = match v.tag {
            tag::DOCUMENT => v.as_doc().and_then(|d| d.get(part)),
            tag::ARRAY if i > 0 => {
                array_index(part).and_then(|n| items(v).values().nth(n as usize))
            }
            _ => None,
        };
        match next {
            Some(n) => v = n,
            None => return Val::NULL,
        }
    }
    v
}

impl AddToSet {
    pub fn parse(v: Val<'_>, collation: Option<&Collation>) -> Result<AddToSet> {
        let each = v
            .as_doc()
            .filter(|d| d.first().is_some_and(|e| e.name == "$each"));
        let Some(d) = each else {
            return Ok(AddToSet {
                values: List::new(one(v), collation),
            });
        };
        let list = d.first().map_or(Val::NULL, |e| e.val);
        if list.tag != tag::ARRAY {
            bail!(
                TypeMismatch,
                "The argument to $each in $addToSet must be an array but it was of type {}",
                list.type_name()
            );
        }
        if d.count() > 1 {
            bail!(
                BadValue,
                "Found unexpected fields after $each in $addToSet: {d}"
            );
        }
        let values = array_of(distinct(list, collation), list.bytes.len());
        // Sorting so many took as many steps at least.
        operation::steps(list.bytes.len() / STEP_BYTES)?;
        Ok(AddToSet {
            values: List::new(values, collation),
        })
    }

    pub fn create(&self) -> Value {
        self.values.values().to_value()
    }

    pub fn apply<'a>(&self, v: Val<'_>, at: &UpdateTarget<'_>) -> Result<ValueChange<'a>> {
        if v.tag != tag::ARRAY {
            bail!(
                BadValue,
                "Cannot apply $addToSet to non-array field. Field named '{}' has non-array type {}",
                at.name,
                v.type_name()
            );
        }
        let new = self.values.without(items(v))?;
        if new.is_empty() {
            return Ok(ValueChange::Unchanged);
        }
        let (array, from) = append(v, new.into_iter(), self.values.items().len());
        Ok(ValueChange::Grown(array, from))
    }
}

pub fn pop<'a>(first: bool, v: Val<'_>, at: &UpdateTarget<'_>) -> Result<ValueChange<'a>> {
    if v.tag != tag::ARRAY {
        bail!(
            TypeMismatch,
            "Path '{}' contains an element of non-array type '{}'",
            at.path,
            v.type_name()
        );
    }
    let n = items(v).count();
    if n == 0 {
        return Ok(ValueChange::Unchanged);
    }
    let kept = items(v).values().skip(usize::from(first)).take(n - 1);
    Ok(ValueChange::SetOwned(array_of(kept, v.bytes.len())))
}

/// The array without the elements that `drop` names.
fn cull<'a>(
    operator: &str,
    v: Val<'_>,
    mut drop: impl FnMut(Val<'_>) -> Result<bool>,
) -> Result<ValueChange<'a>> {
    if v.tag != tag::ARRAY {
        bail!(BadValue, "Cannot apply {operator} to a non-array value");
    }
    let mut kept = Vec::new();
    let mut dropped = false;
    for e in items(v).values() {
        operation::step()?;
        if drop(e)? {
            dropped = true;
        } else {
            kept.push(e);
        }
    }
    if !dropped {
        return Ok(ValueChange::Unchanged);
    }
    Ok(ValueChange::SetOwned(array_of(kept, v.bytes.len())))
}

pub fn pull_all<'a>(values: &List, v: Val<'_>) -> Result<ValueChange<'a>> {
    cull("$pullAll", v, |e| Ok(values.holds(e)))
}

impl Pull {
    pub fn parse(v: Val<'_>, env: &ParseEnv) -> Result<Pull> {
        let on_documents = |name: &str| {
            !name.starts_with('$')
                || matches!(
                    name,
                    "$and"
                        | "$or"
                        | "$nor"
                        | "$expr"
                        | "$where"
                        | "$text"
                        | "$comment"
                        | "$jsonSchema"
                        | "$ref"
                        | "$id"
                        | "$db"
                )
        };
        match v.tag {
            tag::DOCUMENT => {
                let d = v.as_doc().unwrap_or(Doc::EMPTY);
                match d.first() {
                    Some(e) if !on_documents(e.name) => Pull::operators(d, env),
                    _ => Ok(Pull::Query(Filter::parse(d, env)?)),
                }
            }
            tag::REGEX => {
                let mut w = Writer::new();
                w.val("$regex", v);
                Pull::operators(w.finish().as_doc(), env)
            }
            _ => Ok(Pull::Equal(v.to_value(), env.collation().cloned())),
        }
    }

    fn operators(d: Doc<'_>, env: &ParseEnv) -> Result<Pull> {
        let mut w = Writer::new();
        w.doc("", d);
        Ok(Pull::Operators {
            element: Filter::parse_value_operators(d, env)?,
            field: Filter::parse(w.finish().as_doc(), env)?,
        })
    }

    pub fn apply<'a>(&self, v: Val<'_>, ctx: &UpdateCtx<'_>) -> Result<ValueChange<'a>> {
        cull("$pull", v, |e| match self {
            Pull::Equal(x, c) => Ok(equal(c.as_ref(), x.as_val(), e)),
            Pull::Operators { field, .. } if e.tag == tag::ARRAY => {
                let mut w = Writer::with_capacity(e.bytes.len() + 8);
                w.val("", e);
                field.matches_within(w.finish().as_doc(), ctx.vars)
            }
            Pull::Operators { element, .. } => element.matches_value_within(e, ctx.vars),
            Pull::Query(f) => match e.as_doc() {
                Some(d) => f.matches_within(d, ctx.vars),
                None => Ok(false),
            },
        })
    }
}
