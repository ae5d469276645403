//! The configuration of the set that this server is a member of.

use crate::request::CommandContext;
use crate::topology::member::{election_id, host, term};
use bson::{DocBuf, Writer};

/// The configuration of this server's set; `None` where it has none.
pub fn config(cx: &CommandContext<'_, '_>) -> Option<DocBuf> {
    let name = cx.app.config.topology.set_name()?.to_string();
    let (host, term) = (host(cx), term(cx));
    if let Some(driver) = &cx.app.replica {
        return Some(driver.status().config.as_ref()?.to_doc());
    }
    let mut w = Writer::new();
    w.str("_id", &name).i32("version", 1).i64("term", term);
    w.open_array("members").open_doc("");
    w.i32("_id", 0)
        .str("host", &host)
        .bool("arbiterOnly", false)
        .bool("buildIndexes", true)
        .bool("hidden", false);
    w.i32("priority", 1)
        .open_doc("tags")
        .close()
        .i64("secondaryDelaySecs", 0)
        .i32("votes", 1);
    w.close().close();
    w.i64("protocolVersion", 1)
        .bool("writeConcernMajorityJournalDefault", true);
    w.open_doc("settings");
    w.bool("chainingAllowed", true)
        .i32("heartbeatIntervalMillis", 2000)
        .i32("heartbeatTimeoutSecs", 10);
    w.i32("electionTimeoutMillis", 10_000)
        .i32("catchUpTimeoutMillis", -1)
        .i32("catchUpTakeoverDelayMillis", 30_000);
    w.open_doc("getLastErrorModes").close();
    w.open_doc("getLastErrorDefaults")
        .i32("w", 1)
        .i32("wtimeout", 0)
        .close();
    w.oid("replicaSetId", election_id(1));
    w.close();
    Some(w.finish())
}
