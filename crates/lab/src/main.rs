//! The binary `pando-lab`, which `pando lab` runs: the laboratory, with the clients of all databases that it measures.
//! Invariant: the server does not link it, and it does not link the server.

use std::process::ExitCode;

fn main() -> ExitCode {
    own_process::broken_pipe::guard(|| lab::main(std::env::args_os().skip(1).collect()))
}
