//! `$toHashedIndexKey`: the number under which a hashed index keeps a value.

use super::node::{Call, Computed, EvalCtx, own};
use super::table::Op;
use bson::{Doc, Val, tag};
use errors::Result;

pub(super) const OPS: &[Op] = &[Op::args("$toHashedIndexKey", 1, 1, hashed_key)];

fn hashed_key<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    own(hash64(c.arg(0, ctx)?.or_null()))
}

/// The first 64 bits of an MD5 over types and contents, in which equal numbers of different types
/// are one.
pub fn hash64(v: Val<'_>) -> i64 {
    let mut h = md5::Context::new();
    // The seed.
    h.consume(0i32.to_le_bytes());
    add(&mut h, v, None);
    let digest = h.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(first)
}

fn canonical(t: u8) -> i32 {
    match t {
        tag::MIN_KEY => -1,
        tag::UNDEFINED => 0,
        t => i32::from(tag::rank(t)),
    }
}

fn add(h: &mut md5::Context, v: Val<'_>, name: Option<&str>) {
    h.consume(canonical(v.tag).to_le_bytes());
    if let Some(n) = name {
        h.consume(n.as_bytes());
        h.consume([0]);
    }
    let inner = match v.tag {
        tag::DOCUMENT | tag::ARRAY => Doc::new(v.bytes),
        tag::CODE_WITH_SCOPE => v.as_code_with_scope().map(|(code, scope)| {
            h.consume(code);
            scope
        }),
        t if tag::is_number(t) => {
            h.consume(v.to_i64_truncated().unwrap_or(0).to_le_bytes());
            return;
        }
        _ => {
            h.consume(v.bytes);
            return;
        }
    };
    for e in inner.unwrap_or(Doc::EMPTY) {
        add(h, e.val, Some(e.name));
    }
    // The end of a document counts as an element of type 0.
    h.consume(0i32.to_le_bytes());
}
