//! Buckets against random measurements and bent bytes, and what queries and indexes mean for buckets.

use crate::*;
use bson::{Doc, DocBuf, ObjectId, Writer, doc, json};
use rand::{Rng, SeedableRng};

fn options() -> TimeSeriesOptions {
    TimeSeriesOptions::new("t", Some("m"), None, None, None).unwrap()
}

fn measured(docs: &[DocBuf]) -> Vec<Measurement<'_>> {
    let o = options();
    let read = |d: &DocBuf| Measurement::read(&o, d.as_doc()).unwrap().time;
    docs.iter()
        .map(|d| Measurement {
            doc: d.as_doc(),
            time: read(d),
        })
        .collect()
}

/// A measurement as it comes out: time, meta, the rest.
fn shown(d: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    for name in ["t", "m"] {
        if let Some(v) = d.get(name) {
            w.val(name, v);
        }
    }
    for e in d.as_doc().iter().filter(|e| e.name != "t" && e.name != "m") {
        w.val(e.name, e.val);
    }
    w.finish()
}

fn random(rng: &mut impl Rng, n: usize) -> Vec<DocBuf> {
    let mut time = 1_700_000_000_000i64;
    (0..n)
        .map(|i| {
            time += rng.random_range(0..3) * 500;
            let mut w = Writer::new();
            w.oid("_id", ObjectId::generate())
                .str("m", "d")
                .date("t", time);
            w.f64("a", f64::from(rng.random_range(0..10_000)) / 100.0);
            if rng.random_bool(0.7) {
                w.i32("b", rng.random());
            }
            match rng.random_range(0..6) {
                0 => w.f64("c", rng.random()),
                1 => w.f64("c", [f64::NAN, -0.0, f64::INFINITY, 1e300][i % 4]),
                2 => w.str("c", ["x", "y"][i % 2]),
                3 => w.null("c"),
                4 => w.i64("c", rng.random()),
                _ => w.doc("c", doc! { "x": 1, "y": doc! { "z": 2.5 } }.as_doc()),
            };
            w.finish()
        })
        .collect()
}

#[test]
fn what_comes_out_of_a_bucket_went_in() {
    let seed: u64 = std::env::var("PANDO_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(rand::random);
    println!("PANDO_SEED={seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    for n in [1, 2, 20, PACKED_ROWS, 700, 2500] {
        let docs = random(&mut rng, n);
        let meta = doc! { "m": "d" };
        let all = measured(&docs);
        let packed: Vec<Packed> = pack(&options(), meta.get("m"), &all).collect();
        assert_eq!(packed.iter().map(|p| p.rows).sum::<usize>(), n);
        let mut out = Vec::new();
        for p in &packed {
            assert!(p.rows <= MAX_ROWS);
            assert_eq!(is_young(p.doc.as_doc()), p.rows < PACKED_ROWS);
            let all = rows(&options(), p.doc.as_doc(), None, (i64::MIN, i64::MAX)).unwrap();
            out.extend(all.all().unwrap());
        }
        let expected: Vec<DocBuf> = docs.iter().map(shown).collect();
        assert_eq!(out, expected);
    }
}

#[test]
fn only_what_is_wanted_is_read() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let docs = random(&mut rng, 300);
    let meta = doc! { "m": "d" };
    let all = measured(&docs);
    let packed: Vec<Packed> = pack(&options(), meta.get("m"), &all).collect();
    let times: Vec<i64> = measured(&docs).iter().map(|m| m.time).collect();
    let range = (times[50], times[60]);
    let wanted = std::collections::BTreeSet::from(["a".to_string()]);
    let got = rows(&options(), packed[0].doc.as_doc(), Some(&wanted), range)
        .unwrap()
        .all()
        .unwrap();
    let inside = |t: &&i64| (range.0..=range.1).contains(*t);
    assert_eq!(got.len(), times.iter().filter(inside).count());
    assert!(
        got.iter()
            .all(|d| d.as_doc().count() == 1 && d.get("a").is_some())
    );
}

#[test]
fn a_column_takes_less_than_its_documents() {
    let docs: Vec<DocBuf> = (0..1000)
        .map(|i| {
            let mut w = Writer::new();
            w.oid("_id", ObjectId::generate())
                .str("m", "device-0017")
                .date("t", 1_700_000_000_000 + i * 1000);
            w.f64("temperature", 20.0 + (i % 37) as f64 / 100.0)
                .f64("humidity", 55.0 - (i % 11) as f64 / 10.0);
            w.finish()
        })
        .collect();
    let meta = doc! { "m": "device-0017" };
    let all = measured(&docs);
    let packed: Vec<Packed> = pack(&options(), meta.get("m"), &all).collect();
    let before: usize = docs.iter().map(|d| d.as_bytes().len()).sum();
    let after: usize = packed.iter().map(|p| p.doc.as_bytes().len()).sum();
    assert!(after * 10 < before, "{after} of {before} bytes");
}

#[test]
fn bytes_that_were_not_written_here_end_in_none() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    let docs = random(&mut rng, 200);
    let all = measured(&docs);
    let packed: Vec<Packed> = pack(&options(), None, &all).collect();
    let whole = packed[0].doc.as_bytes().to_vec();
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(4..bytes.len() - 1);
            bytes[at] = rng.random();
        }
        let Some(d) = Doc::new(&bytes) else { continue };
        // Whatever it gives, it ends.
        if let Some(rows) = rows(&options(), d, None, (i64::MIN, i64::MAX)) {
            let _ = rows.all();
        }
    }
}

fn selected(query: &str) -> (String, (i64, i64)) {
    let d = json::parse(query).unwrap();
    let s = Selection::of(&options(), &[d.as_doc()], false);
    (s.filter.as_doc().to_string(), s.times)
}

#[test]
fn queries_select_buckets() {
    let everything = (i64::MIN, i64::MAX);
    assert_eq!(selected(r#"{"v": 1}"#).1, everything);
    let (filter, times) = selected(
        r#"{"m": "d", "t": {"$gte": {"$date": 5000000}, "$lt": {"$date": 8600000}}, "v": 2}"#,
    );
    assert_eq!(times, (5_000_000, 8_600_000));
    assert!(
        filter.contains("_id") && filter.contains("control.max.t"),
        "{filter}"
    );
    // Between the least and the greatest of the values.
    for (query, low, high) in [
        (r#"{"m": {"$in": ["b", "a", "c"]}}"#, r#""a""#, r#""c""#),
        (r#"{"m": {"$gt": 3, "$lte": 8}}"#, "3", "8"),
        (
            r#"{"m": {"$gte": 1}, "$and": [{"m": {"$gte": 2, "$lt": 9}}, {"m": {"$lt": 7}}]}"#,
            "2",
            "7",
        ),
    ] {
        let (filter, _) = selected(query);
        let bounds = format!(r#"{{"$gte":{{"m":{low}}},"$lte":{{"m":{high},"t":"#);
        let found = filter.replace(' ', "");
        assert!(
            found.contains(&bounds) && found.contains("meta"),
            "{filter}"
        );
    }
    let (filter, _) = selected(r#"{"m": {"$lt": 3}}"#);
    assert!(
        filter.contains("_id") && !filter.contains(r#""$gte""#),
        "{filter}"
    );
    // Not what arrays, null or patterns match.
    for query in [
        r#"{"m": {"$in": ["a", null]}}"#,
        r#"{"m": {"$gte": [1]}}"#,
        r#"{"m": {"$in": ["a", ["b"]]}}"#,
        r#"{"m.x": {"$gt": 1}}"#,
    ] {
        let (filter, _) = selected(query);
        assert!(!filter.contains("_id"), "{filter}");
    }
    let (filter, _) = selected(r#"{"m": null}"#);
    assert!(!filter.contains("_id"), "{filter}");
    let (filter, times) = selected(r#"{"$or": [{"m": 1}, {"t": {"$date": 1}}]}"#);
    assert_eq!((filter.as_str(), times), ("{}", everything));
    let arrays = TimeSeriesOptions {
        array_metas: true,
        ..options()
    };
    let q = doc! { "m": 1 };
    let s = Selection::of(&arrays, &[q.as_doc()], false);
    assert!(s.filter.get("_id").is_none());
}

#[test]
fn keys_of_indexes_go_both_ways() {
    for key in [
        doc! { "m": 1 },
        doc! { "m.a": -1, "t": 1 },
        doc! { "t": -1 },
        doc! { "v": 1, "m": 1 },
        doc! { "place": "2dsphere" },
    ] {
        let there = of_buckets(&options(), key.as_doc());
        assert_eq!(of_measurements(&options(), there.as_doc()), Some(key));
    }
    assert!(of_measurements(&options(), doc! { "x": 1 }.as_doc()).is_none());
}

#[test]
fn spans_may_only_grow() {
    let minutes =
        TimeSeriesOptions::new("t", None, Some(Granularity::Minutes), None, None).unwrap();
    assert_eq!(minutes.span_seconds, 86_400);
    let hours = minutes
        .changed(Some(Granularity::Hours), None, None)
        .unwrap();
    assert_eq!(hours.span_seconds, 2_592_000);
    assert!(
        hours
            .changed(Some(Granularity::Seconds), None, None)
            .is_err()
    );
    assert!(minutes.changed(None, Some(10), Some(10)).is_err());
    assert!(TimeSeriesOptions::new("t", None, None, Some(10), None).is_err());
    assert!(TimeSeriesOptions::new("a.b", None, None, None, None).is_err());
}
