//! Commands through the dispatcher, as an event loop and then a worker would run them.

use crate::{Commands, Connection, Local};
use bson::{Doc, DocBuf, Val, json};
use front::{Args, ParsedCommand, specification};
use service::config::{ClusterRole, SecurityOptions, Topology};
use service::{Address, Client, Control, Mode, Outcome, Request, ServerConfig, Service};
use std::sync::Arc;
use storage::{Store, StoreOptions};

struct Server {
    commands: Commands,
    client: Client<Connection>,
    local: Local,
    _dir: tempfile::TempDir,
}

impl Server {
    fn new() -> Server {
        Server::with(ServerConfig::default())
    }

    fn with(config: ServerConfig) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path().join("data"));
        options.cache_bytes = 16 << 20;
        let store = Store::open(options).unwrap();
        let commands = Commands::new(store, config, Arc::new(Control::default())).unwrap();
        let local_address = Address::Tcp("127.0.0.1:27017".parse().unwrap());
        let peer = Address::Tcp("127.0.0.1:5000".parse().unwrap());
        let client = Client::new(7, peer, local_address, Connection::default());
        let local = commands.local();
        Server {
            commands,
            client,
            local,
            _dir: dir,
        }
    }

    fn run_doc(&mut self, body: Doc<'_>) -> (DocBuf, bool) {
        let request = Request::own(body);
        let mut out = Vec::new();
        let mut closed = false;
        match self.commands.run(
            &mut self.local,
            Mode::Inline,
            &self.client,
            &request,
            &mut out,
        ) {
            Outcome::Staged { .. } => {
                self.commands.commit(&mut self.local).unwrap();
            }
            Outcome::Suspended(_) => {
                assert!(out.is_empty(), "an offloaded command left bytes");
                let mut local = self.commands.local();
                closed = matches!(
                    self.commands
                        .run(&mut local, Mode::Worker, &self.client, &request, &mut out),
                    Outcome::Close
                );
            }
            Outcome::Close => closed = true,
            _ => {}
        }
        if closed {
            return (DocBuf::new(), true);
        }
        self.commands.finish(&self.client, &mut out, 0);
        bson::validate(&out).unwrap();
        (DocBuf::from_vec(out).unwrap(), false)
    }

    /// Runs a command on `test`, or on the database in `$db`.
    fn run(&mut self, text: &str) -> DocBuf {
        let body = json::parse(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let body = match body.get("$db") {
            Some(_) => body,
            None => {
                let mut w = bson::Writer::new();
                w.extend(body.as_doc()).str("$db", "test");
                w.finish()
            }
        };
        self.run_doc(body.as_doc()).0
    }

    fn ok(&mut self, text: &str) -> DocBuf {
        let r = self.run(text);
        assert_eq!(
            r.get("ok").and_then(|v| v.to_f64()),
            Some(1.0),
            "{text}\n{r:?}"
        );
        r
    }

    fn code(&mut self, text: &str) -> i32 {
        let r = self.run(text);
        assert_eq!(
            r.get("ok").and_then(|v| v.to_f64()),
            Some(0.0),
            "{text}\n{r:?}"
        );
        r.get("code").and_then(|v| v.as_i32()).unwrap_or(0)
    }
}

fn at<'a>(d: &'a DocBuf, path: &str) -> Option<Val<'a>> {
    let mut v = d.as_doc().as_val();
    for part in path.split('.') {
        v = v.as_container()?.get(part)?;
    }
    Some(v)
}

fn text(d: &DocBuf, path: &str) -> String {
    at(d, path).map_or("-".into(), |v| v.to_string())
}

#[test]
fn handshake() {
    let mut s = Server::new();
    let r = s.ok(r#"{"hello": 1, "helloOk": true, "compression": ["zstd", "nope"], "$db": "admin",
        "client": {"application": {"name": "app"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}}"#);
    for (path, want) in [
        ("helloOk", "true"),
        ("isWritablePrimary", "true"),
        ("setName", "\"rs0\""),
        ("hosts.0", "\"localhost:27017\""),
        ("me", "\"localhost:27017\""),
        ("maxWireVersion", "25"),
        ("compression.0", "\"zstd\""),
        ("compression.1", "-"),
        ("topologyVersion.counter", "0"),
        ("connectionId", "7"),
    ] {
        assert_eq!(text(&r, path), want, "{path}");
    }
    assert!(at(&r, "$clusterTime.clusterTime").is_some() && at(&r, "operationTime").is_some());
    assert_eq!(s.client.state.app_name(), "app");
    assert_eq!(s.code(r#"{"hello": 1, "$db": "admin", "client": {"driver": {"name": "x", "version": "1"}, "os": {"type": "x"}}}"#), 186);
    assert_eq!(s.code(r#"{"Ping": 1}"#), 59);
    assert_eq!(s.code(r#"{"atlasVersion": 1, "$db": "admin"}"#), 59);
    assert_eq!(s.code(r#"{"ping": 1, "x": 1}"#), 40415);
    let start = |mechanism: &str, payload: &str| {
        format!(
            r#"{{"saslStart": 1, "mechanism": "{mechanism}", "payload": {payload}, "$db": "admin"}}"#
        )
    };
    assert_eq!(s.code(&start("PLAIN", "\"\"")), 334);
    assert_eq!(s.code(&start("SCRAM-SHA-256", "1")), 14);
}

#[test]
fn standalone() {
    let mut s = Server::with(ServerConfig {
        topology: Topology::Standalone,
        ..ServerConfig::default()
    });
    let r = s.ok(r#"{"isMaster": 1, "$db": "admin"}"#);
    assert_eq!(
        (
            text(&r, "ismaster"),
            text(&r, "setName"),
            text(&r, "operationTime")
        ),
        ("true".into(), "-".into(), "-".into())
    );
    assert_eq!(s.code(r#"{"replSetGetStatus": 1, "$db": "admin"}"#), 76);
    let lsid =
        r#""lsid": {"id": {"$binary": {"base64": "ABEiM0RVRneImaq7zN3u/w==", "subType": "04"}}}"#;
    assert_eq!(s.code(&format!(r#"{{"insert": "c", "documents": [{{"_id": 1}}], {lsid}, "txnNumber": {{"$numberLong": "1"}}}}"#)), 20);
}

#[test]
fn collections() {
    let mut s = Server::new();
    s.ok(r#"{"create": "c"}"#);
    s.ok(r#"{"create": "c"}"#);
    s.ok(r#"{"create": "k", "clusteredIndex": {"key": {"_id": 1}, "unique": true}}"#);
    assert_eq!(
        s.code(r#"{"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": true}}"#),
        48
    );
    for (text, code) in [
        (r#"{"create": 1}"#, 73),
        (r#"{"create": ""}"#, 73),
        (r#"{"create": "a$b"}"#, 73),
        (r#"{"create": "system.x"}"#, 73),
        (r#"{"create": "x", "capped": true}"#, 72),
        (r#"{"create": "x", "size": 100}"#, 72),
        (r#"{"create": "x", "capped": true, "size": 0}"#, 2),
        (r#"{"create": "x", "capped": "yes"}"#, 14),
        (r#"{"create": "x", "nope": 1}"#, 40415),
        (
            r#"{"create": "x", "clusteredIndex": {"key": {"_id": 1}, "unique": false}}"#,
            5979700,
        ),
        (r#"{"create": "x", "validationLevel": "Strict"}"#, 2),
        (r#"{"create": "c", "capped": true, "size": 100}"#, 48),
        (r#"{"create": "x", "viewOn": ""}"#, 2),
        (r#"{"create": "x", "viewOn": "x"}"#, 5),
        (
            r#"{"create": "x", "viewOn": "c", "pipeline": [{"$out": "y"}]}"#,
            167,
        ),
    ] {
        assert_eq!(s.code(text), code, "{text}");
    }
    let r = s.ok(r#"{"listCollections": 1}"#);
    assert_eq!(text(&r, "cursor.ns"), "\"test.$cmd.listCollections\"");
    assert_eq!(
        (
            text(&r, "cursor.firstBatch.0.name"),
            text(&r, "cursor.firstBatch.1.name")
        ),
        ("\"c\"".into(), "\"k\"".into())
    );
    assert_eq!(
        text(&r, "cursor.firstBatch.0.idIndex"),
        r#"{"v": 2, "key": {"_id": 1}, "name": "_id_"}"#
    );
    assert_eq!(text(&r, "cursor.firstBatch.1.idIndex"), "-");
    let r = s.ok(r#"{"listCollections": 1, "nameOnly": true, "filter": {"name": "k"}}"#);
    assert_eq!(
        text(&r, "cursor.firstBatch"),
        r#"[{"name": "k", "type": "collection"}]"#
    );
    s.ok(r#"{"renameCollection": "test.c", "to": "test.d", "$db": "admin"}"#);
    assert_eq!(
        s.code(r#"{"renameCollection": "test.c", "to": "test.d", "$db": "admin"}"#),
        26
    );
    assert_eq!(
        s.code(r#"{"renameCollection": "test.k", "to": "test.d", "$db": "admin"}"#),
        48
    );
    assert_eq!(
        s.code(r#"{"renameCollection": "test.k", "to": "test.d"}"#),
        13
    );
    assert_eq!(text(&s.ok(r#"{"drop": "d"}"#), "nIndexesWas"), "1");
    assert_eq!(text(&s.ok(r#"{"drop": "d"}"#), "nIndexesWas"), "-");
    s.ok(r#"{"dropDatabase": 1}"#);
    assert_eq!(
        text(&s.ok(r#"{"listCollections": 1}"#), "cursor.firstBatch"),
        "[]"
    );
    s.ok(r#"{"dropDatabase": 1}"#);
    assert_eq!(s.code(r#"{"dropDatabase": 2}"#), 5255100);
}

#[test]
fn indexes() {
    let mut s = Server::new();
    s.ok(r#"{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}]}"#);
    let r = s.ok(r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": -1}, "name": "b", "sparse": true}]}"#);
    assert_eq!(
        (text(&r, "numIndexesBefore"), text(&r, "numIndexesAfter")),
        ("1".into(), "3".into())
    );
    assert_eq!(text(&r, "createdCollectionAutomatically"), "false");
    let r = s.ok(r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}"#);
    assert_eq!(text(&r, "note"), "\"all indexes already exist\"");
    let r = s.ok(r#"{"createIndexes": "new", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}"#);
    assert_eq!(text(&r, "createdCollectionAutomatically"), "true");
    for (text, code) in [
        (r#"{"createIndexes": "c"}"#, 40414),
        (r#"{"createIndexes": "c", "indexes": []}"#, 2),
        (r#"{"createIndexes": "c", "indexes": [1]}"#, 14),
        (
            r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "other"}]}"#,
            85,
        ),
        (
            r#"{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "a_1"}]}"#,
            86,
        ),
        (r#"{"dropIndexes": "c", "index": "_id_"}"#, 72),
        (r#"{"dropIndexes": "c", "index": "zzz"}"#, 27),
        (r#"{"dropIndexes": "zzz", "index": "*"}"#, 26),
        (r#"{"dropIndexes": "c", "index": 1}"#, 14),
        (r#"{"listIndexes": "zzz"}"#, 26),
        (
            r#"{"collMod": "c", "index": {"name": "zzz", "hidden": true}}"#,
            27,
        ),
        (
            r#"{"collMod": "c", "index": {"name": "_id_", "hidden": true}}"#,
            2,
        ),
        (r#"{"collMod": "zzz"}"#, 26),
    ] {
        assert_eq!(s.code(text), code, "{text}");
    }
    s.ok(r#"{"insert": "c", "documents": [{"_id": 3, "a": 2}]}"#);
    assert_eq!(
        s.code(
            r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "u", "unique": true}]}"#
        ),
        11000
    );
    let r = s.ok(r#"{"collMod": "c", "index": {"name": "a_1", "hidden": true}}"#);
    assert_eq!(
        (text(&r, "hidden_old"), text(&r, "hidden_new")),
        ("false".into(), "true".into())
    );
    let r = s.ok(r#"{"listIndexes": "c"}"#);
    assert_eq!(text(&r, "cursor.ns"), "\"test.c\"");
    assert_eq!(text(&r, "cursor.firstBatch.0.name"), "\"_id_\"");
    assert_eq!(
        text(&r, "cursor.firstBatch.1"),
        r#"{"v": 2, "key": {"a": 1}, "name": "a_1", "hidden": true}"#
    );
    assert_eq!(text(&r, "cursor.firstBatch.3"), "-");
    let r = s.ok(r#"{"validate": "c", "full": true}"#);
    assert_eq!(
        (
            text(&r, "valid"),
            text(&r, "nrecords"),
            text(&r, "keysPerIndex.a_1")
        ),
        ("true".into(), "3".into(), "3".into())
    );
    assert_eq!(
        text(
            &s.ok(r#"{"dropIndexes": "c", "index": {"a": 1}}"#),
            "nIndexesWas"
        ),
        "3"
    );
    assert_eq!(
        text(
            &s.ok(r#"{"dropIndexes": "c", "index": "*"}"#),
            "nIndexesWas"
        ),
        "2"
    );
}

#[test]
fn listings_in_batches() {
    let mut s = Server::new();
    for i in 0..5 {
        s.ok(&format!(r#"{{"create": "c{i}"}}"#));
    }
    let r = s.ok(r#"{"listCollections": 1, "cursor": {"batchSize": 2}, "nameOnly": true}"#);
    let id = at(&r, "cursor.id").and_then(|v| v.as_i64()).unwrap();
    assert_ne!(id, 0);
    let more = format!(
        r#"{{"getMore": {{"$numberLong": "{id}"}}, "collection": "$cmd.listCollections"}}"#
    );
    let r = s.ok(&more);
    assert_eq!(
        (text(&r, "cursor.id"), text(&r, "cursor.nextBatch.2.name")),
        ("0".into(), "\"c4\"".into())
    );
    assert_eq!(s.code(&more), 43);
}

#[test]
fn fail_command() {
    let mut s = Server::new();
    s.ok(
        r#"{"configureFailPoint": "failCommand", "mode": {"times": 1}, "$db": "admin",
        "data": {"failCommands": ["insert"], "errorCode": 10107}}"#,
    );
    let lsid =
        r#""lsid": {"id": {"$binary": {"base64": "ABEiM0RVRneImaq7zN3u/w==", "subType": "04"}}}"#;
    let insert = format!(
        r#"{{"insert": "c", "documents": [{{"_id": 1}}], {lsid}, "txnNumber": {{"$numberLong": "1"}}}}"#
    );
    let r = s.run(&insert);
    assert_eq!(
        (text(&r, "code"), text(&r, "errorLabels.0")),
        ("10107".into(), "\"RetryableWriteError\"".into())
    );
    assert_eq!(text(&s.ok(&insert), "n"), "1");
    // The retry does nothing and answers the same.
    assert_eq!(text(&s.ok(&insert), "n"), "1");
    assert_eq!(text(&s.ok(r#"{"count": "c"}"#), "n"), "1");
    s.ok(
        r#"{"configureFailPoint": "failCommand", "mode": {"times": 1}, "$db": "admin",
        "data": {"failCommands": ["ping"], "closeConnection": true}}"#,
    );
    assert!(
        s.run_doc(bson::doc! { "ping": 1, "$db": "admin" }.as_doc())
            .1
    );
    s.ok(r#"{"ping": 1}"#);
    s.ok(
        r#"{"configureFailPoint": "failCommand", "mode": {"times": 1}, "$db": "admin",
        "data": {"failCommands": ["insert"], "writeConcernError": {"code": 91, "errmsg": "x"}}}"#,
    );
    let r = s.ok(&insert
        .replace(r#"": "1""#, r#"": "2""#)
        .replace(r#""_id": 1"#, r#""_id": 2"#));
    assert_eq!(
        (
            text(&r, "writeConcernError.code"),
            text(&r, "errorLabels.0")
        ),
        ("91".into(), "\"RetryableWriteError\"".into())
    );
    assert_eq!(s.code(&insert), 225);
}

#[test]
fn sessions_and_transactions() {
    let mut s = Server::new();
    let id = text(&s.ok(r#"{"startSession": 1}"#), "id.id");
    assert!(id.contains("$binary"), "{id}");
    let lsid =
        r#""lsid": {"id": {"$binary": {"base64": "ABEiM0RVRneImaq7zN3u/w==", "subType": "04"}}}"#;
    let begin = r#""find": "c", "txnNumber": {"$numberLong": "1"}, "startTransaction": true, "autocommit": false"#;
    let commit = r#""commitTransaction": 1, "txnNumber": {"$numberLong": "1"}, "autocommit": false, "$db": "admin""#;
    for (body, code) in [
        (commit, 251),
        (r#""find": "c", "txnNumber": {"$numberLong": "1"}"#, 50768),
    ] {
        assert_eq!(s.code(&format!("{{{body}, {lsid}}}")), code, "{body}");
    }
    for body in [begin, commit] {
        s.ok(&format!("{{{body}, {lsid}}}"));
    }
    assert_eq!(s.code(&format!("{{{begin}, {lsid}}}")), 50911);
    assert_eq!(
        s.code(r#"{"insert": "c", "documents": [{}], "txnNumber": {"$numberLong": "1"}}"#),
        72
    );
    s.ok(r#"{"endSessions": [{"id": {"$binary": {"base64": "ABEiM0RVRneImaq7zN3u/w==", "subType": "04"}}}]}"#);
    assert_eq!(s.code(r#"{"endSessions": [1]}"#), 14);
}

/// A shard may refuse a first statement when the transaction has begun there: its router sends it again.
/// An ended transaction does not begin again.
#[test]
fn a_transaction_begins_again_on_a_shard_whose_first_statement_has_failed() {
    let lsid =
        r#""lsid": {"id": {"$binary": {"base64": "ABEiM0RVRneImaq7zN3u/w==", "subType": "04"}}}"#;
    for (role, again) in [(ClusterRole::Shard, 0), (ClusterRole::default(), 50911)] {
        let mut s = Server::with(ServerConfig {
            role,
            ..ServerConfig::default()
        });
        let mut send = |number: i32, what: &str| {
            let of = format!(r#""txnNumber": {{"$numberLong": "{number}"}}, "autocommit": false"#);
            let reply = s.run(&format!("{{{what}, {of}, {lsid}}}"));
            reply.get("code").and_then(|v| v.as_i32()).unwrap_or(0)
        };
        let begins = r#""find": "c", "startTransaction": true"#;
        let fails = r#""find": "c", "filter": {"$no": 1}, "startTransaction": true"#;
        let commit = r#""commitTransaction": 1, "$db": "admin""#;
        let abort = r#""abortTransaction": 1, "$db": "admin""#;
        assert_eq!((send(1, fails), send(1, begins)), (2, again), "{role:?}");
        if again == 0 {
            assert_eq!((send(1, commit), send(1, begins)), (0, 50911));
        }
        assert_eq!((send(2, fails), send(2, abort)), (2, 251), "{role:?}");
        assert_eq!(send(2, begins), 50911);
        assert_eq!((send(3, begins), send(3, begins)), (0, 50911));
    }
}

#[test]
fn administration() {
    let mut s = Server::new();
    s.ok(r#"{"insert": "c", "documents": [{"_id": 1, "a": 1}]}"#);
    for command in [
        "serverStatus",
        "hostInfo",
        "connectionStatus",
        "whatsmyuri",
        "listCommands",
        "currentOp",
        "top",
        "features",
        "connPoolStats",
        "getCmdLineOpts",
        "getDefaultRWConcern",
        "replSetGetStatus",
        "replSetGetConfig",
        "usersInfo",
        "buildInfo",
        "fsync",
        "listDatabases",
        "getLastError",
        "logout",
        "refreshSessions",
        "killSessions",
        "killAllSessions",
    ] {
        let value = if command.ends_with("Sessions") {
            "[]"
        } else {
            "1"
        };
        s.ok(&format!(r#"{{"{command}": {value}, "$db": "admin"}}"#));
    }
    let r = s.ok(r#"{"serverStatus": 1, "$db": "admin"}"#);
    for path in [
        "host",
        "pid",
        "mem.resident",
        "network.numRequests",
        "opcounters.insert",
        "globalLock.activeClients.readers",
        "storageEngine.name",
        "repl.setName",
        "wiredTiger.cache.maximum bytes configured",
        "extra_info.page_faults",
        "metrics.commands.find.total",
    ] {
        assert!(at(&r, path).is_some(), "{path}");
    }
    assert_eq!(text(&r, "opcounters.insert"), "1");
    assert_eq!(
        text(
            &s.ok(r#"{"getParameter": 1, "featureCompatibilityVersion": 1, "$db": "admin"}"#),
            "featureCompatibilityVersion.version"
        ),
        "\"8.0\""
    );
    assert_eq!(
        s.code(r#"{"getParameter": 1, "nobodyKnows": 1, "$db": "admin"}"#),
        72
    );
    assert_eq!(text(&s.ok(r#"{"dbStats": 1}"#), "objects"), "1");
    let r = s.ok(r#"{"collStats": "c"}"#);
    assert_eq!(
        (text(&r, "count"), text(&r, "nindexes"), text(&r, "size")),
        ("1".into(), "1".into(), "21".into())
    );
    assert_eq!(
        text(
            &s.ok(r#"{"dataSize": "test.c", "$db": "admin"}"#),
            "numObjects"
        ),
        "1"
    );
    let r = s.ok(r#"{"top": 1, "$db": "admin"}"#);
    assert!(
        r.get("totals")
            .and_then(|v| v.as_doc())
            .is_some_and(|t| t.contains("test.c"))
    );
    assert_eq!(s.code(r#"{"listDatabases": 1}"#), 13);
    assert_eq!(s.code(r#"{"killOp": 1, "$db": "admin"}"#), 4);
    assert_eq!(s.code(r#"{"replSetInitiate": {}, "$db": "admin"}"#), 23);
    s.ok(r#"{"shutdown": 1, "$db": "admin"}"#.replace("shutdown", "ping").as_str());
}

/// The first index's last entry is lost, and there is one for a document that never was.
fn damage_first_index(s: &Server) {
    use storage::{Direction, Effect};
    let coll = s.commands.engine.catalog.get("test.c").unwrap();
    let prefix = coll.indexes[0].prefix;
    let end = catalog::keyspace::prefix_end(&prefix);
    let mut entries = Vec::new();
    {
        let view = s.commands.store.view();
        let mut scan = view.scan(&prefix, &end, Direction::Forward);
        while scan.next().unwrap() {
            entries.push((scan.key().to_vec(), scan.value().to_vec()));
        }
    }
    let (lost, types) = entries.last().unwrap().clone();
    let mut bogus = lost.clone();
    *bogus.last_mut().unwrap() ^= 0x40;
    let effects = [Effect::Delete(lost), Effect::Put(bogus, types)];
    s.commands.store.write_unlogged(&effects).unwrap();
}

#[test]
fn db_check_names_what_does_not_agree() {
    let mut s = Server::new();
    s.ok(r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}"#);
    s.ok(r#"{"insert": "c", "documents": [{"_id": 1, "a": [1, 2]}, {"_id": 2, "a": 3}]}"#);
    damage_first_index(&s);
    s.ok(r#"{"dbCheck": "c", "validateMode": "dataConsistencyAndMissingIndexKeysCheck"}"#);
    s.ok(r#"{"dbCheck": "c", "validateMode": "extraIndexKeysCheck", "secondaryIndex": "a_1"}"#);
    let ended =
        r#"{"count": "system.healthlog", "query": {"operation": "dbCheckStop"}, "$db": "local"}"#;
    while text(&s.ok(ended), "n") != "2" {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let r =
        s.ok(r#"{"find": "system.healthlog", "filter": {"severity": "error"}, "$db": "local"}"#);
    let at = |n: usize, field: &str| {
        let shown = text(&r, &format!("cursor.firstBatch.{n}.{field}"));
        shown.trim_matches('"').to_string()
    };
    assert_eq!(at(0, "msg"), "Document has missing index keys");
    assert_eq!(at(0, "data.context.missingIndexKeys.0.indexName"), "a_1");
    assert_eq!(at(0, "data.context._id"), "2");
    assert_eq!(
        at(1, "msg"),
        "found extra index key entry without corresponding document"
    );
    assert_eq!(at(1, "data.context.indexSpec.name"), "a_1");
    assert_eq!(at(2, "msg"), "-");
}

#[test]
fn validate_names_what_does_not_agree() {
    use storage::Effect;
    let mut s = Server::new();
    s.ok(r#"{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": -1}, "name": "b"}]}"#);
    s.ok(r#"{"insert": "c", "documents": [{"_id": 1, "a": [1, 2]}, {"_id": 2, "a": 3, "b": 1}, {"_id": 3}]}"#);
    let r = s.ok(r#"{"validate": "c", "full": true}"#);
    assert_eq!(text(&r, "valid"), "true");
    assert_eq!(text(&r, "keysPerIndex.a_1"), "4");
    damage_first_index(&s);
    let coll = s.commands.engine.catalog.get("test.c").unwrap();
    let r = s.ok(r#"{"validate": "c"}"#);
    assert_eq!(text(&r, "valid"), "false");
    assert_eq!(text(&r, "indexDetails.a_1.valid"), "false");
    assert_eq!(text(&r, "indexDetails.b.valid"), "true");
    let missing = text(&r, "missingIndexEntries.0");
    assert!(
        missing.contains("'a_1'") && missing.contains("_id 2"),
        "{missing}"
    );
    let extra = text(&r, "extraIndexEntries.0");
    assert!(
        extra.contains("'a_1'") && extra.contains("not there"),
        "{extra}"
    );
    assert_eq!(text(&r, "extraIndexEntries.1"), "-");

    // A record that is damaged is one error, and the rest is read.
    let key = {
        let id = bson::Value::from(1);
        executor::record_key(&coll, id.as_val())
    };
    s.commands
        .store
        .write_unlogged(&[Effect::Put(key, vec![7, 0, 0, 0, 0x70, 0, 0])])
        .unwrap();
    let r = s.ok(r#"{"validate": "c"}"#);
    assert_eq!(text(&r, "nrecords"), "3");
    assert_eq!(text(&r, "nInvalidDocuments"), "1");
    assert!(text(&r, "errors.0").contains("malformed"));
}

#[test]
fn the_lock_waits_no_longer_than_it_is_told() {
    let mut s = Server::new();
    s.ok(r#"{"insert": "c", "$db": "t", "documents": [{"_id": 1}]}"#);
    let coll = s.commands.engine.catalog.get("t.c").unwrap();
    let writing = coll.try_write_lock().unwrap();
    for patience in ["50", "0", "-1"] {
        let command = format!(
            r#"{{"fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": {patience}, "$db": "admin"}}"#
        );
        assert_eq!(s.code(&command), 24, "LockTimeout after {patience} ms");
    }
    assert_eq!(s.code(r#"{"fsyncUnlock": 1, "$db": "admin"}"#), 20);
    drop(writing);
    s.ok(r#"{"fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": 0, "$db": "admin"}"#);
    s.ok(r#"{"fsyncUnlock": 1, "$db": "admin"}"#);
    s.ok(r#"{"insert": "c", "$db": "t", "documents": [{"_id": 2}]}"#);
}

#[test]
fn a_router_checks_reads_of_what_is_not_there() {
    let s = Server::with(ServerConfig {
        role: ClusterRole::Router,
        ..ServerConfig::default()
    });
    for (command, wanted) in [
        (
            r#"{"find": "c", "filter": {"a": 1}, "sort": {"a": 1}, "hint": "x"}"#,
            0,
        ),
        (
            r#"{"find": "c", "filter": {"$expr": {"$eq": ["$a", "$$x"]}}, "let": {"x": 1}}"#,
            0,
        ),
        (r#"{"find": "c", "filter": {"$no": 1}}"#, 2),
        (r#"{"find": "c", "filter": null}"#, 14),
        (r#"{"find": "c", "projection": {"a": 1, "b": 0}}"#, 31254),
        (r#"{"find": "c", "sort": {"a": 7}}"#, 15975),
        (r#"{"find": "c", "let": {"NOW": 1}}"#, 4738901),
        (r#"{"find": "c", "collation": {"locale": "nowhere"}}"#, 2),
        (r#"{"find": "c", "awaitData": true}"#, 9),
        (r#"{"find": "c", "nope": 1}"#, 40415),
        (r#"{"find": "$c"}"#, 73),
        (
            r#"{"find": "c", "filter": {"$text": {"$search": "a"}}}"#,
            27,
        ),
        (r#"{"count": "c", "query": {"a": 1}}"#, 0),
        (r#"{"count": "c", "query": {"$no": 1}}"#, 2),
        (
            r#"{"count": "c", "limit": {"$numberLong": "-9223372036854775808"}}"#,
            2,
        ),
        (r#"{"distinct": "c", "key": "a"}"#, 0),
        (r#"{"distinct": "c"}"#, 40414),
        (r#"{"distinct": "c", "key": "a", "query": {"$no": 1}}"#, 2),
    ] {
        let mut body = bson::Writer::new();
        body.extend(json::parse(command).unwrap().as_doc())
            .str("$db", "nowhere");
        let body = body.finish();
        let request = Request::own(body.as_doc());
        let checked = s.commands.check_over_nothing(&args_of(&request));
        let code = checked.map_or_else(|e| e.code.0, |()| 0);
        assert_eq!(code, wanted, "{command}");
    }
}

/// What a router's door makes of a command.
fn args_of<'r>(request: &Request<'r>) -> Args<'r> {
    let known = specification::lookup(request.command()).unwrap();
    ParsedCommand::of(known, request).unwrap().args
}

/// A router says of a collection that is nowhere what a server says of one that it has not.
#[test]
fn a_router_says_of_nothing_what_a_server_says() {
    let s = Server::new();
    for command in [
        r#"{"collStats":"c"}"#,
        r#"{"collstats":"c","scale":7}"#,
        r#"{"collStats":"c","scale":0}"#,
        r#"{"collStats":"c","no":1}"#,
        r#"{"collStats":1}"#,
        r#"{"dataSize":"nowhere.c"}"#,
        r#"{"dataSize":"nowhere.c","estimate":true}"#,
        r#"{"dataSize":"c"}"#,
        r#"{"dataSize":"nowhere.c","min":1}"#,
        r#"{"validate":"c"}"#,
        r#"{"validate":"c","full":true,"background":true}"#,
        r#"{"validate":"c","repair":"x"}"#,
        r#"{"planCacheClear":"c"}"#,
        r#"{"planCacheClear":""}"#,
        r#"{"planCacheClearFilters":"c","query":1}"#,
        r#"{"planCacheListFilters":"c"}"#,
        r#"{"planCacheSetFilter":"c"}"#,
        r#"{"planCacheSetFilter":"c","indexes":[{}]}"#,
        r#"{"planCacheSetFilter":"c","indexes":["a"]}"#,
        r#"{"setIndexCommitQuorum":"c"}"#,
        r#"{"setIndexCommitQuorum":"c","indexNames":["a"],"commitQuorum":1}"#,
        r#"{"setIndexCommitQuorum":"c","indexNames":[1],"commitQuorum":1}"#,
        r#"{"compactStructuredEncryptionData":"c","compactionTokens":{}}"#,
        r#"{"cleanupStructuredEncryptionData":"c"}"#,
    ] {
        let mut body = bson::Writer::new();
        body.extend(json::parse(command).unwrap().as_doc())
            .str("$db", "nowhere");
        let body = body.finish();
        let request = Request::own(body.as_doc());
        let told = s.commands.reply_about_nothing(&args_of(&request));
        let told = told.unwrap_or_else(|e| {
            let mut out = Vec::new();
            service::write_error(&e, &mut out);
            DocBuf::from_vec(out).unwrap()
        });
        let shown = |d: &DocBuf| {
            let mut w = bson::Writer::new();
            for e in d.as_doc().iter().filter(|e| e.name != "millis") {
                w.val(e.name, e.val);
            }
            bson::shell::doc(w.finish().as_doc())
        };
        let of_server = s.commands.run_own(None, body.as_doc()).unwrap();
        assert_eq!(shown(&told), shown(&of_server), "{command}");
    }
}

/// A part of a router's command runs for whoever has sent it.
#[test]
fn what_a_router_runs_of_a_command_runs_for_its_user() {
    use crate::{Step, Whose};
    let s = Server::with(ServerConfig {
        role: ClusterRole::Router,
        security: SecurityOptions {
            authorization: true,
            ..SecurityOptions::default()
        },
        ..ServerConfig::default()
    });
    let other = r#"{"id":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}},"uid":{"$binary":{"base64":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","subType":"00"}}}"#;
    let run = |by: Whose, command: &str| {
        let body = json::parse(command).unwrap();
        let request = Request::own(body.as_doc());
        let step = Step {
            request: &request,
            args: args_of(&request),
            by,
            time: None,
        };
        let ran = match request.command() {
            "endSessions" => s.commands.end_sessions(&step).map(|ran| ran.1.len()),
            "killOp" => s.commands.kill_op(&step).map(|_| 0),
            _ => s.commands.kill_sessions(&step).map(|ran| {
                let command = ran.1.command();
                let list = command
                    .as_ref()
                    .and_then(|c| c.as_doc().first()?.val.as_array());
                list.map_or(usize::MAX, Doc::count)
            }),
        };
        ran.map_err(|e| e.code.0)
    };
    let end = format!(r#"{{"endSessions":[{other}],"$db":"admin"}}"#);
    let kill = format!(r#"{{"killSessions":[{other}],"$db":"admin"}}"#);
    let by_pattern =
        format!(r#"{{"killAllSessionsByPattern":[{{"lsid":{other}}}],"$db":"admin"}}"#);
    // A client that is not logged in has no rights, and the router by itself has all.
    for command in [&end, &kill, &by_pattern] {
        assert_eq!(run(Whose::Client(None), command), Err(13), "{command}");
        assert_eq!(run(Whose::Router, command), Ok(1), "{command}");
    }
    for (command, wanted) in [
        // All, and then none: shards are told of none.
        (r#"{"killAllSessions":[],"$db":"admin"}"#, Ok(0)),
        (
            r#"{"killAllSessionsByPattern":[{}],"$db":"admin"}"#,
            Ok(usize::MAX),
        ),
        (
            r#"{"killAllSessions":[null],"$db":"admin"}"#,
            Ok(usize::MAX),
        ),
        (r#"{"killSessions":[],"$db":"admin"}"#, Ok(1)),
        (r#"{"killSessions":[{"id":1}],"$db":"admin"}"#, Err(14)),
        (r#"{"endSessions":{},"$db":"admin"}"#, Err(14)),
        (r#"{"killOp":1,"$db":"admin"}"#, Err(4)),
        (r#"{"killOp":1,"op":77,"$db":"admin"}"#, Ok(0)),
    ] {
        assert_eq!(run(Whose::Router, command), wanted, "{command}");
    }
}

mod pipelines_of_routers {
    use super::*;
    use crate::{RemoteCollections, RemoteRows, RouterCursor, RouterPipeline, Step, Whose};
    use bson::Writer;
    use errors::{Error, Fallible};
    use query::path::FieldPath;
    use query::pipeline::{JoinedCollection, Namespace};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// What shards give: how many readers there are is counted.
    struct Given {
        left: Box<dyn Iterator<Item = DocBuf> + Send>,
        readers: Arc<AtomicUsize>,
    }

    impl Given {
        fn of(
            readers: &Arc<AtomicUsize>,
            left: impl Iterator<Item = DocBuf> + Send + 'static,
        ) -> Box<dyn RemoteRows> {
            readers.fetch_add(1, SeqCst);
            Box::new(Given {
                left: Box::new(left),
                readers: readers.clone(),
            })
        }
    }

    impl RemoteRows for Given {
        fn next(&mut self) -> Fallible<Option<DocBuf>> {
            Ok(self.left.next())
        }

        fn release(&mut self) -> Fallible<()> {
            Ok(())
        }
    }

    impl Drop for Given {
        fn drop(&mut self) {
            self.readers.fetch_sub(1, SeqCst);
        }
    }

    /// The collection `x` of the cluster.
    struct Cluster(Arc<AtomicUsize>);

    impl RemoteCollections for Cluster {
        fn find(&self, ns: &Namespace, _: Doc<'_>) -> Fallible<Box<dyn RemoteRows>> {
            assert_eq!(ns.to_string(), "d.x");
            Ok(Given::of(&self.0, documents(r#"[{"_id":1,"x":9}]"#)))
        }

        fn aggregate(
            &self,
            _: &Namespace,
            _: &[DocBuf],
            _: Doc<'_>,
        ) -> Fallible<Box<dyn RemoteRows>> {
            Err(Error::internal("nothing is searched here"))
        }

        fn size(&self, _: &Namespace, _: &FieldPath) -> Option<JoinedCollection> {
            None
        }

        fn time(&self) -> u64 {
            7 << 32
        }
    }

    fn array(text: &str) -> DocBuf {
        json::parse(&format!("{{\"v\":{text}}}")).unwrap()
    }

    fn documents(text: &str) -> impl Iterator<Item = DocBuf> + Send + 'static {
        let list = array(text);
        let list = list.get("v").and_then(Val::as_array).unwrap();
        let all: Vec<_> = list
            .values()
            .map(|v| v.as_doc().unwrap().to_buf())
            .collect();
        all.into_iter()
    }

    struct Router {
        server: Server,
        readers: Arc<AtomicUsize>,
        kept: Option<RouterCursor>,
    }

    impl Router {
        fn new() -> Router {
            let readers = Arc::<AtomicUsize>::default();
            let server = Server::with(ServerConfig {
                role: ClusterRole::Router,
                ..ServerConfig::default()
            });
            server
                .commands
                .join_with(Arc::new(Cluster(readers.clone())));
            Router {
                server,
                readers,
                kept: None,
            }
        }

        /// The first batch of a pipeline; `rows`: what the stages before it have given.
        fn open(
            &mut self,
            stages: &str,
            rows: Option<Box<dyn RemoteRows>>,
            (batch, time): (Option<u64>, Option<Duration>),
        ) -> Fallible<String> {
            let body = array(stages);
            let body =
                bson::doc! {"aggregate": "c", "pipeline": body.get("v").unwrap(), "$db": "d"};
            let request = Request::own(body.as_doc());
            let step = Step {
                request: &request,
                args: args_of(&request),
                by: Whose::Router,
                time,
            };
            let pipeline = RouterPipeline {
                db: "d",
                collection: None,
                stages: body.get("pipeline").unwrap(),
                collation: None,
                variables: None,
                allow_disk_use: None,
                within: DocBuf::new(),
                batch,
            };
            let kept = &mut self.kept;
            let reply = self
                .server
                .commands
                .open_pipeline(&step, pipeline, rows, |w, more| {
                    *kept = more;
                    w.finish()
                })?;
            Ok(text(&reply, "cursor.firstBatch"))
        }

        fn more(&mut self, most: Option<u64>) -> (String, bool) {
            let body = bson::doc! {"getMore": 1i64, "collection": "c", "$db": "d"};
            let request = Request::own(body.as_doc());
            let step = Step {
                request: &request,
                args: args_of(&request),
                by: Whose::Router,
                time: None,
            };
            let from = self.kept.as_mut().unwrap();
            let finish = |w: Writer, _| w.finish();
            let more = self.server.commands.next_batch(&step, from, most, finish);
            let (reply, done) = more.unwrap();
            (text(&reply, "cursor.nextBatch"), done)
        }
    }

    const ALL: (Option<u64>, Option<Duration>) = (None, None);

    #[test]
    fn what_the_rest_of_a_pipeline_gives() {
        let rows = r#"[{"a":1},{"a":3},{"a":2}]"#;
        for (stages, rows, wanted) in [
            ("[]", Some("[]"), "[]"),
            ("[]", Some(r#"[{"a":1}]"#), r#"[{"a": 1}]"#),
            (
                r#"[{"$group":{"_id":null,"n":{"$sum":"$a"}}}]"#,
                Some(rows),
                r#"[{"_id": null, "n": 6}]"#,
            ),
            (
                r#"[{"$sort":{"a":-1}},{"$limit":2}]"#,
                Some(rows),
                r#"[{"a": 3}, {"a": 2}]"#,
            ),
            (
                r#"[{"$match":{"a":1}},{"$lookup":{"from":"x","localField":"a","foreignField":"_id","as":"x"}}]"#,
                Some(rows),
                r#"[{"a": 1, "x": [{"_id": 1, "x": 9}]}]"#,
            ),
            (
                r#"[{"$limit":1},{"$unionWith":"x"}]"#,
                Some(rows),
                r#"[{"a": 1}, {"_id": 1, "x": 9}]"#,
            ),
            (
                r#"[{"$_pandoMerged":{}},{"$match":{"a":2}}]"#,
                Some(r#"[{"d":{"a":1},"m":{}},{"d":{"a":2},"m":{}}]"#),
                r#"[{"a": 2}]"#,
            ),
            (
                r#"[{"$documents":[{"a":1},{"a":2}]},{"$match":{"a":2}}]"#,
                None,
                r#"[{"a": 2}]"#,
            ),
        ] {
            let mut router = Router::new();
            let rows = rows.map(|rows| Given::of(&router.readers, documents(rows)));
            assert_eq!(router.open(stages, rows, ALL).unwrap(), wanted, "{stages}");
            assert!(router.kept.is_none(), "{stages}");
            assert_eq!(router.readers.load(SeqCst), 0, "{stages}");
        }
    }

    #[test]
    fn what_the_rest_of_a_pipeline_refuses() {
        for (stages, rows, code) in [
            (r#"[{"$documents":[]}]"#, Some("[]"), 40602),
            (r#"[{"$currentOp":{}}]"#, Some("[]"), 40602),
            (
                r#"[{"$geoNear":{"near":[0,0],"distanceField":"d"}}]"#,
                Some("[]"),
                40603,
            ),
            (
                r#"[{"$match":{"$text":{"$search":"a"}}}]"#,
                Some("[]"),
                17313,
            ),
            (r#"[{"$nothing":{}}]"#, Some("[]"), 40324),
            (
                r#"[{"$set":{"b":{"$divide":["$a",0]}}}]"#,
                Some(r#"[{"a":1}]"#),
                2,
            ),
            ("[]", None, 73),
            (r#"[{"$match":{}}]"#, None, 73),
        ] {
            let mut router = Router::new();
            let rows = rows.map(|rows| Given::of(&router.readers, documents(rows)));
            let e = router.open(stages, rows, ALL).unwrap_err();
            assert_eq!(e.code.0, code, "{stages}: {}", e.message);
            assert_eq!(router.readers.load(SeqCst), 0, "{stages}");
        }
    }

    /// What waits between two batches is the router's: the server that it embeds has no cursor.
    #[test]
    fn a_pipeline_is_kept_as_a_value() {
        let mut router = Router::new();
        let many = (0..250).map(|n| bson::doc! {"a": n});
        let rows = Given::of(&router.readers, many);
        let stages = r#"[{"$match":{"a":{"$lt":200}}},{"$project":{"a":1}}]"#;
        let first = router.open(stages, Some(rows), (Some(2), None)).unwrap();
        assert_eq!(first, r#"[{"a": 0}, {"a": 1}]"#);
        assert_eq!(router.server.commands.cursors.figures().opened, 0);
        assert_eq!(router.more(Some(1)), (r#"[{"a": 2}]"#.into(), false));
        assert_eq!(router.readers.load(SeqCst), 1);
        let (rest, done) = router.more(None);
        assert!(done && rest.ends_with(r#"{"a": 199}]"#), "{rest}");
        let rows = Given::of(&router.readers, documents("[]"));
        assert_eq!(
            router.open("[]", Some(rows), (Some(0), None)).unwrap(),
            "[]"
        );
        assert!(router.kept.take().is_some(), "nothing was asked for yet");
        assert_eq!(router.readers.load(SeqCst), 0, "its input ends with it");
        let status = router.server.ok(r#"{"serverStatus": 1, "$db": "admin"}"#);
        assert_eq!(text(&status, "metrics.cursor.totalOpened"), "0");
        assert_eq!(text(&status, "opcounters.getmore"), "2");
        assert_eq!(text(&status, "metrics.document.returned"), "200");
    }

    #[test]
    fn a_batch_ends_when_it_is_to() {
        let endless = || (0..).map(|n: i32| bson::doc! {"a": n});
        let stages = r#"[{"$group":{"_id":null,"n":{"$sum":1}}}]"#;
        let mut router = Router::new();
        let rows = Given::of(&router.readers, endless());
        let late = router.open(stages, Some(rows), (None, Some(Duration::from_millis(20))));
        assert_eq!(late.unwrap_err().code.0, 50);
        let running = router.server.commands.operations.clone();
        let killing = endless().inspect(move |_| {
            for o in running.list() {
                assert_eq!((o.command, o.ns.as_str()), ("aggregate", "d.c"));
                running.kill(o.id);
            }
        });
        let rows = Given::of(&router.readers, killing);
        let killed = router.open(stages, Some(rows), ALL);
        assert_eq!(killed.unwrap_err().code.0, 11601);
        assert_eq!(router.readers.load(SeqCst), 0);
        assert!(router.server.commands.operations.list().is_empty());
    }
}
