//! Where the processes of one target are started: each in a folder of its own, all of them or none.

use super::recipe::{self, Recipe, program};
use super::{Life, Means, Running, Up, cluster, running, stop};
use crate::cgroup::MemoryGroup;
use crate::fault::{Fault, Result, local};
use crate::process::{end_with_us, free_port};
use crate::targets::{self, TargetDatabase};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(60);

/// The user that a server runs as: PostgreSQL refuses root.
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

/// Starts the processes of one target on empty folders and waits until they answer; all or none.
pub fn start(home: &Path, up: &Up, life: Life) -> Result<Vec<Running>> {
    if !(1..=64).contains(&up.shards) {
        return Err(Fault::Usage("--shards is 1 to 64".into()));
    }
    if up.port.is_some() && up.shards > 1 {
        return Err(Fault::Usage("--port is for one process".into()));
    }
    let mut room = Room::open(home, up, life)?;
    let done = if up.has_router() {
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
pub(super) struct Room<'a> {
    home: &'a Path,
    life: Life,
    group: Option<MemoryGroup>,
    pub(super) running: Vec<Running>,
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

    pub(super) fn start(
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
        // An option that its URL cannot have is told of before anything is made.
        let target = targets::open(&recipe.url)?;
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
        let mut child = self.spawn(&command, dir, servant, &log_path)?;
        let running = Running {
            name: name.to_string(),
            url: recipe.url.clone(),
            pid: child.id(),
            dir: dir.to_path_buf(),
            command,
            router: matches!(product, "mongos" | "pando-router"),
            group: self.group.as_ref().map(|g| g.dir.clone()),
        };
        wait_until_ready(name, &*target, &mut child, &log_path)?;
        let file = self.home.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&running).unwrap_or_default();
        std::fs::write(&file, text).map_err(|e| {
            let _ = child.kill();
            let _ = child.wait();
            Fault::Local(format!("{}: {e}", file.display()))
        })?;
        Ok(running)
    }

    /// The process, in its folder, as its user and in its group.
    fn spawn(
        &self,
        command: &[String],
        dir: &Path,
        servant: Option<(u32, u32)>,
        log_path: &Path,
    ) -> Result<Child> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log_path);
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
        c.spawn().map_err(local(format!("starting {}", command[0])))
    }
}

/// Waits until the server answers; one that ends before, or takes too long, is ended, and its last lines are told.
fn wait_until_ready(
    name: &str,
    target: &dyn TargetDatabase,
    child: &mut Child,
    log: &Path,
) -> Result<()> {
    let deadline = Instant::now() + READY;
    while let Err(fault) = target.info() {
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            return Err(Fault::Local(format!(
                "{name} did not start ({fault}): {}",
                last.join(" / ")
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
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
