//! Retryable writes: what the newest transaction number of each session has done, so that a retry does nothing twice.
//!
//! The record of a session travels in the log entry of the write itself, so record and write are there together or not at all,
//! also after a restart. In memory it is known as soon as the write is staged; should the commit fail, everything is forgotten
//! and read again ([`Retries::forget`]).
//!
//! ```text
//! tablet 0 | space 3 | 0 | lsid [16]  →  {txn: int64, date: date, done: [{i: first statement, c: count, n, m, u?: {v}, d?: image}]}
//! ```

use bson::{Doc, Value, Writer};
use catalog::keyspace::{self, SPACE_SESSION, SYSTEM_TABLET};
use errors::{Error, Result, bail};
use executor::{OpCtx, Retry, StmtResult};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::collections::HashMap;
use std::sync::Arc;
use storage::{Direction, Effect, Entry, Op, OpSession, Store};

/// A logical session's id.
pub type Lsid = [u8; 16];

/// Sessions kept in memory; beyond it the oldest are read from the store again when they come back.
const KEEP: usize = 50_000;

#[derive(Clone, Debug, Default)]
struct Done {
    first: i32,
    count: i32,
    result: StmtResult,
}

#[derive(Default)]
struct State {
    loaded: bool,
    txn: i64,
    done: Vec<Done>,
    /// Milliseconds since 1970 of the last write.
    used: i64,
}

#[derive(Default)]
pub struct Retries {
    sessions: Mutex<HashMap<Lsid, Arc<Mutex<State>>>>,
}

/// One command's hold on its session.
pub struct Retryable {
    lsid: Lsid,
    state: ArcMutexGuard<RawMutex, State>,
    now_millis: i64,
}

fn key(lsid: &Lsid) -> Vec<u8> {
    keyspace::join(&keyspace::prefix(SYSTEM_TABLET, SPACE_SESSION, 0), lsid)
}

impl Retries {
    /// Takes hold of a session for one command. Fails when the session has gone on to a newer number.
    pub fn begin(&self, ctx: &OpCtx, lsid: Lsid, txn: i64, now_millis: i64) -> Result<Retryable> {
        let state = {
            let mut sessions = self.sessions.lock();
            if sessions.len() > KEEP {
                sessions.retain(|_, s| s.try_lock().is_none_or(|s| now_millis - s.used < 60_000));
            }
            sessions.entry(lsid).or_default().clone()
        };
        let mut state = if ctx.may_offload() {
            Mutex::try_lock_arc(&state).ok_or_else(Error::offload)?
        } else {
            Mutex::lock_arc(&state)
        };
        if !state.loaded {
            if let Some(v) = ctx.latest().get(&key(&lsid))? {
                read(&mut state, Doc::new(&v).unwrap_or(Doc::EMPTY));
            } else {
                state.txn = -1;
            }
            state.loaded = true;
        }
        state.used = now_millis;
        if txn < state.txn {
            bail!(
                TransactionTooOld,
                "Retryable write with txnNumber {txn} is prohibited on session {} because a newer retryable write with txnNumber {} has already started on this session.",
                bson::shell::val(Value::binary(4, &lsid).as_val()),
                state.txn
            );
        }
        if txn > state.txn {
            state.txn = txn;
            state.done.clear();
        }
        Ok(Retryable {
            lsid,
            state,
            now_millis,
        })
    }

    /// After a commit that failed: what is in memory may not have happened.
    pub fn forget(&self) {
        self.sessions.lock().clear();
    }

    /// Deletes the records of sessions that have not written since `before` (milliseconds since 1970).
    pub fn delete_older(&self, store: &Store, before: i64) -> Result<usize> {
        let prefix = keyspace::prefix(SYSTEM_TABLET, SPACE_SESSION, 0);
        let view = store.view();
        let mut scan = view.scan(&prefix, &keyspace::prefix_end(&prefix), Direction::Forward);
        let mut old = Vec::new();
        while scan.next()? {
            let date = Doc::new(scan.value())
                .and_then(|d| d.get("date")?.as_date())
                .unwrap_or(0);
            if date < before {
                old.push(Effect::Delete(scan.key().to_vec()));
            }
        }
        let n = old.len();
        for chunk in old.chunks(1000) {
            store.propose(vec![Entry::new([0; 16], Op::Noop, chunk.to_vec())])?;
        }
        Ok(n)
    }

    pub fn active(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Forgets what is kept in memory of a session.
    pub fn end(&self, lsid: &Lsid) {
        self.sessions.lock().remove(lsid);
    }
}

impl Retryable {
    /// What the statement did when it ran before.
    pub fn executed(&self, stmt_id: i32) -> Option<&StmtResult> {
        let d = self
            .state
            .done
            .iter()
            .find(|d| (d.first..d.first.saturating_add(d.count)).contains(&stmt_id))?;
        Some(&d.result)
    }

    /// The recorder for statements: `ids[at]` is the id of the statement at that position.
    pub fn statements<'a>(&'a mut self, ids: &'a [i32]) -> Statements<'a> {
        Statements { hold: self, ids }
    }

    fn write(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(128);
        w.i64("txn", self.state.txn)
            .date("date", self.now_millis)
            .open_array("done");
        for d in &self.state.done {
            w.open_doc("").i32("i", d.first).i32("c", d.count);
            w.i64("n", d.result.n as i64)
                .i64("m", d.result.n_modified as i64);
            if let Some(u) = &d.result.upserted {
                w.open_doc("u").val("v", u.as_val()).close();
            }
            if let Some(i) = &d.result.image {
                w.doc("d", i.as_doc());
            }
            w.close();
        }
        w.close();
        w.finish().into_vec()
    }
}

fn read(state: &mut State, d: Doc<'_>) {
    state.txn = d.get("txn").and_then(|v| v.as_i64()).unwrap_or(-1);
    state.done.clear();
    for d in d
        .get("done")
        .and_then(|v| v.as_array())
        .unwrap_or(Doc::EMPTY)
        .values()
    {
        let Some(d) = d.as_doc() else { continue };
        let int = |n: &str| d.get(n).and_then(|v| v.to_i64_exact()).unwrap_or(0);
        state.done.push(Done {
            first: int("i") as i32,
            count: int("c") as i32,
            result: StmtResult {
                at: 0,
                n: int("n") as u64,
                n_modified: int("m") as u64,
                upserted: d
                    .get("u")
                    .and_then(|v| v.as_doc()?.get("v").map(|v| v.to_value())),
                image: d.get("d").and_then(|v| v.as_doc()).map(|d| d.to_buf()),
            },
        });
    }
}

/// Records statements of one command.
pub struct Statements<'a> {
    hold: &'a mut Retryable,
    ids: &'a [i32],
}

impl Retry for Statements<'_> {
    fn record(&mut self, results: &[StmtResult]) -> (OpSession, Effect) {
        let mut first_id = 0;
        for (n, r) in results.iter().enumerate() {
            let id = self.ids.get(r.at).copied().unwrap_or(0);
            if n == 0 {
                first_id = id;
            }
            let plain = |r: &StmtResult| {
                r.n == 1 && r.n_modified == 0 && r.upserted.is_none() && r.image.is_none()
            };
            match self.hold.state.done.last_mut() {
                Some(d)
                    if plain(r) && plain(&d.result) && d.first.checked_add(d.count) == Some(id) =>
                {
                    d.count += 1
                }
                _ => self.hold.state.done.push(Done {
                    first: id,
                    count: 1,
                    result: r.clone(),
                }),
            }
        }
        let session = OpSession {
            lsid: self.hold.lsid,
            txn_number: self.hold.state.txn,
            stmt_id: first_id,
        };
        (
            session,
            Effect::Put(key(&self.hold.lsid), self.hold.write()),
        )
    }
}
