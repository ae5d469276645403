//! Properties of order, keys and views over random values of every type; a failure prints its seed.

use bson::{Decimal128, Doc, DocBuf, ObjectId, Val, Value, Writer, key, order, tag, validate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cmp::Ordering;

const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "0.1",
    "1e34",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "1E-6176",
    "9.999999999999999999999999999999999E6144",
    "-9.999999999999999999999999999999999E6144",
    "NaN",
    "Infinity",
    "-Infinity",
    "0.30000000000000004",
    "0.3",
    "9007199254740992.5",
    "1.00",
    "100E-2",
    "-1E-400",
];

fn number(r: &mut StdRng) -> Value {
    match r.random_range(0..8) {
        0 => Value::from(r.random_range(-3..3i32)),
        1 => Value::from(r.random_range(-3..3i64)),
        2 => Value::from(f64::from(r.random_range(-6..6i32)) / 2.0),
        3 => Value::from(f64::from_bits(r.random())),
        4 => Value::from(r.random::<i64>()),
        5 => Value::from(
            NUMBERS[r.random_range(0..NUMBERS.len())]
                .parse::<Decimal128>()
                .unwrap(),
        ),
        6 => {
            let base = [1i64 << 53, 1 << 60, i64::MAX - 5, i64::MIN + 5][r.random_range(0..4)];
            Value::from(base + r.random_range(-4..4i64))
        }
        _ => {
            let f: f64 = NUMBERS[r.random_range(0..NUMBERS.len())]
                .to_lowercase()
                .replace("infinity", "inf")
                .parse()
                .unwrap();
            Value::from(f)
        }
    }
}

fn string(r: &mut StdRng) -> String {
    (0..r.random_range(0..4))
        .map(|_| ['\0', 'a', 'b', 'é', '\u{1}', '\u{10FFFF}'][r.random_range(0..6)])
        .collect()
}

fn name(r: &mut StdRng) -> String {
    (0..r.random_range(0..3))
        .map(|_| ['a', 'b', '.', 'é'][r.random_range(0..4)])
        .collect()
}

fn value(r: &mut StdRng, depth: usize) -> Value {
    match r.random_range(0..if depth > 0 { 22 } else { 20 }) {
        0..=5 => number(r),
        6 | 7 => Value::from(string(r)),
        8 => Value::symbol(&string(r)),
        9 => Value::NULL,
        10 => Value::from(Val::UNDEFINED),
        11 => Value::from(r.random::<bool>()),
        12 => Value::date(r.random_range(-2..2)),
        13 => Value::timestamp(r.random()),
        14 => Value::from(ObjectId([r.random_range(0..2); 12])),
        15 => Value::binary(r.random_range(0..3), string(r).as_bytes()),
        16 => Value::regex(&name(r), ["", "i"][r.random_range(0..2)]),
        17 => Value::code(&string(r)),
        18 => Value::from(Val::MIN_KEY),
        19 => Value::from(Val::MAX_KEY),
        20 => Value::from(document(r, depth - 1)),
        _ => Value::new(tag::ARRAY, array(r, depth - 1).as_bytes()),
    }
}

fn document(r: &mut StdRng, depth: usize) -> DocBuf {
    let mut w = Writer::new();
    for _ in 0..r.random_range(0..3) {
        w.val(&name(r), value(r, depth).as_val());
    }
    w.finish()
}

fn array(r: &mut StdRng, depth: usize) -> DocBuf {
    let mut w = Writer::new_array();
    for _ in 0..r.random_range(0..3) {
        w.push(value(r, depth).as_val());
    }
    w.finish()
}

#[test]
fn key_order_is_comparison_order() {
    let seed: u64 = rand::random();
    let mut r = StdRng::seed_from_u64(seed);
    for _ in 0..200_000 {
        let (a, b) = (value(&mut r, 2), value(&mut r, 2));
        let want = order::compare(a.as_val(), b.as_val());
        assert_eq!(
            want,
            order::compare(b.as_val(), a.as_val()).reverse(),
            "seed {seed}: {a:?} {b:?}"
        );
        assert_eq!(
            want,
            key::of(a.as_val()).cmp(&key::of(b.as_val())),
            "seed {seed}: {a:?} against {b:?}"
        );
        let (mut da, mut db) = (vec![], vec![]);
        key::encode(a.as_val(), true, &mut da, None);
        key::encode(b.as_val(), true, &mut db, None);
        assert_eq!(
            want.reverse(),
            da.cmp(&db),
            "seed {seed}, descending: {a:?} against {b:?}"
        );
    }
}

#[test]
fn keys_concatenate() {
    let seed: u64 = rand::random();
    let mut r = StdRng::seed_from_u64(seed);
    for _ in 0..100_000 {
        let flip: [bool; 2] = r.random();
        let make = |r: &mut StdRng| {
            let v = [value(r, 1), value(r, 1)];
            let mut k = vec![];
            key::encode(v[0].as_val(), flip[0], &mut k, None);
            key::encode(v[1].as_val(), flip[1], &mut k, None);
            (v, k)
        };
        let ((va, ka), (vb, kb)) = (make(&mut r), make(&mut r));
        let one = |i: usize| {
            let o = order::compare(va[i].as_val(), vb[i].as_val());
            if flip[i] { o.reverse() } else { o }
        };
        assert_eq!(
            one(0).then(one(1)),
            ka.cmp(&kb),
            "seed {seed}: {va:?} {vb:?} {flip:?}"
        );
    }
}

#[test]
fn order_is_transitive() {
    let seed: u64 = rand::random();
    let mut r = StdRng::seed_from_u64(seed);
    for _ in 0..100_000 {
        let (a, b, c) = (number(&mut r), number(&mut r), number(&mut r));
        let (a, b, c) = (a.as_val(), b.as_val(), c.as_val());
        if order::compare(a, b) != Ordering::Greater && order::compare(b, c) != Ordering::Greater {
            assert_ne!(
                order::compare(a, c),
                Ordering::Greater,
                "seed {seed}: {a:?} {b:?} {c:?}"
            );
        }
    }
}

#[test]
fn keys_give_values_back() {
    let seed: u64 = rand::random();
    let mut r = StdRng::seed_from_u64(seed);
    for _ in 0..100_000 {
        let values: Vec<_> = (0..3)
            .map(|_| {
                (
                    value(&mut r, 2),
                    r.random::<bool>(),
                    r.random_range(0..9) == 0,
                )
            })
            .collect();
        let (mut k, mut types) = (vec![], key::Types::default());
        for (v, descending, missing) in &values {
            if *missing {
                key::encode_missing(*descending, &mut k, Some(&mut types));
            } else {
                key::encode(v.as_val(), *descending, &mut k, Some(&mut types));
            }
        }
        k.extend_from_slice(b"rest");
        let mut at = 0;
        for (v, descending, _) in &values {
            at += key::field_len(&k[at..], *descending)
                .unwrap_or_else(|| panic!("seed {seed}: {v:?} has no length"));
        }
        assert_eq!(&k[at..], b"rest", "seed {seed}: {values:?}");
        let types = types.finish();
        let mut d = key::Decoder::new(&k, &types);
        for (v, descending, missing) in &values {
            let got = d
                .field(*descending)
                .unwrap_or_else(|| panic!("seed {seed}: {v:?} does not decode"));
            match got {
                None => assert!(missing, "seed {seed}"),
                Some(g) => {
                    let nan = |v: &Value| v.as_val().to_f64().is_some_and(f64::is_nan);
                    assert!(
                        g == *v || nan(&g) && nan(v) || has_nan(v),
                        "seed {seed}: {v:?} came back as {g:?}"
                    );
                }
            }
        }
        assert_eq!(d.rest(), b"rest");
    }
}

/// NaN payloads are not kept.
fn has_nan(v: &Value) -> bool {
    format!("{v:?}").contains("NaN")
}

#[test]
fn written_documents_validate_and_random_bytes_do_no_harm() {
    let seed: u64 = rand::random();
    let mut r = StdRng::seed_from_u64(seed);
    for _ in 0..50_000 {
        let d = document(&mut r, 3);
        validate(d.as_bytes()).unwrap_or_else(|e| panic!("seed {seed}: {d:?}: {e}"));
        let mut bytes = d.into_vec();
        for _ in 0..r.random_range(1..4) {
            let at = r.random_range(0..bytes.len());
            bytes[at] = r.random();
        }
        if let Some(d) = Doc::new(&bytes) {
            let _ = (
                format!("{d:?}"),
                key::of(d.as_val()),
                order::compare_docs(d, d),
            );
        }
        let _ = validate(&bytes);
    }
}

#[test]
fn nesting_is_limited() {
    let nested = |n: usize| (0..n).fold(DocBuf::new(), |d, _| bson::doc! { "a": d });
    assert!(validate(nested(bson::MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(
        validate(nested(bson::MAX_DEPTH + 1).as_bytes()).unwrap_err(),
        bson::Malformed::TooDeep
    );
}

#[test]
fn json_round_trip() {
    let text = r#"{"a": 1, "b": [1.5, "x", null, true], "o": {"$oid": "0123456789abcdef01234567"}, "d": {"$date": {"$numberLong": "5"}}, "n": {"$numberDecimal": "1.50"}, "y": {"$binary": {"base64": "aGVsbG8=", "subType": "00"}}}"#;
    let d = bson::json::parse(text).unwrap();
    assert_eq!(d.as_doc().to_string(), text);
}
