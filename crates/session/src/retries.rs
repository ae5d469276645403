//! What the statements of a session's newest retryable write did.
//!
//! One record per session, rewritten with every statement; runs of statements with the same plain result take nine bytes
//! together, so that a batch of a thousand costs little more than one.
//!
//! ```text
//! tablet 0 | space 3 | 0 | lsid [16]
//! {_id: BinData(4, lsid), txnNum: int64, date: date,
//!  runs: BinData(0, (first i32 LE | last i32 LE | bits u8)*)      bits: 1 n, 2 nModified
//!  results: [{i: stmtId, n: int, m: int, upserted?: <id>, image?: {…}}]}
//! ```

use crate::Lsid;
use crate::sessions::hex;
use bson::{Doc, DocBuf, Value, Writer};
use catalog::keyspace::{self, SPACE_SESSION, SYSTEM_TABLET};
use errors::{Error, Result, bail};
use executor::{Retry, StmtResult};
use std::time::{SystemTime, UNIX_EPOCH};
use storage::{Effect, OpSession, View};

/// What one statement did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    pub n: u64,
    pub n_modified: u64,
    pub upserted: Option<Value>,
    pub image: Option<DocBuf>,
}

/// Statements `first..=last`, each with the same plain result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    first: i32,
    last: i32,
    bits: u8,
}

/// The newest retryable write of one session.
#[derive(Debug, Default)]
pub struct Retries {
    lsid: Lsid,
    loaded: bool,
    stored: bool,
    txn_number: Option<i64>,
    runs: Vec<Run>,
    results: Vec<(i32, Stored)>,
    /// Statement ids of the command that runs: given, or counted from a first one.
    ids: Vec<i32>,
    first_id: i32,
}

pub(crate) fn key(id: &Lsid) -> Vec<u8> {
    keyspace::join(&keyspace::prefix(SYSTEM_TABLET, SPACE_SESSION, 0), id)
}

impl Retries {
    /// Reads the session's record, once.
    pub(crate) fn load(&mut self, lsid: Lsid, view: &View) -> Result<()> {
        if self.loaded {
            return Ok(());
        }
        self.lsid = lsid;
        if let Some(bytes) = view.get(&key(&lsid))? {
            let d = Doc::new(&bytes).ok_or_else(|| Error::internal("a session record is damaged"))?;
            self.read(d).ok_or_else(|| Error::internal("a session record is damaged"))?;
            self.stored = true;
        }
        self.loaded = true;
        Ok(())
    }

    fn read(&mut self, d: Doc<'_>) -> Option<()> {
        self.txn_number = Some(d.get("txnNum")?.as_i64()?);
        let (_, runs) = d.get("runs")?.as_binary()?;
        for r in runs.chunks_exact(9) {
            let int = |at: usize| Some(i32::from_le_bytes(r.get(at..at + 4)?.try_into().ok()?));
            self.runs.push(Run { first: int(0)?, last: int(4)?, bits: *r.get(8)? });
        }
        for r in d.get("results")?.as_array()?.values() {
            let r = r.as_doc()?;
            let number = |f: &str| r.get(f).and_then(|v| v.to_i64_exact()).unwrap_or(0).unsigned_abs();
            let stored = Stored {
                n: number("n"),
                n_modified: number("m"),
                upserted: r.get("upserted").map(|v| v.to_value()),
                image: r.get("image").and_then(|v| v.as_doc()).map(|d| d.to_buf()),
            };
            self.results.push((r.get("i")?.as_i32()?, stored));
        }
        Some(())
    }

    /// A command with this transaction number begins: newer numbers forget the results of older ones.
    pub(crate) fn begin(&mut self, txn_number: i64) -> Result<()> {
        match self.txn_number {
            Some(t) if t > txn_number => bail!(
                TransactionTooOld,
                "Retryable write with txnNumber {txn_number} is prohibited on session {} because a newer retryable write with txnNumber {t} has already started on this session.",
                hex(&self.lsid)
            ),
            Some(t) if t == txn_number => {}
            _ => {
                self.txn_number = Some(txn_number);
                self.runs.clear();
                self.results.clear();
            }
        }
        self.ids.clear();
        self.first_id = 0;
        Ok(())
    }

    /// The statement ids of the command: one for each statement, or counted from `first`.
    pub fn set_ids(&mut self, ids: Vec<i32>, first: i32) {
        self.ids = ids;
        self.first_id = first;
    }

    pub fn id_of(&self, at: usize) -> i32 {
        match self.ids.get(at) {
            Some(id) => *id,
            None => self.first_id.saturating_add(i32::try_from(at).unwrap_or(i32::MAX)),
        }
    }

    /// What the statement at this position of the command did, if it was executed before.
    pub fn executed(&self, at: usize) -> Option<Stored> {
        let id = self.id_of(at);
        if let Some((_, s)) = self.results.iter().find(|(i, _)| *i == id) {
            return Some(s.clone());
        }
        let run = self.runs.iter().find(|r| r.first <= id && id <= r.last)?;
        Some(Stored { n: u64::from(run.bits & 1), n_modified: u64::from(run.bits >> 1 & 1), ..Stored::default() })
    }

    /// Whether nothing of this transaction number was executed yet: what a first attempt finds.
    pub fn is_fresh(&self) -> bool {
        self.runs.is_empty() && self.results.is_empty()
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.stored
    }

    fn add(&mut self, id: i32, r: &StmtResult) {
        if r.upserted.is_none() && r.image.is_none() && r.n <= 1 && r.n_modified <= 1 {
            let bits = r.n as u8 | (r.n_modified as u8) << 1;
            match self.runs.last_mut() {
                Some(run) if run.bits == bits && run.last.checked_add(1) == Some(id) => run.last = id,
                _ => self.runs.push(Run { first: id, last: id, bits }),
            }
        } else {
            let stored = Stored { n: r.n, n_modified: r.n_modified, upserted: r.upserted.clone(), image: r.image.clone() };
            self.results.push((id, stored));
        }
    }

    fn to_doc(&self) -> DocBuf {
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
        let mut w = Writer::with_capacity(128);
        w.binary("_id", 4, &self.lsid).i64("txnNum", self.txn_number.unwrap_or(0)).date("date", millis);
        let mut runs: smallvec::SmallVec<[u8; 64]> = smallvec::SmallVec::new();
        for r in &self.runs {
            runs.extend_from_slice(&r.first.to_le_bytes());
            runs.extend_from_slice(&r.last.to_le_bytes());
            runs.push(r.bits);
        }
        w.binary("runs", 0, &runs).open_array("results");
        for (id, s) in &self.results {
            w.open_doc("").i32("i", *id).int("n", s.n as i64).int("m", s.n_modified as i64);
            if let Some(v) = &s.upserted {
                w.val("upserted", v.as_val());
            }
            if let Some(d) = &s.image {
                w.doc("image", d.as_doc());
            }
            w.close();
        }
        w.close();
        w.finish()
    }
}

impl Retry for Retries {
    fn record(&mut self, results: &[StmtResult]) -> (OpSession, Effect) {
        let mut last = 0;
        for r in results {
            last = self.id_of(r.at);
            self.add(last, r);
        }
        self.stored = true;
        let session = OpSession { lsid: self.lsid, txn_number: self.txn_number.unwrap_or(0), stmt_id: last };
        (session, Effect::Put(key(&self.lsid), self.to_doc().into_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(at: usize, n: u64, n_modified: u64) -> StmtResult {
        StmtResult { at, n, n_modified, ..StmtResult::default() }
    }

    #[test]
    fn survives_its_record() {
        let mut r = Retries { lsid: [9; 16], loaded: true, ..Retries::default() };
        r.begin(5).unwrap();
        let ids: Vec<_> = (0..500).map(|i| result(i, 1, 0)).collect();
        r.record(&ids);
        r.record(&[StmtResult { upserted: Some(Value::from(7)), image: Some(bson::doc! { "a": 1 }), ..result(500, 1, 0) }]);
        let (session, effect) = r.record(&[result(501, 1, 1)]);
        assert_eq!((session.txn_number, session.stmt_id), (5, 501));
        let Effect::Put(k, v) = effect else { panic!("a put") };
        assert_eq!(k, key(&[9; 16]));
        assert!(v.len() < 300, "{}", v.len());
        let mut again = Retries::default();
        again.read(Doc::new(&v).unwrap()).unwrap();
        again.begin(5).unwrap();
        for at in [0, 250, 499] {
            assert_eq!(again.executed(at), Some(Stored { n: 1, ..Stored::default() }));
        }
        let up = again.executed(500).unwrap();
        assert_eq!((up.upserted, up.image), (Some(Value::from(7)), Some(bson::doc! { "a": 1 })));
        assert_eq!(again.executed(501).unwrap().n_modified, 1);
        assert_eq!(again.executed(502), None);
    }

    #[test]
    fn numbers_only_grow() {
        let mut r = Retries::default();
        r.begin(5).unwrap();
        r.record(&[result(0, 1, 0)]);
        assert_eq!(r.begin(4).unwrap_err().code.0, 225);
        r.begin(5).unwrap();
        assert!(r.executed(0).is_some());
        r.begin(6).unwrap();
        assert!(r.is_fresh());
    }

    #[test]
    fn given_ids() {
        let mut r = Retries::default();
        r.begin(1).unwrap();
        r.set_ids(vec![7, 9], 0);
        r.record(&[result(0, 1, 0), result(1, 1, 0)]);
        r.set_ids(vec![], 8);
        assert!(r.executed(0).is_none() && r.executed(1).is_some());
    }
}
