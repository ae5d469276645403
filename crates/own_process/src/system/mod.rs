//! What the system tells of the machine, of its processes and of this one, and how a thread gives way to others.
//!
//! Each system has a file with the same functions: `linux` reads `/proc`, `macos` asks the kernel by calls.
//!
//! Invariants: what the system does not tell is `None` or empty, never a guess. A number and a start name a process
//! for ever: numbers are given again.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod of_this_one;
#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod of_this_one;

use std::ffi::CStr;

/// The system's name, as MongoDB's `hostInfo` has it.
pub use of_this_one::NAME;

/// Memory of this process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// What it holds of the machine's.
    pub resident: u64,
    /// What of that is no file's: pages of mapped files go whenever others want the memory. Where the system does not tell
    /// them apart it is all.
    pub anonymous: u64,
    pub virtual_size: u64,
}

/// How much memory this process has.
pub fn own_memory() -> Option<ProcessMemory> {
    of_this_one::own_memory()
}

/// The memory of the machine, in bytes.
pub fn machine_memory() -> Option<u64> {
    of_this_one::machine_memory()
}

/// What kind of processor this is, in its maker's words.
pub fn processor() -> Option<String> {
    of_this_one::processor()
}

/// What the system and its release are called by their maker, as "macOS" and "15.1".
pub fn release() -> Option<(String, String)> {
    of_this_one::release()
}

/// The numbers of all processes.
pub fn processes() -> Vec<u32> {
    of_this_one::processes()
}

/// When a process began, in a unit of the system's; `None` where there is no such process, or it has ended and
/// was not waited for.
pub fn start_of(pid: u32) -> Option<u64> {
    of_this_one::start_of(pid)
}

/// The words that a process was started with, a zero after each.
pub fn command_line(pid: u32) -> Option<Vec<u8>> {
    of_this_one::command_line(pid)
}

/// How far a thread stands behind others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesWay {
    /// A client waits for it, and others come first.
    Little,
    /// No client waits for it.
    Much,
}

/// Has the calling thread give way to others from now on. Where the system will not, nothing changes.
pub fn give_way(far: GivesWay) {
    of_this_one::give_way(far);
}

/// How many of the machine's cores no thread of any process runs on at this moment. `None` where the system does not tell.
pub fn idle_cores() -> Option<usize> {
    // SAFETY: asks for a number.
    let cores = usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).ok()?;
    // The calling one is among those that run.
    Some(cores.saturating_sub(of_this_one::running_threads()?))
}

/// How many files and sockets this process has open.
pub fn open_files() -> Option<usize> {
    // The directory is open too while it is read.
    Some(std::fs::read_dir(of_this_one::OPEN_FILES).ok()?.count())
}

pub fn page_bytes() -> u64 {
    // SAFETY: asks for a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The name, version and host of the running kernel (uname(2)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    pub host: String,
    /// As "6.1.0-13-amd64".
    pub release: String,
    /// How it was built.
    pub version: String,
}

/// What the kernel says of itself; empty where it says nothing.
pub fn kernel() -> Kernel {
    // SAFETY: all fields are arrays of numbers, for which zeros are valid.
    let mut told: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the struct.
    if unsafe { libc::uname(&mut told) } != 0 {
        return Kernel::default();
    }
    Kernel {
        host: text_of(&told.nodename),
        release: text_of(&told.release),
        version: of_this_one::kernel_version().unwrap_or_else(|| text_of(&told.version)),
    }
}

/// The text before the first zero.
fn text_of(chars: &[libc::c_char]) -> String {
    // The type is signed on some processors only.
    let bytes: Vec<u8> = chars.iter().flat_map(|c| c.to_ne_bytes()).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::new(),
        |text| text.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_this_process() {
        let memory = own_memory().unwrap();
        assert!(memory.resident > 0 && memory.virtual_size >= memory.resident);
        assert!(memory.anonymous > 0 && memory.anonymous <= memory.resident);
        assert!(machine_memory().unwrap() > memory.resident);
        let before = open_files().unwrap();
        let file = std::fs::File::open("/").unwrap();
        assert!(open_files().unwrap() > 0 && before > 0);
        drop(file);
        assert!(page_bytes().is_power_of_two());
        let kernel = kernel();
        assert!(!kernel.host.is_empty() && !kernel.release.is_empty());
        let chars = |text: &[u8]| -> Vec<libc::c_char> {
            text.iter().map(|b| *b as libc::c_char).collect()
        };
        assert_eq!(text_of(&chars(b"ab\0c")), "ab");
        assert_eq!(text_of(&chars(b"no end")), "");
    }

    #[test]
    fn a_process_is_known_by_its_start_and_its_words() {
        // It waits for a line that never comes.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line", ""])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let started = start_of(pid).unwrap();
        assert_eq!(start_of(pid), Some(started));
        assert!(processes().contains(&pid) && processes().contains(&std::process::id()));
        // Until it has become the other program it has our words.
        let words = || command_line(pid).unwrap_or_default();
        while !words().starts_with(b"sh\0") {
            assert_eq!(start_of(pid), Some(started));
            std::thread::yield_now();
        }
        assert_eq!(words(), b"sh\0-c\0read line\0\0");
        child.kill().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while start_of(pid).is_some() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(start_of(pid), None, "it has ended, and was not waited for");
        child.wait().unwrap();
        assert_eq!((start_of(pid), command_line(pid)), (None, None));
    }
}
