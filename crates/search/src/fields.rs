//! The fields of a document that a user wrote as a specification: each is read by name and type, and one that
//! no reader has asked for is refused. Null is as if it were not there.

use crate::problem::wrong;
use bson::{Doc, Val};
use errors::Result;
use std::cell::RefCell;

/// A specification and its name in sentences (`text`, `compound.must[0].text`).
pub struct SpecificationFields<'a> {
    pub at: String,
    pub doc: Doc<'a>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> SpecificationFields<'a> {
    /// Fails where the value is no document.
    pub fn of(at: &str, v: Val<'a>) -> Result<SpecificationFields<'a>> {
        match v.as_doc() {
            Some(doc) => Ok(SpecificationFields::new(at, doc)),
            None => Err(wrong(format!("\"{at}\" must be a document"))),
        }
    }

    pub fn new(at: &str, doc: Doc<'a>) -> SpecificationFields<'a> {
        SpecificationFields {
            at: at.to_string(),
            doc,
            known: RefCell::default(),
        }
    }

    /// The name of a field in sentences.
    pub fn name(&self, field: &str) -> String {
        match self.at.is_empty() {
            true => field.to_string(),
            false => format!("{}.{field}", self.at),
        }
    }

    /// The value of a field with null as a value.
    pub fn raw(&self, field: &'static str) -> Option<Val<'a>> {
        self.known.borrow_mut().push(field);
        self.doc.get(field)
    }

    pub fn get(&self, field: &'static str) -> Option<Val<'a>> {
        self.raw(field).filter(|v| !v.is_nullish())
    }

    pub fn required(&self, field: &'static str) -> Result<Val<'a>> {
        self.get(field)
            .ok_or_else(|| wrong(format!("\"{}\" is required", self.name(field))))
    }

    pub fn doc(&self, field: &'static str) -> Result<Option<SpecificationFields<'a>>> {
        self.get(field)
            .map(|v| SpecificationFields::of(&self.name(field), v))
            .transpose()
    }

    pub fn string(&self, field: &'static str) -> Result<Option<&'a str>> {
        self.get(field)
            .map(|v| self.as_string(field, v))
            .transpose()
    }

    pub fn required_string(&self, field: &'static str) -> Result<&'a str> {
        self.as_string(field, self.required(field)?)
    }

    fn as_string(&self, field: &str, v: Val<'a>) -> Result<&'a str> {
        v.as_str()
            .ok_or_else(|| wrong(format!("\"{}\" must be a string", self.name(field))))
    }

    pub fn flag(&self, field: &'static str) -> Result<Option<bool>> {
        let flag = |v: Val<'_>| {
            v.as_bool()
                .ok_or_else(|| wrong(format!("\"{}\" must be a boolean", self.name(field))))
        };
        self.get(field).map(flag).transpose()
    }

    /// A whole number from `low` to `high`.
    pub fn int(&self, field: &'static str, low: i32, high: i32) -> Result<Option<i32>> {
        self.get(field)
            .map(|v| self.as_int(field, v, low, high))
            .transpose()
    }

    pub fn required_int(&self, field: &'static str, low: i32, high: i32) -> Result<i32> {
        self.as_int(field, self.required(field)?, low, high)
    }

    pub fn as_int(&self, field: &str, v: Val<'_>, low: i32, high: i32) -> Result<i32> {
        let name = self.name(field);
        let number = v.as_decimal().is_none().then(|| v.to_f64()).flatten();
        let Some(n) = number.filter(|_| v.is_number()) else {
            return Err(wrong(format!("\"{name}\" must be an integer")));
        };
        if n.is_nan() || n.is_finite() && n.fract() != 0.0 {
            return Err(wrong(format!("\"{name}\" must be an integer")));
        }
        let fits = f64::from(i32::MIN) <= n && n <= f64::from(i32::MAX);
        if !fits {
            return Err(wrong(format!("\"{name}\" must fit in a 32-bit integer")));
        }
        let n = n as i32;
        if n < low || n > high {
            let bounds = match (low, high) {
                (0, i32::MAX) => "cannot be negative".to_string(),
                (1, i32::MAX) => "must be positive".to_string(),
                _ => format!("must be within bounds [{low}, {high}]"),
            };
            return Err(wrong(format!("\"{name}\" {bounds}")));
        }
        Ok(n)
    }

    /// A string, or a list of them: at least one.
    pub fn strings(&self, field: &'static str) -> Result<Vec<String>> {
        let v = self.required(field)?;
        let name = self.name(field);
        let one = |v: Val<'_>, name: &str| match v.as_str() {
            Some("") => Err(wrong(format!("\"{name}\" cannot be empty"))),
            Some(s) => Ok(s.to_string()),
            None => Err(wrong(format!("\"{name}\" must be a string"))),
        };
        let Some(list) = v.as_array() else {
            return Ok(vec![one(v, &name)?]);
        };
        let mut out = Vec::new();
        for (i, v) in list.values().enumerate() {
            errors::operation::step()?;
            out.push(one(v, &format!("{name}[{i}]"))?);
        }
        if out.is_empty() {
            return Err(wrong(format!("\"{name}\" cannot be empty")));
        }
        Ok(out)
    }

    /// Refuses fields that no reader has asked for.
    pub fn end(&self) -> Result<()> {
        let known = self.known.borrow();
        match self.doc.iter().find(|e| !known.contains(&e.name)) {
            Some(e) => Err(wrong(format!(
                "unrecognized field \"{}\"",
                self.name(e.name)
            ))),
            None => Ok(()),
        }
    }
}
