//! `hostInfo`.

use crate::clock::now_millis;
use crate::process;
use crate::request::{CommandContext, Done};
use errors::Result;
use own_process::system;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let (memory, limit) = process::machine_memory();
    let cores = process::cores() as i64;
    let kernel = system::kernel();
    let (name, release) = system::release().unwrap_or_default();
    let w = &mut cx.w;
    w.open_doc("system")
        .date("currentTime", now_millis())
        .str("hostname", &process::host_name());
    w.i32("cpuAddrSize", usize::BITS as i32)
        .i64("memSizeMB", (memory >> 20) as i64)
        .i64("memLimitMB", (limit >> 20) as i64);
    w.int("numCores", cores)
        .int("numCoresAvailableToProcess", cores)
        .int("numPhysicalCores", cores);
    w.i32("numCpuSockets", 1)
        .str("cpuArch", std::env::consts::ARCH)
        .bool("numaEnabled", false)
        .i32("numNumaNodes", 1);
    w.close();
    w.open_doc("os")
        .str("type", system::NAME)
        .str("name", &name)
        .str("version", &release)
        .close();
    w.open_doc("extra")
        .str("versionString", &kernel.version)
        .str("libcVersion", "")
        .str("versionSignature", "");
    w.str("kernelVersion", &kernel.release)
        .str("cpuString", &system::processor().unwrap_or_default())
        .str("cpuFrequencyMHz", &process::cpu("cpu MHz"));
    w.str("cpuFeatures", &process::cpu("flags"))
        .i64("pageSize", process::page_bytes() as i64);
    w.i64("numPages", (memory / process::page_bytes().max(1)) as i64)
        .int("maxOpenFiles", open_files());
    w.close();
    Ok(Done::Reply)
}

fn open_files() -> i64 {
    // SAFETY: `l` is written by the call before it is read.
    unsafe {
        let mut l: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut l) != 0 {
            return 0;
        }
        i64::try_from(l.rlim_cur).unwrap_or(i64::MAX)
    }
}
