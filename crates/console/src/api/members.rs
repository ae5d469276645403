//! The members of a replica set, and the shards of a cluster.

use super::{
    ApiAnswer, ApiFailure, aggregate, ask, doc_to_json, find, first_batch, reply_to_json, simple,
};
use crate::in_process::ServerConnection;
use bson::{DocBuf, Writer};
use serde_json::{Value, json};

const MOST: i64 = 1000;
const EVENTS: i64 = 100;

pub fn members(c: &mut dyn ServerConnection) -> ApiAnswer {
    let status = ask(c, "admin", &simple("replSetGetStatus"))?;
    let mut answer = json!({"status": reply_to_json(&status)});
    // It needs another right.
    if let Ok(config) = ask(c, "admin", &simple("replSetGetConfig")) {
        answer["config"] = reply_to_json(&config)["config"].clone();
    }
    answer["elections"] = elections(c);
    Ok(answer)
}

/// What the log says of elections, where the user may read it.
fn elections(c: &mut dyn ServerConnection) -> Value {
    let mut w = Writer::new();
    w.str("getLog", "global");
    let Ok(log) = ask(c, "admin", &w.finish()) else {
        return Value::Null;
    };
    let lines = log.get("log").and_then(|v| v.as_array());
    let lines = lines.into_iter().flat_map(|l| l.values());
    let lines = lines.filter_map(|l| serde_json::from_str::<Value>(l.as_str()?).ok());
    let of_elections = |l: &Value| matches!(l["c"].as_str(), Some("ELECTION" | "REPL"));
    let events = lines.filter(of_elections);
    let events =
        events.map(|l| json!({"t": l["t"], "s": l["s"], "msg": l["msg"], "attr": l["attr"]}));
    let all: Vec<Value> = events.collect();
    let newest = all.len().saturating_sub(EVENTS as usize);
    all.into_iter().skip(newest).collect()
}

fn documents(c: &mut dyn ServerConnection, command: &DocBuf) -> Result<Value, ApiFailure> {
    let reply = ask(c, "config", command)?;
    let all = first_batch(&reply).into_iter().map(doc_to_json);
    Ok(all.collect())
}

pub fn shards(c: &mut dyn ServerConnection) -> ApiAnswer {
    let all = |name: &str| find(name, json!({}), json!({"_id": 1}), MOST);
    let mut answer = json!({
        "shards": documents(c, &all("shards"))?,
        "databases": documents(c, &all("databases"))?,
        "collections": documents(c, &all("collections"))?,
    });
    let routers = find("mongos", json!({}), json!({"ping": -1}), EVENTS);
    answer["routers"] = documents(c, &routers).unwrap_or(Value::Null);
    let by_shard = json!([
        {"$group": {"_id": {"uuid": "$uuid", "shard": "$shard"}, "chunks": {"$sum": 1},
            "jumbo": {"$sum": {"$cond": ["$jumbo", 1, 0]}}}},
        {"$sort": {"_id.uuid": 1, "_id.shard": 1}},
        {"$limit": MOST * 10},
    ]);
    let by_shard = aggregate(Some("chunks"), by_shard, 10_000);
    answer["chunks"] = documents(c, &by_shard).unwrap_or(Value::Null);
    let events = find("changelog", json!({}), json!({"time": -1}), EVENTS);
    answer["events"] = documents(c, &events).unwrap_or(Value::Null);
    if let Ok(balancer) = ask(c, "admin", &simple("balancerStatus")) {
        answer["balancer"] = reply_to_json(&balancer);
    }
    Ok(answer)
}

/// The shards with their members, which are asked now: one that is down takes its time.
pub fn of_shards(c: &mut dyn ServerConnection) -> ApiAnswer {
    let mut w = Writer::new();
    w.i32("listShards", 1).bool("pandoMembers", true);
    let reply = ask(c, "admin", &w.finish())?;
    Ok(reply_to_json(&reply))
}
