//! What runs in the cluster: the operations of all shards, under numbers that say their shard.
//!
//! ```text
//! opid of an operation at a shard = "<shard>:<number there>"; of the router itself a number
//! ```

use crate::access;
use crate::request::{RoutedCommand, finish};
use crate::scratch::compute_for;
use crate::state::Router;
use crate::state::transactions::id_of;
use auth::{Action, Target};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::all;
use commands::LoggedIn;
use errors::err;
use mover::moves_under_way;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

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

/// `currentOp`, the command.
pub(crate) fn current(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let user = command.user.clone();
    let own = compute_for(router, user, &command.whole())?;
    let mut w = Writer::new();
    w.open_array("inprog");
    let listed = |reply: &DocBuf| {
        let list = reply.get("inprog").and_then(Val::as_array);
        let docs = list.unwrap_or(Doc::EMPTY).values();
        docs.filter_map(Val::as_doc)
            .map(Doc::to_buf)
            .collect::<Vec<_>>()
    };
    for operation in listed(&own) {
        w.push(operation.as_doc().as_val());
    }
    let own_only = command.is("$ownOps")
        || !access::may(command.user.as_deref(), Action::Inprog, Target::Cluster);
    let ask = command.without(&["$db", "lsid", "$ownOps"]).finish();
    let mut fields = Writer::new();
    for e in ask.as_doc().iter().filter(|e| e.name != "$db") {
        fields.val(e.name, e.val);
    }
    let ask = fields.finish();
    for shard in router.cluster.shard_names()? {
        let reply = router.cluster.on_shard(&shard, "admin", ask.as_doc())?;
        let all = listed(&reply);
        for operation in all.iter().filter(|o| !own_only || is_of(command, o)) {
            w.push(of_shard(&shard, operation.as_doc()).as_doc().as_val());
        }
    }
    if !own_only {
        let wanted = Filter::parse(wanted(command).as_doc(), &ParseEnv::new())?;
        for operation in moves_under_way::operations(&router.cluster)? {
            if wanted.matches_with(operation.as_doc(), &Vars::default())? {
                w.push(operation.as_doc().as_val());
            }
        }
    }
    w.close();
    Ok(finish(w, &[]))
}

/// Fields of `currentOp` that are no filter on operations.
const NO_FILTER: [&str; 8] = [
    "lsid",
    "txnNumber",
    "maxTimeMS",
    "comment",
    "readConcern",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];

fn wanted(command: &RoutedCommand<'_>) -> DocBuf {
    let mut w = Writer::new();
    let fields = command.body.iter().skip(1);
    for e in fields.filter(|e| !e.name.starts_with('$') && !NO_FILTER.contains(&e.name)) {
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
        let seen = operations.iter().filter(|o| !own_only || is_of(command, o));
        found.extend(seen.map(|o| of_shard(&shard, o.as_doc())));
    }
    if !own_only {
        found.extend(moves_under_way::operations(&router.cluster)?);
    }
    Ok(found)
}

pub(crate) fn kill(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let Some(op) = command.field("op").and_then(Val::as_str) else {
        return compute_for(router, command.user.clone(), &command.whole());
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
fn is_of(command: &RoutedCommand<'_>, operation: &DocBuf) -> bool {
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
    let list = reply.get("inprog").and_then(Val::as_array);
    let mut found = list.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc);
    Ok(found.all(|operation| is_of(command, &operation.to_buf())))
}

/// `killSessions`, `killAllSessions`, `killAllSessionsByPattern`: here and on all shards.
pub(crate) fn kill_sessions(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = compute_for(router, command.user.clone(), &command.whole())?;
    let ask = match (&command.user, command.name) {
        (Some(user), "killSessions") => of_user(command, user),
        _ => {
            let given = command.field(command.name).unwrap_or(Val::NULL);
            let mut w = Writer::new();
            w.val(command.name, given);
            w.finish()
        }
    };
    for shard in router.cluster.shard_names()? {
        router.cluster.on_shard(&shard, "admin", ask.as_doc())?;
    }
    Ok(reply)
}

/// The sessions that a user names, or all of the user's.
fn of_user(command: &RoutedCommand<'_>, user: &LoggedIn) -> DocBuf {
    let uid = bson::Value::binary(0, &user.uid);
    let list = command.field("killSessions").and_then(Val::as_array);
    let list = list.unwrap_or(Doc::EMPTY);
    let mut w = Writer::new();
    w.open_array("killAllSessionsByPattern");
    for id in list.values().filter_map(|v| v.as_doc()?.get("id")) {
        let lsid = doc! {"lsid": doc! {"id": id.to_value(), "uid": uid.clone()}};
        w.push(lsid.as_doc().as_val());
    }
    if list.is_empty() {
        w.push(doc! {"uid": uid}.as_doc().as_val());
    }
    w.close();
    w.finish()
}

/// `endSessions`: here at once, on the shards soon. Their open transactions are aborted.
pub(crate) fn end_sessions(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = compute_for(router, command.user.clone(), &command.whole())?;
    let list = command.field("endSessions").and_then(Val::as_array);
    let mut w = Writer::new();
    w.open_array("endSessions");
    for session in list.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc) {
        let mut own = Writer::new();
        own.extend(session);
        if let Some(user) = command.user.as_ref().filter(|_| !session.contains("uid")) {
            own.value("uid", bson::Value::binary(0, &user.uid));
        }
        let own = own.finish();
        router.transactions.forget(&id_of(own.as_doc()));
        w.push(own.as_doc().as_val());
    }
    w.close().str("$db", "admin");
    let _ = router.ended_sessions.0.try_send(w.finish());
    Ok(reply)
}
