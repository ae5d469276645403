//! The arguments of commands: declared with [`arguments!`], read with the type checks and messages
//! of MongoDB's IDL.
//!
//! Every reader takes `within`, the path that messages print before the field's name (`find`,
//! `update.updates`), and gives `None` for null and undefined: to MongoDB an argument of null is
//! one that was not given.

use bson::{Doc, Elem, Val, tag};
use errors::{Result, Stop, bail, err};

const NUMBERS: &[&str] = &["long", "int", "decimal", "double"];
const SAFE_BOOL: &[&str] = &["bool", "long", "int", "decimal", "double"];

/// The error of a field of a wrong type.
pub fn mismatch(within: &str, field: &str, got: Val<'_>, expected: &[&str]) -> Stop {
    let got = got.type_name();
    match expected {
        [one] => err!(
            TypeMismatch,
            "BSON field '{within}.{field}' is the wrong type '{got}', expected type '{one}'"
        )
        .into(),
        many => err!(
            TypeMismatch,
            "BSON field '{within}.{field}' is the wrong type '{got}', expected types '[{}]'",
            many.join(", ")
        )
        .into(),
    }
}

/// The error of a field that the command does not have.
pub fn unknown(within: &str, field: &str) -> Stop {
    err!(
        IDLUnknownField,
        "BSON field '{within}.{field}' is an unknown field."
    )
    .into()
}

/// The error of a field that must be there.
pub fn missing(within: &str, field: &str) -> Stop {
    err!(
        IDLFailedToParse,
        "BSON field '{within}.{field}' is missing but a required field"
    )
    .into()
}

/// The error of a field given twice.
pub fn duplicate(within: &str, field: &str) -> Stop {
    err!(
        IDLDuplicateField,
        "BSON field '{within}.{field}' is a duplicate field"
    )
    .into()
}

/// Fails where a field of a document that is no data of the user's is given twice: its readers would
/// not agree which of them counts.
pub fn unique<'a>(within: &str, d: Doc<'a>) -> Result<Doc<'a>> {
    match d.repeated_name() {
        None => Ok(d),
        Some(field) => Err(duplicate(within, field)),
    }
}

/// Declares the arguments of a command, or of a document in one, as a struct with a reader for
/// each.
///
/// ```text
/// arguments! {
///     struct Arguments<'a> {
///         "filter" => filter: Option<Doc<'a>> = idl::doc,    // kept as the reader reads it
///     }
///     checked: "readOnce" | "oplogReplay" => idl::safe_bool; // read, but not kept
///     ignored: "term";                                       // may be there, whatever it is
/// }
/// ```
///
/// A reader takes `within` and the element. A field that was not given has its type's default.
#[macro_export]
macro_rules! arguments {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$life:lifetime> {
            $($(#[$field_meta:meta])* $($wire:literal)|+ => $field:ident : $type:ty = $read:expr,)*
        }
        $(checked: $($($checked:literal)|+ => $check:expr),+;)?
        $(ignored: $($ignored:literal)|+;)?
    ) => {
        $(#[$meta])*
        #[derive(Default)]
        $vis struct $name<$life> {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl<$life> $name<$life> {
            /// Reads one field; false when it is none of these.
            $vis fn read(
                &mut self,
                within: &str,
                e: bson::Elem<$life>,
            ) -> errors::Result<bool> {
                match e.name {
                    $($($wire)|+ => self.$field = $read(within, e)?,)*
                    $($($($checked)|+ => drop($check(within, e)?),)+)?
                    $($($ignored)|+ => {})?
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Reads all fields of a document within a command; one that is none of these, or is
            /// given twice, is an error.
            #[allow(dead_code, reason = "some are of commands, whose fields the server checks")]
            $vis fn parse_document(
                within: &str,
                d: bson::Doc<$life>,
            ) -> errors::Result<Self> {
                Self::parse(within, $crate::idl::unique(within, d)?)
            }

            /// Reads all fields of a command; one that is none of these is an error.
            #[allow(dead_code, reason = "some are read field by field")]
            $vis fn parse(
                within: &str,
                fields: impl IntoIterator<Item = bson::Elem<$life>>,
            ) -> errors::Result<Self> {
                let mut arguments = Self::default();
                for e in fields {
                    if !arguments.read(within, e)? {
                        return Err($crate::idl::unknown(within, e.name));
                    }
                }
                Ok(arguments)
            }
        }
    };
}
pub use crate::arguments;

/// The value of a field that must be there.
pub fn required<T>(within: &str, field: &str, v: Option<T>) -> Result<T> {
    v.ok_or_else(|| missing(within, field))
}

fn given<T>(v: Val<'_>, read: Option<T>, wrong: impl FnOnce() -> Stop) -> Result<Option<T>> {
    match read {
        Some(t) => Ok(Some(t)),
        None if v.is_nullish() => Ok(None),
        None => Err(wrong()),
    }
}

pub fn doc<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    given(e.val, e.val.as_doc(), || {
        mismatch(within, e.name, e.val, &["object"])
    })
}

pub fn array<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    given(e.val, e.val.as_array(), || {
        mismatch(within, e.name, e.val, &["array"])
    })
}

pub fn string<'a>(within: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    given(e.val, e.val.as_str(), || {
        mismatch(within, e.name, e.val, &["string"])
    })
}

/// A boolean and nothing else.
pub fn boolean(within: &str, e: Elem<'_>) -> Result<Option<bool>> {
    given(e.val, e.val.as_bool(), || {
        mismatch(within, e.name, e.val, &["bool"])
    })
}

/// A boolean or a number.
pub fn safe_bool(within: &str, e: Elem<'_>) -> Result<Option<bool>> {
    let read = (e.val.tag == tag::BOOL || e.val.is_number()).then(|| e.val.truthy());
    given(e.val, read, || mismatch(within, e.name, e.val, SAFE_BOOL))
}

/// Any number: fractions of doubles are cut off, decimals rounded half to even, values out of range are
/// clamped.
pub fn int(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    given(e.val, whole(e.val), || {
        mismatch(within, e.name, e.val, NUMBERS)
    })
}

/// Any number.
pub fn number(within: &str, e: Elem<'_>) -> Result<Option<f64>> {
    let read = e.val.is_number().then(|| e.val.to_f64()).flatten();
    given(e.val, read, || mismatch(within, e.name, e.val, NUMBERS))
}

/// A number as an i64, as [`int`] reads it.
pub fn whole(v: Val<'_>) -> Option<i64> {
    use bson::decimal::DecimalParts;
    let truncated = v.to_i64_truncated()?;
    match v.as_decimal().map(|d| d.parts()) {
        Some(DecimalParts::Finite {
            negative,
            coefficient,
            exponent: exponent @ -38..=-1,
        }) => {
            let unit = 10u128.pow(exponent.unsigned_abs());
            let (q, r) = (coefficient / unit, coefficient % unit);
            let up = r > unit / 2 || r == unit / 2 && unit > 1 && q % 2 == 1;
            let away = if up { 1 } else { 0 };
            Some(if negative {
                truncated.saturating_sub(away)
            } else {
                truncated.saturating_add(away)
            })
        }
        _ => Some(truncated),
    }
}

/// As [`int`], at least `least`.
pub fn int_from(within: &str, e: Elem<'_>, least: i64) -> Result<Option<i64>> {
    let v = int(within, e)?;
    if let Some(v) = v.filter(|v| *v < least) {
        bail!(
            BadValue,
            "BSON field '{}' value must be >= {least}, actual value '{v}'",
            e.name
        );
    }
    Ok(v)
}

/// Fails when a client wants the server's part of Queryable Encryption: what it sent must not be
/// taken for plain values.
pub fn no_encryption(_within: &str, e: Elem<'_>) -> Result<()> {
    if e.val.is_nullish() {
        return Ok(());
    }
    bail!(
        CommandNotSupported,
        "PandoDB does not support Queryable Encryption yet"
    )
}

/// A boolean or a number, false where it was not given.
pub fn flag(within: &str, e: Elem<'_>) -> Result<bool> {
    Ok(safe_bool(within, e)?.unwrap_or(false))
}

/// A boolean and nothing else, false where it was not given.
pub fn strict_flag(within: &str, e: Elem<'_>) -> Result<bool> {
    Ok(boolean(within, e)?.unwrap_or(false))
}

/// A number as [`int`] reads it, at least 0.
pub fn unsigned(within: &str, e: Elem<'_>) -> Result<Option<u64>> {
    Ok(int_from(within, e, 0)?.map(i64::unsigned_abs))
}

/// A document; an empty one counts as not given.
pub fn non_empty_doc<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    Ok(doc(within, e)?.filter(|d| !d.is_empty()))
}

/// The value as it is.
pub fn value<'a>(_within: &str, e: Elem<'a>) -> Result<Option<Val<'a>>> {
    Ok(Some(e.val))
}

/// The field as it is, with its name.
pub fn element<'a>(_within: &str, e: Elem<'a>) -> Result<Option<Elem<'a>>> {
    Ok(Some(e))
}

/// A UUID (binary of subtype 4).
pub fn uuid(within: &str, e: Elem<'_>) -> Result<Option<[u8; 16]>> {
    if e.val.is_nullish() {
        return Ok(None);
    }
    match e.val.as_binary() {
        Some((4, b)) => match <[u8; 16]>::try_from(b) {
            Ok(u) => Ok(Some(u)),
            Err(_) => Err(errors::Error::new(
                errors::Code::InvalidUUID,
                "uuid must be a 16-byte binary field with UUID (4) subtype",
            )
            .into()),
        },
        Some((subtype, _)) => Err(err!(
            TypeMismatch,
            "BSON field '{within}.{}' is the wrong binData type '{}', expected type 'UUID'",
            e.name,
            binary_name(subtype)
        )
        .into()),
        None => Err(mismatch(within, e.name, e.val, &["binData"])),
    }
}

fn binary_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "general",
        1 => "function",
        2 => "binary-deprecated",
        3 => "UUID-deprecated",
        4 => "UUID",
        5 => "MD5",
        6 => "encrypt",
        7 => "column",
        8 => "sensitive",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, doc};

    #[test]
    fn readers() {
        let d = doc! { "limit": "x", "skip": -1, "f": 1.9, "n": () , "b": 2 };
        let e = |n: &str| d.as_doc().iter().find(|e| e.name == n).unwrap();
        assert_eq!(
            int("find", e("limit")).unwrap_err().into_error().message,
            "BSON field 'find.limit' is the wrong type 'string', expected types '[long, int, decimal, double]'"
        );
        assert_eq!(
            doc("find", e("limit")).unwrap_err().into_error().message,
            "BSON field 'find.limit' is the wrong type 'string', expected type 'object'"
        );
        assert_eq!(
            int_from("find", e("skip"), 0)
                .unwrap_err()
                .into_error()
                .code
                .0,
            2
        );
        assert_eq!(int("find", e("f")).unwrap(), Some(1));
        assert_eq!(int("find", e("n")).unwrap(), None);
        assert_eq!(safe_bool("find", e("b")).unwrap(), Some(true));
        assert_eq!(boolean("find", e("b")).unwrap_err().into_error().code.0, 14);
        for (text, n) in [
            ("2.5", 2),
            ("3.5", 4),
            ("-0.5", 0),
            ("-1.5", -2),
            ("0.51", 1),
            ("1E-40", 0),
            ("1E+3", 1000),
        ] {
            let d: bson::Decimal128 = text.parse().unwrap();
            assert_eq!(whole(Value::from(d).as_val()), Some(n), "{text}");
        }
        let d = doc! { "u": Value::binary(4, &[7; 16]), "w": Value::binary(0, &[7; 16]) };
        let e = |n: &str| d.as_doc().iter().find(|e| e.name == n).unwrap();
        assert_eq!(uuid("x", e("u")).unwrap(), Some([7; 16]));
        assert_eq!(uuid("x", e("w")).unwrap_err().into_error().code.0, 14);
    }
}
