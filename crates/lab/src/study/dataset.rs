//! The documents of study A, each a function of its number, so that any can be checked and none must be remembered.
//!
//! ```text
//! { _id, Number, Number1: int64, Date: date, Name, Code: 10 letters each, Count: int32, Text: filler }   1,024 bytes
//! ```
//! The study says only that there are numeric columns, three secondary indexes (`Number`, `Number1`, `Date` descending)
//! and how many documents a query gives back. We fix the rest: ten documents share a `Number`; the same ten share a
//! `Number1`, whose order has nothing to do with that of `Number`; both are scattered over the order of insertion; `Date`
//! follows the order of insertion, unless [`Dates::Scattered`] is asked for. So equality on one or both numbers gives 10 documents, and a range of 100 values of
//! `Number` gives 1,000. Documents past the data set (what insert tests add) have random numbers far above.

use crate::fault::{Fault, Result};
use crate::random::{Permutation, Rng, mix};
use crate::reply;
use crate::request::locate;
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};

/// Documents that share a number.
pub const PER_NUMBER: u64 = 10;
/// Documents in the range of test 6.
pub const PER_RANGE: u64 = 1000;
pub const DOCUMENT_BYTES: usize = 1024;
/// The three secondary indexes.
pub const INDEXES: [(&str, i32); 3] = [("Number", 1), ("Number1", 1), ("Date", -1)];

const FIRST_DATE_MS: i64 = 1_500_000_000_000;
const BEYOND: i64 = 1 << 40;
const POOL_BYTES: usize = 4 << 20;

/// What fills a document up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Payload {
    /// Words: compressible about as text is.
    Text,
    /// Random bytes: incompressible.
    Random,
}

/// Which `_id` the client gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ids {
    /// ObjectIds in order, as drivers generate them.
    Generated,
    /// The md5 of the number, 32 hexadecimal digits: random order.
    Md5,
}

/// How `Date` goes with the order of insertion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Dates {
    /// A second from document to document.
    #[default]
    Follow,
    /// Any second of some years: in no order.
    Scattered,
}

#[derive(Clone, Debug)]
pub struct Dataset {
    pub records: u64,
    /// The data set comes in blocks, each of which is complete in its selectivity once it is loaded.
    block: u64,
    scatter: Permutation,
    scatter1: Permutation,
    pool: Vec<u8>,
    pub ids: Ids,
    dates: Dates,
    template: Vec<u8>,
    slots: Slots,
}

#[derive(Clone, Debug)]
struct Slots {
    id: std::ops::Range<usize>,
    number: usize,
    number1: usize,
    date: usize,
    name: usize,
    code: usize,
    text: std::ops::Range<usize>,
}

fn pool(payload: Payload) -> Vec<u8> {
    let mut rng = Rng::new(11);
    let size = POOL_BYTES + DOCUMENT_BYTES;
    let mut bytes = Vec::with_capacity(size + 16);
    match payload {
        Payload::Random => {
            while bytes.len() < size {
                bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
            }
        }
        Payload::Text => {
            // Two thousand made-up words, the short and early ones more often, as in a language.
            let words: Vec<Vec<u8>> = (0..2000)
                .map(|i| {
                    let length = 2 + (rng.below(4) + i / 500) as usize;
                    (0..length)
                        .map(|at| {
                            let letters: &[u8] = if at % 2 == 0 {
                                b"tnshrdlcmwfgpbvk"
                            } else {
                                b"eaoiueao"
                            };
                            letters[rng.below(letters.len() as u64) as usize]
                        })
                        .collect()
                })
                .collect();
            while bytes.len() < size {
                let u = rng.unit();
                let word = &words[(u * u * words.len() as f64) as usize];
                bytes.extend_from_slice(word);
                bytes.push(b' ');
            }
        }
    }
    bytes
}

impl Dataset {
    /// `records` is rounded up so that every block holds whole ranges.
    pub fn new(records: u64, blocks: u64, payload: Payload, ids: Ids) -> Dataset {
        let blocks = blocks.max(1);
        let block = records.div_ceil(blocks).div_ceil(PER_RANGE).max(1) * PER_RANGE;
        let (template, slots) = template(payload, ids);
        Dataset {
            records: block * blocks,
            block,
            scatter: Permutation::new(block, 17),
            scatter1: Permutation::new(block * blocks / PER_NUMBER, 19),
            pool: pool(payload),
            ids,
            dates: Dates::Follow,
            template,
            slots,
        }
    }

    /// The same with dates in another order. Scattered ones go with generated `_id`s, which then tell a document's number.
    pub fn dated(mut self, dates: Dates) -> Dataset {
        self.dates = dates;
        self
    }

    /// How many values of `Number` the first `loaded` documents have in full.
    pub fn numbers(&self, loaded: u64) -> u64 {
        loaded.min(self.records) / self.block * self.block / PER_NUMBER
    }

    pub fn number(&self, i: u64) -> i64 {
        if i >= self.records {
            return BEYOND + (mix(i) >> 24) as i64;
        }
        let rank = i / self.block * self.block + self.scatter.at(i % self.block);
        (rank / PER_NUMBER) as i64
    }

    /// The `Number1` of the documents with this `Number`.
    pub fn number1_of(&self, number: i64) -> i64 {
        if number >= BEYOND {
            return BEYOND + (mix(number as u64) >> 24) as i64;
        }
        self.scatter1.at(number as u64) as i64
    }

    pub fn date_ms(&self, i: u64) -> i64 {
        let second = match self.dates {
            Dates::Follow => i,
            Dates::Scattered => mix(!i) >> 37,
        };
        FIRST_DATE_MS + second as i64 * 1000
    }

    /// The number of a document that a query gave.
    fn number_of(&self, got: Doc<'_>) -> Option<u64> {
        match self.dates {
            Dates::Follow => {
                let date = got.get("Date").and_then(Val::as_date)?;
                u64::try_from((date - FIRST_DATE_MS) / 1000).ok()
            }
            Dates::Scattered => got.get("_id").and_then(Val::as_oid).map(|id| counted(&id)),
        }
    }

    /// The `_id` of document `i` as value bytes, appended.
    #[inline]
    pub fn write_id(&self, i: u64, out: &mut Vec<u8>) {
        match self.ids {
            Ids::Generated => out.extend_from_slice(&generated(i).0),
            Ids::Md5 => {
                out.extend_from_slice(&33i32.to_le_bytes());
                for b in md5::compute(i.to_string().as_bytes()).0 {
                    const HEX: &[u8; 16] = b"0123456789abcdef";
                    out.push(HEX[usize::from(b >> 4)]);
                    out.push(HEX[usize::from(b & 15)]);
                }
                out.push(0);
            }
        }
    }

    /// Keys between so many parts of the data of the same size, as the chunks of a sharded collection end.
    pub fn middles(&self, parts: u64) -> Vec<DocBuf> {
        let at = |part: u64| match self.ids {
            Ids::Generated => self.id(u64::try_from(
                u128::from(self.records) * u128::from(part) / u128::from(parts),
            )
            .unwrap_or(0)),
            Ids::Md5 => Value::from(format!("{:04x}", part * 0x1_0000 / parts)),
        };
        (1..parts).map(|part| doc! {"_id": at(part)}).collect()
    }

    pub fn id(&self, i: u64) -> Value {
        let mut bytes = Vec::new();
        self.write_id(i, &mut bytes);
        Value::from_bytes(self.id_tag(), bytes)
    }

    fn id_tag(&self) -> u8 {
        match self.ids {
            Ids::Generated => bson::tag::OBJECT_ID,
            Ids::Md5 => bson::tag::STRING,
        }
    }

    fn text(&self, i: u64) -> &[u8] {
        let at = (mix(i ^ 0x5eed) % POOL_BYTES as u64) as usize;
        &self.pool[at..at + self.slots.text.len()]
    }

    /// Appends document `i`.
    #[inline]
    pub fn write(&self, i: u64, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&self.template[..self.slots.id.start]);
        self.write_id(i, out);
        out.extend_from_slice(&self.template[self.slots.id.end..]);
        let d = &mut out[at..];
        let number = self.number(i);
        let s = &self.slots;
        d[s.number..s.number + 8].copy_from_slice(&number.to_le_bytes());
        d[s.number1..s.number1 + 8].copy_from_slice(&self.number1_of(number).to_le_bytes());
        d[s.date..s.date + 8].copy_from_slice(&self.date_ms(i).to_le_bytes());
        letters(i, &mut d[s.name..s.name + 10]);
        letters(!i, &mut d[s.code..s.code + 10]);
        d[s.text.clone()].copy_from_slice(self.text(i));
    }

    /// Checks a whole document as a query gave it (its `Count` may have been updated); gives its number.
    pub fn check(&self, got: Doc<'_>) -> Result<u64> {
        let wrong = |what: &str| {
            Err(Fault::Check(format!(
                "{what} of document {}",
                reply::brief(got)
            )))
        };
        let Some(i) = self.number_of(got) else {
            return wrong("no number");
        };
        let mut want = Vec::with_capacity(DOCUMENT_BYTES);
        self.write(i, &mut want);
        let want = Doc::new(&want).unwrap_or(Doc::EMPTY);
        let mut fields = got.iter();
        for expected in want {
            let Some(found) = fields.next() else {
                return wrong("a missing field");
            };
            let same = found.name == expected.name
                && found.val.tag == expected.val.tag
                && (expected.name == "Count" || found.val == expected.val);
            if !same {
                return wrong(&format!("the {}", expected.name));
            }
        }
        if fields.next().is_some() {
            return wrong("a field too many");
        }
        Ok(i)
    }
}

/// The ObjectId of document `i`: seconds, a fixed middle, the counter.
fn generated(i: u64) -> ObjectId {
    let mut b = [
        0x6c, 0x61, 0x62, 0x2e, 0x61, 0x62, 0x6c, 0x61, 0x62, 0, 0, 0,
    ];
    b[..4].copy_from_slice(&(0x6500_0000u32.wrapping_add((i >> 24) as u32)).to_be_bytes());
    b[9..].copy_from_slice(&(i as u32).to_be_bytes()[1..]);
    ObjectId(b)
}

/// The number that an ObjectId was made of.
fn counted(id: &ObjectId) -> u64 {
    let part = |bytes: &[u8]| bytes.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let seconds = part(&id.0[..4]).wrapping_sub(0x6500_0000);
    seconds << 24 | part(&id.0[9..])
}

fn letters(i: u64, out: &mut [u8]) {
    let mut x = mix(i);
    for b in out {
        *b = b'a' + (x % 26) as u8;
        x /= 26;
    }
}

fn template(payload: Payload, ids: Ids) -> (Vec<u8>, Slots) {
    let id = match ids {
        Ids::Generated => Value::from(generated(0)),
        Ids::Md5 => Value::from("0".repeat(32)),
    };
    let build = |filler: usize| {
        let mut w = Writer::with_capacity(DOCUMENT_BYTES);
        w.val("_id", id.as_val())
            .i64("Number", 0)
            .i64("Number1", 0)
            .date("Date", 0)
            .str("Name", "aaaaaaaaaa")
            .str("Code", "aaaaaaaaaa")
            .i32("Count", 0);
        match payload {
            Payload::Text => w.str("Text", &" ".repeat(filler)),
            Payload::Random => w.binary("Text", 0, &vec![0; filler]),
        };
        w.finish().into_vec()
    };
    let bytes = build(DOCUMENT_BYTES - build(0).len());
    let at = |name: &str| locate(&bytes, 0, &[name]).unwrap_or_default();
    // A string has its length before and a NUL behind; binary has its length and subtype before.
    let text = match payload {
        Payload::Text => at("Text").start + 4..at("Text").end - 1,
        Payload::Random => at("Text").start + 5..at("Text").end,
    };
    let slots = Slots {
        id: at("_id"),
        number: at("Number").start,
        number1: at("Number1").start,
        date: at("Date").start,
        name: at("Name").start + 4,
        code: at("Code").start + 4,
        text,
    };
    (bytes, slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn documents_are_valid_of_one_size_and_check_themselves() {
        for payload in [Payload::Text, Payload::Random] {
            for ids in [Ids::Generated, Ids::Md5] {
                let data = Dataset::new(2000, 1, payload, ids);
                for i in [0, 1, 1999, 2000, 1 << 30] {
                    let mut out = b"x".to_vec();
                    data.write(i, &mut out);
                    assert_eq!(out.len(), 1 + DOCUMENT_BYTES);
                    let doc = bson::validate(&out[1..]).unwrap();
                    assert_eq!(data.check(doc).unwrap(), i);
                    assert_eq!(doc.get("_id"), Some(data.id(i).as_val()));
                    let changed = data.number(i) + 1;
                    let at = data.slots.number + 1;
                    out[at..at + 8].copy_from_slice(&changed.to_le_bytes());
                    assert!(data.check(Doc::new(&out[1..]).unwrap()).is_err());
                }
            }
        }
        let data = Dataset::new(2000, 1, Payload::Text, Ids::Generated).dated(Dates::Scattered);
        for i in [0, 1, 1999, 1 << 30] {
            let mut out = Vec::new();
            data.write(i, &mut out);
            assert_eq!(data.check(Doc::new(&out).unwrap()).unwrap(), i);
        }
        let later = (0..1000).filter(|&i| data.date_ms(i) < data.date_ms(i + 1));
        assert!((400..600).contains(&later.count()));
        let data = Dataset::new(10, 1, Payload::Text, Ids::Md5);
        // md5("1"), as study B has it.
        assert_eq!(
            data.id(1).as_val().as_str(),
            Some("c4ca4238a0b923820dcc509a6f75849b")
        );
    }

    #[test]
    fn selectivity_is_as_stated_in_every_block() {
        let data = Dataset::new(6000, 3, Payload::Text, Ids::Generated);
        assert_eq!((data.records, data.block), (6000, 2000));
        for loaded in [2000u64, 4000, 6000] {
            let mut by_number: HashMap<i64, u64> = HashMap::new();
            let mut by_number1: HashMap<i64, u64> = HashMap::new();
            for i in 0..loaded {
                *by_number.entry(data.number(i)).or_default() += 1;
                *by_number1
                    .entry(data.number1_of(data.number(i)))
                    .or_default() += 1;
            }
            assert_eq!(data.numbers(loaded), loaded / 10);
            assert_eq!(by_number.len() as u64, loaded / 10);
            assert!((0..loaded as i64 / 10).all(|n| by_number[&n] == 10));
            assert!(by_number1.len() as u64 == loaded / 10);
            assert!(by_number1.values().all(|&c| c == 10));
        }
        assert_eq!(data.numbers(3999), 200);
        assert!(data.number(6000) >= BEYOND);
    }

    #[test]
    fn ids_increase_and_differ() {
        let ids: Vec<_> = [0, 1, 255, 256, (1 << 24) - 1, 1 << 24, 1 << 40]
            .map(generated)
            .to_vec();
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
    }
}
