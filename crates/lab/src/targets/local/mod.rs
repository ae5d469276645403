//! `pando lab targets`: throw-away servers of this machine, started from what is installed, all with the same cache and
//! the same promise to disk, and stopped again by their process ids.
//!
//! Invariant: a folder of ours is removed only after the server whose files it holds has ended; a process is ended only
//! when its command line still names that folder.

mod cluster;
mod recipe;

use crate::fault::{Fault, Result, local};
use crate::process::{MemoryGroup, end_with_us, free_port};
use crate::targets;
use crate::terms::bytes_of;
use recipe::{Recipe, program};
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
    #[command(flatten)]
    pub means: Means,
    /// Port on 127.0.0.1 (default: a free one).
    #[arg(long)]
    pub port: Option<u16>,
    /// So many processes: of mongod a cluster with a configuration server and a router, of others servers that know
    /// nothing of each other.
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
}

impl Means {
    pub fn with_memory(memory: u64) -> Means {
        Means {
            memory,
            limit: None,
            binary: None,
            router: None,
        }
    }
}

/// For studies that start their target themselves.
#[derive(clap::Args, Clone)]
pub struct Launch {
    /// Start the target for this run (pando, mongod, mariadb, postgres) and remove it afterwards.
    #[arg(long, value_name = "PRODUCT", conflicts_with = "url")]
    pub launch: Option<String>,
    /// Processes of it, with --launch.
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
    #[command(flatten)]
    pub means: Means,
}

impl Launch {
    /// The target, when one is to be started.
    pub fn start(&self, quiet: bool) -> Result<Option<Started>> {
        match &self.launch {
            Some(product) => {
                let up = Up::new(product, self.means.clone(), self.shards);
                Ok(Some(Started::of(&up, quiet)?))
            }
            None if self.shards > 1 => Err(Fault::Usage(
                "--shards needs --launch; of a cluster that runs give the router's URL".into(),
            )),
            None => Ok(None),
        }
    }
}

/// How long servers live.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Until somebody stops them.
    UntilStopped,
    /// No longer than this process, even when it is killed.
    OfRun,
}

/// Servers of one run, stopped and removed at its end; of a run that is killed the files stay.
pub struct Started {
    home: PathBuf,
    pub running: Vec<Running>,
}

impl Started {
    pub fn none() -> Started {
        static HOMES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = HOMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("pando-lab-started-{}-{n}", std::process::id());
        Started {
            home: std::env::temp_dir().join(name),
            running: Vec::new(),
        }
    }

    pub fn of(up: &Up, quiet: bool) -> Result<Started> {
        let mut started = Started::none();
        started.add(up, quiet)?;
        Ok(started)
    }

    /// Starts one more target; gives its URL.
    pub fn add(&mut self, up: &Up, quiet: bool) -> Result<String> {
        let what = match up.shards {
            1 => format!("starting {}", up.product),
            n => format!("starting {} in {n} processes", up.product),
        };
        crate::progress::say(quiet, what);
        let all = start(&self.home, up, Life::OfRun)?;
        let url = url_of(&all);
        self.running.extend(all);
        Ok(url)
    }

    pub fn url(&self) -> String {
        url_of(&self.running)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for r in self.running.iter().rev() {
            stop(&self.home, r);
        }
        let _ = std::fs::remove_dir(&self.home);
    }
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

const READY: Duration = Duration::from_secs(60);
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

/// Whether a product can be started here.
pub fn installed(product: &str) -> bool {
    program(product, None).is_ok()
}

/// Starts the processes of one target on empty folders and waits until they answer; all or none.
pub fn start(home: &Path, up: &Up, life: Life) -> Result<Vec<Running>> {
    if !(1..=64).contains(&up.shards) {
        return Err(Fault::Usage("--shards is 1 to 64".into()));
    }
    if up.port.is_some() && up.shards > 1 {
        return Err(Fault::Usage("--port is for one process".into()));
    }
    let mut room = Room::open(home, up, life)?;
    let done = if up.product == "mongod" && up.shards > 1 {
        cluster::start(&mut room, up)
    } else {
        let one = Up {
            means: Means {
                memory: up.means.memory / up.shards as u64,
                ..up.means.clone()
            },
            ..up.clone()
        };
        (0..up.shards).try_for_each(|_| {
            let port = match up.port {
                Some(p) => p,
                None => free_port()?,
            };
            room.start(&up.product, &mut |dir| recipe::recipe(dir, &one, port))
        })
    };
    match done {
        Ok(()) => Ok(room.running),
        Err(fault) => {
            room.running.iter().rev().for_each(|r| stop(home, r));
            Err(fault)
        }
    }
}

/// Where the processes of one target are started.
struct Room<'a> {
    home: &'a Path,
    life: Life,
    group: Option<MemoryGroup>,
    running: Vec<Running>,
}

impl<'a> Room<'a> {
    fn open(home: &'a Path, up: &Up, life: Life) -> Result<Room<'a>> {
        // What cannot be started leaves no folders behind.
        program(&up.product, up.means.binary.as_deref())?;
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        builder.create(home).map_err(local(home.display()))?;
        let group = match up.means.limit {
            Some(bytes) => Some(MemoryGroup::new(bytes)?),
            None => None,
        };
        Ok(Room {
            home,
            life,
            group,
            running: Vec::new(),
        })
    }

    fn start(
        &mut self,
        product: &str,
        recipe: &mut dyn FnMut(&Path) -> Result<Recipe>,
    ) -> Result<()> {
        let taken: Vec<String> = running(self.home).into_iter().map(|r| r.name).collect();
        let name = (1..)
            .map(|i| format!("{product}-{i}"))
            .find(|n| !taken.contains(n) && !self.home.join(n).exists())
            .unwrap_or_default();
        let dir = self.home.join(&name);
        std::fs::create_dir(&dir).map_err(local(dir.display()))?;
        let started = recipe(&dir).and_then(|r| self.launch(&name, product, &dir, &r));
        match started {
            Ok(running) => {
                self.running.push(running);
                Ok(())
            }
            Err(fault) => {
                let _ = std::fs::remove_dir_all(&dir);
                Err(fault)
            }
        }
    }

    fn launch(&self, name: &str, product: &str, dir: &Path, recipe: &Recipe) -> Result<Running> {
        let servant = servant().filter(|_| product == "postgres");
        if let Some((user, group)) = servant {
            chown(dir, Some(user), Some(group)).map_err(local(dir.display()))?;
        }
        let command: Vec<String> = std::iter::once(recipe.binary.display().to_string())
            .chain(recipe.words.iter().cloned())
            .collect();
        let log_path = dir.join("server.log");
        for before in &recipe.before {
            run(before, servant, &log_path)?;
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
        if let Some(group) = &self.group {
            group.admit(&mut c)?;
        }
        // A session of its own: it outlives the terminal that it was started from.
        // SAFETY: setsid is async-signal-safe and touches no memory.
        unsafe {
            c.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        if self.life == Life::OfRun {
            end_with_us(&mut c);
        }
        let mut child = c
            .spawn()
            .map_err(local(format!("starting {}", command[0])))?;
        let running = Running {
            name: name.to_string(),
            url: recipe.url.clone(),
            pid: child.id(),
            dir: dir.to_path_buf(),
            command,
            router: product == "mongos",
            group: self.group.as_ref().map(|g| g.dir.clone()),
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
        let file = self.home.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&running).unwrap_or_default();
        std::fs::write(&file, text).map_err(|e| {
            let _ = child.kill();
            let _ = child.wait();
            Fault::Local(format!("{}: {e}", file.display()))
        })?;
        Ok(running)
    }
}

fn run(command: &[String], servant: Option<(u32, u32)>, log: &Path) -> Result<()> {
    let mut c = Command::new(&command[0]);
    c.args(&command[1..]).stdin(Stdio::null());
    if let Some((user, group)) = servant {
        c.uid(user).gid(group).current_dir("/");
    }
    end_with_us(&mut c);
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
