//! `$type`: a set of BSON types.

use crate::arithmetic::convert::in_message;
use bson::{Val, Value, Writer, tag};
use errors::{Result, err};

/// A set of BSON types. `number` is its four types together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TypeSet {
    bits: u32,
    /// Written as the alias `number`: only explain asks.
    number: bool,
}

/// The types that a filter or `$convert` may name.
pub(crate) const TAGS: [u8; 21] = [
    tag::DOUBLE,
    tag::STRING,
    tag::DOCUMENT,
    tag::ARRAY,
    tag::BINARY,
    tag::UNDEFINED,
    tag::OBJECT_ID,
    tag::BOOL,
    tag::DATE,
    tag::NULL,
    tag::REGEX,
    tag::DB_POINTER,
    tag::CODE,
    tag::SYMBOL,
    tag::CODE_WITH_SCOPE,
    tag::INT32,
    tag::TIMESTAMP,
    tag::INT64,
    tag::DECIMAL128,
    tag::MIN_KEY,
    tag::MAX_KEY,
];

fn bit(t: u8) -> u32 {
    match t {
        tag::MIN_KEY => 1 << 30,
        tag::MAX_KEY => 1 << 31,
        t if t < 30 => 1 << t,
        _ => 0,
    }
}

impl TypeSet {
    pub const EMPTY: TypeSet = TypeSet {
        bits: 0,
        number: false,
    };

    pub fn of(tags: &[u8]) -> TypeSet {
        TypeSet {
            bits: tags.iter().fold(0, |b, &t| b | bit(t)),
            number: false,
        }
    }

    /// Adds the type that an alias names; `None` when it names none.
    pub fn add_alias(&mut self, name: &str) -> Option<()> {
        if name == "number" {
            self.bits |=
                bit(tag::DOUBLE) | bit(tag::INT32) | bit(tag::INT64) | bit(tag::DECIMAL128);
            self.number = true;
            return Some(());
        }
        let t = TAGS.iter().find(|t| tag::name(**t) == name)?;
        self.bits |= bit(*t);
        Some(())
    }

    /// Parses the argument of `$type`. `field` is only for messages.
    pub fn parse(v: Val<'_>, field: &str) -> Result<TypeSet> {
        let mut set = TypeSet::EMPTY;
        match v.as_array() {
            Some(list) => {
                for v in list.values() {
                    set.add(v)?;
                }
                if set.bits == 0 {
                    return Err(err!(FailedToParse, "{field} must match at least one type").into());
                }
            }
            None => set.add(v)?,
        }
        Ok(set)
    }

    fn add(&mut self, v: Val<'_>) -> Result<()> {
        if let Some(name) = v.as_str() {
            return self
                .add_alias(name)
                .ok_or_else(|| err!(BadValue, "Unknown type name alias: {name}").into());
        }
        if !v.is_number() {
            return Err(err!(
                TypeMismatch,
                "type must be represented as a number or a string"
            )
            .into());
        }
        let t = match v.to_i64_exact() {
            Some(0) => {
                return Err(err!(
                    BadValue,
                    "Invalid numerical type code: 0. Instead use {{$exists:false}}"
                )
                .into());
            }
            Some(-1) => Some(tag::MIN_KEY),
            Some(n) => u8::try_from(n)
                .ok()
                .filter(|t| *t != tag::MIN_KEY && TAGS.contains(t)),
            None => None,
        };
        match t {
            Some(t) => {
                self.bits |= bit(t);
                Ok(())
            }
            None => {
                let code = in_message(v);
                Err(err!(BadValue, "Invalid numerical type code: {code}").into())
            }
        }
    }

    #[inline]
    pub fn contains(self, t: u8) -> bool {
        self.bits & bit(t) != 0
    }

    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// The types in the set, in MongoDB's comparison order.
    pub fn tags(self) -> Vec<u8> {
        let mut t: Vec<u8> = TAGS.into_iter().filter(|t| self.contains(*t)).collect();
        t.sort_by_key(|t| tag::rank(*t));
        t
    }

    /// As explain prints it: type numbers, or `number`.
    pub fn to_value(self) -> Value {
        let mut w = Writer::new_array();
        for t in TAGS.into_iter().filter(|t| self.contains(*t)) {
            if self.number && tag::is_number(t) {
                continue;
            }
            let code = match t {
                tag::MIN_KEY => -1,
                t => i32::from(t),
            };
            w.push_value(code);
        }
        if self.number {
            w.push_value("number");
        }
        w.finish_array()
    }
}
