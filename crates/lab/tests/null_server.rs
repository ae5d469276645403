//! What needs the null server as a process of its own.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use lab::report::Report;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LAB: &str = env!("CARGO_BIN_EXE_pando-lab");

fn run(words: &str) -> Output {
    Command::new(LAB).args(words.split(' ')).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// By the servers' CPU, so that it holds on a machine that has other work; the slowdown is far above all noise.
#[test]
fn a_slowdown_put_in_on_purpose_is_seen() {
    let words = "compare null null --records 1000 --connections 4 --pairs 12 --slice 60ms --quiet";
    let done = run(&format!("{words} --workload C.S5 --handicap 300 --out -"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let shown = text(&done.stdout);
    let told = ["C.S5: B is slower: ", "C.S5: B costs more CPU: "];
    assert!(told.iter().any(|w| shown.contains(w)), "{shown}");
    assert!(shown.contains(", its CPU an operation "), "{shown}");

    // What it can see here, with a bar: whether one build looks like itself is the machine's business.
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trials.json");
    let trials = format!("{words} --trials 1 --handicap 300 --out {}", out.display());
    let done = run(&trials);
    let report = Report::read(&out).unwrap_or_else(|e| panic!("{e}: {}", text(&done.stderr)));
    let names: Vec<&str> = report.comparisons.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["C.S5, with itself, 1", "C.S5, slowed by 300%, 1"]);
    assert_eq!(report.comparisons[1].verdict, "slower");
    assert_eq!(report.checks.len(), 3);
    assert!(report.checks[1].pass && report.checks[1].name.ends_with(": slower"));
    assert_eq!(done.status.success(), report.passed());
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for wrong in [
        "null mongodb://127.0.0.1:1 --handicap 5",
        "null mongodb://127.0.0.1:1 --trials 2",
        "mongodb://127.0.0.1:1 mongodb://127.0.0.1:1 --trials 2",
        "null null --trials 0",
        "null null --pairs 2",
        "null null --workload C.S1",
        "null /nowhere/pando",
    ] {
        let done = run(&format!("compare {wrong} --quiet --out -"));
        assert_eq!(done.status.code(), Some(2), "{wrong}");
        assert_eq!(text(&done.stderr).lines().count(), 1, "{wrong}");
    }
}

#[test]
fn what_the_client_costs_stands_beside_each_step() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run.json");
    let url = format!("mongodb://{}", fake::start(fake::Honesty::Honest));
    for words in [
        "run C.S5 --records 500 --operations 3000 --connections 4 --quiet",
        "study keys --records 2000 --keys 1k --modes id --quiet",
    ] {
        let done = run(&format!(
            "{words} --url {url} --force --out {}",
            out.display()
        ));
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains("client µs/op"));
        let file = std::fs::read_to_string(&out).unwrap();
        assert!(!file.contains("\"null_cpu_us\": null"), "{file}");
        assert!(file.contains("\"point_reads\": true"));
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let journal = dir.path().join("result.json.unfinished");
    let url = format!("mongodb://{}", fake::start(fake::Honesty::Honest));
    // Two short steps, and one that has no end.
    let words = format!(
        "study pains --only ids,threads --records 400 --threads 1 --duration 24h --quiet --url {url} --out {}",
        out.display()
    );
    let mut child = Command::new(LAB)
        .args(words.split(' '))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !Report::read(&journal).is_ok_and(|r| r.steps.len() == 2) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        assert!(Instant::now() < deadline, "no steps");
        std::thread::sleep(Duration::from_millis(20));
    }
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130));
    assert!(
        text(&done.stdout).contains("--resume"),
        "{}",
        text(&done.stdout)
    );
    let report = Report::read(&out).unwrap();
    assert!(report.interrupted && !journal.exists());
    let cut: Vec<bool> = report.steps.iter().map(|s| s.interrupted).collect();
    assert!(
        cut[..2] == [false, false] && cut[2..].iter().all(|c| *c),
        "{cut:?}"
    );
}

/// A limit on the size of files stands for a full disk: writing fails in the middle of a run.
#[test]
fn a_disk_that_is_full_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let url = format!("mongodb://{}", fake::start(fake::Honesty::Honest));
    let words = "run C.S3 --records 300 --operations 300 --connections 1,2,3,4 --quiet";
    // Eight blocks, of 512 or 1,024 bytes as the shell has it: the beginning of a journal, and not all steps.
    let shell = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let done = Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(LAB)
        .args(words.split(' '))
        .args(["--url", &url, "--out"])
        .arg(&out)
        .output()
        .unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("warning: steps are not kept meanwhile: ")
            && lines[1].starts_with("pando lab: ")
            && lines.len() == 2,
        "{said}"
    );
    // The measurements are not lost, and no file says half of it: at most the journal of the steps that
    // had room.
    assert!(
        text(&done.stdout).contains("READ"),
        "{}",
        text(&done.stdout)
    );
    for left in std::fs::read_dir(dir.path()).unwrap() {
        let left = left.unwrap().path();
        assert!(left.ends_with("result.json.unfinished"), "{left:?}");
        assert!(!Report::read(&left).unwrap().steps.is_empty());
    }
}
