//! The processes of a deployment: started, found again, ended.
//!
//! Invariant: a process is ended only if it is the one that was recorded (its number and the moment of
//! its start: the kernel gives a number again, but not both), or if its command line says that it serves
//! a member's directory.

use super::LOOK;
use super::PATIENCE;
use super::deployment::{MemberProcess, Role};
use own_process::system;
pub(super) use own_process::system::start_of;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const LOCK: &str = "cluster.lock";

/// Held while a command changes a deployment. What it has forked holds it too, until that is a server.
/// So the holder of the lock sees the processes of all earlier holders, also of one that was killed.
pub(super) struct DeploymentLock(#[allow(dead_code, reason = "closing it is its use")] File);

impl DeploymentLock {
    pub(super) fn of(dir: &Path) -> Result<DeploymentLock, String> {
        let path = dir.join(LOCK);
        let cannot = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(&path).map_err(cannot)?;
        match flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let dir = dir.display();
                eprintln!("pando: waits for another pando cluster command that works in {dir}");
                flock(&file, libc::LOCK_EX).map_err(cannot)?;
            }
            Err(e) => return Err(cannot(e)),
        }
        Ok(DeploymentLock(file))
    }
}

fn flock(file: &File, how: i32) -> std::io::Result<()> {
    // SAFETY: flock on a descriptor that `file` keeps open.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A process's number, and when it began.
pub(super) type Process = (u32, u64);

/// The servers whose data directories lie in `dir`, by the names of these.
pub(super) fn serving(dir: &Path) -> HashMap<String, Process> {
    let Ok(dir) = dir.canonicalize() else {
        return HashMap::new();
    };
    let found = system::processes().into_iter().filter_map(|pid| {
        let started = start_of(pid)?;
        let words = system::command_line(pid)?;
        let name = member_of(&words, &dir)?;
        // The number may be another's by now.
        (start_of(pid) == Some(started)).then_some((name, (pid, started)))
    });
    found.collect()
}

/// Whose directory a command line serves.
fn member_of(words: &[u8], dir: &Path) -> Option<String> {
    let mut words = words.split(|b| *b == 0).skip(1);
    words.next().filter(|w| matches!(*w, b"serve" | b"route"))?;
    words.find(|w| *w == b"--dbpath")?;
    let path = Path::new(OsStr::from_bytes(words.next()?));
    let parent = path.parent()?.canonicalize().ok()?;
    let name = path.file_name()?.to_str()?;
    (parent == dir).then(|| name.to_string())
}

pub(super) fn launch(
    dir: &Path,
    member: &MemberProcess,
    config: &str,
    options: &[String],
) -> Result<Process, String> {
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
        Role::Plain if member.set.is_empty() => command.arg("serve"),
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
    Ok((pid, started))
}

/// Ends those that run, and says how many did.
pub(super) fn end(members: &[&MemberProcess]) -> Result<usize, String> {
    let running: Vec<_> = members.iter().filter(|m| m.runs()).collect();
    for member in &running {
        // One that is stopped ends only when it goes on.
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // SAFETY: a signal to a process that is the member's.
            unsafe { libc::kill(member.pid.cast_signed(), signal) };
        }
    }
    let until = Instant::now() + PATIENCE;
    while running.iter().any(|m| m.runs()) {
        if Instant::now() > until {
            let left = running.iter().filter(|m| m.runs());
            let left: Vec<&str> = left.map(|m| &*m.name).collect();
            return Err(format!("{} did not end yet", left.join(", ")));
        }
        std::thread::sleep(LOOK);
    }
    Ok(running.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_names_the_member_that_it_serves() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().canonicalize().unwrap();
        let line = |words: &str| words.replace(' ', "\0").into_bytes();
        let of =
            |words: &str| member_of(&line(&words.replace("DIR", here.to_str().unwrap())), &here);
        assert_eq!(
            of("pando serve --port 1 --dbpath DIR/s0-1 --cache 1MB"),
            Some("s0-1".into())
        );
        assert_eq!(
            of("/x/pando route --dbpath DIR/router-0"),
            Some("router-0".into())
        );
        for other in [
            "pando check --dbpath DIR/s0-1",
            "tail serve DIR/s0-1.log",
            "pando serve --dbpath DIR/deeper/s0-1",
            "pando serve --dbpath",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn who_has_the_claim_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let claim = DeploymentLock::of(dir.path()).unwrap();
        let other = File::open(dir.path().join(LOCK)).unwrap();
        assert!(flock(&other, libc::LOCK_EX | libc::LOCK_NB).is_err());
        drop(claim);
        assert!(flock(&other, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    }
}
