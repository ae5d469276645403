//! Strings that are bytes, for replies and messages: a client's driver decodes every string as
//! UTF-8, and throws where one is not.

use crate::{Doc, Val, Value, Writer, tag};
use std::fmt::Write;

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Which strings are written as their bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Strings {
    /// Those that are not UTF-8.
    Invalid,
    /// All: they are keys of a collation.
    All,
}

impl Strings {
    fn concern(self, v: Val<'_>) -> bool {
        match v.tag {
            tag::STRING | tag::SYMBOL | tag::CODE => {
                let bytes = v.str_bytes().unwrap_or(&[]);
                self == Strings::All && v.tag == tag::STRING || std::str::from_utf8(bytes).is_err()
            }
            tag::DOCUMENT | tag::ARRAY => {
                let mut inner = v.as_container().into_iter().flat_map(Doc::values);
                inner.any(|v| self.concern(v))
            }
            _ => false,
        }
    }
}

/// The value with strings as hexadecimal digits behind `prefix`, and whether there was one.
pub fn in_hex(v: Val<'_>, strings: Strings, prefix: &str) -> (Value, bool) {
    if !strings.concern(v) {
        return (v.to_value(), false);
    }
    let value = match v.tag {
        tag::DOCUMENT => {
            let mut w = Writer::new();
            for e in v.as_container().unwrap_or(Doc::EMPTY) {
                w.val(e.name, in_hex(e.val, strings, prefix).0.as_val());
            }
            Value::from(w.finish())
        }
        tag::ARRAY => {
            let mut w = Writer::new_array();
            for v in v.as_container().unwrap_or(Doc::EMPTY).values() {
                w.push(in_hex(v, strings, prefix).0.as_val());
            }
            w.finish_array()
        }
        _ => Value::from(format!("{prefix}{}", hex(v.str_bytes().unwrap_or(&[])))),
    };
    (value, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_written_as_their_bytes() {
        let bad = Value::str_from_bytes(&[0xff, b'a']);
        let good = Value::from("é");
        let both = crate::array![1, crate::doc! { "x": bad.clone() }, good.clone()];
        let show = |v: &Value, s| in_hex(v.as_val(), s, "0x").0.as_val().to_string();
        assert_eq!(show(&bad, Strings::Invalid), r#""0xff61""#);
        assert_eq!(show(&good, Strings::Invalid), r#""é""#);
        assert_eq!(show(&good, Strings::All), r#""0xc3a9""#);
        assert_eq!(
            show(&both, Strings::Invalid),
            r#"[1, {"x": "0xff61"}, "é"]"#
        );
        assert_eq!(
            show(&both, Strings::All),
            r#"[1, {"x": "0xff61"}, "0xc3a9"]"#
        );
        assert!(!in_hex(good.as_val(), Strings::Invalid, "").1);
    }
}
