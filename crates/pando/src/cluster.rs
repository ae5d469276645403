//! `pando cluster up|status|add-shard|down`: a deployment of several processes on this machine, by one command.
//!
//! ```text
//! DIR/cluster.json   what was made: sets, their members, ports, processes
//!     rs0-0/         a member's data, and rs0-0.log beside it
//! ```
//! A sharded cluster is a configuration set, `config`, shards `s0`, `s1`, …, and a router.
//!
//! Invariant: a process is ended only if it is the one that was recorded: its number and the moment
//! of its start. The kernel gives a number again, but not both.

mod deployment;

use crate::client::refusal;
use crate::memory;
use crate::peers::quoted;
use crate::progress::Progress;
use bson::{Writer, doc};
use deployment::{Deployment, MemberProcess, Role, SET, start_of};
use replication::state_file;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
Runs a deployment of several servers on this machine.

Usage: pando cluster up --replicas N [--shards N] [--auth] [--dir DIR] [--port PORT] [-- options of each server]
       pando cluster status [--dir DIR]
       pando cluster add-shard [--dir DIR]
       pando cluster down [--dir DIR]

  up      starts a replica set of N members (1, 3, 5 or 7), or with --shards a sharded cluster whose
          sets have N members (1 if not given), and prints how to connect to it; on a directory of an
          earlier 'up' it starts those members again that do not run
  status  says which members there are, and what each is
  add-shard  starts one more shard, of as many members as the others have; the balancer fills it
  down    ends the processes that 'up' has started, and keeps their data

Servers of a sharded cluster share the cores: each gets its part of them as event loops, unless the
options of servers say --event-loops. All servers share half of the memory as caches, unless they say
--cache. With --metrics PORT each serves its figures on a port of its own: PORT and those after it, in
the order of 'status'.

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
/// No server works well with less.
const LEAST_CACHE_MB: u64 = 16;

#[derive(Debug, PartialEq, Eq)]
struct Asked {
    what: String,
    replicas: Option<u16>,
    shards: Option<u16>,
    auth: bool,
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
        "add-shard" => add_shard(&asked.dir),
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
        .ok_or("cluster wants up, status, add-shard or down")?;
    if !matches!(what.as_str(), "up" | "status" | "add-shard" | "down") {
        return Err(format!(
            "cluster knows up, status, add-shard and down, not '{what}'"
        ));
    }
    let mut asked = Asked {
        what: what.clone(),
        replicas: None,
        shards: None,
        auth: false,
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
        if word == "--auth" && what == "up" {
            asked.auth = true;
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
            "--dir" => asked.dir = value.into(),
            "--replicas" if what == "up" => asked.replicas = Some(number()?),
            "--shards" if what == "up" => asked.shards = Some(number()?),
            "--port" if what == "up" => asked.port = Some(number()?),
            _ => return Err(format!("cluster {what} has no option '{name}'")),
        }
    }
    if asked.shards.is_some_and(|n| !(1..=100).contains(&n)) {
        return Err("--shards is 1 to 100".into());
    }
    if asked.replicas.is_some_and(|n| !matches!(n, 1 | 3 | 5 | 7)) {
        return Err("--replicas is 1, 3, 5 or 7: an even number survives no more failures".into());
    }
    Ok(asked)
}

fn up(asked: &Asked) -> Result<String, String> {
    let dir = std::path::absolute(&asked.dir).map_err(|e| e.to_string())?;
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let mut deployment = match Deployment::load(&dir)? {
        Some(there) if there.is_as_asked(asked) => there,
        Some(there) => {
            return Err(format!(
                "{} holds a deployment of {} members in all: choose another --dir, or rs.add members to it",
                dir.display(),
                there.members.len()
            ));
        }
        None => match (asked.replicas, asked.shards) {
            (None, None) => return Err("--replicas says how many members to start".into()),
            (n, shards) => {
                let mut new = planned(n.unwrap_or(1), shards, asked)?;
                new.server.extend(shared_cores(shards, &asked.server));
                new.server
                    .extend(shared_memory(new.members.len(), &asked.server));
                if asked.auth {
                    let key = make_key(&dir)?.to_string_lossy().into_owned();
                    new.server.extend(["--keyFile".into(), key]);
                }
                new
            }
        },
    };
    start(&dir, &mut deployment)?;
    let what = match deployment.router() {
        Some(_) => format!(
            "A cluster of {} shards",
            deployment.addresses(Role::Shard).len()
        ),
        None => format!("A replica set of {} members", deployment.members.len()),
    };
    let first_user = match asked.auth {
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
        asked.dir.display(),
        asked.dir.display(),
    ))
}

/// Starts the members that do not run, and makes of them what they are to be.
fn start(dir: &Path, deployment: &mut Deployment) -> Result<(), String> {
    let config = deployment.addresses(Role::Config).concat();
    let progress = Progress::of_steps("starting servers", deployment.members.len() as u64);
    for at in 0..deployment.members.len() {
        progress.set(at as u64);
        let Some(member) = deployment.members.get(at).filter(|m| !m.runs()) else {
            continue;
        };
        // One whose start was not recorded, because `up` was killed in between.
        let started = match member.left_running(dir) {
            Some(running) => running,
            None => {
                let options = with_own_metrics(&deployment.server, at)?;
                launch(dir, member, &config, &options)?
            }
        };
        if let Some(member) = deployment.members.get_mut(at) {
            *member = started;
        }
        // Recorded at once: whatever fails next, `down` finds it.
        deployment.save(dir)?;
    }
    drop(progress);
    let _progress = Progress::of_time("waiting until all are ready");
    make_ready(dir, deployment).map_err(|why| {
        format!(
            "{why}\nEnd what was started: pando cluster down --dir {}",
            dir.display()
        )
    })
}

/// Starts one more shard of a sharded cluster.
fn add_shard(dir: &Path) -> Result<String, String> {
    let dir = std::path::absolute(dir).map_err(|e| e.to_string())?;
    let mut deployment = recorded(&dir)?;
    if deployment.router().is_none() {
        return Err(format!(
            "{} holds a replica set: 'up --shards N' makes a cluster that has shards",
            dir.display()
        ));
    }
    let sets = deployment.sets();
    let shards = sets.iter().filter(|s| s[0].role == Role::Shard);
    let numbers = shards
        .clone()
        .filter_map(|s| s[0].set.strip_prefix('s')?.parse().ok());
    let number: u16 = numbers.max().map_or(0, |n: u16| n.saturating_add(1));
    let replicas = shards.map(Vec::len).max().unwrap_or(1);
    let name = format!("s{number}");
    let mut ports = (deployment.members.iter().map(|m| m.port).max())
        .map_or(27017, |last| last.saturating_add(1))..=u16::MAX;
    for n in 0..replicas {
        // Others may have taken those that follow.
        let port = ports
            .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
            .ok_or("no port above those of the others is free")?;
        let new = MemberProcess::planned(&name, Role::Shard, n, port);
        deployment.members.push(new);
    }
    start(&dir, &mut deployment)?;
    Ok(format!(
        "Shard {name} is there. The balancer moves ranges to it: sh.status() at {}",
        deployment.uri("")
    ))
}

/// The option by which the router and the primaries of shards share the machine's cores: with more
/// event loops than there are cores each turn of one serves fewer requests, and costs as much.
fn shared_cores(shards: Option<u16>, given: &[String]) -> Vec<String> {
    let names = |word: &String| word.split('=').next() == Some("--event-loops");
    let Some(shards) = shards.filter(|_| !given.iter().any(names)) else {
        return Vec::new();
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let loops = (cores / (usize::from(shards) + 1)).max(1);
    vec!["--event-loops".into(), loops.to_string()]
}

/// The option by which all servers share half of the memory. One alone takes what it takes by itself.
fn shared_memory(servers: usize, given: &[String]) -> Vec<String> {
    let names = |word: &String| {
        let name = word.split('=').next();
        matches!(
            name,
            Some("--cache" | "--wiredTigerCacheSizeGB" | "--wiredTigerCacheSizePct")
        )
    };
    if servers < 2 || given.iter().any(names) {
        return Vec::new();
    }
    let memory = memory::available_bytes();
    let part = memory / 2 / servers as u64;
    let cache = part.min(memory::default_cache_bytes(memory));
    vec![
        "--cache".into(),
        format!("{}MB", (cache >> 20).max(LEAST_CACHE_MB)),
    ]
}

/// The options of the server at that place: each has a port of its own for its figures.
fn with_own_metrics(given: &[String], at: usize) -> Result<Vec<String>, String> {
    let mut options = given.to_vec();
    let is_metrics = |word: &String| word == "--metrics" || word.starts_with("--metrics=");
    let Some(found) = options.iter().position(is_metrics) else {
        return Ok(options);
    };
    let own = |text: &str| -> Result<String, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (format!("{host}:"), port),
            None => (String::new(), text),
        };
        let first: u16 = port
            .parse()
            .map_err(|_| format!("--metrics wants a port, not '{text}'"))?;
        let at = u16::try_from(at).ok().and_then(|at| first.checked_add(at));
        let port = at.ok_or("there are no ports above 65535 for --metrics")?;
        Ok(format!("{host}{port}"))
    };
    if let Some(text) = options
        .get(found)
        .and_then(|w| w.strip_prefix("--metrics="))
    {
        let text = own(text)?;
        options[found] = format!("--metrics={text}");
    } else if let Some(text) = options.get(found + 1) {
        let text = own(text)?;
        options[found + 1] = text;
    }
    Ok(options)
}

/// Awaits the members, makes the sets that are not made, and tells the router of its shards.
fn make_ready(dir: &Path, deployment: &Deployment) -> Result<(), String> {
    let (routers, members): (Vec<&MemberProcess>, Vec<&MemberProcess>) = deployment
        .members
        .iter()
        .partition(|m| m.role == Role::Router);
    let key = deployment.key()?;
    await_members(dir, &members)?;
    for set in deployment
        .sets()
        .iter()
        .filter(|s| s[0].role != Role::Router)
    {
        initiate(dir, set, key.as_deref())?;
    }
    await_members(dir, &routers)?;
    for router in routers {
        for shard in deployment.addresses(Role::Shard) {
            let add = doc! { "addShard": shard };
            let reply = router.ask(key.as_deref(), "admin", add.as_doc())?;
            refusal(reply.as_doc()).map_or(Ok(()), Err)?;
        }
    }
    Ok(())
}

/// A key that the servers share: its owner alone may read it.
fn make_key(dir: &Path) -> Result<PathBuf, String> {
    let path = dir.join("key");
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    let mut secret = [0; KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut secret))
        .map_err(failed)?;
    let text: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let mut options = File::options();
    options.create_new(true).write(true).mode(0o600);
    let mut file = options.open(&path).map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    Ok(path)
}

/// The members of new sets, whose ports nobody has.
fn planned(replicas: u16, shards: Option<u16>, asked: &Asked) -> Result<Deployment, String> {
    let mut sets = Vec::new();
    match shards {
        None => sets.push((SET.to_string(), Role::Plain, replicas)),
        Some(shards) => {
            sets.push(("router".to_string(), Role::Router, 1));
            sets.push(("config".to_string(), Role::Config, replicas));
            sets.extend((0..shards).map(|n| (format!("s{n}"), Role::Shard, replicas)));
        }
    }
    let mut next = asked.port.unwrap_or(27017);
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
    Ok(Deployment {
        members,
        server: asked.server.clone(),
    })
}

fn launch(
    dir: &Path,
    member: &MemberProcess,
    config: &str,
    options: &[String],
) -> Result<MemberProcess, String> {
    let failed = |e: std::io::Error| format!("cannot start {}: {e}", member.name);
    let log = dir.join(format!("{}.log", member.name));
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    match member.role {
        Role::Router => command.args(["route", "--configdb", config]),
        Role::Plain => command.args(["serve", "--replSet", &member.set]),
        Role::Config => command.args(["serve", "--configsvr", "--replSet", &member.set]),
        Role::Shard => command.args(["serve", "--shardsvr", "--replSet", &member.set]),
    };
    command
        .args(["--port", &member.port.to_string()])
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

fn await_members(dir: &Path, members: &[&MemberProcess]) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    for member in members {
        let hello = doc! { "hello": 1 };
        while member.ask(None, "admin", hello.as_doc()).is_err() {
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

/// Makes the set, if it is not made, and waits until all members have its data. A set that one member
/// knows is made: who does not know it learns of it from the others.
fn initiate(dir: &Path, members: &[&MemberProcess], key: Option<&str>) -> Result<(), String> {
    let first = members.first().ok_or("there is no member")?;
    let knows = |m: &&MemberProcess| dir.join(&m.name).join(state_file::NAME).exists();
    let is_new = !members.iter().any(knows);
    if is_new {
        let mut w = Writer::new();
        w.open_doc("replSetInitiate")
            .str("_id", &first.set)
            .open_array("members");
        for (n, member) in members.iter().enumerate() {
            w.open_doc("")
                .int("_id", n as i64)
                .str("host", &member.host())
                .close();
        }
        w.close().close();
        let reply = first.ask(key, "admin", w.finish().as_doc())?;
        let code = reply.as_doc().get("code").and_then(|v| v.to_i64_exact());
        // It was made by an `up` that was ended right behind.
        if code != Some(23) {
            refusal(reply.as_doc()).map_or(Ok(()), Err)?;
        }
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let states: Vec<i64> = members.iter().map(|m| state(m, key)).collect();
        // The members of a new set get their votes one after the other. With fewer it would not bear
        // the loss of one.
        let all_vote = || {
            let votes = members.iter().map(|m| votes(m, key)).max();
            !is_new || votes == i64::try_from(members.len()).ok()
        };
        if states.contains(&1) && states.iter().all(|s| matches!(s, 1 | 2)) && all_vote() {
            return Ok(());
        }
        if Instant::now() > until {
            let each = members.iter().zip(&states);
            let each = each.map(|(m, state)| match why_not(m, key) {
                Some(why) => format!("\n  {}: {why}", m.name),
                None => format!("\n  {}: state {state}", m.name),
            });
            return Err(format!(
                "the members did not get ready in time:{}",
                each.collect::<String>()
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// MongoDB's number of a member's state; 8 for one that is not reached.
fn state(member: &MemberProcess, key: Option<&str>) -> i64 {
    status_number(member, key, "myState").unwrap_or(8)
}

/// How many members have a vote, as one of them knows it; 0 for one that is not reached.
fn votes(member: &MemberProcess, key: Option<&str>) -> i64 {
    status_number(member, key, "votingMembersCount").unwrap_or(0)
}

fn status_number(member: &MemberProcess, key: Option<&str>, field: &str) -> Option<i64> {
    let status = doc! { "replSetGetStatus": 1 };
    let reply = member.ask_within(ANSWER, key, status.as_doc()).ok()?;
    reply.as_doc().get(field)?.to_i64_exact()
}

/// What a member is, for people.
fn shown_state(member: &MemberProcess, key: Option<&str>) -> &'static str {
    if !member.runs() {
        return "does not run";
    }
    if member.role == Role::Router {
        let hello = doc! { "hello": 1 };
        return match member.ask_within(ANSWER, key, hello.as_doc()) {
            Ok(_) => "router",
            Err(_) => "does not answer",
        };
    }
    match state(member, key) {
        1 => "primary",
        2 => "secondary",
        3 | 5 => "copies the data",
        8 => "does not answer",
        _ => "starts",
    }
}

/// Why a member has no state in its set.
fn why_not(member: &MemberProcess, key: Option<&str>) -> Option<String> {
    let status = doc! { "replSetGetStatus": 1 };
    match member.ask(key, "admin", status.as_doc()) {
        Ok(reply) => refusal(reply.as_doc()),
        Err(why) => Some(why),
    }
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
    let key = deployment.key()?;
    let mut said = format!("{}\n", deployment.uri(""));
    // All at once: several may not answer.
    let key = key.as_deref();
    let states = std::thread::scope(|s| {
        let ask = |member| s.spawn(move || shown_state(member, key));
        let asked: Vec<_> = deployment.members.iter().map(ask).collect();
        let said = asked.into_iter().map(|one| one.join());
        said.map(|is| is.unwrap_or("does not answer"))
            .collect::<Vec<_>>()
    });
    for (member, is) in deployment.members.iter().zip(states) {
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
        // One that is stopped ends only when it goes on.
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // SAFETY: a signal to a process that is the recorded one.
            unsafe { libc::kill(member.pid.cast_signed(), signal) };
        }
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
    fn servers_of_shards_share_the_cores() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(shared_cores(Some(100), &[]), words("--event-loops 1"));
        assert!(shared_cores(None, &[]).is_empty());
        assert!(shared_cores(Some(2), &words("--event-loops 4")).is_empty());
        assert!(shared_cores(Some(2), &words("--event-loops=4")).is_empty());
    }

    #[test]
    fn servers_share_the_memory() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let megabytes = |servers| {
            let option = shared_memory(servers, &[]);
            assert_eq!(option[0], "--cache");
            option[1].trim_end_matches("MB").parse::<u64>().unwrap()
        };
        let all = memory::available_bytes() >> 20;
        for servers in [3, 13, 40] {
            let sum = megabytes(servers) * servers as u64;
            assert!(
                sum <= all / 2 || megabytes(servers) == LEAST_CACHE_MB,
                "{servers}: {sum}"
            );
        }
        assert!(shared_memory(1, &[]).is_empty());
        assert!(shared_memory(13, &words("--cache 64MB")).is_empty());
        assert!(shared_memory(13, &words("--wiredTigerCacheSizeGB=1")).is_empty());
    }

    #[test]
    fn each_server_has_a_port_for_its_figures() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        for (given, at, own) in [
            ("--quiet --metrics 9216", 2, "--quiet --metrics 9218"),
            ("--metrics=127.0.0.1:9216", 1, "--metrics=127.0.0.1:9217"),
            ("--quiet", 5, "--quiet"),
        ] {
            assert_eq!(with_own_metrics(&words(given), at), Ok(words(own)));
        }
        assert!(with_own_metrics(&words("--metrics 65535"), 1).is_err());
        assert!(with_own_metrics(&words("--metrics x"), 1).is_err());
    }

    #[test]
    fn what_may_be_asked() {
        let up = asked("up --replicas 3 --dir d --port=5 -- --cache 64MB").unwrap();
        assert_eq!(
            (up.replicas, up.port, up.dir),
            (Some(3), Some(5), "d".into())
        );
        assert_eq!(up.server, ["--cache", "64MB"]);
        assert!(!up.auth && asked("up --shards 2 --auth").unwrap().auth);
        assert_eq!(asked("down").unwrap().dir, Path::new("pando-cluster"));
        for (words, said) in [
            ("", "not ''"),
            ("sideways", "sideways"),
            ("up --replicas 2", "even number"),
            ("up --replicas x", "number"),
            ("up --dir", "value"),
            ("down --replicas 3", "no option"),
            ("down --auth x", "no option"),
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
            set: SET.into(),
            role: Role::Plain,
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
