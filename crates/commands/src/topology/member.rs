//! The part of this server in its replica set, as `hello` tells it.
//!
//! A server that was given no name of a set is the one member, and primary, of `rs0`.

use crate::request::CommandContext;
use bson::{ObjectId, Writer};
use replication::Config;
use replication::driver::Status;
use service::Address;
use std::sync::Arc;

/// The term of the one election there ever is, without a configuration.
const ONLY_TERM: i64 = 1;

/// `electionId` as MongoDB makes it: a fixed prefix and the term.
pub fn election_id(term: i64) -> ObjectId {
    let mut id = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    id[4..].copy_from_slice(&term.to_be_bytes());
    ObjectId(id)
}

/// `host:port` under which this member is reached: advertised, configured, or where this client came in.
/// A server that listens on `localhost` by that name is `localhost` to a client on loopback: clients
/// compare the name that they were given with the one that they hear.
pub fn host(cx: &CommandContext<'_, '_>) -> String {
    if let Some(h) = &cx.app.config.advertise {
        return h.clone();
    }
    if let Some(driver) = &cx.app.replica {
        let status = driver.status();
        if let Some(member) = status.member(status.id) {
            return member.host.to_string();
        }
    }
    let named = cx.app.config.bind.iter().any(|b| b == "localhost");
    match &cx.client.local {
        Address::Tcp(a) if named && a.ip().to_canonical().is_loopback() => {
            format!("localhost:{}", a.port())
        }
        Address::Tcp(a) if !a.ip().is_unspecified() => cx.client.local.to_string(),
        _ => format!("localhost:{}", cx.app.config.port),
    }
}

/// The current term.
pub fn term(cx: &CommandContext<'_, '_>) -> i64 {
    match &cx.app.replica {
        Some(driver) => driver.status().term as i64,
        None => ONLY_TERM,
    }
}

/// Whether this server takes writes.
pub fn is_primary(cx: &CommandContext<'_, '_>) -> bool {
    cx.app
        .replica
        .as_ref()
        .is_none_or(|driver| driver.status().is_primary())
}

/// Whether clients are told to write here: a primary that hands over, or has not begun, is told as a
/// secondary.
pub fn is_writable(cx: &CommandContext<'_, '_>) -> bool {
    let driver = cx.app.replica.as_ref();
    driver.is_none_or(|driver| driver.is_leading() && driver.is_open())
}

/// Changes after each rollback (`rbid`).
pub fn rollback_id(cx: &CommandContext<'_, '_>) -> i32 {
    let rollbacks = cx.app.replica.as_ref().map_or(0, |d| d.status().rollbacks);
    i32::try_from(rollbacks).unwrap_or(i32::MAX - 1) + 1
}

/// Whether it has the set's data, or will have by the log alone.
pub fn has_data(status: &Status) -> bool {
    matches!(status.state(), 1 | 2)
}

/// The fields of hello that only a member of a replica set has.
pub fn append_hello(cx: &mut CommandContext<'_, '_>) {
    let Some(name) = cx.app.config.topology.set_name().map(str::to_string) else {
        return;
    };
    let ts = cx.app.store.last_ts();
    let Some(driver) = &cx.app.replica else {
        let host = host(cx);
        let w = &mut cx.w;
        w.open_array("hosts").push_value(host.as_str()).close();
        w.str("setName", &name)
            .i32("setVersion", 1)
            .bool("secondary", false);
        w.str("primary", &host)
            .str("me", &host)
            .oid("electionId", election_id(ONLY_TERM));
        append_last_write(w, ts, ts, ONLY_TERM);
        return;
    };
    let status = driver.status();
    let is_member = status.id != 0 && !status.is_removed;
    let Some(config) = status.config.clone().filter(|_| is_member) else {
        cx.w.bool("secondary", false)
            .bool("isreplicaset", true)
            .str("info", "Does not have a valid replica set config");
        return;
    };
    let majority_ts = majority_ts(&status, ts);
    let writable = driver.is_open();
    append_configured(&mut cx.w, &name, &status, &config, writable);
    append_last_write(&mut cx.w, ts, majority_ts, status.term as i64);
}

/// The timestamp of the newest entry that a majority has. `ts`: of the newest that is applied here.
pub fn majority_ts(status: &Status, ts: u64) -> u64 {
    match status.committed.ts {
        0 => ts,
        committed => committed.min(ts),
    }
}

fn append_configured(
    w: &mut Writer,
    name: &str,
    status: &Status,
    config: &Arc<Config>,
    writable: bool,
) {
    let lists: [(&str, fn(&replication::config::MemberConfig) -> bool); 3] = [
        ("hosts", |m| m.is_host()),
        ("passives", |m| m.is_passive()),
        ("arbiters", |m| m.arbiter_only),
    ];
    for (field, holds) in lists {
        if field != "hosts" && !config.members.iter().any(holds) {
            continue;
        }
        w.open_array(field);
        for member in config.members.iter().filter(|m| holds(m)) {
            w.push_value(member.host.to_string().as_str());
        }
        w.close();
    }
    w.str("setName", name)
        .int("setVersion", config.version)
        .bool(
            "secondary",
            status.state() == 2 || status.is_primary() && !writable,
        );
    if let Some(primary) = status.primary_host() {
        w.str("primary", &primary);
    }
    if let Some(own) = status.member(status.id) {
        w.str("me", &own.host.to_string());
        if own.hidden {
            w.bool("hidden", true);
        }
        if own.priority == 0.0 {
            w.bool("passive", true);
        }
        if own.delay_secs > 0 {
            w.int("secondaryDelaySecs", own.delay_secs);
        }
        if !own.tags.is_empty() {
            own.append_tags("tags", w);
        }
    }
    if status.is_primary() {
        w.oid("electionId", election_id(status.term as i64));
    }
}

fn append_last_write(w: &mut Writer, ts: u64, majority_ts: u64, term: i64) {
    w.open_doc("lastWrite");
    for (op_time, date, ts) in [
        ("opTime", "lastWriteDate", ts),
        ("majorityOpTime", "majorityWriteDate", majority_ts),
    ] {
        w.open_doc(op_time)
            .timestamp("ts", ts)
            .i64("t", term)
            .close();
        w.date(date, (ts >> 32) as i64 * 1000);
    }
    w.close();
}
