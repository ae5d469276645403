//! Queries of the user's own, from a file: on the stand-in, on installed databases, and refused ones.

use super::{Lab, run};
use crate::fake::Honesty;

const FILE: &str = r#"
# Orders of customers.
set orders = 300
set customer = zipfian(1, 50)
set some = uniform(1, :orders)
set id = sequence(1)
set note = text(20)

before
{"create": "orders"}
before 300
{"insert": "orders", "documents": [{"_id": ":id", "customer": ":customer", "note": ":note"}]}
query one weight 3 rows 1
{"find": "orders", "filter": {"_id": ":some"}, "limit": 1}
query of_customer rows 0..300
{"find": "orders", "filter": {"customer": ":customer"}, "batchSize": 500}
query touch rows 1
{"update": "orders", "updates": [{"q": {"_id": ":some"}, "u": {"$set": {"note": ":note"}}}]}
after
{"drop": "orders"}

before
DROP TABLE IF EXISTS orders
before
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, note TEXT)
before 300
INSERT INTO orders VALUES (:id, :customer, :note)
query one weight 3 rows 1
SELECT * FROM orders WHERE id = :some
query of_customer rows 0..300
SELECT * FROM orders WHERE customer = :customer
query touch rows 0..1
UPDATE orders SET note = :note WHERE id = :some
after
DROP TABLE orders
"#;

fn file(lab: &Lab, text: &str) -> String {
    let path = lab.dir.path().join("orders.queries");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

const SHORT: [&str; 6] = [
    "--connections",
    "1,3",
    "--duration",
    "80ms",
    "--warmup",
    "0s",
];

#[test]
fn queries_of_the_users_own_run_and_are_counted() {
    let lab = Lab::new(Honesty::Honest);
    let file = file(&lab, FILE);
    assert!(lab.run(&[&["queries", &file][..], &SHORT].concat()));
    let report = lab.report();
    assert_eq!((report.kind.as_str(), report.steps.len()), ("queries", 2));
    for s in &report.steps {
        let counted: u64 = s.latency.values().map(|l| l.count).sum();
        assert_eq!(counted, s.operations);
        assert!(s.latency["one"].count > s.latency["touch"].count);
        assert!(s.sent_bytes > Some(50.0) && s.received_bytes > Some(50.0));
    }
    // A server that answers with other records than the file allows, or not at all.
    let few = FILE.replace("rows 0..300", "rows 301");
    let few = self::file(&lab, &few);
    assert!(!lab.run(&[&["queries", &few][..], &SHORT].concat()));
    let liar = Lab::new(Honesty::Fails);
    assert!(!liar.run(&[&["queries", &file][..], &SHORT].concat()));
}

#[test]
fn what_a_file_cannot_say_is_refused_before_anything_is_sent() {
    let lab = Lab::new(Honesty::Honest);
    for (text, more) in [
        ("", &[][..]),
        ("query q\n{\"find\": \"t\"", &[]),
        ("query q\n{\"find\": \":nobody\"}", &[]),
        ("query q\nSELECT 1", &[]),
        ("query q\n{\"ping\": 1}", &["-D", "n=1"]),
        ("query q\n{\"ping\": 1}", &["-D", "n=x"]),
        ("query q\n{\"ping\": 1}", &["--connections", "0"]),
    ] {
        let file = file(&lab, text);
        assert!(
            !lab.run(&[&["queries", &file][..], more].concat()),
            "{text}"
        );
    }
    assert!(!run(&["queries", "/nowhere", "--url", &lab.url]));
}

#[test]
fn the_same_file_asks_databases_that_speak_sql() {
    let lab = Lab::new(Honesty::Honest);
    let file = file(&lab, FILE);
    for product in ["postgres", "mariadb"] {
        if !lab::targets::local::installed(product) {
            eprintln!("skipped: no {product} on this machine");
            continue;
        }
        let home = lab.dir.path().join(product);
        let home = home.to_str().unwrap();
        assert!(run(&[
            "targets", "--dir", home, "up", product, "--memory", "64m"
        ]));
        let all = lab::targets::local::running(home.as_ref());
        let words = ["queries", &file, "--url", &all[0].url, "--repeat", "2"];
        let ok = lab.run(&[&words[..], &SHORT].concat());
        assert!(run(&["targets", "--dir", home, "down"]));
        assert!(ok, "{product}");
        let report = lab.report();
        let sides: Vec<&str> = report
            .steps
            .iter()
            .filter_map(|s| s.target.as_deref())
            .collect();
        assert_eq!(sides.len(), 4, "{sides:?}");
        for s in report.steps.iter().filter(|s| s.connections == 3) {
            assert!(s.latency.len() == 3 && s.operations > 0);
        }
    }
}
