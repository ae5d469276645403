//! The whole laboratory at a tiny size, as a user calls it, so that no study rots; and against servers that lie.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../fake/mod.rs"]
mod fake;

mod browser;
mod databases;
mod faults;
mod queries;
mod results;
mod studies;
mod workloads;

use fake::Honesty;
use lab::report::Report;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
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
            "--force",
            "--out",
            out.to_str().unwrap(),
        ]);
        run(&all)
    }

    fn report(&self) -> Report {
        Report::read(&self.out()).unwrap()
    }
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
