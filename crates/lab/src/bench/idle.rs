//! A server with nothing to do: how soon it is ready with an empty directory, and how much memory it holds.

use super::place::ServerSetup;
use crate::fault::{Fault, Result};
use crate::measure::median;
use crate::process::resident_bytes;
use crate::progress::say;
use crate::report::CheckedFigure;
use std::time::Duration;

const STARTS: usize = 5;
const READY_BAR_MS: f64 = 300.0;
const MEMORY_BAR_MB: f64 = 60.0;

pub fn measure(room: &ServerSetup, quiet: bool) -> Result<Vec<CheckedFigure>> {
    say(quiet, "idle: starting with an empty directory");
    let (mut ready, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let mut server = room.start(&room.fresh_dbpath()?, &room.placement.all)?;
        ready.push(server.ready.as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_secs(1));
        let held = server.pid.and_then(resident_bytes);
        memory.push(held.ok_or_else(|| Fault::Local("the server is gone".into()))? as f64 / 1e6);
        server.stop();
    }
    let of = format!("median of {STARTS} starts");
    Ok(vec![
        CheckedFigure::at_most("idle: ready after", median(&ready), "ms", READY_BAR_MS).note(&of),
        CheckedFigure::at_most("idle: memory", median(&memory), "MB", MEMORY_BAR_MB).note(&of),
    ])
}
