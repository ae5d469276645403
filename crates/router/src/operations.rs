//! What runs in the cluster: the operations of all shards, under numbers that say their shard.
//!
//! ```text
//! opid of an operation at a shard = "<shard>:<number there>"; of the router itself a number
//! ```

use crate::Outcome;
use crate::metadata::all;
use crate::request::{Command, finish};
use crate::service_impl::{Router, compute};
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::err;

/// An operation of a shard as the router shows it.
fn of_shard(shard: &str, operation: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(operation.len() + 64);
    w.str("shard", shard);
    for e in operation.iter().filter(|e| e.name != "shard") {
        match (e.name, e.val.to_i64_exact()) {
            ("opid", Some(id)) => w.str("opid", &format!("{shard}:{id}")),
            _ => w.val(e.name, e.val),
        };
    }
    w.finish()
}

/// `currentOp`, the command.
pub(crate) fn current(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let own = compute(router, &command.whole())?;
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
    let ask = command.without(&["$db", "lsid"]).finish();
    let mut fields = Writer::new();
    for e in ask.as_doc().iter().filter(|e| e.name != "$db") {
        fields.val(e.name, e.val);
    }
    let ask = fields.finish();
    for shard in router.cluster.shard_names()? {
        let reply = router.cluster.on_shard(&shard, "admin", ask.as_doc())?;
        for operation in listed(&reply) {
            w.push(of_shard(&shard, operation.as_doc()).as_doc().as_val());
        }
    }
    w.close();
    Ok(finish(w, &[]))
}

/// The documents of the stage `$currentOp`.
pub(crate) fn documents(router: &Router, spec: Val<'_>) -> Outcome<Vec<DocBuf>> {
    let mut stage = Writer::new();
    stage.val("$currentOp", spec);
    let ask = doc! {
        "aggregate": 1, "pipeline": bson::array![stage.finish()], "cursor": doc! {},
    };
    let mut found = Vec::new();
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let operations = all(&set, "admin", ask.as_doc())?;
        found.extend(operations.iter().map(|o| of_shard(&shard, o.as_doc())));
    }
    Ok(found)
}

pub(crate) fn kill(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let Some(op) = command.field("op").and_then(Val::as_str) else {
        return compute(router, &command.whole());
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
    let kill = doc! {"killOp": 1, "op": id};
    router.cluster.on_shard(shard, "admin", kill.as_doc())?;
    let mut w = Writer::new();
    w.str("info", "attempting to kill op");
    Ok(finish(w, &[]))
}
