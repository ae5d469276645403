//! The check at the door: after [`validate`] says yes, every length, terminator, type byte and UTF-8 string inside is sound.

use crate::view::size_of_value;
use crate::{Doc, MAX_DEPTH, tag};

/// The fault of bytes that claim to be BSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The length, a terminator or an element does not fit.
    Structure(&'static str),
    UnknownType(u8),
    Utf8,
    TooDeep,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Structure(s) => f.write_str(s),
            Malformed::UnknownType(t) => write!(f, "Unrecognized BSON type {t}"),
            Malformed::Utf8 => f.write_str("text is not valid UTF-8"),
            Malformed::TooDeep => write!(
                f,
                "BSONObj exceeded maximum nested object depth: {MAX_DEPTH}"
            ),
        }
    }
}

/// Checks the document at the start of `bytes` in full (structure, UTF-8, depth at most [`MAX_DEPTH`] levels below the
/// first) and gives a view of it.
pub fn validate(bytes: &[u8]) -> Result<Doc<'_>, Malformed> {
    validate_with_depth(bytes, MAX_DEPTH)
}

pub fn validate_with_depth(bytes: &[u8], depth: usize) -> Result<Doc<'_>, Malformed> {
    let doc = Doc::new(bytes).ok_or(Malformed::Structure("invalid BSON length or terminator"))?;
    check(doc, depth)?;
    Ok(doc)
}

/// Whether documents and arrays nest more than `levels` deep inside `doc`. Looks only where there is room for it.
pub fn nests_deeper(doc: Doc<'_>, levels: usize) -> bool {
    /// Of a level: type, end of the name, length, end.
    const LEAST_BYTES: usize = 7;
    if doc.len() < 5 + LEAST_BYTES * (levels + 1) {
        return false;
    }
    let mut inner = doc.values().filter_map(|v| v.as_container());
    inner.any(|d| levels == 0 || nests_deeper(d, levels - 1))
}

fn check(doc: Doc<'_>, depth: usize) -> Result<(), Malformed> {
    let mut rest = doc.as_bytes().get(4..doc.len() - 1).unwrap_or(&[]);
    while let Some((&t, after)) = rest.split_first() {
        if t == 0 {
            return Err(Malformed::Structure(
                "unexpected terminator inside a document",
            ));
        }
        let (mut end, mut bits) = (0, 0u8);
        loop {
            match after.get(end) {
                Some(0) => break,
                Some(&b) => bits |= b,
                None => return Err(Malformed::Structure("field name without terminator")),
            }
            end += 1;
        }
        let (name, body) = (&after[..end], &after[end + 1..]);
        if bits >= 0x80 {
            std::str::from_utf8(name).map_err(|_| Malformed::Utf8)?;
        }
        let Some(len) = size_of_value(t, body) else {
            return Err(match tag::name(t) {
                "missing" => Malformed::UnknownType(t),
                _ => Malformed::Structure("value does not fit its document"),
            });
        };
        let v = &body[..len];
        match t {
            tag::STRING | tag::CODE | tag::SYMBOL => check_string(v)?,
            tag::DOCUMENT | tag::ARRAY => {
                if depth == 0 {
                    return Err(Malformed::TooDeep);
                }
                check(
                    Doc::new(v)
                        .ok_or(Malformed::Structure("embedded document without terminator"))?,
                    depth - 1,
                )?;
            }
            tag::BOOL if v[0] > 1 => {
                return Err(Malformed::Structure("boolean is neither 0 nor 1"));
            }
            tag::REGEX => {
                std::str::from_utf8(v).map_err(|_| Malformed::Utf8)?;
            }
            tag::DB_POINTER => check_string(&v[..len - 12])?,
            tag::CODE_WITH_SCOPE => {
                let l = v
                    .get(4..8)
                    .map_or(0, |b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let l =
                    usize::try_from(l).map_err(|_| Malformed::Structure("bad length of code"))?;
                check_string(
                    v.get(4..8 + l)
                        .ok_or(Malformed::Structure("code does not fit"))?,
                )?;
                let scope =
                    Doc::new(&v[8 + l..]).ok_or(Malformed::Structure("scope does not fit"))?;
                if depth == 0 {
                    return Err(Malformed::TooDeep);
                }
                if 8 + l + scope.len() != len {
                    return Err(Malformed::Structure("code with scope has trailing bytes"));
                }
                check(scope, depth - 1)?;
            }
            _ => {}
        }
        rest = &body[len..];
    }
    Ok(())
}

/// `s` is length, content, NUL.
fn check_string(s: &[u8]) -> Result<(), Malformed> {
    match s.get(4..).and_then(|c| c.split_last()) {
        Some((0, content)) => std::str::from_utf8(content)
            .map(|_| ())
            .map_err(|_| Malformed::Utf8),
        _ => Err(Malformed::Structure("string without terminator")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DocBuf, doc};

    #[test]
    fn how_deep() {
        let nested = |depth: usize| (0..depth).fold(DocBuf::new(), |d, _| doc! { "": d });
        for depth in [0, 1, 2, 178, 179, 180] {
            let d = nested(depth);
            let d = d.as_doc();
            assert!(!nests_deeper(d, depth));
            assert!(depth == 0 || nests_deeper(d, depth - 1));
        }
        let beside = doc! { "a": 1, "b": "x".repeat(2000).as_str(), "c": nested(4) };
        assert!(nests_deeper(beside.as_doc(), 4) && !nests_deeper(beside.as_doc(), 5));
    }
}
