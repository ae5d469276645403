//! One state of all shards: for transactions and reads with read concern `snapshot`
//! ([`sharding::snapshot`] has the steps).

use crate::request::RoutedCommand;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::collections::now;
use cluster_view::metadata::{CONFIG, Cluster};
use cluster_view::reply::sound;
use cluster_view::upstream::with_fields;
use cluster_view::write_concern;
use cluster_view::write_concern::acknowledged;
use cluster_view::{Failure, Outcome};
use errors::{Error, err};
use mover::two_phase::Id;
use sharding::snapshot::{Answer, Ask, Pinning};
use sharding::two_phase::Shard;

/// How often a state of all shards is pinned before the client hears that it cannot be.
const TRIES: u32 = 3;

/// States of all shards at one time.
pub(crate) trait Snapshots {
    /// Has all shards keep one state; its time. Where one has failed on the way, and lost its part, it
    /// is another state.
    fn pin_snapshot(&self) -> Outcome<u64>;

    fn pin_once(&self) -> Outcome<u64>;
}

impl Snapshots for Cluster {
    fn pin_snapshot(&self) -> Outcome<u64> {
        let mut tries = 1;
        loop {
            let again = |e: &Error| commands::is_transient(e.code) && tries < TRIES;
            match self.pin_once() {
                Err(Failure::Client(e)) if again(&e) => {}
                Err(Failure::Lost(_)) if tries < TRIES => {}
                outcome => return outcome,
            }
            tries += 1;
        }
    }

    fn pin_once(&self) -> Outcome<u64> {
        let shards: Vec<Shard> = self.shard_names()?.into_iter().map(Shard::from).collect();
        let mut pinning: Pinning<Id> = Pinning::new(shards, self.time());
        loop {
            let asks = pinning.asks();
            if asks.is_empty() {
                return Ok(pinning.at());
            }
            let at = pinning.at();
            let messages: Vec<_> = asks
                .iter()
                .map(|(shard, ask)| (shard.clone(), question(at, &fields_of(ask))))
                .collect();
            let replies = self.together(&messages).into_iter().zip(&asks);
            let answers: Outcome<Vec<Answer<Id>>> = replies
                .map(|(reply, (_, ask))| Ok(answer(ask, &acknowledged(sound(reply?)?)?)))
                .collect();
            pinning.heard(answers?, self.time())?;
        }
    }
}

fn fields_of(ask: &Ask<Id>) -> DocBuf {
    match ask {
        Ask::Pin => DocBuf::default(),
        Ask::Committed(ids) => names("committed", ids.iter()),
        Ask::Include(ids) => names("include", ids.iter()),
    }
}

fn answer(ask: &Ask<Id>, reply: &DocBuf) -> Answer<Id> {
    let list = |name: &str| {
        reply
            .get(name)
            .and_then(Val::as_array)
            .unwrap_or(Doc::EMPTY)
    };
    match ask {
        Ask::Pin if !reply.get("pinned").is_some_and(Val::truthy) => {
            let time = reply.get("time").and_then(Val::as_timestamp);
            Answer::Late(time.unwrap_or(0))
        }
        Ask::Pin => {
            let prepared = list("prepared").values().filter_map(Val::as_doc);
            let read = |d: Doc<'_>| Some((d.get("recoveryShard")?.as_str()?.into(), Id::read(d)?));
            Answer::Pinned(prepared.filter_map(read).collect())
        }
        Ask::Committed(_) => {
            Answer::Committed(list("committed").values().map(Val::truthy).collect())
        }
        Ask::Include(_) => Answer::Included,
    }
}

fn question(at: u64, fields: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    w.i32("_pandoSnapshot", 1)
        .timestamp("at", at)
        .doc("writeConcern", write_concern::majority().as_doc())
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

/// Whether a command reads one state of all shards, or begins a transaction that does.
pub(crate) fn wants_snapshot(command: &RoutedCommand<'_>) -> bool {
    let reads = matches!(command.name, "find" | "aggregate" | "distinct");
    let begins = command.in_transaction() && command.generic.start_transaction;
    let of_cluster = !matches!(command.db, CONFIG | "admin");
    command.read_level() == Some("snapshot")
        && of_cluster
        && (begins || reads && !command.in_transaction())
}

/// The time that the command gives, of a state that was kept before.
pub(crate) fn given_time(command: &RoutedCommand<'_>) -> Option<u64> {
    let concern = command.read_concern();
    concern.and_then(|c| c.get("atClusterTime")?.as_timestamp())
}

/// Fails for a time that has not come: `heard` is the latest that the router has heard of. Times that
/// routers choose are a little ahead of it.
pub(crate) fn check_time(at: u64, heard: u64) -> Outcome<()> {
    let newest = heard.max(now() + (1 << 32));
    if at <= newest {
        return Ok(());
    }
    let shown = |ts: u64| format!("Timestamp({}, {})", ts >> 32, ts & u64::from(u32::MAX));
    Err(err!(
        InvalidOptions,
        "readConcern atClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
        shown(at),
        shown(newest)
    )
    .into())
}

/// The command's read concern with the time.
pub(crate) fn concern_at(command: &RoutedCommand<'_>, at: u64) -> DocBuf {
    let concern = command.read_concern().unwrap_or(Doc::EMPTY);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::with_command;
    use bson::shell;

    const SNAPSHOT: &str = r#""readConcern":{"level":"snapshot"}"#;
    const STATEMENT: &str = r#""autocommit":false,"txnNumber":{"$numberLong":"1"}"#;

    #[test]
    fn what_reads_one_state_of_all_shards() {
        for (command, more, wanted) in [
            ("find", SNAPSHOT.to_string(), true),
            ("aggregate", SNAPSHOT.to_string(), true),
            ("distinct", SNAPSHOT.to_string(), true),
            // The shards refuse it.
            ("count", SNAPSHOT.to_string(), false),
            ("insert", SNAPSHOT.to_string(), false),
            (
                "find",
                r#""readConcern":{"level":"majority"}"#.into(),
                false,
            ),
            ("find", r#""readConcern":{}"#.into(), false),
            ("find", r#""limit":1"#.into(), false),
            // A transaction says it once, with whichever command it begins.
            (
                "insert",
                format!(r#"{STATEMENT},"startTransaction":true,{SNAPSHOT}"#),
                true,
            ),
            ("find", format!("{STATEMENT},{SNAPSHOT}"), false),
            (
                "find",
                format!(r#"{STATEMENT},"startTransaction":true"#),
                false,
            ),
        ] {
            let text = format!(r#"{{"{command}":"c",{more}}}"#);
            assert_eq!(with_command(&text, wants_snapshot), wanted, "{text}");
        }
    }

    #[test]
    fn the_time_of_a_state_stands_alone() {
        for (concern, given, wanted) in [
            (
                r#"{"level":"snapshot"}"#,
                None,
                r#"{ level: "snapshot", atClusterTime: Timestamp(0, 7) }"#,
            ),
            (
                r#"{"level":"snapshot","afterClusterTime":{"$timestamp":{"t":0,"i":3}}}"#,
                None,
                r#"{ level: "snapshot", atClusterTime: Timestamp(0, 7) }"#,
            ),
            (
                r#"{"atClusterTime":{"$timestamp":{"t":0,"i":5}},"level":"snapshot"}"#,
                Some(5),
                r#"{ level: "snapshot", atClusterTime: Timestamp(0, 7) }"#,
            ),
        ] {
            with_command(
                &format!(r#"{{"find":"c","readConcern":{concern}}}"#),
                |command| {
                    assert_eq!(given_time(command), given, "{concern}");
                    assert_eq!(shell::doc(concern_at(command, 7).as_doc()), wanted);
                },
            );
        }
    }

    #[test]
    fn a_time_that_has_not_come_is_refused() {
        let ahead = now() + (100 << 32);
        assert!(check_time(1, 0).is_ok());
        assert_eq!(check_time(ahead, 0).unwrap_err().into_error().code.0, 72);
        assert!(check_time(ahead, ahead).is_ok(), "another has told it");
    }

    #[test]
    fn replies_say_which_state_they_show() {
        let time = || bson::Value::timestamp(9);
        let cursor = doc! {"id": 1i64, "firstBatch": bson::array![]};
        let told = doc! {"id": 1i64, "atClusterTime": time()};
        for (reply, wanted) in [
            (
                doc! {"values": bson::array![], "ok": 1.0},
                "{ values: [], ok: 1.0, atClusterTime: Timestamp(0, 9) }",
            ),
            (
                doc! {"ok": 1.0, "atClusterTime": time()},
                "{ ok: 1.0, atClusterTime: Timestamp(0, 9) }",
            ),
            (
                doc! {"cursor": cursor, "ok": 1.0},
                "{ cursor: { id: 1, firstBatch: [], atClusterTime: Timestamp(0, 9) }, ok: 1.0 }",
            ),
            (
                doc! {"cursor": told, "ok": 1.0},
                "{ cursor: { id: 1, atClusterTime: Timestamp(0, 9) }, ok: 1.0 }",
            ),
        ] {
            assert_eq!(shell::doc(tell_time(reply, 9).as_doc()), wanted);
        }
    }
}
