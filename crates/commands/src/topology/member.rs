//! The part of a replica set's only member.

use crate::request::CommandContext;
use bson::ObjectId;
use service::Address;

/// The term of the one election there ever is.
pub const TERM: i64 = 1;
/// `electionId` as MongoDB makes it: a fixed prefix and the term.
pub const ELECTION_ID: ObjectId = ObjectId([0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1]);

/// `host:port` under which this member is reached: advertised, given by replSetInitiate, or where this client came in.
/// A server that listens on `localhost` by that name is `localhost` to who comes in on loopback: clients compare the name
/// that they were given with the one that they hear.
pub fn host(cx: &CommandContext<'_, '_>) -> String {
    if let Some(h) = &cx.app.config.advertise {
        return h.clone();
    }
    if let Some(h) = cx.app.initiated_host.lock().clone() {
        return h;
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

/// The fields of hello that only a member of a replica set has.
pub fn append_hello(cx: &mut CommandContext<'_, '_>) {
    let Some(name) = cx.app.config.topology.set_name().map(str::to_string) else {
        return;
    };
    let host = host(cx);
    let ts = cx.app.store.last_ts();
    let w = &mut cx.w;
    w.open_array("hosts").push_value(host.as_str()).close();
    w.str("setName", &name)
        .i32("setVersion", 1)
        .bool("secondary", false);
    w.str("primary", &host)
        .str("me", &host)
        .oid("electionId", ELECTION_ID);
    w.open_doc("lastWrite");
    for (op_time, date) in [
        ("opTime", "lastWriteDate"),
        ("majorityOpTime", "majorityWriteDate"),
    ] {
        w.open_doc(op_time)
            .timestamp("ts", ts)
            .i64("t", TERM)
            .close();
        w.date(date, (ts >> 32) as i64 * 1000);
    }
    w.close();
}
