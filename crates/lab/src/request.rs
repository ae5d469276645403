//! Requests as prebuilt bytes: a template is a whole message, and a slot is where a value in it is patched in place.
//!
//! Invariant: a patch never changes a length, so the message stays well formed whatever is patched.

use crate::terms::WriteDurability;
use bson::{Doc, DocBuf, Val, Writer};

/// A whole OP_MSG, ready to send but for its slots and its request id.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    slots: Vec<std::ops::Range<usize>>,
}

/// Bytes of an OP_MSG before its first section's document: header, flags, section kind.
const BODY_AT: usize = wire::HEADER_BYTES + 5;

impl Template {
    /// A message with this body, and after it a sequence of `documents` under `name`.
    pub fn new(body: Doc<'_>, sequence: Option<(&str, &[DocBuf])>, flags: u32) -> Template {
        let mut bytes = Vec::with_capacity(body.len() + 64);
        let start = wire::begin_msg(&mut bytes, 0, 0, flags);
        wire::begin_body(&mut bytes);
        bytes.extend_from_slice(body.as_bytes());
        if let Some((name, documents)) = sequence {
            let at = wire::begin_sequence(&mut bytes, name);
            for d in documents {
                bytes.extend_from_slice(d.as_bytes());
            }
            wire::end_sequence(&mut bytes, at);
        }
        wire::end(&mut bytes, start);
        Template {
            bytes,
            slots: Vec::new(),
        }
    }

    /// Adds a slot for the value at `path` inside the body (names of documents, indexes of arrays).
    ///
    /// # Panics
    /// When there is no such value: templates are built from constants.
    pub fn slot(self, path: &[&str]) -> Template {
        let range = locate(&self.bytes, BODY_AT, path);
        self.with_slot(range, path)
    }

    /// The same inside the first document of the sequence, which `sequence_at` finds.
    pub fn sequence_slot(self, path: &[&str]) -> Template {
        let range = locate(&self.bytes, self.sequence_at(), path);
        self.with_slot(range, path)
    }

    fn with_slot(mut self, range: Option<std::ops::Range<usize>>, path: &[&str]) -> Template {
        match range {
            Some(r) => self.slots.push(r),
            None => panic!("no {path:?} in the template"),
        }
        self
    }

    /// Where the sequence's first document starts.
    pub fn sequence_at(&self) -> usize {
        let body = Doc::new(&self.bytes[BODY_AT..]).map_or(0, Doc::len);
        // Kind byte, size, name with its NUL.
        let name = BODY_AT + body + 5;
        let len = self.bytes[name..].iter().position(|&b| b == 0).unwrap_or(0);
        name + len + 1
    }

    /// Appends the message to `out` with `values` (a value's bytes, without tag and name) in the slots.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, values: &[&[u8]]) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let message = &mut out[start..];
        for (slot, value) in self.slots.iter().zip(values) {
            debug_assert_eq!(slot.len(), value.len());
            message[slot.clone()].copy_from_slice(value);
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The range of the value at `path` in the document at `at`.
pub fn locate(bytes: &[u8], at: usize, path: &[&str]) -> Option<std::ops::Range<usize>> {
    let (last, parents) = path.split_last()?;
    let mut doc = Doc::new(bytes.get(at..)?)?;
    for name in parents {
        doc = doc.get(name)?.as_container()?;
    }
    let value = doc.get(last)?;
    let from = value.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
    Some(from..from + value.bytes.len())
}

/// Numbers a request: a template's id is 0.
#[inline]
pub fn set_request_id(message: &mut [u8], id: i32) {
    if let Some(slot) = message.get_mut(4..8) {
        slot.copy_from_slice(&id.to_le_bytes());
    }
}

/// The start of an `insert` message: everything but the documents.
#[derive(Clone, Debug)]
pub struct InsertHead {
    prefix: Vec<u8>,
    sequence_at: usize,
}

impl InsertHead {
    pub fn new(db: &str, collection: &str, durability: WriteDurability) -> InsertHead {
        let mut body = Writer::new();
        body.str("insert", collection).bool("ordered", true);
        durability.write_concern(&mut body);
        body.str("$db", db);
        let mut prefix = Vec::new();
        wire::begin_msg(&mut prefix, 0, 0, flags(durability));
        wire::begin_body(&mut prefix);
        prefix.extend_from_slice(body.finish().as_bytes());
        let sequence_at = wire::begin_sequence(&mut prefix, "documents");
        InsertHead {
            prefix,
            sequence_at,
        }
    }

    /// Appends the message; `documents` appends the documents.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, documents: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&self.prefix);
        documents(out);
        wire::end_sequence(out, start + self.sequence_at);
        wire::end(out, start);
    }
}

/// An unacknowledged write says that no reply is wanted.
pub fn flags(durability: WriteDurability) -> u32 {
    if durability.acknowledged() {
        0
    } else {
        wire::MORE_TO_COME
    }
}

/// An `update` of one document by `_id` with one `$set` or other update document; slots: the `_id` first, then `paths`
/// inside the update statement.
pub fn update_by_id(
    db: &str,
    collection: &str,
    durability: WriteDurability,
    id: Val<'_>,
    update: Doc<'_>,
    paths: &[&[&str]],
) -> Template {
    let mut body = Writer::new();
    body.str("update", collection).bool("ordered", true);
    durability.write_concern(&mut body);
    body.str("$db", db);
    let mut statement = Writer::new();
    statement
        .open_doc("q")
        .val("_id", id)
        .close()
        .doc("u", update);
    let t = Template::new(
        body.finish().as_doc(),
        Some(("updates", &[statement.finish()])),
        flags(durability),
    );
    paths
        .iter()
        .fold(t.sequence_slot(&["q", "_id"]), |t, path| {
            t.sequence_slot(path)
        })
}

/// `find` of one document by `_id`, the `_id` in slot 0.
pub fn find_by_id(
    db: &str,
    collection: &str,
    id: Val<'_>,
    projection: Option<Doc<'_>>,
) -> Template {
    let mut body = Writer::new();
    body.str("find", collection)
        .open_doc("filter")
        .val("_id", id)
        .close();
    if let Some(p) = projection {
        body.doc("projection", p);
    }
    body.i32("limit", 1)
        .bool("singleBatch", true)
        .str("$db", db);
    Template::new(body.finish().as_doc(), None, 0).slot(&["filter", "_id"])
}

/// A command with nothing to patch.
pub fn command(db: &str, body: Doc<'_>) -> Template {
    let mut w = Writer::new();
    w.extend(body).str("$db", db);
    Template::new(w.finish().as_doc(), None, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, doc};

    fn parsed(message: &[u8]) -> (DocBuf, Vec<DocBuf>, u32) {
        let (_, wire::Message::Msg(m)) = wire::parse(message).unwrap() else {
            panic!("not an OP_MSG")
        };
        let mut documents = Vec::new();
        for s in &m.sequences {
            let mut rest = s.documents;
            while let Some(d) = Doc::new(rest) {
                documents.push(d.to_buf());
                rest = &rest[d.len()..];
            }
        }
        (Doc::new(m.body).unwrap().to_buf(), documents, m.flags)
    }

    #[test]
    fn slots_are_patched_in_place() {
        let t = find_by_id("d", "c", Value::from(0i64).as_val(), None);
        let mut out = b"before".to_vec();
        t.write(&mut out, &[&77i64.to_le_bytes()]);
        let (body, _, _) = parsed(&out[6..]);
        let filter = body.get("filter").unwrap().as_doc().unwrap();
        assert_eq!(filter.get("_id").unwrap().as_i64(), Some(77));
        assert_eq!(body.get("$db").unwrap().as_str(), Some("d"));

        let t = update_by_id(
            "d",
            "c",
            WriteDurability::Journaled,
            Value::from("aa").as_val(),
            doc! {"$set": doc!{"f": 1}}.as_doc(),
            &[&["u", "$set", "f"]],
        );
        let mut out = Vec::new();
        let key = Value::from("zz");
        t.write(&mut out, &[key.as_val().bytes, &9i32.to_le_bytes()]);
        set_request_id(&mut out, 5);
        let (body, documents, _) = parsed(&out);
        assert_eq!(
            body.get("writeConcern").unwrap().to_string(),
            doc! {"w": 1, "j": true}.as_doc().to_string()
        );
        assert_eq!(
            documents,
            [doc! {"q": doc!{"_id": "zz"}, "u": doc!{"$set": doc!{"f": 9}}}]
        );
        assert_eq!(wire::Header::read(&out).unwrap().request_id, 5);
    }

    #[test]
    fn inserts_carry_documents_and_their_durability() {
        let head = InsertHead::new("d", "c", WriteDurability::Unack);
        let mut out = Vec::new();
        head.write(&mut out, |o| {
            o.extend_from_slice(doc! {"_id": 1}.as_bytes());
            o.extend_from_slice(doc! {"_id": 2}.as_bytes());
        });
        let (body, documents, flags) = parsed(&out);
        assert_eq!(body.get("insert").unwrap().as_str(), Some("c"));
        assert_eq!(documents.len(), 2);
        assert_eq!(flags, wire::MORE_TO_COME);
    }

    #[test]
    #[should_panic(expected = "no [\"nowhere\"]")]
    fn a_slot_must_exist() {
        let _ = command("d", doc! {"ping": 1}.as_doc()).slot(&["nowhere"]);
    }
}
