//! Write concerns over several shards: what each shard says of its part is told to the client as one.
//!
//! Invariant: a write that was done and was not acknowledged by as many members as the client has
//! asked for is told as such, whichever shard it was on.

use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::{Code, Error};

const FIELD: &str = "writeConcernError";
/// MongoDB's words.
const SEVERAL: &str = "Multiple errors reported : ";
const AND: &str = " :: and :: ";

/// What routers and movers write with themselves, whatever the cluster's default is.
pub fn majority() -> DocBuf {
    doc! {"w": "majority"}
}

/// The reply of a shard whose `writeConcernError`, if it has one, names the shard.
pub fn at_shard(reply: DocBuf, shard: &str) -> DocBuf {
    if !reply.as_doc().contains(FIELD) {
        return reply;
    }
    let mut w = Writer::with_capacity(reply.as_bytes().len() + shard.len() + 8);
    for e in reply.as_doc() {
        match e.val.as_doc().filter(|_| e.name == FIELD) {
            None => w.val(e.name, e.val),
            Some(error) => {
                let said = format!("{} at {shard}", said(error));
                w.doc(FIELD, saying(error, &said).as_doc())
            }
        };
    }
    w.finish()
}

fn said(error: Doc<'_>) -> &str {
    error.get("errmsg").and_then(Val::as_str).unwrap_or("")
}

/// The same error in other words.
fn saying(error: Doc<'_>, words: &str) -> DocBuf {
    let mut w = Writer::new();
    for e in error {
        match e.name {
            "errmsg" => w.str("errmsg", words),
            name => w.val(name, e.val),
        };
    }
    w.finish()
}

/// What the shards' replies, or several commands', say of a write concern, as one: of several errors
/// the first one's code and details.
pub fn merged(replies: &[DocBuf]) -> Option<DocBuf> {
    let mut told = replies.iter().filter_map(|r| r.get(FIELD)?.as_doc());
    let first = told.next()?;
    let mut words: Vec<&str> = Vec::new();
    for error in std::iter::once(first).chain(told) {
        // Of several parts some may be of several shards.
        let said = said(error);
        for one in said.strip_prefix(SEVERAL).unwrap_or(said).split(AND) {
            if !words.contains(&one) {
                words.push(one);
            }
        }
    }
    match words.as_slice() {
        [one] => Some(saying(first, one)),
        _ => Some(saying(first, &format!("{SEVERAL}{}", words.join(AND)))),
    }
}

/// Adds what `replies` say of a write concern to the client's reply.
pub fn append(w: &mut Writer, replies: &[DocBuf]) {
    if let Some(error) = merged(replies) {
        w.doc(FIELD, error.as_doc());
    }
}

/// Fails where a reply says that what the router has done for itself was not acknowledged. Where the
/// primary was deposed it is not known what became of it.
pub fn acknowledged(reply: DocBuf) -> Outcome<DocBuf> {
    let Some(error) = reply.get(FIELD).and_then(Val::as_doc) else {
        return Ok(reply);
    };
    let code = error.get("code").and_then(Val::to_i64_exact);
    let code = code.and_then(|n| i32::try_from(n).ok()).unwrap_or(8);
    Err(match Code(code) {
        Code::PrimarySteppedDown => Failure::Lost(said(error).into()),
        _ => Error::coded(code, said(error)).into(),
    })
}

/// Whether a majority may not be enough for a write concern.
pub fn more_than_majority(concern: Doc<'_>) -> bool {
    match concern.get("w").map(|w| (w.to_i64_exact(), w.as_str())) {
        None => false,
        Some((Some(n), _)) => n > 1,
        Some((_, Some(name))) => name != "majority",
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn failed(says: &str) -> DocBuf {
        let error = doc! {"code": 64, "codeName": "WriteConcernFailed", "errmsg": says};
        doc! {"n": 1, "writeConcernError": error, "ok": 1.0}
    }

    #[test]
    fn errors_of_several_shards_are_one() {
        assert_eq!(merged(&[doc! {"ok": 1.0}]), None);
        let one = at_shard(failed("waiting"), "s0");
        let error = doc! {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting at s0"};
        assert_eq!(
            merged(&[doc! {"ok": 1.0}, one.clone(), one.clone()]),
            Some(error)
        );
        let both = merged(&[one, at_shard(failed("waiting"), "s1")]).unwrap();
        let says = "Multiple errors reported : waiting at s0 :: and :: waiting at s1";
        assert_eq!(both.get("errmsg").and_then(Val::as_str), Some(says));
        assert_eq!(both.get("code").and_then(Val::to_i64_exact), Some(64));
        let nested = doc! {"writeConcernError": both.clone()};
        assert_eq!(merged(&[nested.clone(), nested]), Some(both));
        let plain = doc! {"n": 1, "ok": 1.0};
        assert_eq!(at_shard(plain.clone(), "s0"), plain);
    }
}
