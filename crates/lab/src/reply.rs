//! Reading replies: is it ok, how many, and which documents. Checks the message's form through `wire`, never more.

use crate::fault::{Fault, Result};
use bson::{Doc, Val};

/// One reply in so many is looked at whole.
pub const SAMPLE_EVERY: u32 = 64;

/// The body of an OP_MSG reply that answers `request_id`.
#[inline]
pub fn body(message: &[u8], request_id: i32) -> Result<Doc<'_>> {
    let (header, parsed) = wire::parse(message)
        .map_err(|f| Fault::Target(format!("the reply is not a message: {f}")))?;
    if header.response_to != request_id {
        return Err(Fault::Target(format!(
            "a reply to request {} where one to {request_id} was due",
            header.response_to
        )));
    }
    match parsed {
        wire::Message::Msg(msg) => Doc::new(msg.body)
            .ok_or_else(|| Fault::Target("the reply's body is not a document".into())),
        _ => Err(Fault::Target("the reply is not an OP_MSG".into())),
    }
}

fn is_one(v: Option<Val<'_>>) -> bool {
    v.is_some_and(|v| v.to_f64() == Some(1.0) || v.as_bool() == Some(true))
}

/// Fails unless `ok` is 1 and there are neither write errors nor a write concern error.
#[inline]
pub fn ok(reply: Doc<'_>) -> Result<()> {
    if is_one(reply.get("ok"))
        && !reply.contains("writeErrors")
        && !reply.contains("writeConcernError")
    {
        return Ok(());
    }
    const UNAUTHORIZED: i64 = 13;
    if int(reply, "code") == Some(UNAUTHORIZED) {
        let why = reply.get("errmsg").and_then(Val::as_str);
        return Err(Fault::Target(format!(
            "not authorised ({}): a URL such as mongodb://user:password@host/?authSource=admin says who asks",
            why.unwrap_or("the target does not say why")
        )));
    }
    let said = format!("the target answered {}", brief(reply));
    const WRITE_CONFLICT: i64 = 112;
    Err(match int(reply, "code") {
        Some(WRITE_CONFLICT) => Fault::Conflict(said),
        _ => Fault::Target(said),
    })
}

/// A document cut to a line.
pub fn brief(d: Doc<'_>) -> String {
    let mut s = d.to_string();
    if s.len() > 300 {
        let mut end = 300;
        while !s.is_char_boundary(end) {
            end -= 1;
        }
        s.truncate(end);
        s.push('…');
    }
    s
}

/// An integer field, of any numeric type.
#[inline]
pub fn int(reply: Doc<'_>, name: &str) -> Option<i64> {
    reply.get(name)?.to_i64_exact()
}

/// Fails unless the integer field is `want`.
#[inline]
pub fn expect(reply: Doc<'_>, name: &str, want: i64) -> Result<()> {
    if int(reply, name) == Some(want) {
        return Ok(());
    }
    Err(Fault::Check(format!(
        "{name} should be {want} in {}",
        brief(reply)
    )))
}

/// The first batch of a cursor that must hold exactly `want` documents and be exhausted.
#[inline]
pub fn batch(reply: Doc<'_>, want: usize) -> Result<Doc<'_>> {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let docs = cursor.and_then(|c| c.get("firstBatch")?.as_array());
    let (Some(cursor), Some(docs)) = (cursor, docs) else {
        return Err(Fault::Check(format!("no cursor in {}", brief(reply))));
    };
    let got = docs.count();
    if got != want {
        return Err(Fault::Check(format!(
            "{got} documents where {want} were due: {}",
            brief(reply)
        )));
    }
    if int(cursor, "id") != Some(0) {
        return Err(Fault::Check(format!(
            "the cursor should be exhausted after {want} documents"
        )));
    }
    Ok(docs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    #[test]
    fn what_passes_and_what_does_not() {
        ok(doc! {"n": 1, "ok": 1.0}.as_doc()).unwrap();
        ok(doc! {"ok": true}.as_doc()).unwrap();
        let refused = |code: i32| ok(doc! {"ok": 0.0, "code": code}.as_doc()).unwrap_err();
        assert!(matches!(refused(11000), Fault::Target(_)));
        assert!(matches!(refused(112), Fault::Conflict(_)));
        assert!(ok(doc! {"writeErrors": array![doc!{}], "ok": 1.0}.as_doc()).is_err());
        expect(doc! {"n": 7i64}.as_doc(), "n", 7).unwrap();
        assert!(matches!(
            expect(doc! {"n": 6}.as_doc(), "n", 7),
            Err(Fault::Check(_))
        ));
    }

    #[test]
    fn batches_are_counted_and_must_be_whole() {
        let reply = |id: i64| doc! {"cursor": doc!{"firstBatch": array![doc!{"a": 1}], "id": id}, "ok": 1.0};
        assert_eq!(batch(reply(0).as_doc(), 1).unwrap().count(), 1);
        assert!(batch(reply(0).as_doc(), 2).is_err());
        assert!(batch(reply(5).as_doc(), 1).is_err());
        assert!(batch(doc! {"ok": 1.0}.as_doc(), 0).is_err());
    }

    #[test]
    fn a_reply_must_answer_its_request() {
        let mut out = Vec::new();
        let at = wire::begin_msg(&mut out, 9, 4, 0);
        wire::begin_body(&mut out);
        out.extend_from_slice(doc! {"ok": 1.0}.as_bytes());
        wire::end(&mut out, at);
        assert!(ok(body(&out, 4).unwrap()).is_ok());
        assert!(body(&out, 5).is_err());
        assert!(body(&out[..20], 4).is_err());
    }
}
