//! What a Unix process has to do to serve: go to the background, raise its limits, leave its number, hear signals.

use std::fs::{File, Permissions};
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use service::Control;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Tells the parent that the server is ready; dropped without it, that it is not.
pub struct Ready(PipeWriter);

impl Ready {
    pub fn announce(mut self) {
        let _ = self.0.write_all(b"1");
        // From here on the output has no reader.
        if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
            for standard in 0..=2 {
                // SAFETY: both are open descriptors, and dup2 touches no memory.
                unsafe { libc::dup2(null.as_raw_fd(), standard) };
            }
        }
    }
}

pub enum Forked {
    Parent(ExitCode),
    Child(Ready),
}

/// Forks; the parent waits until the child is ready or has failed. To be called while there is one thread.
pub fn fork() -> Result<Forked, String> {
    let failed = |what: &str| format!("cannot {what}: {}", std::io::Error::last_os_error());
    let (mut reader, writer) = std::io::pipe().map_err(|_| failed("make a pipe"))?;
    println!("about to fork child process, waiting until server is ready for connections.");
    let _ = std::io::stdout().flush();
    // SAFETY: no other thread exists that could hold a lock in the child.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")),
        0 => {
            drop(reader);
            // SAFETY: a call without arguments.
            unsafe { libc::setsid() };
            Ok(Forked::Child(Ready(writer)))
        }
        child => {
            drop(writer);
            println!("forked process: {child}");
            let mut byte = [0];
            if reader.read(&mut byte).is_ok_and(|n| n == 1) {
                println!("child process started successfully, parent exiting");
                return Ok(Forked::Parent(ExitCode::SUCCESS));
            }
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            unsafe { libc::waitpid(child, &mut status, 0) };
            let code = if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                1
            };
            println!("ERROR: child process failed, exited with {code}");
            println!(
                "To see additional information in this output, start without the \"--fork\" option."
            );
            Ok(Forked::Parent(ExitCode::from(
                u8::try_from(code).unwrap_or(1),
            )))
        }
    }
}

/// macOS refuses more, whatever it says is the most.
const MOST_FILES_OF_MACOS: u64 = 10_240;

/// As many open files as the process may have; the number of them.
pub fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: `limit` is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max
        {
            for most in [limit.rlim_max, MOST_FILES_OF_MACOS.min(limit.rlim_max)] {
                let wanted = libc::rlimit {
                    rlim_cur: most,
                    rlim_max: limit.rlim_max,
                };
                if most > limit.rlim_cur && libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) == 0 {
                    limit = wanted;
                    break;
                }
            }
        }
    }
    limit.rlim_cur
}

/// Files and directories that this process makes are for its owner only, as mongod's.
pub fn keep_files_private() {
    // SAFETY: sets a number of the process.
    unsafe { libc::umask(0o077) };
}

/// A file with the process id, gone with the process.
pub struct PidFile(PathBuf);

impl PidFile {
    pub fn write(path: &Path) -> Result<PidFile, String> {
        // Readable for programs that watch the process, as mongod's.
        std::fs::write(path, format!("{}\n", std::process::id()))
            .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o644)))
            .map_err(|e| format!("cannot write the pid file {}: {e}", path.display()))?;
        Ok(PidFile(path.to_path_buf()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Shuts down on SIGTERM, SIGINT and SIGQUIT; rotates the log on SIGUSR1; lives on after SIGHUP, as mongod does when its
/// terminal closes. A second SIGINT does not wait.
pub fn watch_signals(control: Arc<Control>) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cannot watch signals: {e}");
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1]).map_err(cannot)?;
    let watch = move || {
        for signal in signals.forever() {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("?");
            if signal == SIGUSR1 {
                if let Err(e) = service::logging::rotate() {
                    tracing::error!(target: "CONTROL", error = %e, "Cannot rotate the log");
                }
                continue;
            }
            if signal == SIGHUP {
                continue;
            }
            tracing::info!(target: "CONTROL", id = 23377, signal, name, "Received signal");
            if signal == SIGINT && control.is_stopping() {
                std::process::exit(130);
            }
            control.shutdown();
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(cannot)?;
    Ok(())
}

/// `mongod --shutdown`: stops the server whose lock file names its process, and waits for it to go.
pub fn stop_server_of(dir: &Path) -> Result<u32, String> {
    let lock = dir.join("pando.lock");
    let pid = std::fs::read_to_string(&lock)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    let Some(pid) = pid.filter(|pid| *pid > 0) else {
        return Err(format!("there is no server on {}", dir.display()));
    };
    // SAFETY: kill touches no memory; signal 0 asks whether the process is there.
    unsafe {
        if libc::kill(pid, libc::SIGTERM) != 0 {
            return Err(format!(
                "there is no server on {} (process {pid} is gone)",
                dir.display()
            ));
        }
        while libc::kill(pid, 0) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    Ok(pid.unsigned_abs())
}
