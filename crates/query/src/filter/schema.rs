//! `$jsonSchema`.

use crate::expr::ParseEnv;
use bson::{Doc, DocBuf};
use errors::{Result, err};

/// A parsed JSON schema.
#[derive(Clone, Debug)]
pub struct Schema {
    source: DocBuf,
}

impl Schema {
    pub fn parse(_doc: Doc<'_>, _env: &ParseEnv) -> Result<Schema> {
        Err(err!(NotImplemented, "$jsonSchema is not implemented yet"))
    }

    pub fn matches(&self, _doc: Doc<'_>) -> bool {
        false
    }

    pub fn source(&self) -> &DocBuf {
        &self.source
    }
}
