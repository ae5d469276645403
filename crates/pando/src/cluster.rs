//! `pando cluster up|status|down`: a deployment of several processes on this machine, by one command.
//!
//! ```text
//! DIR/cluster.json   what was made: sets, their members, ports, processes
//!     rs0-0/         a member's data, and rs0-0.log beside it
//! ```
//!
//! Invariant: a process is ended only if it is the one that was recorded: its number and the moment
//! of its start. The kernel gives a number again, but not both.

use crate::client::{ServerAddress, refusal};
use bson::{Doc, DocBuf, Writer, doc};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
Runs a deployment of several servers on this machine.

Usage: pando cluster up --replicas N [--dir DIR] [--port PORT] [-- options of each server]
       pando cluster status [--dir DIR]
       pando cluster down [--dir DIR]

  up      starts a replica set of N members (1, 3, 5 or 7) and prints how to connect to it; on a
          directory of an earlier 'up' it starts those members again that do not run
  status  says which members there are, and what each is
  down    ends the processes that 'up' has started, and keeps their data

  --dir DIR     where data, logs and the record of the processes are; pando-cluster if not given
  --port PORT   the first member's; the others have the next ones; 27017 if not given
";

const RECORD: &str = "cluster.json";
const SET: &str = "rs0";
/// How long members may take to start, to elect a primary, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, PartialEq, Eq)]
struct Asked {
    what: String,
    replicas: Option<u16>,
    dir: PathBuf,
    port: Option<u16>,
    server: Vec<String>,
}

pub fn main(args: &[OsString]) -> ExitCode {
    let words: Vec<String> = args
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    if words.iter().any(|w| w == "--help" || w == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let asked = match parse(&words) {
        Ok(asked) => asked,
        Err(says) => {
            eprintln!("pando: {says} (see pando cluster --help)");
            return ExitCode::from(2);
        }
    };
    let done = match asked.what.as_str() {
        "up" => up(&asked),
        "status" => status(&asked.dir),
        _ => down(&asked.dir),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("pando: {says}");
            ExitCode::from(1)
        }
    }
}

fn parse(words: &[String]) -> Result<Asked, String> {
    let (what, rest) = words
        .split_first()
        .ok_or("cluster wants up, status or down")?;
    if !matches!(what.as_str(), "up" | "status" | "down") {
        return Err(format!("cluster knows up, status and down, not '{what}'"));
    }
    let mut asked = Asked {
        what: what.clone(),
        replicas: None,
        dir: "pando-cluster".into(),
        port: None,
        server: Vec::new(),
    };
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            asked.server = rest.cloned().collect();
            break;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word.as_str(), rest.next().cloned()),
        };
        let value = value.ok_or_else(|| format!("{name} wants a value"))?;
        let number = || {
            value
                .parse()
                .map_err(|_| format!("{name} wants a number, not '{value}'"))
        };
        match name {
            "--dir" => asked.dir = value.into(),
            "--replicas" if what == "up" => asked.replicas = Some(number()?),
            "--port" if what == "up" => asked.port = Some(number()?),
            _ => return Err(format!("cluster {what} has no option '{name}'")),
        }
    }
    if asked.replicas.is_some_and(|n| !matches!(n, 1 | 3 | 5 | 7)) {
        return Err("--replicas is 1, 3, 5 or 7: an even number survives no more failures".into());
    }
    Ok(asked)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MemberProcess {
    name: String,
    port: u16,
    pid: u32,
    /// The moment of its start, as the kernel counts it.
    started: u64,
}

impl MemberProcess {
    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    fn runs(&self) -> bool {
        self.pid != 0 && start_of(self.pid) == Some(self.started)
    }

    fn ask(&self, db: &str, command: Doc<'_>) -> Result<DocBuf, String> {
        ServerAddress::parse(&format!("mongodb://{}/", self.host()))?.ask(db, command)
    }
}

/// A replica set as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deployment {
    members: Vec<MemberProcess>,
    server: Vec<String>,
}

impl Deployment {
    fn load(dir: &Path) -> Result<Option<Deployment>, String> {
        let path = dir.join(RECORD);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
        };
        let record = serde_json::from_str(&text).ok();
        let loaded = record.and_then(|v| Deployment::from_json(&v));
        loaded
            .map(Some)
            .ok_or_else(|| format!("{} is damaged", path.display()))
    }

    fn from_json(record: &Value) -> Option<Deployment> {
        let set = record.get("sets")?.get(0)?;
        let members = set.get("members")?.as_array()?.iter().map(|m| {
            let number = |field: &str| m.get(field)?.as_u64();
            Some(MemberProcess {
                name: m.get("name")?.as_str()?.into(),
                port: u16::try_from(number("port")?).ok()?,
                pid: u32::try_from(number("pid")?).ok()?,
                started: number("started")?,
            })
        });
        let server = record.get("serverOptions")?.as_array()?.iter();
        Some(Deployment {
            members: members.collect::<Option<_>>()?,
            server: server
                .map(|v| Some(v.as_str()?.into()))
                .collect::<Option<_>>()?,
        })
    }

    fn to_json(&self) -> Value {
        let members = self
            .members
            .iter()
            .map(|m| json!({ "name": m.name, "port": m.port, "pid": m.pid, "started": m.started }));
        let members: Vec<Value> = members.collect();
        json!({ "sets": [{ "name": SET, "members": members }], "serverOptions": self.server })
    }

    fn save(&self, dir: &Path) -> Result<(), String> {
        let (path, draft) = (dir.join(RECORD), dir.join("cluster.json.new"));
        let text = format!("{:#}\n", self.to_json());
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    fn uri(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(MemberProcess::host).collect();
        format!("mongodb://{}/?replicaSet={SET}", hosts.join(","))
    }
}

/// When a process began, in ticks since the machine did; `None` where there is no such process.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, spaces too.
    let after = stat.rsplit_once(')')?.1;
    let mut fields = after.split_ascii_whitespace();
    // A process that has ended and was not waited for is none.
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}

fn up(asked: &Asked) -> Result<String, String> {
    let dir = std::path::absolute(&asked.dir).map_err(|e| e.to_string())?;
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let mut deployment = match (Deployment::load(&dir)?, asked.replicas) {
        (Some(there), n) if n.is_none_or(|n| usize::from(n) == there.members.len()) => there,
        (Some(there), _) => {
            return Err(format!(
                "{} holds a set of {} members: choose another --dir, or rs.add members to it",
                dir.display(),
                there.members.len()
            ));
        }
        (None, Some(n)) => planned(n, asked)?,
        (None, None) => return Err("--replicas says how many members to start".into()),
    };
    for at in 0..deployment.members.len() {
        let Some(member) = deployment.members.get(at).filter(|m| !m.runs()) else {
            continue;
        };
        let started = launch(&dir, member, &deployment.server)?;
        if let Some(member) = deployment.members.get_mut(at) {
            *member = started;
        }
        // Recorded at once: whatever fails next, `down` finds it.
        deployment.save(&dir)?;
    }
    let ready = await_members(&dir, &deployment).and_then(|()| initiate(&deployment));
    ready.map_err(|why| {
        format!(
            "{why}\nEnd what was started: pando cluster down --dir {}",
            dir.display()
        )
    })?;
    Ok(format!(
        "A replica set of {} members is ready.\n\n  connect  {}\n  data     {}\n  status   pando cluster status --dir {}\n  stop     pando cluster down --dir {}",
        deployment.members.len(),
        deployment.uri(),
        dir.display(),
        asked.dir.display(),
        asked.dir.display(),
    ))
}

/// The members of a new set, whose ports nobody has.
fn planned(replicas: u16, asked: &Asked) -> Result<Deployment, String> {
    let first = asked.port.unwrap_or(27017);
    let mut members = Vec::new();
    for n in 0..replicas {
        let port = first
            .checked_add(n)
            .ok_or("there are no ports above 65535")?;
        TcpListener::bind(("127.0.0.1", port))
            .map_err(|e| format!("port {port} cannot be used ({e}): give another --port"))?;
        members.push(MemberProcess {
            name: format!("{SET}-{n}"),
            port,
            pid: 0,
            started: 0,
        });
    }
    Ok(Deployment {
        members,
        server: asked.server.clone(),
    })
}

fn launch(dir: &Path, member: &MemberProcess, options: &[String]) -> Result<MemberProcess, String> {
    let failed = |e: std::io::Error| format!("cannot start {}: {e}", member.name);
    let log = dir.join(format!("{}.log", member.name));
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .args([
            "serve",
            "--replSet",
            SET,
            "--port",
            &member.port.to_string(),
        ])
        .arg("--dbpath")
        .arg(dir.join(&member.name))
        .args(options)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log);
    // SAFETY: setsid may be called between fork and exec. The member outlives the terminal.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let child = command.spawn().map_err(failed)?;
    let pid = child.id();
    let started = start_of(pid).ok_or_else(|| format!("{} ended at once", member.name))?;
    Ok(MemberProcess {
        pid,
        started,
        ..member.clone()
    })
}

fn await_members(dir: &Path, deployment: &Deployment) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    for member in &deployment.members {
        let hello = doc! { "hello": 1 };
        while member.ask("admin", hello.as_doc()).is_err() {
            if !member.runs() || Instant::now() > until {
                let log = dir.join(format!("{}.log", member.name));
                let why = fs::read_to_string(&log).unwrap_or_default();
                let why = why.lines().last().unwrap_or("it says nothing");
                return Err(format!(
                    "{} does not serve: {why} ({})",
                    member.name,
                    log.display()
                ));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// Makes the set, if it is not made, and waits until all members have its data.
fn initiate(deployment: &Deployment) -> Result<(), String> {
    let first = deployment.members.first().ok_or("there is no member")?;
    let status = doc! { "replSetGetStatus": 1 };
    let known = first.ask("admin", status.as_doc())?;
    let code = known.as_doc().get("code").and_then(|v| v.to_i64_exact());
    if code == Some(94) {
        let mut w = Writer::new();
        w.open_doc("replSetInitiate")
            .str("_id", SET)
            .open_array("members");
        for (n, member) in deployment.members.iter().enumerate() {
            w.open_doc("")
                .int("_id", n as i64)
                .str("host", &member.host())
                .close();
        }
        w.close().close();
        let reply = first.ask("admin", w.finish().as_doc())?;
        refusal(reply.as_doc()).map_or(Ok(()), Err)?;
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let states: Vec<i64> = deployment.members.iter().map(state).collect();
        if states.contains(&1) && states.iter().all(|s| matches!(s, 1 | 2)) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!(
                "the members did not get ready in time; their states are {states:?}"
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// MongoDB's number of a member's state; 8 for one that is not reached.
fn state(member: &MemberProcess) -> i64 {
    let status = doc! { "replSetGetStatus": 1 };
    let reply = member.ask("admin", status.as_doc());
    let number = |reply: DocBuf| reply.as_doc().get("myState")?.to_i64_exact();
    reply.ok().and_then(number).unwrap_or(8)
}

fn recorded(dir: &Path) -> Result<Deployment, String> {
    Deployment::load(dir)?.ok_or_else(|| {
        format!(
            "{} holds no cluster: pando cluster up makes one",
            dir.display()
        )
    })
}

fn status(dir: &Path) -> Result<String, String> {
    let deployment = recorded(dir)?;
    let mut said = format!("{}\n", deployment.uri());
    for member in &deployment.members {
        let is = match (member.runs(), state(member)) {
            (false, _) => "does not run",
            (true, 1) => "primary",
            (true, 2) => "secondary",
            (true, 3 | 5) => "copies the data",
            (true, 8) => "does not answer",
            _ => "starts",
        };
        said.push_str(&format!(
            "\n  {}  {}  pid {}  {is}",
            member.name,
            member.host(),
            member.pid
        ));
    }
    Ok(said)
}

fn down(dir: &Path) -> Result<String, String> {
    let deployment = recorded(dir)?;
    let running: Vec<&MemberProcess> = deployment.members.iter().filter(|m| m.runs()).collect();
    for member in &running {
        // SAFETY: a signal to a process that is the recorded one.
        unsafe { libc::kill(member.pid.cast_signed(), libc::SIGTERM) };
    }
    let until = Instant::now() + PATIENCE;
    while running.iter().any(|m| m.runs()) {
        if Instant::now() > until {
            let left: Vec<&str> = running
                .iter()
                .filter(|m| m.runs())
                .map(|m| &*m.name)
                .collect();
            return Err(format!("{} did not end yet", left.join(", ")));
        }
        std::thread::sleep(LOOK);
    }
    Ok(format!(
        "{} of {} members ran and were ended. Their data stays in {}.",
        running.len(),
        deployment.members.len(),
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Result<Asked, String> {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn what_may_be_asked() {
        let up = asked("up --replicas 3 --dir d --port=5 -- --cache 64MB").unwrap();
        assert_eq!(
            (up.replicas, up.port, up.dir),
            (Some(3), Some(5), "d".into())
        );
        assert_eq!(up.server, ["--cache", "64MB"]);
        assert_eq!(asked("down").unwrap().dir, Path::new("pando-cluster"));
        for (words, said) in [
            ("", "not ''"),
            ("sideways", "sideways"),
            ("up --replicas 2", "even number"),
            ("up --replicas x", "number"),
            ("up --dir", "value"),
            ("down --replicas 3", "no option"),
        ] {
            let says = asked(words).unwrap_err();
            assert!(says.contains(said), "{words}: {says}");
        }
    }

    #[test]
    fn a_record_comes_back_and_another_process_of_the_number_is_not_ours() {
        let pid = std::process::id();
        let own = MemberProcess {
            name: "rs0-0".into(),
            port: 1,
            pid,
            started: start_of(pid).unwrap(),
        };
        assert!(own.runs());
        let other = MemberProcess {
            started: own.started + 1,
            ..own.clone()
        };
        assert!(!other.runs());
        let deployment = Deployment {
            members: vec![own, other],
            server: vec!["--quiet".into()],
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Deployment::load(dir.path()), Ok(None));
        deployment.save(dir.path()).unwrap();
        assert_eq!(Deployment::load(dir.path()), Ok(Some(deployment)));
    }
}
