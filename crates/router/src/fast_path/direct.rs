//! Commands that go from an event loop straight to the shards, and whose replies come back to it: no
//! thread waits for them.
//!
//! ```text
//! begin   what is known names the shards, and their members have a connection of this loop ─► sent
//!         otherwise                                                          ─► to a worker
//! finish  the reply counts                                                   ─► to the client
//!         the shard did nothing, or the same may be run again                ─► to a worker
//!         other batches have to be waited for                                ─► to a worker, with
//!                                                                               what has come
//! ```
//! A worker runs the command from its beginning, so that everything that is rare stands once, in
//! `agree` and what it calls.
//!
//! Invariant: nothing here waits. A command goes to a worker only when nothing that it does was done
//! by a shard, or when doing it again does no harm.

use crate::fast_path::loop_connections::{LoopConnections, Outgoing, Slot};
use crate::reads::find::Scattered;
use crate::reads::{aggregate, views};
use crate::request::RoutedCommand;
use crate::state::{Router, cursors};
use crate::targeting::targets;
use crate::transactions::snapshot;
use crate::writes::find_and_modify::{Found, found_at};
use crate::writes::write::ForOneShard;
use bson::{Doc, DocBuf};
use cluster_view::metadata::Placement;
use cluster_view::operation_time::end_of_step;
use cluster_view::read_preference::ReadPreference;
use cluster_view::replica_set::{Member, ReplicaSet, ServerSelection, Terms};
use cluster_view::upstream::ReplyRoom;
use cluster_view::{Failure, Outcome};
use std::sync::Arc;

/// Whether a command may be served so.
pub(crate) fn serves(name: &str) -> bool {
    matches!(
        name,
        "find"
            | "aggregate"
            | "count"
            | "distinct"
            | "insert"
            | "update"
            | "delete"
            | "findAndModify"
    )
}

/// How the replies become the client's.
enum Then {
    /// One shard's reply is the client's; a cursor in it becomes one of the router's, over `ns`.
    Adopt {
        ns: String,
    },
    /// The same without a cursor. A view is told by the shard, and is for a worker.
    Read,
    /// The reply to all statements of a write.
    Wrote {
        statements: usize,
    },
    /// As it came.
    AsItIs,
    Merge(Box<Scattered>),
}

/// What one shard is asked.
struct ShardRequest {
    shard: Arc<str>,
    set: Arc<ReplicaSet>,
    member: Arc<Member>,
    terms: Terms,
    slot: Slot,
}

/// A command that was sent.
pub(crate) struct UnderWay {
    parts: Vec<ShardRequest>,
    then: Then,
    /// The replies, for the worker that goes on, and the memory of long ones.
    replies: Vec<DocBuf>,
    rooms: Vec<ReplyRoom>,
}

/// The commands to send.
struct Plan<'a> {
    commands: Vec<(Arc<str>, DocBuf)>,
    sequences: &'a [wire::Sequence<'a>],
    then: Then,
}

/// What came of it.
pub(crate) enum Finished {
    Reply(Outcome<DocBuf>),
    /// A worker has to run the command from its beginning.
    Anew,
    /// A worker has to [`go on`](conclude).
    Waits(UnderWay),
}

/// Sends a command on, if that can be done at once: the ticket of its replies.
pub(crate) fn begin(
    router: &Router,
    loop_connections: &mut LoopConnections,
    command: &RoutedCommand<'_>,
) -> Option<(u64, UnderWay)> {
    if command.db == "local" || command.in_transaction() || snapshot::wants_snapshot(command) {
        return None;
    }
    if let Some(given) = command.generic.read_preference {
        ReadPreference::parse(given).ok()?;
    }
    router.cluster.hear_time(command.body);
    let ns = command.namespace().ok()?;
    let placement = router.cluster.known_placement(&ns)?;
    let plan = plan(router, command, ns, &placement)?;
    send(router, loop_connections, &placement, plan)
}

/// `None`: a worker shall find out what to do.
fn plan<'a>(
    router: &Router,
    command: &RoutedCommand<'a>,
    ns: String,
    placement: &Placement,
) -> Option<Plan<'a>> {
    let one = |shard: Arc<str>, body: DocBuf, then: Then| Plan {
        commands: vec![(shard, body)],
        sequences: &[],
        then,
    };
    let read = |filter: &str| {
        let filter = command.document(filter).unwrap_or(Doc::EMPTY);
        targets(command, placement, filter).ok()
    };
    Some(match command.name {
        "find" => {
            let mut shards = read("filter")?;
            if shards.len() == 1 {
                return Some(one(shards.pop()?, command.whole(), Then::Adopt { ns }));
            }
            let scattered = Scattered::of(command, placement, &ns).ok()??;
            let each = |shard: &Arc<str>| (shard.clone(), scattered.each.clone());
            Plan {
                commands: shards.iter().map(each).collect(),
                sequences: &[],
                then: Then::Merge(Box::new(scattered)),
            }
        }
        "aggregate" => {
            let (shard, body) = aggregate::on_one_shard(command, placement)?;
            one(shard, body, Then::Adopt { ns })
        }
        "count" | "distinct" => {
            let mut shards = read("query")?;
            let shard = shards.pop().filter(|_| shards.is_empty())?;
            one(shard, command.whole(), Then::Read)
        }
        "insert" | "update" | "delete" => match placement {
            Placement::Unsharded(unsharded) => Plan {
                commands: vec![(unsharded.shard.clone(), command.whole())],
                sequences: command.request.sequences,
                then: Then::AsItIs,
            },
            Placement::Sharded(_) => {
                let write = ForOneShard::of(router, command, placement)?;
                let then = Then::Wrote {
                    statements: write.statements,
                };
                one(write.shard, write.body, then)
            }
        },
        _ => {
            let filter = command.document("query").unwrap_or(Doc::EMPTY);
            match found_at(command, filter, placement).ok()? {
                Found::On(shard) => one(shard, command.whole(), Then::AsItIs),
                Found::Somewhere | Found::MayMove => return None,
            }
        }
    })
}

fn send(
    router: &Router,
    loop_connections: &mut LoopConnections,
    placement: &Placement,
    plan: Plan<'_>,
) -> Option<(u64, UnderWay)> {
    let mut messages = Vec::with_capacity(plan.commands.len());
    let mut to = Vec::with_capacity(plan.commands.len());
    for (shard, command) in plan.commands {
        let set = router.cluster.known_shard(&shard)?;
        let command = command.as_doc();
        let message = router
            .cluster
            .versioned(placement, &shard, command, plan.sequences);
        let selection = ServerSelection::of(&message).ok()?;
        let member = set.choose_now(&selection)?;
        to.push((shard, selection.terms));
        let until = end_of_step(selection.most);
        messages.push(Outgoing {
            set,
            member,
            message,
            until,
        });
    }
    let (ticket, slots) = loop_connections.send(&messages)?;
    let parts = to.into_iter().zip(messages).zip(slots);
    let part = |(((shard, terms), sent), slot): (((_, _), Outgoing), _)| ShardRequest {
        shard,
        set: sent.set,
        member: sent.member,
        terms,
        slot,
    };
    let under_way = UnderWay {
        parts: parts.map(part).collect(),
        then: plan.then,
        replies: Vec::new(),
        rooms: Vec::new(),
    };
    Some((ticket, under_way))
}

/// Does what follows from the replies.
pub(crate) fn finish(
    router: &Router,
    mut under_way: UnderWay,
    command: &RoutedCommand<'_>,
) -> Finished {
    let mut replies = Vec::with_capacity(under_way.parts.len());
    for part in &under_way.parts {
        match part.judged(router, &mut under_way.rooms) {
            Judged::Reply(reply) => replies.push(reply),
            Judged::Anew => return Finished::Anew,
            Judged::Failed(failure) => return Finished::Reply(Err(failure)),
        }
    }
    // A shard that has more is waited for where the client wants more.
    let waits = match &under_way.then {
        Then::Merge(_) => replies
            .iter()
            .any(|reply| cluster_view::reply::cursor_id(reply) != 0),
        _ => false,
    };
    under_way.replies = replies;
    match waits {
        true => Finished::Waits(under_way),
        false => conclude(router, under_way, command),
    }
}

/// Does what follows from replies that count; on a worker it may wait for more of them.
pub(crate) fn conclude(
    router: &Router,
    under_way: UnderWay,
    command: &RoutedCommand<'_>,
) -> Finished {
    let UnderWay {
        parts,
        then,
        mut replies,
        rooms: _rooms,
    } = under_way;
    if let Then::Merge(scattered) = then {
        let shards: Vec<_> = parts.into_iter().map(|part| part.shard).collect();
        return match replies
            .iter()
            .any(|reply| views::resolved_view(reply).is_some())
        {
            true => Finished::Anew,
            false => Finished::Reply(scattered.finish(router, &shards, &replies)),
        };
    }
    let (Some(part), Some(reply)) = (parts.into_iter().next(), replies.pop()) else {
        return Finished::Anew;
    };
    let reads = matches!(then, Then::Adopt { .. } | Then::Read);
    if reads && views::resolved_view(&reply).is_some() {
        return Finished::Anew;
    }
    Finished::Reply(match then {
        Then::Adopt { ns } => Ok(cursors::adopt(router, &ns, &part.shard, reply)),
        Then::Wrote { statements } => ForOneShard::reply(statements, command.name, &reply),
        _ => Ok(reply),
    })
}

enum Judged {
    Reply(DocBuf),
    Anew,
    Failed(Failure),
}

impl ShardRequest {
    fn judged(&self, router: &Router, rooms: &mut Vec<ReplyRoom>) -> Judged {
        let reply = match self.slot.lock().take() {
            Some((reply, room)) => {
                rooms.push(room);
                reply
            }
            None => Err(Failure::Lost(format!(
                "{} was not heard to the end",
                self.shard
            ))),
        };
        let Some(reply) = self.set.judge(self.terms, &self.member, reply) else {
            return Judged::Anew;
        };
        match reply.and_then(|reply| router.cluster.judge(&self.shard, reply)) {
            Ok(reply) => Judged::Reply(reply),
            Err(Failure::Stale(_)) => Judged::Anew,
            Err(failure) => Judged::Failed(failure),
        }
    }
}
