//! Cases of matching and of refusals, each as MongoDB 8 answers them.

use super::*;
use bson::json;

fn parse(q: &str) -> Result<Filter> {
    let d = json::parse(q).unwrap_or_else(|e| panic!("{q}: {e}"));
    Filter::parse(d.as_doc(), &ParseEnv::default())
}

/// Which of the documents match, as a string of digits.
fn matching(q: &str, docs: &[&str]) -> String {
    let f = parse(q).unwrap_or_else(|e| panic!("{q}: {e}"));
    let mut out = String::new();
    for (i, d) in docs.iter().enumerate() {
        let d = json::parse(d).unwrap_or_else(|e| panic!("{d}: {e}"));
        if f.matches(d.as_doc()).unwrap() {
            out.push_str(&i.to_string());
        }
    }
    out
}

#[test]
fn comparisons() {
    let docs = [
        r#"{"a":5}"#,
        r#"{"a":"5"}"#,
        r#"{"a":null}"#,
        r#"{}"#,
        r#"{"a":[1,7]}"#,
        r#"{"a":{"$numberDouble":"NaN"}}"#,
        r#"{"a":{"$undefined":true}}"#,
        r#"{"a":[]}"#,
    ];
    for (q, want) in [
        (r#"{"a":5}"#, "0"),
        (r#"{"a":{"$numberDecimal":"5.0"}}"#, "0"),
        (r#"{"a":null}"#, "23"),
        (r#"{"a":{"$ne":null}}"#, "014567"),
        (r#"{"a":{"$gt":4}}"#, "04"),
        (r#"{"a":{"$gte":null}}"#, "23"),
        (r#"{"a":{"$gt":null}}"#, ""),
        (r#"{"a":{"$lt":{"$numberDouble":"Infinity"}}}"#, "04"),
        (r#"{"a":{"$gte":{"$numberDouble":"NaN"}}}"#, "5"),
        (r#"{"a":{"$gt":{"$minKey":1}}}"#, "01234567"),
        (r#"{"a":{"$lte":{"$maxKey":1}}}"#, "01234567"),
        (r#"{"a":{"$gt":"4"}}"#, "1"),
        (r#"{"a":{"$in":[5,null]}}"#, "023"),
        (r#"{"a":{"$nin":[5,null]}}"#, "14567"),
        (r#"{"a":[1,7]}"#, "4"),
        (r#"{"a":[]}"#, "7"),
        (r#"{"a":{"$gt":[1,6]}}"#, "4"),
        (r#"{"a":{"$exists":true}}"#, "0124567"),
        (r#"{"a":{"$exists":0}}"#, "3"),
        (r#"{"a":{"$type":"number"}}"#, "045"),
        (r#"{"a":{"$type":["array","null"]}}"#, "247"),
        (r#"{"a":{"$type":6}}"#, "6"),
        (r#"{"a":{"$not":{"$gt":4}}}"#, "123567"),
        (r#"{"a":{"$gt":2,"$lt":6}}"#, "04"),
        (r#"{"a":{"$size":2}}"#, "4"),
        (r#"{"a":{"$mod":[2,1]}}"#, "04"),
        (r#"{"a":{"$bitsAllSet":5}}"#, "04"),
        (r#"{"a":{"$regex":"^5"}}"#, "1"),
        (r#"{"$nor":[{"a":5},{"a":"5"}]}"#, "234567"),
        (r#"{"$or":[{"a":5},{"a":{"$exists":false}}]}"#, "03"),
        (r#"{"$and":[{"a":1},{"a":7}]}"#, "4"),
        (r#"{"$alwaysFalse":1}"#, ""),
        (r#"{"$comment":"x"}"#, "01234567"),
    ] {
        assert_eq!(matching(q, &docs), want, "{q}");
    }
}

#[test]
fn paths_and_arrays() {
    let docs = [
        r#"{"a":{"b":1}}"#,
        r#"{"a":[{"b":1,"c":2},{"b":3,"c":4}]}"#,
        r#"{"a":[{"c":1},5]}"#,
        r#"{"a":[1,2]}"#,
        r#"{"a":7}"#,
        r#"{"a":[[{"b":1}]]}"#,
        r#"{"a":{"b":[1,5]}}"#,
    ];
    for (q, want) in [
        (r#"{"a.b":1}"#, "016"),
        (r#"{"a.b":null}"#, "24"),
        (r#"{"a.b":{"$exists":false}}"#, "2345"),
        (r#"{"a.0.b":1}"#, "15"),
        (r#"{"a.0":1}"#, "3"),
        (r#"{"a.b":1,"a.c":4}"#, "1"),
        (r#"{"a":{"$elemMatch":{"b":1,"c":4}}}"#, ""),
        (r#"{"a":{"$elemMatch":{"b":3,"c":4}}}"#, "1"),
        (r#"{"a":{"$elemMatch":{"$gt":1,"$lt":3}}}"#, "3"),
        (r#"{"a":{"$elemMatch":{"$elemMatch":{"b":1}}}}"#, "5"),
        (r#"{"a":{"$not":{"$elemMatch":{"b":1}}}}"#, "023456"),
        (r#"{"a":{"$all":[1,2]}}"#, "3"),
        (r#"{"a":{"$all":[]}}"#, ""),
        (r#"{"a.b":{"$all":[1,5]}}"#, "6"),
        (
            r#"{"a":{"$all":[{"$elemMatch":{"b":1}},{"$elemMatch":{"b":3}}]}}"#,
            "1",
        ),
        (r#"{"a":{"b":1}}"#, "0"),
        (r#"{"a.b":{"$lt":1}}"#, ""),
        (r#"{"a.b":[1,5]}"#, "6"),
    ] {
        assert_eq!(matching(q, &docs), want, "{q}");
    }
}

#[test]
fn refusals() {
    for (q, code) in [
        (r#"{"$foo":1}"#, 2),
        (r#"{"a":{"$foo":1}}"#, 2),
        (r#"{"a":{"$gt":1,"b":2}}"#, 2),
        (r#"{"$and":[]}"#, 2),
        (r#"{"$or":{"a":1}}"#, 2),
        (r#"{"$nor":[1]}"#, 2),
        (r#"{"a":{"$in":1}}"#, 2),
        (r#"{"a":{"$in":[{"$gt":1}]}}"#, 2),
        (r#"{"a":{"$not":1}}"#, 2),
        (r#"{"a":{"$not":{}}}"#, 2),
        (
            r#"{"a":{"$gt":{"$regularExpression":{"pattern":"x","options":""}}}}"#,
            2,
        ),
        (r#"{"a":{"$size":-1}}"#, 2),
        (r#"{"a":{"$size":1.5}}"#, 2),
        (r#"{"a":{"$mod":[0,1]}}"#, 2),
        (r#"{"a":{"$mod":[1]}}"#, 2),
        (r#"{"a":{"$type":"foo"}}"#, 2),
        (r#"{"a":{"$type":true}}"#, 14),
        (r#"{"a":{"$type":[]}}"#, 9),
        (r#"{"a":{"$all":1}}"#, 2),
        (r#"{"a":{"$elemMatch":1}}"#, 2),
        (r#"{"a":{"$elemMatch":{"$where":"1"}}}"#, 2),
        (r#"{"a":{"$bitsAllSet":-1}}"#, 9),
        (r#"{"a":{"$bitsAllSet":"x"}}"#, 2),
        (r#"{"a":{"$options":"i"}}"#, 2),
        (r#"{"a":{"$regex":"["}}"#, 51091),
        (r#"{"a":{"$undefined":true}}"#, 2),
        (r#"{"$jsonSchema":1}"#, 14),
    ] {
        match parse(q) {
            Err(e) => assert_eq!(e.failure().unwrap().code.0, code, "{q}: {e}"),
            Ok(f) => panic!("{q} was accepted as {f:?}"),
        }
    }
    let message = |q: &str| parse(q).unwrap_err().into_error().into_message();
    assert_eq!(message(r#"{"a":{"$foo":1}}"#), "unknown operator: $foo");
    assert_eq!(
        message(r#"{"$and":[]}"#),
        "$and/$or/$nor must be a nonempty array"
    );
}

#[test]
fn simplified_and_printed() {
    for (q, want) in [
        (r#"{}"#, r#"{}"#),
        (r#"{"a":1}"#, r#"{"a":{"$eq":1}}"#),
        (
            r#"{"a":1,"b":2}"#,
            r#"{"$and":[{"a":{"$eq":1}},{"b":{"$eq":2}}]}"#,
        ),
        (r#"{"$and":[{"a":1}]}"#, r#"{"a":{"$eq":1}}"#),
        (r#"{"$or":[{"a":2},{"a":1}]}"#, r#"{"a":{"$in":[1,2]}}"#),
        (r#"{"a":{"$in":[3,1,3]}}"#, r#"{"a":{"$in":[1,3]}}"#),
        (r#"{"a":{"$in":[3]}}"#, r#"{"a":{"$eq":3}}"#),
        (r#"{"a":{"$in":[]}}"#, r#"{"$alwaysFalse":1}"#),
        (r#"{"a":{"$ne":3}}"#, r#"{"a":{"$not":{"$eq":3}}}"#),
        (
            r#"{"a":{"$not":{"$gt":1,"$lt":5}}}"#,
            r#"{"a":{"$not":{"$gt":1,"$lt":5}}}"#,
        ),
        (
            r#"{"a":{"$all":[1,2]}}"#,
            r#"{"$and":[{"a":{"$eq":1}},{"a":{"$eq":2}}]}"#,
        ),
        (
            r#"{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}"#,
            r#"{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}"#,
        ),
        (
            r#"{"a":{"$regex":"x","$options":"si"}}"#,
            r#"{"a":{"$regex":"x","$options":"is"}}"#,
        ),
        (r#"{"a":{"$type":["int",2]}}"#, r#"{"a":{"$type":[2,16]}}"#),
    ] {
        let got = parse(q).unwrap().to_doc().as_doc().to_string();
        assert_eq!(got.replace(' ', ""), want, "{q}");
    }
}

#[test]
fn values_for_upserts() {
    let f =
        parse(r#"{"a":1,"b.c":{"$eq":2},"d":{"$gt":1},"$and":[{"e":3}],"g":{"$in":[4]}}"#).unwrap();
    let got: Vec<String> = f
        .equalities()
        .unwrap()
        .iter()
        .map(|(p, v)| format!("{p}={v}"))
        .collect();
    assert_eq!(got, ["a=1", "b.c=2", "e=3", "g=4"]);
    for q in [r#"{"$and":[{"a":1},{"a":2}]}"#, r#"{"a":1,"a.b":2}"#] {
        assert_eq!(
            parse(q)
                .unwrap()
                .equalities()
                .unwrap_err()
                .into_error()
                .code
                .0,
            54,
            "{q}"
        );
    }
}

#[test]
fn elements_that_are_dbrefs() {
    let docs = [
        r#"{"m":[{"$ref":"c","$id":1}]}"#,
        r#"{"m":[{"$ref":"c","$id":2,"$db":"d"},{"$ref":"e","$id":1,"$db":"d"}]}"#,
        r#"{"m":[{"$ref":"e","$id":3,"x":1},{"$id":{"$gt":1}}]}"#,
        r#"{"m":{"$ref":"c","$id":1}}"#,
        r#"{}"#,
    ];
    for (q, want) in [
        (r#"{"m":{"$elemMatch":{"$id":1}}}"#, "01"),
        (r#"{"m":{"$elemMatch":{"$ref":"c"}}}"#, "01"),
        (r#"{"m":{"$elemMatch":{"$db":"d"}}}"#, "1"),
        (r#"{"m":{"$elemMatch":{"$ref":"c","$id":1}}}"#, "0"),
        (
            r#"{"m":{"$elemMatch":{"$id":2,"$ref":"c","$db":"d"}}}"#,
            "1",
        ),
        (r#"{"m":{"$elemMatch":{"$ref":"e","x":{"$gt":0}}}}"#, "2"),
        (r#"{"m":{"$elemMatch":{"x":1,"$id":3}}}"#, "2"),
        (
            r#"{"m":{"$elemMatch":{"$or":[{"$id":2},{"$id":3}]}}}"#,
            "12",
        ),
        // What stands there is a value, not a condition.
        (r#"{"m":{"$elemMatch":{"$id":{"$gt":1}}}}"#, "2"),
        (r#"{"m":{"$not":{"$elemMatch":{"$id":1}}}}"#, "234"),
        (
            r#"{"m":{"$all":[{"$elemMatch":{"$ref":"c"}},{"$elemMatch":{"$id":1}}]}}"#,
            "01",
        ),
        (r#"{"m":{"$ref":"c","$id":1}}"#, "03"),
        (r#"{"m.$id":1}"#, "013"),
    ] {
        assert_eq!(matching(q, &docs), want, "{q}");
    }
    // At the top they are fields of the document itself.
    let whole = [r#"{"$ref":"c","$id":1}"#, r#"{"$id":2}"#, "{}"];
    for (q, want) in [
        (r#"{"$id":1}"#, "0"),
        (r#"{"$ref":"c","$id":1}"#, "0"),
        (r#"{"$or":[{"$ref":"c"},{"$id":2}]}"#, "01"),
        (r#"{"$id":{"$gt":0}}"#, ""),
    ] {
        assert_eq!(matching(q, &whole), want, "{q}");
    }
    for q in [
        r#"{"$idx":1}"#,
        r#"{"m":{"$elemMatch":{"$idx":1}}}"#,
        r#"{"m":{"$elemMatch":{"$gt":1,"$id":1}}}"#,
    ] {
        let got = parse(q).map(|_| ()).unwrap_err().into_error().code.0;
        // The last has a field of a DBRef, so it is a query on documents, where `$gt` names no
        // clause.
        assert_eq!(got, 2, "{q}");
    }
}

#[test]
fn filters_of_nothing_but_equalities() {
    for (q, want) in [
        (r#"{"a":1}"#, Some(1)),
        (
            r#"{"a":1,"$and":[{"b.c":{"$in":[2]}},{"d":null}]}"#,
            Some(3),
        ),
        (r#"{"a":1,"b":{"$gt":2}}"#, None),
        (r#"{"a":1,"b":{"$in":[2,3]}}"#, None),
        (r#"{"a":1,"$or":[{"b":1},{"c":1}]}"#, None),
        (r#"{"a":1,"$expr":{"$eq":["$b",1]}}"#, None),
        (r#"{"a":{"$not":{"$eq":1}}}"#, None),
        (r#"{"a":1,"$and":[{"a":2}]}"#, None),
        (r#"{}"#, None),
    ] {
        let f = parse(q).unwrap();
        assert_eq!(f.nothing_but_equalities().map(|e| e.len()), want, "{q}");
    }
}

#[test]
fn matched_positions() {
    for (q, d, want) in [
        (r#"{"a":3}"#, r#"{"a":[1,3]}"#, Some(Some(1))),
        (r#"{"a":3}"#, r#"{"a":3}"#, Some(None)),
        (r#"{"a":3}"#, r#"{"a":4}"#, None),
        (
            r#"{"a.b":3}"#,
            r#"{"a":[{"b":1},{"b":[2,3]}]}"#,
            Some(Some(1)),
        ),
        (
            r#"{"a":{"$elemMatch":{"b":3}}}"#,
            r#"{"a":[{"b":1},{"b":3}]}"#,
            Some(Some(1)),
        ),
        (
            r#"{"a":{"$gt":1,"$lt":5}}"#,
            r#"{"a":[1,2,3]}"#,
            Some(Some(1)),
        ),
        (r#"{"a":3,"b":5}"#, r#"{"a":[1,3],"b":[5]}"#, Some(Some(0))),
        (r#"{"$or":[{"a":3},{"b":5}]}"#, r#"{"a":[1,3]}"#, Some(None)),
        (r#"{"a.1":3}"#, r#"{"a":[1,3]}"#, Some(None)),
    ] {
        let d = json::parse(d).unwrap();
        let got = parse(q)
            .unwrap()
            .first_matched_index(d.as_doc(), &Vars::default())
            .unwrap();
        assert_eq!(got, want, "{q}");
    }
}

/// The first of two equalities that contradict each other, as when each is held against all before
/// it.
#[test]
fn conflicts() {
    use crate::path::FieldPath;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    let mut r = StdRng::seed_from_u64(3);
    let mut found = [0; 2];
    for _ in 0..3000 {
        let paths: Vec<FieldPath> = (0..r.random_range(0..8))
            .map(|_| {
                let parts = (0..r.random_range(1..4))
                    .map(|_| ["a", "b", "a-", "c", "dd"][r.random_range(0..5)]);
                FieldPath::new(&parts.collect::<Vec<_>>().join("."))
            })
            .collect();
        let pairs: Vec<_> = paths.iter().map(|p| (p, bson::Val::NULL)).collect();
        let conflicting = |i: &usize| paths[..*i].iter().any(|q| paths[*i].conflicts_with(q));
        let want = (0..paths.len()).find(conflicting);
        assert_eq!(super::first_conflict(&pairs), want, "{paths:?}");
        found[usize::from(want.is_some())] += 1;
    }
    assert!(found.iter().all(|n| *n > 300), "{found:?}");
}

/// Each against all others, they would take hours.
#[test]
fn long_queries() {
    const N: i32 = 200_000;
    let mut w = bson::Writer::new();
    for i in 0..N {
        w.i32(&format!("f{}", i * 7919 % N), i);
    }
    let f = Filter::parse(w.finish().as_doc(), &ParseEnv::new()).unwrap();
    assert_eq!(f.equalities().unwrap().len(), N as usize);
    let mut w = bson::Writer::new();
    w.open_doc("a");
    for _ in 0..N {
        w.str("$options", "i");
    }
    w.str("$regex", "x").close();
    assert!(Filter::parse(w.finish().as_doc(), &ParseEnv::new()).is_ok());
}

/// A long command can be ended while it is parsed; a short one does not ask.
#[test]
fn parsing_asks() {
    use crate::pipeline::{ParseCtx, Pipeline};
    use crate::projection::Projection;
    use crate::update::Update;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Instant;
    let many = |one: &dyn Fn(usize) -> String| (0..10_000).map(one).collect::<Vec<_>>().join(",");
    let fields = many(&|i| format!(r#""f{i}":1"#));
    let values = many(&|i| i.to_string());
    let clauses = many(&|i| format!(r#"{{"f{i}":1}}"#));
    let paths = many(&|i| format!(r#""$f{i}""#));
    let asked_by = |parse: &dyn Fn(&ParseEnv) -> Result<()>, most: usize| {
        let asked = AtomicUsize::new(0);
        let ask = |_: Option<Instant>| match asked.fetch_add(1, Relaxed) {
            n if n < most => Ok(()),
            _ => Err(err!(Interrupted, "enough")),
        };
        let ended = errors::operation::asking(None, &ask, || parse(&ParseEnv::new()))
            .err()
            .is_some_and(|e| e.is(errors::Code::Interrupted));
        (ended, asked.load(Relaxed))
    };
    let doc = |text: String| json::parse(&text).unwrap();
    let filter = |text: String| {
        let d = doc(text);
        move |env: &ParseEnv| Filter::parse(d.as_doc(), env).map(|_| ())
    };
    let projection = doc(format!("{{{fields}}}"));
    let update = doc(format!(r#"{{"$set":{{{fields}}}}}"#));
    let stages = doc(format!(r#"{{"p":[{{"$set":{{{fields}}}}}]}}"#));
    let project = doc(format!(r#"{{"p":[{{"$project":{{{fields}}}}}]}}"#));
    let pipeline = |d: &bson::DocBuf, env: &ParseEnv| {
        let stages = d.as_doc().get("p").unwrap();
        Pipeline::parse(stages, &ParseCtx::new("db", Some("c"), env.clone())).map(|_| ())
    };
    let needs = many(&|i| format!(r#""f{i}":["g"]"#));
    let ring = many(&|i| format!("[{},{}]", 1e-5 * f64::from(i as u32), (i % 2) + 1));
    let adds = doc(format!(r#"{{"$addToSet":{{"a":{{"$each":[{values}]}}}}}}"#));
    let names = many(&|i| format!(r#""f{i}""#));
    let unset = doc(format!(r#"{{"p":[{{"$unset":[{names}]}}]}}"#));
    let all: [(&str, Box<dyn Fn(&ParseEnv) -> Result<()>>); 13] = [
        (
            "schema",
            Box::new(filter(format!(
                r#"{{"$jsonSchema":{{"dependencies":{{{needs}}}}}}}"#
            ))),
        ),
        (
            "line",
            Box::new(filter(format!(
                r#"{{"a":{{"$geoIntersects":{{"$geometry":{{"type":"LineString","coordinates":[{ring}]}}}}}}}}"#
            ))),
        ),
        (
            "addToSet",
            Box::new(move |env| Update::parse(adds.as_doc().as_val(), &[], env).map(|_| ())),
        ),
        ("unset", Box::new(move |env| pipeline(&unset, env))),
        ("fields", Box::new(filter(format!("{{{fields}}}")))),
        (
            "in",
            Box::new(filter(format!(r#"{{"a":{{"$in":[{values}]}}}}"#))),
        ),
        (
            "nin",
            Box::new(filter(format!(r#"{{"a":{{"$nin":[{values}]}}}}"#))),
        ),
        ("or", Box::new(filter(format!(r#"{{"$or":[{clauses}]}}"#)))),
        (
            "expr",
            Box::new(filter(format!(r#"{{"$expr":{{"$add":[{paths}]}}}}"#))),
        ),
        (
            "projection",
            Box::new(move |env| Projection::parse(projection.as_doc(), None, env).map(|_| ())),
        ),
        (
            "update",
            Box::new(move |env| Update::parse(update.as_doc().as_val(), &[], env).map(|_| ())),
        ),
        ("set", Box::new(move |env| pipeline(&stages, env))),
        ("project", Box::new(move |env| pipeline(&project, env))),
    ];
    for (name, parse) in &all {
        // A list that is put in order is asked about once.
        let most = if *name == "addToSet" { 0 } else { 2 };
        assert_eq!(asked_by(parse, most), (true, most + 1), "{name}");
        let (ended, asked) = asked_by(parse, usize::MAX);
        assert!(
            !ended && (4 * most + 1..100).contains(&asked),
            "{name}: {asked}"
        );
    }
    let short = filter(r#"{"a":{"$in":[1,2]},"$or":[{"b":1},{"c":1}]}"#.to_string());
    assert_eq!(asked_by(&short, 0), (false, 0));
}

/// A test that goes over a value again and again can be ended, within the one document; a short one
/// never asks.
#[test]
fn long_tests_ask() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let asked = Arc::new(AtomicUsize::new(0));
    let mut vars = Vars::new(0);
    let count = asked.clone();
    vars.set_watchdog(Arc::new(move || match count.fetch_add(1, Relaxed) {
        20.. => Err(err!(Interrupted, "enough").into()),
        _ => Ok(()),
    }));
    let mut w = bson::Writer::new();
    w.open_array("a");
    (0..100_000).for_each(|i| {
        w.str("", &format!("v{i}"));
    });
    w.close().open_array("o");
    (0..20_000).for_each(|i| {
        w.open_doc("").i32("x", i).close();
    });
    w.close().open_doc("w");
    (0..50_000).for_each(|i| {
        w.i32(&format!("f{i}"), i);
    });
    w.close();
    let long = w.finish();
    let short = json::parse(r#"{"a":["v1","v2"],"o":[{"x":1}],"w":{"f1":1}}"#).unwrap();
    let list =
        |f: &dyn Fn(usize) -> String| (0..500).map(f).collect::<Vec<_>>().join(",").to_string();
    let queries = [
        format!(
            r#"{{"a":{{"$in":[{}]}}}}"#,
            list(&|i| format!(r#"{{"$regularExpression":{{"pattern":"x{i}|y","options":""}}}}"#))
        ),
        format!(
            r#"{{"a":{{"$not":{{"$in":[{}]}}}}}}"#,
            list(&|i| format!(r#"{{"$regularExpression":{{"pattern":"x{i}|y","options":""}}}}"#))
        ),
        format!(
            r#"{{"$or":[{}]}}"#,
            list(&|i| format!(r#"{{"a":{{"$lt":"n{i}"}}}}"#))
        ),
        format!(
            r#"{{"$nor":[{}]}}"#,
            list(&|i| format!(r#"{{"a":{{"$lt":"n{i}"}}}}"#))
        ),
        format!(
            r#"{{"$and":[{}]}}"#,
            list(&|i| format!(r#"{{"a":{{"$ne":"n{i}"}}}}"#))
        ),
        format!(
            r#"{{"o":{{"$elemMatch":{{"$or":[{}]}}}}}}"#,
            list(&|i| format!(r#"{{"x":{{"$lt":-{i}.5}}}}"#))
        ),
        format!(
            r#"{{"o":{{"$not":{{"$elemMatch":{{"$and":[{}]}}}}}}}}"#,
            list(&|i| format!(r#"{{"x":{{"$ne":-{i}.5}}}}"#))
        ),
        format!(
            r#"{{"$jsonSchema":{{"properties":{{"a":{{"items":{{"allOf":[{}]}}}}}}}}}}"#,
            list(&|i| format!(r#"{{"minLength":{}}}"#, i % 2))
        ),
        format!(
            r#"{{"$jsonSchema":{{"properties":{{"a":{{"items":{{"anyOf":[{}]}}}}}}}}}}"#,
            list(&|i| format!(r#"{{"minLength":{}}}"#, 100 + i))
        ),
        format!(
            r#"{{"$jsonSchema":{{"properties":{{"w":{{"patternProperties":{{{}}}}}}}}}}}"#,
            list(&|i| format!(r#""y{i}|x":{{}}"#))
        ),
        r#"{"a":{"$regex":"(x+x+)+y"}}"#.to_string(),
    ];
    for q in &queries {
        let f = parse(q).unwrap();
        assert!(f.wants_vars(), "{q}");
        asked.store(0, Relaxed);
        let ended = f.matches_with(long.as_doc(), &vars);
        assert!(
            matches!(ended, Err(e) if e.is(errors::Code::Interrupted)),
            "{q}"
        );
        let ended = f.first_matched_index(long.as_doc(), &vars);
        assert!(ended.is_err(), "{q}");
    }
    asked.store(0, Relaxed);
    // Hundreds of regular expressions are work on a short document too.
    for q in queries.iter().filter(|q| !q.contains("pattern")) {
        // Even many of them, one after the other.
        let f = parse(q).unwrap();
        let alone = f.matches(short.as_doc()).unwrap();
        for _ in 0..3 {
            assert_eq!(f.matches_with(short.as_doc(), &vars).unwrap(), alone, "{q}");
        }
    }
    assert_eq!(asked.load(Relaxed), 0);
    for q in [r#"{"a":1}"#, r#"{"a":{"$in":[1,2]},"b":{"$gt":1}}"#, "{}"] {
        assert!(!parse(q).unwrap().wants_vars(), "{q}");
    }
}

/// Constants that are computed while something is parsed are counted together.
#[test]
fn constants_share_their_bytes() {
    use crate::expr::{Expression, ParseEnv};
    let env = ParseEnv::new();
    let range = bson::json::parse(r#"{"$range": [0, 100000]}"#).unwrap();
    let constant = |env: &ParseEnv| {
        let e = Expression::parse(range.as_doc().as_val(), env).unwrap();
        e.constant().is_some()
    };
    let kept = (0..100).filter(|_| constant(&env)).count();
    assert!((5..50).contains(&kept), "{kept}");
    // Nothing is computed any more then, and another command has its own.
    let small = bson::json::parse(r#"{"$add": [1, 2]}"#).unwrap();
    let small = Expression::parse(small.as_doc().as_val(), &env.clone()).unwrap();
    assert!(small.constant().is_none() && !constant(&env.clone()));
    assert!(constant(&ParseEnv::new()));
}

/// A test can be ended within one match of a regular expression.
#[test]
fn a_match_is_ended() {
    use crate::expr::Vars;
    use errors::{Code, err};
    let long = format!("{}b", "a".repeat(300_000));
    let mut w = bson::Writer::new();
    w.str("s", &long);
    let doc = w.finish();
    for text in [
        r#"{"s": {"$regex": "(?=[a-z]*+\\d)a"}}"#,
        r#"{"s": {"$in": [{"$regularExpression": {"pattern": "(?=[a-z]*+\\d)a", "options": ""}}]}}"#,
        r#"{"$jsonSchema": {"properties": {"s": {"pattern": "(?=[a-z]*+\\d)a"}}}}"#,
        r#"{"$expr": {"$regexMatch": {"input": "$s", "regex": "(?=[a-z]*+\\d)a"}}}"#,
    ] {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let mut vars = Vars::new(0);
        let count = asked.clone();
        vars.set_watchdog(std::sync::Arc::new(move || {
            match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                n if n < 500 => Ok(()),
                _ => Err(err!(Interrupted, "enough").into()),
            }
        }));
        let ended = parse(text)
            .unwrap()
            .matches_with(doc.as_doc(), &vars)
            .unwrap_err();
        assert!(ended.is(Code::Interrupted), "{text}");
    }
}

/// A schema of very many names asks by them, however short the document is.
#[test]
fn many_names_of_a_schema_ask() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let list = |f: &dyn Fn(usize) -> String| (0..20_000).map(f).collect::<Vec<_>>().join(",");
    for schema in [
        format!(
            r#""dependencies":{{{}}}"#,
            list(&|i| format!(r#""f{i}":["g"]"#))
        ),
        format!(r#""required":["a",{}]"#, list(&|i| format!(r#""f{i}""#))),
    ] {
        let filter = parse(&format!(r#"{{"$jsonSchema":{{{schema}}}}}"#)).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let mut vars = Vars::new(0);
        let count = asked.clone();
        vars.set_watchdog(Arc::new(move || {
            count.fetch_add(1, Relaxed);
            Ok(())
        }));
        let doc = json::parse(r#"{"a":1}"#).unwrap();
        filter.matches_with(doc.as_doc(), &vars).unwrap();
        assert!(asked.load(Relaxed) >= 5, "{}", &schema[..20]);
    }
}
