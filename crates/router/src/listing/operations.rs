//! What runs in the cluster: the operations of all shards, under numbers that say their shard.
//!
//! ```text
//! opid of an operation at a shard = "<shard>:<number there>"; of the router itself a number
//! ```

use crate::access;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use auth::{Action, Target};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::all;
use errors::err;
use mover::moves_under_way;

/// An operation of a shard as the router shows it.
fn of_shard(shard: &str, operation: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(operation.len() + 64);
    w.str("shard", shard);
    for e in operation.iter().filter(|e| e.name != "shard") {
        match (e.name, e.val.to_i64_exact()) {
            ("opid", Some(id)) => w.str("opid", &format!("{shard}:{id}")),
            // The shard's client is a router; whose that is only the router knows.
            ("client", _) => w.val("client_s", e.val),
            _ => w.val(e.name, e.val),
        };
    }
    w.finish()
}

/// `currentOp`, the command: of this process, of the shards, and the moves under way.
pub(crate) fn current(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let (own, asked) = router.local.current_op(&command.step()?)?;
    let mut w = Writer::new();
    w.open_array("inprog");
    for operation in listed(&own) {
        w.push(operation.as_val());
    }
    let own_only =
        asked.own || !access::may(command.user.as_deref(), Action::Inprog, Target::Cluster);
    let ask = command.without(&["$db", "lsid", "$ownOps"]).finish();
    let ask = without_db(ask.as_doc());
    for shard in router.cluster.shard_names()? {
        let reply = router.cluster.on_shard(&shard, "admin", ask.as_doc())?;
        for operation in listed(&reply).filter(|o| !own_only || is_of(command, *o)) {
            w.push(of_shard(&shard, operation).as_doc().as_val());
        }
    }
    if !own_only {
        for operation in moves_under_way::operations(&router.cluster)? {
            if asked.shows(operation.as_doc())? {
                w.push(operation.as_doc().as_val());
            }
        }
    }
    w.close();
    Ok(finish(w, &[]))
}

fn listed(reply: &DocBuf) -> impl Iterator<Item = Doc<'_>> {
    let list = reply.get("inprog").and_then(Val::as_array);
    list.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc)
}

/// A command for a shard, which is told the database beside it.
fn without_db(command: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(command.len());
    for e in command.iter().filter(|e| e.name != "$db") {
        w.val(e.name, e.val);
    }
    w.finish()
}

/// The documents of the stage `$currentOp`.
pub(crate) fn documents(
    router: &Router,
    command: &RoutedCommand<'_>,
    spec: Val<'_>,
) -> Outcome<Vec<DocBuf>> {
    let all_users = spec.as_doc().and_then(|d| d.get("allUsers"));
    let own_only = !all_users.is_some_and(Val::truthy);
    let mut stage = Writer::new();
    stage.val("$currentOp", spec);
    let ask = doc! {
        "aggregate": 1, "pipeline": bson::array![stage.finish()], "cursor": doc! {},
    };
    let mut found = Vec::new();
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let operations = all(&set, "admin", ask.as_doc())?;
        let seen = operations
            .iter()
            .filter(|o| !own_only || is_of(command, o.as_doc()));
        found.extend(seen.map(|o| of_shard(&shard, o.as_doc())));
    }
    if !own_only {
        found.extend(moves_under_way::operations(&router.cluster)?);
    }
    Ok(found)
}

pub(crate) fn kill(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let Some(op) = command.field("op").and_then(Val::as_str) else {
        return Ok(router.local.kill_op(&command.step()?)?);
    };
    let at_shard = op
        .rsplit_once(':')
        .and_then(|(shard, id)| Some((shard, id.parse::<i32>().ok()?)));
    let Some((shard, id)) = at_shard else {
        return Err(err!(
            FailedToParse,
            "The op argument to killOp must be of the format shardid:opid but found \"{op}\""
        )
        .into());
    };
    let may_any = access::may(command.user.as_deref(), Action::Killop, Target::Cluster);
    if !may_any && !is_own(router, command, shard, id)? {
        return Err(err!(
            Unauthorized,
            "not authorized on admin to execute command {{ killOp: 1, op: \"{op}\" }}"
        )
        .into());
    }
    let kill = doc! {"killOp": 1, "op": id};
    router.cluster.on_shard(shard, "admin", kill.as_doc())?;
    let mut w = Writer::new();
    w.str("info", "attempting to kill op");
    Ok(finish(w, &[]))
}

/// Whether a shard's operation is the client's: by whose session it is.
fn is_of(command: &RoutedCommand<'_>, operation: Doc<'_>) -> bool {
    let Some(user) = &command.user else {
        return true;
    };
    let lsid = operation.get("lsid").and_then(Val::as_doc);
    let uid = lsid.and_then(|l| l.get("uid")?.as_binary());
    uid.is_some_and(|(_, uid)| uid == user.uid)
}

/// Whether the operation of that number at a shard is the client's.
fn is_own(router: &Router, command: &RoutedCommand<'_>, shard: &str, id: i32) -> Outcome<bool> {
    let ask = doc! {"currentOp": 1, "opid": id};
    let reply = router.cluster.on_shard(shard, "admin", ask.as_doc())?;
    Ok(listed(&reply).all(|operation| is_of(command, operation)))
}

/// `killSessions`, `killAllSessions`, `killAllSessionsByPattern`: here and on all shards. Shards are told
/// whose the sessions are: for them the router speaks, and not the user.
pub(crate) fn kill_sessions(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let (reply, killed) = router.local.kill_sessions(&command.step()?)?;
    let Some(ask) = killed.command() else {
        return Ok(reply);
    };
    for shard in router.cluster.shard_names()? {
        router.cluster.on_shard(&shard, "admin", ask.as_doc())?;
    }
    Ok(reply)
}

/// `endSessions`: here at once, on the shards soon. Their open transactions are aborted.
pub(crate) fn end_sessions(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let (reply, ended) = router.local.end_sessions(&command.step()?)?;
    let mut w = Writer::new();
    w.open_array("endSessions");
    for lsid in &ended {
        router.transactions.forget(*lsid);
        w.open_doc("")
            .binary("id", 4, &lsid.id)
            .binary("uid", 0, &lsid.uid)
            .close();
    }
    w.close().str("$db", "admin");
    let _ = router.ended_sessions.0.try_send(w.finish());
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{json, shell};

    #[test]
    fn an_operation_of_a_shard_says_where_it_is() {
        for (operation, wanted) in [
            (
                r#"{"opid":7,"op":"query","client":"h:1"}"#,
                r#"{ shard: "s0", opid: "s0:7", op: "query", client_s: "h:1" }"#,
            ),
            // It may be a router itself, or say so.
            (
                r#"{"shard":"x","desc":"idle"}"#,
                r#"{ shard: "s0", desc: "idle" }"#,
            ),
            (r#"{"opid":"x"}"#, r#"{ shard: "s0", opid: "x" }"#),
        ] {
            let shown = of_shard("s0", json::parse(operation).unwrap().as_doc());
            assert_eq!(shell::doc(shown.as_doc()), wanted);
        }
    }
}
