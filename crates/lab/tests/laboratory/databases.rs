//! Targets: real servers of other databases, and users that log in.

use super::{STUDY_B, fake, run};
use lab::report::Report;
use std::path::Path;

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
            let tail = ["--url", &url, "--quiet", "--force", "--out", out];
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
    use auth::scram::Hash;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let with = |url: &str| {
        let words = ["run", "C.S3", "--records", "200", "--operations", "200"];
        let more = [
            "--connections",
            "3",
            "--quiet",
            "--force",
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
    let fault = lab::connection::MongoAddress::parse(&format!("mongodb://{newer}/"))
        .and_then(|a| a.connect())
        .and_then(|mut c| c.drop_collection("lab", "x"));
    let line = fault.unwrap_err().to_string();
    assert!(
        line.contains("not authorised (Command listCollections"),
        "{line}"
    );
}
