//! A document's metadata beside its fields, for `$meta`: what found it and how well.
//!
//! It is made where documents are read, or by a stage that scores them, and goes with them through the
//! stages that pass documents on one by one; a stage that makes one document of several drops it.

use bson::{Doc, DocBuf, Value, Writer};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// `$meta: "textScore"`
    pub text_score: Option<f64>,
    /// `$meta: "score"`, where a stage has given one
    pub score: Option<f64>,
    /// `$meta: "scoreDetails"`
    pub score_details: Option<Box<DocBuf>>,
    /// `$meta: "indexKey"`: the fields in the index that found it
    pub index_key: Option<Box<DocBuf>>,
    /// `$meta: "searchScore"`
    pub search_score: Option<f64>,
    /// `$meta: "vectorSearchScore"`
    pub vector_score: Option<f64>,
    /// `$meta: "searchSequenceToken"`: where the document stands among all that a search finds
    pub sequence_token: Option<Box<str>>,
    /// `$meta: "searchHighlights"`
    pub highlights: Option<Box<Value>>,
}

/// Which of it the documents at a place of a pipeline have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    pub text_score: bool,
    pub score: bool,
    pub score_details: bool,
    /// `$search` or `$vectorSearch` has found them.
    pub search_score: bool,
}

impl Available {
    /// Where `$text` has found the documents, or not.
    pub fn of_text(found: bool) -> Available {
        Available {
            text_score: found,
            ..Available::default()
        }
    }
}

impl Metadata {
    pub const NONE: &'static Metadata = &Metadata {
        text_score: None,
        score: None,
        score_details: None,
        index_key: None,
        search_score: None,
        vector_score: None,
        sequence_token: None,
        highlights: None,
    };

    pub fn is_none(&self) -> bool {
        self == Metadata::NONE
    }

    /// `$meta: "score"`: what the last stage that scores has given, else how well the document was
    /// found.
    pub fn any_score(&self) -> Option<f64> {
        let found = self.text_score.or(self.search_score);
        self.score.or(found).or(self.vector_score)
    }

    /// What `$meta` of that name gives.
    pub fn get(&self, name: &str) -> Option<Value> {
        let document = |d: &Option<Box<DocBuf>>| d.as_ref().map(|d| d.as_doc().as_val().to_value());
        match name {
            "textScore" => self.text_score.map(Value::from),
            "score" => self.any_score().map(Value::from),
            "scoreDetails" => document(&self.score_details),
            "indexKey" => document(&self.index_key),
            "searchScore" => self.search_score.map(Value::from),
            "vectorSearchScore" => self.vector_score.map(Value::from),
            "searchSequenceToken" => self.sequence_token.as_deref().map(Value::from),
            "searchHighlights" => self.highlights.as_deref().cloned(),
            _ => None,
        }
    }

    /// A document and its metadata as one, to be kept.
    pub(crate) fn pack(&self, doc: Doc<'_>) -> Vec<u8> {
        let mut out = doc.as_bytes().to_vec();
        if !self.is_none() {
            let mut w = Writer::new();
            if let Some(score) = self.text_score {
                w.f64("textScore", score);
            }
            if let Some(score) = self.score {
                w.f64("score", score);
            }
            if let Some(details) = &self.score_details {
                w.doc("scoreDetails", details.as_doc());
            }
            if let Some(key) = &self.index_key {
                w.doc("indexKey", key.as_doc());
            }
            if let Some(score) = self.search_score {
                w.f64("searchScore", score);
            }
            if let Some(score) = self.vector_score {
                w.f64("vectorSearchScore", score);
            }
            if let Some(token) = &self.sequence_token {
                w.str("searchSequenceToken", token);
            }
            if let Some(highlights) = &self.highlights {
                w.val("searchHighlights", highlights.as_val());
            }
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
        let known = Doc::new(&more).unwrap_or(Doc::EMPTY);
        let number = |name: &str| known.get(name).and_then(|v| v.to_f64());
        let document = |name: &str| {
            let d = known.get(name).and_then(|v| v.as_doc());
            d.map(|d| Box::new(d.to_buf()))
        };
        Metadata {
            text_score: number("textScore"),
            score: number("score"),
            score_details: document("scoreDetails"),
            index_key: document("indexKey"),
            search_score: number("searchScore"),
            vector_score: number("vectorSearchScore"),
            sequence_token: known
                .get("searchSequenceToken")
                .and_then(|v| v.as_str())
                .map(Box::from),
            highlights: (known.get("searchHighlights")).map(|v| Box::new(v.to_value())),
        }
    }
}

/// Whether a specification asks for `$meta` of that name anywhere.
pub fn asks_for(v: bson::Val<'_>, name: &str) -> bool {
    v.as_container().is_some_and(|d| {
        d.iter()
            .any(|e| e.name == "$meta" && e.val.as_str() == Some(name) || asks_for(e.val, name))
    })
}
