//! The binary: `pando serve` and its tools, and `mongod` when it is called by that name. `pando lab` is a program of its own.

mod allocator;
mod backup;
mod check;
mod client;
mod cluster;
mod config_file;
mod console;
mod daemon;
mod laboratory;
mod memory;
mod migrate;
mod oplog;
mod options;
mod peers;
mod point_in_time;
mod progress;
mod rekey;
mod restore;
mod route;
mod salvage;
mod schema;
mod serve;
mod settings;
mod tool_words;
mod transfers;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use service::config::Personality;

/// One allocator for our code and the engine's: a tenth of a loop's time went into the system's.
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

const HELP: &str = "\
PandoDB: a document database for MongoDB's drivers, shells and tools.

Usage: pando <command> [options]

  serve     start the server (see: pando serve --help)
  route     start a router of a sharded cluster: pando route --configdb SET/HOST:PORT (also as mongos)
  mongod    the same with mongod's flags and manners, as when the program is called by that name
  cluster   runs a replica set on this machine: pando cluster up --replicas 3
  check     reads a data directory that no server has open, and says what is damaged: pando check DIR
  salvage   saves what can be read of a data directory, for mongorestore: pando salvage DIR OUT
  backup    keeps backups of a running server, set or cluster: pando backup URI ARCHIVE
  restore   data directories as of a moment, from a backup and the log: pando restore ARCHIVE TARGET
  oplog     shows the log of a data directory or a server (see: pando oplog --help)
  rekey     gives an encrypted data directory another master key (see: pando rekey --help)
  migrate   brings a running MongoDB over while clients write: pando migrate FROM TO --state DIR
  schema    what the documents of a collection look like (see: pando schema --help)
  lab       the benchmark laboratory (see: pando lab --help)

  pando --version | --help
";

fn main() -> ExitCode {
    own_process::broken_pipe::guard(run)
}

/// Runs a tool that writes data: what it makes is for its owner only.
fn private(tool: fn(&[OsString]) -> ExitCode, args: &[OsString]) -> ExitCode {
    daemon::keep_files_private();
    tool(args)
}

fn run() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let mut rest: Vec<OsString> = args.collect();
    let called = |as_name: &str| {
        Path::new(&program)
            .file_name()
            .is_some_and(|n| n == as_name)
    };
    if called("mongod") {
        return serve::main(Personality::Mongod, &rest);
    }
    if called("mongos") {
        return serve::route(Personality::Mongod, &rest);
    }
    let command = if rest.is_empty() {
        OsString::from("--help")
    } else {
        rest.remove(0)
    };
    let reads_files = ["check", "salvage", "restore", "oplog", "rekey"];
    let key = match command.to_str() {
        Some(tool) if reads_files.contains(&tool) => rekey::take_key(&mut rest),
        Some("cluster") => rekey::look_for_key(&rest),
        _ => Ok(()),
    };
    if let Err(says) = key {
        eprintln!("pando: {says}");
        return ExitCode::from(2);
    }
    match command.to_str() {
        Some("serve") => serve::main(Personality::Pando, &rest),
        Some("route") => serve::route(Personality::Pando, &rest),
        Some("mongos") => serve::route(Personality::Mongod, &rest),
        Some("mongod") => serve::main(Personality::Mongod, &rest),
        Some("cluster") => private(cluster::main, &rest),
        Some("check") => check::main(&rest),
        Some("salvage") => private(salvage::main, &rest),
        Some("backup") => private(backup::main, &rest),
        Some("restore") => private(restore::main, &rest),
        Some("migrate") => private(migrate::main, &rest),
        Some("oplog") => oplog::main(&rest),
        Some("rekey") => rekey::main(rest),
        Some("lab") => laboratory::main(&rest),
        Some("schema") => schema::main(rest),
        Some("--version" | "-V" | "version") => {
            println!("pando {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!(
                "pando: there is no command '{}'; see pando --help",
                command.display()
            );
            ExitCode::from(2)
        }
    }
}
