//! Targets of several processes: clusters that the laboratory launches, with stand-ins for mongod and mongos that speak
//! enough of the protocol to be initiated, joined and loaded; and servers side by side, their keys spread by the client.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::{Honesty, Role};
use lab::connection::MongoAddress;
use lab::report::Report;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

fn run(args: &[&str]) -> bool {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    format!("{:?}", lab::main(args)) == format!("{:?}", ExitCode::SUCCESS)
}

/// No test: what the scripts below run in place of mongod and mongos.
#[test]
#[ignore = "the stand-in for mongod, run by the scripts of other tests"]
fn stands_in_for_mongod() {
    let Ok(words) = std::env::var("LAB_STAND_IN") else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    let value = |name: &str| {
        let at = words.iter().position(|w| *w == name)?;
        words.get(at + 1).copied()
    };
    assert!(words[0] == "pando" || value("--bind_ip") == Some("127.0.0.1"));
    // A server of ours and its router are called as `pando serve` and `pando route`.
    let called = match words[0] {
        "pando" => words[1],
        other => other,
    };
    let role = match (called, value("--replSet")) {
        ("mongos" | "route", _) => {
            assert!(fake::is_member(value("--configdb").unwrap()));
            Role::Router
        }
        (_, Some("config")) => {
            assert!(words.contains(&"--configsvr"));
            Role::Member
        }
        (_, Some(_)) => {
            assert!(words.contains(&"--shardsvr"));
            Role::Member
        }
        _ => Role::Alone,
    };
    let port: u16 = value("--port").unwrap().parse().unwrap();
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    fake::serve(listener, Honesty::Honest, role);
}

/// Scripts that are called as mongod and mongos are. The folder stays in the command line, as it does with these.
fn stand_ins(dir: &Path) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    for name in ["mongod", "mongos", "pando"] {
        let path = dir.join(name);
        let text = format!(
            "#!/bin/sh\nexport LAB_STAND_IN=\"{name} $*\"\nfor w in \"$@\"; do\n  case \"$last\" in --dbpath|--pidfilepath) place=$w;; esac\n  last=$w\ndone\nexec '{}' --ignored --exact stands_in_for_mongod --nocapture \"$place\"\n",
            own.display()
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir.join("mongod")
}

#[test]
fn a_cluster_comes_up_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mongod = stand_ins(dir.path());
    let home = dir.path().join("targets");
    let home = home.to_str().unwrap();
    let up = ["targets", "--dir", home, "up", "mongod", "--binary"];
    let up = [&up[..], &[mongod.to_str().unwrap(), "--shards", "2"]].concat();
    assert!(run(&up));
    let all = lab::targets::local::running(Path::new(home));
    let names: Vec<&str> = all.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["mongod-1", "mongod-2", "mongod-3", "mongos-1"]);
    let router = all.iter().find(|r| r.router).unwrap();
    let c = MongoAddress::parse(&router.url).unwrap().connect().unwrap();
    assert!(c.is_router());
    // Shards have the cache together.
    assert!(all[1].command.iter().any(|w| w == "0.26"), "{:?}", all[1]);
    assert!(run(&["targets", "--dir", home, "down"]));
    assert!(lab::targets::local::running(Path::new(home)).is_empty());
    for r in &all {
        assert!(!Path::new(&format!("/proc/{}/cmdline", r.pid)).exists());
        assert!(!r.dir.exists());
    }
    // Without a router beside it, nothing is left running.
    std::fs::remove_file(dir.path().join("mongos")).unwrap();
    assert!(!run(&[&up[..], &["--router", "/nowhere/mongos"]].concat()));
    // A router that does not come up takes the rest with it.
    std::fs::write(dir.path().join("mongos"), "#!/bin/sh\nexit 1\n").unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path().join("mongos"), executable).unwrap();
    assert!(!run(&up));
    assert!(lab::targets::local::running(Path::new(home)).is_empty());
}

/// No test: the laboratory as a process of its own, which another test kills.
#[test]
#[ignore = "the laboratory that another test starts and kills"]
fn stands_in_for_the_laboratory() {
    let Ok(words) = std::env::var("LAB_WORDS") else {
        return;
    };
    run(&words.split(' ').collect::<Vec<_>>());
}

/// Waits for what must come, however slow the machine is.
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !there() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn servers_of_a_run_that_is_killed_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let mongod = stand_ins(dir.path());
    let words = format!(
        "study single --launch mongod --shards 2 --binary {} --records 1g --quiet --out -",
        mongod.display()
    );
    let mut laboratory = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "stands_in_for_the_laboratory"])
        .env("LAB_WORDS", words)
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let home = format!("pando-lab-started-{}-0", laboratory.id());
    let home = dir.path().join(home);
    let mut servers = Vec::new();
    until("the cluster did not start", || {
        assert!(laboratory.try_wait().unwrap().is_none(), "it ended");
        servers = lab::targets::local::running(&home);
        servers.iter().any(|r| r.router)
    });
    assert_eq!(servers.len(), 4);
    laboratory.kill().unwrap();
    laboratory.wait().unwrap();
    for r in &servers {
        // Of a process that has ended and is still in the table nothing can be read.
        let line = format!("/proc/{}/cmdline", r.pid);
        until(&format!("{} lives on", r.name), || {
            std::fs::read(&line).unwrap_or_default().is_empty()
        });
    }
    // What it left goes with the next run that needs such a folder.
    assert!(home.is_dir());
    let next = lab::scratch::Scratch::new("next", Some(dir.path())).unwrap();
    assert!(!home.exists() && next.dir.is_dir());
}

#[test]
fn studies_launch_clusters_for_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mongod = stand_ins(dir.path());
    let out = dir.path().join("result.json");
    let study = |words: &[&str], shards: &str| {
        let launch = ["--launch", "mongod", "--binary", mongod.to_str().unwrap()];
        let tail = [
            "--shards",
            shards,
            "--quiet",
            "--force",
            "--out",
            out.to_str().unwrap(),
        ];
        assert!(run(&[words, &launch, &tail].concat()), "{words:?}");
        Report::read(&out).unwrap()
    };
    let d = ["study", "shards", "--records", "300", "--duration", "50ms"];
    let report = study(&[&d[..], &["--connections", "4"]].concat(), "1,2");
    assert_eq!(report.steps.len(), 10);
    let of: Vec<(u64, &str)> = report.shards.iter().map(|s| (s.of, &*s.name)).collect();
    assert_eq!(of, [(2, "shard1"), (2, "shard2")]);
    assert!(report.shards.iter().all(|s| s.indexes["a_1"] == 3));

    let a = [
        "study",
        "single",
        "--records",
        "2000",
        "--duration",
        "100ms",
    ];
    let report = study(&[&a[..], &["--connections", "2"]].concat(), "2");
    assert_eq!(report.name, "A-sharded");
    assert_eq!((report.shards.len(), report.steps.len()), (2, 8));

    // One process and a cluster in turn, of MongoDB and of ours.
    for product in [&["mongod"][..], &["pando", "--cluster"]] {
        let binary = dir.path().join(product[0]);
        let mut both = a.to_vec();
        both.extend(["--connections", "2", "--only", "2,4", "--repeat", "2"]);
        both.extend(["--binary", binary.to_str().unwrap(), "--shards", "2"]);
        both.extend(["--against-one", "--launch"]);
        both.extend(product);
        both.extend(["--quiet", "--force", "--out", out.to_str().unwrap()]);
        assert!(run(&both), "{both:?}");
        let report = Report::read(&out).unwrap();
        assert_eq!((report.name.as_str(), report.shards.len()), ("A-both", 2));
        let targets: Vec<String> = report.targets.iter().map(|t| t.label()).collect();
        assert!(targets[1].starts_with("2 shards of ") && targets[0] != targets[1]);
        for s in &report.steps {
            assert_eq!(s.repeats.len(), 2);
            assert!(targets.contains(s.target.as_ref().unwrap()));
            // Of a cluster's processes only the router's is known, which is not all of it.
            let cluster = s.target.as_ref() == Some(&targets[1]);
            assert_eq!(s.server_cpu_us.is_none(), cluster);
        }
        assert_eq!(report.steps.len(), 4);
        let said = lab::verdict::of(&report);
        assert!(said[0].text.contains("2 shards of ") && said[0].text.contains("one process"));
    }

    let f = ["study", "files", "--files", "2", "--size", "600k"];
    let report = study(&[&f[..], &["--connections", "1"]].concat(), "2");
    assert_eq!((report.shards.len(), report.steps.len()), (2, 2));

    let i = ["study", "moves", "--records", "200", "--duration", "100ms"];
    let i = [&i[..], &["--load", "batches,mixed", "--repeat", "1"]].concat();
    let report = study(&i, "2");
    assert_eq!((report.name.as_str(), report.steps.len()), ("I-moves", 4));
    for s in &report.steps {
        let with = s.mode.as_deref() == Some("with moves");
        assert_eq!(s.activity.contains_key("chunk moved"), with, "{}", s.key);
    }
    let moved = report.checks.iter().filter(|c| c.name.ends_with(": moves"));
    assert!(moved.filter(|c| c.value > 0.0).count() == 2);

    let c = ["study", "sizes", "--records", "200", "--scenarios", "C.S5"];
    let c = [&c[..], &["--connections", "2", "--duration", "50ms"]].concat();
    let report = study(&[&c[..], &["--warmup", "0s"]].concat(), "3");
    assert_eq!(report.steps.len(), 1);

    for wrong in [
        &["study", "single", "--launch", "pando", "--shards", "2"][..],
        &["study", "files", "--launch", "pando", "--shards", "2"],
        &["study", "sizes", "--shards", "2"],
        &[
            "study",
            "sizes",
            "--launch",
            "mongod",
            "--url",
            "mongodb://h",
        ],
        &["study", "shards", "--shards", "0"],
        &["study", "single", "--launch", "mongod", "--against-one"],
        &["study", "single", "--sharded-url", "mongodb://h"],
    ] {
        assert!(
            !run(&[wrong, &["--quiet", "--out", "-"]].concat()),
            "{wrong:?}"
        );
    }
}

#[test]
fn the_client_spreads_keys_over_servers_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let out = out.to_str().unwrap();
    let servers: Vec<String> = (0..3)
        .map(|_| format!("mongodb://{}/side", fake::start(Honesty::Honest)))
        .collect();
    let url = servers.join("+");
    let with = |words: &[&str], url: &str| {
        run(&[words, &["--url", url, "--quiet", "--force", "--out", out]].concat())
    };
    let load = ["load", "A", "--records", "900", "--connections", "5"];
    assert!(!with(&load, &[&*servers[0], &*servers[0]].join("+")));
    assert!(with(&load, &url));
    let counts: Vec<u64> = servers
        .iter()
        .map(|s| {
            let mut c = MongoAddress::parse(s).unwrap().connect().unwrap();
            c.count("side", "usertable").unwrap()
        })
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 900);
    assert!(counts.iter().all(|n| (230..370).contains(n)), "{counts:?}");
    for scenario in ["A", "D", "F", "C.S1"] {
        let words = ["run", scenario, "--records", "900", "--operations", "600"];
        assert!(
            with(&[&words[..], &["--connections", "4"]].concat(), &url),
            "{scenario}"
        );
        let report = Report::read(Path::new(out)).unwrap();
        assert_eq!(report.steps[0].operations, 600);
    }
    // Scans would have to be merged, too few connections leave servers out, other studies know nothing of it.
    assert!(!with(&["run", "E", "--records", "900"], &url));
    assert!(!with(
        &["run", "A", "--records", "900", "--connections", "2"],
        &url
    ));
    assert!(!with(&["study", "keys", "--records", "100"], &url));

    let shards = format!("1={},2={}+{}", servers[0], servers[1], servers[2]);
    let words = ["study", "shards", "--records", "300", "--duration", "50ms"];
    let words = [&words[..], &["--shards", &shards, "--connections", "4"]].concat();
    assert!(run(
        &[&words[..], &["--quiet", "--force", "--out", out]].concat()
    ));
    let report = Report::read(Path::new(out)).unwrap();
    assert_eq!(report.steps.len(), 10);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.starts_with("Sharding by the client"))
    );
    let documents: u64 = report.shards.iter().map(|s| s.documents).sum();
    assert_eq!((report.shards.len(), documents), (2, 300));
    let wrong = format!("3={}+{}", servers[1], servers[2]);
    let words = ["study", "shards", "--records", "300", "--shards", &wrong];
    assert!(!run(&[&words[..], &["--quiet", "--out", "-"]].concat()));
}
