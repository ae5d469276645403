//! Runs that are killed (SIGKILL) in the middle of a step and go on: every command that measures for
//! longer than a moment. The result has the same steps as that of an undisturbed run, and earlier
//! measurements are not repeated.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::Honesty;
use fake::gate::{Gate, measured};
use lab::connection::MongoAddress;
use lab::report::{MeasuredStep, Report};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// What of a result does not depend on how fast anything was.
fn form(report: &Report) -> Vec<String> {
    let steps = report.steps.iter().map(|s| {
        let groups = s.group_seconds.len();
        format!(
            "step {}, {} {:?} {:?} {groups}",
            s.key, s.name, s.mode, s.at
        )
    });
    let comparisons = report
        .comparisons
        .iter()
        .map(|c| format!("pair {}", c.name));
    // How long a tiny load takes decides which figures there are of its seconds.
    let checks = report.checks.iter().filter(|c| !c.name.contains("second"));
    let checks = checks.filter(|c| !c.name.contains("tenth"));
    let checks = checks.map(|c| format!("figure {}", c.name));
    let targets = report
        .targets
        .iter()
        .map(|t| format!("target {}", t.label()));
    let shards = report
        .shards
        .iter()
        .map(|s| format!("{} of {}", s.name, s.of));
    let all = steps.chain(comparisons).chain(checks);
    all.chain(targets).chain(shards).collect()
}

struct Bed {
    dir: tempfile::TempDir,
    words: Vec<String>,
}

impl Bed {
    fn new(words: &str) -> Bed {
        Bed {
            dir: tempfile::tempdir().unwrap(),
            words: words.split(' ').map(String::from).collect(),
        }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("result.json.unfinished")
    }

    fn command(&self, url: &str) -> Command {
        let words = self.words.iter().map(|w| w.replace("URL", url));
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando-lab"));
        command.args(words).args(["--quiet", "--force"]);
        command.arg("--out").arg(self.out());
        command.stdout(Stdio::null());
        command
    }

    /// A whole run; some fail their bars, and have a result all the same.
    fn run(&self, url: &str, more: &[&str]) -> Report {
        let said = self.command(url).args(more).output().unwrap();
        Report::read(&self.out())
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&said.stderr)))
    }

    /// The run that goes on has the form of a whole one and has kept what the journal held.
    fn goes_on(&self, url: &str, whole: &Report) {
        let kept = Report::read(&self.journal()).unwrap();
        assert!(
            measured(&kept) < measured(whole),
            "there is nothing left to do"
        );
        let again = self.run(url, &["--resume"]);
        assert_eq!(form(&again), form(whole));
        assert!(!again.interrupted && again.turns.is_empty());
        assert!(!self.journal().exists());
        let same = |a: &MeasuredStep, b: &MeasuredStep| {
            a.operations == b.operations && a.seconds == b.seconds
        };
        for old in &kept.steps {
            let new = again.steps.iter().find(|s| s.key == old.key).unwrap();
            assert!(same(old, new), "{} was measured again", old.key);
        }
        for old in &kept.comparisons {
            let new = again.comparisons.iter().find(|c| c.name == old.name);
            assert_eq!(new.unwrap().share, old.share, "{}", old.name);
        }
    }
}

/// Kills a run when its journal holds `steps`, and goes on; `between` happens to the server meanwhile.
fn dies_after(steps: usize, words: &str, between: impl Fn(&str)) {
    let bed = Bed::new(words);
    let gate = Arc::new(Gate::new(bed.journal(), steps));
    let untouched = fake::start(Honesty::Honest);
    let whole = bed.run(&format!("mongodb://{untouched}"), &[]);
    std::fs::remove_file(bed.out()).unwrap();
    let url = format!("mongodb://{}", fake::start_gated(&gate));
    let mut child = bed.command(&url).spawn().unwrap();
    let closed = gate.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(closed, "{words}: no {steps} steps");
    gate.open();
    assert!(!bed.out().exists());
    between(&url);
    bed.goes_on(&url, &whole);
}

fn dies(steps: usize, words: &str) {
    dies_after(steps, words, |_| {});
}

/// For runs whose servers are all of their own: the journal that a killed one would have left is cut from a whole result.
fn dies_by_itself(words: &str, cut: impl Fn(&mut Report)) {
    let bed = Bed::new(words);
    let whole = bed.run("", &[]);
    let mut left = whole.clone();
    cut(&mut left);
    left.write(&bed.journal()).unwrap();
    std::fs::remove_file(bed.out()).unwrap();
    bed.goes_on("", &whole);
}

/// As if the server had been started by the run that was killed.
fn drops(names: &'static [&'static str]) -> impl Fn(&str) {
    move |url| {
        let mut c = MongoAddress::parse(url).unwrap().connect().unwrap();
        for name in names {
            let (db, collection) = name.split_once('.').unwrap();
            c.drop_collection(db, collection).unwrap();
        }
    }
}

#[test]
fn run() {
    dies(
        1,
        "run C.S3 --records 300 --connections 1,2,3 --operations 400 --url URL",
    );
}

#[test]
fn load() {
    // Of one step: it is done again from its beginning.
    dies(0, "load C.S1 --records 500 --url URL");
}

#[test]
fn sweep_keeps_its_turns() {
    let words =
        "sweep C.S3 --records 200 --connections 1,2,4 --duration 40ms --latency 50,70 --url URL";
    // In the middle of the second round, and with the peak known.
    dies(4, &format!("{words} --rounds 2"));
    dies(4, &format!("{words} --rounds 1"));
}

#[test]
fn compare() {
    dies(
        1,
        "compare URL URL --workload C.S5,C.S4 --records 200 --connections 2 --pairs 6 --slice 20ms",
    );
}

#[test]
fn trials() {
    let words = "compare null null --records 1000 --connections 2 --pairs 6 --slice 20ms --trials 2 --handicap 300";
    dies_by_itself(words, |left| {
        left.comparisons.truncate(1);
        left.checks.clear();
    });
}

#[test]
fn calibrate() {
    dies_by_itself("calibrate --connections 1,2 --duration 30ms", |left| {
        left.steps.truncate(3);
    });
}

#[test]
fn short() {
    let words = "short --records 300 --connections 1,2 --duration 40ms --url URL";
    dies_after(3, words, drops(&["ycsb.usertable"]));
}

#[test]
fn reads() {
    let bed = Bed::new("");
    let ids: Vec<bson::ObjectId> = (0..400).map(|_| bson::ObjectId::generate()).collect();
    let file = bed.dir.path().join("ids");
    let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
    std::fs::write(&file, text).unwrap();
    let gate = Arc::new(Gate::new(bed.journal(), 2));
    let url = format!("mongodb://{}", fake::start_gated(&gate));
    let mut message = Vec::new();
    lab::request::InsertHead::new("load", "things", lab::terms::WriteDurability::W1).write(
        &mut message,
        |out| {
            for (n, id) in (0..).zip(&ids) {
                let a = (u64::MAX / 400 * n) as i64;
                out.extend_from_slice(bson::doc! {"_id": *id, "a": a}.as_bytes());
            }
        },
    );
    let mut control = MongoAddress::parse(&url).unwrap().connect().unwrap();
    control.exchange_bytes(message).unwrap();
    let words = format!(
        "reads --ids {} --hot 7 --duration 50ms --warmup 0s --connections 3 --url URL",
        file.display()
    );
    let bed = Bed {
        words: words.split(' ').map(String::from).collect(),
        ..bed
    };
    let mut child = bed.command(&url).spawn().unwrap();
    let closed = gate.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    gate.open();
    assert!(closed);
    let kept = std::fs::read(bed.journal()).unwrap();
    std::fs::remove_file(bed.journal()).unwrap();
    let whole = bed.run(&url, &[]);
    std::fs::remove_file(bed.out()).unwrap();
    std::fs::write(bed.journal(), kept).unwrap();
    bed.goes_on(&url, &whole);
}

#[test]
fn bench() {
    let words = "bench --only point-read,count-range,sweep-read,sweep-insert --records 1000 --pairs 1 --slice 30ms \
                 --connections 2 --sweep 1,2 --in-process-null --url URL";
    dies(1, words);
    dies(2, words);
    // Both points of the first sweep.
    dies(4, words);
}

#[test]
fn study_single() {
    let words = "study single --records 2000 --steps 2 --duration 40ms --connections 2 --insert-duration 10s --url URL";
    // In a read test, in the second batch insert, in the last insert test.
    dies(3, words);
    dies(6, words);
    dies(12, words);
    dies_after(3, words, drops(&["studya.single"]));
    dies_after(6, words, drops(&["studya.single"]));
}

#[test]
fn study_keys() {
    let words = "study keys --records 2000 --keys 1k,2k --url URL";
    dies(2, words);
    dies(5, words);
}

#[test]
fn study_sizes() {
    let words = "study sizes --records 200,400 --scenarios C.S1,C.S5 --connections 1,3 --duration 30ms \
                 --warmup 0s --url URL";
    dies_after(6, words, drops(&["ycsb.Test_200", "ycsb.Test_400"]));
}

#[test]
fn study_shards() {
    let words = "study shards --records 300 --duration 30ms --connections 3 --shards 1=URL";
    dies(2, words);
    dies_after(2, words, drops(&["ycsb.microshard"]));
}

#[test]
fn study_pains() {
    let words = "study pains --records 400 --threads 1,3 --duration 30ms --url URL";
    dies(2, words);
    dies(6, words);
}

#[test]
fn study_files() {
    let words = "study files --files 3 --size 600k --connections 1,2 --url URL";
    dies(1, words);
    dies(3, words);
}

/// The uploads are measured anew when the files are gone.
#[test]
fn study_files_without_its_server() {
    let bed = Bed::new("study files --files 2 --size 600k --connections 2 --url URL");
    let url = format!("mongodb://{}", fake::start(Honesty::Honest));
    let whole = bed.run(&url, &[]);
    let mut left = whole.clone();
    left.steps.truncate(1);
    left.write(&bed.journal()).unwrap();
    std::fs::remove_file(bed.out()).unwrap();
    let again = bed.run(&url, &["--resume"]);
    assert_eq!(form(&again), form(&whole));
}

#[test]
fn another_target_or_other_words_are_refused() {
    let words = "run C.S5 --records 100 --operations 100 --url URL";
    let bed = Bed::new(words);
    let url = format!("mongodb://{}", fake::start(Honesty::Honest));
    let first = bed.run(&url, &[]);
    let line = first.command_line().unwrap();
    let called = format!("pando lab run C.S5 --records 100 --operations 100 --url {url} --quiet");
    assert!(line.starts_with(&called), "{line}");
    let said = |more: &[&str]| {
        let mut command = bed.command(&url);
        let done = command.args(more).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(
            (done.status.code(), said.lines().count()),
            (Some(2), 1),
            "{said}"
        );
        said
    };
    let settings = said(&["--resume", "--seed", "2"]);
    assert!(settings.contains("other settings"), "{settings}");
    let single = "study single --records 2000 --only 3 --insert-duration 5s --url URL";
    let bed = Bed {
        words: single.split(' ').map(String::from).collect(),
        ..bed
    };
    let mut other = bed.run(&url, &[]);
    other.target.as_mut().unwrap().version = "7.0".into();
    other.write(&bed.journal()).unwrap();
    let done = bed.command(&url).arg("--resume").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("was measured on"), "{said}");
    assert!(Path::new(&bed.journal()).exists());
}
