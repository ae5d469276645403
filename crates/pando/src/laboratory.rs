//! `pando lab …`: becomes the program `pando-lab`, which lies beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "pando-lab";

/// Runs `pando-lab` with `args`, the words after `lab`. Returns only when it cannot be run.
pub fn main(args: &[OsString]) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(e) => {
            eprintln!("pando lab: this program's own path is not known: {e}");
            return ExitCode::FAILURE;
        }
    };
    let laboratory = own.with_file_name(PROGRAM);
    let failed = Command::new(&laboratory).args(args).exec();
    let release = if cfg!(debug_assertions) {
        ""
    } else {
        " --release"
    };
    eprintln!(
        "pando lab: cannot run {}: {failed}; in the source tree, cargo build{release} -p lab makes it",
        laboratory.display()
    );
    ExitCode::FAILURE
}
