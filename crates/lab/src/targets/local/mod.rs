//! `pando lab targets`: throw-away servers of this machine, started from installed programs, all with
//! the same cache and the same promise to disk, and stopped again by their process ids.
//!
//! Invariant: a folder of ours is removed only after the server whose files it holds has ended; a process is ended only
//! when its command line still names that folder.

mod cluster;
mod recipe;
mod room;
mod started;

use crate::fault::{Fault, Result};
use crate::targets;
use crate::terms::bytes_of;
pub use recipe::own_server;
use recipe::program;
pub use room::start;
use serde::{Deserialize, Serialize};
pub use started::{Launch, Started, given_or_own};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Option<What>,
    /// Where servers and their data are kept (default: a folder in the temporary directory).
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum What {
    /// Start a server and print its URL.
    Up(Up),
    /// Stop one server, or all, and remove their data.
    Down { name: Option<String> },
    /// The running servers, and the installed products (the same as without a word).
    List,
}

#[derive(clap::Args, Clone)]
pub struct Up {
    /// mariadb, postgres, mongod or pando.
    pub product: String,
    /// MariaDB's storage engine of the tables.
    #[arg(long, default_value = "innodb")]
    pub engine: String,
    /// How PostgreSQL keeps a record: columns or jsonb.
    #[arg(long, default_value = "columns")]
    pub layout: String,
    #[command(flatten)]
    pub means: Means,
    /// Port on 127.0.0.1 (default: a free one).
    #[arg(long)]
    pub port: Option<u16>,
    /// So many processes: of mongod, and of pando with --cluster, a cluster with a configuration server and a router; of
    /// others servers that know nothing of each other.
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
}

/// What a server is started from, and what it may have.
#[derive(clap::Args, Clone)]
pub struct Means {
    /// Cache of the server (buffer pool, shared buffers …); shards have it together.
    #[arg(long, default_value = "512m", value_parser = bytes_of)]
    pub memory: u64,
    /// All memory that it may have, what the system keeps of its files included (a memory cgroup; needs root); shards
    /// have it together.
    #[arg(long, value_parser = bytes_of)]
    pub limit: Option<u64>,
    /// The server's program, where it is not found by itself.
    #[arg(long)]
    pub binary: Option<PathBuf>,
    /// The router's program (mongos), where it is not beside the server's.
    #[arg(long)]
    pub router: Option<PathBuf>,
    /// Shards of pando are a cluster with a router (pando route), as those of mongod always are; else they are processes
    /// side by side.
    #[arg(long)]
    pub cluster: bool,
}

impl Up {
    pub fn new(product: &str, means: Means, shards: usize) -> Up {
        Up {
            product: product.into(),
            engine: "innodb".into(),
            layout: "columns".into(),
            means,
            port: None,
            shards,
        }
    }

    /// Whether its processes are a cluster with a router before them.
    pub fn has_router(&self) -> bool {
        let clusters = match self.product.as_str() {
            "mongod" => true,
            "pando" => self.means.cluster,
            _ => false,
        };
        clusters && self.shards > 1
    }
}

impl Means {
    pub fn with_memory(memory: u64) -> Means {
        Means {
            memory,
            limit: None,
            binary: None,
            router: None,
            cluster: false,
        }
    }
}

/// How long servers live.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Until they are stopped by command.
    UntilStopped,
    /// No longer than this process, even when it is killed.
    OfRun,
}

/// A server that we started, as its file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    pub name: String,
    pub url: String,
    pub pid: u32,
    pub dir: PathBuf,
    pub command: Vec<String>,
    /// The router of a cluster.
    #[serde(default)]
    pub router: bool,
    /// The memory cgroup that it is in.
    #[serde(default)]
    pub group: Option<PathBuf>,
}

const STOP: Duration = Duration::from_secs(60);
const PRODUCTS: [&str; 4] = ["pando", "mariadb", "postgres", "mongod"];

pub fn main(args: Args) -> Result<bool> {
    let home = home(args.dir);
    match args.command {
        Some(What::Up(up)) => {
            let all = start(&home, &up, Life::UntilStopped)?;
            for r in &all {
                eprintln!("{}: {}", r.name, r.command.join(" "));
            }
            match all.iter().find(|r| r.router) {
                Some(router) => println!("{}", router.url),
                None => all.iter().for_each(|r| println!("{}", r.url)),
            }
            if all.len() > 1 && !all.iter().any(|r| r.router) {
                eprintln!("as one target, keys spread by the client: {}", url_of(&all));
            }
        }
        Some(What::Down { name }) => {
            let all = running(&home);
            if let Some(n) = &name
                && !all.iter().any(|r| r.name == *n)
            {
                return Err(Fault::Usage(format!(
                    "{n} is not one of the servers that were started (see `pando lab targets`)"
                )));
            }
            // A router goes before what it routes to.
            for r in all
                .iter()
                .rev()
                .filter(|r| name.as_ref().is_none_or(|n| *n == r.name))
            {
                stop(&home, r);
                println!("{}: stopped", r.name);
            }
        }
        Some(What::List) | None => list(&home),
    }
    Ok(true)
}

pub fn home(dir: Option<PathBuf>) -> PathBuf {
    // SAFETY: no pointers are involved.
    let user = unsafe { libc::getuid() };
    let dir = dir.unwrap_or_else(|| std::env::temp_dir().join(format!("pando-lab-targets-{user}")));
    // Each server is started in a folder of its own, where a relative path would mean another place.
    std::path::absolute(&dir).unwrap_or(dir)
}

fn list(home: &Path) {
    let all = running(home);
    for r in &all {
        let state = match targets::open(&r.url).and_then(|t| t.info()) {
            Ok(info) => info.label(),
            Err(fault) => format!("does not answer: {fault}"),
        };
        println!("{:<12} pid {:<8} {}  {state}", r.name, r.pid, r.url);
    }
    if all.is_empty() {
        println!("none runs");
    }
    println!();
    for product in PRODUCTS {
        match program(product, None) {
            Ok(path) => println!("{product:<12} {}", path.display()),
            Err(fault) => println!("{product:<12} not installed: {fault}"),
        }
    }
}

/// The servers that were started and not stopped.
pub fn running(home: &Path) -> Vec<Running> {
    let mut all: Vec<Running> = std::fs::read_dir(home)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "json"))
        .filter_map(|e| serde_json::from_slice(&std::fs::read(e.path()).ok()?).ok())
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Whether a product can be started here.
pub fn installed(product: &str) -> bool {
    program(product, None).is_ok()
}

/// A router's URL stands for the cluster; those of separate servers are joined.
fn url_of(all: &[Running]) -> String {
    match all.iter().find(|r| r.router) {
        Some(router) => router.url.clone(),
        None => {
            let urls: Vec<&str> = all.iter().map(|r| r.url.as_str()).collect();
            urls.join("+")
        }
    }
}

/// Whether the process still is the server of that folder.
fn alive(r: &Running) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", r.pid)).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(&*r.dir.to_string_lossy())
}

/// Ends the server (PostgreSQL at once, without waiting for its clients) and removes what it kept.
pub fn stop(home: &Path, r: &Running) {
    let gentle = if r.url.starts_with("postgres") {
        libc::SIGINT
    } else {
        libc::SIGTERM
    };
    let deadline = Instant::now() + STOP;
    let mut signal = gentle;
    while alive(r) {
        // SAFETY: no pointers are involved; the process is ours, as its command line says.
        unsafe { libc::kill(r.pid as libc::pid_t, signal) };
        // SAFETY: as above; a child that has ended is taken notice of, so that it leaves the table.
        unsafe { libc::waitpid(r.pid as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) };
        if Instant::now() > deadline {
            signal = libc::SIGKILL;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // SAFETY: as above; it may have ended after the last look.
    unsafe { libc::waitpid(r.pid as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) };
    if r.dir.starts_with(home) {
        let _ = std::fs::remove_dir_all(&r.dir);
    }
    let _ = std::fs::remove_file(home.join(format!("{}.json", r.name)));
    if let Some(group) = &r.group {
        // Others that are in it still keep it.
        let _ = std::fs::remove_dir(group);
    }
}

#[cfg(test)]
mod tests {
    use super::recipe::{mongos, recipe};
    use super::*;

    fn up(product: &str) -> Up {
        let means = Means {
            binary: std::env::current_exe().ok(),
            ..Means::with_memory(256_000_000)
        };
        Up {
            engine: "aria".into(),
            layout: "jsonb".into(),
            ..Up::new(product, means, 1)
        }
    }

    #[test]
    fn recipes_have_the_same_cache_and_listen_on_loopback_only() {
        let dir = tempfile::tempdir().unwrap();
        for (product, cache, url) in [
            (
                "mariadb",
                "--innodb-buffer-pool-size=256M",
                "mysql://root@127.0.0.1:4000/lab?engine=aria",
            ),
            (
                "postgres",
                "shared_buffers=256MB",
                "postgres://lab@127.0.0.1:4000/postgres?layout=jsonb",
            ),
            ("mongod", "0.26", "mongodb://127.0.0.1:4000/"),
            ("pando", "256MB", "mongodb://127.0.0.1:4000/"),
        ] {
            let r = recipe(dir.path(), &up(product), 4000).unwrap();
            assert!(r.words.iter().any(|w| w == cache), "{:?}", r.words);
            assert_eq!(r.url, url);
            assert!(targets::open(&r.url).is_ok());
        }
        let router = mongos(dir.path(), Path::new("/x/mongos"), 4000, "config/h:1");
        assert_eq!(router.words[..2], ["--configdb", "config/h:1"]);
        assert!(router.words.iter().any(|w| w == "127.0.0.1"));
    }

    #[test]
    fn a_relative_folder_is_that_of_the_caller() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(home(Some("servers".into())), here.join("servers"));
        assert!(home(None).is_absolute());
    }

    #[test]
    fn unknown_products_and_programs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut unknown = up("oracle");
        unknown.means.binary = None;
        assert!(matches!(
            start(dir.path(), &unknown, Life::OfRun),
            Err(Fault::Usage(_))
        ));
        let mut missing = up("mongod");
        missing.means.binary = Some("/nowhere/mongod".into());
        assert!(start(dir.path(), &missing, Life::OfRun).is_err());
        let mut engine = up("mariadb");
        engine.engine = "csv".into();
        assert!(matches!(
            start(dir.path(), &engine, Life::OfRun),
            Err(Fault::Usage(_))
        ));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // A mongod without a router makes no cluster.
        let alone = dir.path().join("mongod");
        std::fs::write(&alone, "").unwrap();
        let mut shards = up("mongod");
        shards.means.binary = Some(alone);
        shards.shards = 2;
        let fault = start(dir.path(), &shards, Life::OfRun)
            .err()
            .unwrap()
            .to_string();
        assert!(fault.contains("mongos"), "{fault}");
        assert!(running(dir.path()).is_empty());
    }
}
