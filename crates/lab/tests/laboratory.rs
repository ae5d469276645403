//! The whole laboratory at a tiny size, as a user calls it, so that no study rots; and against servers that lie.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::Honesty;
use lab::report::Report;
use lab::request::InsertHead;
use lab::terms::Durability;
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
    let lengths = lab.dir.path().join("hist.txt");
    std::fs::write(&lengths, "BlockSize\t20\n0\t5\n1\t3\n2\t2\n").unwrap();
    let histogram = format!("fieldlengthhistogram={}", lengths.display());
    let by_histogram = [
        &["run", "-P", file.to_str().unwrap(), "-p", &histogram][..],
        &["-p", "fieldlengthdistribution=histogram", "--reload"],
    ];
    assert!(lab.run(&by_histogram.concat()));
    // A rate and a longest time, as property files have them.
    let paced = [
        "-p",
        "target=200",
        "-p",
        "maxexecutiontime=1",
        "-p",
        "operationcount=0",
    ];
    assert!(lab.run(&[&["run", "-P", file.to_str().unwrap()][..], &paced].concat()));
    let step = &lab.report().steps[0];
    assert_eq!(step.offered, Some(200.0));
    // Ended by its time, and never ahead of its rate; how far behind is the machine's affair.
    let due = 200.0 * step.seconds + 2.0;
    assert!(
        (1.0..=due).contains(&(step.operations as f64)),
        "{} of {due}",
        step.operations
    );
    let load = ["run", "-P", file.to_str().unwrap(), "--phase", "load"];
    assert!(lab.run(&load));
    assert_eq!(lab.report().steps[0].operations, 200);
}

#[test]
fn reads_of_data_that_is_there() {
    let documents = 400u64;
    for (honesty, right) in [(Honesty::Honest, true), (Honesty::MixesUp, false)] {
        let lab = Lab::new(honesty);
        let mut control = lab::connection::Address::parse(&lab.url)
            .unwrap()
            .connect()
            .unwrap();
        let (mut ids, mut message) = (String::new(), Vec::new());
        InsertHead::new("load", "things", Durability::W1).write(&mut message, |out| {
            for n in 0..documents {
                let id = bson::ObjectId::generate();
                ids.push_str(&format!("{id}\n"));
                let a = (u64::MAX / documents * n) as i64;
                out.extend_from_slice(bson::doc! {"_id": id, "a": a}.as_bytes());
            }
        });
        control.exchange_bytes(message).unwrap();
        let file = lab.dir.path().join("ids");
        let args = ["reads", "--ids", file.to_str().unwrap(), "--hot", "7"];
        let times = [
            "--duration",
            "200ms",
            "--warmup",
            "10ms",
            "--connections",
            "3",
        ];
        let args = [&args[..], &times].concat();
        std::fs::write(&file, format!("{ids}{}\n", bson::ObjectId::generate())).unwrap();
        assert!(!lab.run(&args), "an id too many");
        std::fs::write(&file, &ids).unwrap();
        assert_eq!(lab.run(&args), right);
        if right {
            let steps = lab.report().steps;
            let kinds = |i: usize| steps[i].latency.keys().cloned().collect::<Vec<_>>();
            assert_eq!(kinds(0), ["read"]);
            assert_eq!(kinds(1), ["range"]);
            assert_eq!(kinds(2), ["read in memory"]);
            assert_eq!(kinds(3), ["read", "read in memory"]);
        }
    }
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
        &["study", "single", "--sharded"],
        &["study", "double"],
        &["study", "keys", "--modes", "upside-down"],
        &["study", "keys", "--resume"],
        &["bench", "--only", "nothing"],
        &["frobnicate"],
    ] {
        assert!(!lab.run(args), "{args:?}");
    }
    // Nobody listens there.
    let mut args = vec!["run", "C.S1", "--records", "10"];
    args.extend(["--url", "mongodb://127.0.0.1:1"]);
    assert!(!run(&args));
    assert!(!run(&["run", "C.S1", "--url", "mysql://127.0.0.1:1/"]));
    assert!(!run(&["run", "C.S1", "--url", "postgres://127.0.0.1:1/"]));
    assert!(!run(&["study", "keys", "--url", "redis://127.0.0.1:1/"]));
}

const STUDY_B: [&str; 8] = [
    "study",
    "keys",
    "--records",
    "3000",
    "--keys",
    "1k,2k,9k",
    "--fields",
    "random",
];

#[test]
fn study_b_keeps_the_time_of_every_thousand() {
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let report = lab.report();
    let names: Vec<&str> = report.steps.iter().map(|s| s.name.as_str()).collect();
    let reads = ["read of 1000 keys", "read of 2000 keys"];
    let keyed = ["insert", reads[0], reads[1]];
    assert_eq!(names, [&keyed[..], &["insert"], &keyed].concat());
    for s in &report.steps {
        assert_eq!(s.group_seconds.len() as u64, s.operations / s.group);
        assert!(s.group_seconds.iter().all(|t| *t > 0.0));
    }
    assert!(!lab.dir.path().join("result.json.unfinished").exists());
    // What is there already is not done again; with other settings it is not the same run.
    let again = [&STUDY_B[..], &["--resume"]].concat();
    assert!(lab.run(&again));
    assert_eq!(lab.report().steps.len(), 7);
    let other = [&again[..], &["--durability", "journaled"]].concat();
    assert!(!lab.run(&other));

    let liar = Lab::new(Honesty::LosesInserts);
    assert!(!liar.run(&STUDY_B), "lost inserts");
    let liar = Lab::new(Honesty::MixesUp);
    assert!(
        !liar.run(&[&STUDY_B[..], &["--modes", "id"]].concat()),
        "another record"
    );
}

#[test]
fn study_c_sweeps_connections_over_data_sizes() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "sizes",
        "--records",
        "200,400",
        "--connections",
        "1,3",
        "--duration",
        "40ms",
        "--warmup",
        "0s",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    assert_eq!(report.steps.len(), 2 * 5 * 2);
    assert!(
        report
            .steps
            .iter()
            .all(|s| s.at.is_some() && s.operations > 0)
    );
    assert!(!lab.run(&["study", "sizes", "--scenarios", "C.S9"]));
    assert!(!lab.run(&["study", "sizes", "--scale", "0"]));
}

#[test]
fn study_d_takes_what_has_shards() {
    let lab = Lab::new(Honesty::Honest);
    let shards = format!("1={0},2={0}", lab.url);
    let out = lab.out();
    let out = out.to_str().unwrap();
    let args = [
        "study",
        "shards",
        "--records",
        "300",
        "--duration",
        "50ms",
        "--connections",
        "3",
    ];
    let tail = ["--quiet", "--out", out];
    assert!(run(&[&args[..], &["--shards", &shards], &tail].concat()));
    let report = lab.report();
    // The server is no router: the second setup is left out, and the result says so.
    assert_eq!(report.steps.len(), 5);
    assert!(report.notes.iter().any(|n| n.contains("no sharding")));
    assert!(!run(&[
        &args[..],
        &["--shards", "2=mongodb://127.0.0.1:1"],
        &tail
    ]
    .concat()));
    assert!(!run(&[&args[..], &["--shards", "two"], &tail].concat()));
}

#[test]
fn study_e_runs_what_needs_no_server_of_its_own() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "pains",
        "--records",
        "2000",
        "--threads",
        "1,3",
        "--duration",
        "40ms",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    // The load, two ways of keys, two numbers of threads, four journal modes.
    assert_eq!(report.steps.len(), 1 + 2 + 2 + 4);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.starts_with("recovery: skipped"))
    );
    assert!(
        report
            .checks
            .iter()
            .any(|c| c.name.starts_with("ids:") && c.value > 0.0)
    );
    assert!(!lab.run(&["study", "pains", "--only", "headache"]));
}

#[test]
fn study_f_stores_files_and_reads_them_back() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "files",
        "--files",
        "3",
        "--size",
        "600k",
        "--connections",
        "1,2",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    assert_eq!(report.steps.len(), 4);
    for s in &report.steps {
        assert_eq!(s.operations, 3);
        assert!(s.megabytes_per_second.is_some_and(|m| m > 0.0));
    }
    assert_eq!(report.steps[0].latency["CHUNK-WRITE"].count, 3 * 3 + 3);
    assert_eq!(report.steps[1].latency["CHUNK-READ"].count, 3 * 3);
    // Every fiftieth insert is lost: of files of one chunk always the file's own document.
    for (size, connections) in [("600k", "2"), ("1k", "1")] {
        let liar = Lab::new(Honesty::LosesInserts);
        let args = ["study", "files", "--files", "30", "--size", size];
        let lost = liar.run(&[&args[..], &["--connections", connections]].concat());
        assert!(!lost, "lost inserts, files of {size}");
    }
}

#[test]
fn ycsb_as_its_users_call_it() {
    let lab = Lab::new(Honesty::Honest);
    let file = lab.dir.path().join("workloada");
    std::fs::write(
        &file,
        "recordcount=200\noperationcount=300\nworkload=site.ycsb.workloads.CoreWorkload\nreadallfields=true\n\
         readproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\nrequestdistribution=zipfian\n",
    )
    .unwrap();
    let url = format!("mongodb.url={}/ycsb?w=1", lab.url);
    let text = lab.dir.path().join("text");
    let export = format!("exportfile={}", text.display());
    let options = [
        "mongodb",
        "-P",
        file.to_str().unwrap(),
        "-p",
        &url,
        "-s",
        "-threads",
        "3",
        "-p",
        &export,
    ];
    assert!(run(&[&["ycsb", "load"], &options[..]].concat()));
    let load = std::fs::read_to_string(&text).unwrap();
    assert!(
        load.contains("[INSERT], Operations, 200\n") && load.contains("[INSERT], Return=OK, 200\n"),
        "{load}"
    );
    // The same keys again are refused, as the original is.
    assert!(!run(&[&["ycsb", "load"], &options[..]].concat()));
    assert!(run(
        &[&["ycsb", "run"], &options[..], &["-target", "3000"]].concat()
    ));
    let ran = std::fs::read_to_string(&text).unwrap();
    assert!(ran.starts_with("[OVERALL], RunTime(ms), "), "{ran}");
    let count = |kind: &str| -> u64 {
        let line = ran
            .lines()
            .find(|l| l.starts_with(&format!("[{kind}], Operations, ")))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(count("READ") + count("UPDATE"), 300);
    let series = [
        "-p",
        "measurementtype=timeseries",
        "-p",
        "timeseries.granularity=2000",
    ];
    assert!(run(&[&["ycsb", "run"], &options[..], &series].concat()));
    let ran = std::fs::read_to_string(&text).unwrap();
    assert!(ran.contains("\n[READ], 0, "), "{ran}");
    assert!(!run(&["ycsb", "run", "mongodb", "-P", "/nowhere"]));
    assert!(!run(&[
        "ycsb",
        "run",
        "cassandra-cql",
        "-p",
        "recordcount=1"
    ]));
}

#[test]
fn the_short_study_ends_with_a_page() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "short",
        "--records",
        "300",
        "--connections",
        "1,2,4",
        "--duration",
        "60ms",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    // A load, three workloads at three numbers of connections, response times at three loads of two.
    assert_eq!(report.steps.len(), 1 + 9 + 6);
    let open: Vec<_> = report
        .steps
        .iter()
        .filter(|s| s.offered.is_some())
        .collect();
    assert_eq!(open.len(), 6);
    assert!(open.iter().all(|s| s.lag.is_some()));
    let page = std::fs::read_to_string(lab.out().with_extension("html")).unwrap();
    assert!(page.contains("Throughput by connections") && page.contains("Response time by load"));
    // The page can be made again, and every plot as a file.
    let out = lab.out();
    let again = lab.dir.path().join("again.html");
    assert!(run(&[
        "report",
        out.to_str().unwrap(),
        "--out",
        again.to_str().unwrap()
    ]));
    assert!(
        std::fs::read_dir(lab.dir.path().join("again.plots"))
            .unwrap()
            .count()
            >= 3
    );
    assert!(!run(&["report", "/nowhere.json"]));
    assert!(!lab.run(&["short", "--duration", "0s"]));
}

/// The page in a real browser, where one is installed: it draws, in both themes, and no width makes it scroll sideways.
#[test]
fn the_page_opens_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).flat_map(|d| names.map(|n| d.join(n)));
    let Some(browser) = found.into_iter().find(|p| p.is_file()) else {
        eprintln!("skipped: no chromium on this machine");
        return;
    };
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let page = std::fs::read_to_string(lab.out().with_extension("html"));
    let page = page.unwrap_or_else(|_| {
        let out = lab.out();
        assert!(run(&["report", out.to_str().unwrap(), "--svg", "-"]));
        std::fs::read_to_string(out.with_extension("html")).unwrap()
    });
    let probe = "<script>var d=document.documentElement,s=Array.from(document.querySelectorAll('svg')).find(function(x){return x.getBoundingClientRect().height>0});document.title='wide '+(d.scrollWidth-d.clientWidth)+' tall '+Math.round(s.getBoundingClientRect().height)+' dark '+getComputedStyle(document.body).backgroundColor</script></body>";
    let file = lab.dir.path().join("probe.html");
    std::fs::write(&file, page.replace("</body>", probe)).unwrap();
    let title = |width: u32, scheme: u32| {
        let profile = lab.dir.path().join(format!("profile{width}{scheme}"));
        let out = std::process::Command::new(&browser)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--window-size={width},900"))
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&out.stdout).into_owned();
        let title = dom
            .split("<title>")
            .nth(1)
            .and_then(|t| t.split("</title>").next());
        title
            .unwrap_or_else(|| panic!("no page: {dom}"))
            .to_string()
    };
    let (light, dark) = (title(390, 1), title(1280, 0));
    for t in [&light, &dark] {
        assert!(
            t.starts_with("wide 0 tall ") && !t.contains("tall 0 "),
            "{t}"
        );
    }
    assert!(
        light.ends_with("rgb(247, 247, 245)") && dark.ends_with("rgb(20, 23, 26)"),
        "{light} {dark}"
    );
}

#[test]
fn a_sweep_is_resumed_and_a_comparison_decides() {
    let lab = Lab::new(Honesty::Honest);
    let sweep = [
        "sweep",
        "C.S3",
        "--records",
        "200",
        "--connections",
        "1,2,4",
        "--duration",
        "40ms",
        "--rounds",
        "2",
        "--latency",
        "50",
        "--poisson",
    ];
    assert!(lab.run(&sweep));
    let first = lab.report();
    assert_eq!(first.steps.len(), 4);
    assert!(first.checks.iter().any(|c| c.name.ends_with("peak")));
    assert!(lab.run(&[&sweep[..], &["--resume"]].concat()));
    assert_eq!(lab.report().steps[0].operations, first.steps[0].operations);

    let out = lab.out();
    let out = out.to_str().unwrap();
    let compare = [
        "compare",
        &lab.url,
        &lab.url,
        "--records",
        "200",
        "--connections",
        "2",
        "--pairs",
        "8",
        "--slice",
        "20ms",
        "--quiet",
        "--out",
        out,
    ];
    assert!(run(&compare));
    let report = lab.report();
    assert_eq!(report.comparisons.len(), 2);
    assert!(report.comparisons.iter().all(|c| !c.verdict.is_empty()));
    assert!(!run(&[&compare[..], &["--workload", "C.S1"]].concat()));
    assert!(!run(&["compare", "/nowhere/pando", &lab.url]));
}

/// Everything that a target must do, on a server that the laboratory starts itself.
fn on_a_real_server(product: &str, options: &[&str], variants: &[&str]) {
    if !lab::targets::local::installed(product) {
        eprintln!("skipped: no {product} on this machine");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("targets");
    let home = home.to_str().unwrap();
    let up = ["targets", "--dir", home, "up", product, "--memory", "64m"];
    assert!(run(&[&up[..], options].concat()), "{product} did not start");
    let servers = lab::targets::local::running(Path::new(home));
    assert_eq!(servers.len(), 1);
    assert!(run(&["targets", "--dir", home]));
    let (base, _) = servers[0].url.split_once('?').unwrap();
    let out = dir.path().join("result.json");
    let out = out.to_str().unwrap();
    let mine = dir.path().join("mine");
    std::fs::write(
        &mine,
        "recordcount=300\noperationcount=600\nreadproportion=0.3\nupdateproportion=0.3\ninsertproportion=0.1\n\
         readmodifywriteproportion=0.1\nscanproportion=0.1\ndeleteproportion=0.1\nmaxscanlength=10\nfieldcount=3\n",
    )
    .unwrap();
    for variant in variants {
        let url = format!("{base}?{variant}");
        let with = |args: &[&str]| {
            let tail = ["--url", &url, "--quiet", "--out", out];
            run(&[args, &tail].concat())
        };
        for (fields, integrity) in [("true", "true"), ("false", "false")] {
            let all = format!("readallfields={fields}");
            let data = format!("dataintegrity={integrity}");
            let write = format!("writeallfields={integrity}");
            let file = mine.to_str().unwrap();
            let args = [
                "run",
                "-P",
                file,
                "-p",
                &all,
                "-p",
                &data,
                "-p",
                &write,
                "--connections",
                "3",
            ];
            assert!(with(&args), "{url} {all}");
        }
        for scenario in ["C.S1", "E"] {
            let args = [
                "run",
                scenario,
                "--records",
                "300",
                "--operations",
                "300",
                "--durability",
                "journaled",
            ];
            assert!(with(&args), "{url} {scenario}");
        }
        assert!(!with(&[
            "run",
            "C.S1",
            "--records",
            "10",
            "--durability",
            "unack"
        ]));
        assert!(with(&STUDY_B), "{url}");
        let report = Report::read(Path::new(out)).unwrap();
        let info = report.target.unwrap();
        assert!(info.pid.is_some() && info.cache_bytes.is_some(), "{info:?}");
        assert!(report.steps[0].server_cpu_us.is_some_and(|c| c > 0.0));
        assert_eq!(report.steps[0].sizes[0].documents, 3000);
    }
    assert!(run(&["targets", "--dir", home, "down"]));
    assert!(lab::targets::local::running(Path::new(home)).is_empty());
    assert!(!run(&["targets", "--dir", home, "down", "nobody"]));
}

#[test]
fn postgresql_is_a_target() {
    on_a_real_server("postgres", &[], &["layout=columns", "layout=jsonb"]);
}

#[test]
fn mariadb_is_a_target() {
    on_a_real_server("mariadb", &[], &["engine=innodb", "engine=aria"]);
}

#[test]
fn users_log_in_and_others_stay_outside() {
    use lab::targets::scram::Hash;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let with = |url: &str| {
        let words = ["run", "C.S3", "--records", "200", "--operations", "200"];
        let more = [
            "--connections",
            "3",
            "--quiet",
            "--out",
            out.to_str().unwrap(),
        ];
        run(&[&words[..], &more, &["--url", url]].concat())
    };
    let newer = fake::start_locked("me", "p@ss".into(), Hash::Sha256);
    // What SCRAM-SHA-1 hashes is md5 of me:mongo:p@ss.
    let hashed = format!("{:x}", md5::compute("me:mongo:p@ss"));
    let older = fake::start_locked("me", hashed, Hash::Sha1);
    for addr in [newer, older] {
        assert!(with(&format!(
            "mongodb://me:p%40ss@{addr}/lab?authSource=admin"
        )));
        let kept = std::fs::read_to_string(&out).unwrap();
        assert!(!kept.contains("p%40ss") && !kept.contains("p@ss"));
        std::fs::remove_file(&out).unwrap();
        for wrong in ["me:wrong@", ""] {
            let url = format!("mongodb://{wrong}{addr}/lab?authSource=admin");
            assert!(!with(&url), "{wrong}");
        }
        assert!(!out.exists());
    }
    // Its user has no such mechanism.
    assert!(!with(&format!(
        "mongodb://me:p%40ss@{newer}/?authMechanism=SCRAM-SHA-1"
    )));
    let fault = lab::connection::Address::parse(&format!("mongodb://{newer}/"))
        .and_then(|a| a.connect())
        .and_then(|mut c| c.drop_collection("lab", "x"));
    let line = fault.unwrap_err().to_string();
    assert!(line.starts_with("not authorised (Command drop"), "{line}");
}
