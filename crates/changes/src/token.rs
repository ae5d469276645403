//! Resume tokens: where in the log a stream stands, in a form that clients keep and give back.
//!
//! ```text
//! token = {_data: HEX}
//! bytes = 0x82 | timestamp u64 BE | kind u8 | (position u32 BE | fragment u32 BE | collection UUID [16])? | 0x04
//! kind  = 0 high-water mark | 1 event, with what is in brackets; the highest fragment stands for the invalidate behind it
//! ```
//! As with MongoDB's tokens, what stands behind the end is passed over, and the end may be missing.
//!
//! Invariant: tokens sort as their events come, as bytes and as text. A token names no file and no offset, so it outlives both.

use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::{Error, Result, bail};
use std::cmp::Ordering;

const FORM: u8 = 0x82;
const MARK: u8 = 0;
const EVENT: u8 = 1;
const END: u8 = 0x04;

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenPlace {
    /// Before everything of that timestamp.
    Mark,
    /// At the change of this position in its entry, and this fragment of its event.
    Event { at: u32, fragment: u32 },
    /// At the invalidate that follows the change of this position.
    Invalidate { at: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// seconds << 32 | increment
    pub ts: u64,
    pub place: TokenPlace,
    pub uuid: [u8; 16],
}

impl ResumeToken {
    /// The mark before everything of a timestamp.
    pub fn mark(ts: u64) -> ResumeToken {
        ResumeToken {
            ts,
            place: TokenPlace::Mark,
            uuid: [0; 16],
        }
    }

    /// The same change, and a fragment of its event.
    pub fn fragment(&self, fragment: u32) -> ResumeToken {
        match self.place {
            TokenPlace::Event { at, .. } => ResumeToken {
                place: TokenPlace::Event { at, fragment },
                ..*self
            },
            _ => *self,
        }
    }

    /// Behind all fragments of the event of the same change, but not behind its invalidate.
    pub fn last_of(&self) -> ResumeToken {
        self.fragment(u32::MAX - 1)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(34);
        out.push(FORM);
        out.extend_from_slice(&self.ts.to_be_bytes());
        let (at, rank) = match self.place {
            TokenPlace::Mark => {
                out.extend_from_slice(&[MARK, END]);
                return out;
            }
            TokenPlace::Event { at, fragment } => (at, fragment),
            TokenPlace::Invalidate { at } => (at, u32::MAX),
        };
        out.push(EVENT);
        out.extend_from_slice(&at.to_be_bytes());
        out.extend_from_slice(&rank.to_be_bytes());
        out.extend_from_slice(&self.uuid);
        out.push(END);
        out
    }

    /// Sorts as [`ResumeToken::bytes`] do.
    fn order(&self) -> (u64, u8, u32, u32, &[u8]) {
        match self.place {
            TokenPlace::Mark => (self.ts, MARK, 0, 0, &[]),
            TokenPlace::Event { at, fragment } => (self.ts, EVENT, at, fragment, &self.uuid),
            TokenPlace::Invalidate { at } => (self.ts, EVENT, at, u32::MAX, &self.uuid),
        }
    }

    pub fn hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let digit = |n: u8| char::from(DIGITS[usize::from(n & 15)]);
        let bytes = self.bytes();
        let mut hex = String::with_capacity(bytes.len() * 2);
        for b in bytes {
            hex.push(digit(b >> 4));
            hex.push(digit(b));
        }
        hex
    }

    /// `{_data: HEX}`
    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("_data", &self.hex());
        w.finish()
    }

    /// Reads what a client gives back.
    pub fn parse(v: Val<'_>) -> Result<ResumeToken> {
        let d = v.as_doc().unwrap_or(Doc::EMPTY);
        let Some(data) = d.get("_data").and_then(|v| v.as_str()) else {
            let found = d.get("_data").map_or("missing", |v| v.type_name());
            bail!(
                40647,
                "Bad resume token: _data of missing or of wrong type. Expected string, got {found}"
            );
        };
        let Some(bytes) = from_hex(data) else {
            bail!(
                FailedToParse,
                "resume token string was not a valid hex string"
            );
        };
        if d.get("_typeBits").is_some_and(|v| v.tag != tag::BINARY) {
            bail!(40648, "Bad resume token: _typeBits of wrong type");
        }
        if bytes.is_empty() {
            bail!(40649, "Invalid empty resume token data");
        }
        if bytes.first() != Some(&FORM) {
            bail!(50811, "Unknown type in a resume token");
        }
        match ResumeToken::read(&bytes) {
            Some(token) => Ok(token),
            None if is_foreign(&bytes) => match foreign_mark(&bytes) {
                Some(ts) => Ok(ResumeToken::mark(ts)),
                None => Err(token_not_found(d).into()),
            },
            None => bail!(Overflow, "The resume token is too short"),
        }
    }

    fn read(bytes: &[u8]) -> Option<ResumeToken> {
        let (form, rest) = bytes.split_first()?;
        let (ts, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first()?;
        let ts = u64::from_be_bytes(*ts);
        match (*form, *kind) {
            (FORM, MARK) => Some(ResumeToken::mark(ts)),
            (FORM, EVENT) => {
                let (at, rest) = rest.split_first_chunk()?;
                let (rank, rest) = rest.split_first_chunk()?;
                let at = u32::from_be_bytes(*at);
                let place = match u32::from_be_bytes(*rank) {
                    u32::MAX => TokenPlace::Invalidate { at },
                    fragment => TokenPlace::Event { at, fragment },
                };
                Some(ResumeToken {
                    ts,
                    place,
                    uuid: *rest.first_chunk()?,
                })
            }
            _ => None,
        }
    }
}

/// Where a token has its kind.
const KIND_AT: usize = 9;
/// How MongoDB's tokens go on behind the timestamp: with their version, as a number of one byte.
const VERSION: u8 = 0x2B;
/// A mark of MongoDB behind its version: no transaction, no event, no invalidate, no collection.
const FOREIGN_MARK: [u8; 4] = [0x29, 0x29, 0x6E, END];

/// Whether MongoDB made it: its clients come with it when their data has moved here.
fn is_foreign(bytes: &[u8]) -> bool {
    bytes.get(KIND_AT) == Some(&VERSION)
}

/// The timestamp of a mark that MongoDB made: that it names here too. Its events are not in this log.
fn foreign_mark(bytes: &[u8]) -> Option<u64> {
    let ts = bytes.get(1..KIND_AT)?;
    let is_mark = bytes.get(KIND_AT + 2..)?.starts_with(&FOREIGN_MARK);
    is_mark.then(|| u64::from_be_bytes(ts.try_into().unwrap_or_default()))
}

/// No stream can go on behind an event that is not in the log.
pub fn token_not_found(token: Doc<'_>) -> Error {
    let message = format!("cannot resume stream; the resume token was not found. {token}");
    Error::coded(280, message).with_label("NonResumableChangeStreamError")
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

impl PartialOrd for ResumeToken {
    fn partial_cmp(&self, other: &ResumeToken) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ResumeToken {
    fn cmp(&self, other: &ResumeToken) -> Ordering {
        self.order().cmp(&other.order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_sort_as_text() {
        let mut tokens = Vec::new();
        for ts in [0, 7, 7 << 32, u64::MAX] {
            tokens.push(ResumeToken::mark(ts));
            for at in [0, 1, 300] {
                for fragment in [0, 1] {
                    tokens.push(ResumeToken {
                        ts,
                        place: TokenPlace::Event { at, fragment },
                        uuid: [at as u8; 16],
                    });
                }
                tokens.push(ResumeToken {
                    ts,
                    place: TokenPlace::Invalidate { at },
                    uuid: [at as u8; 16],
                });
            }
        }
        assert!(tokens.is_sorted());
        assert!(tokens.is_sorted_by_key(ResumeToken::bytes));
        let texts: Vec<String> = tokens.iter().map(ResumeToken::hex).collect();
        assert!(texts.is_sorted());
        for token in &tokens {
            assert_eq!(
                ResumeToken::parse(token.to_doc().as_doc().as_val()).unwrap(),
                *token
            );
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let code = |d: DocBuf| {
            ResumeToken::parse(d.as_doc().as_val())
                .unwrap_err()
                .failure()
                .unwrap()
                .code
                .0
        };
        assert_eq!(code(bson::doc! {}), 40647);
        assert_eq!(code(bson::doc! { "_data": 7 }), 40647);
        assert_eq!(code(bson::doc! { "_data": "8" }), 9);
        assert_eq!(code(bson::doc! { "_data": "8G" }), 9);
        assert_eq!(code(bson::doc! { "_data": "" }), 40649);
        assert_eq!(code(bson::doc! { "_data": "00" }), 50811);
        assert_eq!(code(bson::doc! { "_data": "00", "_typeBits": "x" }), 40648);
        let token = ResumeToken {
            ts: 7,
            place: TokenPlace::Event { at: 1, fragment: 0 },
            uuid: [3; 16],
        };
        let whole = token.hex();
        for cut in (2..whole.len() - 2).step_by(2) {
            let read = ResumeToken::parse(bson::doc! { "_data": &whole[..cut] }.as_doc().as_val());
            assert_eq!(
                read.unwrap_err().failure().unwrap().code.0,
                15,
                "cut at {cut}"
            );
        }
        // MongoDB's own, of an event and of a mark.
        let event = "8265A0000000000001\
                     2B022C0100296E5A1004D5B1F1A9C7E64F0FA1E3B1C2D3E4F506463C5F6964003C6F7065726174696F6E54797065003C";
        let refused = ResumeToken::parse(bson::doc! { "_data": event }.as_doc().as_val());
        let refused = refused.unwrap_err().into_error();
        assert_eq!(refused.code.0, 280);
        assert!(refused.labels.contains(&"NonResumableChangeStreamError"));
        let mark = bson::doc! { "_data": "8265A00000000000012B0229296E04" };
        let read = ResumeToken::parse(mark.as_doc().as_val()).unwrap();
        assert_eq!(read, ResumeToken::mark(0x65A0_0000_0000_0001));
        for tolerated in [&whole[..whole.len() - 2], &format!("{whole}FF")] {
            let d = bson::doc! { "_data": tolerated };
            assert_eq!(ResumeToken::parse(d.as_doc().as_val()).unwrap(), token);
        }
    }
}
