//! `cargo run -p lab --example lab -- <arguments>`: the laboratory without the server's binary around it.

use std::ffi::OsString;

fn main() -> std::process::ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The laboratory starts its null server as `<this program> lab null`.
    if args.first().is_some_and(|a| a == "lab") {
        args.remove(0);
    }
    lab::main(args)
}
