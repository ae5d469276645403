//! What the laboratory leaves alone: tables that it did not make, files that are there, folders that are not.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use bson::doc;
use fake::Honesty;
use lab::connection::MongoAddress;
use std::path::Path;
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_pando-lab");

fn lab(words: &str, dir: &Path) -> Output {
    let mut command = Command::new(LAB);
    command.args(words.split_whitespace()).current_dir(dir);
    command.output().unwrap()
}

fn output(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Seven documents that must stay, in each collection that a command wants.
#[test]
fn tables_of_others_are_refused_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("mongodb://{}/precious", fake::start(Honesty::Honest));
    let address = MongoAddress::parse(&url).unwrap();
    let mut c = address.connect().unwrap();
    let collections = [
        "usertable",
        "Test_200",
        "single",
        "insert3",
        "fs.chunks",
        "b_id",
        "record",
    ];
    let databases = ["precious", "studya", "studyf", "lab"];
    for db in databases {
        for collection in collections {
            let documents: Vec<_> = (0..7).map(|i| doc! {"_id": i, "mine": true}).collect();
            let mut list = bson::Writer::new_array();
            documents.into_iter().for_each(|d| {
                list.push_value(d);
            });
            let insert = doc! {"insert": collection, "documents": list.finish_array()};
            c.command(db, insert.as_doc()).unwrap();
        }
    }
    let words = [
        "run C.S5 --records 100 --operations 10",
        "run C.S5 --records 7 --operations 10",
        "run C.S3 --records 7 --operations 10 --phase run",
        "run C.S1 --records 10",
        "load A --records 10",
        "sweep C.S5 --records 100 --connections 1 --rounds 1 --duration 10ms",
        "study sizes --records 200 --scenarios C.S5 --connections 1 --duration 10ms",
        "study single --records 1000 --only 3 --duration 10ms",
        "study single --records 1000 --only 4 --duration 10ms",
        "study files --files 1 --size 1k --connections 1",
        "record --records 10",
    ];
    for words in words {
        let done = lab(&format!("{words} --url {url}"), dir.path());
        let line = output(&done);
        assert_eq!(done.status.code(), Some(2), "{words}: {line}");
        assert_eq!(
            line.lines().filter(|l| l.contains("--overwrite")).count(),
            1,
            "{words}: {line}"
        );
        for db in databases {
            for collection in collections {
                assert_eq!(
                    c.count(db, collection).unwrap(),
                    7,
                    "{words}: {db}.{collection}"
                );
            }
        }
    }
    // Told to, it takes the table, and after that it is its own.
    let words = format!("run C.S5 --records 100 --operations 10 --quiet --url {url} --out -");
    assert!(
        lab(&format!("{words} --overwrite"), dir.path())
            .status
            .success()
    );
    assert_eq!(c.count("precious", "usertable").unwrap(), 100);
    assert!(lab(&words, dir.path()).status.success());
    assert!(
        lab(&format!("{words} --reload"), dir.path())
            .status
            .success()
    );
    assert_eq!(c.count("precious", "Test_200").unwrap(), 7);
}

/// YCSB's load adds to the table that is there, as YCSB's does, once it is told to or made the table itself.
#[test]
fn ycsb_drops_nothing_and_asks_before_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("mongodb://{}/ycsb", fake::start(Honesty::Honest));
    let mut c = MongoAddress::parse(&url).unwrap().connect().unwrap();
    let insert = doc! {"insert": "usertable", "documents": bson::array![doc! {"_id": "mine"}]};
    c.command("ycsb", insert.as_doc()).unwrap();
    let load = format!("ycsb load mongodb -p recordcount=5 -p mongodb.url={url}");
    let updates = format!(
        "ycsb run mongodb -p recordcount=5 -p operationcount=9 -p mongodb.url={url} -p updateproportion=1 -p readproportion=0"
    );
    for words in [&load, &updates] {
        let done = lab(words, dir.path());
        assert_eq!(done.status.code(), Some(2), "{words}: {}", output(&done));
        assert!(output(&done).contains("--overwrite"), "{}", output(&done));
        assert_eq!(c.count("ycsb", "usertable").unwrap(), 1);
    }
    let done = lab(&format!("{load} --overwrite"), dir.path());
    assert!(done.status.success(), "{}", output(&done));
    assert_eq!(c.count("ycsb", "usertable").unwrap(), 6);
    // Reads are free, and so is what it made itself.
    let reads = updates.replace("updateproportion=1", "updateproportion=0");
    let reads = reads.replace("readproportion=0", "readproportion=1");
    assert!(lab(&reads, dir.path()).status.success());
    let own = |words: &str| format!("{words} -p table=own");
    for words in [&load, &updates] {
        let done = lab(&own(words), dir.path());
        assert!(done.status.success(), "{words}: {}", output(&done));
    }
    let done = lab("ycsb load mongodb -p recordcount=5", dir.path());
    assert_eq!(done.status.code(), Some(2));
    assert!(output(&done).contains("mongodb.url="));
}

#[test]
fn results_and_folders_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("mongodb://{}", fake::start(Honesty::Honest));
    let words = format!("run C.S5 --records 50 --operations 50 --quiet --url {url}");
    for place in ["--out none/x.json", "--out x.json"] {
        std::fs::write(dir.path().join("x.json"), "mine").unwrap();
        let done = lab(&format!("{words} {place}"), dir.path());
        assert_eq!(done.status.code(), Some(2), "{}", output(&done));
        assert_eq!(output(&done).lines().count(), 1);
    }
    assert!(!dir.path().join("none").exists());
    let kept = std::fs::read_to_string(dir.path().join("x.json")).unwrap();
    assert_eq!(kept, "mine");
    assert!(
        lab(&format!("{words} --out x.json --force"), dir.path())
            .status
            .success()
    );
    // Runs of one second have a name each.
    let mut all: Vec<_> = (0..3)
        .map(|_| {
            let url = format!("mongodb://{}", fake::start(Honesty::Honest));
            let words = format!("run C.S5 --records 50 --operations 50 --quiet --url {url}");
            let mut command = Command::new(LAB);
            command.args(words.split(' ')).current_dir(dir.path());
            command.stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    assert!(all.iter_mut().all(|c| c.wait().unwrap().success()));
    let results = std::fs::read_dir(dir.path().join("lab-results")).unwrap();
    assert_eq!(results.count(), 3);
    // Without a URL there is nothing to leave records on, or to find some.
    for words in ["load A --records 10", "run C.S5 --phase run"] {
        let done = lab(words, dir.path());
        assert_eq!(done.status.code(), Some(2));
        assert!(output(&done).contains("--url"));
    }
}
