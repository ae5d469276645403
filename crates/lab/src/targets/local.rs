//! `pando lab targets`: throw-away servers of this machine, started from what is installed, all with the same cache and
//! the same promise to disk, and stopped again by their process ids.
//!
//! Invariant: a folder of ours is removed only after the server whose files it holds has ended; a process is ended only
//! when its command line still names that folder.

use crate::fault::{Fault, Result, local};
use crate::process::free_port;
use crate::targets;
use crate::terms::bytes_of;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    /// The servers that run, and what is installed (the same as without a word).
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
    /// Cache of the server (buffer pool, shared buffers …).
    #[arg(long, default_value = "512m", value_parser = bytes_of)]
    pub memory: u64,
    /// The server's program, where it is not found by itself.
    #[arg(long)]
    pub binary: Option<PathBuf>,
    /// Port on 127.0.0.1 (default: a free one).
    #[arg(long)]
    pub port: Option<u16>,
    /// So many servers of the kind.
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
}

/// A server that we started, as its file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    pub name: String,
    pub url: String,
    pub pid: u32,
    pub dir: PathBuf,
    pub command: Vec<String>,
}

const READY: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);
const PRODUCTS: [&str; 4] = ["pando", "mariadb", "postgres", "mongod"];

pub fn main(args: Args) -> Result<bool> {
    let home = home(args.dir);
    match args.command {
        Some(What::Up(up)) => {
            if !(1..=64).contains(&up.shards) {
                return Err(Fault::Usage("--shards is 1 to 64".into()));
            }
            for _ in 0..up.shards {
                let running = start(&home, &up)?;
                eprintln!("{}: {}", running.name, running.command.join(" "));
                println!("{}", running.url);
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
            for r in all
                .iter()
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
    dir.unwrap_or_else(|| std::env::temp_dir().join(format!("pando-lab-targets-{user}")))
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

/// Where the product's program is.
fn program(product: &str, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return if path.is_file() {
            Ok(path.to_path_buf())
        } else {
            Err(Fault::Usage(format!("{}: no such program", path.display())))
        };
    }
    let (names, package): (&[&str], &str) = match product {
        "pando" => return std::env::current_exe().map_err(local("this program's own path")),
        "mariadb" => (&["mariadbd", "mysqld"], "the package mariadb-server has it"),
        "postgres" => (&["postgres"], "the package postgresql has it"),
        "mongod" => (&["mongod"], "give --binary PATH"),
        other => {
            return Err(Fault::Usage(format!(
                "{other} is not one of {}",
                PRODUCTS.join(", ")
            )));
        }
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    if product == "postgres" {
        // Debian keeps the versions side by side; the newest first.
        let versions = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten();
        let mut versions: Vec<PathBuf> = versions.map(|e| e.path().join("bin")).collect();
        versions.sort();
        versions.reverse();
        folders.extend(versions);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from));
    let found = folders
        .iter()
        .flat_map(|f| names.iter().map(|n| f.join(n)))
        .find(|p| p.is_file());
    found.ok_or_else(|| Fault::Local(format!("no {} on this machine; {package}", names[0])))
}

/// Whether a product can be started here.
pub fn installed(product: &str) -> bool {
    program(product, None).is_ok()
}

/// Whom a server runs as: PostgreSQL refuses root.
fn servant() -> Option<(u32, u32)> {
    // SAFETY: no pointers are involved.
    if unsafe { libc::getuid() } != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres", "nobody"].iter().find_map(|name| {
        let line = users.lines().find(|l| l.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// Starts a server on an empty folder and waits until it answers.
pub fn start(home: &Path, up: &Up) -> Result<Running> {
    let binary = program(&up.product, up.binary.as_deref())?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(home).map_err(local(home.display()))?;
    let taken: Vec<String> = running(home).into_iter().map(|r| r.name).collect();
    let name = (1..)
        .map(|i| format!("{}-{i}", up.product))
        .find(|n| !taken.contains(n) && !home.join(n).exists())
        .unwrap_or_default();
    let dir = home.join(&name);
    std::fs::create_dir(&dir).map_err(local(dir.display()))?;
    let started = launch(home, &name, &dir, &binary, up);
    if started.is_err() {
        let _ = std::fs::remove_dir_all(&dir);
    }
    started
}

fn launch(home: &Path, name: &str, dir: &Path, binary: &Path, up: &Up) -> Result<Running> {
    let port = match up.port {
        Some(p) => p,
        None => free_port()?,
    };
    let servant = servant().filter(|_| up.product == "postgres");
    if let Some((user, group)) = servant {
        chown(dir, Some(user), Some(group)).map_err(local(dir.display()))?;
    }
    let (words, url) = recipe(dir, binary, up, port)?;
    let command: Vec<String> = std::iter::once(binary.display().to_string())
        .chain(words)
        .collect();
    let log_path = dir.join("server.log");
    for before in preparation(dir, binary, up) {
        run(&before, servant, &log_path)?;
    }
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path);
    let log = log.map_err(local(log_path.display()))?;
    let twin = log.try_clone().map_err(local(log_path.display()))?;
    let mut c = Command::new(&command[0]);
    c.args(&command[1..])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(twin)
        .current_dir(dir);
    if let Some((user, group)) = servant {
        c.uid(user).gid(group);
    }
    // A session of its own: it outlives the terminal that it was started from.
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        c.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = c
        .spawn()
        .map_err(local(format!("starting {}", command[0])))?;
    let running = Running {
        name: name.to_string(),
        url,
        pid: child.id(),
        dir: dir.to_path_buf(),
        command,
    };
    let deadline = Instant::now() + READY;
    loop {
        let answered = targets::open(&running.url)?.info();
        let Err(fault) = answered else { break };
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let log = std::fs::read_to_string(&log_path).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            return Err(Fault::Local(format!(
                "{name} did not start ({fault}): {}",
                last.join(" / ")
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let file = home.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&running).unwrap_or_default();
    std::fs::write(&file, text).map_err(|e| {
        let _ = child.kill();
        let _ = child.wait();
        Fault::Local(format!("{}: {e}", file.display()))
    })?;
    Ok(running)
}

/// The server's words and URL. Same cache everywhere, every commit able to reach the disk, nothing else tuned.
fn recipe(dir: &Path, binary: &Path, up: &Up, port: u16) -> Result<(Vec<String>, String)> {
    let data = dir.join("data").display().to_string();
    let megabytes = (up.memory / 1_000_000).max(8);
    let here = dir.display();
    let words: Vec<String> = match up.product.as_str() {
        "mariadb" => {
            let mut words = vec![
                "--no-defaults".to_string(),
                format!("--datadir={data}"),
                "--bind-address=127.0.0.1".into(),
                format!("--port={port}"),
                format!("--socket={here}/socket"),
                format!("--pid-file={here}/pid"),
                "--max-connections=600".into(),
                "--skip-log-bin".into(),
                "--innodb-flush-log-at-trx-commit=1".into(),
                format!("--innodb-buffer-pool-size={megabytes}M"),
                format!("--innodb-log-file-size={}M", (megabytes / 2).max(96)),
                format!("--key-buffer-size={megabytes}M"),
                "--max-allowed-packet=64M".into(),
            ];
            if binary.ends_with("mariadbd") {
                words.push(format!("--aria-pagecache-buffer-size={megabytes}M"));
            }
            // SAFETY: no pointers are involved.
            if unsafe { libc::getuid() } == 0 {
                words.push("--user=root".into());
            }
            return Ok((
                words,
                format!("mysql://root@127.0.0.1:{port}/lab?engine={}", up.engine),
            ));
        }
        "postgres" => {
            let settings = [
                "listen_addresses=127.0.0.1".to_string(),
                format!("unix_socket_directories={here}"),
                format!("shared_buffers={megabytes}MB"),
                "max_connections=600".into(),
                "fsync=on".into(),
                "full_page_writes=on".into(),
                "max_wal_size=4GB".into(),
                "logging_collector=off".into(),
            ];
            let mut words = vec!["-D".to_string(), data, "-p".into(), port.to_string()];
            for s in settings {
                words.extend(["-c".to_string(), s]);
            }
            return Ok((
                words,
                format!(
                    "postgres://lab@127.0.0.1:{port}/postgres?layout={}",
                    up.layout
                ),
            ));
        }
        "mongod" => vec![
            "--dbpath".into(),
            data,
            "--port".into(),
            port.to_string(),
            "--bind_ip".into(),
            "127.0.0.1".into(),
            "--wiredTigerCacheSizeGB".into(),
            format!("{:.2}", (megabytes as f64 / 1000.0).max(0.25)),
        ],
        _ => vec![
            "serve".into(),
            "--dbpath".into(),
            data,
            "--port".into(),
            port.to_string(),
            "--cache".into(),
            format!("{megabytes}MB"),
        ],
    };
    std::fs::create_dir_all(dir.join("data")).map_err(local(dir.display()))?;
    Ok((words, format!("mongodb://127.0.0.1:{port}/")))
}

/// What makes the empty data folder.
fn preparation(dir: &Path, binary: &Path, up: &Up) -> Vec<Vec<String>> {
    let data = dir.join("data").display().to_string();
    let beside = |name: &str| {
        let near = binary.with_file_name(name);
        let candidates = [
            near,
            Path::new("/usr/bin").join(name),
            Path::new("/usr/local/bin").join(name),
        ];
        let found = candidates.iter().find(|p| p.is_file());
        found.map_or(name.to_string(), |p| p.display().to_string())
    };
    match up.product.as_str() {
        "mariadb"
            if binary.ends_with("mysqld")
                && !Path::new("/usr/bin/mariadb-install-db").is_file() =>
        {
            vec![vec![
                binary.display().to_string(),
                "--no-defaults".into(),
                "--initialize-insecure".into(),
                format!("--datadir={data}"),
            ]]
        }
        "mariadb" => vec![vec![
            beside("mariadb-install-db"),
            "--no-defaults".into(),
            format!("--datadir={data}"),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
        ]],
        "postgres" => vec![vec![
            beside("initdb"),
            "-D".into(),
            data,
            "-U".into(),
            "lab".into(),
            "--auth=trust".into(),
            "--locale=C".into(),
            "--encoding=UTF8".into(),
            "--no-sync".into(),
        ]],
        _ => Vec::new(),
    }
}

fn run(command: &[String], servant: Option<(u32, u32)>, log: &Path) -> Result<()> {
    let mut c = Command::new(&command[0]);
    c.args(&command[1..]).stdin(Stdio::null());
    if let Some((user, group)) = servant {
        c.uid(user).gid(group).current_dir("/");
    }
    let done = c
        .output()
        .map_err(local(format!("starting {}", command[0])))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let _ = std::fs::write(log, &said);
    let line = said
        .lines()
        .rfind(|l| !l.trim().is_empty())
        .unwrap_or_default()
        .to_string();
    Err(Fault::Local(format!("{} failed: {line}", command[0])))
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
    if r.dir.starts_with(home) {
        let _ = std::fs::remove_dir_all(&r.dir);
    }
    let _ = std::fs::remove_file(home.join(format!("{}.json", r.name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(product: &str) -> Up {
        Up {
            product: product.into(),
            engine: "aria".into(),
            layout: "jsonb".into(),
            memory: 256_000_000,
            binary: None,
            port: None,
            shards: 1,
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
        ] {
            let (words, got) =
                recipe(dir.path(), Path::new("/x/mariadbd"), &up(product), 4000).unwrap();
            assert!(words.iter().any(|w| w == cache), "{words:?}");
            assert_eq!(got, url);
            assert!(targets::open(&got).is_ok());
        }
    }

    #[test]
    fn unknown_products_and_programs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            start(dir.path(), &up("oracle")),
            Err(Fault::Usage(_))
        ));
        let mut missing = up("mongod");
        missing.binary = Some("/nowhere/mongod".into());
        assert!(start(dir.path(), &missing).is_err());
        assert!(running(dir.path()).is_empty());
    }
}
