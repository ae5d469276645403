//! The whole laboratory at a tiny size, as a user calls it, so that no study rots; and against servers that lie.

mod fake;

use fake::Honesty;
use lab::report::Report;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn run(args: &[&str]) -> bool {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    format!("{:?}", lab::main(args)) == format!("{:?}", ExitCode::SUCCESS)
}

struct Lab {
    url: String,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(honesty: Honesty) -> Lab {
        let addr: SocketAddr = fake::start(honesty);
        Lab {
            url: format!("mongodb://{addr}"),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    /// Whether the command succeeded; with `--url`, `--out` and `--quiet` added.
    fn run(&self, args: &[&str]) -> bool {
        let out = self.out();
        let mut all = args.to_vec();
        all.extend([
            "--url",
            &self.url,
            "--quiet",
            "--out",
            out.to_str().unwrap(),
        ]);
        run(&all)
    }

    fn report(&self) -> Report {
        Report::read(&self.out()).unwrap()
    }
}

#[test]
fn every_scenario_runs_and_counts() {
    let lab = Lab::new(Honesty::Honest);
    for name in ["C.S1", "C.S2", "C.S3", "C.S4", "C.S5", "A", "D", "E", "F"] {
        let ok = lab.run(&[
            "run",
            name,
            "--records",
            "500",
            "--operations",
            "400",
            "--connections",
            "1,7",
            "--client-threads",
            "2",
            "--reload",
            "--load-batch",
            "64",
        ]);
        assert!(ok, "{name}");
        let report = lab.report();
        assert_eq!(report.steps.len(), 2, "{name}");
        for s in &report.steps {
            assert_eq!(s.operations, 400, "{name}");
            assert!(s.per_second > 0.0 && s.server_cpu_us.is_some());
            let counted: u64 = s.latency.values().map(|l| l.count).sum();
            assert!(counted >= 400);
        }
    }
    let report = lab.report();
    let kinds: Vec<&str> = report.steps[0].latency.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["READ", "READ-MODIFY-WRITE", "UPDATE"]);
    let l = &report.steps[0].latency;
    assert_eq!(l["READ"].count, 400);
    assert_eq!(l["UPDATE"].count, l["READ-MODIFY-WRITE"].count);
}

#[test]
fn durabilities_distributions_and_property_files() {
    let lab = Lab::new(Honesty::Honest);
    for durability in ["unack", "w1", "majority", "journaled"] {
        for workload in ["C.S1", "C.S3", "F"] {
            let records = ["--records", "300", "--operations", "300"];
            let mut args = vec!["run", workload, "--durability", durability];
            args.extend(records);
            args.extend(["--connections", "3"]);
            assert!(lab.run(&args), "{workload} {durability}");
            assert_eq!(
                lab.report().steps[0].durability.as_deref(),
                Some(durability)
            );
        }
    }
    let file = lab.dir.path().join("mine");
    std::fs::write(
        &file,
        "recordcount=200\noperationcount=300\nworkload=com.yahoo.ycsb.workloads.CoreWorkload\n\
         readproportion=0.4\nupdateproportion=0.3\ninsertproportion=0.1\n\
         readmodifywriteproportion=0.1\nscanproportion=0.1\nmaxscanlength=10\n\
         readallfields=false\nfieldcount=3\nthreadcount=2\n",
    )
    .unwrap();
    for distribution in [
        "uniform",
        "zipfian",
        "zipfian_exact",
        "latest",
        "hotspot",
        "sequential",
        "exponential",
    ] {
        for more in ["dataintegrity=true", "fieldlengthdistribution=uniform"] {
            let distribution = format!("requestdistribution={distribution}");
            let ok = lab.run(&[
                "run",
                "-P",
                file.to_str().unwrap(),
                "-p",
                &distribution,
                "-p",
                more,
            ]);
            assert!(ok, "{distribution} {more}");
            assert_eq!(lab.report().steps[0].connections, 2);
        }
    }
    let load = ["run", "-P", file.to_str().unwrap(), "--phase", "load"];
    assert!(lab.run(&load));
    assert_eq!(lab.report().steps[0].operations, 200);
}

#[test]
fn study_a_runs_all_tests() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "single",
        "--records",
        "4000",
        "--connections",
        "4",
        "--duration",
        "300ms",
        "--steps",
        "2",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    let names: Vec<&str> = report.steps.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names.len(), 13, "{names:?}");
    let inserted: u64 = report.steps[..2].iter().map(|s| s.operations).sum();
    assert_eq!(inserted, 4000 + 2000);
    let last = report.steps.last().unwrap();
    assert_eq!(last.durability.as_deref(), Some("journaled"));
    assert_eq!(last.sizes.last().unwrap().documents, last.operations);
    assert!(report.steps.iter().all(|s| s.operations > 0));
}

#[test]
fn the_bench_compares_with_the_null_server() {
    let lab = Lab::new(Honesty::Honest);
    for form in [&[][..], &["--event-loop"]] {
        let mut args = vec!["bench", "--records", "1000", "--pairs", "2"];
        args.extend(["--slice", "50ms", "--connections", "4"]);
        args.extend(["--sweep", "1,8", "--in-process-null"]);
        args.extend(form);
        // It cannot pass all bars: the null server's CPU is not known here.
        assert!(!lab.run(&args));
        let report = lab.report();
        assert_eq!(report.comparisons.len(), 12);
        for c in &report.comparisons {
            assert!(c.share > 0.0 && c.share.is_finite(), "{}", c.name);
            assert_eq!(c.subject.slices_per_second.len(), 2);
            assert!(c.subject.operations > 0 && c.reference.operations > 0);
        }
        assert_eq!(report.steps.len(), 4);
        assert!(
            report
                .checks
                .iter()
                .any(|c| c.name.starts_with("count-range") && c.pass)
        );
    }
}

#[test]
fn replies_are_recorded_and_results_shown() {
    let lab = Lab::new(Honesty::Honest);
    let file = lab.dir.path().join("replies.bson");
    let file = file.to_str().unwrap();
    assert!(run(&[
        "record",
        "--url",
        &lab.url,
        "--records",
        "1k",
        "--out",
        file
    ]));
    let recorded = lab::null::read_recorded(Path::new(file)).unwrap();
    assert_eq!(recorded.len(), 8);
    let first100 = recorded.iter().find(|r| r.operation == "test7").unwrap();
    assert!(first100.message.len() > 100 * 1024);
    assert!(lab::null::Replies::read(Path::new(file), Some("test4")).is_ok());
    assert!(lab::null::Replies::read(Path::new(file), Some("test9")).is_err());

    let args = ["run", "C", "--records", "100", "--operations", "100"];
    assert!(lab.run(&args));
    let out = lab.out();
    let out = out.to_str().unwrap();
    assert!(run(&["show", out]));
    assert!(run(&["diff", out, out]));
    assert!(run(&["list"]));
    assert!(!run(&["show", file]));
}

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
        &["run", "C.S1", "--connections", "0"],
        &["run", "C.S1", "--records", "many"],
        &["study", "single", "--only", "9"],
        &["study", "double"],
        &["bench", "--only", "nothing"],
        &["frobnicate"],
    ] {
        assert!(!lab.run(args), "{args:?}");
    }
    // Nobody listens there.
    let mut args = vec!["run", "C.S1", "--records", "10"];
    args.extend(["--url", "mongodb://127.0.0.1:1"]);
    assert!(!run(&args));
    assert!(!run(&["run", "C.S1", "--url", "mysql://127.0.0.1/"]));
}
