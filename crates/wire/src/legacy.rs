//! OP_QUERY and OP_REPLY: how the handshake of most drivers and every command of old shells and drivers still travel.
//!
//! A command is an OP_QUERY on `<database>.$cmd`, possibly wrapped as `{$query: {…}, $readPreference: {…}}`. Queries on
//! other collections are gone since MongoDB 6.0.

use errors::err;

use crate::read::{Documents, Reader};
use crate::{MessageError, begin, op};

/// Flags of an OP_REPLY.
pub mod reply_flags {
    /// The one document is `{$err: …, code: …}`.
    pub const QUERY_FAILURE: i32 = 1 << 1;
    /// Set in every reply by servers that know awaitData.
    pub const AWAIT_CAPABLE: i32 = 1 << 3;
}

/// An OP_QUERY.
#[derive(Debug)]
pub struct OpQuery<'a> {
    pub flags: i32,
    pub ns: &'a str,
    pub skip: i32,
    pub limit: i32,
    /// BSON bytes, framed but not validated.
    pub query: &'a [u8],
    pub projection: Option<&'a [u8]>,
}

impl<'a> OpQuery<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<OpQuery<'a>, MessageError> {
        // MongoDB closes on a malformed legacy header; only a malformed document is worth an answer.
        let cut = || MessageError::close(err!(ProtocolError, "OP_QUERY is cut short"));
        let mut r = Reader::new(payload);
        let flags = r.i32().ok_or_else(cut)?;
        let ns = r.cstr().ok_or_else(cut)?;
        let skip = r.i32().ok_or_else(cut)?;
        let limit = r.i32().ok_or_else(cut)?;
        let query = r.doc().map_err(MessageError::answer)?;
        let projection = if r.is_empty() {
            None
        } else {
            Some(r.doc().map_err(MessageError::answer)?)
        };
        Ok(OpQuery {
            flags,
            ns,
            skip,
            limit,
            query,
            projection,
        })
    }

    /// The database, when this is a command rather than a query on a collection.
    pub fn command_db(&self) -> Option<&'a str> {
        self.ns.strip_suffix(".$cmd")
    }

    /// The command itself, out of the `{$query: {…}}` that some drivers wrap it in.
    pub fn command(&self) -> Result<&'a [u8], MessageError> {
        let mut r = Reader::new(self.query);
        let wrapped =
            r.i32().is_some() && r.u8() == Some(3) && matches!(r.cstr(), Some("$query" | "query"));
        if wrapped {
            r.doc().map_err(MessageError::answer)
        } else {
            Ok(self.query)
        }
    }
}

/// Appends a whole OP_QUERY.
pub fn query(out: &mut Vec<u8>, request_id: i32, ns: &str, limit: i32, document: &[u8]) {
    let start = begin(out, request_id, 0, op::QUERY);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(ns.as_bytes());
    out.push(0);
    out.extend_from_slice(&0i32.to_le_bytes());
    out.extend_from_slice(&limit.to_le_bytes());
    out.extend_from_slice(document);
    crate::end(out, start);
}

/// An OP_REPLY.
#[derive(Debug)]
pub struct OpReply<'a> {
    pub flags: i32,
    pub cursor_id: i64,
    /// The documents, one after the other, each framed but not validated.
    pub documents: &'a [u8],
}

impl<'a> OpReply<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<OpReply<'a>, MessageError> {
        let cut = || MessageError::close(err!(ProtocolError, "OP_REPLY is cut short"));
        let mut r = Reader::new(payload);
        let flags = r.i32().ok_or_else(cut)?;
        let cursor_id = r.i64().ok_or_else(cut)?;
        r.i32().ok_or_else(cut)?;
        let count = r.i32().ok_or_else(cut)?;
        let documents = r.rest();
        let mut found = 0;
        while !r.is_empty() {
            r.doc().map_err(MessageError::close)?;
            found += 1;
        }
        if found != count {
            return Err(MessageError::close(err!(
                ProtocolError,
                "OP_REPLY has {found} documents and says {count}"
            )));
        }
        Ok(OpReply {
            flags,
            cursor_id,
            documents,
        })
    }

    pub fn iter(&self) -> Documents<'a> {
        Documents(self.documents)
    }
}

/// Appends the start of an OP_REPLY that holds one document, which the caller appends next; close it with [`crate::end`].
pub fn begin_reply(out: &mut Vec<u8>, request_id: i32, response_to: i32, flags: i32) -> usize {
    let start = begin(out, request_id, response_to, op::REPLY);
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&0i64.to_le_bytes());
    out.extend_from_slice(&0i32.to_le_bytes());
    out.extend_from_slice(&1i32.to_le_bytes());
    start
}
