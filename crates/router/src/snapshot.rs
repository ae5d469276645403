//! One state of all shards: for transactions and reads with read concern `snapshot`.
//!
//! ```text
//! all shards keep their state at T, and say what is prepared in it
//! who decides that says whether it had committed at T ─► shown where it is prepared
//! ```
//!
//! Invariant: a transaction over several shards is seen at T on all of them or on none. Its decision
//! is in the deciding shard's state at T, or it comes later. Where it has taken effect by T elsewhere,
//! it was decided before: what a shard writes for a router is later than what the router has seen.

use crate::Outcome;
use crate::metadata::{CONFIG, Cluster};
use crate::request::Command;
use crate::service_impl::sound;
use crate::two_phase::Id;
use crate::upstream::with_fields;
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::err;
use sharding::two_phase::Shard;

/// How often a time is chosen anew, because a shard's log was past it.
const TRIES: u32 = 12;
/// How far ahead of what was seen the first time is, in increments; each later one is twice as far.
const AHEAD: u64 = 64;

/// What is prepared on a shard, and who decides it.
struct Prepared {
    on: Shard,
    recovery: Shard,
    id: Id,
}

impl Cluster {
    /// Has all shards keep one state; its time.
    pub(crate) fn pin_snapshot(&self) -> Outcome<u64> {
        let shards: Vec<Shard> = self.shard_names()?.into_iter().map(Shard::from).collect();
        let mut seen = self.time();
        for n in 0..TRIES {
            let at = seen + (AHEAD << n);
            let replies = self.ask_all(&shards, at, DocBuf::default)?;
            let late = replies
                .iter()
                .filter(|r| !r.get("pinned").is_some_and(Val::truthy));
            let latest = late.filter_map(|r| r.get("time")?.as_timestamp()).max();
            if let Some(latest) = latest {
                seen = latest.max(self.time());
                continue;
            }
            let prepared = prepared_in(&shards, &replies);
            if !prepared.is_empty() {
                self.show_committed(at, prepared)?;
            }
            return Ok(at);
        }
        Err(err!(
            SnapshotUnavailable,
            "no time was found at which all shards could keep their state"
        )
        .with_label("TransientTransactionError")
        .into())
    }

    fn ask_all(
        &self,
        shards: &[Shard],
        at: u64,
        fields: impl Fn() -> DocBuf,
    ) -> Outcome<Vec<DocBuf>> {
        let ask = |shard: &Shard| (shard.clone(), question(at, &fields()));
        let asks: Vec<_> = shards.iter().map(ask).collect();
        let replies = self.together(&asks).into_iter();
        replies.map(|reply| sound(reply?)).collect()
    }

    /// Has shards show what is prepared in their state and had committed by then.
    fn show_committed(&self, at: u64, prepared: Vec<Prepared>) -> Outcome<()> {
        let mut by_recovery: Vec<(Shard, Vec<Prepared>)> = Vec::new();
        for one in prepared {
            match by_recovery.iter_mut().find(|(r, _)| *r == one.recovery) {
                Some((_, list)) => list.push(one),
                None => by_recovery.push((one.recovery.clone(), vec![one])),
            }
        }
        let mut shown: Vec<(Shard, Vec<Id>)> = Vec::new();
        for (recovery, list) in by_recovery {
            let asked = names("committed", list.iter().map(|p| &p.id));
            let reply = self.on_shard(&recovery, "admin", question(at, &asked).as_doc())?;
            let committed = reply.get("committed").and_then(Val::as_array);
            let committed = committed.unwrap_or(Doc::EMPTY).values();
            for (one, _) in list.into_iter().zip(committed).filter(|(_, c)| c.truthy()) {
                match shown.iter_mut().find(|(on, _)| *on == one.on) {
                    Some((_, ids)) => ids.push(one.id),
                    None => shown.push((one.on, vec![one.id])),
                }
            }
        }
        for (on, ids) in shown {
            let included = names("include", ids.iter());
            self.on_shard(&on, "admin", question(at, &included).as_doc())?;
        }
        Ok(())
    }
}

fn question(at: u64, fields: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    w.i32("_pandoSnapshot", 1)
        .timestamp("at", at)
        .str("$db", "admin");
    with_fields(w.finish().as_doc(), fields.as_doc())
}

fn names<'i>(field: &str, ids: impl Iterator<Item = &'i Id>) -> DocBuf {
    let mut w = Writer::new();
    w.open_array(field);
    for id in ids {
        w.push(id.to_doc().as_doc().as_val());
    }
    w.close();
    w.finish()
}

fn prepared_in(shards: &[Shard], replies: &[DocBuf]) -> Vec<Prepared> {
    let mut out = Vec::new();
    for (on, reply) in shards.iter().zip(replies) {
        let list = reply.get("prepared").and_then(Val::as_array);
        for d in list.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc) {
            let recovery = d.get("recoveryShard").and_then(Val::as_str);
            if let (Some(id), Some(recovery)) = (Id::read(d), recovery) {
                out.push(Prepared {
                    on: on.clone(),
                    recovery: recovery.into(),
                    id,
                });
            }
        }
    }
    out
}

/// Whether a command reads one state of all shards, or begins a transaction that does.
pub(crate) fn wants_snapshot(command: &Command<'_>) -> bool {
    let concern = command.document("readConcern");
    let level = concern.and_then(|c| c.get("level")?.as_str());
    let reads = matches!(command.name, "find" | "aggregate" | "distinct");
    let begins = command.in_transaction() && command.is("startTransaction");
    let of_cluster = !matches!(command.db, CONFIG | "admin");
    level == Some("snapshot") && of_cluster && (begins || reads && !command.in_transaction())
}

/// The time that the command gives, of a state that was kept before.
pub(crate) fn given_time(command: &Command<'_>) -> Option<u64> {
    let concern = command.document("readConcern");
    concern.and_then(|c| c.get("atClusterTime")?.as_timestamp())
}

/// The command's read concern with the time.
pub(crate) fn concern_at(command: &Command<'_>, at: u64) -> DocBuf {
    let concern = command.document("readConcern").unwrap_or(Doc::EMPTY);
    let mut w = Writer::new();
    // The time says more than `afterClusterTime`, and the two exclude each other.
    let others = |name: &str| !matches!(name, "afterClusterTime" | "atClusterTime");
    for e in concern.iter().filter(|e| others(e.name)) {
        w.val(e.name, e.val);
    }
    w.timestamp("atClusterTime", at);
    w.finish()
}

/// A reply to a read of a snapshot says which, for those that go on with it.
pub(crate) fn tell_time(reply: DocBuf, at: u64) -> DocBuf {
    let Some(cursor) = reply.get("cursor").and_then(Val::as_doc) else {
        return match reply.get("atClusterTime").is_some() {
            true => reply,
            false => {
                let time = doc! {"atClusterTime": bson::Value::timestamp(at)};
                with_fields(reply.as_doc(), time.as_doc())
            }
        };
    };
    if cursor.contains("atClusterTime") {
        return reply;
    }
    let mut w = Writer::with_capacity(reply.as_bytes().len() + 32);
    for e in reply.as_doc() {
        match e.name {
            "cursor" => {
                w.open_doc("cursor").extend(cursor);
                w.timestamp("atClusterTime", at).close();
            }
            name => {
                w.val(name, e.val);
            }
        }
    }
    w.finish()
}
