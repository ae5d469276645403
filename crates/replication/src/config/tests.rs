//! What configurations may say, follow, and ask of writes.

use super::*;
use bson::{Value, doc};
use errors::Fallible;

const SET: ObjectId = ObjectId([7; 12]);

fn array(items: impl IntoIterator<Item = DocBuf>) -> Value {
    let mut w = Writer::new_array();
    for d in items {
        w.push(d.as_doc().as_val());
    }
    w.finish_array()
}

fn host(n: i32) -> String {
    format!("h{n}:1")
}

fn member(n: i32) -> DocBuf {
    doc! { "_id": n, "host": host(n).as_str() }
}

fn with(n: i32, extra: DocBuf) -> DocBuf {
    let mut w = Writer::new();
    w.i32("_id", n).str("host", &host(n));
    w.extend(extra.as_doc());
    w.finish()
}

fn set(version: i64, members: impl IntoIterator<Item = DocBuf>) -> DocBuf {
    doc! { "_id": "rs", "version": version, "members": array(members) }
}

fn parse(d: &DocBuf) -> Fallible<Config> {
    Config::parse(d.as_doc(), Some(SET))
}

fn initiate(d: &DocBuf) -> Fallible<usize> {
    let config = Config::parse_for_initiate(d.as_doc(), SET)?;
    config.check_initiate("rs", |h| h.name == "h0")
}

#[track_caller]
fn refused(e: errors::Error, code: i32, part: &str) {
    assert_eq!(e.code.0, code, "{}", e.message);
    assert!(e.message.contains(part), "{}", e.message);
}

#[test]
fn reads_what_it_wrote() {
    let d = doc! {
        "_id": "rs", "version": 3, "term": 2i64, "protocolVersion": 1i64,
        "members": array([
            with(0, doc! { "priority": 2.5, "tags": doc! { "dc": "a", "use": "x" } }),
            with(1, doc! { "priority": 0, "hidden": true, "votes": 0, "secondaryDelaySecs": 60 }),
            with(2, doc! { "arbiterOnly": true }),
        ]),
        "settings": doc! {
            "electionTimeoutMillis": 500, "chainingAllowed": false, "unknown": 1,
            "getLastErrorModes": doc! { "two": doc! { "dc": 1 } },
        },
    };
    let config = parse(&d).unwrap();
    assert_eq!(config.settings.replica_set_id, Some(SET));
    assert_eq!(config.members[2].priority, 0.0);
    assert_eq!(
        Config::parse(config.to_doc().as_doc(), None).unwrap(),
        config
    );
    assert_eq!(config.majority_vote_count(), 2);
    assert_eq!(config.write_majority_count(), 1);
}

#[test]
fn documents_that_are_none() {
    let bad = |d: DocBuf, part: &str| refused(parse(&d).unwrap_err(), 93, part);
    bad(doc! {}, "'ReplSetConfig._id' is missing");
    bad(
        doc! { "_id": 1 },
        "wrong type 'int', expected type 'string'",
    );
    bad(
        doc! { "_id": "rs", "members": array([]) },
        "'ReplSetConfig.version' is missing",
    );
    bad(
        doc! { "_id": "rs", "version": 1 },
        "'ReplSetConfig.members' is missing",
    );
    bad(
        doc! { "_id": "rs", "version": 1, "x": 1 },
        "'ReplSetConfig.x' is an unknown field.",
    );
    bad(set(0, [member(0)]), "'version' value must be >= 1");
    bad(
        set(i64::MAX, [member(0)]),
        "'version' value must be <= 2147483647",
    );
    let one = |extra: DocBuf, part: &str| {
        refused(parse(&set(1, [with(0, extra)])).unwrap_err(), 93, part);
    };
    one(
        doc! { "votes": 2 },
        "'votes' value must be <= 1, actual value '2'",
    );
    one(
        doc! { "priority": 1001 },
        "'priority' value must be <= 1000",
    );
    one(
        doc! { "priority": f64::NAN },
        "'priority' value must be >= 0",
    );
    one(doc! { "hidden": true }, "member: {");
    one(
        doc! { "hidden": true },
        "priority must be 0 when hidden=true",
    );
    one(
        doc! { "votes": 0 },
        "priority must be 0 when non-voting (votes:0)",
    );
    one(
        doc! { "buildIndexes": false },
        "priority must be 0 when buildIndexes=false",
    );
    one(
        doc! { "secondaryDelaySecs": 1 },
        "priority must be 0 when secondaryDelaySecs is used",
    );
    one(
        doc! { "tags": doc! { "a": 1 } },
        "tags.a field has non-string value of type int",
    );
    one(
        doc! { "arbiterOnly": true, "votes": 0 },
        "Arbiter must vote",
    );
    one(
        doc! { "slaveDelay": 1 },
        "'MemberConfig.slaveDelay' is an unknown field.",
    );
    let settings = |s: DocBuf, part: &str| {
        let d = doc! { "_id": "rs", "version": 1, "members": array([member(0)]), "settings": s };
        refused(parse(&d).unwrap_err(), 93, part);
    };
    settings(doc! { "heartbeatIntervalMillis": 0 }, "value must be >= 1");
    settings(doc! { "catchUpTimeoutMillis": -2 }, "value must be >= -1");
    settings(
        doc! { "electionTimeoutMillis": 1.5 },
        "exactly representable",
    );
    settings(
        doc! { "getLastErrorModes": 1 },
        "Expected getLastErrorModes to be an Object",
    );
    settings(
        doc! { "getLastErrorModes": doc! { "m": doc! { "nope": 1 } } },
        "No replica set tag definition",
    );
    settings(
        doc! { "getLastErrorModes": doc! { "m": doc! { "dc": 0 } } },
        "must be positive, but found 0",
    );
    settings(
        doc! { "getLastErrorDefaults": doc! { "w": 2 } },
        "customized getLastErrorDefaults",
    );
}

#[test]
fn sets_that_may_start() {
    assert_eq!(initiate(&set(1, [member(1), member(0)])).unwrap(), 1);
    let bad = |d: DocBuf, part: &str| refused(initiate(&d).unwrap_err(), 93, part);
    bad(set(1, []), "contains 0 members");
    bad(set(1, (0..51).map(member)), "contains 51 members");
    bad(set(1, (0..8).map(member)), "contains 8 voting members");
    bad(set(2, [member(0)]), "must  have version 1, but found 2");
    bad(
        set(1, [member(1)]),
        "No host described in new configuration with {version: 1, term: 0} for replica set rs maps to this node",
    );
    bad(
        set(1, [with(0, doc! { "priority": 0 }), member(1)]),
        "This node, h0:1, with _id 0 is not electable",
    );
    bad(
        set(1, [with(0, doc! { "priority": 0 })]),
        "at least one non-arbiter member",
    );
    bad(
        set(1, [member(0), doc! { "_id": 0, "host": "h9" }]),
        "same _id field, members.0._id == members.1._id == 0",
    );
    bad(
        set(1, [member(0), doc! { "_id": 1, "host": "h0:1" }]),
        "same host field, members.0.host == members.1.host == h0:1",
    );
    bad(
        set(1, [member(0), doc! { "_id": 1, "host": "localhost:2" }]),
        "found 1 out of 2",
    );
    bad(
        set(
            1,
            [
                member(0),
                with(1, doc! { "arbiterOnly": true, "priority": 2 }),
            ],
        ),
        "is an arbiter but has priority 2.",
    );
    bad(
        doc! { "_id": "other", "version": 1, "members": array([member(0)]) },
        "name other, but command line reports rs",
    );
    let mut w = Writer::new();
    w.extend(set(1, [member(0)]).as_doc());
    w.value("settings", doc! { "replicaSetId": ObjectId([1; 12]) });
    bad(w.finish(), "cannot contain 'replicaSetId' field");
    assert_eq!(
        Config::of_one("rs", Host::parse("h0").unwrap(), SET)
            .check_initiate("rs", |_| true)
            .unwrap(),
        0
    );
}

#[test]
fn configurations_that_may_follow() {
    let old = parse(&set(1, [member(0), member(1), member(2)])).unwrap();
    let next = |d: DocBuf, force| parse(&d).unwrap().check_reconfig(&old, force);
    next(set(2, (0..4).map(member)), false).unwrap();
    next(set(2, (0..2).map(member)), false).unwrap();
    next(set(2, (0..5).map(member)), true).unwrap();
    let quiet = doc! { "votes": 0, "priority": 0 };
    next(
        set(
            2,
            (0..4)
                .map(member)
                .chain([with(4, quiet.clone()), with(5, quiet)]),
        ),
        false,
    )
    .unwrap();
    let bad = |d: DocBuf, part: &str| refused(next(d, false).unwrap_err(), 103, part);
    bad(set(2, (0..5).map(member)), "at most 1 voting member");
    bad(
        set(2, [member(0), member(1), member(3)]),
        "at most 1 voting member",
    );
    bad(
        set(1, (0..3).map(member)),
        "{version: 1} is not greater than {version: 1} for replica set rs",
    );
    bad(
        set(2, [member(0), member(1), doc! { "_id": 3, "host": "h2:1" }]),
        "host of h2:1 but in the new configuration the _id field is 3 and in the old configuration it is 2",
    );
    bad(
        set(
            2,
            [
                member(0),
                member(1),
                with(2, doc! { "buildIndexes": false, "priority": 0 }),
            ],
        ),
        "differ in the setting of the buildIndexes field for member h2:1",
    );
    bad(
        set(
            2,
            [member(0), member(1), with(2, doc! { "arbiterOnly": true })],
        ),
        "differ in the setting of the arbiterOnly field",
    );
    let mut other = parse(&set(2, (0..3).map(member))).unwrap();
    other.name = "x".into();
    refused(
        other.check_reconfig(&old, true).unwrap_err(),
        103,
        "old was rs, and new is x",
    );
    other.name = "rs".into();
    other.settings.replica_set_id = Some(ObjectId([1; 12]));
    refused(
        other.check_reconfig(&old, true).unwrap_err(),
        103,
        "differ in replica set ID",
    );
}

#[test]
fn writes_that_reached_their_members() {
    let tagged = |n, dc: &str| with(n, doc! { "tags": doc! { "dc": dc } });
    let mut d = Writer::new();
    d.extend(
        set(
            1,
            [
                tagged(0, "a"),
                tagged(1, "a"),
                tagged(2, "b"),
                with(3, doc! { "votes": 0, "priority": 0 }),
            ],
        )
        .as_doc(),
    );
    d.value(
        "settings",
        doc! { "getLastErrorModes": doc! { "two": doc! { "dc": 2 }, "three": doc! { "dc": 3 } } },
    );
    let config = parse(&d.finish()).unwrap();
    let reached = |wanted: Wanted, by: &[i32]| config.is_reached(&wanted, &|id| by.contains(&id));
    assert!(reached(Wanted::Members(2), &[0, 3]));
    assert!(!reached(Wanted::Members(2), &[0]));
    assert!(reached(Wanted::Majority, &[0, 2]));
    assert!(!reached(Wanted::Majority, &[0, 3]));
    let two = || Wanted::WriteConcernMode("two".into());
    assert!(reached(two(), &[1, 2]));
    assert!(!reached(two(), &[0, 1]));
    let tags = |n| Wanted::Tags(vec![("dc".into(), n)]);
    assert!(reached(tags(1), &[2]) && !reached(tags(2), &[0, 1, 3]));

    let unreachable = |w: Wanted| config.check_reachable(&w).unwrap_err().code().0;
    assert_eq!(config.check_reachable(&two()), Ok(()));
    assert_eq!(config.check_reachable(&Wanted::Members(4)), Ok(()));
    assert_eq!(unreachable(Wanted::Members(5)), 100);
    assert_eq!(unreachable(Wanted::WriteConcernMode("three".into())), 100);
    assert_eq!(unreachable(Wanted::WriteConcernMode("none".into())), 79);
    assert_eq!(unreachable(Wanted::Tags(vec![("nope".into(), 1)])), 100);
}
