//! What goes wrong: lies, wrong requests.

use super::{Lab, run};
use crate::fake::Honesty;

#[test]
fn a_lie_fails_the_run_and_leaves_no_result() {
    for (honesty, what) in [
        (Honesty::LosesInserts, "lost inserts"),
        (Honesty::MixesUp, "another document"),
        (Honesty::Fails, "an error"),
        (Honesty::HangsUp, "a closed connection"),
    ] {
        let lab = Lab::new(honesty);
        let args = ["run", "C.S5", "--records", "500", "--operations", "2000"];
        assert!(!lab.run(&args), "{what} went unnoticed");
        assert!(!lab.out().exists());
    }
    let lab = Lab::new(Honesty::LosesInserts);
    for durability in ["w1", "unack"] {
        let mut args = vec!["run", "C.S1", "--records", "500"];
        args.extend(["--durability", durability]);
        assert!(!lab.run(&args), "lost inserts, {durability}");
    }
    let mut args = vec!["study", "single", "--records", "1000", "--only", "3"];
    args.extend(["--insert-duration", "2s"]);
    assert!(!lab.run(&args));
}

#[test]
fn wrong_requests_end_with_a_failure() {
    let lab = Lab::new(Honesty::Honest);
    for args in [
        &["run", "C.S9"][..],
        &["run"],
        &["run", "C.S1", "-p", "nonsense"],
        &["run", "C.S1", "-p", "nonsense=1", "--records", "10"],
        &["run", "C.S1", "--connections", "0"],
        &["run", "C.S1", "--records", "many"],
        &["study", "single", "--only", "9"],
        &["study", "single", "--sharded"],
        &["study", "double"],
        &["study", "keys", "--modes", "upside-down"],
        &["sweep", "C.S9"],
        &["study", "sizes", "--scenarios", "C.S9"],
        &["bench", "--only", "nothing"],
        &["frobnicate"],
    ] {
        assert!(!lab.run(args), "{args:?}");
    }
    // Given twice, or without the result of the run that died.
    assert!(!lab.run(&["study", "keys", "--out", "x.json"]));
    assert!(!run(&["study", "keys", "--url", &lab.url, "--resume"]));
    // A place that takes no result is told of before anything is measured, and nothing is left there.
    let file = lab.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for place in [
        file.join("result.json"),
        lab.dir.path().to_path_buf(),
        "/proc/result.json".into(),
    ] {
        let place = place.to_str().unwrap();
        let args = [
            "study",
            "keys",
            "--records",
            "1g",
            "--quiet",
            "--url",
            &lab.url,
        ];
        assert!(!run(&[&args[..], &["--out", place]].concat()), "{place}");
    }
    assert_eq!(std::fs::read_dir(lab.dir.path()).unwrap().count(), 1);
    assert!(!run(&["calibrate", "--workload", "C.S9"]));
    // A port without a listener.
    let mut args = vec!["run", "C.S1", "--records", "10"];
    args.extend(["--url", "mongodb://127.0.0.1:1"]);
    assert!(!run(&args));
    assert!(!run(&["run", "C.S1", "--url", "mysql://127.0.0.1:1/"]));
    assert!(!run(&["run", "C.S1", "--url", "postgres://127.0.0.1:1/"]));
    assert!(!run(&["study", "keys", "--url", "redis://127.0.0.1:1/"]));
}
