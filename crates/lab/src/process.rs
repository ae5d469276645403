//! Processes of this machine: their CPU time, memory and cores, and servers that the laboratory starts itself.

use crate::fault::{Fault, Result, local};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Linux's largest process id, and one.
const MAX_PID: u32 = 1 << 22;

fn read_clock(id: libc::clockid_t) -> Option<Duration> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec for the call to fill.
    if unsafe { libc::clock_gettime(id, &mut t) } != 0 {
        return None;
    }
    Some(Duration::new(
        u64::try_from(t.tv_sec).ok()?,
        u32::try_from(t.tv_nsec).ok()?,
    ))
}

/// CPU time of a process and of those that it started (PostgreSQL has one for each connection), those that ended
/// included. `None` when it is gone.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let mut all = own_cpu_time(pid)?;
    // Our own children are the servers under measurement.
    if pid != std::process::id() {
        for child in children(pid) {
            all += own_cpu_time(child).unwrap_or_default();
        }
        all += ticks(pid, 13).unwrap_or_default();
    }
    Some(all)
}

/// CPU time of several processes together; `None` when there are none or one is gone.
pub fn cpu_time_of(pids: &[u32]) -> Option<Duration> {
    let known = Some(pids).filter(|p| !p.is_empty())?;
    known.iter().map(|p| cpu_time(*p)).sum()
}

/// The processes that a process's first thread started and that live.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_ascii_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

/// The process that started this one.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// CPU time of a process, all its threads and those that ended included, to the nanosecond.
pub fn own_cpu_time(pid: u32) -> Option<Duration> {
    // The clock's id is made of the process's, so that one past the range names another clock.
    if pid > MAX_PID {
        return None;
    }
    let mut id: libc::clockid_t = 0;
    // SAFETY: `id` is a valid place for the clock's id.
    let known = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut id) } == 0;
    if let Some(t) = known.then(|| read_clock(id)).flatten() {
        return Some(t);
    }
    ticks(pid, 11)
}

/// The same from `/proc/<pid>/stat`, to a tick of 10 ms, where the clock of another process cannot be read.
/// `field`: 11 for the process, 13 for its children that ended.
fn ticks(pid: u32, field: usize) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold blanks; utime and stime are the 12th and 13th fields after it, those of children follow.
    let mut fields = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .skip(field);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // SAFETY: no pointers are involved.
    let hertz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    Some(Duration::from_micros(
        (user + system) * 1_000_000 / hertz.max(1),
    ))
}

/// CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// How long the calling thread was ready to run and waited for a core.
pub fn thread_delay() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = told.split_ascii_whitespace().nth(1);
    Duration::from_nanos(waited.and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Has the calling thread let others go on when it wakes up (`SCHED_BATCH`): it runs when its core is free or its turn has come, and
/// otherwise as before. Where the kernel will not, nothing changes.
pub fn give_way() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live during the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &none) };
}

/// Whether the calling thread does that.
#[cfg(test)]
pub fn gives_way() -> bool {
    // SAFETY: no pointers are involved; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_BATCH }
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    let kb: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kb * 1024)
}

/// Memory of a process and of those that it started (PostgreSQL has one for each connection); what several of them share
/// counts once. `None` where one of them cannot be read: a part would pass for the whole.
pub fn memory_bytes(pid: u32) -> Option<u64> {
    let more = children(pid);
    if more.is_empty() {
        return resident_bytes(pid);
    }
    let share = |pid: &u32| {
        let all = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = all.lines().find(|l| l.starts_with("Pss:"))?;
        let kb: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(kb * 1024)
    };
    let children = more.iter().map(|p| match share(p) {
        // One that ended meanwhile has none.
        None if own_cpu_time(*p).is_none() => Some(0),
        held => held,
    });
    Some(share(&pid)? + children.sum::<Option<u64>>()?)
}

/// What processes counted since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    pub page_faults: u64,
    /// How often a thread gave up its core to wait.
    pub sleeps: u64,
    /// Nanoseconds in which threads ran, and in which they could have and waited for a core.
    pub ran_ns: u64,
    pub waited_ns: u64,
}

impl ProcessCounters {
    /// Of processes and those that they started; `None` when there are none or one cannot be read.
    pub fn of(pids: &[u32]) -> Option<ProcessCounters> {
        let known = Some(pids).filter(|p| !p.is_empty())?;
        let mut all = ProcessCounters::default();
        for &pid in known {
            all.add(ProcessCounters::of_one(pid)?);
            children(pid)
                .into_iter()
                .filter_map(ProcessCounters::of_one)
                .for_each(|c| all.add(c));
        }
        Some(all)
    }

    pub fn since(self, before: ProcessCounters) -> ProcessCounters {
        ProcessCounters {
            page_faults: self.page_faults.saturating_sub(before.page_faults),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }

    fn add(&mut self, more: ProcessCounters) {
        self.page_faults += more.page_faults;
        self.sleeps += more.sleeps;
        self.ran_ns += more.ran_ns;
        self.waited_ns += more.waited_ns;
    }

    /// The share of the time in which threads were ready to run that they waited for a core; none where the kernel does
    /// not tell.
    pub fn wait_share(self) -> Option<f64> {
        let ready = self.ran_ns + self.waited_ns;
        (ready > 0).then(|| self.waited_ns as f64 / ready as f64)
    }

    fn of_one(pid: u32) -> Option<ProcessCounters> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // minflt and majflt are the 8th and 10th fields after the name in parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |i: usize| fields.get(i)?.parse::<u64>().ok();
        let mut all = ProcessCounters {
            page_faults: field(7)? + field(9)?,
            ..ProcessCounters::default()
        };
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
            .ok()?
            .flatten()
        {
            let status = std::fs::read_to_string(thread.path().join("status"));
            let status = status.unwrap_or_default();
            let line = status
                .lines()
                .find(|l| l.starts_with("voluntary_ctxt_switches:"));
            let number = line.and_then(|l| l.split_ascii_whitespace().nth(1)?.parse().ok());
            all.sleeps += number.unwrap_or(0);
            let times = std::fs::read_to_string(thread.path().join("schedstat"));
            let times = times.unwrap_or_default();
            let mut times = times.split_ascii_whitespace().map_while(|n| n.parse().ok());
            all.ran_ns += times.next().unwrap_or(0);
            all.waited_ns += times.next().unwrap_or(0);
        }
        Some(all)
    }
}

/// Bytes that a process and those that it started have sent to the disk.
pub fn written_bytes(pid: u32) -> Option<u64> {
    let of = |pid: u32| {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let line = io.lines().find(|l| l.starts_with("write_bytes:"))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some(of(pid)? + children(pid).into_iter().filter_map(of).sum::<u64>())
}

/// The cores that this process may run on.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set, and the kernel writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return vec![0];
        }
        set
    };
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below CPU_SETSIZE.
        .filter(|&c| unsafe { libc::CPU_ISSET(c, &set) })
        .collect()
}

/// The cores of this machine that are on line.
pub fn online_cores() -> usize {
    // SAFETY: no pointers are involved.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// Binds the calling thread, and what it starts from now on, to one core.
pub fn pin(core: usize) -> io::Result<()> {
    // SAFETY: the set is initialised before use and the index is checked by CPU_SET.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Binds the calling thread to all of `cores`.
pub fn spread(cores: &[usize]) -> io::Result<()> {
    // SAFETY: as in `pin`.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &core in cores {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Which cores the server and the client get. With one core alone both share it.
#[derive(Clone, Debug)]
pub struct CorePlacement {
    pub all: Vec<usize>,
    pub server: Option<usize>,
    pub client: Option<usize>,
}

impl CorePlacement {
    /// The first core for the server and the last for the client, unless the user names them.
    pub fn new(server: Option<usize>, client: Option<usize>) -> Result<CorePlacement> {
        let all = allowed_cores();
        for core in [server, client].into_iter().flatten() {
            if !all.contains(&core) {
                return Err(Fault::Usage(format!(
                    "core {core} is not among this process's cores {all:?}"
                )));
            }
        }
        let (first, last) = (all.first().copied(), all.last().copied());
        let apart = first != last;
        Ok(CorePlacement {
            server: server.or(first.filter(|_| apart)),
            client: client.or(last.filter(|_| apart)),
            all,
        })
    }

    /// Puts the calling thread on the client's core.
    pub fn pin_client(&self) -> Result<()> {
        match self.client {
            Some(core) => pin(core).map_err(local(format!("binding the client to core {core}"))),
            None => Ok(()),
        }
    }

    /// One core each, so that neither takes time from the other.
    pub fn apart(&self) -> bool {
        self.server.is_some() && self.client.is_some() && self.server != self.client
    }
}

/// A server that the laboratory started; killed when dropped.
pub struct Launched {
    child: Child,
    pub command: Vec<String>,
    pub started: Instant,
}

impl Launched {
    /// Starts `command` on the cores given, its output appended to `log`.
    pub fn start(command: &[String], cores: &[usize], log: &Path) -> Result<Launched> {
        let (program, args) = command
            .split_first()
            .ok_or_else(|| Fault::Usage("the launch command is empty".into()))?;
        let out = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(local(log.display()))?;
        let err = out.try_clone().map_err(local(log.display()))?;
        let mut c = Command::new(program);
        // A measured server needs no console.
        c.args(args)
            .env("PANDO_CONSOLE", "off")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        bind_child(&mut c, cores);
        let started = Instant::now();
        let child = c.spawn().map_err(local(format!("starting {program}")))?;
        Ok(Launched {
            child,
            command: command.to_vec(),
            started,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if it has ended.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM; SIGKILL when it has not ended in time.
    pub fn stop(&mut self, patience: Duration) {
        // SAFETY: the child has not been waited for, so the id is still ours.
        if self.ended().is_none() {
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        }
        let deadline = Instant::now() + patience;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                return self.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
    }
}

/// Lets the child start on `cores`, and end with us.
pub fn bind_child(command: &mut Command, cores: &[usize]) {
    end_with_us(command);
    if cores.is_empty() {
        return;
    }
    let cores = cores.to_vec();
    // SAFETY: between fork and exec only sched_setaffinity is called; the vector is only read.
    unsafe {
        command.pre_exec(move || spread(&cores));
    }
}

/// Lets the child end when the thread that starts it does, whatever ends that: a lab that is killed leaves no servers.
pub fn end_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl and getppid are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // A parent that ended before the call sends no signal, so it is looked for here.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let l = std::net::TcpListener::bind("127.0.0.1:0").map_err(local("finding a free port"))?;
    Ok(l.local_addr().map_err(local("finding a free port"))?.port())
}

/// Bytes on disk below a folder (blocks, not lengths).
pub fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|e| match e.metadata() {
            Ok(m) if m.is_dir() => disk_bytes(&e.path()),
            Ok(m) => m.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_times_and_memory() {
        let before = cpu_time(std::process::id()).unwrap();
        let thread = thread_cpu_time();
        let mut x = 0u64;
        while thread_cpu_time() - thread < Duration::from_millis(30) {
            x = x.wrapping_add(crate::random::mix(x));
        }
        assert!(std::hint::black_box(x) != 1);
        let spent = cpu_time(std::process::id()).unwrap() - before;
        assert!(spent >= Duration::from_millis(25), "{spent:?}");
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert_eq!(ProcessCounters::of(&[]), None);
        assert!(ticks(std::process::id(), 11).is_some());
        assert!(cpu_time(MAX_PID).is_none() && cpu_time(u32::MAX).is_none());
        assert!(!allowed_cores().is_empty());
    }

    /// Of another process, whose threads do not come and go as those of tests do.
    #[test]
    fn a_process_that_waits_is_counted() {
        use std::io::{Read, Write};
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let mut echo = || {
            to.write_all(b"x").unwrap();
            from.read_exact(&mut [0]).unwrap();
            ProcessCounters::of(&[cat.id()]).unwrap()
        };
        let first = echo();
        // On a busy machine the next letter may be there before it waits for one.
        let waited = (0..1000).any(|_| echo().since(first).sleeps >= 1);
        assert!(waited && first.page_faults > 0);
        assert!(first.wait_share().is_none_or(|s| (0.0..=1.0).contains(&s)));
        drop(to);
        cat.wait().unwrap();
    }

    #[test]
    fn a_child_is_bound_and_killed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let core = allowed_cores()[0];
        let command = [
            "sh",
            "-c",
            "grep Cpus_allowed_list /proc/self/status; exec sleep 100",
        ]
        .map(String::from);
        let mut child = Launched::start(&command, &[core], &log).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.trim_end().ends_with(&format!("\t{core}")) {
                break;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(child.ended().is_none());
        child.stop(Duration::from_secs(5));
        assert!(child.ended().is_some());
        assert!(disk_bytes(dir.path()) > 0);
    }
}
