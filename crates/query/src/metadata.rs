//! What is known of a document beside its fields, for `$meta`: by whom it was found and how well.
//!
//! It is made where documents are read, and goes with them through the stages that pass documents on
//! one by one; a stage that makes one document of several drops it.

use bson::{Doc, Value, Writer};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// `$meta: "textScore"`
    pub text_score: Option<f64>,
}

impl Metadata {
    pub const NONE: &'static Metadata = &Metadata { text_score: None };

    pub fn is_none(&self) -> bool {
        self == Metadata::NONE
    }

    /// What `$meta` of that name gives.
    pub fn get(&self, name: &str) -> Option<Value> {
        match name {
            "textScore" => self.text_score.map(Value::from),
            _ => None,
        }
    }

    /// A document and its metadata as one, for who keeps it.
    pub(crate) fn pack(&self, doc: Doc<'_>) -> Vec<u8> {
        let mut out = doc.as_bytes().to_vec();
        if let Some(score) = self.text_score {
            let mut w = Writer::new();
            w.f64("textScore", score);
            out.extend_from_slice(w.finish().as_doc().as_bytes());
        }
        out
    }

    /// Takes apart what [`Metadata::pack`] made: `bytes` is the document then.
    pub(crate) fn unpack(bytes: &mut Vec<u8>) -> Metadata {
        let Some(len) = bytes.first_chunk::<4>() else {
            return Metadata::default();
        };
        let len = usize::try_from(i32::from_le_bytes(*len)).unwrap_or(0);
        if len >= bytes.len() {
            return Metadata::default();
        }
        let more = bytes.split_off(len);
        let score = Doc::new(&more).and_then(|d| d.get("textScore")?.to_f64());
        Metadata { text_score: score }
    }
}

/// Whether a specification asks for `$meta` of that name anywhere.
pub fn asks_for(v: bson::Val<'_>, name: &str) -> bool {
    v.as_container().is_some_and(|d| {
        d.iter()
            .any(|e| e.name == "$meta" && e.val.as_str() == Some(name) || asks_for(e.val, name))
    })
}
