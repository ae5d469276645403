//! The two servers of a benchmark: the one under measurement and the null server, each on its core.

use super::Args;
use crate::connection::MongoAddress;
use crate::fault::{Fault, Result, local};
use crate::null::{Form, Recorded, Replies, start_in_process, write_recorded};
use crate::process::{CorePlacement, Launched, bind_child, free_port};
use crate::report::TargetInfo;
use crate::scratch::Scratch;
use crate::targets::local::own_server;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const READY_PATIENCE: Duration = Duration::from_secs(60);
/// Of servers started here. Several times the data, yet full soon: while a cache fills up, the system clears a page for each block,
/// which on a virtual machine can be a quarter of an insert and says nothing of the server that has run for an hour.
const CACHE: &str = "1GB";
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Where servers are started, and how.
pub struct ServerSetup {
    pub placement: CorePlacement,
    scratch: Scratch,
    /// The server that runs already.
    pub given: Option<MongoAddress>,
    pub launch: Vec<String>,
    form: Form,
    in_process_null: bool,
    servers: AtomicU32,
}

/// The server under measurement.
pub struct Server {
    pub target: MongoAddress,
    pub pid: Option<u32>,
    launched: Option<Launched>,
    /// From its start to its first answer.
    pub ready: Duration,
    core: Option<usize>,
}

impl ServerSetup {
    pub fn new(args: &Args, placement: CorePlacement) -> Result<ServerSetup> {
        let form = if args.event_loop {
            Form::EventLoop
        } else {
            Form::Threads
        };
        let (url, launch) = (args.url.as_deref(), args.launch.as_deref());
        let mut room = ServerSetup::open(url, launch, args.dir.as_deref(), placement, form)?;
        room.in_process_null = args.in_process_null;
        Ok(room)
    }

    /// `url`: a server that runs already; else `launch` starts one, by default that of the `pando` beside this program.
    pub fn open(
        url: Option<&str>,
        launch: Option<&str>,
        dir: Option<&Path>,
        placement: CorePlacement,
        form: Form,
    ) -> Result<ServerSetup> {
        let given = url.map(MongoAddress::parse).transpose()?;
        let launch = match launch {
            Some(line) => line.split_whitespace().map(String::from).collect(),
            None if given.is_some() => Vec::new(),
            None => {
                let own = own_server()?;
                let own = own.to_string_lossy().into_owned();
                let words = [
                    "serve", "--dbpath", "{dbpath}", "--port", "{port}", "--cache", CACHE,
                ];
                std::iter::once(own)
                    .chain(words.map(String::from))
                    .collect()
            }
        };
        Ok(ServerSetup {
            placement,
            scratch: Scratch::new("servers", dir)?,
            given,
            launch,
            form,
            in_process_null: false,
            servers: AtomicU32::new(0),
        })
    }

    /// Leaves the servers' data and logs where they are, for a look into a failure.
    pub fn keep(&self) {
        self.scratch.keep();
        eprintln!(
            "data and logs of the servers are kept in {}",
            self.scratch.dir.display()
        );
    }

    /// The server given, or a fresh one on the server's core.
    pub fn server(&self) -> Result<Server> {
        if let Some(target) = &self.given {
            let mut connection = target.connect()?;
            return Ok(Server {
                pid: connection.server_pid(),
                target: target.clone(),
                launched: None,
                ready: Duration::ZERO,
                core: None,
            });
        }
        let cores: Vec<usize> = self.placement.server.into_iter().collect();
        self.start(&self.fresh_dbpath()?, &cores)
    }

    /// An empty folder for a server's data.
    pub fn fresh_dbpath(&self) -> Result<PathBuf> {
        let n = self.servers.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.dir.join(format!("db{n}"));
        std::fs::create_dir_all(&path).map_err(local(path.display()))?;
        Ok(path)
    }

    /// Starts a server on data that may be there already, and waits until it answers.
    pub fn start(&self, dbpath: &Path, cores: &[usize]) -> Result<Server> {
        let port = free_port()?;
        let command: Vec<String> = self
            .launch
            .iter()
            .map(|word| {
                word.replace("{dbpath}", &dbpath.to_string_lossy())
                    .replace("{port}", &port.to_string())
            })
            .collect();
        let log = dbpath.with_extension("log");
        let mut launched = Launched::start(&command, cores, &log)?;
        let target = MongoAddress::local(port);
        let deadline = launched.started + READY_PATIENCE;
        loop {
            if target.connect().is_ok() {
                break;
            }
            if let Some(status) = launched.ended() {
                return Err(Fault::Local(format!(
                    "{} ended at once ({status}): {}",
                    command.join(" "),
                    last_lines(&log)
                )));
            }
            if Instant::now() > deadline {
                return Err(Fault::Local(format!(
                    "{} did not answer on port {port}: {}",
                    command.join(" "),
                    last_lines(&log)
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Server {
            ready: launched.started.elapsed(),
            pid: Some(launched.pid()),
            target,
            launched: Some(launched),
            core: cores.first().copied().filter(|_| cores.len() == 1),
        })
    }

    /// A null server that sends the recorded replies.
    pub fn null(&self, recorded: &Recorded) -> Result<NullProcess> {
        if self.in_process_null {
            return NullProcess::in_process(
                Replies::new(std::slice::from_ref(recorded)),
                self.form,
            );
        }
        let file = self
            .scratch
            .dir
            .join(format!("{}.replies", recorded.operation));
        write_recorded(&file, std::slice::from_ref(recorded))?;
        NullProcess::start(Some(&file), self.form, &self.placement)
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

impl Server {
    pub fn info(&self) -> Result<TargetInfo> {
        let mut info = TargetInfo::of(&self.target, &mut self.target.connect()?);
        info.pid = self.pid;
        info.core = self.core;
        if let Some(l) = &self.launched {
            info.command.clone_from(&l.command);
        }
        Ok(info)
    }

    /// How it ended, when it did so by itself.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.launched.as_mut().and_then(Launched::ended)
    }

    pub fn stop(&mut self) {
        if let Some(l) = &mut self.launched {
            l.stop(STOP_PATIENCE);
        }
    }

    pub fn kill(&mut self) {
        if let Some(l) = &mut self.launched {
            l.kill();
        }
    }
}

/// A null server on the server's core.
pub struct NullProcess {
    child: Option<Child>,
    pub port: u16,
}

impl NullProcess {
    /// Starts `<this program> lab null`.
    pub fn start(
        replies: Option<&Path>,
        form: Form,
        placement: &CorePlacement,
    ) -> Result<NullProcess> {
        let mut more = Vec::new();
        if let Some(file) = replies {
            more.extend(["--replies".to_string(), file.display().to_string()]);
        }
        NullProcess::spawn(&more, form, placement)
    }

    /// One that says that it has so many records, and does so many percent of its work in vain.
    pub fn with_records(
        records: u64,
        handicap: f64,
        placement: &CorePlacement,
    ) -> Result<NullProcess> {
        let more = [
            "--records",
            &records.to_string(),
            "--handicap",
            &handicap.to_string(),
        ];
        NullProcess::spawn(&more.map(String::from), Form::Threads, placement)
    }

    fn spawn(more: &[String], form: Form, placement: &CorePlacement) -> Result<NullProcess> {
        let own = std::env::current_exe().map_err(local("this program's own path"))?;
        let mut command = Command::new(own);
        command.args(["null", "--port", "0"]);
        command.args(more);
        if form == Form::EventLoop {
            command.arg("--event-loop");
        }
        // Ctrl-C on the terminal is for the laboratory alone.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let cores: Vec<usize> = placement.server.into_iter().collect();
        bind_child(&mut command, &cores);
        let mut child = command.spawn().map_err(local("starting the null server"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let port = line
            .trim()
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        match port {
            Some(port) => Ok(NullProcess {
                child: Some(child),
                port,
            }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Fault::Local("the null server did not start".into()))
            }
        }
    }

    fn in_process(replies: Replies, form: Form) -> Result<NullProcess> {
        Ok(NullProcess {
            child: None,
            port: start_in_process(replies, form)?.port(),
        })
    }

    /// Its process, unless it runs inside this one.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for NullProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
