//! Transactions that have written on several shards: the messages of their commit and of their
//! recovery ([`sharding::two_phase`] has the steps).
//!
//! Invariant: prepares, the decision and its messages wait for a majority of their shard, so none of
//! them is rolled back.

use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::Cluster;
use cluster_view::upstream::error_of;
use sharding::two_phase::{CommitAnswer, CommitRequest, Coordinator, Shard, Verdict};
use std::time::Duration;

/// Between two tries of the same.
const PAUSE: Duration = Duration::from_millis(50);

/// Which transaction of which session.
#[derive(Clone, Debug, PartialEq)]
pub struct Id {
    /// `{id, uid?}`
    session: DocBuf,
    number: i64,
}

/// A shard's record of a transaction in doubt.
pub struct InDoubt {
    pub id: Id,
    /// The shard that coordinates; `None`: the shard with this record.
    pub recovery: Option<Shard>,
    /// The shards to tell.
    pub participants: Vec<Shard>,
}

impl Id {
    /// `session`: a client's `lsid`; `number`: its `txnNumber`.
    pub fn new(session: Option<Doc<'_>>, number: Option<i64>) -> Id {
        Id {
            session: session.unwrap_or(Doc::EMPTY).to_buf(),
            number: number.unwrap_or(-1),
        }
    }

    pub fn read(d: Doc<'_>) -> Option<Id> {
        Some(Id {
            session: d.get("session")?.as_doc()?.to_buf(),
            number: d.get("number")?.to_i64_exact()?,
        })
    }

    pub fn to_doc(&self) -> DocBuf {
        doc! {"session": self.session.clone(), "number": self.number}
    }

    /// A name for it among others.
    pub fn key(&self) -> (Vec<u8>, i64) {
        (self.session.as_bytes().to_vec(), self.number)
    }

    /// The message that asks a shard.
    fn message(
        &self,
        cluster: &Cluster,
        recovery: &Shard,
        ask: &CommitRequest,
        executed: Option<&DocBuf>,
    ) -> DocBuf {
        let mut w = Writer::new();
        match ask {
            CommitRequest::EndRead => self.statement(&mut w, "commitTransaction"),
            CommitRequest::Prepare => {
                self.statement(&mut w, "_pandoPrepare");
                w.str("recoveryShard", recovery);
            }
            CommitRequest::Decide(others) => {
                self.statement(&mut w, "commitTransaction");
                w.open_array("participants");
                for shard in others {
                    w.str("", shard);
                }
                w.close();
                if let Some(executed) = executed {
                    w.doc("executed", executed.as_doc());
                }
            }
            CommitRequest::Commit | CommitRequest::Abort => {
                self.names(&mut w, "_pandoDecide");
                w.bool("commit", *ask == CommitRequest::Commit);
            }
            CommitRequest::Outcome => self.names(&mut w, "_pandoOutcome"),
            CommitRequest::Forget => {
                self.names(&mut w, "_pandoOutcome");
                w.bool("told", true);
            }
        }
        if !matches!(ask, CommitRequest::EndRead) {
            w.doc("writeConcern", doc! {"w": "majority"}.as_doc());
        }
        w.str("$db", "admin");
        cluster.say_time(&mut w);
        w.finish()
    }

    fn statement(&self, w: &mut Writer, name: &str) {
        w.i32(name, 1).doc("lsid", self.session.as_doc());
        w.i64("txnNumber", self.number).bool("autocommit", false);
    }

    fn names(&self, w: &mut Writer, name: &str) {
        w.i32(name, 1).doc("session", self.session.as_doc());
        w.i64("number", self.number);
    }
}

fn shards(list: Option<Val<'_>>) -> Vec<Shard> {
    let list = list.and_then(Val::as_array).unwrap_or(Doc::EMPTY);
    list.values()
        .filter_map(Val::as_str)
        .map(Shard::from)
        .collect()
}

/// What a reply means.
fn answer(ask: &CommitRequest, reply: &Outcome<DocBuf>) -> CommitAnswer {
    let Ok(reply) = reply else {
        return CommitAnswer::Lost;
    };
    if error_of(reply.as_doc()).is_some() {
        return match ask {
            CommitRequest::Prepare | CommitRequest::EndRead => CommitAnswer::No,
            _ => CommitAnswer::Lost,
        };
    }
    if reply.get("writeConcernError").is_some() {
        return CommitAnswer::Lost;
    }
    match ask {
        CommitRequest::Outcome if reply.get("committed").is_some_and(Val::truthy) => {
            CommitAnswer::Committed(shards(reply.get("participants")))
        }
        CommitRequest::Outcome => CommitAnswer::Aborted,
        _ => CommitAnswer::Yes,
    }
}

/// How a commit or a recovery has ended.
pub struct Ended {
    pub verdict: Verdict,
    /// What the shards have said, for its times.
    pub replies: Vec<DocBuf>,
    /// The session has gone on: what became of it is of no interest to the client any more.
    pub past: bool,
    /// Why a shard has not promised.
    pub why: Option<String>,
}

/// The end of transactions over several shards.
pub trait TwoPhase {
    /// Takes a transaction over several shards to its end. `executed`: what the deciding shard records
    /// with it.
    fn end(
        &self,
        id: &Id,
        recovery: &Shard,
        steps: Coordinator,
        executed: Option<&DocBuf>,
    ) -> Ended;

    /// What waits on a shard for others.
    fn in_doubt_on(&self, shard: &str) -> Outcome<Vec<InDoubt>>;
}

impl TwoPhase for Cluster {
    fn end(
        &self,
        id: &Id,
        recovery: &Shard,
        mut steps: Coordinator,
        executed: Option<&DocBuf>,
    ) -> Ended {
        let mut ended = Ended {
            verdict: Verdict::Unknown,
            replies: Vec::new(),
            past: false,
            why: None,
        };
        let mut before = Vec::new();
        loop {
            if let Some(verdict) = steps.verdict() {
                ended.verdict = verdict;
                return ended;
            }
            let asks = steps.asks();
            if asks == before {
                std::thread::sleep(PAUSE);
            }
            let messages: Vec<(Shard, DocBuf)> = asks
                .iter()
                .map(|(shard, ask)| {
                    let message = id.message(self, recovery, ask, executed);
                    (shard.clone(), message)
                })
                .collect();
            let replies = self.together(&messages);
            let answers: Vec<CommitAnswer> = asks
                .iter()
                .zip(&replies)
                .map(|((_, ask), reply)| answer(ask, reply))
                .collect();
            for ((shard, ask), reply) in asks.iter().zip(replies) {
                note(self, &mut ended, (shard, ask), reply);
            }
            steps.heard(&answers);
            before = asks;
        }
    }

    fn in_doubt_on(&self, shard: &str) -> Outcome<Vec<InDoubt>> {
        let reply = self.on_shard(shard, "admin", doc! {"_pandoPrepared": 1}.as_doc())?;
        let list = |name: &str| {
            let list = reply.get(name).and_then(Val::as_array);
            list.unwrap_or(Doc::EMPTY)
                .values()
                .filter_map(Val::as_doc)
                .collect::<Vec<_>>()
        };
        let prepared = list("prepared").into_iter().filter_map(|d| {
            Some(InDoubt {
                id: Id::read(d)?,
                recovery: Some(d.get("recoveryShard")?.as_str()?.into()),
                participants: vec![shard.into()],
            })
        });
        let decisions = list("decisions").into_iter().filter_map(|d| {
            Some(InDoubt {
                id: Id::read(d)?,
                recovery: None,
                participants: shards(d.get("participants")),
            })
        });
        Ok(prepared.chain(decisions).collect())
    }
}

/// Keeps of a reply what the end needs to say.
fn note(
    cluster: &Cluster,
    ended: &mut Ended,
    (shard, ask): (&Shard, &CommitRequest),
    reply: Outcome<DocBuf>,
) {
    let promises = matches!(ask, CommitRequest::Prepare | CommitRequest::EndRead);
    match reply {
        Ok(reply) => {
            cluster.note_time(reply.as_doc());
            ended.past |= reply.get("past").is_some_and(Val::truthy);
            match error_of(reply.as_doc()) {
                Some(e) if promises => ended.why = Some(format!("{shard}: {}", e.message)),
                Some(_) => {}
                None => ended.replies.push(reply),
            }
        }
        Err(failure) if promises => ended.why = Some(format!("{shard}: {failure}")),
        Err(_) => {}
    }
}
