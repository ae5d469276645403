//! `pando cluster up|status|add-shard|…`: a deployment of several processes on this machine, by one command.
//!
//! ```text
//! DIR/cluster.json   what was made: sets, their members, ports, processes
//!     cluster.lock   held by a command that changes something
//!     rs0-0/         a member's data, and rs0-0.log beside it
//! ```
//! A sharded cluster is a configuration set, `config`, shards `s0`, `s1`, …, and a router.
//!
//! Invariant: each command may be killed at any moment. What it is about to do is recorded before, and
//! each step finds out whether it was done, so the same command, or `up`, goes on with it.

mod changes;
mod deployment;
mod processes;
mod ready;
mod restored;
mod shares;

use crate::peers::quoted;
use crate::progress::ProgressLine;
use crate::tool_words;
use deployment::{Deployment, MemberProcess, Role, SET, Stage};
use processes::{DeploymentLock, launch};
use shares::{options_of, shared_cores};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Runs a deployment of several servers on this machine.

Usage: pando cluster up --replicas N [--shards N] [--auth] [--dir DIR] [--port PORT] [-- options of each server]
       pando cluster up --from ARCHIVE [--until MOMENT] [--key-file FILE] [--replicas N] [...]
       pando cluster status [--dir DIR]
       pando cluster add-shard [--dir DIR]
       pando cluster remove-shard SHARD [--dir DIR]
       pando cluster add-member [SET] [--dir DIR]
       pando cluster down [--dir DIR]

  up            starts a replica set of N members (1, 3, 5 or 7), or with --shards a sharded cluster whose
                sets have N members (1 if not given), and prints how to connect to it; on a directory of an
                earlier 'up' it starts those members again that do not run
  status        says which members there are, and what each is
  add-shard     starts one more shard, of as many members as the others have; the balancer fills it
  remove-shard  moves all data of a shard to the others, takes it out of the cluster, ends its servers
  add-member    starts one more member of a set, which copies its data; SET as 's0' or 'config'
  down          ends the processes that 'up' has started, and keeps their data

Each of these can be killed at any moment: the same command goes on where it was.

Servers of a sharded cluster share the cores: each gets its part of them as event loops, unless the
options of servers say --event-loops. All servers share half of the memory as caches, unless they say
--cache. With --metrics PORT each serves its figures on a port of its own: as far behind PORT as its
own port is behind the first one.

  --from ARCHIVE  makes it of the last backup in ARCHIVE before MOMENT, and the log behind it, as pando
                  restore does: the sets that it had, at ports of this machine, with N members each
  --auth        asks clients to log in: the servers share a key, DIR/key, that is made here
  --dir DIR     where data, logs and the record of the processes are; pando-cluster if not given
  --port PORT   the router's, or the first member's; the others have the next ones; 27017 if not given
";

/// How long members may take to start, to elect a primary, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How long a member may take to say what it is.
const ANSWER: Duration = Duration::from_secs(3);
const KEY_BYTES: usize = 64;
const COMMANDS: [&str; 6] = [
    "up",
    "status",
    "add-shard",
    "remove-shard",
    "add-member",
    "down",
];

#[derive(Debug, PartialEq, Eq)]
struct ClusterArguments {
    what: String,
    /// The shard or the set that it is about.
    about: Option<String>,
    replicas: Option<u16>,
    shards: Option<u16>,
    auth: bool,
    dir: PathBuf,
    port: Option<u16>,
    /// The archive of backups that it is made of, as of a moment, and the archive's key.
    from: Option<String>,
    until: Option<String>,
    key_file: Option<PathBuf>,
    server: Vec<String>,
}

impl ClusterArguments {
    /// Whether it says what there shall be.
    fn says_what(&self) -> bool {
        self.replicas.is_some() || self.shards.is_some() || self.from.is_some()
    }
}

pub fn main(args: &[OsString]) -> ExitCode {
    let words = tool_words::texts(args);
    let help = tool_words::ask_help(&words).then_some(HELP);
    let arguments = match tool_words::parsed("cluster", help, || parse(&words)) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.what.as_str() {
        "up" => up(&arguments),
        "status" => status(&arguments.dir),
        _ => change(&arguments),
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

/// What changes a deployment that is there.
fn change(arguments: &ClusterArguments) -> Result<String, String> {
    let dir = std::path::absolute(&arguments.dir).map_err(|e| e.to_string())?;
    // Before anything is written there.
    recorded(&dir)?;
    match (arguments.what.as_str(), arguments.about.as_deref()) {
        ("add-shard", _) => changes::add_shard(&dir),
        ("remove-shard", shard) => {
            let shard = shard.ok_or("remove-shard wants the name of a shard, as s1")?;
            changes::remove_shard(&dir, shard)
        }
        ("add-member", set) => changes::add_member(&dir, set),
        _ => down(&dir),
    }
}

fn parse(words: &[String]) -> Result<ClusterArguments, String> {
    let known = COMMANDS.join(", ");
    let (what, rest) = words
        .split_first()
        .ok_or_else(|| format!("cluster wants one of {known}"))?;
    if !COMMANDS.contains(&what.as_str()) {
        return Err(format!("cluster knows {known}, not '{what}'"));
    }
    let mut arguments = ClusterArguments {
        what: what.clone(),
        about: None,
        replicas: None,
        shards: None,
        auth: false,
        dir: "pando-cluster".into(),
        port: None,
        from: None,
        until: None,
        key_file: None,
        server: Vec::new(),
    };
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            arguments.server = rest.cloned().collect();
            break;
        }
        if word == "--auth" && what == "up" {
            arguments.auth = true;
            continue;
        }
        let names_one = matches!(what.as_str(), "remove-shard" | "add-member");
        if names_one && arguments.about.is_none() && !word.starts_with('-') {
            arguments.about = Some(word.clone());
            continue;
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
            "--dir" => arguments.dir = value.into(),
            "--replicas" if what == "up" => arguments.replicas = Some(number()?),
            "--shards" if what == "up" => arguments.shards = Some(number()?),
            "--port" if what == "up" => arguments.port = Some(number()?),
            "--from" if what == "up" => arguments.from = Some(value),
            "--until" if what == "up" => arguments.until = Some(value),
            "--key-file" if what == "up" => arguments.key_file = Some(value.into()),
            _ => return Err(format!("cluster {what} has no option '{name}'")),
        }
    }
    checked(arguments)
}

/// The request, if it can be carried out.
fn checked(arguments: ClusterArguments) -> Result<ClusterArguments, String> {
    if arguments.shards.is_some_and(|n| !(1..=100).contains(&n)) {
        return Err("--shards is 1 to 100".into());
    }
    if arguments
        .replicas
        .is_some_and(|n| !matches!(n, 1 | 3 | 5 | 7))
    {
        return Err("--replicas is 1, 3, 5 or 7: an even number survives no more failures".into());
    }
    if arguments.from.is_some() && arguments.shards.is_some() {
        return Err("--from makes as many shards as the backup has: --shards is not for it".into());
    }
    if arguments.from.is_none() && (arguments.until.is_some() || arguments.key_file.is_some()) {
        return Err("--until and --key-file are for --from ARCHIVE".into());
    }
    if arguments.what == "remove-shard" && arguments.about.is_none() {
        return Err("remove-shard wants the name of a shard, as s1".into());
    }
    Ok(arguments)
}

fn up(arguments: &ClusterArguments) -> Result<String, String> {
    let dir = std::path::absolute(&arguments.dir).map_err(|e| e.to_string())?;
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let _claim = DeploymentLock::of(&dir)?;
    let mut deployment = match Deployment::load(&dir)? {
        // Nothing has come of it yet: options that were wrong may be others now.
        Some(there) if arguments.says_what() && there.is_untouched(&dir) => first(&dir, arguments)?,
        Some(there) if arguments.from.is_some() && arguments.from != there.from => {
            return Err(format!(
                "{} holds a deployment that was not made of this archive: choose another --dir",
                dir.display()
            ));
        }
        Some(there) if there.is_as_asked(arguments) => there,
        Some(there) => {
            return Err(format!(
                "{} holds a deployment of {} members in all: choose another --dir, or see add-shard and add-member",
                dir.display(),
                there.members.len()
            ));
        }
        None => first(&dir, arguments)?,
    };
    start(&dir, &mut deployment)?;
    let what = match deployment.router() {
        Some(_) => format!(
            "A cluster of {} shards",
            deployment.addresses(Role::Shard).len()
        ),
        None => format!("A replica set of {} members", deployment.members.len()),
    };
    let first_user = match arguments.auth {
        true => format!(
            "\n\nClients have to log in. Make the first user from this machine:\n  npx mongosh {} --eval 'db.createUser({{user: \"admin\", pwd: passwordPrompt(), roles: [\"root\"]}})'",
            quoted(&deployment.uri("admin"))
        ),
        false => String::new(),
    };
    Ok(format!(
        "{what} is ready.\n\n  connect  {}\n  data     {}\n  status   pando cluster status --dir {}\n  stop     pando cluster down --dir {}{first_user}",
        deployment.uri(""),
        dir.display(),
        arguments.dir.display(),
        arguments.dir.display(),
    ))
}

/// A deployment that is new, recorded.
fn first(dir: &Path, arguments: &ClusterArguments) -> Result<Deployment, String> {
    let mut new = match (&arguments.from, arguments.replicas, arguments.shards) {
        (Some(archive), _, _) => restored::plan(dir, archive, arguments)?,
        (None, None, None) => return Err("--replicas says how many members to start".into()),
        (None, n, shards) => planned(new_sets(n.unwrap_or(1), shards), arguments)?,
    };
    if arguments.auth {
        let key = make_key(dir)?.to_string_lossy().into_owned();
        new.server.extend(["--keyFile".into(), key]);
    }
    // Before a server runs: a kill from here on leaves no unknown server.
    new.save(dir)?;
    Ok(new)
}

/// Starts the members that do not run, and makes of them what they are to be.
fn start(dir: &Path, deployment: &mut Deployment) -> Result<(), String> {
    // Those that an earlier command has told to end.
    deployment.end(dir, |_| false)?;
    restored::settle(dir, deployment)?;
    let config = deployment.addresses(Role::Config).concat();
    let servers = deployment.members.len();
    let progress = ProgressLine::of_steps("starting servers", deployment.members.len() as u64);
    for at in 0..deployment.members.len() {
        progress.set(at as u64);
        let Some(member) = deployment.members.get(at).filter(|m| !m.runs()) else {
            continue;
        };
        let behind = deployment.behind_first(member.port);
        let options = options_of(&deployment.server, servers, behind)?;
        let process = launch(dir, member, &config, &options)?;
        if let Some(member) = deployment.members.get_mut(at) {
            member.is_process(process);
        }
        deployment.save(dir)?;
    }
    deployment.save(dir)?;
    drop(progress);
    let _progress = ProgressLine::of_time("waiting until all are ready");
    ready::make_ready(dir, deployment).map_err(|why| {
        format!(
            "{why}\nEnd what was started: pando cluster down --dir {}",
            dir.display()
        )
    })?;
    for member in &mut deployment.members {
        member.stage = Stage::There;
    }
    deployment.save(dir)
}

/// The options of servers with their files by whole paths: a later `up` may be called elsewhere.
fn absolute_paths(server: &[String]) -> Result<Vec<String>, String> {
    let whole = |path: &str| -> Result<String, String> {
        let path = std::path::absolute(path).map_err(|e| format!("{path}: {e}"))?;
        let text = path.to_str().ok_or("a path is not UTF-8")?;
        Ok(text.into())
    };
    let names_file = |name: &str| {
        name.starts_with("--tls") && name.ends_with("File")
            || matches!(name, "--keyFile" | "--encryptionKeyFile")
    };
    let (mut words, mut is_file) = (Vec::new(), false);
    for word in server {
        words.push(match word.split_once('=') {
            _ if is_file => whole(word)?,
            Some((name, path)) if names_file(name) => format!("{name}={}", whole(path)?),
            _ => word.clone(),
        });
        is_file = names_file(word);
    }
    Ok(words)
}

/// A key that the servers share: its owner alone may read it.
fn make_key(dir: &Path) -> Result<PathBuf, String> {
    let (path, draft) = (dir.join("key"), dir.join("key.new"));
    // Of an `up` that was killed behind it.
    if path.exists() {
        return Ok(path);
    }
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    let mut secret = [0; KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut secret))
        .map_err(failed)?;
    let text: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let mut options = File::options();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&draft).map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(failed)?;
    Ok(path)
}

/// The sets of a deployment that is new, and how many members each has.
fn new_sets(replicas: u16, shards: Option<u16>) -> Vec<(String, Role, u16)> {
    let Some(shards) = shards else {
        return vec![(SET.to_string(), Role::Plain, replicas)];
    };
    let mut sets = vec![
        ("router".to_string(), Role::Router, 1),
        ("config".to_string(), Role::Config, replicas),
    ];
    sets.extend((0..shards).map(|n| (format!("s{n}"), Role::Shard, replicas)));
    sets
}

/// The members of new sets, on free ports.
fn planned(
    sets: Vec<(String, Role, u16)>,
    arguments: &ClusterArguments,
) -> Result<Deployment, String> {
    let mut next = arguments.port.unwrap_or(27017);
    let mut members = Vec::new();
    for (set, role, many) in sets {
        for n in 0..many {
            let port = next;
            next = next
                .checked_add(1)
                .ok_or("there are no ports above 65535")?;
            TcpListener::bind(("127.0.0.1", port))
                .map_err(|e| format!("port {port} cannot be used ({e}): give another --port"))?;
            members.push(MemberProcess::planned(&set, role, usize::from(n), port));
        }
    }
    let shards = members.iter().filter(|m| m.role == Role::Shard);
    let shards = shards.filter(|m| m.name.ends_with("-0")).count();
    let shards = u16::try_from(shards).ok().filter(|n| *n > 0);
    let mut server = absolute_paths(&arguments.server)?;
    server.extend(shared_cores(shards, &arguments.server));
    Ok(Deployment {
        members,
        server,
        arguments: (arguments.replicas, arguments.shards),
        shards_made: shards.unwrap_or(0),
        from: arguments.from.clone(),
        unsettled: Vec::new(),
    })
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
    let access = deployment.access()?;
    let mut said = format!("{}\n", deployment.uri(""));
    // All at once: several may not answer.
    let access = &access;
    let states = std::thread::scope(|s| {
        let ask = |member| s.spawn(move || ready::shown_state(member, access));
        let arguments: Vec<_> = deployment.members.iter().map(ask).collect();
        let said = arguments.into_iter().map(|one| one.join());
        said.map(|is| is.unwrap_or("does not answer"))
            .collect::<Vec<_>>()
    });
    for (member, is) in deployment.members.iter().zip(states) {
        let stage = match member.stage {
            _ if member.leaves => ", remove-shard goes on with it",
            Stage::There => "",
            Stage::NewShard => ", add-shard goes on with it",
            Stage::NewMember => ", add-member goes on with it",
        };
        said.push_str(&format!(
            "\n  {}  {}  pid {}  {is}{stage}",
            member.name,
            member.host(),
            member.pid
        ));
    }
    Ok(said)
}

fn down(dir: &Path) -> Result<String, String> {
    let _claim = DeploymentLock::of(dir)?;
    let mut deployment = recorded(dir)?;
    let ended = deployment.end(dir, |_| true)?;
    Ok(format!(
        "{ended} of {} members ran and were ended. Their data stays in {}.",
        deployment.members.len(),
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &str) -> Result<ClusterArguments, String> {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn what_may_be_asked() {
        let up = arguments("up --replicas 3 --dir d --port=5 -- --cache 64MB").unwrap();
        assert_eq!(
            (up.replicas, up.port, up.dir),
            (Some(3), Some(5), "d".into())
        );
        assert_eq!(up.server, ["--cache", "64MB"]);
        assert!(!up.auth && arguments("up --shards 2 --auth").unwrap().auth);
        assert_eq!(arguments("down").unwrap().dir, Path::new("pando-cluster"));
        let words = ["--tlsCAFile", "/a/ca.pem", "--keyFile=/k", "--quiet"].map(String::from);
        assert_eq!(absolute_paths(&words).unwrap(), words);
        let relative = absolute_paths(&["--tlsCAFile".into(), "ca.pem".into()]).unwrap();
        assert!(relative[1].starts_with('/') && relative[1].ends_with("/ca.pem"));
        let less = arguments("remove-shard s1 --dir d").unwrap();
        assert_eq!((less.about.as_deref(), less.dir), (Some("s1"), "d".into()));
        assert_eq!(arguments("add-member").unwrap().about, None);
        for (words, said) in [
            ("up --from a --shards 2", "as many shards"),
            ("up --replicas 1 --until x", "for --from"),
            ("remove-shard --dir d", "name of a shard"),
            ("add-member s0 s1", "value"),
            ("", "not ''"),
            ("sideways", "sideways"),
            ("up --replicas 2", "even number"),
            ("up --replicas x", "number"),
            ("up --dir", "value"),
            ("down --replicas 3", "no option"),
            ("down --auth x", "no option"),
        ] {
            let says = arguments(words).unwrap_err();
            assert!(says.contains(said), "{words}: {says}");
        }
    }
}
